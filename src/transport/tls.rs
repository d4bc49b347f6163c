//! TLS split by direction, over rustls's unbuffered API.
//!
//! ```text
//!            reader thread                        writer thread
//!  socket ─▶ pooled buffer ─▶ ┌─ Mutex<Session> ─┐ ◀─ staging ◀─ batch
//!                  inbox ◀─── │ open one record   │
//!                             │ seal one record   │ ──▶ pooled buffer ─▶ socket
//!                             │ pending ciphertext│
//!                             └───────────────────┘
//! ```
//!
//! The lock is held for one record at a time and never over I/O, so each
//! direction makes progress while the other waits for its peer. What the
//! reading side has for the socket (alerts, key updates) goes into `pending`,
//! and the writer sends it before its own next record: one thread alone
//! decides the order of records. A poisoned lock ends the session.
//!
//! Buffers are borrowed from a [`BufferPool`] while a direction is busy. An
//! idle session keeps rustls's own state, some 4 KiB.

mod verifier;

use std::fmt;
use std::io;
use std::net::Shutdown;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use rustls::client::{ClientConnectionData, Resumption, UnbufferedClientConnection};
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::server::{
    NoServerSessionStorage, ServerConnectionData, UnbufferedServerConnection, WebPkiClientVerifier,
};
use rustls::unbuffered::{ConnectionState, EncodeError, EncryptError, UnbufferedStatus};
use rustls::{ClientConfig, ServerConfig};

use super::duplex::{is_timeout, write_all};
use super::halves::{Halves, Receive, Received, Transmit};
use super::outbox::Outgoing;
use super::{BufferPool, Duplex, Inbox};
use crate::pki::{self, Identity, Trust};

/// The most plaintext one TLS record holds.
const RECORD: usize = 16 * 1024;

/// What a server needs to accept TLS: its identity and whom it trusts. A
/// clone shares it.
#[derive(Clone, Debug)]
pub struct Acceptor {
    config: Arc<ServerConfig>,
}

impl Acceptor {
    /// Mutual TLS: every client has to prove a certificate of `trust`.
    /// TLS 1.3, and 1.2 for older peers. No session tickets: sessions are
    /// long, and each one's certificate is checked anew.
    ///
    /// # Errors
    /// The identity's key does not fit its certificate, or no cryptography
    /// was compiled in.
    pub fn mutual(identity: &Identity, trust: &Trust) -> Result<Self, TlsError> {
        let provider = pki::provider().map_err(|e| TlsError::Configuration(e.to_string()))?;
        let roots = Arc::clone(trust.roots());
        let verifier = WebPkiClientVerifier::builder_with_provider(roots, Arc::clone(&provider))
            .build()
            .map_err(|e| TlsError::Configuration(e.to_string()))?;
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_client_cert_verifier(verifier)
            .with_single_cert(identity.chain().to_vec(), identity.key())?;
        config.send_tls13_tickets = 0;
        config.session_storage = Arc::new(NoServerSessionStorage {});
        Ok(Self {
            config: Arc::new(config),
        })
    }

    /// TLS where only the server has a certificate; clients are asked for
    /// none, and prove nothing. Otherwise as [`mutual`](Self::mutual).
    ///
    /// # Errors
    /// As [`mutual`](Self::mutual).
    pub fn server_only(identity: &Identity) -> Result<Self, TlsError> {
        let provider = pki::provider().map_err(|e| TlsError::Configuration(e.to_string()))?;
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(identity.chain().to_vec(), identity.key())?;
        config.send_tls13_tickets = 0;
        config.session_storage = Arc::new(NoServerSessionStorage {});
        Ok(Self {
            config: Arc::new(config),
        })
    }

    /// TLS as configured elsewhere.
    pub fn with_config(config: Arc<ServerConfig>) -> Self {
        Self { config }
    }

    /// Runs the server's side of a TLS handshake. Blocks until it is done or
    /// `deadline` has passed.
    ///
    /// # Errors
    /// [`TlsError`]; an alert that says why has been sent where one could be.
    pub fn accept(
        &self,
        stream: Arc<dyn Duplex>,
        pool: &BufferPool,
        deadline: Instant,
    ) -> Result<Secured, TlsError> {
        let connection = UnbufferedServerConnection::new(Arc::clone(&self.config))?;
        handshake(stream, Connection::Server(connection), pool, deadline)
    }
}

/// What a client needs to connect with TLS. A clone shares it.
#[derive(Clone, Debug)]
pub struct Connector {
    config: Arc<ClientConfig>,
}

impl Connector {
    /// Mutual TLS: proves `identity`, and takes servers of `trust` only whose
    /// certificate holds the name that is connected to.
    ///
    /// # Errors
    /// As [`Acceptor::mutual`].
    pub fn mutual(identity: &Identity, trust: &Trust) -> Result<Self, TlsError> {
        let provider = pki::provider().map_err(|e| TlsError::Configuration(e.to_string()))?;
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(Arc::clone(trust.roots()))
            .with_client_auth_cert(identity.chain().to_vec(), identity.key())?;
        config.resumption = Resumption::disabled();
        Ok(Self {
            config: Arc::new(config),
        })
    }

    /// TLS with as much of a check of the server as is asked for, proving
    /// `identity` to servers that ask for one.
    ///
    /// # Errors
    /// As [`Acceptor::mutual`].
    pub fn checking(check: ServerCheck<'_>, identity: Option<&Identity>) -> Result<Self, TlsError> {
        let provider = pki::provider().map_err(|e| TlsError::Configuration(e.to_string()))?;
        let verifier = verifier::for_check(check, &provider)?;
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .dangerous()
            .with_custom_certificate_verifier(verifier);
        let mut config = match identity {
            Some(identity) => config.with_client_auth_cert(identity.chain().to_vec(), identity.key())?,
            None => config.with_no_client_auth(),
        };
        config.resumption = Resumption::disabled();
        Ok(Self {
            config: Arc::new(config),
        })
    }

    /// TLS as configured elsewhere.
    pub fn with_config(config: Arc<ClientConfig>) -> Self {
        Self { config }
    }

    /// Runs the client's side of a TLS handshake with a server that has to
    /// prove `name`, a DNS name or IP address. Blocks until it is done or
    /// `deadline` has passed.
    ///
    /// In TLS 1.3 a server may refuse the client's certificate only after
    /// this: then the first read fails with its alert.
    ///
    /// # Errors
    /// [`TlsError`]; an alert that says why has been sent where one could be.
    pub fn connect(
        &self,
        stream: Arc<dyn Duplex>,
        name: &str,
        pool: &BufferPool,
        deadline: Instant,
    ) -> Result<Secured, TlsError> {
        let name = ServerName::try_from(name.to_owned()).map_err(|_| TlsError::Name(name.to_owned()))?;
        let connection = UnbufferedClientConnection::new(Arc::clone(&self.config), name)?;
        handshake(stream, Connection::Client(connection), pool, deadline)
    }
}

/// What a client wants to know of a server.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum ServerCheck<'a> {
    /// Its certificate comes from an authority of this trust, and holds the
    /// name that is connected to.
    Name(&'a Trust),
    /// Its certificate comes from an authority of this trust. Whoever holds
    /// any server certificate of it can stand in for the server.
    Authority(&'a Trust),
    /// Nothing. What is sent is encrypted, but whoever can come between the
    /// two reads it all the same.
    Nothing,
}

/// A stream whose TLS handshake is done.
#[derive(Debug)]
pub struct Secured {
    /// Both directions, for a link or for a handshake on this thread.
    pub halves: Halves,
    /// The peer's certificates, its own first; empty where none was asked for.
    pub peer: Vec<CertificateDer<'static>>,
    /// `TLSv1.3` or `TLSv1.2`.
    pub version: &'static str,
}

/// Why there is no TLS.
#[derive(Debug)]
#[non_exhaustive]
pub enum TlsError {
    /// The stream failed or ended.
    Io(io::Error),
    /// The peer's bytes or certificate were refused, or ours by the peer.
    Tls(rustls::Error),
    /// The deadline passed.
    Deadline,
    /// The name to connect to is neither a DNS name nor an IP address.
    Name(String),
    /// Identity, trust or provider do not make a configuration.
    Configuration(String),
}

impl fmt::Display for TlsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(e) if e.kind() == io::ErrorKind::UnexpectedEof => {
                f.write_str("the connection ended during the TLS handshake")
            }
            Self::Io(e) => write!(f, "{e}"),
            Self::Tls(e) => write!(f, "TLS: {e}"),
            Self::Deadline => f.write_str("the TLS handshake was not complete in time"),
            Self::Name(name) => write!(f, "{name:?} is neither a DNS name nor an IP address"),
            Self::Configuration(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for TlsError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io(e) => Some(e),
            Self::Tls(e) => Some(e),
            _ => None,
        }
    }
}

impl From<io::Error> for TlsError {
    fn from(e: io::Error) -> Self {
        if is_timeout(&e) {
            Self::Deadline
        } else {
            Self::Io(e)
        }
    }
}

impl From<rustls::Error> for TlsError {
    fn from(e: rustls::Error) -> Self {
        Self::Tls(e)
    }
}

enum Connection {
    Client(UnbufferedClientConnection),
    Server(UnbufferedServerConnection),
}

impl Connection {
    fn is_handshaking(&self) -> bool {
        match self {
            Self::Client(c) => c.is_handshaking(),
            Self::Server(c) => c.is_handshaking(),
        }
    }

    fn peer(&self) -> Vec<CertificateDer<'static>> {
        let chain = match self {
            Self::Client(c) => c.peer_certificates(),
            Self::Server(c) => c.peer_certificates(),
        };
        chain
            .unwrap_or_default()
            .iter()
            .map(|c| c.clone().into_owned())
            .collect()
    }

    fn version(&self) -> &'static str {
        let version = match self {
            Self::Client(c) => c.protocol_version(),
            Self::Server(c) => c.protocol_version(),
        };
        match version {
            Some(rustls::ProtocolVersion::TLSv1_3) => "TLSv1.3",
            Some(rustls::ProtocolVersion::TLSv1_2) => "TLSv1.2",
            _ => "TLS",
        }
    }
}

/// The state both directions share.
struct Session {
    connection: Connection,
    /// Ciphertext of the reading side that the writer has to send.
    pending: Vec<u8>,
    /// How much of it the reader has asked the writer to send. It asks once:
    /// the writer may be waiting for its peer.
    asked: usize,
    peer_closed: bool,
    /// rustls has begun on a handshake message whose rest is still to come,
    /// and refers to its first part in the reading side's buffer. Steps
    /// without that buffer would make it panic.
    fragment: bool,
}

/// What one step of the TLS state machine left to be done.
enum Step {
    /// Something was done: look again.
    Again,
    /// Nothing more without further bytes.
    Idle,
}

/// What a step may use.
struct Tools<'a> {
    /// Where opened data goes.
    inbox: Option<(&'a mut Inbox, usize)>,
    /// Data to seal once the connection can, and where its record goes.
    seal: Option<Seal<'a>>,
}

struct Seal<'a> {
    data: Sealed<'a>,
    out: &'a mut [u8],
    written: usize,
}

enum Sealed<'a> {
    Data(&'a [u8]),
    CloseNotify,
}

impl Session {
    /// One step on `incoming`; says how many bytes of it are done with.
    fn step(&mut self, incoming: &mut [u8], tools: &mut Tools<'_>) -> (usize, Result<Step, rustls::Error>) {
        let Self {
            connection,
            pending,
            peer_closed,
            fragment,
            ..
        } = self;
        if *fragment && incoming.is_empty() {
            let why = "the peer has sent a part of a handshake message only";
            return (0, Err(rustls::Error::General(why.into())));
        }
        let (discard, result) = match connection {
            Connection::Client(c) => {
                advance::<ClientConnectionData>(c.process_tls_records(incoming), pending, peer_closed, tools)
            }
            Connection::Server(c) => {
                advance::<ServerConnectionData>(c.process_tls_records(incoming), pending, peer_closed, tools)
            }
        };
        // Idle with a whole record left: it holds the part. (After the peer's
        // close_notify records are left because they are not looked at.)
        let idle = matches!(result, Ok(Step::Idle));
        *fragment = idle && !*peer_closed && begins_with_record(&incoming[discard..]);
        (discard, result)
    }

    /// Takes what is to be sent.
    fn take_pending(&mut self) -> Vec<u8> {
        self.asked = 0;
        std::mem::take(&mut self.pending)
    }

    /// Whether the writer has to be asked to send something.
    fn ask(&mut self) -> bool {
        let more = self.pending.len() > self.asked;
        self.asked = self.pending.len();
        more
    }

    /// After an error: the alert that tells the peer goes into `pending`.
    /// `incoming` is what was left then; rustls may still refer to it.
    fn collect_alert(&mut self, mut incoming: &mut [u8]) {
        let mut tools = Tools {
            inbox: None,
            seal: None,
        };
        loop {
            let before = self.pending.len();
            let (discard, Ok(Step::Again)) = self.step(incoming, &mut tools) else {
                return;
            };
            // Nothing follows it. A further step would look at the refused
            // record again, and rustls takes a second alert for a bug.
            if is_alert(&self.pending[before..]) {
                return;
            }
            incoming = &mut incoming[discard..];
        }
    }
}

/// Whether a record that was sealed by the handshake or the reading side is
/// an alert: TLS 1.3 hides the kind, but no other is as short.
fn is_alert(record: &[u8]) -> bool {
    const ALERT: u8 = 21;
    const HIDDEN: u8 = 23;
    // Header; level and description, kind, tag.
    const HIDDEN_LEN: usize = 5 + 2 + 1 + 16;
    match record.first() {
        Some(&ALERT) => true,
        Some(&HIDDEN) => record.len() == HIDDEN_LEN,
        _ => false,
    }
}

/// Whether the bytes begin with a whole TLS record.
fn begins_with_record(bytes: &[u8]) -> bool {
    const HEADER: usize = 5;
    bytes.get(3..HEADER).is_some_and(|length| {
        let length = u16::from_be_bytes([length[0], length[1]]);
        bytes.len() >= HEADER + usize::from(length)
    })
}

fn advance<D>(
    status: UnbufferedStatus<'_, '_, D>,
    pending: &mut Vec<u8>,
    peer_closed: &mut bool,
    tools: &mut Tools<'_>,
) -> (usize, Result<Step, rustls::Error>) {
    let UnbufferedStatus { mut discard, state } = status;
    let state = match state {
        Ok(state) => state,
        Err(e) => return (discard, Err(e)),
    };
    let step = match state {
        ConnectionState::ReadTraffic(mut traffic) => {
            while let Some(record) = traffic.next_record() {
                match record {
                    Ok(record) => {
                        discard += record.discard;
                        if let Some((inbox, expected)) = &mut tools.inbox {
                            inbox.append(record.payload, *expected);
                            *expected = expected.saturating_sub(record.payload.len());
                        }
                    }
                    Err(e) => return (discard, Err(e)),
                }
            }
            Step::Again
        }
        ConnectionState::EncodeTlsData(mut data) => {
            let at = pending.len();
            let needed = match data.encode(&mut []) {
                Ok(_) => 0,
                Err(EncodeError::InsufficientSize(size)) => size.required_size,
                Err(EncodeError::AlreadyEncoded) => 0,
            };
            pending.resize(at + needed, 0);
            // It has just said that so many bytes are enough.
            let written = data.encode(&mut pending[at..]).unwrap_or(0);
            pending.truncate(at + written);
            Step::Again
        }
        ConnectionState::TransmitTlsData(data) => {
            // What `pending` holds is sent before anything else.
            data.done();
            Step::Again
        }
        ConnectionState::PeerClosed => {
            *peer_closed = true;
            Step::Again
        }
        ConnectionState::WriteTraffic(mut traffic) => {
            if let Some(seal) = tools.seal.take() {
                let sealed = match seal.data {
                    Sealed::Data(data) => traffic.encrypt(data, seal.out),
                    Sealed::CloseNotify => traffic.queue_close_notify(seal.out),
                };
                match sealed {
                    Ok(written) => {
                        tools.seal = Some(Seal {
                            data: Sealed::Data(&[]),
                            out: &mut [],
                            written,
                        })
                    }
                    Err(EncryptError::EncryptExhausted) => {
                        return (discard, Err(rustls::Error::EncryptError));
                    }
                    Err(e) => return (discard, Err(rustls::Error::General(e.to_string()))),
                }
            }
            Step::Idle
        }
        _ => Step::Idle,
    };
    (discard, Ok(step))
}

type Shared = Arc<Mutex<Session>>;

fn lock(session: &Shared) -> io::Result<MutexGuard<'_, Session>> {
    session
        .lock()
        .map_err(|_| io::Error::other("the TLS session is unusable after a panic"))
}

#[expect(clippy::disallowed_methods, reason = "the handshake has a deadline")]
fn left_until(deadline: Instant) -> Result<std::time::Duration, TlsError> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        Err(TlsError::Deadline)
    } else {
        Ok(left)
    }
}

fn handshake(
    stream: Arc<dyn Duplex>,
    connection: Connection,
    pool: &BufferPool,
    deadline: Instant,
) -> Result<Secured, TlsError> {
    let (session, incoming, inbox) = shake_hands(&*stream, connection, pool, deadline)?;
    let (peer, version) = (session.connection.peer(), session.connection.version());
    let session = Arc::new(Mutex::new(session));
    let receive = TlsReceive {
        stream: Arc::clone(&stream),
        session: Arc::clone(&session),
        incoming,
    };
    let transmit = TlsTransmit {
        stream: Arc::clone(&stream),
        session,
        pool: pool.clone(),
        buffer: None,
    };
    let halves = Halves {
        stream,
        receive: Box::new(receive),
        transmit: Box::new(transmit),
        inbox,
    };
    Ok(Secured {
        halves,
        peer,
        version,
    })
}

/// The session, and what of the peer's bytes came after the handshake: not
/// opened yet, and opened.
fn shake_hands(
    stream: &dyn Duplex,
    connection: Connection,
    pool: &BufferPool,
    deadline: Instant,
) -> Result<(Session, Incoming, Inbox), TlsError> {
    let mut session = Session {
        connection,
        pending: Vec::new(),
        asked: 0,
        peer_closed: false,
        fragment: false,
    };
    let mut inbox = Inbox::default();
    let mut incoming = Incoming::new(pool.clone());
    stream.set_write_timeout(Some(left_until(deadline)?))?;
    loop {
        let result = incoming.open(&mut inbox, |bytes, tools| session.step(bytes, tools));
        if result.is_err() {
            session.collect_alert(incoming.rest());
        }
        if !session.pending.is_empty() {
            write_all(stream, &session.pending)?;
            session.pending = Vec::new();
        }
        result?;
        if !session.connection.is_handshaking() {
            break;
        }
        if session.peer_closed {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
        stream.set_read_timeout(Some(left_until(deadline)?))?;
        if incoming.read(stream, false)? == 0 {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
    }
    Ok((session, incoming, inbox))
}

/// Ciphertext that has been received and not opened yet, in a pooled buffer
/// while there is some.
struct Incoming {
    pool: BufferPool,
    buffer: Option<Box<[u8]>>,
    start: usize,
    end: usize,
    /// The last read filled the buffer: more is likely there.
    more: bool,
}

impl Incoming {
    fn new(pool: BufferPool) -> Self {
        Self {
            pool,
            buffer: None,
            start: 0,
            end: 0,
            more: false,
        }
    }

    /// What has not been opened yet.
    fn rest(&mut self) -> &mut [u8] {
        match &mut self.buffer {
            Some(buffer) => &mut buffer[self.start..self.end],
            None => &mut [],
        }
    }

    /// Opens every complete record that is there. Each step gets the lock it
    /// needs from `step`.
    fn open(
        &mut self,
        inbox: &mut Inbox,
        mut step: impl FnMut(&mut [u8], &mut Tools<'_>) -> (usize, Result<Step, rustls::Error>),
    ) -> Result<(), rustls::Error> {
        loop {
            let bytes = self.rest();
            let expected = bytes.len();
            let mut tools = Tools {
                inbox: Some((inbox, expected)),
                seal: None,
            };
            let (discard, result) = step(bytes, &mut tools);
            self.start += discard;
            match result? {
                Step::Again => {}
                Step::Idle => break,
            }
        }
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
            if !self.more {
                self.release();
            }
        }
        Ok(())
    }

    /// Reads once; blocks for it unless `ready` says that bytes are there.
    fn read(&mut self, stream: &dyn Duplex, ready: bool) -> io::Result<usize> {
        let buffer = self.buffer.get_or_insert_with(|| self.pool.take());
        if self.start > 0 {
            buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        // A full buffer without one complete record cannot be: a record is
        // at most a fifth of it, and longer ones are refused at their header.
        let room = &mut buffer[self.end..];
        let n = if ready {
            stream.try_read(room)?
        } else {
            stream.read(room)?
        };
        self.more = n == room.len();
        self.end += n;
        Ok(n)
    }

    fn release(&mut self) {
        if let Some(buffer) = self.buffer.take() {
            self.pool.give(buffer);
        }
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        self.release();
    }
}

struct TlsReceive {
    stream: Arc<dyn Duplex>,
    session: Shared,
    incoming: Incoming,
}

impl fmt::Debug for TlsReceive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsReceive")
            .field("stream", &self.stream)
            .finish_non_exhaustive()
    }
}

impl TlsReceive {
    /// Opens what is there; the lock is taken for one record at a time.
    fn open(&mut self, inbox: &mut Inbox) -> io::Result<Received> {
        let session = &self.session;
        let mut poisoned = false;
        let result = self.incoming.open(inbox, |bytes, tools| match session.lock() {
            Ok(mut session) => session.step(bytes, tools),
            Err(_) => {
                poisoned = true;
                (0, Ok(Step::Idle))
            }
        });
        let mut session = lock(session)?;
        if let Err(e) = result {
            session.collect_alert(self.incoming.rest());
            return Err(io::Error::new(io::ErrorKind::InvalidData, e));
        }
        debug_assert!(!poisoned, "the lock above would have failed");
        Ok(Received {
            end: session.peer_closed,
            flush: session.ask(),
        })
    }
}

impl Receive for TlsReceive {
    fn receive(&mut self, inbox: &mut Inbox) -> io::Result<Received> {
        let before = inbox.bytes.len();
        // The handshake may have read further than its own end.
        let first = self.open(inbox)?;
        if first.end || first.flush || inbox.bytes.len() > before {
            return Ok(first);
        }
        if self.incoming.buffer.is_some() && self.incoming.more {
            match self.incoming.read(&*self.stream, true) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(_) => return self.open(inbox),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => self.incoming.more = false,
                Err(e) => return Err(e),
            }
        }
        // An idle stream holds no buffer: wait for bytes without one. Part of
        // a record keeps its buffer, for at most as long as the record takes.
        if self.incoming.start == self.incoming.end {
            self.incoming.release();
            inbox.release();
        }
        self.stream.wait_readable()?;
        match self.incoming.read(&*self.stream, true) {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) => self.open(inbox),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(Received {
                end: false,
                flush: false,
            }),
            Err(e) => Err(e),
        }
    }
}

struct TlsTransmit {
    stream: Arc<dyn Duplex>,
    session: Shared,
    pool: BufferPool,
    /// The first record's length is staging, the rest ciphertext.
    buffer: Option<Box<[u8]>>,
}

impl fmt::Debug for TlsTransmit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsTransmit")
            .field("stream", &self.stream)
            .finish_non_exhaustive()
    }
}

/// Room that one sealed record needs: its data, header, tag and padding
/// byte, or a key update before it.
const SEALED: usize = RECORD + 256;

impl TlsTransmit {
    /// Seals `data` into `out` behind what is there, sending first what is
    /// in the way: earlier records, and what the reading side left.
    fn seal(&self, data: Sealed<'_>, out: &mut [u8], used: &mut usize) -> io::Result<()> {
        if out.len() - *used < SEALED {
            write_all(&*self.stream, &out[..*used])?;
            *used = 0;
        }
        let mut session = lock(&self.session)?;
        let mut tools = Tools {
            inbox: None,
            seal: Some(Seal {
                data,
                out: &mut out[*used..],
                written: 0,
            }),
        };
        loop {
            match session.step(&mut [], &mut tools).1 {
                Ok(Step::Again) => {}
                Ok(Step::Idle) => break,
                Err(e) => return Err(io::Error::new(io::ErrorKind::InvalidData, e)),
            }
        }
        let written = tools.seal.map_or(0, |seal| seal.written);
        let pending = session.take_pending();
        drop(session);
        if !pending.is_empty() {
            // It was made before this record, and its order is kept by
            // sending everything older first.
            write_all(&*self.stream, &out[..*used])?;
            write_all(&*self.stream, &pending)?;
            out.copy_within(*used..*used + written, 0);
            *used = 0;
        }
        *used += written;
        Ok(())
    }
}

impl Transmit for TlsTransmit {
    fn transmit(&mut self, batch: &[Outgoing]) -> io::Result<()> {
        let mut buffer = self.buffer.take().unwrap_or_else(|| self.pool.take());
        let (staging, out) = buffer.split_at_mut(RECORD);
        let (mut staged, mut used) = (0, 0);
        for mut part in batch.iter().flat_map(Outgoing::parts) {
            while !part.is_empty() {
                if staged == 0 && part.len() >= RECORD {
                    let (record, rest) = part.split_at(RECORD);
                    self.seal(Sealed::Data(record), out, &mut used)?;
                    part = rest;
                    continue;
                }
                let n = part.len().min(RECORD - staged);
                staging[staged..staged + n].copy_from_slice(&part[..n]);
                staged += n;
                part = &part[n..];
                if staged == RECORD {
                    self.seal(Sealed::Data(staging), out, &mut used)?;
                    staged = 0;
                }
            }
        }
        if staged > 0 {
            self.seal(Sealed::Data(&staging[..staged]), out, &mut used)?;
        }
        write_all(&*self.stream, &out[..used])?;
        self.buffer = Some(buffer);
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        let pending = lock(&self.session)?.take_pending();
        write_all(&*self.stream, &pending)
    }

    fn finish(&mut self) -> io::Result<()> {
        let mut out = [0; 512];
        let mut tools = Tools {
            inbox: None,
            seal: Some(Seal {
                data: Sealed::CloseNotify,
                out: &mut out,
                written: 0,
            }),
        };
        let (pending, written) = {
            let mut session = lock(&self.session)?;
            while let (_, Ok(Step::Again)) = session.step(&mut [], &mut tools) {}
            // Taken before the reader can add records that come after it.
            (session.take_pending(), tools.seal.map_or(0, |seal| seal.written))
        };
        write_all(&*self.stream, &pending)?;
        write_all(&*self.stream, &out[..written])?;
        self.stream.shutdown(Shutdown::Write)
    }

    fn idle(&mut self) {
        if let Some(buffer) = self.buffer.take() {
            self.pool.give(buffer);
        }
    }
}

impl Drop for TlsTransmit {
    fn drop(&mut self) {
        self.idle();
    }
}

#[cfg(all(test, feature = "issue", any(feature = "aws-lc-rs", feature = "ring")))]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::Role;
    use crate::pki::{Authority, AuthorityRequest, CertificateRequest};
    use crate::transport::{memory, threads};

    #[test]
    fn a_writer_that_is_busy_is_asked_once_to_send_what_the_reader_left() {
        let authority = Authority::new(&AuthorityRequest::default()).unwrap();
        let identity = |role| {
            authority
                .issue(&CertificateRequest::new(role))
                .unwrap()
                .identity()
        };
        let acceptor = Acceptor::mutual(&identity(Role::SERVER), &authority.trust()).unwrap();
        let connector = Connector::mutual(&identity(Role::AGENT), &authority.trust()).unwrap();
        #[expect(clippy::disallowed_methods, reason = "a deadline")]
        let deadline = Instant::now() + Duration::from_secs(20);
        let (here, there) = memory::pair();
        let peer = threads::spawn("peer", move || {
            connector.connect(Arc::new(there), "localhost", &BufferPool::new(), deadline)
        });
        let connection = UnbufferedServerConnection::new(acceptor.config).unwrap();
        let (mut session, incoming, mut inbox) = shake_hands(
            &here,
            Connection::Server(connection),
            &BufferPool::new(),
            deadline,
        )
        .unwrap();
        let _peer = peer.unwrap().join().unwrap().unwrap();
        // As the refusal of a renegotiation in TLS 1.2 leaves it.
        session.pending = vec![0; 31];
        let stream: Arc<dyn Duplex> = Arc::new(here);
        let mut receive = TlsReceive {
            stream: Arc::clone(&stream),
            session: Arc::new(Mutex::new(session)),
            incoming,
        };
        stream.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        assert!(receive.receive(&mut inbox).unwrap().flush);
        let again = receive.receive(&mut inbox);
        assert!(again.is_err_and(|e| is_timeout(&e)), "it waits for its peer");
    }
}
