//! The settings of a daemon: from its flags, from the environment, and from the file
//! of `--config-file`.
//!
//! ```text
//!  flags ─────────▶ clap ─┬──────────────────────────▶ clap ─▶ ArgMatches
//!  environment ──▶        │ without a value in either    ▲
//!  FILE ─▶ file ─▶ flags: known? value valid? ─▶ as words┘
//! ```
//!
//! Each key of the file is a long flag of the daemon, without its dashes. There is no
//! list of keys: clap's description of the command line has them, their types and
//! their dependencies. A flag overrides the environment, the environment overrides the
//! file, and the file overrides a default.
//!
//! | file | holds |
//! |---|---|
//! | `file` | the file as entries with their lines and columns |
//! | `flags` | the flags of a daemon, and the check of an entry by clap |
//! | `problems` | errors in the files that settings name |

mod file;
mod flags;
mod problems;

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};

use clap::builder::Resettable;
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command, FromArgMatches};
use ssntp::payload::yaml::{self, Position};

use self::file::Entry;
pub use self::flags::Flags;
pub use self::flags::{choices, is_repeated, is_switch};
pub use self::problems::Problems;
use crate::failure::Failure;

/// The flag of a daemon that names its file.
#[derive(Clone, Debug, clap::Args)]
pub struct ConfigFile {
    /// Read settings from this YAML file, with one key per flag, as in
    /// `json: true`; flags and environment variables override it; see
    /// `ssntp config`
    #[arg(long, value_name = "FILE")]
    config_file: Option<PathBuf>,
}

/// The id of that flag among clap's arguments.
const CONFIG_FILE: &str = "config_file";

/// The flag of all daemons that says what is logged. Each reload puts it in force.
pub const LOG: &str = "log";
/// The keys that keep clients or frames out. By default they keep out none, so a reload that
/// finds one of them missing warns.
const PROTECTING: [&str; 4] = ["allow", "crl", "crl-strict", "filter"];

/// The settings of a daemon, with their origins. Empty for other subcommands.
#[derive(Debug, Default)]
pub struct Settings {
    /// The whole command line as clap knows it, and as it was given.
    command: Command,
    words: Vec<OsString>,
    file: Option<PathBuf>,
    values: Vec<Setting>,
}

/// The value of a flag of a daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    pub key: String,
    pub values: Vec<String>,
    pub origin: Origin,
}

/// The origin of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    Flag,
    Environment,
    File(Position),
    Default,
}

/// An error in a file, and where it is.
#[derive(Clone, Debug)]
pub struct Problem {
    pub at: Option<Position>,
    pub what: String,
}

/// The reason why a command line is refused.
#[derive(Debug)]
pub enum Invalid {
    /// The command line is wrong, or asks for help.
    Words(Box<clap::Error>),
    File {
        path: PathBuf,
        /// The problems, of which there is at least one.
        problems: Vec<Problem>,
        /// The settings without the entries that are wrong, if they are valid.
        rest: Option<Box<Read>>,
    },
}

/// The maximum number of problems that are reported: a file with more is not a settings file.
const MOST_PROBLEMS: usize = 100;

/// The definition of a command line whose help names environment variables without their values,
/// because a user may paste the help into a report. An empty variable counts as not set.
pub fn with_environment(command: Command) -> Command {
    fn of_env(arg: Arg) -> Arg {
        let value = arg.get_env().and_then(std::env::var_os);
        if value.is_some_and(|value| value.is_empty()) {
            arg.env(Resettable::Reset)
        } else {
            arg.hide_env_values(true)
        }
    }
    command.mut_args(of_env).mut_subcommands(with_environment)
}

/// The matches of clap, and the settings of a daemon.
pub type Read = (ArgMatches, Settings);

/// Reads a command line as `command` defines it, and the file that it names.
pub fn read(command: &Command, words: &[OsString]) -> Result<Read, Invalid> {
    let whole = command.clone().try_get_matches_from(words);
    let daemon = match &whole {
        Ok(matches) => CommandLine::of(command, words, matches),
        // The file may set the flag that is missing on the command line.
        Err(e) if e.kind() == ErrorKind::MissingRequiredArgument => {
            // Read without errors only to learn the name of the file. It is read again below.
            let rest = command.clone().ignore_errors(true).try_get_matches_from(words);
            rest.ok().and_then(|rest| CommandLine::of(command, words, &rest))
        }
        Err(_) => None,
    };
    let Some(daemon) = daemon else {
        return Ok((whole?, Settings::default()));
    };
    match daemon.file.clone() {
        Some(path) => daemon.with_file(&path),
        None => daemon.settle(&[]).map_err(Invalid::from),
    }
}

/// The matches of the innermost subcommand.
fn innermost(matches: &ArgMatches) -> &ArgMatches {
    matches
        .subcommand()
        .map_or(matches, |(_, inner)| innermost(inner))
}

/// A daemon's command line, before its file is read.
struct CommandLine<'a> {
    command: &'a Command,
    words: &'a [OsString],
    flags: Flags,
    file: Option<PathBuf>,
    /// The flags and environment variables that are given.
    given: ArgMatches,
}

impl<'a> CommandLine<'a> {
    /// None for the other subcommands, which have no such file.
    fn of(command: &'a Command, words: &'a [OsString], matches: &ArgMatches) -> Option<Self> {
        let (mut names, mut given) = (Vec::new(), matches);
        while let Some((name, inner)) = given.subcommand() {
            names.push(name);
            given = inner;
        }
        // This fails for a subcommand that has no such flag.
        let file = given.try_get_one::<PathBuf>(CONFIG_FILE).ok()?.cloned();
        let (flags, given) = (Flags::of(command, &names)?, given.clone());
        Some(Self {
            command,
            words,
            flags,
            file,
            given,
        })
    }

    fn with_file(&self, path: &Path) -> Result<Read, Invalid> {
        let mut problems = Vec::new();
        let mut taken = Vec::new();
        for entry in file::read(path, &mut problems) {
            match self.flags.words(&entry) {
                _ if problems.len() >= MOST_PROBLEMS => break,
                Ok(words) => taken.push((entry, words)),
                Err(wrong) => problems.extend(wrong),
            }
        }
        // A flag or a variable overrides an entry, which must be valid all the same.
        taken.retain(|(entry, _)| !self.is_given(&entry.key));
        // Also if there are problems: `ssntp config check` then tests the files that the other
        // settings name.
        let rest = self.settle(&taken);
        problems.sort_by_key(|problem| problem.at.map(|at| (at.line, at.column)));
        match rest {
            Ok(settled) if problems.is_empty() => Ok(settled),
            Err(e) if problems.is_empty() => Err(Invalid::File {
                path: path.to_owned(),
                problems: vec![explained(&e, &taken)],
                rest: None,
            }),
            rest => Err(Invalid::File {
                path: path.to_owned(),
                problems,
                rest: rest.ok().map(Box::new),
            }),
        }
    }

    fn is_given(&self, key: &str) -> bool {
        let named = self.flags.named(key);
        let source = named.and_then(|arg| self.given.value_source(arg.get_id().as_str()));
        matches!(source, Some(ValueSource::CommandLine | ValueSource::EnvVariable))
    }

    /// The settings of the command line with these entries behind it.
    fn settle(&self, entries: &[(Entry, Vec<OsString>)]) -> Result<Read, clap::Error> {
        let more = entries.iter().flat_map(|(_, words)| words);
        // Words behind a bare `--` are no flags, so the entries stand before it.
        let dashes = self.words.iter().position(|word| word == "--");
        let (flags, rest) = self.words.split_at(dashes.unwrap_or(self.words.len()));
        let words = flags.iter().chain(more).chain(rest);
        let matches = self.command.clone().try_get_matches_from(words)?;
        let leaf = innermost(&matches);
        let value = |(key, arg): (&str, &Arg)| {
            let entry = entries.iter().find(|(entry, _)| entry.key == key);
            let id = arg.get_id().as_str();
            let origin = match (leaf.value_source(id)?, entry) {
                // Entries stand on this command line as words. A key that the user gave as a flag
                // has no entry any more.
                (ValueSource::CommandLine, Some((entry, _))) => Origin::File(entry.at),
                (ValueSource::CommandLine, None) => Origin::Flag,
                (ValueSource::EnvVariable, _) => Origin::Environment,
                _ => Origin::Default,
            };
            let raw = leaf.get_raw(id)?;
            Some(Setting {
                key: key.to_owned(),
                values: raw.map(|value| value.to_string_lossy().into_owned()).collect(),
                origin,
            })
        };
        let settings = Settings {
            command: self.command.clone(),
            words: self.words.to_vec(),
            file: self.file.clone(),
            values: self.flags.all().filter_map(value).collect(),
        };
        Ok((matches, settings))
    }
}

impl Settings {
    /// The flags that have a value.
    pub fn values(&self) -> &[Setting] {
        &self.values
    }

    /// The file, if there is one.
    pub fn file(&self) -> Option<PathBuf> {
        self.file.clone()
    }

    fn setting(&self, key: &str) -> Option<&Setting> {
        self.values.iter().find(|setting| setting.key == key)
    }

    /// The value of a key that has one value.
    pub fn value(&self, key: &str) -> Option<&str> {
        self.setting(key)?.values.first().map(String::as_str)
    }

    /// The position of a key in the file.
    pub fn position(&self, key: &str) -> Option<Position> {
        match self.setting(key)?.origin {
            Origin::File(at) => Some(at),
            _ => None,
        }
    }

    /// Reads the file again, if there is one, and gives the daemon's flags with it. To
    /// be [taken](Self::take) once they are in force.
    pub fn read_again<A: FromArgMatches>(&self) -> Result<Option<(A, Self)>, Failure> {
        if self.file.is_none() {
            return Ok(None);
        }
        let (matches, settings) = read(&self.command, &self.words).map_err(|invalid| invalid.failure())?;
        let args = A::from_arg_matches(innermost(&matches)).map_err(|e| Invalid::from(e).failure())?;
        Ok(Some((args, settings)))
    }

    /// Notes that the new values of these keys are in force, and says in the log which have
    /// changed. If other keys have changed, it says that they need a restart.
    pub fn take(&mut self, now: Self, keys: &[&str]) {
        let Some(file) = self.file() else { return };
        let (changed, waiting) = self.take_of(now, keys);
        for change in changed {
            log::warn!("{}: {change}", file.display());
        }
        if !waiting.is_empty() {
            let (file, waiting) = (file.display(), waiting.join(", "));
            log::warn!("{file}: changed settings that need a restart: {waiting}");
        }
    }

    /// The changes that are in force, in words, and the keys whose new values are not.
    fn take_of(&mut self, now: Self, keys: &[&str]) -> (Vec<String>, Vec<String>) {
        let is_taken = |key: &str| key == LOG || keys.contains(&key);
        let said = |settings: &Self, key: &str| {
            let setting = settings.setting(key);
            setting.map_or("not set".to_owned(), |setting| setting.values.join(", "))
        };
        let mut all: Vec<&str> = (self.values.iter().chain(&now.values))
            .map(|setting| &*setting.key)
            .collect();
        all.sort_unstable();
        all.dedup();
        let (mut changed, mut waiting) = (Vec::new(), Vec::new());
        for key in all {
            let (old, new) = (said(self, key), said(&now, key));
            if old == new {
                continue;
            }
            if !is_taken(key) {
                waiting.push(key.to_owned());
                continue;
            }
            // A file that is cut short is valid, and sets less than it did.
            let is_default = now.is_default(key) && !self.is_default(key) && PROTECTING.contains(&key);
            let weaker = if is_default {
                ": this may let in what was refused before"
            } else {
                ""
            };
            changed.push(format!("{key} was {old}, and is {new} from now on{weaker}"));
        }
        self.values.retain(|setting| !is_taken(&setting.key));
        let taken = now.values.into_iter().filter(|setting| is_taken(&setting.key));
        self.values.extend(taken);
        (changed, waiting)
    }

    /// True if a key has its default, or no value at all.
    fn is_default(&self, key: &str) -> bool {
        let setting = self.setting(key);
        setting.is_none_or(|setting| setting.origin == Origin::Default)
    }
}

impl Invalid {
    /// The error of a daemon that does not start, in one line.
    pub fn failure(&self) -> Failure {
        let (path, problems) = match self {
            Self::Words(error) => return Failure::usage(first_paragraph(error)),
            Self::File { path, problems, .. } => (path, problems),
        };
        let shown = path.display();
        match &problems[..] {
            [] => Failure::usage(format!("{shown}: refused")),
            [one] => Failure::usage(one.of(path)),
            [first, more @ ..] => Failure::usage(format!(
                "{}; and {} more, which `ssntp config check` lists",
                first.of(path),
                more.len()
            )),
        }
    }
}

impl From<clap::Error> for Invalid {
    fn from(error: clap::Error) -> Self {
        Self::Words(Box::new(error))
    }
}

impl Problem {
    fn at(position: Position, what: impl Into<String>) -> Self {
        Self {
            at: Some(position),
            what: what.into(),
        }
    }

    fn of_yaml(error: &yaml::Error) -> Self {
        let what = match &*error.path() {
            "" => error.kind().to_string(),
            path => format!("{path}: {}", error.kind()),
        };
        Self {
            at: error.position(),
            what,
        }
    }

    /// `FILE:LINE:COLUMN: what`, as compilers print it.
    pub fn of(&self, path: &Path) -> String {
        let (path, what) = (path.display(), &self.what);
        match self.at {
            Some(at) => format!("{path}:{at}: {what}"),
            None => format!("{path}: {what}"),
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag => f.write_str("flag"),
            Self::Environment => f.write_str("environment"),
            Self::File(at) => write!(f, "file:{at}"),
            Self::Default => f.write_str("default"),
        }
    }
}

/// An error of clap about several entries: two that exclude each other, or one that
/// needs another.
fn explained(error: &clap::Error, entries: &[(Entry, Vec<OsString>)]) -> Problem {
    let text = first_paragraph(error);
    let names = |key: &str| {
        let flag = format!("--{key}");
        text.match_indices(&flag).any(|(at, _)| {
            let next = text[at + flag.len()..].chars().next();
            !next.is_some_and(|c| c == '-' || c.is_alphanumeric())
        })
    };
    match entries.iter().find(|(entry, _)| names(&entry.key)) {
        Some((entry, _)) => Problem::at(entry.at, format!("{}: {text}", entry.key)),
        None => Problem {
            at: None,
            what: format!("{text} (neither in this file nor on the command line)"),
        },
    }
}

/// The error itself: usage and tips follow in other paragraphs.
fn first_paragraph(error: &clap::Error) -> String {
    let text = error.to_string();
    let first = text.split("\n\n").next().unwrap_or_default();
    let lines = first.trim_start_matches("error: ").lines();
    lines.map(str::trim).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(values: &[(&str, &str)]) -> Settings {
        let values = values.iter().map(|(key, value)| Setting {
            key: (*key).to_owned(),
            values: vec![(*value).to_owned()],
            origin: Origin::Default,
        });
        Settings {
            values: values.collect(),
            ..Settings::default()
        }
    }

    #[test]
    fn a_setting_that_is_not_reloaded_needs_a_restart_each_time() {
        let mut running = of(&[("forward", "STATS=agent"), ("listen", ":1"), ("uuid", "a")]);
        let now = || of(&[("forward", "STATS=controller"), ("listen", ":2"), ("max", "3")]);
        for _ in 0..2 {
            assert_eq!(running.take_of(now(), &["forward"]).1, ["listen", "max", "uuid"]);
        }
        let (_, waiting) = running.take_of(of(&[("listen", ":1"), ("uuid", "a")]), &["forward"]);
        assert!(waiting.is_empty());
    }

    #[test]
    fn each_changed_setting_is_logged_and_a_removed_filter_is_a_warning() {
        let mut running = of(&[("filter", "spec"), ("forward", "STATS=agent")]);
        for setting in &mut running.values {
            setting.origin = Origin::File(Position { line: 1, column: 1 });
        }
        let keys = ["filter", "forward"];
        let (changed, _) = running.take_of(of(&[("forward", "STATS=controller"), ("log", "info")]), &keys);
        assert_eq!(
            changed,
            [
                "filter was spec, and is not set from now on: this may let in what was refused before",
                "forward was STATS=agent, and is STATS=controller from now on",
                "log was not set, and is info from now on",
            ]
        );
        let (changed, _) = running.take_of(of(&[("forward", "STATS=controller"), ("log", "info")]), &keys);
        assert!(changed.is_empty(), "{changed:?}");
    }
}
