//! `ssntp demo`: a whole cluster on this machine, for half a minute.
//!
//! ```text
//!  this process                     child processes, each of this same program
//!  ┌─────────────────┐              ┌───────────┐        ┌─────────┐
//!  │ controller      │ ◀── TLS ───▶ │ scheduler │ ◀────▶ │ agent   │ ──▶ workloads
//!  │ steps, table    │              └───────────┘ ◀────▶ │ agent   │ ──▶ workloads
//!  └─────────────────┘                    ▲       ◀────▶ │ network │ ──▶ CNCI ─┐
//!                                         └──────────────┴─────────┘ ◀─────────┘
//! ```
//!
//! Every step is told once it has been seen to happen, in STATS or an event;
//! one that is not fails the demo. Whatever happens, the processes are ended
//! and the directory, in which all that they write stands, is removed: even
//! when the demo itself is killed, by a process that waits for its end.
//!
//! | file | holds |
//! |---|---|
//! | `steps` | what is done, and what has to be seen |
//! | `watch` | the waits until it is seen |
//! | `processes` | the child processes and the directory |
//! | `caretaker` | the process that removes what a killed demo leaves |
//! | `screen` | the live table, or plain lines |

pub(crate) mod caretaker;
mod processes;
mod screen;
mod steps;
mod watch;

use std::time::{Duration, Instant};

use clap::value_parser;

use self::caretaker::Caretaker;
use self::processes::{Directory, Processes};
use self::screen::Screen;
use self::steps::{Demo, Interrupt};
use crate::failure::Failure;
use crate::seconds::Seconds;
use crate::signals::Stop;

/// Bring up a whole cluster on this machine, and show what it does
///
/// Starts a scheduler, agents, a network agent and a controller, with
/// throw-away certificates; starts workloads, which are real processes, and a
/// concentrator; stops, restarts, evacuates, restores; has one START fail, and one
/// process, which its node starts again;
/// shows the trace of another; and deletes everything. The exit code is 0 if
/// every step was seen to happen. Needs nothing and leaves nothing behind.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// How many agents
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = value_parser!(u16).range(1..=256))]
    agents: u16,
    /// Show the table until so much time has passed, before everything is
    /// deleted [default: no longer than the steps take]
    #[arg(long, value_name = "SECONDS", conflicts_with = "hold")]
    seconds: Option<Seconds>,
    /// Leave it running until Ctrl-C, and print what to try meanwhile
    #[arg(long)]
    hold: bool,
}

/// How long the table shows what a step has brought about.
const PACE: Duration = Duration::from_secs(1);
/// How many steps there are, about.
const STEPS: u32 = 17;

impl Args {
    /// Where there is a table, each step stands for a moment; together they
    /// take no longer than the demo is to last.
    fn pace(&self, screen: &Screen) -> Duration {
        let most = self
            .seconds
            .map_or(PACE, |seconds| Duration::from(seconds) / STEPS);
        if screen.is_live() {
            most.min(PACE)
        } else {
            Duration::ZERO
        }
    }
}

pub(crate) fn run(args: Args) -> Result<(), Failure> {
    let stop = Stop::install_patiently()?;
    let began = now();
    let mut screen = Screen::new(began);
    let directory = Directory::new()?;
    let caretaker = Caretaker::start(directory.path())?;
    let mut processes = Processes::new(&directory);
    let pace = args.pace(&screen);
    let until = args.seconds.map(|seconds| began + Duration::from(seconds));
    let seen = Demo::bring_up(&mut processes, &mut screen, &stop, args.agents, pace).and_then(|mut demo| {
        let seen = demo
            .steps()
            .and_then(|()| demo.linger(until, args.hold))
            .and_then(|()| demo.delete_everything());
        if seen.is_err() {
            demo.clean_up();
        }
        seen
    });
    // Told before the table is drawn over or the logs are removed.
    let ended = screen.end();
    if matches!(&seen, Err(Interrupt::Failed(failure)) if failure.is_failure()) {
        processes.tell_logs();
    }
    let clean = processes.end();
    let removed = directory.remove();
    // Which finds nothing left to do.
    drop(caretaker);
    match seen {
        Err(Interrupt::Failed(failure)) if failure.is_failure() => return Err(failure),
        Err(Interrupt::Failed(_)) => {
            return Err(Failure::new(
                "the standard output was closed before every step was seen",
            ));
        }
        Err(Interrupt::Stopped) => return Err(Failure::new("interrupted before every step was seen")),
        Ok(()) => {}
    }
    clean?;
    removed?;
    ended?;
    screen.step("no process and no file is left")
}

#[expect(
    clippy::disallowed_methods,
    reason = "the demo tells the time of each step, and has a length"
)]
fn now() -> Instant {
    Instant::now()
}
