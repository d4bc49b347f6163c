//! `ssntp controller token`: makes, lists and removes the tokens for a controller's HTTP API.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use ssntp_controller::http::{Right, Token, Tokens};
use ssntp_daemon::{Failure, note, print_either};

use crate::cmd::table::{Columns, print};

/// Make, list and remove the tokens that browsers and programs use for the API
///
/// A change takes effect at once; the controller need not be started again.
#[derive(Debug, clap::Subcommand)]
pub(super) enum Args {
    /// Make a token and print it; the token is not shown again
    Add {
        /// A name for the token
        name: String,
        /// Allow changes of workloads; without it the token may only read
        #[arg(long)]
        write: bool,
        /// Limit the token to what a tenant has: its workloads with their instances, history and output
        #[arg(long, value_name = "NAME", conflicts_with = "write")]
        tenant: Option<String>,
        /// The number of days after which the token expires; without it the token never expires
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=36_500))]
        days: Option<u32>,
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
        Args::Add {
            name,
            write,
            tenant,
            days,
        } => {
            let right = if *write { Right::Write } else { Right::Read };
            let lifetime = days.map(|days| Duration::from_secs(u64::from(days) * 86_400));
            // The controller, which also makes the directory, may not have been started yet. Or it uses
            // another one, and the name is misspelt.
            if !store.exists() {
                let shown = store.display();
                note(format_args!(
                    "ssntp: {shown} is made: no controller has been started with it"
                ));
            }
            let made = DirBuilder::new().recursive(true).mode(0o700).create(store);
            made.map_err(|e| Failure::at(store, e))?;
            let secret = tokens.add(name, right, tenant.as_deref(), lifetime);
            let secret = secret.map_err(Failure::new)?;
            let value = json!({ "name": name, "right": right, "tenant": tenant, "token": secret });
            print_either(json, value, secret)
        }
        Args::List => {
            let tokens = tokens.list().map_err(Failure::new)?;
            print(json, TOKENS, &(), &tokens, shown)
        }
        Args::Remove { name } => tokens.remove(name).map_err(Failure::new),
    }
}

#[rustfmt::skip] // One source line for each column of the table.
const TOKENS: Columns<(), Token> = &[
    ("name", |(), token| token.name.clone()),
    ("access", |(), token| if token.right == Right::Write { "read and write" } else { "read" }.to_owned()),
    ("tenant", |(), token| token.tenant.clone().unwrap_or_default()),
    ("created", |(), token| token.made.clone()),
    ("expires", |(), token| token.expires.clone().unwrap_or_else(|| "never".to_owned())),
];

fn shown(token: &Token) -> Value {
    json!({ "name": token.name, "right": token.right, "tenant": token.tenant, "made": token.made, "expires": token.expires })
}
