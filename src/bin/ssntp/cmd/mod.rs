//! The subcommands. Each file has `Args`, what the command line says, and
//! `run`, which does it.
//!
//! | file | subcommand |
//! |---|---|
//! | `agent` | run the agent of a node |
//! | `bench` | measure a server |
//! | `cert` | make, show and check certificates |
//! | `ctl/` | command a cluster, and show it |
//! | `decode` | name the fields of frames |
//! | `demo` | everything at once |
//! | `listen` | print what arrives |
//! | `opflex/` | policy over OpFlex |
//! | `scheduler` | the server of a cluster |
//! | `send` | send frames |
//! | `server` | filter and route |

pub(crate) mod agent;
pub(crate) mod bench;
pub(crate) mod cert;
pub(crate) mod cnci;
pub(crate) mod ctl;
pub(crate) mod decode;
pub(crate) mod demo;
pub(crate) mod listen;
#[cfg(feature = "opflex")]
pub(crate) mod opflex;
pub(crate) mod scheduler;
pub(crate) mod send;
pub(crate) mod server;

use crate::args::Command;
use crate::failure::Failure;

/// Runs a subcommand to its end.
pub(crate) fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::Agent(args) => agent::run(args),
        Command::Bench(args) => bench::run(args),
        Command::Caretaker(args) => demo::caretaker::run(&args),
        Command::Cert(args) => cert::run(args),
        Command::Cnci(args) => cnci::run(args),
        Command::Ctl(args) => ctl::run(args),
        Command::Decode(args) => decode::run(args),
        Command::Demo(args) => demo::run(args),
        Command::Listen(args) => listen::run(args),
        #[cfg(feature = "opflex")]
        Command::Opflex(args) => opflex::run(args),
        Command::Scheduler(args) => scheduler::run(args),
        Command::Send(args) => send::run(args),
        Command::Server(args) => server::run(args),
    }
}
