//! Trusted authorities, and the check of a peer's chain.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{ParsedCertificate, VerifierBuilderError, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::{CertificateError, RootCertStore};
use x509_parser::certificate::X509Certificate;

use crate::der::{self, algorithms};
use crate::error::{Error, Fault};
use crate::host::Host;
use crate::identity::Identity;
use crate::inspect::CertificateInfo;
use crate::limits::{self, TrustedIssuer};
use crate::list::{RevocationList, Serial};
use crate::pem::Sections;
use crate::revocation::{Revocation, RevocationLists};
use crate::role::Role;
use crate::store;
use ssntp_transport::provider;
use ssntp_transport::tls::certificate_fault;

/// The certificates of the trusted authorities.
///
/// A clone is cheap and shares everything; `Send` and `Sync`. Only [`load`](Self::load) blocks, on the
/// disk.
#[derive(Clone, Debug)]
pub struct Trust(Arc<TrustParts>);

#[derive(Clone, Debug)]
struct TrustParts {
    roots: Arc<RootCertStore>,
    authorities: Vec<CertificateInfo>,
    names: Vec<Host>,
    issuers: Vec<TrustedIssuer>,
    revocation: Option<Revocation>,
    /// The serial numbers of [`with_revoked`](Trust::with_revoked).
    revoked: HashSet<Serial>,
}

impl Trust {
    /// Loads a PEM file with the certificates of one or more authorities, or all such files of a
    /// directory. A certificate that is not valid at present is ignored with a warning in the log, so
    /// that a bundle may hold the old and the new authority. Blocks while the files are read.
    ///
    /// # Errors
    /// [`Error::Read`], and [`Error::Content`] if the file is not PEM, or has no certificate, one that is
    /// broken or not an authority's, or none that is valid at present.
    pub fn load(path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref();
        let origin = store::origin(path);
        if path.is_dir() {
            let certificates = store::load_directory(path)?;
            return Self::of_valid(&certificates, &origin).map_err(Error::content(&origin));
        }
        Self::from_pem(&store::read(path)?, &origin)
    }

    /// Reads a PEM text as [`load`](Self::load) reads a file. Errors name it `origin`.
    ///
    /// # Errors
    /// As [`load`](Self::load) without [`Error::Read`].
    pub fn from_pem(pem: &[u8], origin: &str) -> Result<Self, Error> {
        let read = || Self::of_valid(Sections::read(pem)?.certificates()?, origin);
        read().map_err(Error::content(origin))
    }

    /// Takes the certificates of the authorities in DER, as [`load`](Self::load) takes those of a file.
    /// Errors call them `the authorities`.
    ///
    /// # Errors
    /// As [`load`](Self::load) without [`Error::Read`]; [`Fault::NotDer`] instead of "not PEM".
    pub fn from_der(authorities: &[CertificateDer<'_>]) -> Result<Self, Error> {
        let origin = "the authorities";
        Self::of_valid(authorities, origin).map_err(Error::content(origin))
    }

    /// Checks the certificates of a server, its own first, by a client that has dialled `name` and knows only the
    /// SHA-256 digest of the authority's public key: one of them has that key and was signed by it, and the first has
    /// a server's role and the name, and passes [`verify_at`](Self::verify_at) below it. Returns trust in that
    /// authority.
    ///
    /// # Errors
    /// The first [`Fault`] that was found; [`Fault::NotPinned`] if no certificate has the key.
    pub fn pinned(
        chain: &[CertificateDer<'static>],
        key: &[u8; 32],
        name: &str,
        at: SystemTime,
    ) -> Result<Self, Fault> {
        for certificate in chain {
            let info = CertificateInfo::from_der(certificate)?;
            if info.key_digest()? == *key && info.has_signed(certificate) {
                info.check_validity(at)?;
                let trust = Self::new(vec![info])?;
                let server = trust.verify_at(chain, at)?;
                if !server.roles.intersects(Role::SERVER | Role::SCHEDULER) {
                    return Err(Fault::NotServer(server.roles));
                }
                if !server.is_for(name) {
                    let name = name.to_owned();
                    let hosts = server.hosts_text();
                    return Err(Fault::NotForName { name, hosts });
                }
                return Ok(trust);
            }
        }
        Err(Fault::NotPinned)
    }

    /// The chain of `identity` and its key, and after it the certificates of the trusted authorities, for clients that
    /// know only an authority's key.
    pub fn rooted(&self, identity: &Identity) -> CertifiedKey {
        let mut chain = identity.chain().to_vec();
        chain.extend(self.authorities().iter().map(|authority| authority.der.clone()));
        CertifiedKey::new(chain, Arc::clone(&identity.certified_key().key))
    }

    /// Trusts the authorities that are valid at present, at least one.
    fn of_valid(certificates: &[CertificateDer<'_>], origin: &str) -> Result<Self, Fault> {
        let now = der::now();
        let mut valid = Vec::new();
        let mut fault = Fault::NoCertificate;
        for certificate in certificates {
            let info = CertificateInfo::from_der(certificate)?;
            match info.check_validity(now) {
                Ok(()) => valid.push(info),
                Err(outside) => {
                    // While one authority replaces another, a bundle holds both for some time, and the
                    // old one expires in it.
                    log::warn!("{origin}: authority {:?} is ignored: {outside}", info.subject);
                    fault = outside;
                }
            }
        }
        // The last fault stands for all.
        if valid.is_empty() {
            return Err(fault);
        }
        Self::new(valid)
    }

    /// Trusts these authorities, whether they have expired or not.
    pub(crate) fn new(authorities: Vec<CertificateInfo>) -> Result<Self, Fault> {
        let mut roots = RootCertStore::empty();
        let mut names: Vec<Host> = Vec::new();
        let mut issuers = Vec::new();
        for authority in &authorities {
            if !authority.is_authority {
                return Err(Fault::NotAuthority(authority.subject.clone()));
            }
            let bad = |error: rustls::Error| Fault::BadCertificate(error.to_string());
            roots.add(authority.der.clone()).map_err(bad)?;
            issuers.push(TrustedIssuer::of(authority)?);
            for host in &authority.hosts {
                if !names.contains(host) {
                    names.push(host.clone());
                }
            }
        }
        Ok(Self(Arc::new(TrustParts {
            roots: Arc::new(roots),
            authorities,
            names,
            issuers,
            revocation: None,
            revoked: HashSet::new(),
        })))
    }

    /// The same trust, which also refuses certificates with these serial numbers, in hexadecimal, if an issuer
    /// below a trusted authority has issued them. For a cluster that keeps these numbers itself: its issuers
    /// choose them at random, so no other certificate has one of them. Numbers that cannot be read are
    /// ignored.
    #[must_use]
    pub fn with_revoked<'a>(&self, serials: impl IntoIterator<Item = &'a str>) -> Self {
        Self(Arc::new(TrustParts {
            revoked: serials.into_iter().flat_map(str::parse).collect(),
            ..(*self.0).clone()
        }))
    }

    /// The same trust, with these revocation lists instead of its own. Every check of a peer then refuses
    /// a revoked certificate, and one below a revoked authority. An authority need not have a list. An
    /// overdue list causes a warning in the log; see [`RevocationLists::enforce_expiry`].
    ///
    /// A list whose issuer is not trusted causes a warning, too: it counts only for peers that show the
    /// issuer's certificate as an intermediate one.
    ///
    /// # Errors
    /// [`Error::Content`] if a list has a trusted authority's name but not its signature, if the key usage
    /// of that authority does not allow it to sign lists, and, if expiry is enforced, if a list is overdue
    /// or none of the lists is of a trusted authority.
    pub fn with_revocation_lists(&self, lists: &RevocationLists) -> Result<Self, Error> {
        let revocation = Revocation::new(lists, &self.0.authorities);
        let revocation = revocation.map_err(Error::content(lists.origin()))?;
        Ok(Self(Arc::new(TrustParts {
            revocation: Some(revocation),
            ..TrustParts::clone(&self.0)
        })))
    }

    /// A trust in the authorities of both, with the revocation lists of `self`, and the serial numbers of
    /// [`with_revoked`](Self::with_revoked) of both.
    ///
    /// # Errors
    /// As [`with_revocation_lists`](Self::with_revocation_lists).
    pub fn and(&self, other: &Self) -> Result<Self, Error> {
        let both = [self, other].map(|trust| trust.authorities().to_vec()).concat();
        let mut joined = Self::new(both).map_err(Error::content("the authorities"))?;
        if let Some(parts) = Arc::get_mut(&mut joined.0) {
            parts.revoked = self.0.revoked.union(&other.0.revoked).cloned().collect();
        }
        match &self.0.revocation {
            Some(revocation) => joined.with_revocation_lists(&revocation.lists),
            None => Ok(joined),
        }
    }

    /// The revocation lists of this trust, with their facts.
    pub fn revocation_lists(&self) -> &[RevocationList] {
        let revocation = self.0.revocation.as_ref();
        revocation.map_or(&[], |revocation| revocation.lists.lists())
    }

    /// Checks that this trust may replace a former one: no revocation list of an authority in it may go
    /// back to an older one, or be left out. A trust without any list may replace every other.
    ///
    /// # Errors
    /// [`Fault::RevocationListOlder`].
    pub fn check_follows(&self, former: &Self) -> Result<(), Fault> {
        match (&self.0.revocation, &former.0.revocation) {
            (Some(own), Some(before)) => own.check_follows(before, &self.0.authorities),
            _ => Ok(()),
        }
    }

    /// The authorities in rustls's type.
    pub fn roots(&self) -> &Arc<RootCertStore> {
        &self.0.roots
    }

    /// The DNS names and addresses in the authorities' own SANs, in their order and each once. A client
    /// without a configured address may try to connect to them.
    pub fn names(&self) -> &[Host] {
        &self.0.names
    }

    /// The facts in the authorities' certificates.
    pub fn authorities(&self) -> &[CertificateInfo] {
        &self.0.authorities
    }

    /// Checks a peer's certificates, its own first, at the present time as a TLS peer does:
    ///
    /// * the signatures up to a trusted authority, and the lifetimes;
    /// * the usages that the roles need: serverAuth and a name for servers and schedulers,
    ///   clientAuth for the others;
    /// * that there is a role, and that the extended key usages of intermediate issuers allow
    ///   all roles;
    /// * that the key may sign, and the trusted authority's path length;
    /// * that no certificate is in a revocation list.
    ///
    /// The name by which a server was dialled is unknown here and not checked. Returns the facts in the
    /// first certificate.
    ///
    /// # Errors
    /// The first [`Fault`] that was found.
    pub fn verify(&self, chain: &[CertificateDer<'static>]) -> Result<CertificateInfo, Fault> {
        self.verify_at(chain, der::now())
    }

    /// As [`verify`](Self::verify), at another time.
    ///
    /// # Errors
    /// The first [`Fault`] that was found.
    pub fn verify_at(
        &self,
        chain: &[CertificateDer<'static>],
        at: SystemTime,
    ) -> Result<CertificateInfo, Fault> {
        let (first, intermediates) = chain.split_first().ok_or(Fault::NoCertificate)?;
        let info = CertificateInfo::from_der(first)?;
        // Otherwise the holder of a peer's key could make further peers.
        if info.is_authority {
            return Err(Fault::AuthorityAsPeer);
        }
        info.check_validity(at)?;
        if info.roles.is_empty() {
            return Err(Fault::NoRole);
        }
        let server = Role::SERVER | Role::SCHEDULER;
        let is_server = info.roles.intersects(server);
        // A certificate with roles of both kinds has to pass both checks.
        let is_client = !server.contains(info.roles);
        // A time before 1970 counts as 1970 here; `check_validity` has compared the time itself.
        let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
        let time = UnixTime::since_unix_epoch(since);
        if is_server {
            if info.hosts.is_empty() {
                return Err(Fault::NoHost);
            }
            let fault = (!info.server_auth).then_some(Fault::NotForServers);
            self.check_server(first, intermediates, time)
                .map_err(|error| explain(error, chain, &info, fault))?;
        }
        if is_client {
            let fault = (!info.client_auth).then_some(Fault::NotForClients);
            self.check_client(first, intermediates, time)
                .map_err(|error| explain(error, chain, &info, fault))?;
        }
        // Last, because it needs a chain whose signatures have been verified.
        self.check_chain(first, intermediates, at)?;
        Ok(info)
    }

    /// True if issuers that give the roles of nodes alone have issued both certificates, and one trusted authority
    /// has issued these issuers: the servers of a cluster, each of which has an issuer of its own, renew each
    /// other's nodes. The arguments are chains that were verified, their own certificates first.
    pub fn have_one_cluster(&self, one: &[CertificateDer<'_>], other: &[CertificateDer<'_>]) -> bool {
        let root = self.root_of_node(one);
        root.is_some() && root == self.root_of_node(other)
    }

    /// The trusted authority whose issuer has issued the first certificate of a chain. Each signature is
    /// verified, because the chain may hold more certificates than those on its path.
    fn root_of_node(&self, chain: &[CertificateDer<'_>]) -> Option<&CertificateInfo> {
        let (first, shown) = chain.split_first()?;
        let issuers = shown.iter().flat_map(CertificateInfo::from_der);
        let mut issuers = issuers.filter(|issuer| {
            !issuer.roles.is_empty() && Role::OF_NODES.contains(issuer.roles) && issuer.has_signed(first)
        });
        issuers.find_map(|issuer| self.authority_of(&issuer))
    }

    /// The trusted authority that has signed a certificate, for example an issuer's. Nothing but the signature is
    /// checked.
    pub fn authority_of(&self, certificate: &CertificateInfo) -> Option<&CertificateInfo> {
        let mut authorities = self.0.authorities.iter();
        authorities.find(|authority| authority.has_signed(&certificate.der))
    }

    /// The part of [`verify`](Self::verify) that TLS libraries omit: that the certificate's key may sign,
    /// that the extended key usages of intermediate issuers allow its roles, that there are no more of these
    /// issuers than the trusted authority allows, and that no certificate is revoked. The caller has to check the
    /// signatures.
    pub(crate) fn check_chain(
        &self,
        first: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        at: SystemTime,
    ) -> Result<(), Fault> {
        let (first, between) = self.shown(first, intermediates)?;
        limits::check(&first, &between, &self.0.issuers)?;
        self.check_revoked(&first, &between, at)
    }

    /// Checks that neither a certificate nor an intermediate one is revoked.
    pub(crate) fn check_revocation(
        &self,
        first: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        at: SystemTime,
    ) -> Result<(), Fault> {
        let (first, between) = self.shown(first, intermediates)?;
        self.check_revoked(&first, &between, at)
    }

    fn check_revoked(
        &self,
        first: &X509Certificate<'_>,
        between: &[X509Certificate<'_>],
        at: SystemTime,
    ) -> Result<(), Fault> {
        if !between.is_empty() && self.0.revoked.contains(&Serial::of(first.raw_serial())) {
            return Err(der::revoked(first));
        }
        let revocation = self.0.revocation.as_ref();
        revocation.map_or(Ok(()), |revocation| revocation.check(first, between, at))
    }

    /// Reads a chain, without the certificates of trusted authorities after the first, which count in no path and are
    /// revoked by no list.
    fn shown<'a>(
        &self,
        first: &'a CertificateDer<'_>,
        intermediates: &'a [CertificateDer<'_>],
    ) -> Result<(X509Certificate<'a>, Vec<X509Certificate<'a>>), Fault> {
        let between = intermediates.iter().map(|shown| der::certificate(shown));
        let mut between: Vec<_> = between.collect::<Result<_, _>>()?;
        between.retain(|shown| !self.0.issuers.iter().any(|trusted| trusted.is(shown)));
        Ok((der::certificate(first)?, between))
    }

    /// Warns in the log if this side's own certificate is on a list: peers with the same list refuse it,
    /// and some of them cannot report why.
    pub(crate) fn warn_if_revoked(&self, identity: &Identity) {
        if let [first, intermediates @ ..] = identity.chain()
            && let Err(fault @ Fault::Revoked { .. }) =
                self.check_revocation(first, intermediates, der::now())
        {
            log::warn!("this program's own certificate is not accepted any more: {fault}");
        }
    }

    fn check_server(
        &self,
        first: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        at: UnixTime,
    ) -> Result<(), rustls::Error> {
        let parsed = ParsedCertificate::try_from(first)?;
        verify_server_cert_signed_by_trust_anchor(&parsed, self.roots(), intermediates, at, algorithms().all)
    }

    fn check_client(
        &self,
        first: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        at: UnixTime,
    ) -> Result<(), rustls::Error> {
        let verifier = self.of_clients();
        let verifier = verifier.map_err(|error| rustls::Error::General(error.to_string()))?;
        verifier.verify_client_cert(first, intermediates, at).map(drop)
    }

    /// The check of rustls for the certificates of clients.
    pub(crate) fn of_clients(&self) -> Result<Arc<dyn ClientCertVerifier>, VerifierBuilderError> {
        WebPkiClientVerifier::builder_with_provider(Arc::clone(self.roots()), provider()).build()
    }
}

/// The fault for an error of rustls. `usage` is the fault of a certificate whose own usages lack the one that
/// was asked for; otherwise an intermediate certificate forbids it.
fn explain(
    error: rustls::Error,
    chain: &[CertificateDer<'_>],
    info: &CertificateInfo,
    usage: Option<Fault>,
) -> Fault {
    let rustls::Error::InvalidCertificate(error) = error else {
        return Fault::Refused(error.to_string());
    };
    match error {
        CertificateError::UnknownIssuer => {
            unknown_issuer(chain).unwrap_or_else(|| Fault::UnknownIssuer(info.issuer.clone()))
        }
        CertificateError::BadSignature => Fault::BadSignature,
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            usage.unwrap_or_else(|| Fault::Refused(error.to_string()))
        }
        other => {
            // TLS does not say which one it is.
            let is_extension = matches!(&other, CertificateError::Other(why) if why.to_string() == UNKNOWN);
            let named = is_extension.then(|| chain.iter().find_map(unknown_extension));
            named
                .flatten()
                .unwrap_or_else(|| Fault::Refused(certificate_fault(&other)))
        }
    }
}

/// The place at which a chain of several certificates ends; `None` if that is its first one.
fn unknown_issuer(chain: &[CertificateDer<'_>]) -> Option<Fault> {
    let mut shown: Vec<_> = chain.iter().flat_map(|der| der::certificate(der)).collect();
    let (mut last, count) = ((!shown.is_empty()).then(|| shown.remove(0))?, shown.len());
    while let Some(at) = shown.iter().position(|above| above.subject() == last.issuer()) {
        last = shown.swap_remove(at);
    }
    let issuer = der::distinguished_name(last.issuer());
    let subject = der::distinguished_name(last.subject());
    let fault = if subject == issuer {
        Fault::UnknownIssuer(issuer)
    } else {
        Fault::MissingIssuer { subject, issuer }
    };
    (shown.len() < count).then_some(fault)
}

/// The text of webpki's error for an unknown critical extension.
const UNKNOWN: &str = "UnsupportedCriticalExtension";
/// The critical extensions that TLS knows: key usage, names, constraints, lists and usages.
const KNOWN: [&str; 6] = [
    "2.5.29.15",
    "2.5.29.17",
    "2.5.29.19",
    "2.5.29.30",
    "2.5.29.31",
    "2.5.29.37",
];

/// The first critical extension of a certificate that TLS does not know.
fn unknown_extension(der: &CertificateDer<'_>) -> Option<Fault> {
    let certificate = der::certificate(der).ok()?;
    let critical = certificate
        .iter_extensions()
        .filter(|extension| extension.critical);
    let mut critical = critical.map(|extension| extension.oid.to_id_string());
    Some(Fault::CriticalExtension {
        oid: critical.find(|oid| !KNOWN.contains(&oid.as_str()))?,
        subject: CertificateInfo::from_der(der).ok()?.subject,
    })
}
