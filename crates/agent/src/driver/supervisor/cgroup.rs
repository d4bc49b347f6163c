//! Limits and figures of an instance by control group, if the agent may make groups.
//!
//! Each instance has a group `ssntp/UUID` of its own, in the first of these places that works: below
//! the root of the unified hierarchy (version 2), beside the agent's own group in it (systemd gives
//! a user a part of the hierarchy), or in the hierarchies of the memory and CPU controllers
//! (version 1).

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use uuid::Uuid;

use super::procfs::Stat;

/// The name of the agent's folder in each hierarchy.
const FOLDER: &str = "ssntp";
/// The period to which a limit of CPU time applies, in microseconds.
const PERIOD_USEC: u64 = 100_000;

/// The files of limits, of both versions.
const LIMITS: [&str; 9] = [
    "memory.max",
    "memory.swap.max",
    "cpu.max",
    "pids.max",
    "memory.limit_in_bytes",
    "memory.memsw.limit_in_bytes",
    "memory.swappiness",
    "cpu.cfs_period_us",
    "cpu.cfs_quota_us",
];

/// The limits of an instance, by file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LimitFiles(Vec<(PathBuf, String)>);

impl LimitFiles {
    /// True if the instance has no groups.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Sets the limits again that somebody has changed, and makes a group again that somebody has removed.
    /// Returns a text about each limit.
    pub(super) fn mend(&self) -> Vec<String> {
        let groups = self.0.iter().filter_map(|(file, _)| file.parent());
        let removed: HashSet<_> = groups.filter(|group| !group.exists()).collect();
        for group in &removed {
            let _ = fs::create_dir_all(group);
        }
        let mend = |(file, limit): &(PathBuf, String)| {
            let there = match file.parent() {
                Some(group) if removed.contains(group) => "its group was removed".to_owned(),
                _ => fs::read_to_string(file).ok().filter(|there| there != limit)?,
            };
            let set = fs::write(file, limit);
            let set = set.map_or_else(|e| e.to_string(), |()| "set again".to_owned());
            Some(format!("{}: {}: {set}", file.display(), there.trim()))
        };
        self.0.iter().filter_map(mend).collect()
    }
}

/// The hierarchies in which groups can be made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Cgroups {
    /// True for version 2.
    is_unified: bool,
    /// By controller, the folder of the groups, which version 2 has in common. Empty if no groups can be made.
    folders: BTreeMap<&'static str, PathBuf>,
}

impl Cgroups {
    /// Those of version 2, with this folder.
    fn unified(folder: PathBuf) -> Self {
        let folders = ["cpu", "memory", "pids"].map(|controller| (controller, folder.clone()));
        Self {
            is_unified: true,
            folders: folders.into(),
        }
    }

    /// True if no groups can be made.
    pub(super) fn is_empty(&self) -> bool {
        self.folders.is_empty()
    }

    /// Finds the hierarchies in which groups can be made, by making one.
    pub(super) fn detect() -> Self {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        candidates(&mounts, &own)
            .into_iter()
            .find(Self::works)
            .unwrap_or_default()
    }

    fn works(&self) -> bool {
        // Only a trial shows that limits can be set: in containers the hierarchy is often read-only
        // or has no controllers.
        let probe = Uuid::new_v4();
        let works = self.create(probe, 64, 1, 64).is_ok();
        self.remove(probe);
        if !works {
            // No empty folder stays in a hierarchy that is not used.
            let folders = self
                .groups(probe)
                .filter_map(|group| Some(group.parent()?.to_owned()));
            folders.for_each(|folder| drop(fs::remove_dir(folder)));
        }
        works
    }

    /// Makes the group of an instance; 0 stands for no limit. The process of the program joins each
    /// of [`groups`](Self::groups) itself. Swapping is turned off, because the instance could exceed
    /// its memory limit on a disk that all instances share.
    pub(super) fn create(&self, instance: Uuid, mem_mb: i64, vcpus: i64, pids: u32) -> io::Result<()> {
        let bytes = u64::try_from(mem_mb).unwrap_or(0).saturating_mul(1024 * 1024);
        let quota = u64::try_from(vcpus).unwrap_or(0).saturating_mul(PERIOD_USEC);
        if self.is_empty() {
            return Err(io::ErrorKind::Unsupported.into());
        }
        for group in self.groups(instance) {
            if let Some(folder) = group.parent() {
                fs::create_dir_all(folder)?;
                // The group is made after the controllers were turned on, so that it has their files.
                if self.is_unified {
                    folder.parent().into_iter().for_each(share);
                    share(folder);
                }
            }
            fs::create_dir_all(&group)?;
        }
        let set = |controller: &str, file: &str, value: String| match self.group(controller, instance) {
            Some(group) => fs::write(group.join(file), value),
            None => Ok(()),
        };
        let limit = |value: u64| match value {
            0 => "max".to_owned(),
            value => value.to_string(),
        };
        if self.is_unified {
            set("memory", "memory.max", limit(bytes))?;
            set("cpu", "cpu.max", format!("{} {PERIOD_USEC}", limit(quota)))?;
            // A kernel without swap has no such file.
            let _ = set("memory", "memory.swap.max", "0".into());
        } else {
            let _ = set("memory", "memory.swappiness", "0".into());
            if bytes > 0 {
                set("memory", "memory.limit_in_bytes", bytes.to_string())?;
                // Memory and swap together; the file is missing if the kernel does not count swap.
                let _ = set("memory", "memory.memsw.limit_in_bytes", bytes.to_string());
            }
            if quota > 0 {
                set("cpu", "cpu.cfs_period_us", PERIOD_USEC.to_string())?;
                set("cpu", "cpu.cfs_quota_us", quota.to_string())?;
            }
        }
        // The part of the hierarchy that the agent may change can lack this controller.
        match self.group("pids", instance).map(|group| group.join("pids.max")) {
            Some(file) if !self.is_unified || file.exists() => fs::write(file, pids.to_string()),
            _ => Ok(()),
        }
    }

    /// The limits of an instance's groups, as the kernel has them now.
    pub(super) fn limits(&self, instance: Uuid) -> LimitFiles {
        let files = self
            .groups(instance)
            .flat_map(|group| LIMITS.map(|name| group.join(name)));
        let limits = files.filter_map(|file| Some((file.clone(), fs::read_to_string(file).ok()?)));
        LimitFiles(limits.collect())
    }

    /// Moves processes of an instance back that somebody has moved out of its groups. `run` has all processes
    /// below its supervisor. `belongs` is asked about those that are outside. Returns a text about each.
    pub(super) fn gather(
        &self,
        instance: Uuid,
        run: &[Stat],
        belongs: impl Fn(&Stat) -> bool,
    ) -> Vec<String> {
        let mut told = Vec::new();
        for group in self.groups(instance) {
            // A program with the right to do so may have made groups below its own, where its limits apply.
            let inside = members(&group);
            let outside = run.iter().filter(|stat| !inside.contains(&stat.pid));
            for stat in outside.filter(|stat| belongs(stat)) {
                let moved = fs::write(group.join("cgroup.procs"), stat.pid.to_string());
                let moved = moved.map_or_else(|e| e.to_string(), |()| "moved back".to_owned());
                told.push(format!(
                    "process {} was outside of {}: {moved}",
                    stat.pid,
                    group.display()
                ));
            }
        }
        told
    }

    /// The processes of a group.
    pub(super) fn pids(&self, instance: Uuid) -> Vec<i32> {
        // In version 1 all groups of the instance contain the same processes.
        let text = self
            .groups(instance)
            .next()
            .and_then(|group| fs::read_to_string(group.join("cgroup.procs")).ok())
            .unwrap_or_default();
        text.lines().filter_map(|line| line.trim().parse().ok()).collect()
    }

    /// Removes the groups of an instance if they have no processes. The folder stays also without
    /// groups: another worker may be about to make a group in it, and a folder that is made anew has
    /// no controllers.
    pub(super) fn remove(&self, instance: Uuid) {
        self.groups(instance)
            .for_each(|group| drop(fs::remove_dir(group)));
    }

    /// The file that contains the number of processes that were killed for memory: see [`kills`].
    pub(super) fn oom(&self, instance: Uuid) -> Option<PathBuf> {
        let file = if self.is_unified {
            "memory.events"
        } else {
            "memory.oom_control"
        };
        Some(self.group("memory", instance)?.join(file))
    }

    /// Memory in use, in bytes, without inactive pages of files.
    pub(super) fn memory(&self, instance: Uuid) -> Option<u64> {
        let (usage, inactive) = if self.is_unified {
            ("memory.current", "inactive_file")
        } else {
            ("memory.usage_in_bytes", "total_inactive_file")
        };
        let group = self.group("memory", instance)?;
        let usage = number(&group.join(usage))?;
        // The kernel drops inactive pages of files when memory is short, so they do not count.
        let inactive = keyed(&group.join("memory.stat"), inactive).unwrap_or(0);
        Some(usage.saturating_sub(inactive))
    }

    /// CPU time used so far, in microseconds.
    pub(super) fn cpu_usec(&self, instance: Uuid) -> Option<u64> {
        if self.is_unified {
            return keyed(&self.group("cpu", instance)?.join("cpu.stat"), "usage_usec");
        }
        let nanoseconds = number(&self.group("cpuacct", instance)?.join("cpuacct.usage"))?;
        Some(nanoseconds / 1000)
    }

    fn group(&self, controller: &str, instance: Uuid) -> Option<PathBuf> {
        Some(self.folders.get(controller)?.join(instance.to_string()))
    }

    /// The groups of an instance. Several controllers often have the same one.
    pub(super) fn groups(&self, instance: Uuid) -> impl Iterator<Item = PathBuf> {
        let folders: BTreeSet<_> = self.folders.values().collect();
        let name = instance.to_string();
        folders.into_iter().map(move |folder| folder.join(&name))
    }
}

/// The processes of a group, and of all groups below it.
fn members(group: &Path) -> HashSet<i32> {
    let listed = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
    let own = listed.lines().filter_map(|line| line.trim().parse().ok());
    let entries = fs::read_dir(group).into_iter().flatten().flatten();
    let groups = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    own.chain(groups.flat_map(|below| members(&below.path())))
        .collect()
}

/// Turns the controllers on below a group. Usually they are on already, and the system may refuse
/// this, so errors are ignored. There are two writes, because each succeeds as a whole or fails.
fn share(group: &Path) {
    for controllers in ["+memory +cpu", "+pids"] {
        let _ = fs::write(group.join("cgroup.subtree_control"), controllers);
    }
}

/// The hierarchies in which the agent may be allowed to make groups, the best first.
fn candidates(mountinfo: &str, own_cgroup: &str) -> Vec<Cgroups> {
    let mut found = Vec::new();
    let mounts: Vec<Mount<'_>> = mountinfo.lines().filter_map(Mount::parse).collect();
    for mount in mounts.iter().filter(|mount| mount.kind == "cgroup2") {
        let root = Path::new(mount.at);
        found.push(Cgroups::unified(root.join(FOLDER)));
        let own = own_cgroup.lines().find_map(|line| line.strip_prefix("0::/"));
        if let Some(beside) = own.and_then(|own| Path::new(own).parent()) {
            found.push(Cgroups::unified(root.join(beside).join(FOLDER)));
        }
    }
    let controller = |name: &'static str| {
        let mount = mounts
            .iter()
            .find(|mount| mount.kind == "cgroup" && mount.options.split(',').any(|option| option == name));
        mount.map(|mount| (name, Path::new(mount.at).join(FOLDER)))
    };
    let separate = ["memory", "cpu", "cpuacct", "pids"]
        .into_iter()
        .filter_map(controller);
    let folders: BTreeMap<_, _> = separate.collect();
    if folders.contains_key("memory") && folders.contains_key("cpu") {
        let is_unified = false;
        found.push(Cgroups { is_unified, folders });
    }
    found.dedup();
    found
}

struct Mount<'a> {
    at: &'a str,
    kind: &'a str,
    options: &'a str,
}

impl<'a> Mount<'a> {
    /// Reads a line of mountinfo. Optional fields stand between the mount point and a single dash.
    fn parse(line: &'a str) -> Option<Self> {
        let (left, right) = line.split_once(" - ")?;
        let mut right = right.split_ascii_whitespace();
        Some(Self {
            at: left.split_ascii_whitespace().nth(4)?,
            kind: right.next()?,
            options: right.nth(1)?,
        })
    }
}

/// The number of processes that were killed for memory, from the file [`Cgroups::oom`].
pub(super) fn kills(file: &Path) -> Option<u64> {
    keyed(file, "oom_kill ")
}

fn number(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

fn keyed(path: &Path, key: &str) -> Option<u64> {
    let text = fs::read_to_string(path).ok()?;
    let value = |line: &str| line.strip_prefix(key)?.trim().parse().ok();
    text.lines().find_map(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn separate(folders: &[(&'static str, PathBuf)]) -> Cgroups {
        Cgroups {
            is_unified: false,
            folders: folders.iter().cloned().collect(),
        }
    }

    #[test]
    fn the_folder_of_the_groups_outlives_the_last_group() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join(FOLDER);
        let group = folder.join(Uuid::nil().to_string());
        fs::create_dir_all(&group).unwrap();
        Cgroups::unified(folder.clone()).remove(Uuid::nil());
        assert_eq!((group.exists(), folder.exists()), (false, true));
    }

    #[test]
    fn limits_that_somebody_has_changed_are_set_again() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join(FOLDER);
        let group = folder.join(Uuid::nil().to_string());
        for is_separate in [false, true] {
            let at = |name: &str| dir.path().join(name);
            let cgroups = if is_separate {
                separate(&["memory", "cpu", "pids"].map(|name| (name, at(name))))
            } else {
                Cgroups::unified(folder.clone())
            };
            fs::create_dir_all(&group).unwrap();
            fs::write(group.join("pids.max"), "").unwrap();
            cgroups.create(Uuid::nil(), 64, 2, 100).unwrap();
            let limits = cgroups.limits(Uuid::nil());
            assert_eq!(limits.0.len(), if is_separate { 6 } else { 4 }, "{limits:?}");
            assert!(limits.mend().is_empty());
            for (file, _) in &limits.0 {
                fs::write(file, "7").unwrap();
            }
            assert_eq!(limits.mend().len(), limits.0.len());
            assert_eq!(cgroups.limits(Uuid::nil()), limits);
            cgroups
                .groups(Uuid::nil())
                .for_each(|group| fs::remove_dir_all(group).unwrap());
            assert!(limits.mend()[0].contains("its group was removed"));
            assert_eq!(cgroups.limits(Uuid::nil()), limits);
        }
    }

    #[test]
    fn a_process_that_somebody_has_moved_out_of_its_groups_is_moved_back() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let cgroups = separate(&["memory", "cpu"].map(|name| (name, at(name))));
        let listed = |folder: &str, below: &str| at(folder).join(Uuid::nil().to_string()).join(below);
        for (folder, below, text) in [
            ("memory", "", "10\n"),
            ("memory", "own/deeper", "11\n"),
            ("cpu", "", "10\n11\n12\n"),
        ] {
            fs::create_dir_all(listed(folder, below)).unwrap();
            fs::write(listed(folder, below).join("cgroup.procs"), text).unwrap();
        }
        let stat = |pid| Stat {
            pid,
            ..super::super::procfs::stat(1).unwrap()
        };
        // Process 13 is one of the supervisor's, which is never inside.
        let told = cgroups.gather(Uuid::nil(), &[10, 11, 12, 13].map(stat), |stat| stat.pid != 13);
        assert_eq!(told.len(), 1, "{told:?}");
        assert!(told[0].starts_with("process 12 was outside of") && told[0].ends_with("moved back"));
        let moved = fs::read_to_string(listed("memory", "cgroup.procs")).unwrap();
        assert_eq!(moved, "12");
    }

    #[test]
    fn every_layout_of_control_groups_is_found() {
        let unified = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n";
        let sibling = "/sys/fs/cgroup/user.slice/user-1000.slice/user@1000.service/app.slice/ssntp";
        assert_eq!(
            candidates(
                unified,
                "0::/user.slice/user-1000.slice/user@1000.service/app.slice/term.scope\n"
            ),
            [
                Cgroups::unified("/sys/fs/cgroup/ssntp".into()),
                Cgroups::unified(sibling.into())
            ]
        );
        let mounts = "31 23 0:27 / /cg/memory rw shared:9 - cgroup cgroup rw,memory\n\
                        32 23 0:28 / /cg/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n\
                        33 23 0:29 / /cg/pids rw - cgroup cgroup rw,pids\n";
        let cpu = PathBuf::from("/cg/cpu,cpuacct/ssntp");
        let expected = separate(&[
            ("memory", "/cg/memory/ssntp".into()),
            ("cpu", cpu.clone()),
            ("cpuacct", cpu.clone()),
            ("pids", "/cg/pids/ssntp".into()),
        ]);
        assert_eq!(
            candidates(mounts, "4:memory:/x\n"),
            std::slice::from_ref(&expected)
        );
        assert_eq!(expected.groups(Uuid::nil()).count(), 3);
        assert_eq!(candidates("junk\n", ""), []);
        assert!(Cgroups::default().create(Uuid::nil(), 1, 1, 1).is_err());
    }
}
