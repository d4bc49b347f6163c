//! The room of the node for instances.
//!
//! Capacity comes from the machine, or from the agent's settings:
//!
//! | | by the machine | by `--mem`, `--disk` |
//! |---|---|---|
//! | total | the system's figure | the amount of the flag |
//! | available | the free amount, less the promised amount that instances do not use yet | the amount of the flag, less the promised amount |
//!
//! The memory of an instance is promised while it runs. Its disk (the volumes that are `local`) is
//! promised until it is deleted.

use std::sync::Arc;

use ssntp_cluster::Needs;
use ssntp_cluster::machine::Facts;
use ssntp_payload::{LauncherConfig, Ready};

use super::events::Settings;

/// A machine with less free memory or disk than this, in MB, is full.
const RESERVE_MB: i64 = 64;

/// The room of the node.
#[derive(Debug)]
pub(super) struct Capacity {
    settings: Arc<Settings>,
    /// The last measurement of the machine.
    facts: Facts,
    /// The last configuration.
    launcher: LauncherConfig,
}

/// What the instances of the node were promised.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Promised {
    /// Memory in MB, and the part of it that the instances do not use yet.
    pub(super) mem: Amount,
    /// Disk in MB.
    pub(super) disk: Amount,
    /// The number of instances that count for the limit.
    pub(super) places: usize,
}

/// A promised amount in MB.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Amount {
    promised: i64,
    unused: i64,
}

impl Amount {
    /// Adds what an instance was promised and what it uses. An unknown usage is -1, and counts as 0.
    pub(super) fn add(&mut self, promised: i64, used: i64) {
        let unused = promised.saturating_sub(used.max(0)).max(0);
        self.promised = self.promised.saturating_add(promised);
        self.unused = self.unused.saturating_add(unused);
    }

    /// The total and the available amount. -1 stands for an unknown value.
    fn of(self, setting: Option<i64>, total: i64, available: i64) -> (i64, i64) {
        match setting {
            Some(total) => (total, total.saturating_sub(self.promised).max(0)),
            None if available < 0 => (total, -1),
            None => (total, available.saturating_sub(self.unused).max(0)),
        }
    }
}

impl Capacity {
    pub(super) fn new(settings: Arc<Settings>, facts: Facts) -> Self {
        Self {
            settings,
            facts,
            launcher: LauncherConfig::default(),
        }
    }

    pub(super) fn facts(&self) -> &Facts {
        &self.facts
    }

    pub(super) fn launcher(&self) -> &LauncherConfig {
        &self.launcher
    }

    pub(super) fn handle_configured(&mut self, launcher: LauncherConfig) {
        self.launcher = launcher;
    }

    pub(super) fn handle_measured(&mut self, facts: Facts) {
        self.facts = facts;
    }

    /// The memory of an instance that has ended is free. If it were counted only by the next
    /// measurement, STARTs would be refused until then.
    pub(super) fn handle_freed(&mut self, memory_mb: i64) {
        if self.facts.mem_available_mb >= 0 {
            self.facts.mem_available_mb += memory_mb.max(0);
        }
    }

    /// The facts of the node, with the memory and disk that it has for instances, in MB. -1 stands
    /// for an unknown value.
    pub(super) fn ready(&self, promised: Promised) -> Ready {
        let facts = &self.facts;
        let mem = promised.mem;
        let (mem_total_mb, mem_available_mb) =
            mem.of(self.settings.mem_mb, facts.mem_total_mb, facts.mem_available_mb);
        let disk = promised.disk;
        let (disk_total_mb, disk_available_mb) = disk.of(
            self.settings.disk_mb,
            facts.disk_total_mb,
            facts.disk_available_mb,
        );
        Ready {
            node_uuid: self.settings.node.into(),
            mem_total_mb,
            mem_available_mb,
            disk_total_mb,
            disk_available_mb,
            labels: self.settings.labels.clone(),
            ..facts.clone()
        }
    }

    /// True if the node has room for an instance.
    pub(super) fn has_room(&self, promised: Promised, needs: &Needs, for_restart: bool) -> bool {
        let limits = &self.launcher;
        let ready = self.ready(promised);
        // An unknown value is -1, and is no reason to refuse an instance.
        let fits = |needed: i64, available: i64| needed <= 0 || available < 0 || needed <= available;
        let mem = !limits.mem_limit || fits(needs.mem_mb, ready.mem_available_mb);
        // A stopped instance has its disk already, and counts for the limit of instances already.
        let disk = !limits.disk_limit || fits(needs.disk_mb, ready.disk_available_mb);
        mem && (for_restart || (disk && !self.is_full(promised)))
    }

    pub(super) fn is_full(&self, promised: Promised) -> bool {
        let limits = &self.launcher;
        let ready = self.ready(promised);
        // With --mem or --disk, the owner has chosen the amount for instances, so all of it may be
        // used.
        let reserve = |flag: Option<i64>| if flag.is_some() { 1 } else { RESERVE_MB };
        // The range excludes -1, so an unknown value does not make a node full.
        let low = |available: i64, flag| (0..reserve(flag)).contains(&available);
        promised.places >= self.settings.max_instances
            || (limits.mem_limit && low(ready.mem_available_mb, self.settings.mem_mb))
            || (limits.disk_limit && low(ready.disk_available_mb, self.settings.disk_mb))
    }
}
