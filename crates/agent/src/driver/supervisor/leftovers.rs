//! Kills processes that outlive the program of their instance, or their supervisor.

use std::time::Duration;

use log::warn;
use rustix::process::Signal;

use super::cgroup::Cgroups;
use super::connection::run_of;
use super::state::State;
use super::{RunId, Running, is_of, pause, procfs, state};
use ssntp_transport::{deadline, left};

/// The time for which a failed launch waits until the processes that it has killed are gone. It is
/// limited, because a process may hang in the kernel.
const LEFTOVERS: Duration = Duration::from_secs(2);
/// The pause between two kills of these processes.
const KILL_AGAIN: Duration = Duration::from_millis(10);

/// Kills all descendants of a supervisor, and then the supervisor, because without the supervisor
/// the descendants could not be found.
pub(super) fn kill_tree(supervisor: &RunId) {
    let Some(root) = procfs::stat(supervisor.pid)
        .ok()
        .filter(|stat| is_of(stat, supervisor))
    else {
        return;
    };
    // This is repeated, because a process may have forked before it was killed. A supervisor that is
    // stopped does not wait for ended processes, so these stay in the list and are ignored.
    for _ in 0..10 {
        let run = procfs::descendants(root.pid);
        let left: Vec<_> = run.iter().filter(|stat| !stat.ended).collect();
        if left.is_empty() {
            break;
        }
        left.iter().for_each(|stat| procfs::signal(stat, Signal::KILL));
    }
    procfs::signal(&root, Signal::KILL);
}

/// Kills the remaining processes of a run whose supervisor has ended. Returns true if there were
/// any. A supervisor that has written the end of the run has waited for all processes. So all
/// processes of the system are searched only if the supervisor was killed.
pub(super) fn kill_leftovers(cgroups: &Cgroups, run: &Running) -> bool {
    let (instance, supervisor) = (run.place.instance(), &run.handle);
    let grouped = cgroups.pids(instance);
    let directory = run_of(&run.place).ok();
    let state = directory.as_ref().and_then(State::read);
    let is_complete = matches!(state, Some(State::Ended(_) | State::Failed(_)));
    if is_complete && grouped.is_empty() {
        return false;
    }
    // The state file has a UID only if this user runs no other instance.
    let own_uid = directory.as_ref().and_then(state::own_uid);
    let all = procfs::all();
    // The number of a session is that of the process that began it, here the supervisor. The kernel
    // gives this number to no new process while a process of the session runs. So if a later process
    // has the number, no process of the run's session is left.
    let is_later =
        |stat: &procfs::Stat| stat.pid == supervisor.pid && stat.start_time != supervisor.start_time;
    let later = all.iter().any(is_later);
    let is_left = |stat: &&procfs::Stat| {
        let of_session = is_of_session(stat, supervisor) && !later;
        let of_user =
            || own_uid.is_some_and(|uid| procfs::uids(stat.pid).is_some_and(|uids| uids.contains(&uid)));
        !stat.ended && (of_session || grouped.contains(&stat.pid) || of_user())
    };
    let left: Vec<_> = all.iter().filter(is_left).collect();
    left.iter().for_each(|stat| procfs::signal(stat, Signal::KILL));
    !left.is_empty()
}

fn is_of_session(stat: &procfs::Stat, supervisor: &RunId) -> bool {
    // A run without a process has the number 0, which `/proc` shows for sessions of other PID
    // namespaces.
    supervisor.pid > 0 && stat.session == supervisor.pid && stat.pid != supervisor.pid
}

/// Kills the processes that a failed launch has left, waits up to [`LEFTOVERS`] for their end, and
/// removes the control group.
pub(super) fn clear(cgroups: &Cgroups, run: &Running) {
    let limit = deadline(LEFTOVERS);
    while kill_leftovers(cgroups, run) {
        if left(limit).is_err() {
            warn!(
                "instance {}: some of its processes do not end",
                run.place.instance()
            );
            break;
        }
        pause(KILL_AGAIN);
    }
    cgroups.remove(run.place.instance());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_without_a_process_matches_no_session() {
        let own = i32::try_from(std::process::id()).unwrap();
        let in_session = |session| procfs::Stat {
            pid: own,
            session,
            ..procfs::stat(own).unwrap()
        };
        let run = |pid| RunId {
            pid,
            ..RunId::default()
        };
        assert!(!is_of_session(&in_session(0), &run(0)));
        assert!(is_of_session(&in_session(own + 1), &run(own + 1)));
        assert!(!is_of_session(&in_session(own), &run(own)), "the supervisor");
    }
}
