//! `ssntp opflex element`.

use ssntp_test_support::port::HeldPort;

use super::*;
use crate::processes::{wait_for, words};

#[test]
fn a_policy_is_resolved_by_identifier_and_endpoints_end_with_their_connection() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    fs::write(
        dir.join("policy.json"),
        include_str!("../../../../../../examples/policy.json"),
    )
    .unwrap();
    fs::write(
        dir.join("endpoint.json"),
        r#"[{"subject": "EprL3Ep", "uri": "/EprL3Ep/1/"}]"#,
    )
    .unwrap();
    let (server, mut output) = start(
        dir,
        &words(
            "serve --listen 127.0.0.1:0 --control control --persist kept.json --on-leave \
 remove --lenient",
        ),
    );
    let listening = line(&mut output);
    let address = listening.strip_prefix("listening at ").unwrap();
    let reload = run(dir, &["policy", "reload", "policy.json", "--control", "control"]);
    assert_eq!(String::from_utf8(reload.stdout).unwrap(), "5 objects changed\n");
    assert!(fs::read_to_string(dir.join("kept.json")).unwrap().contains(WEB));
    let element = ["element", "--connect", address, "--domain", "elsewhere", "--json"];
    let by_name = [
        "--resolve-ident",
        "GbpEpGroup",
        "/PolicyUniverse/PolicySpace/shop/",
        "web",
    ];
    let objects = lines(dir, &[&element[..], &by_name].concat());
    assert_eq!(objects[0]["uri"], WEB);
    // With `--on-leave remove` an endpoint ends with its connection.
    lines(dir, &[&element[..], &["--declare", "endpoint.json"]].concat());
    until("the endpoint ends", || {
        let endpoints = lines(dir, &["endpoints", "--control", "control", "--json"]);
        endpoints.is_empty().then_some(()).ok_or(format!("{endpoints:?}"))
    });
    end(server, Signal::TERM);
}

#[test]
fn referenced_policies_and_the_reason_of_a_failed_connection_are_printed() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let policy = r#"[
        {"subject": "Group", "uri": "/Group/g/", "properties":
            [{"name": "contract", "data": {"subject": "Contract", "reference_uri": "/Contract/c/"}}]},
        {"subject": "Contract", "uri": "/Contract/c/"}, {}]"#;
    fs::write(dir.join("policy.json"), policy).unwrap();
    let port = HeldPort::new();
    let address = &*port.address();
    let (server, mut output) = start(dir, &["serve", "--listen", address, "--policy", "policy.json"]);
    line(&mut output);
    let element = ["element", "--connect", address, "--resolve", "/Group/g/"];
    let printed = |arguments: &[&str]| String::from_utf8(run(dir, arguments).stdout).unwrap();
    assert!(!printed(&element).contains("Contract /Contract/c/"));
    let followed = printed(&[&element[..], &["--follow"]].concat());
    assert!(followed.contains("Contract /Contract/c/"), "{followed}");
    end(server, Signal::TERM);
    // A busy machine may need longer than the first limits for an attempt to connect.
    let mut seconds = 1;
    loop {
        let error = failure(
            dir,
            &[&element[..], &["--timeout", &seconds.to_string()]].concat(),
        );
        if error.contains("not connected: ") && error.contains("refused") {
            break;
        }
        assert!(seconds < 64, "{error}");
        seconds *= 2;
    }
}

#[test]
fn an_element_sends_the_values_of_its_flags_and_serves_its_start_policy() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    fs::write(
        dir.join("start.json"),
        r#"[{"subject": "Group", "uri": "/a/", "properties": [{"name": "name", "data": "old"}]}]"#,
    )
    .unwrap();
    fs::write(
        dir.join("policy.json"),
        r#"[{"subject": "Group", "uri": "/a/", "properties": [{"name": "name", "data": "new"}]}]"#,
    )
    .unwrap();
    // A listener that only records the requests is sufficient as a server.
    let port = HeldPort::new();
    let address = port.address();
    let listener = std::net::TcpListener::bind(&address).unwrap();
    let (element, _output) = start(
        dir,
        &[
            "element",
            "--connect",
            &address,
            "--name",
            "pe1",
            "--location",
            "rack 7",
            "--mac",
            "0A:0b:0c:0d:0e:0f",
            "--require-proxies",
            "--start-policy",
            "start.json",
            "--resolve",
            "Group",
            "/a/",
            "--serve",
            "feed",
            "--inspector",
            "inspect",
        ],
    );
    let (mut connection, _) = listener.accept().unwrap();
    connection
        .set_read_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    let mut received = Vec::new();
    let identity = loop {
        let mut bytes = [0; 4096];
        let read = connection.read(&mut bytes).unwrap();
        received.extend_from_slice(&bytes[..read]);
        let messages = received.split(|byte| *byte == 0);
        let messages = messages.filter_map(|text| serde_json::from_slice::<Value>(text).ok());
        if let Some(identity) = messages
            .into_iter()
            .find(|message| message["method"] == "send_identity")
        {
            break identity["params"][0].clone();
        }
    };
    assert_eq!(identity["my_location"], "rack 7");
    assert_eq!(identity["data"]["mac"], "0a:0b:0c:0d:0e:0f");
    drop((connection, listener));

    // No server has answered, so the element still serves the start policy.
    // It dials before it opens its sockets.
    let feed = wait_for(|| UnixStream::connect(dir.join("feed")));
    feed.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let mut feed = BufReader::new(feed);
    assert_eq!(changed(&mut feed, "/a/"), "old");
    wait_for(|| UnixStream::connect(dir.join("inspect")));

    // The element accepts a server that names proxies.
    let serve = |more: &[&str]| {
        let line_of = format!("serve --listen {address} --policy policy.json --control control");
        let arguments = [&words(&line_of), more].concat();
        let (server, mut output) = start(dir, &arguments);
        line(&mut output);
        server
    };
    let server = serve(&["--proxies", "192.0.2.1,192.0.2.2,192.0.2.3"]);
    assert_eq!(changed(&mut feed, "/a/"), "new");
    let agents = lines(dir, &["agents", "--control", "control", "--json"]);
    assert_eq!(
        (&agents[0]["name"], &agents[0]["connected"]),
        (&"pe1".into(), &1.into())
    );
    let table = run(dir, &["agents", "--control", "control"]).stdout;
    assert!(String::from_utf8(table).unwrap().contains("bytes_received"));
    let in_order = end(element, Signal::TERM);
    end(server, Signal::TERM);
    let are_left = dir.join("feed").exists() || dir.join("inspect").exists();
    assert!(!are_left || !in_order);
    for bad in ["0a:0b:0c:0d:0e", "0a:0b:0c:0d:0e:0g", ""] {
        let refused = run(dir, &["element", "--connect", &address, "--mac", bad]);
        assert_eq!(refused.status.code(), Some(2), "{bad}");
    }
}

#[test]
fn a_signal_before_the_answers_is_no_success() {
    let dir = tempfile::tempdir().unwrap();
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap().to_string();
    let (mut element, _output) = start(dir.path(), &["element", "--connect", &address, "--resolve", WEB]);
    // The element handles signals before it connects.
    let _connection = silent.accept().unwrap();
    element.signal(Signal::TERM);
    assert_eq!(element.wait().unwrap().code(), Some(143));
}

#[test]
fn changed_files_of_objects_are_sent_and_what_they_lack_is_taken_back() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    // Replaced, so that no half of it is read.
    let write = |name: &str, uris: &[&str]| {
        let object = |uri: &&str| serde_json::json!({"subject": "Ep", "uri": uri});
        let objects: Value = uris.iter().map(object).collect();
        fs::write(dir.join("new"), objects.to_string()).unwrap();
        fs::rename(dir.join("new"), dir.join(name)).unwrap();
    };
    write("endpoints.json", &["/Ep/1/", "/Ep/2/"]);
    write("reports.json", &["/Counter/1/"]);
    let (server, mut output) = start(dir, &words("serve --listen 127.0.0.1:0 --control control"));
    let listening = line(&mut output);
    let address = listening.strip_prefix("listening at ").unwrap();
    let (element, _events) = start(
        dir,
        &words(&format!(
            "element --connect {address} --declare endpoints.json --report reports.json --watch"
        )),
    );
    let shown = |what: &str, wanted: &[&str]| {
        until("the objects are those of the files", || {
            let objects = lines(dir, &[what, "--control", "control", "--json"]);
            let uris: Vec<_> = objects.iter().map(|one| &one["object"]["uri"]).collect();
            (uris == wanted).then_some(()).ok_or(format!("{uris:?}"))
        });
    };
    shown("endpoints", &["/Ep/1/", "/Ep/2/"]);
    shown("reports", &["/Counter/1/"]);
    write("endpoints.json", &["/Ep/2/", "/Ep/3/"]);
    write("reports.json", &["/Counter/1/", "/Counter/2/"]);
    shown("endpoints", &["/Ep/2/", "/Ep/3/"]);
    shown("reports", &["/Counter/1/", "/Counter/2/"]);
    // A file that cannot be used changes nothing, and the next one counts.
    fs::write(dir.join("endpoints.json"), "[").unwrap();
    write("reports.json", &["/Counter/3/"]);
    shown("endpoints", &["/Ep/2/", "/Ep/3/"]);
    write("endpoints.json", &[]);
    shown("endpoints", &[]);
    end(element, Signal::TERM);
    end(server, Signal::TERM);
}

#[test]
fn a_peer_that_is_silent_is_disconnected_after_the_time_of_the_flags() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let (server, mut output) = start(dir, &words("serve --listen 127.0.0.1:0 --identity-timeout 0.05"));
    let listening = line(&mut output);
    let address = listening.strip_prefix("listening at ").unwrap();
    let mut silent = TcpStream::connect(address).unwrap();
    silent.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    // The echoes of the server, and then the end, before the 45 s of the default.
    let began = Instant::now();
    silent.read_to_end(&mut Vec::new()).unwrap();
    assert!(began.elapsed() < Duration::from_secs(40), "{:?}", began.elapsed());
    end(server, Signal::TERM);

    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (element, mut events) = start(
        dir,
        &words(&format!(
            "element --connect {address} --watch --json --echo 0.05 --silence 0.2 --retry 1"
        )),
    );
    let _accepted = listener.accept().unwrap();
    let reason = loop {
        let event: Value = serde_json::from_str(&line(&mut events)).unwrap();
        if let Some(reason) = event["reason"].as_str() {
            break reason.to_owned();
        }
    };
    assert_eq!(reason, "the peer has been silent for too long");
    end(element, Signal::TERM);
}
