//! Sockets for programs on the same host.

use std::path::PathBuf;

use ssntp::opflex::run::LocalSocket;

/// The inspector of a server or an element.
#[derive(Debug, clap::Args)]
pub(super) struct InspectorArgs {
    /// The Unix socket that agent-ovs's `gbp_inspect --socket` shows everything
    /// through
    #[arg(long, value_name = "PATH")]
    inspector: Option<PathBuf>,
    /// Let the group of that socket's file use it too
    #[arg(long, requires = "inspector")]
    inspector_group: bool,
}

impl InspectorArgs {
    pub(super) fn socket(self) -> Option<LocalSocket> {
        let socket = LocalSocket::new(self.inspector?);
        Some(match self.inspector_group {
            true => socket.for_group(),
            false => socket,
        })
    }
}
