//! Making certificates: an authority and the certificates that it issues.

use std::fmt;
use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rcgen::{
    BasicConstraints, Certificate, CertificateParams, DistinguishedName, DnType, DnValue,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyIdMethod, KeyPair, KeyUsagePurpose, PublicKeyData, SanType,
};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use uuid::Uuid;
use x509_parser::asn1_rs::Tag;
use x509_parser::x509::X509Name;

use super::request::{AuthorityRequest, CertificateRequest, KeyKind};
use crate::error::{BadRequest, Error, Fault};
use crate::host::Host;
use crate::identity::{Identity, certify, signing_key};
use crate::inspect::CertificateInfo;
use crate::limits::check_issuer;
use crate::pem::Sections;
use crate::trust::Trust;
use crate::{der, eku, store};
use ssntp_transport::{provider, since_1970};

pub(crate) const CERTIFICATE_FILE: &str = "ca.pem";
pub(crate) const KEY_FILE: &str = "ca.key";
pub(crate) const PUBLIC: Option<u32> = Some(0o644);
pub(crate) const PRIVATE: Option<u32> = Some(0o600);

pub(crate) const DAY: u64 = 86_400;
pub(crate) const MAX_DAYS: u32 = 36_500;
/// The last second of the year 9999, which is the last time that a certificate can hold.
const LAST_SECOND: u64 = 253_402_300_799;
/// The time by which lifetimes begin earlier than the present time, for peers with slow clocks.
pub(crate) const CLOCK_SKEW: u64 = 600;

/// A certificate authority with its private key.
///
/// # Threads
/// `Send` and `Sync`; every call takes `&self`. Loading and saving block on the disk; making RSA keys
/// takes up to seconds.
pub struct Authority {
    pub(crate) issuer: Issuer<'static, KeyPair>,
    pub(crate) info: CertificateInfo,
    trust: Trust,
    pub(crate) certificate_pem: String,
}

impl Authority {
    /// Makes a new authority in memory.
    ///
    /// # Errors
    /// [`Error::Request`] if the request cannot be met; [`Error::Crypto`].
    pub fn new(request: &AuthorityRequest) -> Result<Self, Error> {
        let key = generate(request.key)?;
        let mut params = params(&request.name, lifetime(request.valid_from, request.days)?)?;
        // A common name has 64 characters at most.
        let common = format!("{} CA", request.name.chars().take(61).collect::<String>());
        let name = &mut params.distinguished_name;
        name.push(DnType::OrganizationName, request.name.as_str());
        name.push(DnType::CommonName, common);
        params.subject_alt_names = alternatives(&request.hosts, None)?;
        // Below it there may be issuers, and below those only peers.
        Self::self_signed(params, BasicConstraints::Constrained(1), key, "the new authority")
    }

    /// Signs the certificate of an authority with its own key.
    pub(crate) fn self_signed(
        mut params: CertificateParams,
        constraints: BasicConstraints,
        key: KeyPair,
        origin: &str,
    ) -> Result<Self, Error> {
        of_authority(&mut params, constraints);
        let certificate = params.self_signed(&key).map_err(crypto)?;
        let info = CertificateInfo::from_der(certificate.der()).map_err(Error::content(origin))?;
        Self::assemble(info, certificate.pem(), key, origin)
    }

    /// Loads `ca.pem` and `ca.key` from a directory.
    ///
    /// # Errors
    /// [`Error::Read`]; [`Error::Content`] if a file is not PEM, does not hold an authority's
    /// certificate or its key, or the authority has expired. With ring alone the key must be PKCS#8.
    pub fn load(directory: impl AsRef<Path>) -> Result<Self, Error> {
        let directory = directory.as_ref();
        Self::load_files(&directory.join(CERTIFICATE_FILE), &directory.join(KEY_FILE))
    }

    /// As [`load`](Self::load), from these files, which may be the same one.
    pub(crate) fn load_files(certificate_path: &Path, key_path: &Path) -> Result<Self, Error> {
        let origin = store::origin(certificate_path);
        let certificate_pem = String::from_utf8_lossy(&store::read(certificate_path)?).into_owned();
        let sections = Sections::read(certificate_pem.as_bytes());
        let info = sections
            .and_then(|sections| CertificateInfo::from_der(&sections.certificates()?[0]))
            .and_then(|info| info.check_validity(der::now()).map(|()| info))
            .map_err(Error::content(&origin))?;
        let key_origin = store::origin(key_path);
        let unfit = |fault| Error::content(&key_origin)(fault);
        let key = store::load(key_path)?.key().map_err(unfit)?;
        store::warn_of_open_key(key_path);
        let signing = signing_key(key.clone_key(), &key_origin)?;
        certify(vec![info.der.clone()], signing).map_err(unfit)?;
        let pair = key_pair(&key).map_err(unfit)?;
        Self::assemble(info, certificate_pem, pair, &origin)
    }

    pub(crate) fn assemble(
        info: CertificateInfo,
        certificate_pem: String,
        key: KeyPair,
        origin: &str,
    ) -> Result<Self, Error> {
        let trust = Trust::new(vec![info.clone()]).map_err(Error::content(origin))?;
        let issuer = Issuer::new(issuer_params(&info, origin)?, key);
        Ok(Self {
            issuer,
            info,
            trust,
            certificate_pem,
        })
    }

    /// Writes `ca.pem` (mode 0644) and `ca.key` (mode 0600) into a directory, which is created if
    /// necessary. Each file is written in one step.
    ///
    /// # Errors
    /// [`Error::Exists`] if one of the files exists and `overwrite` is false;
    /// [`Error::Write`].
    pub fn save(&self, directory: impl AsRef<Path>, overwrite: bool) -> Result<(), Error> {
        let directory = directory.as_ref();
        fs::create_dir_all(directory).map_err(|source| Error::Write {
            path: directory.to_owned(),
            source,
        })?;
        self.save_as(
            &directory.join(CERTIFICATE_FILE),
            &directory.join(KEY_FILE),
            overwrite,
        )
    }

    /// As [`save`](Self::save), with these names of the two files, whose directories have to exist. So the key
    /// can be kept apart, for example offline.
    ///
    /// # Errors
    /// As [`save`](Self::save).
    pub fn save_as(&self, certificate: &Path, key: &Path, overwrite: bool) -> Result<(), Error> {
        for path in [certificate, key] {
            if !overwrite && path.symlink_metadata().is_ok() {
                return Err(Error::Exists {
                    path: path.to_owned(),
                });
            }
        }
        store::write(key, &self.key_pem(), PRIVATE)?;
        store::write(certificate, &self.certificate_pem, PUBLIC)
    }

    /// Issues a certificate with a new key. It gives the roles as extended key usages, beside
    /// clientAuth, and serverAuth for servers and schedulers (docs/protocol.md, "Roles").
    ///
    /// # Errors
    /// [`Error::Request`] if the request cannot be met; [`Error::Crypto`].
    pub fn issue(&self, request: &CertificateRequest) -> Result<Issued, Error> {
        self.issue_for(request, || generate(request.key))
    }

    /// As [`issue`](Self::issue), with a key that is made only after the request was checked.
    pub(crate) fn issue_for(
        &self,
        request: &CertificateRequest,
        key: impl FnOnce() -> Result<KeyPair, Error>,
    ) -> Result<Issued, Error> {
        let params = self.params_for(request)?;
        let key = key()?;
        let (certificate, _) = self.certify(&params, &key)?;
        let origin = format!("the certificate issued to {:?}", request.name);
        let der = key.serialize_der();
        let private = PrivateKeyDer::try_from(der).map_err(|error| Error::Crypto(error.to_owned()))?;
        let chain = vec![certificate.der().clone()];
        Ok(Issued {
            certificate_pem: certificate.pem(),
            key_pem: key.serialize_pem(),
            identity: Identity::assemble(chain, private, &origin, &origin)?,
        })
    }

    /// The parameters of a certificate without its key.
    pub(crate) fn params_for(&self, request: &CertificateRequest) -> Result<CertificateParams, Error> {
        self.params_within(request, lifetime(request.valid_from, request.days)?)
    }

    /// As [`params_for`](Self::params_for), with the ends of the lifetime in seconds since 1970.
    pub(crate) fn params_within(
        &self,
        request: &CertificateRequest,
        (start, end): (u64, u64),
    ) -> Result<CertificateParams, Error> {
        let end = end.min(seconds(self.info.not_after));
        if end <= start {
            return Err(BadRequest::AuthorityExpires(self.info.not_after_text()).into());
        }
        let mut params = subject_params(request, (start, end))?;
        params.use_authority_key_identifier_extension = true;
        Ok(params)
    }

    /// Signs a certificate for a key. Peers compare the issuer's name byte by byte; rcgen encodes it again, which may
    /// change an unusual form.
    pub(crate) fn certify(
        &self,
        params: &CertificateParams,
        key: &impl PublicKeyData,
    ) -> Result<(Certificate, CertificateInfo), Error> {
        let certificate = params.signed_by(key, &self.issuer).map_err(crypto)?;
        let unfit = |fault| Error::content("the new certificate")(fault);
        let [issued, own] = [certificate.der(), &self.info.der].map(|der| der::certificate(der));
        if issued.map_err(unfit)?.issuer().as_raw() != own.map_err(unfit)?.subject().as_raw() {
            return Err(BadRequest::AuthorityName.into());
        }
        let info = CertificateInfo::from_der(certificate.der()).map_err(unfit)?;
        Ok((certificate, info))
    }

    /// Trust in this authority only, whether it has expired or not.
    pub fn trust(&self) -> Trust {
        self.trust.clone()
    }

    /// The facts in the authority's own certificate.
    pub fn info(&self) -> &CertificateInfo {
        &self.info
    }

    /// The authority's certificate as PEM text.
    pub fn certificate_pem(&self) -> &str {
        &self.certificate_pem
    }

    /// The authority's private key as PEM text, in the form in which it was loaded. Keep it secret.
    pub fn key_pem(&self) -> String {
        let key = self.issuer.key();
        // rcgen calls each form by the name of PKCS#8.
        let name = match PrivateKeyDer::try_from(key.serialized_der()) {
            Ok(PrivateKeyDer::Sec1(_)) => "EC PRIVATE KEY",
            Ok(PrivateKeyDer::Pkcs1(_)) => "RSA PRIVATE KEY",
            _ => "PRIVATE KEY",
        };
        key.serialize_pem().replace("PRIVATE KEY", name)
    }
}

impl fmt::Debug for Authority {
    /// The authority's name and serial number; never the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authority")
            .field("subject", &self.info.subject)
            .field("serial", &self.info.serial)
            .finish_non_exhaustive()
    }
}

/// A certificate that was just issued, with its private key.
#[derive(Clone)]
pub struct Issued {
    certificate_pem: String,
    key_pem: String,
    identity: Identity,
}

impl Issued {
    /// The certificate as PEM text.
    pub fn certificate_pem(&self) -> &str {
        &self.certificate_pem
    }

    /// The private key as PEM text (PKCS#8). Keep it secret.
    pub fn key_pem(&self) -> &str {
        &self.key_pem
    }

    /// Certificate and key as an identity. Unlike a loaded identity it may have no role and be outside
    /// its lifetime, for tests of such peers.
    pub fn identity(&self) -> Identity {
        self.identity.clone()
    }

    /// The facts in the certificate.
    pub fn info(&self) -> &CertificateInfo {
        self.identity.info()
    }

    /// The text of the file that [`Identity::load`] reads: the certificate, then the key.
    pub fn to_pem(&self) -> String {
        format!("{}{}", self.certificate_pem, self.key_pem)
    }

    /// Writes [`to_pem`](Self::to_pem) into a file of mode 0600, or replaces the file, in one step.
    /// Blocks on the disk.
    ///
    /// # Errors
    /// [`Error::Write`].
    pub fn save(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        store::write(path.as_ref(), &self.to_pem(), PRIVATE)
    }
}

impl fmt::Debug for Issued {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Issued").field(&self.identity).finish()
    }
}

/// The name, usages and alternative names of a requested certificate.
pub(crate) fn subject_params(
    request: &CertificateRequest,
    within: (u64, u64),
) -> Result<CertificateParams, Error> {
    if request.roles.unknown_bits() != 0 {
        return Err(BadRequest::UnknownRole(request.roles.unknown_bits()).into());
    }
    let mut params = params(&request.name, within)?;
    let name = &mut params.distinguished_name;
    name.push(DnType::CommonName, request.name.as_str());
    params.is_ca = IsCa::ExplicitNoCa;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    let server = request.is_server().then_some(ExtendedKeyUsagePurpose::ServerAuth);
    let usages = server.into_iter().chain([ExtendedKeyUsagePurpose::ClientAuth]);
    let roles = eku::identifiers(request.roles).map(ExtendedKeyUsagePurpose::Other);
    params.extended_key_usages = usages.chain(roles).collect();
    params.subject_alt_names = alternatives(&request.all_hosts(), request.uuid)?;
    Ok(params)
}

/// Makes the parameters those of an authority.
pub(crate) fn of_authority(params: &mut CertificateParams, constraints: BasicConstraints) {
    params.is_ca = IsCa::Ca(constraints);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
}

/// Parameters with a checked name, a random serial number, and these ends of the lifetime in seconds since 1970.
pub(crate) fn params(name: &str, (start, end): (u64, u64)) -> Result<CertificateParams, Error> {
    let length = name.chars().count();
    if !(1..=64).contains(&length) || name.chars().any(char::is_control) || name.trim().is_empty() {
        return Err(BadRequest::Name(name.to_owned()).into());
    }
    let mut serial = [0; 16];
    provider()
        .secure_random
        .fill(&mut serial)
        .map_err(|_| Error::Crypto("no random bytes".to_owned()))?;
    // The first bit is clear and the second is set, so that the number is positive and all numbers
    // have the same length.
    serial[0] = serial[0] & 0x7f | 0x40;
    let mut params = CertificateParams::default();
    params.serial_number = Some(serial.to_vec().into());
    params.distinguished_name = DistinguishedName::new();
    let beginning = rcgen::date_time_ymd(1970, 1, 1);
    params.not_before = beginning + Duration::from_secs(start);
    params.not_after = beginning + Duration::from_secs(end);
    Ok(params)
}

/// A time in whole seconds since 1970.
pub(crate) fn seconds(time: SystemTime) -> u64 {
    since_1970(time).as_secs()
}

/// The ends of a lifetime in seconds since 1970.
pub(crate) fn lifetime(from: Option<SystemTime>, days: u32) -> Result<(u64, u64), BadRequest> {
    if !(1..=MAX_DAYS).contains(&days) {
        return Err(BadRequest::Days(days));
    }
    let start = from.unwrap_or_else(der::now);
    let start = start
        .duration_since(UNIX_EPOCH)
        .map_err(|_| BadRequest::Start)?
        .as_secs();
    let end = start.saturating_add(u64::from(days) * DAY);
    if start >= LAST_SECOND {
        return Err(BadRequest::Start);
    }
    let skew = if from.is_some() { 0 } else { CLOCK_SKEW };
    Ok((start.saturating_sub(skew), end.min(LAST_SECOND)))
}

pub(crate) fn alternatives(hosts: &[Host], uuid: Option<Uuid>) -> Result<Vec<SanType>, Error> {
    let mut names = Vec::new();
    for host in hosts {
        let name = match host {
            // Made of a text that is no host.
            Host::Name(name) if name.parse().as_ref() != Ok(host) => {
                return Err(BadRequest::Host(name.clone()).into());
            }
            Host::Name(name) => SanType::DnsName(name.as_str().try_into().map_err(crypto)?),
            Host::Address(address) => SanType::IpAddress(*address),
        };
        if !names.contains(&name) {
            names.push(name);
        }
    }
    match uuid {
        Some(uuid) if uuid.is_nil() => return Err(BadRequest::NilUuid.into()),
        Some(uuid) => names.push(SanType::URI(
            format!("urn:uuid:{uuid}").try_into().map_err(crypto)?,
        )),
        None => {}
    }
    Ok(names)
}

pub(crate) fn generate(kind: KeyKind) -> Result<KeyPair, Error> {
    let pair = match kind {
        KeyKind::P256 => KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256),
        KeyKind::Ed25519 => KeyPair::generate_for(&rcgen::PKCS_ED25519).and_then(|pair| plain_ed25519(&pair)),
        #[cfg(feature = "aws-lc-rs")]
        KeyKind::Rsa2048 => KeyPair::generate_rsa_for(&rcgen::PKCS_RSA_SHA256, rcgen::RsaKeySize::_2048),
        #[cfg(feature = "aws-lc-rs")]
        KeyKind::Rsa4096 => KeyPair::generate_rsa_for(&rcgen::PKCS_RSA_SHA256, rcgen::RsaKeySize::_4096),
        #[cfg(not(feature = "aws-lc-rs"))]
        KeyKind::Rsa2048 | KeyKind::Rsa4096 => return Err(BadRequest::Key("RSA").into()),
    };
    pair.map_err(crypto)
}

/// The same key in version 1 of PKCS#8. Generators write version 2, which repeats the public key and
/// which OpenSSL before 3.2 cannot read.
fn plain_ed25519(pair: &KeyPair) -> Result<KeyPair, rcgen::Error> {
    const HEAD: [u8; 16] = [
        0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20,
    ];
    // Both versions hold the algorithm and the 32 secret bytes at the same offset. Only the length and
    // the version number before them differ.
    let der = pair.serialized_der();
    if der.get(5..16) != Some(&HEAD[5..]) {
        return Err(rcgen::Error::CouldNotParseKeyPair);
    }
    let secret = der.get(16..48).ok_or(rcgen::Error::CouldNotParseKeyPair)?;
    let plain = PrivatePkcs8KeyDer::from([&HEAD[..], secret].concat());
    KeyPair::from_pkcs8_der_and_sign_algo(&plain, &rcgen::PKCS_ED25519)
}

/// The only key of a PEM text, to sign with.
pub(crate) fn key_pair_of(pem: &[u8]) -> Result<KeyPair, Fault> {
    key_pair(&Sections::read(pem)?.key()?)
}

pub(crate) fn key_pair(key: &PrivateKeyDer<'static>) -> Result<KeyPair, Fault> {
    KeyPair::try_from(key).map_err(|_| {
        let why = match key {
            PrivateKeyDer::Pkcs8(_) => "this kind of key cannot sign certificates",
            _ => "this form of key cannot sign certificates; convert it to PKCS#8",
        };
        Fault::UnusableKey(why.to_owned())
    })
}

/// The parameters of an authority for rcgen, read from its certificate: its name and its key's
/// identifier. Fails if its key usage lacks keyCertSign.
pub(crate) fn issuer_params(authority: &CertificateInfo, origin: &str) -> Result<CertificateParams, Error> {
    let unfit = |fault| Error::content(origin)(fault);
    let parsed = der::certificate(&authority.der).map_err(unfit)?;
    check_issuer(&parsed).map_err(unfit)?;
    let mut params = CertificateParams::default();
    params.distinguished_name = issuer_name(parsed.subject()).ok_or(BadRequest::AuthorityName)?;
    if let Some(identifier) = der::subject_key(&parsed) {
        params.key_identifier_method = KeyIdMethod::PreSpecified(identifier);
    }
    Ok(params)
}

/// The name for rcgen. `None` if it has parts with several attributes or a rare kind of text.
fn issuer_name(subject: &X509Name<'_>) -> Option<DistinguishedName> {
    let mut name = DistinguishedName::new();
    for part in subject.iter_rdn() {
        let mut attributes = part.iter();
        let (Some(attribute), None) = (attributes.next(), attributes.next()) else {
            return None;
        };
        let kind: Vec<u64> = attribute.attr_type().iter()?.collect();
        let text = attribute.as_str().ok()?;
        let value = match attribute.attr_value().tag() {
            Tag::Utf8String => DnValue::Utf8String(text.to_owned()),
            Tag::PrintableString => DnValue::PrintableString(text.try_into().ok()?),
            Tag::Ia5String => DnValue::Ia5String(text.try_into().ok()?),
            _ => return None,
        };
        name.push(DnType::from_oid(&kind), value);
    }
    Some(name)
}

pub(crate) fn crypto(error: rcgen::Error) -> Error {
    Error::Crypto(error.to_string())
}
