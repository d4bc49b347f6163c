//! Several servers in one world, from one seed and in virtual time.
//!
//! ```text
//!  Client ◀─▶ Stream ◀─▶ Server 0 ◀══ Stream: a link ══▶ Server 1 ◀─▶ Stream ◀─▶ Client
//!                        Runner<ServerCore>, Entry, Redial, Machine ── requests, delayed or
//!                                                              └──────▶ lost ─▶ MemoryEngine
//! ```
//!
//! The serving code is real: cores with their links, runners, entries, readers, writers,
//! the machines that dial, those that ask the engine, and whole clients: what their supervisor
//! decides, their uplink with its gap, and their requests. The clock of each server runs at a
//! speed of its own. Streams delay what is sent. TLS is not there.
//!
//! The seed draws the faults: a link is cut, or stalls so that nobody is told; two servers cannot
//! reach each other; a server is paused, or crashes and starts again, or asks its clients to
//! leave; a client is renewed, or its host is gone and comes back while the old session still
//! stands; the time of day jumps; the engine is away, or has forgotten its last second. Once all faults are over and all time limits have passed, the
//! world is *quiet*.
//!
//! | invariant | meaning |
//! |---|---|
//! | one leader | one process acts under a token, and never do two act at once, unless the engine has forgotten |
//! | tokens | what applications and clients take never has a lower token than what they took before |
//! | order, twice | for each origin and receiver, frames arrive once, in the order sent |
//! | told once | the application hears of each remote session's begin and end once, in order |
//! | one session | once quiet, each client has one session, and its UUID has no other |
//! | directories | once quiet, each server's rows of another one are that one's sessions, and all are linked |
//! | progress | once quiet, whoever reads gets what others send it within a bound, whoever is stuck |
//! | requests | an answer is that of who was asked, to what was asked; none waits for a session that is over; one that is replaced in order waits for its answers; once quiet each question gets one |
//! | books | each frame that a client took waits, was sent, or is counted as lost |
//! | gap | while a session is replaced in order, its client takes frames |
//! | replaced | a session that is replaced in order loses nothing, by a renewal goes on with the same server, and leaves a server that drains |
//! | renewed | every attempt shows the newest certificate, and once quiet every session does |
//! | told in turn | a client tells its application of a session, of what that brings, and of its end |
//! | back-off | no client dials again and again without a pause |
//! | closed | a client that is closed has ended when the grace is over |
//! | lines | whenever nobody can move, the books of each flow are right |
//! | zero | when all is over, nothing is counted any more |
//!
//! | file | holds |
//! |---|---|
//! | `world` | what is drawn from the seed, and the loop |
//! | `faults` | what happens at a drawn time |
//! | `server` | one server: its dispatcher, its dialling and its engine's machine |
//! | `client`, `session` | one client, which connects again and again; the threads of its session |
//! | `log` | the application of a server, and what must never happen |
//! | `checks` | what has to hold once quiet |

mod checks;
mod client;
mod faults;
mod log;
mod server;
mod session;
mod world;

pub(super) use self::world::World;
