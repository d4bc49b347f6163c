//! What instances write, kept within bounds.
//!
//! ```text
//!  stdout.log    appended to by the instance; past half the limit it begins anew
//!  stdout.log.1  the end of what it was before
//! ```
//!
//! Nobody stands between an instance and its log: it outlives the agent. So
//! the agent looks at the logs whenever it measures, and in between they may
//! grow. Instances append, wherever the end is by then. What an instance
//! writes while its log is copied may be lost.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use log::warn;
use rustix::fs::OFlags;

/// The most of one log, in MB, where nothing else is said.
pub(in super::super) const DEFAULT_LOG_MB: u32 = 16;

/// Keeps a log, and what is kept of its past, together within `limit` bytes.
/// A log that isn't there is short enough.
pub(in super::super) fn trim(log: &Path, limit: u64) {
    if let Err(e) = try_trim(log, limit / 2)
        && e.kind() != io::ErrorKind::NotFound
    {
        warn!("{}: it can't be kept short: {e}", log.display());
    }
}

fn try_trim(log: &Path, half: u64) -> io::Result<()> {
    // Mostly this is all there is to do.
    if fs::symlink_metadata(log)?.len() <= half {
        return Ok(());
    }
    // Whoever may write there might have put a link.
    let mut options = OpenOptions::new();
    options.custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed());
    let mut file = options.clone().read(true).write(true).open(log)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no file"));
    }
    // A disk that is full, say: then the log is the last to be spared.
    if let Err(e) = keep(&mut file, metadata.len().saturating_sub(half), half, log) {
        warn!("{}: what it was is lost: {e}", log.display());
    }
    file.set_len(0)
}

/// Puts `len` bytes from `from` on in place of what was kept before.
fn keep(file: &mut File, from: u64, len: u64, log: &Path) -> io::Result<()> {
    let (kept, beside) = (with_end(log, ".1"), with_end(log, ".1.new"));
    // Made anew: what is there by that name might be a link.
    let _ = fs::remove_file(&beside);
    let copied = File::create_new(&beside).and_then(|mut to| {
        file.seek(SeekFrom::Start(from))?;
        io::copy(&mut file.take(len), &mut to)?;
        fs::rename(&beside, &kept)
    });
    copied.inspect_err(|_| {
        let _ = fs::remove_file(&beside);
    })
}

fn with_end(path: &Path, end: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(end);
    name.into()
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn a_long_log_begins_anew_and_its_end_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("stdout.log");
        trim(&log, 20);
        let mut writer = OpenOptions::new().append(true).create(true).open(&log).unwrap();
        let read = |name: &str| fs::read_to_string(dir.path().join(name)).unwrap_or_default();
        writer.write_all(b"0123456789").unwrap();
        trim(&log, 20);
        assert_eq!((&*read("stdout.log"), &*read("stdout.log.1")), ("0123456789", ""));
        writer.write_all(b"abc").unwrap();
        trim(&log, 20);
        assert_eq!((&*read("stdout.log"), &*read("stdout.log.1")), ("", "3456789abc"));
        // The instance goes on where the log ends by now.
        writer.write_all(b"further").unwrap();
        trim(&log, 20);
        assert_eq!(read("stdout.log"), "further");
        writer.write_all(b"and on").unwrap();
        trim(&log, 20);
        assert_eq!((&*read("stdout.log"), &*read("stdout.log.1")), ("", "therand on"));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
    }

    #[test]
    fn what_cannot_be_kept_is_dropped_and_links_are_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("stdout.log");
        fs::write(&log, "0123456789").unwrap();
        fs::create_dir_all(dir.path().join("stdout.log.1/x")).unwrap();
        trim(&log, 10);
        assert_eq!(fs::read_to_string(&log).unwrap(), "");

        let other = dir.path().join("other");
        fs::write(&other, "0123456789").unwrap();
        let link = dir.path().join("link.log");
        std::os::unix::fs::symlink(&other, &link).unwrap();
        trim(&link, 2);
        assert_eq!(fs::read_to_string(&other).unwrap(), "0123456789");
    }
}
