//! Instances that are processes of this machine: `vm_type: process`, an
//! extension of this crate.
//!
//! ```yaml
//! start:
//!   instance_uuid: 0f7a5a1e-3c55-4a0b-9d3c-6f1f2f9a1001
//!   vm_type: process
//!   persistence: host
//!   requirements:
//!     mem_mb: 64
//!     vcpus: 1
//!   command:
//!   - sh
//!   - -c
//!   - echo "hello from $SSNTP_INSTANCE"; sleep 3600
//!   env:
//!     GREETING: hello
//!   dir: /tmp
//! ```
//!
//! The program is looked for as a shell does, in the `PATH` of `env` or else of the agent. It runs in
//! `dir`, which may be relative to the instance's own directory but may not lead out of it; without
//! `dir` it runs in the instance's own directory. Its standard input is empty. Its output goes to
//! pipes, and its supervisor keeps the last 16 MB of each (`log_mb`) in `stdout.log` and
//! `stderr.log`. The program can gain no privileges by executing other programs. Its environment is
//! `env`, what `env_file` and `secrets` name (`secrets.rs`), and
//!
//! | variable | |
//! |---|---|
//! | `PATH`, `LANG`, `TZ` | the agent's own |
//! | `HOME`, `SSNTP_DIR` | the instance's own directory |
//! | `SSNTP_INSTANCE`, `SSNTP_TENANT` | the UUIDs |
//! | `SSNTP_VOLUMES` | a directory in which each attached volume is a link, named by its UUID |
//!
//! On a node with tenants' networks, an instance whose START names a subnet has a network namespace
//! of its own with one interface, `eth0` (the crate `ssntp-network`).
//!
//! The answer is `launch_failure` if the program or the directory does not exist, or the program
//! can't be executed. A program that ran, however short, was started: its instance is then
//! `exited`, with an exit code.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Component, Path, PathBuf};

use rustix::fs::OFlags;

use super::secrets;
use super::supervisor::launch_order::{Exec, Program};
use super::{InstanceDir, Launch, Reason, Refused, User};
use ssntp_payload::{Start, VmType};

/// The `PATH` of programs if the agent itself has none.
pub const DEFAULT_PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// Checks that a START is for a process.
pub(super) fn check(start: &Start) -> Result<(), Refused> {
    if start.vm_type != VmType::Process {
        let kind = match start.vm_type.as_str() {
            "" => "qemu",
            kind => kind,
        };
        return Err(Refused::launch(format!("this agent runs processes, not {kind}")));
    }
    check_texts(start)
}

/// The program of an instance.
pub(super) fn program<'a>(launch: &Launch<'a>) -> Result<Program<'a>, Refused> {
    let (place, start) = (launch.place, &launch.payload.start);
    let work = place.work();
    let Some((program, arguments)) = start.command.split_first() else {
        return Err(Refused::new(Reason::InvalidData, "there is no command"));
    };
    let files = secrets::variables(start, launch.policy.secrets.as_deref())?;
    let mut env = environment(place, start, files);
    if let Some(wire) = launch.network {
        // The START's own variables win.
        let of_node = wire.prepare(place, launch.user)?.into_iter();
        env.extend(of_node.filter(|(name, _)| name.to_str().is_none_or(|n| !start.env.contains_key(n))));
    }
    let exec = Exec {
        program: program.into(),
        arguments: arguments.iter().map(OsString::from).collect(),
        env: env.into_iter().collect(),
        dir: work.join(&start.dir).into(),
        user: launch.user,
        within: within(launch.policy.directories.as_deref(), &work),
        group: None,
    };
    Ok(Program {
        place,
        exec,
        mem_mb: launch.policy.mem_mb(start.requirements.mem_mb),
        vcpus: start.requirements.vcpus,
        pids: launch.policy.pids,
        network: launch.network,
        check: start.health.clone(),
        address: launch.network.and(start.networking.private_ip.parse().ok()),
    })
}

/// Refuses texts that cannot be passed to a process.
fn check_texts(start: &Start) -> Result<(), Refused> {
    let refuse = |why: String| Err(Refused::new(Reason::InvalidData, why));
    let zero = |text: &String| text.contains('\0');
    if start.command.iter().any(zero) || zero(&start.dir) {
        // The system ends strings at a zero byte, so the text would be cut.
        return refuse("a zero byte in command or dir".into());
    }
    if start.command.first().is_none_or(String::is_empty) {
        return refuse("there is no command".into());
    }
    // An absolute directory is checked by the policy.
    let dir = Path::new(&start.dir);
    if dir.is_relative() && dir.components().any(|part| part == Component::ParentDir) {
        return refuse(format!("{:?} leads out of the instance's directory", start.dir));
    }
    for (key, value) in &start.env {
        if key.is_empty() || key.contains('=') || zero(key) || zero(value) {
            return refuse(format!("{key:?} is not a valid name of an environment variable"));
        }
    }
    Ok(())
}

fn environment(
    place: &InstanceDir,
    start: &Start,
    files: BTreeMap<OsString, OsString>,
) -> BTreeMap<OsString, OsString> {
    let mut env = BTreeMap::from([("PATH".into(), DEFAULT_PATH.into())]);
    for key in ["PATH", "LANG", "TZ"] {
        env.extend(std::env::var_os(key).map(|value| (key.into(), value)));
    }
    env.extend(
        [
            ("HOME", place.work().into_os_string()),
            ("SSNTP_DIR", place.work().into_os_string()),
            ("SSNTP_VOLUMES", place.volumes().into_os_string()),
            ("SSNTP_INSTANCE", place.instance().to_string().into()),
            ("SSNTP_TENANT", start.tenant_uuid.as_str().into()),
        ]
        .map(|(key, value)| (OsString::from(key), value)),
    );
    env.extend(files);
    // The START's variables come last and win.
    env.extend(start.env.iter().map(|(key, value)| (key.into(), value.into())));
    env
}

/// The directories that may contain the working directory, without links in their paths. A
/// directory that does not exist is left out, because it contains none.
fn within(directories: Option<&[PathBuf]>, work: &Path) -> Option<Vec<OsString>> {
    let all = directories?.iter().map(PathBuf::as_path).chain([work]);
    Some(
        all.filter_map(|dir| Some(fs::canonicalize(dir).ok()?.into()))
            .collect(),
    )
}

/// Gives a file to an instance's user and closes it to others. It does not follow links,
/// and refuses a file that has another name elsewhere.
///
/// # Errors
/// The system refuses, or the file has another name.
pub fn give(path: &Path, user: User) -> io::Result<()> {
    let mut options = OpenOptions::new();
    // NONBLOCK, because opening a FIFO would wait for its writer.
    options.custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed());
    let file = options.read(true).open(path)?;
    let metadata = file.metadata()?;
    let is_own = metadata.is_file() && metadata.nlink() == 1;
    if !is_own {
        return Err(io::Error::other("it is not a file of its own"));
    }
    // Other users may be in its group, so the group gets no access.
    file.set_permissions(Permissions::from_mode(0o600))?;
    fchown(&file, Some(user.uid), Some(user.gid))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_that_cannot_be_passed_to_a_process_are_invalid() {
        let good = Start {
            vm_type: VmType::Process,
            command: vec!["true".into()],
            ..Start::default()
        };
        let fault = |change: &dyn Fn(&mut Start)| {
            let mut start = good.clone();
            change(&mut start);
            check_texts(&start).map_err(|e| e.reason)
        };
        assert_eq!(fault(&|_| {}), Ok(()));
        let rows: [&dyn Fn(&mut Start); 8] = [
            &|s| s.dir = "../../..".into(),
            &|s| s.dir = "a/../..".into(),
            &|s| s.command.push("a\0b".into()),
            &|s| s.command = vec![],
            &|s| s.command = vec![String::new()],
            &|s| s.dir = "\0".into(),
            &|s| drop(s.env.insert("a=b".into(), String::new())),
            &|s| drop(s.env.insert(String::new(), String::new())),
        ];
        for change in rows {
            assert_eq!(fault(change), Err(Reason::InvalidData));
        }
    }
}
