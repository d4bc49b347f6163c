//! The table and the JSON.

use comfy_table::{Table, presets};
use serde_json::{Value, json};

use super::cases::{Latency, Memory, Throughput};

/// Everything that was measured.
#[derive(Debug, Default)]
pub(super) struct Report {
    floors: Vec<(usize, f64)>,
    throughputs: Vec<Throughput>,
    latencies: Vec<Latency>,
    handshakes: Option<f64>,
    memory: Vec<Memory>,
}

impl Report {
    pub(super) fn new() -> Self {
        Self::default()
    }

    pub(super) fn floor(&mut self, payload: usize, frames: f64) {
        self.floors.push((payload, frames));
    }

    pub(super) fn throughput(&mut self, case: Throughput) {
        self.throughputs.push(case);
    }

    pub(super) fn latency(&mut self, case: Latency) {
        self.latencies.push(case);
    }

    pub(super) fn handshakes(&mut self, rate: f64) {
        self.handshakes = Some(rate);
    }

    pub(super) fn memory(&mut self, rows: Vec<Memory>) {
        self.memory = rows;
    }

    /// The ratio to the floor of the same payload.
    fn of_floor(&self, case: &Throughput) -> Option<f64> {
        let (_, floor) = self.floors.iter().find(|(payload, _)| *payload == case.payload)?;
        Some(case.frames / floor)
    }

    pub(super) fn table(&self) -> String {
        let mut blocks = Vec::new();
        if !self.floors.is_empty() || !self.throughputs.is_empty() {
            let mut table = new_table(&[
                "case",
                "payload B",
                "frames/s",
                "MB/s",
                "of floor",
                "server CPU s/M",
            ]);
            for (payload, frames) in &self.floors {
                let row = [
                    "floor".into(),
                    payload.to_string(),
                    count(*frames),
                    rate(*frames, *payload),
                ];
                table.add_row(row.into_iter().chain([String::new(), String::new()]));
            }
            for case in &self.throughputs {
                table.add_row([
                    case.case.clone(),
                    case.payload.to_string(),
                    count(case.frames),
                    rate(case.frames, case.payload),
                    self.of_floor(case).map(|r| format!("{r:.2}")).unwrap_or_default(),
                    format!("{:.2}", case.cpu_per_million),
                ]);
            }
            blocks.push(table.to_string());
        }
        if !self.latencies.is_empty() {
            let mut table = new_table(&[
                "latency at",
                "payload B",
                "frames",
                "p50 µs",
                "p99 µs",
                "p99.9 µs",
            ]);
            for case in &self.latencies {
                table.add_row([
                    format!("{}/s", case.rate),
                    case.payload.to_string(),
                    case.frames.to_string(),
                    format!("{:.0}", case.p50),
                    format!("{:.0}", case.p99),
                    format!("{:.0}", case.p999),
                ]);
            }
            blocks.push(table.to_string());
        }
        if let Some(rate) = self.handshakes {
            blocks.push(format!("TLS + CONNECT, one client: {rate:.0}/s"));
        }
        if !self.memory.is_empty() {
            let mut table = new_table(&["idle sessions", "server RSS KiB", "KiB per session"]);
            for row in &self.memory {
                let per_session = if row.sessions == 0 {
                    String::new()
                } else {
                    format!("{:.1}", row.per_session)
                };
                table.add_row([row.sessions.to_string(), row.rss.to_string(), per_session]);
            }
            blocks.push(table.to_string());
        }
        blocks.join("\n\n")
    }

    pub(super) fn json(&self) -> Value {
        let throughput = |case: &Throughput| {
            json!({
                "case": case.case, "payload_bytes": case.payload,
                "frames_per_second": case.frames, "megabytes_per_second": megabytes(case.frames, case.payload),
                "of_floor": self.of_floor(case), "server_cpu_seconds_per_million": case.cpu_per_million,
            })
        };
        let latency = |case: &Latency| {
            json!({
                "frames_per_second": case.rate, "payload_bytes": case.payload, "frames": case.frames,
                "p50_us": case.p50, "p99_us": case.p99, "p99_9_us": case.p999,
            })
        };
        let memory = |row: &Memory| json!({ "sessions": row.sessions, "rss_kib": row.rss, "kib_per_session": row.per_session });
        let floor = |(payload, frames): &(usize, f64)| json!({ "payload_bytes": payload, "frames_per_second": frames });
        json!({
            "cores": std::thread::available_parallelism().map(usize::from).ok(),
            "floor": self.floors.iter().map(floor).collect::<Vec<_>>(),
            "throughput": self.throughputs.iter().map(throughput).collect::<Vec<_>>(),
            "latency": self.latencies.iter().map(latency).collect::<Vec<_>>(),
            "handshakes_per_second": self.handshakes,
            "memory": self.memory.iter().map(memory).collect::<Vec<_>>(),
        })
    }
}

fn new_table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_BORDERS_ONLY).set_header(header);
    table
}

fn count(frames: f64) -> String {
    match frames {
        f if f >= 1e6 => format!("{:.2} M", f / 1e6),
        f if f >= 1e4 => format!("{:.0} k", f / 1e3),
        f => format!("{f:.0}"),
    }
}

/// Megabytes of frames, headers included.
fn megabytes(frames: f64, payload: usize) -> f64 {
    frames * (payload + ssntp::proto::HEADER_LEN) as f64 / 1e6
}

fn rate(frames: f64, payload: usize) -> String {
    format!("{:.0}", megabytes(frames, payload))
}
