//! The data plane, which moves the packets of a tenant.

use std::fmt;

use super::tables::Tables;

/// Makes the system's network as the tables say.
///
/// Each call comes from the concentrator's own thread and may take a moment; no frame is
/// handled meanwhile.
pub trait DataPlane: Send + fmt::Debug {
    /// Its name for people; it is kept with the tables.
    fn name(&self) -> &'static str;

    /// Looks for what makes no sense in these tables, and did not in those that were applied
    /// last. Changes nothing.
    ///
    /// # Errors
    /// The reason. A frame that asks for these tables changes nothing then; a public address is
    /// refused with `assign_failure`.
    fn check(&self, _: &Tables) -> Result<(), String> {
        Ok(())
    }

    /// Makes all that the tables say, and nothing else. What is there and right stays as it is.
    /// Called with each change, at the start, at the beginning of each session, and every 30 s,
    /// since somebody else may have changed the system's network.
    ///
    /// Gives what was left out because it makes no sense, unless that was left out the last
    /// time as well.
    ///
    /// # Errors
    /// What could not be made; the rest was. At the start the concentrator ends.
    fn apply(&mut self, _: &Tables) -> Result<Vec<String>, String> {
        Ok(Vec::new())
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
