//! What a scheduler does that does not lead: it keeps what its clients last said, passes on to
//! the leader what they say, and holds their commands while nobody leads.
//!
//! ```text
//!  client ─▶ filter, rules ─▶ the last STATS, READY … of each ─┬─ another one leads ─▶ pass
//!                                                              └─ nobody leads: commands are
//!  a leader is known ─▶ telling: all that is kept, piece by piece       held for 10 s, then
//!                        └─▶ Complete ─▶ the commands that are held     refused
//! ```
//!
//! A leader keeps the same of its own clients, so that it can tell the next one. When it begins,
//! it tells itself.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use log::debug;
use uuid::Uuid;

use super::Scheduler;
use super::nodes::detached;
use super::told::Message;
use crate::refusal::{self, Refused};
use ssntp::Role;
use ssntp::payload::{MAX_READ_LEN, NewLeader};
use ssntp::proto::{Command, Event, Frame, FrameKind, FrameType};
use ssntp::server::{Context, SendError, SessionInfo};

/// How long a command waits for a leader: a dead one is replaced within six seconds.
const HOLD: Duration = Duration::from_secs(10);
/// The most commands that wait, and their bytes.
const MOST_HELD: usize = 1024;
const MOST_HELD_BYTES: usize = 4 << 20;
/// How much is told at once, how much may wait for a link then, and how long after it the next
/// piece is: 50 MB a second, and far less than a link may have waiting.
const PIECE: usize = 512 << 10;
const MOST_WAITING: u64 = 2 << 20;
const PAUSE: Duration = Duration::from_millis(10);
/// The most events of a client that are kept, and the longest one. There is one for each tenant
/// of a node, and one for each public address of a concentrator.
const MOST_EVENTS: usize = 1024;
const LONGEST_EVENT: usize = 1024;
/// The most bytes that are kept of all clients together. What finds no room is not kept: a new leader hears
/// of it with the next report.
const MOST_KEPT_BYTES: usize = 256 << 20;
/// The longest STATS that a scheduler reads.
const LONGEST_STATS: usize = 1 << 20;
/// Why a command is refused that no leader has taken.
const NO_LEADER: &str = "no_leader";

/// The frames that a client sent last, as far as a new leader needs them.
#[derive(Debug, Default)]
struct Last {
    /// READY, FULL, OFFLINE or MAINTENANCE.
    status: Option<Frame>,
    stats: Option<Frame>,
    /// Of tenants, and of a concentrator and its addresses.
    events: VecDeque<Frame>,
}

impl Last {
    fn frames(&self) -> impl Iterator<Item = &Frame> {
        self.events.iter().chain(&self.status).chain(&self.stats)
    }

    fn bytes(&self) -> usize {
        self.frames().map(Frame::encoded_len).sum()
    }

    /// Keeps an event. What was added, and is removed now, is forgotten: a new leader begins
    /// without either.
    fn event(&mut self, frame: &Frame) {
        let before = self.events.len();
        self.events.retain(|old| subject(old) != subject(frame));
        let is_removal = frame.kind() == Event::TENANT_REMOVED || frame.kind() == Event::PUBLIC_IP_UNASSIGNED;
        if is_removal && self.events.len() < before {
            return;
        }
        if self.events.len() >= MOST_EVENTS {
            self.events.pop_front();
        }
        self.events.push_back(detached(frame));
    }
}

/// What an event is about: its payload after the root, which differs between the event that
/// something is added and the one that it is removed.
fn subject(frame: &Frame) -> &[u8] {
    let payload = frame.payload_bytes();
    let root = payload.iter().position(|byte| *byte == b'\n');
    payload.get(root.unwrap_or_default()..).unwrap_or_default()
}

#[derive(Debug)]
struct Held {
    from: SessionInfo,
    frame: Frame,
    until: Instant,
}

/// The clients of this server that a leader has not been told of.
#[derive(Debug)]
struct Telling {
    to: Uuid,
    clients: Vec<Uuid>,
    at: Instant,
}

#[derive(Debug, Default)]
pub(super) struct Following {
    last: HashMap<Uuid, Last>,
    last_bytes: usize,
    held: VecDeque<Held>,
    held_bytes: usize,
    telling: Option<Telling>,
}

impl Following {
    /// Keeps what a client of this server has said.
    pub(super) fn note(&mut self, from: Uuid, frame: &Frame) {
        let kind = frame.kind();
        let is_kept = kind == Command::STATS || kind.frame_type == FrameType::STATUS || is_kept_event(kind);
        if !is_kept {
            return;
        }
        let length = frame.payload_bytes().len();
        if self.last_bytes + length > MOST_KEPT_BYTES {
            return;
        }
        let last = self.last.entry(from).or_default();
        self.last_bytes -= last.bytes();
        match kind.frame_type {
            FrameType::COMMAND if length <= LONGEST_STATS => last.stats = Some(detached(frame)),
            FrameType::STATUS if length <= MAX_READ_LEN => last.status = Some(detached(frame)),
            FrameType::EVENT if length <= LONGEST_EVENT => last.event(frame),
            // No scheduler reads what is longer.
            _ => {}
        }
        self.last_bytes += last.bytes();
    }

    /// The bytes of all frames that are kept or held here.
    pub(super) fn bytes(&self) -> usize {
        self.last_bytes + self.held_bytes
    }

    /// A client has gone.
    pub(super) fn forget(&mut self, client: Uuid) {
        let last = self.last.remove(&client);
        self.last_bytes -= last.map_or(0, |last| last.bytes());
    }

    pub(super) fn is_telling(&self) -> bool {
        self.telling.is_some()
    }

    /// The leader that is being told leads no more, or cannot be reached.
    pub(super) fn end_telling(&mut self) {
        self.telling = None;
    }

    pub(super) fn take_held(&mut self) -> Vec<(SessionInfo, Frame)> {
        self.held_bytes = 0;
        let held = std::mem::take(&mut self.held).into_iter();
        held.map(|held| (held.from, held.frame)).collect()
    }

    /// What a leader holds does not expire: it takes it itself.
    pub(super) fn next_due(&self, leads: bool) -> Option<Instant> {
        let telling = self.telling.as_ref().map(|telling| telling.at);
        let held = self.held.front().map(|held| held.until).filter(|_| !leads);
        [telling, held].into_iter().flatten().min()
    }

    /// Holds a command; false if there is no room for it.
    fn hold(&mut self, from: &SessionInfo, frame: &Frame, now: Instant) -> bool {
        let bytes = self.held_bytes + frame.encoded_len();
        if self.held.len() >= MOST_HELD || bytes > MOST_HELD_BYTES {
            return false;
        }
        let own = detached(frame);
        self.held_bytes = bytes;
        self.held.push_back(Held {
            from: from.clone(),
            frame: match frame.trace() {
                Some(trace) => own.traced(trace.clone()),
                None => own,
            },
            until: now + HOLD,
        });
        true
    }

    fn expire(&mut self, now: Instant) -> Option<Held> {
        self.held.front().filter(|held| held.until <= now)?;
        let held = self.held.pop_front()?;
        self.held_bytes -= held.frame.encoded_len();
        Some(held)
    }
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

/// Whether a frame is lost if nobody takes it: what is reported again is not.
fn is_held(kind: FrameKind) -> bool {
    match kind.frame_type {
        FrameType::COMMAND => kind != Command::STATS,
        frame_type => frame_type == FrameType::ERROR,
    }
}

impl Scheduler {
    /// Passes on what a client of this server has said, or holds it. `pass` passes it to a server.
    pub(super) fn follow(
        &mut self,
        cx: &mut Context<'_>,
        from: &SessionInfo,
        frames: impl Iterator<Item = Frame>,
        pass: impl FnOnce(&mut Context<'_>, Uuid) -> Result<(), SendError>,
    ) {
        if from.server() != cx.uuid() {
            // Another server took this one for the leader. It tells the next leader what its
            // clients have said, but no command a second time.
            let lost = frames.filter(|frame| is_held(frame.kind()));
            return lost.for_each(|frame| refuse(cx, from, &frame, "this one has just ceased to lead"));
        }
        let Some(term) = self.term.as_mut() else { return };
        let mut waits = Vec::new();
        for frame in frames {
            term.following.note(from.uuid(), &frame);
            if is_held(frame.kind()) {
                waits.push(frame);
            }
        }
        // A command that has just come must not overtake those that are held.
        let is_behind = !waits.is_empty() && (term.following.is_telling() || !term.following.held.is_empty());
        let leader = term.leader(cx).filter(|_| !is_behind);
        if leader.is_some_and(|leader| pass(cx, leader).is_ok()) {
            return;
        }
        waits.iter().for_each(|frame| self.hold(cx, from, frame));
    }

    /// Holds a command that this scheduler had while it led. The next leader takes commands of a
    /// client only from the client's own server, so others are refused.
    pub(super) fn hold_or_refuse(&mut self, cx: &mut Context<'_>, from: &SessionInfo, frame: &Frame) {
        match from.server() == cx.uuid() {
            true => self.hold(cx, from, frame),
            false => refuse(cx, from, frame, "this one has just ceased to lead"),
        }
    }

    /// Holds a command until there is a leader that can take it.
    pub(super) fn hold(&mut self, cx: &mut Context<'_>, from: &SessionInfo, frame: &Frame) {
        let now = cx.now();
        let term = self.term.as_mut();
        if term.is_some_and(|term| !term.following.hold(from, frame, now)) {
            refuse(cx, from, frame, "too many commands wait for one");
        }
    }

    /// Refuses the commands that no leader has taken in time.
    pub(super) fn expire_held(&mut self, cx: &mut Context<'_>) {
        let now = cx.now();
        while let Some(held) = self.term.as_mut().and_then(|term| term.following.expire(now)) {
            refuse(cx, &held.from, &held.frame, "none has led for 10 s");
        }
    }

    /// Tells the controllers of this server of a new leader.
    pub(super) fn announce_leader(&self, cx: &mut Context<'_>, leader: Uuid, token: u64) {
        let directory = cx.directory();
        let all = directory.with_role(Role::CONTROLLER);
        let own = all.filter(|session| session.server() == cx.uuid());
        let own: Vec<_> = own.map(SessionInfo::uuid).collect();
        let event = Frame::of(&NewLeader {
            server_uuid: leader.into(),
            token,
        });
        for controller in own {
            if let Err(e) = cx.send(controller, &event) {
                debug!(target: "ssntp::scheduler", "NewLeader for {controller}: {e}");
            }
        }
    }

    /// Begins to tell a leader, which may be this scheduler, what the clients of this server have
    /// last said.
    pub(super) fn begin_telling(&mut self, cx: &mut Context<'_>, to: Uuid) {
        if let Some(term) = &mut self.term {
            let clients = term.following.last.keys().copied().collect();
            let at = cx.now();
            term.following.telling = Some(Telling { to, clients, at });
            self.go_on_telling(cx);
        }
    }

    /// Tells the next piece once it is time.
    pub(super) fn go_on_telling(&mut self, cx: &mut Context<'_>) {
        let now = cx.now();
        let mut left = PIECE;
        loop {
            let Some(Following { last, telling, .. }) = self.term.as_mut().map(|term| &mut term.following)
            else {
                return;
            };
            let Some(Telling { to, clients, at }) = telling.as_mut().filter(|telling| telling.at <= now)
            else {
                return;
            };
            let waits = |server: Uuid| cx.waiting(server).map_or(0, |waiting| waiting.bytes);
            if left == 0 || cx.servers().any(|server| waits(server.uuid) > MOST_WAITING) {
                *at = now + PAUSE;
                return;
            }
            let to = *to;
            let Some(client) = clients.pop() else { break };
            let frames: Vec<_> = last
                .get(&client)
                .into_iter()
                .flat_map(Last::frames)
                .cloned()
                .collect();
            let own = cx.directory().session(client).cloned();
            let Some(session) = own.filter(|session| session.server() == cx.uuid()) else {
                continue;
            };
            for frame in frames {
                left = left.saturating_sub(frame.encoded_len());
                if to == cx.uuid() {
                    self.take(cx, &session, &frame);
                } else if cx.pass_frame(to, &session, &frame).is_err() {
                    return self.forget_leader(to);
                }
            }
        }
        self.has_told(cx);
    }

    fn has_told(&mut self, cx: &mut Context<'_>) {
        let Some(term) = &mut self.term else { return };
        let Some(Telling { to, .. }) = term.following.telling.take() else {
            return;
        };
        if to == cx.uuid() {
            return self.complete(cx);
        }
        let held = term.following.take_held();
        let is_told = cx.tell(to, Message::Complete.encode());
        for (from, frame) in held {
            if let Err(e) = cx.pass_frame(to, &from, &frame) {
                debug!(target: "ssntp::scheduler", "{from}: {}: {e}", frame.kind());
                self.hold(cx, &from, &frame);
            }
        }
        if is_told.is_err() {
            self.forget_leader(to);
        }
    }
}

/// Answers a command that no leader has taken: to its sender alone, because another command for
/// the same instance may be under way.
fn refuse(cx: &mut Context<'_>, from: &SessionInfo, frame: &Frame, why: &str) {
    let refused = Refused::new(NO_LEADER, format!("no scheduler leads: {why}"));
    let answer = match frame.kind().frame_type {
        FrameType::COMMAND => refusal::failure_of(frame, &refused)
            .unwrap_or_else(|| refusal::invalid_frame(frame.kind(), NO_LEADER)),
        _ => return,
    };
    if let Err(e) = cx.send(from.uuid(), &answer) {
        debug!(target: "ssntp::scheduler", "{from}: the answer to {}: {e}", frame.kind());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scheduler::SchedulerConfig;
    use crate::scheduler::term::Term;
    use ssntp::payload::{InvalidFrameType, Restore, Start, StartFailure};
    use ssntp::proto::Status;
    use ssntp::testkit::{HandlerTest, Testkit};

    /// One of several schedulers, while nobody leads, and a controller.
    fn nobody_leads() -> (HandlerTest, SessionInfo) {
        let kit = Testkit::new().unwrap();
        let mut scheduler = Scheduler::new(SchedulerConfig::new()).unwrap();
        scheduler.term = Some(Term::new(std::sync::Arc::default()));
        let config = scheduler.serve_with(kit.server_config().unwrap());
        let mut test = HandlerTest::new(config, scheduler).unwrap();
        let controller = test.connect(&kit.identity(Role::CONTROLLER).unwrap());
        (test, controller.unwrap())
    }

    #[test]
    fn a_command_that_no_leader_takes_is_refused_in_time() {
        let (mut test, controller) = nobody_leads();
        let uuid = controller.uuid();
        let start = Start {
            instance_uuid: Uuid::from_u128(5),
            ..Start::default()
        };
        test.receive(uuid, &Frame::of(&start));
        test.advance(HOLD / 2);
        test.receive(uuid, &Frame::of(&Restore::default()));
        assert!(test.sent_to(uuid).is_empty());
        test.advance(HOLD / 2);
        let [failure] = &test.sent_to(uuid)[..] else {
            panic!("one answer");
        };
        let failure: StartFailure = failure.payload().unwrap();
        assert_eq!(failure.instance_uuid, start.instance_uuid);
        assert_eq!(
            (failure.reason.word(), &failure.detail[..]),
            ("other", "no scheduler leads: none has led for 10 s")
        );
        test.advance(HOLD / 2);
        let [answer] = &test.sent_to(uuid)[..] else {
            panic!("one answer");
        };
        let answer: InvalidFrameType = answer.payload().unwrap();
        assert_eq!(answer.refused(), Command::RESTORE);
    }

    #[test]
    fn held_commands_are_bounded_in_number_and_bytes() {
        let (mut test, controller) = nobody_leads();
        let (mut following, now) = (Following::default(), test.now());
        let frame = |len| Frame::with_payload(Command::STOP, vec![b' '; len]);
        assert!(following.hold(&controller, &frame(MOST_HELD_BYTES - 100), now));
        assert!(!following.hold(&controller, &frame(100), now), "too many bytes");
        assert!(following.expire(now + HOLD).is_some());
        for _ in 0..MOST_HELD {
            assert!(following.hold(&controller, &frame(10), now));
        }
        assert!(!following.hold(&controller, &frame(10), now), "too many");
        assert_eq!(following.take_held().len(), MOST_HELD);
        assert_eq!((following.held_bytes, following.next_due(false)), (0, None));
        // One that finds no room is refused at once.
        for _ in 0..=MOST_HELD {
            test.receive(controller.uuid(), &Frame::of(&Restore::default()));
        }
        assert_eq!(test.sent_to(controller.uuid()).len(), 1);
    }

    #[test]
    fn the_last_of_each_client_is_kept_and_its_events_are_bounded() {
        let mut following = Following::default();
        let client = Uuid::from_u128(1);
        let stats = |load| Frame::with_payload(Command::STATS, format!("load: {load}\n"));
        for load in 0..3 {
            following.note(client, &stats(load));
            following.note(client, &Frame::new(Status::READY));
            following.note(client, &Frame::new(Command::STOP));
        }
        following.note(client, &Frame::new(Status::FULL));
        for number in 0..2000 {
            let text = |root: &str, number: usize| format!("{root}:\n  agent_ip: {number}\n");
            let added = text("tenant_added", number);
            following.note(client, &Frame::with_payload(Event::TENANT_ADDED, added));
            // Those that come and go do not displace those that stay.
            if number >= 10 {
                let removed = text("tenant_removed", number);
                following.note(client, &Frame::with_payload(Event::TENANT_REMOVED, removed));
            }
        }
        assert_eq!(following.last[&client].events.len(), 10);
        for len in 0..2000 {
            following.note(client, &Frame::with_payload(Event::TENANT_ADDED, vec![b' '; len]));
        }
        let last = &following.last[&client];
        assert_eq!(last.stats, Some(stats(2)));
        assert_eq!(last.status, Some(Frame::new(Status::FULL)));
        assert_eq!(last.events.len(), MOST_EVENTS);
        assert_eq!(last.events[MOST_EVENTS - 1].payload_bytes().len(), LONGEST_EVENT);
        // All of it is counted, until the client is gone.
        let bytes: usize = last.frames().map(Frame::encoded_len).sum();
        assert_eq!(following.bytes(), bytes);
        following.forget(client);
        assert_eq!((following.last.len(), following.bytes()), (0, 0));
    }

    #[test]
    fn what_is_kept_of_all_clients_is_bounded() {
        let mut following = Following::default();
        let stats = Frame::with_payload(Command::STATS, vec![b' '; LONGEST_STATS]);
        for client in 0..2 {
            following.note(Uuid::from_u128(client), &stats);
        }
        following.last_bytes += MOST_KEPT_BYTES - 3 * LONGEST_STATS;
        let before = following.bytes();
        following.note(Uuid::from_u128(2), &stats);
        assert_eq!(
            (following.last.len(), following.bytes()),
            (2, before),
            "there is no room"
        );
        following.forget(Uuid::from_u128(0));
        following.note(Uuid::from_u128(2), &stats);
        assert_eq!((following.last.len(), following.bytes()), (2, before));
    }
}
