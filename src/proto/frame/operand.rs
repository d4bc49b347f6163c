//! Macros for numbers with names: frame types, operands, and the reasons for the end of streams.

/// Defines a number newtype with named constants, their list, and printing. A value without a name
/// is kept, and prints as hex with the text of `after` before it.
macro_rules! named {
    (
        $(#[$doc:meta])*
        $name:ident after $prefix:expr => {
            $( $(#[$vdoc:meta])* $value:literal $constant:ident = $text:literal; )*
        }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(pub u8);

        impl $name {
            $( $(#[$vdoc])* pub const $constant: Self = Self($value); )*

            /// All values that have a name, in the order of the numbers.
            pub const ALL: &[Self] = &[$( Self::$constant ),*];

            /// The name in the protocol's tables. `None` if the value has no name.
            pub const fn name(self) -> Option<&'static str> {
                match self.0 {
                    $( $value => Some($text), )*
                    _ => None,
                }
            }
        }

        impl ::std::fmt::Display for $name {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                match self.name() {
                    Some(name) => f.write_str(name),
                    None => write!(f, concat!($prefix, "{:#04x}"), self.0),
                }
            }
        }

        impl ::std::fmt::Debug for $name {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                ::std::fmt::Display::fmt(self, f)
            }
        }
    };
}

/// Defines the operands of one frame type as `named!` numbers that convert into a
/// [`FrameKind`](super::FrameKind).
macro_rules! operand {
    ($(#[$doc:meta])* $name:ident of $frame_type:ident $values:tt) => {
        $crate::proto::frame::operand::named! {
            $(#[$doc])*
            $name after concat!(stringify!($frame_type), "/") => $values
        }

        impl $name {
            /// The kind of the frames with this operand.
            pub const fn kind(self) -> super::FrameKind {
                super::FrameKind::new(super::FrameType::$frame_type, self.0)
            }
        }

        impl From<$name> for super::FrameKind {
            fn from(operand: $name) -> Self {
                operand.kind()
            }
        }

        impl PartialEq<$name> for super::FrameKind {
            fn eq(&self, operand: &$name) -> bool {
                *self == operand.kind()
            }
        }
    };
}

pub(super) use {named, operand};
