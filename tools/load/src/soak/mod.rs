//! A soak: runs a cluster of processes under load, kills each of them in turn, and
//! checks at the end that no memory, file, process or instance is left over.
//!
//! ```text
//!  warm-up ─ drain ─ figures ─ chaos: load, and every few seconds  ─ calm: ─ drain ─ figures ─ verdict
//!                              something is killed, filled, replaced  load
//! ```
//!
//! `make soak` runs it for 20 minutes, `make soak SECONDS=120` for a short test. It
//! prints its figures every 10 s. At the end it prints the figures that did not
//! return to their first values, and fails if there are any.
//!
//! | file | holds |
//! |---|---|
//! | `cluster` | the processes, and checks after their end |
//! | `chaos` | the faults that are caused |
//! | `jobs` | STARTs, each with exactly one answer, and their instances |
//! | `figures` | memory, descriptors and threads, and the bounds of their growth |

#![allow(
    clippy::disallowed_methods,
    reason = "a soak looks at the clock, and at its cluster, at intervals"
)]

mod chaos;
pub(crate) mod cluster;
pub(crate) mod figures;
mod jobs;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use self::chaos::Chaos;
use self::cluster::Cluster;
use self::figures::Figures;
use self::jobs::Jobs;
use crate::Result;

/// The number of STARTs a second.
const RATE: u128 = 10;
/// The time between two checks of the cluster.
const TICK: Duration = Duration::from_millis(20);
/// The time between two lines of figures.
const REPORT: Duration = Duration::from_secs(10);
/// The time limit for the end of open jobs. A START that was lost with the
/// scheduler is given up after 90 s.
const DRAIN: Duration = Duration::from_secs(150);
/// The time after which idle threads end.
const SETTLE: Duration = Duration::from_secs(4);

/// The flags of `ssntp-load soak`.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// The duration of the run; at least 30
    #[arg(long, default_value_t = 20 * 60, value_name = "SECONDS")]
    seconds: u64,
    /// The program `ssntp` [default: the one beside this program]
    #[arg(long, value_name = "SSNTP")]
    program: Option<PathBuf>,
    /// Keep the directory, with the logs of all processes
    #[arg(long)]
    keep: bool,
}

/// The absolute path of the program `ssntp`, because processes have a working directory of
/// their own. The default is beside this program.
pub(crate) fn absolute(program: Option<&Path>) -> Result<PathBuf> {
    let program = match program {
        Some(program) => program.to_path_buf(),
        None => std::env::current_exe()?.with_file_name("ssntp"),
    };
    Ok(std::path::absolute(program)?)
}

/// Runs a soak. Returns the faults, and the figures that did not return to their first values.
pub(crate) fn run(options: &Options) -> Result<Vec<String>> {
    let seconds = options.seconds.max(30);
    let mut run = Run {
        cluster: Cluster::start(&absolute(options.program.as_deref())?, options.keep)?,
        jobs: Jobs::default(),
        began: Instant::now(),
        next_report: Instant::now() + REPORT,
    };
    let third = Duration::from_secs(seconds / 3);
    let warm_up = third.min(Duration::from_secs(30));
    println!(
        "{} s: warm-up {} s, chaos {} s, calm {} s; {RATE} STARTs/s; {}",
        seconds,
        warm_up.as_secs(),
        (third * 2 - warm_up).as_secs(),
        third.as_secs(),
        run.cluster.describe()
    );
    run.load(warm_up, None)?;
    run.drain()?;
    let before = Figures::of(&run.cluster);
    println!("before: {before}");

    let mut chaos = Chaos::default();
    run.load(third * 2 - warm_up, Some(&mut chaos))?;
    chaos.end(&mut run.cluster)?;
    run.load(third, None)?;
    run.drain()?;
    let after = Figures::of(&run.cluster);
    println!("after: {after}");

    let mut faults = run.jobs.faults();
    faults.extend(before.compare(&after));
    faults.extend(run.cluster.end(run.jobs.started()));
    println!("{}; {}", chaos.summary(), run.jobs.summary());
    Ok(faults)
}

struct Run {
    cluster: Cluster,
    jobs: Jobs,
    began: Instant,
    next_report: Instant,
}

impl Run {
    /// Applies load for this time, with or without faults.
    fn load(&mut self, time: Duration, mut chaos: Option<&mut Chaos>) -> Result<()> {
        let began = Instant::now();
        let mut sent = 0;
        while began.elapsed() < time {
            let due = began.elapsed().as_millis() * RATE / 1000;
            // STARTs that could not be sent in time are left out.
            if due > sent {
                sent = due;
                let is_calm = chaos.is_none();
                self.jobs
                    .start(&self.cluster.controller, is_calm, &self.cluster.root());
            }
            if let Some(chaos) = &mut chaos {
                chaos.proceed(&mut self.cluster)?;
            }
            self.tick()?;
        }
        Ok(())
    }

    /// Waits without load until all jobs have ended, or until the time limit.
    fn drain(&mut self) -> Result<()> {
        let began = Instant::now();
        while self.jobs.open() > 0 && began.elapsed() < DRAIN {
            self.tick()?;
        }
        let settled = Instant::now() + SETTLE;
        while Instant::now() < settled {
            self.tick()?;
        }
        Ok(())
    }

    fn tick(&mut self) -> Result<()> {
        std::thread::sleep(TICK);
        self.jobs.proceed(&self.cluster.controller);
        self.cluster.watch()?;
        if Instant::now() >= self.next_report {
            self.next_report += REPORT;
            println!(
                "{:4} s  {}  |  {}",
                self.began.elapsed().as_secs(),
                self.jobs.summary(),
                Figures::of(&self.cluster)
            );
        }
        Ok(())
    }
}
