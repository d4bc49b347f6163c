//! What the controller keeps: workloads, their instances, and the history of both. Values
//! without I/O or a clock.
//!
//! ```text
//!  Spec ── apply ─▶ Workload ── versions of its template
//!                      │
//!                      │ slots 1 to count, each with at most one instance that is wanted
//!                      ▼
//!  Starting ─▶ Running ─▶ Ended                 each change is a row of the history
//!      └──────────┴─────────┴─▶ not wanted ─▶ gone
//! ```
//!
//! A change is a [`Write`], and nothing else changes a [`State`]: the same list of them goes to
//! the database and then to the memory, so the two cannot differ.
//!
//! | file | holds |
//! |---|---|
//! | `spec` | [`Spec`], what a user asks for |
//! | `start_keys` | [`StartKeys`], how an instance is described |

mod spec;
mod start_keys;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

pub use self::spec::{
    HealthCheck, MAX_COUNT, Reschedule, ReschedulePolicy, Spec, SpecError, Template, Update,
};
pub(crate) use self::spec::{SLOT_LABEL, TEMPLATE_LABEL, WORKLOAD_LABEL};
pub use self::start_keys::StartKeys;

/// How many versions of a workload are kept, so that a roll-out can go back.
pub const KEPT_VERSIONS: usize = 10;

/// A workload: what was asked for, and how far its roll-out has come.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Workload {
    /// Its name, which is unique.
    pub name: String,
    /// What was applied last. Its template is that of the newest version.
    pub spec: Spec,
    /// The version that its instances are to have.
    pub version: u64,
    /// The last version of which all instances did their work; none before the first.
    pub stable: Option<u64>,
    /// The versions that are kept, the newest last.
    pub versions: Vec<Version>,
    /// How far the roll-out of its version has come.
    pub rollout: Rollout,
    /// Whether it was deleted: it stays until its instances are gone.
    #[serde(default)]
    pub deleting: bool,
    /// The row of the history with its last change.
    #[serde(default)]
    pub revision: i64,
}

/// A version of a workload's template.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Version {
    /// Its number, from 1.
    pub number: u64,
    /// The digest of the template.
    pub digest: String,
    /// The template.
    pub template: Template,
}

/// How far a roll-out has come.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct Rollout {
    /// Its state.
    pub state: RolloutState,
    /// How many new instances have failed.
    pub failures: u32,
    /// Why it went back; empty if it did not.
    #[serde(default)]
    pub why: String,
}

/// The state of a roll-out.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum RolloutState {
    /// All instances have the version, and do their work.
    Steady,
    /// Instances of other versions are being replaced.
    #[default]
    Rolling,
    /// A user has stopped it for now.
    Paused,
    /// The new version failed, and the former one is being put in its place.
    Back,
}

/// An instance that the controller has decided on.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Instance {
    /// Its UUID, which was written down before its START was sent.
    pub uuid: Uuid,
    /// The name of its workload.
    pub workload: String,
    /// Its place among the instances of the workload, from 1.
    pub slot: u32,
    /// The version of its template; 0 if no kept version has it.
    pub version: u64,
    /// The node that has it; none until one has listed it.
    pub node: Option<Uuid>,
    /// How far it has come.
    pub state: InstanceState,
    /// Whether it should be there. If not, it is deleted wherever it is seen.
    pub wanted: bool,
    /// How it ended; empty while it has not.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub ending: String,
    /// How often in a row its slot had an instance that failed, before this one.
    pub attempt: u32,
    /// Since when it is in this state: milliseconds since 1970, UTC.
    pub since: i64,
    /// The row of the history with its last change.
    #[serde(default)]
    pub revision: i64,
}

/// How far an instance has come.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum InstanceState {
    /// Its START is written down, and no node has listed it yet.
    Starting,
    /// A node has listed it, and it has not ended.
    Running,
    /// It has ended, and failed as far as its workload is concerned.
    Failed,
    /// It has ended with success.
    Done,
    /// The scheduler does not have it. It is remembered for an hour, and deleted if a node lists
    /// it after all.
    Lost,
}

/// Something that happened, before it has a place in the history.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Event {
    /// A word for programs.
    pub kind: &'static str,
    /// The workload that it is about.
    pub workload: Option<String>,
    /// The instance that it is about.
    pub instance: Option<Uuid>,
    /// The node that it is about.
    pub node: Option<Uuid>,
    /// A sentence. It may hold text that a peer has sent.
    pub text: String,
}

/// A row of the history.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// Its number. Later rows have higher ones.
    pub id: i64,
    /// When it was written: milliseconds since 1970, UTC.
    pub at: i64,
    /// A word for programs.
    pub kind: String,
    /// The workload that it is about.
    pub workload: Option<String>,
    /// The instance that it is about.
    pub instance: Option<Uuid>,
    /// The node that it is about.
    pub node: Option<Uuid>,
    /// A sentence. It may hold text that a peer has sent.
    pub text: String,
}

/// Figures of a node at one time. Numbers that are not known are -1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Figures {
    /// The node.
    pub node: Uuid,
    /// When: milliseconds since 1970, UTC.
    pub at: i64,
    /// Memory that is free, in MB.
    pub mem_available_mb: i64,
    /// Memory in all, in MB.
    pub mem_total_mb: i64,
    /// Disk that is free, in MB.
    pub disk_available_mb: i64,
    /// Disk in all, in MB.
    pub disk_total_mb: i64,
    /// Load average over one minute.
    pub load: i64,
    /// The number of its instances.
    pub instances: i64,
}

/// A change of what is kept.
#[derive(Clone, Debug, PartialEq)]
pub enum Write {
    /// A workload is new, or has changed.
    Workload(Box<Workload>),
    /// A workload is gone.
    WorkloadGone(String),
    /// An instance is new, or has changed.
    Instance(Instance),
    /// An instance is gone.
    InstanceGone(Uuid),
    /// Something happened.
    Event(Event),
    /// Figures of a node.
    Figures(Figures),
}

/// All that is kept but the history.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct State {
    /// The workloads by their names.
    pub workloads: BTreeMap<String, Arc<Workload>>,
    /// The instances by their UUIDs.
    pub instances: BTreeMap<Uuid, Arc<Instance>>,
}

impl State {
    /// Takes a change that was written down.
    pub(crate) fn take(&mut self, write: Write) {
        match write {
            Write::Workload(workload) => {
                drop(self.workloads.insert(workload.name.clone(), workload.into()));
            }
            Write::WorkloadGone(name) => drop(self.workloads.remove(&name)),
            Write::Instance(instance) => {
                drop(self.instances.insert(instance.uuid, Arc::new(instance)));
            }
            Write::InstanceGone(uuid) => drop(self.instances.remove(&uuid)),
            Write::Event(_) | Write::Figures(_) => {}
        }
    }
}

impl Event {
    /// What happened to a workload.
    pub(crate) fn of_workload(kind: &'static str, workload: &str, text: String) -> Write {
        Write::Event(Self {
            kind,
            workload: Some(workload.to_owned()),
            text,
            ..Self::default()
        })
    }
}

impl Workload {
    /// The kept version of this number.
    pub fn version_of(&self, number: u64) -> Option<&Version> {
        self.versions.iter().find(|version| version.number == number)
    }
}
