//! What the demo does, and what has to be seen of it.

use std::time::{Duration, Instant};

use crossbeam_channel::Receiver;
use ssntp::client::ClientConfig;
use ssntp::payload::{
    AssignPublicIp, FrameTrace, InstanceState, NextState, NodeStatus, NodeTrace, Persistence,
    ReleasePublicIp, Requirements, RestartPolicy, Start, VmType, timestamp,
};
use ssntp::pki::{Authority, AuthorityRequest, CertificateRequest, Issued};
use ssntp::proto::Outputs;
use ssntp::{Role, transport::Address};
use ssntp_cluster::controller::{
    Change, Controller, ControllerConfig, Order, OrderError, Shown, StreamEvent, StreamRequest, View,
};
use uuid::Uuid;

use super::processes::{Processes, program};
use super::screen::Screen;
use crate::clock::now;
use crate::cmd::ctl::tables::short;
use crate::failure::Failure;
use crate::output::printable;
use crate::signals::Stop;

/// A step: it does something, waits until that is seen, and gives the sentence to
/// print. Further lines of the text are details.
type Step = fn(&mut Demo<'_>) -> Result<String, Failure>;

/// All that is to be seen before everything is deleted.
pub(super) const STEPS: [Step; 16] = [
    |demo| demo.configure(),
    |demo| demo.start_workload(0),
    |demo| demo.start_workload(1),
    |demo| demo.start_workload(2),
    |demo| demo.start_cnci(),
    |demo| demo.assign_ip(),
    |demo| demo.stop(),
    |demo| demo.restart(),
    |demo| demo.show_log(),
    |demo| demo.evacuate(),
    |demo| demo.restore(),
    |demo| demo.start_again(),
    |demo| demo.end_by_itself(),
    |demo| demo.start_what_is_missing(),
    |demo| demo.start_what_fits_nowhere(),
    |demo| demo.show_trace(),
];

/// How long the instances may take to be deleted after something went wrong.
const CLEAN_UP: Duration = Duration::from_secs(3);
/// The flags of the scheduler, and those that all agents have. Of the files in the
/// demo's directory; other users may not be able to reach it, so that instances run
/// as the agent's user.
const SCHEDULER: &str =
    "scheduler --listen 127.0.0.1:0 --ca ca.pem --cert scheduler.pem --config cluster.yaml";
const NODE: &str = "--ca ca.pem --mem 4096 --interval 1 --grace 2 --confinement rlimits --users agent";
/// Memory of a workload in MB, and more than any node has.
const WORKLOAD_MEM: i64 = 64;
const TOO_MUCH_MEM: i64 = 1_000_000;

const WORKLOADS: [&str; 3] = ["web", "database", "batch"];
/// A line for the log, and a little work now and then, until it is told to end.
const WORK: &str =
    "echo hello from process $$; while sleep 0.2; do i=0; while [ $i -lt 2000 ]; do i=$((i+1)); done; done";
const FAILS_ONCE: &str = "test -e ran && exec sleep 1000; touch ran; exit 3";
/// Runs a program with some flags in a directory, whatever characters their names have.
const RUN_IN: &str = r#"cd "$0" && exec "$1" $2"#;
const PUBLIC_IP: &str = "198.51.100.20";
const PRIVATE_IP: &str = "172.16.0.5";
const CNCI_IP: &str = "10.0.0.33";
const CONFIGURATION: &str = "\
configure:
  launcher:
    compute_net: [127.0.0.0/8]
    mgmt_net: [127.0.0.0/8]
";

/// A cluster that is up.
pub(super) struct Demo<'a> {
    pub(super) processes: &'a mut Processes,
    pub(super) screen: &'a mut Screen,
    pub(super) stop: &'a Stop,
    /// Everything is being deleted: no signal ends a wait.
    pub(super) is_ending: bool,
    pub(super) controller: Controller,
    pub(super) changes: Receiver<Change>,
    /// Each entity has a certificate that is bound to its UUID.
    authority: Authority,
    address: String,
    workloads: [Uuid; 3],
    tenant: Uuid,
    cnci: Uuid,
    /// The label of the START whose trace is shown.
    traced: String,
    /// How long the table stands still after a step.
    pace: Duration,
}

impl<'a> Demo<'a> {
    /// Starts the processes and the controller, and waits until all nodes are ready.
    pub(super) fn bring_up(
        processes: &'a mut Processes,
        screen: &'a mut Screen,
        stop: &'a Stop,
        agents: u16,
        pace: Duration,
    ) -> Result<Self, Failure> {
        let authority = Authority::new(&AuthorityRequest::default())?;
        let directory = processes.directory();
        authority.save(directory, false)?;
        issue(&authority, Role::SCHEDULER)?.save(directory.join("scheduler.pem"))?;
        // For a user who tries `ssntp ctl` meanwhile.
        issue(&authority, Role::CONTROLLER)?.save(directory.join("controller.pem"))?;
        let (line, pid) = processes.start("scheduler", SCHEDULER, stop)?;
        let address = line.strip_prefix("listening at ").unwrap_or(&line).to_owned();
        screen.step(&format!("a scheduler listens at {address} (process {pid})"))?;

        let parsed: Address = address.parse()?;
        let identity = issue(&authority, Role::CONTROLLER)?.identity();
        let client = ClientConfig::new(identity, authority.trust()).address(parsed);
        let controller = Controller::start(ControllerConfig::new(client).tracing(true))?;
        let mut demo = Self {
            changes: controller.subscribe(),
            processes,
            screen,
            stop,
            is_ending: false,
            controller,
            authority,
            address,
            workloads: WORKLOADS.map(|_| Uuid::new_v4()),
            tenant: Uuid::new_v4(),
            cnci: Uuid::new_v4(),
            traced: String::new(),
            pace,
        };
        demo.start_nodes(agents)?;
        Ok(demo)
    }

    fn start_nodes(&mut self, agents: u16) -> Result<(), Failure> {
        let mut pids = Vec::new();
        let names = (1..=agents).map(|number| (Role::AGENT, format!("agent-{number}")));
        for (role, name) in names.chain([(Role::NETAGENT, "network-agent".into())]) {
            let cert = self.processes.directory().join(format!("{name}.pem"));
            issue(&self.authority, role)?.save(cert)?;
            let address = &self.address;
            let words = format!("{role} --connect {address} --cert {name}.pem --state {name} {NODE}");
            pids.push(self.processes.start(&name, &words, self.stop)?.1.to_string());
        }
        let is_ready =
            |node: &&ssntp_cluster::controller::Node| node.connected && node.status == NodeStatus::Ready;
        self.see("all nodes are READY", |view| {
            (view.nodes().filter(is_ready).count() == pids.len()).then_some(())
        })?;
        let pids = pids.join(", ");
        self.screen.step(&format!(
            "{agents} agents and a network agent are READY (processes {pids})"
        ))
    }

    /// Does one step after the other, and prints it.
    pub(super) fn show_steps(&mut self) -> Result<(), Failure> {
        for step in STEPS {
            let text = step(self)?;
            self.screen.step(&text)?;
            self.draw()?;
            if !self.pace.is_zero() {
                self.wait(Some(now() + self.pace), |_| None::<()>)?;
            }
        }
        Ok(())
    }

    fn configure(&mut self) -> Result<String, Failure> {
        self.done(self.controller.configure(CONFIGURATION))?;
        Ok("the cluster has a configuration".into())
    }

    fn start_workload(&mut self, number: usize) -> Result<String, Failure> {
        let instance = self.workloads[number];
        let start = Start {
            persistence: Persistence::All,
            ..process(instance, WORKLOADS[number], &["sh", "-c", WORK])
        };
        let order = self.controller.start_workload(&start.into())?;
        if number == 0 {
            self.traced = order.label().to_owned();
        }
        let shown = self.settled(&order)??;
        let node = self.called(runs_on(&shown)?);
        Ok(format!("workload {} runs on node {node}", self.called(instance)))
    }

    fn start_cnci(&mut self) -> Result<String, Failure> {
        let directory = self.processes.directory();
        let request = CertificateRequest::new(Role::CNCIAGENT).uuid(self.cnci);
        self.authority.issue(&request)?.save(directory.join("cnci.pem"))?;
        let words = format!(
            "cnci --connect {} --ca ca.pem --cert cnci.pem --uuid {} --tenant {} --ip {CNCI_IP} --state cnci",
            self.address, self.cnci, self.tenant
        );
        let (directory, program) = (directory.display().to_string(), program()?.display().to_string());
        let command = ["sh", "-c", RUN_IN, &directory, &program, &words];
        let mut start = process(self.cnci, "CNCI", &command);
        start.tenant_uuid = self.tenant.into();
        start.requirements.network_node = true;
        let shown = self.done(self.controller.start_workload(&start.into()))?;
        runs_on(&shown)?;
        let cnci = self.cnci;
        self.see("the CNCI announces itself", |view| view.cnci(cnci)?.since)?;
        let called = self.called(cnci);
        Ok(format!(
            "a concentrator, {called}, runs on the network node and has connected"
        ))
    }

    fn assign_ip(&mut self) -> Result<String, Failure> {
        let assign = AssignPublicIp {
            concentrator_uuid: self.cnci.into(),
            tenant_uuid: self.tenant.into(),
            instance_uuid: self.first().into(),
            public_ip: PUBLIC_IP.into(),
            private_ip: PRIVATE_IP.into(),
            vnic_mac: "02:00:00:00:00:05".into(),
        };
        self.done(self.controller.assign_public_ip(&assign))?;
        let called = self.called(self.first());
        Ok(format!("the concentrator has assigned {PUBLIC_IP} to {called}"))
    }

    fn stop(&mut self) -> Result<String, Failure> {
        let instance = self.first();
        self.done(self.controller.stop(instance))?;
        self.see_exited(&[instance])?;
        let called = self.called(instance);
        Ok(format!("{called} was stopped, and its node keeps it"))
    }

    fn restart(&mut self) -> Result<String, Failure> {
        let shown = self.done(self.controller.restart(self.first()))?;
        runs_on(&shown)?;
        Ok(format!("{} was restarted", self.called(self.first())))
    }

    /// The line that `ssntp ctl logs --tail 1` prints.
    fn show_log(&mut self) -> Result<String, Failure> {
        let request = StreamRequest {
            tail: Some(1),
            outputs: Outputs::STDOUT,
            ..StreamRequest::default()
        };
        let stream = self.controller.stream(self.first(), request)?;
        let mut log = Vec::new();
        let ended = |_: &View| loop {
            match stream.events().try_recv().ok()? {
                StreamEvent::Data { bytes, .. } => log.extend(bytes),
                StreamEvent::Ended(how) => return Some(how),
                _ => {}
            }
        };
        self.see("the end of a log", ended)??;
        let line = String::from_utf8_lossy(&log);
        Ok(format!(
            "the last line of {}'s log, from its node: {}",
            self.called(self.first()),
            printable(line.trim_end())
        ))
    }

    fn evacuate(&mut self) -> Result<String, Failure> {
        let (node, instances) = self.first_node()?;
        self.done(self.controller.evacuate(node, NextState::Maintenance))?;
        self.see_exited(&instances)?;
        Ok(format!(
            "node {} was evacuated: it is in maintenance, and {} stopped",
            self.called(node),
            self.list(&instances)
        ))
    }

    fn restore(&mut self) -> Result<String, Failure> {
        let (node, instances) = self.first_node()?;
        self.done(self.controller.restore(node))?;
        for instance in &instances {
            let shown = self.done(self.controller.restart(*instance))?;
            runs_on(&shown)?;
        }
        let (called, list) = (self.called(node), self.list(&instances));
        Ok(format!("node {called} was restored, and {list} restarted"))
    }

    /// A process that fails once, and that its node starts again by itself.
    fn start_again(&mut self) -> Result<String, Failure> {
        let uuid = Uuid::new_v4();
        let start = Start {
            restart_policy: RestartPolicy::OnFailure,
            ..process(uuid, "", &["sh", "-c", FAILS_ONCE])
        };
        self.done(self.controller.start_workload(&start.into()))?;
        self.see("a process that failed is started again", |view| {
            let instance = view.instance(uuid)?;
            (instance.state == InstanceState::Active && instance.stats.restarts == 1).then_some(())
        })?;
        let called = self.called(uuid);
        self.done(self.controller.delete(uuid))?;
        Ok(format!(
            "a process, {called}, failed, and its node has started it again"
        ))
    }

    /// A workload that ends, and what is known of how.
    fn end_by_itself(&mut self) -> Result<String, Failure> {
        let job = Uuid::new_v4();
        let start = process(job, "job", &["sh", "-c", "sleep 0.3; exit 3"]);
        self.done(self.controller.start_workload(&start.into()))?;
        let ending = |view: &View| view.instance(job)?.ending().filter(|ending| ending.is_known());
        let ending = self.see("a job has ended", ending)?;
        Ok(format!("{} has ended by itself: {ending}", self.called(job)))
    }

    fn start_what_is_missing(&mut self) -> Result<String, Failure> {
        let uuid = Uuid::new_v4();
        let why = self.fails(process(uuid, "", &["/no/such/program"]))?;
        // The node's next STATS may still list it, and later steps count what is listed.
        self.see("the instance that was not started is gone", |view| {
            view.instance(uuid).is_none().then_some(())
        })?;
        Ok(format!("a program that is not there does not start:\n{why}"))
    }

    fn start_what_fits_nowhere(&mut self) -> Result<String, Failure> {
        let mut start = process(Uuid::new_v4(), "", &["sleep", "1000"]);
        start.requirements.mem_mb = TOO_MUCH_MEM;
        let why = self.fails(start)?;
        Ok(format!(
            "a START that needs {TOO_MUCH_MEM} MB fails, as it should:\n{why}"
        ))
    }

    /// Why a START fails that has to.
    fn fails(&mut self, start: Start) -> Result<String, Failure> {
        let order = self.controller.start_workload(&start.into())?;
        match self.settled(&order)? {
            Err(OrderError::Failed(failure)) => Ok(failure.to_string()),
            Err(e) => Err(e.into()),
            Ok(shown) => Err(Failure::new(format!(
                "a START that has to fail was carried out: {shown}"
            ))),
        }
    }

    /// The trace of the first START, hop by hop.
    fn show_trace(&mut self) -> Result<String, Failure> {
        let label = self.traced.clone();
        let reported = |view: &View| view.traces().find(|trace| trace.label == label).cloned();
        let trace = self.see("the trace of a START is reported", reported)?;
        match trace.nodes.len() {
            3.. => Ok(format!("the way of a frame, {label:?}:\n{}", hops(&trace))),
            few => Err(Failure::new(format!("the trace of a START has only {few} hops"))),
        }
    }

    /// Goes on showing the table until a time, or until a signal if it is held.
    pub(super) fn linger(&mut self, until: Option<Instant>, hold: bool) -> Result<(), Failure> {
        if hold {
            let text = self.what_to_try()?;
            self.screen.step(&text)?;
        } else if until.is_none_or(|until| until <= now()) {
            return Ok(());
        } else {
            self.screen
                .step("all steps were seen; the table goes on for the rest of the time")?;
        }
        match self.wait(until, |_| None::<()>) {
            // A signal ends the showing only: every step was seen.
            Ok(_) | Err(Failure::Silent(1..)) => Ok(()),
            Err(failure) => Err(failure),
        }
    }

    fn what_to_try(&self) -> Result<String, Failure> {
        let directory = self.processes.directory().display();
        let (address, ssntp) = (&self.address, program()?);
        let ssntp = ssntp.display();
        let (node, _) = self.first_node()?;
        let (instance, node) = (short(&self.first().to_string()), short(&node.to_string()));
        Ok(format!(
            "it goes on until Ctrl-C; in another terminal, try:
export SSNTP_CONNECT={address}
export SSNTP_CA={directory}/ca.pem SSNTP_CERT={directory}/controller.pem
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
{ssntp} ctl events --json"
        ))
    }

    /// Deletes every instance, those that a user has started meanwhile as well.
    pub(super) fn delete_everything(&mut self) -> Result<(), Failure> {
        self.is_ending = true;
        let is_assigned = |view: &View| {
            let cnci = view.cnci(self.cnci);
            cnci.is_some_and(|cnci| cnci.public_ips.contains_key(PUBLIC_IP))
        };
        // A user may have released it already.
        if self.controller.look(is_assigned) {
            let release = ReleasePublicIp {
                concentrator_uuid: self.cnci.into(),
                tenant_uuid: self.tenant.into(),
                instance_uuid: self.first().into(),
                public_ip: PUBLIC_IP.into(),
                private_ip: PRIVATE_IP.into(),
                ..ReleasePublicIp::default()
            };
            self.done(self.controller.release_public_ip(&release))?;
            self.screen.step(&format!("{PUBLIC_IP} was released"))?;
        }
        let orders = self.delete_all()?;
        for order in &orders {
            self.settled(order)??;
        }
        self.see("every instance is gone", |view| {
            (view.instances().count() == 0).then_some(())
        })?;
        self.draw()?;
        let count = orders.len();
        self.screen.step(&format!("all {count} instances were deleted"))
    }

    fn delete_all(&self) -> Result<Vec<Order>, Failure> {
        let uuids = |view: &View| view.instances().map(|i| i.uuid).collect::<Vec<_>>();
        let instances = self.controller.look(uuids).into_iter();
        Ok(instances
            .map(|instance| self.controller.delete(instance))
            .collect::<Result<_, _>>()?)
    }

    /// After something went wrong: deletes the instances that can still be deleted.
    pub(super) fn clean_up(&mut self) {
        let Ok(orders) = self.delete_all() else { return };
        let deadline = now() + CLEAN_UP;
        for order in orders {
            let _ = order.wait(deadline.saturating_duration_since(now()));
        }
    }

    fn first(&self) -> Uuid {
        self.workloads[0]
    }

    /// The node of the first workload, and all instances on it.
    fn first_node(&self) -> Result<(Uuid, Vec<Uuid>), Failure> {
        let found = self.controller.look(|view| {
            let node = view.instance(self.first())?.node;
            Some((node, view.instances_of(node).map(|i| i.uuid).collect()))
        });
        found.ok_or_else(|| Failure::new("the first workload is on no node"))
    }

    /// An instance or a node in a sentence.
    fn called(&self, uuid: Uuid) -> String {
        let name = |view: &View| view.instance(uuid).map(|i| i.stats.name.clone());
        let (name, text) = (self.controller.look(name), short(&uuid.to_string()));
        match name.filter(|name| !name.is_empty()) {
            Some(name) => format!("{name} ({text})"),
            None => text,
        }
    }

    fn list(&self, instances: &[Uuid]) -> String {
        let called: Vec<_> = instances.iter().map(|uuid| self.called(*uuid)).collect();
        called.join(", ")
    }
}

/// A certificate that is good for one new UUID alone.
fn issue(authority: &Authority, role: Role) -> Result<Issued, Failure> {
    Ok(authority.issue(&CertificateRequest::new(role).uuid(Uuid::new_v4()))?)
}

fn process(instance_uuid: Uuid, name: &str, command: &[&str]) -> Start {
    Start {
        instance_uuid,
        name: name.into(),
        vm_type: VmType::Process,
        command: command.iter().map(|word| (*word).to_owned()).collect(),
        requirements: Requirements {
            mem_mb: WORKLOAD_MEM,
            vcpus: 1,
            ..Requirements::default()
        },
        ..Start::default()
    }
}

/// The node of an instance that was to run. One that has ended already is a failure.
fn runs_on(shown: &Shown) -> Result<Uuid, Failure> {
    match shown {
        Shown::Running { node, .. } => Ok(*node),
        other => Err(Failure::new(other)),
    }
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
