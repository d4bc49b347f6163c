//! The flags of every subcommand that connects: they name a server and the files to connect
//! with. The values come from the flags, else from the environment, else from the user's
//! context. [`Watch`] waits for the events of the client.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::builder::TypedValueParser;
use clap::error::ErrorKind;
use clap::{Arg, Command};
use crossbeam_channel::{Receiver, TryRecvError};
use ssntp::Role;
use ssntp::client::{
    Client, ClientConfig, ClientError, ClientEvent, ClientHandle, Join, JoinError, NodeFiles,
};
use ssntp::pki::{Error, Fault, Identity, JoinToken, ParseTokenError};
use ssntp::proto::TraceParent;
use ssntp::transport::Address;
use uuid::Uuid;

use crate::choice::Given;
use crate::context::{Context, Contexts, address};
use crate::credentials::{CredentialFiles, CrlArgs, FilesRead, identity, wrong_role};
use crate::failure::Failure;
use crate::output::note;
use crate::seconds::Seconds;
use crate::settings::Problems;
use crate::signals::Stop;
use crate::watched;

/// The server and the files of certificates. Each value comes from its flag, else from
/// the environment, else from the context.
#[derive(Clone, Debug, clap::Args)]
pub struct ServerArgs {
    /// The server: HOST:PORT, [IPV6]:PORT or unix:PATH; several addresses are joined
    /// with commas, and the first that answers is used [default: the context's, else
    /// the names in the CA certificate, else localhost]
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
    /// The name that the server's certificate must hold [default: the host in
    /// --connect]
    #[arg(long, value_name = "NAME", global = true)]
    server_name: Option<String>,
    /// The context for the values that are not given as flags, see `ssntp context`
    /// [default: the current context]
    #[arg(long, value_name = "CONTEXT", global = true, env = "SSNTP_CONTEXT")]
    context: Option<String>,
}

/// The server and the files to use: [`ServerArgs`] with the values of the environment and the
/// context.
#[derive(Debug)]
pub struct Reached {
    pub connect: Vec<Address>,
    pub files: CredentialFiles,
    pub server_name: Option<String>,
}

/// The time for which a command waits for a context if no server is named anywhere: the user may
/// have just started `ssntp server --dev`, which makes a context.
const CONTEXT_WAIT: Duration = Duration::from_secs(10);
/// The time between two reads of the contexts while there is no context, and between two checks
/// of the reason why there is no session.
const POLL: Duration = Duration::from_millis(50);

impl ServerArgs {
    /// Finds each value. If no server is named anywhere, it notes that for the user and blocks for
    /// at most 10 seconds until there is a context.
    pub fn reach(&self, stop: &Stop) -> Result<Reached, Failure> {
        let context = if self.needs_context() {
            self.await_context(stop)?.unwrap_or_default()
        } else {
            Context::default()
        };
        let mut crl = self.crl.clone();
        // A revocation list is for the certificates of one authority only, so the context's lists
        // are not used with another --ca.
        if crl.crl.is_empty() && self.ca.is_none() {
            let lists = context.crl.iter();
            crl.crl = lists.filter(|file| !file.is_empty()).map(PathBuf::from).collect();
        }
        // Without any address the client uses the names in the CA certificate.
        let connect = if self.connect.is_empty() {
            context.addresses()?
        } else {
            self.connect.clone()
        };
        Ok(Reached {
            connect,
            files: CredentialFiles {
                ca: needed(&self.ca, &context.ca, "ca", "SSNTP_CA")?,
                cert: needed(&self.cert, &context.cert, "cert", "SSNTP_CERT")?,
                // A key belongs to its certificate, so the context's key is not used with another
                // --cert.
                key: match self.cert {
                    Some(_) => self.key.clone(),
                    None => Some(context.key).filter(|key| !key.is_empty()).map(PathBuf::from),
                },
                crl,
            },
            // The name of the context is that of the servers at the context's addresses.
            server_name: self.server_name.clone().or_else(|| {
                Some(context.server_name).filter(|name| !name.is_empty() && self.connect.is_empty())
            }),
        })
    }

    /// False if no value is needed from the file of contexts, so that the file may even be wrong.
    fn needs_context(&self) -> bool {
        let complete = self.ca.is_some() && self.cert.is_some() && !self.connect.is_empty();
        !complete || self.context.is_some()
    }

    fn find_context(&self) -> Result<Option<Context>, Failure> {
        Contexts::load()?.find(self.context.as_deref())
    }

    fn await_context(&self, stop: &Stop) -> Result<Option<Context>, Failure> {
        let found = self.find_context()?;
        // If the user has named a server, a file or a context, a missing value is a mistake, and waiting
        // would not help.
        if found.is_some() || self.is_given() {
            return Ok(found);
        }
        note(format_args!(
            "ssntp: no server is chosen: waiting {} s for a context, as `ssntp server --dev` makes one",
            CONTEXT_WAIT.as_secs()
        ));
        stop.poll(POLL, CONTEXT_WAIT, || self.find_context())
    }

    /// True if the command line or the environment names a server, a file or a context.
    pub fn is_given(&self) -> bool {
        self.ca.is_some() || self.cert.is_some() || !self.connect.is_empty() || self.context.is_some()
    }

    /// Makes a context from the flags. File names become absolute, and the files are read, so that
    /// a mistake is reported at once.
    pub fn to_context(&self) -> Result<Context, Failure> {
        // A relative name in a context is relative to the directory of the contexts file, but the
        // user types names relative to the present directory.
        let whole = |path: &PathBuf| {
            let whole = std::path::absolute(path);
            whole.map_err(|e| Failure::at(path, e))
        };
        if self.crl.crl_strict {
            return Err(Failure::usage(
                "--crl-strict is not kept in a context; give it to each command",
            ));
        }
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
            connect: self.connect.iter().map(absolute).collect(),
            ca: text(&files.ca),
            cert: text(&files.cert),
            key: files.key.as_ref().map(text).unwrap_or_default(),
            crl: files.crl.crl.iter().map(text).collect(),
            server_name: self.server_name.clone().unwrap_or_default(),
        })
    }
}

/// The file of a flag, else that of the context.
fn needed(given: &Option<PathBuf>, in_context: &str, flag: &str, variable: &str) -> Result<PathBuf, Failure> {
    match given {
        Some(path) => Ok(path.clone()),
        None if in_context.is_empty() => Err(Failure::usage(format!(
            "--{flag} is needed: on the command line, as {variable}, or by a context \
             (`ssntp cluster init`, `ssntp context add`, `ssntp server --dev`)"
        ))),
        None => Ok(PathBuf::from(in_context)),
    }
}

/// The address with an absolute path, because a context is used from any directory.
pub fn absolute(address: &Address) -> String {
    match address {
        Address::Unix(path) => {
            let whole = std::path::absolute(path);
            Address::Unix(whole.unwrap_or_else(|_| path.clone())).to_string()
        }
        address => address.to_string(),
    }
}

impl Reached {
    /// The configuration of a client. `role` selects the roles of the certificate that the client
    /// advertises.
    pub fn config(
        self,
        role: impl FnOnce(&Identity) -> Result<Role, Failure>,
    ) -> Result<(ClientConfig, Renewal), Failure> {
        let (identity, trust, read) = self.files.read()?;
        let role = role(&identity)?;
        let files = self.files;
        let renewal = Renewal {
            files,
            read,
            again: None,
        };
        let config = ClientConfig::new(identity, trust)
            .addresses(self.connect)
            .role(role)
            .given(self.server_name, ClientConfig::server_name);
        Ok((config, renewal))
    }
}

/// The certificate files of a client, which are read again when they change.
#[derive(Debug)]
pub struct Renewal {
    pub files: CredentialFiles,
    pub read: FilesRead,
    /// The number of checks until files that could not be used are tried again.
    again: Option<u32>,
}

/// Files that cannot be used are tried again once a minute: a certificate may not be valid yet.
const CHECKS_BETWEEN: u32 = 30;

impl Renewal {
    /// Renews the client's credentials if the files have changed. If the files cannot be used,
    /// it notes that for the user, and tries them again once a minute. A command calls this every two seconds, see
    /// [`checks`].
    pub fn check(&mut self, client: &ClientHandle) {
        // The new state of the files counts as read from here on, even if they are unusable, so that
        // the user gets one note for each change.
        let have_changed = self.read.watched.have_changed();
        let is_due = match &mut self.again {
            Some(left @ 1..) => {
                *left -= 1;
                false
            }
            again => again.is_some(),
        };
        if !have_changed && !is_due {
            return;
        }
        let renewed = self.files.renew(|identity, trust| client.renew(identity, trust));
        self.again = renewed.is_err().then_some(CHECKS_BETWEEN);
        if let Err(why) = renewed
            && have_changed
        {
            note(format_args!(
                "ssntp: files have changed, but cannot be used: {why}"
            ));
        }
    }
}

/// Has a message every two seconds, when a command has to call [`Renewal::check`].
pub fn checks() -> Receiver<Instant> {
    crossbeam_channel::tick(watched::POLL)
}

/// Reads an address to connect to. Port 0 is refused: it is only for listening, where the system
/// then chooses a port.
pub fn to_dial(text: &str) -> Result<Address, String> {
    match address(text).map_err(|e| e.to_string())? {
        Address::Tcp { port: 0, .. } => Err(format!("{text:?}: no server listens at port 0")),
        address => Ok(address),
    }
}

/// Joining a cluster with a token.
#[derive(Clone, Debug, clap::Args)]
pub struct TokenArgs {
    /// The token of `ssntp token add`, which gives this node its certificate. Once the
    /// node has joined, the token is not used again
    #[arg(
        long = "join",
        value_name = "TOKEN",
        env = "SSNTP_JOIN",
        hide_env_values = true,
        value_parser = TokenParser
    )]
    token: Option<JoinToken>,
}

/// Reads a [`JoinToken`]. An error of clap repeats the value, which holds a secret.
#[derive(Clone)]
struct TokenParser;

impl TypedValueParser for TokenParser {
    type Value = JoinToken;

    fn parse_ref(&self, cmd: &Command, _: Option<&Arg>, value: &OsStr) -> Result<JoinToken, clap::Error> {
        let parsed = value.to_string_lossy().parse();
        parsed.map_err(|why: ParseTokenError| {
            clap::Error::raw(ErrorKind::ValueValidation, format!("--join: {why}\n")).with_cmd(cmd)
        })
    }
}

impl TokenArgs {
    /// True if there is a token: certificate and authority are then those that the node gets.
    pub fn is_given(&self) -> bool {
        self.token.is_some()
    }

    /// Checks that there is a directory for what a token gives.
    pub fn check(&self, directory: Option<&Path>) -> Result<(), Failure> {
        match (&self.token, directory) {
            (Some(_), None) => Err(Failure::usage(
                "--join needs --state, where the certificate is kept",
            )),
            _ => Ok(()),
        }
    }

    /// Joins, unless the directory has a valid certificate. The server's certificate has to hold `server_name`, or
    /// else the host of the token. Returns the node's files there, and the address of the server; `None` without a
    /// token. Blocks for two minutes at most.
    pub fn run(
        &self,
        directory: &Path,
        roles: Role,
        server_name: Option<String>,
    ) -> Result<Option<(NodeFiles, Address)>, Failure> {
        let Some(token) = &self.token else {
            return Ok(None);
        };
        let join = Join::new(token.clone(), directory).roles(roles);
        let files = join.given(server_name, Join::server_name).run();
        Ok(Some((files.map_err(not_joined)?, token.address().clone())))
    }
}

fn not_joined(why: JoinError) -> Failure {
    let text = format!("--join: {why}{}", remedy(&why));
    if why.may_retry() || matches!(why, JoinError::Files(_)) {
        Failure::new(text)
    } else {
        // Another attempt with the same files would end in the same way.
        Failure::NotAdmitted(text)
    }
}

/// What a user can do against the fault of a join or of a renewal.
pub fn remedy(why: &JoinError) -> &'static str {
    match why {
        JoinError::Files(Error::Content {
            fault: Fault::Expired { .. },
            ..
        }) => "; the node needs a new token",
        JoinError::Server(Fault::NotForName { .. }) => {
            "; the token was not used: `ssntp token add --at` makes one with another name"
        }
        JoinError::Server(Fault::NotYetValid { .. }) | JoinError::Clock(_) => {
            "; set the clock, and join again with the same token"
        }
        JoinError::Addresses(all) => {
            let mut all = all.iter().map(remedy);
            all.find(|one| !one.is_empty()).unwrap_or_default()
        }
        _ => "",
    }
}

/// The flags that name a server, and the roles and UUID to connect with.
#[derive(Debug, clap::Args)]
pub struct Connection {
    #[command(flatten)]
    pub server: ServerArgs,
    /// The roles to advertise [default: all roles of the certificate]
    #[arg(long)]
    role: Option<Role>,
    /// This client's UUID [default: the one in its certificate, else a random one]
    #[arg(long)]
    uuid: Option<Uuid>,
}

impl Connection {
    /// Checks the files that flags and environment name: certificate, key, authority and revocation
    /// lists. Others have to be named by a context.
    pub fn check_files(&self, problems: &mut Problems, roles: Role) {
        let own = &self.server;
        let (cert, key, ca) = (own.cert.as_ref(), own.key.as_ref(), own.ca.as_ref());
        problems.credentials(cert, key, ca, &own.crl, roles);
        match own.needs_context().then(|| own.find_context()).transpose() {
            Ok(found) => {
                let context = found.flatten().unwrap_or_default();
                problems.of("ca", Some(needed(&own.ca, &context.ca, "ca", "SSNTP_CA")));
                problems.of(
                    "cert",
                    Some(needed(&own.cert, &context.cert, "cert", "SSNTP_CERT")),
                );
            }
            Err(why) => problems.of("context", Some(Err::<(), _>(why))),
        }
    }

    /// The configuration of the client, and the files that it was read from.
    pub fn config(&self, stop: &Stop) -> Result<(ClientConfig, Renewal), Failure> {
        self.config_choosing(stop, |held| held)
    }

    /// As [`config`](Self::config). If --role is not given, `choose` selects the roles of the
    /// certificate that are advertised.
    pub fn config_choosing(
        &self,
        stop: &Stop,
        choose: impl FnOnce(Role) -> Role,
    ) -> Result<(ClientConfig, Renewal), Failure> {
        let choose = |identity: &Identity| Ok(self.role.unwrap_or_else(|| choose(identity.roles())));
        let (config, renewal) = self.server.reach(stop)?.config(choose)?;
        Ok((config.given(self.uuid, ClientConfig::uuid), renewal))
    }

    /// As [`config`](Self::config), for a program that works in `roles` only. It advertises the
    /// roles among them that its certificate holds.
    pub fn config_as(&self, roles: Role, stop: &Stop) -> Result<(ClientConfig, Renewal), Failure> {
        let reached = self.server.reach(stop)?;
        let cert = reached.files.cert.clone();
        let (config, renewal) = reached.config(|identity| {
            let named = self.role.unwrap_or(identity.roles());
            let advertised = self.role.unwrap_or(named & roles);
            if !advertised.is_empty() && roles.contains(advertised) {
                Ok(advertised)
            } else {
                Err(wrong_role(&cert, named, roles))
            }
        })?;
        Ok((config.given(self.uuid, ClientConfig::uuid), renewal))
    }

    /// Joins with the token, if there is one, and takes the certificate and the authority from `directory`
    /// from then on; the address is that of the token, unless --connect is given. `roles` are those that the
    /// node wants without --role. Returns the node's files.
    pub fn join(
        &mut self,
        join: &TokenArgs,
        directory: Option<&Path>,
        roles: Role,
    ) -> Result<Option<NodeFiles>, Failure> {
        join.check(directory)?;
        let Some(directory) = directory else {
            return Ok(None);
        };
        let (roles, name) = (self.role.unwrap_or(roles), self.server.server_name.clone());
        let Some((files, address)) = join.run(directory, roles, name)? else {
            return Ok(None);
        };
        let own = &mut self.server;
        (own.ca, own.cert, own.key) = (Some(files.authority()), Some(files.certificate()), None);
        if own.connect.is_empty() {
            own.connect.push(address);
        }
        Ok(Some(files))
    }

    /// True if the command line sets the UUID.
    pub fn has_uuid(&self) -> bool {
        self.uuid.is_some()
    }

    /// False if neither the command line nor the certificate of --cert sets the UUID. True if there
    /// is no such certificate, or if it cannot be read.
    pub fn may_have_fixed_uuid(&self) -> bool {
        let ServerArgs { cert, key, .. } = &self.server;
        let named = cert.as_deref().map(|cert| identity(cert, key.as_deref()));
        let is_bound = |identity: &Identity| identity.uuid().is_some();
        self.uuid.is_some() || named.is_none_or(|named| named.as_ref().map_or(true, is_bound))
    }
}

/// The events of a client, for a command that waits for them. While there is no session, it notes
/// the reason for the user. If the certificate files change, they are read again.
#[derive(Debug)]
pub struct Watch<'a> {
    pub client: &'a Client,
    pub stop: &'a Stop,
    complaint: Complaint,
    renewal: Renewal,
    checks: Receiver<Instant>,
}

impl<'a> Watch<'a> {
    pub fn new(client: &'a Client, stop: &'a Stop, renewal: Renewal) -> Self {
        Self {
            client,
            stop,
            complaint: Complaint::default(),
            renewal,
            checks: checks(),
        }
    }

    /// The next event; `None` if the time limit has passed first.
    ///
    /// # Errors
    /// The client has ended, with its reason, or a signal has come that ends the program.
    pub fn wait(&mut self, limit: Option<Duration>) -> Result<Option<ClientEvent>, Failure> {
        let client = self.client;
        let event = |event| match event {
            Some(ClientEvent::Closed(why)) => Err(closed(Some(why))),
            Some(event) => Ok(Some(event)),
            None => Err(ended(&client.handle())),
        };
        // Signals and files are checked before the events, because the next step returns at once
        // while frames wait. A server that sends without a pause would hide signals and files.
        if self.stop.requested() {
            return Err(self.stop.interrupted());
        }
        if self.checks.try_recv().is_ok() {
            self.renewal.check(&client.handle());
        }
        // While frames wait, each is received without the cost of `select!` and its timers.
        match client.events().try_recv() {
            Ok(came) => return event(Some(came)),
            Err(TryRecvError::Disconnected) => return event(None),
            Err(TryRecvError::Empty) => {}
        }
        let timeout = limit.map_or_else(crossbeam_channel::never, crossbeam_channel::after);
        loop {
            // This short timer only runs while there is no session, whose reason is then noted.
            let look = if client.is_connected() {
                crossbeam_channel::never()
            } else {
                crossbeam_channel::after(POLL)
            };
            crossbeam_channel::select! {
                recv(client.events()) -> came => return event(came.ok()),
                recv(self.stop.channel()) -> _ => return Err(self.stop.interrupted()),
                recv(timeout) -> _ => return Ok(None),
                recv(look) -> _ => self.complaint.note(&client.handle()),
                recv(self.checks) -> _ => self.renewal.check(&client.handle()),
            }
        }
    }

    /// Blocks until the first session. Fails if there is none within `limit`.
    pub fn connect(&mut self, limit: Seconds) -> Result<(), Failure> {
        let limit = Duration::from(limit);
        // The first event of a client is `Connected`, or its end, for which `wait` fails.
        let first = self.wait(Some(limit))?;
        first
            .map(drop)
            .ok_or_else(|| unanswered(&self.client.handle(), limit))
    }

    /// Passes each event to `take`, for a program that runs until a signal ends it.
    ///
    /// # Errors
    /// The client has ended, or `take` failed.
    pub fn each(&mut self, mut take: impl FnMut(ClientEvent) -> Result<(), Failure>) -> Result<(), Failure> {
        loop {
            match self.wait(None) {
                Err(_) if self.stop.requested() => return Ok(()),
                event => event?.map_or(Ok(()), &mut take)?,
            }
        }
    }
}

/// Notes for the user why there is no session: at once, and again only if the reason changes, so
/// that many failed attempts make one line.
#[derive(Debug, Default)]
pub struct Complaint {
    /// The last reason that was noted.
    last: String,
}

impl Complaint {
    /// Notes the reason if it is new. To be called repeatedly while there is no session.
    pub fn note(&mut self, client: &ClientHandle) {
        // If the client has ended, the command fails with the client's error.
        if client.ended().is_none()
            && let Some(why) = self.new_reason(client)
        {
            note(format_args!("ssntp: cannot connect yet, trying again: {why}"));
        }
    }

    /// The reason, if each server has failed, and it is not the reason of the last call.
    pub fn new_reason(&mut self, client: &ClientHandle) -> Option<&str> {
        let why = reasons(client);
        let is_new = client.failures().len() == client.servers().len() && why != self.last;
        is_new.then(|| {
            self.last = why;
            self.last.as_str()
        })
    }
}

/// The trace in the environment variable TRACEPARENT. An invalid value is noted for the user and
/// otherwise ignored.
pub fn traceparent() -> Option<TraceParent> {
    let value = std::env::var("TRACEPARENT")
        .ok()
        .filter(|value| !value.is_empty())?;
    let parsed = value.parse();
    if let Err(why) = &parsed {
        note(format_args!("ssntp: TRACEPARENT is ignored: {why}"));
    }
    parsed.ok()
}

/// The error of a command whose server has not answered within `limit`.
pub fn unanswered(client: &ClientHandle, limit: Duration) -> Failure {
    Failure::new(format!(
        "cannot connect: no server has answered in {} s: {}",
        limit.as_secs_f64(),
        reasons(client)
    ))
}

/// The last failure at each server.
fn reasons(client: &ClientHandle) -> String {
    let failures = client.failures();
    let reason = |server: String| match failures.iter().find(|failed| failed.server == server) {
        Some(failed) => failed.to_string(),
        None => format!("{server}: no answer"),
    };
    let all: Vec<_> = client.servers().into_iter().map(reason).collect();
    all.join("; ")
}

/// The failure of a program whose client has ended.
pub fn ended(client: &ClientHandle) -> Failure {
    closed(client.ended())
}

/// The failure of a program whose client has ended for this reason, if there is one.
pub fn closed(why: Option<ClientError>) -> Failure {
    let why = why.unwrap_or(ClientError::Closed);
    match &why {
        ClientError::Aborted { .. } | ClientError::NoServerLeft(_) => Failure::NotAdmitted(why.to_string()),
        _ => Failure::new(why),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_join_that_a_server_refuses_is_not_admitted() {
        let later = || JoinError::Later("too many nodes join".to_owned());
        let away = || JoinError::Lost(std::io::ErrorKind::ConnectionRefused.into());
        for why in [later(), JoinError::Addresses(vec![away(), later()])] {
            assert!(matches!(not_joined(why), Failure::Failed(_)));
        }
        let (name, hosts) = ("a".to_owned(), "b".to_owned());
        let for_another = JoinError::Server(Fault::NotForName { name, hosts });
        let text = not_joined(JoinError::Addresses(vec![away(), for_another])).to_string();
        assert!(text.contains("`ssntp token add --at`"), "{text}");
        let refused = JoinError::Refused {
            word: "used".to_owned(),
            detail: String::new(),
        };
        assert!(matches!(not_joined(refused), Failure::NotAdmitted(_)));
    }
}
