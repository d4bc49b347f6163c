//! The OpFlex control protocol.

mod deadlines;
mod json;
pub mod message;
pub mod model;
pub mod peer;
pub mod policy_element;
pub mod rpc;
pub mod server;
