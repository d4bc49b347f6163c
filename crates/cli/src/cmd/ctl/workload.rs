//! The workload of `ssntp ctl start`: a command from the command line, or a file.
//!
//! A file is a START document of the protocol, or a shorter form of it:
//!
//! | the file | is |
//! |---|---|
//! | `start:` with an `instance_uuid` | sent unchanged, including cloud-init documents |
//! | `start:` without | a template: each instance gets a new UUID |
//! | no `start:` | the keys of `start:` at the top level, or shorter keys |
//!
//! [`StartKeys`] has the shorter keys.
//!
//! Further documents are cloud-init's, as in START. An unknown key is an error, because the
//! workload would start without what the key was to set.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use clap::value_parser;
use ssntp::payload::yaml::{Document, Node};
use ssntp::payload::{Payload, yaml};
use ssntp_controller::{StartKeys, check_start};
use ssntp_daemon::{Choices, Failure, input, one_of};
use ssntp_payload::{Persistence, RawDocument, Requirements, RestartPolicy, Start, StartPayload, VmType};
use ssntp_payload::{check_labels, check_name, parse_label};
use uuid::Uuid;

#[derive(Debug, clap::Args)]
pub(super) struct WorkloadArgs {
    /// The workload: a START document, or some of its keys; - is the standard
    /// input
    #[arg(short, long, value_name = "WORKLOAD.YAML", conflicts_with_all = [
        "mem", "cpus", "node", "persistent", "network_node", "uuid", "env", "env_file", "dir", "restart",
        "restart_limit", "command",
    ])]
    file: Option<PathBuf>,
    /// The memory that it needs
    #[arg(long, value_name = "MB", default_value_t = 64, value_parser = value_parser!(i64).range(0..))]
    mem: i64,
    /// The number of CPUs that it needs
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = value_parser!(i64).range(0..))]
    cpus: i64,
    /// The node on which it must run
    #[arg(long, value_name = "NODE")]
    node: Option<String>,
    /// A label that its node must have; may be given several times
    #[arg(long = "constraint", value_name = "KEY=VALUE", value_parser = parse_label)]
    constraint: Vec<(String, String)>,
    /// Keep the instance when it stops, so that it can be restarted
    #[arg(long)]
    persistent: bool,
    /// The restarts by its node when it ends by itself
    #[arg(long, value_parser = one_of(RESTARTS), value_name = "POLICY", default_value = "never")]
    restart: RestartPolicy,
    /// The maximum number of restarts in a row by its node; 0 is no limit
    #[arg(long, value_name = "N", default_value_t = 0)]
    restart_limit: u32,
    /// Run it on a network node, as concentrators do
    #[arg(long)]
    network_node: bool,
    /// The tenant that it belongs to: a name of `ctl tenant list`, whose network it then
    /// uses, or a UUID; it overrides the file
    #[arg(long, value_name = "TENANT")]
    tenant: Option<String>,
    /// Its address in the tenant's network [default: the first free address]
    #[arg(long, value_name = "IP", requires = "tenant", conflicts_with = "count")]
    ip: Option<Ipv4Addr>,
    /// Its UUID; if its instance runs already, the command is done and starts nothing
    /// [default: a new UUID]
    #[arg(long, conflicts_with = "count", value_parser = instance)]
    uuid: Option<Uuid>,
    /// An environment variable for it; may be given several times
    #[arg(long, value_name = "NAME=VALUE", value_parser = variable)]
    env: Vec<(String, String)>,
    /// A file of lines NAME=VALUE for its environment, comments begin with #; may be given
    /// several times. Later files override earlier ones, and --env overrides all files
    #[arg(long, value_name = "FILE")]
    env_file: Vec<PathBuf>,
    /// Its name; with --count, a number is added for each instance. Commands accept names
    /// instead of UUIDs
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// A label to find it by; may be given several times
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = parse_label)]
    labels: Vec<(String, String)>,
    /// The directory in which it starts [default: the agent's choice]
    #[arg(long, value_name = "DIR")]
    dir: Option<String>,
    /// The number of instances to start
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = value_parser!(u32).range(1..=10_000))]
    count: u32,
    /// The program and its arguments
    #[arg(last = true, value_name = "COMMAND", required_unless_present = "file")]
    command: Vec<String>,
}

#[rustfmt::skip] // A table: one row a word.
const RESTARTS: Choices<RestartPolicy> = &[
    ("never", "It is not restarted", RestartPolicy::Never),
    ("on-failure", "Its node restarts it if it failed, or if the node was rebooted", RestartPolicy::OnFailure),
    ("always", "Its node always restarts it", RestartPolicy::Always),
];

fn instance(text: &str) -> Result<Uuid, String> {
    let uuid: Uuid = text.parse().map_err(|e: uuid::Error| e.to_string())?;
    if uuid.is_nil() {
        Err("the nil UUID names no instance".to_owned())
    } else {
        Ok(uuid)
    }
}

fn variable(text: &str) -> Result<(String, String), &'static str> {
    let (name, value) = text.split_once('=').ok_or("expected NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}

/// The longest environment file, in bytes. A START with more would be too long.
const MAX_ENV_FILE: u64 = 1 << 20;

/// The variables of a file. Values are used unchanged: quotes are kept, and nothing is expanded.
fn read_env_file(path: &Path) -> Result<Vec<(String, String)>, Failure> {
    let text = input::text(path, MAX_ENV_FILE)?;
    parse_env(&text).map_err(|(line, why)| Failure::at(path, format_args!("line {line}: {why}")))
}

fn parse_env(text: &str) -> Result<Vec<(String, String)>, (usize, &'static str)> {
    let lines = text.lines().enumerate();
    let variables = lines.filter(|(_, line)| {
        let line = line.trim_start();
        !line.is_empty() && !line.starts_with('#')
    });
    variables
        .map(|(at, line)| variable(line.trim_start()).map_err(|why| (at + 1, why)))
        .collect()
}

/// A workload, before each of its instances gets a UUID.
pub(super) struct Workload {
    pub(super) payload: StartPayload,
    /// True if the payload sets the UUID. Otherwise each instance gets a new UUID.
    named: bool,
    count: u32,
}

impl WorkloadArgs {
    pub(super) fn workload(&self) -> Result<Workload, Failure> {
        let (mut payload, named) = match &self.file {
            Some(path) => parse(&input::named(path)?).map_err(|why| Failure::at(path, why))?,
            None => (self.start()?.into(), self.uuid.is_some()),
        };
        self.complete(&mut payload.start)?;
        match &self.file {
            Some(path) if named && self.count > 1 => {
                let (path, why) = (path.display(), "it has an instance_uuid, so --count must be 1");
                Err(Failure::usage(format!("{path}: {why}")))
            }
            _ => Ok(Workload {
                payload,
                named,
                count: self.count,
            }),
        }
    }

    /// The START of the flags, without those that a file may have as well.
    fn start(&self) -> Result<Start, Failure> {
        let mut env = BTreeMap::new();
        for file in &self.env_file {
            env.extend(read_env_file(file)?);
        }
        env.extend(self.env.iter().cloned());
        Ok(Start {
            instance_uuid: self.uuid.unwrap_or_default(),
            persistence: if self.persistent {
                Persistence::All
            } else {
                Persistence::Unset
            },
            vm_type: VmType::Process,
            requirements: Requirements {
                mem_mb: self.mem,
                vcpus: self.cpus,
                node_id: self.node.as_deref().unwrap_or_default().into(),
                network_node: self.network_node,
                ..Requirements::default()
            },
            restart_policy: self.restart.clone(),
            restart_limit: self.restart_limit,
            command: self.command.clone(),
            env,
            dir: self.dir.clone().unwrap_or_default(),
            ..Start::default()
        })
    }

    /// Sets the tenant, the address, the name, the labels and the constraint of the command line.
    fn complete(&self, start: &mut Start) -> Result<(), Failure> {
        if let Some(tenant) = &self.tenant {
            start.tenant_uuid = tenant.as_str().into();
        }
        if let Some(ip) = self.ip {
            start.networking.private_ip = ip.to_string();
        }
        if let Some(name) = &self.name {
            start.name.clone_from(name);
        }
        start.labels.extend(self.labels.iter().cloned());
        let constraint = &mut start.requirements.labels;
        constraint.extend(self.constraint.iter().cloned());
        let checked = check_labels(constraint).and(check_labels(&start.labels));
        checked.map_err(Failure::usage)?;
        // The last instance has the longest name, so the others fit if it does.
        let name = called(&start.name, self.count, self.count);
        if name.is_empty() {
            Ok(())
        } else {
            check_name(&name).map_err(|why| Failure::usage(format!("{name:?}: {why}")))
        }
    }
}

/// The name of one of `count` instances. A number is added only if there are several instances.
fn called(name: &str, number: u32, count: u32) -> String {
    if name.is_empty() || count == 1 {
        name.to_owned()
    } else {
        format!("{name}-{number}")
    }
}

impl Workload {
    /// A START for each instance.
    pub(super) fn starts(self) -> impl Iterator<Item = StartPayload> {
        (1..=self.count).map(move |number| {
            let mut start = self.payload.clone();
            start.start.name = called(&self.payload.start.name, number, self.count);
            if !self.named {
                start.start.instance_uuid = Uuid::new_v4();
            }
            start
        })
    }
}

/// The START of a file; true if the file sets its UUID.
fn parse(file: &[u8]) -> Result<(StartPayload, bool), String> {
    let documents: Vec<_> = yaml::documents(file).collect();
    let is_workload = |document: &Document<'_>| {
        Node::parse(document.bytes, 1, yaml::MAX_DOCUMENT_LEN).is_ok_and(|keys| {
            let has_command = keys
                .get("command")
                .is_some_and(|command| command.list().is_some());
            has_command || keys.get("start").is_some_and(|start| start.pairs().is_ok())
        })
    };
    // A START has at most three documents: the command, user data and meta data.
    let command = documents.iter().take(3).position(is_workload).unwrap_or(0);
    let mut others = documents.iter().enumerate().filter(|(at, _)| *at != command);
    // One of two may be user data that has such a key.
    let are_workloads = documents.len() > 1 && others.clone().all(|(_, document)| is_workload(document));
    if documents.len() > 3 || are_workloads {
        return Err(
            "a START holds one workload, user data and meta data; `ssntp ctl apply` takes several \
                    workloads"
                .into(),
        );
    }
    let bytes = documents.get(command).map_or(&[][..], |document| document.bytes);
    let keys = Node::parse(bytes, 1, yaml::MAX_DOCUMENT_LEN).map_err(|e| e.to_string())?;
    let uuid = keys.get("start").and_then(|start| start.get("instance_uuid"));
    if uuid.is_some_and(|uuid| uuid.text().is_ok_and(|uuid| !uuid.is_empty())) {
        let payload = StartPayload::decode(file).map_err(|e| e.to_string())?;
        return Ok((payload, true));
    }
    let root = keys.get("start").map(|_| "start");
    let keys: StartKeys = keys.decode(root).map_err(|e| e.to_string())?;
    let named = keys.is_one_instance();
    let start = keys.start()?;
    check_start(&start).map_err(|(key, why)| format!("{key}: {why}"))?;
    // As in START: of two further documents the first is user data; a single one is meta data.
    let mut raw = || {
        let document = others.next().map(|(_, document)| document.bytes.to_vec());
        let raw = document.map(RawDocument::new).transpose();
        raw.map_err(|e| e.to_string())
    };
    let mut payload = StartPayload::from(start);
    payload.meta_data = raw()?;
    if let Some(second) = raw()? {
        payload.user_data = payload.meta_data.replace(second);
    }
    Ok((payload, named))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workload(file: &str) -> Workload {
        let (payload, named) = parse(file.as_bytes()).unwrap();
        let count = 1;
        Workload {
            payload,
            named,
            count,
        }
    }

    fn start(file: &str) -> Start {
        workload(file).starts().next().unwrap().start
    }

    #[test]
    fn a_start_document_is_sent_unchanged() {
        let uuid = "0f7a5a1e-3c55-4a0b-9d3c-6f1f2f9a1001";
        let file = format!("start:\n  instance_uuid: {uuid}\n  unknown: 1\n---\n#cloud-config\n---\n{{}}\n");
        let workload = workload(&file);
        assert!(workload.named);
        let payload = workload.starts().next().unwrap();
        assert_eq!(payload.start.instance_uuid.to_string(), uuid);
        assert_eq!(payload.user_data.unwrap().as_text(), Some("#cloud-config\n"));
    }

    #[test]
    fn user_data_may_have_any_keys() {
        for key in ["command: now", "command: [now]", "start: now", "start: {now: 1}"] {
            let data = format!("#cloud-config\n{key}\n");
            for start in ["command: [a]\n", "start:\n  command: [a]\n"] {
                let file = format!("{start}---\n{data}---\n{{}}\n");
                let payload = workload(&file).starts().next().unwrap();
                assert_eq!(payload.start.command, ["a"], "{file}");
                assert_eq!(payload.user_data.unwrap().as_text(), Some(&*data));
                assert_eq!(payload.meta_data.unwrap().as_text(), Some("{}\n"));
            }
        }
    }

    #[test]
    fn a_template_gets_a_new_uuid_for_each_instance() {
        let file = "start:\n  vm_type: process\n  command: [sleep, 1]\n---\nmeta: 1\n";
        let mut workload = workload(file);
        workload.count = 2;
        let starts: Vec<_> = workload.starts().collect();
        assert_ne!(starts[0].start.instance_uuid, starts[1].start.instance_uuid);
        assert_eq!(starts[0].meta_data.as_ref().unwrap().as_text(), Some("meta: 1\n"));
    }

    #[test]
    fn the_shorter_keys_set_the_keys_of_start() {
        let start = start(
            "command: [sleep, 1000]\nenv: {A: 1}\nmem_mb: 64\nvcpus: 2\nnode: 5be1\nhostname: h\n\
             network_node: yes\npersistent: true\ntenant: t\nnetworking: {private_ip: 172.16.0.2}\nvolumes: [7c9e6679-7425-40de-944b-e07fc1f90ae7]\n\
             restart_policy: on-failure\nrestart_limit: 3\n",
        );
        assert_eq!(start.vm_type, VmType::Process);
        assert_eq!(start.command, ["sleep", "1000"]);
        assert_eq!(start.env["A"], "1");
        assert_eq!((start.requirements.mem_mb, start.requirements.vcpus), (64, 2));
        assert_eq!(start.requirements.node_id, "5be1");
        assert!(start.requirements.network_node);
        assert_eq!(start.persistence, Persistence::All);
        assert_eq!(start.restart_policy, RestartPolicy::OnFailure);
        assert_eq!(start.restart_limit, 3);
        assert_eq!(start.tenant_uuid, "t");
        assert_eq!(start.storage[0].id, "7c9e6679-7425-40de-944b-e07fc1f90ae7");
    }

    #[test]
    fn a_file_with_the_uuid_of_a_tenant_and_no_address_is_refused() {
        let file = b"command: [a]\ntenant: 93d3f6b2-1f0e-4c71-b6a7-0b1c2d3e4f50\n";
        let why = parse(file).err().unwrap();
        assert!(why.starts_with("tenant: an address"), "{why}");
    }

    #[test]
    fn a_tenant_that_a_file_names_gives_its_instances_the_network() {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            workload: WorkloadArgs,
        }
        let file = tempfile::NamedTempFile::new().unwrap();
        for (text, flags, network) in [
            ("command: [a]\ntenant: blue\n", &[][..], Some("blue")),
            ("start:\n  command: [a]\n  tenant_uuid: blue\n", &[], Some("blue")),
            ("command: [a]\ntenant: blue\n", &["--tenant", "red"], Some("red")),
            ("command: [a]\n", &[], None),
        ] {
            std::fs::write(file.path(), text).unwrap();
            let words = ["start", "-f", file.path().to_str().unwrap()];
            let line = <Line as clap::Parser>::parse_from(words.iter().chain(flags));
            let workload = line.workload.workload().unwrap();
            let start = workload.starts().next().unwrap().start;
            assert_eq!(start.tenant_uuid, network.unwrap_or_default(), "{text} {flags:?}");
        }
    }

    #[test]
    fn each_of_several_instances_has_its_own_name() {
        let mut workload = workload("command: [a]\nname: web\nlabels: {tier: front, n: 1}\n");
        let labels = &workload.payload.start.labels;
        assert_eq!((labels["tier"].as_str(), labels["n"].as_str()), ("front", "1"));
        workload.count = 2;
        let names: Vec<_> = workload.starts().map(|start| start.start.name).collect();
        assert_eq!(names, ["web-1", "web-2"]);
        assert_eq!(start("command: [a]\nname: web\n").name, "web");
    }

    #[test]
    fn an_environment_file_is_used_unchanged() {
        let read = parse_env("# comment\n\nA=1\n  B= two words \nC=\"x\"=y\r\nD=\n").unwrap();
        let expected = [("A", "1"), ("B", " two words "), ("C", "\"x\"=y"), ("D", "")];
        assert_eq!(
            read,
            expected.map(|(name, value)| (name.to_owned(), value.to_owned()))
        );
        assert_eq!(parse_env("A=1\n\nB\n"), Err((3, "expected NAME=VALUE")));
    }

    #[test]
    fn each_error_of_a_workload_file_names_its_key_or_line() {
        for (file, reason) in [
            ("comand: [a]", "comand"),
            ("mem_mb: lots\ncommand: [a]", "mem_mb"),
            ("mem_mb: 1", "nothing to start"),
            ("vm_type: process", "command"),
            ("start: {instance_uuid: x, vm_type: qemu}", "instance_uuid"),
            ("a: [", "line 1"),
            ("command: [a]\nlabels: {a b: c}", "labels: the key"),
            (
                "start: {instance_uuid: 0f7a5a1e-3c55-4a0b-9d3c-6f1f2f9a1001, name: a b}",
                "start.name",
            ),
            ("command: [a]\nrestart_policy: sometimes", "restart_policy"),
            ("start: [sleep]", "start: expected a map, found a list"),
            ("start:\n  command: sleep", "start.command: expected a list"),
            (
                "command: [a]\n---\ncommand: [b]",
                "`ssntp ctl apply` takes several",
            ),
            (
                "start: {command: [a]}\n---\nstart: {command: [b]}",
                "a START holds one workload",
            ),
            (
                "start: {instance_uuid: 0f7a5a1e-3c55-4a0b-9d3c-6f1f2f9a1001}\n---\ncommand: [b]",
                "a START holds one workload",
            ),
            (
                "command: [a]\n---\na: 1\n---\nb: 1\n---\nc: 1",
                "a START holds one workload",
            ),
        ] {
            let error = parse(file.as_bytes()).err().unwrap();
            assert!(error.contains(reason), "{file}: {error}");
        }
    }
}
