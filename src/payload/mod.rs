//! The payloads: what the YAML inside each frame says, as types.
//!
//! Each schema is a type that implements [`Payload`]: it knows the kind of
//! frame it belongs to, reads a payload and writes one. Nothing here does I/O.
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
//! | `stop`, `delete`, `restart` | STOP, DELETE, RESTART |
//! | `evacuate`, `restore` | EVACUATE, Restore |
//! | `public_ip` | AssignPublicIP, ReleasePublicIP, PublicIPAssigned, PublicIPUnassigned |
//! | `volume` | AttachVolume, DetachVolume |
//! | `refresh_cnci` | RefreshCNCI |
//! | `configure` | CONFIGURE, the payload of CONNECTED, InvalidConfiguration |
//! | `stats`, `ready` | STATS; READY, MAINTENANCE |
//! | `stats_summary` | the part of STATS that a scheduler looks at |
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
//! and beside them:
//!
//! | file | holds |
//! |---|---|
//! | `content` | [`Content`]: types of an application, beside these |
//! | `json` | JSON for them |
//! | [`yaml`] | reading and writing, the limits, [`yaml::Error`] |
//! | [`timestamp`] | points in time as TraceReport writes them |
//! | `workload` | what START and RESTART share |
//! | `id` | [`Id`], a text that names an entity |
//! | `label` | what instances may be called |
//! | `names` | texts with known values, in which others survive |
//!
//! FULL, OFFLINE, ConnectionFailure and ConnectionAborted have no payload.
//!
//! # Rules all schemas share
//! Every field may be missing unless its schema requires it, and then has its
//! default; unknown keys are ignored; a text with known values keeps a value
//! that isn't known. Numbers are whole; sizes are in MB (10^6 bytes or 2^20,
//! as the sender counts) unless the field says otherwise. How YAML is read,
//! written and limited is told in [`yaml`]; most payloads have a limit of their own,
//! [`MAX_READ_LEN`].

mod configure;
mod content;
mod delete;
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

use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;

pub use self::configure::{
    Configure, ControllerConfig, InvalidConfiguration, LauncherConfig, SchedulerConfig, StorageConfig,
};
pub use self::content::Content;
pub use self::delete::Delete;
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
pub use self::stop::Stop;
pub use self::tenant::{TenantAdded, TenantRemoved, subnet_key};
pub use self::tenants::{Tenant, TenantAction, TenantAddress, TenantEntry, TenantRefusal, Tenants};
pub use self::trace_report::{FrameTrace, NodeTrace, TraceReport};
pub use self::volume::{AttachVolume, DetachVolume};
pub use self::watch::{Watch, Watched};
pub use self::workload::{FwType, Networking, Persistence, Requirements};
use crate::proto::FrameKind;

/// The longest payload of the protocol that is read, in bytes (64 KiB). STATS, TraceReport
/// and the answers to an operator's questions hold lists, and may be as long as
/// [`yaml::MAX_DOCUMENT_LEN`]. Of a START this limits the command, and not the documents that
/// follow it.
// A server reads most payloads on the one thread that serves everybody. A whole mebibyte holds
// it up for 35 ms and more, this for about two. The longer ones are for other threads, but for
// STATS, of which `StatsSummary` skims what a scheduler needs.
pub const MAX_READ_LEN: usize = 64 << 10;

/// A schema of the protocol: the content of one kind of frame, which can always
/// be written. Types of an application are [`Content`].
pub trait Payload: Sized {
    /// The kind of frame that carries it.
    const KIND: FrameKind;

    /// Reads a payload.
    ///
    /// # Errors
    /// [`Error::Document`] when it isn't YAML within the limits of [`yaml`],
    /// or isn't what the schema says, with the path and the line.
    fn decode(payload: &[u8]) -> Result<Self, Error>;

    /// Writes a payload that [`decode`](Self::decode) reads back equal.
    fn encode(&self) -> Bytes;
}

/// A payload that was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The frame is of another kind than the schema belongs to. A mistake of
    /// the caller, not of the peer.
    #[error("a payload of {expected} was asked of a {found} frame")]
    OtherKind {
        /// The kind that the schema belongs to.
        expected: FrameKind,
        /// The frame's kind.
        found: FrameKind,
    },
    /// The document isn't what the schema says. A mistake of the peer, who is
    /// told by the matching failure: `invalid_payload` when
    /// [`is_malformed`](yaml::Error::is_malformed), `invalid_data` otherwise.
    #[error(transparent)]
    Document(#[from] yaml::Error),
    /// A payload of an application's own type is not what that type says, or
    /// cannot be written.
    #[error("{0}")]
    Content(String),
}

impl Error {
    /// Where in the document, as `start.storage[0].size`; empty for all of it.
    pub fn path(&self) -> String {
        match self {
            Self::OtherKind { .. } | Self::Content(_) => String::new(),
            Self::Document(error) => error.path(),
        }
    }

    /// The line in the payload, from 1.
    pub fn line(&self) -> Option<usize> {
        match self {
            Self::OtherKind { .. } | Self::Content(_) => None,
            Self::Document(error) => error.line(),
        }
    }

    /// Whether the payload isn't a document at all: see
    /// [`yaml::Error::is_malformed`].
    pub fn is_malformed(&self) -> bool {
        matches!(self, Self::Document(error) if error.is_malformed())
    }
}

/// Reads the only document of a payload, of at most `limit` bytes, under its key `root`
/// where the schema has one.
fn read<'a, T: DeserializeOwned>(
    payload: &'a [u8],
    root: Option<&str>,
    limit: usize,
) -> Result<(T, yaml::Tree<'a>), Error> {
    // The tree is returned as well: it knows the position of a field that is missing, and it
    // can be read once more for an older form.
    let tree = yaml::Tree::parse(payload, 1, limit)?;
    Ok((tree.decode(root)?, tree))
}

fn write<T: Serialize>(value: &T, root: Option<&'static str>) -> Bytes {
    let written = match root {
        Some(root) => yaml::encode_under(root, value),
        None => yaml::encode(value),
    };
    // Schemas hold text, numbers, lists and maps with text as keys: all of it
    // can be written.
    debug_assert!(written.is_ok(), "{written:?}");
    written.unwrap_or_default()
}

/// A value at `path`, below `root`, that breaks a rule of its schema.
fn refusal(root: Option<&str>, path: &[&str], kind: yaml::ErrorKind) -> yaml::Error {
    root.iter()
        .chain(path)
        .rev()
        .fold(yaml::Error::new(kind), |error, key| {
            error.under(yaml::Segment::key(key))
        })
}

/// Implements [`Payload`] for a schema that serde reads and writes: its frame, the key
/// that wraps it, its longest payload if that is not [`MAX_READ_LEN`], the fields that must
/// not be empty, and a function that completes it by an older form.
macro_rules! payload {
    ($name:ident = $operand:ident::$constant:ident $(, under $root:literal)? $(, up to $limit:path)? $(, requires $($field:ident),+)? $(; completed by $complete:expr)?) => {
        impl $crate::payload::Payload for $name {
            const KIND: $crate::proto::FrameKind = $crate::payload::kind!($operand::$constant);

            fn decode(payload: &[u8]) -> Result<Self, $crate::payload::Error> {
                let root = None$(.or(Some($root)))?;
                let limit = None$(.or(Some($limit)))?.unwrap_or($crate::payload::MAX_READ_LEN);
                #[allow(unused, reason = "used if a field is required, or an older form is read")]
                let (mut value, tree): (Self, _) = $crate::payload::read(payload, root, limit)?;
                $(($complete)(&mut value, tree.decode(root)?);)?
                $($(
                    // serde takes an empty text for a required one, and a field that is missing
                    // has its default, which is empty.
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

/// Defines schemas that have the same fields.
macro_rules! alike {
    (
        $fields:tt
        $(
            $(#[$doc:meta])*
            $name:ident = $operand:ident::$constant:ident,
            under $root:literal $(, requires $($field:ident),+)?;
        )+
    ) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, Default, PartialEq, Eq, ::serde::Serialize, ::serde::Deserialize)]
        #[serde(default)]
        pub struct $name $fields

        $crate::payload::payload!($name = $operand::$constant, under $root $(, requires $($field),+)?);
    )+};
}

/// The kind of an operand, as a constant.
macro_rules! kind {
    (Command::$constant:ident) => {
        $crate::payload::kind!(COMMAND, $crate::proto::Command::$constant)
    };
    (Status::$constant:ident) => {
        $crate::payload::kind!(STATUS, $crate::proto::Status::$constant)
    };
    (Event::$constant:ident) => {
        $crate::payload::kind!(EVENT, $crate::proto::Event::$constant)
    };
    (ErrorCode::$constant:ident) => {
        $crate::payload::kind!(ERROR, $crate::proto::ErrorCode::$constant)
    };
    ($frame_type:ident, $operand:expr) => {
        $crate::proto::FrameKind::new($crate::proto::FrameType::$frame_type, $operand.0)
    };
}

use {alike, kind, payload};
