//! The tenants: their networks, and the traffic of their tunnels.

use super::html::{Html, html, piece};
use super::scene::{Missing, Scene};
use super::table::{Column, Table, badge, bytes, number, text};
use super::words::{Badge, Grade, Link};
use ssntp_payload::{TenantEntry, TunnelStats};
use ssntp_view::View;

/// A tenant with its tunnels, which the nodes report in their STATS.
pub(super) struct TenantRow<'a> {
    pub(super) tenant: &'a TenantEntry,
    tunnels: Vec<&'a TunnelStats>,
    has_concentrator: bool,
}

impl TenantRow<'_> {
    fn down(&self) -> usize {
        self.tunnels.iter().filter(|tunnel| !tunnel.up).count()
    }

    pub(super) fn state(&self) -> Badge {
        match self.down() {
            _ if !self.has_concentrator => Badge(Grade::Bad, "no concentrator"),
            0 => Badge(Grade::Good, "up"),
            _ => Badge(Grade::Warn, "tunnels down"),
        }
    }

    fn sum(&self, figure: fn(&TunnelStats) -> u64) -> u64 {
        self.tunnels
            .iter()
            .map(|tunnel| figure(tunnel))
            .fold(0, u64::saturating_add)
    }
}

pub(super) fn list(scene: &Scene<'_>, main: &mut Html) -> Result<(), Missing> {
    match &scene.source.tenants() {
        Ok(tenants) => table(scene, main, tenants),
        Err(why) => html!(main; "<p>The scheduler does not list its tenants: " {why} "</p>"),
    }
    Ok(())
}

fn table(scene: &Scene<'_>, out: &mut Html, tenants: &[TenantEntry]) {
    #[rustfmt::skip] // A table: one entry a column.
    let columns = [
        Column("name", "Tenant", "name", |row: &TenantRow<'_>| text(&row.tenant.name)),
        Column("state", "State", "", |row| badge(row.state())),
        Column("subnet", "Subnet", "", |row| text(&row.tenant.subnet)),
        Column("key", "Key", "n opt", |row| number(row.tenant.key)),
        Column("nodes", "Nodes", "n", |row| match row.down() {
            0 => number(row.tunnels.len()),
            down => number(row.tunnels.len())
                .showing(&piece!({row.tunnels.len()} "<small>, " {down} " down</small>")),
        }),
        Column("in", "Bytes in", "n", |row| bytes(row.sum(|tunnel| tunnel.rx_bytes))),
        Column("out", "Bytes out", "n", |row| bytes(row.sum(|tunnel| tunnel.tx_bytes))),
        Column("drops", "Drops", "n opt", |row| number(row.sum(|tunnel| tunnel.drops))),
        Column("concentrator", "Concentrator", "opt", |row| {
            let mut shown = piece!({row.tenant.concentrator_ip} " ");
            if let Some(uuid) = row.tenant.concentrator_uuid.uuid() {
                shown.show(&Link::instance(uuid, ""));
            }
            text(&row.tenant.concentrator_ip).showing(&shown)
        }),
    ];
    let table = Table {
        caption: "Tenants",
        columns: &columns,
        id: |row| format!("k{}", row.tenant.key),
        find: |row| {
            format!(
                "{} {} {}",
                row.tenant.name, row.tenant.subnet, row.tenant.tenant_uuid
            )
        },
        state: |row| Some(row.state()),
        sort: "name",
        empty: "There is no tenant.",
    };
    table.show(out, scene.params, all(scene, tenants));
}

pub(super) fn all<'a>(scene: &Scene<'a>, tenants: &'a [TenantEntry]) -> Vec<TenantRow<'a>> {
    let view: &'a View = &scene.picture.view;
    let row = |tenant: &'a TenantEntry| {
        let connected = view.nodes().filter(|node| node.connected);
        let tunnels = connected.flat_map(|node| &node.stats.tunnels);
        let concentrator = tenant.concentrator_uuid.uuid();
        TenantRow {
            tenant,
            tunnels: tunnels.filter(|tunnel| tunnel.key == tenant.key).collect(),
            has_concentrator: concentrator.is_some_and(|uuid| view.has_concentrator(uuid)),
        }
    };
    tenants.iter().map(row).collect()
}
