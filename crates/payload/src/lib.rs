//! The payloads of a cloud's frames as types: START and STATS, tenants, volumes, concentrators.
//!
//! Each schema implements [`Payload`](ssntp::payload::Payload): it has the kind of its frame, and reads
//! and writes the frame's YAML. [`ssntp::payload`] has the rules that all schemas share, and the
//! payloads of sessions themselves. This crate does no I/O.
//!
//! ```
//! use ssntp::proto::{Command, Frame};
//! use ssntp_payload::{InstanceState, Stats};
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
//! | `tenants` | Tenant, Tenants |
//! | `stream` | OpenStream, StreamCredit, CloseStream, StreamOpened, StreamData, StreamEnded: plain bytes |
//! | `enrolment` | ManageEnrolment, EnrolmentList |
//! | `trace_report` | TraceReport |
//! | `failure` | StartFailure and the other failures of commands |
//! | `workload`, `label` | what START and RESTART share; names and labels of instances |
//! | `health` | the health checks of instances, in START and STATS |
//! | [`timestamp`] | points in time, as STATS and TraceReport write them |
//!
//! `workload` has the keys that START and RESTART share, `label` the rules for names and labels of
//! instances. FULL, OFFLINE, ConnectionFailure and ConnectionAborted have no payload.

#![deny(missing_docs)]

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
        ::ssntp::schema! {$(
            $(#[$doc])*
            $name = $operand::$constant, under $root $(, requires $($field),+)? $fields
        )+}
    };
}

mod configure;
mod enrolment;
mod evacuate;
mod failure;
mod health;
mod instance;
mod label;
mod node;
mod public_ip;
mod ready;
mod refresh_cnci;
mod restart;
mod restore;
mod start;
mod stats;
mod stats_summary;
mod stop;
mod stream;
mod tenant;
mod tenants;
pub mod timestamp;
mod trace_report;
mod volume;
mod workload;

pub use self::configure::*;
pub use self::enrolment::*;
pub use self::evacuate::{Evacuate, NextState};
pub use self::failure::*;
pub use self::health::{HealthCheck, HealthState, HttpCheck};
pub use self::instance::{ConcentratorInstanceAdded, InstanceDeleted, InstanceEnd, InstanceStopped};
pub use self::label::{MAX_LABEL, MAX_LABELS, check_label, check_labels, check_name, parse_label};
pub use self::node::{NewLeader, NodeConnected, NodeDisconnected, NodeType, SnapshotComplete};
pub use self::public_ip::{AssignPublicIp, PublicIpAssigned, PublicIpUnassigned, ReleasePublicIp};
pub use self::ready::{Maintenance, Ready};
pub use self::refresh_cnci::{CnciPeer, RefreshCnci};
pub use self::restart::Restart;
pub use self::restore::Restore;
pub use self::start::{MarkerInside, RawDocument, RestartPolicy, Start, StartPayload, Storage, VmType};
pub use self::stats::{InstanceState, InstanceStats, NodeNetwork, NodeStatus, Stats, TunnelStats};
pub use self::stats_summary::StatsSummary;
pub use self::stop::{Delete, Stop};
pub use self::stream::*;
pub use self::tenant::{TenantAdded, TenantRemoved, subnet_key};
pub use self::tenants::{Tenant, TenantAction, TenantAddress, TenantEntry, TenantRefusal, Tenants};
pub use self::trace_report::{FrameTrace, NodeTrace, TraceReport};
pub use self::volume::{AttachVolume, DetachVolume};
pub use self::workload::{FwType, Networking, Persistence, Requirements};
