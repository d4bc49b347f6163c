//! Flags of commands that ask a running server.

use std::path::PathBuf;

use ssntp_opflex::run::Control;

use crate::failure::Failure;
use crate::seconds::Seconds;

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
