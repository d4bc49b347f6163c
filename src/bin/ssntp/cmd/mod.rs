//! The subcommands. Each file has `Args`, what the command line says, and
//! `run`, which does it. A build with the feature `cli-agent` alone has
//! `agent` only.
//!
//! | file | subcommand |
//! |---|---|
//! | `agent` | run the agent of a node |
//! | `bench` | measure a server |
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
#[cfg(feature = "cli")]
pub(crate) mod bench;
#[cfg(feature = "cli")]
pub(crate) mod cert;
#[cfg(feature = "cli")]
pub(crate) mod cnci;
#[cfg(feature = "cli")]
pub(crate) mod completions;
#[cfg(feature = "cli")]
pub(crate) mod config;
#[cfg(feature = "cli")]
pub(crate) mod context;
#[cfg(feature = "cli")]
pub(crate) mod ctl;
#[cfg(feature = "cli")]
pub(crate) mod decode;
#[cfg(feature = "cli")]
pub(crate) mod demo;
#[cfg(feature = "cli")]
mod dev;
#[cfg(feature = "cli")]
pub(crate) mod listen;
#[cfg(feature = "cli")]
pub(crate) mod operands;
#[cfg(all(feature = "cli", feature = "opflex"))]
pub(crate) mod opflex;
#[cfg(feature = "cli")]
pub(crate) mod scheduler;
#[cfg(feature = "cli")]
pub(crate) mod send;
#[cfg(feature = "cli")]
pub(crate) mod server;
#[cfg(feature = "cli")]
pub(crate) mod session;

use crate::args::Command;
use crate::failure::Failure;
use crate::settings::Settings;

/// Runs a subcommand to its end. A daemon has settings, too.
pub(crate) fn run(command: Command, settings: Settings) -> Result<(), Failure> {
    match command {
        Command::Agent(args) => agent::run(args, settings),
        #[cfg(feature = "cli")]
        Command::Bench(args) => bench::run(args),
        #[cfg(feature = "cli")]
        Command::Caretaker(args) => demo::caretaker::run(&args),
        #[cfg(feature = "cli")]
        Command::Cert(args) => cert::run(args),
        #[cfg(feature = "cli")]
        Command::Cnci(args) => cnci::run(args, settings),
        #[cfg(feature = "cli")]
        Command::Config(args) => config::run(args),
        #[cfg(feature = "cli")]
        Command::Completions(args) => completions::run(&args),
        #[cfg(feature = "cli")]
        Command::Context(args) => context::run(args),
        #[cfg(feature = "cli")]
        Command::Ctl(args) => ctl::run(args),
        #[cfg(feature = "cli")]
        Command::Decode(args) => decode::run(args),
        #[cfg(feature = "cli")]
        Command::Demo(args) => demo::run(args),
        #[cfg(feature = "cli")]
        Command::Listen(args) => listen::run(args),
        #[cfg(feature = "cli")]
        Command::Manual(args) => completions::manual(&args),
        #[cfg(feature = "cli")]
        Command::Operands(args) => operands::run(&args),
        #[cfg(all(feature = "cli", feature = "opflex"))]
        Command::Opflex(args) => opflex::run(args, settings),
        #[cfg(feature = "cli")]
        Command::Scheduler(args) => scheduler::run(args, settings),
        #[cfg(feature = "cli")]
        Command::Send(args) => send::run(args),
        #[cfg(feature = "cli")]
        Command::Server(args) => server::run(args, settings),
        #[cfg(feature = "cli")]
        Command::Session(args) => session::run(args),
    }
}
