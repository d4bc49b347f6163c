//! The files of `ssntp server --dev`: a throw-away authority, a certificate for the server, one
//! certificate for all clients, and the context that names these files.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use ssntp::Role;
use ssntp::pki::{Authority, AuthorityRequest, CertificateRequest, Identity, Trust};
use ssntp::transport::Address;
use ssntp_daemon::{Context, Contexts, Failure, FilesRead, absolute, context};

/// The name of the context.
pub(super) const CONTEXT: &str = "dev";
/// The address at which the server listens by default. It is an address and not a name, because
/// `localhost` is two addresses on many hosts, and one of them may be missing.
pub(super) const LISTEN: &str = "127.0.0.1:8888";
/// The roles of the clients' one certificate: a user who tries the protocol sends as
/// one role and listens as another.
const CLIENT: Role = Role::from_bits(
    Role::CONTROLLER.bits() | Role::AGENT.bits() | Role::NETAGENT.bits() | Role::CNCIAGENT.bits(),
);

/// The directory of the files, and the server's credentials from them.
pub(super) struct Dev {
    pub(super) directory: PathBuf,
    identity: Identity,
    trust: Trust,
    /// True if this start made the files.
    pub(super) is_new: bool,
}

impl Dev {
    /// Uses the files of an earlier start, or makes them again if a file is missing or no longer
    /// valid.
    pub(super) fn prepare() -> Result<Self, Failure> {
        let base = context::user_directory("XDG_DATA_HOME", ".local/share");
        let base = base.ok_or_else(|| {
            Failure::new("certificates cannot be kept: neither HOME nor XDG_DATA_HOME is set")
        })?;
        let directory = base.join("dev");
        let _lock = context::lock(&directory)?;
        // The user may have made the directory by hand, with another mode.
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o700))
            .map_err(|e| Failure::at(&directory, e))?;
        let is_new = !has_certificates(&directory);
        if is_new {
            make(&directory)?;
        }
        Ok(Self {
            identity: Identity::load(directory.join("server.pem"))?,
            trust: Trust::load(directory.join("ca.pem"))?,
            directory,
            is_new,
        })
    }

    /// The credentials of the server. With `--dev`, no files are watched.
    pub(super) fn read(&self) -> (Identity, Trust, FilesRead) {
        let credentials = Some((self.identity.clone(), self.trust.clone()));
        let read = FilesRead {
            credentials,
            ..FilesRead::default()
        };
        (self.identity.clone(), self.trust.clone(), read)
    }

    /// Makes the context for a server at these addresses. Returns true if it is the current
    /// context then.
    pub(super) fn name(&self, addresses: &[Address]) -> Result<bool, Failure> {
        let file = |name| self.directory.join(name).to_string_lossy().into_owned();
        let context = Context {
            connect: addresses.iter().map(absolute).collect(),
            ca: file("ca.pem"),
            cert: file("client.pem"),
            ..Context::default()
        };
        let mut is_current = false;
        Contexts::change(|contexts| {
            if contexts.current.is_empty() {
                contexts.current = CONTEXT.into();
            }
            is_current = contexts.current == CONTEXT;
            contexts.contexts.insert(CONTEXT.into(), context);
            Ok(())
        })?;
        Ok(is_current)
    }
}

/// Refuses an address that other hosts could reach, because every user who can read the
/// directory has a certificate with all roles.
pub(super) fn check_local(address: &Address) -> Result<(), Failure> {
    if address.is_local() {
        Ok(())
    } else {
        Err(Failure::usage(format!(
            "--listen {address}: --dev is for this host alone: localhost, 127.0.0.1, [::1] or unix:PATH"
        )))
    }
}

/// The certificates, and their roles.
const CERTIFICATES: [(&str, Role); 2] = [("server.pem", Role::SERVER), ("client.pem", CLIENT)];

/// True if all files exist, and both certificates are valid and have the roles that they need.
fn has_certificates(directory: &Path) -> bool {
    let Ok(trust) = Trust::load(directory.join("ca.pem")) else {
        return false;
    };
    CERTIFICATES.into_iter().all(|(name, roles)| {
        let identity = Identity::load(directory.join(name)).ok();
        let info = identity.and_then(|identity| trust.verify(identity.chain()).ok());
        info.is_some_and(|info| info.roles == roles)
    })
}

/// Makes the files. An authority that is still valid is used again, so that other certificates
/// that a user has issued with it stay valid.
fn make(directory: &Path) -> Result<(), Failure> {
    let issue = |authority: &Authority| {
        for (name, roles) in CERTIFICATES {
            let request = CertificateRequest::new(roles);
            authority.issue(&request)?.save(directory.join(name))?;
        }
        Ok::<_, Failure>(())
    };
    let is_usable = |authority: &Authority| issue(authority).is_ok() && has_certificates(directory);
    if !Authority::load(directory).is_ok_and(|authority| is_usable(&authority)) {
        let request = AuthorityRequest::default().name("ssntp dev".to_owned());
        let authority = Authority::new(&request)?;
        authority.save(directory, true)?;
        issue(&authority)?;
    }
    Ok(())
}
