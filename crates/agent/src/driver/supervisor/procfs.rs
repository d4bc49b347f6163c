//! The processes of the system, from `/proc`.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io;
use std::path::Path;

use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal};

/// The fields of `/proc/PID/stat` that are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stat {
    pub(super) pid: i32,
    /// The parent process.
    pub(super) parent: i32,
    /// The process group.
    pub(super) group: i32,
    pub(super) session: i32,
    /// True if the process has ended and its parent has not waited for it yet. A process whose
    /// first thread has ended has the same state (`Z`), but runs in further threads.
    pub(super) ended: bool,
    /// CPU time of the process and of the children that it has waited for, in ticks.
    pub(super) cpu_ticks: u64,
    /// The time at which the process started, in ticks since boot.
    pub(super) start_time: u64,
    /// Resident memory, in pages.
    pub(super) resident_pages: u64,
}

/// The process of this number, if there is one.
pub(super) fn stat(pid: i32) -> io::Result<Stat> {
    let line = fs::read(format!("/proc/{pid}/stat"))?;
    parse(&String::from_utf8_lossy(&line)).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// True if the process with this number and start time has ended. A later process with the same
/// number has another start time. If the system does not answer, for example because no descriptor
/// is left, the process counts as running.
pub(super) fn has_ended(pid: i32, start_time: u64) -> bool {
    match stat(pid) {
        Ok(stat) => stat.start_time != start_time || stat.ended,
        // Reading the file of a process that has ended since the file was opened gives ESRCH.
        Err(e) => {
            e.kind() == io::ErrorKind::NotFound
                || e.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error())
        }
    }
}

/// All processes. A process that ends during the call may be missing.
pub(super) fn all() -> Vec<Stat> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter_map(|pid| stat(pid).ok()).collect()
}

/// All descendants of a process that adopts orphans. A process that is forked or ends during the
/// call may be missing, so a caller that kills the descendants calls this again.
///
/// The kernel lists the children of each thread, so the time depends only on the number of
/// descendants. Without these lists all processes of the system are read.
pub(super) fn descendants(of: i32) -> Vec<Stat> {
    if lists_children() {
        descendants_by(of, children)
    } else {
        descendants_in(of, &by_parent())
    }
}

/// True if the kernel lists the children of a thread (CONFIG_PROC_CHILDREN).
pub(super) fn lists_children() -> bool {
    Path::new("/proc/thread-self/children").exists()
}

/// All processes, by the number of their parent.
pub(super) fn by_parent() -> HashMap<i32, Vec<Stat>> {
    let mut by_parent: HashMap<_, Vec<_>> = HashMap::new();
    for stat in all() {
        by_parent.entry(stat.parent).or_default().push(stat);
    }
    by_parent
}

/// The descendants of a process among these processes.
pub(super) fn descendants_in(of: i32, by_parent: &HashMap<i32, Vec<Stat>>) -> Vec<Stat> {
    descendants_by(of, |parent| by_parent.get(&parent).cloned().unwrap_or_default())
}

fn descendants_by(of: i32, children: impl Fn(i32) -> Vec<Stat>) -> Vec<Stat> {
    let (mut found, mut known, mut next) = (Vec::new(), HashSet::from([of]), vec![of]);
    while let Some(parent) = next.pop() {
        for child in children(parent) {
            // The kernel may use a number again during the call, which could make a circle.
            if known.insert(child.pid) {
                found.push(child);
                next.push(child.pid);
            }
        }
    }
    found
}

fn children(of: i32) -> Vec<Stat> {
    let threads = fs::read_dir(format!("/proc/{of}/task"))
        .into_iter()
        .flatten()
        .flatten();
    let lists = threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    lists
        .flat_map(|list| {
            list.split_ascii_whitespace()
                .flat_map(str::parse)
                .collect::<Vec<_>>()
        })
        .filter_map(|child| stat(child).ok())
        .collect()
}

/// The real and the effective UID of a process.
pub(super) fn uids(pid: i32) -> Option<[u32; 2]> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    let mut uids = line.split_ascii_whitespace().flat_map(str::parse);
    Some([uids.next()?, uids.next()?])
}

/// Sends a signal to this process, and to no later process with the same number.
pub(super) fn signal(stat: &Stat, signal: Signal) {
    let Some(pid) = Pid::from_raw(stat.pid) else {
        return;
    };
    // The process may end at any moment, so its start time is checked after the descriptor is open:
    // from then on the descriptor refers to this process. Without a free descriptor the number is
    // used, with the small risk that it belongs to a new process.
    match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(process) => {
            if !has_ended(stat.pid, stat.start_time) {
                let _ = pidfd_send_signal(process, signal);
            }
        }
        Err(rustix::io::Errno::SRCH) => {}
        Err(_) => {
            let _ = kill_process(pid, signal);
        }
    }
}

/// The kernel's id of this boot; empty if the kernel gives none.
pub(crate) fn boot_id() -> String {
    let id = fs::read_to_string("/proc/sys/kernel/random/boot_id");
    id.map(|id| id.trim().to_owned()).unwrap_or_default()
}

fn parse(line: &str) -> Option<Stat> {
    // The second field is the program's name, which may contain any character.
    let (pid, rest) = line.split_once(" (")?;
    // From the right, because the name may contain `) `.
    let (_, rest) = rest.rsplit_once(") ")?;
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    let id = |index: usize| fields.get(index)?.parse::<i32>().ok();
    let number = |index: usize| fields.get(index)?.parse::<u64>().ok();
    // Times of children are signed in the kernel's interface.
    let time = |index: usize| fields.get(index)?.parse::<i64>().ok()?.try_into().ok();
    Some(Stat {
        pid: pid.parse().ok()?,
        parent: id(1)?,
        group: id(2)?,
        session: id(3)?,
        ended: matches!(*fields.first()?, "Z" | "X") && number(17)? <= 1,
        cpu_ticks: number(11)? + number(12)? + time(13).unwrap_or(0) + time(14).unwrap_or(0),
        start_time: number(19)?,
        resident_pages: time(21).unwrap_or(0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stat_line_is_read_with_any_program_name() {
        let line = "42 (a) b ( 1 2) S 1 40 39 0 -1 4194560 1 2 3 4 10 20 300 4000 20 0 1 0 98765 1000 77 18446744073709551615\n";
        let expected = Stat {
            pid: 42,
            parent: 1,
            group: 40,
            session: 39,
            ended: false,
            cpu_ticks: 4330,
            start_time: 98765,
            resident_pages: 77,
        };
        assert_eq!(parse(line), Some(expected));
        // Only the first thread has ended, and then all threads.
        for (threads, ended) in [("2", false), ("1", true)] {
            let line = line
                .replace(") S ", ") Z ")
                .replace(" 20 0 1 0 98765", &format!(" 20 0 {threads} 0 98765"));
            assert_eq!(parse(&line), Some(Stat { ended, ..expected }));
        }
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
    fn this_process_is_found() {
        let pid = i32::try_from(std::process::id()).unwrap();
        let own = stat(pid).unwrap();
        assert!(own.start_time > 0 && own.resident_pages > 0, "{own:?}");
        let all = all();
        assert!(all.iter().any(|s| s.pid == pid && s.start_time == own.start_time));
        for found in [descendants(own.parent), descendants_in(own.parent, &by_parent())] {
            assert!(found.iter().any(|stat| stat.pid == pid));
        }
        let euid = rustix::process::geteuid().as_raw();
        assert_eq!(uids(pid).map(|[_, effective]| effective), Some(euid));
        assert!(!has_ended(pid, own.start_time));
        assert!(has_ended(pid, own.start_time + 1));
        assert!(has_ended(-1, 0));
    }
}
