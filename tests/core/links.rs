//! The link between two servers, frame by frame: its admission and its end.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ssntp::Role;
use ssntp::proto::{Command, Frame, FrameKind, FrameType};
use ssntp::server::{Federation, PeerState, ServerConfig};
use ssntp::transport::Target;
use ssntp::transport::memory::MemoryListener;
use ssntp_test_support::*;
use ssntp_transport::{BufferPool, Outgoing};
use uuid::Uuid;

use crate::federation::{LONG, Node};

/// A connection that offers the protocol of links.
fn link_stream(node: &Node, identity: &ssntp::pki::Identity) -> std::io::Result<ssntp_transport::Halves> {
    link_over(
        node.links.connect(Default::default(), Default::default())?,
        identity,
    )
}

fn link_over(
    stream: impl ssntp_transport::Duplex + 'static,
    identity: &ssntp::pki::Identity,
) -> std::io::Result<ssntp_transport::Halves> {
    let connector = trust().connector(identity).unwrap().protocol(b"ssntp-link/1");
    let deadline = Instant::now() + LONG;
    let secured = connector.connect(Arc::new(stream), "localhost", &BufferPool::new(), deadline);
    let secured = secured.map_err(std::io::Error::other)?;
    assert_eq!(secured.alpn.as_deref(), Some(&b"ssntp-link/1"[..]));
    Ok(secured.halves)
}

/// The link frames of the server until the end of the connection.
fn last_words(mut halves: ssntp_transport::Halves) -> Vec<u8> {
    let deadline = Instant::now() + LONG;
    while let Ok(received) = halves.receive_until(deadline) {
        if received.end {
            break;
        }
    }
    halves.inbox.bytes_mut().to_vec()
}

#[test]
fn only_a_server_gets_a_link() {
    let node = Node::start(&[]);
    for role in [Role::AGENT, Role::CONTROLLER] {
        let words = last_words(link_stream(&node, &identity(role)).unwrap());
        let text = String::from_utf8_lossy(&words).into_owned();
        assert!(text.contains("and a link needs server or scheduler"), "{text:?}");
    }
    let stranger = ssntp::pki::Authority::new(&Default::default()).unwrap();
    let stranger = stranger
        .issue(&ssntp::pki::CertificateRequest::new(Role::SERVER))
        .unwrap();
    // With TLS 1.3 a client may learn of a refusal only after its handshake.
    if let Ok(halves) = link_stream(&node, &stranger.identity()) {
        assert!(last_words(halves).is_empty());
    }
    assert!(node.server.handle().figures().unwrap().links.is_empty());
    // A server without peers accepts no links, and the dialler names that reason.
    let alone = TestServer::start((), |config| config);
    let dialler = node.server.server.as_ref().unwrap().dialler().unwrap();
    dialler.dial(Target::from(&alone.listener)).unwrap();
    let deadline = Instant::now() + LONG;
    while !matches!(&dialler.peers()[0].1, PeerState::Trying(why) if why.contains("a server without peers")) {
        assert!(Instant::now() < deadline, "{:?}", dialler.peers());
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_scheduler_links_with_schedulers_only() {
    let links = MemoryListener::new();
    let config = ServerConfig::new(identity(Role::SCHEDULER), trust());
    let config = config.listen_in_memory(&links).federate(Federation::new());
    let _server = ssntp::server::Server::start(config, ()).unwrap();
    for (role, refused) in [(Role::SERVER, true), (Role::SCHEDULER, false)] {
        let stream = links.connect(Default::default(), Default::default()).unwrap();
        let mut halves = link_over(stream, &identity(role)).unwrap();
        let hello = hello_as(role, 1, Uuid::from_u128(5), ssntp::proto::DEFAULT_MAX_PAYLOAD);
        // The frames after HELLO end the link.
        for frame in [hello, link_frame(200, &[])] {
            let _ = halves.transmit.transmit(&[Outgoing::whole(frame.into(), 1)]);
        }
        let text = String::from_utf8_lossy(&last_words(halves)).into_owned();
        let is_refused = text.contains("a scheduler links with schedulers only");
        assert_eq!(is_refused, refused, "{role}: {text:?}");
    }
}

#[test]
fn another_unbound_certificate_cannot_take_the_uuid_of_an_existing_link() {
    let node = Node::start(&[]);
    let uuid = Uuid::from_u128(5);
    let begin = |identity: &ssntp::pki::Identity, incarnation: u64| {
        let mut halves = link_stream(&node, identity).unwrap();
        let mut hello = hello(1, uuid, ssntp::proto::DEFAULT_MAX_PAYLOAD);
        hello[26..34].copy_from_slice(&incarnation.to_be_bytes());
        halves
            .transmit
            .transmit(&[Outgoing::whole(hello.into(), 1)])
            .unwrap();
        halves
    };
    let own = identity(Role::SERVER);
    let first = begin(&own, 1);
    node.await_link_of(uuid);
    let other = last_words(begin(&identity(Role::SERVER), 2));
    let text = String::from_utf8_lossy(&other).into_owned();
    assert!(
        text.contains("another certificate has a link with that UUID"),
        "{text:?}"
    );
    // The same certificate may connect again, as a restarted server does.
    let _again = begin(&own, 3);
    let text = String::from_utf8_lossy(&last_words(first)).into_owned();
    assert!(text.contains("a newer link takes its place"), "{text:?}");
}

/// HELLO, encoded as docs/links.md describes.
fn hello(version: u16, uuid: Uuid, max_payload: u32) -> Vec<u8> {
    hello_as(Role::SERVER, version, uuid, max_payload)
}

fn hello_as(role: Role, version: u16, uuid: Uuid, max_payload: u32) -> Vec<u8> {
    let mut fields = version.to_be_bytes().to_vec();
    fields.extend(uuid.as_bytes());
    fields.extend(1u64.to_be_bytes());
    fields.extend(role.bits().to_be_bytes());
    fields.extend(0u64.to_be_bytes());
    fields.extend(max_payload.to_be_bytes());
    fields.extend([0, 0]);
    link_frame(0, &fields)
}

fn link_frame(operand: u8, fields: &[u8]) -> Vec<u8> {
    let mut frame = vec![0, 1, 0x4c, operand];
    frame.extend((fields.len() as u32).to_be_bytes());
    frame.extend(fields);
    frame
}

#[test]
fn sessions_of_a_wrong_snapshot_are_never_reported() {
    let node = Node::start(&[]);
    let row = [&[9; 16][..], &[0; 24], &Role::AGENT.bits().to_be_bytes(), &[0; 3]].concat();
    let snapshot = [&[0, 0, 0, 0, 0, 0, 0, 3, 1][..], &row, &row].concat();
    let mut halves = link_stream(&node, &identity(Role::SERVER)).unwrap();
    let hello = hello(1, Uuid::from_u128(5), ssntp::proto::DEFAULT_MAX_PAYLOAD);
    for frame in [hello, link_frame(1, &snapshot)] {
        let _ = halves.transmit.transmit(&[Outgoing::whole(frame.into(), 1)]);
    }
    let text = String::from_utf8_lossy(&last_words(halves)).into_owned();
    assert!(
        text.contains("SNAPSHOT: the value of its rows is not valid"),
        "{text:?}"
    );
    // The END comes after the calls of the application.
    assert_eq!(node.news(), []);
}

#[test]
fn a_malformed_frame_ends_the_link_with_a_reason() {
    let node = Node::start(&[]);
    let server = identity(Role::SERVER);
    let good = hello(1, Uuid::from_u128(5), ssntp::proto::DEFAULT_MAX_PAYLOAD);
    let snapshot = link_frame(1, &[0, 0, 0, 0, 0, 0, 0, 3, 1]);
    let removed = link_frame(3, &[&5u64.to_be_bytes()[..], &[0; 24]].concat());
    let forward = [&[0; 33][..], &[1, 0, 0, 0, 1], &[0, 1, 0, 1, 0, 0, 0, 9]].concat();
    let longer = |version| {
        let hello = hello(version, Uuid::from_u128(5), ssntp::proto::DEFAULT_MAX_PAYLOAD);
        link_frame(0, &[&hello[8..], &[0; 4]].concat())
    };
    let cases: [(&str, Vec<Vec<u8>>); 11] = [
        // A field of a later version.
        ("version 2 of links, this server has 1", vec![longer(2)]),
        ("HELLO has 4 bytes too many", vec![longer(1)]),
        ("the first frame is", vec![vec![0xff; 40]]),
        (
            "version 2 of links, this server has 1",
            vec![hello(2, Uuid::from_u128(5), 1)],
        ),
        (
            "its longest payload is 1 bytes",
            vec![hello(1, Uuid::from_u128(5), 1)],
        ),
        ("unexpected HELLO", vec![good.clone(), good.clone()]),
        (
            "change 5 of the peer's sessions came after change 3",
            vec![good.clone(), snapshot.clone(), removed],
        ),
        (
            "0x4c/0xc8 does not belong on a link",
            vec![good.clone(), link_frame(200, &[])],
        ),
        (
            "STATS does not belong on a link",
            vec![good.clone(), Frame::new(Command::STATS).encode().to_vec()],
        ),
        (
            "FORWARD: the value of its frames is not valid",
            vec![good.clone(), snapshot, link_frame(4, &forward)],
        ),
        ("HOLD is too short", vec![good, link_frame(5, &[1])]),
    ];
    for (reason, frames) in cases {
        let mut halves = link_stream(&node, &server).unwrap();
        for frame in frames {
            // The server may have ended it already.
            let _ = halves.transmit.transmit(&[Outgoing::whole(frame.into(), 1)]);
        }
        let words = last_words(halves);
        let text = String::from_utf8_lossy(&words).into_owned();
        assert!(text.contains(reason), "{reason}: {text:?}");
    }
    let unknown = FrameKind::new(FrameType(0x4c), 200);
    assert_eq!(unknown.to_string(), "0x4c/0xc8");
}
