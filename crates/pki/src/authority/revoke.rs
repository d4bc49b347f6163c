//! Revocation of certificates. An authority's list is in a file beside its certificate.
//!
//! ```text
//!  lock DIR/ca.key ─▶ read DIR/crl.pem ─▶ ours? ─▶ add new entries ─▶ sign ─▶ replace DIR/crl.pem
//! ```
//!
//! All steps are under the lock, so that two programs at the same time lose no entry. The file is replaced
//! in one step, so that a crash leaves the old list or the new one.

use std::fs::File;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rcgen::{
    CertificateRevocationListParams, KeyIdMethod, RevocationReason as Code, RevokedCertParams, SerialNumber,
};
use x509_parser::extensions::KeyUsage;

use super::issue::{Authority, DAY, KEY_FILE, PUBLIC, crypto};
use crate::der;
use crate::error::{BadRequest, Error, Fault};
use crate::inspect::CertificateInfo;
use crate::list::{RevocationList, Revoked, Serial};
use crate::store;
use ssntp_transport::lock_within;

const LIST_FILE: &str = "crl.pem";

/// The time for which other programs may hold the lock. They only sign and write a few files.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// A list that was just signed.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SignedRevocationList {
    /// The facts in the list.
    pub info: RevocationList,
    /// The list as PEM text.
    pub pem: String,
    /// The certificates that it revokes and the earlier list did not.
    pub added: Vec<Revoked>,
}

impl Authority {
    /// Signs a list that revokes these certificates and is to be replaced after `days`. Earlier lists
    /// must have lower numbers.
    ///
    /// # Errors
    /// [`Error::Request`] if the lifetime is impossible, or if the authority may not sign lists;
    /// [`Error::Content`]; [`Error::Crypto`].
    pub fn revocation_list(
        &self,
        revoked: &[Revoked],
        number: u64,
        days: u32,
    ) -> Result<SignedRevocationList, Error> {
        if !(1..=super::issue::MAX_DAYS).contains(&days) {
            return Err(BadRequest::Days(days).into());
        }
        let beginning = rcgen::date_time_ymd(1970, 1, 1);
        let since = |time: SystemTime| {
            let since = time.duration_since(UNIX_EPOCH).map_err(|_| BadRequest::Start)?;
            // Lists count whole seconds.
            Ok::<_, Error>(Duration::from_secs(since.as_secs()))
        };
        let now = since(der::now())?;
        let entry = |revoked: &Revoked| {
            Ok(RevokedCertParams {
                serial_number: revoked.serial.bytes().to_vec().into(),
                revocation_time: beginning + since(revoked.time)?,
                reason_code: code(revoked.reason.0),
                invalidity_date: None,
            })
        };
        let params = CertificateRevocationListParams {
            this_update: beginning + now,
            next_update: beginning + now + Duration::from_secs(u64::from(days) * DAY),
            crl_number: SerialNumber::from(number),
            issuing_distribution_point: None,
            revoked_certs: revoked.iter().map(entry).collect::<Result<_, Error>>()?,
            key_identifier_method: self.key_identifier()?,
        };
        let list = params.signed_by(&self.issuer).map_err(crypto)?;
        let info = RevocationList::from_der(list.der());
        Ok(SignedRevocationList {
            info: info.map_err(Error::content("the new revocation list"))?,
            pem: list.pem().map_err(crypto)?,
            added: Vec::new(),
        })
    }

    /// Revokes certificates in the list of this authority's directory, `crl.pem`, which is created if
    /// necessary. Existing entries stay. Without certificates, the list is signed again with a later
    /// end. Blocks for the disk, and up to ten seconds for other programs that change the directory.
    ///
    /// # Errors
    /// [`Error::Read`], also if another program holds the lock for longer; [`Error::Write`];
    /// [`Error::Content`] if the existing list is broken or of another authority; [`Error::Request`] if
    /// a certificate is this authority's own; and as [`revocation_list`](Self::revocation_list). The
    /// list is unchanged then.
    pub fn revoke(
        &self,
        directory: impl AsRef<Path>,
        certificates: &[Revoked],
        days: u32,
    ) -> Result<SignedRevocationList, Error> {
        let directory = directory.as_ref();
        let _held = hold(directory, PATIENCE)?;
        let own = Serial::from(&self.info);
        if certificates.iter().any(|one| one.serial == own) {
            return Err(BadRequest::OwnSerial.into());
        }
        let before = self.kept_list(directory)?;
        let (mut revoked, number) = match before {
            Some(list) => (list.revoked(), list.number.unwrap_or_default()),
            None => Default::default(),
        };
        let mut added: Vec<Revoked> = Vec::new();
        for one in certificates {
            if !revoked.iter().any(|other| other.serial == one.serial) {
                revoked.push(one.clone());
                added.push(one.clone());
            }
        }
        // At least the present time in seconds, so that it grows even if the earlier list was lost,
        // unless the clock goes back.
        let now = der::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let number = number.saturating_add(1).max(now.as_secs());
        let list = self.revocation_list(&revoked, number, days)?;
        let path = directory.join(LIST_FILE);
        // Only for a new list: an operator may have changed the mode of an existing one.
        let mode = PUBLIC.filter(|_| !path.exists());
        store::write(&path, &list.pem, mode)?;
        Ok(SignedRevocationList { added, ..list })
    }

    /// The list in the authority's directory, if there is one.
    pub(crate) fn kept_list(&self, directory: &Path) -> Result<Option<RevocationList>, Error> {
        let path = directory.join(LIST_FILE);
        let mut lists = match RevocationList::load(&path) {
            Ok(lists) => lists,
            Err(Error::Read { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        let unfit = Error::content(store::origin(&path));
        match (lists.pop(), lists.is_empty()) {
            (Some(list), true) if self.info.has_signed(&list.der) => Ok(Some(list)),
            _ => Err(unfit(Fault::BadRevocationList(format!(
                "it does not hold exactly one list, signed by {:?} (another authority of that name?); move it away",
                self.info.subject
            )))),
        }
    }

    /// Checks that this authority issued a certificate, which may have expired, and that it is not the
    /// authority's own.
    ///
    /// # Errors
    /// [`Fault::AuthorityAsPeer`], [`Fault::UnknownIssuer`] or
    /// [`Fault::BadSignature`].
    pub fn check_issued(&self, certificate: &CertificateInfo) -> Result<(), Fault> {
        if certificate.der == self.info.der {
            return Err(Fault::AuthorityAsPeer);
        }
        let parsed = der::certificate(&certificate.der)?;
        if parsed.issuer().as_raw() != der::certificate(&self.info.der)?.subject().as_raw() {
            return Err(Fault::UnknownIssuer(certificate.issuer.clone()));
        }
        if !self.info.has_signed(&certificate.der) {
            return Err(Fault::BadSignature);
        }
        // The authority's own certificate from before a renewal.
        if certificate.is_authority && certificate.subject == self.info.subject {
            return Err(Fault::AuthorityAsPeer);
        }
        Ok(())
    }

    /// The identifier of the authority's key, as in its certificate. Checks that it may sign lists, which
    /// peers check as well.
    fn key_identifier(&self) -> Result<KeyIdMethod, Error> {
        let unfit = |fault| Error::content("the authority")(fault);
        let own = der::certificate(&self.info.der).map_err(unfit)?;
        if !der::key_may(&own, KeyUsage::crl_sign).map_err(unfit)? {
            return Err(BadRequest::NoListSigner.into());
        }
        Ok(der::subject_key(&own).map_or(KeyIdMethod::Sha256, KeyIdMethod::PreSpecified))
    }
}

/// Locks an authority's directory against other programs until the result is dropped. The lock is on
/// the key file, so that only users who may read the key can make other programs wait.
pub(crate) fn hold(directory: &Path, patience: Duration) -> Result<File, Error> {
    let path = directory.join(KEY_FILE);
    let held = File::open(&path).map_err(|source| Error::Read { path, source })?;
    let path = directory.to_owned();
    match lock_within(&held, "another program", patience) {
        Ok(()) => Ok(held),
        Err(source) => Err(Error::Read { path, source }),
    }
}

fn code(number: u8) -> Option<Code> {
    use Code as C;
    [
        C::KeyCompromise,
        C::CaCompromise,
        C::AffiliationChanged,
        C::Superseded,
        C::CessationOfOperation,
        C::CertificateHold,
        C::RemoveFromCrl,
        C::PrivilegeWithdrawn,
        C::AaCompromise,
    ]
    .into_iter()
    .find(|code| *code as u8 == number)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::Role;
    use crate::{AuthorityRequest, CertificateRequest, RevocationReason};

    fn authority() -> (tempfile::TempDir, Authority) {
        let directory = tempfile::tempdir().unwrap();
        let authority = Authority::new(&AuthorityRequest::default()).unwrap();
        authority.save(directory.path(), false).unwrap();
        (directory, authority)
    }

    fn revoked(authority: &Authority) -> Revoked {
        let issued = authority.issue(&CertificateRequest::new(Role::AGENT)).unwrap();
        Revoked::now(Serial::from(issued.info()), RevocationReason::KEY_COMPROMISE)
    }

    #[test]
    fn a_list_and_its_number_grow() {
        let (directory, authority) = authority();
        let [one, other] = [revoked(&authority), revoked(&authority)];
        let empty = authority.revoke(directory.path(), &[], 30).unwrap();
        assert!(empty.info.is_empty() && empty.added.is_empty());
        let first = authority
            .revoke(directory.path(), std::slice::from_ref(&one), 30)
            .unwrap();
        let second = authority
            .revoke(directory.path(), &[one.clone(), other.clone()], 7)
            .unwrap();
        assert_eq!(
            second.added,
            std::slice::from_ref(&other),
            "one entry existed before"
        );
        let kept = RevocationList::load(directory.path().join("crl.pem")).unwrap();
        assert_eq!(kept, std::slice::from_ref(&second.info));
        assert!(kept[0].revokes(&one.serial) && kept[0].revokes(&other.serial));
        assert_eq!(kept[0].revoked()[0].reason, RevocationReason::KEY_COMPROMISE);
        assert!(empty.info.number < first.info.number && first.info.number < second.info.number);
        let days = kept[0]
            .next_update
            .unwrap()
            .duration_since(kept[0].this_update)
            .unwrap();
        assert_eq!(days, Duration::from_secs(7 * DAY));
        let mode = fs::metadata(directory.path().join("crl.pem"))
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o644);
    }

    #[test]
    fn a_list_that_is_cut_or_has_a_broken_entry_is_refused() {
        let (_directory, authority) = authority();
        let one = Revoked::now(Serial::of(&[7; 16]), RevocationReason::KEY_COMPROMISE);
        let list = authority.revocation_list(&[one], 1, 7).unwrap();
        let der = list.info.der.to_vec();
        for length in 0..der.len() {
            RevocationList::from_der(&der[..length].into()).unwrap_err();
        }
        let serial = der.windows(16).position(|bytes| bytes == [7; 16]).unwrap();
        // The kinds of the entry, its serial number and its time, as octets.
        for kind in [serial - 4, serial - 2, serial + 16] {
            let mut broken = der.clone();
            broken[kind] = 4;
            let error = RevocationList::from_der(&broken.into()).unwrap_err();
            assert!(matches!(error, Fault::BadRevocationList(_)), "{kind}: {error}");
        }
    }

    #[test]
    fn programs_that_revoke_at_the_same_time_lose_no_entry() {
        let (directory, authority) = authority();
        let all: Vec<_> = (0..16).map(|_| revoked(&authority)).collect();
        std::thread::scope(|scope| {
            for part in all.chunks(4) {
                // Each thread loads the authority, like a program of its own.
                let authority = Authority::load(directory.path()).unwrap();
                let directory = directory.path();
                scope.spawn(move || {
                    for one in part {
                        authority
                            .revoke(directory, std::slice::from_ref(one), 30)
                            .unwrap();
                    }
                });
            }
        });
        let kept = authority.kept_list(directory.path()).unwrap().unwrap();
        assert_eq!(kept.len(), 16);
        assert!(all.iter().all(|one| kept.revokes(&one.serial)));
    }

    #[test]
    fn a_lock_on_the_key_delays_others_and_one_on_the_directory_does_not() {
        let (directory, authority) = authority();
        let anybody = File::open(directory.path()).unwrap();
        anybody.lock().unwrap();
        let held = hold(directory.path(), PATIENCE).unwrap();
        let refused = hold(directory.path(), Duration::from_millis(50)).unwrap_err();
        let text = refused.to_string();
        assert!(
            text.starts_with(&format!("{}: ", directory.path().display()))
                && text.contains("another program uses it"),
            "{text}"
        );
        drop(held);
        authority.revoke(directory.path(), &[], 30).unwrap();
    }

    #[test]
    fn a_list_that_is_broken_or_of_another_authority_is_left_alone() {
        let (directory, authority) = authority();
        let path = directory.path().join("crl.pem");
        let other = Authority::new(&AuthorityRequest::default()).unwrap();
        let theirs = other.revocation_list(&[], 1, 30).unwrap();
        for text in [&theirs.pem, &theirs.pem.repeat(2), "torn"] {
            fs::write(&path, text).unwrap();
            let one = revoked(&authority);
            assert!(matches!(
                authority.revoke(directory.path(), &[one], 30),
                Err(Error::Content { .. })
            ));
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
    }

    #[test]
    fn an_authority_cannot_revoke_itself() {
        let (directory, authority) = authority();
        let other = Authority::new(&AuthorityRequest::default()).unwrap();
        let issue = |of: &Authority| of.issue(&CertificateRequest::new(Role::AGENT)).unwrap();
        assert_eq!(authority.check_issued(issue(&authority).info()), Ok(()));
        assert_eq!(
            authority.check_issued(issue(&other).info()),
            Err(Fault::BadSignature)
        );
        assert_eq!(
            authority.check_issued(authority.info()),
            Err(Fault::AuthorityAsPeer)
        );
        let named = Authority::new(&AuthorityRequest::default().name("Other")).unwrap();
        assert!(matches!(
            authority.check_issued(issue(&named).info()),
            Err(Fault::UnknownIssuer { .. })
        ));
        let own = Revoked::now(Serial::from(authority.info()), RevocationReason::UNSPECIFIED);
        assert!(matches!(
            authority.revoke(directory.path(), &[own], 30),
            Err(Error::Request(BadRequest::OwnSerial))
        ));
        assert!(!directory.path().join("crl.pem").exists());
    }
}
