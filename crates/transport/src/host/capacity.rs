//! The number of sessions that the system allows.
//!
//! A session takes two threads and one descriptor; a handshake takes one of each. A thread takes a task
//! id and four memory mappings: its stack, the signal stack with which the standard library recognizes a
//! stack overflow, and a guard page before each. Beyond `vm.max_map_count` the start of a thread does not
//! fail: the process aborts. So the server counts before it starts.

use std::env;
use std::fs;
use std::path::Path;
use std::thread::available_parallelism;

use log::{info, warn};
use rustix::process::{Resource, Rlimit, getrlimit, getuid, setrlimit};

use super::available_memory::memory_beside_queues;
use super::procfs::{directories, field, number, number_field};

const THREADS_PER_SESSION: u64 = 2;
/// Room for fewer sessions than this causes a warning, unless a number was requested: a system for
/// servers has room for thousands.
const FEW: usize = 100;
/// Handshakes may use a quarter of a limit at most. If the limit is tight, most of it is for sessions.
const HANDSHAKES_SHARE: u64 = 4;
/// A sixteenth of a limit is kept free, but at most [`Cost::most_spare`], because other processes may use
/// more of it while the server runs.
const SPARE_SHARE: u64 = 16;
/// The cost of sessions and handshakes in one kind of limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cost {
    session: u64,
    handshake: u64,
    /// The cost of the rest of the server: its threads, listeners with one newcomer each, files, libraries
    /// and heap arenas.
    fixed: u64,
    most_spare: u64,
    /// The address space that the allocator reserves as threads are started, if there is enough for a
    /// further arena.
    reserved: u64,
}

const DESCRIPTORS: Cost = Cost::of(1, 1, 16, 128);

const TASKS: Cost = Cost::of(THREADS_PER_SESSION, 1, 16, 1000);

/// Memory mappings: four for each thread. The limit is the process's own. The fixed part is for 16 heap
/// arenas and large buffers.
const MAPPINGS: Cost = Cost::of(4 * THREADS_PER_SESSION, 4, 250, 0);

impl Cost {
    const fn of(session: u64, handshake: u64, fixed: u64, most_spare: u64) -> Self {
        Self {
            session,
            handshake,
            fixed,
            most_spare,
            reserved: 0,
        }
    }
}

/// An arena of the C library's allocator, in KiB of address space.
const ARENA: u64 = 64 * 1024;

/// The maximum number of arenas that the C library makes: eight for each core, or MALLOC_ARENA_MAX of the
/// environment.
fn arenas() -> u64 {
    let told = env::var("MALLOC_ARENA_MAX")
        .ok()
        .and_then(|told| told.parse().ok());
    let cores = available_parallelism().map_or(1, usize::from) as u64;
    told.filter(|told| *told > 0).unwrap_or(cores.saturating_mul(8))
}

/// Address space in KiB. If it is used up, a small allocation fails instead of the start of a thread, and
/// the process aborts. A handshake has a stack of 2 MiB and a session two of 128 KiB, each with a signal
/// stack, guard pages and some memory.
fn address_space() -> Cost {
    Cost {
        reserved: arenas().saturating_mul(ARENA),
        ..Cost::of(400, 2304, 16 * 1024, ARENA)
    }
}

/// Memory in KiB, beside the queues. An idle session takes 26 KiB, and 33 more while it holds a part of a
/// TLS record and of a frame, of which it may hold a record without a reservation (`flow::UNRESERVED`). A
/// handshake has a stack and the state of TLS. A server without sessions takes 8 MiB in addition to the memory of its program.
const MEMORY: Cost = Cost::of(64, 128, 8 * 1024, ARENA);

/// One limit of the system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Limit {
    name: &'static str,
    value: u64,
    /// The used amount, by this process or by all processes that share the limit.
    used: u64,
    cost: Cost,
}

impl Limit {
    /// The number of sessions for which there is room, and of the wanted handshakes.
    fn room(&self, handshakes: usize) -> (usize, usize) {
        let taken = self.used.saturating_add(self.cost.fixed);
        let room = self.value.saturating_sub(taken);
        let room = match self.cost.reserved {
            0 => room,
            // If not all arenas fit, less than one arena may be left.
            reserved => room.saturating_sub(reserved).max(room.min(ARENA)),
        };
        let room = room - (room / SPARE_SHARE).min(self.cost.most_spare);
        let most = room / HANDSHAKES_SHARE / self.cost.handshake;
        let handshakes = handshakes.min(usize::try_from(most).unwrap_or(usize::MAX)).max(1);
        let left = room.saturating_sub(self.cost.handshake.saturating_mul(handshakes as u64));
        let sessions = usize::try_from(left / self.cost.session).unwrap_or(usize::MAX);
        (sessions, handshakes)
    }

    /// The warning if not all arenas fit. Then arenas may use up the memory for small allocations, which a
    /// lower number of sessions does not prevent.
    fn crowded(&self) -> Option<String> {
        let beside = self.used.saturating_add(self.cost.fixed);
        let fits = self.value >= beside.saturating_add(self.cost.reserved);
        (self.cost.reserved > 0 && !fits).then(|| {
            format!(
                "{}: the C library's allocator may take {} of it, and a small allocation may then \
                 fail, which ends the process: set MALLOC_ARENA_MAX=1, or raise the limit",
                self.shown(),
                self.cost.reserved
            )
        })
    }

    /// The smallest value with room for `sessions` sessions.
    fn needed(&self, sessions: usize, handshakes: usize) -> u64 {
        let (mut too_few, mut enough) = (0, u64::MAX);
        // By bisection: the room is not linear in the limit, because spare and handshakes grow with it up
        // to a bound.
        while enough - too_few > 1 {
            let value = too_few + (enough - too_few) / 2;
            let limit = Self { value, ..*self };
            if limit.room(handshakes).0 >= sessions {
                enough = value
            } else {
                too_few = value
            }
        }
        enough
    }

    fn shown(&self) -> String {
        match self.used {
            0 => format!("{} = {}", self.name, self.value),
            used => format!("{} = {}, {used} in use", self.name, self.value),
        }
    }
}

/// The number of sessions and handshakes for which the system's tightest limit has room.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Room {
    /// The number of sessions.
    pub sessions: usize,
    /// The number of handshakes at a time: the wanted number, or fewer if limits are tight.
    pub handshakes: usize,
    /// The wanted number of handshakes.
    wanted: usize,
    tightest: Option<Limit>,
}

impl Room {
    /// Raises the soft limits of open files and processes to the hard ones, and decides the number of
    /// sessions of a server: `asked`, or as many as the system has room for. Warns in the log under
    /// `target` if these are few.
    ///
    /// # Errors
    /// There is no room for `asked` sessions, or for a single one. The text names the setting, its value,
    /// and the value that is needed.
    pub fn claim(handshakes: usize, asked: Option<usize>, target: &str) -> Result<Self, String> {
        let limits = limits(|resource| match resource {
            // A soft limit of the address space is set on purpose, so it is not raised.
            Resource::As => getrlimit(resource).current,
            _ => raise(resource),
        });
        let room = Self::of(limits, handshakes.max(1));
        let sessions = room.admit(asked)?;
        let crowded = room.tightest.as_ref().and_then(Limit::crowded);
        for why in room.few(asked).into_iter().chain(crowded) {
            warn!(target: target, "{why}");
        }
        if room.handshakes < room.wanted {
            info!(target: target, "{} handshakes at a time, not {}: {}", room.handshakes, room.wanted, room.limit());
        }
        Ok(Self { sessions, ..room })
    }

    fn of(limits: Vec<Limit>, wanted: usize) -> Self {
        let rooms = limits.iter().map(|limit| limit.room(wanted));
        let handshakes = rooms.map(|(_, handshakes)| handshakes).min();
        let tightest = limits.into_iter().min_by_key(|limit| limit.room(wanted).0);
        Self {
            sessions: tightest.as_ref().map_or(usize::MAX, |limit| limit.room(wanted).0),
            handshakes: handshakes.unwrap_or(wanted),
            wanted,
            tightest,
        }
    }

    /// The number of sessions that the server admits.
    fn admit(&self, asked: Option<usize>) -> Result<usize, String> {
        let sessions = asked.unwrap_or(self.sessions);
        if sessions == 0 && asked.is_none() {
            return Err(format!(
                "this system has no room for a single session: {}; one needs {}, and {FEW} need {}",
                self.limit(),
                self.needed(1),
                self.needed(FEW)
            ));
        }
        if sessions > self.sessions {
            return Err(format!(
                "{sessions} sessions are more than this system allows: {} has room for {}; the needed value is {}",
                self.limit(),
                self.sessions,
                self.needed(sessions)
            ));
        }
        Ok(sessions)
    }

    /// The warning if no number was requested and the room is small.
    fn few(&self, asked: Option<usize>) -> Option<String> {
        (asked.is_none() && self.sessions < FEW).then(|| {
            format!(
                "there is room for {} sessions only: {}; {FEW} need {}",
                self.sessions,
                self.limit(),
                self.needed(FEW)
            )
        })
    }

    /// The tightest limit, with its value.
    pub fn limit(&self) -> String {
        let unknown = || "no limit that is known".to_owned();
        self.tightest.as_ref().map_or_else(unknown, Limit::shown)
    }

    fn needed(&self, sessions: usize) -> u64 {
        let needed = |limit: &Limit| limit.needed(sessions, self.wanted);
        self.tightest.as_ref().map_or(0, needed)
    }
}

/// All limits that are set. `limit` reads those of the process.
fn limits(limit: fn(Resource) -> Option<u64>) -> Vec<Limit> {
    let sysctl = |name| number(&Path::new("/proc/sys").join(name));
    let (files, open) = (limit(Resource::Nofile), entries("/proc/self/fd"));
    let (space, mapped) = (limit(Resource::As).map(|bytes| bytes / 1024), mapped());
    // The number of mappings changes all the time. It is rounded up, so that two counts in a short time
    // are equal.
    let maps = lines("/proc/self/maps").next_multiple_of(256);
    let (tasks, own) = (all_tasks(), tasks_of_this_user());
    let processes = limit(Resource::Nproc);
    let (pids, in_group) = pids(Path::new("/")).unzip();
    let limits = [
        ("the open files limit (ulimit -n)", DESCRIPTORS, files, open),
        (
            "the address space limit (ulimit -v)",
            address_space(),
            space,
            mapped,
        ),
        (
            "three quarters of the memory in KiB",
            MEMORY,
            memory_beside_queues(),
            0,
        ),
        ("vm.max_map_count", MAPPINGS, sysctl("vm/max_map_count"), maps),
        ("kernel.pid_max", TASKS, sysctl("kernel/pid_max"), tasks),
        ("kernel.threads-max", TASKS, sysctl("kernel/threads-max"), tasks),
        ("the user processes limit (ulimit -u)", TASKS, processes, own),
        (
            "pids.max of the control group",
            TASKS,
            pids,
            in_group.unwrap_or(0),
        ),
    ];
    let set = limits.into_iter().filter_map(|(name, cost, value, used)| {
        let value = value?;
        Some(Limit {
            name,
            value,
            used,
            cost,
        })
    });
    set.collect()
}

/// The address space in use, in KiB.
fn mapped() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    number_field(&status, "VmSize").unwrap_or_default()
}

fn lines(path: &str) -> u64 {
    fs::read_to_string(path).map_or(0, |text| text.lines().count() as u64)
}

fn entries(path: &str) -> u64 {
    fs::read_dir(path).map_or(0, |entries| entries.count() as u64)
}

/// The number of threads of the whole system.
fn all_tasks() -> u64 {
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let tasks = load.split(' ').find_map(|field| field.split_once('/'));
    tasks.and_then(|(_, all)| all.parse().ok()).unwrap_or(0)
}

/// The number of threads of this user, as far as they are visible.
fn tasks_of_this_user() -> u64 {
    let user = getuid().as_raw().to_string();
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let tasks = processes.filter_map(|process| {
        let status = fs::read_to_string(process.path().join("status")).ok()?;
        let is_own = field(&status, "Uid")? == user;
        number_field(&status, "Threads").filter(|_| is_own)
    });
    tasks.sum()
}

/// The limit of the process's control groups that leaves the least, and the used amount of it.
fn pids(root: &Path) -> Option<(u64, u64)> {
    let groups = directories(root, "pids").into_iter();
    let bounds = groups.filter_map(|group| {
        let used = number(&group.join("pids.current")).unwrap_or_default();
        Some((number(&group.join("pids.max"))?, used))
    });
    bounds.min_by_key(|(max, used)| max.saturating_sub(*used))
}

/// Raises the soft limit of open files to the hard one, and returns it. `None` if there is no limit.
pub fn descriptors() -> Option<u64> {
    raise(Resource::Nofile)
}

/// The limit, with its soft part raised to the hard one.
fn raise(resource: Resource) -> Option<u64> {
    let before = getrlimit(resource);
    let raised = Rlimit {
        current: before.maximum,
        ..before
    };
    match setrlimit(resource, raised) {
        Ok(()) => raised.current,
        Err(_) => before.current,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(cost: Cost, value: u64, used: u64) -> Limit {
        let name = "a limit";
        Limit {
            name,
            value,
            used,
            cost,
        }
    }

    fn sessions(cost: Cost, value: u64) -> usize {
        limit(cost, value, 10).room(128).0
    }

    #[test]
    fn little_memory_admits_few_sessions() {
        // Three quarters of 32 MiB. In this memory some 600 sessions were too many.
        let sessions = |mib: u64| limit(MEMORY, mib * 1024 / 4 * 3, 0).room(512).0;
        assert!((100..400).contains(&sessions(32)), "{}", sessions(32));
        assert!(sessions(16) > 0);
        assert!(sessions(8192) > 90_000);
    }

    #[test]
    fn a_system_has_room_for_some_sessions_and_names_its_limit() {
        let room = Room::of(limits(|resource| getrlimit(resource).maximum), 16);
        assert_eq!(room.admit(None), Ok(room.sessions));
        assert!(room.limit().contains(" = "), "{}", room.limit());
    }

    #[test]
    fn small_limits_have_room_for_fewer_handshakes_and_some_sessions() {
        for (cost, value, expected) in [
            (DESCRIPTORS, 20, (0, 1)),
            (DESCRIPTORS, 100, (53, 17)),
            (DESCRIPTORS, 400, (264, 87)),
            (DESCRIPTORS, 1024, (808, 128)),
            (TASKS, 300, (96, 64)),
            (TASKS, 1_500, (627, 128)),
            (TASKS, 32_768, (15_807, 128)),
        ] {
            assert_eq!(limit(cost, value, 10).room(128), expected, "{value}");
        }
        let scarce = Cost {
            reserved: 16 * ARENA,
            ..address_space()
        };
        assert_eq!(limit(scarce, 600_000, 10_000).room(128), (119, 6));
        let crowded = limit(scarce, 600_000, 10_000).crowded().unwrap();
        assert!(crowded.contains("MALLOC_ARENA_MAX=1"), "{crowded}");
        assert!(limit(scarce, 2 << 20, 10_000).crowded().is_none());
        assert!(limit(TASKS, 10, 9).crowded().is_none());
        assert_eq!(limit(scarce, 20_000, 10_000).room(128).0, 0);
        assert!(limit(scarce, 8 << 20, 10_000).room(128).0 > 10_000);
        assert!(limit(TASKS, 1_000, 900).room(128).0 < limit(TASKS, 1_000, 10).room(128).0);
    }

    #[test]
    fn the_needed_limit_is_just_enough_for_the_sessions() {
        for cost in [DESCRIPTORS, TASKS, MAPPINGS] {
            for wanted in [1, 2, 99, 7_878, 10_000] {
                let needed = limit(cost, 0, 10).needed(wanted, 128);
                assert_eq!(sessions(cost, needed), wanted);
                assert!(sessions(cost, needed - 1) < wanted);
            }
        }
        assert!(limit(TASKS, 0, 0).needed(usize::MAX, 1) >= usize::MAX as u64);
    }

    #[test]
    fn no_room_for_a_session_is_an_error_and_little_room_a_warning() {
        let room = |value| Room::of(vec![limit(TASKS, value, 7)], 128);
        let error = room(20).admit(None).unwrap_err();
        let (one, few) = (
            limit(TASKS, 0, 7).needed(1, 128),
            limit(TASKS, 0, 7).needed(FEW, 128),
        );
        for part in ["a limit = 20, 7 in use", &one.to_string(), &few.to_string()] {
            assert!(error.contains(part), "{error}");
        }
        assert_eq!(room(one).admit(None).unwrap(), 1);
        assert!(room(20).admit(Some(1)).is_err());
        let text = room(one).few(None).unwrap();
        for part in ["1 sessions", "a limit = ", &few.to_string()] {
            assert!(text.contains(part), "{text}");
        }
        assert_eq!(room(one).few(Some(1)), None);
        assert_eq!(room(few).few(None), None);
    }

    #[test]
    fn a_limit_beyond_the_capacity_names_the_setting_and_its_needed_value() {
        let maps = Limit {
            name: "vm.max_map_count",
            value: 65_530,
            used: 256,
            cost: MAPPINGS,
        };
        let room = Room::of(vec![maps], 512);
        assert_eq!(room.admit(Some(7_872)).unwrap(), 7_872);
        let error = room.admit(Some(10_000)).unwrap_err();
        for part in ["vm.max_map_count = 65530", "10000", "7872", "82554"] {
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn the_control_group_that_leaves_the_least_counts() {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("proc/self/cgroup", "0::/one/two\n");
        assert_eq!(pids(root.path()), None);
        write("sys/fs/cgroup/one/two/pids.max", "max\n");
        write("sys/fs/cgroup/one/pids.max", "500\n");
        write("sys/fs/cgroup/one/pids.current", "20\n");
        write("sys/fs/cgroup/pids.max", "1000\n");
        write("sys/fs/cgroup/pids.current", "900\n");
        assert_eq!(pids(root.path()), Some((1000, 900)));
    }
}
