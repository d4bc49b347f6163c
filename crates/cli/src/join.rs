//! The flags of a daemon that is one of several, and what its pages say of the others.

use std::path::PathBuf;
use std::str::FromStr;
use std::sync::{Arc, Weak};
use std::time::Duration;

use serde_json::json;
use ssntp::pki::{Identity, Trust};
use ssntp::transport::tls::{Connector, ServerCheck};
use ssntp_admin::{Metric, Snapshot, gauge, one};
use ssntp_engine::{Endpoints, Etcd, EtcdConfig, Membership, User, View};

use crate::clock::now;
use crate::failure::Failure;
use crate::input;
use crate::settings::Problems;

/// How long the engine may be away before the daemon counts as degraded.
const AWAY: Duration = Duration::from_secs(3);

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct JoinArgs {
    /// Be one of several that share this etcd: etcd://HOST:PORT[,HOST:PORT]; the endpoints
    /// are tried in turn. Without --join-ca they are asked in clear
    #[arg(long, value_name = "ETCD")]
    join: Option<Endpoints>,
    /// The authority that must have issued the certificate of the etcd: it is asked over
    /// TLS
    #[arg(long, value_name = "FILE", requires = "join")]
    join_ca: Option<PathBuf>,
    /// The certificate and key to show to the etcd
    #[arg(long, value_name = "FILE", requires = "join_ca")]
    join_cert: Option<PathBuf>,
    /// The key of --join-cert, if it is not in the same file
    #[arg(long, value_name = "FILE", requires = "join_cert")]
    join_key: Option<PathBuf>,
    /// A file whose first line is NAME:PASSWORD of a user of the etcd
    #[arg(long, value_name = "FILE", requires = "join")]
    join_user_file: Option<PathBuf>,
    /// The name of the cluster: one etcd may serve several [default: default]
    #[arg(long, value_name = "NAME", requires = "join")]
    cluster: Option<ClusterName>,
    /// The address at which the others reach this one [default: where it listens]
    #[arg(long, value_name = "ADDR", requires = "join")]
    advertise: Vec<ssntp::transport::Address>,
}

/// A name that fits into a key of the engine.
#[derive(Clone, Debug)]
struct ClusterName(String);

impl FromStr for ClusterName {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let is_of_a_name = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
        match (1..=64).contains(&text.len()) && text.bytes().all(is_of_a_name) {
            true => Ok(Self(text.to_owned())),
            false => Err("expected 1 to 64 letters, digits, dashes, underscores and dots"),
        }
    }
}

impl JoinArgs {
    /// The engine, if there is one to join.
    pub(crate) fn engine(&self) -> Result<Option<Etcd>, Failure> {
        let Some(endpoints) = self.join.clone() else {
            return Ok(None);
        };
        let cluster = self.cluster.as_ref().map_or("default", |name| &name.0);
        Ok(Some(Etcd::new(EtcdConfig {
            endpoints,
            tls: self.tls()?,
            user: self.user()?,
            cluster: cluster.to_owned(),
        })))
    }

    /// Where the others reach this one; empty for where it listens.
    pub(crate) fn advertise(&self) -> Vec<String> {
        self.advertise.iter().map(ToString::to_string).collect()
    }

    fn tls(&self) -> Result<Option<Connector>, Failure> {
        let Some(ca) = &self.join_ca else { return Ok(None) };
        let trust = Trust::load(ca)?;
        let load = |cert| Identity::load_without_role(cert, self.join_key.as_deref(), None);
        let identity = self.join_cert.as_deref().map(load).transpose()?;
        let tls = Connector::checking(ServerCheck::Name(&trust), identity.as_ref());
        tls.map(Some).map_err(Failure::new)
    }

    fn user(&self) -> Result<Option<User>, Failure> {
        let Some(path) = &self.join_user_file else {
            return Ok(None);
        };
        let bytes = input::file(path, input::LONGEST)?;
        let text = String::from_utf8_lossy(&bytes);
        let line = text.lines().next().unwrap_or_default();
        match line.split_once(':') {
            Some((name, password)) if !name.is_empty() => Ok(Some(User {
                name: name.to_owned(),
                password: password.to_owned(),
            })),
            // The line is not shown: it may be the password alone.
            _ => Err(Failure::at(path, "its first line is not NAME:PASSWORD")),
        }
    }

    /// Errors in the files that are named.
    pub(crate) fn problems(&self, problems: &mut Problems) {
        problems.of("join-ca", Some(self.tls()));
        problems.of("join-user-file", Some(self.user()));
    }
}

/// Adds what the pages say of the cluster, if the daemon has joined one.
pub(crate) fn show(snapshot: &mut Snapshot, membership: &Weak<Membership>) {
    let Some(membership) = membership.upgrade() else {
        return;
    };
    let (view, now) = (membership.view(), now());
    snapshot.metrics.add(CLUSTER, &view);
    let leader = view
        .leader
        .map(|leader| json!({ "uuid": leader.uuid, "token": leader.token }));
    let away = view
        .away
        .as_ref()
        .map(|(since, why)| (now.saturating_duration_since(*since), why));
    let engine = away.map_or("answers".to_owned(), |(time, why)| {
        format!("for {} s: {why}", time.as_secs())
    });
    let lease = view
        .kept
        .map(|kept| now.saturating_duration_since(kept).as_millis());
    snapshot.show(
        "cluster",
        json!({
            "members": view.members,
            "leader": leader,
            "leads": view.acts(now).is_some(),
            "lease_age_ms": lease,
            "engine": engine,
        }),
    );
    if let Some((time, why)) = away.filter(|(time, _)| *time >= AWAY) {
        snapshot.degraded.push(format!("for {} s: {why}", time.as_secs()));
    }
    if let Some(other) = &view.double {
        let at = other.addresses.join(", ");
        snapshot
            .degraded
            .push(format!("another process runs under this UUID, at {at}"));
    }
}

#[rustfmt::skip] // A table: one row a metric.
const CLUSTER: &[Metric<View>] = &[
    gauge("ssntp_cluster_members", "Members of the cluster, this one included.", |view| one(view.members.len())),
    gauge("ssntp_cluster_leads", "1 if this one leads, else 0.", |view| one(view.acts(now()).is_some())),
    gauge("ssntp_cluster_token", "The token of the leader that is known; 0 if there is none.",
        |view| one(view.leader.map_or(0, |leader| leader.token))),
    gauge("ssntp_cluster_engine_away_seconds", "For how long the engine has not answered; 0 if it does.",
        |view| one(view.away.as_ref().map_or(0, |(since, _)| now().saturating_duration_since(*since).as_secs()))),
];

/// A membership for the pages, which do not keep it.
pub(crate) fn weak(membership: Option<&Arc<Membership>>) -> Weak<Membership> {
    membership.map(Arc::downgrade).unwrap_or_default()
}
