//! SIGINT and SIGTERM end a program in order, and soon: a program that hangs (in a
//! pipe that nobody fills or empties) is ended by force after a time limit.

use std::ffi::c_int;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::{Handle, Signals};

use crate::failure::Failure;

/// How long a program may take to end in order.
const PATIENCE: Duration = Duration::from_millis(1800);

/// Waits for a signal on a thread of its own, which dropping this joins.
#[derive(Debug)]
pub(crate) struct Stop {
    stopped: Receiver<()>,
    /// The signal that has come; 0 before.
    signal: Arc<AtomicU8>,
    handle: Handle,
    /// Dropped to tell the thread that the program ends by itself.
    ending: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Stop {
    /// From here on, the two signals no longer kill the process.
    pub(crate) fn install() -> Result<Self, Failure> {
        Self::start(&[SIGINT, SIGTERM], [], Some(PATIENCE), false)
            .map(|(stop, _)| stop)
            .map_err(failed)
    }

    /// As [`install`](Self::install), for a command: if it is ended by force, it has not
    /// done its work, and the exit code says so.
    pub(crate) fn install_for_commands() -> Result<Self, Failure> {
        Self::start(&[SIGINT, SIGTERM], [], Some(PATIENCE), true)
            .map(|(stop, _)| stop)
            .map_err(failed)
    }

    /// As [`install`](Self::install), for a program that must clean up before it ends,
    /// without a time limit. SIGHUP ends it, too.
    pub(crate) fn install_patiently() -> Result<Self, Failure> {
        Self::start(&[SIGINT, SIGTERM, SIGHUP], [], None, false)
            .map(|(stop, _)| stop)
            .map_err(failed)
    }

    /// As [`install`](Self::install), with a channel for each of further signals. It has
    /// a message after a signal; several signals may cause one message.
    pub(crate) fn install_with<const N: usize>(
        signals: [c_int; N],
    ) -> Result<(Self, [Receiver<()>; N]), Failure> {
        Self::start(&[SIGINT, SIGTERM], signals, Some(PATIENCE), false).map_err(failed)
    }

    fn start<const N: usize>(
        stopping: &[c_int],
        further: [c_int; N],
        patience: Option<Duration>,
        outright_is_failure: bool,
    ) -> io::Result<(Self, [Receiver<()>; N])> {
        let mut signals = Signals::new(stopping.iter().copied().chain(further))?;
        let handle = signals.handle();
        let (stop, stopped) = bounded(0);
        let (ending, ended) = bounded::<()>(0);
        let channels = further.map(|_| bounded(1));
        let arrived = channels.each_ref().map(|(_, arrived)| arrived.clone());
        let arrive = channels.map(|(arrive, _)| arrive);
        let came = Arc::new(AtomicU8::new(0));
        let signal_came = Arc::clone(&came);
        let thread = std::thread::Builder::new()
            .name("ssntp-signals".into())
            .spawn(move || {
                // The channel is closed, which every receiver sees, at the first
                // signal; a second one finds a program that is ending already.
                let mut told = false;
                for signal in signals.forever() {
                    let Some(at) = further.iter().position(|further| *further == signal) else {
                        told = true;
                        signal_came.store(u8::try_from(signal).unwrap_or(0), Ordering::Release);
                        break;
                    };
                    // If the channel is full, the message in it stands for this signal.
                    let _ = arrive[at].try_send(());
                }
                drop((stop, arrive));
                if told
                    && let Some(patience) = patience
                    && ended.recv_timeout(patience) == Err(RecvTimeoutError::Timeout)
                {
                    let code = if outright_is_failure {
                        exit_code(&signal_came)
                    } else {
                        0
                    };
                    std::process::exit(code.into());
                }
            })?;
        let stop = Self {
            stopped,
            signal: came,
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

    /// How a command fails that a signal has ended.
    pub(crate) fn interrupted(&self) -> Failure {
        Failure::silent(exit_code(&self.signal))
    }
}

/// As a shell shows a program that a signal has ended.
fn exit_code(signal: &AtomicU8) -> u8 {
    signal.load(Ordering::Acquire).saturating_add(128)
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
