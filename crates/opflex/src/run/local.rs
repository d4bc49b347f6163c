//! Unix sockets for programs on the same host, beside the protocol's own connections. Each
//! connection has a thread of its own, which asks the dispatcher and may wait for its client.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use log::debug;

use super::{LocalSocket, StartError};
use crate::message::{Decoder, Incoming};
use crate::rpc::Limits;
use ssntp_transport::{Acceptance, Duplex, Newcomer};

/// How long one write may block: how soon a writer sees that it is to give up.
const LOOK: Duration = Duration::from_millis(250);

/// After how many of these without a byte taken a reader counts as gone: 30 s.
const PATIENCE: u32 = 120;

/// Bytes that are read in one go.
const READ: usize = 64 * 1024;

/// Listens at a socket, and serves at most `most` connections at a time. While there are so many,
/// the one that waits longest for its client is cut, or the newcomer waits. The dispatcher that
/// `serve` asks has to run until the threads have ended.
pub(super) fn start(
    socket: &LocalSocket,
    name: &'static str,
    target: &'static str,
    most: usize,
    serve: impl Fn(&Arc<Newcomer>) -> io::Result<()> + Send + Sync + 'static,
) -> Result<Acceptance, StartError> {
    let serve = Box::new(move |newcomer: &Arc<Newcomer>| {
        let limited = newcomer.set_write_timeout(Some(LOOK));
        if let Err(e) = limited.and_then(|()| serve(newcomer)) {
            debug!(target: target, "a connection of {name} ended: {e}");
        }
    });
    Acceptance::start(socket.listen()?, name, target, most, serve).map_err(StartError::Thread)
}

/// Passes the messages of a client to `answer` until the client leaves, or sends nothing for `idle`.
pub(super) fn receive(
    newcomer: &Newcomer,
    limits: Limits,
    idle: Option<Duration>,
    mut answer: impl FnMut(Incoming) -> io::Result<()>,
) -> io::Result<()> {
    let mut decoder = Decoder::trusting(limits);
    let (mut input, mut messages) = (BytesMut::new(), Vec::new());
    let mut read = vec![0; READ];
    newcomer.set_read_timeout(idle)?;
    loop {
        let count = newcomer.read(&mut read)?;
        if count == 0 {
            return Ok(());
        }
        input.extend_from_slice(&read[..count]);
        decoder
            .decode(&mut input, &mut messages)
            .map_err(io::Error::other)?;
        messages.drain(..).try_for_each(&mut answer)?;
    }
}

/// Writes all to a client. Blocks until it is taken, the acceptance stops, or nothing is taken for
/// a while.
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
                // Short waits, because only between two of them a stop is noticed.
                if in_vain >= PATIENCE || newcomer.is_stopping() {
                    return Err(io::ErrorKind::TimedOut.into());
                }
            }
            Err(e) => return Err(e),
        }
    }
    Ok(())
}
