//! Errors of TLS handshakes and configurations.

use std::io;

use rustls::CertificateError;

use crate::socket::is_timeout;

/// The reason why a TLS connection was not made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// The stream failed or ended.
    #[error("{}", of_stream(.0))]
    Io(#[source] io::Error),
    /// This side refused the peer's bytes or certificate, or the peer refused ours.
    #[error("TLS: {}", of_tls(.0))]
    Tls(#[from] rustls::Error),
    /// The deadline passed.
    #[error("the TLS handshake was not complete in time")]
    Deadline,
    /// The name to connect to is neither a DNS name nor an IP address.
    #[error("{0:?} is neither a DNS name nor an IP address")]
    Name(String),
    /// The configuration cannot be made from this identity, trust or provider.
    #[error("{0}")]
    Configuration(String),
}

/// A fault that a caller's check has found in a certificate, as a sentence, in a
/// [`CertificateError::Other`]. It is shown as it is, because it may hold names of peers. Other
/// errors of that kind are taken for names of variants.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct CertificateFault(pub String);

fn of_stream(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => "the connection ended during the TLS handshake".to_owned(),
        _ => error.to_string(),
    }
}

fn of_tls(error: &rustls::Error) -> String {
    match error {
        rustls::Error::InvalidCertificate(fault) => of_certificate(fault, "the peer's"),
        rustls::Error::InvalidMessage(rustls::InvalidMessage::InvalidContentType) => {
            "the peer does not speak TLS".to_owned()
        }
        _ => in_words(&error.to_string()),
    }
}

impl TlsError {
    /// The error as one of the words `tls`, `certificate`, `revoked`, `expired`, `timeout` and `lost`.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Io(_) => "lost",
            Self::Deadline => "timeout",
            Self::Tls(rustls::Error::InvalidCertificate(fault)) => match fault {
                CertificateError::Revoked => "revoked",
                CertificateError::Expired | CertificateError::ExpiredContext { .. } => "expired",
                _ => "certificate",
            },
            Self::Tls(rustls::Error::NoCertificatesPresented) => "certificate",
            Self::Tls(_) | Self::Name(_) | Self::Configuration(_) => "tls",
        }
    }
}

/// A fault of a certificate, as a sentence.
pub fn certificate_fault(fault: &CertificateError) -> String {
    of_certificate(fault, "the")
}

/// The reason why a peer's certificate is refused. `None` if the error may be the fault of this
/// host, whose clock may be wrong if a certificate is not valid yet, or if it does not concern
/// the certificate.
pub(super) fn objection(error: &rustls::Error) -> Option<String> {
    use CertificateError as E;
    match error {
        rustls::Error::InvalidCertificate(E::NotValidYet | E::NotValidYetContext { .. }) => None,
        rustls::Error::InvalidCertificate(fault) => Some(of_certificate(fault, "the")),
        _ => None,
    }
}

/// The text of a certificate's fault, which rustls prints as the name of a variant, or with times since 1970.
fn of_certificate(fault: &CertificateError, whose: &str) -> String {
    use CertificateError as E;
    let words: &str = match fault {
        // rustls prints the Debug form of an error of the caller's check.
        E::Other(fault) => return of_other(fault),
        E::UnsupportedSignatureAlgorithmContext {
            signature_algorithm_id: id,
            ..
        }
        | E::UnsupportedSignatureAlgorithmForPublicKeyContext {
            signature_algorithm_id: id,
            ..
        } => {
            let by = algorithm(id);
            &format!("has a signature by {by}, which is not supported here")
        }
        // With the distance, so that a clock that is wrong is seen.
        E::ExpiredContext { time, not_after } => {
            let ago = time.as_secs().saturating_sub(not_after.as_secs());
            &format!("has expired, {ago} s ago by the clock of this host")
        }
        E::NotValidYetContext { time, not_before } => {
            let ahead = not_before.as_secs().saturating_sub(time.as_secs());
            &format!("is not valid yet: it begins in {ahead} s by the clock of this host")
        }
        E::BadSignature => {
            "is not signed by the authority that it names, or by an RSA key of fewer than 2048 bits"
        }
        E::UnknownIssuer => "comes from no authority that is trusted here",
        E::Expired => "has expired",
        E::NotValidYet => "is not valid yet",
        E::Revoked => "is revoked",
        E::NotValidForName | E::NotValidForNameContext { .. } => "does not hold the name that was dialled",
        _ => return in_words(&rustls::Error::from(fault.clone()).to_string()),
    };
    format!("{whose} certificate {words}")
}

/// The name of an algorithm of signatures that is met and not supported, by the DER of its identifier.
fn algorithm(id: &[u8]) -> &'static str {
    /// The first bytes of the identifiers of PKCS #1.
    const RSA: [u8; 10] = [6, 9, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1];
    const SHA1_ECDSA: [u8; 9] = [6, 7, 0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 1];
    match id.strip_prefix(&RSA) {
        Some([4, ..]) => "MD5 and RSA",
        Some([5, ..]) => "SHA-1 and RSA",
        Some([10, ..]) => "RSA-PSS with unusual parameters",
        _ if id.starts_with(&SHA1_ECDSA) => "SHA-1 and ECDSA",
        _ => "an unknown algorithm",
    }
}

/// The text of a fault that the caller's check or the library below rustls has found.
fn of_other(fault: &rustls::OtherError) -> String {
    if let Some(CertificateFault(text)) = fault.0.downcast_ref() {
        return text.clone();
    }
    match fault.to_string().as_str() {
        "CaUsedAsEndEntity" => "the peer shows the certificate of an authority as its own".to_owned(),
        "MaximumPathDepthExceeded" => {
            "the peer shows a chain with more than the six intermediate certificates that are checked"
                .to_owned()
        }
        "UnsupportedCriticalExtension" => {
            "the peer's certificate has a critical extension that is unknown here".to_owned()
        }
        "EndEntityUsedAsCa" => "the peer's certificate was issued by one that is no authority".to_owned(),
        other => in_words(other),
    }
}

/// The text with names of variants, such as `BadEncoding`, as separate words: `bad encoding`.
fn in_words(text: &str) -> String {
    let word = |word: &str| {
        let letters = || word.chars().filter(|c| c.is_alphabetic());
        let humps = word.chars().skip(1).filter(|c| c.is_uppercase()).count();
        // Abbreviations, such as TLS or X.509, and names in quotes stay as they are.
        let is_word = word
            .trim_end_matches([':', ',', '.'])
            .chars()
            .all(char::is_alphanumeric);
        if humps == 0 || !is_word || letters().all(char::is_uppercase) {
            return word.to_owned();
        }
        let mut spread = String::new();
        for (at, c) in word.char_indices() {
            if at > 0 && c.is_uppercase() {
                spread.push(' ');
            }
            spread.extend(c.to_lowercase());
        }
        spread
    };
    text.split(' ').map(word).collect::<Vec<_>>().join(" ")
}

impl From<io::Error> for TlsError {
    fn from(e: io::Error) -> Self {
        match e.downcast() {
            Ok(tls) => Self::Tls(tls),
            Err(e) if is_timeout(&e) => Self::Deadline,
            Err(e) => Self::Io(e),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_fault_of_a_certificate_is_printed_as_a_sentence() {
        let text = |fault: CertificateError| TlsError::Tls(fault.into()).to_string();
        assert_eq!(
            text(CertificateError::UnknownIssuer),
            "TLS: the peer's certificate comes from no authority that is trusted here"
        );
        assert_eq!(
            text(CertificateError::Expired),
            "TLS: the peer's certificate has expired"
        );
        let at = rustls::pki_types::UnixTime::since_unix_epoch;
        let early = CertificateError::NotValidYetContext {
            time: at(Duration::from_secs(100)),
            not_before: at(Duration::from_secs(400)),
        };
        assert_eq!(
            text(early),
            "TLS: the peer's certificate is not valid yet: it begins in 300 s by the clock of this host"
        );
        assert_eq!(
            text(CertificateError::BadEncoding),
            "TLS: invalid peer certificate: bad encoding"
        );
        let plain = rustls::Error::InvalidMessage(rustls::InvalidMessage::InvalidContentType);
        assert_eq!(
            TlsError::Tls(plain).to_string(),
            "TLS: the peer does not speak TLS"
        );
        let other = |name: &'static str| {
            let fault = std::io::Error::other(name);
            text(CertificateError::Other(rustls::OtherError(std::sync::Arc::new(
                fault,
            ))))
        };
        assert_eq!(
            other("CaUsedAsEndEntity"),
            "TLS: the peer shows the certificate of an authority as its own"
        );
        assert!(other("MaximumPathDepthExceeded").contains("more than the six intermediate"));
        let signed = |id: &[u8]| {
            text(CertificateError::UnsupportedSignatureAlgorithmContext {
                signature_algorithm_id: id.to_vec(),
                supported_algorithms: Vec::new(),
            })
        };
        assert_eq!(
            signed(&[6, 9, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 5, 5, 0]),
            "TLS: the peer's certificate has a signature by SHA-1 and RSA, which is not supported here"
        );
        assert!(signed(&[6, 1, 1]).contains("an unknown algorithm"));
        assert_eq!(
            other("PathLenConstraintViolated"),
            "TLS: path len constraint violated"
        );
        assert_eq!(
            in_words("received fatal alert: HandshakeFailure of TLS"),
            "received fatal alert: handshake failure of TLS"
        );
        assert_eq!(in_words("of \"CN=OurCa\""), "of \"CN=OurCa\"", "a name stays");
    }
}
