//! Files that are whole whenever they are read: what the roles keep.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, fchown};
use std::path::{Path, PathBuf};

/// Puts `bytes` in place of the file at `path` in one step, on the disk when
/// this returns: whoever reads it, even after a crash, finds the old content
/// or the new one. A file that is there keeps its mode, and its owner where we may
/// give it away; a new one is its owner's alone, since it may hold secrets. Blocks
/// on the disk.
///
/// # Errors
/// The file is as it was, unless the very last step fails: then it is
/// replaced, but a crash may undo that.
pub fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let beside = beside(path);
    let fill = || {
        let mut file = create(&beside)?;
        if let Ok(metadata) = fs::metadata(path) {
            // Before the mode, which this may change. Who may not give a file away
            // owns what they write.
            let _ = fchown(&file, Some(metadata.uid()), Some(metadata.gid()));
            file.set_permissions(metadata.permissions())?;
        }
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&beside, path)
    };
    fill().inspect_err(|_| {
        // The first error is the one to tell.
        let _ = fs::remove_file(&beside);
    })?;
    File::open(directory(path))?.sync_all()
}

/// A new file, its owner's alone, in place of what a crash left of an earlier attempt.
/// `create_new` follows no link and opens nothing that is there: in a directory that
/// others may write, the file that is filled and given away is never one of theirs. A
/// pipe of ours was left by no crash but put there to see what is written: it is
/// written to, which then fails, since there is nothing to put in place.
fn create(path: &Path) -> io::Result<File> {
    let is_our_pipe = |found: &fs::Metadata| {
        found.file_type().is_fifo() && found.uid() == rustix::process::geteuid().as_raw()
    };
    if fs::symlink_metadata(path).is_ok_and(|found| is_our_pipe(&found)) {
        let pipe = File::options().write(true).open(path)?;
        // Others may have put something else there meanwhile.
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
            // Another one came in between.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && attempts > 0 => {}
            opened => return opened,
        }
    }
}

/// The directory a file is in.
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
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_file_is_replaced_whole_and_keeps_its_mode() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("kept.yaml");
        replace(&path, b"one").unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        // Torn by a crash.
        fs::write(dir.path().join(".kept.yaml.new"), b"tw").unwrap();
        replace(&path, b"three").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"three");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o640);
        assert_eq!(
            fs::read_dir(dir.path()).unwrap().count(),
            1,
            "nothing is left beside it"
        );
    }

    #[test]
    fn what_stands_where_the_new_file_is_filled_is_neither_followed_nor_kept() {
        let dir = tempfile::tempdir().unwrap();
        let [path, beside, victim] =
            ["kept.yaml", ".kept.yaml.new", "victim"].map(|name| dir.path().join(name));
        fs::write(&victim, b"theirs").unwrap();
        std::os::unix::fs::symlink(&victim, &beside).unwrap();
        replace(&path, b"one").unwrap();
        assert_eq!(fs::read(&victim).unwrap(), b"theirs");
        assert!(path.symlink_metadata().unwrap().is_file());
        assert_eq!(fs::read(&path).unwrap(), b"one");
        fs::remove_file(&path).unwrap();
        fs::write(&beside, b"tw").unwrap();
        fs::set_permissions(&beside, fs::Permissions::from_mode(0o666)).unwrap();
        // Who has it open reads nothing of what is written.
        let open = fs::File::open(&beside).unwrap();
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
