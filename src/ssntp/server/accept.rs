//! Newcomers: brought through TLS and CONNECT on a worker, under one deadline
//! each.
//!
//! ```text
//!  transport::Acceptance ─▶ worker: TLS ─▶ CONNECT ─▶ Event::Admit ─▶ dispatcher
//!                                                        │ Ok(Admitted)
//!                                                        ▼
//!                                       Link::start, Event::Started in any case
//! ```

use std::io;
use std::net::Shutdown;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use log::info;

use super::config::Shared;
use super::dispatcher::{Admit, Event};
use super::events::Events;
use super::sessions::{Gate, SessionId};
use crate::Role;
use crate::pki::CertificateInfo;
use crate::proto::{Codec, Connect, ErrorCode, Frame, Item, ProtocolError, Refusal, ServerHandshake};
use crate::ssntp::wire::{outgoing, unix_nanos};
use crate::transport::tls::TlsError;
use crate::transport::{
    Acceptance, Decode, Duplex, EndReason, Halves, Link, LinkConfig, Listener, Newcomer, Outbox, Sink, after,
};

/// How long after a refusal the peer may take to read it.
const LINGER: Duration = Duration::from_secs(1);
/// Starts to accept clients at the listeners.
pub(super) fn start(
    listeners: Vec<Listener>,
    shared: Arc<Shared>,
    max_handshakes: usize,
    events: Events<Event>,
) -> io::Result<Acceptance> {
    let serve = Box::new(move |newcomer: &Newcomer| serve(&shared, &events, newcomer));
    Acceptance::start(listeners, "ssntp", "ssntp::server", max_handshakes, serve)
}

/// Brings one newcomer in, or refuses it.
fn serve(shared: &Arc<Shared>, events: &Events<Event>, newcomer: &Newcomer) {
    let deadline = after(newcomer.accepted(), shared.handshake_timeout);
    let peer = newcomer.peer();
    let stream = newcomer.stream();
    let secured = match shared
        .acceptor
        .accept(Arc::clone(&stream), &shared.pool, deadline)
    {
        Ok(secured) => secured,
        Err(e) => {
            info!(target: "ssntp::server", "{peer}: no TLS: {e}");
            if matches!(e, TlsError::Tls(_)) {
                // The alert says why; let the peer read it.
                let _ = stream.shutdown(Shutdown::Write);
                drain(&*stream);
            }
            return;
        }
    };
    let mut halves = secured.halves;
    // The verifier demands a certificate, so one is there.
    let Some(leaf) = secured.peer.first() else { return };
    let certificate = match CertificateInfo::from_der(leaf) {
        Ok(certificate) => certificate,
        Err(e) => {
            info!(target: "ssntp::server", "{peer}: refused: {e}");
            return refuse(&mut halves, Some(ErrorCode::CONNECTION_ABORTED));
        }
    };
    let connect = match receive_connect(&mut halves, &certificate, deadline) {
        Ok(connect) => connect,
        Err(Ended::Refused(refusal)) => {
            info!(target: "ssntp::server", "{peer} ({}): refused: {refusal}", certificate.subject);
            return refuse(&mut halves, refusal.answer());
        }
        Err(Ended::Lost(_)) if newcomer.is_stopping() => {
            return refuse(&mut halves, Some(ErrorCode::CONNECTION_FAILURE));
        }
        Err(Ended::Lost(e)) => {
            info!(target: "ssntp::server", "{peer} ({}): lost before CONNECT: {e}", certificate.subject);
            return;
        }
    };
    let (reply, verdict) = crossbeam_channel::bounded(1);
    let admit = Admit {
        connect,
        certificate,
        address: peer,
        reply,
    };
    if events.send(Event::Admit(Box::new(admit))).is_err() {
        return refuse(&mut halves, Some(ErrorCode::CONNECTION_FAILURE));
    }
    // The dispatcher answers every request, also while it stops.
    let admitted = match verdict.recv() {
        Ok(Ok(admitted)) => admitted,
        Ok(Err(refusal)) => {
            info!(target: "ssntp::server",
                "{} ({}) at {peer}: refused: {refusal}",
                connect.source, connect.role
            );
            return refuse(&mut halves, refusal.answer());
        }
        Err(_) => return refuse(&mut halves, Some(ErrorCode::CONNECTION_FAILURE)),
    };
    let id = admitted.info.id();
    let mut admission = Admission::new(id, events.clone());
    let decoder = Decoder {
        codec: Codec::new(shared.max_payload, admitted.info.tracing()),
        gate: Arc::clone(&admitted.gate),
    };
    let sink = SessionSink {
        id,
        events: events.clone(),
        gate: admitted.gate,
        outbox: admitted.outbox.clone(),
        tracing: admitted.info.tracing().then(|| (shared.uuid, shared.role)),
    };
    let config = LinkConfig {
        name: id.to_string(),
        write_timeout: Some(shared.write_timeout),
        linger: LINGER,
        ..LinkConfig::default()
    };
    // CONNECTED goes out here, still under the watch over handshakes.
    admission.link = Some(Link::start(halves, decoder, admitted.outbox, sink, config));
    newcomer.admitted();
}

/// The dispatcher counts a session from when it admits it. Dropping this tells
/// it, whatever comes in between, that the session's threads run or never
/// will: so none stays that has none.
struct Admission {
    id: SessionId,
    events: Events<Event>,
    link: Option<io::Result<Link>>,
}

impl Admission {
    fn new(id: SessionId, events: Events<Event>) -> Self {
        Self {
            id,
            events,
            link: None,
        }
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        let link = self.link.take();
        let link = link.unwrap_or_else(|| Err(io::Error::other("its handshake was given up")));
        let _ = self.events.send(Event::Started(self.id, link));
    }
}

enum Ended {
    Refused(Refusal),
    Lost(io::Error),
}

fn receive_connect(
    halves: &mut Halves,
    certificate: &CertificateInfo,
    deadline: Instant,
) -> Result<Connect, Ended> {
    let handshake = ServerHandshake::new(certificate.roles, certificate.uuid);
    let mut end = false;
    loop {
        let input: &mut BytesMut = halves.inbox.bytes_mut();
        match handshake.receive(input) {
            Ok(Some(connect)) => return Ok(connect),
            Ok(None) => {}
            Err(refusal) => return Err(Ended::Refused(refusal)),
        }
        if end {
            return Err(Ended::Lost(io::ErrorKind::UnexpectedEof.into()));
        }
        let left = deadline.saturating_duration_since(now());
        if left.is_zero() {
            return Err(Ended::Refused(Refusal::Deadline));
        }
        let timed = halves.stream.set_read_timeout(Some(left));
        match timed.and_then(|()| halves.receive.receive(&mut halves.inbox)) {
            Ok(received) => {
                if received.flush {
                    halves.transmit.flush().map_err(Ended::Lost)?;
                }
                end = received.end;
            }
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                return Err(Ended::Refused(Refusal::Deadline));
            }
            Err(e) => {
                // A TLS fault has an alert to send; the rest is best effort.
                let _ = halves.transmit.flush();
                return Err(Ended::Lost(e));
            }
        }
    }
}

/// Tells the peer, ends the stream, and lets the peer read what it was told.
fn refuse(halves: &mut Halves, answer: Option<ErrorCode>) {
    let _ = halves.stream.set_write_timeout(Some(LINGER));
    if let Some(code) = answer {
        let _ = halves.transmit.transmit(&[outgoing(&Frame::new(code), false)]);
    }
    let _ = halves.transmit.finish();
    drain(&*halves.stream);
}

/// Reads until the peer ends its side, for a moment at most: closing a
/// socket that holds unread input would destroy what is on its way.
fn drain(stream: &dyn Duplex) {
    let end = now() + LINGER;
    let mut scratch = [0; 4096];
    loop {
        let left = end.saturating_duration_since(now());
        if left.is_zero() || stream.set_read_timeout(Some(left)).is_err() {
            return;
        }
        if !matches!(stream.read(&mut scratch), Ok(n) if n > 0) {
            return;
        }
    }
}

/// The codec, with its count of bad traces where the dispatcher sees it.
struct Decoder {
    codec: Codec,
    gate: Arc<Gate>,
}

impl Decode for Decoder {
    type Item = Item;
    type Error = ProtocolError;

    fn decode(&mut self, input: &mut BytesMut, items: &mut Vec<Item>) -> Result<(), ProtocolError> {
        let result = self.codec.decode(input, items);
        if self.codec.bad_traces() > 0 {
            self.gate
                .bad_traces
                .store(self.codec.bad_traces(), Ordering::Relaxed);
        }
        result
    }

    fn wanted(&self) -> usize {
        self.codec.wanted()
    }
}

/// Hands what a reader finds to the dispatcher.
struct SessionSink {
    id: SessionId,
    events: Events<Event>,
    gate: Arc<Gate>,
    outbox: Outbox,
    /// Who stamps, where the session agreed on tracing.
    tracing: Option<(uuid::Uuid, Role)>,
}

impl Sink<Item> for SessionSink {
    fn soon(&mut self) {
        self.events.hint(Event::Soon);
    }

    fn items(&mut self, items: &mut Vec<Item>, bytes: usize) -> bool {
        if let Some((uuid, role)) = self.tracing {
            for item in items.iter_mut() {
                if let Item::Traced(frame) = item
                    && let Some(trace) = frame.trace_mut()
                {
                    trace.stamp_received(uuid, role, unix_nanos());
                }
            }
        }
        self.gate.enter(bytes as u64);
        let event = Event::Items(self.id, std::mem::take(items), bytes, Arc::clone(&self.gate));
        if self.events.send(event).is_err() {
            return false;
        }
        self.gate.pass();
        true
    }

    fn ended(&mut self, reason: EndReason) {
        // What the client sent before its end may still be on its way through
        // the dispatcher, and be answered: the link's own end waits until the
        // dispatcher has come to this event and closed the queue.
        if self.events.send(Event::Ended(self.id, reason)).is_ok() {
            self.outbox.wait_until_closed(LINGER);
        }
    }

    fn finished(&mut self) {
        let _ = self.events.send(Event::Finished(self.id));
    }
}

#[expect(clippy::disallowed_methods, reason = "a handshake has a deadline")]
fn now() -> Instant {
    Instant::now()
}

#[cfg(test)]
#[cfg(all(feature = "issue", any(feature = "aws-lc-rs", feature = "ring")))]
mod tests {
    use std::mem::ManuallyDrop;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use crossbeam_channel::Sender;
    use uuid::Uuid;

    use super::super::dispatcher::Admitted;
    use super::super::{Context, DisconnectReason, Handler, Server, ServerConfig, SessionInfo};
    use super::*;
    use crate::pki::{Authority, AuthorityRequest, CertificateRequest};
    use crate::transport::memory::MemoryListener;
    use crate::transport::{PeerAddress, threads};

    const LIMIT: Duration = Duration::from_secs(20);

    /// Tells the test of every end.
    struct Ends(Sender<DisconnectReason>);

    impl Handler for Ends {
        fn disconnected(&mut self, _: &mut Context<'_>, _: &SessionInfo, why: &DisconnectReason) {
            let _ = self.0.send(why.clone());
        }
    }

    /// What a worker asks for once a client has said CONNECT.
    fn admit(server: &Server, certificate: &CertificateInfo) -> Result<Admitted, Refusal> {
        let (reply, verdict) = crossbeam_channel::bounded(1);
        let admit = Admit {
            connect: Connect::new(Role::AGENT, Uuid::new_v4(), false),
            certificate: certificate.clone(),
            address: PeerAddress::Memory,
            reply,
        };
        server.handle.events.send(Event::Admit(Box::new(admit))).unwrap();
        verdict.recv_timeout(LIMIT).unwrap()
    }

    #[test]
    fn a_session_whose_threads_are_never_started_gives_its_place_back() {
        let authority = Authority::new(&AuthorityRequest::default()).unwrap();
        let issue = |role| authority.issue(&CertificateRequest::new(role)).unwrap();
        let certificate = issue(Role::AGENT).info().clone();
        let (handler, ends) = crossbeam_channel::unbounded();
        let config = ServerConfig::new(issue(Role::SERVER).identity(), authority.trust())
            .listen_in_memory(&MemoryListener::new())
            .max_sessions(1);
        // A server that cannot stop fails the test, and does not hold it up.
        let server = ManuallyDrop::new(Server::start(config, Ends(handler)).unwrap());
        for panics in [false, true] {
            let admitted = admit(&server, &certificate).unwrap();
            assert!(admit(&server, &certificate).is_err(), "there is one place");
            let id = admitted.info.id();
            let events = server.handle.events.clone();
            let _ = catch_unwind(AssertUnwindSafe(|| {
                let _admission = Admission::new(id, events);
                assert!(!panics, "between consent and threads");
            }));
            let why = ends.recv_timeout(LIMIT).unwrap();
            assert!(matches!(why, DisconnectReason::Lost(_)), "{why:?}");
        }
        // One that nobody reports again, while the server stops.
        let admitted = admit(&server, &certificate).unwrap();
        let admission = Admission::new(admitted.info.id(), server.handle.events.clone());
        server.handle.events.send(Event::Stop).unwrap();
        assert_eq!(ends.recv_timeout(LIMIT), Ok(DisconnectReason::Stopped));
        drop(admission);
        let (done, stopped) = crossbeam_channel::bounded(1);
        let stopping = threads::spawn("stops", move || {
            ManuallyDrop::into_inner(server).stop();
            done.send(()).unwrap();
        });
        stopped.recv_timeout(LIMIT).expect("it does not stop");
        stopping.unwrap().join().unwrap();
    }
}
