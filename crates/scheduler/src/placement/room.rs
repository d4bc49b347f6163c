//! The room of a node, or for a START.

use ssntp_cluster::Needs;
use ssntp_payload::Ready;

/// Memory in MB, disk in MB, and CPUs: of a node, or for a START.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Room(pub(super) [i64; 3]);

impl Room {
    /// The room that a START takes.
    pub(super) fn needed(needs: &Needs) -> Self {
        Self([needs.mem_mb, needs.disk_mb, needs.vcpus])
    }

    /// The room of a node before its first READY. Any START fits into it.
    pub(super) const UNKNOWN: Self = Self([i64::MAX; 3]);

    pub(super) fn of(ready: &Ready) -> Self {
        let known = |value: i64| if value < 0 { i64::MAX } else { value };
        let values = [ready.mem_available_mb, ready.disk_available_mb, ready.cpus_online];
        Self(values.map(known))
    }

    pub(super) fn holds(self, wanted: Self) -> bool {
        let mut both = self.0.into_iter().zip(wanted.0);
        both.all(|(have, wanted)| have >= wanted)
    }

    /// The sum. An unknown value remains unknown.
    pub(super) fn plus(mut self, more: Self) -> Self {
        for (have, more) in self.0.iter_mut().zip(more.0) {
            *have += if *have == i64::MAX { 0 } else { more };
        }
        self
    }

    pub(super) fn minus(self, less: Self) -> Self {
        self.plus(Self(less.0.map(|value| -value)))
    }
}
