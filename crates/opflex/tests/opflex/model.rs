//! The policy of a real server, kept in our tree, comes out as that server
//! sent it.

use std::collections::BTreeMap;

use serde_json::Value;
use ssntp_opflex::model::{Format, Imported, ManagedObject, Schema, Tree, Uri};

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

/// Definition files as agent-ovs has them.
const TYPES: &str = r#"
module[scalar]
{
    # 8-bit unsigned integer
    primitive[UInt8]
    {
        hint[scalar]
        language[cpp; syntax=uint8_t; pass-by=value;]
        {
            constraints[default=0; max=(2^8 - 1);
                        size=1; # of bytes ]
                        ]
        }
        language[c; like=scalar/UInt8/cpp]
    }
    primitive[SInt64] { hint[scalar] }
    primitive[Enum8;
              like=scalar/UInt8] { hint[enum] }
    primitive[Bitmask8; like=scalar/UInt8] { hint[bitmask] }
}
module[ascii] { primitive[String] { language[cpp] { constraints[default=""; size=128] } } }
module[address] { primitive[MAC] primitive[IP] }
module[reference] { primitive[URI; like=ascii/String] }
module[dmtree] { class[Root;concrete] }
owner[policyreg] { module[policy] { class[*] } }
"#;

const POLICY: &str = r#"
module[policy]
{
    type[Name; super=ascii/String]
    class[Container; abstract;]
    class[NamedContainer; super=policy/Container; abstract] { member[name; type=policy/Name] }
    class[Universe; super=policy/Container; concrete]
    {
        root
        named { parent[class=*] { component[prefix=universe] } }
    }
    class[Space;
          super=policy/NamedContainer;
          concrete ]
    {
        contained { parent[class=policy/Universe] }
        named { parent[class=*;] { component[prefix="space/"; member=name] } }
    }
}
"#;

const GROUPS: &str = r#"
module[gbp]
{
    type[Allowed; super=scalar/Enum8]
    {
        const[name=allow; value=0]
        const[deny; value=1]
    }
    type[Flags; super=scalar/Bitmask8] { const[syn; value=1] }
    type[name=Source; super=reference/URI]

    class[Group; super=policy/NamedContainer; abstract]
    {
        contained { parent[class=policy/Space] }
        member[allowed; type=gbp/Allowed]
        dependency[network; cardinality=single] { to[class=Group; cardinality=many] }
    }
    class[EpGroup; super=gbp/Group; concrete]
    {
        member[order; type=scalar/UInt8]
        member[offset; type=scalar/SInt64]
        member[flags; type=gbp/Flags]
        member[mac; type=address/MAC]
        member[ip; type=address/IP]
        member[source; type=gbp/Source]
        override-member[allowed] { remove-const[deny] }
    }
    class[FloodDomain; super=gbp/Group; concrete]
    {
        contained { parent[class=gbp/EpGroup] }
    }
}
"#;

#[test]
fn a_model_file_is_made_of_definition_files_and_checks_what_agents_have() {
    let imported = Imported::read([
        ("types.mdl", TYPES),
        ("policy.mdl", POLICY),
        ("groups.mdl", GROUPS),
    ]);
    let imported = imported.unwrap();
    assert_eq!(imported.skipped, [""; 0]);
    let text = imported.text(Format::Json).unwrap();
    let model: Value = serde_json::from_str(&text).unwrap();
    let classes: Vec<_> = model["classes"].as_object().unwrap().keys().cloned().collect();
    assert_eq!(
        classes,
        [
            "DmtreeRoot",
            "GbpEpGroup",
            "GbpFloodDomain",
            "GbpGroupToNetworkRSrc",
            "PolicySpace",
            "PolicyUniverse"
        ]
    );
    assert_eq!((imported.classes(), imported.properties()), (6, 12));
    assert_eq!(
        model["classes"]["GbpEpGroup"],
        serde_json::json!({
            "under": ["PolicySpace"],
            "properties": {
                "name": "string", "allowed": {"enum": ["allow", "deny"]}, "order": "u64", "offset": "i64",
                "flags": "u64", "mac": "mac", "ip": "string", "source": "string",
            },
        })
    );
    assert_eq!(
        model["classes"]["GbpFloodDomain"]["under"],
        serde_json::json!(["GbpEpGroup", "PolicySpace"])
    );
    // A relation is called by who declares it, and stands in whoever inherits it.
    assert_eq!(
        model["classes"]["GbpGroupToNetworkRSrc"],
        serde_json::json!({
            "under": ["GbpEpGroup", "GbpFloodDomain"],
            "properties": {"target": {"reference": ["GbpEpGroup", "GbpFloodDomain"]}},
        })
    );
    assert_eq!(
        model["classes"]["PolicyUniverse"]["under"],
        serde_json::json!(["DmtreeRoot"])
    );

    let yaml = imported.text(Format::Yaml).unwrap();
    for schema in [
        Schema::read(text.as_bytes(), Format::Json).unwrap(),
        Schema::read(yaml.as_bytes(), Format::Yaml).unwrap(),
    ] {
        let group = ManagedObject::new(
            "GbpEpGroup",
            "/PolicyUniverse/PolicySpace/s/GbpEpGroup/g/".parse().unwrap(),
        )
        .under("PolicySpace", "/PolicyUniverse/PolicySpace/s/".parse().unwrap());
        assert_eq!(schema.check(&group.clone().with("allowed", "deny")), Ok(()));
        schema.check(&group.with("allowed", "perhaps")).unwrap_err();
        assert!(!schema.knows("GbpContract"));
    }
    assert!(
        imported
            .open()
            .text(Format::Json)
            .unwrap()
            .contains("\"open\": true")
    );
}

#[test]
fn what_definition_files_name_and_do_not_define_is_skipped_and_counted() {
    let text = r#"
strange[thing]
module[gbp]
{
    class[EpGroup; super=policy/Definition; concrete]
    {
        contained { parent[class=policy/Space] }
        member[name; type=policy/Name]
        dependency[network] { to[class=gbp/Network] }
        wonder[of; the=world] { deep { inside } }
    }
    rule[]
}
"#;
    let imported = Imported::read([("a.mdl", text)]).unwrap();
    let all = imported.skipped.join("\n");
    for what in [
        "a.mdl: line 2: strange",
        "a.mdl: line 10: wonder",
        "a.mdl: line 12: rule",
        "contained in the unknown policy/Space",
        "below the unknown policy/Definition",
        "name of the unknown type policy/Name",
        "network to the unknown gbp/Network",
    ] {
        assert!(all.contains(what), "{what} is not in {all}");
    }
    assert_eq!(imported.skipped.len(), 7);
    let schema = Schema::read(imported.text(Format::Json).unwrap().as_bytes(), Format::Json).unwrap();
    let group = ManagedObject::new("GbpEpGroup", "/a/b/".parse().unwrap()).with("name", "x");
    assert_eq!(
        schema.check(&group.under("Anything", "/a/".parse().unwrap())),
        Ok(())
    );
}

#[test]
fn a_definition_file_that_is_none_is_refused_with_its_place() {
    let deep = "a {".repeat(100_000);
    let circle = "module[a] { class[B; super=a/C] class[C; super=a/B] type[T; super=a/T] class[D] { member[t; type=a/T] } }";
    for (text, what) in [
        ("module[gbp]\n{\n", "line 3: a brace is not closed"),
        ("module[gbp\n\n", "line 3: a bracket is not closed"),
        ("\n}", "line 2: '}' stands here"),
        ("module[a] { [b] }", "line 1: '[' stands here"),
        (&deep, "too many braces"),
    ] {
        let error = Imported::read([("a.mdl", text)]).unwrap_err().to_string();
        assert!(error.contains("a.mdl") && error.contains(what), "{error}");
    }
    // One that goes round in circles comes to an end.
    let imported = Imported::read([("a.mdl", circle)]).unwrap();
    assert_eq!(imported.classes(), 3);
}

proptest::proptest! {
    #[test]
    fn any_text_is_a_definition_file_or_is_refused(text in "(module|class|type|member|contained|parent|to|[a-z\\[\\]{};#=\"/é\n ]){0,60}") {
        if let Ok(imported) = Imported::read([("a.mdl", text.as_str())]) {
            let text = imported.text(Format::Json).unwrap();
            Schema::read(text.as_bytes(), Format::Json).unwrap();
        }
    }
}
