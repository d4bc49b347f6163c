//! The command line of an agent: `ssntp agent`, and the small program `ssntp-agent`, which is an agent
//! alone.
//!
//! | file | holds |
//! |---|---|
//! | `agent` | the flags of an agent, and its run |
//! | `networks` | the flags of tenants' networks |

#![deny(missing_docs)]

mod agent;
mod networks;

pub use self::agent::{AgentPages, Args, run};
pub use self::networks::{NetworkArgs, TunnelArgs};
