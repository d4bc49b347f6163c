//! Directories in which instances write: giving them to a user, measuring and removing them, so that
//! no link in them can lead the agent elsewhere.
//!
//! All functions go from descriptor to descriptor. They follow no links, and do not enter file
//! systems that are mounted in the tree. Removing a deep tree needs neither stack nor descriptors,
//! because directories are moved up first:
//!
//! ```text
//!  root/a/b/c/…  ─ a's files removed, b moved to root ─▶  root/1/c/…  root/a (empty, removed)
//! ```
//!
//! Measuring has a limit for the depth and for the number of files.

use std::ffi::CStr;
use std::fs::{File, Permissions, set_permissions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Gid, Mode, OFlags, ResolveFlags, Uid, chownat, fchmod, fchown, fstat,
    openat, openat2, renameat, statat, unlinkat,
};
use rustix::io::Errno;
use rustix::path::Arg;

use super::driver::User;

/// The maximum number of files that a measurement counts. Beyond that the space is unknown, so that a
/// measurement ends in time.
const MAX_FILES: usize = 200_000;
/// The maximum number of levels that a measurement descends, because each level needs a descriptor.
const MAX_DEPTH: usize = 64;

/// Removes a directory with its content. A file or a link at the path is removed as well. A
/// directory that does not exist counts as removed.
///
/// # Errors
/// The error of the last file or directory that could not be removed. All others are removed or
/// were moved up.
pub(super) fn remove(path: &Path) -> io::Result<()> {
    let removed = match open_dir(CWD, path) {
        Ok(root) => {
            empty(&root)?;
            unlinkat(CWD, path, AtFlags::REMOVEDIR)
        }
        // A file or a link.
        Err(Errno::NOTDIR | Errno::LOOP) => unlinkat(CWD, path, AtFlags::empty()),
        Err(e) => Err(e),
    };
    match removed {
        Err(Errno::NOENT) => Ok(()),
        other => Ok(other?),
    }
}

/// Removes the content of a directory.
fn empty(root: &OwnedFd) -> Result<(), Errno> {
    // The next name, as a number, for a directory that is moved up.
    let mut names = 0u64;
    loop {
        let (mut failed, mut progress) = (None, false);
        for entry in Dir::read_from(root)? {
            let entry = entry?;
            let name = entry.file_name();
            if is_dots(name) {
                continue;
            }
            match unlinkat(root, name, AtFlags::empty()) {
                Ok(()) => progress = true,
                Err(Errno::ISDIR | Errno::PERM) => match flatten(root, name, &mut names, &mut progress) {
                    Ok(()) | Err(Errno::NOENT) => {}
                    Err(e) => failed = Some(e),
                },
                Err(Errno::NOENT) => {}
                Err(e) => failed = Some(e),
            }
        }
        // The next round finds the directories that were moved up, so rounds follow as long as one
        // removes anything.
        match (progress, failed) {
            (true, _) => {}
            (false, Some(e)) => return Err(e),
            (false, None) => return Ok(()),
        }
    }
}

/// Removes a directory in `root`, after moving the directories in it to `root`.
fn flatten(root: &OwnedFd, name: &CStr, names: &mut u64, progress: &mut bool) -> Result<(), Errno> {
    let dir = open_dir(root, name)?;
    let mut failed = None;
    for entry in Dir::read_from(&dir)? {
        let entry = entry?;
        let name = entry.file_name();
        if is_dots(name) {
            continue;
        }
        // Linux answers EISDIR for a directory, other systems EPERM.
        let removed = match unlinkat(&dir, name, AtFlags::empty()) {
            Err(Errno::ISDIR | Errno::PERM) => move_up(&dir, name, root, names),
            other => other,
        };
        match removed {
            Ok(()) => *progress = true,
            Err(Errno::NOENT) => {}
            Err(e) => failed = Some(e),
        }
    }
    match failed {
        Some(e) => Err(e),
        None => unlinkat(root, name, AtFlags::REMOVEDIR).inspect(|()| *progress = true),
    }
}

/// Gives a directory a new name in `root`.
fn move_up(dir: &OwnedFd, name: &CStr, root: &OwnedFd, names: &mut u64) -> Result<(), Errno> {
    let mut granted = false;
    loop {
        match renameat(dir, name, root, format!("{names:x}")) {
            // The name is taken.
            Err(Errno::EXIST | Errno::NOTEMPTY | Errno::NOTDIR) => *names += 1,
            // Moving a directory changes its `..`, so its owner needs the right to write in it.
            Err(Errno::ACCESS) if !granted => {
                grant(dir, name)?;
                granted = true;
            }
            other => return other,
        }
    }
}

/// The mode of a directory of the agent in which an instance's user may open an entry by its name.
pub const PASS: u32 = 0o710;
/// The mode of a directory of the agent whose entries an instance's user may list as well.
pub(super) const LIST: u32 = 0o750;

/// Opens a directory of the agent to one user, with this mode. Without a user only the agent can enter
/// it.
///
/// # Errors
/// The system refuses.
pub fn share(dir: &Path, user: Option<User>, mode: u32) -> io::Result<()> {
    // All other users lose their access before the group changes.
    set_permissions(dir, Permissions::from_mode(0o700))?;
    let Some(user) = user else { return Ok(()) };
    chown(dir, None, Some(user.gid))?;
    set_permissions(dir, Permissions::from_mode(mode))
}

/// Gives a directory with its content to a user and closes it to others, unless the user owns it
/// already. A file with several names keeps its owner, because another name may be outside of the
/// directory.
///
/// # Errors
/// An error of the system, or a directory that is too deep. Files that the user has got by then are
/// not taken back, and another call continues.
pub(super) fn give(path: &Path, user: User) -> io::Result<()> {
    let (uid, gid) = (Some(Uid::from_raw(user.uid)), Some(Gid::from_raw(user.gid)));
    let root = open(CWD, path)?;
    // The owner of the directory itself is changed last, so it shows that all files were given.
    if fstat(&root)?.st_uid == user.uid {
        return Ok(());
    }
    // The directory is closed to others before its files get another owner.
    fchmod(&root, Mode::RWXU)?;
    let mut dirs = vec![Dir::new(root)?];
    while let Some(dir) = dirs.last_mut() {
        let Some(entry) = dir.next() else {
            fchown(dir.fd()?, uid, gid)?;
            dirs.pop();
            continue;
        };
        let (entry, fd) = (entry?, dir.fd()?);
        let name = entry.file_name();
        if is_dots(name) {
            continue;
        }
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let found = match openat(fd, name, flags, Mode::empty()) {
            Err(Errno::NOENT) => continue,
            found => found?,
        };
        let stat = fstat(&found)?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => {
                let inner = match open(fd, name) {
                    // A file system is mounted there, or the directory is gone.
                    Err(Errno::XDEV | Errno::NOENT) => continue,
                    inner => inner?,
                };
                if dirs.len() == MAX_DEPTH {
                    return Err(io::Error::other(format!(
                        "it is deeper than {MAX_DEPTH} directories"
                    )));
                }
                dirs.push(Dir::new(inner)?);
            }
            // A hard link could refer to a file of the node outside of this directory.
            FileType::RegularFile | FileType::Symlink if stat.st_nlink == 1 => {
                chownat(&found, "", uid, gid, AtFlags::EMPTY_PATH)?;
            }
            _ => {}
        }
    }
    Ok(())
}

/// The space of a directory with its content, in bytes; `None` if it has too many files or is too
/// deep to be measured.
///
/// # Errors
/// The directory can't be measured for now: no descriptor or no memory is left, or the disk fails.
pub(super) fn disk_usage(path: &Path) -> io::Result<Option<u64>> {
    let mut blocks = 0u64;
    let mut files = 0;
    let mut dirs = vec![Dir::new(open(CWD, path)?)?];
    while let Some(dir) = dirs.last_mut() {
        let Some(entry) = dir.next() else {
            dirs.pop();
            continue;
        };
        let (Ok(entry), Ok(fd)) = (entry, dir.fd()) else {
            continue;
        };
        let name = entry.file_name();
        if is_dots(name) {
            continue;
        }
        files += 1;
        if files > MAX_FILES {
            return Ok(None);
        }
        // The file may have been removed since the directory was read.
        let Ok(stat) = statat(fd, name, AtFlags::SYMLINK_NOFOLLOW) else {
            continue;
        };
        blocks += u64::try_from(stat.st_blocks).unwrap_or(0);
        if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
            continue;
        }
        match open(fd, name).and_then(Dir::new) {
            Ok(_) if dirs.len() == MAX_DEPTH => return Ok(None),
            Ok(inner) => dirs.push(inner),
            Err(e @ (Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::IO)) => return Err(e.into()),
            // The directory is gone, or a file system is mounted there, or the agent may not enter.
            Err(_) => {}
        }
    }
    Ok(Some(blocks * 512))
}

/// Opens a directory to remove its content.
fn open_dir(at: impl AsFd, name: impl Arg + Copy) -> Result<OwnedFd, Errno> {
    let dir = match open(at.as_fd(), name) {
        Err(Errno::ACCESS) => {
            grant(at.as_fd(), name)?;
            open(at.as_fd(), name)?
        }
        other => other?,
    };
    let mode = Mode::from_raw_mode(fstat(&dir)?.st_mode);
    if !mode.contains(Mode::RWXU) {
        // If the agent does not own the directory, this fails, and removing reports the error.
        let _ = fchmod(&dir, Mode::RWXU);
    }
    Ok(dir)
}

/// Opens a directory. A link, and a file system that is mounted there, are refused.
fn open(at: impl AsFd, name: impl Arg + Copy) -> Result<OwnedFd, Errno> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = if at.as_fd().as_raw_fd() == CWD.as_raw_fd() {
        // Only the agent can write in the parent directories, so mounts in the path are deliberate.
        ResolveFlags::empty()
    } else {
        ResolveFlags::NO_XDEV
    };
    match openat2(at.as_fd(), name, flags, Mode::empty(), resolve) {
        // The system call is missing before Linux 5.6, and some containers refuse it.
        Err(Errno::NOSYS | Errno::PERM) => openat(at, name, flags, Mode::empty()),
        other => other,
    }
}

/// Opens a file in a directory in which an instance may write. It has to be a regular file and no link, because the
/// instance could have made something else.
pub(super) fn open_file(dir: impl AsFd, name: impl Arg + Copy, how: OFlags) -> io::Result<File> {
    // Opening a FIFO does not wait for its other end.
    let flags = how | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = File::from(openat(dir, name, flags, Mode::RUSR | Mode::WUSR)?);
    // The check uses the descriptor, because the file could be replaced between a check of the name and the opening.
    if file.metadata()?.is_file() {
        Ok(file)
    } else {
        let name = name.to_string_lossy();
        Err(io::Error::other(format!("{name} is not a regular file")))
    }
}

/// Gives the owner of a directory all rights in it.
fn grant(at: impl AsFd, name: impl Arg + Copy) -> Result<(), Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let dir = openat(at, name, flags, Mode::empty())?;
    let path = format!("/proc/self/fd/{}", dir.as_raw_fd());
    set_permissions(path, Permissions::from_mode(0o700))
        .map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::ACCESS))
}

fn is_dots(name: &CStr) -> bool {
    matches!(name.to_bytes(), b"." | b"..")
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use rustix::fs::mkdirat;

    use super::*;

    /// Nested directories whose path is longer than the limit of a path.
    fn nest(root: &Path, levels: usize) {
        let mut dir = open(CWD, root).unwrap();
        for _ in 0..levels {
            mkdirat(&dir, "d", Mode::RWXU).unwrap();
            dir = open(&dir, "d").unwrap();
        }
    }

    #[test]
    fn a_tree_of_any_depth_is_removed() {
        // The test uses a file system in memory if possible, because a disk is slow.
        let dir = tempfile::tempdir_in("/dev/shm")
            .or_else(|_| tempfile::tempdir())
            .unwrap();
        let root = dir.path().join("root");
        fs::create_dir(&root).unwrap();
        nest(&root, 30_000);
        assert_eq!(disk_usage(&root).unwrap(), None);
        remove(&root).unwrap();
        assert!(!root.exists());
        remove(&root).unwrap();
    }

    #[test]
    fn trees_with_taken_names_and_forbidding_modes_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("root");
        for name in ["0", "1/x", "a/b/c/d", "a/0/1/2", "locked/b/c", "hidden/b"] {
            fs::create_dir_all(root.join(name)).unwrap();
        }
        fs::write(root.join("2"), "").unwrap();
        for (name, mode) in [
            ("locked/b", 0o500),
            ("locked", 0o500),
            ("hidden", 0),
            ("a/b", 0o100),
        ] {
            set_permissions(root.join(name), Permissions::from_mode(mode)).unwrap();
        }
        remove(&root).unwrap();
        assert!(!root.exists());
    }

    /// This needs root.
    #[test]
    fn a_directory_is_given_with_its_content_and_no_file_outside_of_it() {
        use std::os::unix::fs::MetadataExt;

        if !rustix::process::geteuid().is_root() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let (root, other) = (dir.path().join("root"), dir.path().join("other"));
        fs::create_dir_all(root.join("a/b")).unwrap();
        fs::create_dir(&other).unwrap();
        for file in [root.join("a/b/file"), root.join("file"), other.join("file")] {
            fs::write(file, "").unwrap();
        }
        symlink(&other, root.join("a/link")).unwrap();
        fs::hard_link(other.join("file"), root.join("hard")).unwrap();
        let (uid, gid, alone) = (70_000, 70_001, true);
        let owner = |path: &str| {
            let metadata = fs::symlink_metadata(dir.path().join(path)).unwrap();
            (metadata.uid(), metadata.gid())
        };
        for _again in 0..2 {
            give(&root, User { uid, gid, alone }).unwrap();
            for path in [
                "root",
                "root/a",
                "root/a/b",
                "root/a/b/file",
                "root/file",
                "root/a/link",
            ] {
                assert_eq!(owner(path), (uid, gid), "{path}");
            }
            for path in ["other", "other/file", "root/hard"] {
                assert_eq!(owner(path), (0, 0), "{path}");
            }
        }
        assert_eq!(fs::metadata(&root).unwrap().mode() & 0o777, 0o700);
        nest(&root, 2 * MAX_DEPTH);
        let uid = uid + 1;
        assert!(give(&root, User { uid, gid, alone }).is_err());
        assert_eq!(owner("root"), (70_000, gid));
    }

    #[test]
    fn links_are_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let (root, other) = (dir.path().join("root"), dir.path().join("other"));
        fs::create_dir_all(root.join("sub")).unwrap();
        fs::create_dir(&other).unwrap();
        fs::write(other.join("file"), vec![1; 1 << 20]).unwrap();
        symlink(&other, root.join("link")).unwrap();
        symlink(&other, root.join("sub/link")).unwrap();
        symlink(&other, dir.path().join("link")).unwrap();
        assert!(disk_usage(&root).unwrap().unwrap() < 1 << 20);
        assert!(disk_usage(&other).unwrap().unwrap() >= 1 << 20);
        // A directory that cannot be opened has an unknown size.
        assert!(disk_usage(&root.join("nothing")).is_err());
        remove(&root).unwrap();
        remove(&dir.path().join("link")).unwrap();
        fs::write(dir.path().join("file"), "").unwrap();
        remove(&dir.path().join("file")).unwrap();
        let left: Vec<_> = fs::read_dir(dir.path())
            .unwrap()
            .flatten()
            .map(|e| e.file_name())
            .collect();
        assert_eq!(left, ["other"]);
        assert!(other.join("file").exists());
    }
}
