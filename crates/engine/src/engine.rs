//! What an engine is asked, and what it answers.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

/// A strictly serializable store of small values, in which a value can belong to a lease.
/// An engine serves one cluster: keys are names below a prefix of its own.
pub trait Engine: Send + fmt::Debug {
    /// Asks it, and blocks for at most [`CALL`](crate::CALL).
    ///
    /// # Errors
    /// [`EngineError`]. After [`EngineError::Away`] it is open whether a change was made.
    fn ask(&mut self, request: &Request) -> Result<Answer, EngineError>;
}

/// A time to live that values can be bound to: when it ends, they are gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lease(pub i64);

/// A question to an engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// A new lease, which ends after this time unless it is kept alive. Whole seconds count.
    Grant(Duration),
    /// The time of the lease begins anew.
    KeepAlive(Lease),
    /// The lease ends now.
    Revoke(Lease),
    /// A value for a key, on a condition. Asked twice, it is done once, and both answers say
    /// so.
    Put {
        /// The key.
        key: String,
        /// Its value from now on.
        value: Vec<u8>,
        /// The lease that the value belongs to; with none it stays.
        lease: Option<Lease>,
        /// When it is done.
        when: When,
    },
    /// All keys of the cluster, at one revision.
    Read,
}

/// The condition of a [`Request::Put`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// In any case.
    Always,
    /// If the key has no value.
    Absent,
    /// If the value was changed last at this revision.
    At(u64),
}

/// The answer to a [`Request`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// To [`Request::Grant`].
    Granted(Lease),
    /// To [`Request::KeepAlive`]: whether the lease still was.
    Alive(bool),
    /// To [`Request::Revoke`].
    Revoked,
    /// To [`Request::Put`]: it was done, at this revision.
    Put(u64),
    /// To [`Request::Put`]: the condition did not hold, since the key has this entry; none if
    /// the key has no value.
    Differs(Option<Entry>),
    /// To [`Request::Read`].
    Kept(Kept),
}

/// The keys of a cluster at one revision.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    /// The number of the engine's last change.
    pub revision: u64,
    /// The values of all keys.
    pub entries: BTreeMap<String, Entry>,
}

/// The value of a key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// The value.
    pub value: Vec<u8>,
    /// The revision at which the key was made.
    pub created: u64,
    /// The revision at which its value was changed last.
    pub modified: u64,
    /// The lease that it belongs to.
    pub lease: Option<Lease>,
}

/// Why an engine has not answered as asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// No endpoint has answered in time, or each that did has no majority of its cluster. It
    /// may be better later.
    #[error("the engine is away: {0}")]
    Away(String),
    /// Name or password are wrong, or the user may not do that. The operator has to mend it.
    #[error("the engine refuses these credentials: {0}")]
    Credentials(String),
    /// It takes no more values. The operator has to give it room.
    #[error("the engine is full: {0}")]
    Full(String),
    /// The document is not at the revision that the change was made on.
    #[error("it was changed meanwhile")]
    Changed,
    /// The lease that a value was to belong to is over.
    #[error("the lease is over")]
    NoLease,
    /// It refuses the request for another reason.
    #[error("the engine refuses: {0}")]
    Refused(String),
    /// The answer cannot be read: another program is there, or its version is too old.
    #[error("what answers is no etcd of version 3.4 or later: {0}")]
    Answer(String),
}
