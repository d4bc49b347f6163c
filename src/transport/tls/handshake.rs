//! The handshake, on one thread, under a deadline.

use std::io;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use rustls::pki_types::CertificateDer;

use super::receive::{Incoming, TlsReceive};
use super::session::{Connection, Session};
use super::transmit::TlsTransmit;
use super::{Secured, TlsError};
use crate::transport::duplex::write_all;
use crate::transport::{BufferPool, Duplex, Halves, Inbox, Transmit};

#[expect(clippy::disallowed_methods, reason = "the handshake has a deadline")]
fn left_until(deadline: Instant) -> Result<std::time::Duration, TlsError> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        Err(TlsError::Deadline)
    } else {
        Ok(left)
    }
}

/// Runs a handshake, and gives its connection to both directions. `recheck`
/// verifies the chain of a peer whose session resumes.
pub(super) fn handshake(
    stream: Arc<dyn Duplex>,
    connection: Connection,
    pool: &BufferPool,
    deadline: Instant,
    recheck: impl FnOnce(&[CertificateDer<'_>]) -> Result<(), rustls::Error>,
) -> Result<Secured, TlsError> {
    let (session, incoming, inbox) = shake_hands(&*stream, connection, pool, deadline)?;
    let (peer, version) = (session.connection.peer(), session.connection.version());
    let resumed = session.connection.is_resumed();
    let session = Arc::new(Mutex::new(session));
    let receive = TlsReceive {
        stream: Arc::clone(&stream),
        session: Arc::clone(&session),
        incoming,
    };
    let mut transmit = TlsTransmit {
        stream: Arc::clone(&stream),
        session,
        pool: pool.clone(),
        buffer: None,
        rest: Vec::new(),
    };
    if resumed && let Err(e) = recheck(&peer) {
        // The handshake is over, and no alert of it left: the end is told.
        let _ = transmit.finish();
        return Err(TlsError::Tls(e));
    }
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
        resumed,
    })
}

/// The session, and what of the peer's bytes came after the handshake: not
/// opened yet, and opened.
pub(super) fn shake_hands(
    stream: &dyn Duplex,
    connection: Connection,
    pool: &BufferPool,
    deadline: Instant,
) -> Result<(Session, Incoming, Inbox), TlsError> {
    let mut session = Session::new(connection);
    let mut inbox = Inbox::new(pool.clone());
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
