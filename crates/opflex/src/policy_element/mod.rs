//! The policy element: resolves policy and endpoints, declares endpoints and
//! reports state, as one state machine without sockets, threads or clock.
//!
//! ```text
//!   resolve, release, declare, report          connected, message, disconnected, tick
//!                 │                                          │
//!            ┌────▼──────────────────────────────────────────▼────┐
//!            │ ElementCore                                        │
//!            │   items ─ resolves, declarations, reports;         │
//!            │    │      requests without answer; refresh times   │
//!            │   pool ── servers, their states and roles          │
//!            │   trees ─ the received policy and endpoints        │
//!            └────────────────────────┬───────────────────────────┘
//!                                     ▼
//!             ElementAction::Dial | Send | Close        ElementAction::Event(ElementEvent)
//! ```
//!
//! One dispatcher owns an [`ElementCore`]. The dispatcher calls the core for each event and
//! passes the time; each call appends [`ElementAction`]s to a list, which the dispatcher carries
//! out. A session with one server:
//!
//! ```text
//!  element                                   server
//!    │ Dial, connected                          │
//!    │ echo, send_identity ────────────────────>│
//!    │<──────────────── name, roles, location, ─│
//!    │                peers: dial the new peers │
//!    │ policy_resolve of all resolves ─────────>│ to policy repositories
//!    │ endpoint_declare, endpoint_resolve ─────>│ to endpoint registries
//!    │ state_report ───────────────────────────>│ to observers
//!    │<──────────────────────────────── results │ no result: repeated, with growing pauses
//!    │<────────────────────────── policy_update │ ElementEvent::Changed
//!    │ the same requests, after prr/3 to prr/2 ─>│
//!    │ policy_unresolve ───────────────────────>│ when the last reference is released
//! ```
//!
//! Every request is sent to all servers of the role, and repeated to those that do not answer.
//! Received objects that no resolve covers are dropped.
//!
//! | file | contents |
//! |---|---|
//! | `settings` | the settings |
//! | `event` | actions and events |
//! | `pool` | the servers |
//! | `items` | resolves, declarations, reports and their requests |
//! | `sessions` | connections: identity, echoes, answers |
//! | `received` | received objects, and the removal of objects that no resolve covers |

mod event;
mod items;
mod pool;
mod received;
mod sessions;
mod settings;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::time::Instant;

use log::warn;

pub use self::event::{ElementAction, ElementEvent, Health, ObjectChange, PeerState};
use self::items::Items;
pub(crate) use self::items::Key;
use self::pool::Pool;
pub use self::settings::{ElementLimits, ElementSettings};
pub use super::message::Store;
use super::message::{PerStore, Proxies, Role};
use super::model::{ManagedObject, ModelError, Name, Target, Tree, Uri};
use super::peer::{Actions, CloseReason, ConnectionId};
use super::rpc::Random;
use ssntp_transport::{LogLimit, after, excerpt};

/// A reference to a policy or an endpoint. It keeps the resolve in force until it is given to
/// [`ElementCore::release`].
#[derive(Debug)]
pub struct ResolveReference {
    key: Key,
    /// True if the references of the policy are followed.
    follow: bool,
}

/// A policy element without its threads.
///
/// Threads: plain data for one owner. No call blocks.
#[derive(Debug)]
pub struct ElementCore {
    settings: ElementSettings,
    pool: Pool,
    items: Items,
    /// Released references, each with the time until which the resolve is kept.
    released: VecDeque<(Instant, ResolveReference)>,
    /// The objects of the resolves: received objects, and objects of the start policy.
    trees: PerStore<Tree>,
    /// The whole start policy, of which resolves without an answer use parts.
    start_policy: Tree,
    /// The time at which resolves without a reference are removed.
    sweep: Option<Instant>,
    health: Health,
    location: Option<String>,
    proxies: Option<Proxies>,
    /// The number of policies that are resolved only because other policies refer to them.
    followed: usize,
    /// True if a policy was not resolved because of the limit of `followed`.
    follow_limited: bool,
    /// Limits the log lines that servers cause, by address.
    log: LogLimit<String>,
    actions: Actions<ElementEvent>,
}

impl ElementCore {
    /// An element that begins to dial at its first tick. Its delays depend on the seed, so each
    /// element should have a different seed.
    pub fn new(settings: ElementSettings, seed: u64, now: Instant) -> Self {
        let mut random = Random::new(seed);
        Self {
            pool: Pool::new(&settings, Random::new(random.bits()), now),
            // The pool has another seed, so that its delays differ.
            items: Items::new(&settings, random),
            location: settings.location.clone(),
            settings,
            released: VecDeque::new(),
            trees: PerStore::default(),
            start_policy: Tree::new(),
            sweep: None,
            health: Health::Down,
            proxies: None,
            followed: 0,
            follow_limited: false,
            log: LogLimit::default(),
            actions: Actions::new(now),
        }
    }

    /// Takes the actions that the calls since the last one have added, in their order.
    /// Call it after each of the other calls, or after several.
    pub fn take_actions(&mut self) -> Vec<ElementAction> {
        self.actions.take()
    }

    /// Sets the start policy. A resolve has the objects of the start policy until a server answers.
    /// Call it before the first resolve. A further call replaces the start policy; if it fails, the
    /// earlier one stays.
    pub fn start_with(&mut self, policy: Vec<ManagedObject>) -> Result<(), ModelError> {
        let mut start_policy = Tree::new();
        start_policy.merge(policy)?;
        self.start_policy = start_policy;
        Ok(())
    }

    /// Resolves a policy and keeps it up to date until [`release`](Self::release). With
    /// `follow`, the policies that it refers to are resolved too, and so on.
    pub fn resolve_policy(
        &mut self,
        subject: impl Into<Name>,
        target: impl Into<Target>,
        follow: bool,
        now: Instant,
    ) -> ResolveReference {
        let key = Key::Resolve(Store::Policy, subject.into(), target.into());
        self.refer(key, follow, now)
    }

    /// Resolves an endpoint and keeps it up to date until [`release`](Self::release).
    pub fn resolve_endpoint(
        &mut self,
        subject: impl Into<Name>,
        target: impl Into<Target>,
        now: Instant,
    ) -> ResolveReference {
        let key = Key::Resolve(Store::Endpoints, subject.into(), target.into());
        self.refer(key, false, now)
    }

    /// Releases a reference. If it was the last reference to the resolve, the servers get an
    /// unresolve after [`ElementSettings::linger`], and the objects are removed.
    pub fn release(&mut self, reference: ResolveReference, now: Instant) {
        // Not at once, because a released policy is often resolved again at the same time.
        let end = after(now, self.settings.linger);
        self.released.push_back((end, reference));
    }

    /// Declares an endpoint: its topmost object first, then everything below it. It replaces an
    /// earlier declaration with the URI of the topmost object. An empty list has no effect.
    pub fn declare(&mut self, endpoint: Vec<ManagedObject>, now: Instant) -> Result<(), ModelError> {
        endpoint.iter().try_for_each(ManagedObject::check)?;
        if let Some(top) = endpoint.first() {
            let key = Key::Declaration(top.uri.clone());
            self.send_objects(&key, endpoint, now);
        }
        Ok(())
    }

    /// Ends a declaration. Returns false if there is none.
    pub fn undeclare(&mut self, uri: &Uri) -> bool {
        let key = Key::Declaration(uri.clone());
        // Sent before the declaration is dropped, because the request has the class of the object.
        let to = self.pool.ready(&key.role());
        self.items.take_back(&key, to, &mut self.actions);
        self.stop_sending(&key)
    }

    /// Reports an object now, and periodically until it is withdrawn. It replaces an earlier report
    /// with the same URI.
    pub fn report(&mut self, object: ManagedObject, now: Instant) -> Result<(), ModelError> {
        object.check()?;
        let key = Key::Report(object.uri.clone());
        self.send_objects(&key, vec![object], now);
        Ok(())
    }

    /// Stops reporting an object. The observer keeps the last report until it expires. Returns false
    /// if the object was not reported.
    pub fn withdraw(&mut self, uri: &Uri) -> bool {
        self.stop_sending(&Key::Report(uri.clone()))
    }

    /// Sets the location to that of the settings, drops the proxies and the learned servers, closes
    /// all connections, and dials the configured servers again. Resolves, declarations, reports and
    /// received objects stay.
    pub fn reset(&mut self, now: Instant) {
        self.location.clone_from(&self.settings.location);
        // The fabric may use other proxies after a reset, so those of before are dropped.
        self.proxies = None;
        let connections = self.pool.reset(now);
        self.close_all(connections);
        self.settle(now);
    }

    /// Closes all connections and dials no more.
    pub fn stop(&mut self, now: Instant) {
        let connections = self.pool.stop();
        self.close_all(connections);
        self.settle(now);
    }

    /// The time at which [`handle_deadline`](Self::handle_deadline) has to be called.
    pub fn next_deadline(&self) -> Option<Instant> {
        let deadlines = [
            self.pool.next_deadline(),
            self.items.next_deadline(),
            self.released.front().map(|(at, ..)| *at),
            self.sweep,
        ];
        deadlines.into_iter().flatten().min()
    }

    /// Does everything that is due at `now`.
    pub fn handle_deadline(&mut self, now: Instant) {
        self.pool_due(now);
        while let Some(alarm) = self.items.retry(now, &mut self.actions) {
            if let Some((key, attempts)) = alarm {
                let (method, about) = (key.method(), key.about());
                // Silent servers cause an alarm for each request, of which there may be thousands.
                if let Some(more) = self.log.admit(String::new(), "no answer", now) {
                    let about = excerpt(&about);
                    warn!("{method} {about}: no answer after {attempts} attempts{more}");
                }
                self.emit(ElementEvent::Unanswered {
                    method,
                    about,
                    attempts,
                });
            }
        }
        // Repetitions come first, because a refresh sends a new request in place of the earlier one.
        while let Some(key) = self.items.refresh(now) {
            self.request_from_all(&key, now);
        }
        self.drop_released(now);
        if self.sweep.is_some_and(|at| at <= now) {
            self.sweep(now);
        }
        self.settle(now);
    }

    /// The received policy.
    pub fn policy(&self) -> &Tree {
        &self.trees[Store::Policy]
    }

    /// The received endpoints.
    pub fn endpoints(&self) -> &Tree {
        &self.trees[Store::Endpoints]
    }

    /// The received policy or endpoints.
    pub fn tree(&self, what: Store) -> &Tree {
        &self.trees[what]
    }

    /// The health. It depends on how many of the servers are ready, and on requests without an
    /// answer.
    pub fn health(&self) -> Health {
        self.health
    }

    /// The servers, by address.
    pub fn peers(&self) -> impl Iterator<Item = (&str, PeerState)> {
        self.pool.states()
    }

    /// The location of the element, from a server or from the settings.
    pub fn location(&self) -> Option<&str> {
        self.location.as_deref()
    }

    /// The declared and reported objects behind a declaration or report, each with its own one.
    pub(crate) fn sent_objects_after(
        &self,
        last: Option<Key>,
    ) -> impl Iterator<Item = (Key, &ManagedObject)> {
        self.items.sent_objects_after(last)
    }

    /// The number of resolves, declarations and reports that no server has answered since they began
    /// or their objects changed.
    pub fn unanswered(&self) -> usize {
        self.items.iter().filter(|(_, item)| !item.answered).count()
    }

    /// The topmost objects of a resolve in force: the object with the URI, or the objects with the
    /// identifier, in the order of their URIs.
    pub fn found(&self, what: Store, subject: impl Into<Name>, target: &Target) -> Vec<Uri> {
        let key = Key::Resolve(what, subject.into(), target.clone());
        let roots = self.items.get(&key).into_iter().flat_map(|item| item.roots(&key));
        let exists = |uri: &&Uri| self.tree(what).get(uri).is_some();
        roots.filter(exists).cloned().collect()
    }

    fn refer(&mut self, key: Key, follow: bool, now: Instant) -> ResolveReference {
        let is_new = self.items.add(&key, now);
        let mut begins_to_follow = false;
        if let Some(item) = self.items.get_mut(&key) {
            if item.references == 0 && item.followed {
                self.followed -= 1;
            }
            begins_to_follow = follow && !item.follows();
            item.references += 1;
            item.following += usize::from(follow);
        }
        if is_new {
            self.bring_start_policy(&key);
            self.request_from_all(&key, now);
        }
        if begins_to_follow {
            self.follow(&key, now);
        }
        ResolveReference { key, follow }
    }

    /// Declares or reports objects. A request is sent only if the objects have changed.
    fn send_objects(&mut self, key: &Key, objects: Vec<ManagedObject>, now: Instant) {
        let is_new = self.items.add(key, now);
        if let Some(item) = self.items.get_mut(key)
            // Equal objects send no message, because applications report in loops.
            && (is_new || item.objects != objects)
        {
            item.objects = objects;
            item.answered = false;
            self.items.draw_refresh(key, now);
            self.request_from_all(key, now);
        }
    }

    /// Sends the request of an item to all servers. It replaces the earlier request of the item.
    fn request_from_all(&mut self, key: &Key, now: Instant) {
        // An answer to the earlier request would otherwise stop the repetition of this one.
        self.items.forget_calls(key);
        let to = self.pool.ready(&key.role());
        self.items.send_request(key, to, now, &mut self.actions);
    }

    /// Sends the resolves, declarations and reports to a server that has become ready, as far as
    /// they are for its roles.
    fn request_all_from(&mut self, connection: ConnectionId, roles: &[Role], now: Instant) {
        let keys: Vec<Key> = self.items.iter().map(|(key, _)| key.clone()).collect();
        for key in keys.iter().filter(|key| roles.contains(&key.role())) {
            self.items
                .send_request(key, vec![connection], now, &mut self.actions);
        }
    }

    /// Removes a declaration or a report. Returns false if there is none.
    fn stop_sending(&mut self, key: &Key) -> bool {
        let existed = self.items.drop(key).is_some();
        // Its alarm has ended.
        self.update_health();
        existed
    }

    /// Drops the released references whose time is over. The next sweep removes their resolves.
    fn drop_released(&mut self, now: Instant) {
        while self.released.front().is_some_and(|(at, ..)| *at <= now) {
            let Some((_, ResolveReference { key, follow })) = self.released.pop_front() else {
                return;
            };
            if let Some(item) = self.items.get_mut(&key) {
                item.references -= 1;
                item.following -= usize::from(follow);
                if item.references == 0 && item.followed {
                    self.followed += 1;
                }
            }
            self.sweep = Some(now);
        }
    }

    fn close_all(&mut self, connections: Vec<ConnectionId>) {
        for connection in connections {
            self.items.connection_ended(connection);
            let reason = CloseReason::Asked;
            self.actions.push(ElementAction::Close { connection, reason });
        }
    }

    fn sweep_soon(&mut self, now: Instant) {
        self.sweep.get_or_insert(after(now, self.settings.linger));
    }

    fn emit(&mut self, event: ElementEvent) {
        self.actions.push(ElementAction::Event(event));
    }
}
