//! Agents with real processes, behind a real scheduler, as a controller sees
//! them: over memory and TLS.
//!
//! | file | rules |
//! |---|---|
//! | `policy` | what the node lets instances have |
//! | `processes` | from START to DELETE |
//! | `life` | restarts by policy, retention, slow disks, volumes that go with an instance |
//! | `survival` | agents that end and come back, and state that is damaged |
//! | `cluster` | the cluster and its controller |

mod cluster;
mod life;
mod policy;
mod processes;
mod survival;
