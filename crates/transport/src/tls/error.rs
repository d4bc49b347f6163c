//! Why there is no TLS.

use std::fmt;
use std::io;

use rustls::CertificateError;

use crate::socket::duplex::is_timeout;

/// Why there is no TLS.
#[derive(Debug)]
#[non_exhaustive]
pub enum TlsError {
    /// The stream failed or ended.
    Io(io::Error),
    /// The peer's bytes or certificate were refused, or ours by the peer.
    Tls(rustls::Error),
    /// The deadline passed.
    Deadline,
    /// The name to connect to is neither a DNS name nor an IP address.
    Name(String),
    /// Identity, trust or provider do not make a configuration.
    Configuration(String),
}

impl fmt::Display for TlsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(e) if e.kind() == io::ErrorKind::UnexpectedEof => {
                f.write_str("the connection ended during the TLS handshake")
            }
            Self::Io(e) => write!(f, "{e}"),
            // For an error of our own verifier rustls prints its Debug form.
            Self::Tls(rustls::Error::InvalidCertificate(CertificateError::Other(fault))) => {
                write!(f, "TLS: {fault}")
            }
            Self::Tls(rustls::Error::InvalidCertificate(fault)) => match words(fault) {
                Some(words) => write!(f, "TLS: the peer's certificate {words}"),
                None => write!(f, "TLS: {}", rustls::Error::from(fault.clone())),
            },
            Self::Tls(e) => write!(f, "TLS: {e}"),
            Self::Deadline => f.write_str("the TLS handshake was not complete in time"),
            Self::Name(name) => write!(f, "{name:?} is neither a DNS name nor an IP address"),
            Self::Configuration(why) => f.write_str(why),
        }
    }
}

impl TlsError {
    /// A word for it, out of a list that is fixed: `tls`, `certificate`,
    /// `revoked`, `expired`, `timeout` or `lost`.
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

/// What an error says against a peer's certificate. Nothing where it says as much
/// about this host: that the certificate is not valid yet, or that something else is
/// missing to judge it.
pub(super) fn objection(error: &rustls::Error) -> Option<String> {
    use CertificateError as E;
    match error {
        rustls::Error::InvalidCertificate(E::NotValidYet | E::NotValidYetContext { .. }) => None,
        rustls::Error::InvalidCertificate(E::Other(fault)) => Some(fault.to_string()),
        rustls::Error::InvalidCertificate(fault) => Some(match words(fault) {
            Some(words) => format!("the certificate {words}"),
            None => error.to_string(),
        }),
        _ => None,
    }
}

/// What is wrong with a certificate, where rustls would print the name of a
/// variant.
fn words(fault: &CertificateError) -> Option<&'static str> {
    Some(match fault {
        CertificateError::BadSignature => "is not signed by the authority that it names",
        CertificateError::UnknownIssuer => "comes from no authority that is trusted here",
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => "has expired",
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => "is not valid yet",
        CertificateError::Revoked => "is revoked",
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            "does not hold the name that was dialled"
        }
        _ => return None,
    })
}

impl std::error::Error for TlsError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io(e) => Some(e),
            Self::Tls(e) => Some(e),
            _ => None,
        }
    }
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

impl From<rustls::Error> for TlsError {
    fn from(e: rustls::Error) -> Self {
        Self::Tls(e)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_with_a_certificate_is_told_in_words() {
        let told = |fault: CertificateError| TlsError::Tls(fault.into()).to_string();
        assert_eq!(
            told(CertificateError::UnknownIssuer),
            "TLS: the peer's certificate comes from no authority that is trusted here"
        );
        assert_eq!(
            told(CertificateError::Expired),
            "TLS: the peer's certificate has expired"
        );
        assert_eq!(
            told(CertificateError::BadEncoding),
            "TLS: invalid peer certificate: BadEncoding"
        );
    }
}
