//! From START to DELETE.

use std::fs;
use std::time::Duration;

use ssntp::payload::*;
use ssntp_agent::Policy;
use ssntp_payload::*;
use uuid::Uuid;

use crate::agent::cluster::*;

#[test]
fn a_persistent_process_is_started_stopped_restarted_and_deleted() {
    let mut cluster = Cluster::new();
    let mut start = cluster.script("echo \"$GREETING from $SSNTP_INSTANCE\"; exec sleep 1000");
    start.env.insert("GREETING".into(), "hello".into());
    let id = start.instance_uuid;
    cluster.send(&start);
    cluster.wait_state(id, InstanceState::Active);
    assert_eq!(cluster.output(id, 1), format!("hello from {id}\n"));

    cluster.send(&stop(id));
    cluster.wait_state(id, InstanceState::Exited);
    cluster.send(&stop(id));
    assert_eq!(
        cluster.next(|_: &StopFailure| true).reason,
        Reason::AlreadyStopped
    );

    cluster.send(&restart(id));
    cluster.wait_state(id, InstanceState::Active);
    cluster.output(id, 2);
    cluster.send(&restart(id));
    let failure: RestartFailure = cluster.next(|_| true);
    assert_eq!(failure.reason, Reason::AlreadyRunning);

    cluster.send(&start);
    let failure: StartFailure = cluster.next(|_| true);
    assert_eq!(
        (failure.reason, failure.node_uuid),
        (Reason::AlreadyRunning, NODE.into())
    );

    let pid = cluster.pid(id);
    cluster.send(&delete(id));
    cluster.next(|deleted: &InstanceDeleted| deleted.instance_uuid == id);
    assert!(!cluster.instance_dir(id).exists());
    wait_for(|| match fs::read_to_string(format!("/proc/{pid}/stat")) {
        Ok(stat) => Err(stat),
        Err(_) => Ok(()),
    });
    cluster.next(|stats: &Stats| stats.instances.is_empty());
}

#[test]
fn a_process_gets_variables_from_files_of_its_node_which_no_record_has() {
    let mut cluster = Cluster::empty();
    let secrets = cluster.path("secrets");
    fs::create_dir(&secrets).unwrap();
    fs::write(secrets.join("db"), "hunter2\n").unwrap();
    fs::write(secrets.join("web.env"), "LEVEL=low\nCOLOUR=blue\n").unwrap();
    let mut policy = Policy::default();
    policy.secrets = Some(secrets.clone());
    cluster.agent(|config| config.policy(policy));
    let mut start = cluster.script("echo $LEVEL $COLOUR $PASSWORD; exec sleep 1000");
    start.env.insert("LEVEL".into(), "high".into());
    start.env_file.push("web.env".into());
    start.secrets.insert("PASSWORD".into(), "db".into());
    let id = start.instance_uuid;
    cluster.send(&start);
    cluster.wait_state(id, InstanceState::Active);
    assert_eq!(cluster.output(id, 1), "high blue hunter2\n");
    let record = fs::read_to_string(cluster.instance_dir(id).join("start.yaml")).unwrap();
    assert!(record.contains("db") && !record.contains("hunter2"), "{record}");

    // The file is read again at each launch.
    cluster.send(&stop(id));
    cluster.wait_state(id, InstanceState::Exited);
    fs::remove_file(secrets.join("db")).unwrap();
    cluster.send(&restart(id));
    let failure: RestartFailure = cluster.next(|_| true);
    assert!(
        failure.detail.contains("the file \"db\" of secrets"),
        "{}",
        failure.detail
    );
}

#[test]
fn a_process_that_is_not_persistent_is_deleted_when_it_is_stopped() {
    let mut cluster = Cluster::new();
    let mut start = cluster.script("exec sleep 1000");
    start.persistence = Persistence::Unset;
    cluster.send(&start);
    cluster.wait_state(start.instance_uuid, InstanceState::Active);
    cluster.send(&stop(start.instance_uuid));
    cluster.next(|deleted: &InstanceDeleted| deleted.instance_uuid == start.instance_uuid);
    cluster.send(&stop(start.instance_uuid));
    assert_eq!(cluster.next(|_: &StopFailure| true).reason, Reason::NoInstance);
}

#[test]
fn a_missing_program_fails_and_a_program_that_ends_at_once_has_exited() {
    let mut cluster = Cluster::new();
    for change in [
        |start: &mut Start| start.command = vec!["no-such-program".into()],
        |start: &mut Start| start.command = vec!["/etc/passwd".into()],
        |start: &mut Start| start.dir = "/no/such/directory".into(),
        |start: &mut Start| start.vm_type = VmType::Qemu,
    ] {
        let mut start = cluster.script("exit 3");
        change(&mut start);
        cluster.send(&start);
        let failure: StartFailure = cluster.next(|_| true);
        assert_eq!(failure.reason, Reason::LaunchFailure);
        assert_eq!(failure.instance_uuid, start.instance_uuid);
        assert!(!cluster.instance_dir(start.instance_uuid).exists());
    }
    let start = cluster.script("exit 3");
    cluster.send(&start);
    cluster.wait_state(start.instance_uuid, InstanceState::Exited);
    cluster.records(start.instance_uuid, "exit_code: 3\n");
    cluster.send(&start);
    assert_eq!(
        cluster.next(|_: &StartFailure| true).reason,
        Reason::InstanceExists
    );
}

#[test]
fn a_process_that_ignores_sigterm_is_killed() {
    let mut cluster = Cluster::empty();
    cluster.agent(|config| config.grace(Duration::from_millis(300)));
    let id = cluster.run("trap '' TERM; echo up; while :; do sleep 1; done");
    cluster.output(id, 1);
    cluster.send(&stop(id));
    let ended = cluster.wait_state(id, InstanceState::Exited);
    assert_eq!(ended.exit_signal, 9, "{ended:?}");
}

#[test]
fn the_logs_of_an_instance_are_bounded() {
    use ssntp_agent::AgentConfig;

    let mut cluster = Cluster::empty();
    let config = AgentConfig::new(cluster.client())
        .state(cluster.path("state"))
        .driver(driver().log_mb(1));
    cluster.agent(|_| config);
    let id = cluster.run("head -c 8000000 /dev/zero | tr '\\0' x; echo; echo end; exec sleep 1000");
    let (log, before) = ["stdout.log", "stdout.log.1"]
        .map(|name| cluster.instance_dir(id).join(name))
        .into();
    wait_for(|| {
        let written = [&before, &log]
            .map(|path| fs::read(path).unwrap_or_default())
            .concat();
        let is_bounded = written.ends_with(b"xx\nend\n") && written.len() <= 1 << 20;
        let end = || String::from_utf8_lossy(&written[written.len().saturating_sub(20)..]).into_owned();
        is_bounded.then_some(()).ok_or((written.len(), end()))
    });
    assert!(before.exists());
}

#[test]
fn volumes_are_links_that_the_process_sees() {
    let mut cluster = Cluster::new();
    let (volume, made) = (Uuid::new_v4(), Uuid::new_v4());
    fs::create_dir_all(cluster.path("volumes").join(volume.to_string())).unwrap();
    let mut start = cluster
        .script("while :; do ls \"$SSNTP_VOLUMES\" | wc -l >count.new; mv count.new count; sleep 1; done");
    start.storage.push(Storage {
        id: made.into(),
        local: true,
        size: 1,
        ..Storage::default()
    });
    let id = start.instance_uuid;
    let count = |cluster: &Cluster| {
        let text = fs::read_to_string(cluster.instance_dir(id).join("work/count"));
        text.unwrap_or_default().trim().to_owned()
    };
    cluster.send(&start);
    let stats = cluster.wait_state(id, InstanceState::Active);
    assert_eq!(stats.volumes, [Id::from(made)]);
    cluster.send(&attach(id, volume));
    let has = |n: usize| {
        move |stats: &Stats| {
            stats
                .instances
                .first()
                .is_some_and(|instance| instance.volumes.len() == n)
        }
    };
    cluster.next(has(2));
    wait_for(|| match count(&cluster) {
        two if two == "2" => Ok(()),
        other => Err(other),
    });
    fs::write(
        cluster
            .instance_dir(id)
            .join("volumes")
            .join(volume.to_string())
            .join("x"),
        "",
    )
    .unwrap();

    cluster.send(&attach(id, volume));
    let failure: AttachVolumeFailure = cluster.next(|_| true);
    assert_eq!(failure.reason, Reason::AlreadyAttached);
    cluster.send(&attach(id, Uuid::new_v4()));
    let failure: AttachVolumeFailure = cluster.next(|_| true);
    assert_eq!(failure.reason, Reason::AttachFailure);
    cluster.send(&detach(id, volume));
    cluster.next(has(1));
    cluster.send(&detach(id, volume));
    let failure: DetachVolumeFailure = cluster.next(|_| true);
    assert_eq!(failure.reason, Reason::NotAttached);

    // Volumes outlive their instances.
    cluster.send(&delete(id));
    cluster.next(|_: &InstanceDeleted| true);
    assert!(
        cluster
            .path("volumes")
            .join(volume.to_string())
            .join("x")
            .exists()
    );
    assert!(cluster.path("volumes").join(made.to_string()).is_dir());

    let mut start = cluster.script("sleep 1000");
    start.storage.push(Storage {
        id: Uuid::new_v4().into(),
        ..Storage::default()
    });
    cluster.send(&start);
    assert_eq!(cluster.next(|_: &StartFailure| true).reason, Reason::ImageFailure);
}

#[test]
fn a_node_is_evacuated_and_restored() {
    let mut cluster = Cluster::new();
    let kept = cluster.run("exec sleep 1000");
    let mut start = cluster.script("exec sleep 1000");
    start.persistence = Persistence::Unset;
    cluster.send(&start);
    cluster.wait_state(start.instance_uuid, InstanceState::Active);
    cluster.send(&evacuate());
    for _ in 0..2 {
        cluster.next(|_: &InstanceStopped| true);
    }
    // STATS say MAINTENANCE already before the instance has ended.
    cluster.next(|stats: &Stats| stats.status == NodeStatus::Maintenance && stats.instances.len() == 1);
    cluster.send(&restart(kept));
    assert_eq!(
        cluster.next(|_: &RestartFailure| true).reason,
        Reason::LaunchFailure
    );
    cluster.send(&restore());
    cluster.next(|stats: &Stats| stats.status == NodeStatus::Ready);
    cluster.send(&restart(kept));
    cluster.wait_state(kept, InstanceState::Active);
    cluster.run("exec sleep 1000");
}

#[test]
fn an_offline_node_keeps_reporting() {
    let mut cluster = Cluster::new();
    let id = cluster.run("exec sleep 1000");
    cluster.toggle_offline();
    let stats: Stats = cluster.next(|stats: &Stats| stats.status == NodeStatus::Offline);
    assert_eq!(stats.instances[0].state, InstanceState::Active);
    cluster.send(&stop(id));
    assert_eq!(cluster.next(|_: &StopFailure| true).reason, Reason::NoInstance);
    cluster.toggle_offline();
    cluster.next(|stats: &Stats| stats.status == NodeStatus::Ready);
    cluster.send(&stop(id));
    cluster.wait_state(id, InstanceState::Exited);
}

#[test]
fn the_scheduler_sees_the_capacity_that_flags_give() {
    let mut cluster = Cluster::empty();
    cluster.agent(|config| config.mem_mb(1000).disk_mb(5000).max_instances(2));
    let stats: Stats = cluster.next(|_| true);
    assert_eq!((stats.mem_total_mb, stats.disk_total_mb), (1000, 5000));
    let mut start = cluster.script("exec sleep 1000");
    start.requirements.mem_mb = 600;
    cluster.send(&start);
    cluster.wait_state(start.instance_uuid, InstanceState::Active);
    start.instance_uuid = Uuid::new_v4();
    cluster.send(&start);
    assert_eq!(cluster.next(|_: &StartFailure| true).reason, Reason::FullCloud);
    start.requirements.mem_mb = 400;
    cluster.send(&start);
    cluster.next(|stats: &Stats| stats.status == NodeStatus::Full && stats.mem_available_mb == 0);
}

#[test]
fn an_agent_without_state_reports_and_starts_nothing() {
    use ssntp_agent::{Agent, AgentConfig};

    let mut cluster = Cluster::empty();
    let agent = Agent::start(AgentConfig::new(cluster.client())).unwrap();
    let stats: Stats = cluster.next(|_| true);
    assert!(stats.mem_total_mb > 0 && stats.instances.is_empty());
    let start = cluster.script("true");
    cluster.send(&start);
    assert_eq!(
        cluster.next(|_: &StartFailure| true).reason,
        Reason::LaunchFailure
    );
    agent.stop();
}
