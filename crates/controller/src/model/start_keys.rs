//! The description of an instance in a file: the keys of START, and shorter ones.
//!
//! ```yaml
//! command: [sleep, "1000"]    # makes it a process
//! env: {LANG: C}
//! mem_mb: 64                  # for requirements.mem_mb
//! vcpus: 1                    # for requirements.vcpus
//! node: 5be1c0de              # for requirements.node_id
//! hostname: rack1-n07         # for requirements.hostname
//! constraint: {zone: a}       # for requirements.labels: labels of its node, which `ssntp agent --label` gives
//! network_node: false         # for requirements.network_node
//! persistent: true            # for persistence: all
//! tenant: blue                # for tenant_uuid; the scheduler leases an address in its network
//! volumes: [7c9e6679-7425-40de-944b-e07fc1f90ae7]
//! health: {tcp: 8080}         # or http: {port: 8080, path: /ready}, or command: [test, -e, ready]
//! ```
//!
//! An unknown key is an error, because an instance must not start without something that its user
//! has asked for.

use std::collections::BTreeMap;
use std::path::{Component, Path};

use serde::Deserialize;
use uuid::Uuid;

use super::health::{check_health, read_health};
use ssntp::payload::Id;
use ssntp_cluster::Needs;
use ssntp_payload::{
    FwType, HealthCheck, Networking, Persistence, Requirements, RestartPolicy, Start, Storage, VmType,
    check_labels, check_name,
};

/// The keys of START, and the shorter ones.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct StartKeys {
    #[serde(alias = "tenant")]
    tenant_uuid: Id,
    fw_type: FwType,
    persistence: Persistence,
    vm_type: VmType,
    networking: Networking,
    storage: Vec<Storage>,
    requirements: Requirements,
    restart: bool,
    restart_policy: RestartPolicy,
    restart_limit: u32,
    command: Vec<String>,
    env: BTreeMap<String, String>,
    env_file: Vec<String>,
    secrets: BTreeMap<String, String>,
    dir: String,
    name: String,
    labels: BTreeMap<String, String>,
    #[serde(deserialize_with = "read_health")]
    health: Option<HealthCheck>,
    instance_uuid: Option<Uuid>,
    mem_mb: Option<i64>,
    vcpus: Option<i64>,
    node: Option<Id>,
    hostname: Option<String>,
    constraint: Option<BTreeMap<String, String>>,
    network_node: Option<bool>,
    persistent: bool,
    volumes: Vec<Id>,
}

impl StartKeys {
    /// True if the keys include the UUID of the instance.
    pub fn is_one_instance(&self) -> bool {
        self.instance_uuid.is_some()
    }

    /// The START. Its UUID is nil if the keys do not include one.
    ///
    /// # Errors
    /// The key that is wrong or missing, and the reason.
    pub fn start(self) -> Result<Start, String> {
        let mut requirements = self.requirements;
        requirements.mem_mb = self.mem_mb.unwrap_or(requirements.mem_mb);
        requirements.vcpus = self.vcpus.unwrap_or(requirements.vcpus);
        requirements.node_id = self.node.unwrap_or(requirements.node_id);
        requirements.hostname = self.hostname.unwrap_or(requirements.hostname);
        requirements.labels = self.constraint.unwrap_or(requirements.labels);
        requirements.network_node = self.network_node.unwrap_or(requirements.network_node);
        let mut storage = self.storage;
        storage.extend(self.volumes.into_iter().map(|id| Storage {
            id,
            ..Storage::default()
        }));
        let start = Start {
            tenant_uuid: self.tenant_uuid,
            instance_uuid: self.instance_uuid.unwrap_or_default(),
            fw_type: self.fw_type,
            persistence: match self.persistence {
                Persistence::Unset if self.persistent => Persistence::All,
                given => given,
            },
            vm_type: match self.vm_type {
                VmType::Unset if !self.command.is_empty() => VmType::Process,
                given => given,
            },
            networking: self.networking,
            storage,
            requirements,
            restart: self.restart,
            restart_policy: self.restart_policy,
            restart_limit: self.restart_limit,
            command: self.command,
            env: self.env,
            env_file: self.env_file,
            secrets: self.secrets,
            dir: self.dir,
            name: self.name,
            labels: self.labels,
            health: self.health,
            ..Start::default()
        };
        check(&start)?;
        Ok(start)
    }
}

fn check(start: &Start) -> Result<(), String> {
    let is_process = start.vm_type == VmType::Process;
    if let Some(health) = &start.health {
        check_health(health, is_process).map_err(|(at, why)| format!("{at}: {why}"))?;
    }
    if is_process && start.command.is_empty() {
        return Err("command: missing, for a process".into());
    }
    check_labels(&start.labels).map_err(|why| format!("labels: {why}"))?;
    check_labels(&start.requirements.labels).map_err(|why| format!("constraint: {why}"))?;
    if !start.name.is_empty() {
        check_name(&start.name).map_err(|why| format!("name: {why}"))?;
    }
    if !start.restart_policy.is_known() {
        return Err(format!(
            "restart_policy: {} is neither never, on-failure nor always",
            start.restart_policy
        ));
    }
    // The rule is the scheduler's own, so that both refuse the same values.
    Needs::of(start).map_err(|path| format!("{path} is below zero"))?;
    if start.command.is_empty() && start.storage.is_empty() {
        return Err("it names no command and no storage: nothing to start".into());
    }
    Ok(())
}

/// Checks what no agent would accept, so that a user learns of it at once.
///
/// The instance of a tenant needs an address in the tenant's network. A scheduler leases one for the name of
/// a tenant; an instance with a UUID that it does not know would run in the network of its host.
///
/// # Errors
/// The key, and the reason.
pub fn check_start(start: &Start) -> Result<(), (&'static str, &'static str)> {
    let has_zero = |text: &String| text.contains('\0');
    let is_no_name = |name: &String| name.is_empty() || name.contains(['=', '\0']);
    if start.tenant_uuid.uuid().is_some() && start.networking.private_ip.is_empty() {
        let why = "an address in the tenant's network is leased for a tenant's name, and not for a UUID";
        return Err(("tenant", why));
    }
    if start.command.iter().any(has_zero) {
        return Err(("command", "it contains a NUL character"));
    }
    if start.env.keys().any(is_no_name) || start.env.values().any(has_zero) {
        return Err((
            "env",
            "a name is empty or contains an equals sign, or a text contains a NUL character",
        ));
    }
    if start.secrets.keys().any(is_no_name) {
        return Err(("secrets", "a variable has no valid name"));
    }
    if start.secrets.keys().any(|key| start.env.contains_key(key)) {
        return Err(("secrets", "a variable is in `env`, too"));
    }
    let is_no_file = |name: &&String| matches!(name.as_str(), "" | "." | "..") || name.contains(['/', '\0']);
    let why = "a file is named without a directory: it is in the node's directory of secrets";
    if start.secrets.values().find(is_no_file).is_some() {
        return Err(("secrets", why));
    }
    if start.env_file.iter().find(is_no_file).is_some() {
        return Err(("env_file", why));
    }
    if start.command.first().is_some_and(String::is_empty) {
        return Err(("command", "the name of the program is empty"));
    }
    if has_zero(&start.dir) {
        return Err(("dir", "it contains a NUL character"));
    }
    let dir = Path::new(&start.dir);
    // The policy of the node decides about a directory that is absolute.
    if dir.is_relative() && dir.components().any(|part| part == Component::ParentDir) {
        return Err(("dir", "it leads out of the instance's directory"));
    }
    let mut volumes = start.storage.iter().map(|volume| &volume.id);
    if volumes.any(|id| !id.is_empty() && id.uuid().is_none()) {
        return Err(("volumes", "the name of a volume is a UUID"));
    }
    Ok(())
}
