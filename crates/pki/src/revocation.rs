//! Revocation: certificates that are refused before they expire.
//!
//! A certificate is revoked if a list of its issuer holds its serial number. The list and the
//! certificate must be signed by the same key. Names are not enough, because an authority and its
//! successor often have the same name.
//!
//! The check of lists in rustls is not used, for three reasons. It uses the first list with the issuer's
//! name, so the list of one authority would make it refuse every peer of an authority of the same name. It
//! checks the signature over the whole list in each handshake; here that is done once. Its alert for an
//! overdue list makes clients stay away for good.

use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use rustls::pki_types::CertificateRevocationListDer;
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::KeyUsage;

use crate::der::{self, is_signed_by};
use crate::error::{Error, Fault};
use crate::inspect::CertificateInfo;
use crate::list::{RevocationList, Serial};
use crate::pem::Sections;
use crate::store;

/// Certificate revocation lists (CRLs) of one or several authorities, for a
/// [`Trust`](crate::Trust::with_revocation_lists).
///
/// ```no_run
/// use ssntp_pki::{RevocationLists, Trust};
///
/// let trust = Trust::load("ca.pem")?.with_revocation_lists(&RevocationLists::load("crl.pem")?)?;
/// # Ok::<(), ssntp_pki::Error>(())
/// ```
///
/// # Threads
/// A clone is cheap and shares everything; `Send` and `Sync`. Only
/// [`load`](Self::load) blocks, on the disk.
#[derive(Clone, Debug)]
pub struct RevocationLists {
    lists: Arc<[RevocationList]>,
    origin: Arc<str>,
    enforced: bool,
}

impl RevocationLists {
    /// Loads a PEM file with one or more `X509 CRL` sections; others are ignored. Blocks while the file is
    /// read.
    ///
    /// # Errors
    /// [`Error::Read`], also for a file of more than 16 MiB (some 250,000 certificates);
    /// [`Error::Content`] if the file is not PEM, has no list, or has one that is broken or of a kind that
    /// is not supported.
    pub fn load(path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref();
        Self::from_pem(&store::read(path)?, &store::origin(path))
    }

    /// Reads a PEM text as [`load`](Self::load) reads a file. Errors name it `origin`.
    ///
    /// # Errors
    /// As [`load`](Self::load) without [`Error::Read`].
    pub fn from_pem(pem: &[u8], origin: &str) -> Result<Self, Error> {
        let read = || Self::read(&Sections::read(pem)?.revocation_lists, origin);
        read().map_err(Error::content(origin))
    }

    /// Takes lists in DER. Errors call them `the revocation lists`.
    ///
    /// # Errors
    /// As [`load`](Self::load) without [`Error::Read`]; [`Fault::NotDer`] instead of "not PEM".
    pub fn from_der(lists: &[CertificateRevocationListDer<'_>]) -> Result<Self, Error> {
        let origin = "the revocation lists";
        Self::read(lists, origin).map_err(Error::content(origin))
    }

    fn read(lists: &[CertificateRevocationListDer<'_>], origin: &str) -> Result<Self, Fault> {
        if lists.is_empty() {
            return Err(Fault::NoRevocationList);
        }
        let lists = lists.iter().map(RevocationList::from_der);
        let lists: Vec<_> = lists.collect::<Result<_, _>>()?;
        if !lists.iter().all(|list| list.is_understood) {
            let why = "lists of this kind are not supported";
            return Err(Fault::BadRevocationList(why.to_owned()));
        }
        Ok(Self {
            lists: lists.into(),
            origin: origin.into(),
            enforced: false,
        })
    }

    /// True to treat two things as errors: an overdue list, and lists of which none is from a trusted authority.
    /// No trust can be made with such lists. If a list becomes overdue later, the trust refuses every certificate
    /// of its issuer until it gets a newer list; those peers may try again. If false, there is a warning, and the
    /// list still counts. Default: false.
    #[must_use]
    pub fn enforce_expiry(mut self, enforced: bool) -> Self {
        self.enforced = enforced;
        self
    }

    /// Each list with its facts.
    pub fn lists(&self) -> &[RevocationList] {
        &self.lists
    }

    pub(crate) fn origin(&self) -> &str {
        &self.origin
    }
}

/// The lists that a trust checks.
#[derive(Clone, Debug)]
pub(crate) struct Revocation {
    pub(crate) lists: RevocationLists,
    /// The public key of the trusted authority that signed each list. `None` if an
    /// intermediate authority must have signed it.
    signers: Vec<Option<Box<[u8]>>>,
}

impl Revocation {
    /// Checks each list against the authorities. The list of an intermediate authority is
    /// checked when a peer shows that authority's certificate.
    pub(crate) fn new(lists: &RevocationLists, authorities: &[CertificateInfo]) -> Result<Self, Fault> {
        let parsed = authorities
            .iter()
            .map(|authority| der::certificate(&authority.der));
        let parsed: Vec<_> = parsed.collect::<Result<_, _>>()?;
        let (mut signers, now) = (Vec::new(), der::now());
        let namesakes = |list: &RevocationList| {
            let name = list.name.clone();
            parsed
                .iter()
                .filter(move |authority| authority.subject().as_raw() == &*name)
        };
        let signer_of = |list: &RevocationList| {
            namesakes(list).find(|authority| is_signed_by(&list.der, authority.public_key().raw))
        };
        // A file may hold the list of an authority that has expired beside the list of its successor of the
        // same name.
        let is_replaced = |list: &RevocationList| {
            let mut others = lists.lists.iter().filter(|other| other.name == list.name);
            others.any(|other| signer_of(other).is_some())
        };
        for list in &*lists.lists {
            let signer = signer_of(list);
            let issuer = || list.issuer.clone();
            match signer {
                Some(signer) if !may_sign_lists(signer) => {
                    return Err(Fault::NotForRevocationLists(issuer()));
                }
                None if namesakes(list).next().is_some() && !is_replaced(list) => {
                    return Err(Fault::RevocationListSignature(issuer()));
                }
                None => log::warn!(
                    "{}: the issuer {:?} of a list is not trusted; the list counts only for peers that show its certificate",
                    lists.origin(),
                    list.issuer
                ),
                Some(_) => {}
            }
            if list.is_overdue(now) {
                let overdue = list.overdue();
                if lists.enforced {
                    return Err(overdue);
                }
                log::warn!("{}: {overdue}; the list still counts", lists.origin());
            }
            signers.push(signer.map(|signer| signer.public_key().raw.into()));
        }
        // The list of a wrong authority is a likely mistake, which would not be noticed otherwise.
        if lists.enforced && signers.iter().all(Option::is_none) {
            let issuers = lists.lists.iter().map(|list| format!("{:?}", list.issuer));
            let issuers: Vec<_> = issuers.collect();
            return Err(Fault::RevocationListsOfOthers(issuers.join(", ")));
        }
        Ok(Self {
            lists: lists.clone(),
            signers,
        })
    }

    /// Each list that a trusted authority has signed, with that authority's key.
    fn signed(&self) -> impl Iterator<Item = (&RevocationList, &[u8])> {
        let lists = self.lists.lists.iter().zip(&self.signers);
        lists.filter_map(|(list, signer)| Some((list, signer.as_deref()?)))
    }

    /// Checks that no list of an authority that is still trusted is replaced by an older one, or left out.
    pub(crate) fn check_follows(&self, former: &Self, authorities: &[CertificateInfo]) -> Result<(), Fault> {
        for (before, key) in former.signed() {
            // Authorities of the same name differ in their keys.
            let mut parsed = authorities.iter().flat_map(|one| der::certificate(&one.der));
            let is_trusted = parsed.any(|authority| authority.public_key().raw == key);
            let mut own = self.signed().filter(|(_, signer)| *signer == key);
            let is_newer =
                own.any(|(list, _)| list.number >= before.number && list.this_update >= before.this_update);
            if is_trusted && !is_newer {
                return Err(Fault::RevocationListOlder {
                    issuer: before.issuer.clone(),
                    in_force: before.this_update_text(),
                });
            }
        }
        Ok(())
    }

    /// Checks that no certificate of a chain is revoked. The caller has to check the signatures.
    /// `between` must not hold a trusted authority. As for the limits, all shown certificates count.
    pub(crate) fn check(
        &self,
        first: &X509Certificate<'_>,
        between: &[X509Certificate<'_>],
        at: SystemTime,
    ) -> Result<(), Fault> {
        for certificate in std::iter::once(first).chain(between) {
            let issuer = certificate.issuer().as_raw();
            let serial = Serial::of(certificate.raw_serial());
            let lists = self.lists.lists.iter().zip(&self.signers);
            for (list, signer) in lists.filter(|(list, _)| *list.name == *issuer) {
                // The cheap checks come first: a signature is verified only for a certificate that is
                // listed, or whose list is overdue.
                let is_listed = list.revokes(&serial);
                let is_overdue = self.lists.enforced && list.is_overdue(at);
                if (is_listed || is_overdue) && is_of_issuer(list, signer.as_deref(), certificate, between) {
                    let revoked = is_listed.then(|| der::revoked(certificate));
                    return Err(revoked.unwrap_or_else(|| list.overdue()));
                }
            }
        }
        Ok(())
    }
}

/// True if the same key signed the list and the certificate. The issuer of the certificate has the
/// list's name.
fn is_of_issuer(
    list: &RevocationList,
    signer: Option<&[u8]>,
    certificate: &X509Certificate<'_>,
    between: &[X509Certificate<'_>],
) -> bool {
    let certificate = certificate.as_raw();
    match signer {
        Some(key) => is_signed_by(certificate, key),
        None => between.iter().any(|issuer| {
            issuer.subject().as_raw() == &*list.name
                && is_signed_by(certificate, issuer.public_key().raw)
                && is_signed_by(&list.der, issuer.public_key().raw)
                && may_sign_lists(issuer)
        }),
    }
}

/// True if the issuer's key usage allows cRLSign.
fn may_sign_lists(issuer: &X509Certificate<'_>) -> bool {
    der::key_may(issuer, KeyUsage::crl_sign).unwrap_or(false)
}
