//! The policy of a real server is unchanged by the tree.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;
use ssntp_opflex::model::{Format, ManagedObject, Schema, Tree, Uri};

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
fn the_policy_of_a_real_server_is_unchanged_by_the_tree() {
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

/// Runs docs/opflex-model-import.py. Returns the error if it can't be run.
fn import(arguments: &[&str]) -> Option<Output> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/opflex-model-import.py");
    if !script.exists() {
        eprintln!("skipped: {} is not part of the package", script.display());
        return None;
    }
    match Command::new("python3").arg(script).args(arguments).output() {
        Err(e) => {
            eprintln!("skipped: python3: {e}");
            None
        }
        Ok(output) => Some(output),
    }
}

/// The model files are what the importer wrote that the program had before the script.
#[test]
fn the_script_makes_model_files_of_definition_files() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/genie");
    let dir = tempfile::tempdir().unwrap();
    for (name, counts) in [
        ("good", "3 files: 6 classes with 12 properties, 0 skipped"),
        ("skip", "1 files: 2 classes with 2 properties, 7 skipped"),
        ("circle", "1 files: 3 classes with 1 properties, 1 skipped"),
        ("brace", "2 files: 2 classes with 1 properties, 0 skipped"),
    ] {
        let folder = fixtures.join(name);
        let given = folder.to_str().unwrap();
        let Some(shown) = import(&[given]) else { return };
        let text = fs::read_to_string(folder.join("model.yaml")).unwrap();
        assert_eq!(String::from_utf8(shown.stdout).unwrap(), text);
        let error = String::from_utf8(shown.stderr).unwrap();
        assert!(error.ends_with(&format!("{counts}\n")), "{error}");
        for place in fs::read_to_string(folder.join("skipped")).unwrap().lines() {
            assert!(error.contains(place), "{place} is not in {error}");
        }
        let written = dir.path().join("model.json");
        import(&[given, "--open", "--output", written.to_str().unwrap()]);
        let mut model: Value = serde_json::from_slice(&fs::read(&written).unwrap()).unwrap();
        assert_eq!(model["open"].take(), true);
        let mut expected: Value =
            serde_json::from_slice(&fs::read(folder.join("model.json")).unwrap()).unwrap();
        expected["open"].take();
        assert_eq!(model, expected);
        Schema::read(text.as_bytes(), Format::Yaml).unwrap();
    }
}

#[test]
fn the_script_refuses_an_invalid_definition_file_with_the_position() {
    let dir = tempfile::tempdir().unwrap();
    let deep = "a {".repeat(100_000);
    for (text, expected) in [
        ("module[gbp]\n{ class[a]\n{\n", "line 4: a brace is not closed"),
        ("module[gbp\n\n", "line 3: a bracket is not closed"),
        ("\n}", "line 2: '}' stands here"),
        ("module[a] { [b] }", "line 1: '[' stands here"),
        (&deep, "too many braces"),
    ] {
        fs::write(dir.path().join("a.mdl"), text).unwrap();
        let Some(refused) = import(&[dir.path().to_str().unwrap()]) else {
            return;
        };
        let error = String::from_utf8(refused.stderr).unwrap();
        assert!(
            !refused.status.success() && error.contains("a.mdl") && error.contains(expected),
            "{error}"
        );
    }
    fs::remove_file(dir.path().join("a.mdl")).unwrap();
    let empty = import(&[dir.path().to_str().unwrap()]).unwrap();
    let error = String::from_utf8(empty.stderr).unwrap();
    assert!(error.contains("there are no *.mdl files"), "{error}");
}
