//! Agents with real processes, behind a real scheduler, as a controller sees
//! them: over memory and TLS.
//!
//! | file | rules |
//! |---|---|
//! | `policy` | what the node lets instances have |
//! | `processes` | from START to DELETE |
//! | `life` | restarts by policy, retention, slow disks, volumes that go with an instance |
//! | `survival` | agents that end and come back, and state that is damaged |
//! | `fleet` | simulated agents by the hundred |
//! | `cluster` | the cluster and its controller |

#![cfg(all(
    feature = "cli-agent",
    feature = "issue",
    any(feature = "aws-lc-rs", feature = "ring")
))]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::disallowed_methods,
    reason = "a test may fail, and has time limits"
)]
#![allow(
    missing_debug_implementations,
    unreachable_pub,
    reason = "nothing here is public"
)]

mod cluster;
#[cfg(feature = "fleet")]
mod fleet;
mod life;
mod policy;
mod processes;
#[path = "../support/mod.rs"]
mod support;
mod survival;
