//! A throw-away cluster for tests: certificates, and a client that speaks the
//! protocol frame by frame over memory.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use ssntp::Role;
use ssntp::payload::Payload;
use ssntp::pki::{Authority, AuthorityRequest, CertificateRequest, Identity, Trust};
use ssntp::proto::{
    ClientHandshake, Codec, Connect, Connected, DEFAULT_MAX_PAYLOAD, ErrorCode, Frame, FrameKind, FrameType,
    Item,
};
use ssntp::transport::memory::{Faults, MemoryListener};
use ssntp::transport::tls::{Connector, Secured};
use ssntp::transport::{BufferPool, Outgoing};
use uuid::Uuid;

/// How long anything may take before a test fails.
pub const LIMIT: Duration = Duration::from_secs(20);

fn authority() -> &'static Authority {
    static AUTHORITY: OnceLock<Authority> = OnceLock::new();
    AUTHORITY.get_or_init(|| Authority::new(&AuthorityRequest::default()).unwrap())
}

/// The trust that all identities here belong to.
pub fn trust() -> Trust {
    authority().trust()
}

/// An identity with these roles, the same one each time.
pub fn identity(role: Role) -> Identity {
    static ISSUED: OnceLock<Mutex<HashMap<Role, Identity>>> = OnceLock::new();
    let mut issued = ISSUED.get_or_init(Mutex::default).lock().unwrap();
    let issue = || {
        let request = CertificateRequest::new(role).host("localhost".parse().unwrap());
        authority().issue(&request).unwrap().identity()
    };
    issued.entry(role).or_insert_with(issue).clone()
}

/// A client that does nothing by itself.
pub struct Client {
    pub uuid: Uuid,
    /// What the server said when the session began.
    pub connected: Connected,
    secured: Secured,
    codec: Codec,
    received: VecDeque<Frame>,
}

impl Client {
    /// Connects with a random UUID.
    pub fn connect(listener: &MemoryListener, role: Role) -> Self {
        Self::connect_as(listener, role, Uuid::new_v4())
    }

    pub fn connect_as(listener: &MemoryListener, role: Role, uuid: Uuid) -> Self {
        let identity = identity(role);
        let stream = listener.connect(Faults::default(), Faults::default()).unwrap();
        let mut secured = Connector::mutual(&identity, &trust())
            .unwrap()
            .connect(
                Arc::new(stream),
                "localhost",
                &BufferPool::new(),
                Instant::now() + LIMIT,
            )
            .unwrap();
        let connect = Connect::new(role, uuid, false);
        let handshake = ClientHandshake::new(connect, Role::ALL, None, DEFAULT_MAX_PAYLOAD);
        write(&mut secured, handshake.connect().to_vec());
        let connected = loop {
            match handshake.receive(secured.halves.inbox.bytes_mut()).unwrap() {
                Some(connected) => break connected,
                None => assert!(read(&mut secured), "no CONNECTED"),
            }
        };
        Self {
            uuid,
            connected,
            secured,
            codec: Codec::new(DEFAULT_MAX_PAYLOAD, false),
            received: VecDeque::new(),
        }
    }

    pub fn send(&mut self, frame: &Frame) {
        write(&mut self.secured, frame.encode().to_vec());
    }

    pub fn send_payload<T: Payload>(&mut self, payload: &T) {
        self.send(&Frame::of(payload));
    }

    /// Sends a payload as it stands here.
    pub fn send_text(&mut self, kind: impl Into<FrameKind>, payload: &str) {
        self.send(&Frame::with_payload(kind, payload.to_owned()));
    }

    /// The next frame; `None` once the server has ended the session.
    pub fn try_recv(&mut self) -> Option<Frame> {
        while self.received.is_empty() {
            if !self.receive() {
                return None;
            }
        }
        self.received.pop_front()
    }

    /// The next frame.
    #[track_caller]
    pub fn recv(&mut self) -> Frame {
        self.try_recv().expect("the session goes on")
    }

    /// The next frame, which has to be of this kind.
    #[track_caller]
    pub fn expect(&mut self, kind: impl Into<FrameKind>) -> Frame {
        let (frame, kind) = (self.recv(), kind.into());
        assert_eq!(frame.kind(), kind, "{:?}", frame.payload_bytes());
        frame
    }

    /// The next frame, which has to carry this payload.
    #[track_caller]
    pub fn expect_payload<T: Payload>(&mut self) -> T {
        self.expect(T::KIND).payload().unwrap()
    }

    /// Waits until the server has handled all that this client has sent, and
    /// gives what it had for this client until then.
    #[track_caller]
    pub fn drain(&mut self) -> Vec<Frame> {
        // It answers an operand that does not exist in its turn.
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

    /// Waits until the server has handled all that this client has sent,
    /// which it has nothing to say to.
    #[track_caller]
    pub fn expect_nothing(&mut self) {
        let frames = self.drain();
        assert!(frames.is_empty(), "{frames:?}");
    }

    fn receive(&mut self) -> bool {
        loop {
            let mut items = Vec::new();
            self.codec
                .decode(self.secured.halves.inbox.bytes_mut(), &mut items)
                .unwrap();
            for item in items {
                match item {
                    Item::Run(run) => self.received.extend(run.frames()),
                    Item::Traced(frame) => self.received.push_back(frame),
                    Item::Unsupported(kind) => panic!("the server sent {kind}"),
                }
            }
            if !self.received.is_empty() {
                return true;
            }
            if !read(&mut self.secured) {
                return false;
            }
        }
    }
}

fn write(secured: &mut Secured, bytes: Vec<u8>) {
    let outgoing = Outgoing::whole(bytes.into(), 1);
    secured.halves.transmit.transmit(&[outgoing]).unwrap();
}

/// False where the stream has ended.
fn read(secured: &mut Secured) -> bool {
    let halves = &mut secured.halves;
    halves.stream.set_read_timeout(Some(LIMIT)).unwrap();
    match halves.receive.receive(&mut halves.inbox) {
        Ok(received) => !received.end,
        Err(e) if e.kind() == std::io::ErrorKind::TimedOut => panic!("nothing came in time"),
        Err(_) => false,
    }
}
