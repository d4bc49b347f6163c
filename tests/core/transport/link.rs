//! The two threads of a link: the bytes that they send and receive, and their end.

use super::*;

#[test]
fn both_sides_write_and_read_at_once() {
    for kind in KINDS {
        for ends in [in_clear as fn((Stream, Stream)) -> (Halves, Halves), secure] {
            let (client, server) = ends(kind());
            let (mut client, mut server) = (Side::new(client), Side::new(server));
            for side in [&client, &server] {
                side.push(0, HEAVY, 64 * 1024);
            }
            client.expect(HEAVY);
            server.expect(HEAVY);
            client.link.close();
            assert!(matches!(server.ended(), EndReason::PeerClosed));
            assert!(matches!(client.ended(), EndReason::Local));
            client.join();
            server.join();
        }
    }
}

#[test]
fn two_sides_that_write_and_do_not_read_are_not_stuck_for_good() {
    for kind in KINDS {
        let (client, server) = secure(kind());
        let (gates, mut sides): (Vec<_>, Vec<_>) = [client, server]
            .into_iter()
            .map(|halves| {
                let (gate, shut) = channel();
                let side = Side::with(halves, outbox(), LinkConfig::default(), Some(shut));
                side.push(0, HEAVY, 64 * 1024);
                (gate, side)
            })
            .unzip();
        drop(gates);
        for side in &mut sides {
            side.expect(HEAVY);
        }
    }
}

#[test]
fn a_writer_stuck_on_a_full_socket_keeps_nothing_from_arriving() {
    for kind in KINDS {
        let (mut raw, server) = Raw::and_server(kind);
        let mut server = Side::new(server);
        server.push(0, STUCK, 256 * 1024);
        for n in 0..100 {
            raw.send(&pattern(n * 1000, 1000));
            server.expect(1000);
        }
        let waiting = server.outbox.waiting().bytes;
        assert!(
            waiting > 0,
            "the queue was to be longer than the socket's buffers"
        );
        server.link.abort();
        assert!(matches!(server.ended(), EndReason::Local));
        server.join();
    }
}

#[test]
fn an_item_past_the_writer_keeps_its_place() {
    const LENGTHS: [usize; 6] = [1, 8, 5000, 16_384, 20_000, 40_000];
    for kind in KINDS {
        for ends in [in_clear as fn((Stream, Stream)) -> (Halves, Halves), secure] {
            let (client, server) = ends(kind());
            let (gate, shut) = channel();
            let mut client = Side::with(client, outbox(), LinkConfig::default(), Some(shut));
            let server = Side::new(server);
            // The client reads nothing, so the socket becomes full within an item, and the rest waits.
            let mut sent = 0;
            for len in LENGTHS.into_iter().cycle().take(600) {
                let item = Outgoing::whole(pattern(sent, len), 1);
                server.outbox.push(item, Limits::NONE, true).unwrap();
                sent += len;
            }
            drop(gate);
            client.expect(sent);
            server.link.close();
            assert!(matches!(client.ended(), EndReason::PeerClosed));
        }
    }
}

#[test]
fn a_reset_is_an_error() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (server, _) = listener.accept().unwrap();
    let mut side = Side::new(plain(Arc::new(Socket::from(server)), BufferPool::new()));
    // Closed with a linger time of zero, a socket resets its connection.
    socket2::SockRef::from(&client)
        .set_linger(Some(Duration::ZERO))
        .unwrap();
    drop(client);
    let reason = side.ended();
    assert!(
        matches!(&reason, EndReason::Io(e) if e.kind() == io::ErrorKind::ConnectionReset),
        "{reason}"
    );
    side.join();
}

#[test]
fn a_peer_that_has_ended_its_side_still_receives() {
    for kind in KINDS {
        let (mut raw, halves) = Raw::and_client(kind);
        let (sender, receiver) = channel();
        let outbox = outbox();
        let notes = Notes {
            sender,
            gate: None,
            last: Some((outbox.clone(), Outgoing::whole(pattern(0, 10_000), 1))),
        };
        let mut side = Side::start(halves, outbox, LinkConfig::default(), notes, receiver);
        raw.close();
        assert!(matches!(side.ended(), EndReason::PeerClosed));
        raw.expect(0, 10_000);
        raw.expect_close();
        side.join();
    }
}

/// Refuses all items.
struct Refuses;

impl Decode for Refuses {
    type Item = Bytes;
    type Error = io::Error;

    fn decode(&mut self, input: &mut BytesMut, _: &mut Vec<Bytes>) -> io::Result<()> {
        if input.is_empty() {
            Ok(())
        } else {
            Err(io::Error::other("refused"))
        }
    }

    fn wanted(&self) -> usize {
        0
    }
}

#[test]
fn a_peer_that_is_refused_may_send_on_and_gets_its_answer() {
    for kind in KINDS {
        let (peer, server) = in_clear(kind());
        let (sender, receiver) = channel();
        let outbox = outbox();
        queue(&outbox, 0, 100, 100);
        let config = LinkConfig {
            linger: LIMIT,
            ..LinkConfig::default()
        };
        let notes = Notes {
            sender,
            gate: None,
            last: None,
        };
        let link = Link::start(server, Refuses, outbox, notes, config).unwrap();
        let stream = &peer.stream;
        stream.set_write_timeout(Some(LIMIT)).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        // These are more bytes than any buffer holds.
        for at in 0..HEAVY / (1 << 16) {
            let mut piece = &[1; 1 << 16][..];
            while !piece.is_empty() {
                let written = stream.write(piece);
                piece = &piece[written.unwrap_or_else(|e| panic!("piece {at} is not read: {e}"))..];
            }
        }
        stream.shutdown(Shutdown::Write).unwrap();
        let (mut answer, mut buffer) = (Vec::new(), [0; 1000]);
        while let n @ 1.. = stream.read(&mut buffer).unwrap() {
            answer.extend_from_slice(&buffer[..n]);
        }
        assert!(answer.len() == 100 && is_pattern(0, &answer), "{answer:?}");
        assert!(matches!(
            receiver.recv_timeout(LIMIT),
            Ok(Note::Ended(EndReason::Protocol(_)))
        ));
        link.join();
    }
}

#[test]
fn a_stream_may_come_one_byte_at_a_time() {
    let one = Faults {
        short_reads: Some(1),
        ..Faults::default()
    };
    let (client, server) = secure(faulty(one, one));
    let (mut client, mut server) = (Side::new(client), Side::new(server));
    client.push(0, 20_000, 1000);
    server.push(0, 20_000, 1000);
    client.expect(20_000);
    server.expect(20_000);
    let (client, server) = tcp();
    let deadline = Instant::now() + LIMIT;
    let accepting = std::thread::spawn(move || acceptor().accept(server, &BufferPool::new(), deadline));
    let mut raw = Raw::client(client, rustls::ALL_VERSIONS);
    raw.tap.piece = 1;
    raw.shake();
    let mut side = Side::new(accepting.join().unwrap().unwrap().halves);
    raw.send(&pattern(0, 1000));
    side.expect(1000);
}

#[test]
fn short_reads_and_delays_change_nothing() {
    let slow = |short| Faults {
        short_reads: Some(short),
        delay: Some(Duration::from_millis(1)),
        cut_after: None,
    };
    let (client, server) = secure(faulty(slow(7), slow(1000)));
    let (mut client, mut server) = (Side::new(client), Side::new(server));
    client.push(0, 500_000, 10_000);
    server.push(0, 500_000, 10_000);
    client.expect(500_000);
    server.expect(500_000);
}

#[test]
fn an_idle_stream_holds_no_buffer() {
    for ends in [in_clear_with as fn(&BufferPool) -> (Halves, Halves), secure_with] {
        let pool = BufferPool::new();
        let (mut client, mut server) = ends(&pool);
        for _ in 0..3 {
            pass(&mut client, &mut server);
            pass(&mut server, &mut client);
        }
        // If idle streams held memory, it would come back only now, or be lost with them.
        let idle = format!("{pool:?}");
        assert_ne!(idle, format!("{:?}", BufferPool::new()));
        drop((client, server));
        assert_eq!(format!("{pool:?}"), idle);
    }
}

fn pass(from: &mut Halves, to: &mut Halves) {
    let outgoing = Outgoing::whole(pattern(0, 40_000), 1);
    from.transmit.transmit(&[outgoing]).unwrap();
    from.transmit.idle();
    while to.inbox.bytes_mut().len() < 40_000 {
        to.receive.receive(&mut to.inbox).unwrap();
    }
    assert!(is_pattern(0, to.inbox.bytes_mut()));
    to.inbox.bytes_mut().clear();
}

fn in_clear_with(pool: &BufferPool) -> (Halves, Halves) {
    let (client, server) = in_memory();
    (plain(client, pool.clone()), plain(server, pool.clone()))
}

fn secure_with(pool: &BufferPool) -> (Halves, Halves) {
    let (client, server) = in_memory();
    let deadline = Instant::now() + LIMIT;
    let shared = pool.clone();
    let accepting = std::thread::spawn(move || acceptor().accept(server, &shared, deadline));
    let client = connector().connect(client, "localhost", pool, deadline);
    (client.unwrap().halves, accepting.join().unwrap().unwrap().halves)
}

#[test]
fn a_lone_frame_goes_out_at_once() {
    for kind in KINDS {
        let (mut raw, halves) = Raw::and_client(kind);
        let mut side = Side::new(halves);
        for n in 0..20 {
            side.push(n * 8, 8, 8);
            raw.expect(n * 8, 8);
            assert_eq!(raw.tap.records, n + 1);
            raw.send(&pattern(n * 8, 8));
            side.expect(8);
        }
    }
}

#[test]
fn frames_that_wait_share_their_records() {
    const COUNT: usize = 10_000;
    const LEN: usize = 72;
    let (mut raw, halves) = Raw::and_server(tcp);
    let outbox = outbox();
    queue(&outbox, 0, COUNT * LEN, LEN);
    let side = Side::with(halves, outbox, LinkConfig::default(), None);
    raw.expect(0, COUNT * LEN);
    let fewest = (COUNT * LEN).div_ceil(16 * 1024);
    assert!(raw.tap.records <= 2 * fewest, "{} records", raw.tap.records);
    // The peer may read faster than the writer counts.
    let deadline = Instant::now() + LIMIT;
    while side.outbox.waiting().frames > 0 {
        assert!(
            Instant::now() < deadline,
            "frames that were taken are not counted"
        );
        std::thread::yield_now();
    }
}

#[test]
fn a_peer_that_takes_nothing_ends_the_link_at_the_write_deadline() {
    for kind in KINDS {
        for ends in [in_clear as fn((Stream, Stream)) -> (Halves, Halves), secure] {
            let (client, server) = ends(kind());
            let config = LinkConfig {
                write_timeout: Some(Duration::from_millis(50)),
                ..LinkConfig::default()
            };
            let mut side = Side::with(client, outbox(), config, None);
            side.push(0, STUCK, 1 << 20);
            let reason = side.ended();
            assert!(
                matches!(&reason, EndReason::Io(e) if e.kind() == io::ErrorKind::TimedOut),
                "{reason}"
            );
            side.join();
            drop(server);
        }
    }
}

#[test]
fn abort_wakes_a_blocked_reader_and_a_stuck_writer() {
    for kind in KINDS {
        for ends in [in_clear as fn((Stream, Stream)) -> (Halves, Halves), secure] {
            for stuck in [false, true] {
                let (client, server) = ends(kind());
                let config = LinkConfig {
                    write_timeout: None,
                    ..LinkConfig::default()
                };
                let mut side = Side::with(client, outbox(), config, None);
                if stuck {
                    side.push(0, STUCK, 1 << 20);
                }
                side.link.abort();
                assert!(matches!(side.ended(), EndReason::Local));
                side.join();
                drop(server);
            }
        }
    }
}

/// Waits until this number of threads has a name with this beginning. The kernel's list is a little
/// late, and may lack running threads while others end.
#[cfg(target_os = "linux")]
fn expect_threads(prefix: &str, expected: usize) {
    let count = || {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap();
        tasks
            .filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok())
            .filter(|name| name.starts_with(prefix))
            .count()
    };
    let deadline = Instant::now() + LIMIT;
    while count() != expected {
        assert!(Instant::now() < deadline, "{} threads, not {expected}", count());
        std::thread::yield_now();
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_joined_link_has_no_thread_left() {
    let named = |name: &str| LinkConfig {
        name: format!("joined-{name}"),
        ..LinkConfig::default()
    };
    for round in 0..20 {
        let (client, server) = secure(in_memory());
        let mut client = Side::with(client, outbox(), named("c"), None);
        let mut server = Side::with(server, outbox(), named("s"), None);
        client.push(0, 1000, 1000);
        server.push(0, 1000, 1000);
        client.expect(1000);
        server.expect(1000);
        expect_threads("joined-", 4);
        if round % 2 == 0 {
            client.link.close()
        } else {
            client.link.abort()
        }
        client.ended();
        server.ended();
        client.join();
        server.join();
        expect_threads("joined-", 0);
    }
}
