//! SIGINT and SIGTERM end a program in order. A program that does not end in time, for
//! example because it waits at a pipe, is ended by force.

use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, TryRecvError, bounded};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::{Handle, Signals};
use ssntp_transport::threads;

use crate::clock::now;
use crate::failure::Failure;

/// The signals that end a program.
const ENDING: [c_int; 2] = [SIGINT, SIGTERM];
/// How long a program may take to end in order. Service managers and shells that wait two
/// seconds before they kill it see it end by itself.
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
        Ok(Self::start(&ENDING, [], Some(PATIENCE), false)?.0)
    }

    /// As [`install`](Self::install), for a command: if it is ended by force, it has not
    /// done its work, and the exit code says so.
    pub(crate) fn install_for_commands() -> Result<Self, Failure> {
        Ok(Self::start(&ENDING, [], Some(PATIENCE), true)?.0)
    }

    /// As [`install`](Self::install), for a program that must clean up before it ends,
    /// without a time limit. SIGHUP ends it, too.
    pub(crate) fn install_patiently() -> Result<Self, Failure> {
        Ok(Self::start(&[SIGINT, SIGTERM, SIGHUP], [], None, false)?.0)
    }

    /// As [`install`](Self::install), with a channel for each of further signals. It has
    /// a message after a signal; several signals may cause one message.
    pub(crate) fn install_with<const N: usize>(
        signals: [c_int; N],
    ) -> Result<(Self, [Receiver<()>; N]), Failure> {
        Self::start(&ENDING, signals, Some(PATIENCE), false)
    }

    /// `is_command` says whether an end by force is a failure, in the exit code.
    fn start<const N: usize>(
        stopping: &[c_int],
        further: [c_int; N],
        patience: Option<Duration>,
        is_command: bool,
    ) -> Result<(Self, [Receiver<()>; N]), Failure> {
        let signals = Signals::new(stopping.iter().copied().chain(further));
        let mut signals = signals.map_err(|e| Failure::new(format!("cannot handle signals: {e}")))?;
        let handle = signals.handle();
        // No message goes through these two channels: their ends are dropped, which wakes every
        // receiver.
        let (stop, stopped) = bounded(0);
        let (ending, ended) = bounded::<()>(0);
        // One place is enough: a program that has not yet acted on a signal acts once for all of
        // them.
        let channels = further.map(|_| bounded(1));
        let arrived = channels.each_ref().map(|(_, arrived)| arrived.clone());
        let arrive = channels.map(|(arrive, _)| arrive);
        let signal = Arc::new(AtomicU8::new(0));
        let came = Arc::clone(&signal);
        let wait = move || {
            let mut is_told = false;
            for signal in signals.forever() {
                if let Some(at) = further.iter().position(|further| *further == signal) {
                    // If the channel is full, the message in it stands for this signal.
                    let _ = arrive[at].try_send(());
                    continue;
                }
                is_told = true;
                // Stored before the channel is closed, because a program that sees it closed asks
                // for the number.
                came.store(u8::try_from(signal).unwrap_or(0), Ordering::Release);
                break;
            }
            // The first signal closes the channel, which every receiver sees. A second one
            // would find a program that is ending already.
            drop((stop, arrive));
            if let Some(patience) = patience.filter(|_| is_told)
                && ended.recv_timeout(patience) == Err(RecvTimeoutError::Timeout)
            {
                // A daemon that was told to stop has done what it was for, so a service manager
                // sees success.
                let code = if is_command { exit_code(&came) } else { 0 };
                std::process::exit(code.into());
            }
        };
        let thread = threads::spawn("ssntp-signals", wait).map_err(Failure::thread)?;
        let stop = Self {
            stopped,
            signal,
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
        self.stopped.try_recv() == Err(TryRecvError::Disconnected)
    }

    /// Asks `there` again and again until it gives something. `None` if `limit` has passed first.
    /// The pause between two questions is `pause`; it is zero if `there` itself waits for a while.
    ///
    /// # Errors
    /// `there` failed, or a signal has come.
    pub(crate) fn poll<T>(
        &self,
        pause: Duration,
        limit: Duration,
        mut there: impl FnMut() -> Result<Option<T>, Failure>,
    ) -> Result<Option<T>, Failure> {
        let deadline = now() + limit;
        loop {
            if let Some(found) = there()? {
                return Ok(Some(found));
            }
            if self.stopped.recv_timeout(pause) == Err(RecvTimeoutError::Disconnected) {
                return Err(self.interrupted());
            }
            if now() >= deadline {
                return Ok(None);
            }
        }
    }

    /// The failure of a command that a signal has ended.
    pub(crate) fn interrupted(&self) -> Failure {
        Failure::silent(exit_code(&self.signal))
    }
}

/// The exit code that a shell shows for a program that a signal has ended.
fn exit_code(signal: &AtomicU8) -> u8 {
    signal.load(Ordering::Acquire).saturating_add(128)
}

impl Drop for Stop {
    fn drop(&mut self) {
        // The thread waits for `ending` after a signal, and for the handle before one. Both end, so
        // the join below does not wait.
        self.ending.take();
        self.handle.close();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
