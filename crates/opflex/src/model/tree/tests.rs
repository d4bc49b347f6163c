//! The tree by itself, and compared with a naive model.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use serde_json::{Value, json};

use super::super::{Ident, ManagedObject, ModelError, Schema, Uri};
use super::Tree;
use super::changes::{Change, ChangeKind, Changes};

fn uri(text: &str) -> Uri {
    text.parse().unwrap()
}

fn object(text: &str) -> ManagedObject {
    ManagedObject::new("class", uri(text))
}

fn under(text: &str, parent: &str) -> ManagedObject {
    object(text).under("class", uri(parent))
}

fn listing(mut object: ManagedObject, children: &[&str]) -> ManagedObject {
    object.children = children.iter().map(|child| uri(child)).collect();
    object
}

fn uris(tree: &Tree) -> Vec<&str> {
    tree.iter().map(|object| object.uri().as_str()).collect()
}

fn kinds(changes: &Changes) -> Vec<(&str, ChangeKind)> {
    changes
        .iter()
        .map(|Change { uri, kind, .. }| (uri.as_str(), *kind))
        .collect()
}

use ChangeKind::{Created, Deleted, Modified};

#[test]
fn replace_deletes_unlisted_children_and_merge_keeps_them() {
    let mut tree = Tree::new();
    let all = || {
        vec![
            object("/a/"),
            under("/a/b/", "/a/"),
            under("/a/b/c/", "/a/b/"),
            under("/a/d/", "/a/"),
        ]
    };
    let changes = tree.replace(all()).unwrap();
    let created = [
        ("/a/", Created),
        ("/a/b/", Created),
        ("/a/b/c/", Created),
        ("/a/d/", Created),
    ];
    assert_eq!(kinds(&changes), created);

    let changes = tree.merge(vec![object("/a/").with("p", 1)]).unwrap();
    assert_eq!(kinds(&changes), [("/a/", Modified)]);
    assert_eq!(tree.len(), 4);

    let changes = tree.replace(vec![listing(object("/a/"), &["/a/d/"])]).unwrap();
    assert_eq!(
        kinds(&changes),
        [("/a/", Modified), ("/a/b/", Deleted), ("/a/b/c/", Deleted)]
    );
    assert_eq!(uris(&tree), ["/a/", "/a/d/"]);
}

#[test]
fn replace_keeps_a_child_that_moves_to_another_object_of_the_list() {
    let all = || {
        vec![
            object("/a/"),
            under("/a/b/", "/a/"),
            under("/a/b/c/", "/a/"),
            under("/a/b/c/d/", "/a/b/c/"),
            under("/a/x/", "/a/"),
            under("/a/x/y/", "/a/x/"),
        ]
    };
    let replace = [
        listing(object("/a/"), &["/a/b/", "/a/x/y/"]),
        listing(object("/a/b/"), &["/a/b/c/"]),
    ];
    for reversed in [false, true] {
        let mut tree = Tree::new();
        tree.merge(all()).unwrap();
        let mut objects = replace.to_vec();
        if reversed {
            objects.reverse();
        }
        let changes = tree.replace(objects).unwrap();
        assert_eq!(
            kinds(&changes),
            [("/a/b/c/", Modified), ("/a/x/", Deleted), ("/a/x/y/", Modified)]
        );
        assert_eq!(uris(&tree), ["/a/", "/a/b/", "/a/b/c/", "/a/b/c/d/", "/a/x/y/"]);
    }
}

#[test]
fn an_object_is_checked_against_the_parent_that_counts() {
    let model = b"{\"classes\":{\"a\":{},\"b\":{},\"c\":{\"under\":[\"a\"]}}}";
    let schema = Schema::read(model, Default::default()).unwrap();
    let mut tree = Tree::with_schema(schema.into());
    let child = || ManagedObject::new("c", uri("/a/b/c/")).under("a", uri("/a/"));
    let a = || ManagedObject::new("a", uri("/a/"));
    let b = || listing(ManagedObject::new("b", uri("/a/b/")), &["/a/b/c/"]);
    // The object that arrives last decides on the parent.
    let error = tree.merge(vec![a(), child(), b()]).unwrap_err();
    assert!(matches!(error, ModelError::WrongParent { .. }), "{error}");
    tree.merge(vec![a(), b(), child()]).unwrap();
    assert_eq!(tree.get(&uri("/a/b/c/")).unwrap().parent_uri(), Some(&uri("/a/")));
}

#[test]
fn an_object_without_a_parent_is_below_the_nearest_object_above() {
    let mut tree = Tree::new();
    tree.merge(vec![object("/a/b/c/d/"), object("/a/"), object("/x/y/")])
        .unwrap();
    let parent = |tree: &Tree, text: &str| tree.get(&uri(text)).unwrap().parent_uri().map(Uri::to_string);
    assert_eq!(parent(&tree, "/a/b/c/d/").as_deref(), Some("/a/"));
    assert_eq!((parent(&tree, "/a/"), parent(&tree, "/x/y/")), (None, None));
    tree.merge(vec![object("/a/b/"), object("/a/b/c/d/")]).unwrap();
    assert_eq!(
        parent(&tree, "/a/b/c/d/").as_deref(),
        Some("/a/"),
        "a parent is kept"
    );
    assert_eq!(tree.delete(&[uri("/a/")]).len(), 3);
}

#[test]
fn equal_values_cause_no_updates() {
    let mut tree = Tree::new();
    let one = || under("/a/b/", "/a/").with("p", 1).with("q", json!(["x"]));
    tree.merge(vec![one()]).unwrap();
    assert!(tree.merge(vec![one()]).unwrap().is_empty());
    let turned = under("/a/b/", "/a/").with("q", json!(["x"])).with("p", 1);
    assert!(tree.replace(vec![turned]).unwrap().is_empty());
    let fewer = tree.merge(vec![under("/a/b/", "/a/").with("p", 1)]).unwrap();
    assert_eq!(kinds(&fewer), [("/a/b/", Modified)]);
}

#[test]
fn children_may_arrive_before_or_without_their_parents() {
    let mut tree = Tree::new();
    tree.merge(vec![
        under("/a/b/c/", "/a/b/"),
        under("/x/y/", "/x/"),
        object("/a/b/"),
    ])
    .unwrap();
    let subtree: Vec<_> = tree.subtree(&uri("/a/b/")).map(|o| o.uri().as_str()).collect();
    assert_eq!(subtree, ["/a/b/", "/a/b/c/"]);
    assert_eq!(tree.subtree(&uri("/x/")).count(), 0);
    assert_eq!(kinds(&tree.delete(&[uri("/x/")])), [("/x/y/", Deleted)]);
}

#[test]
fn an_announced_child_is_linked_when_it_arrives() {
    let mut tree = Tree::new();
    let parent = ManagedObject::new("space", uri("/a/"));
    tree.merge(vec![listing(parent, &["/a/b/"])]).unwrap();
    assert_eq!(tree.subtree(&uri("/a/")).count(), 1);
    tree.merge(vec![object("/a/b/")]).unwrap();
    let child = tree.get(&uri("/a/b/")).unwrap().to_object();
    assert_eq!(child.parent_uri, Some(uri("/a/")));
    assert_eq!(child.parent_subject.unwrap(), "space");
    assert_eq!(child.parent_relation.unwrap(), "class");
    assert_eq!(tree.subtree(&uri("/a/")).count(), 2);

    tree.delete(&[uri("/a/b/")]);
    assert_eq!(tree.get(&uri("/a/")).unwrap().children().count(), 0);
}

#[test]
fn a_child_has_one_parent() {
    let mut tree = Tree::new();
    tree.merge(vec![
        object("/a/"),
        under("/a/b/", "/a/"),
        under("/a/b/c/", "/a/"),
    ])
    .unwrap();
    tree.merge(vec![listing(under("/a/b/", "/a/"), &["/a/b/c/"])])
        .unwrap();
    let children = |text: &str| {
        tree.get(&uri(text))
            .unwrap()
            .children()
            .cloned()
            .collect::<Vec<_>>()
    };
    assert_eq!(children("/a/"), [uri("/a/b/")]);
    assert_eq!(children("/a/b/"), [uri("/a/b/c/")]);
}

#[test]
fn deleting_an_object_deletes_its_subtree() {
    let mut tree = Tree::new();
    tree.merge(vec![
        object("/a/"),
        under("/a/b/", "/a/"),
        under("/a/b/c/", "/a/b/"),
        object("/ab/"),
    ])
    .unwrap();
    let changes = tree.delete(&[uri("/a/"), uri("/nothing/")]);
    assert_eq!(
        kinds(&changes),
        [("/a/", Deleted), ("/a/b/", Deleted), ("/a/b/c/", Deleted)]
    );
    assert_eq!(uris(&tree), ["/ab/"]);
    assert!(tree.children.is_empty() && tree.announced.is_empty());
    assert_eq!(tree.len(), 1);
}

#[test]
fn an_object_that_an_edit_deletes_and_adds_again_is_unchanged() {
    let mut tree = Tree::new();
    tree.merge(vec![object("/a/"), under("/a/b/", "/a/")]).unwrap();
    // The first update deletes the child, the second adds it again.
    let changes = tree.replace(vec![object("/a/"), under("/a/b/", "/a/")]).unwrap();
    assert!(changes.is_empty(), "{changes:?}");
}

#[test]
fn an_edit_with_a_bad_object_has_no_effect() {
    let mut tree = Tree::new();
    for bad in [
        under("/a/b/", "/x/"),
        under("/a/", "/a/"),
        listing(object("/a/"), &["/b/"]),
    ] {
        for edit in [Tree::merge, Tree::replace, Tree::replace_all] {
            let result = edit(&mut tree, vec![object("/good/"), bad.clone()]);
            assert!(matches!(result, Err(ModelError::NotBelowParent { .. })));
            assert!(tree.is_empty());
        }
    }
    let schema = Schema::read(b"{\"classes\":{\"known\":{}}}", Default::default()).unwrap();
    let mut tree = Tree::with_schema(schema.into());
    assert!(
        tree.merge(vec![ManagedObject::new("known", uri("/a/")), object("/b/")])
            .is_err()
    );
    assert!(tree.is_empty());
}

#[test]
fn an_update_is_one_edit() {
    let mut tree = Tree::new();
    tree.merge(vec![object("/a/"), under("/a/b/", "/a/"), object("/c/")])
        .unwrap();
    let merge = vec![object("/c/").with("p", 1)];
    let changes = tree
        .update(&[uri("/a/")], vec![under("/a/b/", "/a/")], merge)
        .unwrap();
    assert_eq!(kinds(&changes), [("/a/", Deleted), ("/c/", Modified)]);
    assert_eq!(uris(&tree), ["/a/b/", "/c/"]);
    let bad = tree.update(&[uri("/c/")], vec![], vec![under("/x/", "/y/")]);
    assert!(bad.is_err());
    assert_eq!(tree.len(), 2);
}

#[test]
fn delete_sparing_keeps_spared_objects() {
    let mut tree = Tree::new();
    let all = ["/a/", "/a/b/", "/a/b/c/", "/a/d/"];
    tree.merge(vec![
        object("/a/"),
        under("/a/b/", "/a/"),
        under("/a/b/c/", "/a/b/"),
        under("/a/d/", "/a/"),
    ])
    .unwrap();
    let changes = tree.delete_sparing(&[uri("/a/")], |_, uri| uri.as_str() == all[2]);
    assert_eq!(
        kinds(&changes),
        [(all[0], Deleted), (all[1], Deleted), (all[3], Deleted)]
    );
    assert_eq!(uris(&tree), ["/a/b/c/"]);
}

#[test]
fn replacing_the_tree_returns_the_differences() {
    let mut tree = Tree::new();
    tree.merge(vec![
        object("/a/"),
        under("/a/b/", "/a/"),
        object("/c/").with("p", 1),
    ])
    .unwrap();
    let changes = tree
        .replace_all(vec![object("/a/"), object("/c/").with("p", 2), object("/d/")])
        .unwrap();
    assert_eq!(
        kinds(&changes),
        [("/a/b/", Deleted), ("/c/", Modified), ("/d/", Created)]
    );
    assert_eq!(uris(&tree), ["/a/", "/c/", "/d/"]);
}

#[test]
fn objects_are_found_by_class_and_identifier() {
    let mut tree = Tree::new();
    tree.merge(vec![
        ManagedObject::new("Group", uri("/s/Group/g/")),
        ManagedObject::new("Group", uri("/s/Group/h/")).with("name", "g"),
    ])
    .unwrap();
    let ident = Ident {
        context: uri("/s/"),
        name: "g".into(),
    };
    let found: Vec<_> = tree.find(&ident).map(|o| o.uri().as_str()).collect();
    assert_eq!(found, ["/s/Group/g/", "/s/Group/h/"]);
    assert_eq!(tree.idents(&uri("/s/Group/g/")), std::slice::from_ref(&ident));
    tree.delete(&[uri("/s/Group/g/"), uri("/s/Group/h/")]);
    assert_eq!(tree.find(&ident).count(), 0);
    assert!(tree.index.is_empty());
}

/// URI, value of the one property, parent and children of an object.
type State = (Uri, Option<Value>, Option<Uri>, BTreeSet<Uri>);

/// A naive model of the tree, which searches all objects for every query.
#[derive(Debug, Default)]
struct Naive {
    objects: BTreeMap<Uri, ManagedObject>,
    /// Parent of each child, present or announced.
    parents: BTreeMap<Uri, Uri>,
}

impl Naive {
    fn children(&self, of: &Uri) -> Vec<Uri> {
        self.parents
            .iter()
            .filter(|(_, parent)| *parent == of)
            .map(|(child, _)| child.clone())
            .collect()
    }

    fn delete(&mut self, uri: &Uri, kept: &[Uri]) {
        let is_kept = |other: &Uri| kept.iter().any(|kept| kept.covers(other));
        let gone: Vec<Uri> = self
            .objects
            .keys()
            .filter(|other| uri.covers(other) && !is_kept(other))
            .cloned()
            .collect();
        for uri in gone.iter().chain([uri]) {
            self.objects.remove(uri);
            self.parents.remove(uri);
        }
        let objects = &self.objects;
        self.parents
            .retain(|child, parent| objects.contains_key(child) || !gone.contains(parent));
    }

    fn put(&mut self, object: &ManagedObject, listed: &[Uri], whole: bool) {
        if let Some(parent) = &object.parent_uri {
            self.parents.insert(object.uri.clone(), parent.clone());
        }
        self.objects.insert(object.uri.clone(), object.clone());
        for child in &object.children {
            self.parents.insert(child.clone(), object.uri.clone());
        }
        if whole {
            for child in listed {
                self.parents.insert(child.clone(), object.uri.clone());
            }
        }
    }

    fn edit(&mut self, objects: &[ManagedObject], whole: bool) {
        let mut objects = objects.to_vec();
        let all = objects.clone();
        for object in &mut objects {
            let listed = all.iter().any(|other| other.children.contains(&object.uri));
            if object.parent_uri.is_none() && !listed && !self.parents.contains_key(&object.uri) {
                let there = self.objects.keys().chain(all.iter().map(|other| &other.uri));
                let above = there.filter(|other| other.is_ancestor_of(&object.uri));
                object.parent_uri = above.max_by_key(|other| other.as_str().len()).cloned();
            }
        }
        let objects = &objects;
        let listed = |object: &ManagedObject| -> Vec<Uri> {
            let named = objects
                .iter()
                .filter(|o| o.parent_uri.as_ref() == Some(&object.uri))
                .map(|o| &o.uri);
            object.children.iter().chain(named).cloned().collect()
        };
        let former = objects.iter().flat_map(|object| self.children(&object.uri));
        let former: Vec<Uri> = former.filter(|_| whole).collect();
        for object in objects {
            self.put(object, &listed(object), whole);
        }
        let stay: Vec<Uri> = objects
            .iter()
            .flat_map(|object| listed(object).into_iter().chain([object.uri.clone()]))
            .collect();
        for child in former.iter().filter(|child| !stay.contains(child)) {
            let below = stay.iter().filter(|uri| child.is_ancestor_of(uri));
            self.delete(child, &below.cloned().collect::<Vec<_>>());
        }
    }

    fn state(&self) -> Vec<State> {
        let state = |object: &ManagedObject| {
            let parent = self.parents.get(&object.uri).cloned();
            let children = self.children(&object.uri).into_iter().collect();
            (
                object.uri.clone(),
                object.property("p").cloned(),
                parent,
                children,
            )
        };
        self.objects.values().map(state).collect()
    }
}

fn state(tree: &Tree) -> Vec<State> {
    let state = |object: super::ObjectRef<'_>| {
        let children = object.children().cloned().collect();
        (
            object.uri().clone(),
            object.property("p").cloned(),
            object.parent_uri().cloned(),
            children,
        )
    };
    tree.iter().map(state).collect()
}

#[derive(Clone, Debug)]
enum Edit {
    Merge(Vec<ManagedObject>),
    Replace(Vec<ManagedObject>),
    Delete(Vec<Uri>),
}

/// URIs of a tree with two branches at each of three levels.
fn any_uri() -> impl Strategy<Value = Uri> {
    prop::collection::vec(prop::sample::select(vec!["a", "b"]), 1..4)
        .prop_map(|segments| format!("/{}/", segments.join("/")).parse().unwrap())
}

fn any_object() -> impl Strategy<Value = ManagedObject> {
    (
        any_uri(),
        0..3i64,
        any::<Option<prop::sample::Index>>(),
        prop::collection::vec(any_uri(), 0..3),
    )
        .prop_map(|(uri, value, parent, children)| {
            let ancestors: Vec<Uri> = uri
                .prefixes()
                .filter(|text| text.ends_with('/'))
                .map(|t| t.parse().unwrap())
                .collect();
            let mut object = ManagedObject::new("class", uri.clone()).with("p", value);
            object.parent_uri = parent.map(|index| index.get(&ancestors).clone());
            object.children = children
                .into_iter()
                .filter(|child| uri.is_ancestor_of(child))
                .collect();
            object
        })
}

fn any_edit() -> impl Strategy<Value = Edit> {
    let objects = || {
        // Each URI once, because the meaning of duplicates is not defined.
        prop::collection::vec(any_object(), 1..5).prop_map(|objects| {
            let mut seen = BTreeSet::new();
            objects
                .into_iter()
                .filter(|object| seen.insert(object.uri.clone()))
                .collect::<Vec<_>>()
        })
    };
    prop_oneof![
        objects().prop_map(Edit::Merge),
        objects().prop_map(Edit::Replace),
        prop::collection::vec(any_uri(), 1..3).prop_map(Edit::Delete),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn the_tree_does_what_the_naive_model_does(edits in prop::collection::vec(any_edit(), 1..8)) {
        let (mut tree, mut naive) = (Tree::new(), Naive::default());
        for edit in edits {
            let before = naive.state();
            let changes = match &edit {
                Edit::Merge(objects) => {
                    naive.edit(objects, false);
                    tree.merge(objects.clone()).unwrap()
                }
                Edit::Replace(objects) => {
                    naive.edit(objects, true);
                    tree.replace(objects.clone()).unwrap()
                }
                Edit::Delete(uris) => {
                    uris.iter().for_each(|uri| naive.delete(uri, &[]));
                    tree.delete(uris)
                }
            };
            prop_assert_eq!(state(&tree), naive.state(), "{:?}", edit);

            // A subtree is returned parents first, and every object is in every table once.
            for object in tree.iter() {
                let subtree: Vec<_> = tree.subtree(object.uri()).map(|o| o.uri().clone()).collect();
                let covered: Vec<_> = naive.objects.keys().filter(|uri| object.uri().covers(uri)).cloned().collect();
                prop_assert_eq!(subtree, covered);
                for ident in tree.idents(object.uri()) {
                    prop_assert_eq!(tree.find(&ident).filter(|found| found.uri() == object.uri()).count(), 1);
                }
            }
            prop_assert_eq!(tree.len(), naive.objects.len());

            // The changes lead from the state before to the state after.
            let after = naive.state();
            let find = |state: &[State], uri: &Uri| {
                let (_, value, parent, children) = state.iter().find(|object| object.0 == *uri)?;
                // A child that has arrived is a change of its own.
                let is_here = |child: &Uri| state.iter().chain(&after).any(|object| object.0 == *child);
                let announced: Vec<_> = children.iter().filter(|child| !is_here(child)).cloned().collect();
                Some((value.clone(), parent.clone(), announced))
            };
            let all: BTreeSet<_> = before.iter().chain(&after).map(|object| object.0.clone()).collect();
            let expected: Vec<_> = all.iter().filter_map(|uri| match (find(&before, uri), find(&after, uri)) {
                (None, Some(_)) => Some((uri.as_str(), Created)),
                (Some(_), None) => Some((uri.as_str(), Deleted)),
                (before, after) if before != after => Some((uri.as_str(), Modified)),
                _ => None,
            }).collect();
            prop_assert_eq!(kinds(&changes), expected, "{:?}", edit);
        }
        // The tables are empty.
        tree.delete(&[Uri::root(), uri("/a/"), uri("/b/")]);
        let rest: Vec<Uri> = tree.iter().map(|object| object.uri().clone()).collect();
        tree.delete(&rest);
        let announced: Vec<Uri> = tree.announced.keys().cloned().collect();
        tree.delete(&announced);
        prop_assert!(tree.children.is_empty(), "{:?}", tree.children);
        prop_assert!(tree.announced.is_empty() && tree.index.is_empty());
    }
}

thread_local! {
    /// The number of URIs that were visited in searches of subtrees.
    pub(crate) static LOOKED_AT: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

#[test]
fn a_subtree_is_found_without_visiting_similar_uris() {
    for siblings in [20, 20_000] {
        let mut tree = Tree::new();
        let groups = (1..=siblings).map(|n| object(&format!("/space/group{n}/")));
        tree.merge(groups.chain([object("/space/group1/rule/")]).collect())
            .unwrap();
        LOOKED_AT.set(0);
        let found: Vec<_> = tree
            .subtree(&uri("/space/group1/"))
            .map(|object| object.uri().to_string())
            .collect();
        assert_eq!(found, ["/space/group1/", "/space/group1/rule/"]);
        // These two and the one that ends the search.
        assert_eq!(LOOKED_AT.get(), 3);
        LOOKED_AT.set(0);
        tree.merge(vec![object("/space/group1/").with("p", 1)]).unwrap();
        assert_eq!(LOOKED_AT.get(), 0, "what is put by itself looks at nothing else");
        tree.delete(&[uri("/space/group1/")]);
        assert_eq!(LOOKED_AT.get(), 3);
    }
}

#[test]
fn a_uri_covers_the_same_objects_with_and_without_its_last_slash() {
    let mut tree = Tree::new();
    let all = ["/a", "/a!/", "/a-b/", "/a/", "/a/b", "/a/b/c/", "/a//", "/ab/"];
    tree.merge(all.map(object).to_vec()).unwrap();
    for root in all.into_iter().chain(["/", "/a/b/", "/x/"]).map(uri) {
        let expected: Vec<_> = tree
            .iter()
            .filter(|object| root.covers(object.uri()))
            .map(|object| object.uri().clone())
            .collect();
        let found: Vec<_> = tree.covered_after(&root, None).cloned().collect();
        assert_eq!(found, expected, "{root}");
        for (n, last) in expected.iter().enumerate() {
            let rest: Vec<_> = tree.covered_after(&root, Some(last)).cloned().collect();
            assert_eq!(rest, expected[n + 1..], "{root} after {last}");
        }
    }
}
