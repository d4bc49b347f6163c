//! The page for each path.

use std::fmt::Write;
use std::iter::Peekable;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use uuid::Uuid;

use super::client::PROCESS;
use super::metrics::{Metric, TEXT, gauge, one};
use super::{Metrics, Row, Sampled, Snapshot};
use ssntp::Role;
use ssntp_http::{Answer, JSON, Limits, Refused, Reply, Request, Service};
use ssntp_transport::{ProcessFigures, locked, now};

/// The highest age of the figures of a page. The source is called at most once in this time.
pub(super) const MAX_AGE: Duration = Duration::from_secs(1);
/// The maximum number of sessions of one answer.
const MAX_SESSIONS: usize = 1000;
/// The maximum number of sessions of an answer to a request without `limit`. An answer with more is a large
/// one.
const DEFAULT_SESSIONS: usize = 100;
/// A list of sessions ends with the session that makes it longer than this, in bytes. A session
/// takes about one KiB, more if the name in its certificate is long.
const MAX_BYTES: usize = 1 << 20;
/// The maximum number of large answers at a time. An answer counts until the client has read it, because it
/// stays in memory until then. So this number bounds the memory of the pages, whatever the number of
/// clients.
const MAX_LARGE_ANSWERS: usize = 2;

const ANSWERING: &[Metric<bool>] = &[gauge(
    "ssntp_answering",
    "Whether the daemon has answered within the last second: 1 or 0.",
    |answers| one(*answers),
)];

const INDEX: &str = "\
/metrics   figures, for Prometheus
/healthz   200 if the process works, else 503
/readyz    200 if the process accepts work, else 503
/sessions  the sessions: ?role=, ?uuid=, ?limit=, ?after=
/closed    the sessions that ended last, with their reasons
/info      version, addresses, limits
";

/// The pages of a process, and their shared state.
#[derive(Debug)]
pub(super) struct Pages {
    figures: Arc<Sampled<Snapshot>>,
    process: Mutex<Option<(Instant, ProcessFigures)>>,
    stopping: AtomicBool,
    /// Each large answer holds a clone, so the count of clones is the number of large answers.
    large: Arc<()>,
}

impl Pages {
    pub(super) fn new(figures: Arc<Sampled<Snapshot>>) -> Self {
        Self {
            figures,
            process: Mutex::default(),
            stopping: AtomicBool::new(false),
            large: Arc::default(),
        }
    }

    pub(super) fn stopping(&self) {
        self.stopping.store(true, Ordering::Relaxed);
    }

    fn page(&self, request: &Request) -> Result<Answer, Refused> {
        if request.path == "/sessions" {
            return self.sessions(request);
        }
        // Unknown parameters are refused. If they were ignored, a filter with a misspelt name would
        // show everything. Names are cut in the answer, because the client chooses their length.
        if let Some((name, _)) = request.query.first() {
            return Err(Refused::new(400, format!("the page has no parameter {name:.64}")));
        }
        let snapshot = || self.figures.sample();
        let unavailable = |why| Refused::new(503, why);
        Ok(match request.path.as_str() {
            "/" => Answer::new(200, "text/plain; charset=utf-8", INDEX),
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
            "/closed" => {
                let permit = self.permit()?;
                let now = snapshot().map_err(unavailable)?;
                let (lines, _) = lines(&mut now.closed.iter().peekable(), MAX_SESSIONS);
                let body = format!("{{\"closed\": [{lines}]}}\n");
                Answer::new(200, JSON, body).permitted(permit)
            }
            "/info" => {
                let now = snapshot().map_err(unavailable)?;
                Answer::json(200, &Value::Object(now.info.clone()))
            }
            _ => return Err(Refused::new(404, "there is no such page; see / for a list")),
        })
    }

    /// If the source does not answer, the page still has the figures of the process that the
    /// system provides, because a process that hangs needs attention most.
    fn metrics(&self) -> Answer {
        let mut metrics = Metrics::default();
        self.process(&mut metrics);
        let snapshot = self.figures.sample();
        metrics.add(ANSWERING, &snapshot.is_ok());
        if let Ok(now) = snapshot {
            metrics.extend(&now.metrics);
        }
        Answer::new(200, TEXT, metrics.to_text())
    }

    /// Adds the figures of the process that the system provides. They are kept for a second,
    /// because counting many descriptors takes a while.
    fn process(&self, metrics: &mut Metrics) {
        let mut kept = locked(&self.process);
        let process = match kept.take() {
            Some((at, process)) if now().saturating_duration_since(at) < MAX_AGE => (at, process),
            _ => (now(), ProcessFigures::read()),
        };
        metrics.add(PROCESS, &kept.insert(process).1);
    }

    fn sessions(&self, request: &Request) -> Result<Answer, Refused> {
        let asked = Selection::read(&request.query)?;
        // The permit is taken before the answer is made, because the answer takes the memory.
        let permit = if asked.limit > DEFAULT_SESSIONS {
            Some(self.permit()?)
        } else {
            None
        };
        let snapshot = self.figures.sample().map_err(|why| Refused::new(503, why))?;
        let rows = &snapshot.sessions;
        let matching = rows.iter().filter(|row| {
            asked.role.is_none_or(|role| row.role.intersects(role))
                && asked.uuid.is_none_or(|uuid| row.uuid == Some(uuid))
                && asked.after.is_none_or(|after| row.key > after)
        });
        let mut matching = matching.peekable();
        let (lines, last) = lines(&mut matching, asked.limit);
        // If there are further sessions, the next page begins after the last one of this page.
        let next = matching.peek().and(last);
        let connected = rows.len();
        let next = json!(next);
        let body = format!("{{\"connected\": {connected}, \"next\": {next}, \"sessions\": [{lines}]}}\n");
        let mut answer = Answer::new(200, JSON, body);
        answer.permit = permit;
        Ok(answer)
    }

    /// The permit for a large answer.
    fn permit(&self) -> Result<Arc<()>, Refused> {
        Answer::permit(&self.large, MAX_LARGE_ANSWERS)
    }
}

impl Service for Pages {
    fn limits(&self) -> Limits {
        Limits {
            methods: "GET, HEAD",
            body: 0,
            streams: 0,
        }
    }

    fn reply(&self, request: &Request) -> Reply {
        self.page(request).unwrap_or_else(Answer::from).into()
    }
}

/// The next rows as JSON, one a line, and the key of the last one. Each row is written as soon as
/// it is made, because JSON values take ten times the memory of their text.
fn lines<'a>(rows: &mut Peekable<impl Iterator<Item = &'a Row>>, most: usize) -> (String, Option<u64>) {
    let (mut text, mut last) = (String::new(), None);
    for _ in 0..most {
        let Some(row) = rows.next_if(|_| text.len() < MAX_BYTES) else {
            break;
        };
        let comma = if last.is_some() { "," } else { "" };
        // Writing to a String cannot fail.
        let _ = write!(text, "{comma}\n{}", row.to_json());
        last = Some(row.key);
    }
    (text, last)
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
            limit: DEFAULT_SESSIONS,
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
                    if !(1..=MAX_SESSIONS).contains(&limit) {
                        return Err(Refused::new(400, format!("limit is 1 to {MAX_SESSIONS}")));
                    }
                    selection.limit = limit;
                }
                _ => return Err(Refused::new(400, format!("the page has no parameter {name:.64}"))),
            }
        }
        Ok(selection)
    }
}
