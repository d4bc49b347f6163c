//! The actions of one call of the core, in order. Its owner carries them out.
//!
//! Each item that is sent has an *origin*: the connection that is not read while the item waits for room at
//! its receiver.

use ssntp_transport::dispatch::{Action, Origin};
use ssntp_transport::{ConnectionId, Outgoing};

/// The actions of one call of the core.
#[derive(Debug)]
pub(super) struct Actions {
    actions: Vec<Action>,
    origin: Origin,
}

impl Actions {
    pub(super) fn new() -> Self {
        Self {
            actions: Vec::new(),
            origin: Origin::Application,
        }
    }

    /// Exchanges the collected actions with those of the core's owner.
    pub(super) fn swap(&mut self, actions: &mut Vec<Action>) {
        std::mem::swap(&mut self.actions, actions);
    }

    /// The number of collected actions.
    pub(super) fn len(&self) -> usize {
        self.actions.len()
    }

    /// The origin of items that are sent now.
    pub(super) fn origin(&self) -> Origin {
        self.origin
    }

    /// Sets the origin of the next items. Returns the one before.
    pub(super) fn set_origin(&mut self, origin: Origin) -> Origin {
        std::mem::replace(&mut self.origin, origin)
    }

    pub(super) fn send(&mut self, to: ConnectionId, item: Outgoing) {
        let origin = self.origin;
        self.actions.push(Action::Send { origin, to, item });
    }

    /// Sends an item of the server itself, for which no connection is paused.
    pub(super) fn send_own(&mut self, to: ConnectionId, item: Outgoing) {
        let origin = self.set_origin(Origin::Application);
        self.send(to, item);
        self.origin = origin;
    }

    /// Ends a connection: at once with `abort`, otherwise after its queue is sent.
    pub(super) fn end(&mut self, id: ConnectionId, abort: bool) {
        self.actions.push(Action::End { id, abort });
    }

    /// Pauses a connection for another server, or ends that pause.
    pub(super) fn pause(&mut self, id: ConnectionId, paused: bool) {
        self.actions.push(Action::Pause { id, paused });
    }

    /// Ends all connections.
    pub(super) fn stop(&mut self) {
        self.actions.push(Action::Stop);
    }
}
