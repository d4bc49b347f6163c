//! A store of tokens and certificates of nodes in memory.

use std::sync::{Arc, Mutex};

use crate::server::{EnrolmentStore, Redeem};
use ssntp_pki::{CertificateInfo, Enrolled, JoinRefusal, StoredToken};
use ssntp_transport::locked;

/// Tokens and the certificates of nodes in memory. A clone shares them.
#[derive(Clone, Debug, Default)]
pub struct Tokens(Arc<Mutex<(Vec<StoredToken>, Vec<Enrolled>)>>);

impl Tokens {
    /// Adds a token.
    pub fn add(&self, token: StoredToken) {
        locked(&self.0).0.push(token);
    }

    /// The tokens.
    pub fn tokens(&self) -> Vec<StoredToken> {
        locked(&self.0).0.clone()
    }

    /// The certificates that were issued, oldest first.
    pub fn enrolled(&self) -> Vec<Enrolled> {
        locked(&self.0).1.clone()
    }
}

impl EnrolmentStore for Tokens {
    fn join(&self, id: &str, key: &str, redeem: &mut Redeem<'_>) -> Result<Enrolled, JoinRefusal> {
        let (tokens, enrolled) = &mut *locked(&self.0);
        let token = tokens.iter_mut().find(|token| token.id == id);
        let before = enrolled.iter().find(|one| one.token == id && one.key == key);
        let joined = redeem(token.ok_or(JoinRefusal::Proof)?, before)?;
        if before.is_none() {
            enrolled.push(joined.clone());
        }
        Ok(joined)
    }

    fn renew(
        &self,
        before: &CertificateInfo,
        of_issuer: bool,
        renewed: &Enrolled,
    ) -> Result<Enrolled, JoinRefusal> {
        let (_, enrolled) = &mut *locked(&self.0);
        if of_issuer && !enrolled.iter().any(|one| one.is_of(before)) {
            return Err(JoinRefusal::NotRenewable("no such certificate".to_owned()));
        }
        if let Some(again) = enrolled.iter().find(|one| one.repeats(renewed, before)) {
            return Ok(again.clone());
        }
        enrolled.push(renewed.clone());
        Ok(renewed.clone())
    }
}
