//! Whether an instance is started. It only asks the rooms that know, and changes nothing.
//!
//! # Failures
//!
//! If several reasons apply, the answer names the first one of this list.
//!
//! | command | reason | when |
//! |---|---|---|
//! | START | `invalid_payload`, `invalid_data` | the payload is invalid, or no driver could run such an instance |
//! | | `launch_failure` | the node is OFFLINE, or has no state directory, or no driver for the instance |
//! | | `node_maintenance` | the node is evacuated: from EVACUATE to Restore |
//! | | `already_running`, `instance_exists` | the node has an instance of this UUID, which runs or has ended |
//! | | `launch_failure`, `image_failure`, `full_cn` | the node's policy does not allow the instance |
//! | | `network_failure` | the networking is invalid |
//! | | `full_cn` | memory, disk, the number of instances or the state directory has no room |
//! | | `image_failure` | an image or a volume does not exist |
//! | | `launch_failure` | the driver could not launch the instance |
//! | STOP | `no_instance` | the node does not have the instance, or is OFFLINE |
//! | | `already_stopped` | the instance has ended already |
//! | RESTART | `no_instance` | the node does not have the instance |
//! | | `launch_failure` | the node is OFFLINE, in maintenance or full, or the driver could not launch the instance |
//! | | `already_running` | the instance has not ended |
//! | | `instance_corrupt` | the START of the instance is lost |
//! | | `network_failure` | the networking is invalid, or could not be set up |
//! | DELETE | `no_instance` | the node does not have the instance, or is OFFLINE |
//! | | `invalid_data` | the record can't be removed, or the instance may run and this agent lacks its driver: the instance is unchanged |
//! | AttachVolume, DetachVolume | `no_instance` | the node does not have the instance |
//! | | `attach_failure`, `detach_failure` | the node is OFFLINE, the volume does not exist, or too many volume commands wait |
//! | | `not_supported` | the node has no volumes, or the driver supports none |
//! | | `instance_failure` | the instance is ending, its START is lost, or the machine refuses the volume |
//! | | `already_attached`, `not_attached` | the volume is attached already, or is not attached |
//! | | `state_failure` | the change can't be written to disk |
//!
//! A command that names another node is answered with `no_instance`; START names no node.
//! EVACUATE and Restore have no failure frame: an invalid one is answered with InvalidFrameType,
//! as by the scheduler.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use ssntp::proto::Frame;
use ssntp_cluster::Needs;
use ssntp_cluster::subnet::{self, is_mac};
use ssntp_payload::{CommandSubject, Start, StartPayload};

use super::capacity::Capacity;
use super::events::{Origin, Settings};
use super::instance::{Cause, Instance, LaunchParts, Life};
use super::instances::Instances;
use super::service::Service;
use super::volumes::{Volumes, asked_by};
use crate::driver::{Driver, Reason, Refused};
use crate::network::{Attachment, Network};
use crate::store::{self, Record};

/// The instance of a START, and its launch.
pub(super) fn start(
    settings: &Settings,
    service: &Service,
    capacity: &Capacity,
    instances: &Instances,
    now: Instant,
    (frame, mut payload): (&Frame, StartPayload),
) -> Result<(Instance, LaunchParts), Refused> {
    store::name_own_volumes(&mut payload.start);
    let (id, start) = (payload.start.instance_uuid, &payload.start);
    let needs = Needs::of(start).map_err(|path| Refused::invalid(format!("{path} is below zero")))?;
    let volumes = asked_by(start)?;
    // Faults of the START come before the state of the node, because the START would fail on
    // any other node as well.
    let driver = match choose(&settings.drivers, start) {
        Err(e) if e.reason == Reason::InvalidData => return Err(e),
        driver => driver,
    };
    if service.is_offline() {
        return Err(Refused::launch("the node is OFFLINE"));
    }
    if service.is_evacuated() {
        return Err(Reason::NodeMaintenance.into());
    }
    match instances.get(id) {
        Some(instance) if instance.is_running() => return Err(Reason::AlreadyRunning.into()),
        Some(_) => return Err(Reason::InstanceExists.into()),
        None => {}
    }
    // The error that no driver takes the START comes only now, because the reasons above come
    // first in the list.
    let driver = driver?;
    settings.policy.check(driver.name(), start)?;
    check_supported(start).map_err(Refused::launch)?;
    // An instance without a record would be lost when the agent ends.
    let root = settings.state.as_ref();
    let root = root.ok_or_else(|| Refused::launch("this agent has no state directory"))?;
    let place = store::place(root, id);
    check_networking(start, settings.network.as_deref())?;
    if !capacity.has_room(instances.promised(), &needs, false) {
        return Err(Reason::FullCn.into());
    }
    if !volumes.is_empty() && !settings.has_volumes {
        return Err(Refused::new(Reason::ImageFailure, "this node has no volumes"));
    }
    let record = Record {
        driver: driver.name().to_owned(),
        ..Record::default()
    };
    let instance = Instance {
        driver: Some(driver),
        start: Some(Arc::new(payload)),
        command_id: CommandSubject::of(frame).command_id,
        volumes: Volumes::new(volumes.iter().map(|(volume, _)| *volume).collect()),
        ..Instance::new(place, record, Life::Launching(Cause::Start), now)
    };
    // A copy, so that the other frames in the same buffer are not kept in memory.
    let received = Bytes::copy_from_slice(frame.payload_bytes());
    Ok((instance, (Origin::Start(received), volumes)))
}

/// The first driver that accepts a START.
///
/// # Errors
/// The reasons of all drivers.
fn choose(drivers: &[Arc<dyn Driver>], start: &Start) -> Result<Arc<dyn Driver>, Refused> {
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

/// Checks that this agent supports all settings of a START. One with another setting is refused, because its
/// program may rely on the setting.
fn check_supported(start: &Start) -> Result<(), String> {
    if start.requirements.privileged {
        return Err("privileged: there are no containers here".into());
    }
    if start.storage.iter().any(|storage| storage.swap) {
        return Err("storage.swap: there are no volumes for swapping".into());
    }
    let policy = &start.restart_policy;
    let unknown = || format!("restart_policy: {policy} is not known");
    policy.is_known().then_some(()).ok_or_else(unknown)
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
