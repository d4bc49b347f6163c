//! The orders of users. An order is checked against the state, and returns the changes to write. It
//! takes effect once they are on the disk.

use std::collections::BTreeSet;

use serde::Serialize;
use serde_json::Value;
use thiserror::Error;

use crate::model::{
    Event, KEPT_VERSIONS, Rollout, RolloutState, Spec, SpecError, State, Version, Workload, Write,
};
use crate::store::StoreError;

/// The maximum number of instances of all workloads together.
const MOST_INSTANCES: u64 = 100_000;
/// The longest encoded START, in bytes. A server accepts 64 KiB, and the labels of the controller
/// take some of that.
const MOST_START: usize = 60 << 10;
/// The maximum number of differences that are listed for a workload.
const MOST_DIFFERENCES: usize = 256;

/// The outcome of [`Core::apply`](super::Core::apply) for one workload.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Applied {
    /// The name of the workload.
    pub name: String,
    /// The kind of change.
    pub change: Changed,
    /// The version that the instances are to have.
    pub version: u64,
    /// The number of the row of the history with the change.
    pub revision: i64,
    /// The values of the spec that differ from the former ones.
    pub differences: Vec<Difference>,
}

/// The effect of a spec on its workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Changed {
    /// The workload is new.
    Created,
    /// The workload is changed, and its instances stay.
    Changed,
    /// The template is changed, so the instances are replaced.
    Rolled,
    /// The spec is equal to the present one.
    Unchanged,
}

/// A value of a spec that is different.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Difference {
    /// The path of the key: `start.command`.
    pub path: String,
    /// The former value; null if there was none.
    pub before: Value,
    /// The new value; null if there is none.
    pub after: Value,
}

/// An order of a user about a roll-out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum RolloutOrder {
    /// Go back to the last good version before the present one.
    Back,
    /// Take no further step until Resume.
    Pause,
    /// Continue a paused roll-out.
    Resume,
}

/// The reason why an order was refused.
#[derive(Clone, Debug, Error, PartialEq)]
pub enum Refused {
    /// The spec has a mistake.
    #[error("{0}")]
    Invalid(SpecError),
    /// No workload has this name.
    #[error("there is no workload {0}")]
    NotFound(String),
    /// The order does not fit the present state of the workload.
    #[error("{0}")]
    Conflict(String),
    /// The controller did not answer in time. The order may still be carried out.
    #[error("the controller is busy: it has not answered in 10 s, and may still carry the order out")]
    Busy,
    /// The change was not written to the database.
    #[error("{0}")]
    Store(#[from] StoreError),
}

pub(super) fn apply(state: &State, specs: Vec<Spec>) -> Result<(Vec<Applied>, Vec<Write>), Refused> {
    let many = specs.len() > 1;
    let mut names = BTreeSet::new();
    for spec in &specs {
        let is_new = names.insert(spec.name.clone());
        let twice = || Err(SpecError::at("name", "two of the workloads have it"));
        let checked = if is_new { check(spec) } else { twice() };
        checked.map_err(|mut wrong| {
            if many {
                wrong.at = format!("{}.{}", spec.name, wrong.at);
            }
            Refused::Invalid(wrong)
        })?;
    }
    let others = state.workloads.values().map(|workload| &workload.spec);
    let others = others.filter(|spec| !names.contains(&spec.name));
    let counts = others.chain(&specs).map(|spec| u64::from(spec.slots()));
    if counts.sum::<u64>() > MOST_INSTANCES {
        let why = format!("all workloads together would have more than {MOST_INSTANCES} instances");
        return Err(Refused::Invalid(SpecError::at("count", why)));
    }
    let (mut applied, mut writes) = (Vec::new(), Vec::new());
    for spec in specs {
        let (one, more) = apply_one(state, spec)?;
        applied.push(one);
        writes.extend(more);
    }
    Ok((applied, writes))
}

fn apply_one(state: &State, spec: Spec) -> Result<(Applied, Vec<Write>), Refused> {
    let known = state.workloads.get(&spec.name);
    if known.is_some_and(|known| known.deleting) {
        return Err(being_deleted(&spec.name));
    }
    let mut workload = match known {
        Some(known) => (**known).clone(),
        None => Workload {
            name: spec.name.clone(),
            spec: spec.clone(),
            version: 0,
            stable: None,
            good: Vec::new(),
            versions: Vec::new(),
            rollout: Rollout::default(),
            deleting: false,
            revision: 0,
        },
    };
    let differences = match known {
        Some(known) => differences(&known.spec, &spec),
        None => Vec::new(),
    };
    let template = spec.template();
    let present = workload.version_of(workload.version);
    let is_rolled = present.is_none_or(|present| present.template != template);
    workload.spec = spec;
    if is_rolled {
        // A spec of an earlier version returns to that version, and is not stored twice.
        let former = workload
            .versions
            .iter()
            .find(|version| version.template == template);
        workload.version = match former {
            Some(former) => former.number,
            None => {
                let last = workload.versions.iter().map(|version| version.number).max();
                let number = last.unwrap_or(0) + 1;
                workload.versions.push(Version { number, template });
                number
            }
        };
        workload.rollout = Rollout::default();
        let needed = [
            workload.stable,
            Some(workload.version),
            workload.good.iter().rev().nth(1).copied(),
        ];
        // The oldest versions go, but none of those that a roll-out needs.
        let mut surplus = workload.versions.len().saturating_sub(KEPT_VERSIONS);
        workload.versions.retain(|version| {
            let goes = surplus > 0 && !needed.contains(&Some(version.number));
            surplus -= usize::from(goes);
            !goes
        });
    }
    let change = match known {
        None => Changed::Created,
        Some(_) if is_rolled => Changed::Rolled,
        Some(_) if differences.is_empty() => Changed::Unchanged,
        Some(_) => Changed::Changed,
    };
    let applied = Applied {
        name: workload.name.clone(),
        change,
        version: workload.version,
        revision: workload.revision,
        differences,
    };
    let (name, version) = (workload.name.clone(), workload.version);
    let text = match change {
        Changed::Unchanged => return Ok((applied, Vec::new())),
        Changed::Created => format!("workload {name} is new"),
        Changed::Changed => format!("workload {name} is changed"),
        Changed::Rolled => format!("workload {name} is changed to version {version}"),
    };
    Ok((
        applied,
        vec![
            Event::of_workload("applied", &workload, text),
            Write::Workload(Box::new(workload)),
        ],
    ))
}

pub(super) fn delete(state: &State, name: &str) -> Result<Vec<Write>, Refused> {
    let mut workload = find(state, name)?;
    // A repeated order succeeds without a change.
    if workload.deleting {
        return Ok(Vec::new());
    }
    workload.deleting = true;
    let text = format!("workload {name} is to be deleted");
    Ok(vec![
        Event::of_workload("deleted", &workload, text),
        Write::Workload(Box::new(workload)),
    ])
}

pub(super) fn rollout(state: &State, name: &str, order: RolloutOrder) -> Result<Vec<Write>, Refused> {
    let mut workload = find(state, name)?;
    if workload.deleting {
        return Err(being_deleted(name));
    }
    let refused = |why: &str| Err(Refused::Conflict(format!("workload {name}: {why}")));
    let present = workload.rollout.state;
    let text = match order {
        RolloutOrder::Pause if present == RolloutState::Rolling => {
            workload.rollout.state = RolloutState::Paused;
            let of_workload = state
                .instances
                .values()
                .filter(|i| i.wanted && i.workload == name);
            let is_new = of_workload.filter(|instance| instance.version == workload.version);
            workload.rollout.slots = is_new.map(|instance| instance.slot).collect();
            format!("the roll-out of {name} is paused")
        }
        RolloutOrder::Resume if present == RolloutState::Paused => {
            workload.rollout.state = RolloutState::Rolling;
            workload.rollout.slots.clear();
            format!("the roll-out of {name} goes on")
        }
        RolloutOrder::Pause if present == RolloutState::Back && workload.is_under_way() => {
            return refused(&format!(
                "it goes back to version {}, which is not paused",
                workload.version
            ));
        }
        RolloutOrder::Pause if present == RolloutState::Paused => {
            return refused("its roll-out is paused already");
        }
        RolloutOrder::Pause => return refused("no roll-out is under way"),
        RolloutOrder::Resume => return refused("its roll-out is not paused"),
        // An order that is repeated, or comes after the roll-out went back by itself, must not go
        // back another version.
        RolloutOrder::Back if present == RolloutState::Back => {
            return refused(&format!("it goes back to version {} already", workload.version));
        }
        RolloutOrder::Back => {
            let from = workload.version;
            let Some(to) = workload.good_before() else {
                return refused("no earlier version of it was good to the end of its roll-out");
            };
            workload.go_back(to, format!("version {from}: a user asked for version {to}"));
            format!("version {from} of {name} goes back to version {to}, as a user asked")
        }
    };
    Ok(vec![
        Event::of_workload("rollout", &workload, text),
        Write::Workload(Box::new(workload)),
    ])
}

fn find(state: &State, name: &str) -> Result<Workload, Refused> {
    let known = state.workloads.get(name);
    known
        .map(|known| (**known).clone())
        .ok_or_else(|| Refused::NotFound(name.to_owned()))
}

fn being_deleted(name: &str) -> Refused {
    Refused::Conflict(format!(
        "workload {name} is being deleted; apply it again when it is gone"
    ))
}

/// Checks a spec alone, without the other workloads.
fn check(spec: &Spec) -> Result<(), SpecError> {
    spec.check()?;
    let payload = spec
        .template()
        .payload(&spec.name, spec.slots(), uuid::Uuid::nil());
    let bytes = ssntp::payload::Payload::encode(&payload.start).len();
    if bytes > MOST_START {
        let why = format!("it has {bytes} bytes; the most is {MOST_START}");
        return Err(SpecError::at("start", why));
    }
    Ok(())
}

/// The values of two specs that differ. Those that may be secret are hidden, because whoever may read may ask.
fn differences(before: &Spec, after: &Spec) -> Vec<Difference> {
    let value = |spec: &Spec| serde_json::to_value(spec).unwrap_or_default();
    let (mut found, specs) = (Vec::new(), [before, after]);
    let shown = specs.map(|spec| value(&spec.without_values()));
    compare("", &specs.map(value), &shown, &mut found);
    // The list is for people, and the answer has a bounded size.
    found.truncate(MOST_DIFFERENCES);
    found
}

/// Compares `values`, the former and the new one, and lists them as they are in `shown`.
fn compare(path: &str, values: &[Value; 2], shown: &[Value; 2], found: &mut Vec<Difference>) {
    if let [Value::Object(one), Value::Object(other)] = values {
        let keys: BTreeSet<_> = one.keys().chain(other.keys()).collect();
        for key in keys {
            let path = match path {
                "" => key.clone(),
                _ => format!("{path}.{key}"),
            };
            let of_key = |all: &[Value; 2]| all.each_ref().map(|value| value[key].clone());
            compare(&path, &of_key(values), &of_key(shown), found);
        }
    } else if values[0] != values[1] {
        let [before, after] = shown.clone();
        found.push(Difference {
            path: path.to_owned(),
            before,
            after,
        });
    }
}
