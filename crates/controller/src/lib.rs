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
//! | `source` | what the API and the pages ask the daemon |
//! | [`http`] | the API, and pages for people |
//! | [`store`] | the database: one thread writes, connections of their own read |

#![deny(missing_docs)]

mod clock;
pub mod daemon;
pub mod http;
#[cfg(test)]
mod made_up;
pub mod model;
mod page;
pub mod reconcile;
mod source;
pub mod store;

pub use self::daemon::{
    Config, Handle, Health, Outcome, RunningController, Snapshot, StartError, UserRequest,
};
pub use self::model::{Figures, Row, Spec, SpecError, StartKeys, State, check_start};
pub use self::page::params::encode;
pub use self::reconcile::{Applied, Changed, Difference, Refused, RolloutOrder, Status};
pub use self::store::{History, Limits, Query, UuidPrefix};
