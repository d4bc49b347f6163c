//! The thread of the reconciler.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, select};
use log::{info, warn};
use uuid::Uuid;

use super::handle::{Call, Handle, Health, Outcome, Snapshot, UserRequest};
use super::seen::{Names, RowLimit, connected, event, figures, moved, seen};
use crate::clock::unix_ms;
use crate::model::{Event, State, Write, short};
use crate::reconcile::{Answer, Changed, Command, Core, Now, Seen};
use crate::store::Store;
use ssntp::proto::ErrorCode;
use ssntp_payload::{Delete, Reason, Requirements, Start, VmType};
use ssntp_transport::{elapsed, excerpt, now};
use ssntp_view as cluster;
use ssntp_view::{Change, CommandError, Controller, Failure, OrderError, Shown};

const LOG: &str = "ssntp::controller";
/// The log target of orders, with those who gave them.
const AUDIT: &str = "ssntp::audit";
/// The time between two steps while nothing changes. Steps end pauses and graces.
const TICK: Duration = Duration::from_millis(500);
/// The least time between two steps, because the STATS of a thousand nodes arrive one by one.
const PAUSE: Duration = Duration::from_millis(100);
/// The maximum number of changes that are handled before calls are served again.
const MOST_CHANGES: usize = 4096;
/// The maximum number of plans that are carried out in a row before calls and changes are served again.
const MOST_PLANS: usize = 64;
/// A UUID that no node has. A START for it starts nothing; its answer shows whether the scheduler
/// has the instance.
const NO_NODE: Uuid = Uuid::from_u128(u128::MAX);
const MINUTE_MS: i64 = 60_000;

pub(super) struct Run {
    store: Store,
    core: Core,
    handle: Handle,
    controller: Arc<Controller>,
    changes: Receiver<Change>,
    /// The STARTs without an answer, by their instances.
    orders: Vec<(Uuid, cluster::Order)>,
    /// The last DELETE. Its answer shows whether another controller is the master, also if there is
    /// nothing to start.
    last_delete: Option<cluster::Order>,
    began: Instant,
    /// The number of the session; it grows with each one.
    session: u64,
    /// True once the scheduler has reported all that it knew when the session began.
    is_complete: bool,
    /// The nodes that are connected according to the history; `None` until the first session is
    /// complete.
    connected: Option<BTreeSet<Uuid>>,
    seen: Seen,
    names: Names,
    rows: RowLimit,
    /// The minute of the figures that were written last.
    minute: i64,
}

impl Run {
    /// `changes` has all changes from the first session on.
    pub(super) fn new(store: Store, state: State, handle: Handle, changes: Receiver<Change>) -> Self {
        Self {
            store,
            core: Core::new(state),
            changes,
            controller: Arc::clone(handle.controller()),
            handle,
            orders: Vec::new(),
            last_delete: None,
            began: now(),
            session: 0,
            is_complete: false,
            connected: None,
            seen: Seen::default(),
            names: Names::default(),
            rows: RowLimit::default(),
            minute: 0,
        }
    }

    /// Serves until the client has ended.
    pub(super) fn run(mut self, calls: &Receiver<Call>) {
        let (mut last, mut has_news) = (Duration::ZERO, true);
        loop {
            let changes = self.changes.clone();
            let due = last + if has_news { PAUSE } else { TICK };
            select! {
                recv(calls) -> call => match call {
                    Ok(call) => {
                        self.call(call);
                        has_news = true;
                    }
                    Err(_) => return,
                },
                recv(changes) -> change => match change {
                    Ok(change) => {
                        self.handle_changes(change);
                        has_news = true;
                    }
                    // The client has ended.
                    Err(_) => return,
                },
                default(due.saturating_sub(elapsed(self.began))) => {}
            }
            if elapsed(self.began) >= due {
                self.reconcile();
                self.publish();
                (last, has_news) = (elapsed(self.began), false);
            }
        }
    }

    /// Handles a change and the changes that are queued behind it.
    fn handle_changes(&mut self, first: Change) {
        let mut notes = Vec::new();
        let queued = self.changes.try_iter().take(MOST_CHANGES);
        let changes: Vec<_> = std::iter::once(first).chain(queued).collect();
        for change in &changes {
            match change {
                // After missed changes the view has to be complete again, as in a new session.
                Change::Online { .. } | Change::Offline { .. } | Change::Missed { .. } => {
                    self.session += 1;
                    self.is_complete = false;
                }
                Change::NodeConnected { node, .. } if self.is_complete => {
                    self.connected.get_or_insert_default().insert(*node);
                }
                Change::NodeDisconnected { node, .. } if self.is_complete => {
                    self.connected.get_or_insert_default().remove(node);
                }
                _ => {}
            }
            let known = &self.core.state().instances;
            let noted = event(change, self.is_complete, |instance| known.contains_key(instance));
            if let Some(event) = noted {
                self.rows.add(event, elapsed(self.began), &mut notes);
            }
        }
        self.controller.look(|view| self.names.learn(view, &changes));
        self.note(notes);
        self.controller.look(|view| self.names.forget(view, &changes));
    }

    fn note(&mut self, mut rows: Vec<Write>) {
        if !rows.is_empty() {
            self.name(&mut rows);
            self.store.note(rows);
        }
    }

    /// Puts names in the place of the UUIDs in the sentences of rows.
    fn name(&mut self, rows: &mut [Write]) {
        self.controller.look(|view| {
            for row in rows {
                self.names.put(view, row);
            }
        });
    }

    fn reconcile(&mut self) {
        let now = self.now();
        if !self.is_complete && self.controller.wait_complete(Duration::ZERO) {
            self.is_complete = true;
            let after = self.controller.look(connected);
            if let Some(before) = self.connected.replace(after.clone()) {
                self.note(moved(&before, &after));
            }
        }
        let (session, is_complete) = (self.session, self.is_complete);
        // The view is copied, so that its lock is not held while a commit waits for the disk.
        self.seen = self.controller.look(|view| seen(view, session, is_complete));
        self.note_figures(now.unix_ms);
        self.take_answers(now);
        for _ in 0..MOST_PLANS {
            // Each plan is committed before the next one, which depends on the new state.
            let mut plan = self.core.plan(now, &self.seen, &mut Uuid::new_v4);
            if plan.is_empty() {
                break;
            }
            if !plan.writes.is_empty() {
                self.name(&mut plan.writes);
                match self.store.commit(plan.writes.clone()) {
                    Ok(revision) => self.core.handle_commit(plan.writes, revision),
                    // The store has logged the reason. No command of the plan may be sent.
                    Err(_) => return,
                }
            }
            plan.commands.into_iter().for_each(|command| self.send(command));
        }
    }

    fn send(&mut self, command: Command) {
        let (instance, order) = match command {
            Command::Start(payload) => (
                payload.start.instance_uuid,
                self.controller.start_workload(&payload),
            ),
            Command::Ask(instance) => (instance, self.controller.order(&question(instance))),
            Command::Delete { instance, node } => {
                let delete = Delete {
                    instance_uuid: instance.into(),
                    workload_agent_uuid: node.into(),
                    ..Delete::default()
                };
                // The view shows when the instance is gone, and until then the reconciler repeats the
                // DELETE.
                match self.controller.order(&delete) {
                    Ok(order) => self.last_delete = Some(order),
                    Err(e) => info!(target: LOG, "DELETE of {}: {e}", self.called(instance)),
                }
                return;
            }
        };
        match order {
            Ok(order) => self.orders.push((instance, order)),
            Err(e) => {
                let reason: &CommandError = &e;
                info!(target: LOG, "START of {}: {reason}", self.called(instance));
                self.core.handle_answer(instance, Answer::Lost);
            }
        }
    }

    fn called(&self, instance: Uuid) -> String {
        let known = self.core.state().instances.get(&instance);
        known.map_or_else(|| short(instance), |known| known.called())
    }

    fn take_answers(&mut self, now: Now) {
        let core = &mut self.core;
        let deleted = self.last_delete.as_ref().and_then(cluster::Order::poll);
        if deleted.is_some_and(|settled| answer(settled) == Answer::NotMaster) {
            core.handle_other_master(now);
        }
        self.orders.retain(|(instance, order)| match order.poll() {
            None => true,
            Some(settled) => {
                core.handle_answer(*instance, answer(settled));
                false
            }
        });
    }

    fn note_figures(&mut self, unix_ms: i64) {
        let minute = unix_ms / MINUTE_MS;
        if minute != self.minute && self.seen.told {
            self.minute = minute;
            let figures = self.controller.look(|view| figures(view, minute * MINUTE_MS));
            self.store.note(figures);
        }
    }

    fn call(&mut self, call: Call) {
        let outcome = self.carry_out(&call.actor, call.request);
        // The snapshot comes first, so that a caller that reads after its order sees the change.
        self.publish();
        // The caller may have given up waiting.
        let _ = call.reply.try_send(outcome);
    }

    fn carry_out(&mut self, actor: &str, request: UserRequest) -> Outcome {
        let (mut applied, mut writes) = match request {
            UserRequest::Apply {
                specs,
                dry_run: false,
            } => self.core.apply(specs)?,
            UserRequest::Apply { specs, dry_run: true } => (self.core.apply(specs)?.0, Vec::new()),
            UserRequest::Delete(name) => (Vec::new(), self.core.delete(&name)?),
            UserRequest::Rollout(name, order) => (Vec::new(), self.core.rollout(&name, order)?),
            UserRequest::NoteRefused(text) => {
                let kind = "refused";
                let event = Event {
                    kind,
                    text,
                    ..Event::default()
                };
                (Vec::new(), vec![Write::Event(event)])
            }
        };
        for write in &mut writes {
            if let Write::Event(event) = write {
                event.actor = Some(actor.to_owned()).filter(|actor| !actor.is_empty());
                // What refuses an order has logged it.
                if event.kind != "refused" {
                    info!(target: AUDIT, "by an order of {actor:?}: {}", excerpt(&event.text));
                }
            }
        }
        if writes.is_empty() {
            return Ok((self.store.progress().last, applied));
        }
        // The memory changes only after the commit, so that it never is ahead of the disk.
        let revision = self.store.commit(writes.clone())?;
        self.core.handle_commit(writes, revision);
        for one in applied.iter_mut().filter(|one| one.change != Changed::Unchanged) {
            one.revision = revision;
        }
        Ok((revision, applied))
    }

    fn publish(&self) {
        let written = self.store.progress();
        let snapshot = Snapshot {
            // Only this thread changes the state, so all rows about it are in the snapshot. The view
            // has each change before its row is written.
            revision: written.last,
            state: self.core.state().clone(),
            status: self.core.status().clone(),
            health: Health {
                online: self.controller.look(cluster::View::is_online),
                told: self.seen.told,
                leads: !self.core.is_backup(self.now()),
                store: written.failing.map(|e| e.to_string()),
            },
        };
        self.handle.publish(snapshot);
    }

    fn now(&self) -> Now {
        Now {
            elapsed: elapsed(self.began),
            unix_ms: unix_ms(),
        }
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        let dropped = self.store.progress().dropped;
        if dropped > 0 {
            warn!(target: LOG, "{dropped} rows of the history were dropped");
        }
    }
}

/// A START that no node can accept, which queries the instance: see [`crate::reconcile`].
fn question(instance: Uuid) -> Start {
    Start {
        instance_uuid: instance,
        vm_type: VmType::Process,
        command: vec!["true".into()],
        requirements: Requirements {
            node_id: NO_NODE.into(),
            ..Requirements::default()
        },
        ..Start::default()
    }
}

fn answer(settled: Result<Shown, OrderError>) -> Answer {
    match settled {
        Ok(Shown::Gone { .. }) => Answer::Gone,
        Ok(_) => Answer::There,
        Err(OrderError::Failed(failure)) => refused(&failure),
        Err(_) => Answer::Lost,
    }
}

fn refused(failure: &Failure) -> Answer {
    let reason = failure.reason.as_str();
    if reason == "role_not_allowed" && failure.error == ErrorCode::INVALID_FRAME_TYPE {
        return Answer::NotMaster;
    }
    let of_start = Reason::from(reason);
    if of_start.node_has_instance() {
        return Answer::There;
    }
    Answer::NotStarted {
        why: failure.why(),
        is_its_fault: matches!(
            of_start,
            Reason::ImageFailure
                | Reason::LaunchFailure
                | Reason::NetworkFailure
                | Reason::InvalidPayload
                | Reason::InvalidData
        ),
    }
}
