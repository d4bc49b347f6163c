//! `ssntp ctl evacuate`: drains the node first, so that controllers move the instances of their workloads;
//! with `--move`, reports for each other instance that it runs on another node, or why it does not.

use std::collections::BTreeSet;

use crossbeam_channel::Receiver;
use serde_json::json;
use ssntp::proto::Command;
use ssntp_daemon::{Failure, ended, even_unread, print_either, printable};
use ssntp_payload::{Evacuate, InstanceState, NodeStatus};
use ssntp_view::{Change, Node, View};
use uuid::Uuid;

use super::Session;
use super::session::{POLL, Progress};

/// The label by which a controller's daemon knows the instances of its workloads.
pub(super) const WORKLOAD: &str = "ssntp.workload";

/// Puts a node into maintenance, and blocks until no instance of a workload runs there, because its
/// controller has moved it. The time limit begins anew with each that is moved. Does nothing if the node
/// has no such instance, or if no other node is in service.
pub(super) fn drain(session: &Session<'_>, node: Uuid) -> Result<(), Failure> {
    let look = || session.controller.look(|view| of_workloads(view, node));
    let is_open = |node: &Node| matches!(node.status, NodeStatus::Ready | NodeStatus::Full);
    let is_in_service = |other: &Node| other.connected && other.compute && is_open(other);
    let has_other = |view: &View| {
        view.nodes()
            .any(|other| other.uuid != node && is_in_service(other))
    };
    let mut left = look();
    if left.is_empty() || !session.controller.look(has_other) {
        return Ok(());
    }
    let order = session.controller.order(&Evacuate {
        workload_agent_uuid: node.into(),
        drain: true,
        ..Evacuate::default()
    })?;
    let mut progress = Progress::new();
    while !left.is_empty() {
        let moved = session.cx.stop.poll(POLL, session.limit, || {
            if let Some(Err(why)) = order.poll() {
                return Err(Failure::new(why));
            }
            progress.note(|| format!("until controllers have moved {}", left.join(", ")));
            let now = look();
            Ok((now.len() < left.len()).then_some(now))
        })?;
        left = moved.ok_or_else(|| {
            Failure::new(format!(
                "node {node} takes no START any more, but no controller has moved {}: `--no-wait` ends them as well",
                printable(&left.join(", "))
            ))
        })?;
    }
    Ok(())
}

/// The names of the instances of workloads that run on a node.
fn of_workloads(view: &View, node: Uuid) -> Vec<String> {
    let all = view.instances_of(node);
    let running = all.filter(|one| one.is_alive() && one.state != InstanceState::Hung);
    let of_workload = running.filter(|one| one.stats.labels.contains_key(WORKLOAD));
    of_workload.map(|one| one.stats.name.to_string()).collect()
}

/// The instances that were alive on the node when it was evacuated.
pub(super) struct Moves {
    node: Uuid,
    waiting: BTreeSet<Uuid>,
    changes: Receiver<Change>,
}

impl Moves {
    /// To be called before the command is sent, so that no report about an instance is missed.
    pub(super) fn begin(session: &Session<'_>, node: Uuid) -> Self {
        let changes = session.controller.subscribe();
        let waiting = session.controller.look(|view| {
            let alive = view.instances_of(node).filter(|instance| instance.is_alive());
            alive.map(|instance| instance.uuid).collect()
        });
        Self {
            node,
            waiting,
            changes,
        }
    }

    /// To be called once the node is empty. Blocks until it is known of each instance that it runs on
    /// another node, or that it does not, or until the time limit.
    pub(super) fn finish(mut self, session: &Session<'_>) -> Result<(), Failure> {
        let total = self.waiting.len();
        let mut stayed = 0;
        session.cx.stop.poll(POLL, session.limit, || {
            for change in self.changes.try_iter() {
                if let Change::Failed(failure) = change
                    && failure.command == Command::START
                    && let Some(instance) = failure.subject.instance_uuid.uuid()
                    && self.waiting.remove(&instance)
                {
                    stayed += 1;
                    let why = format!("{} ({})", failure.words(), failure.reason);
                    report(session, instance, Err(&why))?;
                }
            }
            let moved: Vec<_> = session.controller.look(|view| {
                let waiting = self.waiting.iter().filter_map(|uuid| view.instance(*uuid));
                // A short workload may have run and ended on the other node before this check.
                let has_run = |state: &_| matches!(state, InstanceState::Active | InstanceState::Exited);
                let moved = waiting.filter(|one| one.node != self.node && has_run(&one.state));
                moved.map(|one| (one.uuid, one.node)).collect()
            });
            for (instance, node) in moved {
                self.waiting.remove(&instance);
                report(session, instance, Ok(node))?;
            }
            match session.controller.client() {
                _ if self.waiting.is_empty() => Ok(Some(())),
                client if client.ended().is_some() => Err(ended(&client)),
                _ => Ok(None),
            }
        })?;
        for instance in self.waiting {
            stayed += 1;
            let why = "the scheduler has not reported that it runs on another node";
            report(session, instance, Err(why))?;
        }
        match stayed {
            0 => Ok(()),
            _ => Err(Failure::new(format!(
                "{stayed} of {total} instances were not moved"
            ))),
        }
    }
}

fn report(session: &Session<'_>, instance: Uuid, moved: Result<Uuid, &str>) -> Result<(), Failure> {
    let (key, result, text) = match moved {
        Ok(node) => ("moved_to", node.to_string(), format!("moved to node {node}")),
        Err(why) => ("not_moved", why.to_owned(), format!("not moved: {why}")),
    };
    let value = json!({"instance": instance, key: result});
    let text = printable(&format!("instance {instance} was {text}"));
    even_unread(print_either(session.json, value, text))
}
