//! What every daemon does beside its work, on its main thread: it ends when it is
//! asked to, and reads its files again.
//!
//! ```text
//!  SIGINT, SIGTERM ─▶ Stop ────────▶ the end
//!  SIGHUP ─▶ hang_ups ─▶ reload ──────────────────▶ Service::reload
//!  every two seconds ─▶ looks ─▶ look ─ changed? ──────┘
//!                                  └ about to end? ─▶ a warning in the log
//!  it does its work ─▶ ready, stopping ─▶ the service manager
//! ```
//!
//! A daemon's loop has an arm for each of these beside its own. Nothing here waits,
//! but for the disk, and a file system that hangs stops nothing but this.

use std::ffi::c_int;
use std::time::{Instant, SystemTime};

use crossbeam_channel::{Receiver, tick};
use signal_hook::consts::SIGHUP;

#[cfg(feature = "full")]
use crate::admin::Notes;
use crate::credentials::{Expiry, Lifetime};
use crate::failure::Failure;
use crate::service_manager::ServiceManager;
use crate::signals::Stop;
use crate::watched::{LOOK, Watched};

/// Files that would not do are tried again after so many looks, a minute: what was
/// in the way need not be in them, as with a certificate that is not valid yet.
const LOOKS_TO_RETRY: u32 = 30;

/// What a daemon runs.
pub(crate) trait Service {
    /// Reads its files again, all of them before it changes anything.
    ///
    /// # Errors
    /// What cannot be read; everything is as it was then.
    fn reload(&mut self) -> Result<(), Failure>;

    /// How long what it has read counts.
    fn lifetimes(&self) -> Vec<Lifetime>;

    /// Other files than before, as they were before they were read, where the last
    /// reload has read such.
    fn watched(&mut self) -> Option<Watched> {
        None
    }
}

/// A process that runs until it is told to end.
#[derive(Debug)]
pub(crate) struct Daemon {
    manager: ServiceManager,
    stop: Stop,
    hang_ups: Receiver<()>,
    looks: Receiver<Instant>,
    watched: Watched,
    expiry: Expiry,
    /// When it last read its files again, and why that failed.
    last_reload: Option<(SystemTime, Result<(), String>)>,
    /// Looks since files that have changed would not do.
    failing: Option<u32>,
    #[cfg(feature = "full")]
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
            manager: ServiceManager::of_this_process(),
            watched: Watched::default(),
            expiry: Expiry::default(),
            last_reload: None,
            failing: None,
            #[cfg(feature = "full")]
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

    /// Tells the service manager that the daemon does its work, and has it watched:
    /// [`ServiceManager::ready`].
    pub(crate) fn ready(&mut self, work: impl Fn() -> Option<String> + Send + 'static) {
        self.manager.ready(work);
    }

    /// Tells the service manager that the daemon ends: before its service does.
    pub(crate) fn stopping(&mut self) {
        self.manager.stopping();
    }

    /// What the pages of `--admin` show of this process.
    #[cfg(feature = "full")]
    pub(crate) fn notes(&self) -> Notes {
        self.notes.clone()
    }

    /// Looks after the files that the service has just read; `watched` was made
    /// before it did. Whatever ends soon is told at once.
    pub(crate) fn watch(&mut self, watched: Watched, service: &impl Service) {
        self.watched = watched;
        self.expect(service);
    }

    /// Has the service read its files again. What will not do is told, and the
    /// service goes on as it was.
    pub(crate) fn reload(&mut self, service: &mut impl Service) {
        self.watched.read_now();
        if let Err(why) = self.read_again(service) {
            log::warn!("SIGHUP: not reloaded: {why}");
        }
    }

    /// Does what is due now and then: has the service read files that have changed,
    /// and tells of what is about to end.
    pub(crate) fn look(&mut self, service: &mut impl Service) {
        let failing = self.failing.as_mut().map(|looks| {
            *looks += 1;
            *looks
        });
        let have_changed = self.watched.have_changed();
        if have_changed || failing.is_some_and(|looks| looks >= LOOKS_TO_RETRY) {
            let before = self.last_reload.take();
            if let Err(why) = self.read_again(service) {
                // What was told of the same files is not told again.
                let is_told = before.is_some_and(|(_, before)| before.as_ref() == Err(&why));
                if have_changed || !is_told {
                    log::warn!("files have changed, which is not taken: {why}");
                }
            }
        }
        self.warn();
    }

    /// Keeps in mind what came of files that the service looks after itself.
    #[cfg(feature = "full")]
    pub(crate) fn note_reload(&mut self, done: Option<Result<(), String>>) {
        if let Some(done) = done {
            self.keep_in_mind(done);
        }
    }

    fn keep_in_mind(&mut self, done: Result<(), String>) {
        #[cfg(feature = "full")]
        self.notes.reloaded(done.clone().err());
        let failure = done.as_ref().err().map(|why| format!("not reloaded: {why}"));
        self.manager.reloaded(failure.as_deref());
        self.last_reload = Some((now(), done));
    }

    fn read_again(&mut self, service: &mut impl Service) -> Result<(), String> {
        self.manager.reloading();
        let done = service.reload().map_err(|why| why.to_string());
        self.keep_in_mind(done.clone());
        self.failing = done.is_err().then_some(0);
        if done.is_ok() {
            log::info!("read its files again");
            if let Some(watched) = service.watched() {
                self.watched = watched;
            }
            self.expect(service);
        }
        done
    }

    fn expect(&mut self, service: &impl Service) {
        let lifetimes = service.lifetimes();
        #[cfg(feature = "full")]
        self.notes.lifetimes(lifetimes.clone());
        self.expiry = Expiry::of(lifetimes);
        self.warn();
    }

    fn warn(&mut self) {
        for warning in self.expiry.warnings(now()) {
            log::warn!("{warning}");
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "certificates end at a time of day")]
fn now() -> SystemTime {
    SystemTime::now()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;

    use super::*;

    /// Counts what it is asked, and fails where its file says so.
    struct Counting {
        path: PathBuf,
        reloads: usize,
    }

    impl Service for Counting {
        fn reload(&mut self) -> Result<(), Failure> {
            self.reloads += 1;
            match fs::read_to_string(&self.path).as_deref() {
                Ok("bad") => Err(Failure::new("it is bad")),
                Ok(_) => Ok(()),
                Err(e) => Err(Failure::new(e)),
            }
        }

        fn lifetimes(&self) -> Vec<Lifetime> {
            Vec::new()
        }
    }

    #[test]
    fn what_will_not_do_is_tried_once_and_again_after_a_minute() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.pem");
        fs::write(&path, "good").unwrap();
        let mut daemon = Daemon::of(Stop::install().unwrap(), crossbeam_channel::never());
        let mut service = Counting {
            path: path.clone(),
            reloads: 0,
        };
        daemon.watch(Watched::of(vec![path.clone()]), &service);
        fs::write(&path, "bad").unwrap();
        (0..10).for_each(|_| daemon.look(&mut service));
        assert_eq!(service.reloads, 1);
        let (_, last) = daemon.last_reload.clone().unwrap();
        assert_eq!(last, Err("it is bad".to_owned()));
        (0..LOOKS_TO_RETRY).for_each(|_| daemon.look(&mut service));
        assert_eq!(service.reloads, 2);
        fs::write(&path, "good again").unwrap();
        (0..LOOKS_TO_RETRY * 2).for_each(|_| daemon.look(&mut service));
        assert_eq!(service.reloads, 3);
        assert_eq!(daemon.last_reload.clone().unwrap().1, Ok(()));
        daemon.reload(&mut service);
        assert_eq!(service.reloads, 4, "by order, whether it has changed or not");
    }
}
