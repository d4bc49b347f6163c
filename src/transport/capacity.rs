//! How many sessions the system allows.
//!
//! A session takes two threads and one descriptor. A thread takes a task id
//! and four memory mappings: its stack, the signal stack, and a guard page
//! before each. Beyond `vm.max_map_count` a new thread does not fail: the
//! process aborts. So the server counts before it starts.

use std::fs;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

const THREADS_PER_SESSION: u64 = 2;
const MAPS_PER_THREAD: u64 = 4;
/// Mappings, descriptors and tasks for everything that is not a session:
/// libraries, heap arenas, handshakes, the rest of the program and host.
const SPARE_MAPS: u64 = 2_500;
const SPARE_DESCRIPTORS: u64 = 600;
const SPARE_TASKS: u64 = 1_500;

/// The sessions that the tightest limit of the system allows, and which
/// limit that is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Capacity {
    pub(crate) sessions: usize,
    pub(crate) limit: String,
}

impl Capacity {
    /// Reads the system's limits; raises the soft limit of descriptors to
    /// the hard one first.
    pub(crate) fn of_this_system() -> Self {
        let descriptors = descriptors();
        let read = |path: &str| {
            fs::read_to_string(path)
                .ok()
                .and_then(|text| text.trim().parse::<u64>().ok())
        };
        let per_maps = THREADS_PER_SESSION * MAPS_PER_THREAD;
        let tasks = |value: u64| value.saturating_sub(SPARE_TASKS) / THREADS_PER_SESSION;
        let rows = [
            (
                "the open files limit (ulimit -n)",
                descriptors,
                descriptors.map(|v| v.saturating_sub(SPARE_DESCRIPTORS)),
            ),
            (
                "vm.max_map_count",
                read("/proc/sys/vm/max_map_count"),
                read("/proc/sys/vm/max_map_count").map(|v| v.saturating_sub(SPARE_MAPS) / per_maps),
            ),
            (
                "kernel.pid_max",
                read("/proc/sys/kernel/pid_max"),
                read("/proc/sys/kernel/pid_max").map(tasks),
            ),
            (
                "kernel.threads-max",
                read("/proc/sys/kernel/threads-max"),
                read("/proc/sys/kernel/threads-max").map(tasks),
            ),
            (
                "the user processes limit (ulimit -u)",
                processes(),
                processes().map(tasks),
            ),
            ("pids.max of the control group", pids_max(), pids_max().map(tasks)),
        ];
        rows.into_iter()
            .filter_map(|(name, value, sessions)| Some((name, value?, sessions?)))
            .min_by_key(|(_, _, sessions)| *sessions)
            .map_or(
                Self {
                    sessions: usize::MAX,
                    limit: "no limit that is known".into(),
                },
                |(name, value, sessions)| Self {
                    sessions: usize::try_from(sessions).unwrap_or(usize::MAX),
                    limit: format!("{name} = {value}"),
                },
            )
    }

    /// How many sessions to admit: what was asked for, where the system
    /// allows it; everything it allows, where nothing was.
    pub(crate) fn admit(&self, asked: Option<usize>) -> Result<usize, String> {
        match asked {
            Some(asked) if asked > self.sessions => {
                let Self { sessions, limit } = self;
                Err(format!(
                    "{asked} sessions are more than this system allows: {limit} is enough for {sessions}"
                ))
            }
            Some(asked) => Ok(asked),
            None => Ok(self.sessions),
        }
    }
}

/// How many files may be open, once the soft limit has been raised to the
/// hard one; none where there is no limit.
pub(crate) fn descriptors() -> Option<u64> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current == maximum {
        return current;
    }
    match setrlimit(
        Resource::Nofile,
        Rlimit {
            current: maximum,
            maximum,
        },
    ) {
        Ok(()) => maximum,
        Err(_) => current,
    }
}

fn processes() -> Option<u64> {
    getrlimit(Resource::Nproc).current
}

/// The bound of the process's control group (version 2, or version 1's pids).
fn pids_max() -> Option<u64> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    groups
        .lines()
        .filter_map(|line| {
            let mut fields = line.splitn(3, ':');
            let (_, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
            let root = match controllers {
                "" => "/sys/fs/cgroup".to_owned(),
                c if c.split(',').any(|c| c == "pids") => "/sys/fs/cgroup/pids".to_owned(),
                _ => return None,
            };
            fs::read_to_string(format!("{root}{path}/pids.max"))
                .ok()?
                .trim()
                .parse()
                .ok()
        })
        .min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_system_allows_some_sessions_and_names_its_limit() {
        let capacity = Capacity::of_this_system();
        assert!(capacity.sessions > 0, "{}", capacity.limit);
        assert_eq!(capacity.admit(None), Ok(capacity.sessions));
    }

    #[test]
    fn asking_for_more_names_the_setting() {
        let capacity = Capacity {
            sessions: 7_000,
            limit: "vm.max_map_count = 65530".into(),
        };
        assert_eq!(capacity.admit(Some(7_000)), Ok(7_000));
        let error = capacity.admit(Some(7_001)).unwrap_err();
        assert!(
            error.contains("vm.max_map_count = 65530") && error.contains("7001"),
            "{error}"
        );
    }
}
