//! Who moves the packets of a tenant.

use std::fmt;

use super::tables::{Peer, PublicIp, Tables, Tunnel};

/// Makes the tables true in the system's network.
///
/// Each call comes from the concentrator's own thread and may take a moment;
/// no frame is taken meanwhile. Calls may be repeated with what is true
/// already.
pub trait DataPlane: Send + fmt::Debug {
    /// Its name, for people: it stands with the tables.
    fn name(&self) -> &'static str;

    /// Makes all of it true: called once at the beginning, with what a former
    /// run left.
    ///
    /// # Errors
    /// Why not; the concentrator does not start.
    fn restore(&mut self, tables: &Tables) -> Result<(), String>;

    /// Makes a tunnel, or changes it.
    ///
    /// # Errors
    /// Why not; the table has it all the same.
    fn add_tunnel(&mut self, tunnel: &Tunnel) -> Result<(), String>;

    /// Removes a tunnel.
    ///
    /// # Errors
    /// Why not; the table forgets it all the same.
    fn remove_tunnel(&mut self, tunnel: &Tunnel) -> Result<(), String>;

    /// Has tunnels to these concentrators, and no others.
    ///
    /// # Errors
    /// Why not; the table has them all the same.
    fn set_peers(&mut self, peers: &[Peer]) -> Result<(), String>;

    /// Gives a public address to an instance.
    ///
    /// # Errors
    /// Why not: the request fails with `assign_failure`.
    fn assign(&mut self, ip: &PublicIp) -> Result<(), String>;

    /// Takes a public address back.
    ///
    /// # Errors
    /// Why not: the request fails with `release_failure`.
    fn release(&mut self, ip: &PublicIp) -> Result<(), String>;
}

/// Moves no packets: the tables are all there is.
#[derive(Clone, Copy, Debug, Default)]
pub struct TablesOnly;

impl DataPlane for TablesOnly {
    fn name(&self) -> &'static str {
        "none: tables only, no packet is moved"
    }

    fn restore(&mut self, _: &Tables) -> Result<(), String> {
        Ok(())
    }

    fn add_tunnel(&mut self, _: &Tunnel) -> Result<(), String> {
        Ok(())
    }

    fn remove_tunnel(&mut self, _: &Tunnel) -> Result<(), String> {
        Ok(())
    }

    fn set_peers(&mut self, _: &[Peer]) -> Result<(), String> {
        Ok(())
    }

    fn assign(&mut self, _: &PublicIp) -> Result<(), String> {
        Ok(())
    }

    fn release(&mut self, _: &PublicIp) -> Result<(), String> {
        Ok(())
    }
}
