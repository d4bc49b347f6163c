//! A server that a test controls step by step, on the test's own thread. Every wait has a limit.

use std::collections::VecDeque;
use std::io;
use std::net::Shutdown;
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::Bytes;
use crossbeam_channel::Receiver;
use uuid::Uuid;

use crate::client::{ClientConfig, ServerInfo};
use crate::proto::{
    Codec, Connect, DEFAULT_MAX_PAYLOAD, Frame, FrameKind, Header, Item, Operands, ServerHandshake,
};
use crate::{Role, wire::outgoing};
use ssntp_pki::{Authority, AuthorityRequest, CertificateRequest, Identity, Trust};
use ssntp_transport::memory::MemoryListener;
use ssntp_transport::tls::{Acceptor, TlsError};
use ssntp_transport::{
    Address, BufferPool, Duplex, Halves, Listener, Outgoing, PeerAddress, TcpOptions, threads,
};

/// Longer than any wait of a test that passes.
pub(super) const LIMIT: Duration = Duration::from_secs(20);

pub(super) const SERVER: Uuid = Uuid::from_u128(0x5e17);

/// An authority for all tests.
pub(super) fn authority() -> &'static Authority {
    static AUTHORITY: OnceLock<Authority> = OnceLock::new();
    AUTHORITY.get_or_init(|| Authority::new(&AuthorityRequest::default()).unwrap())
}

pub(super) fn identity(role: Role) -> Identity {
    authority()
        .issue(&CertificateRequest::new(role))
        .unwrap()
        .identity()
}

pub(super) fn identity_of_server() -> &'static Identity {
    static IDENTITY: OnceLock<Identity> = OnceLock::new();
    IDENTITY.get_or_init(|| identity(Role::SERVER))
}

/// The facts of a server for a client that is stepped.
pub(super) fn server_info(tracing: bool) -> Arc<ServerInfo> {
    Arc::new(ServerInfo {
        uuid: SERVER,
        role: Role::SERVER,
        name: "test".to_owned(),
        address: PeerAddress::Memory,
        certificate: identity_of_server().info().clone(),
        tracing,
        tls: "TLSv1.3",
        resumed: false,
    })
}

pub(super) fn trust() -> Trust {
    authority().trust()
}

/// An agent without servers, whose pauses are short.
pub(super) fn agent() -> ClientConfig {
    agent_as(identity(Role::AGENT))
}

pub(super) fn agent_as(identity: Identity) -> ClientConfig {
    let quick = crate::client::Backoff {
        initial: Duration::from_millis(1),
        cap: Duration::from_millis(1),
    };
    ClientConfig::new(identity, trust()).backoff(quick)
}

/// A listener. The test does the rest.
pub(super) struct TestServer {
    acceptor: Acceptor,
    address: Option<Address>,
    incoming: Receiver<Arc<dyn Duplex>>,
    listeners: Vec<Arc<Listener>>,
    threads: Vec<JoinHandle<()>>,
}

impl TestServer {
    pub(super) fn tcp() -> Self {
        Self::tcp_as(&identity(Role::SERVER), &trust())
    }

    pub(super) fn tcp_as(identity: &Identity, trust: &Trust) -> Self {
        let listeners = Listener::bind(&Address::tcp("127.0.0.1", 0), TcpOptions::default()).unwrap();
        Self::start(listeners, identity, trust)
    }

    pub(super) fn unix(path: &std::path::Path) -> Self {
        let listeners = Listener::bind(&Address::Unix(path.into()), TcpOptions::default()).unwrap();
        Self::start(listeners, &identity(Role::SERVER), &trust())
    }

    pub(super) fn memory() -> (Self, MemoryListener) {
        let listener = MemoryListener::new();
        let server = Self::memory_as(&listener, &identity(Role::SERVER), &trust());
        (server, listener)
    }

    pub(super) fn memory_as(listener: &MemoryListener, identity: &Identity, trust: &Trust) -> Self {
        Self::start(vec![Listener::memory(listener.clone())], identity, trust)
    }

    fn start(listeners: Vec<Listener>, identity: &Identity, trust: &Trust) -> Self {
        let (sender, incoming) = crossbeam_channel::unbounded();
        let address = listeners[0].local_address();
        let listeners: Vec<_> = listeners.into_iter().map(Arc::new).collect();
        let mut threads = Vec::new();
        for listener in &listeners {
            let (listener, sender) = (Arc::clone(listener), sender.clone());
            let accept = move || {
                while let Ok(Some((stream, _))) = listener.accept() {
                    sender.send(stream).unwrap();
                }
            };
            threads.push(threads::spawn("accept", accept).unwrap());
        }
        Self {
            acceptor: trust.acceptor(identity).unwrap(),
            address,
            incoming,
            listeners,
            threads,
        }
    }

    /// Sets the credentials of later handshakes.
    pub(super) fn renew(&mut self, identity: &Identity, trust: &Trust) {
        self.acceptor = trust.acceptor(identity).unwrap();
    }

    pub(super) fn address(&self) -> Address {
        self.address.clone().unwrap()
    }

    /// The next connection, before TLS.
    pub(super) fn connection(&self) -> Arc<dyn Duplex> {
        self.incoming.recv_timeout(LIMIT).unwrap()
    }

    pub(super) fn has_no_connection(&self) -> bool {
        self.incoming.is_empty()
    }

    /// The next connection up to TLS.
    pub(super) fn tls(&self) -> Result<Peer, TlsError> {
        let deadline = Instant::now() + LIMIT;
        let secured = self
            .acceptor
            .accept(self.connection(), &BufferPool::new(), deadline)?;
        Ok(Peer {
            halves: secured.halves,
            codec: Codec::new(DEFAULT_MAX_PAYLOAD, false),
            frames: VecDeque::new(),
            connect: None,
        })
    }

    /// The next connection up to CONNECT.
    pub(super) fn connect(&self) -> Peer {
        let mut peer = self.tls().unwrap();
        peer.receive_connect();
        peer
    }

    /// The next connection, admitted.
    pub(super) fn session(&self) -> Peer {
        self.session_with(b"")
    }

    /// The next connection, admitted with a configuration.
    pub(super) fn session_with(&self, configuration: &'static [u8]) -> Peer {
        let mut peer = self.connect();
        let reply = peer.connected(Role::SERVER, configuration);
        peer.send_raw(reply);
        peer
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        for listener in &self.listeners {
            listener.close();
        }
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// The server's end of a connection.
pub(super) struct Peer {
    pub(super) halves: Halves,
    codec: Codec,
    frames: VecDeque<Frame>,
    connect: Option<Connect>,
}

impl Peer {
    fn receive_connect(&mut self) {
        let handshake = ServerHandshake::new(Role::ALL, None);
        let connect = loop {
            if let Some(connect) = handshake.receive(self.halves.inbox.bytes_mut()).unwrap() {
                break connect;
            }
            assert!(self.read().unwrap(), "the client ended before CONNECT");
        };
        self.connect = Some(connect);
    }

    /// The client's CONNECT.
    pub(super) fn hello(&self) -> Connect {
        self.connect.unwrap()
    }

    /// The answer that admits the client, with tracing if it asked for that.
    pub(super) fn connected(&mut self, role: Role, configuration: &'static [u8]) -> Vec<u8> {
        let hello = self.hello();
        self.codec = Codec::new(DEFAULT_MAX_PAYLOAD, hello.trace);
        let configuration = Bytes::from_static(configuration);
        ServerHandshake::connected(&hello, SERVER, role, true, configuration).encode()
    }

    /// Accepts frames of an application from now on.
    pub(super) fn operands(&mut self, operands: &Operands) {
        self.codec = Codec::new(DEFAULT_MAX_PAYLOAD, false).operands(operands.clone());
    }

    pub(super) fn send(&mut self, frame: &Frame) {
        let item = outgoing(frame, self.hello().trace);
        self.halves.transmit.transmit(&[item]).unwrap();
    }

    /// Returns false if the client no longer accepts it.
    pub(super) fn try_send(&mut self, frame: &Frame) -> bool {
        self.halves.transmit.transmit(&[outgoing(frame, false)]).is_ok()
    }

    pub(super) fn send_kind(&mut self, kind: impl Into<FrameKind>) {
        self.send_raw(Header::new(kind.into(), 0).encode().to_vec());
    }

    pub(super) fn send_raw(&mut self, bytes: Vec<u8>) {
        self.halves
            .transmit
            .transmit(&[Outgoing::whole(bytes.into(), 1)])
            .unwrap();
    }

    /// Reads once; false at the end of the stream.
    fn read(&mut self) -> io::Result<bool> {
        self.halves.stream.set_read_timeout(Some(LIMIT)).unwrap();
        let received = self.halves.receive.receive(&mut self.halves.inbox)?;
        if received.flush {
            self.halves.transmit.flush()?;
        }
        Ok(!received.end)
    }

    /// The next frame; `None` after close_notify.
    pub(super) fn try_recv(&mut self) -> io::Result<Option<Frame>> {
        loop {
            if let Some(frame) = self.frames.pop_front() {
                return Ok(Some(frame));
            }
            let goes_on = self.read()?;
            let mut items = Vec::new();
            self.codec
                .decode(self.halves.inbox.bytes_mut(), &mut items)
                .unwrap();
            for item in items {
                match item {
                    Item::Run(run) => self.frames.extend(run.frames()),
                    Item::Traced(frame) => self.frames.push_back(frame),
                    Item::Unsupported(kind) => panic!("{kind} from a client"),
                }
            }
            if !goes_on && self.frames.is_empty() {
                return Ok(None);
            }
        }
    }

    pub(super) fn recv(&mut self) -> Frame {
        self.try_recv().unwrap().unwrap()
    }

    /// Expects the client to end its side with close_notify.
    pub(super) fn expect_end(&mut self) {
        assert_eq!(self.try_recv().unwrap(), None);
    }

    /// Ends this side with close_notify, and waits for the client to do so.
    pub(super) fn close(mut self) {
        self.halves.transmit.finish().unwrap();
        while self.read().is_ok_and(|goes_on| goes_on) {}
    }

    /// Loses the connection.
    pub(super) fn cut(self) {
        let _ = self.halves.stream.shutdown(Shutdown::Both);
    }
}
