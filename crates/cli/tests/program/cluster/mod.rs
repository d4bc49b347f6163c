//! A whole cluster in separate processes, as a user meets it: `ssntp
//! scheduler`, `ssntp agent`, `ssntp ctl`.
//!
//! | file | rules |
//! |---|---|
//! | `verbs` | each command of `ssntp ctl` does what it says |
//! | `failures` | each failure is told in words |
//! | `ends` | how workloads ended: start, instances, describe, wait, prune; names and labels |
//! | `lists` | nodes, instances, events: tables, JSON, --watch |
//! | `logs` | what instances write |
//! | `operators` | sessions, kick, bans, unban |
//! | `leader` | several schedulers that share an etcd: each fault leaves one that serves |
//! | `pages` | `ssntp controller`: its pages and its API |
//! | `program` | flags, environment, file, exit codes, signals |
//! | `crashes` | kill -9 of an agent, and of the scheduler |
//! | `kept` | a controller that remembers: kill -9 of everything, roll-outs |
//! | `demo` | `ssntp demo` |
//! | `processes` | the cluster, and its end whatever happens |
//! | `schedulers` | the same with several schedulers |

mod crashes;
mod demo;
mod ends;
mod failures;
mod kept;
mod leader;
mod lists;
mod logs;
mod operators;
mod pages;
mod processes;
mod program;
mod schedulers;
mod verbs;
