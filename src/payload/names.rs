//! Texts with known values.

/// Defines an enum over a text of a schema: a variant for each known value,
/// further spellings of it that are read, and `Other` for every other text,
/// which survives. Without a `default` the empty text is the default.
macro_rules! names {
    (@default) => {
        Self::Other(String::new())
    };
    (@default $default:ident) => {
        Self::$default
    };
    (
        $(#[$doc:meta])*
        $name:ident {
            $( $(#[$vdoc:meta])* $variant:ident = $text:literal $(| $older:literal)*; )*
        }
        $(default $default:ident)?
    ) => {
        $(#[$doc])*
        ///
        /// `From` makes it of any text; prefer that to `Other` with a text
        /// that is known, which isn't equal to its variant.
        #[derive(Clone, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum $name {
            $( $(#[$vdoc])* $variant, )*
            /// Any other text, kept as it came.
            Other(String),
        }

        impl $name {
            /// Every known value, in the order of the declaration.
            pub const ALL: &[Self] = &[$( Self::$variant ),*];

            /// The text that stands in a payload.
            pub fn as_str(&self) -> &str {
                match self {
                    $( Self::$variant => $text, )*
                    Self::Other(text) => text,
                }
            }

            /// Whether the protocol knows the value.
            pub fn is_known(&self) -> bool {
                !matches!(self, Self::Other(_))
            }

            // Older spellings are read and never written: `as_str` has the one form.
            fn known(text: &str) -> Option<Self> {
                match text {
                    $( $text $(| $older)* => Some(Self::$variant), )*
                    _ => None,
                }
            }
        }

        impl Default for $name {
            fn default() -> Self {
                $crate::payload::names::names!(@default $($default)?)
            }
        }

        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                Self::known(text).unwrap_or_else(|| Self::Other(text.to_owned()))
            }
        }

        impl From<String> for $name {
            fn from(text: String) -> Self {
                Self::known(&text).unwrap_or(Self::Other(text))
            }
        }

        impl ::std::fmt::Display for $name {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.pad(self.as_str())
            }
        }

        impl ::serde::Serialize for $name {
            fn serialize<S: ::serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.as_str())
            }
        }

        impl<'de> ::serde::Deserialize<'de> for $name {
            fn deserialize<D: ::serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                // No text is refused. A peer of a later version may have more values, and a
                // scheduler between two such peers has to pass them on.
                String::deserialize(deserializer).map(Self::from)
            }
        }
    };
}

pub(super) use names;
