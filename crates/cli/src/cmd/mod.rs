//! All subcommands except `agent`, which is built alone for small nodes. Each file has `Args`,
//! its command line, and `run`.
//!
//! | file | subcommand |
//! |---|---|
//! | `cert` | make, show and check certificates |
//! | `cnci` | the agent inside a concentrator instance, and its tables |
//! | `completions` | for shells; `man`: manual pages |
//! | `config` | check and show the settings of daemons |
//! | `context` | name servers and how to reach them |
//! | `controller/` | keep what should run, and show it |
//! | `ctl/` | command a cluster, and show it; `top` |
//! | `decode/` | name the fields of frames |
//! | `demo/` | everything at once |
//! | `exchange` | requests of an application, and answers by a program |
//! | `listen` | print what arrives |
//! | `operands` | every kind of frame |
//! | `opflex/` | policy over OpFlex |
//! | `scheduler` | the server of a cluster |
//! | `send` | send frames |
//! | `server/` | filter and route |
//! | `session/` | a session for programs in any language |
//! | `table` | no subcommand: lists as people read them |
//! | `watch` | show who sends what |
//!
//! `table` prints the lists of all of them.

mod cert;
mod cnci;
mod completions;
mod config;
mod context;
mod controller;
mod ctl;
mod decode;
mod demo;
mod exchange;
mod listen;
mod operands;
mod opflex;
mod scheduler;
mod send;
mod server;
mod session;
mod table;
mod watch;

use crate::failure::Failure;
use crate::settings::Settings;

/// The groups of subcommands in the help of the program.
const GROUPS: &[(&str, &[&str])] = &[
    ("Start here", &["demo"]),
    (
        "Frames between servers and clients",
        &[
            "server", "listen", "send", "request", "answer", "watch", "top", "session", "operands", "decode",
        ],
    ),
    ("A cluster", &["scheduler", "agent", "controller", "ctl", "cnci"]),
    ("Policy", &["opflex"]),
    (
        "Certificates and settings",
        &["cert", "context", "config", "completions", "man", "help"],
    ),
];
const EXAMPLES: &str = "\
Examples:
  ssntp demo                                             a whole cluster on this machine
  ssntp server --dev &                                   a server to try, with throw-away certificates
  ssntp listen --count 1 &
  ssntp send STATS 'load: 1' --wait-for controller
  ssntp help send                                        the flags of one command";

/// The same command line, whose help shows the subcommands in groups.
pub(crate) fn grouped(whole: clap::Command) -> clap::Command {
    let mut text = String::new();
    for (title, names) in GROUPS {
        text += &format!("{title}:\n");
        for name in *names {
            let about = whole.find_subcommand(name).and_then(clap::Command::get_about);
            let about = about.map_or_else(|| "Print the help of a command".to_owned(), ToString::to_string);
            text += &format!("  {name:<12} {about}\n");
        }
        text.push('\n');
    }
    whole
        .help_template(format!(
            "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{text}Options:\n{{options}}{{after-help}}"
        ))
        .after_help(EXAMPLES)
}

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    Answer(exchange::AnswerArgs),
    #[command(subcommand)]
    Cert(cert::Args),
    Cnci(cnci::Args),
    Completions(completions::Args),
    #[command(subcommand)]
    Config(config::Args),
    #[command(subcommand)]
    Context(context::Args),
    Controller(Box<controller::Args>),
    Ctl(ctl::Args),
    Decode(decode::Args),
    Demo(demo::Args),
    Listen(listen::Args),
    #[command(name = "man", alias = "manual")]
    Manual(completions::ManualArgs),
    Operands(operands::Args),
    #[command(subcommand)]
    Opflex(opflex::Args),
    Request(exchange::Args),
    Scheduler(scheduler::Args),
    Send(send::Args),
    Server(server::Args),
    Session(session::Args),
    Top(ctl::top::Args),
    Watch(watch::Args),
}

impl Command {
    /// Runs a subcommand to its end. Daemons have settings, and `whole` is the
    /// definition of the program's command line.
    pub(crate) fn run(self, settings: Settings, whole: clap::Command) -> Result<(), Failure> {
        match self {
            Self::Answer(args) => exchange::answer(&args),
            Self::Cert(args) => cert::run(args),
            Self::Cnci(args) => cnci::run(args, settings),
            Self::Config(args) => config::run(args, &whole),
            Self::Completions(args) => completions::run(&args, whole),
            Self::Context(args) => context::run(args),
            Self::Controller(args) => controller::run(*args, settings),
            Self::Ctl(args) => ctl::run(args),
            Self::Decode(args) => decode::run(args),
            Self::Demo(args) => demo::run(&args),
            Self::Listen(args) => listen::run(args),
            Self::Manual(args) => completions::manual(&args, whole),
            Self::Operands(args) => operands::run(&args),
            Self::Opflex(args) => opflex::run(args, settings),
            Self::Request(args) => exchange::request(&args),
            Self::Scheduler(args) => scheduler::run(args, settings),
            Self::Send(args) => send::run(args),
            Self::Server(args) => server::run(args, settings),
            Self::Session(args) => session::run(args),
            Self::Top(args) => ctl::top::run(&args),
            Self::Watch(args) => watch::run(&args),
        }
    }

    /// True if it serves others until it is stopped.
    pub(crate) fn is_daemon(&self) -> bool {
        match self {
            Self::Scheduler(_) | Self::Server(_) => true,
            Self::Cnci(args) => args.serves(),
            Self::Controller(args) => args.serves(),
            Self::Opflex(args) => args.serves(),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::GROUPS;

    #[test]
    fn the_groups_of_the_help_have_each_command_once_and_its_lines_wrap() {
        let mut whole = crate::args::command();
        let shown = whole.get_subcommands().filter(|command| !command.is_hide_set());
        let commands: BTreeSet<_> = shown.map(|command| command.get_name().to_owned()).collect();
        let grouped: Vec<_> = GROUPS
            .iter()
            .flat_map(|(_, names)| names.iter().copied())
            .collect();
        let named = grouped.iter().filter(|name| **name != "help");
        assert_eq!(
            named.map(|name| (*name).to_owned()).collect::<BTreeSet<_>>(),
            commands
        );
        assert_eq!(grouped.len(), commands.len() + 1);
        let help = whole.render_long_help().to_string();
        assert!(help.contains("Start here:\n  demo "), "{help}");
        let longest = help.lines().map(|line| line.chars().count()).max();
        assert!(longest <= Some(110), "{longest:?}: {help}");
    }
}
