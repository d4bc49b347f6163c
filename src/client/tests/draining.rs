//! A server asks its clients to leave before it stops.

use super::*;
use crate::payload::{Draining, Payload};
use crate::proto::{Exchange, FrameKind, FrameType, Operands, Step};

fn draining(within_s: u64) -> Frame {
    Frame::of(&Draining { within_s })
}

#[test]
fn a_client_leaves_a_draining_server_in_order_and_loses_nothing() {
    let (client, mut old, server) = pair(|config| config);
    (0..100).for_each(|n| client.send(stats(n)).unwrap());
    old.send(&draining(0));
    for n in 0..100 {
        assert_eq!(number(&old.recv()), n);
    }
    old.expect_end();
    // Frames that the server still sends are received; frames that the client sends wait.
    client.try_send(stats(100)).unwrap();
    old.send(&stats(7));
    old.close();
    assert_eq!(
        number(&next_frame(&client)),
        7,
        "the application does not receive Draining"
    );
    assert_eq!(disconnected(&client), (SessionEnd::Draining, true));
    let mut new = server.session();
    connected(&client);
    assert_eq!(number(&new.recv()), 100);
    assert_eq!(client.counters().lost_frames, 0);
}

#[test]
fn a_client_stays_before_its_time_and_if_it_does_not_reconnect() {
    let garbage = Frame::with_payload(Draining::KIND, "draining: [");
    for (reconnect, frame) in [(true, draining(u64::MAX)), (true, garbage), (false, draining(0))] {
        let (client, mut peer, _server) = pair(|config| config.reconnect(reconnect));
        peer.send(&frame);
        peer.send(&stats(1));
        assert_eq!(number(&next_frame(&client)), 1);
        client.send(stats(2)).unwrap();
        assert_eq!(number(&peer.recv()), 2);
    }
}

#[test]
fn a_client_answers_open_requests_before_it_leaves() {
    const ASKED: FrameKind = FrameKind::new(FrameType::COMMAND, 0x81);
    let operands = Operands::default().request(ASKED, "Asked").unwrap();
    let (client, mut peer, _server) = pair(|config| config.operands(operands.clone()));
    peer.operands(&operands);
    let exchange = Exchange {
        step: Step::Request,
        id: 7,
        peer: Uuid::new_v4(),
    };
    peer.send(&exchange.frame(&Frame::with_payload(ASKED, "?")));
    peer.send(&draining(0));
    peer.send(&stats(1));
    let ClientEvent::Request(request) = next(&client) else {
        panic!("no request");
    };
    assert_eq!(number(&next_frame(&client)), 1);
    client.reply(&request, "!").unwrap();
    let copied = request.copied();
    assert!(
        copied.payload() == "?" && copied.payload().is_unique(),
        "the client keeps no other memory"
    );
    drop(copied);
    let answer = peer.recv();
    assert_eq!(Exchange::read(answer.payload_bytes()).unwrap().step, Step::Reply);
    peer.expect_end();
}
