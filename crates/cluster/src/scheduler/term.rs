//! A scheduler that is one of several: the leader serves, and the others stand by.
//!
//! ```text
//!  standing by ── this one leads ──▶ serving ── its lease is over ──▶ lost: the process ends
//!  newcomers are sent away           configuration and tenants
//!                                    as the engine has them
//! ```
//!
//! A scheduler that has lost its lease does not stand by again: its process ends, and the next
//! one begins with nothing of what this one believed. The thread `ssntp-engine` asks the engine;
//! the dispatcher looks at the view that it has left here.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use bytes::Bytes;
use crossbeam_channel::{Receiver, Sender, bounded};
use log::{error, info};

use super::{Scheduler, SchedulerError};
use ssntp::payload::{ServerEntry, ServerState, Servers};
use ssntp::server::{Context, Server, ServerConfig};
use ssntp_engine::{Acting, Documents, Engine, EngineError, Join, Member, Membership, View, When};

/// The documents in the engine.
pub(super) const CONFIGURATION: &str = "configuration";
pub(super) const TENANTS: &str = "tenants";
/// The longest document. etcd takes requests of 1.5 MiB.
const LONGEST: usize = 1 << 20;

/// The part in the cluster of a scheduler that is one of several.
#[derive(Debug)]
pub(super) struct Term {
    shared: Arc<Shared>,
    stage: Stage,
    /// Of the view that was looked at last.
    acting: Option<Acting>,
    /// It is being drained, and has given its lease back.
    resigned: bool,
    lost: Sender<()>,
}

impl Term {
    /// Whether it has begun to serve and has not noticed yet that its lease is over.
    pub(super) fn is_serving(&self) -> bool {
        self.stage == Stage::Serving
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Stage {
    StandingBy,
    Serving,
    Lost,
}

#[derive(Debug, Default)]
pub(super) struct Shared {
    view: Mutex<View>,
    /// The dispatcher has not looked at the view yet.
    is_new: AtomicBool,
    documents: OnceLock<Documents>,
}

impl Shared {
    fn tell(&self, view: &View) {
        self.lock().clone_from(view);
        self.is_new.store(true, Ordering::Release);
    }

    fn lock(&self) -> MutexGuard<'_, View> {
        self.view.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes a document, for as long as this scheduler leads. `known` is the revision that the
    /// last writing made. Blocks, so only keepers call it.
    pub(super) fn write(&self, name: &str, text: &[u8], known: &mut Option<u64>) -> io::Result<()> {
        if text.len() > LONGEST {
            let len = text.len();
            return Err(io::Error::other(format!(
                "its {len} bytes are more than {LONGEST}"
            )));
        }
        let view = self.lock().clone();
        let is_leading = view.acts(now()).is_some();
        let (true, Some(documents)) = (is_leading, self.documents.get()) else {
            return Err(io::Error::other("this scheduler does not lead any more"));
        };
        // The view is a second old, and this scheduler may have written meanwhile.
        let revision = view
            .documents
            .get(name)
            .map(|document| document.revision)
            .max(*known);
        let when = revision.map_or(When::Absent, When::At);
        *known = Some(documents.write(name, text, when).map_err(io::Error::other)?);
        Ok(())
    }
}

/// A scheduler that has joined a cluster, and its server.
#[derive(Debug)]
pub struct JoinedScheduler {
    /// The server. End it before the membership, so that the next leader finds its clients
    /// free.
    pub server: Server,
    /// The membership. Dropping it lets another one lead.
    pub membership: Membership,
    /// Has a message, or ends, once this scheduler has led and leads no more: it serves nobody
    /// from then on, and its process should end.
    pub lost: Receiver<()>,
}

/// Why a scheduler could not join.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JoinError {
    /// The server could not be started.
    #[error(transparent)]
    Server(#[from] ssntp::server::ServerError),
    /// The engine did not take it in.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

impl Scheduler {
    /// As [`start`](Self::start), as one of several schedulers that share an engine. One leads
    /// and serves; the others send their clients away until they lead, so clients need the
    /// addresses of all of them. Configuration and tenants are in the engine, and a leader
    /// begins with them; what [`SchedulerConfig`](super::SchedulerConfig) says is used if the
    /// engine has none. `advertise` is where the others reach this one; with none, where it
    /// listens. Blocks until the engine has answered.
    ///
    /// # Errors
    /// [`JoinError`]; nothing runs then.
    pub fn start_joined(
        mut self,
        server: ServerConfig,
        engine: Box<dyn Engine>,
        advertise: Vec<String>,
    ) -> Result<JoinedScheduler, JoinError> {
        let shared = Arc::new(Shared::default());
        let (tell_lost, lost) = bounded(1);
        self.configuration.keep_in(&shared);
        self.tenants.keep_in(&shared);
        self.term = Some(Term {
            shared: Arc::clone(&shared),
            stage: Stage::StandingBy,
            acting: None,
            resigned: false,
            lost: tell_lost,
        });
        let server = self.start(server)?;
        let handle = server.handle();
        let addresses = match advertise.is_empty() {
            true => server.addresses().iter().map(ToString::to_string).collect(),
            false => advertise,
        };
        let member = Member {
            uuid: server.uuid(),
            // A process that starts again has another one: it cannot start twice in a moment.
            incarnation: incarnation(),
            addresses,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            token: 0,
        };
        let told = Arc::clone(&shared);
        let join = Join { member, leads: true };
        let membership = Membership::start(engine, join, move |view| {
            told.tell(view);
            // If the dispatcher is too busy to take a call, it looks anyway before it sleeps.
            let _ = handle.post(|_| ());
        })?;
        let _ = shared.documents.set(membership.documents());
        // A view that came before the documents could be written is looked at again.
        shared.is_new.store(true, Ordering::Release);
        let _ = server.handle().post(|_| ());
        Ok(JoinedScheduler {
            server,
            membership,
            lost,
        })
    }

    /// Whether it serves clients: it is the only scheduler, or it leads.
    pub(super) fn serves(&self, now: Instant) -> bool {
        let leads = |term: &Term| {
            term.stage == Stage::Serving && term.acting.is_some_and(|acting| now < acting.until)
        };
        self.term.as_ref().is_none_or(leads)
    }

    /// When [`look_at_term`](Self::look_at_term) has something to do.
    pub(super) fn term_due(&self, at_once: fn() -> Instant) -> Option<Instant> {
        let term = self.term.as_ref()?;
        if term.shared.is_new.load(Ordering::Acquire) {
            return Some(at_once());
        }
        let ends = term.acting.map_or_else(at_once, |acting| acting.until);
        (term.stage == Stage::Serving).then_some(ends)
    }

    /// Begins to serve once it leads, and ends once it leads no more.
    pub(super) fn look_at_term(&mut self, cx: &mut Context<'_>) {
        let Some(term) = &mut self.term else { return };
        term.shared.is_new.store(false, Ordering::Release);
        term.acting = term.shared.lock().acting;
        let leads = term.acting.is_some_and(|acting| cx.now() < acting.until);
        match term.stage {
            Stage::StandingBy if leads && term.shared.documents.get().is_some() => {
                term.stage = Stage::Serving;
                let view = term.shared.lock().clone();
                if let Err(e) = self.begin(cx, &view) {
                    error!(target: "ssntp::scheduler", "the engine has what cannot be used: {e}");
                    self.end(cx);
                }
            }
            Stage::Serving if !leads => {
                if term.resigned {
                    info!(target: "ssntp::scheduler", "this scheduler has given its lease back");
                } else {
                    error!(target: "ssntp::scheduler", "this scheduler leads no more");
                }
                self.end(cx);
            }
            _ => {}
        }
    }

    /// Gives its lease back, so that another one leads at once.
    pub(super) fn resign(&mut self) {
        if let Some(term) = &mut self.term {
            term.resigned = true;
            if let Some(documents) = term.shared.documents.get() {
                documents.resign();
            }
        }
    }

    /// Adds what the engine has of the schedulers.
    pub(super) fn show_servers(&self, servers: &mut Servers) {
        if let Some(term) = &self.term {
            add_members(servers, &term.shared.lock());
        }
    }

    fn begin(&mut self, cx: &mut Context<'_>, view: &View) -> Result<(), SchedulerError> {
        let document = |name| {
            view.documents
                .get(name)
                .map(|document| Bytes::from(document.text.clone()))
        };
        match document(CONFIGURATION) {
            Some(yaml) => {
                self.configuration.replace(yaml)?;
                cx.set_configuration(self.configuration.current().clone());
            }
            None => self.configuration.keep_now(),
        }
        if let Some(text) = document(TENANTS) {
            self.tenants.replace(&text)?;
        }
        Ok(())
    }

    fn end(&mut self, cx: &mut Context<'_>) {
        if let Some(term) = &mut self.term {
            term.stage = Stage::Lost;
            if !term.resigned {
                let _ = term.lost.try_send(());
            }
        }
        // At once, and not only when the process ends: these clients may go to the next leader.
        let all: Vec<_> = cx.directory().sessions().map(|session| session.uuid()).collect();
        for uuid in all {
            cx.disconnect(uuid);
        }
    }
}

/// Adds members, leader and engine to a list of servers.
pub fn add_members(servers: &mut Servers, view: &View) {
    let now = now();
    let age = |since| now.saturating_duration_since(since);
    if let Some(leader) = view.leader {
        servers.leader = leader.uuid.into();
        servers.token = servers.token.max(leader.token);
    }
    let lease = view.kept.map_or(0, |kept| age(kept).as_millis());
    servers.lease_age_ms = u64::try_from(lease).unwrap_or(u64::MAX);
    servers.engine = match &view.away {
        Some((since, why)) => format!("for {} s: {why}", age(*since).as_secs()),
        None => "answers".into(),
    };
    for member in &view.members {
        let address = member.addresses.first().cloned().unwrap_or_default();
        let is_it = |entry: &&mut ServerEntry| {
            entry.uuid.uuid() == Some(member.uuid)
                || entry.uuid.is_empty() && member.addresses.contains(&entry.address)
        };
        let Some(entry) = servers.entries.iter_mut().find(is_it) else {
            servers.entries.push(ServerEntry {
                uuid: member.uuid.into(),
                address,
                version: member.version.clone(),
                state: ServerState::Member,
                ..ServerEntry::default()
            });
            continue;
        };
        entry.uuid = member.uuid.into();
        entry.version.clone_from(&member.version);
        if entry.address.is_empty() {
            entry.address = address;
        }
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "a leader compares its lease with the clock"
)]
fn now() -> Instant {
    Instant::now()
}

fn incarnation() -> u64 {
    uuid::Uuid::new_v4().as_u64_pair().0
}
