//! The records of the nodes that join: who may have a certificate, who has one, and which are revoked.
//!
//! ```text
//!  JoinRequest ─▶ join ──────┐ the token's proof, end, roles, uses     ┌─▶ Issuer::issue ─▶ Enrolled
//!  the certificate ─▶ renew ─┴ the records, what is revoked ───────────┤
//!                                                                      └─▶ JoinRefusal
//! ```
//!
//! One value, which a store keeps as a whole. It decides, and never knows where it is kept.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::issuer::{Enrolled, Issuer, SigningRequest, digest};
use super::token::{JoinRefusal, JoinRequest, StoredToken};
use crate::error::BadRequest;
use crate::inspect::CertificateInfo;
use crate::list::Serial;

/// The maximum number of tokens.
const MAX_TOKENS: usize = 1024;
/// The seconds for which a token is known after its end, so that a node that is late is told so.
const TOLD: u64 = 86_400;
/// The maximum number of valid certificates of a node. One that loses an answer to a renewal gets the same certificate
/// again, so it has two or three.
const MAX_OF_NODE: usize = 32;

/// The issuer of certificates, their lifetime, and the present time.
type Issuing<'a> = (&'a Issuer, Duration, SystemTime);

/// Tokens, the certificates that nodes have got, and those that are revoked. It gives nodes their certificates. Times
/// are in seconds since 1970.
///
/// # Threads
/// A plain value. A store keeps it, and makes one change at a time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EnrolmentRecords {
    tokens: BTreeMap<String, StoredToken>,
    /// In the order in which they were issued.
    certificates: Vec<Enrolled>,
    /// The serial numbers of revoked certificates that have not ended, with their ends.
    revoked: BTreeMap<String, u64>,
}

impl EnrolmentRecords {
    /// Checks what a store has read. A revoked number that nobody could compare would admit its holder.
    ///
    /// # Errors
    /// [`BadRequest::Serial`].
    pub fn check(&self) -> Result<(), BadRequest> {
        let serials = self.certificates.iter().map(|one| &one.serial);
        let mut serials = serials.chain(self.revoked.keys());
        serials.try_for_each(|serial| serial.parse::<Serial>().map(drop))
    }

    /// The tokens that have not ended at `now`.
    pub fn tokens(&self, now: u64) -> impl Iterator<Item = &StoredToken> {
        self.tokens.values().filter(move |token| token.ends > now)
    }

    /// The certificates that have not ended at `now`, each with its number in the order of issue, and with true
    /// if it is revoked.
    pub fn certificates(&self, now: u64) -> impl Iterator<Item = (u64, &Enrolled, bool)> {
        let all = (1_u64..).zip(&self.certificates);
        let revoked = |one: &Enrolled| self.revoked.contains_key(&one.serial);
        all.filter(move |(_, one)| one.ends > now)
            .map(move |(number, one)| (number, one, revoked(one)))
    }

    /// The serial numbers of the revoked certificates.
    pub fn revoked(&self) -> impl Iterator<Item = &str> {
        self.revoked.keys().map(String::as_str)
    }

    /// True if there is a token with this id, even if it has ended.
    pub fn has_token(&self, id: &str) -> bool {
        self.tokens.contains_key(id)
    }

    /// Adds a token.
    ///
    /// # Errors
    /// The reason: it is no token's record, there is one with this id, or there are too many.
    pub fn add_token(&mut self, token: StoredToken) -> Result<(), String> {
        token.check()?;
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
    pub fn remove_token(&mut self, id: &str) -> Option<StoredToken> {
        self.tokens.remove(id)
    }

    /// Gives a node the certificate for its token. A node that lost the answer asks again with the same key, and gets
    /// the same certificate, signed anew. The token counts once.
    ///
    /// # Errors
    /// The reason why it gets none; nothing is changed then.
    pub fn join(
        &mut self,
        request: &JoinRequest,
        signing: &SigningRequest,
        (issuer, lifetime, now): Issuing<'_>,
    ) -> Result<Enrolled, JoinRefusal> {
        let token = self.tokens.get_mut(&request.id).ok_or(JoinRefusal::Proof)?;
        let is_before = |one: &&Enrolled| {
            one.token == request.id && one.key == signing.digest() && one.roles == request.roles
        };
        let before = self.certificates.iter().find(is_before);
        token.decide(request, before.is_some(), now)?;
        if let Some(before) = before {
            // The store may have been restored, and has the token of a node that was revoked.
            if self.revoked.contains_key(&before.serial) {
                return Err(JoinRefusal::Used);
            }
            return Ok(issuer.issue_again(signing, before)?);
        }
        let uuid = token.uuid.unwrap_or_else(Uuid::new_v4);
        let joined = issuer.issue(signing, request.roles, uuid, lifetime)?;
        token.uses_left -= 1;
        self.certificates.push(Enrolled {
            token: request.id.clone(),
            ..recorded(&joined)
        });
        Ok(joined)
    }

    /// Gives a node the certificate that follows `before`, which stays valid until its end. A node that lost the answer
    /// asks again with the same key, and gets the same certificate, signed anew, until it uses it. If an issuer has
    /// signed `before`, and not the authority itself, the records have to have it: whoever steals an issuer signs what
    /// no record has. He chooses the serial number, the UUID and the roles, but does not have the key of a record.
    ///
    /// # Errors
    /// The reason why it gets none; nothing is changed then.
    pub fn renew(
        &mut self,
        before: &CertificateInfo,
        is_of_issuer: bool,
        signing: &SigningRequest,
        (issuer, lifetime, now): Issuing<'_>,
    ) -> Result<Enrolled, JoinRefusal> {
        let refused = |why: &str| Err(JoinRefusal::NotRenewable(why.to_owned()));
        let Some(uuid) = before.uuid else {
            return refused("a certificate that is bound to no UUID is not renewed over a session");
        };
        let ends_after = |time| before.not_after.duration_since(time).unwrap_or_default();
        if ends_after(now) > ends_after(before.not_before) / 2 {
            return refused("the certificate is valid for more than half of its life");
        }
        if self.revoked.contains_key(&before.serial) {
            return refused("the certificate is revoked");
        }
        let key = before.public_key().ok().map(digest);
        let is_before = |one: &Enrolled| {
            let is_same = (&one.serial, one.uuid, one.roles) == (&before.serial, uuid, before.roles);
            is_same && key.as_ref() == Some(&one.key)
        };
        if is_of_issuer && !self.certificates.iter().any(is_before) {
            return refused("the records lack the certificate; the node needs a new token");
        }
        let valid = self.certificates.iter();
        let valid = valid.filter(|one| one.uuid == uuid && !self.revoked.contains_key(&one.serial));
        let is_answer = |one: &&Enrolled| {
            let is_renewal = one.token.is_empty() && one.roles == before.roles && one.serial != before.serial;
            is_renewal && one.key == signing.digest()
        };
        if let Some(again) = valid.clone().find(is_answer) {
            return Ok(issuer.issue_again(signing, again)?);
        }
        // Otherwise one node could fill the records.
        if valid.count() >= MAX_OF_NODE {
            return refused(&format!("the node has {MAX_OF_NODE} certificates that are valid"));
        }
        let renewed = issuer.issue(signing, before.roles, uuid, lifetime)?;
        self.certificates.push(recorded(&renewed));
        Ok(renewed)
    }

    /// Revokes all certificates of a node, and removes its unused token and the ones with which it has joined, because
    /// who has the node knows them. Returns the number of certificates that were not revoked before; `None` if it has
    /// none.
    pub fn revoke(&mut self, node: Uuid) -> Option<usize> {
        let mut its = self.certificates.iter().filter(|one| one.uuid == node).peekable();
        its.peek()?;
        self.tokens.retain(|_, token| token.uuid != Some(node));
        let added = its.filter(|one| {
            self.tokens.remove(&one.token);
            self.revoked.insert(one.serial.clone(), one.ends).is_none()
        });
        Some(added.count())
    }

    /// Keeps the certificates revoked that were so before, and have not ended at `now`.
    pub fn keep_revoked(&mut self, before: &Self, now: u64) {
        let revoked = before.revoked.iter().filter(|(_, ends)| **ends > now);
        self.revoked
            .extend(revoked.map(|(serial, ends)| (serial.clone(), *ends)));
    }

    /// Removes what has ended at `now`; tokens only after a day, unless others need their room.
    pub fn forget_ended(&mut self, now: u64) {
        let is_told = self.tokens.len() < MAX_TOKENS;
        self.tokens
            .retain(|_, token| token.ends > now || is_told && token.ends.saturating_add(TOLD) > now);
        self.certificates.retain(|one| one.ends > now);
        self.revoked.retain(|_, ends| *ends > now);
    }
}

/// What the records keep of a certificate.
fn recorded(issued: &Enrolled) -> Enrolled {
    Enrolled {
        chain: String::new(),
        ..issued.clone()
    }
}

#[cfg(test)]
mod tests {
    use ssntp_transport::Address;

    use super::*;
    use crate::authority::issue::seconds;
    use crate::der;
    use crate::pem::Sections;
    use crate::role::Role;
    use crate::{Authority, AuthorityRequest, JoinToken, node_key, signing_request};

    const LIFE: Duration = Duration::from_secs(3600);

    /// An authority, its issuer, and records with one token.
    struct Desk {
        authority: Authority,
        issuer: Issuer,
        token: JoinToken,
        records: EnrolmentRecords,
    }

    impl Desk {
        fn new(uses: u32, uuid: Option<Uuid>) -> Self {
            let authority = Authority::new(&AuthorityRequest::default()).unwrap();
            let token = JoinToken::new(Address::tcp("localhost", 1), authority.info()).unwrap();
            let mut records = EnrolmentRecords::default();
            let ends = der::now() + LIFE;
            let stored = StoredToken::new(&token, Role::AGENT, uuid, uses, ends, "ops");
            records.add_token(stored).unwrap();
            let issuer = authority.issuer("one", Role::AGENT | Role::NETAGENT, 10).unwrap();
            Self {
                authority,
                issuer,
                token,
                records,
            }
        }

        fn replace_issuer(&mut self, name: &str) -> Issuer {
            let next = self.authority.issuer(name, Role::AGENT, 10).unwrap();
            std::mem::replace(&mut self.issuer, next)
        }

        fn join(&mut self, key: &SigningRequest) -> Result<Enrolled, JoinRefusal> {
            let request = self.token.request(Role::AGENT, String::new());
            self.records.join(&request, key, (&self.issuer, LIFE, der::now()))
        }

        fn renew(&mut self, before: &CertificateInfo, key: &SigningRequest) -> Result<Enrolled, JoinRefusal> {
            self.records
                .renew(before, true, key, (&self.issuer, LIFE, der::now()))
        }

        fn uses_left(&self) -> u32 {
            self.records.tokens(0).next().unwrap().uses_left
        }
    }

    fn key() -> SigningRequest {
        SigningRequest::from_pem(&signing_request(&node_key().unwrap(), "key").unwrap()).unwrap()
    }

    /// What names a certificate: it may be signed several times.
    fn same(enrolled: &Enrolled) -> (Uuid, Role, &str, u64) {
        (enrolled.uuid, enrolled.roles, &enrolled.serial, enrolled.ends)
    }

    /// A node's certificate, whose life is over.
    fn shown(enrolled: &Enrolled) -> CertificateInfo {
        let chain = Sections::read(enrolled.chain.as_bytes()).unwrap().certificates;
        let mut info = CertificateInfo::from_der(&chain[0]).unwrap();
        (info.not_before, info.not_after) = (SystemTime::UNIX_EPOCH, SystemTime::UNIX_EPOCH);
        info
    }

    fn refusal(refused: Result<Enrolled, JoinRefusal>) -> String {
        match refused.unwrap_err() {
            JoinRefusal::NotRenewable(why) => why,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_record_without_a_key_is_read_and_renews_nothing() {
        let mut desk = Desk::new(1, None);
        let joined = shown(&desk.join(&key()).unwrap());
        let mut records = serde_json::to_value(&desk.records).unwrap();
        records["certificates"][0].as_object_mut().unwrap().remove("key");
        desk.records = serde_json::from_value(records).unwrap();
        assert!(refusal(desk.renew(&joined, &key())).contains("records"));
    }

    #[test]
    fn the_same_key_gets_the_same_certificate_again_and_another_key_gets_none() {
        let own = Uuid::from_u128(9);
        let mut desk = Desk::new(5, Some(own));
        assert_eq!(desk.uses_left(), 1, "one node alone has the UUID");
        let (one, other) = (key(), key());
        let first = desk.join(&one).unwrap();
        assert_eq!(first.uuid, own);
        assert_eq!(same(&desk.join(&one).unwrap()), same(&first));
        assert_eq!(desk.join(&other), Err(JoinRefusal::Used));
        let (_, kept, _) = desk.records.certificates(0).next().unwrap();
        assert_eq!((same(kept), kept.token.as_str()), (same(&first), desk.token.id()));
        assert_eq!(desk.records.certificates(0).count(), 1);
    }

    #[test]
    fn a_join_that_is_repeated_after_the_issuer_was_replaced_is_signed_by_the_new_issuer() {
        let mut desk = Desk::new(2, None);
        let one = key();
        let first = desk.join(&one).unwrap();
        let before = desk.records.clone();
        desk.replace_issuer("two");
        let second = desk.join(&one).unwrap();
        let signer = desk.issuer.info().to_pem();
        assert!(!first.chain.ends_with(&signer) && second.chain.ends_with(&signer));
        assert_eq!(same(&first), same(&second));
        // Nothing has to be stored.
        assert_eq!(desk.records, before);
    }

    #[test]
    fn a_node_that_was_revoked_does_not_join_again_and_its_token_admits_nobody() {
        let mut desk = Desk::new(3, None);
        let (one, other) = (key(), key());
        let first = desk.join(&one).unwrap();
        desk.join(&other).unwrap();
        let before = desk.records.clone();
        assert_eq!(desk.records.revoke(first.uuid), Some(1));
        for key in [&one, &other, &key()] {
            assert_eq!(desk.join(key), Err(JoinRefusal::Proof));
        }
        // A store that was restored has the token again.
        let revoked = std::mem::replace(&mut desk.records, before);
        desk.records.keep_revoked(&revoked, 0);
        assert_eq!(desk.join(&one), Err(JoinRefusal::Used));
        assert!(desk.join(&other).is_ok());
    }

    #[test]
    fn what_has_ended_is_not_listed_before_the_next_change_forgets_it() {
        let mut desk = Desk::new(1, None);
        let ends = desk.join(&key()).unwrap().ends;
        let token_ends = desk.records.tokens(0).next().unwrap().ends;
        let listed = |now| {
            let records = &desk.records;
            (records.tokens(now).count(), records.certificates(now).count())
        };
        assert_eq!((listed(token_ends - 1).0, listed(token_ends).0), (1, 0));
        assert_eq!((listed(ends - 1).1, listed(ends).1), (1, 0));
    }

    #[test]
    fn what_has_ended_is_forgotten() {
        let mut desk = Desk::new(2, None);
        let [first, _] = [(); 2].map(|()| desk.join(&key()).unwrap());
        let token = desk.records.tokens(0).next().unwrap().clone();
        desk.records.revoke(first.uuid).unwrap();
        let ends = token.ends;
        desk.records.add_token(token).unwrap();
        desk.records.forget_ended(ends.max(first.ends) + TOLD);
        assert_eq!(desk.records, EnrolmentRecords::default());
    }

    #[test]
    fn a_token_that_has_ended_is_known_for_a_day_and_makes_room_for_others() {
        let mut desk = Desk::new(1, None);
        let request = desk.token.request(Role::AGENT, String::new());
        let stored = desk.records.remove_token(&request.id).unwrap();
        let ended = |id: &str| StoredToken {
            ends: 1000,
            id: id.to_owned(),
            ..stored.clone()
        };
        desk.records.add_token(ended(&request.id)).unwrap();
        desk.records.forget_ended(1000 + TOLD - 1);
        assert_eq!(desk.join(&key()), Err(JoinRefusal::Ended));
        desk.records.forget_ended(1000 + TOLD);
        assert_eq!(desk.join(&key()), Err(JoinRefusal::Proof));
        for number in 0..MAX_TOKENS {
            desk.records.add_token(ended(&number.to_string())).unwrap();
        }
        assert!(desk.records.add_token(stored.clone()).is_err());
        desk.records.forget_ended(1001);
        desk.records.add_token(stored).unwrap();
    }

    #[test]
    fn a_node_that_renews_again_and_again_does_not_fill_the_records() {
        let mut desk = Desk::new(3, None);
        let [one, other] = [(); 2].map(|()| shown(&desk.join(&key()).unwrap()));
        while desk.renew(&one, &key()).is_ok() {}
        assert_eq!(desk.records.certificates(0).count(), MAX_OF_NODE + 1);
        let why = refusal(desk.renew(&one, &key()));
        assert!(why.contains("32"), "{why}");
        assert!(desk.renew(&other, &key()).is_ok());
        // Revoked ones do not count: the node has joined again.
        let uuid = one.uuid.unwrap();
        let mut token = desk.records.tokens(0).next().unwrap().clone();
        token.uuid = Some(uuid);
        desk.records.revoke(uuid);
        desk.records.add_token(token).unwrap();
        let again = desk.join(&key()).unwrap();
        assert_eq!(again.uuid, uuid);
        assert!(desk.renew(&shown(&again), &key()).is_ok());
    }

    #[test]
    fn of_the_certificates_of_issuers_only_those_in_the_records_are_renewed() {
        let mut desk = Desk::new(2, None);
        let [joined, other] = [(); 2].map(|()| shown(&desk.join(&key()).unwrap()));
        let mut forged = [(); 4].map(|()| joined.clone());
        forged[0].serial = "01:02".to_owned();
        forged[1].uuid = Some(Uuid::from_u128(2));
        forged[2].roles = Role::NETAGENT;
        // Its signer has chosen the serial number, but does not have the key.
        forged[3].der = other.der;
        for forged in &forged {
            let why = refusal(desk.renew(forged, &key()));
            assert!(why.contains("records"), "{why}");
        }
        assert!(desk.renew(&joined, &key()).is_ok());
        // One that the authority itself has issued.
        let issuing = (&desk.issuer, LIFE, der::now());
        assert!(desk.records.renew(&forged[0], false, &key(), issuing).is_ok());
    }

    #[test]
    fn a_renewal_is_repeated_for_the_same_key_until_its_certificate_is_used() {
        let mut desk = Desk::new(1, None);
        let (before, one) = (shown(&desk.join(&key()).unwrap()), key());
        let first = desk.renew(&before, &one).unwrap();
        for _ in 0..100 {
            desk.records.forget_ended(seconds(der::now()));
            assert_eq!(same(&desk.renew(&before, &one).unwrap()), same(&first));
        }
        assert_eq!(desk.records.certificates(0).count(), 2);
        // It is the one that is to be renewed now.
        let second = desk.renew(&shown(&first), &one).unwrap();
        assert_ne!(second.serial, first.serial);
    }

    #[test]
    fn a_revoked_certificate_is_not_renewed_and_stays_revoked_in_restored_records() {
        let mut desk = Desk::new(2, None);
        let joined = desk.join(&key()).unwrap();
        let mut restored = desk.records.clone();
        assert_eq!(desk.records.revoke(joined.uuid), Some(1));
        let why = refusal(desk.renew(&shown(&joined), &key()));
        assert!(why.contains("revoked"), "{why}");
        restored.keep_revoked(&desk.records, 0);
        assert!(restored.revoked().eq([joined.serial.as_str()]));
    }

    #[test]
    fn a_serial_number_that_nobody_could_compare_is_a_fault_of_the_records() {
        let mut records = EnrolmentRecords::default();
        records.check().unwrap();
        records.revoked.insert("no number".to_owned(), 1);
        assert!(matches!(records.check(), Err(BadRequest::Serial(_))));
    }
}
