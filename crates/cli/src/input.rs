//! The standard input, read on a thread of its own, so that the main thread also hears of
//! signals and of the server meanwhile.

use crossbeam_channel::{Receiver, Sender, bounded};
use ssntp_transport::threads;

use crate::failure::Failure;

/// Runs `read` on a thread. The channel has room for one message, and is closed when `read`
/// returns. The thread is never joined: a read of the standard input may wait for ever.
pub(crate) fn on_a_thread<T: Send + 'static>(
    read: impl FnOnce(&Sender<T>) + Send + 'static,
) -> Result<Receiver<T>, Failure> {
    let (to, from) = bounded(1);
    threads::spawn("ssntp-stdin", move || read(&to)).map_err(Failure::thread)?;
    Ok(from)
}
