//! Each test has a network namespace of its own. Without root or the tools it is skipped.

use std::collections::BTreeSet;
use std::io::Read;
use std::net::UdpSocket;
use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use ssntp_payload::{Networking, Start};

use super::*;
use crate::{DEFAULT_PORT, alone};

fn config(underlay: &str) -> NetworkConfig {
    NetworkConfig {
        underlay: underlay.into(),
        ..NetworkConfig::default()
    }
}

fn alone(act: impl FnOnce(Networks) + Send + 'static) {
    alone::alone(|| act(Networks::open(config("u0")).unwrap()));
}

/// The network that a START asks for, if this node can have it.
fn asked(networks: &Networks, start: &Start) -> Result<Attachment, String> {
    let to = Attachment::of(start)?.unwrap();
    networks.check(&to).map(|()| to)
}

fn attachment(networks: &Networks, key: u32, ip: &str) -> Result<Attachment, String> {
    let start = Start {
        tenant_uuid: Uuid::from_u128(key.into()).into(),
        networking: Networking {
            subnet: "172.16.0.0/24".into(),
            subnet_key: key.to_string(),
            private_ip: ip.into(),
            concentrator_ip: "10.0.0.33".into(),
            ..Networking::default()
        },
        ..Start::default()
    };
    asked(networks, &start)
}

fn port(networks: &Networks, key: u32) -> TenantPort {
    match attachment(networks, key, "172.16.0.5").unwrap() {
        Attachment::Tenant(port) => port,
        Attachment::Underlay(_) => unreachable!(),
    }
}

fn uuid(key: u32) -> Uuid {
    Uuid::from_u128(key.into())
}

fn name(key: u32) -> String {
    port_name(uuid(key))
}

fn names() -> BTreeSet<String> {
    links().unwrap().into_iter().map(|link| link.ifname).collect()
}

fn of_keys(keys: &[u32]) -> BTreeSet<String> {
    let each = keys
        .iter()
        .flat_map(|key| [bridge_name(*key), tunnel_name(*key), name(*key)]);
    each.collect()
}

fn index(link: &str) -> serde_json::Value {
    let shown: Vec<serde_json::Value> = tools::json("ip", &["link", "show", "dev", link]).unwrap();
    shown[0]["ifindex"].clone()
}

fn up(networks: &Networks) -> Vec<(u32, bool)> {
    let tunnels = networks.tunnels(&|_| PathBuf::new());
    tunnels.iter().map(|tunnel| (tunnel.key, tunnel.up)).collect()
}

/// A process with a network namespace of its own.
struct Process(Child);

impl Process {
    fn new() -> Self {
        // It prints a line once it is in its namespace.
        let mut command = Command::new("unshare");
        command.args(["--net", "sh", "-c", "echo; exec sleep 1000"]);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        Self(child)
    }

    fn pid(&self) -> i32 {
        i32::try_from(self.0.id()).unwrap()
    }

    fn namespace(&self) -> Namespace {
        Namespace::of(self.pid()).unwrap()
    }

    /// True if `eth0` is up with its address and a route.
    fn is_connected(&self) -> bool {
        let namespace = self.namespace().open().unwrap();
        tools::ip_within(
            &namespace,
            "addr del 172.16.0.5/32 dev eth0\naddr add 172.16.0.5/32 dev eth0\n\
             route add default via 172.16.0.1 dev eth0 onlink\n",
        )
        .is_ok()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn restore_makes_missing_links_and_keeps_those_that_are_right() {
    alone(|networks| {
        let processes = [1, 2, 3].map(|_| Process::new());
        let wanted = |keys: &[u32]| -> Vec<_> {
            let one = |key: &u32| {
                let process = &processes[*key as usize - 1];
                let attachment = attachment(&networks, *key, "172.16.0.5").unwrap();
                (uuid(*key), attachment, process.pid())
            };
            keys.iter().map(one).collect()
        };
        networks.restore(&wanted(&[1, 2])).unwrap();
        assert_eq!(names(), of_keys(&[1, 2]));
        assert!(processes[0].is_connected() && processes[1].is_connected());
        let before = [index("ssx2"), index(&name(2))];
        // Links that a fault, or an agent of another version, may leave.
        tools::ip("link add ssx9 group 21331 type bridge\nlink del ssb2\n").unwrap();
        tools::nft("flush ruleset").unwrap();
        networks.restore(&wanted(&[2, 3])).unwrap();
        assert_eq!(names(), of_keys(&[2, 3]));
        let after = [index("ssx2"), index(&name(2))];
        assert_eq!(after, before, "valid links stay");
        assert_eq!(up(&networks), [(2, true), (3, true)]);
        assert!(processes[2].is_connected());
        // A process that was started before the node had networks uses the host's network.
        let older = Process(Command::new("sleep").arg("1000").spawn().unwrap());
        let attachment = attachment(&networks, 4, "172.16.0.5").unwrap();
        networks.restore(&[(uuid(4), attachment, older.pid())]).unwrap();
        assert_eq!(names(), BTreeSet::new());
    });
}

/// The tools may fail at the start of an agent, and an unknown link would be deleted later.
#[test]
fn what_a_former_agent_made_is_known_before_a_tool_runs() {
    alone(|former| {
        former.restore(&[]).unwrap();
        former
            .attach(uuid(1), &port(&former, 1), End::Machine(0))
            .unwrap();
        let (machine, process) = (
            Process(Command::new("sleep").arg("1000").spawn().unwrap()),
            Process::new(),
        );
        let tap = index(&name(1));
        let networks = Networks::open(config("u0")).unwrap();
        for (key, process) in [(1, &machine), (2, &process)] {
            let to = attachment(&networks, key, "172.16.0.5").unwrap();
            adopt(&mut locked(&networks.made), uuid(key), &to, process.pid()).unwrap();
        }
        assert_eq!(up(&networks), [(1, true), (2, false)]);
        assert_eq!(up(&networks), [(1, true), (2, true)]);
        assert!(index(&name(1)) == tap && process.is_connected());
    });
}

#[test]
fn links_that_break_while_the_agent_runs_are_made_again() {
    alone(|networks| {
        networks.restore(&[]).unwrap();
        let processes = [1, 2].map(|_| Process::new());
        for (key, process) in (1..).zip(&processes) {
            let end = End::Process(process.namespace());
            networks.attach(uuid(key), &port(&networks, key), end).unwrap();
        }
        let is_whole = || {
            let made = locked(&networks.made);
            let filter = Filter::read().unwrap();
            assert_eq!((filter.rules, filter.elements), (made.rules, 4));
            names() == of_keys(&[1, 2])
        };
        assert_eq!(up(&networks), [(1, true), (2, true)]);
        let bridge = |words: &str| tools::ip(&format!("{words}\n")).unwrap();
        let own = name(2);
        let namespace = processes[1].namespace().open().unwrap();
        let within = |words: &str| tools::ip_within(&namespace, &format!("{words}\n")).unwrap();
        let breaks: [&dyn Fn(); 17] = [
            &|| within("addr del 172.16.0.5/32 dev eth0"),
            &|| within("route del default"),
            &|| within("link set eth0 down"),
            &|| bridge("link set ssx2 mtu 1000"),
            &|| bridge("link set ssb2 mtu 1000"),
            &|| bridge(&format!("link set {own} mtu 1000")),
            &|| bridge("link del ssx2"),
            &|| bridge("link del ssb2"),
            &|| bridge("link set ssx2 down"),
            &|| bridge("link set ssx2 type vxlan learning"),
            &|| bridge("link set ssb2 type bridge mcast_snooping 1"),
            &|| bridge("link set ssx2 nomaster"),
            &|| bridge(&format!("link del {own}")),
            &|| bridge(&format!("link set {own} nomaster")),
            &|| bridge(&format!("link set {own} type bridge_slave isolated off")),
            &|| bridge(&format!("link set {own} down")),
            &|| {
                bridge(
                    "link del ssx2\nlink add name ssx2 group 21331 type vxlan id 2 local 10.0.0.1 remote 10.0.0.34 dstport 4789",
                )
            },
        ];
        for (number, act) in breaks.iter().enumerate() {
            act();
            assert_eq!(up(&networks), [(1, true), (2, false)], "{number}");
            assert_eq!(up(&networks), [(1, true), (2, true)], "{number}");
            assert!(is_whole() && processes[1].is_connected(), "{number}");
        }
        let element = format!("\"{own}\" . 02:00:ac:10:00:05 . 172.16.0.5");
        let other = format!("\"{own}\" . 02:00:ac:10:00:05 . 172.16.0.9");
        let foreign = [
            // As many rules and elements as before.
            "flush chain bridge ssntp refused\nadd rule bridge ssntp refused accept\n\
             add rule bridge ssntp refused counter accept"
                .to_owned(),
            format!(
                "delete element bridge ssntp own {{ {element} }}\nadd element bridge ssntp own {{ {other} }}"
            ),
            "add chain bridge ssntp from_instances { policy drop; }".to_owned(),
        ];
        let digest = locked(&networks.made).digest;
        for words in foreign {
            tools::nft(&words).unwrap();
            assert_ne!(Some(Filter::read().unwrap().digest), digest, "{words}");
            assert_eq!(up(&networks).len(), 2);
            assert_eq!(Some(Filter::read().unwrap().digest), digest, "{words}");
        }
        for words in [
            "flush ruleset",
            "delete table ip ssntp",
            "flush chain bridge ssntp port",
            "flush set bridge ssntp own",
        ] {
            tools::nft(words).unwrap();
            assert_eq!(up(&networks).len(), 2);
            assert!(is_whole(), "{words}");
        }
        assert_eq!(networks.faults(), 1, "what was mended counts once more");
        assert_eq!((up(&networks).len(), networks.faults()), (2, 0));
        bridge("link set u0 down");
        for _ in 0..2 {
            assert_eq!(up(&networks), [(1, false), (2, false)]);
            assert_eq!(networks.faults(), 1);
            // It is logged once.
            let why = vec!["the underlay u0 is down".to_owned()];
            assert_eq!(locked(&networks.made).faults.note(why), (vec![], vec![]));
        }
        bridge("link set u0 up");
        assert_eq!(up(&networks), [(1, true), (2, true)]);
        assert_eq!(networks.faults(), 0);
        // After the end of a process its port is not missing.
        drop(processes);
        assert_eq!(up(&networks), [(1, true), (2, true)]);
        networks.detach(uuid(1));
        networks.detach(uuid(2));
        assert_eq!(names(), BTreeSet::new());
        // A tunnel needs its underlay.
        let process = Process::new();
        let end = End::Process(process.namespace());
        networks.attach(uuid(1), &port(&networks, 1), end).unwrap();
        assert_eq!(up(&networks), [(1, true)]);
        bridge("link del u0");
        assert_eq!(up(&networks), [(1, false)]);
    });
}

/// The first of the two ports cannot be made, because its process has another `eth0`.
#[test]
fn a_port_that_cannot_be_repaired_does_not_affect_the_others() {
    alone(|networks| {
        networks.restore(&[]).unwrap();
        let processes = [1, 2].map(|_| Process::new());
        for (key, process) in (1..).zip(&processes) {
            let end = End::Process(process.namespace());
            networks.attach(uuid(key), &port(&networks, key), end).unwrap();
        }
        tools::ip(&format!("link del {}\nlink del {}\n", name(1), name(2))).unwrap();
        // Ports are repaired in the order of their names.
        let [one, two] = &processes;
        let (first, other) = if name(1) < name(2) { (one, two) } else { (two, one) };
        let namespace = first.namespace().open().unwrap();
        tools::ip_within(
            &namespace,
            "link add eth0 type bridge\naddr add 172.16.0.5/24 dev eth0\n",
        )
        .unwrap();
        assert_eq!(up(&networks), [(1, false), (2, false)]);
        assert!(other.is_connected());
    });
}

#[test]
fn packets_for_tunnels_are_filtered_at_all_addresses() {
    alone(|networks| {
        networks.restore(&[]).unwrap();
        let dropped = || {
            let chain: serde_json::Value =
                tools::json("nft", &["list", "chain", "ip", "ssntp", "tunnels"]).unwrap();
            let objects = chain["nftables"].as_array().unwrap().iter();
            let expressions = objects.filter_map(|object| object["rule"]["expr"].as_array());
            let counters = expressions
                .flatten()
                .filter_map(|it| it["counter"]["packets"].as_u64());
            counters.sum::<u64>()
        };
        let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
        sender.send_to(&[0; 16], ("127.0.0.1", 4789)).unwrap();
        // The kernel may receive the packet a little later.
        assert!((0..1000).any(|_| dropped() == 1));
    });
}

#[test]
fn a_machine_can_request_its_address_through_its_tap() {
    alone(|networks| {
        networks.restore(&[]).unwrap();
        let end = End::Machine(4711);
        networks.attach(uuid(1), &port(&networks, 1), end).unwrap();
        assert_eq!(names(), of_keys(&[1]));
        let owner = |name: &str| {
            let shown: Vec<serde_json::Value> =
                tools::json("ip", &["-d", "link", "show", "dev", name]).unwrap();
            shown[0]["linkinfo"]["info_data"]["user"].to_string()
        };
        assert!(owner(&name(1)).contains("4711"), "{}", owner(&name(1)));
        assert_eq!(Filter::read().unwrap().elements, 4);
        // No QEMU has opened the tap, so it has no carrier, but it exists.
        assert_eq!(up(&networks), [(1, true)]);
        tools::ip(&format!("link del {}\n", name(1))).unwrap();
        assert_eq!(up(&networks), [(1, false)]);
        assert_eq!(up(&networks), [(1, false)], "QEMU keeps its open tap");
        networks.detach(uuid(1));
        assert_eq!(names(), BTreeSet::new());
    });
}

/// The concentrator's DHCP server believes the MAC address in a request, not that of the sender.
#[test]
fn a_machine_requests_only_its_own_address() {
    alone(|networks| {
        networks.restore(&[]).unwrap();
        tools::nft(
            "table bridge trial { chain passed { type filter hook forward priority 0; udp dport 67 counter; }; }",
        )
        .unwrap();
        let passed = || -> String {
            let chain: serde_json::Value =
                tools::json("nft", &["list", "chain", "bridge", "trial", "passed"]).unwrap();
            chain.to_string()
        };
        let process = Process::new();
        networks
            .attach(uuid(1), &port(&networks, 1), End::Machine(0))
            .unwrap();
        // The process stands for the machine, behind the same port.
        let (name, pid) = (name(1), process.pid());
        tools::ip(&format!(
            "link del {name}\nlink add name {name} type veth peer name eth0 address 02:00:ac:10:00:05 netns {pid}\n\
             link set {name} master ssb1 up\n"
        ))
        .unwrap();
        let namespace = process.namespace().open().unwrap();
        tools::ip_within(
            &namespace,
            "addr add 172.16.0.5/24 dev eth0\nlink set eth0 up\n\
             neigh add 172.16.0.1 lladdr 02:00:ac:10:00:01 dev eth0\n",
        )
        .unwrap();
        // The bridge drops packets of a port until it has noticed that the other end is up.
        let is_up = || {
            let shown: Vec<Link> = tools::json("ip", &["link", "show", "dev", &name]).unwrap();
            shown.iter().all(|link| link.operstate == "UP")
        };
        assert!((0..1000).any(|_| is_up()));
        // The request for the address of another machine comes first, and is longer.
        let requests = [(6, 400), (5, 300)].map(|(last, len)| {
            let mut request = vec![0; len];
            request[28..34].copy_from_slice(&[2, 0, 172, 16, 0, last]);
            request
        });
        let sender = std::thread::Builder::new().spawn(move || {
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
            let socket = UdpSocket::bind("172.16.0.5:68").unwrap();
            for request in requests {
                socket.send_to(&request, "172.16.0.1:67").unwrap();
            }
        });
        sender.unwrap().join().unwrap();
        // The kernel may receive the packets a little later. It adds 28 bytes of headers.
        assert!(
            (0..1000).any(|_| passed().contains("\"bytes\":328")),
            "{}",
            passed()
        );
        networks.detach(uuid(1));
        assert_eq!(Filter::read().unwrap().elements, 0);
    });
}

#[test]
fn a_thousand_tenants_are_made_and_removed() {
    alone(|networks| {
        networks.restore(&[]).unwrap();
        let mut made = locked(&networks.made);
        for key in 1..=1000 {
            let added = made.add(uuid(key), &port(&networks, key), End::Machine(0));
            assert_eq!(added, Ok(true));
        }
        assert_eq!(networks.settle(&made, &[], &mut Vec::new()).len(), 3000);
        drop(made);
        assert_eq!(names().len(), 2000);
        networks.restore(&[]).unwrap();
        assert_eq!(names(), BTreeSet::new());
    });
}

#[test]
fn a_missing_underlay_is_named_and_an_overlap_is_refused() {
    alone(|networks| {
        let error = Networks::open(config("nowhere")).unwrap_err();
        assert!(error.contains("nowhere"), "{error}");
        let start = Start {
            networking: Networking {
                subnet: "10.0.0.0/24".into(),
                subnet_key: "5".into(),
                private_ip: "10.0.0.9".into(),
                concentrator_ip: "10.0.0.33".into(),
                ..Networking::default()
            },
            ..Start::default()
        };
        let error = asked(&networks, &start).unwrap_err();
        assert!(error.contains("overlaps the underlay"), "{error}");
    });
}

#[test]
fn a_concentrator_gets_a_free_address_of_the_underlay() {
    alone(|mut networks| {
        networks.underlay.gateway = Some([10, 0, 0, 254].into());
        let concentrator = |ip: &str| {
            let mut start = Start::default();
            start.requirements.network_node = true;
            start.networking.subnet = "10.0.0.0/16".into();
            start.networking.private_ip = ip.into();
            asked(&networks, &start)
        };
        assert!(concentrator("10.0.0.33").is_ok());
        for (ip, why) in [
            ("10.0.0.1", "belongs to this node"),
            ("10.0.0.254", "belongs to this node"),
            ("10.0.1.1", "is not an address of the underlay"),
        ] {
            let error = concentrator(ip).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
    });
}

#[test]
fn only_a_concentrator_on_a_bridge_has_a_port_on_its_host() {
    alone(|mut networks| {
        networks.restore(&[]).unwrap();
        let process = Process::new();
        let interface = Interface {
            ip: [10, 0, 0, 33].into(),
            subnet: "10.0.0.0/24".parse().unwrap(),
            mac: "02:00:0a:00:00:21".into(),
        };
        for (is_bridge, ports) in [(false, 0), (true, 1)] {
            networks.underlay.is_bridge = is_bridge;
            networks
                .attach_underlay(uuid(1), &interface, &process.namespace())
                .unwrap();
            assert_eq!(names().len(), ports);
            let missing = networks.settle(&locked(&networks.made), &links().unwrap(), &mut Vec::new());
            assert_eq!(missing, BTreeSet::new());
            networks.detach(uuid(1));
        }
    });
}

#[test]
fn the_bridge_filter_setting_is_on_only_if_it_exists_and_is_1() {
    assert!(is_on(Ok(b"1\n".to_vec())));
    assert!(!is_on(Ok(b"0\n".to_vec())));
    assert!(!is_on(Ok(Vec::new())));
    assert!(!is_on(Err(std::io::ErrorKind::NotFound.into())));
}

#[test]
fn the_limit_of_known_mac_addresses_is_low_only_if_it_exists_and_is_below_the_minimum() {
    assert!(is_low(Ok(b"1024\n".to_vec())));
    assert!(!is_low(Ok(b"65536\n".to_vec())));
    assert!(!is_low(Ok(b"x".to_vec())));
    assert!(!is_low(Err(std::io::ErrorKind::NotFound.into())));
}

#[test]
fn an_address_with_a_label_has_the_mac_address_of_its_interface() {
    alone::alone(|| {
        tools::ip("addr add 10.0.0.9/24 dev u0 label u0:1\n").unwrap();
        let networks = ssntp_cluster::machine::read("/".as_ref()).networks;
        assert_eq!(networks.len(), 2, "{networks:?}");
        assert!(
            networks.iter().all(|network| !network.mac.is_empty()),
            "{networks:?}"
        );
    });
}

/// The kernel removes the interfaces of concentrators together with that of the underlay.
#[test]
fn concentrators_are_connected_again_after_the_underlay_was_made_again() {
    alone(|mut networks| {
        networks.restore(&[]).unwrap();
        let process = Process::new();
        let interface = Interface {
            ip: [10, 0, 0, 33].into(),
            subnet: "10.0.0.0/24".parse().unwrap(),
            mac: "02:00:0a:00:00:21".into(),
        };
        for is_bridge in [false, true] {
            networks.underlay.is_bridge = is_bridge;
            let namespace = process.namespace();
            networks.attach_underlay(uuid(1), &interface, &namespace).unwrap();
            tools::ip("link del u0\nlink add u0 type bridge\naddr add 10.0.0.1/24 dev u0\nlink set u0 up\n")
                .unwrap();
            networks.tunnels(&|_| PathBuf::new());
            // This fails without the interface and its address.
            let check = "addr del 10.0.0.33/24 dev eth0\naddr add 10.0.0.33/24 dev eth0\n";
            tools::ip_within(&namespace.open().unwrap(), check).unwrap();
            let port = links().unwrap().into_iter().find(|_| is_bridge);
            assert_eq!(port.map(|it| it.master), is_bridge.then(|| "u0".to_owned()));
            networks.detach(uuid(1));
        }
    });
}

/// Otherwise a process on the host's network could take the port, or send packets into tenants' networks.
#[test]
fn only_root_uses_the_port_of_tunnels() {
    alone(|networks| {
        networks.restore(&[]).unwrap();
        let taken = UdpSocket::bind(("127.0.0.1", DEFAULT_PORT)).unwrap_err();
        assert_eq!(taken.kind(), std::io::ErrorKind::AddrInUse);
        let send = || {
            let socket = UdpSocket::bind("10.0.0.1:0").unwrap();
            socket.send_to(&[8, 0, 0, 0, 0, 0, 7, 0], ("10.0.0.1", DEFAULT_PORT))
        };
        send().unwrap();
        // A new thread is in the same network namespace, and has a user of its own.
        let other = std::thread::Builder::new().spawn(move || {
            rustix::thread::set_thread_uid(rustix::fs::Uid::from_raw(65_534)).unwrap();
            send()
        });
        let refused = other.unwrap().join().unwrap().unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::PermissionDenied);
        // A link that somebody has deleted or changed is made again.
        for words in ["link del ssv0\n", "link set ssv0 down\n"] {
            tools::ip(words).unwrap();
            networks.tunnels(&|_| PathBuf::new());
            assert!(UdpSocket::bind(("127.0.0.1", DEFAULT_PORT)).is_err(), "{words}");
        }
    });
}
