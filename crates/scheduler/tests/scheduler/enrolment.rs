//! Tokens, joins, renewals and revoked certificates, over the sessions of an operator and a node.

use std::sync::mpsc;
use std::thread;
use std::time::{Duration, SystemTime};

use ssntp::Role;
use ssntp::client::{Client, Join};
use ssntp::payload::Payload;
use ssntp::pki::{Fault, Identity, JoinToken, StoredToken};
use ssntp::proto::Frame;
use ssntp::server::{Enrolment, ServerConfig, ServerError};
use ssntp::testkit::Testkit;
use ssntp::transport::Address;
use ssntp_payload::{EnrolmentAction, EnrolmentList, EnrolmentRefusal, ManageEnrolment, TokenEntry};
use ssntp_scheduler::{Enrolments, Scheduler, SchedulerConfig};
use ssntp_test_support::LIMIT;
use ssntp_test_support::wait::wait_for;

fn ask(operator: &Client, question: &ManageEnrolment) -> EnrolmentList {
    operator.send(Frame::of(question)).unwrap();
    loop {
        let frame = operator.recv_frame_timeout(LIMIT).unwrap();
        if frame.kind() == EnrolmentList::KIND {
            return frame.payload().unwrap();
        }
    }
}

fn of_node(operator: &Client, action: EnrolmentAction, uuid: &str) -> EnrolmentList {
    let asked = ManageEnrolment {
        id: "q".into(),
        action,
        uuid: uuid.into(),
        ..ManageEnrolment::default()
    };
    ask(operator, &asked)
}

#[test]
fn an_operator_adds_a_token_with_which_a_node_joins_renews_and_is_revoked() {
    let kit = Testkit::new().unwrap();
    let (authority, records) = (kit.authority(), Enrolments::default());
    let issuer = authority.issuer("one", Role::AGENT, 10).unwrap();
    // Certificates begin ten minutes early, so the renewal of such a short life is due at once.
    let enrolment = Enrolment::new(issuer, records.clone()).lifetime(Duration::from_secs(60));
    let server = ServerConfig::new(kit.identity(Role::SCHEDULER).unwrap(), kit.trust());
    let server = server.listen_in_memory(kit.network()).enrol(enrolment);
    let config = SchedulerConfig::new().enrolments(records.clone());
    let _scheduler = Scheduler::new(config).unwrap().start(server).unwrap();
    let operator = Client::connect(kit.client_config(Role::CONTROLLER).unwrap()).unwrap();

    let token = JoinToken::new(Address::tcp("localhost", 1), authority.info()).unwrap();
    let ends = SystemTime::now() + Duration::from_secs(3600);
    let stored = StoredToken::new(&token, Role::AGENT, None, 1, ends, "");
    let entry = TokenEntry {
        id: stored.id,
        secret_sha256: stored.secret_sha256,
        roles: "agent".to_owned(),
        uses_left: 1,
        ends: stored.ends,
        ..TokenEntry::default()
    };
    let manage = |action, token: &TokenEntry| {
        let asked = ManageEnrolment {
            id: "q".into(),
            action,
            token: token.clone(),
            ..ManageEnrolment::default()
        };
        ask(&operator, &asked)
    };
    let added = manage(EnrolmentAction::AddToken, &entry);
    assert_eq!(
        (added.reason, added.tokens.len()),
        (EnrolmentRefusal::NotRefused, 1)
    );
    let again = manage(EnrolmentAction::AddToken, &entry);
    assert_eq!(again.reason, EnrolmentRefusal::InvalidData);
    let unknown = TokenEntry {
        id: "other".to_owned(),
        ..TokenEntry::default()
    };
    let removed = manage(EnrolmentAction::RemoveToken, &unknown);
    assert_eq!(removed.reason, EnrolmentRefusal::NotFound);
    for (field, wrong) in [
        (
            "roles",
            TokenEntry {
                roles: "king".to_owned(),
                ..entry.clone()
            },
        ),
        // A token's role that this issuer may not give.
        (
            "issuer gives the roles agent, and not netagent",
            TokenEntry {
                roles: "netagent".to_owned(),
                ..entry.clone()
            },
        ),
        (
            "secret_sha256",
            TokenEntry {
                secret_sha256: "A".to_owned(),
                ..entry.clone()
            },
        ),
        (
            "id",
            TokenEntry {
                id: "a b".to_owned(),
                ..entry.clone()
            },
        ),
        (
            "ended",
            TokenEntry {
                ends: 7,
                ..entry.clone()
            },
        ),
    ] {
        let refused = manage(EnrolmentAction::AddToken, &wrong);
        assert_eq!(refused.reason, EnrolmentRefusal::InvalidData, "{field}");
        assert!(refused.detail.contains(field), "{field}: {}", refused.detail);
    }

    let directory = tempfile::tempdir().unwrap();
    let join = Join::new(token, directory.path()).connect_in_memory(kit.network());
    let files = join.run().unwrap();
    let first = Identity::load(files.certificate()).unwrap();
    let node = Client::connect(files.client_config().unwrap().connect_in_memory(kit.network())).unwrap();
    let uuid = first.uuid().unwrap().to_string();
    let both = wait_for(
        || match of_node(&operator, EnrolmentAction::ListCertificates, "").certificates {
            entries if entries.len() < 2 => Err(entries),
            entries => Ok(entries),
        },
    );
    assert!(
        both.iter()
            .all(|one| !one.is_revoked && one.uuid == uuid.as_str())
    );
    let renewed = wait_for(|| match Identity::load(files.certificate()).unwrap() {
        same if same.info().serial == first.info().serial => Err(first.info().serial.clone()),
        renewed => Ok(renewed),
    });
    assert_eq!(renewed.uuid(), first.uuid());

    let revoked = of_node(&operator, EnrolmentAction::Revoke, &uuid);
    assert_eq!(revoked.reason, EnrolmentRefusal::NotRefused);
    assert!(revoked.certificates.len() >= 2 && revoked.certificates.iter().all(|one| one.is_revoked));
    // Who runs the scheduler gives its server this trust.
    records.changes().recv_timeout(LIMIT).unwrap();
    let refused = records.apply(&kit.trust()).verify(first.chain());
    assert!(matches!(refused, Err(Fault::Revoked { .. })), "{refused:?}");
    assert!(kit.trust().verify(first.chain()).is_ok());
    let nobody = of_node(
        &operator,
        EnrolmentAction::Revoke,
        "0f7a5a1e-3c55-4a0b-9d3c-6f1f2f9a1001",
    );
    assert_eq!(nobody.reason, EnrolmentRefusal::NotFound);
    drop(node);
}

#[test]
fn without_an_issuer_the_commands_are_refused_with_the_reason() {
    let kit = Testkit::new().unwrap();
    let server = ServerConfig::new(kit.identity(Role::SCHEDULER).unwrap(), kit.trust());
    let scheduler = Scheduler::new(SchedulerConfig::new()).unwrap();
    let _scheduler = scheduler.start(server.listen_in_memory(kit.network())).unwrap();
    let operator = Client::connect(kit.client_config(Role::CONTROLLER).unwrap()).unwrap();
    let listed = of_node(&operator, EnrolmentAction::ListCertificates, "");
    assert_eq!(
        (listed.reason, listed.id.as_str()),
        (EnrolmentRefusal::NoIssuer, "q")
    );
}

#[test]
fn a_scheduler_whose_server_cannot_start_says_so_and_its_threads_have_ended() {
    let kit = Testkit::new().unwrap();
    let server = ServerConfig::new(kit.identity(Role::SCHEDULER).unwrap(), kit.trust());
    let config = SchedulerConfig::new().enrolments(Enrolments::default());
    let scheduler = Scheduler::new(config).unwrap();
    let (sender, started) = mpsc::channel();
    thread::spawn(move || sender.send(scheduler.start(server).map(drop)));
    let started = started.recv_timeout(LIMIT).unwrap();
    assert!(matches!(started, Err(ServerError::NoAddress)), "{started:?}");
}
