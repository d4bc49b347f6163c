//! What the connected concentrators have told: a controller that connects
//! later is told of it, too. Else it could neither show them nor find the one
//! that a public address is a matter of.

use std::collections::{BTreeMap, HashMap};

use bytes::Bytes;
use uuid::Uuid;

use crate::Role;
use crate::payload::{PublicIpAssigned, PublicIpUnassigned};
use crate::proto::{Event, Frame};
use crate::server::SessionInfo;

/// How many public addresses of one concentrator are remembered.
const MOST_ADDRESSES: usize = 4096;
/// How long an event may be that is remembered, in bytes: they say some UUIDs
/// and addresses.
const MAX_EVENT: usize = 4096;

/// Every connected concentrator that has announced itself, by its UUID.
#[derive(Debug, Default)]
pub(super) struct Cncis {
    by_uuid: HashMap<Uuid, Cnci>,
}

#[derive(Debug, Default)]
struct Cnci {
    /// ConcentratorInstanceAdded.
    announced: Option<Frame>,
    /// PublicIPAssigned of each address that was not taken back since.
    assigned: BTreeMap<String, Frame>,
}

impl Cncis {
    /// Takes in an event; the rules have forwarded it.
    pub(super) fn event(&mut self, from: &SessionInfo, frame: &Frame) {
        if !from.role().contains(Role::CNCIAGENT) || frame.payload_bytes().len() > MAX_EVENT {
            return;
        }
        let cnci = self.by_uuid.entry(from.uuid()).or_default();
        match Event(frame.kind().operand) {
            Event::CONCENTRATOR_INSTANCE_ADDED => cnci.announced = Some(detached(frame)),
            Event::PUBLIC_IP_ASSIGNED => {
                if let Ok(PublicIpAssigned { public_ip, .. }) = frame.payload()
                    && (cnci.assigned.len() < MOST_ADDRESSES || cnci.assigned.contains_key(&public_ip))
                {
                    cnci.assigned.insert(public_ip, detached(frame));
                }
            }
            Event::PUBLIC_IP_UNASSIGNED => {
                if let Ok(PublicIpUnassigned { public_ip, .. }) = frame.payload() {
                    cnci.assigned.remove(&public_ip);
                }
            }
            _ => {}
        }
    }

    pub(super) fn disconnected(&mut self, session: &SessionInfo) {
        self.by_uuid.remove(&session.uuid());
    }

    /// What a new controller is told.
    pub(super) fn told(&self) -> impl Iterator<Item = &Frame> {
        let each = self.by_uuid.values();
        each.flat_map(|cnci| cnci.announced.iter().chain(cnci.assigned.values()))
    }
}

/// A copy of its own: the payload is a piece of a longer read.
fn detached(frame: &Frame) -> Frame {
    Frame::with_payload(frame.kind(), Bytes::copy_from_slice(frame.payload_bytes()))
}
