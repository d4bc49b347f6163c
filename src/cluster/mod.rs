//! The entities of a cluster: what the protocol exists for.
//!
//! | file | holds |
//! |---|---|
//! | [`machine`] | the facts of this machine, as READY and STATS tell them |

pub mod agent;
pub mod machine;
