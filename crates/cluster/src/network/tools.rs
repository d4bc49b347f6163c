//! `ip`, `nft` and `nsenter` as child processes, each with a time limit.

use std::convert::Infallible;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::process::{Child, Command, Stdio};
use std::thread::{self, ScopedJoinHandle};
use std::time::Duration;

use crossbeam_channel::{RecvTimeoutError, Sender, bounded};
use serde::Deserialize;

/// How long one call may take. A batch for a thousand tenants takes some three seconds here.
const LIMIT: Duration = Duration::from_secs(30);
/// The most that is read of what a tool prints.
const MOST: u64 = 64 << 20;

/// Runs lines of `ip` as one batch, which ends at the first line that fails. An empty batch
/// does nothing.
pub(crate) fn ip(batch: &str) -> Result<(), String> {
    batch_of(&mut Command::new("ip"), "", batch)
}

/// As [`ip`], but goes on after a line that fails. Devices that are gone are no error.
pub(crate) fn ip_anyway(batch: &str) -> Result<(), String> {
    match batch_of(&mut Command::new("ip"), "-force", batch) {
        Err(why) if why.split("; ").all(is_about_absence) => Ok(()),
        other => other,
    }
}

/// Runs a batch in the network namespace that this file is.
pub(crate) fn ip_within(namespace: &File, batch: &str) -> Result<(), String> {
    let (own, fd) = (std::process::id(), namespace.as_raw_fd());
    let mut command = Command::new("nsenter");
    command.arg(format!("--net=/proc/{own}/fd/{fd}")).arg("ip");
    batch_of(&mut command, "", batch)
}

/// Runs lines of `bridge` as one batch.
pub(crate) fn bridge(batch: &str) -> Result<(), String> {
    batch_of(&mut Command::new("bridge"), "", batch)
}

/// The elements of a set or a map, as its definition has them.
pub(crate) fn elements(all: impl Iterator<Item = String>) -> String {
    let all: Vec<_> = all.collect();
    match all.is_empty() {
        true => String::new(),
        false => format!("elements = {{ {} }}", all.join(", ")),
    }
}

/// The JSON that a tool of iproute2 prints with `-j`.
pub(crate) fn json<T: for<'de> Deserialize<'de>>(tool: &str, arguments: &[&str]) -> Result<T, String> {
    let mut command = Command::new(tool);
    let printed = run(command.arg("-j").args(arguments), "")?;
    // An empty list is printed as nothing at all by some versions.
    let text = match printed.trim_ascii() {
        b"" => b"[]",
        text => text,
    };
    serde_json::from_slice(text).map_err(|e| format!("{tool} {}: {e}", arguments.join(" ")))
}

/// Carries out commands of nft as one transaction: all of them, or none.
pub(crate) fn nft(commands: &str) -> Result<(), String> {
    run(Command::new("nft").args(["-f", "-"]), commands).map(drop)
}

/// Whether nft and the kernel would take these commands; nothing is changed.
pub(crate) fn nft_check(commands: &str) -> Result<(), String> {
    run(Command::new("nft").args(["-c", "-f", "-"]), commands).map(drop)
}

fn is_about_absence(line: &str) -> bool {
    ["Cannot find device", "No such device", "Command failed"]
        .iter()
        .any(|known| line.contains(known))
}

fn batch_of(command: &mut Command, how: &str, batch: &str) -> Result<(), String> {
    if batch.is_empty() {
        return Ok(());
    }
    let how = Some(how).filter(|how| !how.is_empty());
    run(command.args(how).args(["-batch", "-"]), batch).map(drop)
}

/// Runs a tool to its end. Gives what it prints; after a failure, what it says about it.
fn run(command: &mut Command, input: &str) -> Result<Vec<u8>, String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let failed = |e: io::Error| format!("{name}: {e}");
    // The tools need nothing else of this program's environment, which has settings of its
    // allocator.
    let path = std::env::var_os("PATH").map(|path| ("PATH", path));
    let mut child = command
        .env_clear()
        .envs(path)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| match e.kind() {
            io::ErrorKind::NotFound => format!("the program {name} is not installed"),
            _ => failed(e),
        })?;
    let (printed, said) = exchange(&mut child, input).map_err(failed)?;
    let status = child.wait().map_err(failed)?;
    if status.success() {
        return Ok(printed);
    }
    let said = String::from_utf8_lossy(&said);
    match said.trim() {
        "" => Err(format!("{name}: {status}")),
        // Errors are shown in one line.
        said => Err(said.lines().collect::<Vec<_>>().join("; ")),
    }
}

/// Writes the input and reads both outputs side by side, so that no pipe fills up. A tool that
/// does not end in time is killed, which ends the threads.
fn exchange(child: &mut Child, input: &str) -> io::Result<(Vec<u8>, Vec<u8>)> {
    let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    thread::scope(|scope| {
        let thread = |name: &str| thread::Builder::new().name(name.into());
        let (done, ended) = bounded::<Infallible>(0);
        let end = done.clone();
        let writer = thread("ssntp-tool-in").spawn_scoped(scope, move || {
            let _end = end;
            // A tool that ends before it has read everything says why on its standard error.
            let _ = stdin.map(|mut stdin| stdin.write_all(input.as_bytes()));
        });
        let end = done.clone();
        let out = thread("ssntp-tool-out").spawn_scoped(scope, move || read(stdout, end));
        let err = thread("ssntp-tool-err").spawn_scoped(scope, move || read(stderr, done));
        let late = ended.recv_timeout(LIMIT) == Err(RecvTimeoutError::Timeout);
        let failed = writer.is_err() || out.is_err() || err.is_err();
        if late || failed {
            child.kill()?;
            child.wait()?;
        }
        if late {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "it does not end"));
        }
        writer?;
        let joined = |read: ScopedJoinHandle<'_, Vec<u8>>| read.join().unwrap_or_default();
        Ok((joined(out?), joined(err?)))
    })
}

/// Reads to the end; what was read before an error is still of use.
fn read(from: Option<impl Read>, _end: Sender<Infallible>) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Some(from) = from {
        let _ = from.take(MOST).read_to_end(&mut bytes);
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tool_gets_nothing_of_the_environment_but_the_path() {
        let printed = run(Command::new("env").env("MALLOC_TRIM_THRESHOLD_", "131072"), "").unwrap();
        let printed = String::from_utf8(printed).unwrap();
        assert!(
            printed.starts_with("PATH=") && printed.lines().count() == 1,
            "{printed}"
        );
    }
}
