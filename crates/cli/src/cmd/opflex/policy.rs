//! `ssntp opflex policy`: changes the policy of a running server.

use std::path::PathBuf;

use clap::Subcommand;
use serde_json::json;
use ssntp_daemon::{Failure, print_either, print_text, printable_json};
use ssntp_opflex::model::{Format, ManagedObject, Uri};
use ssntp_opflex::run::{ControlError, Edited};

use super::flags::ControlArgs;
use super::load_objects;

/// Change or show the policy of a running server
///
/// Talks to the socket that `ssntp opflex serve --control` names. A change is complete
/// when the elements that use the policy have been told and, with --persist, it is on
/// the disk.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    control: ControlArgs,
    #[command(subcommand)]
    command: Change,
}

#[derive(Debug, Subcommand)]
enum Change {
    /// Add the objects of files, or replace those with the same URIs
    Put {
        /// JSON or YAML arrays of managed objects; - is the standard input, in JSON
        #[arg(required = true)]
        files: Vec<PathBuf>,
        /// Remove everything else below these objects
        #[arg(long)]
        replace: bool,
        #[command(flatten)]
        only: Only,
    },
    /// Replace all policy by the objects of files
    Reload {
        /// JSON or YAML arrays of managed objects; - is the standard input, in JSON
        #[arg(required = true)]
        files: Vec<PathBuf>,
        #[command(flatten)]
        only: Only,
    },
    /// Remove objects and everything below them
    Delete {
        /// The objects, with or without their last slash
        #[arg(required = true)]
        uris: Vec<Uri>,
        #[command(flatten)]
        only: Only,
    },
    /// Print the revision of the policy and the number of its objects
    Status,
    /// Print the objects at and below a URI
    Dump {
        /// Print only objects at and below this URI, with or without its last slash [default: all policy]
        uri: Option<Uri>,
        /// Print YAML
        #[arg(long, conflicts_with = "json")]
        yaml: bool,
    },
}

/// The condition of a change.
#[derive(Debug, clap::Args)]
struct Only {
    /// Change nothing unless the policy has this revision, which `status` prints and,
    /// with --json, every change
    #[arg(long, value_name = "N")]
    if_revision: Option<u64>,
}

pub(super) fn run(args: Args) -> Result<(), Failure> {
    let mut control = args.control.connect()?;
    let edited = match args.command {
        Change::Put { files, replace, only } => {
            control.if_revision = only.if_revision;
            control.put(&load_all(&files)?, replace)
        }
        Change::Reload { files, only } => {
            control.if_revision = only.if_revision;
            control.reload(&load_all(&files)?)
        }
        Change::Delete { uris, only } => {
            control.if_revision = only.if_revision;
            control.delete(&both_spellings(uris)?)
        }
        Change::Status => {
            let (revision, objects) = control.status().map_err(Failure::new)?;
            let text = format!("revision {revision}, {objects} objects");
            let as_json = json!({ "revision": revision, "objects": objects });
            return print_either(args.control.json, as_json, text);
        }
        Change::Dump { uri, yaml } => {
            let mut objects = Vec::new();
            for spelling in both_spellings(vec![uri.unwrap_or_else(Uri::root)])? {
                // Both spellings have the same objects below them.
                objects.retain(|object: &ManagedObject| !spelling.is_ancestor_of(&object.uri));
                objects.extend(control.dump(&spelling).map_err(Failure::new)?);
            }
            let format = if yaml { Format::Yaml } else { Format::Json };
            let text = ManagedObject::write_all(&objects, format).map_err(Failure::new)?;
            return print_text(&if yaml { text } else { printable_json(&text) });
        }
    };
    let Edited { changed, revision } = edited.map_err(|e| match e {
        // A server that was paused makes the change once it continues.
        ControlError::TimedOut => Failure::new(format_args!("{e}, and may still make the change")),
        ControlError::Closed => Failure::new(format_args!("{e}, and may have made the change")),
        e => Failure::new(e),
    })?;
    let objects = if changed == 1 { "object" } else { "objects" };
    let value = json!({ "changed": changed, "revision": revision });
    print_either(args.control.json, value, format!("{changed} {objects} changed"))
}

/// These URIs; those without their last slash, with which nearly all objects are named, also with it.
fn both_spellings(uris: Vec<Uri>) -> Result<Vec<Uri>, Failure> {
    let mut all = Vec::new();
    for uri in uris {
        let whole = (!uri.as_str().ends_with('/')).then(|| format!("{uri}/").parse());
        all.push(uri);
        all.extend(whole.transpose().map_err(Failure::new)?);
    }
    Ok(all)
}

fn load_all(files: &[PathBuf]) -> Result<Vec<ManagedObject>, Failure> {
    let objects: Result<Vec<_>, _> = files.iter().map(|file| load_objects(file)).collect();
    Ok(objects?.concat())
}
