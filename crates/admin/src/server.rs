//! The snapshot of a server.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::SystemTime;

use serde_json::{Value, json};
use ssntp::pki::{CertificateInfo, rfc3339};
use ssntp::server::{ClosedSession, Figures, HeldBack, KindFigures, Pace, SessionCounters};
use ssntp::server::{LinkFigures, PeerState};
use ssntp::server::{SessionFigures, SessionInfo};
use ssntp_transport::{BudgetFigures, DispatcherFigures};

use super::metrics::{Labels, Metric, Metrics, Samples, by, counter, gauge, histogram, one};
use super::{Row, Snapshot};

/// The maximum number of slow consumers with series of their own, so that a server with many of
/// them does not flood Prometheus. `/sessions` shows all.
const SLOW: usize = 10;

impl Snapshot {
    /// The snapshot of a server from its figures.
    pub fn of_server(figures: &Figures) -> Self {
        let mut snapshot = Self::default();
        if figures.stopping {
            snapshot.not_ready = Some("it is stopping".into());
        } else if figures.standing >= figures.max_sessions {
            snapshot.not_ready = Some("it has as many sessions as it admits".into());
        }
        snapshot.metrics.add(SERVER, figures);
        let missing = figures.peers.iter().filter(|(_, state)| is_missing(state));
        snapshot.degraded = missing.map(|(peer, state)| format!("{peer}: {state}")).collect();
        if !(figures.peers.is_empty() && figures.links.is_empty()) {
            snapshot.metrics.add(LINKS, figures);
            snapshot.show("servers", servers(figures));
        }
        let (queues, received) = (figures.queues, figures.received);
        snapshot
            .metrics
            .add_dispatcher(&figures.dispatcher, queues, received);
        snapshot.show("uuid", figures.uuid);
        snapshot.show("roles", figures.role.names());
        snapshot.show("started", rfc3339(figures.started));
        let limits = json!({
            "sessions": figures.max_sessions,
            "sessions_of_certificate": figures.max_of_certificate,
            "handshakes": figures.handshakes.limit,
            "queue_bytes": figures.queues.limit,
            "received_bytes": figures.received.limit,
        });
        snapshot.show("limits", limits);
        let rows = figures
            .sessions
            .iter()
            .map(|session| row(session.clone(), figures.taken));
        snapshot.sessions = rows.collect();
        // The next page begins after a key, so the rows are in the order of their keys.
        snapshot.sessions.sort_unstable_by_key(|row| row.key);
        // In the figures the session that ended last is the last one; on the page it is the first.
        snapshot.closed = figures.closed.iter().rev().cloned().map(closed).collect();
        snapshot
    }
}

impl Metrics {
    /// Adds the load of a dispatcher and the levels of its queues, for a server of any protocol.
    pub fn add_dispatcher(
        &mut self,
        figures: &DispatcherFigures,
        queues: BudgetFigures,
        received: BudgetFigures,
    ) {
        self.add(DISPATCHER, figures);
        self.add(BUDGETS, &[("sent", queues), ("received", received)]);
    }
}

#[rustfmt::skip] // A table: one row a metric.
const SERVER: &[Metric<Figures>] = &[
    gauge("ssntp_sessions", "Sessions by role; one with two roles is in both.",
        |f| by("role", f.by_role.iter().copied())),
    gauge("ssntp_sessions_standing", "Sessions that count against the limit, including those that are ending.",
        |f| one(f.standing)),
    gauge("ssntp_sessions_limit", "The maximum number of sessions.", |f| one(f.max_sessions)),
    gauge("ssntp_certificates", "Different certificates of the sessions.", |f| one(f.certificates)),
    gauge("ssntp_certificate_sessions", "The sessions of the certificate that has most of them.", |f| one(f.most_of_certificate)),
    gauge("ssntp_certificate_sessions_limit", "The maximum number of sessions that one certificate may have.",
        |f| one(f.max_of_certificate)),
    counter("ssntp_sessions_admitted_total", "Sessions that began.", |f| one(f.admitted)),
    counter("ssntp_sessions_ended_total", "Sessions that ended, by reason.", |f| from_zero("reason", ENDED, &f.ended)),
    gauge("ssntp_sessions_held_back", "Sessions that are not read from, by the reason.",
        |f| by("by", [HeldBack::Line, HeldBack::Credit].map(|why| (held_back(why), count_held_back(f, why))))),
    gauge("ssntp_handshakes", "Handshakes under way.", |f| one(f.handshakes.running)),
    gauge("ssntp_handshakes_limit", "The maximum number of handshakes under way.", |f| one(f.handshakes.limit)),
    counter("ssntp_handshakes_total", "Handshakes that led to a session, by how TLS began.",
        |f| by("tls", [("full", f.handshakes.full), ("resumed", f.handshakes.resumed)])),
    counter("ssntp_handshakes_refused_total", "Handshakes that led to no session, by reason.",
        |f| from_zero("reason", REFUSED, &f.handshakes.refused)),
    counter("ssntp_enrolments_total", "Nodes that joined, certificates that were renewed, and refusals of both, by result.",
        |f| from_zero("result", ENROLLED, &f.handshakes.enrolments)),
    counter("ssntp_received_frames_total", "Frames received, by type and operand.",
        |f| by_kind(f, |kind| kind.frames_received)),
    counter("ssntp_received_bytes_total", "Bytes of frames received, by type and operand.",
        |f| by_kind(f, |kind| kind.bytes_received)),
    counter("ssntp_sent_frames_total", "Frames queued to be sent, by type and operand.",
        |f| by_kind(f, |kind| kind.frames_sent)),
    counter("ssntp_sent_bytes_total", "Bytes of frames queued to be sent, by type and operand.",
        |f| by_kind(f, |kind| kind.bytes_sent)),
    counter("ssntp_frames_unsupported_total", "Frames received of types or operands that are not supported.",
        |f| one(f.unsupported)),
    counter("ssntp_frames_filtered_total", "Frames that the role filter discarded.", |f| one(f.filtered)),
    counter("ssntp_frames_unreceived_total", "Frames that a forwarding rule sent to no session.", |f| one(f.unreceived)),
    counter("ssntp_frames_answered_total", "Frames that the server answered with InvalidFrameType.",
        |f| one(f.answered)),
    counter("ssntp_frames_dropped_total", "Frames dropped because a queue was full.", |f| one(f.dropped)),
    counter("ssntp_frames_lost_total", "Frames that waited for a session when it ended.", |f| one(f.lost)),
    gauge("ssntp_slow_consumers", "Sessions that take frames more slowly than they arrive.", |f| one(slow(f).len())),
    gauge("ssntp_slow_consumer_queue_bytes", "Bytes that wait for a slow consumer, for the ten with most.", slowest),
];

#[rustfmt::skip] // A table: one row a metric.
const LINKS: &[Metric<Figures>] = &[
    gauge("ssntp_links", "Links to other servers whose sessions are known.",
        |f| one(f.links.iter().filter(|link| link.linked).count())),
    gauge("ssntp_links_missing", "Servers that are dialled and not linked.",
        |f| one(f.peers.iter().filter(|(_, state)| is_missing(state)).count())),
    gauge("ssntp_link_sessions", "Sessions of another server.", |f| by_link(f, |link| link.sessions as u64)),
    gauge("ssntp_link_held_sessions", "Sessions that are not read, since a receiver on another server has no room.",
        |f| by_link(f, |link| link.held as u64)),
    gauge("ssntp_link_queue_bytes", "Bytes that wait for a link.", |f| by_link(f, |link| link.bytes_waiting)),
    counter("ssntp_link_sent_frames_total", "Frames sent over a link, since it began.",
        |f| by_link(f, |link| link.frames_sent)),
    counter("ssntp_link_received_frames_total", "Frames for sessions that came over a link, since it began.",
        |f| by_link(f, |link| link.frames_received)),
    counter("ssntp_link_astray_frames_total", "Frames that came over a link for sessions that are gone.",
        |f| by_link(f, |link| link.frames_astray)),
];

fn is_missing(state: &PeerState) -> bool {
    matches!(state, PeerState::Trying(_))
}

fn by_link(figures: &Figures, count: fn(&LinkFigures) -> u64) -> Samples {
    by(
        "server",
        figures.links.iter().map(|link| (link.server.uuid, count(link))),
    )
}

/// The links and the peers, for `/info`.
fn servers(figures: &Figures) -> Value {
    let links = figures.links.iter().map(|link| {
        json!({
            "uuid": link.server.uuid,
            "roles": link.server.role.names(),
            "address": link.server.address.to_string(),
            "advertised": link.server.advertised,
            "dialled": link.server.dialled,
            "linked": link.linked,
            "age_s": link.age.as_secs(),
            "sessions": link.sessions,
            "held": link.held,
            "frames_waiting": link.frames_waiting,
            "bytes_waiting": link.bytes_waiting,
            "frames_sent": link.frames_sent,
            "frames_received": link.frames_received,
            "frames_astray": link.frames_astray,
            "frames_stale": link.frames_stale,
        })
    });
    let peers = figures.peers.iter();
    let peers = peers.map(|(peer, state)| json!({ "address": peer, "state": state.to_string() }));
    json!({ "links": links.collect::<Value>(), "peers": peers.collect::<Value>() })
}

#[rustfmt::skip]
const DISPATCHER: &[Metric<DispatcherFigures>] = &[
    gauge("ssntp_dispatcher_events", "Events that wait for the dispatcher.", |f| one(f.events)),
    gauge("ssntp_dispatcher_events_limit", "The maximum number of events that may wait for the dispatcher; then readers wait.",
        |f| one(f.max_events)),
    gauge("ssntp_dispatcher_with_input", "Connections whose input waits for a turn.", |f| one(f.with_input)),
    histogram("ssntp_dispatcher_wait_seconds",
        "How long events wait for the dispatcher; at most one event a millisecond is measured.", |f| one(f.waits)),
    histogram("ssntp_dispatcher_input_age_seconds", "How long the oldest input of a connection has waited when its turn begins.",
        |f| one(f.ages)),
    histogram("ssntp_dispatcher_turn_seconds", "Processor time of one turn of a connection.", |f| one(f.turns)),
];

#[rustfmt::skip]
const BUDGETS: &[Metric<[(&str, BudgetFigures); 2]>] = &[
    gauge("ssntp_queue_bytes", "Memory of all queues together.",
        |f| by("queue", f.map(|(queue, budget)| (queue, budget.used)))),
    gauge("ssntp_queue_limit_bytes", "The maximum memory of all queues together.",
        |f| by("queue", f.map(|(queue, budget)| (queue, budget.limit)))),
    gauge("ssntp_received_waiting", "Frames that have begun to arrive and wait for memory.",
        |f| one(f[1].1.waiting)),
    counter("ssntp_received_refused_total", "Frames refused at their header: there will never be memory for them.",
        |f| one(f[1].1.refused)),
];

/// The reasons for which sessions end. These series exist from the start: `increase()` of Prometheus
/// does not count the first event of a series that begins with that event.
const ENDED: &str =
    "closed refused lost protocol replaced slow_consumer certificate kicked application stopped";
/// The reasons for which handshakes are refused.
const REFUSED: &str = "tls certificate revoked expired timeout lost cut stopping thread role uuid banned limit \
                       certificate_limit application failed aborted connect";

/// The results of joins and renewals.
const ENROLLED: &str = "joined renewed proof ended used roles request not_renewable issuer busy unavailable";

/// The count of each of these words, and of other words that were counted.
fn from_zero(label: &'static str, words: &'static str, counted: &BTreeMap<&'static str, u64>) -> Samples {
    let mut all: BTreeMap<_, _> = words.split(' ').map(|word| (word, 0)).collect();
    all.extend(counted);
    by(label, all)
}

fn by_kind(figures: &Figures, count: fn(&KindFigures) -> u64) -> Samples {
    let sample = |kind: &KindFigures| {
        let frame_type = kind.kind.frame_type.to_string();
        let labels = Labels::from([("type", frame_type), ("operand", kind.name.clone())]);
        (labels, count(kind).into())
    };
    figures.frames.iter().map(sample).collect()
}

fn count_held_back(figures: &Figures, why: HeldBack) -> usize {
    let is_it = |session: &&SessionFigures| session.held_back.is_some_and(|(by, _)| by == why);
    figures.sessions.iter().filter(is_it).count()
}

fn slow(figures: &Figures) -> Vec<&SessionFigures> {
    let is_slow = |session: &&SessionFigures| session.pace.is_slow();
    figures.sessions.iter().filter(is_slow).collect()
}

fn slowest(figures: &Figures) -> Samples {
    let mut slow = slow(figures);
    // The largest queues first, because only some of them are shown.
    slow.sort_unstable_by_key(|session| Reverse(session.counters.bytes_waiting));
    let sample = |session: &SessionFigures| {
        let (uuid, role) = (session.info.uuid().to_string(), session.info.role().to_string());
        (
            Labels::from([("uuid", uuid), ("role", role)]),
            session.counters.bytes_waiting.into(),
        )
    };
    slow.into_iter().take(SLOW).map(sample).collect()
}

fn row(session: SessionFigures, taken: SystemTime) -> Row {
    let info = &session.info;
    let (key, uuid, role) = (info.id().number(), info.uuid(), info.role());
    Row::new(key, Some(uuid), role, move || {
        let mut shown = shown(&session.info, session.since, &session.counters);
        shown["certificate"]["days_left"] = session.info.certificate().days_left(taken).into();
        shown["tracing"] = session.info.tracing().into();
        shown["last_received"] = json!(session.last_received.map(rfc3339));
        shown["last_queued"] = json!(session.last_queued.map(rfc3339));
        let (pace, awaited) = match session.pace {
            Pace::Keeps => ("keeps", None),
            Pace::Awaited(time) => ("awaited", Some(time.as_secs_f64())),
            _ => ("slow", None),
        };
        shown["pace"] = pace.into();
        shown["awaited_seconds"] = json!(awaited);
        let held = session.held_back;
        let held = held.map(|(why, time)| json!({ "by": held_back(why), "seconds": time.as_secs_f64() }));
        shown["held_back"] = json!(held);
        shown
    })
}

fn closed(session: ClosedSession) -> Row {
    let info = &session.info;
    let (key, uuid, role) = (info.id().number(), info.uuid(), info.role());
    Row::new(key, Some(uuid), role, move || {
        let mut shown = shown(&session.info, session.since, &session.counters);
        shown["until"] = rfc3339(session.until).into();
        shown["reason"] = session.reason.word().into();
        shown["why"] = session.reason.to_string().into();
        shown
    })
}

/// The members of a session that both `/sessions` and `/closed` have.
fn shown(info: &SessionInfo, since: SystemTime, counters: &SessionCounters) -> Value {
    json!({
        "session": info.id().number(),
        "uuid": info.uuid(),
        "roles": info.role().names(),
        "address": info.address().to_string(),
        "certificate": certificate(info.certificate()),
        "since": rfc3339(since),
        "counters": counters,
        "queue": { "frames": counters.frames_waiting, "bytes": counters.bytes_waiting },
    })
}

pub(super) fn certificate(certificate: &CertificateInfo) -> Value {
    json!({
        "subject": certificate.subject,
        "serial": certificate.serial,
        "issuer": certificate.issuer,
        "not_after": certificate.not_after_text(),
    })
}

fn held_back(why: HeldBack) -> &'static str {
    match why {
        HeldBack::Line => "line",
        _ => "credit",
    }
}
