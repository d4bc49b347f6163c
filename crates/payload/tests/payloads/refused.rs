//! Bad input is refused, with the path and the line.

use std::fmt::Debug;

use ssntp::payload::*;
use ssntp_payload::*;

use super::*;

/// Checks the error of a payload: the path, the line and a part of the text.
fn refused<T: Payload + Debug>(payload: &str, path: &str, line: usize, says: &str) {
    let error = match T::decode(payload.as_bytes()) {
        Ok(value) => panic!("{payload}\nis taken: {value:?}"),
        Err(error) => error,
    };
    assert_eq!(error.path(), path, "{error}\n{payload}");
    assert_eq!(error.line(), Some(line), "{error}\n{payload}");
    assert!(error.to_string().contains(says), "{error}\n{payload}");
}

/// Checks the errors that all schemas have in common. `root` is the key around the document, and
/// `fields` has a line for each field that can be wrong, with its type.
fn bad<T: Payload + Debug>(root: Option<&str>, required: &[&str], fields: &[(&str, &str)]) {
    // Not YAML, not UTF-8, not a map.
    refused::<T>("a: [1, 2", "a[1]", 1, "not YAML");
    refused::<T>("a: 1\nb: \"x", "b", 2, "not YAML");
    refused::<T>("a: 1\n  b: 2\n", "", 2, "not YAML");
    refused::<T>("a: b: c\n", "", 1, "not YAML");
    let error = T::decode(b"a: 1\nb: \xff\n").unwrap_err();
    assert_eq!((error.line(), error.is_malformed()), (Some(2), true), "{error}");
    refused::<T>("a: 1\na: 2\n", "a", 2, "duplicate key");
    refused::<T>("deep: {a: {b: 1, b: 2}}\n", "deep.a.b", 1, "duplicate key");

    let at = |field: &str| match root {
        Some(root) => format!("{root}.{field}"),
        None => field.to_owned(),
    };
    let wrap = |line: &str| match root {
        Some(root) => format!("{root}:\n  {line}\n"),
        None => format!("\n{line}\n"),
    };
    if let Some(root) = root {
        refused::<T>(
            &format!("{root}: hello\n"),
            root,
            1,
            "expected a map, found text \"hello\"",
        );
        refused::<T>(
            &format!("{root}:\n- 1\n"),
            root,
            2,
            "expected a map, found a list",
        );
    }
    for (field, kind) in fields {
        let wrong: &[(&str, &str)] = match *kind {
            "text" => &[
                ("[a]", "expected text, found a list"),
                ("{a: 1}", "found a map"),
                ("!!binary YQ==", "binary"),
            ],
            "int" => &[
                ("lots", "expected an integer, found text \"lots\""),
                ("\"5\"", "expected an integer, found text \"5\""),
                ("5.5", "expected an integer, found number 5.5"),
                ("true", "expected an integer, found boolean true"),
                (
                    "010",
                    "expected an integer, found ambiguous number 010 (octal in YAML 1.1)",
                ),
                ("\"\"", "expected an integer, found empty text"),
                ("99999999999999999999", "expected an integer from"),
                ("[1]", "expected an integer, found a list"),
            ],
            "bool" => &[
                ("maybe", "expected a boolean, found text \"maybe\""),
                ("1", "expected a boolean, found number 1"),
                ("\"true\"", "expected a boolean, found text \"true\""),
                ("{}", "expected a boolean, found a map"),
            ],
            "list" => &[
                ("a", "expected a list, found text \"a\""),
                ("{a: 1}", "expected a list, found a map"),
            ],
            "map" => &[
                ("7", "expected a map, found number 7"),
                ("[]", "expected a map, found a list"),
            ],
            other => panic!("{other}"),
        };
        for (value, says) in wrong {
            refused::<T>(&wrap(&format!("{field}: {value}")), &at(field), 2, says);
        }
    }
    for field in required {
        // With this field only, the other required fields are missing; without it, this one is.
        let all = |left_out: &str, instead: &str| {
            let lines = required.iter().filter(|f| **f != left_out);
            let lines: Vec<_> = lines.map(|f| format!("{f}: {INSTANCE}")).collect();
            let indent = if root.is_some() { "  " } else { "" };
            let lines = lines.iter().map(|line| format!("{indent}{line}\n"));
            let root = root.map(|root| format!("{root}:\n")).unwrap_or_default();
            format!("{root}{}{indent}{instead}\n", lines.collect::<String>())
        };
        assert!(T::decode(all("", "").as_bytes()).is_ok(), "{}", all("", ""));
        for instead in [
            String::new(),
            format!("{field}: \"\""),
            format!("{field}:"),
            format!("{field}: ~"),
        ] {
            let payload = all(field, &instead);
            let error = T::decode(payload.as_bytes()).unwrap_err();
            assert_eq!(error.path(), at(field), "{error}\n{payload}");
            assert!(
                error.line().is_some_and(|line| line <= payload.lines().count()),
                "{error}\n{payload}"
            );
            assert!(!error.is_malformed());
        }
    }
    // The error names the first missing field.
    if let (Some(first), Some(root)) = (required.first(), root) {
        refused::<T>(
            &format!("{root}:\n"),
            &at(first),
            1,
            "required, and missing or empty",
        );
        refused::<T>("# nothing\n", &at(first), 1, "required, and missing or empty");
    }
}

#[test]
fn each_error_of_a_start_is_refused_with_its_place() {
    let fields = [
        ("tenant_uuid", "text"),
        ("docker_image", "text"),
        ("fw_type", "text"),
        ("persistence", "text"),
        ("vm_type", "text"),
        ("networking", "map"),
        ("requirements", "map"),
        ("requested_resources", "list"),
        ("restart", "bool"),
        ("command", "list"),
        ("env", "map"),
        ("dir", "text"),
    ];
    for (field, kind) in fields {
        let (value, says) = match kind {
            "text" => ("[]", "expected text, found a list"),
            "bool" => ("7", "expected a boolean, found number 7"),
            "list" => ("x", "expected a list, found text \"x\""),
            _ => ("x", "expected a map, found text \"x\""),
        };
        let payload = format!("start:\n  instance_uuid: {INSTANCE}\n  {field}: {value}\n");
        refused::<Start>(&payload, &format!("start.{field}"), 3, says);
        refused::<StartPayload>(&format!("{payload}---\nx"), &format!("start.{field}"), 3, says);
    }
    let with = |rest: &str| format!("start:\n  instance_uuid: {INSTANCE}\n  {rest}\n");
    let cases = [
        (
            "requirements:\n    mem_mb: lots",
            "requirements.mem_mb",
            4,
            "expected an integer",
        ),
        (
            "requirements:\n    vcpus: 1\n    network_node: 2",
            "requirements.network_node",
            5,
            "a boolean",
        ),
        (
            "networking:\n    public_ip: 1",
            "networking.public_ip",
            4,
            "expected a boolean",
        ),
        (
            "storage:\n  - id: a\n  - size: big",
            "storage[1].size",
            5,
            "expected an integer",
        ),
        (
            "storage:\n    size: big",
            "storage[0].size",
            4,
            "expected an integer",
        ),
        ("storage: big", "storage[0]", 3, "expected a map"),
        (
            "requested_resources:\n  - value: x",
            "requested_resources[0].value",
            4,
            "expected an integer",
        ),
        (
            "command: [a, [b]]",
            "command[1]",
            3,
            "expected text, found a list",
        ),
        ("env: {A: {}}", "env.A", 3, "expected text, found a map"),
        (
            "env: {[A]: b}",
            "env",
            3,
            "expected text as the key, found a list",
        ),
        ("env: {A: 1, A: 2}", "env.A", 3, "duplicate key"),
        (
            "\"odd \\n key\": {a: 1, a: 2}",
            "\"odd \\n key\".a",
            3,
            "duplicate key",
        ),
        ("vm_type: process", "command", 2, "required, and missing or empty"),
        (
            "vm_type: process\n  command: []",
            "command",
            4,
            "required, and missing or empty",
        ),
    ];
    for (rest, path, line, says) in cases {
        refused::<Start>(&with(rest), &format!("start.{path}"), line, says);
    }
    for (value, says) in [
        ("", "required, and missing or empty"),
        ("\"\"", "required, and missing or empty"),
        ("web-1", "expected a UUID that is not nil, found text \"web-1\""),
        (
            "00000000-0000-0000-0000-000000000000",
            "expected a UUID that is not nil",
        ),
        ("0f7a5a1e3c554a0b9d3c6f1f2f9a1001", "expected a UUID"),
        ("\"{0f7a5a1e-3c55-4a0b-9d3c-6f1f2f9a1001}\"", "expected a UUID"),
        ("[]", "expected text, found a list"),
    ] {
        refused::<Start>(
            &format!("start:\n  instance_uuid: {value}\n"),
            "start.instance_uuid",
            2,
            says,
        );
    }
    refused::<Start>(
        "start:\n  restart: true\n",
        "start.instance_uuid",
        2,
        "required, and missing or empty",
    );
    refused::<Start>(
        "start:\n",
        "start.instance_uuid",
        1,
        "required, and missing or empty",
    );
    refused::<Start>("start: 5\n", "start", 1, "expected a map, found number 5");
    refused::<Start>("", "start", 1, "required, and missing or empty");
    refused::<Start>("stop: {}\n", "start", 1, "required, and missing or empty");
    refused::<Start>("start: {a: [\n", "start.a[0]", 1, "not YAML");
}

#[test]
fn each_error_of_a_command_is_refused_with_its_place() {
    let two = ["instance_uuid", "workload_agent_uuid"];
    let flags = [
        ("instance_uuid", "text"),
        ("workload_agent_uuid", "text"),
        ("stop", "bool"),
    ];
    bad::<Stop>(Some("stop"), &two, &flags);
    bad::<Delete>(Some("delete"), &two, &flags);
    bad::<Restart>(
        Some("restart"),
        &two,
        &[
            ("tenant_uuid", "text"),
            ("instance_uuid", "text"),
            ("workload_agent_uuid", "text"),
            ("fw_type", "text"),
            ("persistence", "text"),
            ("networking", "map"),
            ("requirements", "map"),
            ("requested_resources", "list"),
            ("estimated_resources", "list"),
        ],
    );
    bad::<Evacuate>(
        Some("evacuate"),
        &["workload_agent_uuid"],
        &[("workload_agent_uuid", "text"), ("next_state", "text")],
    );
    bad::<Restore>(
        Some("restore"),
        &["workload_agent_uuid"],
        &[("workload_agent_uuid", "text")],
    );
    let address = [
        ("concentrator_uuid", "text"),
        ("tenant_uuid", "text"),
        ("instance_uuid", "text"),
        ("public_ip", "text"),
        ("private_ip", "text"),
        ("vnic_mac", "text"),
    ];
    bad::<AssignPublicIp>(Some("assign_public_ip"), &["concentrator_uuid"], &address);
    bad::<ReleasePublicIp>(Some("release_public_ip"), &["concentrator_uuid"], &address);
    let volume = ["instance_uuid", "volume_uuid", "workload_agent_uuid"];
    let texts = volume.map(|field| (field, "text"));
    bad::<AttachVolume>(Some("attach_volume"), &volume, &texts);
    bad::<DetachVolume>(Some("detach_volume"), &volume, &texts);
    bad::<RefreshCnci>(
        Some("cnci_refresh"),
        &["cnci_uuid"],
        &[("cnci_uuid", "text"), ("cncis", "list")],
    );
    refused::<RefreshCnci>(
        "cnci_refresh:\n  cncis:\n  - subnet: a\n  - tunnel_id: -1\n",
        "cnci_refresh.cncis[1].tunnel_id",
        4,
        "expected an integer from 0 to 4294967295, found number -1",
    );
}

#[test]
fn each_error_of_configure_is_refused_with_its_place() {
    let blocks = ["scheduler", "storage", "controller", "launcher"].map(|block| (block, "map"));
    bad::<Configure>(Some("configure"), &[], &blocks);
    for (block, field, value, says) in [
        ("scheduler", "storage_uri", "[]", "expected text"),
        ("storage", "ceph_id", "{}", "expected text"),
        ("controller", "ciao_port", "http", "expected an integer"),
        ("controller", "compute_ca", "[]", "expected text"),
        ("controller", "cnci_mem", "2GB", "expected an integer"),
        ("launcher", "disk_limit", "sometimes", "expected a boolean"),
        ("launcher", "mem_limit", "\"no\"", "expected a boolean"),
    ] {
        let payload = format!("configure:\n  {block}:\n    {field}: {value}\n");
        refused::<Configure>(&payload, &format!("configure.{block}.{field}"), 3, says);
    }
    refused::<Configure>(
        "configure:\n  launcher:\n    compute_net: {a: 1}\n",
        "configure.launcher.compute_net[0]",
        3,
        "expected text, found a map",
    );
    refused::<Configure>(
        "configure:\n  launcher:\n    mgmt_net:\n    - a\n    - [b]\n",
        "configure.launcher.mgmt_net[1]",
        5,
        "expected text, found a list",
    );
}

#[test]
fn each_error_of_stats_and_ready_is_refused_with_its_place() {
    let numbers = [
        "mem_total_mb",
        "mem_available_mb",
        "disk_total_mb",
        "disk_available_mb",
        "load",
        "cpus_online",
    ];
    let mut fields: Vec<_> = numbers.iter().map(|field| (*field, "int")).collect();
    fields.extend([("hostname", "text"), ("networks", "list"), ("node_uuid", "text")]);
    bad::<Ready>(None, &["node_uuid"], &fields);
    bad::<Maintenance>(None, &[], &fields);
    refused::<Maintenance>("load: 3\n", "node_uuid", 1, "required, and missing or empty");
    refused::<Maintenance>(
        "load: 3\nnode_uuid: ''\n",
        "node_uuid",
        2,
        "required, and missing or empty",
    );
    fields.extend([("status", "text"), ("instances", "list")]);
    bad::<Stats>(None, &["node_uuid"], &fields);
    for (line, path, says) in [
        ("ssh_port: ssh", "ssh_port", "expected an integer"),
        ("state: []", "state", "expected text"),
        ("cpu_usage: 1.5", "cpu_usage", "expected an integer"),
        ("volumes: v", "volumes", "expected a list"),
        ("volumes: [a, {}]", "volumes[1]", "expected text"),
    ] {
        let payload = format!("node_uuid: n\ninstances:\n- state: active\n- instance_uuid: i\n  {line}\n");
        refused::<Stats>(&payload, &format!("instances[1].{path}"), 5, says);
    }
    refused::<Ready>(
        "node_uuid: n\nnetworks: [{ip: []}]\n",
        "networks[0].ip",
        2,
        "expected text",
    );
    refused::<Ready>("- a\n", "", 1, "expected a map, found a list");
    refused::<Ready>("hello", "", 1, "expected a map, found text \"hello\"");
    refused::<Ready>("node_uuid: n\n---\nload: 1\n", "", 2, "a second document");
    refused::<Ready>("", "node_uuid", 1, "required, and missing or empty");
}

#[test]
fn each_error_of_an_event_is_refused_with_its_place() {
    let tenant = [
        ("agent_uuid", "text"),
        ("agent_ip", "text"),
        ("tenant_uuid", "text"),
        ("tenant_subnet", "text"),
        ("concentrator_uuid", "text"),
        ("concentrator_ip", "text"),
        ("subnet_key", "int"),
    ];
    bad::<TenantAdded>(Some("tenant_added"), &["concentrator_uuid"], &tenant);
    bad::<TenantRemoved>(Some("tenant_removed"), &["concentrator_uuid"], &tenant);
    bad::<InstanceDeleted>(Some("instance_deleted"), &[], &[("instance_uuid", "text")]);
    bad::<InstanceStopped>(Some("instance_stopped"), &[], &[("instance_uuid", "text")]);
    let concentrator = [
        "instance_uuid",
        "tenant_uuid",
        "concentrator_ip",
        "concentrator_mac",
    ];
    let concentrator = concentrator.map(|field| (field, "text"));
    bad::<ConcentratorInstanceAdded>(Some("concentrator_instance_added"), &[], &concentrator);
    let address = ["concentrator_uuid", "instance_uuid", "public_ip", "private_ip"];
    let address = address.map(|field| (field, "text"));
    bad::<PublicIpAssigned>(Some("public_ip_assigned"), &[], &address);
    bad::<PublicIpUnassigned>(Some("public_ip_unassigned"), &[], &address);
    let node = [("node_uuid", "text"), ("node_type", "text")];
    bad::<NodeConnected>(Some("node_connected"), &[], &node);
    bad::<NodeDisconnected>(Some("node_disconnected"), &[], &node);
    bad::<TraceReport>(None, &[], &[("frames", "list")]);
    refused::<TraceReport>(
        "frames:\n- label: a\n  nodes:\n  - ssntp_role: []\n",
        "frames[0].nodes[0].ssntp_role",
        4,
        "expected text",
    );
}

#[test]
fn each_error_of_a_failure_is_refused_with_its_place() {
    let instance = [
        ("node_uuid", "text"),
        ("instance_uuid", "text"),
        ("reason", "text"),
    ];
    bad::<StopFailure>(None, &[], &instance);
    bad::<DeleteFailure>(None, &[], &instance);
    bad::<RestartFailure>(None, &[], &instance);
    let mut start = instance.to_vec();
    start.push(("restart", "bool"));
    bad::<StartFailure>(None, &[], &start);
    let mut volume = instance.to_vec();
    volume.push(("volume_uuid", "text"));
    bad::<AttachVolumeFailure>(None, &[], &volume);
    bad::<DetachVolumeFailure>(None, &[], &volume);
    let address = [
        "concentrator_uuid",
        "tenant_uuid",
        "instance_uuid",
        "public_ip",
        "private_ip",
        "vnic_mac",
        "reason",
    ];
    let address = address.map(|field| (field, "text"));
    bad::<AssignPublicIpFailure>(None, &[], &address);
    bad::<UnassignPublicIpFailure>(None, &[], &address);
    bad::<InvalidFrameType>(
        None,
        &[],
        &[("type", "int"), ("operand", "int"), ("reason", "text")],
    );
    refused::<InvalidFrameType>(
        "type: 4\noperand: 256\n",
        "operand",
        2,
        "expected an integer from 0 to 255, found number 256",
    );
}

#[test]
fn errors_repeat_little_of_what_a_peer_sent() {
    let long = "x".repeat(10_000);
    let error = Ready::decode(format!("load: \"{long}\"").as_bytes()).unwrap_err();
    assert!(error.to_string().len() < 200, "{error}");
    let error = Ready::decode(format!("? {long}\n: {{a: 1, a: 2}}").as_bytes()).unwrap_err();
    assert!(error.to_string().len() < 200, "{error}");
    let error = Ready::decode(b"load: \"\\e[31m\\n\"").unwrap_err();
    assert!(error.to_string().contains(r#"text "\u{1b}[31m\n""#), "{error}");
}

#[test]
fn a_broken_command_is_named_although_user_data_has_its_key() {
    let payload = "start:\n  tenant_uuid: \"x\n---\nstart: at noon\n";
    let error = StartPayload::decode(payload.as_bytes()).unwrap_err();
    assert!(error.is_malformed(), "{error}");
}
