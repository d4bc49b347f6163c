//! Reading DER: certificates, revocation lists, their signatures, names, times and key
//! usages.

use std::time::{SystemTime, UNIX_EPOCH};

use rustls::crypto::WebPkiSupportedAlgorithms;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::SignatureVerificationAlgorithm;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use x509_parser::asn1_rs::{Any, FromDer};
use x509_parser::certificate::X509Certificate;
use x509_parser::error::X509Error;
use x509_parser::extensions::{KeyUsage, ParsedExtension};
use x509_parser::x509::X509Name;

use crate::error::Fault;
pub(crate) use ssntp_transport::wall_clock as now;
use ssntp_transport::{printable, provider};

/// The algorithms with which signatures are verified.
pub(crate) fn algorithms() -> WebPkiSupportedAlgorithms {
    provider().signature_verification_algorithms
}

/// Parses a certificate with no bytes after it.
pub(crate) fn certificate(der: &[u8]) -> Result<X509Certificate<'_>, Fault> {
    // A frequent mistake, which the parser would report as a wrong tag.
    if is_pem(der) {
        return Err(Fault::NotDer);
    }
    let bad = Fault::BadCertificate;
    match X509Certificate::from_der(der) {
        Ok(([], parsed)) => Ok(parsed),
        Ok((rest, _)) => Err(bad(format!("{} bytes too many at its end", rest.len()))),
        Err(error) => Err(bad(printable(&error.to_string()))),
    }
}

/// True if bytes that should be DER are a PEM text.
pub(crate) fn is_pem(der: &[u8]) -> bool {
    der.trim_ascii_start().starts_with(b"-----BEGIN ")
}

/// The fault of a certificate in which one part is broken.
pub(crate) fn broken(part: &str) -> impl Fn(X509Error) -> Fault {
    move |error| Fault::BadCertificate(format!("{part}: {}", printable(&error.to_string())))
}

/// True if the key of a certificate may be used so. A certificate without a key usage allows every
/// use.
pub(crate) fn key_may(
    certificate: &X509Certificate<'_>,
    usage: impl FnOnce(&KeyUsage) -> bool,
) -> Result<bool, Fault> {
    let extension = certificate.key_usage().map_err(broken("key usage"))?;
    Ok(extension.is_none_or(|extension| usage(extension.value)))
}

/// The identifier of the certificate's own key, if the certificate has one.
#[cfg(feature = "issue")]
pub(crate) fn subject_key(certificate: &X509Certificate<'_>) -> Option<Vec<u8>> {
    let mut extensions = certificate.iter_extensions();
    extensions.find_map(|extension| match extension.parsed_extension() {
        ParsedExtension::SubjectKeyIdentifier(identifier) => Some(identifier.0.to_vec()),
        _ => None,
    })
}

/// The identifier of the key that signed the certificate, if the certificate has one.
pub(crate) fn authority_key<'a>(certificate: &'a X509Certificate<'_>) -> Option<&'a [u8]> {
    let mut extensions = certificate.iter_extensions();
    extensions.find_map(|extension| match extension.parsed_extension() {
        ParsedExtension::AuthorityKeyIdentifier(identifier) => {
            identifier.key_identifier.as_ref().map(|identifier| identifier.0)
        }
        _ => None,
    })
}

/// A name as text, as in `O=ssntp, CN=ssntp CA`. Hidden characters are escaped.
pub(crate) fn distinguished_name(name: &X509Name<'_>) -> String {
    printable(&name.to_string())
}

/// The fault of a revoked certificate.
pub(crate) fn revoked(certificate: &X509Certificate<'_>) -> Fault {
    Fault::Revoked {
        subject: distinguished_name(certificate.subject()),
        serial: hexadecimal(certificate.raw_serial()),
    }
}

/// Bytes in hexadecimal, joined with colons.
pub(crate) fn hexadecimal(bytes: &[u8]) -> String {
    // Written into one piece of memory: a server reads a certificate in each handshake, and many
    // small strings would fragment its heap.
    let mut text = String::with_capacity(3 * bytes.len());
    for (at, byte) in bytes.iter().enumerate() {
        if at > 0 {
            text.push(':');
        }
        let digit = |value: u8| char::from_digit(value.into(), 16);
        text.extend([byte >> 4, byte & 15].into_iter().filter_map(digit));
    }
    text
}

/// A time in the form `2026-01-31T00:00:00Z`, in whole seconds, from the year 0 to 9999.
pub fn rfc3339(time: SystemTime) -> String {
    let seconds = match time.duration_since(UNIX_EPOCH) {
        Ok(since) => i64::try_from(since.as_secs()).unwrap_or(i64::MAX),
        Err(before) => i64::try_from(before.duration().as_secs()).map_or(i64::MIN, |s| -s),
    };
    let time = OffsetDateTime::from_unix_timestamp(seconds);
    let text = time.ok().and_then(|time| time.format(&Rfc3339).ok());
    text.unwrap_or_else(|| format!("{seconds} seconds since 1970"))
}

/// True if this key (a SubjectPublicKeyInfo) made the signature of a certificate, a revocation list or
/// a signing request. All are SEQUENCE { signed part, algorithm, signature }.
///
/// webpki checks the signatures of chains only.
pub(crate) fn is_signed_by(der: &[u8], key: &[u8]) -> bool {
    let verified = || {
        let key = PublicKey::read(key)?;
        let (content, _) = element(der)?;
        let (_, rest) = element(content)?;
        let signed = content.get(..content.len() - rest.len())?;
        let (algorithm, rest) = element(rest)?;
        let signature = whole_bytes(element(rest)?.0)?;
        let usable = algorithms().all.iter().copied();
        let fits = usable.filter(|usable| usable.signature_alg_id().as_ref() == algorithm);
        Some(key.has_signed(signed, signature, fits))
    };
    verified().unwrap_or_default()
}

/// The certificates in bytes that hold nothing else, each in DER, one after the other.
pub fn chain_from_der(mut der: &[u8]) -> Option<Vec<CertificateDer<'_>>> {
    let mut chain = Vec::new();
    while !der.is_empty() {
        let (_, rest) = element(der)?;
        chain.push(CertificateDer::from(&der[..der.len() - rest.len()]));
        der = rest;
    }
    Some(chain)
}

/// A public key as cryptography libraries take it.
pub(crate) struct PublicKey<'a> {
    algorithm: &'a [u8],
    bits: &'a [u8],
}

impl<'a> PublicKey<'a> {
    /// Reads SubjectPublicKeyInfo ::= SEQUENCE { algorithm, BIT STRING }.
    pub(crate) fn read(info: &'a [u8]) -> Option<Self> {
        let (content, _) = element(info)?;
        let (algorithm, rest) = element(content)?;
        let bits = whole_bytes(element(rest)?.0)?;
        Some(Self { algorithm, bits })
    }

    /// True if one of the algorithms finds that this key made the signature.
    pub(crate) fn has_signed(
        &self,
        message: &[u8],
        signature: &[u8],
        algorithms: impl Iterator<Item = &'static dyn SignatureVerificationAlgorithm>,
    ) -> bool {
        let mut fits = algorithms.filter(|usable| usable.public_key_alg_id().as_ref() == self.algorithm);
        fits.any(|usable| usable.verify_signature(self.bits, message, signature).is_ok())
    }
}

/// The content of the DER element at the front, and the bytes after the element.
fn element(der: &[u8]) -> Option<(&[u8], &[u8])> {
    let (rest, element) = Any::from_der(der).ok()?;
    Some((element.data, rest))
}

/// The content of a BIT STRING. Keys and signatures have no unused bits in the last byte.
fn whole_bytes(bits: &[u8]) -> Option<&[u8]> {
    bits.strip_prefix(&[0])
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn times_print_in_rfc_3339_form() {
        let at = |seconds| UNIX_EPOCH + Duration::from_secs(seconds);
        assert_eq!(rfc3339(UNIX_EPOCH), "1970-01-01T00:00:00Z");
        assert_eq!(rfc3339(at(951_782_399)), "2000-02-28T23:59:59Z");
        assert_eq!(rfc3339(at(253_402_300_799)), "9999-12-31T23:59:59Z");
        let before = UNIX_EPOCH - Duration::from_secs(1);
        assert_eq!(rfc3339(before), "1969-12-31T23:59:59Z");
    }
}
