//! Flow control without threads: the tests let a writer write.

mod accounts;
mod lines;
mod remote;
mod slow;
mod turns;

use std::net::Shutdown;

use super::sender::{FIRST_RUN, LONGEST_RUN, RUN_TARGET};
use super::turns::{LIGHT, SHARE};
use super::*;
use crate::budget::Budget;
use crate::host::threads;
use crate::outbox::Limits;
use crate::outbox::tests::{Wire, item, long};
use crate::socket::{Duplex, memory};
use crate::stream::{BufferPool, plain};
use crate::table::Numbers;

/// The time of one share.
const TURN: Duration = Duration::from_nanos(SHARE);

/// The length of an item that is a batch of its own and takes 256 KiB and a
/// half of memory at most.
const UNIT: usize = 256 << 10;
/// The memory of a unit in a queue.
const MEMORY: u64 = UNIT as u64 + 128;

/// Connections without threads. Their writers write when a test calls them.
struct Net {
    flow: Flow<&'static str>,
    numbers: Numbers,
    budget: Budget,
    start: Instant,
}

struct Peer {
    id: ConnectionId,
    outbox: Outbox,
    credit: Arc<Credit>,
    wire: Wire,
}

impl Net {
    fn new(budget: u64) -> Self {
        let budget = Budget::new(budget);
        let mut flow = Flow::new(PATIENCE);
        flow.least_mark = u64::MAX;
        Self {
            flow,
            numbers: Numbers::default(),
            budget,
            start: crate::host::now(),
        }
    }

    /// A peer whose queue holds this number of units. Others may fill half of it.
    fn peer(&mut self, units: u64) -> Peer {
        self.peer_with(Limits {
            bytes: units * MEMORY,
            ..Limits::default()
        })
    }

    fn peer_with(&mut self, limits: Limits) -> Peer {
        self.peer_within(limits, self.budget.clone())
    }

    fn peer_within(&mut self, limits: Limits, budget: Budget) -> Peer {
        self.peer_of(None, limits, budget)
    }

    /// A new connection of a sender, with room for four units.
    fn again(&mut self, sender: u128) -> Peer {
        let limits = Limits {
            bytes: 4 * MEMORY,
            ..Limits::default()
        };
        self.peer_of(Some(sender), limits, self.budget.clone())
    }

    fn again_within(&mut self, sender: u128, received: &Budget) -> Peer {
        let budget = std::mem::replace(&mut self.budget, received.clone());
        let peer = self.again(sender);
        self.budget = budget;
        peer
    }

    fn peer_of(&mut self, sender: Option<u128>, limits: Limits, budget: Budget) -> Peer {
        let id = self.numbers.take();
        let outbox = Outbox::within(limits, budget);
        let wire = Wire::default();
        wire.open(&outbox);
        let credit = Arc::new(Credit::new(self.budget.clone()));
        let now = self.start;
        self.flow
            .insert(id, sender, outbox.clone(), limits, Arc::clone(&credit), now);
        Peer {
            id,
            outbox,
            credit,
            wire,
        }
    }

    fn at(&self, millis: u64) -> Instant {
        self.start + Duration::from_millis(millis)
    }

    fn send_item(&mut self, from: &Peer, to: &Peer, item: Outgoing) -> Delivery {
        let now = self.start;
        self.flow
            .deliver(Origin::Connection(from.id), to.id, item, false, now)
    }

    fn send(&mut self, from: &Peer, to: &Peer, units: usize) {
        for _ in 0..units {
            assert_eq!(self.send_item(from, to, long(UNIT)), Delivery::Taken);
        }
    }

    /// The application sends an item.
    fn tell(&mut self, to: &Peer, item: Outgoing) -> Delivery {
        self.flow
            .deliver(Origin::Application, to.id, item, false, self.start)
    }

    /// A writer sends all waiting items, and the line moves, until both are empty.
    fn drain(&mut self, to: &Peer) {
        while Wire::write(&to.outbox) {
            self.flow.room(to.id, self.start);
        }
        assert!(!self.flow.is_waited_for(to.id));
    }

    /// Acts like the runner.
    fn drop_overflow(&mut self, to: &Peer, oldest: bool) -> usize {
        let mut dropped = 0;
        while self.flow.overflow(to.id).is_some() {
            self.flow.drop_one(to.id, oldest);
            dropped += 1;
        }
        dropped
    }

    fn waits(&self, sender: &Peer) -> bool {
        assert_eq!(self.flow.fault(), None);
        self.flow.is_paused(sender.id)
    }

    fn slow(&self, peer: &Peer) -> bool {
        self.flow.state(peer.id).is_slow
    }

    fn read(&mut self, from: &Peer, items: &[&'static str]) {
        self.read_bytes(from, items, 100);
    }

    fn read_bytes(&mut self, from: &Peer, items: &[&'static str], bytes: u64) {
        from.credit.spend(bytes);
        self.flow.arrived(from.id, items.to_vec(), bytes, self.start);
    }

    fn turn(&mut self) -> Option<ConnectionId> {
        self.flow.next_turn()
    }

    /// A turn in which each item takes `each`. Returns its connection and the number of its items.
    fn whole_turn(&mut self, each: Duration) -> Option<(ConnectionId, u32)> {
        let (id, mut items) = (self.flow.next_turn()?, 0);
        while self.flow.take(id).is_some() {
            self.flow.charge(id, 1, each, 1);
            items += 1;
        }
        self.flow.end_turn(id);
        Some((id, items))
    }
}

fn items<I>(input: Option<Input<I>>) -> Option<I> {
    match input {
        Some(Input::Item(item, _)) => Some(item),
        _ => None,
    }
}

/// Lets the writer write one unit.
fn write_one(peer: &Peer) -> bool {
    Wire::step(&peer.outbox).unwrap().unwrap().1
}
