//! The model file: the classes, their properties, and the classes that may contain them.

use std::collections::{HashMap, HashSet};
use std::fmt;

use serde::Deserialize;
use serde_json::Value;

use super::error::{FileError, ModelError};
use super::file::Format;
use super::managed_object::{ManagedObject, NAMING, PropertyReference};
use super::name::Name;

/// The classes of a policy model, against which objects are checked.
///
/// ```yaml
/// open: false                     # true: other classes are accepted, too; default false
/// classes:
///   GbpEpGroup:
///     under: [PolicySpace]        # classes that may contain it; default any
///     properties:
///       name: string
///       encapId: u64
///       tags: "[string]"          # a list
///       intraGroup: {enum: [allow, deny]}
///       contract: {reference: [GbpContract]}
///   EprL3Ep:
///     context: context            # the property with the context of its identifiers
///     names: [ip, uuid]           # the properties that are names in this context
///     properties: {context: uri, ip: string, mac: mac, uuid: string}
/// ```
///
/// The types are `string`, `u64`, `i64`, `f64`, `bool`, `mac`, `uri`,
/// `reference` and `any`, each also in brackets for a list; `enum` and `reference`
/// have values as shown. A class without `properties` accepts any. Without `context`, the property
/// is `context`; without `names`, the properties are `name`, `identifier`, `ip`, `mac` and `uuid`.
#[derive(Debug)]
pub struct Schema {
    open: bool,
    classes: HashMap<Name, Class>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Class {
    under: Option<Vec<Name>>,
    properties: Option<HashMap<Name, Type>>,
    context: Option<String>,
    names: Option<Vec<Name>>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "Value")]
enum Type {
    Simple(&'static Simple),
    Enumeration(Vec<String>),
    /// A reference to one of these classes; to any class if the list is empty.
    Reference(Vec<Name>),
    ListOf(Box<Type>),
}

/// A type without parameters: its name, its description in errors, and the check of a value.
type Simple = (&'static str, &'static str, fn(&Value) -> bool);

const SIMPLE: [Simple; 8] = [
    ("string", "a string", Value::is_string),
    ("u64", "an integer from 0 to 2^64-1", Value::is_u64),
    ("i64", "an integer from -2^63 to 2^63-1", Value::is_i64),
    // A property that may have a fraction accepts whole numbers as well.
    ("f64", "a number", Value::is_number),
    ("bool", "true or false", Value::is_boolean),
    ("mac", "a MAC address", |data| data.as_str().is_some_and(is_mac)),
    ("uri", "a URI", |data| data.as_str().is_some_and(is_uri)),
    ("any", "anything", |_| true),
];

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    open: bool,
    classes: HashMap<Name, Class>,
}

impl Schema {
    /// Reads a model file.
    pub fn read(text: &[u8], format: Format) -> Result<Self, FileError> {
        let File { open, classes } = format.read(text)?;
        // Classes may name each other in any order, so the names are checked at the end.
        let mut schema = Self { open, classes };
        schema.check_names()?;
        for class in schema
            .classes
            .values_mut()
            .filter(|class| class.context.is_some())
        {
            class.names.get_or_insert_with(|| NAMING.map(Name::from).to_vec());
        }
        Ok(schema)
    }

    /// Refuses a file that uses a class or a property without defining it, which is most likely a
    /// typing error.
    fn check_names(&self) -> Result<(), FileError> {
        for (name, class) in &self.classes {
            let named = class.under.iter().flatten();
            let types = class.properties.iter().flat_map(HashMap::values);
            let mut named = named.chain(types.flat_map(Type::classes));
            if let Some(unknown) = named.find(|subject| !self.knows(subject)) {
                return Err(FileError::Model(format!(
                    "class {name} names the unknown class {unknown}"
                )));
            }
            let naming = class
                .names
                .iter()
                .flatten()
                .map(Name::as_str)
                .chain(class.context.as_deref());
            let types = class.properties.as_ref();
            let mut undefined =
                naming.filter(|property| types.is_some_and(|types| !types.contains_key(*property)));
            if let Some(unknown) = undefined.next() {
                return Err(FileError::Model(format!(
                    "class {name} has no property {unknown} for its identifiers"
                )));
            }
        }
        Ok(())
    }

    /// True if objects of the class are accepted. An open model accepts any class.
    pub fn knows(&self, subject: &str) -> bool {
        self.open || self.classes.contains_key(subject)
    }

    /// Removes objects of unknown classes, and unknown properties, from the objects of a peer.
    /// Returns how many objects and properties it removed.
    pub(crate) fn leave_out_unknown(&self, objects: &mut Vec<ManagedObject>) -> usize {
        let mut left_out = 0;
        let mut gone = HashSet::new();
        objects.retain_mut(|object| {
            // An open model accepts any class, but checks the properties of the classes that it lists.
            let known = self.knows(&object.subject);
            if !known {
                gone.insert(object.uri.clone());
            }
            let types = self
                .classes
                .get(&object.subject)
                .and_then(|class| class.properties.as_ref());
            if let Some(types) = types {
                let before = object.properties.len();
                object
                    .properties
                    .retain(|property| types.contains_key(&property.name));
                left_out += before - object.properties.len();
            }
            known
        });
        // Otherwise the parent would announce a child that never arrives.
        if !gone.is_empty() {
            let lists = objects.iter_mut().map(|object| &mut object.children);
            lists.for_each(|children| children.retain(|child| !gone.contains(child)));
        }
        left_out + gone.len()
    }

    /// Checks an object: its class, its properties, and the class of its parent if the
    /// object names it.
    pub fn check(&self, object: &ManagedObject) -> Result<(), ModelError> {
        self.check_below(object, object.parent_subject.as_ref())
    }

    /// Checks an object whose parent has this class.
    pub(super) fn check_below(
        &self,
        object: &ManagedObject,
        parent: Option<&Name>,
    ) -> Result<(), ModelError> {
        let uri = || object.uri.clone();
        let Some(class) = self.classes.get(&object.subject) else {
            return if self.open {
                Ok(())
            } else {
                Err(ModelError::UnknownClass {
                    uri: uri(),
                    subject: object.subject.clone(),
                })
            };
        };
        self.check_place(&object.uri, &object.subject, parent)?;
        let Some(types) = &class.properties else {
            return Ok(());
        };
        for property in &object.properties {
            let Some(kind) = types.get(&property.name) else {
                return Err(ModelError::UnknownProperty {
                    uri: uri(),
                    property: property.name.clone(),
                });
            };
            if !kind.accepts(&property.data) {
                return Err(ModelError::WrongType {
                    uri: uri(),
                    property: property.name.clone(),
                    expected: kind.to_string(),
                });
            }
        }
        Ok(())
    }

    /// Checks that an object of one class may be below an object of another class.
    pub(super) fn check_place(
        &self,
        uri: &super::Uri,
        subject: &Name,
        parent: Option<&Name>,
    ) -> Result<(), ModelError> {
        // A class without a list of parents may be below any class.
        let under = self.classes.get(subject).and_then(|class| class.under.as_ref());
        match (under, parent) {
            (Some(under), Some(parent)) if !under.contains(parent) => Err(ModelError::WrongParent {
                uri: uri.clone(),
                subject: subject.clone(),
                parent: parent.clone(),
            }),
            _ => Ok(()),
        }
    }

    /// The property that holds the context of a class's identifiers, and those that
    /// hold the identifiers, if the file names them.
    pub(super) fn naming(&self, subject: &str) -> Option<(&str, &[Name])> {
        let class = self.classes.get(subject)?;
        let context = class.context.as_deref().unwrap_or("context");
        Some((context, class.names.as_deref()?))
    }
}

impl TryFrom<Value> for Type {
    type Error = String;

    fn try_from(text: Value) -> Result<Self, String> {
        Self::read(&text).ok_or_else(|| format!("unknown type {text}"))
    }
}

impl Type {
    fn read(text: &Value) -> Option<Self> {
        match text {
            Value::String(name) => Self::named(name),
            Value::Object(members) if members.len() == 1 => {
                let (kind, values) = members.iter().next()?;
                let values: Vec<String> = serde_json::from_value(values.clone()).ok()?;
                match kind.as_str() {
                    "enum" => Some(Self::Enumeration(values)),
                    "reference" => Some(Self::Reference(values.into_iter().map(Name::from).collect())),
                    _ => None,
                }
            }
            _ => None,
        }
    }

    /// The classes of the objects to which a value may refer.
    fn classes(&self) -> &[Name] {
        match self {
            Self::Reference(classes) => classes,
            Self::ListOf(kind) => kind.classes(),
            _ => &[],
        }
    }

    fn named(name: &str) -> Option<Self> {
        if let Some(inner) = name.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            // libopflex has no lists of lists.
            let inner = Self::named(inner).filter(|inner| !matches!(inner, Self::ListOf(_)))?;
            return Some(Self::ListOf(Box::new(inner)));
        }
        let simple = SIMPLE.iter().find(|(known, ..)| *known == name).map(Self::Simple);
        simple.or_else(|| (name == "reference").then(|| Self::Reference(Vec::new())))
    }

    fn accepts(&self, data: &Value) -> bool {
        match self {
            Self::Simple((_, _, accepts)) => accepts(data),
            Self::Enumeration(values) => data.as_str().is_some_and(|text| values.iter().any(|v| v == text)),
            Self::Reference(classes) => {
                let mut references = PropertyReference::all(data).filter(|_| data.is_object());
                references
                    .next()
                    .is_some_and(|to| classes.is_empty() || classes.contains(&to.subject))
            }
            Self::ListOf(kind) => data
                .as_array()
                .is_some_and(|all| all.iter().all(|one| kind.accepts(one))),
        }
    }
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Simple((_, shown, _)) => f.write_str(shown),
            Self::Enumeration(values) => write!(f, "one of {}", values.join(", ")),
            Self::Reference(classes) if classes.is_empty() => f.write_str("a reference"),
            Self::Reference(classes) => {
                let names: Vec<_> = classes.iter().map(Name::as_str).collect();
                write!(f, "a reference to {}", names.join(" or "))
            }
            Self::ListOf(kind) => write!(f, "a list in which each element is {kind}"),
        }
    }
}

fn is_uri(text: &str) -> bool {
    text.parse::<super::Uri>().is_ok()
}

/// True if a text is a MAC address: six bytes like `00:11:22:33:44:55`.
pub fn is_mac(text: &str) -> bool {
    let is_byte = |pair: &str| pair.len() == 2 && pair.bytes().all(|b| b.is_ascii_hexdigit());
    text.split(':').count() == 6 && text.split(':').all(is_byte)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::Ident;
    use super::*;

    const MODEL: &str = "
classes:
  Space: {}
  Contract: {}
  Group:
    under: [Space]
    properties:
      name: string
      id: u64
      offset: i64
      ratio: f64
      on: bool
      mac: mac
      place: uri
      tags: '[string]'
      mode: {enum: [allow, deny]}
      contract: {reference: [Contract]}
      links: '[reference]'
      rest: any
";

    fn group() -> ManagedObject {
        ManagedObject::new("Group", "/Space/s/Group/g/".parse().unwrap())
    }

    #[test]
    fn each_type_accepts_only_its_values() {
        let schema = Schema::read(MODEL.as_bytes(), Format::Yaml).unwrap();
        let to = |class: &str| json!({"subject": class, "reference_uri": "/x/"});
        for (name, good, bad) in [
            ("name", json!("x"), json!(1)),
            ("id", json!(u64::MAX), json!(-1)),
            ("offset", json!(-1), json!(u64::MAX)),
            ("ratio", json!(1.5), json!("1.5")),
            ("on", json!(false), json!("false")),
            ("mac", json!("00:aB:02:03:04:05"), json!("00:01:02:03:04")),
            ("place", json!("/x/"), json!("")),
            ("tags", json!(["a", "b"]), json!(["a", 1])),
            ("tags", json!([]), json!("a")),
            ("mode", json!("deny"), json!("maybe")),
            ("contract", to("Contract"), to("Group")),
            ("contract", to("Contract"), json!([to("Contract")])),
            ("links", json!([to("A"), to("B")]), to("A")),
        ] {
            assert_eq!(schema.check(&group().with(name, good)), Ok(()), "{name}");
            let error = schema.check(&group().with(name, bad)).unwrap_err();
            assert!(error.to_string().contains(name), "{error}");
        }
        assert_eq!(schema.check(&group().with("rest", json!([{}]))), Ok(()));
    }

    #[test]
    fn classes_properties_and_containment_are_checked() {
        let schema = Schema::read(MODEL.as_bytes(), Format::Yaml).unwrap();
        let uri = || "/Space/s/".parse().unwrap();
        assert_eq!(schema.check(&group().under("Space", uri())), Ok(()));
        let error = schema.check(&group().under("Group", uri())).unwrap_err();
        assert!(matches!(error, ModelError::WrongParent { .. }));
        let error = schema.check(&group().with("nmae", "x")).unwrap_err();
        assert!(matches!(error, ModelError::UnknownProperty { .. }));
        let error = schema.check(&ManagedObject::new("Other", uri())).unwrap_err();
        assert!(matches!(error, ModelError::UnknownClass { .. }));
        assert!(!schema.knows("Other"));
        assert_eq!(
            schema.check(&ManagedObject::new("Space", uri()).with("any", 1)),
            Ok(())
        );

        let open = Schema::read(br#"{"open": true, "classes": {}}"#, Format::Json).unwrap();
        assert_eq!(open.check(&ManagedObject::new("Other", uri())), Ok(()));
    }

    #[test]
    fn a_class_that_sets_only_its_context_has_the_usual_names() {
        let text = b"classes: {A: {context: net, properties: {net: uri, ip: string}}}";
        let schema = Schema::read(text, Format::Yaml).unwrap();
        let object = ManagedObject::new("A", "/x/".parse().unwrap());
        let object = object.with("net", "/n/").with("ip", "10.0.0.1");
        let idents = Ident::of(&object, schema.naming("A"));
        assert_eq!(
            idents.iter().map(Ident::to_string).collect::<Vec<_>>(),
            ["\"10.0.0.1\" in /n/"]
        );
    }

    #[test]
    fn errors_of_a_model_file_name_the_fault() {
        for (text, part) in [
            ("classes: {A: {properties: {p: strnig}}}", "strnig"),
            ("classes: {A: {properties: {p: '[[string]]'}}}", "[[string]]"),
            ("classes: {A: {properties: {p: {enum: 7}}}}", "enum"),
            ("classes: {A: {propertise: {}}}", "propertise"),
            (
                "classes: {A: {context: contxet, properties: {context: uri}}}",
                "contxet",
            ),
            (
                "classes: {A: {names: [nmae], properties: {name: string}}}",
                "nmae",
            ),
            ("open: true", "classes"),
        ] {
            let error = Schema::read(text.as_bytes(), Format::Yaml)
                .unwrap_err()
                .to_string();
            assert!(error.contains(part), "{error}");
        }
    }
}
