//! Agents with real processes and a real scheduler, observed by a controller. The sessions use
//! TLS over streams in memory.
//!
//! | file | rules |
//! |---|---|
//! | `policy` | the rights and resources that a node gives to instances |
//! | `processes` | from START to DELETE |
//! | `life` | restarts by policy, retention, slow disks, volumes that are deleted with their instance |
//! | `survival` | agents that end and start again, and damaged state |
//! | `cluster` | the cluster and its controller |

mod cluster;
mod life;
mod policy;
mod processes;
mod survival;
