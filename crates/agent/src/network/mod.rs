//! The networks of instances, as the agent knows them: what a START asks for, and the traits of those
//! who set up networks. The crate `ssntp-network` implements them; an agent without it gives all
//! instances the host's network.
//!
//! | file | holds |
//! |---|---|
//! | `attachment` | [`Attachment`]: the network that a START asks for |

mod attachment;

use std::ffi::OsString;
use std::fmt;
use std::net::Ipv4Addr;
use std::path::PathBuf;

use ssntp_cluster::refusal::Refused;
use ssntp_payload::TunnelStats;
use uuid::Uuid;

pub use self::attachment::{Attachment, Interface, TenantNet, TenantPort};
use super::place::{InstanceDir, User};

/// The name of the file in the instance's directory that the instance sees as `/etc/resolv.conf`.
pub const RESOLVER: &str = "resolv.conf";

/// Sets up the networks of the tenants on a node.
///
/// # Threads
/// The agent's workers call it, several at the same time. Only [`address`](Self::address),
/// [`check`](Self::check) and [`faults`](Self::faults) are called on the agent's own thread; they must not block.
pub trait Network: Send + Sync + fmt::Debug {
    /// The address at which the tunnels of this node begin.
    fn address(&self) -> Ipv4Addr;

    /// Checks that this node can have an instance with this network.
    ///
    /// # Errors
    /// The reason of a `network_failure`.
    fn check(&self, to: &Attachment) -> Result<(), String>;

    /// The network of an instance that is being launched. Nothing is set up yet.
    fn wire<'a>(&'a self, instance: Uuid, to: Attachment) -> Box<dyn Wire + 'a>;

    /// Sets up what these instances need, and removes everything else. Each instance comes with the
    /// number of its process. Called once, before the agent takes commands.
    ///
    /// # Errors
    /// The state of the system can't be read or changed.
    fn restore(&self, instances: &[(Uuid, Attachment, i32)]) -> Result<(), String>;

    /// Removes the network of an instance, if it has one.
    fn detach(&self, instance: Uuid);

    /// The state and the counters of each tunnel. Also repairs what is missing, and replaces the
    /// copies of files of concentrators, whose directories `place` names.
    fn tunnels(&self, place: &dyn Fn(Uuid) -> PathBuf) -> Vec<TunnelStats>;

    /// The number of faults that the last call of [`tunnels`](Self::tunnels) has found, such as an underlay that
    /// is down.
    fn faults(&self) -> usize;
}

/// Connects an instance that is being launched to its network. The driver makes the network
/// namespace.
pub trait Wire: fmt::Debug {
    /// Makes the interface `eth0` in the network namespace of a process. It is removed when the
    /// instance ends.
    ///
    /// # Errors
    /// The reason is [`Reason::NetworkFailure`](ssntp_cluster::refusal::Reason::NetworkFailure).
    fn connect(&self, pid: i32) -> Result<(), Refused>;

    /// Makes a tap in the agent's own network namespace, which the machine's user can open. It is
    /// removed when the agent has noticed the end of the instance.
    ///
    /// # Errors
    /// The reason is [`Reason::NetworkFailure`](ssntp_cluster::refusal::Reason::NetworkFailure).
    fn tap(&self, user: Option<User>) -> Result<Tap, Refused>;

    /// True for a concentrator, which may administer the network of its namespace.
    fn is_concentrator(&self) -> bool;

    /// Writes files into the directory of the instance: the list of name servers, or the files of a
    /// concentrator, which only its user can read. Returns the environment variables that a
    /// concentrator gets from its node.
    ///
    /// # Errors
    /// A file cannot be read or written.
    fn prepare(&self, place: &InstanceDir, user: Option<User>) -> Result<Vec<(OsString, OsString)>, Refused>;
}

/// The interface of a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tap {
    /// The name of the tap on the host.
    pub interface: String,
    /// The MAC address of the interface in the machine.
    pub mac: String,
    /// The largest packet, in bytes.
    pub mtu: u16,
}
