//! A client of the scheduler: a [`Peer`] with expectations.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock};

use ssntp::Role;
use ssntp::payload::Payload;
use ssntp::pki::Identity;
use ssntp::proto::{Connect, Connected, ErrorCode, Event, Frame, FrameKind, FrameType};
use ssntp::transport::memory::{Faults, MemoryListener};
use uuid::Uuid;

use ssntp_test_support::{self, Peer};

pub struct Client {
    pub uuid: Uuid,
    /// The scheduler's CONNECTED.
    pub connected: Connected,
    peer: Peer,
}

impl Client {
    /// Connects with a random UUID.
    pub fn connect(listener: &MemoryListener, role: Role) -> Self {
        Self::connect_as(listener, role, Uuid::new_v4())
    }

    pub fn connect_as(listener: &MemoryListener, role: Role, uuid: Uuid) -> Self {
        Self::handshake(listener, role, uuid, false)
    }

    /// Connects, and asks for traces.
    pub fn connect_traced(listener: &MemoryListener, role: Role) -> Self {
        Self::handshake(listener, role, Uuid::new_v4(), true)
    }

    fn handshake(listener: &MemoryListener, role: Role, uuid: Uuid, trace: bool) -> Self {
        let stream = listener.connect(Faults::default(), Faults::default()).unwrap();
        let mut peer = Peer::over(Arc::new(stream), &identity(role));
        let connected = peer.handshake(role, uuid, trace);
        Self {
            uuid,
            connected,
            peer,
        }
    }

    /// Connects, unless the scheduler refuses it.
    pub fn try_connect(listener: &MemoryListener, role: Role) -> Option<Self> {
        let stream = listener.connect(Faults::default(), Faults::default()).unwrap();
        let mut peer = Peer::over(Arc::new(stream), &identity(role));
        let uuid = Uuid::new_v4();
        peer.send_bytes(&Connect::new(role, uuid, false).encode());
        peer.next_is_connected().then(|| Self {
            uuid,
            connected: peer.connected(),
            peer,
        })
    }

    /// True if its session ends without a further frame.
    pub fn ends(&mut self) -> bool {
        matches!(self.peer.next(), ssntp_test_support::Received::End)
    }

    /// Ends its session in order.
    pub fn close(mut self) {
        self.peer.finish();
    }

    pub fn send(&mut self, frame: &Frame) {
        self.peer.send(frame);
    }

    pub fn send_payload<T: Payload>(&mut self, payload: &T) {
        self.send(&Frame::of(payload));
    }

    /// Sends a payload unchanged.
    pub fn send_text(&mut self, kind: impl Into<FrameKind>, payload: &str) {
        self.send(&Frame::with_payload(kind, payload.to_owned()));
    }

    /// The next frame. SnapshotComplete is skipped: it arrives once at each controller, and few tests
    /// are about it.
    #[track_caller]
    pub fn recv(&mut self) -> Frame {
        loop {
            let frame = self.recv_any();
            if frame.kind() != Event::SNAPSHOT_COMPLETE {
                return frame;
            }
        }
    }

    /// The next frame.
    #[track_caller]
    pub fn recv_any(&mut self) -> Frame {
        self.peer.frame()
    }

    /// The next frame, which has to be of this kind.
    #[track_caller]
    pub fn expect(&mut self, kind: impl Into<FrameKind>) -> Frame {
        let (frame, kind) = (self.recv(), kind.into());
        assert_eq!(frame.kind(), kind, "{:?}", frame.payload_bytes());
        frame
    }

    /// The next frame, which has to carry a payload of this type.
    #[track_caller]
    pub fn expect_payload<T: Payload>(&mut self) -> T {
        self.expect(T::KIND).payload().unwrap()
    }

    /// Waits until the scheduler has handled all frames of this client, and returns the frames that it
    /// has sent to this client until then.
    #[track_caller]
    pub fn drain(&mut self) -> Vec<Frame> {
        // The server answers an unknown operand after all earlier frames.
        self.send(&Frame::new(FrameKind::new(FrameType::COMMAND, 0x77)));
        let mut frames = Vec::new();
        loop {
            let frame = self.recv();
            let text = String::from_utf8_lossy(frame.payload_bytes());
            if frame.kind() == ErrorCode::INVALID_FRAME_TYPE && text.contains("unsupported_operand") {
                return frames;
            }
            frames.push(frame);
        }
    }

    /// Waits until the scheduler has handled all frames of this client, and checks that it has sent none
    /// to this client.
    #[track_caller]
    pub fn expect_nothing(&mut self) {
        let frames = self.drain();
        assert!(frames.is_empty(), "{frames:?}");
    }
}

/// The identity of a role, which is always the same: a client that connects again has to show the
/// certificate of its former session.
pub fn identity(role: Role) -> Identity {
    static ISSUED: OnceLock<Mutex<HashMap<Role, Identity>>> = OnceLock::new();
    let mut issued = ISSUED.get_or_init(Mutex::default).lock().unwrap();
    issued
        .entry(role)
        .or_insert_with(|| ssntp_test_support::identity(role))
        .clone()
}
