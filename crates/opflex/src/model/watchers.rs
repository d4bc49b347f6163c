//! The interests of watchers: each is in the changes of some objects, and may end at a set time.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::Hash;
use std::time::Instant;

use super::ident::{Ident, Target};
use super::name::Name;
use super::uri::Uri;
use crate::json;
use crate::shares::Shares;

/// One watcher's interest in one target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Watch<W> {
    /// The watcher.
    pub watcher: W,
    /// The class that the watched object must have.
    pub subject: Name,
    /// The watched object. A URI stands for the object and everything below it.
    pub target: Target,
    /// The time at which the interest ends. `None` if it does not end by time.
    pub expires: Option<Instant>,
}

/// The interests in one target, by watcher and class.
type Interests<W> = BTreeMap<(W, Name), usize>;

/// The interests of all watchers.
///
/// A second interest of a watcher in the same target and class replaces the first. Finding the interests in
/// an object costs a few hash look-ups for each segment of its URI, for any number of watchers.
/// The caller passes the time.
#[derive(Debug)]
pub struct Watchers<W> {
    watches: HashMap<usize, Watch<W>>,
    next: usize,
    by_uri: HashMap<Uri, Interests<W>>,
    by_ident: HashMap<Ident, Interests<W>>,
    by_watcher: HashMap<W, BTreeSet<usize>>,
    by_expiry: BTreeSet<(Instant, usize)>,
    memory: Shares<W>,
}

/// The approximate memory of an interest, in bytes.
pub(crate) fn memory(subject: &str, target: &Target) -> usize {
    // The entries in the tables, which are up to half empty, and a map with one watcher.
    const PLACES: usize = 600;
    PLACES + json::allocated(16 + subject.len()) + json::allocated(32 + target.text_len())
}

impl<W> Default for Watchers<W> {
    fn default() -> Self {
        Self {
            watches: HashMap::new(),
            next: 0,
            by_uri: HashMap::new(),
            by_ident: HashMap::new(),
            by_watcher: HashMap::new(),
            by_expiry: BTreeSet::new(),
            memory: Shares::default(),
        }
    }
}

impl<W: Clone + Eq + Hash + Ord> Watchers<W> {
    /// Adds an interest. It replaces the interest of the watcher in the same target and class.
    pub fn watch(&mut self, watch: Watch<W>) {
        // Otherwise the expiry of the former interest would end the new one.
        self.unwatch(&watch.watcher, &watch.subject, &watch.target);
        let key = self.next;
        self.next += 1;
        let of_target = match &watch.target {
            Target::Uri(uri) => self.by_uri.entry(uri.clone()).or_default(),
            Target::Ident(ident) => self.by_ident.entry(ident.clone()).or_default(),
        };
        of_target.insert((watch.watcher.clone(), watch.subject.clone()), key);
        let interests = self.by_watcher.entry(watch.watcher.clone()).or_default();
        interests.insert(key);
        let memory = memory(&watch.subject, &watch.target);
        self.memory.charge(watch.watcher.clone(), memory);
        self.by_expiry.extend(watch.expires.map(|at| (at, key)));
        self.watches.insert(key, watch);
    }

    /// Ends an interest. Returns false if there was none.
    pub fn unwatch(&mut self, watcher: &W, subject: &Name, target: &Target) -> bool {
        let key = self.key(watcher, subject, target);
        key.and_then(|key| self.remove(key)).is_some()
    }

    /// Ends all interests of a watcher.
    pub fn leave(&mut self, watcher: &W) {
        for key in self.by_watcher.get(watcher).cloned().unwrap_or_default() {
            self.remove(key);
        }
    }

    /// Removes one interest that has ended at `now`, and returns it. Call it until
    /// it returns `None`.
    pub fn expired(&mut self, now: Instant) -> Option<Watch<W>> {
        match self.by_expiry.first() {
            Some((at, key)) if *at <= now => self.remove(*key),
            _ => None,
        }
    }

    /// The time at which the next interest ends.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.by_expiry.first().map(|(at, _)| *at)
    }

    /// The interests in an object at `now`, including interests in the objects that contain it.
    pub fn of_uri(&self, uri: &Uri, now: Instant) -> impl Iterator<Item = &Watch<W>> {
        // Most trees have no interest by URI, so the prefixes need not be looked up.
        let prefixes = uri.prefixes().filter(|_| !self.by_uri.is_empty());
        let texts = prefixes.chain(std::iter::once(uri.as_str()));
        texts
            .filter_map(|text| self.by_uri.get(text))
            .flat_map(move |watches| self.live(watches, now))
    }

    /// The interests in an identifier at `now`.
    pub fn of_ident(&self, ident: &Ident, now: Instant) -> impl Iterator<Item = &Watch<W>> {
        self.by_ident
            .get(ident)
            .into_iter()
            .flat_map(move |watches| self.live(watches, now))
    }

    /// True if there is any interest by identifier.
    pub fn watches_idents(&self) -> bool {
        !self.by_ident.is_empty()
    }

    /// True if a watcher has an interest in this target and class.
    pub fn watches(&self, watcher: &W, subject: &Name, target: &Target) -> bool {
        self.key(watcher, subject, target).is_some()
    }

    /// The number of interests of a watcher.
    pub fn count(&self, watcher: &W) -> usize {
        let interests = self.by_watcher.get(watcher);
        interests.map_or(0, BTreeSet::len)
    }

    /// The memory of the interests of each watcher.
    pub(crate) fn memory(&self) -> &Shares<W> {
        &self.memory
    }

    fn key(&self, watcher: &W, subject: &Name, target: &Target) -> Option<usize> {
        let interests = match target {
            Target::Uri(uri) => self.by_uri.get(uri),
            Target::Ident(ident) => self.by_ident.get(ident),
        };
        interests?.get(&(watcher.clone(), subject.clone())).copied()
    }

    fn live<'a>(&'a self, watches: &'a Interests<W>, now: Instant) -> impl Iterator<Item = &'a Watch<W>> {
        let all = watches.values().filter_map(|key| self.watches.get(key));
        // An interest may have ended before `expired` removes it.
        all.filter(move |watch| watch.expires.is_none_or(|at| at > now))
    }

    fn remove(&mut self, key: usize) -> Option<Watch<W>> {
        fn take<K: Eq + Hash, W: Ord>(index: &mut HashMap<K, Interests<W>>, target: &K, of: &(W, Name)) {
            if let Some(watches) = index.get_mut(target) {
                watches.remove(of);
                if watches.is_empty() {
                    index.remove(target);
                }
            }
        }
        let watch = self.watches.remove(&key)?;
        let of = (watch.watcher.clone(), watch.subject.clone());
        match &watch.target {
            Target::Uri(uri) => take(&mut self.by_uri, uri, &of),
            Target::Ident(ident) => take(&mut self.by_ident, ident, &of),
        }
        if let Some(interests) = self.by_watcher.get_mut(&watch.watcher) {
            interests.remove(&key);
            // Empty entries would accumulate, because connection numbers are never reused.
            if interests.is_empty() {
                self.by_watcher.remove(&watch.watcher);
            }
        }
        let memory = memory(&watch.subject, &watch.target);
        self.memory.refund(&watch.watcher, memory);
        if let Some(at) = watch.expires {
            self.by_expiry.remove(&(at, key));
        }
        Some(watch)
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "some instant to count from")]
mod tests {
    use std::time::Duration;

    use super::*;

    fn uri(text: &str) -> Uri {
        text.parse().unwrap()
    }

    fn watch(watcher: u32, target: impl Into<Target>, expires: Option<Instant>) -> Watch<u32> {
        Watch {
            watcher,
            subject: "class".into(),
            target: target.into(),
            expires,
        }
    }

    fn of(watchers: &Watchers<u32>, text: &str, now: Instant) -> Vec<u32> {
        let uri = uri(text);
        watchers.of_uri(&uri, now).map(|watch| watch.watcher).collect()
    }

    #[test]
    fn a_watch_covers_an_object_and_the_objects_below_it() {
        let now = Instant::now();
        let mut watchers = Watchers::default();
        watchers.watch(watch(1, uri("/a/b/"), None));
        watchers.watch(watch(2, uri("/a/"), None));
        watchers.watch(watch(3, uri("/"), None));
        watchers.watch(watch(4, uri("/a/b"), None));
        assert_eq!(of(&watchers, "/a/b/", now), [3, 2, 1]);
        assert_eq!(of(&watchers, "/a/b/c/", now), [3, 2, 4, 1]);
        assert_eq!(of(&watchers, "/a/bc/", now), [3, 2]);
        assert_eq!(of(&watchers, "/x/", now), [3]);
    }

    #[test]
    fn an_interest_ends_at_its_time_and_can_be_renewed() {
        let now = Instant::now();
        let at = |seconds| now + Duration::from_secs(seconds);
        let mut watchers = Watchers::default();
        watchers.watch(watch(1, uri("/a/"), Some(at(10))));
        assert_eq!(of(&watchers, "/a/", at(9)), [1]);
        assert_eq!(of(&watchers, "/a/", at(10)), [0; 0]);
        watchers.watch(watch(1, uri("/a/"), Some(at(20))));
        assert_eq!(
            (watchers.watches.len(), watchers.next_deadline()),
            (1, Some(at(20)))
        );
        assert_eq!(of(&watchers, "/a/", at(19)), [1]);
        assert!(watchers.expired(at(19)).is_none());
        assert_eq!(watchers.expired(at(20)).unwrap().watcher, 1);
        assert!(watchers.watches.is_empty() && watchers.expired(at(99)).is_none());
    }

    #[test]
    fn interests_by_uri_and_by_identifier_end_separately() {
        let now = Instant::now();
        let ident = Ident {
            context: uri("/t/"),
            name: "web".into(),
        };
        let mut watchers = Watchers::default();
        watchers.watch(watch(1, uri("/a/"), None));
        watchers.watch(watch(1, ident.clone(), None));
        watchers.watch(watch(2, uri("/a/"), None));
        assert!(watchers.unwatch(&1, &"class".into(), &uri("/a/").into()));
        assert!(!watchers.unwatch(&1, &"class".into(), &uri("/a/").into()));
        assert_eq!(watchers.of_ident(&ident, now).count(), 1);
        assert_eq!((watchers.count(&1), watchers.watches_idents()), (1, true));
        watchers.leave(&1);
        watchers.leave(&1);
        assert_eq!((watchers.count(&1), watchers.watches_idents()), (0, false));
        assert_eq!(of(&watchers, "/a/", now), [2]);
    }
}
