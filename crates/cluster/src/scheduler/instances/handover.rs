//! What passes from one scheduler to the next: the nodes of the instances, and the STARTs that
//! are not answered.
//!
//! ```text
//!  file of the ledger ─▶ adopt ─▶ Instances ─▶ keep ─▶ file
//!  told by the leader ─▶ adopt ─▶ Instances ─▶ tell ─▶ all other schedulers
//! ```

use std::time::Instant;

use uuid::Uuid;

use super::{Instances, PendingStart, State};
use crate::phase::Phase;
use crate::scheduler::ledger::Ledger;
use crate::scheduler::placement::Allocation;
use crate::scheduler::told::{Fate, Intent};

/// The most instances that a new leader is told of: at some 35 bytes each they fit into what may
/// wait for a link. The instances of nodes that are connected are in their STATS as well.
pub(in crate::scheduler) const MOST_TOLD: usize = 1 << 17;

impl Instances {
    /// Takes over what a former scheduler knew. Nodes that are not there are away, and have the
    /// usual time to come back. What became of their STARTs is told by their first STATS.
    pub(in crate::scheduler) fn adopt(
        &mut self,
        intents: impl IntoIterator<Item = Intent>,
        is_there: impl Fn(Uuid) -> bool,
        now: Instant,
    ) {
        for intent in intents {
            let (instance, Some(node)) = (intent.instance, intent.node) else {
                continue;
            };
            let state = match intent.fate {
                // `Pending`, because its START may not be answered yet: a StartFailure is then
                // believed.
                Fate::Answered => State::Known(Phase::Pending),
                Fate::GivenUp => State::GivenUp,
                // Its node gets the whole time anew: when it last gave a sign is not known.
                Fate::Given { restart, .. } => {
                    let deadline = now + self.limits.quiet;
                    self.due.insert((deadline, instance));
                    State::Starting(PendingStart {
                        allocation: Allocation::earlier(node),
                        restart,
                        received: now,
                        // Its text is not known, so it is sent to no other node.
                        nodes: u8::MAX,
                        given: now,
                        deadline,
                        expected: false,
                    })
                }
            };
            self.own(instance, node, state);
        }
        let absent: Vec<_> = self
            .by_node
            .keys()
            .copied()
            .filter(|node| !is_there(*node))
            .collect();
        absent.into_iter().for_each(|node| self.left(node, now));
    }

    /// From now on changes are written to the file.
    pub(in crate::scheduler) fn keep_in(&mut self, ledger: Ledger) {
        self.ledger = Some(ledger);
    }

    /// From now on other schedulers are told of changes, see [`take_untold`](Self::take_untold).
    pub(in crate::scheduler) fn tell_others(&mut self) {
        self.untold = Some(Vec::new());
    }

    /// What has changed since the last call.
    pub(in crate::scheduler) fn take_untold(&mut self) -> Vec<Intent> {
        self.untold.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// All that the next scheduler has to know. `command_id` gives that of a START.
    pub(in crate::scheduler) fn intents(&self, command_id: impl Fn(Uuid) -> String) -> Vec<Intent> {
        let known = self.by_uuid.iter().filter_map(|(instance, entry)| {
            let (instance, node) = (*instance, Some(entry.node?));
            let fate = match entry.state {
                State::Held | State::Known(_) => Fate::Answered,
                State::GivenUp => Fate::GivenUp,
                State::Starting(pending) => Fate::Given {
                    restart: pending.restart,
                    command_id: command_id(instance),
                },
            };
            Some(Intent { instance, node, fate })
        });
        known.take(MOST_TOLD).collect()
    }

    pub(super) fn tell(&mut self, instance: Uuid, node: Option<Uuid>, fate: Fate) {
        if let Some(untold) = &mut self.untold {
            untold.push(Intent { instance, node, fate });
        }
    }
}
