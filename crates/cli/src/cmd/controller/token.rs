//! `ssntp controller token`: the tokens for the API of a controller.

use std::path::Path;

use serde_json::{Value, json};
use ssntp::pki::rfc3339;
use ssntp_controller::http::{Right, Token, Tokens};

use crate::clock::wall_clock;
use crate::cmd::table::{Columns, print};
use crate::failure::Failure;
use crate::output::print_either;

/// Make, list and remove the tokens that browsers and programs use for the API
///
/// A change takes effect at once, even while the controller runs.
#[derive(Debug, clap::Subcommand)]
pub(super) enum Args {
    /// Make a token and print it; the token is not shown again
    Add {
        /// A name for the token
        name: String,
        /// Let the token change workloads as well as read
        #[arg(long)]
        write: bool,
    },
    /// List the tokens, without their secrets
    List,
    /// Remove a token
    Remove {
        /// The name of the token
        name: String,
    },
}

pub(super) fn run(args: &Args, store: &Path, json: bool) -> Result<(), Failure> {
    let tokens = Tokens::new(store);
    match args {
        Args::Add { name, write } => {
            let right = if *write { Right::Write } else { Right::Read };
            let secret = tokens.add(name, right, &rfc3339(wall_clock()));
            let secret = secret.map_err(Failure::new)?;
            let value = json!({ "name": name, "right": right, "token": secret });
            print_either(json, value, secret)
        }
        Args::List => {
            let tokens = tokens.list().map_err(Failure::new)?;
            print(json, TOKENS, &(), &tokens, shown)
        }
        Args::Remove { name } => tokens.remove(name).map_err(Failure::new),
    }
}

#[rustfmt::skip] // A table: one row a column.
const TOKENS: Columns<(), Token> = &[
    ("name", |(), token| token.name.clone()),
    ("may", |(), token| if token.right == Right::Write { "look and write" } else { "look" }.to_owned()),
    ("made", |(), token| token.made.clone()),
];

fn shown(token: &Token) -> Value {
    json!({ "name": token.name, "right": token.right, "made": token.made })
}
