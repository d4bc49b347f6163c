//! AssignPublicIP and ReleasePublicIP: each is confirmed, or answered with its
//! failure. The tables, the data plane and the disk have the same addresses
//! afterwards, whichever of them refuses.

use std::net::IpAddr;

use log::info;

use super::super::tables::PublicIp;
use super::{Concentrator, now};
use crate::subnet::is_mac;
use ssntp::payload::PublicIpFailureReason as Reason;
use ssntp::payload::{
    AssignPublicIp, AssignPublicIpFailure, CommandFailure, CommandSubject, Id, PublicIpAssigned,
    PublicIpUnassigned, ReleasePublicIp, UnassignPublicIpFailure,
};
use ssntp::proto::Frame;
use ssntp_transport::excerpt;

impl Concentrator {
    pub(super) fn assign_command(&mut self, frame: &Frame) {
        match frame.payload::<AssignPublicIp>() {
            Ok(request) => match self.assign(&request) {
                Ok(()) => {
                    if let Some(more) = self.log.admit((), "assigned", now()) {
                        let (ip, instance) = (excerpt(&request.public_ip), excerpt(&request.instance_uuid));
                        info!("{}: {ip} is {instance}'s{more}", self.uuid);
                    }
                    self.answer(&PublicIpAssigned {
                        concentrator_uuid: request.concentrator_uuid,
                        instance_uuid: request.instance_uuid,
                        public_ip: request.public_ip,
                        private_ip: request.private_ip,
                    });
                }
                Err((reason, why)) => {
                    self.complain(
                        "assign",
                        format_args!("{} is not assigned: {why}", request.public_ip),
                    );
                    self.answer(&AssignPublicIpFailure::new(request, reason));
                }
            },
            Err(e) => {
                self.complain("unreadable", format_args!("{} refused: {e}", frame.kind()));
                self.answer(&AssignPublicIpFailure::of(
                    CommandSubject::of(frame),
                    Reason::from(&e),
                ));
            }
        }
    }

    fn assign(&mut self, request: &AssignPublicIp) -> Result<(), (Reason, String)> {
        let address = self.check(
            &request.concentrator_uuid,
            &request.tenant_uuid,
            &request.instance_uuid,
            &request.public_ip,
        )?;
        let invalid = |text: &str, what: &str| (Reason::InvalidData, format!("{text:?} is no {what}"));
        let private = &request.private_ip;
        if !private.is_empty() && private.parse::<IpAddr>().is_err() {
            return Err(invalid(private, "IP address"));
        }
        if !request.vnic_mac.is_empty() && !is_mac(&request.vnic_mac) {
            return Err(invalid(&request.vnic_mac, "MAC address"));
        }
        let ip = PublicIp {
            public_ip: address.to_string(),
            instance_uuid: request.instance_uuid.clone(),
            private_ip: private.clone(),
            vnic_mac: request.vnic_mac.clone(),
        };
        let refuse = |why: String| Err((Reason::AssignFailure, why));
        match self.tables.public_ip(address) {
            Some(there) if *there == ip => return Ok(()),
            Some(there) if there.instance_uuid != ip.instance_uuid => {
                return refuse(format!("it is {}'s", there.instance_uuid));
            }
            _ => {}
        }
        let mut others = self
            .tables
            .public_ips
            .iter()
            .filter(|other| other.public_ip != ip.public_ip);
        if let Some(other) = others.find(|other| !private.is_empty() && other.private_ip == *private) {
            return refuse(format!("{private} has {} already", other.public_ip));
        }
        self.plane.assign(&ip).or_else(refuse)?;
        let before = self.tables.clone();
        self.tables.insert_public_ip(ip.clone());
        if let Err(e) = (self.keep)(&self.tables) {
            self.tables = before;
            if let Err(why) = self.plane.release(&ip) {
                self.complain("data plane", format_args!("the data plane: {why}"));
            }
            return refuse(format!("the tables can't be saved: {e}"));
        }
        Ok(())
    }

    pub(super) fn release_command(&mut self, frame: &Frame) {
        match frame.payload::<ReleasePublicIp>() {
            Ok(request) => match self.release(&request) {
                Ok(ip) => {
                    if let Some(more) = self.log.admit((), "released", now()) {
                        let (ip, instance) = (excerpt(&ip.public_ip), excerpt(&ip.instance_uuid));
                        info!("{}: {ip} is {instance}'s no more{more}", self.uuid);
                    }
                    self.answer(&PublicIpUnassigned {
                        concentrator_uuid: request.concentrator_uuid,
                        instance_uuid: request.instance_uuid,
                        public_ip: request.public_ip,
                        private_ip: ip.private_ip,
                    });
                }
                Err((reason, why)) => {
                    self.complain(
                        "release",
                        format_args!("{} is not released: {why}", request.public_ip),
                    );
                    self.answer(&UnassignPublicIpFailure::new(request, reason));
                }
            },
            Err(e) => {
                self.complain("unreadable", format_args!("{} refused: {e}", frame.kind()));
                self.answer(&UnassignPublicIpFailure::of(
                    CommandSubject::of(frame),
                    Reason::from(&e),
                ));
            }
        }
    }

    fn release(&mut self, request: &ReleasePublicIp) -> Result<PublicIp, (Reason, String)> {
        let address = self.check(
            &request.concentrator_uuid,
            &request.tenant_uuid,
            &request.instance_uuid,
            &request.public_ip,
        )?;
        let refuse = |why: String| (Reason::ReleaseFailure, why);
        let instance = &request.instance_uuid;
        if !self
            .tables
            .public_ips
            .iter()
            .any(|ip| ip.instance_uuid == *instance)
        {
            return Err((Reason::NoInstance, format!("{instance} has no address here")));
        }
        let ip = match self.tables.public_ip(address) {
            Some(ip) if ip.instance_uuid == *instance => ip.clone(),
            _ => return Err(refuse(format!("{instance} has another address"))),
        };
        self.plane.release(&ip).map_err(refuse)?;
        let before = self.tables.clone();
        self.tables.remove_public_ip(address);
        if let Err(e) = (self.keep)(&self.tables) {
            self.tables = before;
            if let Err(why) = self.plane.assign(&ip) {
                self.complain("data plane", format_args!("the data plane: {why}"));
            }
            return Err(refuse(format!("the tables can't be saved: {e}")));
        }
        Ok(ip)
    }

    /// What both requests have to say; the address.
    fn check(
        &self,
        concentrator: &Id,
        tenant: &Id,
        instance: &Id,
        address: &str,
    ) -> Result<IpAddr, (Reason, String)> {
        if *concentrator != self.uuid {
            return Err((Reason::NoInstance, format!("it is for {concentrator}")));
        }
        if !tenant.is_empty() && *tenant != self.tenant {
            return Err((Reason::InvalidData, format!("it is about the tenant {tenant}")));
        }
        if instance.uuid().is_none() {
            return Err((Reason::InvalidData, format!("{instance:?} is no instance")));
        }
        let invalid = |_| (Reason::InvalidData, format!("{address:?} is no IP address"));
        address.parse().map_err(invalid)
    }
}
