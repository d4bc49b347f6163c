//! Converts the cluster's view for the reconciler, and its changes to events of the history.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use uuid::Uuid;

use crate::model::{Event, Figures, SLOT_LABEL, TEMPLATE_LABEL, WORKLOAD_LABEL, Write, ending_text, short};
use crate::reconcile::{Labels, Seen, SeenEnd, SeenInstance};
use crate::store::MAX_TEXT;
use ssntp_payload::{FrameTrace, InstanceState, NodeStatus};
use ssntp_transport::excerpt;
use ssntp_view::{Change, Failure, Instance, Node, View};

/// The present view. `is_complete` is true if the scheduler has reported all that it knew when the
/// session began.
pub(super) fn seen(view: &View, session: u64, is_complete: bool) -> Seen {
    Seen {
        session,
        told: is_complete && view.is_online(),
        nodes: reporting(view).map(|node| node.uuid).collect(),
        in_maintenance: reporting(view)
            .filter(|node| node.status == NodeStatus::Maintenance)
            .map(|node| node.uuid)
            .collect(),
        instances: view.instances().map(|one| (one.uuid, instance(one))).collect(),
    }
}

/// The nodes that are connected and have sent STATS.
fn reporting(view: &View) -> impl Iterator<Item = &Node> {
    view.nodes()
        .filter(|node| node.is_current() && node.has_reported())
}

fn instance(seen: &Instance) -> SeenInstance {
    let ending = seen.ending();
    let ended = (!seen.is_alive()).then(|| SeenEnd {
        is_success: ending.as_ref().is_some_and(|ending| ending.is_success()),
        how: ending.map_or_else(|| seen.state.to_string(), |ending| ending_text(&ending)),
    });
    SeenInstance {
        node: seen.node,
        is_pending: seen.state == InstanceState::Pending,
        ended,
        is_restart_due: seen.stats.restart_due,
        health: seen.stats.health.clone(),
        health_detail: excerpt(&seen.stats.health_detail).to_string(),
        labels: labels(&seen.stats.labels),
    }
}

fn labels(labels: &BTreeMap<String, String>) -> Option<Labels> {
    Some(Labels {
        workload: labels.get(WORKLOAD_LABEL)?.clone(),
        // Agents report labels that anyone with a START may have set, so with a bad number these are not the labels of a workload.
        slot: labels.get(SLOT_LABEL)?.parse().ok()?,
        digest: labels.get(TEMPLATE_LABEL)?.clone(),
    })
}

/// The event of a change, if it belongs into the history. `is_known` is true for instances of
/// workloads: the reconciler writes their events itself.
pub(super) fn event(change: &Change, is_complete: bool, is_known: impl Fn(&Uuid) -> bool) -> Option<Event> {
    let none = (None, None);
    let (kind, (instance, node)) = match change {
        Change::Online { .. } | Change::Offline { .. } | Change::Ended { .. } | Change::Missed { .. } => {
            ("session", none)
        }
        Change::Traced(trace) => {
            return Some(Event {
                kind: "trace",
                text: trace_text(trace)?,
                ..Event::default()
            });
        }
        Change::Failed(Failure { subject: of, .. }) => {
            ("failed", (of.instance_uuid.uuid(), of.node_uuid.uuid()))
        }
        // When a session begins, the scheduler reports all nodes and instances again.
        _ if !is_complete => return None,
        Change::NodeConnected { node, .. }
        | Change::NodeDisconnected { node, .. }
        | Change::NodeStatus { node, .. } => ("node", (None, Some(*node))),
        Change::InstanceAdded { instance, node, .. } => ("running", (Some(*instance), Some(*node))),
        Change::InstanceState { instance, node, .. } => ("state", (Some(*instance), Some(*node))),
        Change::InstanceGone { instance, node } => ("gone", (Some(*instance), Some(*node))),
        Change::InstanceStopped { instance, node, .. } => ("ended", (Some(*instance), *node)),
        Change::InstanceDeleted { instance, node, .. } => ("gone", (Some(*instance), *node)),
        Change::CnciAdded { cnci } | Change::CnciGone { cnci } => ("tenant", (Some(*cnci), None)),
        _ => return None,
    };
    let is_own = instance.is_some_and(|instance| is_known(&instance));
    (!is_own).then(|| Event {
        kind,
        instance,
        node,
        text: change.to_string(),
        ..Event::default()
    })
}

/// The names of instances, also of those that have left the view.
#[derive(Debug, Default)]
pub(super) struct Names(BTreeMap<Uuid, String>);

impl Names {
    /// Learns the names of the instances of these changes, while the view has them.
    pub(super) fn learn(&mut self, view: &View, changes: &[Change]) {
        for change in changes {
            if let Change::InstanceAdded { instance, .. } | Change::InstanceState { instance, .. } = change
                && let Some(name) = view.called(*instance)
            {
                self.0.insert(*instance, name);
            }
        }
    }

    /// Forgets the instances that are gone by these changes, or by changes that were missed.
    pub(super) fn forget(&mut self, view: &View, changes: &[Change]) {
        for change in changes {
            match change {
                Change::InstanceGone { instance, .. } | Change::InstanceDeleted { instance, .. } => {
                    self.0.remove(instance);
                }
                Change::Missed { .. } => self.0.retain(|instance, _| view.instance(*instance).is_some()),
                _ => {}
            }
        }
    }

    /// Puts the names of a row's instance and node into its sentence. The row has their UUIDs beside it. Other
    /// UUIDs may be output of a program, which is not changed.
    pub(super) fn put(&self, view: &View, row: &mut Write) {
        let Write::Event(event) = row else { return };
        for uuid in [event.instance, event.node].into_iter().flatten() {
            let whole = uuid.to_string();
            if event.text.contains(&whole) {
                let name = view.called(uuid).or_else(|| self.0.get(&uuid).cloned());
                event.text = event.text.replace(&whole, &name.unwrap_or_else(|| short(uuid)));
            }
        }
    }
}

/// The maximum number of rows of one kind about one node in a minute: more than an agent has instances.
/// Without it, an agent whose instances change all the time would replace the history within minutes.
const MOST_ROWS: usize = 5_000;
const MINUTE: Duration = Duration::from_secs(60);

/// The rows of the present minute, by kind and node.
#[derive(Debug, Default)]
pub(super) struct RowLimit {
    since: Duration,
    counts: BTreeMap<(&'static str, Option<Uuid>), usize>,
}

impl RowLimit {
    /// Adds an event to `notes`, unless there were too many of its kind and node in this minute. The
    /// number of those that are left out is noted with the first event of a later minute.
    pub(super) fn add(&mut self, event: Event, elapsed: Duration, notes: &mut Vec<Write>) {
        if elapsed.saturating_sub(self.since) >= MINUTE {
            self.since = elapsed;
            let counts = std::mem::take(&mut self.counts).into_iter();
            notes.extend(
                counts
                    .filter(|(_, count)| *count > MOST_ROWS)
                    .map(|((kind, node), count)| {
                        Write::Event(Event {
                            kind: if node.is_some() { "node" } else { "session" },
                            node,
                            text: format!("{} rows of the kind {kind} are left out", count - MOST_ROWS),
                            ..Event::default()
                        })
                    }),
            );
        }
        let count = self.counts.entry((event.kind, event.node)).or_default();
        *count += 1;
        if *count <= MOST_ROWS {
            notes.push(Write::Event(event));
        }
    }
}

/// A trace as JSON that fits into a row. The last hops of a longer one are left out, because JSON that is
/// cut cannot be read. Without hops it fits, because the view bounds the length of its texts.
fn trace_text(trace: &FrameTrace) -> Option<String> {
    let mut trace = trace.clone();
    loop {
        let text = serde_json::to_string(&trace).ok()?;
        if text.len() <= MAX_TEXT {
            return Some(text);
        }
        trace.nodes.pop()?;
    }
}

pub(super) fn connected(view: &View) -> BTreeSet<Uuid> {
    view.nodes()
        .filter(|node| node.connected)
        .map(|node| node.uuid)
        .collect()
}

/// The events of nodes that came and left while no changes were reported: between two sessions,
/// and while the view of a new session was incomplete.
pub(super) fn moved(before: &BTreeSet<Uuid>, after: &BTreeSet<Uuid>) -> Vec<Write> {
    let event = |(node, what): (&Uuid, &str)| {
        Write::Event(Event {
            kind: "node",
            node: Some(*node),
            text: format!("node {node} {what}"),
            ..Event::default()
        })
    };
    let left = before.difference(after);
    let left = left.map(|node| (node, "did not come back with the new session"));
    let came = after.difference(before);
    let came = came.map(|node| (node, "came with the new session"));
    left.chain(came).map(event).collect()
}

/// The figures of each node that reports.
pub(super) fn figures(view: &View, at: i64) -> Vec<Write> {
    let figures = reporting(view).map(|node| {
        Write::Figures(Figures {
            node: node.uuid,
            at,
            mem_available_mb: node.stats.mem_available_mb,
            mem_total_mb: node.stats.mem_total_mb,
            disk_available_mb: node.stats.disk_available_mb,
            disk_total_mb: node.stats.disk_total_mb,
            load: node.stats.load,
            instances: i64::try_from(node.instances.len()).unwrap_or(-1),
        })
    });
    figures.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use ssntp::payload::Id;
    use ssntp_payload::{NodeTrace, timestamp};

    #[test]
    fn rows_about_one_node_are_bounded_in_each_minute() {
        let event = |node: u128| Event {
            kind: "state",
            node: Some(Uuid::from_u128(node)),
            ..Event::default()
        };
        let (mut rows, mut notes) = (RowLimit::default(), Vec::new());
        for _ in 0..MOST_ROWS + 7 {
            rows.add(event(1), MINUTE / 2, &mut notes);
        }
        rows.add(event(2), MINUTE / 2, &mut notes);
        assert_eq!(notes.len(), MOST_ROWS + 1, "another node has rows of its own");
        notes.clear();
        rows.add(event(1), MINUTE, &mut notes);
        let [Write::Event(left_out), Write::Event(next)] = &notes[..] else {
            panic!("{notes:?}")
        };
        assert_eq!((left_out.kind, left_out.node), ("node", event(1).node));
        assert_eq!(left_out.text, "7 rows of the kind state are left out");
        assert_eq!(*next, event(1));
    }

    #[test]
    fn rows_have_names_for_the_uuids_beside_them_also_after_an_instance_is_gone() {
        let [node, instance, other] = [1, 2, 3].map(|number: u128| Uuid::from_u128(number << 96));
        let mut stats = ssntp_payload::Stats {
            node_uuid: node.into(),
            hostname: "node2".into(),
            ..ssntp_payload::Stats::default()
        };
        stats.instances.push(ssntp_payload::InstanceStats {
            instance_uuid: instance.into(),
            name: "job".into(),
            state: InstanceState::Active,
            ..ssntp_payload::InstanceStats::default()
        });
        let (mut view, mut names) = (View::default(), Names::default());
        let mut told = |view: &mut View, stats: &ssntp_payload::Stats| {
            let changes = view.apply(&ssntp::proto::Frame::of(stats), std::time::SystemTime::UNIX_EPOCH);
            names.learn(view, &changes);
            let events = changes.iter().filter_map(|change| event(change, true, |_| false));
            let mut rows: Vec<_> = events.map(Write::Event).collect();
            rows.iter_mut().for_each(|row| names.put(view, row));
            names.forget(view, &changes);
            let texts = rows.into_iter().filter_map(|row| match row {
                Write::Event(event) => Some(event.text),
                _ => None,
            });
            texts.collect::<Vec<_>>()
        };
        let ran = told(&mut view, &stats);
        let text = "instance job (00000002) is active on node node2 (00000001)";
        assert!(ran.iter().any(|row| row == text), "{ran:?}");
        stats.instances.clear();
        let gone = ["instance job (00000002) is no longer on node node2 (00000001)"];
        assert_eq!(told(&mut view, &stats), gone);
        // An instance without a name has the beginning of its UUID, and what a program wrote stays.
        let mut row = Write::Event(Event {
            instance: Some(other),
            text: format!("{other} wrote: {instance}"),
            ..Event::default()
        });
        names.put(&view, &mut row);
        assert!(matches!(row, Write::Event(event) if event.text == format!("00000003 wrote: {instance}")));
    }

    #[test]
    fn the_names_of_instances_that_went_while_changes_were_missed_are_forgotten() {
        let mut names = Names([(Uuid::nil(), "job".to_owned())].into());
        names.forget(&View::default(), &[Change::Missed { count: 1 }]);
        assert!(names.0.is_empty());
    }

    #[test]
    fn a_trace_that_is_too_long_for_a_row_can_still_be_read() {
        let time = timestamp::format(1_790_000_000_123_456_789);
        let hop = NodeTrace {
            ssntp_node_uuid: Id::from(Uuid::max()),
            ssntp_role: "NetworkingAgent".into(),
            tx_timestamp: time.clone(),
            rx_timestamp: time,
        };
        // The longest label of the view, in which each byte needs six bytes of JSON, and its most hops.
        let longest = "\0".repeat(255);
        let traces = [
            ("START web-1".to_owned(), 16, 16),
            (longest, 16, 13),
            (String::new(), 3, 3),
        ];
        for (label, hops, kept) in traces {
            let nodes = vec![hop.clone(); hops];
            let trace = FrameTrace {
                label,
                nodes,
                ..FrameTrace::default()
            };
            let event = event(&Change::Traced(trace.clone()), true, |_| false).unwrap();
            assert!(event.text.len() <= MAX_TEXT, "{}", event.text.len());
            let read: FrameTrace = serde_json::from_str(&event.text).unwrap();
            assert_eq!(read.nodes, trace.nodes[..kept]);
            assert_eq!(read.label, trace.label);
        }
    }
}
