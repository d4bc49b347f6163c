//! The state machine of an agent, for programs that do its jobs and bring their own time. Hidden, because
//! it may change in each version: the simulations of this repository use it.

pub use crate::control::{Action, Control, Done, Input, Job, Settings, StreamOrder};
