//! Certificates, links, sessions and the server, over memory and real sockets.
//!
//! | file | rules |
//! |---|---|
//! | `pki` | valid certificates, and each kind of bad one |
//! | `transport` | the two threads of a link, in clear and as TLS |
//! | `revocation` | revocation lists |
//! | `resumption` | a session that is resumed |
//! | `credentials` | certificates that change while a server runs |
//! | `server` | the behaviour of a server for its clients and its application |
//! | `flow` | back-pressure: the senders that are held and the receivers that are slow |
//! | `federation` | several linked servers |
//! | `links` | the link of two servers, frame by frame |
//! | `takeovers` | one UUID at several servers |
//! | `servers` | operators that list and drain linked servers |
//! | `figures` | the figures of a server |
//! | `renewal` | clients and a server whose certificates are replaced under load |
//! | `enrol` | nodes that join with a token, and what is refused |
//! | `embedding` | frames of an application, requests, its admission, the testkit |
//! | `operators` | operators that list and end sessions, ban and watch |
//! | `dependencies` | the crates that this crate depends on |
//! | `pages` | the examples and tables of docs/, and the tables of files, compared with the code |

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
mod enrol;
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
