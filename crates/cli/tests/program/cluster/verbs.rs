//! The effect and the output of each command of `ssntp ctl`.

use std::fs;
use std::io::Write;
use std::process::Stdio;

use serde_json::Value;
use ssntp_payload::{InstanceState, NodeStatus, Tenant, TenantAction, TenantEntry, Tenants};
use ssntp_view::View;
use uuid::Uuid;

use crate::cluster::processes::{Cluster, Done, LIMIT, end_of, sees, until, wait_for};

fn json(text: &str) -> Vec<Value> {
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

#[test]
fn start_waits_until_each_instance_runs() {
    let cluster = Cluster::with_agents(2);
    let output = cluster.done("start --count 3 --mem 16 -- sleep 1000");
    let mut lines: Vec<_> = output.lines().collect();
    assert_eq!(lines.len(), 3, "{output}");
    assert!(
        lines.iter().all(|line| line.contains(" runs on node ")),
        "{output}"
    );
    lines.sort_unstable();
    lines.dedup();
    assert_eq!(lines.len(), 3, "each instance has its own UUID");
    let instances: Vec<Value> = serde_json::from_str(&cluster.done("instances --json")).unwrap();
    assert_eq!(instances.len(), 3);
    assert!(instances.iter().all(|instance| instance["state"] == "active"));
}

#[test]
fn a_start_that_is_not_sent_leaves_no_address_in_the_network_of_its_tenant() {
    let cluster = Cluster::new("");
    let add = Tenant {
        id: "1".into(),
        action: TenantAction::Add,
        name: "blue".into(),
        entry: TenantEntry {
            tenant_uuid: Uuid::new_v4().into(),
            subnet: "172.16.0.0/29".into(),
            concentrator_uuid: Uuid::new_v4().into(),
            concentrator_ip: "10.0.0.33/24".into(),
            ..TenantEntry::default()
        },
        ..Tenant::default()
    };
    let controller = cluster.controller_sees(0);
    let added: Tenants = controller.ask(&add, |_| true, LIMIT).unwrap();
    assert_eq!(added.reason.as_str(), "");
    drop(controller);
    let error = cluster.fails("start --tenant blue --count 6 --no-wait -- sleep 1000");
    assert!(
        error.contains("the concentrator of tenant blue does not run"),
        "{error}"
    );
    let shown: Value = serde_json::from_str(&cluster.done("tenant show blue --json")).unwrap();
    assert_eq!(shown["addresses"], Value::Array(Vec::new()));
}

#[test]
fn start_takes_the_words_after_two_dashes_unchanged() {
    let cluster = Cluster::with_agents(1);
    let words = [
        "start",
        "--env",
        "GREETING=good day",
        "--",
        "sh",
        "-c",
        "echo \"$GREETING $1\" >--json; sleep 1000",
        "x",
        "--timeout",
        "--count",
    ];
    let done = cluster.ctl_words(&words);
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    let instance = done.stdout.split(' ').nth(1).unwrap().to_owned();
    let place = cluster.path("state-0/instances").join(instance);
    let written = || {
        let mut files = walk(&place).into_iter();
        files.find(|path| path.file_name().is_some_and(|name| name == "--json"))
    };
    until("the file is written", || {
        let text = written().map(|path| fs::read_to_string(path).unwrap());
        if text.as_deref() == Some("good day --timeout\n") {
            Ok(())
        } else {
            Err(format!("{:?}", walk(&place)))
        }
    });
}

fn walk(directory: &std::path::Path) -> Vec<std::path::PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            files.extend(walk(&path));
        }
        files.push(path);
    }
    files
}

#[test]
fn start_takes_a_file_in_each_of_its_forms() {
    let cluster = Cluster::with_agents(1);
    let uuid = Uuid::new_v4();
    let whole = format!(
        "start:\n  instance_uuid: {uuid}\n  vm_type: process\n  command: [sleep, '1000']\n---\n#cloud-config\n"
    );
    fs::write(cluster.path("whole.yaml"), whole).unwrap();
    fs::write(
        cluster.path("template.yaml"),
        "start:\n  vm_type: process\n  command: [sleep, '1000']\n",
    )
    .unwrap();
    fs::write(
        cluster.path("short.yaml"),
        "command: [sleep, 1000]\nmem_mb: 16\npersistent: true\n",
    )
    .unwrap();
    assert!(
        cluster
            .done("start -f whole.yaml")
            .starts_with(&format!("instance {uuid} runs on node "))
    );
    assert_eq!(
        cluster.done("start -f template.yaml --count 2").lines().count(),
        2
    );
    assert_eq!(cluster.done("start --file short.yaml").lines().count(), 1);

    let mut child = cluster.command(&["ctl", "start", "-f", "-"]);
    let mut child = child
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(b"command: [sleep, 1000]\n")
        .unwrap();
    assert_eq!(Done::of_child(child).code, Some(0));

    let usage = cluster.ctl("start -f whole.yaml --count 2");
    assert_eq!(usage.code, Some(2));
    assert!(usage.stderr.contains("so --count must be 1"), "{}", usage.stderr);
    fs::write(cluster.path("typo.yaml"), "comand: [sleep, 1000]\n").unwrap();
    assert!(cluster.fails("start -f typo.yaml").contains("typo.yaml: "));
}

#[test]
fn no_wait_ends_once_the_command_is_sent() {
    let cluster = Cluster::with_agents(1);
    let controller = cluster.controller_sees(1);
    let instance: Uuid = cluster
        .done("start --no-wait -- sleep 1000")
        .trim()
        .parse()
        .unwrap();
    wait_for(&controller, instance, &InstanceState::Active);
    let result = json(&cluster.done(&format!("delete --no-wait --json {instance}")));
    assert_eq!(
        (&result[0]["result"], &result[0]["subject"]),
        (&"accepted".into(), &instance.to_string().into())
    );
    let is_deleted = |view: &View| view.instance(instance).is_none().then_some(());
    sees(&controller, "the instance is deleted", is_deleted);
}

#[test]
fn instances_are_stopped_restarted_and_deleted() {
    let cluster = Cluster::with_agents(1);
    let (one, two) = (cluster.start(""), cluster.start(""));
    let output = cluster.done(&format!("stop {one} {two}"));
    assert_eq!(output.lines().count(), 2);
    assert!(
        output.contains(&format!("instance {one} has stopped")),
        "{output}"
    );
    // The beginning of a UUID selects the instance, in lower and upper case.
    let short = one.to_string()[..12].to_uppercase();
    assert!(
        cluster
            .done(&format!("restart {short}"))
            .contains(&format!("instance {one} runs on node "))
    );
    assert_eq!(
        cluster
            .done(&format!("delete {one} {two} {short}"))
            .lines()
            .count(),
        2
    );
    let instances: Vec<Value> = serde_json::from_str(&cluster.done("instances --json")).unwrap();
    assert!(instances.is_empty());
}

#[test]
fn a_stop_of_an_instance_that_is_not_persistent_removes_it() {
    let cluster = Cluster::with_agents(1);
    let result = json(&cluster.done("start --json -- sleep 1000"));
    let instance = result[0]["subject"].as_str().unwrap();
    assert!(result[0]["node"].as_str().unwrap().parse::<Uuid>().is_ok());
    cluster.done(&format!("stop {instance}"));
    let controller = cluster.controller_sees(1);
    let uuid = instance.parse().unwrap();
    let is_removed = |view: &View| view.instance(uuid).is_none().then_some(());
    sees(&controller, "the instance is removed", is_removed);
}

#[test]
fn volumes_are_attached_and_detached() {
    let cluster = Cluster::with_agents(1);
    let (instance, volume) = (cluster.start(""), cluster.volume());
    let output = cluster.done(&format!("attach {instance} {volume}"));
    assert_eq!(
        output.trim(),
        format!("volume {volume} is attached to instance {instance}")
    );
    let instances: Vec<Value> = serde_json::from_str(&cluster.done("instances --json")).unwrap();
    assert_eq!(instances[0]["volumes"], Value::from(vec![volume.to_string()]));
    let short = &volume.to_string()[..13];
    let output = cluster.done(&format!("detach {instance} {short}"));
    assert_eq!(
        output.trim(),
        format!("volume {volume} is detached from instance {instance}")
    );
    // The volume is attached to no instance any more, so its beginning is unknown.
    let unknown = cluster.fails(&format!("attach {instance} {short}"));
    assert_eq!(
        unknown,
        format!("no volume is known whose UUID begins with {short}")
    );
}

#[test]
fn a_node_is_evacuated_and_restored() {
    let mut cluster = Cluster::new("");
    for _ in 0..2 {
        cluster.agent("--interval 3600");
    }
    let controller = cluster.controller_sees(2);
    let node = controller.look(|view| view.nodes().next().unwrap().uuid);
    let instance = cluster.start(&format!("--node {}", &node.to_string()[..13]));
    let output = cluster.done(&format!("evacuate {node}"));
    assert_eq!(output.trim(), format!("node {node} is empty, and in maintenance"));
    // A second evacuation is confirmed as well. The next regular STATS come in an hour.
    cluster.done(&format!("evacuate {node}"));
    wait_for(&controller, instance, &InstanceState::Exited);
    controller.look(|view| assert_eq!(view.node(node).unwrap().status, NodeStatus::Maintenance));
    let other = cluster.start("");
    wait_for(&controller, other, &InstanceState::Active);
    controller.look(|view| assert_ne!(view.instance(other).unwrap().node, node));
    let output = cluster.done(&format!("restore {node}"));
    assert_eq!(output.trim(), format!("node {node} is back in service"));
    cluster.done(&format!("restart {instance}"));
}

#[test]
fn movable_instances_of_an_evacuated_node_are_moved() {
    let cluster = Cluster::with_agents(2);
    let result = json(&cluster.done("start --json -- sleep 1000"));
    let (moved, node) = (
        result[0]["subject"].as_str().unwrap(),
        result[0]["node"].as_str().unwrap(),
    );
    let stays = cluster.start(&format!("--node {node}"));
    let done = cluster.ctl(&format!("evacuate {node} --move --deadline 120"));
    assert_eq!(done.code, Some(1), "{}{}", done.stdout, done.stderr);
    assert!(
        done.stderr.contains("1 of 2 instances were not moved"),
        "{}",
        done.stderr
    );
    for line in [
        format!("node {node} is empty, and in maintenance"),
        format!(
            "instance {stays} was not moved: it is persistent, and its node keeps it (not_moved_persistent)"
        ),
        format!("instance {moved} was moved to node "),
    ] {
        assert!(done.stdout.contains(&line), "{}", done.stdout);
    }
    let controller = cluster.controller_sees(1);
    let uuid = moved.parse().unwrap();
    wait_for(&controller, uuid, &InstanceState::Active);
    controller.look(|view| assert_ne!(view.instance(uuid).unwrap().node.to_string(), node));
}

#[test]
fn an_instance_is_started_again_by_the_restart_policy_of_its_flags() {
    let cluster = Cluster::with_agents(1);
    let words = [
        "start",
        "--json",
        "--restart",
        "on-failure",
        "--restart-limit",
        "3",
        "--",
    ];
    let script = "test -e ran && exec sleep 1000; touch ran; exit 3";
    let done = cluster.ctl_words(&[&words[..], &["sh", "-c", script]].concat());
    let instance = json(&done.stdout)[0]["subject"]
        .as_str()
        .unwrap()
        .parse()
        .unwrap();
    let controller = cluster.controller_sees(1);
    let has_restarted = |view: &View| {
        let instance = view.instance(instance)?;
        (instance.stats.restarts == 1 && instance.state == InstanceState::Active).then_some(())
    };
    sees(&controller, "the instance is started again", has_restarted);
}

#[test]
fn configure_changes_the_configuration_of_the_cluster() {
    let cluster = Cluster::with_agents(1);
    let yaml = "configure:\n  launcher:\n    compute_net: [10.0.0.0/24]\n";
    fs::write(cluster.path("new.yaml"), yaml).unwrap();
    assert_eq!(
        cluster.done("configure new.yaml").trim(),
        "the cluster has the configuration"
    );
    assert_eq!(fs::read_to_string(cluster.path("cluster.yaml")).unwrap(), yaml);
    assert_eq!(cluster.controller_sees(1).client().configuration().unwrap(), yaml);
}

/// With a bound certificate each new session of the controller replaces the former one.
#[test]
fn a_controller_with_a_bound_certificate_can_configure() {
    let cluster = Cluster::with_agents(1);
    let yaml = "configure:\n  launcher:\n    mgmt_net: [10.0.0.0/24]\n";
    let controller = cluster.controller_as("bound.pem", 1);
    let shown = controller.configure(yaml).unwrap().wait(LIMIT).unwrap();
    assert_eq!(shown.to_string(), "the cluster has the configuration");
    let back = |view: &View| (view.is_online() && view.is_complete()).then_some(());
    sees(&controller, "the controller connects again", back);
    // Two running controllers with this certificate would replace each other forever.
    drop(controller);
    fs::write(cluster.path("new.yaml"), "configure: {}\n").unwrap();
    cluster.done("configure new.yaml --cert bound.pem");
}

fn listed(cluster: &Cluster) -> Vec<Value> {
    serde_json::from_str(&cluster.done("cncis --json")).unwrap()
}

#[test]
fn public_addresses_are_assigned_and_released() {
    let mut cluster = Cluster::with_agents(1);
    cluster.netagent("");
    cluster.controller_sees(2);
    let tenant = Uuid::new_v4();
    let cnci = cluster.start_cnci(tenant, "10.0.0.33");
    let instance = cluster.start("");
    let short = &instance.to_string()[..13];
    // There is only one concentrator, so the command does not name it.
    let output = cluster.done(&format!(
        "assign-ip {short} 198.51.100.20 --private-ip 172.16.0.5"
    ));
    assert_eq!(
        output.trim(),
        format!("198.51.100.20 is assigned to instance {instance}")
    );
    assert_eq!(listed(&cluster)[0]["uuid"], cnci.to_string());
    assert_eq!(
        (&listed(&cluster)[0]["tenant"], &listed(&cluster)[0]["ip"]),
        (&tenant.to_string().into(), &"10.0.0.33".into())
    );
    let address = &listed(&cluster)[0]["public_ips"][0];
    assert_eq!(
        (&address["public_ip"], &address["private_ip"]),
        (&"198.51.100.20".into(), &"172.16.0.5".into())
    );
    assert!(cluster.done("cncis").contains("198.51.100.20"));

    let other = cluster.start("");
    let error = cluster.fails(&format!("assign-ip {other} 198.51.100.20"));
    assert_eq!(
        error,
        format!(
            "198.51.100.20 was not assigned to instance {other}: the concentrator cannot assign it: \
             198.51.100.20: instance {instance} has it (assign_failure)"
        )
    );
    let error = cluster.fails(&format!("release-ip {instance} 198.51.100.21"));
    let why = format!("cannot release it: 198.51.100.21: {instance} has another address (release_failure)");
    assert!(error.ends_with(&why), "{error}");

    // With two concentrators the command needs the UUID of one, or its tenant.
    let second = cluster.start_cnci(Uuid::new_v4(), "10.0.0.34");
    let error = cluster.fails(&format!("release-ip {instance} 198.51.100.20"));
    assert!(
        error.starts_with("there are 2 CNCIs; choose one with --cnci or --tenant: "),
        "{error}"
    );
    assert!(
        error.contains(&cnci.to_string()) && error.contains(&second.to_string()),
        "{error}"
    );
    let output = cluster.done(&format!("release-ip {instance} 198.51.100.20 --tenant {tenant}"));
    assert_eq!(
        output.trim(),
        format!("198.51.100.20 is taken from instance {instance}")
    );
    let line = format!(
        "assign-ip {instance} 198.51.100.20 --cnci {}",
        &cnci.to_string()[..13]
    );
    cluster.done(&line);

    // A new scheduler learns the addresses from the concentrators.
    cluster.kill_scheduler();
    cluster.start_scheduler();
    let controller = cluster.controller_sees(2);
    // Concentrators connect by themselves, and their node lists their instances later.
    let back = |view: &View| {
        let is_complete = view.instance(cnci).is_some() && view.instance(second).is_some();
        (view.cnci(cnci)?.public_ips.contains_key("198.51.100.20") && view.cnci(second).is_some())
            .then_some(())
            .filter(|()| is_complete)
    };
    sees(&controller, "the concentrators connect again", back);
    assert_eq!(listed(&cluster).len(), 2);
    cluster.done(&format!("delete {cnci} {second}"));
    // The end of an instance and the end of its session reach the scheduler in any order.
    until("no concentrator is listed", || match listed(&cluster) {
        none if none.is_empty() => Ok(()),
        some => Err(format!("{some:?}")),
    });
}

#[test]
fn a_start_waits_for_the_first_node_and_prints_a_note() {
    let mut cluster = Cluster::new("");
    let mut command = cluster.command(&["ctl", "start", "--", "sleep", "1000"]);
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    let mut note = String::new();
    let mut errors = std::io::BufReader::new(child.stderr.take().unwrap());
    std::io::BufRead::read_line(&mut errors, &mut note).unwrap();
    assert_eq!(
        note,
        "ssntp: waiting for a node that can run it: none is connected yet\n"
    );
    cluster.agent("");
    assert_eq!(end_of(&mut child).code(), Some(0));
}

#[test]
fn deleting_all_instances_leaves_concentrators_alone() {
    let mut cluster = Cluster::with_agents(1);
    cluster.netagent("");
    cluster.controller_sees(2);
    let cnci = cluster.start_cnci(Uuid::new_v4(), "10.0.0.33");
    let instance = cluster.start("");
    let deleted = cluster.done("delete --all");
    assert!(
        deleted.lines().count() == 1 && deleted.contains(&instance.to_string()),
        "{deleted}"
    );
    assert_eq!(cluster.done("delete --all"), "");
    let left: Vec<Value> = serde_json::from_str(&cluster.done("instances --json")).unwrap();
    assert_eq!((left.len(), &left[0]["uuid"]), (1, &cnci.to_string().into()));
    assert_eq!(listed(&cluster)[0]["uuid"], cnci.to_string());
}

#[test]
fn all_instances_are_deleted_at_once() {
    let cluster = Cluster::with_agents(2);
    cluster.done("start --count 3 --mem 16 -- sleep 1000");
    assert_eq!(cluster.done("delete --all").lines().count(), 3);
    assert_eq!(cluster.done("instances --json").trim(), "[]");
    // Without instances the command does nothing.
    assert_eq!(cluster.done("delete --all"), "");
    assert_eq!(cluster.ctl("delete --all 5f").code, Some(2));
    assert_eq!(cluster.ctl("delete").code, Some(2));
}
