//! The subcommands. Each file has `Args`, what the command line says, and
//! `run`, which does it.
//!
//! | file | subcommand |
//! |---|---|
//! | `bench` | measure a server |
//! | `cert` | make, show and check certificates |
//! | `decode` | name the fields of frames |
//! | `server` | filter and route |

pub(crate) mod bench;
pub(crate) mod cert;
pub(crate) mod decode;
pub(crate) mod server;

use crate::args::Command;
use crate::failure::Failure;

/// Runs a subcommand to its end.
pub(crate) fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::Bench(args) => bench::run(args),
        Command::Cert(args) => cert::run(args),
        Command::Decode(args) => decode::run(args),
        Command::Server(args) => server::run(args),
    }
}
