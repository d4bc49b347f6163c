//! The records of nodes that join, in memory.

use std::sync::{Arc, Mutex};

use crate::server::EnrolmentStore;
use ssntp_pki::{Enrolled, EnrolmentRecords, JoinRefusal, StoredToken};
use ssntp_transport::locked;

/// Tokens and the certificates of nodes in memory. A clone shares them.
#[derive(Clone, Debug, Default)]
pub struct Tokens(Arc<Mutex<EnrolmentRecords>>);

impl Tokens {
    /// Adds a token, if there is none with its id.
    pub fn add(&self, token: StoredToken) {
        let _ = locked(&self.0).add_token(token);
    }

    /// The tokens, by id.
    pub fn tokens(&self) -> Vec<StoredToken> {
        locked(&self.0).tokens(0).cloned().collect()
    }

    /// The certificates that were issued, oldest first.
    pub fn enrolled(&self) -> Vec<Enrolled> {
        let records = locked(&self.0);
        records.certificates(0).map(|(_, one, _)| one.clone()).collect()
    }
}

impl EnrolmentStore for Tokens {
    fn update(
        &self,
        _token: Option<&str>,
        change: &mut dyn FnMut(&mut EnrolmentRecords) -> Result<Enrolled, JoinRefusal>,
    ) -> Result<Enrolled, JoinRefusal> {
        change(&mut locked(&self.0))
    }
}
