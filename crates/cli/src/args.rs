//! The command line.

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, FromArgMatches, Parser};
use ssntp_daemon::{Failure, Invalid, LogArgs, Settings, note, settings, with_environment};

use crate::cmd::Command;
use crate::screens::grouped;

/// Simple and Secure Node Transfer Protocol: control-plane messaging over
/// mutual TLS, with roles proved by certificates.
///
/// Exit codes: 0 done, 1 failed, 2 wrong usage, 130 and 143 ended by a signal
/// before the command was done; a command that has others names them. The log never
/// blocks: if the standard error is not read fast enough, lines are dropped, and the log
/// has their number.
#[derive(Debug, Parser)]
#[command(name = "ssntp", version)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) log: LogArgs,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The definition of the command line.
pub(crate) fn command() -> clap::Command {
    grouped(with_environment(Args::command()))
}

impl Args {
    /// Reads the command line, and the settings file that it names. Exits if either is wrong, and after help.
    pub(crate) fn read(words: Vec<OsString>) -> (Self, Settings) {
        let (json, words) = (asks_for_json(&words), common_flags_last(words));
        let read = settings::read(&command(), &words);
        match read.and_then(|(matches, settings)| Ok((Self::from_arg_matches(&matches)?, settings))) {
            Ok(read) => read,
            Err(Invalid::Words(e)) if !(json && e.use_stderr()) => {
                let printed = e.print().map_err(|error| Failure::output(&error));
                // Help that cannot be printed is a failure. An error of the command line is one already.
                if let Err(failure) = printed
                    && failure.is_failure()
                    && !e.use_stderr()
                {
                    let _ = failure.report(json);
                    std::process::exit(1)
                }
                if let Some(tip) = tip(&e, &words) {
                    note(format_args!("tip: {tip}"));
                }
                std::process::exit(e.exit_code())
            }
            Err(invalid) => {
                let _ = invalid.failure().report(json);
                std::process::exit(2)
            }
        }
    }
}

/// A tip for a wrong command line for which clap prints no tip.
fn tip(error: &clap::Error, words: &[OsString]) -> Option<String> {
    // `common_flags_last` has made the subcommand the first word after the program.
    let named = words.get(1)?.to_str()?;
    match error.kind() {
        ErrorKind::MissingRequiredArgument if named == "server" => {
            let Some(ContextValue::Strings(missing)) = error.get(ContextKind::InvalidArg) else {
                return None;
            };
            let tip =
                "to try the protocol on this host, run 'ssntp server --dev', which needs no other flags";
            let lacks_address = missing.iter().any(|flag| flag.starts_with("--listen"));
            lacks_address.then(|| tip.into())
        }
        ErrorKind::InvalidSubcommand => {
            let whole = command();
            let verb = whole.find_subcommand("ctl")?.find_subcommand(named)?;
            Some(format!("did you mean 'ssntp ctl {}'?", verb.get_name()))
        }
        _ => None,
    }
}

/// True if a command line has --json: a program reads its errors then.
pub(crate) fn asks_for_json(words: &[OsString]) -> bool {
    // The words after `--` are the command of a workload, which may have its own --json.
    let mut own = words.iter().skip(1).take_while(|word| *word != "--");
    own.any(|word| word == COMMON_SWITCH)
}

/// The flags with a value that may also be given before the subcommand.
// clap accepts --log and --log-format there by itself. They are listed so that the search for the
// subcommand skips them and their values.
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
/// The only flag without a value that may also be given there.
const COMMON_SWITCH: &str = "--json";

/// Moves the common flags from before the subcommand to behind it and its own subcommands.
fn common_flags_last(words: Vec<OsString>) -> Vec<OsString> {
    let mut subcommand = 1;
    while let Some(word) = words.get(subcommand) {
        let word = word.to_string_lossy();
        let flag = word.split('=').next().unwrap_or_default();
        subcommand += if COMMON.contains(&flag) {
            // A flag whose value is a word of its own has two.
            if word == flag { 2 } else { 1 }
        } else if word == COMMON_SWITCH {
            1
        } else {
            break;
        };
    }
    // `help` takes no flags. A missing or unknown subcommand is reported by clap.
    if subcommand == 1 || words.get(subcommand).is_none_or(|word| word == "help") {
        return words;
    }
    let named = subcommands(&words[subcommand..]);
    let mut moved = words;
    // The names move to the front, and the flags keep their order.
    moved[1..subcommand + named].rotate_right(named);
    moved
}

/// The number of words at the front that name a subcommand, its subcommand, and so on. At least one, so that
/// clap complains about an unknown subcommand, and not about the flags before it.
fn subcommands(words: &[OsString]) -> usize {
    let whole = command();
    let mut command = Some(&whole);
    let names = words.iter().take_while(|word| {
        command = command.and_then(|command| command.find_subcommand(word));
        command.is_some()
    });
    names.count().max(1)
}

#[cfg(test)]
mod tests {
    use clap_complete::Shell;

    use super::*;
    use crate::cmd::completions::{ROLES, script};

    #[test]
    fn common_flags_may_stand_before_the_subcommand() {
        for (line, same) in [
            (
                "ssntp --ca a --json --cert=c ctl nodes",
                "ssntp ctl nodes --ca a --json --cert=c",
            ),
            (
                "ssntp --json config check server f",
                "ssntp config check --json server f",
            ),
            ("ssntp --json unknown x", "ssntp unknown --json x"),
            ("ssntp --log debug help", "ssntp --log debug help"),
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

    /// If a subcommand has a flag with the id of a global flag, clap copies its value to the command
    /// above, which may expect another type and panic.
    #[test]
    fn no_flag_of_a_subcommand_has_the_name_of_a_global_flag() {
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

    #[test]
    fn roles_and_operands_are_completed_by_name_and_only_paths_by_files() {
        let all: Vec<_> = ssntp::Role::ALL.iter().map(|role| role.to_string()).collect();
        assert!(all.len() == ROLES.len() && all.iter().all(|role| ROLES.contains(&role.as_str())));
        let text = String::from_utf8(script(Shell::Bash, command())).unwrap();
        let after = |flag: &str| {
            let case = text.find(&format!("                {flag})\n")).unwrap();
            text[case..].lines().skip(1).take(8).collect::<String>()
        };
        assert!(
            after("--wait-for").contains("controller"),
            "{}",
            after("--wait-for")
        );
        assert!(text.contains("STATS"));
        assert!(
            !after("--context").contains("compgen -f"),
            "{}",
            after("--context")
        );
        assert!(after("--ca").contains("compgen -f"), "{}", after("--ca"));
    }
}
