//! Attacks of a process with root's rights in the network namespace of its instance on other
//! instances, other tenants and the cluster. Each attempt fails, and is counted.

use std::net::Ipv4Addr;

use super::rig::{Instance, Rig, until};

/// An attempt, which the port of the instance counts, and the command that undoes it.
struct Attempt {
    action: &'static str,
    script: &'static str,
    undo: &'static str,
}

/// `$VICTIM` is another instance of the tenant, `$OWN` and `$MAC` are the attacker's own addresses.
#[rustfmt::skip] // A table: one attempt after the other.
const ATTEMPTS: &[Attempt] = &[
    Attempt {
        action: "announces the address of another instance",
        script: "ip addr add $VICTIM/32 dev eth0; again",
        undo: "ip addr del $VICTIM/32 dev eth0; again",
    },
    Attempt {
        action: "announces the address of the gateway",
        script: "ip addr add 172.16.0.1/32 dev eth0; again",
        undo: "ip addr del 172.16.0.1/32 dev eth0; again",
    },
    Attempt {
        action: "says in ARP that its address is at another one's MAC address",
        script: "nft add table arp lie; nft 'add chain arp lie out { type filter hook output priority 0; }'
                 nft add rule arp lie out arp saddr ether set 02:00:ac:10:00:09; again",
        undo: "nft delete table arp lie; again",
    },
    Attempt {
        action: "uses another MAC address",
        script: "ip link set eth0 address 02:00:ac:10:00:09",
        undo: "again",
    },
    Attempt {
        action: "uses another IP address",
        script: "ip addr add 172.16.0.99/24 dev eth0; ip route add $VICTIM dev eth0 src 172.16.0.99; again
                 ip neigh replace 172.16.0.1 lladdr 02:00:ac:10:00:01 dev eth0
                 ip route replace default via 172.16.0.1 src 172.16.0.99",
        undo: "ip addr del 172.16.0.99/24 dev eth0; ip neigh flush dev eth0; ip route replace default via 172.16.0.1 dev eth0 onlink",
    },
    Attempt {
        action: "speaks IPv6",
        script: "echo 0 > /proc/sys/net/ipv6/conf/all/disable_ipv6; echo 0 > /proc/sys/net/ipv6/conf/eth0/disable_ipv6
                 ip addr add fd00::5/64 dev eth0; again",
        undo: "echo 1 > /proc/sys/net/ipv6/conf/all/disable_ipv6; again",
    },
    Attempt {
        action: "is a bridge that wants to be the root of all bridges",
        script: "ip link add loop type bridge stp_state 1 priority 0 forward_delay 200 hello_time 100
                 ip link set loop up; ip link set eth0 master loop",
        undo: "ip link del loop; again",
    },
];

/// The kernel announces all addresses of an interface when its MAC address is set.
const BEGIN: &str = "again() { ip link set ${1:-eth0} address $MAC; }\n";

/// `attacker` runs on the host `a`, as `port` there; `victim` is another instance of its tenant.
pub fn fails(rig: &Rig, attacker: &Instance, victim: &Instance, red: &[&Instance]) {
    let port = port(rig, "a", attacker);
    let dropped = || counted(&rig.output("a", "nft list set bridge ssntp drops"), &port);
    let mac = |ip: Ipv4Addr| {
        let [a, b, c, d] = ip.octets();
        format!("02:00:{a:02x}:{b:02x}:{c:02x}:{d:02x}")
    };
    let run = |script: &str| {
        let (own, victim) = (attacker.ip, victim.ip);
        let begin = format!("OWN={own}; VICTIM={victim}; MAC={}\n{BEGIN}", mac(own));
        attacker.output("sh", &["-c", &format!("{begin}{script}")])
    };
    // Packets that the kernel sends by itself must not be counted.
    run(
        "echo 1 > /proc/sys/net/ipv6/conf/all/disable_ipv6; echo 1 > /proc/sys/net/ipv4/conf/eth0/arp_notify; again",
    );
    watch(red, victim);
    let (_, concentrator) = rig.concentrator("blue");
    let concentrator = victim.like(concentrator);
    let known = |ip: Ipv4Addr| concentrator.output("ip", &["neigh", "show", &ip.to_string()]);
    for Attempt { action, script, undo } in ATTEMPTS {
        let before = dropped();
        eprintln!("attempt: an instance {action}");
        run(script);
        // The attacker also sends other packets than its announcements.
        until(|| {
            attacker.answer_at(victim.ip);
            dropped() > before
        });
        for ip in [victim.ip, attacker.ip] {
            let neighbour = known(ip);
            let is_right = !neighbour.contains("lladdr") || neighbour.contains(&mac(ip));
            assert!(is_right, "{action}: {neighbour}");
        }
        run(undo);
        attacker.reaches(victim);
    }
    // The concentrator has learned nothing: the scheduler has told it which node an instance is at.
    let entries = concentrator.output("bridge", &["fdb", "show"]);
    let remote: Vec<_> = entries.lines().filter(|line| line.contains(" dst ")).collect();
    assert!(remote.iter().all(|line| line.contains("permanent")), "{entries}");
    for ip in [victim.ip, attacker.ip] {
        assert!(remote.iter().any(|line| line.starts_with(&mac(ip))), "{entries}");
    }
    // No answer comes from the services of the cluster, of concentrators and of other tenants.
    let nowhere = [
        [172, 16, 0, 1],
        [10, 77, 0, 33],
        [10, 77, 0, 34],
        [10, 77, 0, 11],
        [10, 77, 0, 12],
        [169, 254, 169, 254],
    ];
    for ip in nowhere.map(Ipv4Addr::from) {
        assert_eq!(attacker.answer_at(ip), None, "{ip}");
    }
    // Broadcasts go to the concentrator, and not to neighbours or other tenants.
    run(
        "ip route add 172.16.0.0/24 dev eth0; ip neigh replace 172.16.0.255 lladdr ff:ff:ff:ff:ff:ff dev eth0; ping -b -c 1 -W 1 172.16.0.255",
    );
    for instance in red {
        let counters = instance.output("nft", &["list", "table", "netdev", "watch"]);
        assert_eq!(
            counters.matches("packets 0 ").count(),
            2,
            "packets of another tenant: {counters}"
        );
    }
}

/// Counts packets from an address that only the other tenant has.
fn watch(red: &[&Instance], blue: &Instance) {
    let rules = format!(
        "table netdev watch {{ chain seen {{ type filter hook ingress device eth0 priority 0;
         ip saddr {0} counter
         arp saddr ip {0} counter; }}; }}",
        blue.ip
    );
    for instance in red {
        instance.output("nft", &[&rules]);
        let counters = instance.output("nft", &["list", "table", "netdev", "watch"]);
        assert_eq!(counters.matches("counter").count(), 2, "{counters}");
        assert_eq!(instance.answer_at(blue.ip), None);
        assert_ne!(
            blue.answer_at(instance.ip)
                .map(|answer| answer.starts_with("red")),
            Some(true)
        );
    }
}

/// The name of an instance's port on its node.
fn port(rig: &Rig, host: &str, instance: &Instance) -> String {
    let own = instance.output("ip", &["-o", "link", "show", "eth0"]);
    let index = own.split("@if").nth(1).unwrap().split(':').next().unwrap();
    let links = rig.output(host, "ip -o link");
    let line = links.lines().find(|line| line.starts_with(&format!("{index}: ")));
    let name = line.unwrap().split(": ").nth(1).unwrap();
    name.split('@').next().unwrap().to_owned()
}

/// The packets that the filter counted of a port.
fn counted(listed: &str, port: &str) -> u64 {
    let of_port = listed.split(&format!("\"{port}\" counter packets ")).nth(1);
    of_port.map_or(0, |rest| rest.split(' ').next().unwrap().parse().unwrap())
}
