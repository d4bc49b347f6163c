//! `--http`: the pages and the API of a controller.

use std::path::{Path, PathBuf};

use clap::ArgAction;
use ssntp::pki::{Identity, Trust};
use ssntp::transport::Address;
use ssntp_controller::Handle;
use ssntp_controller::http::{Api, ApiConfig};
use ssntp_daemon::{Failure, FilesRead};

/// The address of the pages and the API, and the clients that may use them.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct HttpArgs {
    /// Serve pages about the cluster, and the API, over HTTP, at HOST:PORT or unix:PATH.
    /// At addresses that are not loopback, they use mutual TLS with the certificates of
    /// this process, which then needs the roles controller and server
    #[arg(long, value_name = "ADDR")]
    http: Option<Address>,
    /// Another authority, whose certificates may read the pages and the API over TLS.
    /// Certificates of --ca with the role controller may also change workloads
    #[arg(long, value_name = "FILE", requires = "http")]
    http_ca: Option<PathBuf>,
    /// Require a token from clients without a certificate, also for reading; see `ssntp
    /// controller token`. With false, every user of this host may read all but the output of instances
    #[arg(long, value_name = "BOOL", requires = "http", action = ArgAction::Set, num_args = 0..=1,
        require_equals = true, default_value = "true", default_missing_value = "true")]
    http_login: bool,
    /// A name by which clients reach --http, such as that of a proxy in front; may be given several times
    #[arg(long, value_name = "NAME", requires = "http")]
    http_host: Vec<String>,
}

impl HttpArgs {
    /// Starts the API if `--http` is given. Tokens are in the directory of the database.
    pub(super) fn start(
        &self,
        store: &Path,
        credentials: Option<(Identity, Trust)>,
        handle: Handle,
    ) -> Result<Option<Api>, Failure> {
        let Some(address) = &self.http else {
            return Ok(None);
        };
        let mut config = ApiConfig::new(address.clone(), store)
            .login(self.http_login)
            .hosts(self.http_host.clone());
        if let Some((identity, cluster)) = credentials {
            config = config.tls(identity, cluster, self.readers()?.0);
        }
        let api = Api::start(config, handle);
        api.map(Some).map_err(|e| Failure::new(format!("--http: {e}")))
    }

    /// The authority whose certificates may only read.
    pub(super) fn readers(&self) -> Result<(Option<Trust>, FilesRead), Failure> {
        FilesRead::authority(self.http_ca.as_deref())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::watching::each_file_is_watched;

    #[test]
    fn the_authority_of_readers_is_watched_and_its_end_is_known() {
        each_file_is_watched(&["--http", "localhost:0"], |args: &HttpArgs| {
            args.readers().unwrap().1
        });
    }
}
