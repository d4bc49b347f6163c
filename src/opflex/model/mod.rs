//! placeholder
mod ident;
mod managed_object;
mod name;
mod uri;

pub use self::ident::Ident;
pub use self::managed_object::{ManagedObject, Property, Reference};
pub use self::name::Name;
pub use self::uri::{Uri, UriBuilder, UriError};
