//! A temporary PKI, and a client that a test controls frame by frame. Every receive has a time limit.
#![allow(
    dead_code,
    unreachable_pub,
    missing_debug_implementations,
    clippy::should_implement_trait,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::disallowed_methods,
    clippy::disallowed_types,
    clippy::cast_possible_truncation,
    reason = "tests; each test binary uses its own part"
)]

pub mod bodies;
pub mod etcd;
pub mod links;
pub mod memory_engine;
pub mod peers;
pub mod port;
pub mod program;
pub mod proxy;
pub mod random;
pub mod stepped;
pub mod wait;

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use bytes::BytesMut;
use ssntp::Role;
use ssntp::pki::{Authority, AuthorityRequest, CertificateRequest, Identity, Trust};
use ssntp::proto::{Codec, Connect, Connected, Frame, FrameKind, Header, Item, Operands, Status};
use ssntp::server::{Handler, Server, ServerConfig};
use ssntp::transport::memory::{Faults, MemoryListener};
use ssntp_transport::tls::Connector;
use ssntp_transport::{BufferPool, Duplex, Halves, Outgoing};
use uuid::Uuid;

/// The time limit of every wait. A test that reaches it fails. It is longer than the limits of the product
/// after which a busy machine continues in another way.
pub const LIMIT: Duration = Duration::from_secs(60);

/// The authority of this test binary.
pub fn authority() -> &'static Authority {
    static AUTHORITY: OnceLock<Authority> = OnceLock::new();
    AUTHORITY.get_or_init(|| Authority::new(&AuthorityRequest::default()).unwrap())
}

pub fn trust() -> Trust {
    authority().trust()
}

/// A new certificate with these roles.
pub fn identity(roles: Role) -> Identity {
    authority()
        .issue(&CertificateRequest::new(roles))
        .unwrap()
        .identity()
}

/// A certificate with these roles that is bound to a UUID.
pub fn bound_identity(roles: Role, uuid: Uuid) -> Identity {
    authority()
        .issue(&CertificateRequest::new(roles).uuid(uuid))
        .unwrap()
        .identity()
}

thread_local! {
    static WARNED: std::cell::RefCell<Vec<String>> = const { std::cell::RefCell::new(Vec::new()) };
}

/// The lines for audits of all threads.
static AUDITED: std::sync::Mutex<Vec<String>> = std::sync::Mutex::new(Vec::new());

/// Keeps the warnings of each thread, and the lines for audits.
struct Warnings;

impl log::Log for Warnings {
    fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
        metadata.level() <= log::Level::Warn || metadata.target() == "ssntp::audit"
    }

    fn log(&self, record: &log::Record<'_>) {
        let line = record.args().to_string();
        if record.level() <= log::Level::Warn {
            WARNED.with_borrow_mut(|warned| warned.push(line));
        } else if self.enabled(record.metadata()) {
            AUDITED.lock().unwrap().push(line);
        }
    }

    fn flush(&self) {}
}

fn keep_lines() {
    static LOGGER: OnceLock<()> = OnceLock::new();
    LOGGER.get_or_init(|| {
        log::set_logger(&Warnings).unwrap();
        log::set_max_level(log::LevelFilter::Info);
    });
}

/// The lines for audits of all threads since the first call of this function or of [`warnings`].
pub fn audited() -> Vec<String> {
    keep_lines();
    AUDITED.lock().unwrap().clone()
}

/// The log lines of this thread at the level warn or above during `act`.
pub fn warnings(act: impl FnOnce()) -> Vec<String> {
    keep_lines();
    WARNED.take();
    act();
    WARNED.take()
}

/// A server that listens only in memory.
pub struct TestServer {
    pub server: Option<Server>,
    pub listener: MemoryListener,
}

impl TestServer {
    pub fn start(handler: impl Handler, configure: impl FnOnce(ServerConfig) -> ServerConfig) -> Self {
        let listener = MemoryListener::new();
        let config = ServerConfig::new(identity(Role::SERVER), trust()).listen_in_memory(&listener);
        let server = Server::start(configure(config), handler).unwrap();
        Self {
            server: Some(server),
            listener,
        }
    }

    /// Renews the server with a new certificate. Returns the number of sessions that were checked, and
    /// the number that were ended.
    pub fn renew(&self, trust: &Trust) -> (usize, usize) {
        let server = self.server.as_ref().unwrap();
        let renewed = server.renew(&identity(Role::SERVER), trust).unwrap();
        (renewed.sessions, renewed.ended)
    }

    pub fn handle(&self) -> ssntp::server::ServerHandle {
        self.server.as_ref().unwrap().handle()
    }

    /// A client after the TLS handshake that has not sent CONNECT.
    pub fn dial(&self, identity: &Identity) -> Peer {
        Peer::over(self.stream(), identity)
    }

    /// As [`dial`](Self::dial), with the TLS tickets of the connector.
    pub fn dial_with(&self, connector: &Connector) -> Peer {
        Peer::with(self.stream(), connector)
    }

    /// A new stream to the server, before TLS.
    pub fn stream(&self) -> Arc<dyn Duplex> {
        let stream = self.listener.connect(Faults::default(), Faults::default());
        Arc::new(stream.unwrap())
    }

    /// A client with a new certificate for its role, connected.
    pub fn connect(&self, role: Role) -> Peer {
        self.connect_as(&identity(role), role, Uuid::new_v4())
    }

    pub fn connect_as(&self, identity: &Identity, role: Role, uuid: Uuid) -> Peer {
        let mut peer = self.dial(identity);
        peer.handshake(role, uuid, false);
        peer
    }
}

/// A client that the test controls.
pub struct Peer {
    halves: Halves,
    codec: Codec,
    items: Vec<Item>,
    waiting: std::collections::VecDeque<Received>,
    pub uuid: Uuid,
    /// True if TLS resumed an earlier session.
    pub resumed: bool,
    ended: bool,
    /// True if the server ended the stream with close_notify.
    pub was_closed: bool,
}

/// A frame that a peer received, or the end of the stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Received {
    Frame(Frame),
    End,
}

impl Peer {
    pub fn over(stream: Arc<dyn Duplex>, identity: &Identity) -> Self {
        Self::with(stream, &trust().connector(identity).unwrap())
    }

    pub fn with(stream: Arc<dyn Duplex>, connector: &Connector) -> Self {
        let deadline = Instant::now() + LIMIT;
        let secured = connector
            .connect(stream, "localhost", &BufferPool::new(), deadline)
            .unwrap();
        Self {
            halves: secured.halves,
            resumed: secured.resumed,
            codec: Codec::new(u32::MAX, false),
            items: Vec::new(),
            waiting: Default::default(),
            uuid: Uuid::nil(),
            ended: false,
            was_closed: false,
        }
    }

    /// Sends CONNECT and receives CONNECTED.
    pub fn handshake(&mut self, role: Role, uuid: Uuid, trace: bool) -> Connected {
        self.uuid = uuid;
        self.send_bytes(&Connect::new(role, uuid, trace).encode());
        let connected = self.connected();
        self.codec = Codec::new(u32::MAX, connected.trace);
        connected
    }

    /// As [`handshake`](Self::handshake), for a peer that accepts frames of an application. Returns
    /// false if the server refuses the peer.
    pub fn try_handshake(&mut self, role: Role, uuid: Uuid, trace: bool, operands: Operands) -> bool {
        self.uuid = uuid;
        let connect = Connect::new(role, uuid, trace).encode();
        if self.try_send_bytes(&connect).is_err() || !self.next_is_connected() {
            return false;
        }
        let connected = self.connected();
        self.codec = Codec::new(u32::MAX, connected.trace).operands(operands);
        true
    }

    /// The frames that have arrived. Does not wait.
    pub fn arrived(&mut self) -> Vec<Received> {
        while self.halves.stream.is_readable() && self.read() {}
        self.decode();
        let end = self.ended.then_some(Received::End);
        self.waiting.drain(..).chain(end).collect()
    }

    fn decode(&mut self) {
        let decoded = self.codec.decode(self.halves.inbox.bytes_mut(), &mut self.items);
        decoded.unwrap();
        for item in self.items.drain(..) {
            match item {
                Item::Run(run) => self.waiting.extend(run.frames().map(Received::Frame)),
                Item::Traced(frame) => self.waiting.push_back(Received::Frame(frame)),
                Item::Unsupported(kind) => panic!("the server sent {kind}"),
            }
        }
    }

    /// Accepts frames of an application from now on.
    pub fn takes(&mut self, operands: Operands) {
        self.codec = Codec::new(u32::MAX, false).operands(operands);
    }

    /// Receives CONNECTED.
    pub fn connected(&mut self) -> Connected {
        loop {
            let input: &mut BytesMut = self.halves.inbox.bytes_mut();
            if input.len() >= 44 {
                let header = Header::decode(input).unwrap();
                assert_eq!(header.kind, Status::CONNECTED, "{header:?}");
                let length = u32::from_be_bytes(input[40..44].try_into().unwrap()) as usize;
                if input.len() >= 44 + length {
                    let frame = input.split_to(44 + length).freeze();
                    return Connected {
                        role: Role::from_bits(header.word),
                        server: Uuid::from_slice(&frame[8..24]).unwrap(),
                        client: Uuid::from_slice(&frame[24..40]).unwrap(),
                        trace: header.traced(),
                        payload: frame.slice(44..),
                    };
                }
            }
            assert!(self.read(), "the connection ended before CONNECTED");
        }
    }

    /// True if the server's first frame is CONNECTED.
    pub fn next_is_connected(&mut self) -> bool {
        while self.halves.inbox.bytes_mut().len() < Header::LEN && self.read() {}
        Header::decode(self.halves.inbox.bytes_mut()).is_some_and(|h| h.kind == Status::CONNECTED)
    }

    /// Receives the header of a refusal, and then the end.
    pub fn refusal(&mut self) -> Option<FrameKind> {
        while self.read() {}
        let input = self.halves.inbox.bytes_mut();
        assert!(input.is_empty() || input.len() == Header::LEN, "{input:?}");
        Header::decode(input).map(|header| header.kind)
    }

    fn read(&mut self) -> bool {
        if self.ended {
            return false;
        }
        self.halves.stream.set_read_timeout(Some(LIMIT)).unwrap();
        match self.halves.receive.receive(&mut self.halves.inbox) {
            Ok(received) => {
                (self.ended, self.was_closed) = (received.end, received.end);
                !received.end
            }
            Err(e) => {
                assert!(
                    !matches!(
                        e.kind(),
                        std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut
                    ),
                    "nothing was received in {LIMIT:?}"
                );
                self.ended = true;
                false
            }
        }
    }

    pub fn send_bytes(&mut self, bytes: &[u8]) {
        self.try_send_bytes(bytes).unwrap();
    }

    pub fn try_send_bytes(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.halves
            .transmit
            .transmit(&[Outgoing::whole(bytes.to_vec().into(), 1)])
    }

    pub fn send(&mut self, frame: &Frame) {
        self.send_bytes(&frame.encode());
    }

    /// The next frame, or the end.
    pub fn next(&mut self) -> Received {
        loop {
            self.decode();
            if let Some(received) = self.waiting.pop_front() {
                return received;
            }
            // The rest may be an incomplete frame.
            if self.ended {
                return Received::End;
            }
            self.read();
        }
    }

    /// The next frame. Panics at the end of the stream.
    pub fn frame(&mut self) -> Frame {
        match self.next() {
            Received::Frame(frame) => frame,
            Received::End => panic!("the connection ended"),
        }
    }

    /// Asserts that the connection ends without another frame.
    pub fn end(&mut self) {
        assert_eq!(self.next(), Received::End);
    }

    /// Sends close_notify and the end of the stream.
    pub fn finish(&mut self) {
        self.halves.transmit.finish().unwrap();
    }

    /// As [`finish`](Self::finish), but ignores errors.
    pub fn finish_if_possible(&mut self) {
        let _ = self.halves.transmit.finish();
    }

    pub fn stream(&self) -> &Arc<dyn Duplex> {
        &self.halves.stream
    }
}
