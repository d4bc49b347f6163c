//! What the pages and the API are made from: a [`Picture`] of the present, rows of the past, and a
//! place for orders.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde::Serialize;
use uuid::Uuid;

use crate::{Applied, Figures, Query, Refused, RolloutOrder, Row, Snapshot, Spec};
use ssntp::payload::{SessionEntry, TenantEntry};
use ssntp_cluster::controller::View;

/// The present, as it was at one moment.
#[derive(Clone, Debug)]
pub(crate) struct Picture {
    pub(crate) taken: SystemTime,
    /// What should run, and what became of it.
    pub(crate) kept: Arc<Snapshot>,
    /// What the scheduler has told.
    pub(crate) view: Arc<View>,
    /// Certificates with the times of their ends: this controller's and its scheduler's.
    pub(crate) certificates: Vec<(&'static str, SystemTime)>,
}

/// A list for which the scheduler was asked, or why there is none.
pub(crate) type Listed<T> = Result<Arc<Vec<T>>, String>;

/// Where pictures and rows come from, and where orders go.
pub(crate) trait Source: Send + Sync + 'static {
    /// The present. It is called at most four times a second.
    fn picture(&self) -> Result<Picture, String>;

    /// What should run, and what became of it, with all that was ordered so far.
    fn kept(&self) -> Arc<Snapshot>;

    /// The sessions of the scheduler. Blocks for a second at most.
    fn sessions(&self) -> Listed<SessionEntry>;

    /// The tenants. Blocks for a second at most.
    fn tenants(&self) -> Listed<TenantEntry>;

    /// Rows of the history.
    fn rows(&self, query: &Query) -> Result<Vec<Row>, String>;

    /// Figures of a node, in the order of time.
    fn figures(&self, node: Uuid, since: SystemTime) -> Result<Vec<Figures>, String>;

    /// Follows the history after a row; after the newest one if none is given.
    fn follow(&self, after: Option<i64>) -> Result<Box<dyn Following>, String>;

    /// The last lines that an instance has written, and with `follow` what it writes from then on.
    fn output(&self, instance: Uuid, follow: bool) -> Result<Box<dyn Writing>, String>;

    fn apply(&self, specs: Vec<Spec>, dry_run: bool) -> Result<Vec<Applied>, Refused>;
    fn delete(&self, workload: &str) -> Result<i64, Refused>;
    fn rollout(&self, workload: &str, order: RolloutOrder) -> Result<i64, Refused>;
}

/// Rows as they come.
pub(crate) trait Following: Send {
    /// The next row; `None` if there is none in this time.
    fn next(&mut self, limit: Duration) -> Result<Option<Arc<Row>>, String>;
}

/// What an instance writes, as it comes.
pub(crate) trait Writing: Send {
    /// The next piece; `None` if there is none in this time. Nothing comes behind the end.
    fn next(&mut self, limit: Duration) -> Option<Written>;
}

/// A piece of what an instance writes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Written {
    /// From its standard output.
    Out(String),
    /// From its standard error.
    Err(String),
    /// The end, and why it came early if it did.
    End(Option<String>),
}
