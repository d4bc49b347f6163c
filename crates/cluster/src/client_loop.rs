//! The thread between a client and a service that does no I/O of its own (an agent or a
//! concentrator), and the owner's handle of that thread.
//!
//! ```text
//!  owner ─── requests ──▶ ┌────────────────┐ ─ events, one at a time ─▶ Service
//!  client ── events ────▶ │  client loop   │                              │
//!  workers ─ outcomes ──▶ │  (one thread)  │                              ▼
//!  clock ─── due ───────▶ └────────────────┘          client ◀─ frames ─ Uplink
//! ```

use std::io;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, after, bounded, never, select, unbounded};
use log::warn;

use ssntp::Role;
use ssntp::client::{Client, ClientError, ClientEvent, ClientHandle};
use ssntp::proto::Frame;
use ssntp_transport::threads::{self, Joined};
use ssntp_transport::{LogLimit, nap, now};

/// The maximum number of requests that wait in the loop's channel. Threads that call at the same moment may
/// exceed it by one each.
const REQUESTS: usize = 16;
/// The time limit of an owner's wait for the answer to a request.
const ANSWER: Duration = Duration::from_secs(5);
/// The time limit for sending the last frames when the loop ends.
const LAST_FRAMES: Duration = Duration::from_millis(300);

/// A service that a loop feeds with one event at a time, on the loop's thread.
pub trait Service {
    /// A request of its owner.
    type Request: Send + 'static;
    /// An outcome of its workers.
    type Outcome: Send + 'static;

    /// Handles an event. It must not block.
    fn handle(&mut self, uplink: &mut Uplink, event: Event<Self::Request, Self::Outcome>);

    /// The time of the next [`Event::Due`]; `None` if no event is due.
    fn deadline(&self) -> Option<Instant>;
}

/// An event for a service.
#[derive(Debug)]
pub enum Event<R, O> {
    /// The loop has started.
    Begun,
    /// A session with the scheduler has begun.
    Connected,
    /// The session has ended.
    Disconnected,
    /// A frame of the scheduler.
    Frame(Frame),
    /// A request of the owner.
    Request(R),
    /// An outcome of a worker.
    Outcome(O),
    /// The deadline has passed.
    Due,
}

/// The way to the scheduler.
#[derive(Debug)]
pub struct Uplink {
    /// The client of the session.
    pub client: Client,
    /// One key is enough, because all frames go to one scheduler.
    log: LogLimit<()>,
}

impl Uplink {
    /// Sends a frame without blocking; returns it if there is no session, or no room.
    pub fn send(&mut self, frame: Frame) -> Result<(), Frame> {
        self.client.try_send(frame).map_err(|e| {
            if let Some(more) = self.log.admit((), "unsent", now()) {
                warn!("{}: {e}{more}", self.client.uuid());
            }
            e.into_frame()
        })
    }
}

/// A running loop. Dropping it ends the thread and waits for it.
#[derive(Debug)]
pub struct ClientLoop<R> {
    /// The client.
    pub client: ClientHandle,
    /// The loop ends when this is dropped.
    requests: Sender<R>,
    /// Receives the reason when the client has ended for good.
    pub ended: Receiver<ClientError>,
    _thread: Joined,
}

impl<R: Send + 'static> ClientLoop<R> {
    /// Starts the thread. Once it ends, the service is dropped after the receiver of
    /// `outcomes`, so that no worker waits for room while it is joined.
    pub fn start<S>(
        name: &'static str,
        client: Client,
        mut service: S,
        outcomes: Receiver<S::Outcome>,
    ) -> io::Result<Self>
    where
        S: Service<Request = R> + Send + 'static,
    {
        let handle = client.handle();
        // An unbounded channel drops its messages with its receiver, so those who wait for answers get
        // an error when the thread ends, also by a panic. A bounded one keeps them.
        let (requests, requested) = unbounded();
        let (ending, ended) = bounded(1);
        let thread = threads::joined(name, move || {
            let mut uplink = Uplink {
                client,
                log: LogLimit::default(),
            };
            let why = run(&mut uplink, &mut service, &requested, &outcomes);
            // The last frames are the answers to commands, so there is some time to send them.
            uplink.client.flush(LAST_FRAMES);
            drop(outcomes);
            drop(service);
            uplink.client.close();
            if let Some(why) = why {
                // The owner may have dropped the receiver.
                let _ = ending.send(why);
            }
        })?;
        Ok(Self {
            client: handle,
            requests,
            ended,
            _thread: thread,
        })
    }

    /// Hands a request over without blocking; false if there is no room for it, or the loop has ended.
    pub fn request(&self, request: R) -> bool {
        self.requests.len() < REQUESTS && self.requests.send(request).is_ok()
    }

    /// Hands a request over, and waits for the answer for at most five seconds.
    pub fn ask<T>(&self, request: impl FnOnce(Sender<T>) -> R) -> Option<T> {
        let (reply, answer) = bounded(1);
        if !self.request(request(reply)) {
            return None;
        }
        answer.recv_timeout(ANSWER).ok()
    }
}

/// Runs until the owner drops the handle, or until the client ends: then returns the reason.
fn run<S: Service>(
    uplink: &mut Uplink,
    service: &mut S,
    requests: &Receiver<S::Request>,
    outcomes: &Receiver<S::Outcome>,
) -> Option<ClientError> {
    service.handle(uplink, Event::Begun);
    loop {
        // Computed for each event, because any event may change it.
        let due = service.deadline().map_or_else(never, |at| after(nap(at)));
        let event = select! {
            recv(uplink.client.events()) -> event => match event {
                Ok(ClientEvent::Connected(server)) => {
                    if !server.role.intersects(Role::SCHEDULER) {
                        warn!(
                            "{}: {} is a {}, not a scheduler: it starts no instances here",
                            uplink.client.uuid(),
                            server.name,
                            server.role
                        );
                    }
                    Event::Connected
                }
                Ok(ClientEvent::Frame(frame)) => Event::Frame(frame),
                Ok(ClientEvent::Disconnected { .. }) => Event::Disconnected,
                Ok(ClientEvent::Closed(why)) => return Some(why),
                // There are no requests, because this client has registered none.
                Ok(_) => continue,
                Err(_) => return Some(uplink.client.handle().ended().unwrap_or(ClientError::Closed)),
            },
            recv(outcomes) -> outcome => Event::Outcome(outcome.ok()?),
            recv(requests) -> request => Event::Request(request.ok()?),
            recv(due) -> _ => Event::Due,
        };
        service.handle(uplink, event);
    }
}

#[cfg(test)]
mod tests {
    use crossbeam_channel::RecvTimeoutError;

    use super::*;
    use ssntp::client::ClientConfig;
    use ssntp::transport::memory::MemoryListener;
    use ssntp_test_support::{LIMIT, identity, trust};

    /// Waits until the sender of this channel is dropped, and panics at the first request.
    struct Stuck(Receiver<()>);

    impl Service for Stuck {
        type Request = Sender<()>;
        type Outcome = ();

        fn handle(&mut self, _: &mut Uplink, event: Event<Sender<()>, ()>) {
            assert!(
                !matches!(event, Event::Request(_)),
                "on purpose: the test wants it"
            );
            let _ = self.0.recv();
        }

        fn deadline(&self) -> Option<Instant> {
            None
        }
    }

    #[test]
    fn a_request_without_room_or_after_a_panic_is_an_error_at_once() {
        let config = ClientConfig::new(identity(Role::AGENT), trust());
        let client = Client::start(config.connect_in_memory(&MemoryListener::new())).unwrap();
        let ((go, stuck), (reply, answer)) = (bounded(0), bounded(1));
        let mut inner = ClientLoop::start("t", client, Stuck(stuck), never()).unwrap();
        for waiting in 0..=REQUESTS {
            assert_eq!(inner.request(reply.clone()), waiting < REQUESTS);
        }
        assert_eq!(inner.ask(|reply| reply), None);
        drop((go, reply));
        assert_eq!(answer.recv_timeout(LIMIT), Err(RecvTimeoutError::Disconnected));
        inner._thread = Joined::default();
        assert!(!inner.request(bounded(1).0));
    }
}
