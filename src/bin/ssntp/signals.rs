//! SIGINT and SIGTERM end a program in order, and soon: one that waits where
//! nothing wakes it (a pipe that nobody fills or empties) is ended outright.

use std::ffi::c_int;
use std::io;
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::{Handle, Signals};

use crate::failure::Failure;

/// How long a program may take to end.
const PATIENCE: Duration = Duration::from_millis(1800);

/// Waits for a signal on a thread of its own, which dropping this joins.
#[derive(Debug)]
pub(crate) struct Stop {
    stopped: Receiver<()>,
    handle: Handle,
    /// Dropped to tell the thread that the program ends by itself.
    ending: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Stop {
    /// From here on, the two signals no longer kill the process.
    pub(crate) fn install() -> Result<Self, Failure> {
        Self::start(&[SIGINT, SIGTERM], None, Some(PATIENCE))
            .map(|(stop, _)| stop)
            .map_err(failed)
    }

    /// As [`install`](Self::install), for a program that has to put things in
    /// order before it ends, however long that takes, and whoever asks:
    /// SIGHUP counts as well.
    pub(crate) fn install_patiently() -> Result<Self, Failure> {
        Self::start(&[SIGINT, SIGTERM, SIGHUP], None, None)
            .map(|(stop, _)| stop)
            .map_err(failed)
    }

    /// As [`install`](Self::install), and a further signal, whose arrivals
    /// the channel tells of; those that arrive together may be told of once.
    pub(crate) fn install_with(signal: c_int) -> Result<(Self, Receiver<()>), Failure> {
        Self::start(&[SIGINT, SIGTERM], Some(signal), Some(PATIENCE)).map_err(failed)
    }

    fn start(
        stopping: &[c_int],
        further: Option<c_int>,
        patience: Option<Duration>,
    ) -> io::Result<(Self, Receiver<()>)> {
        let mut signals = Signals::new(stopping.iter().copied().chain(further))?;
        let handle = signals.handle();
        let (stop, stopped) = bounded(0);
        let (ending, ended) = bounded::<()>(0);
        let (arrive, arrived) = bounded(1);
        let thread = std::thread::Builder::new()
            .name("ssntp-signals".into())
            .spawn(move || {
                // The channel is closed, which every receiver sees, at the first
                // signal; a second one finds a program that is ending already.
                let mut told = false;
                for signal in signals.forever() {
                    if further != Some(signal) {
                        told = true;
                        break;
                    }
                    // One that has not been looked at yet stands for both.
                    let _ = arrive.try_send(());
                }
                drop((stop, arrive));
                if told
                    && let Some(patience) = patience
                    && ended.recv_timeout(patience) == Err(RecvTimeoutError::Timeout)
                {
                    std::process::exit(0);
                }
            })?;
        let stop = Self {
            stopped,
            handle,
            ending: Some(ending),
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
        self.ending.take();
        self.handle.close();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
