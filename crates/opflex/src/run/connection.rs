//! The connections of a server or an element: codec, admission, and the frames that a core
//! sends.
//!
//! ```text
//!  reader: Codec ─▶ Messages ─▶ Feed ─▶ dispatcher: core ─▶ Peers ─▶ Outgoing
//! ```

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};

use crate::message::{Decoder, Identified, Incoming};
use crate::peer::ConnectionId;
use crate::rpc;
use ssntp_pki::CertificateDer;
use ssntp_transport::dispatch::{Action, Admission, Core, DispatchEvent, Events, Feed, Origin};
use ssntp_transport::{self, Decode, Halves, Link, LinkConfig, Outgoing, Table};

/// The messages of one read.
pub(super) type Messages = std::vec::IntoIter<Incoming>;

/// Consecutive frames for one connection are joined, up to this number of bytes.
const RUN: usize = 64 * 1024;

/// From this length on, the buffer of an unfinished message doubles.
const LONG: usize = 32 * 1024;

/// Asks the dispatcher to admit a connection, and starts its threads: `NAME#1.r` and `NAME#1.w` for
/// the connection with number 1 in the core.
///
/// # Errors
/// The reason for which it was not admitted; `None` if the dispatcher has ended.
pub(super) fn enter<C: Core<Item = Messages, Grant = ConnectionId>>(
    events: &Events<DispatchEvent<C>>,
    request: C::Request,
    halves: Halves,
    decoder: Decoder,
    name: &str,
    write_timeout: Duration,
) -> Result<(), Option<C::Refusal>> {
    // No thread is started before the dispatcher has answered, so a refusal starts none.
    let stream = Arc::clone(&halves.stream);
    let admitted = events.admit(request, stream).ok_or(None)?.map_err(Some)?;
    let mut admission = Admission::new(admitted.id, events.clone());
    let codec = Codec { decoder, wanted: 0 };
    let config = LinkConfig {
        name: format!("{name}{}", admitted.grant),
        write_timeout: Some(write_timeout),
        ..LinkConfig::default()
    };
    let feed = Feed::new(&admitted, events.clone());
    admission.started(Link::start(halves, codec, admitted.outbox, feed, config));
    Ok(())
}

/// The transport's codec: a [`Decoder`].
struct Codec {
    decoder: Decoder,
    wanted: usize,
}

impl Decode for Codec {
    type Item = Messages;
    type Error = rpc::Error;

    fn decode(&mut self, input: &mut BytesMut, items: &mut Vec<Messages>) -> Result<(), rpc::Error> {
        let mut messages = Vec::new();
        let result = self.decoder.decode(input, &mut messages);
        if !messages.is_empty() {
            items.push(messages.into_iter());
        }
        // Messages do not announce their length, so the buffer of a long message doubles.
        self.wanted = if input.len() > LONG { 2 * input.len() } else { 0 };
        result
    }

    fn wanted(&self) -> usize {
        self.wanted
    }
}

/// The connections of a core, by the core's numbers and by the transport's, and the frames that have
/// not been passed to the transport yet.
#[derive(Debug, Default)]
pub(super) struct Peers {
    open: HashMap<ConnectionId, (ssntp_transport::ConnectionId, Entrant)>,
    numbers: Table<ConnectionId>,
    run: Run,
    /// The connection whose message causes the present frames.
    pub(super) origin: Origin,
}

/// The peer of a connection that asks to be admitted.
#[derive(Debug)]
pub(super) struct Entrant {
    /// Its address.
    pub(super) name: String,
    pub(super) shown: Shown,
    /// The flag that is set when its identity is accepted.
    pub(super) identified: Identified,
}

/// The certificates of a peer, its own first. Empty without TLS, or if the peer has sent none.
pub(super) type Shown = Arc<[CertificateDer<'static>]>;

/// Consecutive frames for one connection.
#[derive(Debug, Default)]
struct Run {
    to: Option<ConnectionId>,
    frames: Vec<Bytes>,
    bytes: usize,
}

impl Peers {
    /// Adds a connection.
    pub(super) fn add(&mut self, id: ssntp_transport::ConnectionId, connection: ConnectionId, peer: Entrant) {
        self.open.insert(connection, (id, peer));
        self.numbers.insert(id, connection);
    }

    /// Records that the identity of a peer is accepted.
    pub(super) fn identified(&self, connection: ConnectionId) {
        if let Some((_, peer)) = self.open.get(&connection) {
            peer.identified.set();
        }
    }

    /// The connections with their peers.
    pub(super) fn iter(&self) -> impl Iterator<Item = (ConnectionId, &Entrant)> {
        self.open
            .iter()
            .map(|(connection, (_, peer))| (*connection, peer))
    }

    /// The core's number of a connection. `None` if it has ended.
    pub(super) fn connection(&self, id: ssntp_transport::ConnectionId) -> Option<ConnectionId> {
        self.numbers.get(id).copied()
    }

    /// Removes a connection that has ended. Returns the core's number.
    pub(super) fn remove(&mut self, id: ssntp_transport::ConnectionId) -> Option<ConnectionId> {
        // If the core has closed the connection, it is removed already.
        let connection = self.numbers.remove(id)?;
        self.open.remove(&connection)?;
        Some(connection)
    }

    /// Adds a frame. It is passed to the transport when a frame for another connection is added, or
    /// by [`flush`](Self::flush).
    pub(super) fn send(&mut self, connection: ConnectionId, frame: Bytes, actions: &mut Vec<Action>) {
        // A long frame is not joined, because several connections may share it.
        if self.run.to != Some(connection) || self.run.bytes + frame.len() > RUN {
            self.flush(actions);
        }
        self.run.to = Some(connection);
        self.run.bytes += frame.len();
        self.run.frames.push(frame);
        if self.run.bytes >= RUN {
            self.flush(actions);
        }
    }

    /// Passes all frames to the transport.
    pub(super) fn flush(&mut self, actions: &mut Vec<Action>) {
        let Some(connection) = self.run.to.take() else {
            return;
        };
        let bytes = std::mem::take(&mut self.run.bytes);
        let frames = u32::try_from(self.run.frames.len()).unwrap_or(u32::MAX);
        // Joining short frames costs a copy, and saves an item of the queue for each.
        let body = match self.run.frames.pop() {
            // Not copied, because other connections may share it.
            Some(only) if self.run.frames.is_empty() => only,
            last => {
                let mut body = Vec::with_capacity(bytes);
                for frame in self.run.frames.drain(..).chain(last) {
                    body.extend_from_slice(&frame);
                }
                Bytes::from(body)
            }
        };
        // If the connection has ended meanwhile, the frames are dropped.
        if let Some((to, _)) = self.open.get(&connection) {
            let item = Outgoing::whole(body, frames);
            actions.push(Action::Send {
                origin: self.origin,
                to: *to,
                item,
            });
        }
    }

    /// Closes a connection after its frames are sent. Returns false if it has ended.
    pub(super) fn end(&mut self, connection: ConnectionId, actions: &mut Vec<Action>) -> bool {
        self.flush(actions);
        let open = self.open.remove(&connection);
        if let Some((id, _)) = &open {
            self.numbers.remove(*id);
            actions.push(Action::End {
                id: *id,
                abort: false,
            });
        }
        open.is_some()
    }

    /// Closes all connections after their frames are sent.
    pub(super) fn end_all(&mut self, actions: &mut Vec<Action>) {
        for id in self.numbers.ids() {
            if let Some(connection) = self.connection(id) {
                self.end(connection, actions);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn consecutive_frames_for_a_connection_are_joined_up_to_a_limit() {
        let ids = [1 << 24, 2 << 24 | 1].map(ssntp_transport::ConnectionId);
        let mut peers = Peers::default();
        let [a, b] = [ConnectionId(1), ConnectionId(2)];
        let peer = || Entrant {
            name: "peer".to_owned(),
            shown: Shown::default(),
            identified: Identified::default(),
        };
        peers.add(ids[0], a, peer());
        peers.add(ids[1], b, peer());
        let mut actions = Vec::new();
        let frame = |len: usize| Bytes::from(vec![0; len]);
        for (to, len) in [
            (a, 10),
            (a, 20),
            (b, 5),
            (a, RUN - 1),
            (a, 2),
            (a, 2 * RUN),
            (b, 7),
        ] {
            peers.send(to, frame(len), &mut actions);
        }
        peers.end(b, &mut actions);
        // Dropped, because the connection has ended.
        peers.send(b, frame(1), &mut actions);
        peers.flush(&mut actions);
        let sent: Vec<_> = actions
            .iter()
            .map(|action| match action {
                Action::Send { to, item, .. } => (*to, item.frames(), item.len()),
                Action::End { id, abort: false } => (*id, 0, 0),
                other => panic!("{other:?}"),
            })
            .collect();
        let [a, b] = ids;
        let expected = [
            (a, 2, 30),
            (b, 1, 5),
            (a, 1, RUN - 1),
            (a, 1, 2),
            (a, 1, 2 * RUN),
            (b, 1, 7),
            (b, 0, 0),
        ];
        assert_eq!(sent, expected);
    }
}
