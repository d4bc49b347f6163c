//! The files of a node that has joined. Each is written in one step, with a mode that lets only its owner read it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use ssntp_pki::{Error, Identity, Trust, node_key};
use ssntp_transport::replace_with_mode;

/// The directory with the files of a node that has joined: `node.pem` with its certificate and key, and `ca.pem` with
/// its authority. Only their owner may read them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeFiles(PathBuf);

impl NodeFiles {
    /// The files in this directory, which need not exist yet.
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        Self(directory.into())
    }

    /// The file for [`Identity::load`].
    pub fn certificate(&self) -> PathBuf {
        self.0.join("node.pem")
    }

    /// The file for [`Trust::load`].
    pub fn authority(&self) -> PathBuf {
        self.0.join("ca.pem")
    }

    /// The key of a join that is not complete.
    pub(super) fn pending_key(&self) -> PathBuf {
        self.0.join("join.key")
    }

    /// The new key of a renewal that is not complete.
    pub(super) fn renewal_key(&self) -> PathBuf {
        self.0.join("renew.key")
    }

    /// Loads identity and trust. Blocks on the disk.
    ///
    /// # Errors
    /// As [`Identity::load`] and [`Trust::load`]. With [`Fault::Expired`](ssntp_pki::Fault::Expired) the node needs a new token.
    pub fn load(&self) -> Result<(Identity, Trust), Error> {
        Ok((
            Identity::load(self.certificate())?,
            Trust::load(self.authority())?,
        ))
    }
}

/// The key of an earlier attempt in this file, or a new one, which is on the disk when this returns.
pub(super) fn key_at(path: &Path) -> Result<String, Error> {
    match fs::read_to_string(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            let key = node_key()?;
            write(path, &key)?;
            Ok(key)
        }
        read => read.map_err(|source| Error::Read {
            path: path.to_owned(),
            source,
        }),
    }
}

/// Writes a file that only its owner may read, in one step, and its directory.
pub(super) fn write(path: &Path, text: &str) -> Result<(), Error> {
    let written = path.parent().map_or(Ok(()), fs::create_dir_all);
    let written = written.and_then(|()| replace_with_mode(path, text.as_bytes(), Some(0o600)));
    written.map_err(|source| Error::Write {
        path: path.to_owned(),
        source,
    })
}
