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
#[rustfmt::skip] // Tables: one row a step.
mod steps;

use std::collections::BTreeMap;
use std::fs;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::process::Child;
use std::rc::Rc;
use std::time::{Duration, Instant};

use clap::value_parser;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, getsockname, socket_with, sockopt};
use rustix::process::Signal;
use ssntp_daemon::{Failure, Seconds, Stop, note, print_line, printable};
use ssntp_transport::{NEVER, elapsed, now};
use uuid::Uuid;

use self::processes::Processes;
use self::steps::{Act, Step};

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
/// The time between two checks.
const POLL: Duration = Duration::from_millis(5);

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let mut demo = Demo::new(args.agents)?;
    let shown = match args.servers {
        Some(servers) => demo.show_several(servers, args.agents),
        None => demo.show_cluster(args),
    };
    match &shown {
        Ok(()) => {}
        Err(Failure::Silent(0)) => {
            return Err(Failure::new(
                "the standard output was closed before every step was seen",
            ));
        }
        Err(Failure::Silent(_)) => note("ssntp: interrupted before every step was seen"),
        Err(_) => demo.processes.print_logs(),
    }
    shown?;
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
}

impl Demo {
    fn new(agents: u16) -> Result<Self, Failure> {
        let mut this = Self {
            stop: Rc::new(Stop::install_patiently()?),
            began: now(),
            processes: Processes::new()?,
            values: BTreeMap::new(),
        };
        this.set("program", std::env::current_exe()?.display());
        let directory = this.processes.path("").display().to_string();
        this.set("directory", directory);
        this.set("agents", agents);
        this.set("nodes", agents + 1);
        let scripts = steps::SCRIPTS.iter();
        scripts.for_each(|(name, script)| this.set(name, script));
        let uuids = steps::UUIDS.split_whitespace();
        uuids.for_each(|name| this.set(name, Uuid::new_v4()));
        for (name, content) in steps::FILES {
            fs::write(this.processes.path(name), content)?;
        }
        Ok(this)
    }

    fn set(&mut self, name: &str, value: impl ToString) {
        self.values.insert(format!("{{{name}}}"), value.to_string());
    }

    fn show_cluster(&mut self, args: &Args) -> Result<(), Failure> {
        self.show(steps::BEGIN)?;
        self.show_each(args.agents, steps::AGENT, "agent-pids", "{agent-{n}-pid}")?;
        self.show(steps::CLUSTER)?;
        // A trial has set this value if the host has all that networks of tenants need.
        if self.values.contains_key("{ping}") {
            self.show(steps::NETWORKS)?;
        } else {
            self.say(steps::NO_NETWORKS)?;
        }
        let mut limit = args.seconds.map(Duration::from).unwrap_or_default();
        if args.hold {
            self.show(steps::HOLD)?;
            limit = NEVER;
        }
        let left = limit.saturating_sub(elapsed(self.began));
        let check = || self.processes.check().map(|()| None::<()>);
        match self.stop.poll(POLL, left, check) {
            // Every step was seen, so a signal is not a failure. Another signal ends the deletion.
            Err(Failure::Silent(1..)) => self.stop = Rc::new(Stop::install_patiently()?),
            lingered => drop(lingered?),
        }
        self.show(steps::END)
    }

    /// Shows this number of schedulers, and the loss of the one that leads.
    fn show_several(&mut self, schedulers: u16, agents: u16) -> Result<(), Failure> {
        // The port stays that of this demo as long as the socket is open: it is bound, and does not listen. The etcd can
        // listen there, because it sets `SO_REUSEADDR`, too.
        let (family, kind) = (AddressFamily::INET, SocketType::STREAM);
        let socket = socket_with(family, kind, SocketFlags::CLOEXEC, None)?;
        sockopt::set_socket_reuseaddr(&socket, true)?;
        bind(&socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0))?;
        self.set("etcd", SocketAddrV4::try_from(getsockname(&socket)?)?);
        self.show(steps::ETCD)
            .map_err(|e| e.with_advice("several schedulers share an etcd, which must be on the PATH"))?;
        self.show_each(schedulers, steps::SCHEDULER, "scheduler", "{scheduler-{n}-line}")?;
        self.show_each(agents, steps::AGENT, "agent-pids", "{agent-{n}-pid}")?;
        self.show(steps::SEVERAL)
    }

    /// Shows the steps once for each number. The value `all` is then what `text` was each time.
    fn show_each(&mut self, count: u16, steps: &[Step], all: &str, text: &str) -> Result<(), Failure> {
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
        self.set(all, texts.join(","));
        Ok(())
    }

    /// Shows each step of a table.
    fn show(&mut self, steps: &[Step]) -> Result<(), Failure> {
        for (text, line, act, seen) in steps {
            let mut output = match act {
                Act::Ends(code) => {
                    let ended = self.run(line, *code)?;
                    ended.ok_or_else(|| self.failed(line))?
                }
                Act::Repeated => self.until(line, |demo| demo.run(line, 0))?,
                Act::Tried => match self.run(line, 0)? {
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
                let look = if command.is_empty() { line } else { command };
                let last = self.until(text, |demo| Ok(demo.run(look, 0)?.filter(is_right)))?;
                output = if command.is_empty() { last } else { output };
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
        let twice = self.values.iter().chain(&self.values);
        twice.fold(text.to_owned(), |text, (name, value)| text.replace(name, value))
    }

    /// Starts a program, whose output has this name. `ssntp` is this program.
    fn spawn(&self, name: &str, line: &str) -> Result<Child, Failure> {
        let program = |word: &str| if word == "ssntp" { "{program}" } else { word }.to_owned();
        let words = line.split(' ').map(|word| self.filled(&program(word)));
        self.processes.spawn(name, words.collect())
    }

    /// Starts a process, and waits for the awaited text in its output or its log. If it ends before, as a
    /// scheduler does if a busy etcd does not answer in time, it is started again a few times.
    fn start(&mut self, name: &str, awaited: &str, line: &str) -> Result<String, Failure> {
        let (name, mut attempts) = (self.filled(name), 1..3);
        let printed = loop {
            let process = self.spawn(&name, line)?;
            self.set(&format!("{name}-pid"), process.id());
            self.processes.add(&name, process);
            match self.until(&name, |demo| Ok(demo.processes.line_with(&name, awaited))) {
                Err(Failure::Failed(_)) if attempts.next().is_some() => {
                    self.processes.end_one(&name, Signal::KILL);
                }
                found => break found?,
            }
        };
        // The link of a controller has a token, which its address has not.
        let address = printed.split("/login#").next().unwrap_or_default().to_owned();
        self.values.entry(format!("{{{name}}}")).or_insert(address);
        self.set(&format!("{name}-line"), printed);
        Ok(String::new())
    }

    /// Runs a command. Returns its output, or its errors for the exit code 1; `None` if it ends with another exit code,
    /// for example because the leader has just changed.
    fn run(&mut self, line: &str, code: i32) -> Result<Option<String>, Failure> {
        let mut command = self.spawn("command", line)?;
        let ended = self.until("the command ends", |_| Ok(command.try_wait()?))?;
        let output = if code == 1 { "command.log" } else { "command.out" };
        Ok((ended.code() == Some(code)).then(|| self.processes.read(output)))
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
        let what = format!("not seen in {} s: {what}; the last error", LIMIT.as_secs());
        seen.ok_or_else(|| self.failed(&what))
    }

    /// The failure of the last command.
    fn failed(&self, what: &str) -> Failure {
        Failure::new(format!("{what}: {}", self.processes.read("command.log")))
    }
}
