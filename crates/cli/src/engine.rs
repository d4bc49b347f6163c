//! The flags of a daemon that joins other daemons through an etcd, and a server that links with
//! the members of its cluster.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::{Arc, Weak};

use clap::builder::TypedValueParser;
use clap::error::ErrorKind;
use clap::{Arg, Command};
use log::warn;
use ssntp::pki::{Identity, ServerCheck, Trust};
use ssntp::server::Server;
use ssntp::transport::Address;
use ssntp_daemon::{Failure, FilesRead, Lifetime, Problems, input};
use ssntp_engine::{Endpoints, Etcd, EtcdConfig, EtcdCredentials, Join, Member, Membership, User, View};
use ssntp_scheduler::Peers;

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct EngineArgs {
    /// Join the other servers that share this etcd: etcd://HOST:PORT[,HOST:PORT]; its
    /// endpoints are tried in turn. Without --join-ca the connection is not encrypted
    #[arg(long, value_name = "ETCD", group = "several", value_parser = EndpointsParser)]
    join: Option<Endpoints>,
    /// Connect to the etcd over TLS; this authority must have issued its certificate
    #[arg(long, value_name = "FILE", requires = "join")]
    join_ca: Option<PathBuf>,
    /// The certificate and key to show to the etcd
    #[arg(long, value_name = "FILE", requires = "join_ca")]
    join_cert: Option<PathBuf>,
    /// The key of --join-cert, if it is not in the same file
    #[arg(long, value_name = "FILE", requires = "join_cert")]
    join_key: Option<PathBuf>,
    /// A file whose first line is NAME:PASSWORD, for a user of the etcd
    #[arg(long, value_name = "FILE", requires = "join")]
    join_user_file: Option<PathBuf>,
    /// The name of the cluster: one etcd may serve several [default: default]
    #[arg(long, value_name = "NAME", requires = "join", value_parser = cluster_name)]
    cluster: Option<String>,
}

/// Reads [`Endpoints`]. An error of clap repeats the value, so a value with a password is refused
/// here.
#[derive(Clone)]
struct EndpointsParser;

impl TypedValueParser for EndpointsParser {
    type Value = Endpoints;

    fn parse_ref(&self, cmd: &Command, arg: Option<&Arg>, value: &OsStr) -> Result<Endpoints, clap::Error> {
        if value.as_encoded_bytes().contains(&b'@') {
            let why = "the value of --join must not hold a name and a password: --join-user-file names \
                       a file for them\n";
            return Err(clap::Error::raw(ErrorKind::ValueValidation, why).with_cmd(cmd));
        }
        Endpoints::from_str.parse_ref(cmd, arg, value)
    }
}

/// Reads the name of a cluster, which fits into a key of the engine and into the name of a context.
pub(crate) fn cluster_name(text: &str) -> Result<String, &'static str> {
    let is_of_a_name = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    if (1..=64).contains(&text.len()) && text.bytes().all(is_of_a_name) {
        Ok(text.to_owned())
    } else {
        Err("expected 1 to 64 letters, digits, dashes, underscores and dots")
    }
}

impl EngineArgs {
    /// True if `--join` is given.
    pub(crate) fn is_given(&self) -> bool {
        self.join.is_some()
    }

    /// The etcd of `--join`, which has these credentials; `None` without it. Does not connect.
    pub(crate) fn engine(&self, credentials: EtcdCredentials) -> Option<Etcd> {
        let cluster = self.cluster.as_deref().unwrap_or("default");
        Some(Etcd::new(EtcdConfig {
            endpoints: self.join.clone()?,
            credentials,
            cluster: cluster.to_owned(),
        }))
    }

    /// Reads the files of these flags, and notes their state to watch them.
    pub(crate) fn read(&self) -> Result<(EtcdCredentials, FilesRead), Failure> {
        let (trust, read) = FilesRead::authority(self.join_ca.as_deref())?;
        let others = [&self.join_cert, &self.join_key, &self.join_user_file];
        let mut read = others.into_iter().cloned().fold(read, FilesRead::and);
        let identity = self.identity()?;
        if let (Some(identity), Some(cert)) = (&identity, &self.join_cert) {
            read.lifetimes.push(Lifetime::of_identity(identity, cert));
        }
        let connector = |trust: &Trust| ServerCheck::Name(trust).connector(identity.as_ref());
        let credentials = EtcdCredentials {
            tls: trust.as_ref().map(connector).transpose().map_err(Failure::new)?,
            user: self.user()?,
        };
        Ok((credentials, read))
    }

    fn identity(&self) -> Result<Option<Identity>, Failure> {
        let load = |cert| Identity::load_without_role(cert, self.join_key.as_deref(), None);
        Ok(self.join_cert.as_deref().map(load).transpose()?)
    }

    fn user(&self) -> Result<Option<User>, Failure> {
        let Some(path) = &self.join_user_file else {
            return Ok(None);
        };
        let line = input::first_line(path)?;
        match str::from_utf8(&line).ok().and_then(|line| line.split_once(':')) {
            Some((name, password)) if !name.is_empty() => Ok(Some(User {
                name: name.to_owned(),
                password: password.to_owned(),
            })),
            // The error does not show the line, which may be the password alone.
            _ => Err(Failure::at(path, "its first line is not NAME:PASSWORD")),
        }
    }

    /// Adds the errors in the files that these flags name, and an error if other servers cannot reach
    /// this one, which listens at these addresses.
    pub(crate) fn problems(&self, problems: &mut Problems, listen: &[Address], advertise: Option<&Address>) {
        problems.of("join-ca", self.join_ca.as_ref().map(|ca| Ok(Trust::load(ca)?)));
        problems.of("join-cert", Some(self.identity()));
        problems.of("join-user-file", Some(self.user()));
        let is_joined = self.is_given() && !listen.is_empty();
        problems.of("advertise", is_joined.then(|| addresses(listen, advertise)));
    }
}

/// A weak reference to the membership, so that the pages do not keep it alive. Empty if the
/// daemon has joined no cluster.
pub(crate) fn weak(membership: Option<&Arc<Membership>>) -> Weak<Membership> {
    membership.map(Arc::downgrade).unwrap_or_default()
}

/// Makes a server a member of the cluster of an engine, and dials all other members for as long
/// as they are members. `advertise` is the address at which they reach the server.
pub(crate) fn link(
    server: &Server,
    engine: Etcd,
    advertise: Option<&Address>,
) -> Result<Membership, Failure> {
    let mut peers = Peers::of(server).ok_or_else(|| Failure::new("this server has no links"))?;
    let incarnation = server.handle().with(|cx| cx.incarnation());
    let member = Member {
        uuid: server.uuid(),
        incarnation: incarnation.map_err(Failure::new)?,
        addresses: addresses(server.addresses(), advertise)?,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        token: 0,
    };
    let join = Join { member, leads: false };
    let follow = move |view: &View| peers.follow(view);
    Membership::start(Box::new(engine), join, follow).map_err(|e| Failure::new(format!("--join: {e}")))
}

/// The addresses at which the other members reach a server.
pub(crate) fn addresses(listening: &[Address], advertise: Option<&Address>) -> Result<Vec<String>, Failure> {
    let reachable = Peers::reachable(advertise.map_or(listening, std::slice::from_ref));
    match advertise {
        Some(address) if reachable.is_empty() => Err(Failure::usage(format!(
            "--advertise {address}: other servers cannot reach this address; HOST:PORT is needed"
        ))),
        None if reachable.is_empty() => Err(Failure::usage(
            "--advertise is needed: --listen names no address at which other servers reach this one",
        )),
        _ => {
            // The others dial the first one.
            let first = reachable.first().and_then(|first| first.parse().ok());
            if let Some(local) = first.filter(Address::is_local)
                && advertise.is_none()
            {
                warn!(
                    "--join: the other servers dial {local}, which is on this machine alone: --advertise names another address"
                );
            }
            Ok(reachable)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::watching::each_file_is_watched;

    #[test]
    fn an_address_that_only_this_machine_reaches_is_told() {
        let told = |listen: &str, advertise: Option<&Address>| {
            let listen = [listen.parse().unwrap()];
            ssntp_test_support::warnings(|| drop(addresses(&listen, advertise)))
        };
        for local in ["localhost:1", "127.0.0.1:1", "[::1]:1"] {
            let told = told(local, None);
            assert!(
                told.len() == 1 && told[0].contains("--advertise names another"),
                "{told:?}"
            );
        }
        let advertised = "localhost:1".parse().unwrap();
        assert!(told("localhost:1", Some(&advertised)).is_empty());
        assert!(told("10.0.0.1:1", None).is_empty());
    }

    #[test]
    fn each_file_of_credentials_for_the_etcd_is_watched_and_its_end_is_known() {
        each_file_is_watched(&["--join", "etcd://etcd"], |args: &EngineArgs| {
            args.read().unwrap().1
        });
    }
}
