//! The one place that chooses the cryptography library.

use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::crypto::hash::HashAlgorithm;
use rustls::server::ProducesTickets;

use super::Error;

/// The cryptography of every certificate check and TLS connection of this crate: aws-lc-rs
/// if it is compiled in, else ring. The process-wide default of rustls is neither read nor
/// set.
///
/// # Errors
/// [`Error::NoProvider`] if the crate was built with neither.
pub fn provider() -> Result<Arc<CryptoProvider>, Error> {
    #[cfg(feature = "aws-lc-rs")]
    return Ok(Arc::new(rustls::crypto::aws_lc_rs::default_provider()));
    #[cfg(all(feature = "ring", not(feature = "aws-lc-rs")))]
    return Ok(Arc::new(rustls::crypto::ring::default_provider()));
    #[cfg(not(any(feature = "aws-lc-rs", feature = "ring")))]
    Err(Error::NoProvider)
}

/// Seals session tickets, under random keys that it changes by itself.
pub fn ticketer() -> Result<Arc<dyn ProducesTickets>, rustls::Error> {
    #[cfg(feature = "aws-lc-rs")]
    return rustls::crypto::aws_lc_rs::Ticketer::new();
    #[cfg(all(feature = "ring", not(feature = "aws-lc-rs")))]
    return rustls::crypto::ring::Ticketer::new();
    #[cfg(not(any(feature = "aws-lc-rs", feature = "ring")))]
    Err(rustls::Error::General(Error::NoProvider.to_string()))
}

/// The SHA-256 digest, through the hash that the TLS suites bring along. `None` if the crate was
/// built without cryptography.
pub fn sha256(data: &[u8]) -> Option<Vec<u8>> {
    let provider = provider().ok()?;
    let hash = provider
        .cipher_suites
        .iter()
        .filter_map(|suite| suite.tls13())
        .map(|suite| suite.common.hash_provider)
        .find(|hash| hash.algorithm() == HashAlgorithm::SHA256)?;
    Some(hash.hash(data).as_ref().to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_digest_is_sha_256() {
        let digest = sha256(b"abc").unwrap();
        assert_eq!(digest[..4], [0xba, 0x78, 0x16, 0xbf]);
        assert_eq!(digest.len(), 32);
    }
}
