//! The two threads of a link over real sockets and in memory, with and without TLS, connected to each
//! other and to a peer that uses only rustls.

mod link;
mod tls;

use std::convert::Infallible;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use rustls::client::ResolvesClientCert;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{AlertDescription, ProtocolVersion, SignatureScheme, SupportedProtocolVersion};
use socket2::Socket;
use ssntp::Role;
use ssntp::pki::{self, Authority, AuthorityRequest, ServerCheck};
use ssntp::transport::Limits;
use ssntp::transport::memory::{self, Faults};
use ssntp_test_support::{LIMIT, identity, trust};
use ssntp_transport::tls::{Acceptor, Connector, TlsError};
use ssntp_transport::{
    BufferPool, Decode, Duplex, EndReason, Halves, Link, LinkConfig, Outbox, Outgoing, Sink, plain,
};

/// The number of bytes that each side of a heavy exchange sends.
const HEAVY: usize = 16 << 20;
/// More than the buffers of any socket here hold.
const STUCK: usize = 64 << 20;

type Stream = Arc<dyn Duplex>;

fn tcp() -> (Stream, Stream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (server, _) = listener.accept().unwrap();
    client.set_nodelay(true).unwrap();
    server.set_nodelay(true).unwrap();
    (Arc::new(Socket::from(client)), Arc::new(Socket::from(server)))
}

fn unix() -> (Stream, Stream) {
    let (client, server) = UnixStream::pair().unwrap();
    (Arc::new(Socket::from(client)), Arc::new(Socket::from(server)))
}

fn in_memory() -> (Stream, Stream) {
    faulty(Faults::default(), Faults::default())
}

fn faulty(client: Faults, server: Faults) -> (Stream, Stream) {
    let (client, server) = memory::pair_with(client, server);
    (Arc::new(client), Arc::new(server))
}

/// Every kind of stream.
const KINDS: [fn() -> (Stream, Stream); 3] = [tcp, unix, in_memory];

fn acceptor() -> Acceptor {
    trust().acceptor(&identity(Role::SERVER)).unwrap()
}

fn connector() -> Connector {
    trust().connector(&identity(Role::AGENT)).unwrap()
}

/// Both ends with TLS, the client's first.
fn secure((client, server): (Stream, Stream)) -> (Halves, Halves) {
    let deadline = Instant::now() + LIMIT;
    let accepting = std::thread::spawn(move || acceptor().accept(server, &BufferPool::new(), deadline));
    let client = connector().connect(client, "localhost", &BufferPool::new(), deadline);
    (client.unwrap().halves, accepting.join().unwrap().unwrap().halves)
}

fn in_clear((client, server): (Stream, Stream)) -> (Halves, Halves) {
    (plain(client, BufferPool::new()), plain(server, BufferPool::new()))
}

/// All bytes that have arrived are one item.
struct Anything;

impl Decode for Anything {
    type Item = Bytes;
    type Error = Infallible;

    fn decode(&mut self, input: &mut BytesMut, items: &mut Vec<Bytes>) -> Result<(), Infallible> {
        if !input.is_empty() {
            items.push(input.split().freeze());
        }
        Ok(())
    }

    fn wanted(&self) -> usize {
        0
    }
}

enum Note {
    Item(Bytes),
    Ended(EndReason),
    Finished,
}

/// Reports the events of a link's owner to the test.
struct Notes {
    sender: Sender<Note>,
    /// Items are held back until this is closed.
    gate: Option<Receiver<()>>,
    /// The item that is pushed when the peer's side has ended.
    last: Option<(Outbox, Outgoing)>,
}

impl Sink<Bytes> for Notes {
    fn items(&mut self, items: &mut Vec<Bytes>, _: usize) -> bool {
        if let Some(gate) = self.gate.take() {
            let _ = gate.recv();
        }
        items
            .drain(..)
            .all(|item| self.sender.send(Note::Item(item)).is_ok())
    }

    fn ended(&mut self, reason: EndReason) {
        if let Some((outbox, last)) = self.last.take() {
            outbox.push(last, Limits::NONE, false).unwrap();
        }
        let _ = self.sender.send(Note::Ended(reason));
    }

    fn finished(&mut self) {
        let _ = self.sender.send(Note::Finished);
    }
}

/// A link under test, and its events.
struct Side {
    link: Link,
    outbox: Outbox,
    notes: Receiver<Note>,
    received: usize,
}

impl Side {
    fn new(halves: Halves) -> Self {
        Self::with(halves, outbox(), LinkConfig::default(), None)
    }

    fn with(halves: Halves, outbox: Outbox, config: LinkConfig, gate: Option<Receiver<()>>) -> Self {
        let (sender, receiver) = channel();
        let notes = Notes {
            sender,
            gate,
            last: None,
        };
        Self::start(halves, outbox, config, notes, receiver)
    }

    fn start(
        halves: Halves,
        outbox: Outbox,
        config: LinkConfig,
        notes: Notes,
        received: Receiver<Note>,
    ) -> Self {
        Self {
            link: Link::start(halves, Anything, outbox.clone(), notes, config).unwrap(),
            outbox,
            notes: received,
            received: 0,
        }
    }

    /// Queues the next part of the pattern, in pieces.
    fn push(&self, from: usize, len: usize, piece: usize) {
        queue(&self.outbox, from, len, piece);
    }

    /// Receives the next `len` bytes of the pattern.
    fn expect(&mut self, len: usize) {
        let until = self.received + len;
        while self.received < until {
            match self.notes.recv_timeout(LIMIT).expect("nothing arrived") {
                Note::Item(item) => {
                    assert!(is_pattern(self.received, &item), "at {}", self.received);
                    self.received += item.len();
                }
                Note::Ended(reason) => panic!("the link ended after {} bytes: {reason}", self.received),
                Note::Finished => unreachable!("the link has ended before"),
            }
        }
    }

    /// Waits for the end and returns its reason; earlier items are dropped.
    fn ended(&mut self) -> EndReason {
        loop {
            match self.notes.recv_timeout(LIMIT).expect("the link did not end") {
                Note::Item(_) => {}
                Note::Ended(reason) => return reason,
                Note::Finished => unreachable!("the link has ended before"),
            }
        }
    }

    /// Waits for both threads.
    fn join(self) {
        assert!(matches!(self.notes.recv_timeout(LIMIT), Ok(Note::Finished)));
        self.link.join();
    }
}

fn outbox() -> Outbox {
    Outbox::new(Limits::NONE)
}

/// The period of the bytes of every stream here.
const PERIOD: usize = 251;

/// A part of the pattern of every stream here, from a position on; at most a mebibyte.
fn pattern(from: usize, len: usize) -> Bytes {
    static REPEATED: OnceLock<Bytes> = OnceLock::new();
    let repeated = REPEATED.get_or_init(|| {
        let period: Vec<u8> = (0..PERIOD as u8).collect();
        period.repeat((1 << 20) / PERIOD + 2).into()
    });
    let start = from % PERIOD;
    repeated.slice(start..start + len)
}

fn is_pattern(mut from: usize, bytes: &[u8]) -> bool {
    bytes.chunks(1 << 20).all(|chunk| {
        let same = *chunk == pattern(from, chunk.len())[..];
        from += chunk.len();
        same
    })
}

fn queue(outbox: &Outbox, from: usize, len: usize, piece: usize) {
    for start in (from..from + len).step_by(piece) {
        let bytes = pattern(start, piece.min(from + len - start));
        outbox
            .push(Outgoing::whole(bytes, 1), Limits::NONE, false)
            .unwrap();
    }
}

/// The stream of a raw peer, with its TLS records counted.
struct Tap {
    stream: Stream,
    header: Vec<u8>,
    left: usize,
    /// Records of application data or, in TLS 1.3, of anything encrypted.
    records: usize,
    /// The most bytes of each write.
    piece: usize,
}

impl Read for Tap {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = self.stream.read(buffer)?;
        for &byte in &buffer[..n] {
            if self.left > 0 {
                self.left -= 1;
                continue;
            }
            self.header.push(byte);
            if let [kind, _, _, high, low] = self.header[..] {
                self.records += usize::from(kind == 23);
                self.left = u16::from_be_bytes([high, low]).into();
                self.header.clear();
            }
        }
        Ok(n)
    }
}

impl Write for Tap {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.write(&bytes[..bytes.len().min(self.piece)])
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A peer whose TLS is rustls's buffered one, on the test's thread.
struct Raw {
    tls: rustls::Connection,
    tap: Tap,
}

impl Raw {
    fn new(tls: impl Into<rustls::Connection>, stream: Stream) -> Self {
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        let mut tls = tls.into();
        tls.set_buffer_limit(None);
        Self {
            tls,
            tap: Tap {
                stream,
                header: Vec::new(),
                left: 0,
                records: 0,
                piece: usize::MAX,
            },
        }
    }

    fn client(stream: Stream, versions: &[&'static SupportedProtocolVersion]) -> Self {
        let identity = identity(Role::AGENT);
        let config = rustls::ClientConfig::builder_with_provider(pki::provider())
            .with_protocol_versions(versions)
            .unwrap()
            .with_root_certificates(Arc::clone(trust().roots()))
            .with_client_cert_resolver(Arc::new(SingleCertAndKey::from(identity.certified_key())));
        let name = "localhost".try_into().unwrap();
        let tls = rustls::ClientConnection::new(Arc::new(config), name).unwrap();
        Self::new(tls, stream)
    }

    fn server(stream: Stream) -> Self {
        let identity = identity(Role::SERVER);
        let roots = Arc::clone(trust().roots());
        let provider = pki::provider();
        let verifier =
            rustls::server::WebPkiClientVerifier::builder_with_provider(roots, Arc::clone(&provider));
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_client_cert_verifier(verifier.build().unwrap())
            .with_cert_resolver(Arc::new(SingleCertAndKey::from(identity.certified_key())));
        Self::new(rustls::ServerConnection::new(Arc::new(config)).unwrap(), stream)
    }

    /// A raw client, and the other end as a server's halves.
    fn and_server(kind: fn() -> (Stream, Stream)) -> (Self, Halves) {
        Self::and_server_with(kind, rustls::ALL_VERSIONS)
    }

    fn and_server_with(
        kind: fn() -> (Stream, Stream),
        versions: &[&'static SupportedProtocolVersion],
    ) -> (Self, Halves) {
        let (client, server) = kind();
        let deadline = Instant::now() + LIMIT;
        let accepting = std::thread::spawn(move || acceptor().accept(server, &BufferPool::new(), deadline));
        let mut raw = Self::client(client, versions);
        raw.shake();
        (raw, accepting.join().unwrap().unwrap().halves)
    }

    /// A raw server, and the other end as a client's halves.
    fn and_client(kind: fn() -> (Stream, Stream)) -> (Self, Halves) {
        let (client, server) = kind();
        let deadline = Instant::now() + LIMIT;
        let connecting = std::thread::spawn(move || {
            connector().connect(client, "localhost", &BufferPool::new(), deadline)
        });
        let mut raw = Self::server(server);
        raw.shake();
        (raw, connecting.join().unwrap().unwrap().halves)
    }

    fn shake(&mut self) {
        while self.tls.is_handshaking() || self.tls.wants_write() {
            self.tls.complete_io(&mut self.tap).unwrap();
        }
        self.tap.records = 0;
    }

    /// Writes the pending bytes of TLS to the stream.
    fn flush(&mut self) {
        while self.tls.wants_write() {
            self.tls.write_tls(&mut self.tap).unwrap();
        }
    }

    /// The pending bytes of TLS.
    fn taken(&mut self) -> Vec<u8> {
        let mut wire = Vec::new();
        while self.tls.wants_write() {
            self.tls.write_tls(&mut wire).unwrap();
        }
        wire
    }

    fn seal(&mut self, bytes: &[u8]) {
        self.tls.writer().write_all(bytes).unwrap();
    }

    fn send(&mut self, bytes: &[u8]) {
        self.seal(bytes);
        self.flush();
    }

    /// Receives the pattern, from its begin or from a position on.
    fn expect(&mut self, from: usize, len: usize) {
        let mut at = from;
        let mut buffer = vec![0; 64 * 1024];
        while at < from + len {
            let wanted = buffer.len().min(from + len - at);
            match self.tls.reader().read(&mut buffer[..wanted]) {
                Ok(0) => panic!("the stream ended after {} bytes", at - from),
                Ok(n) => {
                    assert!(is_pattern(at, &buffer[..n]), "at {at}");
                    at += n;
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => assert!(self.more().unwrap() > 0),
                Err(e) => panic!("after {} bytes: {e}", at - from),
            }
        }
    }

    /// Reads further bytes from the stream.
    fn more(&mut self) -> Result<usize, rustls::Error> {
        let n = self.tls.read_tls(&mut self.tap).unwrap();
        self.tls.process_new_packets()?;
        Ok(n)
    }

    /// Waits for close_notify.
    fn expect_close(&mut self) {
        loop {
            match self.tls.reader().read(&mut [0; 1]) {
                Ok(n) => return assert_eq!(n, 0, "data instead of the end"),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    self.more().unwrap();
                }
                Err(e) => panic!("{e}"),
            }
        }
    }

    fn close(&mut self) {
        self.tls.send_close_notify();
        self.flush();
        self.tap.stream.shutdown(Shutdown::Write).unwrap();
    }
}
