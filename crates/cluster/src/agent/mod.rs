//! The agent of a compute or network node: runs instances, and tells of the
//! node and of them.
//!
//! ```text
//!  scheduler ◀─▶ client ◀─▶ ssntp-agent ── jobs ──▶ ssntp-work, …  ──▶ driver ──▶ instances
//!                           (Control)  ◀─ outcomes ─┘     │                          │
//!                                │                        ▼                          │
//!                                │                   state directory                 │
//!                                └◀───────────────────────────── ssntp-watch ◀───────┘ they ended
//! ```
//!
//! All that is known stands in one state machine on one thread; nothing there
//! waits. Instances outlive the agent: what is needed to find them is on disk
//! before they run.
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
//! * **START** of what isn't here: `launch_failure` when the program, its
//!   directory or a driver is missing; a program that ran, however short, was
//!   started, and its instance is `exited`. A persistent one stays until it is
//!   deleted, any other as long as the policy's retention says.
//! * **An end that nobody asked for** is the beginning of another run where the
//!   START's `restart_policy` says so.
//! * **A START that an agent did not come to an end with** is answered by the
//!   next agent, with `launch_failure`. Which STARTs failed in the last minute
//!   is said again in a new session, as the one before may have lost it.
//! * **STOP** asks, and kills after a grace period. A persistent instance is
//!   then `exited` in STATS; one that isn't is removed, and InstanceDeleted
//!   says so. A second STOP meanwhile changes nothing.
//! * **DELETE** also ends what runs, and what is still being launched. An
//!   instance is gone once its directory is out of the way; files that can't be
//!   removed are tried again by the next agent. Where not even that works, the
//!   answer is `invalid_data`: of the three reasons there are for it, the one
//!   that doesn't claim the instance wasn't here.
//! * **EVACUATE** stops every instance; each is told of by InstanceStopped.
//!   Persistent ones stay here and may be restarted after Restore; the others
//!   are removed. From its arrival on STARTs are refused, and STATS say
//!   MAINTENANCE; that is sent when the last instance has ended, but for those
//!   that do not even end when they are killed. It survives a restart of the
//!   agent. What comes next (`next_state`) is for whoever looks after the
//!   machine: [`Agent::evacuated`] tells it once, and `ssntp agent
//!   --after-evacuation` runs a program. The node stays in maintenance until
//!   Restore in any case, also after it was booted.
//! * **OFFLINE**: START, RESTART, AttachVolume and DetachVolume are answered
//!   with `launch_failure`, `attach_failure` and `detach_failure`; STOP and
//!   DELETE with `no_instance`. EVACUATE and Restore change nothing. The
//!   configuration is still taken.
//! * **READY**, or FULL, follows every START, whatever became of it: a strict
//!   scheduler waits for it.
//! * **Logs** are kept within their limit (16 MB each by default) as they are
//!   written, also while no agent runs.
//! * **Logs are read** by one thread for all streams (docs/streams.md), also while the
//!   node is OFFLINE or in maintenance, and as long as the instance is kept.
//! * **A lost record** is made anew from the START and from what runs; with a
//!   lost START an instance is `missing` unless it still runs, can be stopped
//!   and deleted, and RESTART answers `instance_corrupt`.
//!
//! All reasons of all failures stand in the source of `control/commands.rs`.
//!
//! | file | holds |
//! |---|---|
//! | `runner` | [`Agent`], [`AgentConfig`]: the thread |
//! | `control` | the state machine, without I/O |
//! | `worker` | the threads that do what takes a moment |
//! | `policy` | [`Policy`]: what this node lets instances have |
//! | `store` | the state directory |
//! | `tree` | directories that instances write to: removed and measured |
//! | `streams` | the thread that reads what instances have written |
//! | `figures` | [`AgentFigures`]: what it knows about itself |
//! | [`driver`] | what runs an instance |
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
