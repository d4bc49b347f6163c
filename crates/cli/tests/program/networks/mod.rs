//! Tenants' networks carry packets: real agents, a scheduler, concentrators and `ssntp ctl`,
//! each in a network namespace, joined by a bridge. Without root, or without the tools, the
//! tests say so and check nothing.
//!
//! | file | holds |
//! |---|---|
//! | `isolation` | who reaches whom, and who must not |
//! | `attack` | what root in an instance's namespace tries against others |
//! | `endings` | what goes on when a part is killed, and what is left in the kernel |
//! | `machines` | a virtual machine in the network of its tenant |
//! | `refusals` | a START whose network cannot be made says why |
//! | `repairs` | what somebody breaks in the kernel, and certificates that change |
//! | `measured` | measurements for a person: throughput, and many instances of many tenants |
//! | `rig` | the cluster, and its end whatever happens |

mod attack;
mod endings;
mod isolation;
mod machines;
mod measured;
mod refusals;
mod repairs;
mod rig;
