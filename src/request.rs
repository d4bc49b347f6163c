//! Requests over frames of an application: the part that client and server share.
//!
//! ```text
//!  asker                            server                              addressee
//!  request() ─ id, addressee ─▶ no addressee: rules, or Handler::request
//!     │                         an addressee: ── id, asker ──▶ ClientEvent::Request
//!     │                                                            │ reply() or refuse()
//!     ◀─ id, addressee ─────── only to the asker ◀── id, asker ────┘
//! ```
//!
//! The server keeps no state for requests that it forwards. It writes the sender's UUID into each request
//! and answer, and the asker accepts an answer only from the addressee.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use bytes::Bytes;
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, TryRecvError};
use uuid::Uuid;

use crate::proto::{Exchange, Frame, FrameKind, Step, content};
use ssntp_transport::{cut, excerpt, remaining};

/// The longest reason of a refusal, in bytes.
const MAX_REASON: usize = 256;

/// A received request that is not answered yet.
#[derive(Clone, Debug)]
pub struct Request {
    pub(super) from: Uuid,
    pub(super) id: u64,
    /// The frame with the application's payload.
    pub(super) frame: Frame,
    /// Counts, by its references, the requests that a client's application has not dropped yet.
    pub(super) _under_way: Option<Arc<()>>,
}

impl Request {
    /// The request in a frame that begins with `exchange`.
    pub(super) fn new(exchange: &Exchange, frame: &Frame) -> Self {
        Self {
            from: exchange.peer,
            id: exchange.id,
            frame: bare(frame),
            _under_way: None,
        }
    }

    /// The UUID of the client or server that asks. The server has verified it.
    pub fn from(&self) -> Uuid {
        self.from
    }

    /// The kind of the request.
    pub fn kind(&self) -> FrameKind {
        self.frame.kind()
    }

    /// The payload of the application.
    pub fn payload(&self) -> &Bytes {
        self.frame.payload_bytes()
    }

    /// The request as a frame, to decode its payload as a type.
    pub fn frame(&self) -> &Frame {
        &self.frame
    }

    /// The request with a copy of its payload. The payload of a received request is a slice that keeps up
    /// to 80 KiB of received bytes alive, also if it is small. Copy requests that are kept for long.
    #[must_use]
    pub fn copied(mut self) -> Self {
        self.frame = self.frame.carrying(Bytes::copy_from_slice(self.payload()));
        self
    }

    /// The frame with an answer, or a refusal with its reason. It names `peer`: a client names the asker, and the
    /// server itself the addressee of the request.
    pub(super) fn answer(&self, peer: Uuid, answer: Result<Bytes, &str>) -> Frame {
        let (step, payload) = match answer {
            Ok(payload) => (Step::Reply, payload),
            Err(why) => (Step::Refusal, cut(why, MAX_REASON).to_owned().into()),
        };
        let exchange = Exchange {
            step,
            id: self.id,
            peer,
        };
        exchange.frame(&Frame::with_payload(self.kind(), payload))
    }
}

/// The frame of a request with only the application's payload.
fn bare(frame: &Frame) -> Frame {
    frame.carrying(content(frame))
}

/// The reason for which a request has no answer.
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
    /// The maximum number of requests that may wait for answers do so. Nothing was sent.
    #[error("{0} requests wait for answers, which is the maximum")]
    TooMany(usize),
    /// The addressee is not connected, or there is no session with the server. Nothing was sent.
    #[error("not connected")]
    NotConnected,
    /// The queue had no room within the time limit. Nothing was sent.
    #[error("the queue is full")]
    QueueFull,
    /// The client has ended, or the server has stopped. Nothing was sent.
    #[error("the client has ended, or the server has stopped")]
    Ended,
    /// The call of a server was made on a dispatcher thread, which must not wait. Nothing was sent.
    #[error("a handler must not wait for an answer")]
    OnDispatcher,
    /// The session was lost before an answer came. The request may have been
    /// carried out.
    #[error("the session was lost before an answer came")]
    Disconnected,
    /// No answer came in time. An answer that comes later is dropped and counted. The request may have
    /// been carried out.
    #[error("no answer in {0:?}")]
    TimedOut(Duration),
    /// The payload of the request cannot be written, or that of the answer cannot be read.
    #[error(transparent)]
    Payload(#[from] crate::payload::Error),
    /// The request was refused. The text is the reason: a text of the application, or a word of the
    /// protocol: `not_connected`, `to_sender`, `not_allowed`, `not_answered`, `queue_full`, `unsupported`.
    #[error("refused: {0}")]
    Refused(String),
}

/// The result of a request.
pub(crate) type Answer = Result<Frame, RequestError>;

/// A request that waits for its answer. Its place in the table of requests is free once this is dropped.
#[derive(Debug)]
pub struct Awaited {
    answer: Receiver<Answer>,
    /// The table has the weak end, so that it needs no message to free the place.
    _place: Arc<()>,
}

impl Awaited {
    /// Waits for the answer until `deadline`, which ends the time `limit` of the caller.
    pub(super) fn wait(self, deadline: Instant, limit: Duration) -> Answer {
        match self.answer.recv_timeout(remaining(deadline)) {
            Ok(answer) => answer,
            // An answer that arrives later is counted as late.
            Err(RecvTimeoutError::Timeout) => Err(RequestError::TimedOut(limit)),
            Err(RecvTimeoutError::Disconnected) => Err(RequestError::Ended),
        }
    }

    /// The answer, if it has arrived.
    ///
    /// # Errors
    /// [`TryRecvError::Disconnected`] if none will arrive.
    pub fn try_answer(&self) -> Result<Result<Frame, RequestError>, TryRecvError> {
        self.answer.try_recv()
    }
}

/// The requests of one end that wait for answers.
#[derive(Debug)]
pub(super) struct Outstanding {
    most: usize,
    asked: HashMap<u64, Asked>,
    /// The number of answers that came too late or from the wrong sender.
    pub(super) late: u64,
}

#[derive(Debug)]
struct Asked {
    /// The UUID that may answer; nil if any may.
    addressee: Uuid,
    kind: FrameKind,
    answer: Sender<Answer>,
    place: Weak<()>,
}

impl Asked {
    /// False once the caller no longer waits.
    fn is_awaited(&self) -> bool {
        self.place.strong_count() > 0
    }
}

impl Outstanding {
    pub(super) fn new(most: usize) -> Self {
        Self {
            most,
            asked: HashMap::new(),
            late: 0,
        }
    }

    /// Makes a request out of a frame, which names the other end `peer`. Returns the frame to send, and the
    /// request that waits for an answer of `addressee`.
    pub(super) fn ask(
        &mut self,
        addressee: Uuid,
        peer: Uuid,
        content: &Frame,
    ) -> Result<(Frame, Awaited), RequestError> {
        if self.asked.len() >= self.most {
            self.asked.retain(|_, asked| asked.is_awaited());
        }
        if self.asked.len() >= self.most {
            return Err(RequestError::TooMany(self.most));
        }
        // Room for one, so that the thread that settles the request never blocks.
        let (answer, answered) = crossbeam_channel::bounded(1);
        // Random, so that nobody can guess it and answer a request to any addressee, and so that an answer to a request
        // of an earlier process with the same UUID answers none of these.
        let (id, place) = (Uuid::new_v4().as_u64_pair().1, Arc::new(()));
        let asked = Asked {
            addressee,
            kind: content.kind(),
            answer,
            place: Arc::downgrade(&place),
        };
        self.asked.insert(id, asked);
        let exchange = Exchange {
            step: Step::Request,
            id,
            peer,
        };
        let awaited = Awaited {
            answer: answered,
            _place: place,
        };
        Ok((exchange.frame(content), awaited))
    }

    /// True if no request waits for an answer.
    pub(super) fn is_idle(&self) -> bool {
        !self.asked.values().any(Asked::is_awaited)
    }

    /// Handles an answer that came from `from`.
    pub(super) fn settle(&mut self, from: Uuid, exchange: &Exchange, frame: &Frame) {
        let id = exchange.id;
        let is_awaited = self.asked.get(&id).is_some_and(|asked| {
            asked.kind == frame.kind() && (asked.addressee.is_nil() || asked.addressee == from)
        });
        // Without the check of the sender, any client could answer for the addressee.
        let Some(asked) = is_awaited.then(|| self.asked.remove(&id)).flatten() else {
            self.late += 1;
            return;
        };
        let answer = match exchange.step {
            Step::Refusal => {
                let why = content(frame);
                // Cut and escaped, because a peer has written it.
                let why = String::from_utf8_lossy(&why[..why.len().min(MAX_REASON)]);
                Err(RequestError::Refused(excerpt(why).to_string()))
            }
            Step::Request | Step::Reply => Ok(bare(frame)),
        };
        // The receiver is gone if the caller no longer waits.
        if asked.answer.send(answer).is_err() {
            self.late += 1;
        }
    }

    /// Refuses the requests of a kind that the server does not know.
    pub(super) fn unsupported(&mut self, kind: FrameKind) {
        for (_, asked) in self.asked.extract_if(|_, asked| asked.kind == kind) {
            let _ = asked
                .answer
                .send(Err(RequestError::Refused("unsupported".into())));
        }
    }

    /// Ends the requests to one addressee, or all of them, because the session has ended.
    pub(super) fn cancel(&mut self, of: Option<Uuid>) {
        for (_, asked) in self
            .asked
            .extract_if(|_, asked| of.is_none_or(|uuid| asked.addressee == uuid))
        {
            let _ = asked.answer.send(Err(RequestError::Disconnected));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::FrameType;

    #[test]
    fn the_id_of_a_request_tells_nobody_the_next_one() {
        let mut requests = Outstanding::new(2);
        let frame = Frame::new(FrameKind::new(FrameType::COMMAND, 0x80));
        let [one, other] = [(), ()].map(|()| {
            let (sent, _) = requests.ask(Uuid::nil(), Uuid::nil(), &frame).unwrap();
            Exchange::read(sent.payload_bytes()).unwrap().id
        });
        assert!(one.abs_diff(other) > 1 << 16, "{one:x} {other:x}");
    }

    #[test]
    fn a_request_has_its_place_as_long_as_its_caller_waits() {
        let mut requests = Outstanding::new(2);
        let frame = Frame::new(FrameKind::new(FrameType::COMMAND, 0x80));
        let mut ask = || {
            requests
                .ask(Uuid::nil(), Uuid::nil(), &frame)
                .map(|(_, awaited)| awaited)
        };
        let waits = ask().unwrap();
        drop(ask().unwrap());
        let other = ask().unwrap();
        assert_eq!(ask().unwrap_err(), RequestError::TooMany(2));
        drop((waits, other));
        assert!(ask().is_ok() && requests.is_idle());
    }
}
