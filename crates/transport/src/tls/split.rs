//! One TLS connection as two halves. No other file uses rustls's connection API.
//!
//! ```text
//!  Opener ──┐   ┌─ Mutex<Session> ──────────────┐   ┌── Sealer
//!  reader   └──▶│ one record at a time          │◀──┘   writer
//!               │ pending: ciphertext for the   │
//!               │ writer that no write asked for│
//!               └───────────────────────────────┘
//! ```
//!
//! rustls 0.23 has no halves: its unbuffered connection is one state machine, which each half steps
//! under a lock when it has work. When rustls has halves (`SendTraffic` and `ReceiveTraffic` in its
//! next version), they can replace this file.

use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};

use rustls::client::{ClientConnectionData, UnbufferedClientConnection};
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::server::{Acceptor, ServerConnectionData, UnbufferedServerConnection};
use rustls::unbuffered::{ConnectionState, EncodeError, EncryptError, UnbufferedStatus};
use rustls::{ClientConfig, CommonState, HandshakeKind, ServerConfig};

use crate::stream::{Inbox, Received};

/// The maximum plaintext in one TLS record.
pub(super) const RECORD: usize = 16 * 1024;

/// The maximum number of bytes that a sealed record takes beyond its data: header, nonce, tag and padding,
/// and a key update before it.
pub(super) const OVERHEAD: usize = 256;

/// Both halves of a client's connection whose handshake has not begun.
pub(super) fn client(
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
) -> Result<(Sealer, Opener), rustls::Error> {
    UnbufferedClientConnection::new(config, name).map(|c| split(Side::Client(c)))
}

/// Both halves of a server's connection whose handshake has not begun.
pub(super) fn server(config: Arc<ServerConfig>) -> Result<(Sealer, Opener), rustls::Error> {
    UnbufferedServerConnection::new(config).map(|c| split(Side::Server(c)))
}

/// The first message of a client, which is read before the configuration of its connection is chosen.
#[derive(Default)]
pub(super) struct Hello(Acceptor);

impl Hello {
    /// Takes further bytes. `None` while the message is not complete, else whether it offers this application
    /// protocol.
    pub(super) fn offers(&mut self, mut bytes: &[u8], protocol: &[u8]) -> Option<bool> {
        while !bytes.is_empty() {
            // It takes some bytes at a time, and fails if the message is too long.
            if self.0.read_tls(&mut bytes).is_err() {
                return Some(false);
            }
        }
        match self.0.accept() {
            Ok(Some(accepted)) => {
                let hello = accepted.client_hello();
                Some(
                    hello
                        .alpn()
                        .is_some_and(|mut offered| offered.any(|name| name == protocol)),
                )
            }
            Ok(None) => None,
            Err(_) => Some(false),
        }
    }
}

/// The sending half.
#[derive(Debug)]
pub(super) struct Sealer(Arc<Mutex<Session>>);

/// The result of [`Sealer::seal`].
pub(super) struct Sealed {
    /// The number of bytes at the front of the buffer that are sealed records.
    pub(super) len: usize,
    /// Bytes that the receiving half has left for the socket. They precede these records.
    pub(super) before: Vec<u8>,
}

impl Sealer {
    /// Seals data into records at the front of `out`, which needs room for the data and for
    /// [`OVERHEAD`] in each of its records.
    ///
    /// # Errors
    /// The error of TLS; `BrokenPipe` if TLS has ended.
    pub(super) fn seal(&mut self, data: &[u8], out: &mut [u8]) -> io::Result<Sealed> {
        lock(&self.0)?.seal(data, out)
    }

    /// As [`seal`](Self::seal), but `None` if the receiving half is busy.
    pub(super) fn try_seal(&mut self, data: &[u8], out: &mut [u8]) -> io::Result<Option<Sealed>> {
        match self.0.try_lock() {
            Ok(mut session) => session.seal(data, out).map(Some),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Poisoned(_)) => Err(poisoned()),
        }
    }

    /// Takes the bytes that the receiving half has left for the socket.
    pub(super) fn take_pending(&mut self) -> io::Result<Vec<u8>> {
        Ok(lock(&self.0)?.take_pending())
    }

    /// The last bytes for the socket: those that the receiving half has left, then a close_notify
    /// unless an alert has ended the connection before.
    pub(super) fn close_notify(&mut self) -> io::Result<Vec<u8>> {
        let mut out = [0; OVERHEAD];
        let mut session = lock(&self.0)?;
        let sealed = session.send(&mut Task::CloseNotify(&mut out));
        let mut last = session.take_pending();
        // After an error rustls makes no close_notify. The pending alert and the end of the stream
        // tell the peer.
        if let Ok(Some(len)) = sealed {
            last.extend_from_slice(&out[..len]);
        }
        Ok(last)
    }
}

/// The receiving half. It also makes the handshake, together with [`Sealer::take_pending`] for the
/// flights that it answers.
#[derive(Debug)]
pub(super) struct Opener(Arc<Mutex<Session>>);

impl Opener {
    /// Opens every complete record at the front of `bytes` into the inbox, and returns the number of
    /// used bytes. The others must be at the front the next time. Each record takes the lock anew,
    /// so that the sending half waits for one record at most.
    ///
    /// # Errors
    /// The error of TLS. The connection is over, and the sending half has an alert for the peer.
    pub(super) fn open(&mut self, bytes: &mut [u8], inbox: &mut Inbox) -> io::Result<usize> {
        let mut used = 0;
        loop {
            let rest = &mut bytes[used..];
            let mut task = Task::Open {
                expected: rest.len(),
                inbox,
            };
            let mut session = lock(&self.0)?;
            let (done, step) = session.step(rest, &mut task);
            used += done;
            match step {
                Ok(Step::Again) => {}
                Ok(Step::Idle | Step::Sealed(_)) => return Ok(used),
                Err(e) => {
                    session.collect_alert(&mut bytes[used..]);
                    return Err(invalid(e));
                }
            }
        }
    }

    /// True in `end` if the peer has ended its side, and in `flush` if there are new bytes for the
    /// socket. The same bytes are reported once, because the sending half may be blocked.
    pub(super) fn noted(&mut self) -> io::Result<Received> {
        let mut session = lock(&self.0)?;
        let flush = session.pending.len() > session.asked;
        session.asked = session.pending.len();
        Ok(Received {
            end: session.peer_closed,
            flush,
        })
    }

    /// The result of the handshake, once it is complete.
    pub(super) fn agreed(&self) -> io::Result<Option<Agreed>> {
        let session = lock(&self.0)?;
        let state = session.connection.state();
        if state.is_handshaking() {
            return Ok(None);
        }
        let chain = state.peer_certificates().unwrap_or_default();
        Ok(Some(Agreed {
            peer: chain.iter().map(|c| c.clone().into_owned()).collect(),
            version: match state.protocol_version() {
                Some(rustls::ProtocolVersion::TLSv1_3) => "TLSv1.3",
                Some(rustls::ProtocolVersion::TLSv1_2) => "TLSv1.2",
                _ => "TLS",
            },
            alpn: state.alpn_protocol().map(<[u8]>::to_vec),
            resumed: state.handshake_kind() == Some(HandshakeKind::Resumed),
        }))
    }

    /// Locks the session for a test, which keeps the other half out and shows the pending bytes.
    #[cfg(test)]
    pub(super) fn hold(&self) -> MutexGuard<'_, Session> {
        self.0.lock().unwrap()
    }
}

/// The result of a handshake.
pub(super) struct Agreed {
    /// The peer's certificates, its own first. Empty if the peer was not asked for any.
    pub(super) peer: Vec<CertificateDer<'static>>,
    pub(super) version: &'static str,
    pub(super) alpn: Option<Vec<u8>>,
    /// True if the session was resumed with a ticket.
    pub(super) resumed: bool,
}

fn split(connection: Side) -> (Sealer, Opener) {
    let session = Arc::new(Mutex::new(Session {
        connection,
        pending: Vec::new(),
        asked: 0,
        peer_closed: false,
        part: false,
    }));
    (Sealer(Arc::clone(&session)), Opener(session))
}

fn lock(session: &Mutex<Session>) -> io::Result<MutexGuard<'_, Session>> {
    session.lock().map_err(|_| poisoned())
}

fn poisoned() -> io::Error {
    io::Error::other("the TLS session is unusable after a panic")
}

/// The error of TLS as one of the stream.
pub(super) fn invalid(error: impl Into<rustls::Error>) -> io::Error {
    let error: rustls::Error = error.into();
    io::Error::new(io::ErrorKind::InvalidData, error)
}

/// The state that both halves share.
pub(super) struct Session {
    connection: Side,
    /// Ciphertext of the receiving half that the sending half has to write to the socket: flights
    /// of the handshake, alerts, key updates.
    pub(super) pending: Vec<u8>,
    /// The number of its bytes that were reported to the sending half.
    asked: usize,
    peer_closed: bool,
    /// True while the peer has sent a part of a handshake message only. rustls remembers the position
    /// of the part in the receiving half's buffer, and panics if it is stepped without that buffer.
    /// So no data can be sealed meanwhile: a peer that splits a message over records and pauses
    /// between them loses its connection.
    part: bool,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Session")
    }
}

enum Side {
    Client(UnbufferedClientConnection),
    Server(UnbufferedServerConnection),
}

impl Side {
    fn state(&self) -> &CommonState {
        match self {
            Self::Client(c) => c,
            Self::Server(c) => c,
        }
    }
}

/// The purpose of a step.
enum Task<'a> {
    /// Append received data to an inbox, `expected` bytes of it in all.
    Open { inbox: &'a mut Inbox, expected: usize },
    /// Seal data into the records of a buffer.
    Seal { data: &'a [u8], out: &'a mut [u8] },
    /// Seal a close_notify into a buffer.
    CloseNotify(&'a mut [u8]),
    /// Make an alert pending.
    CollectAlert,
}

/// The result of one step of the state machine.
enum Step {
    /// The step had an effect, and there may be more to do.
    Again,
    /// Without further bytes there is nothing to do.
    Idle,
    /// The step sealed records of that length.
    Sealed(usize),
}

impl Session {
    fn seal(&mut self, data: &[u8], out: &mut [u8]) -> io::Result<Sealed> {
        match self.send(&mut Task::Seal { data, out }).map_err(invalid)? {
            // Taken under the lock of the sealing: TLS numbers records, and records that the
            // receiving half adds later have higher numbers, so they must be sent later.
            Some(len) => Ok(Sealed {
                len,
                before: self.take_pending(),
            }),
            None => Err(io::Error::new(io::ErrorKind::BrokenPipe, "TLS has ended")),
        }
    }

    /// Steps until the task has sealed data. `None` if that is impossible.
    fn send(&mut self, task: &mut Task<'_>) -> Result<Option<usize>, rustls::Error> {
        loop {
            match self.step(&mut [], task).1? {
                Step::Again => {}
                Step::Idle => return Ok(None),
                Step::Sealed(len) => return Ok(Some(len)),
            }
        }
    }

    fn take_pending(&mut self) -> Vec<u8> {
        self.asked = 0;
        std::mem::take(&mut self.pending)
    }

    /// Makes one step with `incoming`. Returns the number of its used bytes.
    fn step(&mut self, incoming: &mut [u8], task: &mut Task<'_>) -> (usize, Result<Step, rustls::Error>) {
        if self.part && incoming.is_empty() {
            let why = "the peer has sent a part of a handshake message only";
            return (0, Err(rustls::Error::General(why.into())));
        }
        let (pending, closed) = (&mut self.pending, &mut self.peer_closed);
        let (done, result) = match &mut self.connection {
            Side::Client(c) => {
                advance::<ClientConnectionData>(c.process_tls_records(incoming), pending, closed, task)
            }
            Side::Server(c) => {
                advance::<ServerConnectionData>(c.process_tls_records(incoming), pending, closed, task)
            }
        };
        // rustls leaves a whole record unused in two cases: the record ends with a part of a
        // handshake message, or it comes after the peer's close_notify. Only the first case counts.
        let idle = matches!(result, Ok(Step::Idle));
        self.part = idle && !self.peer_closed && begins_with_record(&incoming[done..]);
        (done, result)
    }

    /// Makes the alert for the peer pending after an error. `incoming` is the rest of the input,
    /// because rustls may still refer to it.
    ///
    /// Ends with the first alert: a further step would open the refused record again and make a
    /// second alert, which rustls takes for a bug of its own, and panics if assertions are on.
    fn collect_alert(&mut self, mut incoming: &mut [u8]) {
        loop {
            let before = self.pending.len();
            let (done, Ok(Step::Again)) = self.step(incoming, &mut Task::CollectAlert) else {
                return;
            };
            if is_alert(&self.pending[before..]) {
                return;
            }
            incoming = &mut incoming[done..];
        }
    }
}

/// True if a record that rustls made by itself is an alert. TLS 1.3 hides the kind of a record, but
/// all other records that rustls makes by itself are longer.
fn is_alert(record: &[u8]) -> bool {
    const ALERT: u8 = 21;
    const HIDDEN: u8 = 23;
    // 5 bytes of header, 3 of level, description and hidden kind, and 16 of
    // authentication tag.
    const HIDDEN_LEN: usize = 5 + 3 + 16;
    match record.first() {
        Some(&ALERT) => true,
        Some(&HIDDEN) => record.len() == HIDDEN_LEN,
        _ => false,
    }
}

/// True if the bytes begin with a whole TLS record.
fn begins_with_record(bytes: &[u8]) -> bool {
    const HEADER: usize = 5;
    bytes.get(3..HEADER).is_some_and(|length| {
        let length = u16::from_be_bytes([length[0], length[1]]);
        bytes.len() >= HEADER + usize::from(length)
    })
}

/// Acts on the state of rustls's state machine.
fn advance<D>(
    status: UnbufferedStatus<'_, '_, D>,
    pending: &mut Vec<u8>,
    peer_closed: &mut bool,
    task: &mut Task<'_>,
) -> (usize, Result<Step, rustls::Error>) {
    let UnbufferedStatus { mut discard, state } = status;
    let state = match state {
        Ok(state) => state,
        Err(e) => return (discard, Err(e)),
    };
    let step = match state {
        ConnectionState::ReadTraffic(mut traffic) => {
            while let Some(record) = traffic.next_record() {
                let record = match record {
                    Ok(record) => record,
                    Err(e) => return (discard, Err(e)),
                };
                discard += record.discard;
                if let Task::Open { inbox, expected } = task {
                    inbox.append(record.payload, *expected);
                    *expected = expected.saturating_sub(record.payload.len());
                }
            }
            Ok(Step::Again)
        }
        ConnectionState::EncodeTlsData(mut data) => {
            let at = pending.len();
            let needed = match data.encode(&mut []) {
                Err(EncodeError::InsufficientSize(size)) => size.required_size,
                Ok(_) | Err(EncodeError::AlreadyEncoded) => 0,
            };
            pending.resize(at + needed, 0);
            // This cannot fail, because rustls has stated the number of bytes above.
            let written = data.encode(&mut pending[at..]).unwrap_or(0);
            pending.truncate(at + written);
            Ok(Step::Again)
        }
        ConnectionState::TransmitTlsData(data) => {
            // Pending bytes precede all others, so they count as transmitted.
            data.done();
            Ok(Step::Again)
        }
        ConnectionState::PeerClosed => {
            *peer_closed = true;
            Ok(Step::Again)
        }
        ConnectionState::WriteTraffic(mut traffic) => match task {
            Task::Seal { data, out } => sealed(traffic.encrypt(data, out)),
            Task::CloseNotify(out) => sealed(traffic.queue_close_notify(out)),
            Task::Open { .. } | Task::CollectAlert => Ok(Step::Idle),
        },
        // The handshake waits for the peer, or the connection is closed.
        _ => Ok(Step::Idle),
    };
    (discard, step)
}

fn sealed(result: Result<usize, EncryptError>) -> Result<Step, rustls::Error> {
    match result {
        Ok(len) => Ok(Step::Sealed(len)),
        Err(EncryptError::EncryptExhausted) => Err(rustls::Error::EncryptError),
        Err(e) => Err(rustls::Error::General(e.to_string())),
    }
}
