//! What a client decides, stepped: without threads, and in virtual time.

use super::*;
use crate::client::core::{At, ClientCore, Next, SessionSink, Standing, Trial};
use crate::proto::{FrameKind, FrameType, Operands};
use bytes::Bytes;
use ssntp_transport::{EndReason, Role, Sink};
use std::io;
use std::time::SystemTime;

/// A client that a test steps, and what its time is.
struct Stepped {
    core: ClientCore,
    events: Receiver<ClientEvent>,
    at: At,
}

impl Stepped {
    fn new(config: ClientConfig) -> Self {
        let (core, events) = ClientCore::new(config).unwrap();
        let at = At {
            now: Instant::now(),
            wall: SystemTime::now(),
            share: 1.0,
        };
        Self { core, events, at }
    }

    fn step(&mut self) -> Next {
        self.core.step(self.at)
    }

    fn dials(&mut self) -> Trial {
        match self.step() {
            Next::Dial(trial) => trial,
            other => panic!("{other:?}"),
        }
    }

    /// Nobody listens there.
    fn fails(&mut self) {
        let refused = io::Error::from(io::ErrorKind::ConnectionRefused);
        let fault = DialFault::Connect(Arc::new(refused));
        assert!(self.core.dialled(Err(fault), self.at).is_none());
    }

    /// A session stands, whose reader this is.
    fn stands(&mut self) -> SessionSink {
        let standing = Standing {
            server: server_info(),
            configuration: Bytes::new(),
            chain: identity_of_server().chain().to_vec(),
            name: "localhost".to_owned(),
        };
        let up = self.core.dialled(Ok(standing), self.at).unwrap();
        let begun = self.core.begin(up, |_, _, sink| Ok(sink));
        assert!(matches!(self.events.try_recv(), Ok(ClientEvent::Connected(_))));
        begun.unwrap()
    }
}

#[test]
fn a_certificate_that_is_renewed_in_a_round_is_shown_at_the_next_attempt() {
    let servers = ["a:1", "b:1", "c:1"].map(|server| server.parse().unwrap());
    let mut client = Stepped::new(agent().addresses(servers));
    assert_eq!(client.dials().server, 0);
    let newer = identity(Role::AGENT);
    client.core.handle().renew(&newer, &trust()).unwrap();
    client.fails();
    // It begins a round of all servers.
    for server in [1, 2, 0] {
        let trial = client.dials();
        assert_eq!((trial.server, trial.identity().chain()), (server, newer.chain()));
        client.fails();
    }
    assert!(matches!(client.step(), Next::Wait(Some(_))));
}

#[test]
fn frames_and_requests_wait_ten_seconds_for_the_session_that_replaces_another() {
    const ASKED: FrameKind = FrameKind::new(FrameType::COMMAND, 0x81);
    let operands = Operands::default().request(ASKED, "Asked").unwrap();
    let config = agent()
        .address("a:1".parse().unwrap())
        .operands(operands)
        .max_requests(1);
    let mut client = Stepped::new(config.renewal_spread(Duration::ZERO));
    let handle = client.core.handle();
    client.dials();
    let mut session = client.stands();
    handle.renew(&identity(Role::AGENT), &trust()).unwrap();
    assert!(matches!(client.step(), Next::Wait(_)), "the server ends its side");
    handle.send(stats(1)).unwrap();
    session.ended(EndReason::PeerClosed);
    drop(session);
    assert!(matches!(client.step(), Next::Join));
    let renewed = matches!(
        client.events.try_recv(),
        Ok(ClientEvent::Disconnected {
            reason: DisconnectReason::Renewed,
            retrying: true
        })
    );
    assert!(renewed);
    let question = Frame::new(ASKED);
    for seconds in [0, 9] {
        client.at.now += Duration::from_secs(seconds);
        client.dials();
        client.fails();
        assert!(matches!(client.step(), Next::Wait(Some(_))), "the round is over");
        handle.send(stats(2)).unwrap();
        assert!(client.core.ask(Uuid::nil(), &question).is_none());
    }
    client.at.now += Duration::from_secs(1);
    client.dials();
    client.fails();
    assert!(matches!(client.step(), Next::Wait(Some(_))));
    let refused = handle.send(stats(3)).unwrap_err();
    assert!(matches!(refused.fault(), SendFault::NotConnected), "{refused}");
    // One that was not sent does not take the only place.
    for _ in 0..2 {
        let asked = client.core.ask(Uuid::nil(), &question);
        assert!(matches!(asked, Some(Err(RequestError::NotConnected))));
    }
    assert_eq!(handle.counters().lost_frames, 3);
}
