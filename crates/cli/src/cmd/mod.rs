//! The subcommands. Each file has `Args`, what the command line says, and
//! `run`, which does it. A build with the feature `cli-agent` alone has
//! `agent` only.
//!
//! | file | subcommand |
//! |---|---|
//! | `agent` | run the agent of a node |
//! | `cert` | make, show and check certificates |
//! | `completions` | for shells; `manual`: pages for packages |
//! | `config` | check and show the settings of daemons |
//! | `context` | name servers and how to reach them |
//! | `ctl/` | command a cluster, and show it |
//! | `decode` | name the fields of frames |
//! | `demo` | everything at once |
//! | `listen` | print what arrives |
//! | `operands` | every kind of frame |
//! | `opflex/` | policy over OpFlex |
//! | `scheduler` | the server of a cluster |
//! | `send` | send frames |
//! | `server` | filter and route; `dev`: with throw-away certificates |
//! | `session/` | a session for programs in any language |

pub(crate) mod agent;
#[cfg(feature = "full")]
pub(crate) mod cert;
#[cfg(feature = "full")]
pub(crate) mod cnci;
#[cfg(feature = "full")]
pub(crate) mod completions;
#[cfg(feature = "full")]
pub(crate) mod config;
#[cfg(feature = "full")]
pub(crate) mod context;
#[cfg(feature = "full")]
pub(crate) mod ctl;
#[cfg(feature = "full")]
pub(crate) mod decode;
#[cfg(feature = "full")]
pub(crate) mod demo;
#[cfg(feature = "full")]
mod dev;
#[cfg(feature = "full")]
pub(crate) mod listen;
#[cfg(feature = "full")]
pub(crate) mod operands;
#[cfg(feature = "full")]
pub(crate) mod opflex;
#[cfg(feature = "full")]
pub(crate) mod scheduler;
#[cfg(feature = "full")]
pub(crate) mod send;
#[cfg(feature = "full")]
pub(crate) mod server;
#[cfg(feature = "full")]
pub(crate) mod session;

use crate::args::Command;
use crate::failure::Failure;
use crate::settings::Settings;

/// Runs a subcommand to its end. A daemon has settings, too.
pub(crate) fn run(command: Command, settings: Settings) -> Result<(), Failure> {
    match command {
        Command::Agent(args) => agent::run(args, settings),
        #[cfg(feature = "full")]
        Command::Caretaker(args) => demo::caretaker::run(&args),
        #[cfg(feature = "full")]
        Command::Cert(args) => cert::run(args),
        #[cfg(feature = "full")]
        Command::Cnci(args) => cnci::run(args, settings),
        #[cfg(feature = "full")]
        Command::Config(args) => config::run(args),
        #[cfg(feature = "full")]
        Command::Completions(args) => completions::run(&args),
        #[cfg(feature = "full")]
        Command::Context(args) => context::run(args),
        #[cfg(feature = "full")]
        Command::Ctl(args) => ctl::run(args),
        #[cfg(feature = "full")]
        Command::Decode(args) => decode::run(args),
        #[cfg(feature = "full")]
        Command::Demo(args) => demo::run(args),
        #[cfg(feature = "full")]
        Command::Listen(args) => listen::run(args),
        #[cfg(feature = "full")]
        Command::Manual(args) => completions::manual(&args),
        #[cfg(feature = "full")]
        Command::Operands(args) => operands::run(&args),
        #[cfg(feature = "full")]
        Command::Opflex(args) => opflex::run(args, settings),
        #[cfg(feature = "full")]
        Command::Scheduler(args) => scheduler::run(args, settings),
        #[cfg(feature = "full")]
        Command::Send(args) => send::run(args),
        #[cfg(feature = "full")]
        Command::Server(args) => server::run(args, settings),
        #[cfg(feature = "full")]
        Command::Session(args) => session::run(args),
    }
}
