//! The subcommands. Each file has `Args`, what the command line says, and
//! `run`, which does it.
//!
//! | file | subcommand |
//! |---|---|
//! | `cert` | make, show and check certificates |
//! | `decode` | name the fields of frames |
//! | `scheduler` | the server of a cluster |
//! | `server` | filter and route |

pub(crate) mod cert;
pub(crate) mod decode;
pub(crate) mod scheduler;
pub(crate) mod server;

use crate::args::Command;
use crate::failure::Failure;

/// Runs a subcommand to its end.
pub(crate) fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::Cert(args) => cert::run(args),
        Command::Decode(args) => decode::run(args),
        Command::Scheduler(args) => scheduler::run(args),
        Command::Server(args) => server::run(args),
    }
}
