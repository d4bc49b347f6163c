//! Flags and texts of the daemons that are servers.

use std::path::Path;
use std::time::Duration;

use clap::value_parser;
use serde_json::{Value, json};
use ssntp::Role;
use ssntp::payload::yaml;
use ssntp::server::{AdmissionPolicy, ServerConfig, ServerHandle};
use ssntp::transport::Address;
use ssntp_daemon::{Failure, Given, input};
use ssntp_payload::Configure;
use uuid::Uuid;

/// The flags for the clients that a server admits.
#[derive(Debug, clap::Args)]
pub(crate) struct Admission {
    /// The maximum number of sessions at a time [default: what the system allows]
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..))]
    max_sessions: Option<u32>,
    /// The maximum number of sessions of one certificate, up to three quarters of all sessions
    /// [default: three quarters]
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..))]
    sessions_per_certificate: Option<u32>,
    /// The maximum number of handshakes at a time [default: 64 for each core, at most 512]
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..))]
    max_handshakes: Option<u32>,
    /// End the session of a client that has sent nothing for so long, from 30 to 31536000, and does not answer when it
    /// is asked after half of the time, as one whose process is stopped [default: never]
    #[arg(long, value_name = "SECONDS", value_parser = value_parser!(u32).range(30..=31_536_000))]
    idle_limit: Option<u32>,
    /// Let a session continue after its client's certificate has expired
    /// [default: the session ends]
    #[arg(long)]
    outlive_certificates: bool,
    /// Give clients no tickets that resume their TLS session, so that every
    /// handshake is a full one
    #[arg(long)]
    no_resumption: bool,
    /// At a stop, ask clients to leave within this time, each at a random moment, and stop once
    /// they have left; 0 or a second signal stops the server at once
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    drain: u32,
    /// The server's UUID [default: the one in its certificate, else a random one]
    #[arg(long)]
    uuid: Option<Uuid>,
}

impl Admission {
    /// The time in which clients are to leave at a stop.
    pub(crate) fn drain(&self) -> Duration {
        Duration::from_secs(self.drain.into())
    }

    /// Applies these flags to a configuration. If `bound`, clients need a certificate that is bound
    /// to their UUID, except for the roles `unbound`.
    pub(crate) fn apply(&self, config: ServerConfig, bound: bool, unbound: Role) -> ServerConfig {
        let number = |flag: Option<u32>| flag.map(|number| number as usize);
        let seconds = |seconds: u32| Duration::from_secs(seconds.into());
        let most = number(self.sessions_per_certificate);
        let policy = AdmissionPolicy::default()
            .require_bound_uuid(bound)
            .unbound_roles(unbound);
        config
            .admission(policy.given(most, AdmissionPolicy::sessions_per_certificate))
            .given(number(self.max_sessions), ServerConfig::max_sessions)
            .given(number(self.max_handshakes), ServerConfig::max_handshakes)
            .given(self.idle_limit.map(seconds), ServerConfig::idle_limit)
            .given(self.uuid, ServerConfig::uuid)
            .resumption(!self.no_resumption)
            .outlive_certificates(self.outlive_certificates)
    }
}

/// The first line of a server's output: its addresses.
pub(crate) fn listening(addresses: &[Address]) -> (String, Value) {
    let addresses: Vec<_> = addresses.iter().map(Address::to_string).collect();
    let text = format!("listening at {}", addresses.join(", "));
    (text, json!({ "listening": addresses }))
}

/// A server's status for the service manager. It blocks until the dispatcher answers, so that a
/// dispatcher that hangs is noticed.
pub(crate) fn sessions(server: &ServerHandle) -> Option<String> {
    let sessions = server.with(|cx| cx.directory().len()).ok()?;
    Some(format!("{sessions} sessions"))
}

/// Reads and checks a cluster configuration. Clients receive its bytes unchanged.
pub(crate) fn load_configuration(path: &Path) -> Result<Vec<u8>, Failure> {
    let bytes = yaml::without_mark(&input::file(path, input::LONGEST)?).to_vec();
    check_configuration(&bytes).map_err(|why| Failure::at(path, why))?;
    Ok(bytes)
}

pub(crate) fn check_configuration(payload: &[u8]) -> Result<(), String> {
    Configure::decode_valid(payload)
        .map(drop)
        .map_err(|e| e.to_string())
}
