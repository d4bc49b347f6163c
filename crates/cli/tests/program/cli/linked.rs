//! Linked servers as processes.

use serde_json::Value;
use ssntp::client::{ClientEvent, SessionEnd};
use ssntp::proto::{Command, Frame};

use super::admin::{Daemon, certificates, client, ctl};
use super::metrics::check_text;

#[test]
fn two_servers_act_as_one_and_health_names_a_missing_link() {
    let dir = certificates();
    let more = "--forward STATS=controller --admin 127.0.0.1:0 --peers";
    let (one, first) = Daemon::server(dir.path(), &format!("{more} unix:nobody"));
    let (two, second) = Daemon::server(dir.path(), &format!("{more} {first} --advertise here:1"));
    two.wait("/healthz", |_, text| text.contains("\"ok\""));
    one.wait("/healthz", |code, text| {
        code == 200 && text.contains("unix:nobody: not linked: ")
    });
    let agent = client(dir.path(), &first, "agent");
    two.wait("/metrics", |_, text| {
        let mut lines = text.lines();
        lines.any(|line| line.starts_with("ssntp_link_sessions{") && line.ends_with(" 1"))
    });
    let controller = client(dir.path(), &second, "controller");
    let (_, text) = one.wait("/metrics", |_, text| {
        let mut lines = text.lines();
        lines.any(|line| line.starts_with("ssntp_link_sessions{") && line.ends_with(" 1"))
    });
    check_text(&text);
    let frame = Frame::with_payload(Command::STATS, "load: 1\n");
    agent.send(frame.clone()).unwrap();
    loop {
        match controller.recv().unwrap() {
            ClientEvent::Frame(received) => break assert_eq!(received, frame),
            ClientEvent::Connected(_) => {}
            other => panic!("{other:?}"),
        }
    }
    let (_, info) = one.wait("/info", |_, text| text.contains("\"linked\": true"));
    let info: Value = serde_json::from_str(&info).unwrap();
    let link = &info["servers"]["links"][0];
    assert_eq!(
        (&link["advertised"], &link["sessions"]),
        (&"here:1".into(), &1.into())
    );
    // One server is killed. The other one drops its sessions, continues, and names the missing link.
    drop(one);
    two.wait("/healthz", |code, text| {
        code == 200 && text.contains("degraded") && text.contains(&first)
    });
    let (_, text) = two.wait("/metrics", |_, text| text.contains("ssntp_links 0\n"));
    assert!(text.contains("ssntp_links_missing 1\n") && !text.contains("ssntp_link_sessions{"));
    two.end();
}

#[test]
fn an_operator_sees_all_servers_and_drains_one_by_its_address() {
    let dir = certificates();
    let (one, first) = Daemon::server(dir.path(), "--admin 127.0.0.1:0 --peers unix:nobody");
    let (two, second) = Daemon::server(
        dir.path(),
        &format!("--admin 127.0.0.1:0 --peers {first} --advertise here:1"),
    );
    two.wait("/healthz", |_, text| text.contains("\"ok\""));
    let agent = client(dir.path(), &second, "agent");
    one.wait("/info", |_, text| {
        text.contains("\"linked\": true") && text.contains("\"sessions\": 1")
    });
    let (done, listed, _) = ctl(dir.path(), &first, "--json servers");
    assert!(done, "{listed}");
    let listed: Value = serde_json::from_str(&listed).unwrap();
    let servers = listed["servers"].as_array().unwrap();
    let in_state = |state: &str| servers.iter().find(|one| one["state"] == state).unwrap();
    assert_eq!(
        (&in_state("linked")["address"], &in_state("linked")["sessions"]),
        (&"here:1".into(), &1.into())
    );
    assert_eq!(in_state("own")["version"], env!("CARGO_PKG_VERSION"));
    // Without --advertise it has the address at which it was reached.
    assert_eq!(in_state("own")["address"], first.as_str());
    assert_eq!(in_state("away")["address"], "unix:nobody");
    let (_, table, _) = ctl(dir.path(), &first, "servers");
    assert!(table.contains("here:1") && table.contains("away"), "{table}");
    for (name, expected) in [
        ("unix:nobody", "there is no link to the server: "),
        ("elsewhere:1", "no server has the address elsewhere:1"),
    ] {
        let (done, _, error) = ctl(dir.path(), &first, &format!("servers drain {name}"));
        assert!(!done && error.contains(expected), "{error}");
    }
    // The first server passes the command on to the second one, whose client leaves. Then it ends.
    let beginning = in_state("linked")["uuid"].as_str().unwrap().get(..8).unwrap();
    let (done, output, error) = ctl(
        dir.path(),
        &first,
        &format!("servers drain {beginning} --within 0"),
    );
    assert!(done && !error.contains("no other server"), "{error}");
    assert!(
        output.contains("here:1: its clients leave within 0s, then it stops"),
        "{output}"
    );
    let left = loop {
        match agent.recv().unwrap() {
            ClientEvent::Disconnected { reason, .. } => break reason,
            ClientEvent::Connected(_) => {}
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(left, SessionEnd::Draining);
    two.ended();
    one.wait("/healthz", |_, text| text.contains("unix:nobody"));
    one.wait("/metrics", |_, text| text.contains("ssntp_links 0\n"));
    let (done, _, error) = ctl(dir.path(), &first, &format!("servers drain {first} --within 0"));
    assert!(
        done && error.contains("no other server is known that could take its clients"),
        "{error}"
    );
    one.ended();
}
