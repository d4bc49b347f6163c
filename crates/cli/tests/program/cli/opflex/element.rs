//! `ssntp opflex element` as a user meets it.

use super::*;
use crate::processes::words;

#[test]
fn policy_is_found_by_name_reloaded_and_gone_as_the_flags_say() {
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
    let found = lines(dir, &[&element[..], &by_name].concat());
    assert_eq!(found[0]["uri"], WEB);
    // An endpoint does not outlive the connection here.
    lines(dir, &[&element[..], &["--declare", "endpoint.json"]].concat());
    let began = Instant::now();
    while !lines(dir, &["endpoints", "--control", "control", "--json"]).is_empty() {
        assert!(began.elapsed() < Duration::from_secs(30));
    }
    end(server, Signal::TERM);
}

#[test]
fn what_policies_refer_to_is_printed_and_why_a_server_is_not_reached() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let policy = r#"[
        {"subject": "Group", "uri": "/Group/g/", "properties":
            [{"name": "contract", "data": {"subject": "Contract", "reference_uri": "/Contract/c/"}}]},
        {"subject": "Contract", "uri": "/Contract/c/"}, {}]"#;
    fs::write(dir.join("policy.json"), policy).unwrap();
    let (server, mut output) = start(
        dir,
        &["serve", "--listen", "127.0.0.1:0", "--policy", "policy.json"],
    );
    let listening = line(&mut output);
    let address = listening.strip_prefix("listening at ").unwrap();
    let element = ["element", "--connect", address, "--resolve", "/Group/g/"];
    let printed = |arguments: &[&str]| String::from_utf8(run(dir, arguments).stdout).unwrap();
    assert!(!printed(&element).contains("Contract /Contract/c/"));
    let followed = printed(&[&element[..], &["--follow"]].concat());
    assert!(followed.contains("Contract /Contract/c/"), "{followed}");
    end(server, Signal::TERM);
    let gone = [
        "element",
        "--connect",
        address,
        "--resolve",
        "/Group/g/",
        "--timeout",
        "0.5",
    ];
    let why = failure(dir, &gone);
    assert!(
        why.contains("not connected: ") && why.contains("refused"),
        "{why}"
    );
}

#[test]
fn an_element_tells_what_its_flags_say_and_serves_what_it_has() {
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
    // One that says what it is asked is enough of a server.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
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
        .set_read_timeout(Some(Duration::from_secs(30)))
        .unwrap();
    let mut said = Vec::new();
    let identity = loop {
        let mut bytes = [0; 4096];
        let read = connection.read(&mut bytes).unwrap();
        said.extend_from_slice(&bytes[..read]);
        let messages = said.split(|byte| *byte == 0);
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

    // No server has answered, so the objects are still the old ones.
    let feed = UnixStream::connect(dir.join("feed")).unwrap();
    feed.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let mut feed = BufReader::new(feed);
    assert_eq!(changed(&mut feed, "/a/"), "old");
    assert!(dir.join("inspect").exists());

    // A server that names proxies is one for it.
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
    end(element, Signal::TERM);
    end(server, Signal::TERM);
    assert!(!dir.join("feed").exists() && !dir.join("inspect").exists());
    for bad in ["0a:0b:0c:0d:0e", "0a:0b:0c:0d:0e:0g", ""] {
        let refused = run(dir, &["element", "--connect", &address, "--mac", bad]);
        assert_eq!(refused.status.code(), Some(2), "{bad}");
    }
}
