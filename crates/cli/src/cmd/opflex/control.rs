//! Flags of commands that ask a running server.

use std::path::PathBuf;

use ssntp_opflex::run::Control;

use crate::failure::Failure;
use crate::seconds::Seconds;

/// Which server is asked, and how its answer is printed.
#[derive(Debug, clap::Args)]
pub(super) struct ControlArgs {
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
        Control::connect(path, self.timeout.into())
            .map_err(|e| Failure::new(format!("{}: {e}", path.display())))
    }
}
