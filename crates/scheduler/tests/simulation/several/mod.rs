//! Several servers in one world, from one seed and in virtual time.
//!
//! ```text
//!  Client ◀─▶ Stream ◀─▶ Server 0 ◀══ Stream: a link ══▶ Server 1 ◀─▶ Stream ◀─▶ Client
//!                        Runner<ServerCore>, Entry, Redial, Machine ── requests, delayed or
//!                                                              └──────▶ lost ─▶ MemoryEngine
//! ```
//!
//! The serving code is real: cores with their links, runners, entries, readers, writers,
//! the machines that dial, those that ask the engine, and whole clients with the decisions of their
//! supervisor, their uplink with its gap, and their requests. The clock of each server runs at a
//! speed of its own. Streams delay bytes. There is no TLS.
//!
//! The seed draws the faults: a link is cut, or stalls without notice; two servers cannot
//! reach each other; a server is paused, or crashes and starts again, or asks its clients to
//! leave; a client is renewed, or its host crashes and restarts while the old session still
//! exists; the time of day jumps; the engine is away, or goes back to a snapshot, or refuses
//! to be read or written. Once all faults are over and all time limits have passed, the world is *quiet*.
//!
//! | invariant | meaning |
//! |---|---|
//! | one leader | one process acts under a token, and two never act at once, unless the engine has gone back |
//! | tokens | the tokens in the frames that an application or client takes never decrease |
//! | order, twice | for each origin and receiver, frames arrive once, in the order sent |
//! | told once | the application has one callback for the begin and one for the end of each remote session, in order |
//! | one session | once quiet, each client has one session, and its UUID has no other |
//! | directories | once quiet, each server's rows of another one are that one's sessions, and all are linked |
//! | progress | once quiet, a client that reads gets its frames within a bound, also while others are stuck |
//! | requests | an answer is from the receiver of its question; no question waits after the end of its session; a session that is replaced in order waits for its answers; once quiet each question gets one |
//! | books | each frame that a client took waits, was sent, or is counted as lost |
//! | gap | while a session is replaced in order, its client takes frames |
//! | replaced | a session that is replaced in order loses no frame, continues with the same server after a renewal, and with another one if its server drains |
//! | renewed | every attempt shows the newest certificate, and once quiet every session does |
//! | told in turn | a client reports a session, its frames, and its end to its application, in this order |
//! | back-off | no client dials repeatedly without a pause |
//! | closed | a client that is closed has ended when the grace is over |
//! | lines | whenever no machine can move, the ledgers of each flow are right |
//! | zero | at the end, all counts are zero |
//!
//! | file | holds |
//! |---|---|
//! | `world` | the draws from the seed, and the loop |
//! | `faults` | the events at a drawn time |
//! | `server` | one server: its dispatcher, its dialling and its engine's machine |
//! | `client`, `session` | one client, which connects again and again; the threads of its session |
//! | `log` | the application of a server, and the faults that it detects |
//! | `checks` | the invariants once quiet |

mod checks;
mod client;
mod faults;
mod log;
mod server;
mod session;
mod world;

pub(super) use self::world::World;
