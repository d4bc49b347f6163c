//! Revocation lists: the certificates that they refuse, and those that they do not.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CrlDistributionPoint,
    CrlIssuingDistributionPoint, CrlScope, DistinguishedName, DnType, IsCa, Issuer, KeyIdMethod, KeyPair,
    KeyUsagePurpose, RevocationReason, RevokedCertParams, SigningKey,
};
use ssntp::Role;
use ssntp::pki::{
    Authority, AuthorityRequest, CertificateDer, CertificateInfo, CertificateRequest,
    CertificateRevocationListDer, Error, Fault, Identity, PrivateKeyDer, RevocationLists, ServerCheck, Trust,
};
use ssntp::rustls::{self, AlertDescription, CertificateError};
use ssntp::transport::memory;
use ssntp_transport::tls::{Acceptor, Connector, TlsError};
use ssntp_transport::{BufferPool, Outgoing};

use ssntp_test_support::{LIMIT, warnings};

/// Makes the revocation lists of an authority.
pub(crate) struct Lister(Issuer<'static, KeyPair>);

impl Lister {
    pub(crate) fn of(authority: &Authority) -> Self {
        let key = KeyPair::from_pem(&authority.key_pem()).unwrap();
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        // The name of an authority by default.
        params.distinguished_name.push(DnType::OrganizationName, "ssntp");
        params.distinguished_name.push(DnType::CommonName, "ssntp CA");
        Self(Issuer::new(params, key))
    }

    /// The same for an authority of another name.
    fn named(authority: &Authority, name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::OrganizationName, name);
        let key = KeyPair::from_pem(&authority.key_pem()).unwrap();
        Self(Issuer::new(params, key))
    }

    fn params(&self, revoked: &[&CertificateInfo]) -> CertificateRevocationListParams {
        let bytes = |info: &CertificateInfo| {
            let digits = info.serial.split(':');
            digits
                .map(|byte| u8::from_str_radix(byte, 16).unwrap())
                .collect::<Vec<_>>()
        };
        let entry = |info: &&CertificateInfo| RevokedCertParams {
            serial_number: bytes(info).into(),
            revocation_time: rcgen::date_time_ymd(2020, 1, 1),
            reason_code: Some(RevocationReason::KeyCompromise),
            invalidity_date: None,
        };
        CertificateRevocationListParams {
            this_update: rcgen::date_time_ymd(2020, 1, 1),
            next_update: rcgen::date_time_ymd(2100, 1, 1),
            crl_number: vec![7].into(),
            issuing_distribution_point: None,
            revoked_certs: revoked.iter().map(entry).collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        }
    }

    fn sign(&self, params: &CertificateRevocationListParams) -> CertificateRevocationListDer<'static> {
        params.signed_by(&self.0).unwrap().der().clone()
    }

    fn der(&self, revoked: &[&CertificateInfo]) -> CertificateRevocationListDer<'static> {
        self.sign(&self.params(revoked))
    }

    /// A list of these certificates that is valid until 2100.
    pub(crate) fn list(&self, revoked: &[&CertificateInfo]) -> RevocationLists {
        RevocationLists::from_der(&[self.der(revoked)]).unwrap()
    }

    /// A list with this number that was signed in this year.
    pub(crate) fn numbered(&self, number: u8, year: i32) -> RevocationLists {
        let mut params = self.params(&[]);
        params.crl_number = vec![number].into();
        params.this_update = rcgen::date_time_ymd(year, 1, 1);
        RevocationLists::from_der(&[self.sign(&params)]).unwrap()
    }

    /// A list whose next update was due in 2021.
    pub(crate) fn overdue(&self, revoked: &[&CertificateInfo]) -> RevocationLists {
        let mut params = self.params(revoked);
        params.next_update = rcgen::date_time_ymd(2021, 1, 1);
        RevocationLists::from_der(&[self.sign(&params)]).unwrap()
    }
}

fn authority() -> Authority {
    Authority::new(&AuthorityRequest::default()).unwrap()
}

fn issue(authority: &Authority, role: Role) -> Identity {
    authority
        .issue(&CertificateRequest::new(role))
        .unwrap()
        .identity()
}

fn fault<T: std::fmt::Debug>(result: Result<T, Error>) -> Fault {
    match result.unwrap_err() {
        Error::Content { fault, .. } => fault,
        other => panic!("{other}"),
    }
}

fn revoked(identity: &Identity) -> Fault {
    let info = identity.info();
    Fault::Revoked {
        subject: info.subject.clone(),
        serial: info.serial.clone(),
    }
}

/// The errors of a handshake on both sides. With TLS 1.3 a client gets the server's refusal with its first
/// read.
fn meet(acceptor: &Acceptor, connector: &Connector) -> (Option<TlsError>, Option<TlsError>) {
    let (local, remote) = memory::pair();
    let deadline = Instant::now() + LIMIT;
    std::thread::scope(|scope| {
        let client = scope.spawn(move || {
            let mut secured =
                connector.connect(Arc::new(remote), "localhost", &BufferPool::new(), deadline)?;
            secured.halves.stream.set_read_timeout(Some(LIMIT))?;
            secured.halves.receive.receive(&mut secured.halves.inbox)?;
            Ok(())
        });
        let accepted = acceptor.accept(Arc::new(local), &BufferPool::new(), deadline);
        let accepted = accepted.map(|mut secured| {
            let byte = Outgoing::whole(vec![1].into(), 1);
            let _ = secured.halves.transmit.transmit(&[byte]);
            secured
        });
        let client: Result<(), TlsError> = client.join().unwrap();
        (accepted.err(), client.err())
    })
}

fn is_revoked(error: Option<TlsError>) -> bool {
    let revoked = rustls::Error::InvalidCertificate(CertificateError::Revoked);
    matches!(error, Some(TlsError::Tls(e)) if e == revoked)
}

fn alert(error: Option<TlsError>) -> Option<AlertDescription> {
    match error {
        Some(TlsError::Tls(rustls::Error::AlertReceived(alert))) => Some(alert),
        _ => None,
    }
}

#[test]
fn a_file_may_hold_lists_of_several_authorities_among_other_things() {
    let (one, other) = (authority(), authority());
    let [agent, netagent] = [Role::AGENT, Role::NETAGENT].map(|role| issue(&one, role));
    let pem = [
        Lister::of(&one)
            .params(&[agent.info(), netagent.info()])
            .signed_by(&Lister::of(&one).0),
        Lister::of(&other).params(&[]).signed_by(&Lister::of(&other).0),
    ];
    let pem = pem
        .map(|list| list.unwrap().pem().unwrap())
        .join(one.certificate_pem());
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("crl.pem");
    std::fs::write(&path, pem).unwrap();
    let lists = RevocationLists::load(&path).unwrap();
    let [first, second] = lists.lists() else {
        panic!("{lists:?}")
    };
    assert_eq!(first.issuer, one.info().subject);
    assert_eq!(first.this_update_text(), "2020-01-01T00:00:00Z");
    assert_eq!(first.next_update_text().unwrap(), "2100-01-01T00:00:00Z");
    assert_eq!((first.len(), second.len()), (2, 0));
    assert!(!first.is_empty() && second.is_empty());
    let serial = &agent.info().serial;
    let plain = serial.replace(':', "");
    for found in [serial, &serial.to_uppercase(), &plain, &format!("00{plain}")] {
        assert!(first.revokes(&found.parse().unwrap()), "{found}");
    }
    for absent in [&plain[1..], &other.info().serial] {
        assert!(!first.revokes(&absent.parse().unwrap()), "{absent:?}");
    }
    assert!(!second.revokes(&serial.parse().unwrap()));
    let both = Trust::from_der(&[one.info().der.clone(), other.info().der.clone()]).unwrap();
    let trust = both.with_revocation_lists(&lists).unwrap();
    assert_eq!(trust.revocation_lists().len(), 2);
    assert!(both.revocation_lists().is_empty(), "the old trust is unchanged");
}

#[test]
fn only_certificates_in_the_list_are_refused() {
    let authority = authority();
    let [agent, other] = [(); 2].map(|()| issue(&authority, Role::AGENT));
    let list = Lister::of(&authority).list(&[agent.info()]);
    let trust = authority.trust().with_revocation_lists(&list).unwrap();
    assert_eq!(trust.verify(agent.chain()), Err(revoked(&agent)));
    trust.verify(other.chain()).unwrap();
    // A later list replaces the earlier one.
    let later = Lister::of(&authority).list(&[other.info()]);
    let trust = trust.with_revocation_lists(&later).unwrap();
    trust.verify(agent.chain()).unwrap();
    assert_eq!(trust.verify(other.chain()), Err(revoked(&other)));
}

#[test]
fn both_sides_of_a_handshake_refuse_a_revoked_certificate_by_name() {
    let authority = authority();
    let [server, agent] = [Role::SERVER, Role::AGENT].map(|role| issue(&authority, role));
    let plain = authority.trust();
    let without = |identity: &Identity| {
        let list = Lister::of(&authority).list(&[identity.info()]);
        plain.with_revocation_lists(&list).unwrap()
    };
    let acceptor = |trust: &Trust| trust.acceptor(&server).unwrap();
    let connector = |trust: &Trust| trust.connector(&agent).unwrap();

    let (accepted, connected) = meet(&acceptor(&without(&server)), &connector(&without(&agent)));
    assert!(
        accepted.is_none() && connected.is_none(),
        "without lists each certificate is accepted"
    );

    let (accepted, connected) = meet(&acceptor(&without(&agent)), &connector(&plain));
    let text = accepted.as_ref().unwrap().to_string();
    assert_eq!(text, "TLS: the peer's certificate is revoked");
    assert!(is_revoked(accepted));
    assert_eq!(alert(connected), Some(AlertDescription::CertificateRevoked));

    let (accepted, connected) = meet(&acceptor(&plain), &connector(&without(&server)));
    assert_eq!(alert(accepted), Some(AlertDescription::CertificateRevoked));
    assert!(is_revoked(connected));

    // This also holds if no name is checked.
    let check = without(&server);
    let any = ServerCheck::Authority(&check).connector(Some(&agent)).unwrap();
    assert!(is_revoked(meet(&acceptor(&plain), &any).1));
}

#[test]
fn a_peer_refused_for_a_clock_or_an_overdue_list_may_try_again() {
    // `client::DialFault` has the alerts after which a client stays away.
    let day = Duration::from_secs(86_400);
    let authority = authority();
    let [server, agent] = [Role::SERVER, Role::AGENT].map(|role| issue(&authority, role));
    let plain = authority.trust().acceptor(&server).unwrap();
    // For a server whose clock is behind, the certificate is not valid yet.
    for from in [SystemTime::now() + day, SystemTime::now() - 2 * day] {
        let request = CertificateRequest::new(Role::AGENT).valid_from(from).days(1);
        let agent = authority.issue(&request).unwrap().identity();
        let connector = authority.trust().connector(&agent).unwrap();
        let alert_of_peer = alert(meet(&plain, &connector).1);
        assert_eq!(alert_of_peer, Some(AlertDescription::CertificateExpired));
    }
    let mut valid = Duration::from_secs(2);
    let late = loop {
        let over = SystemTime::now() + valid;
        let since = over.duration_since(SystemTime::UNIX_EPOCH).unwrap();
        let mut params = Lister::of(&authority).params(&[]);
        params.next_update = rcgen::date_time_ymd(1970, 1, 1) + since;
        let list = RevocationLists::from_der(&[Lister::of(&authority).sign(&params)]).unwrap();
        // On a busy machine the time may have passed already.
        if let Ok(trust) = authority
            .trust()
            .with_revocation_lists(&list.enforce_expiry(true))
        {
            while let Ok(left) = over.duration_since(SystemTime::now()) {
                std::thread::sleep(left + Duration::from_secs(1));
            }
            break trust.acceptor(&server).unwrap();
        }
        valid *= 2;
        assert!(valid < LIMIT, "every list was late");
    };
    let connector = authority.trust().connector(&agent).unwrap();
    let (accepted, connected) = meet(&late, &connector);
    let error = accepted.unwrap().to_string();
    assert!(error.contains("should have been replaced"), "{error}");
    assert_eq!(alert(connected), Some(AlertDescription::HandshakeFailure));
}

#[test]
fn the_list_of_a_namesake_applies_only_to_its_own_certificates() {
    // An authority and the one that replaces it have one name.
    let (old, new) = (authority(), authority());
    assert_eq!(old.info().subject, new.info().subject);
    let agent = issue(&new, Role::AGENT);
    let both = Trust::from_der(&[old.info().der.clone(), new.info().der.clone()]).unwrap();
    for enforced in [false, true] {
        let of_old = Lister::of(&old).list(&[agent.info()]).enforce_expiry(enforced);
        let trust = both.with_revocation_lists(&of_old).unwrap();
        let later = SystemTime::now() + Duration::from_secs(86_400);
        trust.verify_at(agent.chain(), later).unwrap();
    }
    let of_new = Lister::of(&new).list(&[agent.info()]);
    let trust = both.with_revocation_lists(&of_new).unwrap();
    assert_eq!(trust.verify(agent.chain()), Err(revoked(&agent)));
    // The list of an authority is dropped with the authority.
    let alone = new.trust().with_revocation_lists(&Lister::of(&old).list(&[]));
    let issuer = old.info().subject.clone();
    assert_eq!(fault(alone), Fault::RevocationListSignature(issuer));
}

#[test]
fn the_list_of_a_replaced_namesake_authority_is_ignored() {
    let (old, new) = (authority(), authority());
    let (stolen, good) = (issue(&new, Role::AGENT), issue(&new, Role::AGENT));
    let lists = [Lister::of(&old).der(&[]), Lister::of(&new).der(&[stolen.info()])];
    for order in [[0, 1], [1, 0]] {
        let both = RevocationLists::from_der(&order.map(|at| lists[at].clone())).unwrap();
        let trust = new.trust().with_revocation_lists(&both).unwrap();
        assert_eq!(trust.verify(stolen.chain()), Err(revoked(&stolen)));
        trust.verify(good.chain()).unwrap();
    }
    // A list of an unknown authority alone may be forged.
    let alone = RevocationLists::from_der(&lists[..1]).unwrap();
    assert!(new.trust().with_revocation_lists(&alone).is_err());
}

#[test]
fn no_list_is_replaced_by_an_older_one_or_left_out() {
    // Both have the same name and differ only in their keys.
    let (authority, namesake) = (authority(), authority());
    let (lister, other) = (Lister::of(&authority), Lister::of(&namesake));
    let both = Trust::from_der(&[authority.info().der.clone(), namesake.info().der.clone()]).unwrap();
    let with = |lists: RevocationLists| both.with_revocation_lists(&lists).unwrap();
    let former = with(lister.numbered(7, 2024));
    for (number, year) in [(6, 2024), (7, 2023), (6, 2025), (8, 2023)] {
        let fault = with(lister.numbered(number, year))
            .check_follows(&former)
            .unwrap_err();
        let reason = "is older than the one in force, which was signed at 2024-01-01T00:00:00Z";
        assert!(fault.to_string().ends_with(reason), "{fault}");
    }
    for (number, year) in [(7, 2024), (8, 2024), (8, 2025)] {
        with(lister.numbered(number, year))
            .check_follows(&former)
            .unwrap();
    }
    let left_out = with(other.numbered(9, 2025)).check_follows(&former);
    assert!(matches!(left_out, Err(Fault::RevocationListOlder { .. })));
    // The authority is removed with its list, or all lists are removed.
    let later = namesake.trust().with_revocation_lists(&other.numbered(1, 2020));
    later.unwrap().check_follows(&former).unwrap();
    both.check_follows(&former).unwrap();
    former.check_follows(&both).unwrap();
}

#[test]
fn lists_of_other_authorities_alone_are_refused_if_expiry_is_enforced() {
    let (authority, stranger) = (authority(), Authority::new(&AuthorityRequest::default()).unwrap());
    let foreign = Lister::named(&stranger, "strangers").der(&[]);
    let lists = |ders: &[CertificateRevocationListDer<'static>]| RevocationLists::from_der(ders).unwrap();
    let alone = lists(std::slice::from_ref(&foreign));
    authority.trust().with_revocation_lists(&alone).unwrap();
    let refused = authority
        .trust()
        .with_revocation_lists(&alone.enforce_expiry(true));
    let issuers = "\"O=strangers\"".to_owned();
    assert_eq!(fault(refused), Fault::RevocationListsOfOthers(issuers));
    // With the list of a trusted authority, it may be that of an intermediate one.
    let own = Lister::of(&authority).der(&[]);
    let both = lists(&[foreign, own]).enforce_expiry(true);
    authority.trust().with_revocation_lists(&both).unwrap();
}

#[test]
fn a_warning_is_logged_if_the_own_certificate_is_revoked() {
    let authority = authority();
    let [server, agent] = [Role::SERVER, Role::AGENT].map(|role| issue(&authority, role));
    let list = Lister::of(&authority).list(&[server.info(), agent.info()]);
    let trust = authority.trust().with_revocation_lists(&list).unwrap();
    let warned = warnings(|| {
        trust.acceptor(&server).unwrap();
        trust.connector(&agent).unwrap();
    });
    let names = [server, agent].map(|identity| identity.info().subject.clone());
    assert_eq!(warned.len(), 2, "{warned:?}");
    for (line, name) in warned.iter().zip(names) {
        let is_warning =
            line.contains("this program's own certificate is not accepted any more") && line.contains(&name);
        assert!(is_warning, "{line}");
    }
}

#[test]
fn an_overdue_list_counts_unless_its_time_is_enforced() {
    let authority = authority();
    let [agent, other] = [(); 2].map(|()| issue(&authority, Role::AGENT));
    let lister = Lister::of(&authority);
    let overdue = lister.overdue(&[agent.info()]);
    assert!(overdue.lists()[0].is_overdue(SystemTime::now()));
    let trust = authority.trust().with_revocation_lists(&overdue).unwrap();
    assert_eq!(trust.verify(agent.chain()), Err(revoked(&agent)));
    trust.verify(other.chain()).unwrap();

    let issuer = authority.info().subject.clone();
    let refused = authority
        .trust()
        .with_revocation_lists(&overdue.enforce_expiry(true));
    let next_update = "2021-01-01T00:00:00Z".to_owned();
    assert_eq!(
        fault(refused),
        Fault::RevocationListOverdue {
            issuer: issuer.clone(),
            next_update
        }
    );
}

#[test]
fn a_list_that_becomes_overdue_refuses_peers_for_now() {
    let ca = Authority::new(&AuthorityRequest::default().days(36_000)).unwrap();
    let request = CertificateRequest::new(Role::AGENT).days(36_000);
    let agent = ca.issue(&request).unwrap().identity();
    let list = Lister::of(&ca).list(&[]).enforce_expiry(true);
    let trust = ca.trust().with_revocation_lists(&list).unwrap();
    trust.verify(agent.chain()).unwrap();
    let in_2101 = SystemTime::UNIX_EPOCH + Duration::from_secs(131 * 365 * 86_400 + 32 * 86_400);
    let late = trust.verify_at(agent.chain(), in_2101).unwrap_err();
    assert!(matches!(late, Fault::RevocationListOverdue { .. }), "{late}");
    let counted = ca
        .trust()
        .with_revocation_lists(&Lister::of(&ca).list(&[]))
        .unwrap();
    counted.verify_at(agent.chain(), in_2101).unwrap();
}

#[test]
fn a_file_without_a_list_is_named_in_the_error() {
    let authority = authority();
    let der = Lister::of(&authority).der(&[]);
    let from_pem = |pem: &str| fault(RevocationLists::from_pem(pem.as_bytes(), "x"));
    assert_eq!(from_pem("nothing"), Fault::NotPem);
    assert_eq!(from_pem(authority.certificate_pem()), Fault::NoRevocationList);
    let disguised = authority.certificate_pem().replace("CERTIFICATE", "X509 CRL");
    assert!(matches!(from_pem(&disguised), Fault::BadRevocationList(_)));
    let from_der = |bytes: &[u8]| fault(RevocationLists::from_der(&[bytes.to_vec().into()]));
    assert_eq!(fault(RevocationLists::from_der(&[])), Fault::NoRevocationList);
    assert_eq!(from_der(b"-----BEGIN X509 CRL-----\n"), Fault::NotDer);
    let long = [&der[..], b"\0"].concat();
    assert!(matches!(from_der(&long), Fault::BadRevocationList(_)));
    let missing = RevocationLists::load("/nonexistent/crl.pem").unwrap_err();
    assert!(matches!(missing, Error::Read { .. }));
}

#[test]
fn lists_of_changes_and_of_several_issuers_are_not_understood() {
    let authority = authority();
    let lister = Lister::of(&authority);
    let mut params = lister.params(&[]);
    params.issuing_distribution_point = Some(CrlIssuingDistributionPoint {
        distribution_point: CrlDistributionPoint {
            uris: vec!["http://example/crl".to_owned()],
        },
        scope: Some(CrlScope::UserCertsOnly),
    });
    let der = lister.sign(&params);
    RevocationLists::from_der(std::slice::from_ref(&der)).unwrap();
    // onlyContainsUserCerts becomes indirectCRL, and the number of the list that
    // of another list.
    let patched = |from: &[u8], to: &[u8]| {
        let mut der = der.to_vec();
        let at = der.windows(from.len()).position(|part| part == from).unwrap();
        der[at..at + to.len()].copy_from_slice(to);
        fault(RevocationLists::from_der(&[der.into()]))
    };
    for (from, to) in [
        ([0x81, 1, 0xff], [0x84, 1, 0xff]),
        ([0x55, 0x1d, 0x14], [0x55, 0x1d, 0x1b]),
    ] {
        let fault = patched(&from, &to);
        assert!(matches!(fault, Fault::BadRevocationList(_)), "{fault}");
    }
}

#[test]
fn a_damaged_list_is_refused_or_unchanged_in_effect() {
    let authority = authority();
    let [agent, other] = [(); 2].map(|()| issue(&authority, Role::AGENT));
    let der = Lister::of(&authority).der(&[agent.info()]);
    for at in 0..der.len() {
        for flip in [0x01, 0x20, 0x80, 0xff] {
            let mut damaged = der.to_vec();
            damaged[at] ^= flip;
            let Ok(lists) = RevocationLists::from_der(&[damaged.into()]) else {
                continue;
            };
            let Ok(trust) = authority.trust().with_revocation_lists(&lists) else {
                continue;
            };
            // With another name it is the list of an unknown issuer, and applies to no certificate here.
            let verdict = trust.verify(agent.chain()).map(drop);
            assert!(verdict == Ok(()) || verdict == Err(revoked(&agent)), "byte {at}");
            trust.verify(other.chain()).unwrap();
        }
        assert!(RevocationLists::from_der(&[der[..at].to_vec().into()]).is_err());
    }
}

/// An authority with this name, and its lists.
pub(crate) struct Issuing {
    pub(crate) der: CertificateDer<'static>,
    pub(crate) lister: Lister,
}

pub(crate) fn issuing(name: &str, above: Option<&Issuing>, usages: &[KeyUsagePurpose]) -> Issuing {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = usages.to_vec();
    let certificate = match above {
        Some(above) => params.signed_by(&key, &above.lister.0),
        None => params.self_signed(&key),
    };
    params.key_usages = Vec::new();
    Issuing {
        der: certificate.unwrap().der().clone(),
        lister: Lister(Issuer::new(params, key)),
    }
}

/// An agent that shows the authority's certificate with its own.
pub(crate) fn issued(above: &Issuing) -> Identity {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, "peer");
    let arc = rcgen::ExtendedKeyUsagePurpose::Other(vec![1, 3, 6, 1, 4, 1, 343, 8, 1]);
    params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ClientAuth, arc];
    let certificate = params.signed_by(&key, &above.lister.0).unwrap();
    let chain = vec![certificate.der().clone(), above.der.clone()];
    Identity::from_der(chain, PrivateKeyDer::Pkcs8(key.serialize_der().into())).unwrap()
}

#[test]
fn the_whole_chain_counts_and_so_does_the_list_of_an_authority_in_between() {
    let root = issuing("root", None, &[]);
    let between = issuing("between", Some(&root), &[]);
    let namesake = issuing("between", Some(&root), &[]);
    let [one, other] = [&between, &namesake].map(issued);
    let (chain, of_namesake) = (one.chain(), other.chain());
    let trust = Trust::from_der(std::slice::from_ref(&root.der)).unwrap();
    let info = |der: &CertificateDer<'static>| CertificateInfo::from_der(der).unwrap();
    let verify = |lists: &RevocationLists, chain: &[CertificateDer<'static>]| {
        let trust = trust.with_revocation_lists(lists).unwrap();
        trust.verify(chain).map(drop)
    };
    let is_revoked = |verified: Result<(), Fault>, subject: &str| matches!(verified, Err(Fault::Revoked { subject: of, .. }) if of == subject);
    // The root revokes the intermediate authority, and so all certificates that it has issued.
    let of_root = root.lister.list(&[&info(&between.der)]);
    assert!(is_revoked(verify(&of_root, chain), "CN=between"));
    assert_eq!(verify(&of_root, of_namesake), Ok(()));
    // The intermediate authority revokes one of its certificates.
    let own = between.lister.list(&[&info(&chain[0]), &info(&of_namesake[0])]);
    assert!(is_revoked(verify(&own, chain), "CN=peer"));
    assert_eq!(verify(&own, of_namesake), Ok(()));
    assert_eq!(verify(&own, issued(&between).chain()), Ok(()));
}

#[test]
fn an_authority_without_the_key_usage_signs_no_lists() {
    let root = issuing("root", None, &[KeyUsagePurpose::KeyCertSign]);
    let trust = Trust::from_der(std::slice::from_ref(&root.der)).unwrap();
    let issuer = "CN=root".to_owned();
    assert_eq!(
        fault(trust.with_revocation_lists(&root.lister.list(&[]))),
        Fault::NotForRevocationLists(issuer)
    );
}

#[test]
fn a_certificate_of_version_1_is_revoked_like_any_other() {
    let authority = authority();
    let server = issue(&authority, Role::SERVER);
    let old = version_1(&authority, issue(&authority, Role::AGENT).info());
    let agent = issue(&authority, Role::AGENT);
    let trust_without = |identity: &Identity| {
        let list = Lister::of(&authority).list(&[identity.info()]);
        authority.trust().with_revocation_lists(&list).unwrap()
    };
    for (trust, refused) in [(trust_without(&agent), false), (trust_without(&old), true)] {
        let acceptor = trust.acceptor_of_any_version(&server).unwrap();
        let connector = trust.connector(&old).unwrap();
        let (accepted, connected) = meet(&acceptor, &connector);
        assert_eq!(accepted.is_some(), refused, "{accepted:?}");
        assert_eq!(is_revoked(accepted), refused);
        let expected = refused.then_some(AlertDescription::CertificateRevoked);
        assert_eq!(alert(connected), expected);
        // The certificate of a server is refused as well, if version 1 is accepted.
        let acceptor = Acceptor::server_only(old.certified_key()).unwrap();
        let check = ServerCheck::Authority(&trust);
        let (_, connected) = meet(&acceptor, &check.connector(None).unwrap());
        assert_eq!(is_revoked(connected), refused);
    }
}

/// The same certificate as version 1, as openssl makes it without extensions: without its version and
/// extensions, signed again.
fn version_1(authority: &Authority, model: &CertificateInfo) -> Identity {
    let key = KeyPair::generate().unwrap();
    let (_, whole) = element(&model.der);
    let (length, signed) = element(whole);
    let algorithm = &whole[length..];
    let algorithm = &algorithm[..element(algorithm).0];
    let mut content = Vec::new();
    let mut rest = signed;
    while !rest.is_empty() {
        let (length, _) = element(rest);
        let part = &rest[..length];
        rest = &rest[length..];
        match part[0] {
            // The version and the extensions.
            0xa0 | 0xa3 => {}
            // The key is the last but one.
            _ if rest.first() == Some(&0xa3) => {
                content.extend(rcgen::PublicKeyData::subject_public_key_info(&key));
            }
            _ => content.extend(part),
        }
    }
    let signed = tlv(0x30, &content);
    let by = KeyPair::from_pem(&authority.key_pem()).unwrap();
    let signature = [&[0][..], &by.sign(&signed).unwrap()].concat();
    let der = tlv(0x30, &[&signed, algorithm, &tlv(0x03, &signature)[..]].concat());
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("v1.pem");
    let base64 = to_base64(&der);
    let pem = format!("-----BEGIN CERTIFICATE-----\n{base64}-----END CERTIFICATE-----\n");
    std::fs::write(&path, pem + &key.serialize_pem()).unwrap();
    Identity::load_without_role(&path, None, None).unwrap()
}

/// The length of the first DER element, and its content.
fn element(der: &[u8]) -> (usize, &[u8]) {
    let (head, length) = match der[1] {
        0x81 => (3, usize::from(der[2])),
        0x82 => (4, usize::from(der[2]) << 8 | usize::from(der[3])),
        short => (2, usize::from(short)),
    };
    (head + length, &der[head..head + length])
}

fn tlv(tag: u8, content: &[u8]) -> Vec<u8> {
    let length = content.len();
    let head = match length {
        0..0x80 => vec![tag, length as u8],
        0x80..0x100 => vec![tag, 0x81, length as u8],
        _ => vec![tag, 0x82, (length >> 8) as u8, length as u8],
    };
    [head, content.to_vec()].concat()
}

fn to_base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for three in bytes.chunks(3) {
        let bits =
            three.iter().fold(0u32, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - three.len()));
        for digit in 0..4 {
            let at = (bits >> (18 - 6 * digit)) & 63;
            let padding = digit > three.len();
            text.push(if padding { '=' } else { DIGITS[at as usize].into() });
        }
        if text.len() % 65 == 64 {
            text.push('\n');
        }
    }
    text + "\n"
}
