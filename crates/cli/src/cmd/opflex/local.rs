//! Sockets for programs on the same host.

use std::path::PathBuf;

use ssntp_opflex::run::LocalSocket;

use crate::choice::Given;

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
    let group = for_group.then_some(());
    Some(LocalSocket::new(path).given(group, |socket, ()| socket.for_group()))
}
