//! Flags that several subcommands have.

use std::path::PathBuf;
use std::time::Duration;

use ssntp_daemon::{Failure, Seconds};
use ssntp_opflex::peer::KeepaliveSettings;
use ssntp_opflex::run::{Control, LocalSocket};

// The server, and the form of the output. A doc comment would become the help of subcommands.
#[derive(Debug, clap::Args)]
pub(crate) struct ControlArgs {
    /// The control socket of the server
    #[arg(long, value_name = "PATH", global = true, required = false)]
    control: Option<PathBuf>,
    /// How long to wait for an answer
    #[arg(long, value_name = "SECONDS", default_value = "30", global = true)]
    timeout: Seconds,
    /// Print JSON
    #[arg(long, global = true)]
    pub(super) json: bool,
}

impl ControlArgs {
    pub(super) fn connect(&self) -> Result<Control, Failure> {
        // clap does not allow a global flag to be required.
        let path = self
            .control
            .as_ref()
            .ok_or_else(|| Failure::usage("--control PATH is missing"))?;
        Control::connect(path, self.timeout.into()).map_err(|e| Failure::at(path, e))
    }
}

/// The inspector of a server or an element.
#[derive(Debug, clap::Args)]
pub(super) struct InspectorArgs {
    /// The Unix socket where agent-ovs's `gbp_inspect --socket` reads policy, endpoints and
    /// reported objects
    #[arg(long, value_name = "PATH")]
    inspector: Option<PathBuf>,
    /// Let the group of that socket's file use the socket, too
    #[arg(long, requires = "inspector")]
    inspector_group: bool,
}

/// The feed of an element, for programs on the same host.
#[derive(Debug, clap::Args)]
pub(super) struct ServeArgs {
    /// The Unix socket where programs on this host read the resolved policy and
    /// endpoints, and their changes, as lines of JSON
    #[arg(long, value_name = "PATH")]
    serve: Option<PathBuf>,
    /// Let the group of that socket's file use the socket, too
    #[arg(long, requires = "serve")]
    serve_group: bool,
}

impl InspectorArgs {
    pub(super) fn socket(self) -> Option<LocalSocket> {
        let for_group = self.inspector_group;
        self.inspector.map(|path| LocalSocket { path, for_group })
    }
}

impl ServeArgs {
    pub(super) fn is_given(&self) -> bool {
        self.serve.is_some()
    }

    pub(super) fn socket(self) -> Option<LocalSocket> {
        let for_group = self.serve_group;
        self.serve.map(|path| LocalSocket { path, for_group })
    }
}

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
