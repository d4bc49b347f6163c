//! Certificates that expire, and clocks that are set.

use super::*;

#[test]
fn a_session_ends_when_its_certificate_expires() {
    let (handler, received_notes) = notes();
    let mut rig = Rig::new(handler, |c| c);
    let before = rig.connect(Role::AGENT);
    rig.expires = Some(rig.wall + Duration::from_secs(10));
    let agent = rig.connect(Role::AGENT);
    assert_eq!(rig.core.next_deadline(), Some(rig.now + Duration::from_secs(10)));
    rig.pass(Duration::from_secs(9));
    assert!(rig.tick().is_empty());
    rig.pass(Duration::from_secs(1));
    let actions = rig.tick();
    assert!(ends_with_connection_failure(&actions, agent.id), "{actions:?}");
    let clock = ssntp_pki::rfc3339(rig.wall);
    let reason = format!("the certificate expired at 1970-01-01T00:00:00Z; the clock says {clock}");
    let ended = Note::Disconnected(DisconnectReason::Certificate(reason));
    assert_eq!(received_notes.try_iter().last(), Some(ended));
    assert_eq!(rig.core.next_deadline(), None);
    assert!(
        rig.core
            .state
            .delivery
            .sessions
            .get(SessionId(before.id))
            .is_some()
    );
}

#[test]
fn a_clock_set_back_ends_no_session_and_one_set_ahead_is_noticed_within_the_hour() {
    let hour = Duration::from_secs(3600);
    let (handler, _told) = notes();
    let mut rig = Rig::new(handler, |c| c);
    let start = rig.wall;
    rig.expires = Some(start + hour / 2);
    let agent = rig.connect(Role::AGENT);
    rig.pass(hour / 2);
    // A host without a battery-backed clock boots with such a time.
    rig.set_clock(UNIX_EPOCH);
    assert!(rig.tick().is_empty());
    assert_eq!(rig.core.next_deadline(), Some(rig.now + hour));
    rig.set_clock(start + hour);
    rig.now += hour;
    assert!(ends_with_connection_failure(&rig.tick(), agent.id));
}

#[test]
fn the_next_check_is_at_most_an_hour_and_at_least_a_second_away() {
    let (handler, _told) = notes();
    let mut rig = Rig::new(handler, |c| c);
    rig.expires = Some(UNIX_EPOCH + Duration::from_secs(253_402_300_799));
    rig.connect(Role::AGENT);
    for _ in 0..3 {
        assert_eq!(
            rig.core.next_deadline(),
            Some(rig.now + Duration::from_secs(3600))
        );
        rig.pass(Duration::from_secs(3600));
        assert!(rig.tick().is_empty());
    }
    // A certificate that expires during the handshake.
    rig.expires = Some(UNIX_EPOCH);
    rig.connect(Role::AGENT);
    assert_eq!(rig.core.next_deadline(), Some(rig.now + Duration::from_secs(1)));
}

#[test]
fn a_newcomer_verified_by_earlier_credentials_is_refused() {
    let (handler, _told) = notes();
    let mut rig = Rig::new(handler, |c| c);
    rig.connect(Role::AGENT);
    rig.core.state.admission.set_generation(1);
    let mut actions = Vec::new();
    let refused = rig.admit(Role::AGENT, Limits::default(), &mut actions);
    assert!(matches!(refused, Err(Refusal::Busy(_))));
    rig.generation = 1;
    rig.connect(Role::AGENT);
}

#[test]
fn a_certificate_that_is_not_valid_yet_ends_no_session() {
    let authority = Authority::new(&AuthorityRequest::default()).unwrap();
    let issue = |role| {
        authority
            .issue(&CertificateRequest::new(role))
            .unwrap()
            .identity()
    };
    let (server, agent) = (issue(Role::SERVER), issue(Role::AGENT));
    let far = UNIX_EPOCH + Duration::from_secs(250_000_000_000);
    for outlive in [false, true] {
        let config = ServerConfig::new(server.clone(), authority.trust()).outlive_certificates(outlive);
        let active = Environment::new(&config).unwrap().active();
        let objection = |at| active.objection(agent.chain(), agent.info(), at);
        assert_eq!(objection(UNIX_EPOCH), None);
        assert_eq!(objection(agent.info().not_before), None);
        let expired = objection(far);
        let says = |why: &String| why.starts_with("the certificate has expired, ");
        assert_eq!(expired.as_ref().is_some_and(says), !outlive, "{expired:?}");
        // The trust is checked at any time.
        let stranger = Authority::new(&AuthorityRequest::default()).unwrap();
        let stranger = stranger
            .issue(&CertificateRequest::new(Role::AGENT))
            .unwrap()
            .identity();
        let text = active
            .objection(stranger.chain(), stranger.info(), UNIX_EPOCH)
            .unwrap();
        assert!(text.contains("signed by") || text.contains("trusted"), "{text}");
    }
}
