//! `apply --wait`: blocks until the workloads of a file are rolled out, or cannot be.

use std::time::Duration;

use serde_json::{Value, json};
use ssntp_controller::encode;
use ssntp_daemon::{Failure, even_unread, note, print_either, printable};
use ssntp_transport::{NEVER, now};

use super::Invocation;
use super::api::{Api, text};

/// The pause between two questions to the controller.
const PACE: Duration = Duration::from_millis(500);
/// The time without an answer of the controller after which the outcome is unknown. One that its service manager
/// starts again takes some seconds.
const LOST: Duration = Duration::from_secs(60);
/// The exit code if a roll-out has gone back or has failed, as that of `wait` for an instance that has.
const FAILED: u8 = 3;
/// The exit code if the controller did not answer at the end, so that the outcome is unknown.
const UNKNOWN: u8 = 4;

/// A workload whose roll-out is not over, as far as is known.
struct Pending {
    name: String,
    version: Value,
    /// Its last progress, as it was printed.
    said: String,
}

/// Waits for the roll-outs of workloads that `apply` has answered. Prints their progress, and how each ends.
///
/// # Errors
/// The exit code, if not all of them are rolled out; a workload was removed meanwhile; a signal.
pub(super) fn wait(api: &Api<'_>, cx: &Invocation, applied: &[Value]) -> Result<(), Failure> {
    let pending = applied.iter().map(|one| Pending {
        name: text(&one["name"]),
        version: one["version"].clone(),
        said: String::new(),
    });
    let (mut pending, mut has_failed, mut lost): (Vec<_>, _, _) = (pending.collect(), false, None);
    let report = |name: &str, result: &str, text: &str| {
        let line = format!("workload {name} {text}");
        let value = json!({"subject": name, "result": result, "text": line});
        even_unread(print_either(cx.options.json, value, printable(&line)))
    };
    let mut heard = now();
    cx.stop.poll(PACE, cx.options.limit_or(NEVER), || {
        let mut waiting = Vec::new();
        let mut all = std::mem::take(&mut pending).into_iter();
        while let Some(mut one) = all.next() {
            let workload = match api.try_present(&format!("workloads/{}", encode(&one.name)))? {
                Ok(workload) => workload,
                Err(why) => {
                    if lost.is_none() {
                        note(format_args!("ssntp: {why}; it is asked again"));
                    }
                    lost = Some(why);
                    waiting.push(one);
                    waiting.extend(all);
                    break;
                }
            };
            (lost, heard) = (None, now());
            match outcome(&workload, &one.version) {
                Some(Ok(())) => report(&one.name, "done", "is rolled out")?,
                Some(Err(why)) => {
                    has_failed = true;
                    report(&one.name, "failed", &why)?;
                }
                None => {
                    let said = progress(&workload);
                    if one.said != said {
                        report(&one.name, "waiting", &said)?;
                        one.said = said;
                    }
                    waiting.push(one);
                }
            }
        }
        pending = waiting;
        let is_over = pending.is_empty() || now().saturating_duration_since(heard) > LOST;
        Ok(is_over.then_some(()))
    })?;
    for one in &pending {
        match &lost {
            Some(why) => report(&one.name, "unknown", &format!("has an unknown outcome: {why}"))?,
            None => report(
                &one.name,
                "timed_out",
                &format!("is not rolled out in time: {}", one.said),
            )?,
        }
    }
    match (has_failed, lost, pending.is_empty()) {
        (true, ..) => Err(Failure::Silent(FAILED)),
        (_, Some(_), false) => Err(Failure::Silent(UNKNOWN)),
        (.., false) => Err(Failure::Silent(1)),
        (.., true) => Ok(()),
    }
}

/// How the roll-out of a version has ended; `None` while it has not.
fn outcome(workload: &Value, version: &Value) -> Option<Result<(), String>> {
    let (rollout, status, spec) = (&workload["rollout"], &workload["status"], &workload["spec"]);
    let number = |value: &Value| value.as_u64().unwrap_or(0);
    let (present, why) = (&workload["version"], text(&rollout["why"]));
    if workload["deleting"] == json!(true) {
        return Some(Err("is being deleted".into()));
    }
    if present != version {
        // The reason begins with the version that was left.
        return Some(Err(if why.starts_with(&format!("version {version}:")) {
            format!("has gone back to version {present}: {why}")
        } else {
            format!("has version {present} by now: version {version} was replaced by another order")
        }));
    }
    let failures = number(&rollout["failures"]);
    if workload["stable"].is_null() && failures > 0 && failures >= number(&spec["update"]["max_failures"]) {
        let why =
            format!("fails, and has no earlier version: {failures} instances failed, the last one: {why}");
        return Some(Err(why));
    }
    // The status is older than the spec until the controller has taken its next step.
    let is_current = status["wanted"] == spec["count"];
    let active = number(&status["healthy"]) + number(&status["done"]);
    let is_done = rollout["state"] == "steady" && is_current && active >= number(&spec["count"]);
    is_done.then_some(Ok(()))
}

fn progress(workload: &Value) -> String {
    let status = &workload["status"];
    // Before the controller's first step, a new workload has no status.
    let [healthy, done, outdated] =
        ["healthy", "done", "outdated"].map(|key| status[key].as_u64().unwrap_or(0));
    let (version, count, state) = (&workload["version"], &workload["spec"]["count"], state(workload));
    let mut line = format!("is {state} at version {version}: {healthy} of {count} healthy");
    for (number, what) in [(done, "done"), (outdated, "of other versions")] {
        if number > 0 {
            line += &format!(", {number} {what}");
        }
    }
    match text(&status["problem"]).as_str() {
        "" => line,
        problem => format!("{line}; {problem}"),
    }
}

/// The state of a roll-out, in a word.
pub(super) fn state(workload: &Value) -> String {
    if workload["deleting"] == json!(true) {
        "deleting".into()
    } else {
        text(&workload["rollout"]["state"])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A workload in the middle of its second version, with these changes.
    fn after(change: impl FnOnce(&mut Value)) -> Option<Result<(), String>> {
        let mut workload = json!({
            "version": 2, "stable": 1, "rollout": {"state": "rolling", "failures": 0, "why": ""},
            "spec": {"count": 3, "update": {"max_failures": 3}},
            "status": {"wanted": 3, "healthy": 2, "done": 0},
        });
        change(&mut workload);
        outcome(&workload, &json!(2))
    }

    fn all(workload: &mut Value) {
        workload["rollout"]["state"] = "steady".into();
        workload["status"]["healthy"] = 3.into();
    }

    #[test]
    fn a_roll_out_is_done_once_all_instances_of_its_spec_are_healthy() {
        assert_eq!(after(|_| {}), None);
        assert_eq!(after(all), Some(Ok(())));
        let done = |workload: &mut Value| {
            all(workload);
            workload["status"] = json!({"wanted": 3, "healthy": 1, "done": 2});
        };
        assert_eq!(after(done), Some(Ok(())));
        // The status is that of the spec before.
        let grown = |workload: &mut Value| {
            all(workload);
            workload["spec"]["count"] = 5.into();
            workload["status"]["healthy"] = 5.into();
        };
        assert_eq!(after(grown), None);
        let steady = |workload: &mut Value| workload["rollout"]["state"] = "steady".into();
        assert_eq!(after(steady), None, "an instance is not healthy");
        let paused = |workload: &mut Value| {
            all(workload);
            workload["rollout"]["state"] = "paused".into();
        };
        assert_eq!(after(paused), None);
    }

    #[test]
    fn the_progress_of_a_workload_that_is_new_has_no_gaps() {
        let new = json!({"version": 1, "rollout": {"state": "rolling"}, "spec": {"count": 2}});
        assert_eq!(progress(&new), "is rolling at version 1: 0 of 2 healthy");
    }

    #[test]
    fn a_roll_out_that_can_not_be_done_any_more_says_why() {
        let why = |change: &dyn Fn(&mut Value)| after(change).unwrap().unwrap_err();
        let back = |workload: &mut Value| {
            workload["version"] = 1.into();
            workload["rollout"] =
                json!({"state": "back", "failures": 0, "why": "version 2: 3 instances failed"});
        };
        assert_eq!(
            why(&back),
            "has gone back to version 1: version 2: 3 instances failed"
        );
        // It stays so once the former version runs.
        assert!(
            why(&|workload| {
                back(workload);
                all(workload);
            })
            .starts_with("has gone back")
        );
        assert!(why(&|workload| workload["version"] = 3.into()).contains("another order"));
        assert_eq!(
            why(&|workload| workload["deleting"] = true.into()),
            "is being deleted"
        );
        let first = |workload: &mut Value| {
            workload["stable"] = Value::Null;
            workload["rollout"] = json!({"state": "rolling", "failures": 3, "why": "exited 1"});
        };
        assert!(why(&first).ends_with("3 instances failed, the last one: exited 1"));
        assert_eq!(
            after(|workload| workload["rollout"]["failures"] = 3.into()),
            None,
            "it goes back"
        );
    }
}
