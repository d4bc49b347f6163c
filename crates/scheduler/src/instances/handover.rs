//! The state that passes from one scheduler to the next: the node of each instance, and the STARTs
//! that are not answered.
//!
//! ```text
//!  file of the ledger ───▶ adopt ─▶ Instances ─▶ keep ───▶ file
//!  intents of the leader ▶ adopt ─▶ Instances ─▶ record ─▶ all other schedulers
//! ```

use std::time::Instant;

use uuid::Uuid;

use super::{Instances, PendingStart, State};
use crate::ledger::Ledger;
use crate::messages::{Intent, StartState};
use crate::placement::Allocation;
use ssntp_cluster::phase::Phase;

/// The maximum number of intents that are sent to another scheduler: at some 35 bytes each they fit into the
/// queue of a link. The instances of connected nodes are also in STATS.
pub(crate) const MAX_INTENTS: usize = 1 << 17;

impl Instances {
    /// Adopts the instances of a former scheduler. A node that is not connected counts as away
    /// from now on. The first STATS of each node then show the outcome of its STARTs.
    pub(crate) fn adopt(
        &mut self,
        intents: impl IntoIterator<Item = Intent>,
        is_connected: impl Fn(Uuid) -> bool,
        now: Instant,
    ) {
        for intent in intents {
            let (instance, Some(node)) = (intent.instance, intent.node) else {
                continue;
            };
            let state = match intent.state {
                // The START may be answered or not. With `Pending` a StartFailure is accepted.
                StartState::Answered => State::Known(Phase::Pending),
                StartState::GivenUp => State::GivenUp,
                // The time of the last progress is unknown, so the deadline starts again.
                StartState::InFlight { restart, .. } => {
                    self.due.set(instance, now + self.limits.quiet);
                    State::Starting(PendingStart {
                        allocation: Allocation::earlier(node),
                        restart,
                        received: now,
                        // The payload is unknown, so the START cannot be sent to another node.
                        nodes: u8::MAX,
                        sent: now,
                        expected: false,
                    })
                }
            };
            self.own(instance, node, state);
        }
        let nodes = self.by_node.keys().copied();
        let away: Vec<_> = nodes.filter(|node| !is_connected(*node)).collect();
        away.into_iter().for_each(|node| self.node_left(node, now));
    }

    /// From now on, changes are written to the ledger's file.
    pub(crate) fn keep_in(&mut self, ledger: Ledger) {
        self.ledger = Some(ledger);
    }

    /// From now on, changes are recorded for the other schedulers, see
    /// [`take_new_intents`](Self::take_new_intents).
    pub(crate) fn record_intents(&mut self) {
        self.new_intents = Some(Vec::new());
    }

    /// The intents that have changed since the last call.
    pub(crate) fn take_new_intents(&mut self) -> Vec<Intent> {
        self.new_intents.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// All intents, at most [`MAX_INTENTS`]. `command_id` returns the id of an instance's START.
    pub(crate) fn intents(&self, command_id: impl Fn(Uuid) -> String) -> Vec<Intent> {
        let known = self.by_uuid.iter().filter_map(|(instance, entry)| {
            let (instance, node) = (*instance, Some(entry.node?));
            let state = match entry.state {
                State::Held | State::Known(_) => StartState::Answered,
                State::GivenUp => StartState::GivenUp,
                State::Starting(pending) => StartState::InFlight {
                    restart: pending.restart,
                    command_id: command_id(instance),
                },
            };
            Some(Intent {
                instance,
                node,
                state,
            })
        });
        known.take(MAX_INTENTS).collect()
    }

    /// Records that an instance is gone, unless it has a node again.
    pub(crate) fn record_gone(&mut self, instance: Uuid) {
        if self.node_of(instance).is_none() {
            self.record(instance, None, StartState::Answered);
        }
    }

    pub(super) fn record(&mut self, instance: Uuid, node: Option<Uuid>, state: StartState) {
        if let Some(new_intents) = &mut self.new_intents {
            new_intents.push(Intent {
                instance,
                node,
                state,
            });
        }
    }
}
