//! The loop that all daemons share. It runs on the main thread: it prints where the daemon
//! listens, reads the files again when they change, and ends the daemon in order.
//!
//! ```text
//!  SIGINT, SIGTERM ─▶ Stop ─────────────────────▶ the end
//!  SIGHUP ─────────▶ hang_ups ─▶ reload ─────────────────▶ Service::reload
//!  every 2 seconds ─▶ looks ─▶ look ─ files changed? ──────┘
//!                                 └─ about to expire? ─▶ a warning in the log
//!  the daemon's own channels ─▶ Arm ─▶ the daemon
//!  ready, reloaded, stopping ─▶ the service manager and the pages of --admin
//! ```
//!
//! The loop waits for nothing but its channels and the disk. If a file system hangs, no
//! file is read again, but the daemon's own threads go on.
//!
//! | file | holds |
//! |---|---|
//! | `arm` | a channel that a daemon adds to the loop |
//! | `server` | flags and texts that the daemons share that are servers |

mod arm;
pub(crate) mod server;

use std::ffi::c_int;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Select, tick};
use serde_json::{Value, json};
use signal_hook::consts::SIGHUP;
use ssntp::client::ClientFigures;
use ssntp::server::Server;
use ssntp::transport::Address;
use uuid::Uuid;

pub(crate) use self::arm::{Arm, Arms, Next, on};
use crate::admin::{About, AdminArgs, Figures, Notes, Pages};
use crate::clock::wall_clock;
use crate::credentials::{Expiry, FilesRead};
use crate::failure::Failure;
use crate::logging;
use crate::output::say_either;
use crate::service_manager::ServiceManager;
use crate::settings::{self, Settings};
use crate::signals::Stop;
use crate::watched::{LOOK, Watched};

/// After a failed reload, files are read again after this many looks, which is a
/// minute, even if they have not changed: the reason of the failure need not be in the
/// files, for example a certificate that is not valid yet.
const LOOKS_TO_RETRY: u32 = 30;

/// An arm that ends the daemon when its server stops by itself, as one that an operator drains.
pub(crate) fn ended<'a, S: 'a>(server: &Server) -> Box<dyn Arm<S> + 'a> {
    on(server.stopping().clone(), |_, _| Ok(Next::End))
}

/// The part of a daemon that reads files again.
pub(crate) trait Service {
    /// The daemon's flags, which the file of settings may change.
    type Args: clap::FromArgMatches;

    /// The settings that a reload puts in force. The others need a restart.
    const RELOADED: &'static [&'static str] = &[];

    /// Reads all files, and then puts what they hold in force. `args` is there if there
    /// is a file of settings: the flags as the file is now.
    ///
    /// # Errors
    /// A file cannot be used; everything is as it was before.
    fn reload(&mut self, args: Option<Self::Args>) -> Result<FilesRead, Failure>;

    /// Called every two seconds.
    fn look(&mut self) {}
}

/// The parts of a daemon that users, programs and the service manager see while it runs.
pub(crate) struct Presence<'a> {
    /// The subcommand, for `/info`.
    pub(crate) name: &'static str,
    /// The addresses at which a server listens.
    pub(crate) addresses: &'a [Address],
    /// The first lines of the output, each as text and as JSON.
    pub(crate) lines: Vec<(String, Value)>,
    /// Whether the output is JSON.
    pub(crate) json: bool,
    pub(crate) admin: &'a AdminArgs,
    pub(crate) figures: Figures,
    /// Gives the daemon's work in a few words, for the service manager. See
    /// [`ServiceManager::ready`].
    pub(crate) status: Box<dyn Fn() -> Option<String> + Send>,
}

impl<'a> Presence<'a> {
    /// A daemon that is a client: its first line has its UUID, and its status is the server
    /// that it is connected to. `client` gives `None` once its working thread has ended.
    pub(crate) fn of_client(
        name: &'static str,
        uuid: Uuid,
        json: bool,
        admin: &'a AdminArgs,
        figures: Figures,
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
            admin,
            figures,
            status: Box::new(status),
        }
    }
}

/// A process that runs until it is told to end.
#[derive(Debug)]
pub(crate) struct Daemon {
    manager: ServiceManager,
    pages: Pages,
    notes: Notes,
    settings: Settings,
    stop: Stop,
    hang_ups: Receiver<()>,
    looks: Receiver<Instant>,
    watched: Watched,
    expiry: Expiry,
    /// The result of the last reload.
    last_reload: Option<Result<(), String>>,
    /// Looks since a reload failed.
    failing: Option<u32>,
}

impl Daemon {
    /// From here on, SIGHUP does not kill the process, and SIGINT and SIGTERM end it in
    /// order.
    pub(crate) fn install(settings: Settings) -> Result<Self, Failure> {
        let (stop, [hang_ups]) = Stop::install_with([SIGHUP])?;
        Ok(Self::new(settings, stop, hang_ups))
    }

    /// The same with one more signal. The channel has a message when it arrives.
    pub(crate) fn install_with(settings: Settings, signal: c_int) -> Result<(Self, Receiver<()>), Failure> {
        let (stop, [hang_ups, arrivals]) = Stop::install_with([SIGHUP, signal])?;
        Ok((Self::new(settings, stop, hang_ups), arrivals))
    }

    /// For a process that a user only tries: it has no files to read again, and SIGHUP,
    /// which the end of its terminal sends, ends it.
    pub(crate) fn install_for_trying() -> Result<Self, Failure> {
        let never = crossbeam_channel::never();
        Ok(Self::new(Settings::default(), Stop::install()?, never))
    }

    fn new(settings: Settings, stop: Stop, hang_ups: Receiver<()>) -> Self {
        Self {
            manager: ServiceManager::of_this_process(),
            pages: Pages::default(),
            notes: Notes::default(),
            settings,
            stop,
            hang_ups,
            looks: tick(LOOK),
            watched: Watched::default(),
            expiry: Expiry::default(),
            last_reload: None,
            failing: None,
        }
    }

    /// Tells whether the process is to end.
    pub(crate) fn stop(&self) -> &Stop {
        &self.stop
    }

    /// Runs a daemon that has started, until it is told to end: shows its pages, prints
    /// its first lines, tells the service manager, and [serves](Self::serve). `read` is
    /// what the daemon has read from its files.
    ///
    /// # Errors
    /// The pages cannot be shown, or an arm failed.
    pub(crate) fn run<S: Service>(
        &mut self,
        presence: Presence<'_>,
        read: FilesRead,
        service: &mut S,
        arms: Arms<'_, S>,
    ) -> Result<(), Failure> {
        let about = About {
            daemon: presence.name,
            listening: presence.addresses.iter().map(Address::to_string).collect(),
            notes: self.notes.clone(),
        };
        let credentials = read.credentials.clone();
        // The pages answer before the first line is printed, because a program that has read the
        // line may ask them at once. The service manager comes last: it then starts what depends on
        // this daemon.
        self.pages = presence.admin.start(about, credentials, presence.figures)?;
        for (text, value) in presence.lines {
            say_either(presence.json, value, text)?;
        }
        self.pages.announce(presence.json);
        self.manager.ready(presence.status);
        let served = self.serve(read, service, arms);
        if let Err(Failure::Refused(why)) = &served {
            self.rest(why);
        }
        served?;
        self.manager.stopping();
        self.pages.stopping();
        Ok(())
    }

    /// Lets a client that no server takes wait before it ends, if a service manager would start
    /// it again at once: until its files change, because the new ones may be taken, and for a
    /// minute at most, because a server may have been wrong.
    fn rest(&mut self, why: &str) {
        if !self.manager.is_there() {
            return;
        }
        log::error!("{why}; this ends when its files change, or in a minute");
        for _ in 0..LOOKS_TO_RETRY {
            self.manager.rests(why);
            crossbeam_channel::select! {
                recv(self.stop.channel()) -> _ => return,
                recv(self.looks) -> _ => if self.watched.have_changed() {
                    return;
                }
            }
        }
    }

    /// Lets the clients of a server leave before it stops; a further signal ends the wait.
    ///
    /// # Errors
    /// Signals cannot be handled.
    pub(crate) fn drain(&mut self, server: &Server, within: Duration) -> Result<(), Failure> {
        if !within.is_zero() && server.handle().drain(within).is_ok() {
            // The signal that has come would end the program by force.
            self.stop = Stop::install()?;
            self.manager.stops_within(within);
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
    pub(crate) fn serve<S: Service>(
        &mut self,
        read: FilesRead,
        service: &mut S,
        mut arms: Arms<'_, S>,
    ) -> Result<(), Failure> {
        self.watched = read.watched.and(self.settings.file()).with(self.pages.watched());
        self.expect(read.lifetimes);
        // Clones, because the selection borrows the channels while the loop calls methods that
        // change `self`.
        let (hang_ups, looks) = (self.hang_ups.clone(), self.looks.clone());
        let stop = self.stop.channel().clone();
        loop {
            // Made anew for each message, because an arm may have been removed.
            let mut select = Select::new();
            let (at_stop, at_hang_up, at_look) =
                (select.recv(&stop), select.recv(&hang_ups), select.recv(&looks));
            let first = at_look + 1;
            arms.iter().for_each(|arm| arm.register(&mut select));
            let ready = select.select();
            match ready.index() {
                at if at == at_stop => {
                    // crossbeam panics if an operation that was selected is not completed.
                    let _ = ready.recv(&stop);
                    return Ok(());
                }
                at if at == at_hang_up => match ready.recv(&hang_ups) {
                    Ok(()) => self.hang_up(service),
                    // The thread of the signals has ended.
                    Err(_) => return Ok(()),
                },
                at if at == at_look => {
                    let _ = ready.recv(&looks);
                    self.look(service);
                }
                at => match arms[at - first].receive(ready, service)? {
                    Next::Continue => {}
                    Next::End => return Ok(()),
                    Next::Reloaded(done) => self.note(done),
                    Next::Closed => drop(arms.remove(at - first)),
                },
            }
        }
    }

    /// On SIGHUP, lets the service read its files. If that fails, the reason is logged, and the
    /// service goes on as before.
    fn hang_up(&mut self, service: &mut impl Service) {
        // Otherwise the next look would find the change that made the user send the signal, and
        // reload again.
        self.watched.read_now();
        if let Err(why) = self.reload(service) {
            log::warn!("SIGHUP: not reloaded: {why}");
        }
    }

    /// Has the service read files that have changed, and warns of what expires soon.
    fn look<S: Service>(&mut self, service: &mut S) {
        service.look();
        let failing = self.failing.as_mut().map(|looks| {
            *looks += 1;
            *looks
        });
        let have_changed = self.watched.have_changed();
        if have_changed || failing.is_some_and(|looks| looks >= LOOKS_TO_RETRY) {
            // `reload` puts the new result in its place.
            let before = self.last_reload.take();
            if let Err(why) = self.reload(service) {
                // The same reason for the same files is logged once.
                let is_logged = before.is_some_and(|before| before.as_ref() == Err(&why));
                if have_changed || !is_logged {
                    log::warn!("files have changed, but cannot be used: {why}");
                }
            }
        }
        self.warn();
    }

    fn reload<S: Service>(&mut self, service: &mut S) -> Result<(), String> {
        self.manager.reloading();
        let done = self.read_again(service).map_err(|why| why.to_string());
        self.failing = done.is_err().then_some(0);
        self.note(done.clone());
        if done.is_ok() {
            // At warn, which is the level of a daemon by default: the operator who changed a file
            // waits for this line.
            log::warn!("read its files again");
        }
        done
    }

    fn read_again<S: Service>(&mut self, service: &mut S) -> Result<(), Failure> {
        // The state of the files is noted before they are read, so that a change meanwhile is seen
        // at the next look.
        let others = self.pages.watched().and(self.settings.file());
        // Whatever may fail comes first, so that a failure leaves the daemon as it was. The pages
        // and the log change only after the service has taken the files.
        let (args, settings) = self.settings.read_again()?.unzip();
        let read = service.reload(args)?;
        if let Some((identity, trust)) = &read.credentials {
            self.pages.renew(identity, trust);
        }
        if let Some(settings) = settings {
            logging::select(settings.value(settings::LOG));
            self.settings.take(settings, S::RELOADED);
        }
        self.watched = read.watched.with(others);
        self.expect(read.lifetimes);
        Ok(())
    }

    /// Shows the result of a reload to the service manager and on the pages.
    fn note(&mut self, done: Result<(), String>) {
        self.notes.reloaded(done.clone().err());
        let failure = done.as_ref().err().map(|why| format!("not reloaded: {why}"));
        self.manager.reloaded(failure.as_deref());
        self.last_reload = Some(done);
    }

    fn expect(&mut self, lifetimes: Vec<crate::credentials::Lifetime>) {
        self.notes.lifetimes(lifetimes.clone());
        // All warnings are due again after a reload, so a file that was not renewed is named once
        // more.
        self.expiry = Expiry::of(lifetimes);
        self.warn();
    }

    fn warn(&mut self) {
        for warning in self.expiry.warnings(wall_clock()) {
            log::warn!("{warning}");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;

    use super::*;

    /// Counts its reloads, which fail if its file says so.
    struct Counting {
        path: PathBuf,
        reloads: usize,
    }

    #[derive(Debug, clap::Args)]
    struct NoArgs {}

    impl Counting {
        fn watched(&self) -> Watched {
            Watched::of(vec![self.path.clone()])
        }
    }

    impl Service for Counting {
        type Args = NoArgs;

        fn reload(&mut self, _: Option<NoArgs>) -> Result<FilesRead, Failure> {
            self.reloads += 1;
            let watched = self.watched();
            match fs::read_to_string(&self.path).as_deref() {
                Ok("bad") => Err(Failure::new("it is bad")),
                Ok(_) => Ok(FilesRead {
                    watched,
                    ..FilesRead::default()
                }),
                Err(e) => Err(Failure::new(e)),
            }
        }
    }

    #[test]
    fn files_that_cannot_be_used_are_read_once_and_again_after_a_minute() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.pem");
        fs::write(&path, "good").unwrap();
        let mut daemon = Daemon::install_for_trying().unwrap();
        let mut service = Counting {
            path: path.clone(),
            reloads: 0,
        };
        daemon.watched = service.watched();
        fs::write(&path, "bad").unwrap();
        (0..10).for_each(|_| daemon.look(&mut service));
        assert_eq!(service.reloads, 1);
        assert_eq!(daemon.last_reload, Some(Err("it is bad".to_owned())));
        (0..LOOKS_TO_RETRY).for_each(|_| daemon.look(&mut service));
        assert_eq!(service.reloads, 2);
        fs::write(&path, "good again").unwrap();
        (0..LOOKS_TO_RETRY * 2).for_each(|_| daemon.look(&mut service));
        assert_eq!(service.reloads, 3);
        assert_eq!(daemon.last_reload, Some(Ok(())));
        daemon.hang_up(&mut service);
        assert_eq!(service.reloads, 4, "a signal counts even if nothing has changed");
    }

    #[test]
    fn an_arm_is_served_until_its_channel_is_closed_and_may_end_the_daemon() {
        let mut daemon = Daemon::install_for_trying().unwrap();
        let mut service = Counting {
            path: PathBuf::new(),
            reloads: 0,
        };
        let (numbers, received) = crossbeam_channel::unbounded();
        let (end, ended) = crossbeam_channel::bounded(1);
        numbers.send(1).unwrap();
        numbers.send(2).unwrap();
        drop(numbers);
        let arms: Arms<'_, Counting> = vec![
            on(received, |counting: &mut Counting, number| {
                match number {
                    Some(number) => counting.reloads += number,
                    None => end.send(()).unwrap(),
                }
                Ok(Next::Continue)
            }),
            on(ended, |_, _| Ok(Next::End)),
        ];
        daemon.serve(FilesRead::default(), &mut service, arms).unwrap();
        assert_eq!(service.reloads, 3);
    }
}
