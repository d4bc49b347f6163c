//! How many sessions each certificate has. A certificate is kept once, however many they
//! are.

use std::collections::HashMap;
use std::sync::Arc;

use ssntp_transport::pki::{CertificateDer, CertificateInfo, KeptCertificate};

/// The certificates of all sessions, from their admission until their threads are joined.
#[derive(Debug, Default)]
pub(super) struct Certificates {
    sessions: HashMap<KeptCertificate, usize>,
    /// What was shown with a certificate last. Most clusters have one authority in
    /// between, if any, so that all clients show the same, which is kept once.
    intermediates: Option<Arc<[CertificateDer<'static>]>>,
}

impl Certificates {
    /// Counts a session of this certificate. `intermediates` are the certificates that were
    /// shown with it.
    pub(super) fn take(
        &mut self,
        certificate: &CertificateInfo,
        intermediates: Vec<CertificateDer<'static>>,
    ) -> KeptCertificate {
        let kept = self.sessions.get_key_value(&certificate.der[..]);
        let kept = match kept {
            Some((kept, _)) => kept.clone(),
            None => KeptCertificate::new(certificate, self.shared(intermediates)),
        };
        *self.sessions.entry(kept.clone()).or_default() += 1;
        kept
    }

    /// Notes that a session of this certificate is gone.
    pub(super) fn give(&mut self, certificate: &KeptCertificate) {
        if let Some(count) = self.sessions.get_mut(certificate) {
            *count -= 1;
            if *count == 0 {
                self.sessions.remove(certificate);
            }
        }
    }

    /// How many sessions this certificate has.
    pub(super) fn sessions_of(&self, certificate: &CertificateInfo) -> usize {
        let sessions = self.sessions.get(&certificate.der[..]);
        sessions.copied().unwrap_or_default()
    }

    /// How many certificates there are, and the most sessions that one has.
    pub(super) fn counted(&self) -> (usize, usize) {
        let most = self.sessions.values().copied().max();
        (self.sessions.len(), most.unwrap_or_default())
    }

    fn shared(&mut self, shown: Vec<CertificateDer<'static>>) -> Option<Arc<[CertificateDer<'static>]>> {
        if shown.is_empty() {
            return None;
        }
        if self.intermediates.as_deref() != Some(&shown[..]) {
            self.intermediates = Some(shown.into());
        }
        self.intermediates.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn certificate(number: usize) -> CertificateInfo {
        CertificateInfo::nothing(&CertificateDer::from(number.to_be_bytes().to_vec()))
    }

    #[test]
    fn a_certificate_is_kept_once_and_as_long_as_it_has_sessions() {
        let mut places = Certificates::default();
        let (one, other) = (certificate(1), certificate(2));
        let [first, second, third] =
            [&one, &one, &other].map(|certificate| places.take(certificate, Vec::new()));
        assert!(std::ptr::eq(first.info(), second.info()));
        assert_eq!(places.counted(), (2, 2));
        assert_eq!((places.sessions_of(&one), places.sessions_of(&other)), (2, 1));
        places.give(&first);
        places.give(&third);
        assert_eq!(places.counted(), (1, 1));
        assert_eq!((places.sessions_of(&one), places.sessions_of(&other)), (1, 0));
        places.give(&second);
        assert_eq!((places.sessions_of(&one), places.counted()), (0, (0, 0)));
    }

    #[test]
    fn what_certificates_were_shown_with_is_kept_once_for_all_of_them() {
        let mut places = Certificates::default();
        let shown = |number| vec![certificate(number).der];
        let taken = [(1, shown(9)), (2, shown(9)), (3, shown(8)), (4, Vec::new())]
            .map(|(number, intermediates)| places.take(&certificate(number), intermediates));
        let chains = taken.each_ref().map(KeptCertificate::chain);
        assert_eq!(chains.each_ref().map(Vec::len), [2, 2, 2, 1]);
        for (at, number) in [(0, 9), (1, 9), (2, 8)] {
            assert_eq!(chains[at][0], certificate(at + 1).der);
            assert_eq!(chains[at][1], certificate(number).der);
        }
        // One kept, one in each certificate.
        let one = places.shared(shown(8)).unwrap();
        assert_eq!(Arc::strong_count(&one), 3);
    }
}
