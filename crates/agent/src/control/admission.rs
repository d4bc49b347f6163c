//! The checks of a START that depend neither on the instances of the node nor on its room.

use std::net::IpAddr;
use std::sync::Arc;

use crate::driver::{Driver, Reason, Refused};
use crate::network::{Attachment, Network};
use ssntp_cluster::subnet::{self, is_mac};
use ssntp_payload::Start;

/// The first driver that accepts a START.
///
/// # Errors
/// The reasons of all drivers.
pub(super) fn choose(drivers: &[Arc<dyn Driver>], start: &Start) -> Result<Arc<dyn Driver>, Refused> {
    let mut refused = Refused::launch("");
    for driver in drivers {
        match driver.check(start) {
            Ok(()) => return Ok(Arc::clone(driver)),
            // This driver would run it if it were right, so what the others run does not matter.
            Err(e) if e.reason != Reason::LaunchFailure => refused = e,
            Err(e) if refused.reason == Reason::LaunchFailure => {
                let separator = if refused.why.is_empty() { "" } else { "; " };
                refused.why = format!("{}{separator}{}", refused.why, e.why);
            }
            Err(_) => {}
        }
    }
    if drivers.is_empty() {
        refused.why = "this agent has no drivers".into();
    }
    Err(refused)
}

/// The first setting of a START that this agent does not support. The START is refused, because
/// its program may rely on the setting.
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

/// Checks that the network of a START can be set up. `network` is `None` if the node has no tenants'
/// networks.
///
/// # Errors
/// The reason of a `network_failure`.
pub(super) fn check_networking(start: &Start, network: Option<&dyn Network>) -> Result<(), Refused> {
    check_network(start, network).map_err(|why| Refused::new(Reason::NetworkFailure, why))
}

fn check_network(start: &Start, network: Option<&dyn Network>) -> Result<(), String> {
    match network {
        Some(network) => {
            if let Some(to) = Attachment::of(start)? {
                network.check(&to)?;
            }
        }
        // Without a network namespace of its own, a concentrator would change the host's network.
        None if matches!(Attachment::of(start), Ok(Some(_))) => {
            return Err(
                "this node has no tenants' networks (its agent runs without --network tenants)".into(),
            );
        }
        None => {}
    }
    let networking = &start.networking;
    let (vnic_mac, subnet) = (&networking.vnic_mac, &networking.subnet);
    if !vnic_mac.is_empty() && !is_mac(vnic_mac) {
        return Err(format!("{vnic_mac:?} is not a MAC address"));
    }
    if !subnet.is_empty() && subnet::network(subnet).is_err() {
        return Err(format!("{subnet:?} is not a subnet"));
    }
    for ip in [&networking.private_ip, &networking.concentrator_ip] {
        if !ip.is_empty() && ip.parse::<IpAddr>().is_err() {
            return Err(format!("{ip:?} is not an IP address"));
        }
    }
    Ok(())
}
