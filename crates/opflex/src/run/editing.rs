//! Edits of policy, by any thread.
//!
//! ```text
//!  control connection ── put, delete, reload ──┐
//!  ServerHandle ───────────────────────────────┤ on the thread of the caller
//!                                              ▼
//!       Editing ─┬─ a server alone ─▶ own_copy ─▶ dispatcher, then the keeper's file
//!                └─ several servers ─▶ cluster ─▶ engine, own_copy
//! ```

use std::sync::Arc;

use super::cluster;
use super::config::CallError;
use super::keeper::KeeperSender;
use super::own_copy::{self, Edited};
use super::server_side::ServerEvents;
use crate::model::Edit;
use ssntp_transport::dispatch;

/// A handle by which threads edit policy.
#[derive(Clone, Debug)]
pub(super) struct Editing {
    pub(super) events: ServerEvents,
    pub(super) keeper: Option<KeeperSender>,
    /// The cluster, if several servers share the policy.
    pub(super) cluster: Option<Arc<cluster::Shared>>,
}

impl Editing {
    /// Makes an edit. Blocks until the edit is in the engine of the cluster, or else in the file that
    /// policy is kept in, if there is one. With `at`, the edit fails unless policy has this revision.
    pub(super) fn edit(&self, edit: Edit, at: Option<u64>) -> Result<Edited, CallError> {
        if dispatch::is_dispatcher() {
            return Err(CallError::OnDispatcher);
        }
        // The engine keeps the policy of a cluster. The file is only a copy.
        if let Some(cluster) = &self.cluster {
            return cluster.edit(&edit, at);
        }
        let edited = own_copy::edit(&self.events, edit, at)?;
        // Also if nothing changed: an edit that is repeated after a failed write has to be kept, too.
        if let Some(keeper) = &self.keeper {
            keeper.wait()?;
        }
        Ok(edited)
    }
}
