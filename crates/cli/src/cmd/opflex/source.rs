//! The policy of a server in a file, or in the files of a directory, and whether these
//! have changed.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ssntp_opflex::model::{ManagedObject, Schema};

use super::load_objects;
use crate::failure::Failure;
use crate::watched::{Stamp, stamp};

/// How often the files are checked. After a change they are read only once two checks
/// have found the same, because a program may still be writing.
pub(super) const LOOK: Duration = Duration::from_secs(1);

/// The most files of a directory.
const FILES: usize = 10_000;

/// Policy in files, and what they were when they were read last.
#[derive(Debug)]
pub(super) struct Source {
    path: PathBuf,
    /// The model that objects have to fit: checked here, an error names the file.
    schema: Option<Arc<Schema>>,
    read: Stamps,
    seen: Stamps,
}

type Stamps = Result<Vec<(PathBuf, Stamp)>, io::ErrorKind>;

impl Source {
    pub(super) fn new(path: PathBuf, schema: Option<Arc<Schema>>) -> Self {
        Self {
            path,
            schema,
            read: Ok(Vec::new()),
            seen: Ok(Vec::new()),
        }
    }

    /// The path that it was made with.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// All the policy there is. An error names the file.
    pub(super) fn read(&mut self) -> Result<Vec<ManagedObject>, Failure> {
        let failed = |e: io::Error| Failure::new(format!("{}: {e}", self.path.display()));
        // Stamped before reading: a file that is written meanwhile counts as changed.
        self.seen = stamps(&self.path);
        self.read = stamps(&self.path);
        let mut objects = Vec::new();
        for file in files(&self.path).map_err(failed)? {
            let of_file = load_objects(&file)?;
            for object in &of_file {
                let judged = object.check();
                let judged = judged.and_then(|()| match &self.schema {
                    Some(schema) => schema.check(object),
                    None => Ok(()),
                });
                judged.map_err(|e| Failure::new(format!("{}: {e}", file.display())))?;
            }
            objects.extend(of_file);
        }
        Ok(objects)
    }

    /// Whether the files have changed since they were read, and not since the last call.
    /// To be called every [`LOOK`].
    pub(super) fn has_changed(&mut self) -> bool {
        let now = stamps(&self.path);
        let is_quiet = now == self.seen;
        self.seen = now;
        is_quiet && self.seen != self.read
    }
}

fn stamps(path: &Path) -> Stamps {
    let stamped = |path: PathBuf| (path.clone(), stamp(&path));
    let files = files(path).map_err(|e| e.kind())?;
    Ok(files.into_iter().map(stamped).collect())
}

/// The file, or those of the directory whose names end as those of policy do, in
/// the order of their names.
fn files(path: &Path) -> io::Result<Vec<PathBuf>> {
    if !fs::metadata(path)?.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut files = Vec::new();
    for entry in fs::read_dir(path)? {
        let name = entry?.file_name();
        let text = name.to_string_lossy();
        let is_policy = [".json", ".yaml", ".yml"].iter().any(|end| text.ends_with(end));
        // Names with a dot are the temporary files of editors and of mounted volumes.
        if is_policy && !text.starts_with('.') {
            if files.len() == FILES {
                return Err(io::Error::other(format!("more than {FILES} files")));
            }
            files.push(path.join(name));
        }
    }
    files.sort_unstable();
    Ok(files)
}
