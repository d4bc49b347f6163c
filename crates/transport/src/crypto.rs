//! The choice of the cryptography library. No other file names one of them.

use std::sync::{Arc, LazyLock};

use rustls::crypto::CryptoProvider;
#[cfg(feature = "aws-lc-rs")]
use rustls::crypto::aws_lc_rs as library;
#[cfg(not(feature = "aws-lc-rs"))]
use rustls::crypto::ring as library;
use rustls::server::ProducesTickets;

// Made once, because it never changes, and each handshake and certificate check needs it.
static PROVIDER: LazyLock<Arc<CryptoProvider>> = LazyLock::new(|| Arc::new(library::default_provider()));

/// The cryptography of every certificate check and TLS connection of this crate: aws-lc-rs
/// if it is compiled in, else ring. The process-wide default of rustls is neither read nor
/// set.
pub fn provider() -> Arc<CryptoProvider> {
    Arc::clone(&PROVIDER)
}

/// Seals session tickets, under random keys that it changes by itself.
pub(crate) fn ticketer() -> Result<Arc<dyn ProducesTickets>, rustls::Error> {
    library::Ticketer::new()
}

/// The SHA-256 digest, through the hash of a TLS suite.
pub fn sha256(data: &[u8]) -> Vec<u8> {
    let Some(suite) = library::cipher_suite::TLS13_AES_128_GCM_SHA256.tls13() else {
        unreachable!("the suite is one of TLS 1.3");
    };
    suite.common.hash_provider.hash(data).as_ref().to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_digest_is_sha_256() {
        let digest = sha256(b"abc");
        assert_eq!(digest[..4], [0xba, 0x78, 0x16, 0xbf]);
        assert_eq!(digest.len(), 32);
    }
}
