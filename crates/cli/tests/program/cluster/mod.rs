//! A whole cluster in separate processes: `ssntp scheduler`, `ssntp agent`, `ssntp ctl`.
//!
//! | file | rules |
//! |---|---|
//! | `verbs` | the effect and output of each command of `ssntp ctl` |
//! | `failures` | the text of each failure |
//! | `ends` | the ends of workloads: start, instances, describe, wait, prune; names and labels |
//! | `lists` | nodes, instances, events: tables, JSON, --watch |
//! | `logs` | the output of instances |
//! | `operators` | sessions, kick, bans, unban |
//! | `leader` | several schedulers that share an etcd: after each fault one of them leads |
//! | `pages` | `ssntp controller`: its pages and its API |
//! | `program` | flags, environment, file, exit codes, signals |
//! | `crashes` | kill -9 of an agent, and of the scheduler |
//! | `joining` | `ssntp cluster init`, tokens, nodes that join, certificates that are revoked |
//! | `kept` | a controller daemon that stores workloads: kill -9 of each process, roll-outs |
//! | `demo` | `ssntp demo` |
//! | `processes` | the processes of a cluster, which always end with the test |
//! | `schedulers` | the same with several schedulers |

mod crashes;
mod demo;
mod ends;
mod failures;
mod joining;
mod kept;
mod leader;
mod lists;
mod logs;
mod operators;
mod pages;
pub(crate) mod processes;
mod program;
mod schedulers;
mod verbs;
