//! The machine on which a run takes place, and what other programs took of it meanwhile.

use std::fmt::{self, Display, Formatter};
use std::fs;
use std::time::Duration;

use serde_json::{Value, json};

/// Flags of the processor that decide how fast AES-GCM is.
const FLAGS: [&str; 6] = ["aes", "vaes", "vpclmulqdq", "avx2", "avx512f", "sha_ni"];

/// A run beside other programs that use more than this share of the processors is no measurement.
pub(crate) const MUCH: f64 = 0.1;

/// What does not change during a run.
#[derive(Debug)]
pub(crate) struct Machine {
    processor: String,
    processors: usize,
    flags: Vec<&'static str>,
    kernel: String,
    load: f64,
}

impl Machine {
    /// Reads the facts of this machine. A fact that the system does not tell is left empty.
    pub(crate) fn read() -> Self {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let field = |name: &str| {
            let line = cpuinfo.lines().find(|line| line.starts_with(name));
            line.and_then(|line| line.split_once(':'))
                .map(|(_, value)| value.trim())
        };
        let known: Vec<_> = field("flags").unwrap_or_default().split(' ').collect();
        Self {
            processor: field("model name").unwrap_or("unknown processor").to_owned(),
            processors: std::thread::available_parallelism().map_or(1, usize::from),
            flags: FLAGS.into_iter().filter(|flag| known.contains(flag)).collect(),
            kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
            load: load(),
        }
    }

    pub(crate) fn json(&self) -> Value {
        json!({
            "processor": self.processor,
            "processors": self.processors,
            "flags": self.flags,
            "kernel": self.kernel,
            "load_before": self.load,
        })
    }
}

impl Display for Machine {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} × {} ({}), Linux {}, load before the run {:.2}",
            self.processors,
            self.processor,
            self.flags.join(" "),
            self.kernel,
            self.load
        )
    }
}

/// The mean number of runnable threads in the last minute.
fn load() -> f64 {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let first = text.split(' ').next().unwrap_or_default();
    first.parse().unwrap_or(0.0)
}

/// Processor time at one moment, in ticks of the system.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Used {
    /// Of all programs, with what the hypervisor gave to other machines.
    all: u64,
    /// Of this process and of those that it started and has waited for.
    own: u64,
    at: std::time::Instant,
}

impl Used {
    pub(crate) fn now() -> Self {
        let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
        let line = stat.lines().next().unwrap_or_default();
        // After the word "cpu": user, nice, system, idle, iowait, irq, softirq, steal. Interrupts are
        // left out: nearly all of them are the network of the measurement itself.
        let all = sum(line, [1, 2, 3, 8]);
        let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
        // utime, stime, cutime and cstime.
        let own = sum(stat.rsplit(')').next().unwrap_or_default(), [11, 12, 13, 14]);
        Self {
            all,
            own,
            at: crate::raw::now(),
        }
    }

    /// The share of the processors, from 0 to 1, that other programs have used since `before`. No
    /// measured process may be running at either moment: its time counts once it has been waited for.
    pub(crate) fn by_others_since(&self, before: &Self, machine: &Machine) -> f64 {
        let others =
            (self.all - before.all.min(self.all)).saturating_sub(self.own - before.own.min(self.own));
        let hertz = rustix::param::clock_ticks_per_second().max(1);
        let used = Duration::from_secs_f64(others as f64 / hertz as f64);
        let elapsed =
            self.at.saturating_duration_since(before.at) * machine.processors.try_into().unwrap_or(1);
        if elapsed.is_zero() {
            return 0.0;
        }
        (used.as_secs_f64() / elapsed.as_secs_f64()).min(1.0)
    }
}

/// The sum of the numbers at these positions of a line.
fn sum(line: &str, at: [usize; 4]) -> u64 {
    let words: Vec<_> = line.split_whitespace().collect();
    let number = |at: usize| words.get(at).and_then(|word| word.parse::<u64>().ok());
    at.into_iter().filter_map(number).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn used(all: u64, own: u64, at: std::time::Instant) -> Used {
        Used { all, own, at }
    }

    #[test]
    fn the_time_of_others_is_a_share_of_all_processors() {
        let machine = Machine {
            processors: 2,
            ..Machine::read()
        };
        let began = crate::raw::now();
        let hertz = rustix::param::clock_ticks_per_second();
        let before = used(100, 10, began);
        let after = used(100 + 3 * hertz, 10 + hertz, began + Duration::from_secs(2));
        assert!((after.by_others_since(&before, &machine) - 0.5).abs() < 1e-9);
        assert_eq!(before.by_others_since(&before, &machine), 0.0);
    }

    #[test]
    fn this_machine_is_described_with_its_kernel() {
        let machine = Machine::read();
        assert!(!machine.kernel.is_empty() && machine.processors > 0, "{machine}");
        assert!(Used::now().all > 0);
    }
}
