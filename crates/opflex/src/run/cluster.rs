//! A server that is one of several with the same policy, which an engine keeps.
//!
//! ```text
//!  control, ServerHandle ─ edit ─▶ Shared ─ write, at the revision of the edit ─▶ ssntp-engine
//!                                   ▲ waits until it is read back                    │
//!  dispatcher ◀ difference, revision, peers ─ opflex-cluster ◀─ the view, each second ─┘
//! ```
//!
//! The policy is one document in the engine, and its revision is the revision of the policy.
//! A server changes its own copy only to a document that it has read, also after its own edit.
//! So all servers make the same changes in the same order, and an edit that was made on an
//! older document is refused by the engine.
//!
//! Servers share nothing else. Each one names all members to its elements, as the draft has it,
//! and elements connect to all of them: so each server is told what every element declares,
//! resolves and reports, and nothing in the engine grows with elements.

use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_channel::{Receiver, bounded};
use log::{error, info, warn};
use ssntp_engine::{Documents, Engine, EngineError, Join, Member, Membership, View, When};
use uuid::Uuid;

use super::editing::{self, Edited};
use super::server_side::{ServerEvents, call, copy_policy};
use super::{CallError, SERVER_LOG as LOG, StartError, now};
use crate::message::{Peer, Role};
use crate::model::{Edit, FileError, Format, ManagedObject, Schema, Tree};
use ssntp_transport::threads;

/// The document with the policy.
const POLICY: &str = "policy";
/// The longest document. etcd takes requests of 1.5 MiB.
const LONGEST: usize = 1 << 20;
/// A document without objects.
const NOTHING: &[u8] = b"[]";
/// How long an edit waits until its document is read back, and until others are out of its
/// way. A read follows each write at once, so only a machine without time to spare needs it.
const PATIENCE: Duration = Duration::from_secs(30);
/// The most members that are named to elements, because an identity has to stay short.
const MOST: usize = 64;

/// The membership of a server, and the thread that follows the policy of the others.
#[derive(Debug)]
pub(super) struct Cluster {
    shared: Arc<Shared>,
    /// Given up first when the server ends, which also ends the thread.
    membership: Option<Arc<Membership>>,
    thread: Option<JoinHandle<()>>,
}

/// The state that threads which edit policy share with the thread that follows it.
pub(super) struct Shared {
    events: ServerEvents,
    documents: Documents,
    schema: Option<Arc<Schema>>,
    state: Mutex<State>,
    /// Signalled when the state has changed.
    changed: Condvar,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct State {
    /// The document that was read last. Until there is one, the policy that the server brings.
    text: Vec<u8>,
    /// Its revision; none if the engine has no document.
    revision: Option<u64>,
    /// How many documents have been read. An engine that was emptied gives its revisions again,
    /// so they do not tell one document from another.
    read: u64,
    is_stopping: bool,
}

impl Cluster {
    /// Becomes a member, and takes over the policy of the cluster. A cluster without policy gets
    /// that of this server. Blocks until then.
    pub(super) fn join(
        engine: Box<dyn Engine>,
        address: String,
        events: &ServerEvents,
        roles: &[Role],
        peers: &[Peer],
        schema: Option<Arc<Schema>>,
    ) -> Result<Self, StartError> {
        let text = copy_policy(events).and_then(|(_, own)| document(&own).map_err(CallError::Document));
        let text = text.map_err(StartError::Join)?;
        // A process has a UUID of its own, so it has only one incarnation.
        let member = Member {
            uuid: Uuid::new_v4(),
            incarnation: 1,
            addresses: vec![address],
            version: env!("CARGO_PKG_VERSION").to_owned(),
            token: 0,
        };
        // One wake-up stands for all views that have come since.
        let (wake, woken) = bounded(1);
        let told = move |_: &View| {
            // If a wake-up is already pending, the thread will also see this view.
            let _ = wake.try_send(());
        };
        let membership = Membership::start(engine, Join { member, leads: false }, told);
        let membership = Arc::new(membership.map_err(|e| StartError::Join(e.into()))?);
        let is_empty = text == NOTHING;
        let shared = Arc::new(Shared {
            events: events.clone(),
            documents: membership.documents(),
            schema,
            state: Mutex::new(State {
                text,
                revision: None,
                read: 0,
                is_stopping: false,
            }),
            changed: Condvar::new(),
        });
        let mut named = Named {
            roles: roles.to_vec(),
            configured: peers.to_vec(),
            told: Vec::new(),
        };
        // No element is connected yet, so none sees the policy that the server has brought.
        follow(&shared, &membership.view(), &mut named).map_err(StartError::Join)?;
        let body = {
            let (shared, membership) = (Arc::clone(&shared), Arc::downgrade(&membership));
            move || run(&shared, &membership, &woken, named)
        };
        let thread = threads::spawn("opflex-cluster", body).map_err(StartError::Thread)?;
        let cluster = Self {
            shared,
            membership: Some(membership),
            thread: Some(thread),
        };
        if !is_empty {
            cluster.shared.wait_past(0).map_err(StartError::Join)?;
        }
        Ok(cluster)
    }

    pub(super) fn shared(&self) -> Arc<Shared> {
        Arc::clone(&self.shared)
    }

    pub(super) fn membership(&self) -> Option<&Arc<Membership>> {
        self.membership.as_ref()
    }
}

impl Drop for Cluster {
    /// Leaves the cluster. Edits that wait end with an error. The dispatcher has to run.
    fn drop(&mut self) {
        self.shared.lock().is_stopping = true;
        self.shared.changed.notify_all();
        // The thread of the engine ends with the membership, and then this thread has no sender
        // that could wake it, so it ends as well.
        self.membership = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    /// Makes an edit of the policy of all servers, and waits until this one has it. Without
    /// `at`, an edit that comes too late for its document is made on the newer one.
    pub(super) fn edit(&self, edit: &Edit, at: Option<u64>) -> Result<Edited, CallError> {
        let end = now() + PATIENCE;
        loop {
            // The lock is not held while the engine is asked, because the thread that reads needs it.
            let (base, text, read_before) = {
                let state = self.lock();
                (state.revision, state.text.clone(), state.read)
            };
            let is = base.unwrap_or(0);
            if let Some(wanted) = at.filter(|wanted| *wanted != is) {
                return Err(CallError::Revision { wanted, is });
            }
            let objects = match read(&text) {
                Ok(objects) => objects,
                // A reload replaces also a document that cannot be read.
                Err(_) if matches!(edit, Edit::Reload(_)) => Vec::new(),
                Err(why) => return Err(CallError::Document(why)),
            };
            let mut tree = self.schema.clone().map_or_else(Tree::new, Tree::with_schema);
            tree.merge(objects)?;
            let changed = tree.edit(edit.clone())?.len();
            let next = document(&tree.to_objects()).map_err(CallError::Document)?;
            // Several servers may load the same policy file; then only the first one writes.
            if next == text {
                return Ok(Edited {
                    changed,
                    revision: is,
                });
            }
            match self.write(&next, base) {
                Ok(revision) => {
                    self.wait_past(read_before)?;
                    return Ok(Edited { changed, revision });
                }
                // Another edit came first. This one is made on its result, or refused because of `at`.
                Err(EngineError::Changed) if now() < end => self.wait_past(read_before)?,
                Err(why) => return Err(why.into()),
            }
        }
    }

    /// Writes a document, if the engine has the one of this revision.
    fn write(&self, text: &[u8], base: Option<u64>) -> Result<u64, EngineError> {
        if text.len() > LONGEST {
            let length = text.len();
            let why = format!("the policy has {length} bytes, and the engine keeps at most {LONGEST}");
            return Err(EngineError::Full(why));
        }
        self.documents
            .write(POLICY, text, base.map_or(When::Absent, When::At))
    }

    /// Waits until more than so many documents have been read and are in force.
    fn wait_past(&self, read: u64) -> Result<(), CallError> {
        let is_same = |state: &mut State| state.read == read && !state.is_stopping;
        let waited = self.changed.wait_timeout_while(self.lock(), PATIENCE, is_same);
        let (state, waited) = waited.unwrap_or_else(PoisonError::into_inner);
        match (state.is_stopping, waited.timed_out()) {
            (true, _) => Err(CallError::Stopped),
            (false, true) => {
                Err(EngineError::Away("the policy was not read in time after an edit".to_owned()).into())
            }
            (false, false) => Ok(()),
        }
    }

    /// Applies the policy of a view, if it is another one.
    fn take(&self, view: &View) -> Result<(), CallError> {
        let Some(document) = view.documents.get(POLICY) else {
            let (former, text) = {
                let mut state = self.lock();
                (state.revision.take(), state.text.clone())
            };
            if former.is_some() {
                warn!(target: LOG, "the engine has lost the policy; it is put back");
            }
            // An empty policy is not put, so that a server that brings one may come later.
            if text == NOTHING {
                return Ok(());
            }
            // Several servers may put theirs at the same time; the first one counts.
            return match self.write(&text, None) {
                Ok(_) | Err(EngineError::Changed) => Ok(()),
                Err(why) => Err(why.into()),
            };
        };
        let revision = document.revision;
        // The copy and the state change under one lock. Otherwise a thread that has seen the new
        // policy could still make its edit on the old document.
        let mut state = self.lock();
        if state.revision == Some(revision) && state.text == document.text {
            return Ok(());
        }
        let objects = read(&document.text).map_err(CallError::Document);
        let made = objects.and_then(|objects| {
            let changed = editing::edit_here(&self.events, Edit::Reload(objects), None)?.changed;
            call(&self.events, move |cx| cx.core.begin_at_revision(revision))?;
            info!(target: LOG, "revision {revision} of the cluster's policy: {changed} objects changed");
            Ok(())
        });
        // Also if the document cannot be used: the next edit has to be made on this document.
        state.text.clone_from(&document.text);
        state.revision = Some(revision);
        state.read += 1;
        drop(state);
        self.changed.notify_all();
        made
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The servers that elements are told of.
struct Named {
    /// The roles of this server, which its members share.
    roles: Vec<Role>,
    configured: Vec<Peer>,
    told: Vec<Peer>,
}

impl Named {
    /// Names the members to elements that send their identity from now on.
    fn tell(&mut self, view: &View, events: &ServerEvents) -> Result<(), CallError> {
        let members = view.members.iter().filter_map(|member| member.addresses.first());
        let peer = |address: &String| Peer {
            role: self.roles.clone(),
            connectivity_info: address.clone(),
            extra: serde_json::Map::new(),
        };
        // A configured server may have other roles, so its own entry counts.
        let is_new = |peer: &Peer| {
            let same = |other: &Peer| other.connectivity_info == peer.connectivity_info;
            !self.configured.iter().any(same)
        };
        let members = members.take(MOST).map(peer).filter(is_new);
        let peers: Vec<Peer> = self.configured.iter().cloned().chain(members).collect();
        // Most views bring no new member, and a call takes time of the dispatcher.
        if self.told != peers {
            self.told.clone_from(&peers);
            call(events, move |cx| cx.core.set_peers(peers))?;
        }
        Ok(())
    }
}

/// Applies a view: the policy, and the members that elements are told.
fn follow(shared: &Shared, view: &View, named: &mut Named) -> Result<(), CallError> {
    // Elements are told of new members also while the policy cannot be used.
    let taken = shared.take(view);
    named.tell(view, &shared.events)?;
    taken
}

/// Follows each view until the membership ends.
fn run(shared: &Shared, membership: &Weak<Membership>, woken: &Receiver<()>, mut named: Named) {
    for () in woken {
        let Some(view) = membership.upgrade().map(|membership| membership.view()) else {
            return;
        };
        match follow(shared, &view, &mut named) {
            Ok(()) => {}
            Err(CallError::Stopped) => return,
            Err(why) => error!(target: LOG, "the policy of the cluster is not in force here: {why}"),
        }
    }
}

fn read(text: &[u8]) -> Result<Vec<ManagedObject>, FileError> {
    ManagedObject::read_all(text, Format::Json)
}

/// Objects as the engine keeps them: without blanks, because the length is limited.
fn document(objects: &[ManagedObject]) -> Result<Vec<u8>, FileError> {
    serde_json::to_vec(objects).map_err(|e| FileError::Json(e.to_string()))
}
