//! The faults for which objects and files are refused.

use super::name::Name;
use super::uri::Uri;

/// The reason for which an object does not fit the tree or its model file. The sender of the object
/// is at fault, and the edit has no effect.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// The URI of a parent is not a prefix of the URI of its child.
    #[error("{parent} can't be the parent of {uri}")]
    NotBelowParent {
        /// The child.
        uri: Uri,
        /// The URI that is given as its parent.
        parent: Uri,
    },
    /// The model file does not define the class.
    #[error("{uri} has the unknown class {subject:?}")]
    UnknownClass {
        /// The object.
        uri: Uri,
        /// Its class.
        subject: Name,
    },
    /// The model file does not define the property for the class.
    #[error("{uri} has the unknown property {property:?}")]
    UnknownProperty {
        /// The object.
        uri: Uri,
        /// The property.
        property: Name,
    },
    /// The value of a property has another type.
    #[error("property {property:?} of {uri} is not {expected}")]
    WrongType {
        /// The object.
        uri: Uri,
        /// The property.
        property: Name,
        /// The type that it has in the model file.
        expected: String,
    },
    /// The class can't be contained in the class of its parent.
    #[error("{uri}, a {subject}, can't be contained in a {parent}")]
    WrongParent {
        /// The object.
        uri: Uri,
        /// Its class.
        subject: Name,
        /// The class of its parent.
        parent: Name,
    },
}

/// The reason for which a file of objects or a model file can't be read or written. The author of
/// the file is at fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// Invalid JSON, or JSON of another form. The text has the line and the column.
    #[error("JSON: {0}")]
    Json(String),
    /// Invalid YAML, or YAML of another form. The text has the line and the column.
    #[error("YAML: {0}")]
    Yaml(String),
    /// A model file that contradicts itself.
    #[error("model file: {0}")]
    Model(String),
}
