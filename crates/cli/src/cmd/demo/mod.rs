//! `ssntp demo`: a whole cluster on this machine, for half a minute.
//!
//! ```text
//!  this process        child processes, each of this same program
//!  ┌──────────┐        ┌───────────┐        ┌─────────┐
//!  │ table    │        │ scheduler │ ◀────▶ │ agent   │ ──▶ workloads
//!  │ of steps │        └───────────┘ ◀────▶ │ agent   │ ──▶ workloads
//!  └────┬─────┘         ▲       ▲   ◀────▶ │ network │ ──▶ CNCI ─┐
//!       ├─ ctl ─────────┤       └──────────┴─────────┘ ◀─────────┘
//!       └─ controller ──┘
//!            └─ its page, for a browser
//! ```
//!
//! The demo is a table of steps. Each step is a command that a user could type: its exit code, and the output of
//! a second command if that is not enough, show that it was done. A step is printed once that is seen; a step that
//! is not seen in time fails the demo. In every case the processes are ended and the directory with all files
//! is removed: by another process if the demo itself is killed.
//!
//! | file | holds |
//! |---|---|
//! | `steps` | the tables of steps: commands, and their expected results |
//! | `processes` | the directory, the child processes, and the process that removes them |

mod processes;
mod steps;

use std::collections::BTreeMap;
use std::fs;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::{Duration, Instant};

use clap::value_parser;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, getsockname, socket_with, sockopt};
use rustix::process::Signal;
use uuid::Uuid;

use self::processes::Processes;
use self::steps::{Act, Step};
use crate::failure::Failure;
use crate::output::{note, print_line, printable};
use crate::seconds::Seconds;
use crate::signals::Stop;
use ssntp_transport::{elapsed, now};

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
    /// killed, and the next START is done. The program etcd must be on the PATH
    #[arg(long, value_name = "N", value_parser = value_parser!(u16).range(3..=9), conflicts_with_all = ["seconds", "hold"])]
    servers: Option<u16>,
    /// Leave the cluster running for this time in total, before all instances are deleted
    /// [default: as long as the steps take]
    #[arg(long, value_name = "SECONDS", conflicts_with = "hold")]
    seconds: Option<Seconds>,
    /// Leave the cluster running until Ctrl-C, and print commands to try meanwhile
    #[arg(long)]
    hold: bool,
}

/// The time limit for one result to be seen. It is longer than that of `ssntp ctl`, which says for what it
/// has waited.
const LIMIT: Duration = Duration::from_secs(200);
/// The time for which a demo is held at most: a year.
const FOREVER: Duration = Duration::from_secs(365 * 86_400);
/// The time between two checks.
const POLL: Duration = Duration::from_millis(5);
/// The trace of which all commands are a part.
const TRACE: &str = "00-0123456789abcdef0123456789abcdef-0123456789abcdef-01";

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let mut demo = Demo::new()?;
    let shown = match args.servers {
        Some(servers) => demo.show_several(servers, args.agents),
        None => demo.show_cluster(args),
    };
    shown.map_err(|failure| match failure {
        Failure::Silent(0) => Failure::new("the standard output was closed before every step was seen"),
        Failure::Silent(_) => {
            note("ssntp: interrupted before every step was seen");
            failure
        }
        failure => {
            demo.processes.print_logs();
            failure
        }
    })?;
    demo.processes.end()?;
    demo.say("no process and no file is left")
}

/// A demo that runs.
struct Demo {
    stop: Rc<Stop>,
    began: Instant,
    processes: Processes,
    /// The texts that stand for names in braces, such as `{tenant}`. Of each process, `{NAME-line}` is what is awaited
    /// in its first lines, `{NAME}` the address in it, and `{NAME-pid}` its PID.
    values: BTreeMap<String, String>,
    /// The error output of the last command that failed.
    last_error: String,
}

impl Demo {
    fn new() -> Result<Self, Failure> {
        let mut this = Self {
            stop: Rc::new(Stop::install_patiently()?),
            began: now(),
            processes: Processes::new()?,
            values: BTreeMap::new(),
            last_error: String::new(),
        };
        this.set("program", std::env::current_exe()?.display());
        let directory = this.processes.path("").display().to_string();
        this.set("directory", directory);
        for (name, script) in steps::SCRIPTS {
            this.set(name, script);
        }
        for name in steps::UUIDS.split_whitespace() {
            this.set(name, Uuid::new_v4());
        }
        fs::write(this.processes.path("configuration.yaml"), steps::CONFIGURATION)?;
        Ok(this)
    }

    fn set(&mut self, name: &str, value: impl ToString) {
        self.values.insert(format!("{{{name}}}"), value.to_string());
    }

    fn show_cluster(&mut self, args: &Args) -> Result<(), Failure> {
        self.show(steps::BEGIN)?;
        self.show_agents(args.agents)?;
        self.show(steps::CLUSTER)?;
        // A trial has set this value if the host has all that networks of tenants need.
        if self.values.contains_key("{ping}") {
            self.show(steps::NETWORKS)?;
        } else {
            self.say(steps::NO_NETWORKS)?;
        }
        self.linger(args)?;
        self.show(steps::END)
    }

    /// Shows this number of schedulers, and the loss of the one that leads.
    fn show_several(&mut self, schedulers: u16, agents: u16) -> Result<(), Failure> {
        // The port is held until the end.
        let (etcd, _held) = free_address()?;
        self.set("etcd", etcd);
        self.show(steps::ETCD)
            .map_err(|e| e.with_advice("several schedulers share an etcd, which must be on the PATH"))?;
        let all = self.show_each(schedulers, steps::SCHEDULER, "{scheduler-{n}-line}")?;
        self.set("scheduler", all.join(","));
        self.show_agents(agents)?;
        self.show(steps::SEVERAL)
    }

    fn show_agents(&mut self, agents: u16) -> Result<(), Failure> {
        let pids = self.show_each(agents, steps::AGENT, "{agent-{n}-pid}")?;
        self.set("agents", agents);
        self.set("nodes", agents + 1);
        self.set("agent-pids", pids.join(", "));
        Ok(())
    }

    /// Shows the steps once for each number, and returns what a text was each time.
    fn show_each(&mut self, count: u16, steps: &[Step], text: &str) -> Result<Vec<String>, Failure> {
        let mut texts = Vec::new();
        for at in 1..=count {
            self.set("n", at);
            self.set(&format!("agent-{at}"), Uuid::new_v4());
            // Of several schedulers, each agent tries another one first.
            let schedulers = self.filled("{scheduler}");
            if let Some((first, others)) = schedulers.split_once(',') {
                self.set("scheduler", format_args!("{others},{first}"));
            }
            self.show(steps)?;
            texts.push(self.filled(text));
        }
        Ok(texts)
    }

    /// Shows each step of a table.
    fn show(&mut self, steps: &[Step]) -> Result<(), Failure> {
        for (text, line, act, seen) in steps {
            let mut output = match act {
                Act::Ends(code) => self.run(line, *code)?,
                Act::Repeated => self.until(line, |demo| demo.attempt(line))?,
                Act::Tried => match self.attempt(line)? {
                    Some(output) => output,
                    None => continue,
                },
                Act::Starts(name, awaited) => self.start(name, awaited, line)?,
                Act::Stops(signal) => {
                    self.processes.end_one(&self.filled(line), *signal);
                    String::new()
                }
            };
            if let Some((command, shown, count)) = seen {
                let (shown, count) = (self.filled(shown), self.filled(count));
                let is_right = |output: &String| output.matches(&shown).count().to_string() == count;
                let last = self.until(text, |demo| Ok(demo.attempt(command)?.filter(is_right)))?;
                if command == line {
                    output = last;
                }
            }
            let output = self.named(output);
            for (name, before, end) in steps::TAKEN {
                if let Some((_, rest)) = output.split_once(before) {
                    self.set(name, rest.split(*end).next().unwrap_or_default());
                }
            }
            if !text.is_empty() {
                self.say(&format!("{text}\n{output}"))?;
            }
        }
        Ok(())
    }

    /// Leaves the cluster running for some time, or with `--hold` until a signal.
    fn linger(&mut self, args: &Args) -> Result<(), Failure> {
        let mut limit = args.seconds.map(Duration::from).unwrap_or_default();
        if args.hold {
            self.show(steps::HOLD)?;
            limit = FOREVER;
        }
        let left = limit.saturating_sub(elapsed(self.began));
        let check = || self.processes.check().map(|()| None::<()>);
        match self.stop.poll(POLL, left, check) {
            // Every step was seen, so a signal is not a failure. Another signal ends the deletion.
            Err(Failure::Silent(1..)) => self.stop = Rc::new(Stop::install_patiently()?),
            lingered => drop(lingered?),
        }
        Ok(())
    }

    /// Prints a step that has been seen, with the values of its names. Lines after the first are its details.
    fn say(&self, text: &str) -> Result<(), Failure> {
        let time = elapsed(self.began).as_secs_f64();
        let text = self.filled(text);
        let lines: Vec<_> = text.lines().map(printable).collect();
        print_line(format_args!("{time:5.1} s  {}", lines.join("\n         ")))
    }

    /// The text, with known UUIDs replaced by their names.
    fn named(&self, text: String) -> String {
        let is_uuid = |(_, value): &(&String, &String)| Uuid::try_parse(value).is_ok();
        let uuids = self.values.iter().filter(is_uuid);
        uuids.rev().fold(text, |text, (name, uuid)| {
            text.replace(uuid, name.trim_matches(['{', '}']))
        })
    }

    /// The text, with the names in braces replaced by their values. A value may have names itself.
    fn filled(&self, text: &str) -> String {
        let once = |text| {
            self.values
                .iter()
                .fold(text, |text: String, (name, value)| text.replace(name, value))
        };
        once(once(text.to_owned()))
    }

    /// The words of a command, with the flags that each command of its kind has.
    fn words(&self, line: &str) -> Vec<String> {
        let flags = steps::FLAGS.iter();
        let line = flags.fold(line.to_owned(), |line, (short, long)| line.replace(short, long));
        line.split(' ').map(|word| self.filled(word)).collect()
    }

    /// Starts a process, and waits for the awaited text in its output or its log. If it ends before, as a
    /// scheduler does if a busy etcd does not answer in time, it is started again a few times.
    fn start(&mut self, name: &str, awaited: &str, line: &str) -> Result<String, Failure> {
        let name = self.filled(name);
        let mut attempts = 0;
        let printed = loop {
            attempts += 1;
            let pid = self.processes.start(&name, &self.words(line))?;
            self.set(&format!("{name}-pid"), pid);
            let what = format!("the first lines of the {name}");
            match self.until(&what, |demo| Ok(demo.processes.line_with(&name, awaited))) {
                Err(Failure::Failed(_)) if attempts < 3 => self.processes.end_one(&name, Signal::KILL),
                found => break found?,
            };
        };
        // The link of a controller has a token, which its address has not.
        let address = printed.split("/login#").next().unwrap_or_default();
        self.values
            .entry(format!("{{{name}}}"))
            .or_insert(address.to_owned());
        self.set(&format!("{name}-line"), printed);
        Ok(String::new())
    }

    /// Runs a command, which must end with this exit code. Returns its output; its errors for the exit code 1.
    fn run(&mut self, line: &str, code: i32) -> Result<String, Failure> {
        let mut command = self.processes.spawn("command", &self.words(line))?;
        let status = self.until("the command ends", |_| Ok(command.try_wait()?))?;
        let errors = self.processes.read("command.log");
        match status.code() {
            Some(1) if code == 1 => Ok(errors),
            ended if ended == Some(code) => Ok(self.processes.read("command.out")),
            _ => Err(Failure::new(format!("{line}: {errors}"))),
        }
    }

    /// The output of a command. `None` if it fails, for example because the leader has just changed.
    fn attempt(&mut self, line: &str) -> Result<Option<String>, Failure> {
        match self.run(line, 0) {
            Err(Failure::Failed(error)) => {
                self.last_error = error;
                Ok(None)
            }
            output => output.map(Some),
        }
    }

    /// Calls `look` until it returns something. Fails after the time limit, after a signal, or if a process
    /// has ended.
    fn until<T>(
        &mut self,
        what: &str,
        mut look: impl FnMut(&mut Self) -> Result<Option<T>, Failure>,
    ) -> Result<T, Failure> {
        let stop = Rc::clone(&self.stop);
        let seen = stop.poll(POLL, LIMIT, || match look(self)? {
            None => self.processes.check().map(|()| None),
            seen => Ok(seen),
        })?;
        let error = &self.last_error;
        seen.ok_or_else(|| {
            let seconds = LIMIT.as_secs();
            Failure::new(format!(
                "not seen in {seconds} s: {what}; the last error: {error}"
            ))
        })
    }
}

/// A loopback address with a free port, which stays that of this demo as long as the socket is open: it is
/// bound, and does not listen. Servers can listen there, because they set `SO_REUSEADDR`.
fn free_address() -> Result<(SocketAddrV4, OwnedFd), Failure> {
    let socket = socket_with(
        AddressFamily::INET,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    bind(&socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0))?;
    Ok((SocketAddrV4::try_from(getsockname(&socket)?)?, socket))
}
