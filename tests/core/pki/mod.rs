//! Certificates that are issued here or by openssl: valid ones, and each kind of bad one.

mod held_elsewhere;
mod limits;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use rustls::pki_types::pem::PemObject;
use ssntp::Role;
use ssntp::pki::{
    Authority, AuthorityRequest, BadRequest, CertificateDer, CertificateInfo, CertificateRequest, Error,
    Fault, Host, Identity, Issued, KeyKind, PrivateKeyDer, Trust, load_certificates, rfc3339,
};
use ssntp::transport::memory;
use ssntp_test_support::warnings;
use ssntp_transport::BufferPool;
use ssntp_transport::tls::{Secured, TlsError};
use uuid::Uuid;

const DAY: Duration = Duration::from_secs(86_400);

fn authority() -> Authority {
    Authority::new(&AuthorityRequest::default()).unwrap()
}

fn issue(roles: Role) -> (Authority, Issued) {
    let authority = authority();
    let issued = authority.issue(&CertificateRequest::new(roles)).unwrap();
    (authority, issued)
}

/// A time near the present, without reading the clock.
fn now(authority: &Authority) -> SystemTime {
    authority.info().not_before
}

fn fixture(name: &str) -> String {
    format!("{}/tests/fixtures/pki/{name}", env!("CARGO_MANIFEST_DIR"))
}

fn fault<T: std::fmt::Debug>(result: Result<T, Error>) -> Fault {
    match result.unwrap_err() {
        Error::Content { fault, .. } => fault,
        other => panic!("{other}"),
    }
}

fn private_key(issued: &Issued) -> PrivateKeyDer<'static> {
    PrivateKeyDer::from_pem_slice(issued.key_pem().as_bytes()).unwrap()
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn a_text_that_is_no_host_is_refused_when_the_certificate_is_issued() {
    for bad in ["sched.example:8888", "", "a b"] {
        let request = CertificateRequest::new(Role::SERVER).host("a.example").host(bad);
        let refused = authority().issue(&request).map(drop);
        assert!(
            matches!(&refused, Err(Error::Request(BadRequest::Host(text))) if text == bad),
            "{refused:?}"
        );
    }
}

#[test]
fn every_set_of_roles_survives_certificate_and_file() {
    let authority = authority();
    for bits in 1..=Role::ALL.bits() {
        let roles = Role::from_bits(bits);
        let issued = authority.issue(&CertificateRequest::new(roles)).unwrap();
        let identity = Identity::from_pem(issued.to_pem().as_bytes(), "memory").unwrap();
        assert_eq!(identity.roles(), roles);
        let info = authority.trust().verify(identity.chain()).unwrap();
        assert_eq!(&info, identity.info());
        assert_eq!(
            info.subject,
            format!("CN={}", roles.to_string().replace(',', "-"))
        );
        assert_eq!(info.server_auth, roles.intersects(Role::SERVER | Role::SCHEDULER));
        assert!(info.client_auth);
    }
}

#[test]
fn role_identifiers_stand_in_the_certificate_byte_by_byte() {
    let last_arcs = [
        (Role::SERVER, 5),
        (Role::CONTROLLER, 3),
        (Role::AGENT, 1),
        (Role::SCHEDULER, 2),
        (Role::NETAGENT, 4),
        (Role::CNCIAGENT, 6),
    ];
    let authority = authority();
    for (role, arc) in last_arcs {
        let issued = authority.issue(&CertificateRequest::new(role)).unwrap();
        let der = issued.info().der.as_ref();
        for (_, other) in last_arcs {
            let oid = [0x06, 0x09, 0x2b, 6, 1, 4, 1, 0x82, 0x57, 8, other];
            let is_present = der.windows(oid.len()).any(|window| window == oid);
            assert_eq!(is_present, other == arc, "{role} {other}");
        }
    }
}

#[test]
fn a_server_certificate_is_for_this_machine_by_default() {
    let (authority, issued) = issue(Role::SERVER | Role::AGENT);
    let hosts: Vec<String> = issued.info().hosts.iter().map(Host::to_string).collect();
    // The name of this machine is the first, unless a certificate cannot hold it.
    assert!(hosts.ends_with(&["localhost", "127.0.0.1", "::1"].map(String::from)));
    assert!(hosts.len() <= 4);

    let request = CertificateRequest::new(Role::SCHEDULER)
        .host("sched.example")
        .host("[2001:db8::7]");
    let issued = authority.issue(&request).unwrap();
    assert_eq!(issued.info().dns_names().collect::<Vec<_>>(), ["sched.example"]);
    let addresses: Vec<_> = issued.info().addresses().map(|a| a.to_string()).collect();
    assert_eq!(addresses, ["2001:db8::7"]);

    let (_, agent) = issue(Role::AGENT);
    assert!(agent.info().hosts.is_empty());
}

#[test]
fn a_uuid_binds_its_holder() {
    let uuid = Uuid::new_v4();
    let authority = authority();
    let request = CertificateRequest::new(Role::AGENT).uuid(uuid);
    let identity = authority.issue(&request).unwrap().identity();
    assert_eq!(identity.uuid(), Some(uuid));
    let nil = CertificateRequest::new(Role::AGENT).uuid(Uuid::nil());
    assert!(matches!(
        authority.issue(&nil),
        Err(Error::Request(BadRequest::NilUuid))
    ));
    let fault = fault(Identity::load(fixture("bad-uuid.pem")));
    assert_eq!(fault, Fault::BadUuid("urn:uuid:agent-7".to_owned()));
}

#[test]
fn keys_of_every_kind_issue_and_are_issued() {
    let mut kinds = vec![(KeyKind::P256, "P-256"), (KeyKind::Ed25519, "Ed25519")];
    if cfg!(feature = "aws-lc-rs") {
        kinds.push((KeyKind::Rsa2048, "RSA 2048"));
    }
    for (kind, shown) in kinds {
        let authority = Authority::new(&AuthorityRequest::default().key(kind)).unwrap();
        let request = CertificateRequest::new(Role::SCHEDULER).key(kind);
        let issued = authority.issue(&request).unwrap();
        assert_eq!(issued.info().key, shown);
        assert_eq!(authority.info().key, shown);
        let identity = Identity::from_pem(issued.to_pem().as_bytes(), "memory").unwrap();
        authority.trust().verify(identity.chain()).unwrap();
        assert_eq!(kind.to_string().parse(), Ok(kind));
        if kind == KeyKind::Ed25519 {
            // The first version of PKCS#8, which every OpenSSL reads.
            assert_eq!(private_key(&issued).secret_der().len(), 48);
        }
    }
}

#[cfg(not(feature = "aws-lc-rs"))]
#[test]
fn rsa_keys_are_refused_by_a_build_that_cannot_make_them() {
    let error = Authority::new(&AuthorityRequest::default().key(KeyKind::Rsa2048)).unwrap_err();
    assert_eq!(error.to_string(), "making RSA keys needs the feature aws-lc-rs");
}

#[test]
fn serial_numbers_and_fingerprints_differ_and_facts_are_read_back() {
    let authority = authority();
    let request = CertificateRequest::new(Role::AGENT).days(30);
    let [one, two] = [0, 1].map(|_| authority.issue(&request).unwrap());
    let (one, two) = (one.info(), two.info());
    assert_ne!(one.serial, two.serial);
    assert_ne!(one.fingerprint, two.fingerprint);
    assert_ne!(one, two);
    assert_eq!(one.fingerprint.len(), 32 * 3 - 1);
    assert_eq!(one.issuer, "O=ssntp, CN=ssntp CA");
    assert_eq!(one.issuer, authority.info().subject);
    assert!(authority.info().is_authority && !one.is_authority);
    let lifetime = one.not_after.duration_since(one.not_before).unwrap();
    assert_eq!(lifetime, 30 * DAY + Duration::from_secs(600));
    assert!(one.not_before_text().ends_with('Z'));
    assert_eq!(CertificateInfo::from_der(&one.der).as_ref(), Ok(one));
}

#[test]
fn a_server_that_is_known_by_its_authoritys_key_is_checked_by_name_and_clock() {
    let (authority, issued) = issue(Role::SERVER);
    let (key, now) = (authority.info().key_digest().unwrap(), now(&authority));
    let chain = authority.trust().rooted(&issued.identity()).cert.clone();
    let pinned = |name: &str, at| Trust::pinned(&chain, &key, name, at).map(drop);
    for name in ["localhost", "127.0.0.1", "::1"] {
        assert_eq!(pinned(name, now), Ok(()), "{name}");
    }
    for name in ["127.0.0.2", "other.example", "not a name", ""] {
        let refused = pinned(name, now).unwrap_err();
        assert!(matches!(&refused, Fault::NotForName { .. }), "{name}: {refused}");
    }
    // A newcomer whose clock is behind is told both times.
    let behind = now - DAY;
    let refused = pinned("localhost", behind).unwrap_err().to_string();
    let both = [authority.info().not_before_text(), rfc3339(behind)];
    assert!(both.iter().all(|time| refused.contains(time)), "{refused}");
    assert_eq!(
        Trust::pinned(&chain, &[7; 32], "localhost", now).err(),
        Some(Fault::NotPinned)
    );
}

#[test]
fn a_lifetime_is_judged_on_loading_and_on_verifying() {
    let authority = authority();
    let now = now(&authority);
    let past = CertificateRequest::new(Role::AGENT)
        .valid_from(now - 10 * DAY)
        .days(5);
    let past = authority.issue(&past).unwrap();
    let future = CertificateRequest::new(Role::AGENT).valid_from(now + 5 * DAY);
    let future = authority.issue(&future).unwrap();

    // Both name the time of the check, so that a wrong clock is seen.
    let at = |issued: &Issued| authority.trust().verify_at(issued.identity().chain(), now);
    let expired = Fault::Expired {
        not_after: past.info().not_after_text(),
        clock: rfc3339(now),
    };
    let loaded = fault(Identity::from_pem(past.to_pem().as_bytes(), "x"));
    assert!(matches!(loaded, Fault::Expired { .. }), "{loaded}");
    assert_eq!(at(&past), Err(expired));
    let early = Fault::NotYetValid {
        not_before: future.info().not_before_text(),
        clock: rfc3339(now),
    };
    let loaded = fault(Identity::from_pem(future.to_pem().as_bytes(), "x"));
    assert!(matches!(loaded, Fault::NotYetValid { .. }), "{loaded}");
    assert_eq!(at(&future), Err(early));
    let then = now + 6 * DAY;
    authority
        .trust()
        .verify_at(future.identity().chain(), then)
        .unwrap();
    // The last second belongs to the lifetime, the next one does not.
    let info = future.info();
    assert_eq!(info.check_validity(info.not_after), Ok(()));
    let next = info.not_after + Duration::from_secs(1);
    assert!(info.check_validity(next).is_err());
}

#[test]
fn no_certificate_outlives_its_authority() {
    let authority = Authority::new(&AuthorityRequest::default().days(3)).unwrap();
    let issued = authority.issue(&CertificateRequest::new(Role::AGENT)).unwrap();
    assert_eq!(issued.info().not_after, authority.info().not_after);
    let late = CertificateRequest::new(Role::AGENT).valid_from(now(&authority) + 4 * DAY);
    let error = authority.issue(&late).unwrap_err();
    assert!(matches!(
        error,
        Error::Request(BadRequest::AuthorityExpires { .. })
    ));
}

#[test]
fn requests_that_cannot_be_met_are_named() {
    let authority = authority();
    let agent = || CertificateRequest::new(Role::AGENT);
    let long = "n".repeat(65);
    for (request, expected) in [
        (agent().name(""), BadRequest::Name(String::new())),
        (agent().name("a\nb"), BadRequest::Name("a\nb".to_owned())),
        (agent().name(&long), BadRequest::Name(long.clone())),
        (agent().days(0), BadRequest::Days(0)),
        (agent().days(36_501), BadRequest::Days(36_501)),
        (
            agent().valid_from(SystemTime::UNIX_EPOCH - DAY),
            BadRequest::Start,
        ),
        (
            CertificateRequest::new(Role::from_bits(0x41)).name("x"),
            BadRequest::UnknownRole(0x40),
        ),
    ] {
        match authority.issue(&request) {
            Err(Error::Request(bad)) => assert_eq!(bad, expected),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(
        "p384".parse::<KeyKind>(),
        Err(BadRequest::UnknownKey("p384".to_owned()))
    );
}

#[test]
fn an_identity_without_role_is_made_but_not_loaded_or_trusted() {
    let (authority, issued) = issue(Role::NONE);
    assert_eq!(issued.identity().roles(), Role::NONE);
    assert_eq!(
        fault(Identity::from_pem(issued.to_pem().as_bytes(), "x")),
        Fault::NoRole
    );
    assert_eq!(
        authority.trust().verify(issued.identity().chain()),
        Err(Fault::NoRole)
    );
}

#[test]
fn another_certificates_key_is_refused() {
    let (authority, one) = issue(Role::AGENT);
    let two = authority.issue(&CertificateRequest::new(Role::AGENT)).unwrap();
    let mixed = format!("{}{}", one.certificate_pem(), two.key_pem());
    let error = Identity::from_pem(mixed.as_bytes(), "mixed.pem").unwrap_err();
    assert_eq!(
        error.to_string(),
        "mixed.pem: the private key does not belong to the first certificate"
    );
    let other_kind = CertificateRequest::new(Role::AGENT).key(KeyKind::Ed25519);
    let other_kind = authority.issue(&other_kind).unwrap();
    let mixed = format!("{}{}", one.certificate_pem(), other_kind.key_pem());
    assert_eq!(
        fault(Identity::from_pem(mixed.as_bytes(), "x")),
        Fault::KeyMismatch
    );
}

#[test]
fn each_missing_or_broken_part_of_an_identity_is_named() {
    let (_, issued) = issue(Role::AGENT);
    let (certificate, key) = (issued.certificate_pem(), issued.key_pem());
    let load = |pem: &str| fault(Identity::from_pem(pem.as_bytes(), "x"));
    assert_eq!(load(""), Fault::NotPem);
    assert_eq!(load(certificate), Fault::NoKey);
    assert_eq!(load(key), Fault::NoCertificate);
    assert_eq!(load(&format!("{certificate}{key}{key}")), Fault::SeveralKeys(2));
    let junk = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    assert!(matches!(load(&format!("{junk}{key}")), Fault::BadCertificate(_)));
    let junk = "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n";
    assert!(matches!(
        load(&format!("{certificate}{junk}")),
        Fault::UnusableKey(_)
    ));
    assert!(matches!(
        load(&certificate.replace("-----END", "")),
        Fault::BadPem(_)
    ));
    let der = Identity::from_pem(&issued.info().der, "x");
    assert_eq!(fault(der), Fault::NotPem);
}

#[test]
fn faults_name_the_file_they_are_in() {
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = directory.path().join(name);
        fs::write(&path, text).unwrap();
        path
    };
    let (_, issued) = issue(Role::AGENT);
    let certificate = file("agent.pem", issued.certificate_pem());
    let key = file("agent.key", issued.key_pem());
    let none = directory.path().join("none.pem");
    Identity::load_parts(&certificate, &key).unwrap();
    for (error, parts) in [
        (Identity::load(&none), ["none.pem", "cannot read"]),
        (
            Identity::load_parts(&certificate, &none),
            ["none.pem", "cannot read"],
        ),
        (Identity::load(directory.path()), ["", "cannot read"]),
        (Identity::load(&certificate), ["agent.pem", "no private key"]),
        (Identity::load_parts(&key, &key), ["agent.key", "no certificate"]),
        (
            Identity::load_parts(&certificate, &certificate),
            ["agent.pem", "no private key"],
        ),
        (
            Identity::load_parts(fixture("sec1.pem"), &key),
            ["agent.key (with ", "does not belong"],
        ),
    ] {
        let text = error.unwrap_err().to_string();
        assert!(parts.iter().all(|part| text.contains(part)), "{text}");
        assert_eq!(text.lines().count(), 1);
    }
    let error = load_certificates(&key).unwrap_err().to_string();
    assert!(error.ends_with("agent.key: it holds no certificate"), "{error}");
}

#[test]
fn keys_in_all_three_forms_load() {
    let trust = Trust::load(fixture("authority/ca.pem")).unwrap();
    for (file, key) in [
        ("pkcs1.pem", "RSA 2048"),
        ("sec1.pem", "P-256"),
        ("pkcs8.pem", "Ed25519"),
    ] {
        let identity = Identity::load(fixture(file)).unwrap();
        assert_eq!(identity.roles(), Role::AGENT);
        assert_eq!(identity.info().key, key);
        trust.verify(identity.chain()).unwrap();
    }
    assert_eq!(
        fault(Identity::load(fixture("encrypted.pem"))),
        Fault::EncryptedKey
    );
}

#[test]
fn a_chain_needs_its_intermediate() {
    let trust = Trust::load(fixture("authority/ca.pem")).unwrap();
    let identity = Identity::load(fixture("chain.pem")).unwrap();
    assert_eq!(identity.chain().len(), 2);
    trust.verify(identity.chain()).unwrap();
    let issuer = "O=Fixtures, CN=between".to_owned();
    assert_eq!(
        trust.verify(&identity.chain()[..1]),
        Err(Fault::UnknownIssuer(issuer))
    );
    assert_eq!(trust.verify(&identity.chain()[1..]), Err(Fault::AuthorityAsPeer));
    assert_eq!(trust.verify(&[]), Err(Fault::NoCertificate));
}

#[test]
fn any_usage_gives_the_role_but_no_way_through_tls() {
    let trust = Trust::load(fixture("authority/ca.pem")).unwrap();
    let identity = Identity::load(fixture("any-usage.pem")).unwrap();
    assert_eq!(identity.roles(), Role::AGENT);
    assert_eq!(trust.verify(identity.chain()), Err(Fault::NotForClients));
}

#[test]
fn other_authorities_are_refused_also_under_the_same_name() {
    let (authority, issued) = issue(Role::AGENT);
    let chain = issued.identity();
    let other = Authority::new(&AuthorityRequest::default().name("Other")).unwrap();
    let issuer = authority.info().subject.clone();
    assert_eq!(
        other.trust().verify(chain.chain()),
        Err(Fault::UnknownIssuer(issuer))
    );
    let namesake = self::authority();
    assert_eq!(namesake.trust().verify(chain.chain()), Err(Fault::BadSignature));
    assert_eq!(
        authority.trust().verify(&[authority.info().der.clone()]),
        Err(Fault::AuthorityAsPeer)
    );
    let mut changed = issued.info().der.to_vec();
    *changed.last_mut().unwrap() ^= 1;
    assert_eq!(
        authority.trust().verify(&[CertificateDer::from(changed)]),
        Err(Fault::BadSignature)
    );
}

#[test]
fn trust_is_a_bundle_of_authorities_with_places_to_look() {
    let one = AuthorityRequest::default().host("sched.example").host("10.0.0.1");
    let one = Authority::new(&one).unwrap();
    let two = AuthorityRequest::default().name("Two").host("10.0.0.1");
    let two = Authority::new(&two).unwrap();
    let bundle = format!("# both\n{}\n{}", one.certificate_pem(), two.certificate_pem());
    let trust = Trust::from_pem(bundle.as_bytes(), "bundle").unwrap();
    let names: Vec<String> = trust.names().iter().map(Host::to_string).collect();
    assert_eq!(names, ["sched.example", "10.0.0.1"]);
    assert_eq!(trust.roots().len(), 2);
    assert_eq!(trust.authorities().len(), 2);
    for authority in [&one, &two] {
        let issued = authority.issue(&CertificateRequest::new(Role::AGENT)).unwrap();
        trust.verify(issued.identity().chain()).unwrap();
    }
}

#[test]
fn an_expired_authority_is_passed_over_and_a_leaf_is_none() {
    let (good, issued) = issue(Role::AGENT);
    let old = AuthorityRequest::default()
        .name("Old")
        .valid_from(now(&good) - 9 * DAY)
        .days(2);
    let old = Authority::new(&old).unwrap();
    let both = format!("{}{}", old.certificate_pem(), good.certificate_pem());
    let trust = Trust::from_pem(both.as_bytes(), "both").unwrap();
    assert_eq!(trust.authorities(), [good.info().clone()]);
    let expired = fault(Trust::from_pem(old.certificate_pem().as_bytes(), "old"));
    assert!(matches!(expired, Fault::Expired { .. }));
    let subject = "CN=agent".to_owned();
    assert_eq!(
        fault(Trust::from_pem(issued.certificate_pem().as_bytes(), "leaf")),
        Fault::NotAuthority(subject)
    );
    assert_eq!(
        fault(Trust::from_pem(issued.key_pem().as_bytes(), "key")),
        Fault::NoCertificate
    );
}

#[test]
fn an_authority_is_saved_once_and_issues_again_after_loading() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path().join("new/pki");
    let first = authority();
    first.save(&directory, false).unwrap();
    assert_eq!(mode(&directory.join("ca.key")), 0o600);
    assert_eq!(mode(&directory.join("ca.pem")) & 0o022, 0);

    let loaded = Authority::load(&directory).unwrap();
    assert_eq!(loaded.info(), first.info());
    let issued = loaded.issue(&CertificateRequest::new(Role::SERVER)).unwrap();
    let trust = Trust::load(directory.join("ca.pem")).unwrap();
    trust.verify(issued.identity().chain()).unwrap();
    first.trust().verify(issued.identity().chain()).unwrap();

    let second = authority();
    let error = second.save(&directory, false).unwrap_err();
    assert!(error.to_string().ends_with("ca.pem: exists already"), "{error}");
    assert_eq!(Authority::load(&directory).unwrap().info(), first.info());
    second.save(&directory, true).unwrap();
    assert_eq!(Authority::load(&directory).unwrap().info(), second.info());
    // No other file is left beside them.
    assert_eq!(fs::read_dir(&directory).unwrap().count(), 2);
}

#[test]
fn an_authority_made_by_openssl_issues() {
    let authority = Authority::load(fixture("authority")).unwrap();
    assert_eq!(authority.info().subject, "C=AQ, O=Fixtures, CN=authority");
    let issued = authority
        .issue(&CertificateRequest::new(Role::SCHEDULER))
        .unwrap();
    let trust = Trust::load(fixture("authority/ca.pem")).unwrap();
    trust.verify(issued.identity().chain()).unwrap();
}

#[test]
fn an_authority_of_other_files_is_refused_by_name() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let text = Authority::load(&directory).unwrap_err().to_string();
    assert!(text.contains("ca.pem: cannot read"), "{text}");

    let (authority, issued) = issue(Role::AGENT);
    fs::write(path("ca.pem"), issued.certificate_pem()).unwrap();
    fs::write(path("ca.key"), issued.key_pem()).unwrap();
    assert!(matches!(
        fault(Authority::load(&directory)),
        Fault::NotAuthority { .. }
    ));
    fs::write(path("ca.pem"), authority.certificate_pem()).unwrap();
    let text = Authority::load(&directory).unwrap_err().to_string();
    assert!(text.contains("ca.key: the private key does not belong"), "{text}");
}

#[test]
fn a_key_that_other_users_may_read_or_replace_is_warned_of() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("agent.pem");
    let issued = authority().issue(&CertificateRequest::new(Role::AGENT)).unwrap();
    issued.save(&path).unwrap();
    for (mode, warned) in [(0o600, 0), (0o640, 0), (0o644, 1), (0o660, 1), (0o666, 1)] {
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        let lines = warnings(|| drop(Identity::load(&path).unwrap()));
        assert_eq!(lines.len(), warned, "{mode:o}: {lines:?}");
        let lines = warnings(|| drop(Identity::load_parts(&path, &path).unwrap()));
        assert!(
            lines
                .iter()
                .all(|line| line.contains(&format!("(mode {mode:o})"))),
            "{lines:?}"
        );
        assert_eq!(lines.len(), warned);
    }
}

#[test]
fn an_issued_file_is_the_owners_alone_and_replaces_the_old_one() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("agent.pem");
    fs::write(&path, "old").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    let (_, issued) = issue(Role::AGENT);
    issued.save(&path).unwrap();
    assert_eq!(mode(&path), 0o600);
    let text = fs::read_to_string(&path).unwrap();
    assert!(text.find("BEGIN CERTIFICATE").unwrap() < text.find("PRIVATE KEY").unwrap());
    assert_eq!(Identity::load(&path).unwrap().info(), issued.info());

    let nowhere = directory.path().join("none/agent.pem");
    let text = issued.save(&nowhere).unwrap_err().to_string();
    assert!(text.contains("none/agent.pem: cannot write"), "{text}");
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
}

#[test]
fn nothing_prints_a_private_key() {
    let (authority, issued) = issue(Role::AGENT);
    let secret = issued.key_pem().lines().nth(1).unwrap();
    for text in [
        format!("{authority:?}"),
        format!("{issued:?}"),
        format!("{:?}", issued.identity()),
    ] {
        assert!(!text.contains(secret) && !text.contains("key_pem"), "{text}");
    }
}

#[test]
fn a_damaged_certificate_is_read_or_refused_without_panic() {
    let request = CertificateRequest::new(Role::SCHEDULER).uuid(Uuid::from_u128(7));
    let authority = authority();
    let der = authority.issue(&request).unwrap().info().der.to_vec();
    for at in 0..der.len() {
        for flip in [0x01, 0x20, 0x80, 0xff] {
            let mut der = der.clone();
            der[at] ^= flip;
            let damaged = CertificateDer::from(der);
            let _ = CertificateInfo::from_der(&damaged);
            assert!(authority.trust().verify(&[damaged]).is_err());
        }
        assert!(CertificateInfo::from_der(&CertificateDer::from(&der[..at])).is_err());
    }
}

#[test]
fn every_type_of_the_pki_is_send_and_sync() {
    fn crosses<T: Send + Sync>() {}
    crosses::<Authority>();
    crosses::<Identity>();
    crosses::<Trust>();
    crosses::<CertificateInfo>();
    crosses::<Error>();
}

#[test]
fn identity_and_trust_come_from_der_as_from_pem() {
    let (authority, issued) = issue(Role::AGENT);
    let chain = issued.identity().chain().to_vec();
    let identity = Identity::from_der(chain.clone(), private_key(&issued)).unwrap();
    assert_eq!(identity.info(), issued.info());
    let root = authority.info().der.clone();
    let trust = Trust::from_der(&[root]).unwrap();
    trust.verify(identity.chain()).unwrap();

    let other = authority.issue(&CertificateRequest::new(Role::AGENT)).unwrap();
    let mixed = Identity::from_der(chain, private_key(&other));
    assert_eq!(fault(mixed), Fault::KeyMismatch);
    let expired = CertificateRequest::new(Role::AGENT)
        .valid_from(now(&authority) - 9 * DAY)
        .days(1);
    let expired = authority.issue(&expired).unwrap();
    let loaded = Identity::from_der(expired.identity().chain().to_vec(), private_key(&expired));
    assert!(matches!(fault(loaded), Fault::Expired { .. }));
}

#[test]
fn der_of_the_wrong_kind_is_named() {
    let (authority, issued) = issue(Role::AGENT);
    let chain = issued.identity().chain().to_vec();
    let key = private_key(&issued);
    let as_certificate = |bytes: &[u8]| CertificateDer::from(bytes.to_vec());
    let pem = as_certificate(issued.certificate_pem().as_bytes());
    let error = Identity::from_der(vec![pem.clone()], key.clone_key()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the certificates: not DER but PEM: it has a -----BEGIN line"
    );
    let none = Identity::from_der(Vec::new(), key.clone_key());
    assert_eq!(fault(none), Fault::NoCertificate);
    let swapped = Identity::from_der(vec![as_certificate(key.secret_der())], key);
    assert!(matches!(fault(swapped), Fault::BadCertificate(_)));

    let as_key = |bytes: &[u8]| PrivateKeyDer::Pkcs8(bytes.to_vec().into());
    let pem_key = Identity::from_der(chain.clone(), as_key(issued.key_pem().as_bytes()));
    assert_eq!(
        pem_key.unwrap_err().to_string(),
        "the private key: not DER but PEM: it has a -----BEGIN line"
    );
    let swapped = Identity::from_der(chain.clone(), as_key(&chain[0]));
    assert!(matches!(fault(swapped), Fault::UnusableKey(_)));

    assert_eq!(fault(Trust::from_der(&[])), Fault::NoCertificate);
    let pem = as_certificate(authority.certificate_pem().as_bytes());
    assert_eq!(fault(Trust::from_der(&[pem])), Fault::NotDer);
    let subject = issued.info().subject.clone();
    assert_eq!(fault(Trust::from_der(&chain)), Fault::NotAuthority(subject));
}

/// The results of a handshake at the server and at the client.
fn handshake(
    trust: &Trust,
    server: &Identity,
    client: &Identity,
) -> (Result<Secured, TlsError>, Result<Secured, TlsError>) {
    let acceptor = trust.acceptor(server).unwrap();
    let connector = trust.connector(client).unwrap();
    let (local, remote) = memory::pair();
    #[expect(clippy::disallowed_methods, reason = "a time limit")]
    let deadline = Instant::now() + Duration::from_secs(20);
    #[expect(clippy::disallowed_methods, reason = "the other end")]
    let connecting =
        thread::spawn(move || connector.connect(Arc::new(remote), "localhost", &BufferPool::new(), deadline));
    let accepted = acceptor.accept(Arc::new(local), &BufferPool::new(), deadline);
    (accepted, connecting.join().unwrap())
}
