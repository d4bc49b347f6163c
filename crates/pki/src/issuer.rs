//! Issuers: authorities below the authority that give the roles of nodes alone.
//!
//! ```text
//!  Authority::issuer ─▶ Issuer ─▶ one file: its certificate, the authority's, its key
//!  holder: NodeKey ─ signing request ─▶ SigningRequest ─▶ Issuer::issue ─▶ Enrolled: chain, serial number, end
//! ```
//!
//! A server that lets nodes join holds an issuer instead of the authority's key. The extended key usage of the
//! issuer's certificate lists the roles that it may give, and every check of a peer refuses other roles (see
//! `limits`). It lacks serverAuth, and the path length is 0. So whoever steals an issuer makes nodes, but
//! no controller, no server and no further issuer.

use std::fmt;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use rcgen::{BasicConstraints, CertificateParams, DistinguishedName, IsCa, KeyPair, KeyUsagePurpose};
use serde::{Deserialize, Serialize};
use uuid::Uuid;
use x509_parser::extensions::ParsedExtension;

use crate::error::{BadRequest, Error, Fault};
use crate::identity::{certify, signing_key};
use crate::inspect::CertificateInfo;
use crate::issue::{Authority, CLOCK_SKEW, PRIVATE, crypto, generate, key_pair};
use crate::list::Revoked;
use crate::request::{CertificateRequest, KeyKind};
use crate::revoke::SignedRevocationList;
use crate::role::Role;
use crate::signing::requested;
use crate::{der, eku, store};
use ssntp_transport::sha256;

/// The roles that an issuer may give.
const OF_NODES: Role = Role::from_bits(Role::AGENT.bits() | Role::NETAGENT.bits() | Role::CNCIAGENT.bits());

impl Authority {
    /// Makes an issuer that may give these roles: agent, netagent, cnciagent or several of them. The `name` is
    /// that of its certificate; each server has an issuer with a name of its own. Its life ends with the
    /// authority's at the latest.
    ///
    /// # Errors
    /// [`Error::Request`] if a role is not a node's, or if the authority allows no issuers, as one that
    /// earlier versions have made; [`Error::Crypto`].
    pub fn issuer(&self, name: &str, roles: Role, days: u32) -> Result<Issuer, Error> {
        if roles.is_empty() || !OF_NODES.contains(roles) {
            return Err(BadRequest::IssuerRole(roles).into());
        }
        let origin = "the new issuer";
        let own = der::certificate(&self.info.der).map_err(Error::content("the authority"))?;
        let constraints = own.basic_constraints().ok().flatten();
        if constraints.is_some_and(|extension| extension.value.path_len_constraint == Some(0)) {
            return Err(BadRequest::NoIssuers.into());
        }
        let mut params = self.params_for(&CertificateRequest::new(roles).name(name).days(days))?;
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = generate(KeyKind::P256)?;
        let certificate = params.signed_by(&key, &self.issuer).map_err(crypto)?;
        self.check_issuer_name(certificate.der())?;
        let info = CertificateInfo::from_der(certificate.der()).map_err(Error::content(origin))?;
        Issuer::assemble(info, self.info.clone(), key, origin)
    }
}

/// An authority that gives the roles of nodes alone, with its private key and the certificate of the authority
/// that has made it.
///
/// # Threads
/// `Send` and `Sync`; every call takes `&self`. Loading and saving block on the disk.
pub struct Issuer {
    signer: Authority,
    authority: CertificateInfo,
}

impl Issuer {
    /// Loads the file that [`save`](Self::save) wrote.
    ///
    /// # Errors
    /// [`Error::Read`]; [`Error::Content`] if the file does not hold an issuer's certificate that is valid at
    /// present, that of the authority that signed it, and the issuer's key.
    pub fn load(path: impl AsRef<Path>) -> Result<Self, Error> {
        let (path, origin) = (path.as_ref(), store::origin(path.as_ref()));
        let unfit = |fault| Error::content(&origin)(fault);
        let sections = store::load(path)?;
        store::warn_of_open_key(path);
        let [own, above, ..] = sections.certificates().map_err(unfit)? else {
            return Err(unfit(Fault::NoCertificate));
        };
        let [info, authority] = [own, above].map(CertificateInfo::from_der);
        let (info, authority) = (info.map_err(unfit)?, authority.map_err(unfit)?);
        info.check_validity(der::now()).map_err(unfit)?;
        let key = sections.key().map_err(unfit)?;
        certify(vec![own.clone()], signing_key(key.clone_key(), &origin)?).map_err(unfit)?;
        Self::assemble(info, authority, key_pair(&key).map_err(unfit)?, &origin)
    }

    fn assemble(
        info: CertificateInfo,
        authority: CertificateInfo,
        key: KeyPair,
        origin: &str,
    ) -> Result<Self, Error> {
        let is_signed = der::is_signed_by(&info.der, authority.public_key().map_err(Error::content(origin))?);
        if !info.is_authority || !is_signed {
            let subject = info.subject;
            return Err(Error::content(origin)(Fault::NotIssuer { subject }));
        }
        let (certificate, key_pem) = (info.to_pem(), key.serialize_pem());
        Ok(Self {
            signer: Authority::assemble(info, certificate, key, key_pem, origin)?,
            authority,
        })
    }

    /// Writes its certificate, the authority's and its key into one file of mode 0600, in one step. Blocks on
    /// the disk.
    ///
    /// # Errors
    /// [`Error::Write`].
    pub fn save(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        let signer = &self.signer;
        let text = [
            signer.certificate_pem(),
            &self.authority.to_pem(),
            signer.key_pem(),
        ]
        .concat();
        store::write(path.as_ref(), &text, PRIVATE)
    }

    /// The facts in its own certificate.
    pub fn info(&self) -> &CertificateInfo {
        self.signer.info()
    }

    /// The facts in the certificate of the authority that has made it.
    pub fn authority(&self) -> &CertificateInfo {
        &self.authority
    }

    /// The roles that it may give.
    pub fn roles(&self) -> Role {
        self.signer.info().roles
    }

    /// Issues a certificate that gives `roles` and is bound to `uuid`, for the key of a signing request. It ends
    /// with the issuer's own at the latest.
    ///
    /// # Errors
    /// [`Error::Request`] if the issuer may not give a role, the UUID is nil, or the issuer has expired.
    pub fn issue(
        &self,
        request: &SigningRequest,
        roles: Role,
        uuid: Uuid,
        lifetime: Duration,
    ) -> Result<Enrolled, Error> {
        let signer = &self.signer;
        if roles.is_empty() || !self.roles().contains(roles) {
            let given = self.roles();
            return Err(BadRequest::RoleNotGiven { roles, given }.into());
        }
        let now = der::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        if signer.info.check_validity(der::now()).is_err() {
            let not_after = signer.info.not_after_text();
            return Err(BadRequest::AuthorityExpires { not_after }.into());
        }
        // A joining node has no name that anybody has proved.
        let name = format!("{}-{uuid}", roles.to_string().replace(',', "-"));
        let wanted = CertificateRequest::new(roles).name(name).uuid(uuid);
        let start = now.as_secs().saturating_sub(CLOCK_SKEW);
        let params = signer.params_within(&wanted, start, (now + lifetime).as_secs())?;
        let certificate = params.signed_by(&request.key, &signer.issuer).map_err(crypto)?;
        signer.check_issuer_name(certificate.der())?;
        let info = CertificateInfo::from_der(certificate.der());
        let info = info.map_err(Error::content("the new certificate"))?;
        Ok(Enrolled {
            uuid,
            roles,
            serial: info.serial,
            ends: seconds(info.not_after),
            token: String::new(),
            key: request.digest.clone(),
            chain: certificate.pem() + signer.certificate_pem(),
        })
    }

    /// As [`Authority::revocation_list`]: signs a list of certificates that this issuer has issued.
    ///
    /// # Errors
    /// As [`Authority::revocation_list`].
    pub fn revocation_list(
        &self,
        revoked: &[Revoked],
        number: u64,
        days: u32,
    ) -> Result<SignedRevocationList, Error> {
        self.signer.revocation_list(revoked, number, days)
    }
}

impl fmt::Debug for Issuer {
    /// Its name and roles; never the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Issuer")
            .field("subject", &self.info().subject)
            .field("roles", &self.roles())
            .finish_non_exhaustive()
    }
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
    #[serde(default)]
    pub token: String,
    /// The digest of the node's key, see [`SigningRequest::digest`].
    pub key: String,
    /// The certificate and its issuer's, as PEM. A store may empty it when the token has ended.
    #[serde(default)]
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
        let refused = |asks: &str| {
            let why = format!("it asks for {asks}, but may ask only for a certificate for its key");
            Err(Fault::SigningRequest(why))
        };
        requested(pem.as_bytes(), |request, key| {
            let info = &request.certification_request_info;
            if let Some(asked) = request.requested_extensions().and_then(|mut all| all.next()) {
                return match asked {
                    ParsedExtension::ExtendedKeyUsage(usages) => {
                        refused(&format!("the roles {}", eku::roles(usages)))
                    }
                    ParsedExtension::BasicConstraints(_) => refused("the rights of an authority"),
                    ParsedExtension::SubjectAlternativeName(_) => refused("further names"),
                    _ => refused("an extension"),
                };
            }
            if info.subject.iter_rdn().next().is_some() {
                return refused("the name of a holder");
            }
            if !info.attributes().is_empty() {
                return refused("an attribute");
            }
            Ok(Self {
                digest: digest(info.subject_pki.raw),
                key,
            })
        })
    }

    /// The SHA-256 digest of the public key (SubjectPublicKeyInfo), as base64url.
    pub fn digest(&self) -> &str {
        &self.digest
    }
}

/// The private key of a node that joins, or whose certificate is renewed. It does not leave the node.
pub struct NodeKey(KeyPair);

impl NodeKey {
    /// Makes a key, ECDSA on P-256.
    ///
    /// # Errors
    /// [`Error::Crypto`].
    pub fn new() -> Result<Self, Error> {
        generate(KeyKind::P256).map(Self)
    }

    /// Reads a key in PEM. Errors name it `origin`.
    ///
    /// # Errors
    /// [`Error::Content`].
    pub fn from_pem(pem: &[u8], origin: &str) -> Result<Self, Error> {
        let key = store::Sections::read(pem).and_then(|sections| key_pair(&sections.key()?));
        key.map(Self).map_err(Error::content(origin))
    }

    /// The key as PEM text (PKCS#8). Keep it secret.
    pub fn to_pem(&self) -> String {
        self.0.serialize_pem()
    }

    /// A signing request for this key in PEM, which asks for nothing else.
    ///
    /// # Errors
    /// [`Error::Crypto`].
    pub fn signing_request(&self) -> Result<String, Error> {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        let request = params.serialize_request(&self.0).map_err(crypto)?;
        request.pem().map_err(crypto)
    }
}

impl CertificateInfo {
    /// The certificate as PEM text.
    pub fn to_pem(&self) -> String {
        let mut pem = "-----BEGIN CERTIFICATE-----\n".to_owned();
        for line in STANDARD.encode(&self.der).as_bytes().chunks(64) {
            pem.extend(line.iter().copied().map(char::from));
            pem.push('\n');
        }
        pem + "-----END CERTIFICATE-----\n"
    }
}

impl fmt::Debug for NodeKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NodeKey")
    }
}

/// The SHA-256 digest of some bytes as base64url.
pub(crate) fn digest(bytes: &[u8]) -> String {
    URL_SAFE_NO_PAD.encode(sha256(bytes))
}

/// A time in whole seconds since 1970.
pub(crate) fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

#[cfg(test)]
mod tests {
    use rustls::pki_types::CertificateDer;

    use super::*;
    use crate::{AuthorityRequest, Identity, RevocationLists, RevocationReason, Serial};

    const MONTH: Duration = Duration::from_secs(30 * 86_400);

    fn authority() -> Authority {
        Authority::new(&AuthorityRequest::default()).unwrap()
    }

    fn request() -> (NodeKey, SigningRequest) {
        let key = NodeKey::new().unwrap();
        let request = SigningRequest::from_pem(&key.signing_request().unwrap()).unwrap();
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
        assert_eq!(issuer.authority(), authority.info());
        let ((key, request), uuid) = (request(), Uuid::from_u128(7));
        let enrolled = issuer.issue(&request, Role::AGENT, uuid, MONTH).unwrap();
        let text = enrolled.chain.clone() + &key.to_pem();
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
        let long = issuer.issue(&request, Role::AGENT, uuid, MONTH * 100).unwrap();
        assert_eq!(long.ends, seconds(issuer.info().not_after));
        for roles in [Role::CNCIAGENT, Role::AGENT | Role::CONTROLLER, Role::NONE] {
            let refused = issuer.issue(&request, roles, uuid, MONTH).unwrap_err();
            assert!(
                matches!(refused, Error::Request(BadRequest::RoleNotGiven { .. })),
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
                matches!(refused, Error::Request(BadRequest::IssuerRole(_))),
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
        let other = Authority::new(&AuthorityRequest::default()).unwrap();
        let of = |certificates: &[&str], key: &str| {
            store::write(&path, &(certificates.concat() + key), PRIVATE).unwrap();
            Issuer::load(&path).unwrap_err().to_string()
        };
        let (first, above) = (own.signer.certificate_pem(), authority.certificate_pem());
        let cases = [
            (of(&[first], own.signer.key_pem()), "it holds no certificate"),
            (
                of(&[first, other.certificate_pem()], own.signer.key_pem()),
                "is not an issuer",
            ),
            (of(&[first, above], issued.key_pem()), "does not belong"),
            (
                of(&[issued.certificate_pem(), above], issued.key_pem()),
                "is not an issuer",
            ),
        ];
        for (refused, why) in cases {
            assert!(refused.contains(why), "{refused}");
        }
    }

    /// A certificate that a thief of an issuer's key makes with other tools.
    fn stolen(issuer: &Issuer, roles: Role, is_ca: bool) -> Vec<CertificateDer<'static>> {
        let mut params = issuer
            .signer
            .params_for(&CertificateRequest::new(roles).host("localhost"))
            .unwrap();
        if is_ca {
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        }
        let key = generate(KeyKind::P256).unwrap();
        let certificate = params.signed_by(&key, &issuer.signer.issuer).unwrap();
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
        below.signer.info = CertificateInfo::from_der(&chain[0]).unwrap();
        let mut longer = stolen(&below, Role::AGENT, false);
        longer[1..].clone_from_slice(&chain[..1]);
        longer.push(issuer.info().der.clone());
        assert!(authority.trust().verify(&longer).is_err());
    }

    #[test]
    fn an_issuer_s_list_revokes_a_node_below_the_trusted_authority() {
        let authority = authority();
        let issuer = authority.issuer("issuer", Role::AGENT, 10).unwrap();
        let (key, request) = request();
        let enrolled = issuer
            .issue(&request, Role::AGENT, Uuid::from_u128(1), MONTH)
            .unwrap();
        let node = Identity::from_pem((enrolled.chain + &key.to_pem()).as_bytes(), "node").unwrap();
        let revoked = Revoked::now(Serial::from(node.info()), RevocationReason::UNSPECIFIED);
        let list = issuer.revocation_list(&[revoked], 1, 30).unwrap();
        let lists = RevocationLists::from_pem(list.pem.as_bytes(), "crl.pem").unwrap();
        let trust = authority.trust().with_revocation_lists(&lists).unwrap();
        assert!(matches!(trust.verify(node.chain()), Err(Fault::Revoked { .. })));
    }

    #[test]
    fn a_signing_request_may_ask_for_a_certificate_alone() {
        let key = NodeKey::new().unwrap();
        let refused = |change: &dyn Fn(&mut CertificateParams)| {
            let mut params = CertificateParams::default();
            params.distinguished_name = DistinguishedName::new();
            change(&mut params);
            let pem = params.serialize_request(&key.0).unwrap().pem().unwrap();
            SigningRequest::from_pem(&pem).unwrap_err().to_string()
        };
        let controller = |params: &mut CertificateParams| {
            let usages = eku::identifiers(Role::CONTROLLER).map(rcgen::ExtendedKeyUsagePurpose::Other);
            params.extended_key_usages = usages.collect();
        };
        let cases = [
            (refused(&controller), "the roles controller"),
            (
                refused(&|params| params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained)),
                "the rights of an authority",
            ),
            (
                refused(&|params| {
                    params.subject_alt_names = vec![rcgen::SanType::DnsName("x.example".try_into().unwrap())];
                }),
                "further names",
            ),
            (
                refused(&|params| {
                    params
                        .distinguished_name
                        .push(rcgen::DnType::CommonName, "scheduler-1")
                }),
                "the name of a holder",
            ),
        ];
        for (refused, what) in cases {
            assert!(refused.contains(&format!("asks for {what},")), "{refused}");
        }
        let mut broken = key.signing_request().unwrap();
        let at = broken.len() / 2;
        let other = if &broken[at..=at] == "A" { "B" } else { "A" };
        broken.replace_range(at..=at, other);
        assert!(SigningRequest::from_pem(&broken).is_err());
        assert!(SigningRequest::from_pem("").is_err());
    }
}
