//! A server that shares its policy with other servers. An engine keeps the policy.
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
//! Servers share only the policy. Each server lists all members to its elements, as in the draft,
//! and elements connect to all of them. So each server gets the declarations, resolves and reports
//! of all elements, and the size of the engine's data does not depend on the elements.

use std::sync::{Arc, Condvar, Mutex, Weak};
use std::time::Duration;

use crossbeam_channel::{Receiver, bounded};
use log::{error, info, warn};
use miniz_oxide::deflate::compress_to_vec_zlib;
use miniz_oxide::inflate::decompress_to_vec_zlib_with_limit;
use ssntp_engine::{Documents, Engine, EngineError, Join, Member, Membership, View, When};
use uuid::Uuid;

use super::config::{CallError, SERVER_LOG as LOG, StartError};
use super::own_copy::{self, Edited};
use super::server_side::{ServerEvents, call};
use crate::message::{Peer, Role};
use crate::model::{Edit, FileError, Format, ManagedObject, Schema, Tree};
use ssntp_transport::threads::{self, Joined};
use ssntp_transport::{locked, locked_again, now};

/// The document with the policy.
const POLICY: &str = "policy";
/// The longest document. etcd takes requests of 1.5 MiB.
const LONGEST: usize = 1 << 20;
/// The longest JSON of a compressed document, which bounds the memory of reading one.
const LONGEST_JSON: usize = 64 << 20;
/// The first byte of a compressed document, which is no JSON: zlib with a window of 32 KiB.
const ZLIB: u8 = 0x78;
/// The usual level of zlib. Servers that differ in it would write the same policy again.
const COMPRESSION: u8 = 6;
/// A document without objects.
const NOTHING: &[u8] = b"[]";
/// The time limit for reading an edit back, and for repeating an edit that lost against others. A
/// read follows each write at once, so only an overloaded machine reaches the limit.
const PATIENCE: Duration = Duration::from_secs(30);
/// The maximum number of members in the list for elements, because an identity has to stay short.
const MOST: usize = 64;

/// The membership of a server, and the thread that follows the policy of the others.
#[derive(Debug)]
pub(super) struct Cluster {
    pub(super) shared: Arc<Shared>,
    /// Its thread owns the sender of wake-ups, so the thread below ends after it.
    pub(super) membership: Arc<Membership>,
    _thread: Joined,
}

/// The state that threads which edit policy share with the thread that follows it.
#[derive(Debug)]
pub(super) struct Shared {
    events: ServerEvents,
    documents: Documents,
    schema: Option<Arc<Schema>>,
    state: Mutex<State>,
    /// Signalled when the state has changed.
    changed: Condvar,
}

const NOT_IN_FORCE: &str = "the policy of the cluster is not in force here";

#[derive(Debug)]
struct State {
    /// The latest document; before the first one, the own policy of the server.
    text: Vec<u8>,
    /// The revision of the document. `None` if the engine has no document.
    revision: Option<u64>,
    /// The number of documents that were read. Revisions do not identify documents, because an engine
    /// that was emptied uses its revisions again.
    read: u64,
    is_stopping: bool,
    /// The reason why the document is not in force here, or why the engine has none.
    fault: Option<String>,
}

impl Cluster {
    /// Becomes a member, and applies the policy of the cluster. A cluster without policy gets the
    /// policy of this server. Blocks until then.
    pub(super) fn join(
        engine: Box<dyn Engine>,
        address: String,
        events: &ServerEvents,
        roles: &[Role],
        peers: &[Peer],
        schema: Option<Arc<Schema>>,
    ) -> Result<Self, StartError> {
        let text = own_document(events).map_err(StartError::Join)?;
        // Each process has a new UUID, so it has only one incarnation.
        let member = Member {
            uuid: Uuid::new_v4(),
            incarnation: 1,
            addresses: vec![address],
            version: env!("CARGO_PKG_VERSION").to_owned(),
            token: 0,
        };
        // One slot, because one wake-up serves all views.
        let (wake, woken) = bounded(1);
        let notify = move |_: &View| {
            // If a wake-up is already pending, the thread will also handle this view.
            let _ = wake.try_send(());
        };
        let membership = Membership::start(engine, Join { member, leads: false }, notify);
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
                fault: None,
            }),
            changed: Condvar::new(),
        });
        let mut list = PeerList {
            roles: roles.to_vec(),
            configured: peers.to_vec(),
            sent: Vec::new(),
        };
        // No element is connected yet, so none gets the former policy of this server.
        follow(&shared, &membership.view(), &mut list).map_err(StartError::Join)?;
        let body = {
            let (shared, membership) = (Arc::clone(&shared), Arc::downgrade(&membership));
            move || run(&shared, &membership, &woken, list)
        };
        let thread = threads::joined("opflex-cluster", body).map_err(StartError::Thread)?;
        let cluster = Self {
            shared,
            membership,
            _thread: thread,
        };
        if !is_empty {
            cluster.shared.wait_past(0).map_err(StartError::Join)?;
        }
        Ok(cluster)
    }
}

impl Drop for Cluster {
    /// Leaves the cluster. Edits under way fail. The dispatcher has to run.
    fn drop(&mut self) {
        locked(&self.shared.state).is_stopping = true;
        self.shared.changed.notify_all();
    }
}

impl Shared {
    /// The reason why the policy of the cluster is not in force here, or why the engine has none.
    pub(super) fn fault(&self) -> Option<String> {
        locked(&self.state).fault.clone()
    }

    /// Edits the policy of all servers, and blocks until this server has applied the edit. Without
    /// `at`, an edit is repeated on the newer document if another edit came first.
    pub(super) fn edit(&self, edit: &Edit, at: Option<u64>) -> Result<Edited, CallError> {
        let end = now() + PATIENCE;
        loop {
            // Not locked during the write, because the thread that reads needs the lock.
            let (base, text, read_before) = {
                let state = locked(&self.state);
                (state.revision, state.text.clone(), state.read)
            };
            let is = base.unwrap_or(0);
            if let Some(wanted) = at.filter(|wanted| *wanted != is) {
                return Err(CallError::Revision { wanted, is });
            }
            let objects = match read(&text) {
                Ok(objects) => objects,
                // A reload also replaces a malformed document.
                Err(_) if matches!(edit, Edit::Reload(_)) => Vec::new(),
                Err(why) => return Err(CallError::Document(why)),
            };
            let mut tree = self.schema.clone().map_or_else(Tree::new, Tree::with_schema);
            tree.merge(objects)?;
            let changed = tree.edit(edit.clone())?.len();
            let next = document(&tree.to_objects()).map_err(CallError::Document)?;
            // If several servers load the same policy file, only the first one writes.
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
                // Another edit came first. Repeated on its result, or refused because of `at`.
                Err(EngineError::Changed) if now() < end => self.wait_past(read_before)?,
                Err(why) => return Err(why.into()),
            }
        }
    }

    /// Writes a document, unless the engine has another revision than `base`.
    fn write(&self, text: &[u8], base: Option<u64>) -> Result<u64, EngineError> {
        if text.len() > LONGEST {
            let length = text.len();
            let why =
                format!("the policy has {length} compressed bytes, and the engine keeps at most {LONGEST}");
            return Err(EngineError::Full(why));
        }
        self.documents
            .write(POLICY, text, base.map_or(When::Absent, When::At))
    }

    /// Blocks until more than `read` documents have been read and applied.
    fn wait_past(&self, read: u64) -> Result<(), CallError> {
        let is_same = |state: &mut State| state.read == read && !state.is_stopping;
        let waited = self
            .changed
            .wait_timeout_while(locked(&self.state), PATIENCE, is_same);
        let (state, waited) = locked_again(waited);
        match (state.is_stopping, waited.timed_out()) {
            (true, _) => Err(CallError::Stopped),
            (false, true) => {
                Err(EngineError::Away("the policy was not read in time after an edit".to_owned()).into())
            }
            (false, false) => Ok(()),
        }
    }

    /// Writes the policy of this server to an engine that has none.
    fn write_own(&self) -> Result<(), CallError> {
        // The policy in force and not the last document, which may have been malformed.
        let text = own_document(&self.events)?;
        let former = {
            let mut state = locked(&self.state);
            state.text.clone_from(&text);
            state.revision.take()
        };
        if former.is_some() {
            warn!(target: LOG, "the engine has lost the policy; this server writes it again");
        }
        // An empty policy is not written, so that a later server can bring one. Its revision is 0 on
        // all servers, as for edits.
        if text == NOTHING {
            return call(&self.events, |core, _| core.begin_at_revision(0));
        }
        // If several servers write at the same time, the first write counts.
        match self.write(&text, None) {
            Ok(_) | Err(EngineError::Changed) => Ok(()),
            Err(why) => Err(why.into()),
        }
    }

    /// Applies the policy of a view, unless it is applied already.
    fn apply(&self, view: &View) -> Result<(), CallError> {
        let Some(stored) = view.documents.get(POLICY) else {
            let written = self.write_own();
            locked(&self.state).fault = written
                .as_ref()
                .err()
                .map(|why| format!("the engine has no policy: {why}"));
            return written;
        };
        let revision = stored.revision;
        // The policy and the state change under one lock. Otherwise a thread that has read the new
        // policy could make its edit on the former document.
        let mut state = locked(&self.state);
        if state.revision == Some(revision) && state.text == stored.text {
            return Ok(());
        }
        let objects = read(&stored.text).map_err(CallError::Document);
        let applied = objects.and_then(|objects| {
            // The revision is set in the same call: a revision between the two may be that of a document, too.
            let Edited { changed, .. } = own_copy::replace(&self.events, objects, revision)?;
            info!(target: LOG, "revision {revision} of the cluster's policy: {changed} objects changed");
            Ok(())
        });
        // Also if the document is malformed, because the next edit has to replace this document.
        state.text.clone_from(&stored.text);
        state.revision = Some(revision);
        state.fault = applied.as_ref().err().map(|why| format!("{NOT_IN_FORCE}: {why}"));
        state.read += 1;
        drop(state);
        self.changed.notify_all();
        applied
    }
}

/// The list of servers for elements.
struct PeerList {
    /// The roles of this server, which all members have.
    roles: Vec<Role>,
    configured: Vec<Peer>,
    /// The list that the core has.
    sent: Vec<Peer>,
}

impl PeerList {
    /// Sets the list for elements that send their identity from now on.
    fn update(&mut self, view: &View, events: &ServerEvents) -> Result<(), CallError> {
        let members = view.members.iter().filter_map(|member| member.addresses.first());
        let peer = |address: &String| Peer {
            role: self.roles.clone(),
            connectivity_info: address.clone(),
            extra: serde_json::Map::new(),
        };
        // A configured entry takes precedence, because it may have other roles.
        let is_new = |peer: &Peer| {
            let same = |other: &Peer| other.connectivity_info == peer.connectivity_info;
            !self.configured.iter().any(same)
        };
        let members = members.take(MOST).map(peer).filter(is_new);
        let peers: Vec<Peer> = self.configured.iter().cloned().chain(members).collect();
        // Most views have the same members, and a call takes time of the dispatcher.
        if self.sent != peers {
            self.sent.clone_from(&peers);
            call(events, move |core, _| core.set_peers(peers))?;
        }
        Ok(())
    }
}

/// Applies a view: the policy and the list of servers.
fn follow(shared: &Shared, view: &View, list: &mut PeerList) -> Result<(), CallError> {
    // The list is updated also if the policy cannot be used.
    let applied = shared.apply(view);
    list.update(view, &shared.events)?;
    applied
}

/// Applies each view until the membership ends.
fn run(shared: &Shared, membership: &Weak<Membership>, woken: &Receiver<()>, mut list: PeerList) {
    for () in woken {
        let Some(view) = membership.upgrade().map(|membership| membership.view()) else {
            return;
        };
        match follow(shared, &view, &mut list) {
            Ok(()) => {}
            Err(CallError::Stopped) => return,
            Err(why) => error!(target: LOG, "{}", shared.fault().unwrap_or_else(|| why.to_string())),
        }
    }
}

fn read(text: &[u8]) -> Result<Vec<ManagedObject>, FileError> {
    if text.first() != Some(&ZLIB) {
        return ManagedObject::read_all(text, Format::Json);
    }
    let json = decompress_to_vec_zlib_with_limit(text, LONGEST_JSON);
    let json = json.map_err(|e| FileError::Json(e.to_string()))?;
    ManagedObject::read_all(&json, Format::Json)
}

/// The document of the policy that this server has.
fn own_document(events: &ServerEvents) -> Result<Vec<u8>, CallError> {
    document(&own_copy::copy(events)?.1).map_err(CallError::Document)
}

/// The document of a policy: JSON without blanks, and compressed if it is too long for the engine.
fn document(objects: &[ManagedObject]) -> Result<Vec<u8>, FileError> {
    let text = serde_json::to_vec(objects).map_err(|e| FileError::Json(e.to_string()))?;
    match text.len() {
        length if length <= LONGEST => Ok(text),
        length if length <= LONGEST_JSON => Ok(compress_to_vec_zlib(&text, COMPRESSION)),
        length => Err(FileError::Json(format!(
            "it has {length} bytes, and servers share at most {LONGEST_JSON}"
        ))),
    }
}
