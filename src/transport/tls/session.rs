//! The state of one TLS connection, stepped by whichever direction holds it.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard};

use rustls::HandshakeKind;
use rustls::client::{ClientConnectionData, UnbufferedClientConnection};
use rustls::pki_types::CertificateDer;
use rustls::server::{ServerConnectionData, UnbufferedServerConnection};
use rustls::unbuffered::{ConnectionState, EncodeError, EncryptError, UnbufferedStatus};

use crate::transport::Inbox;

pub(super) enum Connection {
    Client(UnbufferedClientConnection),
    Server(UnbufferedServerConnection),
}

impl Connection {
    pub(super) fn is_handshaking(&self) -> bool {
        match self {
            Self::Client(c) => c.is_handshaking(),
            Self::Server(c) => c.is_handshaking(),
        }
    }

    pub(super) fn peer(&self) -> Vec<CertificateDer<'static>> {
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

    /// Whether the handshake took a ticket for the peer's certificate.
    pub(super) fn is_resumed(&self) -> bool {
        let kind = match self {
            Self::Client(c) => c.handshake_kind(),
            Self::Server(c) => c.handshake_kind(),
        };
        kind == Some(HandshakeKind::Resumed)
    }

    pub(super) fn version(&self) -> &'static str {
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
pub(super) struct Session {
    pub(super) connection: Connection,
    /// Ciphertext of the reading side that the writer has to send.
    pub(super) pending: Vec<u8>,
    /// How much of it the reader has asked the writer to send. It asks once:
    /// the writer may be waiting for its peer.
    asked: usize,
    pub(super) peer_closed: bool,
    /// rustls has begun on a handshake message whose rest is still to come,
    /// and refers to its first part in the reading side's buffer. Steps
    /// without that buffer would make it panic.
    fragment: bool,
}

/// What one step of the TLS state machine left to be done.
pub(super) enum Step {
    /// Something was done: look again.
    Again,
    /// Nothing more without further bytes.
    Idle,
}

/// What a step may use.
pub(super) struct Tools<'a> {
    /// Where opened data goes.
    pub(super) inbox: Option<(&'a mut Inbox, usize)>,
    /// Data to seal once the connection can, and where its record goes.
    pub(super) seal: Option<Seal<'a>>,
}

pub(super) struct Seal<'a> {
    pub(super) data: Sealed<'a>,
    pub(super) out: &'a mut [u8],
    pub(super) written: usize,
}

pub(super) enum Sealed<'a> {
    Data(&'a [u8]),
    CloseNotify,
}

impl Session {
    /// A connection whose handshake has not begun.
    pub(super) fn new(connection: Connection) -> Self {
        Self {
            connection,
            pending: Vec::new(),
            asked: 0,
            peer_closed: false,
            fragment: false,
        }
    }

    /// One step on `incoming`; says how many bytes of it are done with.
    pub(super) fn step(
        &mut self,
        incoming: &mut [u8],
        tools: &mut Tools<'_>,
    ) -> (usize, Result<Step, rustls::Error>) {
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
    pub(super) fn take_pending(&mut self) -> Vec<u8> {
        self.asked = 0;
        std::mem::take(&mut self.pending)
    }

    /// Whether the writer has to be asked to send something.
    pub(super) fn ask(&mut self) -> bool {
        let more = self.pending.len() > self.asked;
        self.asked = self.pending.len();
        more
    }

    /// After an error: the alert that tells the peer goes into `pending`.
    /// `incoming` is what was left then; rustls may still refer to it.
    pub(super) fn collect_alert(&mut self, mut incoming: &mut [u8]) {
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

pub(super) type Shared = Arc<Mutex<Session>>;

pub(super) fn lock(session: &Shared) -> io::Result<MutexGuard<'_, Session>> {
    session
        .lock()
        .map_err(|_| io::Error::other("the TLS session is unusable after a panic"))
}
