//! Tenants' networks carry packets: real agents, a scheduler, concentrators and `ssntp ctl`,
//! each in a network namespace, joined by a bridge. Without root, or without the tools, the
//! tests say so and check nothing.
//!
//! | file | holds |
//! |---|---|
//! | `isolation` | who reaches whom, and who must not |
//! | `endings` | what goes on when a part is killed, and what is left in the kernel |
//! | `machines` | a virtual machine in the network of its tenant |
//! | `rig` | the cluster, and its end whatever happens |

mod endings;
mod isolation;
mod machines;
mod rig;
