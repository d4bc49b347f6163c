//! `ssntp demo`: a whole cluster on this machine, for half a minute.
//!
//! ```text
//!  this process                     child processes, each of this same program
//!  ┌─────────────────┐              ┌───────────┐        ┌─────────┐
//!  │ controller      │ ◀── TLS ───▶ │ scheduler │ ◀────▶ │ agent   │ ──▶ workloads
//!  │ steps, table    │              └───────────┘ ◀────▶ │ agent   │ ──▶ workloads
//!  └────────┬────────┘                ▲       ▲   ◀────▶ │ network │ ──▶ CNCI ─┐
//!           ├─ ctl, for each step ────┤       └──────────┴─────────┘ ◀─────────┘
//!           └─ controller daemon ─────┘
//!                └─ its page, for a browser
//! ```
//!
//! Each step is a command that a user could type. `ssntp ctl` runs it, and the exit code and the
//! controller of this process show that it was done. A step is printed once that is seen; a step
//! that is not seen in time fails the demo. In every case the processes are ended and the directory
//! with all files is removed: by another process if the demo itself is killed.
//!
//! | file | holds |
//! |---|---|
//! | `steps` | the table of steps: commands, and their expected results |
//! | `networks` | two networks of tenants, if the system allows them |
//! | `several` | several servers, and the loss of one of them |
//! | `watch` | the waits for results |
//! | `processes` | the child processes, including ctl |
//! | `caretaker` | the directory, and the process that removes it |
//! | `screen` | the live table, or plain lines |

pub(crate) mod caretaker;
mod networks;
mod processes;
mod screen;
mod several;
mod steps;
mod watch;

use std::time::Duration;

use clap::value_parser;

use self::caretaker::Caretaker;
use self::processes::Processes;
pub(super) use self::processes::pause;
use self::screen::Screen;
use self::several::Several;
use self::steps::{Demo, STEPS};
use crate::clock::now;
use crate::failure::Failure;
use crate::output::note;
use crate::seconds::Seconds;
use crate::signals::Stop;

/// Start a whole cluster on this machine, and show what it does
///
/// Starts a scheduler, agents, a network agent and a controller with throw-away
/// certificates, and prints the address of the controller's page. Starts workloads, which
/// are real processes, and a concentrator; stops, restarts, evacuates and restores; makes
/// one START and one process fail, and shows how the node restarts the process; shows the
/// trace of a START; as root, shows networks of tenants, without a change of the host's
/// networks; and deletes all instances. The exit code is 0 if every step was seen to
/// happen. The demo needs no files and leaves no files.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The number of agents to start
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = value_parser!(u16).range(1..=256))]
    agents: u16,
    /// Show several schedulers instead, which share an etcd that the demo starts; the leader is
    /// killed, and the next START is done. If there is no etcd on the PATH, several routers are
    /// shown
    #[arg(long, value_name = "N", value_parser = value_parser!(u16).range(3..=9), conflicts_with_all = ["seconds", "hold"])]
    servers: Option<u16>,
    /// Show the table for this time in total, before all instances are deleted
    /// [default: as long as the steps take]
    #[arg(long, value_name = "SECONDS", conflicts_with = "hold")]
    seconds: Option<Seconds>,
    /// Leave the cluster running until Ctrl-C, and print commands to try meanwhile
    #[arg(long)]
    hold: bool,
}

/// The longest time for which the table shows the result of a step.
const PACE: Duration = Duration::from_secs(1);

impl Args {
    /// The pause after each step, in which the table shows its result. All pauses together take no longer
    /// than --seconds. Zero if there is no table.
    fn pace(&self, screen: &Screen) -> Duration {
        let steps = u32::try_from(STEPS.len()).unwrap_or(u32::MAX);
        let most = self
            .seconds
            .map_or(PACE, |seconds| Duration::from(seconds) / steps);
        match screen.is_live() {
            true => most.min(PACE),
            false => Duration::ZERO,
        }
    }
}

pub(crate) fn run(args: Args) -> Result<(), Failure> {
    let stop = Stop::install_patiently()?;
    let began = now();
    let mut screen = Screen::new(began);
    let caretaker = Caretaker::start()?;
    let mut processes = Processes::new(caretaker.directory());
    let until = args.seconds.map(|seconds| began + Duration::from(seconds));
    let pace = args.pace(&screen);
    let seen = match args.servers {
        Some(servers) => Several {
            processes: &mut processes,
            screen: &mut screen,
            stop: &stop,
            addresses: Vec::new(),
            last_error: String::new(),
        }
        .show(servers, args.agents),
        None => Demo::bring_up(&mut processes, &mut screen, &stop, args.agents, pace).and_then(|mut demo| {
            let seen = demo
                .show_steps()
                .and_then(|()| demo.show_networks())
                .and_then(|()| demo.linger(until, args.hold))
                .and_then(|()| demo.delete_everything());
            if seen.is_err() {
                demo.clean_up();
            }
            seen
        }),
    };
    // This comes before errors are printed, which the table would hide, and before the logs are
    // removed.
    let erased = screen.end();
    if let Err(Failure::Failed(_)) = seen {
        processes.print_logs();
    }
    let ended = processes.end();
    let removed = caretaker.end();
    seen.map_err(|failure| match failure {
        Failure::Silent(0) => Failure::new("the standard output was closed before every step was seen"),
        Failure::Silent(code) => {
            note("ssntp: interrupted before every step was seen");
            Failure::Silent(code)
        }
        failure => failure,
    })?;
    ended?;
    removed?;
    erased?;
    screen.step("no process and no file is left")
}
