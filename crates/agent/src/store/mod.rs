//! The state directory: the records of an agent and its instances.
//!
//! ```text
//! STATE/                        locked: one agent at a time
//!   node.yaml                   the record of the node: maintenance, next state, OFFLINE
//!   instances/UUID/
//!     instance.yaml             the record: phase, process, exit code
//!     start.yaml                a checksum, and the START as it was received
//!     restart.yaml              the changes of a RESTART, if there was one
//!     …                         files of the driver, see `driver::InstanceDir`
//!   new/                        instances that are being made
//!   removed/                    directories of deleted instances, until they are removed
//!   set-aside/                  copies of unreadable files; the log has the reasons
//! ```
//!
//! Only the agent can read the state. The user of an instance can pass the directories above the
//! instance's directory, and no other user can enter that directory. The instance's user owns `work`.
//! If instances have UIDs of their own, each UID belongs to one instance.
//!
//! A file is written under another name, synced, and renamed, so that after a crash the old or the
//! new file is there. An instance's directory is made in `new`, and renamed once it is on the disk
//! with its content, so that after a crash the whole instance is there or does not exist. Each file
//! has a checksum of its content: a damaged file, or one that was changed by hand, is recognised,
//! set aside and not used.
//!
//! | file | holds |
//! |---|---|
//! | `record` | the records of an instance and of the node |
//! | `start` | the START of an instance, with what a RESTART changed |

mod record;
mod start;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap};
use std::fs::{self, DirBuilder, File};
use std::io::{self, Write};
use std::ops::RangeInclusive;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use log::warn;
use uuid::Uuid;

pub(crate) use self::record::{NodeRecord, Record, RecordAfter, RecordPhase, Stored, millis};
use self::start::read_start;
pub(crate) use self::start::{changes, name_own_volumes, own_volumes, restarted};
use super::driver::{InstanceDir, User, Volume, boot_id};
use super::tree;
use ssntp_cluster::summed::{read_summed, sum_line, write_summed};
use ssntp_payload::Restart;
use ssntp_transport::locked;

const RECORD: &str = "instance.yaml";
const START: &str = "start.yaml";
const RESTART: &str = "restart.yaml";
const NODE: &str = "node.yaml";
const INSTANCES: &str = "instances";
const SET_ASIDE: &str = "set-aside";
const NEW: &str = "new";
const REMOVED: &str = "removed";
/// The mode of a directory that only the agent's user can enter.
const PRIVATE: u32 = 0o700;
/// The mode of a directory that others may pass but not list.
pub(crate) const PASSABLE: u32 = 0o711;
/// The maximum number of numbered copies of one broken file.
const SET_ASIDE_COPIES: u32 = 100;

/// The state directory of one agent. Any thread may call it, but two calls for the same
/// instance must not overlap.
#[derive(Debug)]
pub(crate) struct Store {
    root: PathBuf,
    volumes: Option<PathBuf>,
    /// The UID of each instance that does not run as the agent's user.
    uids: Mutex<HashMap<Uuid, u32>>,
    /// The directory. The lock ends when it is closed.
    _lock: File,
}

impl Store {
    /// Opens the directory, after making it if it does not exist, and locks it. `volumes` is the
    /// directory of volumes, if this node has any.
    pub(crate) fn open(root: &Path, volumes: Option<&Path>) -> io::Result<Self> {
        make_dirs(root, PASSABLE)?;
        // Instances get these paths and have other working directories, so the paths are absolute.
        let root = fs::canonicalize(root)?;
        let volumes = volumes.map(fs::canonicalize).transpose()?;
        let lock = File::open(&root)?;
        ssntp_transport::lock(&lock, "another agent")?;
        // This directory is made now, because on a full disk it could not be made, and instances
        // could not be deleted.
        if let Err(e) = make_dirs(&root.join(REMOVED), PRIVATE) {
            warn!("{}: {e}", root.display());
        }
        Ok(Self {
            root,
            volumes,
            uids: Mutex::default(),
            _lock: lock,
        })
    }

    /// The path of the state directory.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// Checks that files can be made in the directory.
    pub(crate) fn check_writable(&self) -> io::Result<()> {
        // Permissions can't tell: a file system may be mounted read-only or be full.
        let path = self.root.join(".probe");
        File::create(&path)?;
        fs::remove_file(&path)
    }

    /// The directory of an instance.
    pub(crate) fn place(&self, instance: Uuid) -> InstanceDir {
        place(&self.root, instance)
    }

    /// Makes the directory of a new instance, with its START as it was received. After a power cut
    /// the directory is complete or does not exist.
    pub(crate) fn create(&self, instance: Uuid, start: &[u8], record: &Record) -> io::Result<()> {
        let place = self.place(instance);
        // A former instance of that name may have left files that were not removed.
        tree::remove(place.dir())?;
        let instances = instances(&self.root);
        make_dirs(&instances, PASSABLE)?;
        let new = InstanceDir::new(instance, self.root.join(NEW).join(instance.to_string()));
        let make = || {
            tree::remove(new.dir())?;
            make_dirs(&new.work(), PRIVATE)?;
            make_dirs(&new.volumes(), PRIVATE)?;
            // The checksum comes first, because after the last document it would belong to that.
            let mut options = File::options();
            let options = options.write(true).create_new(true).mode(0o600);
            let mut file = options.open(new.dir().join(START))?;
            file.write_all(sum_line(start).as_bytes())?;
            file.write_all(start)?;
            file.sync_all()?;
            // This syncs the directory as well.
            write_summed(&new.dir().join(RECORD), &record.written())?;
            fs::rename(new.dir(), place.dir())
        };
        make().inspect_err(|_| {
            // The first error is reported. The next agent removes the remaining files.
            let _ = tree::remove(new.dir());
        })?;
        // Only this writes the rename to the disk.
        sync_dir(&instances)
    }

    /// Writes the changes of a RESTART. The START is kept as it was received.
    pub(crate) fn save_restart(&self, instance: Uuid, restart: &Restart) -> io::Result<()> {
        write_summed(&self.place(instance).dir().join(RESTART), restart)
    }

    /// Replaces an instance's record.
    pub(crate) fn save(&self, instance: Uuid, record: &Record) -> io::Result<()> {
        write_summed(&self.place(instance).dir().join(RECORD), &record.written())
    }

    /// Replaces the node's record.
    pub(crate) fn save_node(&self, node: &NodeRecord) -> io::Result<()> {
        write_summed(&self.root.join(NODE), node)
    }

    /// Removes an instance with its files and its `ephemeral` volumes.
    ///
    /// # Errors
    /// The directory could not be moved away: the instance is unchanged. Files that can't be removed
    /// afterwards are no error, and the next agent tries to remove them again.
    pub(crate) fn remove(&self, instance: Uuid, ephemeral: &[Uuid]) -> io::Result<()> {
        let place = self.place(instance);
        for volume in volumes_at(&place.volumes()) {
            // This precedes the release of the instance's UID, which may own the volume.
            self.take_back(&place, volume);
            if ephemeral.contains(&volume) {
                self.remove_volume(instance, volume);
            }
        }
        let dir = place.dir().to_owned();
        // A rename is atomic and needs no space on a full disk. The name is new each time, because an
        // instance with the same UUID may have been removed before.
        let aside = self.root.join(REMOVED).join(Uuid::new_v4().to_string());
        let gone = match fs::rename(&dir, &aside) {
            Ok(()) => aside,
            // `NotFound` can also mean that `removed` is missing, so the directory itself is checked.
            Err(e) if e.kind() == io::ErrorKind::NotFound && !dir.exists() => {
                locked(&self.uids).remove(&instance);
                return Ok(());
            }
            Err(_) => {
                // Without a record the next agent removes the directory.
                found(fs::remove_file(dir.join(RECORD)))?;
                dir
            }
        };
        if let Err(e) = tree::remove(&gone) {
            warn!("{}: some of its files can't be removed: {e}", gone.display());
        }
        locked(&self.uids).remove(&instance);
        Ok(())
    }

    /// Removes directories that a former agent could not remove, or did not finish making.
    fn remove_the_rest(&self) {
        let entries = |name| fs::read_dir(self.root.join(name)).into_iter().flatten();
        for entry in entries(REMOVED).chain(entries(NEW)).flatten() {
            if let Err(e) = tree::remove(&entry.path()) {
                warn!("{}: {e}", entry.path().display());
            }
        }
    }

    /// Reads all records. Unreadable files are set aside, and the reason is logged.
    pub(crate) fn load(&self) -> io::Result<(NodeRecord, Vec<Stored>)> {
        self.remove_the_rest();
        let node = match read_summed(&self.root.join(NODE)) {
            Ok(node) => node.unwrap_or_default(),
            Err(why) => {
                self.set_aside(&self.root.join(NODE), &why);
                warn!("this node may have been in maintenance: it takes no START until it is restored");
                NodeRecord {
                    closed: true,
                    ..NodeRecord::default()
                }
            }
        };
        let entries = match fs::read_dir(instances(&self.root)) {
            Ok(entries) => entries,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok((node, Vec::new())),
            Err(e) => return Err(e),
        };
        let mut stored = Vec::new();
        for entry in entries {
            let entry = entry?;
            let name = entry.file_name();
            match name.to_str().and_then(|name| Uuid::try_parse(name).ok()) {
                Some(instance) => stored.extend(self.load_instance(instance)),
                None => warn!(
                    "{}: its name is not the UUID of an instance, and it is ignored",
                    entry.path().display()
                ),
            }
        }
        // The system lists directories in any order. Logs and tests need a fixed order.
        stored.sort_by_key(|stored| stored.instance);
        Ok((node, stored))
    }

    fn load_instance(&self, instance: Uuid) -> Option<Stored> {
        let place = self.place(instance);
        let (record_path, start_path) = (place.dir().join(RECORD), place.dir().join(START));
        // This precedes all steps that can fail, because a UID in use must not be given to another
        // instance.
        if let Some(uid) = owner_of(&place) {
            locked(&self.uids).insert(instance, uid);
        }
        let record: Option<Record> = match read_summed(&record_path) {
            Ok(Some(record)) => Some(record),
            Ok(None) => {
                // The agent ended while it removed the instance.
                warn!("instance {instance}: it has no record, and is removed");
                if let Err(e) = self.remove(instance, &[]) {
                    warn!("instance {instance}: {e}");
                }
                return None;
            }
            Err(why) => {
                self.set_aside(&record_path, &why);
                None
            }
        };
        let mut start = match read_start(&start_path) {
            Ok(mut start) => {
                name_own_volumes(&mut start.start);
                Some(Box::new(start))
            }
            Err(why) => {
                self.set_aside(&start_path, &why);
                None
            }
        };
        let restart_path = place.dir().join(RESTART);
        match (read_summed(&restart_path), &mut start) {
            (Ok(Some(restart)), Some(start)) => start.start = restarted(&start.start, restart),
            (Ok(_), _) => {}
            (Err(why), _) => self.set_aside(&restart_path, &why),
        }
        let (is_run, boot) = (record.as_ref().and_then(Record::handle), boot_id());
        let rebooted =
            is_run.is_some_and(|run| !run.boot_id.is_empty() && !boot.is_empty() && run.boot_id != boot);
        let age = record.as_ref().map(Record::age).unwrap_or_default();
        Some(Stored {
            instance,
            record,
            start,
            volumes: volumes_at(&place.volumes()),
            rebooted,
            age,
        })
    }

    /// Copies a broken file into `set-aside`, under a name made of its path. The file itself stays
    /// until it is replaced, because an instance without a record would be removed.
    fn set_aside(&self, path: &Path, why: &str) {
        let copied = || -> io::Result<PathBuf> {
            let dir = self.root.join(SET_ASIDE);
            // Broken files may contain secrets that only the agent may read.
            make_dirs(&dir, PRIVATE)?;
            let relative = path.strip_prefix(&self.root).unwrap_or(path);
            let name = relative.to_string_lossy().replace('/', "_");
            let to = (0..SET_ASIDE_COPIES)
                .map(|n| dir.join(format!("{name}.{n}")))
                .find(|to| !to.exists())
                // Beyond this number the copy without a number is overwritten, so that copies cannot
                // fill the disk.
                .unwrap_or_else(|| dir.join(&name));
            fs::copy(path, &to)?;
            Ok(to)
        };
        match copied() {
            Ok(to) => warn!("{}: {why}; set aside as {}", path.display(), to.display()),
            Err(e) => warn!("{}: {why}; it can't be set aside: {e}", path.display()),
        }
    }

    /// A volume of this node.
    pub(crate) fn volume(&self, uuid: Uuid) -> Option<Volume> {
        let path = self.volumes.as_ref()?.join(uuid.to_string());
        Some(Volume { uuid, path })
    }

    /// Records that a volume is attached, by a link to the volume.
    pub(crate) fn link(&self, place: &InstanceDir, volume: &Volume) -> io::Result<()> {
        symlink(&volume.path, place.volumes().join(volume.uuid.to_string()))?;
        sync_dir(&place.volumes())
    }

    /// Gives a volume to an instance's user, also if another user has written it.
    pub(crate) fn lend(&self, place: &InstanceDir, volume: &Volume) -> io::Result<()> {
        match user_of(place) {
            Some(user) => tree::give(&fs::canonicalize(&volume.path)?, user),
            None => Ok(()),
        }
    }

    /// Closes a volume to the user of an instance, because another instance may get the same UID
    /// later. Files in the volume keep their owner until the volume is lent again.
    fn take_back(&self, place: &InstanceDir, volume: Uuid) {
        let (Some(uid), Some(volume)) = (owner_of(place), self.volume(volume)) else {
            return;
        };
        let agent = rustix::process::geteuid().as_raw();
        if fs::metadata(&volume.path).is_ok_and(|metadata| metadata.uid() == uid)
            && let Err(e) = chown(&volume.path, Some(agent), None)
        {
            warn!("{}: {e}", volume.path.display());
        }
    }

    /// Removes a volume that is deleted with an instance, unless another instance has it. Volumes are
    /// removed before the instance, so that after a crash the next DELETE finds their links.
    fn remove_volume(&self, instance: Uuid, uuid: Uuid) {
        let Some(volume) = self.volume(uuid) else { return };
        let others = fs::read_dir(instances(&self.root))
            .into_iter()
            .flatten()
            .flatten();
        let has_it = |other: fs::DirEntry| {
            other.file_name() != *instance.to_string()
                && fs::symlink_metadata(other.path().join("volumes").join(uuid.to_string())).is_ok()
        };
        if others.into_iter().any(has_it) {
            return warn!("volume {uuid} of instance {instance} is not removed: another instance has it");
        }
        if let Err(e) = tree::remove(&volume.path) {
            warn!(
                "{}: this volume of the removed instance {instance} can't be removed: {e}",
                volume.path.display()
            );
        }
    }

    /// A UID of the range that no other instance has. An instance keeps its UID until it is removed.
    pub(crate) fn own_uid(&self, instance: Uuid, range: &RangeInclusive<u32>) -> io::Result<u32> {
        let mut uids = locked(&self.uids);
        if let Some(uid) = uids.get(&instance).filter(|uid| range.contains(uid)) {
            return Ok(*uid);
        }
        let first = u64::from(*range.start());
        let length = u64::from(*range.end()) - first + 1;
        let taken: BTreeSet<u64> = uids.values().map(|uid| u64::from(*uid)).collect();
        // The search begins at a place that depends on the instance, so that a UID is not used
        // again soon after its instance was deleted.
        let (_, begin) = instance.as_u64_pair();
        // Trying `taken.len() + 1` UIDs always finds a free one.
        let mut candidates = (0..length.min(taken.len() as u64 + 1))
            .map(|n| first + (begin % length + n) % length)
            .filter(|uid| !taken.contains(uid));
        let uid = candidates.next().and_then(|uid| u32::try_from(uid).ok());
        let uid = uid.ok_or_else(|| io::Error::other("all UIDs of the range are taken"))?;
        uids.insert(instance, uid);
        Ok(uid)
    }

    /// Opens the directories of an instance to its user, and gives the user `work` and the volumes.
    /// No other user can enter them.
    pub(crate) fn enclose(&self, place: &InstanceDir, user: Option<User>) -> io::Result<()> {
        tree::share(place.dir(), user, tree::PASS)?;
        tree::share(&place.volumes(), user, tree::LIST)?;
        let Some(user) = user else { return Ok(()) };
        tree::give(&place.work(), user)?;
        for volume in volumes_at(&place.volumes()) {
            if let Some(volume) = self.volume(volume) {
                found(self.lend(place, &volume))?;
            }
        }
        Ok(())
    }

    /// Records that a volume is no longer attached.
    pub(crate) fn unlink(&self, place: &InstanceDir, volume: Uuid) -> io::Result<()> {
        self.take_back(place, volume);
        found(fs::remove_file(place.volumes().join(volume.to_string())))?;
        sync_dir(&place.volumes())
    }
}

/// The directory of an instance in the state directory `root`.
pub(crate) fn place(root: &Path, instance: Uuid) -> InstanceDir {
    InstanceDir::new(instance, instances(root).join(instance.to_string()))
}

/// The directory of all instances.
pub(crate) fn instances(root: &Path) -> PathBuf {
    root.join(INSTANCES)
}

/// Makes a directory with its parents. If a file is in the way, the error names it.
pub(crate) fn make_dirs(path: &Path, mode: u32) -> io::Result<()> {
    let made = DirBuilder::new().recursive(true).mode(mode).create(path);
    made.map_err(|e| match path.ancestors().find(|at| at.is_file()) {
        Some(file) => io::Error::other(format!("{} is a file and no directory", file.display())),
        None => e,
    })
}

/// The user of an instance; `None` for the agent's own user.
fn user_of(place: &InstanceDir) -> Option<User> {
    let metadata = fs::symlink_metadata(place.work()).ok()?;
    let is_other = metadata.uid() != rustix::process::geteuid().as_raw();
    is_other.then(|| User {
        uid: metadata.uid(),
        gid: metadata.gid(),
        alone: false,
    })
}

fn owner_of(place: &InstanceDir) -> Option<u32> {
    user_of(place).map(|user| user.uid)
}

/// The result of removing a file. A file that does not exist counts as removed.
fn found(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

fn volumes_at(dir: &Path) -> BTreeSet<Uuid> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let uuid = |entry: fs::DirEntry| Uuid::try_parse(entry.file_name().to_str()?).ok();
    entries.filter_map(uuid).collect()
}

fn sync_dir(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}
