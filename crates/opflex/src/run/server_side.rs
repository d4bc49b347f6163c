//! A server on its dispatcher: the core, the admission of clients, and the log lines.

use std::collections::HashMap;
use std::time::Instant;

use log::Level;

use super::config::{CallError, SERVER_LOG as LOG};
use super::connection::{Entrant, Messages, Peers};
use super::journal::EditLine;
use super::keeper;
use super::machine::{self, EndCause, Side, SideEvents};
use crate::model::{Changes, Edit, ManagedObject, ModelError, Tree};
use crate::peer::{ConnectionId, host};
use crate::server::{Action as CoreAction, Client, ServerCore};
use crate::shares::Shares;
use ssntp_transport::EndReason;
use ssntp_transport::dispatch::Action;

/// Sends events to a server's dispatcher.
pub(super) type ServerEvents = SideEvents<ServerSide>;

/// The number of clients that every host may have up to the limit of all clients. It is high because
/// many hosts behind an address translator share one address.
const HOST: usize = 64;

/// Runs `call` on the dispatcher and returns its result.
///
/// # Errors
/// As of [`machine::call`].
pub(super) fn call<T: Send + 'static>(
    events: &ServerEvents,
    call: impl FnOnce(&mut ServerCore, Instant) -> T + Send + 'static,
) -> Result<T, CallError> {
    machine::call(events, |machine, now, _| call(&mut machine.side.core, now))
}

/// A connection that asks to be admitted.
#[derive(Debug)]
pub(super) struct Newcomer {
    pub(super) client: Client,
    pub(super) peer: Entrant,
    /// The generation of the acceptor of its handshake.
    pub(super) generation: u64,
}

/// All state of a server.
pub(super) struct ServerSide {
    pub(super) core: ServerCore,
    keeper: Option<keeper::KeeperSender>,
    pub(super) max_clients: usize,
    /// The number of connections of each host, so that one host cannot use up the limit. Like the
    /// limit, it includes connections that are ending: they have threads and descriptors.
    hosts: Shares<String>,
    /// The host of each connection in the transport's table.
    host_of: HashMap<ssntp_transport::ConnectionId, String>,
    is_stopping: bool,
    /// The lowest generation of acceptors whose newcomers are admitted.
    pub(super) generation: u64,
}

impl ServerSide {
    pub(super) fn new(core: ServerCore, keeper: Option<keeper::KeeperSender>, max_clients: usize) -> Self {
        Self {
            core,
            keeper,
            max_clients,
            hosts: Shares::default(),
            host_of: HashMap::new(),
            is_stopping: false,
            generation: 0,
        }
    }

    /// Edits this server's copy of the policy. Only `own_copy` calls it, because the
    /// policy of several servers is changed in the engine first.
    pub(super) fn edit(&mut self, edit: Edit, now: Instant) -> Result<Changes, ModelError> {
        let changes = self.core.edit(edit, now)?;
        if let Some(keeper) = self.keeper.as_ref().filter(|_| !changes.is_empty()) {
            // In the same call, because the line has the state of the objects after the edit, and the
            // file has the edits in the order in which they were made.
            keeper.changed(EditLine::of(&changes, self.core.policy()));
        }
        Ok(changes)
    }
}

impl Side for ServerSide {
    type Newcomer = Newcomer;
    /// A position in the order of arrival.
    type Place = u64;
    const LOG: &'static str = LOG;

    /// The host. Without it, a host with many slow clients could take the memory of all others.
    fn owner(newcomer: &Newcomer) -> Option<&[u8]> {
        Some(host(&newcomer.peer.name).as_bytes())
    }

    fn trees(&self) -> [&Tree; 2] {
        [self.core.policy(), self.core.endpoints()]
    }

    fn others(&self, place: Option<u64>) -> impl Iterator<Item = (u64, &ManagedObject)> {
        self.core.observer().objects_after(place)
    }

    fn admit(
        &mut self,
        id: ssntp_transport::ConnectionId,
        newcomer: Newcomer,
        standing: usize,
        peers: &mut Peers,
        now: Instant,
    ) -> Result<ConnectionId, String> {
        let max = self.max_clients;
        if self.is_stopping {
            return Err("the server is shutting down".to_owned());
        }
        // Its certificate was checked against the former authorities. Only the generation is compared
        // here, because verifying certificates takes too long; `Server::renew` checks those of clients.
        if newcomer.generation < self.generation {
            return Err("the certificates of the server were replaced during its handshake".to_owned());
        }
        if standing >= max {
            return Err(format!("the server has {max} clients, as many as it may have"));
        }
        let from = host(&newcomer.peer.name).to_owned();
        if self.hosts.of(&from) >= HOST && !self.hosts.fits(&from, 1, max) {
            return Err(format!(
                "this host has {} clients, as many as it may have",
                self.hosts.of(&from)
            ));
        }
        // The transport's numbers are never reused, so the core uses the same.
        let connection = ConnectionId(id.sequence());
        self.host_of.insert(id, from.clone());
        self.hosts.charge(from, 1);
        self.core.handle_connected(now, connection, newcomer.client);
        peers.add(id, connection, newcomer.peer);
        Ok(connection)
    }

    fn handle_next(
        &mut self,
        connection: ConnectionId,
        messages: &mut Messages,
        now: Instant,
    ) -> Option<bool> {
        // An unfinished answer is continued before the next message is handled.
        if !self.core.continue_answer(connection) {
            self.core.handle_message(now, connection, messages.next()?);
        }
        Some(self.core.is_answering(connection))
    }

    fn received(&mut self, connection: ConnectionId, bytes: u64, now: Instant) {
        // A large message may take longer than the time of silence.
        self.core.handle_bytes(now, connection, bytes);
    }

    fn on_removed(&mut self, id: ssntp_transport::ConnectionId) {
        if let Some(host) = self.host_of.remove(&id) {
            self.hosts.refund(&host, 1);
        }
    }

    fn ended(&mut self, connection: ConnectionId, why: EndCause, now: Instant) {
        // No warning for an end that is not a fault of the peer.
        let level = match why {
            EndCause::Ended(EndReason::Protocol(_)) | EndCause::Full | EndCause::Untrusted(_) => Level::Warn,
            EndCause::Ended(_) => Level::Info,
        };
        self.core.handle_disconnected(now, connection, level, why);
    }

    fn carry_out(&mut self, peers: &mut Peers, _: Instant, actions: &mut Vec<Action>) {
        for action in self.core.take_actions() {
            match action {
                CoreAction::Send { connection, frame } => {
                    self.core.count_sent(connection, frame.len() as u64);
                    peers.send(connection, frame, actions);
                }
                CoreAction::Identified { connection } => peers.identified(connection),
                // A server does not dial.
                CoreAction::Dial { .. } => {}
                CoreAction::Close { connection, .. } => drop(peers.end(connection, actions)),
            }
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.core.next_deadline()
    }

    fn tick(&mut self, now: Instant) {
        self.core.handle_deadline(now);
    }

    fn stop(&mut self, _: &mut Peers, _: Instant, _: &mut Vec<Action>) {
        self.is_stopping = true;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    use bytes::BytesMut;

    use super::super::connection::Shown;
    use super::super::machine::Machine;
    use super::*;
    use crate::message::{Decoder, Identified, Incoming};
    use crate::rpc::Limits;
    use crate::server::ServerSettings;
    use ssntp_transport::dispatch::{DispatchEvent, Runner, Settings as Running};
    use ssntp_transport::memory;
    use ssntp_transport::now as clock;
    use ssntp_transport::{Budget, Credit, Limits as Queue, Outbox, Outgoing, PATIENCE, Transmit};

    /// A server without threads.
    struct Bench {
        runner: Runner<Machine<ServerSide>>,
        now: Instant,
        expires: Option<Instant>,
        credits: HashMap<ssntp_transport::ConnectionId, Arc<Credit>>,
    }

    impl Bench {
        fn new(core: ServerCore, max: usize, now: Instant) -> Self {
            let settings = Running {
                queue: Queue {
                    frames: 10_000,
                    bytes: 1 << 20,
                },
                budget: Budget::unlimited(),
                received: Budget::unlimited(),
                patience: PATIENCE,
                parting: PATIENCE,
                grace: PATIENCE,
            };
            let machine = Machine::new(ServerSide::new(core, None, max));
            Self {
                runner: Runner::new(machine, settings, || false),
                credits: HashMap::new(),
                expires: None,
                now,
            }
        }

        fn connect(&mut self) -> Result<(ssntp_transport::ConnectionId, Outbox), String> {
            self.connect_from("peer")
        }

        fn connect_from(&mut self, peer: &str) -> Result<(ssntp_transport::ConnectionId, Outbox), String> {
            let (reply, verdict) = crossbeam_channel::bounded(1);
            let newcomer = Newcomer {
                client: Client {
                    address: peer.to_owned(),
                    expires: self.expires,
                    ..Client::default()
                },
                peer: Entrant {
                    name: peer.to_owned(),
                    shown: Shown::default(),
                    identified: Identified::default(),
                },
                generation: 0,
            };
            let stream = Arc::new(memory::pair().0);
            self.runner
                .handle(DispatchEvent::Admit(Box::new(newcomer), stream, reply), self.now);
            verdict.recv().unwrap().map(|admitted| {
                self.credits.insert(admitted.id, admitted.credit);
                (admitted.id, admitted.outbox)
            })
        }

        fn receive(&mut self, id: ssntp_transport::ConnectionId, text: &str) {
            let mut messages = Vec::new();
            let mut decoder = Decoder::without_identity(Limits::default());
            // The text may have several messages.
            let text = text.replace("}{", "}\0{") + "\0";
            decoder
                .decode(&mut BytesMut::from(text.as_str()), &mut messages)
                .unwrap();
            self.credits[&id].spend(Credit::memory_of::<Messages>(1, 0));
            self.runner
                .handle(DispatchEvent::Items(id, vec![messages.into_iter()], 0), self.now);
            while !self.runner.is_idle() {
                self.runner.turn(self.now, || Duration::ZERO);
            }
        }

        fn core(&self) -> &ServerCore {
            &self.runner.core().side.core
        }
    }

    /// The bytes that have been sent.
    #[derive(Clone, Debug, Default)]
    struct Wire(Arc<Mutex<Vec<u8>>>);

    impl Transmit for Wire {
        fn transmit(&mut self, batch: &[Outgoing]) -> std::io::Result<()> {
            let parts = batch.iter().flat_map(Outgoing::parts);
            parts.for_each(|part| self.0.lock().unwrap().extend_from_slice(part));
            Ok(())
        }
    }

    const IDENTITY: &str = r#"{"id":["send_identity",1],"method":"send_identity","params":[{"proto_version":"1.0","name":"pe","domain":"test","my_role":["policy_element"]}]}"#;

    #[test]
    fn one_host_does_not_use_up_the_limit_of_clients() {
        let now = clock();
        let mut bench = Bench::new(ServerCore::new(ServerSettings::default(), now), 200, now);
        let greedy = |n| format!("192.0.2.1:{n}");
        let first: Vec<_> = (0..100)
            .map(|n| bench.connect_from(&greedy(n)).unwrap())
            .collect();
        let refused = bench.connect_from(&greedy(100)).err();
        assert_eq!(
            refused.as_deref(),
            Some("this host has 100 clients, as many as it may have")
        );
        for n in 0..64 {
            bench.connect_from(&format!("[2001:db8::1]:{n}")).unwrap();
        }
        // A client that is ended by the server makes room like one that leaves, but only when its
        // connection is gone: a host could have as many as it likes that receive nothing.
        for (id, _) in &first[..80] {
            bench.receive(*id, r#"{"id":1,"method":"policy_resolve","params":[]}"#);
        }
        assert_eq!(bench.core().session_count(), 84);
        assert!(bench.connect_from(&greedy(101)).is_err());
        for (id, _) in &first[..80] {
            let never = std::io::Error::other("the threads never ran");
            bench
                .runner
                .handle(DispatchEvent::Started(*id, Err(never)), bench.now);
        }
        bench.connect_from(&greedy(101)).unwrap();
    }

    #[test]
    fn a_client_that_receives_no_answers_is_not_served_further() {
        let now = clock();
        let mut core = ServerCore::new(ServerSettings::new("pr1", "test"), now);
        let long = ManagedObject::new("A", "/a/".parse().unwrap()).with("name", "x".repeat(10_000));
        core.edit(Edit::Merge(vec![long]), now).unwrap();
        let mut bench = Bench::new(core, 10, now);
        let (id, outbox) = bench.connect().unwrap();
        let resolve =
            r#"{"id":2,"method":"policy_resolve","params":[{"subject":"A","policy_uri":"/a/","prr":3600}]}"#;
        bench.receive(id, &format!("{IDENTITY}{}", resolve.repeat(1000)));
        let asked = bench.core().sessions(bench.now)[0]
            .counters
            .requests(crate::message::Method::PolicyResolve);
        let waiting = outbox.waiting().bytes;
        assert!(
            waiting <= 300 * 1024,
            "a quarter of its queue, and an answer: {waiting}"
        );
        // The queue, and one turn.
        assert!((20..70).contains(&asked), "{asked}");
        assert_eq!(bench.core().session_count(), 1, "the client is still connected");
    }

    #[test]
    fn a_long_answer_to_a_slow_client_arrives_completely() {
        let now = clock();
        let mut core = ServerCore::new(ServerSettings::new("pr1", "test"), now);
        let object =
            |uri: String| ManagedObject::new("A", uri.parse().unwrap()).with("name", "x".repeat(10_000));
        let below = (0..1000).map(|n| object(format!("/a/{n}/")));
        let policy = std::iter::once(object("/a/".to_owned())).chain(below).collect();
        core.edit(Edit::Merge(policy), now).unwrap();
        let mut bench = Bench::new(core, 10, now);
        let (id, outbox) = bench.connect().unwrap();
        let resolve = r#"{"id":["policy_resolve",2],"method":"policy_resolve","params":[{"subject":"A","policy_uri":"/a/","prr":3600}]}"#;
        bench.receive(id, &format!("{IDENTITY}{resolve}"));
        let mut decoder = Decoder::without_identity(Limits::default());
        let (mut input, mut messages) = (BytesMut::new(), Vec::new());
        let wire = Wire::default();
        outbox.open(Box::new(wire.clone()));
        let (mut batch, mut most) = (Vec::new(), 0);
        let is_result = |message: &Incoming| {
            matches!(
                message,
                Incoming::Result {
                    reply: crate::message::Reply::Resolve(..),
                    ..
                }
            )
        };
        while !messages.iter().any(is_result) {
            most = most.max(outbox.waiting().bytes);
            let due = outbox.try_next(&mut batch).expect("more bytes are expected");
            outbox.send(due, &mut batch, &|| ()).unwrap();
            input.extend_from_slice(&std::mem::take(&mut *wire.0.lock().unwrap()));
            decoder.decode(&mut input, &mut messages).unwrap();
            bench.runner.handle(DispatchEvent::Room(id), now);
            while !bench.runner.is_idle() {
                bench.runner.turn(now, || Duration::ZERO);
            }
        }
        assert!(most < 3 << 20, "of ten megabytes, {most} waited");
        assert_eq!(bench.core().session_count(), 1);
    }

    #[test]
    fn a_session_stays_alive_while_a_long_message_arrives() {
        let begin = clock();
        let core = ServerCore::new(ServerSettings::new("pr1", "test"), begin);
        let mut bench = Bench::new(core, 10, begin);
        let (silent, _) = bench.connect().unwrap();
        let (sends, _) = bench.connect().unwrap();
        for id in [silent, sends] {
            bench.receive(id, IDENTITY);
        }
        for seconds in (10..300).step_by(5) {
            bench.now = begin + Duration::from_secs(seconds);
            bench
                .runner
                .handle(DispatchEvent::Items(sends, Vec::new(), 0), bench.now);
            bench.runner.next_deadline();
            bench.runner.tick(bench.now);
        }
        let sessions = bench.core().sessions(bench.now);
        assert_eq!(sessions.len(), 1);
        assert_eq!(sessions[0].connection, ConnectionId(sends.sequence()));
    }

    #[test]
    fn a_session_ends_with_the_certificate_of_its_client() {
        let begin = clock();
        let core = ServerCore::new(ServerSettings::new("pr1", "test"), begin);
        let mut bench = Bench::new(core, 10, begin);
        bench.connect().unwrap();
        bench.expires = Some(begin + Duration::from_secs(5));
        bench.connect().unwrap();
        for (seconds, left) in [(4, 2), (5, 1)] {
            bench.now = begin + Duration::from_secs(seconds);
            bench.runner.next_deadline();
            bench.runner.tick(bench.now);
            assert_eq!(bench.core().session_count(), left);
        }
    }

    #[test]
    fn a_full_server_and_one_that_stops_refuse_newcomers() {
        let now = clock();
        let core = ServerCore::new(ServerSettings::new("pr1", "test"), now);
        let mut bench = Bench::new(core, 1, now);
        let _client = bench.connect().unwrap();
        assert_eq!(
            bench.connect().unwrap_err(),
            "the server has 1 clients, as many as it may have"
        );
        bench.runner.handle(DispatchEvent::Stop, now);
        assert_eq!(bench.connect().unwrap_err(), "the server is shutting down");
    }
}
