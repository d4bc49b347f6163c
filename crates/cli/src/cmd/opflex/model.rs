//! `ssntp opflex model import`: a model file from agent-ovs's own definitions.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use clap::Subcommand;
use ssntp_opflex::model::{Format, Imported};

use crate::failure::Failure;
use crate::output::Output;

/// Make model files, which `serve --model` checks policy with
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Make one of the definition files of agent-ovs's model
    ///
    /// These are the files `*.mdl` in genie/MODEL of its sources. What they
    /// name and do not define is left out, or taken as anything, and counted.
    Import {
        /// Where the definition files are, in whatever folders
        dir: PathBuf,
        /// The file to write: JSON, or YAML where its name ends so [default:
        /// the standard output, as YAML]
        #[arg(long, value_name = "FILE")]
        output: Option<PathBuf>,
        /// Let classes that are not in the model be taken too
        #[arg(long)]
        open: bool,
    },
}

/// The most definition files, the most bytes of them together, and how deep
/// folders may stand in others.
const FILES: usize = 10_000;
const BYTES: u64 = 64 << 20;
const DEPTH: usize = 32;

/// Places that are named of what was skipped.
const SHOWN: usize = 10;

pub(super) fn run(args: Args) -> Result<(), Failure> {
    let Command::Import { dir, output, open } = args.command;
    let texts = read(&dir)?;
    if texts.is_empty() {
        return Err(Failure::new(format!(
            "{}: there are no *.mdl files",
            dir.display()
        )));
    }
    let files = texts.iter().map(|(name, text)| (name.as_str(), text.as_str()));
    let mut imported = Imported::read(files).map_err(Failure::new)?;
    if open {
        imported = imported.open();
    }
    let format = output
        .as_ref()
        .map_or(Format::Yaml, |path| Format::of_name(&path.to_string_lossy()));
    let text = imported.text(format).map_err(Failure::new)?;
    match &output {
        Some(path) => {
            fs::write(path, text).map_err(|e| Failure::new(format!("{}: {e}", path.display())))?;
        }
        None => {
            let mut out = Output::new();
            out.text(&text)?;
            out.flush()?;
        }
    }
    for place in imported.skipped.iter().take(SHOWN) {
        eprintln!("skipped: {place}");
    }
    eprintln!(
        "{} files: {} classes with {} properties, {} skipped",
        texts.len(),
        imported.classes(),
        imported.properties(),
        imported.skipped.len()
    );
    Ok(())
}

/// The definition files, in the order of their names.
fn read(dir: &Path) -> Result<Vec<(String, String)>, Failure> {
    let failed = |path: &Path, e: &io::Error| Failure::new(format!("{}: {e}", path.display()));
    let mut paths = Vec::new();
    let mut folders = vec![(dir.to_owned(), 0)];
    while let Some((folder, depth)) = folders.pop() {
        for entry in fs::read_dir(&folder).map_err(|e| failed(&folder, &e))? {
            let entry = entry.map_err(|e| failed(&folder, &e))?;
            let (path, kind) = (entry.path(), entry.file_type());
            if kind.is_ok_and(|kind| kind.is_dir()) {
                if depth < DEPTH {
                    folders.push((path, depth + 1));
                }
            } else if path.extension().is_some_and(|end| end == "mdl") {
                paths.push(path);
            }
        }
    }
    if paths.len() > FILES {
        return Err(Failure::new(format!(
            "{}: more than {FILES} files",
            dir.display()
        )));
    }
    paths.sort_unstable();
    let mut left = BYTES;
    let mut texts = Vec::new();
    for path in paths {
        let len = fs::metadata(&path).map_err(|e| failed(&path, &e))?.len();
        left = left
            .checked_sub(len)
            .ok_or_else(|| Failure::new(format!("{}: more than {BYTES} bytes", dir.display())))?;
        let text = fs::read(&path).map_err(|e| failed(&path, &e))?;
        texts.push((
            path.display().to_string(),
            String::from_utf8_lossy(&text).into_owned(),
        ));
    }
    Ok(texts)
}
