//! The policy of a server in a file, or in the files of a directory, and the check whether these
//! files have changed.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ssntp_daemon::{Failure, Watched, watched::FILES};
use ssntp_opflex::model::{ManagedObject, Schema};

use super::load;

/// The time between two checks of the files.
pub(super) const POLL: Duration = Duration::from_secs(1);

/// Policy in files, and the state of the files when they were read last.
#[derive(Debug)]
pub(super) struct Source {
    path: PathBuf,
    /// The model that objects have to fit. The source checks it, so that an error names the
    /// file.
    schema: Option<Arc<Schema>>,
    watched: Watched,
    /// A checksum of the contents that are in force.
    digest: Option<u64>,
    /// True if contents were read that may have been used.
    was_read: bool,
}

impl Source {
    pub(super) fn new(path: PathBuf, schema: Option<Arc<Schema>>) -> Self {
        Self {
            path,
            schema,
            watched: Watched::default(),
            digest: None,
            was_read: false,
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Reads all files. Returns `None` if their contents are those of the last call that
    /// returned objects: a file that was touched without a change must not undo changes that were
    /// made through the control socket.
    ///
    /// # Errors
    /// A file cannot be used; the error names it.
    pub(super) fn read(&mut self) -> Result<Option<Vec<ManagedObject>>, Failure> {
        // The state of the files is noted before they are read, so that a file that is written
        // meanwhile counts as changed.
        self.watched = Watched::of(vec![self.path.clone()]);
        let files = files(&self.path).map_err(|e| Failure::at(&self.path, e))?;
        if files.is_empty() {
            const WHY: &str = "the directory has no policy file (*.json, *.yaml, *.yml)";
            // An empty directory is a valid policy at the start, but it does not delete the one that is in force:
            // its file system may be gone. A file with an empty list does.
            if self.was_read {
                return Err(Failure::at(&self.path, WHY));
            }
            log::warn!("{}: {WHY}", self.path.display());
        }
        let mut objects = Vec::new();
        let mut digest = DefaultHasher::new();
        for file in files {
            let of_file = load(&file, |text, format| {
                text.hash(&mut digest);
                ManagedObject::read_all(text, format)
            })?;
            for object in &of_file {
                let checked = object.check();
                let checked = checked.and_then(|()| match &self.schema {
                    Some(schema) => schema.check(object),
                    None => Ok(()),
                });
                checked.map_err(|e| Failure::at(&file, e))?;
            }
            objects.extend(of_file);
        }
        // Set only now, when every file is valid: until then the old contents are in force.
        self.was_read = true;
        let digest = Some(digest.finish());
        let is_new = std::mem::replace(&mut self.digest, digest) != digest;
        Ok(is_new.then_some(objects))
    }

    /// Forgets the contents that were read last: they are not in force.
    pub(super) fn forget(&mut self) {
        self.digest = None;
    }

    /// The time at which the files had changed last when they were read, in nanoseconds since 1970.
    pub(super) fn modified(&self) -> Option<i128> {
        self.watched.modified()
    }

    /// True if the files have changed since they were read, and not since the last call.
    /// To be called every [`POLL`].
    pub(super) fn has_changed(&mut self) -> bool {
        self.watched.have_changed()
    }
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
        // Names that begin with a dot are temporary files of editors and of mounted volumes.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unchanged_contents_are_read_again_only_if_they_are_not_in_force() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("policy.json");
        fs::write(&path, r#"[{"subject": "Group", "uri": "/a/"}]"#).unwrap();
        let mut source = Source::new(path, None);
        assert_eq!(source.read().unwrap().unwrap().len(), 1);
        assert!(source.read().unwrap().is_none());
        // As after an edit that failed.
        source.forget();
        assert_eq!(source.read().unwrap().unwrap().len(), 1);
    }

    #[test]
    fn a_directory_that_loses_its_files_keeps_the_policy_in_force() {
        let dir = tempfile::tempdir().unwrap();
        let mut source = Source::new(dir.path().to_owned(), None);
        assert_eq!(
            source.read().unwrap(),
            Some(Vec::new()),
            "at the start it is empty"
        );
        let path = dir.path().join("policy.yaml");
        fs::write(&path, "[{subject: Group, uri: /a/}]").unwrap();
        assert_eq!(source.read().unwrap().unwrap().len(), 1);
        fs::remove_file(&path).unwrap();
        assert!(source.read().is_err());
        // As after an edit that failed.
        source.forget();
        assert!(source.read().is_err());
        fs::write(&path, "").unwrap();
        assert!(source.read().is_err());
        fs::write(&path, "[]").unwrap();
        assert_eq!(source.read().unwrap(), Some(Vec::new()));
    }
}
