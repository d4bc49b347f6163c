//! TLS on the command line of `ssntp opflex`.

//!
//! | what is verified | of a client, by `serve` | of a server, by `element` |
//! |---|---|---|
//! | no TLS | – | – |
//! | nothing: encrypted alone | `--tls-cert` | `--tls` |
//! | that an authority issued the certificate | `--tls-cert --tls-ca` | `--tls --tls-ca --tls-any-name` |
//! | that it holds the name dialled, too | – | `--tls --tls-ca` |
//!
//! OpFlex knows no roles of SSNTP, so any certificate will do.

use std::fs;
use std::path::{Path, PathBuf};

use ssntp::pki::{Identity, Trust};
use ssntp::transport::tls::{Acceptor, Connector, ServerCheck};

use crate::failure::Failure;

/// TLS of a server.
#[derive(Debug, clap::Args)]
pub(super) struct ServerTls {
    /// The server's certificate and key; with it, clients have to use TLS
    #[arg(long, value_name = "FILE")]
    tls_cert: Option<PathBuf>,
    #[command(flatten)]
    key: KeyArgs,
    /// The authority that clients' certificates have to come from [default:
    /// clients need no certificate]
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_ca: Option<PathBuf>,
}

impl ServerTls {
    /// What the pages of `--admin` prove themselves with, and whom they trust, where
    /// both are known.
    pub(super) fn credentials(&self) -> Result<Option<(Identity, Trust)>, Failure> {
        match (&self.tls_cert, &self.tls_ca) {
            (Some(cert), Some(ca)) => Ok(Some((self.key.identity(cert)?, Trust::load(ca)?))),
            _ => Ok(None),
        }
    }

    pub(super) fn acceptor(&self) -> Result<Option<Acceptor>, Failure> {
        let Some(cert) = &self.tls_cert else {
            return Ok(None);
        };
        let identity = self.key.identity(cert)?;
        let acceptor = match &self.tls_ca {
            Some(ca) => Acceptor::mutual_of_any_version(&identity, &Trust::load(ca)?),
            None => Acceptor::server_only(&identity),
        };
        acceptor.map(Some).map_err(Failure::new)
    }
}

/// The private key of a certificate.
#[derive(Debug, clap::Args)]
struct KeyArgs {
    /// The private key, where it is not in the file of the certificate
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// A file whose first line is the passphrase of the private key
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_passphrase_file: Option<PathBuf>,
}

impl KeyArgs {
    fn identity(&self, cert: &Path) -> Result<Identity, Failure> {
        let passphrase = self.tls_passphrase_file.as_ref().map(|path| {
            let text = fs::read(path).map_err(|e| Failure::new(format!("{}: {e}", path.display())))?;
            let line = text.split(|byte| matches!(byte, b'\r' | b'\n')).next();
            Ok::<_, Failure>(line.unwrap_or_default().to_vec())
        });
        let passphrase = passphrase.transpose()?;
        Ok(Identity::load_without_role(
            cert,
            self.tls_key.as_deref(),
            passphrase.as_deref(),
        )?)
    }
}

/// TLS of a client.
#[derive(Debug, clap::Args)]
pub(super) struct ClientTls {
    /// Encrypt; without --tls-ca the server is not checked at all
    #[arg(long)]
    tls: bool,
    /// The authority that the server's certificate has to come from
    #[arg(long, value_name = "FILE", requires = "tls")]
    tls_ca: Option<PathBuf>,
    /// The certificate and key to prove to the server
    #[arg(long, value_name = "FILE", requires = "tls")]
    tls_cert: Option<PathBuf>,
    #[command(flatten)]
    key: KeyArgs,
    /// Take any name in the server's certificate, as libopflex does
    #[arg(long, requires = "tls_ca")]
    tls_any_name: bool,
}

impl ClientTls {
    pub(super) fn connector(&self) -> Result<Option<Connector>, Failure> {
        if !self.tls {
            return Ok(None);
        }
        let identity = self.tls_cert.as_deref().map(|cert| self.key.identity(cert));
        let identity = identity.transpose()?;
        let trust = self.tls_ca.as_ref().map(Trust::load).transpose()?;
        let check = match &trust {
            None => ServerCheck::Nothing,
            Some(trust) if self.tls_any_name => ServerCheck::Authority(trust),
            Some(trust) => ServerCheck::Name(trust),
        };
        Connector::checking(check, identity.as_ref())
            .map(Some)
            .map_err(Failure::new)
    }
}
