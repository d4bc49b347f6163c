//! Instances that are virtual machines: `vm_type: qemu`, which is the default.
//!
//! ```text
//!  START ─▶ image ──▶ disks/boot.qcow2   its own disk, on top of the image
//!        ─▶ seed ───▶ disks/seed.img     user data and meta data, for cloud-init
//!        ─▶ machine ▶ qemu-system-…      in `work`, see `supervisor`
//!                        │    └──▶ stdout.log, the output of the machine's serial port
//!  STOP ─── qmp ────▶ work/qmp.sock      system_powerdown; later quit, SIGKILL
//! ```
//!
//! A machine's user can write in `work` and into the disks. The directory of the disks belongs to
//! the agent, so it contains only files that the agent made.
//!
//! The START names the disk to boot from, the memory and the CPUs:
//!
//! ```yaml
//! start:
//!   instance_uuid: 0f7a5a1e-3c55-4a0b-9d3c-6f1f2f9a1001
//!   vm_type: qemu
//!   persistence: host
//!   storage:
//!   - id: 7c9e6679-7425-40de-944b-e07fc1f90ae7   # IMAGES/7c9e6679-…[.qcow2|.img|.raw]
//!     boot: true
//!   - id: 3f2b8c1d-5e6f-4a70-8b91-a2b3c4d5e6f7   # VOLUMES/3f2b8c1d-…/disk.img
//!   requirements:
//!     mem_mb: 512
//!     vcpus: 2
//! ```
//!
//! Other volumes are disks whose serial number is the beginning of the volume's UUID. The disk of a
//! volume that is `local` is made with `size` GiB. The volumes of a machine that runs can be attached
//! and detached.
//!
//! On a node with tenants' networks, a machine whose START names a subnet has one interface there
//! (the crate `ssntp-network`), which gets its address by DHCP. Otherwise a machine has no network.
//!
//! | file | holds |
//! |---|---|
//! | `machine` | the choice of QEMU, and its arguments |
//! | `image` | files that are disks |
//! | `seed` | the disk for cloud-init |
//! | `qmp` | the connection to a running machine |

#![deny(missing_docs)]

mod image;
mod machine;
mod qmp;
mod seed;
#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::Duration;

use log::{info, warn};
use serde_json::json;
use uuid::Uuid;

use self::image::Disk;
use self::machine::{Emulator, Machine, device_of, node_of, serial_of};
use self::qmp::Qmp;
use ssntp_agent::driver::supervisor::{Exec, Program, find_program, is_alive, pause};
use ssntp_agent::driver::{
    Cancel, Commit, DEFAULT_PATH, Driver, Found, InstanceDir, Launch, Measurable, NewsSink, ProcessDriver,
    Reason, Refused, RunId, Running, Usage, Volume, give,
};
use ssntp_agent::tool::Bounds;
use ssntp_agent::tree;
use ssntp_payload::{Start, VmType};
use ssntp_transport::{deadline, left, replace, setters};

/// The time limit for making a boot disk. It is long, because without qemu-img the whole image is
/// copied, and the time until the copy is on the disk counts, too.
const IMAGE: Duration = Duration::from_secs(600);
/// The time for which a worker waits for the first answer of QEMU. A slower machine counts as
/// started.
const FIRST_ANSWER: Duration = Duration::from_secs(10);
/// The time after which a machine that does not quit is killed.
const QUIT: Duration = Duration::from_secs(2);
/// The time limit for the system in a machine to release a disk.
const UNPLUG: Duration = Duration::from_secs(5);
/// The maximum number of bytes that are read from the end of QEMU's log of errors.
const LAST_WORDS: u64 = 4096;
/// The pause between two checks while a worker waits for a machine.
const LOOK: Duration = Duration::from_millis(20);

/// Runs instances as virtual machines, if QEMU is installed. The module's source describes the
/// machines.
#[derive(Clone, Debug)]
pub struct QemuDriver {
    /// Runs QEMU.
    processes: ProcessDriver,
    images: Option<PathBuf>,
    /// The directories in which programs are looked for.
    path: OsString,
}

impl QemuDriver {
    /// A driver that runs QEMU by that of processes. Each START looks for QEMU in the agent's own `PATH`, and
    /// fails if QEMU is not installed.
    pub fn new(processes: ProcessDriver) -> Self {
        Self {
            processes,
            images: None,
            path: std::env::var_os("PATH").unwrap_or_else(|| DEFAULT_PATH.into()),
        }
    }

    setters! {
        /// The directory of images. Each image is a file with the name that a START uses, with or
        /// without `.qcow2`, `.img` or `.raw`. Default: none, and no machine can be started.
        images as Some: impl Into<PathBuf>;
    }

    /// Sets the directories in which programs are looked for, in place of `PATH`.
    #[cfg(test)]
    fn path(mut self, path: impl Into<OsString>) -> Self {
        self.path = path.into();
        self
    }

    fn boot_disk(&self, launch: &Launch<'_>) -> Result<Disk, Refused> {
        let entry = image::bootable(&launch.payload.start.storage)
            .ok_or_else(|| Refused::new(Reason::ImageFailure, "no entry of storage has boot: true"))?;
        let qemu_img = find_program("qemu-img".as_ref(), Some(&self.path), Path::new("/")).ok();
        let base = || image::find(self.images.as_deref(), entry.id.as_str());
        let bounds = Bounds {
            until: deadline(IMAGE),
            cancel: launch.cancel,
        };
        image::boot_disk(launch.place, base, entry.size, qemu_img.as_deref(), bounds)
    }
}

impl Driver for QemuDriver {
    fn name(&self) -> &'static str {
        "qemu"
    }

    fn check(&self, start: &Start) -> Result<(), Refused> {
        if !matches!(start.vm_type, VmType::Qemu | VmType::Unset) {
            let kind = start.vm_type.as_str();
            return Err(Refused::launch(format!("QEMU runs virtual machines, not {kind}")));
        }
        if let Some((key, why)) = unsupported(start) {
            return Err(Refused::new(Reason::InvalidData, format!("{key}: {why}")));
        }
        match image::bootable(&start.storage) {
            Some(entry) if !entry.id.is_empty() && !image::is_name(entry.id.as_str()) => {
                let why = format!("{:?} is not a valid name of an image", entry.id.as_str());
                Err(Refused::new(Reason::InvalidData, why))
            }
            _ => Ok(()),
        }
    }

    fn launch(&self, launch: &Launch<'_>, commit: &mut Commit<'_>) -> Result<RunId, Refused> {
        let (place, start) = (launch.place, &launch.payload.start);
        let (user, work, disks) = (launch.user, place.work(), disks_of(place));
        let mut emulator = Emulator::find(Some(&self.path), user)?;
        let firmware = machine::firmware(emulator.arch, &start.fw_type)?;
        // Checked before a disk is made, which can take minutes.
        let group = emulator.group(launch.policy.emulation)?;
        fs::create_dir_all(&disks)
            .and_then(|()| tree::share(&disks, user, tree::PASS))
            .map_err(|e| Refused::io(disks.display(), &e))?;
        let boot = self.boot_disk(launch)?;
        let volumes = volumes_of(place, start)?;
        let seed = disks.join(machine::SEED);
        replace(&seed, &seed_of(launch)?).map_err(|e| Refused::io(seed.display(), &e))?;
        if let Some(user) = user {
            let disks = volumes.iter().map(|(_, disk)| &disk.path);
            for path in [&boot.path, &seed].into_iter().chain(disks) {
                // QEMU opens these files as the machine's user, who has to own them.
                give(path, user).map_err(|e| Refused::io(path.display(), &e))?;
            }
        }
        let bounds = Bounds {
            until: deadline(FIRST_ANSWER),
            cancel: launch.cancel,
        };
        // This is found out at each launch, because QEMU may be replaced while the agent runs.
        emulator.find_sandbox(bounds)?;
        let tap = launch.network.map(|wire| wire.tap(user)).transpose()?;
        let machine = Machine {
            emulator: &emulator,
            firmware: firmware.as_deref(),
            instance: place.instance(),
            mem_mb: start.requirements.mem_mb,
            most_mb: launch.policy.mem_mb(0),
            emulation: launch.policy.emulation,
            vcpus: start.requirements.vcpus,
            boot: &boot,
            seed: &seed,
            volumes: &volumes,
            tap: tap.as_ref(),
        };
        // The socket of a former run would make QEMU fail.
        let _ = fs::remove_file(work.join(qmp::SOCKET));
        let exec = Exec {
            program: emulator.path.clone().into(),
            arguments: machine.arguments(),
            env: vec![
                ("PATH".into(), self.path.clone()),
                ("HOME".into(), work.clone().into()),
            ],
            dir: work.into(),
            user,
            group,
            within: None,
        };
        let program = Program {
            place,
            exec,
            mem_mb: machine.limit_mb(),
            vcpus: start.requirements.vcpus,
            pids: launch.policy.pids,
            // Only the tap of a machine is in the network of a tenant; QEMU is in the host's network.
            network: None,
            check: None,
            address: None,
        };
        // The log has the output of earlier runs as well.
        let logged = fs::metadata(errors_of(place)).map_or(0, |log| log.len());
        let await_ready = |running: &Running| await_answer(running, logged, launch.cancel);
        self.processes.run(program, commit, await_ready)
    }

    fn watch(&self, running: &Running, sink: &NewsSink) {
        self.processes.watch(running, sink);
    }

    /// Presses the machine's power button. If QMP does not answer, a signal ends QEMU, which
    /// is like a power cut for the machine.
    fn terminate(&self, running: &Running) -> io::Result<()> {
        let pressed = Qmp::connect(&running.place.work())
            .and_then(|mut qmp| qmp.execute("system_powerdown", &json!({})));
        match pressed {
            Ok(_) => Ok(()),
            Err(_) if !is_alive(&running.handle) => Ok(()),
            Err(e) => {
                warn!("instance {}: {e}", running.place.instance());
                self.processes.terminate(running)
            }
        }
    }

    /// Tells QEMU to quit first, so that it writes buffered data to its disks.
    fn kill(&self, running: &Running) -> io::Result<()> {
        // QEMU may hang in a write to its disks, so SIGKILL follows after a time limit.
        let limit = deadline(QUIT);
        let quits = Qmp::connect(&running.place.work()).and_then(|mut qmp| qmp.execute("quit", &json!({})));
        while quits.is_ok() && is_alive(&running.handle) && left(limit).is_ok() {
            pause(LOOK);
        }
        self.processes.kill(running)
    }

    fn find(&self, running: &Running) -> Found {
        self.processes.find(running)
    }

    fn find_unrecorded(&self, place: &InstanceDir) -> Option<RunId> {
        self.processes.find_unrecorded(place)
    }

    fn sweep(&self, instances: &Path, own: &HashSet<i32>) {
        self.processes.sweep(instances, own);
    }

    fn measure(&self, subjects: &[Measurable]) -> Vec<Usage> {
        self.processes.measure(subjects)
    }

    fn forget(&self, place: &InstanceDir) {
        self.processes.forget(place);
    }

    /// Adds the disk of the volume to a machine that runs. A stopped machine gets the disk when it is
    /// started.
    fn attach(&self, place: &InstanceDir, running: Option<&RunId>, volume: &Volume) -> Result<(), Refused> {
        let disk = image::volume_disk(&volume.path);
        if running.is_none() {
            // Before the first launch, the disk may still have to be made. Every launch writes the
            // seed, so without a seed there was no launch yet.
            let is_new = !disks_of(place).join(machine::SEED).exists();
            return match disk {
                None if !is_new => Err(no_disk(volume)),
                _ => Ok(()),
            };
        }
        let disk = disk.ok_or_else(|| no_disk(volume))?;
        let file = disk.path.to_str().ok_or_else(|| no_disk(volume))?;
        let (node, device) = (node_of(volume.uuid), device_of(volume.uuid));
        let plug = || {
            let mut qmp = Qmp::connect(&place.work())?;
            let file = json!({ "driver": "file", "filename": file });
            let content = json!({ "node-name": node, "driver": disk.format.name(), "file": file });
            qmp.execute("blockdev-add", &content)?;
            let serial = serial_of(volume.uuid);
            let disk = json!({ "driver": "virtio-blk-pci", "drive": node, "id": device, "serial": serial });
            qmp.execute("device_add", &disk).inspect_err(|_| {
                // The device was not made, so the file is closed again; otherwise QEMU would
                // keep it open.
                let _ = qmp.execute("blockdev-del", &json!({ "node-name": node }));
            })
        };
        plug()
            .map(drop)
            .map_err(|e| Refused::new(Reason::InstanceFailure, e.to_string()))
    }

    /// Removes the disk of the volume from a machine that runs, whose system has to release it first.
    fn detach(&self, place: &InstanceDir, running: Option<&RunId>, volume: &Volume) -> Result<(), Refused> {
        if running.is_none() {
            return Ok(());
        }
        let (node, device) = (node_of(volume.uuid), device_of(volume.uuid));
        Qmp::connect(&place.work())
            .and_then(|mut qmp| qmp.unplug(&device, &node, UNPLUG))
            .map_err(|e| Refused::new(Reason::InstanceFailure, e.to_string()))
    }
}

/// The first key of a START for which a machine has no use, and the reason. Its sender may rely on the key.
fn unsupported(start: &Start) -> Option<(&'static str, &'static str)> {
    const OF_PROCESS: &str = "only a process has it, and not a virtual machine";
    if start.health.is_some() {
        let why = "a virtual machine has no checks: its node does not reach it";
        return Some(("health", why));
    }
    let keys = [
        ("command", start.command.is_empty()),
        ("env", start.env.is_empty()),
        ("env_file", start.env_file.is_empty()),
        ("secrets", start.secrets.is_empty()),
        ("dir", start.dir.is_empty()),
    ];
    let named = keys.into_iter().find(|(_, is_empty)| !is_empty);
    named.map(|(key, _)| (key, OF_PROCESS))
}

/// Waits until QEMU answers. If it ends instead, the instance was never started. `logged` is the
/// length of QEMU's log of errors before the run.
fn await_answer(running: &Running, logged: u64, cancel: &Cancel) -> Result<(), Refused> {
    let (work, limit) = (running.place.work(), deadline(FIRST_ANSWER));
    // QEMU reports a wrong argument by ending, and a good start by answering.
    while is_alive(&running.handle) {
        match Qmp::connect(&work).and_then(|mut qmp| qmp.execute("query-status", &json!({}))) {
            Ok(answer) => {
                let status = answer["status"].as_str().unwrap_or_default();
                info!("instance {}: the machine is {status}", running.place.instance());
                return Ok(());
            }
            Err(_) if cancel.is_cancelled() => {
                return Err(Refused::launch("the launch was cancelled"));
            }
            Err(e) if left(limit).is_err() => {
                warn!("instance {}: {e}", running.place.instance());
                return Ok(());
            }
            Err(_) => pause(LOOK),
        }
    }
    let log = last_words(&running.place, logged).unwrap_or_default();
    let log = String::from_utf8_lossy(&log);
    let error = log.trim_end().lines().next_back();
    let error = error.unwrap_or("it printed no error");
    Err(Refused::launch(format!("QEMU ended at once: {error}")))
}

/// The seed disk for cloud-init. cloud-init needs both files, and the ID of the instance.
fn seed_of(launch: &Launch<'_>) -> Result<Vec<u8>, Refused> {
    let (user, meta) = (&launch.payload.user_data, &launch.payload.meta_data);
    let user = user.as_ref().map_or(&b""[..], |document| document.as_bytes());
    let default = format!("instance-id: {}\n", launch.place.instance());
    let given = meta.as_ref().map(|document| document.as_bytes());
    let meta = given
        .filter(|bytes| !bytes.is_empty())
        .map_or(default.as_bytes(), |bytes| bytes);
    seed::image(user, meta)
        .ok_or_else(|| Refused::new(Reason::InvalidData, "too much user data or meta data"))
}

/// The disks of all attached volumes.
fn volumes_of(place: &InstanceDir, start: &Start) -> Result<Vec<(Uuid, Disk)>, Refused> {
    let links = match fs::read_dir(place.volumes()) {
        Ok(links) => links,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(Refused::io(place.volumes().display(), &e)),
    };
    let mut volumes = Vec::new();
    for link in links.flatten() {
        let name = link.file_name();
        let Some(uuid) = name.to_str().and_then(|name| Uuid::try_parse(name).ok()) else {
            continue;
        };
        let path = fs::canonicalize(link.path()).map_err(|e| Refused::io(link.path().display(), &e))?;
        let disk = match image::volume_disk(&path) {
            Some(disk) => disk,
            None => {
                let is_local = |entry: &&ssntp_payload::Storage| entry.id.uuid() == Some(uuid) && entry.local;
                let entry = start.storage.iter().find(is_local);
                let missing = || Refused::new(Reason::ImageFailure, no_disk_at(&path));
                let entry = entry.ok_or_else(missing)?;
                image::make_volume_disk(&path, entry.size).map_err(|e| Refused::io(path.display(), &e))?
            }
        };
        volumes.push((uuid, disk));
    }
    // The disks have the same order in the instance at each start.
    volumes.sort_by_key(|(uuid, _)| *uuid);
    Ok(volumes)
}

fn no_disk(volume: &Volume) -> Refused {
    Refused::new(Reason::AttachFailure, no_disk_at(&volume.path))
}

fn no_disk_at(volume: &Path) -> String {
    format!("there is no disk.img in the volume {}", volume.display())
}

/// The directory of a machine's disks.
fn disks_of(place: &InstanceDir) -> PathBuf {
    place.dir().join("disks")
}

/// QEMU's log of errors.
fn errors_of(place: &InstanceDir) -> PathBuf {
    place.dir().join("stderr.log")
}

/// The end of QEMU's log of errors, without its first `logged` bytes.
fn last_words(place: &InstanceDir, logged: u64) -> io::Result<Vec<u8>> {
    let mut log = File::open(errors_of(place))?;
    let len = log.metadata()?.len();
    // A shorter log was begun during this run.
    let logged = if logged > len { 0 } else { logged };
    log.seek(SeekFrom::Start(len.saturating_sub(LAST_WORDS).max(logged)))?;
    let mut words = Vec::new();
    log.take(LAST_WORDS).read_to_end(&mut words)?;
    Ok(words)
}
