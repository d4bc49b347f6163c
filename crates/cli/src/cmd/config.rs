//! `ssntp config`: checks, shows and writes settings files of daemons.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::{ArgMatches, FromArgMatches, Subcommand, ValueEnum};
use serde_json::{Value, json};

use super::{cnci, opflex, scheduler, server};
use crate::agent;
use crate::failure::Failure;
use crate::output::{Output, columns, printable};
use crate::settings::{self, Flag, Flags, Problem, Problems, Read, Refused};

/// Check and show what daemons read by --config-file
///
/// Such a file is YAML: each key is a flag of the daemon without its dashes, switches
/// are true or false, and flags that may be given several times are lists. Flags win
/// over the environment, the environment over the file, and the file over defaults.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Check files, and print what is wrong with them
    ///
    /// Each problem is a line with FILE:LINE:COLUMN, and the exit code is 1 if there is
    /// one. Certificates and other files that a file names are read, too. Nothing is
    /// started.
    Check {
        #[arg(value_enum)]
        daemon: Name,
        #[arg(value_name = "FILE", required = true)]
        files: Vec<PathBuf>,
        #[command(flatten)]
        flags: MoreFlags,
        /// Print one JSON object a problem
        #[arg(long)]
        json: bool,
    },
    /// Print the settings that a daemon would use, and where each comes from
    Show {
        #[arg(value_enum)]
        daemon: Name,
        #[arg(value_name = "FILE")]
        file: Option<PathBuf>,
        #[command(flatten)]
        flags: MoreFlags,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Print an example file with every key, its purpose and its default
    Example {
        #[arg(value_enum)]
        daemon: Name,
    },
}

/// The daemon's flags beside the file.
#[derive(Debug, clap::Args)]
struct MoreFlags {
    /// Further flags of the daemon
    #[arg(value_name = "FLAGS", last = true)]
    more: Vec<OsString>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Name {
    Server,
    Scheduler,
    #[value(alias = "netagent")]
    Agent,
    Cnci,
    #[value(alias = "opflex-serve")]
    Opflex,
    OpflexElement,
}

impl Name {
    /// Its subcommand.
    fn words(self) -> &'static [&'static str] {
        match self {
            Self::Server => &["server"],
            Self::Scheduler => &["scheduler"],
            Self::Agent => &["agent"],
            Self::Cnci => &["cnci"],
            Self::Opflex => &["opflex", "serve"],
            Self::OpflexElement => &["opflex", "element"],
        }
    }

    /// What an example says, since a daemon does not run without it, or not as a
    /// service.
    fn needs(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Server => &[
                ("listen", "\":8888\""),
                ("ca", "/etc/ssntp/ca.pem"),
                ("cert", "/etc/ssntp/server.pem"),
            ],
            Self::Scheduler => &[
                ("listen", "\":8888\""),
                ("ca", "/etc/ssntp/ca.pem"),
                ("cert", "/etc/ssntp/scheduler.pem"),
                ("config", "/var/lib/ssntp/scheduler/cluster.yaml"),
                ("state", "/var/lib/ssntp/scheduler"),
            ],
            Self::Agent => &[
                ("connect", "localhost:8888"),
                ("ca", "/etc/ssntp/ca.pem"),
                ("cert", "/etc/ssntp/agent.pem"),
                ("state", "/var/lib/ssntp/agent"),
            ],
            Self::Cnci => &[
                ("connect", "localhost:8888"),
                ("ca", "/etc/ssntp/ca.pem"),
                ("cert", "/etc/ssntp/cnci.pem"),
                ("tenant", "00000000-0000-4000-8000-000000000000"),
                ("ip", "192.0.2.10"),
                ("state", "/var/lib/ssntp/cnci"),
            ],
            Self::Opflex => &[
                ("listen", "\":8009\""),
                ("control", "/run/ssntp-opflex/control.sock"),
            ],
            Self::OpflexElement => &[("connect", "localhost:8009"), ("watch", "true")],
        }
    }

    /// What the daemon itself finds wrong, of what clap has read for the program.
    fn problems(self, whole: &ArgMatches) -> Result<Problems, clap::Error> {
        let Some((_, own)) = whole.subcommand() else {
            return Ok(Problems::default());
        };
        Ok(match self {
            Self::Server => server::Args::from_arg_matches(own)?.problems(),
            Self::Scheduler => scheduler::Args::from_arg_matches(own)?.problems(),
            Self::Agent => agent::Args::from_arg_matches(own)?.problems(),
            Self::Cnci => cnci::Args::from_arg_matches(own)?.problems(),
            Self::Opflex | Self::OpflexElement => opflex::Args::from_arg_matches(own)?.problems(),
        })
    }

    /// Reads what the daemon would be started with.
    fn read(self, command: &clap::Command, file: Option<&Path>, more: &[OsString]) -> Result<Read, Refused> {
        let mut words = vec![OsString::from("ssntp")];
        words.extend(self.words().iter().map(OsString::from));
        if let Some(file) = file {
            words.extend(["--config-file".into(), file.into()]);
        }
        words.extend_from_slice(more);
        settings::read(command, &words)
    }
}

/// Runs `ssntp config`, of a program with this command line.
pub(crate) fn run(args: Args, command: &clap::Command) -> Result<(), Failure> {
    match args.action {
        Action::Check {
            daemon,
            files,
            flags,
            json,
        } => check(command, daemon, &files, &flags.more, json),
        Action::Show {
            daemon,
            file,
            flags,
            json,
        } => show(command, daemon, file.as_deref(), &flags.more, json),
        Action::Example { daemon } => {
            let mut output = Output::new();
            output.text(&example(command, daemon)?)?;
            output.flush()
        }
    }
}

fn check(
    command: &clap::Command,
    daemon: Name,
    files: &[PathBuf],
    more: &[OsString],
    json: bool,
) -> Result<(), Failure> {
    let mut output = Output::new();
    let mut is_right = true;
    for file in files {
        let wrong = wrong(command, daemon, file, more)?;
        is_right &= wrong.is_empty();
        if wrong.is_empty() {
            match json {
                true => output.json(json!({"file": file.to_string_lossy(), "ok": true}))?,
                false => output.line(format_args!("{}: OK", printable(&file.to_string_lossy())))?,
            }
        }
        for problem in wrong {
            match json {
                true => output.json(json!({
                    "file": file.to_string_lossy(), "ok": false, "problem": problem.what,
                    "line": problem.at.map(|at| at.line), "column": problem.at.map(|at| at.column),
                }))?,
                false => output.line(printable(&problem.of(file)))?,
            }
        }
    }
    output.flush()?;
    match is_right {
        true => Ok(()),
        false => Err(Failure::silent(1)),
    }
}

/// All that is wrong with a file, as far as can be told without starting the daemon.
fn wrong(
    command: &clap::Command,
    daemon: Name,
    file: &Path,
    more: &[OsString],
) -> Result<Vec<Problem>, Failure> {
    let (mut wrong, read) = match daemon.read(command, Some(file), more) {
        Ok(read) => (Vec::new(), Some(read)),
        Err(Refused::File { problems, rest, .. }) => (problems, rest.map(|rest| *rest)),
        Err(refused @ Refused::Words(_)) => return Err(refused.failure()),
    };
    if let Some((matches, settings)) = read {
        wrong.extend(daemon.problems(&matches)?.into_iter().map(|(key, why)| Problem {
            at: settings.position(key),
            what: format!("{key}: {why}"),
        }));
    }
    wrong.sort_by_key(|problem| problem.at.map(|at| (at.line, at.column)));
    Ok(wrong)
}

fn show(
    command: &clap::Command,
    daemon: Name,
    file: Option<&Path>,
    more: &[OsString],
    as_json: bool,
) -> Result<(), Failure> {
    let (_, settings) = daemon
        .read(command, file, more)
        .map_err(|refused| refused.failure())?;
    let mut output = Output::new();
    if as_json {
        let values = settings.values().iter().map(|setting| {
            let value = json!({"values": setting.values, "origin": setting.origin.to_string()});
            (setting.key.clone(), value)
        });
        output.json(Value::Object(values.collect()))?;
        return output.flush();
    }
    let heading = ["KEY", "VALUE", "FROM"].map(String::from);
    let rows = settings.values().iter().map(|setting| {
        let shown = printable(&setting.values.join(" "));
        [setting.key.clone(), shown, setting.origin.to_string()]
    });
    let rows: Vec<_> = std::iter::once(heading).chain(rows).collect();
    output.text(&columns(&rows))?;
    output.flush()
}

/// The longest line of a comment in an example.
const WIDTH: usize = 78;

/// A file with every key of the daemon. What it does not need stands in comments.
fn example(command: &clap::Command, daemon: Name) -> Result<String, Failure> {
    let name = daemon.words().join(" ");
    let flags = Flags::of(command, daemon.words());
    let flags = flags.ok_or_else(|| Failure::new("this build has no such daemon"))?;
    let checked = daemon
        .to_possible_value()
        .map_or(String::new(), |name| name.get_name().to_owned());
    let mut text = format!(
        "# Settings of `ssntp {name}`, for its --config-file.\n\
         #\n\
         # Each key is a flag of it. A flag counts more than the environment, that more\n\
         # than this file. Keys in comments have the default that stands there, if any.\n\
         # `ssntp config check {checked} FILE` says whether it is right.\n"
    );
    for flag in flags.all() {
        text.push('\n');
        text.push_str(&comment(flag));
        let needed = daemon.needs().iter().find(|(key, _)| *key == flag.key());
        match needed {
            Some((key, value)) if flag.is_repeated() => text.push_str(&format!("{key}:\n- {value}\n")),
            Some((key, value)) => text.push_str(&format!("{key}: {value}\n")),
            None => text.push_str(&default(flag)),
        }
    }
    Ok(text)
}

/// What a flag is for, in lines that begin with `#`.
fn comment(flag: Flag<'_>) -> String {
    let mut paragraphs: Vec<String> = flag.help().split("\n\n").map(str::to_owned).collect();
    let choices = flag.choices();
    if !choices.is_empty() && !flag.is_switch() {
        paragraphs.push(format!("One of: {}", choices.join(", ")));
    }
    paragraphs.extend(flag.variable().map(|name| format!("In the environment: {name}")));
    let mut text = String::new();
    for paragraph in paragraphs {
        let mut line = String::from("#");
        for word in paragraph.split_whitespace() {
            if line.len() > 1 && line.len() + 1 + word.len() > WIDTH {
                text.push_str(&format!("{line}\n"));
                line = "#".into();
            }
            line.push(' ');
            line.push_str(word);
        }
        text.push_str(&format!("{line}\n"));
    }
    text
}

/// The key with its default, or with what stands for a value, as a comment.
fn default(flag: Flag<'_>) -> String {
    let key = flag.key();
    let defaults = flag.defaults();
    let values = match defaults.is_empty() {
        true => flag.placeholders(),
        false => defaults,
    };
    if flag.is_switch() {
        return format!("# {key}: false\n");
    }
    if !flag.is_repeated() {
        return format!("# {key}: {}\n", values.join(" "));
    }
    let lines = values.iter().map(|value| format!("# - {value}\n"));
    format!("# {key}:\n{}", lines.collect::<String>())
}
