//! Operators that list and end sessions, ban clients and watch frames, in virtual time.

use std::time::Duration;

use ssntp::payload::{
    BanEntry, Bans, InvalidFrameType, Kick, Kicked, ListBans, ListSessions, OperatorRefusal, Payload,
    SessionEntry, Sessions, Unban, Unbanned, Watch, Watched,
};
use ssntp::pki::Identity;
use ssntp::proto::{Command, FrameKind, Refusal};
use ssntp::server::{ClusterHandler, Context, DisconnectReason, Filter, Handler, ServerConfig, SessionInfo};
use ssntp::testkit::{HandlerTest, Testkit};
use ssntp::{ErrorCode, Frame, Role, Uuid};
use ssntp_test_support::{Received, TestServer};

struct Rig {
    kit: Testkit,
    test: HandlerTest,
    operator: Uuid,
}

impl Rig {
    fn new() -> Self {
        Self::with((), |config| config.operators(Role::CONTROLLER))
    }

    fn with(handler: impl Handler, change: impl FnOnce(ServerConfig) -> ServerConfig) -> Self {
        let kit = Testkit::new().unwrap();
        let mut test = HandlerTest::new(change(kit.server_config().unwrap()), handler).unwrap();
        let controller = kit.identity(Role::CONTROLLER).unwrap();
        let operator = test.connect(&controller).unwrap().uuid();
        Self { kit, test, operator }
    }

    fn agent(&self) -> Identity {
        self.kit.identity(Role::AGENT).unwrap()
    }

    /// Sends a command of a client, and returns the answer.
    #[track_caller]
    fn ask_as<Q: Payload, A: Payload>(&mut self, from: Uuid, question: &Q) -> A {
        self.test.receive(from, &Frame::of(question));
        let [answer] = &self.test.sent_to(from)[..] else {
            panic!("one answer");
        };
        answer.payload().unwrap()
    }

    #[track_caller]
    fn ask<Q: Payload, A: Payload>(&mut self, question: &Q) -> A {
        self.ask_as(self.operator, question)
    }

    #[track_caller]
    fn kick(&mut self, kick: Kick) -> Kicked {
        let kicked: Kicked = self.ask(&Kick {
            id: "k".into(),
            ..kick
        });
        assert_eq!(kicked.id, "k");
        kicked
    }

    #[track_caller]
    fn sessions(&mut self, roles: &str) -> Vec<SessionEntry> {
        let (mut all, mut after) = (Vec::new(), 0);
        loop {
            let page: Sessions = self.ask(&ListSessions {
                id: "l".into(),
                roles: roles.into(),
                after,
            });
            assert!(page.id == "l" && page.entries.len() <= 64);
            all.extend(page.entries);
            match page.next {
                0 => return all,
                next => after = next,
            }
        }
    }

    #[track_caller]
    fn bans(&mut self) -> Vec<BanEntry> {
        let page: Bans = self.ask(&ListBans {
            id: "b".into(),
            after: 0,
        });
        assert_eq!(page.next, 0);
        page.entries
    }

    #[track_caller]
    fn unban(&mut self, unban: Unban) -> OperatorRefusal {
        let unbanned: Unbanned = self.ask(&Unban {
            id: "u".into(),
            ..unban
        });
        assert_eq!(unbanned.id, "u");
        unbanned.reason
    }

    fn pass(&mut self, seconds: u64) {
        self.test.advance(Duration::from_secs(seconds));
    }
}

fn by_uuid(uuid: Uuid, ban_s: u64) -> Kick {
    Kick {
        uuid: uuid.into(),
        ban_s,
        ..Kick::default()
    }
}

const DONE: OperatorRefusal = OperatorRefusal::NotRefused;

#[test]
fn a_list_has_each_session_once_and_pages_of_64() {
    let mut rig = Rig::new();
    let agent = rig.agent();
    let mut agents: Vec<Uuid> = (0..150).map(|_| Uuid::new_v4()).collect();
    for uuid in &agents {
        rig.test.connect_as(&agent, *uuid).unwrap();
    }
    rig.pass(7);
    rig.test.receive(agents[3], &Frame::new(Command::STATS));
    let listed = rig.sessions("agent,netagent");
    let uuids: Vec<_> = listed.iter().filter_map(|entry| entry.uuid.uuid()).collect();
    assert_eq!(uuids, agents, "the sessions are in the order of connecting");
    let numbers: Vec<_> = listed.iter().map(|entry| entry.number).collect();
    assert!(numbers.is_sorted_by(|one, other| one < other));
    assert_eq!((listed[3].frames_received, listed[4].frames_received), (1, 0));
    assert_eq!(listed[4].age_s, 7);
    let info = agent.info();
    assert!(
        listed
            .iter()
            .all(|entry| entry.serial == info.serial && entry.subject == info.subject)
    );
    assert!(listed.iter().all(|entry| entry.roles == "agent" && !entry.bound));
    assert_eq!(rig.sessions("").len(), 151);
    assert_eq!(rig.sessions("controller").len(), 1);
    assert!(rig.sessions("cnciagent").is_empty());

    // Sessions that end between two pages are missing, and all others are listed.
    let first: Sessions = rig.ask(&ListSessions {
        id: "1".into(),
        roles: "agent".into(),
        after: 0,
    });
    assert_eq!((first.total, first.entries.len()), (151, 64));
    for ended in [agents[63], agents[64]] {
        assert_eq!(rig.kick(by_uuid(ended, 0)).count, 1);
    }
    let second: Sessions = rig.ask(&ListSessions {
        id: "2".into(),
        roles: "agent".into(),
        after: first.next,
    });
    agents.drain(..65);
    let uuids: Vec<_> = second
        .entries
        .iter()
        .filter_map(|entry| entry.uuid.uuid())
        .collect();
    assert_eq!(uuids, agents[..64]);
}

#[test]
fn a_session_without_the_role_is_refused_even_if_the_filter_allows_it() {
    let questions = [
        Frame::of(&ListSessions {
            id: "1".into(),
            ..ListSessions::default()
        }),
        Frame::of(&ListBans {
            id: "1".into(),
            ..ListBans::default()
        }),
        Frame::of(&Kick {
            id: "1".into(),
            uuid: Uuid::max().into(),
            ..Kick::default()
        }),
        Frame::of(&Unban {
            id: "1".into(),
            uuid: Uuid::max().into(),
        }),
    ];
    let operators: fn(ServerConfig) -> ServerConfig = |config| config.operators(Role::CONTROLLER);
    let nobody: fn(ServerConfig) -> ServerConfig = |config| config;
    let filtered: fn(ServerConfig) -> ServerConfig = |config| {
        config
            .operators(Role::CONTROLLER | Role::AGENT)
            .filter(Filter::spec())
    };
    for (config, role, allowed) in [
        (operators, Role::CONTROLLER, true),
        (operators, Role::AGENT, false),
        (nobody, Role::CONTROLLER, false),
        (filtered, Role::CONTROLLER, true),
        (filtered, Role::AGENT, false),
    ] {
        let mut rig = Rig::with((), config);
        let asker = rig.test.connect(&rig.kit.identity(role).unwrap()).unwrap().uuid();
        for question in &questions {
            rig.test.receive(asker, question);
            let [answer] = &rig.test.sent_to(asker)[..] else {
                panic!("one answer to {question:?}");
            };
            assert_eq!(
                answer.kind() != ErrorCode::INVALID_FRAME_TYPE,
                allowed,
                "{role} {question:?}"
            );
            if !allowed {
                let refused: InvalidFrameType = answer.payload().unwrap();
                assert_eq!(
                    (refused.refused(), refused.reason.as_str()),
                    (question.kind(), "role_not_allowed")
                );
            }
        }
    }
}

/// An application that allows no changes by operators, and records the reasons for ends of sessions.
struct Strict(bool, std::sync::mpsc::Sender<DisconnectReason>);

impl Handler for Strict {
    fn disconnected(&mut self, _: &mut Context<'_>, _: &SessionInfo, reason: &DisconnectReason) {
        self.1.send(reason.clone()).unwrap();
    }

    fn cluster(&mut self) -> Option<&mut dyn ClusterHandler> {
        Some(self)
    }
}

impl ClusterHandler for Strict {
    fn may_kick(&mut self, _: &mut Context<'_>, _: &SessionInfo) -> bool {
        self.0
    }
}

#[test]
fn an_application_may_allow_lists_and_refuse_changes() {
    let (sender, _reasons) = std::sync::mpsc::channel();
    let mut rig = Rig::with(Strict(false, sender), |config| config.operators(Role::CONTROLLER));
    let agent = rig.agent();
    let uuid = rig.test.connect(&agent).unwrap().uuid();
    let refused: InvalidFrameType = rig.ask(&Kick {
        id: "1".into(),
        ..by_uuid(uuid, 0)
    });
    assert_eq!(refused.refused(), FrameKind::from(Command::KICK));
    let refused: InvalidFrameType = rig.ask(&Unban {
        id: "1".into(),
        uuid: uuid.into(),
    });
    assert_eq!(refused.reason.as_str(), "role_not_allowed");
    assert!(rig.test.is_connected(uuid) && rig.bans().is_empty());
    assert_eq!(rig.sessions("agent").len(), 1);
}

#[test]
fn a_kicked_client_gets_connection_failure_and_may_connect_again() {
    let (sender, reasons) = std::sync::mpsc::channel();
    let mut rig = Rig::with(Strict(true, sender), |config| config.operators(Role::CONTROLLER));
    let agent = rig.agent();
    let uuid = rig.test.connect(&agent).unwrap().uuid();
    let kicked = rig.kick(by_uuid(uuid, 0));
    assert_eq!(
        (kicked.reason, kicked.count, kicked.uuids),
        (DONE, 1, vec![uuid.into()])
    );
    assert!(!rig.test.is_connected(uuid));
    assert_eq!(
        rig.test.sent_to(uuid),
        [Frame::new(ErrorCode::CONNECTION_FAILURE)]
    );
    let by = rig.operator;
    assert_eq!(
        reasons.try_iter().collect::<Vec<_>>(),
        [DisconnectReason::Kicked { by }]
    );
    assert_eq!(rig.kick(by_uuid(uuid, 0)).reason, OperatorRefusal::NotConnected);
    rig.test.connect_as(&agent, uuid).unwrap();
}

#[test]
fn a_ban_of_a_uuid_ends_with_its_time() {
    let mut rig = Rig::new();
    let agent = rig.agent();
    let uuid = rig.test.connect(&agent).unwrap().uuid();
    let kicked = rig.kick(by_uuid(uuid, 3600));
    assert_eq!((kicked.count, kicked.ban_s), (1, 3600));
    assert!(
        kicked.detail.contains("another"),
        "an unbound client may connect with another UUID: {}",
        kicked.detail
    );
    rig.pass(3599);
    let refused = rig.test.connect_as(&agent, uuid).unwrap_err();
    assert_eq!(refused, Refusal::Banned(Duration::from_secs(1)));
    let [ban] = &rig.bans()[..] else { panic!("one ban") };
    assert!(ban.uuid == uuid && ban.by == rig.operator);
    assert_eq!((ban.age_s, ban.left_s), (3599, 1));
    // The same certificate with another UUID is not banned.
    rig.test.connect_as(&agent, Uuid::new_v4()).unwrap();
    rig.pass(1);
    rig.test.connect_as(&agent, uuid).unwrap();
    assert!(rig.bans().is_empty());
    // The ban is lifted before its time.
    assert_eq!(rig.kick(by_uuid(uuid, 60)).reason, DONE);
    assert!(rig.test.connect_as(&agent, uuid).is_err());
    let lifted = Unban {
        uuid: uuid.into(),
        ..Unban::default()
    };
    assert_eq!(rig.unban(lifted.clone()), DONE);
    assert_eq!(rig.unban(lifted), OperatorRefusal::NotBanned);
    rig.test.connect_as(&agent, uuid).unwrap();
    // A client that is not connected can be banned as well.
    let other = Uuid::new_v4();
    assert_eq!(rig.kick(by_uuid(other, 10)).reason, DONE);
    assert!(rig.test.connect_as(&agent, other).is_err());
}

#[test]
fn an_invalid_kick_or_one_of_the_operator_itself_changes_nothing() {
    let mut rig = Rig::new();
    let agent = rig.agent();
    let uuid = rig.test.connect(&agent).unwrap().uuid();
    let invalid = OperatorRefusal::InvalidData;
    for (kick, reason) in [
        (Kick::default(), &invalid),
        (
            Kick {
                uuid: "agent-7".into(),
                ..Kick::default()
            },
            &invalid,
        ),
        (by_uuid(uuid, 366 * 24 * 3600), &invalid),
        (by_uuid(uuid, u64::MAX), &invalid),
        (by_uuid(Uuid::new_v4(), 0), &OperatorRefusal::NotConnected),
        (by_uuid(rig.operator, 60), &OperatorRefusal::OwnSession),
    ] {
        let kicked = rig.kick(kick.clone());
        assert_eq!(&kicked.reason, reason, "{kick:?}: {}", kicked.detail);
        assert!(kicked.count == 0 && kicked.detail.len() > 10, "{kicked:?}");
    }
    assert!(rig.test.is_connected(uuid) && rig.test.is_connected(rig.operator));
    assert!(rig.bans().is_empty());
    // A key of a former release is refused with a text that names the present one.
    let serial = Frame::with_payload(Command::KICK, "kick: {id: k, serial: 4f:0a}");
    rig.test.receive(rig.operator, &serial);
    let kicked: Kicked = rig.test.sent_to(rig.operator)[0].payload().unwrap();
    assert_eq!(kicked.reason, invalid);
    assert!(kicked.detail.contains("uuid is required"), "{}", kicked.detail);
    for question in [
        Frame::with_payload(Command::KICK, "kick: ["),
        Frame::with_payload(Command::UNBAN, "unban: {}"),
        Frame::with_payload(Command::LIST_BANS, vec![0xff]),
        Frame::of(&ListSessions {
            id: "1".into(),
            roles: "king".into(),
            after: 0,
        }),
        Frame::of(&ListSessions {
            id: "x".repeat(65).as_str().into(),
            ..ListSessions::default()
        }),
    ] {
        rig.test.receive(rig.operator, &question);
        let refused: InvalidFrameType = rig.test.sent_to(rig.operator)[0].payload().unwrap();
        assert_eq!(refused.refused(), question.kind());
    }
}

#[test]
fn bans_are_bounded_and_listed_in_pages() {
    let mut rig = Rig::new();
    for number in 1..=1024 {
        assert_eq!(rig.kick(by_uuid(Uuid::from_u128(number), 60)).reason, DONE);
    }
    let agent = rig.agent();
    let uuid = rig.test.connect(&agent).unwrap().uuid();
    let kicked = rig.kick(by_uuid(uuid, 60));
    assert_eq!(kicked.reason, OperatorRefusal::TooManyBans);
    assert!(
        rig.test.is_connected(uuid),
        "a refused ban leaves the session connected"
    );
    let (mut after, mut pages, mut listed) = (0, 0, Vec::new());
    loop {
        let page: Bans = rig.ask(&ListBans {
            id: "b".into(),
            after,
        });
        pages += 1;
        listed.extend(page.entries.into_iter().filter_map(|ban| ban.uuid.uuid()));
        after = page.next;
        if after == 0 {
            break;
        }
    }
    assert_eq!(
        (pages, listed),
        (16, (1..=1024).map(Uuid::from_u128).collect::<Vec<_>>())
    );
    rig.pass(60);
    assert!(rig.bans().is_empty());
    assert_eq!(rig.kick(by_uuid(uuid, 60)).reason, DONE);
}

#[test]
fn an_operator_watches_the_senders_and_operands_of_frames() {
    let mut rig = Rig::new();
    let agent = rig.agent();
    let [one, other] = [1, 2].map(|_| rig.test.connect(&agent).unwrap().uuid());
    let watch = |uuid: &str, kind: &str| Watch {
        id: "w".into(),
        uuid: uuid.into(),
        kind: kind.into(),
    };
    let reported = |rig: &mut Rig| -> Vec<(String, u64, u64)> {
        let frames = rig.test.sent_to(rig.operator);
        let watched = frames.iter().filter(|frame| frame.kind() == Watched::KIND);
        let watched = watched.map(|frame| frame.payload::<Watched>().unwrap());
        watched.map(|one| (one.kind, one.frames, one.missed)).collect()
    };
    for (refused, reason) in [
        (watch("x", ""), "invalid_data"),
        (watch("", "nothing"), "invalid_data"),
    ] {
        let refusal: InvalidFrameType = rig.ask(&refused);
        assert_eq!(refusal.reason.as_str(), reason);
    }
    // A session that is not an operator gets no list.
    let refusal: InvalidFrameType = rig.ask_as(one, &watch("", ""));
    assert_eq!(refusal.reason.as_str(), "role_not_allowed");
    let began: Watched = rig.ask(&watch(&one.to_string(), ""));
    assert_eq!((began.id.as_str(), began.frames), ("w", 0));
    let stats = Frame::with_payload(Command::STATS, "secret");
    rig.test.receive(one, &stats);
    rig.test.receive(other, &stats);
    let sent = rig.test.sent_to(rig.operator);
    let [watched] = &sent[..] else { panic!("{sent:?}") };
    assert!(!String::from_utf8_lossy(watched.payload_bytes()).contains("secret"));
    let watched: Watched = watched.payload().unwrap();
    assert_eq!(
        (watched.uuid, watched.bytes),
        (one.into(), stats.encoded_len() as u64)
    );
    assert_eq!(
        (watched.roles.as_str(), watched.kind.as_str()),
        ("agent", "STATS")
    );
    // A second Watch replaces the first one.
    let _: Watched = rig.ask(&watch("", "ready"));
    rig.test.receive(one, &stats);
    rig.test.receive(other, &Frame::new(ssntp::proto::Status::READY));
    assert_eq!(reported(&mut rig), [("READY".to_owned(), 1, 0)]);
}

#[test]
fn only_sixteen_operators_may_watch() {
    let mut rig = Rig::new();
    let controller = rig.kit.identity(Role::CONTROLLER).unwrap();
    let watch = Watch {
        id: "w".into(),
        ..Watch::default()
    };
    let others: Vec<_> = (0..16)
        .map(|_| rig.test.connect(&controller).unwrap().uuid())
        .collect();
    for other in &others {
        rig.test.receive(*other, &Frame::of(&watch));
    }
    let refusal: InvalidFrameType = rig.ask(&watch);
    assert_eq!(refusal.reason.as_str(), "too_many");
    // The place of a session that has ended is free.
    let _: Kicked = rig.kick(by_uuid(others[0], 0));
    rig.test.sent_to(rig.operator);
    let _: Watched = rig.ask(&watch);
}

#[test]
fn an_operator_that_watches_and_does_not_read_gets_the_number_of_missed_frames() {
    let server = TestServer::start((), |config| config.operators(Role::CONTROLLER));
    let mut operator = server.connect(Role::CONTROLLER);
    operator.send(&Frame::of(&Watch {
        id: "w".into(),
        kind: "STATS".into(),
        ..Watch::default()
    }));
    operator.frame().payload::<Watched>().unwrap();
    let mut agent = server.connect(Role::AGENT);
    let one = [
        Frame::new(Command::STATS).encode(),
        // Between two runs of STATS, or they would be one.
        Frame::new(ssntp::proto::Status::READY).encode(),
    ];
    let probe = Frame::new(FrameKind::new(ssntp::proto::FrameType::COMMAND, 0x7f));
    let mut sent = 20_000;
    agent.send_bytes(&one.concat().repeat(sent as usize));
    // No sender is held for the operator, so this request is answered.
    agent.send(&probe);
    agent.frame();
    let (mut reported, mut missed) = (0, 0);
    let deadline = ssntp_transport::deadline(Duration::from_secs(60));
    while reported + missed != sent {
        assert!(
            ssntp_transport::left(deadline).is_ok(),
            "{reported} and {missed} of {sent}"
        );
        let arrived = operator.arrived();
        if arrived.is_empty() {
            // The next report has the number of missed frames.
            sent += 1;
            agent.send(&Frame::new(Command::STATS));
            agent.send(&probe);
            agent.frame();
        }
        for frame in arrived {
            let Received::Frame(frame) = frame else {
                panic!("the connection ended")
            };
            let watched: Watched = frame.payload().unwrap();
            (reported, missed) = (reported + watched.frames, missed + watched.missed);
        }
    }
    assert!(missed > 0 && reported > 0, "{reported} and {missed}");
}
