//! The payloads of the protocol's frames as types.
//!
//! Each schema is a type that implements [`Payload`]: it has the kind of its frame, and reads and
//! writes the frame's YAML. This module does no I/O.
//!
//! ```
//! use ssntp::payload::{InstanceState, Stats};
//! use ssntp::proto::{Command, Frame};
//!
//! let payload = "\
//! node_uuid: 5be1c0de-7d1a-4b52-8a55-90d2c3b4a501
//! status: READY
//! mem_total_mb: 64000
//! instances:
//! - instance_uuid: 0f7a5a1e-3c55-4a0b-9d3c-6f1f2f9a1001
//!   state: active
//! ";
//! let frame = Frame::with_payload(Command::STATS, payload);
//! let stats: Stats = frame.payload()?;
//! assert_eq!(stats.mem_total_mb, 64000);
//! assert_eq!(stats.mem_available_mb, -1, "unknown");
//! assert_eq!(stats.instances[0].state, InstanceState::Active);
//!
//! let again = Frame::of(&stats);
//! assert_eq!(again.kind(), Command::STATS);
//! # Ok::<(), ssntp::payload::Error>(())
//! ```
//!
//! | file | frames |
//! |---|---|
//! | `start` | START and its further documents |
//! | `stop`, `restart` | STOP, DELETE; RESTART |
//! | `evacuate`, `restore` | EVACUATE, Restore |
//! | `public_ip` | AssignPublicIP, ReleasePublicIP, PublicIPAssigned, PublicIPUnassigned |
//! | `volume` | AttachVolume, DetachVolume |
//! | `refresh_cnci` | RefreshCNCI |
//! | `configure` | CONFIGURE, the payload of CONNECTED, InvalidConfiguration |
//! | `stats`, `ready` | STATS; READY, MAINTENANCE |
//! | `stats_summary` | the part of STATS that a scheduler reads |
//! | `tenant` | TenantAdded, TenantRemoved |
//! | `instance` | InstanceDeleted, InstanceStopped, ConcentratorInstanceAdded |
//! | `node` | NodeConnected, NodeDisconnected |
//! | `trace_report` | TraceReport |
//! | `servers` | ListServers, DrainServer, Servers |
//! | `sessions` | ListSessions, Sessions |
//! | `draining` | Draining |
//! | `kick` | Kick, Kicked, ListBans, Bans, Unban, Unbanned |
//! | `watch` | Watch, Watched |
//! | `tenants` | Tenant, Tenants |
//! | `failure` | StartFailure and the other failures of commands |
//! | `invalid_frame_type` | InvalidFrameType |
//!
//! The other files:
//!
//! | file | holds |
//! |---|---|
//! | `content` | [`Content`]: the types of an application |
//! | `json` | JSON for these types |
//! | [`yaml`] | reading and writing, the limits, [`yaml::Error`] |
//! | [`timestamp`] | points in time as TraceReport writes them |
//! | `workload` | the keys that START and RESTART share |
//! | `id` | [`Id`], the text that identifies an entity |
//! | `label` | the rules for names and labels of instances |
//! | `names` | texts with known values, which keep unknown values |
//!
//! FULL, OFFLINE, ConnectionFailure and ConnectionAborted have no payload.
//!
//! # Rules that all schemas share
//! A field may be missing unless its schema requires it, and then has its default. Unknown keys are
//! ignored. A text with known values keeps an unknown value. Numbers are integers. Sizes are in MB
//! (10^6 or 2^20 bytes, as the sender counts) unless the field says otherwise. [`yaml`] describes
//! how YAML is read, written and limited; most payloads have the shorter limit [`MAX_READ_LEN`].

mod configure;
mod content;
mod draining;
mod evacuate;
mod failure;
mod id;
mod instance;
mod invalid_frame_type;
pub mod json;
mod kick;
mod label;
mod names;
mod node;
mod public_ip;
mod ready;
mod refresh_cnci;
mod restart;
mod restore;
mod servers;
mod sessions;
mod start;
mod stats;
mod stats_summary;
mod stop;
mod tenant;
mod tenants;
pub mod timestamp;
mod trace_report;
mod volume;
mod watch;
mod workload;
pub mod yaml;

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;

pub use self::configure::{
    Configure, ControllerConfig, InvalidConfiguration, LauncherConfig, SchedulerConfig, StorageConfig,
};
pub use self::content::Content;
pub use self::draining::Draining;
pub use self::evacuate::{Evacuate, NextState};
pub use self::failure::*;
pub use self::id::Id;
pub use self::instance::{ConcentratorInstanceAdded, InstanceDeleted, InstanceEnd, InstanceStopped};
pub use self::invalid_frame_type::{InvalidFrameType, InvalidFrameTypeReason};
pub use self::kick::{BanEntry, Bans, Kick, Kicked, ListBans, OperatorRefusal, Unban, Unbanned};
pub use self::label::{MAX_LABEL, MAX_LABELS, check_label, check_name};
pub use self::node::{NewLeader, NodeConnected, NodeDisconnected, NodeType, SnapshotComplete};
pub use self::public_ip::{AssignPublicIp, PublicIpAssigned, PublicIpUnassigned, ReleasePublicIp};
pub use self::ready::{Maintenance, Ready};
pub use self::refresh_cnci::{CnciPeer, RefreshCnci};
pub use self::restart::Restart;
pub use self::restore::Restore;
pub use self::servers::{DrainServer, ListServers, ServerEntry, ServerState, Servers};
pub use self::sessions::{ListSessions, SessionEntry, Sessions};
pub use self::start::{MarkerInside, RawDocument, RestartPolicy, Start, StartPayload, Storage, VmType};
pub use self::stats::{InstanceState, InstanceStats, NodeNetwork, NodeStatus, Stats, TunnelStats};
pub use self::stats_summary::StatsSummary;
pub use self::stop::{Delete, Stop};
pub use self::tenant::{TenantAdded, TenantRemoved, subnet_key};
pub use self::tenants::{Tenant, TenantAction, TenantAddress, TenantEntry, TenantRefusal, Tenants};
pub use self::trace_report::{FrameTrace, NodeTrace, TraceReport};
pub use self::volume::{AttachVolume, DetachVolume};
pub use self::watch::{Watch, Watched};
pub use self::workload::{FwType, Networking, Persistence, Requirements};
use crate::proto::FrameKind;

/// The limit of most payloads of the protocol, in bytes (64 KiB). STATS, TraceReport and the
/// answers to operators hold lists, and may be as long as [`yaml::MAX_DOCUMENT_LEN`]. In a START
/// this is the limit of the command, not of the documents after it.
// A server reads most payloads on its dispatcher, which serves all sessions. Reading 1 MiB takes
// 35 ms and more, reading 64 KiB about two. Longer payloads are read on other threads, except
// STATS, of which `StatsSummary` reads only the part that a scheduler needs.
pub const MAX_READ_LEN: usize = 64 << 10;

/// A schema of the protocol: the payload of one kind of frame. Encoding it never fails. Types of an
/// application implement [`Content`].
pub trait Payload: Sized {
    /// The kind of frame that carries it.
    const KIND: FrameKind;

    /// Reads a payload.
    ///
    /// # Errors
    /// [`Error::Document`], with path and line, if it is not YAML within the limits of [`yaml`], or
    /// does not match the schema.
    fn decode(payload: &[u8]) -> Result<Self, Error>;

    /// Writes a payload that [`decode`](Self::decode) reads back equal.
    fn encode(&self) -> Bytes;
}

/// A payload that was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The frame has another kind than the schema: a mistake of the caller, not of the peer.
    #[error("cannot read a payload of {expected} from a {found} frame")]
    OtherKind {
        /// The kind of the schema.
        expected: FrameKind,
        /// The frame's kind.
        found: FrameKind,
    },
    /// The document does not match the schema: a mistake of the peer. Answer with the matching
    /// failure and the reason `invalid_payload` if the document
    /// [is malformed](yaml::Error::is_malformed), else `invalid_data`.
    #[error(transparent)]
    Document(#[from] yaml::Error),
    /// A payload of an application's own type cannot be read or written.
    #[error("{0}")]
    Content(String),
}

impl Error {
    /// The path in the document, as `start.storage[0].size`; empty for the whole document.
    pub fn path(&self) -> String {
        match self {
            Self::OtherKind { .. } | Self::Content(_) => String::new(),
            Self::Document(error) => error.path(),
        }
    }

    /// The line in the payload, counted from 1.
    pub fn line(&self) -> Option<usize> {
        match self {
            Self::OtherKind { .. } | Self::Content(_) => None,
            Self::Document(error) => error.line(),
        }
    }

    /// True if the payload is not a readable document: see [`yaml::Error::is_malformed`].
    pub fn is_malformed(&self) -> bool {
        matches!(self, Self::Document(error) if error.is_malformed())
    }
}

/// Reads the only document of a payload, of at most `limit` bytes, or the value of its key `root`.
fn read<'a, T: DeserializeOwned>(
    payload: &'a [u8],
    root: Option<&str>,
    limit: usize,
) -> Result<(T, yaml::Node<'a>), Error> {
    // The tree is returned as well: it has the position of a missing field, and can be read once
    // more for an older form.
    let tree = yaml::Node::parse(payload, 1, limit)?;
    Ok((tree.decode(root)?, tree))
}

fn write<T: Serialize>(value: &T, root: Option<&'static str>) -> Bytes {
    let written = match root {
        Some(root) => yaml::encode(&BTreeMap::from([(root, value)])),
        None => yaml::encode(value),
    };
    // Schemas only have texts, numbers, lists, and maps with texts as keys, which can always be
    // written.
    debug_assert!(written.is_ok(), "{written:?}");
    written.unwrap_or_default()
}

/// The error for a value at `path` below `root` that breaks a rule of its schema.
fn refusal(root: Option<&str>, path: &[&str], kind: yaml::ErrorKind) -> yaml::Error {
    root.iter()
        .chain(path)
        .rev()
        .fold(yaml::Error::new(kind), |error, key| {
            error.under(yaml::Segment::key(key))
        })
}

/// Implements [`Payload`] for a schema that serde reads and writes. The arguments: its frame, the key
/// around the document, the limit if it is not [`MAX_READ_LEN`], the fields that must not be empty,
/// and a function that completes it from an older form.
macro_rules! payload {
    ($name:ident = $operand:ident::$constant:ident $(, under $root:literal)? $(, up to $limit:path)? $(, requires $($field:ident),+)? $(; completed by $complete:expr)?) => {
        impl $crate::payload::Payload for $name {
            const KIND: $crate::proto::FrameKind = $crate::proto::$operand::$constant.kind();

            fn decode(payload: &[u8]) -> Result<Self, $crate::payload::Error> {
                let root = None$(.or(Some($root)))?;
                let limit = None$(.or(Some($limit)))?.unwrap_or($crate::payload::MAX_READ_LEN);
                #[allow(unused, reason = "used if a field is required, or an older form is read")]
                let (mut value, tree): (Self, _) = $crate::payload::read(payload, root, limit)?;
                $(($complete)(&mut value, tree.decode(root)?);)?
                $($(
                    // serde accepts an empty text, and a missing field has its default, which is
                    // empty as well.
                    if value.$field.is_empty() {
                        let missing = $crate::payload::yaml::ErrorKind::Missing;
                        let error = $crate::payload::refusal(root, &[stringify!($field)], missing);
                        return Err(tree.locate(error).into());
                    }
                )+)?
                Ok(value)
            }

            fn encode(&self) -> ::bytes::Bytes {
                $crate::payload::write(self, None$(.or(Some($root)))?)
            }
        }
    };
}

/// Defines schemas: types whose fields may be missing, and then have the default of their type, or
/// another one: `field: Type = default`. A frame after the name, with the other arguments of `payload!`,
/// makes the schema the payload of that frame.
macro_rules! schema {
    (@default) => {
        Default::default()
    };
    (@default $default:expr) => {
        $default
    };
    ($(
        $(#[$doc:meta])*
        $name:ident $(= $operand:ident::$constant:ident $(, under $root:literal)? $(, up to $limit:path)? $(, requires $($required:ident),+)?)? {
            $( $(#[$attribute:meta])* $field:ident: $type:ty $(= $default:expr)?, )+
        }
    )+) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, ::serde::Serialize, ::serde::Deserialize)]
        #[serde(default)]
        pub struct $name {
            $( $(#[$attribute])* pub $field: $type, )+
        }

        impl Default for $name {
            fn default() -> Self {
                Self {
                    $( $field: $crate::payload::schema!(@default $($default)?), )+
                }
            }
        }

        $(
            $crate::payload::payload!($name = $operand::$constant $(, under $root)? $(, up to $limit)? $(, requires $($required),+)?);
        )?
    )+};
}

/// Defines schemas that have the same fields.
macro_rules! alike {
    (
        $fields:tt
        $(
            $(#[$doc:meta])*
            $name:ident = $operand:ident::$constant:ident,
            under $root:literal $(, requires $($field:ident),+)?;
        )+
    ) => {
        $crate::payload::schema! {$(
            $(#[$doc])*
            $name = $operand::$constant, under $root $(, requires $($field),+)? $fields
        )+}
    };
}

use {alike, payload, schema};
