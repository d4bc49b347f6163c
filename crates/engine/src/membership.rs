//! The thread `ssntp-engine`, which runs the machine.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, SendTimeoutError, Sender, bounded};
use ssntp_transport::threads::{self, Joined};
use ssntp_transport::{deadline, locked, now, remaining};

use crate::engine::{Answer, Engine, EngineError, Request, When};
use crate::machine::{CALL, DOCUMENTS, Join, Machine, Next, View};

/// The time for revoking the leases when the process leaves.
const LEAVING: Duration = Duration::from_secs(2);
/// The maximum number of documents that wait for the thread. A thread waits for each of them.
const WAITING: usize = 16;
/// The attempts to write a document as the leader, each at the revision that the engine has named.
const ATTEMPTS: usize = 3;
/// The time limit for queueing a document, and for writing it: a call may be under way.
const WRITING: Duration = Duration::from_secs(5);

/// What the thread is asked to do with the engine, and the receiver of the result; `None` if it only has to read the
/// shared state.
type ThreadRequest = Option<(Task, Sender<Result<u64, EngineError>>)>;
type Task = Box<dyn FnOnce(&mut Machine, &mut dyn Engine) -> Result<u64, EngineError> + Send>;

/// The state that the thread shares with the handles. The thread reads it after each request, so the other
/// requests need no room in the queue.
#[derive(Debug, Default)]
struct Shared {
    /// The highest token that was received elsewhere.
    seen: AtomicU64,
    resigns: AtomicBool,
    leaves: AtomicBool,
    view: Mutex<View>,
}

/// A process that is a member of the cluster. Dropping it leaves the cluster.
///
/// # Threads
/// Only the thread `ssntp-engine` waits for the engine. Dropping this joins the thread, which takes at
/// most three seconds if the engine is away.
#[derive(Debug)]
pub struct Membership {
    documents: Documents,
    _thread: Joined,
}

impl Membership {
    /// Joins the cluster, and stays a member by a thread. Blocks until the process is a member,
    /// another process is found to have its UUID, or the engine has failed to answer once. The thread
    /// calls `changed` after each change of the view; `changed` must not block.
    ///
    /// # Errors
    /// The error of the engine, so that a wrong address or password is noticed at the start;
    /// [`EngineError::Refused`] if the thread cannot be started.
    pub fn start(
        mut engine: Box<dyn Engine>,
        join: Join,
        mut changed: impl FnMut(&View) + Send + 'static,
    ) -> Result<Self, EngineError> {
        let mut machine = Machine::new(join);
        // This part runs on the caller's thread, so that the first error is its return value.
        while !machine.is_member() && machine.view().double.is_none() {
            step(&mut machine, &mut *engine);
            if let Some((_, why)) = &machine.view().away {
                return Err(why.clone());
            }
        }
        let (requests, received) = bounded(WAITING);
        let shared = Arc::new(Shared::default());
        locked(&shared.view).clone_from(machine.view());
        changed(machine.view());
        let of_thread = Arc::clone(&shared);
        let body = move || serve(machine, engine, &received, &of_thread, changed);
        let thread = threads::joined("ssntp-engine", body);
        let thread = thread.map_err(|e| EngineError::Refused(format!("no thread: {e}")))?;
        Ok(Self {
            documents: Documents { requests, shared },
            _thread: thread,
        })
    }

    /// The cluster, as of the last answer of the engine. Does not wait for the engine.
    pub fn view(&self) -> View {
        locked(&self.documents.shared.view).clone()
    }

    /// A handle for writing documents, for any thread.
    pub fn documents(&self) -> Documents {
        self.documents.clone()
    }
}

/// A handle for reading and writing documents of the cluster, giving up leadership, and reporting tokens. A clone
/// is cheap.
///
/// # Threads
/// [`read`](Self::read) and [`write`](Self::write) block, so a dispatcher must not call them. The other calls do not block.
#[derive(Clone, Debug)]
pub struct Documents {
    requests: Sender<ThreadRequest>,
    shared: Arc<Shared>,
}

impl Documents {
    /// Reports a token that was received elsewhere: see [`Machine::saw`].
    pub fn saw(&self, token: u64) {
        if self.shared.seen.fetch_max(token, Ordering::Relaxed) < token {
            self.wake();
        }
    }

    /// Gives up leadership, so that another server leads within a second. The process stays a member.
    pub fn resign(&self) {
        self.shared.resigns.store(true, Ordering::Release);
        self.wake();
    }

    /// Makes the thread read the shared state.
    fn wake(&self) {
        // If the queue is full, the thread reads the state after one of the queued requests.
        let _ = self.requests.try_send(None);
    }

    /// Reads the engine, which the thread does each second anyway. Blocks until the owner's `changed` has the answer, for
    /// at most five seconds.
    ///
    /// # Errors
    /// The error of the engine.
    pub fn read(&self) -> Result<(), EngineError> {
        self.ask(read).map(drop)
    }

    /// Writes a document, and returns its new revision. Blocks until the engine has answered, for at
    /// most five seconds.
    ///
    /// # Errors
    /// [`EngineError::Changed`] if the condition does not hold; else the error of the engine. After
    /// [`EngineError::Away`] the document may or may not be written.
    pub fn write(&self, name: &str, text: &[u8], when: When) -> Result<u64, EngineError> {
        let request = Request::Put {
            key: format!("{DOCUMENTS}{name}"),
            value: text.to_vec(),
            lease: None,
            when,
        };
        self.ask(move |machine, engine| {
            machine.reread();
            write(engine, &request)
        })
    }

    /// Writes a document as the leader, whatever the engine has there: only the leader writes it. It is
    /// not written once another process leads. Blocks like [`write`](Self::write).
    ///
    /// # Errors
    /// [`EngineError::NoLease`] if this process does not lead, [`EngineError::Changed`] if others change
    /// the document all the time; else the error of the engine. After an
    /// [unknown](EngineError::is_unknown) outcome the document may or may not be written.
    pub fn write_as_leader(&self, name: &str, text: &[u8]) -> Result<(), EngineError> {
        let (name, text) = (name.to_owned(), text.to_vec());
        let task = move |machine: &mut Machine, engine: &mut dyn Engine| {
            machine.reread();
            lead(machine, engine, &name, &text)
        };
        self.ask(task).map(drop)
    }

    fn ask(
        &self,
        task: impl FnOnce(&mut Machine, &mut dyn Engine) -> Result<u64, EngineError> + Send + 'static,
    ) -> Result<u64, EngineError> {
        let (reply, answer) = bounded(1);
        let why = |has_ended| {
            if has_ended {
                "this process has left the cluster".to_owned()
            } else {
                "it has too much to do".to_owned()
            }
        };
        // One deadline for both waits, so that the whole call ends in time.
        let end = deadline(WRITING);
        let sent = self
            .requests
            .send_timeout(Some((Box::new(task), reply)), remaining(end));
        // The thread does not have the request, so it is not carried out.
        sent.map_err(|e| EngineError::Refused(why(matches!(e, SendTimeoutError::Disconnected(_)))))?;
        let answer = answer.recv_timeout(remaining(end));
        answer.map_err(|e| EngineError::Away(why(e == RecvTimeoutError::Disconnected)))?
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        self.documents.shared.leaves.store(true, Ordering::Release);
        self.documents.wake();
    }
}

fn serve(
    mut machine: Machine,
    mut engine: Box<dyn Engine>,
    requests: &Receiver<ThreadRequest>,
    shared: &Shared,
    mut changed: impl FnMut(&View),
) {
    let mut publish = |view: &View| {
        locked(&shared.view).clone_from(view);
        changed(view);
    };
    let mut published = View::default();
    loop {
        let at = step(&mut machine, &mut *engine);
        if *machine.view() != published {
            published.clone_from(machine.view());
            publish(&published);
        }
        let request = requests.recv_timeout(remaining(at));
        // Documents that wait are not written, so that leaving takes no longer with many of them.
        if shared.leaves.load(Ordering::Acquire) {
            break;
        }
        if let Ok(Some((task, reply))) = request {
            let result = task(&mut machine, &mut *engine);
            // The owner has what was read before the caller goes on. A write has read nothing: an owner that writes
            // on each view would write again at once what the engine has refused.
            if machine.has_read() {
                publish(machine.view());
            }
            let _ = reply.send(result);
        }
        if shared.resigns.swap(false, Ordering::AcqRel) {
            machine.resign();
        }
        machine.saw(shared.seen.load(Ordering::Relaxed));
    }
    machine.leave();
    // The owner stops acting as the leader before the lease is revoked.
    publish(machine.view());
    let end = now() + LEAVING;
    while now() < end && step(&mut machine, &mut *engine) <= now() {}
}

fn read(machine: &mut Machine, engine: &mut dyn Engine) -> Result<u64, EngineError> {
    machine.reread();
    // What is due before the reading is done first. After a failure there is a pause.
    while !machine.has_read() && step(machine, engine) <= now() {}
    let away = machine.view().away.clone().filter(|_| !machine.has_read());
    away.map_or(Ok(0), |(_, why)| Err(why))
}

fn write(engine: &mut dyn Engine, request: &Request) -> Result<u64, EngineError> {
    match engine.ask(request)? {
        Answer::Put(revision) => Ok(revision),
        _ => Err(EngineError::Changed),
    }
}

/// Writes a document as the leader. If it was changed since the last reading, the revision that the
/// engine names is used.
fn lead(machine: &Machine, engine: &mut dyn Engine, name: &str, text: &[u8]) -> Result<u64, EngineError> {
    let mut revision = machine
        .view()
        .documents
        .get(name)
        .map(|document| document.revision);
    for _ in 0..ATTEMPTS {
        let request = machine.document(name, text, revision, now());
        let present = match engine.ask(&request.ok_or(EngineError::NoLease)?)? {
            Answer::Put(revision) => return Ok(revision),
            Answer::Differs(present) => present.map(|entry| entry.modified),
            _ => return Err(EngineError::Changed),
        };
        // The document is as it was expected, so it is the leader's key that is not.
        if present == revision {
            return Err(EngineError::NoLease);
        }
        revision = present;
    }
    Err(EngineError::Changed)
}

/// Carries out the next request of the machine. Returns the time of the next step.
fn step(machine: &mut Machine, engine: &mut dyn Engine) -> Instant {
    match machine.next(now()) {
        Next::Ask(request) => {
            let sent = now();
            let answer = engine.ask(&request);
            machine.handle_answer(&request, sent, now(), answer);
            sent
        }
        Next::At(at) => at,
        Next::Left => now() + 10 * CALL,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Member;
    use crate::memory::MemoryEngine;
    use uuid::Uuid;

    /// Waits for a view that fulfils the condition. Panics with the last view if none does in time.
    fn wait(views: &Receiver<View>, is_it: impl Fn(&View) -> bool) -> View {
        let (mut last, end) = (None, deadline(Duration::from_secs(60)));
        while let Ok(view) = views.recv_timeout(remaining(end)) {
            if is_it(&view) {
                return view;
            }
            last = Some(view);
        }
        panic!("not in time: {last:?}");
    }

    fn join(uuid: u128) -> Join {
        let member = Member {
            uuid: Uuid::from_u128(uuid),
            incarnation: 1,
            addresses: vec!["host:1".to_owned()],
            version: "1".to_owned(),
            token: 0,
        };
        Join { member, leads: true }
    }

    fn start(engine: &MemoryEngine, uuid: u128) -> Result<(Membership, Receiver<View>), EngineError> {
        let (views, received_views) = crossbeam_channel::unbounded();
        let tell = move |view: &View| drop(views.send(view.clone()));
        let membership = Membership::start(Box::new(engine.clone()), join(uuid), tell);
        membership.map(|membership| (membership, received_views))
    }

    #[test]
    fn an_engine_that_does_not_serve_is_an_error_at_the_start() {
        let engine = MemoryEngine::new();
        for reason in [
            EngineError::Away("nobody".to_owned()),
            EngineError::Full("no space".to_owned()),
            EngineError::Credentials("wrong".to_owned()),
        ] {
            engine.fail(Some(reason.clone()));
            assert_eq!(start(&engine, 1).unwrap_err(), reason);
        }
        engine.fail(None);
        assert!(start(&engine, 1).is_ok());
    }

    #[test]
    fn a_leader_that_leaves_is_replaced_at_once_and_the_engine_may_be_away() {
        let engine = MemoryEngine::new();
        let (first, views) = start(&engine, 1).unwrap();
        let leading = wait(&views, |view| view.acts(now()).is_some());
        let (second, others) = start(&engine, 2).unwrap();
        assert_eq!(second.view().members.len(), 2);
        let following = wait(&others, |view| view.leader.is_some());
        assert_eq!((following.leader, following.acting), (leading.leader, None));
        drop(first);
        let left = now();
        let leading = wait(&others, |view| view.acts(now()).is_some());
        assert!(leading.leader.unwrap().token > following.leader.unwrap().token);
        println!(
            "the next one leads {:?} after the first has left",
            ssntp_transport::elapsed(left)
        );
        engine.fail(Some(EngineError::Full("full".to_owned())));
        let away = wait(&others, |view| view.away.is_some());
        assert_eq!((away.leader, away.members.len()), (leading.leader, 1));
        engine.fail(None);
        wait(&others, |view| view.away.is_none() && view.acts(now()).is_some());
    }

    #[test]
    fn a_document_is_written_on_its_revision_and_all_members_read_it() {
        let engine = MemoryEngine::new();
        let (first, _) = start(&engine, 1).unwrap();
        let (_second, views) = start(&engine, 2).unwrap();
        let documents = first.documents();
        let revision = documents.write("d", b"1", When::Absent).unwrap();
        assert_eq!(
            documents.write("d", b"2", When::Absent),
            Err(EngineError::Changed)
        );
        let later = documents.write("d", b"2", When::At(revision)).unwrap();
        assert_eq!(
            documents.write("d", b"3", When::At(revision)),
            Err(EngineError::Changed)
        );
        let view = wait(&views, |view| {
            view.documents.get("d").is_some_and(|d| d.revision == later)
        });
        assert_eq!(view.documents["d"].text, b"2");
        drop(first);
        let left = documents.write("d", b"4", When::Always).unwrap_err();
        assert!(matches!(left, EngineError::Refused(_)), "{left}");
    }

    #[test]
    fn what_others_have_written_is_in_the_view_once_the_engine_was_read() {
        let engine = MemoryEngine::new();
        let (first, views) = start(&engine, 1).unwrap();
        let (second, _) = start(&engine, 2).unwrap();
        for text in [b"1", b"2", b"3"] {
            second.documents().write("d", text, When::Always).unwrap();
            first.documents().read().unwrap();
            assert_eq!(first.view().documents["d"].text, text);
            let last = views.try_iter().last().unwrap();
            assert_eq!(last.documents["d"].text, text);
        }
        let away = EngineError::Away("cut".to_owned());
        engine.fail(Some(away.clone()));
        assert_eq!(first.documents().read(), Err(away));
    }

    #[test]
    fn a_write_that_the_engine_refuses_is_no_new_view() {
        let (views, received) = crossbeam_channel::unbounded();
        let answer = |engine: &mut MemoryEngine, request: &Request| match request {
            request if is_of(request, DOCUMENTS) => Err(EngineError::Full("no space".to_owned())),
            request => engine.ask(request),
        };
        let follows = Join {
            leads: false,
            ..join(1)
        };
        let engine = Box::new(Odd {
            engine: MemoryEngine::new(),
            answer,
        });
        let tell = move |view: &View| drop(views.send(view.clone()));
        let membership = Membership::start(engine, follows, tell).unwrap();
        let documents = membership.documents();
        // The view of the first reading is told again once it is known to be a new one.
        documents.read().and_then(|()| documents.read()).unwrap();
        assert!(received.try_iter().count() > 0);
        let refused = documents.write("d", b"1", When::Always);
        assert_eq!(refused, Err(EngineError::Full("no space".to_owned())));
        assert_eq!(received.try_recv().ok(), None);
    }

    #[test]
    fn only_the_leader_writes_as_the_leader_and_whatever_was_written_meanwhile() {
        let engine = MemoryEngine::new();
        let (first, views) = start(&engine, 1).unwrap();
        let before = wait(&views, |view| view.acts(now()).is_some());
        // It never leads, also not in the moment when the engine has lost the leader.
        let follows = Join {
            leads: false,
            ..join(2)
        };
        let second = Membership::start(Box::new(engine.clone()), follows, |_| {}).unwrap();
        let other = second.documents().write_as_leader("d", b"0");
        assert_eq!(other, Err(EngineError::NoLease));
        let documents = first.documents();
        documents.write_as_leader("d", b"1").unwrap();
        // The view of the leader may not have this yet.
        second.documents().write("d", b"2", When::Always).unwrap();
        documents.write_as_leader("d", b"3").unwrap();
        wait(&views, |view| {
            view.documents.get("d").is_some_and(|d| d.text == b"3")
        });
        // An engine that was emptied has lower revisions than those that the leader has seen.
        engine.lose();
        let token = before.leader.map(|leader| leader.token);
        wait(&views, |view| {
            let leads_again = view.acts(now()).is_some_and(|acts| Some(acts) > token);
            leads_again && view.documents.is_empty()
        });
        documents.write_as_leader("d", b"4").unwrap();
        wait(&views, |view| {
            view.documents.get("d").is_some_and(|d| d.text == b"4")
        });
    }

    #[test]
    fn a_write_of_a_former_leader_that_arrives_late_is_not_carried_out() {
        let engine = MemoryEngine::new();
        let (first, views) = start(&engine, 1).unwrap();
        wait(&views, |view| view.acts(now()).is_some());
        let request = Request::Put {
            key: format!("{DOCUMENTS}d"),
            value: b"late".to_vec(),
            lease: None,
            // The lease of an earlier leader.
            when: When::Led(crate::Lease(4711), None),
        };
        assert_eq!(engine.clone().ask(&request), Ok(Answer::Differs(None)));
        first.documents().write_as_leader("d", b"now").unwrap();
    }

    #[test]
    fn a_write_of_a_leader_that_has_just_lost_its_lease_is_not_told_as_a_change_by_others() {
        let engine = MemoryEngine::new();
        let (views, received) = crossbeam_channel::unbounded();
        let answer = |engine: &mut MemoryEngine, request: &Request| {
            if is_of(request, DOCUMENTS)
                && let Ok(Answer::Kept(kept)) = engine.ask(&Request::Read)
                && let Some(lease) = kept
                    .entries
                    .get(crate::engine::LEADER)
                    .and_then(|entry| entry.lease)
            {
                engine.ask(&Request::Revoke(lease)).unwrap();
            }
            engine.ask(request)
        };
        let tell = move |view: &View| drop(views.send(view.clone()));
        let membership = Membership::start(Box::new(Odd { engine, answer }), join(1), tell).unwrap();
        wait(&received, |view| view.acts(now()).is_some());
        let written = membership.documents().write_as_leader("d", b"1");
        assert_eq!(written, Err(EngineError::NoLease));
    }

    #[test]
    fn a_leader_that_leaves_stops_acting_before_its_lease_is_revoked() {
        let engine = MemoryEngine::new();
        let (views, received) = crossbeam_channel::unbounded();
        let (revoked, acted) = crossbeam_channel::unbounded();
        let acting = Arc::new(AtomicBool::new(false));
        let acts = Arc::clone(&acting);
        let answer = move |engine: &mut MemoryEngine, request: &Request| {
            if matches!(request, Request::Revoke(_)) {
                revoked.send(acts.load(Ordering::Relaxed)).unwrap();
            }
            engine.ask(request)
        };
        let tell = move |view: &View| {
            acting.store(view.acting.is_some(), Ordering::Relaxed);
            drop(views.send(view.clone()));
        };
        let membership = Membership::start(Box::new(Odd { engine, answer }), join(1), tell).unwrap();
        wait(&received, |view| view.acts(now()).is_some());
        drop(membership);
        assert_eq!(acted.try_iter().collect::<Vec<_>>(), [false, false]);
    }

    #[test]
    fn a_higher_token_ends_a_leader_and_its_next_token_is_higher() {
        let engine = MemoryEngine::new();
        let (membership, views) = start(&engine, 1).unwrap();
        let leading = wait(&views, |view| view.acts(now()).is_some());
        // This token is from an engine with many more revisions.
        let token = leading.leader.unwrap().token + (1 << 40);
        membership.documents().saw(token);
        wait(&views, |view| view.acting.is_none());
        let again = wait(&views, |view| view.acting.is_some());
        assert!(again.leader.unwrap().token > token);
    }

    /// An engine whose answers a test holds back, or changes.
    struct Odd<A> {
        engine: MemoryEngine,
        answer: A,
    }

    impl<A> std::fmt::Debug for Odd<A> {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("Odd")
        }
    }

    impl<A: FnMut(&mut MemoryEngine, &Request) -> Result<Answer, EngineError> + Send> Engine for Odd<A> {
        fn ask(&mut self, request: &Request) -> Result<Answer, EngineError> {
            (self.answer)(&mut self.engine, request)
        }
    }

    fn enter(
        engine: &MemoryEngine,
        answer: impl FnMut(&mut MemoryEngine, &Request) -> Result<Answer, EngineError> + Send + 'static,
    ) -> Result<Membership, EngineError> {
        let engine = engine.clone();
        Membership::start(Box::new(Odd { engine, answer }), join(1), |_| {})
    }

    fn is_of(request: &Request, prefix: &str) -> bool {
        matches!(request, Request::Put { key, .. } if key.starts_with(prefix))
    }

    #[test]
    fn a_process_whose_uuid_another_one_has_taken_meanwhile_starts_and_names_it() {
        let membership = enter(&MemoryEngine::new(), |engine, request| {
            let answer = engine.ask(request);
            if let Request::Put { key, .. } = request
                && is_of(request, "members/")
            {
                let other = Member {
                    incarnation: 2,
                    ..join(1).member
                };
                let (key, value) = (key.clone(), serde_json::to_vec(&other).unwrap());
                let (lease, when) = (None, When::Always);
                let put = Request::Put {
                    key,
                    value,
                    lease,
                    when,
                };
                engine.ask(&put).unwrap();
            }
            answer
        });
        let double = membership.unwrap().view().double;
        assert_eq!(double.map(|other| other.incarnation), Some(2));
    }

    #[test]
    fn a_write_whose_answer_comes_too_late_may_have_been_carried_out() {
        let engine = MemoryEngine::new();
        let (hold, held) = bounded::<()>(0);
        let membership = enter(&engine, move |engine, request| {
            let answer = engine.ask(request);
            if is_of(request, DOCUMENTS) {
                let _ = held.recv();
            }
            answer
        });
        let membership = membership.unwrap();
        let written = membership.documents().write("d", b"1", When::Always);
        drop(hold);
        assert!(matches!(&written, Err(e) if e.is_unknown()), "{written:?}");
    }

    #[test]
    fn an_engine_that_loses_every_lease_is_an_error_at_the_start() {
        let refused = enter(&MemoryEngine::new(), |engine, request| match request {
            Request::Put { .. } => Err(EngineError::NoLease),
            _ => engine.ask(request),
        });
        assert_eq!(refused.unwrap_err(), EngineError::NoLease);
    }

    #[test]
    fn requests_need_no_room_and_documents_that_wait_are_not_written_when_the_process_leaves() {
        let engine = MemoryEngine::new();
        let (entered, is_held) = bounded(WAITING);
        let (hold, held) = bounded::<()>(0);
        let membership = enter(&engine, move |engine, request| {
            if is_of(request, DOCUMENTS) {
                entered.send(()).unwrap();
                let _ = held.recv();
            }
            engine.ask(request)
        });
        let (membership, mut writers) = (membership.unwrap(), Vec::new());
        let documents = membership.documents();
        let write = |name: &'static str| {
            let documents = documents.clone();
            threads::spawn("writer", move || documents.write(name, b"1", When::Always)).unwrap()
        };
        let first = write("first");
        is_held.recv().unwrap();
        writers.extend((0..WAITING).map(|_| write("later")));
        while !documents.requests.is_full() {
            std::thread::yield_now();
        }
        documents.saw(u64::MAX);
        documents.resign();
        let leaving = threads::spawn("leaving", move || drop(membership)).unwrap();
        while !documents.shared.leaves.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        drop(hold);
        leaving.join().unwrap();
        let written = first.join().unwrap();
        assert!(
            matches!(written, Ok(_) | Err(EngineError::Away(_))),
            "{written:?}"
        );
        for writer in writers {
            let refused = writer.join().unwrap().unwrap_err();
            let is_refused = matches!(refused, EngineError::Away(_) | EngineError::Refused(_));
            assert!(is_refused, "{refused}");
        }
        assert!(is_held.try_recv().is_err(), "only the first document was written");
        assert_eq!(
            documents
                .write("last", b"1", When::Always)
                .unwrap_err()
                .to_string(),
            "the engine refuses: this process has left the cluster"
        );
    }
}
