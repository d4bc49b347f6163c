//! The account of each connection: which of the items that wait it has caused.
//!
//! ```text
//!  open ─▶ Account ── charge ──▶ paused ── discharge of its last item ──▶ goes on
//!             │ close                         ▲
//!             └─ items of it still wait ──▶ ended ──┘ its successor waits for it
//! ```
//!
//! A connection is paused while an item that it has caused waits in a line, so it has one turn's items in
//! lines at most. The account outlives the connection: if its sender connects again, also under a new
//! number, the new connection is paused until the items of the former one have left. So a sender gains
//! nothing by ending its connections, and no receiver is charged for it.
//!
//! The memory of items that wait counts in the budget from which the connection is read, and in the part
//! of its owner. So senders whose items take the memory of that budget wait for memory before they are
//! read further, however many connections or senders they are.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use super::credit::Credit;
use crate::budget::Charge;
use crate::table::{ConnectionId, Table};

/// The memory of remote items that may wait before their link is paused: more than can be on the way
/// when the other dispatcher is asked to pause their origins, which is what the link's queue
/// holds, the socket buffers, and what its reader is ahead.
pub(super) const MAX_LATE: u64 = 16 << 20;

/// The cause of an item.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Origin {
    /// The frames of a connection.
    Connection(ConnectionId),
    /// The frames of a connection of another dispatcher, which arrived through this dispatcher's
    /// connection `link`. To pause it, that dispatcher is asked to, see [`RemotePause`]. The link itself
    /// is paused only if the other dispatcher does not pause its connections.
    Remote {
        /// The connection between the two dispatchers.
        link: ConnectionId,
        /// The number of the origin at the other dispatcher.
        number: u64,
    },
    /// The application by itself: a timer, or a call of another thread. It is never paused.
    #[default]
    Application,
}

/// A connection of another dispatcher is to be paused, or is to go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemotePause {
    /// The connection through which its frames arrive.
    pub link: ConnectionId,
    /// Its number at the other dispatcher.
    pub number: u64,
    /// True to pause it, false to let it go on.
    pub paused: bool,
}

/// All accounts.
#[derive(Debug, Default)]
pub(super) struct Accounts {
    standing: Table<Account>,
    /// The accounts of connections that have ended while items of theirs wait.
    ended: HashMap<ConnectionId, Account>,
    /// The newest connection of each sender that has an account.
    newest: HashMap<u128, ConnectionId>,
    /// The number of waiting items of each remote origin.
    remote: HashMap<(ConnectionId, u64), usize>,
    remote_pauses: Vec<RemotePause>,
}

/// The account of one connection.
#[derive(Debug)]
struct Account {
    credit: Arc<Credit>,
    sender: Option<u128>,
    /// The number of its items that wait in lines.
    items: usize,
    /// The number of other causes for which it is paused.
    pauses: usize,
    /// The memory of items in lines that arrived through it from remote origins.
    remote_bytes: u64,
    /// True while that is too much, so that this connection is paused.
    is_flooded: bool,
    paused_since: Option<Instant>,
    /// The later connection of its sender, which is paused until this account is settled.
    successor: Option<ConnectionId>,
}

impl Account {
    /// True if nothing that it has caused waits.
    fn is_settled(&self) -> bool {
        self.items == 0 && self.pauses == 0 && self.remote_bytes == 0
    }

    fn is_paused(&self) -> bool {
        self.items > 0 || self.pauses > 0
    }

    fn pause(&mut self, now: Instant) {
        if self.is_paused() && self.paused_since.is_none() {
            self.paused_since = Some(now);
            self.credit.pause(true);
        }
    }
}

impl Accounts {
    /// Opens the account of a connection. Its `sender` is the same for each connection of one peer.
    pub(super) fn open(&mut self, id: ConnectionId, sender: Option<u128>, credit: Arc<Credit>, now: Instant) {
        let former = sender.and_then(|sender| self.newest.insert(sender, id));
        let mut account = Account {
            credit,
            sender,
            items: 0,
            pauses: 0,
            remote_bytes: 0,
            is_flooded: false,
            paused_since: None,
            successor: None,
        };
        if let Some(former) = former.and_then(|former| self.get_mut(former)) {
            former.successor = Some(id);
            account.pauses = 1;
            account.pause(now);
        }
        self.standing.insert(id, account);
    }

    /// Ends a connection. Its account stays until it is settled. Returns its successor if that goes on
    /// now.
    pub(super) fn close(&mut self, id: ConnectionId) -> Option<ConnectionId> {
        let account = self.standing.remove(id)?;
        self.ended.insert(id, account);
        self.settle(id)
    }

    /// Charges an item that waits from now on to its origin, which is paused. `None` if there is none
    /// that can be paused.
    pub(super) fn charge(&mut self, origin: Origin, memory: u64, now: Instant) -> Option<Charge> {
        let account = match origin {
            Origin::Connection(id) => {
                let account = self.get_mut(id)?;
                account.items += 1;
                account
            }
            Origin::Remote { link, number } => {
                self.get_mut(link)?;
                let items = self.remote.entry((link, number)).or_default();
                *items += 1;
                if *items == 1 {
                    let paused = true;
                    self.remote_pauses.push(RemotePause { link, number, paused });
                }
                let account = self.get_mut(link)?;
                account.remote_bytes += memory;
                if account.remote_bytes > MAX_LATE && !std::mem::replace(&mut account.is_flooded, true) {
                    account.pauses += 1;
                }
                account
            }
            Origin::Application => return None,
        };
        account.pause(now);
        Some(account.credit.budget().charge(memory))
    }

    /// Notes that an item that was charged to its origin waits no more. Returns the connection that goes
    /// on for this reason.
    pub(super) fn discharge(&mut self, origin: Origin, memory: u64) -> Option<ConnectionId> {
        match origin {
            Origin::Connection(id) => {
                self.get_mut(id)?.items -= 1;
                self.settle(id)
            }
            Origin::Remote { link, number } => {
                let items = self.remote.get_mut(&(link, number))?;
                *items -= 1;
                if *items == 0 {
                    self.remote.remove(&(link, number));
                    let paused = false;
                    self.remote_pauses.push(RemotePause { link, number, paused });
                }
                let account = self.get_mut(link)?;
                account.remote_bytes -= memory;
                if account.is_flooded && account.remote_bytes <= MAX_LATE / 2 {
                    account.is_flooded = false;
                    account.pauses -= 1;
                }
                self.settle(link)
            }
            Origin::Application => None,
        }
    }

    /// Pauses a connection for another cause than its items. Each call has one of
    /// [`resume`](Self::resume).
    pub(super) fn pause(&mut self, id: ConnectionId, now: Instant) {
        if let Some(account) = self.get_mut(id) {
            account.pauses += 1;
            account.pause(now);
        }
    }

    /// Ends one pause. Returns the connection that goes on for this reason.
    pub(super) fn resume(&mut self, id: ConnectionId) -> Option<ConnectionId> {
        let account = self.get_mut(id)?;
        account.pauses = account.pauses.saturating_sub(1);
        self.settle(id)
    }

    /// Lets a connection go on if nothing pauses it any more. If it has ended, its successor goes on.
    fn settle(&mut self, mut id: ConnectionId) -> Option<ConnectionId> {
        loop {
            if let Some(account) = self.standing.get_mut(id) {
                let goes_on = !account.is_paused() && account.paused_since.take().is_some();
                goes_on.then(|| account.credit.pause(false));
                return goes_on.then_some(id);
            }
            if !self.ended.get(&id)?.is_settled() {
                return None;
            }
            let account = self.ended.remove(&id)?;
            if let Some(sender) = account.sender
                && self.newest.get(&sender) == Some(&id)
            {
                self.newest.remove(&sender);
            }
            id = account.successor?;
            let successor = self.get_mut(id)?;
            successor.pauses = successor.pauses.saturating_sub(1);
        }
    }

    /// True if a connection gets no turn, and is not read.
    pub(super) fn is_paused(&self, id: ConnectionId) -> bool {
        self.standing.get(id).is_some_and(Account::is_paused)
    }

    pub(super) fn paused_since(&self, id: ConnectionId) -> Option<Instant> {
        self.standing.get(id)?.paused_since
    }

    /// The number of connections that have ended while items of theirs wait.
    pub(super) fn ended(&self) -> usize {
        self.ended.len()
    }

    /// The changes of remote pauses since the last call, in order.
    pub(super) fn take_remote_pauses(&mut self) -> Vec<RemotePause> {
        std::mem::take(&mut self.remote_pauses)
    }

    fn get_mut(&mut self, id: ConnectionId) -> Option<&mut Account> {
        match self.standing.get_mut(id) {
            Some(account) => Some(account),
            None => self.ended.get_mut(&id),
        }
    }

    /// A fault in the accounts. `waiting` is the number and the memory of the items in lines that are
    /// charged to an origin.
    pub(super) fn fault(&self, waiting: impl Fn(&dyn Fn(Origin) -> bool) -> (usize, u64)) -> Option<String> {
        for ((link, number), items) in &self.remote {
            let (link, number) = (*link, *number);
            let (waiting, _) = waiting(&|origin| origin == Origin::Remote { link, number });
            if *items == 0 || *items != waiting {
                return Some(format!(
                    "{items} items of {number} behind {link} are believed to wait"
                ));
            }
        }
        let ended = self.ended.iter().map(|(id, account)| (*id, account));
        self.standing.iter().chain(ended).find_map(|(id, account)| {
            let (items, _) = waiting(&|origin| origin == Origin::Connection(id));
            let (_, remote) = waiting(&|origin| matches!(origin, Origin::Remote { link, .. } if link == id));
            let is_right = items == account.items
                && remote == account.remote_bytes
                && account.is_paused() == account.paused_since.is_some();
            (!is_right).then(|| format!("{id} has {items} items and {remote} remote bytes, and {account:?}"))
        })
    }
}
