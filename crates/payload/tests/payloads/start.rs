//! START: the command in its current and older forms, and its documents.

use ssntp::payload::*;
use ssntp_payload::*;

use super::*;

/// A command of two lines, as it is read and not written.
const COMMAND: &str = "start:\n  instance_uuid: 0f7a5a1e-3c55-4a0b-9d3c-6f1f2f9a1001\n";

fn networking() -> Networking {
    Networking {
        vnic_mac: "02:42:ac:10:00:05".to_owned(),
        vnic_uuid: "2b1d4c6e-9f80-4a3b-8c2d-1e0f9a8b7c6d".into(),
        concentrator_uuid: CNCI.into(),
        concentrator_ip: "10.0.0.33".to_owned(),
        subnet: "172.16.0.0/24".to_owned(),
        subnet_key: "4096".to_owned(),
        subnet_uuid: "d9b2d63d-a233-4123-847a-7090f1c2e301".into(),
        private_ip: "172.16.0.5".to_owned(),
        public_ip: false,
    }
}

#[test]
fn a_start_of_a_virtual_machine_is_read_and_written_back() {
    let decoded: Start = current(&fixture("START"));
    let expected = Start {
        tenant_uuid: TENANT.into(),
        instance_uuid: INSTANCE.parse().unwrap(),
        fw_type: FwType::Legacy,
        persistence: Persistence::Host,
        vm_type: VmType::Qemu,
        networking: networking(),
        storage: vec![Storage {
            id: VOLUME.into(),
            boot: true,
            boot_index: 1,
            ephemeral: true,
            tag: "rootfs".to_owned(),
            size: 20,
            ..Storage::default()
        }],
        requirements: Requirements {
            mem_mb: 512,
            vcpus: 2,
            node_id: NODE.into(),
            hostname: "rack1-n07".to_owned(),
            ..Requirements::default()
        },
        ..Start::default()
    };
    assert_eq!(decoded, expected);
}

#[test]
fn a_start_of_a_concentrator_is_read_and_written_back() {
    let decoded: Start = current(&fixture("START_cnci"));
    let expected = Start {
        tenant_uuid: TENANT.into(),
        instance_uuid: CNCI.parse().unwrap(),
        fw_type: FwType::Efi,
        persistence: Persistence::Vm,
        vm_type: VmType::Qemu,
        networking: Networking {
            vnic_mac: "02:42:0a:00:00:21".to_owned(),
            vnic_uuid: "2b1d4c6e-9f80-4a3b-8c2d-1e0f9a8b7c6d".into(),
            ..Networking::default()
        },
        storage: vec![Storage {
            id: VOLUME.into(),
            boot: true,
            ..Storage::default()
        }],
        requirements: Requirements {
            mem_mb: 2048,
            vcpus: 4,
            network_node: true,
            ..Requirements::default()
        },
        ..Start::default()
    };
    assert_eq!(decoded, expected);
}

#[test]
fn a_start_of_a_container_is_read_and_written_back() {
    let decoded: Start = current(&fixture("START_docker"));
    let expected = Start {
        tenant_uuid: TENANT.into(),
        instance_uuid: SECOND_INSTANCE.parse().unwrap(),
        docker_image: "example/web:1".to_owned(),
        fw_type: FwType::Unset,
        persistence: Persistence::All,
        vm_type: VmType::Docker,
        networking: networking(),
        requirements: Requirements {
            mem_mb: 128,
            vcpus: 1,
            privileged: true,
            ..Requirements::default()
        },
        restart: true,
        ..Start::default()
    };
    assert_eq!(decoded, expected);
}

#[test]
fn a_start_of_a_process_is_read_and_written_back() {
    let document = format!(
        "start:
  tenant_uuid: {TENANT}
  instance_uuid: {INSTANCE}
  docker_image: \"\"
  fw_type: \"\"
  persistence: \"\"
  vm_type: process
  networking:
    vnic_mac: \"\"
    vnic_uuid: \"\"
    concentrator_uuid: \"\"
    concentrator_ip: \"\"
    subnet: \"\"
    subnet_key: \"\"
    subnet_uuid: \"\"
    private_ip: \"\"
    public_ip: false
  requirements:
    mem_mb: 64
    vcpus: 1
  restart: false
  command:
  - /bin/sleep
  - \"60\"
  env:
    EMPTY: \"\"
    LANG: C
  dir: /tmp
"
    );
    let decoded: Start = current(document.as_bytes());
    assert_eq!(decoded.vm_type, VmType::Process);
    assert_eq!(decoded.command, ["/bin/sleep", "60"]);
    assert_eq!(decoded.env["EMPTY"], "");
    assert_eq!(decoded.env["LANG"], "C");
    assert_eq!(decoded.dir, "/tmp");
    assert_eq!(decoded.requirements.mem_mb, 64);
}

#[test]
fn older_forms_are_read_and_not_written() {
    let decoded: Start = older(&fixture("old2017_START"));
    let expected = Start {
        tenant_uuid: TENANT.into(),
        instance_uuid: INSTANCE.parse().unwrap(),
        fw_type: FwType::Legacy,
        persistence: Persistence::Host,
        vm_type: VmType::Qemu,
        networking: networking(),
        storage: vec![
            Storage {
                id: VOLUME.into(),
                boot: true,
                ..Storage::default()
            },
            Storage {
                local: true,
                swap: true,
                tag: "swap0".to_owned(),
                size: 8,
                ..Storage::default()
            },
        ],
        requirements: Requirements {
            mem_mb: 512,
            vcpus: 2,
            ..Requirements::default()
        },
        ..Start::default()
    };
    assert_eq!(decoded, expected);
    assert!(!text(&decoded.encode()).contains("resources"));

    let decoded: Start = older(&fixture("old2016_START"));
    let image = Storage {
        id: "59460b8a-5f53-4e3e-b5ce-b71fed8c7e64".into(),
        boot: true,
        local: true,
        ..Storage::default()
    };
    let expected = Start {
        fw_type: FwType::Efi,
        storage: vec![image],
        ..expected
    };
    assert_eq!(decoded, expected);
}

#[test]
fn resources_are_requested_or_estimated() {
    let resources = "  requested_resources:
  - {type: network_node, value: 1, mandatory: true}
  - {type: vcpus, value: 2}
  estimated_resources:
  - {type: vcpus, value: 1}
  - {type: mem_mb, value: 300}
";
    let decoded: Start = older(format!("{COMMAND}{resources}").as_bytes());
    let expected = Requirements {
        mem_mb: 300,
        vcpus: 2,
        network_node: true,
        ..Requirements::default()
    };
    assert_eq!(decoded.requirements, expected);
    let decoded: Start = older(format!("{COMMAND}{resources}  requirements: {{mem_mb: 7}}\n").as_bytes());
    assert_eq!((decoded.requirements.mem_mb, decoded.requirements.vcpus), (7, 0));
}

#[test]
fn storage_may_be_a_single_map() {
    let decoded: Start = older(format!("{COMMAND}  storage: {{id: v, size: 3}}\n").as_bytes());
    let expected = Storage {
        id: "v".into(),
        size: 3,
        ..Storage::default()
    };
    assert_eq!(decoded.storage, [expected]);
}

#[test]
fn a_command_without_an_instance_is_refused() {
    let error = Start::decode(&fixture("START_minimal")).unwrap_err();
    assert_eq!(
        error.to_string(),
        "start.instance_uuid: required, and missing or empty (line 3, column 18)"
    );
}

#[test]
fn missing_keys_have_their_defaults() {
    let decoded: Start = older(COMMAND.as_bytes());
    let expected = Start {
        instance_uuid: INSTANCE.parse().unwrap(),
        ..Start::default()
    };
    assert_eq!(decoded, expected);
}

/// Reads a payload and checks its raw documents, and that writing does not change them.
fn documents(payload: &str, user_data: Option<&str>, meta_data: Option<&str>) {
    let decoded = StartPayload::decode(payload.as_bytes()).unwrap_or_else(|e| panic!("{e}\n{payload}"));
    let given = |document: &Option<RawDocument>| document.as_ref().map(|d| d.as_text().unwrap().to_owned());
    assert_eq!(given(&decoded.user_data).as_deref(), user_data, "{payload}");
    assert_eq!(given(&decoded.meta_data).as_deref(), meta_data, "{payload}");
    assert_eq!(decoded.start.instance_uuid.to_string(), INSTANCE);
    survives(&decoded);
}

#[test]
fn documents_are_found_around_the_command() {
    let (user, meta) = (
        "#cloud-config\nusers:\n- a\n",
        "{\"uuid\": 1,\n \"hostname\": \"h\"}\n",
    );
    documents(COMMAND, None, None);
    documents(&format!("---\n{COMMAND}...\n"), None, None);
    documents(&format!("{COMMAND}---\n{meta}"), None, Some(meta));
    documents(
        &format!("{COMMAND}---\n{user}---\n{meta}"),
        Some(user),
        Some(meta),
    );
    documents(
        &format!("---\n{COMMAND}...\n---\n{user}...\n---\n{meta}...\n"),
        Some(user),
        Some(meta),
    );
    documents(
        &format!("{user}---\n{COMMAND}---\n{meta}"),
        Some(user),
        Some(meta),
    );
    documents(
        &format!("{user}---\n{meta}---\n{COMMAND}"),
        Some(user),
        Some(meta),
    );
    documents(&format!("{meta}---\n{COMMAND}"), None, Some(meta));
    documents(&format!("{COMMAND}---\n{user}---\n"), Some(user), None);
    documents(&format!("{COMMAND}---\n---\n{meta}"), None, Some(meta));
    documents(&format!("{COMMAND}---\n"), None, None);
    documents(
        &format!("{COMMAND}---\n{user}---\n{meta}---\nmore: 1\n"),
        Some(user),
        Some(meta),
    );
}

#[test]
fn documents_of_any_bytes_stay_unchanged() {
    for raw in [
        "#!/bin/sh\necho '{[' | start: \n\tstart\n",
        "start a thing: [never closed\n",
        "  blanks   \r\n\r\n\n\n",
        "no line break at the end",
        "\u{feff}bom, \u{0}nul, \u{85}next line\n",
        "----\n--\n ---\n....\n",
    ] {
        documents(&format!("{COMMAND}---\n{raw}"), None, Some(raw));
        let user_data = format!("{raw}\n");
        documents(
            &format!("{COMMAND}---\n{user_data}---\n{raw}"),
            Some(&user_data),
            Some(raw),
        );
    }
    for raw in ["--- a: 1\n", "---\n", "... x\ny\n"] {
        let payload = format!("{COMMAND}--- {raw}--- {raw}");
        documents(&payload, Some(raw), Some(raw));
    }
    let long = "x".repeat(3 << 20);
    documents(
        &format!("{long}\n---\n{COMMAND}---\n{long}"),
        Some(&format!("{long}\n")),
        Some(&long),
    );

    let binary = [COMMAND.as_bytes(), b"---\n\xff\xfe\x00"].concat();
    let decoded = StartPayload::decode(&binary).unwrap();
    assert_eq!(
        &decoded.meta_data.as_ref().unwrap().as_bytes()[..],
        b"\xff\xfe\x00"
    );
    assert_eq!(decoded.meta_data.as_ref().unwrap().as_text(), None);
    survives(&decoded);
}

#[test]
fn a_document_cannot_hold_a_marker() {
    assert_eq!(RawDocument::new("a\n---\nb\n"), Err(MarkerInside { line: 2 }));
    assert_eq!(RawDocument::new("..."), Err(MarkerInside { line: 1 }));
    assert_eq!(RawDocument::new("a\n--- b"), Err(MarkerInside { line: 2 }));
    assert_eq!(
        RawDocument::new("...\r\n").unwrap_err().to_string(),
        "line 1 separates documents (--- or ...)"
    );
    assert!(RawDocument::new("a ---\n----\n").is_ok());
}

#[test]
fn a_document_without_a_line_break_gets_one_before_the_next() {
    let start = StartPayload {
        user_data: Some(RawDocument::new("#cloud-config").unwrap()),
        meta_data: Some(RawDocument::new("{}").unwrap()),
        ..StartPayload::decode(COMMAND.as_bytes()).unwrap()
    };
    assert!(text(&start.encode()).ends_with("---\n#cloud-config\n---\n{}"));
}

#[test]
fn the_error_of_a_broken_payload_is_about_its_command() {
    // The error of the broken command, with its line in the payload.
    let payload = format!("#cloud-config\nruncmd: [\n---\n{COMMAND}  networking: [\n");
    let error = StartPayload::decode(payload.as_bytes()).unwrap_err();
    assert!(error.is_malformed());
    assert!(error.line() >= Some(6), "{error}");
    let payload = format!("a: 1\n---\n{COMMAND}  restart: 5\n");
    let error = StartPayload::decode(payload.as_bytes()).unwrap_err();
    assert_eq!((error.path().as_str(), error.line()), ("start.restart", Some(5)));
    // No command at all.
    let error = StartPayload::decode(b"a: 1\n---\nb: 2\n").unwrap_err();
    assert_eq!(
        error.to_string(),
        "start: required, and missing or empty (line 1, column 1)"
    );
    // A command as JSON.
    documents(
        &format!("{{\"start\": {{\"instance_uuid\": \"{INSTANCE}\"}}}}"),
        None,
        None,
    );
}

#[test]
fn an_instance_has_a_name_and_labels_within_their_bounds() {
    let with = |keys: &str| Start::decode(format!("{COMMAND}{keys}").as_bytes());
    let start = with("  name: web-1.a_b\n  labels: {app/tier: front end, n: 1, e: ''}\n").unwrap();
    assert_eq!(start.name, "web-1.a_b");
    let labels: Vec<_> = start
        .labels
        .iter()
        .map(|(k, v)| (k.as_str(), v.as_str()))
        .collect();
    assert_eq!(labels, [("app/tier", "front end"), ("e", ""), ("n", "1")]);
    survives(&start);
    let plain = with("").unwrap();
    assert_eq!((plain.name.as_str(), plain.labels.len()), ("", 0));
    assert!(!text(&plain.encode()).contains("labels"));

    let long = "a".repeat(MAX_LABEL + 1);
    let many = (0..=MAX_LABELS)
        .map(|n| format!("k{n}: v"))
        .collect::<Vec<_>>()
        .join(", ");
    for keys in [
        "  name: a b\n".to_owned(),
        "  name: -a\n".to_owned(),
        "  name: \u{e9}\n".to_owned(),
        format!("  name: {long}\n"),
        format!("  name: {INSTANCE}\n"),
        "  labels: {a b: c}\n".to_owned(),
        "  labels: {'': c}\n".to_owned(),
        format!("  labels: {{{long}: c}}\n"),
        format!("  labels: {{a: {long}}}\n"),
        "  labels: {a: \"b\\nc\"}\n".to_owned(),
        "  labels: {a: \"\\e[31m\"}\n".to_owned(),
        "  labels: {a: \"\\u202e\"}\n".to_owned(),
        format!("  labels: {{{many}}}\n"),
    ] {
        let error = with(&keys).unwrap_err();
        let at = if keys.starts_with("  name") {
            "start.name"
        } else {
            "start.labels"
        };
        assert!(
            error.path().starts_with(at) && !error.is_malformed(),
            "{keys}: {error}"
        );
    }
}

/// A key of this project, which others ignore.
#[test]
fn instances_to_stay_apart_from_are_left_out_if_there_are_none() {
    let start = format!("start: {{instance_uuid: {INSTANCE}, apart_from: [{INSTANCE}, web-1]}}");
    let read = Start::decode(start.as_bytes()).unwrap();
    assert_eq!(read.apart_from.len(), 2);
    assert_eq!(Start::decode(&read.encode()).unwrap(), read);
    let none = Start {
        apart_from: Vec::new(),
        ..read
    };
    assert!(!text(&none.encode()).contains("apart_from"));
}

#[test]
fn a_health_check_is_read_and_written_and_left_out_without_one() {
    let none = Start {
        instance_uuid: INSTANCE.parse().unwrap(),
        ..Start::default()
    };
    assert!(!text(&none.encode()).contains("health"));
    let text = format!(
        "start: {{instance_uuid: {INSTANCE}, health: {{http: {{port: 80, path: /up}}, of_tomorrow: 1}}}}"
    );
    let read = Start::decode(text.as_bytes()).unwrap();
    let health = read.health.clone().unwrap();
    assert_eq!(
        (health.http.port, health.http.path.as_str(), health.http.status),
        (80, "/up", 0)
    );
    let times = (
        health.interval_s,
        health.timeout_s,
        health.failures,
        health.start_s,
    );
    assert_eq!(times, (10, 3, 3, 60));
    survives(&read);
}
