//! The cluster configuration, which CONNECTED carries and a controller's CONFIGURE replaces.

use bytes::Bytes;

use crate::proto::{Command, FrameKind};
use ssntp_pki::Role;
use ssntp_transport::guard;

/// Checks the payload of a CONFIGURE. The error text names the problem.
pub(super) type ConfigurationCheck = dyn Fn(&[u8]) -> Result<(), String> + Send;

/// The configuration, and the check of new ones.
pub(super) struct Configuration {
    content: Bytes,
    check: Box<ConfigurationCheck>,
    /// True if CONFIGURE replaces the configuration.
    takes_configure: bool,
}

impl Configuration {
    pub(super) fn new(content: Bytes, check: Box<ConfigurationCheck>, takes_configure: bool) -> Self {
        Self {
            content,
            check,
            takes_configure,
        }
    }

    pub(super) fn content(&self) -> &Bytes {
        &self.content
    }

    pub(super) fn set(&mut self, content: Bytes) {
        self.content = content;
    }

    /// True if a frame of this kind from a client with this role replaces the configuration.
    pub(super) fn is_replaced_by(&self, kind: FrameKind, role: Role) -> bool {
        self.takes_configure && kind == Command::CONFIGURE && role.intersects(Role::CONTROLLER)
    }

    /// Checks the payload of a CONFIGURE, which replaces the configuration if it passes. Also returns the
    /// message of a panic of the check.
    pub(super) fn replace(&mut self, payload: &Bytes) -> (Result<(), String>, Option<String>) {
        let mut verdict = Err("its check panicked".to_owned());
        let panic = guard(|| verdict = (self.check)(payload)).err();
        if verdict.is_ok() {
            // Copied, because the payload is a slice that keeps a longer read alive.
            self.content = Bytes::copy_from_slice(payload);
        }
        (verdict, panic)
    }
}
