//! Several schedulers that share an engine: one leads and serves, the others stand by.

use std::time::{Duration, Instant};

use ssntp::Role;
use ssntp::payload::{Tenant, TenantAction, TenantEntry, Tenants};
use ssntp::proto::{Command, ErrorCode, Frame};
use ssntp::server::ServerConfig;
use ssntp::transport::memory::MemoryListener;
use ssntp_cluster::scheduler::{JoinError, JoinedScheduler, Scheduler, SchedulerConfig};
use ssntp_engine::{EngineError, MemoryEngine};

use super::client::{self, Client};

const LIMIT: Duration = Duration::from_secs(60);
const YAML: &str = "configure:\n  launcher:\n    child_user: first\n";
const OTHER: &str = "configure:\n  launcher:\n    child_user: second\n";

fn join(
    engine: &MemoryEngine,
    config: SchedulerConfig,
) -> Result<(MemoryListener, JoinedScheduler), JoinError> {
    let listener = MemoryListener::new();
    let server = ServerConfig::new(client::identity(Role::SCHEDULER), ssntp_test_support::trust())
        .listen_in_memory(&listener);
    let scheduler = Scheduler::new(config).unwrap();
    let joined = scheduler.start_joined(server, Box::new(engine.clone()), Vec::new())?;
    Ok((listener, joined))
}

/// Tries until it is let in, as clients do.
fn connect(listener: &MemoryListener, role: Role) -> Client {
    let end = Instant::now() + LIMIT;
    loop {
        match Client::try_connect(listener, role) {
            Some(client) => return client,
            None => assert!(Instant::now() < end, "nobody leads"),
        }
    }
}

fn configure(yaml: &str) -> Frame {
    Frame::with_payload(Command::CONFIGURE, yaml.to_owned())
}

fn tenant(action: TenantAction) -> Tenant {
    Tenant {
        id: "1".into(),
        action,
        name: "blue".into(),
        entry: TenantEntry {
            tenant_uuid: uuid::Uuid::from_u128(1).into(),
            subnet: "10.1.0.0/24".into(),
            concentrator_uuid: uuid::Uuid::from_u128(2).into(),
            concentrator_ip: "192.0.2.1/24".into(),
            key: 7,
            ..TenantEntry::default()
        },
        ..Tenant::default()
    }
}

#[test]
fn the_next_leader_has_the_configuration_and_the_tenants_of_the_one_before() {
    let (engine, dir) = (MemoryEngine::new(), tempfile::tempdir().unwrap());
    let copy = dir.path().join("cluster.yaml");
    std::fs::write(&copy, OTHER).unwrap();
    let config = SchedulerConfig::new().configuration_file(&copy);
    let (first, leading) = join(&engine, config).unwrap();
    let mut controller = connect(&first, Role::CONTROLLER);
    assert_eq!(controller.connected.payload, OTHER);
    // The first leader has put its file into the engine.
    let end = Instant::now() + LIMIT;
    while !leading.membership.view().documents.contains_key("configuration") {
        assert!(Instant::now() < end, "the engine has no configuration");
    }
    let (second, standing_by) = join(&engine, SchedulerConfig::new().configuration(OTHER)).unwrap();
    assert!(
        Client::try_connect(&second, Role::CONTROLLER).is_none(),
        "it does not lead"
    );

    for yaml in [OTHER, YAML] {
        controller.send(&configure(yaml));
        assert_eq!(controller.recv(), configure(yaml));
    }
    assert_eq!(std::fs::read_to_string(&copy).unwrap(), YAML, "the copy");
    controller.send_payload(&tenant(TenantAction::Add));
    let added: Tenants = controller.expect_payload();
    assert_eq!(added.entries.len(), 1, "{added:?}");

    let token = leading.membership.view().leader.unwrap().token;
    leading.server.stop();
    drop(leading.membership);
    let mut controller = connect(&second, Role::CONTROLLER);
    assert_eq!(controller.connected.payload, YAML);
    controller.send_payload(&tenant(TenantAction::Show));
    let listed: Tenants = controller.expect_payload();
    assert_eq!(listed.entries[0].name, "blue");
    assert!(standing_by.membership.view().leader.unwrap().token > token);

    // Without the engine a CONFIGURE is refused, and later the leader stops serving.
    engine.fail(Some(EngineError::Away("cut".to_owned())));
    controller.send(&configure(OTHER));
    let refused = controller.expect(ErrorCode::INVALID_CONFIGURATION);
    assert_eq!(refused.payload_bytes(), OTHER);
    standing_by.lost.recv_timeout(LIMIT).unwrap();
    assert!(controller.ends());
    engine.fail(None);
    assert!(
        Client::try_connect(&second, Role::CONTROLLER).is_none(),
        "it has lost its lease"
    );
}

#[test]
fn an_engine_that_refuses_is_an_error_at_the_start() {
    let engine = MemoryEngine::new();
    engine.fail(Some(EngineError::Credentials("wrong".to_owned())));
    let refused = join(&engine, SchedulerConfig::new()).unwrap_err();
    assert!(
        matches!(refused, JoinError::Engine(EngineError::Credentials(_))),
        "{refused}"
    );
}
