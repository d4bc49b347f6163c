//! The OpFlex control protocol.

mod deadlines;
pub mod rpc;
