//! Policy in files, other changes of the policy, and the model that checks it.

use std::os::unix::net::UnixListener;
use std::thread;

use super::*;
use crate::processes::words;

#[test]
fn a_policy_that_the_model_does_not_allow_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let model = "classes:\n  Group: {properties: {encap: u64}}\n";
    let object =
        r#"[{"subject": "Group", "uri": "/Group/g/", "properties": [{"name": "encap", "data": 7}]}]"#;
    fs::write(dir.join("model.yaml"), model).unwrap();
    fs::write(dir.join("good.json"), object).unwrap();
    fs::write(dir.join("bad.json"), object.replace('7', "\"seven\"")).unwrap();
    let serve = [
        "serve",
        "--listen",
        "127.0.0.1:0",
        "--model",
        "model.yaml",
        "--control",
        "control",
    ];
    let error = failure(dir, &[&serve[..], &["--policy", "bad.json"]].concat());
    assert!(
        error.contains("\"encap\" of /Group/g/ is not an integer"),
        "{error}"
    );

    let (server, mut output) = start(dir, &[&serve[..], &["--policy", "good.json"]].concat());
    let listening = line(&mut output);
    let address = listening.strip_prefix("listening at ").unwrap();
    let error = failure(dir, &["policy", "put", "bad.json", "--control", "control"]);
    assert!(
        error.contains("\"encap\" of /Group/g/ is not an integer"),
        "{error}"
    );
    let error = failure(dir, &["element", "--connect", address, "--declare", "bad.json"]);
    assert!(
        error.contains("endpoint_declare") && error.contains("\"encap\" of /Group/g/"),
        "{error}"
    );
    end(server, Signal::TERM);
    fs::write(dir.join("model.yaml"), "classes:\n  Group: {under: [Spaec]}\n").unwrap();
    let error = failure(dir, &serve);
    assert!(
        error.contains("class Group names the unknown class Spaec"),
        "{error}"
    );
}

/// Waits until a program has written something to a file.
fn until_written(path: &Path, text: &str) {
    until(&format!("{text:?} is written"), || {
        let written = fs::read_to_string(path).unwrap_or_default();
        written.contains(text).then_some(()).ok_or(written)
    });
}

#[test]
fn changed_policy_files_are_applied_completely_or_not_at_all() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    fs::create_dir(dir.join("policy")).unwrap();
    let write = |file: &str, text: &str| {
        fs::write(dir.join(file), text).unwrap();
        fs::rename(dir.join(file), dir.join("policy").join(file)).unwrap();
    };
    let object = |uri: &str, name: &str| {
        format!(
            "[{{\"subject\": \"Group\", \"uri\": \"{uri}\", \"properties\": [{{\"name\": \"name\", \"data\": {name}}}]}}]"
        )
    };
    write("a.json", &object("/a/", "\"a\""));
    write(
        "b.yaml",
        "- {subject: Group, uri: /b/, properties: [{name: name, data: b}]}",
    );
    write("notes.txt", "no policy");
    write(".b.yaml.swp", "no policy");
    fs::write(
        dir.join("model.yaml"),
        "classes: {Group: {properties: {name: string}}}",
    )
    .unwrap();
    let (server, mut output) = {
        let errors = fs::File::create(dir.join("errors")).unwrap();
        let arguments = [
            "serve",
            "--listen",
            "127.0.0.1:0",
            "--policy",
            "policy",
            "--model",
            "model.yaml",
            "--control",
            "control",
        ];
        let mut child = Program::start(opflex(dir, &arguments).stderr(errors));
        let output = BufReader::new(child.stdout.take().unwrap());
        (child, output)
    };
    let listening = line(&mut output);
    let address = listening.strip_prefix("listening at ").unwrap();
    let (element, mut events) = start(
        dir,
        &words(&format!(
            "element --connect {address} --resolve Group /a/ --watch --json"
        )),
    );
    assert_eq!(changed(&mut events, "/a/"), "a");
    write("a.json", &object("/a/", "\"a2\""));
    assert_eq!(changed(&mut events, "/a/"), "a2");
    // The policy is that of all files, or that of their last valid contents.
    write("b.yaml", "- {subject: Group, uri: /b/,");
    until_written(&dir.join("errors"), "policy/b.yaml: YAML: ");
    write("a.json", &object("/a/", "\"a3\""));
    write(
        "b.yaml",
        "- {subject: Group, uri: /b/, properties: [{name: name, data: 7}]}",
    );
    until_written(
        &dir.join("errors"),
        "policy/b.yaml: property \"name\" of /b/ is not a string",
    );
    let status = run(dir, &["policy", "status", "--control", "control"]);
    let status = String::from_utf8(status.stdout).unwrap();
    assert!(status.ends_with(", 2 objects\n"), "{status}");
    write(
        "b.yaml",
        "- {subject: Group, uri: /b/, properties: [{name: name, data: b2}]}",
    );
    assert_eq!(changed(&mut events, "/a/"), "a3");
    fs::remove_file(dir.join("policy/a.json")).unwrap();
    assert_eq!(changed(&mut events, "/a/"), Value::Null);
    end(element, Signal::INT);
    end(server, Signal::TERM);
}

#[test]
fn a_policy_of_put_survives_reloads_and_touched_files() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let object = |name: &str| {
        format!(
            "[{{\"subject\": \"Group\", \"uri\": \"/a/\", \"properties\": [{{\"name\": \"name\", \"data\": \"{name}\"}}]}}]"
        )
    };
    let write = |name: &str, text: &str| {
        fs::write(dir.join("new"), text).unwrap();
        fs::rename(dir.join("new"), dir.join(name)).unwrap();
    };
    let shown = || {
        let dump = run(dir, &["policy", "dump", "--control", "control"]);
        let dumped: Value = serde_json::from_slice(&dump.stdout).unwrap();
        dumped[0]["properties"][0]["data"].clone()
    };
    let serve = || {
        let errors = fs::File::create(dir.join("errors")).unwrap();
        let mut arguments = vec!["serve", "--listen", "127.0.0.1:0", "--policy", "policy.json"];
        arguments.extend(["--persist", "kept.json", "--control", "control"]);
        let mut command = opflex(dir, &arguments);
        command.env("RUST_LOG", "info");
        let mut child = Program::start(command.stderr(errors));
        line(&mut BufReader::new(child.stdout.take().unwrap()));
        child
    };
    let hang_up = |server: &Program| server.signal(Signal::HUP);

    write("policy.json", &object("filed"));
    write("put.json", &object("put"));
    let server = serve();
    assert_eq!(shown(), "filed");
    run(dir, &["policy", "put", "put.json", "--control", "control"]);
    hang_up(&server);
    until_written(&dir.join("errors"), "its contents are the same");
    fs::write(dir.join("errors"), "").unwrap();
    // A file with the same contents changes nothing, and neither does a file with a fault.
    write("policy.json", &object("filed"));
    until_written(&dir.join("errors"), "its contents are the same");
    assert_eq!(shown(), "put");
    write("policy.json", "[{");
    fs::write(dir.join("errors"), "").unwrap();
    hang_up(&server);
    until_written(&dir.join("errors"), "read its files again");
    until_written(&dir.join("errors"), "the policy stays as it was");
    assert_eq!(shown(), "put");
    end(server, Signal::TERM);

    // The file is edited while the server is down. The kept policy applies, and the log says so. File
    // systems store times in steps of some milliseconds, and the server has just written its own file.
    write("policy.json", &object("edited"));
    let kept = fs::metadata(dir.join("kept.json")).unwrap().modified().unwrap();
    let edited = fs::File::options().write(true).open(dir.join("policy.json"));
    edited
        .unwrap()
        .set_modified(kept + Duration::from_secs(1))
        .unwrap();
    let server = serve();
    until_written(
        &dir.join("errors"),
        "policy.json is newer than the policy kept in kept.json",
    );
    assert_eq!(shown(), "put");
    write("policy.json", &object("again"));
    until_written(
        &dir.join("errors"),
        "replaces all policy, including changes made through the control socket",
    );
    until_written(&dir.join("errors"), "1 objects changed");
    assert_eq!(shown(), "again");
    end(server, Signal::TERM);
}

#[test]
fn a_change_for_another_revision_of_the_policy_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    fs::write(dir.join("one.json"), r#"[{"subject": "Group", "uri": "/a/"}]"#).unwrap();
    fs::write(dir.join("two.json"), r#"[{"subject": "Group", "uri": "/b/"}]"#).unwrap();
    let serve = || {
        let (server, mut output) = start(
            dir,
            &words("serve --listen 127.0.0.1:0 --control control --persist kept.json"),
        );
        line(&mut output);
        server
    };
    let server = serve();
    let policy = |arguments: &[&str]| {
        let all = [&["policy"][..], arguments, &["--control", "control", "--json"]].concat();
        lines(dir, &all).remove(0)
    };
    let at = |revision: &Value| revision.to_string();
    let first = policy(&["status"]);
    assert_eq!(first["objects"], 0);
    let put = policy(&["put", "one.json", "--if-revision", &at(&first["revision"])]);
    assert_eq!(put["changed"], 1);
    assert_eq!(policy(&["status"])["revision"], put["revision"]);
    for stale in [
        &["put", "two.json"][..],
        &["reload", "two.json"],
        &["delete", "/a/"],
    ] {
        let arguments = [
            &["policy"][..],
            stale,
            &["--control", "control", "--if-revision", &at(&first["revision"])],
        ];
        let error = failure(dir, &arguments.concat());
        assert!(error.contains("policy has changed: its revision is "), "{error}");
    }
    assert_eq!(policy(&["status"])["objects"], 1);
    // The same policy again does not change the revision.
    let same = policy(&["put", "one.json", "--if-revision", &at(&put["revision"])]);
    assert_eq!(
        (&same["changed"], &same["revision"]),
        (&0.into(), &put["revision"])
    );
    end(server, Signal::TERM);
    // Another process has other revisions.
    let server = serve();
    let status = policy(&["status"]);
    assert_eq!(status["objects"], 1);
    assert!(
        status["revision"].as_u64() > put["revision"].as_u64(),
        "{status} {put}"
    );
    let deleted = policy(&["delete", "/a", "--if-revision", &at(&status["revision"])]);
    assert_eq!(deleted["changed"], 1);
    end(server, Signal::TERM);
}

#[test]
fn a_change_that_is_not_answered_may_have_been_made() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    fs::write(dir.join("policy.json"), "[]").unwrap();
    // A paused server accepts nothing.
    let listener = UnixListener::bind(dir.join("control")).unwrap();
    let paused = words("policy reload policy.json --control control --timeout 1");
    assert_eq!(
        failure(dir, &paused),
        "ssntp: the server does not answer, and may still make the change\n"
    );
    let status = words("policy status --control control --timeout 1");
    assert_eq!(failure(dir, &status), "ssntp: the server does not answer\n");
    drop(listener);

    fs::remove_file(dir.join("control")).unwrap();
    let listener = UnixListener::bind(dir.join("control")).unwrap();
    // A server that is killed has read the request.
    let killed = thread::spawn(move || {
        let (client, _) = listener.accept().unwrap();
        BufReader::new(client).read_until(0, &mut Vec::new()).unwrap();
    });
    let reload = words("policy reload policy.json --control control");
    assert_eq!(
        failure(dir, &reload),
        "ssntp: the server closed the connection, and may have made the change\n"
    );
    killed.join().unwrap();
}

#[test]
fn a_model_checks_the_served_policy() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let model = r#"{"classes": {"GbpGroup": {"properties": {"name": "string", "id": "u64"}}}}"#;
    fs::write(dir.join("model.json"), model).unwrap();
    fs::write(
        dir.join("bad.json"),
        r#"[{"subject": "GbpGroup", "uri": "/g/", "properties": [{"name": "id", "data": "seven"}]}]"#,
    )
    .unwrap();
    let arguments = [
        "serve",
        "--listen",
        "127.0.0.1:0",
        "--model",
        "model.json",
        "--policy",
        "bad.json",
    ];
    let refused = failure(dir, &arguments);
    assert!(
        refused.contains("bad.json: property \"id\" of /g/ is not an integer"),
        "{refused}"
    );
}

#[test]
fn a_directory_without_policy_files_is_served_with_a_warning() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    fs::create_dir(dir.join("policy")).unwrap();
    // Names that begin with a dot are skipped, so this is not a policy file either.
    fs::write(dir.join("policy/.a.json"), "[]").unwrap();
    let errors = fs::File::create(dir.join("errors")).unwrap();
    let words = words("serve --listen 127.0.0.1:0 --policy policy");
    let mut server = Program::start(opflex(dir, &words).stderr(errors));
    let mut output = BufReader::new(server.stdout.take().unwrap());
    assert!(line(&mut output).starts_with("listening at "));
    until_written(
        &dir.join("errors"),
        "policy: the directory has no policy file (*.json, *.yaml, *.yml)",
    );
    end(server, Signal::TERM);
}
