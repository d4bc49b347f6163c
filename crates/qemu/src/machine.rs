//! The arguments of QEMU for a machine. I/O is done only to find QEMU, KVM and firmware.
//!
//! QEMU runs in a directory in which the machine's user may write. The disks are in another
//! directory.

use std::ffi::{OsStr, OsString};
use std::fs::OpenOptions;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use uuid::Uuid;

use super::image::Disk;
use super::qmp;
use ssntp_agent::driver::supervisor::find_program;
use ssntp_agent::driver::{Refused, User};
use ssntp_agent::network::Tap;
use ssntp_agent::tool::{Bounds, run};
use ssntp_payload::FwType;

const KVM: &str = "/dev/kvm";
/// QEMU's sandbox, which denies obsolete system calls, new privileges, other programs, and a change
/// of its own priority.
const SANDBOX: &str = "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny";
/// The maximum number of bytes that are read of QEMU's list of options, which has some 60 KB.
const HELP: u64 = 1 << 20;
/// The seed disk's name among the machine's disks.
pub(super) const SEED: &str = "seed.img";
/// The memory of a machine whose START names no amount.
const DEFAULT_MEM_MB: i64 = 512;
/// The memory that QEMU itself may use in addition to that of the machine.
const OVERHEAD_MB: i64 = 512;
/// The size of the cache of translated code in software emulation, in MB. The default of QEMU is up
/// to a gigabyte for each machine.
const TRANSLATED_MB: u32 = 128;
/// The paths of EFI firmware that consists of one file, in different distributions.
const FIRMWARE: [(&str, &str); 5] = [
    ("x86_64", "/usr/share/ovmf/OVMF.fd"),
    ("x86_64", "/usr/share/OVMF/OVMF.fd"),
    ("x86_64", "/usr/share/edk2/x64/OVMF.fd"),
    ("aarch64", "/usr/share/qemu-efi-aarch64/QEMU_EFI.fd"),
    ("aarch64", "/usr/share/edk2/aarch64/QEMU_EFI.fd"),
];

/// The QEMU program that runs a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Emulator {
    pub(super) path: PathBuf,
    /// The architecture of the machine, as QEMU names it.
    pub(super) arch: &'static str,
    /// The group in which the user has to be to use KVM, if a group is needed. The error is the
    /// reason why KVM cannot be used.
    pub(super) kvm: Result<Option<u32>, String>,
    /// True if QEMU was built with its sandbox.
    pub(super) sandbox: bool,
}

impl Emulator {
    /// Finds out whether QEMU was built with its sandbox: the list of options contains it then. A
    /// QEMU that does not print the list will not run the machine either.
    pub(super) fn find_sandbox(&mut self, bounds: Bounds<'_>) -> Result<(), Refused> {
        let name = self.path.display();
        let (status, said) = run(Command::new(&self.path).arg("-help"), "", HELP, bounds)
            .map_err(|e| Refused::io(format_args!("{name} -help"), &e))?;
        let said = said.concat();
        let help = String::from_utf8_lossy(&said);
        if !status.success() {
            let error = help.lines().next_back().unwrap_or_default();
            return Err(Refused::launch(format!("{name} -help: {status}: {error}")));
        }
        self.sandbox = help.contains("-sandbox on");
        Ok(())
    }

    /// The group in which the user has to be, if a group is needed.
    ///
    /// # Errors
    /// The machine would be emulated, and `emulation`, the policy, does not allow that.
    pub(super) fn group(&self, emulation: bool) -> Result<Option<u32>, Refused> {
        match &self.kvm {
            Ok(group) => Ok(*group),
            Err(_) if emulation => Ok(None),
            Err(why) => Err(Refused::launch(format!(
                "the machine would be emulated, because {why} (policy: emulation)"
            ))),
        }
    }

    /// Finds QEMU for the architecture of this host, otherwise for x86-64.
    pub(super) fn find(path: Option<&OsStr>, user: Option<User>) -> Result<Self, Refused> {
        let host = std::env::consts::ARCH;
        let find = |arch: &'static str| {
            let path = find_program(format!("qemu-system-{arch}").as_ref(), path, Path::new("/")).ok()?;
            // KVM runs only code of the host's own architecture.
            let kvm = if arch == host {
                kvm_for(user)
            } else {
                Err(format!("this host is not {arch}"))
            };
            Some(Self {
                path,
                arch,
                kvm,
                sandbox: false,
            })
        };
        find(host).or_else(|| find("x86_64")).ok_or_else(|| {
            Refused::launch(format!(
                "QEMU is not installed: there is no qemu-system-{host} in PATH"
            ))
        })
    }
}

/// The group in which the user has to be to use KVM, if a group is needed. The error is the reason
/// why the user cannot use KVM.
fn kvm_for(user: Option<User>) -> Result<Option<u32>, String> {
    let metadata = OpenOptions::new().read(true).write(true).open(KVM);
    let metadata = metadata.and_then(|kvm| kvm.metadata());
    let metadata = metadata.map_err(|e| format!("{KVM}: {e}"))?;
    group_for(user, metadata.mode(), (metadata.uid(), metadata.gid()))
}

/// The group in which a user has to be to read and write a file, if a group is needed.
fn group_for(user: Option<User>, mode: u32, owner: (u32, u32)) -> Result<Option<u32>, String> {
    let allows = |class: u32| mode >> class & 0o6 == 0o6;
    match user {
        None => Ok(None),
        Some(user) if user.uid == owner.0 && allows(6) => Ok(None),
        Some(user) if user.gid == owner.1 && allows(3) => Ok(None),
        // Root's group is never given, because it has more rights than to use KVM.
        Some(_) if owner.1 != 0 && allows(3) => Ok(Some(owner.1)),
        Some(user) if user.uid != owner.0 && user.gid != owner.1 && allows(0) => Ok(None),
        Some(user) => Err(format!("user {} may not use {KVM}", user.uid)),
    }
}

/// The firmware of a machine; `None` for QEMU's own.
pub(super) fn firmware(arch: &str, kind: &FwType) -> Result<Option<PathBuf>, Refused> {
    // Machines of this architecture always start with EFI.
    if *kind != FwType::Efi && arch != "aarch64" {
        return Ok(None);
    }
    let mut known = FIRMWARE.iter().filter(|(of, _)| *of == arch);
    let found = known.find(|(_, path)| Path::new(path).is_file());
    found
        .map(|(_, path)| Some(path.into()))
        .ok_or_else(|| Refused::launch(format!("this node has no EFI firmware for {arch} (install OVMF)")))
}

/// A machine.
#[derive(Clone, Debug)]
pub(super) struct Machine<'a> {
    pub(super) emulator: &'a Emulator,
    pub(super) firmware: Option<&'a Path>,
    pub(super) instance: Uuid,
    /// The memory in MB; 0 if the START names no amount.
    pub(super) mem_mb: i64,
    /// The maximum memory of a machine whose START names no amount, in MB; 0 for no limit.
    pub(super) most_mb: i64,
    /// True if the machine may be emulated.
    pub(super) emulation: bool,
    /// The number of CPUs; 0 if the START names none.
    pub(super) vcpus: i64,
    pub(super) boot: &'a Disk,
    pub(super) seed: &'a Path,
    pub(super) volumes: &'a [(Uuid, Disk)],
    /// The interface in the network of a tenant.
    pub(super) tap: Option<&'a Tap>,
}

impl Machine<'_> {
    /// The memory limit of the machine together with QEMU, in MB.
    pub(super) fn limit_mb(&self) -> i64 {
        self.memory().saturating_add(OVERHEAD_MB)
    }

    fn memory(&self) -> i64 {
        match self.mem_mb {
            0 if self.most_mb > 0 => DEFAULT_MEM_MB.min(self.most_mb),
            0 => DEFAULT_MEM_MB,
            mb => mb,
        }
    }

    /// QEMU's arguments.
    pub(super) fn arguments(&self) -> Vec<OsString> {
        let mut list = Arguments::default();
        // With these flags QEMU uses neither default devices nor configuration files, so the
        // arguments describe the whole machine.
        list.flag("-nodefaults").flag("-no-user-config");
        list.pair("-name", &format!("guest={}", self.instance));
        list.pair("-uuid", &self.instance.to_string());
        if self.emulator.arch == "aarch64" {
            list.pair("-machine", "virt").pair("-cpu", "max");
        }
        if self.emulator.sandbox {
            list.pair("-sandbox", SANDBOX);
        }
        // QEMU uses the first accelerator that works.
        if self.emulator.kvm.is_ok() {
            list.pair("-accel", "kvm");
        }
        if self.emulation {
            list.pair("-accel", &format!("tcg,tb-size={TRANSLATED_MB}"));
        }
        list.pair("-m", &format!("{}M", self.memory()));
        list.pair("-smp", &self.vcpus.max(1).to_string());
        if let Some(firmware) = self.firmware {
            list.pair("-bios", firmware);
        }
        list.pair("-display", "none").pair("-monitor", "none");
        if self.emulator.arch == "x86_64" {
            // The screen is not displayed, but some boot loaders need one.
            list.pair("-vga", "std");
        }
        // The serial port is the standard output, which the supervisor reads.
        list.pair("-chardev", "stdio,id=serial,signal=off");
        list.pair("-serial", "chardev:serial");
        list.pair("-qmp", &format!("unix:{},server=on,wait=off", qmp::SOCKET));
        list.disk("boot", &self.boot.path, self.boot.format.name(), false);
        list.pair("-device", "virtio-blk-pci,drive=boot,id=dev-boot,bootindex=0");
        // The seed is read-only, because only the agent writes it.
        list.disk("seed", self.seed, "raw", true);
        list.pair("-device", "virtio-blk-pci,drive=seed,id=dev-seed");
        for (volume, disk) in self.volumes {
            let node = node_of(*volume);
            list.disk(&node, &disk.path, disk.format.name(), false);
            let (device, serial) = (device_of(*volume), serial_of(*volume));
            list.pair(
                "-device",
                &format!("virtio-blk-pci,drive={node},id={device},serial={serial}"),
            );
        }
        if let Some(Tap { interface, mac, mtu }) = self.tap {
            let tap = format!("tap,id=net,ifname={interface},script=no,downscript=no");
            list.pair("-netdev", &tap);
            // Without the ROM, because the machine never boots from the network.
            let device = format!("virtio-net-pci,netdev=net,mac={mac},host_mtu={mtu},romfile=");
            list.pair("-device", &device);
        }
        list.0
    }
}

/// The node name of a volume's content: QEMU allows 31 characters.
pub(super) fn node_of(volume: Uuid) -> String {
    let name = volume.simple().to_string();
    format!("v{}", name.get(..30).unwrap_or(&name))
}

/// The identifier of a volume's device.
pub(super) fn device_of(volume: Uuid) -> String {
    format!("d{}", volume.simple())
}

/// The serial number of a volume in the instance: the first 20 characters of the volume's UUID,
/// because a serial number has no more.
pub(super) fn serial_of(volume: Uuid) -> String {
    let name = volume.to_string();
    name.get(..20).unwrap_or(&name).to_owned()
}

#[derive(Debug, Default)]
struct Arguments(Vec<OsString>);

impl Arguments {
    fn flag(&mut self, flag: &str) -> &mut Self {
        self.0.push(flag.into());
        self
    }

    fn pair(&mut self, flag: &str, value: &(impl AsRef<OsStr> + ?Sized)) -> &mut Self {
        self.0.extend([flag.into(), value.as_ref().to_owned()]);
        self
    }

    /// The content of a disk.
    fn disk(&mut self, node: &str, path: &Path, format: &str, read_only: bool) {
        let read_only = if read_only { "on" } else { "off" };
        let mut disk = OsString::from(format!(
            "driver={format},node-name={node},read-only={read_only},file.driver=file,file.filename="
        ));
        disk.push(escaped(path.as_os_str()));
        self.pair("-blockdev", &disk);
    }
}

/// A value within an option of QEMU. A comma is doubled, because a single one begins the next value.
fn escaped(value: &OsStr) -> OsString {
    use std::os::unix::ffi::{OsStrExt, OsStringExt};

    let mut bytes = Vec::with_capacity(value.len());
    for byte in value.as_bytes() {
        bytes.push(*byte);
        if *byte == b',' {
            bytes.push(b',');
        }
    }
    OsString::from_vec(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::Format;

    fn emulator(kvm: bool) -> Emulator {
        Emulator {
            path: "qemu".into(),
            arch: "x86_64",
            kvm: kvm.then_some(None).ok_or_else(|| "no".into()),
            sandbox: kvm,
        }
    }

    fn text(machine: &Machine<'_>) -> String {
        let arguments = machine.arguments();
        let texts: Vec<_> = arguments.iter().map(|a| a.to_str().unwrap()).collect();
        texts.join(" ")
    }

    #[test]
    fn the_arguments_describe_a_machine() {
        let volume = Uuid::from_u128(0x7c9e6679_7425_40de_944b_e07fc1f90ae7);
        let disk = |path: &str, format| Disk {
            path: path.into(),
            format,
        };
        let (emulator, boot) = (emulator(false), disk("boot.qcow2", Format::Qcow2));
        let volumes = [(volume, disk("/a,b/disk.img", Format::Raw))];
        let machine = Machine {
            emulator: &emulator,
            firmware: None,
            instance: Uuid::nil(),
            mem_mb: 256,
            most_mb: 0,
            emulation: true,
            vcpus: 2,
            boot: &boot,
            seed: Path::new(SEED),
            volumes: &volumes,
            tap: Some(&Tap {
                interface: "ssp1".into(),
                mac: "02:00:ac:10:00:05".into(),
                mtu: 1450,
            }),
        };
        let expected = "-nodefaults -no-user-config \
            -name guest=00000000-0000-0000-0000-000000000000 -uuid 00000000-0000-0000-0000-000000000000 \
            -accel tcg,tb-size=128 -m 256M -smp 2 -display none -monitor none -vga std \
            -chardev stdio,id=serial,signal=off -serial chardev:serial \
            -qmp unix:qmp.sock,server=on,wait=off \
            -blockdev driver=qcow2,node-name=boot,read-only=off,file.driver=file,file.filename=boot.qcow2 \
            -device virtio-blk-pci,drive=boot,id=dev-boot,bootindex=0 \
            -blockdev driver=raw,node-name=seed,read-only=on,file.driver=file,file.filename=seed.img \
            -device virtio-blk-pci,drive=seed,id=dev-seed \
            -blockdev driver=raw,node-name=v7c9e6679742540de944be07fc1f90a,read-only=off,file.driver=file,file.filename=/a,,b/disk.img \
            -device virtio-blk-pci,drive=v7c9e6679742540de944be07fc1f90a,id=d7c9e6679742540de944be07fc1f90ae7,serial=7c9e6679-7425-40de-9 \
            -netdev tap,id=net,ifname=ssp1,script=no,downscript=no \
            -device virtio-net-pci,netdev=net,mac=02:00:ac:10:00:05,host_mtu=1450,romfile=";
        assert_eq!(text(&machine), expected);
        assert_eq!(machine.limit_mb(), 768);
    }

    #[test]
    fn missing_settings_have_defaults() {
        let (emulator, boot) = (
            emulator(true),
            Disk {
                path: "boot.raw".into(),
                format: Format::Raw,
            },
        );
        let machine = Machine {
            emulator: &emulator,
            firmware: Some(Path::new("/fw")),
            instance: Uuid::nil(),
            mem_mb: 0,
            most_mb: 256,
            emulation: false,
            vcpus: 0,
            boot: &boot,
            seed: Path::new(SEED),
            volumes: &[],
            tap: None,
        };
        let text = text(&machine);
        for part in [
            "-sandbox on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny -accel kvm",
            "-accel kvm -m 256M -smp 1 -bios /fw",
            "driver=raw,node-name=boot",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }

    #[test]
    fn a_user_gets_only_the_group_that_kvm_needs() {
        let (uid, gid, alone) = (7, 8, true);
        let user = Some(User { uid, gid, alone });
        for (user, mode, owner, group) in [
            (None, 0o600, (0, 0), Ok(None)),
            (user, 0o660, (0, 36), Ok(Some(36))),
            (user, 0o660, (0, 8), Ok(None)),
            (user, 0o666, (0, 0), Ok(None)),
            (user, 0o600, (7, 36), Ok(None)),
            (user, 0o660, (0, 0), Err(())),
            (user, 0o600, (0, 36), Err(())),
            (user, 0o640, (0, 36), Err(())),
        ] {
            assert_eq!(
                group_for(user, mode, owner).map_err(drop),
                group,
                "{mode:o} {owner:?}"
            );
        }
    }

    #[test]
    fn a_machine_without_kvm_is_refused_unless_it_may_be_emulated() {
        let lost = emulator(false);
        let error = lost.group(false).unwrap_err();
        assert!(error.why.ends_with("because no (policy: emulation)"), "{error}");
        assert_eq!(lost.group(true), Ok(None));
        let grouped = Emulator {
            kvm: Ok(Some(36)),
            ..lost
        };
        assert_eq!(grouped.group(false), Ok(Some(36)));
    }

    #[test]
    fn a_missing_qemu_is_named_in_the_error() {
        let empty = tempfile::tempdir().unwrap();
        for path in [None, Some(OsStr::new("")), Some(empty.path().as_os_str())] {
            let error = Emulator::find(path, None).unwrap_err();
            assert_eq!(error.reason, ssntp_agent::driver::Reason::LaunchFailure);
            assert!(error.why.contains("QEMU is not installed"), "{error}");
        }
        assert_eq!(firmware("x86_64", &FwType::Legacy).unwrap(), None);
        assert!(firmware("vax", &FwType::Efi).unwrap_err().why.contains("EFI"));
    }
}
