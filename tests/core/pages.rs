//! The examples and tables of docs/protocol.md and docs/payloads.md, compared with the code.

use ssntp::payload::Payload;
use ssntp::proto::{Connect, Connected, Exchange, FrameKind, FrameType, Step, Trace, answer_to_unsupported};
use ssntp::{Bytes, Frame, Role, Status, Uuid};

const PAGE: &str = include_str!("../../docs/protocol.md");
const AGENT: Uuid = Uuid::from_u128(0x5be1c0de_7d1a_4b52_8a55_90d2c3b4a501);
const SERVER: Uuid = Uuid::from_u128(0x0f7a5a1e_3c55_4a0b_9d3c_6f1f2f9a1001);

/// Each example of the page by its name, as bytes.
fn examples() -> impl Iterator<Item = (&'static str, Vec<u8>)> {
    PAGE.split("\n```frame ").skip(1).map(|block| {
        let (name, lines) = block.split_once('\n').unwrap();
        let lines = lines.split("\n```").next().unwrap().lines();
        let hex = lines.map(|line| line.split('|').next().unwrap());
        let bytes = hex.flat_map(str::split_whitespace);
        (
            name,
            bytes.map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect(),
        )
    })
}

fn exchanged(step: Step, peer: Uuid, content: &[u8]) -> Vec<u8> {
    let exchange = Exchange { step, id: 42, peer };
    let payload = [&exchange.encode()[..], content].concat();
    Frame::with_payload(FrameKind::new(FrameType::COMMAND, 0x81), payload)
        .encode()
        .to_vec()
}

#[test]
fn each_example_is_what_the_code_writes() {
    let mut traced = Trace::new("boot");
    traced.stamp_sent(AGENT, Role::AGENT, 1000);
    traced.stamp_received(SERVER, Role::SCHEDULER, 2000);
    let expected: Vec<(&str, Vec<u8>)> = vec![
        (
            "stats",
            Frame::with_payload(ssntp::Command::STATS, "load: 1\n")
                .encode()
                .to_vec(),
        ),
        ("full", Frame::new(Status::FULL).encode().to_vec()),
        (
            "connect",
            Connect::new(Role::AGENT, AGENT, true).encode().to_vec(),
        ),
        (
            "connected",
            Connected {
                role: Role::SCHEDULER,
                server: SERVER,
                client: AGENT,
                trace: true,
                payload: Bytes::from_static(b"configure: {}\n"),
            }
            .encode(),
        ),
        (
            "aborted",
            Frame::new(ssntp::ErrorCode::CONNECTION_ABORTED).encode().to_vec(),
        ),
        (
            "invalid",
            answer_to_unsupported(FrameKind::new(FrameType::COMMAND, 0x77))
                .unwrap()
                .encode()
                .to_vec(),
        ),
        (
            "own",
            Frame::with_payload(FrameKind::new(FrameType::EVENT, 0x80), vec![0, 0xff, 7])
                .encode()
                .to_vec(),
        ),
        ("request", exchanged(Step::Request, SERVER, b"ping?")),
        ("reply", exchanged(Step::Reply, AGENT, b"pong!")),
        (
            "traced",
            Frame::new(Status::FULL).traced(traced).encode().to_vec(),
        ),
    ];
    assert_eq!(
        examples().map(|(name, _)| name).collect::<Vec<_>>(),
        expected.iter().map(|e| e.0).collect::<Vec<_>>()
    );
    for ((name, found), (_, expected)) in examples().zip(expected) {
        assert_eq!(found, expected, "{name}");
    }
}

#[test]
fn the_tables_hold_every_operand_and_role_with_its_number() {
    for frame_type in FrameType::ALL {
        let section = PAGE.split(&format!("\n### {frame_type}\n")).nth(1).unwrap();
        let section = section.split("\n#").next().unwrap();
        let rows = section.lines().filter(|line| line.starts_with("| 0x"));
        let written: Vec<String> = FrameKind::all()
            .filter(|kind| kind.frame_type == *frame_type)
            .map(|kind| format!("| {:#x} | {kind} |", kind.operand))
            .collect();
        assert_eq!(rows.collect::<Vec<_>>(), written, "{frame_type}");
    }
    for role in Role::ALL.iter() {
        let name = role.to_string().to_uppercase();
        assert!(
            PAGE.contains(&format!("\n| {name} | 0x{:02x} | ", role.bits())),
            "{name}"
        );
    }
}

const PAYLOADS: &str = include_str!("../../docs/payloads.md");

/// Reads an example as the type of its frame, and checks that it is written back equal.
fn read<T: Payload + PartialEq + std::fmt::Debug>(name: &str, yaml: &str) {
    assert_eq!(T::KIND.to_string(), name);
    let found = T::decode(yaml.as_bytes()).unwrap_or_else(|e| panic!("{name}: {e}"));
    assert_eq!(T::decode(&found.encode()), Ok(found), "{name}");
}

#[test]
fn each_payload_has_a_valid_example() {
    use ssntp::payload::*;

    let readers: &[fn(&str, &str)] = &[
        read::<StartPayload>,
        read::<Stop>,
        read::<Stats>,
        read::<Evacuate>,
        read::<Delete>,
        read::<Restart>,
        read::<AssignPublicIp>,
        read::<ReleasePublicIp>,
        read::<Configure>,
        read::<AttachVolume>,
        read::<DetachVolume>,
        read::<Restore>,
        read::<RefreshCnci>,
        read::<ListSessions>,
        read::<Kick>,
        read::<ListBans>,
        read::<Unban>,
        read::<ListServers>,
        read::<DrainServer>,
        read::<Tenant>,
        read::<Watch>,
        read::<Ready>,
        read::<TenantAdded>,
        read::<TenantRemoved>,
        read::<InstanceDeleted>,
        read::<ConcentratorInstanceAdded>,
        read::<PublicIpAssigned>,
        read::<TraceReport>,
        read::<NodeConnected>,
        read::<NodeDisconnected>,
        read::<PublicIpUnassigned>,
        read::<InstanceStopped>,
        read::<Sessions>,
        read::<Kicked>,
        read::<Bans>,
        read::<Unbanned>,
        read::<Servers>,
        read::<Tenants>,
        read::<Draining>,
        read::<SnapshotComplete>,
        read::<Watched>,
        read::<NewLeader>,
        read::<InvalidFrameType>,
        read::<StartFailure>,
        read::<StopFailure>,
        read::<DeleteFailure>,
        read::<RestartFailure>,
        read::<AttachVolumeFailure>,
        read::<DetachVolumeFailure>,
        read::<AssignPublicIpFailure>,
        read::<UnassignPublicIpFailure>,
    ];
    let sections: Vec<&str> = PAYLOADS.split("\n### ").skip(1).collect();
    assert_eq!(sections.len(), readers.len());
    for (section, read) in sections.iter().zip(readers) {
        let name = section.lines().next().unwrap();
        let yaml = section.split("```yaml\n").nth(1).unwrap();
        read(name, yaml.split("```").next().unwrap());
    }
    // The other frames have no payload, or the payload of another frame.
    let without =
        FrameKind::all().filter(|kind| !sections.iter().any(|s| s.starts_with(&format!("{kind}\n"))));
    let without: Vec<String> = without.map(|kind| kind.to_string()).collect();
    let expected = "CONNECT OpenStream StreamCredit CloseStream CONNECTED FULL OFFLINE MAINTENANCE StreamOpened \
         StreamData StreamEnded ConnectionFailure ConnectionAborted InvalidConfiguration";
    assert_eq!(without.join(" "), expected);
}

/// Every `.rs` and `.md` file below a directory of the workspace.
fn sources(directory: &std::path::Path, found: &mut Vec<std::path::PathBuf>) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && !path.ends_with("target") {
            sources(&path, found);
        } else if path.extension().is_some_and(|e| e == "rs" || e == "md") {
            found.push(path);
        }
    }
}

/// The names that a source gives to threads, up to the first formatted part.
fn thread_names(source: &str) -> impl Iterator<Item = &str> {
    let product = source.split("#[cfg(test)]").next().unwrap_or_default();
    product.split("threads::").skip(1).filter_map(|call| {
        let call = call.strip_prefix("spawn(").or(call.strip_prefix("joined("))?;
        let call = call.trim_start().trim_start_matches("format!(");
        let name = call.strip_prefix('"')?;
        name.split(['"', '{']).next()
    })
}

#[test]
fn every_thread_has_a_row_on_the_page_of_threads() {
    let package = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = std::fs::read_to_string(package.join("docs/threads.md")).unwrap();
    let mut files = Vec::new();
    for directory in ["src", "crates", "tools"] {
        sources(&package.join(directory), &mut files);
    }
    let mut names = 0;
    for file in files {
        let is_test = file.iter().any(|part| {
            ["tests", "tests.rs", "testing.rs"]
                .iter()
                .any(|name| part == *name)
        });
        if is_test || file.extension().is_none_or(|extension| extension != "rs") {
            continue;
        }
        let source = std::fs::read_to_string(&file).unwrap();
        for name in thread_names(&source) {
            names += 1;
            assert!(page.contains(&format!("`{name}")), "{}: {name}", file.display());
        }
    }
    assert!(names >= 12, "{names}");
}

#[test]
fn every_cited_page_exists() {
    let package = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = vec![package.join("README.md")];
    for directory in ["src", "docs", "tests", "examples", "crates", "tools", "benches"] {
        sources(&package.join(directory), &mut files);
    }
    let is_of_a_path = |c: char| c.is_alphanumeric() || "./-_".contains(c);
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        let words = text.split(|c| !is_of_a_path(c));
        for page in words.filter(|word| word.len() > 3 && word.ends_with(".md")) {
            let places = [file.parent().unwrap(), package, &package.join("docs")];
            let is_here = places.iter().any(|place| place.join(page).exists());
            assert!(is_here, "{}: {page}", file.display());
        }
    }
}
