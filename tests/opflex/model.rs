//! The policy of a real server, kept in our tree, comes out as that server
//! sent it.

use std::collections::BTreeMap;

use serde_json::Value;
use ssntp::opflex::model::{Format, ManagedObject, Tree, Uri};

const CAPTURE: &str = include_str!("../fixtures/opflex/03_opflex_agent_vs_opflex_server.jsonl");

/// Each policy that the real agent resolved, by URI.
fn resolved() -> BTreeMap<Uri, Vec<ManagedObject>> {
    let lines = CAPTURE
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap());
    let messages = lines.filter_map(|line| serde_json::from_str::<Value>(line.get("msg")?.as_str()?).ok());
    let results = messages.filter_map(|message| {
        let policy = message.get("result")?.get("policy")?.clone();
        serde_json::from_value::<Vec<ManagedObject>>(policy).ok()
    });
    results
        .filter(|objects| !objects.is_empty())
        .map(|objects| (objects[0].uri.clone(), objects))
        .collect()
}

fn sorted(mut objects: Vec<ManagedObject>) -> Vec<ManagedObject> {
    objects.sort_by(|a, b| a.uri.cmp(&b.uri));
    for object in &mut objects {
        object.children.sort();
        object.properties.sort_by(|a, b| a.name.cmp(&b.name));
    }
    objects
}

#[test]
fn the_policy_of_a_real_server_comes_out_as_it_went_in() {
    let resolved = resolved();
    assert!(resolved.len() > 30);
    let file: Vec<ManagedObject> = resolved.values().flatten().cloned().collect();
    for format in [Format::Json, Format::Yaml] {
        let text = ManagedObject::write_all(&file, format).unwrap();
        let mut tree = Tree::new();
        tree.merge(ManagedObject::read_all(text.as_bytes(), format).unwrap())
            .unwrap();
        for (uri, objects) in &resolved {
            let subtree: Vec<ManagedObject> = tree.subtree(uri).map(|object| object.to_object()).collect();
            assert_eq!(subtree[0].uri, *uri);
            let printed = serde_json::to_value(tree.subtree(uri).collect::<Vec<_>>()).unwrap();
            assert_eq!(serde_json::to_value(&subtree).unwrap(), printed);
            assert_eq!(sorted(subtree), sorted(objects.clone()));
        }
    }
}

#[test]
fn a_dump_loads_into_the_same_tree() {
    let mut tree = Tree::new();
    tree.merge(resolved().into_values().flatten().collect()).unwrap();
    for format in [Format::Json, Format::Yaml] {
        let text = tree.dump(format).unwrap();
        let mut again = Tree::new();
        again
            .merge(ManagedObject::read_all(text.as_bytes(), format).unwrap())
            .unwrap();
        assert_eq!(again.to_objects(), tree.to_objects());
        assert_eq!(again.dump(format).unwrap(), text);
    }
}

#[test]
fn what_the_policy_refers_to_is_found_from_there() {
    let mut tree = Tree::new();
    tree.merge(resolved().into_values().flatten().collect()).unwrap();
    let domain: Uri = "/PolicyUniverse/PolicySpace/test/GbpRoutingDomain/rd/"
        .parse()
        .unwrap();
    let referrers: Vec<_> = tree
        .referrers(&domain)
        .map(|object| object.subject().to_string())
        .collect();
    assert!(
        referrers
            .iter()
            .any(|subject| subject == "GbpBridgeDomainToNetworkRSrc"),
        "{referrers:?}"
    );
}
