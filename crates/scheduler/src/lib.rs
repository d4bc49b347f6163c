//! The scheduler: the server of a cluster. It receives the commands of controllers, places STARTs
//! on nodes, and forwards the reports of agents and concentrators.
//!
//! ```text
//!            the server's dispatcher thread
//!  frame ─▶ filter ─▶ Scheduler
//!             │        │ START ─────▶ does it exist? ─▶ placement ─┬─▶ agent: STATS or a
//!             │        │                  │               ▲        │   failure answer it
//!             │        │              instances           │        └─▶ parked until a READY
//!             │        │                  ▲               │
//!             │        │ STATS, failures ─┴─ its own? ────│──────────▶ all controllers
//!             │        │ READY, FULL … ───────────────────┘
//!             │        │ STOP, TenantAdded … ──▶ the client that the payload names
//!             │        └ CONFIGURE ────────────▶ file, then all agents
//!             └▶ InvalidFrameType if the role may not send it
//! ```
//!
//! All state is plain fields on the dispatcher thread, and the time comes from the server. The
//! scheduler never waits for a peer. It decodes no payload of more than [`MAX_READ_LEN`] as a
//! whole: from longer STATS it extracts only the instances. Writing the configuration file would
//! block, so a separate thread does it.
//!
//! # Rules that the protocol does not define
//! * **Answers.** A failure of the scheduler goes to every controller, like the failures of
//!   agents. But `already_running` and `instance_exists` go only to the sender of the START,
//!   because a START of the same instance by another controller may be in progress. If a frame
//!   cannot be read and has no failure (EVACUATE, Restore, RefreshCNCI, READY, TenantAdded …), its
//!   sender gets InvalidFrameType with the reason `invalid_payload` or `invalid_data`. If the
//!   receiver of such a command is not connected, the reason is `not_connected`.
//! * **Owners of instances.** An agent's reports about nodes and instances that are not its
//!   own are dropped: see `instances` and `reports`. After a restart of the scheduler, an instance
//!   belongs to the first node that lists it, unless [`SchedulerConfig::state`] has its node.
//! * **Done.** A START is done when STATS of its node list the instance in any state but
//!   `pending`. `pending` is a sign of progress, which moves the deadline: see
//!   [`SchedulerConfig::start_time`].
//! * **One answer.** A failure of STOP, DELETE, RESTART, AttachVolume and DetachVolume is
//!   forwarded only if it answers such a command; see `commands`. A StartFailure that an agent
//!   repeats after a reconnection is forwarded only if it answers a START, or if its START is
//!   unknown and no other node can have got it.
//! * **Stale.** A node is stale if it has sent no STATS for three intervals. The scheduler
//!   sends its last STATS to all controllers with the status `STALE`.
//! * **Concentrators.** The snapshot of a new controller has the connected concentrators and the
//!   public addresses that they have assigned: after the nodes and before their STATS. A
//!   concentrator that connects receives the agents' reports about its tenants.
//! * **Master mode.** If a backup sends a command, it gets InvalidFrameType with the reason
//!   `role_not_allowed`, because no failure has a reason that fits. A controller that reconnects
//!   joins the end of the line.
//! * **A backup may read.** Streams of output and lists of sessions and bans are not commands. A
//!   backup can neither end a session nor lift a ban.
//! * **Identity of a node.** A node is identified by the UUID of its session. The UUID in READY is
//!   ignored, and STATS with another UUID are dropped.
//! * **Held.** A node that has just connected counts as waiting for its READY, with either
//!   policy: a START that fits only such nodes is held. For 3 s a node that has ended its session in
//!   order counts in the same way, because a node with a renewed certificate reconnects by then.
//! * **A failed START** uses no room of its node: the node's last READY applies again, unless the
//!   reason is `full_cn` or `node_maintenance`.
//! * **Too many STARTs.** If [`SchedulerConfig::in_flight`] STARTs are in flight, a further one is
//!   answered with `full_cloud`.
//! * **Disk.** A START needs disk for its volumes that are `local`.
//! * **An adopted CONFIGURE** returns to its sender as the confirmation.
//! * **The previous configuration.** If a client refuses the current configuration, byte for byte,
//!   the scheduler restores the previous one, but none before that. The controller that sent the
//!   refused one gets InvalidConfiguration. A CONFIGURE is also refused if it cannot be written to
//!   the file, or if a newer one arrives before it is written.
//!
//! # Rooms
//! [`Scheduler`] alone dispatches: a room never calls it. A room takes the way out (`out`) as an
//! argument, and what it needs of other rooms, and returns what the others have to know.
//!
//! | file | holds |
//! |---|---|
//! | `scheduler` | [`Scheduler`]: the server's callbacks, and what happens when a term begins and ends |
//! | `cluster` | what one leader knows of its cluster: passes each frame to the rooms below |
//! | `starts` | a START from its arrival to its answer, and the instance that it makes |
//! | [`placement`] | finds the node for a START |
//! | `nodes` | agents: their status, and their frames for the snapshot of a new controller |
//! | `reports` | the check that an agent may make a report |
//! | `commands` | commands that their node has not answered yet |
//! | `relay` | commands that name their receiver |
//! | `streams` | output of instances, forwarded to the controller that opened the stream |
//! | `cncis` | concentrators: their reports, and the reports about their tenants |
//! | `controllers` | the line of controllers, and the snapshots for new controllers |
//! | `configuration` | the configuration of the cluster |
//! | `enrolment` | the tokens and certificates of nodes that join: [`Enrolments`] |
//! | `tenants` | the tenants whose networks the cluster has: keys, addresses |
//! | `keeper` | the threads that write the configuration and the tenants |
//! | `term` | whether this scheduler leads, alone or by its lease; the leader; the sessions of all schedulers |
//! | `following` | several schedulers: one that does not lead passes frames on and parks commands |
//! | `shared` | several schedulers: the last view of the engine |
//! | `joined` | several schedulers: [`JoinedScheduler`], [`JoinError`] |
//! | `members` | several schedulers: the list of them |
//! | `peers` | [`Peers`] links a server with the members of its cluster |
//! | `pause` | a scheduler that was stopped for a while handles frames before time limits |
//! | `parking` | a bounded queue: STARTs that wait for a READY, commands that wait for a leader |
//! | `messages` | several schedulers: the messages between them |
//! | `out` | the way out of the rooms: frames and log lines |
//! | `config` | [`SchedulerConfig`], [`SchedulerError`] |
//! | `figures` | [`SchedulerFigures`]: the figures for metrics |

#![deny(missing_docs)]

mod cluster;
mod cncis;
mod commands;
mod config;
mod configuration;
mod controllers;
mod enrolment;
mod figures;
mod following;
mod joined;
mod keeper;
mod members;
mod messages;
mod nodes;
mod out;
mod parking;
mod pause;
mod peers;
pub mod placement;
mod relay;
mod reports;
mod scheduler;
mod shared;
mod starts;
mod streams;
mod tenants;
mod term;

pub use self::config::{ControllerMode, SchedulerConfig, SchedulerError};
pub use self::enrolment::Enrolments;
pub use self::figures::{EnrolmentFigures, SchedulerFigures, SchedulerLimits, StartFigures};
pub use self::joined::{JoinError, JoinedScheduler};
pub use self::members::add_members;
pub use self::peers::Peers;
pub use self::scheduler::Scheduler;
#[cfg(doc)]
use ssntp::payload::MAX_READ_LEN;
