//! What every daemon does beside its work, on its main thread: it ends when it is
//! asked to, and reads its files again.
//!
//! ```text
//!  SIGINT, SIGTERM ─▶ Stop ────────▶ the end
//!  SIGHUP ─▶ hang_ups ─▶ reload ───▶ Service::reload
//!  every two seconds ─▶ looks ─▶ look
//! ```
//!
//! A daemon's loop has an arm for each of these beside its own. Nothing here waits,
//! but for the disk.

use std::ffi::c_int;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, tick};
use signal_hook::consts::SIGHUP;

#[cfg(feature = "admin")]
use crate::admin::Notes;
use crate::failure::Failure;
use crate::output::note;
use crate::signals::Stop;

/// Between two looks.
const LOOK: Duration = Duration::from_secs(2);

/// What a daemon runs.
pub(crate) trait Service {
    /// Reads its files again, all of them before it changes anything.
    ///
    /// # Errors
    /// What cannot be read; everything is as it was then.
    fn reload(&mut self) -> Result<(), Failure>;
}

/// A process that runs until it is told to end.
#[derive(Debug)]
pub(crate) struct Daemon {
    stop: Stop,
    hang_ups: Receiver<()>,
    looks: Receiver<Instant>,
    #[cfg(feature = "admin")]
    notes: Notes,
}

impl Daemon {
    /// From here on, SIGHUP no longer kills the process, and SIGINT and SIGTERM end
    /// it in order.
    pub(crate) fn install() -> Result<Self, Failure> {
        let (stop, [hang_ups]) = Stop::install_with([SIGHUP])?;
        Ok(Self::of(stop, hang_ups))
    }

    /// As [`install`](Self::install), and a further signal, whose arrivals the
    /// channel tells of.
    pub(crate) fn install_with(signal: c_int) -> Result<(Self, Receiver<()>), Failure> {
        let (stop, [hang_ups, arrivals]) = Stop::install_with([SIGHUP, signal])?;
        Ok((Self::of(stop, hang_ups), arrivals))
    }

    /// A process that the end of its terminal ends, too: one that somebody only
    /// tries, and that has no files to read again.
    pub(crate) fn install_for_trying() -> Result<Self, Failure> {
        Ok(Self::of(Stop::install()?, crossbeam_channel::never()))
    }

    fn of(stop: Stop, hang_ups: Receiver<()>) -> Self {
        Self {
            stop,
            hang_ups,
            looks: tick(LOOK),
            #[cfg(feature = "admin")]
            notes: Notes::default(),
        }
    }

    /// Whether, and when, it is to end.
    pub(crate) fn stop(&self) -> &Stop {
        &self.stop
    }

    /// Has a message when [`reload`](Self::reload) is to be called; disconnected
    /// once the process is to end.
    pub(crate) fn hang_ups(&self) -> &Receiver<()> {
        &self.hang_ups
    }

    /// Has a message when [`look`](Self::look) is to be called.
    pub(crate) fn looks(&self) -> &Receiver<Instant> {
        &self.looks
    }

    /// What the pages of `--admin` show of this process.
    #[cfg(feature = "admin")]
    pub(crate) fn notes(&self) -> Notes {
        self.notes.clone()
    }

    /// Has the service read its files again. What will not do is told, and the
    /// service goes on as it was.
    pub(crate) fn reload(&mut self, service: &mut impl Service) {
        let failure = service.reload().err().map(|why| why.to_string());
        if let Some(why) = &failure {
            note(format_args!("ssntp: SIGHUP: not reloaded: {why}"));
        }
        #[cfg(feature = "admin")]
        self.notes.reloaded(failure);
    }

    /// Does what is due now and then.
    pub(crate) fn look(&mut self, service: &mut impl Service) {
        let _ = service;
    }
}
