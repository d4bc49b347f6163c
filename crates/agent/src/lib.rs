//! The agent of a compute or network node: it runs instances, and reports the node and
//! its instances to the scheduler.
//!
//! ```text
//!  scheduler ◀─▶ client ◀─▶ ssntp-agent ── jobs ──▶ ssntp-work, …  ──▶ driver ──▶ instances
//!                           (Control)  ◀─ outcomes ─┘     │                          │
//!                                │                        ▼                          │
//!                                │                   state directory                 │
//!                                └◀───────────────────────────── ssntp-watch ◀───────┘ ends
//! ```
//!
//! One state machine on one thread owns all state, and never waits. Instances outlive the agent:
//! before an instance runs, its record is on disk, so that the next agent finds the instance.
//!
//! ```no_run
//! use std::error::Error;
//! use std::process::ExitCode;
//!
//! use ssntp::client::{ClientConfig, UuidSource};
//! use ssntp_agent::{Agent, AgentConfig};
//! use ssntp_agent::driver::{Confinement, ProcessDriver, supervise};
//! use ssntp::pki::{Identity, Trust};
//!
//! fn main() -> Result<ExitCode, Box<dyn Error>> {
//!     // The supervisor of each instance is this program, started again.
//!     if let Some(code) = supervise() {
//!         return Ok(code);
//!     }
//!     let client = ClientConfig::new(Identity::load("agent.pem")?, Trust::load("ca.pem")?)
//!         .address("scheduler.example".parse()?)
//!         .uuid(UuidSource::Persistent("/var/lib/ssntp".into()));
//!     let config = AgentConfig::new(client)
//!         .state("/var/lib/ssntp")
//!         .driver(ProcessDriver::new(Confinement::Auto)?);
//!     let agent = Agent::start(config)?;
//!     let why = agent.ended().recv()?;
//!     println!("{why}");
//!     Ok(ExitCode::SUCCESS)
//! }
//! ```
//!
//! # What the protocol leaves open
//! * **START** is answered with `launch_failure` if the program, its directory or a driver is
//!   missing. A program that ran, for however short a time, was started, and its instance is
//!   `exited`. A persistent instance is kept until it is deleted, any other instance for the
//!   retention of the node's policy.
//! * **An instance that ends without a command** is started again if the `restart_policy` of its
//!   START demands it.
//! * **If the agent ends during a START**, the next agent answers the START with `launch_failure`.
//!   The failures of the last minute are sent again in a new session, because they may have been
//!   lost with the session before.
//! * **STOP** asks an instance to end, and kills it after a grace period. A persistent instance is
//!   then `exited` in STATS. Any other instance is removed, and InstanceDeleted is sent. A second
//!   STOP during the grace period changes nothing.
//! * **DELETE** also ends an instance that runs or is being launched. An instance is gone once its
//!   directory was moved away; the next agent tries again to remove files that could not be removed.
//!   If the directory can't be moved, the answer is `invalid_data`, the only one of the three
//!   reasons that does not claim that the instance is gone.
//! * **EVACUATE** stops every instance and sends an InstanceStopped for each. Persistent instances
//!   are kept and may be restarted after Restore; all others are removed. From the arrival of
//!   EVACUATE on, STARTs are refused and STATS have the status MAINTENANCE. The frame MAINTENANCE is
//!   sent when the last instance has ended, apart from hung ones. An evacuation survives a restart of
//!   the agent. The agent's owner receives the next state of the machine (`next_state`) once from
//!   [`Agent::evacuated`]; `ssntp agent --after-evacuation` runs a program for it. The node stays in
//!   maintenance until Restore, also after a reboot.
//! * **OFFLINE**: START, RESTART, AttachVolume and DetachVolume are answered with `launch_failure`,
//!   `attach_failure` and `detach_failure`; STOP and DELETE with `no_instance`. EVACUATE and Restore
//!   change nothing. The configuration is still accepted.
//! * **READY**, or FULL, follows every START, also one that failed, because a strict scheduler waits
//!   for it.
//! * **Logs** are kept within their limit (16 MB each by default) while they are written, also while
//!   no agent runs.
//! * **Streams** of all logs are read by one thread (docs/streams.md), also while the node is OFFLINE
//!   or in maintenance, and as long as the instance is kept.
//! * **A lost record** is replaced by a new one, from the START and the processes that run. If the
//!   START is lost, the instance is `missing` unless it still runs. It can be stopped and deleted;
//!   RESTART is answered with `instance_corrupt`.
//!
//! The source of `control/commands.rs` lists the reasons of all failures.
//!
//! | file | holds |
//! |---|---|
//! | `runner` | [`Agent`], [`AgentConfig`]: the thread |
//! | `control` | the state machine, without I/O |
//! | `worker` | the threads for jobs that can block |
//! | `place` | the directory and the user of an instance |
//! | `policy` | [`Policy`]: the limits of this node for all instances |
//! | `store` | the state directory |
//! | [`tool`] | programs of the system that are run to their end |
//! | `tree` | directories in which instances write |
//! | `streams` | the thread that reads the logs of instances |
//! | `figures` | [`AgentFigures`]: a snapshot for metrics |
//! | [`driver`] | runs instances |
//! | [`network`] | what a START asks for, and the traits of those who set networks up |
//! | `simulation` | the state machine, for the tests and tools of this repository |

#![deny(missing_docs)]

mod control;
pub mod driver;
mod figures;
pub mod network;
mod place;
mod policy;
mod runner;
#[doc(hidden)]
pub mod simulation;
mod store;
mod streams;
pub mod tool;
pub mod tree;
mod worker;

pub use self::figures::{AgentFigures, AgentLimits, CrewFigures};
pub use self::policy::{Policy, PolicyError, RunAs};
pub use self::runner::{Agent, AgentConfig, AgentError, DEFAULT_MAX_INSTANCES};
