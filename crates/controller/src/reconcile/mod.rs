//! The reconciler: compares the desired state with the view of the cluster, and decides what to do.
//! It uses no clock, no sockets and no threads: the caller passes the time in and carries out the
//! plans.
//!
//! ```text
//!  Seen, Answer, now ─▶ Core::step ─▶ Plan { writes, commands }
//!                         ▲                    │ first to the database
//!                         └── Core::committed ─┤
//!                                              └─▶ then START, DELETE to the scheduler
//! ```
//!
//! A plan depends on the stored state only, so a plan that could not be written is dropped and made
//! again later. A START is sent only after its instance, with its UUID, is on the disk:
//!
//! | the controller crashes | the next process finds | and |
//! |---|---|---|
//! | before the commit | no instance | starts another instance |
//! | after the commit, before the START is sent | a starting instance that no node lists | *queries* it: the scheduler does not have it, so the instance is dropped |
//! | after the START is sent | a starting instance that no node lists | queries it: the scheduler has it, so the controller waits |
//! | after a node lists the instance | an instance of the view | marks it as running |
//!
//! A *query* is a START of the same UUID for a node that does not exist. A scheduler that has the
//! instance in any state answers `already_running` or `instance_exists`; otherwise it answers that
//! no node has room. So a UUID is never started on two nodes. If an instance runs nevertheless that
//! the database has as unwanted, it is deleted as soon as a node lists it.
//!
//! Nothing is decided before the scheduler has reported to a new session all that it knows.
//!
//! | file | holds |
//! |---|---|
//! | `observe` | updates the stored instances from the view |
//! | `decide` | fills slots and rolls versions out |
//! | `orders` | the orders of users: [`Core::apply`], [`Core::delete`], [`Core::rollout`] |
//! | `soft` | the state that is not stored |

mod decide;
mod observe;
mod orders;
mod soft;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::Serialize;
use ssntp::payload::StartPayload;
use uuid::Uuid;

pub use self::orders::{Applied, Changed, Difference, Refused, RolloutOrder};
use self::soft::Soft;
use crate::model::{Event, Instance, State, Workload, Write};

/// The present time.
#[derive(Clone, Copy, Debug, Default)]
pub struct Now {
    /// The time since this process began, by a clock that never goes back.
    pub elapsed: Duration,
    /// The time of day: milliseconds since 1970, UTC. Its clock may jump, so it is stored for
    /// readers, and only the retention of instances of absent nodes depends on it.
    pub unix_ms: i64,
}

/// The view of the cluster.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// The number of the session with the scheduler.
    pub session: u64,
    /// True once the scheduler has reported all that it knew when the session began.
    pub told: bool,
    /// The nodes that are connected and report.
    pub nodes: BTreeSet<Uuid>,
    /// The instances that nodes have listed.
    pub instances: BTreeMap<Uuid, SeenInstance>,
}

/// An instance as its node listed it last.
#[derive(Clone, Debug)]
pub struct SeenInstance {
    /// The node.
    pub node: Uuid,
    /// True while the node is starting the instance. The start may still fail.
    pub is_pending: bool,
    /// The end of the instance; `None` while it has not ended.
    pub ended: Option<SeenEnd>,
    /// True if the instance has ended and the node will restart it.
    pub is_restart_due: bool,
    /// The labels that a controller gave to the instance, if it has them.
    pub mark: Option<Mark>,
}

/// The end of an instance.
#[derive(Clone, Debug)]
pub struct SeenEnd {
    /// True if the instance succeeded.
    pub is_success: bool,
    /// The reason, as text.
    pub how: String,
}

/// The labels of an instance that a controller has started.
#[derive(Clone, Debug)]
pub struct Mark {
    /// The name of the workload.
    pub workload: String,
    /// The slot.
    pub slot: u32,
    /// The digest of the template.
    pub digest: String,
}

/// The scheduler's answer to a START.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The scheduler has the instance, or is starting it.
    There,
    /// The instance was started and has been deleted since.
    Gone,
    /// The scheduler does not have the instance and is not starting it.
    NotStarted {
        /// The reason, as text.
        why: String,
        /// True if the workload causes the failure, false if the state of the cluster does.
        is_its_fault: bool,
    },
    /// The answer was lost, so the outcome of the START is unknown.
    Lost,
    /// Another controller is the master, so the scheduler ignored the START.
    NotMaster,
}

/// A command that is sent once the writes of its plan are on the disk.
#[derive(Clone, Debug)]
pub enum Command {
    /// Start an instance.
    Start(Box<StartPayload>),
    /// Query whether the scheduler has an instance.
    Ask(Uuid),
    /// Delete an instance.
    Delete {
        /// The instance.
        instance: Uuid,
        /// The node of the instance.
        node: Uuid,
    },
}

/// The next step: first the writes, all or none, then the commands.
#[derive(Debug, Default)]
pub struct Plan {
    /// The changes to write.
    pub writes: Vec<Write>,
    /// The commands to send after the writes.
    pub commands: Vec<Command>,
}

impl Plan {
    /// True if there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.writes.is_empty() && self.commands.is_empty()
    }
}

/// The status of a workload.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Status {
    /// The number of instances that the workload should have.
    pub wanted: u32,
    /// The number of slots whose instance runs or has succeeded.
    pub running: u32,
    /// The number of slots whose instance is healthy or has succeeded.
    pub healthy: u32,
    /// The number of instances of another version than the present one.
    pub outdated: u32,
    /// The number of instances that are being started.
    pub starting: u32,
    /// The last failure, while an instance is missing.
    pub problem: Option<String>,
}

/// The reconciler.
#[derive(Debug)]
pub struct Core {
    state: State,
    soft: Soft,
}

impl Core {
    /// A reconciler with the state that a database holds.
    pub fn new(state: State) -> Self {
        let soft = Soft::default();
        Self { state, soft }
    }

    /// The desired state, as it is stored.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// The status of each workload, by its name.
    pub fn status(&self) -> &BTreeMap<String, Status> {
        &self.soft.status
    }

    /// True if the scheduler answered within the last 30 s that another controller is the master.
    pub fn is_backup(&self, now: Now) -> bool {
        self.soft.backup_until.is_some_and(|until| now.elapsed < until)
    }

    /// Another controller is the master, by the answer to a DELETE. For a while, nothing is decided.
    pub fn follow_master(&mut self, now: Now) {
        self.soft.follow_master(now);
    }

    /// Adds the answer to a START or a query, for the next step.
    pub fn answer(&mut self, instance: Uuid, answer: Answer) {
        self.soft.answers.push((instance, answer));
    }

    /// Adds the outcome of a health check.
    pub fn checked(&mut self, instance: Uuid, is_healthy: bool) {
        let limit = self.state.instances.get(&instance).and_then(|instance| {
            let workload = self.state.workloads.get(&instance.workload)?;
            Some(workload.spec.health.as_ref()?.failures)
        });
        if let Some(limit) = limit {
            self.soft.checked(instance, is_healthy, limit);
        }
    }

    /// The next plan; `uuids` generates new UUIDs. After a plan was carried out, call this again,
    /// until a plan is empty: each plan is a single step.
    pub fn step(&mut self, seen: &Seen, now: Now, uuids: &mut dyn FnMut() -> Uuid) -> Plan {
        if !seen.told {
            return Plan::default();
        }
        let is_backup = self.is_backup(now);
        let Self { state, soft } = self;
        soft.begin(state, seen, now);
        let mut pass = Pass {
            state,
            soft,
            seen,
            now,
            plan: Plan::default(),
            touched: BTreeMap::new(),
        };
        pass.observe();
        // Observations are written before anything is decided. A backup decides nothing.
        if pass.is_quiet() && !is_backup {
            pass.decide(uuids);
        }
        pass.finish()
    }

    /// Applies the writes of a plan or of an order, which are on the disk now. `revision` is the
    /// number of the last row of the history.
    pub fn committed(&mut self, writes: Vec<Write>, revision: i64) {
        for mut write in writes {
            match &mut write {
                Write::Workload(workload) => {
                    workload.revision = revision;
                    let known = self.state.workloads.get(&workload.name);
                    // Failures of another version do not delay the present one.
                    if known.is_some_and(|known| known.version != workload.version) {
                        self.soft.forget_failures(&workload.name);
                    }
                }
                Write::Instance(instance) => instance.revision = revision,
                Write::InstanceGone(uuid) => self.soft.forget(*uuid),
                Write::WorkloadGone(name) => self.soft.forget_workload(name),
                _ => {}
            }
            self.state.take(write);
        }
    }

    /// The instances that need health checks, with their workloads.
    pub fn checks<'a>(&'a self, seen: &'a Seen) -> impl Iterator<Item = (&'a Instance, &'a Workload)> {
        self.state.instances.values().filter_map(|instance| {
            let workload = self.state.workloads.get(&instance.workload)?;
            workload.spec.health.as_ref()?;
            // The port of an instance that its node is starting is not open yet. An instance whose
            // node is away may be out of reach of this controller and run nevertheless.
            let is_alive = seen
                .instances
                .get(&instance.uuid)
                .is_some_and(|i| i.ended.is_none() && !i.is_pending && seen.nodes.contains(&i.node));
            (instance.wanted && is_alive).then_some((&**instance, &**workload))
        })
    }
}

/// One step. It reads the state, and collects a plan.
struct Pass<'a> {
    state: &'a State,
    soft: &'a mut Soft,
    seen: &'a Seen,
    now: Now,
    plan: Plan,
    /// The workloads that this step changes. Each is written once, at the end.
    touched: BTreeMap<String, Workload>,
}

impl Pass<'_> {
    /// True if this step has written nothing so far.
    fn is_quiet(&self) -> bool {
        self.plan.writes.is_empty() && self.touched.is_empty()
    }

    fn finish(mut self) -> Plan {
        let touched = std::mem::take(&mut self.touched);
        let writes = touched
            .into_values()
            .map(|workload| Write::Workload(Box::new(workload)));
        self.plan.writes.extend(writes);
        self.plan
    }

    /// A copy of a workload to change. It is written at the end of the step.
    fn touch(&mut self, workload: &Workload) -> &mut Workload {
        let known = self.touched.entry(workload.name.clone());
        known.or_insert_with(|| workload.clone())
    }

    /// Adds a row about an instance. `what` follows its name and completes the sentence.
    fn event(&mut self, kind: &'static str, about: &Instance, what: &str) {
        let Instance {
            uuid, workload, slot, ..
        } = about;
        self.plan.writes.push(Write::Event(Event {
            kind,
            workload: Some(workload.clone()),
            instance: Some(*uuid),
            node: about.node,
            text: format!("{workload}-{slot} ({uuid}) {what}"),
        }));
    }

    fn workload_event(&mut self, kind: &'static str, workload: &str, text: String) {
        self.plan.writes.push(Event::of_workload(kind, workload, text));
    }

    /// Writes a new or changed instance, and a row about it.
    fn change(&mut self, instance: Instance, kind: &'static str, what: &str) {
        self.event(kind, &instance, what);
        self.plan.writes.push(Write::Instance(instance));
    }

    /// Removes an instance from the database, and writes a row about it.
    fn gone(&mut self, instance: &Instance, kind: &'static str, what: &str) {
        self.event(kind, instance, what);
        self.plan.writes.push(Write::InstanceGone(instance.uuid));
    }

    /// Marks an instance as no longer wanted, and writes a row about it.
    fn mark_unwanted(&mut self, instance: &Instance, kind: &'static str, what: &str) {
        let unwanted = Instance {
            wanted: false,
            since: self.now.unix_ms,
            ..instance.clone()
        };
        self.change(unwanted, kind, what);
    }

    /// Counts the failure of an instance: its slot stays empty for a pause, and its roll-out may go
    /// back.
    fn failed(&mut self, instance: &Instance, why: &str, is_its_fault: bool) {
        self.soft.failed(instance, why, self.now);
        if let Some(workload) = self.state.workloads.get(&instance.workload)
            && is_its_fault
            && workload.version == instance.version
            // Only failures of the version that is rolled out can make the roll-out go back.
            && workload.rollout.state == crate::model::RolloutState::Rolling
        {
            let rollout = &mut self.touch(workload).rollout;
            rollout.failures = rollout.failures.saturating_add(1);
            why.clone_into(&mut rollout.why);
        }
    }

    /// True if the node is connected and reports.
    fn is_current(&self, node: Uuid) -> bool {
        self.seen.nodes.contains(&node)
    }
}
