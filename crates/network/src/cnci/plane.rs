//! The data plane, which moves the packets of a tenant.

use std::fmt;
use std::net::IpAddr;

use super::tables::Tables;

/// Configures the system's network by the tables.
///
/// The concentrator's own thread makes each call, and handles no frames meanwhile.
pub trait DataPlane: Send + fmt::Debug {
    /// The name for people. It is saved with the tables.
    fn name(&self) -> &'static str;

    /// Checks tables for entries that are invalid and that were not in the tables that were applied
    /// last. The network is not changed.
    ///
    /// # Errors
    /// The reason why an entry is invalid. The tables are not changed then; a public address is
    /// refused with `assign_failure`.
    fn check(&self, _: &Tables) -> Result<(), String> {
        Ok(())
    }

    /// Checks that a public address that is to be assigned does not belong to another host.
    ///
    /// # Errors
    /// Another host has it. It is refused with `assign_failure` then.
    fn check_free(&self, _: IpAddr) -> Result<(), String> {
        Ok(())
    }

    /// Makes the tunnels, routes and addresses of the tables, and removes all others. Those that are
    /// right are not touched. Called with each change, at the start, at the beginning of each
    /// session, and every 30 s, because another program may have changed the system's network.
    ///
    /// Returns the entries that were left out because they are invalid, unless they were left out the
    /// last time as well.
    ///
    /// # Errors
    /// A part of the network could not be made; all other parts were. At the start, the concentrator
    /// ends.
    fn apply(&mut self, _: &Tables) -> Result<Vec<String>, String> {
        Ok(Vec::new())
    }

    /// Makes the addresses of instances lead to their nodes, after the addresses of tunnels have changed alone.
    ///
    /// # Errors
    /// Some do not. The next [`apply`](Self::apply) makes them.
    fn forward(&mut self, _: &Tables) -> Result<(), String> {
        Ok(())
    }
}

/// A data plane that moves no packets. Only the tables are kept.
#[derive(Clone, Copy, Debug, Default)]
pub struct TablesOnly;

impl DataPlane for TablesOnly {
    fn name(&self) -> &'static str {
        "none: tables only, no packet is moved"
    }
}
