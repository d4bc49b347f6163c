//! The memory that this process may have, and the part of it for queues.

use std::fs;
use std::path::Path;

use rustix::process::{Resource, getrlimit};

use super::procfs::{directories, number, number_field};

/// A quarter of the memory that this process may have: the default budget of all queues.
/// The rest is for buffers, sockets, the application and other processes on the host.
pub fn memory_for_queues() -> u64 {
    available_memory() / 4
}

/// The memory that this process may have, in bytes.
pub(crate) fn available_memory() -> u64 {
    let address_space = getrlimit(Resource::As).current;
    memory(Path::new("/"), address_space)
}

/// The other three quarters, in KiB, for the memory of sessions beside their queues. The limit of the
/// address space is checked elsewhere, so it does not count here.
pub(crate) fn memory_beside_queues() -> Option<u64> {
    Some(memory(Path::new("/"), None) / 1024 / 4 * 3)
}

/// The smallest of physical memory, the limits of the process's control groups, and its limit of address
/// space. If none is known it is 1 GiB, which a host that runs a server has.
fn memory(root: &Path, address_space: Option<u64>) -> u64 {
    let v1 = ["memory.limit_in_bytes"];
    let files = ["memory.max", "memory.high"].into_iter().chain(v1);
    let groups = directories(root, "memory");
    let limits = files.flat_map(|file| groups.iter().filter_map(move |group| number(&group.join(file))));
    limits
        .chain(physical(root))
        .chain(address_space)
        .min()
        .unwrap_or(1 << 30)
}

fn physical(root: &Path) -> Option<u64> {
    let info = fs::read_to_string(root.join("proc/meminfo")).ok()?;
    number_field(&info, "MemTotal")?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// A root directory with these files in it.
    fn root(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let physical = ("proc/meminfo", "MemTotal:        8388608 kB\nMemFree:  1 kB\n");
        for (path, text) in files.iter().chain([&physical]) {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    fn of(files: &[(&str, &str)]) -> u64 {
        memory(root(files).path(), None) / MIB
    }

    #[test]
    fn physical_memory_and_address_space_bound_it() {
        assert_eq!(of(&[]), 8192);
        assert_eq!(memory(root(&[]).path(), Some(600 * MIB)), 600 * MIB);
        assert_eq!(memory(Path::new("/nowhere"), None), 1 << 30);
    }

    #[test]
    fn the_tightest_limit_of_the_parent_groups_counts() {
        let own = ("proc/self/cgroup", "0::/system.slice/ssntp.service\n");
        let max = "sys/fs/cgroup/system.slice/ssntp.service/memory.max";
        let high = "sys/fs/cgroup/system.slice/memory.high";
        assert_eq!(of(&[own, (max, "max\n")]), 8192);
        assert_eq!(of(&[own, (max, "1073741824\n")]), 1024);
        assert_eq!(of(&[own, (max, "1073741824\n"), (high, "536870912\n")]), 512);
        // A group that this process is not in does not count.
        assert_eq!(of(&[own, ("sys/fs/cgroup/user.slice/memory.max", "1")]), 8192);
    }

    #[test]
    fn a_container_may_see_its_group_at_the_top() {
        let max = ("sys/fs/cgroup/memory.max", "268435456\n");
        for own in ["0::/\n", "0::/docker/4d2\n", "0::/../../elsewhere\n"] {
            assert_eq!(of(&[("proc/self/cgroup", own), max]), 256, "{own}");
        }
    }

    #[test]
    fn version_1_and_both_versions_at_once_are_read() {
        let own = ("proc/self/cgroup", "5:cpu:/\n4:memory,x:/app/one\n0::/app\n");
        let unlimited = (
            "sys/fs/cgroup/memory/memory.limit_in_bytes",
            "9223372036854771712\n",
        );
        assert_eq!(of(&[own, unlimited]), 8192);
        let limited = ("sys/fs/cgroup/memory/app/memory.limit_in_bytes", "104857600\n");
        assert_eq!(of(&[own, unlimited, limited]), 100);
        let hybrid = ("sys/fs/cgroup/unified/app/memory.max", "52428800\n");
        assert_eq!(of(&[own, unlimited, limited, hybrid]), 50);
    }

    #[test]
    fn some_memory_is_available_to_this_process() {
        assert!(memory_for_queues() > 0);
    }
}
