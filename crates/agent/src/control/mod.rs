//! The agent's state machine, without I/O, threads or a clock of its own.
//!
//! ```text
//!  frames, connection ─┐                       ┌─▶ frames to send
//!  outcomes of jobs ───┼─▶ Control::handle ────┤
//!  ends of instances ──┤   (the time is given) └─▶ jobs: launch, stop, remove, measure …
//!  the clock ──────────┘
//! ```
//!
//! [`Control`] decides from what several rooms know, and each room alone changes what it owns. Jobs for
//! one instance are done in the order in which the state machine gives them. The outcome of a job comes
//! back as an input.
//!
//! | file | owns |
//! |---|---|
//! | `instances` | the instances, their records, and their way from launch to removal |
//! | `instance` | an instance and its state |
//! | `volumes` | the volumes of an instance, and its volume commands |
//! | `service` | whether the node is in service: OFFLINE, evacuation, maintenance |
//! | `capacity` | the room of the node, and its limits in the configuration |
//! | `reports` | the times of STATS and of measurements |
//! | `tenants` | the tenants that concentrators know to be here |
//! | `outputs` | the outputs, and the frames that wait for a session |
//! | `adopt` | nothing: finds the instances that a former agent left |
//! | `admission` | nothing: decides about a START, and lists the failures of all commands |
//! | `restarts`, `retention`, `stats` | nothing: rules |
//! | `events` | nothing: the inputs and outputs |

mod admission;
mod adopt;
mod capacity;
mod events;
mod instance;
mod instances;
mod outputs;
mod reports;
mod restarts;
mod retention;
mod service;
mod stats;
mod tenants;
#[cfg(test)]
mod tests;
mod volumes;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use log::{debug, info};
use ssntp::Role;
use ssntp::client::ClientFigures;
use ssntp::payload::Id;
use ssntp::proto::{Command, Frame, FrameType, Status};
use ssntp_cluster::Needs;
use ssntp_cluster::machine::{self, Facts};
use ssntp_cluster::refusal::{Reason, Refused};
use ssntp_payload::{
    AttachVolume, CommandSubject, Configure, Delete, DetachVolume, Evacuate, InvalidConfiguration,
    Maintenance, NodeStatus, OpenStream, Ready, Restart, Restore, StartPayload, Stats, Stop, StreamCredit,
    StreamEndReason, StreamEnded, TraceReport, TunnelStats, stream_of,
};
use ssntp_transport::{NEVER, excerpt};
use uuid::Uuid;

use self::admission::check_networking;
use self::capacity::Capacity;
pub use self::events::{Action, Done, Input, Job, Settings, StreamOrder};
pub(crate) use self::events::{LaunchJob, Origin, VolumeOp};
use self::instance::{Instance, Life};
use self::instances::Instances;
use self::outputs::Outputs;
use self::reports::Reports;
use self::service::Service;
use self::tenants::{Tenants, tenant_of, tunnel_ip};
pub(crate) use self::volumes::ephemeral;
use super::driver::{Ended, News, RunId, Usage};
use super::figures::{AgentFigures, AgentLimits, CrewFigures};
use super::store::{self, NodeRecord, RecordAfter, Stored};

/// READY is sent again if the available memory or disk has changed by more than this part of the total.
const NOTABLE: i64 = 20;

/// The state machine.
#[derive(Debug)]
pub struct Control {
    settings: Arc<Settings>,
    instances: Instances,
    service: Service,
    capacity: Capacity,
    reports: Reports,
    tenants: Tenants,
    outputs: Outputs,
    /// The tunnels at the last measurement.
    tunnels: Vec<TunnelStats>,
}

impl Control {
    /// A node without instances.
    pub fn new(settings: Settings, facts: Facts, now: Instant) -> Self {
        let settings = Arc::new(Settings {
            interval: settings.interval.min(NEVER),
            grace: settings.grace.min(NEVER),
            ..settings
        });
        Self {
            instances: Instances::new(Arc::clone(&settings)),
            service: Service::new(),
            capacity: Capacity::new(Arc::clone(&settings), facts),
            reports: Reports::new(settings.interval, now),
            tenants: Tenants::default(),
            outputs: Outputs::new(settings.node, now),
            tunnels: Vec::new(),
            settings,
        }
    }

    /// Takes over the instances of a former agent, ends its runs whose records are gone, and makes the
    /// networks that the instances need. This blocks, so it is called before the agent's thread starts.
    pub(crate) fn adopt(&mut self, now: Instant, node: NodeRecord, stored: Vec<Stored>) {
        self.outputs.handle_time(now);
        for stored in stored {
            self.adopt_instance(stored);
        }
        if self.service.handle_adopted(node) {
            self.service.save(&mut self.outputs);
            self.instances
                .handle_evacuate(self.settings.grace, &mut self.outputs);
        }
        adopt::sweep(&self.settings, &self.instances);
        adopt::restore_networks(&self.settings, &self.instances);
    }

    fn adopt_instance(&mut self, stored: Stored) {
        let (id, age) = (stored.instance, stored.age);
        let settings = Arc::clone(&self.settings);
        let Some(root) = &settings.state else { return };
        let Some((instance, ended)) = adopt::examine(&settings, root, stored, &mut self.outputs) else {
            return;
        };
        let after = instance.record.after;
        let (is_running, is_out_of_reach) = (instance.is_running(), instance.is_out_of_reach());
        self.instances.handle_adopted(id, instance);
        if is_out_of_reach {
            return;
        }
        if let Some(ended) = ended {
            self.ended(ended);
        } else if after != RecordAfter::Nothing {
            self.instances.end(id, after, &mut self.outputs);
        } else if !is_running {
            self.instances.take_up(self.outputs.now(), id, age);
        }
    }

    /// Handles an input. [`take_actions`](Self::take_actions) returns the outputs.
    pub fn handle(&mut self, now: Instant, input: Input) {
        let out = &mut self.outputs;
        out.handle_time(now);
        match input {
            Input::Connected { configuration } => self.connected(configuration),
            Input::Disconnected => {
                out.handle_disconnected();
                out.act(Action::Stream(StreamOrder::CloseAll));
            }
            Input::Frame(frame) => self.frame(&frame),
            Input::Unsent(frames) => out.handle_unsent(frames),
            Input::Done(done) => self.done(done),
            Input::News(News::Ended(ended)) => {
                self.ended(ended);
                self.outputs.wish_stats();
            }
            Input::News(News::Health {
                instance,
                handle,
                health,
            }) => self.instances.handle_health(instance, handle, health, out),
            Input::ToggleOffline => {
                self.service.handle_toggle();
                let status = if self.service.is_offline() {
                    "offline"
                } else {
                    "back in service"
                };
                info!("{}: {status}", self.settings.node);
                // Recorded, so that the next agent of this node is offline, too.
                self.service.save(out);
                out.wish_report();
            }
            Input::Tick => {}
        }
        self.carry_out_wishes();
        // These report changes of the state, and any input can change the state. They compare the
        // state with the last report, so no handler has to call them.
        self.sync_tenants();
        self.tick();
    }

    /// The outputs since the last call, in order.
    pub fn take_actions(&mut self) -> Vec<Action> {
        self.outputs.take_actions()
    }

    /// The time at which the next [`Input::Tick`] is due.
    pub fn next_deadline(&self) -> Instant {
        let reports = self.reports.next_deadline(self.outputs.is_connected());
        let ends = self.instances.next_deadline(self.service.is_open());
        let retry = self.outputs.next_deadline(self.service.has_status());
        ends.into_iter().chain(retry).fold(reports, Instant::min)
    }

    /// The agent's figures, together with those of its client and its workers.
    pub(crate) fn figures(
        &self,
        client: ClientFigures,
        crews: Vec<CrewFigures>,
        reports: u64,
    ) -> AgentFigures {
        let mut instances = BTreeMap::new();
        for (_, instance) in self.instances.iter() {
            *instances.entry(instance.state()).or_default() += 1;
        }
        let (starts, restarts, unsaved) = self.instances.counted();
        AgentFigures {
            client,
            status: self.outputs.announced().and_then(|frame| frame.kind().name()),
            instances,
            limits: AgentLimits {
                instances: self.settings.max_instances,
            },
            crews,
            reports,
            starts,
            failures: self.outputs.failures().clone(),
            restarts,
            unsaved: unsaved + usize::from(self.service.is_unsaved()),
            frames_held: self.outputs.parked(),
            tunnels: self.tunnels.len(),
            tunnels_down: self.tunnels.iter().filter(|t| !t.up).map(|t| t.key).collect(),
            network_faults: self
                .settings
                .network
                .as_ref()
                .map_or(0, |network| network.faults()),
        }
    }

    /// Logs that the agent ends, and the number of instances that outlive it. Launches do not: the
    /// workers cancel them, and the next agent answers their STARTs.
    pub(crate) fn log_end(&self) {
        let count = |is: fn(&Instance) -> bool| self.instances.iter().filter(|(_, it)| is(it)).count();
        info!(
            "{}: the agent ends; instances that keep running: {}, launches that are cancelled: {}",
            self.settings.node,
            count(Instance::is_up),
            count(|instance| matches!(instance.life, Life::Launching(_)))
        );
    }

    fn connected(&mut self, configuration: Option<Bytes>) {
        self.outputs.handle_connected();
        if let Some(configuration) = configuration {
            // The configuration comes before the status, because its limits decide between READY and FULL.
            self.configure(&configuration);
        }
        // The status comes first, because a scheduler sends STARTs to a node only after READY.
        self.announce(true);
        self.outputs.repeat();
        self.tenants.handle_connected();
        self.reports.handle_connected(self.outputs.now());
    }

    fn frame(&mut self, frame: &Frame) {
        if frame.kind().frame_type == FrameType::COMMAND {
            self.command(frame);
            // A command that was refused is traced as well, because the trace records the way of
            // the frame and not its effect.
            if frame.trace().is_some() {
                let report = Frame::of(&TraceReport::from_frames([frame]));
                self.outputs.report(report);
            }
        } else if frame.kind() != Status::CONNECTED {
            debug!("{}: {} is not for agents", self.settings.node, frame.kind());
        }
    }

    fn done(&mut self, done: Done) {
        let (instances, out) = (&mut self.instances, &mut self.outputs);
        match done {
            Done::Condemned {
                instance,
                handle,
                why,
            } => instances.handle_condemned(instance, &handle, &why, out),
            Done::Launched { instance, result } => {
                match result {
                    Ok((handle, began)) => instances.handle_launched(instance, &handle, began, out),
                    Err(error) => {
                        let is_evacuated = self.service.is_evacuated();
                        instances.handle_not_launched(instance, error, is_evacuated, out);
                    }
                }
                out.wish_stats();
            }
            Done::Signalled { instance } => instances.handle_signalled(out.now(), instance),
            Done::Removed { instance, result } => {
                instances.handle_removed(instance, result, out);
                out.wish_stats();
            }
            Done::Volume { instance, op, result } => {
                instances.handle_volume_done(instance, op, result, out);
                out.wish_stats();
            }
            Done::Unsaved { instance, why } => instances.handle_unsaved(instance, &why, out),
            Done::NodeUnsaved { why } => {
                self.service.handle_unsaved();
                let next = match self.service.reached() {
                    Some(next) => format!(", and the next state, {next}, is not reported before it is"),
                    None => String::new(),
                };
                let why = format_args!("the node's record can't be saved{next}: {why}");
                out.complain("node not saved", why);
            }
            Done::Evacuated(next) => self.service.handle_saved(next, out),
            Done::Measured {
                facts,
                usages,
                tunnels,
            } => {
                self.tunnels = tunnels;
                self.measured(facts, usages);
            }
        }
    }

    fn ended(&mut self, ended: Ended) {
        let Some(instance) = self.instances.ends(&ended) else {
            return;
        };
        let memory_mb = instance.usage.memory_mb;
        // STATS report `exited` before the restart and after this end. Without STATS in between, a
        // controller would not see that the instance ran again.
        if instance.restart_unreported {
            self.send_stats();
        }
        self.capacity.handle_freed(memory_mb);
        self.instances.handle_ended(ended, &mut self.outputs);
    }

    fn measured(&mut self, facts: Facts, usages: Vec<(Uuid, Option<RunId>, Usage)>) {
        self.reports.handle_measured();
        self.capacity.handle_measured(facts);
        self.instances.handle_measured(usages, &mut self.outputs);
        self.service.save_again(&mut self.outputs);
        // The status comes before the STATS, as at the beginning of a session.
        if self.has_status_changed() {
            self.announce(true);
        }
        self.send_stats();
    }

    /// Carries out everything whose time has come.
    fn tick(&mut self) {
        let now = self.outputs.now();
        self.instances.handle_tick(&mut self.outputs);
        if self.service.is_open() {
            for id in self.instances.due_restarts(now) {
                self.start_again(id);
                self.outputs.wish_stats();
            }
        }
        // MAINTENANCE is sent once the last instance has stopped.
        let is_empty = !self.instances.iter().any(|(_, instance)| instance.is_busy());
        if is_empty && self.service.handle_empty() {
            self.announce(true);
            self.service.reach_next_state(&mut self.outputs);
            self.outputs.wish_stats();
        }
        self.carry_out_wishes();
        let due = self.reports.handle_tick(now);
        if due.stats {
            self.send_stats();
        }
        if due.measurement {
            let subjects = self.instances.begin_measurement();
            self.outputs.job(Job::Measure(subjects));
        }
        let retry = self.outputs.next_deadline(self.service.has_status());
        if retry.is_some_and(|due| now >= due) {
            if self.outputs.announced().is_none() {
                self.announce(true);
            }
            self.outputs.send_parked();
        }
    }

    /// Sends the status and schedules the STATS that the rooms have asked for.
    fn carry_out_wishes(&mut self) {
        let (status, stats) = self.outputs.take_wishes();
        if let Some(in_any_case) = status {
            self.announce(in_any_case);
        }
        if stats {
            let instances = self.instances.iter().count();
            self.reports.handle_change(self.outputs.now(), instances);
        }
    }

    /// Applies a configuration. An invalid one is sent back with InvalidConfiguration.
    fn configure(&mut self, payload: &Bytes) {
        let out = &mut self.outputs;
        match Configure::decode_valid(payload) {
            Ok(configure) => {
                if configure.launcher != *self.capacity.launcher()
                    && let Some(more) = out.may_log("new configuration")
                {
                    let launcher = format!("{:?}", configure.launcher);
                    info!("{}: new configuration: {}{more}", out.node(), excerpt(launcher));
                }
                self.instances.handle_child_user(&configure.launcher.child_user);
                self.capacity.handle_configured(configure.launcher);
            }
            Err(e) => {
                let why = format_args!("the configuration is refused: {e}");
                out.complain("CONFIGURE", why);
                let refused = payload.clone();
                out.report(Frame::of(&InvalidConfiguration { refused }));
            }
        }
    }

    fn command(&mut self, frame: &Frame) {
        let command = Command(frame.kind().operand);
        let result = match command {
            Command::START => self.start(frame),
            Command::STOP => self.stop(frame),
            Command::RESTART => self.restart(frame),
            Command::DELETE => self.delete(frame),
            Command::EVACUATE => self.evacuate(frame),
            Command::RESTORE => self.restore(frame),
            Command::ATTACH_VOLUME => self.volume(frame, true),
            Command::DETACH_VOLUME => self.volume(frame, false),
            Command::CONFIGURE => {
                self.configure(frame.payload_bytes());
                self.outputs.wish_status(false);
                Ok(())
            }
            _ if frame.kind().is_of_streams() => self.stream(frame),
            _ => {
                debug!("{}: {command} is not for agents", self.settings.node);
                Ok(())
            }
        };
        let out = &mut self.outputs;
        if let Err(refused) = result {
            let subject = CommandSubject::of(frame);
            let kind = frame.kind().name().unwrap_or("refused");
            let about = excerpt(&subject.instance_uuid);
            out.complain(kind, format_args!("{command} {about} refused: {refused}"));
            out.fail(command, subject, &refused);
        }
        if command == Command::START {
            // A scheduler with the strict policy sends the next START only after this status.
            out.wish_report();
        }
    }

    fn start(&mut self, frame: &Frame) -> Result<(), Refused> {
        let payload: StartPayload = frame.payload()?;
        let id = payload.start.instance_uuid;
        self.outputs.handle_start(id);
        let (settings, service, instances) = (&self.settings, &self.service, &self.instances);
        let start = (frame, payload);
        let now = self.outputs.now();
        let (instance, launch) = admission::start(settings, service, &self.capacity, instances, now, start)?;
        self.instances
            .handle_start(id, instance, launch, &mut self.outputs);
        Ok(())
    }

    fn stop(&mut self, frame: &Frame) -> Result<(), Refused> {
        let stop: Stop = frame.payload()?;
        let (id, instance) = self.target(&stop.workload_agent_uuid, &stop.instance_uuid)?;
        if !instance.can_be_stopped() {
            return Err(Reason::AlreadyStopped.into());
        }
        let after = if instance.is_persistent() {
            RecordAfter::Keep
        } else {
            RecordAfter::Delete
        };
        self.instances.end(id, after, &mut self.outputs);
        Ok(())
    }

    fn delete(&mut self, frame: &Frame) -> Result<(), Refused> {
        let delete: Delete = frame.payload()?;
        let (id, _) = self.target(&delete.workload_agent_uuid, &delete.instance_uuid)?;
        let after = if delete.stop {
            RecordAfter::Release
        } else {
            RecordAfter::Delete
        };
        self.instances.end(id, after, &mut self.outputs);
        Ok(())
    }

    fn restart(&mut self, frame: &Frame) -> Result<(), Refused> {
        let restart: Restart = frame.payload()?;
        let (id, instance) = self.addressed(&restart.workload_agent_uuid, &restart.instance_uuid)?;
        if !self.service.is_open() {
            return Err(Refused::launch("the node is OFFLINE or in maintenance"));
        }
        match instance.life {
            Life::Stopped(_) => {}
            Life::Removing(_) => return Err(Reason::NoInstance.into()),
            _ => return Err(Reason::AlreadyRunning.into()),
        }
        let before = instance.start.as_ref().ok_or(Reason::InstanceCorrupt)?;
        let payload = Arc::new(StartPayload {
            start: store::restarted(&before.start, restart),
            user_data: before.user_data.clone(),
            meta_data: before.meta_data.clone(),
        });
        let driver = instance.driver.as_ref();
        let driver = driver.ok_or_else(|| Refused::launch("this agent has no driver for it"))?;
        self.settings.policy.check(driver.name(), &payload.start)?;
        check_networking(&payload.start, self.settings.network.as_deref())?;
        let needs = Needs::of(&payload.start).map_err(|_| Reason::InvalidData)?;
        if !self.has_room(&needs, true) {
            return Err(Refused::launch("the node has no room for it"));
        }
        // Only the changes are written, because the START is kept as it was received.
        let changes = store::changes(&before.start, &payload.start).map(Box::new);
        let command_id = CommandSubject::of(frame).command_id;
        self.instances
            .handle_restart(id, command_id, payload, changes, &mut self.outputs);
        self.outputs.wish_stats();
        Ok(())
    }

    /// Starts an instance whose restart is due, by its restart policy.
    fn start_again(&mut self, id: Uuid) {
        let found = self.instances.get(id);
        let parts = found.and_then(|instance| Some((instance.start.clone()?, instance.driver.clone()?)));
        let Some((start, driver)) = parts else {
            return self.instances.handle_no_restart(id, &mut self.outputs);
        };
        // The policy may have changed since the START, because each agent reads it when it starts.
        let allowed = self.settings.policy.check(driver.name(), &start.start);
        let needs = Needs::of(&start.start).unwrap_or_default();
        let refused = match allowed {
            Err(e) => Some(e.why),
            // Another instance may have been given the memory while this one was stopped.
            Ok(()) if !self.has_room(&needs, true) => Some("the node has no room for it".into()),
            Ok(()) => None,
        };
        let out = &mut self.outputs;
        match refused {
            Some(why) => self.instances.handle_restart_refused(id, &why, out),
            None => self.instances.handle_restart_due(id, start, out),
        }
    }

    fn evacuate(&mut self, frame: &Frame) -> Result<(), Refused> {
        let evacuate: Evacuate = frame.payload()?;
        self.check_node(&evacuate.workload_agent_uuid)?;
        let out = &mut self.outputs;
        if self.service.is_offline() {
            out.wish_report();
            return Ok(());
        }
        if let Some(more) = out.may_log("evacuated") {
            let next = excerpt(&evacuate.next_state);
            let how = if evacuate.drain { "drained" } else { "evacuated" };
            info!("{}: {how}, next is {next}{more}", out.node());
        }
        if evacuate.drain {
            self.service.handle_drain();
            self.service.save(out);
            out.wish_report();
            return Ok(());
        }
        let begins = self.service.handle_evacuate(evacuate.next_state);
        self.service.save(out);
        if begins {
            let within = match evacuate.deadline {
                // 0 means that EVACUATE sets no deadline.
                0 => self.settings.grace,
                seconds => Duration::from_secs(seconds.into()),
            };
            self.instances.handle_evacuate(within, out);
        } else {
            // This EVACUATE is a repetition. Its sender waits for the status, so it is sent again.
            self.announce(true);
            self.outputs.wish_stats();
            self.service.reach_next_state(&mut self.outputs);
        }
        Ok(())
    }

    fn restore(&mut self, frame: &Frame) -> Result<(), Refused> {
        self.check_node(&frame.payload::<Restore>()?.workload_agent_uuid)?;
        let out = &mut self.outputs;
        if self.service.handle_restore() {
            if let Some(more) = out.may_log("restored") {
                info!("{}: restored{more}", out.node());
            }
            self.service.save(out);
        }
        // The status answers Restore, so it is sent even if nothing has changed.
        out.wish_report();
        Ok(())
    }

    fn volume(&mut self, frame: &Frame, attach: bool) -> Result<(), Refused> {
        let (node, instance, volume) = if attach {
            let it: AttachVolume = frame.payload()?;
            (it.workload_agent_uuid, it.instance_uuid, it.volume_uuid)
        } else {
            let it: DetachVolume = frame.payload()?;
            (it.workload_agent_uuid, it.instance_uuid, it.volume_uuid)
        };
        let volume = volume.uuid().ok_or(Reason::InvalidData)?;
        let (id, instance) = self.addressed(&node, &instance)?;
        if self.service.is_offline() {
            return Err(Reason::AttachFailure.into());
        }
        if !self.settings.has_volumes {
            return Err(Reason::NotSupported.into());
        }
        let is_ending = matches!(instance.life, Life::Terminating(_) | Life::Removing(_));
        if is_ending || instance.start.is_none() || instance.driver.is_none() {
            return Err(Reason::InstanceFailure.into());
        }
        let op = VolumeOp { volume, attach };
        self.instances.handle_volume(id, op, &mut self.outputs)
    }

    /// Handles a command for a stream. Commands for a stream that has ended have no effect.
    fn stream(&mut self, frame: &Frame) -> Result<(), Refused> {
        let payload = frame.payload_bytes();
        let action = match Command(frame.kind().operand) {
            Command::OPEN_STREAM => OpenStream::decode(payload).map(|open| self.open_stream(open)),
            Command::STREAM_CREDIT => {
                StreamCredit::decode(payload).map(|credit| Action::Stream(StreamOrder::Credit(credit)))
            }
            _ => stream_of(payload).map(|stream| Action::Stream(StreamOrder::Close(stream))),
        };
        self.outputs.act(action.ok_or(Reason::InvalidData)?);
        Ok(())
    }

    /// Opens a stream of an instance's logs, or answers that there is none.
    fn open_stream(&self, open: OpenStream) -> Action {
        let Some(instance) = self.instances.get(open.instance) else {
            let text = format!("node {} does not have it", self.settings.node);
            let ended = StreamEnded::new(open.stream, StreamEndReason::NO_INSTANCE, text);
            return Action::Send(ended.frame());
        };
        let (place, runs) = (instance.place.clone(), instance.is_running());
        Action::Stream(StreamOrder::Open { open, place, runs })
    }

    /// Checks that a command for a whole node is for this node.
    fn check_node(&self, node: &Id) -> Result<(), Refused> {
        let is_own = *node == self.settings.node;
        Ok(is_own.then_some(()).ok_or(Reason::InvalidData)?)
    }

    /// The instance that a command names.
    fn addressed(&self, node: &Id, instance: &Id) -> Result<(Uuid, &Instance), Refused> {
        let (Some(node), Some(id)) = (node.uuid(), instance.uuid()) else {
            return Err(Reason::InvalidData.into());
        };
        let found = self.instances.get(id).filter(|_| node == self.settings.node);
        Ok((id, found.ok_or(Reason::NoInstance)?))
    }

    /// The instance of this node that a STOP or DELETE names.
    fn target(&self, node: &Id, instance: &Id) -> Result<(Uuid, &Instance), Refused> {
        let (id, instance) = self.addressed(node, instance)?;
        // A node that is OFFLINE acts as if it had no instances.
        if self.service.is_offline() {
            return Err(Reason::NoInstance.into());
        }
        // It may run, and if its files were deleted, no agent could find its processes.
        if instance.is_out_of_reach() {
            let why = "it may run, and this agent does not have its driver";
            return Err(Refused::invalid(why));
        }
        Ok((id, instance))
    }

    fn has_room(&self, needs: &Needs, for_restart: bool) -> bool {
        let promised = self.instances.promised();
        self.capacity.has_room(promised, needs, for_restart)
    }

    fn ready(&self) -> Ready {
        self.capacity.ready(self.instances.promised())
    }

    fn status(&self) -> NodeStatus {
        if self.service.is_offline() {
            NodeStatus::Offline
        } else if self.service.is_evacuated() {
            // A node that is being evacuated takes no START either.
            NodeStatus::Maintenance
        } else if self.capacity.is_full(self.instances.promised()) {
            NodeStatus::Full
        } else {
            NodeStatus::Ready
        }
    }

    fn status_frame(&self) -> Frame {
        match self.status() {
            NodeStatus::Offline => Frame::new(Status::OFFLINE),
            NodeStatus::Full => Frame::new(Status::FULL),
            NodeStatus::Maintenance => Frame::of(&Maintenance {
                ready: Some(self.ready()),
            }),
            _ => Frame::of(&self.ready()),
        }
    }

    /// Sends the status of the node if it differs from the last status, or `in_any_case`.
    fn announce(&mut self, in_any_case: bool) {
        if self.outputs.is_connected() && self.service.has_status() {
            let status = self.status_frame();
            self.outputs.announce(status, in_any_case);
        }
    }

    /// True if the status has changed, or a figure of it by more than [`NOTABLE`].
    fn has_status_changed(&self) -> bool {
        let Some(before) = self.outputs.announced() else {
            return true;
        };
        if before.kind() != self.status_frame().kind() {
            return true;
        }
        let (Ok(before), now) = (before.payload::<Ready>(), self.ready()) else {
            // FULL and OFFLINE have no figures to compare.
            return false;
        };
        let moved = |a: i64, b: i64, total: i64| (a - b).abs() > (total / NOTABLE).max(1);
        moved(before.mem_available_mb, now.mem_available_mb, now.mem_total_mb)
            || moved(before.disk_available_mb, now.disk_available_mb, now.disk_total_mb)
    }

    fn send_stats(&mut self) {
        if self.outputs.is_connected() {
            self.reports.handle_sent();
            self.instances.handle_reported();
            let frame = stats::readable(self.stats());
            self.outputs.act(Action::Send(frame));
        }
    }

    fn stats(&self) -> Stats {
        let instances = self.instances.iter();
        Stats {
            instances: instances.map(|(id, it)| stats::instance_stats(*id, it)).collect(),
            interval: self.reports.interval(),
            tunnels: self.tunnels.clone(),
            ..machine::stats(&self.ready(), self.settings.node, self.status())
        }
    }

    /// Reports tenants that were added or removed to their concentrators. Only compute nodes have
    /// tunnels to concentrators.
    fn sync_tenants(&mut self) {
        if !self.outputs.is_connected() || !self.settings.role.contains(Role::AGENT) {
            return;
        }
        let ip = match &self.settings.network {
            Some(network) => network.address().to_string(),
            None => tunnel_ip(self.capacity.facts(), &self.capacity.launcher().compute_net),
        };
        let tenants = |is_up: bool| {
            let instances = self.instances.iter().filter(move |(_, it)| it.is_up() == is_up);
            instances.filter_map(|(_, it)| tenant_of(&it.start.as_ref()?.start, self.settings.node, &ip))
        };
        for frame in self.tenants.handle_present(tenants(true), tenants(false)) {
            self.outputs.report(frame);
        }
    }
}
