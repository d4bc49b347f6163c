//! The rights that a node gives to instances: their own users if the agent runs as root, else the
//! agent's user.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::time::Duration;

use ssntp_agent::{Policy, RunAs};
use ssntp_payload::*;
use uuid::Uuid;

use crate::agent::cluster::*;

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[test]
fn only_the_user_of_an_agent_can_read_its_files() {
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

/// Only an agent that runs as root can do this.
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
    let output = cluster.output(other, 3);
    let lines: Vec<_> = output.lines().collect();
    let uid = |id| fs::metadata(cluster.instance_dir(id).join("work")).unwrap().uid();
    let own = uid(other).to_string();
    assert_eq!(lines, [&own, &own, "end"], "{output}");
    assert!(uid(other) != uid(victim) && uid(victim) != 0);
    assert!(fs::exists(format!("/proc/{pid}")).unwrap());

    // An instance keeps its user over several runs and agents.
    let before = uid(victim);
    cluster.end_agent();
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
fn a_start_as_a_user_that_the_policy_does_not_name_is_refused() {
    let mut cluster = Cluster::empty();
    cluster.agent(|config| config);
    // No instance may run as root. The agent of an ordinary user can use no other user either.
    for child_user in ["0", "root", "no such user"] {
        let mut configure = Configure::default();
        configure.launcher.child_user = child_user.into();
        cluster.send(&configure);
        let start = cluster.script("exec sleep 1000");
        cluster.send(&start);
        let failure: StartFailure = cluster.next(|f: &StartFailure| f.instance_uuid == start.instance_uuid);
        assert_eq!(failure.reason, Reason::LaunchFailure, "{child_user}");
        assert!(!cluster.instance_dir(start.instance_uuid).exists());
    }
}

/// Only an agent that runs as root can do this.
#[test]
fn an_instance_may_write_to_a_volume_of_root_while_it_is_attached() {
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
    for expected in ["old new", "old new new"] {
        let mut start = cluster.script(script);
        start.storage.push(Storage {
            id: volume.into(),
            ..Storage::default()
        });
        let id = start.instance_uuid;
        cluster.send(&start);
        cluster.wait_state(id, InstanceState::Active);
        let output = wait_for(|| match cluster.output(id, 2) {
            output if output.lines().any(|line| line == expected) => Ok(output),
            other => Err(other),
        });
        assert!(output.ends_with(&format!("{expected}\n")), "{output}");
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
fn an_instance_beyond_its_disk_limit_is_killed() {
    let mut policy = Policy::default();
    policy.disk_mb = Some(4);
    let mut cluster = Cluster::empty();
    cluster.agent(|config| config.policy(policy).interval(Duration::from_millis(100)));
    let modest = cluster.run("head -c 1000000 /dev/zero >file; exec sleep 1000");
    // They wait, because an instance that is killed at once may never be seen to run.
    let wait = "until [ -e go ]; do sleep 0.02; done";
    let greedy = cluster.run(&format!(
        "{wait}; head -c 9000000 /dev/zero >file; exec sleep 1000"
    ));
    let sly = cluster.run(&format!(
        "{wait}; exec 9>file; rm file; head -c 9000000 /dev/zero >&9; exec sleep 1000"
    ));
    for id in [greedy, sly] {
        fs::write(cluster.instance_dir(id).join("work/go"), "").unwrap();
    }
    cluster.wait_state(greedy, InstanceState::Exited);
    cluster.wait_state(sly, InstanceState::Exited);
    cluster.wait_state(modest, InstanceState::Active);
    // A restart is refused as long as the instance exceeds its limit.
    cluster.send(&restart(greedy));
    let failure: RestartFailure = cluster.next(|_| true);
    assert_eq!(failure.reason, Reason::LaunchFailure);
    fs::remove_file(cluster.instance_dir(greedy).join("work/file")).unwrap();
}

#[test]
fn a_controller_may_choose_a_user_that_the_policy_names() {
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
