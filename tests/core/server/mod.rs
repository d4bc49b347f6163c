//! The behaviour of a server for its clients and its application.

mod admission;
mod application;
mod ends;
mod routing;

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ssntp::Role;
use ssntp::client::{Client, ClientConfig};
use ssntp::pki::{Authority, AuthorityRequest, CertificateRequest, Identity, Trust};
use ssntp::proto::{Command, Connect, ErrorCode, Event, Frame, FrameKind, FrameType, Header, Status, Trace};
use ssntp::server::{
    AdmissionPolicy, CallError, Context, DisconnectReason, Filter, FilterAction, Handler, RuleError, Rules,
    SendError, Server, ServerConfig, ServerError, SessionInfo, SlowConsumer,
};
use ssntp::transport::Limits;
use ssntp::transport::memory::MemoryListener;
use ssntp_payload::{Reason, Stop, StopFailure};
use ssntp_test_support::*;
use uuid::Uuid;

/// Sends the calls of the application to the test.
struct Notes(Sender<Note>);

#[derive(Debug)]
enum Note {
    Connected(SessionInfo),
    Disconnected(DisconnectReason),
    Frame(Uuid, Frame),
}

fn notes() -> (Notes, Receiver<Note>) {
    let (sender, receiver) = channel();
    (Notes(sender), receiver)
}

impl Handler for Notes {
    fn connected(&mut self, _: &mut Context<'_>, session: &SessionInfo) {
        let _ = self.0.send(Note::Connected(session.clone()));
    }
    fn disconnected(&mut self, _: &mut Context<'_>, _: &SessionInfo, reason: &DisconnectReason) {
        let _ = self.0.send(Note::Disconnected(reason.clone()));
    }
    fn frame(&mut self, _: &mut Context<'_>, from: &SessionInfo, frame: Frame) {
        let _ = self.0.send(Note::Frame(from.uuid(), frame));
    }
}

fn note(notes: &Receiver<Note>) -> Note {
    notes.recv_timeout(LIMIT).expect("the application got no event")
}

/// Waits for a disconnection and returns its reason.
fn disconnected(notes: &Receiver<Note>) -> DisconnectReason {
    loop {
        if let Note::Disconnected(reason) = note(notes) {
            return reason;
        }
    }
}

fn stats_to_controllers(config: ServerConfig) -> ServerConfig {
    config.rules(Rules::new().multicast(Command::STATS, Role::CONTROLLER))
}

fn stats(payload: impl Into<bytes::Bytes>) -> Frame {
    Frame::with_payload(Command::STATS, payload)
}

/// Sends a raw first frame, and returns all bytes until the end of the connection.
fn first_frame(bytes: &[u8], certificate: Role) -> Option<FrameKind> {
    let server = TestServer::start((), |c| c);
    let mut peer = server.dial(&identity(certificate));
    peer.send_bytes(bytes);
    peer.refusal()
}
