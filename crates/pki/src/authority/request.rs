//! Requests for authorities and certificates.

use std::fmt;
use std::str::FromStr;
use std::time::SystemTime;

use uuid::Uuid;

use crate::error::BadRequest;
use crate::host::Host;
use crate::inspect::CertificateInfo;
use crate::role::Role;

/// The kind of a private key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum KeyKind {
    /// ECDSA on the curve P-256, the default: small and quick.
    #[default]
    P256,
    /// RSA with 2048 bits; needs the feature `aws-lc-rs`.
    Rsa2048,
    /// RSA with 4096 bits; needs the feature `aws-lc-rs`, and seconds to make.
    Rsa4096,
    /// Ed25519.
    Ed25519,
}

impl KeyKind {
    /// Each kind with its name, and as [`CertificateInfo::key`] shows it.
    const TABLE: [(Self, &'static str, &'static str); 4] = [
        (Self::P256, "p256", "P-256"),
        (Self::Rsa2048, "rsa2048", "RSA 2048"),
        (Self::Rsa4096, "rsa4096", "RSA 4096"),
        (Self::Ed25519, "ed25519", "Ed25519"),
    ];

    /// The kind of a certificate's key, if such keys can be made.
    pub(crate) fn of(certificate: &CertificateInfo) -> Option<Self> {
        let mut kinds = Self::TABLE.into_iter();
        kinds.find_map(|(kind, _, shown)| (shown == certificate.key).then_some(kind))
    }
}

impl fmt::Display for KeyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Self::TABLE.into_iter().find(|(kind, ..)| kind == self);
        f.write_str(name.map_or("", |(_, name, _)| name))
    }
}

impl FromStr for KeyKind {
    type Err = BadRequest;

    /// Reads `p256`, `rsa2048`, `rsa4096` or `ed25519` in any case.
    fn from_str(text: &str) -> Result<Self, BadRequest> {
        Self::TABLE
            .into_iter()
            .find(|(_, name, _)| name.eq_ignore_ascii_case(text))
            .map(|(kind, ..)| kind)
            .ok_or_else(|| BadRequest::UnknownKey(text.to_owned()))
    }
}

/// The request for a new authority.
///
/// ```
/// use ssntp_pki::AuthorityRequest;
///
/// let request = AuthorityRequest::default().name("Example").days(30);
/// assert_eq!(request.name, "Example");
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct AuthorityRequest {
    /// The organization, 1 to 64 characters.
    /// Default: `ssntp`.
    pub name: String,
    /// The hosts at which clients may look for a server, see
    /// [`Trust::names`](crate::Trust::names).
    /// Default: none.
    pub hosts: Vec<Host>,
    /// The kind of its key.
    /// Default: P-256.
    pub key: KeyKind,
    /// Its lifetime from the start on, 1 to 36,500 days.
    /// Default: 3650.
    pub days: u32,
    /// The start of its lifetime.
    /// Default: ten minutes before the present time, from which the days count.
    pub valid_from: Option<SystemTime>,
}

impl Default for AuthorityRequest {
    fn default() -> Self {
        Self {
            name: "ssntp".to_owned(),
            hosts: Vec::new(),
            key: KeyKind::default(),
            days: 3650,
            valid_from: None,
        }
    }
}

impl AuthorityRequest {
    ssntp_transport::setters! {
        /// Sets the organization.
        name: impl Into<String>;
        /// Sets the kind of key.
        key: KeyKind;
        /// Sets the lifetime.
        days: u32;
        /// Sets the start of the lifetime.
        valid_from: SystemTime;
    }

    /// Adds a name or an address at which clients may look for a server.
    #[must_use]
    pub fn host(mut self, host: impl Into<Host>) -> Self {
        self.hosts.push(host.into());
        self
    }
}

/// The request for a certificate.
///
/// ```
/// use ssntp_pki::Role;
/// use ssntp_pki::CertificateRequest;
///
/// let request = CertificateRequest::new(Role::SCHEDULER).host("sched.example").days(90);
/// assert_eq!(request.name, "scheduler");
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct CertificateRequest {
    /// The roles that it gives. They may be none, for tests of such peers.
    pub roles: Role,
    /// Its holder's name, 1 to 64 characters.
    /// Default: the roles' names, joined with `-`.
    pub name: String,
    /// The DNS names and addresses of a server.
    /// Default: for a server or scheduler `localhost`, 127.0.0.1, ::1 and
    /// this machine's own name; none for the others.
    pub hosts: Vec<Host>,
    /// The UUID to which its holder is bound, not nil.
    /// Default: the holder may use any UUID.
    pub uuid: Option<Uuid>,
    /// The kind of its key.
    /// Default: P-256.
    pub key: KeyKind,
    /// Its lifetime from the start on, 1 to 36,500 days. It ends with the authority's at the
    /// latest.
    /// Default: 365.
    pub days: u32,
    /// The start of its lifetime.
    /// Default: ten minutes before the present time, from which the days count.
    pub valid_from: Option<SystemTime>,
}

impl CertificateRequest {
    /// A request for these roles, with the defaults for all else.
    pub fn new(roles: Role) -> Self {
        Self {
            roles,
            name: roles.to_string().replace(',', "-"),
            hosts: Vec::new(),
            uuid: None,
            key: KeyKind::default(),
            days: 365,
            valid_from: None,
        }
    }

    ssntp_transport::setters! {
        /// Sets the holder's name.
        name: impl Into<String>;
        /// Sets the kind of key.
        key: KeyKind;
        /// Sets the lifetime.
        days: u32;
        /// Sets the start of the lifetime.
        valid_from: SystemTime;
        /// Binds the holder to a UUID.
        uuid: Uuid;
    }

    /// Adds a DNS name or an address. The default ones are then not used.
    #[must_use]
    pub fn host(mut self, host: impl Into<Host>) -> Self {
        self.hosts.push(host.into());
        self
    }

    pub(crate) fn is_server(&self) -> bool {
        self.roles.intersects(Role::SERVER | Role::SCHEDULER)
    }

    /// The requested hosts, or the default ones.
    pub(crate) fn all_hosts(&self) -> Vec<Host> {
        if self.hosts.is_empty() && self.is_server() {
            default_hosts()
        } else {
            self.hosts.clone()
        }
    }
}

fn default_hosts() -> Vec<Host> {
    let this_machine = rustix::system::uname();
    let this_machine = this_machine.nodename().to_str().unwrap_or_default();
    [this_machine, "localhost", "127.0.0.1", "::1"]
        .into_iter()
        // Without a machine's name if it has characters that a certificate cannot hold.
        .filter_map(|host| host.parse().ok())
        .collect()
}
