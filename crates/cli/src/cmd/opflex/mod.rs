//! `ssntp opflex`: the OpFlex control protocol.
//!
//! | file | subcommand, or what subcommands share |
//! |---|---|
//! | `serve` | policy repository, endpoint registry, observer |
//! | `element` | a policy element |
//! | `policy` | change the policy of a running server |
//! | `show` | `endpoints`, `reports`, `sessions`, `agents`: what a running server has |
//! | `flags` | flags that several subcommands have: of a running server, of sockets, of times |
//! | `identity` | the flags for what a server tells elements |
//! | `tls` | the flags for TLS |
//! | `source` | policy files |

mod element;
mod flags;
mod identity;
mod policy;
mod serve;
mod show;
mod source;
mod tls;

use std::fmt::Display;
use std::path::Path;
use std::sync::Arc;

use clap::Subcommand;
use ssntp_daemon::{Failure, Output, Problems, Settings, input, printable};
use ssntp_opflex::model::{Format, ManagedObject, Schema};

/// Serve and use policy over OpFlex
#[derive(Debug, Subcommand)]
pub(crate) enum Args {
    Serve(Box<serve::Args>),
    Element(Box<element::Args>),
    Policy(policy::Args),
    /// Print the endpoints that a running server knows
    Endpoints(show::ObjectArgs),
    /// Print the last state report of each object, and its numbers over time
    Reports(show::ObjectArgs),
    /// Print the clients of a running server with their counters
    Sessions(flags::ControlArgs),
    /// Print every agent that was connected since the server started, and the counters of
    /// all its sessions
    Agents(flags::ControlArgs),
}

pub(crate) fn run(args: Args, settings: Settings) -> Result<(), Failure> {
    match args {
        Args::Serve(args) => serve::run(*args, settings),
        Args::Element(args) => element::run(*args),
        Args::Policy(args) => policy::run(args),
        Args::Endpoints(args) => show::endpoints(args),
        Args::Reports(args) => show::reports(args),
        Args::Sessions(control) => show::sessions(&control),
        Args::Agents(control) => show::agents(&control),
    }
}

impl Args {
    /// The problems that can be found without starting anything, by key.
    pub(crate) fn problems(&self) -> Problems {
        match self {
            Self::Serve(args) => args.problems(),
            Self::Element(args) => args.problems(),
            _ => Problems::default(),
        }
    }

    /// True if this command runs until it is stopped. Then its warnings are logged by default.
    pub(crate) fn serves(&self) -> bool {
        match self {
            Self::Serve(_) => true,
            Self::Element(args) => args.stays(),
            _ => false,
        }
    }
}

/// Reads a file as JSON or, if its name says so, YAML. `-` is the standard input. An error names the file.
fn load<T, E: Display>(path: &Path, read: impl FnOnce(&[u8], Format) -> Result<T, E>) -> Result<T, Failure> {
    let text = input::named(path)?;
    read(&text, Format::of_name(&path.to_string_lossy())).map_err(|e| Failure::at(path, e))
}

fn load_objects(path: &Path) -> Result<Vec<ManagedObject>, Failure> {
    load(path, ManagedObject::read_all)
}

fn load_model(path: &Path) -> Result<Arc<Schema>, Failure> {
    load(path, Schema::read).map(Arc::new)
}

/// The class and the URI with a note behind it, then a line for each property.
pub(super) fn print_with_note(
    output: &mut Output,
    object: &ManagedObject,
    note: &str,
) -> Result<(), Failure> {
    let line = format!("{} {} {note}", object.subject, object.uri);
    output.line(printable(line.trim_end()))?;
    print_properties(output, object)
}

pub(super) fn print_properties(output: &mut Output, object: &ManagedObject) -> Result<(), Failure> {
    object
        .properties
        .iter()
        .try_for_each(|property| output.line(printable(&format!("  {} = {}", property.name, property.data))))
}
