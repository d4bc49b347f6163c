//! The facts in a certificate.

use std::net::IpAddr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustls::client::verify_server_name;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::server::ParsedCertificate;
use uuid::Uuid;
use x509_parser::extensions::GeneralName;
use x509_parser::public_key::PublicKey;
use x509_parser::x509::SubjectPublicKeyInfo;

use crate::der::{self, authority_key, distinguished_name, hexadecimal, rfc3339};
use crate::eku;
use crate::error::Fault;
use crate::host::Host;
use crate::role::Role;
use ssntp_transport::{printable, sha256};

const UUID_SCHEME: &str = "urn:uuid:";

/// The facts in one certificate, which are read but not judged: [`Trust::verify`](crate::Trust::verify)
/// checks whether a trusted authority issued it. Hidden characters in its texts are escaped.
///
/// Two certificates are equal if their [`der`](Self::der) bytes are.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct CertificateInfo {
    /// The name of its holder, as in `CN=agent-7`.
    pub subject: String,
    /// The name of its issuer.
    pub issuer: String,
    /// The serial number in hexadecimal, bytes joined with colons.
    pub serial: String,
    /// The roles it gives, [`Role::NONE`] if it gives none.
    pub roles: Role,
    /// The UUID of its `urn:uuid:` SAN, if it has one. Its holder may connect only with this UUID
    /// (docs/protocol.md, "Handshake").
    pub uuid: Option<Uuid>,
    /// The DNS names and IP addresses in its SANs, in their order.
    pub hosts: Vec<Host>,
    /// Every other SAN as `kind:text`.
    pub other_names: Vec<String>,
    /// The first moment at which it is valid.
    pub not_before: SystemTime,
    /// The last moment at which it is valid.
    pub not_after: SystemTime,
    /// The kind of its key: `P-256`, `RSA 2048`, `Ed25519`, or an object identifier.
    pub key: String,
    /// True if it is an authority's.
    pub is_authority: bool,
    /// True if its holder may be a TLS server (serverAuth).
    pub server_auth: bool,
    /// True if its holder may be a TLS client (clientAuth).
    pub client_auth: bool,
    /// The SHA-256 digest of the DER in hexadecimal, bytes joined with colons.
    pub fingerprint: String,
    /// The certificate itself.
    pub der: CertificateDer<'static>,
}

impl CertificateInfo {
    /// Reads a certificate.
    ///
    /// # Errors
    /// [`Fault::BadCertificate`] if the bytes are not a certificate, or a part of it that is
    /// read here is broken; [`Fault::BadUuid`] if a `urn:uuid:` SAN is not a UUID in RFC
    /// 9562 form, is nil, or differs from another one.
    pub fn from_der(certificate: &CertificateDer<'_>) -> Result<Self, Fault> {
        let parsed = der::certificate(certificate)?;
        let usages = eku::usages(&parsed)?;
        let constraints = parsed.basic_constraints();
        let constraints = constraints.map_err(der::broken("basic constraints"))?;
        let alternatives = parsed.subject_alternative_name();
        let alternatives = alternatives.map_err(der::broken("subject alternative names"))?;
        let names = match &alternatives {
            Some(extension) => Names::read(&extension.value.general_names)?,
            None => Names::default(),
        };
        Ok(Self {
            subject: distinguished_name(parsed.subject()),
            issuer: distinguished_name(parsed.issuer()),
            serial: hexadecimal(parsed.raw_serial()),
            roles: usages.map_or(Role::NONE, eku::roles),
            uuid: names.uuid,
            hosts: names.hosts,
            other_names: names.others,
            not_before: parsed.validity().not_before.to_datetime().into(),
            not_after: parsed.validity().not_after.to_datetime().into(),
            key: key_kind(parsed.public_key()),
            is_authority: constraints.is_some_and(|extension| extension.value.ca),
            // Without an extended key usage, TLS allows every usage.
            server_auth: usages.is_none_or(|usages| usages.server_auth),
            client_auth: usages.is_none_or(|usages| usages.client_auth),
            fingerprint: hexadecimal(&sha256(certificate)),
            der: certificate.clone().into_owned(),
        })
    }

    /// The common name in a certificate's subject, the last one if there are several. `None` if there
    /// is none. Certificates of version 1 are read as well.
    pub fn common_name(certificate: &CertificateDer<'_>) -> Option<String> {
        let parsed = der::certificate(certificate).ok()?;
        let last = parsed.subject().iter_common_name().last()?;
        last.as_str().ok().map(str::to_owned)
    }

    /// The facts for bytes that are no certificate: no names, no roles, and never valid.
    pub fn nothing(certificate: &CertificateDer<'_>) -> Self {
        Self {
            subject: String::new(),
            issuer: String::new(),
            serial: String::new(),
            roles: Role::NONE,
            uuid: None,
            hosts: Vec::new(),
            other_names: Vec::new(),
            not_before: UNIX_EPOCH,
            not_after: UNIX_EPOCH,
            key: String::new(),
            is_authority: false,
            server_auth: false,
            client_auth: false,
            fingerprint: String::new(),
            der: certificate.clone().into_owned(),
        }
    }

    /// The DNS names among [`hosts`](Self::hosts).
    pub fn dns_names(&self) -> impl Iterator<Item = &str> {
        self.hosts.iter().filter_map(|host| match host {
            Host::Name(name) => Some(name.as_str()),
            Host::Address(_) => None,
        })
    }

    /// The addresses among [`hosts`](Self::hosts).
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.hosts.iter().filter_map(|host| match host {
            Host::Name(_) => None,
            Host::Address(address) => Some(*address),
        })
    }

    /// True if one authority issued both: the issuers' names are equal byte for byte, and so are the
    /// identifiers of the authorities' keys, if the certificates have them.
    ///
    /// An authority whose certificate was renewed with its old key is still the same one. No
    /// signature is verified here: [`Trust::verify`](crate::Trust::verify) does that.
    pub fn has_same_issuer(&self, other: &Self) -> bool {
        // Read again on each call, because few certificates are ever compared.
        match (der::certificate(&self.der), der::certificate(&other.der)) {
            (Ok(one), Ok(other)) => {
                one.issuer().as_raw() == other.issuer().as_raw()
                    && authority_key(&one) == authority_key(&other)
            }
            _ => false,
        }
    }

    /// True if the key of this certificate made the signature of that certificate or revocation list.
    pub(crate) fn has_signed(&self, der: &[u8]) -> bool {
        self.public_key().is_ok_and(|key| der::is_signed_by(der, key))
    }

    /// The public key (SubjectPublicKeyInfo) in DER.
    pub(crate) fn public_key(&self) -> Result<&[u8], Fault> {
        Ok(der::certificate(&self.der)?.tbs_certificate.subject_pki.raw)
    }

    /// The SHA-256 digest of the public key (SubjectPublicKeyInfo), by which a node knows its authority.
    ///
    /// # Errors
    /// [`Fault::BadCertificate`] for the facts of [`nothing`](Self::nothing).
    pub fn key_digest(&self) -> Result<[u8; 32], Fault> {
        let mut digest = [0; 32];
        digest.copy_from_slice(&sha256(self.public_key()?));
        Ok(digest)
    }

    /// Its [`hosts`](Self::hosts), joined with commas.
    pub fn hosts_text(&self) -> String {
        let hosts: Vec<_> = self.hosts.iter().map(Host::to_string).collect();
        hosts.join(", ")
    }

    /// [`not_before`](Self::not_before) in RFC 3339 form, such as `2026-01-31T00:00:00Z`.
    pub fn not_before_text(&self) -> String {
        rfc3339(self.not_before)
    }

    /// [`not_after`](Self::not_after) in RFC 3339 form.
    pub fn not_after_text(&self) -> String {
        rfc3339(self.not_after)
    }

    /// The number of whole days that are left of its lifetime at that time: 0 on its last day, and
    /// negative once it has expired.
    pub fn days_left(&self, at: SystemTime) -> i64 {
        let days = |distance: Duration| i64::try_from(distance.as_secs() / 86_400).unwrap_or(i64::MAX);
        match self.not_after.duration_since(at) {
            Ok(left) => days(left),
            Err(since) => -1 - days(since.duration()),
        }
    }

    /// True if clients that dial a server by this DNS name or IP address take the certificate for it.
    pub fn is_for(&self, name: &str) -> bool {
        let parsed = ParsedCertificate::try_from(&self.der);
        let both = parsed.ok().zip(ServerName::try_from(name).ok());
        both.is_some_and(|(parsed, name)| verify_server_name(&parsed, &name).is_ok())
    }

    /// Checks that the certificate is valid at that time.
    ///
    /// # Errors
    /// [`Fault::NotYetValid`] or [`Fault::Expired`].
    pub fn check_validity(&self, at: SystemTime) -> Result<(), Fault> {
        if at < self.not_before {
            let not_before = self.not_before_text();
            let clock = rfc3339(at);
            return Err(Fault::NotYetValid { not_before, clock });
        }
        // The second that not_after names belongs to the lifetime.
        if at >= self.not_after + Duration::from_secs(1) {
            let not_after = self.not_after_text();
            let clock = rfc3339(at);
            return Err(Fault::Expired { not_after, clock });
        }
        Ok(())
    }
}

impl PartialEq for CertificateInfo {
    fn eq(&self, other: &Self) -> bool {
        self.der == other.der
    }
}

impl Eq for CertificateInfo {}

/// The SANs of a certificate.
#[derive(Default)]
struct Names {
    uuid: Option<Uuid>,
    hosts: Vec<Host>,
    others: Vec<String>,
}

impl Names {
    fn read(names: &[GeneralName<'_>]) -> Result<Self, Fault> {
        let mut read = Self::default();
        for name in names {
            match name {
                GeneralName::DNSName(text) => match text.parse() {
                    Ok(host @ Host::Name(_)) => read.hosts.push(host),
                    _ => read.others.push(format!("dns:{}", printable(text))),
                },
                GeneralName::IPAddress(bytes) => match address(bytes) {
                    Some(address) => read.hosts.push(Host::Address(address)),
                    None => read.others.push(format!("ip:{}", hexadecimal(bytes))),
                },
                GeneralName::URI(uri) => read.uri(uri)?,
                GeneralName::RFC822Name(text) => read.others.push(format!("email:{}", printable(text))),
                GeneralName::DirectoryName(name) => {
                    read.others
                        .push(format!("directory:{}", distinguished_name(name)));
                }
                other => read
                    .others
                    .push(format!("other:{}", printable(&format!("{other:?}")))),
            }
        }
        Ok(read)
    }

    /// Reads a URI. A `urn:uuid:` URI is an identity, so a broken one is an error instead of a further
    /// name.
    fn uri(&mut self, uri: &str) -> Result<(), Fault> {
        let scheme = uri.get(..UUID_SCHEME.len()).unwrap_or_default();
        if !scheme.eq_ignore_ascii_case(UUID_SCHEME) {
            self.others.push(format!("uri:{}", printable(uri)));
            return Ok(());
        }
        let text = &uri[UUID_SCHEME.len()..];
        // The parser accepts more forms than the 36 characters of RFC 9562.
        let uuid = match Uuid::try_parse(text) {
            Ok(uuid) if text.len() == 36 && !uuid.is_nil() => uuid,
            _ => return Err(Fault::BadUuid(printable(uri))),
        };
        match self.uuid.replace(uuid) {
            Some(before) if before != uuid => Err(Fault::BadUuid(printable(uri))),
            _ => Ok(()),
        }
    }
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    if let Ok(bytes) = <[u8; 4]>::try_from(bytes) {
        return Some(bytes.into());
    }
    <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from)
}

pub(crate) fn key_kind(key: &SubjectPublicKeyInfo<'_>) -> String {
    let algorithm = key.algorithm.algorithm.to_id_string();
    match algorithm.as_str() {
        "1.2.840.113549.1.1.1" => match key.parsed() {
            Ok(PublicKey::RSA(rsa)) => format!("RSA {}", rsa.key_size()),
            _ => "RSA".to_owned(),
        },
        "1.2.840.10045.2.1" => {
            let curve = key.algorithm.parameters.as_ref().and_then(|p| p.as_oid().ok());
            match curve.map(|curve| curve.to_id_string()).as_deref() {
                Some("1.2.840.10045.3.1.7") => "P-256".to_owned(),
                Some("1.3.132.0.34") => "P-384".to_owned(),
                Some("1.3.132.0.35") => "P-521".to_owned(),
                Some(other) => format!("EC {other}"),
                None => "EC".to_owned(),
            }
        }
        "1.3.101.112" => "Ed25519".to_owned(),
        _ => algorithm,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uuid_of(uris: &[&str]) -> Result<Option<Uuid>, Fault> {
        let names: Vec<_> = uris.iter().map(|uri| GeneralName::URI(uri)).collect();
        Names::read(&names).map(|names| names.uuid)
    }

    #[test]
    fn bytes_that_are_no_certificate_are_a_bad_certificate() {
        for bytes in [&b""[..], b"\x30", b"\x30\x03\x02\x01\x01", &[0xff; 64]] {
            let fault = CertificateInfo::from_der(&CertificateDer::from(bytes)).unwrap_err();
            assert!(matches!(fault, Fault::BadCertificate(_)), "{fault}");
        }
    }

    #[test]
    fn a_uuid_san_is_read_in_rfc_9562_form_only() {
        const UUID: &str = "f81d4fae-7dec-11d0-a765-00a0c91e6bf6";
        let uuid = Uuid::parse_str(UUID).unwrap();
        let good = format!("urn:uuid:{UUID}");
        let upper = format!("URN:UUID:{}", UUID.to_uppercase());
        assert_eq!(uuid_of(&[&good]), Ok(Some(uuid)));
        assert_eq!(uuid_of(&[&good, &upper]), Ok(Some(uuid)));
        assert_eq!(uuid_of(&["spiffe://x", "urn:other"]), Ok(None));

        let simple = format!("urn:uuid:{}", uuid.simple());
        let braced = format!("urn:uuid:{{{UUID}}}");
        let nil = format!("urn:uuid:{}", Uuid::nil());
        let other = format!("urn:uuid:{}", Uuid::max());
        for bad in [
            "urn:uuid:",
            "urn:uuid:agent-7",
            "Urn:Uuid:\u{1b}[31m",
            &simple,
            &braced,
            &nil,
        ] {
            assert!(matches!(uuid_of(&[bad]), Err(Fault::BadUuid(_))), "{bad}");
        }
        assert_eq!(uuid_of(&[&good, &other]), Err(Fault::BadUuid(other.clone())));
    }

    #[test]
    fn names_that_are_no_host_are_other_names() {
        let names = [
            GeneralName::DNSName("a.example"),
            GeneralName::DNSName("no name\u{7}"),
            GeneralName::DNSName("127.0.0.1"),
            GeneralName::IPAddress(&[127, 0, 0, 1]),
            GeneralName::IPAddress(&[1, 2, 3]),
            GeneralName::RFC822Name("a@example"),
            GeneralName::URI("x:\u{202e}\u{200b}\n\u{85}"),
        ];
        let names = Names::read(&names).unwrap();
        let hosts = [Host::Name("a.example".to_owned()), "127.0.0.1".parse().unwrap()];
        assert_eq!(names.hosts, hosts);
        let others = [
            "dns:no name\\u{7}",
            "dns:127.0.0.1",
            "ip:01:02:03",
            "email:a@example",
            "uri:x:\\u{202e}\\u{200b}\\n\\u{85}",
        ];
        assert_eq!(names.others, others);
    }

    #[cfg(feature = "issue")]
    #[test]
    fn authorities_of_the_same_name_are_distinguished() {
        use crate::{Authority, AuthorityRequest, CertificateRequest};
        let authority = || Authority::new(&AuthorityRequest::default()).unwrap();
        let issue = |authority: &Authority| {
            let issued = authority.issue(&CertificateRequest::new(Role::AGENT)).unwrap();
            issued.info().clone()
        };
        let (here, there) = (authority(), authority());
        let (one, other) = (issue(&here), issue(&here));
        let stranger = issue(&there);
        assert_eq!(one.issuer, stranger.issuer, "the authorities have the same name");
        assert!(one.has_same_issuer(&other) && one.has_same_issuer(&one));
        assert!(!one.has_same_issuer(&stranger));
        let nothing = CertificateInfo::nothing(&CertificateDer::from(vec![1, 2, 3]));
        assert!(!nothing.has_same_issuer(&nothing));
    }
}
