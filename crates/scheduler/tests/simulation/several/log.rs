//! The application of a server, and the log that all applications and clients share.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use bytes::Bytes;
use uuid::Uuid;

use super::super::application::Mark;
use ssntp::Role;
use ssntp::proto::{Command, Event, Frame, Status};
use ssntp::server::{ClusterHandler, Context, DisconnectReason, Handler, Rules, SessionInfo};

/// The origins of the frames of applications. Each start of each server is one, and its frames with
/// a token have another one.
const APPLICATION: u32 = 1_000_000;
const LEADER: u32 = 2_000_000;

pub(super) fn server_uuid(at: usize) -> Uuid {
    Uuid::from_u128(0x9000 + at as u128)
}

pub(super) fn client_uuid(at: usize) -> Uuid {
    Uuid::from_u128(0x5000 + at as u128)
}

/// A start of a server: the server and the number of the start.
pub(super) type Start = (usize, u64);

fn origin(base: u32, (at, start): Start) -> u32 {
    base + u32::try_from(at).unwrap() * 1000 + u32::try_from(start).unwrap()
}

/// The events of all servers and clients.
#[derive(Debug, Default)]
pub(super) struct Log {
    pub(super) faults: Vec<String>,
    /// The server that has acted under each token.
    holders: HashMap<u64, Start>,
    /// The rows that the application of each server knows: the server and the number.
    pub(super) rows: HashMap<Start, BTreeMap<(Uuid, Uuid), u64>>,
    /// The number of the last frame of each origin at each receiver's session.
    last: HashMap<(String, u32), u64>,
    /// The highest token in the frames that each receiver has taken.
    tokens: HashMap<String, u64>,
    /// The times of probes that have not arrived, by sender, receiver and number.
    pub(super) probes: BTreeMap<(u32, u32, u64), Instant>,
    pub(super) arrived: u64,
    pub(super) terms: BTreeSet<u64>,
    /// The time at which a session last began or ended.
    pub(super) changed: Option<Instant>,
}

pub(super) type SharedLog = Arc<Mutex<Log>>;

impl Log {
    /// Records that a receiver has taken a frame.
    pub(super) fn arrives(&mut self, at: &str, mark: Mark) {
        self.arrived += 1;
        let last = self.last.insert((at.to_owned(), mark.sender), mark.number);
        if last.is_some_and(|last| last >= mark.number) {
            self.faults.push(format!(
                "order, or twice: {} of {} arrives at {at} after {last:?}",
                mark.number, mark.sender
            ));
        }
    }

    /// Records that a receiver has taken a frame with the token of a leader.
    fn takes(&mut self, at: &str, token: u64) {
        let before = self.tokens.entry(at.to_owned()).or_default();
        if token < *before {
            let fault = format!("tokens: {at} takes {token} after {before}");
            self.faults.push(fault);
        }
        *before = token;
    }

    /// Records a frame that a client has received. A TRACE_REPORT frame may carry a leader's token.
    pub(super) fn client_receives(&mut self, at: &str, frame: &Frame) -> Option<Mark> {
        let mark = Mark::of(frame.payload_bytes())?;
        self.arrives(at, mark);
        if frame.kind() == Event::TRACE_REPORT {
            let text = String::from_utf8_lossy(frame.payload_bytes()).into_owned();
            let token = text.lines().nth(1).and_then(|line| line.strip_prefix("token: "));
            if let Some(token) = token.and_then(|token| token.parse().ok()) {
                self.takes(at, token);
            }
        }
        Some(mark)
    }

    pub(super) fn acts(&mut self, start: Start, token: u64) {
        self.terms.insert(token);
        let before = self.holders.insert(token, start);
        if before.is_some_and(|before| before != start) {
            let fault = format!("one leader: {before:?} and {start:?} act under {token}");
            self.faults.push(fault);
        }
    }
}

/// The application of one start of a server.
pub(super) struct Application {
    pub(super) start: Start,
    pub(super) log: SharedLog,
    pub(super) shared: Arc<Mutex<Acting>>,
}

/// The inputs of the application from the world, and its counts.
#[derive(Debug, Default)]
pub(super) struct Acting {
    /// The leader, as this server's machine sees it.
    pub(super) leader: Option<Uuid>,
    number: u64,
}

/// The rules: a frame goes to the client that it names, also over links, and STATS to controllers.
pub(super) fn rules() -> Rules {
    Rules::new()
        .multicast(Command::STATS, Role::CONTROLLER)
        .route(Event::TENANT_ADDED, |frame, _, _| {
            match Mark::of(frame.payload_bytes()) {
                Some(mark) => vec![client_uuid(mark.to as usize)],
                None => Vec::new(),
            }
        })
}

impl Application {
    fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap()
    }

    fn name(&self) -> String {
        format!("server {:?}", self.start)
    }
}

/// The actions of a leader at random times: it sends frames to the other servers and to each client.
pub(super) fn act(cx: &mut Context<'_>, start: Start, token: u64, shared: &Mutex<Acting>, log: &SharedLog) {
    log.lock().unwrap().acts(start, token);
    cx.set_leader_token(Some(token));
    let clients: Vec<_> = cx.directory().sessions().map(SessionInfo::uuid).collect();
    let number = {
        let mut shared = shared.lock().unwrap();
        shared.number += 1;
        shared.number
    };
    let sender = origin(LEADER, start);
    let mark = Mark {
        sender,
        number,
        to: 0,
    };
    let message = Bytes::from(mark.payload(&format!("token: {token}\n"), 0));
    cx.send_to_servers(&message);
    for client in clients {
        let _ = cx.send(client, &Frame::with_payload(Event::TRACE_REPORT, message.clone()));
    }
}

impl Handler for Application {
    fn connected(&mut self, cx: &mut Context<'_>, _: &SessionInfo) {
        self.log().changed = Some(cx.now());
    }

    fn disconnected(&mut self, cx: &mut Context<'_>, _: &SessionInfo, _: &DisconnectReason) {
        self.log().changed = Some(cx.now());
    }

    fn frame(&mut self, cx: &mut Context<'_>, from: &SessionInfo, frame: Frame) {
        if frame.kind() != Status::READY {
            return;
        }
        let Some(mark) = Mark::of(frame.payload_bytes()) else {
            return;
        };
        let own = server_uuid(self.start.0);
        let shared = Arc::clone(&self.shared);
        let mut shared = shared.lock().unwrap();
        match shared.leader {
            Some(leader) if leader != own && from.server() == own => {
                let _ = cx.pass_frame_to_server(leader, from, &frame);
            }
            // This server leads, or did so when the frame was passed on.
            _ => {
                self.log().arrives(&self.name(), mark);
                shared.number += 1;
                let number = shared.number;
                let sender = origin(APPLICATION, self.start);
                let answer = Mark {
                    sender,
                    number,
                    to: 0,
                };
                let payload = answer.payload("", frame.payload_bytes().len());
                let _ = cx.send(from.uuid(), &Frame::with_payload(Status::FULL, payload));
            }
        }
    }

    fn cluster(&mut self) -> Option<&mut dyn ClusterHandler> {
        Some(self)
    }
}

impl ClusterHandler for Application {
    fn remote_connected(&mut self, cx: &mut Context<'_>, session: &SessionInfo) {
        let (start, mut log) = (self.start, self.log());
        log.changed = Some(cx.now());
        let row = (session.server(), session.uuid());
        let rows = log.rows.entry(start).or_default();
        if let Some(before) = rows.insert(row, session.id().connection().0) {
            let fault = format!("told once: {start:?} has {row:?} as {before} and again");
            log.faults.push(fault);
        }
    }

    fn remote_disconnected(&mut self, cx: &mut Context<'_>, session: &SessionInfo) {
        let (start, mut log) = (self.start, self.log());
        log.changed = Some(cx.now());
        let row = (session.server(), session.uuid());
        let number = session.id().connection().0;
        if log.rows.entry(start).or_default().remove(&row) != Some(number) {
            let fault = format!("told once: {start:?} hears the end of {row:?} {number} out of turn");
            log.faults.push(fault);
        }
    }

    fn server_message(&mut self, _: &mut Context<'_>, server: Uuid, message: Bytes) {
        let text = String::from_utf8_lossy(&message).into_owned();
        let token = text.lines().nth(1).and_then(|line| line.strip_prefix("token: "));
        let token = token.and_then(|token| token.parse().ok());
        let (name, mut log) = (self.name(), self.log());
        match (Mark::of(&message), token) {
            (Some(mark), Some(token)) => {
                log.arrives(&name, mark);
                log.takes(&name, token);
            }
            _ => log.faults.push(format!("{name} is told {text:?} by {server}")),
        }
    }
}
