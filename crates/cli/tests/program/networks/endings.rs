//! The state after a process is killed, and the objects that remain in the kernel.

use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::rig::{Instance, Rig, Traffic, answer_at, echoes, serve, until};

const LINKS: &str = "ip -o link show group 21331";

#[test]
fn connections_survive_a_killed_part_and_no_kernel_objects_are_left() {
    let Some(mut rig) = Rig::new() else { return };
    assert!(rig.refused("tenant show blue").contains("no tenant"));
    rig.tenant("blue", 33);
    let error =
        rig.refused("tenant add red --subnet 172.16.0.0/24 --concentrator 10.77.0.34/24 --network-key 1");
    assert!(error.contains("tenant blue has this key"), "{error}");
    let (a, b) = (rig.start("blue", "a"), rig.start("blue", "b"));
    let traffic = Traffic::new(a.connect(&b));
    traffic.goes_on();
    until(|| rig.done("tenant show blue").matches(" up ").count() == 2);
    // The agent sets it up again at each STATS, so it is set down again and again.
    let break_tunnel = |rig: &Rig| rig.output("a", "ip link set ssx1 down");
    until(|| break_tunnel(&rig).is_empty() && rig.done("tenant show blue").contains(" down "));
    until(|| {
        break_tunnel(&rig);
        let health = rig.health("a");
        health.contains("degraded") && health.contains("the tunnel of key 1 is down")
    });
    rig.ip_on("a", "link del ssx1");
    rig.ip_on("a", "link del ssb1");
    until(|| rig.done("tenant show blue").matches(" up ").count() == 2);
    until(|| !rig.health("a").contains("tunnel"));
    traffic.goes_on();
    a_node_that_is_lost_touches_nobody_else(&rig, &a, &b);
    // Each process is killed in turn, and started again.
    rig.kill("a");
    traffic.goes_on();
    rig.agent("a");
    traffic.goes_on();
    rig.kill("s");
    traffic.goes_on();
    rig.scheduler();
    traffic.goes_on();
    rig.kill("k");
    traffic.goes_on();
    rig.agent("k");
    let (uuid, before) = rig.concentrator("blue");
    until(|| rig.done("cncis").contains(&uuid));
    kill_process(Pid::from_raw(before).unwrap(), Signal::KILL).unwrap();
    until(|| rig.concentrator("blue").1 != before);
    traffic.goes_on();
    a.reaches(&b);
    // A concentrator that is lost is started again by the command that has made the tenant.
    rig.done(&format!("delete {uuid}"));
    assert!(rig.done("tenant show blue").contains("`ssntp ctl tenant add`"));
    let add = |subnet: &str| format!("tenant add blue --subnet {subnet} --concentrator 10.77.0.33/24");
    let error = rig.refused(&add("172.16.1.0/24"));
    assert!(error.contains("there is a tenant blue already"), "{error}");
    for _ in ["lost", "running"] {
        rig.done(&add("172.16.0.0/24"));
    }
    traffic.goes_on();
    assert!(rig.refused("tenant delete blue").contains("have addresses"));
    rig.done(&format!("delete {}", b.uuid));
    until(|| rig.output("b", LINKS).is_empty());
    an_address_on_another_node_is_reached_at_once(&rig, &a, &b);
    a_node_that_left_the_tenant_is_not_heard(&rig, &a);
    rig.kill("a");
    rig.agent("a");
    // The scheduler knows the instance once the agent has sent STATS again.
    until(|| rig.ctl(&format!("delete {}", a.uuid)).status.success());
    until(|| rig.output("a", LINKS).is_empty());
    assert!(
        !rig.output("a", "nft list set bridge ssntp own")
            .contains("elements")
    );
    // A tenant that is in use keeps its concentrator, and a removed one leaves none.
    assert!(rig.done("instances").contains(&uuid));
    rig.done("tenant delete blue");
    assert!(!rig.done("tenant list").contains("blue"));
    assert!(!rig.done("instances").contains(&uuid));
    until(|| rig.output("k", LINKS).is_empty());
}

/// The node `b` is cut off from the cluster, and connects again.
fn a_node_that_is_lost_touches_nobody_else(rig: &Rig, a: &Instance, b: &Instance) {
    let neighbour = rig.start("blue", "a");
    let mut stream = a.connect(&neighbour);
    rig.ip_on("b", "link set u0 down");
    assert_eq!(a.answer_at(b.ip), None);
    echoes(&mut stream, "without the other node");
    a.reaches(&neighbour);
    rig.ip_on("b", "link set u0 up");
    a.reaches(b);
    // With the end of an instance its port is removed, and no port of another instance.
    let ports = || rig.output("a", LINKS).matches("ssp").count();
    assert_eq!(ports(), 2);
    kill_process(Pid::from_raw(neighbour.pid).unwrap(), Signal::KILL).unwrap();
    until(|| ports() == 1);
    rig.done(&format!("delete {}", neighbour.uuid));
}

/// The instance sends nothing, and the concentrator has known the address of `b` on another node.
fn an_address_on_another_node_is_reached_at_once(rig: &Rig, a: &Instance, b: &Instance) {
    let node = rig.node("a");
    let words = format!("--ip {} --node {node} -- sleep 1000", b.ip);
    let again = rig.start_with("blue", "a", &words);
    serve(again.pid, format!("blue {}", again.uuid));
    let began = Instant::now();
    a.reaches(&again);
    assert!(began.elapsed() < Duration::from_secs(6), "{:?}", began.elapsed());
    rig.done(&format!("delete {}", again.uuid));
}

/// The concentrator drops all packets from `b`, even valid ones.
fn a_node_that_left_the_tenant_is_not_heard(rig: &Rig, a: &Instance) {
    let (_, pid) = rig.concentrator("blue");
    let nodes = || {
        a.like(pid)
            .output("nft", &["list", "set", "ip", "ssntp", "nodes"])
    };
    until(|| !nodes().contains("10.77.0.12"));
    assert!(nodes().contains("10.77.0.11"));
    rig.ip_on(
        "b",
        "link add left type vxlan id 1 local 10.77.0.12 remote 10.77.0.33 dstport 4789",
    );
    rig.ip_on("b", "addr add 172.16.0.77/24 dev left");
    rig.ip_on("b", "link set left mtu 1450 up");
    let ip = a.ip;
    assert_eq!(rig.at("b", move || answer_at(ip)), None);
    rig.ip_on("b", "link del left");
}
