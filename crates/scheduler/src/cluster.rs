//! What one scheduler that leads knows of its cluster. It passes each frame and each session to the
//! rooms that own the facts, in an order in which reports come before the failures that they cause.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::Ipv4Addr;
use std::time::Instant;

use ipnet::Ipv4Net;
use uuid::Uuid;

use super::cncis::Cncis;
use super::commands::Commands;
use super::config::{SchedulerConfig, SchedulerError};
use super::controllers::Controllers;
use super::figures::{SchedulerFigures, SchedulerLimits};
use super::messages::Intent;
use super::nodes::Nodes;
use super::out::{Out, limited};
use super::relay::{self, Addressed};
use super::reports::{Reports, without};
use super::starts::Starts;
use super::streams::Streams;
use super::tenants::{Leased, TenantTable};
use ssntp::Role;
use ssntp::payload::Id;
use ssntp::proto::{Command, ErrorCode, Event, Frame, Status};
use ssntp::server::{DisconnectReason, SessionInfo};
use ssntp_cluster::refusal::{Reason, Refused};
use ssntp_payload::{
    AssignPublicIp, DeleteFailure, Evacuate, Maintenance, PublicIpAssigned, StartFailure, StatsSummary,
    Tenant, TenantAction, TenantAddress,
};
use ssntp_transport::excerpt;

/// The rooms of a leader.
#[derive(Debug)]
pub(super) struct Cluster {
    pub(super) nodes: Nodes,
    pub(super) starts: Starts,
    commands: Commands,
    reports: Reports,
    streams: Streams,
    cncis: Cncis,
    pub(super) controllers: Controllers,
    pub(super) tenants: TenantTable,
    /// The nodes whose certificates are all revoked: those that are away are lost for good.
    lost: BTreeSet<Uuid>,
}

impl Cluster {
    pub(super) fn new(config: &SchedulerConfig) -> Self {
        Self {
            nodes: Nodes::new(config.starts.interval),
            starts: Starts::new(config),
            commands: Commands::new(config.starts),
            reports: Reports::default(),
            streams: Streams::default(),
            cncis: Cncis::default(),
            controllers: Controllers::new(config.controllers),
            tenants: TenantTable::default(),
            lost: BTreeSet::new(),
        }
    }

    /// The rooms of a scheduler that begins. Blocks while it reads the tenants, and the instances of the state directory.
    pub(super) fn load(config: &SchedulerConfig, now: Instant) -> Result<Self, SchedulerError> {
        let mut cluster = Self::new(config);
        if let Some(file) = &config.configuration_file {
            cluster.tenants = TenantTable::load(file)?;
        }
        if let Some(state) = &config.state {
            let has_address = |instance| cluster.tenants.has_address(instance);
            let kept = cluster.starts.keep_in(state, has_address, now);
            kept.map_err(|e| SchedulerError::Read(state.clone(), e))?;
            cluster.note_adopted();
        }
        Ok(cluster)
    }

    /// Adopts the intents of the previous leader. The tenants were read before, because they say which instances have
    /// addresses.
    pub(super) fn adopt(&mut self, intents: Vec<Intent>, is_connected: impl Fn(Uuid) -> bool, now: Instant) {
        let has_address = |instance| self.tenants.has_address(instance);
        self.starts.adopt(intents, is_connected, has_address, now);
        self.note_adopted();
        self.free_again();
    }

    /// Ends a term: drops all state of the cluster, but not the tenants, lost nodes, and the counts of STARTs and reports. Returns
    /// the STARTs that wait.
    pub(super) fn end_term(
        &mut self,
        out: &mut Out<'_, '_>,
        config: &SchedulerConfig,
    ) -> Vec<(SessionInfo, Frame)> {
        let directory = out.cx.directory();
        let with_sender = |(from, frame): (Uuid, Frame)| Some((directory.session(from)?.clone(), frame));
        let parked = self.starts.take_parked().into_iter();
        let mut starts: Vec<_> = parked.filter_map(with_sender).collect();
        *self = Self {
            starts: self.starts.renewed(config),
            reports: std::mem::take(&mut self.reports),
            tenants: std::mem::take(&mut self.tenants),
            lost: std::mem::take(&mut self.lost),
            ..Self::new(config)
        };
        starts.extend(self.tenants.end_term(out));
        starts
    }

    /// The time at which the first time limit of a node, a START or a command is over. After a pause that is later than
    /// these say, so it is no `next_deadline`.
    pub(super) fn first_deadline(&self) -> Option<Instant> {
        let all = [
            self.starts.next_deadline(),
            self.nodes.next_deadline(),
            self.commands.next_deadline(),
        ];
        all.into_iter().flatten().min()
    }

    /// The figures. The table of tenants of one that does not lead is outdated. `kept_bytes` is the size of the frames that are
    /// kept for the next leader.
    pub(super) fn figures(
        &self,
        config: &SchedulerConfig,
        leads: bool,
        kept_bytes: usize,
    ) -> SchedulerFigures {
        let is_claimed = |instance| self.starts.instances.taken(instance).is_some();
        let tenants = Some(&self.tenants).filter(|_| leads);
        let (streams, streams_opened) = self.streams.counted();
        let (moving, moved) = self.starts.moves.counted();
        let (controllers, master) = self.controllers.counted();
        let (foreign_reports, invalid_frames) = self.reports.counted();
        SchedulerFigures {
            nodes: self.nodes.figures(),
            instances: self.starts.instances.figures(),
            starts: self.starts.figures(),
            limits: SchedulerLimits {
                held_starts: config.held_starts,
                starts_in_flight: config.in_flight,
            },
            streams,
            streams_opened,
            moving,
            moved,
            controllers,
            master,
            concentrators: self.cncis.announced(),
            unclaimed_addresses: tenants.map_or(0, |tenants| tenants.unclaimed(is_claimed)),
            kept_bytes,
            foreign_reports,
            invalid_frames,
            faults: self
                .starts
                .instances
                .handover
                .fault()
                .into_iter()
                .chain(tenants.and_then(TenantTable::fault).map(str::to_owned))
                .collect(),
        }
    }

    /// A controller has connected, and gets a snapshot. It is not complete while `is_syncing`: other schedulers have not
    /// sent their reports yet.
    pub(super) fn handle_controller(
        &mut self,
        out: &mut Out<'_, '_>,
        session: &SessionInfo,
        is_syncing: bool,
    ) {
        // It joins the line first, because the snapshot logs whether it is the master.
        self.controllers.join(session);
        let announced = self.nodes.announced().chain(self.cncis.frames());
        self.controllers
            .begin_snapshot(out, session, announced, &self.nodes, is_syncing);
    }

    /// A client has connected, which may be a node or a concentrator.
    pub(super) fn handle_connected(&mut self, out: &mut Out<'_, '_>, session: &SessionInfo) {
        if self.nodes.handle_connected(out, session) {
            // The STATS that another server has kept may be older than the session.
            let sends_new_stats = session.server() == out.cx.uuid();
            self.starts
                .handle_node_connected(session.uuid(), session.role(), sends_new_stats);
        }
        if session.role().intersects(Role::CNCIAGENT) {
            self.cncis
                .handle_connected(out, session.uuid(), &addresses(&self.starts, &self.tenants));
            self.release_lost(out);
        }
    }

    /// The session of a client has ended. `is_unreachable` is true if only the link to its server has ended.
    pub(super) fn handle_disconnected(
        &mut self,
        out: &mut Out<'_, '_>,
        session: &SessionInfo,
        reason: &DisconnectReason,
        is_unreachable: bool,
    ) {
        self.controllers.handle_disconnected(out, session);
        self.cncis
            .handle_disconnected(session, &addresses(&self.starts, &self.tenants));
        self.streams.handle_disconnected(out, session);
        let node = session.uuid();
        // Only a node that ended its session in order, or has another one already, is expected to return. If the
        // connection was lost, the node may be dead.
        let may_return = matches!(reason, DisconnectReason::PeerClosed | DisconnectReason::Replaced);
        let returns = || self.starts.handle_node_disconnected(node, may_return);
        if self.nodes.handle_disconnected(out, session, returns) {
            if !is_unreachable {
                self.handle_away(out, node);
            }
            self.starts.handle_node_changed(out, node);
        }
    }

    /// A node counts as away from now on.
    pub(super) fn handle_away(&mut self, out: &mut Out<'_, '_>, node: Uuid) {
        let has_address = |instance| self.tenants.has_address(instance);
        self.starts.instances.node_left(node, has_address, out.now());
        self.release_lost(out);
    }

    /// Handles STATS of a node.
    pub(super) fn handle_stats(&mut self, out: &mut Out<'_, '_>, from: &SessionInfo, frame: &Frame) {
        let (node, now) = (from.uuid(), out.now());
        let stats = match StatsSummary::read(frame.payload_bytes()) {
            Ok(stats) => stats,
            Err(e) => return self.reports.reject(out, from, frame, &e),
        };
        if stats.node_uuid != node {
            let about = format_args!("of node {}", stats.node_uuid);
            return self.reports.reject(out, from, frame, &about);
        }
        // The node is not stale, even if some of the listed instances are not its own.
        let (interval, was_stale) = self.nodes.handle_stats(node, stats.interval, now);
        let report = self
            .starts
            .instances
            .report(node, &stats.instances, interval, now);
        for (instance, _) in &stats.instances {
            // A START that is not done yet does not show that no other node has the instance.
            if !report.foreign.contains(instance) && !self.starts.instances.is_starting(*instance) {
                self.tenants.handle_known(*instance);
            }
        }
        for instance in self.commands.report(node, &stats, now) {
            self.starts.moves.user_ended(instance);
        }
        let mut forwarded = Some(frame.clone());
        if let Some(one) = report.foreign.iter().next() {
            let why = format_args!("instance {one} and {} others in all", report.foreign.len() - 1);
            self.reports.reject(out, from, frame, &why);
            forwarded = without(frame, &report.foreign);
        }
        if let Some(forwarded) = forwarded {
            out.forward_to_controllers(from, &forwarded);
            let own = stats.instances.len() - report.foreign.len().min(stats.instances.len());
            self.nodes.keep_stats(node, &forwarded, own);
        }
        // Failures follow the STATS that explain them.
        self.starts.handle_report(out, node, report);
        if self.tenants.fault().is_none() {
            self.cncis
                .handle_stats(out, node, &addresses(&self.starts, &self.tenants));
        }
        // Last, because parked STARTs may be sent to the node now.
        if was_stale {
            self.starts.handle_stale(out, node, false);
        }
    }

    /// Handles READY, FULL, OFFLINE or MAINTENANCE of a node.
    pub(super) fn handle_status(&mut self, out: &mut Out<'_, '_>, from: &SessionInfo, frame: &Frame) {
        let node = from.uuid();
        let status = Status(frame.kind().operand);
        let read = match status {
            Status::READY => frame.payload().map(Some),
            Status::MAINTENANCE => frame.payload().map(|maintenance: Maintenance| maintenance.ready),
            _ => Ok(None),
        };
        if let Err(e) = &read {
            limited!(warn, out, node, "status unreadable";
                "{from}: {status} cannot be read: {}", excerpt(e));
            out.refuse(from, frame, &e.into());
            // An unreadable READY has no information about the node's room, so the last status
            // remains. The other statuses do not need their payload.
            if status == Status::READY {
                return;
            }
        }
        self.nodes.handle_status(out, from, status);
        let ready = read.ok().flatten();
        self.starts.handle_status(out, node, status, ready.as_ref());
    }

    /// Handles a command of a controller for itself or for a client that it names.
    pub(super) fn handle_command(&mut self, out: &mut Out<'_, '_>, from: &SessionInfo, frame: &Frame) {
        if frame.kind() == Command::START {
            if self.starts.handle_start(out, from, frame) {
                let is_announced = |cnci| self.cncis.is_announced(cnci);
                let leased = self.tenants.lease_for(from, frame, out.now(), is_announced);
                self.handle_leased(out, from, frame, leased);
            }
        } else if frame.kind().is_of_streams() {
            let instances = &self.starts.instances;
            let find = |instance| {
                let node = instances.node_of(instance);
                node.ok_or_else(|| match instances.taken(instance) {
                    Some(_) => format!("instance {instance} waits for a node"),
                    None => format!("no node has instance {instance}"),
                })
            };
            self.streams.handle_command(out, from, frame, find);
        } else {
            self.relay(out, from, frame);
        }
    }

    /// Takes up what follows from a write of the tenants that has ended. A former leader does so, too.
    pub(super) fn handle_written(&mut self, out: &mut Out<'_, '_>) {
        let proceeded = self.tenants.proceed(out);
        for instance in proceeded.freed {
            self.starts.instances.handover.record_gone(instance);
        }
        for (from, frame, written) in proceeded.starts {
            let leased = written.map(|()| Leased::Start(frame.clone()));
            let leased = leased.map_err(|why| (Reason::FullCloud, why));
            self.handle_leased(out, &from, &frame, leased);
        }
    }

    /// Answers the STARTs that wait when the scheduler stops.
    pub(super) fn refuse_waiting(&mut self, out: &mut Out<'_, '_>) {
        self.starts.refuse_parked(out);
        for (from, frame) in self.tenants.take_starts() {
            let why = "the scheduler stops".to_owned();
            let refused = Err((Reason::FullCloud, why));
            self.handle_leased(out, &from, &frame, refused);
        }
    }

    /// Handles a START that has named a tenant: it is placed, waits for the disk, or is refused.
    fn handle_leased(
        &mut self,
        out: &mut Out<'_, '_>,
        from: &SessionInfo,
        frame: &Frame,
        leased: Result<Leased, (Reason, String)>,
    ) {
        match leased {
            Ok(Leased::Start(leased)) => self.starts.handle_leased(out, from, &leased),
            Ok(Leased::Waits(instance)) => self.starts.instances.park(instance),
            Err((reason, why)) => self.starts.refuse(out, from, frame, reason, &why),
        }
    }

    /// Forwards a controller's command. Refuses it if its receiver is not connected, or if the
    /// instance belongs to another node than the named one.
    fn relay(&mut self, out: &mut Out<'_, '_>, from: &SessionInfo, frame: &Frame) {
        let command = Command(frame.kind().operand);
        let Addressed { to, role, instance } = match Addressed::read(frame) {
            Some(Ok(addressed)) => addressed,
            Some(Err(e)) => {
                limited!(info, out, from.uuid(), "refused"; "{from}: {command} refused: {}", excerpt(&e));
                return out.refuse(from, frame, &e.into());
            }
            None => return,
        };
        if command == Command::ASSIGN_PUBLIC_IP
            && let Ok(AssignPublicIp { public_ip, .. }) = frame.payload()
            && let Some(holder) = self.cncis.other_holder(&to, &public_ip)
        {
            // Packets of the underlay would reach either of them.
            let why = format!("{public_ip}: concentrator {holder} has it");
            return out.refuse(from, frame, &Refused::new(Reason::AssignFailure, why));
        }
        // If two nodes have an instance, it can be deleted on the node to which it does not belong.
        let is_second = command == Command::DELETE
            && instance
                .zip(to.uuid())
                .is_some_and(|(instance, node)| self.starts.instances.lists_foreign(instance, node));
        // The named node would answer that it has no such instance, although another node has it.
        let owner = instance.and_then(|instance| self.starts.instances.node_of(instance));
        if !is_second && owner.is_some_and(|owner| to != owner) {
            return out.refuse(from, frame, &Reason::NotConnected.into());
        }
        if let Err(refused) = relay::forward(out, from, frame, (&to, role)) {
            return out.refuse(from, frame, &refused);
        }
        if let Some(instance) = instance.filter(|_| !is_second) {
            self.starts.handle_command(instance);
        }
        let Some(node) = to.uuid() else { return };
        if let Some(instance) = instance {
            let has_ended = self.starts.instances.has_ended(instance);
            self.commands.add(node, instance, has_ended, frame, out.now());
        }
        match command {
            Command::EVACUATE => {
                let moves = frame.payload().is_ok_and(|evacuate: Evacuate| evacuate.moves);
                let ending = moves.then(|| self.commands.ending(node));
                self.starts.handle_evacuate(out, from, node, ending.as_ref());
            }
            Command::RESTORE => self.starts.handle_restore(node),
            _ => {}
        }
    }

    /// Handles the event of an agent or a concentrator.
    pub(super) fn handle_event(&mut self, out: &mut Out<'_, '_>, from: &SessionInfo, frame: &Frame) {
        match Event(frame.kind().operand) {
            Event::TENANT_ADDED | Event::TENANT_REMOVED => {
                let addresses = addresses(&self.starts, &self.tenants);
                if let Err(agent) = self.cncis.handle_tenant(out, from, frame, &addresses) {
                    let about = format_args!("of agent {agent}");
                    self.reports.reject(out, from, frame, &about);
                }
            }
            Event::TRACE_REPORT => self.reports.handle_trace(out, from, frame),
            _ if frame.kind().is_of_streams() => {
                if let Some(id) = self.streams.handle_event(out, from, frame) {
                    let about = format_args!("of stream {id}");
                    self.reports.reject(out, from, frame, &about);
                }
            }
            event => self.handle_report(out, from, frame, event),
        }
    }

    /// Handles the report of an agent or a concentrator, which is for the controllers.
    fn handle_report(&mut self, out: &mut Out<'_, '_>, from: &SessionInfo, frame: &Frame, event: Event) {
        // Checked first: a report on an instance of another node would free that UUID.
        let is_foreign = |instance| self.starts.instances.is_foreign(instance, from.uuid());
        let Some(subject) = self.reports.own_subject(out, from, frame, is_foreign) else {
            return;
        };
        // First, because the failures and STARTs that the event causes follow it.
        out.forward_to_controllers(from, frame);
        let is_kept = event == Event::INSTANCE_STOPPED;
        if is_kept || event == Event::INSTANCE_DELETED {
            if let Some(instance) = subject.instance_uuid.uuid() {
                if self.commands.ended(from.uuid(), instance) {
                    self.starts.moves.user_ended(instance);
                }
                self.tenants.handle_known(instance);
                self.starts.handle_ended(out, instance, is_kept);
            }
            self.nodes.keep_event(from.uuid(), frame);
            return;
        }
        self.cncis.handle_event(from, frame);
        if event == Event::PUBLIC_IP_ASSIGNED
            && let Ok(public) = frame.payload::<PublicIpAssigned>()
            && let Some(instance) = public.instance_uuid.uuid()
            && self.tenants.is_outdated(&public)
        {
            self.release_public_ips(out, Some(instance));
        }
    }

    /// Handles the failure of an agent or a concentrator, which is for the controllers.
    pub(super) fn handle_failure(&mut self, out: &mut Out<'_, '_>, from: &SessionInfo, frame: &Frame) {
        if frame.kind() == ErrorCode::INVALID_FRAME_TYPE {
            self.reports.handle_invalid_frame(out, from, frame);
            // An agent of an old version answers OpenStream with it.
            return self.streams.handle_invalid_frame(out, from, frame);
        }
        let is_foreign = |instance| self.starts.instances.is_foreign(instance, from.uuid());
        let Some(subject) = self.reports.own_subject(out, from, frame, is_foreign) else {
            return;
        };
        if frame.kind() == ErrorCode::START_FAILURE {
            match frame.payload::<StartFailure>() {
                Err(_) => self.reports.reject(out, from, frame, &"it cannot be read"),
                Ok(failure) if !self.starts.handle_failure(out, from, frame, &failure) => {
                    self.reports.reject(out, from, frame, &failure.instance_uuid);
                }
                Ok(_) => {}
            }
            return;
        }
        // A failure of the scheduler's own DELETE is not forwarded: controllers did not send it.
        let has_no_instance = |failure: DeleteFailure| failure.reason == Reason::NoInstance;
        if frame.kind() == ErrorCode::DELETE_FAILURE
            && frame.payload().is_ok_and(has_no_instance)
            && let Some(instance) = subject.instance_uuid.uuid()
            && self.starts.handle_no_instance(instance)
        {
            return;
        }
        if let Some(answer) = self.commands.answer_of(from, frame, out.now()) {
            out.forward_to_controllers(from, &answer);
        }
    }

    /// Handles a Tenant of a controller.
    pub(super) fn handle_tenant(&mut self, out: &mut Out<'_, '_>, from: &SessionInfo, frame: &Frame) {
        let Ok(asked) = frame.payload::<Tenant>() else {
            return out.invalid_frame(from, frame.kind(), &Reason::InvalidData);
        };
        let released = asked.instance_uuid.uuid();
        // A Release that is refused, or that frees nothing, must not end the instance.
        let released = released.filter(|instance| {
            asked.action == TenantAction::Release && self.tenants.may_release(&asked, *instance)
        });
        let in_use = released.and_then(|instance| self.prepare_release(out, instance, asked.lost));
        let instances = &self.starts.instances;
        let place = |address: &mut TenantAddress| {
            let instance = address.instance_uuid.uuid().unwrap_or_default();
            let Some((_, node)) = instances.taken(instance) else {
                return "unclaimed".clone_into(&mut address.state);
            };
            address.node_uuid = node.map(Id::from).unwrap_or_default();
            if instances.is_unknown(instance) {
                "unknown".clone_into(&mut address.state);
            }
        };
        // The instance has its address again, and no node. The other schedulers are told so now: a next leader that found
        // this out itself would free the address.
        if let Some(instance) = self.tenants.handle_command(out, from, &asked, in_use, place) {
            self.starts.instances.handover.record_gone(instance);
        }
    }

    /// Prepares the release of the address of an instance: with `lost`, the instance ends if its node is away, or not
    /// known. Returns the reason if the address cannot be released.
    fn prepare_release(&mut self, out: &mut Out<'_, '_>, instance: Uuid, lost: bool) -> Option<String> {
        let Some(taken) = self.starts.instances.taken(instance) else {
            if lost {
                self.starts.end_with_node(out, instance);
            } else if self.tenants.is_of_unknown_node(instance) {
                return Some(
                    "no node has listed this instance since this scheduler began, and one that is away may still \
                     have it: if that node is lost for good, release the address as lost"
                        .to_owned(),
                );
            }
            return None;
        };
        match taken {
            (_, None) => Some("the START of this instance waits for a node".to_owned()),
            (_, Some(node)) if !self.starts.instances.is_unknown(instance) => Some(format!(
                "node {node} has this instance: delete it, which frees its address"
            )),
            (_, Some(node)) if !lost => Some(format!(
                "node {node}, which is away, may still have this instance: if the node is lost for good, \
                 revoke its certificates, or release the address as lost"
            )),
            (_, Some(node)) => {
                let tunnel = self.tenants.tunnel_of(instance, node);
                if tunnel.is_some_and(|tunnel| !self.cncis.close_tunnel(out, &tunnel)) {
                    return Some(
                        "the concentrator of the tenant is away, and has to be told first".to_owned(),
                    );
                }
                self.starts.end_with_node(out, instance);
                None
            }
        }
    }

    /// These are the lost nodes from now on. [`release_lost`](Self::release_lost) ends their instances.
    pub(super) fn handle_lost(&mut self, lost: BTreeSet<Uuid>) {
        self.lost = lost;
    }

    /// Ends the instances of lost nodes; those that have an address, once their concentrator has been told.
    pub(super) fn release_lost(&mut self, out: &mut Out<'_, '_>) {
        if self.tenants.fault().is_some() {
            return;
        }
        for node in &self.lost {
            let mut told = HashMap::new();
            for instance in self.starts.instances.of_away(*node) {
                let is_told = self.tenants.tunnel_of(instance, *node).is_none_or(|tunnel| {
                    let cnci = tunnel.concentrator_uuid.clone();
                    *told
                        .entry(cnci)
                        .or_insert_with(|| self.cncis.close_tunnel(out, &tunnel))
                });
                if is_told {
                    self.starts.end_with_node(out, instance);
                }
            }
        }
    }

    /// Handles the time limits that are over.
    pub(super) fn expire(&mut self, out: &mut Out<'_, '_>) {
        while let Some(node) = self.nodes.take_departed(out.now()) {
            self.starts.handle_node_departed(out, node);
        }
        while let Some(node) = self.nodes.expire(out) {
            self.starts.handle_stale(out, node, true);
        }
        self.starts
            .expire(out, |instance| self.tenants.has_address(instance));
        self.commands.expire(out);
    }

    /// Frees the addresses of instances that are gone, takes back their public addresses, and sends
    /// the other schedulers what has changed, if this is one of several: `is_shared`. Called after each event.
    pub(super) fn finish(&mut self, out: &mut Out<'_, '_>, is_shared: bool) {
        self.tell_moved(out);
        for instance in self.starts.take_left() {
            // The node of an instance that an earlier scheduler started may not have connected yet, also if another
            // one has refused its START.
            if !self.tenants.is_of_unknown_node(instance) {
                self.tenants.free(instance, is_shared);
            }
        }
        for instance in self.tenants.take_released() {
            self.release_public_ips(out, Some(instance));
        }
        self.starts.send_intents(out);
        // Until the engine has the table without its address, the others keep the intent of an instance
        // that is gone. If this leader ends before that, the next one finds that the instance is gone, and
        // frees the address.
        let mut gone = self.starts.take_gone();
        gone.retain(|intent| !self.tenants.unwritten.is_freeing(intent.instance));
        if is_shared {
            out.send_intents(&gone);
        }
    }

    /// Tells concentrators of the instances that have come to a node or left one, before their addresses are freed. While
    /// the engine's table cannot be read, this waits.
    fn tell_moved(&mut self, out: &mut Out<'_, '_>) {
        if self.tenants.fault().is_some() {
            return;
        }
        let tunnels = self.starts.instances.take_moved().into_iter();
        let tunnels = tunnels.filter_map(|(instance, node)| {
            let tunnel = self.tenants.tunnel_of(instance, node)?;
            Some(((tunnel.concentrator_uuid.uuid()?, node), tunnel))
        });
        let tunnels: BTreeMap<_, _> = tunnels.collect();
        self.cncis
            .handle_moved(out, &tunnels, &addresses(&self.starts, &self.tenants));
    }

    /// The engine's table could not be read before. Concentrators were told nothing from the outdated one.
    pub(super) fn handle_mended(&mut self, out: &mut Out<'_, '_>) {
        self.note_adopted();
        self.tell_moved(out);
        self.free_again();
        self.cncis
            .handle_mended(out, &addresses(&self.starts, &self.tenants));
        self.release_public_ips(out, None);
        self.release_lost(out);
    }

    /// Takes back the public addresses that are outdated: those of this instance, or of all.
    fn release_public_ips(&self, out: &mut Out<'_, '_>, of: Option<Uuid>) {
        let is_outdated = |ip: &PublicIpAssigned| self.tenants.is_outdated(ip);
        self.cncis.release_public_ips(out, of, is_outdated);
    }

    /// The nodes of the instances that were adopted are known, also before they report.
    fn note_adopted(&mut self) {
        let instances = &self.starts.instances;
        self.tenants
            .handle_adopted(|instance| instances.node_of(instance).is_some());
    }

    /// Frees again what was freed without the engine's table. The other schedulers are told unless that waits for a
    /// write.
    fn free_again(&mut self) {
        for instance in self.tenants.unwritten.take_freed() {
            if self.starts.instances.taken(instance).is_none() {
                self.tenants.free(instance, true);
            }
            self.starts.instances.handover.record_gone(instance);
        }
    }

    /// True if the client is a controller, which gets a snapshot.
    pub(super) fn is_controller(session: &SessionInfo) -> bool {
        session.role().intersects(Role::CONTROLLER)
    }
}

/// The subnet of a concentrator, and the addresses there that lead to a node: those of its instances. `None` if no
/// tenant has this concentrator.
fn addresses<'a>(
    starts: &'a Starts,
    tenants: &'a TenantTable,
) -> impl Fn(Uuid, Uuid) -> Option<(Ipv4Net, Vec<Ipv4Addr>)> + 'a {
    move |cnci, node| {
        if tenants.fault().is_some() {
            // The present table is outdated, so concentrators keep the tunnels that they have.
            return Some(Default::default());
        }
        let (subnet, all) = tenants.addresses_of(cnci)?;
        let there = all
            .iter()
            .filter(|(_, instance)| starts.instances.node_of(**instance) == Some(node));
        Some((subnet, there.map(|(ip, _)| *ip).collect()))
    }
}
