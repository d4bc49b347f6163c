//! The flags of every subcommand that connects to a server.

use std::path::PathBuf;
use std::time::Duration;

use ssntp::Role;
use ssntp::client::{Client, ClientConfig, ClientError, ClientEvent};
use ssntp::pki::{Identity, Trust};
use ssntp::transport::Address;
use uuid::Uuid;

use crate::failure::Failure;
use crate::signals::Stop;

/// How to reach a server, and as whom.
#[derive(Debug, clap::Args)]
pub(crate) struct Connection {
    /// The server: HOST:PORT, [IPV6]:PORT or unix:PATH; of several, the first
    /// that answers [default: the names in the CA certificate, else localhost]
    #[arg(long, value_name = "ADDR", num_args = 1..)]
    connect: Vec<Address>,
    /// The authority that the server's certificate has to come from
    #[arg(long, value_name = "FILE")]
    ca: PathBuf,
    /// This client's certificate and key
    #[arg(long, value_name = "FILE")]
    cert: PathBuf,
    /// The roles to advertise [default: all that the certificate holds]
    #[arg(long)]
    role: Option<Role>,
    /// This client's UUID [default: its certificate's, else a random one]
    #[arg(long)]
    uuid: Option<Uuid>,
    /// The name that the server's certificate has to hold [default: the one
    /// connected to]
    #[arg(long, value_name = "NAME")]
    server_name: Option<String>,
}

impl Connection {
    /// The client's configuration so far.
    pub(crate) fn config(&self) -> Result<ClientConfig, Failure> {
        self.config_of(Identity::load(&self.cert)?, self.role)
    }

    /// The same for a program that is nothing but `roles`: of them, it
    /// advertises those that its certificate holds.
    pub(crate) fn config_as(&self, roles: Role) -> Result<ClientConfig, Failure> {
        let identity = Identity::load(&self.cert)?;
        let held = identity.roles();
        let advertised = self.role.unwrap_or(held & roles);
        if advertised.is_empty() || !roles.contains(advertised) {
            let (cert, any) = (self.cert.display(), roles.to_string().replace(',', " or "));
            let found = self.role.unwrap_or(held);
            return Err(Failure::new(format!(
                "{cert}: the role is {found}, it has to be {any}"
            )));
        }
        self.config_of(identity, Some(advertised))
    }

    fn config_of(&self, identity: Identity, role: Option<Role>) -> Result<ClientConfig, Failure> {
        let mut config = ClientConfig::new(identity, Trust::load(&self.ca)?);
        config = config.addresses(self.connect.iter().cloned());
        if let Some(role) = role {
            config = config.role(role);
        }
        if let Some(uuid) = self.uuid {
            config = config.uuid(uuid);
        }
        if let Some(name) = &self.server_name {
            config = config.server_name(name);
        }
        Ok(config)
    }

    /// The identity, the trust and the one address, for what is no client of
    /// the library's.
    pub(crate) fn parts(&self) -> Result<(Identity, Trust, Address), Failure> {
        let [address] = &self.connect[..] else {
            return Err(Failure::usage("--connect is needed, once"));
        };
        Ok((
            Identity::load(&self.cert)?,
            Trust::load(&self.ca)?,
            address.clone(),
        ))
    }

    /// Whether the command line says the UUID.
    pub(crate) fn has_uuid(&self) -> bool {
        self.uuid.is_some()
    }

    /// Whether the command line or the certificate says the UUID.
    pub(crate) fn settles_uuid(&self) -> Result<bool, Failure> {
        Ok(self.uuid.is_some() || Identity::load(&self.cert)?.uuid().is_some())
    }
}

/// What a program waited for.
#[derive(Debug)]
pub(crate) enum Waited {
    Event(ClientEvent),
    /// A signal asks the program to end.
    Stopped,
    /// The time is over.
    TimedOut,
}

/// The next event of a client, or a signal, or the end of the time.
///
/// Fails when the client is over for good, with its reason.
pub(crate) fn wait(client: &Client, stop: &Stop, limit: Option<Duration>) -> Result<Waited, Failure> {
    let timeout = limit.map_or_else(crossbeam_channel::never, crossbeam_channel::after);
    crossbeam_channel::select! {
        recv(client.events()) -> event => match event {
            Ok(ClientEvent::Closed(why)) => Err(closed(why)),
            Ok(event) => Ok(Waited::Event(event)),
            Err(_) => Err(closed(client.handle().ended().unwrap_or(ClientError::Closed))),
        },
        recv(stop.channel()) -> _ => Ok(Waited::Stopped),
        recv(timeout) -> _ => Ok(Waited::TimedOut),
    }
}

/// A client that ended for good ends its program.
pub(crate) fn closed(why: ClientError) -> Failure {
    Failure::new(why)
}
