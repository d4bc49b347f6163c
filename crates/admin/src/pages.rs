//! A path to its page.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use serde_json::{Value, json};
use uuid::Uuid;

use super::client::PROCESS;
use super::http::{Answer, Refused, Request};
use super::metrics::{Metric, TEXT, gauge, one};
use super::sampler::{Figures, MAX_AGE};
use super::{Metrics, now};
use ssntp::Role;
use ssntp_transport::ProcessFigures;

/// The most sessions of one answer: about a megabyte of JSON.
const MOST_SESSIONS: usize = 1000;
/// The sessions of an answer to a request without `limit`.
const SESSIONS: usize = 100;

const ANSWERING: &[Metric<bool>] = &[gauge(
    "ssntp_answering",
    "Whether the daemon has answered within the last second: 1 or 0.",
    |answers| one(*answers),
)];

const INDEX: &str = "\
/metrics   figures, for Prometheus
/healthz   whether it works
/readyz    whether it can be given work
/sessions  the sessions: ?role=, ?uuid=, ?limit=, ?after=
/closed    the sessions that ended last, and why
/info      version, addresses, limits
";

/// Every page.
#[derive(Debug)]
pub(super) struct Pages {
    figures: Arc<Figures>,
    process: Mutex<Option<(Instant, ProcessFigures)>>,
    stopping: AtomicBool,
}

impl Pages {
    pub(super) fn new(figures: Arc<Figures>) -> Self {
        Self {
            figures,
            process: Mutex::default(),
            stopping: AtomicBool::new(false),
        }
    }

    pub(super) fn stopping(&self) {
        self.stopping.store(true, Ordering::Relaxed);
    }

    /// Answers a request. Blocks for at most a second.
    pub(super) fn answer(&self, request: &Request) -> Answer {
        self.page(request).unwrap_or_else(Answer::from)
    }

    fn page(&self, request: &Request) -> Result<Answer, Refused> {
        if request.path == "/sessions" {
            return self.sessions(request);
        }
        if let Some((name, _)) = request.query.first() {
            return Err(Refused::new(400, format!("the page has no parameter {name:.64}")));
        }
        let snapshot = || self.figures.snapshot();
        let unavailable = |why| Refused::new(503, why);
        Ok(match request.path.as_str() {
            "/" => text("text/plain; charset=utf-8", INDEX.into()),
            "/metrics" => self.metrics(),
            "/healthz" => match snapshot() {
                Err(why) => Answer::json(503, &json!({ "status": "unavailable", "why": why })),
                Ok(now) if now.degraded.is_empty() => Answer::json(200, &json!({ "status": "ok" })),
                Ok(now) => Answer::json(200, &json!({ "status": "degraded", "why": now.degraded })),
            },
            "/readyz" => {
                let why = match snapshot() {
                    _ if self.stopping.load(Ordering::Relaxed) => Some("it is stopping".into()),
                    Ok(now) => now.not_ready.clone(),
                    Err(why) => Some(why),
                };
                match why {
                    None => Answer::json(200, &json!({ "ready": true })),
                    Some(why) => Answer::json(503, &json!({ "ready": false, "why": why })),
                }
            }
            "/closed" => Answer::json(200, &json!({ "closed": snapshot().map_err(unavailable)?.closed })),
            "/info" => {
                let now = snapshot().map_err(unavailable)?;
                Answer::json(200, &Value::Object(now.info.clone()))
            }
            _ => return Err(Refused::new(404, "there is no such page; see / for a list")),
        })
    }

    /// If the source does not answer, the figures that the system has of the process
    /// are still shown: a process that hangs is the one to look at.
    fn metrics(&self) -> Answer {
        let mut metrics = Metrics::default();
        self.process(&mut metrics);
        let snapshot = self.figures.snapshot();
        metrics.add(ANSWERING, &snapshot.is_ok());
        if let Ok(now) = snapshot {
            metrics.extend(&now.metrics);
        }
        text(TEXT, metrics.to_text())
    }

    /// The figures that the system has of this process. They are kept for a second,
    /// since counting many descriptors takes a while.
    fn process(&self, metrics: &mut Metrics) {
        let mut kept = self.process.lock().unwrap_or_else(PoisonError::into_inner);
        let process = match kept.take() {
            Some((at, process)) if now().saturating_duration_since(at) < MAX_AGE => (at, process),
            _ => (now(), ProcessFigures::read()),
        };
        metrics.add(PROCESS, &kept.insert(process).1);
    }

    fn sessions(&self, request: &Request) -> Result<Answer, Refused> {
        let asked = Selection::read(&request.query)?;
        let snapshot = self.figures.snapshot().map_err(|why| Refused::new(503, why))?;
        let rows = &snapshot.sessions;
        let mut matching = rows.iter().filter(|row| {
            asked.role.is_none_or(|role| row.role.intersects(role))
                && asked.uuid.is_none_or(|uuid| row.uuid == Some(uuid))
                && asked.after.is_none_or(|after| row.key > after)
        });
        let shown: Vec<_> = matching.by_ref().take(asked.limit).collect();
        let last = shown.last().map(|row| row.key);
        let next = matching.next().and(last);
        let sessions: Vec<_> = shown.into_iter().map(|row| row.to_json()).collect();
        Ok(Answer::json(
            200,
            &json!({ "connected": rows.len(), "sessions": sessions, "next": next }),
        ))
    }
}

fn text(content_type: &'static str, body: String) -> Answer {
    Answer {
        code: 200,
        content_type,
        body,
    }
}

/// The parameters of `/sessions`.
#[derive(Debug)]
struct Selection {
    role: Option<Role>,
    uuid: Option<Uuid>,
    limit: usize,
    after: Option<u64>,
}

impl Selection {
    fn read(query: &[(String, String)]) -> Result<Self, Refused> {
        let mut selection = Self {
            role: None,
            uuid: None,
            limit: SESSIONS,
            after: None,
        };
        for (name, value) in query {
            let bad = || Refused::new(400, format!("invalid value of {name:.64}: {value:.64}"));
            match name.as_str() {
                "role" => selection.role = Some(value.parse().map_err(|_| bad())?),
                "uuid" => selection.uuid = Some(value.parse().map_err(|_| bad())?),
                "after" => selection.after = Some(value.parse().map_err(|_| bad())?),
                "limit" => {
                    let limit = value.parse().map_err(|_| bad())?;
                    if !(1..=MOST_SESSIONS).contains(&limit) {
                        return Err(Refused::new(400, format!("limit is 1 to {MOST_SESSIONS}")));
                    }
                    selection.limit = limit;
                }
                _ => return Err(Refused::new(400, format!("the page has no parameter {name:.64}"))),
            }
        }
        Ok(selection)
    }
}
