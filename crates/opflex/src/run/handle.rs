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
use std::time::Instant;

use super::cluster;
use super::config::CallError;
use super::keeper::KeeperSender;
use super::own_copy::{self, Edited};
use super::server_side::{self, ServerEvents};
use crate::model::{Edit, ManagedObject, Piece};
use crate::server::{AgentInfo, RequestCounters, ServerCore, SessionInfo};
use ssntp_transport::{BudgetFigures, DispatcherFigures, Occupancy, dispatch, locked};

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
    /// Runs `call` on the dispatcher with the state of the server and the time, and returns its result.
    ///
    /// # Errors
    /// [`CallError::Stopped`], also if `call` panicked; [`CallError::OnDispatcher`].
    pub fn with<T: Send + 'static>(
        &self,
        call: impl FnOnce(&ServerCore, Instant) -> T + Send + 'static,
    ) -> Result<T, CallError> {
        server_side::call(&self.events, |core, now| call(core, now))
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
        let not_kept = self.keeper.as_ref().and_then(KeeperSender::fault);
        let not_in_force = self.cluster.as_ref().and_then(|cluster| cluster.fault());
        let slots = self.occupancy.as_ref();
        let (handshakes, max_handshakes) = slots.map_or((0, 0), |slots| (slots.running(), slots.limit()));
        let taken = self.events.look(move |machine, view| {
            let core = &machine.side.core;
            ServerFigures {
                sessions: core.sessions(view.now),
                known_agents: agents.len(),
                agents,
                requests: core.requests(),
                max_sessions: machine.side.max_clients,
                handshakes,
                max_handshakes,
                policy_faults: not_kept.into_iter().chain(not_in_force).collect(),
                policy_objects: core.policy().len(),
                policy_revision: core.policy_revision(),
                endpoint_objects: core.endpoints().len(),
                reports: core.observer().len(),
                series: core.observer().series(),
                dispatcher: view.dispatcher,
                queues: view.queues,
                received: view.received,
            }
        });
        let (figures, dispatcher) = taken.ok_or(CallError::Stopped)?;
        Ok(ServerFigures {
            dispatcher,
            ..figures
        })
    }

    /// The clients, in the order in which they connected.
    ///
    /// # Errors
    /// [`CallError`].
    pub fn sessions(&self) -> Result<Vec<SessionInfo>, CallError> {
        self.with(ServerCore::sessions)
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
            let next = self.with(move |core, now| core.agents_after(last.as_ref(), Piece::ENTRIES, now))?;
            // In steps, because ten thousand agents in one call would delay clients by milliseconds.
            let is_over = next.len() < Piece::ENTRIES;
            agents.extend(next);
            if is_over {
                return Ok(agents);
            }
        }
    }
}

/// The figures of an OpFlex server at one moment, for its HTTP pages.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ServerFigures {
    /// The sessions of the connected clients, oldest first.
    pub sessions: Vec<SessionInfo>,
    /// The agents that the server knows by name, connected or not, with the sums of the counters of
    /// all their sessions.
    pub agents: Vec<AgentInfo>,
    /// The number of these agents.
    pub known_agents: usize,
    /// The counters of all agents together, including agents that the server has forgotten.
    pub requests: RequestCounters,
    /// The maximum number of clients.
    pub max_sessions: usize,
    /// The number of handshakes in progress.
    pub handshakes: usize,
    /// The maximum number of handshakes in progress.
    pub max_handshakes: usize,
    /// The faults of the policy: it could not be written to its file, or that of the cluster is not in force here.
    pub policy_faults: Vec<String>,
    /// The number of policy objects.
    pub policy_objects: usize,
    /// The revision of the policy, which grows with each change.
    pub policy_revision: u64,
    /// The number of endpoint objects.
    pub endpoint_objects: usize,
    /// The number of objects for which an agent has reported a state.
    pub reports: usize,
    /// The number of series: a series is the sum over time of one number in reports.
    pub series: usize,
    /// The load of the dispatcher.
    pub dispatcher: DispatcherFigures,
    /// The memory of all queues to clients, and its limit.
    pub queues: BudgetFigures,
    /// The memory of the received messages that wait for the dispatcher, and its limit.
    pub received: BudgetFigures,
}
