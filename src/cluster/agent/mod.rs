//! The agent of a compute or network node.

pub mod driver;
mod store;
