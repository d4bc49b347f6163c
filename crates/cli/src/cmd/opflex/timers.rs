//! The times of a connection, which servers and elements share.

use std::time::Duration;

use ssntp_opflex::peer::KeepaliveSettings;

use crate::seconds::Seconds;

/// The times after which a connection ends.
#[derive(Debug, clap::Args)]
pub(super) struct TimerArgs {
    /// The time between two echoes to a peer
    #[arg(long, value_name = "SECONDS", default_value = "15")]
    echo: Seconds,
    /// Close a connection on which nothing has arrived for longer than this when an echo is due
    #[arg(long, value_name = "SECONDS", default_value = "120")]
    silence: Seconds,
    /// How long the identity of a peer may take, from the connection on
    #[arg(long, value_name = "SECONDS", default_value = "45")]
    identity_timeout: Seconds,
}

impl TimerArgs {
    pub(super) fn keepalive(&self) -> KeepaliveSettings {
        let (mut settings, interval) = (KeepaliveSettings::default(), self.echo.into());
        settings.first = settings.first.min(interval);
        settings.interval = interval;
        settings.silence = self.silence.into();
        settings
    }

    pub(super) fn identity(&self) -> Duration {
        self.identity_timeout.into()
    }
}
