//! kill -9 of an agent, and of the scheduler.

use std::fs;

use ssntp_payload::InstanceState;
use ssntp_view::View;
use uuid::Uuid;

use crate::cluster::processes::{Cluster, Done, LIMIT, processes_inside, sees, until, wait_for};
use crate::processes::words;

#[test]
fn workloads_outlive_their_agent() {
    let mut cluster = Cluster::with_agents(1);
    let controller = cluster.controller_sees(1);
    let node = controller.look(|view| view.nodes().next().unwrap().uuid);
    let lasts = cluster.start("");
    let go = cluster.path("go");
    let until_go = format!("until [ -e {} ]; do sleep 0.02; done", go.display());
    let ends = Uuid::new_v4();
    let start = [
        "start",
        "--persistent",
        "--uuid",
        &ends.to_string(),
        "--",
        "sh",
        "-c",
        &until_go,
    ];
    assert_eq!(cluster.ctl_words(&start).code, Some(0));
    let place = cluster.path("state-0/instances").join(ends.to_string());
    let running = || processes_inside(&place).len();
    assert_ne!(running(), 0);
    cluster.kill_node(0);
    let is_disconnected = |view: &View| (!view.node(node)?.connected).then_some(());
    sees(&controller, "the node is gone", is_disconnected);
    // One instance ends while no agent runs.
    fs::write(&go, "").unwrap();
    until("the instance ends", || match running() {
        0 => Ok(()),
        left => Err(format!("{left} processes are left")),
    });
    // The other instance runs on, and no command reaches it.
    let error = cluster.fails(&format!("stop {lasts}"));
    assert_eq!(
        error,
        format!("no connected node has instance {lasts}; a node that is away may have it")
    );

    let uuid = cluster.start_node(0, "agent", "--volumes volumes");
    assert_eq!(uuid, node, "it is the same node");
    wait_for(&controller, lasts, &InstanceState::Active);
    wait_for(&controller, ends, &InstanceState::Exited);
    cluster.done(&format!("stop {lasts}"));
    cluster.done(&format!("restart {lasts}"));
    cluster.done(&format!("delete {lasts} {ends}"));
}

#[test]
fn a_scheduler_that_is_killed_under_load_loses_no_running_instance() {
    let mut cluster = Cluster::with_agents(2);
    let controller = cluster.controller_sees(2);
    let yaml = "configure:\n  launcher:\n    mgmt_net: [10.1.0.0/16]\n";
    fs::write(cluster.path("new.yaml"), yaml).unwrap();
    cluster.done("configure new.yaml");
    let before: Vec<Uuid> = (0..4).map(|_| cluster.start("--mem 8")).collect();

    // STARTs are under way when the scheduler is killed. Each of them may be lost.
    let mut load = cluster.command(&words("ctl start --no-wait --count 20 --mem 8 -- sleep 1000"));
    let load = load
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let some_more = |view: &View| (view.instances().count() > before.len()).then_some(());
    sees(&controller, "the load has begun", some_more);
    cluster.kill_scheduler();
    let is_offline = |view: &View| (!view.is_online()).then_some(());
    sees(&controller, "the end of the scheduler is noticed", is_offline);
    let _ = Done::of_child(load);
    cluster.start_scheduler();

    let back = |view: &View| {
        let nodes = view
            .nodes()
            .filter(|node| node.connected && node.seen.is_some())
            .count();
        (nodes == 2 && view.is_complete()).then_some(())
    };
    sees(&controller, "agents and controller connect again", back);
    for instance in before {
        wait_for(&controller, instance, &InstanceState::Active);
    }
    assert_eq!(cluster.controller_sees(2).client().configuration().unwrap(), yaml);
    // Commands work as before, also by the controller that was connected before.
    let instance = cluster.start("");
    wait_for(&controller, instance, &InstanceState::Active);
    controller.stop(instance).unwrap().wait(LIMIT).unwrap();
    // Instances that were started meanwhile are listed, and can be deleted.
    let all = controller.look(|view| view.instances().map(|i| i.uuid.to_string()).collect::<Vec<_>>());
    assert_eq!(
        cluster.done(&format!("delete {}", all.join(" "))).lines().count(),
        all.len()
    );
    let none = |view: &View| (view.instances().count() == 0).then_some(());
    sees(&controller, "all instances are deleted", none);
}
