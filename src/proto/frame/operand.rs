//! Macros for numbers with names: frame types, operands, and the reasons for the end of streams; and the
//! roles in the tables of operands.

use ssntp_pki::Role;

pub(super) const NOBODY: Role = Role::NONE;
pub(super) const AGENT: Role = Role::AGENT;
pub(super) const NETAGENT: Role = Role::NETAGENT;
/// Both kinds of nodes.
pub(super) const NODES: Role = Role::from_bits(AGENT.bits() | NETAGENT.bits());
pub(super) const CONCENTRATORS: Role = Role::CNCIAGENT;
pub(super) const CONTROLLER: Role = Role::CONTROLLER;
pub(super) const ANY: Role = Role::ALL;

/// Defines a number newtype with named constants, their list, and printing. A value without a name
/// is kept, and prints as hex with the text of `after` before it.
#[doc(hidden)]
#[macro_export]
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
/// [`FrameKind`](super::FrameKind). Behind the name of an operand are the roles that may send it in a
/// cluster, and behind `=>` those to which a server that reads no payloads forwards it. Without the
/// first nobody may send it, and without the second it is not forwarded.
macro_rules! operand {
    (@role) => {
        ::ssntp_pki::Role::NONE
    };
    (@role $role:expr) => {
        $role
    };
    (
        $(#[$doc:meta])*
        $name:ident of $frame_type:ident {
            $(
                $(#[$vdoc:meta])*
                $value:literal $constant:ident = $text:literal $(, $from:expr $(=> $to:expr)?)?;
            )*
        }
    ) => {
        $crate::named! {
            $(#[$doc])*
            $name after concat!(stringify!($frame_type), "/") => {
                $( $(#[$vdoc])* $value $constant = $text; )*
            }
        }

        impl $name {
            /// The kind of the frames with this operand.
            pub const fn kind(self) -> super::FrameKind {
                super::FrameKind::new(super::FrameType::$frame_type, self.0)
            }

            /// The roles that may send it in a cluster, and those to which it is forwarded.
            pub(super) fn roles(self) -> (::ssntp_pki::Role, ::ssntp_pki::Role) {
                use $crate::proto::frame::operand::operand;
                match self.0 {
                    $( $value => (operand!(@role $($from)?), operand!(@role $($($to)?)?)), )*
                    _ => (operand!(@role), operand!(@role)),
                }
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

pub(super) use operand;
