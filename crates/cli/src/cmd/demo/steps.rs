//! The steps of the demo, and the state that each of them must reach.

use std::path::Path;
use std::time::{Duration, Instant};

use crossbeam_channel::Receiver;
use ssntp::client::ClientConfig;
use ssntp::payload::{FrameTrace, NodeTrace, timestamp};
use ssntp::pki::{Authority, AuthorityRequest, CertificateRequest};
use ssntp::proto::TraceParent;
use ssntp::{Role, transport::Address};
use ssntp_controller::http::{Right, Tokens};
use ssntp_payload::{InstanceState, NodeStatus};
use ssntp_view::{Change, Controller, ControllerConfig, Instance, View};
use uuid::Uuid;

use super::processes::{Ctl, Processes, program};
use super::screen::Screen;
use crate::clock::now;
use crate::cmd::ctl::tables::short;
use crate::failure::Failure;
use crate::signals::Stop;

/// A step: a run of `ssntp ctl`, and its expected results.
pub(super) struct Step {
    /// The sentence that is printed once all results are seen. The output of ctl follows it.
    text: &'static str,
    /// The words of ctl. A name in braces is replaced by a value that is [known](Demo::words) only
    /// when the step runs.
    words: &'static [&'static str],
    /// The required exit code of ctl.
    code: i32,
    /// The condition that the demo's own controller must see after ctl has ended.
    expects: fn(&View) -> bool,
}

const fn step(text: &'static str, words: &'static [&'static str]) -> Step {
    Step {
        text,
        words,
        code: 0,
        expects: |_| true,
    }
}

/// Writes a line to the log, and then works a little at intervals until it is stopped.
const WORK: &str =
    "echo hello from process $$; while sleep 0.2; do i=0; while [ $i -lt 2000 ]; do i=$((i+1)); done; done";
const FAILS_ONCE: &str = "test -e ran && exec sleep 1000; touch ran; exit 3";
/// Runs a program with flags in a directory. The names may have any characters.
const RUN_IN: &str = r#"cd "$0" && exec "$1" $2"#;
const CNCI: &str = "cnci --connect {address} --ca ca.pem --cert cnci.pem --uuid {cnci} --tenant {tenant} \
                    --ip 10.0.0.33 --state cnci";
// RFC 5737 reserves this address for documentation.
const PUBLIC_IP: &str = "198.51.100.20";

/// All steps except the trace of a START and the deletion at the end.
#[rustfmt::skip] // A table: the text, the words of ctl, the expected results.
pub(super) const STEPS: &[Step] = &[
    step("the cluster has a configuration", &["configure", "configuration.yaml"]),
    step("workload web runs", &["start", "--name", "web", "--persistent", "--", "sh", "-c", WORK]),
    step("workload database runs", &["start", "--name", "database", "--persistent", "--", "sh", "-c", WORK]),
    step("workload batch runs", &["start", "--name", "batch", "--persistent", "--", "sh", "-c", WORK]),
    Step {
        expects: |view| view.cncis().any(|cnci| cnci.since.is_some()),
        ..step("a concentrator runs on the network node and has connected", &[
            "start", "--name", "CNCI", "--network-node", "--tenant", "{tenant}", "--uuid", "{cnci}", "--",
            "sh", "-c", RUN_IN, "{directory}", "{program}", CNCI,
        ])
    },
    step("the concentrator has assigned 198.51.100.20 to web", &[
        "assign-ip", "web", PUBLIC_IP, "--cnci", "{cnci}", "--tenant", "{tenant}",
        "--private-ip", "172.16.0.5", "--mac", "02:00:00:00:00:05",
    ]),
    Step {
        expects: |view| named(view, "web").is_some_and(is_exited),
        ..step("web was stopped, and its node keeps it", &["stop", "web"])
    },
    Step { expects: |view| named(view, "web").is_some_and(runs), ..step("web was restarted", &["restart", "web"]) },
    step("the last line of web's log, from its node:", &["logs", "web", "--output", "stdout", "--tail", "1"]),
    Step {
        expects: |view| on_node_of_web(view).all(is_exited),
        ..step("web's node was evacuated, and is in maintenance; its instances stopped", &["evacuate", "{node}"])
    },
    step("web's node was restored", &["restore", "{node}"]),
    Step {
        expects: |view| on_node_of_web(view).all(runs),
        ..step("its instances were restarted", &["restart", "{on-node}"])
    },
    Step {
        // Its node restarts it without a command.
        expects: |view| named(view, "fragile").is_some_and(|it| runs(it) && it.stats.restarts == 1),
        ..step("a process, fragile, failed, and its node has started it again",
            &["start", "--name", "fragile", "--restart", "on-failure", "--", "sh", "-c", FAILS_ONCE])
    },
    step("fragile was deleted", &["delete", "fragile"]),
    step("a job was started", &["start", "--name", "job", "--", "sh", "-c", "sleep 0.3; exit 3"]),
    Step { code: 3, ..step("the job has ended by itself", &["wait", "job"]) },
    Step {
        code: 1,
        // web, database, batch, the concentrator and the job. The node's next STATS may still list the
        // failed instance, and later steps count the listed instances.
        expects: |view| view.instances().count() == 5,
        ..step("a program that is not there does not start:", &["start", "--", "/no/such/program"])
    },
    Step {
        code: 1,
        ..step("a START that needs 1000000 MB fails, as it should:", &["start", "--mem", "1000000", "--", "sleep", "1"])
    },
];

fn named<'a>(view: &'a View, name: &str) -> Option<&'a Instance> {
    view.instances().find(|instance| instance.stats.name == name)
}

fn on_node_of_web(view: &View) -> impl Iterator<Item = &Instance> {
    let web = named(view, "web").into_iter();
    web.flat_map(|web| view.instances_of(web.node))
}

fn runs(instance: &Instance) -> bool {
    instance.state == InstanceState::Active
}

fn is_exited(instance: &Instance) -> bool {
    instance.state == InstanceState::Exited
}

// The flags of the scheduler, of all agents, and of the controller daemon. The files are in the
// demo's directory. Other users may have no access to it, so instances run as the agent's user.
const SCHEDULER: &str = "scheduler --listen 127.0.0.1:0 unix:scheduler.sock --ca ca.pem --cert scheduler.pem --config cluster.yaml";
pub(super) const NODE: &str =
    "--ca ca.pem --mem 4096 --interval 1 --grace 2 --confinement rlimits --users agent";
const DAEMON: &str = "--ca ca.pem --cert daemon.pem --store controller --http 127.0.0.1:0";
/// The beginning of the controller daemon's line with the address of its first page.
const PAGE: &str = "page at ";
const CONFIGURATION: &str = "\
configure:
  launcher:
    compute_net: [127.0.0.0/8]
    mgmt_net: [127.0.0.0/8]
";
/// The trace of which all commands of the demo are a part.
const TRACEPARENT: &str = "00-0123456789abcdef0123456789abcdef-0123456789abcdef-01";
/// The time limit for deleting the instances after a failure.
const CLEAN_UP: Duration = Duration::from_secs(3);
/// The certificate of the demo's own ctl.
const CTL_CERT: &str = "ctl.pem";

/// A running cluster.
pub(super) struct Demo<'a> {
    pub(super) processes: &'a mut Processes,
    pub(super) screen: &'a mut Screen,
    pub(super) stop: &'a Stop,
    /// True while all instances are being deleted: a signal does not end a wait then.
    pub(super) is_ending: bool,
    /// This controller sends no commands. It sees the results of the commands of ctl.
    pub(super) controller: Controller,
    pub(super) changes: Receiver<Change>,
    address: String,
    /// The address of the first page of the controller daemon.
    page: String,
    tenant: Uuid,
    cnci: Uuid,
    /// The time for which the table shows the result of a step.
    pace: Duration,
}

impl<'a> Demo<'a> {
    /// Starts the processes and the controller, and blocks until all nodes are READY.
    pub(super) fn bring_up(
        processes: &'a mut Processes,
        screen: &'a mut Screen,
        stop: &'a Stop,
        agents: u16,
        pace: Duration,
    ) -> Result<Self, Failure> {
        let authority = Authority::new(&AuthorityRequest::default())?;
        let directory = processes.directory().to_owned();
        authority.save(&directory, false)?;
        let configuration = directory.join("configuration.yaml");
        std::fs::write(&configuration, CONFIGURATION).map_err(|e| Failure::at(&configuration, e))?;
        let cnci = Uuid::new_v4();
        // Each certificate is bound to a UUID. A new session ends an older session with its UUID, so the
        // demo's ctl and the user's ctl have different certificates.
        for (role, uuid, name) in [
            (Role::SCHEDULER, Uuid::new_v4(), "scheduler.pem"),
            (Role::CONTROLLER, Uuid::new_v4(), "controller.pem"),
            (Role::CONTROLLER, Uuid::new_v4(), CTL_CERT),
            (Role::CONTROLLER, Uuid::new_v4(), "daemon.pem"),
            (Role::CNCIAGENT, cnci, "cnci.pem"),
        ] {
            issue(&authority, role, uuid, &directory.join(name))?;
        }
        let (line, pid) = processes.start("scheduler", SCHEDULER, stop)?;
        let address = line.strip_prefix("listening at ").unwrap_or(&line);
        // The Unix socket is for nodes in another network namespace.
        let address = address.split(", ").next().unwrap_or_default().to_owned();
        screen.step(&format!("a scheduler listens at {address} (process {pid})"))?;

        let words = format!("controller --connect {address} {DAEMON}");
        let (_, pid) = processes.start("controller", &words, stop)?;
        let page = processes.line("controller", PAGE, stop)?;
        let page = page.strip_prefix(PAGE).unwrap_or_default().to_owned();
        screen.step(&format!(
            "a controller shows the cluster at {page} (process {pid})"
        ))?;

        let parsed: Address = address.parse()?;
        let own = CertificateRequest::new(Role::CONTROLLER).uuid(Uuid::new_v4());
        let identity = authority.issue(&own)?.identity();
        let client = ClientConfig::new(identity, authority.trust()).address(parsed);
        let (controller, changes) = Controller::start_subscribed(ControllerConfig::new(client))?;
        let mut demo = Self {
            changes,
            processes,
            screen,
            stop,
            is_ending: false,
            controller,
            address,
            page,
            tenant: Uuid::new_v4(),
            cnci,
            pace,
        };
        demo.start_nodes(&authority, agents)?;
        Ok(demo)
    }

    fn start_nodes(&mut self, authority: &Authority, agents: u16) -> Result<(), Failure> {
        let mut pids = Vec::new();
        let names = (1..=agents).map(|number| (Role::AGENT, format!("agent-{number}")));
        for (role, name) in names.chain([(Role::NETAGENT, "network-agent".into())]) {
            let cert = self.processes.directory().join(format!("{name}.pem"));
            issue(authority, role, Uuid::new_v4(), &cert)?;
            let address = &self.address;
            let words = format!("{role} --connect {address} --cert {name}.pem --state {name} {NODE}");
            pids.push(self.processes.start(&name, &words, self.stop)?.1.to_string());
        }
        self.see("all nodes are READY", |view| {
            let ready = view
                .nodes()
                .filter(|node| node.connected && node.status == NodeStatus::Ready);
            (ready.count() == pids.len()).then_some(())
        })?;
        let pids = pids.join(", ");
        self.screen.step(&format!(
            "{agents} agents and a network agent are READY (processes {pids})"
        ))
    }

    /// Runs one step after the other, and prints it.
    pub(super) fn show_steps(&mut self) -> Result<(), Failure> {
        for step in STEPS {
            let output = self.ctl(step.words, step.code)?;
            self.see(step.text, |view| (step.expects)(view).then_some(()))?;
            self.show(&format!("{}\n{output}", step.text))?;
        }
        self.show_trace()
    }

    pub(super) fn show(&mut self, text: &str) -> Result<(), Failure> {
        self.screen.step(text)?;
        self.draw()?;
        if !self.pace.is_zero() {
            self.wait(Some(now() + self.pace), |_| None::<()>)?;
        }
        Ok(())
    }

    /// Runs `ssntp ctl`, which must end with this exit code. Returns its standard output, or its error
    /// output if the exit code is 1.
    pub(super) fn ctl(&mut self, words: &[&str], code: i32) -> Result<String, Failure> {
        let mut ctl = self.start_ctl(words)?;
        let ended = self.wait(None, |_| ctl.ended())?;
        match ended {
            Some((is, _, stderr)) if is == Some(code) && code == 1 => Ok(stderr),
            Some((is, stdout, _)) if is == Some(code) => Ok(stdout),
            Some((_, _, stderr)) => Err(Failure::new(format!("ctl {}: {stderr}", words.join(" ")))),
            None => Err(Failure::new("ctl does not end")),
        }
    }

    /// As [`ctl`](Self::ctl), for words without blanks and the exit code 0.
    pub(super) fn ctl_line(&mut self, line: &str) -> Result<String, Failure> {
        self.ctl(&line.split(' ').collect::<Vec<_>>(), 0)
    }

    fn start_ctl(&self, words: &[&str]) -> Result<Ctl, Failure> {
        let flags = format!("ctl --connect {} --ca ca.pem --cert {CTL_CERT}", self.address);
        let flags = flags.split(' ').map(String::from);
        self.processes
            .ctl(flags.chain(self.words(words)), Some(TRACEPARENT))
    }

    /// The words, with the names in braces replaced by the present values.
    fn words(&self, words: &[&str]) -> Vec<String> {
        let on_node = |view: &View| on_node_of_web(view).map(|i| (i.node, i.uuid)).collect::<Vec<_>>();
        let on_node = self.controller.look(on_node);
        let node = on_node
            .first()
            .map(|(node, _)| node.to_string())
            .unwrap_or_default();
        let program = program().unwrap_or_default();
        let known = [
            ("{node}", node),
            ("{address}", self.address.clone()),
            ("{tenant}", self.tenant.to_string()),
            ("{cnci}", self.cnci.to_string()),
            ("{directory}", self.processes.directory().display().to_string()),
            ("{program}", program.display().to_string()),
        ];
        let filled = words.iter().flat_map(|word| match *word {
            "{on-node}" => on_node.iter().map(|(_, uuid)| uuid.to_string()).collect(),
            word => vec![
                known
                    .iter()
                    .fold(word.to_owned(), |word, (name, is)| word.replace(name, is)),
            ],
        });
        filled.collect()
    }

    /// The trace of the first START, hop by hop.
    fn show_trace(&mut self) -> Result<(), Failure> {
        let parent: Option<TraceParent> = TRACEPARENT.parse().ok();
        let of_start =
            |trace: &&FrameTrace| trace.label.starts_with("START ") && trace.traceparent() == parent;
        let reported = |view: &View| view.traces().find(of_start).cloned();
        let trace = self.see("the trace of a START is reported", reported)?;
        match trace.nodes.len() {
            // The three hops are ctl, the scheduler and the agent of the node.
            3.. => self.show(&format!(
                "the way of a frame, {:?}:\n{}",
                trace.label,
                hops(&trace)
            )),
            few => Err(Failure::new(format!("the trace of a START has only {few} hops"))),
        }
    }

    /// Continues to show the table until a time, or with `hold` until a signal.
    pub(super) fn linger(&mut self, until: Option<Instant>, hold: bool) -> Result<(), Failure> {
        if hold {
            let text = self.what_to_try()?;
            self.screen.step(&text)?;
        } else if until.is_none_or(|until| until <= now()) {
            return Ok(());
        } else {
            self.screen
                .step("all steps were seen; the table is shown for the rest of the time")?;
        }
        match self.wait(until, |_| None::<()>) {
            // Every step was seen, so a signal is not a failure.
            Ok(_) | Err(Failure::Silent(1..)) => Ok(()),
            Err(failure) => Err(failure),
        }
    }

    fn what_to_try(&self) -> Result<String, Failure> {
        let directory = self.processes.directory().display();
        let (address, ssntp) = (&self.address, program()?);
        let ssntp = ssntp.display();
        let web = self
            .controller
            .look(|view| named(view, "web").map(|web| (web.uuid, web.node)));
        let (instance, node) = web.ok_or_else(|| Failure::new("the instance web is gone"))?;
        let (instance, node) = (short(&instance.to_string()), short(&node.to_string()));
        let (page, store) = (&self.page, self.processes.directory().join("controller"));
        let token = Tokens::new(&store).add("demo", Right::Write, None);
        let file = store.with_file_name("token");
        std::fs::write(&file, token.map_err(Failure::new)?).map_err(|e| Failure::at(&file, e))?;
        Ok(format!(
            "the cluster runs until Ctrl-C; in another terminal, try:
export SSNTP_CONNECT={address}
export SSNTP_CA='{directory}/ca.pem' SSNTP_CERT='{directory}/controller.pem'
export SSNTP_HTTP={page} SSNTP_TOKEN_FILE='{directory}/token'
{ssntp} ctl nodes
{ssntp} ctl instances --watch
{ssntp} ctl describe job
{ssntp} ctl start --count 3 --persistent -- sleep 1000
{ssntp} ctl logs -f {instance}
{ssntp} ctl stop {instance}
{ssntp} ctl restart {instance}
{ssntp} ctl evacuate {node}
{ssntp} ctl restore {node}
{ssntp} ctl cncis
{ssntp} ctl get
{ssntp} ctl events --json"
        ))
    }

    /// Deletes every instance, including those that a user has started meanwhile.
    pub(super) fn delete_everything(&mut self) -> Result<(), Failure> {
        self.is_ending = true;
        // The controller daemon would start the workloads of a user again.
        self.processes.end_one("controller")?;
        let is_assigned = |view: &View| {
            let mut cncis = view.cncis();
            cncis.any(|cnci| cnci.public_ips.contains_key(PUBLIC_IP)) && named(view, "web").is_some()
        };
        // A user may have released it already.
        if self.controller.look(is_assigned) {
            let release = format!("release-ip web {PUBLIC_IP} --cnci {{cnci}} --tenant {{tenant}}");
            self.ctl_line(&release)?;
            self.screen.step(&format!("{PUBLIC_IP} was released"))?;
        }
        let count = self.controller.look(|view| view.instances().count());
        self.ctl(&["delete", "--all"], 0)?;
        self.see("every instance is gone", |view| {
            (view.instances().count() == 0).then_some(())
        })?;
        self.draw()?;
        self.screen.step(&format!("all {count} instances were deleted"))
    }

    /// Deletes the instances that can still be deleted, after a failure.
    pub(super) fn clean_up(&mut self) {
        let _ = self.processes.end_one("controller");
        // A signal may be the reason for the failure, so a signal does not end this wait.
        if let Ok(ctl) = self.start_ctl(&["delete", "--all"]) {
            ctl.end(CLEAN_UP);
        }
    }
}

/// Issues a certificate that is bound to a UUID.
pub(super) fn issue(authority: &Authority, role: Role, uuid: Uuid, path: &Path) -> Result<(), Failure> {
    Ok(authority
        .issue(&CertificateRequest::new(role).uuid(uuid))?
        .save(path)?)
}

/// One line for each hop, with the times since the frame left its origin.
fn hops(trace: &FrameTrace) -> String {
    let stamp = |text: &str| timestamp::parse(text).filter(|nanos| *nanos != 0);
    let origin = trace.nodes.first().and_then(|node| stamp(&node.tx_timestamp));
    let since = |text: &str| Some(stamp(text)?.checked_sub(origin?)? / 1000);
    let line = |node: &NodeTrace| {
        let times = match (since(&node.rx_timestamp), since(&node.tx_timestamp)) {
            (None, None) => "no times".into(),
            (None, Some(sent)) => format!("sent at {sent} µs"),
            (Some(received), None) => format!("received at {received} µs"),
            (Some(received), Some(sent)) => format!(
                "received at {received} µs, sent on at {sent} µs, {} µs inside",
                sent.saturating_sub(received)
            ),
        };
        let uuid = short(node.ssntp_node_uuid.as_str());
        format!("{:<16} {uuid}  {times}", node.ssntp_role)
    };
    trace.nodes.iter().map(line).collect::<Vec<_>>().join("\n")
}
