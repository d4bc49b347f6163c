//! `ip`, `nft` and `nsenter` as child processes, each with a time limit.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::process::Command;
use std::time::Duration;

use serde::Deserialize;
use ssntp_agent::tool::{self, Bounds};
use ssntp_transport::{Cancel, deadline};

/// The maximum number of commands in a batch of [`anyway`].
const BATCH: usize = 1000;
/// The time limit for one call. A batch for a thousand tenants needs some three seconds.
const LIMIT: Duration = Duration::from_secs(30);
/// The maximum number of bytes that are read of a tool's output.
const MOST: u64 = 64 << 20;

/// Runs commands of `ip` as one batch, which ends at the first command that fails. An empty batch is
/// not run.
pub(crate) fn ip(batch: &str) -> Result<(), String> {
    batch_of(&mut Command::new("ip"), batch)
}

/// Runs a batch of `ip` in the network namespace of this file.
pub(crate) fn ip_within(namespace: &File, batch: &str) -> Result<(), String> {
    let mut command = Command::new("nsenter");
    command.arg(format!("--net={}", path_of(namespace))).arg("ip");
    batch_of(&mut command, batch)
}

/// The path by which a tool finds this open namespace.
pub(crate) fn path_of(namespace: &File) -> String {
    format!("/proc/{}/fd/{}", std::process::id(), namespace.as_raw_fd())
}

/// The elements of a set or a map, in the syntax of its definition.
pub(crate) fn elements(all: impl Iterator<Item = String>) -> String {
    let all: Vec<_> = all.collect();
    if all.is_empty() {
        String::new()
    } else {
        format!("elements = {{ {} }}", all.join(", "))
    }
}

/// The JSON that a tool of iproute2 prints with `-j`.
pub(crate) fn json<T: for<'de> Deserialize<'de>>(tool: &str, arguments: &[&str]) -> Result<T, String> {
    let mut command = Command::new(tool);
    let printed = run(command.arg("-j").args(arguments), "")?;
    // Some versions print no output for an empty list.
    let text = match printed.trim_ascii() {
        b"" => b"[]",
        text => text,
    };
    serde_json::from_slice(text).map_err(|e| format!("{tool} {}: {e}", arguments.join(" ")))
}

/// Carries out commands of nft as one transaction. If one fails, the kernel is unchanged.
pub(crate) fn nft(commands: &str) -> Result<(), String> {
    run(Command::new("nft").args(["-f", "-"]), commands).map(drop)
}

/// Checks that nft and the kernel accept these commands, without carrying them out.
pub(crate) fn nft_check(commands: &str) -> Result<(), String> {
    run(Command::new("nft").args(["-c", "-f", "-"]), commands).map(drop)
}

/// Runs commands of `ip` or `bridge` in batches, which go on after a command that fails. Errors about
/// missing devices are ignored.
pub(crate) fn anyway(tool: &str, batch: &str) -> Result<(), String> {
    const ABSENCE: [&str; 3] = ["Cannot find device", "No such device", "Command failed"];
    let is_about_absence = |line: &str| ABSENCE.iter().any(|known| line.contains(known));
    // A node may have thousands of devices. The time limit of each batch must be enough for it, also
    // on a host whose processors are busy.
    let lines: Vec<_> = batch.lines().collect();
    let ran = lines.chunks(BATCH).map(|lines| {
        let ran = batch_of(Command::new(tool).arg("-force"), &lines.join("\n"));
        ran.or_else(|why| {
            if why.split("; ").all(is_about_absence) {
                Ok(())
            } else {
                Err(why)
            }
        })
    });
    ran.fold(Ok(()), Result::and)
}

fn batch_of(command: &mut Command, batch: &str) -> Result<(), String> {
    match batch {
        "" => Ok(()),
        batch => run(command.args(["-batch", "-"]), batch).map(drop),
    }
}

/// Runs a tool to its end, and returns its output. The error is the tool's error output in one line.
fn run(command: &mut Command, input: &str) -> Result<Vec<u8>, String> {
    let name = command.get_program().to_string_lossy().into_owned();
    // The tools need only the path. Other variables, such as settings of the allocator, are meant for
    // this program.
    let path = std::env::var_os("PATH").map(|path| ("PATH", path));
    let bounds = Bounds {
        until: deadline(LIMIT),
        cancel: &Cancel::default(),
    };
    let ran = tool::run(command.env_clear().envs(path), input, MOST, bounds);
    let (status, [output, errors]) = ran.map_err(|e| match e.kind() {
        io::ErrorKind::NotFound => format!("the program {name} is not installed"),
        _ => format!("{name}: {e}"),
    })?;
    if status.success() {
        return Ok(output);
    }
    match String::from_utf8_lossy(&errors).trim() {
        "" => Err(format!("{name}: {status}")),
        errors => Err(errors.lines().collect::<Vec<_>>().join("; ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tool_gets_only_the_path_of_the_environment() {
        let printed = run(Command::new("env").env("MALLOC_TRIM_THRESHOLD_", "131072"), "").unwrap();
        let printed = String::from_utf8(printed).unwrap();
        assert!(
            printed.starts_with("PATH=") && printed.lines().count() == 1,
            "{printed}"
        );
    }
}
