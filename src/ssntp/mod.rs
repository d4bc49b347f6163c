//! SSNTP itself: the protocol core, the server and the client.

pub mod client;
pub mod proto;
mod request;
pub mod server;
mod wire;
