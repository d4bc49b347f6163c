//! `ssntp-bench` measures a server from outside.
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
//! All figures are from one run on one machine, so compare ratios and not numbers.
//! `README.md` explains each case and each key of the JSON, `docs/performance.md` what was found.
//!
//! | file | holds |
//! |---|---|
//! | `cases/` | the measurements |
//! | `ages` | how old the frames of a broadcast are when they arrive |
//! | `child` | the measured process, and its figures from `/proc` |
//! | `histogram` | millions of latencies in little memory |
//! | `machine` | processor and kernel, and what other programs used meanwhile |
//! | `progress` | the line on a terminal that says what is being measured |
//! | `raw/` | the load generator, for each protocol |
//! | `report` | medians, lines of a table, JSON |
//! | `failure`, `stop` | errors, signals |

#![allow(
    clippy::disallowed_methods,
    reason = "a measurement waits, and takes the clock of the standard library"
)]

mod ages;
mod cases;
mod child;
mod failure;
mod histogram;
mod machine;
mod progress;
mod raw;
mod report;
mod stop;

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, ValueEnum, value_parser};

use self::cases::{Bench, Case};
use self::child::Programs;
use self::failure::Failure;
use self::machine::{MUCH, Machine, Used};
use self::progress::Progress;
use self::raw::System;
use self::report::Report;
use self::stop::Stop;

/// Measure an SSNTP server: throughput, latency, handshakes, memory
///
/// Starts the server as a process of its own on loopback, with throw-away certificates, and
/// sends to it from this process. Prints each case when it is done.
#[derive(Debug, Parser)]
#[command(name = "ssntp-bench", version)]
struct Args {
    /// The time for which each case is measured
    #[arg(long, value_name = "SECONDS", default_value = "2", value_parser = seconds)]
    seconds: Duration,
    /// The number of measurements of each case; the medians of figures and of ratios within a run are printed
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = value_parser!(u32).range(1..))]
    runs: u32,
    /// Measure only these cases or groups of cases; --list names them
    #[arg(long, value_name = "CASE", value_delimiter = ',')]
    only: Vec<String>,
    /// Print the names of the cases and measure nothing
    #[arg(long)]
    list: bool,
    /// Number of idle sessions in the memory cases, and of clients that reconnect [default: 500,2000; with --peers or --earlier: 500]
    #[arg(long, value_name = "N", value_delimiter = ',')]
    sessions: Vec<u32>,
    /// Number of sessions in the case `sessions`
    #[arg(long, value_name = "N", default_value_t = 5_000, value_parser = value_parser!(u32).range(1..))]
    many: u32,
    /// Compare with other servers in the same run: with both, or with the one that is
    /// named, if they are on the PATH
    #[arg(long, value_name = "PEER", value_enum, value_delimiter = ',', num_args = 0..=1, require_equals = true, default_missing_values = ["nats-server", "mosquitto"])]
    peers: Vec<Peer>,
    /// Compare with the server of another ssntp program in the same run
    #[arg(long, value_name = "PATH")]
    earlier: Option<PathBuf>,
    /// The ssntp program to measure [default: ssntp beside this program, else on the PATH]
    #[arg(long, alias = "server-program", value_name = "PATH")]
    program: Option<PathBuf>,
    /// Print one JSON object for each case and system, one a line
    #[arg(long)]
    json: bool,
    /// The time after which one measurement is given up: its server is killed, and left
    /// out of the case's further runs
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = seconds)]
    limit: Duration,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Peer {
    NatsServer,
    Mosquitto,
}

/// Reads a positive number of seconds, with decimals.
fn seconds(text: &str) -> Result<Duration, &'static str> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.001..=31_536_000.0).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err("not a number of seconds from 0.001 to a year"),
    }
}

impl Args {
    /// True if other systems are measured as well.
    fn compares(&self) -> bool {
        !self.peers.is_empty() || self.earlier.is_some()
    }

    /// The cases to measure. Without `--only`, a comparison leaves out the cases that say
    /// nothing about other systems.
    fn cases(&self) -> Result<Vec<Case>, String> {
        let all = match self.sessions.as_slice() {
            [] => Case::all(&[500, 2_000], self.many),
            numbers => Case::all(numbers, self.many),
        };
        if let Some(name) = self
            .only
            .iter()
            .find(|name| !all.iter().any(|case| case.is_of(name)))
        {
            return Err(format!(
                "--only {name}: no case has this name; --list prints the names"
            ));
        }
        if !self.only.is_empty() {
            let chosen = |case: &Case| self.only.iter().any(|name| case.is_of(name));
            return Ok(all.into_iter().filter(chosen).collect());
        }
        Ok(match (self.compares(), self.sessions.as_slice()) {
            (false, _) => all,
            (true, []) => Case::compared(&[500]),
            (true, numbers) => Case::compared(numbers),
        })
    }

    fn programs(&self) -> Result<Programs, Failure> {
        let ssntp = self.program.clone().or_else(child::own_program);
        Ok(Programs {
            ssntp: ssntp.ok_or_else(|| {
                Failure::new(
                    "the program ssntp is neither beside ssntp-bench nor on the PATH: \
                     build it with `cargo build --release`, or name it with --program",
                )
            })?,
            earlier: self.earlier.clone(),
        })
    }

    /// The systems that are measured beside this server: an earlier version, and the peers
    /// that are installed. A note names each peer that is missing.
    fn others(&self) -> Result<Vec<System>, Failure> {
        let wanted = self.peers.iter().map(|peer| match peer {
            Peer::NatsServer => System::Nats,
            Peer::Mosquitto => System::Mosquitto,
        });
        let (found, missing): (Vec<_>, Vec<_>) =
            wanted.partition(|peer| child::on_path(peer.name()).is_some());
        if found.is_empty() && !missing.is_empty() {
            let names: Vec<_> = missing.iter().map(|peer| peer.name()).collect();
            return Err(Failure::new(format!(
                "not on the PATH: {}; there is nothing to compare with",
                names.join(", ")
            )));
        }
        for peer in missing {
            note(format!("{} is not on the PATH, so it is left out", peer.name()));
        }
        let earlier = self.earlier.iter().map(|_| System::Earlier);
        Ok(earlier.chain(found).collect())
    }
}

fn main() -> ExitCode {
    let args = Args::parse();
    let cases = args.cases().unwrap_or_else(|why| {
        // Prints the usage and exits with code 2.
        Args::command().error(ErrorKind::InvalidValue, why).exit()
    });
    match run(&args, &cases) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            note(failure);
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args, cases: &[Case]) -> Result<(), Failure> {
    if args.list {
        return print(cases.iter().map(Case::to_string));
    }
    let others = args.others()?;
    let programs = args.programs()?;
    let stop = Stop::install()?;
    let pki = raw::Pki::new()?;
    let bench = Bench {
        pki: &pki,
        stop: &stop,
        programs: &programs,
        window: args.seconds,
        limit: args.limit,
        expired: Arc::default(),
    };
    let mut systems: Vec<_> = std::iter::once(System::Ssntp)
        .chain(others.iter().copied())
        .collect();
    let machine = Machine::read();
    if !args.json {
        print([format!("# {machine}"), report::titles(&others)])?;
    }
    let mut progress = Progress::new(cases, &systems, args.runs);
    let (mut report, mut failed) = (Report::default(), 0);
    for case in cases {
        let before = Used::now();
        let mut too_slow = Vec::new();
        for run in 1..=args.runs {
            failed += measure(
                *case,
                run,
                &systems,
                &mut too_slow,
                &bench,
                &mut report,
                &mut progress,
            );
            if stop.requested() {
                break;
            }
            // The system that is measured second may find the machine in another state than the first.
            systems.reverse();
        }
        progress.clear();
        let used = Used::now().by_others_since(&before, &machine);
        if used > MUCH {
            note(format!(
                "{case}: other programs used {:.0} % of the processors meanwhile",
                used * 100.0
            ));
        }
        if args.json {
            print(report.json(*case, &machine, used))?;
        } else {
            print(report.lines(*case, &others))?;
        }
        if stop.requested() {
            return Err(Failure::new(
                "interrupted; the cases above are those that were measured",
            ));
        }
    }
    match failed {
        0 => Ok(()),
        n => Err(Failure::new(format!("measurements that failed: {n}"))),
    }
}

/// Measures a case once on each system but for those that are `too_slow` for it, to which it adds the
/// ones that reach the limit. Returns how many measurements failed.
fn measure(
    case: Case,
    run: u32,
    systems: &[System],
    too_slow: &mut Vec<System>,
    bench: &Bench<'_>,
    report: &mut Report,
    progress: &mut Progress,
) -> usize {
    let systems = case.systems(systems);
    bench.expired.store(false, Relaxed);
    let rate = case.rate(systems, bench);
    let mut failed = 0;
    for &system in systems {
        if too_slow.contains(&system) {
            progress.done();
            continue;
        }
        progress.begin(case, run, system);
        let figures = match &rate {
            Ok(rate) => case.measure(system, *rate, bench),
            Err(failure) => Err(Failure::new(failure)),
        };
        progress.done();
        if bench.stop.requested() {
            break;
        }
        let expired = bench.expired.swap(false, Relaxed);
        match figures {
            Ok(figures) if !expired => report.add(case, system, run, figures),
            result => {
                failed += 1;
                progress.clear();
                let why = match result {
                    Err(failure) if !expired => failure,
                    _ => {
                        too_slow.push(system);
                        Failure::new(format!(
                            "not done after {} s (--limit), so left out of further runs",
                            bench.limit.as_secs_f64()
                        ))
                    }
                };
                note(format!("{case}, {}: {why}", system.name()));
            }
        }
    }
    failed
}

/// Prints lines to the standard output. A reader that has gone, as in `ssntp-bench | head`,
/// has seen enough, so this is no failure.
fn print(lines: impl IntoIterator<Item = impl ToString>) -> Result<(), Failure> {
    let text: String = lines.into_iter().map(|line| line.to_string() + "\n").collect();
    match io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::new(format!("standard output: {error}")))
        }
        _ => Ok(()),
    }
}

/// Prints a line to the standard error. That may be closed, where `eprintln!` would panic.
fn note(line: impl std::fmt::Display) {
    let _ = writeln!(io::stderr(), "ssntp-bench: {line}");
}

fn pause(time: Duration) {
    std::thread::sleep(time);
}
