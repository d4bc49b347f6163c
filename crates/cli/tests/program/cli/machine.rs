//! A virtual machine: a scheduler, an agent and QEMU as processes, and a guest that prints the
//! content of its seed.

use std::fs;
use std::path::Path;
use std::process::Command;

use ssntp_payload::{
    Delete, InstanceDeleted, InstanceState, NodeDisconnected, Persistence, RawDocument, Start, StartPayload,
    Stats, Stop, Storage, VmType,
};
use uuid::Uuid;

use crate::processes::{Cluster, wait_for};

/// The whole system of a guest, in one sector. It prints "up" and the sector of the second disk
/// that begins with "#c". Then it waits for the power button, prints "down", and turns itself off.
fn boot_disk() -> Vec<u8> {
    let mut disk = vec![
        0x31, 0xc0, // xor ax, ax
        0x8e, 0xd8, 0x8e, 0xc0, 0x8e, 0xd0, // mov ds, ax; mov es, ax; mov ss, ax
        0xbc, 0x00, 0x7c, // mov sp, 0x7c00
        0xfc, // cld
        0xbe, 0x79, 0x7c, 0xe8, 0x4b, 0x00, // mov si, up; call print
        0xfe, 0x06, 0x71, 0x7c, // next: inc byte [sector]
        0x80, 0x3e, 0x71, 0x7c, 64, // cmp byte [sector], 64
        0x74, 0x1e, // je ready
        0xbe, 0x69, 0x7c, // mov si, packet
        0xb4, 0x42, 0xb2, 0x81, 0xcd, 0x13, // read a sector of disk 0x81
        0x72, 0xea, // jc next
        0x81, 0x3e, 0x00, 0x80, b'#', b'c', // cmp word [0x8000], "#c"
        0x75, 0xe2, // jne next
        0xbe, 0x00, 0x80, // mov si, 0x8000
        0xc6, 0x06, 0x00, 0x82, 0x00, // mov byte [0x8200], 0
        0xe8, 0x22, 0x00, // call print
        0xba, 0x02, 0x06, 0xb8, 0x00, 0x01, 0xef, // ready: ask ACPI for the button
        0xfb, 0xf4, // wait: sti; hlt
        0xba, 0x00, 0x06, 0xed, // in ax, 0x600
        0xf6, 0xc4, 0x01, 0x74, 0xf5, // test ah, 1; jz wait
        0xbe, 0x7d, 0x7c, 0xe8, 0x0a, 0x00, // mov si, down; call print
        0xba, 0x04, 0x06, 0xb8, 0x00, 0x20, 0xef, // tell ACPI to turn it off
        0xf4, 0xeb, 0xfd, // halt: hlt; jmp halt
        0xac, 0x84, 0xc0, 0x74, 0x06, // print: lodsb; test al, al; jz done
        0xba, 0xf8, 0x03, 0xee, // out 0x3f8, al
        0xeb, 0xf5, // jmp print
        0xc3, // done: ret
        0x10, 0, 1, 0, 0, 0x80, 0, 0, // packet: one sector, to 0x8000
        0, 0, 0, 0, 0, 0, 0, 0, // sector
    ];
    disk.extend(b"up\n\0down\n\0");
    disk.resize(510, 0);
    disk.extend([0x55, 0xaa]);
    // The BIOS does not boot from a disk of one sector.
    disk.resize(1 << 20, 0);
    disk
}

fn has_qemu() -> bool {
    let version = Command::new("qemu-system-x86_64").arg("--version").output();
    version.is_ok_and(|output| output.status.success())
}

#[test]
fn a_guest_reads_its_seed_outlives_its_agent_and_obeys_its_power_button() {
    if !has_qemu() {
        println!("skipped: no qemu-system-x86_64 here");
        return;
    }
    let cluster = Cluster::new();
    let images = cluster.dir.path().join("images");
    fs::create_dir(&images).unwrap();
    fs::write(images.join("tiny.raw"), boot_disk()).unwrap();
    let arguments = [
        "--state",
        "state",
        "--images",
        "images",
        "--grace",
        "60",
        "--emulation",
    ];
    let mut agent = cluster.agent("agent", &arguments);
    let node = agent.uuid();
    cluster.next(|_: &Stats| true);

    let mut start = Start {
        instance_uuid: Uuid::new_v4(),
        vm_type: VmType::Qemu,
        persistence: Persistence::Host,
        storage: vec![Storage {
            id: "tiny".into(),
            boot: true,
            ..Storage::default()
        }],
        ..Start::default()
    };
    start.requirements.mem_mb = 64;
    start.requirements.vcpus = 1;
    let id = start.instance_uuid;
    cluster.send(&StartPayload {
        start,
        user_data: Some(RawDocument::new("#cloud-config\nhostname: seen\n").unwrap()),
        meta_data: None,
    });
    let is = |wanted: InstanceState| {
        move |stats: &Stats| {
            let mut instances = stats.instances.iter();
            instances.any(|instance| instance.instance_uuid == id && instance.state == wanted)
        }
    };
    cluster.next(is(InstanceState::Active));
    let dir = cluster.dir.path().join("state/instances").join(id.to_string());
    let output = |dir: &Path| fs::read_to_string(dir.join("stdout.log")).unwrap_or_default();
    let greeting = "up\n#cloud-config\nhostname: seen\n";
    wait_for(|| match output(&dir) {
        greeted if greeted == greeting => Ok(()),
        other => Err(other),
    });

    agent.kill();
    // STATS that arrive before this are those of the former agent.
    cluster.next(|_: &NodeDisconnected| true);
    let agent = cluster.agent("agent", &arguments);
    cluster.next(is(InstanceState::Active));

    // The guest ends within the grace period, so it is not killed.
    cluster.send(&Stop {
        instance_uuid: id.into(),
        workload_agent_uuid: node.into(),
        stop: false,
    });
    cluster.next(is(InstanceState::Exited));
    assert_eq!(output(&dir), format!("{greeting}down\n"));
    let record = wait_for(|| match fs::read_to_string(dir.join("instance.yaml")) {
        Ok(record) if record.contains("phase: stopped") => Ok(record),
        other => Err(other),
    });
    assert!(record.contains("exit_code: 0\n"), "{record}");
    cluster.send(&Delete {
        instance_uuid: id.into(),
        workload_agent_uuid: node.into(),
        stop: false,
    });
    cluster.next(|_: &InstanceDeleted| true);
    agent.end(rustix::process::Signal::TERM);
}
