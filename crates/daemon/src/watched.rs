//! Files that are read again when they change.
//!
//! Their metadata is read every two seconds. A change counts once two checks in a row have found
//! the same state, so that a file is not read while it is being written or replaced.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The time between two checks. A changed file is in force within about two of these.
pub const POLL: Duration = Duration::from_secs(2);

/// The maximum number of files of a directory that are watched. Each is checked every second or two, and a
/// directory that was named by mistake may have many more.
pub const FILES: usize = 10_000;

/// Files, and directories whose files count, with their state when they were read last and at the
/// last check.
#[derive(Clone, Debug, Default)]
pub struct Watched {
    paths: Vec<PathBuf>,
    read: Vec<Stamp>,
    seen: Vec<Stamp>,
}

/// The state of a file: device, inode, size, and the times of its last changes. Links are
/// followed, so a link that points to another file has another state. The time of the last
/// change of owner or mode is included, because that change may make a file readable.
// i128 holds inode numbers, which are unsigned, and times before 1970. Of an error only the kind is
// kept, because errors cannot be compared.
type Stamp = Result<[i128; 5], io::ErrorKind>;

impl Watched {
    /// To be called before the files are read, so that a later change is noticed.
    pub fn of(paths: Vec<PathBuf>) -> Self {
        let read = stamps(&paths);
        let seen = read.clone();
        Self { paths, read, seen }
    }

    /// These files, and one more if there is one.
    pub fn and(self, path: Option<PathBuf>) -> Self {
        self.with(Self::of(path.into_iter().collect()))
    }

    pub fn with(mut self, others: Self) -> Self {
        self.paths.extend(others.paths);
        self.read.extend(others.read);
        self.seen.extend(others.seen);
        self
    }

    /// To be called before all files are read again.
    pub fn read_now(&mut self) {
        *self = Self::of(std::mem::take(&mut self.paths));
    }

    /// True if files have changed since they were read, but not since the last check. The files
    /// then count as read.
    pub fn have_changed(&mut self) -> bool {
        let now = stamps(&self.paths);
        // A file that changes between two checks is still being written.
        let is_quiet = now == self.seen;
        self.seen = now;
        let have_changed = is_quiet && self.seen != self.read;
        // This also holds for files that turn out to be unusable: they would be read at every check
        // otherwise.
        if have_changed {
            self.read.clone_from(&self.seen);
        }
        have_changed
    }

    /// The time at which one of these files was changed last before it was read, in nanoseconds
    /// since 1970. `None` if no file could be checked.
    pub fn modified(&self) -> Option<i128> {
        self.read.iter().flatten().map(|[.., changed, _]| *changed).max()
    }
}

fn stamps(paths: &[PathBuf]) -> Vec<Stamp> {
    let stamps = paths.iter().flat_map(|path| match fs::read_dir(path) {
        Ok(entries) => {
            let mut files: Vec<_> = entries.flatten().take(FILES).map(|entry| entry.path()).collect();
            // The system lists a directory in any order.
            files.sort_unstable();
            files.iter().map(|file| stamp(file)).collect()
        }
        Err(_) => vec![stamp(path)],
    });
    stamps.collect()
}

fn stamp(path: &Path) -> Stamp {
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
    fn a_change_counts_once_two_checks_have_found_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.pem");
        fs::write(&path, "one").unwrap();
        let mut watched = Watched::of(vec![path.clone()]);
        assert!(!watched.have_changed() && !watched.have_changed());
        fs::write(&path, "half of").unwrap();
        assert!(!watched.have_changed(), "the file may still be written");
        fs::write(&path, "half of it").unwrap();
        assert!(!watched.have_changed(), "the file was still written");
        assert!(watched.have_changed());
        assert!(!watched.have_changed(), "a change is reported once");
    }

    #[test]
    fn a_file_that_is_missing_for_a_moment_has_not_changed() {
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
        assert!(watched.have_changed(), "the file stays missing");
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
    fn a_changed_file_of_a_watched_directory_counts() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("a.pem"), "one").unwrap();
        let mut watched = Watched::of(vec![dir.path().to_owned()]);
        assert!(!watched.have_changed());
        // The directory itself does not change.
        fs::write(dir.path().join("a.pem"), "other").unwrap();
        assert!(!watched.have_changed() && watched.have_changed());
        fs::remove_file(dir.path().join("a.pem")).unwrap();
        assert!(!watched.have_changed() && watched.have_changed());
    }

    #[test]
    fn files_that_were_read_on_demand_have_not_changed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.pem");
        let mut watched = Watched::of(vec![path.clone()]);
        fs::write(&path, "one").unwrap();
        watched.read_now();
        assert!(!watched.have_changed() && !watched.have_changed());
    }
}
