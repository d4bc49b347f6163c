//! `ssntp opflex`: the OpFlex control protocol.
//!
//! | file | subcommand |
//! |---|---|
//! | `serve` | policy repository, endpoint registry, observer |
//! | `element` | a policy element |
//! | `policy` | change the policy of a running server |
//! | `show` | `endpoints`, `reports`, `sessions`, `agents`: what a running server has |
//! | `model` | make model files |
//!
//! `identity`, `local` and `tls` are flags of these, `source` is the policy file, `control` is the way to a running
//! server, and `printing` how objects are shown.

mod control;
mod element;
mod identity;
mod local;
mod model;
mod policy;
mod printing;
mod serve;
mod show;
mod source;
mod tls;

use std::path::Path;
use std::sync::Arc;

use clap::Subcommand;
use ssntp_opflex::model::{Format, ManagedObject, Schema};

use crate::failure::Failure;
use crate::settings::{Problems, Settings};

/// Serve and use policy over OpFlex
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Serve(Box<serve::Args>),
    Element(Box<element::Args>),
    Policy(policy::Args),
    Endpoints(show::EndpointArgs),
    Reports(show::ReportArgs),
    Sessions(show::SessionArgs),
    Agents(show::AgentArgs),
    Model(model::Args),
}

pub(crate) fn run(args: Args, settings: Settings) -> Result<(), Failure> {
    match args.command {
        Command::Serve(args) => serve::run(*args, settings),
        Command::Element(args) => element::run(*args),
        Command::Policy(args) => policy::run(args),
        Command::Endpoints(args) => show::endpoints(args),
        Command::Reports(args) => show::reports(args),
        Command::Sessions(args) => show::sessions(args),
        Command::Agents(args) => show::agents(args),
        Command::Model(args) => model::run(args),
    }
}

impl Args {
    /// What can be told to be wrong before it is started, by its key.
    pub(crate) fn problems(&self) -> Problems {
        match &self.command {
            Command::Serve(args) => args.problems(),
            Command::Element(args) => args.problems(),
            _ => Problems::default(),
        }
    }

    /// Whether it is a server, whose warnings an operator wants to see.
    pub(crate) fn serves(&self) -> bool {
        match &self.command {
            Command::Serve(_) => true,
            Command::Element(args) => args.stays(),
            _ => false,
        }
    }
}

/// Reads a file of managed objects, as JSON or, where its name says so, YAML.
fn load_objects(path: &Path) -> Result<Vec<ManagedObject>, Failure> {
    let shown = path.display();
    let text = std::fs::read(path).map_err(|e| Failure::new(format!("{shown}: {e}")))?;
    let format = Format::of_name(&path.to_string_lossy());
    ManagedObject::read_all(&text, format).map_err(|e| Failure::new(format!("{shown}: {e}")))
}

/// Reads a model file, as JSON or, where its name says so, YAML.
fn load_model(path: &Path) -> Result<Arc<Schema>, Failure> {
    let shown = path.display();
    let text = std::fs::read(path).map_err(|e| Failure::new(format!("{shown}: {e}")))?;
    let schema = Schema::read(&text, Format::of_name(&path.to_string_lossy()));
    schema
        .map(Arc::new)
        .map_err(|e| Failure::new(format!("{shown}: {e}")))
}
