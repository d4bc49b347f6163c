//! What the definition files say together.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::ModelClass;
use super::syntax::Statement;

/// How many classes or types may stand above one another: those of agent-ovs
/// have six. What is above goes round in a circle otherwise.
const HEIGHT: usize = 64;

/// The class at `/`, which contains what is `root`.
const ROOT: &str = "dmtree/Root";

/// The classes and types of all files, by `module/Name`.
#[derive(Debug, Default)]
pub(super) struct Classes {
    classes: BTreeMap<String, Class>,
    types: BTreeMap<String, Type>,
    skipped: Vec<String>,
}

#[derive(Debug, Default)]
struct Class {
    above: Option<String>,
    is_abstract: bool,
    is_root: bool,
    /// The classes that contain it.
    parents: Vec<String>,
    /// Names with types.
    members: Vec<(String, String)>,
    /// Names with the classes that they are to.
    relations: Vec<(String, Vec<String>)>,
    /// Where it is defined.
    place: String,
}

#[derive(Debug, Default)]
struct Type {
    above: Option<String>,
    constants: Vec<String>,
}

impl Classes {
    /// Adds what a file says. A class that two files define has what both say.
    pub(super) fn add(&mut self, file: &str, statements: Vec<Statement>) {
        for statement in statements {
            match (statement.kind.as_str(), statement.name()) {
                ("module", Some(module)) => {
                    let module = module.to_owned();
                    for inner in &statement.inner {
                        self.define(file, &module, inner);
                    }
                }
                // Who may write what is no matter of the model file.
                ("owner", _) => {}
                (kind, _) => self.skip(file, statement.line, kind),
            }
        }
    }

    fn define(&mut self, file: &str, module: &str, statement: &Statement) {
        let Some(name) = statement.name() else {
            return self.skip(file, statement.line, &statement.kind);
        };
        let in_module = |name: &str| match name.contains('/') || name == "*" {
            true => name.to_owned(),
            false => format!("{module}/{name}"),
        };
        let above = statement.value("super").or_else(|| statement.value("like"));
        let above = above.map(in_module);
        let classes_of = |within: &Statement, kind: &str| -> Vec<String> {
            let classes = within.all(kind).filter_map(|one| one.value("class"));
            classes.map(in_module).collect()
        };
        match statement.kind.as_str() {
            "type" | "primitive" => {
                let known = self.types.entry(in_module(name)).or_default();
                known.above = above.or(known.above.take());
                let constants = statement.all("const").filter_map(Statement::name);
                known.constants.extend(constants.map(str::to_owned));
            }
            "class" => {
                let known = self.classes.entry(in_module(name)).or_default();
                known.place = format!("{file}: line {}", statement.line);
                known.above = above.or(known.above.take());
                known.is_abstract |= statement.is("abstract");
                let mut strange = Vec::new();
                for inner in &statement.inner {
                    match (inner.kind.as_str(), inner.name()) {
                        ("root", _) => known.is_root = true,
                        ("contained", _) => known.parents.extend(classes_of(inner, "parent")),
                        ("member", Some(member)) => {
                            let kind = in_module(inner.value("type").unwrap_or_default());
                            known.members.push((member.to_owned(), kind));
                        }
                        ("dependency" | "association" | "reference", Some(relation)) => {
                            let to = classes_of(inner, "to");
                            known.relations.push((relation.to_owned(), to));
                        }
                        // How its URI is made, and which values of an inherited
                        // member it has: neither is checked.
                        ("named" | "override-member", _) => {}
                        (kind, _) => strange.push((inner.line, kind.to_owned())),
                    }
                }
                for (line, kind) in strange {
                    self.skip(file, line, &kind);
                }
            }
            kind => self.skip(file, statement.line, kind),
        }
    }

    fn skip(&mut self, file: &str, line: usize, kind: &str) {
        self.skipped.push(format!("{file}: line {line}: {kind:.64}"));
    }

    /// The classes of a model file, and what was skipped.
    pub(super) fn model(mut self) -> (BTreeMap<String, ModelClass>, Vec<String>) {
        if self.classes.values().any(|class| class.is_root) {
            self.classes.entry(ROOT.to_owned()).or_default();
        }
        let mut skipped = std::mem::take(&mut self.skipped);
        let below = self.below();
        let mut model = BTreeMap::new();
        for (name, class) in &self.classes {
            if !class.is_abstract {
                model.insert(full_name(name), self.class(name, &below, &mut skipped));
            }
            for (relation, to) in &class.relations {
                let (source, relation_name) = (full_name(name), capital(relation));
                let under = names(below.get(name.as_str()));
                let mut targets = BTreeSet::new();
                let mut is_any = false;
                for target in to {
                    match below.get(target.as_str()) {
                        Some(below) => targets.extend(below.iter().copied().map(full_name)),
                        None => {
                            is_any = true;
                            if target != "*" {
                                skipped.push(format!("{}: {relation} to the unknown {target}", class.place));
                            }
                        }
                    }
                }
                let target = match is_any || targets.is_empty() {
                    true => json!("reference"),
                    false => json!({ "reference": targets }),
                };
                let class = ModelClass {
                    under: Some(under),
                    properties: BTreeMap::from([("target".to_owned(), target)]),
                };
                model.insert(format!("{source}To{relation_name}RSrc"), class);
            }
        }
        (model, skipped)
    }

    fn class(
        &self,
        name: &str,
        below: &BTreeMap<&str, BTreeSet<&str>>,
        skipped: &mut Vec<String>,
    ) -> ModelClass {
        let mut made = ModelClass::default();
        let (mut under, mut is_anywhere, mut is_placed) = (BTreeSet::new(), false, false);
        for class in self.above(name) {
            if class.is_root {
                is_placed = true;
                under.insert(full_name(ROOT));
            }
            for parent in &class.parents {
                is_placed = true;
                match below.get(parent.as_str()) {
                    Some(below) => under.extend(below.iter().copied().map(full_name)),
                    None if parent == "*" => is_anywhere = true,
                    None => skipped.push(format!("{}: contained in the unknown {parent}", class.place)),
                }
            }
            for (member, kind) in &class.members {
                // The nearest one counts.
                if !made.properties.contains_key(member) {
                    let kind = self.kind(kind).unwrap_or_else(|| {
                        skipped.push(format!("{}: {member} of the unknown type {kind}", class.place));
                        json!("any")
                    });
                    made.properties.insert(member.clone(), kind);
                }
            }
            if let Some(above) = class
                .above
                .as_ref()
                .filter(|above| !self.classes.contains_key(*above))
            {
                skipped.push(format!("{}: below the unknown {above}", class.place));
                // What it inherits is not known.
                is_anywhere = true;
            }
        }
        let is_known = is_placed && !is_anywhere && !under.is_empty();
        made.under = is_known.then(|| under.into_iter().collect());
        made
    }

    /// A class and those above it, the nearest first.
    fn above<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Class> {
        let first = self.classes.get(name);
        let next = |class: &&'a Class| self.classes.get(class.above.as_deref()?);
        std::iter::successors(first, next).take(HEIGHT)
    }

    /// The classes that are not abstract at and below each class.
    fn below(&self) -> BTreeMap<&str, BTreeSet<&str>> {
        let mut below: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for (name, class) in &self.classes {
            let names = std::iter::successors(Some(name.as_str()), |name| {
                self.classes.get(*name)?.above.as_deref()
            });
            for above in names.take(HEIGHT) {
                let all = below.entry(above).or_default();
                if !class.is_abstract {
                    all.insert(name);
                }
            }
        }
        below.retain(|name, _| self.classes.contains_key(*name));
        below
    }

    /// The type of a member in the model file, by what its type stands on.
    fn kind(&self, name: &str) -> Option<Value> {
        let mut constants = Vec::new();
        let mut name = name;
        for _ in 0..HEIGHT {
            let known = self.types.get(name);
            constants.extend(known.into_iter().flat_map(|kind| &kind.constants));
            let (module, kind) = name.split_once('/')?;
            match module {
                "scalar" if kind.starts_with("UInt") || kind.starts_with("Bitmask") => {
                    return Some(json!("u64"));
                }
                "scalar" if kind.starts_with("SInt") => return Some(json!("i64")),
                "scalar" if kind.starts_with("Enum") && constants.is_empty() => return Some(json!("any")),
                "scalar" if kind.starts_with("Enum") => return Some(json!({ "enum": constants })),
                "address" if kind == "MAC" => return Some(json!("mac")),
                "address" if kind == "IP" => return Some(json!("string")),
                "ascii" if kind == "String" => return Some(json!("string")),
                // As libopflex has them, whatever they name.
                "reference" if kind != "CRI" => return Some(json!("string")),
                _ => name = known?.above.as_deref()?,
            }
        }
        None
    }
}

/// What a class is called on the wire.
fn full_name(name: &str) -> String {
    name.split('/').map(capital).collect()
}

fn names(of: Option<&BTreeSet<&str>>) -> Vec<String> {
    of.into_iter().flatten().copied().map(full_name).collect()
}

fn capital(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().map(|first| first.to_ascii_uppercase());
    first.into_iter().chain(letters).collect()
}
