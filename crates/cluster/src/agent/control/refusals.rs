//! The reasons why commands are refused.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use serde::Deserialize;

use crate::agent::driver::LaunchError;
use crate::network::Networks;
use crate::subnet::{Subnet, is_mac};
use ssntp::payload::{
    AttachVolumeFailureReason, DeleteFailureReason, Error, Id, Networking, RestartFailureReason, Start,
    StartFailureReason, StopFailureReason, yaml,
};
use ssntp::proto::Frame;

/// A refusal of START or RESTART: the protocol's reason, and an explanation, which may be
/// empty.
#[derive(Debug)]
pub(super) struct Refused<R> {
    pub(super) reason: R,
    pub(super) why: String,
}

impl<R> Refused<R> {
    pub(super) fn new(reason: R, why: impl Into<String>) -> Self {
        Self {
            reason,
            why: why.into(),
        }
    }
}

impl<R: for<'a> From<&'a Error>> Refused<R> {
    pub(super) fn unreadable(error: &Error) -> Self {
        Self::new(error.into(), error.to_string())
    }
}

impl<R> From<R> for Refused<R> {
    fn from(reason: R) -> Self {
        Self::new(reason, "")
    }
}

impl<R: fmt::Display> fmt::Display for Refused<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.why.as_str() {
            "" => self.reason.fmt(f),
            why => write!(f, "{}: {why}", self.reason),
        }
    }
}

macro_rules! refused_of_launch_error {
    ($($reason:ty),+) => {
        $(impl From<LaunchError> for Refused<$reason> {
            fn from(error: LaunchError) -> Self {
                Self::new(error.fault.into(), error.why)
            }
        })+
    };
}

refused_of_launch_error!(StartFailureReason, RestartFailureReason);

/// The command is not for an instance of this node.
#[derive(Clone, Copy, Debug)]
pub(super) enum Misaddressed {
    /// It names no node or no instance, so it is invalid.
    NotNamed,
    /// The node, or the instance, is another one.
    NotHere,
}

macro_rules! reasons {
    ($($reason:ty),+) => {
        $(impl From<Misaddressed> for $reason {
            fn from(refused: Misaddressed) -> Self {
                match refused {
                    Misaddressed::NotNamed => Self::InvalidData,
                    Misaddressed::NotHere => Self::NoInstance,
                }
            }
        })+
    };
}

reasons!(
    StopFailureReason,
    DeleteFailureReason,
    RestartFailureReason,
    AttachVolumeFailureReason
);

/// What a START asks for that this agent can't do. The START is refused, because its
/// program may rely on it.
pub(super) fn unsupported(start: &Start) -> Option<String> {
    if start.requirements.privileged {
        return Some("privileged: there are no containers here".into());
    }
    if start.storage.iter().any(|storage| storage.swap) {
        return Some("storage.swap: there are no volumes for swapping".into());
    }
    let policy = &start.restart_policy;
    (!policy.is_known()).then(|| format!("restart_policy: {policy} is not known"))
}

/// Refuses a network that can't be set up. `network` is the node's, if it has tenants' networks.
pub(super) fn check_networking(start: &Start, network: Option<&Networks>) -> Result<(), String> {
    if let Some(network) = network {
        network.attachment(start)?;
    }
    let Networking {
        vnic_mac,
        subnet,
        private_ip,
        concentrator_ip,
        ..
    } = &start.networking;
    if !vnic_mac.is_empty() && !is_mac(vnic_mac) {
        return Err(format!("{vnic_mac:?} is no MAC address"));
    }
    if !subnet.is_empty() && subnet.parse::<Subnet>().is_err() {
        return Err(format!("{subnet:?} is no subnet"));
    }
    for ip in [private_ip, concentrator_ip] {
        if !ip.is_empty() && ip.parse::<IpAddr>().is_err() {
            return Err(format!("{ip:?} is no IP address"));
        }
    }
    Ok(())
}

/// The instance and the volume of a command that can't be read as a whole.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct About {
    pub(super) instance_uuid: Id,
    pub(super) volume_uuid: Id,
    pub(super) restart: bool,
}

impl About {
    pub(super) fn of(frame: &Frame) -> Self {
        yaml::documents(frame.payload_bytes())
            .take(3)
            .filter_map(|document| yaml::decode::<BTreeMap<String, Self>>(document.bytes).ok())
            .find_map(|roots| roots.into_values().find(|about| !about.instance_uuid.is_empty()))
            .unwrap_or_default()
    }
}
