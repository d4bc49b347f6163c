//! The arguments of calls on a dispatcher.

use std::time::Instant;

use super::journal::EditLine;
use crate::model::{Changes, Edit, ModelError};
use crate::policy_element::ElementCore;
use crate::server::ServerCore;

/// The server, for a call on its dispatcher.
#[derive(Debug)]
pub struct ServerContext<'a> {
    pub(super) core: &'a mut ServerCore,
    pub(super) now: Instant,
    /// The edits of this call. `None` if policy is not kept in a file.
    pub(super) edits: Option<Vec<EditLine>>,
}

impl ServerContext<'_> {
    /// The state of the server.
    pub fn core(&self) -> &ServerCore {
        self.core
    }

    /// The time of this call.
    pub fn now(&self) -> Instant {
        self.now
    }

    /// Edits this server's copy of the policy. Only `own_copy` calls it, because the
    /// policy of several servers is changed in the engine first.
    pub(super) fn edit(&mut self, edit: Edit) -> Result<Changes, ModelError> {
        let changes = self.core.edit(edit, self.now)?;
        // Made now, because a line has the state of the objects after its edit.
        if let Some(edits) = self.edits.as_mut().filter(|_| !changes.is_empty()) {
            edits.push(EditLine::of(&changes, self.core.policy()));
        }
        Ok(changes)
    }
}

/// The element, for a call on its dispatcher. The actions that the core adds during the call are
/// carried out after the call.
#[derive(Debug)]
pub struct ElementContext<'a> {
    /// The state of the element.
    pub core: &'a mut ElementCore,
    /// The time of this call.
    pub now: Instant,
}
