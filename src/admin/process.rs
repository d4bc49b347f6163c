//! What the system says of this process, under the names that every exporter for
//! Prometheus uses.

use std::fs;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::param::clock_ticks_per_second;

use super::{Metrics, now};

/// How old the figures may be: to count descriptors takes a while where there are
/// many.
const AGE: Duration = Duration::from_secs(1);

/// The last figures.
#[derive(Debug, Default)]
pub(super) struct Process(Mutex<Option<(Instant, Metrics)>>);

impl Process {
    pub(super) fn metrics(&self) -> Metrics {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match &*kept {
            Some((at, metrics)) if at.elapsed() < AGE => metrics.clone(),
            _ => {
                let metrics = read();
                *kept = Some((now(), metrics.clone()));
                metrics
            }
        }
    }
}

/// What cannot be read is left out, as on a system without `/proc`.
fn read() -> Metrics {
    let mut metrics = Metrics::default();
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let of_status = |name: &str| -> Option<u64> {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse().ok()
    };
    if let Some(kib) = of_status("VmRSS:") {
        let help = "Resident memory size in bytes.";
        metrics.gauge("process_resident_memory_bytes", help).set(kib * 1024);
    }
    if let Some(kib) = of_status("VmSize:") {
        let help = "Virtual memory size in bytes.";
        metrics.gauge("process_virtual_memory_bytes", help).set(kib * 1024);
    }
    if let Some(threads) = of_status("Threads:") {
        let help = "Number of threads.";
        metrics.gauge("process_threads", help).set(threads);
    }
    if let Ok(open) = fs::read_dir("/proc/self/fd") {
        let help = "Number of open file descriptors.";
        // The one that they are counted by is none of them.
        metrics.gauge("process_open_fds", help).set(open.count().saturating_sub(1));
    }
    let limits = fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let limit = limits.lines().find_map(|line| line.strip_prefix("Max open files"));
    if let Some(most) = limit.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok()) {
        let help = "Maximum number of open file descriptors.";
        metrics.gauge("process_max_fds", help).set(most);
    }
    // The second field, the name, may hold anything, but ends with the last bracket.
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<_> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    #[expect(clippy::cast_precision_loss, reason = "seconds with a fraction")]
    let seconds = |field: usize| {
        let ticks: u64 = fields.get(field - 3)?.parse().ok()?;
        Some(ticks as f64 / clock_ticks_per_second() as f64)
    };
    if let (Some(user), Some(system)) = (seconds(14), seconds(15)) {
        let help = "Total user and system CPU time spent in seconds.";
        metrics.counter("process_cpu_seconds_total", help).set(user + system);
    }
    let system = fs::read_to_string("/proc/stat").unwrap_or_default();
    let booted = system.lines().find_map(|line| line.strip_prefix("btime "));
    if let (Some(booted), Some(started)) = (booted.and_then(|at| at.trim().parse::<f64>().ok()), seconds(22)) {
        let help = "Start time of the process since unix epoch in seconds.";
        metrics.gauge("process_start_time_seconds", help).set(booted + started);
    }
    metrics
}
