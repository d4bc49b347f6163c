//! The macros that define schemas, and their functions. They are public for the schemas of the
//! cloud, in `ssntp-payload`, and have no stable interface.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{Error, yaml};

/// Reads the only document of a payload, of at most `limit` bytes, or the value of its key `root`.
pub fn read<'a, T: DeserializeOwned>(
    payload: &'a [u8],
    root: Option<&str>,
    limit: usize,
) -> Result<(T, yaml::Node<'a>), Error> {
    // The tree is returned as well: it has the position of a missing field, and can be read once
    // more for an older form.
    let tree = yaml::Node::parse(payload, 1, limit)?;
    Ok((tree.decode(root)?, tree))
}

pub fn write<T: Serialize>(value: &T, root: Option<&'static str>) -> Bytes {
    let written = match root {
        Some(root) => yaml::encode(&BTreeMap::from([(root, value)])),
        None => yaml::encode(value),
    };
    // Schemas only have texts, numbers, lists, and maps with texts as keys, which can always be
    // written.
    debug_assert!(written.is_ok(), "{written:?}");
    written.unwrap_or_default()
}

/// The error for a value at `path` below `root` that breaks a rule of its schema.
pub fn refusal(root: Option<&str>, path: &[&str], kind: yaml::ErrorKind) -> yaml::Error {
    root.iter()
        .chain(path)
        .rev()
        .fold(yaml::Error::new(kind), |error, key| {
            error.under(yaml::Segment::key(key))
        })
}

/// Implements [`Payload`] for a schema that serde reads and writes. The arguments: its frame, the key
/// around the document, the limit if it is not [`MAX_READ_LEN`], the fields that must not be empty,
/// and a function that completes it from an older form.
#[doc(hidden)]
#[macro_export]
macro_rules! payload {
    ($name:ident = $operand:ident::$constant:ident $(, under $root:literal)? $(, up to $limit:path)? $(, requires $($field:ident),+)? $(; completed by $complete:expr)?) => {
        impl $crate::payload::Payload for $name {
            const KIND: $crate::proto::FrameKind = $crate::proto::$operand::$constant.kind();

            fn decode(payload: &[u8]) -> Result<Self, $crate::payload::Error> {
                let root = None$(.or(Some($root)))?;
                let limit = None$(.or(Some($limit)))?.unwrap_or($crate::payload::MAX_READ_LEN);
                #[allow(unused, reason = "used if a field is required, or an older form is read")]
                let (mut value, tree): (Self, _) = $crate::payload::schema::read(payload, root, limit)?;
                $(($complete)(&mut value, tree.decode(root)?);)?
                $($(
                    // serde accepts an empty text, and a missing field has its default, which is
                    // empty as well.
                    if value.$field.is_empty() {
                        let missing = $crate::payload::yaml::ErrorKind::Missing;
                        let error = $crate::payload::schema::refusal(root, &[stringify!($field)], missing);
                        return Err(tree.locate(error).into());
                    }
                )+)?
                Ok(value)
            }

            fn encode(&self) -> $crate::Bytes {
                $crate::payload::schema::write(self, None$(.or(Some($root)))?)
            }
        }
    };
}

/// Defines schemas: types whose fields may be missing, and then have the default of their type, or
/// another one: `field: Type = default`. A frame after the name, with the other arguments of `payload!`,
/// makes the schema the payload of that frame.
#[doc(hidden)]
#[macro_export]
macro_rules! schema {
    (@default) => {
        Default::default()
    };
    (@default $default:expr) => {
        $default
    };
    ($(
        $(#[$doc:meta])*
        $name:ident $(= $operand:ident::$constant:ident $(, under $root:literal)? $(, up to $limit:path)? $(, requires $($required:ident),+)?)? {
            $( $(#[$attribute:meta])* $field:ident: $type:ty $(= $default:expr)?, )+
        }
    )+) => {$(
        #[derive(Clone, Debug, PartialEq, Eq, ::serde::Serialize, ::serde::Deserialize)]
        #[serde(default)]
        $(#[$doc])*
        pub struct $name {
            $( $(#[$attribute])* pub $field: $type, )+
        }

        impl Default for $name {
            fn default() -> Self {
                Self {
                    $( $field: $crate::schema!(@default $($default)?), )+
                }
            }
        }

        $(
            $crate::payload!($name = $operand::$constant $(, under $root)? $(, up to $limit)? $(, requires $($required),+)?);
        )?
    )+};
}
