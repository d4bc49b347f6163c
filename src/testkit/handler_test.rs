//! Tests of a handler without TLS, threads and clock: see [`HandlerTest`].

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use crossbeam_channel::Receiver;
use uuid::Uuid;

use crate::proto::{Codec, Connect, Exchange, Frame, Item, Refusal, Step, content};
use crate::request::Request;
use crate::server::admission::{AdmissionRequest, Peer, RequestKind};
use crate::server::core::ServerCore;
use crate::server::environment::Environment;
use crate::server::{Context, Handler, ServerConfig, ServerError, SessionInfo};
use ssntp_pki::Identity;
use ssntp_transport::dispatch::{Action, Core};
use ssntp_transport::{
    ConnectionId, EndReason, Limits, Numbers, Outbox, Outgoing, PeerAddress, now, wall_clock,
};

/// The maximum number of timers in one [`HandlerTest::advance`]. More of them are a handler's mistake: it
/// sets its next timer to the past.
const MOST_TICKS: u32 = 10_000;

/// A [`Handler`] under test. The test provides clients, frames and the time, and reads the frames that
/// the handler sends at once. The server's own code applies the configured filter, rules, operands
/// and admission. There is no encryption, no thread, and no wait.
///
/// ```
/// # #[cfg(feature = "issue")] {
/// use ssntp::server::{Context, Handler, SessionInfo};
/// use ssntp::testkit::{HandlerTest, Testkit};
/// use ssntp::{Command, Frame, Role};
///
/// struct Greet;
///
/// impl Handler for Greet {
///     fn connected(&mut self, cx: &mut Context<'_>, session: &SessionInfo) {
///         let _ = cx.send(session.uuid(), &Frame::with_payload(Command::STATS, "hello"));
///     }
/// }
///
/// let kit = Testkit::new()?;
/// let mut test = HandlerTest::new(kit.server_config()?, Greet)?;
/// let agent = test.connect(&kit.identity(Role::AGENT)?)?;
/// assert_eq!(test.sent_to(agent.uuid())[0].payload_bytes()[..], *b"hello");
/// # }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct HandlerTest {
    core: ServerCore,
    environment: Arc<Environment>,
    now: Instant,
    /// The UUIDs of the connected clients.
    clients: HashMap<ConnectionId, Uuid>,
    connections: Numbers,
    numbers: u64,
    sent: HashMap<Uuid, Vec<Frame>>,
    open: Receiver<Infallible>,
}

impl std::fmt::Debug for HandlerTest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HandlerTest")
            .field("sessions", &self.clients.len())
            .finish_non_exhaustive()
    }
}

impl HandlerTest {
    /// A handler in a server of this configuration, which does not listen, and admits 1000 sessions
    /// unless the configuration has a limit.
    ///
    /// # Errors
    /// As [`Server::start`](crate::Server::start), for mistakes in the configuration.
    pub fn new(config: ServerConfig, handler: impl Handler) -> Result<Self, ServerError> {
        config.check()?;
        let environment = Environment::new(&config)?;
        let (sender, open) = crossbeam_channel::bounded(0);
        let (now, most) = (now(), config.max_sessions.unwrap_or(1000));
        let mut core = ServerCore::new(
            config,
            Arc::clone(&environment),
            most,
            Box::new(handler),
            sender,
            now,
        )?;
        core.time_of_day(wall_clock());
        Ok(Self {
            core,
            environment,
            now,
            clients: HashMap::new(),
            connections: Numbers::default(),
            numbers: 0,
            sent: HashMap::new(),
            open,
        })
    }

    /// Connects a client with all roles of this identity, and with the UUID of its certificate or a
    /// random one.
    ///
    /// # Errors
    /// The refusal of the server or of [`Handler::admit`].
    pub fn connect(&mut self, identity: &Identity) -> Result<SessionInfo, Refusal> {
        self.connect_as(identity, identity.uuid().unwrap_or_else(Uuid::new_v4))
    }

    /// As [`connect`](Self::connect), with this UUID.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    pub fn connect_as(&mut self, identity: &Identity, uuid: Uuid) -> Result<SessionInfo, Refusal> {
        let id = self.admit(identity, uuid)?;
        let info = self.with(|cx| cx.directory().session(uuid).cloned());
        self.step(|core, now, actions| core.admitted(id, true, now, actions));
        info.flatten()
            .ok_or_else(|| Refusal::postpone("its session has ended"))
    }

    /// Admits a client that never connects, because its handshake is given up after this call.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    pub fn give_up(
        &mut self,
        identity: &Identity,
        uuid: Uuid,
        meanwhile: impl FnOnce(&mut Self),
    ) -> Result<(), Refusal> {
        let id = self.admit(identity, uuid)?;
        meanwhile(self);
        self.step(|core, now, actions| core.admitted(id, false, now, actions));
        self.remove(id);
        Ok(())
    }

    fn admit(&mut self, identity: &Identity, uuid: Uuid) -> Result<ConnectionId, Refusal> {
        let id = self.connections.take();
        let request = AdmissionRequest {
            peer: Peer {
                certificate: identity.info().clone(),
                intermediates: Vec::new(),
                expires: None,
                generation: 0,
                address: PeerAddress::Memory,
            },
            kind: RequestKind::Client(Connect::new(identity.roles(), uuid, true)),
        };
        let (standing, now) = (self.clients.len(), self.now);
        let mut actions = Vec::new();
        // The test takes frames from the actions, so this queue stays empty.
        let outbox = Outbox::new(Limits::default()).counters();
        let verdict = self.core.admit(id, request, outbox, standing, now, &mut actions);
        self.perform(actions);
        verdict?;
        self.clients.insert(id, uuid);
        Ok(id)
    }

    /// Delivers a frame of a client to the server. Does nothing if the client is not connected.
    pub fn receive(&mut self, from: Uuid, frame: &Frame) {
        if let Some(id) = self.id_of(from) {
            self.step(|core, now, actions| {
                core.item(id, Item::from(frame), u32::MAX, now, actions);
            });
        }
    }

    /// Delivers a request of a client, which the rules forward or the handler answers. Returns the
    /// answer if there is one yet; a refusal is `Err` with its text.
    pub fn request(&mut self, from: Uuid, frame: &Frame) -> Option<Result<Frame, String>> {
        self.numbers += 1;
        let asking = Exchange {
            step: Step::Request,
            id: self.numbers,
            peer: Uuid::nil(),
        };
        self.receive(from, &asking.frame(frame));
        let sent = self.sent.get_mut(&from)?;
        let is_answer = |exchange: &Exchange| exchange.step != Step::Request && exchange.id == asking.id;
        let found = sent.iter().enumerate().find_map(|(at, frame)| {
            let exchange = Exchange::read(frame.payload_bytes()).filter(is_answer)?;
            Some((at, exchange))
        });
        let (at, exchange) = found?;
        let answer = sent.remove(at);
        let content = content(&answer);
        Some(match exchange.step {
            Step::Refusal => Err(String::from_utf8_lossy(&content).into_owned()),
            Step::Request | Step::Reply => Ok(Frame::with_payload(answer.kind(), content)),
        })
    }

    /// Loses the connection of a client.
    pub fn lose(&mut self, uuid: Uuid) {
        if let Some(id) = self.id_of(uuid) {
            self.step(|core, now, actions| core.ended(id, EndReason::PeerClosed, now, actions));
            self.remove(id);
        }
    }

    fn remove(&mut self, id: ConnectionId) {
        if self.clients.remove(&id).is_some() {
            self.core.on_removed(id);
        }
    }

    /// The frames that were sent to a client since the last call, in order.
    pub fn sent_to(&mut self, uuid: Uuid) -> Vec<Frame> {
        self.sent.remove(&uuid).unwrap_or_default()
    }

    /// The requests that the rules have forwarded to a client since the last call. Other frames for
    /// the client stay.
    pub fn asked(&mut self, uuid: Uuid) -> Vec<Request> {
        let Some(sent) = self.sent.get_mut(&uuid) else {
            return Vec::new();
        };
        let operands = self.environment.operands();
        let mut asked = Vec::new();
        sent.retain(|frame| {
            let exchange = Exchange::read(frame.payload_bytes());
            let exchange = exchange.filter(|e| operands.is_request(frame.kind()) && e.step == Step::Request);
            asked.extend(exchange.map(|exchange| Request::new(&exchange, frame)));
            exchange.is_none()
        });
        asked
    }

    /// Advances the time. Timers of the handler expire on the way, each at its own time.
    pub fn advance(&mut self, by: Duration) {
        let end = self.now + by;
        for _ in 0..MOST_TICKS {
            let Some(due) = self.core.next_deadline().filter(|due| *due <= end) else {
                break;
            };
            self.now = due.max(self.now);
            self.step(|core, now, actions| core.tick(now, actions));
        }
        self.now = end;
    }

    /// The present time, as [`Context::now`] returns it.
    pub fn now(&self) -> Instant {
        self.now
    }

    /// Calls a function with the server's context, as [`ServerHandle::with`](crate::server::ServerHandle::with) does.
    pub fn with<T>(&mut self, call: impl FnOnce(&mut Context<'_>) -> T) -> Option<T> {
        let mut result = None;
        self.step(|core, now, actions| core.call(now, actions, |cx| result = Some(call(cx))));
        result
    }

    /// Stops the server; every session ends.
    pub fn stop(&mut self) {
        self.step(|core, now, actions| core.stop(now, actions));
    }

    /// True if the test or the handler has stopped the server.
    pub fn is_stopped(&self) -> bool {
        self.open.try_recv() == Err(crossbeam_channel::TryRecvError::Disconnected)
    }

    /// True if the client has a session.
    pub fn is_connected(&self, uuid: Uuid) -> bool {
        self.id_of(uuid).is_some()
    }

    fn id_of(&self, uuid: Uuid) -> Option<ConnectionId> {
        let mut clients = self.clients.iter();
        clients.find(|(_, client)| **client == uuid).map(|(id, _)| *id)
    }

    fn step(&mut self, act: impl FnOnce(&mut ServerCore, Instant, &mut Vec<Action>)) {
        let mut actions = Vec::new();
        act(&mut self.core, self.now, &mut actions);
        self.perform(actions);
    }

    /// Carries out the actions of the core, and the actions that follow from them.
    fn perform(&mut self, mut actions: Vec<Action>) {
        loop {
            self.core.settle(self.now, &mut actions);
            if actions.is_empty() {
                return;
            }
            for action in std::mem::take(&mut actions) {
                match action {
                    Action::Send { to, item, .. } => self.deliver(to, &item),
                    Action::End { id, .. } => self.remove(id),
                    // Only links use this action.
                    Action::Pause { .. } => {}
                    Action::Stop => self.core.stop(self.now, &mut actions),
                }
            }
        }
    }

    fn deliver(&mut self, to: ConnectionId, item: &Outgoing) {
        let Some(uuid) = self.clients.get(&to) else {
            return;
        };
        let mut bytes: BytesMut = item.parts().flatten().copied().collect();
        let mut codec = Codec::new(u32::MAX, true).operands(self.environment.operands().clone());
        let mut items = Vec::new();
        // The server sends whole, valid frames, so decoding does not fail.
        let _ = codec.decode(&mut bytes, &mut items);
        let sent = self.sent.entry(*uuid).or_default();
        sent.extend(items.iter().flat_map(Item::each));
    }
}
