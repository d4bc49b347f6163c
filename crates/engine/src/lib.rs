//! The state that several servers share: the members, the leader, and documents such as the
//! cluster's configuration. An [`Engine`] stores it; servers use [`Etcd`], and tests an
//! engine in memory.
//!
//! ```text
//!  owner's dispatcher ◀─ changed(&View) ┐
//!                                       │ thread ssntp-engine
//!  owner ── saw(token), write, drop ────▶ Membership ─▶ Machine ── Request ──▶ dyn Engine
//!                                                   ▲                      │ etcd: HTTP/1.1
//!                                                   └─────── Answer ───────┘ over TLS or TCP
//! ```
//!
//! | module | holds |
//! |---|---|
//! | `engine` | [`Engine`], its requests and its answers |
//! | `etcd` | [`Etcd`]; the only module that knows etcd |
//! | `machine` | [`Machine`]: membership and leadership, without threads or a clock |
//! | `membership` | [`Membership`]: the thread that runs the machine |
//!
//! `docs/federation.md` has the faults that can occur, and what an operator does about each.

#![deny(missing_docs)]

#[cfg(test)]
extern crate self as ssntp_engine;

mod engine;
mod etcd;
mod machine;
mod membership;

pub use self::engine::{Answer, Engine, EngineError, Entry, Kept, Lease, Request, When};
pub use self::etcd::{
    Endpoints, EndpointsError, Etcd, EtcdConfig, EtcdCredentials, EtcdRenewal, LONGEST, User,
};
pub use self::machine::{Acting, CALL, Document, Join, LEADER_TIME, Leader, Machine, Member, Next, View};
pub use self::membership::{Documents, Membership};

// Shared with the tests of other packages, so it names this crate as they do.
#[cfg(test)]
#[allow(dead_code, unreachable_pub, reason = "other packages use the rest of it")]
#[path = "../../../tests/support/src/memory_engine.rs"]
mod memory;
