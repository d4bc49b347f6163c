//! The invariants that hold after each step, whenever no machine can move, and at the end.

use std::time::Duration;

use super::application::uuid;
use super::certificates::{BOUND, UNBOUND};
use super::cluster::Program;
use super::peers::Ending;
use super::threads::Fails;
use super::world::{Connection, World};
use ssntp::server::{DisconnectReason, SlowConsumer};
use ssntp_transport::outbox::Outbox;

/// The time of a stop beyond the grace: a connection that is cut off lingers, and the
/// dispatcher and the others take their steps.
const BEYOND_GRACE: Duration = Duration::from_secs(3);

/// The longest wait of a connection that is served at once: some turns of all others, each of
/// which takes a share, and a run of some frames more.
const PROGRESS: Duration = Duration::from_millis(100);

/// The bytes of a queue that do not depend on the budget, and those of an item beside its own.
const FOR_EACH: u64 = 64 * 1024 + 3 * 1024;

impl World {
    pub(super) fn check_each_step(&mut self) -> Result<(), String> {
        if let Some(fault) = self.log.lock().unwrap().faults.pop() {
            return Err(fault);
        }
        let used = self.settings.budget.used() + self.settings.received.used();
        self.most_used = self.most_used.max(used);
        // A queue, the received bytes, and a turn in the line of each receiver.
        let connections = self.connections.len() as u64;
        let for_each = FOR_EACH + self.longest.max(30_000) + self.longest_turn();
        let limit = self.budget() + connections * for_each;
        if used > limit {
            return Err(format!("memory: {used} bytes are taken, {limit} may be"));
        }
        self.check_places()
    }

    /// A certificate that is bound to a UUID has at most one session and a former one that is ending. The
    /// server counts a session until its threads have ended, so it counts at least as many.
    fn check_places(&mut self) -> Result<(), String> {
        let mut places = [0; BOUND];
        for connection in self.connections.iter().filter(|each| each.has_a_place()) {
            if let Some(entity) = connection.peer.plan.certificate.checked_sub(UNBOUND) {
                places[entity] += 1;
            }
        }
        for (entity, places) in places.into_iter().enumerate() {
            self.most_places = self.most_places.max(places);
            if places > 2 {
                return Err(format!(
                    "places: the certificate of entity {entity} has {places} connections"
                ));
            }
        }
        Ok(())
    }

    /// A peer that reads at full speed gets its frames, and a connection that may take a turn gets one,
    /// within a bound.
    pub(super) fn check_progress(&mut self) -> Result<(), String> {
        let (now, flow) = (self.now, self.runner.flow());
        for connection in &mut self.connections {
            let (Some(id), Some(outbox)) = (connection.peer.session, &connection.outbox) else {
                continue;
            };
            let id = id.connection();
            let reads = connection.peer.reads() && connection.peer.connected && !outbox.is_over();
            let waits_to_receive = reads && (outbox.waiting().items > 0 || flow.is_waited_for(id));
            let received = [connection.peer.taken, flow.handled_runs(id)];
            let waits = [waits_to_receive, flow.may_take_a_turn(id)];
            for (which, promise) in ["gets what waits for it", "gets a turn"].into_iter().enumerate() {
                let (before, since) = &mut connection.progress[which];
                if !waits[which] || *before != received[which] {
                    *since = waits[which].then_some(now);
                }
                *before = received[which];
                let waited = since.map(|since| now.duration_since(since));
                if waited.is_some_and(|waited| waited > PROGRESS) {
                    let number = connection.peer.plan.number;
                    return Err(format!("progress: {number} never {promise}, for {waited:?}"));
                }
            }
        }
        Ok(())
    }

    /// Checks the state in which no machine can move before the time advances.
    pub(super) fn check_while_all_wait(&self) -> Result<(), String> {
        if let Some(fault) = self.runner.flow().fault() {
            return Err(format!("lines: {fault}"));
        }
        for connection in &self.connections {
            let (Some(id), Some(outbox)) = (connection.peer.session, &connection.outbox) else {
                continue;
            };
            let Some(reader) = &connection.reader else {
                continue;
            };
            let number = connection.peer.plan.number;
            let (flow, id) = (self.runner.flow(), id.connection());
            if self.runner.is_idle() && flow.may_take_a_turn(id) {
                return Err(format!(
                    "standstill: {number} has input, waits for nobody, and gets no turn"
                ));
            }
            if reader.waits_for_credit() && !flow.has_input(id) && !flow.is_paused(id) {
                return Err(format!(
                    "standstill: the reader of {number} waits for credit that is there"
                ));
            }
            if !connection.peer.reads() || !connection.peer.connected {
                continue;
            }
            let waiting = outbox.waiting().frames;
            if waiting > 0 && !outbox.is_over() {
                return Err(format!(
                    "standstill: {waiting} frames wait for {number}, who reads"
                ));
            }
            if flow.is_waited_for(id) {
                return Err(format!(
                    "standstill: others wait for {number}, whose queue is empty"
                ));
            }
        }
        Ok(())
    }

    /// At rest, each controller must see the running instances.
    pub(super) fn check_the_cluster(&self) -> Result<(), String> {
        let mut log = self.log.lock().unwrap();
        let is_established = |connection: &&Connection| {
            let session = connection.peer.session.and_then(|id| log.sessions.get(&id));
            connection.peer.reads()
                && connection.peer.connected
                && session.is_some_and(|session| session.connected == 1 && session.disconnected.is_none())
        };
        let all: Vec<_> = self.connections.iter().filter(is_established).collect();
        for controller in &all {
            for agent in &all {
                let node = uuid(agent.peer.plan.entity);
                let running = agent.peer.program.as_ref().and_then(Program::running);
                let view = controller.peer.program.as_ref();
                let shown = view.and_then(|program| program.seen(node));
                if let (Some(running), Some(shown)) = (running, shown) {
                    log.known += shown.len();
                    if running == shown {
                        continue;
                    }
                    let (number, node) = (controller.peer.plan.number, agent.peer.plan.number);
                    return Err(format!(
                        "cluster: {running:?} run at {node}, and {number} sees {shown:?}"
                    ));
                }
            }
        }
        Ok(())
    }

    pub(super) fn check_the_end(&mut self) -> Result<(), String> {
        let took = self.stopping_took();
        let most = self.settings.grace + BEYOND_GRACE;
        if took > most {
            return Err(format!("end: the stop took {took:?}, it may take {most:?}"));
        }
        if self.runner.flow().connections() > 0 {
            return Err("end: a connection has not ended".into());
        }
        // At the end peers read the rest of their input.
        self.let_peers_read();
        for connection in &self.connections {
            self.check_connection(connection)
                .map_err(|fault| format!("{fault}; of {}", connection.peer.plan.number))?;
        }
        let of_each = |connection: &Connection| connection.outbox.as_ref().map_or(0, Outbox::lost);
        let lost: u64 = self.connections.iter().map(of_each).sum();
        let mut lost_frames = 0;
        let now = self.now;
        let core = self.runner.core_mut();
        core.call(now, &mut Vec::new(), |cx| lost_frames = cx.frames_lost());
        let counted = core.dropped_by_gone();
        let of_each = |connection: &Connection| {
            connection
                .outbox
                .as_ref()
                .map_or(0, |o| o.counters().figures().dropped)
        };
        let dropped: u64 = self.connections.iter().map(of_each).sum();
        // A newcomer that was cut before its callback has counts as well, which no other machine sees.
        let all_seen = self
            .connections
            .iter()
            .all(|connection| connection.outbox.is_some());
        if lost_frames < lost || all_seen && lost_frames > lost {
            return Err(format!(
                "lost: the server counts {lost_frames} frames, its sessions {lost}"
            ));
        }
        if all_seen && counted != dropped {
            return Err(format!(
                "dropped: the server counts {counted} frames, its sessions {dropped}"
            ));
        }
        self.let_go();
        for connection in &mut self.connections {
            connection.outbox = None;
        }
        let used = self.settings.budget.used() + self.settings.received.used();
        if used > 0 {
            return Err(format!("zero: {used} bytes of the budget are not given back"));
        }
        if let Some(fault) = self.log.lock().unwrap().faults.pop() {
            return Err(fault);
        }
        Ok(())
    }

    /// True if every peer behaves, so that no connection ends by a time limit.
    fn is_faultless(&self) -> bool {
        self.connections.iter().all(|connection| {
            let plan = &connection.peer.plan;
            plan.is_healthy()
                && connection.wide
                && !plan.rude
                && matches!(plan.ending, Ending::Stays | Ending::HalfCloses)
                && connection.fails == Fails::Not
        })
    }

    fn check_connection(&self, connection: &Connection) -> Result<(), String> {
        if connection
            .newcomer
            .as_ref()
            .is_some_and(|newcomer| !newcomer.is_over())
            || connection.reader.as_ref().is_some_and(|reader| !reader.is_over())
        {
            return Err("end: a thread has not ended".into());
        }
        if connection.was_cut() && connection.peer.plan.is_healthy() {
            return Err("slots: it answers at once, and was cut".into());
        }
        let (Some(id), Some(outbox)) = (connection.peer.session, &connection.outbox) else {
            return Ok(());
        };
        let peer = &connection.peer;
        let log = self.log.lock().unwrap();
        let Some(session) = log.sessions.get(&id) else {
            // The application had no callback for this session.
            return Ok(());
        };
        if session.connected != 1 || session.disconnected.is_none() {
            return Err(format!(
                "told once: {} connects, disconnected: {:?}",
                session.connected, session.disconnected
            ));
        }
        if outbox.waiting().items > 0 {
            return Err("zero: items are still counted as waiting".into());
        }
        // Frames from peers to the server.
        let allowed = &peer.allowed;
        if !allowed.starts_with(&session.seen) {
            return Err(format!(
                "order: it sent {allowed:?}, the application saw {:?}",
                session.seen
            ));
        }
        if peer.closed_in_order
            && session.disconnected == Some(DisconnectReason::PeerClosed)
            && session.seen.len() != allowed.len()
        {
            return Err(format!(
                "lost: it sent {} frames and closed in order, the application saw {}",
                allowed.len(),
                session.seen.len()
            ));
        }
        // Frames from the server to peers.
        let (sent, dropped, lost) = (
            outbox.sent().frames,
            outbox.counters().figures().dropped,
            outbox.lost(),
        );
        // A batch that was written in part counts as lost, although some of its frames may have arrived.
        if peer.received > sent + lost {
            return Err(format!(
                "twice: {} frames are received, {sent} were sent",
                peer.received
            ));
        }
        let whole = peer.read_to_end && !connection.stream.pipes().lossy;
        let on_the_way = sent.saturating_sub(peer.received);
        if whole && on_the_way > 0 {
            return Err(format!("lost: {on_the_way} frames that were sent did not arrive"));
        }
        let missing = session.sent - session.arrived;
        let counted = sent + dropped + lost - peer.received;
        if missing > counted || peer.answerable == 0 && !log.inexact && !log.unmarked && missing != counted {
            return Err(format!(
                "lost: {missing} frames are missing, {dropped} were dropped, {lost} lost, {on_the_way} under way"
            ));
        }
        let (healthy, queue) = (peer.plan.is_healthy() && connection.wide, self.settings.queue);
        let slow = session.disconnected == Some(DisconnectReason::SlowConsumer);
        // A scheduler sends a new controller the last reports of agents in one burst.
        let is_burst = self.scheduler && (queue.frames < 1000 || queue.bytes < 64 << 10);
        if healthy && !is_burst && (slow || dropped > 0) {
            return Err(format!(
                "healthy: it reads at full speed and is taken as slow, {dropped} dropped"
            ));
        }
        // An end with grace is the end of a connection that has sent everything.
        let in_order = match session.disconnected {
            Some(DisconnectReason::PeerClosed) => true,
            Some(
                DisconnectReason::Application
                | DisconnectReason::Stopped
                | DisconnectReason::Kicked { .. }
                | DisconnectReason::Certificate(_),
            ) => peer.plan.ending == Ending::Stays,
            _ => false,
        };
        if healthy
            && connection.fails == Fails::Not
            && in_order
            && peer.read_to_end
            && !connection.stream.pipes().cut_off
            && missing > 0
        {
            return Err(format!(
                "grace: it reads to the end, and {missing} frames are missing, {lost} lost"
            ));
        }
        let is_replaced = session.disconnected == Some(DisconnectReason::Replaced);
        if self.is_faultless() && !is_replaced && connection.stream.pipes().cut_off {
            return Err("limit: all is well, and a time limit ends it".into());
        }
        if slow && self.policy != SlowConsumer::Disconnect {
            return Err("policy: frames are to be dropped, not sessions".into());
        }
        if peer.plan.ending == Ending::Stays
            && healthy
            && matches!(session.disconnected, Some(DisconnectReason::Protocol(_)))
        {
            return Err(format!("healthy: it is ended for {:?}", session.disconnected));
        }
        Ok(())
    }
}
