//! Links, step by step: their ends, and which of two links to one server stays.

use std::sync::atomic::{AtomicU64, Ordering};

use ssntp_pki::{CertificateDer, CertificateInfo};
use ssntp_transport::dispatch::{Action, Core};
use ssntp_transport::flow::{Credit, Delivery, Flow};
use ssntp_transport::{Budget, Limits, Outbox, PeerAddress};

use super::*;
use crate::Role;
use crate::proto::{Item, Run};
use crate::server::admission::{AdmissionRequest, Peer, RequestKind};
use crate::server::context::Context;
use crate::server::handler::{ClusterHandler, Handler};
use crate::server::tests::Rig;

/// Every other UUID is less than this.
const LAST: Uuid = Uuid::max();
const SECOND: Duration = Duration::from_secs(1);

/// Counts the ends of links, and the messages, that the application hears of.
struct Unlinks(Arc<AtomicU64>);

impl Handler for Unlinks {
    fn cluster(&mut self) -> Option<&mut dyn ClusterHandler> {
        Some(self)
    }
}

impl ClusterHandler for Unlinks {
    fn server_unlinked(&mut self, _: &mut Context<'_>, _: &ServerLink) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn server_message(&mut self, _: &mut Context<'_>, _: Uuid, _: Bytes) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

fn rig() -> Rig {
    Rig::new((), |config| config)
}

/// The start `incarnation` of another server asks for a link, or is dialled.
fn ask(
    rig: &mut Rig,
    (number, dialled): (u64, bool),
    uuid: Uuid,
    incarnation: u64,
    actions: &mut Vec<Action>,
) -> Result<ConnectionId, Refusal> {
    let id = ConnectionId(number);
    let hello = Hello {
        version: VERSION,
        uuid,
        incarnation,
        role: Role::SERVER,
        token: 5,
        max_payload: 1000,
        advertised: String::new(),
    };
    let peer = Peer {
        certificate: CertificateInfo::nothing(&CertificateDer::from(vec![7])),
        intermediates: Vec::new(),
        expires: rig.expires,
        generation: 0,
        address: PeerAddress::Memory,
    };
    let kind = RequestKind::Server(LinkRequest { hello, dialled });
    let outbox = Outbox::new(Limits::default()).counters();
    rig.core
        .admit(id, AdmissionRequest { peer, kind }, outbox, 0, rig.now, actions)?;
    Ok(id)
}

fn begin(rig: &mut Rig) -> ConnectionId {
    let mut actions = Vec::new();
    let link = ask(rig, (90, true), LAST, 1, &mut actions).unwrap();
    rig.core.admitted(link, true, rig.now, &mut actions);
    link
}

/// The ends of connections: each with true if it is aborted.
fn ends(actions: &[Action]) -> Vec<(ConnectionId, bool)> {
    let end = |action: &Action| match action {
        Action::End { id, abort } => Some((*id, *abort)),
        _ => None,
    };
    actions.iter().filter_map(end).collect()
}

#[test]
fn a_link_that_is_silent_for_ten_seconds_ends_with_its_holds() {
    let told = Arc::new(AtomicU64::new(0));
    let mut rig = Rig::new(Unlinks(Arc::clone(&told)), |config| config);
    let session = rig.connect(Role::AGENT);
    let link = begin(&mut rig);
    assert_eq!(rig.core.state.delivery.links.token(), 5, "the token of its HELLO");
    let number = session.id.0;
    let hold = Run::read(LinkFrame::Hold { number }.encode(), 1000).unwrap();
    let mut actions = Vec::new();
    rig.core
        .item(link, Item::Run(hold), u32::MAX, rig.now, &mut actions);
    assert!(matches!(actions[..], [Action::Pause { id, paused: true }] if id == session.id));
    for second in 0..10 {
        rig.pass(SECOND);
        let actions = rig.tick();
        assert!(
            matches!(actions[..], [Action::Send { to, .. }] if to == link),
            "{second}"
        );
    }
    rig.pass(SECOND);
    let actions = rig.tick();
    assert_eq!(ends(&actions), [(link, true)]);
    let release =
        |action: &Action| matches!(action, Action::Pause { id, paused: false } if *id == session.id);
    assert!(actions.iter().any(release), "{actions:?}");
    assert_eq!(told.load(Ordering::Relaxed), 0, "the application knew of no link");
}

/// A frame arrives on a link. Returns what it causes.
fn arrives(rig: &mut Rig, link: ConnectionId, frame: &LinkFrame) -> Vec<Action> {
    let run = Run::read(frame.encode(), 1000).unwrap();
    let mut actions = Vec::new();
    rig.core
        .item(link, Item::Run(run), u32::MAX, rig.now, &mut actions);
    actions
}

#[test]
fn a_message_under_a_lower_token_than_the_highest_known_is_dropped() {
    let told = Arc::new(AtomicU64::new(0));
    let mut rig = Rig::new(Unlinks(Arc::clone(&told)), |config| config);
    let link = begin(&mut rig);
    for (token, heard) in [(5, 1), (4, 1), (6, 2), (5, 2), (0, 3)] {
        let message = Bytes::from_static(b"one");
        arrives(&mut rig, link, &LinkFrame::Tell { token, message });
        assert_eq!(told.load(Ordering::Relaxed), heard, "{token}");
    }
}

#[test]
fn a_hold_of_a_session_that_has_ended_is_not_kept() {
    let mut rig = rig();
    let link = begin(&mut rig);
    let actions = arrives(&mut rig, link, &LinkFrame::Hold { number: 4711 });
    assert!(actions.is_empty(), "{actions:?}");
    assert_eq!(rig.core.state.delivery.links.figures(rig.now)[0].held, 0);
}

#[test]
fn a_server_that_did_not_run_ends_its_links() {
    for (pause, expected) in [(Duration::from_secs(9), false), (Duration::from_secs(10), true)] {
        let mut rig = rig();
        let link = begin(&mut rig);
        rig.pass(pause);
        rig.core.received(link, 1, rig.now);
        assert_eq!(!ends(&rig.tick()).is_empty(), expected, "{pause:?}");
    }
}

#[test]
fn a_link_ends_in_order_when_the_certificate_of_its_peer_expires() {
    let mut rig = rig();
    rig.expires = Some(rig.wall + SECOND * 2);
    let link = begin(&mut rig);
    rig.pass(SECOND);
    assert!(ends(&rig.tick()).is_empty());
    rig.pass(SECOND);
    assert_eq!(ends(&rig.tick()), [(link, false)]);
}

#[test]
fn a_link_gets_no_change_before_its_snapshot() {
    let mut rig = rig();
    let link = ask(&mut rig, (90, true), LAST, 1, &mut Vec::new()).unwrap();
    // This asserts that there is no action.
    rig.connect(Role::AGENT);
    let mut actions = Vec::new();
    rig.core.admitted(link, true, rig.now, &mut actions);
    assert!(matches!(actions[..], [Action::Send { to, .. }] if to == link));
}

#[test]
fn a_snapshot_has_no_session_whose_threads_do_not_run_yet() {
    let (mut rig, mut actions) = (rig(), Vec::new());
    rig.admit(Role::AGENT, Limits::default(), &mut actions).unwrap();
    let link = ask(&mut rig, (90, true), LAST, 1, &mut actions).unwrap();
    rig.core.admitted(link, true, rig.now, &mut actions);
    let empty = LinkFrame::Snapshot {
        sequence: 0,
        is_last: true,
        rows: Vec::new(),
    };
    let length = empty.encode().len() as u64;
    let is_empty = matches!(&actions[..], [Action::Send { item, .. }] if item.load().bytes == length);
    assert!(is_empty, "{actions:?}");
}

#[test]
fn of_two_links_that_stays_which_the_server_with_the_smaller_uuid_has_dialled() {
    // The UUID of the other server, true if this one has dialled, before and now, and the start of the other.
    for (uuid, before, now, start, is_taken) in [
        (LAST, true, false, 1, false),
        (LAST, false, true, 1, true),
        (Uuid::nil(), false, true, 1, false),
        (Uuid::nil(), true, false, 1, true),
        // The same server dials again.
        (LAST, true, true, 1, true),
        (Uuid::nil(), false, false, 1, true),
        // The other server was started again.
        (LAST, true, false, 2, true),
    ] {
        let (mut rig, mut actions) = (rig(), Vec::new());
        let old = ask(&mut rig, (90, before), uuid, 1, &mut actions).unwrap();
        rig.core.admitted(old, true, rig.now, &mut actions);
        let verdict = ask(&mut rig, (91, now), uuid, start, &mut actions);
        assert_eq!(verdict.is_ok(), is_taken, "{uuid} {before} {now} {start}");
        match verdict {
            Ok(new) => {
                assert_eq!(ends(&actions), [(old, false)]);
                assert_eq!(rig.core.state.delivery.links.to(uuid), Some(new));
            }
            Err(refusal) => assert_eq!(refusal, Refusal::Busy(DUPLICATE)),
        }
    }
}

#[test]
fn a_snapshot_of_many_sessions_ends_no_link_while_memory_is_short() {
    let mut rig = Rig::new((), |config| config.max_sessions(5 * ROWS));
    for _ in 0..4 * ROWS + 1 {
        rig.connect(Role::AGENT);
    }
    let mut actions = Vec::new();
    let link = ask(&mut rig, (9_000, true), LAST, 1, &mut actions).unwrap();
    rig.core.admitted(link, true, rig.now, &mut actions);
    let (limits, budget) = (Limits::default(), Budget::new(1 << 20));
    budget.take(1 << 20);
    let outbox = Outbox::within(limits, budget.clone());
    let mut flow = Flow::<()>::new(SECOND);
    flow.insert(link, None, outbox, limits, Arc::new(Credit::new(budget)), rig.now);
    let mut frames = 0;
    for action in actions {
        let Action::Send { origin, to, item } = action else {
            panic!("{action:?}")
        };
        frames += item.load().frames;
        assert_eq!(flow.deliver(origin, to, item, false, rig.now), Delivery::Taken);
    }
    assert_eq!(frames, 5);
}

#[test]
fn the_end_of_an_older_link_leaves_the_entry_and_the_sessions_of_the_newer_one() {
    let (mut rig, mut actions) = (rig(), Vec::new());
    let older = begin(&mut rig);
    // The server was started again, and its sessions are known over the newer link.
    let newer = ask(&mut rig, (91, true), LAST, 2, &mut actions).unwrap();
    rig.core.admitted(newer, true, rig.now, &mut actions);
    let row = Row {
        uuid: Uuid::from_u128(4711),
        number: 1,
        rank: Rank { token: 0, stamp: 1 },
        role: Role::AGENT,
        tracing: false,
        address: PeerAddress::Memory,
    };
    let (sequence, is_last, rows) = (0, true, vec![row]);
    arrives(
        &mut rig,
        newer,
        &LinkFrame::Snapshot {
            sequence,
            is_last,
            rows,
        },
    );
    let links = &mut rig.core.state.delivery.links;
    let mut out = Sending::new();
    links.end(older, EndCode::Closing, "late", true, &mut out);
    assert_eq!(links.to(LAST), Some(newer));
    assert_eq!(links.roster().iter().count(), 1);
    links.end(newer, EndCode::Closing, "now", true, &mut out);
    assert_eq!((links.to(LAST), links.roster().iter().count()), (None, 0));
}
