//! The requests of the server itself, and those that wait for a new certificate.
//!
//! A server keeps no state for requests that it forwards: the client that asks chooses the number, and the
//! server replaces the UUID in the frame with that of the sender.

use std::sync::Arc;
use std::time::SystemTime;

use crossbeam_channel::Sender;
use uuid::Uuid;

use super::delivery::Delivery;
use super::error::SendError;
use super::own::OwnServer;
use super::sessions::SessionInfo;
use crate::proto::{Exchange, Frame};
use crate::request::{Awaited, Outstanding, Request, RequestError};

/// The maximum number of requests of the server itself that wait for answers.
const MAX_ASKING: usize = 1024;

/// A request of a session for a new certificate.
pub(super) type Renewal = (SessionInfo, Request);

/// The requests that wait.
pub(super) struct Requests {
    own: Arc<OwnServer>,
    /// The requests of the server itself that wait for answers.
    asked: Outstanding,
    /// The way to the thread that renews certificates, if there is one.
    renewals: Option<Sender<Renewal>>,
}

impl Requests {
    pub(super) fn new(own: Arc<OwnServer>, renewals: Option<Sender<Renewal>>) -> Self {
        Self {
            own,
            asked: Outstanding::new(MAX_ASKING),
            renewals,
        }
    }

    /// Sends a request of the server itself.
    pub(super) fn ask(
        &mut self,
        addressee: Uuid,
        frame: &Frame,
        delivery: &mut Delivery,
        wall: SystemTime,
    ) -> Result<Awaited, RequestError> {
        if !self.own.operands.is_request(frame.kind()) {
            return Err(RequestError::Kind(frame.kind()));
        }
        // An answer to a server goes no further than to the server of the client that sends it.
        if delivery.sessions.of(addressee).is_none() {
            return Err(RequestError::NotConnected);
        }
        let (asking, awaited) = self.asked.ask(addressee, self.own.uuid, frame)?;
        let sent = self
            .own
            .check_length(asking.payload_bytes().len())
            .and_then(|()| {
                let mut parcel = delivery.parcel(&asking, wall);
                delivery.send(None, addressee, &mut parcel)
            });
        match sent {
            Ok(()) => Ok(awaited),
            Err(SendError::TooLong { len, limit }) => Err(RequestError::TooLong { len, limit }),
            Err(_) => Err(RequestError::NotConnected),
        }
    }

    /// Handles an answer to a request of the server itself.
    pub(super) fn handle_answer(&mut self, from: Uuid, exchange: &Exchange, frame: &Frame) {
        self.asked.settle(from, exchange, frame);
    }

    /// Gives up the requests to a client that has left.
    pub(super) fn cancel(&mut self, of: Uuid) {
        self.asked.cancel(Some(of));
    }

    /// Hands a request for a new certificate to the thread that renews certificates, which answers it.
    ///
    /// # Errors
    /// The reason to refuse it.
    pub(super) fn renew_certificate(
        &self,
        info: &SessionInfo,
        request: &Request,
    ) -> Result<(), &'static str> {
        let Some(renewals) = &self.renewals else {
            return Err("this server renews no certificates");
        };
        // Copied, because the request may wait, and its payload is a slice of a receive buffer.
        let asked = (info.clone(), request.clone().copied());
        renewals.try_send(asked).map_err(|_| "queue_full")
    }
}
