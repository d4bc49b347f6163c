//! Files that are read again when they change.
//!
//! Their metadata is looked at every two seconds. A change counts once two looks in a
//! row have found the same state, so that a file is not read while it is being written
//! or replaced.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The time between two looks. A changed file is in force within about two of these.
pub(crate) const LOOK: Duration = Duration::from_secs(2);

/// Files, with their state when they were read last and when they were looked at last.
#[derive(Clone, Debug, Default)]
pub(crate) struct Watched {
    paths: Vec<PathBuf>,
    read: Vec<Stamp>,
    seen: Vec<Stamp>,
}

/// The state of a file: device, inode, size, and the times of its last changes. Links
/// are followed, so a link that points to another file is another state. The time of
/// the last change of owner or mode is included, since it may make a file readable.
// i128 holds inode numbers, which are unsigned, and times before 1970. Of an error only the kind is
// kept, because errors cannot be compared.
pub(crate) type Stamp = Result<[i128; 5], io::ErrorKind>;

impl Watched {
    /// To be called before the files are read, so that a later change is noticed.
    pub(crate) fn of(paths: Vec<PathBuf>) -> Self {
        let read = stamps(&paths);
        let seen = read.clone();
        Self { paths, read, seen }
    }

    /// These files, and one more if there is one.
    pub(crate) fn and(self, path: Option<PathBuf>) -> Self {
        self.with(Self::of(path.into_iter().collect()))
    }

    /// These files and the others.
    pub(crate) fn with(mut self, others: Self) -> Self {
        self.paths.extend(others.paths);
        self.read.extend(others.read);
        self.seen.extend(others.seen);
        self
    }

    /// To be called before all files are read again.
    pub(crate) fn read_now(&mut self) {
        *self = Self::of(std::mem::take(&mut self.paths));
    }

    /// Whether files have changed since they were read, but not since the last look. If so, they
    /// count as read from here on.
    pub(crate) fn have_changed(&mut self) -> bool {
        let now = stamps(&self.paths);
        // A file that changes between two looks is still being written.
        let is_quiet = now == self.seen;
        self.seen = now;
        let have_changed = is_quiet && self.seen != self.read;
        // This also holds for files that turn out to be unusable: they would be read every two
        // seconds otherwise.
        if have_changed {
            self.read.clone_from(&self.seen);
        }
        have_changed
    }
}

fn stamps(paths: &[PathBuf]) -> Vec<Stamp> {
    paths.iter().map(|path| stamp(path)).collect()
}

/// When these files were changed last, in nanoseconds since 1970. `None` if none could be looked at.
pub(crate) fn modified<'a>(stamps: impl Iterator<Item = &'a Stamp>) -> Option<i128> {
    stamps.flatten().map(|[.., changed, _]| *changed).max()
}

pub(crate) fn stamp(path: &Path) -> Stamp {
    let found = fs::metadata(path).map_err(|e| e.kind())?;
    let nanoseconds = |seconds: i64, rest: i64| i128::from(seconds) * 1_000_000_000 + i128::from(rest);
    Ok([
        found.dev().into(),
        found.ino().into(),
        found.size().into(),
        nanoseconds(found.mtime(), found.mtime_nsec()),
        nanoseconds(found.ctime(), found.ctime_nsec()),
    ])
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_change_counts_once_it_was_seen_twice() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.pem");
        fs::write(&path, "one").unwrap();
        let mut watched = Watched::of(vec![path.clone()]);
        assert!(!watched.have_changed() && !watched.have_changed());
        fs::write(&path, "half of").unwrap();
        assert!(!watched.have_changed(), "it may still be written");
        fs::write(&path, "half of it").unwrap();
        assert!(!watched.have_changed(), "it was");
        assert!(watched.have_changed());
        assert!(!watched.have_changed(), "told once");
    }

    #[test]
    fn a_file_that_is_away_for_a_moment_has_not_changed() {
        let dir = tempfile::tempdir().unwrap();
        let (path, aside) = (dir.path().join("a.pem"), dir.path().join("b.pem"));
        let link = dir.path().join("link.pem");
        fs::write(&path, "one").unwrap();
        symlink(&path, &link).unwrap();
        let mut watched = Watched::of(vec![link.clone()]);
        fs::remove_file(&link).unwrap();
        assert!(!watched.have_changed());
        symlink(&path, &link).unwrap();
        assert!(!watched.have_changed() && !watched.have_changed());
        fs::rename(&path, &aside).unwrap();
        assert!(!watched.have_changed());
        assert!(watched.have_changed(), "it stays away");
    }

    #[test]
    fn a_directory_that_is_swapped_behind_a_link_has_other_files() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["one", "two"] {
            fs::create_dir(dir.path().join(name)).unwrap();
            fs::write(dir.path().join(name).join("a.pem"), "same").unwrap();
        }
        let data = dir.path().join("data");
        symlink("one", &data).unwrap();
        let mut watched = Watched::of(vec![data.join("a.pem")]);
        symlink("two", dir.path().join("new")).unwrap();
        fs::rename(dir.path().join("new"), &data).unwrap();
        assert!(!watched.have_changed());
        assert!(watched.have_changed());
    }

    #[test]
    fn what_is_read_by_order_has_not_changed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.pem");
        let mut watched = Watched::of(vec![path.clone()]);
        fs::write(&path, "one").unwrap();
        watched.read_now();
        assert!(!watched.have_changed() && !watched.have_changed());
    }
}
