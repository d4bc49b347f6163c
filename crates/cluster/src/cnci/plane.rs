//! The data plane, which moves the packets of a tenant.

use std::fmt;

use super::tables::{PublicIp, Tables, Tunnel};
use ssntp::payload::CnciPeer;

/// Makes the system's network as the tables say.
///
/// Each call comes from the concentrator's own thread and may take a moment; no frame is
/// handled meanwhile. Calls may be repeated, and are idempotent.
pub trait DataPlane: Send + fmt::Debug {
    /// Its name for people; it is kept with the tables.
    fn name(&self) -> &'static str;

    /// Makes all that the tables say. Called once at the start, with the tables of a former
    /// run.
    ///
    /// # Errors
    /// The reason; the concentrator does not start.
    fn restore(&mut self, _: &Tables) -> Result<(), String> {
        Ok(())
    }

    /// Makes a tunnel, or changes it.
    ///
    /// # Errors
    /// The reason; it is logged, and the table has the tunnel all the same.
    fn add_tunnel(&mut self, _: &Tunnel) -> Result<(), String> {
        Ok(())
    }

    /// Removes a tunnel.
    ///
    /// # Errors
    /// The reason; it is logged, and the table forgets the tunnel all the same.
    fn remove_tunnel(&mut self, _: &Tunnel) -> Result<(), String> {
        Ok(())
    }

    /// Makes tunnels to these concentrators, and removes those to others.
    ///
    /// # Errors
    /// The reason; it is logged, and the table has the peers all the same.
    fn set_peers(&mut self, _: &[CnciPeer]) -> Result<(), String> {
        Ok(())
    }

    /// Gives a public address to an instance, or another private address to one that it has.
    ///
    /// # Errors
    /// The reason; the command fails with `assign_failure`, and the address leads where it led
    /// before.
    fn assign(&mut self, _: &PublicIp) -> Result<(), String> {
        Ok(())
    }

    /// Takes a public address back.
    ///
    /// # Errors
    /// The reason; the command fails with `release_failure`.
    fn release(&mut self, _: &PublicIp) -> Result<(), String> {
        Ok(())
    }

    /// Makes again what somebody else has changed. Called at the beginning of each session, and
    /// every 30 s.
    ///
    /// # Errors
    /// The reason; it is logged.
    fn look(&mut self) -> Result<(), String> {
        Ok(())
    }
}

/// Moves no packets: only the tables are kept.
#[derive(Clone, Copy, Debug, Default)]
pub struct TablesOnly;

impl DataPlane for TablesOnly {
    fn name(&self) -> &'static str {
        "none: tables only, no packet is moved"
    }
}
