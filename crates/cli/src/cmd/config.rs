//! `ssntp config`: checks, shows and writes settings files of daemons.

use std::any::TypeId;
use std::borrow::Cow;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::{Arg, ArgMatches, Command, FromArgMatches, Subcommand};
use serde_json::{Value, json};
use ssntp::pki::JoinToken;
use ssntp_daemon::{
    Choices, Failure, Flags, Invalid, Output, Problem, Problems, Read, Setting, choices, even_unread,
    is_repeated, is_switch, logging, one_of, print_json, print_line, print_text, printable, settings,
};

use super::table::{Columns, list, wrapped};
use super::{cnci, controller, opflex, scheduler, server};
use crate::admin::AgentArgs;

/// Check, show and print files with the settings of daemons (--config-file)
///
/// Such a file is YAML: each key is a flag of the daemon without the dashes, switches
/// are true or false, and flags that may be given several times are lists. Flags win
/// over the environment, the environment over the file, and the file over defaults.
#[derive(Debug, Subcommand)]
pub(crate) enum Args {
    Check(Check),
    Show(ShowSettings),
    /// Print an example file with every key, its purpose and its default
    Example {
        /// The daemon that reads the file
        #[arg(value_parser = one_of(DAEMONS))]
        daemon: &'static Known,
    },
}

/// Check files with settings, and print their problems
///
/// Each problem is a line, with FILE:LINE:COLUMN if it has a place. The exit code is 1 if
/// any file has a problem. Certificates and other files that the settings name are read,
/// too. Nothing is started.
#[derive(Debug, clap::Args)]
pub(crate) struct Check {
    /// The daemon that reads the files
    #[arg(value_parser = one_of(DAEMONS))]
    daemon: &'static Known,
    /// The files with settings
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// Further flags of the daemon, after --
    #[arg(value_name = "FLAGS", last = true)]
    more: Vec<OsString>,
    /// Print one JSON object for each problem, and for each file without one
    #[arg(long)]
    json: bool,
}

/// Print the settings that a daemon would use, and where each comes from
#[derive(Debug, clap::Args)]
pub(crate) struct ShowSettings {
    /// The daemon that reads the settings
    #[arg(value_parser = one_of(DAEMONS))]
    daemon: &'static Known,
    /// The file with settings [default: none]
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
    /// Further flags of the daemon, after --
    #[arg(value_name = "FLAGS", last = true)]
    more: Vec<OsString>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// A daemon that reads a file with settings.
#[derive(Debug)]
pub(crate) struct Known {
    /// The subcommand that starts it.
    words: &'static str,
    /// The values that an example sets, because the daemon does not run without them, or not as a service.
    /// The example has all other keys as comments.
    needs: &'static [(&'static str, &'static str)],
    /// Finds the problems that the daemon itself finds in values that clap has accepted.
    problems: fn(&ArgMatches) -> Result<Problems, clap::Error>,
}

#[rustfmt::skip] // A table: one daemon after the other.
const DAEMONS: Choices<&Known> = &[
    ("server", "ssntp server", &Known {
        words: "server",
        needs: &[LISTEN, CA, ("cert", "/etc/ssntp/server.pem")],
        problems: |own| Ok(server::Args::from_arg_matches(own)?.problems()),
    }),
    ("scheduler", "ssntp scheduler", &Known {
        words: "scheduler",
        needs: &[LISTEN, CA, ("cert", "/etc/ssntp/scheduler.pem"), ("config", "/var/lib/ssntp/scheduler/cluster.yaml"),
            ("state", "/var/lib/ssntp/scheduler")],
        problems: |own| Ok(scheduler::Args::from_arg_matches(own)?.problems()),
    }),
    ("agent", "ssntp agent, ssntp netagent", &Known {
        words: "agent",
        needs: &[CONNECT, CA, ("cert", "/etc/ssntp/agent.pem"), ("state", "/var/lib/ssntp/agent")],
        problems: |own| Ok(AgentArgs::from_arg_matches(own)?.problems()),
    }),
    ("cnci", "ssntp cnci", &Known {
        words: "cnci",
        // RFC 5737 reserves this address for examples.
        needs: &[CONNECT, CA, ("cert", "/etc/ssntp/cnci.pem"), ("tenant", "00000000-0000-4000-8000-000000000000"),
            ("ip", "192.0.2.10"), ("state", "/var/lib/ssntp/cnci")],
        problems: |own| Ok(cnci::Args::from_arg_matches(own)?.problems()),
    }),
    ("controller", "ssntp controller", &Known {
        words: "controller",
        needs: &[CONNECT, CA, ("cert", "/etc/ssntp/controller.pem"), ("store", "/var/lib/ssntp/controller"),
            ("http", "127.0.0.1:9300")],
        problems: |own| Ok(controller::Args::from_arg_matches(own)?.problems()),
    }),
    ("opflex", "ssntp opflex serve", &Known {
        words: "opflex serve",
        needs: &[("listen", "\":8009\""), ("control", "/run/ssntp-opflex/control.sock")],
        problems: |own| Ok(opflex::Args::from_arg_matches(own)?.problems()),
    }),
    ("opflex-element", "ssntp opflex element", &Known {
        words: "opflex element",
        // An element without --watch ends after its first answers.
        needs: &[("connect", "localhost:8009"), ("watch", "true")],
        problems: |own| Ok(opflex::Args::from_arg_matches(own)?.problems()),
    }),
];
const LISTEN: (&str, &str) = ("listen", "\":8888\"");
const CONNECT: (&str, &str) = ("connect", "localhost:8888");
const CA: (&str, &str) = ("ca", "/etc/ssntp/ca.pem");

impl Known {
    /// The words of the subcommand.
    fn path(&self) -> Vec<&'static str> {
        self.words.split(' ').collect()
    }

    /// Reads the settings as the daemon would if it were started with this file and these flags.
    fn read(&self, command: &Command, file: Option<&Path>, more: &[OsString]) -> Result<Read, Invalid> {
        let mut words = vec![OsString::from("ssntp")];
        words.extend(self.path().iter().map(OsString::from));
        if let Some(file) = file {
            words.extend(["--config-file".into(), file.into()]);
        }
        words.extend_from_slice(more);
        settings::read(command, &words)
    }
}

/// Runs `ssntp config`. `command` is the definition of the whole command line.
pub(crate) fn run(args: Args, command: &Command) -> Result<(), Failure> {
    match args {
        Args::Check(args) => check(command, &args),
        Args::Show(args) => show(command, &args),
        Args::Example { daemon } => print_text(&example(command, daemon)?),
    }
}

fn check(command: &Command, args: &Check) -> Result<(), Failure> {
    let mut is_right = true;
    for file in &args.files {
        let problems = problems_of(command, args.daemon, file, &args.more)?;
        is_right &= problems.is_empty();
        even_unread(print_problems(file, &problems, args.json))?;
    }
    if is_right { Ok(()) } else { Err(Failure::Silent(1)) }
}

/// Prints a line for each problem of a file, or that there is none.
fn print_problems(file: &Path, problems: &[Problem], as_json: bool) -> Result<(), Failure> {
    let name = file.to_string_lossy();
    let mut output = Output::lock();
    match (problems.is_empty(), as_json) {
        (true, true) => output.json(json!({"file": name, "ok": true}))?,
        (true, false) => output.line(format_args!("{}: OK", printable(&name)))?,
        (false, _) => {}
    }
    for problem in problems {
        if as_json {
            output.json(json!({
                "file": name, "ok": false, "problem": problem.what,
                "line": problem.at.map(|at| at.line), "column": problem.at.map(|at| at.column),
            }))?
        } else {
            output.line(printable(&problem.of(file)))?
        }
    }
    output.flush()
}

/// All problems of a file that can be found without starting the daemon.
fn problems_of(
    command: &Command,
    daemon: &Known,
    file: &Path,
    more: &[OsString],
) -> Result<Vec<Problem>, Failure> {
    let (mut found, read) = match daemon.read(command, Some(file), more) {
        Ok(read) => (Vec::new(), Some(read)),
        // The keys that could be read are checked as well, so that one run shows every problem.
        Err(Invalid::File { problems, rest, .. }) => (problems, rest.map(|rest| *rest)),
        Err(invalid @ Invalid::Words(_)) => return Err(invalid.failure()),
    };
    if let Some((matches, settings)) = read {
        let own = matches.subcommand().map(|(_, own)| (daemon.problems)(own));
        let mut of_daemon = own.transpose()?.unwrap_or_default();
        of_daemon.of(settings::LOG, settings.value(settings::LOG).map(logging::check));
        found.extend(of_daemon.found().into_iter().map(|(key, why)| Problem {
            at: settings.position(key),
            what: format!("{key}: {why}"),
        }));
    }
    found.sort_by_key(|problem| problem.at.map(|at| (at.line, at.column)));
    Ok(found)
}

fn show(command: &Command, args: &ShowSettings) -> Result<(), Failure> {
    let read = args.daemon.read(command, args.file.as_deref(), &args.more);
    let (_, settings) = read.map_err(|invalid| invalid.failure())?;
    let flags = Flags::of(command, &args.daemon.path());
    // A token holds a secret, and the user may paste the output into a report.
    let is_secret = |key: &str| {
        let arg = flags.as_ref().and_then(|flags| flags.named(key));
        arg.is_some_and(|arg| arg.get_value_parser().type_id() == TypeId::of::<JoinToken>())
    };
    let mut settings = settings.values().to_vec();
    for setting in settings.iter_mut().filter(|setting| is_secret(&setting.key)) {
        setting.values = vec!["(set)".to_owned()];
    }
    if !args.json {
        return print_line(list(SETTINGS, &(), settings.iter()));
    }
    let values = settings.iter().map(|setting| {
        let value = json!({"values": setting.values, "origin": setting.origin.to_string()});
        (setting.key.clone(), value)
    });
    print_json(Value::Object(values.collect()))
}

#[rustfmt::skip] // A table: one row a column.
const SETTINGS: Columns<(), Setting> = &[
    ("KEY", |(), setting| setting.key.clone()),
    ("VALUE", |(), setting| setting.values.join(" ")),
    ("FROM", |(), setting| setting.origin.to_string()),
];

/// The longest line of a comment in an example.
const WIDTH: usize = 78;

/// A file with every key of the daemon. Keys that the daemon does not need are comments.
fn example(command: &Command, daemon: &Known) -> Result<String, Failure> {
    let name = daemon.words;
    let flags = Flags::of(command, &daemon.path());
    let flags =
        flags.ok_or_else(|| Failure::new(format_args!("this build does not include `ssntp {name}`")))?;
    let checked = DAEMONS.iter().find(|(.., known)| known.words == name);
    let checked = checked.map_or("", |(word, ..)| *word);
    let mut text = format!(
        "# Settings of `ssntp {name}`, for its --config-file.\n\
         #\n\
         # Each key is a flag of the daemon. Flags override environment variables, and these\n\
         # override this file. A key in a comment shows its default or, if it has none, a\n\
         # placeholder in capitals. `ssntp config check {checked} FILE` checks this file.\n"
    );
    for (key, arg) in flags.all() {
        let needed = daemon.needs.iter().find(|(needed, _)| *needed == key);
        let (mark, values) = match needed {
            Some((_, value)) => ("", vec![(*value).to_owned()]),
            None => ("# ", default(arg)),
        };
        text.push('\n');
        text.push_str(&comment(arg));
        if is_repeated(arg) {
            text.push_str(&format!("{mark}{key}:\n"));
            text.extend(values.iter().map(|value| format!("{mark}- {value}\n")));
        } else {
            text.push_str(&format!("{mark}{key}: {}\n", values.join(" ")))
        }
    }
    Ok(text)
}

/// The help text of a flag, in lines that begin with `#`.
fn comment(arg: &Arg) -> String {
    let help = arg.get_long_help().or_else(|| arg.get_help());
    let help = help.map(ToString::to_string).unwrap_or_default();
    let mut paragraphs: Vec<String> = help.split("\n\n").map(str::to_owned).collect();
    let choices = choices(arg);
    if !choices.is_empty() && !is_switch(arg) {
        paragraphs.push(format!("One of: {}", choices.join(", ")));
    }
    let variable = arg.get_env().map(|name| name.to_string_lossy());
    paragraphs.extend(variable.map(|name| format!("Environment variable: {name}")));
    let lines = paragraphs.iter().map(|text| wrapped("#", "#", text, WIDTH));
    lines.collect()
}

/// The default values of a flag, or else the placeholders of its values in the help text.
fn default(arg: &Arg) -> Vec<String> {
    let defaults = arg
        .get_default_values()
        .iter()
        .map(|value| value.to_string_lossy());
    let defaults: Vec<_> = defaults.map(Cow::into_owned).collect();
    match (&defaults[..], arg.get_value_delimiter()) {
        _ if is_switch(arg) => vec!["false".to_owned()],
        ([], _) => {
            let names = arg.get_value_names().unwrap_or_default();
            names.iter().map(ToString::to_string).collect()
        }
        ([joined], Some(delimiter)) => joined.split(delimiter).map(str::to_owned).collect(),
        _ => defaults,
    }
}
