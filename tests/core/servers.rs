//! Operators that list linked servers and drain them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use ssntp::payload::{
    DrainServer, Draining, InvalidFrameType, ListServers, OperatorRefusal, Payload, ServerEntry, ServerState,
    Servers,
};
use ssntp::proto::{Event, Frame};
use ssntp::server::{ClusterHandler, Context, Handler, ServerConfig};
use ssntp::testkit::{HandlerTest, Testkit};
use ssntp::transport::Address;
use ssntp::{Role, Uuid};
use ssntp_test_support::*;

use crate::federation::{News, Node};

fn operators(config: ServerConfig) -> ServerConfig {
    config.operators(Role::CONTROLLER)
}

fn ask<Q: Payload, A: Payload>(peer: &mut Peer, question: &Q) -> A {
    peer.send(&Frame::of(question));
    peer.frame().payload().unwrap()
}

fn list(peer: &mut Peer) -> Vec<ServerEntry> {
    let page: Servers = ask(
        peer,
        &ListServers {
            id: "l".into(),
            after: 0,
        },
    );
    assert_eq!((page.id.as_str(), page.next), ("l", 0));
    page.entries
}

fn drain(uuid: Uuid) -> DrainServer {
    DrainServer {
        id: "d".into(),
        uuid: uuid.into(),
        within_s: 0,
    }
}

#[test]
fn a_list_has_this_server_its_links_and_the_peers_that_do_not_answer() {
    let one = Node::start(&[]);
    let two = Node::start_with(&[&one], operators);
    let agent = one.connect(Role::AGENT, &[&two]);
    let nobody = port::HeldPort::new();
    let dialler = two.server.server.as_ref().unwrap().dialler().unwrap();
    dialler
        .dial(nobody.address().parse::<Address>().unwrap())
        .unwrap();
    let mut operator = two.connect(Role::CONTROLLER, &[]);
    let mut found: Vec<_> = list(&mut operator)
        .iter()
        .map(|entry| (entry.state.clone(), entry.uuid.uuid(), entry.sessions))
        .collect();
    found.sort_by_key(|(state, ..)| state.to_string());
    assert_eq!(
        found,
        [
            (ServerState::Away, None, 0),
            (ServerState::Linked, Some(one.uuid()), 1),
            (ServerState::Own, Some(two.uuid()), 1),
        ]
    );
    drop(agent);
}

#[test]
fn the_operator_s_own_server_has_the_certificate_of_who_drains_another_one_in_its_audit_log() {
    audited();
    let one = Node::start_with(&[], operators);
    let two = Node::start_with(&[&one], operators);
    let mut operator = two.connect(Role::CONTROLLER, &[&one]);
    let drained: Servers = ask(&mut operator, &drain(one.uuid()));
    assert_eq!(drained.reason.as_str(), "");
    let lines = audited();
    let passed = format!("drain of server {} within 0 s passed on: by ", one.uuid());
    let line = lines.iter().find(|line| line.starts_with(&passed));
    assert!(line.is_some_and(|line| line.contains("serial")), "{lines:?}");
}

#[test]
fn the_named_server_is_drained_also_from_another_one() {
    let one = Node::start_with(&[], operators);
    let two = Node::start_with(&[&one], operators);
    let three = Node::start_with(&[&one, &two], operators);
    let mut agent = one.connect(Role::AGENT, &[&two, &three]);
    let mut operator = two.connect(Role::CONTROLLER, &[&one, &three]);
    let answer: Servers = ask(&mut operator, &drain(one.uuid()));
    assert_eq!((answer.id.as_str(), answer.reason.as_str()), ("d", ""));
    assert_eq!(answer.entries[0].uuid.uuid(), Some(one.uuid()));
    assert_eq!(answer.entries[0].state, ServerState::Draining);
    let frame = agent.frame();
    assert_eq!(frame.kind(), Event::DRAINING);
    assert_eq!(frame.payload::<Draining>().unwrap().within_s, 0);
    // It stops once its last client has left.
    drop(agent);
    two.await_news(&News::Unlinked(one.uuid()));
    three.await_news(&News::Unlinked(one.uuid()));
    let unknown: Servers = ask(&mut operator, &drain(one.uuid()));
    assert_eq!(unknown.reason, OperatorRefusal::NotConnected);
    assert!(
        unknown.detail.contains("there is no link to a server"),
        "{unknown:?}"
    );
    let own: Servers = ask(&mut operator, &drain(two.uuid()));
    assert_eq!(own.reason.as_str(), "");
    assert_eq!(operator.frame().kind(), Event::DRAINING);
    // The third one did not drain.
    let mut late = three.connect(Role::CONTROLLER, &[]);
    let found = list(&mut late);
    assert!(
        found.iter().any(|entry| entry.state == ServerState::Own),
        "{found:?}"
    );
}

#[test]
fn a_session_that_is_no_operator_at_both_servers_drains_none() {
    let one = Node::start(&[]);
    let two = Node::start_with(&[&one], operators);
    let mut agent = two.connect(Role::AGENT, &[&one]);
    let refused: InvalidFrameType = ask(&mut agent, &drain(one.uuid()));
    assert_eq!(refused.reason.as_str(), "role_not_allowed");
    // The first server accepts no operators.
    let mut operator = two.connect(Role::CONTROLLER, &[&one]);
    let refused: Servers = ask(&mut operator, &drain(one.uuid()));
    assert_eq!(
        (refused.id.as_str(), refused.reason),
        ("d", OperatorRefusal::NotAllowed)
    );
    let entries = list(&mut operator);
    assert!(
        entries.iter().any(|entry| entry.state == ServerState::Linked),
        "{entries:?}"
    );
}

/// Counts the calls of `Handler::draining`.
struct Told(Arc<AtomicUsize>);

impl Handler for Told {
    fn draining(&mut self, _: &mut Context<'_>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn cluster(&mut self) -> Option<&mut dyn ClusterHandler> {
        Some(self)
    }
}

impl ClusterHandler for Told {
    fn servers(&mut self, _: &mut Context<'_>, servers: &mut Servers) {
        let more = (0..130).map(|_| ServerEntry {
            uuid: Uuid::new_v4().into(),
            ..ServerEntry::default()
        });
        servers.entries.extend(more);
    }
}

#[test]
fn many_servers_are_listed_in_pages_and_a_drain_is_one_event_of_the_application() {
    let kit = Testkit::new().unwrap();
    let drains = Arc::new(AtomicUsize::new(0));
    let config = operators(kit.server_config().unwrap());
    let mut test = HandlerTest::new(config, Told(Arc::clone(&drains))).unwrap();
    let operator = test
        .connect(&kit.identity(Role::CONTROLLER).unwrap())
        .unwrap()
        .uuid();
    let (mut after, mut pages) = (0, Vec::new());
    loop {
        let id = "l".into();
        test.receive(operator, &Frame::of(&ListServers { id, after }));
        let page: Servers = test.sent_to(operator)[0].payload().unwrap();
        pages.push(page.entries.len());
        after = page.next;
        if after == 0 {
            break;
        }
    }
    assert_eq!(pages, [64, 64, 3]);
    let long = DrainServer {
        within_s: 86_401,
        ..drain(Uuid::nil())
    };
    test.receive(operator, &Frame::of(&long));
    let refused: Servers = test.sent_to(operator)[0].payload().unwrap();
    assert_eq!(refused.reason, OperatorRefusal::InvalidData);
    assert_eq!(drains.load(Ordering::Relaxed), 0);
    test.with(|cx| cx.drain(Duration::from_secs(5)));
    assert_eq!(drains.load(Ordering::Relaxed), 1);
}
