//! How to reach the scheduler, and for how long to wait.

use std::time::Duration;

use ssntp::Role;
use ssntp::client::{Backoff, ClientConfig};
use ssntp::pki::{Identity, Trust};
use ssntp_cluster::controller::ControllerConfig;

use crate::choice::Given;
use crate::connection::{self, Renewal, ServerArgs};
use crate::failure::Failure;
use crate::seconds::Seconds;
use crate::signals::Stop;

#[derive(Debug, clap::Args)]
pub(super) struct Options {
    #[command(flatten)]
    server: ServerArgs,
    /// Print JSON
    #[arg(long, global = true)]
    pub(super) json: bool,
    /// How long to wait until the scheduler answers, and again until a command is
    /// shown to be done [default: 180; a START is waited for as long as its node
    /// works on it]
    #[arg(long, value_name = "SECONDS", global = true)]
    timeout: Option<Seconds>,
}

/// Longer than the scheduler takes to answer a START of which nothing is heard,
/// so that users read its reason: 60 s held, and 90 s on a node.
const LIMIT: Duration = Duration::from_secs(180);

/// The rounds of attempts after which a program with one thing to do gives up, if it never had
/// a session. The pauses between ten rounds take some seven seconds. After a first session the
/// program connects again for as long as its command may take.
const ATTEMPTS: u32 = 10;
const BACKOFF: Backoff = Backoff {
    initial: Duration::from_millis(100),
    factor: 2.0,
    cap: Duration::from_secs(1),
};

impl Options {
    /// How long to wait until the scheduler answers, and again until a command
    /// is shown to be done.
    pub(super) fn limit(&self) -> Duration {
        self.timeout.map_or(LIMIT, Duration::from)
    }

    /// The time limit that the user gave.
    pub(super) fn asked_limit(&self) -> Option<Duration> {
        self.timeout.map(Duration::from)
    }

    /// Whether the user gave a time limit.
    pub(super) fn is_limited(&self) -> bool {
        self.timeout.is_some()
    }

    /// A controller for a program that ends once it has done its work. Its commands
    /// are part of the trace that the environment names.
    pub(super) fn config(&self, stop: &Stop) -> Result<ControllerConfig, Failure> {
        let config = ControllerConfig::new(self.client(stop)?);
        Ok(config.given(connection::traceparent(), ControllerConfig::traceparent))
    }

    /// The client of a program that ends once it has done its work.
    pub(super) fn client(&self, stop: &Stop) -> Result<ClientConfig, Failure> {
        // A program that ends soon does not read its files a second time.
        let (config, _) = self.server.reach(stop)?.config(|_| Ok(Role::CONTROLLER))?;
        Ok(config.backoff(BACKOFF).first_attempts(ATTEMPTS))
    }

    /// The certificates of a command that speaks to a controller daemon.
    pub(super) fn credentials(&self, stop: &Stop) -> Result<(Identity, Trust), Failure> {
        self.server.reach(stop)?.files.load()
    }

    /// A controller for a program that goes on, connects again whenever it has to,
    /// and has its files read again.
    pub(super) fn config_going_on(&self, stop: &Stop) -> Result<(ControllerConfig, Renewal), Failure> {
        let (config, renewal) = self.server.reach(stop)?.config(|_| Ok(Role::CONTROLLER))?;
        Ok((ControllerConfig::new(config.backoff(BACKOFF)), renewal))
    }
}
