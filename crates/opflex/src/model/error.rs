//! Objects that can't be taken, and files that can't be read.

use std::fmt;

use super::{Name, Uri};

/// An object that does not fit the tree or its model file. The object is at
/// fault, and with it who sent it; nothing of the edit was carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ModelError {
    /// The URI of a parent is not a prefix of the URI of its child.
    NotBelowParent {
        /// The child.
        uri: Uri,
        /// What is said to be its parent.
        parent: Uri,
    },
    /// The model file has no such class.
    UnknownClass {
        /// The object.
        uri: Uri,
        /// Its class.
        subject: Name,
    },
    /// The class has no such property.
    UnknownProperty {
        /// The object.
        uri: Uri,
        /// The property.
        property: Name,
    },
    /// The value of a property has another type.
    WrongType {
        /// The object.
        uri: Uri,
        /// The property.
        property: Name,
        /// The type that it has in the model file.
        expected: String,
    },
    /// The class can't be contained in the class of its parent.
    WrongParent {
        /// The object.
        uri: Uri,
        /// Its class.
        subject: Name,
        /// The class of its parent.
        parent: Name,
    },
}

impl fmt::Display for ModelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotBelowParent { uri, parent } => write!(f, "{parent} can't be the parent of {uri}"),
            Self::UnknownClass { uri, subject } => write!(f, "{uri} has the unknown class {subject:?}"),
            Self::UnknownProperty { uri, property } => {
                write!(f, "{uri} has the unknown property {property:?}")
            }
            Self::WrongType {
                uri,
                property,
                expected,
            } => {
                write!(f, "property {property:?} of {uri} is not {expected}")
            }
            Self::WrongParent { uri, subject, parent } => {
                write!(f, "{uri}, a {subject}, can't be contained in a {parent}")
            }
        }
    }
}

impl std::error::Error for ModelError {}

/// A file of objects or a model file that can't be read or written. Who wrote
/// the file is at fault.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FileError {
    /// Not JSON, or JSON of another form. Tells the line and the column.
    Json(String),
    /// Not YAML, or YAML of another form. Tells the line and the column.
    Yaml(String),
    /// A model file that contradicts itself.
    Model(String),
}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Json(what) => write!(f, "JSON: {what}"),
            Self::Yaml(what) => write!(f, "YAML: {what}"),
            Self::Model(what) => write!(f, "model file: {what}"),
        }
    }
}

impl std::error::Error for FileError {}
