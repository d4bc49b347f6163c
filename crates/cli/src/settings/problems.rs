//! What a daemon finds wrong with its settings before it starts.

use std::path::PathBuf;

use ssntp::Role;
use ssntp::pki::{Identity, Trust};

use crate::credentials::CrlArgs;
use crate::failure::Failure;

/// Faults that a daemon finds before it starts, each with the key that causes it.
#[derive(Debug, Default)]
pub(crate) struct Problems(Vec<(&'static str, Failure)>);

impl Problems {
    /// Notes how something failed, if it was tried and did.
    pub(crate) fn of<T>(&mut self, key: &'static str, tried: Option<Result<T, Failure>>) {
        if let Some(Err(failure)) = tried {
            self.0.push((key, failure));
        }
    }

    /// Reads the certificate, which has to hold one of these roles, the authority, and
    /// its revocation lists.
    pub(crate) fn credentials(
        &mut self,
        cert: &Option<PathBuf>,
        ca: &Option<PathBuf>,
        crl: &CrlArgs,
        roles: Role,
    ) {
        let identity = |path: &PathBuf| {
            let held = Identity::load(path)?.roles();
            match held.intersects(roles) {
                true => Ok(()),
                false => {
                    let any = roles.to_string().replace(',', " or ");
                    Err(Failure::new(format!(
                        "{}: the role is {held}, it has to be {any}",
                        path.display()
                    )))
                }
            }
        };
        self.of("cert", cert.as_ref().map(identity));
        let Some(ca) = ca else { return };
        match Trust::load(ca) {
            Ok(_) => self.of("crl", Some(crl.trust(ca))),
            Err(e) => self.of("ca", Some(Err::<(), _>(e.into()))),
        }
    }

    /// Each problem with the key of the setting that causes it.
    #[cfg(feature = "full")]
    pub(crate) fn into_iter(self) -> impl Iterator<Item = (&'static str, Failure)> {
        self.0.into_iter()
    }
}
