//! The entities of a cluster: what the protocol exists for.
//!
//! | file | holds |
//! |---|---|
//! | [`controller`] | a live view of the cluster, commands whose end is watched for |
//! | [`machine`] | the facts of this machine, as READY and STATS tell them |

pub mod controller;
pub mod machine;
