//! The reconciler: compares the desired state with the view of the cluster, and decides what to do.
//! It uses no clock, no sockets and no threads: the caller passes the time in and carries out the
//! plans.
//!
//! ```text
//!  Seen, Answer, now ─▶ Core::plan ─▶ Plan { writes, commands }
//!                         ▲                    │ first to the database
//!                         └── Core::handle_commit ─┤
//!                                              └─▶ then START, DELETE to the scheduler
//! ```
//!
//! What a plan depends on stays until it is written, so a plan that could not be written is dropped and made
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
//! | `input` | what the reconciler is told: [`Seen`], [`Answer`], [`Now`] |
//! | `plan` | [`Plan`], and the draft in which it is made |
//! | `observe` | updates the stored instances from the view |
//! | `decide` | fills slots and rolls versions out |
//! | `orders` | the orders of users: [`Core::apply`], [`Core::delete`], [`Core::rollout`] |
//! | `soft` | the state that is not stored |

mod decide;
mod input;
mod observe;
mod orders;
mod plan;
mod soft;

use std::collections::BTreeMap;

use uuid::Uuid;

pub use self::input::{Answer, Labels, Now, Seen, SeenEnd, SeenInstance};
pub use self::orders::{Applied, Changed, Difference, Refused, RolloutOrder};
use self::plan::Draft;
pub use self::plan::{Command, Plan};
use self::soft::Soft;
pub use self::soft::Status;
use crate::model::{InstanceState, Spec, State, Write};

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
        self.soft.status()
    }

    /// True if the scheduler answered within the last 30 s that another controller is the master.
    pub fn is_backup(&self, now: Now) -> bool {
        self.soft.is_backup(now)
    }

    /// Another controller is the master, by the answer to a DELETE. For a while, nothing is decided.
    pub fn handle_other_master(&mut self, now: Now) {
        self.soft.follow_master(now);
    }

    /// Adds the answer to a START or a query, for the next plan.
    pub fn handle_answer(&mut self, instance: Uuid, answer: Answer) {
        self.soft.answer(instance, answer);
    }

    /// The next plan; `uuids` generates new UUIDs. After a plan was carried out, call this again,
    /// until a plan is empty: each plan is a single step.
    pub fn plan(&mut self, now: Now, seen: &Seen, uuids: &mut dyn FnMut() -> Uuid) -> Plan {
        if !seen.told {
            return Plan::default();
        }
        let is_backup = self.is_backup(now);
        let Self { state, soft } = self;
        soft.begin(state, seen, now);
        let mut draft = Draft::new(state, seen, now);
        let strangers = observe::observe(&mut draft, soft);
        // Observations are written before anything is decided. A backup decides nothing.
        if draft.is_quiet() && !is_backup {
            decide::decide(&mut draft, soft, &strangers, uuids);
        }
        draft.finish()
    }

    /// Creates or changes workloads, all of them or none. Returns the outcomes, and the changes to
    /// write.
    ///
    /// # Errors
    /// [`Refused`]. If there are several specs, `at` begins with the workload's name.
    pub fn apply(&self, specs: Vec<Spec>) -> Result<(Vec<Applied>, Vec<Write>), Refused> {
        orders::apply(&self.state, specs)
    }

    /// Deletes a workload and its instances.
    ///
    /// # Errors
    /// [`Refused`].
    pub fn delete(&self, name: &str) -> Result<Vec<Write>, Refused> {
        orders::delete(&self.state, name)
    }

    /// Reverts, pauses or resumes a roll-out.
    ///
    /// # Errors
    /// [`Refused`].
    pub fn rollout(&self, name: &str, order: RolloutOrder) -> Result<Vec<Write>, Refused> {
        orders::rollout(&self.state, name, order)
    }

    /// Applies the writes of a plan or of an order, which are on the disk now. `revision` is the
    /// number of the last row of the history.
    pub fn handle_commit(&mut self, writes: Vec<Write>, revision: i64) {
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
                Write::Instance(instance) => {
                    instance.revision = revision;
                    if instance.state != InstanceState::Starting {
                        self.soft.settled(instance.uuid);
                    }
                    if instance.wanted && instance.node.is_some() {
                        self.soft.has_place(instance);
                    }
                }
                Write::InstanceGone(uuid) => self.soft.forget(*uuid),
                Write::WorkloadGone(name) => self.soft.forget_workload(name),
                _ => {}
            }
            self.state.take(write);
        }
    }
}
