//! The reading rules that all schemas share, and the writing rules.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use ssntp::payload::yaml;
use ssntp::payload::*;
use ssntp_payload::*;

use super::*;

#[test]
fn unknown_keys_are_ignored_with_any_value() {
    let document = format!(
        "node_uuid: {NODE}
later: {{a: [1, {{b: ~}}], 'c': \"d\"}}
NODE_UUID: other
Hostname: other
networks:
- ip: 10.0.0.7
  vlan: 7
  more:
  - - x
load: 3
"
    );
    let decoded = Ready::decode(document.as_bytes()).unwrap();
    let expected = Ready {
        node_uuid: NODE.into(),
        networks: vec![NodeNetwork {
            ip: "10.0.0.7".to_owned(),
            mac: String::new(),
        }],
        load: 3,
        ..Ready::default()
    };
    assert_eq!(decoded, expected, "keys are case sensitive");
}

#[test]
fn an_empty_value_is_the_default_of_its_field() {
    for nothing in ["", " ~", " null", " Null", " # nothing", " !!null"] {
        let document = format!(
            "node_uuid: {NODE}
status:{nothing}
mem_total_mb:{nothing}
hostname:{nothing}
networks:{nothing}
instances:
- instance_uuid:{nothing}
  state: active
  ssh_port:{nothing}
  volumes:{nothing}
  exit_code:{nothing}
  memory_usage_mb:{nothing}
  cpu_usage:{nothing}
  health:{nothing}
  health_detail:{nothing}
"
        );
        let decoded = Stats::decode(document.as_bytes()).unwrap();
        let expected = Stats {
            node_uuid: NODE.into(),
            instances: vec![InstanceStats {
                state: InstanceState::Active,
                ..InstanceStats::default()
            }],
            ..Stats::default()
        };
        assert_eq!(decoded, expected, "{nothing:?}");

        let document = format!(
            "configure:
  storage:{nothing}
  controller:
    ciao_port:{nothing}
    cnci_net:{nothing}
  launcher:
    compute_net:{nothing}
    disk_limit:{nothing}
"
        );
        assert_eq!(
            Configure::decode(document.as_bytes()),
            Ok(Configure::default()),
            "{nothing:?}"
        );

        let document = format!(
            "start:
  instance_uuid: {INSTANCE}
  vm_type: process
  networking:{nothing}
  storage:{nothing}
  requirements:{nothing}
  restart:{nothing}
  command: [a, ]
  env:
    EMPTY:{nothing}
  dir:{nothing}
"
        );
        let decoded = Start::decode(document.as_bytes()).unwrap();
        let expected = Start {
            instance_uuid: INSTANCE.parse().unwrap(),
            vm_type: VmType::Process,
            command: vec!["a".to_owned()],
            env: BTreeMap::from([("EMPTY".to_owned(), String::new())]),
            ..Start::default()
        };
        assert_eq!(decoded, expected, "{nothing:?}");
    }
}

#[test]
fn an_empty_element_of_a_list_is_empty() {
    let document = format!("node_uuid: {NODE}\nnetworks:\n-\n- ip: a\ninstances:\n- volumes:\n  -\n  - v\n");
    let decoded = Stats::decode(document.as_bytes()).unwrap();
    assert_eq!(decoded.networks[0], NodeNetwork::default());
    assert_eq!(decoded.networks[1].ip, "a");
    assert_eq!(decoded.instances[0].volumes, ["", "v"]);
}

#[test]
fn numbers_and_booleans_are_text_if_text_is_expected() {
    for word in [
        "4096",
        "-1",
        "0x1f",
        "017",
        "1_000",
        "1.50",
        ".5",
        "1e3",
        "12:30:45",
        "true",
        "No",
        "on",
        "y",
        "2001-01-01",
        "1e999",
        ".inf",
        "<<",
        "=",
    ] {
        let document = format!("node_uuid: {NODE}\nhostname: {word}\n");
        let decoded = Ready::decode(document.as_bytes()).unwrap();
        assert_eq!(decoded.hostname, word);
        survives(&decoded);
    }
}

#[test]
fn booleans_of_yaml_1_1_are_booleans() {
    for (word, value) in [
        ("true", true),
        ("True", true),
        ("yes", true),
        ("YES", true),
        ("on", true),
        ("y", true),
        ("false", false),
        ("no", false),
        ("Off", false),
        ("n", false),
    ] {
        let document = format!("configure: {{launcher: {{mem_limit: {word}}}}}");
        let decoded = Configure::decode(document.as_bytes()).unwrap();
        assert_eq!(decoded.launcher.mem_limit, value, "{word}");
    }
}

#[test]
fn integers_may_be_written_in_other_ways() {
    for (word, value) in [
        ("0x1F", 31),
        ("+7", 7),
        ("1_000", 1000),
        ("0b101", 5),
        ("0o17", 15),
        ("-0", 0),
    ] {
        let document = format!("node_uuid: {NODE}\nload: {word}\n");
        assert_eq!(Ready::decode(document.as_bytes()).unwrap().load, value, "{word}");
    }
}

#[test]
fn aliases_within_bounds_have_the_value_of_their_anchor() {
    let document = format!(
        "node_uuid: &id {NODE}\nnetworks:\n- &n {{ip: &ip 10.0.0.7, mac: m}}\n- *n\n- ip: *ip\nhostname: *id\n"
    );
    let decoded = Ready::decode(document.as_bytes()).unwrap();
    assert_eq!(decoded.hostname, NODE);
    assert_eq!(decoded.networks.len(), 3);
    assert_eq!(decoded.networks[1], decoded.networks[0]);
    assert_eq!(decoded.networks[2].ip, "10.0.0.7");
}

#[test]
fn a_tag_changes_the_type_of_a_scalar() {
    let document =
        format!("node_uuid: {NODE}\nhostname: !!str 12\nload: !!int \"3\"\nunknown: !own {{a: 1}}\n");
    let decoded = Ready::decode(document.as_bytes()).unwrap();
    assert_eq!((decoded.hostname.as_str(), decoded.load), ("12", 3));
}

#[test]
fn flow_style_json_and_markers_are_read() {
    let json = format!("{{\"node_uuid\": \"{NODE}\", \"networks\": [{{\"ip\": \"a\"}}], \"load\": 3}}");
    for document in [
        json.clone(),
        format!("---\n{json}\n...\n"),
        format!("%YAML 1.1\n--- {json}"),
    ] {
        let decoded = Ready::decode(document.as_bytes()).unwrap();
        assert_eq!((decoded.networks[0].ip.as_str(), decoded.load), ("a", 3));
    }
    let windows = format!("\u{feff}node_uuid: {NODE}\r\nload: 3\r\n");
    assert_eq!(Ready::decode(windows.as_bytes()).unwrap().load, 3);
}

#[test]
fn text_that_old_readers_misread_is_quoted() {
    for word in [
        "4096",
        "52:54:00:12:34:56",
        "no",
        "NO",
        "yes",
        "on",
        "off",
        "y",
        "n",
        "true",
        "~",
        "null",
        "",
        ".5",
        "5.",
        "1e3",
        "1_000",
        "0x1f",
        "0b1",
        "0o7",
        "017",
        "+1",
        "-1",
        ".inf",
        "-.INF",
        ".nan",
        "12:30",
        "190:20:30.15",
        "2001-01-01",
        "2001-1-1 12:00:00",
        "2017-07-14T02:40:00.25Z",
        "<<",
        "=",
        "0",
        "-",
    ] {
        let ready = Ready {
            node_uuid: NODE.into(),
            hostname: word.to_owned(),
            ..Ready::default()
        };
        let written = ready.encode();
        let line = text(&written).lines().last().unwrap();
        let quoted = line.strip_prefix("hostname: ").unwrap();
        assert!(quoted.starts_with(['"', '\'']), "{line}");
        assert_eq!(yaml_value(&written)["hostname"], serde_yaml::Value::from(word));
    }
    for word in [
        "02:42:ac:10:00:05",
        "172.16.0.0/24",
        "rack1-n07",
        "file:///etc/ciao",
        NODE,
        "a b",
        "e3",
    ] {
        let written = yaml::encode(&BTreeMap::from([("k", word)])).unwrap();
        assert_eq!(text(&written), format!("k: {word}\n"));
    }
}

#[test]
fn fields_are_written_in_order_with_two_spaces_and_empty_forms() {
    let configure = Configure {
        launcher: LauncherConfig {
            mgmt_net: vec!["fd00::/8".to_owned()],
            ..LauncherConfig::default()
        },
        ..Configure::default()
    };
    let expected = "configure:
  scheduler:
    storage_uri: \"\"
  storage:
    ceph_id: \"\"
  controller:
    ciao_port: 8889
    compute_ca: \"\"
    compute_cert: \"\"
    cnci_vcpus: 4
    cnci_mem: 2048
    cnci_disk: 2048
    admin_ssh_key: \"\"
    client_auth_ca_cert_path: \"\"
    cnci_net: 192.168.0.0
  launcher:
    compute_net: []
    mgmt_net:
    - fd00::/8
    disk_limit: true
    mem_limit: true
    child_user: \"\"
";
    assert_eq!(text(&configure.encode()), expected);
}

#[test]
fn other_types_can_be_read_and_written_too() {
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    enum Colour {
        Red,
    }

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Other {
        small: i8,
        letter: char,
        half: f64,
        colour: Colour,
        pair: (u16, String),
        maybe: Option<bool>,
        nothing: (),
    }

    let value = Other {
        small: -3,
        letter: 'x',
        half: 0.5,
        colour: Colour::Red,
        pair: (7, "seven".to_owned()),
        maybe: Some(true),
        nothing: (),
    };
    let written = yaml::encode(&value).unwrap();
    // An empty value counts as missing, which `()` does not allow.
    let error = yaml::decode::<Other>(&written).unwrap_err();
    assert_eq!(error.path(), "nothing");
    let pairs: BTreeMap<String, serde_json::Value> = yaml::decode(&written).unwrap();
    assert_eq!(
        serde_json::to_value(pairs).unwrap(),
        serde_json::json!({
            "small": -3, "letter": "x", "half": 0.5, "colour": "Red", "pair": [7, "seven"], "maybe": true,
            "nothing": null,
        })
    );
    let error = yaml::decode::<(i8, i8)>(b"[1, 300]").unwrap_err();
    assert_eq!(
        error.to_string(),
        "[1]: expected an integer from -128 to 127, found number 300 (line 1, column 5)"
    );
}

#[test]
fn keys_lists_and_blocks_are_quoted_as_values_are() {
    let block = "a: no\n- yes\n'b': 12:30\n\nno".to_owned();
    let maps = vec![BTreeMap::from([
        ("no", block.as_str()),
        ("a: 'b'", "12:30"),
        ("\"\t: 'k", "no"),
    ])];
    let written = yaml::encode(&BTreeMap::from([("list", maps.clone())])).unwrap();
    let expected = "list:\n- \"\\\"\\t: 'k\": \"no\"\n  'a: ''b''': \"12:30\"\n  \"no\": |-\n    a: no\n    - yes\n    'b': 12:30\n\n    no\n";
    assert_eq!(text(&written), expected);
    assert_eq!(yaml_value(&written)["list"], serde_yaml::to_value(maps).unwrap());

    let lines = vec!["off\n1_0: on", "on"];
    let written = yaml::encode(&[&lines]).unwrap();
    assert_eq!(text(&written), "- - |-\n    off\n    1_0: on\n  - \"on\"\n");
    assert_eq!(yaml::decode::<Vec<Vec<String>>>(&written).unwrap(), [lines]);
}
