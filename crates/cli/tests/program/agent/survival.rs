//! Agents that end and start again, and damaged state.

use std::fs;

use rustix::process::{Pid, Signal, kill_process};
use ssntp_payload::*;
use uuid::Uuid;

use crate::agent::cluster::*;

#[test]
fn instances_outlive_their_agent_and_are_found_again() {
    let mut cluster = Cluster::new();
    let lives = cluster.run("exec sleep 1000");
    let ends = cluster.run("trap 'exit 7' TERM; echo up; while :; do sleep 1; done");
    cluster.output(ends, 1);
    let (lives_pid, ends_pid) = (cluster.pid(lives), cluster.pid(ends));
    cluster.end_agent();
    assert!(fs::exists(format!("/proc/{lives_pid}")).unwrap());

    // The supervisor passes the signal on to the process.
    kill_process(Pid::from_raw(ends_pid).unwrap(), Signal::TERM).unwrap();
    wait_for(|| {
        let state = fs::read_to_string(cluster.instance_dir(ends).join("run/state"));
        let state = state.unwrap_or_else(|e| e.to_string());
        state.contains("\"code\":7").then_some(()).ok_or(state)
    });
    cluster.agent(|config| config);
    let stats: Stats = cluster.next(|_| true);
    let states: Vec<_> = [lives, ends]
        .iter()
        .map(|id| {
            &stats
                .instances
                .iter()
                .find(|i| i.instance_uuid == *id)
                .unwrap()
                .state
        })
        .collect();
    assert_eq!(states, [&InstanceState::Active, &InstanceState::Exited]);
    assert_eq!(cluster.pid(lives), lives_pid);
    cluster.records(ends, "exit_code: 7\n");

    // The next agent controls the instance: a STOP ends it, and the agent reports its end.
    cluster.send(&stop(lives));
    cluster.wait_state(lives, InstanceState::Exited);
    cluster.send(&restart(ends));
    cluster.wait_state(ends, InstanceState::Active);
}

#[test]
fn a_damaged_record_has_no_effect_and_a_damaged_start_only_prevents_a_restart() {
    let mut cluster = Cluster::new();
    let (record, start) = (cluster.run("exec sleep 1000"), cluster.run("exec sleep 1000"));
    let pid = cluster.pid(record);
    cluster.end_agent();
    let tear = |id: Uuid, file: &str| {
        let path = cluster.instance_dir(id).join(file);
        let bytes = fs::read(&path).unwrap();
        fs::write(&path, &bytes[..bytes.len() / 2]).unwrap();
    };
    tear(record, "instance.yaml");
    tear(start, "start.yaml");
    cluster.agent(|config| config);
    cluster.next(|stats: &Stats| {
        stats.instances.len() == 2 && stats.instances.iter().all(|i| i.state == InstanceState::Active)
    });
    assert_eq!(cluster.pid(record), pid);
    assert_eq!(fs::read_dir(cluster.path("state/set-aside")).unwrap().count(), 2);

    cluster.send(&stop(start));
    cluster.wait_state(start, InstanceState::Missing);
    cluster.send(&restart(start));
    let failure: RestartFailure = cluster.next(|_| true);
    assert_eq!(failure.reason, Reason::InstanceCorrupt);
    cluster.send(&delete(start));
    cluster.next(|_: &InstanceDeleted| true);
}

#[test]
fn the_next_agent_kills_processes_without_a_record() {
    let mut cluster = Cluster::new();
    let [lost, kept] = ["lost", "kept"].map(|_| cluster.run("echo $$; exec sleep 1000"));
    let [program, other] = [lost, kept].map(|id| cluster.output(id, 1).trim().to_owned());
    let supervisor = cluster.pid(lost).to_string();
    cluster.end_agent();
    fs::remove_dir_all(cluster.instance_dir(lost)).unwrap();
    cluster.agent(|config| config);
    cluster.next(|stats: &Stats| stats.instances.len() == 1);
    // The arguments of a zombie are empty.
    let runs = |pid: &str| fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| !line.is_empty());
    // A process that was killed takes a moment to be gone.
    wait_for(|| {
        let run = [&program, &supervisor, &other].map(|pid| runs(pid));
        (run == [false, false, true]).then_some(()).ok_or(run)
    });
    let mut second_start = cluster.script("exec sleep 1000");
    second_start.instance_uuid = lost;
    cluster.send(&second_start);
    cluster.wait_state(lost, InstanceState::Active);
}

#[test]
fn maintenance_survives_the_agent() {
    let mut cluster = Cluster::new();
    cluster.send(&evacuate());
    cluster.next(|stats: &Stats| stats.status == NodeStatus::Maintenance);
    cluster.end_agent();
    cluster.agent(|config| config);
    let stats: Stats = cluster.next(|_| true);
    assert_eq!(stats.status, NodeStatus::Maintenance);
    cluster.send(&restore());
    cluster.next(|stats: &Stats| stats.status == NodeStatus::Ready);
}

#[test]
fn an_unwritable_state_directory_fails_commands_and_nothing_else() {
    let mut cluster = Cluster::new();
    let id = cluster.run("exec sleep 1000");
    let volume = Uuid::new_v4();
    fs::create_dir_all(cluster.path("volumes").join(volume.to_string())).unwrap();
    // Modes do not keep root from writing. Files in the place of directories do.
    let (volumes, instances) = (
        cluster.instance_dir(id).join("volumes"),
        cluster.path("state/instances"),
    );
    fs::remove_dir(&volumes).unwrap();
    fs::write(&volumes, "").unwrap();
    cluster.send(&attach(id, volume));
    let failure: AttachVolumeFailure = cluster.next(|_| true);
    assert_eq!(failure.reason, Reason::StateFailure);

    let aside = cluster.path("state/elsewhere");
    fs::rename(&instances, &aside).unwrap();
    fs::write(&instances, "").unwrap();
    let start = cluster.script("exec sleep 1000");
    cluster.send(&start);
    let failure: StartFailure = cluster.next(|_| true);
    assert_eq!(failure.reason, Reason::LaunchFailure);
    // Running instances are still stopped.
    cluster.send(&stop(id));
    cluster.wait_state(id, InstanceState::Exited);
    cluster.send(&delete(id));
    let failure: DeleteFailure = cluster.next(|_| true);
    assert_eq!(failure.reason, Reason::InvalidData);

    fs::remove_file(&instances).unwrap();
    fs::rename(&aside, &instances).unwrap();
    cluster.send(&delete(id));
    cluster.next(|_: &InstanceDeleted| true);
    cluster.run("exec sleep 1000");
}

#[test]
fn a_state_directory_in_use_or_of_another_kind_is_refused() {
    use ssntp_agent::{Agent, AgentConfig};

    let cluster = Cluster::new();
    let other = AgentConfig::new(cluster.client().uuid(Uuid::new_v4())).state(cluster.path("state"));
    let error = Agent::start(other).unwrap_err().to_string();
    assert!(
        error.contains("state") && error.contains("another agent"),
        "{error}"
    );
    fs::write(cluster.path("file"), "").unwrap();
    let file = AgentConfig::new(cluster.client().uuid(Uuid::new_v4())).state(cluster.path("file"));
    assert!(Agent::start(file).unwrap_err().to_string().contains("file"));
}

#[test]
fn a_renewed_agent_certificate_does_not_disturb_instances() {
    let mut cluster = Cluster::new();
    let id = cluster.run("echo once; exec sleep 1000");
    let pid = cluster.pid(id);
    for _ in 0..3 {
        let under_way = cluster.script("exec sleep 1000");
        cluster.send(&under_way);
        cluster.renew_agent();
        // The agent is announced twice: as a compute node and as a network node.
        for _role in 0..2 {
            cluster.next::<NodeConnected>(|_| true);
        }
        // An instance that was started just before is kept, and stays one instance.
        let runs = |stats: &Stats, id: Uuid| {
            let of = |i: &InstanceStats| i.instance_uuid == id && i.state == InstanceState::Active;
            stats.instances.iter().any(of)
        };
        cluster.next(|stats: &Stats| runs(stats, id) && runs(stats, under_way.instance_uuid));
    }
    assert_eq!(cluster.pid(id), pid);
    assert_eq!(cluster.output(id, 1), "once\n");
}
