//! SIGINT and SIGTERM end a program in order.

use std::io;
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, bounded};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::{Handle, Signals};

use crate::failure::Failure;

/// Waits for a signal on a thread of its own, which dropping this joins.
#[derive(Debug)]
pub(crate) struct Stop {
    stopped: Receiver<()>,
    handle: Handle,
    thread: Option<JoinHandle<()>>,
}

impl Stop {
    /// From here on, the two signals no longer kill the process.
    pub(crate) fn install() -> Result<Self, Failure> {
        Self::start().map_err(|e| Failure::new(format!("cannot handle signals: {e}")))
    }

    fn start() -> io::Result<Self> {
        let mut signals = Signals::new([SIGINT, SIGTERM])?;
        let handle = signals.handle();
        let (stop, stopped) = bounded(0);
        let thread = std::thread::Builder::new()
            .name("ssntp-signals".into())
            .spawn(move || {
                // The channel is closed, which every receiver sees, at the first
                // signal; a second one finds a program that is ending already.
                let _stop = stop;
                let _ = signals.forever().next();
            })?;
        Ok(Self {
            stopped,
            handle,
            thread: Some(thread),
        })
    }

    /// Disconnected once a signal has come: for `select!`.
    pub(crate) fn channel(&self) -> &Receiver<()> {
        &self.stopped
    }

    /// Whether a signal has come.
    pub(crate) fn requested(&self) -> bool {
        matches!(
            self.stopped.try_recv(),
            Err(crossbeam_channel::TryRecvError::Disconnected)
        )
    }

    /// Blocks until a signal comes.
    pub(crate) fn wait(&self) {
        let _ = self.stopped.recv();
    }
}

impl Drop for Stop {
    fn drop(&mut self) {
        self.handle.close();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
