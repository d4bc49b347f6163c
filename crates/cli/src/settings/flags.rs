//! The flags of a daemon as clap knows them: they are the keys of its file.

use std::ffi::{OsStr, OsString};

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, ArgAction, Command};

use super::file::{Entry, Scalar, Value};
use super::{CONFIG_FILE, Position, Problem};

/// The flags of one daemon that a file may hold: all but hidden flags, those that ask
/// for help, and the name of the file.
#[derive(Debug)]
pub(crate) struct Flags(Command);

/// One flag.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flag<'a> {
    arg: &'a Arg,
    key: &'a str,
}

impl Flags {
    /// The flags of a subcommand: its name, below the name of the one that holds it.
    pub(crate) fn of(command: &Command, names: &[&str]) -> Option<Self> {
        let mut command = command.clone();
        // Gives subcommands the global flags.
        command.build();
        let found = names
            .iter()
            .try_fold(&command, |command, name| command.find_subcommand(name));
        found.cloned().map(Self)
    }

    /// All of them, in the order of the help text.
    pub(crate) fn all(&self) -> impl Iterator<Item = Flag<'_>> {
        self.0.get_arguments().filter_map(Flag::of)
    }

    pub(super) fn named(&self, key: &str) -> Option<Flag<'_>> {
        self.all().find(|flag| flag.key == key)
    }

    /// An entry as words of the command line: none for a switch that is off.
    pub(super) fn words(&self, entry: &Entry) -> Result<Vec<OsString>, Vec<Problem>> {
        let Some(flag) = self.named(&entry.key) else {
            let like = self.like(&entry.key);
            let like = like.map_or(String::new(), |key| format!("; did you mean {key}?"));
            let what = format!("unknown key {}{like}", entry.key);
            return Err(vec![Problem::at(entry.at, what)]);
        };
        flag.words(entry).map_err(|mut wrong| {
            for problem in &mut wrong {
                problem.what = format!("{}: {}", entry.key, problem.what);
            }
            wrong
        })
    }

    /// The most similar key, as clap finds it.
    fn like(&self, key: &str) -> Option<&str> {
        let written = key.replace('_', "-").to_ascii_lowercase();
        if let Some(flag) = self.named(&written) {
            return Some(flag.key);
        }
        let asked = ["ssntp".to_owned(), format!("--{written}")];
        let error = self.0.clone().try_get_matches_from(asked).err()?;
        let Some(ContextValue::String(found)) = error.get(ContextKind::SuggestedArg) else {
            return None;
        };
        self.named(found.strip_prefix("--")?).map(|flag| flag.key)
    }
}

impl<'a> Flag<'a> {
    fn of(arg: &'a Arg) -> Option<Self> {
        let is_help = matches!(
            arg.get_action(),
            ArgAction::Help | ArgAction::HelpShort | ArgAction::HelpLong | ArgAction::Version
        );
        let key = arg.get_long()?;
        (!is_help && !arg.is_hide_set() && arg.get_id() != CONFIG_FILE).then_some(Self { arg, key })
    }

    /// Its long name.
    pub(crate) fn key(self) -> &'a str {
        self.key
    }

    pub(super) fn id(self) -> &'a str {
        self.arg.get_id().as_str()
    }

    /// The whole help text.
    pub(crate) fn help(self) -> String {
        let help = self.arg.get_long_help().or_else(|| self.arg.get_help());
        help.map(ToString::to_string).unwrap_or_default()
    }

    /// The default values.
    pub(crate) fn defaults(self) -> Vec<String> {
        let defaults = self.arg.get_default_values().iter().map(OsStr::new);
        let defaults: Vec<_> = defaults
            .map(|value| value.to_string_lossy().into_owned())
            .collect();
        match (&defaults[..], self.arg.get_value_delimiter()) {
            ([joined], Some(delimiter)) => joined.split(delimiter).map(str::to_owned).collect(),
            _ => defaults,
        }
    }

    /// The placeholders of its values in the help text.
    pub(crate) fn placeholders(self) -> Vec<String> {
        let names = self.arg.get_value_names().unwrap_or_default();
        names.iter().map(ToString::to_string).collect()
    }

    /// The values that it takes, if they are a list of words.
    pub(crate) fn choices(self) -> Vec<String> {
        let choices = self.arg.get_possible_values();
        let shown = choices.iter().filter(|choice| !choice.is_hide_set());
        shown.map(|choice| choice.get_name().to_owned()).collect()
    }

    /// The environment variable that sets it, too.
    pub(crate) fn variable(self) -> Option<String> {
        self.arg.get_env().map(|name| name.to_string_lossy().into_owned())
    }

    pub(crate) fn is_switch(self) -> bool {
        matches!(self.arg.get_action(), ArgAction::SetTrue)
    }

    /// Whether it may be given several times, and so may be a list.
    pub(crate) fn is_repeated(self) -> bool {
        matches!(self.arg.get_action(), ArgAction::Append)
    }

    fn words(self, entry: &Entry) -> Result<Vec<OsString>, Vec<Problem>> {
        let wrong = |at: Position, what: &str| Err(vec![Problem::at(at, what)]);
        let scalars = match &entry.value {
            Value::One(nothing) if nothing.is_nothing() => {
                return wrong(entry.at, "a value is missing; leave the key out for the default");
            }
            Value::One(one) if self.is_switch() => {
                return match &*one.text {
                    "true" => Ok(vec![format!("--{}", self.key).into()]),
                    "false" => Ok(Vec::new()),
                    _ => wrong(one.at, "the value must be true or false"),
                };
            }
            Value::One(one) => std::slice::from_ref(one),
            Value::Several(_) if !self.is_repeated() => {
                return wrong(entry.at, "one value is expected, not a list");
            }
            Value::Several(none) if none.is_empty() => {
                return wrong(entry.at, "the list is empty; leave the key out for the default");
            }
            Value::Several(several) => several,
        };
        let problems: Vec<_> = scalars.iter().filter_map(|scalar| self.problem(scalar)).collect();
        if !problems.is_empty() {
            return Err(problems);
        }
        // The number of values of one flag, as three of `--resolve-ident A B C`.
        let together = self.arg.get_num_args().map_or(1, |number| number.min_values());
        if together < 2 {
            let word = |scalar: &Scalar| format!("--{}={}", self.key, scalar.text).into();
            return Ok(scalars.iter().map(word).collect());
        }
        let dashed = scalars.iter().find(|scalar| scalar.text.starts_with('-'));
        if scalars.len() % together != 0 || dashed.is_some() {
            let what = format!("groups of {together} values are expected, none of which begins with a dash");
            return wrong(dashed.map_or(entry.at, |scalar| scalar.at), &what);
        }
        let texts = scalars.chunks(together).flat_map(|chunk| {
            let values = chunk.iter().map(|scalar| scalar.text.clone().into());
            std::iter::once(OsString::from(format!("--{}", self.key))).chain(values)
        });
        Ok(texts.collect())
    }

    /// The error of clap for one value.
    fn problem(self, scalar: &Scalar) -> Option<Problem> {
        let mut alone = Arg::new("value")
            .long("value")
            .action(ArgAction::Append)
            .value_parser(self.arg.get_value_parser().clone());
        if let Some(delimiter) = self.arg.get_value_delimiter() {
            alone = alone.value_delimiter(delimiter);
        }
        let command = clap::Command::new("value").no_binary_name(true).arg(alone);
        let error = command
            .try_get_matches_from([format!("--value={}", scalar.text)])
            .err()?;
        let text = &scalar.text;
        let reason = std::error::Error::source(&error).map(ToString::to_string);
        let what = match (error.kind(), reason) {
            _ if scalar.is_nothing() || text.is_empty() => "a value is empty".to_owned(),
            (ErrorKind::InvalidValue, _) => format!("{text:?} is not one of {}", self.choices().join(", ")),
            (_, Some(reason)) => format!("{text:?}: {reason}"),
            (_, None) => format!("{text:?} is not a valid value"),
        };
        Some(Problem::at(scalar.at, what))
    }
}
