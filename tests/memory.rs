//! The memory that queues count, beside the memory that the kernel sees. A process of its own, so that no
//! other test takes memory meanwhile.

#![allow(clippy::panic, clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;

use bytes::BytesMut;
use ssntp::proto::{Codec, Command, Frame, FrameKind, Item, ProtocolError, Status};
use ssntp_transport::outbox::{Limits, Outbox};
use ssntp_transport::{BufferPool, Decode, Duplex, Incoming, Next, Outgoing, ProcessFigures, memory, plain};

/// So much is counted for each shape of a stream.
const COUNTED: u64 = 2 << 20;

struct Decoder(Codec);

impl Decode for Decoder {
    type Item = Item;
    type Error = ProtocolError;

    fn decode(&mut self, input: &mut BytesMut, items: &mut Vec<Item>) -> Result<(), ProtocolError> {
        self.0.decode(input, items)
    }

    fn wanted(&self) -> usize {
        self.0.wanted()
    }
}

fn resident() -> u64 {
    ProcessFigures::read().resident.unwrap()
}

/// Frames of these lengths in turn. The first is forwarded, and nobody gets the second one.
fn stream([forwarded, other]: [usize; 2]) -> Vec<u8> {
    let kinds: [FrameKind; 2] = [Command::STATS.into(), Status::READY.into()];
    let frame = |(kind, len)| Frame::with_payload(kind, vec![7; len]).encode();
    kinds
        .into_iter()
        .zip([forwarded, other])
        .flat_map(frame)
        .collect()
}

/// Fills a queue with the forwarded frames of a stream, as a reader and the dispatcher do.
fn fill(outbox: &Outbox, bytes: &[u8]) {
    let (local, peer) = memory::pair();
    let mut halves = plain(Arc::new(local), BufferPool::new());
    let mut incoming = Incoming::new(Decoder(Codec::new(1 << 20, false)), halves.inbox, None);
    let (mut items, mut rest) = (Vec::new(), bytes);
    while outbox.waiting().memory() < COUNTED {
        match incoming.next(&mut items) {
            Next::Hand(_) => {}
            Next::Receive { .. } => {
                while let Ok(n) = peer.try_write(rest)
                    && n > 0
                {
                    rest = if n < rest.len() { &rest[n..] } else { bytes };
                }
                incoming.allow(usize::MAX);
                incoming.receive(&mut *halves.receive);
            }
            Next::End(why) => panic!("{why}"),
        }
        for item in items.drain(..) {
            if let Item::Run(run) = item
                && run.kind() == Command::STATS
            {
                let frames = u32::try_from(run.frames().count()).unwrap();
                let item = Outgoing::whole(run.wire().clone(), frames);
                outbox.push(item, Limits::NONE, false).unwrap();
            }
        }
    }
}

#[test]
#[expect(clippy::cast_precision_loss, reason = "a ratio")]
fn a_queue_counts_its_memory_as_the_kernel_sees_it() {
    // All of them stay, so that no memory is used twice.
    let mut queues = Vec::new();
    for lengths in [
        [100_000, 0],
        [20_900, 20_900],
        [20_900, 100],
        [300, 2_000],
        [50_000, 5_000],
        [45_000, 35_000],
        [3_000, 0],
        [0, 0],
    ] {
        let (bytes, before) = (stream(lengths), resident());
        let outbox = Outbox::new(Limits::NONE);
        fill(&outbox, &bytes);
        let ratio = (resident() - before) as f64 / outbox.waiting().memory() as f64;
        let fits = (1.0 / 1.3..1.3).contains(&ratio);
        assert!(fits, "{lengths:?}: the kernel sees {ratio:.2} times the memory");
        queues.push(outbox);
    }
}
