//! `--admin`: pages about a daemon, over HTTP.
//!
//! ```text
//!  the service's figures ─┐
//!  version, addresses ────┼─▶ Snapshot ─▶ ssntp_admin
//!  Notes: reloads, ───────┘
//!  lifetimes (main thread)
//! ```

use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use serde_json::{Value, json};
use ssntp::Role;
use ssntp::client::ClientHandle;
use ssntp::pki::{Identity, Trust};
use ssntp::server::ServerHandle;
use ssntp::transport::Address;
use ssntp_admin::{Admin, AdminConfig, Snapshot};
use ssntp_cluster::scheduler::Scheduler;

use crate::credentials::Lifetime;
use crate::failure::Failure;
use crate::output::lone_line;

/// Where pages about a daemon are, and who may see them.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct AdminArgs {
    /// Show pages about this process over HTTP, at HOST:PORT or unix:PATH:
    /// /metrics, /healthz, /readyz, /sessions, /closed, /info. Addresses that are
    /// not loopback have mutual TLS, with the certificates of this process
    #[arg(long, value_name = "ADDR", value_parser = with_port)]
    admin: Option<Address>,
    /// The roles whose holders may see the pages over TLS; one of them is enough
    #[arg(long, value_name = "ROLES", default_value = "controller", requires = "admin")]
    admin_role: Role,
    /// Let the group of the pages' Unix socket use it, too: 0660, not 0600
    #[arg(long, requires = "admin")]
    admin_group: bool,
}

/// An address that says its port: the default one is that of SSNTP itself.
fn with_port(text: &str) -> Result<Address, String> {
    let address = text.parse::<Address>().map_err(|e| e.to_string())?;
    let is_port = |end: &str| !end.is_empty() && end.bytes().all(|byte| byte.is_ascii_digit());
    let says_it =
        text.parse::<IpAddr>().is_err() && text.rsplit_once(':').is_some_and(|(_, end)| is_port(end));
    match says_it || text.starts_with("unix:") {
        true => Ok(address),
        false => Err("its port is needed, as in 127.0.0.1:9100".into()),
    }
}

/// What says what the pages show of a service.
pub(crate) type Figures = Box<dyn Fn() -> Result<Snapshot, String> + Send + Sync>;

/// What the pages say of a daemon beside its figures.
#[derive(Debug)]
pub(crate) struct About {
    /// The subcommand.
    pub(crate) daemon: &'static str,
    /// Where it listens.
    pub(crate) listening: Vec<String>,
    /// What the main thread notes for the pages.
    pub(crate) notes: Notes,
}

/// The pages of a daemon, if it has any.
#[derive(Debug)]
pub(crate) struct Pages(Option<Admin>);

impl AdminArgs {
    /// Starts the pages. `credentials` are asked for
    /// where they are needed: at addresses that others than this host can reach.
    pub(crate) fn start(
        &self,
        about: About,
        credentials: impl FnOnce() -> Result<Option<(Identity, Trust)>, Failure>,
        figures: Figures,
    ) -> Result<Pages, Failure> {
        let Some(address) = &self.admin else {
            return Ok(Pages(None));
        };
        let mut config = AdminConfig::new(address.clone())
            .roles(self.admin_role)
            .for_group(self.admin_group);
        if let Some((identity, trust)) = credentials()? {
            config = config.tls(identity, trust);
        }
        let began = now();
        let source = move || {
            let mut snapshot = figures()?;
            let seconds = began.elapsed().as_secs();
            for (name, value) in [
                ("daemon", json!(about.daemon)),
                ("version", json!(env!("CARGO_PKG_VERSION"))),
                ("pid", json!(std::process::id())),
                ("uptime_seconds", json!(seconds)),
                ("listening", json!(about.listening)),
                ("features", json!(features())),
            ] {
                snapshot.info.insert(name.into(), value);
            }
            about.notes.add_to(&mut snapshot);
            Ok(snapshot)
        };
        let admin = Admin::start(config, source).map_err(|e| Failure::new(format!("--admin: {e}")))?;
        Ok(Pages(Some(admin)))
    }
}

/// Addresses, as `/info` shows them.
pub(crate) fn shown(addresses: &[Address]) -> Vec<String> {
    addresses.iter().map(Address::to_string).collect()
}

/// What the pages show of a server.
pub(crate) fn of_server(server: ServerHandle) -> Figures {
    Box::new(move || {
        let figures = server.figures().map_err(|e| e.to_string())?;
        Ok(Snapshot::of_server(&figures))
    })
}

/// What the pages show of a scheduler.
pub(crate) fn of_scheduler(server: ServerHandle) -> Figures {
    Box::new(move || {
        let figures = server.figures().map_err(|e| e.to_string())?;
        let mut snapshot = Snapshot::of_server(&figures);
        let scheduler = Scheduler::figures(&server).map_err(|e| e.to_string())?;
        snapshot.add_scheduler(&scheduler);
        Ok(snapshot)
    })
}

/// Who a client is, besides what the pages show of it.
pub(crate) fn of_client(client: &ClientHandle, mut snapshot: Snapshot) -> Snapshot {
    snapshot.info.insert("uuid".into(), json!(client.uuid()));
    snapshot
        .info
        .insert("role".into(), json!(client.role().to_string()));
    snapshot
}

/// What the pages show of an OpFlex server.
#[cfg(feature = "full")]
pub(crate) fn of_opflex(server: ssntp_opflex::run::ServerHandle) -> Figures {
    Box::new(move || {
        let figures = server.figures().map_err(|e| e.to_string())?;
        Ok(Snapshot::of_opflex(&figures))
    })
}

impl Pages {
    /// Prints where they are, after the line that tells where the daemon listens or
    /// who it is. Whoever waits for that one may read no further, which is no reason
    /// for a daemon to end.
    pub(crate) fn announce(&self, as_json: bool) {
        let Some(admin) = &self.0 else { return };
        let urls = admin.urls();
        let text = format!("pages at {}", urls.join(", "));
        let _ = lone_line(text, as_json.then(|| json!({ "pages": urls }).to_string()));
    }

    /// Takes other credentials, for who connects from now on.
    pub(crate) fn renew(&self, identity: &Identity, trust: &Trust) {
        if let Some(admin) = &self.0
            && let Err(e) = admin.renew(identity, trust)
        {
            log::warn!("--admin: goes on with the certificate before: {e}");
        }
    }

    /// Says that the daemon ends, before it does.
    pub(crate) fn stopping(&self) {
        if let Some(admin) = &self.0 {
            admin.stopping();
        }
    }
}

/// What this program was built with, as far as it makes a difference.
fn features() -> Vec<&'static str> {
    let mut features = vec!["admin", "cluster"];
    for (is_there, name) in [
        (cfg!(feature = "full"), "opflex"),
        (cfg!(feature = "aws-lc-rs"), "aws-lc-rs"),
        (cfg!(feature = "ring"), "ring"),
    ] {
        if is_there {
            features.push(name);
        }
    }
    features
}

/// What the main thread notes for the pages. A clone is the same.
#[derive(Clone, Debug, Default)]
pub(crate) struct Notes(Arc<Mutex<Noted>>);

#[derive(Debug, Default)]
struct Noted {
    reloads: [u64; 2],
    /// When files were read again last, and why that failed.
    last: Option<(SystemTime, Option<String>)>,
    lifetimes: Vec<Lifetime>,
}

impl Notes {
    /// Files were read again, or why that failed.
    pub(crate) fn reloaded(&self, failure: Option<String>) {
        let mut noted = self.lock();
        noted.reloads[usize::from(failure.is_some())] += 1;
        noted.last = Some((wall_clock(), failure));
    }

    /// What counts from now on, and until when.
    pub(crate) fn lifetimes(&self, lifetimes: Vec<Lifetime>) {
        self.lock().lifetimes = lifetimes;
    }

    fn add_to(&self, snapshot: &mut Snapshot) {
        let noted = self.lock();
        let now = wall_clock();
        let [well, badly] = noted.reloads;
        let metrics = &mut snapshot.metrics;
        let help = "How often files were read again, by whether that worked.";
        metrics
            .counter("ssntp_reloads_total", help)
            .sample(&[("outcome", "success")], well)
            .sample(&[("outcome", "failure")], badly);
        let mut last = Value::Null;
        if let Some((at, failure)) = &noted.last {
            let at = since_1970(*at);
            let help = "When files were read again last, in seconds since 1970.";
            metrics.gauge("ssntp_last_reload_timestamp_seconds", help).set(at);
            let help = "Whether files could be read when they were last.";
            metrics
                .gauge("ssntp_last_reload_success", help)
                .set(failure.is_none());
            last = json!({ "timestamp": at, "failure": failure });
            if let Some(failure) = failure {
                snapshot
                    .degraded
                    .push(format!("the last reload failed: {failure}"));
            }
        }
        snapshot.info.insert("last_reload".into(), last);
        let help = "When a certificate, an authority or a revocation list ends, in seconds since 1970.";
        let mut expiry = metrics.gauge("ssntp_certificate_expiry_timestamp_seconds", help);
        let mut shown = Vec::new();
        // An old authority and its successor may have one name: the first that ends counts.
        let mut lifetimes: Vec<_> = noted.lifetimes.iter().collect();
        lifetimes.sort_by_key(|lifetime| lifetime.end);
        for lifetime in lifetimes {
            let (what, of) = (lifetime.what.name(), &lifetime.of);
            expiry.sample(&[("what", what), ("of", of)], since_1970(lifetime.end));
            let left = lifetime.days_left(now);
            #[expect(clippy::cast_possible_truncation, reason = "some thousand days")]
            let days_left = left.floor() as i64;
            shown.push(json!({
                "what": what, "of": of, "file": lifetime.file, "days_left": days_left,
            }));
            if left <= 0.0 {
                let why = format!("{}: the {what} of {of} has come to its end", lifetime.file);
                snapshot.degraded.push(why);
            }
        }
        snapshot.info.insert("certificates".into(), shown.into());
    }

    fn lock(&self) -> MutexGuard<'_, Noted> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn since_1970(time: SystemTime) -> f64 {
    let since = time
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or(Duration::ZERO);
    since.as_secs_f64().floor()
}

#[expect(clippy::disallowed_methods, reason = "how long a daemon runs")]
fn now() -> Instant {
    Instant::now()
}

#[expect(clippy::disallowed_methods, reason = "certificates end by the wall clock")]
fn wall_clock() -> SystemTime {
    SystemTime::now()
}
