//! START: start a workload (COMMAND 0x1).
//!
//! [`Start`] is the command, [`StartPayload`] the command with the documents after it. A scheduler
//! reads one of them and forwards the frame unchanged.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::Deserialize;
use uuid::Uuid;

use crate::label::{read_labels, read_name};
use crate::workload::{Older, is_default};
use crate::{FwType, HealthCheck, Networking, Persistence, Requirements};
use ssntp::names;
use ssntp::payload::schema::{refusal, write};
use ssntp::payload::yaml::{self, ErrorKind, Node, Position};
use ssntp::payload::{Error, Id, MAX_READ_LEN, Payload};
use ssntp::proto::{Command, FrameKind};
use ssntp::schema;

const ROOT: &str = "start";

schema! {
    /// The command to start an instance.
    ///
    /// Older forms are read and never written: `requested_resources` and `estimated_resources` in place
    /// of `requirements`, a single map for `storage`, and `image_uuid`, which becomes a local boot volume
    /// if the command has no boot volume.
    ///
    /// The first document of START (COMMAND 0x1):
    ///
    /// ```yaml
    /// start:
    ///   tenant_uuid: 93d3f6b2-1f0e-4c71-b6a7-0b1c2d3e4f50
    ///   instance_uuid: 0f7a5a1e-3c55-4a0b-9d3c-6f1f2f9a1001
    ///   docker_image: ""
    ///   fw_type: legacy
    ///   persistence: host
    ///   vm_type: qemu
    ///   networking:
    ///     vnic_mac: 02:42:ac:10:00:05
    ///     vnic_uuid: 2b1d4c6e-9f80-4a3b-8c2d-1e0f9a8b7c6d
    ///     concentrator_uuid: c2a1f0e9-8d7c-4b6a-9584-736251403f2e
    ///     concentrator_ip: 10.0.0.33
    ///     subnet: 172.16.0.0/24
    ///     subnet_key: "4096"
    ///     subnet_uuid: d9b2d63d-a233-4123-847a-7090f1c2e301
    ///     private_ip: 172.16.0.5
    ///     public_ip: false
    ///   storage:
    ///   - id: 7c9e6679-7425-40de-944b-e07fc1f90ae7
    ///     boot: true
    ///     size: 20
    ///   requirements:
    ///     mem_mb: 512
    ///     vcpus: 2
    ///   restart: false
    /// ```
    Start {
        /// The tenant that the instance belongs to; default: empty.
        tenant_uuid: Id,
        /// The new instance; required, and a UUID.
        #[serde(deserialize_with = "required_uuid")]
        instance_uuid: Uuid,
        /// The image of a container; default: empty.
        docker_image: String,
        /// The firmware of a virtual machine; default: empty.
        fw_type: FwType,
        /// The parts of the instance that are kept after its end; default: empty, nothing.
        persistence: Persistence,
        /// The kind of the instance; default: empty, which is `qemu`.
        vm_type: VmType,
        /// Its addresses and networks; default: all empty.
        networking: Networking,
        /// Its volumes; default: none. Left out when empty.
        #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "yaml::one_or_many")]
        storage: Vec<Storage>,
        /// The resources that it needs on its node; default: none.
        requirements: Requirements,
        /// True if this restarts an instance that existed before; default: false.
        restart: bool,
        /// The rule by which its node starts it again after it has ended by itself; default: never. Left
        /// out then. A key of this project: `restart` is a boolean for other implementations.
        #[serde(skip_serializing_if = "is_default")]
        restart_policy: RestartPolicy,
        /// The number of times in a row that its node starts it again; default: 0, no limit. Left out
        /// then. A key of this project.
        #[serde(skip_serializing_if = "is_default")]
        restart_limit: u32,
        /// The program of a process and its arguments; required for `process`.
        /// Default: none. Left out when empty.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        command: Vec<String>,
        /// The environment variables of a process; default: none. Left out
        /// when empty.
        #[serde(skip_serializing_if = "BTreeMap::is_empty")]
        env: BTreeMap<String, String>,
        /// Files of its node with further variables, a line `NAME=VALUE` each: names in the node's directory of secrets.
        /// A key of this project; default: none. Left out when empty.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        env_file: Vec<String>,
        /// Variables whose values are the contents of such files, by their names. A key of this project; default:
        /// none. Left out when empty.
        #[serde(skip_serializing_if = "BTreeMap::is_empty")]
        secrets: BTreeMap<String, String>,
        /// The directory in which a process starts; default: empty, the agent's choice.
        /// Left out when empty.
        #[serde(skip_serializing_if = "String::is_empty")]
        dir: String,
        /// Its name for people, see [`check_name`](crate::check_name). Several instances may
        /// have the same name. A key of this project, which others ignore; default: empty. Left
        /// out when empty.
        #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "read_name")]
        name: String,
        /// Its labels for people, see [`check_label`](crate::check_label), at
        /// most [`MAX_LABELS`](crate::MAX_LABELS). A key of this project; default: none.
        /// Left out when empty.
        #[serde(skip_serializing_if = "BTreeMap::is_empty", deserialize_with = "read_labels")]
        labels: BTreeMap<String, String>,
        /// Instances that share a node with this one only if no other node has room for it. A scheduler
        /// heeds the first 64. A key of this project; default: none. Left out when empty.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        apart_from: Vec<Id>,
        /// Its health check. A key of this project; default: none. Left out then.
        #[serde(skip_serializing_if = "Option::is_none")]
        health: Option<HealthCheck>,
    }

    /// A volume of an instance. Every field is left out when empty, false or 0.
    Storage {
        /// The volume; default: empty, a new volume for the instance.
        #[serde(skip_serializing_if = "Id::is_empty")]
        id: Id,
        /// True if the instance may boot from it; default: false.
        #[serde(skip_serializing_if = "is_default")]
        boot: bool,
        /// The position in the order of boot volumes, lowest first; default: 0.
        #[serde(skip_serializing_if = "is_default")]
        boot_index: i64,
        /// True if it is deleted with the instance; default: false.
        #[serde(skip_serializing_if = "is_default")]
        ephemeral: bool,
        /// True if it is created on the node; default: false.
        #[serde(skip_serializing_if = "is_default")]
        local: bool,
        /// True if it is a swap volume; default: false.
        #[serde(skip_serializing_if = "is_default")]
        swap: bool,
        /// A name for people; default: empty.
        #[serde(skip_serializing_if = "String::is_empty")]
        tag: String,
        /// The size in GiB; default: 0, not specified.
        #[serde(skip_serializing_if = "is_default")]
        size: i64,
    }
}

names! {
    /// The rule by which a node starts an instance again that has ended by itself. The default is
    /// `Never`.
    RestartPolicy {
        /// Never.
        Never = "never" | "";
        /// If its exit code is not 0, if a signal ended it, or if its end is unknown, for example
        /// because its node rebooted.
        OnFailure = "on-failure";
        /// After any end.
        Always = "always";
    }
    default Never
}

names! {
    /// The type of an instance. The default is `Unset`.
    VmType {
        /// A virtual machine.
        Qemu = "qemu";
        /// A container.
        Docker = "docker";
        /// A process on the node. An extension of this project.
        Process = "process";
        /// Not specified: a virtual machine.
        Unset = "";
    }
    default Unset
}

fn required_uuid<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Uuid, D::Error> {
    use serde::de::{Error, Unexpected};

    let text = String::deserialize(deserializer)?;
    if text.is_empty() {
        // `read_command` reports that it is missing.
        return Ok(Uuid::nil());
    }
    let uuid = Id::uuid_in(&text).filter(|uuid| !uuid.is_nil());
    uuid.ok_or_else(|| D::Error::invalid_value(Unexpected::Str(&text), &"a UUID that is not nil"))
}

impl Payload for Start {
    const KIND: FrameKind = Command::START.kind();

    /// Reads the command, and not the documents after it.
    fn decode(payload: &[u8]) -> Result<Self, Error> {
        // A START has at most three documents, so the bytes after the third are ignored.
        let (_, start) = find_command(yaml::documents(payload).take(3))?;
        Ok(start)
    }

    fn encode(&self) -> Bytes {
        write(self, Some(ROOT))
    }
}

/// The whole payload of a START: the command, and up to two documents for the instance, which are
/// passed on byte for byte.
///
/// The command may be any of the first three documents. Of the other two, the first is user data
/// and the second is meta data; a single one is meta data. An empty document becomes `None`, and
/// documents after the third are dropped.
///
/// ```
/// use ssntp::payload::Payload;
/// use ssntp_payload::{RawDocument, StartPayload};
///
/// let payload = "\
/// start:
///   instance_uuid: 0f7a5a1e-3c55-4a0b-9d3c-6f1f2f9a1001
/// ---
/// #cloud-config
/// ---
/// {\"hostname\": \"web-1\"}
/// ";
/// let start = StartPayload::decode(payload.as_bytes())?;
/// assert_eq!(start.user_data, Some(RawDocument::new("#cloud-config\n").unwrap()));
/// assert!(start.encode().ends_with(b"---\n#cloud-config\n---\n{\"hostname\": \"web-1\"}\n"));
/// # Ok::<(), ssntp::payload::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StartPayload {
    /// The command; required.
    pub start: Start,
    /// Cloud-init's user data, normally beginning with `#cloud-config`;
    /// default: none.
    pub user_data: Option<RawDocument>,
    /// Cloud-init's meta data, normally JSON; default: none.
    pub meta_data: Option<RawDocument>,
}

impl From<Start> for StartPayload {
    fn from(start: Start) -> Self {
        Self {
            start,
            ..Self::default()
        }
    }
}

impl Payload for StartPayload {
    const KIND: FrameKind = Command::START.kind();

    fn decode(payload: &[u8]) -> Result<Self, Error> {
        let mut documents: Vec<_> = yaml::documents(payload).take(3).collect();
        let (command, start) = find_command(documents.iter().copied())?;
        documents.remove(command);
        let mut others = documents.iter().map(|document| {
            let kept = || RawDocument(Bytes::copy_from_slice(document.bytes));
            (!document.bytes.is_empty()).then(kept)
        });
        let (first, second) = (others.next(), others.next());
        let (user_data, meta_data) = match second {
            Some(second) => (first.flatten(), second),
            None => (None, first.flatten()),
        };
        Ok(Self {
            start,
            user_data,
            meta_data,
        })
    }

    fn encode(&self) -> Bytes {
        let mut payload = self.start.encode().to_vec();
        let given = |document: &Option<RawDocument>| document.clone().filter(|d| !d.0.is_empty());
        let user_data = given(&self.user_data);
        // A single document would be read as meta data, so an empty one follows user data.
        let meta_data = given(&self.meta_data).or(user_data.as_ref().map(|_| RawDocument::default()));
        for document in user_data.iter().chain(&meta_data) {
            if !payload.ends_with(b"\n") {
                payload.push(b'\n');
            }
            // Text that stood behind a marker in its line may look like a marker itself. At the
            // start of a line it would be one, so it is written behind its marker again.
            let begins_like_a_marker = yaml::first_marker(&document.0) == Some(1);
            payload.extend(if begins_like_a_marker { b"--- " } else { b"---\n" });
            payload.extend(&document.0);
        }
        payload.into()
    }
}

/// The command, and its index among the documents. Only documents that may be the command are
/// parsed, because the others may be any text.
fn find_command<'a>(
    documents: impl Iterator<Item = yaml::Document<'a>>,
) -> Result<(usize, Start), yaml::Error> {
    let mut broken = None;
    let mut first_broken = None;
    for (index, document) in documents.enumerate() {
        let short = document.bytes.len() <= MAX_READ_LEN;
        // User data may be long and is rarely YAML. A search for five bytes costs little, and
        // the parser would cost much.
        if index > 0 && short && !document.bytes.windows(5).any(|bytes| bytes == b"start") {
            continue;
        }
        match Node::parse(document.bytes, document.line, MAX_READ_LEN) {
            // If this is no command, it probably is user data, and the broken document the command.
            Ok(tree) if tree.get(ROOT).is_some() => {
                let start = read_command(&tree).map_err(|error| broken.unwrap_or(error))?;
                return Ok((index, start));
            }
            Ok(_) => {}
            Err(error) if begins_command(document.bytes) => broken = broken.or(Some(error)),
            Err(error) if index == 0 => first_broken = Some(error),
            Err(_) => {}
        }
    }
    // The error is about the broken document with a line `start:`, or else about the first document,
    // which is usually the command.
    match broken.or(first_broken) {
        Some(error) => Err(error),
        None => Err(refusal(None, &[ROOT], ErrorKind::Missing).at(Position { line: 1, column: 1 })),
    }
}

fn read_command(tree: &Node<'_>) -> Result<Start, yaml::Error> {
    // Both forms are read from the same tree, because a single type for both would also write both.
    let (mut start, older): (Start, Older) = (tree.decode(Some(ROOT))?, tree.decode(Some(ROOT))?);
    let missing = |key| tree.locate(refusal(Some(ROOT), &[key], ErrorKind::Missing));
    if older.instance_uuid.is_empty() {
        return Err(missing("instance_uuid"));
    }
    // In the older form, the image was a file that the node copied.
    if !older.image_uuid.is_empty() && !start.storage.iter().any(|volume| volume.boot) {
        let image = Storage {
            id: older.image_uuid.clone(),
            boot: true,
            local: true,
            ..Storage::default()
        };
        start.storage.insert(0, image);
    }
    older.complete(&mut start.requirements);
    if start.vm_type == VmType::Process && start.command.is_empty() {
        return Err(missing("command"));
    }
    Ok(start)
}

/// True if a line of a broken document begins with `start:`, so that it probably is the command.
fn begins_command(document: &[u8]) -> bool {
    let mut lines = document.split(|b| *b == b'\n');
    lines.any(|line| {
        let rest = line.strip_prefix(b"start".as_slice());
        rest.is_some_and(|rest| rest.trim_ascii_start().starts_with(b":"))
    })
}

/// A document that a START carries unchanged.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct RawDocument(Bytes);

impl RawDocument {
    /// A document of these bytes. If they do not end with a line break and another document follows,
    /// encoding adds one.
    ///
    /// # Errors
    /// [`MarkerInside`] if a line would end the document: `---` or `...`, alone or before a blank.
    pub fn new(bytes: impl Into<Bytes>) -> Result<Self, MarkerInside> {
        let bytes = bytes.into();
        match yaml::first_marker(&bytes) {
            Some(line) => Err(MarkerInside { line }),
            None => Ok(Self(bytes)),
        }
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &Bytes {
        &self.0
    }

    /// The text; `None` if it is not UTF-8.
    pub fn as_text(&self) -> Option<&str> {
        std::str::from_utf8(&self.0).ok()
    }
}

/// A text that cannot be a document of a payload, because one of its lines separates documents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line} separates documents (--- or ...)")]
pub struct MarkerInside {
    /// The line, counted from 1.
    pub line: usize,
}
