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
//! Each step is a command that a user could type. The exit code of the command, and the output of a second
//! one if that is not enough, show that it was done. A step is printed once that is seen; a step that is not
//! seen in time fails the demo. In every case the processes are ended and the directory with all files
//! is removed: by another process if the demo itself is killed.
//!
//! | file | holds |
//! |---|---|
//! | `steps` | the tables of steps: commands, and their expected results |
//! | `processes` | the directory, the child processes, and the process that removes them |
//! | `several` | several schedulers, and the loss of the one that leads |

mod processes;
mod several;
mod steps;

use std::collections::BTreeMap;
use std::fs;
use std::rc::Rc;
use std::time::{Duration, Instant};

use clap::value_parser;
use rustix::process::Signal;
use serde_json::Value;
use ssntp::Role;
use ssntp::payload::timestamp;
use ssntp::pki::{Authority, AuthorityRequest, CertificateRequest};
use uuid::Uuid;

use self::processes::Processes;
use self::steps::{CLUSTER, NETWORKS, NODE, SCRIPTS, Step};
use crate::clock::now;
use crate::cmd::ctl::tables::short;
use crate::failure::Failure;
use crate::output::{note, print_line, printable};
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
    say(demo.began, "no process and no file is left")
}

/// A demo that runs.
struct Demo {
    stop: Rc<Stop>,
    began: Instant,
    processes: Processes,
    authority: Authority,
    /// The path of this program.
    program: String,
    /// The texts that stand for names in braces, such as `{address}`.
    values: BTreeMap<&'static str, String>,
    /// The error output of the last command that failed.
    last_error: String,
}

impl Demo {
    fn new(stop: Rc<Stop>) -> Result<Self, Failure> {
        let began = now();
        let processes = Processes::new()?;
        let authority = Authority::new(&AuthorityRequest::default())?;
        authority.save(processes.directory(), false)?;
        let program = std::env::current_exe()?.display().to_string();
        let mut values: BTreeMap<_, _> = SCRIPTS
            .iter()
            .map(|(name, is)| (*name, (*is).to_owned()))
            .collect();
        values.insert("{program}", program.clone());
        values.insert("{directory}", processes.directory().display().to_string());
        values.insert("{tenant}", Uuid::new_v4().to_string());
        let last_error = String::new();
        Ok(Self {
            stop,
            began,
            processes,
            authority,
            program,
            values,
            last_error,
        })
    }

    fn show_cluster(&mut self, args: &Args) -> Result<(), Failure> {
        fs::write(self.processes.path("configuration.yaml"), steps::CONFIGURATION)?;
        self.issue(Role::SCHEDULER, "scheduler")?;
        // A new session ends an older session with its UUID, so each controller has a certificate of its own.
        for name in ["controller", "ctl", "daemon", "events"] {
            self.issue(Role::CONTROLLER, name)?;
        }
        let cnci = self.issue(Role::CNCIAGENT, "cnci")?;
        self.values.insert("{cnci}", cnci);

        let (line, pid) = self.start("scheduler", steps::SCHEDULER)?;
        let address = line.split([' ', ',']).nth(2).unwrap_or_default().to_owned();
        self.say(&format!("a scheduler listens at {address} (process {pid})"))?;
        self.values.insert("{address}", address);
        let (_, pid) = self.start("controller", steps::CONTROLLER)?;
        let page = self.line("controller", "page at ")?.replace("page at ", "");
        self.say(&format!(
            "a controller shows the cluster at {page} (process {pid})"
        ))?;
        self.values.insert("{page}", page);
        let words = self.fill(steps::EVENTS);
        self.processes.start("events", &self.program, &words)?;

        let agents = (1..=args.agents).map(|at| (Role::AGENT, format!("agent-{at}")));
        let mut pids = Vec::new();
        for (role, name) in agents.chain([(Role::NETAGENT, "network-agent".into())]) {
            self.issue(role, &name)?;
            let line = format!("{role} --connect {{address}} --cert {name}.pem --state {name} {NODE}");
            pids.push(self.start(&name, &line)?.1.to_string());
        }
        self.see_ready_nodes(pids.len())?;
        let (agents, pids) = (args.agents, pids.join(", "));
        self.say(&format!(
            "{agents} agents and a network agent are READY (processes {pids})"
        ))?;
        self.show_steps(CLUSTER)?;
        self.show_trace()?;
        self.show_networks()?;
        self.linger(args)?;
        self.delete_everything()
    }

    fn show_steps(&mut self, steps: &[Step]) -> Result<(), Failure> {
        for (text, line, code, seen) in steps {
            let (stdout, stderr) = self.run(line, *code)?;
            // The first workload is web, on whose node later steps work.
            if let Some((_, node)) = stdout.trim_end().split_once("runs on node ") {
                self.values.entry("{node}").or_insert_with(|| short(node));
            }
            if let Some((line, is_right)) = seen {
                self.until(text, |demo| {
                    Ok(demo.attempt(line)?.filter(|shown| is_right(shown)))
                })?;
            }
            if !text.is_empty() {
                self.say(&format!("{text}\n{}", if *code == 1 { stderr } else { stdout }))?;
            }
        }
        Ok(())
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
        let mut trial = self
            .processes
            .spawn("trial", "sh", &["-c".into(), steps::TRIAL.into()])?;
        let trial = self.until("the networks are tried", |_| Ok(trial.try_wait()?))?;
        // Instances find programs in the PATH of their agent, and a concentrator needs this program.
        if !trial.success() || !self.program.ends_with("/ssntp") {
            let needs = "root, ip, nft, nsenter and ping, and a kernel with VXLAN";
            return self.say(&format!("networks of tenants are not shown: they need {needs}"));
        }
        let ping = self.processes.read("trial.out").trim().to_owned();
        let node = self.issue(Role::AGENT | Role::NETAGENT, "tenants")?;
        let certs = self.processes.path("cncis");
        fs::create_dir(&certs)?;
        for name in ["{blue}", "{red}"] {
            let uuid = self.issue(Role::CNCIAGENT, "concentrator")?;
            fs::rename(
                self.processes.path("concentrator.pem"),
                certs.join(format!("{uuid}.pem")),
            )?;
            self.values.insert(name, uuid);
        }
        self.values
            .extend([("{ping}", ping), ("{tenants}", node.clone())]);
        // Concentrators may be placed on any network node, but the other one has no networks of tenants.
        self.switch_network_agent("OFFLINE")?;
        let script = ["--net", "sh", "-c", steps::UNDERLAY, &self.program].map(str::to_owned);
        let line = format!("{} {NODE}", steps::TENANTS);
        let words: Vec<_> = script.into_iter().chain(self.fill(&line)).collect();
        let pid = self.processes.start("tenants", "unshare", &words)?;
        let is_ready = |one: &Value| one["uuid"] == node && one["status"] == "READY";
        self.see_nodes("the node with networks is READY", |nodes| {
            nodes.iter().any(is_ready)
        })?;
        self.say(&format!(
            "a node with networks of tenants is READY (process {pid})"
        ))?;
        self.show_steps(NETWORKS)?;
        self.switch_network_agent("READY")
    }

    /// Takes the network agent that has no networks of tenants out of service, or puts it back.
    fn switch_network_agent(&mut self, to: &str) -> Result<(), Failure> {
        self.processes.signal("network-agent", Signal::USR1);
        self.see_nodes("the network agent has changed its status", |nodes| {
            let mut nodes = nodes.iter().filter(|one| one["types"][0] == "network_node");
            nodes.all(|one| one["status"] == to)
        })
    }

    /// Leaves the cluster running for some time, or with `--hold` until a signal.
    fn linger(&mut self, args: &Args) -> Result<(), Failure> {
        if args.hold {
            let (token, _) = self.run(steps::TOKEN, 0)?;
            fs::write(self.processes.path("token"), token)?;
            self.say(&self.filled(steps::TO_TRY))?;
        }
        let limit = if args.hold {
            FOREVER
        } else {
            args.seconds.map(Into::into).unwrap_or_default()
        };
        let check = || self.processes.check().map(|()| None::<()>);
        match self
            .stop
            .poll(POLL, limit.saturating_sub(self.began.elapsed()), check)
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
        let count = self.list("ctl --json instances")?.len();
        self.run("ctl delete --all", 0)?;
        self.say(&format!("all {count} instances were deleted"))
    }

    fn say(&self, text: &str) -> Result<(), Failure> {
        say(self.began, text)
    }

    /// Issues a certificate that is bound to a new UUID, and returns the UUID.
    fn issue(&self, role: Role, name: &str) -> Result<String, Failure> {
        let uuid = Uuid::new_v4();
        let issued = self.authority.issue(&CertificateRequest::new(role).uuid(uuid))?;
        issued.save(self.processes.path(&format!("{name}.pem")))?;
        Ok(uuid.to_string())
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
    fn fill(&self, line: &str) -> Vec<String> {
        let is_ctl = usize::from(line.starts_with("ctl ") && !line.contains("--cert "));
        let line = line.replacen("ctl ", "ctl --connect {address} --cert ctl.pem ", is_ctl);
        let line = line.replace("--cert ", "--ca ca.pem --cert ");
        line.split(' ').map(|word| self.filled(word)).collect()
    }

    /// Starts this program as a daemon. Returns its first line and its PID.
    fn start(&mut self, name: &str, line: &str) -> Result<(String, u32), Failure> {
        let words = self.fill(line);
        let pid = self.processes.start(name, &self.program, &words)?;
        Ok((self.line(name, "")?, pid))
    }

    /// The first whole line of a process that begins so, once it is printed.
    fn line(&mut self, name: &str, begin: &str) -> Result<String, Failure> {
        self.until(&format!("the first lines of the {name}"), |demo| {
            let printed = demo.processes.read(&format!("{name}.out"));
            let mut lines = printed
                .split_inclusive('\n')
                .filter_map(|line| line.strip_suffix('\n'));
            Ok(lines.find(|line| line.starts_with(begin)).map(str::to_owned))
        })
    }

    /// Runs a command of this program, which must end with this exit code. Returns its output and its errors.
    fn run(&mut self, line: &str, code: i32) -> Result<(String, String), Failure> {
        let mut command = self.processes.spawn("command", &self.program, &self.fill(line))?;
        let status = self.until("the command ends", |_| Ok(command.try_wait()?))?;
        let (stdout, stderr) = (
            self.processes.read("command.out"),
            self.processes.read("command.log"),
        );
        if status.code() == Some(code) {
            Ok((stdout, stderr))
        } else {
            Err(Failure::new(format!("{line}: {stderr}")))
        }
    }

    /// The output of a command. `None` if it fails, for example because the leader has just changed.
    fn attempt(&mut self, line: &str) -> Result<Option<String>, Failure> {
        let output = self.run(line, 0).map(|(stdout, _)| stdout);
        self.unless_failed(output)
    }

    /// What was returned; `None` if it has failed.
    fn unless_failed<T>(&mut self, result: Result<T, Failure>) -> Result<Option<T>, Failure> {
        if let Err(Failure::Failed(error)) = result {
            self.last_error = error;
            return Ok(None);
        }
        result.map(Some)
    }

    /// The entries of a list; empty while no scheduler answers.
    fn list(&mut self, line: &str) -> Result<Vec<Value>, Failure> {
        let printed = self.attempt(line)?.unwrap_or_default();
        let value: Value = serde_json::from_str(&printed).unwrap_or_default();
        let listed = value.as_array().or_else(|| value["servers"].as_array());
        Ok(listed.cloned().unwrap_or_default())
    }

    fn see_nodes(&mut self, what: &str, is_right: impl Fn(&[Value]) -> bool) -> Result<(), Failure> {
        self.until(what, |demo| {
            Ok(is_right(&demo.list("ctl --json nodes")?).then_some(()))
        })
    }

    /// Waits until this number of nodes is READY.
    fn see_ready_nodes(&mut self, count: usize) -> Result<(), Failure> {
        let is_ready = |one: &&Value| one["status"] == "READY" && one["connected"] == true;
        self.see_nodes("all nodes are READY", |nodes| {
            nodes.iter().filter(is_ready).count() == count
        })
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

/// Prints a step that has been seen. Lines after the first are its details.
fn say(began: Instant, text: &str) -> Result<(), Failure> {
    let time = began.elapsed().as_secs_f64();
    let lines: Vec<_> = text.lines().map(printable).collect();
    print_line(format_args!("{time:5.1} s  {}", lines.join("\n         ")))
}
