//! Membership and leadership, as a state machine without threads, clock or I/O: it returns the next
//! request to the engine, handles the answers, and keeps a [`View`].
//!
//! ```text
//!            Grant 10 s ─▶ Put members/UUID ─▶ KeepAlive every 3 s ┐
//!  every   ┌────────────────────◀ the lease is over ◀──────────────┘
//!  second: Read ─▶ leader? ── another ──▶ follow it
//!                    │ none
//!                    ▼
//!            Grant 5 s ─▶ Put leader, if absent ─▶ acts; KeepAlive every second
//!                    ▲                                      │ another server was faster,
//!                    └──────────────────────────────────────┘ the lease is over, or lost
//! ```
//!
//! # Why there is one leader
//! * The key `leader` is bound to a lease, and is put only if it is absent. Its holder counts the
//!   time of the lease from *before* it sent the request that was answered. So the lease ends for
//!   the holder earlier than for the engine, and the holder stops acting a second before that.
//! * A holder that was paused finds by its clock that its lease is over. Frames that it began to send
//!   before the pause carry its *fencing token*, and a receiver accepts only the highest token that
//!   it has seen.
//! * Tokens of later leaders are higher, because their upper part is the revision at which the key
//!   was created. An engine that has lost its last second may use a revision twice. So the lowest
//!   20 bits come from the lease, and a process that gets a token below one that it has seen revokes
//!   its lease and tries again. Other servers may have seen a higher token: they put it into their
//!   own keys, where the leader reads it.
//! * An engine that was restored from a backup, or is empty, has much lower revisions. So a process
//!   that has revoked its lease adds the highest token that it has seen to its next one. The number
//!   that it adds is in the leader's key, beside its UUID.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use log::{info, warn};
use serde::{Deserialize, Serialize};
use ssntp_transport::{LogLimit, excerpt};
use uuid::Uuid;

use crate::engine::{Answer, EngineError, Entry, Kept, LEADER, Lease, Request, When};

const LOG: &str = "ssntp::engine";
/// The time limit of a call to the engine.
pub const CALL: Duration = Duration::from_secs(1);
/// The time of a leader's lease. A dead leader is replaced when its lease has ended and another
/// server has read the engine again, at most a second later.
pub const LEADER_TIME: Duration = Duration::from_secs(5);
/// The time of a member's lease.
const MEMBER_TIME: Duration = Duration::from_secs(10);
/// The time before the end of its lease at which a leader stops acting, because clocks may run at
/// different speeds.
const MARGIN: Duration = Duration::from_secs(1);
/// The time between two readings of the engine, and between two keep-alives of a leader.
const READ: Duration = Duration::from_secs(1);
/// The time between two keep-alives of a member.
const MEMBER_KEEPS: Duration = Duration::from_secs(3);
/// The pause after a failure, so that an engine that fails at once is not called all the time.
const RETRY: Duration = Duration::from_millis(300);
/// The bits of a token that come from the lease.
const LEASE_BITS: u32 = 20;

const MEMBERS: &str = "members/";
pub(crate) const DOCUMENTS: &str = "documents/";

/// A server of the cluster, as all members see it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Member {
    /// The UUID.
    pub uuid: Uuid,
    /// A number that is different for each start of the process.
    pub incarnation: u64,
    /// The addresses at which the other servers reach it.
    pub addresses: Vec<String>,
    /// The version of the program.
    pub version: String,
    /// The highest token that this member has seen, once it sees a leader with a lower one; else 0.
    /// That leader reads it here and gives its lease back.
    #[serde(default)]
    pub token: u64,
}

/// The settings of a process that joins the cluster.
#[derive(Clone, Debug)]
pub struct Join {
    /// The process, as the other members see it.
    pub member: Member,
    /// True if the process becomes the leader when there is none.
    pub leads: bool,
}

/// The leader of the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leader {
    /// The UUID.
    pub uuid: Uuid,
    /// The incarnation.
    pub incarnation: u64,
    /// The fencing token of the term. A later leader has a higher one.
    pub token: u64,
}

/// The term of this process, if it is the leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Acting {
    /// The fencing token, which all frames of the leader carry.
    pub token: u64,
    /// The time from which the process must not act, unless a later view has a later time.
    pub until: Instant,
}

/// A document of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Document {
    /// The text.
    pub text: Vec<u8>,
    /// The revision of the last change, for [`When::At`].
    pub revision: u64,
}

/// The cluster, as of the last answer of the engine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct View {
    /// The members, this process included, in the order of their UUIDs.
    pub members: Vec<Member>,
    /// The leader. While the engine is away, the last known leader.
    pub leader: Option<Leader>,
    /// Set if this process is the leader. Compare `until` with the time before each act.
    pub acting: Option<Acting>,
    /// The documents by their names.
    pub documents: BTreeMap<String, Document>,
    /// If the engine does not answer all requests that are due, such as readings: the time since which it
    /// does not, and the last error. The rest of the view is as of that time.
    pub away: Option<(Instant, EngineError)>,
    /// The time at which the last keep-alive of this leader was sent. The lease counts from then.
    pub kept: Option<Instant>,
    /// Another process with the UUID of this one.
    pub double: Option<Member>,
}

impl View {
    /// The fencing token of this process if it may act as the leader at that time.
    pub fn acts(&self, now: Instant) -> Option<u64> {
        let acting = self.acting.filter(|acting| now < acting.until);
        acting.map(|acting| acting.token)
    }
}

/// The next thing to do for the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// Send this request, and pass the answer to [`Machine::handle_answer`].
    Ask(Request),
    /// Wait until this time.
    At(Instant),
    /// The process has left the cluster; there is nothing more to do.
    Left,
}

/// A lease of this process.
#[derive(Clone, Copy, Debug)]
struct Held {
    lease: Lease,
    /// The time at which the last grant or keep-alive that was answered was sent.
    kept: Instant,
    time: Duration,
    /// The revision at which the key was put; `None` if the engine may not have the key.
    put: Option<u64>,
}

impl Held {
    fn ends(&self) -> Instant {
        self.kept + self.time
    }
}

/// The value of the key `leader`.
#[derive(Debug, Serialize, Deserialize)]
struct Holder {
    uuid: Uuid,
    incarnation: u64,
    /// The offset that this leader adds to the token made of revision and lease.
    #[serde(default)]
    base: u64,
}

impl Holder {
    fn token(&self, revision: u64, lease: Option<Lease>) -> u64 {
        // The revision takes the upper 44 bits, which is enough for centuries of changes.
        let low = lease.map_or(0, |lease| lease.0.unsigned_abs()) & ((1 << LEASE_BITS) - 1);
        self.base.saturating_add(revision << LEASE_BITS | low)
    }
}

/// The state machine. Send the requests that [`next`](Self::next) returns, one at a time, and pass
/// the answers to [`handle_answer`](Self::handle_answer).
#[derive(Debug)]
pub struct Machine {
    join: Join,
    view: View,
    /// The highest token that this process has seen.
    seen: u64,
    /// The number that is added to this process's tokens. It must not change while the process holds
    /// a lease for the leader's key, because the key contains it.
    base: u64,
    member: Option<Held>,
    leader: Option<Held>,
    /// A lease to revoke, because its token is too low or the process has resigned.
    unwanted: Option<Lease>,
    /// The time of the last answer to a reading of the engine; `None` to read at once.
    read: Option<Instant>,
    /// True if the last reading found no leader, and no attempt to become one has failed since.
    is_vacant: bool,
    /// The end of the pause after a failure.
    pause: Option<Instant>,
    is_leaving: bool,
    /// True once this process was a member.
    has_joined: bool,
    /// The engine is read every second, and keys with wrong values may stay for ever.
    lines: LogLimit<()>,
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
            has_joined: false,
            lines: LogLimit::default(),
        }
    }

    /// The cluster, as of the last answer of the engine.
    pub fn view(&self) -> &View {
        &self.view
    }

    /// True once the process is a member and has read the list of members.
    pub fn is_member(&self) -> bool {
        self.member.is_some_and(|held| held.put.is_some()) && self.read.is_some()
    }

    /// Reports a token that was received elsewhere, as in the hello of another server. Leaders with
    /// lower tokens are ignored from then on.
    pub fn saw(&mut self, token: u64) {
        self.seen = self.seen.max(token);
        if self.view.leader.is_some_and(|leader| leader.token < self.seen) {
            self.view.leader = None;
        }
        self.show();
    }

    /// Makes the next request a reading, because a document has been written.
    pub fn reread(&mut self) {
        self.read = None;
    }

    /// True if the engine was read since the last [`reread`](Self::reread).
    pub(crate) fn has_read(&self) -> bool {
        self.read.is_some()
    }

    /// The request that writes a document as the leader; `None` if this process may not act as the leader
    /// at that time. `revision` is that of the last change of the document.
    pub(crate) fn document(
        &self,
        name: &str,
        text: &[u8],
        revision: Option<u64>,
        now: Instant,
    ) -> Option<Request> {
        let held = self.leader.filter(|_| self.view.acts(now).is_some())?;
        Some(Request::Put {
            key: format!("{DOCUMENTS}{name}"),
            value: text.to_vec(),
            lease: None,
            when: When::Led(held.lease, revision),
        })
    }

    /// Leaves the cluster: the next requests revoke the leases, the leader's first.
    pub fn leave(&mut self) {
        self.is_leaving = true;
        self.view.acting = None;
        self.pause = None;
    }

    /// Gives up leadership: the machine revokes the lease of a leader, and stays a member.
    pub fn resign(&mut self) {
        self.join.leads = false;
        // Revoking the lease removes the key at once, so the next leader need not wait for its end.
        self.unwanted = self.leader.take().map(|held| held.lease).or(self.unwanted);
        self.show();
    }

    /// The next thing to do at this time.
    pub fn next(&mut self, now: Instant) -> Next {
        // A lease that has ended by this process's clock is dropped, even if the engine still has it.
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
        let mut wait = now + READ;
        let mut is_due = |since: Option<Instant>, every: Duration| match since.map(|since| since + every) {
            Some(at) if at > now => {
                wait = wait.min(at);
                false
            }
            _ => true,
        };
        // Keep-alives come before readings, which may be due all the time while documents are written. That
        // of a leader is the first: if it is late, the leader has to stop acting.
        let leader = self.leader.filter(|held| held.put.is_some());
        for (held, every) in [(leader, READ), (self.member, MEMBER_KEEPS)] {
            if let Some(held) = held
                && is_due(Some(held.kept), every)
            {
                return Next::Ask(Request::KeepAlive(held.lease));
            }
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
        // Every request that was due has been answered. One of a kind that is answered does not end
        // this: an engine may keep a lease alive and refuse to be read.
        if let Some((since, _)) = self.view.away.take() {
            info!(target: LOG, "the engine answers again after {} s", (now - since).as_secs());
        }
        Next::At(wait)
    }

    /// Handles the answer to a request that was sent at the time `sent`.
    pub fn handle_answer(
        &mut self,
        request: &Request,
        sent: Instant,
        now: Instant,
        answer: Result<Answer, EngineError>,
    ) {
        match answer {
            Ok(answer) => {
                self.take(request, sent, now, answer);
                self.has_joined |= self.is_member();
            }
            Err(why) => {
                if why == EngineError::NoLease {
                    self.lose(request);
                }
                // Until this process has joined, its caller gets the error.
                if self.view.away.is_none() && self.has_joined {
                    warn!(target: LOG, "{why}");
                }
                let since = self.view.away.take().map_or(sent, |(since, _)| since);
                self.view.away = Some((since, why));
                self.pause = Some(now + RETRY);
            }
        }
        self.show();
    }

    fn take(&mut self, request: &Request, sent: Instant, now: Instant, answer: Answer) {
        match (request, answer) {
            (Request::Grant(time), Answer::Granted(lease)) => {
                let held = Some(Held {
                    lease,
                    kept: sent,
                    time: *time,
                    put: None,
                });
                // The two leases have different times, which tell their requests apart.
                if *time == LEADER_TIME {
                    self.leader = held;
                } else {
                    self.member = held;
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
                    // The next reading adds this process to the view.
                    self.read = None;
                }
            }
            // Another server was faster. The next reading drops this process's lease, which ends by itself.
            (Request::Put { key, .. }, Answer::Differs(_)) if key == LEADER => {
                self.is_vacant = false;
                self.read = None;
            }
            (Request::Read, Answer::Kept(kept)) => {
                // From the answer, so that with slow calls the readings and the keep-alives of a leader
                // leave time for other requests.
                self.read = Some(now);
                self.see(kept, now);
            }
            _ => {}
        }
    }

    fn held(&mut self, lease: Lease) -> Option<&mut Held> {
        let all = [self.leader.as_mut(), self.member.as_mut()];
        all.into_iter().flatten().find(|held| held.lease == lease)
    }

    /// Drops the lease of a request, which is over.
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
        // The last reading may be from before the lease ended. A new one comes before the next grant.
        self.read = None;
    }

    /// Begins or continues the term of this process, which has held the leader's key since that
    /// revision.
    fn lead(&mut self, revision: u64) {
        let holder = self.holder();
        let Some(held) = &mut self.leader else { return };
        let token = holder.token(revision, Some(held.lease));
        self.is_vacant = false;
        // An engine that has lost data uses revisions again.
        if token < self.seen {
            warn!(target: LOG, "the engine has gone back to revision {revision}: this server revokes its lease");
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

    /// Updates the view from a reading.
    fn see(&mut self, kept: Kept, now: Instant) {
        let own = self.join.member.uuid;
        self.view.members.clear();
        self.view.documents.clear();
        // When this process joins, it replaces the key of its former incarnation once. If the key has
        // another incarnation after that, another process uses the same UUID, and the two must not
        // overwrite each other's key for ever.
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
                    // Another version of the program, or a person, has written the key.
                    _ => {
                        if let Some(more) = self.lines.admit((), "not a member", now) {
                            warn!(target: LOG, "the value of the key {} is not a member{more}", excerpt(&key));
                        }
                    }
                }
            }
        }
        self.view.members.sort();
        if let Some(held) = &mut self.member
            && !is_listed
        {
            held.put = None;
        }
        self.see_leader(leader, now);
    }

    fn see_leader(&mut self, entry: Option<Entry>, now: Instant) {
        let mine = self.leader.map(|held| held.lease);
        self.view.leader = None;
        self.is_vacant = entry.is_none();
        let Some(entry) = entry else {
            // If the engine has lost the key, the lease is lost as well. If the key was not put yet, the
            // lease is kept for that.
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
            Err(e) => {
                if let Some(more) = self.lines.admit((), "leader", now) {
                    warn!(target: LOG, "the key of the leader cannot be read: {e}{more}");
                }
                return;
            }
        };
        let token = holder.token(entry.created, entry.lease);
        if token < self.seen {
            // That leader does not know the higher token, or it would have given its lease back. This
            // member's key tells it.
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

    /// Updates the leadership in the view.
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
        // These types contain only texts and numbers, so writing them as JSON cannot fail.
        value: serde_json::to_vec(value).unwrap_or_default(),
        lease: Some(lease),
        when,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::MemoryEngine;

    #[test]
    #[expect(clippy::disallowed_methods, reason = "any time will do")]
    fn an_engine_that_keeps_leases_alive_and_refuses_readings_is_away() {
        let member = Member {
            uuid: Uuid::from_u128(1),
            incarnation: 1,
            addresses: Vec::new(),
            version: String::new(),
            token: 0,
        };
        let mut machine = Machine::new(Join { member, leads: true });
        let (engine, start) = (MemoryEngine::new(), Instant::now());
        let mut now = start;
        let mut run = |refuses: bool, seconds: u64| {
            let (end, mut away) = (now + Duration::from_secs(seconds), Vec::new());
            while now < end {
                match machine.next(now) {
                    Next::Ask(Request::Read) if refuses => {
                        let why = EngineError::Credentials("no right to read".to_owned());
                        machine.handle_answer(&Request::Read, now, now, Err(why));
                    }
                    Next::Ask(request) => {
                        machine.handle_answer(&request, now, now, engine.ask_at(now, &request));
                    }
                    Next::At(at) => now = at,
                    Next::Left => break,
                }
                away.push(machine.view().away.as_ref().map(|(since, _)| *since));
                assert!(
                    away.len() < 1000,
                    "an engine that refuses at once is asked all the time"
                );
            }
            away
        };
        assert!(run(false, 10).iter().all(Option::is_none));
        let away = run(true, 10);
        let begin = away.iter().position(Option::is_some).unwrap();
        assert!(away[begin].is_some_and(|since| since >= start));
        assert!(
            away[begin..].iter().all(|since| *since == away[begin]),
            "{away:?}"
        );
        assert_eq!(run(false, 10).last(), Some(&None));
    }
    /// A machine that leads, the time, and its lease.
    fn leading() -> (Machine, Instant, Lease) {
        let (machine, _, now) = leading_at();
        let lease = machine.leader.unwrap().lease;
        (machine, now, lease)
    }

    /// A machine that leads, its engine, and the time.
    fn leading_at() -> (Machine, MemoryEngine, Instant) {
        let member = Member {
            uuid: Uuid::from_u128(1),
            incarnation: 1,
            addresses: Vec::new(),
            version: String::new(),
            token: 0,
        };
        let mut machine = Machine::new(Join { member, leads: true });
        let (engine, mut now) = (MemoryEngine::new(), ssntp_transport::now());
        // An engine that is empty later uses lower revisions.
        for number in 0..5 {
            let (key, value) = (format!("{DOCUMENTS}{number}"), Vec::new());
            let (lease, when) = (None, When::Always);
            let document = Request::Put {
                key,
                value,
                lease,
                when,
            };
            engine.ask_at(now, &document).unwrap();
        }
        while machine.view().acts(now).is_none() {
            match machine.next(now) {
                Next::Ask(request) => {
                    machine.handle_answer(&request, now, now, engine.ask_at(now, &request));
                }
                Next::At(at) => now = at,
                Next::Left => panic!("it has left"),
            }
        }
        (machine, engine, now)
    }

    #[test]
    fn a_request_without_an_answer_costs_no_term() {
        let (mut machine, now, lease) = leading();
        let (kept, before) = (Request::KeepAlive(lease), machine.view().acting.unwrap());
        for why in [
            EngineError::Away("its answer was lost".to_owned()),
            EngineError::Credentials("no right".to_owned()),
        ] {
            machine.handle_answer(&kept, now, now, Err(why));
            assert_eq!(machine.view().acting, Some(before));
        }
        let later = now + READ;
        machine.handle_answer(&kept, later, later, Ok(Answer::Alive(true)));
        let after = machine.view().acting.unwrap();
        assert!(after.token == before.token && after.until > before.until);
    }

    #[test]
    fn a_leader_that_hears_that_its_lease_is_over_stops_at_once_and_reads_before_it_leads_again() {
        let (mut machine, now, lease) = leading();
        machine.handle_answer(&Request::KeepAlive(lease), now, now, Ok(Answer::Alive(false)));
        assert_eq!(machine.view().acts(now), None);
        assert_eq!(machine.next(now), Next::Ask(Request::Read));
    }

    /// Otherwise its clients would refuse its frames.
    #[test]
    fn a_server_without_others_leads_with_a_higher_token_after_its_engine_was_emptied() {
        let (mut machine, engine, mut now) = leading_at();
        let before = machine.view().acts(now).unwrap();
        engine.lose();
        while machine.view().acts(now).is_none_or(|token| token == before) {
            match machine.next(now) {
                Next::Ask(request) => {
                    machine.handle_answer(&request, now, now, engine.ask_at(now, &request));
                }
                Next::At(at) => now = at,
                Next::Left => panic!("it has left"),
            }
        }
        assert!(machine.view().acts(now) > Some(before), "{:?}", machine.view());
    }

    /// Otherwise its term would go on under the same token after it has ended, at an engine whose clock is slower.
    #[test]
    fn a_lease_that_is_over_by_the_own_clock_is_not_kept_alive() {
        let (mut machine, now, lease) = leading();
        let next = machine.next(now + LEADER_TIME);
        assert!(
            !matches!(&next, Next::Ask(Request::KeepAlive(kept)) if *kept == lease),
            "{next:?}"
        );
    }

    #[test]
    fn a_leader_writes_no_document_after_its_term_although_its_lease_goes_on() {
        let (machine, now, _) = leading();
        let until = machine.view().acting.unwrap().until;
        assert!(machine.document("tenants", b"", None, now).is_some());
        assert!(machine.document("tenants", b"", None, until).is_none());
    }
}
