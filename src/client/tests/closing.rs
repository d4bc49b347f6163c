//! Closing ends every wait at once, sends the queue, and leaves no thread.

use super::*;
use ssntp_transport::memory::MemoryListener;
use ssntp_transport::{Address, Limits};

const LONG: Duration = Duration::from_secs(600);

/// A client whose time limits are all long.
fn patient() -> ClientConfig {
    agent()
        .connect_timeout(LONG)
        .handshake_timeout(LONG)
        .send_timeout(None)
        .backoff(Backoff {
            initial: LONG,
            cap: LONG,
        })
}

#[test]
fn close_sends_the_queue_and_then_close_notify() {
    let (client, mut peer, _server) = pair(|config| config);
    let long = Frame::with_payload(Command::STATS, vec![7; 200_000]);
    client.send(long.clone()).unwrap();
    let threads = threads_of(&client);
    let receiver = threads::spawn("t", move || {
        assert_eq!(peer.recv(), long);
        peer.expect_end();
        peer.close();
    });
    at_once(|| client.close());
    receiver.unwrap().join().unwrap();
    assert_eq!(disconnected(&client), (SessionEnd::Closed, false));
    assert!(matches!(closed(&client), ClientError::Closed));
    assert!(matches!(
        client.send(stats(1)).unwrap_err().fault(),
        SendFault::Ended(ClientError::Closed)
    ));
    assert_eq!(client.counters().sent_frames, 1);
    client.close();
    drop(client);
    assert_eq!(threads.strong_count(), 0, "a thread is left");
}

#[test]
fn dropping_a_client_closes_it_and_joins_its_threads() {
    let (client, mut peer, _server) = pair(|config| config);
    let threads = threads_of(&client);
    client.send(stats(1)).unwrap();
    let handle = client.handle();
    let dropping = threads::spawn("t", move || drop(client));
    assert_eq!(number(&peer.recv()), 1);
    peer.expect_end();
    peer.close();
    dropping.unwrap().join().unwrap();
    assert!(matches!(handle.ended(), Some(ClientError::Closed)));
    drop(handle);
    assert_eq!(threads.strong_count(), 0, "a thread is left");
}

#[test]
fn a_server_that_takes_nothing_delays_closing_by_the_grace_only() {
    let (client, _peer, _server) = pair(|config| config.grace(Duration::from_millis(50)));
    for _ in 0..10 {
        client
            .send(Frame::with_payload(Command::STATS, vec![0; 100_000]))
            .unwrap();
    }
    let threads = threads_of(&client);
    at_once(|| client.close());
    assert!(client.counters().lost_frames > 0);
    drop(client);
    assert_eq!(threads.strong_count(), 0, "a thread is left");
}

/// Closes a client from another thread while this one waits in `wait`.
fn woken<T>(client: &Client, wait: impl FnOnce() -> T) -> T {
    let handle = client.handle();
    let closing = threads::spawn("t", move || handle.close()).unwrap();
    let result = at_once(wait);
    closing.join().unwrap();
    at_once(|| client.close());
    result
}

#[test]
fn close_wakes_receivers() {
    let (server, listener) = TestServer::memory();
    let client = Client::start(patient().connect_in_memory(&listener)).unwrap();
    let _peer = server.session();
    connected(&client);
    let reason = woken(&client, || client.recv_frame()).unwrap_err();
    assert!(matches!(reason, ClientError::Closed), "{reason}");
}

#[test]
fn close_wakes_senders_that_wait_for_room() {
    let (server, listener) = TestServer::memory();
    let limits = Limits {
        frames: 2,
        bytes: 1 << 20,
    };
    let config = patient()
        .connect_in_memory(&listener)
        .queue(limits)
        .grace(Duration::from_millis(50));
    let client = Client::start(config).unwrap();
    let _peer = server.session();
    connected(&client);
    let long = Frame::with_payload(Command::STATS, vec![0; 300_000]);
    while client.try_send(long.clone()).is_ok() {}
    let error = woken(&client, || client.send(long)).unwrap_err();
    assert!(
        matches!(error.fault(), SendFault::Ended(ClientError::Closed)),
        "{error}"
    );
}

#[test]
fn close_wakes_senders_that_wait_offline() {
    let limits = Limits {
        frames: 1,
        bytes: 100,
    };
    let config = patient()
        .connect_in_memory(&MemoryListener::new())
        .offline(Offline::Queue(limits));
    let client = Client::start(config).unwrap();
    client.send(stats(0)).unwrap();
    let error = woken(&client, || client.send(stats(1))).unwrap_err();
    assert!(
        matches!(error.fault(), SendFault::Ended(ClientError::Closed)),
        "{error}"
    );
    assert_eq!(client.counters().lost_frames, 1);
}

#[test]
fn close_wakes_flush_and_waits_for_a_session() {
    let config = || patient().connect_in_memory(&MemoryListener::new());
    let limits = Limits {
        frames: 1,
        bytes: 100,
    };
    let client = Client::start(config().offline(Offline::Queue(limits))).unwrap();
    client.send(stats(0)).unwrap();
    assert!(!woken(&client, || client.flush(LONG)));
    let client = Client::start(config()).unwrap();
    let handle = client.handle();
    assert!(!handle.wait_connected(Some(Duration::from_millis(1))).unwrap());
    assert!(woken(&client, || handle.wait_connected(None)).is_err());
}

#[test]
fn close_wakes_the_pause_between_attempts() {
    let unused = TestServer::tcp().address();
    let client = Client::start(patient().address(unused)).unwrap();
    while client.counters().failed_attempts == 0 {
        std::thread::yield_now();
    }
    at_once(|| client.close());
    assert!(matches!(closed(&client), ClientError::Closed));
}

#[test]
fn close_wakes_an_attempt_without_answer() {
    // The queue of a listener that never accepts: once it is full, the next
    // attempt is not answered.
    let listener = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    let any: std::net::SocketAddr = ([127, 0, 0, 1], 0).into();
    listener.bind(&any.into()).unwrap();
    listener.listen(0).unwrap();
    let address = listener.local_addr().unwrap();
    let mut waiting = Vec::new();
    loop {
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        if socket
            .connect_timeout(&address, Duration::from_millis(200))
            .is_err()
        {
            break;
        }
        waiting.push(socket);
    }
    let port = address.as_socket().unwrap().port();
    let client = Client::start(patient().address(Address::tcp("127.0.0.1", port))).unwrap();
    assert!(
        !client
            .handle()
            .wait_connected(Some(Duration::from_millis(20)))
            .unwrap()
    );
    at_once(|| client.close());
    assert!(matches!(closed(&client), ClientError::Closed));
}

#[test]
fn close_wakes_every_step_of_the_handshake() {
    for over_tcp in [false, true] {
        let (memory, listener) = TestServer::memory();
        let tcp = TestServer::tcp();
        let (server, config) = if over_tcp {
            (&tcp, patient().address(tcp.address()))
        } else {
            (&memory, patient().connect_in_memory(&listener))
        };
        let client = Client::start(config.clone()).unwrap();
        let _before_tls = server.connection();
        at_once(|| client.close());
        let client = Client::start(config.clone()).unwrap();
        let mut before_connected = server.connect();
        at_once(|| client.close());
        assert!(before_connected.try_recv().is_err(), "the queue was cut");
        let client = Client::start(config).unwrap();
        let mut half = server.connect();
        let mut reply = half.connected(crate::Role::SERVER, b"configure: {}\n");
        reply.truncate(50);
        half.send_raw(reply);
        at_once(|| client.close());
        assert!(matches!(closed(&client), ClientError::Closed));
        assert_eq!(client.counters().sessions, 0);
    }
}

#[test]
fn a_client_whose_application_receives_nothing_can_be_closed() {
    let limits = Limits {
        frames: 2,
        bytes: 1 << 20,
    };
    let (server, listener) = TestServer::memory();
    let client = Client::start(patient().connect_in_memory(&listener).inbound(limits)).unwrap();
    let mut peer = server.session();
    (0..10).for_each(|n| peer.send(&stats(n)));
    while client.events().len() < 2 {
        std::thread::yield_now();
    }
    client.send(stats(99)).unwrap();
    assert_eq!(number(&peer.recv()), 99, "sending still works");
    let threads = threads_of(&client);
    let closing = threads::spawn("t", move || {
        peer.expect_end();
        peer.close();
    });
    at_once(|| client.close());
    closing.unwrap().join().unwrap();
    connected(&client);
    assert_eq!(number(&next_frame(&client)), 0);
    assert!(
        matches!(client.recv(), Err(ClientError::Closed)),
        "there was no room for the last events"
    );
    drop(client);
    assert_eq!(threads.strong_count(), 0, "a thread is left");
}

#[test]
fn a_client_that_has_ended_by_itself_can_be_closed_with_its_channel_full() {
    let limits = Limits {
        frames: 1,
        bytes: 1 << 20,
    };
    let (server, listener) = TestServer::memory();
    let client = Client::start(patient().connect_in_memory(&listener).inbound(limits)).unwrap();
    let mut peer = server.session();
    peer.send_kind(crate::proto::ErrorCode::CONNECTION_ABORTED);
    while client.is_connected() || client.counters().received_frames == 0 {
        std::thread::yield_now();
    }
    let threads = threads_of(&client);
    at_once(|| client.close());
    connected(&client);
    assert!(client.recv().is_err());
    drop(client);
    assert_eq!(threads.strong_count(), 0, "a thread is left");
}

#[test]
fn an_ended_client_needs_no_closing_to_end_its_threads() {
    let unused = TestServer::tcp().address();
    let client = Client::start(agent().address(unused).attempts(1)).unwrap();
    closed(&client);
    let thread = client.threads.lock().unwrap().pop().unwrap();
    at_once(|| thread.join().unwrap());
}

#[test]
fn closed_clients_leave_no_threads_or_descriptors() {
    let (server, listener) = TestServer::memory();
    for n in 0..20 {
        let client = Client::start(agent().connect_in_memory(&listener)).unwrap();
        let mut peer = server.session();
        connected(&client);
        client.send(stats(n)).unwrap();
        assert_eq!(number(&peer.recv()), n);
        let threads = threads_of(&client);
        if n % 2 == 0 {
            peer.cut();
        } else {
            drop(peer);
        }
        at_once(|| drop(client));
        assert_eq!(threads.strong_count(), 0, "a thread is left");
    }
}
