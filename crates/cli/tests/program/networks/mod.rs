//! Tenants' networks carry packets: real agents, a scheduler, concentrators and `ssntp ctl`,
//! each in a network namespace, joined by a bridge. Without root, or without the tools, the
//! tests say so and check nothing.
//!
//! | file | holds |
//! |---|---|
//! | `isolation` | instances that reach each other, and instances that must not |
//! | `attack` | attacks by root in the namespace of an instance |
//! | `endings` | the effects of killed processes, and the objects left in the kernel |
//! | `machines` | a virtual machine in the network of its tenant |
//! | `packaged` | the rights of the packaged unit, with those that the page about networks adds |
//! | `refusals` | the reasons of a START whose network cannot be made |
//! | `repairs` | broken kernel objects that are made again, and certificates that change |
//! | `measured` | measurements for a person: throughput, and many instances of many tenants |
//! | `rig` | the cluster, which always ends with the test |

mod attack;
mod endings;
mod isolation;
mod machines;
mod measured;
mod packaged;
mod refusals;
mod repairs;
mod rig;
