//! `ssntp context`: manages contexts, which are named settings of the connection to a server.

use clap::Subcommand;
use serde_json::json;
use ssntp_daemon::{Context, Contexts, Failure, ServerArgs, print_line};

use super::table::{self, Columns};

/// Save the address and certificates of a server under a name for other commands
///
/// If neither an option nor SSNTP_CONNECT, SSNTP_CA, SSNTP_CERT or SSNTP_CRL gives a
/// value, a command takes it from a context: the one that --context or SSNTP_CONTEXT
/// names, else the current one.
#[derive(Debug, Subcommand)]
pub(crate) enum Args {
    Add(AddContext),
    /// Make a context the current one
    Use {
        /// The name of the context
        #[arg(value_name = "CONTEXT")]
        name: String,
    },
    /// Show the contexts
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Remove a context; its certificate files stay
    Remove {
        /// The name of the context
        #[arg(value_name = "CONTEXT")]
        name: String,
    },
}

/// Add a context, or replace it
///
/// It becomes the current one if there is none.
#[derive(Debug, clap::Args)]
pub(crate) struct AddContext {
    /// The context's name
    name: String,
    #[command(flatten)]
    server: ServerArgs,
    /// Make it the current one
    #[arg(long = "use")]
    is_current: bool,
}

pub(crate) fn run(args: Args) -> Result<(), Failure> {
    match args {
        Args::Add(add) => self::add(&add),
        Args::Use { name } => Contexts::change(|contexts| {
            if !contexts.contexts.contains_key(&name) {
                return Err(contexts.unknown(&name));
            }
            contexts.current = name;
            Ok(())
        }),
        Args::List { json } => list(json),
        Args::Remove { name } => remove(&name),
    }
}

fn add(args: &AddContext) -> Result<(), Failure> {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if args.name.is_empty() || args.name.len() > 64 || !args.name.chars().all(is_allowed) {
        return Err(Failure::usage(format!(
            "{:?} cannot be a context's name: it needs 1 to 64 letters, digits, -, _ and .",
            args.name
        )));
    }
    // The files are read now, so that a mistake is reported here and not by a later command.
    let context = args.server.to_context()?;
    Contexts::change(|contexts| {
        if contexts.current.is_empty() || args.is_current {
            contexts.current.clone_from(&args.name);
        }
        contexts.contexts.insert(args.name.clone(), context);
        Ok(())
    })
}

fn list(as_json: bool) -> Result<(), Failure> {
    let contexts = Contexts::load()?;
    let mut rows = Vec::new();
    for name in contexts.contexts.keys() {
        let context = contexts.find(Some(name))?;
        rows.extend(context.map(|context| (name.clone(), context)));
    }
    let value = |(name, context): &(String, Context)| {
        json!({
            "name": name, "current": *name == contexts.current, "connect": context.connect,
            "ca": context.ca, "cert": context.cert, "key": context.key, "crl": context.crl,
            "server_name": context.server_name,
        })
    };
    if rows.is_empty() && !as_json {
        print_line("there are no contexts: `ssntp context add` makes one, and so does `ssntp server --dev`")
    } else {
        table::print(as_json, COLUMNS, &contexts, &rows, value)
    }
}

#[rustfmt::skip] // A table: one row a column.
const COLUMNS: Columns<Contexts, (String, Context)> = &[
    ("context", |_, (name, _)| name.clone()),
    ("", |contexts, (name, _)| if *name == contexts.current { "*" } else { "" }.into()),
    ("connect", |_, (_, context)| context.connect.join(",")),
    ("cert", |_, (_, context)| context.cert.clone()),
    ("ca", |_, (_, context)| context.ca.clone()),
];

fn remove(name: &str) -> Result<(), Failure> {
    Contexts::change(|contexts| {
        // No other context becomes the current one, because commands would go to another server unnoticed.
        if contexts.current == name {
            contexts.current.clear();
        }
        match contexts.contexts.remove(name) {
            Some(_) => Ok(()),
            None => Err(contexts.unknown(name)),
        }
    })
}
