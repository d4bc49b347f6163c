//! What the four operand types share: a number with names.

/// Defines a number newtype over the operand byte of one frame type: named
/// constants, the list of them, printing (unknown ones as hex) and the
/// conversion into a [`FrameKind`](super::FrameKind).
macro_rules! operand {
    (
        $(#[$doc:meta])*
        $name:ident of $frame_type:ident {
            $( $(#[$vdoc:meta])* $value:literal $constant:ident = $text:literal; )*
        }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(pub u8);

        impl $name {
            $( $(#[$vdoc])* pub const $constant: Self = Self($value); )*

            /// Every operand that has a name, in the order of their numbers.
            pub const ALL: &[Self] = &[$( Self::$constant ),*];

            /// The name as the protocol's tables print it, where there is one.
            pub const fn name(self) -> Option<&'static str> {
                match self.0 {
                    $( $value => Some($text), )*
                    _ => None,
                }
            }
        }

        impl ::std::fmt::Display for $name {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                ::std::fmt::Display::fmt(&super::FrameKind::from(*self), f)
            }
        }

        impl ::std::fmt::Debug for $name {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                ::std::fmt::Display::fmt(self, f)
            }
        }

        impl From<$name> for super::FrameKind {
            fn from(operand: $name) -> Self {
                super::FrameKind::new(super::FrameType::$frame_type, operand.0)
            }
        }

        impl PartialEq<$name> for super::FrameKind {
            fn eq(&self, operand: &$name) -> bool {
                *self == super::FrameKind::from(*operand)
            }
        }
    };
}

pub(super) use operand;
