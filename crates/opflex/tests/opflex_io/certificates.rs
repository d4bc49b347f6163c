//! Ordinary certificates of other programs: without a role, and of X.509 version 1.

use std::path::PathBuf;
use std::sync::Arc;

use ssntp_pki::{Error, Fault, RevocationLists, RevocationReason, Revoked, Serial, ServerCheck, Trust};
use ssntp_transport::rustls::{ServerConfig, version::TLS12};
use ssntp_transport::tls::Acceptor;

use super::methods::is_let_in;
use super::*;

fn file(name: &str) -> PathBuf {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/pki/plain");
    PathBuf::from(directory).join(name)
}

fn ordinary(name: &str) -> Identity {
    Identity::load_without_role(&file(name), None, None).unwrap()
}

fn trust() -> Trust {
    Trust::load(file("ca.pem")).unwrap()
}

/// True if a server and an element that dials this name accept each other.
fn take(server: Acceptor, check: ServerCheck<'_>, element: Option<&Identity>, name: &str) -> bool {
    is_let_in(server, Some(check.connector(element).unwrap()), name)
}

#[test]
fn a_certificate_without_a_role_is_verified_with_its_name_or_without() {
    let (own, trust) = (ordinary("v3.pem"), trust());
    assert!(own.roles().is_empty());
    let open = || Acceptor::server_only(own.certified_key()).unwrap();
    assert!(take(open(), ServerCheck::Name(&trust), None, "localhost"));
    assert!(!take(open(), ServerCheck::Name(&trust), None, "other"));
    assert!(take(open(), ServerCheck::Authority(&trust), None, "other"));
    let mutual = trust.acceptor_of_any_version(&own).unwrap();
    let check = ServerCheck::Name(&trust);
    assert!(take(mutual.clone(), check, Some(&own), "localhost"));
    assert!(!take(mutual, check, None, "localhost"));
}

#[test]
fn a_version_1_server_certificate_is_accepted_without_a_check_of_names() {
    let trust = trust();
    for name in ["v1.pem", "rsa.pem"] {
        let open = || Acceptor::server_only(ordinary(name).certified_key()).unwrap();
        assert!(take(open(), ServerCheck::Nothing, None, "x"), "{name}");
        assert!(take(open(), ServerCheck::Authority(&trust), None, "x"), "{name}");
        assert!(!take(open(), ServerCheck::Name(&trust), None, "x"), "{name}");
    }
    let stranger = || Acceptor::server_only(ordinary("stranger.pem").certified_key()).unwrap();
    assert!(take(stranger(), ServerCheck::Nothing, None, "x"));
    assert!(!take(stranger(), ServerCheck::Authority(&trust), None, "x"));
}

#[test]
fn a_version_1_client_certificate_of_a_trusted_authority_is_accepted() {
    let (own, trust) = (ordinary("v3.pem"), trust());
    let any = || trust.acceptor_of_any_version(&own).unwrap();
    let check = ServerCheck::Nothing;
    for name in ["v1.pem", "rsa.pem"] {
        assert!(take(any(), check, Some(&ordinary(name)), "x"), "{name}");
    }
    assert!(!take(any(), check, Some(&ordinary("stranger.pem")), "x"));
    // If roles are checked, a version 1 certificate has none.
    let strict = trust.acceptor(&own).unwrap();
    assert!(!take(strict, check, Some(&ordinary("v1.pem")), "x"));
}

#[test]
fn version_1_certificates_are_verified_in_tls_1_2_as_well() {
    let trust = trust();
    for name in ["v1.pem", "rsa.pem"] {
        let config = ServerConfig::builder_with_provider(ssntp_pki::provider())
            .with_protocol_versions(&[&TLS12])
            .unwrap()
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(ssntp_transport::rustls::sign::SingleCertAndKey::from(
                ordinary(name).certified_key(),
            )));
        let acceptor = Acceptor::with_config(Arc::new(config));
        assert!(
            take(acceptor, ServerCheck::Authority(&trust), None, "x"),
            "{name}"
        );
    }
}

#[test]
fn an_encrypted_key_needs_its_passphrase() {
    let load = |passphrase: Option<&[u8]>| {
        Identity::load_without_role(&file("v1.crt"), Some(&file("v1.sealed.key")), passphrase)
    };
    assert_eq!(load(Some(b"secret")).unwrap().chain(), ordinary("v1.pem").chain());
    let fault = |result: Result<Identity, Error>| match result.unwrap_err() {
        Error::Content { fault, .. } => fault,
        other => panic!("{other}"),
    };
    assert!(matches!(fault(load(Some(b"wrong"))), Fault::WrongPassphrase(_)));
    assert_eq!(fault(load(None)), Fault::EncryptedKey);
}

#[test]
fn a_self_signed_certificate_is_its_own_authority_as_with_openssl() {
    let own = ordinary("self.pem");
    let (itself, others) = (Trust::load(file("self.pem")).unwrap(), trust());
    let any = |trust: &Trust| trust.acceptor_of_any_version(&own).unwrap();
    let check = ServerCheck::Authority(&itself);
    assert!(take(any(&itself), check, Some(&own), "x"));
    assert!(!take(any(&others), check, Some(&own), "x"));
    assert!(!take(
        any(&itself),
        ServerCheck::Authority(&others),
        Some(&own),
        "x"
    ));
    // It has no name, and if roles are checked, an authority has none.
    assert!(!take(
        any(&itself),
        ServerCheck::Name(&itself),
        Some(&own),
        "localhost"
    ));
    assert!(!take(
        itself.acceptor(&ordinary("v3.pem")).unwrap(),
        ServerCheck::Nothing,
        Some(&own),
        "x"
    ));
}

#[test]
fn a_directory_holds_authorities_like_a_file() {
    let dir = tempfile::tempdir().unwrap();
    for (name, to) in [
        ("ca.pem", "ours.pem"),
        ("self.pem", "5ed36f99.0"),
        ("v1.sealed.key", "no.key"),
    ] {
        std::fs::copy(file(name), dir.path().join(to)).unwrap();
    }
    std::fs::create_dir(dir.path().join("more")).unwrap();
    let all = Trust::load(dir.path()).unwrap();
    assert_eq!(all.authorities().len(), 2);
    let (own, selfmade) = (ordinary("v3.pem"), ordinary("self.pem"));
    let any = || all.acceptor_of_any_version(&own).unwrap();
    for client in [&own, &selfmade] {
        assert!(take(any(), ServerCheck::Authority(&all), Some(client), "x"));
    }
    let empty = tempfile::tempdir().unwrap();
    assert!(Trust::load(empty.path()).is_err());
}

#[test]
fn with_name_from_certificate_elements_have_the_names_of_their_certificates() {
    let (own, trust) = (ordinary("v3.pem"), trust());
    let mut settings = server_settings("pr1");
    settings.name_from_certificate = true;
    let config = ssntp_opflex::run::ServerConfig::new(settings);
    let (server, address) = serve_tcp(config.tls(trust.acceptor_of_any_version(&own).unwrap()));
    let mut config = ElementConfig::new(element_settings("somebody else", &[&address]));
    config.tls = Some(
        ServerCheck::Authority(&trust)
            .connector(Some(&ordinary("v1.pem")))
            .unwrap(),
    );
    let element = PolicyElement::start(config).unwrap();
    until_health(&element, Health::Healthy);
    let sessions = server.handle().sessions().unwrap();
    let certificate = &ordinary("v1.pem").chain()[0].clone();
    let name = ssntp_pki::CertificateInfo::common_name(certificate).unwrap();
    assert_eq!(sessions[0].name.as_deref(), Some(name.as_str()));
    assert_ne!(name, "somebody else");
}

/// Trust with these certificates revoked.
fn without(revoked: &[&Identity]) -> Trust {
    let revoked = revoked.iter().map(|identity| {
        let serial = Serial::from(identity.info());
        Revoked::now(serial, RevocationReason::KEY_COMPROMISE)
    });
    let list = authority()
        .revocation_list(&revoked.collect::<Vec<_>>(), 1, 30)
        .unwrap();
    let lists = RevocationLists::from_pem(list.pem.as_bytes(), "a list").unwrap();
    authority().trust().with_revocation_lists(&lists).unwrap()
}

#[test]
fn peers_that_new_tls_does_not_trust_are_disconnected() {
    let (own, stays, leaves) = (identity(), identity(), identity());
    let acceptor = |trust: &Trust| trust.acceptor_of_any_version(&own).unwrap();
    let config = ssntp_opflex::run::ServerConfig::new(server_settings("pr1"));
    let config = config.tls(acceptor(&authority().trust()));
    let (server, address) = serve_tcp(config);
    let connector =
        |trust: &Trust, identity: &Identity| ServerCheck::Authority(trust).connector(Some(identity)).unwrap();
    let start = |name: &str, identity: &Identity| {
        let mut config = ElementConfig::new(element_settings(name, &[&address]));
        config.tls = Some(connector(&authority().trust(), identity));
        let element = PolicyElement::start(config).unwrap();
        until_health(&element, Health::Healthy);
        element
    };
    let (stays_here, leaves_here) = (start("stays", &stays), start("leaves", &leaves));
    assert_eq!(server.renew(acceptor(&without(&[&leaves]))).unwrap(), 1);
    until_health(&leaves_here, Health::Down);
    let sessions = server.handle().sessions().unwrap();
    let names: Vec<_> = sessions.iter().map(|session| session.name.clone()).collect();
    assert_eq!(names.len(), 1, "{names:?}");
    assert_eq!(stays_here.health().unwrap(), Health::Healthy);
    // An element checks its servers as well.
    assert_eq!(stays_here.renew(connector(&without(&[]), &stays)).unwrap(), 0);
    assert_eq!(stays_here.renew(connector(&without(&[&own]), &stays)).unwrap(), 1);
    until_health(&stays_here, Health::Down);
    // New handshakes use the new certificate.
    let new = identity();
    let trust = authority().trust();
    assert_eq!(
        server
            .renew(trust.acceptor_of_any_version(&new).unwrap())
            .unwrap(),
        0
    );
    until_health(&stays_here, Health::Healthy);
}

#[test]
fn a_list_is_not_replaced_by_an_older_one() {
    let numbered = |number: u64| {
        let list = authority().revocation_list(&[], number, 30).unwrap();
        let lists = RevocationLists::from_pem(list.pem.as_bytes(), "a list").unwrap();
        authority().trust().with_revocation_lists(&lists).unwrap()
    };
    let own = identity();
    let acceptor = |trust: &Trust| trust.acceptor_of_any_version(&own).unwrap();
    let connector = |trust: &Trust| ServerCheck::Authority(trust).connector(Some(&own)).unwrap();
    let config = ssntp_opflex::run::ServerConfig::new(server_settings("pr1"));
    let (server, address) = serve_tcp(config.tls(acceptor(&numbered(7))));
    let mut config = ElementConfig::new(element_settings("element", &[&address]));
    config.tls = Some(connector(&numbered(7)));
    let element = PolicyElement::start(config).unwrap();
    let older = numbered(6);
    let refused = [server.renew(acceptor(&older)), element.renew(connector(&older))];
    for refused in refused {
        let error = refused.unwrap_err().to_string();
        assert!(error.contains("older than the one in force"), "{error}");
    }
    assert_eq!(server.renew(acceptor(&numbered(8))).unwrap(), 0);
    assert_eq!(element.renew(connector(&numbered(8))).unwrap(), 0);
}
