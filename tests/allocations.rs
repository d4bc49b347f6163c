//! The number of allocations of a server while it routes, and the memory that a session of another server
//! takes.
//!
//! An allocator around the system's counts the allocations of the server's threads: reader, dispatcher
//! and writer, including TLS. The threads of the peers, which are in the same process, do not count.
#![allow(unsafe_code, reason = "an allocator is unsafe to implement")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::disallowed_methods,
    reason = "a test fails by panicking"
)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ssntp::Role;
use ssntp::payload::Payload;
use ssntp::payload::yaml::{self, MAX_DOCUMENT_LEN};
use ssntp::pki::{
    Authority, AuthorityRequest, CertificateRequest, Identity, RevocationList, RevocationReason, Revoked,
    Serial,
};
use ssntp::proto::{ClientHandshake, Command, Connect, DEFAULT_MAX_PAYLOAD, Frame};
use ssntp::server::{Rules, Server, ServerConfig};
use ssntp::transport::{Address, TcpOptions};
use ssntp_payload::Stats;
use ssntp_test_support::links::Directory;
use ssntp_transport::{BufferPool, Halves, Outgoing, connect_tcp};
use uuid::Uuid;

const LIMIT: Duration = Duration::from_secs(30);

/// Counts on the way to the system's allocator.
struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);
/// All threads count into one figure, so the tests of this program run one after the other.
static ALONE: Mutex<()> = Mutex::new(());

thread_local! {
    /// True if this thread is one of the test's own.
    static MINE: Cell<bool> = const { Cell::new(false) };
    /// The bytes that this thread has asked for and not given back.
    static HELD: Cell<isize> = const { Cell::new(0) };
    /// The most bytes that this thread has held.
    static MOST: Cell<isize> = const { Cell::new(0) };
}

/// Counts bytes that are asked for, or given back (-1), with what the system's allocator adds:
/// it gives multiples of 16 bytes of which 8 are its own, and 32 at least.
fn hold(size: usize, sign: isize) {
    let bytes = (size + 8).next_multiple_of(16).max(32).cast_signed();
    let _ = HELD.try_with(|held| {
        held.set(held.get() + sign * bytes);
        MOST.try_with(|most| most.set(most.get().max(held.get())))
    });
}

fn count() {
    if MINE.try_with(|mine| !mine.get()).unwrap_or(false) {
        ALLOCATIONS.fetch_add(1, Relaxed);
    }
}

// SAFETY: every call goes to the system's allocator as it came; counting
// allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        hold(layout.size(), 1);
        // SAFETY: the caller keeps the rules of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count();
        hold(layout.size(), 1);
        // SAFETY: the caller keeps the rules of `alloc_zeroed`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        hold(layout.size(), -1);
        hold(size, 1);
        // SAFETY: the caller keeps the rules of `realloc`.
        unsafe { System.realloc(pointer, layout, size) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        hold(layout.size(), -1);
        // SAFETY: the caller keeps the rules of `dealloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// A session by hand.
fn connect(identity: &Identity, authority: &Authority, role: Role, address: &Address) -> Halves {
    let Address::Tcp { host, port } = address else {
        unreachable!("the server listens at TCP")
    };
    let stream = Arc::new(connect_tcp(host, *port, &TcpOptions::default(), LIMIT).unwrap());
    let connector = authority.trust().connector(identity).unwrap();
    let pool = BufferPool::new();
    let deadline = Instant::now() + LIMIT;
    let secured = connector.connect(stream, host, &pool, deadline).unwrap();
    let mut halves = secured.halves;
    halves.stream.set_read_timeout(Some(LIMIT)).unwrap();
    let connect = Connect::new(role, Uuid::new_v4(), false);
    let handshake = ClientHandshake::new(connect, Role::ALL, None, DEFAULT_MAX_PAYLOAD);
    let hello = Outgoing::whole(handshake.connect().to_vec().into(), 1);
    halves.transmit.transmit(&[hello]).unwrap();
    while handshake.receive(halves.inbox.bytes_mut()).unwrap().is_none() {
        assert!(!halves.receive.receive(&mut halves.inbox).unwrap().end);
    }
    halves
}

/// The allocations of the server for each batch, while it routed this number of batches of frames of this
/// length.
fn routed(payload: usize, batches: u32) -> f64 {
    MINE.set(true);
    let authority = Authority::new(&AuthorityRequest::default()).unwrap();
    let identity = |role| {
        authority
            .issue(&CertificateRequest::new(role))
            .unwrap()
            .identity()
    };
    let config = ServerConfig::new(identity(Role::SERVER), authority.trust())
        .listen(Address::tcp("127.0.0.1", 0))
        .rules(Rules::new().multicast(Command::STATS, Role::CONTROLLER));
    let server = Server::start(config, ()).unwrap();
    let address = server.addresses()[0].clone();
    let mut controller = connect(
        &identity(Role::CONTROLLER),
        &authority,
        Role::CONTROLLER,
        &address,
    );
    let mut agent = connect(&identity(Role::AGENT), &authority, Role::AGENT, &address);

    let frame = Frame::with_payload(Command::STATS, vec![b'x'; payload]).encode();
    // A slow machine routes more of the shortest frames in several runs, each of which asks for memory.
    let frames = (16 * 1024 / frame.len()).clamp(1, 64);
    let batch = Outgoing::whole(frame.repeat(frames).into(), u32::try_from(frames).unwrap());
    let length = batch.len();
    // The controller has one batch before the agent sends the next one, so each read of the server brings
    // one record, however busy the machine is.
    let mut send_and_receive = |batches: u32| {
        for _ in 0..batches {
            agent.transmit.transmit(std::slice::from_ref(&batch)).unwrap();
            let mut expected = length;
            while expected > 0 {
                assert!(!controller.receive.receive(&mut controller.inbox).unwrap().end);
                expected -= controller.inbox.bytes_mut().len();
                controller.inbox.bytes_mut().clear();
            }
        }
    };
    // After this, all lasting allocations are made.
    send_and_receive(batches / 4);
    let before = ALLOCATIONS.load(Relaxed);
    send_and_receive(batches);
    let found = (ALLOCATIONS.load(Relaxed) - before) as f64;
    server.stop();
    found / f64::from(batches)
}

/// Two allocations for each TLS record are rustls's: the sealed and the opened record. Ours are for
/// each read, which brings one record here: the shared buffer of its frames with its count, and the list
/// of runs.
const FOR_EACH_READ: f64 = 6.0;

#[test]
fn a_server_asks_for_memory_by_the_read_not_by_the_frame() {
    let _alone = ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    for payload in [0, 256, 4096] {
        let batch = routed(payload, 2_000);
        println!("{payload} B: {batch:.2} for each batch");
        assert!(batch < FOR_EACH_READ, "{payload} B: {batch:.2} for each batch");
    }
}

/// A number from the environment, for larger runs by hand.
fn number(name: &str, otherwise: usize) -> usize {
    std::env::var(name).map_or(otherwise, |text| text.parse().unwrap())
}

#[test]
fn a_session_of_another_server_takes_less_than_400_bytes() {
    let _alone = ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let (servers, sessions) = (number("SSNTP_SERVERS", 4), number("SSNTP_SESSIONS", 10_000));
    let mut directory = Directory::new();
    // After this, all lasting allocations are made.
    directory.link(1);
    let others = servers - 1;
    // The second is the worst case: a hash table has just doubled.
    for sessions in [sessions, 14_337] {
        let (before, known, began) = (HELD.get(), directory.sessions(), Instant::now());
        for _ in 0..others {
            directory.link(sessions);
        }
        let (took, all) = (began.elapsed(), others * sessions);
        assert_eq!(directory.sessions() - known, all);
        let bytes = (HELD.get() - before) as f64;
        let each = bytes / all as f64;
        println!(
            "{others} servers with {sessions} sessions: {each:.0} bytes for each, {:.0} MiB; told in {took:.1?}",
            bytes / (1 << 20) as f64
        );
        assert!(each < 400.0, "{each:.0} bytes for each of {all}");
    }
}

#[test]
fn a_revocation_list_takes_a_few_times_its_length_while_it_is_read() {
    let _alone = ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let authority = Authority::new(&AuthorityRequest::default()).unwrap();
    let revoked = |number: u64| {
        let serial = Serial::of(&[[number.to_be_bytes(); 2].concat(), vec![7]].concat());
        Revoked::now(serial, RevocationReason::SUPERSEDED)
    };
    let revoked: Vec<_> = (1..=20_000).map(revoked).collect();
    let list = authority.revocation_list(&revoked, 1, 7).unwrap();
    let der = list.info.der.clone();
    let held = HELD.get();
    MOST.set(held);
    let read = RevocationList::from_der(&der).unwrap();
    let length = isize::try_from(der.len()).unwrap();
    let (most, kept) = (MOST.get() - held, HELD.get() - held);
    assert!(most < 4 * length && kept < 3 * length, "{length}: {most}, {kept}");
    assert!(read.len() == 20_000 && revoked.iter().all(|one| read.revokes(&one.serial)));
}

/// The memory that reading a document takes at most, in multiples of its length.
fn multiple(document: &str, read: impl FnOnce(&[u8])) -> f64 {
    let held = HELD.get();
    MOST.set(held);
    read(document.as_bytes());
    (MOST.get() - held) as f64 / document.len() as f64
}

/// A text of the longest length that a reader accepts, from parts by their numbers.
fn longest(head: &str, part: impl Fn(usize) -> String) -> String {
    let mut text = head.to_owned();
    for number in 0.. {
        let part = part(number);
        if text.len() + part.len() > MAX_DOCUMENT_LEN {
            break;
        }
        text += &part;
    }
    text
}

#[test]
fn a_document_takes_a_limited_multiple_of_its_length_while_it_is_read() {
    let _alone = ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let repeat = |part: &'static str| longest("", move |_| part.to_owned());
    for (name, document) in [
        ("values", repeat("- a\n")),
        ("keys", longest("", |number| format!("{number:x}: a\n"))),
        ("lists of one", repeat("- [a]\n")),
        ("maps of one", repeat("- {a: }\n")),
        ("maps of one in a line", longest("[", |_| "a: ,".to_owned())),
        ("values with escapes", repeat("- \"\\t\"\n")),
        ("anchors", longest("", |number| format!("- &{number:x} []\n"))),
        (
            "directives",
            longest("", |number| format!("%TAG !{number:x}! a\n")),
        ),
    ] {
        let times = multiple(&document, |document| {
            let _ = yaml::decode::<serde::de::IgnoredAny>(document);
        });
        println!("{name}: {times:.1}");
        assert!(times < 40.0, "{name}: {times:.1}");
    }
    // A schema adds the size of its elements, which may be as short as this.
    let document = longest("node_uuid: n\ninstances:\n", |_| "- {}\n".to_owned());
    let times = multiple(&document, |document| drop(Stats::decode(document).unwrap()));
    println!("empty instances: {times:.1}");
    assert!(times < 100.0, "empty instances: {times:.1}");
}
