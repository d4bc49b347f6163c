//! The interface of an engine: requests and answers.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

/// A strictly serializable store of small values. A value can be bound to a lease.
/// An engine serves one cluster, whose keys have a common prefix in the store.
pub trait Engine: Send + fmt::Debug {
    /// Sends a request and waits for the answer, for at most [`CALL`](crate::CALL).
    ///
    /// # Errors
    /// [`EngineError`]. After [`EngineError::Away`] a change may or may not have been made.
    fn ask(&mut self, request: &Request) -> Result<Answer, EngineError>;
}

/// The number of a lease. When a lease ends, the engine removes the values that are bound to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lease(pub i64);

/// A request to an engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Grants a new lease, which ends after this time unless it is kept alive. Fractions of a second
    /// are ignored.
    Grant(Duration),
    /// Restarts the time of a lease.
    KeepAlive(Lease),
    /// Ends a lease now.
    Revoke(Lease),
    /// Sets the value of a key, on a condition. A request that arrives twice is carried out once, and
    /// both answers are [`Answer::Put`].
    Put {
        /// The key.
        key: String,
        /// The new value.
        value: Vec<u8>,
        /// The lease to bind the value to; without one the value stays.
        lease: Option<Lease>,
        /// The condition.
        when: When,
    },
    /// Reads all keys of the cluster, at one revision.
    Read,
}

/// The condition of a [`Request::Put`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// The value is always set.
    Always,
    /// The value is set if the key has none.
    Absent,
    /// The value is set if the last change of the key has this revision.
    At(u64),
    /// The value is set if the leader's key is bound to this lease, and the last change of the key has
    /// this revision; `None` if the key has no value. So nobody else writes once another one leads.
    Led(Lease, Option<u64>),
}

/// The name of the leader's key.
pub(crate) const LEADER: &str = "leader";

/// The answer to a [`Request`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// To [`Request::Grant`].
    Granted(Lease),
    /// To [`Request::KeepAlive`]: false if the lease is over.
    Alive(bool),
    /// To [`Request::Revoke`].
    Revoked,
    /// To [`Request::Put`]: the value is set since this revision.
    Put(u64),
    /// To [`Request::Put`]: the condition does not hold. The present entry of the key, if it has one.
    Differs(Option<Entry>),
    /// To [`Request::Read`].
    Kept(Kept),
}

/// The keys of a cluster at one revision.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    /// The number of the last change of the engine.
    pub revision: u64,
    /// The entries by their keys.
    pub entries: BTreeMap<String, Entry>,
}

/// The value of a key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// The value.
    pub value: Vec<u8>,
    /// The revision at which the key was created.
    pub created: u64,
    /// The revision of the last change of the value.
    pub modified: u64,
    /// The lease that the value is bound to.
    pub lease: Option<Lease>,
}

impl EngineError {
    /// True if the request may have been carried out nevertheless: its answer was lost.
    pub fn is_unknown(&self) -> bool {
        matches!(self, Self::Away(_) | Self::Answer(_))
    }
}

/// The reason why an engine did not carry out a request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// No endpoint answered in time, or those that answered have no majority of their cluster. A later
    /// request may succeed.
    #[error("the engine is away: {0}")]
    Away(String),
    /// The name or the password is wrong, or the user lacks a right. The operator has to correct that.
    #[error("the engine refuses these credentials: {0}")]
    Credentials(String),
    /// The engine has no room for more values. The operator has to provide room.
    #[error("the engine is full: {0}")]
    Full(String),
    /// The document was changed after the revision that the caller has read.
    #[error("it was changed meanwhile")]
    Changed,
    /// The lease of the request is over.
    #[error("the lease is over")]
    NoLease,
    /// The engine refuses the request for another reason.
    #[error("the engine refuses: {0}")]
    Refused(String),
    /// The answer cannot be read: the address is that of another program or of an older etcd.
    #[error("the engine's answer is not that of etcd 3.4 or later: {0}")]
    Answer(String),
}
