//! The subcommands. Each file has `Args`, its command line, and `run`; `agent` has a crate of its own,
//! because it is also built alone for small nodes.
//!
//! | file | subcommand |
//! |---|---|
//! | `cert` | make, show and check certificates |
//! | `cluster` | the first files of a cluster |
//! | `cnci` | the agent inside a concentrator instance, and its tables |
//! | `completions` | for shells; `man`: manual pages |
//! | `config` | check and show the settings of daemons |
//! | `context` | name servers and how to reach them |
//! | `controller/` | keep what should run, and show it |
//! | `ctl/` | command a cluster, and show it; `top` |
//! | `decode/` | name the fields of frames |
//! | `demo/` | everything at once |
//! | `exchange` | requests of an application, and answers by a program |
//! | `join` | get a node's certificate with a token |
//! | `listen` | print what arrives |
//! | `operands` | every kind of frame |
//! | `opflex/` | policy over OpFlex |
//! | `scheduler` | the server of a cluster |
//! | `send` | send frames |
//! | `server/` | filter and route |
//! | `session/` | a session for programs in any language |
//! | `table` | no subcommand: lists as people read them |
//! | `watch` | show who sends what |

mod cert;
mod cluster;
mod cnci;
pub(crate) mod completions;
mod config;
mod context;
mod controller;
mod ctl;
mod decode;
mod demo;
mod exchange;
mod join;
mod listen;
mod operands;
mod opflex;
mod scheduler;
mod send;
mod server;
mod session;
pub(crate) mod table;
mod watch;

use ssntp::Role;
use ssntp_daemon::{Failure, Settings};

use crate::admin::AgentArgs;

/// The roles of a list that is joined with commas, as JSON has them.
fn roles(list: &str) -> Vec<&str> {
    list.split(',').filter(|role| !role.is_empty()).collect()
}

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    Agent(Box<AgentArgs>),
    Answer(exchange::AnswerArgs),
    Cert(cert::Args),
    #[command(subcommand)]
    Cluster(cluster::Args),
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
    Join(join::Args),
    Listen(listen::Args),
    /// Run the agent of a network node: `agent`, but it joins in the role NetworkAgent
    Netagent(Box<AgentArgs>),
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
    Token(ctl::tokens::Args),
    Top(ctl::top::Args),
    Watch(watch::Args),
}

impl Command {
    /// Runs a subcommand to its end. Daemons have settings, and `whole` is the
    /// definition of the program's command line.
    pub(crate) fn run(self, settings: Settings, whole: fn() -> clap::Command) -> Result<(), Failure> {
        match self {
            Self::Agent(args) => ssntp_agent_cli::run(*args, settings, Role::AGENT),
            Self::Answer(args) => exchange::answer(&args),
            Self::Cert(args) => cert::run(args),
            Self::Cluster(args) => cluster::run(args),
            Self::Cnci(args) => cnci::run(args, settings),
            Self::Config(args) => config::run(args, &whole()),
            Self::Completions(args) => completions::run(&args, whole()),
            Self::Context(args) => context::run(args),
            Self::Controller(args) => controller::run(*args, settings),
            Self::Ctl(args) => ctl::run(args),
            Self::Decode(args) => decode::run(args),
            Self::Demo(args) => demo::run(&args),
            Self::Join(args) => join::run(args),
            Self::Listen(args) => listen::run(args),
            Self::Manual(args) => completions::manual(&args, whole()),
            Self::Netagent(args) => ssntp_agent_cli::run(*args, settings, Role::NETAGENT),
            Self::Operands(args) => operands::run(&args),
            Self::Opflex(args) => opflex::run(args, settings),
            Self::Request(args) => exchange::request(&args),
            Self::Scheduler(args) => scheduler::run(args, settings),
            Self::Send(args) => send::run(args),
            Self::Server(args) => server::run(args, settings),
            Self::Session(args) => session::run(args),
            Self::Token(args) => ctl::tokens::run(args),
            Self::Top(args) => ctl::top::run(args),
            Self::Watch(args) => watch::run(&args),
        }
    }

    /// The level of the log without --log and RUST_LOG. A daemon logs its warnings for its
    /// operator, as a node that joins does; any other subcommand prints only the line with its error.
    pub(crate) fn log_level(&self) -> &'static str {
        if matches!(self, Self::Agent(_) | Self::Join(_) | Self::Netagent(_)) || self.serves_many() {
            "warn"
        } else {
            "error"
        }
    }

    /// True if the process holds frames of many peers.
    pub(crate) fn serves_many(&self) -> bool {
        match self {
            Self::Scheduler(_) | Self::Server(_) => true,
            Self::Cnci(args) => args.serves(),
            Self::Controller(args) => args.serves(),
            Self::Opflex(args) => args.serves(),
            _ => false,
        }
    }
}
