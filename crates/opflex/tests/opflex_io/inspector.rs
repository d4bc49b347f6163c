//! The inspector, with the queries of `gbp_inspect` of agent-ovs.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::Path;

use serde_json::{Value, json};
use ssntp_opflex::model::{Format, Schema};
use ssntp_opflex::run::LocalSocket;

use super::*;

/// The client of libopflex's inspector.
struct Inspect {
    stream: BufReader<UnixStream>,
    last: u64,
}

impl Inspect {
    fn connect(path: &Path) -> Self {
        let stream = UnixStream::connect(path).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        stream.set_write_timeout(Some(LIMIT)).unwrap();
        Self {
            stream: BufReader::new(stream),
            last: 0,
        }
    }

    /// The bytes of `gbp_inspect -q SUBJECT[,URI] [-r]`, apart from the number of the request.
    fn send(&mut self, subject: &str, uri: Option<&str>, recursive: bool) {
        self.last += 1;
        let uri = uri.map_or_else(String::new, |uri| format!(r#""policy_uri":"{uri}","#));
        let text = format!(
            r#"{{"id":["custom",{}],"method":"custom","params":[{{"method":"org.opendaylight.opflex.policy_query","params":[{{"subject":"{subject}",{uri}"recursive":{recursive}}}]}}]}}"#,
            self.last
        );
        self.send_text(&text);
    }

    fn send_text(&mut self, text: &str) {
        self.stream
            .get_mut()
            .write_all(format!("{text}\0").as_bytes())
            .unwrap();
    }

    fn hear(&mut self) -> Value {
        let mut text = Vec::new();
        self.stream.read_until(0, &mut text).unwrap();
        assert_eq!(text.pop(), Some(0), "the connection ended");
        serde_json::from_slice(&text).unwrap()
    }

    fn ask(&mut self, subject: &str, uri: Option<&str>, recursive: bool) -> Vec<Value> {
        self.send(subject, uri, recursive);
        let mut answer = self.hear();
        assert_eq!(answer["id"], json!(["custom", self.last]), "{answer}");
        let result = &mut answer["result"];
        assert_eq!(result["method"], "org.opendaylight.opflex.policy_query");
        result["result"]["policy"].as_array_mut().unwrap().split_off(0)
    }
}

fn uris(objects: &[Value]) -> Vec<&str> {
    let mut uris: Vec<_> = objects
        .iter()
        .map(|object| object["uri"].as_str().unwrap())
        .collect();
    uris.sort_unstable();
    uris
}

fn named(subject: &str, at: &str) -> ManagedObject {
    ManagedObject::new(subject, uri(at)).with("name", at)
}

#[test]
fn the_inspector_shows_the_objects_of_a_server() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("inspect");
    let policy = vec![
        named("PolicyUniverse", "/PolicyUniverse/"),
        named("PolicySpace", "/PolicyUniverse/PolicySpace/shop/")
            .under("PolicyUniverse", uri("/PolicyUniverse/")),
        named("GbpEpGroup", "/PolicyUniverse/PolicySpace/shop/GbpEpGroup/web/")
            .under("PolicySpace", uri("/PolicyUniverse/PolicySpace/shop/")),
        named("GbpEpGroup", "/PolicyUniverse/PolicySpace/shop/GbpEpGroup/db/")
            .under("PolicySpace", uri("/PolicyUniverse/PolicySpace/shop/")),
    ];
    let mut config = ServerConfig::new(server_settings("pr1")).policy(policy);
    config.inspector = Some(LocalSocket::new(&socket));
    let (server, address) = serve_tcp(config);
    let element = element("pe1", &address);
    let endpoint = "/EprL3Universe/EprL3Ep/10.0.0.1/";
    element.declare(vec![named("EprL3Ep", endpoint)]).unwrap();
    element.report(named("Counters", "/Counters/")).unwrap();
    element.report(named("Counter", "/Counters/Counter/1/")).unwrap();
    until(|| element.unanswered().unwrap() == 0);

    let web = "/PolicyUniverse/PolicySpace/shop/GbpEpGroup/web/";
    let db = "/PolicyUniverse/PolicySpace/shop/GbpEpGroup/db/";
    let mut inspect = Inspect::connect(&socket);
    let one = inspect.ask("GbpEpGroup", Some(web), false);
    assert_eq!(
        one,
        [json!({
            "subject": "GbpEpGroup", "uri": web, "properties": [{"name": "name", "data": web}],
            "children": [], "parent_subject": "PolicySpace",
            "parent_uri": "/PolicyUniverse/PolicySpace/shop/", "parent_relation": "GbpEpGroup",
        })]
    );
    assert_eq!(uris(&inspect.ask("GbpEpGroup", None, false)), [db, web]);
    assert_eq!(inspect.ask("PolicyUniverse", Some(web), false).len(), 0);
    assert_eq!(inspect.ask("NobodyHasIt", None, true).len(), 0);
    assert_eq!(inspect.ask("PolicySpace", None, false).len(), 1);
    assert_eq!(inspect.ask("PolicySpace", None, true).len(), 3);
    assert_eq!(inspect.ask("EprL3Ep", None, false)[0]["uri"], endpoint);
    assert_eq!(inspect.ask("Counters", None, true).len(), 2);
    assert_eq!(inspect.ask("Counters", Some("/Counters/"), true).len(), 2);
    assert_eq!(inspect.ask("Counter", None, false).len(), 1);

    // The root comes first, and parents come before their children.
    let root = inspect.ask("DmtreeRoot", None, false);
    assert_eq!(
        root,
        [json!({
            "subject": "DmtreeRoot", "uri": "/", "properties": [],
            "children": ["/Counters/", "/PolicyUniverse/"],
        })]
    );
    let all = inspect.ask("DmtreeRoot", Some("/"), true);
    assert_eq!(all.len(), 8);
    assert_eq!(all[0]["uri"], "/");
    let universe = &all[1];
    assert_eq!(
        (
            &universe["uri"],
            &universe["parent_subject"],
            &universe["parent_uri"]
        ),
        (&json!("/PolicyUniverse/"), &json!("DmtreeRoot"), &json!("/"))
    );
    assert_eq!(universe["parent_relation"], "PolicyUniverse");
    assert_eq!(all.last().unwrap()["uri"], "/Counters/Counter/1/");

    // Several queries in one call, as `gbp_inspect` sends for references.
    inspect.send("GbpEpGroup", Some(web), false);
    inspect.send("GbpEpGroup", Some(db), false);
    assert_eq!(inspect.hear()["result"]["result"]["policy"][0]["uri"], web);
    assert_eq!(inspect.hear()["result"]["result"]["policy"][0]["uri"], db);

    assert_eq!(
        std::fs::metadata(&socket).unwrap().permissions().mode() & 0o777,
        0o600
    );
    server.stop();
    assert!(!socket.exists());
    let mut rest = Vec::new();
    let _ = inspect.stream.read_to_end(&mut rest);
    assert!(rest.is_empty());
}

#[test]
fn the_inspector_shows_what_an_element_resolves_declares_and_reports() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("inspect");
    // The file of a process that was killed.
    drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
    assert!(std::fs::metadata(&socket).unwrap().file_type().is_socket());
    let (_server, address) = serve_tcp(
        ServerConfig::new(server_settings("pr1")).policy(vec![object("/a/", "a"), object("/b/", "b")]),
    );
    let mut config = ElementConfig::new(element_settings("pe1", &[&address]));
    config.inspector = Some(LocalSocket {
        for_group: true,
        ..LocalSocket::new(&socket)
    });
    let element = PolicyElement::start(config).unwrap();
    let _policy = element.resolve_policy("GbpEpGroup", uri("/a/"), false).unwrap();
    until_value(&element, Store::Policy, "/a/", Some("a"));
    element
        .declare(vec![named("Ep", "/e/"), named("Ip", "/e/ip/")])
        .unwrap();
    element.report(named("Counter", "/c/")).unwrap();

    let mut inspect = Inspect::connect(&socket);
    let all = inspect.ask("DmtreeRoot", None, true);
    assert_eq!(uris(&all), ["/", "/a/", "/c/", "/e/", "/e/ip/"]);
    assert_eq!(uris(&inspect.ask("Ep", Some("/e/"), true)), ["/e/", "/e/ip/"]);
    assert_eq!(inspect.ask("Ep", Some("/e/"), false).len(), 1);
    element.withdraw(&uri("/c/")).unwrap();
    element.undeclare(&uri("/e/")).unwrap();
    assert_eq!(uris(&inspect.ask("DmtreeRoot", None, true)), ["/", "/a/"]);
    assert_eq!(
        std::fs::metadata(&socket).unwrap().permissions().mode() & 0o777,
        0o660
    );
    element.stop();
    assert!(!socket.exists());
}

#[test]
fn a_malformed_query_is_refused_with_a_reason() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("inspect");
    let model = "classes: {Group: {}}";
    let mut config = ServerConfig::new(server_settings("pr1"));
    config.schema = Some(Schema::read(model.as_bytes(), Format::Yaml).unwrap().into());
    config.inspector = Some(LocalSocket::new(&socket));
    let _server = serve(config);
    let mut inspect = Inspect::connect(&socket);
    let custom = |inner: &str| format!(r#"{{"id":7,"method":"custom","params":[{inner}]}}"#);
    let query = "org.opendaylight.opflex.policy_query";
    for (text, expected) in [
        (
            custom(r#"{"method":"nobody knows this","params":[]}"#),
            "unknown method",
        ),
        (
            custom(&format!(r#"{{"method":"{query}","params":[7]}}"#)),
            "invalid type",
        ),
        (
            custom(&format!(r#"{{"method":"{query}","params":[{{}}]}}"#)),
            "subject",
        ),
        (
            custom(&format!(
                r#"{{"method":"{query}","params":[{{"subject":"Group","policy_uri":7}}]}}"#
            )),
            "URI",
        ),
        (
            custom(&format!(
                r#"{{"method":"{query}","params":[{{"subject":"Gruop"}}]}}"#
            )),
            "Unknown subject: Gruop",
        ),
        (
            r#"{"id":7,"method":"policy_resolve","params":[{"subject":"Group","policy_uri":"/a/","prr":1}]}"#
                .to_owned(),
            "does not take policy_resolve",
        ),
        (
            r#"{"id":7,"method":"nonsense","params":[]}"#.to_owned(),
            "nonsense",
        ),
    ] {
        inspect.send_text(&text);
        let answer = inspect.hear();
        assert_eq!(answer["id"], 7);
        let message = answer["error"]["message"].as_str().unwrap();
        assert!(message.contains(expected), "{message} for {text}");
    }
    assert_eq!(inspect.ask("Group", None, false).len(), 0);
    inspect.send_text(r#"{"id":8,"method":"echo","params":[1]}"#);
    assert_eq!(inspect.hear()["result"], json!([1]));
    // A text without end.
    let mut endless = Inspect::connect(&socket);
    let _ = endless.stream.get_mut().write_all(&vec![b' '; 1 << 20]);
    let _ = endless.stream.get_mut().write_all(b"x");
    let mut rest = Vec::new();
    let _ = endless.stream.read_to_end(&mut rest);
    assert!(rest.is_empty());
}

#[test]
fn an_inspector_client_that_receives_nothing_does_not_block_others() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("inspect");
    let policy = (0..20_000)
        .map(|n| object(&format!("/a/{n:05}/"), &"x".repeat(1000)))
        .collect();
    let mut config = ServerConfig::new(server_settings("pr1")).policy(policy);
    config.inspector = Some(LocalSocket::new(&socket));
    let server = serve(config);
    // Twenty megabytes for each client, more than all buffers hold.
    let slow: Vec<_> = (0..20)
        .map(|_| {
            let mut slow = Inspect::connect(&socket);
            slow.send("DmtreeRoot", None, true);
            slow
        })
        .collect();
    let mut inspect = Inspect::connect(&socket);
    assert_eq!(inspect.ask("GbpEpGroup", None, false).len(), 20_000);
    assert_eq!(server.handle().sessions().unwrap().len(), 0);
    let begin = Instant::now();
    server.stop();
    assert!(begin.elapsed() < LIMIT);
    drop(slow);
}
