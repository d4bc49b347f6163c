//! `ssntp join`: gets a node's certificate with a token, for programs that are not `ssntp agent`.

use std::path::PathBuf;

use ssntp::Role;

use crate::connection::JoinArgs;
use crate::failure::Failure;
use crate::output::print_line;
use crate::signals::Stop;

/// Join a cluster with a token: get the certificate of a node
///
/// Writes DIR/node.pem, the certificate and its key, and DIR/ca.pem, the authority. If
/// DIR has a valid certificate of this cluster, nothing is done. `ssntp agent --join`
/// does the same at its start, and renews the certificate.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    join: JoinArgs,
    /// The directory for the files; it is made if it does not exist
    #[arg(long = "dir", value_name = "DIR")]
    state: PathBuf,
    /// The roles that the node gets
    #[arg(long, value_name = "ROLE[,ROLE…]", default_value = "agent")]
    role: Role,
}

/// Runs `ssntp join`.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    // A signal does not interrupt the writing of a key.
    let _stop = Stop::install_for_commands()?;
    let (files, address) = args
        .join
        .run(&args.state, args.role)?
        .ok_or_else(|| Failure::usage("--join is needed"))?;
    let (cert, ca) = (files.certificate(), files.authority());
    print_line(format_args!(
        "--connect {address} --ca {} --cert {}",
        ca.display(),
        cert.display()
    ))
}
