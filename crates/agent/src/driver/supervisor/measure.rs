//! The memory, disk and CPU time that instances use.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use log::warn;

use super::super::{Measurable, RunId, Usage};
use super::cgroup::LimitFiles;
use super::procfs::{self, Stat};
use super::{MB, ProcessDriver, is_alive, is_of, is_step};
use crate::tree;
use ssntp_transport::{locked, now};

/// The maximum number of files in use by an instance that are counted, at some two microseconds each. An
/// instance with more counts as too large, so that it cannot hide files behind others.
const MAX_USED: usize = 1_000_000;

/// The maximum number of runs whose processes are found by their parents, if the kernel lists the children of
/// threads. That takes some calls of the system for each thread of a run. For more runs, reading each process
/// of the system once is faster.
const FEW: usize = 64;

/// The CPU time of a run at one moment.
#[derive(Clone, Debug)]
pub(super) struct Sample {
    handle: RunId,
    at: Instant,
    cpu: Duration,
    /// The limits with which the run was launched; if an earlier agent has launched it, those of the first measurement.
    limits: LimitFiles,
}

impl Sample {
    /// The sample of a run that has just been launched.
    pub(super) fn first(handle: &RunId, limits: LimitFiles) -> Self {
        Self {
            handle: handle.clone(),
            at: now(),
            cpu: Duration::ZERO,
            limits,
        }
    }
}

impl ProcessDriver {
    /// Measures the resources that each instance uses.
    pub(super) fn usages(&self, subjects: &[Measurable]) -> Vec<Usage> {
        let supervisor = |subject: &Measurable| {
            let handle = subject.handle.as_ref()?;
            procfs::stat(handle.pid).ok().filter(|stat| is_of(stat, handle))
        };
        // The supervisors are read first. Otherwise the time of a process that ends in between would
        // count twice: as its own, and as that of its supervisor.
        let supervisors: Vec<_> = subjects.iter().map(supervisor).collect();
        let few = if procfs::lists_children() { FEW } else { 0 };
        let all = (supervisors.iter().flatten().count() > few).then(procfs::by_parent);
        let descendants = |supervisor| match &all {
            Some(all) => procfs::descendants_in(supervisor, all),
            None => procfs::descendants(supervisor),
        };
        let measure = |(subject, supervisor): (&Measurable, Option<Stat>)| {
            let mut usage = Usage::default();
            match &subject.handle {
                Some(handle) => {
                    let processes = supervisor.map(|stat| (stat, descendants(handle.pid)));
                    self.measure_running(subject, handle, processes.as_ref(), &mut usage);
                    if let Some((_, run)) = &processes {
                        usage.removed = removed(run, subject.place.dir());
                    }
                }
                None => (usage.memory_mb, usage.cpu_percent) = (0, 0),
            }
            usage.disk_mb = disk_mb(subject, usage.removed);
            usage
        };
        subjects.iter().zip(supervisors).map(measure).collect()
    }

    /// Measures memory and CPU time, and restores limits and groups that the instance has changed or left. `processes`
    /// has the supervisor and all of its descendants, which are the run; it is `None` if the supervisor has ended.
    fn measure_running(
        &self,
        subject: &Measurable,
        handle: &RunId,
        processes: Option<&(Stat, Vec<Stat>)>,
        usage: &mut Usage,
    ) {
        let at = now();
        let (cgroups, instance) = (&self.inner.cgroups, subject.place.instance());
        let page = rustix::param::page_size() as u64;
        let of_run = processes.map(|(_, run)| run.iter().map(|stat| stat.resident_pages * page).sum());
        if let Some(bytes) = cgroups.memory(instance).or(of_run) {
            usage.memory_mb = i64::try_from(bytes.div_ceil(MB)).unwrap_or(-1);
        }
        let second = rustix::param::clock_ticks_per_second().max(1);
        let of_ticks = |ticks: u64| Duration::from_millis(ticks.saturating_mul(1000) / second);
        // The CPU time of a process that has ended is added to that of its parent. The supervisor is
        // the parent of orphans, so no time is lost.
        let ticks = |(supervisor, run): &(Stat, Vec<Stat>)| {
            supervisor.cpu_ticks + run.iter().map(|stat| stat.cpu_ticks).sum::<u64>()
        };
        let cpu = cgroups.cpu_usec(instance).map(Duration::from_micros);
        let Some(cpu) = cpu.or(processes.map(ticks).map(of_ticks)) else {
            return;
        };
        // A sample of another run is not comparable, so the IDs of the runs are compared.
        let is_its = |sample: &Sample| sample.handle == *handle;
        let before = locked(&self.inner.samples).get(&instance).cloned();
        let before = before.filter(is_its);
        let sample = Sample {
            handle: handle.clone(),
            at,
            cpu,
            limits: before
                .as_ref()
                .map_or_else(|| cgroups.limits(instance), |before| before.limits.clone()),
        };
        // The groups of a run are removed once its supervisor has ended. A run without groups has no limits here.
        let is_limited = !sample.limits.is_empty() && is_alive(handle);
        if let Some((supervisor, run)) = processes.filter(|_| is_limited) {
            for changed in sample.limits.mend() {
                warn!("instance {instance}: a limit was changed: {changed}");
            }
            let belongs = |stat: &Stat| {
                let is_step = stat.parent == supervisor.pid && is_step(stat.pid);
                !is_step && !procfs::has_ended(stat.pid, stat.start_time)
            };
            for moved in cgroups.gather(instance, run, belongs) {
                warn!("instance {instance}: {moved}");
            }
        }
        let mut samples = locked(&self.inner.samples);
        // The instance may have been launched again meanwhile. Its first sample has the limits that it must not change.
        if samples.get(&instance).is_none_or(is_its) {
            samples.insert(instance, sample);
        }
        if let Some(before) = before.filter(|before| before.at < at) {
            usage.cpu_percent = percent(cpu.saturating_sub(before.cpu), at - before.at, subject.vcpus);
        }
    }
}

fn disk_mb(subject: &Measurable, removed: Option<u64>) -> i64 {
    let named = tree::disk_usage(subject.place.dir()).ok().flatten();
    named
        .zip(removed)
        .and_then(|(named, removed)| i64::try_from((named + removed).div_ceil(MB)).ok())
        .unwrap_or(-1)
}

/// The bytes of files without a name that these processes use, on the disk of this directory; `None` if
/// they use more than [`MAX_USED`] files. Files on other file systems do not count; those in memory
/// are charged as memory. If the directory cannot be read, no file counts.
fn removed(run: &[Stat], directory: &Path) -> Option<u64> {
    let Ok(disk) = fs::metadata(directory).map(|directory| directory.dev()) else {
        return Some(0);
    };
    let (mut looked_at, mut counted, mut blocks) = (0, HashSet::new(), 0);
    for (stat, kind) in run.iter().flat_map(|stat| [(stat, "fd"), (stat, "map_files")]) {
        let used = fs::read_dir(format!("/proc/{}/{kind}", stat.pid));
        for used in used.into_iter().flatten().flatten() {
            looked_at += 1;
            if looked_at > MAX_USED {
                return None;
            }
            // The file may be closed by now, or the agent may have no right to read its metadata.
            let Ok(file) = fs::metadata(used.path()) else {
                continue;
            };
            if file.nlink() == 0 && file.is_file() && file.dev() == disk && counted.insert(file.ino()) {
                blocks += file.blocks();
            }
        }
    }
    Some(blocks * 512)
}

fn percent(cpu: Duration, over: Duration, vcpus: i64) -> i64 {
    let cpus = match u64::try_from(vcpus) {
        Ok(vcpus) if vcpus > 0 => vcpus,
        _ => std::thread::available_parallelism().map_or(1, |n| n.get() as u64),
    };
    let available = over.as_micros().saturating_mul(u128::from(cpus)).max(1);
    let percent = cpu.as_micros().saturating_mul(100) / available;
    i64::try_from(percent.min(100)).unwrap_or(100)
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::driver::supervisor::Confinement;
    use crate::place::InstanceDir;

    /// The files of such an instance are not too many, so it is not killed for them.
    #[test]
    fn no_removed_files_count_if_the_directory_cannot_be_read() {
        assert_eq!(removed(&[], Path::new("/no/such/place")), Some(0));
    }

    #[test]
    fn a_late_measurement_of_an_earlier_run_keeps_the_sample_of_the_present_one() {
        let driver = ProcessDriver::new(Confinement::ResourceLimits).unwrap();
        let pid = i32::try_from(std::process::id()).unwrap();
        let earlier = driver.handle(&procfs::stat(pid).unwrap());
        let present = RunId {
            start_time: earlier.start_time + 1,
            ..earlier.clone()
        };
        let instance = Uuid::from_u128(1);
        let first = Sample::first(&present, driver.inner.cgroups.limits(instance));
        locked(&driver.inner.samples).insert(instance, first);
        let subject = Measurable {
            place: InstanceDir::new(instance, "/no/such/place"),
            handle: Some(earlier),
            vcpus: 1,
            mem_mb: 0,
        };
        assert!(driver.usages(&[subject])[0].memory_mb >= 0, "it runs");
        assert_eq!(locked(&driver.inner.samples)[&instance].handle, present);
    }

    #[test]
    fn cpu_percent_counts_all_cpus_of_the_instance() {
        let second = Duration::from_secs(1);
        assert_eq!(percent(second, second, 1), 100);
        assert_eq!(percent(second, second, 4), 25);
        assert_eq!(percent(second * 3, second, 2), 100);
        assert_eq!(percent(Duration::ZERO, Duration::ZERO, 2), 0);
    }
}
