//! SIGINT and SIGTERM end the program in order, so that its directory of throw-away keys is
//! removed.

use std::time::Duration;

use crossbeam_channel::{Receiver, TryRecvError, bounded};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::failure::Failure;

/// The time limit for an end in order. A measurement that waits for a server which does not
/// answer cannot be woken, so the process exits after this time. The cases that were done are
/// printed already.
const PATIENCE: Duration = Duration::from_millis(1800);

/// A channel that is closed when a signal arrives.
#[derive(Debug)]
pub(crate) struct Stop(Receiver<()>);

impl Stop {
    /// Handles the two signals from here on.
    pub(crate) fn install() -> Result<Self, Failure> {
        let mut signals = Signals::new([SIGINT, SIGTERM])?;
        let (running, stopped) = bounded::<()>(0);
        std::thread::Builder::new()
            .name("signals".to_owned())
            .spawn(move || {
                let signal = signals.forever().next().unwrap_or(SIGINT);
                // Every receiver sees that the channel is closed.
                drop(running);
                crate::pause(PATIENCE);
                std::process::exit(128 + signal);
            })?;
        Ok(Self(stopped))
    }

    /// Waits for this time, or until a signal arrives.
    pub(crate) fn wait(&self, time: Duration) {
        let _ = self.0.recv_timeout(time);
    }

    /// True if a signal has arrived.
    pub(crate) fn requested(&self) -> bool {
        self.0.try_recv() == Err(TryRecvError::Disconnected)
    }
}
