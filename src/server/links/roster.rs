//! The sessions of other servers, as those servers report them.
//!
//! ```text
//!  link starts ─▶ SNAPSHOT … SNAPSHOT(last) ─▶ CONNECTED, GONE, each numbered ─▶ link ends
//!                 replaces all rows             a gap is a fault               all rows go
//! ```
//!
//! Plain data without I/O. After a partition, several servers may report a session of one UUID for a
//! moment. Then the row with the highest [`Rank`] counts; of equal ranks, that of the server with the
//! greater UUID. All servers decide alike, and the servers of the other rows end their sessions.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use uuid::Uuid;

use super::frames::{LinkFault, Row};
use crate::server::sessions::{ROLES, Rank, SessionId, SessionInfo, bits};
use ssntp_pki::Role;
use ssntp_pki::{CertificateDer, CertificateInfo, KeptCertificate};
use ssntp_transport::ConnectionId;

/// The maximum number of sessions of one server: more than the threads of a Linux system allow.
const MOST: usize = 1 << 21;

/// A session of another server.
#[derive(Debug)]
pub(crate) struct Remote {
    pub(crate) info: SessionInfo,
    pub(crate) rank: Rank,
}

impl Remote {
    fn outranks(&self, other: &Self) -> bool {
        (self.rank, self.info.server) > (other.rank, other.info.server)
    }
}

/// The rows that a link frame has added and removed.
#[derive(Debug, Default)]
pub(crate) struct RosterChanges {
    pub(crate) connected: Vec<Arc<Remote>>,
    pub(crate) removed: Vec<Arc<Remote>>,
}

/// The rows of one server.
#[derive(Debug, Default)]
struct Rows {
    /// The number of the last change; `None` until the snapshot is complete.
    sequence: Option<u64>,
    /// The rows of an incomplete snapshot.
    parts: Vec<Row>,
    by_uuid: HashMap<Uuid, Arc<Remote>>,
    /// The number of sessions with each role.
    roles: [usize; ROLES],
}

/// The sessions of all other servers.
#[derive(Debug)]
pub(crate) struct Roster {
    servers: HashMap<Uuid, Rows>,
    /// The row that counts for each UUID.
    by_uuid: HashMap<Uuid, Arc<Remote>>,
    by_role: [BTreeMap<Uuid, Arc<Remote>>; ROLES],
    /// An empty certificate for all rows, because servers do not report those of their clients.
    certificate: KeptCertificate,
}

impl Default for Roster {
    fn default() -> Self {
        let nothing = CertificateInfo::nothing(&CertificateDer::from(Vec::new()));
        Self {
            servers: HashMap::new(),
            by_uuid: HashMap::new(),
            by_role: Default::default(),
            certificate: KeptCertificate::new(&nothing, None),
        }
    }
}

impl Roster {
    #[cfg(test)]
    fn len(&self) -> usize {
        self.by_uuid.len()
    }

    /// The session that counts for a UUID.
    pub(crate) fn get(&self, uuid: Uuid) -> Option<&Arc<Remote>> {
        self.by_uuid.get(&uuid)
    }

    /// The session that one server has of a UUID.
    pub(super) fn of(&self, server: Uuid, uuid: Uuid) -> Option<&Arc<Remote>> {
        self.servers.get(&server)?.by_uuid.get(&uuid)
    }

    /// Every session.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<Remote>> {
        self.by_uuid.values()
    }

    /// Every session with at least one of the roles, each once.
    pub(crate) fn with_role(&self, role: Role) -> impl Iterator<Item = &Arc<Remote>> {
        bits(role).flat_map(move |bit| {
            // A session with several of the roles is listed only under the lowest one.
            let earlier = role.bits() & ((1 << bit) - 1);
            let rows = self.by_role[bit].values();
            rows.filter(move |row| row.info.role.bits() & earlier == 0)
        })
    }

    /// The number of sessions of a server.
    pub(super) fn sessions_of(&self, server: Uuid) -> usize {
        self.servers.get(&server).map_or(0, |rows| rows.by_uuid.len())
    }

    /// The number of a server's sessions that have at least one of the roles, without `except`.
    pub(super) fn count(&self, server: Uuid, role: Role, except: Option<Uuid>) -> usize {
        let Some(rows) = self.servers.get(&server) else {
            return 0;
        };
        let excepted = except
            .and_then(|uuid| rows.by_uuid.get(&uuid))
            .is_some_and(|row| row.info.role.intersects(role));
        // A counter for each role makes the common cases fast. Sessions with several of the roles would
        // count twice, so other sets are counted one by one.
        let count = match role.bits().count_ones() {
            1 => bits(role).map(|bit| rows.roles[bit]).sum(),
            _ if role == Role::ALL => rows.by_uuid.len(),
            _ => rows
                .by_uuid
                .values()
                .filter(|row| row.info.role.intersects(role))
                .count(),
        };
        count - usize::from(excepted)
    }

    /// Adds a part of a snapshot. Returns the changes once the snapshot is complete.
    ///
    /// # Errors
    /// [`LinkFault`] if there are too many rows, or the snapshot was complete before.
    pub(super) fn snapshot(
        &mut self,
        server: Uuid,
        sequence: u64,
        rows: Vec<Row>,
        is_last: bool,
    ) -> Result<Option<RosterChanges>, LinkFault> {
        let of = self.servers.entry(server).or_default();
        if of.sequence.is_some() {
            return Err(LinkFault::Turn("SNAPSHOT"));
        }
        // Checked for each part, so that a peer cannot fill the memory before the last part.
        if of.parts.len() + rows.len() > MOST {
            return Err(LinkFault::Sessions(MOST));
        }
        of.parts.extend(rows);
        if !is_last {
            return Ok(None);
        }
        // The server has no other rows, because those of an earlier link were removed at its end.
        of.sequence = Some(sequence);
        let mut changes = RosterChanges::default();
        for row in std::mem::take(&mut of.parts) {
            self.insert(server, row, &mut changes);
        }
        // A UUID that is listed twice. The notices of the first row would be in the wrong order.
        if !changes.removed.is_empty() {
            return Err(LinkFault::Value("SNAPSHOT", "its rows"));
        }
        Ok(Some(changes))
    }

    /// Adds a new session of a server.
    ///
    /// # Errors
    /// [`LinkFault`] if a change is missing, or there are too many rows.
    pub(super) fn connected(
        &mut self,
        server: Uuid,
        sequence: u64,
        row: Row,
    ) -> Result<RosterChanges, LinkFault> {
        let rows = self.next(server, sequence, "CONNECTED")?;
        if rows.by_uuid.len() >= MOST {
            return Err(LinkFault::Sessions(MOST));
        }
        let mut changes = RosterChanges::default();
        self.insert(server, row, &mut changes);
        Ok(changes)
    }

    /// Removes a session of a server.
    ///
    /// # Errors
    /// [`LinkFault`] if a change is missing.
    pub(super) fn gone(
        &mut self,
        server: Uuid,
        sequence: u64,
        number: u64,
        uuid: Uuid,
    ) -> Result<RosterChanges, LinkFault> {
        let rows = self.next(server, sequence, "GONE")?;
        // The number tells the ended session from a newer one of the same UUID.
        let is_it = rows
            .by_uuid
            .get(&uuid)
            .is_some_and(|row| row.info.id.0.0 == number);
        let mut changes = RosterChanges::default();
        if is_it {
            changes.removed.extend(self.remove(server, uuid));
        }
        Ok(changes)
    }

    /// Removes all sessions of a server, because the link to it has ended. Returns them.
    pub(super) fn end(&mut self, server: Uuid) -> Vec<Arc<Remote>> {
        let rows = self.servers.remove(&server).unwrap_or_default();
        let removed: Vec<_> = rows.by_uuid.into_values().collect();
        for row in &removed {
            self.forget(row);
        }
        removed
    }

    /// Checks that this is the next change of a server's sessions.
    fn next(&mut self, server: Uuid, got: u64, name: &'static str) -> Result<&mut Rows, LinkFault> {
        let rows = self.servers.get_mut(&server).ok_or(LinkFault::Turn(name))?;
        let before = rows.sequence.ok_or(LinkFault::Turn(name))?;
        if got != before.wrapping_add(1) {
            return Err(LinkFault::Gap { before, got });
        }
        rows.sequence = Some(got);
        Ok(rows)
    }

    fn insert(&mut self, server: Uuid, row: Row, changes: &mut RosterChanges) {
        // A correct peer sends GONE first. Without this, the first row would stay in the indexes.
        changes.removed.extend(self.remove(server, row.uuid));
        let remote = Arc::new(Remote {
            info: SessionInfo {
                id: SessionId(ConnectionId(row.number)),
                server,
                uuid: row.uuid,
                role: row.role,
                address: row.address,
                certificate: self.certificate.clone(),
                tracing: row.tracing,
            },
            rank: row.rank,
        });
        let rows = self.servers.entry(server).or_default();
        bits(row.role).for_each(|bit| rows.roles[bit] += 1);
        rows.by_uuid.insert(row.uuid, Arc::clone(&remote));
        let before = self.by_uuid.get(&row.uuid);
        if before.is_none_or(|before| remote.outranks(before)) {
            self.show(&remote);
        }
        changes.connected.push(remote);
    }

    fn remove(&mut self, server: Uuid, uuid: Uuid) -> Option<Arc<Remote>> {
        let rows = self.servers.get_mut(&server)?;
        let row = rows.by_uuid.remove(&uuid)?;
        bits(row.info.role).for_each(|bit| rows.roles[bit] -= 1);
        self.forget(&row);
        Some(row)
    }

    /// Makes a row the one that counts for its UUID.
    fn show(&mut self, row: &Arc<Remote>) {
        let uuid = row.info.uuid;
        if let Some(before) = self.by_uuid.insert(uuid, Arc::clone(row)) {
            self.hide(&before);
        }
        for bit in bits(row.info.role) {
            self.by_role[bit].insert(uuid, Arc::clone(row));
        }
    }

    /// Removes a row from the index by role.
    fn hide(&mut self, row: &Remote) {
        for bit in bits(row.info.role) {
            self.by_role[bit].remove(&row.info.uuid);
        }
    }

    /// Removes a row whose session has ended. The row of another server may count from now on.
    fn forget(&mut self, row: &Arc<Remote>) {
        let uuid = row.info.uuid;
        if !self
            .by_uuid
            .get(&uuid)
            .is_some_and(|shown| Arc::ptr_eq(shown, row))
        {
            return;
        }
        self.hide(row);
        self.by_uuid.remove(&uuid);
        let others = self.servers.values().filter_map(|rows| rows.by_uuid.get(&uuid));
        let next = others.reduce(|one, other| if other.outranks(one) { other } else { one });
        if let Some(next) = next.cloned() {
            self.show(&next);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use ssntp_transport::PeerAddress;

    const A: Uuid = Uuid::from_u128(0xa);
    const B: Uuid = Uuid::from_u128(0xb);

    fn row(uuid: u128, number: u64, stamp: u64, role: Role) -> Row {
        Row {
            uuid: Uuid::from_u128(uuid),
            number,
            rank: Rank { token: 0, stamp },
            role,
            tracing: false,
            address: PeerAddress::Memory,
        }
    }

    fn agent(uuid: u128) -> Row {
        row(uuid, u64::try_from(uuid).unwrap(), 1, Role::AGENT)
    }

    #[test]
    fn a_snapshot_counts_once_complete_and_its_rows_end_with_the_link() {
        let mut roster = Roster::default();
        assert!(roster.snapshot(A, 7, vec![agent(1)], false).unwrap().is_none());
        assert_eq!(roster.len(), 0, "the snapshot is not complete");
        let changes = roster.snapshot(A, 7, vec![agent(2)], true).unwrap().unwrap();
        assert_eq!(
            (changes.connected.len(), changes.removed.len(), roster.len()),
            (2, 0, 2)
        );
        assert_eq!(roster.get(Uuid::from_u128(1)).unwrap().info.server(), A);
        let again = roster.snapshot(A, 7, Vec::new(), true);
        assert_eq!(again.unwrap_err(), LinkFault::Turn("SNAPSHOT"));
        assert_eq!(roster.end(A).len(), 2);
        let changes = roster.snapshot(A, 9, vec![agent(3)], true).unwrap().unwrap();
        assert_eq!((changes.connected.len(), roster.len()), (1, 1));
    }

    #[test]
    fn a_missing_change_or_one_before_the_snapshot_is_a_fault() {
        let mut roster = Roster::default();
        assert_eq!(
            roster.connected(A, 1, agent(1)).unwrap_err(),
            LinkFault::Turn("CONNECTED")
        );
        roster.snapshot(A, 7, Vec::new(), true).unwrap();
        roster.connected(A, 8, agent(1)).unwrap();
        let gap = LinkFault::Gap { before: 8, got: 10 };
        assert_eq!(roster.gone(A, 10, 1, Uuid::from_u128(1)).unwrap_err(), gap);
        assert_eq!(
            gap.to_string(),
            "change 10 of the peer's sessions came after change 8"
        );
        assert_eq!(roster.gone(A, 9, 1, Uuid::from_u128(1)).unwrap().removed.len(), 1);
    }

    #[test]
    fn the_end_of_an_earlier_session_leaves_the_newer_one() {
        let mut roster = Roster::default();
        let uuid = Uuid::from_u128(1);
        let newer = row(1, 2, 0, Role::AGENT);
        roster.snapshot(A, 7, vec![newer], true).unwrap();
        assert!(roster.gone(A, 8, 1, uuid).unwrap().removed.is_empty());
        assert!(roster.get(uuid).is_some());
    }

    #[test]
    fn a_sender_is_no_receiver_of_what_it_sends_to_its_own_role() {
        let mut roster = Roster::default();
        let rows = vec![agent(1), agent(2), row(3, 3, 1, Role::CONTROLLER)];
        roster.snapshot(A, 7, rows, true).unwrap();
        let [sender, other] = [1, 3].map(Uuid::from_u128);
        for (role, except, count) in [
            (Role::AGENT, None, 2),
            (Role::AGENT, Some(sender), 1),
            (Role::AGENT, Some(other), 2),
            (Role::ALL, Some(other), 2),
        ] {
            assert_eq!(roster.count(A, role, except), count, "{role} {except:?}");
        }
    }

    #[test]
    fn a_snapshot_that_lists_a_uuid_twice_is_a_fault() {
        let mut roster = Roster::default();
        let twice = vec![agent(1), row(1, 2, 1, Role::AGENT)];
        let fault = roster.snapshot(A, 7, twice, true).unwrap_err();
        assert_eq!(fault, LinkFault::Value("SNAPSHOT", "its rows"));
    }

    #[test]
    fn the_session_of_higher_rank_counts_then_that_of_the_greater_server() {
        let mut roster = Roster::default();
        let uuid = Uuid::from_u128(1);
        let shown = |roster: &Roster| roster.get(uuid).map(|row| row.info.server());
        roster
            .snapshot(A, 0, vec![row(1, 5, 9, Role::AGENT)], true)
            .unwrap();
        roster
            .snapshot(B, 0, vec![row(1, 6, 8, Role::CONTROLLER)], true)
            .unwrap();
        assert_eq!(shown(&roster), Some(A));
        assert_eq!(roster.with_role(Role::CONTROLLER).count(), 0);
        roster.gone(A, 1, 5, uuid).unwrap();
        assert_eq!(shown(&roster), Some(B));
        assert_eq!(roster.with_role(Role::CONTROLLER).count(), 1);
        roster.connected(A, 2, row(1, 7, 8, Role::AGENT)).unwrap();
        assert_eq!(
            shown(&roster),
            Some(B),
            "the session of the greater server counts"
        );
    }

    proptest! {
        #[test]
        fn all_indexes_agree(
            steps in proptest::collection::vec((0usize..2, 0u128..6, 1..=Role::ALL.bits(), 0u64..4, 0u8..4), 1..60),
        ) {
            let mut roster = Roster::default();
            let mut sequences = [0; 2];
            for server in [A, B] {
                roster.snapshot(server, 0, Vec::new(), true).unwrap();
            }
            for (at, uuid, role, stamp, step) in steps {
                let server = [A, B][at];
                match step {
                    0 => {
                        roster.end(server);
                        roster.snapshot(server, sequences[at], Vec::new(), true).unwrap();
                    }
                    1 => {
                        sequences[at] += 1;
                        let number = roster.of(server, Uuid::from_u128(uuid)).map_or(0, |row| row.info.id.0.0);
                        roster.gone(server, sequences[at], number, Uuid::from_u128(uuid)).unwrap();
                    }
                    _ => {
                        sequences[at] += 1;
                        let number = sequences[at];
                        let row = row(uuid, number, stamp, Role::from_bits(role));
                        roster.connected(server, sequences[at], row).unwrap();
                    }
                }
                for uuid in (0..6).map(Uuid::from_u128) {
                    let rows = [A, B].map(|server| roster.of(server, uuid));
                    let best = rows.into_iter().flatten().max_by_key(|row| (row.rank, row.info.server));
                    prop_assert_eq!(
                        best.map(Arc::as_ptr),
                        roster.get(uuid).map(Arc::as_ptr)
                    );
                }
                for bits in 1..=Role::ALL.bits() {
                    let role = Role::from_bits(bits);
                    let mut found: Vec<_> = roster.with_role(role).map(|row| row.info.uuid).collect();
                    found.sort_unstable();
                    let mut expected: Vec<_> = roster.iter().filter(|row| row.info.role.intersects(role))
                        .map(|row| row.info.uuid).collect();
                    expected.sort_unstable();
                    prop_assert_eq!(found, expected);
                    for server in [A, B] {
                        let rows = (0..6).filter_map(|uuid| roster.of(server, Uuid::from_u128(uuid)));
                        let with = rows.filter(|row| row.info.role.intersects(role)).count();
                        prop_assert_eq!(roster.count(server, role, None), with);
                    }
                }
            }
        }
    }
}
