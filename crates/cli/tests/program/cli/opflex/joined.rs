//! `ssntp opflex serve --join`: several servers with the same policy.

use ssntp_test_support::etcd::EtcdProcess;

use super::*;

/// Starts a server, whose log is a file beside the socket. If a busy etcd exceeds the time limit of a
/// call, the server is started again.
fn serve(dir: &Path, control: &str, join: &str, more: &[&str]) -> Program {
    let flags = [
        "serve",
        "--listen",
        "127.0.0.1:0",
        "--control",
        control,
        "--join",
        join,
    ];
    let mut started = None;
    until("a server listens", || {
        let mut command = opflex(dir, &[&flags, more].concat());
        command.stderr(fs::File::create(dir.join(format!("{control}.log"))).unwrap());
        let mut server = Program::start(&mut command);
        let mut first = String::new();
        let mut output = BufReader::new(server.stdout.take().unwrap());
        output.read_line(&mut first).unwrap();
        if !first.starts_with("listening at ") {
            server.wait().unwrap();
            return Err(fs::read_to_string(dir.join(format!("{control}.log"))).unwrap());
        }
        started = Some(server);
        Ok(())
    });
    started.unwrap()
}

fn status(dir: &Path, control: &str) -> Value {
    lines(dir, &["policy", "status", "--control", control, "--json"]).remove(0)
}

#[test]
fn servers_that_share_an_etcd_have_the_same_policy_and_refuse_edits_of_older_revisions() {
    let Some(etcd) = EtcdProcess::start(1) else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    for (file, uri) in [("one.json", "/a/"), ("two.json", "/b/"), ("three.json", "/c/")] {
        let text = format!(r#"[{{"subject": "Group", "uri": "{uri}"}}]"#);
        fs::write(dir.join(file), text).unwrap();
    }
    let join = etcd.join();
    let one = serve(dir, "one", &join, &["--policy", "one.json"]);
    let two = serve(dir, "two", &join, &["--policy", "two.json"]);
    let first = status(dir, "one");
    assert_eq!((&first["objects"], &status(dir, "two")), (&1.into(), &first));

    let revision = first["revision"].to_string();
    // A busy etcd may exceed the time limit of a call, so the command is repeated.
    let put = ["policy", "put", "two.json", "--control", "two"];
    until("a policy is put", || match run(dir, &put) {
        done if done.status.success() => Ok(()),
        failed => Err(format!("{failed:?}")),
    });
    let made = status(dir, "two");
    assert_eq!(made["objects"], 2);
    until("the edit reaches the other server", || match status(dir, "one") {
        same if same["revision"] == made["revision"] => Ok(()),
        other => Err(format!("{other}, not {made}")),
    });
    assert_eq!(status(dir, "one")["objects"], 2);
    let stale = [
        "policy",
        "put",
        "three.json",
        "--if-revision",
        &revision,
        "--control",
        "one",
    ];
    let wanted = format!(
        "policy has changed: its revision is {}, not {revision}",
        made["revision"]
    );
    let error = failure(dir, &stale);
    assert!(error.contains(&wanted), "{error}");

    // A server that starts with another file takes the policy of the cluster.
    end(one, Signal::TERM);
    let three = serve(dir, "three", &join, &["--policy", "three.json"]);
    assert_eq!(status(dir, "three"), status(dir, "two"));
    end(three, Signal::TERM);
    end(two, Signal::TERM);
}

#[test]
fn a_policy_file_that_changes_while_the_engine_is_away_is_reported_and_the_server_ends_in_order() {
    let Some(mut etcd) = EtcdProcess::start(1) else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let policy = |uri: &str| {
        let text = format!(r#"[{{"subject": "Group", "uri": "{uri}"}}]"#);
        fs::write(dir.join("policy.json"), text).unwrap();
    };
    policy("/a/");
    let server = serve(dir, "control", &etcd.join(), &["--policy", "policy.json"]);
    etcd.kill(0);
    policy("/longer/");
    until("the log has the fault", || {
        let log = fs::read_to_string(dir.join("control.log")).unwrap();
        let is_there = log.contains("policy.json: the engine is away: ");
        is_there.then_some(()).ok_or(log)
    });
    // An orderly end removes the file of the socket.
    let in_order = end(server, Signal::TERM);
    assert!(!dir.join("control").exists() || !in_order);
}

#[test]
fn a_server_that_cannot_join_fails_with_the_reason() {
    let dir = tempfile::tempdir().unwrap();
    let join = "etcd://127.0.0.1:1";
    for (listen, code, reason) in [
        ("127.0.0.1:0", 1, "cannot join: the engine is away: 127.0.0.1:1: "),
        (":0", 2, "--advertise is needed"),
    ] {
        let output = run(dir.path(), &["serve", "--listen", listen, "--join", join]);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(error.contains(reason), "{error}");
        assert_eq!(output.status.code(), Some(code), "{error}");
    }
}
