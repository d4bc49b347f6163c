//! Issuers: authorities below the authority that give the roles of nodes alone.
//!
//! ```text
//!  Authority::issuer ─▶ Issuer ─▶ one file with its certificate and key
//!  holder: node_key, signing_request ─▶ SigningRequest ─▶ Issuer::issue ─▶ Enrolled: chain, serial number, end
//! ```
//!
//! A server that lets nodes join holds an issuer instead of the authority's key. The extended key usage of the
//! issuer's certificate lists the roles that it may give, and every check of a peer refuses other roles (see
//! `limits`). It lacks serverAuth, and the path length is 0. So whoever steals an issuer makes nodes, but
//! no controller, no server and no further issuer.

use std::path::Path;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use rcgen::{BasicConstraints, CertificateParams, DistinguishedName};
use rustls::pki_types::CertificateDer;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::issue::{Authority, CLOCK_SKEW, PRIVATE, crypto, generate, key_pair_of, of_authority, seconds};
use super::request::{CertificateRequest, KeyKind};
use super::signing::requested;
use crate::error::{BadRequest, Error, Fault};
use crate::inspect::CertificateInfo;
use crate::list::Serial;
use crate::role::Role;
use crate::{der, store};
use ssntp_transport::sha256;

impl Authority {
    /// Makes an issuer that may give these roles: agent, netagent, cnciagent or several of them. The `name` is
    /// that of its certificate; each server has an issuer with a name of its own. Its life ends with the
    /// authority's at the latest.
    ///
    /// # Errors
    /// [`Error::Request`] if a role is not a node's, or if the authority allows no issuers;
    /// [`Error::Crypto`].
    pub fn issuer(&self, name: &str, roles: Role, days: u32) -> Result<Issuer, Error> {
        check_given(roles, Role::OF_NODES)?;
        let own = der::certificate(&self.info.der).map_err(Error::content("the authority"))?;
        let constraints = own.basic_constraints().ok().flatten();
        if constraints.is_some_and(|extension| extension.value.path_len_constraint == Some(0)) {
            return Err(BadRequest::NoIssuers.into());
        }
        let mut params = self.params_for(&CertificateRequest::new(roles).name(name).days(days))?;
        of_authority(&mut params, BasicConstraints::Constrained(0));
        let key = generate(KeyKind::P256)?;
        let (certificate, info) = self.certify(&params, &key)?;
        Self::assemble(info, certificate.pem(), key, "the new issuer").map(Issuer)
    }
}

/// An authority that gives the roles of nodes alone, with its private key.
///
/// # Threads
/// `Send` and `Sync`; every call takes `&self`. Loading and saving block on the disk.
#[derive(Debug)]
pub struct Issuer(Authority);

impl Issuer {
    /// Loads the file that [`save`](Self::save) wrote.
    ///
    /// # Errors
    /// As [`Authority::load`]; [`Error::Request`] if the certificate is not an issuer's.
    pub fn load(path: impl AsRef<Path>) -> Result<Self, Error> {
        let loaded = Authority::load_files(path.as_ref(), path.as_ref())?;
        check_given(loaded.info.roles, Role::OF_NODES)?;
        Ok(Self(loaded))
    }

    /// Writes its certificate and key into one file of mode 0600, in one step. Blocks on the disk.
    ///
    /// # Errors
    /// [`Error::Write`].
    pub fn save(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        let text = self.info().to_pem() + &self.0.key_pem();
        store::write(path.as_ref(), &text, PRIVATE)
    }

    /// The facts in its own certificate. Its roles are those that it may give.
    pub fn info(&self) -> &CertificateInfo {
        &self.0.info
    }

    /// Issues a certificate that gives `roles` and is bound to `uuid`, for the key of a signing request. It ends
    /// with the issuer's own at the latest.
    ///
    /// # Errors
    /// [`Error::Request`] if the issuer may not give a role, or the UUID is nil; [`Error::Content`] if the issuer
    /// has expired.
    pub fn issue(
        &self,
        request: &SigningRequest,
        roles: Role,
        uuid: Uuid,
        lifetime: Duration,
    ) -> Result<Enrolled, Error> {
        let end = der::now().checked_add(lifetime);
        let end = end.unwrap_or(self.info().not_after);
        self.sign(request, roles, uuid, seconds(end), None)
    }

    /// Signs a certificate anew for a node that lost it, with the serial number and the end that a store has. The key
    /// of the signing request has to be that of the record.
    pub(crate) fn issue_again(&self, request: &SigningRequest, before: &Enrolled) -> Result<Enrolled, Error> {
        let serial: Serial = before.serial.parse()?;
        self.sign(request, before.roles, before.uuid, before.ends, Some(&serial))
    }

    /// Signs a certificate with this end and a random serial number, or this one.
    fn sign(
        &self,
        request: &SigningRequest,
        roles: Role,
        uuid: Uuid,
        end: u64,
        serial: Option<&Serial>,
    ) -> Result<Enrolled, Error> {
        let (signer, now) = (&self.0, der::now());
        check_given(roles, signer.info.roles)?;
        signer
            .info
            .check_validity(now)
            .map_err(Error::content("the issuer"))?;
        // A joining node has no name that anybody has proved.
        let name = format!("{}-{uuid}", roles.to_string().replace(',', "-"));
        let wanted = CertificateRequest::new(roles).name(name).uuid(uuid);
        let start = seconds(now).saturating_sub(CLOCK_SKEW);
        let mut params = signer.params_within(&wanted, (start, end))?;
        if let Some(serial) = serial {
            params.serial_number = Some(serial.bytes().to_vec().into());
        }
        let (certificate, info) = signer.certify(&params, &request.key)?;
        Ok(Enrolled {
            uuid,
            roles,
            serial: info.serial,
            ends: seconds(info.not_after),
            token: String::new(),
            key: request.digest.clone(),
            chain: certificate.pem() + &signer.info.to_pem(),
        })
    }
}

/// Checks that somebody who may give the roles `given` may give these.
fn check_given(roles: Role, given: Role) -> Result<(), BadRequest> {
    if roles.is_empty() || !given.contains(roles) {
        return Err(BadRequest::IssuerRole { roles, given });
    }
    Ok(())
}

/// A certificate that an issuer has issued to a node, as stores keep it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Enrolled {
    /// The UUID to which the certificate is bound.
    pub uuid: Uuid,
    /// The roles that it gives.
    pub roles: Role,
    /// Its serial number in hexadecimal, bytes joined with colons.
    pub serial: String,
    /// The last second of its life, since 1970.
    pub ends: u64,
    /// The id of the token with which the node joined; empty after a renewal.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub token: String,
    /// The digest of the node's key, see [`SigningRequest::digest`]. Early versions have emptied it in their records; such a
    /// certificate is not renewed.
    #[serde(default)]
    pub key: String,
    /// The certificate and its issuer's, as PEM. No store has it: the certificate is signed again if its node lost it.
    #[serde(skip)]
    pub chain: String,
}

/// A signing request (PKCS#10) of a node, whose signature was verified. It may ask for nothing but a
/// certificate for its key: the token, or the certificate before, decides all else.
#[derive(Debug)]
pub struct SigningRequest {
    key: rcgen::SubjectPublicKeyInfo,
    digest: String,
}

impl SigningRequest {
    /// Reads a signing request in PEM.
    ///
    /// # Errors
    /// [`Fault::SigningRequest`] if there is none, or if it asks for a name, a role or any other extension;
    /// [`Fault::UnusableKey`] if its key has not signed it; a fault of the PEM text.
    pub fn from_pem(pem: &str) -> Result<Self, Fault> {
        requested(pem.as_bytes(), |request, key| {
            let info = &request.certification_request_info;
            if info.subject.iter_rdn().next().is_some() || !info.attributes().is_empty() {
                let why =
                    "it asks for a name, a role or a right, but may ask only for a certificate for its key";
                return Err(Fault::SigningRequest(why.to_owned()));
            }
            let digest = digest(info.subject_pki.raw);
            Ok(Self { key, digest })
        })
    }

    /// The SHA-256 digest of the public key (SubjectPublicKeyInfo), as base64url.
    pub fn digest(&self) -> &str {
        &self.digest
    }
}

/// Makes the private key of a node, ECDSA on P-256, as PEM text (PKCS#8). It does not leave the node.
///
/// # Errors
/// [`Error::Crypto`].
pub fn node_key() -> Result<String, Error> {
    Ok(generate(KeyKind::P256)?.serialize_pem())
}

/// A [`SigningRequest`] for the private key in a PEM text, as PEM. Errors name the text `origin`.
///
/// # Errors
/// [`Error::Content`] if there is no usable key; [`Error::Crypto`].
pub fn signing_request(key: &str, origin: &str) -> Result<String, Error> {
    let key = key_pair_of(key.as_bytes());
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    let request = params.serialize_request(&key.map_err(Error::content(origin))?);
    request.and_then(|request| request.pem()).map_err(crypto)
}

impl CertificateInfo {
    /// The certificate as PEM text.
    pub fn to_pem(&self) -> String {
        to_pem(&self.der)
    }
}

/// A certificate as PEM text.
pub(crate) fn to_pem(certificate: &CertificateDer<'_>) -> String {
    let mut pem = "-----BEGIN CERTIFICATE-----\n".to_owned();
    for line in STANDARD.encode(certificate).as_bytes().chunks(64) {
        pem.extend(line.iter().copied().map(char::from));
        pem.push('\n');
    }
    pem + "-----END CERTIFICATE-----\n"
}

/// The SHA-256 digest of some bytes as base64url.
pub(crate) fn digest(bytes: &[u8]) -> String {
    URL_SAFE_NO_PAD.encode(sha256(bytes))
}

#[cfg(test)]
mod tests {
    use rcgen::{IsCa, KeyPair};

    use super::*;
    use crate::{AuthorityRequest, Identity, eku};

    const MONTH: Duration = Duration::from_secs(30 * 86_400);

    fn authority() -> Authority {
        Authority::new(&AuthorityRequest::default()).unwrap()
    }

    fn request() -> (String, SigningRequest) {
        let key = node_key().unwrap();
        let request = SigningRequest::from_pem(&signing_request(&key, "key").unwrap()).unwrap();
        (key, request)
    }

    #[test]
    fn an_issuer_gives_the_roles_that_it_lists_to_the_key_of_a_request() {
        let authority = authority();
        let issuer = authority
            .issuer("one", Role::AGENT | Role::NETAGENT, 100)
            .unwrap();
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("issuer.pem");
        issuer.save(&path).unwrap();
        let issuer = Issuer::load(&path).unwrap();
        let ((key, request), uuid) = (request(), Uuid::from_u128(7));
        let enrolled = issuer.issue(&request, Role::AGENT, uuid, MONTH).unwrap();
        let text = enrolled.chain.clone() + &key;
        let identity = Identity::from_pem(text.as_bytes(), "node").unwrap();
        let info = authority.trust().verify(identity.chain()).unwrap();
        assert_eq!(
            (info.roles, info.uuid, info.hosts.len()),
            (Role::AGENT, Some(uuid), 0)
        );
        assert_eq!(
            (&info.serial, seconds(info.not_after)),
            (&enrolled.serial, enrolled.ends)
        );
        assert_eq!(enrolled.key, request.digest());
        // No longer than the issuer itself.
        for longer in [MONTH * 100, Duration::MAX] {
            let long = issuer.issue(&request, Role::AGENT, uuid, longer).unwrap();
            assert_eq!(long.ends, seconds(issuer.info().not_after));
        }
        for roles in [Role::CNCIAGENT, Role::AGENT | Role::CONTROLLER, Role::NONE] {
            let refused = issuer.issue(&request, roles, uuid, MONTH).unwrap_err();
            assert!(
                matches!(refused, Error::Request(BadRequest::IssuerRole { .. })),
                "{refused}"
            );
        }
    }

    #[test]
    fn an_authority_makes_issuers_for_nodes_alone() {
        for roles in [
            Role::NONE,
            Role::CONTROLLER,
            Role::AGENT | Role::SCHEDULER,
            Role::SERVER,
        ] {
            let refused = authority().issuer("one", roles, 1).unwrap_err();
            assert!(
                matches!(refused, Error::Request(BadRequest::IssuerRole { .. })),
                "{refused}"
            );
        }
    }

    #[test]
    fn a_file_that_is_no_issuer_s_is_refused_with_the_reason() {
        let (directory, authority) = (tempfile::tempdir().unwrap(), authority());
        let path = directory.path().join("issuer.pem");
        let issued = authority.issue(&CertificateRequest::new(Role::AGENT)).unwrap();
        let own = authority.issuer("one", Role::AGENT, 1).unwrap();
        let of = |certificate: &str, key: &str| {
            store::write(&path, &format!("{certificate}{key}"), PRIVATE).unwrap();
            Issuer::load(&path).unwrap_err().to_string()
        };
        let cases = [
            (of(&own.info().to_pem(), ""), "it holds no private key"),
            (of(&own.info().to_pem(), issued.key_pem()), "does not belong"),
            (
                of(issued.certificate_pem(), issued.key_pem()),
                "is not a certificate authority's",
            ),
            // The authority itself, which may give every role.
            (
                of(authority.certificate_pem(), &authority.key_pem()),
                "agent,netagent,cnciagent, not none",
            ),
        ];
        for (refused, why) in cases {
            assert!(refused.contains(why), "{refused}");
        }
    }

    /// A certificate that a thief of an issuer's key makes with other tools.
    fn stolen(issuer: &Issuer, roles: Role, is_ca: bool) -> Vec<CertificateDer<'static>> {
        let mut params = issuer
            .0
            .params_for(&CertificateRequest::new(roles).host("localhost"))
            .unwrap();
        if is_ca {
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        }
        let key = generate(KeyKind::P256).unwrap();
        let certificate = params.signed_by(&key, &issuer.0.issuer).unwrap();
        vec![certificate.der().clone(), issuer.info().der.clone()]
    }

    #[test]
    fn a_stolen_issuer_makes_no_controller_and_no_server() {
        let authority = authority();
        let issuer = authority.issuer("issuer", Role::AGENT, 10).unwrap();
        let verify = |roles| authority.trust().verify(&stolen(&issuer, roles, false)).map(drop);
        assert_eq!(verify(Role::AGENT), Ok(()));
        let text = verify(Role::AGENT | Role::CONTROLLER).unwrap_err().to_string();
        assert_eq!(
            text,
            "the certificate has the role controller, which \"CN=issuer\" may not give"
        );
        for roles in [Role::CONTROLLER, Role::SERVER, Role::SCHEDULER, Role::NETAGENT] {
            assert!(verify(roles).is_err(), "{roles}");
        }
        // A further authority below the issuer's.
        let mut below = authority.issuer("issuer", Role::AGENT, 10).unwrap();
        let chain = stolen(&issuer, Role::AGENT, true);
        below.0.info = CertificateInfo::from_der(&chain[0]).unwrap();
        let mut longer = stolen(&below, Role::AGENT, false);
        longer[1..].clone_from_slice(&chain[..1]);
        longer.push(issuer.info().der.clone());
        assert!(authority.trust().verify(&longer).is_err());
    }

    #[test]
    fn a_signing_request_may_ask_for_a_certificate_alone() {
        let key = KeyPair::generate().unwrap();
        let refused = |change: &dyn Fn(&mut CertificateParams)| {
            let mut params = CertificateParams::default();
            params.distinguished_name = DistinguishedName::new();
            change(&mut params);
            let pem = params.serialize_request(&key).unwrap().pem().unwrap();
            SigningRequest::from_pem(&pem).unwrap_err().to_string()
        };
        let controller = |params: &mut CertificateParams| {
            let usages = eku::identifiers(Role::CONTROLLER).map(rcgen::ExtendedKeyUsagePurpose::Other);
            params.extended_key_usages = usages.collect();
        };
        for refused in [
            refused(&controller),
            refused(&|params| params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained)),
            refused(&|params| {
                params.subject_alt_names = vec![rcgen::SanType::DnsName("x.example".try_into().unwrap())];
            }),
            refused(&|params| {
                params
                    .distinguished_name
                    .push(rcgen::DnType::CommonName, "scheduler-1")
            }),
        ] {
            assert!(
                refused.contains("may ask only for a certificate for its key"),
                "{refused}"
            );
        }
        let mut broken = signing_request(&key.serialize_pem(), "key").unwrap();
        let at = broken.len() / 2;
        let other = if &broken[at..=at] == "A" { "B" } else { "A" };
        broken.replace_range(at..=at, other);
        assert!(SigningRequest::from_pem(&broken).is_err());
        assert!(SigningRequest::from_pem("").is_err());
    }
}
