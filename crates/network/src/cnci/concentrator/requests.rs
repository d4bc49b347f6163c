//! AssignPublicIP and ReleasePublicIP. Each is confirmed, or answered with its failure. After a
//! failure the tables, the data plane and the disk are unchanged.

use std::net::IpAddr;

use super::super::tables::{PublicIp, Tables};
use super::{Answer, Concentrator};
use ssntp::payload::Id;
use ssntp::proto::Frame;
use ssntp_cluster::refusal::{Reason, Refused};
use ssntp_cluster::subnet::is_mac;
use ssntp_payload::{AssignPublicIp, PublicIpAssigned, PublicIpUnassigned, ReleasePublicIp};

impl Concentrator {
    pub(super) fn assign(&mut self, command: AssignPublicIp) -> Answer {
        let AssignPublicIp {
            concentrator_uuid,
            tenant_uuid,
            instance_uuid,
            public_ip,
            private_ip,
            vnic_mac,
        } = command;
        let address = self.check(&concentrator_uuid, &tenant_uuid, &instance_uuid, &public_ip)?;
        let invalid = |text: &str, what: &str| Refused::invalid(format!("{text:?} is not {what}"));
        if !private_ip.is_empty() && private_ip.parse::<IpAddr>().is_err() {
            return Err(invalid(&private_ip, "an IP address"));
        }
        if !vnic_mac.is_empty() && !is_mac(&vnic_mac) {
            return Err(invalid(&vnic_mac, "a MAC address"));
        }
        let ip = PublicIp {
            public_ip: address.to_string(),
            instance_uuid: instance_uuid.clone(),
            private_ip: private_ip.clone(),
            vnic_mac,
        };
        // If the address is assigned already, the controller has lost the answer and gets it again.
        if self.tables.public_ip(address) != Some(&ip) {
            self.assign_new(address, ip)
                .map_err(|why| Refused::new(Reason::AssignFailure, format!("{public_ip}: {why}")))?;
        }
        let what = format_args!("{public_ip} is assigned to instance {instance_uuid}");
        self.note("assigned", what);
        Ok(Some(Frame::of(&PublicIpAssigned {
            concentrator_uuid,
            instance_uuid,
            public_ip,
            private_ip,
        })))
    }

    fn assign_new(&mut self, address: IpAddr, ip: PublicIp) -> Result<(), String> {
        let owner = self.tables.public_ip(address).map(|there| &there.instance_uuid);
        if let Some(owner) = owner.filter(|owner| **owner != ip.instance_uuid) {
            return Err(format!("instance {owner} has it"));
        }
        let is_new = owner.is_none();
        // A private address can only be translated to one public address.
        let is_other =
            |other: &&PublicIp| other.public_ip != ip.public_ip && other.private_ip == ip.private_ip;
        let mut others = self.tables.public_ips.iter().filter(is_other);
        if let Some(other) = others.next().filter(|_| !ip.private_ip.is_empty()) {
            return Err(format!("{} has {} already", ip.private_ip, other.public_ip));
        }
        let mut next = self.tables.clone();
        next.insert_public_ip(ip);
        self.plane.check(&next)?;
        // Last, because this may take a second.
        if is_new {
            self.plane.check_free(address)?;
        }
        self.commit(next)
    }

    pub(super) fn release(&mut self, command: ReleasePublicIp) -> Answer {
        let instance = &command.instance_uuid;
        let address = self.check(
            &command.concentrator_uuid,
            &command.tenant_uuid,
            instance,
            &command.public_ip,
        )?;
        let refuse = |why: String| {
            let why = format!("{}: {why}", command.public_ip);
            Refused::new(Reason::ReleaseFailure, why)
        };
        let mut addresses = self.tables.public_ips.iter();
        if !addresses.any(|ip| ip.instance_uuid == *instance) {
            return Err(Refused::new(
                Reason::NoInstance,
                format!("{instance} has no address here"),
            ));
        }
        let ip = match self.tables.public_ip(address) {
            Some(ip) if ip.instance_uuid == *instance => ip.clone(),
            _ => return Err(refuse(format!("{instance} has another address"))),
        };
        let mut next = self.tables.clone();
        next.remove_public_ip(address);
        self.commit(next).map_err(refuse)?;
        let what = format_args!("{} is taken from instance {instance}", ip.public_ip);
        self.note("released", what);
        Ok(Some(Frame::of(&PublicIpUnassigned {
            concentrator_uuid: command.concentrator_uuid,
            instance_uuid: command.instance_uuid,
            public_ip: command.public_ip,
            private_ip: ip.private_ip,
        })))
    }

    /// Applies these tables to the data plane, and saves them. If one of these steps fails, the former
    /// tables are applied again.
    fn commit(&mut self, next: Tables) -> Result<(), String> {
        let saved = |()| (self.keep)(&next).map_err(|e| format!("the tables can't be saved: {e}"));
        let made = self.plane.apply(&next).map(drop).and_then(saved);
        match &made {
            Ok(()) => (self.tables, self.is_unsaved) = (next, false),
            Err(_) => self.apply(),
        }
        made
    }

    /// Checks the fields that both commands have, and returns the public address.
    fn check(&self, concentrator: &Id, tenant: &Id, instance: &Id, address: &str) -> Result<IpAddr, Refused> {
        if *concentrator != self.uuid {
            return Err(Refused::new(
                Reason::NoInstance,
                format!("it is for the concentrator {concentrator}"),
            ));
        }
        self.check_ours(concentrator, tenant)?;
        if instance.uuid().is_none() {
            return Err(format!("{instance:?} is not the UUID of an instance").into());
        }
        let parsed = address.parse();
        parsed.map_err(|_| Refused::invalid(format!("{address:?} is not an IP address")))
    }
}
