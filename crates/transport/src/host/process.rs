//! The system's figures of this process.

use std::fs;
use std::path::Path;
use std::sync::OnceLock;
use std::time::{Duration, SystemTime};

use rustix::process::{Resource, getrlimit};
use rustix::time::{ClockId, clock_gettime};

use super::available_memory::available_memory;
use super::deadline::wall_clock;
use super::procfs::number_field;

/// The resources that this process uses, and their limits. A figure that cannot be read is `None`.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ProcessFigures {
    /// The time of its start, by the present wall clock, exact to 10 ms.
    pub started: Option<SystemTime>,
    /// The time since its start, including time in which the host slept.
    pub uptime: Option<Duration>,
    /// The processor time of all its threads.
    pub processor_time: Duration,
    /// The number of its threads.
    pub threads: Option<u64>,
    /// The number of open descriptors.
    pub descriptors: Option<u64>,
    /// The limit of open descriptors, if there is one.
    pub max_descriptors: Option<u64>,
    /// Its memory in RAM, in bytes.
    pub resident: Option<u64>,
    /// Its address space, in bytes.
    pub virtual_memory: Option<u64>,
    /// The memory that it may have, in bytes: the smallest of the physical memory, the limits of its
    /// control groups, and the limit of its address space.
    pub memory_limit: u64,
    /// The version of this crate.
    pub version: &'static str,
}

impl ProcessFigures {
    /// Reads the figures from some files of `/proc`, which takes about a tenth of a millisecond.
    pub fn read() -> Self {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let bytes = |name| number_field(&status, name).map(|kib| kib * 1024);
        let uptime = uptime(Path::new("/proc"));
        // Computed once: two readings of two clocks always differ a little, and a monitoring system takes
        // any change for a restart.
        static STARTED: OnceLock<Option<SystemTime>> = OnceLock::new();
        let started = *STARTED.get_or_init(|| wall_clock().checked_sub(uptime?));
        Self {
            started,
            uptime,
            processor_time: clock_gettime(ClockId::ProcessCPUTime)
                .try_into()
                .unwrap_or_default(),
            threads: number_field(&status, "Threads"),
            descriptors: fs::read_dir("/proc/self/fd")
                .ok()
                // Without the directory itself, which is open meanwhile.
                .map(|entries| (entries.count() as u64).saturating_sub(1)),
            max_descriptors: getrlimit(Resource::Nofile).current,
            resident: bytes("VmRSS"),
            virtual_memory: bytes("VmSize"),
            memory_limit: available_memory(),
            version: env!("CARGO_PKG_VERSION"),
        }
    }
}

/// The time since the start of this process.
fn uptime(proc: &Path) -> Option<Duration> {
    let stat = fs::read_to_string(proc.join("self/stat")).ok()?;
    // The name of the program is in parentheses, and may hold any characters.
    let fields = stat.rsplit_once(')')?.1;
    let ticks: u64 = fields.split_whitespace().nth(19)?.parse().ok()?;
    // The kernel reports ticks of 10 ms on every architecture.
    let began = Duration::from_millis(ticks.checked_mul(10)?);
    // Both count from the boot, including time in which the host slept.
    Duration::try_from(clock_gettime(ClockId::Boottime))
        .ok()?
        .checked_sub(began)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_figures_of_this_process_are_read() {
        let figures = ProcessFigures::read();
        let began = figures.started.unwrap();
        assert!(began < wall_clock() && figures.uptime.unwrap() < Duration::from_secs(86_400));
        assert!(figures.threads.unwrap() >= 1 && figures.descriptors.unwrap() >= 3);
        assert!(figures.resident.unwrap() <= figures.virtual_memory.unwrap());
        assert!(figures.memory_limit > 0 && figures.processor_time > Duration::ZERO);
    }

    #[test]
    fn a_name_with_spaces_and_parentheses_does_not_move_the_fields() {
        let proc = tempfile::tempdir().unwrap();
        fs::create_dir(proc.path().join("self")).unwrap();
        let fields = (4..=21).map(|n| n.to_string()).collect::<Vec<_>>().join(" ");
        let stat = |ticks: u64| format!("12 (a ) b (c) S {fields} {ticks} 23 24\n");
        fs::write(proc.path().join("self/stat"), stat(100)).unwrap();
        let long = uptime(proc.path()).unwrap();
        fs::write(proc.path().join("self/stat"), stat(50)).unwrap();
        assert!(uptime(proc.path()).unwrap() >= long + Duration::from_millis(500));
        fs::write(proc.path().join("self/stat"), "12 (a) S 1").unwrap();
        assert_eq!(uptime(proc.path()), None);
    }
}
