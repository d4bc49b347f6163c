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

use std::path::{Path, PathBuf};

use ssntp::pki::{Identity, ServerCheck, Trust};
use ssntp_daemon::{CrlArgs, Failure, FilesRead, Lifetime, input};
use ssntp_transport::{tls::Acceptor, tls::Connector};

/// TLS of a server.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct ServerTls {
    /// The server's certificate and key; with it, clients have to use TLS
    #[arg(long, value_name = "FILE")]
    tls_cert: Option<PathBuf>,
    #[command(flatten)]
    key: KeyArgs,
    /// The authority that must have issued the certificates of clients, or a directory of
    /// authorities [default: clients need no certificate]
    #[arg(long, value_name = "FILE|DIR", requires = "tls_cert")]
    tls_ca: Option<PathBuf>,
    #[command(flatten)]
    crl: ListArgs,
}

impl ServerTls {
    /// True if clients use TLS.
    pub(super) fn is_given(&self) -> bool {
        self.tls_cert.is_some()
    }

    /// True if clients and readers of the pages need a certificate.
    pub(super) fn has_authority(&self) -> bool {
        self.tls_cert.is_some() && self.tls_ca.is_some()
    }

    /// The acceptor for clients, and what else was read, to be watched from now on. The pages of
    /// `--admin` use the certificate and the authority, if both are given.
    pub(super) fn read(&self) -> Result<(Option<Acceptor>, FilesRead), Failure> {
        let mut read = self.key.files(&self.tls_cert, &self.tls_ca, &self.crl);
        let Some(cert) = &self.tls_cert else {
            return Ok((None, read));
        };
        let identity = self.key.identity(cert)?;
        read.lifetimes.push(Lifetime::of_identity(&identity, cert));
        let acceptor = match &self.tls_ca {
            Some(ca) => {
                let trust = self.crl.trust(ca, &mut read.lifetimes)?;
                // A plain `openssl x509 -req` makes certificates of X.509 version 1. They have no
                // roles and names, and OpFlex needs none: the signature and the lifetime count.
                let acceptor = trust.acceptor_of_any_version(&identity);
                read.credentials = Some((identity, trust));
                acceptor
            }
            None => Acceptor::server_only(identity.certified_key()),
        };
        Ok((Some(acceptor.map_err(Failure::new)?), read))
    }
}

/// Which certificates are revoked.
#[derive(Clone, Debug, clap::Args)]
struct ListArgs {
    /// A file with one or more revocation lists of the authority: peers whose certificate
    /// is on a list are refused; may be given several times
    #[arg(long, value_name = "FILE", requires = "tls_ca")]
    tls_crl: Vec<PathBuf>,
    /// Refuse all peers while a revocation list is out of date, instead of logging a
    /// warning
    #[arg(long, requires = "tls_crl")]
    tls_crl_strict: bool,
}

impl ListArgs {
    fn trust(&self, ca: &Path, lifetimes: &mut Vec<Lifetime>) -> Result<Trust, Failure> {
        let lists = CrlArgs {
            crl: self.tls_crl.clone(),
            crl_strict: self.tls_crl_strict,
        };
        let trust = lists.trust(ca)?;
        lifetimes.extend(lists.lifetimes(&trust, ca));
        Ok(trust)
    }
}

/// The private key of a certificate.
#[derive(Clone, Debug, clap::Args)]
struct KeyArgs {
    /// The private key, if it is not in the file of the certificate
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// A file whose first line is the passphrase of the private key
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_passphrase_file: Option<PathBuf>,
}

impl KeyArgs {
    /// All files, to be watched from now on.
    fn files(&self, cert: &Option<PathBuf>, ca: &Option<PathBuf>, lists: &ListArgs) -> FilesRead {
        let files = [cert, ca, &self.tls_key, &self.tls_passphrase_file];
        FilesRead::of(files.into_iter().flatten().chain(&lists.tls_crl))
    }

    fn identity(&self, cert: &Path) -> Result<Identity, Failure> {
        let passphrase = self.tls_passphrase_file.as_deref().map(input::first_line);
        let passphrase = passphrase.transpose()?;
        Ok(Identity::load_without_role(
            cert,
            self.tls_key.as_deref(),
            passphrase.as_deref(),
        )?)
    }
}

/// TLS of a client.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct ClientTls {
    /// Use TLS; without --tls-ca the server's certificate is not checked
    #[arg(long)]
    tls: bool,
    /// The authority that must have issued the server's certificate, or a directory of
    /// authorities
    #[arg(long, value_name = "FILE|DIR", requires = "tls")]
    tls_ca: Option<PathBuf>,
    /// The certificate and key to show to the server
    #[arg(long, value_name = "FILE", requires = "tls")]
    tls_cert: Option<PathBuf>,
    #[command(flatten)]
    key: KeyArgs,
    /// Accept any name in the server's certificate, as libopflex does
    #[arg(long, requires = "tls_ca")]
    tls_any_name: bool,
    #[command(flatten)]
    crl: ListArgs,
}

impl ClientTls {
    /// The connector to servers, and what else was read, to be watched from now on.
    pub(super) fn read(&self) -> Result<(Option<Connector>, FilesRead), Failure> {
        let mut read = self.key.files(&self.tls_cert, &self.tls_ca, &self.crl);
        if !self.tls {
            return Ok((None, read));
        }
        let mut identity = None;
        if let Some(cert) = &self.tls_cert {
            let own = self.key.identity(cert)?;
            read.lifetimes.push(Lifetime::of_identity(&own, cert));
            identity = Some(own);
        }
        let trust = self
            .tls_ca
            .as_deref()
            .map(|ca| self.crl.trust(ca, &mut read.lifetimes));
        let trust = trust.transpose()?;
        let check = match &trust {
            None => ServerCheck::Nothing,
            Some(trust) if self.tls_any_name => ServerCheck::Authority(trust),
            Some(trust) => ServerCheck::Name(trust),
        };
        let connector = check.connector(identity.as_ref()).map_err(Failure::new)?;
        Ok((Some(connector), read))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::watching::each_file_is_watched;

    #[test]
    fn each_file_of_credentials_of_opflex_is_watched_and_its_end_is_known() {
        each_file_is_watched(&[], |args: &ServerTls| args.read().unwrap().1);
        each_file_is_watched(&["--tls"], |args: &ClientTls| args.read().unwrap().1);
    }
}
