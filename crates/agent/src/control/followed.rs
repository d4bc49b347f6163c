//! The instances whose end the reader of logs has to learn of. `agent::streams` reads the files.

use std::collections::BTreeSet;

use ssntp::proto::{OpenStream, StreamEndReason, StreamEnded};
use uuid::Uuid;

use super::events::{Action, StreamOrder};
use super::instance::Instance;
use super::instances::Instances;

/// Running instances that a stream follows, or followed before it was closed. An instance stays here
/// until its end, so there are never more than instances.
#[derive(Debug, Default)]
pub(super) struct Followed(BTreeSet<Uuid>);

impl Followed {
    /// Opens a stream of an instance's logs, or answers that there is none.
    pub(super) fn handle_open(&mut self, open: OpenStream, instances: &Instances, node: Uuid) -> Action {
        let Some(instance) = instances.get(open.instance) else {
            let text = format!("node {node} does not have it");
            let ended = StreamEnded::new(open.stream, StreamEndReason::NO_INSTANCE, text);
            return Action::Send(ended.frame());
        };
        let runs = instance.is_running();
        // The reader has to learn of the end of an instance only if the stream follows it and the
        // instance runs. All other streams end with the output that is there.
        if runs && open.follow {
            self.0.insert(open.instance);
        }
        let place = instance.place.clone();
        Action::Stream(StreamOrder::Open { open, place, runs })
    }

    /// The orders that report the end of followed instances.
    pub(super) fn handle_ends(&mut self, instances: &Instances) -> Vec<Action> {
        let mut ended = Vec::new();
        self.0.retain(|id| {
            let runs = instances.get(*id).is_some_and(Instance::is_running);
            if !runs {
                ended.push(Action::Stream(StreamOrder::Ended(*id)));
            }
            runs
        });
        ended
    }
}
