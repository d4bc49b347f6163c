//! The state of a run: one line, on the supervisor's socket and in its file.
//!
//! ```text
//! {"state":"held"}
//! {"state":"running","started":{"secs_since_epoch":1769000000,"nanos_since_epoch":123000000}}
//! {"state":"ended","code":137,"signal":9,"out_of_memory":true,"started":…,"ended":…}
//! {"state":"failed","reason":"launch_failure","why":"/opt/tool: Permission denied (os error 13)"}
//! ```
//!
//! Agent and supervisor may have different versions. So a reader ignores unknown keys, and a file
//! with an unknown state counts as missing. An answer on the socket with an unknown state is an error.
//!
//! The file is made at its full length while the run is held, and later overwritten in place, so
//! that the end of the run can be written on a full disk as well. If the run has a user of its own, a
//! second line has the UID: `uid=1879048192`.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::time::SystemTime;

use rustix::fs::{AtFlags, OFlags, unlinkat};
use serde::{Deserialize, Serialize};

use super::super::{Exit, Health, Refused};
use crate::tree;

/// The length of the file, and the longest line.
pub(super) const LINE: usize = 512;
/// The longest state: it leaves room in the file for the second line.
const MAX_STATE: usize = LINE - 32;
/// The file's name in the run's directory.
const FILE: &str = "state";

/// The state of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "lowercase")]
pub(super) enum State {
    /// The program does not run yet: the agent has to write the ID of the run to disk first.
    Held,
    /// The program runs, or is just being executed.
    Running {
        started: Option<SystemTime>,
        /// `None` without a check.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        health: Option<Health>,
    },
    /// All processes of the run have ended.
    Ended(Exit),
    /// The program could not be executed.
    Failed(Refused),
}

impl State {
    /// The line, with its line end. An explanation that is too long is cut.
    pub(super) fn line(&self) -> String {
        let mut state = self.clone();
        if let Some(why) = state.why() {
            let plain = why.replace(char::is_control, " ");
            *why = plain.chars().take(MAX_STATE).collect();
        }
        loop {
            // Only a time before 1970 fails, which no kernel's clock shows. Readers would ignore the
            // empty line.
            let mut line = serde_json::to_string(&state).unwrap_or_default();
            match state.why() {
                // Some characters are escaped with two bytes, so only the encoded line shows its
                // length.
                Some(why) if line.len() > MAX_STATE => drop(why.pop()),
                _ => {
                    line.push('\n');
                    return line;
                }
            }
        }
    }

    /// The explanation or output, which may be of any length.
    fn why(&mut self) -> Option<&mut String> {
        match self {
            Self::Failed(error) => Some(&mut error.why),
            Self::Ended(exit) => Some(&mut exit.last_lines),
            Self::Running {
                health: Some(health), ..
            } => Some(&mut health.why),
            _ => None,
        }
    }

    /// Reads the first line of a text.
    pub(super) fn parse(line: &str) -> Option<Self> {
        serde_json::from_str(line.lines().next()?).ok()
    }

    /// Reads the file in a run's directory. A user who can write there could have replaced it, so
    /// only a regular file is read, and only up to the length of a line.
    pub(super) fn read(run: impl AsFd) -> Option<Self> {
        Self::parse(&content(run)?)
    }
}

/// The UID that only the run in this directory has. If its supervisor was killed, the processes of
/// the run are found by this UID.
pub(super) fn own_uid(run: impl AsFd) -> Option<u32> {
    content(run)?
        .lines()
        .nth(1)?
        .trim_end()
        .strip_prefix("uid=")?
        .parse()
        .ok()
}

fn content(run: impl AsFd) -> Option<String> {
    let file = tree::open_file(run, FILE, OFlags::RDONLY).ok()?;
    let mut text = Vec::with_capacity(LINE);
    file.take(LINE as u64).read_to_end(&mut text).ok()?;
    String::from_utf8(text).ok()
}

/// The state file of a run, which its supervisor writes.
#[derive(Debug)]
pub(super) struct StateFile {
    file: File,
    own_uid: Option<u32>,
}

impl StateFile {
    /// Makes the file, in place of that of a former run.
    pub(super) fn create(run: impl AsFd, state: &State, own_uid: Option<u32>) -> io::Result<Self> {
        let _ = unlinkat(&run, FILE, AtFlags::empty());
        let file = tree::open_file(run, FILE, OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL)?;
        let file = Self { file, own_uid };
        file.write(state)?;
        Ok(file)
    }

    pub(super) fn write(&self, state: &State) -> io::Result<()> {
        let mut line = state.line();
        if let Some(uid) = self.own_uid {
            line.push_str(&format!("uid={uid}\n"));
        }
        let mut line = line.into_bytes();
        // The line always has the full length, so that overwriting it needs no space on the disk.
        line.resize(LINE - 1, b' ');
        line.push(b'\n');
        self.file.write_all_at(&line, 0)
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::super::super::Reason;
    use super::*;
    use ssntp_payload::HealthState;

    #[test]
    fn a_line_is_read_as_it_was_written() {
        let at = |millis| UNIX_EPOCH.checked_add(Duration::from_millis(millis));
        let killed = Exit {
            code: Some(137),
            signal: Some(9),
            out_of_memory: true,
            started: at(1_769_000_000_123),
            ended: at(1_769_000_004_567),
            last_lines: "no such file / stop".into(),
        };
        for state in [
            State::Held,
            State::Running {
                started: at(5),
                health: None,
            },
            State::Running {
                started: at(5),
                health: Some(Health {
                    state: HealthState::Unhealthy,
                    since: UNIX_EPOCH,
                    why: "port 80: refused".into(),
                }),
            },
            State::Ended(killed.clone()),
            State::Ended(Exit::default()),
            State::Failed(Refused::new(Reason::FullCn, "a b=c why=d")),
        ] {
            let line = state.line();
            assert!(line.len() < LINE && line.ends_with('\n'), "{line}");
            assert_eq!(State::parse(&line), Some(state));
        }
        for text in ["ä", "\"", "a\n"] {
            let line = State::Failed(Refused::launch(text.repeat(LINE))).line();
            assert!(line.len() < LINE && line.lines().count() == 1, "{line}");
            assert!(matches!(State::parse(&line), Some(State::Failed(_))));
            let health = Some(Health {
                state: HealthState::Starting,
                since: UNIX_EPOCH,
                why: text.repeat(LINE),
            });
            let last_lines = text.repeat(LINE);
            let line = State::Ended(Exit {
                last_lines,
                ..killed.clone()
            })
            .line();
            assert!(line.len() < LINE && line.lines().count() == 1, "{line}");
            assert!(matches!(State::parse(&line), Some(State::Ended(exit)) if exit.code == Some(137)));
            let started = at(5);
            let line = State::Running { started, health }.line();
            assert!(line.len() < LINE && line.lines().count() == 1, "{line}");
            assert!(matches!(
                State::parse(&line),
                Some(State::Running { health: Some(_), .. })
            ));
        }
    }

    #[test]
    fn unknown_keys_and_states_are_ignored() {
        let line = "{\"state\":\"ended\",\"mood\":\"good\",\"code\":3}\nmore";
        assert_eq!(State::parse(line), Some(State::Ended(Exit::code(3))));
        for junk in ["", "\n", "{\"state\":\"dreaming\"}", "\0\0\0", "{}", "[", "3"] {
            assert_eq!(State::parse(junk), None, "{junk:?}");
        }
    }

    /// The cases: a file of terabytes, a pipe without a writer, a link.
    #[test]
    fn only_a_regular_file_is_read_and_only_one_line_of_it() {
        let dir = tempfile::tempdir().unwrap();
        let run = File::open(dir.path()).unwrap();
        let path = dir.path().join(FILE);
        assert_eq!(State::read(&run), None);
        let file = StateFile::create(&run, &State::Held, Some(7)).unwrap();
        assert_eq!(State::read(&run), Some(State::Held));
        file.write(&State::Ended(Exit::code(3))).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().len(), LINE as u64);
        assert_eq!(own_uid(&run), Some(7));
        assert_eq!(State::read(&run), Some(State::Ended(Exit::code(3))));

        File::options()
            .write(true)
            .open(&path)
            .unwrap()
            .set_len(1 << 40)
            .unwrap();
        assert_eq!(State::read(&run), Some(State::Ended(Exit::code(3))));
        std::fs::rename(&path, dir.path().join("other")).unwrap();
        std::os::unix::fs::symlink("other", &path).unwrap();
        assert_eq!(State::read(&run), None);
        std::fs::remove_file(&path).unwrap();
        rustix::fs::mkfifoat(&run, FILE, rustix::fs::Mode::RWXU).unwrap();
        assert_eq!(State::read(&run), None);
        // A supervisor replaces the link by a file of its own.
        StateFile::create(&run, &State::Held, Some(7)).unwrap();
        assert_eq!(State::read(&run), Some(State::Held));
    }
}
