//! Whom a frame can reach, and the way there: the sessions of this server, and over links those of others.
//!
//! It owns both indexes of sessions, the way out, and the requests of the server itself that wait for answers. It
//! never knows why a frame is sent: rules, answers and the application ask for it.
//!
//! A server keeps no state for requests that it forwards: the client that asks chooses the number, and the
//! server replaces the UUID in the frame with that of the sender.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use log::debug;
use uuid::Uuid;

use super::directory::Directory;
use super::error::SendError;
use super::links::{Forwarded, Links, Receivers};
use super::own::OwnServer;
use super::parcel::Parcel;
use super::sending::Sending;
use super::sessions::{SessionInfo, Sessions};
use super::time::Moment;
use crate::proto::Frame;
use crate::request::{Awaited, Outstanding, Request, RequestError};
use ssntp_pki::Role;
use ssntp_transport::Load;

/// The maximum number of requests of the server itself that wait for answers.
const MAX_ASKING: usize = 1024;

/// The sessions that can be reached, and the way to them.
pub(super) struct Delivery {
    pub(super) own: Arc<OwnServer>,
    pub(super) sessions: Sessions,
    pub(super) links: Links,
    pub(super) out: Sending,
    /// The time of the present call of the core.
    pub(super) time: Moment,
    /// The requests of the server itself that wait for answers.
    pub(super) asked: Outstanding,
}

impl Delivery {
    pub(super) fn new(own: &Arc<OwnServer>, idle_limit: Option<Duration>, now: Instant) -> Self {
        Self {
            own: Arc::clone(own),
            sessions: Sessions::new(idle_limit, now),
            links: Links::new(Arc::clone(own)),
            out: Sending::new(),
            time: Moment {
                now,
                wall: SystemTime::UNIX_EPOCH,
            },
            asked: Outstanding::new(MAX_ASKING),
        }
    }

    pub(super) fn directory(&self) -> Directory<'_> {
        Directory::new(&self.sessions, self.links.roster())
    }

    /// A frame that leaves now, for several receivers.
    pub(super) fn parcel(&self, frame: &Frame) -> Parcel {
        Parcel::frame(frame, &self.own, self.time.wall)
    }

    /// A frame of the application.
    ///
    /// # Errors
    /// The application may not send frames of this kind, or of this length.
    pub(super) fn checked(&self, frame: &Frame) -> Result<Parcel, SendError> {
        if !self.own.operands.may_be_sent(frame.kind()) {
            return Err(SendError::Kind(frame.kind()));
        }
        self.own.check_length(frame.payload_bytes().len())?;
        Ok(self.parcel(frame))
    }

    /// Sends frames to one session, of this server or of another one. `from` is the client that the
    /// frames came from; it is an error to send them back to it.
    pub(super) fn send(
        &mut self,
        from: Option<Uuid>,
        to: Uuid,
        parcel: &mut Parcel,
    ) -> Result<(), SendError> {
        if Some(to) == from {
            Err(SendError::ToSender(to))
        } else if self.send_here(to, parcel) {
            Ok(())
        } else {
            self.links.send_to(to, from, parcel, &mut self.out)
        }
    }

    /// Sends frames to one session of this server. False if there is none of that UUID.
    fn send_here(&mut self, to: Uuid, parcel: &mut Parcel) -> bool {
        let session = self.sessions.of(to);
        if let Some(session) = session {
            let item = parcel.for_session(session);
            self.out.push(session.info.id, parcel.kind(), item);
        }
        session.is_some()
    }

    /// Sends frames to every session with a role, except to `from`. Returns the number of sessions.
    pub(super) fn send_to_role(&mut self, from: Option<Uuid>, to: Role, parcel: &mut Parcel) -> usize {
        let here = self.send_to_role_here(from, to, parcel);
        here + self.links.send_to_role(to, from, parcel, &mut self.out)
    }

    /// As [`send_to_role`](Self::send_to_role), only to sessions of this server.
    fn send_to_role_here(&mut self, from: Option<Uuid>, to: Role, parcel: &mut Parcel) -> usize {
        let (before, mut sent) = (self.out.len(), Load::default());
        for session in self.sessions.with_role(to) {
            if Some(session.info.uuid) != from {
                let item = parcel.for_session(session);
                sent += item.load();
                self.out.send(session.info.id.0, item);
            }
        }
        let count = self.out.len() - before;
        // Counted once for all receivers, because a thousand look-ups of the kind would take time.
        self.out.count_sent(parcel.kind(), sent);
        count
    }

    /// Sends frames from another server to their receivers among this server's sessions. Returns the number
    /// of receivers.
    pub(super) fn deliver(&mut self, forwarded: &Forwarded) -> usize {
        let Some(mut parcel) = Parcel::of(&forwarded.item, &self.own, self.time.wall) else {
            return 0;
        };
        match &forwarded.to {
            Receivers::Sessions(uuids) => {
                let sent = uuids.iter().filter(|uuid| self.send_here(**uuid, &mut parcel));
                sent.count()
            }
            Receivers::Role(role) => self.send_to_role_here(Some(forwarded.from), *role, &mut parcel),
            Receivers::Application => 0,
        }
    }

    /// Sends a request of the server itself.
    pub(super) fn ask(&mut self, addressee: Uuid, frame: &Frame) -> Result<Awaited, RequestError> {
        if !self.own.operands.is_request(frame.kind()) {
            return Err(RequestError::Kind(frame.kind()));
        }
        // An answer to a server goes no further than to the server of the client that sends it.
        if self.sessions.of(addressee).is_none() {
            return Err(RequestError::NotConnected);
        }
        let (asking, awaited) = self.asked.ask(addressee, self.own.uuid, frame)?;
        match self.send_within_limit(addressee, &asking) {
            Ok(()) => Ok(awaited),
            Err(SendError::TooLong { len, limit }) => Err(RequestError::TooLong { len, limit }),
            Err(_) => Err(RequestError::NotConnected),
        }
    }

    /// Sends an answer, or a refusal with its reason, to the client that asked; in the name of `addressee`, or of the
    /// server itself.
    pub(super) fn respond(
        &mut self,
        request: &Request,
        addressee: Option<Uuid>,
        answer: Result<Bytes, &str>,
    ) -> Result<(), SendError> {
        let answer = request.answer(addressee.unwrap_or(self.own.uuid), answer);
        self.send_within_limit(request.from(), &answer)
    }

    /// Sends a refusal in the name of `addressee`, or of the server itself.
    pub(super) fn refuse(&mut self, request: &Request, addressee: Option<Uuid>, why: &str) {
        if let Err(e) = self.respond(request, addressee, Err(why)) {
            debug!(target: "ssntp::server", "a refusal is dropped: {e}");
        }
    }

    /// Sends a frame of the server itself, unless it is too long.
    fn send_within_limit(&mut self, to: Uuid, frame: &Frame) -> Result<(), SendError> {
        self.own.check_length(frame.payload_bytes().len())?;
        let mut parcel = self.parcel(frame);
        self.send(None, to, &mut parcel)
    }

    /// Sends frames of a session of this server to the application of another server.
    pub(super) fn pass_to(
        &mut self,
        server: Uuid,
        from: &SessionInfo,
        parcel: &Parcel,
    ) -> Result<(), SendError> {
        self.links
            .send_to_application(server, from.uuid, parcel, &mut self.out)
    }
}
