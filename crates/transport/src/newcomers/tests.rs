use std::sync::atomic::AtomicUsize;

use crossbeam_channel::{Sender, bounded, unbounded};
use socket2::{Domain, Socket, Type};

use super::slots::{BRIEF, PATIENCE, Slots, WHOLE_CONNECTION};
use super::*;
use crate::socket::memory;
use crate::socket::memory::{Faults, MemoryListener, MemoryStream};
use crate::stream::{BufferPool, plain};

const LIMIT: Duration = Duration::from_secs(20);
const LONG: Duration = Duration::from_secs(3600);
/// Every waiting handshake may be cut.
const NONE: Patience = Patience {
    first: Duration::ZERO,
    silent: Duration::ZERO,
    in_sum: LONG,
    too_long: PATIENCE.too_long,
};
const ENDLESS: Patience = Patience {
    first: LONG,
    silent: LONG,
    in_sum: LONG,
    too_long: PATIENCE.too_long,
};

fn handshakes(max: usize, serve: Box<Serve>, spawn: Box<Spawn>, patience: Patience) -> Handshakes {
    Handshakes {
        spawn,
        ..Handshakes::new("test", "test", max, patience, serve)
    }
}

fn really() -> Box<Spawn> {
    Box::new(|name: String, body: Body| threads::spawn(name, body))
}

/// Answers the first byte with itself; `p` makes it panic.
fn echo() -> Box<Serve> {
    Box::new(|newcomer: &Arc<Newcomer>| {
        let mut byte = [0];
        if let Ok(1) = newcomer.stream().read(&mut byte) {
            assert_ne!(byte[0], b'p', "the client asked for this panic");
            newcomer.admitted();
            let _ = newcomer.stream().write(&byte);
        }
    })
}

fn waits(slot: &Slot, wait: Wait, since: Instant) {
    let newcomer = &slot.newcomer;
    locked(&newcomer.state).slots.waits(newcomer.slot, wait, since);
}

fn state_of(slot: &Slot) -> HandshakeState {
    locked(&slot.newcomer.state)
        .slots
        .state_of(slot.newcomer.slot)
        .unwrap()
}

struct Running {
    place: MemoryListener,
    acceptance: Acceptance,
}

impl Running {
    fn start(handshakes: Handshakes) -> Self {
        let place = MemoryListener::new();
        let listeners = vec![Listener::memory(place.clone())];
        Self {
            place,
            acceptance: Acceptance::start_with(listeners, handshakes).unwrap(),
        }
    }

    fn connect(&self) -> MemoryStream {
        let client = self.place.connect(Faults::default(), Faults::default()).unwrap();
        client.set_read_timeout(Some(LIMIT)).unwrap();
        client
    }

    /// The number of bytes that a client receives after it has sent this byte.
    fn ask(&self, byte: u8) -> usize {
        let client = self.connect();
        let _ = client.write(&[byte]);
        client.read(&mut [0]).unwrap()
    }

    /// Waits until this number of slots is taken.
    fn taken(&self, slots: usize) {
        let end = now() + LIMIT;
        while self.acceptance.handshakes.lock().slots.running() != slots {
            assert!(now() < end, "not {slots} slots");
            std::thread::yield_now();
        }
    }

    fn stop(self) {
        let (done, stopped) = bounded(1);
        let stopping = threads::spawn("stops", move || {
            self.acceptance.stop();
            done.send(()).unwrap();
        });
        stopped.recv_timeout(LIMIT).expect("the stop does not return");
        stopping.unwrap().join().unwrap();
    }
}

#[test]
fn a_thread_that_cannot_be_started_ends_only_one_newcomer() {
    let left = Arc::new(AtomicUsize::new(5));
    let failures = Arc::clone(&left);
    let (started, has_started) = unbounded();
    let spawn = move |name: String, body: Body| {
        let fails = failures.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        match fails {
            Ok(_) => Err(io::ErrorKind::WouldBlock.into()),
            Err(_) => threads::spawn(name, body).inspect(|_| started.send(()).unwrap()),
        }
    };
    let running = Running::start(handshakes(2, echo(), Box::new(spawn), ENDLESS));
    // This handshake remains under way, so each newcomer needs another thread.
    left.store(0, Ordering::Relaxed);
    let before = running.connect();
    // Its slot is taken a moment before the next thread is started.
    has_started.recv_timeout(LIMIT).unwrap();
    left.store(5, Ordering::Relaxed);
    for _ in 0..5 {
        assert_eq!(running.ask(b'x'), 0, "the newcomer is refused at once");
    }
    for _ in 0..3 {
        assert_eq!(running.ask(b'x'), 1);
    }
    before.write(b"x").unwrap();
    assert_eq!(before.read(&mut [0]).unwrap(), 1);
    running.taken(0);
    running.stop();
}

#[test]
fn a_handshake_that_panics_gives_its_slot_back() {
    let running = Running::start(handshakes(1, echo(), really(), ENDLESS));
    for _ in 0..3 {
        assert_eq!(running.ask(b'p'), 0);
        assert_eq!(running.ask(b'x'), 1);
    }
    running.taken(0);
    running.stop();
}

#[test]
fn a_thread_that_has_served_serves_again_and_only_if_it_is_idle() {
    let started = Arc::new(AtomicUsize::new(0));
    let counts = Arc::clone(&started);
    let spawn = move |name: String, body: Body| {
        counts.fetch_add(1, Ordering::Relaxed);
        threads::spawn(name, body)
    };
    let running = Running::start(handshakes(3, echo(), Box::new(spawn), ENDLESS));
    // Repeated until a newcomer finds an idle thread.
    let end = now() + LIMIT;
    loop {
        let before = started.load(Ordering::Relaxed);
        assert_eq!(running.ask(b'x'), 1);
        if started.load(Ordering::Relaxed) == before {
            break;
        }
        assert!(now() < end, "each newcomer has a thread of its own");
    }
    // Each newcomer is served before earlier ones, so none waits for another.
    let clients = [running.connect(), running.connect(), running.connect()];
    running.taken(3);
    for client in clients.into_iter().rev() {
        client.write(b"x").unwrap();
        assert_eq!(client.read(&mut [0]).unwrap(), 1);
    }
    running.taken(0);
    running.stop();
}

#[test]
fn silent_peers_in_every_slot_make_room_for_an_honest_one() {
    let running = Running::start(handshakes(3, echo(), really(), NONE));
    let oldest = [running.connect(), running.connect(), running.connect()];
    running.taken(3);
    // Only handshakes that wait for their peers are cut, not those that wait for a core of this host.
    while running.acceptance.handshakes.lock().slots.waiting(Wait::Read) < 3 {
        std::thread::yield_now();
    }
    let _silent: Vec<_> = (0..6).map(|_| running.connect()).collect();
    assert_eq!(running.ask(b'x'), 1);
    for client in oldest {
        assert_eq!(client.read(&mut [0]).unwrap(), 0, "the oldest handshakes are cut");
    }
    running.stop();
}

#[test]
fn hundreds_of_silent_peers_at_few_slots_keep_no_honest_peer_out() {
    let running = Running::start(handshakes(3, echo(), really(), PATIENCE));
    let _silent: Vec<_> = (0..300).map(|_| running.connect()).collect();
    assert_eq!(
        running.ask(b'x'),
        1,
        "the wait is shorter than the time limit of a read"
    );
    running.stop();
}

/// The time that the last of these peers waits for a slot, if each sends the same bytes and then no more.
/// It uses a clock of the test, and the accept thread serves all slots at once.
fn passed_in(peers: usize, slots: usize, patience: Patience, has_sent: bool) -> Duration {
    let handshakes = Arc::new(handshakes(slots, echo(), really(), patience));
    let begin = now();
    let mut clock = begin;
    let mut taken = Vec::new();
    for _ in 0..peers {
        while taken.len() == slots {
            handshakes.cut_slowest(&mut handshakes.lock(), clock);
            let is_cut = |(slot, _): &(Slot, MemoryStream)| state_of(slot) == HandshakeState::Cut;
            match taken.iter().position(is_cut) {
                Some(at) => drop(taken.remove(at)),
                None => clock += Duration::from_millis(1),
            }
        }
        let (local, remote) = memory::pair();
        let slot = handshakes
            .take_slot(0, (Arc::new(local), PeerAddress::Memory))
            .unwrap();
        if has_sent {
            locked(&slot.newcomer.state).slots.sent_early(slot.newcomer.slot);
        }
        waits(&slot, Wait::Read, clock);
        taken.push((slot, remote));
    }
    clock - begin
}

#[test]
fn thousands_of_silent_peers_are_passed_in_seconds() {
    let limit = Duration::from_secs(2);
    // At the pages of a server each peer sends half a request.
    assert!(passed_in(2000, 32, BRIEF, true) < limit);
    // At a server with few descriptors no peer sends any bytes.
    assert!(passed_in(1100, 8, PATIENCE, false) < limit);
}

#[test]
fn a_handshake_that_waits_for_this_host_or_is_admitted_is_not_cut() {
    let handshakes = Arc::new(handshakes(3, echo(), really(), NONE));
    let slot = || {
        let (local, remote) = memory::pair();
        (
            handshakes
                .take_slot(0, (Arc::new(local), PeerAddress::Memory))
                .unwrap(),
            remote,
        )
    };
    let fates = |slots: &[&Slot]| -> Vec<_> {
        handshakes.cut_slowest(&mut handshakes.lock(), now());
        slots.iter().map(|slot| state_of(slot)).collect()
    };
    let (computes, _peer) = slot();
    let (answered, peer) = slot();
    peer.write(b"x").unwrap();
    waits(&answered, Wait::Read, now());
    let (admitted, _peer) = slot();
    waits(&admitted, Wait::Read, now());
    assert!(admitted.newcomer.admitted());
    let all = [&computes, &answered, &admitted];
    assert_eq!(
        fates(&all),
        [
            HandshakeState::UnderWay,
            HandshakeState::UnderWay,
            HandshakeState::Admitted
        ]
    );

    // A peer that does not read is cut although it sends.
    waits(&answered, Wait::Write, now());
    assert_eq!(
        fates(&all),
        [
            HandshakeState::UnderWay,
            HandshakeState::Cut,
            HandshakeState::Admitted
        ]
    );
    assert!(!answered.newcomer.admitted());
}

#[test]
fn a_handshake_with_all_input_is_not_stopped_but_may_be_cut() {
    let handshakes = Arc::new(handshakes(3, echo(), really(), NONE));
    let slot = || {
        let (local, remote) = memory::pair();
        (
            handshakes
                .take_slot(0, (Arc::new(local), PeerAddress::Memory))
                .unwrap(),
            remote,
        )
    };
    let [(early, _early), (late, _late), (stuck, _stuck)] = [slot(), slot(), slot()];
    assert!(late.newcomer.input_complete() && stuck.newcomer.input_complete());
    handshakes.close();
    assert!(early.newcomer.is_stopping() && !early.newcomer.input_complete() && !early.newcomer.admitted());
    assert_eq!(
        early.newcomer.read(&mut [0]).unwrap(),
        0,
        "the input of the handshake is over"
    );
    assert!(!late.newcomer.is_stopping() && late.newcomer.admitted());
    waits(&stuck, Wait::Write, now());
    handshakes.cut_slowest(&mut handshakes.lock(), now());
    assert!(!stuck.newcomer.admitted());
}

#[test]
fn waits_are_counted_around_reads_and_writes() {
    let (local, remote) = memory::pair();
    let handshakes = Arc::new(handshakes(1, echo(), really(), ENDLESS));
    let slot = handshakes
        .take_slot(0, (Arc::new(local), PeerAddress::Memory))
        .unwrap();
    let (waiting, stream) = (Arc::clone(&slot.newcomer), slot.newcomer.stream());
    let reader = threads::spawn("reads", move || stream.read(&mut [0]).unwrap()).unwrap();
    let who_wait = || locked(&waiting.state).slots.waiting(Wait::Read);
    while who_wait() == 0 {
        std::thread::yield_now();
    }
    remote.write(b"x").unwrap();
    reader.join().unwrap();
    assert_eq!(who_wait(), 0);
    assert_eq!(locked(&waiting.state).slots.waiting(Wait::Write), 0);
}

#[test]
fn a_stop_ends_and_joins_the_handshakes_under_way() {
    let (states, stopping) = unbounded();
    let states: Sender<(bool, bool)> = states;
    let serve = move |newcomer: &Arc<Newcomer>| {
        let ended = matches!(newcomer.stream().read(&mut [0]), Ok(0));
        states.send((ended, newcomer.is_stopping())).unwrap();
    };
    let running = Running::start(handshakes(3, Box::new(serve), really(), ENDLESS));
    // The newcomer without a slot waits at the accept thread.
    let _silent: Vec<_> = (0..4).map(|_| running.connect()).collect();
    running.taken(3);
    running.stop();
    let received: Vec<_> = stopping.try_iter().collect();
    assert_eq!(received, [(true, true); 3]);
}

#[test]
fn a_stop_returns_once_the_last_handshake_thread_has_ended() {
    let token = Arc::new(());
    let held = Arc::clone(&token);
    let serve = move |newcomer: &_| {
        let _ended = Newcomer::stream(newcomer).read(&mut [0]);
        for _ in 0..1000 {
            std::thread::yield_now();
        }
        assert_eq!(
            Arc::strong_count(&held),
            2,
            "the thread is held until the stop is over"
        );
    };
    let running = Running::start(handshakes(3, Box::new(serve), really(), ENDLESS));
    let _silent = [running.connect(), running.connect()];
    running.taken(2);
    running.stop();
    assert_eq!(Arc::strong_count(&token), 1);
}

#[test]
fn a_newcomer_passes_every_call_to_its_stream() {
    let handshakes = Arc::new(handshakes(1, echo(), really(), ENDLESS));
    let (local, remote) = memory::pair();
    let slot = handshakes
        .take_slot(3, (Arc::new(local), PeerAddress::Memory))
        .unwrap();
    assert_eq!(slot.newcomer.listener(), 3);
    assert!(!slot.newcomer.is_stopping());
    let stream = slot.newcomer.stream();
    let mut bytes = [0; 4];
    assert!(!stream.is_readable());
    assert!(stream.try_read(&mut bytes).is_err(), "no bytes have arrived");
    stream.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
    assert!(stream.wait_readable().is_err(), "no bytes arrive in time");
    remote.write(b"abc").unwrap();
    assert!(stream.is_readable());
    stream.wait_readable().unwrap();
    assert_eq!(stream.try_read(&mut bytes).unwrap(), 3);
    assert_eq!(&bytes[..3], b"abc");
    assert_eq!(stream.try_write(b"de").unwrap(), 2);
    assert_eq!(remote.read(&mut bytes).unwrap(), 2);
    assert_eq!(&bytes[..2], b"de");
    stream.set_write_timeout(Some(Duration::from_millis(1))).unwrap();
    while stream.write(&[0; 1024]).is_ok() {}
    stream.shutdown(Shutdown::Both).unwrap();
    assert!(remote.write(b"f").is_err());
}

#[test]
fn after_an_error_of_the_system_accepting_rests_and_ends_once_it_is_closed() {
    let handshakes = handshakes(1, echo(), really(), ENDLESS);
    let error = io::Error::other("no more descriptors");
    let before = now();
    assert!(!handshakes.cannot_accept(&error));
    assert!(
        crate::host::elapsed(before) >= ACCEPT_PAUSE,
        "the accept thread does not rest"
    );
    handshakes.close();
    assert!(handshakes.cannot_accept(&error));
    // A newcomer that has left again is no lack of the system, and makes no rest.
    assert!(!handshakes.cannot_accept(&io::ErrorKind::ConnectionAborted.into()));
}

#[test]
fn a_server_has_64_handshakes_for_each_core_and_512_at_most() {
    let default = default_max_handshakes();
    assert!((64..=512).contains(&default) && default.is_multiple_of(64));
}

#[test]
fn there_are_few_more_threads_than_slots_however_fast_newcomers_come() {
    let (alive, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (counted, peak) = (Arc::clone(&alive), Arc::clone(&most));
    let spawn = move |name: String, body: Body| {
        let counted = Arc::clone(&counted);
        peak.fetch_max(counted.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        let body = move || {
            body();
            counted.fetch_sub(1, Ordering::SeqCst);
        };
        threads::spawn(name, body)
    };
    let running = Running::start(handshakes(3, echo(), Box::new(spawn), ENDLESS));
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| (0..200).for_each(|_| assert_eq!(running.ask(b'x'), 1)));
        }
    });
    // Some more accept, or are about to end.
    let most = most.load(Ordering::SeqCst);
    assert!(most <= 2 * (3 + SPARE), "{most}");
    running.stop();
    assert_eq!(alive.load(Ordering::SeqCst), 0);
}

#[test]
#[expect(clippy::disallowed_types, reason = "a client whose own address is asked for")]
fn a_newcomer_that_is_cut_is_named_by_the_address_from_which_it_came() {
    let listener = Listener::bind(&"127.0.0.1:0".parse().unwrap(), Default::default());
    let listener = listener.unwrap().remove(0);
    let address = listener.local_address().unwrap().to_string();
    let client = std::net::TcpStream::connect(address).unwrap();
    let accepted = listener.accept().unwrap().unwrap();
    let handshakes = Arc::new(handshakes(1, echo(), really(), NONE));
    let slot = handshakes.take_slot(0, accepted).unwrap();
    waits(&slot, Wait::Read, now());
    let own = PeerAddress::Ip(client.local_addr().unwrap());
    handshakes.cut_slowest(&mut handshakes.lock(), now());
    assert_eq!(state_of(&slot), HandshakeState::Cut);
    // The system knows no peer of a socket that was shut down.
    assert_eq!(slot.newcomer.stream().peer(), own);
}

#[test]
fn fewer_handshakes_are_made_at_a_time_while_this_host_has_no_time_for_them() {
    let begin = now();
    let at = |millis| begin + Duration::from_millis(millis);
    let mut slots = Slots::new(64, PATIENCE);
    let all: Vec<_> = std::iter::from_fn(|| slots.take((), begin)).collect();
    assert_eq!(all.len(), 64);
    // A peer that is slow itself does not count.
    slots.waits(all[0], Wait::Read, at(10));
    slots.goes_on(all[0], Wait::Read, at(1900));
    slots.give_back(all[0], at(2000));
    assert_eq!(slots.limit, 64);
    for slot in &all[1..] {
        slots.give_back(*slot, at(3000));
    }
    assert_eq!(slots.limit, 1);
    for n in 0..100 {
        let slot = slots.take((), at(3000)).unwrap();
        assert!(n > 0 || slots.take((), at(3000)).is_none());
        slots.give_back(slot, at(3300));
    }
    assert_eq!(slots.limit, 64, "each that is quick allows one more");
    // After its last byte a newcomer waits for others: a linked server that has its session, or a store.
    for _ in 0..10 {
        let slot = slots.take((), at(4000)).unwrap();
        assert!(slots.input_complete(slot, at(4100)));
        slots.give_back(slot, at(9000));
    }
    assert_eq!(slots.limit, 64);
}

#[test]
fn connections_that_are_served_on_their_slots_do_not_lower_the_number_of_slots() {
    let begin = now();
    for patience in [WHOLE_CONNECTION, BRIEF] {
        let mut slots = Slots::new(20, patience);
        let slot = slots.take((), begin).unwrap();
        slots.give_back(slot, begin + Duration::from_secs(3600));
        assert_eq!(slots.limit, 20);
    }
}

#[test]
fn only_bytes_of_a_peer_count_as_sent_by_it() {
    let begin = now();
    let mut slots = Slots::new(1, PATIENCE);
    let greeted = slots.take((), begin).unwrap();
    slots.waits(greeted, Wait::Write, begin);
    slots.goes_on(greeted, Wait::Write, begin);
    slots.waits(greeted, Wait::Read, begin);
    let has_no_input = |(): &()| false;
    assert!(slots.cut(begin + PATIENCE.first, has_no_input).is_some());

    // Bytes that were read without waiting.
    let handshakes = Arc::new(handshakes(1, echo(), really(), PATIENCE));
    let (local, remote) = memory::pair();
    let slot = handshakes
        .take_slot(0, (Arc::new(local), PeerAddress::Memory))
        .unwrap();
    remote.write(b"x").unwrap();
    assert_eq!(slot.newcomer.stream().try_read(&mut [0]).unwrap(), 1);
    waits(&slot, Wait::Read, begin);
    for (time, state) in [
        (PATIENCE.first, HandshakeState::UnderWay),
        (PATIENCE.silent, HandshakeState::Cut),
    ] {
        handshakes.cut_slowest(&mut handshakes.lock(), begin + time);
        assert_eq!(state_of(&slot), state);
    }
}

#[test]
fn the_system_may_keep_more_for_a_session_that_takes_much() {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.set_tcp_notsent_lowat(1).unwrap();
    let system = socket.try_clone().unwrap();
    let handshakes = Arc::new(handshakes(1, echo(), really(), PATIENCE));
    let slot = handshakes
        .take_slot(0, (Arc::new(socket), PeerAddress::Memory))
        .unwrap();
    plain(slot.newcomer.stream(), BufferPool::new())
        .transmit
        .allow_unsent(1000);
    assert_eq!(system.tcp_notsent_lowat().unwrap(), 1000);
}

#[test]
fn no_handshake_is_cut_while_a_slot_is_free() {
    let begin = now();
    let mut slots = Slots::new(2, NONE);
    let slot = slots.take((), begin).unwrap();
    slots.waits(slot, Wait::Read, begin);
    assert!(slots.cut(begin + LONG, |()| false).is_none());
    slots.take((), begin).unwrap();
    assert!(slots.cut(begin + LONG, |()| false).is_some());
}
