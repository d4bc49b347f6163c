//! What pages show.

use serde_json::{Map, Value};
use uuid::Uuid;

use super::Metrics;
use crate::Role;

/// Who knows what the pages show: a daemon, or an application of this library.
///
/// # Threads
/// It is asked by one thread, which may wait: pages give up after a second.
pub trait Source: Send + Sync + 'static {
    /// Everything but the sessions, as it is now. Asked for at most once a second.
    ///
    /// # Errors
    /// Why it cannot be said: `/healthz`, and what needs it, answer 503 with this.
    fn snapshot(&self) -> Result<Snapshot, String>;

    /// Who is connected, by growing [`Row::key`]. Asked for at most once a second.
    ///
    /// # Errors
    /// As of [`snapshot`](Self::snapshot).
    fn sessions(&self) -> Result<Vec<Box<dyn Row>>, String> {
        Ok(Vec::new())
    }
}

/// What a process says of itself, as it was at one moment.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Snapshot {
    /// What is wrong, though it does its work: a line each, for `/healthz`.
    pub degraded: Vec<String>,
    /// Why it can't be given work, for `/readyz`.
    pub not_ready: Option<String>,
    /// For `/info`.
    pub info: Map<String, Value>,
    /// For `/metrics`, beside those of the process.
    pub metrics: Metrics,
    /// For `/closed`, the last one first.
    pub closed: Vec<Value>,
}

/// One who is connected, for `/sessions`.
pub trait Row: Send + Sync {
    /// Its place among all: a number that no other one has, then or later.
    fn key(&self) -> u64;
    /// Its UUID, where it has one.
    fn uuid(&self) -> Option<Uuid>;
    /// Its roles.
    fn role(&self) -> Role;
    /// What the page shows of it. Made only where it is shown.
    fn to_json(&self) -> Value;
}
