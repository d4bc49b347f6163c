//! What goes on when a part is killed, and what is left in the kernel.

use rustix::process::{Pid, Signal, kill_process};

use super::rig::{Instance, Rig, echoes, until};

const LINKS: &str = "ip -o link show group 21331";

#[test]
fn what_stands_goes_on_when_a_part_is_killed_and_nothing_is_left() {
    let Some(mut rig) = Rig::new() else { return };
    assert!(rig.refused("tenant show blue").contains("no tenant"));
    rig.tenant("blue", 33);
    let again =
        rig.refused("tenant add red --subnet 172.16.0.0/24 --concentrator 10.77.0.34/24 --network-key 1");
    assert!(again.contains("tenant blue has this key"), "{again}");
    let (a, b) = (rig.start("blue", "a"), rig.start("blue", "b"));
    let mut stream = a.connect(&b);
    echoes(&mut stream, "at first");
    until(|| rig.done("tenant show blue").matches(" up ").count() == 2);
    // The agent sets it up again at each STATS, so it is set down again and again.
    let break_tunnel = |rig: &Rig| rig.says("a", "ip link set ssx1 down");
    until(|| break_tunnel(&rig).is_empty() && rig.done("tenant show blue").contains(" down "));
    until(|| {
        break_tunnel(&rig);
        let said = rig.health("a");
        said.contains("degraded") && said.contains("the tunnel of key 1 is down")
    });
    rig.ip_on("a", "link del ssx1");
    rig.ip_on("a", "link del ssb1");
    until(|| rig.done("tenant show blue").matches(" up ").count() == 2);
    until(|| !rig.health("a").contains("tunnel"));
    echoes(&mut stream, "through a tunnel that was made again");
    a_node_that_is_lost_touches_nobody_else(&rig, &a, &b);
    rig.kill("a");
    echoes(&mut stream, "without the agent");
    rig.agent("a");
    echoes(&mut stream, "with the next agent");
    rig.kill("s");
    rig.scheduler();
    echoes(&mut stream, "with the next scheduler");
    rig.kill("k");
    rig.agent("k");
    let (uuid, before) = rig.concentrator("blue");
    until(|| rig.done("cncis").contains(&uuid));
    kill_process(Pid::from_raw(before).unwrap(), Signal::KILL).unwrap();
    until(|| rig.concentrator("blue").1 != before);
    echoes(&mut stream, "with the next concentrator");
    a.reaches(&b);
    assert!(rig.refused("tenant delete blue").contains("have addresses"));
    // START by hand: each reason has its words.
    let reason = |networking: &str| {
        let path = rig.dir.path().join("start.yaml");
        let start = format!(
            "command: [sleep, '1000']\nnode: {}\ntenant: 0f7a5a1e-3c55-4a0b-9d3c-6f1f2f9a1001\n\
             networking: {{subnet: 172.16.0.0/24, private_ip: 172.16.0.9, concentrator_ip: 10.77.0.40, {networking}}}\n",
            rig.node("a")
        );
        std::fs::write(path, start).unwrap();
        rig.refused("start --file start.yaml")
    };
    for (networking, word) in [
        ("subnet_key: 1", "subnet_key 1 is taken"),
        ("subnet_key: 4268000000", "subnet_key"),
        (
            "subnet_key: 9, subnet_uuid: x, vnic_mac: '01:00:00:00:00:01'",
            "vnic_mac",
        ),
    ] {
        let said = reason(networking);
        assert!(said.contains("network_failure") && said.contains(word), "{said}");
    }
    rig.done(&format!("delete {}", b.uuid));
    until(|| rig.says("b", LINKS).is_empty());
    assert_eq!(a.hears(b.ip), None);
    rig.kill("a");
    rig.agent("a");
    rig.done(&format!("delete {}", a.uuid));
    until(|| rig.says("a", LINKS).is_empty());
    assert!(
        !rig.says("a", "nft list set bridge ssntp own")
            .contains("elements")
    );
    rig.done("tenant delete blue");
    assert!(!rig.done("tenant list").contains("blue"));
    until(|| rig.says("k", LINKS).is_empty());
}

/// The node `b` is cut off from the cluster, and is there again.
fn a_node_that_is_lost_touches_nobody_else(rig: &Rig, a: &Instance, b: &Instance) {
    let neighbour = rig.start("blue", "a");
    let mut stream = a.connect(&neighbour);
    rig.ip_on("b", "link set u0 down");
    assert_eq!(a.hears(b.ip), None);
    echoes(&mut stream, "without the other node");
    a.reaches(&neighbour);
    rig.ip_on("b", "link set u0 up");
    a.reaches(b);
    rig.done(&format!("delete {}", neighbour.uuid));
}
