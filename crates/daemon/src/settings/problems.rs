//! Errors that a daemon can find before it starts, in the files that its settings name.

use std::path::PathBuf;

use ssntp::Role;
use ssntp::pki::Trust;

use crate::credentials::{CrlArgs, identity, wrong_role};
use crate::failure::Failure;

/// Errors, each with the key of the setting that names the file.
#[derive(Debug, Default)]
pub struct Problems(Vec<(&'static str, Failure)>);

impl Problems {
    /// Adds the error of something that was tried, if it failed.
    pub fn of<T>(&mut self, key: &'static str, tried: Option<Result<T, Failure>>) {
        if let Some(Err(failure)) = tried {
            self.0.push((key, failure));
        }
    }

    /// The errors, each with its key.
    pub fn found(self) -> Vec<(&'static str, Failure)> {
        self.0
    }

    /// Reads the certificate, which must hold one of these roles, the authority and the
    /// revocation lists. Returns the authorities, without their lists.
    pub fn credentials(
        &mut self,
        cert: Option<&PathBuf>,
        key: Option<&PathBuf>,
        ca: Option<&PathBuf>,
        crl: &CrlArgs,
        roles: Role,
    ) -> Option<Trust> {
        let check = |path: &PathBuf| {
            let held = identity(path, key.map(PathBuf::as_path))?.roles();
            if held.intersects(roles) {
                Ok(())
            } else {
                Err(wrong_role(path, held, roles))
            }
        };
        self.of("cert", cert.map(check));
        let ca = ca?;
        // The authority is read alone first, so that its faults are not reported for the lists.
        let trust = Trust::load(ca);
        self.of("crl", trust.is_ok().then(|| crl.trust(ca)));
        let alone = trust.as_ref().ok().cloned();
        self.of("ca", Some(trust.map_err(Failure::from)));
        alone
    }
}
