//! `ssntp bench`: what the server does, measured from outside.
//!
//! ```text
//!  this process                                  child process
//!  senders (raw, 16 KiB batches) ── mTLS ──▶ ┌────────────┐
//!                                            │ ssntp      │ CPU and memory
//!  receivers (raw, counted)    ◀── mTLS ──── │ server     │ from /proc
//!                                            └────────────┘
//!  floor: two threads over loopback, the same bytes through TLS, no protocol
//! ```
//!
//! All figures are from one run on one machine; compare ratios, not numbers.
//!
//! | file | holds |
//! |---|---|
//! | `cases` | what is measured |
//! | `child` | the server's process and what the kernel says of it |
//! | `raw` | peers that speak SSNTP with as little as possible around it |
//! | `report` | the table and the JSON |

mod cases;
mod child;
mod raw;
mod report;

use std::time::Duration;

use ssntp::Role;

use crate::failure::Failure;
use crate::output::Output;
use crate::seconds::Seconds;
use crate::signals::Stop;

/// Measure a server: throughput, latency, handshakes, memory
///
/// Starts the server as a process of its own on loopback, with throw-away
/// certificates, and drives it from this one. Prints a table.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// How long each throughput and latency case runs
    #[arg(long, value_name = "SECONDS", default_value = "2")]
    seconds: Seconds,
    /// Measure these only: throughput, latency, handshakes, memory, floor
    #[arg(long, value_name = "WHAT", value_delimiter = ',', value_enum)]
    only: Vec<What>,
    /// Sessions of the memory case
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "0,500,2000")]
    sessions: Vec<u32>,
    /// Print one JSON object instead of the table
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum What {
    Throughput,
    Latency,
    Handshakes,
    Memory,
    Floor,
}

/// Payload lengths of the throughput cases.
const PAYLOADS: [usize; 4] = [0, 256, 4096, 65_536];
/// Senders and receivers of the throughput cases.
const SHAPES: [(usize, usize); 3] = [(1, 1), (8, 1), (1, 8)];

pub(crate) fn run(args: Args) -> Result<(), Failure> {
    // Its servers end with this process, see `child`.
    let _stop = Stop::install()?;
    let window: Duration = args.seconds.into();
    let wants = |what| args.only.is_empty() || args.only.contains(&what);
    let pki = raw::Pki::new()?;
    let mut report = report::Report::new();
    if wants(What::Floor) {
        for payload in PAYLOADS {
            report.floor(payload, cases::floor(&pki, payload, window)?);
        }
    }
    if wants(What::Throughput) {
        for (senders, receivers) in SHAPES {
            for payload in PAYLOADS {
                let server = child::Server::start(&pki, &[])?;
                report.throughput(cases::throughput(
                    &pki, &server, senders, receivers, payload, window,
                )?);
            }
        }
    }
    if wants(What::Throughput) {
        for payload in PAYLOADS {
            let server = child::Server::start(&pki, &[])?;
            report.throughput(cases::client_api(&pki, &server, payload, window)?);
        }
    }
    if wants(What::Latency) {
        let server = child::Server::start(&pki, &[])?;
        report.latency(cases::latency(&pki, &server, 1_000, 256, window)?);
    }
    if wants(What::Handshakes) {
        let server = child::Server::start(&pki, &[])?;
        report.handshakes(cases::handshakes(&pki, &server, window)?);
    }
    if wants(What::Memory) {
        let server = child::Server::start(&pki, &[])?;
        report.memory(cases::memory(&pki, &server, &args.sessions, Role::AGENT)?);
    }
    let mut output = Output::new();
    if args.json {
        output.line(report.json())?
    } else {
        output.line(report.table())?
    }
    output.flush()
}
