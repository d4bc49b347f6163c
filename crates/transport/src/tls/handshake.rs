//! The handshake, which blocks one thread until a deadline.

use std::io;
use std::sync::Arc;
use std::time::Instant;

use rustls::pki_types::CertificateDer;

use super::receive::{Ciphertext, TlsReceive};
use super::split::{Agreed, Hello, Opener, Sealer};
use super::transmit::TlsTransmit;
use super::{Secured, TlsError};
use crate::host::left;
use crate::socket::{Duplex, write_all};
use crate::stream::{BufferPool, Halves, Inbox, Transmit};

/// Reads until the ClientHello is complete, and tells whether it offers this application protocol. What was read
/// stays in `incoming`, for the handshake. Of a message that is no ClientHello it says no, because the handshake
/// finds the same fault and has the alert for it.
pub(super) fn offers(
    stream: &dyn Duplex,
    incoming: &mut Ciphertext,
    protocol: &[u8],
    deadline: Instant,
) -> Result<bool, TlsError> {
    let (mut hello, mut seen) = (Hello::default(), 0);
    loop {
        stream.set_read_timeout(Some(left(deadline)?))?;
        stream.wait_readable()?;
        incoming.read(stream, usize::MAX)?;
        let bytes = incoming.unopened();
        if let Some(offers) = hello.offers(&bytes[seen..], protocol) {
            return Ok(offers);
        }
        seen = bytes.len();
    }
}

/// Runs a handshake, and passes its connection to both directions. `incoming` may hold its first bytes. `check_again` verifies the
/// chain of a peer whose session resumes, because a certificate may have expired or been revoked since.
pub(super) fn handshake(
    stream: Arc<dyn Duplex>,
    (mut sealer, mut opener): (Sealer, Opener),
    mut incoming: Ciphertext,
    pool: &BufferPool,
    deadline: Instant,
    check_again: impl FnOnce(&[CertificateDer<'_>]) -> Result<(), rustls::Error>,
) -> Result<Secured, TlsError> {
    let mut inbox = Inbox::new(pool.clone());
    let agreed = agree(
        &*stream,
        &mut sealer,
        &mut opener,
        &mut incoming,
        &mut inbox,
        deadline,
    )?;
    let mut transmit = TlsTransmit::new(Arc::clone(&stream), sealer, pool.clone());
    if agreed.resumed
        && let Err(e) = check_again(&agreed.peer)
    {
        // rustls makes no alert, because for rustls the handshake has succeeded. So the peer sees
        // only the end of the session.
        let _ = transmit.finish();
        return Err(TlsError::Tls(e));
    }
    let receive = TlsReceive {
        stream: Arc::clone(&stream),
        opener,
        incoming,
    };
    let halves = Halves {
        stream,
        receive: Box::new(receive),
        transmit: Box::new(transmit),
        inbox,
    };
    Ok(Secured {
        halves,
        peer: agreed.peer,
        version: agreed.version,
        alpn: agreed.alpn,
        resumed: agreed.resumed,
    })
}

/// Exchanges flights until both sides agree. Bytes that the peer sent after the handshake are then
/// in `incoming`, or in `inbox` if they were opened already.
pub(super) fn agree(
    stream: &dyn Duplex,
    sealer: &mut Sealer,
    opener: &mut Opener,
    incoming: &mut Ciphertext,
    inbox: &mut Inbox,
    deadline: Instant,
) -> Result<Agreed, TlsError> {
    // Once for all writes: the flights are short, and each read has the rest of the time.
    stream.set_write_timeout(Some(left(deadline)?))?;
    loop {
        let opened = incoming.open(opener, inbox);
        // Sent even if opening failed: then these bytes are the alert with the reason.
        write_all(stream, &sealer.take_pending()?, |_| {})?;
        opened?;
        if let Some(agreed) = opener.agreed()? {
            return Ok(agreed);
        }
        if opener.noted()?.end {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
        stream.set_read_timeout(Some(left(deadline)?))?;
        stream.wait_readable()?;
        incoming.read(stream, usize::MAX)?;
    }
}
