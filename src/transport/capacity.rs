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
//! kernel does not let these two be ignored when they are its own. The
//! program `ssntp` starts itself again like that where
//! [`more_without_signal_stacks`] says so.

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
    /// What it would be without signal stacks, where there are some.
    without_signal_stacks: Option<Box<Self>>,
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

/// Whether a server that is to admit so many sessions, or as many as the
/// system allows where none are named, had room for more of them in a process
/// that was started with SIGSEGV and SIGBUS ignored: without the signal
/// stacks of its threads. Never true in a process without them. `handshakes`
/// is what the server's configuration says.
///
/// A program that finds it true may execute itself again with the two signals
/// ignored, before it starts anything. Children inherit that.
///
/// Raises soft limits as a server does when it starts.
pub fn more_without_signal_stacks(sessions: Option<usize>, handshakes: usize) -> bool {
    Capacity::of_this_system(handshakes.max(1)).is_more_without_signal_stacks(sessions)
}

impl Capacity {
    /// Reads the system's limits, with so many handshakes beside the
    /// sessions; raises the soft limits of descriptors and processes to the
    /// hard ones first.
    pub(crate) fn of_this_system(handshakes: usize) -> Self {
        let without = Self::with_maps(2, handshakes);
        if signal_stacks() {
            Self {
                without_signal_stacks: Some(Box::new(without)),
                ..Self::with_maps(4, handshakes)
            }
        } else {
            without
        }
    }

    /// The same, for threads of so many mappings.
    fn with_maps(maps_per_thread: u64, handshakes: usize) -> Self {
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
        let tightest = rows
            .into_iter()
            .filter_map(|(name, value, need)| Some((name, value?, need)))
            .min_by_key(|(_, value, need)| need.sessions(*value));
        let (sessions, limit, need) = match tightest {
            Some((name, value, need)) => (need.sessions(value), format!("{name} = {value}"), need),
            None => (usize::MAX, "no limit that is known".into(), Need::default()),
        };
        Self {
            sessions,
            limit,
            need,
            without_signal_stacks: None,
        }
    }

    fn is_more_without_signal_stacks(&self, asked: Option<usize>) -> bool {
        self.without_signal_stacks
            .as_ref()
            .is_some_and(|without| match asked {
                Some(asked) => asked > self.sessions && asked <= without.sessions,
                None => without.sessions > self.sessions,
            })
    }

    /// How many sessions to admit: what was asked for, where the system
    /// allows it; everything it allows, where nothing was.
    pub(crate) fn admit(&self, asked: Option<usize>) -> Result<usize, String> {
        match asked {
            Some(asked) if asked > self.sessions => {
                let mut why = format!(
                    "{asked} sessions are more than this system allows: {}",
                    self.too_few_for(asked)
                );
                if let Some(without) = &self.without_signal_stacks
                    && without.sessions > self.sessions
                {
                    why.push_str("; started with SIGSEGV and SIGBUS ignored, ");
                    why.push_str(&match without.admit(Some(asked)) {
                        Ok(_) => format!("it is enough for {}", without.sessions),
                        Err(_) => without.too_few_for(asked),
                    });
                }
                Err(why)
            }
            Some(asked) => Ok(asked),
            None => Ok(self.sessions),
        }
    }

    fn too_few_for(&self, asked: usize) -> String {
        let Self { sessions, limit, .. } = self;
        let needed = self.need.of(asked);
        format!("{limit} is enough for {sessions}, and they need {needed}")
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

    /// As with `vm.max_map_count` = 65530 and 512 handshakes.
    fn by_maps(signal_stacks: bool) -> Capacity {
        let (sessions, fixed, each) = if signal_stacks {
            (7_879, 2_498, 8)
        } else {
            (16_014, 1_474, 4)
        };
        Capacity {
            sessions,
            limit: "vm.max_map_count = 65530".into(),
            need: Need { fixed, each },
            without_signal_stacks: signal_stacks.then(|| Box::new(by_maps(false))),
        }
    }

    #[test]
    fn asking_for_more_names_the_setting_and_what_it_needs() {
        let capacity = by_maps(true);
        assert_eq!(capacity.admit(Some(7_879)), Ok(7_879));
        let error = capacity.admit(Some(10_000)).unwrap_err();
        for part in ["vm.max_map_count = 65530", "10000", "82498", "SIGSEGV", "16014"] {
            assert!(error.contains(part), "{error}");
        }
        let error = capacity.admit(Some(20_000)).unwrap_err();
        for part in ["162498", "SIGSEGV", "81474"] {
            assert!(error.contains(part), "{error}");
        }
        let error = by_maps(false).admit(Some(20_000)).unwrap_err();
        assert!(error.contains("81474") && !error.contains("SIGSEGV"), "{error}");
    }

    #[test]
    fn signal_stacks_are_in_the_way_where_they_cost_sessions_that_are_wanted() {
        for (asked, expected) in [
            (Some(7_879), false),
            (Some(7_880), true),
            (Some(16_014), true),
            (Some(16_015), false),
            (None, true),
        ] {
            assert_eq!(by_maps(true).is_more_without_signal_stacks(asked), expected);
            assert!(!by_maps(false).is_more_without_signal_stacks(asked));
        }
        let mut same = by_maps(true);
        same.without_signal_stacks = Some(Box::new(by_maps(true)));
        assert!(!same.is_more_without_signal_stacks(None));
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
