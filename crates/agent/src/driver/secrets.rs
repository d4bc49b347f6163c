//! The variables that a process gets from files of its node: `env_file` and `secrets` of its START.
//!
//! ```text
//!  START: secrets: {PASSWORD: db} ─┐
//!  policy: secrets: /etc/secrets ──┴▶ /etc/secrets/db ─ content ─▶ PASSWORD, in the environment alone
//! ```
//!
//! So the values are in no frame, no record and on no page. The node's policy names the directory. A START names files
//! directly in it, and no links, because their targets could be anywhere. The files are read at each launch.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{self, Read};
use std::os::unix::ffi::OsStringExt;
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags, openat};

use super::Refused;
use crate::tree;
use ssntp::payload::yaml::without_mark;
use ssntp_payload::Start;

/// The maximum length of a file, in bytes. The system allows 128 KiB for a variable.
const MAX_FILE: u64 = 64 * 1024;

/// The variables of the files that a START names. Of several values of a name, that of `secrets` counts, and then that
/// of the last file.
///
/// # Errors
/// A file that cannot be read, is too long or is not as expected: its name, and the line. No content is repeated.
pub(super) fn variables(
    start: &Start,
    directory: Option<&Path>,
) -> Result<BTreeMap<OsString, OsString>, Refused> {
    let mut variables = BTreeMap::new();
    let content = |name: &str| {
        let content = directory.map_or_else(|| Err(io::ErrorKind::NotFound.into()), |at| read(at, name));
        content.map_err(|e| Refused::launch(format!("the file {name:?} of secrets: {e}")))
    };
    for name in &start.env_file {
        for (at, line) in content(name)?.split(|byte| *byte == b'\n').enumerate() {
            let line = line.strip_suffix(b"\r").unwrap_or(line).trim_ascii_start();
            if line.is_empty() || line.starts_with(b"#") {
                continue;
            }
            let mut parts = line.splitn(2, |byte| *byte == b'=');
            let is_name = |name: &&[u8]| !name.is_empty() && !name.iter().any(u8::is_ascii_whitespace);
            let (Some(variable), Some(value)) = (parts.next().filter(is_name), parts.next()) else {
                let why = format!("the file {name:?} of secrets: line {} is not NAME=VALUE", at + 1);
                return Err(Refused::launch(why));
            };
            variables.insert(
                OsString::from_vec(variable.into()),
                OsString::from_vec(value.into()),
            );
        }
    }
    for (variable, name) in &start.secrets {
        let mut value = content(name)?;
        if value.pop_if(|last| *last == b'\n').is_some() {
            value.pop_if(|last| *last == b'\r');
        }
        variables.insert(variable.into(), OsString::from_vec(value));
    }
    Ok(variables)
}

fn read(directory: &Path, name: &str) -> io::Result<Vec<u8>> {
    if matches!(name, "" | "." | "..") || name.contains(['/', '\0']) {
        return Err(io::Error::other("it is named without a directory"));
    }
    // Opening a FIFO would wait for its other end.
    let directory = openat(CWD, directory, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    // A FIFO or a device could have any length.
    let file = tree::open_file(directory, name, OFlags::RDONLY)?;
    let mut content = Vec::new();
    file.take(MAX_FILE + 1).read_to_end(&mut content)?;
    if content.len() as u64 > MAX_FILE {
        return Err(io::Error::other(format!("it has more than {MAX_FILE} bytes")));
    }
    if content.contains(&0) {
        return Err(io::Error::other("it contains a zero byte"));
    }
    // An editor may have put a mark there, which would be a part of a name or of a password.
    let mark = content.len() - without_mark(&content).len();
    Ok(content.split_off(mark))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    fn start(env_file: &[&str], secrets: &[(&str, &str)]) -> Start {
        let pair = |(variable, name): &(&str, &str)| ((*variable).to_owned(), (*name).to_owned());
        Start {
            env_file: env_file.iter().map(|name| (*name).to_owned()).collect(),
            secrets: secrets.iter().map(pair).collect(),
            ..Start::default()
        }
    }

    #[test]
    fn a_fifo_in_place_of_the_directory_is_refused_and_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("secrets");
        rustix::fs::mkfifoat(CWD, &fifo, Mode::RWXU).unwrap();
        let (result, refused) = crossbeam_channel::bounded(1);
        let read = move || drop(result.send(variables(&start(&[], &[("P", "db")]), Some(&fifo))));
        let _read = ssntp_transport::threads::spawn("reader", read).unwrap();
        let refused = refused.recv_timeout(std::time::Duration::from_secs(60));
        let why = refused.expect("it waits for a writer").unwrap_err().why;
        assert!(why.contains("Not a directory"), "{why}");
    }

    #[test]
    fn files_become_variables_and_no_error_repeats_their_content() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::write(at("db"), "\u{feff}hunter2\r\n").unwrap();
        fs::write(at("lines"), "two\nlines\n\n").unwrap();
        fs::write(at("web.env"), "\u{feff}C=3\n# of web\n\nA=1\n  B=x=y \nA=2\r").unwrap();
        fs::write(at("bad.env"), "A=1\nhunter2\n").unwrap();
        fs::write(at("zero"), "hunter2\0").unwrap();
        fs::write(at("long"), vec![b'x'; 64 * 1024 + 1]).unwrap();
        fs::create_dir(at("dir")).unwrap();
        symlink(at("db"), at("link")).unwrap();
        let of = |start: &Start| variables(start, Some(dir.path()));
        let found = of(&start(&["web.env"], &[("P", "db"), ("L", "lines")])).unwrap();
        let found: Vec<_> = found
            .iter()
            .map(|(name, value)| (name.to_str(), value.to_str()))
            .collect();
        let expected = [
            ("A", "2"),
            ("B", "x=y "),
            ("C", "3"),
            ("L", "two\nlines\n"),
            ("P", "hunter2"),
        ];
        assert_eq!(found, expected.map(|(name, value)| (Some(name), Some(value))));
        for (name, why) in [
            ("none", "No such file"),
            ("link", "symbolic link"),
            ("dir", "not a regular file"),
            ("long", "more than"),
            ("zero", "zero byte"),
            ("../db", "without a directory"),
            ("", "without a directory"),
        ] {
            for start in [start(&[name], &[]), start(&[], &[("P", name)])] {
                let error = of(&start).unwrap_err().why;
                assert!(
                    error.contains(why) && !error.contains("hunter2"),
                    "{name}: {error}"
                );
            }
        }
        let error = of(&start(&["bad.env"], &[])).unwrap_err().why;
        for line in ["A =1", "A\t=1", "export A=1", "=1"] {
            fs::write(at("web.env"), line).unwrap();
            let why = of(&start(&["web.env"], &[])).unwrap_err().why;
            assert!(why.ends_with("line 1 is not NAME=VALUE"), "{line}: {why}");
        }
        assert_eq!(error, "the file \"bad.env\" of secrets: line 2 is not NAME=VALUE");
        assert!(variables(&start(&[], &[]), None).unwrap().is_empty());
    }
}
