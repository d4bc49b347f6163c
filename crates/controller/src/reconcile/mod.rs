//! The reconciler: what follows from what should run and what is seen. No clock, no sockets, no
//! threads: the caller gives it the time, and carries out what it says.
//!
//! ```text
//!  Seen, Answer, now ─▶ Core::step ─▶ Plan { writes, commands }
//!                         ▲                    │ the database first
//!                         └── Core::committed ─┤
//!                                              └─▶ then START, DELETE to the scheduler
//! ```
//!
//! A plan is made of what is there, so one that could not be written is forgotten and made again
//! later. A START is sent only after its instance, with its UUID, is on the disk:
//!
//! | the controller ends | the next one finds | and |
//! |---|---|---|
//! | before the commit | nothing | starts another instance |
//! | after it, before the START is sent | a starting instance that no node lists | *asks*: the scheduler does not have it, so it is dropped |
//! | after that | the same | asks: the scheduler has it, so it waits |
//! | when a node lists it | an instance that is seen | it runs |
//!
//! To *ask* is a START of the same UUID for a node that does not exist: a scheduler that has the
//! instance in any state answers `already_running` or `instance_exists`, and one that has not
//! says that there is no room. So one UUID is never given to two nodes, and whatever was started
//! in spite of all this has a UUID that the database knows as unwanted, and is deleted when it
//! is seen.
//!
//! Nothing is decided before the scheduler has told a new session all that it knows.
//!
//! | file | holds |
//! |---|---|
//! | `observe` | what was seen is taken down |
//! | `decide` | slots are filled, versions rolled out |
//! | `orders` | what users ask for: [`Core::apply`], [`Core::delete`], [`Core::rollout`] |
//! | `soft` | what is remembered until the process ends |

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
    /// Since some time before this process began to reconcile; it never goes back.
    pub elapsed: Duration,
    /// Milliseconds since 1970, UTC: it may jump, so it is written down, and decides next to nothing.
    pub unix_ms: i64,
}

/// The cluster, as the scheduler tells it.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// The number of the session with the scheduler.
    pub session: u64,
    /// Whether the scheduler has told this session all that it knew when it began.
    pub told: bool,
    /// The nodes that are connected and report.
    pub nodes: BTreeSet<Uuid>,
    /// The instances that nodes have listed.
    pub instances: BTreeMap<Uuid, SeenInstance>,
}

/// An instance, as its node has last listed it.
#[derive(Clone, Debug)]
pub struct SeenInstance {
    /// Its node.
    pub node: Uuid,
    /// Whether it is still being started: then it may come to nothing.
    pub is_pending: bool,
    /// How it ended; none while it has not.
    pub ended: Option<SeenEnd>,
    /// How often its node has started it again.
    pub restarts: u32,
    /// What its labels say, if a controller has started it.
    pub mark: Option<Mark>,
}

/// How an instance ended.
#[derive(Clone, Debug)]
pub struct SeenEnd {
    /// Whether it succeeded.
    pub is_success: bool,
    /// In words.
    pub how: String,
}

/// The labels of an instance that a controller has started.
#[derive(Clone, Debug)]
pub struct Mark {
    /// The name of its workload.
    pub workload: String,
    /// Its slot.
    pub slot: u32,
    /// The digest of its template.
    pub digest: String,
}

/// The scheduler's answer to a START.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The instance is there, or is being started.
    There,
    /// It was there, and is gone.
    Gone,
    /// It is not there, and is not being started.
    NotStarted {
        /// Why, in words.
        why: String,
        /// Whether the workload is to blame, and not the state of the cluster.
        is_its_fault: bool,
    },
    /// It is not known what became of the START.
    Lost,
    /// Another controller is the master, so nothing was done.
    NotMaster,
}

/// What is to be sent once the writes of its plan are on the disk.
#[derive(Clone, Debug)]
pub enum Command {
    /// Start an instance.
    Start(Box<StartPayload>),
    /// Ask whether the scheduler has an instance.
    Ask(Uuid),
    /// Delete an instance.
    Delete {
        /// The instance.
        instance: Uuid,
        /// The node that has it.
        node: Uuid,
    },
}

/// What follows from the state: first the writes, all or none, then the commands.
#[derive(Debug, Default)]
pub struct Plan {
    /// What is to be written.
    pub writes: Vec<Write>,
    /// What is to be sent then.
    pub commands: Vec<Command>,
}

impl Plan {
    /// Whether nothing is to be done.
    pub fn is_empty(&self) -> bool {
        self.writes.is_empty() && self.commands.is_empty()
    }
}

/// How a workload does at present.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Status {
    /// How many instances it should have.
    pub wanted: u32,
    /// How many of these run, or have done their work.
    pub running: u32,
    /// How many of these do their work, as far as is known.
    pub healthy: u32,
    /// How many have another version than they should.
    pub outdated: u32,
    /// How many are being started.
    pub starting: u32,
    /// What failed last, while an instance is missing.
    pub problem: Option<String>,
}

/// The reconciler.
#[derive(Debug)]
pub struct Core {
    state: State,
    soft: Soft,
}

impl Core {
    /// A reconciler for what a database holds.
    pub fn new(state: State) -> Self {
        let soft = Soft::default();
        Self { state, soft }
    }

    /// What should be, and is written down.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// How each workload does.
    pub fn status(&self) -> &BTreeMap<String, Status> {
        &self.soft.status
    }

    /// Whether another controller is the master, as far as is known.
    pub fn is_backup(&self, now: Now) -> bool {
        self.soft.backup_until.is_some_and(|until| now.elapsed < until)
    }

    /// Takes the answer to a START or a question.
    pub fn answer(&mut self, instance: Uuid, answer: Answer) {
        self.soft.answers.push((instance, answer));
    }

    /// Takes the outcome of a check of an instance's health.
    pub fn checked(&mut self, instance: Uuid, is_healthy: bool) {
        let limit = self.state.instances.get(&instance).and_then(|instance| {
            let workload = self.state.workloads.get(&instance.workload)?;
            Some(workload.spec.health.as_ref()?.failures)
        });
        if let Some(limit) = limit {
            self.soft.checked(instance, is_healthy, limit);
        }
    }

    /// What is to be done now: `uuids` gives new UUIDs. After it was done, call it again, until
    /// nothing is to be done: each plan takes one step.
    pub fn step(&mut self, seen: &Seen, now: Now, uuids: &mut dyn FnMut() -> Uuid) -> Plan {
        if !seen.told {
            return Plan::default();
        }
        self.soft.begin(seen, now);
        let is_backup = self.is_backup(now);
        let Self { state, soft } = self;
        let mut pass = Pass {
            state,
            soft,
            seen,
            now,
            plan: Plan::default(),
            touched: BTreeMap::new(),
        };
        pass.observe();
        // What was seen is taken down before anything is decided. A backup only looks.
        if pass.is_quiet() && !is_backup {
            pass.decide(uuids);
        }
        pass.finish()
    }

    /// The writes of a plan, or of an order, are on the disk, with this row of the history as the
    /// last one.
    pub fn committed(&mut self, writes: Vec<Write>, revision: i64) {
        for mut write in writes {
            match &mut write {
                Write::Workload(workload) => {
                    workload.revision = revision;
                    let known = self.state.workloads.get(&workload.name);
                    // What failed with another version says nothing of this one.
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

    /// A plan could not be written, and is forgotten.
    pub fn refused(&mut self, plan: &Plan) {
        for write in &plan.writes {
            if let Write::Instance(instance) = write
                && !self.state.instances.contains_key(&instance.uuid)
            {
                self.soft.forget(instance.uuid);
            }
        }
    }

    /// The instances whose health is to be checked, with their workloads.
    pub fn checks<'a>(&'a self, seen: &'a Seen) -> impl Iterator<Item = (&'a Instance, &'a Workload)> {
        self.state.instances.values().filter_map(|instance| {
            let workload = self.state.workloads.get(&instance.workload)?;
            workload.spec.health.as_ref()?;
            let is_alive = seen
                .instances
                .get(&instance.uuid)
                .is_some_and(|i| i.ended.is_none());
            (instance.wanted && is_alive).then_some((&**instance, &**workload))
        })
    }
}

/// One step: it reads the state, and collects what is to be done.
struct Pass<'a> {
    state: &'a State,
    soft: &'a mut Soft,
    seen: &'a Seen,
    now: Now,
    plan: Plan,
    /// Workloads that are written at the end, each once.
    touched: BTreeMap<String, Workload>,
}

impl Pass<'_> {
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

    /// A workload that is written at the end.
    fn touch(&mut self, workload: &Workload) -> &mut Workload {
        let known = self.touched.entry(workload.name.clone());
        known.or_insert_with(|| workload.clone())
    }

    /// A row about an instance; `what` goes on behind its name.
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

    /// Takes down a change of an instance, with its sentence.
    fn change(&mut self, instance: Instance, kind: &'static str, what: &str) {
        self.event(kind, &instance, what);
        self.plan.writes.push(Write::Instance(instance));
    }

    /// Takes down that an instance is gone.
    fn gone(&mut self, instance: &Instance, kind: &'static str, what: &str) {
        self.event(kind, instance, what);
        self.plan.writes.push(Write::InstanceGone(instance.uuid));
    }

    /// An instance is not wanted any more.
    fn drop_wish(&mut self, instance: &Instance, kind: &'static str, what: &str) {
        let unwanted = Instance {
            wanted: false,
            since: self.now.unix_ms,
            ..instance.clone()
        };
        self.change(unwanted, kind, what);
    }

    /// An instance has failed: its slot waits before it is filled again.
    fn failed(&mut self, instance: &Instance, why: &str, is_its_fault: bool) {
        self.soft.failed(instance, why, self.now);
        if let Some(workload) = self.state.workloads.get(&instance.workload)
            && is_its_fault
            && workload.version == instance.version
            && workload.rollout.state == crate::model::RolloutState::Rolling
        {
            let rollout = &mut self.touch(workload).rollout;
            rollout.failures = rollout.failures.saturating_add(1);
            why.clone_into(&mut rollout.why);
        }
    }

    /// Whether a node is connected and reports.
    fn is_current(&self, node: Uuid) -> bool {
        self.seen.nodes.contains(&node)
    }
}
