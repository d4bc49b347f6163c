//! Certificates, links, sessions and the server, over memory and real sockets.
//!
//! | file | rules |
//! |---|---|
//! | `pki` | certificates, good ones and each kind of bad one |
//! | `transport` | the two threads of a link, in clear and as TLS |
//! | `revocation` | certificates that count no longer |
//! | `resumption` | a session that is resumed |
//! | `credentials` | certificates that change while a server runs |
//! | `server` | what clients and the application see |
//! | `flow` | who waits, for whom, and who does not |
//! | `federation` | several servers that act as one |
//! | `links` | the link of two servers, frame by frame |
//! | `takeovers` | one UUID at several servers |
//! | `servers` | operators that list these servers and drain them |
//! | `figures` | what a server tells of itself |
//! | `renewal` | clients and a server whose certificates are replaced under load |
//! | `embedding` | frames of an application, requests, its admission, the testkit |
//! | `operators` | who sees and ends sessions, and bans that end |
//! | `pages` | the wire and the payloads as docs/ has them |

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::disallowed_methods,
    clippy::disallowed_types,
    clippy::cast_possible_truncation,
    reason = "a test fails by panicking, and brings its own sockets"
)]

mod credentials;
mod dependencies;
mod embedding;
mod federation;
mod figures;
mod flow;
mod links;
mod operators;
mod pages;
mod pki;
mod renewal;
mod resumption;
mod revocation;
mod server;
mod servers;
mod takeovers;
mod transport;
