//! The thread `ssntp-engine`, which runs the machine.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};
use ssntp_transport::{deadline, threads};

use crate::engine::{Answer, Engine, EngineError, Request, When};
use crate::machine::{CALL, DOCUMENTS, Join, Machine, Next, View};

/// The time for revoking the leases when the process leaves.
const LEAVING: Duration = Duration::from_secs(2);
/// The maximum number of orders that wait for the thread. A thread waits for each document.
const WAITING: usize = 16;
/// The time limit for queueing a document, and for writing it: a call may be under way.
const WRITING: Duration = Duration::from_secs(5);

#[derive(Debug)]
enum Order {
    /// Read the highest token that was received elsewhere.
    Token,
    Write(Request, Sender<Result<u64, EngineError>>),
    Resign,
    Leave,
}

/// A process that is a member of the cluster. Dropping it leaves the cluster.
///
/// # Threads
/// Only the thread `ssntp-engine` waits for the engine. Dropping this joins the thread, which takes at
/// most three seconds if the engine is away.
#[derive(Debug)]
pub struct Membership {
    documents: Documents,
    thread: Option<JoinHandle<()>>,
    view: Arc<Mutex<View>>,
}

impl Membership {
    /// Joins the cluster, and stays a member by a thread. Blocks until the process is a member, or
    /// the engine has failed to answer once. The thread calls `changed` after each change of the
    /// view; `changed` must not block.
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
        while !machine.is_member() {
            step(&mut machine, &mut *engine);
            if let Some((_, why)) = &machine.view().away {
                return Err(why.clone());
            }
        }
        let view = Arc::new(Mutex::new(machine.view().clone()));
        let (orders, received) = bounded(WAITING);
        let seen = Arc::new(AtomicU64::new(0));
        changed(machine.view());
        let shared = Arc::clone(&view);
        let publish = move |view: &View| {
            *shared.lock().unwrap_or_else(PoisonError::into_inner) = view.clone();
            changed(view);
        };
        let token = Arc::clone(&seen);
        let body = move || serve(machine, engine, &received, &token, publish);
        let thread = threads::spawn("ssntp-engine", body);
        let thread = thread.map_err(|e| EngineError::Refused(format!("no thread: {e}")))?;
        Ok(Self {
            documents: Documents { orders, seen },
            thread: Some(thread),
            view,
        })
    }

    /// The cluster, as of the last answer of the engine. Does not wait for the engine.
    pub fn view(&self) -> View {
        self.view.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// A handle for writing documents, for any thread.
    pub fn documents(&self) -> Documents {
        self.documents.clone()
    }
}

/// A handle for writing documents of the cluster, giving up leadership, and reporting tokens. A clone
/// is cheap.
///
/// # Threads
/// [`write`](Self::write) blocks, so a dispatcher must not call it. The other calls do not block.
#[derive(Clone, Debug)]
pub struct Documents {
    orders: Sender<Order>,
    /// The highest token that was received elsewhere.
    seen: Arc<AtomicU64>,
}

impl Documents {
    /// Reports a token that was received elsewhere: see [`Machine::saw`].
    pub fn saw(&self, token: u64) {
        if self.seen.fetch_max(token, Ordering::Relaxed) < token {
            // If the queue is full, the thread reads the token after one of the queued orders.
            let _ = self.orders.try_send(Order::Token);
        }
    }

    /// Gives up leadership, so that another server leads within a second. The process stays a member.
    pub fn resign(&self) {
        // If the queue is full, this process leads until it ends.
        let _ = self.orders.try_send(Order::Resign);
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
        let (reply, answer) = bounded(1);
        let late = |_| EngineError::Away("it has too much to do".to_owned());
        // One deadline for both waits, so that the whole call ends in time.
        let end = deadline(WRITING);
        let sent = self.orders.send_deadline(Order::Write(request, reply), end);
        sent.map_err(|_| late(RecvTimeoutError::Timeout))?;
        answer.recv_deadline(end).map_err(late)?
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        let _ = self.documents.orders.send(Order::Leave);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn serve(
    mut machine: Machine,
    mut engine: Box<dyn Engine>,
    orders: &Receiver<Order>,
    seen: &AtomicU64,
    mut publish: impl FnMut(&View),
) {
    let mut published = View::default();
    loop {
        let at = step(&mut machine, &mut *engine);
        if *machine.view() != published {
            published.clone_from(machine.view());
            publish(&published);
        }
        match orders.recv_deadline(at) {
            Ok(Order::Token) | Err(RecvTimeoutError::Timeout) => {}
            Ok(Order::Write(request, reply)) => {
                let _ = reply.send(write(&mut *engine, &request));
                machine.reread();
            }
            Ok(Order::Resign) => machine.resign(),
            Ok(Order::Leave) | Err(RecvTimeoutError::Disconnected) => break,
        }
        machine.saw(seen.load(Ordering::Relaxed));
    }
    machine.leave();
    // The owner stops acting as the leader before the lease is revoked.
    publish(machine.view());
    let end = now() + LEAVING;
    while now() < end && step(&mut machine, &mut *engine) <= now() {}
}

fn write(engine: &mut dyn Engine, request: &Request) -> Result<u64, EngineError> {
    match engine.ask(request)? {
        Answer::Put(revision) => Ok(revision),
        _ => Err(EngineError::Changed),
    }
}

/// Carries out the next request of the machine. Returns the time of the next step.
fn step(machine: &mut Machine, engine: &mut dyn Engine) -> Instant {
    match machine.next(now()) {
        Next::Ask(request) => {
            let sent = now();
            let answer = engine.ask(&request);
            machine.answered(&request, sent, now(), answer);
            sent
        }
        Next::At(at) => at,
        Next::Left => now() + 10 * CALL,
    }
}

#[expect(clippy::disallowed_methods, reason = "the machine itself reads no clock")]
fn now() -> Instant {
    Instant::now()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Member;
    use crate::memory::MemoryEngine;
    use uuid::Uuid;

    /// Waits for a view that fulfils the condition. Panics with the last view if none does in time.
    fn wait(views: &Receiver<View>, is_it: impl Fn(&View) -> bool) -> View {
        let mut last = None;
        while let Ok(view) = views.recv_timeout(Duration::from_secs(60)) {
            if is_it(&view) {
                return view;
            }
            last = Some(view);
        }
        panic!("not in time: {last:?}");
    }

    fn start(engine: &MemoryEngine, uuid: u128) -> Result<(Membership, Receiver<View>), EngineError> {
        let member = Member {
            uuid: Uuid::from_u128(uuid),
            incarnation: 1,
            addresses: vec!["host:1".to_owned()],
            version: "1".to_owned(),
            token: 0,
        };
        let (views, received_views) = crossbeam_channel::unbounded();
        let join = Join { member, leads: true };
        let tell = move |view: &View| drop(views.send(view.clone()));
        Membership::start(Box::new(engine.clone()), join, tell).map(|membership| (membership, received_views))
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
        println!("the next one leads {:?} after the first has left", left.elapsed());
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
        assert!(matches!(
            documents.write("d", b"4", When::Always),
            Err(EngineError::Away(_))
        ));
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
}
