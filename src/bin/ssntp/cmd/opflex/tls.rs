//! TLS on the command line of `ssntp opflex`.

use std::path::PathBuf;

use ssntp::pki::{Identity, Trust};
use ssntp::transport::tls::{Acceptor, Connector, ServerCheck};

use crate::failure::Failure;

/// TLS of a server.
#[derive(Debug, clap::Args)]
pub(super) struct ServerTls {
    /// The server's certificate and key; with it, clients have to use TLS
    #[arg(long, value_name = "FILE")]
    tls_cert: Option<PathBuf>,
    /// The authority that clients' certificates have to come from [default:
    /// clients need no certificate]
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_ca: Option<PathBuf>,
}

impl ServerTls {
    pub(super) fn acceptor(&self) -> Result<Option<Acceptor>, Failure> {
        let Some(cert) = &self.tls_cert else {
            return Ok(None);
        };
        let identity = Identity::load(cert)?;
        let acceptor = match &self.tls_ca {
            Some(ca) => Acceptor::mutual(&identity, &Trust::load(ca)?),
            None => Acceptor::server_only(&identity),
        };
        acceptor.map(Some).map_err(Failure::new)
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
    /// Take any name in the server's certificate, as libopflex does
    #[arg(long, requires = "tls_ca")]
    tls_any_name: bool,
}

impl ClientTls {
    pub(super) fn connector(&self) -> Result<Option<Connector>, Failure> {
        if !self.tls {
            return Ok(None);
        }
        let identity = self.tls_cert.as_ref().map(Identity::load).transpose()?;
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
