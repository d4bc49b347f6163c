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

use crate::error::BadRequest;
use crate::inspect::CertificateInfo;
use crate::issuer::{Enrolled, Issuer, SigningRequest, digest};
use crate::list::Serial;
use crate::token::{JoinRefusal, JoinRequest, StoredToken};

/// The maximum number of tokens.
const MAX_TOKENS: usize = 1024;
/// The seconds for which a token is known after its end, so that a node that is late is told so.
const TOLD: u64 = 86_400;
/// The maximum number of valid certificates of a node. One that loses an answer to a renewal gets the same certificate
/// again, so it has two or three.
const MAX_OF_NODE: usize = 32;
/// The maximum number of renewals whose answers are kept, at some 1.5 KB each, because schedulers read all records again
/// and again. A node that has lost an answer asks again within an hour, and if it was dropped, gets one more certificate.
const MAX_REPEATED: usize = 64;

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
    /// The reason: there is one with this id, or there are too many.
    pub fn add_token(&mut self, token: StoredToken) -> Result<(), String> {
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
    /// the same certificate. If another issuer has signed that, or its chain was dropped, the node gets another one for
    /// the same UUID. The token counts once.
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
        let its = self.certificates.iter();
        let its = its.filter(|one| one.token == request.id && one.key == signing.digest());
        let before = its.clone().next();
        token.decide(request, before, now)?;
        if its.clone().any(|one| self.revoked.contains_key(&one.serial)) {
            return Err(JoinRefusal::Used);
        }
        if let Some(again) = its.clone().find(|one| issuer.has_issued(one)) {
            return Ok(again.clone());
        }
        // Otherwise one node could fill the records.
        if its.count() >= MAX_OF_NODE {
            return Err(JoinRefusal::Used);
        }
        let uuid = before.map(|before| before.uuid).or(token.uuid);
        let mut enrolled = issuer.issue(
            signing,
            request.roles,
            uuid.unwrap_or_else(Uuid::new_v4),
            lifetime,
        )?;
        enrolled.token.clone_from(&request.id);
        token.uses_left -= u32::from(before.is_none());
        self.certificates.push(enrolled.clone());
        Ok(enrolled)
    }

    /// Gives a node the certificate that follows `before`, which stays valid until its end. A node that lost the answer
    /// asks again with the same key, and gets the same certificate, until it uses it; but never one of another issuer,
    /// whose successor may have come because it was stolen. If an issuer has signed `before`, and not the authority
    /// itself, the records have to have it: whoever steals an issuer signs what no record has. He chooses the serial
    /// number, the UUID and the roles, but does not have the key of a record.
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
            let has_key = one.key.is_empty() || key.as_ref() == Some(&one.key);
            (&one.serial, one.uuid, one.roles) == (&before.serial, uuid, before.roles) && has_key
        };
        if is_of_issuer && !self.certificates.iter().any(is_before) {
            return refused("the records lack the certificate; the node needs a new token");
        }
        let valid = self.certificates.iter();
        let valid = valid.filter(|one| one.uuid == uuid && !self.revoked.contains_key(&one.serial));
        let is_answer = |one: &&Enrolled| {
            let is_renewal = one.token.is_empty() && one.roles == before.roles && one.serial != before.serial;
            is_renewal && one.key == signing.digest() && issuer.has_issued(one)
        };
        if let Some(again) = valid.clone().find(is_answer) {
            return Ok(again.clone());
        }
        // Otherwise one node could fill the records.
        if valid.count() >= MAX_OF_NODE {
            return refused(&format!("the node has {MAX_OF_NODE} certificates that are valid"));
        }
        let renewed = issuer.issue(signing, before.roles, uuid, lifetime)?;
        self.certificates.push(renewed.clone());
        // Newest first. The one that is renewed is in use, so the node has its answer.
        let mut kept = 0;
        for one in self
            .certificates
            .iter_mut()
            .rev()
            .filter(|one| one.token.is_empty())
        {
            if one.serial == before.serial || kept == MAX_REPEATED {
                one.chain.clear();
            }
            kept += usize::from(!one.chain.is_empty());
        }
        Ok(renewed)
    }

    /// Revokes all certificates of a node, and its unused token. Returns the number of certificates that were
    /// not revoked before; `None` if it has none.
    pub fn revoke(&mut self, node: Uuid) -> Option<usize> {
        let mut its = self.certificates.iter().filter(|one| one.uuid == node).peekable();
        its.peek()?;
        let added = its.map(|one| self.revoked.insert(one.serial.clone(), one.ends));
        let added = added.filter(Option::is_none).count();
        self.tokens.retain(|_, token| token.uuid != Some(node));
        Some(added)
    }

    /// Keeps the certificates revoked that were so before.
    pub fn keep_revoked(&mut self, before: &Self) {
        let revoked = before.revoked.iter();
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
        for one in &mut self.certificates {
            let token = self.tokens.get(&one.token);
            if !one.token.is_empty() && token.is_none_or(|token| token.ends <= now) {
                one.chain.clear();
            }
        }
    }

    /// Empties the oldest chain, to make room: its node cannot get the same certificate again. False if there is none
    /// left.
    pub fn drop_a_chain(&mut self) -> bool {
        let mut certificates = self.certificates.iter_mut();
        let oldest = certificates.find(|one| !one.chain.is_empty());
        oldest.map(|one| one.chain.clear()).is_some()
    }
}

#[cfg(test)]
mod tests {
    use ssntp_transport::Address;

    use super::*;
    use crate::der;
    use crate::issuer::seconds;
    use crate::pem::{Content, sections};
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

    /// A node's certificate, whose life is over.
    fn shown(enrolled: &Enrolled) -> CertificateInfo {
        let chain = sections(enrolled.chain.as_bytes()).unwrap();
        let Content::Certificate(own) = &chain[0].content else {
            panic!("no certificate");
        };
        let mut info = CertificateInfo::from_der(own).unwrap();
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
    fn the_same_key_gets_the_same_certificate_again_and_another_key_gets_none() {
        let own = Uuid::from_u128(9);
        let mut desk = Desk::new(5, Some(own));
        assert_eq!(desk.uses_left(), 1, "one node alone has the UUID");
        let (one, other) = (key(), key());
        let first = desk.join(&one).unwrap();
        assert_eq!((first.uuid, first.token.as_str()), (own, desk.token.id()));
        assert_eq!(desk.join(&one), Ok(first));
        assert_eq!(desk.join(&other), Err(JoinRefusal::Used));
        assert_eq!(desk.records.certificates(0).count(), 1);
    }

    #[test]
    fn a_join_that_is_repeated_after_the_issuer_was_replaced_gets_a_certificate_of_the_new_issuer() {
        let mut desk = Desk::new(2, None);
        let one = key();
        let first = desk.join(&one).unwrap();
        let replaced = desk.replace_issuer("two");
        let second = desk.join(&one).unwrap();
        assert!(
            second.chain.ends_with(&desk.issuer.info().to_pem()),
            "{}",
            second.chain
        );
        assert_eq!((first.uuid, first.roles), (second.uuid, second.roles));
        assert_ne!(first.serial, second.serial);
        // It is the same node, and one more question gets no third certificate.
        assert_eq!(desk.join(&one).as_ref(), Ok(&second));
        assert_eq!(desk.uses_left(), 1);
        // Also at another server, which has the other issuer.
        desk.issuer = replaced;
        assert_eq!(desk.join(&one), Ok(first));
        assert_eq!(desk.records.revoke(second.uuid), Some(2));
        assert_eq!(desk.join(&one), Err(JoinRefusal::Used));
        desk.replace_issuer("three");
        assert_eq!(desk.join(&one), Err(JoinRefusal::Used));
        desk.join(&key()).unwrap();
        assert_eq!(desk.uses_left(), 0);
    }

    #[test]
    fn a_node_whose_chain_was_dropped_gets_another_certificate_for_its_uuid_but_not_any_number() {
        let mut desk = Desk::new(1, None);
        let one = key();
        let first = desk.join(&one).unwrap();
        assert!(desk.records.drop_a_chain() && !desk.records.drop_a_chain());
        let second = desk.join(&one).unwrap();
        assert_ne!(first.serial, second.serial);
        assert_eq!((first.uuid, desk.uses_left()), (second.uuid, 0));
        assert_eq!(desk.join(&key()), Err(JoinRefusal::Used));
        while desk.join(&one).is_ok() {
            desk.records.drop_a_chain();
        }
        assert_eq!(desk.records.certificates(0).count(), MAX_OF_NODE);
        desk.records.revoke(first.uuid);
        assert_eq!(desk.join(&one), Err(JoinRefusal::Used));
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
        let first = desk.join(&key()).unwrap();
        desk.records.revoke(first.uuid).unwrap();
        let ends = desk.records.tokens(0).next().unwrap().ends;
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
        desk.records.revoke(uuid);
        let again = desk.records.tokens.values_mut().next().unwrap();
        again.uuid = Some(uuid);
        let again = desk.join(&key()).unwrap();
        assert_eq!(again.uuid, uuid);
        assert!(desk.renew(&shown(&again), &key()).is_ok());
    }

    #[test]
    fn of_the_certificates_of_issuers_only_those_in_the_records_are_renewed() {
        let mut desk = Desk::new(2, None);
        let [joined, other] = [(); 2].map(|()| shown(&desk.join(&key()).unwrap()));
        // What a renewal needs of a record does not go with the chain.
        while desk.records.drop_a_chain() {}
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
        // The records of early versions lack the key.
        desk.records.certificates[0].key.clear();
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
            assert_eq!(desk.renew(&before, &one).as_ref(), Ok(&first));
        }
        assert_eq!(desk.records.certificates(0).count(), 2);
        // Not that of an issuer which was replaced, perhaps because it was stolen, and not the one that is to be renewed.
        let replaced = desk.replace_issuer("two");
        let second = desk.renew(&before, &one).unwrap();
        assert_ne!(second.serial, first.serial);
        desk.issuer = replaced;
        let third = desk.renew(&shown(&first), &one).unwrap();
        assert_ne!(third.serial, first.serial);
        let kept = desk
            .records
            .certificates(0)
            .map(|(_, one, _)| !one.chain.is_empty());
        assert!(kept.eq([true, false, true, true]));
    }

    #[test]
    fn the_answers_of_old_renewals_give_way_to_newer_ones() {
        let mut desk = Desk::new(3, None);
        let mut asked = Vec::new();
        for _ in 0..3 {
            let before = shown(&desk.join(&key()).unwrap());
            asked.extend((0..MAX_OF_NODE - 1).map(|_| (before.clone(), key())));
        }
        let renew = |desk: &mut Desk, (before, key): &(_, _)| desk.renew(before, key).unwrap();
        let given: Vec<_> = asked.iter().map(|it| renew(&mut desk, it)).collect();
        let dropped = given.len() - MAX_REPEATED;
        for (at, given) in given.iter().enumerate().skip(dropped) {
            assert_eq!(renew(&mut desk, &asked[at]), *given, "{at}");
        }
        let is_kept = |(_, one, _): &(u64, &Enrolled, bool)| one.token.is_empty() && !one.chain.is_empty();
        assert_eq!(desk.records.certificates(0).filter(is_kept).count(), MAX_REPEATED);
    }

    #[test]
    fn a_revoked_certificate_is_not_renewed_and_stays_revoked_in_restored_records() {
        let mut desk = Desk::new(2, None);
        let joined = desk.join(&key()).unwrap();
        let mut restored = desk.records.clone();
        assert_eq!(desk.records.revoke(joined.uuid), Some(1));
        let why = refusal(desk.renew(&shown(&joined), &key()));
        assert!(why.contains("revoked"), "{why}");
        restored.keep_revoked(&desk.records);
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
