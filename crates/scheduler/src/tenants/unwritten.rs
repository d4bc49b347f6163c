//! What the file of the table does not have yet: the changes since the last write, and what waits until they
//! are written.
//!
//! ```text
//!  a change, a START ─▶ waits ─┬─ the write is done ──────▶ Finished, and which addresses are free there, too
//!                              └─ it has failed, 30 s ────▶ Finished, with the reason
//! ```
//!
//! One write is in progress at a time, and a change waits for the first one that begins after it. After a write
//! that has failed, the next change is written together with the earlier ones.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use bytes::Bytes;
use uuid::Uuid;

use super::Table;
use crate::keeper::Keeper;
use crate::parking::ParkingQueue;
use crate::shared::Written;
use ssntp::proto::Frame;
use ssntp::server::SessionInfo;
use ssntp_cluster::summed::summed;
use ssntp_payload::Tenants as Answer;

/// The maximum number of changes that wait for the disk: those of the write in progress, and as many for the
/// next one. A further one is refused.
const MAX_WAITING: usize = 512;
/// The maximum number of bytes of the STARTs that wait for the disk, each as it arrived and with its address. It is
/// enough for one of the longest.
pub(super) const MAX_WAITING_BYTES: usize = 64 << 20;
/// The time after which a change that waits for a disk is answered. An engine answers within five seconds.
const MAX_WAIT: Duration = Duration::from_secs(30);

/// What waits for a write.
#[derive(Debug)]
pub(super) struct Pending {
    /// The controller that it is of.
    pub(super) from: SessionInfo,
    pub(super) due: Due,
    /// The number of the first write that includes the change.
    write: u64,
}

/// What is due once a change is written.
#[derive(Debug)]
pub(super) enum Due {
    Answer(Answer),
    Start(WaitingStart),
}

/// A START that waits until the address of its instance is written.
#[derive(Debug)]
pub(super) struct WaitingStart {
    /// As its controller has sent it.
    pub(super) arrived: Frame,
    /// With its address.
    pub(super) leased: Frame,
    pub(super) instance: Uuid,
    /// The tenant and address of its instance.
    pub(super) lease: Option<(String, Ipv4Addr)>,
    /// True if the address was leased for this START.
    pub(super) is_new: bool,
}

/// What waits no longer, and its result: the instances whose addresses are free in the file as well, or why
/// the changes may be lost.
pub(super) type Finished = (Vec<Pending>, Result<BTreeSet<Uuid>, String>);

/// The changes that are not written yet, and what waits for that.
#[derive(Debug)]
pub(crate) struct Unwritten {
    /// The keeper of the table's file. The scheduler starts its thread.
    pub(crate) keeper: Keeper,
    waiting: ParkingQueue<Pending>,
    /// The number of writes that have begun.
    begun: u64,
    is_writing: bool,
    /// True if there are changes that no write has included, or one that has failed.
    is_changed: bool,
    /// If there are several schedulers: the instances whose addresses were freed, each with the number of the
    /// first write that frees it.
    freed: BTreeMap<Uuid, u64>,
}

impl Default for Unwritten {
    /// For a table that is only in memory.
    fn default() -> Self {
        Self {
            keeper: Keeper::default(),
            waiting: ParkingQueue::new(MAX_WAITING, MAX_WAITING_BYTES, MAX_WAIT),
            begun: 0,
            is_writing: false,
            is_changed: false,
            freed: BTreeMap::new(),
        }
    }
}

impl Unwritten {
    /// True if a change can wait for the disk, with this number of bytes.
    pub(super) fn has_room(&self, bytes: usize) -> bool {
        self.waiting.has_room(bytes)
    }

    /// True if there is a file that does not have all changes.
    pub(super) fn is_behind(&self) -> bool {
        self.keeper.is_durable() && (self.is_changed || self.is_writing)
    }

    /// True if the engine may still have an address for this instance, although it is free.
    pub(crate) fn is_freeing(&self, instance: Uuid) -> bool {
        self.freed.contains_key(&instance)
    }

    /// The number of instances whose addresses are free, and may not be in the engine.
    pub(super) fn freed(&self) -> usize {
        self.freed.len()
    }

    /// The time at which the oldest change that waits is answered even if it has not been written.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.waiting.next_deadline()
    }

    /// The table may have changed.
    pub(super) fn handle_change(&mut self, has_changed: bool) {
        self.is_changed |= has_changed;
    }

    /// The address of an instance is free. `is_shared` is true if other schedulers may free it, too.
    pub(super) fn handle_freed(&mut self, instance: Uuid, is_shared: bool) {
        self.is_changed = true;
        if is_shared {
            self.freed.insert(instance, self.begun + 1);
        }
    }

    /// The address of an instance is leased again.
    pub(super) fn handle_leased(&mut self, instance: Uuid) {
        self.freed.remove(&instance);
    }

    /// Lets something wait until the table is written. A repeated request causes one more write.
    pub(super) fn wait(&mut self, from: &SessionInfo, due: Due, now: Instant) {
        let bytes = match &due {
            Due::Start(start) => start.arrived.encoded_len() + start.leased.encoded_len(),
            Due::Answer(_) => 0,
        };
        let pending = Pending {
            from: from.clone(),
            due,
            write: self.begun + 1,
        };
        self.waiting.push(pending, bytes, now);
        self.is_changed = true;
    }

    /// Hands the table over to the thread if it has changed and no write is in progress.
    pub(super) fn write(&mut self, table: &Table) {
        if !self.is_writing {
            self.write_last(table);
        }
    }

    /// Like [`write`](Self::write), before the thread ends: it accepts one more content while a write is in
    /// progress.
    pub(super) fn write_last(&mut self, table: &Table) {
        if self.is_changed && self.keeper.is_durable() {
            self.keeper.write(summed(table).map(Bytes::from));
            self.begun += 1;
            (self.is_writing, self.is_changed) = (true, false);
        }
    }

    /// What waits no longer: its write has ended, or it has waited too long. After a write that has succeeded,
    /// the caller begins the next one.
    pub(super) fn take_finished(&mut self, now: Instant) -> Option<Finished> {
        let Some(written) = self.keeper.take_result() else {
            let done: Vec<_> = std::iter::from_fn(|| self.waiting.expire(now)).collect();
            let limit = MAX_WAIT.as_secs();
            let result = Err(format!("it may be lost, the disk has not answered for {limit} s"));
            return (!done.is_empty()).then_some((done, result));
        };
        self.is_writing = false;
        let begun = self.begun;
        let why = match written {
            Written::Done => {
                let freed = std::mem::take(&mut self.freed).into_iter();
                let (freed, later): (BTreeMap<_, _>, _) = freed.partition(|(_, write)| *write <= begun);
                self.freed = later;
                let done = self.take_waiting(|pending| pending.write <= begun);
                return Some((done, Ok(freed.into_keys().collect())));
            }
            Written::Refused(why) => format!("it may be lost, the file cannot be written: {why}"),
            Written::Unknown(why) => format!("it may be lost, the outcome of its write is unknown: {why}"),
        };
        // The table keeps the changes, because a key that was assigned must not be assigned to
        // another tenant. The next change is written together with them. There is no earlier
        // attempt, which would keep a full disk busy.
        self.is_changed = true;
        Some((self.take_waiting(|_| true), Err(why)))
    }

    /// Takes what waits for the next write.
    pub(super) fn take_unbegun(&mut self) -> Vec<Pending> {
        let begun = self.begun;
        self.take_waiting(|pending| pending.write > begun)
    }

    /// Takes the STARTs that wait.
    pub(super) fn take_starts(&mut self) -> Vec<Pending> {
        self.take_waiting(|pending| matches!(pending.due, Due::Start(_)))
    }

    /// Takes the instances whose addresses this scheduler freed and could not write, because it led no more or the
    /// engine's table could not be read. Those of the write in progress stay, because it may still fail.
    pub(crate) fn take_freed(&mut self) -> Vec<Uuid> {
        let freed = self.freed.keys().copied().collect();
        let (begun, is_writing) = (self.begun, self.is_writing);
        self.freed.retain(|_, write| is_writing && *write <= begun);
        freed
    }

    /// Another scheduler leads. It frees these addresses itself, and may lease them again to the same
    /// instances.
    pub(crate) fn forget_freed(&mut self) {
        self.freed.clear();
    }

    fn take_waiting(&mut self, is_it: impl Fn(&Pending) -> bool) -> Vec<Pending> {
        let mut at = 0;
        let next = || {
            self.waiting
                .take_next(&mut at, |pending| is_it(pending).then_some(()))
        };
        std::iter::from_fn(next).map(|(pending, ())| pending).collect()
    }
}
