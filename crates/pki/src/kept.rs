//! Certificates of sessions, kept in little memory.

use std::borrow::{Borrow, Cow};
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, OnceLock};

use rustls::pki_types::CertificateDer;

use crate::inspect::CertificateInfo;

/// A certificate that has been read, kept as its DER, which takes less than half of the memory of its
/// facts. The facts are read again on demand. The intermediate certificates of the peer are kept with
/// it. Clones share everything; two are equal if their DER is.
#[derive(Clone)]
pub struct KeptCertificate(Arc<Kept>);

struct Kept {
    der: Box<[u8]>,
    facts: OnceLock<Box<CertificateInfo>>,
    intermediates: Option<Arc<[CertificateDer<'static>]>>,
}

impl KeptCertificate {
    /// Keeps a certificate, and the intermediate ones if the peer has shown any.
    pub fn new(certificate: &CertificateInfo, intermediates: Option<Arc<[CertificateDer<'static>]>>) -> Self {
        Self(Arc::new(Kept {
            der: Box::from(&certificate.der[..]),
            facts: OnceLock::new(),
            intermediates,
        }))
    }

    /// The certificate, followed by the intermediate ones.
    pub fn chain(&self) -> Vec<CertificateDer<'_>> {
        let intermediates = self
            .0
            .intermediates
            .iter()
            .flat_map(|shown| shown.iter().cloned());
        let leaf = CertificateDer::from(&self.0.der[..]);
        std::iter::once(leaf).chain(intermediates).collect()
    }

    /// True if it is that certificate.
    pub fn is(&self, other: &CertificateInfo) -> bool {
        *self.0.der == *other.der
    }

    /// Its facts, which are kept from the first call on.
    pub fn info(&self) -> &CertificateInfo {
        self.0.facts.get_or_init(|| Box::new(self.read()))
    }

    /// Its facts without keeping them, for a caller that visits all sessions.
    pub fn glance(&self) -> Cow<'_, CertificateInfo> {
        match self.0.facts.get() {
            Some(info) => Cow::Borrowed(info),
            None => Cow::Owned(self.read()),
        }
    }

    fn read(&self) -> CertificateInfo {
        let der = CertificateDer::from(&self.0.der[..]);
        // This does not fail, because the same bytes were read before.
        CertificateInfo::from_der(&der).unwrap_or_else(|_| CertificateInfo::nothing(&der))
    }
}

// So that a table of certificates can be searched by DER, without a `KeptCertificate` for the search.
impl Borrow<[u8]> for KeptCertificate {
    fn borrow(&self) -> &[u8] {
        &self.0.der
    }
}

impl PartialEq for KeptCertificate {
    fn eq(&self, other: &Self) -> bool {
        self.0.der == other.0.der
    }
}

impl Eq for KeptCertificate {}

impl Hash for KeptCertificate {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.der.hash(state);
    }
}

impl fmt::Debug for KeptCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.info(), f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::role::Role;

    #[cfg(feature = "issue")]
    #[test]
    fn a_kept_certificate_has_the_facts_of_the_original() {
        use crate::{Authority, AuthorityRequest, CertificateRequest};
        let authority = Authority::new(&AuthorityRequest::default()).unwrap();
        let issue = || {
            let issued = authority.issue(&CertificateRequest::new(Role::AGENT)).unwrap();
            CertificateInfo::from_der(&issued.identity().chain()[0]).unwrap()
        };
        let (one, other) = (issue(), issue());
        let kept = KeptCertificate::new(&one, None);
        assert!(kept.is(&one) && !kept.is(&other));
        assert_eq!(*kept.glance(), one);
        assert!(kept.0.facts.get().is_none(), "a glance keeps nothing");
        // All facts, because `==` compares the DER only.
        assert_eq!(format!("{:?}", kept.clone().info()), format!("{one:?}"));
        assert_eq!(kept.info().roles, Role::AGENT);
    }

    #[test]
    fn bytes_that_are_no_certificate_give_no_role() {
        let nothing = CertificateInfo::nothing(&CertificateDer::from(vec![1, 2, 3]));
        let kept = KeptCertificate::new(&nothing, None);
        assert_eq!(kept.info().roles, Role::NONE);
        assert!(kept.info().check_validity(crate::der::now()).is_err());
    }
}
