//! Unix sockets for programs on the same host, beside the protocol's own
//! connections.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Duration;

use super::StartError;
use ssntp_transport::{Address, Duplex, Listener, TcpOptions};

/// A Unix socket to listen at. A file that a killed process left there is
/// replaced, and the file goes when whoever listens stops.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalSocket {
    /// Its file.
    pub path: PathBuf,
    /// The permissions of the file. Default 0600: the own user alone.
    pub mode: u32,
}

impl LocalSocket {
    /// A socket for the own user.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        let path = path.into();
        Self { path, mode: 0o600 }
    }

    /// For the group of the file as well.
    pub fn for_group(mut self) -> Self {
        self.mode = 0o660;
        self
    }

    pub(super) fn listen(&self) -> Result<Vec<Listener>, StartError> {
        let address = Address::Unix(self.path.clone());
        let failed = |e| StartError::Listen(address.clone(), e);
        let bound = Listener::bind(&address, TcpOptions::default()).map_err(failed)?;
        // A program can connect only after the file has these permissions, since nothing accepts yet.
        fs::set_permissions(&self.path, fs::Permissions::from_mode(self.mode)).map_err(failed)?;
        Ok(bound)
    }
}

/// How long one write may block: how soon a writer sees that it is to give up.
pub(super) const LOOK: Duration = Duration::from_millis(250);

/// After how many of these without a byte taken a reader counts as gone: 30 s.
const PATIENCE: u32 = 120;

/// Writes all to a stream whose write timeout is [`LOOK`]. Blocks until it is
/// taken, `gives_up` says so, or nothing is taken for a while.
pub(super) fn write_all(
    stream: &dyn Duplex,
    mut bytes: &[u8],
    gives_up: impl Fn() -> bool,
) -> io::Result<()> {
    let mut in_vain = 0;
    while !bytes.is_empty() {
        match stream.write(bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => {
                bytes = &bytes[written..];
                in_vain = 0;
            }
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                in_vain += 1;
                if in_vain >= PATIENCE || gives_up() {
                    return Err(io::ErrorKind::TimedOut.into());
                }
            }
            Err(e) => return Err(e),
        }
    }
    Ok(())
}
