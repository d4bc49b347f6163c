//! The main loop of every daemon. It runs on the main thread: it prints the daemon's addresses,
//! reads the daemon's files again when they change, and ends the daemon in order.
//!
//! ```text
//!  SIGINT, SIGTERM ─▶ Stop ─────────────────────▶ the end
//!  SIGHUP ─────────▶ hang_ups ─▶ reload ─────────────────▶ the daemon's reload function
//!  every 2 seconds ─▶ checks ─▶ check ─ files changed? ─────┘
//!                                 └─ about to expire? ─▶ a warning in the log
//!  the daemon's own channels ─▶ Arm ─▶ the daemon
//!  ready, reloaded, stopping ─▶ the service manager and the pages of --admin
//! ```
//!
//! The loop blocks only on its channels, and on the disk: if a file system hangs, no file is read again,
//! but the daemon's own threads continue. What a daemon prints later than its first lines, it prints on a
//! thread of its own, because the reader of the output may pause.
//!
//! | file | holds |
//! |---|---|
//! | `arm` | a channel that a daemon adds to the loop |

mod arm;

use std::ffi::c_int;
use std::fmt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::FromArgMatches;
use crossbeam_channel::{Receiver, Select, tick};
use serde_json::{Value, json};
use signal_hook::consts::SIGHUP;
use ssntp::client::ClientFigures;
use ssntp::pki::{Identity, Trust};
use ssntp::server::Server;
use ssntp::transport::Address;
use uuid::Uuid;

pub use self::arm::{Arm, Arms, Next, on};
use crate::credentials::{Expiry, FilesRead, Lifetime};
use crate::failure::Failure;
use crate::logging;
use crate::output::{even_unread, print_either};
use crate::service_manager::ServiceManager;
use crate::settings::{self, Settings};
use crate::signals::Stop;
use crate::watched::{POLL, Watched};
use ssntp_transport::wall_clock;

/// After a failed reload, the files are read again after this number of checks, which is a
/// minute, even if they have not changed. The reason for the failure need not be in the files:
/// a certificate may not be valid yet.
const CHECKS_TO_RETRY: u32 = 30;

/// An arm that ends the daemon when its server stops by itself, for example because an operator
/// drains it. If the server's dispatcher has panicked, the daemon fails.
pub fn server_stopped<'a>(server: &Server) -> Box<dyn Arm + 'a> {
    let handle = server.handle();
    // The dispatcher of a server that stops in order answers until the server is dropped.
    on(server.stopping().clone(), move |_| match handle.with(|_| ()) {
        Ok(()) => Ok(Next::End),
        Err(_) => Err(Failure::new("the server has panicked; the log says why")),
    })
}

/// The function with which a daemon reads all its files and then applies what they hold. Its
/// argument is the flags of a daemon that has a settings file, as that file is now.
///
/// # Errors
/// A file cannot be used; the daemon has changed nothing.
type Reload<'a, A> = dyn FnMut(Option<A>) -> Result<FilesRead, Failure> + 'a;

/// Pages about a daemon, which a program may have.
pub trait Pages: fmt::Debug {
    /// Prints the addresses of the pages. If the output is closed, the daemon continues.
    fn announce(&self, as_json: bool);
    /// The files of the pages, to be read again when they change.
    ///
    /// # Errors
    /// A file cannot be used.
    fn files(&self) -> Result<FilesRead, Failure>;
    /// Uses other credentials for later connections.
    fn renew(&self, identity: &Identity, trust: &Trust);
    /// Records a reload, and the reason if it failed.
    fn reloaded(&self, failure: Option<String>);
    /// Records the lifetimes of the certificates, authorities and revocation lists in use.
    fn lifetimes(&self, lifetimes: Vec<Lifetime>);
    /// Shows that the daemon is about to end.
    fn stopping(&self);
}

/// Starts the pages of the daemon with this name, which listens at these addresses. The credentials are
/// for addresses that other hosts can reach.
pub type StartPages<'a> = Box<
    dyn FnOnce(&'static str, &[Address], Option<(Identity, Trust)>) -> Result<Box<dyn Pages>, Failure> + 'a,
>;

/// The parts of a daemon that users, programs and the service manager see while it runs.
#[expect(missing_debug_implementations, reason = "it holds closures")]
pub struct Presence<'a> {
    /// The subcommand, for `/info`.
    pub name: &'static str,
    /// The addresses at which a server listens.
    pub addresses: &'a [Address],
    /// The first lines of the output, each as text and as JSON.
    pub lines: Vec<(String, Value)>,
    /// True if the output is JSON.
    pub json: bool,
    /// Starts the pages about the daemon; `None` in a program that has none.
    pub pages: Option<StartPages<'a>>,
    /// Returns the daemon's work in a few words, for the service manager. See
    /// [`ServiceManager::ready`].
    pub status: Box<dyn Fn() -> Option<String> + Send>,
    /// The keys of the settings file that a reload applies. All other keys need a restart.
    pub reloaded: &'static [&'static str],
}

impl<'a> Presence<'a> {
    /// A daemon that is a client. Its first line has its UUID, and its status is the server that
    /// it is connected to. `client` returns `None` once the daemon's working thread has ended.
    pub fn of_client(
        name: &'static str,
        uuid: Uuid,
        json: bool,
        pages: Option<StartPages<'a>>,
        client: impl Fn() -> Option<ClientFigures> + Send + 'static,
    ) -> Self {
        let status = move || {
            Some(match client()?.server {
                Some(server) => format!("connected to {server}"),
                None => "not connected".to_owned(),
            })
        };
        Self {
            name,
            addresses: &[],
            lines: vec![(format!("{name} {uuid}"), json!({ name: uuid }))],
            json,
            pages,
            status: Box::new(status),
            reloaded: &[],
        }
    }
}

/// A process that runs until a signal or one of its arms ends it.
#[derive(Debug)]
pub struct Daemon {
    manager: ServiceManager,
    pages: Option<Box<dyn Pages>>,
    settings: Settings,
    reloaded: &'static [&'static str],
    stop: Stop,
    hang_ups: Receiver<()>,
    checks: Receiver<Instant>,
    watched: Watched,
    expiry: Expiry,
    /// The reason why the last reload failed, and the number of checks since then. `None` if the
    /// last reload succeeded.
    failing: Option<(String, u32)>,
    /// The reason why an arm could not use its files.
    arm_failing: Option<String>,
}

impl Daemon {
    /// From here on, SIGHUP does not kill the process, and SIGINT and SIGTERM end it in order.
    pub fn install(settings: Settings) -> Result<Self, Failure> {
        let (stop, [hang_ups]) = Stop::install_with([SIGHUP])?;
        Ok(Self::new(settings, stop, hang_ups))
    }

    /// As [`install`](Self::install), with one more signal. The channel has a message when the
    /// signal has arrived.
    pub fn install_with(settings: Settings, signal: c_int) -> Result<(Self, Receiver<()>), Failure> {
        let (stop, [hang_ups, arrivals]) = Stop::install_with([SIGHUP, signal])?;
        Ok((Self::new(settings, stop, hang_ups), arrivals))
    }

    /// For a process that a user only tries: it has no files to read again, and SIGHUP, which a
    /// terminal sends when it is closed, ends the process.
    pub fn install_for_trying() -> Result<Self, Failure> {
        let never = crossbeam_channel::never();
        Ok(Self::new(Settings::default(), Stop::install()?, never))
    }

    fn new(settings: Settings, stop: Stop, hang_ups: Receiver<()>) -> Self {
        Self {
            manager: ServiceManager::of_this_process(),
            pages: None,
            settings,
            reloaded: &[],
            stop,
            hang_ups,
            checks: tick(POLL),
            watched: Watched::default(),
            expiry: Expiry::default(),
            failing: None,
            arm_failing: None,
        }
    }

    /// The signals that end the process.
    pub fn stop(&self) -> &Stop {
        &self.stop
    }

    /// Runs a daemon that has started until it ends: starts its pages, prints its first lines,
    /// notifies the service manager, and [serves](Self::serve). `read` holds the files that the
    /// daemon has read at its start.
    ///
    /// # Errors
    /// The pages cannot be started, or an arm failed.
    pub fn run<A: FromArgMatches>(
        &mut self,
        presence: Presence<'_>,
        read: FilesRead,
        reload: impl FnMut(Option<A>) -> Result<FilesRead, Failure>,
        arms: Arms<'_>,
    ) -> Result<(), Failure> {
        self.reloaded = presence.reloaded;
        let (name, addresses) = (presence.name, presence.addresses);
        // The pages answer before the first line is printed, because a program that has read the
        // line may request them at once. The service manager comes last: it then starts the units
        // that depend on this daemon.
        let start = presence.pages;
        let pages = start.map(|start| start(name, addresses, read.credentials.clone()));
        self.pages = pages.transpose()?;
        for (text, value) in presence.lines {
            // If the output is closed, the daemon continues.
            even_unread(print_either(presence.json, value, text))?;
        }
        if let Some(pages) = &self.pages {
            pages.announce(presence.json);
        }
        self.manager.ready(presence.status);
        let served = self.serve(read, reload, arms);
        match served {
            Err(Failure::NotAdmitted(why)) if self.waits_before_end(&why) => {}
            other => other?,
        }
        self.manager.stopping();
        if let Some(pages) = &self.pages {
            pages.stopping();
        }
        Ok(())
    }

    /// The result of a step before [`run`](Self::run). If every server refuses the client, this delays its end as
    /// `run` does: until these files or the settings file change, a minute at most.
    ///
    /// # Errors
    /// That of the step; one without a message if a signal has ended the delay.
    pub fn unless_refused<T>(
        &mut self,
        tried: Result<T, Failure>,
        files: Vec<PathBuf>,
    ) -> Result<T, Failure> {
        let Err(Failure::NotAdmitted(why)) = &tried else {
            return tried;
        };
        self.watched = Watched::of(files).and(self.settings.file());
        if self.waits_before_end(why) {
            return Err(Failure::Silent(0));
        }
        tried
    }

    /// Delays the end of a client that every server refuses, because a service manager would
    /// start it again at once. The delay ends when the client's files change, since a server may
    /// admit the new certificate, and after a minute at most, since the server's files may have
    /// been wrong. Returns true if a signal ended the delay.
    fn waits_before_end(&mut self, why: &str) -> bool {
        if !self.manager.receives_notices() {
            return false;
        }
        log::error!("{why}; this process ends when its files change, or in a minute");
        for _ in 0..CHECKS_TO_RETRY {
            self.manager.waits_before_end(why);
            crossbeam_channel::select! {
                recv(self.stop.channel()) -> _ => return true,
                recv(self.checks) -> _ => if self.watched.have_changed() {
                    return false;
                }
            }
        }
        false
    }

    /// Leaves the server's cluster, and then asks the clients to leave before the server stops. Blocks while
    /// `leave` does, and until the clients have left, until the server's limit for that has passed, or until a
    /// further signal.
    ///
    /// # Errors
    /// Signals cannot be handled.
    pub fn drain(&mut self, server: &Server, within: Duration, leave: impl FnOnce()) -> Result<(), Failure> {
        if !within.is_zero() {
            // The present `Stop` has received a signal, and would end the process by force, also while the
            // cluster's engine does not answer.
            self.stop = Stop::install()?;
            self.manager.stops_within(within);
        }
        leave();
        if !within.is_zero() && server.handle().drain(within).is_ok() {
            crossbeam_channel::select! {
                recv(server.stopping()) -> _ => {}
                recv(self.stop.channel()) -> _ => {}
            }
        }
        Ok(())
    }

    /// Runs the loop alone, for a program without pages and first lines.
    ///
    /// # Errors
    /// An arm failed.
    pub fn serve<A: FromArgMatches>(
        &mut self,
        read: FilesRead,
        mut reload: impl FnMut(Option<A>) -> Result<FilesRead, Failure>,
        mut arms: Arms<'_>,
    ) -> Result<(), Failure> {
        self.expect(read.with(self.files_of_pages()?).and(self.settings.file()));
        // Clones, because the selection borrows the channels while the loop changes `self`.
        let (hang_ups, checks) = (self.hang_ups.clone(), self.checks.clone());
        let stop = self.stop.channel().clone();
        loop {
            // Made for each message, because an arm may have been removed.
            let mut select = Select::new();
            let (at_stop, at_hang_up, at_look) =
                (select.recv(&stop), select.recv(&hang_ups), select.recv(&checks));
            arms.iter().for_each(|arm| arm.register(&mut select));
            match select.ready() {
                at if at == at_stop => {
                    // crossbeam may report a channel as ready although it is not.
                    if self.stop.requested() {
                        return Ok(());
                    }
                }
                // This channel is disconnected together with that of `stop`.
                at if at == at_hang_up => {
                    if hang_ups.try_recv().is_ok() {
                        self.hang_up(&mut reload);
                    }
                }
                at if at == at_look => {
                    if checks.try_recv().is_ok() {
                        self.check(&mut reload);
                    }
                }
                at => {
                    let arm = at - at_look - 1;
                    match arms[arm].receive()? {
                        Next::Continue => {}
                        Next::End => return Ok(()),
                        Next::Reloaded(done) => {
                            self.arm_failing = done.err();
                            self.note();
                        }
                        Next::Closed => drop(arms.remove(arm)),
                    }
                }
            }
        }
    }

    /// Reloads on SIGHUP. If that fails, the reason is logged and the daemon continues with the
    /// old files.
    fn hang_up<A: FromArgMatches>(&mut self, reload: &mut Reload<'_, A>) {
        // Otherwise the next check would find the change for which the user sent the signal, and
        // reload a second time.
        self.watched.read_now();
        if let Err(why) = self.reload(reload) {
            log::warn!("SIGHUP: not reloaded: {why}");
        }
    }

    /// Reloads if files have changed, and a minute after a reload that failed, and warns of certificates that expire soon.
    fn check<A: FromArgMatches>(&mut self, reload: &mut Reload<'_, A>) {
        let is_due = self.failing.as_mut().is_some_and(|(_, checks)| {
            *checks += 1;
            *checks >= CHECKS_TO_RETRY
        });
        let have_changed = self.watched.have_changed();
        if have_changed || is_due {
            let before = self.failing.take();
            if let Err(why) = self.reload(reload) {
                // The same reason for the same files is logged once.
                let is_logged = before.is_some_and(|(before, _)| before == why);
                if have_changed || !is_logged {
                    log::warn!("files have changed, but cannot be used: {why}");
                }
            }
        }
        self.warn();
    }

    fn reload<A: FromArgMatches>(&mut self, reload: &mut Reload<'_, A>) -> Result<(), String> {
        self.manager.reloading();
        let done = self.read_again(reload).map_err(|why| why.to_string());
        self.failing = done.clone().err().map(|why| (why, 0));
        self.note();
        if done.is_ok() {
            // At warn, which is the level of a daemon by default: the operator who changed a file
            // waits for this line.
            log::warn!("read its files again");
        }
        done
    }

    fn read_again<A: FromArgMatches>(&mut self, reload: &mut Reload<'_, A>) -> Result<(), Failure> {
        // The state of the files is noted before they are read, so that the next check finds a
        // change that happens meanwhile.
        let others = self.files_of_pages()?.and(self.settings.file());
        // Every step that may fail comes first, so that a failure leaves the daemon unchanged. The
        // pages and the log change only after the daemon has applied its files.
        let (args, settings) = self.settings.read_again()?.unzip();
        let read = reload(args)?;
        if let (Some((identity, trust)), Some(pages)) = (&read.credentials, &self.pages) {
            pages.renew(identity, trust);
        }
        if let Some(settings) = settings {
            logging::select(settings.value(settings::LOG));
            let taken = self.reloaded.iter().copied();
            let taken: Vec<_> = taken.filter(|key| !read.waiting.contains(key)).collect();
            self.settings.take(settings, &taken);
        }
        self.expect(read.with(others));
        Ok(())
    }

    /// Reports to the service manager and on the pages whether this daemon and its arms could use their files.
    fn note(&mut self) {
        let why = self.failing.as_ref().map(|(why, _)| why);
        let why = why.or(self.arm_failing.as_ref()).cloned();
        let failure = why.as_ref().map(|why| format!("not reloaded: {why}"));
        if let Some(pages) = &self.pages {
            pages.reloaded(why);
        }
        self.manager.reloaded(failure.as_deref());
    }

    /// Watches these files from now on, for changes and for the ends of what they hold.
    fn expect(&mut self, read: FilesRead) {
        self.watched = read.watched;
        let lifetimes = read.lifetimes;
        if let Some(pages) = &self.pages {
            pages.lifetimes(lifetimes.clone());
        }
        // A reload makes all warnings due again, so a certificate that was not renewed is named
        // once more.
        self.expiry = Expiry::of(lifetimes);
        self.warn();
    }

    fn files_of_pages(&self) -> Result<FilesRead, Failure> {
        self.pages
            .as_ref()
            .map_or_else(|| Ok(FilesRead::default()), |pages| pages.files())
    }

    fn warn(&mut self) {
        for warning in self.expiry.warnings(wall_clock()) {
            log::warn!("{warning}");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::fs;

    use super::*;

    #[derive(Debug, clap::Args)]
    struct NoArgs {}

    #[test]
    fn unusable_files_are_read_once_and_again_after_a_minute() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.pem");
        fs::write(&path, "good").unwrap();
        let mut daemon = Daemon::install_for_trying().unwrap();
        let reloads = Cell::new(0);
        let watched = || Watched::of(vec![path.clone()]);
        // Counts its calls, and fails if the file says so.
        let mut reload = |_: Option<NoArgs>| {
            reloads.set(reloads.get() + 1);
            let watched = watched();
            match fs::read_to_string(&path)?.as_str() {
                "bad" => Err(Failure::new("it is bad")),
                _ => Ok(FilesRead {
                    watched,
                    ..FilesRead::default()
                }),
            }
        };
        daemon.watched = watched();
        fs::write(&path, "bad").unwrap();
        (0..10).for_each(|_| daemon.check(&mut reload));
        assert_eq!(reloads.get(), 1);
        assert_eq!(daemon.failing.as_ref().unwrap().0, "it is bad");
        (0..CHECKS_TO_RETRY).for_each(|_| daemon.check(&mut reload));
        assert_eq!(reloads.get(), 2);
        fs::write(&path, "good again").unwrap();
        (0..CHECKS_TO_RETRY * 2).for_each(|_| daemon.check(&mut reload));
        assert_eq!(reloads.get(), 3);
        assert_eq!(daemon.failing, None);
        daemon.hang_up(&mut reload);
        assert_eq!(reloads.get(), 4, "a signal reloads even if no file has changed");
    }

    #[test]
    fn a_daemon_ends_with_its_server_and_fails_if_the_server_answers_no_more() {
        let kit = ssntp::testkit::Testkit::new().unwrap();
        let server = Server::start(kit.server_config().unwrap(), ()).unwrap();
        let serve = |arm| {
            let mut daemon = Daemon::install_for_trying().unwrap();
            let reload = |_: Option<NoArgs>| Ok(FilesRead::default());
            daemon.serve(FilesRead::default(), reload, vec![arm])
        };
        server.handle().stop();
        serve(server_stopped(&server)).unwrap();
        let arm = server_stopped(&server);
        // As after a panic of its dispatcher.
        drop(server);
        let failure = serve(arm).unwrap_err();
        assert_eq!(failure.plain(), Some("the server has panicked; the log says why"));
    }

    #[test]
    fn a_daemon_serves_a_channel_until_its_close_and_an_arm_may_end_the_daemon() {
        let mut daemon = Daemon::install_for_trying().unwrap();
        let sum = Cell::new(0);
        let (numbers, received) = crossbeam_channel::unbounded();
        let (end, ended) = crossbeam_channel::bounded(1);
        numbers.send(1).unwrap();
        numbers.send(2).unwrap();
        drop(numbers);
        let arms: Arms<'_> = vec![
            on(received, |number| {
                match number {
                    Some(number) => sum.set(sum.get() + number),
                    None => end.send(()).unwrap(),
                }
                Ok(Next::Continue)
            }),
            on(ended, |_| Ok(Next::End)),
        ];
        let reload = |_: Option<NoArgs>| Ok(FilesRead::default());
        daemon.serve(FilesRead::default(), reload, arms).unwrap();
        assert_eq!(sum.get(), 3);
    }
}
