//! Instances that can reach each other, and instances that must not.

use std::net::Ipv4Addr;

use super::attack;
use super::rig::{Instance, Rig, answer_at, serve, tell_peers, until};

const PUBLIC: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 200);

#[test]
fn tenants_with_the_same_subnet_reach_only_their_own_instances() {
    let Some(rig) = Rig::new() else { return };
    rig.tenant("blue", 33);
    rig.tenant("red", 34);
    // The services of the concentrators.
    for tenant in ["blue", "red"] {
        serve(rig.concentrator(tenant).1, "concentrator".into());
    }
    let [blue_a, blue_a2, blue_b] = ["a", "a", "b"].map(|host| rig.start("blue", host));
    let [red_a, red_b] = ["a", "b"].map(|host| rig.start("red", host));
    assert_eq!(
        (blue_a.ip, blue_a2.ip),
        (red_a.ip, red_b.ip),
        "the same addresses"
    );
    // The scheduler has leased the address, and the node tells it.
    let described = rig.done(&format!("describe {}", blue_a.uuid));
    assert!(described.contains(&blue_a.ip.to_string()), "{described}");
    blue_a.reaches(&blue_b);
    blue_b.reaches(&blue_a);
    blue_a.reaches(&blue_a2);
    // All its packets go to the gateway, so it fills no table of the kernel that others need as well.
    let neighbours = blue_a.output("ip", &["neigh"]);
    assert!(neighbours.contains("172.16.0.1 "), "{neighbours}");
    assert_eq!(neighbours.lines().count(), 1, "{neighbours}");
    red_a.reaches(&red_b);
    red_b.reaches(&red_a);
    assert_eq!(blue_a.reads("/etc/resolv.conf"), "nameserver 192.0.2.53\n");
    // Only the tenant blue has a third address.
    assert_eq!(red_a.answer_at(blue_b.ip), None);
    assert_eq!(red_b.answer_at(blue_b.ip), None);
    for address in [Ipv4Addr::new(172, 16, 0, 1), Ipv4Addr::new(10, 77, 0, 33)] {
        assert_eq!(blue_a.answer_at(address), None, "the concentrator itself");
    }
    nodes_are_hidden(&rig, &blue_a);
    attack::fails(&rig, &blue_a, &blue_b, &[&red_a, &red_b]);
    foreign_tunnels_are_dropped(&rig, &blue_a);
    public_addresses_work(&rig, &blue_a, &blue_b, &red_a);
}

/// Instances do not reach the addresses of the nodes, neither through the concentrator nor past it.
fn nodes_are_hidden(rig: &Rig, blue: &Instance) {
    tell_peers(rig, "a");
    let node = Ipv4Addr::new(10, 77, 0, 11);
    until(|| rig.at("s", move || answer_at(node)).is_some());
    assert_eq!(blue.answer_at(node), None);
    let links = rig.output("a", "ip -o link show type bridge");
    let bridge = links.lines().find(|line| line.contains(" ssb1:")).unwrap();
    let mac = bridge
        .split("link/ether ")
        .nth(1)
        .unwrap()
        .split(' ')
        .next()
        .unwrap();
    assert!(blue.runs("ip route add 10.77.0.11 dev eth0"));
    assert!(blue.runs(&format!("ip neigh add 10.77.0.11 lladdr {mac} dev eth0")));
    assert_eq!(
        blue.answer_at(node),
        None,
        "not over the bridge's own address either"
    );
    assert!(blue.runs("ip route del 10.77.0.11 dev eth0"));
}

fn foreign_tunnels_are_dropped(rig: &Rig, blue: &Instance) {
    let own = |words: &str| assert_eq!(rig.output("o", words), "", "{words}");
    own("ip link add foreign type vxlan id 1 local 10.77.0.99 remote 10.77.0.33 dstport 4789");
    own("ip link set foreign mtu 1450 up");
    own("ip addr add 172.16.0.77/24 dev foreign");
    let ip = blue.ip;
    assert_eq!(rig.at("o", move || answer_at(ip)), None);
    own("ip link del foreign");
    // A tunnel straight to the node, past the concentrator, does not work either.
    own("ip link add foreign type vxlan id 1 local 10.77.0.99 remote 10.77.0.11 dstport 4789");
    own("ip link set foreign mtu 1450 up");
    own("ip addr add 172.16.0.1/24 dev foreign");
    assert_eq!(rig.at("o", move || answer_at(ip)), None);
    own("ip link del foreign");
    let counted = rig.output("a", "nft list chain ip ssntp tunnels");
    assert!(
        counted.contains("packets") && !counted.contains("packets 0 "),
        "{counted}"
    );
    // A process of a tenant cannot make a tunnel through its own concentrator either.
    assert!(blue.runs("ip link add forged type vxlan id 2 remote 10.77.0.34 dstport 4789"));
    assert!(blue.runs("ip addr add 172.16.1.2/24 dev forged"));
    assert!(blue.runs("ip link set forged up"));
    assert_eq!(blue.answer_at(Ipv4Addr::new(172, 16, 1, 3)), None);
    let (_, pid) = rig.concentrator("blue");
    let counted = std::process::Command::new("nsenter")
        .args([&format!("--net=/proc/{pid}/ns/net"), "nft", "list", "counters"])
        .output()
        .unwrap();
    let counted = String::from_utf8(counted.stdout).unwrap();
    assert!(
        counted.matches("packets").count() == 2 && !counted.contains("packets 0 "),
        "{counted}"
    );
}

fn public_addresses_work(rig: &Rig, blue_a: &Instance, blue_b: &Instance, red: &Instance) {
    rig.done(&format!("assign-ip --tenant blue {} {PUBLIC}", blue_b.uuid));
    let is_it = |answer: Option<String>| answer.is_some_and(|answer| answer.ends_with(&blue_b.uuid));
    // A public address is reached from outside, from its tenant, and from another tenant.
    until(|| is_it(rig.at("o", move || answer_at(PUBLIC))));
    until(|| is_it(blue_a.answer_at(PUBLIC)));
    until(|| is_it(red.answer_at(PUBLIC)));
    let error = rig.refused(&format!("assign-ip --tenant red {} {PUBLIC}", red.uuid));
    assert!(error.contains("has it"), "{error}");
    tell_peers(rig, "o");
    let outside = Ipv4Addr::new(10, 77, 0, 99);
    // Packets that leave have the instance's public address, or else the concentrator's.
    until(|| blue_b.answer_at(outside) == Some(PUBLIC.to_string()));
    until(|| blue_a.answer_at(outside) == Some("10.77.0.33".into()));
    // A private address is not reached from outside, even with a route to it.
    assert_eq!(rig.output("o", "ip route add 172.16.0.0/24 via 10.77.0.33"), "");
    let private = blue_b.ip;
    assert_eq!(rig.at("o", move || answer_at(private)), None);
    let error = rig.refused(&format!(
        "assign-ip --tenant blue {} 10.77.0.201 --private-ip 172.17.0.5",
        blue_a.uuid
    ));
    assert!(error.contains("assign_failure"), "{error}");
    rig.done(&format!("release-ip --tenant blue {} {PUBLIC}", blue_b.uuid));
    assert_eq!(rig.at("o", move || answer_at(PUBLIC)), None);
    // The public address of an instance that is gone is free.
    rig.done(&format!("assign-ip --tenant blue {} {PUBLIC}", blue_b.uuid));
    rig.done(&format!("delete {}", blue_b.uuid));
    until(|| !rig.done("cncis").contains(&PUBLIC.to_string()));
    rig.done(&format!("assign-ip --tenant red {} {PUBLIC}", red.uuid));
    until(|| {
        rig.at("o", move || answer_at(PUBLIC))
            .is_some_and(|answer| answer.ends_with(&red.uuid))
    });
}
