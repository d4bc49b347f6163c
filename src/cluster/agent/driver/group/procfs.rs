//! Processes as `/proc` tells of them.

use std::fs;
use std::path::Path;

/// What matters of `/proc/PID/stat`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stat {
    pub(super) pid: i32,
    /// Its process group.
    pub(super) group: i32,
    /// It has ended, and nobody has taken notice yet.
    pub(super) zombie: bool,
    /// CPU time of it and of the children it has waited for, in ticks.
    pub(super) cpu_ticks: u64,
    /// When it started, in ticks since boot.
    pub(super) start_time: u64,
    /// Its memory, in pages.
    pub(super) resident_pages: u64,
}

/// The process of that number, if there is one.
pub(super) fn stat(pid: i32) -> Option<Stat> {
    parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// Every process. One that ends meanwhile may be missing.
pub(super) fn all() -> Vec<Stat> {
    pids().filter_map(stat).collect()
}

/// The number of every process.
pub(super) fn pids() -> impl Iterator<Item = i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Its arguments, each of them ended by a zero.
pub(super) fn arguments(pid: i32) -> Option<Vec<u8>> {
    fs::read(format!("/proc/{pid}/cmdline")).ok()
}

/// What tells this boot from others; empty where the kernel doesn't say.
pub(super) fn boot_id() -> String {
    let id = fs::read_to_string(Path::new("/proc/sys/kernel/random/boot_id"));
    id.map(|id| id.trim().to_owned()).unwrap_or_default()
}

fn parse(line: &str) -> Option<Stat> {
    // The second field is the program's name, which may hold anything.
    let (pid, rest) = line.split_once(" (")?;
    let (_, rest) = rest.rsplit_once(") ")?;
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    let number = |index: usize| fields.get(index)?.parse::<u64>().ok();
    // Times of children are signed in the kernel's interface.
    let time = |index: usize| fields.get(index)?.parse::<i64>().ok()?.try_into().ok();
    Some(Stat {
        pid: pid.parse().ok()?,
        group: fields.get(2)?.parse().ok()?,
        zombie: matches!(*fields.first()?, "Z" | "X"),
        cpu_ticks: number(11)? + number(12)? + time(13).unwrap_or(0) + time(14).unwrap_or(0),
        start_time: number(19)?,
        resident_pages: time(21).unwrap_or(0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stat_line_is_read_whatever_the_program_is_called() {
        let line = "42 (a) b ( 1 2) S 1 40 39 0 -1 4194560 1 2 3 4 10 20 300 4000 20 0 1 0 98765 1000 77 18446744073709551615\n";
        let expected = Stat {
            pid: 42,
            group: 40,
            zombie: false,
            cpu_ticks: 4330,
            start_time: 98765,
            resident_pages: 77,
        };
        assert_eq!(parse(line), Some(expected));
        for junk in [
            "",
            "42",
            "42 (a)",
            "42 (a) S 1 2",
            "x (a) S 1 40 39 0 -1 4194560 1 2 3 4 1 2 3 4 20 0 1 0 9 1 7",
        ] {
            assert_eq!(parse(junk), None, "{junk:?}");
        }
    }

    #[test]
    fn this_process_is_there() {
        let pid = i32::try_from(std::process::id()).unwrap();
        let own = stat(pid).unwrap();
        assert!(
            !own.zombie && own.start_time > 0 && own.resident_pages > 0,
            "{own:?}"
        );
        assert!(
            all()
                .iter()
                .any(|s| s.pid == pid && s.start_time == own.start_time)
        );
        assert!(!arguments(pid).unwrap().is_empty());
        assert!(stat(-1).is_none());
    }
}
