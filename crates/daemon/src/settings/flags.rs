//! The flags of a daemon as clap knows them: they are the keys of its file.

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, ArgAction, Command};
use ssntp::payload::yaml::Position;

use super::file::{Entry, Scalar};
use super::{CONFIG_FILE, Problem, first_paragraph};

/// The flags of one daemon that a file may hold: all but hidden flags, those that ask
/// for help, and the name of the file. Each of them has a long name, which is its key.
#[derive(Debug)]
pub struct Flags(Command);

impl Flags {
    /// The flags of the subcommand with this path of names; `None` if there is no such subcommand.
    pub fn of(command: &Command, names: &[&str]) -> Option<Self> {
        let mut command = command.clone();
        // Gives subcommands the global flags.
        command.build();
        let found = names
            .iter()
            .try_fold(&command, |command, name| command.find_subcommand(name));
        found.cloned().map(Self)
    }

    /// All of them with their keys, in the order of the help text.
    pub fn all(&self) -> impl Iterator<Item = (&str, &Arg)> {
        let is_setting = |arg: &Arg| {
            let has_value = arg.get_action().takes_values() || is_switch(arg);
            has_value && !arg.is_hide_set() && arg.get_id() != CONFIG_FILE
        };
        let all = self.0.get_arguments().filter(move |arg| is_setting(arg));
        all.filter_map(|arg| Some((arg.get_long()?, arg)))
    }

    pub fn named(&self, key: &str) -> Option<&Arg> {
        self.all().find_map(|(name, arg)| (name == key).then_some(arg))
    }

    /// An entry as words of the command line; no word for a switch that is off.
    pub(super) fn words(&self, entry: &Entry) -> Result<Vec<OsString>, Vec<Problem>> {
        let key = &entry.key;
        let Some(arg) = self.named(key) else {
            let like = self.like(key);
            let like = like.map_or(String::new(), |key| format!("; did you mean {key}?"));
            return Err(vec![Problem::at(entry.at, format!("unknown key {key}{like}"))]);
        };
        words_of(arg, entry).map_err(|problems| {
            let problems = problems.into_iter();
            let named = |(at, what)| Problem::at(at, format!("{key}: {what}"));
            problems.map(named).collect()
        })
    }

    /// The most similar key, as clap finds it.
    fn like(&self, key: &str) -> Option<String> {
        let written = key.replace('_', "-").to_ascii_lowercase();
        if self.named(&written).is_some() {
            return Some(written);
        }
        // clap looks for similar flags only while it refuses an unknown one.
        let asked = ["ssntp".to_owned(), format!("--{written}")];
        let error = self.0.clone().try_get_matches_from(asked).err()?;
        let Some(ContextValue::String(found)) = error.get(ContextKind::SuggestedArg) else {
            return None;
        };
        let found = found.strip_prefix("--")?;
        self.named(found).map(|_| found.to_owned())
    }
}

/// True if the value of a flag in a file is true or false.
pub fn is_switch(arg: &Arg) -> bool {
    matches!(arg.get_action(), ArgAction::SetTrue)
}

/// True if a flag may be given several times, and so may be a list in a file.
pub fn is_repeated(arg: &Arg) -> bool {
    matches!(arg.get_action(), ArgAction::Append)
}

/// The words that a flag takes; empty if it takes other values.
pub fn choices(arg: &Arg) -> Vec<String> {
    let choices = arg.get_possible_values();
    let shown = choices.iter().filter(|choice| !choice.is_hide_set());
    shown.map(|choice| choice.get_name().to_owned()).collect()
}

/// An entry as words for its flag.
fn words_of(arg: &Arg, entry: &Entry) -> Result<Vec<OsString>, Vec<(Position, String)>> {
    let wrong = |at: Position, what: &str| Err(vec![(at, what.to_owned())]);
    let flag = format!("--{}", entry.key);
    match entry.values.as_slice() {
        [one] if !entry.is_list && one.is_nothing => {
            return wrong(entry.at, "a value is missing; leave the key out for the default");
        }
        _ if entry.is_list && !is_repeated(arg) => {
            return wrong(entry.at, "one value is expected, not a list");
        }
        [] => return wrong(entry.at, "the list is empty; leave the key out for the default"),
        [one] if is_switch(arg) => {
            return match &*one.text {
                "true" => Ok(vec![flag.into()]),
                "false" => Ok(Vec::new()),
                _ => wrong(one.at, "the value must be true or false"),
            };
        }
        _ => {}
    }
    let problems = entry
        .values
        .iter()
        .filter_map(|value| several(arg, entry, value).or_else(|| problem(arg, value)));
    let problems: Vec<_> = problems.collect();
    if !problems.is_empty() {
        return Err(problems);
    }
    // The number of values that follow the flag each time, as the three of `--resolve-ident A B C`.
    let together = arg.get_num_args().map_or(1, |number| number.min_values());
    if together < 2 {
        // In one word, so that a value which begins with a dash is not taken for a flag.
        let word = |value: &Scalar| format!("{flag}={}", value.text).into();
        return Ok(entry.values.iter().map(word).collect());
    }
    // clap would take a value with a dash for the next flag.
    let dashed = entry.values.iter().find(|value| value.text.starts_with('-'));
    if !entry.values.len().is_multiple_of(together) || dashed.is_some() {
        let what = format!("groups of {together} values are expected, none of which begins with a dash");
        return wrong(dashed.map_or(entry.at, |value| value.at), &what);
    }
    let groups = entry.values.chunks(together).flat_map(|group| {
        let values = group.iter().map(|value| &value.text);
        std::iter::once(&flag).chain(values)
    });
    Ok(groups.map(OsString::from).collect())
}

/// The error for an entry of a list that clap would split.
fn several(arg: &Arg, entry: &Entry, value: &Scalar) -> Option<(Position, String)> {
    let delimiter = arg.get_value_delimiter().filter(|_| entry.is_list)?;
    let what = format!(
        "{:?}: each entry of a list is one value, without {delimiter:?}",
        value.text
    );
    value.text.contains(delimiter).then_some((value.at, what))
}

/// The error of clap for one value of a flag.
fn problem(arg: &Arg, value: &Scalar) -> Option<(Position, String)> {
    // The value is parsed alone, because clap stops at the first error of a command line.
    let mut alone = Arg::new("value")
        .long("value")
        .action(ArgAction::Append)
        .value_parser(arg.get_value_parser().clone());
    if let Some(delimiter) = arg.get_value_delimiter() {
        alone = alone.value_delimiter(delimiter);
    }
    let command = Command::new("value").no_binary_name(true).arg(alone);
    let text = &value.text;
    let error = command.try_get_matches_from([format!("--value={text}")]).err()?;
    let reason = std::error::Error::source(&error).map(ToString::to_string);
    let what = match (error.kind(), reason) {
        _ if value.is_nothing || text.is_empty() => "a value is empty".to_owned(),
        (ErrorKind::InvalidValue, _) => format!("{text:?} is not one of {}", choices(arg).join(", ")),
        (_, Some(reason)) => format!("{text:?}: {reason}"),
        // The flag's own parser has written this text, and leaves out a value that may have a password.
        (_, None) => first_paragraph(&error),
    };
    Some((value.at, what))
}
