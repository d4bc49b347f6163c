//! Notes of the main thread for the pages: reloads, and how long certificates are valid.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};
use ssntp_admin::{Labels, Metric, Samples, Snapshot, by, counter, gauge, one};

use crate::clock::{since_1970, wall_clock};
use crate::credentials::Lifetime;

/// Notes for the pages. A clone shares them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Notes(Arc<Mutex<Noted>>);

#[derive(Debug, Default)]
struct Noted {
    /// Reloads that succeeded, and that failed.
    reloads: [u64; 2],
    /// When the last reload was, and why it failed if it did.
    last: Option<(SystemTime, Option<String>)>,
    /// In the order of their ends.
    lifetimes: Vec<Lifetime>,
}

#[rustfmt::skip] // A table: one row a metric.
const NOTED: &[Metric<Noted>] = &[
    counter("ssntp_reloads_total", "How often files were read again, by outcome.",
        |noted| by("outcome", ["success", "failure"].into_iter().zip(noted.reloads))),
    gauge("ssntp_last_reload_timestamp_seconds", "When files were last read again, in seconds since 1970.",
        |noted| noted.last.iter().flat_map(|(at, _)| one(seconds(*at))).collect()),
    gauge("ssntp_last_reload_success", "Whether the last reading worked: 1 or 0.",
        |noted| noted.last.iter().flat_map(|(_, failure)| one(failure.is_none())).collect()),
    gauge("ssntp_certificate_expiry_timestamp_seconds",
        "When a certificate, an authority or a revocation list ends, in seconds since 1970.", expiries),
];

impl Notes {
    /// A reload has succeeded, or failed with this reason.
    pub(crate) fn reloaded(&self, failure: Option<String>) {
        let mut noted = self.lock();
        noted.reloads[usize::from(failure.is_some())] += 1;
        noted.last = Some((wall_clock(), failure));
    }

    /// How long the certificates that are in force now are valid.
    pub(crate) fn lifetimes(&self, mut lifetimes: Vec<Lifetime>) {
        // An old authority and its successor may have the same name. Of series with the
        // same labels the first is shown: the one that ends first.
        lifetimes.sort_by_key(|lifetime| lifetime.end);
        self.lock().lifetimes = lifetimes;
    }

    pub(super) fn add_to(&self, snapshot: &mut Snapshot) {
        let noted = self.lock();
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
                let problem = format!("{file}: the {} of {of} has expired", what.name());
                snapshot.degraded.push(problem);
            }
            #[expect(clippy::cast_possible_truncation, reason = "some thousand days")]
            let days = left.floor() as i64;
            json!({ "what": what.name(), "of": of, "file": file, "days_left": days })
        });
        let certificates: Vec<Value> = certificates.collect();
        snapshot.show("certificates", certificates);
    }

    fn lock(&self) -> MutexGuard<'_, Noted> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn expiries(noted: &Noted) -> Samples {
    let sample = |lifetime: &Lifetime| {
        let labels = Labels::from([
            ("what", lifetime.what.name().to_owned()),
            ("of", lifetime.of.clone()),
        ]);
        (labels, seconds(lifetime.end).into())
    };
    noted.lifetimes.iter().map(sample).collect()
}

/// Whole seconds since 1970.
fn seconds(time: SystemTime) -> Duration {
    Duration::from_secs(since_1970(time).as_secs())
}
