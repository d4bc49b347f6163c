//! The handle by which other threads use a server, and edits of its policy.
//!
//! ```text
//!  control connection ── put, delete, reload ──┐
//!  application ────────────────────────────────┤ on the thread of the caller
//!                                              ▼
//!  ServerHandle ─┬─ a server alone ─▶ own_copy ─▶ dispatcher, then the keeper's file
//!                └─ several servers ─▶ cluster ─▶ engine, own_copy
//! ```

use std::sync::{Arc, Mutex};

use super::cluster;
use super::config::CallError;
use super::context::ServerContext;
use super::figures::ServerFigures;
use super::keeper::KeeperSender;
use super::own_copy::{self, Edited};
use super::server_side::{self, ServerEvents};
use crate::model::{Edit, ManagedObject, Piece};
use crate::server::{AgentInfo, SessionInfo};
use ssntp_transport::{Occupancy, dispatch, locked};

/// A handle by which other threads use a server.
///
/// # Threads
/// Cheap to clone, and `Send`. Every call blocks until the dispatcher has carried it out, usually
/// for some microseconds. A call that changes policy also waits until the change is in the file or
/// the engine that keeps policy, if there is one.
#[derive(Clone, Debug)]
pub struct ServerHandle {
    pub(super) events: ServerEvents,
    pub(super) keeper: Option<KeeperSender>,
    pub(super) edits: Arc<Edits>,
    /// The cluster, if several servers share the policy.
    pub(super) cluster: Option<Arc<cluster::Shared>>,
    /// The handshakes under way. `None` until the server accepts clients.
    pub(super) occupancy: Option<Arc<Occupancy>>,
}

/// The edits of a server alone. Some are made in pieces, so one waits for the other.
#[derive(Debug, Default)]
pub(super) struct Edits {
    /// True if no edit begins any more.
    ended: Mutex<bool>,
}

impl Edits {
    /// Makes one edit, while no other one is made. Blocks until the earlier ones are made.
    fn one(&self, edit: impl FnOnce() -> Result<Edited, CallError>) -> Result<Edited, CallError> {
        let ended = locked(&self.ended);
        if *ended {
            return Err(CallError::Stopped);
        }
        edit()
    }

    /// Blocks until the edits under way are made. No edit begins any more, so a part of one is never
    /// kept.
    pub(super) fn end(&self) {
        *locked(&self.ended) = true;
    }
}

impl ServerHandle {
    /// Runs `call` on the dispatcher with a [`ServerContext`], and returns its result.
    ///
    /// # Errors
    /// [`CallError::Stopped`], also if `call` panicked; [`CallError::OnDispatcher`].
    pub fn with<T: Send + 'static>(
        &self,
        call: impl FnOnce(&mut ServerContext<'_>) -> T + Send + 'static,
    ) -> Result<T, CallError> {
        server_side::call(&self.events, call)
    }

    /// Changes policy, and returns the number of changed objects. A merge of more than a thousand
    /// objects is checked as a whole and then made in pieces. A reload is compared with the present
    /// policy on this thread, and its changes are made in pieces, too. In a cluster, the policy of all
    /// servers is changed, and the call returns when this server has read it back from the engine.
    ///
    /// # Errors
    /// [`CallError`].
    pub fn edit(&self, edit: Edit) -> Result<usize, CallError> {
        self.edit_at(edit, None).map(|edited| edited.changed)
    }

    /// Makes an edit. Blocks until the edit is in the engine of the cluster, or else in the file that
    /// policy is kept in, if there is one. With `at`, the edit fails unless policy has this revision.
    pub(super) fn edit_at(&self, edit: Edit, at: Option<u64>) -> Result<Edited, CallError> {
        if dispatch::is_dispatcher() {
            return Err(CallError::OnDispatcher);
        }
        // The engine keeps the policy of a cluster. The file is only a copy.
        if let Some(cluster) = &self.cluster {
            return cluster.edit(&edit, at);
        }
        let edited = self.edits.one(|| own_copy::edit(&self.events, edit, at))?;
        // Also if nothing changed: an edit that is repeated after a failed write has to be kept, too.
        if let Some(keeper) = &self.keeper {
            keeper.wait()?;
        }
        Ok(edited)
    }

    /// The present policy, parents first. It is copied in steps, so that a large policy does not delay
    /// clients.
    ///
    /// # Errors
    /// [`CallError`].
    pub fn policy(&self) -> Result<Vec<ManagedObject>, CallError> {
        own_copy::copy(&self.events).map(|(_, objects)| objects)
    }

    /// A snapshot of the server.
    ///
    /// # Errors
    /// [`CallError`].
    pub fn figures(&self) -> Result<ServerFigures, CallError> {
        let agents = self.agents()?;
        let taken = self.events.look(|machine, view| machine.side.figures(view));
        let (mut figures, dispatcher) = taken.ok_or(CallError::Stopped)?;
        figures.known_agents = agents.len();
        let not_kept = self.keeper.as_ref().and_then(KeeperSender::fault);
        let not_in_force = self.cluster.as_ref().and_then(|cluster| cluster.fault());
        figures.policy_faults = not_kept.into_iter().chain(not_in_force).collect();
        figures.agents = agents;
        figures.dispatcher = dispatcher;
        if let Some(occupancy) = &self.occupancy {
            figures.handshakes = occupancy.running();
            figures.max_handshakes = occupancy.limit();
        }
        Ok(figures)
    }

    /// The clients, in the order in which they connected.
    ///
    /// # Errors
    /// [`CallError`].
    pub fn sessions(&self) -> Result<Vec<SessionInfo>, CallError> {
        self.with(|cx| cx.core().sessions(cx.now()))
    }

    /// All agents that have sent a name since the server started, including those that have left,
    /// in the order of their names.
    ///
    /// # Errors
    /// [`CallError`].
    pub fn agents(&self) -> Result<Vec<AgentInfo>, CallError> {
        let mut agents: Vec<AgentInfo> = Vec::new();
        loop {
            let last = agents.last().map(|agent| agent.name.clone());
            let next =
                self.with(move |cx| cx.core().agents_after(last.as_ref(), Piece::ENTRIES, cx.now()))?;
            // In steps, because ten thousand agents in one call would delay clients by milliseconds.
            let is_over = next.len() < Piece::ENTRIES;
            agents.extend(next);
            if is_over {
                return Ok(agents);
            }
        }
    }
}
