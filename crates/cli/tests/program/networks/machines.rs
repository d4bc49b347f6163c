//! A virtual machine in the network of its tenant.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use super::rig::{Rig, until};

/// The kernel modules that a machine needs. Their dependencies differ between kernels, so they are
/// loaded in rounds. A module that is built into the kernel has no file.
const MODULES: [&str; 8] = [
    "drivers/virtio/virtio",
    "drivers/virtio/virtio_ring",
    "drivers/virtio/virtio_pci_modern_dev",
    "drivers/virtio/virtio_pci_legacy_dev",
    "drivers/virtio/virtio_pci",
    "net/core/failover",
    "drivers/net/net_failover",
    "drivers/net/virtio_net",
];

/// Requests an address, pings the process, and answers at the port of the names.
const INIT: &str = r#"#!/bin/busybox sh
export PATH=/bin
busybox mkdir -p /proc /sys
busybox mount -t proc proc /proc
busybox mount -t sysfs sys /sys
for round in 1 2 3; do
  for module in $(busybox cat /modules); do busybox insmod /lib/$module 2>/dev/null; done
done
busybox ip link set lo up
busybox ip link set eth0 up
while ! busybox udhcpc -i eth0 -s /lease -n -q -t 5 -T 1; do :; done
peer=$(busybox sed -n 's/.*peer=\([0-9.]*\).*/\1/p' /proc/cmdline)
while ! busybox ping -c 1 -W 2 $peer; do :; done
echo "pong from $peer"
while :; do echo machine | busybox nc -l -p 7; done
"#;
const LEASE: &str = r#"#!/bin/busybox sh
[ "$1" = bound ] || exit 0
busybox ip addr add $ip/$mask dev eth0
busybox ip route add default via $router
echo "lease of $ip from $serverid, gateway $router, names from $dns, $(busybox cat /sys/class/net/eth0/mtu) bytes"
"#;

#[test]
fn a_machine_gets_its_lease_and_pings_a_process_of_its_tenant() {
    let boot = match boot() {
        Ok(boot) => boot,
        Err(missing) => return eprintln!("skipped: a machine cannot be tested here without {missing}"),
    };
    let Some(mut rig) = Rig::new() else { return };
    rig.kill("a");
    // A machine does not run as root, so it opens a tap that belongs to its own user.
    rig.write("images/none.raw", &vec![0; 1 << 20]);
    rig.agent_flags = "--emulation --images images --network tenants --underlay u0";
    rig.agent("a");
    rig.tenant("blue", 33);
    let process = rig.start("blue", "b");
    rig.write("initrd", &boot.initrd(rig.dir.path()));
    rig.write("vmlinuz", &fs::read(&boot.kernel).unwrap());
    // The driver finds this script in place of QEMU. It adds a kernel to the arguments, since there
    // is no disk to boot from, and removes KVM, which not every host has.
    let dir = rig.dir.path().display();
    rig.write(
        "bin/qemu-system-x86_64",
        format!(
            "#!/bin/sh\nfor word; do shift; [ $word = kvm ] && word=tcg; word=${{word%,bootindex=0}}; set -- \"$@\" \"$word\"; done\n\
             exec {} \"$@\" -kernel {dir}/vmlinuz -initrd {dir}/initrd \
             -append 'console=ttyS0 quiet panic=-1 peer={}'\n",
            boot.qemu.display(),
            process.ip
        )
        .as_bytes(),
    );
    let start = format!(
        "vm_type: qemu\nnode: {}\nmem_mb: 128\nstorage:\n- id: none\n  boot: true\n",
        rig.node("a")
    );
    rig.write("machine.yaml", start.as_bytes());
    let machine = rig.start_with("blue", "a", "--file machine.yaml");
    // An emulated machine is slow on a busy host.
    let in_time = |rig: &Rig, text: &str, holds: &dyn Fn(&str) -> bool| {
        let late = Instant::now() + Duration::from_secs(180);
        loop {
            let output = rig.done(&format!("logs {}", machine.uuid));
            if holds(&output) {
                return;
            }
            assert!(Instant::now() < late, "{text}: {output}");
        }
    };
    let prints = |words: &str| in_time(&rig, words, &|output| output.contains(words));
    let answers = |rig: &Rig| {
        let is_reachable = |_: &str| {
            process
                .answer_at(machine.ip)
                .is_some_and(|answer| answer.contains("machine"))
        };
        in_time(rig, "the machine does not answer", &is_reachable);
    };
    let lease = format!(
        "lease of {} from 172.16.0.1, gateway 172.16.0.1, names from 192.0.2.53, 1450 bytes",
        machine.ip
    );
    prints(&lease);
    prints(&format!("pong from {}", process.ip));
    answers(&rig);
    until(|| rig.done("tenant show blue").matches(" up ").count() == 2);
    // The lease and the connection work without an agent, and the next agent keeps the tap.
    rig.kill("a");
    rig.agent("a");
    answers(&rig);
    rig.done(&format!("delete {}", machine.uuid));
    until(|| rig.output("a", "ip -o link show group 21331").is_empty());
}

struct Boot {
    qemu: PathBuf,
    busybox: PathBuf,
    kernel: PathBuf,
    modules: PathBuf,
}

/// The files that boot a small Linux, or the reason why some are missing.
fn boot() -> Result<Boot, String> {
    let program = |name: &str| {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let mut candidates = std::env::split_paths(&path).map(|dir| dir.join(name));
        candidates.find(|file| file.is_file()).ok_or(name.to_owned())
    };
    let (qemu, busybox) = (program("qemu-system-x86_64")?, program("busybox")?);
    program("dnsmasq")?;
    // QEMU opens this device as the machine's own user.
    let tun = Path::new("/dev/net/tun");
    if !fs::metadata(tun).is_ok_and(|tun| tun.permissions().mode() & 0o006 == 0o006) {
        return Err(format!("a {} that everybody may open", tun.display()));
    }
    // A dynamically linked program names its loader near its beginning.
    let head = fs::read(&busybox).unwrap_or_default();
    let mut head = head.chunks(4096).next().unwrap_or_default().windows(5);
    let is_static = !head.any(|it| it == b"/lib6" || it == b"/lib/");
    let root = std::env::var_os("SSNTP_TEST_KERNEL").map_or("/".into(), PathBuf::from);
    let kernels = fs::read_dir(root.join("boot")).into_iter().flatten().flatten();
    let mut kernels = kernels.filter_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        let version = name.strip_prefix("vmlinuz-")?;
        let modules = root.join("lib/modules").join(version).join("kernel");
        Some((entry.path(), modules))
    });
    let (kernel, modules) = kernels
        .next()
        .ok_or("a kernel in /boot, or in boot/ of SSNTP_TEST_KERNEL")?;
    // Some kernels have compressed modules, which busybox does not load.
    let built_in = fs::read_to_string(modules.with_file_name("modules.builtin")).unwrap_or_default();
    let has_driver =
        built_in.contains("/virtio_net.ko") || modules.join("drivers/net/virtio_net.ko").is_file();
    match (is_static, has_driver) {
        (true, true) => Ok(Boot {
            qemu,
            busybox,
            kernel,
            modules,
        }),
        (false, _) => Err("a static busybox".into()),
        (_, false) => Err("a kernel whose virtio_net is built in, or a module that is not compressed".into()),
    }
}

impl Boot {
    /// The initial file system of the machine.
    fn initrd(&self, dir: &Path) -> Vec<u8> {
        let root = dir.join("root");
        fs::create_dir_all(root.join("bin")).unwrap();
        fs::create_dir_all(root.join("lib")).unwrap();
        fs::copy(&self.busybox, root.join("bin/busybox")).unwrap();
        let mut names = Vec::new();
        for module in MODULES {
            let name = format!("{}.ko", module.rsplit('/').next().unwrap());
            if fs::copy(
                self.modules.join(format!("{module}.ko")),
                root.join("lib").join(&name),
            )
            .is_ok()
            {
                names.push(name);
            }
        }
        for (file, text) in [("init", INIT), ("lease", LEASE), ("modules", &names.join("\n"))] {
            fs::write(root.join(file), text).unwrap();
            fs::set_permissions(root.join(file), Permissions::from_mode(0o755)).unwrap();
        }
        let mut packed = Command::new(&self.busybox);
        let packed = packed.args(["sh", "-c", "busybox find . | busybox cpio -o -H newc"]);
        let packed = packed.current_dir(&root).output().unwrap();
        assert!(packed.status.success(), "{packed:?}");
        packed.stdout
    }
}
