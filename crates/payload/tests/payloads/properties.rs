//! Any text in any field is read back equal, and no bytes cause a panic.

use std::collections::BTreeMap;
use std::fmt::Debug;

use proptest::prelude::*;
use serde_yaml::Value;
use ssntp::payload::yaml::{ErrorKind, MAX_DOCUMENT_LEN};
use ssntp::payload::*;
use ssntp_payload::*;

use super::*;

/// Applies a macro to every schema, each with a document in which no list is empty.
macro_rules! for_every_schema {
    ($each:ident) => {
        $each! {
            start: Start = "old2017_START";
            stop: Stop = "old2017_STOP";
            delete: Delete = "DELETE";
            restart: Restart = "old2017_RESTART";
            evacuate: Evacuate = "EVACUATE";
            restore: Restore = "Restore";
            assign_public_ip: AssignPublicIp = "AssignPublicIP";
            release_public_ip: ReleasePublicIp = "ReleasePublicIP";
            attach_volume: AttachVolume = "AttachVolume";
            detach_volume: DetachVolume = "old2017_DetachVolume";
            refresh_cnci: RefreshCnci = "RefreshCNCI";
            configure: Configure = "CONFIGURE_and_CONNECTED";
            stats: Stats = "STATS";
            ready: Ready = "READY";
            maintenance: Maintenance = "READY";
            tenant_added: TenantAdded = "TenantAdded";
            tenant_removed: TenantRemoved = "TenantRemoved";
            instance_deleted: InstanceDeleted = "InstanceDeleted";
            instance_stopped: InstanceStopped = "InstanceStopped";
            concentrator_instance_added: ConcentratorInstanceAdded = "ConcentratorInstanceAdded";
            public_ip_assigned: PublicIpAssigned = "PublicIPAssigned";
            public_ip_unassigned: PublicIpUnassigned = "PublicIPUnassigned";
            trace_report: TraceReport = "TraceReport";
            node_connected: NodeConnected = "NodeConnected";
            node_disconnected: NodeDisconnected = "NodeDisconnected";
            invalid_frame_type: InvalidFrameType = "StartFailure";
            start_failure: StartFailure = "StartFailure";
            stop_failure: StopFailure = "old2017_StopFailure";
            restart_failure: RestartFailure = "old2017_RestartFailure";
            delete_failure: DeleteFailure = "DeleteFailure";
            attach_volume_failure: AttachVolumeFailure = "AttachVolumeFailure";
            detach_volume_failure: DetachVolumeFailure = "old2017_DetachVolumeFailure";
            assign_public_ip_failure: AssignPublicIpFailure = "AssignPublicIPFailure";
            unassign_public_ip_failure: UnassignPublicIpFailure = "UnassignPublicIPFailure";
            list_sessions: ListSessions = "ours_ListSessions";
            sessions: Sessions = "ours_Sessions";
            kick: Kick = "ours_Kick";
            kicked: Kicked = "ours_Kicked";
            list_bans: ListBans = "ours_ListBans";
            bans: Bans = "ours_Bans";
            unban: Unban = "ours_Unban";
            unbanned: Unbanned = "ours_Unbanned";
            list_servers: ListServers = "ours_ListServers";
            drain_server: DrainServer = "ours_DrainServer";
            servers: Servers = "ours_Servers";
            tenant: Tenant = "ours_Tenant";
            tenants: Tenants = "ours_Tenants";
            draining: Draining = "ours_Draining";
            snapshot_complete: SnapshotComplete = "ours_SnapshotComplete";
            watch: Watch = "ours_Watch";
            watched: Watched = "ours_Watched";
            new_leader: NewLeader = "ours_NewLeader";
            manage_enrolment: ManageEnrolment = "ours_ManageEnrolment";
            enrolment_list: EnrolmentList = "ours_EnrolmentList";
        }
    };
}

/// Texts that are difficult for a YAML writer, and any other texts.
fn any_text() -> impl Strategy<Value = String> {
    let odd = prop::sample::select(vec![
        "no",
        "~",
        "null",
        "4096",
        "1_000",
        "0x1f",
        "12:30:45",
        "52:54:00:12:34:56",
        "2001-01-01",
        ".5",
        "1e3",
        "- a",
        "? a",
        ": a",
        "a: b",
        "a #b",
        "#a",
        "&a",
        "*a",
        "!a",
        "|",
        ">",
        "%a",
        "@a",
        "`a",
        "[a",
        "{a",
        "]",
        "}",
        ",",
        "'",
        "\"",
        "\\",
        "---",
        "...",
        "--- a",
        "<<",
        "=",
        "a\nb",
        "\n",
        "a\n\n",
        " a",
        "a ",
        "\ta",
        "a\t",
        "\r\n",
        "a\rb",
        "\u{0}",
        "\u{7}",
        "\u{1b}",
        "\u{7f}",
        "\u{80}",
        "\u{85}",
        "\u{a0}",
        "\u{2028}",
        "\u{2029}",
        "\u{feff}",
        "\u{fffe}",
        "\u{ffff}",
        "\u{d7ff}",
        "\u{e000}",
        "\u{10ffff}",
        "é",
        "字",
        "😀",
        "running",
        "true",
        "True",
        "!!str",
        "0b1",
        "0o7",
        "017",
        "190:20:30.15",
        "-.inf",
        "1.5.6",
        "y",
    ])
    .prop_map(str::to_owned);
    let symbols = proptest::collection::vec(
        prop::sample::select(
            "abc019 \t\n\r:#-?,[]{}&*!|>'\"%@`\\~=<.+_/xeEyn\u{0}\u{85}\u{feff}é"
                .chars()
                .collect::<Vec<_>>(),
        ),
        0..12,
    )
    .prop_map(String::from_iter);
    // Texts that begin like a number or a date.
    let joined = (odd.clone(), symbols.clone()).prop_map(|(odd, symbols)| odd + &symbols);
    let any = proptest::collection::vec(any::<char>(), 0..40).prop_map(String::from_iter);
    // A document has some 16 texts, and at most 64 KiB.
    let long = ("[a-z .,]{70,200}", 1_usize..15).prop_map(|(text, times)| text.repeat(times));
    prop_oneof![3 => odd, 4 => symbols, 3 => joined, 3 => any, 1 => long]
}

/// As [`any_text`], and short enough for a key in a document with U+2028.
fn any_key() -> impl Strategy<Value = String> {
    any_text().prop_map(|text| text.chars().take(300).collect())
}

/// Replaces each text of the document by the next text of the list.
fn fill_with_text(value: &mut Value, texts: &mut dyn Iterator<Item = String>) {
    match value {
        Value::String(text) => *text = texts.next().unwrap(),
        Value::Sequence(list) => list.iter_mut().for_each(|value| fill_with_text(value, texts)),
        Value::Mapping(map) => {
            for (key, value) in map {
                // This key of a START must have a UUID.
                let fixed = key == "instance_uuid" && value.as_str() == Some(INSTANCE);
                if !fixed {
                    fill_with_text(value, texts);
                }
            }
        }
        _ => {}
    }
}

fn any_text_is_read_back<T: Payload + PartialEq + Debug>(name: &str, texts: Vec<String>) {
    // Read, and written again, so that it has exactly the current form.
    let current = T::decode(&fixture(name)).unwrap().encode();
    let mut document = yaml_value(&current);
    fill_with_text(&mut document, &mut texts.iter().cycle().cloned());
    // The form of another writer is read…
    let others = serde_yaml::to_string(&document).unwrap();
    let value = T::decode(others.as_bytes()).unwrap_or_else(|e| panic!("{e}\n{others}"));
    // … and our form gives the same values to our reader and to the other one.
    survives(&value);
    assert_eq!(yaml_value(&value.encode()), document, "{}", text(&value.encode()));
}

macro_rules! text_tests {
    ($($test:ident: $schema:ty = $fixture:literal;)*) => {
        mod text_survives {
            use super::*;

            proptest! {
                #![proptest_config(ProptestConfig::with_cases(64))]
                $(
                    #[test]
                    fn $test(texts in proptest::collection::vec(any_text(), 1..9)) {
                        // A required value must not be empty. "running" is read as
                        // "active", and "" as the default. In YAML 1.1 U+2028 and U+2029
                        // end a line, so the other writer adds indentation after them.
                        let fits = |t: &String| !t.is_empty() && t != "running" && !t.contains(['\u{2028}', '\u{2029}']);
                        let texts = texts.into_iter().filter(fits).collect::<Vec<_>>();
                        prop_assume!(!texts.is_empty());
                        any_text_is_read_back::<$schema>($fixture, texts);
                    }
                )*
            }
        }
    };
}

for_every_schema!(text_tests);

proptest! {
    #[test]
    fn text_of_a_process_survives(
        command in proptest::collection::vec(any_text(), 1..5),
        env in proptest::collection::btree_map(any_key(), any_text(), 0..5),
        dir in any_text(),
        hostname in any_text(),
    ) {
        let start = Start {
            instance_uuid: INSTANCE.parse().unwrap(),
            vm_type: VmType::Process,
            command: command.clone(),
            env: env.clone(),
            dir: dir.clone(),
            requirements: Requirements { hostname, ..Requirements::default() },
            ..Start::default()
        };
        survives(&start);
        let read = yaml_value(&start.encode());
        prop_assert_eq!(&read["start"]["command"], &Value::from(command));
        if !env.is_empty() && env.keys().all(|key| key.len() < 100) {
            for (key, value) in env {
                prop_assert_eq!(&read["start"]["env"][key.as_str()], &Value::from(value));
            }
        }
    }

    #[test]
    fn raw_documents_survive(user_data in any::<Vec<u8>>(), meta_data in any_text(), given in 0..4) {
        let raw = |bytes: Vec<u8>, wanted: bool| RawDocument::new(bytes).ok().filter(|d| wanted && !d.as_bytes().is_empty());
        let mut user_data = user_data;
        user_data.push(b'\n');
        let payload = StartPayload {
            start: Start { instance_uuid: INSTANCE.parse().unwrap(), ..Start::default() },
            user_data: raw(user_data, given & 1 != 0),
            meta_data: raw(meta_data.into_bytes(), given & 2 != 0),
        };
        survives(&payload);
    }

    #[test]
    fn documents_lose_nothing_but_markers(payload in any_text()) {
        let bytes = payload.as_bytes();
        let mut end = 0;
        for document in yaml::documents(bytes) {
            let start = document.bytes.as_ptr() as usize - bytes.as_ptr() as usize;
            prop_assert!(start >= end);
            end = start + document.bytes.len();
            let before = bytes[..start].iter().filter(|b| **b == b'\n').count();
            // An empty document at the end has no line.
            prop_assert!(document.line == before + 1 || document.bytes.is_empty());
        }
    }
}

proptest! {
    #[test]
    fn written_text_is_read_alike_by_the_bounded_reader_and_by_serde_yaml(
        map in proptest::collection::btree_map(any_key(), proptest::collection::vec(any_text(), 0..4), 0..4),
    ) {
        let written = yaml::encode(&map).unwrap();
        prop_assert_eq!(&yaml::decode::<BTreeMap<String, Vec<String>>>(&written).unwrap(), &map);
        prop_assert_eq!(&serde_yaml::from_slice::<BTreeMap<String, Vec<String>>>(&written).unwrap(), &map);
    }
}

/// Reads bytes as a schema, and checks that an accepted value is written and read back equal.
fn harmless<T: Payload + PartialEq + Debug>(bytes: &[u8]) {
    if let Ok(value) = T::decode(bytes) {
        survives(&value);
    }
}

fn harmless_to_every_schema(bytes: &[u8]) {
    macro_rules! each {
        ($($test:ident: $schema:ty = $fixture:literal;)*) => { $( harmless::<$schema>(bytes); )* };
    }
    for_every_schema!(each);
    harmless::<StartPayload>(bytes);
    harmless::<InvalidConfiguration>(bytes);
    if let Ok(configure) = Configure::decode(bytes) {
        assert_eq!(
            configure.validate().is_ok(),
            Configure::decode_valid(bytes).is_ok()
        );
    }
}

#[test]
fn a_schema_has_the_short_limit_unless_it_holds_lists() {
    fn limit<T: Payload + Debug>(lists: &mut Vec<&'static str>, name: &'static str) {
        let refused = |len: usize| T::decode("x".repeat(len).as_bytes()).unwrap_err();
        let is_refused_at = |limit| match refused(limit + 1) {
            Error::Document(e) => {
                *e.kind()
                    == ErrorKind::TooLong {
                        len: limit + 1,
                        limit,
                    }
            }
            error => panic!("{error}"),
        };
        if !is_refused_at(MAX_READ_LEN) {
            assert!(is_refused_at(MAX_DOCUMENT_LEN), "{name}");
            lists.push(name);
        }
    }

    let mut lists = Vec::new();
    macro_rules! each {
        ($($test:ident: $schema:ty = $fixture:literal;)*) => { $( limit::<$schema>(&mut lists, stringify!($schema)); )* };
    }
    for_every_schema!(each);
    assert_eq!(
        lists,
        [
            "Stats",
            "TraceReport",
            "Sessions",
            "Kicked",
            "Bans",
            "Servers",
            "Tenants",
            "EnrolmentList"
        ],
        "the dispatcher of a server reads none of these documents in full"
    );
}

/// Pieces of YAML, of schemas, and of other texts.
fn pieces() -> impl Strategy<Value = Vec<u8>> {
    let words = prop::sample::select(vec![
        "start:",
        "configure:",
        "stats",
        "node_uuid: n",
        "instances:",
        "networks:",
        "frames:",
        "nodes:",
        "storage:",
        "  ",
        "    ",
        "\n",
        "\n  ",
        "\n    ",
        "- ",
        "-",
        ": ",
        "? ",
        "a",
        "a: 1",
        "[",
        "]",
        "{",
        "}",
        ", ",
        "&a ",
        "*a",
        "!!str ",
        "!!binary ",
        "\"",
        "'",
        "|\n",
        ">-\n",
        "~",
        "null",
        "no",
        "0x1f",
        "-1",
        "99999999999999999999",
        "#",
        "---\n",
        "--- ",
        "--- ---\n",
        "...\n",
        "%YAML 1.1\n",
        "\t",
        "\r\n",
        "\u{feff}",
        "\u{85}",
        "\u{0}",
        "é",
        "<<: *a\n",
        "instance_uuid: 0f7a5a1e-3c55-4a0b-9d3c-6f1f2f9a1001\n",
        "launcher:",
        "compute_net: x",
    ]);
    let bytes = prop_oneof![9 => words.prop_map(|w| w.as_bytes().to_vec()), 1 => any::<Vec<u8>>()];
    proptest::collection::vec(bytes, 0..40).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn random_bytes_are_harmless(bytes in any::<Vec<u8>>()) {
        harmless_to_every_schema(&bytes);
    }

    #[test]
    fn random_pieces_of_yaml_are_harmless(bytes in pieces()) {
        harmless_to_every_schema(&bytes);
    }

    #[test]
    fn changed_documents_are_harmless(
        which in any::<prop::sample::Index>(),
        changes in proptest::collection::vec((any::<prop::sample::Index>(), 0..4_u8, pieces()), 1..6),
    ) {
        let mut names: Vec<_> = std::fs::read_dir(fixtures()).unwrap().map(|e| e.unwrap().path()).collect();
        names.sort();
        let mut bytes = std::fs::read(which.get(&names)).unwrap();
        for (place, change, piece) in changes {
            let at = place.index(bytes.len() + 1);
            let end = (at + piece.len()).min(bytes.len());
            match change {
                0 => drop(bytes.splice(at..at, piece)),
                1 => drop(bytes.splice(at..end, piece)),
                2 => drop(bytes.drain(at..end)),
                _ => bytes.truncate(at.max(8)),
            }
        }
        harmless_to_every_schema(&bytes);
    }
}
