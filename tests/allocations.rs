//! How often a server asks for memory while it routes.
//!
//! An allocator around the system's counts what the server's own threads ask
//! for: reader, dispatcher and writer, TLS included. The peers' threads, which
//! are in the same process, do not count.
#![allow(unsafe_code, reason = "an allocator is unsafe to implement")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::disallowed_methods,
    reason = "a test fails by panicking"
)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use ssntp::Role;
use ssntp::pki::{Authority, AuthorityRequest, CertificateRequest, Identity};
use ssntp::proto::{ClientHandshake, Command, Connect, DEFAULT_MAX_PAYLOAD, Frame};
use ssntp::server::{Rules, Server, ServerConfig};
use ssntp::transport::tls::Connector;
use ssntp::transport::{Address, TcpOptions};
use ssntp_transport::{BufferPool, Halves, Outgoing, connect_tcp};
use uuid::Uuid;

const LIMIT: Duration = Duration::from_secs(30);

/// Counts on the way to the system's allocator.
struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// Whether this thread is one of the test's own.
    static MINE: Cell<bool> = const { Cell::new(false) };
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
        // SAFETY: the caller keeps the rules of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller keeps the rules of `alloc_zeroed`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: the caller keeps the rules of `realloc`.
        unsafe { System.realloc(pointer, layout, size) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
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
    let connector = Connector::mutual(identity, &authority.trust()).unwrap();
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

/// What the server asked for while it routed so many batches of frames of
/// this length: allocations for each frame, and for each batch.
fn routed(payload: usize, batches: u32) -> (f64, f64) {
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
    let frames = (16 * 1024 / frame.len()).max(1);
    let batch = Outgoing::whole(frame.repeat(frames).into(), u32::try_from(frames).unwrap());
    let length = batch.len();
    let mut send_and_receive = |batches: u32| {
        let mut expected = length * batches as usize;
        std::thread::scope(|scope| {
            let (agent, batch) = (&mut agent, &batch);
            scope.spawn(move || {
                MINE.set(true);
                for _ in 0..batches {
                    agent.transmit.transmit(std::slice::from_ref(batch)).unwrap();
                }
            });
            while expected > 0 {
                assert!(!controller.receive.receive(&mut controller.inbox).unwrap().end);
                expected -= controller.inbox.bytes_mut().len();
                controller.inbox.bytes_mut().clear();
            }
        });
    };
    // What is made once is made, and what grows has grown.
    send_and_receive(batches / 4);
    let before = ALLOCATIONS.load(Relaxed);
    send_and_receive(batches);
    let found = (ALLOCATIONS.load(Relaxed) - before) as f64;
    server.stop();
    let batches = f64::from(batches);
    (found / batches / frames as f64, found / batches)
}

/// Two for each TLS record are rustls's: what it seals into, and what it
/// opened. Ours are for each read, which brings one record or several: the
/// buffer that its frames share, with its count, and the list of runs.
const FOR_EACH_RECORD: f64 = 6.0;

#[test]
fn a_server_asks_for_memory_by_the_record_not_by_the_frame() {
    for payload in [0, 256, 4096] {
        let (each, batch) = routed(payload, 2_000);
        println!("{payload} B: {each:.4} for each frame, {batch:.2} for each batch of 16 KiB");
        assert!(batch < FOR_EACH_RECORD, "{payload} B: {batch:.2} for each batch");
        if payload == 0 {
            assert!(each < 0.01, "{each:.4} for each frame");
        }
    }
}
