//! `ssntp bench`: what the server does, measured from outside.
//!
//! ```text
//!  this process                                  child process
//!  senders (raw, 16 KiB batches) ── mTLS ──▶ ┌────────────────┐
//!                                            │ ssntp server,  │ CPU and memory
//!  receivers (raw, counted)    ◀── mTLS ──── │ or a peer of it│ from /proc
//!                                            └────────────────┘
//!  floor: two threads over loopback, the same bytes through TLS, no protocol
//! ```
//!
//! All figures are from one run on one machine; compare ratios, not numbers.
//! What each case means, and the keys of the JSON: `docs/performance.md`.
//!
//! | file | holds |
//! |---|---|
//! | `cases/` | what is measured |
//! | `child` | the process that is measured and what the kernel says of it |
//! | `histogram` | latencies by the million |
//! | `raw/` | the load generator, for each protocol |
//! | `report` | medians, the tables and the JSON |

mod cases;
mod child;
mod histogram;
mod raw;
mod report;

use std::path::PathBuf;
use std::time::Duration;

use clap::{ValueEnum, value_parser};

use self::cases::{Bench, Case};
use self::child::Programs;
use self::raw::System;
use crate::failure::Failure;
use crate::output::{Output, note};
use crate::seconds::Seconds;
use crate::signals::Stop;

/// Measure a server: throughput, latency, handshakes, memory
///
/// Starts the server as a process of its own on loopback, with throw-away
/// certificates, and drives it from this one. Prints tables.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// How long each case is looked at
    #[arg(long, value_name = "SECONDS", default_value = "2")]
    seconds: Seconds,
    /// How often each case is measured; the medians are shown
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = value_parser!(u32).range(1..))]
    runs: u32,
    /// Measure these only: cases or groups of cases, as --list names them
    #[arg(long, value_name = "CASE", value_delimiter = ',')]
    only: Vec<String>,
    /// Name the cases, and measure none
    #[arg(long)]
    list: bool,
    /// Idle sessions of the memory cases, and clients that reconnect [default: 500,2000; with --peers: 500]
    #[arg(long, value_name = "N", value_delimiter = ',')]
    sessions: Vec<u32>,
    /// Sessions of the case that has many
    #[arg(long, value_name = "N", default_value_t = 5_000, value_parser = value_parser!(u32).range(1..))]
    many: u32,
    /// Compare with peers, both or the one that is named, where they are on
    /// the PATH, in the same run
    #[arg(long, value_name = "PEER", value_enum, value_delimiter = ',', num_args = 0..=1, require_equals = true, default_missing_values = ["nats-server", "mosquitto"])]
    peers: Vec<Peer>,
    /// Compare with the server of another ssntp program, in the same run
    #[arg(long, value_name = "PROGRAM")]
    earlier: Option<PathBuf>,
    /// Measure the server of another ssntp program in place of this one's
    #[arg(long, value_name = "PROGRAM")]
    server_program: Option<PathBuf>,
    /// Print one JSON object for each case, one a line
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Peer {
    NatsServer,
    Mosquitto,
}

impl Args {
    /// Whether other systems are measured as well.
    fn compares(&self) -> bool {
        !self.peers.is_empty() || self.earlier.is_some()
    }

    fn cases(&self) -> Result<Vec<Case>, Failure> {
        let all = match (self.compares(), self.sessions.is_empty()) {
            (true, true) => Case::compared(&[500]),
            (true, false) => Case::compared(&self.sessions),
            (false, true) => Case::all(&[500, 2_000], self.many),
            (false, false) => Case::all(&self.sessions, self.many),
        };
        let unknown = |name: &&String| !all.iter().any(|case| case.is_of(name));
        if let Some(name) = self.only.iter().find(unknown) {
            return Err(Failure::usage(format!(
                "--only {name}: there is no such case; --list names them"
            )));
        }
        let wanted = |case: &Case| self.only.is_empty() || self.only.iter().any(|name| case.is_of(name));
        Ok(all.into_iter().filter(wanted).collect())
    }

    fn programs(&self) -> Result<Programs, Failure> {
        let own = || std::env::current_exe().map_err(|e| Failure::new(format!("this program: {e}")));
        Ok(Programs {
            ssntp: self.server_program.clone().map_or_else(own, Ok)?,
            earlier: self.earlier.clone(),
        })
    }

    /// What is measured beside this server: the peers that are there, and an
    /// earlier version. Peers that are missing are named.
    fn others(&self, programs: &Programs) -> Result<Vec<System>, Failure> {
        let wanted = self.peers.iter().map(|peer| match peer {
            Peer::NatsServer => System::Nats,
            Peer::Mosquitto => System::Mosquitto,
        });
        let (found, missing): (Vec<_>, Vec<_>) = wanted.partition(|peer| programs.find(*peer).is_some());
        if found.is_empty() && !missing.is_empty() {
            let names: Vec<_> = missing.iter().map(|peer| peer.name()).collect();
            return Err(Failure::new(format!(
                "not on the PATH: {}; there is nothing to compare with",
                names.join(", ")
            )));
        }
        for peer in missing {
            note(format!("ssntp: {} is not on the PATH: left out", peer.name()));
        }
        let earlier = self.earlier.iter().map(|_| System::Earlier);
        Ok(earlier.chain(found).collect())
    }
}

pub(crate) fn run(args: Args) -> Result<(), Failure> {
    let cases = args.cases()?;
    if args.list {
        let mut output = Output::new();
        for case in cases {
            output.line(case)?;
        }
        return output.flush();
    }
    // Its servers end with this process, see `child`.
    let stop = Stop::install()?;
    let programs = args.programs()?;
    let others = args.others(&programs)?;
    let systems: Vec<_> = std::iter::once(System::Ssntp)
        .chain(others.iter().copied())
        .collect();
    let pki = raw::Pki::new()?;
    let bench = Bench {
        pki: &pki,
        stop: &stop,
        programs: &programs,
        window: args.seconds.into(),
    };
    let mut report = report::Report::default();
    let mut failed = 0;
    for _ in 0..args.runs {
        for case in &cases {
            let rate = case.rate(&systems, &bench);
            for &system in &systems {
                let measured = match &rate {
                    Ok(rate) => case.measure(system, *rate, &bench),
                    Err(failure) => Err(Failure::new(failure)),
                };
                if stop.requested() {
                    return Ok(());
                }
                match measured {
                    Ok(figures) => report.add(*case, system, figures),
                    Err(failure) => {
                        failed += 1;
                        note(format!("ssntp: {case}, {}: {failure}", system.name()));
                    }
                }
            }
        }
    }
    let mut output = Output::new();
    if args.json {
        for line in report.json() {
            output.line(line)?;
        }
    } else if args.compares() {
        output.line(report.comparison(&others))?;
    } else {
        output.line(report.tables())?;
    }
    output.flush()?;
    match failed {
        0 => Ok(()),
        n => Err(Failure::new(format!("{n} measurements failed"))),
    }
}

#[expect(clippy::disallowed_methods, reason = "the pace of a measurement")]
fn pause(time: Duration) {
    std::thread::sleep(time);
}
