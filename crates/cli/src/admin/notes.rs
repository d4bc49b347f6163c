//! The state that the main thread records for the admin pages: reloads, and the lifetimes of certificates.

use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};
use ssntp_admin::{Labels, Metric, Samples, Snapshot, by, counter, gauge, one};
use ssntp_daemon::Lifetime;
use ssntp_transport::{locked, since_1970, wall_clock};

/// The recorded state. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Notes(Arc<Mutex<Noted>>);

#[derive(Debug, Default)]
struct Noted {
    /// The number of reloads that succeeded, and of those that failed.
    reloads: [u64; 2],
    /// The time of the last reload, and the reason if it failed.
    last: Option<(SystemTime, Option<String>)>,
    /// Ordered by expiry, the earliest first.
    lifetimes: Vec<Lifetime>,
}

#[rustfmt::skip] // A table: one row a metric.
const NOTED: &[Metric<Noted>] = &[
    counter("ssntp_reloads_total", "Reloads of certificates and settings by outcome.",
        |noted| by("outcome", ["success", "failure"].into_iter().zip(noted.reloads))),
    gauge("ssntp_last_reload_timestamp_seconds", "The time of the last reload, in seconds since 1970.",
        |noted| noted.last.iter().flat_map(|(at, _)| one(seconds(*at))).collect()),
    gauge("ssntp_last_reload_success", "1 if the last reload succeeded, else 0.",
        |noted| noted.last.iter().flat_map(|(_, failure)| one(failure.is_none())).collect()),
    gauge("ssntp_certificate_expiry_timestamp_seconds",
        "The time at which a certificate, an authority or a revocation list expires, in seconds since 1970.", expiries),
];

impl Notes {
    /// Records a reload. `failure` is the reason if it failed.
    pub(crate) fn reloaded(&self, failure: Option<String>) {
        let mut noted = locked(&self.0);
        noted.reloads[usize::from(failure.is_some())] += 1;
        noted.last = Some((wall_clock(), failure));
    }

    /// Records the lifetimes of the certificates, authorities and revocation lists in use.
    pub(crate) fn lifetimes(&self, mut lifetimes: Vec<Lifetime>) {
        // An old authority and its successor may have the same name, and so the same labels. Only the first
        // series with given labels is shown. By this order it is the one that expires first.
        lifetimes.sort_by_key(|lifetime| lifetime.end);
        locked(&self.0).lifetimes = lifetimes;
    }

    pub(super) fn add_to(&self, snapshot: &mut Snapshot) {
        let noted = locked(&self.0);
        snapshot.metrics.add(NOTED, &*noted);
        let last = noted.last.as_ref().map(|(at, failure)| {
            let problem = failure.iter().map(|why| format!("the last reload failed: {why}"));
            snapshot.degraded.extend(problem);
            json!({ "timestamp": seconds(*at).as_secs_f64(), "failure": failure })
        });
        snapshot.show("last_reload", last);
        let now = wall_clock();
        let certificates = noted.lifetimes.iter().map(|lifetime| {
            let Lifetime { what, of, file, .. } = lifetime;
            let left = lifetime.days_left(now);
            if left <= 0.0 {
                let problem = format!("{file}: the {what} of {of} has expired");
                snapshot.degraded.push(problem);
            }
            #[expect(clippy::cast_possible_truncation, reason = "some thousand days")]
            let days = left.floor() as i64;
            json!({ "what": what, "of": of, "file": file, "days_left": days })
        });
        let certificates: Vec<Value> = certificates.collect();
        snapshot.show("certificates", certificates);
    }
}

fn expiries(noted: &Noted) -> Samples {
    let sample = |lifetime: &Lifetime| {
        let labels = Labels::from([("what", lifetime.what.to_owned()), ("of", lifetime.of.clone())]);
        (labels, seconds(lifetime.end).into())
    };
    noted.lifetimes.iter().map(sample).collect()
}

/// Whole seconds since 1970.
fn seconds(time: SystemTime) -> Duration {
    Duration::from_secs(since_1970(time).as_secs())
}
