//! Sockets for programs on the same host.

use std::path::PathBuf;

use ssntp_opflex::run::LocalSocket;

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

/// An element for the programs beside it.
#[derive(Debug, clap::Args)]
pub(super) struct ServeArgs {
    /// The Unix socket that programs on this host get the policy and the
    /// endpoints from that are resolved, and their changes, as JSON lines
    #[arg(long, value_name = "PATH")]
    serve: Option<PathBuf>,
    /// Let the group of that socket's file use it too
    #[arg(long, requires = "serve")]
    serve_group: bool,
}

impl InspectorArgs {
    pub(super) fn socket(self) -> Option<LocalSocket> {
        socket(self.inspector?, self.inspector_group)
    }
}

impl ServeArgs {
    pub(super) fn is_given(&self) -> bool {
        self.serve.is_some()
    }

    pub(super) fn socket(self) -> Option<LocalSocket> {
        socket(self.serve?, self.serve_group)
    }
}

fn socket(path: PathBuf, for_group: bool) -> Option<LocalSocket> {
    let socket = LocalSocket::new(path);
    Some(match for_group {
        true => socket.for_group(),
        false => socket,
    })
}
