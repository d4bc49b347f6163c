//! The feed of an element.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use serde_json::Value;
use ssntp_opflex::run::{LocalSocket, Reference};
use std::collections::BTreeMap;

use super::*;

/// A reader that keeps the objects of the feed.
struct Reader {
    lines: BufReader<UnixStream>,
    policy: BTreeMap<String, String>,
}

impl Reader {
    fn connect(path: &Path) -> Self {
        let stream = UnixStream::connect(path).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        Self {
            lines: BufReader::new(stream),
            policy: BTreeMap::new(),
        }
    }

    fn next(&mut self) -> Value {
        let mut line = String::new();
        assert!(self.lines.read_line(&mut line).unwrap() > 0, "the feed ended");
        let event: Value = serde_json::from_str(&line).unwrap();
        if event["event"] == "changed" && event["what"] == "policy" {
            for change in event["objects"].as_array().unwrap() {
                let uri = change["uri"].as_str().unwrap().to_owned();
                let known = self.policy.contains_key(&uri);
                match change["change"].as_str().unwrap() {
                    "deleted" => assert!(self.policy.remove(&uri).is_some(), "{uri} was told"),
                    kind => {
                        assert_eq!(kind == "modified", known, "{kind} {uri}");
                        let name = change["object"]["properties"][0]["data"].as_str().unwrap();
                        self.policy.insert(uri, name.to_owned());
                    }
                }
            }
        }
        event
    }

    /// Reads until an event of this kind.
    fn until(&mut self, kind: &str) -> Value {
        loop {
            let event = self.next();
            if event["event"] == kind {
                return event;
            }
        }
    }

    fn until_policy(&mut self, is: impl Fn(&BTreeMap<String, String>) -> bool) {
        while !is(&self.policy) {
            self.next();
        }
    }
}

/// An element with a feed.
fn feeding(address: &str, socket: &Path) -> ElementConfig {
    let mut config = ElementConfig::new(element_settings("pe1", &[address]));
    config.serve = Some(LocalSocket::new(socket));
    config
}

/// Starts an element that resolves everything below `/a/`.
fn begin(config: ElementConfig) -> (PolicyElement, Reference) {
    let element = PolicyElement::start(config).unwrap();
    let policy = element.resolve_policy("GbpEpGroup", uri("/a/"), false).unwrap();
    (element, policy)
}

fn place() -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("feed");
    (directory, socket)
}

#[test]
fn the_feed_has_the_policy_and_its_changes() {
    let (_directory, socket) = place();
    let (server, address) = serve_tcp(
        ServerConfig::new(server_settings("pr1")).policy(vec![object("/a/", "a"), object("/a/b/", "b")]),
    );
    let (element, policy) = begin(feeding(&address, &socket));
    until_value(&element, Store::Policy, "/a/b/", Some("b"));
    assert_eq!(
        std::fs::metadata(&socket).unwrap().permissions().mode() & 0o777,
        0o600
    );
    let mut reader = Reader::connect(&socket);
    let first = reader.next();
    assert_eq!(
        (
            &first["event"],
            &first["version"],
            &first["name"],
            &first["domain"]
        ),
        (&"element".into(), &1.into(), &"pe1".into(), &"test".into())
    );
    assert_eq!(reader.next()["event"], "health");
    reader.until("complete");
    let of = |all: &[(&str, &str)]| -> BTreeMap<String, String> {
        all.iter()
            .map(|(uri, name)| ((*uri).to_owned(), (*name).to_owned()))
            .collect()
    };
    assert_eq!(reader.policy, of(&[("/a/", "a"), ("/a/b/", "b")]));
    let handle = server.handle();
    handle
        .edit(Edit::Merge(vec![object("/a/b/", "b2"), object("/a/c/", "c")]))
        .unwrap();
    handle.edit(Edit::Delete(vec![uri("/a/c/")])).unwrap();
    handle.edit(Edit::Merge(vec![object("/a/d/", "d")])).unwrap();
    let wanted = of(&[("/a/", "a"), ("/a/b/", "b2"), ("/a/d/", "d")]);
    reader.until_policy(|policy| *policy == wanted);
    // Objects without a reference are removed.
    drop(policy);
    reader.until_policy(BTreeMap::is_empty);
    // Bytes that a reader sends are ignored.
    reader.lines.get_mut().write_all(b"hello\n").unwrap();
    element.stop();
    assert_eq!(reader.until("end")["reason"], "the element stops");
    assert!(!socket.exists());
    server.stop();
}

#[test]
fn the_feed_is_consistent_while_a_large_policy_changes() {
    let (_directory, socket) = place();
    let policy = |value: &str| -> Vec<ManagedObject> {
        let below = (0..3000).map(|n| object(&format!("/a/{n:04}/"), value));
        std::iter::once(object("/a/", value)).chain(below).collect()
    };
    let (server, address) = serve_tcp(ServerConfig::new(server_settings("pr1")).policy(policy("0")));
    let (element, _policy) = begin(feeding(&address, &socket));
    until_value(&element, Store::Policy, "/a/2999/", Some("0"));
    let handle = server.handle();
    let mut readers = Vec::new();
    for round in 1..5 {
        readers.push(Reader::connect(&socket));
        let value = round.to_string();
        let mut next = policy(&value);
        next.truncate(3001 - 100 * round);
        handle.edit(Edit::Reload(next)).unwrap();
    }
    for reader in &mut readers {
        reader.until_policy(|policy| policy.len() == 2601 && policy.values().all(|value| value == "4"));
    }
}

#[test]
fn a_slow_reader_of_the_feed_is_disconnected_with_a_reason() {
    let (_directory, socket) = place();
    let large = |value: &str| -> Vec<ManagedObject> {
        (0..200)
            .map(|n| object(&format!("/a/{n:04}/"), &value.repeat(1000)))
            .collect()
    };
    let (server, address) =
        serve_tcp(ServerConfig::new(server_settings("pr1")).policy(vec![object("/a/", "a")]));
    let mut config = feeding(&address, &socket);
    config.serve_queue = 1 << 20;
    let (element, _policy) = begin(config);
    until_value(&element, Store::Policy, "/a/", Some("a"));
    let mut slow = Reader::connect(&socket);
    slow.until("complete");
    // A reader that keeps pace gets everything.
    let mut quick = Reader::connect(&socket);
    quick.until("complete");
    let handle = server.handle();
    // Some two hundred kilobytes each time.
    for value in ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"] {
        handle.edit(Edit::Merge(large(value))).unwrap();
        quick.until_policy(|policy| {
            policy.len() == 201 && policy.iter().skip(1).all(|(_, name)| name.starts_with(value))
        });
    }
    let lines: Vec<String> = slow.lines.lines().map(Result::unwrap).collect();
    let whole = |line: &String| serde_json::from_str::<serde_json::Value>(line).is_ok();
    assert!(lines.iter().all(whole), "a line that has begun comes to its end");
    let last = lines.last().unwrap();
    assert!(
        last.contains(r#""event":"end""#) && last.contains("too slow"),
        "{last}"
    );
    // It may connect again.
    let mut again = Reader::connect(&socket);
    again.until("complete");
    assert_eq!(again.policy.len(), 201);
    drop(element);
}

#[test]
fn the_number_of_readers_of_the_feed_is_limited() {
    let (_directory, socket) = place();
    let (_server, address) = serve_tcp(ServerConfig::new(server_settings("pr1")));
    let (_element, _policy) = begin(feeding(&address, &socket));
    let mut readers: Vec<_> = (0..16)
        .map(|_| {
            let mut reader = Reader::connect(&socket);
            reader.until("complete");
            reader
        })
        .collect();
    let refused = Reader::connect(&socket).until("end");
    assert_eq!(refused["reason"], "the feed has as many readers as it may have");
    // After a reader has disconnected, another one is accepted.
    readers.pop();
    until(|| Reader::connect(&socket).next()["event"] == "element");
}

#[test]
fn the_start_policy_is_used_until_a_server_answers() {
    let (_directory, socket) = place();
    // No server listens at this address yet.
    let place = MemoryListener::new();
    let mut config =
        ElementConfig::new(element_settings("pe1", &["pr1:1"])).connect_in_memory("pr1:1", &place);
    config.serve = Some(LocalSocket::new(&socket));
    let to_b = serde_json::json!({"subject": "GbpEpGroup", "reference_uri": "/b/"});
    config.start_policy = vec![
        object("/a/", "old").with("ref", to_b.clone()),
        object("/a/gone/", "old"),
        object("/b/", "old"),
        object("/c/", "old"),
        object("/unwanted/", "old"),
    ];
    let element = PolicyElement::start(config).unwrap();
    let a = element.resolve_policy("GbpEpGroup", uri("/a/"), true).unwrap();
    let c = element.resolve_policy("GbpEpGroup", uri("/c/"), false).unwrap();
    let mut reader = Reader::connect(&socket);
    reader.until("complete");
    let uris: Vec<_> = reader.policy.keys().map(String::as_str).collect();
    assert_eq!(uris, ["/a/", "/a/gone/", "/b/", "/c/"]);
    assert_eq!(element.unanswered().unwrap(), 3);

    let _server = serve(
        ServerConfig::new(server_settings("pr1"))
            .policy(vec![object("/a/", "new").with("ref", to_b), object("/b/", "old")])
            .listen_in_memory(&place, "pr1:1"),
    );
    // Objects that the server does not have are removed.
    reader.until_policy(|policy| {
        policy.len() == 2
            && policy.get("/a/").map(String::as_str) == Some("new")
            && policy.contains_key("/b/")
    });
    until(|| element.unanswered().unwrap() == 0);
    drop((a, c));
    reader.until_policy(BTreeMap::is_empty);
}

#[test]
fn a_long_answer_replaces_the_start_policy() {
    let policy = |names: std::ops::Range<usize>| -> Vec<ManagedObject> {
        let below = names.map(|n| object(&format!("/a/{n:04}/"), &"x".repeat(1000)));
        std::iter::once(object("/a/", "a")).chain(below).collect()
    };
    // Three megabytes arrive in pieces.
    let (_server, address) = serve_tcp(ServerConfig::new(server_settings("pr1")).policy(policy(0..3000)));
    let mut config = ElementConfig::new(element_settings("pe1", &[&address]));
    config.start_policy = policy(1000..4000);
    let element = PolicyElement::start(config).unwrap();
    let _policy = element.resolve_policy("GbpEpGroup", uri("/a/"), false).unwrap();
    until(|| element.unanswered().unwrap() == 0);
    assert_eq!(
        element.objects(Store::Policy, &uri("/a/")).unwrap(),
        policy(0..3000)
            .into_iter()
            .map(|mut object| {
                if object.uri == uri("/a/") {
                    object.children = (0..3000).map(|n| uri(&format!("/a/{n:04}/"))).collect();
                } else {
                    object = object.under("GbpEpGroup", uri("/a/"));
                    object.parent_relation = Some("GbpEpGroup".into());
                }
                object
            })
            .collect::<Vec<_>>()
    );
}
