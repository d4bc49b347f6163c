//! Signatures of certificates and revocation lists, for what webpki does not
//! check of them by itself.

use rustls::crypto::WebPkiSupportedAlgorithms;

/// Whether this key, in the form of a certificate, made the signature of a
/// certificate or a revocation list. They have the same shape: SEQUENCE { what is
/// signed, algorithm, signature }.
pub(super) fn is_signed_by(der: &[u8], key: &[u8], algorithms: &WebPkiSupportedAlgorithms) -> bool {
    let verified = || {
        let key = PublicKey::read(key)?;
        let (content, _) = element(der)?;
        let (_, rest) = element(content)?;
        let signed = content.get(..content.len() - rest.len())?;
        let (algorithm, rest) = element(rest)?;
        let (signature, _) = element(rest)?;
        let (0, signature) = signature.split_first().map(|(unused, bits)| (*unused, bits))? else {
            return None;
        };
        let mut fits = algorithms.all.iter().filter(|usable| {
            usable.signature_alg_id().as_ref() == algorithm && key.is_for(usable.public_key_alg_id().as_ref())
        });
        Some(fits.any(|usable| usable.verify_signature(key.bits, signed, signature).is_ok()))
    };
    verified().unwrap_or_default()
}

/// A public key as cryptography takes it.
pub(super) struct PublicKey<'a> {
    algorithm: &'a [u8],
    pub(super) bits: &'a [u8],
}

impl<'a> PublicKey<'a> {
    /// Reads SubjectPublicKeyInfo ::= SEQUENCE { algorithm, BIT STRING }.
    pub(super) fn read(info: &'a [u8]) -> Option<Self> {
        let (content, _) = element(info)?;
        let (algorithm, rest) = element(content)?;
        let (bits, _) = element(rest)?;
        let (0, bits) = bits.split_first().map(|(unused, bits)| (*unused, bits))? else {
            return None;
        };
        Some(Self { algorithm, bits })
    }

    pub(super) fn is_for(&self, algorithm: &[u8]) -> bool {
        self.algorithm == algorithm
    }
}

/// The content of the DER element at the front, and what stands behind it.
fn element(der: &[u8]) -> Option<(&[u8], &[u8])> {
    let (_, rest) = der.split_first()?;
    let (first, rest) = rest.split_first()?;
    let (length, rest) = match first {
        0..=0x7f => (usize::from(*first), rest),
        0x81..=0x84 => {
            let (bytes, rest) = rest.split_at_checked(usize::from(first - 0x80))?;
            let length = bytes
                .iter()
                .fold(0, |length, byte| length << 8 | usize::from(*byte));
            (length, rest)
        }
        _ => return None,
    };
    rest.split_at_checked(length)
}
