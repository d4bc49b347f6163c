//! A handler that sends a server's events to a channel, for applications that use `select!`.

use crossbeam_channel::{Receiver, Sender};

use super::context::Context;
use super::disconnect::DisconnectReason;
use super::handler::Handler;
use super::sessions::SessionInfo;
use crate::proto::Frame;
use crate::request::Request;

/// An event of a server, corresponding to a method of [`Handler`].
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
    /// This number of events before this one found the channel full and are lost.
    Missed(u64),
}

/// A handler that sends all its events to a channel, and the receiver of the channel. Use a
/// [`ServerHandle`](super::ServerHandle) to react to events.
///
/// The channel has room for `capacity` events; its memory is allocated now. The dispatcher never blocks:
/// an event that finds the channel full is lost, and [`ServerEvent::Missed`] with the number of lost
/// events precedes the next event that finds room. A lost request is refused with `queue_full`. If no
/// event may be lost, write a [`Handler`].
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
pub fn channel(capacity: usize) -> (impl Handler, Receiver<ServerEvent>) {
    // Room for `Missed` and the event after it.
    let (events, receiver) = crossbeam_channel::bounded(capacity.max(2));
    (ChannelHandler { events, missed: 0 }, receiver)
}

/// The handler that [`channel`] returns.
struct ChannelHandler {
    events: Sender<ServerEvent>,
    missed: u64,
}

impl ChannelHandler {
    /// Returns false if the event is lost.
    fn send(&mut self, event: ServerEvent) -> bool {
        if self.missed > 0 && self.events.try_send(ServerEvent::Missed(self.missed)).is_ok() {
            self.missed = 0;
        }
        let is_sent = self.missed == 0 && self.events.try_send(event).is_ok();
        self.missed += u64::from(!is_sent);
        is_sent
    }
}

impl Handler for ChannelHandler {
    fn connected(&mut self, _: &mut Context<'_>, session: &SessionInfo) {
        self.send(ServerEvent::Connected(session.clone()));
    }

    fn disconnected(&mut self, _: &mut Context<'_>, session: &SessionInfo, reason: &DisconnectReason) {
        self.send(ServerEvent::Disconnected(session.clone(), reason.clone()));
    }

    fn frame(&mut self, _: &mut Context<'_>, from: &SessionInfo, frame: Frame) {
        self.send(ServerEvent::Frame(from.clone(), frame));
    }

    fn request(&mut self, cx: &mut Context<'_>, from: &SessionInfo, request: Request) {
        if !self.send(ServerEvent::Request(from.clone(), request.clone())) {
            // A client that has gone meanwhile needs no answer.
            let _ = cx.refuse(&request, "queue_full");
        }
    }
}
