//! A scheduler that does not lead. It keeps the last reports of its clients, passes their frames
//! on to the leader, and parks their commands while no scheduler leads.
//!
//! ```text
//!  client ─▶ filter, rules ─▶ keep the last STATS, READY … ─┬─ another one leads: pass on
//!                                                           └─ no leader: park commands for
//!  a leader is known ─▶ transfer: the kept frames, in parts     10 s, then refuse them
//!                        └─▶ Complete ─▶ the parked commands
//! ```
//!
//! A leader also keeps the last reports of its own clients, because it has to send them to the
//! next leader. When it begins to lead, it transfers them to itself.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use log::debug;
use uuid::Uuid;

use super::messages::Message;
use super::out::Out;
use super::parking::{ParkingQueue, detached, with_trace_of};
use ssntp::payload::MAX_READ_LEN;
use ssntp::proto::{Command, Event, Frame, FrameKind, FrameType};
use ssntp::server::{Context, SendError, SessionInfo};
use ssntp_cluster::refusal::{self, Reason, Refused};

/// The time for which a command waits for a leader. A leader that has died is replaced within six seconds.
const PARK_TIME: Duration = Duration::from_secs(10);
/// The maximum number of commands that wait for a leader.
const MAX_PARKED: usize = 1024;
/// The maximum number of bytes of these commands.
const MAX_PARKED_BYTES: usize = 4 << 20;
/// The bytes of one part of a transfer. With [`PAUSE`] this allows 50 MB a second.
const PART: usize = 512 << 10;
/// The bytes that may still wait for a link before the next part. A link's queue holds far more.
const MAX_QUEUED: u64 = 2 << 20;
/// The pause between two parts of a transfer.
const PAUSE: Duration = Duration::from_millis(10);
/// The maximum number of events that are kept of a client: one for each tenant of a node, and one for
/// each public address of a concentrator.
const MAX_EVENTS: usize = 1024;
/// The length limit of an event that is kept, in bytes.
const MAX_EVENT: usize = 1024;
/// The maximum number of bytes that are kept of all clients together. A frame beyond this is not kept: a new
/// leader gets the client's next report instead.
const MAX_KEPT_BYTES: usize = 256 << 20;
/// The length limit of STATS that are kept, in bytes.
const MAX_STATS: usize = 1 << 20;

/// The last frames of a client that a new leader needs.
#[derive(Debug, Default)]
struct LastFrames {
    /// READY, FULL, OFFLINE or MAINTENANCE.
    status: Option<Frame>,
    stats: Option<Frame>,
    /// TenantAdded and TenantRemoved of an agent; the announcement and addresses of a concentrator.
    events: VecDeque<Frame>,
}

impl LastFrames {
    fn frames(&self) -> impl Iterator<Item = &Frame> {
        self.events.iter().chain(&self.status).chain(&self.stats)
    }

    fn bytes(&self) -> usize {
        self.frames().map(Frame::encoded_len).sum()
    }

    /// Keeps an event in place of an earlier one about the same subject. If it removes what an
    /// earlier event added, neither is kept: a new leader begins without both.
    fn keep_event(&mut self, frame: &Frame, has_room: bool) {
        let before = self.events.len();
        // Without room, an equal earlier event stays in place of this one.
        let stays = |old: &Frame| !has_room && old.kind() == frame.kind();
        self.events
            .retain(|old| subject(old) != subject(frame) || stays(old));
        let is_removal = frame.kind() == Event::TENANT_REMOVED || frame.kind() == Event::PUBLIC_IP_UNASSIGNED;
        if !has_room || (is_removal && self.events.len() < before) {
            return;
        }
        if self.events.len() >= MAX_EVENTS {
            self.events.pop_front();
        }
        self.events.push_back(detached(frame));
    }
}

/// The subject of an event: its payload after the first line, which is the root key. The root key
/// is the only difference between the event that adds a subject and the event that removes it.
fn subject(frame: &Frame) -> &[u8] {
    let payload = frame.payload_bytes();
    let root = payload.iter().position(|byte| *byte == b'\n');
    payload.get(root.unwrap_or_default()..).unwrap_or_default()
}

#[derive(Debug)]
struct Transfer {
    to: Uuid,
    /// The clients whose frames have not been sent yet.
    clients: Vec<Uuid>,
    /// The time of the next part.
    at: Instant,
}

/// The last reports of the clients of this server, and the commands that wait for a leader.
#[derive(Debug)]
pub(super) struct Following {
    last_frames: HashMap<Uuid, LastFrames>,
    last_bytes: usize,
    /// Commands that wait for a leader, with their senders.
    parked: ParkingQueue<(SessionInfo, Frame)>,
    transfer: Option<Transfer>,
}

impl Default for Following {
    fn default() -> Self {
        Self {
            last_frames: HashMap::new(),
            last_bytes: 0,
            parked: ParkingQueue::new(MAX_PARKED, MAX_PARKED_BYTES, PARK_TIME),
            transfer: None,
        }
    }
}

impl Following {
    /// Keeps a frame of a client of this server if a new leader needs it.
    pub(super) fn keep(&mut self, from: Uuid, frame: &Frame) {
        let kind = frame.kind();
        let length = frame.payload_bytes().len();
        // A scheduler does not read longer frames.
        let limit = match kind.frame_type {
            FrameType::STATUS => MAX_READ_LEN,
            _ if kind == Command::STATS => MAX_STATS,
            _ if is_kept_event(kind) => MAX_EVENT,
            _ => return,
        };
        if length > limit {
            return;
        }
        let last = self.last_frames.entry(from).or_default();
        self.last_bytes -= last.bytes();
        // The old frame is dropped even if there is no room for the new one. Otherwise a new leader
        // would get it as the client's last frame.
        match kind.frame_type {
            FrameType::COMMAND => last.stats = None,
            FrameType::STATUS => last.status = None,
            _ => {}
        }
        let has_room = self.last_bytes + last.bytes() + length <= MAX_KEPT_BYTES;
        match kind.frame_type {
            FrameType::EVENT => last.keep_event(frame, has_room),
            _ if !has_room => {}
            FrameType::STATUS => last.status = Some(detached(frame)),
            _ => last.stats = Some(detached(frame)),
        }
        self.last_bytes += last.bytes();
    }

    pub(super) fn bytes(&self) -> usize {
        self.last_bytes + self.parked.bytes()
    }

    /// Drops the kept frames of a client, whose session has ended.
    pub(super) fn forget(&mut self, client: Uuid) {
        let last = self.last_frames.remove(&client);
        self.last_bytes -= last.map_or(0, |last| last.bytes());
    }

    pub(super) fn is_transferring(&self) -> bool {
        self.transfer.is_some()
    }

    /// Ends a transfer: its receiver no longer leads, or cannot be reached.
    pub(super) fn end_transfer(&mut self) {
        self.transfer = None;
    }

    pub(super) fn take_parked(&mut self) -> Vec<(SessionInfo, Frame)> {
        std::iter::from_fn(|| self.parked.take(0)).collect()
    }

    /// The time of the next part of a transfer, or at which the first parked command expires. The
    /// commands that a leader parks do not expire: it handles them itself.
    pub(super) fn next_deadline(&self, leads: bool) -> Option<Instant> {
        let transfer = self.transfer.as_ref().map(|transfer| transfer.at);
        let parked = self.parked.next_deadline().filter(|_| !leads);
        [transfer, parked].into_iter().flatten().min()
    }

    /// Parks a command or a failure; false if there is no room for it. Failures take half of the room at
    /// most, so that no agent keeps out the commands of controllers.
    fn try_park(&mut self, from: &SessionInfo, frame: &Frame, now: Instant) -> bool {
        let bytes = frame.encoded_len();
        let is_command = frame.kind().frame_type == FrameType::COMMAND;
        let reserved = if is_command { 0 } else { MAX_PARKED_BYTES / 2 };
        let has_room =
            self.parked.has_room(bytes + reserved) && (is_command || self.parked.len() < MAX_PARKED / 2);
        if has_room {
            let own = with_trace_of(frame, detached(frame));
            self.parked.push((from.clone(), own), bytes, now);
        }
        has_room
    }

    /// Handles frames of a client while this scheduler does not lead: `pass` sends all of them to
    /// the `leader`; if that is not possible, those that must not be lost are parked.
    pub(super) fn pass_or_park(
        &mut self,
        out: &mut Out<'_, '_>,
        leader: Option<Uuid>,
        from: &SessionInfo,
        frames: impl Iterator<Item = Frame>,
        pass: impl FnOnce(&mut Context<'_>, Uuid) -> Result<(), SendError>,
    ) {
        if from.server() != out.cx.uuid() {
            // Another server still believes that this one leads. It sends the reports of its
            // clients to the next leader, but it does not send a command twice.
            return frames
                .filter(|frame| is_parked(frame.kind()))
                .for_each(|frame| self.park_or_refuse(out, from, &frame));
        }
        let mut commands = Vec::new();
        for frame in frames {
            self.keep(from.uuid(), &frame);
            if is_parked(frame.kind()) {
                commands.push(frame);
            }
        }
        // A new command must not overtake those that are parked.
        let is_behind = !commands.is_empty() && (self.is_transferring() || self.parked.len() > 0);
        let leader = leader.filter(|_| !is_behind);
        if leader.is_some_and(|leader| pass(out.cx, leader).is_ok()) {
            return;
        }
        commands.iter().for_each(|frame| self.park(out, from, frame));
    }

    /// Parks a command that this scheduler received while it led. The next leader accepts commands
    /// only from the client's own server, so commands of other servers' clients are refused.
    pub(super) fn park_or_refuse(&mut self, out: &mut Out<'_, '_>, from: &SessionInfo, frame: &Frame) {
        if from.server() == out.cx.uuid() {
            self.park(out, from, frame);
        } else {
            refuse(out, from, frame, "this one has just ceased to lead");
        }
    }

    /// Parks a command until a leader can accept it, or refuses it if too many are parked.
    pub(super) fn park(&mut self, out: &mut Out<'_, '_>, from: &SessionInfo, frame: &Frame) {
        if !self.try_park(from, frame, out.now()) {
            refuse(out, from, frame, "too many commands wait for one");
        }
    }

    /// Refuses the commands that have waited too long.
    pub(super) fn expire(&mut self, out: &mut Out<'_, '_>) {
        while let Some((from, frame)) = self.parked.expire(out.now()) {
            refuse(out, &from, &frame, "none has led for 10 s");
        }
    }

    /// Begins to transfer the last reports of this server's clients to a leader, which may be this
    /// scheduler itself.
    pub(super) fn begin_transfer(&mut self, to: Uuid, now: Instant) {
        let clients = self.last_frames.keys().copied().collect();
        self.transfer = Some(Transfer { to, clients, at: now });
    }

    /// Sends the next part of the transfer if it is due. If this scheduler is the leader, the result has the frames of its
    /// own clients, for it to handle.
    ///
    /// # Errors
    /// The leader that cannot be reached.
    pub(super) fn continue_transfer(
        &mut self,
        out: &mut Out<'_, '_>,
    ) -> Result<Vec<(SessionInfo, Frame)>, Uuid> {
        let now = out.now();
        let Some(transfer) = self.transfer.as_mut().filter(|transfer| transfer.at <= now) else {
            return Ok(Vec::new());
        };
        let (to, own_uuid) = (transfer.to, out.cx.uuid());
        let (mut remaining, mut own) = (PART, Vec::new());
        loop {
            let queued = |server: Uuid| out.cx.waiting(server).map_or(0, |waiting| waiting.bytes);
            let links = out.cx.servers().map(|server| (server.uuid, queued(server.uuid)));
            if remaining == 0 || must_pause(to, own_uuid, links) {
                transfer.at = now + PAUSE;
                return Ok(own);
            }
            let Some(client) = transfer.clients.pop() else {
                break;
            };
            let session = out.cx.directory().session(client).cloned();
            let Some(session) = session.filter(|session| session.server() == own_uuid) else {
                continue;
            };
            let last = self.last_frames.get(&client).into_iter();
            for frame in last.flat_map(LastFrames::frames) {
                remaining = remaining.saturating_sub(frame.encoded_len());
                if to == own_uuid {
                    own.push((session.clone(), frame.clone()));
                } else if out.cx.pass_frame_to_server(to, &session, frame).is_err() {
                    return Err(to);
                }
            }
        }
        self.transfer = None;
        if to == own_uuid {
            return Ok(own);
        }
        let parked = self.take_parked();
        let sent = out.cx.send_to_server(to, Message::Complete.encode());
        for (from, frame) in parked {
            if let Err(e) = out.cx.pass_frame_to_server(to, &from, &frame) {
                debug!(target: "ssntp::scheduler", "{from}: {}: {e}", frame.kind());
                self.park(out, &from, &frame);
            }
        }
        sent.map(|()| own).map_err(|_| to)
    }
}

/// True if a transfer waits for a link, of these with their queued bytes. One to another scheduler waits for
/// its own link only. This scheduler sends what follows from its own reports over all links.
fn must_pause(to: Uuid, own: Uuid, mut links: impl Iterator<Item = (Uuid, u64)>) -> bool {
    links.any(|(server, queued)| queued > MAX_QUEUED && (to == own || to == server))
}

fn is_kept_event(kind: FrameKind) -> bool {
    let kept = [
        Event::TENANT_ADDED,
        Event::TENANT_REMOVED,
        Event::CONCENTRATOR_INSTANCE_ADDED,
        Event::PUBLIC_IP_ASSIGNED,
        Event::PUBLIC_IP_UNASSIGNED,
    ];
    kept.iter().any(|event| kind == *event)
}

/// True if a frame must wait for a leader. Reports need not, because clients send them again.
fn is_parked(kind: FrameKind) -> bool {
    match kind.frame_type {
        FrameType::COMMAND => kind != Command::STATS,
        frame_type => frame_type == FrameType::ERROR,
    }
}

/// Answers a command that no leader has accepted. Only its sender gets the answer, because another
/// command for the same instance may be in progress.
fn refuse(out: &mut Out<'_, '_>, from: &SessionInfo, frame: &Frame, why: &str) {
    if frame.kind().frame_type != FrameType::COMMAND {
        return;
    }
    let refused = Refused::new(Reason::NoLeader, why);
    let answer = refusal::failure_of(frame, &refused)
        .unwrap_or_else(|| refusal::invalid_frame(frame.kind(), &Reason::NoLeader));
    out.send(from.uuid(), &answer);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Scheduler, SchedulerConfig};
    use ssntp::Role;
    use ssntp::payload::InvalidFrameType;
    use ssntp::proto::{ErrorCode, Status};
    use ssntp::testkit::{HandlerTest, Testkit};
    use ssntp_payload::{NewLeader, Restore, Start, StartFailure};
    use std::sync::Arc;

    /// A scheduler that follows while no scheduler leads, and a controller of it.
    fn without_leader() -> (HandlerTest, SessionInfo) {
        let kit = Testkit::new().unwrap();
        let mut scheduler = Scheduler::new(SchedulerConfig::new()).unwrap();
        scheduler.begin_following(&Arc::default());
        let config = scheduler.serve_with(kit.server_config().unwrap());
        let mut test = HandlerTest::new(config, scheduler).unwrap();
        let controller = test.connect(&kit.identity(Role::CONTROLLER).unwrap()).unwrap();
        let [first] = &test.sent_to(controller.uuid())[..] else {
            panic!("one event");
        };
        assert_eq!(first.payload(), Ok(NewLeader::default()));
        (test, controller)
    }

    #[test]
    fn command_without_a_leader_is_refused_after_ten_seconds() {
        let (mut test, controller) = without_leader();
        let uuid = controller.uuid();
        let start = Start {
            instance_uuid: Uuid::from_u128(5),
            ..Start::default()
        };
        test.receive(uuid, &Frame::of(&start));
        test.advance(PARK_TIME / 2);
        test.receive(uuid, &Frame::of(&Restore::default()));
        assert!(test.sent_to(uuid).is_empty());
        test.advance(PARK_TIME / 2);
        let [failure] = &test.sent_to(uuid)[..] else {
            panic!("one answer");
        };
        let failure: StartFailure = failure.payload().unwrap();
        assert_eq!(failure.instance_uuid, start.instance_uuid);
        assert_eq!(
            (failure.reason.word(), &failure.detail[..]),
            ("no_leader", "none has led for 10 s")
        );
        test.advance(PARK_TIME / 2);
        let [answer] = &test.sent_to(uuid)[..] else {
            panic!("one answer");
        };
        let answer: InvalidFrameType = answer.payload().unwrap();
        assert_eq!(answer.refused(), Command::RESTORE);
    }

    #[test]
    fn parked_commands_are_bounded_in_number_and_bytes() {
        let (mut test, controller) = without_leader();
        let (mut following, now) = (Following::default(), test.now());
        let frame = |len| Frame::with_payload(Command::STOP, vec![b' '; len]);
        assert!(following.try_park(&controller, &frame(MAX_PARKED_BYTES - 100), now));
        assert!(
            !following.try_park(&controller, &frame(100), now),
            "too many bytes"
        );
        assert!(following.parked.expire(now + PARK_TIME).is_some());
        for _ in 0..MAX_PARKED {
            assert!(following.try_park(&controller, &frame(10), now));
        }
        assert!(!following.try_park(&controller, &frame(10), now), "too many");
        assert_eq!(following.take_parked().len(), MAX_PARKED);
        assert_eq!(
            (following.parked.bytes(), following.next_deadline(false)),
            (0, None)
        );
        // A command without room is refused at once.
        for _ in 0..=MAX_PARKED {
            test.receive(controller.uuid(), &Frame::of(&Restore::default()));
        }
        assert_eq!(test.sent_to(controller.uuid()).len(), 1);
    }

    #[test]
    fn failures_of_agents_leave_room_for_commands() {
        let ((_test, client), now) = (without_leader(), ssntp_transport::now());
        let failure = |len| Frame::with_payload(ErrorCode::START_FAILURE, vec![b' '; len]);
        let mut following = Following::default();
        assert!(!following.try_park(&client, &failure(MAX_PARKED_BYTES / 2), now));
        let held = (0..MAX_PARKED).take_while(|_| following.try_park(&client, &failure(0), now));
        assert_eq!(held.count(), MAX_PARKED / 2);
        let command = Frame::with_payload(Command::STOP, vec![b' '; MAX_PARKED_BYTES / 2]);
        assert!(following.try_park(&client, &command, now));
    }

    #[test]
    fn a_command_overtakes_neither_the_transfer_nor_an_earlier_command() {
        let (mut test, controller) = without_leader();
        let (mut following, now) = (Following::default(), test.now());
        let (leader, stop, stats) = (
            Uuid::from_u128(9),
            Frame::new(Command::STOP),
            Frame::new(Command::STATS),
        );
        test.with(|cx| {
            let mut log = ssntp_transport::LogLimit::default();
            let out = &mut Out::new(cx, &mut log);
            let mut is_passed = |following: &mut Following, frame: &Frame| {
                let mut passed = None;
                let frames = std::iter::once(frame.clone());
                following.pass_or_park(out, Some(leader), &controller, frames, |_, to| {
                    passed = Some(to);
                    Ok(())
                });
                passed == Some(leader)
            };
            following.begin_transfer(leader, now);
            assert!(is_passed(&mut following, &stats), "clients send reports again");
            assert!(!is_passed(&mut following, &stop));
            following.end_transfer();
            assert!(!is_passed(&mut following, &stop), "the first one is parked");
            assert_eq!(following.take_parked().len(), 2);
            assert!(is_passed(&mut following, &stop));
        });
    }

    #[test]
    fn a_command_that_cannot_be_passed_after_a_transfer_waits_for_the_next_leader() {
        let (mut test, controller) = without_leader();
        let (mut following, now) = (Following::default(), test.now());
        assert!(following.try_park(&controller, &Frame::new(Command::STOP), now));
        // There is no link to this leader.
        let leader = Uuid::from_u128(9);
        following.begin_transfer(leader, now);
        test.with(|cx| {
            let mut log = ssntp_transport::LogLimit::default();
            let result = following.continue_transfer(&mut Out::new(cx, &mut log));
            assert_eq!(result.unwrap_err(), leader);
        });
        assert_eq!(following.take_parked().len(), 1);
    }

    #[test]
    fn a_transfer_does_not_wait_for_a_slow_link_that_it_does_not_use() {
        let [own, leader, slow] = [1, 2, 3].map(Uuid::from_u128);
        let pauses = |to, of_leader| {
            let links = [(leader, of_leader), (slow, MAX_QUEUED + 1)];
            must_pause(to, own, links.into_iter())
        };
        assert!(!pauses(leader, MAX_QUEUED));
        assert!(pauses(leader, MAX_QUEUED + 1));
        assert!(pauses(own, 0), "it sends to all of them");
    }

    #[test]
    fn last_frames_of_a_client_are_kept_and_its_events_are_bounded() {
        let mut following = Following::default();
        let client = Uuid::from_u128(1);
        let stats = |load| Frame::with_payload(Command::STATS, format!("load: {load}\n"));
        for load in 0..3 {
            following.keep(client, &stats(load));
            following.keep(client, &Frame::new(Status::READY));
            following.keep(client, &Frame::new(Command::STOP));
        }
        following.keep(client, &Frame::new(Status::FULL));
        for number in 0..2000 {
            let text = |root: &str, number: usize| format!("{root}:\n  agent_ip: {number}\n");
            let added = text("tenant_added", number);
            following.keep(client, &Frame::with_payload(Event::TENANT_ADDED, added));
            // A tenant that is added and removed leaves room for those that stay.
            if number >= 10 {
                let removed = text("tenant_removed", number);
                following.keep(client, &Frame::with_payload(Event::TENANT_REMOVED, removed));
            }
        }
        assert_eq!(following.last_frames[&client].events.len(), 10);
        for len in 0..2000 {
            following.keep(client, &Frame::with_payload(Event::TENANT_ADDED, vec![b' '; len]));
        }
        let last = &following.last_frames[&client];
        assert_eq!(last.stats, Some(stats(2)));
        assert_eq!(last.status, Some(Frame::new(Status::FULL)));
        assert_eq!(last.events.len(), MAX_EVENTS);
        assert_eq!(last.events[MAX_EVENTS - 1].payload_bytes().len(), MAX_EVENT);
        // The bytes are counted until the session ends.
        let bytes: usize = last.frames().map(Frame::encoded_len).sum();
        assert_eq!(following.bytes(), bytes);
        following.forget(client);
        assert_eq!((following.last_frames.len(), following.bytes()), (0, 0));
    }

    #[test]
    fn kept_frames_of_all_clients_are_bounded() {
        let mut following = Following::default();
        let stats = Frame::with_payload(Command::STATS, vec![b' '; MAX_STATS]);
        for client in 0..2 {
            following.keep(Uuid::from_u128(client), &stats);
        }
        following.last_bytes += MAX_KEPT_BYTES - 3 * MAX_STATS;
        let before = following.bytes();
        following.keep(Uuid::from_u128(2), &stats);
        assert_eq!(following.bytes(), before, "there is no room");
        following.forget(Uuid::from_u128(0));
        following.keep(Uuid::from_u128(2), &stats);
        assert_eq!((following.last_frames.len(), following.bytes()), (2, before));
    }

    #[test]
    fn without_room_no_outdated_frame_is_kept() {
        let (mut following, client) = (Following::default(), Uuid::from_u128(1));
        let event = |kind, root: &str| Frame::with_payload(kind, format!("{root}:\n  agent_ip: 1\n"));
        following.keep(client, &Frame::with_payload(Command::STATS, "load: 1\n"));
        following.keep(client, &Frame::new(Status::READY));
        following.keep(client, &event(Event::TENANT_ADDED, "tenant_added"));
        following.last_bytes += MAX_KEPT_BYTES;
        following.keep(client, &Frame::with_payload(Command::STATS, "load: 2\n"));
        following.keep(client, &Frame::new(Status::FULL));
        following.keep(client, &event(Event::TENANT_REMOVED, "tenant_removed"));
        assert_eq!(following.last_frames[&client].frames().count(), 0);
        assert_eq!(following.last_bytes, MAX_KEPT_BYTES);
    }
}
