//! The interface between the HTTP side and the daemon: a [`Picture`] of the present, rows of the
//! history, and orders. Tests put a cluster in memory behind it.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use serde::Serialize;
use uuid::Uuid;

use crate::daemon::{Outcome, Snapshot, UserRequest};
use crate::model::{Figures, Row};
use crate::store::Query;
use ssntp::payload::SessionEntry;
use ssntp_payload::TenantEntry;
use ssntp_view::{Node, View};

/// The cluster at one moment.
#[derive(Clone, Debug)]
pub(crate) struct Picture {
    pub(crate) taken: SystemTime,
    /// The desired state and the status of each workload.
    pub(crate) kept: Arc<Snapshot>,
    /// The nodes and instances that the scheduler has reported.
    pub(crate) view: Arc<View>,
    /// The owners of certificates (this controller and its scheduler) and the times of expiry.
    pub(crate) certificates: Vec<(&'static str, SystemTime)>,
    /// By node, what its name lacks to tell it from other nodes. Computed when it is asked for.
    pub(crate) distinctions: OnceLock<HashMap<Uuid, String>>,
}

impl Picture {
    /// The beginning of a node's UUID, if another node has its name, or it has no name; else empty.
    pub(crate) fn distinction(&self, node: Uuid) -> &str {
        let all = self.distinctions.get_or_init(|| distinctions(&self.view));
        all.get(&node).map_or("", String::as_str)
    }
}

fn distinctions(view: &View) -> HashMap<Uuid, String> {
    let mut names = HashMap::new();
    for node in view.nodes() {
        *names.entry(node.stats.hostname.as_str()).or_insert(0) += 1;
    }
    let is_alike = |node: &&Node| node.stats.hostname.is_empty() || names[&*node.stats.hostname] > 1;
    let alike = view.nodes().filter(is_alike);
    alike.map(|node| (node.uuid, view.beginning(node.uuid))).collect()
}

/// A list that the scheduler has sent, or the reason why there is none.
pub(crate) type Listed<T> = Result<Arc<Vec<T>>, String>;

/// Returns the next row of the history. Waits for at most the given time, and returns `None` if
/// there is no row by then.
pub(crate) type Rows = Box<dyn FnMut(Duration) -> Result<Option<Row>, String> + Send>;

/// Returns the next piece of an instance's output. Waits for at most the given time, and returns
/// `None` if there is none by then. [`Written::End`] is the last piece.
pub(crate) type Output = Box<dyn FnMut(Duration) -> Option<Written> + Send>;

/// The source of pictures and rows, and the receiver of orders.
pub(crate) trait Source: fmt::Debug + Send + Sync + 'static {
    /// The present. Called at most four times a second.
    fn picture(&self) -> Result<Picture, String>;

    /// The desired state, with every order that was answered so far.
    fn kept(&self) -> Arc<Snapshot>;

    /// The sessions of the scheduler. Blocks for at most a second.
    fn sessions(&self) -> Listed<SessionEntry>;

    /// The tenants. Blocks for at most a second.
    fn tenants(&self) -> Listed<TenantEntry>;

    /// True if the scheduler has a tenant of this name now. Blocks for at most five seconds.
    fn has_tenant(&self, name: &str) -> Result<bool, String>;

    /// Rows of the history.
    fn rows(&self, query: &Query) -> Result<Vec<Row>, String>;

    /// The numbers of the oldest and the newest row that are stored.
    fn stored(&self) -> Result<Option<(i64, i64)>, String> {
        let end = |newest_first| {
            self.rows(&Query {
                limit: 1,
                newest_first,
                ..Query::default()
            })
        };
        let (oldest, newest) = (end(false)?, end(true)?);
        Ok(oldest
            .first()
            .zip(newest.first())
            .map(|(one, other)| (one.id, other.id)))
    }

    /// Figures of a node from `since` on, in milliseconds since 1970; the oldest first.
    fn figures(&self, node: Uuid, since: i64) -> Result<Vec<Figures>, String>;

    /// Follows the history after the row of this number, or after the newest row.
    fn follow(&self, after: Option<i64>) -> Result<Rows, String>;

    /// The last lines of an instance's output, and with `follow` also the output from then on.
    fn output(&self, instance: Uuid, follow: bool) -> Result<Output, String>;

    /// Carries out a request of an actor.
    fn request(&self, actor: &str, request: UserRequest) -> Outcome;
}

/// A piece of an instance's output.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Written {
    /// Text of the standard output.
    Out(String),
    /// Text of the standard error.
    Err(String),
    /// The end of the output; with a reason if the output was cut short.
    End(Option<String>),
}
