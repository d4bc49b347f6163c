//! Nodes that join with a token, and certificates that are renewed over a session.
//!
//! ```text
//!  newcomer with ALPN ssntp-join/1 ─▶ a place ─▶ one request ─▶ EnrolmentStore::join ─▶ one answer, the end
//!                                                                  │ calls StoredToken::redeem
//!  session ─ RenewCertificate ─▶ dispatcher ─▶ a channel ─▶ thread ssntp-enrol ─▶ EnrolmentStore::renew ─▶ reply
//! ```
//!
//! A connection with which a node joins keeps its slot of the newcomers from TLS to its end, and no code of sessions
//! runs for it. The store may block, so it is called by these two kinds of threads alone.

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use crossbeam_channel::Receiver;
use log::{Level, info};

use super::environment::Environment;
use super::handle::ServerHandle;
use super::log::{AUDIT, Named};
use super::requests::Renewal;
use crate::join::{JoinAnswer, MAX_REQUEST, message, read_request, receive};
use ssntp_pki::{CertificateInfo, Enrolled, Issuer, JoinRefusal, JoinRequest, SigningRequest, StoredToken};
use ssntp_transport::{Duplex, Halves, Newcomer, drain, locked, refuse, setters, threads, wall_clock};

/// The nodes that may join at a time, and those of one address.
const AT_A_TIME: usize = 64;
const OF_ADDRESS: usize = 16;
/// The time for which a wrong proof has to wait for its answer.
const DELAY: Duration = Duration::from_secs(1);
/// The time for which the node may read after the answer.
const LINGER: Duration = Duration::from_secs(1);
/// The number of renewals that wait for the thread. Further ones are refused, and the client asks again later.
pub(super) const RENEWALS: usize = 256;

/// Decides about a join with the stored token, and with the certificate that the same key has got for it before.
pub type Redeem<'a> = dyn FnMut(&mut StoredToken, Option<&Enrolled>) -> Result<Enrolled, JoinRefusal> + 'a;

/// Where a server keeps tokens and the certificates of nodes. Several servers may share one.
///
/// # Threads
/// Several threads call it at once, and no dispatcher does. It may block; a second or so, because a node waits.
pub trait EnrolmentStore: Send + Sync {
    /// Calls `redeem` with the token `id`, and with the certificate that was issued for it to the same `key`
    /// ([`Enrolled::token`], [`Enrolled::key`]), if there is one. If that succeeds, stores the changed token and the
    /// certificate in one step, and returns the certificate. `redeem` may be called again with other values,
    /// if another server has changed them meanwhile.
    ///
    /// # Errors
    /// [`JoinRefusal::Proof`] if there is no such token; the error of `redeem`, and nothing is stored;
    /// [`JoinRefusal::Unavailable`] if it is not known whether both are stored.
    fn join(&self, id: &str, key: &str, redeem: &mut Redeem<'_>) -> Result<Enrolled, JoinRefusal>;

    /// Stores the certificate that follows `before`, before the node gets it. The certificate `before` stays
    /// valid until its end.
    ///
    /// # Errors
    /// [`JoinRefusal::NotRenewable`], for example if `before` is to be revoked; [`JoinRefusal::Unavailable`].
    fn renew(&self, before: &CertificateInfo, enrolled: &Enrolled) -> Result<(), JoinRefusal>;
}

/// Lets nodes join with tokens, and renews their certificates over their sessions: see
/// [`ServerConfig::enrol`](super::ServerConfig::enrol).
pub struct Enrolment {
    issuer: Issuer,
    store: Box<dyn EnrolmentStore>,
    lifetime: Duration,
    /// The hosts of the nodes that join at present.
    hosts: Mutex<Vec<Option<IpAddr>>>,
}

impl fmt::Debug for Enrolment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Enrolment({:?})", self.issuer)
    }
}

impl Enrolment {
    /// Issues the certificates of nodes with this issuer. At most 64 nodes join at a time, and 16 from one
    /// address, each in a slot of [`max_handshakes`](super::ServerConfig::max_handshakes). Further ones are told
    /// to try again.
    pub fn new(issuer: Issuer, store: impl EnrolmentStore + 'static) -> Self {
        Self {
            issuer,
            store: Box::new(store),
            lifetime: Duration::from_secs(30 * 86_400),
            hosts: Mutex::default(),
        }
    }

    /// The facts in the certificate of the issuer, such as its end.
    pub fn issuer(&self) -> &CertificateInfo {
        self.issuer.info()
    }

    setters! {
        /// The lifetime of the certificates. Default: 30 days.
        lifetime: Duration;
    }

    /// Serves one connection with which a node joins, until its end.
    pub(super) fn serve(
        &self,
        environment: &Environment,
        newcomer: &Arc<Newcomer>,
        mut halves: Halves,
        deadline: Instant,
    ) {
        let place = Place::take(&self.hosts, newcomer.peer().host());
        let request = match &place {
            Some(_) => receive(&mut halves, MAX_REQUEST, deadline),
            None => Ok(Err(JoinRefusal::Busy)),
        };
        let decided = match request {
            Ok(request) => request.and_then(|yaml| self.join(&yaml, wall_clock())),
            Err(e) => {
                let is_late = e.kind() == io::ErrorKind::TimedOut;
                environment.refused(newcomer, if is_late { "timeout" } else { "lost" });
                return environment.log_newcomer(newcomer, Level::Info, "no join", "", &e);
            }
        };
        match &decided {
            Ok(enrolled) => {
                environment.handshakes.enrolled("joined");
                let peer = newcomer.peer();
                info!(target: AUDIT, "joined: {}: {peer}, token {}", shown(enrolled), enrolled.token);
            }
            Err(why) => {
                environment.handshakes.enrolled(why.word());
                environment.log_newcomer(newcomer, Level::Warn, "no join", "", why);
                if *why == JoinRefusal::Proof {
                    // A wait for the peer and no sleep, so that this newcomer is cut if another needs the slot.
                    drain(&*halves.stream, DELAY);
                }
            }
        }
        let answer = JoinAnswer::new(decided.as_ref().map(|enrolled| enrolled.chain.clone()));
        refuse(&mut halves, Some(message(&answer)), LINGER);
    }

    /// Decides about a request.
    fn join(&self, yaml: &[u8], now: SystemTime) -> Result<Enrolled, JoinRefusal> {
        let request: JoinRequest = read_request(yaml).map_err(JoinRefusal::Request)?;
        let signing = SigningRequest::from_pem(&request.request)?;
        let issuing = (&self.issuer, self.lifetime, now);
        self.store
            .join(&request.id, signing.digest(), &mut |token, before| {
                token.redeem(&request, &signing, before, issuing)
            })
    }

    /// Issues the certificate that follows `before` for the key of a signing request.
    fn renew(
        &self,
        before: &CertificateInfo,
        request: &[u8],
        now: SystemTime,
    ) -> Result<Enrolled, JoinRefusal> {
        let refused = |why: &str| Err(JoinRefusal::NotRenewable(why.to_owned()));
        let Some(uuid) = before.uuid else {
            return refused("a certificate that is bound to no UUID is not renewed over a session");
        };
        let left = before.not_after.duration_since(now).unwrap_or_default();
        let life = before
            .not_after
            .duration_since(before.not_before)
            .unwrap_or_default();
        if left > life / 2 {
            return refused("the certificate is valid for more than half of its life");
        }
        let signing = SigningRequest::from_pem(&String::from_utf8_lossy(request))?;
        let enrolled = self.issuer.issue(&signing, before.roles, uuid, self.lifetime)?;
        self.store.renew(before, &enrolled)?;
        Ok(enrolled)
    }
}

/// One of the nodes that join at present, by its host.
struct Place<'a>(&'a Mutex<Vec<Option<IpAddr>>>, Option<IpAddr>);

impl<'a> Place<'a> {
    /// `None` if too many nodes join.
    fn take(hosts: &'a Mutex<Vec<Option<IpAddr>>>, host: Option<IpAddr>) -> Option<Self> {
        let mut present = locked(hosts);
        let of_host = present.iter().filter(|other| **other == host).count();
        (present.len() < AT_A_TIME && of_host < OF_ADDRESS).then(|| present.push(host))?;
        Some(Self(hosts, host))
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut present = locked(self.0);
        let own = present.iter().position(|host| *host == self.1);
        own.map(|own| present.swap_remove(own));
    }
}

/// A certificate in the log.
fn shown(enrolled: &Enrolled) -> impl fmt::Display {
    format!(
        "UUID {} ({}), serial {}",
        enrolled.uuid, enrolled.roles, enrolled.serial
    )
}

/// Starts the thread that renews certificates. It ends when the sender of the returned channel is dropped.
pub(super) fn start(
    enrolment: Arc<Enrolment>,
    jobs: Receiver<Renewal>,
    handle: ServerHandle,
) -> io::Result<JoinHandle<()>> {
    threads::spawn("ssntp-enrol", move || {
        for (session, request) in jobs {
            let before = session.certificate();
            let renewed = enrolment.renew(before, request.payload(), wall_clock());
            let word = renewed.as_ref().map_or_else(JoinRefusal::word, |_| "renewed");
            handle.environment.handshakes.enrolled(word);
            match &renewed {
                Ok(enrolled) => info!(target: AUDIT, "renewed: {}: {}", shown(enrolled), Named(before)),
                Err(why) => info!(target: AUDIT, "not renewed: {session}: {}: {why}", Named(before)),
            }
            // A client that has gone meanwhile asks again in its next session.
            let _ = handle.with(move |cx| match renewed {
                Ok(enrolled) => cx.reply(&request, enrolled.chain),
                Err(why) => cx.refuse(&request, &why.to_string()),
            });
        }
    })
}
