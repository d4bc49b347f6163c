//! A node that joins a cluster with a token, and whose certificate is renewed over its session.
//!
//! ```text
//!  join.key ─▶ TLS to a server with the token's authority ─▶ request, answer ─▶ ca.pem ─▶ node.pem ─▶ no join.key
//!  node.pem at two thirds of its life ─▶ renew.key ─▶ RenewCertificate over the session ─▶ node.pem ─▶ no renew.key
//!                                                                                            └─▶ ClientHandle::renew
//! ```
//!
//! Each file is written in one step, in this order, so a process that ends between two steps joins again with the same
//! key, and gets the same certificate; so does one that renews. `node.pem` holds the certificate, its issuer's and the key, so a renewal
//! replaces all three in one step.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::slice;
use std::time::{Duration, Instant};

use crossbeam_channel::never;
use log::{info, warn};
use uuid::Uuid;

use super::Client;
use super::config::ClientConfig;
use super::error::ClientError;
use super::event::LOG;
use super::handle::ClientHandle;
use super::node_files::{NodeFiles, key_at, write};
use crate::jitter::random_share;
use crate::join::{JoinAnswer, MAX_ANSWER, message, receive};
use crate::proto::{Command, Frame};
use crate::request::RequestError;
use crate::wire::JOIN_PROTOCOL;
use ssntp_pki::{
    CertificateInfo, Error, Fault, Identity, JoinRefusal, JoinToken, Role, ServerCheck, Trust,
    signing_request,
};
use ssntp_transport::memory::MemoryListener;
use ssntp_transport::tls::TlsError;
use ssntp_transport::{
    BufferPool, Cancel, Outgoing, Target, TcpOptions, after, deadline, excerpt, left, now, setters,
    wall_clock,
};

/// The longest time for one connection with which a node joins.
const ATTEMPT: Duration = Duration::from_secs(15);
/// The longest pause between two attempts to join.
const PAUSE: Duration = Duration::from_secs(5);
/// The shortest pause between two attempts to renew.
const SHORTEST_PAUSE: Duration = Duration::from_secs(10);
/// The longest pause between two attempts to renew.
const LONGEST_PAUSE: Duration = Duration::from_secs(3600);
/// The maximum number of attempts to renew over a session that another program takes over.
const ATTEMPTS: u32 = 10;
/// The time that a server has to answer a RenewCertificate.
const ANSWER: Duration = Duration::from_secs(30);

impl NodeFiles {
    /// The configuration of a client with these files, which [renews](ClientConfig::renewed_in) its certificate.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn client_config(&self) -> Result<ClientConfig, Error> {
        let (identity, trust) = self.load()?;
        Ok(ClientConfig::new(identity, trust).renewed_in(self.clone()))
    }

    /// Renews the certificate if two thirds of its life are over, for a program whose own client does not
    /// [do so](ClientConfig::renewed_in). Connects with these files and what `set` adds to them; a session that the
    /// program has with the same UUID is taken over, and the program has to connect again. False if it is too early.
    /// Blocks until the server has answered, and for the disk.
    ///
    /// # Errors
    /// [`JoinError`]. With [`Fault::Expired`] the node needs a new token.
    pub fn renew(&self, set: impl FnOnce(ClientConfig) -> ClientConfig) -> Result<bool, JoinError> {
        let (before, trust) = self.load()?;
        if !due_in(before.info(), 0.0).is_zero() {
            return Ok(false);
        }
        let client = Client::connect(set(ClientConfig::new(before.clone(), trust.clone())))?;
        // A program with the same UUID takes its session back meanwhile. The same key gets the same certificate again.
        let mut attempts = 1..ATTEMPTS;
        loop {
            match self.follow(&client, &before, &trust) {
                Err(JoinError::NotRenewed(RequestError::Disconnected | RequestError::NotConnected))
                    if attempts.next().is_some() =>
                {
                    client.wait_connected(Some(ANSWER))?;
                }
                outcome => return outcome.map(|_| true),
            }
        }
    }

    /// Asks the server for the certificate that follows `before`, for a new key, and saves both. The key is kept until
    /// then, because the server gives one key the same certificate again, and one node only so many.
    fn follow(&self, client: &ClientHandle, before: &Identity, trust: &Trust) -> Result<Identity, JoinError> {
        let pending = self.renewal_key();
        let key = key_at(&pending)?;
        let frame = Frame::with_payload(Command::RENEW_CERTIFICATE, signing_request(&key, "the new key")?);
        let answer = client.request(frame, ANSWER)?;
        let chain = String::from_utf8_lossy(answer.payload_bytes());
        let renewed = self.save(&chain, &key, trust, before.roles(), before.uuid())?;
        let _ = fs::remove_file(pending);
        Ok(renewed)
    }

    /// Replaces certificate and key in one step, if the certificate is what was asked for: `roles`, and `uuid` if it is
    /// known.
    fn save(
        &self,
        chain: &str,
        key: &str,
        trust: &Trust,
        roles: Role,
        uuid: Option<Uuid>,
    ) -> Result<Identity, JoinError> {
        let text = format!("{chain}{key}");
        let issued = Identity::from_pem(text.as_bytes(), "the server's answer").map_err(|why| match why {
            Error::Content {
                fault: fault @ (Fault::NotYetValid { .. } | Fault::Expired { .. }),
                ..
            } => JoinError::Clock(fault),
            why => why.into(),
        })?;
        let verified = trust.verify(issued.chain());
        let info = verified.map_err(|fault| JoinError::Answer(fault.to_string()))?;
        if info.roles != roles || info.uuid.is_none() || uuid.is_some() && info.uuid != uuid {
            let why = format!(
                "its certificate is for the roles {} and the UUID {:?}",
                info.roles, info.uuid
            );
            return Err(JoinError::Answer(why));
        }
        write(&self.certificate(), &text)?;
        Ok(issued)
    }
}

/// A node's joining with a token.
///
/// ```no_run
/// use ssntp::client::{Client, Join};
/// use ssntp::Role;
///
/// let token = "ssntp://scheduler.example:8888/?ca=…&id=…&secret=…".parse()?;
/// let files = Join::new(token, "/var/lib/ssntp").roles(Role::AGENT).run()?;
/// let client = Client::connect(files.client_config()?.address("scheduler.example:8888".parse()?))?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Join {
    token: JoinToken,
    files: NodeFiles,
    target: Target,
    server_name: Option<String>,
    roles: Role,
    limit: Duration,
}

impl Join {
    /// Joins with this token as an agent, and keeps the node's files in this directory, which is created if necessary.
    pub fn new(token: JoinToken, directory: impl Into<PathBuf>) -> Self {
        Self {
            target: Target::Address(token.address().clone()),
            token,
            files: NodeFiles::new(directory),
            server_name: None,
            roles: Role::AGENT,
            limit: Duration::from_secs(120),
        }
    }

    setters! {
        /// The roles that the node wants to have; the token has to be for them. Default: [`Role::AGENT`].
        roles: Role;

        /// The DNS name or IP address that the server's certificate has to hold, so that sessions will be possible
        /// with it. Default: the host of the token's address.
        server_name as Some: impl Into<String>;

        /// The longest time for all attempts together. Default: 120 s.
        limit: Duration;
    }

    /// Connects to a server in this process in place of the token's address. Default: none.
    #[must_use]
    pub fn connect_in_memory(mut self, listener: &MemoryListener) -> Self {
        self.target = Target::Memory(listener.clone());
        self
    }

    /// Joins, unless the directory holds a certificate that is valid: then nothing is sent, so a program may do this
    /// at each start. Tries again while the server cannot be reached or is busy. Blocks for at most the limit, and
    /// for the disk.
    ///
    /// # Errors
    /// [`JoinError`]. The key of the attempt stays in the directory for the next one.
    pub fn run(&self) -> Result<NodeFiles, JoinError> {
        let files = &self.files;
        match files.load() {
            Ok((_, trust)) => {
                let mut digests = trust.authorities().iter().flat_map(CertificateInfo::key_digest);
                return if digests.any(|digest| digest == *self.token.authority()) {
                    Ok(files.clone())
                } else {
                    Err(JoinError::OtherAuthority(files.certificate()))
                };
            }
            Err(Error::Read { source, .. }) if source.kind() == io::ErrorKind::NotFound => {}
            Err(Error::Content {
                fault: fault @ Fault::Expired { .. },
                ..
            }) => {
                warn!(target: LOG, "{}: {fault}; the node needs a new token", files.certificate().display());
            }
            Err(e) => return Err(e.into()),
        }
        let key = key_at(&files.pending_key())?;
        let signing = signing_request(&key, "the new key")?;
        let request = message(&self.token.request(self.roles, signing));
        let (end, mut pause, mut is_told) = (deadline(self.limit), PAUSE / 32, false);
        let (chain, trust) = loop {
            let limit = left(end)?.min(ATTEMPT);
            let addresses = self.target.addresses(limit, &Cancel::new());
            match addresses
                .map_err(Into::into)
                .and_then(|all| self.attempt(all, &request))
            {
                Ok(joined) => break joined,
                Err(failed) if !failed.may_retry() || after(now(), pause) >= end => return Err(failed),
                Err(failed) => {
                    if !is_told {
                        let limit = left(end)?.as_secs();
                        warn!(target: LOG, "{}: not joined yet: {failed}; it is tried again for {limit} s", self.target);
                    }
                    is_told = true;
                    // Nothing is ever received, so this is a pause.
                    let _ = never::<()>().recv_timeout(pause.mul_f64(0.5 + random_share() / 2.0));
                }
            }
            pause = (pause * 2).min(PAUSE);
        };
        write(&files.authority(), &trust.authorities()[0].to_pem())?;
        files.save(&chain, &key, &trust, self.roles, None)?;
        let _ = fs::remove_file(files.pending_key());
        Ok(files.clone())
    }

    /// Sends the request at one address after the other, with a time for each, until a server of the token's
    /// authority has decided.
    fn attempt(
        &self,
        addresses: Vec<(Target, Duration)>,
        request: &Outgoing,
    ) -> Result<(String, Trust), JoinError> {
        let mut failed = Vec::new();
        for (address, limit) in addresses {
            match self.meet(&address, request, deadline(limit)) {
                Ok(joined) => return Ok(joined),
                // The servers behind a name have one store, so this one has decided.
                Err(refused @ JoinError::Refused { .. }) => return Err(refused),
                Err(later) => failed.push(later),
            }
        }
        Err(match failed.len() {
            0 => JoinError::Lost(io::ErrorKind::NotFound.into()),
            1 => failed.remove(0),
            _ => JoinError::Addresses(failed),
        })
    }

    /// Sends the request over one connection. Returns the certificate with its issuer's, and trust in the authority.
    fn meet(&self, address: &Target, request: &Outgoing, end: Instant) -> Result<(String, Trust), JoinError> {
        let stream = address.connect(&TcpOptions::default(), left(end)?, &Cancel::new())?;
        let name = self.server_name.as_deref().unwrap_or(self.target.server_name());
        // The certificates are checked below. TLS has checked that the server holds the key of the first one.
        let connector = ServerCheck::Nothing.connector(None)?.protocol(JOIN_PROTOCOL);
        let mut secured = connector.connect(stream, name, &BufferPool::new(), end)?;
        // Before a byte is sent.
        let trust = Trust::pinned(&secured.peer, self.token.authority(), name, wall_clock())?;
        if secured.alpn.as_deref() != Some(JOIN_PROTOCOL) || secured.version != "TLSv1.3" {
            return Err(JoinError::NotOffered);
        }
        secured.halves.stream.set_write_timeout(Some(left(end)?))?;
        secured.halves.transmit.transmit(slice::from_ref(request))?;
        let answer = receive::<JoinAnswer>(&mut secured.halves, MAX_ANSWER, end)?;
        let _ = secured.halves.transmit.finish();
        let answer = answer.map_err(|why| JoinError::Answer(why.to_string()))?;
        if answer.refused.is_empty() {
            return Ok((answer.certificate, trust));
        }
        let [word, detail] = [answer.refused, answer.detail].map(|text| excerpt(text).to_string());
        Err(if JoinRefusal::LATER.contains(&&*word) {
            JoinError::Later(detail)
        } else {
            JoinError::Refused { word, detail }
        })
    }
}

/// The reason why a node has not joined, or its certificate is not renewed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JoinError {
    /// A file of the node cannot be read or written, or the certificate cannot be used.
    #[error(transparent)]
    Files(#[from] Error),
    /// The directory holds a valid certificate of another authority than the token's: the cluster has a new authority, or
    /// it is another cluster.
    #[error(
        "{}: another authority than the token's has issued this node's certificate; remove it if the cluster has a new \
         authority, or give the node another directory",
        .0.display()
    )]
    OtherAuthority(PathBuf),
    /// The server cannot be reached, or the connection was lost.
    #[error("cannot reach the server: {0}")]
    Lost(#[from] io::Error),
    /// TLS failed.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The server has not proved that it is one of the token's authority. Nothing was sent to it.
    #[error("the server is not trusted: {0}")]
    Server(#[from] Fault),
    /// The server lets no node join.
    #[error("the server lets no node join")]
    NotOffered,
    /// The server gives no certificate at present: too many nodes join, its issuer has to be replaced, or it cannot write
    /// its records, or does not know whether it has. The same key may ask again.
    #[error("the server gives no certificate at present: {0}")]
    Later(String),
    /// The server refuses the node.
    #[error("the server refuses this node: {detail}")]
    Refused {
        /// The word for the reason, see [`JoinRefusal::word`].
        word: String,
        /// The reason.
        detail: String,
    },
    /// The new certificate is not valid by the clock of this host. Once the clock is right, the same token gives the
    /// same certificate again.
    #[error("the clock of this host is not that of the server: {0}")]
    Clock(Fault),
    /// There is no session over which the certificate could be renewed.
    #[error(transparent)]
    Session(#[from] ClientError),
    /// The server does not renew the certificate.
    #[error(transparent)]
    NotRenewed(#[from] RequestError),
    /// The server's answer cannot be used.
    #[error("the server's answer cannot be used: {0}")]
    Answer(String),
    /// The attempt failed at each address of the server's name.
    #[error("{}", failures(.0))]
    Addresses(Vec<JoinError>),
}

/// The texts of failures, each once.
fn failures(failed: &[JoinError]) -> String {
    let mut texts: Vec<_> = failed.iter().map(JoinError::to_string).collect();
    let mut known = HashSet::new();
    texts.retain(|text| known.insert(text.clone()));
    texts.join("; ")
}

impl JoinError {
    /// True if the same attempt may succeed later: the server was not reached, or has not decided.
    pub fn may_retry(&self) -> bool {
        match self {
            Self::Lost(_) | Self::Later(_) | Self::Tls(TlsError::Io(_) | TlsError::Deadline) => true,
            Self::Addresses(failed) => failed.iter().any(Self::may_retry),
            _ => false,
        }
    }
}

/// Renews the certificate of a client until the client ends, on a thread of its own.
pub(super) fn renew_until_closed(client: &ClientHandle, files: &NodeFiles) {
    let ended = client.state().cancel.done().clone();
    let name = format!("{} ({})", client.uuid(), client.role());
    // Chosen once, so that nodes which have joined together do not ask together.
    let share = random_share();
    let mut wait = due_in(client.newest().0.info(), share);
    while ended.recv_timeout(wait).is_err_and(|e| e.is_timeout()) {
        // The clock may have been set meanwhile, or the files replaced by hand.
        wait = due_in(client.newest().0.info(), share);
        if !wait.is_zero() {
            continue;
        }
        if client.wait_connected(Some(LONGEST_PAUSE)).is_err() {
            return;
        }
        let (identity, trust) = client.newest();
        let certificate = identity.info();
        let left = certificate
            .not_after
            .duration_since(wall_clock())
            .unwrap_or_default();
        let renewed = files.follow(client, &identity, &trust).and_then(|renewed| {
            // With the newest trust, because it may have been replaced meanwhile.
            client.replace(&renewed, None)?;
            Ok(renewed.info().not_after_text())
        });
        match renewed {
            Ok(until) => info!(target: LOG, "{name}: the certificate was renewed, until {until}"),
            Err(_) if left.is_zero() => {
                let ended = certificate.not_after_text();
                warn!(target: LOG, "{name}: the certificate expired at {ended}; this node needs a new token");
            }
            Err(why) => {
                warn!(target: LOG, "{name}: the certificate is not renewed: {why}; it is tried again")
            }
        }
        // A certificate of a short life is not renewed again and again.
        wait = (left / 10)
            .mul_f64(0.5 + share / 2.0)
            .clamp(SHORTEST_PAUSE, LONGEST_PAUSE);
    }
}

/// The time until two thirds of a certificate's life and a little more, at most an hour, after which it is computed
/// again.
fn due_in(certificate: &CertificateInfo, share: f64) -> Duration {
    let life = certificate.not_after.duration_since(certificate.not_before);
    let due = certificate.not_before + life.unwrap_or_default().mul_f64(2.0 / 3.0 + share / 20.0);
    due.duration_since(wall_clock())
        .unwrap_or_default()
        .min(LONGEST_PAUSE)
}

#[cfg(all(test, feature = "issue"))]
mod tests {
    use std::sync::{Arc, OnceLock};

    use ssntp_pki::{CertificateRequest, Enrolled, EnrolmentRecords, node_key};

    use super::*;
    use crate::Server;
    use crate::client::{ClientEvent, SessionEnd};
    use crate::server::{Enrolment, EnrolmentStore};
    use crate::testkit::{Testkit, Tokens};

    #[test]
    fn an_address_that_hangs_or_is_of_another_authority_passes_on_to_the_next() {
        let (kit, other, tokens) = (
            Testkit::new().unwrap(),
            Testkit::new().unwrap(),
            Tokens::default(),
        );
        let serve = |kit: &Testkit| {
            let enrolment = kit.enrolment(&tokens).unwrap();
            Server::start(kit.server_config().unwrap().enrol(enrolment), ()).unwrap()
        };
        let _servers = [serve(&kit), serve(&other)];
        let directory = tempfile::tempdir().unwrap();
        let token = kit.token(&tokens, Role::AGENT, 1).unwrap();
        let join = Join::new(token, directory.path());
        let key = node_key().unwrap();
        let request = message(
            &join
                .token
                .request(Role::AGENT, signing_request(&key, "the key").unwrap()),
        );
        // Nobody accepts there.
        let nobody = MemoryListener::new();
        let at = |listener: &MemoryListener, limit| (Target::from(listener), limit);
        let (hangs, long) = (at(&nobody, Duration::from_millis(100)), Duration::from_secs(60));
        let (wrong, good) = (at(other.network(), long), at(kit.network(), long));
        let attempt = |addresses: &[&(Target, Duration)]| {
            join.attempt(addresses.iter().map(|at| (*at).clone()).collect(), &request)
        };
        // If no address serves, the name is not given up for one of them.
        assert!(attempt(&[&wrong, &hangs]).unwrap_err().may_retry());
        let both = attempt(&[&hangs, &wrong]).unwrap_err();
        assert!(
            both.may_retry() && both.to_string().contains("is not trusted"),
            "{both}"
        );
        let alone = attempt(&[&wrong]).unwrap_err();
        assert!(matches!(alone, JoinError::Server(_)), "{alone}");
        assert!(attempt(&[&hangs, &wrong, &good]).is_ok());
    }

    /// A store that cannot write.
    struct Full;

    impl EnrolmentStore for Full {
        fn update(
            &self,
            _: Option<&str>,
            _: &mut dyn FnMut(&mut EnrolmentRecords) -> Result<Enrolled, JoinRefusal>,
        ) -> Result<Enrolled, JoinRefusal> {
            Err(JoinRefusal::Unavailable)
        }
    }

    #[test]
    fn a_server_that_cannot_store_the_certificate_does_not_refuse_the_node() {
        let kit = Testkit::new().unwrap();
        let issuer = kit.authority().issuer("i", Role::AGENT, 1).unwrap();
        let config = kit.server_config().unwrap().enrol(Enrolment::new(issuer, Full));
        let _server = Server::start(config, ()).unwrap();
        let token = kit.token(&Tokens::default(), Role::AGENT, 1).unwrap();
        let signing = signing_request(&node_key().unwrap(), "the key").unwrap();
        let request = message(&token.request(Role::AGENT, signing));
        let join = Join::new(token, "unused");
        let there = (Target::from(kit.network()), Duration::from_secs(60));
        let later = join.attempt(vec![there], &request).unwrap_err();
        assert!(
            matches!(later, JoinError::Later(_)) && later.may_retry(),
            "{later}"
        );
        assert!(!later.to_string().contains("refuses"), "{later}");
    }

    /// A store that replaces the trust of the client which renews.
    struct Replacing(Tokens, Arc<OnceLock<(ClientHandle, Trust)>>);

    impl EnrolmentStore for Replacing {
        fn update(
            &self,
            token: Option<&str>,
            change: &mut dyn FnMut(&mut EnrolmentRecords) -> Result<Enrolled, JoinRefusal>,
        ) -> Result<Enrolled, JoinRefusal> {
            if token.is_none() {
                let (client, trust) = self.1.wait();
                let replaced = client.renew(&client.newest().0, trust);
                replaced.map_err(|why| JoinRefusal::Issuer(why.to_string()))?;
            }
            self.0.update(token, change)
        }
    }

    #[test]
    fn a_trust_that_is_replaced_during_a_renewal_stays() {
        let (kit, other, tokens) = (
            Testkit::new().unwrap(),
            Testkit::new().unwrap(),
            Tokens::default(),
        );
        let client_of_store = Arc::default();
        let store = Replacing(tokens.clone(), Arc::clone(&client_of_store));
        let issuer = kit.authority().issuer("i", Role::AGENT, 1).unwrap();
        let enrolment = Enrolment::new(issuer, store).lifetime(Duration::from_secs(200));
        let _server = Server::start(kit.server_config().unwrap().enrol(enrolment), ()).unwrap();
        let token = kit.token(&tokens, Role::AGENT, 1).unwrap();
        let directory = tempfile::tempdir().unwrap();
        let join = Join::new(token, directory.path()).connect_in_memory(kit.network());
        let files = join.run().unwrap();
        let config = files.client_config().unwrap().renewal_spread(Duration::ZERO);
        let client = Client::connect(config.connect_in_memory(kit.network())).unwrap();
        let both = kit.trust().and(&other.trust()).unwrap();
        client_of_store.set((client.handle(), both)).unwrap();
        let is_renewed = |event| {
            let renewed = SessionEnd::Renewed;
            matches!(event, ClientEvent::Disconnected { reason, .. } if reason == renewed)
        };
        assert!(client.iter().any(is_renewed));
        assert_eq!(client.newest().1.authorities().len(), 2);
    }

    #[test]
    fn a_certificate_that_the_clock_of_the_node_refuses_is_not_kept_and_both_times_are_told() {
        let kit = Testkit::new().unwrap();
        let directory = tempfile::tempdir().unwrap();
        let files = NodeFiles::new(directory.path());
        let tomorrow = kit.authority().info().not_before + Duration::from_secs(86_400);
        let request = CertificateRequest::new(Role::AGENT).uuid(Uuid::new_v4());
        let issued = kit.authority().issue(&request.valid_from(tomorrow)).unwrap();
        let saved = files.save(&issued.to_pem(), "", &kit.trust(), Role::AGENT, None);
        let why = saved.unwrap_err();
        assert!(matches!(why, JoinError::Clock(_)), "{why}");
        let text = why.to_string();
        let begins = issued.info().not_before_text();
        assert!(
            text.contains(&begins) && text.contains("the clock says 2"),
            "{text}"
        );
        assert!(!files.certificate().exists());
    }
}
