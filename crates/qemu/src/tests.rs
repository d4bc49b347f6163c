//! Tests with real machines, if QEMU is installed.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::sync::Arc;

use crossbeam_channel::{Receiver, unbounded};
use tempfile::TempDir;

use super::*;
use ssntp::payload::yaml;
use ssntp_agent::Policy;
use ssntp_agent::driver::{Confinement, Ended, News, User};
use ssntp_payload::{HealthCheck, Persistence, RawDocument, StartPayload, Storage};

const SOON: Duration = Duration::from_secs(60);
const GREETING: &[u8] = b"ssntp-boot\n";

/// The first sector of a disk: a program that writes the greeting to the first serial port, and
/// halts.
fn boot_sector() -> Vec<u8> {
    let mut sector = vec![
        0xfa, // cli
        0xfc, // cld
        0x31, 0xc0, // xor ax, ax
        0x8e, 0xd8, // mov ds, ax
        0xbe, 0x17, 0x7c, // mov si, greeting
        0xba, 0xf8, 0x03, // mov dx, 0x3f8
        0xac, // next: lodsb
        0x84, 0xc0, // test al, al
        0x74, 0x03, // jz halt
        0xee, // out dx, al
        0xeb, 0xf8, // jmp next
        0xf4, // halt: hlt
        0xeb, 0xfd, // jmp halt
    ];
    sector.extend(GREETING);
    sector.resize(510, 0);
    sector.extend([0x55, 0xaa]);
    // The BIOS does not boot from a smaller disk.
    sector.resize(1 << 20, 0);
    sector
}

fn processes() -> ProcessDriver {
    ProcessDriver::new(Confinement::ResourceLimits).unwrap()
}

/// The program that supervises the machines of these tests: an example of this package, which
/// `cargo test` builds beside the tests.
fn supervisor() -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    let built = tests
        .parent()
        .unwrap()
        .parent()
        .unwrap()
        .join("examples/supervisor");
    assert!(
        built.exists(),
        "build the examples: cargo test -p ssntp-qemu, without --lib"
    );
    built
}

struct Stage {
    dir: TempDir,
    place: InstanceDir,
    driver: QemuDriver,
    sink: NewsSink,
    ends: Receiver<Ended>,
    running: Option<Running>,
    user: Option<User>,
    policy: Policy,
}

impl Stage {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let place = InstanceDir::new(Uuid::new_v4(), dir.path().join("instance"));
        fs::create_dir_all(place.work()).unwrap();
        fs::create_dir_all(place.volumes()).unwrap();
        let images = dir.path().join("images, all");
        fs::create_dir(&images).unwrap();
        fs::write(images.join("tiny.raw"), boot_sector()).unwrap();
        let (to, ends) = unbounded();
        Self {
            driver: QemuDriver::new(processes().supervisor(supervisor())).images(images),
            dir,
            place,
            sink: Arc::new(move |news| match news {
                News::Ended(ended) => to.send(ended).unwrap(),
                News::Health { .. } => panic!("machines have no checks"),
            }),
            ends,
            running: None,
            user: None,
            // The tests also run without KVM.
            policy: yaml::decode(b"emulation: yes").unwrap(),
        }
    }

    fn start(&self, image: &str) -> StartPayload {
        let mut payload = StartPayload {
            start: Start {
                instance_uuid: self.place.instance(),
                persistence: Persistence::Host,
                ..Start::default()
            },
            user_data: Some(RawDocument::new("#cloud-config\n").unwrap()),
            meta_data: None,
        };
        payload.start.requirements.mem_mb = 64;
        payload.start.requirements.vcpus = 1;
        payload.start.storage.push(Storage {
            id: image.into(),
            boot: true,
            ..Storage::default()
        });
        payload
    }

    fn launch(&mut self, payload: &StartPayload) -> Result<Running, Refused> {
        let launch = Launch {
            place: &self.place,
            payload,
            user: self.user,
            policy: &self.policy,
            cancel: &Cancel::default(),
            network: None,
        };
        let handle = self.driver.launch(&launch, &mut |_| Ok(()))?;
        let running = Running {
            place: self.place.clone(),
            handle,
        };
        self.driver.watch(&running, &self.sink);
        self.running = Some(running.clone());
        Ok(running)
    }

    fn serial(&self) -> Vec<u8> {
        fs::read(self.place.dir().join("stdout.log")).unwrap_or_default()
    }

    fn await_greetings(&self, count: usize) {
        let limit = deadline(SOON);
        let greetings = |log: &[u8]| log.windows(GREETING.len()).filter(|w| *w == GREETING).count();
        while greetings(&self.serial()) < count {
            assert!(
                left(limit).is_ok(),
                "{:?}",
                String::from_utf8_lossy(&self.serial())
            );
            pause(LOOK);
        }
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        if let Some(running) = &self.running {
            self.driver.processes.kill(running).unwrap();
        }
    }
}

/// True if machines with the boot sector's architecture can be started here.
fn has_qemu() -> bool {
    let found = Emulator::find(std::env::var_os("PATH").as_deref(), None);
    let usable = found.is_ok_and(|emulator| emulator.arch == "x86_64");
    if !usable {
        println!("skipped: no qemu-system here");
    }
    usable
}

#[test]
fn without_qemu_a_start_is_a_launch_failure() {
    let mut stage = Stage::new();
    let empty = stage.dir.path().join("empty");
    fs::create_dir(&empty).unwrap();
    stage.driver = stage.driver.clone().path(empty);
    let payload = stage.start("tiny");
    assert_eq!(stage.driver.check(&payload.start), Ok(()));
    let error = stage.launch(&payload).unwrap_err();
    assert_eq!(error.reason, Reason::LaunchFailure);
    assert!(error.why.contains("QEMU is not installed"), "{error}");
}

#[test]
fn a_start_is_checked_by_its_type_and_the_name_of_its_image() {
    let stage = Stage::new();
    let mut payload = stage.start("tiny");
    for (kind, fault) in [
        (VmType::Qemu, None),
        (VmType::Unset, None),
        (VmType::Process, Some(Reason::LaunchFailure)),
        (VmType::Docker, Some(Reason::LaunchFailure)),
    ] {
        payload.start.vm_type = kind;
        let checked = stage.driver.check(&payload.start);
        assert_eq!(checked.err().map(|e| e.reason), fault);
    }
    let start = stage.start("../instance/work/x").start;
    assert_eq!(
        stage.driver.check(&start).unwrap_err().reason,
        Reason::InvalidData
    );
}

#[test]
fn a_start_that_asks_a_machine_for_what_only_a_process_has_is_refused_by_the_key() {
    let stage = Stage::new();
    type Row = (&'static str, fn(&mut Start));
    let rows: [Row; 6] = [
        ("health", |start| start.health = Some(HealthCheck::default())),
        ("command", |start| start.command = vec!["true".into()]),
        ("env", |start| drop(start.env.insert("A".into(), "b".into()))),
        ("env_file", |start| start.env_file = vec!["a".into()]),
        ("secrets", |start| {
            drop(start.secrets.insert("A".into(), "b".into()))
        }),
        ("dir", |start| start.dir = "/tmp".into()),
    ];
    for (key, change) in rows {
        let mut start = stage.start("tiny").start;
        change(&mut start);
        let refused = stage.driver.check(&start).unwrap_err();
        assert_eq!(refused.reason, Reason::InvalidData);
        assert!(refused.why.starts_with(&format!("{key}: ")), "{refused}");
    }
}

#[test]
fn a_missing_image_or_disk_is_an_image_failure() {
    let mut stage = Stage::new();
    // A file that is found as QEMU, and would fail if it were run.
    let bin = stage.dir.path().join("bin");
    fs::create_dir(&bin).unwrap();
    let qemu = bin.join(format!("qemu-system-{}", std::env::consts::ARCH));
    script(&qemu, "#!/bin/sh\necho 'no such luck' >&2\nexit 3\n");
    stage.driver = stage.driver.clone().path(&bin);
    for payload in [
        stage.start("absent"),
        stage.start(""),
        StartPayload::from(Start::default()),
    ] {
        let error = stage.launch(&payload).unwrap_err();
        assert_eq!(error.reason, Reason::ImageFailure, "{error}");
    }
    // A machine that ends at once counts as never started.
    let error = stage.launch(&stage.start("tiny")).unwrap_err();
    assert_eq!(error.reason, Reason::LaunchFailure);
    assert!(error.why.ends_with("no such luck"), "{error}");
    // The error of an earlier run is not that of the next one.
    for (command, why) in [
        ("printf 'bad\\n\\n' >&2", ": bad"),
        ("exit 3", "it printed no error"),
    ] {
        script(&qemu, &format!("#!/bin/sh\n[ \"$1\" = -help ] || {command}\n"));
        let error = stage.launch(&stage.start("tiny")).unwrap_err();
        assert!(error.why.ends_with(why), "{error}");
    }

    let volume = stage.dir.path().join("volume");
    fs::create_dir(&volume).unwrap();
    let link = stage.place.volumes().join(Uuid::nil().to_string());
    std::os::unix::fs::symlink(&volume, link).unwrap();
    let error = stage.launch(&stage.start("tiny")).unwrap_err();
    assert_eq!(error.reason, Reason::ImageFailure, "{error}");
}

/// A program in place of QEMU that prints its arguments, and has a sandbox or not.
#[test]
fn a_machine_runs_in_the_sandbox_if_qemu_has_one() {
    let mut stage = Stage::new();
    let bin = stage.dir.path().join("bin");
    fs::create_dir(&bin).unwrap();
    stage.driver = stage.driver.clone().path(&bin);
    let qemu = bin.join(format!("qemu-system-{}", std::env::consts::ARCH));
    for (help, has_it) in [
        ("-sandbox on[,obsolete=allow|deny]", true),
        ("-nodefaults", false),
    ] {
        let text = format!(
            "#!/bin/sh\n[ \"$1\" = -help ] && {{ echo '{help}'; exit 0; }}\necho \"$@\" >&2\nexit 3\n"
        );
        script(&qemu, &text);
        let error = stage.launch(&stage.start("tiny")).unwrap_err();
        assert!(error.why.contains("-nodefaults"), "{error}");
        assert_eq!(error.why.contains("-sandbox on,"), has_it, "{error}");
    }
}

#[test]
fn a_machine_is_not_started_if_qemu_does_not_report_its_sandbox() {
    let mut stage = Stage::new();
    let bin = stage.dir.path().join("bin");
    fs::create_dir(&bin).unwrap();
    stage.driver = stage.driver.clone().path(&bin);
    let qemu = bin.join(format!("qemu-system-{}", std::env::consts::ARCH));
    let started = stage.dir.path().join("started");
    let text = format!(
        "#!/bin/sh\n[ \"$1\" = -help ] && {{ echo 'no memory'; exit 1; }}\ntouch {}\n",
        started.display()
    );
    script(&qemu, &text);
    let error = stage.launch(&stage.start("tiny")).unwrap_err();
    assert!(error.why.ends_with("-help: exit status: 1: no memory"), "{error}");
    assert!(!started.exists());
}

/// Writes a program. A child process writes it: if this process did, another thread's child could
/// inherit the open file for a moment, and executing the program would fail.
pub(super) fn script(path: &Path, text: &str) {
    let command = "printf %s \"$2\" >\"$1\" && chmod 755 \"$1\"";
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", command, "sh"]).arg(path).arg(text);
    assert!(shell.status().unwrap().success());
}

/// A machine's user leaves links at paths where the agent writes files, or gives files to this user.
#[test]
fn links_that_a_machine_leaves_in_its_directory_are_not_followed() {
    let mut stage = Stage::new();
    let victim = stage.dir.path().join("victim");
    fs::write(&victim, "precious").unwrap();
    for name in [
        "seed.img",
        ".seed.img.new",
        "boot.qcow2",
        "boot.raw",
        "boot.new",
        "boot.err",
    ] {
        std::os::unix::fs::symlink(&victim, stage.place.work().join(name)).unwrap();
    }
    let bin = stage.dir.path().join("bin");
    fs::create_dir(&bin).unwrap();
    let qemu = bin.join(format!("qemu-system-{}", std::env::consts::ARCH));
    script(&qemu, "#!/bin/sh\nexit 3\n");
    fs::set_permissions(stage.dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    stage.driver = stage.driver.clone().path(&bin);
    // Only root may run machines as another user.
    stage.user = if rustix::process::geteuid().is_root() {
        let (uid, gid, alone) = (65534, 65534, false);
        Some(User { uid, gid, alone })
    } else {
        None
    };
    let owner = |path: &Path| fs::metadata(path).unwrap().uid();
    let before = owner(&victim);
    stage.launch(&stage.start("tiny")).unwrap_err();
    assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
    assert_eq!(owner(&victim), before);
    let boot = disks_of(&stage.place).join("boot.raw");
    if stage.user.is_some() {
        assert_eq!((owner(&boot), owner(boot.parent().unwrap())), (65534, before));
        assert_eq!(fs::metadata(&boot).unwrap().mode() & 0o777, 0o600);
    }
    // A disk with several names is not given to the user.
    fs::remove_file(&boot).unwrap();
    fs::hard_link(&victim, &boot).unwrap();
    stage.launch(&stage.start("tiny")).unwrap_err();
    assert_eq!(owner(&victim), before);
}

#[test]
fn a_machine_boots_is_found_again_and_ends() {
    if !has_qemu() {
        return;
    }
    let mut stage = Stage::new();
    let mut payload = stage.start("tiny");
    let (first, second) = (Uuid::new_v4(), Uuid::new_v4());
    for volume in [first, second] {
        let path = stage.dir.path().join(volume.to_string());
        fs::create_dir(&path).unwrap();
        if volume == first {
            std::os::unix::fs::symlink(&path, stage.place.volumes().join(volume.to_string())).unwrap();
        }
    }
    payload.start.storage.push(Storage {
        id: first.into(),
        local: true,
        ..Storage::default()
    });
    let running = stage.launch(&payload).unwrap();
    stage.await_greetings(1);
    assert!(disks_of(&stage.place).join(machine::SEED).is_file());

    // The driver of the next agent finds and measures it.
    let later = QemuDriver::new(processes());
    assert_eq!(later.find(&running), Found::Running);
    assert_eq!(later.find_unrecorded(&stage.place), Some(running.handle.clone()));
    let subject = Measurable {
        place: stage.place.clone(),
        handle: Some(running.handle.clone()),
        vcpus: 1,
        mem_mb: 64,
    };
    let usage = later.measure(&[subject])[0];
    assert!(usage.memory_mb > 0 && usage.disk_mb > 0, "{usage:?}");

    // A volume is attached while the machine runs; a volume without a disk is refused.
    let volume = Volume {
        uuid: second,
        path: stage.dir.path().join(second.to_string()),
    };
    let attach = |volume| later.attach(&stage.place, Some(&running.handle), volume);
    assert_eq!(attach(&volume).unwrap_err().reason, Reason::AttachFailure);
    image::make_volume_disk(&volume.path, 1).unwrap();
    attach(&volume).unwrap();
    assert_eq!(attach(&volume).unwrap_err().reason, Reason::InstanceFailure);

    // No system in the machine handles the power button, so it has to be killed.
    stage.driver.terminate(&running).unwrap();
    assert!(stage.ends.recv_timeout(Duration::from_millis(300)).is_err());
    stage.driver.kill(&running).unwrap();
    let ended = stage.ends.recv_timeout(SOON).unwrap();
    assert_eq!((ended.handle, ended.exit.code), (running.handle, Some(0)));

    // It starts again from the same disk.
    let again = stage.launch(&payload).unwrap();
    stage.await_greetings(2);
    stage.driver.processes.kill(&again).unwrap();
    let ended = stage.ends.recv_timeout(SOON).unwrap();
    assert_eq!(ended.exit.code, Some(137));
}
