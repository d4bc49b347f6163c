//! The content of the pages, for a process of any kind.

use std::fmt;

use serde::Serialize;
use serde_json::{Map, Value};
use ssntp::Role;
use uuid::Uuid;

use super::Metrics;

/// The facts about a process that the pages show, as they were at one moment.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Snapshot {
    /// For `/healthz`: problems of a process that works all the same, a line each.
    pub degraded: Vec<String>,
    /// For `/readyz`: why the process cannot be given work, if it cannot.
    pub not_ready: Option<String>,
    /// For `/info`.
    pub info: Map<String, Value>,
    /// For `/metrics`, in addition to those of the process.
    pub metrics: Metrics,
    /// For `/sessions`: the sessions, by growing [`Row::key`].
    pub sessions: Vec<Row>,
    /// For `/closed`: the sessions that ended, the last one first.
    pub closed: Vec<Row>,
}

impl Snapshot {
    /// Shows a value on `/info`. One that cannot be written as JSON is `null`.
    pub fn show(&mut self, name: &str, value: impl Serialize) {
        let value = serde_json::to_value(value).unwrap_or_default();
        self.info.insert(name.to_owned(), value);
    }
}

/// One session, for `/sessions` or `/closed`.
pub struct Row {
    /// Its place among all sessions: a number that is never used again.
    pub key: u64,
    /// Its UUID, if its protocol knows one.
    pub uuid: Option<Uuid>,
    /// Its roles.
    pub role: Role,
    show: Box<dyn Fn() -> Value + Send + Sync>,
}

impl Row {
    /// `show` makes what the page shows of the session. It is called only for the
    /// sessions that a request selects.
    pub fn new(
        key: u64,
        uuid: Option<Uuid>,
        role: Role,
        show: impl Fn() -> Value + Send + Sync + 'static,
    ) -> Self {
        let show = Box::new(show);
        Self {
            key,
            uuid,
            role,
            show,
        }
    }

    pub(super) fn to_json(&self) -> Value {
        (self.show)()
    }
}

impl fmt::Debug for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Row").field(&self.key).finish()
    }
}
