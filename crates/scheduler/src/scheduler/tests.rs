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
    ConcentratorInstanceAdded, Ready, Start, StartFailure, StartFailureReason as Failure, Stats, Tenant,
    TenantAction, TenantEntry, TenantRefusal, Tenants,
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
        *scheduler.tenants.keeper() = keeper;
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
            revision: 1,
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
    let stats = Stats {
        node_uuid: rig.node.into(),
        ..Stats::default()
    };
    rig.test.receive(rig.node, &Frame::of(&stats));
    let next = rig.start(8);
    rig.end_write(Written::Done);
    rig.end_write(Written::Done);
    assert_eq!(rig.started(), [(next, "10.1.0.2".to_owned())]);
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
