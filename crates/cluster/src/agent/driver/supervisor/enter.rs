//! The process that becomes the program: the steps that only the process itself can do,
//! one by one, so that an error names the step that failed.
//!
//! It reads its order from the standard input. When the program is executed, the system
//! closes the other end; until then the error is written there.

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

use rustix::fs::Gid;
use rustix::process::{Resource, Rlimit, Signal, getrlimit, set_parent_process_death_signal, setrlimit};
use rustix::thread::{
    CapabilitySet, CapabilitySets, configure_capability_in_ambient_set, set_capabilities,
    set_keep_capabilities,
};
use rustix::thread::{set_thread_gid, set_thread_groups, set_thread_uid};

use super::mounts;
use super::order::Order;
use super::state::State;
use super::user_of;
use crate::agent::driver::LaunchError;

/// Becomes the program, or says why not.
pub(super) fn enter() -> ExitCode {
    // Closed when the program is executed, unlike the standard input.
    let Ok(supervisor) = io::stdin().as_fd().try_clone_to_owned() else {
        return ExitCode::FAILURE;
    };
    let mut supervisor = UnixStream::from(supervisor);
    let error = match Order::read(&supervisor) {
        Ok(order) => become_program(&order),
        Err(e) => LaunchError::io("its order", &e),
    };
    let _ = supervisor.write_all(State::Failed(error).line().as_bytes());
    ExitCode::FAILURE
}

fn become_program(order: &Order) -> LaunchError {
    if let Err(error) = prepare(order) {
        return error;
    }
    let error = Command::new(&order.program)
        .args(&order.arguments)
        .env_clear()
        .envs(order.env.iter().map(|(name, value)| (name, value)))
        .stdin(Stdio::null())
        .exec();
    let path = order.env.iter().find(|(name, _)| name == "PATH");
    let path = path.map(|(_, path)| path.as_os_str());
    match find_program(&order.program, path, order.dir.as_ref()) {
        // The file is there, so the error is that of the system.
        Ok(found) => LaunchError::io(found.display(), &error),
        Err(missing) => missing,
    }
}

fn prepare(order: &Order) -> Result<(), LaunchError> {
    let system = |what: String| move |e: rustix::io::Errno| LaunchError::io(what, &e.into());
    // 0 means the process that writes it.
    let joined = order
        .cgroups
        .iter()
        .try_for_each(|group| fs::write(Path::new(group).join("cgroup.procs"), "0"));
    // The supervisor is spared by the kernel when memory is short; the program is not.
    let _ = fs::write("/proc/self/oom_score_adj", "0");
    if let Some(files) = order.files {
        let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
        let current = Some(files);
        let _ = setrlimit(Resource::Nofile, Rlimit { current, maximum });
    }
    if let Some(processes) = order.processes {
        let limit = Rlimit {
            current: Some(processes),
            maximum: Some(processes),
        };
        let _ = setrlimit(Resource::Nproc, limit);
    }
    mounts::enter(order).map_err(|e| LaunchError::io("its mounts", &e))?;
    if let Some(user) = order.user {
        let (uid, gid) = user_of(user);
        let groups: Vec<_> = order.group.into_iter().map(Gid::from_raw).collect();
        // Groups first, then the group, then the user: after the change of the user the process
        // has no right to the others.
        set_thread_groups(&groups).map_err(system("its groups".into()))?;
        set_thread_gid(gid).map_err(system(format!("group {}", user.gid)))?;
        let is_kept = order.administers_network;
        set_keep_capabilities(is_kept).map_err(system("capabilities".into()))?;
        set_thread_uid(uid).map_err(system(format!("user {}", user.uid)))?;
        if is_kept {
            keep_network_rights().map_err(system("the rights of a concentrator".into()))?;
        }
    }
    // As the user of the program, so that only directories count that this user may enter.
    env::set_current_dir(&order.dir).map_err(|e| LaunchError::io(order.dir.display(), &e))?;
    // Checked after the change of directory, because links in the path could lead elsewhere.
    if let Some(within) = &order.within {
        let dir = env::current_dir().map_err(|e| LaunchError::io(order.dir.display(), &e))?;
        if !within.iter().any(|allowed| dir.starts_with(allowed)) {
            let why = format!("this node starts nothing in {dir:?} (policy: directories)");
            return Err(LaunchError::launch(why));
        }
    }
    // A run must not outlive its supervisor. The system forgets this setting when the user
    // changes, so it comes afterwards.
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
    // The limit comes last, because it counts for this process, too. If it can't be set,
    // the program runs all the same.
    if let Some(data) = order.data.filter(|_| joined.is_err() || order.cgroups.is_empty()) {
        // Not the address space: many programs reserve far more of it than
        // they ever use.
        let limit = Rlimit {
            current: Some(data),
            maximum: Some(data),
        };
        let _ = setrlimit(Resource::Data, limit);
    }
    Ok(())
}

/// Keeps the rights to the network, and no others, also in what is executed. They count for
/// the namespace alone: without CAP_SYS_ADMIN no process can enter another one.
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

/// The file of a program, found as a shell would.
pub(in super::super) fn find_program(
    name: &OsStr,
    path: Option<&OsStr>,
    dir: &Path,
) -> Result<PathBuf, LaunchError> {
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
    // If no file is executable, the error names the first one that is not.
    let found = files.iter().find(|(_, metadata)| metadata.mode() & 0o111 != 0);
    let found = found.or_else(|| files.first()).map(|(path, _)| (*path).clone());
    let missing = || LaunchError::launch(format!("there is no program {}", name.display()));
    let found = found.ok_or_else(missing)?;
    check_interpreter(&found)?;
    Ok(found)
}

/// Without its interpreter, a script is not found, though it is there.
fn check_interpreter(script: &Path) -> Result<(), LaunchError> {
    let mut start = Vec::new();
    let read = File::open(script).and_then(|file| file.take(256).read_to_end(&mut start));
    // Programs that can't be read may run all the same.
    let Ok(_) = read else { return Ok(()) };
    let line = start
        .strip_prefix(b"#!")
        .and_then(|rest| rest.split(|b| *b == b'\n').next());
    let text = line.and_then(|line| std::str::from_utf8(line).ok());
    match text.and_then(|text| text.split_whitespace().next()) {
        Some(interpreter) if !Path::new(interpreter).exists() => {
            let script = script.display();
            Err(LaunchError::launch(format!(
                "{script} asks for {interpreter}, which is not there"
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
        for (name, why) in [
            ("sh", "no program"),
            ("./folder", "no program"),
            ("lost", "/no/such/interpreter"),
        ] {
            let error = find(name).unwrap_err();
            assert!(error.why.contains(why), "{name}: {error}");
        }
    }
}
