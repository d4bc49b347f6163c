//! What pages show of a server, of a process, and of a client.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};
use uuid::Uuid;

use super::{Histogram, Metrics, Row, Snapshot};
use ssntp::Role;
use ssntp::client::ClientFigures;
use ssntp::pki::{CertificateInfo, rfc3339};
use ssntp::server::{ClosedSession, Figures, HeldBack, Pace, SessionCounters, SessionFigures};
use ssntp_transport::{BudgetFigures, DispatcherFigures, ProcessFigures};

/// How many slow consumers have series of their own.
const SLOW: usize = 10;

impl Snapshot {
    /// What pages show of a server.
    pub fn of_server(figures: &Figures) -> Self {
        let mut snapshot = Self::default();
        if figures.stopping {
            snapshot.not_ready = Some("it is stopping".into());
        } else if figures.standing >= figures.max_sessions {
            snapshot.not_ready = Some("it has as many sessions as it admits".into());
        }
        snapshot.metrics.add_server(figures);
        let info = [
            ("uuid", json!(figures.uuid)),
            ("role", json!(figures.role.to_string())),
            ("started", json!(rfc3339(figures.started))),
            (
                "limits",
                json!({
                    "sessions": figures.max_sessions,
                    "sessions_of_certificate": figures.max_of_certificate,
                    "handshakes": figures.handshakes.limit,
                    "queue_bytes": figures.queues.limit,
                    "received_bytes": figures.received.limit,
                }),
            ),
        ];
        snapshot
            .info
            .extend(info.map(|(name, value)| (name.to_owned(), value)));
        let rows = figures
            .sessions
            .iter()
            .map(|session| Shown(session.clone(), figures.taken));
        let mut rows: Vec<_> = rows.map(|row| Box::new(row) as Box<dyn Row>).collect();
        rows.sort_unstable_by_key(|row| row.key());
        snapshot.sessions = rows;
        snapshot.closed = figures.closed.iter().rev().map(closed).collect();
        snapshot
    }

    /// What pages show of a client: it is ready while its session stands.
    pub fn of_client(figures: &ClientFigures) -> Self {
        let mut snapshot = Self::default();
        let connected = figures.server.as_ref().map(|server| {
            json!({
                "uuid": server.uuid(),
                "role": server.role().to_string(),
                "name": server.name(),
                "address": server.address().to_string(),
                "tls": server.tls(),
                "resumed": server.resumed(),
                "since": rfc3339(figures.since),
                "certificate": certificate(server.certificate(), None),
            })
        });
        if connected.is_none() {
            snapshot.not_ready = Some(format!("not connected since {}", rfc3339(figures.since)));
        }
        snapshot.info.insert("server".into(), json!(connected));
        snapshot.metrics.add_client(figures);
        snapshot
    }
}

/// A session, and when it was looked at.
#[derive(Debug)]
struct Shown(SessionFigures, SystemTime);

impl Row for Shown {
    fn key(&self) -> u64 {
        self.0.info.id().number()
    }

    fn uuid(&self) -> Option<Uuid> {
        Some(self.0.info.uuid())
    }

    fn role(&self) -> Role {
        self.0.info.role()
    }

    fn to_json(&self) -> Value {
        let Self(session, taken) = self;
        let info = &session.info;
        json!({
            "session": self.key(),
            "uuid": info.uuid(),
            "role": info.role().to_string(),
            "address": info.address().to_string(),
            "since": rfc3339(session.since),
            "certificate": certificate(info.certificate(), Some(*taken)),
            "tracing": info.tracing(),
            "counters": counters(&session.counters),
            "queue": {
                "frames": session.counters.frames_waiting,
                "bytes": session.counters.bytes_waiting,
            },
            "pace": match session.pace {
                Pace::Keeps => "keeps",
                Pace::Awaited(_) => "awaited",
                _ => "slow",
            },
            "awaited_seconds": match session.pace {
                Pace::Awaited(time) => Some(time.as_secs_f64()),
                _ => None,
            },
            "held_back": session.held_back.map(|(why, time)| {
                json!({ "by": held_back(why), "seconds": time.as_secs_f64() })
            }),
            "last_received": session.last_received.map(rfc3339),
            "last_queued": session.last_queued.map(rfc3339),
        })
    }
}

fn held_back(why: HeldBack) -> &'static str {
    match why {
        HeldBack::Line => "line",
        _ => "credit",
    }
}

fn closed(session: &ClosedSession) -> Value {
    let info = &session.info;
    json!({
        "session": info.id().number(),
        "uuid": info.uuid(),
        "role": info.role().to_string(),
        "address": info.address().to_string(),
        "certificate": certificate(info.certificate(), None),
        "since": rfc3339(session.since),
        "until": rfc3339(session.until),
        "reason": session.reason.word(),
        "why": session.reason.to_string(),
        "counters": counters(&session.counters),
        "queue": {
            "frames": session.counters.frames_waiting,
            "bytes": session.counters.bytes_waiting,
        },
    })
}

/// With the days left from then on, where they matter.
pub(super) fn certificate(certificate: &CertificateInfo, now: Option<SystemTime>) -> Value {
    let mut shown = json!({
        "subject": certificate.subject,
        "serial": certificate.serial,
        "issuer": certificate.issuer,
        "not_after": certificate.not_after_text(),
    });
    if let Some(now) = now {
        shown["days_left"] = days_between(now, certificate.not_after).into();
    }
    shown
}

/// Whole days, less than none where it is over.
fn days_between(now: SystemTime, end: SystemTime) -> i64 {
    const DAY: u64 = 86_400;
    let days = |time: Duration| i64::try_from(time.as_secs() / DAY).unwrap_or(i64::MAX);
    match end.duration_since(now) {
        Ok(left) => days(left),
        Err(over) => -1 - days(over.duration()),
    }
}

fn counters(counters: &SessionCounters) -> Value {
    json!({
        "frames_received": counters.frames_received,
        "bytes_received": counters.bytes_received,
        "frames_sent": counters.frames_sent,
        "bytes_sent": counters.bytes_sent,
        "frames_dropped": counters.frames_dropped,
        "frames_lost": counters.frames_lost,
        "frames_filtered": counters.frames_filtered,
        "frames_unsupported": counters.frames_unsupported,
        "bad_traces": counters.bad_traces,
    })
}

impl Metrics {
    /// What a server knows about itself.
    pub(super) fn add_server(&mut self, figures: &Figures) {
        self.add_sessions(figures);
        self.add_handshakes(figures);
        self.add_frames(figures);
        self.add_dispatcher(&figures.dispatcher);
        self.add_budgets(figures.queues, figures.received);
        self.add_slow(&figures.sessions);
    }

    fn add_sessions(&mut self, figures: &Figures) {
        let help = "Sessions by role; one with two roles is in both.";
        let mut sessions = self.gauge("ssntp_sessions", help);
        for (role, count) in &figures.by_role {
            sessions.sample(&[("role", &role.to_string())], *count);
        }
        let help = "Sessions, those that still end included: what counts against the limit.";
        self.gauge("ssntp_sessions_standing", help).set(figures.standing);
        self.gauge("ssntp_sessions_limit", "The most sessions.")
            .set(figures.max_sessions);
        let help = "Different certificates of the sessions.";
        self.gauge("ssntp_certificates", help).set(figures.certificates);
        let help = "The most sessions that one certificate has.";
        self.gauge("ssntp_certificate_sessions", help)
            .set(figures.most_of_certificate);
        let help = "The most sessions that one certificate may have.";
        self.gauge("ssntp_certificate_sessions_limit", help)
            .set(figures.max_of_certificate);
        let help = "Sessions that began.";
        self.counter("ssntp_sessions_admitted_total", help)
            .set(figures.admitted);
        let help = "Sessions that ended, by reason.";
        self.add_by("ssntp_sessions_ended_total", help, "reason", &figures.ended);
        let mut held = self.gauge(
            "ssntp_sessions_held_back",
            "Sessions that are not read from, by what they wait for.",
        );
        for why in [HeldBack::Line, HeldBack::Credit] {
            let is_it = |session: &&SessionFigures| session.held_back.is_some_and(|(by, _)| by == why);
            let count = figures.sessions.iter().filter(is_it).count();
            held.sample(&[("by", held_back(why))], count);
        }
    }

    fn add_handshakes(&mut self, figures: &Figures) {
        let handshakes = &figures.handshakes;
        let help = "Handshakes under way.";
        self.gauge("ssntp_handshakes", help).set(handshakes.running);
        let help = "The most handshakes under way.";
        self.gauge("ssntp_handshakes_limit", help).set(handshakes.limit);
        let help = "Handshakes that led to a session, by how TLS began.";
        self.counter("ssntp_handshakes_total", help)
            .sample(&[("tls", "full")], handshakes.full)
            .sample(&[("tls", "resumed")], handshakes.resumed);
        let help = "Handshakes that led to no session, by reason.";
        self.add_by(
            "ssntp_handshakes_refused_total",
            help,
            "reason",
            &handshakes.refused,
        );
    }

    fn add_frames(&mut self, figures: &Figures) {
        for (name, help, of) in FRAMES {
            let mut family = self.counter(name, help);
            for kind in &figures.frames {
                let frame_type = kind.kind.frame_type.to_string();
                let value = [
                    kind.frames_received,
                    kind.bytes_received,
                    kind.frames_sent,
                    kind.bytes_sent,
                ];
                family.sample(&[("type", &frame_type), ("operand", &kind.name)], value[of]);
            }
        }
        let counts = [
            (
                "ssntp_frames_unsupported_total",
                "Frames received of types or operands that are not supported.",
                figures.unsupported,
            ),
            (
                "ssntp_frames_filtered_total",
                "Frames that the role filter discarded.",
                figures.filtered,
            ),
            (
                "ssntp_frames_answered_total",
                "Frames that the server answered with InvalidFrameType.",
                figures.answered,
            ),
            (
                "ssntp_frames_dropped_total",
                "Frames dropped because a queue was full.",
                figures.dropped,
            ),
            (
                "ssntp_frames_lost_total",
                "Frames that waited for sessions which are gone.",
                figures.lost,
            ),
            (
                "ssntp_frames_expired_total",
                "Held frames that expired, or found no room.",
                figures.expired,
            ),
        ];
        for (name, help, count) in counts {
            self.counter(name, help).set(count);
        }
        let help = "Frames that routing functions have queued for later.";
        self.gauge("ssntp_frames_held", help).set(figures.held);
    }

    /// What a dispatcher of any protocol knows about itself.
    pub(super) fn add_dispatcher(&mut self, dispatcher: &DispatcherFigures) {
        let help = "Events that wait for the dispatcher.";
        self.gauge("ssntp_dispatcher_events", help).set(dispatcher.events);
        let help = "The most events that wait for the dispatcher; then readers wait.";
        self.gauge("ssntp_dispatcher_events_limit", help)
            .set(dispatcher.max_events);
        let help = "Connections whose input waits for a turn.";
        self.gauge("ssntp_dispatcher_with_input", help)
            .set(dispatcher.with_input);
        let help = "How long events wait for the dispatcher, of one a millisecond at most.";
        self.histogram("ssntp_dispatcher_wait_seconds", help)
            .set(&dispatcher.waits);
        let help = "Processor time of what the dispatcher does for one connection at a time.";
        self.histogram("ssntp_dispatcher_turn_seconds", help)
            .set(&dispatcher.turns);
    }

    /// The bounds of all queues.
    pub(super) fn add_budgets(&mut self, queues: BudgetFigures, received: BudgetFigures) {
        let help = "Memory of all queues together.";
        self.gauge("ssntp_queue_bytes", help)
            .sample(&[("queue", "sent")], queues.used)
            .sample(&[("queue", "received")], received.used);
        let help = "The most memory of all queues together.";
        self.gauge("ssntp_queue_limit_bytes", help)
            .sample(&[("queue", "sent")], queues.limit)
            .sample(&[("queue", "received")], received.limit);
    }

    /// Slow consumers: how many, and the names of those that hold most.
    fn add_slow(&mut self, sessions: &[SessionFigures]) {
        let mut slow: Vec<_> = sessions.iter().filter(|session| session.pace.is_slow()).collect();
        let help = "Sessions that do not take what is sent to them as fast as it comes.";
        self.gauge("ssntp_slow_consumers", help).set(slow.len());
        slow.sort_unstable_by_key(|session| Reverse(session.counters.bytes_waiting));
        let help = "What waits for a slow consumer, for the ten with most.";
        let mut bytes = self.gauge("ssntp_slow_consumer_queue_bytes", help);
        for session in slow.into_iter().take(SLOW) {
            let (uuid, role) = (session.info.uuid().to_string(), session.info.role().to_string());
            bytes.sample(
                &[("uuid", &uuid), ("role", &role)],
                session.counters.bytes_waiting,
            );
        }
    }

    /// What a client knows about itself.
    pub(super) fn add_client(&mut self, figures: &ClientFigures) {
        let counters = &figures.counters;
        let help = "Whether a session with the server stands.";
        self.gauge("ssntp_client_connected", help)
            .set(figures.server.is_some());
        let help = "Since when it does, or none does, in seconds since 1970.";
        self.gauge("ssntp_client_since_timestamp_seconds", help)
            .set(timestamp(figures.since));
        let help = "Sessions that stood.";
        self.counter("ssntp_client_sessions_total", help)
            .set(counters.sessions);
        let help = "Attempts at a server that failed, by reason.";
        self.add_by(
            "ssntp_client_failed_attempts_total",
            help,
            "reason",
            &figures.failures,
        );
        let counts = [
            (
                "ssntp_client_received_frames_total",
                "Frames received.",
                counters.received_frames,
            ),
            (
                "ssntp_client_received_bytes_total",
                "Bytes of frames received.",
                counters.received_bytes,
            ),
            (
                "ssntp_client_sent_frames_total",
                "Frames sent.",
                counters.sent_frames,
            ),
            (
                "ssntp_client_sent_bytes_total",
                "Bytes of frames sent.",
                counters.sent_bytes,
            ),
            (
                "ssntp_client_lost_frames_total",
                "Frames that were accepted for sending and lost.",
                counters.lost_frames,
            ),
            (
                "ssntp_client_unsupported_frames_total",
                "Frames received of types or operands that are not supported.",
                counters.unsupported,
            ),
        ];
        for (name, help, count) in counts {
            self.counter(name, help).set(count);
        }
        let help = "Frames that wait to be sent.";
        self.gauge("ssntp_client_waiting_frames", help)
            .set(figures.frames_waiting);
        let help = "Bytes of the frames that wait to be sent.";
        self.gauge("ssntp_client_waiting_bytes", help)
            .set(figures.bytes_waiting);
    }

    /// What the system says of this process, by the names that every exporter has.
    pub(super) fn add_process(&mut self, process: &ProcessFigures) {
        let gauges = [
            (
                "process_resident_memory_bytes",
                "Resident memory size in bytes.",
                process.resident,
            ),
            (
                "process_virtual_memory_bytes",
                "Virtual memory size in bytes.",
                process.virtual_memory,
            ),
            ("process_threads", "Number of threads.", process.threads),
            (
                "process_open_fds",
                "Number of open file descriptors.",
                process.descriptors,
            ),
            (
                "process_max_fds",
                "Maximum number of open file descriptors.",
                process.max_descriptors,
            ),
            (
                "ssntp_memory_limit_bytes",
                "The memory that the process may have, by all limits that there are.",
                Some(process.memory_limit),
            ),
        ];
        for (name, help, value) in gauges {
            if let Some(value) = value {
                self.gauge(name, help).set(value);
            }
        }
        let help = "Total user and system CPU time spent in seconds.";
        let seconds = process.processor_time.as_secs_f64();
        self.counter("process_cpu_seconds_total", help).set(seconds);
        if let Some(started) = process.started {
            let help = "Start time of the process since unix epoch in seconds.";
            self.gauge("process_start_time_seconds", help)
                .set(timestamp(started));
        }
        let help = "What this is, always 1.";
        self.gauge("ssntp_build_info", help)
            .sample(&[("version", process.version)], true);
    }

    /// A counter by fixed words.
    pub(super) fn add_by(
        &mut self,
        name: &'static str,
        help: &'static str,
        label: &'static str,
        counts: &BTreeMap<&'static str, u64>,
    ) {
        let mut family = self.counter(name, help);
        for (word, count) in counts {
            family.sample(&[(label, word)], *count);
        }
    }
}

/// Of each kind of frame: the name, and the place among its four counts.
const FRAMES: [(&str, &str, usize); 4] = [
    (
        "ssntp_received_frames_total",
        "Frames received, by type and operand.",
        0,
    ),
    (
        "ssntp_received_bytes_total",
        "Bytes of frames received, by type and operand.",
        1,
    ),
    (
        "ssntp_sent_frames_total",
        "Frames queued to be sent, by type and operand.",
        2,
    ),
    (
        "ssntp_sent_bytes_total",
        "Bytes of frames queued to be sent, by type and operand.",
        3,
    ),
];

/// Seconds since 1970.
pub(super) fn timestamp(time: SystemTime) -> f64 {
    time.duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs_f64()
}

impl From<&ssntp_transport::Histogram> for super::Value {
    fn from(counted: &ssntp_transport::Histogram) -> Self {
        let mut histogram = Histogram {
            sum: counted.sum().as_secs_f64(),
            ..Histogram::default()
        };
        for (bound, count) in counted.buckets() {
            match bound {
                Some(bound) => histogram.buckets.push((bound.as_secs_f64(), count)),
                None => histogram.above = count,
            }
        }
        Self::Histogram(histogram)
    }
}
