//! Restarts by policy, retention, slow disks, volumes that are deleted with their instance.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex};

use ssntp::payload::*;
use ssntp_agent::Policy;
use ssntp_agent::driver::{
    Commit, Driver, Ended, Exit, Found, InstanceDir, Launch, Measurable, NewsSink, Refused, RunId, Running,
    Usage, Volume,
};
use ssntp_payload::*;
use uuid::Uuid;

use crate::agent::cluster::*;

/// A gate. While it is closed, each thread that passes it waits.
#[derive(Debug, Default)]
struct Gate {
    open: Mutex<bool>,
    opened: Condvar,
}

impl Gate {
    fn pass(&self) {
        let mut open = self.open.lock().unwrap();
        while !*open {
            open = self.opened.wait(open).unwrap();
        }
    }

    fn open(&self) {
        *self.open.lock().unwrap() = true;
        self.opened.notify_all();
    }
}

/// A driver that runs no processes. The launch of an instance in `/slow` waits at a gate, and so
/// does the removal of an instance in `/sticky`.
struct SlowDisk {
    sinks: Mutex<HashMap<Uuid, NewsSink>>,
    gate: Arc<Gate>,
    sticky: Mutex<Vec<Uuid>>,
}

impl std::fmt::Debug for SlowDisk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SlowDisk")
    }
}

impl Driver for SlowDisk {
    fn name(&self) -> &'static str {
        "slow-disk"
    }
    fn check(&self, _: &Start) -> Result<(), Refused> {
        Ok(())
    }
    fn launch(&self, launch: &Launch<'_>, commit: &mut Commit<'_>) -> Result<RunId, Refused> {
        match launch.payload.start.dir.as_str() {
            "/slow" => self.gate.pass(),
            "/sticky" => self.sticky.lock().unwrap().push(launch.place.instance()),
            _ => {}
        }
        let handle = RunId::default();
        commit(&handle).unwrap();
        Ok(handle)
    }
    fn watch(&self, running: &Running, sink: &NewsSink) {
        let mut sinks = self.sinks.lock().unwrap();
        sinks.insert(running.place.instance(), NewsSink::clone(sink));
    }
    fn terminate(&self, running: &Running) -> io::Result<()> {
        self.kill(running)
    }
    fn kill(&self, running: &Running) -> io::Result<()> {
        let instance = running.place.instance();
        if let Some(sink) = self.sinks.lock().unwrap().remove(&instance) {
            let ended = Ended {
                instance,
                handle: running.handle.clone(),
                exit: Exit::code(0),
            };
            sink(ended.into());
        }
        Ok(())
    }
    fn find(&self, _: &Running) -> Found {
        Found::Ended(Exit::default())
    }
    fn find_unrecorded(&self, _: &InstanceDir) -> Option<RunId> {
        None
    }
    fn measure(&self, instances: &[Measurable]) -> Vec<Usage> {
        vec![Usage::default(); instances.len()]
    }
    fn forget(&self, place: &InstanceDir) {
        if self.sticky.lock().unwrap().contains(&place.instance()) {
            self.gate.pass();
        }
    }
    fn attach(&self, _: &InstanceDir, _: Option<&RunId>, _: &Volume) -> Result<(), Refused> {
        Ok(())
    }
    fn detach(&self, _: &InstanceDir, _: Option<&RunId>, _: &Volume) -> Result<(), Refused> {
        Ok(())
    }
}

#[test]
fn a_slow_disk_delays_only_its_own_instance() {
    let gate = Arc::new(Gate::default());
    let mut cluster = Cluster::empty();
    let driver = SlowDisk {
        sinks: Mutex::default(),
        gate: Arc::clone(&gate),
        sticky: Mutex::default(),
    };
    let config = ssntp_agent::AgentConfig::new(cluster.client())
        .state(cluster.path("state"))
        .driver(driver);
    cluster.agent(|_| config);
    let start = |cluster: &mut Cluster, dir: &str| {
        let start = Start {
            dir: dir.into(),
            ..cluster.script("true")
        };
        cluster.send(&start);
        start.instance_uuid
    };
    let up = |cluster: &mut Cluster, dir| {
        let id = start(cluster, dir);
        cluster.wait_state(id, InstanceState::Active);
        id
    };
    let runs = up(&mut cluster, "/");
    let sticky: Vec<_> = (0..6).map(|_| up(&mut cluster, "/sticky")).collect();
    let slow: Vec<_> = (0..12).map(|_| start(&mut cluster, "/slow")).collect();
    let all = |cluster: &mut Cluster, ids: &[Uuid], state: InstanceState| {
        cluster.next(|stats: &Stats| {
            let of = |id: &Uuid| stats.instances.iter().find(|i| i.instance_uuid == *id);
            ids.iter().all(|id| of(id).is_some_and(|i| i.state == state))
        });
    };
    all(&mut cluster, &slow, InstanceState::Pending);
    for id in &sticky {
        cluster.send(&delete(*id));
    }
    all(&mut cluster, &sticky, InstanceState::Stopping);
    // STOP, RESTART, START and DELETE of other instances are carried out.
    cluster.send(&stop(runs));
    cluster.wait_state(runs, InstanceState::Exited);
    cluster.send(&restart(runs));
    cluster.wait_state(runs, InstanceState::Active);
    let other = up(&mut cluster, "/");
    for id in [runs, other] {
        cluster.send(&delete(id));
        cluster.next(|deleted: &InstanceDeleted| deleted.instance_uuid == id);
    }
    gate.open();
    all(&mut cluster, &slow, InstanceState::Active);
}

#[test]
fn a_process_that_fails_is_started_again_and_its_restarts_are_counted() {
    let mut cluster = Cluster::new();
    // The process fails at its first run only.
    let mut start = cluster.script("test -e ran && exec sleep 1000; touch ran; exit 3");
    start.restart_policy = RestartPolicy::OnFailure;
    let id = start.instance_uuid;
    cluster.send(&start);
    let of = |stats: &Stats| stats.instances.iter().find(|i| i.instance_uuid == id).cloned();
    let has_restarted =
        |stats: &Stats| of(stats).is_some_and(|i| i.restarts == 1 && i.state == InstanceState::Active);
    cluster.next(has_restarted);
    // The next agent carries out a STOP, and has kept the count of restarts.
    cluster.end_agent();
    cluster.agent(|config| config);
    cluster.next(has_restarted);
    cluster.send(&stop(id));
    assert_eq!(cluster.wait_state(id, InstanceState::Exited).restarts, 1);
}

#[test]
fn an_instance_that_waits_for_its_restart_can_be_stopped() {
    let mut cluster = Cluster::new();
    let mut start = cluster.script("exit 0");
    start.restart_policy = RestartPolicy::Always;
    let id = start.instance_uuid;
    cluster.send(&start);
    let of = |stats: &Stats| stats.instances.iter().find(|i| i.instance_uuid == id).cloned();
    cluster
        .next(|stats: &Stats| of(stats).is_some_and(|i| i.restarts >= 1 && i.state == InstanceState::Exited));
    cluster.send(&stop(id));
    cluster.next(|stopped: &InstanceStopped| stopped.instance_uuid == id);
    cluster.send(&stop(id));
    let failure: StopFailure = cluster.next(|_| true);
    assert_eq!(failure.reason, Reason::AlreadyStopped);
}

/// Changes the record of an instance as if it were from another boot of the machine.
fn boot(instance_dir: &Path) {
    let path = instance_dir.join("instance.yaml");
    let record = fs::read_to_string(&path).unwrap();
    let body = record.split("# checksum").next().unwrap();
    let boot = body.lines().find(|line| line.starts_with("boot_id:")).unwrap();
    let body = body.replace(boot, "boot_id: 00000000-0000-4000-8000-000000000000");
    let sum = body.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    fs::write(&path, format!("{body}# checksum {sum:016x}\n")).unwrap();
    // A boot also ends the supervisor before it can record the end of the run.
    let _ = fs::remove_dir_all(instance_dir.join("run"));
}

#[test]
fn after_a_reboot_instances_are_started_again_by_their_policy() {
    let mut cluster = Cluster::new();
    let (never, always) = (
        cluster.script("exec sleep 1000"),
        cluster.script("exec sleep 1000"),
    );
    let always = Start {
        restart_policy: RestartPolicy::Always,
        ..always
    };
    let ids = [never.instance_uuid, always.instance_uuid];
    for start in [never, always] {
        cluster.send(&start);
        cluster.wait_state(start.instance_uuid, InstanceState::Active);
    }
    cluster.end_agent();
    for id in ids {
        let pid = rustix::process::Pid::from_raw(cluster.pid(id)).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        boot(&cluster.instance_dir(id));
    }
    cluster.agent(|config| config);
    cluster.next(|stats: &Stats| {
        let state = |id| {
            let instance = stats.instances.iter().find(|i| i.instance_uuid == id);
            instance.map(|i| (i.state.clone(), i.restarts))
        };
        state(ids[0]) == Some((InstanceState::Exited, 0)) && state(ids[1]) == Some((InstanceState::Active, 1))
    });
}

#[test]
fn an_offline_node_is_still_offline_after_a_restart_of_its_agent() {
    let mut cluster = Cluster::new();
    cluster.toggle_offline();
    cluster.next(|stats: &Stats| stats.status == NodeStatus::Offline);
    cluster.end_agent();
    cluster.agent(|config| config);
    let stats: Stats = cluster.next(|_| true);
    assert_eq!(stats.status, NodeStatus::Offline);
    cluster.toggle_offline();
    cluster.next(|stats: &Stats| stats.status == NodeStatus::Ready);
}

#[test]
fn ended_instances_are_deleted_from_disk_and_do_not_fill_the_node() {
    let mut policy = Policy::default();
    policy.retention_count = 2;
    let mut cluster = Cluster::empty();
    cluster.agent(|config| config.policy(policy).max_instances(1));
    let mut ids = Vec::new();
    for _ in 0..5 {
        let mut start = cluster.script("exit 3");
        start.persistence = Persistence::Unset;
        ids.push(start.instance_uuid);
        cluster.send(&start);
        cluster.wait_state(start.instance_uuid, InstanceState::Exited);
    }
    for id in &ids[..3] {
        cluster.next(|deleted: &InstanceDeleted| deleted.instance_uuid == *id);
        assert!(!cluster.instance_dir(*id).exists());
    }
    assert!(cluster.instance_dir(ids[4]).exists());
}

#[test]
fn a_start_is_on_disk_as_it_was_received() {
    let mut cluster = Cluster::new();
    let id = Uuid::new_v4();
    let start = format!(
        "start:\n  instance_uuid: {id}\n  vm_type: process\n  persistence: host\n  colour: blue\n  \
         command: [sleep, \"1000\"] # a comment\n---\n#cloud-config\n---\n{{}}\n"
    );
    cluster.send_raw(ssntp::proto::Command::START, &start);
    cluster.wait_state(id, InstanceState::Active);
    cluster.send(&stop(id));
    cluster.wait_state(id, InstanceState::Exited);
    let mut restart_command = restart(id);
    restart_command.requirements.mem_mb = 33;
    cluster.send(&restart_command);
    cluster.wait_state(id, InstanceState::Active);
    let kept = fs::read_to_string(cluster.instance_dir(id).join("start.yaml")).unwrap();
    assert!(kept.ends_with(&start), "{kept}");
}

#[test]
fn an_ephemeral_volume_is_deleted_with_its_instance() {
    let mut cluster = Cluster::new();
    let (kept, deleted) = (Uuid::new_v4(), Uuid::new_v4());
    let volume = |id: Option<Uuid>, ephemeral| Storage {
        id: id.map(Id::from).unwrap_or_default(),
        local: id.is_some(),
        ephemeral,
        ..Storage::default()
    };
    let mut start = cluster.script("exec sleep 1000");
    start.storage = vec![
        volume(Some(kept), false),
        volume(Some(deleted), true),
        volume(None, false),
    ];
    let id = start.instance_uuid;
    cluster.send(&start);
    let stats = cluster.wait_state(id, InstanceState::Active);
    assert_eq!(
        stats.volumes.len(),
        3,
        "the volume without a name was made as well"
    );
    let volumes_on_disk = |cluster: &Cluster| {
        let entries = fs::read_dir(cluster.path("volumes")).unwrap();
        let mut names: Vec<_> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    };
    let mut all: Vec<_> = stats.volumes.iter().map(ToString::to_string).collect();
    all.sort();
    assert_eq!(volumes_on_disk(&cluster), all);
    cluster.send(&delete(id));
    cluster.next(|_: &InstanceDeleted| true);
    assert_eq!(volumes_on_disk(&cluster), [kept.to_string()]);

    // A START that fails leaves no volume that it has made.
    let mut start = cluster.script("true");
    start.command = vec!["no-such-program".into()];
    start.storage = vec![volume(Some(deleted), true), volume(None, false)];
    cluster.send(&start);
    cluster.next(|_: &StartFailure| true);
    assert_eq!(volumes_on_disk(&cluster), [kept.to_string()]);
}
