//! Revocation lists: which certificates no longer count before their time is over.
//!
//! A certificate is revoked when a list of its issuer holds its serial number.
//! "Of its issuer" is a matter of keys and not of names, since an authority and
//! the one that replaces it often have the same name: the key that signed the
//! certificate has to have signed the list.
//!
//! rustls checks lists, too, and is not asked to: it takes the first list that has
//! the issuer's name, so that the list of one authority would have every peer of
//! its namesake refused; it checks the signature over the whole list in each
//! handshake, where here that is done once; and its alert for a list that is out of
//! date tells clients to stay away for good.

use std::collections::HashSet;
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use rustls::crypto::WebPkiSupportedAlgorithms;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer};
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::{ParsedExtension, X509Extension};
use x509_parser::prelude::FromDer;
use x509_parser::revocation_list::CertificateRevocationList;

use super::signature::is_signed_by;
use super::{CertificateInfo, Error, Fault, inspect, provider, store};
use crate::printable::printable;

/// Certificate revocation lists (CRLs), of one or several authorities, to be
/// counted by a [`Trust`](super::Trust::with_revocation_lists).
///
/// ```no_run
/// use ssntp_transport::pki::{RevocationLists, Trust};
///
/// let trust = Trust::load("ca.pem")?.with_revocation_lists(&RevocationLists::load("crl.pem")?)?;
/// # Ok::<(), ssntp_transport::pki::Error>(())
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
    /// Loads a PEM file with one or more `X509 CRL` sections; what else is in it is
    /// passed over. Blocks while the file is read.
    ///
    /// # Errors
    /// [`Error::Read`], also for a file of more than 16 MiB (some 250,000
    /// certificates); [`Error::Content`] when the file is not PEM, has no list, or
    /// has one that is broken or of a kind that is not understood.
    pub fn load(path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref();
        Self::from_pem(&store::read(path)?, &store::origin(path))
    }

    /// Reads a PEM text as [`load`](Self::load) reads a file. `origin` is what
    /// errors call it.
    ///
    /// # Errors
    /// As [`load`](Self::load) without [`Error::Read`].
    pub fn from_pem(pem: &[u8], origin: &str) -> Result<Self, Error> {
        let read = || Self::read(&store::Sections::read(pem)?.revocation_lists, origin);
        read().map_err(Error::content(origin))
    }

    /// Takes lists in their binary form. Errors call them `the revocation lists`.
    ///
    /// # Errors
    /// As [`load`](Self::load) without [`Error::Read`]; in place of "not PEM",
    /// [`Fault::NotDer`].
    pub fn from_der(lists: &[CertificateRevocationListDer<'_>]) -> Result<Self, Error> {
        let origin = "the revocation lists";
        Self::read(lists, origin).map_err(Error::content(origin))
    }

    fn read(lists: &[CertificateRevocationListDer<'_>], origin: &str) -> Result<Self, Fault> {
        if lists.is_empty() {
            return Err(Fault::NoRevocationList);
        }
        let lists: Result<Vec<_>, _> = lists.iter().map(RevocationList::from_der).collect();
        Ok(Self {
            lists: lists?.into(),
            origin: origin.into(),
            enforced: false,
        })
    }

    /// Whether a list may not be used beyond its next update: then no trust is
    /// made with it, and one that was made before refuses every certificate of the
    /// list's issuer until it gets a newer list. Those peers may try again.
    /// Otherwise such a list is warned of and counts. Default: false.
    #[must_use]
    pub fn enforce_expiry(mut self, enforced: bool) -> Self {
        self.enforced = enforced;
        self
    }

    /// Each list with its facts.
    pub fn lists(&self) -> &[RevocationList] {
        &self.lists
    }

    pub(super) fn origin(&self) -> &str {
        &self.origin
    }
}

/// The facts in one revocation list, read and not judged.
#[derive(Clone)]
#[non_exhaustive]
pub struct RevocationList {
    /// Whose list it is, as in [`CertificateInfo::issuer`].
    pub issuer: String,
    /// When it was made.
    pub this_update: SystemTime,
    /// When there should be a newer one, where it says so.
    pub next_update: Option<SystemTime>,
    /// The issuer's name as it is compared.
    name: Box<[u8]>,
    /// Without leading zeros.
    serials: HashSet<Box<[u8]>>,
    der: Box<[u8]>,
}

impl RevocationList {
    fn from_der(der: &CertificateRevocationListDer<'_>) -> Result<Self, Fault> {
        if inspect::is_pem(der) {
            return Err(Fault::NotDer);
        }
        let bad = |why: String| Fault::BadRevocationList(printable(&why));
        let list = match CertificateRevocationList::from_der(der) {
            Ok(([], list)) => list,
            Ok((rest, _)) => return Err(bad(format!("{} bytes too many at its end", rest.len()))),
            Err(e) => return Err(bad(e.to_string())),
        };
        let entries = || list.iter_revoked_certificates();
        // A list of changes to another list, or of several issuers, does not say
        // by itself what it seems to say.
        let is_understood = list.extensions().iter().all(of_list)
            && entries().all(|entry| entry.extensions().iter().all(of_entry));
        if !is_understood {
            return Err(bad("it is of a kind that is not understood".to_owned()));
        }
        let moment = |time| inspect::moment(&time).map_err(|fault| bad(fault.to_string()));
        Ok(Self {
            issuer: inspect::distinguished_name(list.issuer()),
            this_update: moment(list.last_update())?,
            next_update: list.next_update().map(moment).transpose()?,
            name: list.issuer().as_raw().into(),
            serials: entries().map(|entry| plain(entry.raw_serial()).into()).collect(),
            der: Box::from(&der[..]),
        })
    }

    /// How many certificates it revokes.
    pub fn len(&self) -> usize {
        self.serials.len()
    }

    /// Whether it revokes none.
    pub fn is_empty(&self) -> bool {
        self.serials.is_empty()
    }

    /// Whether it revokes its issuer's certificate of this serial number, which is
    /// in hexadecimal as in [`CertificateInfo::serial`], with colons or without.
    pub fn has_serial(&self, serial: &str) -> bool {
        let digits: Option<Vec<u8>> = serial
            .bytes()
            .filter(|byte| *byte != b':')
            .map(|byte| {
                char::from(byte)
                    .to_digit(16)
                    .and_then(|digit| u8::try_from(digit).ok())
            })
            .collect();
        let bytes = digits.map(|digits| {
            let pairs = digits.rchunks(2).rev();
            pairs
                .map(|pair| pair.iter().fold(0, |byte, digit| byte << 4 | digit))
                .collect()
        });
        bytes.is_some_and(|bytes: Vec<u8>| self.serials.contains(plain(&bytes)))
    }

    /// [`this_update`](Self::this_update) in RFC 3339 form.
    pub fn this_update_text(&self) -> String {
        inspect::rfc3339(self.this_update)
    }

    /// [`next_update`](Self::next_update) in RFC 3339 form, where it has one.
    pub fn next_update_text(&self) -> Option<String> {
        self.next_update.map(inspect::rfc3339)
    }

    /// Whether there should be a newer one by then.
    pub fn is_overdue(&self, at: SystemTime) -> bool {
        self.next_update.is_some_and(|next| at >= next)
    }

    fn overdue(&self) -> Fault {
        Fault::RevocationListOverdue {
            issuer: self.issuer.clone(),
            next_update: self.next_update_text().unwrap_or_default(),
        }
    }
}

impl fmt::Debug for RevocationList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RevocationList")
            .field("issuer", &self.issuer)
            .field("next_update", &self.next_update_text())
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}

/// The lists that a trust counts.
#[derive(Clone, Debug)]
pub(super) struct Revocation {
    lists: RevocationLists,
    /// The public key of the trusted authority that signed each list; none where
    /// an authority in between has to have.
    signers: Vec<Option<Box<[u8]>>>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl Revocation {
    /// Checks each list against the authorities. A list that only an authority in
    /// between can have issued is checked when a peer shows that one.
    pub(super) fn new(lists: &RevocationLists, authorities: &[CertificateInfo]) -> Result<Self, Fault> {
        let provider = provider().map_err(|error| Fault::Refused(error.to_string()))?;
        let algorithms = provider.signature_verification_algorithms;
        let parsed = authorities.iter().map(|authority| inspect::parse(&authority.der));
        let parsed: Vec<_> = parsed.collect::<Result<_, _>>()?;
        let (mut signers, now) = (Vec::new(), inspect::now());
        // A list of an authority that is trusted no more, as its time is over, may stand
        // beside that of its successor of the same name.
        let is_replaced = |list: &RevocationList| {
            let is_signed = |other: &RevocationList| {
                let named = parsed
                    .iter()
                    .filter(|authority| authority.subject().as_raw() == &*other.name);
                named
                    .clone()
                    .any(|authority| other.is_signed_by(authority, &algorithms))
            };
            lists
                .lists()
                .iter()
                .any(|other| other.name == list.name && is_signed(other))
        };
        for list in lists.lists() {
            let is_namesake = |authority: &&X509Certificate<'_>| authority.subject().as_raw() == &*list.name;
            let mut namesakes = parsed.iter().filter(is_namesake);
            let signer = namesakes.find(|authority| list.is_signed_by(authority, &algorithms));
            let issuer = || list.issuer.clone();
            match signer {
                Some(signer) if !may_sign_lists(signer) => {
                    return Err(Fault::NotForRevocationLists { issuer: issuer() });
                }
                None if parsed.iter().any(|authority| is_namesake(&authority)) && !is_replaced(list) => {
                    return Err(Fault::RevocationListSignature { issuer: issuer() });
                }
                None => log::warn!(
                    "{}: the list of {:?}, which is not trusted itself, counts only for peers that show its certificate",
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
                log::warn!("{}: {overdue}, and still counts", lists.origin());
            }
            signers.push(signer.map(|signer| signer.public_key().raw.into()));
        }
        Ok(Self {
            lists: lists.clone(),
            signers,
            algorithms,
        })
    }

    pub(super) fn lists(&self) -> &RevocationLists {
        &self.lists
    }

    /// Checks a chain whose signatures are checked elsewhere; `intermediates` holds
    /// none that is itself trusted. As with the limits, all that a peer shows
    /// counts.
    pub(super) fn check(
        &self,
        first: &CertificateDer<'_>,
        intermediates: &[&CertificateDer<'_>],
        at: SystemTime,
    ) -> Result<(), Fault> {
        let parsed = intermediates.iter().map(|der| inspect::parse(der));
        let between: Vec<X509Certificate<'_>> = parsed.collect::<Result<_, _>>()?;
        for der in std::iter::once(&first).chain(intermediates) {
            let certificate = inspect::parse(der)?;
            let issuer = certificate.issuer().as_raw();
            let lists = self.lists.lists().iter().zip(&self.signers);
            for (list, signer) in lists.filter(|(list, _)| *list.name == *issuer) {
                let is_listed = list.serials.contains(plain(certificate.raw_serial()));
                let is_overdue = self.lists.enforced && list.is_overdue(at);
                if !(is_listed || is_overdue) || !self.is_of_issuer(list, signer.as_deref(), der, &between) {
                    continue;
                }
                if is_listed {
                    return Err(Fault::Revoked {
                        subject: inspect::distinguished_name(certificate.subject()),
                        serial: inspect::hexadecimal(certificate.raw_serial()),
                    });
                }
                return Err(list.overdue());
            }
        }
        Ok(())
    }

    /// Whether one key signed the list and the certificate, whose issuer has the
    /// list's name.
    fn is_of_issuer(
        &self,
        list: &RevocationList,
        signer: Option<&[u8]>,
        certificate: &[u8],
        between: &[X509Certificate<'_>],
    ) -> bool {
        match signer {
            Some(key) => is_signed_by(certificate, key, &self.algorithms),
            None => between.iter().any(|issuer| {
                issuer.subject().as_raw() == &*list.name
                    && is_signed_by(certificate, issuer.public_key().raw, &self.algorithms)
                    && list.is_signed_by(issuer, &self.algorithms)
                    && may_sign_lists(issuer)
            }),
        }
    }
}

impl RevocationList {
    fn is_signed_by(&self, issuer: &X509Certificate<'_>, algorithms: &WebPkiSupportedAlgorithms) -> bool {
        is_signed_by(&self.der, issuer.public_key().raw, algorithms)
    }
}

/// Whether the issuer's key usage, where it has one, has cRLSign.
fn may_sign_lists(issuer: &X509Certificate<'_>) -> bool {
    let usage = issuer.key_usage();
    usage.is_ok_and(|usage| usage.is_none_or(|usage| usage.value.crl_sign()))
}

/// 2.5.29.27: the list holds only what has changed since another one.
const CHANGES_ONLY: [u8; 3] = [0x55, 0x1d, 0x1b];

/// Whether an extension of a list leaves the list what it seems to be.
fn of_list(extension: &X509Extension<'_>) -> bool {
    match extension.parsed_extension() {
        _ if extension.oid.as_bytes() == CHANGES_ONLY => false,
        ParsedExtension::IssuingDistributionPoint(point) => !point.indirect_crl,
        ParsedExtension::CRLNumber(_) | ParsedExtension::AuthorityKeyIdentifier(_) => true,
        // Those that change what a list means are critical.
        _ => !extension.critical,
    }
}

/// The same of one entry.
fn of_entry(extension: &X509Extension<'_>) -> bool {
    match extension.parsed_extension() {
        ParsedExtension::ReasonCode(_) | ParsedExtension::InvalidityDate(_) => true,
        _ => !extension.critical,
    }
}

/// A serial number without leading zeros.
fn plain(serial: &[u8]) -> &[u8] {
    let zeros = serial.iter().take_while(|byte| **byte == 0).count();
    &serial[zeros..]
}
