//! The flags of all commands of `ssntp ctl`: the scheduler, the time limit, JSON.

use std::time::Duration;

use ssntp::Role;
use ssntp::client::Backoff;
use ssntp_daemon::{Failure, Given, Renewal, Seconds, ServerArgs, Stop, connection};
use ssntp_view::ControllerConfig;

// A heading, without which the help of a command mixes these flags with its own.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Common options")]
pub(super) struct Options {
    #[command(flatten)]
    pub(super) server: ServerArgs,
    /// Print JSON
    #[arg(long, global = true)]
    pub(super) json: bool,
    /// The time to wait until the scheduler answers, and again until a command is
    /// shown to be done [default: 30 for the scheduler, then 180; for a START, as long as
    /// its node works on it]
    #[arg(long, value_name = "SECONDS", global = true)]
    pub(super) timeout: Option<Seconds>,
}

/// The default time limit. It is longer than the time after which the scheduler reports that a START
/// has failed without a report of its node, so that users read the reason: 60 s held, and 90 s on
/// a node.
const LIMIT: Duration = Duration::from_secs(180);

/// The default time limit for the first session. A scheduler that its service manager starts again takes
/// some seconds, and a wrong address should not keep a script waiting for minutes.
const CONNECT: Duration = Duration::from_secs(30);
/// The pauses between attempts to connect.
const BACKOFF: Backoff = Backoff {
    initial: Duration::from_millis(100),
    cap: Duration::from_secs(1),
};

/// The flags that a command has in common with all others, and the signals that end it.
#[derive(Debug)]
pub(super) struct Invocation {
    pub(super) options: Options,
    pub(super) stop: Stop,
}

impl Options {
    /// The time to wait until the scheduler answers, and again until a command is shown to be done.
    pub(super) fn limit(&self) -> Duration {
        self.limit_or(LIMIT)
    }

    /// The time to wait for the first session.
    pub(super) fn connect_limit(&self) -> Duration {
        self.limit_or(CONNECT)
    }

    /// The value of --timeout, or else this time limit.
    pub(super) fn limit_or(&self, default: Duration) -> Duration {
        self.timeout.map_or(default, Duration::from)
    }

    /// The configuration of a controller for one command, which is part of the trace in the
    /// environment.
    pub(super) fn config(&self, stop: &Stop) -> Result<ControllerConfig, Failure> {
        // A command ends soon, so it does not read its files a second time.
        let (config, _) = self.lasting_config(stop)?;
        Ok(config.given(connection::traceparent(), ControllerConfig::traceparent))
    }

    /// The configuration of a controller that runs until a signal comes: it reconnects without a
    /// limit, and its files are read again.
    pub(super) fn lasting_config(&self, stop: &Stop) -> Result<(ControllerConfig, Renewal), Failure> {
        let (config, renewal) = self.server.reach(stop)?.config(|_| Ok(Role::CONTROLLER))?;
        Ok((ControllerConfig::new(config.backoff(BACKOFF)), renewal))
    }
}
