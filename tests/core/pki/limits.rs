//! The limits of chains, names and lists of usages.

use rcgen::ExtendedKeyUsagePurpose as Usage;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CustomExtension, DistinguishedName,
    DnType, IsCa, Issuer, KeyIdMethod, KeyPair, KeyUsagePurpose, RevokedCertParams,
};
use ssntp::pki::RevocationLists;

use super::*;

struct Issuing {
    der: CertificateDer<'static>,
    issuer: Issuer<'static, KeyPair>,
}

/// The two usages that TLS asks for, and those of roles by their last arcs.
fn usages(arcs: &[u64]) -> Vec<Usage> {
    let role = |arc: &u64| Usage::Other(vec![1, 3, 6, 1, 4, 1, 343, 8, *arc]);
    let tls = [Usage::ServerAuth, Usage::ClientAuth];
    tls.into_iter().chain(arcs.iter().map(role)).collect()
}

fn named(name: &str, usages: Vec<Usage>) -> CertificateParams {
    let mut params = CertificateParams::new(["localhost".to_owned()]).unwrap();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.extended_key_usages = usages;
    params
}

fn issuing(name: &str, above: Option<&Issuing>, length: Option<u8>, usages: Vec<Usage>) -> Issuing {
    let key = KeyPair::generate().unwrap();
    let mut params = named(name, usages);
    params.is_ca = IsCa::Ca(length.map_or(BasicConstraints::Unconstrained, |length| {
        BasicConstraints::Constrained(length)
    }));
    let certificate = match above {
        Some(above) => params.signed_by(&key, &above.issuer),
        None => params.self_signed(&key),
    };
    Issuing {
        der: certificate.unwrap().der().clone(),
        issuer: Issuer::new(params, key),
    }
}

fn issued(
    above: &Issuing,
    arcs: &[u64],
    key_usage: Option<KeyUsagePurpose>,
) -> (CertificateDer<'static>, PrivateKeyDer<'static>) {
    let key = KeyPair::generate().unwrap();
    let mut params = named("peer", usages(arcs));
    params.key_usages = key_usage.into_iter().collect();
    let certificate = params.signed_by(&key, &above.issuer).unwrap();
    (
        certificate.der().clone(),
        PrivateKeyDer::Pkcs8(key.serialize_der().into()),
    )
}

fn trust(root: &Issuing) -> Trust {
    Trust::from_der(std::slice::from_ref(&root.der)).unwrap()
}

#[test]
fn the_path_length_of_a_trusted_authority_counts() {
    for (length, allowed) in [(None, 2), (Some(0), 0), (Some(1), 1), (Some(2), 2)] {
        let root = issuing("root", None, length, Vec::new());
        let one = issuing("one", Some(&root), None, Vec::new());
        let two = issuing("two", Some(&one), None, Vec::new());
        let trust = trust(&root);
        for (between, above) in [&root, &one, &two].into_iter().enumerate() {
            let mut chain = vec![issued(above, &[1], None).0];
            chain.extend(
                [&two, &one]
                    .into_iter()
                    .map(|ca| ca.der.clone())
                    .skip(2 - between),
            );
            // Some peers show the trusted authority as well.
            for _ in 0..2 {
                let expected = if between <= allowed {
                    Ok(())
                } else {
                    Err(Fault::PathTooLong)
                };
                assert_eq!(trust.verify(&chain).map(drop), expected, "{length:?} {between}");
                chain.push(root.der.clone());
            }
        }
    }
}

#[test]
fn an_authority_is_the_same_one_with_a_renewed_certificate() {
    let root = issuing("root", None, None, Vec::new());
    let between = issuing("between", Some(&root), Some(0), Vec::new());
    let trust = Trust::from_der(&[root.der.clone(), between.der.clone()]).unwrap();
    let renewed = |name: &str, year: i32| {
        let mut params = named(name, Vec::new());
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.not_after = rcgen::date_time_ymd(year, 1, 1);
        let certificate = params.signed_by(between.issuer.key(), &root.issuer);
        certificate.unwrap().der().clone()
    };
    let leaf = issued(&between, &[1], None).0;
    // A copy that has expired does not matter, because the trusted one is valid.
    for year in [2001, 2090] {
        let chain = [leaf.clone(), renewed("between", year)];
        assert_eq!(trust.verify(&chain).map(drop), Ok(()), "{year}");
    }
    // The same key under another name is another authority.
    let chain = [leaf, renewed("other", 2090)];
    assert_eq!(trust.verify(&chain).map(drop), Err(Fault::PathTooLong));
}

#[test]
fn no_list_revokes_a_trusted_authority_also_if_a_peer_shows_a_renewed_certificate_of_it() {
    let root = issuing("root", None, None, Vec::new());
    let between = issuing("between", Some(&root), None, Vec::new());
    let mut params = named("between", Vec::new());
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.serial_number = Some(vec![7].into());
    let renewed = params.signed_by(between.issuer.key(), &root.issuer).unwrap();
    let revoked = RevokedCertParams {
        serial_number: vec![7].into(),
        revocation_time: rcgen::date_time_ymd(2020, 1, 1),
        reason_code: None,
        invalidity_date: None,
    };
    let list = CertificateRevocationListParams {
        this_update: rcgen::date_time_ymd(2020, 1, 1),
        next_update: rcgen::date_time_ymd(2100, 1, 1),
        crl_number: vec![1].into(),
        issuing_distribution_point: None,
        revoked_certs: vec![revoked],
        key_identifier_method: KeyIdMethod::Sha256,
    };
    let list = list.signed_by(&root.issuer).unwrap();
    let lists = RevocationLists::from_der(&[list.der().clone()]).unwrap();
    let chain = [issued(&between, &[1], None).0, renewed.der().clone()];
    let of_root = trust(&root).with_revocation_lists(&lists).unwrap();
    assert!(matches!(of_root.verify(&chain), Err(Fault::Revoked { .. })));
    let of_both = Trust::from_der(&[root.der, between.der]).unwrap();
    let of_both = of_both.with_revocation_lists(&lists).unwrap();
    assert_eq!(of_both.verify(&chain).map(drop), Ok(()));
}

#[test]
fn an_issuer_gives_only_roles_that_its_own_usage_has() {
    let root = issuing("root", None, None, Vec::new());
    let verify = |usages, arcs: &[u64]| {
        let between = issuing("between", Some(&root), None, usages);
        let chain = [issued(&between, arcs, None).0, between.der.clone()];
        trust(&root).verify(&chain).map(drop)
    };
    let refused_for = |role| {
        let issuer = "CN=between".to_owned();
        Err(Fault::RoleNotIssuers { role, issuer })
    };
    let refused = refused_for(Role::CONTROLLER);
    assert_eq!(verify(Vec::new(), &[1, 3]), Ok(()));
    assert_eq!(verify(usages(&[1]), &[1]), Ok(()));
    assert_eq!(verify(usages(&[1]), &[3]), refused);
    assert_eq!(verify(usages(&[1]), &[1, 3]), refused);
    assert_eq!(verify(usages(&[]), &[1]), refused_for(Role::AGENT));
    let any = [usages(&[]), vec![Usage::Any]].concat();
    assert_eq!(verify(any, &[1, 3]), Ok(()));
    // An issuer that names a role is held to it.
    let any = [usages(&[1]), vec![Usage::Any]].concat();
    assert_eq!(verify(any.clone(), &[1]), Ok(()));
    assert_eq!(verify(any, &[1, 3]), refused);
}

#[test]
fn a_key_that_may_not_sign_is_refused() {
    let root = issuing("root", None, None, Vec::new());
    for (usage, expected) in [
        (None, Ok(())),
        (Some(KeyUsagePurpose::DigitalSignature), Ok(())),
        (
            Some(KeyUsagePurpose::KeyEncipherment),
            Err(Fault::NotForSignatures),
        ),
    ] {
        let chain = [issued(&root, &[1], usage).0];
        assert_eq!(trust(&root).verify(&chain).map(drop), expected, "{usage:?}");
    }
}

#[test]
fn both_sides_of_a_handshake_hold_the_other_to_its_limits() {
    let root = issuing("root", None, Some(0), Vec::new());
    let between = issuing("between", Some(&root), None, Vec::new());
    let trust = trust(&root);
    let direct = |arc| {
        let (certificate, key) = issued(&root, &[arc], None);
        Identity::from_der(vec![certificate], key).unwrap()
    };
    let beyond = |arc| {
        let (certificate, key) = issued(&between, &[arc], None);
        Identity::from_der(vec![certificate, between.der.clone()], key).unwrap()
    };
    const AGENT: u64 = 1;
    const SERVER: u64 = 5;
    let (accepted, connected) = handshake(&trust, &direct(SERVER), &direct(AGENT));
    assert!(accepted.is_ok() && connected.is_ok());
    let reason = "there are more intermediate authorities than the trusted authority allows";
    let (accepted, _) = handshake(&trust, &direct(SERVER), &beyond(AGENT));
    assert!(accepted.unwrap_err().to_string().contains(reason));
    let (_, connected) = handshake(&trust, &beyond(SERVER), &direct(AGENT));
    assert!(connected.unwrap_err().to_string().contains(reason));
}

#[test]
fn a_handshake_holds_a_peer_to_the_usages_of_its_issuer_and_of_its_key() {
    const CONTROLLER: u64 = 3;
    let root = issuing("root", None, None, Vec::new());
    let between = issuing("between", Some(&root), None, usages(&[1, 5]));
    let signer = issuing("signer", Some(&root), None, Vec::new());
    let trust = trust(&root);
    let peer = |above: &Issuing, arc, usage| {
        let (certificate, key) = issued(above, &[arc], usage);
        Identity::from_der(vec![certificate, above.der.clone()], key).unwrap()
    };
    let server = peer(&between, 5, None);
    let met = |client: Identity| handshake(&trust, &server, &client).0;
    met(peer(&between, 1, Some(KeyUsagePurpose::DigitalSignature))).unwrap();
    for (client, reason) in [
        (
            peer(&between, CONTROLLER, None),
            "the role controller, which \"CN=between\" may not give",
        ),
        (
            peer(&signer, CONTROLLER, Some(KeyUsagePurpose::KeyAgreement)),
            "lacks digitalSignature",
        ),
    ] {
        let refused = met(client).unwrap_err().to_string();
        assert!(refused.contains(reason), "{refused}");
    }
    let beyond = peer(&signer, 5, Some(KeyUsagePurpose::KeyAgreement));
    let (_, connected) = handshake(&trust, &beyond, &peer(&signer, 1, None));
    let refused = connected.unwrap_err().to_string();
    assert!(refused.contains("lacks digitalSignature"), "{refused}");
}

#[test]
fn an_authority_without_key_cert_sign_signs_no_certificates() {
    use crate::revocation::{issued, issuing};
    let lists_only = [KeyUsagePurpose::CrlSign];
    let refused = |name: &str| Fault::NotAuthority(format!("CN={name}"));
    let root = issuing("root", None, &[KeyUsagePurpose::KeyCertSign]);
    let between = |usages: &[KeyUsagePurpose]| issued(&issuing("between", Some(&root), usages));
    let trust = Trust::from_der(std::slice::from_ref(&root.der)).unwrap();
    trust
        .verify(between(&[KeyUsagePurpose::KeyCertSign]).chain())
        .unwrap();
    trust.verify(between(&[]).chain()).unwrap();
    assert_eq!(
        trust.verify(between(&lists_only).chain()),
        Err(refused("between"))
    );
    let none = issuing("none", None, &lists_only);
    assert_eq!(fault(Trust::from_der(&[none.der])), refused("none"));
}

#[test]
fn a_refusal_names_the_critical_extension_and_a_chain_that_is_too_long() {
    let root = issuing("root", None, None, Vec::new());
    let (key, mut params) = (KeyPair::generate().unwrap(), named("peer", usages(&[1])));
    let mut extension = CustomExtension::from_oid_content(&[1, 3, 6, 1, 4, 1, 343, 99], vec![5, 0]);
    extension.set_criticality(true);
    params.custom_extensions = vec![extension];
    let leaf = params.signed_by(&key, &root.issuer).unwrap().der().clone();
    let fault = Fault::CriticalExtension {
        subject: "CN=peer".to_owned(),
        oid: "1.3.6.1.4.1.343.99".to_owned(),
    };
    assert_eq!(trust(&root).verify(&[leaf]).map(drop), Err(fault));
    let mut above = vec![root];
    for number in 0..7 {
        let last = above.last();
        above.push(issuing(&format!("authority {number}"), last, None, Vec::new()));
    }
    let leaf = issued(&above[7], &[1], None).0;
    let between = above.iter().skip(1).rev().map(|ca| ca.der.clone());
    let chain: Vec<_> = [leaf].into_iter().chain(between).collect();
    let refused = trust(&above[0]).verify(&chain).unwrap_err().to_string();
    assert!(refused.contains("more than the six intermediate"), "{refused}");
    // A refusal of a chain with a gap names the place.
    let leaf = issued(&above[4], &[1], None).0;
    let chain = [leaf, above[4].der.clone(), above[2].der.clone()];
    let missing = Fault::MissingIssuer {
        subject: "CN=authority 3".to_owned(),
        issuer: "CN=authority 2".to_owned(),
    };
    assert_eq!(trust(&above[0]).verify(&chain).map(drop), Err(missing));
}
