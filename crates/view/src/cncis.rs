//! The concentrators of a view, and the public addresses that they have assigned.

use std::collections::BTreeMap;
use std::time::SystemTime;

use uuid::Uuid;

use crate::bounds;
use crate::change::Change;
use crate::entities::Cnci;
use ssntp_payload::{ConcentratorInstanceAdded, PublicIpAssigned, PublicIpUnassigned};

/// The maximum number of concentrators.
const MAX_CNCIS: usize = 65_536;
/// The maximum number of public addresses of each concentrator.
const MAX_ADDRESSES: usize = 4096;

/// The concentrators by their UUIDs. The methods return the change that they cause.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cncis(BTreeMap<Uuid, Cnci>);

impl Cncis {
    pub(crate) fn all(&self) -> impl Iterator<Item = &Cnci> {
        self.0.values()
    }

    pub(crate) fn get(&self, uuid: Uuid) -> Option<&Cnci> {
        self.0.get(&uuid)
    }

    pub(crate) fn handle_added(
        &mut self,
        mut event: ConcentratorInstanceAdded,
        now: SystemTime,
    ) -> Option<Change> {
        bounds::cnci_added(&mut event);
        let uuid = event.instance_uuid.uuid()?;
        let cnci = self.entry(uuid)?;
        cnci.tenant = event.tenant_uuid;
        cnci.ip = event.concentrator_ip;
        cnci.mac = event.concentrator_mac;
        cnci.since = Some(now);
        Some(Change::CnciAdded { cnci: uuid })
    }

    pub(crate) fn handle_assigned(&mut self, mut event: PublicIpAssigned) -> Option<Change> {
        bounds::assigned(&mut event);
        let uuid = event.concentrator_uuid.uuid()?;
        let addresses = &mut self.entry(uuid)?.public_ips;
        if addresses.len() >= MAX_ADDRESSES && !addresses.contains_key(&event.public_ip) {
            return None;
        }
        addresses.insert(event.public_ip.clone(), event.clone());
        Some(Change::PublicIpAssigned {
            cnci: uuid,
            instance: event.instance_uuid,
            public_ip: event.public_ip,
        })
    }

    /// The change is reported even if there was no room for the concentrator.
    pub(crate) fn handle_unassigned(&mut self, mut event: PublicIpUnassigned) -> Option<Change> {
        bounds::unassigned(&mut event);
        let uuid = event.concentrator_uuid.uuid()?;
        if let Some(cnci) = self.0.get_mut(&uuid) {
            cnci.public_ips.remove(&event.public_ip);
        }
        Some(Change::PublicIpUnassigned {
            cnci: uuid,
            instance: event.instance_uuid,
            public_ip: event.public_ip,
        })
    }

    /// Removes the concentrator of an instance that no longer exists.
    pub(crate) fn forget(&mut self, uuid: Uuid) -> Option<Change> {
        self.0.remove(&uuid).map(|_| Change::CnciGone { cnci: uuid })
    }

    /// The concentrator, which is added if it is new; `None` if there is no room for it.
    fn entry(&mut self, uuid: Uuid) -> Option<&mut Cnci> {
        let has_room = self.0.len() < MAX_CNCIS || self.0.contains_key(&uuid);
        let new = || Cnci {
            uuid,
            ..Cnci::default()
        };
        has_room.then(|| self.0.entry(uuid).or_insert_with(new))
    }
}
