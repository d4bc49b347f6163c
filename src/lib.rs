//! Simple and Secure Node Transfer Protocol: framed control-plane messaging
//! over mutual TLS, with roles proved by certificates, synchronous and
//! without an async runtime.

#![forbid(unsafe_code)]
#![deny(missing_docs)]

pub mod cluster;
#[cfg(feature = "opflex")]
pub mod opflex;
pub mod payload;
pub mod pki;
mod role;
mod ssntp;
pub mod transport;

pub use role::{ParseRoleError, Role};
pub use ssntp::client::{self, Client, ClientConfig, ClientHandle};
pub use ssntp::{proto, server};
