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
use serde_json::Value;
use ssntp::payload::timestamp;
use uuid::Uuid;

use self::processes::Processes;
use self::steps::{Act, Step};
use crate::cmd::ctl::tables::short;
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
    let stop = Rc::new(Stop::install_patiently()?);
    let mut demo = Demo::new(stop)?;
    let shown = match args.servers {
        Some(servers) => demo.show_several(servers, args.agents),
        None => demo.show_cluster(args),
    };
    shown.map_err(|failure| match failure {
        Failure::Silent(0) => Failure::new("the standard output was closed before every step was seen"),
        Failure::Silent(code) => {
            note("ssntp: interrupted before every step was seen");
            Failure::Silent(code)
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
    /// The texts that stand for names in braces, such as `{tenant}`. Of each process, `{NAME}` is the address in
    /// its first lines, and `{NAME-pid}` its PID.
    values: BTreeMap<String, String>,
    /// The error output of the last command that failed.
    last_error: String,
}

impl Demo {
    fn new(stop: Rc<Stop>) -> Result<Self, Failure> {
        let mut this = Self {
            stop,
            began: now(),
            processes: Processes::new()?,
            values: BTreeMap::new(),
            last_error: String::new(),
        };
        this.set("{program}", std::env::current_exe()?.display());
        let directory = this.processes.directory().display().to_string();
        this.set("{directory}", directory);
        steps::SCRIPTS.iter().for_each(|(name, is)| this.set(name, is));
        steps::UUIDS
            .iter()
            .for_each(|name| this.set(name, Uuid::new_v4()));
        fs::write(this.processes.path("configuration.yaml"), steps::CONFIGURATION)?;
        Ok(this)
    }

    fn set(&mut self, name: &str, value: impl ToString) {
        self.values.insert(name.to_owned(), value.to_string());
    }

    fn show_cluster(&mut self, args: &Args) -> Result<(), Failure> {
        self.show(steps::BEGIN)?;
        self.show_agents(args.agents, steps::NETWORK_AGENT)?;
        self.show(steps::CLUSTER)?;
        self.show_trace()?;
        self.show_networks()?;
        self.linger(args)?;
        self.delete_everything()
    }

    /// Shows each step of a table.
    fn show(&mut self, steps: &[Step]) -> Result<(), Failure> {
        for (text, line, act, seen) in steps {
            let mut output = match act {
                Act::Ends(code) => self.run(line, *code)?,
                Act::Repeated => self.until(line, |demo| demo.attempt(line))?,
                Act::Starts(name, awaited) => self.start(name, awaited, line)?,
            };
            if let Some((command, shown, count)) = seen {
                let (shown, count) = (self.filled(shown), self.filled(count));
                let is_right = |output: &String| output.matches(&shown).count().to_string() == count;
                let last = self.until(text, |demo| Ok(demo.attempt(command)?.filter(is_right)))?;
                if command == line {
                    output = last;
                }
            }
            // The first workload is web, on whose node later steps work.
            if let Some((_, node)) = output.trim_end().split_once("runs on node ") {
                self.values.entry("{node}".into()).or_insert_with(|| short(node));
            }
            // Later lines call the instance by its name.
            if let Some((_, name)) = line.split_once("--name ")
                && let Some(uuid) = output
                    .split(' ')
                    .nth(1)
                    .filter(|uuid| Uuid::try_parse(uuid).is_ok())
            {
                let name = name.split(' ').next().unwrap_or_default();
                self.set(&format!("{{{name}}}"), uuid);
            }
            // It is for the node that joins next.
            if let Some((_, token)) = output.split_once("--join '") {
                self.set("{token}", token.split('\'').next().unwrap_or_default());
            }
            if !text.is_empty() {
                self.say(&format!("{text}\n{output}"))?;
            }
        }
        Ok(())
    }

    /// Starts this number of agents, and then shows further steps.
    fn show_agents(&mut self, agents: u16, further: &[Step]) -> Result<(), Failure> {
        let mut pids = Vec::new();
        for at in 1..=agents {
            // Of several schedulers, each agent tries another one first.
            let mut schedulers: Vec<_> = self.values["{scheduler}"].split(',').collect();
            schedulers.rotate_left(1);
            let schedulers = schedulers.join(",");
            self.set("{scheduler}", schedulers);
            self.set("{n}", at);
            self.show(steps::AGENT)?;
            pids.push(self.filled("{agent-{n}-pid}"));
        }
        self.set("{agents}", agents);
        self.set("{nodes}", agents + 1);
        self.set("{agent-pids}", pids.join(", "));
        self.show(further)
    }

    /// Shows this number of schedulers, and the loss of the one that leads.
    fn show_several(&mut self, schedulers: u16, agents: u16) -> Result<(), Failure> {
        // The port is held until the end.
        let (etcd, _held) = free_address()?;
        self.set("{etcd}", etcd);
        self.show(steps::ETCD)
            .map_err(|e| e.with_advice("several schedulers share an etcd, which must be on the PATH"))?;
        for at in 1..=schedulers {
            self.set("{n}", at);
            self.show(steps::SCHEDULER)?;
        }
        let names: Vec<_> = (1..=schedulers).map(|at| format!("{{scheduler-{at}}}")).collect();
        self.set("{scheduler}", names.join(","));
        self.show_agents(agents, steps::SEVERAL)?;
        let leader = self.leader("")?;
        self.show(steps::LEADER)?;
        let killed = now();
        self.processes.end_one(&leader, Signal::KILL);
        self.say("{leader} was killed with SIGKILL")?;
        self.show(steps::NEXT_START)?;
        self.set("{took}", format_args!("{:.1}", elapsed(killed).as_secs_f64()));
        // The server that is asked may not know of the change yet.
        self.leader(&leader)?;
        self.say("{took} s after that the next START was done: {leader} leads")?;
        self.show(steps::AFTER)
    }

    /// The name of the scheduler that leads and is not `former`.
    fn leader(&mut self, former: &str) -> Result<String, Failure> {
        let leader = self.until("a scheduler leads", |demo| {
            let listed = demo.attempt("ssntp ctl --json --timeout 5 servers")?;
            let listed: Value = serde_json::from_str(&listed.unwrap_or_default()).unwrap_or_default();
            let mut servers = listed["servers"].as_array().into_iter().flatten();
            let leader = servers.find(|one| one["leads"] == true);
            let address = leader.and_then(|one| one["address"].as_str());
            let mut values = demo.values.iter();
            let named = values.find(|(name, is)| name.starts_with("{scheduler-") && address == Some(*is));
            let named = named.map(|(name, _)| name.trim_matches(['{', '}']));
            Ok(named.filter(|name| *name != former).map(str::to_owned))
        })?;
        self.set("{leader}", &leader);
        Ok(leader)
    }

    /// Shows the way of the first START, hop by hop: from ctl over the scheduler to the agent of the node.
    fn show_trace(&mut self) -> Result<(), Failure> {
        let trace = self.until("the trace of a START is reported", |demo| {
            let events = demo.processes.read("events.out");
            let mut events = events
                .lines()
                .filter_map(|line| serde_json::from_str::<Value>(line).ok());
            Ok(events.find(|event| event["operand"] == "START" && event["nodes"][2].is_object()))
        })?;
        let stamp = |node: &Value, name: &str| timestamp::parse(node[name].as_str()?);
        let origin = stamp(&trace["nodes"][0], "sent_at").unwrap_or_default();
        let mut text = format!("the way of a frame, {}:", trace["label"]);
        for node in trace["nodes"].as_array().into_iter().flatten() {
            text += &format!("\n{:<16}", node["role"].as_str().unwrap_or_default());
            for (name, what) in [("received_at", "received"), ("sent_at", "sent")] {
                let at = stamp(node, name).and_then(|at| at.checked_sub(origin));
                text += &at.map_or(String::new(), |at| format!("  {what} at {} µs", at / 1000));
            }
        }
        self.say(&text)
    }

    /// Shows networks of tenants, on a node in another network namespace, so that the networks of this host
    /// do not change; or prints why they are not shown. The namespace ends with the node's processes.
    fn show_networks(&mut self) -> Result<(), Failure> {
        let tried = self.attempt("sh -c {trial}")?;
        // Instances find programs in the PATH of their agent, and a concentrator needs this program.
        let Some(ping) = tried.filter(|_| self.values["{program}"].ends_with("/ssntp")) else {
            let needs = "root, ip, nft, nsenter and ping, and a kernel with VXLAN";
            return self.say(&format!("networks of tenants are not shown: they need {needs}"));
        };
        self.set("{ping}", ping.trim());
        self.show(steps::NETWORKS)
    }

    /// Leaves the cluster running for some time, or with `--hold` until a signal.
    fn linger(&mut self, args: &Args) -> Result<(), Failure> {
        let mut limit = args.seconds.map(Duration::from).unwrap_or_default();
        if args.hold {
            let token = self.run(steps::TOKEN, 0)?;
            fs::write(self.processes.path("token"), token)?;
            self.say(steps::TO_TRY)?;
            limit = FOREVER;
        }
        let left = limit.saturating_sub(elapsed(self.began));
        match self
            .stop
            .poll(POLL, left, || self.processes.check().map(|()| None::<()>))
        {
            // Every step was seen, so a signal is not a failure. Another signal ends the deletion.
            Err(Failure::Silent(1..)) => self.stop = Rc::new(Stop::install_patiently()?),
            lingered => drop(lingered?),
        }
        Ok(())
    }

    /// Deletes every instance, including those that a user has started meanwhile.
    fn delete_everything(&mut self) -> Result<(), Failure> {
        // The controller daemon would start the workloads of a user again.
        self.processes.end_one("controller", Signal::TERM);
        // A user may have released it already.
        if self.attempt(steps::RELEASE)?.is_some() {
            self.say("198.51.100.20 was released")?;
        }
        // A concentrator is not among all instances that are deleted.
        self.attempt("ssntp ctl delete CNCI")?;
        let listed = self.run("ssntp ctl --json instances", 0)?;
        self.set("{count}", listed.matches("\"uuid\"").count());
        self.show(steps::END)
    }

    /// Prints a step that has been seen, with the values of its names. Lines after the first are its details.
    fn say(&self, text: &str) -> Result<(), Failure> {
        let time = elapsed(self.began).as_secs_f64();
        let has_uuid = |(_, value): &(&String, &String)| Uuid::try_parse(value).is_ok();
        let text = self
            .values
            .iter()
            .filter(has_uuid)
            .fold(self.filled(text), |text, (name, value)| {
                text.replace(value, name.trim_matches(['{', '}']))
            });
        let lines: Vec<_> = text.lines().map(printable).collect();
        print_line(format_args!("{time:5.1} s  {}", lines.join("\n         ")))
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
        let line = line.replace("ssntp ctl ", "ssntp ctl --connect {scheduler} --cert ctl.pem ");
        let line = line.replace(
            "ssntp token ",
            "ssntp token --connect {scheduler} --cert ctl.pem ",
        );
        let line = line.replace(" agent --", &format!(" agent {} --", steps::NODE));
        let line = line.replace("--cert ", "--ca ca.pem --cert ");
        let line = match line.strip_prefix("ssntp ") {
            Some(rest) => format!("{{program}} {rest}"),
            None => line,
        };
        line.split(' ').map(|word| self.filled(word)).collect()
    }

    /// Starts a process, and waits for the awaited text in its output or its log. If it ends before, as a
    /// scheduler does if a busy etcd does not answer in time, it is started again a few times.
    fn start(&mut self, name: &str, awaited: &str, line: &str) -> Result<String, Failure> {
        let name = self.filled(name);
        for is_last in [false, false, true] {
            let pid = self.processes.start(&name, &self.words(line))?;
            self.set(&format!("{{{name}-pid}}"), pid);
            let found = self.until(&format!("the first lines of the {name}"), |demo| {
                Ok(demo.processes.line_with(&name, awaited))
            });
            match found {
                Err(Failure::Failed(_)) if !is_last => self.processes.end_one(&name, Signal::KILL),
                found => {
                    let mut address = found?;
                    // The link of a controller has a token, which its address has not.
                    if let Some((page, _)) = address.split_once("/login#") {
                        let page = page.to_owned();
                        self.set("{link}", std::mem::replace(&mut address, page));
                    }
                    self.values.entry(format!("{{{name}}}")).or_insert(address);
                    break;
                }
            }
        }
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
        let not_seen = || {
            format!(
                "not seen in {} s: {what}; the last error: {}",
                LIMIT.as_secs(),
                self.last_error
            )
        };
        seen.ok_or_else(|| Failure::new(not_seen()))
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
