//! The reader and the writer of a client's session: the steps of its link, suspended where a thread
//! would block.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::BytesMut;

use super::super::network::{SimTransmit, Stream};
use super::super::threads::{Step, Writer};
use super::world::PIECES;
use ssntp::proto::Item;
use ssntp::simulation::Decoder;
use ssntp::simulation::SessionSink;
use ssntp_test_support::random::Random;
use ssntp_transport::outbox::Outbox;
use ssntp_transport::{
    BufferPool, Duplex, EndReason, Incoming, LastWrites, LinkConfig, Next, Receive, Sink, end_reason, plain,
};

/// The maximum that one read brings: fewer frames than the channel of events holds.
const READ: usize = 16 << 10;

enum Reading {
    Decodes,
    Receives,
    Drains,
    WaitsForWriter(LastWrites),
    Joins,
    Over,
}

pub(super) struct Session {
    pub(super) stream: Stream,
    pub(super) outbox: Outbox,
    incoming: Incoming<Decoder>,
    receive: Box<dyn Receive>,
    /// `None` once the reader has ended.
    sink: Option<SessionSink>,
    reading: Reading,
    writer: Writer,
}

impl Session {
    /// The bytes in `inbox` arrived with CONNECTED.
    pub(super) fn new(
        stream: Stream,
        inbox: BytesMut,
        (decoder, outbox, sink): (Decoder, Outbox, SessionSink),
        config: &LinkConfig,
    ) -> Self {
        outbox.open(Box::new(SimTransmit::new(stream.clone())));
        let mut halves = plain(Arc::new(stream.clone()), BufferPool::new());
        halves.inbox.bytes_mut().unsplit(inbox);
        let limit = config.write_timeout.unwrap_or(Duration::MAX);
        Self {
            incoming: Incoming::new(decoder, halves.inbox, config.write_timeout),
            receive: halves.receive,
            sink: Some(sink),
            reading: Reading::Decodes,
            writer: Writer::new(None, &outbox, &stream, config.linger, limit),
            outbox,
            stream,
        }
    }

    pub(super) fn is_over(&self) -> bool {
        matches!(self.reading, Reading::Over)
    }

    /// Ends the session at once.
    pub(super) fn cut_off(&self) {
        self.outbox.abort();
        self.stream.shut_down();
    }

    /// Both take a step. An application that `is_stuck` takes no events, so nothing is read.
    pub(super) fn step(&mut self, is_stuck: bool, now: Instant, random: &mut Random) -> Step {
        let writes = self.writer.write(now, random, PIECES);
        match (writes, self.read(is_stuck, now)) {
            (Step::Moved, _) | (_, Step::Moved) => Step::Moved,
            (Step::Waits(one), Step::Waits(other)) => Step::Waits([one, other].into_iter().flatten().min()),
            (Step::Waits(until), _) | (_, Step::Waits(until)) => Step::Waits(until),
            (Step::Over, Step::Over) => Step::Over,
        }
    }

    fn read(&mut self, is_stuck: bool, now: Instant) -> Step {
        let reading = match std::mem::replace(&mut self.reading, Reading::Over) {
            Reading::Decodes if is_stuck => {
                self.reading = Reading::Decodes;
                return Step::Waits(None);
            }
            Reading::Decodes => {
                let mut items = Vec::<Item>::new();
                match self.incoming.next(&mut items) {
                    Next::Hand(bytes) => {
                        let sink = self.sink.as_mut();
                        if sink.is_some_and(|sink| sink.items(&mut items, bytes)) {
                            Reading::Decodes
                        } else {
                            self.ends(EndReason::Local)
                        }
                    }
                    Next::Receive { .. } => Reading::Receives,
                    Next::End(found) => self.ends(found),
                }
            }
            Reading::Receives if !self.stream.is_readable() => {
                self.reading = Reading::Receives;
                return Step::Waits(None);
            }
            Reading::Receives => {
                self.incoming.allow(READ);
                // Without TLS, reading causes nothing to be sent.
                self.incoming.receive(&mut *self.receive);
                Reading::Decodes
            }
            Reading::Drains => match self.stream.receive(1024) {
                Ok(bytes) if !bytes.is_empty() => Reading::Drains,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    self.reading = Reading::Drains;
                    return Step::Waits(None);
                }
                _ => Reading::WaitsForWriter(LastWrites::begin(&self.outbox, now)),
            },
            Reading::WaitsForWriter(mut last) => match last.look(&self.outbox, now) {
                Some(until) => {
                    self.reading = Reading::WaitsForWriter(last);
                    return Step::Waits(Some(until));
                }
                None => self.joins(),
            },
            Reading::Joins if !self.writer.over => {
                self.reading = Reading::Joins;
                return Step::Waits(None);
            }
            Reading::Joins => {
                self.outbox.discard();
                self.sink = None;
                Reading::Over
            }
            Reading::Over => return Step::Over,
        };
        self.reading = reading;
        Step::Moved
    }

    fn ends(&mut self, found: EndReason) -> Reading {
        let reason = end_reason(&self.outbox, found);
        let lost = reason.is_loss();
        if let Some(sink) = &mut self.sink {
            sink.ended(reason);
        }
        if lost || self.outbox.is_over() {
            return self.joins();
        }
        self.writer.hurry = true;
        self.outbox.close();
        Reading::Drains
    }

    fn joins(&self) -> Reading {
        self.cut_off();
        Reading::Joins
    }
}
