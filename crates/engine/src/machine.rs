//! Membership and leadership, as a state machine without threads, clock or I/O: it says what
//! to ask the engine next, takes the answers, and shows a [`View`].
//!
//! ```text
//!            Grant 10 s ─▶ Put members/UUID ─▶ KeepAlive every 3 s ┐
//!  every   ┌────────────────────◀ the lease is over ◀──────────────┘
//!  second: Read ─▶ leader? ── another ──▶ follow it
//!                    │ none
//!                    ▼
//!            Grant 5 s ─▶ Put leader, if absent ─▶ acts; KeepAlive every second
//!                    ▲                                      │ another one was faster,
//!                    └──────────────────────────────────────┘ the lease is over, or lost
//! ```
//!
//! # Why there is one leader
//! * The key `leader` belongs to a lease, and is only put where it is absent. Its holder counts
//!   the lease from *before* it sent the request that was answered, so the engine ends it
//!   later than the holder does, and the holder stops acting a second before that.
//! * A holder that was paused finds by its clock that its time is over. What it had begun to
//!   send before the pause carries its *token*, and each receiver takes only what has the
//!   highest token that it has seen.
//! * Tokens of later leaders are higher: the revision of the engine at which the key was made
//!   is the upper part. An engine that has lost its last second may give a revision twice. So
//!   the lowest 20 bits come from the lease, and a process that gets a token below one that it
//!   has seen gives it back and tries again. If it has not seen that one, others have: they put
//!   it into their own keys, where the leader reads it.
//! * An engine that was restored from a backup, or is empty, has revisions far below. So a process
//!   that has given a token back adds the highest one that it has seen to its next one. What
//!   it adds stands beside its name in the leader's key.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use log::{info, warn};
use serde::{Deserialize, Serialize};
use ssntp_transport::excerpt;
use uuid::Uuid;

use crate::engine::{Answer, EngineError, Entry, Kept, Lease, Request, When};

const LOG: &str = "ssntp::engine";
/// How long a call to the engine may take.
pub const CALL: Duration = Duration::from_secs(1);
/// The lease of a leader. A dead one is replaced once it has ended and another server has read
/// the engine again, at most a second later.
pub const LEADER_TIME: Duration = Duration::from_secs(5);
/// The lease of a member.
const MEMBER_TIME: Duration = Duration::from_secs(10);
/// How long before the end of its lease a leader stops acting: for clocks that run at
/// different speeds.
const MARGIN: Duration = Duration::from_secs(1);
/// How often the engine is read, and a leader keeps its lease alive.
const READ: Duration = Duration::from_secs(1);
/// How often a member keeps its lease alive.
const MEMBER_KEEPS: Duration = Duration::from_secs(3);
/// How long the machine waits after a failure, so that an engine that refuses at once is not
/// asked all the time.
const RETRY: Duration = Duration::from_millis(300);
/// The bits of a token that come from the lease.
const LEASE_BITS: u32 = 20;

const LEADER: &str = "leader";
const MEMBERS: &str = "members/";
pub(crate) const DOCUMENTS: &str = "documents/";

/// A server of the cluster, as all others see it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Member {
    /// Its UUID.
    pub uuid: Uuid,
    /// Another number each time that its process starts.
    pub incarnation: u64,
    /// Where the others reach it.
    pub addresses: Vec<String>,
    /// The version of its program.
    pub version: String,
    /// A token that it has seen and that the leader must not be below. 0 until it sees a leader
    /// that is.
    #[serde(default)]
    pub token: u64,
}

/// How a process takes part.
#[derive(Clone, Debug)]
pub struct Join {
    /// What the others see of it.
    pub member: Member,
    /// Whether it leads if nobody else does.
    pub leads: bool,
}

/// The leader of the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leader {
    /// Its UUID.
    pub uuid: Uuid,
    /// Its incarnation.
    pub incarnation: u64,
    /// The number of its term: a later leader has a higher one.
    pub token: u64,
}

/// This process is the leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Acting {
    /// The token that all it causes carries.
    pub token: u64,
    /// When it must no longer act, unless a later view says otherwise.
    pub until: Instant,
}

/// A document that the cluster keeps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Document {
    /// Its text.
    pub text: Vec<u8>,
    /// The revision of its last change, for [`When::At`].
    pub revision: u64,
}

/// The cluster as the engine last had it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct View {
    /// The members, this process included, in the order of their UUIDs.
    pub members: Vec<Member>,
    /// The leader. While the engine is away, the last one that was known.
    pub leader: Option<Leader>,
    /// Set if this process is the leader. Compare its `until` with the time before each act.
    pub acting: Option<Acting>,
    /// The documents by their names.
    pub documents: BTreeMap<String, Document>,
    /// Since when the engine has not answered, and why. The rest of the view is as old.
    pub away: Option<(Instant, EngineError)>,
    /// Since when the lease of this leader counts: when its last keep-alive was sent.
    pub kept: Option<Instant>,
    /// Another process that runs under this one's UUID.
    pub double: Option<Member>,
}

impl View {
    /// Whether this process may act as the leader at that time.
    pub fn acts(&self, now: Instant) -> Option<u64> {
        let acting = self.acting.filter(|acting| now < acting.until);
        acting.map(|acting| acting.token)
    }
}

/// What the machine wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// Ask this, and tell the answer.
    Ask(Request),
    /// Nothing until then.
    At(Instant),
    /// Nothing any more: it has left the cluster.
    Left,
}

/// A lease of this process.
#[derive(Clone, Copy, Debug)]
struct Held {
    lease: Lease,
    /// When the request that was answered last was sent.
    kept: Instant,
    time: Duration,
    /// The revision at which the key was put; none if it is not known to be there.
    put: Option<u64>,
}

impl Held {
    fn ends(&self) -> Instant {
        self.kept + self.time
    }
}

/// The key of a leader.
#[derive(Debug, Serialize, Deserialize)]
struct Holder {
    uuid: Uuid,
    incarnation: u64,
    /// Is added to the number that comes from revision and lease.
    #[serde(default)]
    base: u64,
}

impl Holder {
    fn token(&self, revision: u64, lease: Option<Lease>) -> u64 {
        let low = lease.map_or(0, |lease| lease.0.unsigned_abs()) & ((1 << LEASE_BITS) - 1);
        self.base.saturating_add(revision << LEASE_BITS | low)
    }
}

/// The state machine. Ask what [`next`](Self::next) says, one request at a time, and tell
/// [`answered`](Self::answered).
#[derive(Debug)]
pub struct Machine {
    join: Join,
    view: View,
    /// The highest token that was ever seen.
    seen: u64,
    /// What is added to this process's tokens. It stays while there is a lease for the leader's
    /// key.
    base: u64,
    member: Option<Held>,
    leader: Option<Held>,
    /// A lease that is to end, because its token is not taken.
    unwanted: Option<Lease>,
    /// When the engine was read last.
    read: Option<Instant>,
    /// Whether the last reading found no leader, and nothing has been tried since.
    is_vacant: bool,
    /// The machine waits until then after a failure.
    pause: Option<Instant>,
    is_leaving: bool,
}

impl Machine {
    /// A process that is not a member yet.
    pub fn new(join: Join) -> Self {
        Self {
            join,
            view: View::default(),
            seen: 0,
            base: 0,
            member: None,
            leader: None,
            unwanted: None,
            read: None,
            is_vacant: false,
            pause: None,
            is_leaving: false,
        }
    }

    /// The cluster as the engine last had it.
    pub fn view(&self) -> &View {
        &self.view
    }

    /// Whether the process is a member, and has read who else is.
    pub fn is_member(&self) -> bool {
        self.member.is_some_and(|held| held.put.is_some()) && self.read.is_some()
    }

    /// A token was seen elsewhere, as in the hello of another server. No lower one counts.
    pub fn saw(&mut self, token: u64) {
        self.seen = self.seen.max(token);
        if self.view.leader.is_some_and(|leader| leader.token < self.seen) {
            self.view.leader = None;
        }
        self.show();
    }

    /// Reads the engine next, because something has been written to it.
    pub fn reread(&mut self) {
        self.read = None;
    }

    /// From now on it gives its leases back, the leader's first.
    pub fn leave(&mut self) {
        self.is_leaving = true;
        self.view.acting = None;
        self.pause = None;
    }

    /// From now on it does not lead: it gives the lease of a leader back, and stays a member.
    pub fn resign(&mut self) {
        self.join.leads = false;
        self.unwanted = self.leader.take().map(|held| held.lease).or(self.unwanted);
        self.show();
    }

    /// What to do at this time.
    pub fn next(&mut self, now: Instant) -> Next {
        for held in [&mut self.leader, &mut self.member] {
            if held.is_some_and(|held| held.ends() <= now) {
                *held = None;
            }
        }
        if self.is_leaving {
            let last = self.leader.take().or_else(|| self.member.take());
            return last.map_or(Next::Left, |held| Next::Ask(Request::Revoke(held.lease)));
        }
        if let Some(until) = self.pause.filter(|until| now < *until) {
            return Next::At(until);
        }
        if let Some(lease) = self.unwanted.take() {
            return Next::Ask(Request::Revoke(lease));
        }
        // The most urgent first: a leader that is not in time has to stop.
        let mut wait = now + READ;
        let mut is_due = |since: Option<Instant>, every: Duration| match since.map(|since| since + every) {
            Some(at) if at > now => {
                wait = wait.min(at);
                false
            }
            _ => true,
        };
        if let Some(held) = self.leader.filter(|held| held.put.is_some())
            && is_due(Some(held.kept), READ)
        {
            return Next::Ask(Request::KeepAlive(held.lease));
        }
        if is_due(self.read, READ) {
            return Next::Ask(Request::Read);
        }
        match self.member {
            None => return Next::Ask(Request::Grant(MEMBER_TIME)),
            Some(held) if held.put.is_none() && self.view.double.is_none() => {
                let key = format!("{MEMBERS}{}", self.join.member.uuid);
                return Next::Ask(put(key, &self.join.member, held.lease, When::Always));
            }
            Some(held) if is_due(Some(held.kept), MEMBER_KEEPS) => {
                return Next::Ask(Request::KeepAlive(held.lease));
            }
            Some(_) => {}
        }
        if self.is_vacant && self.join.leads && self.view.double.is_none() {
            match self.leader {
                None => return Next::Ask(Request::Grant(LEADER_TIME)),
                Some(held) if held.put.is_none() => {
                    let key = LEADER.to_owned();
                    return Next::Ask(put(key, &self.holder(), held.lease, When::Absent));
                }
                Some(_) => {}
            }
        }
        Next::At(wait)
    }

    /// Takes the answer to a request that was sent at `sent`.
    pub fn answered(
        &mut self,
        request: &Request,
        sent: Instant,
        now: Instant,
        answer: Result<Answer, EngineError>,
    ) {
        match answer {
            Ok(answer) => {
                if let Some((since, _)) = self.view.away.take() {
                    info!(target: LOG, "the engine answers again after {} s", (now - since).as_secs());
                }
                self.take(request, sent, answer);
            }
            // The lease has ended earlier than the engine was to end it: it has forgotten it.
            Err(EngineError::NoLease) => self.lose(request),
            Err(why) => {
                if self.view.away.is_none() {
                    warn!(target: LOG, "{why}");
                }
                let since = self.view.away.take().map_or(sent, |(since, _)| since);
                self.view.away = Some((since, why));
                self.pause = Some(now + RETRY);
            }
        }
        self.show();
    }

    fn take(&mut self, request: &Request, sent: Instant, answer: Answer) {
        match (request, answer) {
            (Request::Grant(time), Answer::Granted(lease)) => {
                let held = Some(Held {
                    lease,
                    kept: sent,
                    time: *time,
                    put: None,
                });
                match *time == LEADER_TIME {
                    true => self.leader = held,
                    false => self.member = held,
                }
            }
            (Request::KeepAlive(lease), Answer::Alive(true)) => {
                if let Some(held) = self.held(*lease) {
                    held.kept = sent;
                }
            }
            (Request::KeepAlive(_), Answer::Alive(false)) => self.lose(request),
            (Request::Put { key, .. }, Answer::Put(revision)) if key == LEADER => self.lead(revision),
            (
                Request::Put {
                    lease: Some(lease), ..
                },
                Answer::Put(revision),
            ) => {
                if let Some(held) = self.held(*lease) {
                    held.put = Some(revision);
                    // So that the view has this process, too.
                    self.read = None;
                }
            }
            // Another one was faster. The lease ends by itself.
            (Request::Put { key, .. }, Answer::Differs(_)) if key == LEADER => {
                self.leader = None;
                self.is_vacant = false;
                self.read = None;
            }
            (Request::Read, Answer::Kept(kept)) => {
                self.read = Some(sent);
                self.see(kept);
            }
            _ => {}
        }
    }

    fn held(&mut self, lease: Lease) -> Option<&mut Held> {
        let all = [self.leader.as_mut(), self.member.as_mut()];
        all.into_iter().flatten().find(|held| held.lease == lease)
    }

    /// The lease of a request is over.
    fn lose(&mut self, request: &Request) {
        let (Request::KeepAlive(lost)
        | Request::Put {
            lease: Some(lost), ..
        }) = request
        else {
            return;
        };
        for held in [&mut self.leader, &mut self.member] {
            if held.is_some_and(|held| held.lease == *lost) {
                *held = None;
            }
        }
        // What was read may be as old as the lease.
        self.is_vacant = false;
        self.read = None;
    }

    /// The leader's key is this process's own since that revision.
    fn lead(&mut self, revision: u64) {
        let holder = self.holder();
        let Some(held) = &mut self.leader else { return };
        let token = holder.token(revision, Some(held.lease));
        self.is_vacant = false;
        // An engine that has forgotten something gives numbers again.
        if token < self.seen {
            warn!(target: LOG, "the engine has gone back to revision {revision}: its leader is not taken");
            self.unwanted = self.leader.take().map(|held| held.lease);
            self.base = self.seen;
            return;
        }
        if held.put.replace(revision).is_none() {
            info!(target: LOG, "this server leads, with token {token}");
        }
        self.seen = token;
        let Member {
            uuid, incarnation, ..
        } = self.join.member;
        self.view.leader = Some(Leader {
            uuid,
            incarnation,
            token,
        });
    }

    fn see(&mut self, kept: Kept) {
        let own = self.join.member.uuid;
        self.view.members.clear();
        self.view.documents.clear();
        // The key of a former incarnation is replaced once, when this one enters. After that the
        // other process has put the key, and the two must not take it from each other for ever.
        let has_entered =
            self.view.double.take().is_some() || self.member.is_some_and(|held| held.put.is_some());
        let mut is_listed = false;
        let mut leader = None;
        for (key, entry) in kept.entries {
            if key == LEADER {
                leader = Some(entry);
            } else if let Some(name) = key.strip_prefix(DOCUMENTS) {
                let Entry {
                    value: text,
                    modified: revision,
                    ..
                } = entry;
                self.view
                    .documents
                    .insert(name.to_owned(), Document { text, revision });
            } else if let Some(uuid) = key.strip_prefix(MEMBERS) {
                match serde_json::from_slice::<Member>(&entry.value) {
                    Ok(member) if member.uuid.to_string() == uuid => {
                        self.seen = self.seen.max(member.token);
                        is_listed |=
                            member == self.join.member && entry.lease == self.member.map(|held| held.lease);
                        let is_other =
                            member.uuid == own && member.incarnation != self.join.member.incarnation;
                        if is_other && has_entered {
                            self.view.double = Some(member.clone());
                        }
                        self.view.members.push(member);
                    }
                    // Another version's, or somebody has written it by hand.
                    _ => warn!(target: LOG, "the key {} is no member", excerpt(&key)),
                }
            }
        }
        self.view.members.sort();
        if let Some(held) = &mut self.member
            && !is_listed
        {
            held.put = None;
        }
        self.see_leader(leader);
    }

    fn see_leader(&mut self, entry: Option<Entry>) {
        let mine = self.leader.map(|held| held.lease);
        self.view.leader = None;
        self.is_vacant = entry.is_none();
        let Some(entry) = entry else {
            // It was forgotten, or not put yet. The lease serves for another attempt.
            if self.leader.is_some_and(|held| held.put.is_some()) {
                self.leader = None;
            }
            return;
        };
        if mine.is_some() && entry.lease == mine {
            return self.lead(entry.created);
        }
        self.leader = None;
        let holder = match serde_json::from_slice::<Holder>(&entry.value) {
            Ok(holder) => holder,
            Err(e) => return warn!(target: LOG, "the key of the leader cannot be read: {e}"),
        };
        let token = holder.token(entry.created, entry.lease);
        if token < self.seen {
            // It does not know the higher token, or it would have given this one back.
            self.join.member.token = self.seen;
            return;
        }
        (self.seen, self.base) = (token, self.base.max(holder.base));
        self.view.leader = Some(Leader {
            uuid: holder.uuid,
            incarnation: holder.incarnation,
            token,
        });
    }

    fn holder(&self) -> Holder {
        Holder {
            uuid: self.join.member.uuid,
            incarnation: self.join.member.incarnation,
            base: self.base,
        }
    }

    /// Brings the view up to what is held.
    fn show(&mut self) {
        let held = self.leader.zip(self.view.leader).filter(|_| !self.is_leaving);
        let held = held.filter(|(held, _)| held.put.is_some());
        self.view.kept = held.map(|(held, _)| held.kept);
        self.view.acting = held.map(|(held, leader)| Acting {
            token: leader.token,
            until: held.ends() - MARGIN,
        });
    }
}

fn put(key: String, value: &impl Serialize, lease: Lease, when: When) -> Request {
    Request::Put {
        key,
        // These types have only text and numbers, which JSON has as well.
        value: serde_json::to_vec(value).unwrap_or_default(),
        lease: Some(lease),
        when,
    }
}
