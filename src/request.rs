//! Requests over frames of an application: what both ends need of them.
//!
//! ```text
//!  asker                       server                         who is asked
//!  request() ─ id, whom ─▶ no addressee: rules, else Handler::request
//!     │                    an addressee: ── id, who asks ──▶ ClientEvent::Request
//!     │                                                          │ reply() or refuse()
//!     ◀─ id, who answers ─ to the asker alone ◀─ id, the asker ──┘
//! ```
//!
//! The server remembers nothing of what it forwards. It writes who it comes from
//! into each request and answer, and the asker takes an answer from nobody but
//! whom it asked.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use crossbeam_channel::{Receiver, Sender};
use uuid::Uuid;

use crate::proto::{Exchange, Frame, FrameKind, Step, content};
use ssntp_transport::{cut, excerpt};

/// The longest text of a refusal, in bytes.
const MAX_REASON: usize = 256;

/// A request that waits for an answer.
#[derive(Clone, Debug)]
pub struct Request {
    pub(super) from: Uuid,
    pub(super) id: u64,
    /// With the application's content alone.
    pub(super) frame: Frame,
    /// Shared by all requests that a client has received and whose application still has them.
    pub(super) _under_way: Option<Arc<()>>,
}

impl Request {
    /// The request in a frame that begins with this.
    pub(super) fn new(exchange: &Exchange, frame: &Frame) -> Self {
        Self {
            from: exchange.peer,
            id: exchange.id,
            frame: bare(frame),
            _under_way: None,
        }
    }

    /// Who asks. The server has written it.
    pub fn from(&self) -> Uuid {
        self.from
    }

    /// What is asked.
    pub fn kind(&self) -> FrameKind {
        self.frame.kind()
    }

    /// What the application asks with.
    pub fn payload(&self) -> &Bytes {
        self.frame.payload_bytes()
    }

    /// The same as a frame, to read it as a type.
    pub fn frame(&self) -> &Frame {
        &self.frame
    }

    /// The same with a copy of the payload. The payload of a request as it arrives is a slice of
    /// the memory that it was received into, up to 80 KiB for a small frame: copy what is to be
    /// kept for long.
    #[must_use]
    pub fn copied(mut self) -> Self {
        let payload = Bytes::copy_from_slice(self.payload());
        let mut frame = Frame::with_payload(self.kind(), payload);
        if let Some(trace) = self.frame.take_trace() {
            frame = frame.traced(trace);
        }
        self.frame = frame;
        self
    }

    /// The frame that answers it.
    pub(super) fn reply(&self, payload: Bytes) -> Frame {
        self.answer(Step::Reply, payload)
    }

    /// The frame that says why there will be no answer.
    pub(super) fn refusal(&self, why: &str) -> Frame {
        let why = cut(why, MAX_REASON);
        self.answer(Step::Refusal, Bytes::copy_from_slice(why.as_bytes()))
    }

    fn answer(&self, step: Step, payload: Bytes) -> Frame {
        let exchange = Exchange {
            step,
            id: self.id,
            peer: self.from,
        };
        exchange.frame(&Frame::with_payload(self.kind(), payload))
    }
}

/// A frame of a request without what it begins with.
fn bare(frame: &Frame) -> Frame {
    let mut bare = Frame::with_payload(frame.kind(), content(frame));
    if let Some(trace) = frame.trace() {
        bare = bare.traced(trace.clone());
    }
    bare
}

/// Why a request has no reply.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RequestError {
    /// The kind is not registered as a request
    /// ([`Operands::request`](crate::proto::Operands::request)). Nothing was
    /// sent.
    #[error("{0} is not registered as a request")]
    Kind(FrameKind),
    /// The payload is longer than the configured maximum, less 32 bytes.
    /// Nothing was sent.
    #[error("its payload has {len} bytes, the maximum is {limit}")]
    TooLong {
        /// The length of all of it, in bytes.
        len: usize,
        /// The maximum in bytes.
        limit: u32,
    },
    /// As many requests as may wait for answers do. Nothing was sent.
    #[error("{0} requests wait for answers, as many as may")]
    TooMany(usize),
    /// No session stands with who is asked, or with the server. Nothing was
    /// sent.
    #[error("no session stands at present")]
    NotConnected,
    /// There was no room in the queue in time. Nothing was sent.
    #[error("the queue is full")]
    QueueFull,
    /// The client has ended, or the server has stopped. Nothing was sent.
    #[error("the client has ended, or the server has stopped")]
    Ended,
    /// A server's call from a dispatcher, which must not wait. Nothing was
    /// sent.
    #[error("a handler must not wait for an answer")]
    OnDispatcher,
    /// The session was lost before an answer came. The request may have been
    /// carried out.
    #[error("the session was lost before an answer came")]
    Disconnected,
    /// No answer came in time; one that comes later is dropped and counted.
    /// The request may have been carried out.
    #[error("no answer in {0:?}")]
    TimedOut(Duration),
    /// The answer is that there will be none. The text says why: what the
    /// application gave, or a word of the protocol: `not_connected`,
    /// `not_allowed`, `not_answered`, `queue_full`, `unsupported`.
    #[error("refused: {0}")]
    Refused(String),
}

/// What a request comes to.
pub(crate) type Answer = Result<Frame, RequestError>;

/// The requests of one end that wait for answers.
#[derive(Debug)]
pub(super) struct Outstanding {
    next: u64,
    most: usize,
    asked: HashMap<u64, Asked>,
    late: u64,
    /// Whether new ones are to wait, while the session is replaced.
    held: bool,
}

#[derive(Debug)]
struct Asked {
    /// Who may answer; nil for anybody.
    whom: Uuid,
    kind: FrameKind,
    answer: Sender<Answer>,
}

impl Outstanding {
    pub(super) fn new(most: usize) -> Self {
        Self {
            // Another process with the same UUID, before or after this one, has
            // other numbers: what answers its requests answers none of these.
            next: Uuid::new_v4().as_u64_pair().1,
            most,
            asked: HashMap::new(),
            late: 0,
            held: false,
        }
    }

    /// Makes a request out of a frame, and says where its answer arrives.
    pub(super) fn ask(
        &mut self,
        whom: Uuid,
        content: &Frame,
    ) -> Result<(u64, Frame, Receiver<Answer>), RequestError> {
        if self.asked.len() >= self.most {
            return Err(RequestError::TooMany(self.most));
        }
        let (answer, answered) = crossbeam_channel::bounded(1);
        self.next = self.next.wrapping_add(1);
        let (id, kind) = (self.next, content.kind());
        self.asked.insert(id, Asked { whom, kind, answer });
        let exchange = Exchange {
            step: Step::Request,
            id,
            peer: whom,
        };
        Ok((id, exchange.frame(content), answered))
    }

    /// Whether new requests are to wait, so that those under way come to an end.
    pub(super) fn hold(&mut self, held: bool) {
        self.held = held;
    }

    pub(super) fn is_held(&self) -> bool {
        self.held
    }

    /// Whether none waits for an answer.
    pub(super) fn is_idle(&self) -> bool {
        self.asked.is_empty()
    }

    /// An answer has come; `from` is who gave it.
    pub(super) fn settle(&mut self, from: Uuid, exchange: &Exchange, frame: &Frame) {
        let id = exchange.id;
        let is_awaited = self
            .asked
            .get(&id)
            .is_some_and(|asked| asked.kind == frame.kind() && (asked.whom.is_nil() || asked.whom == from));
        let Some(asked) = is_awaited.then(|| self.asked.remove(&id)).flatten() else {
            self.late += 1;
            return;
        };
        let answer = match exchange.step {
            Step::Refusal => {
                let why = content(frame);
                let why = String::from_utf8_lossy(&why[..why.len().min(MAX_REASON)]);
                Err(RequestError::Refused(excerpt(why).to_string()))
            }
            Step::Request | Step::Reply => Ok(bare(frame)),
        };
        // The thread that waited may have given up.
        let _ = asked.answer.send(answer);
    }

    /// The server does not know requests of that kind.
    pub(super) fn unsupported(&mut self, kind: FrameKind) {
        for (_, asked) in self.asked.extract_if(|_, asked| asked.kind == kind) {
            let _ = asked
                .answer
                .send(Err(RequestError::Refused("unsupported".into())));
        }
    }

    /// The asker has stopped waiting for this answer.
    pub(super) fn forget(&mut self, id: u64) {
        self.asked.remove(&id);
    }

    /// The session is over on which all of these were sent, or those to one
    /// entity.
    pub(super) fn cancel(&mut self, of: Option<Uuid>) {
        for (_, asked) in self
            .asked
            .extract_if(|_, asked| of.is_none_or(|uuid| asked.whom == uuid))
        {
            let _ = asked.answer.send(Err(RequestError::Disconnected));
        }
    }

    /// How many answers came too late.
    pub(super) fn late(&self) -> u64 {
        self.late
    }
}
