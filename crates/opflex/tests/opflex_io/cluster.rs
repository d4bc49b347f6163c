//! Several servers with the same policy.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ssntp_engine::{Engine, EngineError, Etcd, EtcdConfig, EtcdCredentials, Request, When};
use ssntp_opflex::run::{CallError, Control, ControlError, StartError};
use ssntp_test_support::etcd::EtcdProcess;
use ssntp_test_support::memory_engine::MemoryEngine;

use super::*;

const GROUP: &str = "/PolicyUniverse/PolicySpace/shop/GbpEpGroup/web/";
const ENDPOINT: &str = "/EprL3Universe/EprL3Ep/10.0.0.1/";

fn config(policy: Vec<ManagedObject>) -> ServerConfig {
    let config = ServerConfig::new(server_settings("pr")).policy(policy);
    config.listen(Address::tcp("127.0.0.1", 0))
}

fn try_join(engine: &MemoryEngine, config: ServerConfig) -> Result<Server, StartError> {
    Server::start_joined(config, Box::new(engine.clone()), None)
}

fn join(engine: &MemoryEngine, policy: Vec<ManagedObject>) -> Server {
    try_join(engine, config(policy)).unwrap()
}

/// The names of all objects, in the order of their URIs.
fn names(server: &Server) -> Vec<String> {
    let objects = server.handle().policy().unwrap();
    let name = |object: &ManagedObject| object.property("name").unwrap().as_str().unwrap().to_owned();
    objects.iter().map(name).collect()
}

fn revision(server: &Server) -> u64 {
    server.handle().with(|core, _| core.policy_revision()).unwrap()
}

/// Waits until both servers have the same policy at the same revision, with these names.
fn until_same(one: &Server, two: &Server, wanted: &[&str]) {
    until(|| [one, two].iter().all(|server| names(server) == wanted) && revision(one) == revision(two));
}

/// Edits, and returns the number of changed objects. If the engine does not answer in time, as on a
/// busy machine, the edit is repeated.
fn edit(server: &Server, edit: Edit) -> usize {
    let end = Instant::now() + LIMIT;
    loop {
        match server.handle().edit(edit.clone()) {
            Err(CallError::Engine(EngineError::Away(_))) if Instant::now() < end => {}
            edited => return edited.unwrap(),
        }
    }
}

/// Writes a document to the engine directly.
fn put(engine: &MemoryEngine, text: &[u8]) {
    let request = Request::Put {
        key: "documents/policy".to_owned(),
        value: text.to_vec(),
        lease: None,
        when: When::Always,
    };
    engine.clone().ask(&request).unwrap();
}

fn has_policy(engine: &MemoryEngine) -> bool {
    match engine.clone().ask(&Request::Read).unwrap() {
        ssntp_engine::Answer::Kept(kept) => kept.entries.contains_key("documents/policy"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn all_servers_have_the_policy_that_was_edited_on_any_of_them() {
    let engine = MemoryEngine::new();
    let one = join(&engine, vec![object("/a/", "first")]);
    // The policy of a later server is ignored.
    let two = join(&engine, vec![object("/b/", "second")]);
    until_same(&one, &two, &["first"]);
    edit(&two, Edit::Merge(vec![object("/c/", "third")]));
    assert_eq!(
        names(&two),
        ["first", "third"],
        "an edit is in force when it is answered"
    );
    until_same(&one, &two, &["first", "third"]);
    // This server may not have read the last edit yet. Both edits are kept.
    for n in 0..3 {
        edit(&one, Edit::Merge(vec![object("/one/", &n.to_string())]));
        edit(&two, Edit::Merge(vec![object("/two/", &n.to_string())]));
    }
    until_same(&one, &two, &["first", "third", "2", "2"]);
    assert_eq!(
        edit(&one, Edit::Merge(vec![object("/two/", "2")])),
        0,
        "the edit changes no object"
    );
    edit(&one, Edit::Delete(vec![uri("/one/"), uri("/two/")]));
    edit(&one, Edit::Reload(vec![object("/a/", "last")]));
    until_same(&one, &two, &["last"]);
    // A later server, and a restarted server, begin with the policy.
    one.stop();
    let three = join(&engine, Vec::new());
    assert_eq!(names(&three), ["last"]);
    until_same(&two, &three, &["last"]);
}

#[test]
fn an_edit_for_another_revision_is_refused_with_the_present_one() {
    let engine = MemoryEngine::new();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("control");
    let one = join(&engine, vec![object("/a/", "first")]);
    let two = try_join(&engine, config(Vec::new()).control(&path)).unwrap();
    let mut control = Control::connect(&path, LIMIT).unwrap();
    let (made_on, _) = control.status().unwrap();
    assert_eq!(made_on, revision(&one));
    edit(&one, Edit::Merge(vec![object("/a/", "second")]));
    let is = revision(&one);
    control.if_revision = Some(made_on);
    // This server may have read the edit of the other one or not.
    let refused = control.put(&[object("/a/", "third")], false).unwrap_err();
    let ControlError::Refused(why) = refused else {
        panic!("{refused}")
    };
    let wanted = format!("policy has changed: its revision is {is}, not {made_on}");
    assert!(why.to_string().contains(&wanted), "{why}");
    control.if_revision = Some(is);
    let edited = control.put(&[object("/a/", "third")], false).unwrap();
    assert!(edited.changed == 1 && edited.revision > is, "{edited:?}");
    until_same(&one, &two, &["third"]);
}

#[test]
fn a_cluster_without_policy_has_the_revision_0_on_all_servers() {
    let engine = MemoryEngine::new();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("control");
    let one = join(&engine, Vec::new());
    let _two = try_join(&engine, config(Vec::new()).control(&path)).unwrap();
    let mut control = Control::connect(&path, LIMIT).unwrap();
    let (is, _) = control.status().unwrap();
    assert_eq!((is, revision(&one)), (0, 0));
    control.if_revision = Some(is);
    assert_eq!(control.put(&[object("/a/", "first")], false).unwrap().changed, 1);
}

#[test]
fn each_revision_of_a_cluster_is_one_policy() {
    let engine = MemoryEngine::new();
    let one = join(&engine, vec![object("/a/", "first")]);
    let (done, ended) = crossbeam_channel::bounded::<()>(0);
    let handle = one.handle();
    let watch = std::thread::spawn(move || {
        let mut lengths = std::collections::BTreeMap::new();
        while ended.try_recv().is_err_and(|e| e.is_empty()) {
            let (at, len) = handle
                .with(|core, _| (core.policy_revision(), core.policy().len()))
                .unwrap();
            let known = *lengths.entry(at).or_insert(len);
            assert_eq!(known, len, "at revision {at}");
        }
    });
    for objects in [5000, 1, 4000] {
        let policy = (0..objects).map(|n| object(&format!("/a/{n}/"), "x"));
        edit(&one, Edit::Reload(policy.collect()));
    }
    drop(done);
    watch.join().unwrap();
}

#[test]
fn while_the_engine_is_away_policy_stays_and_edits_are_refused() {
    let (engine, directory) = (MemoryEngine::new(), tempfile::tempdir().unwrap());
    let socket = directory.path().join("control");
    let one = try_join(&engine, config(vec![object("/a/", "first")]).control(&socket)).unwrap();
    engine.fail(Some(EngineError::Away("cut off".to_owned())));
    let edit = |value| one.handle().edit(Edit::Merge(vec![object("/a/", value)]));
    let refused = edit("second").unwrap_err();
    assert!(
        matches!(&refused, CallError::Engine(EngineError::Away(_))),
        "{refused}"
    );
    assert_eq!(names(&one), ["first"]);
    // Its answer may be lost, so nobody is told that the change was refused.
    let mut control = Control::connect(&socket, LIMIT).unwrap();
    let told = control.put(&[object("/a/", "second")], false).unwrap_err();
    assert!(
        told.to_string()
            .ends_with("the change may have been made: the engine is away: cut off"),
        "{told}"
    );
    engine.fail(Some(EngineError::Full("no room".to_owned())));
    let told = control.put(&[object("/a/", "second")], false).unwrap_err();
    assert!(!told.to_string().contains("may have"), "{told}");
    engine.fail(Some(EngineError::Away("cut off".to_owned())));
    let refused = try_join(&engine, config(Vec::new())).unwrap_err();
    assert_eq!(refused.to_string(), "cannot join: the engine is away: cut off");
    engine.fail(None);
    until(|| edit("second").is_ok());
    assert_eq!(names(&one), ["second"]);
}

#[test]
fn an_engine_that_was_emptied_gets_the_policy_back() {
    let engine = MemoryEngine::new();
    let one = join(&engine, vec![object("/a/", "first")]);
    let two = join(&engine, Vec::new());
    engine.lose();
    until(|| has_policy(&engine));
    edit(&one, Edit::Merge(vec![object("/b/", "second")]));
    until_same(&one, &two, &["first", "second"]);
    // Not a malformed document, which the servers have read and do not use.
    put(&engine, b"[{}, 7");
    let merge = || Edit::Merge(vec![object("/c/", "third")]);
    for server in [&one, &two] {
        until(|| matches!(server.handle().edit(merge()), Err(CallError::Document(_))));
    }
    engine.lose();
    until(|| one.handle().edit(merge()).is_ok());
    until_same(&one, &two, &["first", "second", "third"]);
}

#[test]
fn a_different_document_with_the_same_revision_is_applied() {
    let engine = MemoryEngine::new();
    let one = join(&engine, vec![object("/a/", "first")]);
    let known = revision(&one);
    // The engine is emptied and written until it has the same revision again, before the server
    // reads it.
    let text = |n| {
        format!(r#"[{{"subject":"GbpEpGroup","uri":"/a/","properties":[{{"name":"name","data":"{n}"}}]}}]"#)
    };
    engine.lose();
    (0..known).for_each(|n| put(&engine, text(n).as_bytes()));
    until(|| names(&one) == [(known - 1).to_string()]);
}

#[test]
fn a_malformed_document_is_not_applied_and_a_reload_replaces_it() {
    let engine = MemoryEngine::new();
    let one = join(&engine, vec![object("/a/", "first")]);
    put(&engine, b"[{}, 7");
    let edit = |edit| one.handle().edit(edit);
    let mut reason = String::new();
    until(|| match edit(Edit::Merge(vec![object("/b/", "second")])) {
        Ok(_) => false,
        Err(refused) => {
            reason = refused.to_string();
            matches!(refused, CallError::Document(_))
        }
    });
    assert!(
        reason.starts_with("the policy of the cluster: ") && reason.contains("line 1"),
        "{reason}"
    );
    let refused = try_join(&engine, config(Vec::new())).unwrap_err();
    assert!(
        refused
            .to_string()
            .starts_with("cannot join: the policy of the cluster: "),
        "{refused}"
    );
    let faults = || one.handle().figures().unwrap().policy_faults;
    assert!(faults()[0].contains("is not in force here: "), "{:?}", faults());
    edit(Edit::Reload(vec![object("/a/", "again")])).unwrap();
    assert_eq!(names(&one), ["again"]);
    assert!(faults().is_empty(), "{:?}", faults());
    assert_eq!(names(&join(&engine, Vec::new())), ["again"]);
}

/// An engine that takes no document while it is full.
#[derive(Clone, Debug)]
struct Filling {
    engine: MemoryEngine,
    is_full: Arc<AtomicBool>,
}

impl Engine for Filling {
    fn ask(&mut self, request: &Request) -> Result<ssntp_engine::Answer, EngineError> {
        let is_document = matches!(request, Request::Put { key, .. } if key.starts_with("documents/"));
        if is_document && self.is_full.load(Ordering::SeqCst) {
            return Err(EngineError::Full("no space is left".to_owned()));
        }
        self.engine.ask(request)
    }
}

#[test]
fn a_policy_that_an_emptied_engine_does_not_take_is_a_fault_until_it_does() {
    let (engine, is_full) = (MemoryEngine::new(), Arc::<AtomicBool>::default());
    let filling = Filling {
        engine: engine.clone(),
        is_full: Arc::clone(&is_full),
    };
    let server = Server::start_joined(config(vec![object("/a/", "first")]), Box::new(filling), None).unwrap();
    let faults = || server.handle().figures().unwrap().policy_faults;
    is_full.store(true, Ordering::SeqCst);
    engine.lose();
    until(|| {
        faults()
            .iter()
            .any(|fault| fault.contains("has no policy: ") && fault.contains("no space"))
    });
    assert_eq!(names(&server), ["first"]);
    is_full.store(false, Ordering::SeqCst);
    until(|| has_policy(&engine) && faults().is_empty());
}

#[test]
fn a_policy_that_is_too_long_for_the_engine_is_refused() {
    let engine = MemoryEngine::new();
    let one = join(&engine, vec![object("/a/", "first")]);
    // Of random digits, which cannot be compressed to less than half.
    let digits = (0..3 << 15).map(|_| uuid::Uuid::new_v4().simple().to_string());
    let long = object("/b/", &digits.collect::<String>());
    let refused = one.handle().edit(Edit::Merge(vec![long.clone()])).unwrap_err();
    assert!(
        refused
            .to_string()
            .contains("and the engine keeps at most 1048576"),
        "{refused}"
    );
    assert_eq!(names(&one), ["first"]);
    let refused = try_join(&MemoryEngine::new(), config(vec![long])).unwrap_err();
    assert!(
        refused
            .to_string()
            .contains("and the engine keeps at most 1048576"),
        "{refused}"
    );
}

#[test]
fn a_policy_of_more_than_a_mebibyte_is_compressed_in_the_engine() {
    let engine = MemoryEngine::new();
    let one = join(&engine, vec![object("/a/", "first")]);
    let two = join(&engine, Vec::new());
    let group = |n: usize| {
        object(
            &format!("/PolicyUniverse/PolicySpace/shop/GbpEpGroup/{n}/"),
            "web",
        )
    };
    let mut policy: Vec<_> = (0..10_000).map(group).collect();
    assert!(serde_json::to_vec(&policy).unwrap().len() > 1 << 20);
    edit(&one, Edit::Reload(policy.clone()));
    let changed = object("/PolicyUniverse/PolicySpace/shop/GbpEpGroup/7/", "front");
    assert_eq!(edit(&two, Edit::Merge(vec![changed.clone()])), 1);
    policy[7] = changed;
    policy.sort_by(|one, other| one.uri.cmp(&other.uri));
    let is_in_force = |server: &Server| server.handle().policy().unwrap() == policy;
    until(|| [&one, &two].into_iter().all(is_in_force) && revision(&one) == revision(&two));
    // A short policy stays readable for people.
    edit(&one, Edit::Reload(vec![object("/a/", "last")]));
    until_same(&one, &two, &["last"]);
    let Ok(ssntp_engine::Answer::Kept(kept)) = engine.clone().ask(&Request::Read) else {
        panic!("the engine answers");
    };
    assert!(kept.entries["documents/policy"].value.starts_with(b"[{"));
    // A document that only pretends to be compressed is malformed.
    put(&engine, b"x\x9c and no more");
    until(|| {
        matches!(
            one.handle().edit(Edit::Merge(Vec::new())),
            Err(CallError::Document(_))
        )
    });
    edit(&one, Edit::Reload(vec![object("/a/", "again")]));
    until_same(&one, &two, &["again"]);
}

#[test]
fn an_element_connects_to_all_servers_and_declares_to_each() {
    let engine = MemoryEngine::new();
    let servers = [
        join(&engine, vec![object(GROUP, "first")]),
        join(&engine, Vec::new()),
    ];
    let [first, second] = servers.each_ref().map(|server| server.addresses()[0].to_string());
    // The first server has the second one in its view within a second.
    let is_named = |server: &Server| {
        let watcher = element("watcher", &server.addresses()[0].to_string());
        until_health(&watcher, Health::Healthy);
        peers_of(&watcher).len() == 2
    };
    until(|| servers.iter().all(is_named));
    let element = element("pe1", &first);
    let all_ready = |state: &(String, PeerState)| state.1 == PeerState::Ready;
    until(|| {
        let peers = peers_of(&element);
        peers.len() == 2 && peers.iter().all(all_ready)
    });
    let _policy = element.resolve(&uri(GROUP)).unwrap();
    element
        .declare(vec![ManagedObject::new("EprL3Ep", uri(ENDPOINT))])
        .unwrap();
    for server in &servers {
        until_server(&server.handle(), |core, now| {
            let sessions = core.sessions(now);
            core.endpoints().len() == 1 && sessions.iter().any(|session| session.policies == 1)
        });
    }
    // An edit on any server reaches the element, also if only one server is left.
    let [one, two] = servers;
    edit(&one, Edit::Merge(vec![object(GROUP, "second")]));
    until_value(&element, Store::Policy, GROUP, Some("second"));
    one.stop();
    edit(&two, Edit::Merge(vec![object(GROUP, "third")]));
    until_value(&element, Store::Policy, GROUP, Some("third"));
    assert!(peers_of(&element).contains(&(second, PeerState::Ready)));
}

#[test]
fn a_real_etcd_keeps_the_policy_of_several_servers() {
    let Some(etcd) = EtcdProcess::start(1) else { return };
    let join = |policy| {
        let end = Instant::now() + LIMIT;
        loop {
            let engine = Etcd::new(EtcdConfig {
                endpoints: etcd.join().parse().unwrap(),
                credentials: EtcdCredentials::default(),
                cluster: "opflex".to_owned(),
            });
            // On a busy machine a call may time out.
            match Server::start_joined(config(Vec::clone(&policy)), Box::new(engine), None) {
                Err(StartError::Join(CallError::Engine(EngineError::Away(_)))) if Instant::now() < end => {}
                server => return server.unwrap(),
            }
        }
    };
    let one = join(vec![object("/a/", "first")]);
    let two = join(Vec::new());
    until_same(&one, &two, &["first"]);
    edit(&two, Edit::Merge(vec![object("/b/", "second")]));
    until_same(&one, &two, &["first", "second"]);
    edit(&one, Edit::Delete(vec![uri("/a/")]));
    until_same(&one, &two, &["second"]);
    one.stop();
    two.stop();
    assert_eq!(names(&join(Vec::new())), ["second"]);
}
