//! The STARTs that were answered with a failure. They are remembered because agents repeat failures.

use std::collections::VecDeque;

use uuid::Uuid;

use super::StartFailed;

/// The maximum number of answered STARTs that are remembered, so that a failure that an agent repeats is
/// not forwarded twice. This covers the STARTs in flight of several agents that reconnect.
const MAX_ANSWERED: usize = 4096;

/// A START that was answered with a failure.
#[derive(Debug)]
struct Answered {
    instance: Uuid,
    node: Uuid,
    /// True if the instance was known to belong to that node.
    is_owner: bool,
}

/// The answered STARTs, in the order of the answers, so that the oldest is forgotten first.
#[derive(Debug, Default)]
pub(super) struct AnsweredStarts(VecDeque<Answered>);

impl AnsweredStarts {
    pub(super) fn remember(&mut self, instance: Uuid, node: Uuid, is_owner: bool) {
        if self.0.len() >= MAX_ANSWERED {
            self.0.pop_front();
        }
        self.0.push_back(Answered {
            instance,
            node,
            is_owner,
        });
    }

    /// The meaning of a StartFailure of a node about an instance that is not known.
    pub(super) fn meaning_of(&self, instance: Uuid, node: Uuid) -> StartFailed {
        let mut answers = self.0.iter().filter(|known| known.instance == instance);
        if answers.clone().any(|known| known.node == node) {
            return StartFailed::Repeated;
        }
        // The instance belonged to another node, whose failure was the answer.
        if answers.any(|known| known.is_owner) {
            return StartFailed::Foreign;
        }
        StartFailed::Unknown
    }
}
