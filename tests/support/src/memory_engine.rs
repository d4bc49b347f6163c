//! An engine in memory, for tests and simulations.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ssntp_engine::{Answer, Engine, EngineError, Entry, Kept, Lease, Request, When};

/// The longest span of time that [`MemoryEngine::forget`] can undo.
const PAST: Duration = Duration::from_secs(10);

/// An engine in memory. A clone is another client of the same engine.
///
/// A simulation calls [`ask_at`](Self::ask_at) at virtual times, so it can delay and lose requests. As
/// an [`Engine`] it uses the clock.
#[derive(Clone, Debug, Default)]
pub struct MemoryEngine {
    shared: Arc<Mutex<Shared>>,
}

/// True for some requests.
pub type Which = fn(&Request) -> bool;

#[derive(Debug, Default)]
struct Shared {
    store: Store,
    /// The store as it was before each change of [`PAST`].
    past: VecDeque<(Instant, Store)>,
    /// The requests that fail, and their error.
    fault: Option<(Which, EngineError)>,
    leases: i64,
}

#[derive(Clone, Debug, Default)]
struct Store {
    kept: Kept,
    /// The time to live of each lease, and the time at which it ends.
    leases: BTreeMap<Lease, (Duration, Instant)>,
}

fn is_any(_: &Request) -> bool {
    true
}

impl MemoryEngine {
    /// An empty engine.
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes every request fail with this error; `None` ends that. Leases end in the meantime.
    pub fn fail(&self, fault: Option<EngineError>) {
        self.lock().fault = fault.map(|fault| (is_any as _, fault));
    }

    /// Makes these requests fail, as if the user had lost the right to them or its token; [`fail`](Self::fail)
    /// ends that.
    pub fn revoke(&self, these: Which) {
        let why = EngineError::Credentials("revoked".to_owned());
        self.lock().fault = Some((these, why));
    }

    /// Undoes the changes of this time, at most `PAST`, as if the disk of the engine had lost them, or a
    /// snapshot was restored.
    pub fn forget(&self, now: Instant, time: Duration) {
        let mut shared = self.lock();
        shared.past.retain(|(at, _)| *at + time >= now);
        if let Some((_, before)) = shared.past.pop_front() {
            shared.store = before;
            shared.past.clear();
        }
    }

    /// Removes everything. The engine begins again with its first revision.
    pub fn lose(&self) {
        let mut shared = self.lock();
        shared.store = Store::default();
        shared.past.clear();
    }

    /// Answers a request at this time, which must not be before that of the last request.
    ///
    /// # Errors
    /// The error of [`fail`](Self::fail), and [`EngineError::NoLease`].
    pub fn ask_at(&self, now: Instant, request: &Request) -> Result<Answer, EngineError> {
        let mut shared = self.lock();
        let shared = &mut *shared;
        if let Some((_, why)) = shared.fault.as_ref().filter(|(these, _)| these(request)) {
            return Err(why.clone());
        }
        shared.store.expire(now);
        if !matches!(request, Request::Read) {
            shared.past.retain(|(at, _)| *at + PAST >= now);
            shared.past.push_back((now, shared.store.clone()));
        }
        match request {
            Request::Grant(time) => {
                // The number is not part of the store, which may be undone: no lease is granted twice.
                shared.leases += 1;
                let lease = Lease(shared.leases);
                shared.store.leases.insert(lease, (*time, now + *time));
                Ok(Answer::Granted(lease))
            }
            request => shared.store.answer(now, request),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Store {
    fn expire(&mut self, now: Instant) {
        let over = |(_, (_, ends)): &(&Lease, &(Duration, Instant))| *ends <= now;
        let over: Vec<_> = self.leases.iter().filter(over).map(|(lease, _)| *lease).collect();
        over.into_iter().for_each(|lease| self.end(lease));
    }

    fn end(&mut self, lease: Lease) {
        self.leases.remove(&lease);
        let before = self.kept.entries.len();
        self.kept.entries.retain(|_, entry| entry.lease != Some(lease));
        // As in etcd, the end of a lease without values is not a change.
        self.kept.revision += u64::from(self.kept.entries.len() < before);
    }

    fn answer(&mut self, now: Instant, request: &Request) -> Result<Answer, EngineError> {
        match request {
            Request::KeepAlive(lease) => Ok(Answer::Alive(match self.leases.get_mut(lease) {
                Some((time, ends)) => {
                    *ends = now + *time;
                    true
                }
                None => false,
            })),
            Request::Revoke(lease) => {
                self.end(*lease);
                Ok(Answer::Revoked)
            }
            Request::Put {
                key,
                value,
                lease,
                when,
            } => self.put(key, value, *lease, *when),
            Request::Read | Request::Grant(_) => Ok(Answer::Kept(self.kept.clone())),
        }
    }

    fn put(
        &mut self,
        key: &str,
        value: &[u8],
        lease: Option<Lease>,
        when: When,
    ) -> Result<Answer, EngineError> {
        let old = self.kept.entries.get(key);
        let holds = match when {
            When::Always => true,
            When::Absent => old.is_none(),
            When::At(revision) => old.is_some_and(|entry| entry.modified == revision),
            When::Led(lease, revision) => {
                let leader = self.kept.entries.get("leader");
                leader.is_some_and(|leader| leader.lease == Some(lease))
                    && old.map(|entry| entry.modified) == revision
            }
        };
        if !holds {
            let is_done = |entry: &&Entry| entry.value == value && entry.lease == lease;
            return Ok(match old.filter(is_done) {
                Some(done) => Answer::Put(done.modified),
                None => Answer::Differs(old.cloned()),
            });
        }
        if lease.is_some_and(|lease| !self.leases.contains_key(&lease)) {
            return Err(EngineError::NoLease);
        }
        self.kept.revision += 1;
        let entry = Entry {
            value: value.to_vec(),
            created: old.map_or(self.kept.revision, |entry| entry.created),
            modified: self.kept.revision,
            lease,
        };
        self.kept.entries.insert(key.to_owned(), entry);
        Ok(Answer::Put(self.kept.revision))
    }
}

impl Engine for MemoryEngine {
    #[expect(clippy::disallowed_methods, reason = "leases end by the clock")]
    fn ask(&mut self, request: &Request) -> Result<Answer, EngineError> {
        self.ask_at(Instant::now(), request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(key: &str, lease: Option<Lease>, when: When) -> Request {
        let (key, value) = (key.to_owned(), b"v".to_vec());
        Request::Put {
            key,
            value,
            lease,
            when,
        }
    }

    #[expect(clippy::disallowed_methods, reason = "any time will do")]
    fn begin() -> (MemoryEngine, Instant) {
        (MemoryEngine::new(), Instant::now())
    }

    #[test]
    fn a_value_ends_with_its_lease_and_a_condition_is_kept() {
        let (engine, now) = begin();
        let second = Duration::from_secs(1);
        let granted = engine.ask_at(now, &Request::Grant(5 * second)).unwrap();
        assert_eq!(granted, Answer::Granted(Lease(1)));
        let mine = put("a", Some(Lease(1)), When::Absent);
        let first = engine.ask_at(now, &mine).unwrap();
        assert_eq!(
            engine.ask_at(now, &mine).unwrap(),
            first,
            "the request was carried out once"
        );
        let other = engine.ask_at(now, &put("a", None, When::Absent)).unwrap();
        assert!(matches!(other, Answer::Differs(Some(entry)) if entry.created == 1));
        let alive = engine.ask_at(now + 4 * second, &Request::KeepAlive(Lease(1)));
        assert_eq!(alive, Ok(Answer::Alive(true)));
        let Ok(Answer::Kept(kept)) = engine.ask_at(now + 8 * second, &Request::Read) else {
            panic!("the entries were not read")
        };
        assert_eq!((kept.revision, kept.entries.len()), (1, 1));
        let alive = engine.ask_at(now + 9 * second, &Request::KeepAlive(Lease(1)));
        assert_eq!(alive, Ok(Answer::Alive(false)));
        assert_eq!(engine.ask_at(now + 9 * second, &mine), Err(EngineError::NoLease));
    }

    #[test]
    fn forget_drops_the_writes_of_a_time_and_no_older_ones() {
        let (engine, now) = begin();
        let at = |millis| now + Duration::from_millis(millis);
        engine.ask_at(at(0), &put("old", None, When::Always)).unwrap();
        engine.ask_at(at(1500), &put("new", None, When::Always)).unwrap();
        engine
            .ask_at(at(1600), &put("newer", None, When::Always))
            .unwrap();
        engine.forget(at(2000), Duration::from_secs(1));
        let Ok(Answer::Kept(kept)) = engine.ask_at(at(2000), &Request::Read) else {
            panic!("the entries were not read")
        };
        assert_eq!((kept.revision, kept.entries.len()), (1, 1));
    }
}
