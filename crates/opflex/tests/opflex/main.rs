//! OpFlex without sockets: messages, the model, and both roles as state
//! machines, alone, against each other and against recorded peers.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::disallowed_methods,
    reason = "a test that meets one has failed, and needs some instant to count from"
)]

mod bad_input;
mod messages;
mod model;
mod opflex_json;
mod pair;
mod replay;
