//! The changes that each frame makes in the tables, and the answer to it.
//!
//! ```text
//!            ┌ TenantAdded, TenantRemoved, RefreshCNCI ─▶ carried out, without an answer
//!  a frame ──┼ AssignPublicIP, ReleasePublicIP ─────────▶ `requests`: confirmed, or failed
//!            └ CONFIGURE ───────────────────────────────▶ checked
//! ```

mod requests;
#[cfg(test)]
mod tests;

use std::fmt;
use std::io;
use std::net::IpAddr;

use log::{debug, info, warn};
use uuid::Uuid;

use super::plane::DataPlane;
use super::tables::{Tables, Tunnel};
use ssntp::payload::{Id, Payload};
use ssntp::proto::{Command, Event, Frame};
use ssntp_cluster::refusal::{self, Refused};
use ssntp_cluster::subnet::network;
use ssntp_payload::{
    ConcentratorInstanceAdded, Configure, InvalidConfiguration, PublicIpAssigned, RefreshCnci, TenantAdded,
    TenantRemoved,
};
use ssntp_transport::{LogLimit, excerpt, now};

/// Saves the tables.
pub(super) type Keep = Box<dyn FnMut(&Tables) -> io::Result<()> + Send>;

/// The answer to a frame, if it has one; the error is the reason to refuse the frame.
type Answer = Result<Option<Frame>, Refused>;

/// A concentrator without I/O: frames in, frames out.
pub(super) struct Concentrator {
    uuid: Uuid,
    tenant: Uuid,
    mac: String,
    tables: Tables,
    plane: Box<dyn DataPlane>,
    keep: Keep,
    /// True if the tables could not be saved.
    is_unsaved: bool,
    /// True if addresses of instances have changed, and do not lead to their nodes yet.
    is_behind: bool,
    /// One key is enough, because all frames come from one scheduler.
    log: LogLimit<()>,
}

impl Concentrator {
    /// Begins with the tables of a former run.
    ///
    /// # Errors
    /// The tables can't be saved, or the data plane can't be made.
    pub(super) fn new(
        uuid: Uuid,
        tenant: Uuid,
        ip: IpAddr,
        mac: String,
        mut tables: Tables,
        mut plane: Box<dyn DataPlane>,
        mut keep: Keep,
    ) -> Result<Self, io::Error> {
        tables.concentrator_uuid = uuid.into();
        tables.tenant_uuid = tenant.into();
        tables.ip = ip.to_string();
        tables.data_plane = plane.name().to_owned();
        // The tables are saved first, so that the data plane is unchanged if the disk can't be used.
        keep(&tables)?;
        for skipped in plane.apply(&tables).map_err(io::Error::other)? {
            warn!("{uuid}: left out: {skipped}");
        }
        info!("{uuid}: data plane: {}", plane.name());
        Ok(Self {
            uuid,
            tenant,
            mac,
            tables,
            plane,
            keep,
            is_unsaved: false,
            is_behind: false,
            log: LogLimit::default(),
        })
    }

    pub(super) fn tables(&self) -> &Tables {
        &self.tables
    }

    /// The first frames of a new session: ConcentratorInstanceAdded, and the addresses that are
    /// assigned. The scheduler may have restarted, and needs them for controllers that connect
    /// later.
    pub(super) fn announcement(&self) -> Vec<Frame> {
        let added = Frame::of(&ConcentratorInstanceAdded {
            instance_uuid: self.uuid.into(),
            tenant_uuid: self.tenant.into(),
            concentrator_ip: self.tables.ip.clone(),
            concentrator_mac: self.mac.clone(),
        });
        let assigned = self.tables.public_ips.iter().map(|ip| {
            Frame::of(&PublicIpAssigned {
                concentrator_uuid: self.uuid.into(),
                instance_uuid: ip.instance_uuid.clone(),
                public_ip: ip.public_ip.clone(),
                private_ip: ip.private_ip.clone(),
            })
        });
        std::iter::once(added).chain(assigned).collect()
    }

    /// Handles a frame. Returns the answer, if there is one.
    pub(super) fn frame(&mut self, frame: &Frame) -> Option<Frame> {
        let kind = frame.kind();
        let answer = if kind == Event::TENANT_ADDED {
            self.read(frame, Self::tenant_added)
        } else if kind == Event::TENANT_REMOVED {
            self.read(frame, Self::tenant_removed)
        } else if kind == Command::REFRESH_CNCI {
            self.read(frame, Self::refresh)
        } else if kind == Command::ASSIGN_PUBLIC_IP {
            self.read(frame, Self::assign)
        } else if kind == Command::RELEASE_PUBLIC_IP {
            self.read(frame, Self::release)
        } else if kind == Command::CONFIGURE {
            return self.configure(frame);
        } else {
            debug!("{}: {kind} is not for concentrators", self.uuid);
            return None;
        };
        answer.unwrap_or_else(|refused| {
            self.complain("refused", format_args!("{kind} refused: {refused}"));
            let failure = refusal::failure_of(frame, &refused);
            Some(failure.unwrap_or_else(|| refusal::invalid_frame(kind, &refused.reason)))
        })
    }

    /// Logs a problem with a frame. The number of lines of each kind is limited, because a sender
    /// could otherwise fill the log.
    fn complain(&mut self, kind: &'static str, what: impl fmt::Display) {
        if let Some(more) = self.log.admit((), kind, now()) {
            warn!("{}: {}{more}", self.uuid, excerpt(what));
        }
    }

    /// Logs a change, with the same limit.
    fn note(&mut self, kind: &'static str, what: impl fmt::Display) {
        if let Some(more) = self.log.admit((), kind, now()) {
            info!("{}: {}{more}", self.uuid, excerpt(what));
        }
    }

    fn read<T: Payload>(&mut self, frame: &Frame, take: fn(&mut Self, T) -> Answer) -> Answer {
        take(self, frame.payload()?)
    }

    /// Checks that a frame is for this concentrator and its tenant.
    fn check_ours(&self, concentrator: &Id, tenant: &Id) -> Result<(), String> {
        if *concentrator != self.uuid {
            return Err(format!("it is for the concentrator {concentrator}"));
        }
        if !tenant.is_empty() && *tenant != self.tenant {
            return Err(format!("it is for another tenant, {tenant}"));
        }
        Ok(())
    }

    fn tenant_added(&mut self, added: TenantAdded) -> Answer {
        self.check_ours(&added.concentrator_uuid, &added.tenant_uuid)?;
        let subnet = subnet(&added.tenant_subnet)?;
        if added.agent_uuid.uuid().is_none() {
            return Err(format!("{:?} is not the UUID of a node", added.agent_uuid).into());
        }
        if !added.agent_ip.is_empty() && added.agent_ip.parse::<IpAddr>().is_err() {
            return Err(format!("{:?} is not an IP address", added.agent_ip).into());
        }
        let tunnel = Tunnel {
            agent_uuid: added.agent_uuid,
            agent_ip: added.agent_ip,
            subnet,
            key: added.subnet_key,
            addresses: added.addresses,
        };
        // Agents report their tenants again in each session. If the data plane has failed to make this
        // tunnel, the next repair makes it: one for each report could keep this thread busy for minutes.
        if self.tables.tunnels.contains(&tunnel) {
            return Ok(None);
        }
        let is_only_moved = |there: &Tunnel| {
            let addresses = tunnel.addresses.clone();
            tunnel
                == Tunnel {
                    addresses,
                    ..there.clone()
                }
        };
        if self.tables.tunnels.iter().any(is_only_moved) {
            self.tables.insert_tunnel(tunnel);
            self.is_behind = true;
            return Ok(None);
        }
        let (node, subnet) = (tunnel.agent_uuid.to_string(), tunnel.subnet.clone());
        let mut next = self.tables.clone();
        next.insert_tunnel(tunnel);
        if self.take(next) {
            self.note("tunnel", format_args!("tunnel to {node} for {subnet}"));
        }
        Ok(None)
    }

    fn tenant_removed(&mut self, removed: TenantRemoved) -> Answer {
        self.check_ours(&removed.concentrator_uuid, &removed.tenant_uuid)?;
        let subnet = subnet(&removed.tenant_subnet)?;
        if self.tables.remove_tunnel(&removed.agent_uuid, &subnet) {
            let node = &removed.agent_uuid;
            self.note(
                "no tunnel",
                format_args!("no tunnel to {node} for {subnet} any more"),
            );
            self.settle();
        }
        Ok(None)
    }

    fn refresh(&mut self, refresh: RefreshCnci) -> Answer {
        self.check_ours(&refresh.cnci_uuid, &Id::default())?;
        let peers = refresh.cncis;
        // All peers are checked before the tables change.
        for peer in &peers {
            for ip in [&peer.physical_ip, &peer.tunnel_ip] {
                if !ip.is_empty() && ip.parse::<IpAddr>().is_err() {
                    return Err(Refused::invalid(format!("{ip:?} is not an IP address")));
                }
            }
            subnet(&peer.subnet)?;
        }
        // A list that is received again changes no tunnels.
        if peers != self.tables.peers {
            self.note("peers", format_args!("{} peers", peers.len()));
            self.take(Tables {
                peers,
                ..self.tables.clone()
            });
        }
        Ok(None)
    }

    /// Makes the addresses of instances that have changed lead to their nodes. Called once no further frame
    /// waits, because each START of a tenant changes one.
    pub(super) fn catch_up(&mut self) {
        if !std::mem::take(&mut self.is_behind) {
            return;
        }
        self.is_unsaved = true;
        if let Err(why) = self.plane.forward(&self.tables) {
            self.complain("addresses", format_args!("addresses of instances: {why}"));
        }
        self.save();
    }

    /// Applies the tables to the data plane, which another program may have changed. Saves them if
    /// that has failed before.
    pub(super) fn apply(&mut self) {
        self.is_behind = false;
        match self.plane.apply(&self.tables) {
            Ok(left_out) => left_out
                .iter()
                .for_each(|skipped| self.complain("left out", format_args!("left out: {skipped}"))),
            Err(why) => self.complain("data plane", format_args!("the data plane: {why}")),
        }
        self.save();
    }

    fn save(&mut self) {
        if self.is_unsaved {
            let saved = (self.keep)(&self.tables);
            self.is_unsaved = saved.is_err();
            if let Err(e) = saved {
                self.complain("tables", format_args!("the tables can't be saved: {e}"));
            }
        }
    }

    /// Replaces the tables after an event, unless the data plane refuses the new ones; returns true
    /// if they were replaced. Events have no answer, so faults are only logged.
    fn take(&mut self, next: Tables) -> bool {
        if let Err(why) = self.plane.check(&next) {
            self.complain(
                "refused tables",
                format_args!("the tables are not changed: {why}"),
            );
            return false;
        }
        self.tables = next;
        self.settle();
        true
    }

    /// Applies the new tables, and saves them.
    fn settle(&mut self) {
        self.is_unsaved = true;
        self.apply();
    }

    fn configure(&mut self, frame: &Frame) -> Option<Frame> {
        let refused = frame.payload_bytes().clone();
        let error = Configure::decode_valid(&refused).err()?;
        self.complain("CONFIGURE", format_args!("the configuration is refused: {error}"));
        Some(Frame::of(&InvalidConfiguration { refused }))
    }
}

fn subnet(text: &str) -> Result<String, String> {
    let subnet = network(text).map_err(|_| format!("{text:?} is not a subnet"))?;
    Ok(subnet.to_string())
}
