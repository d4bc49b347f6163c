//! What several servers agree on: who is a member, who leads, and documents such as the
//! cluster's configuration. An [`Engine`] keeps it; [`Etcd`] is the one in use, and
//! [`MemoryEngine`] is for tests.
//!
//! ```text
//!  owner's dispatcher ◀── told(&View) ──┐
//!                                       │ thread ssntp-engine
//!  owner ── saw(token), write, drop ────▶ Membership ─▶ Machine ── Request ──▶ dyn Engine
//!                                                   ▲                      │ etcd: HTTP/1.1
//!                                                   └─────── Answer ───────┘ over TLS or TCP
//! ```
//!
//! | module | holds |
//! |---|---|
//! | `engine` | [`Engine`], and what it is asked and answers |
//! | `etcd` | [`Etcd`]; nothing else here knows etcd |
//! | `memory` | [`MemoryEngine`] |
//! | `machine` | [`Machine`]: membership and leadership, without threads or a clock |
//! | `membership` | [`Membership`]: the thread that runs the machine |
//!
//! What goes wrong meanwhile, and what an operator does then, is in `docs/federation.md`.

#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod engine;
mod etcd;
mod machine;
mod membership;
mod memory;

pub use self::engine::{Answer, Engine, EngineError, Entry, Kept, Lease, Request, When};
pub use self::etcd::{Endpoints, EndpointsError, Etcd, EtcdConfig, User};
pub use self::machine::{Acting, CALL, Document, Join, LEADER_TIME, Leader, Machine, Member, Next, View};
pub use self::membership::{Documents, Membership};
pub use self::memory::MemoryEngine;
