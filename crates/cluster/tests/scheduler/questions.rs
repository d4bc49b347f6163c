//! What a controller asks the scheduler, beside its commands.

use std::time::Duration;

use ssntp::Role;
use ssntp::client::ClientConfig;
use ssntp::payload::{ListSessions, Sessions};
use ssntp_cluster::controller::{AskError, Controller, ControllerConfig};
use uuid::Uuid;

use super::{Cluster, client};

const LIMIT: Duration = Duration::from_secs(60);

fn controller(cluster: &Cluster, role: Role) -> Controller {
    let identity = client::identity(role);
    let client =
        ClientConfig::new(identity, ssntp_test_support::trust()).connect_in_memory(&cluster.listener);
    Controller::connect(ControllerConfig::new(client)).unwrap()
}

#[test]
fn a_question_gets_its_own_answer_and_does_not_outlive_its_session() {
    let cluster = Cluster::strict();
    let controller = controller(&cluster, Role::CONTROLLER);
    let question = |id| ListSessions {
        id,
        ..ListSessions::default()
    };
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let question = question(Uuid::new_v4().into());
                let answer: Sessions = controller
                    .ask(&question, |answer: &Sessions| answer.id == question.id, LIMIT)
                    .unwrap();
                assert_eq!(answer.total, 1);
            });
        }
    });
    // The answer of another question is none.
    let late = controller.ask(
        &question("a".into()),
        |_: &Sessions| false,
        Duration::from_millis(50),
    );
    assert!(matches!(late, Err(AskError::Late(_))), "{late:?}");
    let (seen, was_seen) = crossbeam_channel::bounded(1);
    let is_answer = |_: &Sessions| seen.send(()).is_err();
    std::thread::scope(|scope| {
        let asked = scope.spawn(|| controller.ask(&question("b".into()), is_answer, LIMIT));
        was_seen.recv_timeout(LIMIT).unwrap();
        controller.close();
        assert!(matches!(asked.join().unwrap(), Err(AskError::Lost)));
    });
    cluster.stop();
}

#[test]
fn a_question_that_the_scheduler_does_not_take_is_refused() {
    let cluster = Cluster::strict();
    let controller = controller(&cluster, Role::CNCIAGENT);
    let question = ListSessions {
        id: "a".into(),
        ..ListSessions::default()
    };
    let refused = controller.ask(&question, |_: &Sessions| true, LIMIT);
    assert!(matches!(refused, Err(AskError::Refused(_))), "{refused:?}");
    controller.close();
    cluster.stop();
}
