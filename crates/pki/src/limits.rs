//! The limits that certificates of a chain set for each other and that webpki does not check: webpki
//! knows neither roles nor key usages, and applies no limits of a trusted authority.

use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::KeyUsage;

use crate::error::Fault;
use crate::inspect::CertificateInfo;
use crate::role::Role;
use crate::{der, eku, inspect};

/// The name and the key of a trusted authority, and its path length: the number of authorities that
/// may be below it. Its certificate may be renewed and the authority stays the same.
#[derive(Clone, Debug)]
pub(crate) struct TrustedIssuer {
    subject: Vec<u8>,
    key: Vec<u8>,
    longest: Option<usize>,
}

impl TrustedIssuer {
    pub(crate) fn of(authority: &CertificateInfo) -> Result<Self, Fault> {
        let parsed = der::certificate(&authority.der)?;
        check_issuer(&parsed)?;
        let constraints = parsed
            .basic_constraints()
            .map_err(der::broken("basic constraints"))?;
        let longest = constraints.and_then(|extension| extension.value.path_len_constraint);
        Ok(Self {
            subject: parsed.subject().as_raw().to_vec(),
            key: parsed.public_key().raw.to_vec(),
            longest: longest.map(|longest| usize::try_from(longest).unwrap_or(usize::MAX)),
        })
    }

    /// True for each certificate of this authority.
    pub(crate) fn is(&self, shown: &X509Certificate<'_>) -> bool {
        self.subject == shown.subject().as_raw() && self.key == shown.public_key().raw
    }
}

/// Checks the limits of a chain; trusted authorities must not be among the certificates after the first. The
/// caller has to check the signatures.
///
/// It is unknown here which of them are on the path to a trusted authority. So the limits of all shown
/// certificates apply, and an additional certificate can never loosen a limit.
pub(crate) fn check(
    first: &X509Certificate<'_>,
    between: &[X509Certificate<'_>],
    authorities: &[TrustedIssuer],
) -> Result<(), Fault> {
    if !der::key_may(first, KeyUsage::digital_signature)? {
        return Err(Fault::NotForSignatures);
    }
    check_key(&inspect::key_kind(first.public_key()))?;
    let roles = eku::usages(first)?.map_or(Role::NONE, eku::roles);
    let mut issuers = vec![first.issuer().as_raw()];
    let mut below = 0;
    for issuer in between {
        check_issuer(issuer)?;
        if let Some(usages) = eku::usages(issuer)? {
            let given = eku::roles(usages);
            // An issuer that names roles is held to them, even if it also has anyExtendedKeyUsage.
            let is_limited = !usages.any || !given.is_empty();
            if let Some(role) = roles.iter().find(|role| is_limited && !given.contains(*role)) {
                let issuer = der::distinguished_name(issuer.subject());
                return Err(Fault::RoleNotIssuers { role, issuer });
            }
        }
        // RFC 5280, section 4.2.1.9: a certificate that an authority issued to itself does not count in
        // the path length.
        below += usize::from(issuer.subject().as_raw() != issuer.issuer().as_raw());
        issuers.push(issuer.issuer().as_raw());
    }
    let too_long = |authority: &TrustedIssuer| {
        let is_too_long = authority.longest.is_some_and(|longest| below > longest);
        is_too_long && issuers.contains(&authority.subject.as_slice())
    };
    if authorities.iter().any(too_long) {
        return Err(Fault::PathTooLong);
    }
    Ok(())
}

/// Checks that TLS can sign with a key of this kind, as [`CertificateInfo::key`](crate::CertificateInfo) names it.
pub(crate) fn check_key(kind: &str) -> Result<(), Fault> {
    let bits = kind.strip_prefix("RSA ").and_then(|bits| bits.parse().ok());
    let is_supported = matches!(kind, "P-256" | "P-384" | "P-521" | "Ed25519")
        || bits.is_some_and(|bits: u32| (2048..=8192).contains(&bits));
    if is_supported {
        Ok(())
    } else {
        Err(Fault::UnsupportedKey(kind.to_owned()))
    }
}

/// Checks that the key usage of an authority allows keyCertSign.
pub(crate) fn check_issuer(issuer: &X509Certificate<'_>) -> Result<(), Fault> {
    if der::key_may(issuer, KeyUsage::key_cert_sign)? {
        Ok(())
    } else {
        Err(Fault::NotAuthority(der::distinguished_name(issuer.subject())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_that_no_peer_can_use_is_named() {
        for kind in ["P-256", "P-384", "P-521", "Ed25519", "RSA 2048", "RSA 8192"] {
            assert_eq!(check_key(kind), Ok(()));
        }
        for kind in [
            "RSA 1024",
            "RSA 9000",
            "RSA",
            "EC 1.3.132.0.10",
            "1.2.840.10040.4.1",
            "",
        ] {
            assert!(check_key(kind).unwrap_err().to_string().contains(kind), "{kind}");
        }
    }
}
