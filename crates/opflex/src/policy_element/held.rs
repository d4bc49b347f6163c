//! The resolves, declarations and reports of the element, and the requests about them
//! that have no answer yet.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound;
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::Settings;
use crate::deadlines::{Deadlines, LONGEST, after};
use crate::message::{
    EndpointDeclare, EndpointUndeclare, Method, PerStore, Request, Resolve, Role, StateReport, Store,
};
use crate::model::{Ident, ManagedObject, Name, Target, Uri};
use crate::one_or_many::{OneOrMany, add, remove};
use crate::peer::ConnectionId;
use crate::rpc::{Id, Pending, Random};

/// The number of the first request, as libopflex has it: below are those that
/// are counted for each connection.
const FIRST_XID: u64 = 1 << 63;

/// A resolve, a declaration or a report.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Key {
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
        match self {
            Self::Resolve(of, ..) => of.role(),
            Self::Declaration(_) => Role::ENDPOINT_REGISTRY,
            Self::Report(_) => Role::OBSERVER,
        }
    }

    /// The method of its request.
    pub(super) fn method(&self) -> Method {
        match self {
            Self::Resolve(of, ..) => of.resolve(),
            Self::Declaration(_) => Method::EndpointDeclare,
            Self::Report(_) => Method::StateReport,
        }
    }

    /// Its object, for messages.
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
    /// References of the application to a resolve. A policy that only other policies refer
    /// to has none.
    pub(super) references: usize,
    /// Of these, the references that also want the policies that it refers to.
    pub(super) following: usize,
    /// Whether a policy whose references are followed refers to it.
    pub(super) followed: bool,
    /// Whether a server has answered.
    pub(super) answered: bool,
    /// The topmost objects that a resolve by identifier brought.
    pub(super) roots: BTreeSet<Uri>,
    /// Whether it holds start policy, which no server has confirmed.
    pub(super) is_start_policy: bool,
    /// Whether an alarm was raised because no server answers.
    alarmed: bool,
    /// Its place in the order of declarations and reports.
    place: u64,
    /// The numbers of its requests that some server has not answered.
    xids: Vec<u64>,
}

impl Item {
    /// Whether the policies that it refers to are resolved too.
    pub(super) fn follows(&self) -> bool {
        self.following > 0 || self.followed
    }
}

/// A request that at least one server has not answered.
#[derive(Debug)]
struct Call {
    key: Key,
    waiting: BTreeSet<ConnectionId>,
}

/// A request and its receivers.
#[derive(Debug)]
pub(super) struct OutgoingRequest {
    pub(super) to: Vec<ConnectionId>,
    pub(super) frame: Bytes,
}

/// All resolves, declarations and reports.
#[derive(Debug)]
pub(super) struct Held {
    items: HashMap<Key, Item>,
    /// Declarations and reports, in the order in which they began.
    told: BTreeMap<u64, Key>,
    last_place: u64,
    calls: Pending<Call>,
    refresh: Deadlines<Key>,
    random: Random,
    prr: Duration,
    alarm_attempts: u32,
    /// How many of them have an alarm.
    alarms: usize,
    resolves: PerStore<Index>,
}

/// Resolves by their objects.
#[derive(Debug, Default)]
struct Index {
    /// By the URI that was asked for, or of an object that an identifier brought.
    roots: HashMap<Uri, OneOrMany<Key>>,
    idents: HashMap<Ident, OneOrMany<Key>>,
}

impl Held {
    pub(super) fn new(settings: &Settings, mut random: Random) -> Self {
        Self {
            items: HashMap::new(),
            told: BTreeMap::new(),
            last_place: 0,
            // The numbers of all servers come from one table: a request has one number everywhere.
            calls: Pending::new(settings.retry, FIRST_XID, Random::new(random.bits())),
            refresh: Deadlines::default(),
            random,
            // A shorter refresh rate would send requests without a pause.
            prr: settings.prr.clamp(Duration::from_secs(1), LONGEST),
            alarm_attempts: settings.alarm_attempts.max(1),
            alarms: 0,
            resolves: PerStore::default(),
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

    /// The declared and reported objects after a place in the order in which they began,
    /// each with its place.
    pub(super) fn told_after(&self, place: Option<u64>) -> impl Iterator<Item = (u64, &ManagedObject)> {
        let from = place.map_or(Bound::Unbounded, Bound::Excluded);
        let told = self.told.range((from, Bound::Unbounded));
        let items = told.filter_map(|(place, key)| Some((*place, self.items.get(key)?)));
        items.flat_map(|(place, item)| item.objects.iter().map(move |object| (place, object)))
    }

    /// Enters a resolve, declaration or report. Returns false if it was there already.
    pub(super) fn hold(&mut self, key: &Key, now: Instant) -> bool {
        if self.items.contains_key(key) {
            return false;
        }
        let mut item = Item::default();
        match key {
            Key::Resolve(what, _, Target::Uri(uri)) => {
                let roots = &mut self.resolves[*what].roots;
                add(roots, uri.clone(), key.clone());
            }
            Key::Resolve(what, _, Target::Ident(ident)) => {
                let idents = &mut self.resolves[*what].idents;
                add(idents, ident.clone(), key.clone());
            }
            Key::Declaration(_) | Key::Report(_) => {
                self.last_place += 1;
                item.place = self.last_place;
                self.told.insert(item.place, key.clone());
            }
        }
        self.items.insert(key.clone(), item);
        // From the first request on, so that one lost answer is made up for.
        self.draw_refresh(key, now);
        true
    }

    /// Removes a resolve, declaration or report, and returns it if it was there.
    pub(super) fn drop(&mut self, key: &Key) -> Option<Item> {
        let item = self.items.remove(key)?;
        // An alarm ends with the item that it is about.
        self.alarms -= usize::from(item.alarmed);
        self.told.remove(&item.place);
        self.refresh.clear(key);
        for xid in &item.xids {
            self.calls.end(*xid);
        }
        if let Key::Resolve(what, _, target) = key {
            let index = &mut self.resolves[*what];
            for root in &item.roots {
                remove(&mut index.roots, root, key);
            }
            match target {
                Target::Uri(uri) => remove(&mut index.roots, uri, key),
                Target::Ident(ident) => remove(&mut index.idents, ident, key),
            }
        }
        Some(item)
    }

    /// Notes that an object has an identifier that is resolved. The resolve then holds the
    /// object and everything below it.
    pub(super) fn add_root(&mut self, key: &Key, root: &Uri) {
        if let (Key::Resolve(what, _, Target::Ident(_)), Some(item)) = (key, self.items.get_mut(key))
            && item.roots.insert(root.clone())
        {
            let roots = &mut self.resolves[*what].roots;
            add(roots, root.clone(), key.clone());
        }
    }

    /// The resolves that hold an object.
    pub(super) fn holders<'a>(&'a self, what: Store, uri: &'a Uri) -> impl Iterator<Item = &'a Key> {
        let roots = &self.resolves[what].roots;
        let texts = uri.prefixes().chain(std::iter::once(uri.as_str()));
        texts.filter_map(|text| roots.get(text)).flat_map(OneOrMany::iter)
    }

    /// The resolves by an identifier.
    pub(super) fn by_ident(&self, what: Store, ident: &Ident, subject: &Name) -> Vec<Key> {
        let keys = self.resolves[what]
            .idents
            .get(ident)
            .into_iter()
            .flat_map(OneOrMany::iter);
        let of_class = keys.filter(|key| matches!(key, Key::Resolve(_, class, _) if class == subject));
        of_class.cloned().collect()
    }

    pub(super) fn has_idents(&self, what: Store) -> bool {
        !self.resolves[what].idents.is_empty()
    }

    /// Makes the request for these servers. It will be sent again to those that do not
    /// answer.
    pub(super) fn ask(&mut self, key: &Key, to: Vec<ConnectionId>, now: Instant) -> Option<OutgoingRequest> {
        // Without a server there is nothing to wait for; the request is made when one is ready.
        let item = self.items.get_mut(key).filter(|_| !to.is_empty())?;
        let request = request(key, item, self.prr)?;
        // No repetition after the time of the refresh, which asks again anyway.
        let refresh = self
            .refresh
            .of(key)
            .map_or(self.prr, |at| at.saturating_duration_since(now));
        let call = Call {
            key: key.clone(),
            waiting: to.iter().copied().collect(),
        };
        // Entered before it is sent, so that an answer cannot come too early.
        let xid = self.calls.begin(call, refresh, now);
        item.xids.push(xid);
        Some(OutgoingRequest {
            to,
            frame: frame(&request, xid)?,
        })
    }

    /// Makes the request that takes a resolve or a declaration back. Its answer is not
    /// waited for.
    pub(super) fn take_back(&mut self, key: &Key, to: Vec<ConnectionId>) -> Option<OutgoingRequest> {
        let request = match key.clone() {
            Key::Resolve(of, subject, target) => {
                Request::Unresolve(of, vec![Resolve::new(subject, target, None)])
            }
            Key::Declaration(endpoint_uri) => {
                let objects = &self.items.get(key)?.objects;
                let subject = objects
                    .iter()
                    .find(|object| object.uri == endpoint_uri)?
                    .subject
                    .clone();
                Request::EndpointUndeclare(vec![EndpointUndeclare {
                    subject,
                    endpoint_uri,
                }])
            }
            // An observer forgets by itself.
            Key::Report(_) => return None,
        };
        let xid = self.calls.number();
        let frame = frame(&request, xid)?;
        (!to.is_empty()).then_some(OutgoingRequest { to, frame })
    }

    /// Stops waiting for the answers to earlier requests, because a new one follows.
    pub(super) fn forget_calls(&mut self, key: &Key) {
        if let Some(item) = self.items.get_mut(key) {
            for xid in item.xids.drain(..) {
                self.calls.end(xid);
            }
        }
    }

    /// A server answered, so the request is not sent to it again.
    pub(super) fn answered(&mut self, connection: ConnectionId, xid: u64) {
        let Some(call) = self.calls.value_mut(xid) else {
            return;
        };
        // A request goes to all servers of a role; each answers for itself.
        call.waiting.remove(&connection);
        if call.waiting.is_empty()
            && let Some(call) = self.calls.end(xid)
            && let Some(item) = self.items.get_mut(&call.key)
        {
            item.xids.retain(|other| *other != xid);
            self.alarms -= usize::from(std::mem::take(&mut item.alarmed));
        }
    }

    /// The subject of a request that this server has not answered.
    pub(super) fn asked(&mut self, connection: ConnectionId, xid: u64) -> Option<Key> {
        let call = self.calls.value_mut(xid)?;
        call.waiting.contains(&connection).then(|| call.key.clone())
    }

    /// A server is gone, so its answers are not waited for.
    pub(super) fn gone(&mut self, connection: ConnectionId) {
        let (items, alarms) = (&mut self.items, &mut self.alarms);
        self.calls.retain(|xid, call| {
            call.waiting.remove(&connection);
            if call.waiting.is_empty()
                && let Some(item) = items.get_mut(&call.key)
            {
                item.xids.retain(|other| *other != xid);
                *alarms -= usize::from(std::mem::take(&mut item.alarmed));
            }
            !call.waiting.is_empty()
        });
    }

    /// A request whose time to be sent again has come, for the servers that have not answered
    /// it, and the alarm that this raises.
    pub(super) fn retry(&mut self, now: Instant) -> Option<(OutgoingRequest, Option<(Key, u32)>)> {
        loop {
            let due = self.calls.due(now)?;
            let (xid, key, attempts) = (due.xid, due.value.key.clone(), due.attempts);
            // Only those that have not answered are asked again; libopflex asks all of them.
            let to = due.value.waiting.iter().copied().collect();
            let request = self
                .items
                .get(&key)
                .and_then(|item| request(&key, item, self.prr));
            if let Some(request) = request {
                let alarm = attempts >= self.alarm_attempts && self.alarm(&key);
                let frame = frame(&request, xid)?;
                return Some((OutgoingRequest { to, frame }, alarm.then_some((key, attempts))));
            }
            // The item is not held any more, so its answer is not waited for.
            self.calls.end(xid);
        }
    }

    /// Raises an alarm. Returns false if it was raised before.
    fn alarm(&mut self, key: &Key) -> bool {
        let item = self.items.get_mut(key);
        let is_new = item.is_some_and(|item| !std::mem::replace(&mut item.alarmed, true));
        self.alarms += usize::from(is_new);
        is_new
    }

    /// How many alarms there are.
    pub(super) fn alarms(&self) -> usize {
        self.alarms
    }

    /// Something whose refresh time has come. Its next refresh time is already set.
    pub(super) fn refresh(&mut self, now: Instant) -> Option<Key> {
        let key = self.refresh.pop(now)?;
        self.draw_refresh(&key, now);
        Some(key)
    }

    /// Sets the time of the next refresh at random: between a third and a half of the
    /// refresh rate, so that one lost request does no harm.
    pub(super) fn draw_refresh(&mut self, key: &Key, now: Instant) {
        let wait = self.random.between(self.prr / 3, self.prr / 2);
        self.refresh.set(key.clone(), after(now, wait));
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        [self.calls.next_deadline(), self.refresh.next()]
            .into_iter()
            .flatten()
            .min()
    }
}

fn request(key: &Key, item: &Item, prr: Duration) -> Option<Request> {
    let prr = Some(i64::try_from(prr.as_secs()).unwrap_or(i64::MAX));
    Some(match key.clone() {
        Key::Resolve(of, subject, target) => Request::Resolve(of, vec![Resolve::new(subject, target, prr)]),
        // The declaration was entered just now, and its objects follow in the same call.
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

fn frame(request: &Request, xid: u64) -> Option<Bytes> {
    let frame = request.to_frame(&Id::call(request.method().name(), xid));
    frame
        .inspect_err(|fault| log::error!("nothing was sent: {fault}"))
        .ok()
}
