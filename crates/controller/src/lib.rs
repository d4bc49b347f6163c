//! A controller that remembers: it keeps what should run in a database, and history beside it.
//!
//! ```text
//!              Spec                             Write, and waits
//!  a user ───────────▶ State of all workloads ──────────────────▶ ssntp-store ─▶ SQLite
//!                        │                                            │
//!                        └── what follows for the cluster             └─▶ Follow: rows as they come
//! ```
//!
//! | module | holds |
//! |---|---|
//! | [`model`] | workloads, instances, history: values without I/O |
//! | [`reconcile`] | what follows for the cluster, as a pure core |
//! | [`daemon`] | the thread between the two and the scheduler |
//! | [`http`] | the API, and pages for people |
//! | [`store`] | the database: one thread writes, connections of their own read |

pub mod daemon;
pub mod http;
pub mod model;
mod page;
pub mod reconcile;
pub mod store;

pub use self::daemon::{Config, Daemon, Handle, Health, Snapshot, StartError};
pub use self::model::{Figures, Row, Spec, SpecError, StartKeys, State};
pub use self::page::params::encode;
pub use self::reconcile::{Applied, Changed, Difference, Refused, RolloutOrder, Status};
pub use self::store::{History, Limits, Query};

/// The clock of time limits. The reconciler itself reads none.
#[expect(clippy::disallowed_methods, reason = "the one clock of a controller")]
fn now() -> std::time::Instant {
    std::time::Instant::now()
}

/// The log target of this crate.
const LOG: &str = "ssntp::controller";
