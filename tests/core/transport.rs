//! The two threads of a link over real sockets and in memory, in clear and as
//! TLS, against each other and against a peer that rustls drives alone.

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
use ssntp::pki::{self, Authority, AuthorityRequest};
use ssntp::transport::Limits;
use ssntp::transport::memory::{self, Faults};
use ssntp::transport::tls::{Acceptor, Connector, ServerCheck, TlsError};
use ssntp_test_support::{LIMIT, identity, trust};
use ssntp_transport::{
    BufferPool, Decode, Duplex, EndReason, Halves, Link, LinkConfig, Outbox, Outgoing, Sink, plain,
};

/// What each side of a heavy exchange sends.
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
    Acceptor::mutual(&identity(Role::SERVER), &trust()).unwrap()
}

fn connector() -> Connector {
    Connector::mutual(&identity(Role::AGENT), &trust()).unwrap()
}

/// Both ends as TLS, the client's first.
fn secure((client, server): (Stream, Stream)) -> (Halves, Halves) {
    let deadline = Instant::now() + LIMIT;
    let accepting = std::thread::spawn(move || acceptor().accept(server, &BufferPool::new(), deadline));
    let client = connector().connect(client, "localhost", &BufferPool::new(), deadline);
    (client.unwrap().halves, accepting.join().unwrap().unwrap().halves)
}

fn in_clear((client, server): (Stream, Stream)) -> (Halves, Halves) {
    (plain(client, BufferPool::new()), plain(server, BufferPool::new()))
}

/// Whatever has arrived is an item.
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

enum Told {
    Item(Bytes),
    Ended(EndReason),
    Finished,
}

/// Tells the test what a link's owner is told.
struct Notes {
    told: Sender<Told>,
    /// Items are held back until this is closed.
    gate: Option<Receiver<()>>,
    /// What is pushed when the peer's side has ended.
    last: Option<(Outbox, Outgoing)>,
}

impl Sink<Bytes> for Notes {
    fn items(&mut self, items: &mut Vec<Bytes>, _: usize) -> bool {
        if let Some(gate) = self.gate.take() {
            let _ = gate.recv();
        }
        items
            .drain(..)
            .all(|item| self.told.send(Told::Item(item)).is_ok())
    }

    fn ended(&mut self, reason: EndReason) {
        if let Some((outbox, last)) = self.last.take() {
            outbox.push(last).unwrap();
        }
        let _ = self.told.send(Told::Ended(reason));
    }

    fn finished(&mut self) {
        let _ = self.told.send(Told::Finished);
    }
}

/// A link under test, and what it tells.
struct Side {
    link: Link,
    outbox: Outbox,
    told: Receiver<Told>,
    received: usize,
}

impl Side {
    fn new(halves: Halves) -> Self {
        Self::with(halves, outbox(), LinkConfig::default(), None)
    }

    fn with(halves: Halves, outbox: Outbox, config: LinkConfig, gate: Option<Receiver<()>>) -> Self {
        let (told, receiver) = channel();
        let notes = Notes {
            told,
            gate,
            last: None,
        };
        Self::start(halves, outbox, config, notes, receiver)
    }

    fn start(halves: Halves, outbox: Outbox, config: LinkConfig, notes: Notes, told: Receiver<Told>) -> Self {
        Self {
            link: Link::start(halves, Anything, outbox.clone(), notes, config).unwrap(),
            outbox,
            told,
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
            match self.told.recv_timeout(LIMIT).expect("nothing arrived") {
                Told::Item(item) => {
                    assert!(is_pattern(self.received, &item), "at {}", self.received);
                    self.received += item.len();
                }
                Told::Ended(reason) => panic!("it ended after {} bytes: {reason}", self.received),
                Told::Finished => unreachable!("it has ended before"),
            }
        }
    }

    /// Waits for the end and says why it was; what arrives before is dropped.
    fn ended(&mut self) -> EndReason {
        loop {
            match self.told.recv_timeout(LIMIT).expect("it did not end") {
                Told::Item(_) => {}
                Told::Ended(reason) => return reason,
                Told::Finished => unreachable!("it has ended before"),
            }
        }
    }

    /// Waits for both threads.
    fn join(self) {
        assert!(matches!(self.told.recv_timeout(LIMIT), Ok(Told::Finished)));
        self.link.join();
    }
}

fn outbox() -> Outbox {
    Outbox::new(Limits {
        frames: u64::MAX,
        bytes: u64::MAX,
    })
}

/// How often the bytes of every stream here repeat.
const PERIOD: usize = 251;

/// A part of every stream here, from a place on; a mebibyte at most.
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
        outbox.push(Outgoing::whole(bytes, 1)).unwrap();
    }
}

/// What a raw peer sees of the stream, with its TLS records counted.
struct Tap {
    stream: Stream,
    header: Vec<u8>,
    left: usize,
    /// Records of application data or, in TLS 1.3, of anything encrypted.
    records: usize,
    /// Each write takes so many bytes at most.
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
        let config = rustls::ClientConfig::builder_with_provider(pki::provider().unwrap())
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
        let provider = pki::provider().unwrap();
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

    /// Puts on the wire what TLS has for it.
    fn flush(&mut self) {
        while self.tls.wants_write() {
            self.tls.write_tls(&mut self.tap).unwrap();
        }
    }

    /// What TLS has for the wire.
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

    /// Receives the pattern, from its begin or from a place on.
    fn expect(&mut self, from: usize, len: usize) {
        let mut at = from;
        let mut buffer = vec![0; 64 * 1024];
        while at < from + len {
            let wanted = buffer.len().min(from + len - at);
            match self.tls.reader().read(&mut buffer[..wanted]) {
                Ok(0) => panic!("it ended after {} bytes", at - from),
                Ok(n) => {
                    assert!(is_pattern(at, &buffer[..n]), "at {at}");
                    at += n;
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => assert!(self.more().unwrap() > 0),
                Err(e) => panic!("after {} bytes: {e}", at - from),
            }
        }
    }

    /// Takes some more off the wire.
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

#[test]
fn both_sides_write_and_read_at_once() {
    for kind in KINDS {
        for ends in [in_clear as fn((Stream, Stream)) -> (Halves, Halves), secure] {
            let (client, server) = ends(kind());
            let (mut client, mut server) = (Side::new(client), Side::new(server));
            for side in [&client, &server] {
                side.push(0, HEAVY, 64 * 1024);
            }
            client.expect(HEAVY);
            server.expect(HEAVY);
            client.link.close();
            assert!(matches!(server.ended(), EndReason::PeerClosed));
            assert!(matches!(client.ended(), EndReason::Local));
            client.join();
            server.join();
        }
    }
}

#[test]
fn two_sides_that_write_and_do_not_read_are_not_stuck_for_good() {
    for kind in KINDS {
        let (client, server) = secure(kind());
        let (gates, mut sides): (Vec<_>, Vec<_>) = [client, server]
            .into_iter()
            .map(|halves| {
                let (gate, shut) = channel();
                let side = Side::with(halves, outbox(), LinkConfig::default(), Some(shut));
                side.push(0, HEAVY, 64 * 1024);
                (gate, side)
            })
            .unzip();
        drop(gates);
        for side in &mut sides {
            side.expect(HEAVY);
        }
    }
}

#[test]
fn a_writer_stuck_on_a_full_socket_keeps_nothing_from_arriving() {
    for kind in KINDS {
        let (mut raw, server) = Raw::and_server(kind);
        let mut server = Side::new(server);
        server.push(0, STUCK, 256 * 1024);
        for n in 0..100 {
            raw.send(&pattern(n * 1000, 1000));
            server.expect(1000);
        }
        let waiting = server.outbox.waiting().bytes;
        assert!(
            waiting > 0,
            "the queue was to be longer than the socket's buffers"
        );
        server.link.abort();
        assert!(matches!(server.ended(), EndReason::Local));
        server.join();
    }
}

#[test]
fn key_updates_of_the_peer_pass_while_the_writer_is_idle() {
    for and_side in [Raw::and_client, Raw::and_server] {
        let (mut raw, halves) = and_side(tcp);
        let mut side = Side::new(halves);
        for n in 0..50 {
            raw.send(&pattern(n * 100, 100));
            raw.tls.refresh_traffic_keys().unwrap();
        }
        raw.flush();
        side.expect(5000);
        // Its answers to the updates, then data under the newest keys.
        side.push(0, 1000, 10);
        raw.expect(0, 1000);
        raw.close();
        assert!(matches!(side.ended(), EndReason::PeerClosed));
        raw.expect_close();
        side.join();
    }
}

#[test]
fn key_updates_of_the_peer_pass_in_the_middle_of_what_is_written() {
    let (mut raw, halves) = Raw::and_server(tcp);
    let mut side = Side::new(halves);
    side.push(0, HEAVY, 1 << 20);
    const STEP: usize = 1 << 18;
    for n in 0..HEAVY / STEP {
        raw.tls.refresh_traffic_keys().unwrap();
        raw.send(&pattern(n * 10, 10));
        side.expect(10);
        raw.expect(n * STEP, STEP);
    }
    side.push(HEAVY, 10, 10);
    raw.expect(HEAVY, 10);
}

#[test]
fn what_goes_past_the_writer_keeps_its_place() {
    const LENGTHS: [usize; 6] = [1, 8, 5000, 16_384, 20_000, 40_000];
    for kind in KINDS {
        for ends in [in_clear as fn((Stream, Stream)) -> (Halves, Halves), secure] {
            let (client, server) = ends(kind());
            let (gate, shut) = channel();
            let mut client = Side::with(client, outbox(), LinkConfig::default(), Some(shut));
            let server = Side::new(server);
            // The client takes nothing: at some point the socket is full, in the
            // middle of one of these, and then the rest waits.
            let mut sent = 0;
            for len in LENGTHS.into_iter().cycle().take(600) {
                let item = Outgoing::whole(pattern(sent, len), 1);
                server.outbox.push_now(item).unwrap();
                sent += len;
            }
            drop(gate);
            client.expect(sent);
            server.link.close();
            assert!(matches!(client.ended(), EndReason::PeerClosed));
        }
    }
}

#[test]
fn key_updates_of_the_peer_come_before_what_goes_past_the_writer() {
    let (mut raw, halves) = Raw::and_server(tcp);
    let mut side = Side::new(halves);
    for n in 0..200 {
        raw.tls.refresh_traffic_keys().unwrap();
        raw.send(&pattern(n * 10, 10));
        side.expect(10);
        let item = Outgoing::whole(pattern(n * 20_000, 20_000), 1);
        side.outbox.push_now(item).unwrap();
        raw.expect(n * 20_000, 20_000);
    }
    raw.close();
    assert!(matches!(side.ended(), EndReason::PeerClosed));
}

#[test]
fn close_notify_is_an_end_in_order_and_is_answered() {
    for kind in KINDS {
        let (mut raw, halves) = Raw::and_client(kind);
        let mut side = Side::new(halves);
        raw.send(&pattern(0, 10));
        raw.close();
        side.expect(10);
        assert!(matches!(side.ended(), EndReason::PeerClosed));
        raw.expect_close();
        side.join();
    }
}

#[test]
fn a_cut_without_close_notify_is_an_error() {
    for kind in KINDS {
        let (raw, halves) = Raw::and_server(kind);
        let mut side = Side::new(halves);
        raw.tap.stream.shutdown(Shutdown::Write).unwrap();
        let reason = side.ended();
        assert!(
            matches!(&reason, EndReason::Io(e) if e.kind() == io::ErrorKind::UnexpectedEof),
            "{reason}"
        );
        side.join();
    }
}

#[test]
fn a_reset_is_an_error() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (server, _) = listener.accept().unwrap();
    let mut side = Side::new(plain(Arc::new(Socket::from(server)), BufferPool::new()));
    // Closed with a linger time of zero, a socket resets its connection.
    socket2::SockRef::from(&client)
        .set_linger(Some(Duration::ZERO))
        .unwrap();
    drop(client);
    let reason = side.ended();
    assert!(
        matches!(&reason, EndReason::Io(e) if e.kind() == io::ErrorKind::ConnectionReset),
        "{reason}"
    );
    side.join();
}

#[test]
fn a_peer_that_has_ended_its_side_still_receives() {
    for kind in KINDS {
        let (mut raw, halves) = Raw::and_client(kind);
        let (told, receiver) = channel();
        let outbox = outbox();
        let notes = Notes {
            told,
            gate: None,
            last: Some((outbox.clone(), Outgoing::whole(pattern(0, 10_000), 1))),
        };
        let mut side = Side::start(halves, outbox, LinkConfig::default(), notes, receiver);
        raw.close();
        assert!(matches!(side.ended(), EndReason::PeerClosed));
        raw.expect(0, 10_000);
        raw.expect_close();
        side.join();
    }
}

#[test]
fn one_flipped_byte_is_an_error_here_and_an_alert_there() {
    for and_side in [Raw::and_client, Raw::and_server] {
        let (mut raw, halves) = and_side(tcp);
        let mut side = Side::new(halves);
        raw.send(&pattern(0, 100));
        raw.seal(&pattern(100, 100));
        let mut wire = raw.taken();
        wire[50] ^= 1;
        raw.tap.write_all(&wire).unwrap();
        side.expect(100);
        let reason = side.ended();
        assert!(
            matches!(&reason, EndReason::Io(e) if e.kind() == io::ErrorKind::InvalidData),
            "{reason}"
        );
        let alert = loop {
            match raw.more() {
                Ok(0) => panic!("the connection ended without an alert"),
                Ok(_) => {}
                Err(e) => break e,
            }
        };
        assert_eq!(
            alert,
            rustls::Error::AlertReceived(AlertDescription::BadRecordMac)
        );
        // It has an end as well: the peer need not time out.
        while raw.tap.read(&mut [0; 1024]).is_ok_and(|n| n > 0) {}
        drop(raw);
        side.join();
    }
}

#[test]
fn data_glued_to_the_last_flight_of_the_handshake_arrives_without_another_read() {
    for kind in KINDS {
        let (client, server) = kind();
        server.set_read_timeout(Some(LIMIT)).unwrap();
        let deadline = Instant::now() + LIMIT;
        let accepting = std::thread::spawn(move || acceptor().accept(server, &BufferPool::new(), deadline));
        let mut raw = Raw::client(client, &[&rustls::version::TLS13]);
        raw.flush();
        while raw.tls.is_handshaking() {
            raw.more().unwrap();
        }
        raw.seal(&pattern(0, 1000));
        let flight = raw.taken();
        raw.tap.write_all(&flight).unwrap();
        let mut halves = accepting.join().unwrap().unwrap().halves;
        // Nothing more comes: a read would be one for nothing.
        halves.stream.shutdown(Shutdown::Read).unwrap();
        while halves.inbox.bytes_mut().len() < 1000 {
            halves.receive.receive(&mut halves.inbox).unwrap();
        }
        assert!(is_pattern(0, halves.inbox.bytes_mut()));
    }
}

#[test]
fn a_stream_may_come_one_byte_at_a_time() {
    let one = Faults {
        short_reads: Some(1),
        ..Faults::default()
    };
    let (client, server) = secure(faulty(one, one));
    let (mut client, mut server) = (Side::new(client), Side::new(server));
    client.push(0, 20_000, 1000);
    server.push(0, 20_000, 1000);
    client.expect(20_000);
    server.expect(20_000);
    let (client, server) = tcp();
    let deadline = Instant::now() + LIMIT;
    let accepting = std::thread::spawn(move || acceptor().accept(server, &BufferPool::new(), deadline));
    let mut raw = Raw::client(client, rustls::ALL_VERSIONS);
    raw.tap.piece = 1;
    raw.shake();
    let mut side = Side::new(accepting.join().unwrap().unwrap().halves);
    raw.send(&pattern(0, 1000));
    side.expect(1000);
}

#[test]
fn short_reads_and_delays_change_nothing() {
    let slow = |short| Faults {
        short_reads: Some(short),
        delay: Some(Duration::from_millis(1)),
        cut_after: None,
    };
    let (client, server) = secure(faulty(slow(7), slow(1000)));
    let (mut client, mut server) = (Side::new(client), Side::new(server));
    client.push(0, 500_000, 10_000);
    server.push(0, 500_000, 10_000);
    client.expect(500_000);
    server.expect(500_000);
}

#[test]
fn a_cut_ends_the_handshake_and_the_session_wherever_it_strikes() {
    for after in [0, 1, 5, 100, 500] {
        let cut = Faults {
            cut_after: Some(after),
            ..Faults::default()
        };
        let (client, server) = faulty(Faults::default(), cut);
        let deadline = Instant::now() + LIMIT;
        let accepting = std::thread::spawn(move || acceptor().accept(server, &BufferPool::new(), deadline));
        // In TLS 1.3 the client may be done before its own last flight is cut.
        let _ = connector().connect(client, "localhost", &BufferPool::new(), deadline);
        let error = accepting.join().unwrap().unwrap_err();
        assert!(matches!(error, TlsError::Io(_)), "{error}");
    }
    for after in [4000, 20_000, 20_001, 100_000] {
        let cut = Faults {
            cut_after: Some(after),
            ..Faults::default()
        };
        let (client, server) = secure(faulty(cut, Faults::default()));
        let (mut client, mut server) = (Side::new(client), Side::new(server));
        // The cut may strike while this is being queued.
        for start in (0..1 << 20).step_by(1000) {
            let item = Outgoing::whole(pattern(start, 1000), 1);
            if server.outbox.push(item).is_err() {
                break;
            }
        }
        for side in [&mut client, &mut server] {
            let reason = side.ended();
            assert!(
                matches!(reason, EndReason::Io(_) | EndReason::PeerClosed),
                "{reason}"
            );
        }
        client.join();
        server.join();
    }
}

#[test]
fn a_silent_peer_ends_the_handshake_at_its_deadline() {
    for kind in KINDS {
        let (client, server) = kind();
        let deadline = || Instant::now() + Duration::from_millis(20);
        let error = acceptor().accept(server, &BufferPool::new(), deadline());
        assert!(matches!(error.unwrap_err(), TlsError::Deadline));
        drop(client);
        let (client, _server) = kind();
        let error = connector().connect(client, "localhost", &BufferPool::new(), deadline());
        assert!(matches!(error.unwrap_err(), TlsError::Deadline));
    }
}

#[test]
fn a_peer_that_takes_nothing_ends_the_handshake_at_its_deadline() {
    let (client, _server) = in_memory();
    // There is no room from the first byte on.
    assert_eq!(client.write(&[0; memory::CAPACITY]).unwrap(), memory::CAPACITY);
    let (done, ended) = channel();
    std::thread::spawn(move || {
        let deadline = Instant::now() + Duration::from_millis(20);
        let secured = connector().connect(client, "localhost", &BufferPool::new(), deadline);
        done.send(secured.err())
    });
    let error = ended.recv_timeout(LIMIT).expect("it waits for ever");
    assert!(matches!(error, Some(TlsError::Deadline)), "{error:?}");
}

#[test]
fn each_check_of_a_server_looks_at_what_it_says_and_at_no_more() {
    let (ours, other) = (trust(), Authority::new(&AuthorityRequest::default()).unwrap());
    let theirs = other.trust();
    // The check, the name, and whether the server passes.
    let cases = [
        (ServerCheck::Name(&ours), "localhost", true),
        (ServerCheck::Name(&ours), "elsewhere.example", false),
        (ServerCheck::Name(&theirs), "localhost", false),
        (ServerCheck::Authority(&ours), "localhost", true),
        (ServerCheck::Authority(&ours), "elsewhere.example", true),
        (ServerCheck::Authority(&theirs), "localhost", false),
        (ServerCheck::Nothing, "elsewhere.example", true),
    ];
    for (check, name, passes) in cases {
        let (client, server) = in_memory();
        let deadline = Instant::now() + LIMIT;
        let accepting = std::thread::spawn(move || acceptor().accept(server, &BufferPool::new(), deadline));
        let connector = Connector::checking(check, Some(&identity(Role::AGENT))).unwrap();
        let secured = connector.connect(client, name, &BufferPool::new(), deadline);
        assert_eq!(secured.is_ok(), passes, "{check:?} {name}: {:?}", secured.err());
        assert_eq!(accepting.join().unwrap().is_ok(), passes, "{check:?} {name}");
    }
}

/// Notes whom a server trusts, as it says when it asks for a certificate.
#[derive(Debug)]
struct Hints(Sender<Vec<Vec<u8>>>);

impl ResolvesClientCert for Hints {
    fn resolve(&self, hints: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        let _ = self.0.send(hints.iter().map(|name| name.to_vec()).collect());
        None
    }
    fn has_certs(&self) -> bool {
        true
    }
}

#[test]
fn a_server_names_the_authorities_that_it_trusts() {
    let (client, server) = in_memory();
    let deadline = Instant::now() + LIMIT;
    let accepting = std::thread::spawn(move || acceptor().accept(server, &BufferPool::new(), deadline));
    let (told, hints) = channel();
    let config = rustls::ClientConfig::builder_with_provider(pki::provider().unwrap())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(Arc::clone(trust().roots()))
        .with_client_cert_resolver(Arc::new(Hints(told)));
    let connector = Connector::with_config(Arc::new(config));
    let _ = connector.connect(client, "localhost", &BufferPool::new(), deadline);
    let trust = trust();
    let subjects = trust.roots().subjects();
    let names: Vec<_> = subjects.iter().map(|name| name.as_ref().to_vec()).collect();
    assert_eq!(hints.recv_timeout(LIMIT).unwrap(), names);
    assert!(accepting.join().unwrap().is_err(), "it has shown no certificate");
}

#[test]
fn an_idle_stream_holds_no_buffer() {
    for ends in [in_clear_with as fn(&BufferPool) -> (Halves, Halves), secure_with] {
        let pool = BufferPool::new();
        let (mut client, mut server) = ends(&pool);
        for _ in 0..3 {
            pass(&mut client, &mut server);
            pass(&mut server, &mut client);
        }
        // What they held would come back only now, or be lost with them.
        let idle = format!("{pool:?}");
        assert_ne!(idle, format!("{:?}", BufferPool::new()));
        drop((client, server));
        assert_eq!(format!("{pool:?}"), idle);
    }
}

fn pass(from: &mut Halves, to: &mut Halves) {
    let outgoing = Outgoing::whole(pattern(0, 40_000), 1);
    from.transmit.transmit(&[outgoing]).unwrap();
    from.transmit.idle();
    while to.inbox.bytes_mut().len() < 40_000 {
        to.receive.receive(&mut to.inbox).unwrap();
    }
    assert!(is_pattern(0, to.inbox.bytes_mut()));
    to.inbox.bytes_mut().clear();
}

fn in_clear_with(pool: &BufferPool) -> (Halves, Halves) {
    let (client, server) = in_memory();
    (plain(client, pool.clone()), plain(server, pool.clone()))
}

fn secure_with(pool: &BufferPool) -> (Halves, Halves) {
    let (client, server) = in_memory();
    let deadline = Instant::now() + LIMIT;
    let shared = pool.clone();
    let accepting = std::thread::spawn(move || acceptor().accept(server, &shared, deadline));
    let client = connector().connect(client, "localhost", pool, deadline);
    (client.unwrap().halves, accepting.join().unwrap().unwrap().halves)
}

#[test]
fn a_lone_frame_goes_out_at_once() {
    for kind in KINDS {
        let (mut raw, halves) = Raw::and_client(kind);
        let mut side = Side::new(halves);
        for n in 0..20 {
            side.push(n * 8, 8, 8);
            raw.expect(n * 8, 8);
            assert_eq!(raw.tap.records, n + 1);
            raw.send(&pattern(n * 8, 8));
            side.expect(8);
        }
    }
}

#[test]
fn frames_that_wait_share_their_records() {
    const COUNT: usize = 10_000;
    const LEN: usize = 72;
    let (mut raw, halves) = Raw::and_server(tcp);
    let outbox = outbox();
    queue(&outbox, 0, COUNT * LEN, LEN);
    let side = Side::with(halves, outbox, LinkConfig::default(), None);
    raw.expect(0, COUNT * LEN);
    let fewest = (COUNT * LEN).div_ceil(16 * 1024);
    assert!(raw.tap.records <= 2 * fewest, "{} records", raw.tap.records);
    // The peer may read faster than the writer counts.
    let deadline = Instant::now() + LIMIT;
    while side.outbox.waiting().frames > 0 {
        assert!(Instant::now() < deadline, "what was taken is not counted");
        std::thread::yield_now();
    }
}

#[test]
fn a_peer_that_takes_nothing_ends_the_link_at_the_write_deadline() {
    for kind in KINDS {
        for ends in [in_clear as fn((Stream, Stream)) -> (Halves, Halves), secure] {
            let (client, server) = ends(kind());
            let config = LinkConfig {
                write_timeout: Some(Duration::from_millis(50)),
                ..LinkConfig::default()
            };
            let mut side = Side::with(client, outbox(), config, None);
            side.push(0, STUCK, 1 << 20);
            let reason = side.ended();
            assert!(
                matches!(&reason, EndReason::Io(e) if e.kind() == io::ErrorKind::TimedOut),
                "{reason}"
            );
            side.join();
            drop(server);
        }
    }
}

#[test]
fn abort_wakes_a_blocked_reader_and_a_stuck_writer() {
    for kind in KINDS {
        for ends in [in_clear as fn((Stream, Stream)) -> (Halves, Halves), secure] {
            for stuck in [false, true] {
                let (client, server) = ends(kind());
                let config = LinkConfig {
                    write_timeout: None,
                    ..LinkConfig::default()
                };
                let mut side = Side::with(client, outbox(), config, None);
                if stuck {
                    side.push(0, STUCK, 1 << 20);
                }
                side.link.abort();
                assert!(matches!(side.ended(), EndReason::Local));
                side.join();
                drop(server);
            }
        }
    }
}

#[test]
fn tls_1_2_carries_the_same() {
    let (mut raw, halves) = Raw::and_server_with(tcp, &[&rustls::version::TLS12]);
    assert_eq!(raw.tls.protocol_version(), Some(ProtocolVersion::TLSv1_2));
    let mut side = Side::new(halves);
    side.push(0, 1 << 20, 10_000);
    raw.expect(0, 1 << 20);
    for n in 0..100 {
        raw.send(&pattern(n * 1000, 1000));
    }
    side.expect(100_000);
    raw.close();
    assert!(matches!(side.ended(), EndReason::PeerClosed));
    raw.expect_close();
    side.join();
}

/// Waits until so many threads have a name that begins so: the kernel's list
/// lags a little, and misses some that are there while others end.
#[cfg(target_os = "linux")]
fn expect_threads(prefix: &str, expected: usize) {
    let count = || {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap();
        tasks
            .filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok())
            .filter(|name| name.starts_with(prefix))
            .count()
    };
    let deadline = Instant::now() + LIMIT;
    while count() != expected {
        assert!(Instant::now() < deadline, "{} threads, not {expected}", count());
        std::thread::yield_now();
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_joined_link_has_no_thread_left() {
    let named = |name: &str| LinkConfig {
        name: format!("joined-{name}"),
        ..LinkConfig::default()
    };
    for round in 0..20 {
        let (client, server) = secure(in_memory());
        let mut client = Side::with(client, outbox(), named("c"), None);
        let mut server = Side::with(server, outbox(), named("s"), None);
        client.push(0, 1000, 1000);
        server.push(0, 1000, 1000);
        client.expect(1000);
        server.expect(1000);
        expect_threads("joined-", 4);
        if round % 2 == 0 {
            client.link.close()
        } else {
            client.link.abort()
        }
        client.ended();
        server.ended();
        client.join();
        server.join();
        expect_threads("joined-", 0);
    }
}
