//! One UUID at several servers: the session that stays, and the newcomers that are refused.

use std::sync::atomic::Ordering;

use ssntp::Role;
use ssntp::server::{DisconnectReason, SessionInfo};
use ssntp::transport::Target;
use ssntp_test_support::*;
use uuid::Uuid;

use crate::federation::{LONG, News, Node};

#[test]
fn a_session_is_taken_over_from_another_server_by_its_rules() {
    let one = Node::start(&[]);
    let two = Node::start(&[&one]);
    let uuid = Uuid::new_v4();
    let own = bound_identity(Role::AGENT, uuid);
    for (here, there) in [(&one, &two), (&two, &one), (&one, &two)] {
        let peer = here.server.connect_as(&own, Role::AGENT, uuid);
        there.await_news(&News::Remote(uuid));
        let counted = [here, there].map(|node| {
            let server = node.with(move |cx| {
                assert_eq!(cx.directory().with_role(Role::AGENT).count(), 1);
                cx.directory().session(uuid).map(SessionInfo::server)
            });
            server == Some(here.uuid())
        });
        assert_eq!(counted, [true; 2]);
        // The next session takes over, and this one ends as replaced.
        let mut next = there.server.connect_as(&own, Role::AGENT, uuid);
        here.await_news(&News::Ended(uuid, DisconnectReason::Replaced));
        next.finish();
        drop(peer);
        there.await_news(&News::Ended(uuid, DisconnectReason::PeerClosed));
        here.await_news(&News::RemoteGone(uuid));
    }
    // Another certificate with the role does not get the UUID on any server.
    let _holder = one.server.connect_as(&own, Role::AGENT, uuid);
    two.await_news(&News::Remote(uuid));
    let mut stranger = two.server.dial(&identity(Role::AGENT));
    let got = stranger.try_handshake(Role::AGENT, uuid, false, Default::default());
    assert!(!got);
    assert_eq!(
        one.with(move |cx| cx.directory().session(uuid).map(SessionInfo::server)),
        Some(one.uuid())
    );
}

#[test]
fn a_client_refused_by_one_server_keeps_its_session_at_another_one() {
    let one = Node::start(&[]);
    let two = Node::start_with(&[&one], |config| config.max_sessions(1));
    let uuid = Uuid::new_v4();
    let own = bound_identity(Role::AGENT, uuid);
    let _session = one.server.connect_as(&own, Role::AGENT, uuid);
    two.await_news(&News::Remote(uuid));
    let comes_in_vain = || {
        let mut again = two.server.dial(&own);
        assert!(!again.try_handshake(Role::AGENT, uuid, false, Default::default()));
        for node in [&one, &two] {
            let server = node.with(move |cx| cx.directory().session(uuid).map(SessionInfo::server));
            assert_eq!(server, Some(one.uuid()));
        }
    };
    // Its application refuses it.
    two.is_closed.store(true, Ordering::Relaxed);
    comes_in_vain();
    two.is_closed.store(false, Ordering::Relaxed);
    // The only place is taken.
    let _stays = two.server.connect(Role::CONTROLLER);
    comes_in_vain();
    // A draining server refuses newcomers. It keeps running, because this client does not leave.
    two.server.handle().drain(60 * LONG).unwrap();
    comes_in_vain();
}

#[test]
fn after_a_partition_the_later_session_stays_and_the_other_is_replaced() {
    let one = Node::start(&[]);
    let two = Node::start(&[]);
    let uuid = Uuid::new_v4();
    let own = bound_identity(Role::AGENT, uuid);
    let _first = one.server.connect_as(&own, Role::AGENT, uuid);
    // So the second server's admission has the greater stamp.
    let _other = two.server.connect(Role::CONTROLLER);
    let _second = two.server.connect_as(&own, Role::AGENT, uuid);
    let dialler = one.server.server.as_ref().unwrap().dialler().unwrap();
    assert!(dialler.dial(Target::from(&two.links)).unwrap());
    one.await_news(&News::Ended(uuid, DisconnectReason::Replaced));
    two.await_news(&News::RemoteGone(uuid));
    for node in [&one, &two] {
        let server = node.with(move |cx| cx.directory().session(uuid).map(SessionInfo::server));
        assert_eq!(server, Some(two.uuid()));
    }
}
