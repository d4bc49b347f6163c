//! Connections to servers: identity, echoes, and received messages.

use std::fmt::Display;
use std::time::Instant;

use log::{debug, info, warn};

use super::ElementCore;
use super::event::{ElementAction, ElementEvent, Health};
use super::pool::Need;
use crate::message::{ErrorCode, ErrorResponse, IdentityResult, Incoming, Method, Reply, Request, Role};
use crate::peer::{CloseReason, ConnectionId, Due};
use crate::rpc::{Frame, Id};
use ssntp_transport::excerpt;

/// The number of the request that sends the identity: the first one on each connection.
const IDENTITY_XID: u64 = 1;

impl ElementCore {
    /// Begins the session on a connection that was dialled and is open now.
    pub fn handle_connected(&mut self, now: Instant, connection: ConnectionId) {
        if !self.pool.connected(connection, &self.settings, now) {
            return;
        }
        self.emit_peer(connection);
        self.actions.echo(connection, 0, now);
        // Sent together with the echo, as libopflex does.
        let identity = self.settings.identity(self.location.as_ref());
        let id = Id::call(Method::SendIdentity.name(), IDENTITY_XID);
        self.actions.send(
            connection,
            Request::SendIdentity(Box::new(identity)).to_frame(&id),
        );
        self.settle(now);
    }

    /// A connection has ended, or could not be made. `why` is the reason, for events and for the log.
    /// Has no effect if the connection is unknown or was closed by the element.
    pub fn handle_disconnected(&mut self, now: Instant, connection: ConnectionId, why: String) {
        self.lost(connection, CloseReason::Failed(why), now);
        self.settle(now);
    }

    /// Bytes of a server arrived, perhaps only a part of a message. They show that it is alive.
    pub fn handle_bytes(&mut self, now: Instant, connection: ConnectionId) {
        self.pool.received(connection, now);
    }

    /// Handles a received message.
    pub fn handle_message(&mut self, now: Instant, connection: ConnectionId, message: Incoming) {
        // The connection was closed, and earlier messages of it are still in the queue.
        if self.pool.address(connection).is_none() {
            return;
        }
        self.pool.received(connection, now);
        let ready = self.pool.roles(connection).is_some();
        match message {
            Incoming::Request { id, request } => {
                let method = request.method();
                if ready || method.needs_no_identity() {
                    self.request(connection, &id, request, now);
                } else {
                    self.too_early(connection, &id, Some(method), now);
                }
            }
            Incoming::Refused { id, method, error } => {
                if ready || method.is_some_and(Method::needs_no_identity) {
                    self.actions.send(connection, Frame::failure(&id, &error));
                } else {
                    self.too_early(connection, &id, method, now);
                }
            }
            Incoming::Stray { .. } => {}
            answer => match answer.answers() {
                Some(Method::Echo) => {}
                Some(method) if !ready && method != Method::SendIdentity => {
                    self.close(connection, CloseReason::ResponseBeforeIdentity(method), now);
                }
                _ => self.answered(connection, answer, now),
            },
        }
        self.settle(now);
    }

    /// Dials, sends echoes and closes connections whose time is over, as far as due.
    pub(super) fn pool_due(&mut self, now: Instant) {
        while let Some(need) = self.pool.need(now) {
            match need {
                Need::Dial(address) => {
                    if let Some(connection) = self.pool.dial(&address, &self.settings, now) {
                        self.actions.push(ElementAction::Dial { connection, address });
                        self.emit_peer(connection);
                    }
                }
                Need::Connection(connection, Due::Echo(number)) => self.actions.echo(connection, number, now),
                Need::Connection(connection, Due::Close(reason)) => self.close(connection, reason, now),
            }
        }
    }

    /// Updates the health and the fallback. Call it after each event.
    pub(super) fn settle(&mut self, now: Instant) {
        self.pool.settle(&self.settings, now);
        self.update_health();
    }

    /// Computes the health, and emits an event if it has changed.
    pub(super) fn update_health(&mut self) {
        let most = match self.items.alarms() {
            0 => Health::Healthy,
            _ => Health::Degraded,
        };
        // With an alarm, the health is degraded at best.
        let health = self.pool.health().min(most);
        if health != self.health {
            self.health = health;
            self.emit(ElementEvent::Health { health });
        }
    }

    /// Handles an answer, which is not to an echo, and is allowed in the present state.
    fn answered(&mut self, connection: ConnectionId, answer: Incoming, now: Instant) {
        match answer {
            Incoming::Result { id, reply } => match reply {
                Reply::SendIdentity(identity) => self.identified(connection, &identity, now),
                reply => self.answer(connection, &id, reply, now),
            },
            Incoming::Failure { id, method, error } if method != Method::SendIdentity => {
                self.refused(connection, &id, method, error, now);
            }
            Incoming::BadResult { method, fault, .. } if method != Method::SendIdentity => {
                let text = format_args!("the result of {method} can't be used: {fault}");
                self.warn(connection, "bad result", text, now);
            }
            // The connection is useless without the identity of the server.
            Incoming::Failure { error, .. } => {
                self.close(connection, CloseReason::IdentityRefused(error), now);
            }
            Incoming::BadResult { fault, .. } => {
                self.close(connection, CloseReason::BadIdentity(fault), now);
            }
            Incoming::Request { .. } | Incoming::Refused { .. } | Incoming::Stray { .. } => {}
        }
    }

    fn request(&mut self, connection: ConnectionId, id: &Id, request: Request, now: Instant) {
        let method = request.method();
        let result = match request {
            Request::Echo(echo) => return self.actions.send(connection, Frame::result(id, &echo.answer())),
            Request::Update(what, updates) => self.updated(what, updates, now),
            _ => Err(ErrorResponse::boxed(
                ErrorCode::EUNSUPPORTED,
                format_args!("a policy element does not take {method}"),
            )),
        };
        match result {
            Ok(()) if self.settings.acknowledge_updates => {
                self.actions.send(connection, Reply::done(method).to_frame(id))
            }
            Ok(()) => {}
            Err(error) => {
                debug!("{connection}: refused: {}", excerpt(&error));
                self.actions.send(connection, Frame::failure(id, &error));
            }
        }
    }

    fn too_early(&mut self, connection: ConnectionId, id: &Id, method: Option<Method>, now: Instant) {
        let error = ErrorResponse::new(ErrorCode::ESTATE, "the identity must be sent first");
        self.actions.send(connection, Frame::failure(id, &error));
        self.close(connection, CloseReason::RequestBeforeIdentity(method), now);
    }

    /// Handles the identity of a server and its list of servers.
    fn identified(&mut self, connection: ConnectionId, identity: &IdentityResult, now: Instant) {
        if self.pool.roles(connection).is_some() {
            // The element sends its identity once per connection, so this answers no request.
            return;
        }
        let address = self.pool.address(connection).unwrap_or_default().to_owned();
        // Checked before any part of the identity is used.
        if let Some(fault) = fault_of(identity, &address) {
            return self.close(connection, CloseReason::BadIdentity(fault), now);
        }
        if let Some(proxies) = identity.proxies()
            && self.proxies.as_ref() != Some(&proxies)
        {
            self.proxies = Some(proxies.clone());
            self.emit(ElementEvent::Proxies(proxies));
        }
        if self.settings.require_proxies && self.proxies.is_none() {
            let fault = "it has no proxies".to_owned();
            return self.close(connection, CloseReason::BadIdentity(fault), now);
        }
        if let Some(location) = &identity.your_location
            && self.location.as_ref() != Some(location)
        {
            self.location = Some(location.clone());
            let location = location.clone();
            self.emit(ElementEvent::Location { location });
        }
        // The location and the proxies are used also if the server lists only other servers.
        let is_usable = self.pool.identified(connection, identity);
        let name = identity.name.as_deref().unwrap_or("(no name)");
        let roles: Vec<&str> = identity.my_role.iter().map(Role::name).collect();
        info!(
            "{address} is the server {} with the roles {}",
            excerpt(name),
            excerpt(roles.join(" "))
        );
        if is_usable {
            self.actions.push(ElementAction::Identified { connection });
            self.emit_peer_state(address, None);
            self.request_all_from(connection, &identity.my_role, now);
        } else {
            let reason = CloseReason::NotInItsList;
            info!("{address}: {reason}");
            self.actions.push(ElementAction::Close {
                connection,
                reason: reason.clone(),
            });
            self.emit_peer_state(address, Some(reason));
        }
        // After the server itself, which may have been parked just now.
        for (address, connection) in self.pool.learn(now) {
            let reason = CloseReason::NotListed;
            if let Some(connection) = connection {
                self.items.connection_ended(connection);
                self.actions.push(ElementAction::Close {
                    connection,
                    reason: reason.clone(),
                });
            }
            self.emit_peer_state(address, Some(reason));
        }
    }

    /// Handles a result.
    fn answer(&mut self, connection: ConnectionId, id: &Id, reply: Reply, now: Instant) {
        let request = id
            .xid()
            .and_then(|xid| Some((xid, self.items.unanswered_item(connection, xid)?)));
        let Some((xid, key)) = request else {
            // It answers an unresolve, an undeclare, or a request that was replaced.
            return;
        };
        // A server could send a result of another method with this number.
        let method = reply.method();
        if method != key.method() {
            let text = format_args!("an answer to {method} has the number of another request");
            return self.warn(connection, "other number", text, now);
        }
        if let Reply::Resolve(_, objects) = reply {
            // A dropped answer counts as no answer, so the request is repeated.
            match self.resolved(&key, objects, now) {
                Ok(()) => self.items.answered(connection, xid),
                Err(fault) => {
                    let text = format_args!("the answer about {} was dropped: {fault}", key.about());
                    self.warn(connection, "dropped answer", text, now);
                }
            }
            return;
        }
        self.items.answered(connection, xid);
        if let Some(item) = self.items.get_mut(&key) {
            item.answered = true;
        }
    }

    /// Handles an error. The request is repeated as if it had no answer.
    fn refused(
        &mut self,
        connection: ConnectionId,
        id: &Id,
        method: Method,
        error: ErrorResponse,
        now: Instant,
    ) {
        let key = id
            .xid()
            .and_then(|xid| self.items.unanswered_item(connection, xid));
        let about = key.map_or_else(String::new, |key| key.about());
        let address = self.pool.address(connection).unwrap_or_default().to_owned();
        let text = format_args!("{method} {about} was refused: {error}");
        self.warn(connection, "refused", text, now);
        self.emit(ElementEvent::Refused {
            address,
            method,
            about,
            error,
        });
    }

    fn close(&mut self, connection: ConnectionId, reason: CloseReason, now: Instant) {
        self.actions.push(ElementAction::Close {
            connection,
            reason: reason.clone(),
        });
        self.lost(connection, reason, now);
    }

    fn lost(&mut self, connection: ConnectionId, reason: CloseReason, now: Instant) {
        if let Some(address) = self.pool.address(connection).map(str::to_owned) {
            self.warn(connection, "lost", &reason, now);
            // The requests are sent again when the server is ready the next time.
            self.items.connection_ended(connection);
            self.pool.failed(connection, &self.settings, now);
            self.emit_peer_state(address, Some(reason));
        }
    }

    /// Logs a warning that a server has caused, within the limit of such lines.
    fn warn(&mut self, connection: ConnectionId, kind: &'static str, text: impl Display, now: Instant) {
        let address = self.pool.address(connection).unwrap_or_default();
        if let Some(more) = self.log.admit(address.to_owned(), kind, now) {
            warn!("{address} ({connection}): {}{more}", excerpt(text));
        }
    }

    fn emit_peer(&mut self, connection: ConnectionId) {
        if let Some(address) = self.pool.address(connection) {
            self.emit_peer_state(address.to_owned(), None);
        }
    }

    fn emit_peer_state(&mut self, address: String, reason: Option<CloseReason>) {
        let state = self.pool.state(&address);
        self.emit(ElementEvent::Peer {
            address,
            state,
            reason,
        });
    }
}

/// The reason for which an identity can't be used, if any: an address that can't be dialled, or a
/// text or a list that is too long. `own` is the address that was dialled, which is always accepted.
/// Other Unix sockets are not accepted, so a server can't make an element dial a local program.
fn fault_of(identity: &IdentityResult, own: &str) -> Option<String> {
    // Without these limits a server could fill the memory.
    const MAX_PEERS: usize = 1024;
    const MAX_TEXT: usize = 1024;

    let texts = [&identity.your_location, &identity.name, &identity.domain]
        .into_iter()
        .flatten();
    let roles = identity.my_role.iter().map(|role| role.name().len());
    let addresses = identity.peers.iter().map(|peer| peer.connectivity_info.len());
    let proxies = identity.proxies();
    let proxies = proxies.iter().flat_map(|p| [p.v4.len(), p.v6.len(), p.mac.len()]);
    let longest = texts
        .map(String::len)
        .chain(roles)
        .chain(addresses)
        .chain(proxies)
        .max();
    if identity.peers.len() > MAX_PEERS || identity.my_role.len() > MAX_PEERS || longest > Some(MAX_TEXT) {
        return Some("a text or a list in it is too long".to_owned());
    }
    let bad = identity
        .peers
        .iter()
        .find(|peer| peer.connectivity_info != own && !is_address(&peer.connectivity_info))?;
    Some(format!("{:?} is not host:port", bad.connectivity_info))
}

/// True if a text is `host:port` with a port from 1 to 65535.
fn is_address(text: &str) -> bool {
    text.rsplit_once(':')
        .is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port != 0))
}
