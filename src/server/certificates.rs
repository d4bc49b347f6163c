//! The certificates of all connections, with the number of connections of each. Each certificate is kept
//! once.

use std::collections::HashMap;
use std::sync::Arc;

use ssntp_pki::{CertificateDer, CertificateInfo, KeptCertificate};

/// The certificates of all sessions and links, from their admission until their threads are joined.
#[derive(Debug, Default)]
pub(super) struct Certificates {
    connections: HashMap<KeptCertificate, usize>,
    /// The intermediate certificates that came with the last new certificate. Most clusters have at most
    /// one intermediate authority, so that all clients send the same ones, which are kept once.
    intermediates: Option<Arc<[CertificateDer<'static>]>>,
}

impl Certificates {
    /// Counts a connection with this certificate. `intermediates` are the certificates that the peer sent
    /// after it. Those of the first connection with the certificate are kept.
    pub(super) fn add(
        &mut self,
        certificate: &CertificateInfo,
        intermediates: Vec<CertificateDer<'static>>,
    ) -> KeptCertificate {
        let kept = self.connections.get_key_value(&certificate.der[..]);
        let kept = match kept {
            Some((kept, _)) => kept.clone(),
            None => KeptCertificate::new(certificate, self.shared(intermediates)),
        };
        *self.connections.entry(kept.clone()).or_default() += 1;
        kept
    }

    /// Notes that a connection with this certificate is gone.
    pub(super) fn remove(&mut self, certificate: &KeptCertificate) {
        if let Some(count) = self.connections.get_mut(certificate) {
            *count -= 1;
            if *count == 0 {
                self.connections.remove(certificate);
            }
        }
    }

    /// The number of connections with this certificate.
    pub(super) fn connections_of(&self, certificate: &CertificateInfo) -> usize {
        let connections = self.connections.get(&certificate.der[..]);
        connections.copied().unwrap_or_default()
    }

    /// The number of certificates, and the largest number of connections with one of them.
    pub(super) fn counted(&self) -> (usize, usize) {
        let most = self.connections.values().copied().max();
        (self.connections.len(), most.unwrap_or_default())
    }

    /// The kept intermediates, which become these if they differ. `None` if there are none.
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
    fn a_certificate_is_kept_once_until_its_last_session_is_gone() {
        let mut places = Certificates::default();
        let (one, other) = (certificate(1), certificate(2));
        let [first, second, third] =
            [&one, &one, &other].map(|certificate| places.add(certificate, Vec::new()));
        assert!(std::ptr::eq(first.info(), second.info()));
        assert_eq!(places.counted(), (2, 2));
        assert_eq!(
            (places.connections_of(&one), places.connections_of(&other)),
            (2, 1)
        );
        places.remove(&first);
        places.remove(&third);
        assert_eq!(places.counted(), (1, 1));
        assert_eq!(
            (places.connections_of(&one), places.connections_of(&other)),
            (1, 0)
        );
        places.remove(&second);
        assert_eq!((places.connections_of(&one), places.counted()), (0, (0, 0)));
    }

    #[test]
    fn equal_intermediates_are_kept_once() {
        let mut places = Certificates::default();
        let shown = |number| vec![certificate(number).der];
        let taken = [(1, shown(9)), (2, shown(9)), (3, shown(8)), (4, Vec::new())]
            .map(|(number, intermediates)| places.add(&certificate(number), intermediates));
        let chains = taken.each_ref().map(KeptCertificate::chain);
        assert_eq!(chains.each_ref().map(Vec::len), [2, 2, 2, 1]);
        for (at, number) in [(0, 9), (1, 9), (2, 8)] {
            assert_eq!(chains[at][0], certificate(at + 1).der);
            assert_eq!(chains[at][1], certificate(number).der);
        }
        // One reference is kept, one is in the certificate, and one is here.
        let one = places.shared(shown(8)).unwrap();
        assert_eq!(Arc::strong_count(&one), 3);
    }
}
