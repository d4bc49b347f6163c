//! The process that becomes the program. It performs the steps that only the process itself can
//! do, one by one, so that an error names the step that failed.
//!
//! The process reads its order from the standard input, and writes an error there. When the program
//! is executed, the system closes the connection.

#![expect(clippy::disallowed_types, reason = "the socket that the order comes by")]

use std::env;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use rustix::fs::{Gid, Mode};
use rustix::process::{
    Resource, Rlimit, Signal, getrlimit, set_parent_process_death_signal, setrlimit, umask,
};
use rustix::thread::{
    CapabilitySet, CapabilitySets, configure_capability_in_ambient_set, set_capabilities,
    set_keep_capabilities,
};
use rustix::thread::{set_thread_gid, set_thread_groups, set_thread_uid};

use super::launch_order::LaunchOrder;
use super::mounts;
use super::state::State;
use super::user_of;
use crate::driver::Refused;

/// The line by which the process says that it executes the program now. If the connection ends before it,
/// the program has not run.
pub(super) const ENTERED: &[u8] = b"\n";

/// Becomes the program, or sends the error to the supervisor.
pub(super) fn enter() -> ExitCode {
    // Unlike the standard input, the copy is closed when the program is executed.
    let Ok(supervisor) = io::stdin().as_fd().try_clone_to_owned() else {
        return ExitCode::FAILURE;
    };
    let mut supervisor = UnixStream::from(supervisor);
    let error = match LaunchOrder::read(&supervisor) {
        // If it cannot be written, the supervisor has ended, and this process with it.
        Ok(order) => become_program(&order, None, || drop(supervisor.write_all(ENTERED))),
        Err(e) => Refused::io("its order", &e),
    };
    let _ = supervisor.write_all(State::Failed(error).line().as_bytes());
    ExitCode::FAILURE
}

/// Becomes the program of an order: the first one of its run, or, with the `leader` of a run, a further one
/// beside it. `on_entered` is called when nothing is left to do but to execute it. Returns only if that
/// fails.
pub(super) fn become_program(
    order: &LaunchOrder,
    leader: Option<&str>,
    on_entered: impl FnOnce(),
) -> Refused {
    if let Err(error) = prepare(order, leader) {
        return error;
    }
    stop_ignoring_signals();
    let mut command = Command::new(&order.exec.program);
    command
        .args(&order.exec.arguments)
        .env_clear()
        .envs(order.exec.env.iter().map(|(name, value)| (name, value)))
        .stdin(Stdio::null());
    on_entered();
    let error = command.exec();
    let path = order.exec.env.iter().find(|(name, _)| name == "PATH");
    let path = path.map(|(_, path)| path.as_os_str());
    match find_program(&order.exec.program, path, order.exec.dir.as_ref()) {
        // The file exists, so the error of the system is the reason.
        Ok(found) => Refused::io(found.display(), &error),
        Err(missing) => missing,
    }
}

/// Lets the program begin with the default action of each signal that was ignored when the agent was started.
/// To do so, it handles these signals: executing a program resets handled signals, but not ignored ones.
fn stop_ignoring_signals() {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    let nothing = Arc::new(AtomicBool::new(false));
    for signal in (1..=64).filter(|signal| ignored.unwrap_or(0) >> (signal - 1) & 1 == 1) {
        if !signal_hook::consts::FORBIDDEN.contains(&signal) {
            let _ = signal_hook::flag::register(signal, Arc::clone(&nothing));
        }
    }
}

fn prepare(order: &LaunchOrder, leader: Option<&str>) -> Result<(), Refused> {
    // 0 stands for the process that writes it.
    let joined = order
        .limits
        .cgroups
        .iter()
        .try_for_each(|group| fs::write(Path::new(group).join("cgroup.procs"), "0"));
    // The one with which the agent was started is nothing that the START asks for.
    umask(Mode::WGRP | Mode::WOTH);
    // The supervisor is spared by the kernel when memory is short; the program is not.
    let _ = fs::write("/proc/self/oom_score_adj", "0");
    if let Some(files) = order.limits.files {
        let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
        let current = Some(files);
        let _ = setrlimit(Resource::Nofile, Rlimit { current, maximum });
    }
    if let Some(processes) = order.limits.processes {
        limit(Resource::Nproc, processes);
    }
    match leader {
        Some(leader) => mounts::join(order, leader),
        None => mounts::enter(order),
    }
    .map_err(|e| Refused::io("its mounts", &e))?;
    become_user(order)?;
    // This comes after the change of the user, so that it fails for a directory that the user may
    // not enter.
    env::set_current_dir(&order.exec.dir).map_err(|e| Refused::io(order.exec.dir.display(), &e))?;
    // The check follows the change of directory, because links in the path could lead elsewhere.
    if let Some(within) = &order.exec.within {
        let dir = env::current_dir().map_err(|e| Refused::io(order.exec.dir.display(), &e))?;
        if !within.iter().any(|allowed| dir.starts_with(allowed)) {
            let why = format!("the directory {dir:?} is not allowed on this node (policy: directories)");
            return Err(Refused::launch(why));
        }
    }
    // The program is killed when its supervisor ends. The system resets this setting when the user
    // changes, so it comes after that.
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
    // The limit comes last, because it applies to this process as well. If it can't be set, the
    // program runs without it.
    if let Some(data) = order
        .limits
        .data
        .filter(|_| joined.is_err() || order.limits.cgroups.is_empty())
    {
        // The address space is not limited, because many programs reserve far more of it than they
        // use.
        limit(Resource::Data, data);
    }
    Ok(())
}

/// Becomes the user of the program. Its rights to the network are kept, if the order says so.
pub(super) fn become_user(order: &LaunchOrder) -> Result<(), Refused> {
    let system = |what: String| move |e: rustix::io::Errno| Refused::io(what, &e.into());
    let Some(user) = order.exec.user else {
        return Ok(());
    };
    let (uid, gid) = user_of(user);
    let groups: Vec<_> = order.exec.group.into_iter().map(Gid::from_raw).collect();
    // The order matters: after the change of the user, the process has no right to change its
    // groups.
    set_thread_groups(&groups).map_err(system("its groups".into()))?;
    set_thread_gid(gid).map_err(system(format!("group {}", user.gid)))?;
    let is_kept = order.administers_network;
    set_keep_capabilities(is_kept).map_err(system("capabilities".into()))?;
    set_thread_uid(uid).map_err(system(format!("user {}", user.uid)))?;
    if is_kept {
        keep_network_rights().map_err(system("the rights of a concentrator".into()))?;
    }
    Ok(())
}

/// Sets a limit that the program cannot raise.
fn limit(resource: Resource, most: u64) {
    let (current, maximum) = (Some(most), Some(most));
    let _ = setrlimit(resource, Rlimit { current, maximum });
}

/// Keeps the rights to the network, and no others, also for the program. The rights apply only to
/// the process's own network namespace: without CAP_SYS_ADMIN a process cannot enter another one.
fn keep_network_rights() -> rustix::io::Result<()> {
    let rights = CapabilitySet::NET_ADMIN | CapabilitySet::NET_RAW | CapabilitySet::NET_BIND_SERVICE;
    let sets = CapabilitySets {
        effective: rights,
        permitted: rights,
        inheritable: rights,
    };
    set_capabilities(None, sets)?;
    rights
        .iter()
        .try_for_each(|right| configure_capability_in_ambient_set(right, true))
}

/// Finds the file of a program as a shell does.
///
/// # Errors
/// There is no such program, or the interpreter of the script is missing.
pub fn find_program(name: &OsStr, path: Option<&OsStr>, dir: &Path) -> Result<PathBuf, Refused> {
    let candidates = if name.as_encoded_bytes().contains(&b'/') {
        vec![dir.join(name)]
    } else {
        let dirs = path.map(env::split_paths).into_iter().flatten();
        dirs.map(|entry| dir.join(entry).join(name)).collect()
    };
    let files = candidates
        .iter()
        .filter_map(|path| Some((path, fs::metadata(path).ok()?)));
    let files: Vec<_> = files.filter(|(_, metadata)| metadata.is_file()).collect();
    // If no file is executable, the first file is taken, so that the error of the system names it.
    let found = files.iter().find(|(_, metadata)| metadata.mode() & 0o111 != 0);
    let found = found.or_else(|| files.first()).map(|(path, _)| (*path).clone());
    let missing = || Refused::launch(format!("there is no program {}", name.display()));
    let found = found.ok_or_else(missing)?;
    check_interpreter(&found)?;
    Ok(found)
}

/// Checks that the interpreter of a script exists. Otherwise the system reports that the script
/// itself does not exist.
fn check_interpreter(script: &Path) -> Result<(), Refused> {
    let mut start = Vec::new();
    let read = File::open(script).and_then(|file| file.take(256).read_to_end(&mut start));
    // A program that can't be read can be executable.
    let Ok(_) = read else { return Ok(()) };
    let line = start
        .strip_prefix(b"#!")
        .and_then(|rest| rest.split(|b| *b == b'\n').next());
    let text = line.and_then(|line| std::str::from_utf8(line).ok());
    match text.and_then(|text| text.split_whitespace().next()) {
        Some(interpreter) if !Path::new(interpreter).exists() => {
            let script = script.display();
            Err(Refused::launch(format!(
                "the interpreter {interpreter} of the script {script} does not exist"
            )))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_as_a_shell_does() {
        use std::os::unix::fs::PermissionsExt;

        let dir = tempfile::tempdir().unwrap();
        let make = |name: &str, text: &str, mode: u32| {
            let path = dir.path().join(name);
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        };
        make("tool", "#!/bin/sh\n", 0o755);
        make("data", "", 0o644);
        make("lost", "#!/no/such/interpreter -x\n", 0o755);
        fs::create_dir(dir.path().join("folder")).unwrap();
        let path = env::join_paths([Path::new("/nowhere"), dir.path()]).unwrap();
        let find = |name: &str| find_program(name.as_ref(), Some(&path), dir.path());
        for name in ["tool", "./tool", "data"] {
            assert_eq!(find(name).unwrap(), dir.path().join(name));
        }
        assert!(find("/bin/sh").is_ok());
        for (name, reason) in [
            ("sh", "no program"),
            ("./folder", "no program"),
            ("lost", "/no/such/interpreter"),
        ] {
            let error = find(name).unwrap_err();
            assert!(error.why.contains(reason), "{name}: {error}");
        }
    }
}
