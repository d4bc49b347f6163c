//! The control socket, and kept policy.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};

use serde_json::{Value, json};
use ssntp_opflex::model::{Format, Schema};
use ssntp_opflex::run::{CallError, Control, ControlError, LocalSocket, StartError};

use super::*;

#[test]
fn policy_is_edited_and_dumped_by_the_control_socket_and_survives_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let (socket, file) = (
        directory.path().join("control"),
        directory.path().join("policy.json"),
    );
    let start = || {
        let config = ServerConfig::new(server_settings("pr1"))
            .policy(vec![object("/a/", "from the configuration")])
            .control(&socket)
            .keep(&file);
        serve_tcp(config)
    };
    let (server, address) = start();
    let element = element("pe1", &address);
    let _policy = element.resolve_policy("GbpEpGroup", uri("/a/"), false).unwrap();
    until_value(&element, Store::Policy, "/a/", Some("from the configuration"));

    let mut control = Control::connect(&socket, LIMIT).unwrap();
    assert_eq!(
        control
            .put(&[object("/a/", "put"), object("/b/", "b")], false)
            .unwrap()
            .changed,
        2
    );
    // The edit is on the disk when it is answered.
    let kept = ManagedObject::read_all(&std::fs::read(&file).unwrap(), Default::default()).unwrap();
    assert_eq!(kept.len(), 2);
    until_value(&element, Store::Policy, "/a/", Some("put"));
    assert_eq!(control.delete(&[uri("/b/")]).unwrap().changed, 1);
    assert_eq!(control.put(&[object("/a/", "put")], true).unwrap().changed, 0);
    assert_eq!(control.dump(&Uri::root()).unwrap(), [object("/a/", "put")]);
    assert_eq!(control.dump(&uri("/b/")).unwrap(), []);
    assert_eq!(control.sessions().unwrap()[0]["name"], "pe1");
    assert!(control.reports(&Uri::root()).unwrap().is_empty());
    assert_eq!(control.endpoints(&Uri::root()).unwrap(), []);
    for (method, params) in [
        ("nobody knows this", json!({})),
        ("ssntp.policy_put", json!({"objects": 7})),
        (
            "ssntp.policy_put",
            json!({"objects": [{"subject": "a", "uri": "/a/", "children": ["/elsewhere/"]}]}),
        ),
    ] {
        let refused = control.call(method, params).unwrap_err();
        assert!(matches!(refused, ControlError::Refused(_)), "{refused}");
    }
    server.stop();
    assert!(matches!(control.dump(&Uri::root()), Err(ControlError::Io(_))));

    let (server, _) = start();
    assert_eq!(server.handle().policy().unwrap(), [object("/a/", "put")]);
    server.handle().edit(Edit::Reload(Vec::new())).unwrap();
    server.stop();
    assert_eq!(std::fs::read_to_string(&file).unwrap().trim(), "[]");
}

#[test]
fn a_failed_write_is_reported_and_repeated() {
    let directory = tempfile::tempdir().unwrap();
    let (socket, file) = (
        directory.path().join("control"),
        directory.path().join("policy.json"),
    );
    let config = ServerConfig::new(server_settings("pr1"))
        .control(&socket)
        .keep(&file);
    let server = serve(config.clone());
    // A directory can't be replaced by a file.
    std::fs::create_dir(&file).unwrap();
    let mut control = Control::connect(&socket, LIMIT).unwrap();
    let unsaved = control.put(&[object("/a/", "a")], false).unwrap_err().to_string();
    assert!(unsaved.contains("policy is changed, but not kept: "), "{unsaved}");
    // Sent once more, it changes nothing, and is still not kept.
    let unsaved = control.put(&[object("/a/", "a")], false).unwrap_err().to_string();
    assert!(unsaved.contains("policy is changed, but not kept: "), "{unsaved}");
    let unsaved = server
        .handle()
        .edit(Edit::Merge(vec![object("/b/", "b")]))
        .unwrap_err();
    assert!(matches!(unsaved, CallError::Keep(_)), "{unsaved}");
    // The policy is changed nevertheless, and kept as soon as the file can be written.
    assert_eq!(control.dump(&Uri::root()).unwrap().len(), 2);
    let faults = || server.handle().figures().unwrap().policy_faults;
    assert!(faults()[0].contains("policy is not kept: "), "{:?}", faults());
    std::fs::remove_dir(&file).unwrap();
    until(|| file.exists());
    until(|| faults().is_empty());
    let kept = || ManagedObject::read_all(&std::fs::read(&file).unwrap(), Default::default()).unwrap();
    assert_eq!(kept().len(), 2);

    // The stop tries once more, and does not wait for success.
    std::fs::remove_file(&file).unwrap();
    std::fs::create_dir(&file).unwrap();
    control.put(&[object("/c/", "c")], false).unwrap_err();
    std::fs::remove_dir(&file).unwrap();
    server.stop();
    assert_eq!(kept().len(), 3);
    let server = serve(config);
    std::fs::remove_file(&file).unwrap();
    std::fs::create_dir(&file).unwrap();
    server.handle().edit(Edit::Delete(vec![uri("/a/")])).unwrap_err();
    let begin = Instant::now();
    server.stop();
    assert!(begin.elapsed() < LIMIT);
}

#[test]
fn a_large_policy_is_dumped_in_parts_of_one_revision() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("control");
    let policy: Vec<_> = (0..1200).map(|n| object(&format!("/a/{n:04}/"), "old")).collect();
    let config = ServerConfig::new(server_settings("pr1"))
        .policy(policy.clone())
        .control(&socket);
    let server = serve(config);
    let mut control = Control::connect(&socket, LIMIT).unwrap();
    assert_eq!(control.dump(&Uri::root()).unwrap(), policy);
    assert_eq!(control.dump(&uri("/a/")).unwrap(), policy);
    assert_eq!(
        control.dump(&uri("/a/0007/")).unwrap(),
        [object("/a/0007/", "old")]
    );

    let first = control.call("ssntp.policy_dump", json!({})).unwrap();
    let begun = first["objects"].as_array().unwrap().len();
    assert!(begun < 1200);
    // The next part has another revision.
    let handle = server.handle();
    handle.edit(Edit::Delete(vec![uri("/a/0000/")])).unwrap();
    let next = json!({ "after": first["after"] });
    let second = control.call("ssntp.policy_dump", next).unwrap();
    assert_eq!(second["objects"][0]["uri"], policy[begun].uri.as_str());
    assert!(second["revision"].as_u64() > first["revision"].as_u64());

    // While policy changes all the time, dumps and copies have the policy of one revision.
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 0.. {
                let both = ["/a/0001/", "/a/1199/"].map(|at| object(at, &n.to_string()));
                handle.edit(Edit::Merge(both.to_vec())).unwrap();
                if stop.load(std::sync::atomic::Ordering::Relaxed) {
                    return;
                }
            }
        });
        for _ in 0..10 {
            let copy = server.handle().policy().unwrap();
            assert_eq!(copy.len(), 1199);
            assert_eq!(copy[0].property("name"), copy[1198].property("name"));
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    assert_eq!(control.dump(&Uri::root()).unwrap().len(), 1199);
}

#[test]
fn a_large_policy_is_put_and_reloaded_in_pieces() {
    let directory = tempfile::tempdir().unwrap();
    let (socket, file) = (
        directory.path().join("control"),
        directory.path().join("policy.json"),
    );
    let (server, address) = serve_tcp(
        ServerConfig::new(server_settings("pr1"))
            .control(&socket)
            .keep(&file),
    );
    let element = element("pe1", &address);
    let _policy = element
        .resolve_policy("GbpEpGroup", uri("/a/1700/"), false)
        .unwrap();
    until_server(&server.handle(), |core, now| {
        core.sessions(now)
            .first()
            .is_some_and(|session| session.policies == 1)
    });
    let policy =
        |value: &str| -> Vec<_> { (0..2500).map(|n| object(&format!("/a/{n:04}/"), value)).collect() };
    let mut control = Control::connect(&socket, LIMIT).unwrap();
    // All objects are checked before the first piece is made.
    let mut bad = policy("bad");
    bad[2400].children = vec![uri("/elsewhere/")];
    control.put(&bad, false).unwrap_err();
    assert_eq!(control.dump(&Uri::root()).unwrap(), []);
    let mut shuffled = policy("one");
    shuffled.reverse();
    let before = control.reload(&[]).unwrap().revision;
    let put = control.put(&shuffled, false).unwrap();
    // Each piece is a call of the dispatcher and makes a revision, so no client waits for all of them.
    assert_eq!((put.changed, put.revision), (2500, before + 3));
    assert_eq!(control.dump(&Uri::root()).unwrap(), policy("one"));
    until_value(&element, Store::Policy, "/a/1700/", Some("one"));

    assert_eq!(control.reload(&policy("one")).unwrap().changed, 0);
    let mut next = policy("one");
    next[1700] = object("/a/1700/", "two");
    next.push(object("/b/", "new"));
    next.remove(3);
    assert_eq!(control.reload(&next).unwrap().changed, 3);
    until_value(&element, Store::Policy, "/a/1700/", Some("two"));
    assert_eq!(control.reload(&policy("three")).unwrap().changed, 2501);
    until_value(&element, Store::Policy, "/a/1700/", Some("three"));
    // While the server runs, the journal may have edits.
    server.stop();
    let kept = ManagedObject::read_all(&std::fs::read(&file).unwrap(), Default::default()).unwrap();
    assert_eq!(kept, policy("three"));
}

#[test]
fn a_connection_with_half_a_request_says_that_it_is_of_no_use() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("control");
    // It accepts and reads nothing.
    let _listener = UnixListener::bind(&socket).unwrap();
    let mut control = Control::connect(&socket, Duration::from_millis(100)).unwrap();
    let long = [object("/a/", &"x".repeat(4 << 20))];
    let put = control.put(&long, false);
    assert!(matches!(put, Err(ControlError::TimedOut)), "{put:?}");
    let status = control.status();
    assert!(matches!(status, Err(ControlError::Broken)), "{status:?}");
}

#[test]
fn two_long_edits_at_once_do_not_mix() {
    let (server, _) = serve_tcp(ServerConfig::new(server_settings("pr1")));
    let policy =
        |value: &str| -> Vec<_> { (0..3000).map(|n| object(&format!("/a/{n:04}/"), value)).collect() };
    let handle = server.handle();
    for _ in 0..5 {
        std::thread::scope(|scope| {
            for value in ["one", "two"] {
                let (handle, objects) = (&handle, policy(value));
                scope.spawn(move || handle.edit(Edit::Merge(objects)).unwrap());
            }
        });
        let present = handle.policy().unwrap();
        assert!(present == policy("one") || present == policy("two"));
    }
    server.stop();
    // No part of an edit is made after the last write of the kept policy.
    assert!(handle.edit(Edit::Merge(policy("three"))).is_err());
}

#[test]
fn endpoints_and_reports_are_shown_with_their_element_and_time() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("control");
    let (_server, address) = serve_tcp(ServerConfig::new(server_settings("pr1")).control(&socket));
    let element = element("pe1", &address);
    let endpoint = uri("/EprL3Universe/EprL3Ep/10.0.0.1/");
    element
        .declare(vec![
            ManagedObject::new("EprL3Ep", endpoint.clone()).with("ip", "10.0.0.1"),
        ])
        .unwrap();
    for n in 0..1100 {
        let object = ManagedObject::new("Counter", uri(&format!("/Counter/{n}/"))).with("packets", n);
        element.report(object).unwrap();
    }
    until(|| element.unanswered().unwrap() == 0);

    let mut control = Control::connect(&socket, LIMIT).unwrap();
    let endpoints = control.endpoints(&Uri::root()).unwrap();
    assert_eq!(endpoints.len(), 1);
    assert_eq!(endpoints[0].object.uri, endpoint);
    assert_eq!(endpoints[0].element.as_deref(), Some("pe1"));
    let expires = endpoints[0].expires_in.unwrap();
    assert!((7000.0..=7200.0).contains(&expires), "{expires}");

    let reports = control.reports(&Uri::root()).unwrap();
    assert_eq!(reports.len(), 1100);
    let since_1970 = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap()
        .as_secs_f64();
    for time in [
        &reports[0]["arrived"],
        &reports[0]["numbers"]["packets"][0]["intervals"][0]["start"],
    ] {
        let age = since_1970 - time.as_f64().unwrap();
        assert!((-5.0..120.0).contains(&age), "{age}");
    }
    let one = control.reports(&uri("/Counter/7/")).unwrap();
    assert_eq!(one.len(), 1);
    assert_eq!(one[0]["object"]["properties"][0]["data"], 7);
    assert_eq!((&one[0]["element"], &one[0]["count"]), (&json!("pe1"), &json!(1)));
    let sessions = control.sessions().unwrap();
    assert_eq!(sessions[0]["requests"]["state_report"], 1100);
    assert_eq!(sessions[0]["endpoints"], 1);
}

#[test]
fn a_part_of_a_list_has_about_a_mebibyte_and_all_parts_are_read() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("control");
    let (_server, address) = serve_tcp(ServerConfig::new(server_settings("pr1")).control(&socket));
    let element = element("pe1", &address);
    for n in 0..30 {
        let long = "x".repeat(100_000);
        element
            .declare(vec![object(&format!("/ep/{n:02}/"), &long)])
            .unwrap();
        element.report(object(&format!("/stats/{n:02}/"), &long)).unwrap();
    }
    until(|| element.unanswered().unwrap() == 0);
    let mut control = Control::connect(&socket, LIMIT).unwrap();
    for (method, member) in [
        ("ssntp.endpoint_dump", "endpoints"),
        ("ssntp.report_dump", "reports"),
    ] {
        let part = control.call(method, json!({})).unwrap();
        let entries = part[member].as_array().unwrap().len();
        assert!((1..=10).contains(&entries), "{entries}");
        assert!(!part["after"].is_null());
    }
    assert_eq!(control.endpoints(&Uri::root()).unwrap().len(), 30);
    assert_eq!(control.reports(&Uri::root()).unwrap().len(), 30);
}

#[test]
fn a_request_before_a_malformed_one_is_answered() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("control");
    let _server = serve(ServerConfig::new(server_settings("pr1")).control(&socket));
    let mut stream = UnixStream::connect(&socket).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    let put = json!({"method": "ssntp.policy_put", "params": {"objects": [object("/a/", "a")]}});
    let request = json!({"id": ["custom", 1], "method": "custom", "params": [put]});
    stream
        .write_all(format!("{request}\0malformed\0").as_bytes())
        .unwrap();
    let answers: Vec<_> = BufReader::new(stream).split(0).map(Result::unwrap).collect();
    assert_eq!(answers.len(), 1);
    let answer: Value = serde_json::from_slice(&answers[0]).unwrap();
    assert_eq!(answer["result"]["result"]["changed"], 1, "{answer}");
}

#[test]
fn objects_that_the_model_does_not_allow_are_refused_by_name() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("control");
    let model = "
classes:
  Space: {properties: {name: string}}
  Group: {under: [Space], properties: {name: string, encap: u64}}
";
    let schema = Schema::read(model.as_bytes(), Format::Yaml).unwrap();
    let mut config = ServerConfig::new(server_settings("pr1"))
        .policy(vec![ManagedObject::new("Space", uri("/Space/s/"))])
        .control(&socket);
    config.schema = Some(schema.into());
    let bad = || ManagedObject::new("Group", uri("/Space/s/Group/g/")).with("encap", "seven");
    let start = Server::start(config.clone().policy(vec![bad()]))
        .unwrap_err()
        .to_string();
    assert!(
        start.contains("\"encap\" of /Space/s/Group/g/ is not an integer"),
        "{start}"
    );

    let (_server, address) = serve_tcp(config);
    let mut control = Control::connect(&socket, LIMIT).unwrap();
    let mut refused = |object: ManagedObject| control.put(&[object], false).unwrap_err().to_string();
    let wrong = refused(bad());
    assert!(wrong.contains("\"encap\" of /Space/s/Group/g/"), "{wrong}");
    // The parent is known from the tree.
    let inner = ManagedObject::new("Group", uri("/Space/s/Group/g/Group/h/"));
    let parent = ManagedObject::new("Group", uri("/Space/s/Group/g/"));
    assert_eq!(
        control.put(std::slice::from_ref(&parent), false).unwrap().changed,
        1
    );
    let mut refused = |object: ManagedObject| control.put(&[object], false).unwrap_err().to_string();
    let wrong = refused(inner.clone());
    assert!(
        wrong.contains("/Group/h/, a Group, can't be contained in a Group"),
        "{wrong}"
    );
    let wrong = refused(inner.under("Space", parent.uri.clone()));
    assert!(wrong.contains("can't be contained in a Group"), "{wrong}");
    assert_eq!(control.dump(&Uri::root()).unwrap().len(), 2);

    let mut raw = raw::Raw::identified(&address, "pe1", "test");
    for (method, params) in [
        ("endpoint_declare", json!([{"endpoint": [bad()], "prr": 10}])),
        ("state_report", json!([{"observable": [bad()]}])),
    ] {
        let answer = raw.ask(&json!({"id": [method, 1], "method": method, "params": params}));
        let message = answer["error"]["message"].as_str().unwrap();
        assert!(message.contains("\"encap\" of /Space/s/Group/g/"), "{message}");
    }
}

#[test]
fn a_start_that_fails_has_a_reason() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("policy.json");
    std::fs::write(&file, "no policy").unwrap();
    let config = ServerConfig::new(server_settings("pr1"));
    let kept = Server::start(config.clone().keep(&file)).unwrap_err();
    assert!(matches!(kept, StartError::Kept(..)), "{kept}");
    let own_child = r#"[{"subject": "A", "uri": "/a/", "children": ["/elsewhere/"]}]"#;
    std::fs::write(&file, own_child).unwrap();
    let kept = Server::start(config.clone().keep(&file)).unwrap_err();
    assert!(
        kept.to_string().contains(file.to_str().unwrap()),
        "{kept} names the file"
    );
    let nowhere = Server::start(config.clone().keep(directory.path())).unwrap_err();
    assert!(matches!(nowhere, StartError::Keep(..)), "{nowhere}");
    let (server, address) = serve_tcp(config.clone());
    let taken = Server::start(config.clone().listen(address.parse().unwrap())).unwrap_err();
    assert!(matches!(taken, StartError::Listen(..)), "{taken}");
    let mut many = config;
    many.max_connections = Some(usize::MAX);
    let many = Server::start(many).unwrap_err();
    assert!(matches!(many, StartError::TooManyConnections(_)), "{many}");
    let element = PolicyElement::start(ElementConfig::new(element_settings("pe1", &["no address!"])));
    assert!(matches!(element.unwrap_err(), StartError::Address(_)));
    // The socket that was opened first is closed again, with its thread.
    let inspector = directory.path().join("inspector");
    let mut config = ElementConfig::new(element_settings("pe1", &[&address]));
    config.inspector = Some(LocalSocket::new(&inspector));
    config.serve = Some(LocalSocket::new(directory.path().join("missing/feed")));
    let element = PolicyElement::start(config);
    assert!(matches!(element.unwrap_err(), StartError::Listen(..)));
    assert!(!inspector.exists());
    server.stop();
}

#[test]
fn a_client_beyond_the_limit_is_refused() {
    let mut config = ServerConfig::new(server_settings("pr1"));
    config.max_connections = Some(1);
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("control");
    let (_server, address) = serve_tcp(config.control(&socket));
    let first = raw::Raw::identified(&address, "a", "test");
    assert_eq!(raw::Raw::connect(&address).recv(), None);
    // A control connection does not count as a client.
    let mut control = Control::connect(&socket, LIMIT).unwrap();
    assert_eq!(control.sessions().unwrap().len(), 1);
    drop((first, control));
    // The limit of clients has room again when the client has left.
    until(|| raw::Raw::connect(&address).recv().is_some());
}

#[test]
fn concurrent_edits_are_all_made_in_their_order() {
    let directory = tempfile::tempdir().unwrap();
    let (socket, file) = (
        directory.path().join("control"),
        directory.path().join("policy.json"),
    );
    // Each edit waits for the disk, while the next ones are requested.
    let config = ServerConfig::new(server_settings("pr1"))
        .control(&socket)
        .keep(&file);
    let server = serve(config);
    let mut stream = UnixStream::connect(&socket).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    for n in 0..100 {
        let put =
            json!({"method": "ssntp.policy_put", "params": {"objects": [object("/a/", &n.to_string())]}});
        let request = json!({"id": ["custom", n], "method": "custom", "params": [put]});
        stream.write_all(format!("{request}\0").as_bytes()).unwrap();
    }
    let mut answers = BufReader::new(stream).split(0);
    for n in 0..100 {
        let answer: Value = serde_json::from_slice(&answers.next().unwrap().unwrap()).unwrap();
        assert_eq!(answer["id"][1], n);
        assert_eq!(answer["result"]["result"]["changed"], 1, "{answer}");
    }
    assert_eq!(server.handle().policy().unwrap(), [object("/a/", "99")]);
}

#[test]
fn a_policy_longer_than_a_clients_message_is_put() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("control");
    let place = MemoryListener::new();
    let config = ServerConfig::new(server_settings("pr1")).listen_in_memory(&place, "pr1:1");
    let server = serve(config.control(&path));
    let mut control = Control::connect(&path, LIMIT).unwrap();
    let objects: Vec<_> = (0..66)
        .map(|n| object(&format!("/long/{n}/"), &"x".repeat(1 << 20)))
        .collect();
    assert_eq!(control.put(&objects, false).unwrap().changed, 66);
    drop(control);
    server.stop();
}

#[test]
fn an_edit_is_appended_to_the_journal_and_survives_a_crash() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let start = |name: &str, policy: Vec<ManagedObject>| {
        let place = MemoryListener::new();
        let config = ServerConfig::new(server_settings("pr1")).listen_in_memory(&place, "pr1:1");
        serve(config.policy(policy).keep(at(name)))
    };
    let all = (0..3000).map(|n| object(&format!("/p/{n}/"), "x")).collect();
    let server = start("policy", all);
    let handle = server.handle();
    handle.edit(Edit::Merge(vec![object("/p/1/", "first")])).unwrap();
    let whole = std::fs::read(at("policy")).unwrap();
    handle
        .edit(Edit::Merge(vec![
            object("/p/2/", "second"),
            object("/p/2/below/", "b"),
        ]))
        .unwrap();
    handle.edit(Edit::Delete(vec![uri("/p/3/")])).unwrap();
    handle
        .edit(Edit::Replace(vec![object("/p/2/", "third")]))
        .unwrap();
    // Edits that change nothing but the list of children: one is added, and others are dropped.
    let mut announces = object("/p/4/", "x");
    announces.children = ["a", "b", "c"].map(|name| uri(&format!("/p/4/{name}/"))).to_vec();
    handle.edit(Edit::Merge(vec![announces.clone()])).unwrap();
    handle.edit(Edit::Delete(vec![uri("/p/4/a/")])).unwrap();
    announces.children.retain(|child| *child == uri("/p/4/b/"));
    assert_eq!(handle.edit(Edit::Replace(vec![announces])).unwrap(), 1);
    assert!(
        std::fs::read(at("policy")).unwrap() == whole,
        "the policy file is not written again"
    );
    let edits = std::fs::read(at("policy.edits")).unwrap();
    assert!(edits.len() < 2000, "{}", edits.len());
    let mode = |name: &str| std::fs::metadata(at(name)).unwrap().permissions().mode();
    assert_eq!(mode("policy.edits"), mode("policy"), "other users cannot read it");

    // The files after a crash, also in the middle of an edit.
    let expected = handle.policy().unwrap();
    for (name, torn) in [("crashed", &b""[..]), ("torn", b"{\"delete\":[\"/p/4/\"],\"pu")] {
        std::fs::write(at(name), &whole).unwrap();
        std::fs::write(at(&format!("{name}.edits")), [&edits, torn].concat()).unwrap();
        let again = start(name, Vec::new());
        assert!(again.handle().policy().unwrap() == expected, "{name}");
        // Further edits are possible.
        again
            .handle()
            .edit(Edit::Merge(vec![object("/p/5/", "later")]))
            .unwrap();
        again
            .handle()
            .edit(Edit::Merge(vec![object("/p/6/", "later")]))
            .unwrap();
        let expected = again.handle().policy().unwrap();
        again.stop();
        assert!(!at(&format!("{name}.edits")).exists());
        assert!(
            start(name, Vec::new()).handle().policy().unwrap() == expected,
            "{name}"
        );
    }
    // The journal is ignored if another program has changed the file.
    std::fs::write(at("other"), b"[]").unwrap();
    std::fs::write(at("other.edits"), &edits).unwrap();
    assert_eq!(start("other", Vec::new()).handle().policy().unwrap(), []);

    // A journal that cannot be read is not ignored.
    std::fs::write(at("unreadable"), b"[]").unwrap();
    std::fs::create_dir(at("unreadable.edits")).unwrap();
    let config = ServerConfig::new(server_settings("pr1")).keep(at("unreadable"));
    assert!(matches!(Server::start(config), Err(StartError::Keep(..))));
    // Nor are edits behind a damaged line, because their callers were told that they are kept.
    let lines: Vec<_> = edits.split_inclusive(|byte| *byte == b'\n').collect();
    for (number, damage) in [(0, &b"{}\n"[..]), (1, b"\0\0\0\n"), (2, b"{\"delete\":[7]}\n")] {
        let mut lines = lines.clone();
        lines[number] = damage;
        std::fs::write(at("damaged"), &whole).unwrap();
        std::fs::write(at("damaged.edits"), lines.concat()).unwrap();
        let config = ServerConfig::new(server_settings("pr1")).keep(at("damaged"));
        let error = Server::start(config).map(drop).unwrap_err().to_string();
        assert!(
            error.contains(&format!("line {} is damaged", number + 1)),
            "{error}"
        );
        assert_eq!(std::fs::read(at("damaged.edits")).unwrap(), lines.concat());
        if number > 0 {
            assert!(error.contains("remove the line"), "{error}");
            lines.remove(number);
            std::fs::write(at("mended"), &whole).unwrap();
            std::fs::write(at("mended.edits"), lines.concat()).unwrap();
            assert!(start("mended", Vec::new()).handle().policy().unwrap().len() > 1);
        }
    }
    std::fs::remove_file(at("damaged")).unwrap();
    let config = ServerConfig::new(server_settings("pr1")).keep(at("damaged"));
    let error = Server::start(config).map(drop).unwrap_err().to_string();
    assert!(error.contains("it is missing, and "), "{error}");

    server.stop();
    assert!(!at("policy.edits").exists());
    let kept = ManagedObject::read_all(&std::fs::read(at("policy")).unwrap(), Format::Json).unwrap();
    assert!(kept == expected);
}

#[test]
fn the_requests_of_an_agent_are_counted_over_all_its_sessions() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("control");
    let mut settings = server_settings("pr1");
    settings.limits.agents = 2;
    let config = ServerConfig::new(settings)
        .policy(vec![object("/a/", "a")])
        .control(&socket);
    let (server, address) = serve_tcp(config);
    let mut control = Control::connect(&socket, LIMIT).unwrap();
    let mut agents = move || control.agents().unwrap();
    // The counters of ended sessions are summed up.
    for session in 1..4 {
        let element = element("pe1", &address);
        let _policy = element.resolve_policy("GbpEpGroup", uri("/a/"), false).unwrap();
        element.report(object("/c/", "c")).unwrap();
        until(|| element.unanswered().unwrap() == 0);
        let agent = agents().remove(0);
        assert_eq!((&agent["name"], &agent["connected"]), (&json!("pe1"), &json!(1)));
        assert_eq!(agent["requests"]["policy_resolve"], session);
        drop(element);
        until(|| agents()[0]["connected"] == 0);
        let agent = agents().remove(0);
        assert_eq!(agent["sessions"], session);
        for method in ["send_identity", "policy_resolve", "state_report"] {
            assert_eq!(agent["requests"][method], session, "{agent}");
        }
        for bytes in ["bytes_received", "bytes_sent"] {
            assert!(agent[bytes].as_u64().unwrap() > 200 * session, "{agent}");
        }
    }
    // Of the agents that have left, the last two are kept.
    let stays = element("stays", &address);
    until_health(&stays, Health::Healthy);
    for name in ["pe2", "pe3"] {
        let passes = element(name, &address);
        until_health(&passes, Health::Healthy);
        drop(passes);
        until(|| {
            let agents = agents();
            agents
                .iter()
                .any(|agent| agent["name"] == name && agent["connected"] == 0)
        });
    }
    let names: Vec<_> = agents().iter().map(|agent| agent["name"].clone()).collect();
    assert_eq!(names, ["pe2", "pe3", "stays"]);
    assert_eq!(server.handle().agents().unwrap().len(), 3);
}

#[test]
fn the_time_limit_of_a_call_holds_for_all_its_writes_together() {
    const LONG: usize = 8 << 20;
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("control");
    let listener = UnixListener::bind(&socket).unwrap();
    let (done, ended) = crossbeam_channel::bounded::<()>(0);
    // Takes some bytes often enough for each write, but would take more than a second for all.
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let (mut taken, mut piece) = (0, [0; 64 << 10]);
        while ended
            .recv_timeout(Duration::from_millis(10))
            .unwrap_err()
            .is_timeout()
        {
            taken += stream.read(&mut piece).unwrap();
        }
        taken
    });
    let mut control = Control::connect(&socket, Duration::from_millis(100)).unwrap();
    let late = control.call("method", json!("x".repeat(LONG)));
    assert!(matches!(late, Err(ControlError::TimedOut)), "{late:?}");
    drop((done, control));
    assert!(server.join().unwrap() < LONG);
}
