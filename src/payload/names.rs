//! Texts with known values.

/// Defines an enum for a text of a schema: a variant for each known value, with older spellings that
/// are read as well, and `Other`, which keeps every other text. Without a `default`, the default is
/// the empty text.
#[doc(hidden)]
#[macro_export]
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
        /// Convert any text with `From`: `Other` with the text of a known value is not equal to the
        /// variant.
        #[derive(Clone, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum $name {
            $( $(#[$vdoc])* $variant, )*
            /// Any other text, unchanged.
            Other(String),
        }

        impl $name {
            /// All known values, in the order of their declaration.
            pub const ALL: &[Self] = &[$( Self::$variant ),*];

            /// The text in a payload.
            pub fn as_str(&self) -> &str {
                match self {
                    $( Self::$variant => $text, )*
                    Self::Other(text) => text,
                }
            }

            /// True if the protocol defines the value.
            pub fn is_known(&self) -> bool {
                !matches!(self, Self::Other(_))
            }
        }

        impl Default for $name {
            fn default() -> Self {
                $crate::names!(@default $($default)?)
            }
        }

        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                // Older spellings are read and never written: `as_str` has one form only.
                match text {
                    $( $text $(| $older)* => Self::$variant, )*
                    other => Self::Other(other.to_owned()),
                }
            }
        }

        impl From<String> for $name {
            fn from(text: String) -> Self {
                Self::from(&*text)
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
                // No text is refused: a later version may have more values, and a scheduler has to
                // forward them between two peers of that version.
                String::deserialize(deserializer).map(Self::from)
            }
        }
    };
}
