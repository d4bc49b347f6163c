//! What each frame does to the tables, and what is answered.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;

use log::{debug, info, warn};
use serde::Deserialize;
use uuid::Uuid;

use super::plane::DataPlane;
use super::tables::{PublicIp, Tables, Tunnel};
use crate::cluster::subnet::{Subnet, is_mac};
use crate::payload::{
    AssignPublicIp, AssignPublicIpFailure, ConcentratorInstanceAdded, Configure, Error, Id,
    InvalidConfiguration, InvalidFrameType, Payload, PublicIpAssigned, PublicIpFailureReason,
    PublicIpUnassigned, RefreshCnci, ReleasePublicIp, TenantAdded, TenantRemoved, UnassignPublicIpFailure,
    yaml,
};
use crate::proto::{Command, Event, Frame, FrameKind};

use PublicIpFailureReason as Reason;

/// Keeps the tables where they survive.
pub(super) type Keep = Box<dyn FnMut(&Tables) -> io::Result<()> + Send>;

/// A concentrator without a network: frames in, frames out.
pub(super) struct Concentrator {
    uuid: Uuid,
    tenant: Uuid,
    mac: String,
    tables: Tables,
    plane: Box<dyn DataPlane>,
    keep: Keep,
    answers: Vec<Frame>,
}

impl Concentrator {
    /// Begins with the tables of a former run, and keeps them at once: then
    /// it is known that they can be kept.
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
        keep(&tables)?;
        plane.restore(&tables).map_err(io::Error::other)?;
        info!("{uuid}: data plane: {}", plane.name());
        Ok(Self {
            uuid,
            tenant,
            mac,
            tables,
            plane,
            keep,
            answers: Vec::new(),
        })
    }

    /// What a new session hears first: who it is, and the addresses that it
    /// has assigned. The scheduler may be another than before, and tells
    /// controllers that connect later.
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

    /// Takes a frame; what it answers.
    pub(super) fn frame(&mut self, frame: &Frame) -> Vec<Frame> {
        let kind = frame.kind();
        if kind == Event::TENANT_ADDED {
            self.read(frame, Self::tenant_added);
        } else if kind == Event::TENANT_REMOVED {
            self.read(frame, Self::tenant_removed);
        } else if kind == Command::REFRESH_CNCI {
            self.read(frame, Self::refresh);
        } else if kind == Command::ASSIGN_PUBLIC_IP {
            self.assign_command(frame);
        } else if kind == Command::RELEASE_PUBLIC_IP {
            self.release_command(frame);
        } else if kind == Command::CONFIGURE {
            self.configure(frame);
        } else {
            debug!("{}: {kind} is not for concentrators", self.uuid);
        }
        std::mem::take(&mut self.answers)
    }

    fn answer<T: Payload>(&mut self, payload: &T) {
        self.answers.push(Frame::of(payload));
    }

    /// A frame that has no failure: what can't be read is answered with
    /// InvalidFrameType.
    fn read<T: Payload>(&mut self, frame: &Frame, take: impl FnOnce(&mut Self, T) -> Result<(), String>) {
        let refused = match frame.payload::<T>() {
            Ok(payload) => match take(self, payload) {
                Ok(()) => return,
                Err(why) => ("invalid_data", why),
            },
            Err(e) if e.is_malformed() => ("invalid_payload", e.to_string()),
            Err(e) => ("invalid_data", e.to_string()),
        };
        let (reason, why) = refused;
        self.refuse(frame.kind(), reason, &why);
    }

    fn refuse(&mut self, kind: FrameKind, reason: &str, why: &str) {
        warn!("{}: {kind} refused: {why}", self.uuid);
        self.answer(&InvalidFrameType::new(kind, reason.into()));
    }

    /// Whether an event is about this concentrator and its tenant.
    fn check_ours(&self, concentrator: &Id, tenant: &Id) -> Result<(), String> {
        if *concentrator != self.uuid {
            return Err(format!("it is for {concentrator}"));
        }
        if !tenant.is_empty() && *tenant != self.tenant {
            return Err(format!("it is about the tenant {tenant}"));
        }
        Ok(())
    }

    fn tenant_added(&mut self, added: TenantAdded) -> Result<(), String> {
        self.check_ours(&added.concentrator_uuid, &added.tenant_uuid)?;
        let subnet = subnet(&added.tenant_subnet)?;
        if added.agent_uuid.uuid().is_none() {
            return Err(format!("{:?} is no node", added.agent_uuid));
        }
        if !added.agent_ip.is_empty() && added.agent_ip.parse::<IpAddr>().is_err() {
            return Err(format!("{:?} is no IP address", added.agent_ip));
        }
        let tunnel = Tunnel {
            agent_uuid: added.agent_uuid,
            agent_ip: added.agent_ip,
            subnet,
            key: added.subnet_key,
        };
        if self.tables.tunnels.contains(&tunnel) {
            return Ok(());
        }
        info!(
            "{}: tunnel to {} for {}",
            self.uuid, tunnel.agent_uuid, tunnel.subnet
        );
        let made = self.plane.add_tunnel(&tunnel);
        self.tables.insert_tunnel(tunnel);
        self.settle(made);
        Ok(())
    }

    fn tenant_removed(&mut self, removed: TenantRemoved) -> Result<(), String> {
        self.check_ours(&removed.concentrator_uuid, &removed.tenant_uuid)?;
        let subnet = subnet(&removed.tenant_subnet)?;
        if let Some(tunnel) = self.tables.remove_tunnel(&removed.agent_uuid, &subnet) {
            info!(
                "{}: no tunnel to {} for {subnet} any more",
                self.uuid, tunnel.agent_uuid
            );
            let gone = self.plane.remove_tunnel(&tunnel);
            self.settle(gone);
        }
        Ok(())
    }

    fn refresh(&mut self, refresh: RefreshCnci) -> Result<(), String> {
        self.check_ours(&refresh.cnci_uuid, &Id::default())?;
        let peers: Vec<_> = refresh.cncis.into_iter().map(super::Peer::from).collect();
        for peer in &peers {
            for ip in [&peer.physical_ip, &peer.tunnel_ip] {
                if !ip.is_empty() && ip.parse::<IpAddr>().is_err() {
                    return Err(format!("{ip:?} is no IP address"));
                }
            }
            subnet(&peer.subnet)?;
        }
        if peers != self.tables.peers {
            info!("{}: {} peers", self.uuid, peers.len());
            let set = self.plane.set_peers(&peers);
            self.tables.peers = peers;
            self.settle(set);
        }
        Ok(())
    }

    /// Keeps what an event changed. Nobody waits for the outcome: the log has
    /// to tell.
    fn settle(&mut self, plane: Result<(), String>) {
        if let Err(why) = plane {
            warn!("{}: the data plane: {why}", self.uuid);
        }
        if let Err(e) = (self.keep)(&self.tables) {
            warn!("{}: the tables can't be saved: {e}", self.uuid);
        }
    }

    fn assign_command(&mut self, frame: &Frame) {
        match frame.payload::<AssignPublicIp>() {
            Ok(request) => match self.assign(&request) {
                Ok(()) => {
                    info!(
                        "{}: {} is {}'s",
                        self.uuid, request.public_ip, request.instance_uuid
                    );
                    self.answer(&PublicIpAssigned {
                        concentrator_uuid: request.concentrator_uuid,
                        instance_uuid: request.instance_uuid,
                        public_ip: request.public_ip,
                        private_ip: request.private_ip,
                    });
                }
                Err((reason, why)) => {
                    warn!("{}: {} is not assigned: {why}", self.uuid, request.public_ip);
                    self.answer(&AssignPublicIpFailure::new(request, reason));
                }
            },
            Err(e) => {
                let about = About::of(frame, &e);
                self.answer(&AssignPublicIpFailure::new(about.into(), Reason::from(&e)));
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
                warn!("{}: the data plane: {why}", self.uuid);
            }
            return refuse(format!("the tables can't be saved: {e}"));
        }
        Ok(())
    }

    fn release_command(&mut self, frame: &Frame) {
        match frame.payload::<ReleasePublicIp>() {
            Ok(request) => match self.release(&request) {
                Ok(ip) => {
                    info!(
                        "{}: {} is {}'s no more",
                        self.uuid, ip.public_ip, ip.instance_uuid
                    );
                    self.answer(&PublicIpUnassigned {
                        concentrator_uuid: request.concentrator_uuid,
                        instance_uuid: request.instance_uuid,
                        public_ip: request.public_ip,
                        private_ip: ip.private_ip,
                    });
                }
                Err((reason, why)) => {
                    warn!("{}: {} is not released: {why}", self.uuid, request.public_ip);
                    self.answer(&UnassignPublicIpFailure::new(request, reason));
                }
            },
            Err(e) => {
                let about = About::of(frame, &e);
                self.answer(&UnassignPublicIpFailure::new(about.into(), Reason::from(&e)));
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
                warn!("{}: the data plane: {why}", self.uuid);
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

    fn configure(&mut self, frame: &Frame) {
        if let Err(e) = Configure::decode_valid(frame.payload_bytes()) {
            warn!("{}: the configuration is refused: {e}", self.uuid);
            self.answer(&InvalidConfiguration {
                refused: frame.payload_bytes().clone(),
            });
        }
    }
}

fn subnet(text: &str) -> Result<String, String> {
    let subnet: Result<Subnet, _> = text.parse();
    subnet
        .map(|subnet| subnet.to_string())
        .map_err(|_| format!("{text:?} is no subnet"))
}

/// What a request is about, as far as it can be read when it can't as a whole.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct About {
    concentrator_uuid: Id,
    tenant_uuid: Id,
    instance_uuid: Id,
    public_ip: String,
    private_ip: String,
    vnic_mac: String,
}

impl About {
    fn of(frame: &Frame, error: &Error) -> Self {
        warn!("{} refused: {error}", frame.kind());
        let roots: Option<BTreeMap<String, Self>> = yaml::decode(frame.payload_bytes()).ok();
        roots
            .and_then(|roots| roots.into_values().next())
            .unwrap_or_default()
    }
}

impl From<About> for AssignPublicIp {
    fn from(about: About) -> Self {
        Self {
            concentrator_uuid: about.concentrator_uuid,
            tenant_uuid: about.tenant_uuid,
            instance_uuid: about.instance_uuid,
            public_ip: about.public_ip,
            private_ip: about.private_ip,
            vnic_mac: about.vnic_mac,
        }
    }
}

impl From<About> for ReleasePublicIp {
    fn from(about: About) -> Self {
        Self {
            concentrator_uuid: about.concentrator_uuid,
            tenant_uuid: about.tenant_uuid,
            instance_uuid: about.instance_uuid,
            public_ip: about.public_ip,
            private_ip: about.private_ip,
            vnic_mac: about.vnic_mac,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::payload::CnciPeer;

    const CNCI: Uuid = Uuid::from_u128(0xc);
    const TENANT: Uuid = Uuid::from_u128(0x7);
    const NODE: Uuid = Uuid::from_u128(0xa);
    const ONE: Uuid = Uuid::from_u128(1);
    const TWO: Uuid = Uuid::from_u128(2);

    /// Writes down what it is asked for, and refuses where it is told to.
    #[derive(Debug, Default)]
    struct Fake {
        calls: Arc<Mutex<Vec<String>>>,
        refuse: Arc<AtomicBool>,
    }

    impl Fake {
        fn call(&self, what: String) -> Result<(), String> {
            self.calls.lock().unwrap().push(what);
            match self.refuse.load(Ordering::Relaxed) {
                true => Err("no".into()),
                false => Ok(()),
            }
        }
    }

    impl DataPlane for Fake {
        fn name(&self) -> &'static str {
            "fake"
        }
        fn restore(&mut self, tables: &Tables) -> Result<(), String> {
            self.call(format!("restore {}", tables.public_ips.len()))
        }
        fn add_tunnel(&mut self, tunnel: &Tunnel) -> Result<(), String> {
            self.call(format!("add {}", tunnel.subnet))
        }
        fn remove_tunnel(&mut self, tunnel: &Tunnel) -> Result<(), String> {
            self.call(format!("remove {}", tunnel.subnet))
        }
        fn set_peers(&mut self, peers: &[super::super::Peer]) -> Result<(), String> {
            self.call(format!("peers {}", peers.len()))
        }
        fn assign(&mut self, ip: &PublicIp) -> Result<(), String> {
            self.call(format!("assign {}", ip.public_ip))
        }
        fn release(&mut self, ip: &PublicIp) -> Result<(), String> {
            self.call(format!("release {}", ip.public_ip))
        }
    }

    struct Stage {
        concentrator: Concentrator,
        calls: Arc<Mutex<Vec<String>>>,
        refuse: Arc<AtomicBool>,
        full: Arc<AtomicBool>,
        kept: Arc<Mutex<Tables>>,
    }

    impl Stage {
        fn new() -> Self {
            let fake = Fake::default();
            let (calls, refuse) = (Arc::clone(&fake.calls), Arc::clone(&fake.refuse));
            let (full, kept) = (
                Arc::new(AtomicBool::new(false)),
                Arc::new(Mutex::new(Tables::default())),
            );
            let (disk, on_disk) = (Arc::clone(&full), Arc::clone(&kept));
            let keep: Keep = Box::new(move |tables| {
                if disk.load(Ordering::Relaxed) {
                    return Err(io::ErrorKind::StorageFull.into());
                }
                *on_disk.lock().unwrap() = tables.clone();
                Ok(())
            });
            let ip = "10.0.0.33".parse().unwrap();
            let concentrator = Concentrator::new(
                CNCI,
                TENANT,
                ip,
                String::new(),
                Tables::default(),
                Box::new(fake),
                keep,
            );
            Self {
                concentrator: concentrator.unwrap(),
                calls,
                refuse,
                full,
                kept,
            }
        }

        fn send<T: Payload>(&mut self, payload: &T) -> Vec<Frame> {
            self.concentrator.frame(&Frame::of(payload))
        }

        fn calls(&self) -> Vec<String> {
            std::mem::take(&mut self.calls.lock().unwrap())
        }

        #[track_caller]
        fn assign_reason(&mut self, request: &AssignPublicIp) -> Option<String> {
            let answers = self.send(request);
            assert_eq!(answers.len(), 1);
            match answers[0].payload::<AssignPublicIpFailure>() {
                Ok(failure) => {
                    assert_eq!(
                        failure,
                        AssignPublicIpFailure::new(request.clone(), failure.reason.clone())
                    );
                    Some(failure.reason.to_string())
                }
                Err(_) => {
                    let assigned: PublicIpAssigned = answers[0].payload().unwrap();
                    assert_eq!(assigned.instance_uuid, request.instance_uuid);
                    None
                }
            }
        }

        #[track_caller]
        fn release_reason(&mut self, request: &ReleasePublicIp) -> Option<String> {
            let answers = self.send(request);
            assert_eq!(answers.len(), 1);
            match answers[0].payload::<UnassignPublicIpFailure>() {
                Ok(failure) => Some(failure.reason.to_string()),
                Err(_) => {
                    let released: PublicIpUnassigned = answers[0].payload().unwrap();
                    assert_eq!(released.instance_uuid, request.instance_uuid);
                    None
                }
            }
        }
    }

    fn added(subnet: &str) -> TenantAdded {
        TenantAdded {
            agent_uuid: NODE.into(),
            agent_ip: "10.0.0.7".into(),
            tenant_uuid: TENANT.into(),
            tenant_subnet: subnet.into(),
            concentrator_uuid: CNCI.into(),
            concentrator_ip: "10.0.0.33".into(),
            subnet_key: 4268,
        }
    }

    fn assign(instance: Uuid, public: &str, private: &str) -> AssignPublicIp {
        AssignPublicIp {
            concentrator_uuid: CNCI.into(),
            tenant_uuid: TENANT.into(),
            instance_uuid: instance.into(),
            public_ip: public.into(),
            private_ip: private.into(),
            vnic_mac: String::new(),
        }
    }

    fn release(instance: Uuid, public: &str) -> ReleasePublicIp {
        ReleasePublicIp {
            concentrator_uuid: CNCI.into(),
            tenant_uuid: TENANT.into(),
            instance_uuid: instance.into(),
            public_ip: public.into(),
            ..ReleasePublicIp::default()
        }
    }

    #[test]
    fn it_says_who_it_is() {
        let mut stage = Stage::new();
        let first = stage.concentrator.announcement();
        assert_eq!(first.len(), 1);
        let added: ConcentratorInstanceAdded = first[0].payload().unwrap();
        assert_eq!(
            (added.instance_uuid, added.tenant_uuid),
            (CNCI.into(), TENANT.into())
        );
        assert_eq!(added.concentrator_ip, "10.0.0.33");
        assert_eq!(stage.calls(), ["restore 0"]);
        let kept = stage.kept.lock().unwrap().clone();
        assert_eq!(
            (kept.ip.as_str(), kept.data_plane.as_str()),
            ("10.0.0.33", "fake")
        );
        // Later sessions hear what it has assigned as well.
        let assigned = stage.send(&assign(ONE, "198.51.100.20", "172.16.0.5"));
        assert_eq!(stage.concentrator.announcement()[1..], assigned);
    }

    #[test]
    fn tunnels_and_peers_come_and_go() {
        let mut stage = Stage::new();
        stage.calls();
        assert_eq!(stage.send(&added("172.16.1.0/24")), []);
        assert_eq!(stage.send(&added("172.16.0.5/24")), []);
        assert_eq!(stage.send(&added("172.16.0.0/24")), []);
        assert_eq!(
            stage.calls(),
            ["add 172.16.1.0/24", "add 172.16.0.0/24"],
            "told again: nothing new"
        );
        let subnets = |stage: &Stage| -> Vec<String> {
            stage
                .kept
                .lock()
                .unwrap()
                .tunnels
                .iter()
                .map(|t| t.subnet.clone())
                .collect()
        };
        assert_eq!(subnets(&stage), ["172.16.0.0/24", "172.16.1.0/24"]);
        let mut moved = added("172.16.0.0/24");
        moved.agent_ip = "10.0.0.8".into();
        stage.send(&moved);
        assert_eq!(stage.kept.lock().unwrap().tunnels[0].agent_ip, "10.0.0.8");
        let removed = TenantRemoved {
            agent_uuid: NODE.into(),
            tenant_uuid: TENANT.into(),
            tenant_subnet: "172.16.0.0/24".into(),
            concentrator_uuid: CNCI.into(),
            ..TenantRemoved::default()
        };
        for _ in 0..2 {
            assert_eq!(stage.send(&removed), []);
        }
        assert_eq!(subnets(&stage), ["172.16.1.0/24"]);

        let peer = |subnet: &str| CnciPeer {
            physical_ip: "10.0.0.34".into(),
            subnet: subnet.into(),
            tunnel_ip: "192.168.0.2".into(),
            tunnel_id: 1,
        };
        let refresh = |cncis| RefreshCnci {
            cnci_uuid: CNCI.into(),
            cncis,
        };
        stage.calls();
        stage.send(&refresh(vec![peer("172.17.0.0/24"), peer("172.18.0.0/24")]));
        stage.send(&refresh(vec![peer("172.18.0.0/24")]));
        stage.send(&refresh(vec![peer("172.18.0.0/24")]));
        assert_eq!(stage.calls(), ["peers 2", "peers 1"]);
        assert_eq!(stage.kept.lock().unwrap().peers.len(), 1);
        // A data plane or a disk that refuses changes nothing of what is true.
        stage.refuse.store(true, Ordering::Relaxed);
        stage.full.store(true, Ordering::Relaxed);
        assert_eq!(stage.send(&refresh(vec![])), []);
        assert_eq!(stage.concentrator.tables.peers, []);
    }

    #[test]
    fn events_that_make_no_sense_are_refused() {
        let mut stage = Stage::new();
        let rows: [fn(&mut TenantAdded); 5] = [
            |a| a.concentrator_uuid = ONE.into(),
            |a| a.tenant_uuid = ONE.into(),
            |a| a.tenant_subnet = "everywhere".into(),
            |a| a.agent_ip = "there".into(),
            |a| a.agent_uuid = "node".into(),
        ];
        for change in rows {
            let mut event = added("172.16.0.0/24");
            change(&mut event);
            let answers = stage.send(&event);
            let refusal: InvalidFrameType = answers[0].payload().unwrap();
            assert_eq!(refusal.reason.as_str(), "invalid_data");
        }
        for kind in [
            FrameKind::from(Event::TENANT_ADDED),
            Event::TENANT_REMOVED.into(),
            Command::REFRESH_CNCI.into(),
        ] {
            let answers = stage.concentrator.frame(&Frame::with_payload(kind, "{"));
            let refusal: InvalidFrameType = answers[0].payload().unwrap();
            assert_eq!(
                (refusal.refused(), refusal.reason.as_str()),
                (kind, "invalid_payload")
            );
        }
        assert_eq!(stage.concentrator.tables.tunnels, []);
    }

    #[test]
    fn public_addresses_are_assigned_and_released() {
        let mut stage = Stage::new();
        stage.calls();
        let first = assign(ONE, "198.51.100.20", "172.16.0.5");
        assert_eq!(stage.assign_reason(&first), None);
        assert_eq!(stage.assign_reason(&first), None, "confirmed again");
        assert_eq!(stage.calls(), ["assign 198.51.100.20"]);
        let assign_failure = Some("assign_failure".to_owned());
        assert_eq!(
            stage.assign_reason(&assign(TWO, "198.51.100.20", "172.16.0.6")),
            assign_failure
        );
        assert_eq!(
            stage.assign_reason(&assign(ONE, "198.51.100.21", "172.16.0.5")),
            assign_failure
        );
        assert_eq!(
            stage.assign_reason(&assign(TWO, "198.51.100.3", "")),
            None,
            "nothing private is known"
        );
        let kept: Vec<_> = stage
            .kept
            .lock()
            .unwrap()
            .public_ips
            .iter()
            .map(|ip| ip.public_ip.clone())
            .collect();
        assert_eq!(kept, ["198.51.100.3", "198.51.100.20"], "by number");

        assert_eq!(
            stage.release_reason(&release(NODE, "198.51.100.20")).as_deref(),
            Some("no_instance")
        );
        assert_eq!(
            stage.release_reason(&release(TWO, "198.51.100.20")).as_deref(),
            Some("release_failure")
        );
        assert_eq!(stage.release_reason(&release(ONE, "198.51.100.20")), None);
        assert_eq!(
            stage.release_reason(&release(ONE, "198.51.100.20")).as_deref(),
            Some("no_instance")
        );
        assert_eq!(
            stage.assign_reason(&assign(TWO, "198.51.100.20", "172.16.0.6")),
            None
        );
    }

    #[test]
    fn requests_that_make_no_sense_are_refused() {
        let mut stage = Stage::new();
        type Change = fn(&mut AssignPublicIp);
        let rows: [(Change, &str); 6] = [
            (|a| a.concentrator_uuid = ONE.into(), "no_instance"),
            (|a| a.tenant_uuid = ONE.into(), "invalid_data"),
            (|a| a.instance_uuid = "".into(), "invalid_data"),
            (|a| a.public_ip = "everywhere".into(), "invalid_data"),
            (|a| a.private_ip = "here".into(), "invalid_data"),
            (|a| a.vnic_mac = "02:42".into(), "invalid_data"),
        ];
        for (change, reason) in rows {
            let mut request = assign(ONE, "198.51.100.20", "172.16.0.5");
            change(&mut request);
            assert_eq!(stage.assign_reason(&request).as_deref(), Some(reason));
        }
        for (payload, reason, public_ip) in [
            ("[", "invalid_payload", ""),
            (
                "assign_public_ip:\n  public_ip: 198.51.100.20\n",
                "invalid_data",
                "198.51.100.20",
            ),
        ] {
            let answers = stage
                .concentrator
                .frame(&Frame::with_payload(Command::ASSIGN_PUBLIC_IP, payload));
            let failure: AssignPublicIpFailure = answers[0].payload().unwrap();
            assert_eq!(
                (failure.reason.as_str(), failure.public_ip.as_str()),
                (reason, public_ip)
            );
            let answers = stage
                .concentrator
                .frame(&Frame::with_payload(Command::RELEASE_PUBLIC_IP, payload));
            let failure: UnassignPublicIpFailure = answers[0].payload().unwrap();
            assert_eq!(failure.reason.as_str(), reason);
        }
    }

    #[test]
    fn what_the_plane_or_the_disk_refuses_is_not_in_the_tables() {
        let mut stage = Stage::new();
        let (one, two) = (assign(ONE, "198.51.100.1", ""), assign(TWO, "198.51.100.2", ""));
        assert_eq!(stage.assign_reason(&one), None);
        for fault in [Arc::clone(&stage.refuse), Arc::clone(&stage.full)] {
            fault.store(true, Ordering::Relaxed);
            assert_eq!(stage.assign_reason(&two).as_deref(), Some("assign_failure"));
            assert_eq!(
                stage.release_reason(&release(ONE, "198.51.100.1")).as_deref(),
                Some("release_failure")
            );
            assert_eq!(stage.concentrator.tables.public_ips.len(), 1);
            fault.store(false, Ordering::Relaxed);
        }
        assert_eq!(stage.assign_reason(&two), None);
        assert_eq!(stage.release_reason(&release(ONE, "198.51.100.1")), None);
    }

    #[test]
    fn a_configuration_is_checked() {
        let mut stage = Stage::new();
        assert_eq!(stage.send(&Configure::default()), []);
        let answers = stage
            .concentrator
            .frame(&Frame::with_payload(Command::CONFIGURE, "configure: 3"));
        assert_eq!(
            answers[0].payload::<InvalidConfiguration>().unwrap().refused,
            "configure: 3"
        );
        assert_eq!(stage.concentrator.frame(&Frame::new(Command::EVACUATE)), []);
    }
}
