//! Where a server's policy comes from: a file, or the files of a directory, and
//! whether it has changed there.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ssntp_opflex::model::{ManagedObject, Schema};

use super::load_objects;
use crate::failure::Failure;

/// How often it is looked at. One that has just changed is looked at twice
/// before it is read, since whoever writes it may be at it.
pub(super) const LOOK: Duration = Duration::from_secs(1);

/// The most files of a directory.
const FILES: usize = 10_000;

/// Policy in files, and what they were when they were read last.
#[derive(Debug)]
pub(super) struct Source {
    path: PathBuf,
    /// What objects have to fit, so that an error can name the file.
    schema: Option<Arc<Schema>>,
    read: Stamp,
    seen: Stamp,
}

/// What tells one state of the files from another, without reading them.
type Stamp = Result<Vec<FileStamp>, io::ErrorKind>;

#[derive(Debug, PartialEq, Eq)]
struct FileStamp {
    path: PathBuf,
    inode: u64,
    len: u64,
    modified: (i64, i64),
}

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
        // What is written from here on is another state.
        self.seen = stamp(&self.path);
        self.read = stamp(&self.path);
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

    /// Whether it has changed since it was read, and nobody is writing any more.
    /// To be asked again after [`LOOK`].
    pub(super) fn has_changed(&mut self) -> bool {
        let now = stamp(&self.path);
        let is_quiet = now == self.seen;
        self.seen = now;
        is_quiet && self.seen != self.read
    }
}

fn stamp(path: &Path) -> Stamp {
    let stamp = |path: PathBuf| {
        let metadata = fs::metadata(&path)?;
        Ok(FileStamp {
            path,
            inode: metadata.ino(),
            len: metadata.len(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
        })
    };
    let stamps: io::Result<Vec<_>> = files(path).and_then(|files| files.into_iter().map(stamp).collect());
    stamps.map_err(|e| e.kind())
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
        // Editors and mounted volumes keep what is not meant behind a dot.
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
