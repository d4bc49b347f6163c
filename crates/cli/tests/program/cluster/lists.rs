//! `ssntp ctl` nodes, instances and events: tables, JSON, --watch.

use rustix::process::Signal;
use serde_json::Value;

use crate::cluster::processes::{Cluster, Process};

fn watch(cluster: &Cluster, words: &[&str]) -> Process {
    Process::of(cluster.command(words), &cluster.path(""), "ctl")
}

#[test]
fn the_first_list_of_a_new_controller_is_complete() {
    let mut cluster = Cluster::with_agents(2);
    cluster.netagent("");
    cluster.controller_sees(3);
    let instance = cluster.start("");
    for _ in 0..5 {
        let nodes: Vec<Value> = serde_json::from_str(&cluster.done("nodes --json")).unwrap();
        assert_eq!(nodes.len(), 3);
        assert!(
            nodes
                .iter()
                .all(|node| node["connected"] == true && node["status"] == "READY")
        );
        let types = |kind: &str| nodes.iter().filter(|node| node["types"][0] == kind).count();
        assert_eq!((types("compute_node"), types("network_node")), (2, 1));
        let instances: Vec<Value> = serde_json::from_str(&cluster.done("--json instances")).unwrap();
        assert_eq!(instances[0]["uuid"], instance.to_string());
    }
    let table = cluster.done("nodes");
    assert_eq!(table.lines().count(), 4, "{table}");
    assert!(table.lines().next().unwrap().contains("status"), "{table}");
    assert_eq!(table.matches("READY").count(), 3, "{table}");
    assert!(cluster.done("instances").contains(&instance.to_string()));
}

#[test]
fn two_nodes_whose_uuids_begin_alike_have_different_names_in_the_list_of_instances() {
    let mut cluster = Cluster::new("");
    let node = |end: char| format!("91ab0000-0000-4000-8000-00000000000{end}");
    cluster.agent(&format!("--uuid {}", node('1')));
    cluster.controller_sees(1);
    cluster.start("");
    let table = cluster.done("instances");
    assert!(table.contains(" 91ab0000 "), "{table}");
    cluster.agent(&format!("--uuid {}", node('2')));
    cluster.controller_sees(2);
    let table = cluster.done("instances");
    assert!(table.contains(&format!(" {} ", node('1'))), "{table}");
}

#[test]
fn an_empty_cluster_has_empty_lists() {
    let cluster = Cluster::new("");
    for list in ["nodes", "instances", "cncis"] {
        assert_eq!(cluster.done(&format!("{list} --json")), "[]\n");
        assert_eq!(cluster.done(list).lines().count(), 1, "the header");
    }
}

#[test]
fn a_watched_list_is_shown_again_when_it_changes() {
    let cluster = Cluster::with_agents(1);
    let mut watch = watch(&cluster, &["ctl", "instances", "--json", "--watch"]);
    assert_eq!(watch.line(), "[]");
    let instance = cluster.start("");
    watch.line_with(&format!("\"{instance}\""));
    cluster.done(&format!("delete {instance}"));
    watch.line_with("[]");
    watch.signal(Signal::INT);
    assert_eq!(watch.end(), Some(0));
}

#[test]
fn events_are_printed_when_they_happen() {
    let mut cluster = Cluster::with_agents(1);
    let json = watch(&cluster, &["ctl", "events", "--json"]);
    let text = watch(&cluster, &["ctl", "events"]);
    let next = |event: &str| -> Value {
        serde_json::from_str(&json.line_with(&format!("\"event\":\"{event}\""))).unwrap()
    };
    // The first changes are the state that the scheduler already knows.
    next("online");
    let node = next("node_connected")["node"].as_str().unwrap().to_owned();
    // With the name of the node, if its STATS are there already.
    let begin = &node[..8];
    assert!(text.line_with("compute node ").contains(begin));

    let instance = cluster.start("").to_string();
    assert_eq!(next("instance_added")["instance"], instance);
    text.line_with(&format!("instance {} is ", &instance[..8]));
    cluster.fails("start --mem 100000000 -- sleep 1");
    let failed = next("failed");
    assert_eq!(
        (&failed["command"], &failed["reason"]),
        (&"START".into(), &"full_cloud".into())
    );
    assert_eq!(failed["words"], "no node in service has enough room");
    text.line_with("no node in service has enough room (full_cloud)");
    cluster.done(&format!("delete {instance}"));
    assert_eq!(next("instance_deleted")["instance"], instance);
    cluster.kill_node(0);
    assert_eq!(next("node_disconnected")["node"], node);
    let line = text.line_with(" has disconnected");
    assert!(line.contains(&format!(" ({begin}) has disconnected")), "{line}");
}
