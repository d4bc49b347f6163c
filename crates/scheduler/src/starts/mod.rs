//! A START from its arrival until it is confirmed or answered, and the instance that it makes.
//! Each START has an answer.
//!
//! ```text
//!            ┌── it exists, or is being started: already_running, instance_exists
//!            │   to the controller that sent it
//!  START ────┤
//!            ├─ fits a ready node ──▶ sent ──┬─ STATS: it runs, or has ended
//!            │                          ▲    ├─ StartFailure ────────────────────┐
//!            │                        READY  └─ no sign in time: launch_failure ─┤
//!            │                          │                                        ▼
//!            ├─ fits a waiting node ──▶ parked ─ too many, too long, a stop: full_cloud
//!            │                             ╲╲── no such node any more: full_cloud
//!            │                              ╲── a node runs the instance: already_running
//!            └─ no node, no room: full_cloud, no_cn, no_net_cn
//! ```
//!
//! It knows no sessions, no controllers and no tenants.
//!
//! | file | owns |
//! |---|---|
//! | `unplaced` | a START that has been read and not been sent to a node yet |
//! | `parked` | a START that waits for the READY of a node |
//! | `instances` | the node and state of each instance, and STARTs in flight |
//! | `moves` | instances that are started elsewhere when their node is evacuated |
//! | `ledger` | the file that keeps the node of each instance for the next scheduler |

mod instances;
mod ledger;
mod moves;
mod parked;
mod unplaced;

use std::collections::HashSet;
use std::io;
use std::path::Path;
use std::time::Instant;

use log::{debug, info, warn};
use uuid::Uuid;

use self::instances::{Instances, PendingStart, Report, StartFailed};
use self::ledger::Ledger;
use self::moves::Moves;
use self::parked::ParkedStart;
use self::unplaced::UnplacedStart;
use super::config::SchedulerConfig;
use super::figures::StartFigures;
use super::messages::{Intent, StartState};
use super::out::{Out, limited};
use super::parking::{ParkingQueue, detached, with_trace_of};
use super::placement::{Allocation, Placement, Siblings, Suspension, Verdict};
use ssntp::Role;
use ssntp::payload::Id;
use ssntp::proto::{Frame, Status};
use ssntp::server::{SendError, SessionInfo};
use ssntp_payload::{Delete, Ready, Reason, StartFailure};
use ssntp_transport::excerpt;

/// The maximum number of nodes to which a START is sent if each refuses it because it is full or in
/// maintenance. The policy of a node may refuse a START although the node has room.
const MAX_NODES: u8 = 4;

/// The STARTs and their instances.
#[derive(Debug)]
pub(crate) struct Starts {
    placement: Placement,
    parked: ParkingQueue<ParkedStart>,
    pub(crate) instances: Instances,
    pub(crate) moves: Moves,
    figures: StartFigures,
    /// The instances that have left their nodes, or whose STARTs have failed. Unless they are taken again, their
    /// addresses are free. A node that this scheduler does not know yet may have them nevertheless.
    left: Vec<Uuid>,
}

impl Starts {
    pub(crate) fn new(config: &SchedulerConfig) -> Self {
        Self {
            placement: Placement::new(config.policy),
            parked: ParkingQueue::new(config.held_starts, config.held_bytes, config.held_time),
            instances: Instances::new(config.in_flight, config.starts),
            moves: Moves::default(),
            figures: StartFigures::default(),
            left: Vec::new(),
        }
    }

    /// STARTs without any state, which go on with these figures.
    pub(crate) fn renewed(&mut self, config: &SchedulerConfig) -> Self {
        let mut renewed = Self::new(config);
        renewed.figures = std::mem::take(&mut self.figures);
        renewed
    }

    /// Adopts the node of each instance that an earlier scheduler has kept in this directory, and keeps
    /// further changes there. `has_address` is true for the instances that have an address in a tenant's
    /// network.
    pub(crate) fn keep_in(
        &mut self,
        directory: &Path,
        has_address: impl Fn(Uuid) -> bool,
        now: Instant,
    ) -> io::Result<()> {
        let (ledger, owners) = Ledger::open(directory)?;
        let owners = owners.into_iter().map(|(instance, node)| Intent {
            instance,
            node: Some(node),
            state: StartState::Answered,
        });
        // No agent has connected yet.
        self.instances.adopt(owners, |_| false, has_address, now);
        self.instances.handover.keep_in(ledger);
        Ok(())
    }

    /// Adopts the intents of the previous leader, and records changes for the other schedulers from
    /// now on.
    pub(crate) fn adopt(
        &mut self,
        intents: Vec<Intent>,
        is_connected: impl Fn(Uuid) -> bool,
        has_address: impl Fn(Uuid) -> bool,
        now: Instant,
    ) {
        for intent in &intents {
            if let StartState::InFlight { command_id, .. } = &intent.state {
                self.moves.adopt(intent.instance, command_id);
            }
        }
        self.instances.adopt(intents, is_connected, has_address, now);
        self.instances.handover.record_intents();
    }

    /// The intents for a scheduler that knows none.
    pub(crate) fn intents(&self) -> Vec<Intent> {
        self.instances.intents(|instance| self.moves.command_id(instance))
    }

    /// Sends the intents that have changed since the last call, without the instances that are gone.
    pub(crate) fn send_intents(&mut self, out: &mut Out<'_, '_>) {
        out.send_intents(&self.instances.handover.take_intents());
    }

    /// The intents for the instances that are gone since the last call.
    pub(crate) fn take_gone(&mut self) -> Vec<Intent> {
        self.instances.catch_up(false);
        let gone = self.instances.take_gone();
        gone.iter()
            .for_each(|intent| self.moves.handle_gone(intent.instance));
        gone
    }

    /// The instances that have left their nodes since the last call, or whose STARTs have failed, so that only a node
    /// that has not reported yet may have them.
    pub(crate) fn take_left(&mut self) -> Vec<Uuid> {
        let mut left = std::mem::take(&mut self.left);
        // A node may have the instance or still start it.
        left.retain(|instance| self.instances.taken(*instance).is_none());
        left
    }

    /// An operator says that the node of an instance is lost for good, so the instance has ended.
    pub(crate) fn end_with_node(&mut self, out: &mut Out<'_, '_>, instance: Uuid) {
        if let Some(pending) = self.instances.end_with_node(instance) {
            self.handle_unanswered(out, instance, &pending);
        }
        self.left.push(instance);
    }

    pub(crate) fn figures(&self) -> StartFigures {
        StartFigures {
            held: self.parked.len(),
            held_bytes: self.parked.bytes(),
            in_flight: self.instances.in_flight(),
            ..self.figures.clone()
        }
    }

    /// The time at which the first time limit of a START is over.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        let all = [self.parked.next_deadline(), self.instances.next_deadline()];
        all.into_iter().flatten().min()
    }

    /// Takes the parked STARTs, each with the controller that sent it.
    pub(crate) fn take_parked(&mut self) -> Vec<(Uuid, Frame)> {
        let parked = std::iter::from_fn(|| self.parked.take(0));
        parked
            .map(|parked| (parked.start.from, parked.start.frame))
            .collect()
    }

    /// Handles a START of a controller. True if it is left to the caller, because it names a tenant, and its
    /// instance needs an address in the tenant's network first.
    pub(crate) fn handle_start(&mut self, out: &mut Out<'_, '_>, from: &SessionInfo, frame: &Frame) -> bool {
        self.figures.received += 1;
        match UnplacedStart::read(from.uuid(), frame.clone(), out.now()) {
            Ok(start) if self.instances.taken(start.instance).is_some() => self.refuse_taken(out, &start),
            Ok(start) if start.lacks_address => return true,
            Ok(start) => self.place(out, Some(from), start),
            Err(e) => {
                limited!(info, out, from.uuid(), "START refused";
                    "{from}: START refused: {}", excerpt(&e));
                let reason = Reason::from(&e);
                self.figures.failed(reason.word(), out.now(), out.now());
                out.refuse(from, frame, &e.into());
            }
        }
        false
    }

    /// Handles a START whose instance has an address now, or needs none.
    pub(crate) fn handle_leased(&mut self, out: &mut Out<'_, '_>, from: &SessionInfo, frame: &Frame) {
        if let Ok(start) = UnplacedStart::read(from.uuid(), frame.clone(), out.now()) {
            self.instances.unpark(start.instance);
            // A node may have listed the instance while the address was written.
            if self.instances.taken(start.instance).is_some() {
                self.refuse_taken(out, &start);
            } else {
                self.place(out, Some(from), start);
            }
        }
    }

    /// Answers a START whose instance can have no address.
    pub(crate) fn refuse(
        &mut self,
        out: &mut Out<'_, '_>,
        from: &SessionInfo,
        frame: &Frame,
        reason: Reason,
        why: &str,
    ) {
        if let Ok(start) = UnplacedStart::read(from.uuid(), frame.clone(), out.now()) {
            self.figures.failed(reason.word(), start.received, out.now());
            self.instances.unpark(start.instance);
            let mut failure = start.failure(reason);
            failure.detail = excerpt(&why).to_string();
            out.tell_controllers(&failure);
        }
    }

    /// Answers a START of an instance that exists. Only its sender gets this failure, which would also
    /// settle the START of another controller for the same instance.
    fn refuse_taken(&mut self, out: &mut Out<'_, '_>, start: &UnplacedStart) {
        if let Some((reason, node)) = self.instances.taken(start.instance) {
            self.figures.failed(reason.word(), start.received, out.now());
            let mut failure = start.failure(reason);
            failure.node_uuid = node.map(Id::from).unwrap_or_default();
            out.send(start.from, &Frame::of(&failure));
        }
    }

    /// Sends a START to a node, holds it, or answers it. `from` is its sender if the START has
    /// just arrived, so that its trace can be forwarded.
    fn place(&mut self, out: &mut Out<'_, '_>, from: Option<&SessionInfo>, start: UnplacedStart) {
        if let Some((start, reason)) = self.try_place(out, from, start) {
            self.refuse_start(out, &start, reason, None);
        }
    }

    /// Like [`place`](Self::place), but returns a START that must be answered, with the reason.
    fn try_place(
        &mut self,
        out: &mut Out<'_, '_>,
        from: Option<&SessionInfo>,
        mut start: UnplacedStart,
    ) -> Option<(UnplacedStart, Reason)> {
        // Checked before a node makes an allocation.
        if self.instances.is_full() {
            limited!(warn, out, start.from, "too many in flight";
                "START of {}: too many are in flight", start.instance);
            return Some((start, Reason::FullCloud));
        }
        let instance = start.instance;
        loop {
            let siblings = self.instances.siblings(&start.needs.apart_from);
            let reason = match self.placement.place(&start.needs, Some(start.from), &siblings) {
                // If the START cannot be sent to a node, that node is closed, so this loop ends.
                Verdict::Placed(allocation) => match self.deliver(out, from, start, allocation) {
                    None => return None,
                    Some(back) => {
                        start = back;
                        continue;
                    }
                },
                Verdict::Wait(node) if self.parked.has_room(start.frame.encoded_len()) => {
                    start.frame = with_trace_of(&start.frame, detached(&start.frame));
                    let bytes = start.frame.encoded_len();
                    self.parked.push(ParkedStart { start, node }, bytes, out.now());
                    self.instances.park(instance);
                    return None;
                }
                // It may run beside its siblings.
                Verdict::Wait(_) if !std::mem::take(&mut start.needs.apart_from).is_empty() => continue,
                Verdict::Wait(_) | Verdict::NoRoom => Reason::FullCloud,
                Verdict::NoNode if start.needs.network_node => Reason::NoNetCn,
                Verdict::NoNode => Reason::NoCn,
            };
            return Some((start, reason));
        }
    }

    /// Answers a START that was not sent to a node. Without a `detail`, the failure has what is missing.
    fn refuse_start(
        &mut self,
        out: &mut Out<'_, '_>,
        start: &UnplacedStart,
        reason: Reason,
        detail: Option<String>,
    ) {
        let is_full = reason == Reason::FullCloud;
        let missing = || is_full.then(|| self.placement.missing(&start.needs))?;
        let detail = detail.or_else(missing).unwrap_or_default();
        debug!(target: "ssntp::scheduler", "START of {}: {reason}", start.instance);
        self.figures.failed(reason.word(), start.received, out.now());
        self.instances.unpark(start.instance);
        self.left.push(start.instance);
        let failure = StartFailure {
            detail,
            ..start.failure(reason)
        };
        out.tell_controllers(&failure);
    }

    /// Sends a START to the node that was found. Returns the START if that node cannot be reached. A START
    /// that no node can be sent is answered.
    fn deliver(
        &mut self,
        out: &mut Out<'_, '_>,
        from: Option<&SessionInfo>,
        start: UnplacedStart,
        allocation: Allocation,
    ) -> Option<UnplacedStart> {
        let (instance, node) = (start.instance, allocation.node);
        self.instances.assign(&start, allocation, out.now());
        // Sent before the START: if this scheduler ends now, the next one knows of the START.
        self.send_intents(out);
        match out.deliver(from, node, &start.frame) {
            Ok(()) => {
                debug!(target: "ssntp::scheduler", "START of {instance} goes to {node}");
                self.figures.given += 1;
                self.moves.remember(&start);
                None
            }
            Err(e) => {
                limited!(warn, out, node, "START not sent"; "START of {instance} for {node}: {e}");
                self.instances.unassign(instance);
                if matches!(e, SendError::NotConnected(_)) {
                    self.placement.close(node);
                    return Some(start);
                }
                // It is too long: a START grows with the lease of its address.
                self.placement.take_back(&allocation);
                self.refuse_start(out, &start, Reason::InvalidData, Some(e.to_string()));
                None
            }
        }
    }

    /// Places parked STARTs after a change of a node: they may fit it now, or no longer fit it.
    pub(crate) fn handle_node_changed(&mut self, out: &mut Out<'_, '_>, node: Uuid) {
        let mut at = 0;
        while let Some((ParkedStart { start, .. }, allocation)) = self.parked.take_next(&mut at, |parked| {
            parked.decide(node, &mut self.placement, &self.instances)
        }) {
            let back = match allocation {
                Some(allocation) => self.deliver(out, None, start, allocation),
                None => Some(start),
            };
            if let Some(start) = back {
                self.place(out, None, start);
            }
        }
    }

    /// Answers STARTs that were parked too long, and those that no node has answered in time. Forgets the
    /// instances of nodes that are away for too long, but not those with addresses.
    pub(crate) fn expire(&mut self, out: &mut Out<'_, '_>, has_address: impl Fn(Uuid) -> bool) {
        let now = out.now();
        while let Some(ParkedStart { mut start, .. }) = self.parked.expire(now) {
            // It may have waited for a node with fewer siblings than another one that is ready.
            let verdict = self
                .placement
                .place(&start.needs, Some(start.from), &Siblings::new());
            if let Verdict::Placed(allocation) = verdict {
                match self.deliver(out, None, start, allocation) {
                    None => continue,
                    Some(back) => start = back,
                }
            }
            limited!(info, out, start.from, "no READY in time";
                "START of {}: no node has sent READY in time", start.instance);
            self.refuse_start(out, &start, Reason::FullCloud, None);
        }
        for (instance, pending) in self.instances.expire(has_address, now) {
            self.handle_unanswered(out, instance, &pending);
            // If the node starts the instance later, it must not run, because its START has failed.
            delete_given_up(out, instance, pending.allocation.node);
        }
    }

    /// Answers parked STARTs when the scheduler stops. STARTs that were sent to nodes are not
    /// answered: the nodes report their outcome to the next scheduler.
    pub(crate) fn refuse_parked(&mut self, out: &mut Out<'_, '_>) {
        while let Some(ParkedStart { start, .. }) = self.parked.take(0) {
            self.refuse_start(out, &start, Reason::FullCloud, None);
        }
    }

    /// Answers a START with a failure, because its node has not answered it.
    fn handle_unanswered(&mut self, out: &mut Out<'_, '_>, instance: Uuid, pending: &PendingStart) {
        let node = pending.allocation.node;
        self.figures.failed("no_answer", pending.received, out.now());
        self.left.push(instance);
        limited!(warn, out, node, "STARTs lost";
            "START of {instance}: node {node} has not reported its outcome");
        let failure = StartFailure {
            node_uuid: node.into(),
            instance_uuid: instance.into(),
            reason: Reason::LaunchFailure,
            restart: pending.restart,
            detail: "its node has not said what became of it".into(),
            command_id: self.moves.command_id(instance),
        };
        out.tell_controllers(&failure);
    }

    /// Handles the news in STATS of a node.
    pub(crate) fn handle_report(&mut self, out: &mut Out<'_, '_>, node: Uuid, report: Report) {
        for instance in report.parked {
            let is_it = |parked: &mut ParkedStart| (parked.start.instance == instance).then_some(());
            if let Some((parked, ())) = self.parked.take_next(&mut 0, is_it) {
                self.refuse_taken(out, &parked.start);
            }
        }
        for received in report.started {
            self.figures.started(received, out.now());
        }
        for (instance, pending) in report.failed {
            self.handle_unanswered(out, instance, &pending);
        }
        for instance in report.unwanted {
            delete_given_up(out, instance, node);
        }
        for instance in report.gone {
            // Usually InstanceStopped has moved it before, but that event may be lost.
            self.move_on(out, instance);
            self.left.push(instance);
        }
    }

    /// Handles InstanceStopped (`is_kept`) or InstanceDeleted of the node to which an instance
    /// belongs.
    pub(crate) fn handle_ended(&mut self, out: &mut Out<'_, '_>, instance: Uuid, is_kept: bool) {
        // Any node may send this about an instance that this scheduler does not know.
        let was_known = self.instances.node_of(instance).is_some();
        if let Some(received) = self.instances.ended(instance, is_kept) {
            self.figures.started(received, out.now());
        }
        if is_kept {
            self.move_on(out, instance);
        } else if was_known {
            self.left.push(instance);
        }
    }

    /// Handles `no_instance` of a node; true if it answers the DELETE of an instance whose START was
    /// given up.
    pub(crate) fn handle_no_instance(&mut self, instance: Uuid) -> bool {
        let was_given_up = self.instances.free_given_up(instance);
        if was_given_up {
            self.left.push(instance);
        }
        was_given_up
    }

    /// Handles an agent's StartFailure: the answer to its START, unless that was answered before.
    /// False if the instance belongs to another node.
    pub(crate) fn handle_failure(
        &mut self,
        out: &mut Out<'_, '_>,
        from: &SessionInfo,
        frame: &Frame,
        failure: &StartFailure,
    ) -> bool {
        let (node, now) = (from.uuid(), out.now());
        let Some(instance) = failure.instance_uuid.uuid() else {
            // Its START is not known, so a controller may still wait for this answer.
            out.forward_to_controllers(from, frame);
            return true;
        };
        // The id is looked up before `place_again` takes the START. An agent that was restarted since it
        // received the START does not repeat it.
        let command_id = self.moves.command_id(instance);
        let ids = [&command_id, &failure.command_id];
        if ids[0] != ids[1] && ids.iter().all(|id| !id.is_empty()) {
            // The agent repeats the failure of an earlier START of the instance.
            debug!(target: "ssntp::scheduler", "{from}: StartFailure of an earlier START");
            return true;
        }
        let is_refused = matches!(failure.reason, Reason::FullCn | Reason::NodeMaintenance);
        // As for InstanceDeleted.
        let was_known = self.instances.node_of(instance).is_some();
        match self.instances.failed(instance, node, &failure.reason) {
            StartFailed::Answer(pending) => {
                // If another node accepts the START, it is not answered yet.
                if is_refused && self.place_again(out, instance, &pending) {
                    return true;
                }
                self.figures.failed(failure.reason.word(), pending.received, now);
                if command_id == failure.command_id {
                    out.forward_to_controllers(from, frame);
                } else {
                    let named = StartFailure {
                        command_id,
                        ..failure.clone()
                    };
                    out.forward_to_controllers(from, &Frame::of(&named));
                }
                if !is_refused && self.placement.take_back(&pending.allocation) {
                    self.handle_node_changed(out, node);
                }
            }
            // The earlier scheduler may have placed the START on a node that has not connected yet.
            StartFailed::Unknown if is_refused => {
                debug!(target: "ssntp::scheduler", "{from}: StartFailure of a START that another node may have");
                return true;
            }
            StartFailed::Unknown => out.forward_to_controllers(from, frame),
            StartFailed::GivenUp => {
                debug!(target: "ssntp::scheduler", "{from}: StartFailure after its deadline")
            }
            // The first failure freed the address. It may be leased again by now.
            StartFailed::Repeated => {
                debug!(target: "ssntp::scheduler", "{from}: StartFailure again");
                return true;
            }
            StartFailed::Foreign => return false,
        }
        // The node may have an instance that its STATS have not listed yet.
        if was_known && !failure.reason.node_has_instance() {
            self.left.push(instance);
        }
        true
    }

    /// Places a START again that its node has refused because it is full or in maintenance. False
    /// if no other node can take it, if [`MAX_NODES`] have refused it, or if it is not remembered.
    fn place_again(&mut self, out: &mut Out<'_, '_>, instance: Uuid, refused: &PendingStart) -> bool {
        // The instance never ran there, so it needs no move.
        self.moves.cancel(instance);
        let Some((controller, frame)) = self.moves.take(instance).filter(|_| refused.nodes < MAX_NODES)
        else {
            return false;
        };
        // With the first time of arrival, so that the figures count the whole wait.
        let Ok(start) = UnplacedStart::read(controller, frame, refused.received) else {
            return false;
        };
        let (node, nodes) = (refused.allocation.node, refused.nodes);
        // Suspended only during this search, because the node may accept other STARTs.
        self.placement.suspend(node, Suspension::Refusing);
        let back = self.try_place(out, None, UnplacedStart { nodes, ..start });
        self.placement.resume(node, Suspension::Refusing);
        // The node has less room than in its last READY. A new READY follows every START, also a
        // refused one.
        self.placement.await_ready(node);
        back.is_none()
    }

    /// A controller's command for an instance is newer than the instance's move or START, so the START
    /// must not be placed again.
    pub(crate) fn handle_command(&mut self, instance: Uuid) {
        self.moves.cancel(instance);
        if self.instances.is_starting(instance) {
            self.moves.forget(instance);
        }
    }

    /// Handles EVACUATE, which was sent to a node. With `move`, `ending` has the instances that a STOP
    /// or DELETE ends, and the controller receives a StartFailure for each running instance that cannot be moved.
    pub(crate) fn handle_evacuate(
        &mut self,
        out: &mut Out<'_, '_>,
        from: &SessionInfo,
        node: Uuid,
        ending: Option<&HashSet<Uuid>>,
    ) {
        // A READY that the node sent before it received EVACUATE may still arrive.
        self.placement.suspend(node, Suspension::Evacuating);
        if let Some(ending) = ending {
            let mut instances = self.instances.of(node);
            // The user ends these, so their end is not for a move.
            instances.retain(|(instance, _)| !ending.contains(instance));
            let is_starting = |instance| self.instances.is_starting(instance);
            let (moving, failures) = self.moves.begin(node, instances, is_starting);
            for failure in failures {
                out.send(from.uuid(), &Frame::of(&failure));
            }
            info!(target: "ssntp::scheduler", "{from}: {moving} instances of {node} are moved");
        }
        // Parked STARTs that waited for this node are placed on other nodes.
        self.handle_node_changed(out, node);
    }

    /// Handles RESTORE, or the end of an evacuation.
    pub(crate) fn handle_restore(&mut self, node: Uuid) {
        self.placement.resume(node, Suspension::Evacuating);
        self.moves.end(node);
    }

    /// If an instance that has ended is being moved, starts it on another node.
    fn move_on(&mut self, out: &mut Out<'_, '_>, instance: Uuid) {
        let Some((controller, frame)) = self.moves.take_ended(instance) else {
            return;
        };
        // After InstanceStopped the instance is still known as ended. It is forgotten, so that its
        // UUID is free and the START can be placed again.
        self.instances.ended(instance, false);
        // The START counts as received once more.
        self.figures.received += 1;
        match UnplacedStart::read(controller, frame, out.now()) {
            Ok(start) => self.place(out, None, start),
            // This does not happen, because the START was read successfully when it arrived.
            Err(e) => warn!(target: "ssntp::scheduler", "instance {instance} is not moved: {e}"),
        }
    }

    /// A node has connected, perhaps not for the first time. `sends_new_stats` is false if its next
    /// STATS may be older than its session.
    pub(crate) fn handle_node_connected(&mut self, node: Uuid, roles: Role, sends_new_stats: bool) {
        self.placement.connect(node, roles);
        self.instances.node_returned(node, sends_new_stats);
    }

    /// A node has disconnected. True if STARTs wait for it, because it `may_return` soon.
    pub(crate) fn handle_node_disconnected(&mut self, node: Uuid, may_return: bool) -> bool {
        let waits = may_return && self.placement.await_ready(node);
        if !waits {
            self.placement.disconnect(node);
        }
        waits
    }

    /// No STARTs wait any more for a node that has disconnected.
    pub(crate) fn handle_node_departed(&mut self, out: &mut Out<'_, '_>, node: Uuid) {
        self.placement.disconnect(node);
        self.handle_node_changed(out, node);
    }

    /// A node has sent no STATS for too long, or sends them again.
    pub(crate) fn handle_stale(&mut self, out: &mut Out<'_, '_>, node: Uuid, is_stale: bool) {
        if is_stale {
            self.placement.suspend(node, Suspension::Stale);
        } else {
            self.placement.resume(node, Suspension::Stale);
        }
        self.handle_node_changed(out, node);
    }

    /// Handles the status of a node. `ready` has the room of a node that is READY, and may have the host
    /// name and the labels of one in maintenance.
    pub(crate) fn handle_status(
        &mut self,
        out: &mut Out<'_, '_>,
        node: Uuid,
        status: Status,
        ready: Option<&Ready>,
    ) {
        match (status, ready) {
            (Status::READY, Some(ready)) => self.placement.ready(node, ready),
            _ => self.placement.close(node),
        }
        match status {
            // Its evacuation is done, so that its next READY counts.
            Status::MAINTENANCE => {
                self.placement.resume(node, Suspension::Evacuating);
                if let Some(ready) = ready {
                    self.placement.describe(node, ready);
                }
            }
            // A node that goes offline ends its evacuation.
            Status::OFFLINE => self.handle_restore(node),
            _ => {}
        }
        self.handle_node_changed(out, node);
    }
}

impl Drop for Starts {
    /// Hands over what the ledger lacks, before its thread ends.
    fn drop(&mut self) {
        self.instances.catch_up(true);
    }
}

/// Sends DELETE for an instance whose START was answered with a failure, so that the answer stays
/// true.
fn delete_given_up(out: &mut Out<'_, '_>, instance: Uuid, node: Uuid) {
    let delete = Delete {
        instance_uuid: instance.into(),
        workload_agent_uuid: node.into(),
        stop: false,
    };
    if let Err(e) = out.cx.send_payload(node, &delete) {
        debug!(target: "ssntp::scheduler", "DELETE of {instance} for {node}: {e}");
    }
}
