//! What a call on a dispatcher can do.

use std::time::Instant;

use super::journal::Line;
use crate::model::{Changes, Edit, ManagedObject, ModelError, Uri};
use crate::policy_element::ElementCore;
use crate::server::{ServerCore, Store, WalkId};

/// The server, for a call on its dispatcher.
#[derive(Debug)]
pub struct ServerContext<'a> {
    pub(super) core: &'a mut ServerCore,
    pub(super) now: Instant,
    /// The edits of this call, if policy is kept in a file.
    pub(super) edits: Option<Vec<Line>>,
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

    /// See [`ServerCore::edit`].
    ///
    /// # Errors
    /// The objects are malformed or not what the model allows.
    pub fn edit(&mut self, edit: Edit) -> Result<Changes, ModelError> {
        let changes = self.core.edit(edit, self.now)?;
        if let Some(edits) = self.edits.as_mut().filter(|_| !changes.is_empty()) {
            edits.push(Line::of(&changes, self.core.policy()));
        }
        Ok(changes)
    }

    /// See [`ServerCore::begin_walk`].
    pub fn begin_walk(&mut self, store: Store, uri: Uri) -> WalkId {
        self.core.begin_walk(store, uri)
    }

    /// See [`ServerCore::walk`].
    pub fn walk(&mut self, id: WalkId, most: usize) -> Option<(Store, Vec<ManagedObject>)> {
        self.core.walk(id, most)
    }

    /// See [`ServerCore::end_walk`].
    pub fn end_walk(&mut self, id: WalkId) {
        self.core.end_walk(id);
    }
}

/// The element, for a call on its dispatcher.
#[derive(Debug)]
pub struct ElementContext<'a> {
    pub(super) core: &'a mut ElementCore,
    pub(super) now: Instant,
}

impl ElementContext<'_> {
    /// The state of the element.
    pub fn core(&self) -> &ElementCore {
        self.core
    }

    /// See [`ElementCore::declare`].
    ///
    /// # Errors
    /// An object is malformed.
    pub fn declare(&mut self, endpoint: Vec<ManagedObject>) -> Result<(), ModelError> {
        self.core.declare(endpoint, self.now)
    }

    /// See [`ElementCore::undeclare`].
    pub fn undeclare(&mut self, uri: &Uri) -> bool {
        self.core.undeclare(uri)
    }

    /// See [`ElementCore::report`].
    ///
    /// # Errors
    /// The object is malformed.
    pub fn report(&mut self, object: ManagedObject) -> Result<(), ModelError> {
        self.core.report(object, self.now)
    }

    /// See [`ElementCore::withdraw`].
    pub fn withdraw(&mut self, uri: &Uri) -> bool {
        self.core.withdraw(uri)
    }

    /// See [`ElementCore::reset`].
    pub fn reset(&mut self) {
        self.core.reset(self.now);
    }
}
