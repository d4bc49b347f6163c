//! The network of an instance that is being launched.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use uuid::Uuid;

use super::attachment::Attachment;
use super::node::Networks;
use crate::agent::driver::{InstanceDir, LaunchError, LaunchFault, User, give};

/// Gives an instance that is being launched its network. The driver makes the network
/// namespace.
#[derive(Debug)]
pub struct Wire {
    instance: Uuid,
    network: Arc<Networks>,
    to: Attachment,
}

impl Wire {
    pub(crate) fn new(instance: Uuid, network: Arc<Networks>, to: Attachment) -> Self {
        Self {
            instance,
            network,
            to,
        }
    }

    /// Makes the interface `eth0` in the network namespace of a process. What is made goes when
    /// the instance ends.
    ///
    /// # Errors
    /// The fault is [`LaunchFault::Network`].
    pub fn connect(&self, pid: i32) -> Result<(), LaunchError> {
        let made = self.network.attach(self.instance, &self.to, pid);
        made.map_err(|why| LaunchError::new(LaunchFault::Network, why))
    }

    /// Whether the instance may administer the network of its namespace: a concentrator does.
    pub fn is_concentrator(&self) -> bool {
        matches!(self.to, Attachment::Underlay(_))
    }

    /// The variables that a concentrator gets from its node. Copies the files that some of them
    /// name into the instance's directory, for its user alone.
    ///
    /// # Errors
    /// A file cannot be read or copied.
    pub fn env(
        &self,
        place: &InstanceDir,
        user: Option<User>,
    ) -> Result<Vec<(OsString, OsString)>, LaunchError> {
        if !self.is_concentrator() {
            return Ok(Vec::new());
        }
        let config = self.network.config();
        let mut env: Vec<_> = config
            .concentrator_env
            .iter()
            .map(|(name, value)| (name.into(), value.into()))
            .collect();
        let own = |(name, directory): &(String, PathBuf)| {
            let file = directory.join(format!("{}.pem", self.instance));
            (name.clone(), file)
        };
        let files = config.concentrator_files.iter().cloned();
        for (name, from) in files.chain(config.concentrator_certs.as_ref().map(own)) {
            let to = place.dir().join(name.to_ascii_lowercase());
            copy(&from, &to, user).map_err(|e| LaunchError::io(from.display(), &e))?;
            env.push((name.into(), to.into()));
        }
        Ok(env)
    }
}

fn copy(from: &Path, to: &Path, user: Option<User>) -> std::io::Result<()> {
    let content = fs::read(from)?;
    ssntp_transport::replace(to, &content)?;
    match user {
        Some(user) => give(to, user),
        None => Ok(()),
    }
}
