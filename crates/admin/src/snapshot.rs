//! What pages show, whoever says it.

use std::fmt;

use serde_json::{Map, Value};
use uuid::Uuid;

use super::Metrics;
use ssntp::Role;

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
    /// For `/sessions`: who is connected, by growing [`Row::key`].
    pub sessions: Vec<Box<dyn Row>>,
    /// For `/closed`, the last one first.
    pub closed: Vec<Value>,
}

/// One who is connected, for `/sessions`.
pub trait Row: fmt::Debug + Send + Sync {
    /// Its place among all: a number that no other one has, then or later.
    fn key(&self) -> u64;
    /// Its UUID, where it has one.
    fn uuid(&self) -> Option<Uuid>;
    /// Its roles.
    fn role(&self) -> Role;
    /// What the page shows of it. Made only where it is shown.
    fn to_json(&self) -> Value;
}
