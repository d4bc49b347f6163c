//! What the pages of a daemon say of the cluster that it has joined.

use std::sync::Weak;
use std::time::Duration;

use serde_json::json;
use ssntp_admin::{Metric, Snapshot, gauge, one};
use ssntp_engine::{Membership, View};

use crate::clock::now;

/// How long the engine may be away before the daemon counts as degraded.
const AWAY: Duration = Duration::from_secs(3);

/// Adds what the pages say of the cluster, if the daemon has joined one.
pub(super) fn show(snapshot: &mut Snapshot, membership: &Weak<Membership>) {
    let Some(membership) = membership.upgrade() else {
        return;
    };
    let (view, now) = (membership.view(), now());
    snapshot.metrics.add(CLUSTER, &view);
    let leader = view.leader;
    let age = |since| now.saturating_duration_since(since);
    let away = view.away.as_ref().map(|(since, why)| (age(*since), why));
    let told = away.map(|(time, why)| format!("for {} s: {why}", time.as_secs()));
    let cluster = json!({
        "members": view.members,
        "leader": leader.map(|leader| json!({ "uuid": leader.uuid, "token": leader.token })),
        "leads": view.acts(now).is_some(),
        "lease_age_ms": view.kept.map(|kept| age(kept).as_millis()),
        "engine": told.as_deref().unwrap_or("answers"),
    });
    snapshot.show("cluster", cluster);
    let is_long = away.is_some_and(|(time, _)| time >= AWAY);
    snapshot.degraded.extend(told.filter(|_| is_long));
    snapshot.degraded.extend(view.double.iter().map(|other| {
        let at = other.addresses.join(", ");
        format!("another process runs under this UUID, at {at}")
    }));
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
