//! Files that are disks: images of the node, boot disks of instances, and volumes.
//!
//! ```text
//!  IMAGES/ID[.qcow2|.img|.raw]      never written
//!        ▲ blocks that the instance has not written
//!  INSTANCE/disks/boot.qcow2        the instance's own disk; or boot.raw, a copy
//!
//!  VOLUMES/UUID/disk.img|disk.raw
//! ```
//!
//! Making a disk has a time limit, and ends early if the launch is cancelled.
//!
//! The format of a disk that an instance can write comes from its file name. It is never guessed
//! from the content, because an instance could write a header that makes its raw disk look like a
//! qcow2 file on top of any file of the node.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use log::warn;

use super::disks_of;
use ssntp_agent::driver::{InstanceDir, Reason, Refused};
use ssntp_agent::tool::{Bounds, run};
use ssntp_payload::Storage;

/// The extensions of an image's file, best first.
const EXTENSIONS: [&str; 4] = ["", ".qcow2", ".img", ".raw"];
/// The names of a volume's disk. It is always raw: a process instance could write a qcow2
/// header there that refers to any file of the node.
const DISKS: [&str; 2] = ["disk.img", "disk.raw"];
const MAX_NAME: usize = 200;
const GIB: u64 = 1 << 30;
/// The number of bytes that are copied and synced before the time limit and a cancellation are checked
/// again.
const PIECE: u64 = 16 << 20;
/// The maximum number of bytes of a program's output that become a part of an error.
const COMPLAINT: u64 = 4096;

/// The format of a disk's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    Raw,
    Qcow2,
}

impl Format {
    /// The name of the format in QEMU.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::Qcow2 => "qcow2",
        }
    }

    fn boot_file(self) -> String {
        format!("boot.{}", self.name())
    }
}

/// A disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Disk {
    pub(super) path: PathBuf,
    pub(super) format: Format,
}

/// The entry of the disk from which an instance boots: the first of those with the lowest boot index.
pub(super) fn bootable(storage: &[Storage]) -> Option<&Storage> {
    storage
        .iter()
        .filter(|entry| entry.boot)
        .min_by_key(|entry| entry.boot_index)
}

/// True if a text can be the name of an image: a file name that does not lead out of the directory,
/// is not hidden, and has no character with a meaning to a shell or in QEMU's options.
pub(super) fn is_name(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-+@".contains(&byte);
    !name.is_empty() && name.len() <= MAX_NAME && !name.starts_with(['.', '-']) && name.bytes().all(plain)
}

/// Finds the file of an image.
pub(super) fn find(images: Option<&Path>, name: &str) -> Result<Disk, Refused> {
    let missing = |why: String| Refused::new(Reason::ImageFailure, why);
    let images = images.ok_or_else(|| missing("this node has no images (--images)".into()))?;
    if !is_name(name) {
        return Err(missing(format!("{name:?} is not a valid name of an image")));
    }
    // QEMU runs in another directory, so the path has to be absolute.
    let images = fs::canonicalize(images).map_err(|e| missing(format!("{}: {e}", images.display())))?;
    let mut files = EXTENSIONS.iter().map(|end| images.join(format!("{name}{end}")));
    let path = files
        .find(|path| path.is_file())
        .ok_or_else(|| missing(format!("there is no image {name} in {}", images.display())))?;
    let format = format_of(&path).map_err(|e| missing(format!("{}: {e}", path.display())))?;
    Ok(Disk { path, format })
}

/// The format of an image, from its content. That is safe because no instance writes to images. The
/// extensions of images often do not name the format.
fn format_of(path: &Path) -> io::Result<Format> {
    Ok(match header(path)? {
        Some(_) => Format::Qcow2,
        None => Format::Raw,
    })
}

/// The size of the disk in a qcow2 file, in bytes; `None` if it is not a qcow2 file.
fn header(path: &Path) -> io::Result<Option<u64>> {
    // The header has the magic number at 0, and the size of the disk at 24, in big-endian order.
    let mut start = Vec::new();
    File::open(path)?.take(32).read_to_end(&mut start)?;
    let is_qcow2 = start.starts_with(b"QFI\xfb");
    let size = start.get(24..32).and_then(|bytes| bytes.try_into().ok());
    Ok(size.filter(|_| is_qcow2).map(u64::from_be_bytes))
}

/// The disk from which an instance boots. It is made for the first run and kept for later runs.
/// `gib` is the size of the disk, unless the image is larger.
pub(super) fn boot_disk(
    place: &InstanceDir,
    base: impl FnOnce() -> Result<Disk, Refused>,
    gib: i64,
    qemu_img: Option<&Path>,
    bounds: Bounds<'_>,
) -> Result<Disk, Refused> {
    let disks = disks_of(place);
    // The disk of an earlier run may have either format: qemu-img may have come or gone since.
    for format in [Format::Qcow2, Format::Raw] {
        let path = disks.join(format.boot_file());
        if path.is_file() {
            return Ok(Disk { path, format });
        }
    }
    let base = base()?;
    let wanted = u64::try_from(gib).unwrap_or(0).saturating_mul(GIB);
    let format = match qemu_img {
        Some(_) => Format::Qcow2,
        None => base.format,
    };
    // The disk gets its name only when it is complete, so that a later run never finds a partial
    // one.
    let path = disks.join(format.boot_file());
    let partial = disks.join("boot.new");
    match qemu_img {
        Some(program) => overlay(program, &base, wanted, &partial, bounds)?,
        None => copy(&base, wanted, &partial, bounds)
            .map_err(|e| Refused::io(format_args!("copying {}", base.path.display()), &e))?,
    }
    // The content is on the disk before the name, also if the power fails.
    File::open(&partial)
        .and_then(|disk| disk.sync_all())
        .and_then(|()| fs::rename(&partial, &path))
        .map_err(|e| Refused::io(path.display(), &e))?;
    Ok(Disk { path, format })
}

fn overlay(program: &Path, base: &Disk, wanted: u64, to: &Path, bounds: Bounds<'_>) -> Result<(), Refused> {
    let size = match header(&base.path) {
        Ok(Some(size)) => Ok(size),
        Ok(None) => fs::metadata(&base.path).map(|metadata| metadata.len()),
        Err(e) => Err(e),
    };
    let size =
        size.map_err(|e| Refused::new(Reason::ImageFailure, format!("{}: {e}", base.path.display())))?;
    let mut command = Command::new(program);
    command
        .args(["create", "-q", "-f", "qcow2", "-F", base.format.name(), "-b"])
        .arg(&base.path)
        .arg(to);
    // Without a size the overlay has the size of its image. A smaller size would cut the image.
    if wanted > size {
        command.arg(wanted.to_string());
    }
    let (status, said) =
        run(&mut command, "", COMPLAINT, bounds).map_err(|e| Refused::io(program.display(), &e))?;
    if status.success() {
        return Ok(());
    }
    let said = said.concat();
    let why = format!("{}: {}", program.display(), String::from_utf8_lossy(&said).trim());
    Err(Refused::new(Reason::ImageFailure, why))
}

fn copy(base: &Disk, wanted: u64, to: &Path, bounds: Bounds<'_>) -> io::Result<()> {
    // The new file has a mode of its own, because the image may be read-only.
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    let (mut from, mut file) = (File::open(&base.path)?, options.open(to)?);
    // With `io::copy` the kernel copies, and some file systems share the blocks.
    loop {
        bounds.check()?;
        if io::copy(&mut (&mut from).take(PIECE), &mut file)? == 0 {
            break;
        }
        // A sync of the whole image at the end could not be cancelled, and would have no time limit.
        file.sync_data()?;
    }
    match base.format {
        Format::Raw => {
            if file.metadata()?.len() < wanted {
                file.set_len(wanted)?;
            }
        }
        Format::Qcow2 if wanted > header(&base.path)?.unwrap_or(0) => {
            let image = base.path.display();
            warn!("{image}: the disk can't be larger than its image without qemu-img");
        }
        Format::Qcow2 => {}
    }
    Ok(())
}

/// The disk of a volume.
pub(super) fn volume_disk(volume: &Path) -> Option<Disk> {
    let disks = DISKS.map(|name| Disk {
        path: volume.join(name),
        format: Format::Raw,
    });
    // A link does not count, because a process instance that had the volume could have made it.
    let is_file = |disk: &Disk| fs::symlink_metadata(&disk.path).is_ok_and(|m| m.is_file());
    disks.into_iter().find(is_file)
}

/// Makes the disk of a new volume. The file is sparse, so it uses space only as it is written.
pub(super) fn make_volume_disk(volume: &Path, gib: i64) -> io::Result<Disk> {
    let path = volume.join("disk.img");
    let size = u64::try_from(gib).unwrap_or(0).max(1).saturating_mul(GIB);
    let mut options = OpenOptions::new();
    let file = options.write(true).create_new(true).mode(0o600).open(&path)?;
    // The next launch would use a disk without content.
    file.set_len(size).inspect_err(|_| drop(fs::remove_file(&path)))?;
    let format = Format::Raw;
    Ok(Disk { path, format })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ssntp_transport::{Cancel, deadline, left};
    use uuid::Uuid;

    use super::*;

    #[test]
    fn no_image_name_leads_out_of_the_directory() {
        for good in ["7c9e6679-7425-40de-944b-e07fc1f90ae7", "debian-12", "a.b_c+1"] {
            assert!(is_name(good), "{good}");
        }
        let long = "a".repeat(MAX_NAME + 1);
        for bad in [
            "",
            ".",
            "..",
            "../x",
            "a/b",
            "/etc/passwd",
            ".hidden",
            "-x",
            "a b",
            "a,b",
            "a:b",
            "a\0",
            "ä",
            "a\n",
            "a\\b",
            &long,
        ] {
            assert!(!is_name(bad), "{bad:?}");
            let dir = tempfile::tempdir().unwrap();
            let error = find(Some(dir.path()), bad).unwrap_err();
            assert_eq!(error.reason, Reason::ImageFailure, "{bad:?}");
        }
    }

    #[test]
    fn images_are_found_with_and_without_an_extension() {
        let dir = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(dir.path()).unwrap();
        fs::write(
            root.join("a.img"),
            [b"QFI\xfb\0\0\0\x03".as_slice(), &[0; 24]].concat(),
        )
        .unwrap();
        fs::write(root.join("b"), "raw").unwrap();
        fs::create_dir(root.join("c")).unwrap();
        let a = find(Some(&root), "a").unwrap();
        assert_eq!((a.path, a.format), (root.join("a.img"), Format::Qcow2));
        let b = find(Some(&root), "b").unwrap();
        assert_eq!((b.path, b.format), (root.join("b"), Format::Raw));
        for (images, name) in [(Some(root.as_path()), "c"), (Some(&root), "d"), (None, "a")] {
            assert_eq!(find(images, name).unwrap_err().reason, Reason::ImageFailure);
        }
    }

    #[test]
    fn the_disk_with_the_lowest_index_boots() {
        let entry = |id: &str, boot, boot_index| Storage {
            id: id.into(),
            boot,
            boot_index,
            ..Storage::default()
        };
        let storage = [entry("a", false, 0), entry("b", true, 2), entry("c", true, 1)];
        assert_eq!(bootable(&storage).unwrap().id.as_str(), "c");
        assert_eq!(bootable(&storage[..1]), None);
    }

    #[test]
    fn without_qemu_img_the_image_is_copied_once() {
        let dir = tempfile::tempdir().unwrap();
        let place = InstanceDir::new(Uuid::nil(), dir.path());
        fs::create_dir(disks_of(&place)).unwrap();
        let image = dir.path().join("image");
        fs::write(&image, "first").unwrap();
        let base = || {
            Ok(Disk {
                path: image.clone(),
                format: Format::Raw,
            })
        };
        let cancel = Cancel::default();
        let bounds = Bounds {
            until: deadline(Duration::from_secs(60)),
            cancel: &cancel,
        };
        let disk = boot_disk(&place, base, 1, None, bounds).unwrap();
        assert_eq!(fs::metadata(&disk.path).unwrap().len(), GIB);
        assert_eq!(fs::read(&image).unwrap(), b"first");
        // A later run has what the earlier one wrote, and needs no image.
        let not_requested = || Err(Refused::launch("not asked for"));
        assert_eq!(boot_disk(&place, not_requested, 1, None, bounds).unwrap(), disk);
    }

    /// This holds for a copy and for qemu-img, whose process is killed.
    #[test]
    fn making_a_disk_ends_at_the_time_limit_and_when_the_launch_is_cancelled() {
        let dir = tempfile::tempdir().unwrap();
        let place = InstanceDir::new(Uuid::nil(), dir.path());
        fs::create_dir(disks_of(&place)).unwrap();
        let image = dir.path().join("image");
        fs::write(&image, "first").unwrap();
        let base = || {
            Ok(Disk {
                path: image.clone(),
                format: Format::Raw,
            })
        };
        let program = dir.path().join("qemu-img");
        let pid_file = dir.path().join("pid");
        let text = format!("#!/bin/sh\necho $$ >{}\nsleep 1000 & wait\n", pid_file.display());
        crate::tests::script(&program, &text);
        let (wanted, unwanted) = (Cancel::default(), Cancel::default());
        unwanted.cancel();
        let make = |qemu_img, until, cancel| {
            let bounds = Bounds {
                until: deadline(until),
                cancel,
            };
            boot_disk(&place, base, 0, qemu_img, bounds).unwrap_err()
        };
        let minute = Duration::from_secs(60);
        for (until, cancel, reason) in [
            (Duration::ZERO, &wanted, "timed out"),
            (minute, &unwanted, "cancelled"),
        ] {
            for (qemu_img, what) in [(None, "image"), (Some(program.as_path()), "qemu-img")] {
                let error = make(qemu_img, until, cancel);
                assert!(error.why.contains(reason) && error.why.contains(what), "{error}");
                assert_eq!(error.reason, Reason::LaunchFailure);
            }
        }
        // A launch that is cancelled while qemu-img runs.
        let _ = fs::remove_file(&pid_file);
        let pid = std::thread::scope(|scope| {
            let canceller = scope.spawn(|| {
                let given_up = deadline(minute);
                loop {
                    let pid = fs::read_to_string(&pid_file).unwrap_or_default();
                    if pid.ends_with('\n') || left(given_up).is_err() {
                        wanted.cancel();
                        return pid;
                    }
                    std::thread::yield_now();
                }
            });
            let error = make(Some(program.as_path()), 2 * minute, &wanted);
            assert!(error.why.contains("cancelled"), "{error}");
            canceller.join().unwrap()
        });
        assert!(pid.ends_with('\n'), "qemu-img ran");
        assert!(!Path::new("/proc").join(pid.trim()).exists());
        let disks = disks_of(&place);
        assert!(!disks.join("boot.raw").exists() && !disks.join("boot.qcow2").exists());
    }

    #[test]
    fn a_volume_has_a_disk_and_no_link() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(volume_disk(dir.path()), None);
        std::os::unix::fs::symlink("/etc/passwd", dir.path().join("disk.raw")).unwrap();
        assert_eq!(volume_disk(dir.path()), None);
        // No file can have this size.
        assert!(make_volume_disk(dir.path(), i64::MAX).is_err());
        assert_eq!(volume_disk(dir.path()), None);
        let made = make_volume_disk(dir.path(), 0).unwrap();
        assert_eq!(volume_disk(dir.path()), Some(made));
    }
}
