//! The members, the leader and the engine of the cluster that a daemon has joined, on its pages.

use std::sync::Weak;
use std::time::Duration;

use serde_json::json;
use ssntp_admin::{Metric, Snapshot, gauge, one};
use ssntp_engine::{Membership, View};
use ssntp_transport::now;

/// The time without an answer of the engine after which the daemon counts as degraded.
const AWAY: Duration = Duration::from_secs(3);

/// Adds the state of the cluster to the pages, if the daemon has joined a cluster.
pub(super) fn show(snapshot: &mut Snapshot, membership: &Weak<Membership>) {
    let Some(membership) = membership.upgrade() else {
        return;
    };
    let (view, now) = (membership.view(), now());
    snapshot.metrics.add(CLUSTER, &view);
    let leader = view.leader;
    let age = |since| now.saturating_duration_since(since);
    let away = view.away.as_ref().map(|(since, why)| (age(*since), why));
    let silence = away.map(|(time, why)| format!("for {} s: {why}", time.as_secs()));
    let cluster = json!({
        "members": view.members,
        "leader": leader.map(|leader| json!({ "uuid": leader.uuid, "token": leader.token })),
        "leads": view.acts(now).is_some(),
        "lease_age_ms": view.kept.map(|kept| age(kept).as_millis()),
        "engine": silence.as_deref().unwrap_or("answers"),
    });
    snapshot.show("cluster", cluster);
    let is_long = away.is_some_and(|(time, _)| time >= AWAY);
    snapshot.degraded.extend(silence.filter(|_| is_long));
    snapshot.degraded.extend(view.double.iter().map(|other| {
        let at = other.addresses.join(", ");
        format!("another process runs under this UUID, at {at}")
    }));
}

#[rustfmt::skip] // A table: one row a metric.
const CLUSTER: &[Metric<View>] = &[
    gauge("ssntp_cluster_members", "Members of the cluster, including this daemon.", |view| one(view.members.len())),
    gauge("ssntp_cluster_leads", "1 if this daemon leads, else 0.", |view| one(view.acts(now()).is_some())),
    gauge("ssntp_cluster_token", "The token of the known leader; 0 if there is none.",
        |view| one(view.leader.map_or(0, |leader| leader.token))),
    gauge("ssntp_cluster_engine_away_seconds", "Time since the engine answered last; 0 while it answers.",
        |view| one(view.away.as_ref().map_or(0, |(since, _)| now().saturating_duration_since(*since).as_secs()))),
];
