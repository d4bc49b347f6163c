//! `--admin`: pages about a daemon, over HTTP.
//!
//! ```text
//!  the figures of the daemon ─┐
//!  version, addresses ────────┼─▶ Snapshot ─▶ ssntp_admin
//!  Notes: reloads, lifetimes ─┘
//!  (main thread)
//! ```
//!
//! | file | holds |
//! |---|---|
//! | `cluster` | tables of a scheduler, an agent and a concentrator |
//! | `members` | the members, the leader and the engine of a cluster that the daemon has joined |
//! | `opflex` | the table and the sessions of an OpFlex server |
//! | `notes` | notes of the main thread: reloads, lifetimes of certificates |

mod cluster;
mod members;
mod notes;
mod opflex;

use std::path::PathBuf;
use std::sync::{Arc, Weak};

use serde_json::json;
use ssntp::Role;
use ssntp::pki::{Identity, Trust};
use ssntp::server::ServerHandle;
use ssntp::transport::Address;
use ssntp_admin::{Admin, AdminConfig, Snapshot};
use ssntp_agent::Agent;
use ssntp_daemon::{Failure, FilesRead, Lifetime, Problems, StartPages, print_either};
use ssntp_engine::Membership;
use ssntp_transport::{elapsed, now};

pub(crate) use self::cluster::{of_cnci, of_controller, of_scheduler};
use self::notes::Notes;
pub(crate) use self::opflex::of_opflex;

/// The address of the pages, and the clients that may read them.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct AdminArgs {
    /// Show pages about this process over HTTP, at HOST:PORT or unix:PATH:
    /// /metrics, /healthz, /readyz, /sessions, /closed, /info. At addresses that
    /// are not loopback, the pages use mutual TLS with the certificates of this
    /// process
    #[arg(long, value_name = "ADDR")]
    admin: Option<Address>,
    /// The roles that may read the pages over TLS; a client needs one of them [default:
    /// controller, with --admin-ca any certificate]
    #[arg(long, value_name = "ROLES", requires = "admin")]
    admin_role: Option<Role>,
    /// The authority whose certificates may read the pages over TLS, instead of the authority
    /// of --ca. A monitoring host then needs no certificate that also allows commands
    #[arg(long, value_name = "FILE", requires = "admin")]
    admin_ca: Option<PathBuf>,
    /// Let the group of the pages' Unix socket use it as well: mode 0660 instead of 0600
    #[arg(long, requires = "admin")]
    admin_group: bool,
}

/// Makes a snapshot of a daemon. Called on the threads that serve the pages.
pub(crate) type Figures = Box<dyn Fn() -> Result<Snapshot, String> + Send + Sync>;

/// The pages of a daemon.
#[derive(Debug)]
struct Pages {
    admin: Admin,
    notes: Notes,
    /// The file of the pages' own authority.
    ca: Option<PathBuf>,
}

impl AdminArgs {
    /// Adds the error in the file that these flags name.
    pub(crate) fn problems(&self, problems: &mut Problems) {
        problems.of("admin-ca", self.admin_ca.as_ref().map(|ca| Ok(Trust::load(ca)?)));
    }

    /// The function that starts the pages, if `--admin` is given.
    pub(crate) fn pages(&self, figures: Figures) -> Option<StartPages<'_>> {
        let address = self.admin.as_ref()?;
        Some(Box::new(move |name, listening, credentials| {
            let pages = self.start(address, name, listening, credentials, figures)?;
            Ok(Box::new(pages))
        }))
    }

    /// Starts the pages of the daemon `name`. `credentials` are for addresses that other hosts can reach.
    fn start(
        &self,
        address: &Address,
        name: &'static str,
        listening: &[Address],
        credentials: Option<(Identity, Trust)>,
        figures: Figures,
    ) -> Result<Pages, Failure> {
        let roles = match self.admin_ca {
            // An authority for the pages alone issues certificates only for the pages, so any of
            // them is accepted.
            Some(_) => Role::NONE,
            None => Role::CONTROLLER,
        };
        let mut config = AdminConfig::new(address.clone())
            .roles(self.admin_role.unwrap_or(roles))
            .for_group(self.admin_group);
        // Without TLS the pages' own authority is not read, now or later.
        let ca = self.admin_ca.clone().filter(|_| credentials.is_some());
        if let Some((identity, trust)) = credentials {
            let own = ca.as_ref().map(Trust::load).transpose()?;
            config = config.tls(identity, own.unwrap_or(trust));
        }
        let began = now();
        let listening: Vec<_> = listening.iter().map(Address::to_string).collect();
        let notes = Notes::default();
        let noted = notes.clone();
        let source = move || {
            let mut snapshot = figures()?;
            snapshot.show("daemon", name);
            snapshot.show("version", env!("CARGO_PKG_VERSION"));
            snapshot.show("pid", std::process::id());
            snapshot.show("uptime_seconds", elapsed(began).as_secs());
            snapshot.show("listening", &listening);
            snapshot.show("features", FEATURES);
            noted.add_to(&mut snapshot);
            Ok(snapshot)
        };
        let admin = Admin::start(config, source).map_err(|e| Failure::new(format!("--admin: {e}")))?;
        Ok(Pages { admin, notes, ca })
    }
}

/// The pages of a server.
pub(crate) fn of_server(server: ServerHandle, membership: Weak<Membership>) -> Figures {
    Box::new(move || {
        let figures = server.figures().map_err(|e| e.to_string())?;
        let mut snapshot = Snapshot::of_server(&figures);
        members::show(&mut snapshot, &membership);
        Ok(snapshot)
    })
}

/// The flags of `ssntp agent`, which has pages.
pub(crate) type AgentArgs = ssntp_agent_cli::Args<AdminArgs>;

impl ssntp_agent_cli::AgentPages for AdminArgs {
    fn problems(&self, problems: &mut Problems) {
        self.problems(problems);
    }

    fn pages(&self, agent: &Arc<Agent>) -> Option<StartPages<'_>> {
        self.pages(cluster::of_agent(agent))
    }
}

impl ssntp_daemon::Pages for Pages {
    fn announce(&self, as_json: bool) {
        let urls = self.admin.urls();
        let text = format!("pages at {}", urls.join(", "));
        let _ = print_either(as_json, json!({ "pages": urls }), text);
    }

    fn files(&self) -> Result<FilesRead, Failure> {
        FilesRead::authority(self.ca.as_deref()).map(|(_, read)| read)
    }

    fn renew(&self, identity: &Identity, trust: &Trust) {
        let own = self.ca.as_ref().map(Trust::load).transpose();
        let own = own.map_err(|e| e.to_string());
        let renew = |own: Option<Trust>| self.admin.renew(identity, own.as_ref().unwrap_or(trust));
        if let Err(e) = own.and_then(|own| renew(own).map_err(|e| e.to_string())) {
            log::warn!("--admin: the new certificate or authority cannot be used, the old one stays: {e}");
        }
    }

    fn reloaded(&self, failure: Option<String>) {
        self.notes.reloaded(failure);
    }

    fn lifetimes(&self, lifetimes: Vec<Lifetime>) {
        self.notes.lifetimes(lifetimes);
    }

    fn stopping(&self) {
        self.admin.stopping();
    }
}

/// The optional parts of this build.
#[rustfmt::skip] // The parts, and then the providers of cryptography.
const FEATURES: &[&str] = &[
    "admin", "cluster", "opflex",
    #[cfg(feature = "aws-lc-rs")] "aws-lc-rs",
    #[cfg(feature = "ring")] "ring",
];
