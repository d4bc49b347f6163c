//! What is known of tokens, of the certificates that nodes got for them, and of those that are revoked.
//! One value, which is stored as a whole.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use ssntp::pki::{CertificateInfo, Enrolled, JoinRefusal, Serial, StoredToken};
use ssntp::server::Redeem;
use uuid::Uuid;

/// The maximum number of tokens.
pub(super) const MAX_TOKENS: usize = 1024;
/// The seconds for which a token is known after its end, so that a node that is late is told so.
pub(super) const TOLD: u64 = 86_400;
/// The maximum number of valid certificates of a node. One that loses an answer to a renewal gets the same certificate
/// again, so it has two or three.
const MAX_OF_NODE: usize = 32;

/// Tokens and certificates.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Records {
    tokens: BTreeMap<String, StoredToken>,
    /// In the order in which they were issued.
    certificates: Vec<Enrolled>,
    /// The serial numbers of revoked certificates that have not ended, with their ends.
    revoked: BTreeMap<String, u64>,
}

impl Records {
    /// Reads the JSON of a value. A revoked number that nobody could compare would admit its holder.
    pub(super) fn read(json: &[u8]) -> Result<Self, String> {
        let records: Self = serde_json::from_slice(json).map_err(|e| e.to_string())?;
        let serials = records.certificates.iter().map(|one| &one.serial);
        for serial in serials.chain(records.revoked.keys()) {
            serial.parse::<Serial>().map_err(|e| e.to_string())?;
        }
        Ok(records)
    }

    /// The tokens that have not ended at `now`, in seconds since 1970.
    pub(super) fn tokens(&self, now: u64) -> impl Iterator<Item = &StoredToken> {
        self.tokens.values().filter(move |token| token.ends > now)
    }

    /// The certificates that have not ended at `now`, each with its number in the order of issue, and with true
    /// if it is revoked.
    pub(super) fn certificates(&self, now: u64) -> impl Iterator<Item = (u64, &Enrolled, bool)> {
        let all = (1_u64..).zip(&self.certificates);
        let revoked = |one: &Enrolled| self.revoked.contains_key(&one.serial);
        all.filter(move |(_, one)| one.ends > now)
            .map(move |(number, one)| (number, one, revoked(one)))
    }

    /// The serial numbers of the revoked certificates.
    pub(super) fn revoked(&self) -> impl Iterator<Item = &str> {
        self.revoked.keys().map(String::as_str)
    }

    pub(super) fn has_token(&self, id: &str) -> bool {
        self.tokens.contains_key(id)
    }

    /// Adds a token. Returns the reason why it cannot.
    pub(super) fn add_token(&mut self, token: StoredToken) -> Result<(), String> {
        if self.tokens.len() >= MAX_TOKENS {
            return Err(format!("there are {MAX_TOKENS} tokens, which is the maximum"));
        }
        if self.has_token(&token.id) {
            return Err(format!("there is a token {} already", token.id));
        }
        self.tokens.insert(token.id.clone(), token);
        Ok(())
    }

    /// Removes a token; nobody joins with it any more.
    pub(super) fn remove_token(&mut self, id: &str) -> Option<StoredToken> {
        self.tokens.remove(id)
    }

    /// Joins a node: see [`EnrolmentStore::join`](ssntp::server::EnrolmentStore::join).
    pub(super) fn join(
        &mut self,
        id: &str,
        key: &str,
        redeem: &mut Redeem<'_>,
    ) -> Result<Enrolled, JoinRefusal> {
        let token = self.tokens.get_mut(id).ok_or(JoinRefusal::Proof)?;
        let mut issued = self.certificates.iter();
        // A chain that had to give way cannot be sent again.
        let before = issued.find(|one| one.token == id && one.key == key && !one.chain.is_empty());
        let enrolled = redeem(token, before)?;
        if self.revoked.contains_key(&enrolled.serial) {
            return Err(JoinRefusal::Used);
        }
        if before != Some(&enrolled) {
            self.certificates.push(enrolled.clone());
        }
        Ok(enrolled)
    }

    /// Renews a certificate: see [`EnrolmentStore::renew`](ssntp::server::EnrolmentStore::renew).
    pub(super) fn renew(
        &mut self,
        before: &CertificateInfo,
        of_issuer: bool,
        renewed: &Enrolled,
    ) -> Result<Enrolled, JoinRefusal> {
        let revoked = &self.revoked;
        if revoked.contains_key(&before.serial) {
            return Err(JoinRefusal::NotRenewable("the certificate is revoked".to_owned()));
        }
        if of_issuer && !self.certificates.iter().any(|one| one.is_of(before)) {
            let why = "the records lack the certificate; the node needs a new token";
            return Err(JoinRefusal::NotRenewable(why.to_owned()));
        }
        let is_valid = |one: &&Enrolled| !revoked.contains_key(&one.serial);
        let its = self.certificates.iter().filter(|one| one.uuid == renewed.uuid);
        let its = its.filter(is_valid);
        if let Some(again) = its.clone().find(|one| one.repeats(renewed, before)) {
            return Ok(again.clone());
        }
        // Otherwise one node could fill the records.
        if its.count() >= MAX_OF_NODE {
            let why = format!("the node has {MAX_OF_NODE} certificates that are valid");
            return Err(JoinRefusal::NotRenewable(why));
        }
        // It is in use, so its answer is not lost.
        let mut all = self.certificates.iter_mut();
        if let Some(used) = all.find(|one| one.token.is_empty() && one.serial == before.serial) {
            (used.key, used.chain) = Default::default();
        }
        self.certificates.push(renewed.clone());
        Ok(renewed.clone())
    }

    /// Revokes all certificates of a node, and its unused token. Returns the number of certificates that were
    /// not revoked before; `None` if it has none.
    pub(super) fn revoke(&mut self, node: Uuid) -> Option<usize> {
        let mut its = self.certificates.iter().filter(|one| one.uuid == node).peekable();
        its.peek()?;
        let added = its.map(|one| self.revoked.insert(one.serial.clone(), one.ends));
        let added = added.filter(Option::is_none).count();
        self.tokens.retain(|_, token| token.uuid != Some(node));
        Some(added)
    }

    /// The nodes whose certificates are all revoked.
    pub(super) fn lost(&self) -> BTreeSet<Uuid> {
        let all = self.certificates.iter();
        let (revoked, valid): (Vec<_>, Vec<_>) = all.partition(|one| self.revoked.contains_key(&one.serial));
        let valid: BTreeSet<_> = valid.iter().map(|one| one.uuid).collect();
        let revoked = revoked.iter().map(|one| one.uuid);
        revoked.filter(|node| !valid.contains(node)).collect()
    }

    /// Keeps the certificates revoked that were so before.
    pub(super) fn keep_revoked(&mut self, before: &Self) {
        let revoked = before.revoked.iter();
        self.revoked
            .extend(revoked.map(|(serial, ends)| (serial.clone(), *ends)));
    }

    /// Removes what has ended at `now`, in seconds since 1970; tokens only after a day, unless others need their room.
    pub(super) fn forget_ended(&mut self, now: u64) {
        let is_told = self.tokens.len() < MAX_TOKENS;
        self.tokens
            .retain(|_, token| token.ends > now || is_told && token.ends.saturating_add(TOLD) > now);
        self.certificates.retain(|one| one.ends > now);
        self.revoked.retain(|_, ends| *ends > now);
        for one in &mut self.certificates {
            let token = self.tokens.get(&one.token);
            if !one.token.is_empty() && token.is_none_or(|token| token.ends <= now) {
                (one.key, one.chain) = Default::default();
            }
        }
    }

    /// The number of bytes in chains, which [give way](Self::drop_a_chain) to certificates.
    pub(super) fn chains(&self) -> usize {
        self.certificates.iter().map(|one| one.chain.len()).sum()
    }

    /// Empties the oldest chain, to make room. False if there is none left.
    pub(super) fn drop_a_chain(&mut self) -> bool {
        let mut certificates = self.certificates.iter_mut();
        let oldest = certificates.find(|one| !one.chain.is_empty());
        // Without its chain, the key is of no use.
        oldest
            .map(|one| (one.key, one.chain) = Default::default())
            .is_some()
    }
}
