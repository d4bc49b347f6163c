//! The frames that are sent over links.
//!
//! ```text
//!  a frame for a UUID of another server ─▶ FORWARD to that session ─────────┐
//!  a frame for a role ─▶ one FORWARD for each link with such a session ─────┼─▶ link
//!  a frame for another server's application ─▶ FORWARD to the application ──┘
//! ```

use bytes::Bytes;
use uuid::Uuid;

use super::Links;
use super::frames::{Forward, LinkFrame, Receivers};
use crate::server::error::SendError;
use crate::server::parcel::Parcel;
use crate::server::sending::Sending;
use ssntp_pki::Role;
use ssntp_transport::dispatch::Origin;
use ssntp_transport::{ConnectionId, Outgoing};

impl Links {
    fn encode(&self, from: Option<Uuid>, to: Receivers, parcel: &Parcel, out: &Sending) -> Outgoing {
        let (traced, frames) = parcel.for_link();
        let forward = Forward {
            token: self.acting,
            // The session of this server whose frames are being handled, or 0.
            number: match out.origin() {
                Origin::Connection(session) => session.0,
                _ => 0,
            },
            from: from.unwrap_or_default(),
            to,
            traced,
            frames,
        };
        Outgoing::whole(LinkFrame::Forward { forward }.encode(), parcel.frames())
    }

    /// Sends frames to a session of another server.
    ///
    /// # Errors
    /// [`SendError::NotConnected`] if no other server has a session of that UUID.
    pub(crate) fn send_to(
        &self,
        to: Uuid,
        from: Option<Uuid>,
        parcel: &Parcel,
        out: &mut Sending,
    ) -> Result<(), SendError> {
        let row = self.roster.get(to);
        let link = row.and_then(|row| self.to(row.info.server));
        let link = link.ok_or(SendError::NotConnected(to))?;
        let item = self.encode(from, Receivers::Sessions(vec![to]), parcel, out);
        out.send(link, item);
        Ok(())
    }

    /// Sends frames of a session of this server to the application of another server.
    ///
    /// # Errors
    /// [`SendError::NotConnected`] if there is no link to that server.
    pub(crate) fn send_to_application(
        &self,
        server: Uuid,
        from: Uuid,
        parcel: &Parcel,
        out: &mut Sending,
    ) -> Result<(), SendError> {
        // Before the snapshots are exchanged, the other server does not know the session.
        let link = self.to(server);
        let is_linked = |link: &ConnectionId| self.table.get(*link).is_some_and(|link| link.linked);
        let link = link.filter(is_linked).ok_or(SendError::NotConnected(server))?;
        let item = self.encode(Some(from), Receivers::Application, parcel, out);
        out.send(link, item);
        Ok(())
    }

    /// Sends frames once over each link whose server has sessions with one of the roles. Returns the
    /// number of these sessions.
    pub(crate) fn send_to_role(
        &self,
        to: Role,
        from: Option<Uuid>,
        parcel: &Parcel,
        out: &mut Sending,
    ) -> usize {
        // Encoded once, and only if a link needs it.
        let (mut item, mut count) = (None, 0);
        for (id, link) in self.table.iter() {
            let receivers = self.roster.count(link.server.uuid, to, from);
            if receivers > 0 {
                let encode = || self.encode(from, Receivers::Role(to), parcel, out);
                out.send(id, item.get_or_insert_with(encode).clone());
                count += receivers;
            }
        }
        count
    }

    /// Sends a message to the application of another server.
    ///
    /// # Errors
    /// [`SendError::NotConnected`] if there is no link to that server; [`SendError::TooLong`].
    pub(crate) fn tell(&self, server: Uuid, message: Bytes, out: &mut Sending) -> Result<(), SendError> {
        self.own.check_length(message.len())?;
        let (link, token) = (self.to(server), self.acting);
        let link = link.ok_or(SendError::NotConnected(server))?;
        super::send(link, &LinkFrame::Tell { token, message }, out);
        Ok(())
    }
}
