//! The agent of a compute or network node: it runs instances, and reports the node and
//! its instances to the scheduler.
//!
//! ```text
//!  scheduler ◀─▶ client ◀─▶ ssntp-agent ── jobs ──▶ ssntp-work, …  ──▶ driver ──▶ instances
//!                           (Control)  ◀─ outcomes ─┘     │                          │
//!                                │                        ▼                          │
//!                                │                   state directory                 │
//!                                └◀───────────────────────────── ssntp-watch ◀───────┘ they ended
//! ```
//!
//! One state machine on one thread owns all state, and it never waits. Instances outlive
//! the agent: the records that the next agent needs to find them are on disk before they
//! run.
//!
//! ```no_run
//! use std::error::Error;
//! use std::process::ExitCode;
//!
//! use ssntp::client::{ClientConfig, UuidSource};
//! use ssntp_cluster::agent::{Agent, AgentConfig};
//! use ssntp_cluster::agent::driver::{Confinement, ProcessDriver, supervise};
//! use ssntp::pki::{Identity, Trust};
//!
//! fn main() -> Result<ExitCode, Box<dyn Error>> {
//!     // Each instance has a supervisor, which is this program, started again.
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
//! * **START** is answered with `launch_failure` if the program, its directory or a driver
//!   is missing. A program that ran, for however short a time, was started, and its
//!   instance is `exited`. A persistent instance stays until it is deleted, any other for
//!   the retention of the node's policy.
//! * **An instance that ends without a command** is started again if its START's
//!   `restart_policy` says so.
//! * **A START that was under way when its agent ended** is answered by the next agent,
//!   with `launch_failure`. The failures of the last minute are sent again in a new
//!   session, because they may have been lost with the session before.
//! * **STOP** asks an instance to end, and kills it after a grace period. A persistent
//!   instance is then `exited` in STATS; any other is removed, and InstanceDeleted is
//!   sent. A second STOP meanwhile changes nothing.
//! * **DELETE** also ends an instance that runs or is being launched. An instance is gone
//!   once its directory has been moved away; the next agent tries again to remove files
//!   that could not be removed. If the directory can't be moved, the answer is
//!   `invalid_data`, the only one of the three reasons that does not claim that the
//!   instance is not here.
//! * **EVACUATE** stops every instance and sends an InstanceStopped for each.
//!   Persistent ones stay here and may be restarted after Restore; the others
//!   are removed. From its arrival on STARTs are refused, and STATS say
//!   MAINTENANCE; that is sent when the last instance has ended, but for those
//!   that do not even end when they are killed. It survives a restart of the
//!   agent. The program that looks after the machine learns what comes next
//!   (`next_state`) once from [`Agent::evacuated`]; `ssntp agent --after-evacuation` runs
//!   a program for it. The node stays in maintenance until
//!   Restore in any case, also after it was booted.
//! * **OFFLINE**: START, RESTART, AttachVolume and DetachVolume are answered
//!   with `launch_failure`, `attach_failure` and `detach_failure`; STOP and
//!   DELETE with `no_instance`. EVACUATE and Restore change nothing. The
//!   configuration is still taken.
//! * **READY**, or FULL, follows every START, also one that failed, because a strict
//!   scheduler waits for it.
//! * **Logs** are kept within their limit (16 MB each by default) as they are
//!   written, also while no agent runs.
//! * **Logs are read** by one thread for all streams (docs/streams.md), also while the
//!   node is OFFLINE or in maintenance, and as long as the instance is kept.
//! * **A lost record** is made anew from the START and the processes that run. If the START
//!   is lost, the instance is `missing` unless it still runs; it can be stopped and
//!   deleted, and RESTART is answered with `instance_corrupt`.
//!
//! The source of `control/commands.rs` lists the reasons of all failures.
//!
//! | file | holds |
//! |---|---|
//! | `runner` | [`Agent`], [`AgentConfig`]: the thread |
//! | `control` | the state machine, without I/O |
//! | `worker` | the threads that do jobs which can block |
//! | `policy` | [`Policy`]: the limits of this node for all instances |
//! | `store` | the state directory |
//! | `tree` | directories that instances write to: removed and measured |
//! | `streams` | the thread that reads the logs of instances |
//! | `figures` | [`AgentFigures`]: what it knows about itself |
//! | [`driver`] | runs instances |
//! | `stepped` | [`SteppedAgent`]: an agent without threads, for programs that hold thousands |

mod control;
pub mod driver;
mod figures;
mod policy;
mod runner;
mod stepped;
mod store;
mod streams;
mod tree;
mod worker;

pub use self::figures::{AgentFigures, AgentLimits, CrewFigures};
pub use self::policy::{Policy, PolicyError, RunAs};
pub use self::runner::{Agent, AgentConfig, AgentError, DEFAULT_MAX_INSTANCES};
pub use self::stepped::{Step, SteppedAgent, SteppedConfig};
