//! The decisions of a client, step by step, without threads and in virtual time.

use super::renewing::{another_authority, of};
use super::*;
use crate::RequestError;
use crate::client::core::{At, ClientCore, Next, SessionSink, Standing, Trial};
use crate::payload::Draining;
use crate::proto::{FrameKind, FrameType, Item, Operands, PROBE, Refusal, Run};
use bytes::Bytes;
use ssntp_pki::{
    Authority, AuthorityRequest, Identity, RevocationLists, RevocationReason, Revoked, Role, Serial,
};
use ssntp_transport::{EndReason, Outgoing, Sink, Transmit};
use std::io;
use std::time::SystemTime;

/// A client that a test steps, and its time.
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

    /// The attempt fails, because no server listens at the address.
    fn fails(&mut self) {
        self.fails_by(nobody());
    }

    fn fails_by(&mut self, fault: DialFault) {
        assert!(self.core.dialled(Err(fault), self.at).is_none());
    }

    /// A session is established. Returns the sink of its reader.
    fn establish(&mut self) -> SessionSink {
        let standing = Standing {
            server: server_info(false),
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

/// The connection of a server that takes what is sent.
#[derive(Debug)]
struct Takes;

impl Transmit for Takes {
    fn transmit(&mut self, _: &[Outgoing]) -> io::Result<()> {
        Ok(())
    }
}

/// The fault of an address at which no server listens.
fn nobody() -> DialFault {
    DialFault::Connect(Arc::new(io::ErrorKind::ConnectionRefused.into()))
}

/// A client whose only server has confirmed a session, and which dials again with a newer certificate; with the
/// former one.
fn dials_with_a_newer_certificate() -> (Stepped, Identity) {
    let mut client = Stepped::new(
        agent()
            .address("a:1".parse().unwrap())
            .renewal_spread(Duration::ZERO),
    );
    let older = client.dials().identity().clone();
    let mut session = client.establish();
    let newer = identity(Role::AGENT);
    client.core.handle().renew(&newer, &trust()).unwrap();
    session.ended(EndReason::PeerClosed);
    drop(session);
    while !matches!(client.step(), Next::Join) {}
    client.events.try_iter().for_each(drop);
    let trial = match client.step() {
        Next::Wait(Some(until)) => {
            client.at.now = until;
            client.dials()
        }
        Next::Dial(trial) => trial,
        other => panic!("{other:?}"),
    };
    assert_eq!(trial.identity().chain(), newer.chain());
    (client, older)
}

#[test]
fn an_address_without_a_server_does_not_hide_that_another_one_refuses_the_new_certificate() {
    for faults in [[nobody(), DialFault::Revoked], [DialFault::Revoked, nobody()]] {
        let (mut client, older) = dials_with_a_newer_certificate();
        let [first, second] = faults;
        client.fails_by(first.and(second));
        assert_eq!(client.dials().identity().chain(), older.chain());
        client.establish();
        let counted = client.core.handle().figures().failures;
        assert_eq!((counted["connect"], counted["revoked"]), (1, 1));
    }
}

#[test]
fn a_server_is_tried_again_after_a_passing_fault_of_the_attempt_with_the_old_certificate() {
    let (mut client, older) = dials_with_a_newer_certificate();
    client.fails_by(DialFault::Revoked);
    assert_eq!(client.dials().identity().chain(), older.chain());
    client.fails();
    assert!(matches!(client.step(), Next::Wait(Some(_))));
    let failures = client.core.handle().failures();
    assert_eq!(
        failures[0].to_string(),
        format!("a:1: {}; {}", DialFault::Revoked, nobody())
    );
}

#[test]
fn a_failure_is_told_before_the_other_servers_have_answered_and_until_the_next_session() {
    let servers = ["a:1", "b:1"].map(|server| server.parse().unwrap());
    let mut client = Stepped::new(agent().addresses(servers));
    let failed = |client: &Stepped| {
        let failures = client.core.handle().failures();
        let servers = failures.into_iter().map(|failure| failure.server);
        servers.collect::<Vec<_>>()
    };
    assert_eq!(client.core.handle().servers(), ["a:1", "b:1"]);
    client.dials();
    assert!(failed(&client).is_empty());
    client.fails();
    client.dials();
    assert_eq!(failed(&client), ["a:1"]);
    client.fails();
    assert!(matches!(client.step(), Next::Wait(Some(_))));
    assert_eq!(failed(&client), ["a:1", "b:1"]);
}

#[test]
fn a_server_that_aborts_the_new_certificate_ends_the_client_unless_the_old_one_may_be_admitted_later() {
    let aborted = || DialFault::Refused(Refusal::PeerAborted);
    let not_trusted = DialFault::OwnCertificate("UnknownCA".to_owned());
    for (of_older, ends) in [(aborted(), true), (not_trusted, true), (nobody(), false)] {
        let (mut client, _) = dials_with_a_newer_certificate();
        client.fails_by(aborted());
        client.dials();
        client.fails_by(of_older);
        assert_eq!(matches!(client.step(), Next::End), ends);
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
    // The renewal begins a new round with all servers.
    for server in [1, 2, 0] {
        let trial = client.dials();
        assert_eq!((trial.server, trial.identity().chain()), (server, newer.chain()));
        client.fails();
    }
    assert!(matches!(client.step(), Next::Wait(Some(_))));
}

/// Otherwise a close would wait for the end of a pause, or of a session.
#[test]
fn a_close_after_a_step_ends_the_wait_of_this_step() {
    for has_session in [false, true] {
        let mut client = Stepped::new(agent().address("a:1".parse().unwrap()));
        client.dials();
        let session = if has_session {
            Some(client.establish())
        } else {
            {
                client.fails();
                None
            }
        };
        assert!(matches!(client.step(), Next::Wait(_)));
        client.core.handle().close();
        at_once(|| client.core.wait(Some(Instant::now() + 2 * AT_ONCE)));
        drop(session);
        let next = client.step();
        if has_session {
            assert!(matches!(next, Next::Join), "{next:?}")
        } else {
            assert!(matches!(next, Next::End), "{next:?}")
        }
    }
}

#[test]
fn an_own_close_is_no_lost_session_even_if_the_session_ends_first() {
    let mut client = Stepped::new(agent().address("a:1".parse().unwrap()));
    client.dials();
    let mut session = client.establish();
    session.ended(EndReason::Local);
    drop(session);
    for _ in 0..3 {
        client.step();
    }
    let told = client
        .events
        .try_iter()
        .find(|event| matches!(event, ClientEvent::Disconnected { .. }));
    assert!(told.is_none(), "{told:?}");
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
    let mut session = client.establish();
    handle.renew(&identity(Role::AGENT), &trust()).unwrap();
    assert!(matches!(client.step(), Next::Wait(_)), "the server ends its side");
    handle.send(stats(1)).unwrap();
    session.ended(EndReason::PeerClosed);
    drop(session);
    assert!(matches!(client.step(), Next::Join));
    let renewed = matches!(
        client.events.try_recv(),
        Ok(ClientEvent::Disconnected {
            reason: SessionEnd::Renewed,
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
    // A request that was not sent does not count towards `max_requests`.
    for _ in 0..2 {
        let asked = client.core.ask(Uuid::nil(), &question);
        assert!(matches!(asked, Some(Err(RequestError::NotConnected))));
    }
    assert_eq!(handle.counters().lost_frames, 3);
}

#[test]
fn time_limits_of_any_length_end_a_session_without_a_panic() {
    let config = || {
        let config = agent().address("a:1".parse().unwrap());
        config.grace(Duration::MAX).write_timeout(Duration::MAX)
    };
    // The session is replaced.
    let mut client = Stepped::new(config().renewal_spread(Duration::ZERO));
    client.dials();
    let mut session = client.establish();
    let newer = identity(Role::AGENT);
    client.core.handle().renew(&newer, &trust()).unwrap();
    assert!(
        matches!(client.step(), Next::Wait(Some(_))),
        "the server ends its side"
    );
    session.ended(EndReason::PeerClosed);
    assert!(matches!(client.step(), Next::Wait(Some(_))), "the threads end");
    // The client is closed.
    let mut client = Stepped::new(config());
    client.dials();
    let _session = client.establish();
    client.core.handle().close();
    assert!(matches!(client.step(), Next::Wait(Some(_))), "the queue is sent");
}

#[test]
fn a_session_that_is_being_replaced_ends_soon_if_its_server_is_no_longer_trusted() {
    let config = agent().address("a:1".parse().unwrap());
    let mut client = Stepped::new(config.renewal_spread(Duration::ZERO));
    client.dials();
    let _session = client.establish();
    let newer = identity(Role::AGENT);
    client.core.handle().renew(&newer, &trust()).unwrap();
    let waits_for = |client: &mut Stepped| match client.step() {
        Next::Wait(Some(until)) => until - client.at.now,
        other => panic!("{other:?}"),
    };
    assert_eq!(
        waits_for(&mut client),
        Duration::from_secs(30),
        "the queue is sent"
    );
    let other = Authority::new(&AuthorityRequest::default().name("another")).unwrap();
    client.core.handle().renew(&newer, &other.trust()).unwrap();
    assert_eq!(waits_for(&mut client), Duration::from_secs(1));
    client.at.now += Duration::from_secs(1);
    assert!(matches!(client.step(), Next::Abort));
}

#[test]
fn a_session_ends_without_its_queue_if_the_certificate_of_its_server_is_revoked() {
    let mut client = Stepped::new(agent().address("a:1".parse().unwrap()));
    client.dials();
    let _session = client.establish();
    let serial = Serial::from(identity_of_server().info());
    let revoked = Revoked::now(serial, RevocationReason::KEY_COMPROMISE);
    let list = authority().revocation_list(&[revoked], 1, 7).unwrap();
    let lists = RevocationLists::from_pem(list.pem.as_bytes(), "a list").unwrap();
    let trust = trust().with_revocation_lists(&lists).unwrap();
    client
        .core
        .handle()
        .renew(&identity(Role::AGENT), &trust)
        .unwrap();
    assert!(matches!(client.step(), Next::Abort));
}

/// A client with a session that is replaced and has ended, and the sink of its reader.
fn in_gap(config: ClientConfig) -> (Stepped, SessionSink) {
    let mut client = Stepped::new(config.renewal_spread(Duration::ZERO));
    client.dials();
    let mut session = client.establish();
    client
        .core
        .handle()
        .renew(&identity(Role::AGENT), &trust())
        .unwrap();
    assert!(matches!(client.step(), Next::Wait(_)), "the server ends its side");
    session.ended(EndReason::PeerClosed);
    assert!(matches!(client.step(), Next::Wait(_)), "the threads end");
    let reason = SessionEnd::Renewed;
    assert!(
        matches!(client.events.try_recv(), Ok(ClientEvent::Disconnected { reason: of, .. }) if of == reason)
    );
    (client, session)
}

#[test]
fn the_end_of_a_session_is_reported_once_if_the_client_is_closed_before_its_threads_end() {
    let (client, _session) = in_gap(agent().address("a:1".parse().unwrap()));
    client.core.handle().close();
    let last = client.events.try_recv();
    assert!(
        matches!(last, Ok(ClientEvent::Closed(ClientError::Closed))),
        "{last:?}"
    );
}

#[test]
fn the_requests_of_a_session_that_is_lost_while_it_is_replaced_wait_for_none() {
    const ASKED: FrameKind = FrameKind::new(FrameType::COMMAND, 0x81);
    let operands = Operands::default().request(ASKED, "Asked").unwrap();
    let config = agent().address("a:1".parse().unwrap()).operands(operands);
    let mut client = Stepped::new(config.renewal_spread(Duration::ZERO));
    client.dials();
    let mut session = client.establish();
    let ask = |client: &Stepped| client.core.ask(Uuid::nil(), &Frame::new(ASKED));
    let open = ask(&client).unwrap().unwrap();
    let handle = client.core.handle();
    handle.renew(&identity(Role::AGENT), &trust()).unwrap();
    assert!(
        matches!(client.step(), Next::Wait(_)),
        "the open request is awaited"
    );
    assert!(ask(&client).is_none(), "new ones wait for the next session");
    session.ended(EndReason::PeerClosed);
    client.step();
    let answer = open.wait(Instant::now(), Duration::ZERO);
    assert!(matches!(answer, Err(RequestError::Disconnected)), "{answer:?}");
    let refused = ask(&client).unwrap();
    assert!(matches!(refused, Err(RequestError::NotConnected)), "{refused:?}");
}

#[test]
fn the_gap_after_a_certificate_that_is_not_trusted_any_more_ends() {
    let mut client = Stepped::new(agent().address("a:1".parse().unwrap()));
    client.dials();
    let mut session = client.establish();
    let other = another_authority();
    let handle = client.core.handle();
    handle.renew(&of(&other, Role::AGENT), &other.trust()).unwrap();
    client.step();
    handle.send(stats(1)).unwrap();
    session.ended(EndReason::PeerClosed);
    client.step();
    drop(session);
    assert!(matches!(client.step(), Next::Join));
    let last = client.events.try_iter().last();
    let is_expected = |event: &ClientEvent| {
        matches!(
            event,
            ClientEvent::Disconnected {
                reason: SessionEnd::Certificate(_),
                ..
            }
        )
    };
    assert!(last.as_ref().is_some_and(is_expected), "{last:?}");
    client.step();
    client.at.now += Duration::from_secs(10);
    client.step();
    let refused = handle.send(stats(2)).unwrap_err();
    assert!(matches!(refused.fault(), SendFault::NotConnected), "{refused}");
    assert_eq!(handle.counters().lost_frames, 1);
}

#[test]
fn frames_wait_for_ten_seconds_also_within_a_round_and_in_a_pause() {
    let servers = ["a:1", "b:1"].map(|server| server.parse().unwrap());
    let an_hour = Duration::from_secs(3600);
    let backoff = Backoff {
        initial: an_hour,
        cap: an_hour,
    };
    for is_in_pause in [false, true] {
        let config = agent().addresses(servers.clone()).backoff(backoff);
        let (mut client, session) = in_gap(config);
        let handle = client.core.handle();
        drop(session);
        assert!(matches!(client.step(), Next::Join));
        let began = client.at.now;
        client.dials();
        handle.send(stats(1)).unwrap();
        client.fails();
        if is_in_pause {
            client.dials();
            client.fails();
            match client.step() {
                Next::Wait(Some(until)) => assert_eq!(until - began, Duration::from_secs(10)),
                other => panic!("{other:?}"),
            }
        }
        client.at.now += Duration::from_secs(10);
        client.step();
        let refused = handle.send(stats(2)).unwrap_err();
        assert!(matches!(refused.fault(), SendFault::NotConnected), "{refused}");
        assert_eq!(handle.counters().lost_frames, 1);
    }
}

#[test]
fn a_server_that_admits_a_client_and_asks_it_to_leave_at_once_is_not_dialled_without_a_pause() {
    let mut client = Stepped::new(agent().address("a:1".parse().unwrap()));
    for _ in 0..3 {
        client.dials();
        let mut session = client.establish();
        let drains = Frame::of(&Draining { within_s: 0 });
        assert!(session.items(&mut vec![Item::Run(Run::of(&drains))], 8));
        assert!(matches!(client.step(), Next::Wait(_)), "the server ends its side");
        session.ended(EndReason::PeerClosed);
        assert!(matches!(client.step(), Next::Wait(_)), "the threads end");
        drop(session);
        assert!(matches!(client.step(), Next::Join));
        match client.step() {
            Next::Wait(Some(until)) => client.at.now = until,
            other => panic!("{other:?}"),
        }
        assert!(matches!(
            client.events.try_recv(),
            Ok(ClientEvent::Disconnected { .. })
        ));
    }
}

#[test]
fn a_silent_server_is_asked_for_a_sign_of_life_and_its_session_ends_without_one() {
    let config = agent().address("a:1".parse().unwrap());
    let mut client = Stepped::new(config.idle_limit(Duration::from_secs(80)));
    client.dials();
    let mut session = client.establish();
    let pass = |client: &mut Stepped, tens: u32| {
        for _ in 0..tens {
            client.at.now += Duration::from_secs(10);
            assert!(matches!(client.step(), Next::Wait(Some(_))));
        }
    };
    pass(&mut client, 3);
    assert_eq!(session.outbox.waiting().items, 0);
    pass(&mut client, 1);
    assert_eq!(session.outbox.waiting().items, 1);
    // The application does not get the answer.
    let answer = Item::Unsupported(PROBE).answer().unwrap();
    session.items(&mut vec![Item::from(&answer)], 8);
    pass(&mut client, 4);
    assert_eq!(session.outbox.waiting().items, 2, "it is asked again");
    assert!(client.events.try_recv().is_err());
    client.at.now += Duration::from_secs(10);
    // First the reader ends, so that it delivers nothing after the event.
    assert!(matches!(client.step(), Next::Abort));
    assert!(matches!(client.step(), Next::Wait(None)));
    assert!(client.events.try_recv().is_err());
    session.ended(EndReason::Local);
    assert!(matches!(client.step(), Next::Wait(Some(_))));
    let lost = SessionEnd::Lost("the peer has sent nothing, and does not answer".into());
    let told = client.events.try_recv();
    assert!(
        matches!(&told, Ok(ClientEvent::Disconnected { reason, .. }) if *reason == lost),
        "{told:?}"
    );
}

#[test]
fn a_server_that_reads_now_and_then_what_waits_for_it_is_not_silent() {
    let config = agent().address("a:1".parse().unwrap());
    let mut client = Stepped::new(config.idle_limit(Duration::from_secs(80)));
    client.dials();
    let session = client.establish();
    session.outbox.open(Box::new(Takes));
    let handle = client.core.handle();
    // Each is a batch of its own.
    let long = Frame::with_payload(Command::STATS, vec![b' '; 300_000]);
    (0..41).for_each(|_| handle.send(long.clone()).unwrap());
    for _ in 0..40 {
        client.at.now += Duration::from_secs(10);
        assert!(matches!(client.step(), Next::Wait(Some(_))));
        let mut batch = Vec::new();
        let due = session.outbox.try_next(&mut batch).unwrap();
        session.outbox.send(due, &mut batch, &|| ()).unwrap();
    }
    for _ in 0..8 {
        client.at.now += Duration::from_secs(10);
        assert!(matches!(client.step(), Next::Wait(Some(_))));
    }
    client.at.now += Duration::from_secs(10);
    assert!(
        matches!(client.step(), Next::Abort),
        "it has taken nothing for the limit"
    );
}

#[test]
fn clients_of_a_server_that_drains_leave_at_random_times_within_the_one_it_names() {
    for share in [0.0, 0.25, 1.0] {
        let mut client = Stepped::new(agent().address("a:1".parse().unwrap()));
        client.dials();
        let session = client.establish();
        client.at.share = share;
        session.drain_requests.send(Duration::from_secs(100)).unwrap();
        let leaves_after = match client.step() {
            Next::Wait(Some(until)) => until - client.at.now,
            other => panic!("{other:?}"),
        };
        // The client that leaves now waits until its queue is sent.
        let wanted = [Duration::from_secs(100).mul_f64(share), Duration::from_secs(30)];
        assert_eq!(leaves_after, wanted[usize::from(share == 0.0)]);
    }
}

#[test]
fn attempts_are_counted_anew_after_a_session_and_those_of_the_start_have_a_limit_of_their_own() {
    let config = agent().address("a:1".parse().unwrap()).attempts(3);
    let mut client = Stepped::new(config.first_attempts(2));
    let fails = |client: &mut Stepped| {
        client.dials();
        client.fails();
        client.step()
    };
    let pauses = |client: &mut Stepped| match fails(client) {
        Next::Wait(Some(until)) => client.at.now = until,
        other => panic!("{other:?}"),
    };
    pauses(&mut client);
    client.dials();
    let mut session = client.establish();
    session.ended(EndReason::PeerClosed);
    drop(session);
    while !matches!(client.step(), Next::Join) {}
    match client.step() {
        Next::Wait(Some(until)) => client.at.now = until,
        other => panic!("{other:?}"),
    }
    // Neither the round before the session counts, nor the limit of the start.
    pauses(&mut client);
    pauses(&mut client);
    assert!(matches!(fails(&mut client), Next::End));
    let last = client.events.try_iter().last();
    assert!(
        matches!(
            last,
            Some(ClientEvent::Closed(ClientError::GaveUp { attempts: 3, .. }))
        ),
        "{last:?}"
    );
}
