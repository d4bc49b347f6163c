//! `ssntp completions` for users, and `ssntp man` for manual pages, both made from the
//! definition of the command line.

use std::fs;
use std::path::PathBuf;

use clap::builder::PossibleValuesParser;
use clap::{Arg, Command, ValueHint};
use clap_complete::Shell;
use ssntp::proto::FrameKind;
use ssntp_daemon::{Failure, print_text};

/// Print a shell's completion script
///
/// bash: add the line `source <(ssntp completions bash)` to ~/.bashrc. zsh: write the
/// script to a file _ssntp in a directory of $fpath. fish: write it to
/// ~/.config/fish/completions/ssntp.fish.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The shell
    shell: Shell,
}

pub(crate) fn run(args: &Args, whole: Command) -> Result<(), Failure> {
    print_text(script(args.shell, whole))
}

pub(crate) fn script(shell: Shell, whole: Command) -> Vec<u8> {
    let (mut text, mut whole) = (Vec::new(), with_hints(whole));
    clap_complete::generate(shell, &mut whole, "ssntp", &mut text);
    asking(shell, &String::from_utf8_lossy(&text)).into_bytes()
}

/// The value names of what only a running program knows, the word that stands for the values until the
/// script is written, and the command that prints a table of them: they are in its first column, and a
/// table without rows has one line.
const ASKED: [(&str, &str, &str); 2] = [
    ("CONTEXT", "@CONTEXT@", "ssntp context list"),
    ("NODE", "@NODE@", "ssntp ctl nodes --timeout 2"),
];

/// The script, which runs these commands when such a value is completed.
fn asking(shell: Shell, script: &str) -> String {
    ASKED
        .iter()
        .fold(script.to_owned(), |script, (_, word, command)| {
            let run = format!(r"{command} 2>/dev/null | sed 1d | cut -d\  -f1");
            match shell {
                // An action in parentheses has only fixed words.
                Shell::Zsh => script.replace(&format!("({word})"), &format!("{{compadd -- $({run})}}")),
                Shell::Fish => script.replace(&format!(r"{word}\t''"), &format!("({run})")),
                _ => script.replace(word, &format!("$({run})")),
            }
        })
}

/// The names of the roles.
pub(crate) const ROLES: [&str; 6] = [
    "server",
    "controller",
    "agent",
    "scheduler",
    "netagent",
    "cnciagent",
];

/// The same command line, whose values are completed by their kind: roles and operands by their names, and
/// only what is a path by file names.
fn with_hints(command: Command) -> Command {
    fn of_arg(arg: Arg) -> Arg {
        let value = arg.get_value_names().and_then(|names| names.first());
        let value = value.map(ToString::to_string).unwrap_or_default();
        let is_open = arg.get_possible_values().is_empty() && arg.get_value_hint() == ValueHint::Unknown;
        if !is_open || !arg.get_action().takes_values() {
            arg
        } else if let Some((_, word, _)) = ASKED.iter().find(|(name, ..)| *name == value) {
            arg.value_parser(PossibleValuesParser::new([word]))
        } else if value.starts_with("ROLE") {
            arg.value_parser(PossibleValuesParser::new(ROLES))
        } else if value == "OPERAND" {
            arg.value_parser(PossibleValuesParser::new(
                FrameKind::all().filter_map(FrameKind::name),
            ))
        } else if value.split('|').any(|one| ["FILE", "DIR", "PATH"].contains(&one)) {
            arg.value_hint(ValueHint::AnyPath)
        } else {
            arg.value_hint(ValueHint::Other)
        }
    }
    command.mut_args(of_arg).mut_subcommands(with_hints)
}

/// Write the manual page of each subcommand: `ssntp man DIR`, then `man DIR/ssntp.1`
#[derive(Debug, clap::Args)]
pub(crate) struct ManualArgs {
    /// The directory for the pages; it is made if it does not exist
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

pub(crate) fn manual(args: &ManualArgs, whole: Command) -> Result<(), Failure> {
    let directory = &args.directory;
    let failed = |e| Failure::at(directory, e);
    fs::create_dir_all(directory).map_err(failed)?;
    clap_mangen::generate_to(whole.disable_help_subcommand(true), directory).map_err(failed)
}
