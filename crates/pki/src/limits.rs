//! The limits that certificates of a chain set for each other and that webpki does not check: webpki
//! knows neither roles nor key usages, and applies no limits of a trusted authority.

use rustls::pki_types::CertificateDer;
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::KeyUsage;

use crate::Role;
use crate::{CertificateInfo, Fault, der, eku};

/// The path length of a trusted authority: the number of authorities that may be below it.
#[derive(Clone, Debug)]
pub(crate) struct PathLength {
    subject: Vec<u8>,
    longest: usize,
}

impl PathLength {
    pub(crate) fn of(authority: &CertificateInfo) -> Result<Option<Self>, Fault> {
        let parsed = der::certificate(&authority.der)?;
        check_issuer(&parsed)?;
        let constraints = parsed
            .basic_constraints()
            .map_err(der::broken("basic constraints"))?;
        let longest = constraints.and_then(|extension| extension.value.path_len_constraint);
        Ok(longest.map(|longest| Self {
            subject: parsed.subject().as_raw().to_vec(),
            longest: usize::try_from(longest).unwrap_or(usize::MAX),
        }))
    }
}

/// Checks the limits of a chain. The caller has to check the signatures. `intermediates` must not
/// hold a trusted authority.
///
/// It is unknown here which of them are on the path to a trusted authority. So the limits of all shown
/// certificates apply, and an additional certificate can never loosen a limit.
pub(crate) fn check(
    first: &CertificateDer<'_>,
    intermediates: &[&CertificateDer<'_>],
    authorities: &[PathLength],
) -> Result<(), Fault> {
    let first = der::certificate(first)?;
    if !der::key_may(&first, KeyUsage::digital_signature)? {
        return Err(Fault::NotForSignatures);
    }
    let roles = eku::usages(&first)?.map_or(Role::NONE, eku::roles);
    let mut issuers = vec![first.issuer().as_raw()];
    let mut below = 0;
    let parsed = intermediates.iter().map(|shown| der::certificate(shown));
    let parsed: Vec<X509Certificate<'_>> = parsed.collect::<Result<_, _>>()?;
    for issuer in &parsed {
        check_issuer(issuer)?;
        if let Some(usages) = eku::usages(issuer)?
            && !usages.any
            && !eku::roles(usages).contains(roles)
        {
            return Err(Fault::RoleNotIssuers {
                issuer: der::distinguished_name(issuer.subject()),
            });
        }
        // RFC 5280, section 4.2.1.9: a certificate that an authority issued to itself does not count in
        // the path length.
        below += usize::from(issuer.subject().as_raw() != issuer.issuer().as_raw());
        issuers.push(issuer.issuer().as_raw());
    }
    let too_long =
        |authority: &PathLength| below > authority.longest && issuers.contains(&authority.subject.as_slice());
    match authorities.iter().any(too_long) {
        true => Err(Fault::PathTooLong),
        false => Ok(()),
    }
}

/// Checks that the key usage of an authority allows keyCertSign.
pub(crate) fn check_issuer(issuer: &X509Certificate<'_>) -> Result<(), Fault> {
    match der::key_may(issuer, KeyUsage::key_cert_sign)? {
        true => Ok(()),
        false => Err(Fault::NotAuthority {
            subject: der::distinguished_name(issuer.subject()),
        }),
    }
}
