//! The desired workload: a [`Spec`], which is checked as a whole before it takes effect.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use serde_json::Value;
use thiserror::Error;

use ssntp::schema;
use ssntp_transport::sha256;

use super::health::{MAX_SECONDS, check_health, check_numbers, read_health};
use super::start_keys::{StartKeys, check_start};
use ssntp_payload::{
    HealthCheck, MAX_LABELS, Networking, RawDocument, Requirements, Start, StartPayload, VmType, check_label,
    check_name,
};

/// The labels that the controller gives to each instance: its workload, its slot and the digest of
/// its template. With them an instance can be adopted even if the database was lost.
pub(crate) const WORKLOAD_LABEL: &str = "ssntp.workload";
pub(crate) const SLOT_LABEL: &str = "ssntp.slot";
pub(crate) const TEMPLATE_LABEL: &str = "ssntp.template";
const OWN_LABELS: usize = 3;

/// The maximum number of instances of a workload.
pub const MAX_COUNT: u32 = 10_000;
/// The longest name of a workload. In the name of an instance a hyphen and the slot follow it.
const MAX_NAME: usize = 56;
/// The maximum number of bytes of user data, and of meta data. A frame has room for both.
const MAX_DATA: usize = 256 << 10;
/// The text in place of a value that may be secret.
const HIDDEN: &str = "(hidden)";
/// The desired workload, with the keys of a file for `ssntp ctl apply`.
///
/// ```
/// use ssntp_controller::Spec;
/// use ssntp::payload::yaml;
///
/// let spec: Spec = yaml::decode(b"{name: web, count: 3, start: {command: [sleep, 1000]}}")?;
/// spec.check().unwrap();
/// assert_eq!(spec.update.max_unavailable, 1);
/// # Ok::<(), yaml::Error>(())
/// ```
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Spec {
    /// The name. The instances are called `NAME-SLOT`.
    pub name: String,
    /// The number of instances. Default: 1.
    #[serde(default = "one")]
    pub count: u32,
    /// Where the instances run. Default: node.
    #[serde(default, skip_serializing_if = "Spread::is_node")]
    pub spread: Spread,
    /// Labels of each instance. Default: none.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// The START of each instance, read from [`StartKeys`].
    #[serde(serialize_with = "write_start", deserialize_with = "read_start")]
    pub start: Start,
    /// Cloud-init's user data of each instance. Default: none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub user_data: String,
    /// Cloud-init's meta data of each instance. Default: none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub meta_data: String,
    /// The replacement of an instance that has ended, or whose node is away.
    #[serde(default)]
    pub reschedule: Reschedule,
    /// The health check of each instance. Default: none; an instance that runs counts as healthy.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "read_health"
    )]
    pub health: Option<HealthCheck>,
    /// The replacement of instances of a former version.
    #[serde(default)]
    pub update: Update,
}

/// Where the instances of a workload run.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Spread {
    /// On different nodes, as far as others have room.
    #[default]
    Node,
    /// Wherever there is room.
    None,
}

impl Spread {
    fn is_node(&self) -> bool {
        *self == Self::Node
    }
}

schema! {
    /// The replacement of an instance that has ended, or whose node is away.
    #[serde(deny_unknown_fields)]
    Reschedule {
        /// The condition for replacing an instance that has ended. Default: always.
        policy: ReschedulePolicy,
        /// The grace, in seconds, for which a node may be away before its instances are started elsewhere.
        /// Default: 60, because an agent that was restarted may take 30 s to connect.
        grace_s: u32 = 60,
    }

    /// The replacement of instances of a former version.
    #[serde(deny_unknown_fields)]
    Update {
        /// The maximum number of instances that may be missing at a time. Default: 1.
        max_unavailable: u32 = 1,
        /// The maximum number of instances that run beside the count while others are replaced: each
        /// starts before the controller stops another one. Default: 0.
        surge: u32,
        /// The time for which a new instance has to be healthy before the next step, in seconds.
        /// Default: 5.
        healthy_s: u32 = 5,
        /// The time limit of a step, in seconds, after which the roll-out goes back. Default: 300.
        deadline_s: u32 = 300,
        /// The number of failures of new instances after which the roll-out goes back. Default: 3.
        max_failures: u32 = 3,
    }
}

/// The condition for replacing an instance that has ended.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ReschedulePolicy {
    /// The instance is always replaced.
    #[default]
    Always,
    /// The instance is replaced if it failed, and not if it succeeded.
    OnFailure,
    /// The instance is never replaced, not even if its node is away for longer than the grace.
    Never,
}

fn one() -> u32 {
    1
}

/// A mistake in a [`Spec`].
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{at}: {why}")]
pub struct SpecError {
    /// The key.
    pub at: String,
    /// The mistake, as text.
    pub why: String,
}

impl SpecError {
    pub(crate) fn at(at: &str, why: impl Into<String>) -> Self {
        let (at, why) = (at.to_owned(), why.into());
        Self { at, why }
    }
}

impl Spec {
    /// Checks every value.
    ///
    /// # Errors
    /// The first mistake.
    pub fn check(&self) -> Result<(), SpecError> {
        let wrong = |at: &str, why: String| Err(SpecError::at(at, why));
        if let Err(why) = check_name(&self.name) {
            return wrong("name", why.into());
        }
        if self.name.len() > MAX_NAME {
            return wrong("name", format!("it has more than {MAX_NAME} bytes"));
        }
        if let Err((key, why)) = check_start(&self.start) {
            return wrong(&format!("start.{key}"), why.into());
        }
        if self.count > 1 && !self.start.networking.private_ip.is_empty() {
            let why = "several instances cannot have it; name only the tenant";
            return wrong("start.networking.private_ip", why.into());
        }
        for (at, number) in [("count", self.count), ("update.surge", self.update.surge)] {
            if number > MAX_COUNT {
                return wrong(at, format!("it is more than {MAX_COUNT}"));
            }
        }
        for (key, value) in &self.labels {
            if let Err(why) = check_label(key, value) {
                return wrong("labels", why.into());
            }
            if key.starts_with("ssntp.") {
                let why = "keys that begin with ssntp. are the controller's";
                return wrong("labels", why.into());
            }
        }
        if self.labels.len() > MAX_LABELS - OWN_LABELS {
            return wrong(
                "labels",
                format!("there are more than {}", MAX_LABELS - OWN_LABELS),
            );
        }
        for (at, data) in [("user_data", &self.user_data), ("meta_data", &self.meta_data)] {
            if data.len() > MAX_DATA {
                return wrong(at, format!("it is longer than {} KiB", MAX_DATA >> 10));
            }
            if let Err(marker) = RawDocument::new(data.clone().into_bytes()) {
                return wrong(at, marker.to_string());
            }
        }
        let update = &self.update;
        let numbers = [
            ("reschedule.grace_s", self.reschedule.grace_s, 0, MAX_SECONDS),
            ("update.healthy_s", update.healthy_s, 0, MAX_SECONDS),
            ("update.deadline_s", update.deadline_s, 1, MAX_SECONDS),
            (
                "update.max_unavailable",
                update.max_unavailable,
                u32::from(update.surge == 0),
                u32::MAX,
            ),
            ("update.max_failures", update.max_failures, 1, u32::MAX),
        ];
        let is_process = self.start.vm_type == VmType::Process;
        let health = self.health.as_ref();
        let health = health.map_or(Ok(()), |health| check_health(health, is_process));
        if let Err((at, why)) = check_numbers(numbers).and(health) {
            return wrong(at, why);
        }
        let has_one = !self.start.storage.is_empty() || !self.start.networking.private_ip.is_empty();
        if update.surge > 0 && has_one {
            let why = "an instance with volumes or an address of its own ends before its successor starts";
            return wrong("update.surge", why.into());
        }
        if self.update.deadline_s <= self.update.healthy_s {
            let why = "it has to be longer than update.healthy_s";
            return wrong("update.deadline_s", why.into());
        }
        Ok(())
    }

    /// The number of slots: one for each instance, and those of the surge.
    pub fn slots(&self) -> u32 {
        self.count.saturating_add(self.update.surge)
    }

    /// The part of the spec that is equal for all instances of a version.
    pub fn template(&self) -> Template {
        Template {
            start: self.start.clone(),
            labels: self.labels.clone(),
            user_data: self.user_data.clone(),
            meta_data: self.meta_data.clone(),
            health: self.health.clone(),
        }
    }

    /// A copy without the values of `env`, `user_data` and `meta_data`.
    pub(crate) fn without_values(&self) -> Self {
        let (mut copy, mut template) = (self.clone(), self.template());
        template.hide_values();
        template.fill(&mut copy);
        copy
    }
}

schema! {
    /// The part of a [`Spec`] that describes an instance. If it changes, the instances are replaced.
    Template {
        /// As in [`Spec`].
        #[serde(serialize_with = "write_start", deserialize_with = "read_start")]
        start: Start,
        /// As in [`Spec`].
        #[serde(skip_serializing_if = "BTreeMap::is_empty")]
        labels: BTreeMap<String, String>,
        /// As in [`Spec`].
        #[serde(skip_serializing_if = "String::is_empty")]
        user_data: String,
        /// As in [`Spec`].
        #[serde(skip_serializing_if = "String::is_empty")]
        meta_data: String,
        /// As in [`Spec`].
        #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "read_health")]
        health: Option<HealthCheck>,
    }
}

impl Template {
    /// Sets these parts of a spec.
    pub(super) fn fill(self, spec: &mut Spec) {
        spec.start = self.start;
        spec.labels = self.labels;
        spec.user_data = self.user_data;
        spec.meta_data = self.meta_data;
        spec.health = self.health;
    }

    /// Hides the values that may be secret. Their names stay.
    pub(super) fn hide_values(&mut self) {
        let documents = [&mut self.user_data, &mut self.meta_data];
        for value in self.start.env.values_mut().chain(documents) {
            if !value.is_empty() {
                HIDDEN.clone_into(value);
            }
        }
    }

    /// A digest that is equal for equal templates in every version of this program. Readers do not get it, because
    /// with it a guess of a value that may be secret could be tried.
    pub fn digest(&self) -> String {
        let text = serde_json::to_string(self).unwrap_or_default();
        let digest = sha256(text.as_bytes());
        digest.iter().take(16).map(|byte| format!("{byte:02x}")).collect()
    }

    /// The START of an instance.
    pub fn payload(&self, workload: &str, slot: u32, instance: uuid::Uuid) -> StartPayload {
        let mut start = self.start.clone();
        start.instance_uuid = instance;
        start.name = format!("{workload}-{slot}");
        start.labels = self.labels.clone();
        start.health = self.health.clone();
        start.labels.extend([
            (WORKLOAD_LABEL.to_owned(), workload.to_owned()),
            (SLOT_LABEL.to_owned(), slot.to_string()),
            (TEMPLATE_LABEL.to_owned(), self.digest()),
        ]);
        // `Spec::check` has refused texts with markers of documents, so this cannot fail.
        let raw = |text: &str| RawDocument::new(text.to_owned().into_bytes()).ok();
        let given = |text: &str| raw(text).filter(|_| !text.is_empty());
        StartPayload {
            start,
            user_data: given(&self.user_data),
            meta_data: given(&self.meta_data),
        }
    }
}

// The keys that differ for each instance belong to the workload, so they are refused below `start`.
fn read_start<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Start, D::Error> {
    let keys = StartKeys::deserialize(deserializer)?;
    let one = keys.is_one_instance();
    let start = keys.start().map_err(de::Error::custom)?;
    let misplaced = if one {
        "instance_uuid: the controller chooses the UUIDs of a workload's instances"
    } else if !start.name.is_empty() {
        "name: instances are named after the workload, whose name stands beside start"
    } else if !start.labels.is_empty() {
        "labels: those of a workload stand beside start"
    } else if start.health.is_some() {
        "health: that of a workload stands beside start"
    } else {
        return Ok(start);
    };
    Err(de::Error::custom(misplaced))
}

/// Writes only the keys that differ from the default, so that a user recognises the spec.
fn write_start<S: Serializer>(start: &Start, serializer: S) -> Result<S::Ok, S::Error> {
    use serde::ser::Error;

    // `networking` and `requirements` are maps, which are compared key by key.
    let value = serde_json::to_value(start).map_err(S::Error::custom)?;
    let default = Start {
        networking: Networking::default(),
        requirements: Requirements::default(),
        ..Start::default()
    };
    let default = serde_json::to_value(default).map_err(S::Error::custom)?;
    beyond(value, &default).unwrap_or_default().serialize(serializer)
}

/// The part of a value that differs from the default.
fn beyond(value: Value, default: &Value) -> Option<Value> {
    match (value, default) {
        (Value::Object(map), Value::Object(defaults)) => {
            let differing = map.into_iter().filter_map(|(key, value)| {
                let value = match defaults.get(&key) {
                    Some(default) => beyond(value, default)?,
                    None => value,
                };
                Some((key, value))
            });
            let differing: serde_json::Map<_, _> = differing.collect();
            (!differing.is_empty()).then_some(Value::Object(differing))
        }
        (value, default) => (value != *default).then_some(value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ssntp::payload::yaml;

    fn read(text: &str) -> Result<Spec, String> {
        let spec: Spec = yaml::decode(text.as_bytes()).map_err(|e| e.to_string())?;
        spec.check().map_err(|e| e.to_string())?;
        Ok(spec)
    }

    #[test]
    fn a_spec_survives_json_and_yaml() {
        let spec = read(
            "name: web\ncount: 3\nlabels: {tier: front}\nuser_data: |\n  #cloud-config\n\
             start: {command: [sleep, '1000'], mem_mb: 64, node: 5be1, restart_policy: always}\n\
             health: {tcp: 80}\nreschedule: {policy: on-failure}\n",
        )
        .unwrap();
        let json = serde_json::to_string(&spec).unwrap();
        assert_eq!(serde_json::from_str::<Spec>(&json).unwrap(), spec);
        let again = yaml::encode(&spec).unwrap();
        assert_eq!(yaml::decode::<Spec>(&again).unwrap(), spec);
        // Defaults are not written, and neither is the UUID, which the controller chooses.
        assert!(
            !json.contains("instance_uuid") && !json.contains("networking"),
            "{json}"
        );
        let template = spec.template();
        let stored = serde_json::to_string(&template).unwrap();
        assert_eq!(serde_json::from_str::<Template>(&stored).unwrap(), template);
    }

    #[test]
    fn the_digest_of_a_template_changes_with_it_and_with_nothing_else() {
        let text = "name: web\nstart: {command: [a]}\n";
        let spec = read(text).unwrap();
        let digest = |spec: &Spec| spec.template().digest();
        let more = Spec {
            count: 7,
            ..spec.clone()
        };
        assert_eq!(digest(&more), digest(&spec));
        assert_ne!(
            digest(&read("name: web\nstart: {command: [b]}\n").unwrap()),
            digest(&spec)
        );
        // It is compared with the labels of instances that an earlier version of this program
        // started.
        assert_eq!(digest(&spec), "f8e175410329b6b3967cad2f4cbccba4");
    }

    #[test]
    fn a_start_is_named_and_labelled_and_has_its_documents() {
        let spec = read("name: web\nlabels: {tier: front}\nuser_data: x\nstart: {command: [a]}\n").unwrap();
        let payload = spec.template().payload("web", 2, uuid::Uuid::from_u128(7));
        assert_eq!(payload.start.name, "web-2");
        let labels = payload.start.labels;
        assert_eq!(
            (labels["tier"].as_str(), labels[WORKLOAD_LABEL].as_str()),
            ("front", "web")
        );
        assert_eq!(labels[SLOT_LABEL], "2");
        assert_eq!(payload.user_data.unwrap().as_text(), Some("x"));
        assert_eq!(payload.meta_data, None);
    }

    #[test]
    fn an_error_of_a_spec_names_its_field() {
        for (text, reason) in [
            ("count: 1\nstart: {command: [a]}", "name"),
            ("name: a b\nstart: {command: [a]}", "name: a name has"),
            ("name: a\ncuont: 1\nstart: {command: [a]}", "cuont"),
            ("name: a\nstart: {comand: [a]}", "comand"),
            ("name: a\nstart: {mem_mb: 1}", "nothing to start"),
            (
                "name: a\nstart: {command: [\"a\\0b\"]}",
                "start.command: it contains a NUL",
            ),
            (
                "name: a\nstart: {command: [\"\"]}",
                "start.command: the name of the program is empty",
            ),
            (
                "name: a\nstart: {command: [a], dir: a/../..}",
                "start.dir: it leads out of",
            ),
            (
                "name: a\nstart: {command: [a], env: {A=B: c}}",
                "start.env: a name",
            ),
            (
                "name: a\nstart: {command: [a], env: {A: b}, secrets: {A: db}}",
                "start.secrets: a variable is in `env`, too",
            ),
            (
                "name: a\nstart: {command: [a], secrets: {A: ../db}}",
                "start.secrets: a file is named without a directory",
            ),
            (
                "name: a\nstart: {command: [a], env_file: [/etc/shadow]}",
                "start.env_file: a file is named without a directory",
            ),
            (
                "name: a\nstart: {command: [a], volumes: [../..]}",
                "start.volumes: the name",
            ),
            (
                "name: a\nstart: {command: [a], tenant: 93d3f6b2-1f0e-4c71-b6a7-0b1c2d3e4f50}",
                "start.tenant: an address in the tenant's network is leased for a tenant's name",
            ),
            (
                "name: a\ncount: 2\nstart: {command: [a], tenant: blue, networking: {private_ip: 10.0.0.2}}",
                "start.networking.private_ip: several instances",
            ),
            (
                "name: a\nstart: {command: [a], mem_mb: -1}",
                "start.requirements.mem_mb is below zero",
            ),
            (
                "name: a\nstart: {command: [a], name: b}",
                "whose name stands beside start",
            ),
            (
                "name: a\nstart: {command: [a], labels: {b: c}}",
                "stand beside start",
            ),
            (
                "name: a\nstart: {command: [a], instance_uuid: 0f7a5a1e-3c55-4a0b-9d3c-6f1f2f9a1001}",
                "chooses the UUIDs",
            ),
            (
                "name: a\nlabels: {ssntp.workload: b}\nstart: {command: [a]}",
                "labels: keys",
            ),
            (
                "name: a\ncount: 10001\nstart: {command: [a]}",
                "count: it is more",
            ),
            (
                "name: a\nuser_data: |\n  a\n  ---\n  b\nstart: {command: [a]}",
                "user_data: line 2",
            ),
            ("name: a\nstart: {command: [a]}\nhealth: {}", "tcp"),
            (
                "name: a\nstart: {command: [a]}\nhealth: {tcp: 0}",
                "health: it needs one of tcp",
            ),
            (
                "name: a\nstart: {command: [a]}\nhealth: {tcp: 1, timeout_s: 0}",
                "health.timeout_s",
            ),
            (
                "name: a\nstart: {command: [a]}\nhealth: {tcp: 1, timeout_s: 61}",
                "health.timeout_s: it is more than 60 s",
            ),
            (
                "name: a\nstart: {command: [a]}\nhealth: {tcp: 1, tiemout_s: 4}",
                "tiemout_s",
            ),
            (
                "name: a\nstart: {command: [a]}\nhealth: {http: {port: 1, pth: /}}",
                "pth",
            ),
            (
                "name: a\nstart: {command: [a]}\nhealth: {tcp: 1, command: [b]}",
                "health: it needs one of",
            ),
            (
                "name: a\nstart: {command: [a]}\nhealth: {http: {port: 1, path: x}}",
                "health.http: it needs",
            ),
            (
                "name: a\nstart: {command: [a], health: {tcp: 1}}",
                "stands beside start",
            ),
            (
                "name: a\nstart: {storage: [{id: 7c9e6679-7425-40de-944b-e07fc1f90ae7, boot: true}]}\nhealth: {tcp: 1}",
                "health: a virtual machine",
            ),
            (
                "name: a\nstart: {command: [a]}\nupdate: {max_unavailable: 0}",
                "update.max_unavailable",
            ),
            (
                "name: a\nstart: {command: [a]}\nupdate: {surge: 10001}",
                "update.surge: it is more",
            ),
            (
                "name: a\nstart: {command: [a], volumes: [7c9e6679-7425-40de-944b-e07fc1f90ae7]}\nupdate: {surge: 1}",
                "update.surge: an instance with volumes",
            ),
            (
                "name: a\nstart: {command: [a], tenant: blue, networking: {private_ip: 10.0.0.2}}\nupdate: {surge: 1}",
                "update.surge: an instance with volumes or an address",
            ),
            (
                "name: a\nstart: {command: [a]}\nreschedule: {policy: often}",
                "often",
            ),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(reason), "{text}: {error}");
        }
        let long = format!("name: {}\nstart: {{command: [a]}}", "a".repeat(57));
        assert!(read(&long).unwrap_err().contains("56 bytes"));
    }
}
