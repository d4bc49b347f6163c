//! The frames that a client sends, their order, and the frames that wait or are refused.

use super::*;
use crate::payload::{Draining, Kick};
use crate::proto::{Event, FrameKind, FrameType, Status, Trace};
use ssntp_transport::Limits;

fn queue(frames: u64) -> Limits {
    Limits {
        frames,
        bytes: 1 << 20,
    }
}

#[test]
fn frames_of_many_threads_arrive_each_thread_in_order() {
    const THREADS: u32 = 8;
    const EACH: u32 = 500;
    let (client, mut peer, _server) = pair(|config| config.queue(queue(64)));
    let mut threads = Vec::new();
    for t in 0..THREADS {
        let handle = client.handle();
        let send = move || (0..EACH).for_each(|n| handle.send(stats(t << 16 | n)).unwrap());
        threads.push(threads::spawn("t", send).unwrap());
    }
    let mut next = [0; THREADS as usize];
    for _ in 0..THREADS * EACH {
        let number = number(&peer.recv());
        let expected = &mut next[(number >> 16) as usize];
        assert_eq!(number & 0xffff, *expected);
        *expected += 1;
    }
    threads.into_iter().for_each(|t| t.join().unwrap());
    assert!(client.flush(LIMIT));
    assert_eq!(client.counters().sent_frames, u64::from(THREADS * EACH));
}

#[test]
fn a_payload_is_sent_as_the_frame_it_belongs_to() {
    let (client, mut peer, _server) = pair(|config| config.max_payload(100));
    let kick = Kick {
        id: "one".into(),
        uuid: "agent".into(),
        ban_s: 0,
    };
    client.send_payload(&kick).unwrap();
    let long = Kick {
        id: "x".repeat(100).into(),
        ..kick.clone()
    };
    let error = client.send_payload(&long).unwrap_err();
    assert!(
        matches!(error.fault(), SendFault::TooLong { limit: 100, .. }),
        "{error}"
    );
    assert_eq!(error.into_frame().kind(), Command::KICK);
    client.handle().send_payload(&Draining { within_s: 1 }).unwrap();
    let frame = peer.recv();
    assert_eq!(frame.kind(), Command::KICK);
    assert_eq!(frame.payload::<Kick>().unwrap(), kick);
    assert_eq!(peer.recv().kind(), Event::DRAINING);
}

#[test]
fn a_frame_that_cannot_be_sent_is_returned_with_the_error() {
    let (client, _peer, _server) = pair(|config| config.max_payload(10));
    for kind in [
        Command::CONNECT.into(),
        Status::CONNECTED.into(),
        FrameKind::new(FrameType::COMMAND, 0x77),
        FrameKind::new(FrameType(2), 0),
    ] {
        let error = client.send(Frame::new(kind)).unwrap_err();
        assert!(
            matches!(error.fault(), SendFault::Kind(k) if *k == kind),
            "{error}"
        );
        assert_eq!(error.into_frame().kind(), kind);
    }
    client
        .send(Frame::with_payload(Command::STATS, vec![0; 10]))
        .unwrap();
    let error = client
        .send(Frame::with_payload(Command::STATS, vec![0; 11]))
        .unwrap_err();
    assert!(
        matches!(error.fault(), SendFault::TooLong { len: 11, limit: 10 }),
        "{error}"
    );
}

#[test]
fn without_a_session_sends_fail_at_once() {
    let (client, peer, server) = pair(|config| config);
    peer.cut();
    disconnected(&client);
    let error = at_once(|| client.send(stats(1)).unwrap_err());
    assert!(matches!(error.fault(), SendFault::NotConnected), "{error}");
    assert!(!client.is_connected() && client.server().is_none());
    let mut peer = server.session();
    connected(&client);
    client.send(stats(2)).unwrap();
    assert_eq!(number(&peer.recv()), 2);
}

#[test]
fn frames_queued_offline_are_sent_first_and_in_order() {
    let (server, listener) = TestServer::memory();
    let config = agent()
        .offline(Offline::Queue(queue(1000)))
        .queue(queue(10))
        .tracing(true);
    let client = Client::start(config.connect_in_memory(&listener)).unwrap();
    for round in 0..3 {
        for n in 0..100 {
            client.send(stats(n).traced(Trace::new("offline"))).unwrap();
        }
        assert!(!client.flush(Duration::from_millis(1)));
        let mut peer = server.session();
        connected(&client);
        client.send(stats(100)).unwrap();
        for n in 0..=100 {
            let frame = peer.recv();
            assert_eq!(number(&frame), n, "round {round}");
            assert_eq!(frame.trace().map(|t| t.nodes().len()), (n < 100).then_some(1));
        }
        assert!(client.flush(LIMIT));
        peer.cut();
        disconnected(&client);
    }
    assert_eq!(client.counters().sent_frames, 303);
    assert_eq!(client.counters().lost_frames, 0);
}

#[test]
fn the_offline_queue_is_bounded_and_senders_wait_for_room() {
    let (server, listener) = TestServer::memory();
    let config = agent()
        .offline(Offline::Queue(queue(3)))
        .connect_in_memory(&listener);
    let client = Client::start(config).unwrap();
    (0..3).for_each(|n| client.try_send(stats(n)).unwrap());
    let error = client.try_send(stats(3)).unwrap_err();
    assert!(matches!(error.fault(), SendFault::Full), "{error}");
    let error = client
        .send_timeout(stats(3), Duration::from_millis(5))
        .unwrap_err();
    assert!(matches!(error.fault(), SendFault::Full), "{error}");
    let handle = client.handle();
    let sender = threads::spawn("t", move || handle.send(stats(3))).unwrap();
    let mut peer = server.session();
    (0..4).for_each(|n| assert_eq!(number(&peer.recv()), n));
    sender.join().unwrap().unwrap();
}

#[test]
fn offline_bytes_are_bounded_and_one_frame_may_wait_alone() {
    let limits = Limits {
        frames: 10,
        bytes: 100,
    };
    let (_server, listener) = TestServer::memory();
    let config = agent()
        .offline(Offline::Queue(limits))
        .connect_in_memory(&listener);
    let client = Client::start(config).unwrap();
    let long = Frame::with_payload(Command::STATS, vec![0; 1000]);
    client.try_send(long.clone()).unwrap();
    assert!(client.try_send(long).is_err());
    drop(client);
}

#[test]
fn senders_wait_for_room_in_a_full_queue_within_the_limit() {
    let limits = queue(4);
    let (client, mut peer, _server) =
        pair(|config| config.queue(limits).send_timeout(Duration::from_millis(20)));
    let long = |n: u32| {
        let mut payload = vec![0; 300_000];
        payload[..4].copy_from_slice(&n.to_be_bytes());
        Frame::with_payload(Command::STATS, payload)
    };
    let mut taken = 0;
    let error = loop {
        match client.try_send(long(taken)) {
            Ok(()) => taken += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(error.fault(), SendFault::Full), "{error}");
    let error = client.send(long(taken)).unwrap_err();
    assert!(matches!(error.fault(), SendFault::Full), "{error}");
    assert!(!client.flush(Duration::from_millis(1)));
    let handle = client.handle();
    let sender = threads::spawn("t", move || handle.send_timeout(long(taken), LIMIT)).unwrap();
    for n in 0..=taken {
        assert_eq!(peer.recv().payload_bytes()[..4], n.to_be_bytes());
    }
    sender.join().unwrap().unwrap();
}

#[test]
fn frames_that_waited_when_their_session_was_lost_are_counted() {
    let (client, peer, server) = pair(|config| config.offline(Offline::Queue(queue(100))));
    // More than the stream can hold, so that some frames have to wait.
    (0..10).for_each(|_| {
        client
            .send(Frame::with_payload(Command::STATS, vec![0; 100_000]))
            .unwrap()
    });
    peer.cut();
    disconnected(&client);
    client.send(stats(1)).unwrap();
    let mut peer = server.session();
    connected(&client);
    assert_eq!(number(&peer.recv()), 1);
    let counters = client.counters();
    assert!(counters.lost_frames > 0);
    assert!(client.flush(LIMIT));
    assert_eq!(client.counters().sent_frames + counters.lost_frames, 11);
}

#[test]
fn flush_waits_also_if_the_queue_has_no_limits() {
    let endless = Limits {
        frames: u64::MAX,
        bytes: u64::MAX,
    };
    let (client, mut peer, _server) = pair(|config| config.queue(endless).inbound(endless));
    let long = Frame::with_payload(Command::STATS, vec![0; 1 << 20]);
    client.send(long.clone()).unwrap();
    assert!(
        !client.flush(Duration::from_millis(50)),
        "the server reads no frames"
    );
    assert_eq!(peer.recv(), long);
    assert!(client.flush(Duration::MAX));
}
