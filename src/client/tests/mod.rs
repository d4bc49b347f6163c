//! Tests of the client against a server that the test controls.
#![allow(clippy::disallowed_methods, reason = "tests measure that waits are short")]
#![allow(clippy::panic, clippy::unwrap_used, reason = "a test may fail")]
#![allow(clippy::cast_possible_truncation, reason = "patterns of bytes")]

mod closing;
mod connecting;
mod draining;
mod frames;
mod renewing;
mod sending;
mod server;
mod stepped;
mod uplink;

use uuid::Uuid;

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use self::server::*;
use super::handle::ClientState;
use super::*;
use crate::proto::{Command, Frame};

/// Far less than the time limits that a closed client would otherwise wait
/// for, and enough for a busy machine.
const AT_ONCE: Duration = Duration::from_secs(5);

/// A STATS frame with a number in its payload.
fn stats(number: u32) -> Frame {
    Frame::with_payload(Command::STATS, number.to_be_bytes().to_vec())
}

fn number(frame: &Frame) -> u32 {
    assert_eq!(frame.kind(), Command::STATS);
    u32::from_be_bytes(frame.payload_bytes()[..].try_into().unwrap())
}

fn next(client: &Client) -> ClientEvent {
    client.recv_timeout(LIMIT).unwrap()
}

fn next_frame(client: &Client) -> Frame {
    match next(client) {
        ClientEvent::Frame(frame) => frame,
        other => panic!("{other:?}"),
    }
}

fn connected(client: &Client) -> Arc<ServerInfo> {
    match next(client) {
        ClientEvent::Connected(server) => server,
        other => panic!("{other:?}"),
    }
}

fn disconnected(client: &Client) -> (SessionEnd, bool) {
    match next(client) {
        ClientEvent::Disconnected { reason, retrying } => (reason, retrying),
        other => panic!("{other:?}"),
    }
}

/// The reason in the last event, after which the channel is disconnected.
fn closed(client: &Client) -> ClientError {
    let reason = match next(client) {
        ClientEvent::Closed(reason) => reason,
        other => panic!("{other:?}"),
    };
    let after = client.recv().unwrap_err();
    assert_eq!(after.to_string(), reason.to_string());
    reason
}

/// A client with a session to one server in memory.
fn pair(config: impl FnOnce(ClientConfig) -> ClientConfig) -> (Client, Peer, TestServer) {
    let (server, listener) = TestServer::memory();
    let client = Client::start(config(agent().connect_in_memory(&listener))).unwrap();
    let peer = server.session();
    connected(&client);
    (client, peer, server)
}

/// A weak reference to the state that all threads of a client hold.
fn threads_of(client: &Client) -> Weak<ClientState> {
    Arc::downgrade(client.handle.state())
}

/// Checks that `act` takes little time.
fn at_once<T>(call: impl FnOnce() -> T) -> T {
    let began = Instant::now();
    let result = call();
    let took = began.elapsed();
    assert!(took < AT_ONCE, "it took {took:?}");
    result
}
