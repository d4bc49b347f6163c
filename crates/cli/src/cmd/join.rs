//! `ssntp join`: gets a node's certificate with a token, and renews it, for programs that are not `ssntp agent`.

use std::path::PathBuf;

use ssntp::Role;
use ssntp::client::{ClientConfig, NodeFiles};
use ssntp::transport::Address;
use ssntp_daemon::{Failure, Given, Stop, TokenArgs, for_shell, note, print_line, remedy, to_dial};

/// Join a cluster with a token: get the certificate of a node, or renew it
///
/// Writes DIR/node.pem, the certificate and its key, and DIR/ca.pem, the authority. If
/// DIR has a valid certificate of this cluster, nothing is done. `ssntp agent --join`
/// does the same at its start, and renews the certificate by itself.
///
/// For other programs, run `ssntp join --renew` once a day. It needs no token: it
/// connects with the certificate, and takes over for a moment the session of the program
/// that uses it.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    join: TokenArgs,
    /// The directory for the files; it is made if it does not exist
    #[arg(long = "dir", value_name = "DIR")]
    state: PathBuf,
    /// The roles that the node gets
    #[arg(long, value_name = "ROLE[,ROLE…]", default_value = "agent")]
    role: Role,
    /// Renew the certificate in DIR, once two thirds of its life are over
    #[arg(long)]
    renew: bool,
    /// The server that renews the certificate [default: that of --join]
    #[arg(long, value_name = "ADDR", value_parser = to_dial, value_delimiter = ',', requires = "renew")]
    connect: Vec<Address>,
    /// The name that the server's certificate must hold [default: the host of --join or
    /// --connect]
    #[arg(long, value_name = "NAME")]
    server_name: Option<String>,
}

/// Runs `ssntp join`.
pub(crate) fn run(args: Args) -> Result<(), Failure> {
    // A signal does not interrupt the writing of a key.
    let _stop = Stop::install_for_commands()?;
    let has_joined = NodeFiles::new(&args.state).load().is_ok();
    let joined = args.join.run(&args.state, args.role, args.server_name.clone())?;
    if args.renew {
        let mut servers = args.connect;
        if servers.is_empty() {
            servers.extend(joined.map(|(_, address)| address));
        }
        if servers.is_empty() {
            return Err(Failure::usage(
                "--connect is needed: the server that renews the certificate",
            ));
        }
        let set = |config: ClientConfig| {
            let config = config.addresses(servers).first_attempts(ATTEMPTS);
            config.given(args.server_name, ClientConfig::server_name)
        };
        return renew(&NodeFiles::new(args.state), set);
    }
    let (files, address) = joined.ok_or_else(|| Failure::usage("--join is needed"))?;
    let (cert, ca) = (files.certificate(), files.authority());
    let (ca, cert) = (for_shell(&ca), for_shell(&cert));
    print_line(format_args!("--connect {address} --ca {ca} --cert {cert}"))?;
    if has_joined {
        note("ssntp: this node had joined before, so the token was not used");
    }
    let until = files.load()?.0.info().not_after_text();
    let dir = for_shell(&args.state);
    note(format_args!(
        "ssntp: the certificate is valid until {until}; `ssntp join --renew --connect {address} --dir {dir}`, once a \
         day, renews it in time"
    ));
    Ok(())
}

/// The rounds of attempts to connect. A program whose session was taken over may be a moment faster.
const ATTEMPTS: u32 = 3;

fn renew(files: &NodeFiles, set: impl FnOnce(ClientConfig) -> ClientConfig) -> Result<(), Failure> {
    let renewed = files.renew(set).map_err(|why| {
        let remedy = remedy(&why);
        Failure::new(format_args!("the certificate is not renewed: {why}{remedy}"))
    })?;
    let until = files.load()?.0.info().not_after_text();
    print_line(if renewed {
        format!("renewed: the certificate is valid until {until}")
    } else {
        format!("the certificate is valid until {until}; it is too early to renew it")
    })
}
