//! Several `ssntp server` that are linked, as processes.

use serde_json::Value;
use ssntp::client::ClientEvent;
use ssntp::proto::{Command, Frame};

use super::admin::{Daemon, certificates, client};
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
    // Killed: the other one drops its sessions, serves on, and says what is missing.
    drop(one);
    two.wait("/healthz", |code, text| {
        code == 200 && text.contains("degraded") && text.contains(&first)
    });
    let (_, text) = two.wait("/metrics", |_, text| text.contains("ssntp_links 0\n"));
    assert!(text.contains("ssntp_links_missing 1\n") && !text.contains("ssntp_link_sessions{"));
    two.end();
}
