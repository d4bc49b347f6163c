//! The slots of handshakes: the progress of each newcomer, and which of them is cut to make room.
//! These decisions use no clock, lock or thread. Accept and handshake threads carry them out; a
//! simulation does so in virtual time; the module is public for simulations.
//!
//! ```text
//!  take ─▶ Computes ─ waits ▶ Waits ─ goes_on ▶ Computes … ─ input_complete ─▶ … ─ admitted ─▶
//!                               │                                          give_back
//!                               └─ too long, and all slots are used: cut ─▶
//! ```

#[cfg(test)]
mod simulation;
#[cfg(test)]
mod starved;

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// The time that a handshake may wait for its peer before it may be cut to make room. Only time in
/// which the peer has to act counts, so a slow server never makes an honest peer look slow.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// Before the peer's first byte.
    pub first: Duration,
    /// In one later wait, without a byte.
    pub silent: Duration,
    /// In all waits together, so that a peer gains no time by sending single bytes.
    pub in_sum: Duration,
    /// A handshake that takes longer than this, without the time that it waits for its peer, halves the
    /// number of slots: this host computes too many at a time, and peers would give up before any is done. A
    /// handshake that takes less than half of it allows one slot more, up to the maximum. `None` if the number
    /// stays, because a slot is used for more than a handshake.
    pub too_long: Option<Duration>,
}

/// An honest peer answers within a round trip and some milliseconds, three times in a handshake. Its
/// first bytes follow its connection at once, and while all slots are used they arrive while it is in
/// the backlog. So a client that sends no byte is cut sooner: with three slots, a thousand such
/// clients take some seconds.
pub const PATIENCE: Patience = Patience {
    first: Duration::from_millis(10),
    silent: Duration::from_millis(250),
    in_sum: Duration::from_secs(2),
    too_long: Some(Duration::from_secs(1)),
};
/// For programs on the same host whose whole connection is served on its slot.
pub const WHOLE_CONNECTION: Patience = Patience {
    too_long: None,
    ..PATIENCE
};
/// For clients whose whole request fits into a packet and arrives with the connection. A thousand
/// silent clients then take about a second.
pub const BRIEF: Patience = Patience {
    first: Duration::from_millis(20),
    silent: Duration::from_millis(20),
    in_sum: Duration::from_millis(200),
    too_long: None,
};
/// The interval at which an accept thread checks for a handshake to cut, while all slots are used.
pub const LOOK: Duration = Duration::from_millis(5);

/// The kind of a wait for the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// The peer has to send.
    Read,
    /// The peer has to receive.
    Write,
}

/// The state of a handshake.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HandshakeState {
    /// The peer has to send or receive, or the thread of the handshake computes.
    #[default]
    UnderWay,
    /// The server stops, so no more input is read. The peer gets the reason.
    Stopping,
    /// All of the peer's input was received, and the answer is being sent.
    InputComplete,
    /// The handshake was ended to make room for another newcomer.
    Cut,
    /// The handshake is over, and the peer has a session.
    Admitted,
}

/// The progress of a handshake, and the time that it has waited for its peer.
#[derive(Debug)]
struct Progress {
    began: Instant,
    state: HandshakeState,
    /// True if the peer has sent a byte.
    has_sent: bool,
    /// The times since which a read and a write wait for the peer.
    since: [Option<Instant>; 2],
    /// The sum of all waits that have ended.
    waited: Duration,
    /// The time that this host had used when all input was received. Later it waits for others: for the
    /// dispatcher, another server, or a store.
    computed: Option<Duration>,
}

impl Progress {
    fn computed(&self, now: Instant) -> Duration {
        let so_far = now.saturating_duration_since(self.began + self.waited);
        self.computed.unwrap_or(so_far)
    }

    /// The sum of all its waits, if it waits now and for too long.
    fn waited_too_long(&self, now: Instant, patience: Patience) -> Option<Duration> {
        if !matches!(
            self.state,
            HandshakeState::UnderWay | HandshakeState::InputComplete
        ) {
            return None;
        }
        let waits = self.since.iter().flatten();
        let silent = waits.map(|since| now.saturating_duration_since(*since)).max()?;
        let in_sum = self.waited + silent;
        let limit = if self.has_sent {
            patience.silent
        } else {
            patience.first
        };
        (silent >= limit || in_sum >= patience.in_sum).then_some(in_sum)
    }
}

/// The slots of a server. A used slot has the peer and the progress of its handshake.
#[derive(Debug)]
pub struct Slots<P> {
    /// The maximum number of slots; at least 1.
    max: usize,
    /// The number of slots that this host has time for.
    pub limit: usize,
    patience: Patience,
    last: u64,
    /// True after [`close`](Self::close): no more slots are given.
    pub is_closed: bool,
    /// In the order of arrival, so that of equal waits the oldest is cut.
    taken: BTreeMap<u64, (P, Progress)>,
}

impl<P> Slots<P> {
    /// `max` free slots, or one if that is 0.
    pub fn new(max: usize, patience: Patience) -> Self {
        Self {
            max: max.max(1),
            limit: max.max(1),
            patience,
            last: 0,
            is_closed: false,
            taken: BTreeMap::new(),
        }
    }

    /// The number of handshakes that have a slot.
    pub fn running(&self) -> usize {
        self.taken.len()
    }

    /// True if a newcomer has to wait for a slot.
    pub fn is_full(&self) -> bool {
        self.taken.len() >= self.limit
    }

    /// A slot for a peer. `None` if all are used or this is closed.
    pub fn take(&mut self, peer: P, now: Instant) -> Option<u64> {
        if self.is_full() || self.is_closed {
            return None;
        }
        self.last += 1;
        let progress = Progress {
            began: now,
            state: HandshakeState::default(),
            has_sent: false,
            since: [None; 2],
            waited: Duration::ZERO,
            computed: None,
        };
        self.taken.insert(self.last, (peer, progress));
        Some(self.last)
    }

    /// Frees a slot, and decides how many there are from now on.
    pub fn give_back(&mut self, slot: u64, now: Instant) {
        let Some((_, progress)) = self.taken.remove(&slot) else {
            return;
        };
        let Some(too_long) = self.patience.too_long else {
            return;
        };
        let computed = progress.computed(now);
        if computed > too_long {
            self.limit = (self.limit / 2).max(1);
        } else if computed < too_long / 2 {
            self.limit = (self.limit + 1).min(self.max);
        }
    }

    /// Notes that the handshake waits for its peer. A slot that was given back is ignored, so that
    /// also a session may call this.
    pub fn waits(&mut self, slot: u64, wait: Wait, now: Instant) {
        if let Some((_, progress)) = self.taken.get_mut(&slot) {
            progress.since[wait as usize] = Some(now);
        }
    }

    /// Notes that the wait is over.
    pub fn goes_on(&mut self, slot: u64, wait: Wait, now: Instant) {
        if let Some((_, progress)) = self.taken.get_mut(&slot) {
            progress.has_sent |= wait == Wait::Read;
            if let Some(since) = progress.since[wait as usize].take() {
                progress.waited += now.saturating_duration_since(since);
            }
        }
    }

    /// Notes that the peer has sent bytes before the handshake waited for them.
    pub fn sent_early(&mut self, slot: u64) {
        if let Some((_, progress)) = self.taken.get_mut(&slot) {
            progress.has_sent = true;
        }
    }

    /// The number of handshakes that wait for their peers in this way.
    #[cfg(test)]
    pub fn waiting(&self, wait: Wait) -> usize {
        let since = |(_, progress): &(P, Progress)| progress.since[wait as usize];
        self.taken.values().filter_map(since).count()
    }

    /// The state of the handshake. `None` once its slot was given back.
    pub fn state_of(&self, slot: u64) -> Option<HandshakeState> {
        self.taken.get(&slot).map(|(_, progress)| progress.state)
    }

    /// Notes that all input of the handshake was received. From now on there may be a session to
    /// which others send, so a stop ends that session instead of this input. False if it was cut or
    /// stopped before.
    pub fn input_complete(&mut self, slot: u64, now: Instant) -> bool {
        if let Some((_, progress)) = self.taken.get_mut(&slot) {
            progress.computed = Some(progress.computed(now));
        }
        self.advance(slot, HandshakeState::UnderWay, HandshakeState::InputComplete)
            == Some(HandshakeState::InputComplete)
    }

    /// Notes that the handshake is over. From now on it is neither cut nor stopped, and reads may
    /// wait. False if it was cut or stopped before.
    pub fn admitted(&mut self, slot: u64) -> bool {
        // A handshake may be admitted without a separate report that its input is complete.
        self.advance(slot, HandshakeState::UnderWay, HandshakeState::InputComplete);
        self.advance(slot, HandshakeState::InputComplete, HandshakeState::Admitted)
            == Some(HandshakeState::Admitted)
    }

    fn advance(&mut self, slot: u64, from: HandshakeState, to: HandshakeState) -> Option<HandshakeState> {
        let (_, progress) = self.taken.get_mut(&slot)?;
        if progress.state == from {
            progress.state = to;
        }
        Some(progress.state)
    }

    /// Cuts the handshake with the longest wait in all, of those that have waited too long, and
    /// returns its peer. If `has_input`, bytes have arrived and its thread waits for a processor of
    /// this host, so it is not cut, unless it waits in a write. None is cut while a slot is free.
    pub fn cut(&mut self, now: Instant, has_input: impl Fn(&P) -> bool) -> Option<&P> {
        if !self.is_full() {
            return None;
        }
        let waited = |progress: &Progress| progress.waited_too_long(now, self.patience);
        let taken = self.taken.values_mut();
        let mut slow: Vec<_> = taken.filter_map(|one| Some((waited(&one.1)?, one))).collect();
        slow.sort_by_key(|(waited, _)| Reverse(*waited));
        let writes = |progress: &Progress| progress.since[Wait::Write as usize].is_some();
        let mut slow = slow.into_iter().map(|(_, one)| one);
        let (peer, progress) = slow.find(|(peer, progress)| writes(progress) || !has_input(peer))?;
        progress.state = HandshakeState::Cut;
        Some(peer)
    }

    /// Closes all slots. Returns the peers whose input is to end. If all input of a handshake was
    /// received, its session ends instead. All peers can still get the reason.
    pub fn close(&mut self) -> impl Iterator<Item = &P> {
        self.is_closed = true;
        self.taken.values_mut().filter_map(|(peer, progress)| {
            let ends = progress.state == HandshakeState::UnderWay;
            ends.then(|| progress.state = HandshakeState::Stopping)?;
            Some(&*peer)
        })
    }
}
