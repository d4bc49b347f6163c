//! STATS, READY, MAINTENANCE, CONFIGURE, TraceReport and InvalidFrameType.

use ssntp::payload;
use ssntp::payload::*;
use ssntp_payload::*;

use super::*;

#[test]
fn stats_are_read_and_written_back() {
    let decoded: Stats = current(&fixture("STATS"));
    let expected = Stats {
        node_uuid: NODE.into(),
        status: NodeStatus::Ready,
        mem_total_mb: 64000,
        mem_available_mb: 48211,
        disk_total_mb: 500_000,
        disk_available_mb: 256_000,
        load: 3,
        cpus_online: 16,
        hostname: "rack1-n07".to_owned(),
        networks: vec![NodeNetwork {
            ip: "10.0.0.7".to_owned(),
            mac: "52:54:00:12:34:56".to_owned(),
        }],
        instances: vec![
            InstanceStats {
                instance_uuid: INSTANCE.into(),
                state: InstanceState::Active,
                ssh_ip: "10.0.0.33".into(),
                ssh_port: 33005,
                memory_usage_mb: 410,
                disk_usage_mb: 900,
                cpu_usage: 12,
                volumes: vec![VOLUME.into()],
                ..InstanceStats::default()
            },
            InstanceStats {
                instance_uuid: SECOND_INSTANCE.into(),
                state: InstanceState::Pending,
                ..InstanceStats::default()
            },
        ],
        ..Stats::default()
    };
    assert_eq!(decoded, expected);
}

/// Keys of this project, which others ignore.
#[test]
fn stats_have_the_end_and_the_name_of_instances() {
    let written = |instance: &InstanceStats| {
        let stats = Stats {
            node_uuid: NODE.into(),
            instances: vec![instance.clone()],
            ..Stats::default()
        };
        survives(&stats);
        text(&stats.encode()).to_owned()
    };
    let nothing = written(&InstanceStats::default());
    for key in [
        "restart", "name", "labels", "started", "ended", "exit_", "memory:", "detail", "health",
    ] {
        assert!(!nothing.contains(&format!("  {key}")), "{key}: {nothing}");
    }
    let ended = InstanceStats {
        name: "web".into(),
        labels: [("tier".to_owned(), "1".to_owned())].into(),
        started: "2026-01-21T12:53:20.123Z".into(),
        ended: "2026-01-21T12:54:20Z".into(),
        exit_code: 0,
        exit_signal: 9,
        out_of_memory: true,
        detail: "it was killed".into(),
        health: HealthState::Unhealthy,
        health_since: "2026-01-21T12:53:40Z".into(),
        health_detail: "port 80: refused".into(),
        ..InstanceStats::default()
    };
    assert!(written(&ended).contains("  exit_code: 0\n"), "0 is not unknown");
    assert!(written(&ended).contains("  health: unhealthy\n  health_since: "));
    let waits = InstanceStats {
        restart_due: true,
        ..ended
    };
    assert!(written(&waits).contains("  restart_due: true\n"));
}

/// A key of this project, which others ignore.
#[test]
fn stats_have_their_interval_if_it_is_known() {
    let stats = Stats {
        node_uuid: NODE.into(),
        ..Stats::default()
    };
    let text = |stats: &Stats| String::from_utf8(stats.encode().to_vec()).unwrap();
    assert!(!text(&stats).contains("interval"));
    let stats = Stats {
        interval: 30,
        ..stats
    };
    assert!(text(&stats).contains("\ninterval: 30\n"));
    assert_eq!(Stats::decode(text(&stats).as_bytes()).unwrap().interval, 30);
}

#[test]
fn ready_is_read_and_written_back() {
    let decoded: Ready = current(&fixture("READY"));
    assert_eq!(decoded.node_uuid, NODE);
    assert_eq!(decoded.mem_total_mb, 64000);
    assert_eq!(decoded.mem_available_mb, 48211);
    assert_eq!(decoded.disk_total_mb, 500_000);
    assert_eq!(decoded.disk_available_mb, 256_000);
    assert_eq!((decoded.load, decoded.cpus_online), (3, 16));
    assert_eq!(decoded.networks[0].ip, "10.0.0.7");
    assert_eq!(decoded.networks[0].mac, "52:54:00:12:34:56");
    assert_eq!(decoded.hostname, "rack1-n07");
}

/// A key of this project, which others ignore.
#[test]
fn nodes_tell_their_labels_if_they_have_some() {
    assert!(!text(&Ready::default().encode()).contains("labels"));
    assert!(!text(&Stats::default().encode()).contains("labels"));
    let labels: std::collections::BTreeMap<_, _> = [("zone".to_owned(), "1".to_owned())].into();
    let ready = Ready {
        node_uuid: NODE.into(),
        labels: labels.clone(),
        ..Ready::default()
    };
    survives(&ready);
    survives(&Stats {
        node_uuid: NODE.into(),
        labels,
        ..Stats::default()
    });
    let read = |labels: &str| Ready::decode(format!("node_uuid: {NODE}\nlabels: {labels}\n").as_bytes());
    assert_eq!(read("{zone: 1}").unwrap().labels, ready.labels);
    for wrong in ["{'a b': c}", "{'': c}", "[zone]"] {
        assert!(read(wrong).is_err(), "{wrong}");
    }
    let many: Vec<_> = (0..=MAX_LABELS).map(|n| format!("l{n}: x")).collect();
    let error = read(&format!("{{{}}}", many.join(", "))).unwrap_err();
    assert!(error.to_string().contains("more than 32 labels"), "{error}");
}

#[test]
fn maintenance_has_the_payload_of_ready_or_none() {
    for payload in ["", "\n", "# nothing\n", "---\n...\n", "~\n"] {
        let nothing = Maintenance::decode(payload.as_bytes()).unwrap();
        assert_eq!(nothing.ready, None);
        assert!(nothing.encode().is_empty());
    }
    let decoded: Maintenance = current(&fixture("READY"));
    assert_eq!(decoded.ready.unwrap().hostname, "rack1-n07");
}

#[test]
fn configure_is_read_and_written_back() {
    let decoded: Configure = current(&fixture("CONFIGURE_and_CONNECTED"));
    let network = || vec!["10.0.0.0/24".to_owned()];
    let expected = Configure {
        scheduler: SchedulerConfig {
            storage_uri: "file:///etc/ciao/configuration.yaml".to_owned(),
        },
        storage: StorageConfig {
            ceph_id: "ciao".to_owned(),
        },
        controller: ControllerConfig {
            ciao_port: 8889,
            compute_ca: "/etc/pki/ciao/controller_cert.pem".to_owned(),
            compute_cert: "/etc/pki/ciao/controller_key.pem".to_owned(),
            cnci_vcpus: 4,
            cnci_mem: 2048,
            cnci_disk: 2048,
            admin_ssh_key: "ssh-ed25519 AAAA example".to_owned(),
            client_auth_ca_cert_path: "/etc/pki/ciao/auth-CA.pem".to_owned(),
            cnci_net: "192.168.0.0".to_owned(),
        },
        launcher: LauncherConfig {
            compute_net: network(),
            mgmt_net: network(),
            disk_limit: true,
            mem_limit: true,
            child_user: "ciao".to_owned(),
        },
    };
    assert_eq!(decoded, expected);
    assert_eq!(decoded.validate(), Ok(()));
}

#[test]
fn older_configure_takes_single_networks_and_ignores_older_keys() {
    let decoded: Configure = older(&fixture("old2016_CONFIGURE"));
    assert_eq!(decoded.scheduler.storage_uri, "/etc/ciao/ciao.json");
    assert_eq!(decoded.controller.compute_ca, "/etc/pki/ciao/compute_ca.pem");
    assert_eq!(decoded.controller.compute_cert, "/etc/pki/ciao/compute_key.pem");
    assert_eq!(decoded.controller.ciao_port, 8889);
    assert_eq!(decoded.controller.cnci_net, "192.168.0.0");
    assert_eq!(decoded.launcher.compute_net, ["10.0.0.0/24"]);
    assert_eq!(decoded.launcher.mgmt_net, ["10.0.0.0/24"]);
    assert!(decoded.launcher.disk_limit && decoded.launcher.mem_limit);
    assert_eq!(decoded.validate(), Ok(()));

    let decoded: Configure = older(&fixture("old2017_CONFIGURE"));
    let expected = Configure {
        scheduler: SchedulerConfig {
            storage_uri: "file:///etc/ciao/configuration.yaml".to_owned(),
        },
        storage: StorageConfig {
            ceph_id: "ciao".to_owned(),
        },
        ..Configure::default()
    };
    assert_eq!(decoded, expected);
    assert_eq!(decoded.validate(), Ok(()));
}

#[test]
fn empty_configure_has_every_default() {
    for document in [
        "",
        "\n",
        "# nothing\n",
        "---\n",
        "configure:\n",
        "configure: {}\n",
        "other: 1\n",
    ] {
        let decoded = Configure::decode(document.as_bytes()).unwrap();
        assert_eq!(decoded, Configure::default(), "{document:?}");
        assert_eq!(decoded.controller.cnci_mem, 2048);
        assert!(decoded.launcher.disk_limit);
    }
}

#[test]
fn configure_values_are_checked_with_path_and_line() {
    let cases = [
        (
            "scheduler:\n    storage_uri: ciao.json",
            "scheduler.storage_uri",
            3,
        ),
        (
            "scheduler:\n    storage_uri: file://%zz",
            "scheduler.storage_uri",
            3,
        ),
        (
            "scheduler:\n    storage_uri: \"file:\"",
            "scheduler.storage_uri",
            3,
        ),
        (
            "scheduler:\n    storage_uri: \"/a\\nb\"",
            "scheduler.storage_uri",
            3,
        ),
        (
            "controller:\n    compute_ca: cert.pem",
            "controller.compute_ca",
            3,
        ),
        ("controller:\n    compute_cert: a b", "controller.compute_cert", 3),
        (
            "controller:\n    client_auth_ca_cert_path: x",
            "controller.client_auth_ca_cert_path",
            3,
        ),
        ("controller:\n    ciao_port: 0", "controller.ciao_port", 3),
        ("controller:\n    ciao_port: 65536", "controller.ciao_port", 3),
        ("controller:\n    cnci_vcpus: -1", "controller.cnci_vcpus", 3),
        ("controller:\n    cnci_mem: 99999999999", "controller.cnci_mem", 3),
        ("controller:\n    cnci_disk: 0", "controller.cnci_disk", 3),
        ("controller:\n    cnci_net: here", "controller.cnci_net", 3),
        (
            "launcher:\n    compute_net: 10.0.0.0",
            "launcher.compute_net[0]",
            3,
        ),
        (
            "launcher:\n    mgmt_net:\n    - 10.0.0.0/8\n    - 10.0.0.0/33",
            "launcher.mgmt_net[1]",
            5,
        ),
        (
            "launcher:\n    mgmt_net: [\"fd00::/129\"]",
            "launcher.mgmt_net[0]",
            3,
        ),
    ];
    for (lines, path, line) in cases {
        let document = format!("configure:\n  {lines}\n");
        let error = Configure::decode_valid(document.as_bytes()).unwrap_err();
        assert_eq!(error.path(), format!("configure.{path}"), "{document}{error}");
        assert_eq!(error.line(), Some(line), "{document}{error}");
        assert!(!error.is_malformed());
        let decoded = Configure::decode(document.as_bytes()).unwrap();
        assert_eq!(decoded.validate().unwrap_err().path(), error.path());
    }
    let fine =
        "configure:\n  scheduler: {storage_uri: \"https://a/%20b\"}\n  launcher: {mgmt_net: [fd00::/8]}\n";
    assert!(Configure::decode_valid(fine.as_bytes()).is_ok());
}

#[test]
fn invalid_configuration_returns_the_refused_payload() {
    for refused in [
        &fixture("CONFIGURE_and_CONNECTED")[..],
        b"not: [yaml",
        b"\xff",
        b"",
    ] {
        let decoded = InvalidConfiguration::decode(refused).unwrap();
        assert_eq!(decoded.refused, refused);
        assert_eq!(decoded.encode(), refused);
    }
}

#[test]
fn a_trace_report_is_read_and_written_back() {
    let decoded: TraceReport = current(&fixture("TraceReport"));
    let [frame] = &decoded.frames[..] else {
        panic!("{decoded:?}")
    };
    assert_eq!(frame.label, "job-17");
    assert_eq!((&*frame.frame_type, &*frame.operand), ("COMMAND", "START"));
    assert_eq!(frame.start_timestamp, "2017-07-14T02:40:00.000000005Z");
    assert_eq!(
        timestamp::parse(&frame.end_timestamp),
        Some(1_500_000_000_250_000_000)
    );
    let nodes: Vec<_> = frame
        .nodes
        .iter()
        .map(|n| (n.ssntp_node_uuid.as_str(), &*n.ssntp_role))
        .collect();
    assert_eq!(
        nodes,
        [
            (TENANT, "Controller"),
            (CNCI, "Scheduler"),
            (NODE, "CNAgent-NetworkingAgent")
        ]
    );
    assert_eq!(frame.nodes[0].tx_timestamp, "2017-07-14T02:40:00.1Z");
    assert_eq!(frame.nodes[0].rx_timestamp, "");
    assert_eq!(frame.nodes[2].tx_timestamp, "");
    assert_eq!(frame.nodes[2].rx_timestamp, "2017-07-14T02:40:00.2Z");
}

#[test]
fn a_trace_report_of_frames_equals_that_of_the_peer_library() {
    use ssntp::Role;
    use ssntp::proto::{Command, Frame, Trace, TraceNode};

    const START: u64 = 1_500_000_000_000_000_000;
    let mut trace = Trace::new("job-17");
    (trace.start, trace.end) = (START + 5, START + 250_000_000);
    for (uuid, role, received_at, sent_at) in [
        (TENANT, Role::CONTROLLER, 0, START + 100_000_000),
        (CNCI, Role::SCHEDULER, START + 110_000_000, START + 120_000_000),
        (NODE, Role::AGENT | Role::NETAGENT, START + 200_000_000, 0),
    ] {
        let uuid = uuid.parse().unwrap();
        trace.push(TraceNode {
            uuid,
            role,
            received_at,
            sent_at,
        });
    }
    let traced = Frame::new(Command::START).traced(trace);
    let report = TraceReport::from_frames([&Frame::new(Command::STOP), &traced]);
    assert_eq!(report, TraceReport::decode(&fixture("TraceReport")).unwrap());
}

#[test]
fn an_invalid_frame_type_is_read_and_written_back() {
    let decoded: InvalidFrameType = current(b"type: 0\noperand: 119\nreason: unsupported_operand\n");
    assert_eq!((decoded.frame_type, decoded.operand), (0, 119));
    assert_eq!(decoded.reason, InvalidFrameTypeReason::UnsupportedOperand);
    assert_eq!(decoded.refused().to_string(), "COMMAND/0x77");
    assert_eq!(
        InvalidFrameType::new(decoded.refused(), decoded.reason.clone()),
        decoded
    );
}

#[test]
fn a_frame_of_another_kind_is_refused() {
    use ssntp::proto::{Command, Frame, Status};

    let ready = Ready {
        node_uuid: NODE.into(),
        ..Ready::default()
    };
    let frame = Frame::of(&ready);
    assert_eq!(frame.kind(), Status::READY);
    assert_eq!(frame.payload(), Ok(ready));
    let error = frame.payload::<Stats>().unwrap_err();
    assert_eq!(
        error,
        payload::Error::OtherKind {
            expected: Command::STATS.into(),
            found: Status::READY.into(),
        }
    );
    assert_eq!(
        error.to_string(),
        "cannot read a payload of STATS from a READY frame"
    );
}
