//! SIGINT and SIGTERM end a program in order. A program that does not end in time, for example
//! because it is blocked by a pipe, is ended by force.

use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, TryRecvError, bounded};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::{Handle, Signals};
use ssntp_transport::threads::{self, Joined};

use crate::failure::Failure;
use ssntp_transport::{deadline, now};

/// The signals that end a program.
const ENDING: [c_int; 2] = [SIGINT, SIGTERM];
/// The time in which a program must end in order. It is shorter than the two seconds after which
/// some service managers and shells kill a program.
const PATIENCE: Duration = Duration::from_millis(1800);

/// Waits for a signal on a thread of its own, which dropping this joins.
#[derive(Debug)]
pub struct Stop {
    stopped: Receiver<()>,
    /// The signal that has come; 0 until then.
    signal: Arc<AtomicU8>,
    handle: Handle,
    /// Dropped when the program ends by itself, which ends the thread.
    ending: Option<Sender<()>>,
    _thread: Joined,
}

impl Stop {
    /// From here on, the two signals no longer kill the process.
    pub fn install() -> Result<Self, Failure> {
        Ok(Self::start(&ENDING, [], Some(PATIENCE), false)?.0)
    }

    /// As [`install`](Self::install), for a command. If it is ended by force, its work is not done,
    /// and the exit code is a failure.
    pub fn install_for_commands() -> Result<Self, Failure> {
        Ok(Self::start(&ENDING, [], Some(PATIENCE), true)?.0)
    }

    /// As [`install`](Self::install), for a program that must clean up before it ends, without a
    /// time limit. SIGHUP ends the program as well.
    pub fn install_patiently() -> Result<Self, Failure> {
        Ok(Self::start(&[SIGINT, SIGTERM, SIGHUP], [], None, false)?.0)
    }

    /// As [`install`](Self::install), with a channel for each of further signals. The channel has a
    /// message after a signal; several signals may cause one message.
    pub fn install_with<const N: usize>(signals: [c_int; N]) -> Result<(Self, [Receiver<()>; N]), Failure> {
        Self::start(&ENDING, signals, Some(PATIENCE), false)
    }

    /// If `is_command`, the exit code after an end by force is a failure.
    fn start<const N: usize>(
        stopping: &[c_int],
        further: [c_int; N],
        patience: Option<Duration>,
        is_command: bool,
    ) -> Result<(Self, [Receiver<()>; N]), Failure> {
        let signals = Signals::new(stopping.iter().copied().chain(further));
        let mut signals = signals.map_err(|e| Failure::new(format!("cannot handle signals: {e}")))?;
        let handle = signals.handle();
        // No message is sent through these two channels. Dropping their senders wakes every receiver.
        let (stop, stopped) = bounded(0);
        let (ending, ended) = bounded::<()>(0);
        // One place is enough: a program handles all signals that have come before once.
        let channels = further.map(|_| bounded(1));
        let arrived = channels.each_ref().map(|(_, arrived)| arrived.clone());
        let arrive = channels.map(|(arrive, _)| arrive);
        let signal = Arc::new(AtomicU8::new(0));
        let came = Arc::clone(&signal);
        let wait = move || {
            let mut is_ending = false;
            for signal in signals.forever() {
                if let Some(at) = further.iter().position(|further| *further == signal) {
                    // If the channel is full, the message in it also reports this signal.
                    let _ = arrive[at].try_send(());
                    continue;
                }
                is_ending = true;
                // Stored before the channel is disconnected, because the program then reads the
                // number.
                came.store(u8::try_from(signal).unwrap_or(0), Ordering::Release);
                break;
            }
            // The first signal disconnects the channels for every receiver. Further signals have no
            // effect, because the program is ending already.
            drop((stop, arrive));
            if let Some(patience) = patience.filter(|_| is_ending)
                && ended.recv_timeout(patience) == Err(RecvTimeoutError::Timeout)
            {
                // The end of a daemon by a signal is a success for its service manager.
                let code = if is_command { exit_code(&came) } else { 0 };
                std::process::exit(code.into());
            }
        };
        let _thread = threads::joined("ssntp-signals", wait).map_err(Failure::thread)?;
        let stop = Self {
            stopped,
            signal,
            handle,
            ending: Some(ending),
            _thread,
        };
        Ok((stop, arrived))
    }

    /// A channel that is disconnected once a signal has come: for `select!`.
    pub fn channel(&self) -> &Receiver<()> {
        &self.stopped
    }

    /// True if a signal has come.
    pub fn requested(&self) -> bool {
        self.stopped.try_recv() == Err(TryRecvError::Disconnected)
    }

    /// Calls `look` until it returns something, and returns `None` if `limit` has passed first.
    /// Sleeps for `pause` between two calls; `pause` is zero if `look` itself blocks for a while.
    ///
    /// # Errors
    /// `look` failed, or a signal has come.
    pub fn poll<T>(
        &self,
        pause: Duration,
        limit: Duration,
        mut look: impl FnMut() -> Result<Option<T>, Failure>,
    ) -> Result<Option<T>, Failure> {
        let deadline = deadline(limit);
        loop {
            // The last look is after the deadline, because the process may have been stopped meanwhile.
            let is_over = now() >= deadline;
            if let Some(found) = look()? {
                return Ok(Some(found));
            }
            if is_over {
                return Ok(None);
            }
            if self.stopped.recv_timeout(pause) == Err(RecvTimeoutError::Disconnected) {
                return Err(self.interrupted());
            }
        }
    }

    /// The failure of a command that a signal has ended.
    pub fn interrupted(&self) -> Failure {
        Failure::Silent(exit_code(&self.signal))
    }
}

/// The exit code that a shell shows for a program that a signal has ended.
fn exit_code(signal: &AtomicU8) -> u8 {
    signal.load(Ordering::Acquire).saturating_add(128)
}

impl Drop for Stop {
    fn drop(&mut self) {
        // The thread waits for `ending` after a signal, and for the handle before a signal. Both waits
        // end here, so the thread can be joined.
        self.ending.take();
        self.handle.close();
    }
}
