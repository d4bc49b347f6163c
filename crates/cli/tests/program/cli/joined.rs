//! `ssntp server --join`: servers that share an etcd find each other.

use std::time::Duration;

use ssntp::client::Client;
use ssntp::proto::{Command, Frame};
use ssntp_test_support::etcd::EtcdProcess;

use crate::cluster::processes::until;

use super::admin::{Daemon, certificates, client, ctl};
use super::metrics::check_text;

fn has_members(count: usize) -> impl Fn(u16, &str) -> bool {
    move |_, text| {
        let info: serde_json::Value = serde_json::from_str(text).unwrap_or_default();
        info["cluster"]["members"]
            .as_array()
            .is_some_and(|members| members.len() == count)
    }
}

/// Sends frames until one has crossed the link.
#[track_caller]
fn crosses(from: &Client, to: &Client) {
    until("a frame crosses the link", || {
        let frame = Frame::with_payload(Command::STATS, "load: 1".to_owned());
        let sent = from.handle().send(frame);
        sent.map_err(|e| e.to_string())?;
        let received = to.recv_frame_timeout(Duration::from_millis(200));
        received.map(drop).map_err(|e| e.to_string())
    });
}

#[test]
fn servers_that_share_an_etcd_link_and_stay_linked_without_it() {
    let Some(mut etcd) = EtcdProcess::start(1) else {
        return;
    };
    let dir = certificates();
    let join = format!("--join {} --cluster main", etcd.join());
    let flags = format!("--forward STATS=controller --admin 127.0.0.1:0 {join}");
    let (one, first) = Daemon::server(dir.path(), &flags);
    let (two, second) = Daemon::server(dir.path(), &flags);
    let (_, text) = one.wait("/info", has_members(2));
    assert!(
        text.contains(&second) && !text.contains("\"leads\": true"),
        "{text}"
    );
    let (agent, controller) = (
        client(dir.path(), &first, "agent"),
        client(dir.path(), &second, "controller"),
    );
    crosses(&agent, &controller);
    let (_, text) = one.wait("/metrics", |_, text| text.contains("ssntp_cluster_members 2"));
    check_text(&text);

    // A busy etcd may just not have answered in the time limit of a call.
    until("both servers are listed", || {
        let (done, listed, error) = ctl(dir.path(), &first, "servers");
        let versions = listed.matches(env!("CARGO_PKG_VERSION")).count();
        let is_it = done && versions == 2 && listed.starts_with("no leader; the engine answers\n");
        is_it.then_some(()).ok_or(listed + &error)
    });

    // Without the engine links and sessions remain, and the health page names the engine.
    etcd.kill(0);
    let (_, text) = one.wait("/healthz", |_, text| text.contains("the engine is away"));
    assert!(text.contains("degraded"), "{text}");
    crosses(&agent, &controller);
    until("the list says so as well", || {
        let (_, listed, error) = ctl(dir.path(), &first, "servers");
        let is_it = listed.contains(" s: the engine is away: ");
        is_it.then_some(()).ok_or(listed + &error)
    });

    // The servers write their entries again into an engine that has lost its data.
    etcd.restart(0, true);
    one.wait("/healthz", |_, text| !text.contains("degraded"));
    one.wait("/info", has_members(2));
    crosses(&agent, &controller);

    // A server that ends is removed from the members, and its successor is found.
    two.end();
    one.wait("/info", has_members(1));
    let (_three, third) = Daemon::server(dir.path(), &flags);
    crosses(&agent, &client(dir.path(), &third, "controller"));
    one.end();
}

#[test]
fn a_server_that_cannot_join_fails_with_the_reason() {
    let dir = certificates();
    std::fs::write(dir.path().join("user"), "secret\n").unwrap();
    for (flags, code, reason) in [
        (
            "--listen 127.0.0.1:0 --join etcd://127.0.0.1:1",
            1,
            "--join: the engine is away: 127.0.0.1:1: Connection refused",
        ),
        (
            "--listen :0 --join etcd://127.0.0.1:1",
            2,
            "--advertise is needed",
        ),
        (
            "--listen 127.0.0.1:0 --join etcd://127.0.0.1:1 --advertise :8888",
            2,
            "--advertise :8888: other servers cannot reach this address",
        ),
        (
            "--listen 127.0.0.1:0 --join etcd://127.0.0.1:1 --advertise here:0",
            2,
            "no server listens at port 0",
        ),
        (
            "--listen 127.0.0.1:0 --peers here:1 --advertise here:0",
            2,
            "no server listens at port 0",
        ),
        (
            "--listen 127.0.0.1:0 --join etcd://user:secret@127.0.0.1:1",
            2,
            "must not hold a name and a password: --join-user-file",
        ),
        (
            "--listen 127.0.0.1:0 --join http://127.0.0.1:1",
            2,
            "does not begin with etcd://",
        ),
        ("--listen 127.0.0.1:0 --join etcd://a:1,:2", 2, "is not HOST:PORT"),
        (
            "--listen 127.0.0.1:0 --join etcd://127.0.0.1:1 --cluster a/b",
            2,
            "letters, digits",
        ),
        ("--listen 127.0.0.1:0 --cluster a", 2, "--join"),
        (
            "--listen 127.0.0.1:0 --join etcd://127.0.0.1:1 --join-user-file user",
            1,
            "user: its first line is not NAME:PASSWORD",
        ),
        (
            "--listen 127.0.0.1:0 --join etcd://127.0.0.1:1 --join-ca nothing.pem",
            1,
            "nothing.pem",
        ),
    ] {
        let mut command = crate::program();
        command
            .current_dir(dir.path())
            .args(["server", "--ca", "ca.pem", "--cert", "server.pem"]);
        let done = command.args(flags.split(' ')).output().unwrap();
        let error = String::from_utf8_lossy(&done.stderr);
        assert!(
            error.contains(reason) && !error.contains("secret"),
            "{flags}: {error}"
        );
        assert_eq!(done.status.code(), Some(code), "{flags}: {error}");
        // Before it there may be a warning that others cannot reach the server.
        let lines = error.lines().filter(|line| !line.contains(" WARN "));
        assert!(code == 2 || lines.count() == 1, "{flags}: {error}");
    }
}
