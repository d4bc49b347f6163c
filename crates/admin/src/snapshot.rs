//! The content of the pages, for a process of any kind.

use std::fmt;

use serde::Serialize;
use serde_json::{Map, Value};
use ssntp::Role;
use uuid::Uuid;

use super::Metrics;

/// The state of a process at one moment, for all pages.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Snapshot {
    /// For `/healthz`: the problems of a process that still works, one line each.
    pub degraded: Vec<String>,
    /// For `/readyz`: the reason why the process accepts no work, if there is one.
    pub not_ready: Option<String>,
    /// For `/info`.
    pub info: Map<String, Value>,
    /// For `/metrics`, in addition to those of the process.
    pub metrics: Metrics,
    /// For `/sessions`: the sessions, in ascending order of [`Row::key`].
    pub sessions: Vec<Row>,
    /// For `/closed`: the sessions that ended, the last one first.
    pub closed: Vec<Row>,
}

impl Snapshot {
    /// Adds a value to `/info`. A value that cannot be written as JSON becomes `null`.
    pub fn show(&mut self, name: &str, value: impl Serialize) {
        let value = serde_json::to_value(value).unwrap_or_default();
        self.info.insert(name.to_owned(), value);
    }
}

/// One session, for `/sessions` or `/closed`.
pub struct Row {
    /// The number of the session, which is never used again.
    pub key: u64,
    /// The UUID, if the protocol has one.
    pub uuid: Option<Uuid>,
    /// The roles.
    pub role: Role,
    show: Box<dyn Fn() -> Value + Send + Sync>,
}

impl Row {
    /// A row. `show` returns the members of the session on the page; it is called only for
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
