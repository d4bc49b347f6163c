use std::io::{BufRead, BufReader};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixListener;
use std::thread::JoinHandle;

use tempfile::TempDir;

use super::*;
use ssntp_transport::threads;

const HELLO: &str = r#"{"QMP": {"version": {"qemu": {"micro": 0, "minor": 0, "major": 9}, "package": ""}, "capabilities": ["oob"]}}"#;

/// A machine that sends these lines: the first at once, each other line after a command. Its
/// thread returns the commands.
fn machine(lines: &'static [&'static str]) -> (TempDir, JoinHandle<Vec<String>>) {
    let dir = tempfile::tempdir().unwrap();
    let listener = UnixListener::bind(dir.path().join(SOCKET)).unwrap();
    let thread = threads::spawn("machine", move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut commands = BufReader::new(stream.try_clone().unwrap()).lines();
        let mut received = Vec::new();
        for line in lines {
            stream.write_all(format!("{line}\r\n").as_bytes()).unwrap();
            match commands.next() {
                Some(Ok(command)) => received.push(command),
                _ => break,
            }
        }
        received
    });
    (dir, thread.unwrap())
}

#[test]
fn answers_are_found_between_events() {
    let (dir, machine) = machine(&[
        HELLO,
        r#"{"return": {}}"#,
        "{\"timestamp\": {\"seconds\": 1, \"microseconds\": 2}, \"event\": \"RESUME\"}\r\n{\"return\": {\"status\": \"running\", \"singlestep\": false, \"running\": true}}",
        r#"{"error": {"class": "GenericError", "desc": "no \"such\" thing"}}"#,
        "{\"event\": \"DEVICE_DELETED\", \"data\": {\"device\": \"d1\", \"path\": \"/x\"}}\r\n{\"return\": {}}",
        r#"{"return": {}}"#,
        r#"{"error": {"class": "DeviceNotFound", "desc": "Device 'd2' not found"}}"#,
        r#"{"return": {}}"#,
    ]);
    let mut qmp = Qmp::connect(dir.path()).unwrap();
    let status = qmp.execute("query-status", &json!({})).unwrap();
    assert_eq!(status["status"], "running");
    let file = json!({ "node-name": "n", "driver": "raw", "file": {
        "driver": "file", "filename": "/a,b\"\\\n",
    } });
    let refused = qmp.execute("blockdev-add", &file).unwrap_err().to_string();
    assert_eq!(refused, "blockdev-add: no \"such\" thing");
    qmp.unplug("d1", "v1", Duration::ZERO).unwrap();
    // An earlier call has asked for this device, and did not wait until it was released.
    qmp.unplug("d2", "v2", Duration::ZERO).unwrap();
    drop(qmp);
    let lines = machine.join().unwrap();
    let commands: Vec<Value> = lines
        .iter()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(
        commands,
        [
            json!({ "execute": "qmp_capabilities", "arguments": {} }),
            json!({ "execute": "query-status", "arguments": {} }),
            json!({ "execute": "blockdev-add", "arguments": {
                "node-name": "n", "driver": "raw", "file": { "driver": "file", "filename": "/a,b\"\\\n" },
            } }),
            json!({ "execute": "device_del", "arguments": { "id": "d1" } }),
            json!({ "execute": "blockdev-del", "arguments": { "node-name": "v1" } }),
            json!({ "execute": "device_del", "arguments": { "id": "d2" } }),
            json!({ "execute": "blockdev-del", "arguments": { "node-name": "v2" } }),
        ]
    );
}

#[test]
fn a_silent_or_closed_connection_and_an_invalid_line_are_errors() {
    let nobody = tempfile::tempdir().unwrap();
    assert!(Qmp::connect(nobody.path()).is_err());
    let (dir, _silent) = machine(&[HELLO]);
    let error = Qmp::connect(dir.path()).unwrap_err();
    assert!(
        matches!(
            error.kind(),
            io::ErrorKind::TimedOut | io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset
        ),
        "{error}"
    );
    let (dir, _odd) = machine(&["{]"]);
    assert_eq!(
        Qmp::connect(dir.path()).unwrap_err().kind(),
        io::ErrorKind::InvalidData
    );
    let silent = tempfile::tempdir().unwrap();
    let _listener = UnixListener::bind(silent.path().join(SOCKET)).unwrap();
    let error = Qmp::connect(silent.path()).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::TimedOut, "{error}");
}

/// The link could lead to the socket of another machine, which the agent would then control.
#[test]
fn a_link_does_not_lead_to_another_socket() {
    let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let listener = UnixListener::bind(other.path().join(SOCKET)).unwrap();
    listener.set_nonblocking(true).unwrap();
    std::os::unix::fs::symlink(other.path().join(SOCKET), dir.path().join(SOCKET)).unwrap();
    assert!(Qmp::connect(dir.path()).is_err());
    assert_eq!(listener.accept().unwrap_err().kind(), io::ErrorKind::WouldBlock);
}

#[test]
fn a_socket_with_a_long_path_is_reached() {
    let dir = tempfile::tempdir().unwrap();
    let deep = dir.path().join("d".repeat(120));
    std::fs::create_dir(&deep).unwrap();
    let here = File::open(&deep).unwrap();
    let short = format!("/proc/self/fd/{}/{SOCKET}", here.as_raw_fd());
    let _listener = UnixListener::bind(short).unwrap();
    assert_eq!(Qmp::connect(&deep).unwrap_err().kind(), io::ErrorKind::TimedOut);
}
