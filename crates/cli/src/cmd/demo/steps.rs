//! What the demo does, and what has to be seen of it.

use std::path::Path;
use std::time::{Duration, Instant};

use crossbeam_channel::Receiver;
use ssntp::client::ClientConfig;
use ssntp::payload::{
    AssignPublicIp, FrameTrace, InstanceState, NextState, NodeStatus, Persistence, ReleasePublicIp,
    Requirements, RestartPolicy, Start, VmType, timestamp,
};
use ssntp::pki::{Authority, AuthorityRequest, CertificateRequest};
use ssntp::proto::Outputs;
use ssntp::{Role, transport::Address};
use ssntp_cluster::controller::{
    Change, Controller, ControllerConfig, Order, OrderError, Shown, StreamEvent, StreamRequest, View,
};
use uuid::Uuid;

use super::now;
use super::processes::Processes;
use super::screen::Screen;
use super::watch::{LIMIT, Seen};
use crate::cmd::ctl::tables::short;
use crate::failure::Failure;
use crate::output::printable;
use crate::signals::Stop;

/// How long what is left may take to be deleted after something went wrong.
const CLEAN_UP: Duration = Duration::from_secs(3);
/// Memory for the instances of a node, and for one of them, in MB.
const NODE_MEM: &str = "4096";
const WORKLOAD_MEM: i64 = 64;
/// More than any node has.
const TOO_MUCH_MEM: i64 = 1_000_000;

const WORKLOADS: [&str; 3] = ["web", "database", "batch"];
/// A line for the log, and a little work now and then, until it is told to end.
const WORK: &str =
    "echo hello from process $$; while sleep 0.2; do i=0; while [ $i -lt 2000 ]; do i=$((i+1)); done; done";
const FAILS_ONCE: &str = "test -e ran && exec sleep 1000; touch ran; exit 3";
const PUBLIC_IP: &str = "198.51.100.20";
const PRIVATE_IP: &str = "172.16.0.5";
const CNCI_IP: &str = "10.0.0.33";
const CONFIGURATION: &str = "\
configure:
  launcher:
    compute_net: [127.0.0.0/8]
    mgmt_net: [127.0.0.0/8]
";

/// Why the demo does not go on.
#[derive(Debug)]
pub(super) enum Interrupt {
    /// A signal.
    Stopped,
    Failed(Failure),
}

impl From<Failure> for Interrupt {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

/// A cluster that stands.
pub(super) struct Demo<'a> {
    pub(super) processes: &'a mut Processes,
    pub(super) screen: &'a mut Screen,
    pub(super) stop: &'a Stop,
    pub(super) controller: Controller,
    pub(super) changes: Receiver<Change>,
    /// Each entity has a certificate that is bound to its UUID.
    authority: Authority,
    address: String,
    workloads: Vec<Uuid>,
    tenant: Uuid,
    cnci: Uuid,
    /// The label of the START whose trace is shown.
    traced: String,
    /// How long the table shows what a step has brought about.
    pace: Duration,
}

impl<'a> Demo<'a> {
    /// Starts the processes and the controller, and waits until all nodes are
    /// ready.
    pub(super) fn bring_up(
        processes: &'a mut Processes,
        screen: &'a mut Screen,
        stop: &'a Stop,
        agents: u16,
        pace: Duration,
    ) -> Seen<Self> {
        let authority = Authority::new(&AuthorityRequest::default()).map_err(Failure::from)?;
        let directory = processes.directory().to_owned();
        authority.save(&directory, false).map_err(Failure::from)?;
        certificate(
            &authority,
            &directory,
            Role::SCHEDULER,
            "scheduler",
            Uuid::new_v4(),
        )?;
        // For who tries `ssntp ctl` meanwhile.
        certificate(
            &authority,
            &directory,
            Role::CONTROLLER,
            "controller",
            Uuid::new_v4(),
        )?;
        let listen = [
            "scheduler",
            "--listen",
            "127.0.0.1:0",
            "--ca",
            "ca.pem",
            "--cert",
            "scheduler.pem",
        ];
        let (said, pid) = processes.start(
            "scheduler",
            &[&listen[..], &["--config", "cluster.yaml", "--require-bound"]].concat(),
            stop,
        )?;
        let address = said.strip_prefix("listening at ").unwrap_or(&said).to_owned();
        screen.step(format!("a scheduler listens at {address} (process {pid})"))?;

        let issued = authority
            .issue(&CertificateRequest::new(Role::CONTROLLER).uuid(Uuid::new_v4()))
            .map_err(Failure::from)?;
        let parsed: Address = address
            .parse()
            .map_err(|e| Failure::new(format!("{address}: {e}")))?;
        let client = ClientConfig::new(issued.identity(), authority.trust()).address(parsed);
        let controller =
            Controller::start(ControllerConfig::new(client).tracing(true)).map_err(Failure::new)?;
        let mut demo = Self {
            changes: controller.subscribe(),
            processes,
            screen,
            stop,
            controller,
            authority,
            address,
            workloads: WORKLOADS.map(|_| Uuid::new_v4()).into(),
            tenant: Uuid::new_v4(),
            cnci: Uuid::new_v4(),
            traced: String::new(),
            pace,
        };
        for (uuid, name) in demo.workloads.iter().zip(WORKLOADS) {
            demo.screen.name(*uuid, name);
        }
        demo.screen.name(demo.cnci, "CNCI");
        demo.start_nodes(agents)?;
        Ok(demo)
    }

    fn start_nodes(&mut self, agents: u16) -> Seen {
        let mut pids = Vec::new();
        for number in 1..=agents {
            pids.push(self.start_node(Role::AGENT, &format!("agent-{number}"))?);
        }
        pids.push(self.start_node(Role::NETAGENT, "network-agent")?);
        let nodes = usize::from(agents) + 1;
        let ready = |view: &View| {
            let ready = |node: &&_| is(node, &NodeStatus::Ready);
            (view.nodes().filter(ready).count() == nodes).then_some(())
        };
        self.see("all nodes are READY", ready)?;
        let pids: Vec<_> = pids.iter().map(u32::to_string).collect();
        self.screen.step(format!(
            "{agents} agents and a network agent are READY (processes {})",
            pids.join(", ")
        ))?;
        Ok(())
    }

    fn start_node(&mut self, role: Role, name: &str) -> Seen<u32> {
        certificate(
            &self.authority,
            self.processes.directory(),
            role,
            name,
            Uuid::new_v4(),
        )?;
        let (subcommand, cert) = (role.to_string(), format!("{name}.pem"));
        let words = [
            &subcommand,
            "--connect",
            &self.address,
            "--ca",
            "ca.pem",
            "--cert",
            &cert,
            "--state",
            name,
            "--mem",
            NODE_MEM,
            "--interval",
            "1",
            "--grace",
            "2",
            "--confinement",
            "rlimits",
            // The demo's directory may be one that other users can't get to.
            "--users",
            "agent",
        ];
        Ok(self.processes.start(name, &words, self.stop)?.1)
    }

    /// All that is to be seen before everything is deleted.
    pub(super) fn steps(&mut self) -> Seen {
        let order = self.controller.configure(CONFIGURATION).map_err(Failure::new)?;
        self.done(&order)?;
        self.tell("the cluster has a configuration")?;
        self.start_workloads()?;
        self.start_cnci()?;
        self.stop_and_restart()?;
        self.show_log()?;
        self.evacuate_and_restore()?;
        self.start_again()?;
        self.end_by_itself()?;
        self.fail()?;
        self.show_trace()
    }

    fn start_workloads(&mut self) -> Seen {
        let mut orders = Vec::new();
        for uuid in &self.workloads {
            let start = Start {
                persistence: Persistence::All,
                requirements: Requirements {
                    mem_mb: WORKLOAD_MEM,
                    vcpus: 1,
                    ..Requirements::default()
                },
                ..process(*uuid, &["sh", "-c", WORK])
            };
            orders.push(
                self.controller
                    .start_workload(&start.into())
                    .map_err(Failure::new)?,
            );
        }
        if let Some(first) = orders.first() {
            self.traced = first.label().to_owned();
        }
        for order in &orders {
            let (instance, node) = self.runs(order)?;
            let (instance, node) = (self.screen.called(instance), self.screen.called(node));
            self.tell(format!("workload {instance} runs on node {node}"))?;
        }
        Ok(())
    }

    /// Waits until an instance runs; one that has ended already is not what
    /// was wanted.
    fn runs(&mut self, order: &Order) -> Seen<(Uuid, Uuid)> {
        match self.done(order)? {
            Shown::Running { instance, node } => Ok((instance, node)),
            other => Err(Failure::new(other).into()),
        }
    }

    fn start_cnci(&mut self) -> Seen {
        let program = Processes::program()?;
        let directory = self.processes.directory();
        certificate(
            &self.authority,
            directory,
            Role::CNCIAGENT,
            "cnciagent",
            self.cnci,
        )?;
        let file = |name: &str| self.processes.directory().join(name).display().to_string();
        let (ca, cert, state) = (file("ca.pem"), file("cnciagent.pem"), file("cnci"));
        let (uuid, tenant) = (self.cnci.to_string(), self.tenant.to_string());
        let program = program.display().to_string();
        let words = [
            &program,
            "cnci",
            "--connect",
            &self.address,
            "--ca",
            &ca,
            "--cert",
            &cert,
            "--uuid",
            &uuid,
            "--tenant",
            &tenant,
            "--ip",
            CNCI_IP,
            "--state",
            &state,
        ];
        let start = Start {
            tenant_uuid: self.tenant.into(),
            requirements: Requirements {
                mem_mb: WORKLOAD_MEM,
                vcpus: 1,
                network_node: true,
                ..Requirements::default()
            },
            ..process(self.cnci, &words)
        };
        let order = self
            .controller
            .start_workload(&start.into())
            .map_err(Failure::new)?;
        self.runs(&order)?;
        let cnci = self.cnci;
        let announced = |view: &View| view.cnci(cnci).filter(|cnci| cnci.since.is_some()).map(|_| ());
        self.see("the CNCI announces itself", announced)?;
        let called = self.screen.called(cnci);
        self.tell(format!(
            "a concentrator, {called}, runs on the network node and has connected"
        ))?;

        let assign = AssignPublicIp {
            concentrator_uuid: cnci.into(),
            tenant_uuid: self.tenant.into(),
            instance_uuid: self.first().into(),
            public_ip: PUBLIC_IP.into(),
            private_ip: PRIVATE_IP.into(),
            vnic_mac: "02:00:00:00:00:05".into(),
        };
        let order = self.controller.assign_public_ip(&assign).map_err(Failure::new)?;
        self.done(&order)?;
        let called = self.screen.called(self.first());
        self.tell(format!("the concentrator has assigned {PUBLIC_IP} to {called}"))
    }

    fn stop_and_restart(&mut self) -> Seen {
        let instance = self.first();
        let called = self.screen.called(instance);
        let order = self.controller.stop(instance).map_err(Failure::new)?;
        self.done(&order)?;
        self.see_state(&[instance], &InstanceState::Exited)?;
        self.tell(format!("{called} was stopped, and its node keeps it"))?;
        let order = self.controller.restart(instance).map_err(Failure::new)?;
        self.runs(&order)?;
        self.tell(format!("{called} was restarted"))
    }

    /// What `ssntp ctl logs` prints.
    fn show_log(&mut self) -> Seen {
        let instance = self.first();
        let request = StreamRequest {
            tail: Some(1),
            outputs: Outputs::STDOUT,
            ..StreamRequest::default()
        };
        let stream = self.controller.stream(instance, request).map_err(Failure::new)?;
        let mut log = Vec::new();
        let ended = |_: &View| loop {
            match stream.events().try_recv().ok()? {
                StreamEvent::Data { bytes, .. } => log.extend(bytes),
                StreamEvent::Ended(how) => return Some(how),
                _ => {}
            }
        };
        let ended = self.see("the end of a log", ended)?;
        ended.map_err(Failure::new)?;
        let said = String::from_utf8_lossy(&log);
        let called = self.screen.called(instance);
        self.tell(format!(
            "the last line of {called}'s log, from its node: {}",
            printable(said.trim_end())
        ))
    }

    fn evacuate_and_restore(&mut self) -> Seen {
        let first = self.first();
        let node = self
            .controller
            .look(|view| view.instance(first).map(|instance| instance.node));
        let node = node.ok_or_else(|| Failure::new("the first workload is on no node"))?;
        let moved: Vec<Uuid> = self
            .controller
            .look(|view| view.instances_of(node).map(|i| i.uuid).collect());
        let called = self.screen.called(node);
        let order = self
            .controller
            .evacuate(node, NextState::Maintenance)
            .map_err(Failure::new)?;
        self.done(&order)?;
        self.see_state(&moved, &InstanceState::Exited)?;
        self.tell(format!(
            "node {called} was evacuated: it is in maintenance, and {} stopped",
            self.list(&moved)
        ))?;
        let order = self.controller.restore(node).map_err(Failure::new)?;
        self.done(&order)?;
        let mut orders = Vec::new();
        for instance in &moved {
            orders.push(self.controller.restart(*instance).map_err(Failure::new)?);
        }
        for order in &orders {
            self.runs(order)?;
        }
        self.tell(format!(
            "node {called} was restored, and {} restarted",
            self.list(&moved)
        ))
    }

    /// A process that fails once, and whose node starts it again by itself.
    fn start_again(&mut self) -> Seen {
        let instance = Uuid::new_v4();
        let start = Start {
            restart_policy: RestartPolicy::OnFailure,
            requirements: Requirements {
                mem_mb: WORKLOAD_MEM,
                vcpus: 1,
                ..Requirements::default()
            },
            ..process(instance, &["sh", "-c", FAILS_ONCE])
        };
        let order = self
            .controller
            .start_workload(&start.into())
            .map_err(Failure::new)?;
        self.done(&order)?;
        let again = |view: &View| {
            let instance = view.instance(instance)?;
            (instance.state == InstanceState::Active && instance.stats.restarts == 1).then_some(())
        };
        self.see("a process that failed is started again", again)?;
        let called = self.screen.called(instance);
        self.tell(format!(
            "a process, {called}, failed, and its node has started it again"
        ))?;
        let order = self.controller.delete(instance).map_err(Failure::new)?;
        self.done(&order).map(drop)
    }

    fn list(&self, instances: &[Uuid]) -> String {
        let called: Vec<_> = instances
            .iter()
            .map(|instance| self.screen.called(*instance))
            .collect();
        called.join(", ")
    }

    /// A workload that ends, and what is known of how; then one that cannot even
    /// be started.
    fn end_by_itself(&mut self) -> Seen {
        let job = Uuid::new_v4();
        self.screen.name(job, "job");
        let start = Start {
            name: "job".into(),
            ..process(job, &["sh", "-c", "sleep 0.3; exit 3"])
        };
        let order = self
            .controller
            .start_workload(&start.into())
            .map_err(Failure::new)?;
        self.done(&order)?;
        let ending = |view: &View| view.instance(job)?.ending().filter(|ending| ending.is_known());
        let ending = self.see("a job has ended", ending)?;
        let called = self.screen.called(job);
        self.tell(format!("{called} has ended by itself: {ending}"))?;

        let start = process(Uuid::new_v4(), &["/no/such/program"]);
        let order = self
            .controller
            .start_workload(&start.into())
            .map_err(Failure::new)?;
        match self.settled(&order)? {
            Err(OrderError::Failed(failure)) if !failure.detail.is_empty() => {
                self.screen.step("a program that is not there does not start:")?;
                self.screen.detail(failure)?;
                self.pause()
            }
            Err(e) => Err(Failure::new(e).into()),
            Ok(shown) => {
                Err(Failure::new(format!("a program that is not there was started: {shown}")).into())
            }
        }
    }

    /// A START that fits nowhere.
    fn fail(&mut self) -> Seen {
        let start = Start {
            requirements: Requirements {
                mem_mb: TOO_MUCH_MEM,
                ..Requirements::default()
            },
            ..process(Uuid::new_v4(), &["sleep", "1000"])
        };
        let order = self
            .controller
            .start_workload(&start.into())
            .map_err(Failure::new)?;
        match self.settled(&order)? {
            Err(OrderError::Failed(failure)) if failure.reason == "full_cloud" => {
                self.screen.step(format!(
                    "a START that needs {TOO_MUCH_MEM} MB fails, as it should:"
                ))?;
                self.screen.detail(failure)?;
                self.pause()
            }
            Err(e) => Err(Failure::new(e).into()),
            Ok(shown) => {
                Err(Failure::new(format!("a START that fits nowhere was carried out: {shown}")).into())
            }
        }
    }

    /// The trace of the first START, hop by hop.
    fn show_trace(&mut self) -> Seen {
        let label = self.traced.clone();
        let reported = |view: &View| view.traces().find(|trace| trace.label == label).cloned();
        let trace = self.see("the trace of a START is reported", reported)?;
        let lines = hops(&trace);
        if lines.len() < 3 {
            return Err(Failure::new(format!("the trace of a START has {} hops only", lines.len())).into());
        }
        self.screen
            .step(format!("the way of a frame, {:?}:", trace.label))?;
        for line in lines {
            self.screen.detail(line)?;
        }
        self.pause()
    }

    /// Goes on showing the table until a time, or a signal where it is held.
    pub(super) fn linger(&mut self, until: Option<Instant>, hold: bool) -> Seen {
        if hold {
            self.tell_what_to_try()?;
        } else if until.is_none_or(|until| until <= now()) {
            return Ok(());
        } else {
            self.screen
                .step("all steps were seen; the table goes on for the rest of the time")?;
        }
        match self.wait(until, |_| None::<()>) {
            // A signal says that it has been shown for long enough.
            Ok(_) | Err(Interrupt::Stopped) => Ok(()),
            Err(failed) => Err(failed),
        }
    }

    fn tell_what_to_try(&mut self) -> Result<(), Failure> {
        let file = |name: &str| self.processes.directory().join(name).display().to_string();
        let ssntp = Processes::program()?.display().to_string();
        let (instance, node) = (
            self.first(),
            self.controller.look(|view| view.nodes().next().map(|n| n.uuid)),
        );
        let (instance, node) = (
            short(&instance.to_string()),
            node.map_or_else(String::new, |n| short(&n.to_string())),
        );
        let lines = [
            format!("export SSNTP_CONNECT={}", self.address),
            format!(
                "export SSNTP_CA={} SSNTP_CERT={}",
                file("ca.pem"),
                file("controller.pem")
            ),
            format!("{ssntp} ctl nodes"),
            format!("{ssntp} ctl instances --watch"),
            format!("{ssntp} ctl describe job"),
            format!("{ssntp} ctl start --count 3 --persistent -- sleep 1000"),
            format!("{ssntp} ctl logs -f {instance}"),
            format!("{ssntp} ctl stop {instance}"),
            format!("{ssntp} ctl restart {instance}"),
            format!("{ssntp} ctl evacuate {node}"),
            format!("{ssntp} ctl restore {node}"),
            format!("{ssntp} ctl cncis"),
            format!("{ssntp} ctl events --json"),
        ];
        self.screen
            .step("it goes on until Ctrl-C; in another terminal, try:")?;
        for line in lines {
            self.screen.detail(line)?;
        }
        Ok(())
    }

    /// Deletes every instance, those that somebody else has started as well.
    pub(super) fn delete_everything(&mut self) -> Seen {
        let assigned = |view: &View, cnci| {
            view.cnci(cnci)
                .is_some_and(|c| c.public_ips.contains_key(PUBLIC_IP))
        };
        // Whoever tried things meanwhile may have been faster.
        if self.controller.look(|view| assigned(view, self.cnci)) {
            let release = ReleasePublicIp {
                concentrator_uuid: self.cnci.into(),
                tenant_uuid: self.tenant.into(),
                instance_uuid: self.first().into(),
                public_ip: PUBLIC_IP.into(),
                private_ip: PRIVATE_IP.into(),
                ..ReleasePublicIp::default()
            };
            let order = self
                .controller
                .release_public_ip(&release)
                .map_err(Failure::new)?;
            self.still_done(&order)?;
            self.screen.step(format!("{PUBLIC_IP} was released"))?;
        }
        let orders = self.delete_all()?;
        for order in &orders {
            self.still_done(order)?;
        }
        let deadline = now() + LIMIT;
        let none = |view: &View| (view.instances().count() == 0).then_some(());
        if self.unstoppable(deadline, none)?.is_none() {
            return Err(Failure::new("not every instance is gone").into());
        }
        self.screen.draw_from(&self.controller)?;
        self.screen
            .step(format!("all {} instances were deleted", orders.len()))?;
        Ok(())
    }

    fn delete_all(&self) -> Result<Vec<Order>, Failure> {
        let instances: Vec<Uuid> = self
            .controller
            .look(|view| view.instances().map(|i| i.uuid).collect());
        let delete = |instance| self.controller.delete(instance).map_err(Failure::new);
        instances.into_iter().map(delete).collect()
    }

    /// After something went wrong: what can still be deleted in order is.
    pub(super) fn clean_up(&mut self) {
        let Ok(orders) = self.delete_all() else { return };
        let deadline = now() + CLEAN_UP;
        for order in orders {
            let _ = order.wait(deadline.saturating_duration_since(now()));
        }
    }

    /// A step that was seen, and a moment to look at what it has changed.
    fn tell(&mut self, text: impl std::fmt::Display) -> Seen {
        self.screen.step(text)?;
        self.pause()
    }

    fn pause(&mut self) -> Seen {
        self.screen.draw_from(&self.controller)?;
        match self.pace.is_zero() {
            true => Ok(()),
            false => self.wait(Some(now() + self.pace), |_| None::<()>).map(drop),
        }
    }

    fn first(&self) -> Uuid {
        self.workloads.first().copied().unwrap_or_default()
    }
}

fn is(node: &ssntp_cluster::controller::Node, status: &NodeStatus) -> bool {
    node.connected && node.status == *status
}

fn process(uuid: Uuid, command: &[&str]) -> Start {
    Start {
        instance_uuid: uuid,
        vm_type: VmType::Process,
        command: command.iter().map(|word| (*word).to_owned()).collect(),
        ..Start::default()
    }
}

/// Writes a certificate that is good for one UUID alone.
fn certificate(
    authority: &Authority,
    directory: &Path,
    role: Role,
    name: &str,
    uuid: Uuid,
) -> Result<(), Failure> {
    let issued = authority.issue(&CertificateRequest::new(role).uuid(uuid))?;
    Ok(issued.save(directory.join(format!("{name}.pem")))?)
}

/// One line for each hop, with the times since the frame left its origin.
fn hops(trace: &FrameTrace) -> Vec<String> {
    let stamp = |text: &str| timestamp::parse(text).filter(|nanos| *nanos != 0);
    let origin = trace.nodes.first().and_then(|node| stamp(&node.tx_timestamp));
    let since = |at: Option<u64>| Some(at?.checked_sub(origin?)? / 1000);
    let mut lines = Vec::new();
    for node in &trace.nodes {
        let (received, sent) = (since(stamp(&node.rx_timestamp)), since(stamp(&node.tx_timestamp)));
        let times = match (received, sent) {
            (None, Some(sent)) => format!("sent at {sent} µs"),
            (Some(received), None) => format!("received at {received} µs"),
            (Some(received), Some(sent)) => {
                format!(
                    "received at {received} µs, sent on at {sent} µs, {} µs inside",
                    sent.saturating_sub(received)
                )
            }
            (None, None) => "no times".into(),
        };
        lines.push(format!(
            "{:<16} {}  {times}",
            node.ssntp_role,
            short(node.ssntp_node_uuid.as_str())
        ));
    }
    lines
}
