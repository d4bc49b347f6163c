//! The snapshot of a client, and the metrics of the process.

use serde_json::json;
use ssntp::client::ClientFigures;
use ssntp::pki::rfc3339;
use ssntp_transport::ProcessFigures;

use super::Snapshot;
use super::metrics::{Metric, Samples, by, counter, gauge, one};
use super::server::certificate;

impl Snapshot {
    /// The snapshot of a client from its figures. The client is ready while it is connected.
    pub fn of_client(figures: &ClientFigures) -> Self {
        let mut snapshot = Self::default();
        let since = rfc3339(figures.since);
        let connected = figures.server.as_ref().map(|server| {
            json!({
                "uuid": server.uuid,
                "roles": server.role.names(),
                "name": server.name,
                "address": server.address.to_string(),
                "tls": server.tls,
                "resumed": server.resumed,
                "since": since,
                "certificate": certificate(&server.certificate),
            })
        });
        if connected.is_none() {
            snapshot.not_ready = Some(format!("not connected since {since}"));
        }
        snapshot.show("server", connected);
        snapshot.metrics.add(CLIENT, figures);
        snapshot
    }
}

#[rustfmt::skip] // A table: one row a metric.
const CLIENT: &[Metric<ClientFigures>] = &[
    gauge("ssntp_client_connected", "Whether the client is connected: 1 or 0.", |f| one(f.server.is_some())),
    gauge("ssntp_client_since_timestamp_seconds",
        "Since when it is connected, or not connected, in seconds since 1970.", |f| one(f.since)),
    counter("ssntp_client_sessions_total", "Sessions that were established.", |f| one(f.counters.sessions)),
    counter("ssntp_client_failed_attempts_total", "Attempts at a server that failed, by reason.",
        |f| by("reason", &f.failures)),
    counter("ssntp_client_received_frames_total", "Frames received.", |f| one(f.counters.received_frames)),
    counter("ssntp_client_received_bytes_total", "Bytes of frames received.", |f| one(f.counters.received_bytes)),
    counter("ssntp_client_sent_frames_total", "Frames sent.", |f| one(f.counters.sent_frames)),
    counter("ssntp_client_sent_bytes_total", "Bytes of frames sent.", |f| one(f.counters.sent_bytes)),
    counter("ssntp_client_lost_frames_total", "Frames that were accepted for sending and lost.",
        |f| one(f.counters.lost_frames)),
    counter("ssntp_client_unsupported_frames_total", "Frames received of types or operands that are not supported.",
        |f| one(f.counters.unsupported)),
    gauge("ssntp_client_waiting_frames", "Frames that wait to be sent.", |f| one(f.frames_waiting)),
    gauge("ssntp_client_waiting_bytes", "Bytes of the frames that wait to be sent.", |f| one(f.bytes_waiting)),
];

/// The metrics of the process. The names that begin with `process_` are common to all exporters for
/// Prometheus.
#[rustfmt::skip]
pub(super) const PROCESS: &[Metric<ProcessFigures>] = &[
    gauge("process_resident_memory_bytes", "Resident memory size in bytes.", |f| known(f.resident)),
    gauge("process_virtual_memory_bytes", "Virtual memory size in bytes.", |f| known(f.virtual_memory)),
    gauge("process_threads", "Number of threads.", |f| known(f.threads)),
    gauge("process_open_fds", "Number of open file descriptors.", |f| known(f.descriptors)),
    gauge("process_max_fds", "Maximum number of open file descriptors.", |f| known(f.max_descriptors)),
    gauge("ssntp_memory_limit_bytes", "The memory that the process may have, by the lowest of all limits.",
        |f| one(f.memory_limit)),
    counter("process_cpu_seconds_total", "Total user and system CPU time spent in seconds.",
        |f| one(f.processor_time)),
    gauge("process_start_time_seconds", "Start time of the process since unix epoch in seconds.",
        |f| f.started.map(one).unwrap_or_default()),
    gauge("ssntp_build_info", "The version, as a label; the value is always 1.",
        |f| by("version", [(f.version, true)])),
];

/// A figure that the system may not provide.
fn known(figure: Option<u64>) -> Samples {
    figure.map(one).unwrap_or_default()
}
