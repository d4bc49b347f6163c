//! `ssntp ctl wait`: blocks until instances run, or have ended.

use std::time::Duration;

use clap::ValueEnum;
use serde_json::json;
use ssntp_daemon::{Failure, even_unread, print_either, printable};
use ssntp_payload::InstanceState;
use ssntp_transport::{NEVER, wall_clock};
use ssntp_view::{Ending, View};
use uuid::Uuid;

use super::session::{POLL, Progress};
use super::{Invocation, Session, json};

/// The exit code if a workload has failed.
const WORKLOAD_FAILED: u8 = 3;
/// The exit code may be reported up to this time after the end of an instance. From then on, an ending
/// without an exit code counts as final.
const EXIT_CODE_DELAY: Duration = Duration::from_secs(2);

/// Wait until instances run, or have ended
///
/// Without --timeout, the wait has no limit. An instance that its node is about to start again has not
/// ended. Exit codes: 0 if every instance
/// runs (--for running) or has ended with exit code 0 (--for ended); 1 if the time limit
/// passed first, or an instance no longer exists or is missing on its node; 3 if an instance has failed: it ended
/// before it was seen to run (--for running), or it ended with another exit code, by a
/// signal or out of memory (--for ended).
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The instances, each by its UUID, the beginning of it, or its name
    #[arg(required = true, value_name = "INSTANCE")]
    instances: Vec<String>,
    /// The state to wait for
    #[arg(long = "for", value_enum, default_value_t = What::Ended)]
    what: What,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum What {
    /// The instance runs
    Running,
    /// The instance has ended
    Ended,
}

/// The result of the wait for an instance.
#[derive(Debug)]
enum Outcome {
    Running {
        node: Uuid,
    },
    Ended(Ending),
    /// Its node has lost what it needs to know whether it runs.
    Missing,
    Gone,
}

pub(super) fn run(cx: &Invocation, args: &Args) -> Result<(), Failure> {
    let session = Session::open_complete(cx)?;
    let mut pending = session.find_instances(&args.instances)?;
    let mut progress = Progress::new();
    let (mut failed, mut gone) = (false, false);
    let finished = cx.stop.poll(Duration::ZERO, cx.options.limit_or(NEVER), || {
        let finished = |view: &View| {
            let found = |uuid: &Uuid| Some((*uuid, outcome(view, *uuid, args.what)?));
            let found: Vec<_> = pending.iter().filter_map(found).collect();
            (!found.is_empty()).then_some(found)
        };
        // In short steps, because a signal does not interrupt `wait`.
        for (uuid, outcome) in session.controller.wait(POLL, finished).unwrap_or_default() {
            pending.retain(|other| *other != uuid);
            report(uuid, &outcome, cx.options.json)?;
            match (&outcome, args.what) {
                (Outcome::Gone | Outcome::Missing, _) => gone = true,
                (Outcome::Ended(_), What::Running) => failed = true,
                (Outcome::Ended(ending), What::Ended) => failed |= !ending.is_success(),
                (Outcome::Running { .. }, _) => {}
            }
        }
        if pending.is_empty() {
            return Ok(Some(()));
        }
        progress.note(|| match pending.as_slice() {
            [one] => session.controller.look(|view| state(view, *one)),
            several => format!("for {} instances", several.len()),
        });
        match session.controller.client().ended() {
            Some(reason) => Err(Failure::new(reason)),
            None => Ok(None),
        }
    })?;
    if finished.is_none() {
        return Err(timed_out(&session, &pending, args.what));
    }
    match (gone, failed) {
        // 1 has priority over 3, because the result of an instance that no longer exists is unknown.
        (true, _) => Err(Failure::Silent(1)),
        (false, true) => Err(Failure::Silent(WORKLOAD_FAILED)),
        (false, false) => Ok(()),
    }
}

fn outcome(view: &View, uuid: Uuid, what: What) -> Option<Outcome> {
    let Some(instance) = view.instance(uuid) else {
        return Some(Outcome::Gone);
    };
    if instance.stats.restart_due {
        // Its node starts it again soon, so neither its end nor its failure is final.
        return None;
    }
    if let Some(ending) = instance.ending() {
        // `since` is the time of day at which this program first saw the state.
        let age = wall_clock().duration_since(instance.since).unwrap_or_default();
        let is_final = ending.is_known() || age > EXIT_CODE_DELAY;
        return is_final.then_some(Outcome::Ended(ending));
    }
    if instance.state == InstanceState::Missing {
        return Some(Outcome::Missing);
    }
    // Without current reports of the node, the state of the instance may be out of date.
    let current = view.node(instance.node).is_some_and(|node| node.is_current());
    let runs = what == What::Running && instance.state == InstanceState::Active && current;
    runs.then_some(Outcome::Running { node: instance.node })
}

fn report(uuid: Uuid, outcome: &Outcome, json: bool) -> Result<(), Failure> {
    let (result, text) = match outcome {
        Outcome::Running { node } => ("running", format!("instance {uuid} runs on node {node}")),
        Outcome::Ended(ending) if ending.detail.is_empty() => {
            ("ended", format!("instance {uuid} has ended: {ending}"))
        }
        Outcome::Ended(ending) => (
            "ended",
            format!("instance {uuid} has ended: {ending}: {}", ending.detail),
        ),
        Outcome::Missing => ("missing", format!("instance {uuid} is missing on its node")),
        Outcome::Gone => ("gone", format!("instance {uuid} is gone")),
    };
    let mut value = json!({"result": result, "subject": uuid, "text": text});
    match outcome {
        Outcome::Running { node } => value["node"] = json!(node),
        Outcome::Ended(ending) => value["end"] = json::end(ending),
        Outcome::Missing | Outcome::Gone => {}
    }
    even_unread(print_either(json, value, printable(&text)))
}

fn timed_out(session: &Session<'_>, pending: &[Uuid], what: What) -> Failure {
    let one = pending.first().copied().unwrap_or_default();
    let state = session.controller.look(|view| state(view, one));
    let fails = match what {
        What::Running => "does not run",
        What::Ended => "has not ended",
    };
    let others = match pending.len() {
        0 | 1 => String::new(),
        several => format!("; {} more are not done either", several - 1),
    };
    Failure::new(format!("instance {one} {fails} in time: {state}{others}"))
}

fn state(view: &View, uuid: Uuid) -> String {
    match view.instance(uuid) {
        Some(instance) => {
            let node = view.node(instance.node);
            let reports = node.is_some_and(|node| node.is_current());
            let note = if reports { "" } else { ", which does not report" };
            format!("it is {} on node {}{note}", instance.state, instance.node)
        }
        None => "it is gone".into(),
    }
}

#[cfg(test)]
mod tests {
    use ssntp::Frame;
    use ssntp_payload::{InstanceStats, Stats};

    use super::*;

    #[test]
    fn the_wait_for_an_instance_that_is_missing_on_its_node_ends() {
        let instance = Uuid::from_u128(1);
        let stats = Stats {
            node_uuid: Uuid::from_u128(2).into(),
            instances: vec![InstanceStats {
                instance_uuid: instance.into(),
                state: InstanceState::Missing,
                ..InstanceStats::default()
            }],
            ..Stats::default()
        };
        let mut view = View::default();
        view.connected(None);
        view.apply(&Frame::of(&stats), wall_clock());
        for what in [What::Running, What::Ended] {
            let found = outcome(&view, instance, what);
            assert!(matches!(found, Some(Outcome::Missing)), "{found:?}");
        }
    }

    #[test]
    fn an_instance_that_its_node_starts_again_neither_runs_nor_has_ended() {
        let instance = Uuid::from_u128(1);
        let mut view = View::default();
        view.connected(None);
        for restart_due in [true, false] {
            let stats = Stats {
                node_uuid: Uuid::from_u128(2).into(),
                instances: vec![InstanceStats {
                    instance_uuid: instance.into(),
                    state: InstanceState::Exited,
                    exit_code: 1,
                    restart_due,
                    ..InstanceStats::default()
                }],
                ..Stats::default()
            };
            view.apply(&Frame::of(&stats), wall_clock());
            for what in [What::Running, What::Ended] {
                let found = outcome(&view, instance, what);
                assert!(
                    if restart_due {
                        found.is_none()
                    } else {
                        matches!(found, Some(Outcome::Ended(_)))
                    },
                    "{found:?}"
                );
            }
        }
    }
}
