//! The rights that a node gives to instances: their own users if the agent runs as root, else the
//! agent's user.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::time::Duration;

use ssntp::payload::*;
use ssntp_cluster::agent::{Policy, RunAs};
use uuid::Uuid;

use crate::agent::cluster::*;

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[test]
fn what_an_agent_keeps_is_its_own() {
    let mut cluster = Cluster::new();
    let id = cluster.run("echo up; exec sleep 1000");
    cluster.output(id, 1);
    let dir = cluster.instance_dir(id);
    let mode = |name: &str| fs::metadata(dir.join(name)).unwrap().permissions().mode() & 0o7777;
    for name in [
        "start.yaml",
        "instance.yaml",
        "stdout.log",
        "stderr.log",
        "run/state",
    ] {
        assert_eq!(mode(name), 0o600, "{name}");
    }
    assert_eq!((mode("work"), mode("run")), (0o700, 0o700));
    assert_eq!(mode(""), if is_root() { 0o710 } else { 0o700 });
}

/// As root alone.
#[test]
fn instances_have_users_of_their_own_and_can_neither_read_nor_signal_each_other() {
    if !is_root() {
        return;
    }
    let mut cluster = Cluster::new();
    let mut start = cluster.script("echo $$; echo hidden >file; exec sleep 1000");
    start.env.insert("DB_PASSWORD".into(), "hunter2".into());
    cluster.send(&start);
    let victim = start.instance_uuid;
    cluster.wait_state(victim, InstanceState::Active);
    let pid = cluster.output(victim, 1).trim().to_owned();
    let script = format!(
        "cd ../../{victim}; cat ../../{victim}/start.yaml ../../{victim}/stdout.log ../../{victim}/work/file \
         /proc/{pid}/environ; ls ../../{victim} ../..; kill -9 {pid} && echo killed; id -u; id -G; echo end; exec sleep 1000"
    );
    let other = cluster.run(&script);
    let said = cluster.output(other, 3);
    let lines: Vec<_> = said.lines().collect();
    let uid = |id| fs::metadata(cluster.instance_dir(id).join("work")).unwrap().uid();
    let own = uid(other).to_string();
    assert_eq!(lines, [&own, &own, "end"], "{said}");
    assert!(uid(other) != uid(victim) && uid(victim) != 0);
    assert!(fs::exists(format!("/proc/{pid}")).unwrap());

    // It keeps its user over runs and agents.
    let before = uid(victim);
    cluster.end_agent();
    cluster.next::<NodeDisconnected>(|_| true);
    cluster.agent(|config| config);
    cluster.send(&stop(victim));
    cluster.wait_state(victim, InstanceState::Exited);
    cluster.send(&restart(victim));
    cluster.wait_state(victim, InstanceState::Active);
    assert_eq!(
        fs::metadata(cluster.instance_dir(victim).join("work"))
            .unwrap()
            .uid(),
        before
    );
}

#[test]
fn a_controller_chooses_no_user_that_the_policy_does_not_name() {
    let mut cluster = Cluster::empty();
    cluster.agent(|config| config);
    // Root may be had by no means, and as an ordinary user nobody else.
    for child_user in ["0", "root", "no such user"] {
        let mut configure = Configure::default();
        configure.launcher.child_user = child_user.into();
        cluster.send(&configure);
        let start = cluster.script("exec sleep 1000");
        cluster.send(&start);
        let failure: StartFailure = cluster.next(|f: &StartFailure| f.instance_uuid == start.instance_uuid);
        assert_eq!(failure.reason, StartFailureReason::LaunchFailure, "{child_user}");
        assert!(!cluster.instance_dir(start.instance_uuid).exists());
    }
}

/// As root alone.
#[test]
fn a_volume_that_root_made_is_its_instances_to_write_in_as_long_as_it_has_it() {
    if !is_root() {
        return;
    }
    let mut cluster = Cluster::new();
    let volume = Uuid::new_v4();
    let path = cluster.path("volumes").join(volume.to_string());
    fs::create_dir_all(path.join("data")).unwrap();
    fs::write(path.join("data/old"), "old\n").unwrap();
    let script =
        "cd $SSNTP_VOLUMES/*; cat data/old; echo new >>data/old && echo $(cat data/old); exec sleep 1000";
    let owner = |path: &std::path::Path| fs::metadata(path).unwrap().uid();
    for said in ["old new", "old new new"] {
        let mut start = cluster.script(script);
        start.storage.push(Storage {
            id: volume.into(),
            ..Storage::default()
        });
        let id = start.instance_uuid;
        cluster.send(&start);
        cluster.wait_state(id, InstanceState::Active);
        let output =
            wait_for(|| Some(cluster.output(id, 2)).filter(|output| output.lines().any(|line| line == said)));
        assert!(output.ends_with(&format!("{said}\n")), "{output}");
        assert_eq!(owner(&path), owner(&cluster.instance_dir(id).join("work")));
        cluster.send(&delete(id));
        cluster.next(|deleted: &InstanceDeleted| deleted.instance_uuid == id);
        assert_eq!(
            (owner(&path), fs::metadata(&path).unwrap().mode() & 0o777),
            (0, 0o700)
        );
    }
}

#[test]
fn an_instance_with_more_on_its_disk_than_it_may_is_killed() {
    let mut policy = Policy::default();
    policy.disk_mb = Some(4);
    let mut cluster = Cluster::empty();
    cluster.agent(|config| config.policy(policy).interval(Duration::from_millis(100)));
    let modest = cluster.run("head -c 1000000 /dev/zero >file; exec sleep 1000");
    let greedy = cluster.run("head -c 9000000 /dev/zero >file; exec sleep 1000");
    let sly = cluster.run("exec 9>file; rm file; head -c 9000000 /dev/zero >&9; exec sleep 1000");
    cluster.wait_state(greedy, InstanceState::Exited);
    cluster.wait_state(sly, InstanceState::Exited);
    cluster.wait_state(modest, InstanceState::Active);
    // Nor is it started again like that.
    cluster.send(&restart(greedy));
    let failure: RestartFailure = cluster.next(|_| true);
    assert_eq!(failure.reason, RestartFailureReason::LaunchFailure);
    fs::remove_file(cluster.instance_dir(greedy).join("work/file")).unwrap();
}

#[test]
fn what_the_policy_names_a_controller_may_choose() {
    let mut policy = Policy::default();
    policy.users = vec![RunAs::Agent];
    let mut cluster = Cluster::empty();
    cluster.agent(|config| config.policy(policy));
    let mut configure = Configure::default();
    configure.launcher.child_user = rustix::process::geteuid().as_raw().to_string();
    cluster.send(&configure);
    let id = cluster.run("id -u; exec sleep 1000");
    assert_eq!(cluster.output(id, 1).trim(), configure.launcher.child_user);
}
