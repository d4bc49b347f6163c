//! SIGINT and SIGTERM end a program in order.

use std::ffi::c_int;
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
        Self::start(None).map(|(stop, _)| stop).map_err(failed)
    }

    /// As [`install`](Self::install), and a further signal, whose arrivals
    /// the channel tells of; those that arrive together may be told of once.
    pub(crate) fn install_with(signal: c_int) -> Result<(Self, Receiver<()>), Failure> {
        Self::start(Some(signal)).map_err(failed)
    }

    fn start(further: Option<c_int>) -> io::Result<(Self, Receiver<()>)> {
        let mut signals = Signals::new([SIGINT, SIGTERM].into_iter().chain(further))?;
        let handle = signals.handle();
        let (stop, stopped) = bounded(0);
        let (arrive, arrived) = bounded(1);
        let thread = std::thread::Builder::new()
            .name("ssntp-signals".into())
            .spawn(move || {
                // The channel is closed, which every receiver sees, at the first
                // signal; a second one finds a program that is ending already.
                let _stop = stop;
                for signal in signals.forever() {
                    if further != Some(signal) {
                        break;
                    }
                    // One that has not been looked at yet stands for both.
                    let _ = arrive.try_send(());
                }
            })?;
        let stop = Self {
            stopped,
            handle,
            thread: Some(thread),
        };
        Ok((stop, arrived))
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

fn failed(error: io::Error) -> Failure {
    Failure::new(format!("cannot handle signals: {error}"))
}

impl Drop for Stop {
    fn drop(&mut self) {
        self.handle.close();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
