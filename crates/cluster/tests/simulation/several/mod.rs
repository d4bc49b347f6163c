//! Several servers in one world, from one seed and in virtual time.
//!
//! ```text
//!  Client ◀─▶ Stream ◀─▶ Server 0 ◀══ Stream: a link ══▶ Server 1 ◀─▶ Stream ◀─▶ Client
//!                        Runner<ServerCore>, Entry, Redial, Machine ── requests, delayed or
//!                                                              └──────▶ lost ─▶ MemoryEngine
//! ```
//!
//! What serves for real is real: cores with their links, runners, entries, readers, writers,
//! the machines that dial, and those that ask the engine. The clock of each server runs at a
//! speed of its own. Streams delay what is sent.
//!
//! The seed draws the faults: a link is cut, or stalls so that nobody is told; two servers cannot
//! reach each other; a server is paused, or crashes and starts again; a client comes back
//! elsewhere while its old session still stands; the time of day jumps; the engine is away, or
//! has forgotten its last second. Once all faults are over and all time limits have passed, the
//! world is *quiet*.
//!
//! | invariant | says |
//! |---|---|
//! | one leader | one process acts under a token, and never do two act at once, unless the engine has forgotten |
//! | tokens | what applications and clients take never has a lower token than what they took before |
//! | order, twice | for each origin and receiver, frames arrive once, in the order sent |
//! | told once | the application hears of each remote session's begin and end once, in order |
//! | one session | once quiet, each client has one session, and its UUID has no other |
//! | directories | once quiet, each server's rows of another one are that one's sessions, and all are linked |
//! | progress | once quiet, whoever reads gets what others send it within a bound, whoever is stuck |
//! | lines | whenever nobody can move, the books of each flow are right |
//! | zero | when all is over, nothing is counted any more |
//!
//! | file | holds |
//! |---|---|
//! | `world` | what is drawn from the seed, and the loop |
//! | `faults` | what happens at a drawn time |
//! | `server` | one server: its dispatcher, its dialling and its engine's machine |
//! | `client` | one client, which connects again and again |
//! | `log` | the application of a server, and what must never happen |
//! | `checks` | what has to hold once quiet |

mod checks;
mod client;
mod faults;
mod log;
mod server;
mod world;

pub(super) use self::world::World;
