//! Identifiers: a name within a context, as an alternative to a URI; and the target of a resolve, which is one of
//! the two.

use std::fmt;

use serde_json::Value;

use super::managed_object::{ManagedObject, NAMING};
use super::name::Name;
use super::uri::Uri;

/// A name within a context. The name is the member `name` of `policy_ident`, and `identifier` of
/// `endpoint_ident`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ident {
    /// The object within which the name is unique: a tenant, an IP namespace.
    pub context: Uri,
    /// The name: of a policy, or an address of an endpoint.
    pub name: Name,
}

impl fmt::Display for Ident {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} in {}", &*self.name, self.context)
    }
}

/// The object of a resolve or of a watch. An unresolve has to use the
/// same form as the resolve.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Target {
    /// The object with this URI.
    Uri(Uri),
    /// The object, or objects, with this identifier.
    Ident(Ident),
}

impl Target {
    /// The length of the text, in bytes.
    pub(crate) fn text_len(&self) -> usize {
        match self {
            Self::Uri(uri) => uri.as_str().len(),
            Self::Ident(ident) => ident.context.as_str().len() + ident.name.len(),
        }
    }
}

impl From<Uri> for Target {
    fn from(uri: Uri) -> Self {
        Self::Uri(uri)
    }
}

impl From<Ident> for Target {
    fn from(ident: Ident) -> Self {
        Self::Ident(ident)
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Uri(uri) => write!(f, "{uri}"),
            Self::Ident(ident) => write!(f, "{ident}"),
        }
    }
}

/// The property that holds the context, unless the model file sets another one for the class.
const CONTEXT: &str = "context";

/// The maximum number of identifiers of one object. Objects of libopflex have up to three.
const MAX_IDENTS: usize = 16;

impl Ident {
    /// The identifiers of an object. `properties` are the property of the context and the properties
    /// of the names, if the model file sets them for the class.
    ///
    /// The draft does not define which identifiers an object has, and libopflex does not support
    /// them. Here the context is the property `context` (a URI or a reference). If the object has no
    /// such property, the context is its parent, and without a parent it is the context in its URI.
    /// The names are the values of `name`, `identifier`, `ip`, `mac` and `uuid`. A URI that ends in
    /// `class/name/` or `class/context/name/`, as the URIs of libopflex do, also gives an identifier.
    pub fn of(object: &ManagedObject, properties: Option<(&str, &[Name])>) -> Vec<Self> {
        let mut idents = Vec::new();
        let mut add = |context: &Uri, name: &str| {
            // Each name is compared with all others, so the number that a peer can send needs a
            // bound.
            if idents.len() == MAX_IDENTS {
                return;
            }
            let known = |ident: &Self| ident.name == *name && ident.context == *context;
            if !name.is_empty() && !idents.iter().any(known) {
                idents.push(Self {
                    context: context.clone(),
                    name: name.into(),
                });
            }
        };
        let from_uri = from_uri(object);
        let property = object.property(properties.map_or(CONTEXT, |(context, _)| context));
        let context = property.and_then(uri_in).or_else(|| object.parent_uri.clone());
        if let Some(context) = context.as_ref().or(from_uri.as_ref().map(|(context, _)| context)) {
            for property in &object.properties {
                let naming = match properties {
                    Some((_, naming)) => naming.contains(&property.name),
                    None => NAMING.contains(&property.name.as_str()),
                };
                match &property.data {
                    Value::String(name) if naming => add(context, name),
                    _ => {}
                }
            }
        }
        if let Some((context, name)) = &from_uri {
            add(context, name);
        }
        idents
    }
}

/// The context and the name in a URI. The context is the part before `class/name/`, or
/// the escaped URI between the class and the name.
fn from_uri(object: &ManagedObject) -> Option<(Uri, String)> {
    let mut elements = object.uri.elements().rev();
    let (name, second) = (elements.next()?, elements.next()?);
    let text = object.uri.as_str();
    // The context is cut from the text itself: building it from the elements would escape
    // differently from how the peer wrote it.
    let (before_name, _) = text.strip_suffix('/').unwrap_or(text).rsplit_once('/')?;
    let (before, class) = before_name.rsplit_once('/')?;
    let context = if class == &*object.subject {
        format!("{before}/")
    } else if elements.next()? == *object.subject && second.starts_with('/') {
        second.into_owned()
    } else {
        return None;
    };
    Some((context.parse().ok()?, name.into_owned()))
}

/// A URI that is a text or a reference.
fn uri_in(data: &Value) -> Option<Uri> {
    let text = data.as_str().or_else(|| data.get("reference_uri")?.as_str())?;
    text.parse().ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn idents(object: &ManagedObject) -> Vec<String> {
        Ident::of(object, None)
            .iter()
            .map(|ident| format!("{} {}", ident.context, ident.name))
            .collect()
    }

    fn object(subject: &str, uri: &str) -> ManagedObject {
        ManagedObject::new(subject, uri.parse().unwrap())
    }

    #[test]
    fn a_policy_is_named_within_its_parent() {
        let group = object("GbpEpGroup", "/PolicySpace/test/GbpEpGroup/group1/").with("name", "web");
        assert_eq!(
            idents(&group),
            ["/PolicySpace/test/ web", "/PolicySpace/test/ group1"]
        );
        let group = group.under("PolicySpace", "/PolicySpace/".parse().unwrap());
        assert_eq!(idents(&group), ["/PolicySpace/ web", "/PolicySpace/test/ group1"]);
    }

    #[test]
    fn an_endpoint_is_named_by_its_addresses_within_its_context() {
        let endpoint = object("EprL3Ep", "/EprL3Universe/EprL3Ep/%2frd%2f/10.0.0.1/");
        assert_eq!(idents(&endpoint), ["/rd/ 10.0.0.1"]);
        let endpoint = endpoint
            .with("ip", "10.0.0.1")
            .with("mac", "00:01")
            .with("group", "/g/")
            .with("context", "/rd/");
        assert_eq!(idents(&endpoint), ["/rd/ 10.0.0.1", "/rd/ 00:01"]);
        let endpoint =
            object("Ep", "/Ep/7/").with("context", json!({"subject": "Rd", "reference_uri": "/rd/"}));
        assert_eq!(idents(&endpoint.with("uuid", "x")), ["/rd/ x", "/ 7"]);
    }

    #[test]
    fn a_class_can_name_other_properties() {
        let endpoint = object("Ep", "/x/")
            .with("net", "/n/")
            .with("tag", "t")
            .with("name", "ignored")
            .with("port", 7);
        let naming = ["tag".into(), "port".into()];
        let idents = Ident::of(&endpoint, Some(("net", &naming)));
        assert_eq!(idents.len(), 1);
        assert_eq!(idents[0].to_string(), "\"t\" in /n/");
    }

    #[test]
    fn nothing_names_the_root_or_a_singleton() {
        assert_eq!(idents(&object("a", "/")), [""; 0]);
        assert_eq!(
            idents(&object("GbpeInstContext", "/bd/GbpeInstContext/")),
            [""; 0]
        );
        assert_eq!(idents(&object("a", "/a//")), [""; 0]);
    }
}
