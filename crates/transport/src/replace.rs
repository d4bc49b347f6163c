//! Files that are replaced in one step, so that a reader never finds a part of the content.

use std::ffi::OsString;
use std::fs::{self, File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

/// Replaces the content of the file at `path` in one step. The new content is on the disk when this
/// returns: a reader, even after a crash, finds the old content or the new one. An existing file keeps
/// its mode, and its owner if this process may set it. A new file is readable to its owner only,
/// because it may hold secrets. Blocks on the disk.
///
/// # Errors
/// The file is unchanged, unless only the last step fails: then it is replaced, but a crash may undo
/// that.
pub fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    replace_with_mode(path, bytes, None)
}

/// As [`replace`]. If a `mode` is given, the file has that mode afterwards.
///
/// # Errors
/// As [`replace`].
pub fn replace_with_mode(path: &Path, bytes: &[u8], mode: Option<u32>) -> io::Result<()> {
    let beside = beside(path);
    let fill = || {
        let mut file = create(&beside)?;
        if let Some(mode) = mode {
            file.set_permissions(Permissions::from_mode(mode))?;
        } else if let Ok(metadata) = fs::metadata(path) {
            // Before the mode, which this call may change. Without the right to change the owner, the
            // file belongs to this process's user.
            let _ = fchown(&file, Some(metadata.uid()), Some(metadata.gid()));
            file.set_permissions(metadata.permissions())?;
        }
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&beside, path)
    };
    fill().inspect_err(|_| {
        // An error of the clean-up is not reported.
        let _ = fs::remove_file(&beside);
    })?;
    // The rename is on the disk only once its directory is.
    File::open(directory(path))?.sync_all()
}

/// Creates a file that only its owner may read, instead of a file that an earlier attempt left at a
/// crash. `create_new` follows no link and opens no existing file, so in a directory that other users
/// may write, the file is never one of theirs. A pipe of our own user is opened for writing: tests put
/// one there to block the write. The replacement then fails, because a pipe cannot be synced.
fn create(path: &Path) -> io::Result<File> {
    let is_our_pipe = |found: &fs::Metadata| {
        found.file_type().is_fifo() && found.uid() == rustix::process::geteuid().as_raw()
    };
    if fs::symlink_metadata(path).is_ok_and(|found| is_our_pipe(&found)) {
        let pipe = File::options().write(true).open(path)?;
        // Another process may have put another file there meanwhile.
        if is_our_pipe(&pipe.metadata()?) {
            return Ok(pipe);
        }
    }
    let mut options = File::options();
    options.write(true).create_new(true).mode(0o600);
    let mut attempts = 3;
    loop {
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => attempts -= 1,
        }
        match options.open(path) {
            // Another process created the file in between.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && attempts > 0 => {}
            opened => return opened,
        }
    }
}

/// The directory of a file.
pub fn directory(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    }
}

fn beside(path: &Path) -> PathBuf {
    let mut name = OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(".new");
    path.with_file_name(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_whole_and_keeps_its_mode() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("kept.yaml");
        replace(&path, b"one").unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        // A crash left an incomplete file.
        fs::write(dir.path().join(".kept.yaml.new"), b"tw").unwrap();
        replace(&path, b"three").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"three");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o640);
        assert_eq!(
            fs::read_dir(dir.path()).unwrap().count(),
            1,
            "no other file is left in the directory"
        );
    }

    #[test]
    fn a_file_or_link_with_the_name_of_the_new_file_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let [path, temporary, victim] =
            ["kept.yaml", ".kept.yaml.new", "victim"].map(|name| dir.path().join(name));
        fs::write(&victim, b"theirs").unwrap();
        std::os::unix::fs::symlink(&victim, &temporary).unwrap();
        replace(&path, b"one").unwrap();
        assert_eq!(fs::read(&victim).unwrap(), b"theirs");
        assert!(path.symlink_metadata().unwrap().is_file());
        assert_eq!(fs::read(&path).unwrap(), b"one");
        fs::remove_file(&path).unwrap();
        fs::write(&temporary, b"tw").unwrap();
        fs::set_permissions(&temporary, fs::Permissions::from_mode(0o666)).unwrap();
        // A process that has the old file open reads none of the new bytes.
        let open = fs::File::open(&temporary).unwrap();
        replace(&path, b"three").unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(io::read_to_string(open).unwrap(), "tw");
    }

    #[test]
    fn a_failure_leaves_the_old_content_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("kept.yaml");
        fs::create_dir(&path).unwrap();
        assert!(replace(&path, b"one").is_err());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        assert!(replace(&dir.path().join("missing/kept.yaml"), b"one").is_err());
    }
}
