//! A server's events in a channel, for applications that `select!`.

use crossbeam_channel::{Receiver, Sender, TrySendError};

use super::{Context, DisconnectReason, Handler, HeldFrame, Request, SessionInfo};
use crate::proto::Frame;

/// What happens at a server, as a [`Handler`] is told it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum ServerEvent {
    /// See [`Handler::connected`].
    Connected(SessionInfo),
    /// See [`Handler::disconnected`].
    Disconnected(SessionInfo, DisconnectReason),
    /// See [`Handler::frame`].
    Frame(SessionInfo, Frame),
    /// See [`Handler::request`]; answer with
    /// [`ServerHandle::reply`](super::ServerHandle::reply).
    Request(SessionInfo, Request),
    /// See [`Handler::expired`].
    Expired(HeldFrame),
    /// So many events before this one found the channel full, and are lost.
    Missed(u64),
}

/// A handler that puts everything that it is told into a channel, and the
/// channel's end. What is to be done about it is done with a
/// [`ServerHandle`](super::ServerHandle).
///
/// The channel has room for `capacity` events, which take memory at once. A
/// dispatcher never blocks: an event that finds the channel full is lost,
/// and the next one that fits comes after a [`ServerEvent::Missed`] that says
/// how many were. Where no event may be lost, write a [`Handler`].
///
/// ```
/// # #[cfg(feature = "issue")] {
/// use ssntp::pki::{Authority, AuthorityRequest, CertificateRequest};
/// use ssntp::server::{Server, ServerConfig, ServerEvent};
/// use ssntp::transport::memory::MemoryListener;
/// use ssntp::{Client, ClientConfig, Role};
///
/// let authority = Authority::new(&AuthorityRequest::default())?;
/// let identity = |role| authority.issue(&CertificateRequest::new(role)).map(|i| i.identity());
/// let place = MemoryListener::new();
/// let (handler, events) = ssntp::server::channel(1024);
/// let config = ServerConfig::new(identity(Role::SERVER)?, authority.trust());
/// let server = Server::start(config.listen_in_memory(&place), handler)?;
///
/// let config = ClientConfig::new(identity(Role::AGENT)?, authority.trust());
/// let client = Client::connect(config.connect_in_memory(&place))?;
/// crossbeam_channel::select! {
///     recv(events) -> event => assert!(matches!(event?, ServerEvent::Connected(_))),
/// }
/// # }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn channel(capacity: usize) -> (ChannelHandler, Receiver<ServerEvent>) {
    // After a gap two events go in together, `Missed` and the one that
    // follows it.
    let (events, receiver) = crossbeam_channel::bounded(capacity.max(2));
    (ChannelHandler { events, missed: 0 }, receiver)
}

/// See [`channel`].
#[derive(Debug)]
pub struct ChannelHandler {
    events: Sender<ServerEvent>,
    missed: u64,
}

impl ChannelHandler {
    fn put(&mut self, event: ServerEvent) {
        if self.missed > 0 {
            match self.events.try_send(ServerEvent::Missed(self.missed)) {
                Ok(()) => self.missed = 0,
                Err(_) => return self.missed += 1,
            }
        }
        if let Err(TrySendError::Full(_)) = self.events.try_send(event) {
            self.missed += 1;
        }
    }
}

impl Handler for ChannelHandler {
    fn connected(&mut self, _: &mut Context<'_>, session: &SessionInfo) {
        self.put(ServerEvent::Connected(session.clone()));
    }

    fn disconnected(&mut self, _: &mut Context<'_>, session: &SessionInfo, reason: &DisconnectReason) {
        self.put(ServerEvent::Disconnected(session.clone(), reason.clone()));
    }

    fn frame(&mut self, _: &mut Context<'_>, from: &SessionInfo, frame: Frame) {
        self.put(ServerEvent::Frame(from.clone(), frame));
    }

    fn request(&mut self, _: &mut Context<'_>, from: &SessionInfo, request: Request) {
        self.put(ServerEvent::Request(from.clone(), request));
    }

    fn expired(&mut self, _: &mut Context<'_>, held: HeldFrame) {
        self.put(ServerEvent::Expired(held));
    }
}
