//! The flags of every subcommand that connects: they name a server and the files to connect
//! with. The values come from the flags, else from the environment, else from the user's
//! context. [`Watch`] waits for the events of the client that connects so.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, TryRecvError};
use ssntp::Role;
use ssntp::client::{Client, ClientConfig, ClientError, ClientEvent, ClientHandle, DialError};
use ssntp::pki::Identity;
use ssntp::proto::TraceParent;
use ssntp::transport::{Address, AddressError};
use uuid::Uuid;

use crate::choice::Given;
use crate::context::{Context, Contexts};
use crate::credentials::{CredentialFiles, CrlArgs, FilesRead, wrong_role};
use crate::failure::Failure;
use crate::output::note;
use crate::seconds::Seconds;
use crate::settings::Problems;
use crate::signals::Stop;
use crate::watched;

/// The server and the files of certificates. Each value comes from its flag, else from
/// the environment, else from the context.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ServerArgs {
    /// The server: HOST:PORT, [IPV6]:PORT or unix:PATH; of several, joined with
    /// commas, the first that answers [default: the context's, else the names in
    /// the CA certificate, else localhost]
    #[arg(
        long,
        value_name = "ADDR",
        global = true,
        env = "SSNTP_CONNECT",
        value_parser = to_dial,
        value_delimiter = ','
    )]
    connect: Vec<Address>,
    /// The authority that must have issued the server's certificate
    #[arg(long, value_name = "FILE", global = true, env = "SSNTP_CA")]
    ca: Option<PathBuf>,
    /// This client's certificate and key
    #[arg(long, value_name = "FILE", global = true, env = "SSNTP_CERT")]
    cert: Option<PathBuf>,
    /// The key of --cert, if it is not in the same file
    #[arg(
        long,
        value_name = "FILE",
        global = true,
        env = "SSNTP_KEY",
        hide_env_values = true,
        requires = "cert"
    )]
    key: Option<PathBuf>,
    #[command(flatten)]
    crl: CrlArgs,
    /// The name that the server's certificate must hold [default: the host that
    /// is connected to]
    #[arg(long, value_name = "NAME", global = true)]
    server_name: Option<String>,
    /// The context with the values that are not given here, see `ssntp context`
    /// [default: the current one]
    #[arg(long, value_name = "NAME", global = true, env = "SSNTP_CONTEXT")]
    context: Option<String>,
}

/// The server and the files to use: [`ServerArgs`] with the values of the environment and the
/// context.
#[derive(Debug)]
pub(crate) struct Reached {
    pub(crate) connect: Vec<Address>,
    pub(crate) files: CredentialFiles,
    pub(crate) server_name: Option<String>,
}

/// How long a command waits for a context if no server is named anywhere: the user may have
/// started `ssntp server --dev` just before, and that makes one in a moment.
const MAKING: Duration = Duration::from_secs(10);
/// How often the contexts are read while there is none, and how often the reason why there is no
/// session is checked.
const LOOK: Duration = Duration::from_millis(50);

impl ServerArgs {
    /// Looks up each value. If no server is named anywhere, it tells the user so and blocks for at
    /// most 10 seconds until there is a context.
    pub(crate) fn reach(&self, stop: &Stop) -> Result<Reached, Failure> {
        let complete = self.ca.is_some() && self.cert.is_some() && !self.connect.is_empty();
        // Nothing would be taken from the file of contexts, so a mistake in it does not matter.
        let found = match complete && self.context.is_none() {
            true => None,
            false => self.find_context(stop)?,
        };
        let context = found.unwrap_or_default();
        let path = |given: &Option<PathBuf>, in_context: &str, flag: &str, variable: &str| match given {
            Some(path) => Ok(path.clone()),
            None if in_context.is_empty() => Err(Failure::usage(format!(
                "--{flag} is needed: on the command line, as {variable}, or by a context \
                 (`ssntp context add`, `ssntp server --dev`)"
            ))),
            None => Ok(PathBuf::from(in_context)),
        };
        let mut crl = self.crl.clone();
        // A revocation list says something about the certificates of one authority only, so the
        // context's lists are not used with another --ca.
        if crl.crl.is_empty() && self.ca.is_none() {
            let lists = context.crl.iter();
            crl.crl = lists.filter(|file| !file.is_empty()).map(PathBuf::from).collect();
        }
        // Without any address the client takes the names in the CA certificate.
        let connect = match self.connect.is_empty() {
            true => context.addresses()?,
            false => self.connect.clone(),
        };
        Ok(Reached {
            connect,
            files: CredentialFiles {
                ca: path(&self.ca, &context.ca, "ca", "SSNTP_CA")?,
                cert: path(&self.cert, &context.cert, "cert", "SSNTP_CERT")?,
                // A key belongs to its certificate, so the context's key is not used with another
                // --cert.
                key: match self.cert {
                    Some(_) => self.key.clone(),
                    None => Some(context.key).filter(|key| !key.is_empty()).map(PathBuf::from),
                },
                crl,
            },
            server_name: self
                .server_name
                .clone()
                .or_else(|| Some(context.server_name).filter(|name| !name.is_empty())),
        })
    }

    fn find_context(&self, stop: &Stop) -> Result<Option<Context>, Failure> {
        let says_nothing = self.ca.is_none() && self.cert.is_none() && self.context.is_none();
        let find = || Contexts::load()?.find(self.context.as_deref());
        let found = find()?;
        // If the user has named a file or a context, a missing value is a mistake, which waiting
        // does not mend.
        if found.is_some() || !says_nothing {
            return Ok(found);
        }
        note(format_args!(
            "ssntp: no server is chosen: waiting {} s for a context, as `ssntp server --dev` makes one",
            MAKING.as_secs()
        ));
        stop.poll(LOOK, MAKING, find)
    }

    /// Whether the command line or the environment names a server, a file or a context.
    pub(crate) fn says_something(&self) -> bool {
        self.ca.is_some() || self.cert.is_some() || !self.connect.is_empty() || self.context.is_some()
    }

    /// Makes a context of the flags. File names become absolute, and the files are read, so that
    /// a mistake is reported now and not by the first command.
    pub(crate) fn to_context(&self) -> Result<Context, Failure> {
        // A relative name in a context counts from the directory of the contexts file. A user who
        // types one means the directory of the command.
        let whole = |path: &PathBuf| {
            let whole = std::path::absolute(path);
            whole.map_err(|e| Failure::at(path, e))
        };
        let needed = |path: &Option<PathBuf>, flag: &str| match path {
            Some(path) => whole(path),
            None => Err(Failure::usage(format!("--{flag} is needed"))),
        };
        let files = CredentialFiles {
            ca: needed(&self.ca, "ca")?,
            cert: needed(&self.cert, "cert")?,
            key: self.key.as_ref().map(whole).transpose()?,
            crl: CrlArgs {
                crl: self.crl.crl.iter().map(whole).collect::<Result<_, _>>()?,
                ..self.crl
            },
        };
        files.load()?;
        let text = |path: &PathBuf| path.to_string_lossy().into_owned();
        Ok(Context {
            connect: self.connect.iter().map(Address::to_string).collect(),
            ca: text(&files.ca),
            cert: text(&files.cert),
            key: files.key.as_ref().map(text).unwrap_or_default(),
            crl: files.crl.crl.iter().map(text).collect(),
            server_name: self.server_name.clone().unwrap_or_default(),
        })
    }
}

impl Reached {
    /// A client's configuration with all of it; `role` says which of a certificate's
    /// roles it advertises.
    pub(crate) fn config(
        self,
        role: impl FnOnce(&Identity) -> Result<Role, Failure>,
    ) -> Result<(ClientConfig, Renewal), Failure> {
        let (identity, trust, read) = self.files.read()?;
        let role = role(&identity)?;
        let files = self.files;
        let renewal = Renewal { files, read };
        let config = ClientConfig::new(identity, trust)
            .addresses(self.connect)
            .role(role)
            .given(self.server_name, ClientConfig::server_name);
        Ok((config, renewal))
    }
}

/// The files of certificates of a client, which are read again when they change.
#[derive(Debug)]
pub(crate) struct Renewal {
    pub(crate) files: CredentialFiles,
    pub(crate) read: FilesRead,
}

impl Renewal {
    /// Renews the client's credentials if the files have changed. If the files cannot be used,
    /// the user is told. A command calls this every two seconds, see [`looks`].
    pub(crate) fn look(&mut self, client: &ClientHandle) {
        // The new state of the files counts as read from here on, even if they are unusable. So the
        // user gets one note for each change and not one every two seconds.
        if self.read.watched.have_changed()
            && let Err(why) = self.files.renew(|identity, trust| client.renew(identity, trust))
        {
            note(format_args!(
                "ssntp: files have changed, but cannot be used: {why}"
            ));
        }
    }
}

/// Sends a message whenever a command is to call [`Renewal::look`].
pub(crate) fn looks() -> Receiver<Instant> {
    crossbeam_channel::tick(watched::LOOK)
}

/// An address to connect to. Port 0, with which the system chooses a port to listen at, is none.
pub(crate) fn to_dial(text: &str) -> Result<Address, String> {
    match text.parse().map_err(|e: AddressError| e.to_string())? {
        Address::Tcp { port: 0, .. } => Err(format!("{text:?}: nobody listens at port 0")),
        address => Ok(address),
    }
}

/// How to reach a server, and the roles and UUID to connect with.
#[derive(Debug, clap::Args)]
pub(crate) struct Connection {
    #[command(flatten)]
    pub(crate) server: ServerArgs,
    /// The roles to advertise [default: all roles of the certificate]
    #[arg(long)]
    role: Option<Role>,
    /// This client's UUID [default: the one in its certificate, else a random one]
    #[arg(long)]
    uuid: Option<Uuid>,
}

impl Connection {
    /// Checks the files that flags and environment name: certificate, key, authority and lists.
    pub(crate) fn check_files(&self, problems: &mut Problems, roles: Role) {
        let ServerArgs {
            cert, key, ca, crl, ..
        } = &self.server;
        problems.credentials(cert.as_ref(), key.as_ref(), ca.as_ref(), crl, roles);
    }

    /// The client's configuration from these flags, and the files that it was read from.
    pub(crate) fn config(&self, stop: &Stop) -> Result<(ClientConfig, Renewal), Failure> {
        self.config_choosing(stop, |held| held)
    }

    /// As [`config`](Self::config). If --role is not given, `choose` picks which of the
    /// certificate's roles are advertised.
    pub(crate) fn config_choosing(
        &self,
        stop: &Stop,
        choose: impl FnOnce(Role) -> Role,
    ) -> Result<(ClientConfig, Renewal), Failure> {
        let choose = |identity: &Identity| Ok(self.role.unwrap_or_else(|| choose(identity.roles())));
        let (config, renewal) = self.server.reach(stop)?.config(choose)?;
        Ok((config.given(self.uuid, ClientConfig::uuid), renewal))
    }

    /// As [`config`](Self::config), for a program that works in `roles` only. It advertises those
    /// of them that its certificate holds.
    pub(crate) fn config_as(&self, roles: Role, stop: &Stop) -> Result<(ClientConfig, Renewal), Failure> {
        // If --role is given, the closure below is not called and this stays empty. Then the roles
        // of --role are compared with `roles` instead.
        let mut held = Role::NONE;
        let (config, renewal) = self.config_choosing(stop, |of_certificate| {
            held = of_certificate;
            held & roles
        })?;
        let advertised = self.role.unwrap_or(held & roles);
        match !advertised.is_empty() && roles.contains(advertised) {
            true => Ok((config, renewal)),
            false => Err(wrong_role(&renewal.files.cert, self.role.unwrap_or(held), roles)),
        }
    }

    /// Whether the command line says the UUID.
    pub(crate) fn has_uuid(&self) -> bool {
        self.uuid.is_some()
    }

    /// Whether the command line or the certificate says the UUID.
    pub(crate) fn settles_uuid(&self, stop: &Stop) -> Result<bool, Failure> {
        let is_bound = || {
            let files = self.server.reach(stop)?.files;
            Ok::<_, Failure>(files.identity()?.uuid().is_some())
        };
        Ok(self.uuid.is_some() || is_bound()?)
    }
}

/// The result of [`Watch::wait`].
#[derive(Debug)]
pub(crate) enum Waited {
    Event(ClientEvent),
    /// A signal asks the program to end.
    Stopped,
    /// The time is over.
    TimedOut,
}

/// The events of a client, for a command that shows or awaits them. While no session stands,
/// the user is told why. If the files of certificates change, they are read again.
#[derive(Debug)]
pub(crate) struct Watch<'a> {
    pub(crate) client: &'a Client,
    pub(crate) stop: &'a Stop,
    complaint: Complaint,
    renewal: Renewal,
    looks: Receiver<Instant>,
}

impl<'a> Watch<'a> {
    pub(crate) fn new(client: &'a Client, stop: &'a Stop, renewal: Renewal) -> Self {
        Self {
            client,
            stop,
            complaint: Complaint::default(),
            renewal,
            looks: looks(),
        }
    }

    /// The next event, or a signal, or the end of the time.
    ///
    /// Fails when the client is over for good, with its reason.
    pub(crate) fn wait(&mut self, limit: Option<Duration>) -> Result<Waited, Failure> {
        let client = self.client;
        let event = |event| match event {
            Some(ClientEvent::Closed(why)) => Err(closed(why)),
            Some(event) => Ok(Waited::Event(event)),
            None => Err(closed(client.handle().ended().unwrap_or(ClientError::Closed))),
        };
        // Signals and files come before the events, because the next step returns at once while
        // frames wait. A server that sends without a pause would hide both.
        if self.stop.requested() {
            return Ok(Waited::Stopped);
        }
        if self.looks.try_recv().is_ok() {
            self.renewal.look(&client.handle());
        }
        // While frames wait, each is taken without the cost of `select!` and its timers.
        match client.events().try_recv() {
            Ok(came) => return event(Some(came)),
            Err(TryRecvError::Disconnected) => return event(None),
            Err(TryRecvError::Empty) => {}
        }
        let timeout = limit.map_or_else(crossbeam_channel::never, crossbeam_channel::after);
        loop {
            // There is a reason to tell only while no session stands; with one, this short timer would
            // only wake the thread for nothing.
            let look = match client.is_connected() {
                true => crossbeam_channel::never(),
                false => crossbeam_channel::after(LOOK),
            };
            crossbeam_channel::select! {
                recv(client.events()) -> came => return event(came.ok()),
                recv(self.stop.channel()) -> _ => return Ok(Waited::Stopped),
                recv(timeout) -> _ => return Ok(Waited::TimedOut),
                recv(look) -> _ => self.complaint.tell(&client.handle()),
                recv(self.looks) -> _ => self.renewal.look(&client.handle()),
            }
        }
    }

    /// Waits for the first session. Fails if there is none within `limit`.
    pub(crate) fn connect(&mut self, limit: Seconds) -> Result<(), Failure> {
        let limit = Duration::from(limit);
        match self.wait(Some(limit))? {
            // The first event of a client is `Connected`, or its end, which `wait` has made an
            // error.
            Waited::Event(_) => Ok(()),
            Waited::Stopped => Err(self.stop.interrupted()),
            Waited::TimedOut => Err(unanswered(&self.client.handle(), "server", limit)),
        }
    }
}

/// Tells the user why no session stands: at once, and again only if the reason changes, so
/// that many failed attempts make one line.
#[derive(Debug, Default)]
pub(crate) struct Complaint {
    told: String,
}

impl Complaint {
    /// Tells the reason if it is new. To be called repeatedly while no session stands.
    pub(crate) fn tell(&mut self, client: &ClientHandle) {
        // If the client has ended, the command fails with the client's error, which says more.
        if client.ended().is_none()
            && let Some(why) = self.news(client)
        {
            note(format_args!("ssntp: cannot connect yet, trying again: {why}"));
        }
    }

    /// The reason if it is another one than at the last call.
    pub(crate) fn news(&mut self, client: &ClientHandle) -> Option<&str> {
        let why = reasons(&client.failures());
        let is_new = !why.is_empty() && why != self.told;
        is_new.then(|| {
            self.told = why;
            self.told.as_str()
        })
    }
}

/// The trace that TRACEPARENT in the environment names. The user is told of a value that is not
/// valid, and the program goes on without a trace.
pub(crate) fn traceparent() -> Option<TraceParent> {
    let value = std::env::var("TRACEPARENT").ok()?;
    let parsed = value.parse();
    if let Err(why) = &parsed {
        note(format_args!("ssntp: TRACEPARENT is ignored: {why}"));
    }
    parsed.ok()
}

/// The error of a program whose server has not answered within its time limit.
pub(crate) fn unanswered(client: &ClientHandle, who: &str, limit: Duration) -> Failure {
    let why = reasons(&client.failures());
    let separator = if why.is_empty() { "" } else { ": " };
    Failure::new(format!(
        "cannot connect: no {who} has answered in {} s{separator}{why}",
        limit.as_secs_f64()
    ))
}

fn reasons(failures: &[DialError]) -> String {
    let texts: Vec<_> = failures.iter().map(DialError::to_string).collect();
    texts.join("; ")
}

/// A client that ended for good ends its program.
pub(crate) fn closed(why: ClientError) -> Failure {
    match &why {
        ClientError::Aborted { .. } | ClientError::NoServerLeft(_) => Failure::Refused(why.to_string()),
        _ => Failure::new(why),
    }
}
