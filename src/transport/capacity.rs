//! How many sessions the system allows.
//!
//! A session takes two threads and one descriptor; so does a handshake, of
//! which one is a thread. A thread takes a task id and four memory mappings:
//! its stack, the signal stack by which the standard library tells a stack
//! overflow from other faults, and a guard page before each. Beyond
//! `vm.max_map_count` a new thread does not fail: the process aborts. So the
//! server counts before it starts.
//!
//! A process that was started with SIGSEGV and SIGBUS ignored has no signal
//! stacks, and takes two mappings a thread. A fault ends it all the same: the
//! kernel does not let these two be ignored when they are its own.

use std::fs;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

const THREADS_PER_SESSION: u64 = 2;
/// Mappings, descriptors and tasks for everything that is neither a session
/// nor a handshake: libraries, heap arenas, the rest of the program and host.
const SPARE_MAPS: u64 = 450;
const SPARE_DESCRIPTORS: u64 = 90;
const SPARE_TASKS: u64 = 990;

/// The sessions that the tightest limit of the system allows, and which
/// limit that is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Capacity {
    pub(crate) sessions: usize,
    /// The limit and its value.
    pub(crate) limit: String,
    need: Need,
    signal_stacks: bool,
}

/// What sessions take of one limited thing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Need {
    /// Without a session.
    fixed: u64,
    /// For each one.
    each: u64,
}

impl Need {
    fn sessions(self, limit: u64) -> usize {
        let sessions = limit.saturating_sub(self.fixed) / self.each.max(1);
        usize::try_from(sessions).unwrap_or(usize::MAX)
    }

    fn of(self, sessions: usize) -> u64 {
        let sessions = u64::try_from(sessions).unwrap_or(u64::MAX);
        self.fixed.saturating_add(self.each.saturating_mul(sessions))
    }
}

impl Capacity {
    /// Reads the system's limits, with so many handshakes beside the
    /// sessions; raises the soft limits of descriptors and processes to the
    /// hard ones first.
    pub(crate) fn of_this_system(handshakes: usize) -> Self {
        let signal_stacks = signal_stacks();
        let maps_per_thread = if signal_stacks { 4 } else { 2 };
        let handshakes = u64::try_from(handshakes).unwrap_or(u64::MAX);
        let need = |spare: u64, for_handshake: u64, each| Need {
            fixed: spare.saturating_add(handshakes.saturating_mul(for_handshake)),
            each,
        };
        let tasks = need(SPARE_TASKS, 1, THREADS_PER_SESSION);
        let maps = need(SPARE_MAPS, maps_per_thread, maps_per_thread * THREADS_PER_SESSION);
        let rows = [
            (
                "the open files limit (ulimit -n)",
                descriptors(),
                need(SPARE_DESCRIPTORS, 1, 1),
            ),
            ("vm.max_map_count", read("/proc/sys/vm/max_map_count"), maps),
            ("kernel.pid_max", read("/proc/sys/kernel/pid_max"), tasks),
            ("kernel.threads-max", read("/proc/sys/kernel/threads-max"), tasks),
            (
                "the user processes limit (ulimit -u)",
                raise(Resource::Nproc),
                tasks,
            ),
            ("pids.max of the control group", pids_max(), tasks),
        ];
        rows.into_iter()
            .filter_map(|(name, value, need)| Some((name, value?, need)))
            .min_by_key(|(_, value, need)| need.sessions(*value))
            .map_or(
                Self {
                    sessions: usize::MAX,
                    limit: "no limit that is known".into(),
                    need: Need::default(),
                    signal_stacks,
                },
                |(name, value, need)| Self {
                    sessions: need.sessions(value),
                    limit: format!("{name} = {value}"),
                    need,
                    signal_stacks,
                },
            )
    }

    /// How many sessions to admit: what was asked for, where the system
    /// allows it; everything it allows, where nothing was.
    pub(crate) fn admit(&self, asked: Option<usize>) -> Result<usize, String> {
        match asked {
            Some(asked) if asked > self.sessions => {
                let Self { sessions, limit, .. } = self;
                let needed = self.need.of(asked);
                let mut why = format!(
                    "{asked} sessions are more than this system allows: \
                     {limit} is enough for {sessions}, and they need {needed}"
                );
                if self.signal_stacks && limit.starts_with("vm.max_map_count") {
                    why.push_str(", or half with SIGSEGV and SIGBUS ignored at the start");
                }
                Err(why)
            }
            Some(asked) => Ok(asked),
            None => Ok(self.sessions),
        }
    }
}

fn read(path: &str) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// Whether each thread has a signal stack: the standard library gives it one
/// where it found SIGSEGV or SIGBUS at their defaults, and so caught them.
fn signal_stacks() -> bool {
    const SIGBUS: u32 = 7;
    const SIGSEGV: u32 = 11;
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let caught = status
        .lines()
        .find_map(|line| u64::from_str_radix(line.strip_prefix("SigCgt:")?.trim(), 16).ok());
    caught.is_none_or(|caught| caught & (1 << (SIGBUS - 1) | 1 << (SIGSEGV - 1)) != 0)
}

/// How many files may be open, once the soft limit has been raised to the
/// hard one; none where there is no limit.
pub(crate) fn descriptors() -> Option<u64> {
    raise(Resource::Nofile)
}

/// The limit, its soft part raised to the hard one.
fn raise(resource: Resource) -> Option<u64> {
    let Rlimit { current, maximum } = getrlimit(resource);
    if current == maximum {
        return current;
    }
    match setrlimit(
        resource,
        Rlimit {
            current: maximum,
            maximum,
        },
    ) {
        Ok(()) => maximum,
        Err(_) => current,
    }
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
        let capacity = Capacity::of_this_system(16);
        assert!(capacity.sessions > 0, "{}", capacity.limit);
        assert_eq!(capacity.admit(None), Ok(capacity.sessions));
    }

    #[test]
    fn handshakes_take_from_what_sessions_may_have() {
        let few = Capacity::of_this_system(1);
        let many = Capacity::of_this_system(1001);
        assert!(many.sessions < few.sessions);
    }

    #[test]
    fn asking_for_more_names_the_setting_and_what_it_needs() {
        let capacity = Capacity {
            sessions: 7_000,
            limit: "vm.max_map_count = 65530".into(),
            need: Need { fixed: 2500, each: 8 },
            signal_stacks: true,
        };
        assert_eq!(capacity.admit(Some(7_000)), Ok(7_000));
        let error = capacity.admit(Some(10_000)).unwrap_err();
        for part in ["vm.max_map_count = 65530", "10000", "82500", "SIGSEGV"] {
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn what_is_needed_for_a_number_of_sessions_is_enough_for_them() {
        let need = Need { fixed: 450, each: 8 };
        for sessions in [0, 1, 7_878, 10_000] {
            assert_eq!(need.sessions(need.of(sessions)), sessions);
        }
        assert_eq!(need.sessions(100), 0);
    }
}
