//! The frames that a client receives, and their order.

use std::collections::HashSet;

use super::*;
use crate::RequestError;
use crate::payload::yaml::MAX_DEPTH;
use crate::proto::{ErrorCode, Event, FrameKind, FrameType, Header, Item, Operands, Status, Trace};
use ssntp_transport::Limits;

#[test]
fn frames_glued_to_connected_are_all_delivered() {
    let (server, listener) = TestServer::memory();
    let client = Client::start(agent().connect_in_memory(&listener)).unwrap();
    let mut peer = server.connect();
    let mut bytes = peer.connected(crate::Role::SERVER, b"a: 1\n");
    for n in 0..100 {
        bytes.extend(stats(n).encode());
        bytes.extend(Frame::new(Status::FULL).encode());
    }
    peer.send_raw(bytes);
    connected(&client);
    for n in 0..100 {
        assert_eq!(number(&next_frame(&client)), n);
        assert_eq!(next_frame(&client).kind(), Status::FULL);
    }
    assert_eq!(client.counters().received_frames, 200);
}

#[test]
fn all_functions_that_receive_give_the_same_stream() {
    let (client, mut peer, _server) = pair(|config| config);
    assert!(matches!(client.try_recv(), Err(RecvError::Empty)));
    assert!(matches!(
        client.recv_timeout(Duration::from_millis(1)),
        Err(RecvError::Empty)
    ));
    assert!(matches!(
        client.recv_frame_timeout(Duration::from_millis(1)),
        Err(RecvError::Empty)
    ));
    for n in 0..7 {
        peer.send(&stats(n));
    }
    let mut got = vec![
        number(&client.recv().unwrap().into_frame().unwrap()),
        number(&client.recv_frame().unwrap()),
        number(&client.recv_frame_timeout(LIMIT).unwrap()),
        number(&client.frames().next().unwrap()),
        number(&client.iter().next().unwrap().into_frame().unwrap()),
        number(&(&client).into_iter().next().unwrap().into_frame().unwrap()),
    ];
    crossbeam_channel::select! {
        recv(client.events()) -> event => got.push(number(&event.unwrap().into_frame().unwrap())),
        default(LIMIT) => panic!("nothing"),
    }
    assert_eq!(got, [0, 1, 2, 3, 4, 5, 6]);
    peer.send(&stats(7));
    peer.send_kind(ErrorCode::CONNECTION_ABORTED);
    let frames: Vec<_> = client.frames().map(|frame| number(&frame)).collect();
    assert_eq!(frames, [7]);
    assert!(matches!(client.recv(), Err(ClientError::Aborted { .. })));
    assert!(matches!(client.recv_frame(), Err(ClientError::Aborted { .. })));
    assert!(matches!(client.try_recv(), Err(RecvError::Ended(_))));
    assert!(matches!(client.recv_timeout(LIMIT), Err(RecvError::Ended(_))));
    assert!(matches!(
        client.recv_frame_timeout(LIMIT),
        Err(RecvError::Ended(_))
    ));
}

#[test]
fn the_latest_configuration_is_kept() {
    let (server, listener) = TestServer::memory();
    let client = Client::start(agent().connect_in_memory(&listener)).unwrap();
    assert_eq!(client.configuration(), None);
    let mut peer = server.session_with(b"v: 1\n");
    connected(&client);
    assert_eq!(client.configuration().unwrap()[..], *b"v: 1\n");
    for v in ["v: 2\n", "v: 3\n"] {
        peer.send(&Frame::with_payload(Command::CONFIGURE, v));
    }
    for v in ["v: 2\n", "v: 3\n"] {
        assert_eq!(next_frame(&client).payload_bytes()[..], *v.as_bytes());
    }
    assert_eq!(client.configuration().unwrap()[..], *b"v: 3\n");
    peer.cut();
    disconnected(&client);
    assert_eq!(
        client.configuration().unwrap()[..],
        *b"v: 3\n",
        "the configuration is kept without a session"
    );
    let _peer = server.session_with(b"v: 4\n");
    connected(&client);
    assert_eq!(client.configuration().unwrap()[..], *b"v: 4\n");
}

#[test]
fn unsupported_frames_are_answered_and_the_session_stays() {
    let (client, mut peer, _server) = pair(|config| config);
    for kind in [
        FrameKind::new(FrameType(9), 1),
        FrameKind::new(FrameType::EVENT, 0x77),
    ] {
        let mut bytes = Header::new(kind, 3).encode().to_vec();
        bytes.extend(b"abc");
        peer.send_raw(bytes);
        let answer = peer.recv();
        assert_eq!(answer.kind(), ErrorCode::INVALID_FRAME_TYPE);
        let text = String::from_utf8(answer.payload_bytes().to_vec()).unwrap();
        assert!(text.contains(&format!("type: {}\n", kind.frame_type.0)), "{text}");
    }
    peer.send_kind(FrameKind::new(FrameType::ERROR, 0x77));
    peer.send(&stats(1));
    assert_eq!(number(&next_frame(&client)), 1);
    client.send(stats(2)).unwrap();
    assert_eq!(number(&peer.recv()), 2, "an ERROR has no answer");
    let counters = client.counters();
    assert_eq!((counters.unsupported, counters.received_frames), (3, 4));
}

#[test]
fn a_server_that_breaks_the_protocol_loses_the_session() {
    let (client, mut peer, server) = pair(|config| config.max_payload(1000));
    peer.send(&stats(1));
    peer.send_raw(Header::new(Command::STATS.into(), 1001).encode().to_vec());
    assert_eq!(number(&next_frame(&client)), 1);
    let (reason, retrying) = disconnected(&client);
    assert!(
        matches!(&reason, SessionEnd::Protocol(why) if why.contains("1001")),
        "{reason}"
    );
    assert!(retrying);
    let _peer = server.session();
    connected(&client);
}

#[test]
fn a_slow_application_holds_the_server_back_and_gets_everything() {
    const FRAMES: u32 = 400;
    let limits = Limits {
        frames: 1000,
        bytes: 1 << 20,
    };
    let server = TestServer::tcp();
    let client = Client::start(agent().address(server.address()).inbound(limits)).unwrap();
    let mut peer = server.session();
    connected(&client);
    let frame = |n: u32| {
        let mut payload = vec![0; 100_000];
        payload[..4].copy_from_slice(&n.to_be_bytes());
        Frame::with_payload(Command::STATS, payload)
    };
    let (stuck, is_stuck) = crossbeam_channel::bounded(1);
    let sender = threads::spawn("t", move || {
        peer.halves
            .stream
            .set_write_timeout(Some(Duration::from_millis(300)))
            .unwrap();
        let mut n = 0;
        while n < FRAMES && peer.try_send(&frame(n)) {
            n += 1;
        }
        // A frame that was cut off cannot be continued in the next session.
        stuck.send(n).unwrap();
        n
    });
    let sent = is_stuck.recv_timeout(LIMIT).unwrap();
    assert!(sent < FRAMES, "the client did not hold the server back");
    let waiting = client.events().len();
    assert!(waiting <= 11, "{waiting} frames of 100 kB wait in 1 MiB");
    let mut received = 0;
    for event in client.iter() {
        match event {
            ClientEvent::Frame(frame) => {
                assert_eq!(frame.payload_bytes()[..4], u32::to_be_bytes(received));
                received += 1;
            }
            _ => break,
        }
    }
    assert!(received >= sent, "{received} of {sent}");
    sender.unwrap().join().unwrap();
}

#[test]
fn frames_of_16_mib_pass_both_ways_at_once() {
    let server = TestServer::tcp();
    let client = Client::start(agent().address(server.address())).unwrap();
    let mut peer = server.session();
    connected(&client);
    let payload: Vec<u8> = (0..16u32 << 20).map(|i| (i >> 8) as u8 ^ i as u8).collect();
    let frame = Frame::with_payload(Command::START, payload);
    client.send(frame.clone()).unwrap();
    peer.send(&frame);
    assert_eq!(next_frame(&client), frame);
    assert_eq!(peer.recv(), frame);
    let counters = client.counters();
    assert_eq!(
        (counters.received_bytes, counters.sent_frames),
        (8 + (16 << 20), 1)
    );
}

#[test]
fn traces_are_stamped_if_the_session_agreed_on_them() {
    let (client, mut peer, _server) = pair(|config| config.tracing(true));
    assert!(peer.hello().trace && client.server().unwrap().tracing);
    client.send(stats(1).traced(Trace::new("up"))).unwrap();
    let frame = peer.recv();
    let trace = frame.trace().unwrap();
    assert_eq!((trace.label(), trace.nodes().len()), ("up".into(), 1));
    assert_eq!(trace.nodes()[0].uuid, client.uuid());
    assert!(trace.nodes()[0].sent_at > 0 && trace.nodes()[0].received_at == 0);
    peer.send(&frame);
    let frame = next_frame(&client);
    let nodes = frame.trace().unwrap().nodes();
    assert_eq!(
        (nodes.len(), nodes[1].uuid, nodes[1].sent_at),
        (2, client.uuid(), 0)
    );
    assert!(nodes[1].received_at >= nodes[0].sent_at);
    client.send(stats(2)).unwrap();
    assert_eq!(peer.recv().trace(), None);

    let mut broken = Header::new(Event::TENANT_ADDED.into(), 1);
    broken.major |= crate::proto::Header::TRACE_FLAG;
    let mut bytes = broken.encode().to_vec();
    bytes.extend(b"\0\0\0\x02\x09\x09x");
    peer.send_raw(bytes);
    assert_eq!(next_frame(&client).payload_bytes()[..], *b"x");
    assert_eq!(client.counters().bad_traces, 1);
}

#[test]
fn traces_are_left_out_if_the_session_did_not_agree() {
    let (client, mut peer, _server) = pair(|config| config);
    assert!(!peer.hello().trace);
    client.send(stats(1).traced(Trace::new("up"))).unwrap();
    let frame = peer.recv();
    assert_eq!((number(&frame), frame.trace()), (1, None));
}

#[test]
fn a_refusal_of_a_request_ends_its_wait_with_and_without_a_trace() {
    const SCALE: FrameKind = FrameKind::new(FrameType::COMMAND, 200);
    let operands = Operands::new().request(SCALE, "SCALE").unwrap();
    let (client, mut peer, _server) = pair(|config| config.tracing(true).operands(operands.clone()));
    peer.operands(&operands);
    for is_traced in [false, true] {
        let handle = client.handle();
        let ask = move || handle.request(Frame::new(SCALE), LIMIT);
        let asks = threads::spawn("asks", ask).unwrap();
        let refused = Item::Unsupported(peer.recv().kind()).answer().unwrap();
        peer.send(&if is_traced {
            refused.traced(Trace::new("refused"))
        } else {
            refused
        });
        let error = asks.join().unwrap().unwrap_err();
        assert!(
            matches!(&error, RequestError::Refused(why) if why == "unsupported"),
            "{error}"
        );
    }
}

#[test]
fn each_event_goes_to_one_of_several_receivers() {
    let (client, mut peer, _server) = pair(|config| config);
    let client = Arc::new(client);
    let mut receivers = Vec::new();
    for _ in 0..3 {
        let client = Arc::clone(&client);
        let receive = move || client.frames().map(|f| number(&f)).collect::<Vec<_>>();
        receivers.push(threads::spawn("t", receive).unwrap());
    }
    for n in 0..300 {
        peer.send(&stats(n));
    }
    peer.send_kind(ErrorCode::CONNECTION_ABORTED);
    let mut all = HashSet::new();
    for receiver in receivers {
        let got = receiver.join().unwrap();
        assert!(got.is_sorted());
        all.extend(got);
    }
    assert_eq!(all.len(), 300);
}

#[test]
fn a_document_that_is_as_deep_as_the_limit_needs_no_more_stack_than_a_reader_has() {
    let (client, mut peer, _server) = pair(|config| config);
    for (open, close) in [("[", "]"), ("{a: ", "}"), ("- ", "")] {
        let levels = MAX_DEPTH - 1;
        let deep = format!("a:\n {}{}\n", open.repeat(levels), close.repeat(levels));
        // The reader's own thread reads these frames.
        peer.send(&Frame::with_payload(ErrorCode::INVALID_FRAME_TYPE, deep.clone()));
        assert_eq!(next_frame(&client).payload_bytes()[..], *deep.as_bytes());
    }
}
