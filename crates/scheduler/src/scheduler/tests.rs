//! STARTs that wait until the address of their instance is written.

use std::collections::BTreeMap;
use std::time::Duration;

use crossbeam_channel::Sender;

use super::*;
use crate::keeper::Keeper;
use crate::shared::Written;
use crate::term::tests::acts;
use ssntp::proto::Event;
use ssntp::testkit::{HandlerTest, Testkit};
use ssntp_engine::Document;
use ssntp_payload::{
    ConcentratorInstanceAdded, InstanceState, InstanceStats, PublicIpAssigned, Ready, Reason as Failure,
    ReleasePublicIp, Start, StartFailure, Stats, Tenant, TenantAction, TenantAdded, TenantEntry,
    TenantRefusal, TenantRemoved, Tenants,
};

const CNCI: Uuid = Uuid::from_u128(2);
/// Longer than the dispatcher takes for a step, and shorter than each time limit.
const STEP: Duration = Duration::from_secs(4);

/// A scheduler with the tenant `blue`, a controller and a node that is ready.
struct Rig {
    test: HandlerTest,
    shared: Arc<Shared>,
    results: Sender<Written>,
    controller: Uuid,
    node: Uuid,
}

impl Rig {
    /// `is_shared` is true for one of several schedulers, which leads.
    fn new(is_shared: bool) -> Self {
        let (kit, shared) = (Testkit::new().unwrap(), Arc::new(Shared::default()));
        let mut scheduler = Scheduler::new(SchedulerConfig::new()).unwrap();
        if is_shared {
            scheduler.begin_following(&shared);
        }
        let (keeper, results) = Keeper::held();
        scheduler.cluster.tenants.unwritten.keeper = keeper;
        let config = scheduler.serve_with(kit.server_config().unwrap());
        let mut test = HandlerTest::new(config, scheduler).unwrap();
        if is_shared {
            drop(acts(&shared, 1, test.now() + 10 * STEP));
        }
        let mut connect = |role| test.connect(&kit.identity(role).unwrap()).unwrap().uuid();
        let (controller, node) = (connect(Role::CONTROLLER), connect(Role::AGENT));
        let cnci = kit.identity(Role::CNCIAGENT).unwrap();
        test.connect_as(&cnci, CNCI).unwrap();
        let announced = ConcentratorInstanceAdded {
            instance_uuid: CNCI.into(),
            tenant_uuid: Uuid::from_u128(1).into(),
            concentrator_ip: "192.0.2.1".into(),
            ..ConcentratorInstanceAdded::default()
        };
        test.receive(CNCI, &Frame::of(&announced));
        let mut rig = Self {
            test,
            shared,
            results,
            controller,
            node,
        };
        rig.send_ready();
        rig.ask(TenantAction::Add, Uuid::nil());
        rig.end_write(Written::Done);
        rig.test.sent_to(controller);
        rig
    }

    fn send_ready(&mut self) {
        let ready = Ready {
            node_uuid: self.node.into(),
            mem_total_mb: 1000,
            mem_available_mb: 1000,
            disk_total_mb: 1000,
            disk_available_mb: 1000,
            cpus_online: 8,
            ..Ready::default()
        };
        self.test.receive(self.node, &Frame::of(&ready));
    }

    fn ask(&mut self, action: TenantAction, instance: Uuid) {
        let asked = Tenant {
            id: "1".into(),
            action,
            name: "blue".into(),
            instance_uuid: instance.into(),
            entry: TenantEntry {
                tenant_uuid: Uuid::from_u128(1).into(),
                subnet: "10.1.0.0/24".into(),
                concentrator_uuid: CNCI.into(),
                concentrator_ip: "192.0.2.1/24".into(),
                ..TenantEntry::default()
            },
            ..Tenant::default()
        };
        self.test.receive(self.controller, &Frame::of(&asked));
    }

    /// The reason why a request is refused.
    fn refusal(&mut self, action: TenantAction, instance: Uuid) -> TenantRefusal {
        self.test.sent_to(self.controller);
        self.ask(action, instance);
        let sent = self.test.sent_to(self.controller);
        let answer = sent.iter().find(|frame| frame.kind() == Event::TENANTS);
        answer.unwrap().payload::<Tenants>().unwrap().reason
    }

    /// The addresses of `blue`.
    fn addresses(&mut self) -> Vec<String> {
        self.test.sent_to(self.controller);
        self.ask(TenantAction::Show, Uuid::nil());
        let sent = self.test.sent_to(self.controller);
        let answer = sent.iter().find(|frame| frame.kind() == Event::TENANTS);
        let answer: Tenants = answer.unwrap().payload().unwrap();
        let addresses = answer.entries[0].addresses.iter();
        addresses.map(|address| address.ip.clone()).collect()
    }

    /// The node reports these instances, which it is starting.
    fn report(&mut self, instances: &[Uuid]) {
        let pending: Vec<_> = instances
            .iter()
            .map(|instance| (*instance, InstanceState::Pending))
            .collect();
        self.listed(&pending);
    }

    fn listed(&mut self, instances: &[(Uuid, InstanceState)]) {
        let instances = instances.iter().map(|(instance, state)| InstanceStats {
            instance_uuid: (*instance).into(),
            state: state.clone(),
            ..InstanceStats::default()
        });
        let stats = Stats {
            node_uuid: self.node.into(),
            instances: instances.collect(),
            ..Stats::default()
        };
        self.test.receive(self.node, &Frame::of(&stats));
    }

    fn end_write(&mut self, result: Written) {
        self.results.send(result).unwrap();
        self.test.advance(STEP);
    }

    /// Sends a START of an instance of `blue`.
    fn start(&mut self, instance: u128) -> Uuid {
        let instance = Uuid::from_u128(instance);
        let start = Start {
            instance_uuid: instance,
            tenant_uuid: "blue".into(),
            ..Start::default()
        };
        self.test.receive(self.controller, &Frame::of(&start));
        instance
    }

    /// The instances that the node is to start, and their addresses.
    fn started(&mut self) -> Vec<(Uuid, String)> {
        let sent = self.test.sent_to(self.node);
        let starts = sent.iter().filter(|frame| frame.kind() == Command::START);
        let starts = starts.map(|frame| frame.payload::<Start>().unwrap());
        starts
            .map(|start| (start.instance_uuid, start.networking.private_ip))
            .collect()
    }

    /// The STARTs that have failed.
    fn failed(&mut self) -> Vec<(Uuid, Failure)> {
        let sent = self.test.sent_to(self.controller);
        let failures = sent
            .iter()
            .filter(|frame| frame.kind() == ErrorCode::START_FAILURE);
        let failures = failures.map(|frame| frame.payload::<StartFailure>().unwrap());
        failures
            .map(|failure| (failure.instance_uuid.uuid().unwrap(), failure.reason))
            .collect()
    }

    /// The term of the scheduler ends (`None`), or one begins. The engine has these documents then.
    fn act(&mut self, token: Option<u64>, documents: &[(&str, &[u8])]) {
        let until = self.test.now() + 10 * STEP;
        let document = |text: &[u8]| Document {
            text: text.to_vec(),
            revision: text.len() as u64,
        };
        let documents = documents.iter();
        self.shared.set_view(&View {
            acting: token.map(|token| Acting { token, until }),
            documents: documents
                .map(|(name, text)| ((*name).to_owned(), document(text)))
                .collect(),
            ..View::default()
        });
        // Any frame makes the scheduler take up the view.
        self.send_ready();
    }
}

/// The engine's table with the tenant `blue`, and with these addresses.
fn tenants(addresses: &[(&str, Uuid)]) -> Vec<u8> {
    let addresses: BTreeMap<_, _> = addresses.iter().copied().collect();
    let blue = serde_json::json!({
        "tenant_uuid": Uuid::from_u128(1),
        "subnet": "10.1.0.0/24",
        "key": 1,
        "concentrator_uuid": CNCI,
        "concentrator_ip": "192.0.2.1/24",
        "addresses": addresses,
    });
    ssntp_cluster::summed::summed(&serde_json::json!({ "tenants": { "blue": blue } })).unwrap()
}

/// An instance whose UUID is taken is not told as refused, and keeps its address.
#[test]
fn a_start_that_waits_for_the_disk_is_neither_refused_nor_loses_its_address() {
    let mut rig = Rig::new(false);
    let instance = rig.start(7);
    // A controller asks what became of it, without naming the tenant, for a node that does not exist.
    let mut question = Start {
        instance_uuid: instance,
        ..Start::default()
    };
    question.requirements.node_id = Uuid::from_u128(99).into();
    rig.test.receive(rig.controller, &Frame::of(&question));
    assert_eq!(rig.failed(), [(instance, Failure::AlreadyRunning)]);
    assert_eq!(rig.refusal(TenantAction::Release, instance), TenantRefusal::InUse);
    rig.end_write(Written::Done);
    let successor = rig.start(8);
    rig.end_write(Written::Done);
    rig.send_ready();
    let expected = [(instance, "10.1.0.2"), (successor, "10.1.0.3")];
    assert_eq!(
        rig.started(),
        expected.map(|(instance, ip)| (instance, ip.to_owned()))
    );
}

#[test]
fn a_start_that_waits_for_the_disk_is_answered_at_a_stop() {
    let mut rig = Rig::new(false);
    let instance = rig.start(7);
    rig.test.stop();
    assert_eq!(rig.failed(), [(instance, Failure::FullCloud)]);
}

#[test]
fn a_start_is_refused_and_its_address_is_free_if_the_disk_hangs() {
    let mut rig = Rig::new(false);
    let instance = rig.start(7);
    rig.test.advance(Duration::from_secs(40));
    assert_eq!(rig.failed(), [(instance, Failure::FullCloud)]);
    rig.report(&[]);
    let next = rig.start(8);
    rig.end_write(Written::Done);
    rig.end_write(Written::Done);
    assert_eq!(rig.started(), [(next, "10.1.0.2".to_owned())]);
}

#[test]
fn a_start_that_waits_for_the_disk_is_refused_if_its_address_was_freed_meanwhile() {
    let mut rig = Rig::new(false);
    let instance = rig.start(7);
    rig.report(&[instance]);
    rig.report(&[]);
    rig.end_write(Written::Done);
    assert_eq!(rig.started(), []);
    assert_eq!(rig.failed(), [(instance, Failure::FullCloud)]);
}

/// Another node may have it, which has not connected yet.
#[test]
fn the_address_of_an_instance_of_an_unknown_node_is_kept_if_another_node_refuses_its_start() {
    let mut rig = Rig::new(true);
    let instance = Uuid::from_u128(7);
    rig.act(None, &[]);
    rig.act(Some(2), &[(TENANTS, &tenants(&[("10.1.0.2", instance)]))]);
    rig.send_ready();
    rig.start(7);
    assert_eq!(rig.started(), [(instance, "10.1.0.2".to_owned())]);
    rig.report(&[instance]);
    let failure = StartFailure {
        node_uuid: rig.node.into(),
        instance_uuid: instance.into(),
        reason: Failure::ImageFailure,
        ..StartFailure::default()
    };
    rig.test.receive(rig.node, &Frame::of(&failure));
    assert_eq!(rig.addresses(), ["10.1.0.2"]);
    rig.listed(&[(instance, InstanceState::Active)]);
    rig.report(&[]);
    assert_eq!(rig.addresses(), Vec::<String>::new());
}

/// A change that the table of the next term does not have must not be told as done.
#[test]
fn a_change_that_waits_for_the_next_write_is_not_saved_if_the_term_ends() {
    let mut rig = Rig::new(true);
    rig.ask(TenantAction::Lease, Uuid::from_u128(7));
    rig.ask(TenantAction::Lease, Uuid::from_u128(8));
    rig.act(None, &[]);
    let reasons = |rig: &mut Rig| -> Vec<_> {
        let sent = rig.test.sent_to(rig.controller);
        let answers = sent.iter().filter(|frame| frame.kind() == Event::TENANTS);
        answers
            .map(|frame| frame.payload::<Tenants>().unwrap().reason)
            .collect()
    };
    assert_eq!(reasons(&mut rig), [TenantRefusal::NotSaved]);
    rig.act(
        Some(2),
        &[(TENANTS, &tenants(&[("10.1.0.2", Uuid::from_u128(7))]))],
    );
    rig.end_write(Written::Done);
    assert_eq!(reasons(&mut rig), [Tenants::default().reason]);
}

#[test]
fn a_start_whose_lease_was_not_written_before_the_term_ended_is_leased_an_address_in_the_next_one() {
    let mut rig = Rig::new(true);
    let instance = rig.start(7);
    rig.act(None, &[]);
    rig.end_write(Written::Refused(
        "this scheduler does not lead any more".to_owned(),
    ));
    assert_eq!(rig.failed(), []);
    rig.act(Some(2), &[]);
    rig.send_ready();
    assert_eq!(rig.started(), [], "its address is not written");
    rig.end_write(Written::Done);
    assert_eq!(rig.started(), [(instance, "10.1.0.2".to_owned())]);
}

#[test]
fn an_unreadable_configuration_hides_no_tenants() {
    let mut rig = Rig::new(true);
    let empty = ssntp_cluster::summed::summed(&BTreeMap::from([("tenants", BTreeMap::<String, u8>::new())]));
    rig.act(None, &[]);
    rig.act(Some(2), &[(CONFIGURATION, b"["), (TENANTS, &empty.unwrap())]);
    assert_eq!(
        rig.refusal(TenantAction::Show, Uuid::nil()),
        TenantRefusal::NoTenant
    );
}

#[test]
fn tenants_that_cannot_be_read_are_neither_changed_nor_written_over() {
    let mut rig = Rig::new(true);
    rig.act(None, &[]);
    rig.act(Some(2), &[(TENANTS, b"damaged")]);
    for action in [TenantAction::Show, TenantAction::Lease] {
        assert_eq!(rig.refusal(action, Uuid::from_u128(7)), TenantRefusal::NotSaved);
    }
    let instance = rig.start(7);
    assert_eq!(rig.failed(), [(instance, Failure::FullCloud)]);
    // An operator has mended it.
    rig.act(Some(2), &[]);
    rig.start(7);
    rig.end_write(Written::Done);
    assert_eq!(rig.started(), [(instance, "10.1.0.2".to_owned())]);
}

#[test]
fn tenants_that_cannot_be_read_are_told_once_and_what_ends_meanwhile_is_freed_later() {
    let mut rig = Rig::new(true);
    let instance = Uuid::from_u128(7);
    rig.act(None, &[]);
    let told = ssntp_test_support::warnings(|| {
        (0..3).for_each(|_| rig.act(Some(2), &[(TENANTS, b"damaged")]));
    });
    let told = told
        .iter()
        .filter(|line| line.contains("tenants cannot be changed"));
    assert_eq!(told.count(), 1);
    rig.listed(&[(instance, InstanceState::Active)]);
    rig.report(&[]);
    rig.act(Some(2), &[(TENANTS, &tenants(&[("10.1.0.2", instance)]))]);
    assert_eq!(rig.addresses(), Vec::<String>::new());
}

/// The present table lacks what was leased since it was read, and the concentrator would cut that off.
#[test]
fn concentrators_are_told_of_tunnels_and_public_addresses_once_the_tenants_can_be_read() {
    let mut rig = Rig::new(true);
    let instance = Uuid::from_u128(7);
    rig.act(None, &[]);
    rig.act(Some(2), &[(TENANTS, b"damaged")]);
    rig.listed(&[(instance, InstanceState::Active)]);
    let added = TenantAdded {
        agent_uuid: rig.node.into(),
        tenant_uuid: Uuid::from_u128(1).into(),
        tenant_subnet: "10.1.0.0/24".into(),
        concentrator_uuid: CNCI.into(),
        ..TenantAdded::default()
    };
    rig.test.receive(rig.node, &Frame::of(&added));
    for (public, private) in [("203.0.113.1", "10.1.0.2"), ("203.0.113.2", "10.1.0.3")] {
        let assigned = PublicIpAssigned {
            concentrator_uuid: CNCI.into(),
            instance_uuid: instance.into(),
            public_ip: public.into(),
            private_ip: private.into(),
        };
        rig.test.receive(CNCI, &Frame::of(&assigned));
    }
    let sent = |rig: &mut Rig| -> Vec<_> {
        let sent = rig.test.sent_to(CNCI).into_iter();
        sent.filter(|frame| frame.kind() != Command::CONFIGURE).collect()
    };
    assert_eq!(sent(&mut rig), []);
    rig.act(Some(2), &[(TENANTS, &tenants(&[("10.1.0.2", instance)]))]);
    let told = sent(&mut rig);
    let told_of: TenantAdded = told[0].payload().unwrap();
    assert_eq!(told_of.addresses, [std::net::Ipv4Addr::new(10, 1, 0, 2)]);
    let released: ReleasePublicIp = told[1].payload().unwrap();
    assert_eq!((released.public_ip.as_str(), told.len()), ("203.0.113.2", 2));
}

#[test]
fn a_tunnel_that_has_ended_while_the_tenants_could_not_be_read_ends_once_they_can_be() {
    let mut rig = Rig::new(true);
    let instance = Uuid::from_u128(7);
    rig.act(None, &[]);
    rig.act(Some(2), &[(TENANTS, b"damaged")]);
    rig.listed(&[(instance, InstanceState::Active)]);
    rig.listed(&[]);
    rig.act(Some(2), &[(TENANTS, &tenants(&[("10.1.0.2", instance)]))]);
    let sent = rig.test.sent_to(CNCI);
    let ends = sent.iter().filter(|frame| frame.kind() == Event::TENANT_REMOVED);
    let ends: Vec<TenantRemoved> = ends.map(|frame| frame.payload().unwrap()).collect();
    assert!(
        matches!(&ends[..], [end] if end.agent_uuid == rig.node),
        "{sent:?}"
    );
}

#[test]
fn a_leader_that_has_ceased_gets_no_further_part_of_a_transfer() {
    let mut scheduler = Scheduler::new(SchedulerConfig::new()).unwrap();
    scheduler.begin_following(&Arc::default());
    let ([leader, other], now) = ([1, 2].map(Uuid::from_u128), ssntp_transport::now());
    scheduler.term.follow(leader, 1);
    scheduler.following.begin_transfer(leader, now);
    scheduler.forget_leader(other);
    assert!(scheduler.following.is_transferring());
    scheduler.forget_leader(leader);
    assert!(!scheduler.following.is_transferring());
}

#[test]
fn the_figures_of_a_scheduler_that_does_not_lead_have_no_addresses() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("cluster.yaml");
    let table = tenants(&[("10.1.0.2", Uuid::from_u128(7))]);
    std::fs::write(file.with_extension("tenants.yaml"), table).unwrap();
    let mut scheduler = Scheduler::new(SchedulerConfig::new().configuration_file(file)).unwrap();
    assert_eq!(scheduler.present_figures().unclaimed_addresses, 1);
    scheduler.begin_following(&Arc::default());
    assert_eq!(scheduler.present_figures().unclaimed_addresses, 0);
}

#[test]
fn a_node_whose_handshake_is_given_up_after_a_term_has_begun_is_in_no_list() {
    let (kit, shared) = (Testkit::new().unwrap(), Arc::new(Shared::default()));
    let mut scheduler = Scheduler::new(SchedulerConfig::new()).unwrap();
    scheduler.begin_following(&shared);
    let config = scheduler.serve_with(kit.server_config().unwrap());
    let mut test = HandlerTest::new(config, scheduler).unwrap();
    let [agent, controller] = [Role::AGENT, Role::CONTROLLER].map(|role| kit.identity(role).unwrap());
    let begin_term = |test: &mut HandlerTest| {
        drop(acts(&shared, 1, test.now() + 10 * STEP));
        test.connect(&controller).unwrap();
    };
    test.give_up(&agent, Uuid::from_u128(9), begin_term).unwrap();
    let later = test.connect(&controller).unwrap();
    let sent = test.sent_to(later.uuid());
    let kinds: Vec<_> = sent.iter().map(Frame::kind).collect();
    assert!(kinds.contains(&Event::SNAPSHOT_COMPLETE.into()), "{kinds:?}");
    assert!(!kinds.contains(&Event::NODE_CONNECTED.into()), "{kinds:?}");
}
