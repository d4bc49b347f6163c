//! The policy of a server in a file, or in the files of a directory, and whether these
//! have changed.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ssntp_opflex::model::{ManagedObject, Schema};

use super::load;
use crate::failure::Failure;
use crate::watched::{self, Stamp, stamp};

/// How often the files are checked. After a change they are read only once two checks
/// have found the same, because a program may still be writing.
pub(super) const LOOK: Duration = Duration::from_secs(1);

/// The most files of a directory. All are looked at every second, and a directory that was named
/// by mistake may have many more.
const FILES: usize = 10_000;

/// Policy in files, and their state when they were read last.
#[derive(Debug)]
pub(super) struct Source {
    path: PathBuf,
    /// The model that objects have to fit. It is checked here, so that an error names the
    /// file.
    schema: Option<Arc<Schema>>,
    read: Stamps,
    seen: Stamps,
    /// A checksum of the contents that are in force.
    digest: Option<u64>,
}

type Stamps = Result<Vec<(PathBuf, Stamp)>, io::ErrorKind>;

impl Source {
    pub(super) fn new(path: PathBuf, schema: Option<Arc<Schema>>) -> Self {
        Self {
            path,
            schema,
            read: Ok(Vec::new()),
            seen: Ok(Vec::new()),
            digest: None,
        }
    }

    /// The path that it was made with.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Reads all files. Returns `None` if their contents are those of the last call that
    /// returned objects: a file that was only touched must not undo what was changed
    /// otherwise.
    ///
    /// # Errors
    /// A file cannot be used; the error names it.
    pub(super) fn read(&mut self) -> Result<Option<Vec<ManagedObject>>, Failure> {
        let failed = |e: io::Error| Failure::new(format!("{}: {e}", self.path.display()));
        // The state of the files is noted before they are read, so that a file that is written
        // meanwhile counts as changed.
        let files = stamps(&self.path);
        self.read = files.as_ref().map(Vec::clone).map_err(io::Error::kind);
        self.seen.clone_from(&self.read);
        let files = files.map_err(failed)?;
        if files.is_empty() {
            // An empty directory is a valid policy, but more often it is the wrong one.
            log::warn!(
                "{}: the directory has no policy file (*.json, *.yaml, *.yml)",
                self.path.display()
            );
        }
        let mut objects = Vec::new();
        let mut digest = DefaultHasher::new();
        for (file, _) in files {
            let of_file = load(&file, |text, format| {
                text.hash(&mut digest);
                ManagedObject::read_all(text, format)
            })?;
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
        // Only now, when every file was read and is right: until then the contents in force are the
        // old ones.
        let digest = Some(digest.finish());
        let is_new = std::mem::replace(&mut self.digest, digest) != digest;
        Ok(is_new.then_some(objects))
    }

    /// When the files that were read had changed last, in nanoseconds since 1970.
    pub(super) fn modified(&self) -> Option<i128> {
        watched::modified(self.read.iter().flatten().map(|(_, stamp)| stamp))
    }

    /// Whether the files have changed since they were read, and not since the last call.
    /// To be called every [`LOOK`].
    pub(super) fn has_changed(&mut self) -> bool {
        let now = stamps(&self.path).map_err(|e| e.kind());
        // A file that has changed since the last look may still be written to.
        let is_quiet = now == self.seen;
        self.seen = now;
        is_quiet && self.seen != self.read
    }
}

/// The files at the path, each with its state.
fn stamps(path: &Path) -> io::Result<Vec<(PathBuf, Stamp)>> {
    let stamped = |path: PathBuf| {
        let stamp = stamp(&path);
        (path, stamp)
    };
    Ok(files(path)?.into_iter().map(stamped).collect())
}

/// The file, or the files of the directory whose names end with `.json`, `.yaml` or `.yml`, in
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
    // The system lists a directory in any order. The digest, and the order of the objects, must be
    // the same for the same files.
    files.sort_unstable();
    Ok(files)
}
