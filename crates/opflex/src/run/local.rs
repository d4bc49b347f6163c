//! Unix sockets for programs on the same host. Each connection has a thread of its own, which
//! calls the dispatcher and may block while its client is slow.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use log::debug;

use super::config::{LocalSocket, StartError};
use crate::message::{Decoder, Incoming};
use crate::rpc::Limits;
use ssntp_transport::{Acceptance, Duplex, Newcomer, slots};

/// The time limit of one write, after which the writer checks if it has to stop.
const WRITE: Duration = Duration::from_millis(250);

/// The number of writes in a row that send no byte after which a connection ends: 30 s.
const PATIENCE: u32 = 120;

/// The size of the read buffer, in bytes.
const READ: usize = 64 * 1024;

/// Listens at a socket, and serves at most `most` connections at a time. If there are more, the
/// connection that has waited longest for its client is cut, or the newcomer waits. The dispatcher
/// that `serve` calls has to run until the threads have ended.
pub(super) fn start(
    socket: &LocalSocket,
    name: &'static str,
    target: &'static str,
    most: usize,
    serve: impl Fn(&Arc<Newcomer>) -> io::Result<()> + Send + Sync + 'static,
) -> Result<Acceptance, StartError> {
    let serve = Box::new(move |newcomer: &Arc<Newcomer>| {
        let limited = newcomer.set_write_timeout(Some(WRITE));
        if let Err(e) = limited.and_then(|()| serve(newcomer)) {
            debug!(target: target, "a connection of {name} ended: {e}");
        }
    });
    let patience = slots::WHOLE_CONNECTION;
    Acceptance::start(socket.listen()?, name, target, most, patience, serve).map_err(StartError::Thread)
}

/// Passes the messages of a client to `answer` until the client disconnects, or is silent for `idle`.
pub(super) fn receive(
    newcomer: &Newcomer,
    limits: Limits,
    idle: Option<Duration>,
    mut answer: impl FnMut(Incoming) -> io::Result<()>,
) -> io::Result<()> {
    let mut decoder = Decoder::without_identity(limits);
    let (mut input, mut messages) = (BytesMut::new(), Vec::new());
    let mut read = vec![0; READ];
    newcomer.set_read_timeout(idle)?;
    loop {
        let count = newcomer.read(&mut read)?;
        if count == 0 {
            return Ok(());
        }
        input.extend_from_slice(&read[..count]);
        let decoded = decoder.decode(&mut input, &mut messages);
        // Also those before a message that is malformed.
        messages.drain(..).try_for_each(&mut answer)?;
        decoded.map_err(io::Error::other)?;
    }
}

/// Writes all bytes to a client. Blocks until the client has received them.
///
/// # Errors
/// The connection failed, the client has received no byte for 30 s, or the acceptance stops.
pub(super) fn write_all(newcomer: &Newcomer, mut bytes: &[u8]) -> io::Result<()> {
    let mut in_vain = 0;
    while !bytes.is_empty() {
        match newcomer.write(bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => {
                bytes = &bytes[written..];
                in_vain = 0;
            }
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                in_vain += 1;
                // A stop is noticed here, so each write has a short time limit.
                if in_vain >= PATIENCE || newcomer.is_stopping() {
                    return Err(io::ErrorKind::TimedOut.into());
                }
            }
            Err(e) => return Err(e),
        }
    }
    Ok(())
}
