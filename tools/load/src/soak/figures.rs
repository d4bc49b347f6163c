//! Memory, descriptors, threads and files, read from `/proc` and from the disk.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::Path;

use crate::soak::cluster::Cluster;

/// The maximum memory that a process may have gained at the end: tables and
/// histories that are bounded are fuller than after the warm-up, and an
/// allocator keeps the memory of the worst moment.
const MORE_KIB: u64 = 4 << 10;
/// The further growth of memory that is allowed, in percent.
const MORE_PERCENT: u64 = 50;
/// The maximum number of descriptors that a process may have gained: a connection may be under way.
const MORE_DESCRIPTORS: u64 = 4;
/// The maximum number of threads that a process may have gained: those of a handshake and of a connection.
const MORE_THREADS: u64 = 3;

#[derive(Debug)]
pub(crate) struct Figures {
    processes: BTreeMap<String, Process>,
    /// The entries in the state directories of the agents.
    files: usize,
    /// The instances that the controller knows.
    instances: usize,
    /// Processes of instances, supervisors included.
    workloads: usize,
}

#[derive(Debug)]
pub(crate) struct Process {
    /// Memory that the process does not share.
    pub(crate) kib: u64,
    descriptors: u64,
    threads: u64,
}

impl Figures {
    pub(crate) fn of(cluster: &Cluster) -> Self {
        let pids = cluster.pids();
        Self {
            processes: pids
                .filter_map(|(name, pid)| Some((name, Process::read(pid)?)))
                .collect(),
            files: cluster.states().map(|state| files(&state)).sum(),
            instances: cluster.controller.look(|view| view.instances().count()),
            workloads: cluster.workloads().len(),
        }
    }

    /// The difference between the figures afterwards and before.
    pub(crate) fn compare(&self, after: &Self) -> Vec<String> {
        let mut faults = Vec::new();
        let mut check = |what: &str, before: u64, after: u64, more: u64| {
            if after > before + more {
                faults.push(format!(
                    "{what}: {before} before, {after} after, {more} more would do"
                ));
            }
        };
        for (name, before) in &self.processes {
            let Some(after) = after.processes.get(name) else {
                check(&format!("{name} is not there; processes"), 0, 1, 0);
                continue;
            };
            let more = MORE_KIB + before.kib * MORE_PERCENT / 100;
            check(&format!("KiB of {name}"), before.kib, after.kib, more);
            let (before_descriptors, more) = (before.descriptors, MORE_DESCRIPTORS);
            check(
                &format!("descriptors of {name}"),
                before_descriptors,
                after.descriptors,
                more,
            );
            check(
                &format!("threads of {name}"),
                before.threads,
                after.threads,
                MORE_THREADS,
            );
        }
        check("files of agents", self.files as u64, after.files as u64, 0);
        check("instances", self.instances as u64, after.instances as u64, 0);
        check(
            "processes of instances",
            self.workloads as u64,
            after.workloads as u64,
            0,
        );
        faults
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "instances {}, their processes {}, files {}",
            self.instances, self.workloads, self.files
        )?;
        for (name, process) in &self.processes {
            let Process {
                kib,
                descriptors,
                threads,
            } = process;
            write!(f, "  {name} {kib} KiB {descriptors} fds {threads} thr")?;
        }
        Ok(())
    }
}

impl Process {
    /// `None` if the process has just ended.
    pub(crate) fn read(pid: u32) -> Option<Self> {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let number = |key: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(key))?;
            line.split_whitespace().next()?.parse().ok()
        };
        Some(Self {
            kib: number("RssAnon:")?,
            descriptors: fs::read_dir(format!("/proc/{pid}/fd")).ok()?.count() as u64,
            threads: number("Threads:")?,
        })
    }
}

/// The number of files and directories below a directory. Files that disappear meanwhile are not counted.
fn files(directory: &Path) -> usize {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries
        .map(|entry| {
            let is_dir = entry.file_type().is_ok_and(|kind| kind.is_dir());
            1 + if is_dir { files(&entry.path()) } else { 0 }
        })
        .sum()
}
