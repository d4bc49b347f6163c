//! Bounds for the parts of a frame that a view keeps, because views, histories and subscribers keep
//! thousands of frames. A text that is longer than any valid one of its kind (a UUID, an address, a
//! word, a name) is replaced by an empty text.

use std::collections::BTreeMap;

use crate::failure::Failure;
use ssntp::payload::{Error, Id, yaml};
use ssntp::proto::Frame;
use ssntp_payload::{
    ConcentratorInstanceAdded, FrameTrace, HealthState, InstanceEnd, InstanceState, InstanceStats,
    MAX_LABELS, NodeStatus, NodeType, PublicIpAssigned, PublicIpUnassigned, Stats, check_label, check_name,
};

/// The length limit of UUIDs, addresses, states and reasons, in bytes. Valid ones are shorter.
const MAX_WORD: usize = 64;
/// The length limit of a host name on Linux, in bytes.
const MAX_NAME: usize = 255;
/// The length limit of the detail of a failure or an end, in bytes. Its sender cuts it to 200
/// characters, which have at most four bytes each.
const MAX_DETAIL: usize = 1024;
/// The maximum number of addresses of a node, and the maximum number of volumes of an instance.
const MAX_LISTED: usize = 256;
/// The maximum number of tunnels of a node. It has one for each tenant with instances there.
const MAX_TUNNELS: usize = 4096;
/// The maximum number of hops of a trace: a frame has two or three.
const MAX_HOPS: usize = 16;
/// The length limit of an event, in bytes. The scheduler drops longer ones.
const MAX_REPORT: usize = 64 << 10;

/// Checks that an event is short enough to be decoded.
pub(crate) fn check(frame: &Frame) -> Result<(), Error> {
    let (len, limit) = (frame.payload_bytes().len(), MAX_REPORT);
    if len > limit {
        return Err(yaml::Error::new(yaml::ErrorKind::TooLong { len, limit }).into());
    }
    Ok(())
}

/// Empties a value whose text is longer than `most` bytes.
fn bound<T: Default>(value: &mut T, most: usize, text: fn(&T) -> &str) {
    if text(value).len() > most {
        *value = T::default();
    }
}

fn text(text: &mut String, most: usize) {
    bound(text, most, String::as_str);
}

fn id(id: &mut Id) {
    bound(id, MAX_WORD, Id::as_str);
}

fn labels(labels: &mut BTreeMap<String, String>) {
    labels.retain(|key, value| check_label(key, value).is_ok());
    while labels.len() > MAX_LABELS {
        labels.pop_last();
    }
}

pub(crate) fn node_type(node_type: &mut NodeType) {
    bound(node_type, MAX_WORD, NodeType::as_str);
}

pub(crate) fn stats(stats: &mut Stats) {
    id(&mut stats.node_uuid);
    text(&mut stats.hostname, MAX_NAME);
    labels(&mut stats.labels);
    bound(&mut stats.status, MAX_WORD, NodeStatus::as_str);
    stats.networks.truncate(MAX_LISTED);
    for network in &mut stats.networks {
        text(&mut network.ip, MAX_WORD);
        text(&mut network.mac, MAX_WORD);
    }
    stats.tunnels.truncate(MAX_TUNNELS);
    stats.foreign.truncate(MAX_LISTED);
    stats.foreign.iter_mut().for_each(id);
    stats.instances.iter_mut().for_each(instance);
}

fn instance(stats: &mut InstanceStats) {
    bound(&mut stats.state, MAX_WORD, InstanceState::as_str);
    stats.volumes.truncate(MAX_LISTED);
    stats.volumes.iter_mut().for_each(id);
    // An agent refuses a START with an invalid name or label, so it never sends one.
    if check_name(&stats.name).is_err() {
        stats.name = Box::default();
    }
    labels(&mut stats.labels);
    bound(&mut stats.health, MAX_WORD, HealthState::as_str);
    for (text, most) in [
        (&mut stats.ssh_ip, MAX_WORD),
        (&mut stats.started, MAX_WORD),
        (&mut stats.ended, MAX_WORD),
        (&mut stats.detail, MAX_DETAIL),
        (&mut stats.last_lines, MAX_DETAIL),
        (&mut stats.health_since, MAX_WORD),
        (&mut stats.health_detail, MAX_DETAIL),
    ] {
        bound(text, most, |text| text);
    }
}

pub(crate) fn failure(failure: &mut Failure) {
    let subject = &mut failure.subject;
    id(&mut subject.node_uuid);
    id(&mut subject.instance_uuid);
    id(&mut subject.volume_uuid);
    id(&mut subject.concentrator_uuid);
    id(&mut subject.tenant_uuid);
    text(&mut subject.public_ip, MAX_WORD);
    text(&mut subject.private_ip, MAX_WORD);
    text(&mut subject.vnic_mac, MAX_WORD);
    text(&mut subject.command_id, MAX_WORD);
    text(&mut subject.detail, MAX_DETAIL);
    text(&mut failure.reason, MAX_WORD);
}

pub(crate) fn end(end: &mut InstanceEnd) {
    text(&mut end.detail, MAX_DETAIL);
    text(&mut end.last_lines, MAX_DETAIL);
}

pub(crate) fn trace(trace: &mut FrameTrace) {
    text(&mut trace.label, MAX_NAME);
    text(&mut trace.frame_type, MAX_WORD);
    text(&mut trace.operand, MAX_WORD);
    text(&mut trace.start_timestamp, MAX_WORD);
    text(&mut trace.end_timestamp, MAX_WORD);
    trace.nodes.truncate(MAX_HOPS);
    for node in &mut trace.nodes {
        id(&mut node.ssntp_node_uuid);
        text(&mut node.ssntp_role, MAX_WORD);
        text(&mut node.tx_timestamp, MAX_WORD);
        text(&mut node.rx_timestamp, MAX_WORD);
    }
}

pub(crate) fn cnci_added(event: &mut ConcentratorInstanceAdded) {
    id(&mut event.tenant_uuid);
    text(&mut event.concentrator_ip, MAX_WORD);
    text(&mut event.concentrator_mac, MAX_WORD);
}

pub(crate) fn assigned(event: &mut PublicIpAssigned) {
    id(&mut event.instance_uuid);
    text(&mut event.public_ip, MAX_WORD);
    text(&mut event.private_ip, MAX_WORD);
}

pub(crate) fn unassigned(event: &mut PublicIpUnassigned) {
    id(&mut event.instance_uuid);
    text(&mut event.public_ip, MAX_WORD);
}
