//! The command line.

use std::ffi::OsString;

use clap::error::ErrorKind;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::agent;
#[cfg(feature = "full")]
use crate::cmd;
use crate::failure::Failure;
use crate::logging::LogFormat;
use crate::output::note;
use crate::settings::{self, Refused, Settings};

/// Simple and Secure Node Transfer Protocol: control-plane messaging over
/// mutual TLS, with roles proved by certificates.
///
/// Exit codes: 0 done, 1 failed, 2 wrong usage, 130 and 143 ended by a signal
/// before the command was done. The log never blocks: lines that a slow reader cannot take are
/// dropped and counted.
#[derive(Debug, Parser)]
#[command(name = "ssntp", version)]
pub(crate) struct Args {
    /// The level of the log on the standard error: error, warn, info, debug, trace or off; and levels
    /// for single targets, as in warn,ssntp::audit=info, which logs each client that
    /// connects, disconnects, is refused or is kicked [default: warn for daemons, else error]
    // The display order puts the two flags of the log at the end of the help of every subcommand.
    #[arg(
        long,
        global = true,
        value_name = "FILTER",
        env = "RUST_LOG",
        display_order = 899
    )]
    pub(crate) log: Option<String>,
    /// The format of the log on the standard error
    #[arg(
        long,
        global = true,
        value_enum,
        value_name = "FORMAT",
        env = "SSNTP_LOG_FORMAT",
        display_order = 900,
        default_value_t
    )]
    pub(crate) log_format: LogFormat,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    #[command(visible_alias = "netagent")]
    Agent(agent::Args),
    #[cfg(feature = "full")]
    #[command(flatten)]
    Full(cmd::Command),
}

/// The definition of the command line. The help names environment variables without their values,
/// because a user may paste the help into a report.
pub(crate) fn command() -> clap::Command {
    fn hide(command: clap::Command) -> clap::Command {
        let command = command.mut_args(|arg| arg.hide_env_values(true));
        command.mut_subcommands(hide)
    }
    hide(Args::command())
}

impl Args {
    /// Reads the command line, and the settings file that it names. Exits if either is wrong.
    pub(crate) fn of_this_process() -> (Self, Settings) {
        let words = common_flags_last(std::env::args_os().collect());
        let read = settings::read(&command(), &words);
        match read.and_then(|(matches, settings)| Ok((Self::from_arg_matches(&matches)?, settings))) {
            Ok(read) => read,
            Err(Refused::Words(e)) if e.use_stderr() && asks_for_json(&words) => {
                // The paragraphs after the first one, usage and tips, are for people.
                let text = e.to_string();
                let why = text.split("\n\n").next().unwrap_or_default();
                let usage = Failure::usage(why.trim_start_matches("error: "));
                let _ = usage.in_json(true).report();
                std::process::exit(e.exit_code())
            }
            Err(Refused::Words(e)) => {
                let _ = e.print();
                if let Some(tip) = tip(&e, &words) {
                    note(format_args!("tip: {tip}"));
                }
                std::process::exit(e.exit_code())
            }
            Err(refused @ Refused::File { .. }) => {
                let _ = refused.failure().report();
                std::process::exit(2)
            }
        }
    }
}

/// A tip for a wrong command line for which clap prints no tip.
fn tip(error: &clap::Error, words: &[OsString]) -> Option<String> {
    // The common flags were moved behind the subcommand, so the subcommand is the first word.
    let named = words.get(1)?.to_str()?;
    match error.kind() {
        ErrorKind::MissingRequiredArgument if named == "server" => {
            Some("'ssntp server --dev' needs no other flags, to try the protocol on this host".into())
        }
        ErrorKind::InvalidSubcommand => {
            let whole = command();
            let verb = whole.find_subcommand("ctl")?.find_subcommand(named)?;
            Some(format!("'ssntp ctl {}' is a command", verb.get_name()))
        }
        _ => None,
    }
}

/// True if a wrong command line of `ssntp ctl` has --json, so that a program reads the error.
fn asks_for_json(words: &[OsString]) -> bool {
    // The words after `--` are the command of a workload, which may have its own --json.
    let mut own = words.iter().skip(1).take_while(|word| *word != "--");
    words.get(1).is_some_and(|word| word == "ctl") && own.any(|word| word == COMMON_SWITCH)
}

/// The flags with a value that most subcommands have, and that may stand before the subcommand as
/// well.
// clap itself accepts --log and --log-format before the subcommand. They are listed so that the
// search for the subcommand passes over them.
const COMMON: [&str; 9] = [
    "--connect",
    "--listen",
    "--ca",
    "--cert",
    "--key",
    "--crl",
    "--context",
    "--log",
    "--log-format",
];
/// The one such flag without a value.
const COMMON_SWITCH: &str = "--json";

/// Moves the common flags before the subcommand to the place right behind it.
fn common_flags_last(words: Vec<OsString>) -> Vec<OsString> {
    let is = |word: &OsString, flag: &str| word == flag;
    let with_value = |word: &OsString| {
        let text = word.to_string_lossy();
        COMMON
            .iter()
            .any(|flag| text.strip_prefix(flag).is_some_and(|rest| rest.starts_with('=')))
    };
    let mut subcommand = 1;
    while let Some(word) = words.get(subcommand) {
        subcommand += match word {
            word if COMMON.iter().any(|flag| is(word, flag)) => 2,
            word if is(word, COMMON_SWITCH) || with_value(word) => 1,
            _ => break,
        };
    }
    // There is no flag to move, or the subcommand is missing, which clap reports.
    if subcommand == 1 || subcommand >= words.len() {
        return words;
    }
    let mut moved = words;
    // The subcommand moves to the front, and the flags keep their order.
    moved[1..=subcommand].rotate_right(1);
    moved
}

impl Command {
    /// Runs a subcommand to its end. `settings` are empty unless it is a daemon.
    pub(crate) fn run(self, settings: Settings) -> Result<(), Failure> {
        match self {
            Self::Agent(args) => agent::run(args, settings),
            #[cfg(feature = "full")]
            Self::Full(command) => command.run(settings, self::command()),
        }
    }

    /// The level of the log without --log and RUST_LOG. A daemon logs its warnings for its
    /// operator; any other subcommand prints only the line with its error.
    pub(crate) fn log_level(&self) -> &'static str {
        match self {
            Self::Agent(_) => "warn",
            #[cfg(feature = "full")]
            Self::Full(command) if command.is_daemon() => "warn",
            #[cfg(feature = "full")]
            Self::Full(_) => "error",
        }
    }

    /// True if the process holds frames of many peers.
    pub(crate) fn serves_many(&self) -> bool {
        match self {
            Self::Agent(_) => false,
            #[cfg(feature = "full")]
            Self::Full(command) => command.is_daemon(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn common_flags_may_stand_before_the_subcommand() {
        for (line, same) in [
            (
                "ssntp --ca a --json --cert=c ctl nodes",
                "ssntp ctl --ca a --json --cert=c nodes",
            ),
            ("ssntp --listen :1 scheduler", "ssntp scheduler --listen :1"),
            ("ssntp ctl --ca a nodes", "ssntp ctl --ca a nodes"),
            ("ssntp --help", "ssntp --help"),
            ("ssntp --ca", "ssntp --ca"),
            ("ssntp --ca a", "ssntp --ca a"),
            ("ssntp", "ssntp"),
        ] {
            let words = |line: &str| line.split(' ').map(OsString::from).collect::<Vec<_>>();
            assert_eq!(common_flags_last(words(line)), words(same), "{line}");
        }
    }

    /// clap passes the value of such a flag to the command above as well, which may read another
    /// type from it and panic.
    #[test]
    fn no_flag_has_the_name_of_a_flag_of_all_commands_above_it() {
        fn check(command: &clap::Command, above: &[clap::Id]) {
            let mut global = above.to_vec();
            for arg in command.get_arguments() {
                assert!(
                    !above.contains(arg.get_id()),
                    "{}: {}",
                    command.get_name(),
                    arg.get_id()
                );
                if arg.is_global_set() {
                    global.push(arg.get_id().clone());
                }
            }
            for below in command.get_subcommands() {
                check(below, &global);
            }
        }
        check(&command(), &[]);
    }
}
