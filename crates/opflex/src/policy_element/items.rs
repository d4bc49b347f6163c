//! The resolves, declarations and reports of the element, and the requests about them
//! that have no answer yet.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ops::Bound;
use std::time::{Duration, Instant};

use super::event::ElementEvent;
use super::settings::ElementSettings;
use crate::message::{
    EndpointDeclare, EndpointUndeclare, Method, PerStore, Request, Resolve, Role, StateReport, Store,
};
use crate::model::{Ident, ManagedObject, Name, Target, Uri};
use crate::one_or_many::{OneOrMany, add, remove};
use crate::peer::{Actions, ConnectionId};
use crate::rpc::{Id, Random};
use ssntp_transport::{Deadlines, NEVER, after};

/// The number of the first request, as in libopflex. Lower numbers are counted per connection.
const FIRST_XID: u64 = 1 << 63;
/// The number of attempts without an answer after which an alarm is raised: with the default delays
/// after 10, 20 and 40 s.
const ALARM_ATTEMPTS: u32 = 3;

/// A resolve, a declaration or a report.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Key {
    /// A resolve.
    Resolve(Store, Name, Target),
    /// A declared endpoint, by its topmost object.
    Declaration(Uri),
    /// A reported object.
    Report(Uri),
}

impl Key {
    /// The role of the servers that get its request.
    pub(super) fn role(&self) -> Role {
        self.method().role()
    }

    /// The method of its request.
    pub(super) fn method(&self) -> Method {
        match self {
            Self::Resolve(of, ..) => of.resolve(),
            Self::Declaration(_) => Method::EndpointDeclare,
            Self::Report(_) => Method::StateReport,
        }
    }

    /// The object of the request, for log lines.
    pub(super) fn about(&self) -> String {
        match self {
            Self::Resolve(_, subject, target) => format!("{subject} {target}"),
            Self::Declaration(uri) | Self::Report(uri) => uri.to_string(),
        }
    }
}

/// The state of a resolve, a declaration or a report.
#[derive(Debug, Default)]
pub(super) struct Item {
    /// The objects that are declared or reported.
    pub(super) objects: Vec<ManagedObject>,
    /// The number of references of the application to a resolve.
    pub(super) references: usize,
    /// The number of these references that also resolve the policies to which it refers.
    pub(super) following: usize,
    /// True if a followed policy refers to it.
    pub(super) followed: bool,
    /// True if a server has answered it. A declaration or a report with new objects begins anew.
    pub(super) answered: bool,
    /// The topmost objects of a resolve by identifier.
    pub(super) roots: BTreeSet<Uri>,
    /// True if an alarm was raised because no server answers.
    alarmed: bool,
    /// The numbers of its requests that at least one server has not answered.
    xids: Vec<u64>,
}

impl Item {
    /// The topmost objects of this item, if it is a resolve. `key` is the key of this item.
    pub(super) fn roots<'a>(&'a self, key: &'a Key) -> impl Iterator<Item = &'a Uri> {
        let target = match key {
            Key::Resolve(_, _, Target::Uri(uri)) => Some(uri),
            _ => None,
        };
        target.into_iter().chain(&self.roots)
    }

    /// True if the policies to which it refers are resolved, too.
    pub(super) fn follows(&self) -> bool {
        self.following > 0 || self.followed
    }
}

/// A request that at least one server has not answered.
#[derive(Debug)]
struct Call {
    key: Key,
    waiting: BTreeSet<ConnectionId>,
    /// True if a server has answered it.
    is_answered: bool,
    /// The number of times that it was sent.
    attempts: u32,
    /// The longest pause before it is sent again.
    cap: Duration,
}

/// All resolves, declarations and reports.
#[derive(Debug)]
pub(super) struct Items {
    /// Sorted, so that requests are sent in the same order in each run: policy first, on which endpoints
    /// and reports depend.
    items: BTreeMap<Key, Item>,
    /// By their numbers. One table for all servers, because a request has the same number on all
    /// connections.
    calls: HashMap<u64, Call>,
    /// The times at which requests are sent again.
    repeats: Deadlines<u64>,
    next_xid: u64,
    /// The first pause before a request is sent again.
    retry: Duration,
    refresh: Deadlines<Key>,
    random: Random,
    prr: Duration,
    /// The number of items with an alarm.
    alarms: usize,
    resolves: PerStore<ResolveIndex>,
    /// The policies in the tree that are of the start policy, and that no server has sent.
    pub(super) start_objects: HashSet<Uri>,
}

/// Resolves by their topmost objects and by their identifiers.
#[derive(Debug, Default)]
struct ResolveIndex {
    /// The resolves by the URIs of their topmost objects.
    roots: HashMap<Uri, OneOrMany<Key>>,
    idents: HashMap<Ident, OneOrMany<Key>>,
}

impl Items {
    pub(super) fn new(settings: &ElementSettings, random: Random) -> Self {
        Self {
            items: BTreeMap::new(),
            calls: HashMap::new(),
            repeats: Deadlines::default(),
            next_xid: FIRST_XID,
            retry: settings.retry,
            refresh: Deadlines::default(),
            random,
            // A shorter refresh rate would send requests without a pause.
            prr: settings.prr.clamp(Duration::from_secs(1), NEVER),
            alarms: 0,
            resolves: PerStore::default(),
            start_objects: HashSet::new(),
        }
    }

    pub(super) fn get(&self, key: &Key) -> Option<&Item> {
        self.items.get(key)
    }

    pub(super) fn get_mut(&mut self, key: &Key) -> Option<&mut Item> {
        self.items.get_mut(key)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&Key, &Item)> {
        self.items.iter()
    }

    /// The declared and reported objects behind a declaration or report, each with its own one.
    pub(super) fn sent_objects_after(
        &self,
        last: Option<Key>,
    ) -> impl Iterator<Item = (Key, &ManagedObject)> {
        let from = last.map_or(Bound::Unbounded, Bound::Excluded);
        let items = self.items.range((from, Bound::Unbounded));
        items.flat_map(|(key, item)| item.objects.iter().map(move |object| (key.clone(), object)))
    }

    /// Adds a resolve, declaration or report. Returns false if it exists already.
    pub(super) fn add(&mut self, key: &Key, now: Instant) -> bool {
        if self.items.contains_key(key) {
            return false;
        }
        if let Key::Resolve(what, _, target) = key {
            let index = &mut self.resolves[*what];
            match target {
                Target::Uri(uri) => add(&mut index.roots, uri.clone(), key.clone()),
                Target::Ident(ident) => add(&mut index.idents, ident.clone(), key.clone()),
            }
        }
        self.items.insert(key.clone(), Item::default());
        self.draw_refresh(key, now);
        true
    }

    /// Removes a resolve, declaration or report. Returns `None` if there is none.
    pub(super) fn drop(&mut self, key: &Key) -> Option<Item> {
        let item = self.items.remove(key)?;
        self.alarms -= usize::from(item.alarmed);
        self.refresh.clear(key);
        item.xids.iter().for_each(|xid| self.end_call(*xid));
        if let Key::Resolve(what, _, target) = key {
            let index = &mut self.resolves[*what];
            for root in item.roots(key) {
                remove(&mut index.roots, root, key);
            }
            if let Target::Ident(ident) = target {
                remove(&mut index.idents, ident, key);
            }
        }
        Some(item)
    }

    /// Adds a topmost object to a resolve by identifier. The resolve then covers the object and
    /// everything below it.
    pub(super) fn add_root(&mut self, key: &Key, root: &Uri) {
        if let (Key::Resolve(what, _, Target::Ident(_)), Some(item)) = (key, self.items.get_mut(key))
            && item.roots.insert(root.clone())
        {
            let roots = &mut self.resolves[*what].roots;
            add(roots, root.clone(), key.clone());
        }
    }

    /// Removes a topmost object from a resolve by identifier.
    pub(super) fn remove_root(&mut self, key: &Key, root: &Uri) {
        if let (Key::Resolve(what, _, Target::Ident(_)), Some(item)) = (key, self.items.get_mut(key))
            && item.roots.remove(root)
        {
            remove(&mut self.resolves[*what].roots, root, key);
        }
    }

    /// The resolves that have this topmost object.
    pub(super) fn with_root(&self, what: Store, root: &Uri) -> impl Iterator<Item = &Key> {
        let keys = self.resolves[what].roots.get(root);
        keys.into_iter().flat_map(OneOrMany::iter)
    }

    /// True for an object of the start policy, which is for resolves that no server has answered.
    pub(super) fn is_start(&self, what: Store, uri: &Uri) -> bool {
        what == Store::Policy && self.start_objects.contains(uri)
    }

    /// True if a resolve needs the object at this URI. An object of the start policy is needed only
    /// until a server has answered the resolve.
    pub(super) fn needs(&self, what: Store, uri: &Uri) -> bool {
        let is_start = self.is_start(what, uri);
        let mut resolves = self.resolves_of(what, uri);
        resolves.any(|key| !is_start || !self.is_answered(key))
    }

    pub(super) fn is_answered(&self, key: &Key) -> bool {
        self.items.get(key).is_some_and(|item| item.answered)
    }

    /// The resolves that cover an object.
    pub(super) fn resolves_of<'a>(&'a self, what: Store, uri: &'a Uri) -> impl Iterator<Item = &'a Key> {
        let roots = &self.resolves[what].roots;
        let texts = uri.prefixes().chain(std::iter::once(uri.as_str()));
        texts.filter_map(|text| roots.get(text)).flat_map(OneOrMany::iter)
    }

    /// The resolves by an identifier.
    pub(super) fn by_ident(&self, what: Store, ident: &Ident, subject: &Name) -> Vec<Key> {
        let keys = self.resolves[what].idents.get(ident);
        let keys = keys.into_iter().flat_map(OneOrMany::iter);
        let of_class = keys.filter(|key| matches!(key, Key::Resolve(_, class, _) if class == subject));
        of_class.cloned().collect()
    }

    pub(super) fn has_idents(&self, what: Store) -> bool {
        !self.resolves[what].idents.is_empty()
    }

    /// Sends the request of an item to these servers, and again to those that do not answer.
    pub(super) fn send_request(
        &mut self,
        key: &Key,
        to: Vec<ConnectionId>,
        now: Instant,
        actions: &mut Actions<ElementEvent>,
    ) {
        // Without a server nothing is sent; the request is made when a server becomes ready.
        let item = self.items.get(key).filter(|_| !to.is_empty());
        let Some(request) = item.and_then(|item| request(key, item, self.prr)) else {
            return;
        };
        // The request is not repeated after the time of the refresh, which sends a new one.
        let refresh = self
            .refresh
            .of(key)
            .map_or(self.prr, |at| at.saturating_duration_since(now));
        let call = Call {
            key: key.clone(),
            waiting: to.iter().copied().collect(),
            is_answered: false,
            attempts: 1,
            cap: refresh,
        };
        // Entered before it is sent, so that an answer cannot come too early.
        let xid = self.number();
        self.calls.insert(xid, call);
        // The first pause is random as well, because many requests are sent at the same time.
        let pause = self.random.delay(self.retry, 0, refresh);
        self.repeats.set(xid, after(now, pause));
        if let Some(item) = self.items.get_mut(key) {
            item.xids.push(xid);
        }
        send(&request, xid, to, actions);
    }

    /// Sends the request that takes a resolve or a declaration back. It is sent once, and its
    /// answer is ignored.
    pub(super) fn take_back(
        &mut self,
        key: &Key,
        to: Vec<ConnectionId>,
        actions: &mut Actions<ElementEvent>,
    ) {
        let request = match key.clone() {
            Key::Resolve(of, subject, target) => {
                Request::Unresolve(of, vec![Resolve::new(subject, target, None)])
            }
            Key::Declaration(endpoint_uri) => {
                let objects = self.items.get(key).into_iter().flat_map(|item| &item.objects);
                let mut objects = objects.filter(|object| object.uri == endpoint_uri);
                let Some(subject) = objects.next().map(|object| object.subject.clone()) else {
                    return;
                };
                Request::EndpointUndeclare(vec![EndpointUndeclare {
                    subject,
                    endpoint_uri,
                }])
            }
            // The protocol has no request for it; the observer drops reports that are not repeated.
            Key::Report(_) => return,
        };
        send(&request, self.number(), to, actions);
    }

    /// The number of the next request. Numbers are never reused.
    fn number(&mut self) -> u64 {
        let xid = self.next_xid;
        // At a million requests a second, 2^63 numbers last for 290,000 years.
        self.next_xid = xid.wrapping_add(1);
        xid
    }

    /// Removes a request that is answered or obsolete.
    fn end_call(&mut self, xid: u64) {
        self.repeats.clear(&xid);
        self.calls.remove(&xid);
    }

    /// Drops the earlier requests of an item, whose answers are ignored from now on.
    pub(super) fn forget_calls(&mut self, key: &Key) {
        let item = self.items.get_mut(key);
        let xids = item.map(|item| std::mem::take(&mut item.xids));
        let xids = xids.into_iter().flatten();
        xids.for_each(|xid| self.end_call(xid));
    }

    /// Records the answer of a server. The request is not sent to this server again.
    pub(super) fn answered(&mut self, connection: ConnectionId, xid: u64) {
        let Some(call) = self.calls.get_mut(&xid) else {
            return;
        };
        // A request has several receivers, each of which answers it.
        call.waiting.remove(&connection);
        call.is_answered = true;
        if let Some(item) = self.items.get_mut(&call.key) {
            self.alarms -= usize::from(std::mem::take(&mut item.alarmed));
            if call.waiting.is_empty() {
                item.xids.retain(|other| *other != xid);
                self.end_call(xid);
            }
        }
    }

    /// The item of a request that this server has not answered yet.
    pub(super) fn unanswered_item(&self, connection: ConnectionId, xid: u64) -> Option<Key> {
        let call = self.calls.get(&xid)?;
        call.waiting.contains(&connection).then(|| call.key.clone())
    }

    /// Drops the pending answers of a connection that has ended.
    pub(super) fn connection_ended(&mut self, connection: ConnectionId) {
        let (items, alarms, repeats) = (&mut self.items, &mut self.alarms, &mut self.repeats);
        self.calls.retain(|xid, call| {
            call.waiting.remove(&connection);
            let is_over = call.waiting.is_empty();
            if is_over {
                repeats.clear(xid);
            }
            if is_over && let Some(item) = items.get_mut(&call.key) {
                item.xids.retain(|other| other != xid);
                *alarms -= usize::from(std::mem::take(&mut item.alarmed));
            }
            !is_over
        });
    }

    /// Sends a request again whose time has come, to the servers that have not answered it, with the same
    /// number, so that an answer to any attempt counts. Returns the alarm that this raises, if any: the
    /// item, and the number of attempts before this one. Call it until it returns `None`.
    pub(super) fn retry(
        &mut self,
        now: Instant,
        actions: &mut Actions<ElementEvent>,
    ) -> Option<Option<(Key, u32)>> {
        let xid = self.repeats.pop(now)?;
        let call = self.calls.get_mut(&xid)?;
        let attempts = call.attempts;
        // The pause reaches its cap long before the count saturates.
        call.attempts = attempts.saturating_add(1);
        let pause = self.random.delay(self.retry, attempts, call.cap);
        self.repeats.set(xid, after(now, pause));
        let (key, is_answered) = (call.key.clone(), call.is_answered);
        // libopflex sends it again to all servers.
        let to = call.waiting.iter().copied().collect();
        let item = self.items.get(&key);
        let Some(request) = item.and_then(|item| request(&key, item, self.prr)) else {
            // The item was removed, so its answer does not matter.
            self.end_call(xid);
            return Some(None);
        };
        send(&request, xid, to, actions);
        let alarm = attempts >= ALARM_ATTEMPTS && !is_answered && self.alarm(&key);
        Some(alarm.then_some((key, attempts)))
    }

    /// Raises an alarm. Returns false if it was raised before.
    fn alarm(&mut self, key: &Key) -> bool {
        let item = self.items.get_mut(key);
        let is_new = item.is_some_and(|item| !std::mem::replace(&mut item.alarmed, true));
        self.alarms += usize::from(is_new);
        is_new
    }

    /// The number of items with an alarm.
    pub(super) fn alarms(&self) -> usize {
        self.alarms
    }

    /// The next item whose refresh time has come. Its next refresh time is set already.
    pub(super) fn refresh(&mut self, now: Instant) -> Option<Key> {
        let key = self.refresh.pop(now)?;
        self.draw_refresh(&key, now);
        Some(key)
    }

    /// Sets the time of the next refresh at random, between a third and a half of the refresh rate.
    /// So a second refresh comes before the refresh rate ends, if the first one is lost.
    pub(super) fn draw_refresh(&mut self, key: &Key, now: Instant) {
        let wait = self.random.between(self.prr / 3, self.prr / 2);
        self.refresh.set(key.clone(), after(now, wait));
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        [self.repeats.next(), self.refresh.next()]
            .into_iter()
            .flatten()
            .min()
    }
}

fn request(key: &Key, item: &Item, prr: Duration) -> Option<Request> {
    let prr = Some(i64::try_from(prr.as_secs()).unwrap_or(i64::MAX));
    Some(match key.clone() {
        Key::Resolve(of, subject, target) => Request::Resolve(of, vec![Resolve::new(subject, target, prr)]),
        // The item is new, and its objects follow in the same call.
        Key::Declaration(_) if item.objects.is_empty() => return None,
        Key::Declaration(_) => Request::EndpointDeclare(vec![EndpointDeclare {
            endpoint: item.objects.clone(),
            prr,
        }]),
        Key::Report(_) => Request::StateReport(vec![StateReport {
            observable: item.objects.clone(),
        }]),
    })
}

fn send(request: &Request, xid: u64, to: Vec<ConnectionId>, actions: &mut Actions<ElementEvent>) {
    let frame = request.to_frame(&Id::call(request.method().name(), xid));
    to.into_iter()
        .for_each(|connection| actions.send(connection, frame.clone()));
}
