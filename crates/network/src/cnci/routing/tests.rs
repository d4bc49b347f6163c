//! Each test has a network namespace of its own. Without root or the tools it is skipped.

use std::io::Read;
use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};

use nix::sched::{CloneFlags, unshare};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::*;
use crate::alone::alone;
use ssntp_payload::CnciPeer;

fn routing() -> Routing {
    Routing::open("10.0.0.1".parse().unwrap(), TunnelConfig::default()).unwrap()
}

fn tunnel(node: &str) -> Tunnel {
    Tunnel {
        agent_uuid: node.into(),
        agent_ip: node.into(),
        subnet: "172.16.0.0/24".into(),
        key: 1,
        addresses: Vec::new(),
    }
}

/// Tables with tunnels to these nodes.
fn nodes(nodes: &[&str]) -> Tables {
    Tables {
        tunnels: nodes.iter().map(|node| tunnel(node)).collect(),
        ..Tables::default()
    }
}

fn public(private: &str) -> PublicIp {
    PublicIp {
        public_ip: "10.0.0.200".into(),
        private_ip: private.into(),
        ..PublicIp::default()
    }
}

fn listed(line: &str) -> String {
    let words: Vec<_> = line.split(' ').collect();
    let json: serde_json::Value = tools::json("nft", &words).unwrap();
    json.to_string()
}

#[test]
fn a_tunnel_that_failed_halfway_is_made_at_the_next_attempt() {
    alone(|| {
        let mut routing = routing();
        routing.apply(&Tables::default()).unwrap();
        // Another device has the key.
        tools::ip("link add foreign type vxlan id 1 local 10.0.0.1 dstport 4789\n").unwrap();
        let other = Tunnel {
            subnet: "172.16.1.0/24".into(),
            key: 2,
            ..tunnel("10.0.0.8")
        };
        let mut tables = nodes(&["10.0.0.7"]);
        tables.tunnels.push(other);
        let error = routing.apply(&tables).unwrap_err();
        assert!(error.contains("exists"), "{error}");
        assert_eq!(links().unwrap().len(), 1, "the other tunnel is made");
        let entries = || -> String {
            let entries: serde_json::Value = tools::json("bridge", &["fdb", "show"]).unwrap();
            entries.to_string()
        };
        assert!(entries().contains("10.0.0.8") && !entries().contains("10.0.0.7"));
        tools::ip("link del foreign\n").unwrap();
        routing.apply(&tables).unwrap();
        assert!(entries().contains("10.0.0.7") && links().unwrap().len() == 2);
        routing.apply(&nodes(&["10.0.0.8"])).unwrap();
        assert!(!listed("list set ip ssntp nodes").contains("10.0.0.7"));
        assert_eq!(links().unwrap().len(), 1);
        routing.apply(&Tables::default()).unwrap();
        assert_eq!(links().unwrap().len(), 0);
    });
}

#[test]
fn a_part_that_cannot_be_made_leaves_no_other_part_out() {
    alone(|| {
        unshare(CloneFlags::CLONE_FS | CloneFlags::CLONE_NEWNS).unwrap();
        let setting = "/proc/sys/net/ipv4/ip_forward";
        for arguments in [
            &["--make-rprivate", "/"][..],
            &["--bind", setting, setting],
            &["-o", "remount,bind,ro", setting],
        ] {
            assert!(Command::new("mount").args(arguments).status().unwrap().success());
        }
        let mut routing = routing();
        let mut tables = nodes(&["10.0.0.7"]);
        tables.public_ips = vec![public("172.16.0.5")];
        let error = routing.apply(&tables).unwrap_err();
        assert!(error.contains("ip_forward"), "{error}");
        assert_eq!(routing.addresses().unwrap().1.len(), 1);
        let entries: serde_json::Value = tools::json("bridge", &["fdb", "show"]).unwrap();
        assert!(entries.to_string().contains("10.0.0.7"), "{entries}");
    });
}

#[test]
fn a_subnet_that_gets_another_length_leaves_no_address_of_the_former_one() {
    alone(|| {
        let mut routing = routing();
        let mut tables = nodes(&["10.0.0.7"]);
        for length in [24, 28, 24] {
            tables.tunnels[0].subnet = format!("172.16.0.0/{length}");
            routing.apply(&tables).unwrap();
            let links = links::addresses().unwrap().into_iter();
            let addresses = links.filter(|link| link.ifname == tunnel_name(1));
            let lengths = addresses.flat_map(|link| link.addr_info).map(|it| it.prefixlen);
            assert_eq!(lengths.collect::<Vec<_>>(), [length]);
        }
    });
}

#[test]
fn tables_of_a_concentrator_that_moved_no_packets_are_restored() {
    alone(|| {
        let tables = Tables {
            tunnels: vec![tunnel("10.0.0.7"), tunnel("nowhere")],
            public_ips: vec![public(""), public("172.16.0.5")],
            ..Tables::default()
        };
        let mut routing = routing();
        let left_out = routing.apply(&tables).unwrap();
        assert_eq!(left_out.len(), 2, "{left_out:?}");
        assert!(left_out[0].contains("nowhere"), "{left_out:?}");
        assert_eq!(
            routing.apply(&tables).unwrap(),
            [""; 0],
            "the fault is logged once"
        );
        assert!(listed("list map ip ssntp outward").contains("172.16.0.5"));
    });
}

#[test]
fn a_public_address_moves_to_another_instance_in_one_step() {
    alone(|| {
        let mut routing = routing();
        let mut tables = nodes(&["10.0.0.7"]);
        for private in ["172.16.0.5", "172.16.0.6", "172.16.0.5"] {
            tables.public_ips = vec![public(private)];
            routing.apply(&tables).unwrap();
            let maps = listed("list map ip ssntp inward") + &listed("list map ip ssntp outward");
            assert_eq!(maps.matches(private).count(), 2, "{maps}");
            assert_eq!(maps.matches("172.16.0.").count(), 2, "{maps}");
        }
        let own = PublicIp {
            public_ip: "10.0.0.1".into(),
            ..public("172.16.0.6")
        };
        let nowhere = PublicIp {
            public_ip: "127.0.0.1".into(),
            ..public("172.16.0.6")
        };
        for (wrong, word) in [
            (public("172.17.0.5"), "no subnet"),
            (own, "own address"),
            (nowhere, "not a unicast address"),
        ] {
            let mut next = tables.clone();
            next.public_ips.push(wrong);
            let error = routing.check(&next).unwrap_err();
            assert!(error.contains(word), "{error}");
        }
        // A public address is left out if its subnet has no tunnel.
        tables.tunnels.clear();
        assert_eq!(routing.apply(&tables).unwrap().len(), 1);
        assert!(!listed("list map ip ssntp inward").contains("172.16"));
        assert_eq!(routing.addresses().unwrap().1, BTreeSet::new());
    });
}

#[test]
fn a_new_public_address_must_be_free_and_is_announced() {
    alone(|| {
        let mut routing = routing();
        let mut tables = nodes(&["10.0.0.7"]);
        routing.apply(&tables).unwrap();
        let other = Neighbour::new(
            "p0",
            "link set p0 master u0",
            "addr add 10.0.0.200/24 dev eth0\nlink set eth0 up",
        );
        // The firewall of the other host refuses connections, as if the host were unreachable.
        other.does(|| {
            tools::nft(
                "table ip t { chain i { type filter hook input priority 0; tcp dport 9 reject with icmp type host-prohibited; }; }",
            )
            .unwrap();
        });
        for (ip, why) in [
            ("172.16.0.9", "the tenant's subnet 172.16.0.0/24"),
            ("10.0.0.0", "10.0.0.0/24 has no such host"),
            ("10.0.0.255", "10.0.0.0/24 has no such host"),
            ("10.0.0.200", "another host has it"),
        ] {
            let error = routing.check_free(ip.parse().unwrap()).unwrap_err();
            assert!(error.contains(why), "{ip}: {error}");
        }
        // Another host has the address no longer, and still knows its former holder.
        other.does(|| {
            tools::ip(
                "addr del 10.0.0.200/24 dev eth0\naddr add 10.0.0.2/24 dev eth0\n\
                 neigh replace 10.0.0.200 lladdr 02:00:00:00:00:99 dev eth0 nud stale\n",
            )
            .unwrap();
        });
        routing.check_free("10.0.0.200".parse().unwrap()).unwrap();
        tables.public_ips = vec![public("172.16.0.5")];
        routing.apply(&tables).unwrap();
        let (mac, _) = routing.addresses().unwrap();
        other.does(move || {
            let known = || -> String {
                let known: serde_json::Value = tools::json("ip", &["neigh", "show", "10.0.0.200"]).unwrap();
                known.to_string()
            };
            // The announcement may arrive a little later.
            assert!((0..1000).any(|_| known().contains(&mac)), "{}", known());
        });
    });
}

#[test]
fn tunnels_that_contradict_each_other_are_refused() {
    alone(|| {
        let mut routing = routing();
        routing.apply(&nodes(&["10.0.0.7"])).unwrap();
        type Row = (fn(&mut Tunnel), &'static str);
        let rows: [Row; 5] = [
            (|t| t.key = 2, "172.16.0.0/24 has two keys"),
            (|t| t.subnet = "172.16.1.0/24".into(), "the key 1 belongs to"),
            (|t| t.key = 0, "the key 0"),
            (|t| t.agent_ip = "fd00::1".into(), "fd00::1"),
            (|t| t.subnet = "172.16.0.0/8".into(), "20 to 29"),
        ];
        for (change, word) in rows {
            let mut wrong = tunnel("10.0.0.8");
            change(&mut wrong);
            let mut next = nodes(&["10.0.0.7"]);
            next.tunnels.push(wrong);
            let error = routing.check(&next).unwrap_err();
            assert!(error.contains(word), "{error}");
        }
    });
}

#[test]
fn links_that_break_while_the_concentrator_runs_are_made_again() {
    alone(|| {
        let mut routing = routing();
        let tables = Tables {
            tunnels: ["10.0.0.7", "10.0.0.8"].map(tunnel).into(),
            public_ips: vec![public("172.16.0.5")],
            ..Tables::default()
        };
        routing.apply(&tables).unwrap();
        let whole = || {
            let entries: Vec<Entry> = tools::json("bridge", &["fdb", "show", "dev", "ssx1"]).unwrap();
            let nodes = entries
                .iter()
                .filter_map(|entry| entry.dst.filter(|_| entry.mac == ALL));
            let nodes: BTreeSet<_> = nodes.map(|ip| ip.to_string()).collect();
            let read = |path: &str| fs::read_to_string(format!("/proc/thread-self/net/{path}")).unwrap();
            let links = links().unwrap();
            (
                nodes,
                (links.len(), links[0].is_up()),
                read("route").contains("ssx1"),
                fs::read_to_string("/proc/sys/net/ipv4/conf/ssx1/proxy_arp_pvlan").unwrap(),
                listed("list table ip ssntp").matches("\"rule\"").count(),
                listed("list map ip ssntp outward"),
                listed("list set ip ssntp nodes").contains("10.0.0.8"),
            )
        };
        let before = whole();
        assert!(before.0.len() == 2 && before.1 == (1, true) && before.2 && before.6);
        let break_ip: &[&str] = &[
            "link del ssx1",
            "link set ssx1 down",
            "addr flush dev ssx1",
            "addr del 10.0.0.200/32 dev u0",
            "addr add 10.0.0.201/32 dev u0",
            "link add name ssx9 group 21331 type vxlan id 9 local 10.0.0.1 dstport 4789",
        ];
        for words in break_ip {
            tools::ip(&format!("{words}\n")).unwrap();
            routing.apply(&tables).unwrap();
            assert_eq!(whole(), before, "{words}");
            let (_, public) = routing.addresses().unwrap();
            assert_eq!(public, ["10.0.0.200".parse().unwrap()].into(), "{words}");
        }
        tools::anyway(
            "bridge",
            &format!("fdb del {ALL} dev ssx1 dst 10.0.0.7\nfdb append {ALL} dev ssx1 dst 10.0.0.9\n"),
        )
        .unwrap();
        for words in [
            "flush ruleset",
            "flush map ip ssntp outward",
            "flush chain ip ssntp input",
        ] {
            tools::nft(words).unwrap();
            routing.apply(&tables).unwrap();
            assert_eq!(whole(), before, "{words}");
        }
    });
}

#[test]
fn addresses_of_instances_lead_to_their_nodes_and_nothing_is_learned() {
    alone(|| {
        let mut routing = routing();
        let at = |node: &str, last: &[u8]| Tunnel {
            addresses: last.iter().map(|last| [172, 16, 0, *last].into()).collect(),
            ..tunnel(node)
        };
        let tables = |first: &[u8], second: &[u8]| Tables {
            tunnels: vec![at("10.0.0.7", first), at("10.0.0.8", second)],
            ..Tables::default()
        };
        // The last byte of each address that is known, and of its node.
        let known = || {
            let entries: Vec<Entry> = tools::json("bridge", &["fdb", "show", "dev", "ssx1"]).unwrap();
            let entries = entries.into_iter().filter(|entry| entry.mac != ALL);
            let entries = entries.map(|entry| (entry.mac, entry.dst.unwrap().octets()[3]));
            let entries: BTreeSet<_> = entries.collect();
            let neighbours: Vec<KnownHost> =
                tools::json("ip", &["-4", "neigh", "show", "nud", "permanent"]).unwrap();
            let neighbours = neighbours
                .iter()
                .map(|it| (it.dst.octets()[3], it.lladdr.clone()));
            let neighbours: BTreeMap<_, _> = neighbours.collect();
            assert_eq!(neighbours.len(), entries.len());
            let last = |mac: &String| {
                neighbours
                    .iter()
                    .find(|(_, known)| *known == mac)
                    .map(|(ip, _)| *ip)
            };
            entries
                .iter()
                .map(|(mac, node)| (last(mac).unwrap(), *node))
                .collect::<Vec<_>>()
        };
        routing.apply(&tables(&[2, 3], &[4])).unwrap();
        assert_eq!(known(), [(2, 7), (3, 7), (4, 8)]);
        assert!(
            links()
                .unwrap()
                .iter()
                .all(|link| link.linkinfo["info_data"]["learning"] != true)
        );
        routing.forward(&tables(&[2], &[3, 5])).unwrap();
        assert_eq!(known(), [(2, 7), (3, 8), (5, 8)]);
        // The gateway's address, and those of other subnets, lead nowhere.
        let last = tables(&[1, 2], &[3, 5]);
        routing.forward(&last).unwrap();
        for broken in [
            "fdb del 02:00:ac:10:00:03 dev ssx1 dst 10.0.0.8",
            "fdb replace 02:00:ac:10:00:02 dev ssx1 dst 10.0.0.8",
            "fdb add 02:00:ac:10:00:09 dev ssx1 dst 10.0.0.8",
        ] {
            tools::anyway("bridge", &format!("{broken}\n")).unwrap();
            routing.apply(&last).unwrap();
            assert_eq!(known(), [(2, 7), (3, 8), (5, 8)], "{broken}");
        }
        for broken in [
            "neigh del 172.16.0.3 dev ssx1",
            "neigh replace 172.16.0.2 lladdr 02:00:ac:10:00:09 dev ssx1 nud permanent",
            "neigh replace 172.16.0.9 lladdr 02:00:ac:10:00:09 dev ssx1 nud permanent",
            "link del ssx1",
        ] {
            tools::ip(&format!("{broken}\n")).unwrap();
            routing.apply(&last).unwrap();
            assert_eq!(known(), [(2, 7), (3, 8), (5, 8)], "{broken}");
        }
        routing.forward(&tables(&[], &[])).unwrap();
        assert_eq!(known(), []);
    });
}

#[test]
fn peers_are_reached_through_a_tunnel_of_their_own() {
    alone(|| {
        let mut routing = routing();
        let with = |peers: &[CnciPeer]| Tables {
            peers: peers.into(),
            ..nodes(&["10.0.0.7"])
        };
        let peer = |number: u8, subnet: &str| CnciPeer {
            physical_ip: format!("10.0.0.{number}"),
            subnet: subnet.into(),
            tunnel_ip: format!("192.168.0.{number}"),
            tunnel_id: 9,
        };
        let own = peer(1, "172.16.0.0/24");
        let routes = || -> String {
            let routes: serde_json::Value = tools::json("ip", &["route", "show", "dev", "ssx9"]).unwrap();
            routes.to_string()
        };
        let all = with(&[own.clone(), peer(2, "172.16.1.0/24"), peer(3, "172.16.2.0/24")]);
        routing.apply(&all).unwrap();
        assert!(routes().contains("172.16.1.0/24") && routes().contains("192.168.0.3"));
        assert!(listed("list set ip ssntp nodes").contains("10.0.0.3"));
        tools::ip("link del ssx9\n").unwrap();
        routing.apply(&all).unwrap();
        assert!(routes().contains("172.16.2.0/24"));
        let rows: [(&[CnciPeer], &str); 4] = [
            (&[peer(2, "172.16.1.0/24")], "lacks this concentrator"),
            (
                &[own.clone(), peer(2, "172.16.0.0/25")],
                "overlaps a subnet of this concentrator",
            ),
            (
                &[
                    own.clone(),
                    CnciPeer {
                        tunnel_id: 8,
                        ..peer(2, "172.16.1.0/24")
                    },
                ],
                "different",
            ),
            (
                &[CnciPeer {
                    tunnel_id: 1 << 24,
                    ..own.clone()
                }],
                "tunnel_id",
            ),
        ];
        for (peers, word) in rows {
            let error = routing.check(&with(peers)).unwrap_err();
            assert!(error.contains(word), "{error}");
        }
        let fewer = with(&[own.clone(), peer(3, "172.16.3.0/24")]);
        routing.apply(&fewer).unwrap();
        assert!(routes().contains("172.16.3.0/24") && !routes().contains("172.16.2.0/24"));
        // A route to an unknown peer, and a tunnel with another MAC address, are removed.
        tools::ip("route add 172.16.9.0/24 via 192.168.0.9 dev ssx9 onlink\n").unwrap();
        routing.apply(&fewer).unwrap();
        assert!(routes().contains("172.16.3.0/24") && !routes().contains("172.16.9.0/24"));
        tools::ip("link set ssx9 address 02:00:00:00:00:09\n").unwrap();
        routing.apply(&fewer).unwrap();
        assert!(routes().contains("172.16.3.0/24"));
        let is_right = |link: &Link| link.address == "02:00:c0:a8:00:01";
        assert!(links().unwrap().iter().any(is_right));
        assert!(!listed("list set ip ssntp nodes").contains("10.0.0.2\""));
        routing.apply(&with(&[own])).unwrap();
        assert_eq!(links().unwrap().len(), 1);
    });
}

/// A child process with a network namespace of its own, whose `eth0` is the peer of this interface.
struct Neighbour(Child);

impl Neighbour {
    fn new(port: &str, here: &str, far: &str) -> Self {
        let mut command = Command::new("unshare");
        command.args(["--net", "sh", "-c", "echo; exec sleep 1000"]);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        let pid = child.id();
        let made =
            format!("link add {port} type veth peer name eth0 netns {pid}\nlink set {port} up\n{here}\n");
        tools::ip(&made).unwrap();
        let neighbour = Self(child);
        let inside = format!("{far}\nlink set lo up\n");
        tools::ip_within(&neighbour.namespace(), &inside).unwrap();
        neighbour
    }

    fn namespace(&self) -> fs::File {
        fs::File::open(format!("/proc/{}/ns/net", self.0.id())).unwrap()
    }

    /// Runs a function in the namespace.
    fn does(&self, act: impl FnOnce() + Send + 'static) {
        let namespace = self.namespace();
        let enter = move || {
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
            act();
        };
        std::thread::Builder::new().spawn(enter).unwrap().join().unwrap();
    }
}

impl Drop for Neighbour {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn packets_pass_between_two_concentrators_of_a_tenant() {
    let has = |tool: &str| Command::new(tool).arg("--help").output().is_ok();
    let Some(ping) = [&["ping"][..], &["busybox", "ping"]]
        .into_iter()
        .find(|words| has(words[0]))
    else {
        return eprintln!("skipped: there is no ping here");
    };
    alone(move || {
        let peer = |number: u8| CnciPeer {
            physical_ip: format!("10.0.0.{number}"),
            subnet: format!("172.16.{number}.0/24"),
            tunnel_ip: format!("192.168.0.{number}"),
            tunnel_id: 9,
        };
        let with = move |number: u8, peers: &[CnciPeer]| {
            let mut routing = Routing::open(
                format!("10.0.0.{number}").parse().unwrap(),
                TunnelConfig::default(),
            )
            .unwrap();
            let own = Tunnel {
                subnet: format!("172.16.{number}.0/24"),
                key: number.into(),
                ..tunnel("10.0.0.7")
            };
            let mut tables = Tables {
                tunnels: vec![own],
                peers: peers.into(),
                ..Tables::default()
            };
            assert_eq!(routing.apply(&tables).unwrap(), [""; 0]);
            tables.peers.truncate(1);
            (routing, tables)
        };
        let (mut own, alone) = with(1, &[peer(1), peer(2)]);
        let other = Neighbour::new(
            "p0",
            "link set p0 master u0",
            "addr add 10.0.0.2/24 dev eth0\nlink set eth0 up",
        );
        other.does(move || drop(with(2, &[peer(2), peer(1)])));
        // This process stands for an instance behind a tunnel of the first concentrator.
        let instance = Neighbour::new(
            "ssxi",
            "route add 172.16.1.5/32 dev ssxi",
            "addr add 172.16.1.5/24 dev eth0\nlink set eth0 up\nroute add default via 172.16.1.1",
        );
        let reaches = || {
            let mut command = Command::new("nsenter");
            command
                .arg(format!("--net=/proc/{}/ns/net", instance.0.id()))
                .args(ping);
            command.args(["-c", "1", "-W", "2", "172.16.2.1"]);
            command.output().unwrap().status.success()
        };
        assert!((0..10).any(|_| reaches()));
        own.apply(&alone).unwrap();
        assert!(!reaches());
    });
}
