//! The data of the controller: workloads, their instances, and the history of both. These are values
//! without I/O or a clock.
//!
//! ```text
//!  Spec ── apply ─▶ Workload ── versions of its template
//!                      │
//!                      │ slots 1 to count, each with at most one wanted instance
//!                      ▼
//!  Starting ─▶ Running ─▶ Ended                 each change is a row of the history
//!      └──────────┴─────────┴─▶ not wanted ─▶ gone
//! ```
//!
//! Only a [`Write`] changes a [`State`]. The same list of writes goes to the database and then to
//! the state in memory, so the two cannot differ.
//!
//! | file | holds |
//! |---|---|
//! | `spec` | [`Spec`], the desired workload |
//! | `health` | the health check of a workload |
//! | `start_keys` | [`StartKeys`], the description of an instance |

mod health;
mod spec;
mod start_keys;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

pub(crate) use self::health::{ending_text, without_output, without_output_of_check};
pub use self::spec::{MAX_COUNT, Reschedule, ReschedulePolicy, Spec, SpecError, Spread, Template, Update};
pub(crate) use self::spec::{SLOT_LABEL, TEMPLATE_LABEL, WORKLOAD_LABEL};
pub use self::start_keys::{StartKeys, check_start};
pub use ssntp_payload::HealthCheck;

/// The number of versions of a workload that are kept, so that a roll-out can go back.
pub const KEPT_VERSIONS: usize = 10;

/// A workload: its spec, its versions and its roll-out.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Workload {
    /// The name, which is unique.
    pub name: String,
    /// The spec that was applied last, with the template of the version that the instances are to
    /// have.
    pub spec: Spec,
    /// The version that the instances are to have.
    pub version: u64,
    /// The last version of which all instances were healthy; `None` before the first.
    pub stable: Option<u64>,
    /// The versions that were healthy to the end of their roll-out, in that order. Those that a user
    /// has left by going back are not among them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub good: Vec<u64>,
    /// The versions that are kept, the newest last.
    pub versions: Vec<Version>,
    /// The roll-out of the present version.
    pub rollout: Rollout,
    /// True after an order to delete the workload. It is removed once its instances are gone.
    pub deleting: bool,
    /// The number of the row of the history with the last change.
    pub revision: i64,
}

/// A version of a workload's template.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Version {
    /// The number, from 1.
    pub number: u64,
    /// The template.
    pub template: Template,
}

/// A roll-out.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct Rollout {
    /// The state.
    pub state: RolloutState,
    /// The number of instances of the new version that have failed.
    pub failures: u32,
    /// The last failure, or the reason why the roll-out went back; else empty.
    pub why: String,
    /// While it is paused: the slots whose instance has the new version.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub slots: BTreeSet<u32>,
}

/// The state of a roll-out.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum RolloutState {
    /// All instances have the version, and are healthy.
    Steady,
    /// Instances of other versions are being replaced.
    #[default]
    Rolling,
    /// A user has paused the roll-out.
    Paused,
    /// The new version failed, and the former one is being restored.
    Back,
}

/// An instance of a workload.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct Instance {
    /// The UUID, which is on the disk before the START is sent.
    pub uuid: Uuid,
    /// The name of the workload.
    pub workload: String,
    /// The number of the slot of the workload, from 1.
    pub slot: u32,
    /// The version of the template; 0 if it is none of the kept versions.
    pub version: u64,
    /// The node of the instance; `None` until a node has listed it.
    pub node: Option<Uuid>,
    /// The state.
    pub state: InstanceState,
    /// False if the instance is to be deleted as soon as a node lists it.
    pub wanted: bool,
    /// The reason for the end; empty while the instance has not ended.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub ending: String,
    /// The number of instances of the slot that failed in a row before this one.
    pub attempt: u32,
    /// The time since which the instance is in its state: milliseconds since 1970, UTC.
    pub since: i64,
    /// The number of the row of the history with the last change.
    pub revision: i64,
}

impl Instance {
    /// The name for people: the workload, the slot, and the beginning of the UUID.
    pub(crate) fn called(&self) -> String {
        format!("{}-{} ({})", self.workload, self.slot, short(self.uuid))
    }
}

/// The beginning of a UUID, which commands accept as well.
pub(crate) fn short(uuid: Uuid) -> String {
    let mut text = uuid.to_string();
    text.truncate(8);
    text
}

/// The state of an instance.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum InstanceState {
    /// The instance is stored, and no node has listed it yet.
    #[default]
    Starting,
    /// A node has listed the instance, and it has not ended.
    Running,
    /// The instance has ended without success.
    Failed,
    /// The instance has ended with success.
    Done,
    /// The scheduler does not have the instance. It stays stored for an hour, and is deleted if a node
    /// lists it in that time.
    Lost,
}

impl InstanceState {
    /// The state of an instance that its node reports.
    pub(crate) fn of(seen: &ssntp_view::Instance) -> Self {
        match seen.state {
            ssntp_payload::InstanceState::Pending => Self::Starting,
            _ if seen.is_alive() => Self::Running,
            _ if seen.ending().is_some_and(|ending| ending.is_success()) => Self::Done,
            _ => Self::Failed,
        }
    }

    /// The word for it, which pages and programs read.
    pub fn word(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Running => "running",
            Self::Failed => "failed",
            Self::Done => "done",
            Self::Lost => "lost",
        }
    }
}

/// An event that is not in the history yet.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Event {
    /// The kind, a word for programs.
    pub kind: &'static str,
    /// The workload that the event is about.
    pub workload: Option<String>,
    /// The instance that the event is about.
    pub instance: Option<Uuid>,
    /// The node that the event is about.
    pub node: Option<Uuid>,
    /// Who gave the order that caused it; `None` if it is no user's order.
    pub actor: Option<String>,
    /// The tenant of the workload or instance that it is about, by its name.
    pub tenant: Option<String>,
    /// A sentence. It may contain text of a peer.
    pub text: String,
}

/// A row of the history.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// The number. Later rows have higher numbers.
    pub id: i64,
    /// The time at which the row was written: milliseconds since 1970, UTC.
    pub at: i64,
    /// The kind, a word for programs.
    pub kind: String,
    /// The workload that the row is about.
    pub workload: Option<String>,
    /// The instance that the row is about.
    pub instance: Option<Uuid>,
    /// The node that the row is about.
    pub node: Option<Uuid>,
    /// Who gave the order that caused it: the name of a token, or subject and serial number of a
    /// certificate; `None` if it is no user's order.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub actor: Option<String>,
    /// The tenant of the workload or instance that the row was about when it was written.
    #[serde(skip)]
    pub tenant: Option<String>,
    /// A sentence. It may contain text of a peer.
    pub text: String,
}

/// Figures of a node at one time. Unknown numbers are -1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Figures {
    /// The node.
    pub node: Uuid,
    /// The time: milliseconds since 1970, UTC.
    pub at: i64,
    /// The free memory, in MB.
    pub mem_available_mb: i64,
    /// The whole memory, in MB.
    pub mem_total_mb: i64,
    /// The free disk space, in MB.
    pub disk_available_mb: i64,
    /// The whole disk space, in MB.
    pub disk_total_mb: i64,
    /// The load average over one minute.
    pub load: i64,
    /// The number of instances.
    pub instances: i64,
}

/// A change of the stored data.
#[derive(Clone, Debug, PartialEq)]
pub enum Write {
    /// Stores a new or changed workload.
    Workload(Box<Workload>),
    /// Removes a workload.
    WorkloadGone(String),
    /// Stores a new or changed instance.
    Instance(Instance),
    /// Removes an instance.
    InstanceGone(Uuid),
    /// Adds a row to the history.
    Event(Event),
    /// Adds figures of a node.
    Figures(Figures),
}

/// The stored data without the history.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct State {
    /// The workloads by their names.
    pub workloads: BTreeMap<String, Arc<Workload>>,
    /// The instances by their UUIDs.
    pub instances: BTreeMap<Uuid, Arc<Instance>>,
}

impl State {
    /// Applies a change that is on the disk.
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

impl Row {
    /// The row with a part of its text: [`without_output`] for clients that may only read,
    /// [`without_output_of_check`] for those that may also read the output of instances.
    pub(crate) fn cut(mut self, to: impl Fn(&str) -> &str) -> Self {
        // A trace is JSON, and names frames.
        if self.kind != "trace" {
            self.text.truncate(to(&self.text).len());
        }
        self
    }
}

impl Event {
    pub(crate) fn of_workload(kind: &'static str, workload: &Workload, text: String) -> Write {
        Write::Event(Self {
            kind,
            workload: Some(workload.name.clone()),
            tenant: tenant_of(&workload.spec.start),
            text,
            ..Self::default()
        })
    }
}

/// The tenant that a START names.
pub(crate) fn tenant_of(start: &ssntp_payload::Start) -> Option<String> {
    let id = &start.tenant_uuid;
    (!id.is_empty()).then(|| id.as_str().to_owned())
}

impl Workload {
    /// The kept version of this number.
    pub fn version_of(&self, number: u64) -> Option<&Version> {
        self.versions.iter().find(|version| version.number == number)
    }

    /// A copy without the values of `env`, `user_data` and `meta_data`, and without output of health checks,
    /// for clients that may only read.
    pub(crate) fn without_values(&self) -> Self {
        let mut copy = self.clone();
        copy.rollout.why = without_output(&copy.rollout.why).to_owned();
        for version in &mut copy.versions {
            version.template.hide_values();
        }
        copy.spec = copy.spec.without_values();
        copy
    }

    /// True while a version is rolled out that may still be left for the last good one.
    pub(crate) fn is_under_way(&self) -> bool {
        match self.rollout.state {
            RolloutState::Rolling => true,
            RolloutState::Back => self.stable != Some(self.version),
            RolloutState::Steady | RolloutState::Paused => false,
        }
    }

    /// The version for an instance of a slot. A paused roll-out brings the new version to no
    /// further slot.
    pub(crate) fn version_for(&self, slot: u32) -> u64 {
        let is_held = self.rollout.state == RolloutState::Paused && !self.rollout.slots.contains(&slot);
        let stable = self.stable.filter(|_| is_held);
        let stable = stable.filter(|stable| self.version_of(*stable).is_some());
        stable.unwrap_or(self.version)
    }

    /// The version to go back to: the last good one before the present version.
    pub(crate) fn good_before(&self) -> Option<u64> {
        if let Some(stable) = self.stable.filter(|stable| *stable != self.version) {
            return self.version_of(stable).map(|version| version.number);
        }
        let earlier = self.good.iter().rev().skip_while(|good| **good != self.version);
        earlier
            .skip(1)
            .copied()
            .find(|good| self.version_of(*good).is_some())
    }

    /// The present version was healthy to the end of its roll-out.
    pub(crate) fn completed(&mut self) {
        let (version, was_back) = (self.version, self.rollout.state == RolloutState::Back);
        let known = self.good.iter().position(|good| *good == version);
        match known {
            Some(at) if was_back => self.good.truncate(at + 1),
            _ => {
                let versions = &self.versions;
                let is_kept = |good: &u64| versions.iter().any(|version| version.number == *good);
                self.good.retain(|good| *good != version && is_kept(good));
                self.good.push(version);
            }
        }
        self.stable = Some(version);
    }

    /// Begins to go back to a version. The spec gets that version's template.
    pub(crate) fn go_back(&mut self, to: u64, why: String) {
        self.version = to;
        if let Some(version) = self.versions.iter().find(|version| version.number == to) {
            version.template.clone().fill(&mut self.spec);
        }
        self.rollout = Rollout {
            state: RolloutState::Back,
            why,
            ..Rollout::default()
        };
    }
    /// Completes a workload that an earlier version of this program wrote: the health check was no part of the template,
    /// and there was no record of good versions. A new schema of the tables leaves such a document as it is.
    pub(crate) fn complete(mut self) -> Self {
        let is_unchecked = |version: &Version| version.template.health.is_none();
        if self.versions.iter().all(is_unchecked) {
            for version in &mut self.versions {
                version.template.health.clone_from(&self.spec.health);
            }
        }
        if self.good.is_empty() {
            self.good.extend(self.stable);
        }
        self
    }
}
