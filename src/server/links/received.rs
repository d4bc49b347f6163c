//! The frames that are received from links.
//!
//! ```text
//!  link ─▶ a link frame ─▶ rows, claims, holds: kept here ─▶ LinkEvent ─▶ the core
//!            FORWARD ─▶ sessions of this server, or its application; never a link
//! ```

use std::sync::Arc;
use std::time::SystemTime;

use bytes::{Bytes, BytesMut};
use log::debug;
use uuid::Uuid;

use super::Links;
use super::facts::ServerLink;
use super::frames::{EndCode, Forward, LinkFault, LinkFrame, Receivers};
use super::roster::{Remote, RosterChanges};
use crate::proto::{Codec, Item, Run, apart};
use crate::server::sending::Sending;
use crate::server::sessions::{SessionId, Sessions};
use ssntp_transport::dispatch::Origin;
use ssntp_transport::{ConnectionId, nanoseconds};

/// What the core has to do about a link frame.
pub(crate) enum LinkEvent {
    /// Nothing.
    Done,
    /// Sessions of the other server have begun or ended. With the server if its sessions are now known.
    Changed(Option<Arc<ServerLink>>, RosterChanges),
    /// Deliver these frames, and then call [`Links::count_forwarded`].
    Forwarded(Forwarded),
    /// The application of another server has sent a message.
    Told { server: Uuid, message: Bytes },
    /// A newcomer of the other server wants to take a session over. Answer with
    /// [`Links::answer_claim`].
    Claim {
        id: u64,
        uuid: Uuid,
        certificates: Bytes,
    },
    /// The other server has ended the link.
    Ended(EndCode, String),
}

/// Frames from another server.
pub(crate) struct Forwarded {
    pub(crate) item: Item,
    pub(crate) to: Receivers,
    /// The client that sent the frames, or nil.
    pub(crate) from: Uuid,
    /// The session of that client.
    pub(crate) sender: Option<Arc<Remote>>,
    /// The session that is paused while a receiver here has no room.
    pub(crate) origin: Origin,
}

impl Links {
    /// Handles one link frame. `memory` is the number of bytes that its payload keeps alive.
    ///
    /// # Errors
    /// A fault of the peer, for which the link must end.
    pub(crate) fn handle(
        &mut self,
        id: ConnectionId,
        run: &Run,
        frame: &crate::proto::Frame,
        sessions: &Sessions,
        wall: SystemTime,
        out: &mut Sending,
    ) -> Result<LinkEvent, LinkFault> {
        // A slice of the read, so that a FORWARD is not copied.
        let frame = LinkFrame::decode(frame.kind(), frame.payload_bytes().clone())?;
        // The connection may be over: an earlier frame of the same batch may have ended it.
        let Some(link) = self.table.get_mut(id) else {
            return Ok(LinkEvent::Done);
        };
        let server = link.server.uuid;
        let name = frame.name();
        Ok(match frame {
            LinkFrame::Snapshot {
                sequence,
                is_last,
                rows,
            } => match self.roster.snapshot(server, sequence, rows, is_last)? {
                Some(changes) => {
                    link.linked = true;
                    LinkEvent::Changed(Some(Arc::clone(&link.server)), changes)
                }
                None => LinkEvent::Done,
            },
            LinkFrame::Connected { sequence, row } => {
                LinkEvent::Changed(None, self.roster.connected(server, sequence, row)?)
            }
            LinkFrame::Gone {
                sequence,
                number,
                uuid,
            } => LinkEvent::Changed(None, self.roster.gone(server, sequence, number, uuid)?),
            LinkFrame::Forward { forward } => {
                if self.is_current(id, forward.token) {
                    LinkEvent::Forwarded(self.forwarded(id, server, forward, run.wire().len(), wall)?)
                } else {
                    LinkEvent::Done
                }
            }
            LinkFrame::Hold { number } => self.pause(id, number, true, sessions, out),
            LinkFrame::Go { number } => self.pause(id, number, false, sessions, out),
            LinkFrame::Tell { token, message } if self.is_current(id, token) => LinkEvent::Told {
                server,
                // The application may keep the message, which must not keep a whole read alive.
                message: Bytes::copy_from_slice(&message),
            },
            LinkFrame::Claim {
                id,
                uuid,
                certificates,
            } => LinkEvent::Claim {
                id,
                uuid,
                certificates,
            },
            LinkFrame::Claimed { id: claim, verdict } => {
                self.claims.answer(id, claim, verdict);
                LinkEvent::Done
            }
            LinkFrame::Tell { .. } | LinkFrame::Alive {} => LinkEvent::Done,
            LinkFrame::End { code, reason, .. } => {
                let code = match code {
                    EndCode::Duplicate => code,
                    _ => EndCode::Closing,
                };
                LinkEvent::Ended(code, format!("the other server has ended it: {reason}"))
            }
            LinkFrame::Hello { .. } => return Err(LinkFault::Turn(name)),
        })
    }

    /// Notes the rank of a session of another server: the next admission here gets a greater stamp, as in
    /// a clock of Lamport.
    pub(crate) fn note_rank(&mut self, remote: &Remote) {
        self.clock = self.clock.max(remote.rank.stamp);
    }

    /// Counts frames from a link, and whether they have found a receiver.
    pub(crate) fn count_forwarded(&mut self, id: ConnectionId, frames: u32, is_received: bool) {
        if let Some(link) = self.table.get_mut(id) {
            link.received += u64::from(frames);
            if !is_received {
                link.astray += u64::from(frames);
                debug!(target: "ssntp::server", "{}: {frames} frames find no receiver", link.server);
            }
        }
    }

    /// Pauses a session of this server for the peer of a link, or ends that pause.
    fn pause(
        &mut self,
        link: ConnectionId,
        number: u64,
        paused: bool,
        sessions: &Sessions,
        out: &mut Sending,
    ) -> LinkEvent {
        let id = ConnectionId(number);
        if let Some(link) = self.table.get_mut(link) {
            // A session that has ended meanwhile would stay in the set until the link ends.
            let changes = if paused {
                sessions.get(SessionId(id)).is_some() && link.held.insert(id)
            } else {
                link.held.remove(&id)
            };
            if changes {
                out.pause(id, paused);
            }
        }
        LinkEvent::Done
    }

    /// Checks the token of a frame. False, and counted, if it is not that of the newest leader. A
    /// frame without a token (0) passes.
    fn is_current(&mut self, link: ConnectionId, token: u64) -> bool {
        let current = token == 0 || self.check_token(token);
        if !current && let Some(link) = self.table.get_mut(link) {
            link.stale += 1;
            debug!(target: "ssntp::server", "{}: a frame under the wrong token {token} is dropped", link.server);
        }
        current
    }

    fn forwarded(
        &self,
        link: ConnectionId,
        server: Uuid,
        forward: Forward,
        memory: usize,
        wall: SystemTime,
    ) -> Result<Forwarded, LinkFault> {
        let item = self.decode(forward.traced, forward.frames, memory, wall);
        let from = forward.from;
        Ok(Forwarded {
            item: item.ok_or(LinkFault::Value("FORWARD", "its frames"))?,
            to: forward.to,
            from,
            sender: self.roster.of(server, from).cloned(),
            origin: match forward.number {
                0 => Origin::Application,
                number => Origin::Remote { link, number },
            },
        })
    }

    /// Decodes the frames of a FORWARD; `None` if they are malformed. Frames that are a small part
    /// of the `memory` that they keep alive are copied.
    fn decode(&self, traced: bool, frames: Bytes, memory: usize, wall: SystemTime) -> Option<Item> {
        let own = &self.own;
        if !traced {
            return Run::read(apart(frames, memory), own.max_payload).map(Item::Run);
        }
        let mut codec = Codec::new(own.max_payload, true).operands(own.operands.clone());
        let (mut bytes, mut items) = (BytesMut::from(frames), Vec::new());
        codec.decode(&mut bytes, &mut items).ok()?;
        let mut item = items.pop().filter(|_| items.is_empty() && bytes.is_empty())?;
        if let Item::Traced(frame) = &mut item
            && let Some(trace) = frame.trace_mut()
        {
            trace.stamp_received(own.uuid, own.role, nanoseconds(wall));
        }
        Some(item)
    }
}
