//! The list of workloads, and the page of a workload.

use std::sync::Arc;

use super::html::{Html, html, piece};
use super::instances;
use super::params::encode;
use super::scene::{Made, Missing, Scene, facts};
use super::table::{Column, Table, badge, number, text};
use super::words::{Badge, Grade, WorkloadLink, labels};
use crate::model::{RolloutState, Workload};
use crate::reconcile::Status;

pub(super) struct WorkloadRow {
    pub(super) workload: Arc<Workload>,
    pub(super) status: Status,
    /// The last problem, as a sentence, as far as the reader may see it; empty if there is none.
    pub(super) why: String,
}

impl WorkloadRow {
    pub(super) fn state(&self) -> Badge {
        let Self { workload, status, .. } = self;
        let active = status.running + status.done + status.surge;
        let is_short = active < status.wanted;
        // The most urgent state first: a roll-out that went back, then missing instances.
        match workload.rollout.state {
            _ if workload.deleting => Badge(Grade::Wait, "deleting"),
            RolloutState::Back => Badge(Grade::Bad, "gone back"),
            _ if is_short && status.starting == 0 => Badge(Grade::Bad, "short"),
            // No version has worked yet, and this one does not run either.
            RolloutState::Rolling if active == 0 && workload.rollout.failures > 0 => {
                Badge(Grade::Bad, "failing")
            }
            RolloutState::Rolling => Badge(Grade::Wait, "rolling"),
            _ if is_short => Badge(Grade::Warn, "starting"),
            RolloutState::Paused => Badge(Grade::Warn, "paused"),
            RolloutState::Steady if status.healthy + status.done < status.wanted => {
                Badge(Grade::Warn, "unhealthy")
            }
            RolloutState::Steady => Badge(Grade::Good, "steady"),
        }
    }
}

pub(super) fn all(scene: &Scene<'_>) -> Vec<WorkloadRow> {
    let kept = &scene.picture.kept;
    let workloads = kept.state.workloads.iter();
    let listed = workloads.map(|(name, workload)| {
        let status = kept.status.get(name).cloned().unwrap_or_default();
        let why = status.problem.as_ref().unwrap_or(&workload.rollout.why);
        WorkloadRow {
            workload: Arc::clone(workload),
            why: scene.readable(why).to_owned(),
            status,
        }
    });
    listed.collect()
}

pub(super) fn list(scene: &Scene<'_>, main: &mut Html) -> Result<(), Missing> {
    #[rustfmt::skip] // A table: one entry a column.
    let columns = [
        Column("name", "Workload", "name",
            |row: &WorkloadRow| text(&row.workload.name).showing(&WorkloadLink(&row.workload.name))),
        Column("state", "State", "", |row| badge(row.state())),
        Column("running", "Running", "n", |row| {
            let Status { running, wanted, done, .. } = row.status;
            let mut shown = piece!({running} "<small> of " {wanted} "</small>");
            if done > 0 {
                html!(&mut shown; "<small>, " {done} " done</small>");
            }
            number(i64::from(running) - i64::from(wanted)).showing(&shown)
        }),
        Column("healthy", "Healthy", "n opt", |row| number(row.status.healthy)),
        Column("version", "Version", "n opt", |row| match row.status.outdated {
            0 => number(row.workload.version),
            older => number(row.workload.version)
                .showing(&piece!({row.workload.version} "<small> (" {older} " older)</small>")),
        }),
        Column("why", "Why", "opt", |row| text(&row.why)),
    ];
    let table = Table {
        caption: "Workloads",
        columns: &columns,
        id: |row| format!("w{}", encode(&row.workload.name)),
        find: |row| format!("{} {}", row.workload.name, row.why),
        state: |row| Some(row.state()),
        sort: "name",
        empty: "There is no workload yet; ssntp ctl apply -f FILE creates one.",
    };
    table.show(main, scene.params, all(scene));
    Ok(())
}

/// A count. Zero is empty, which [`facts`] leaves out.
fn unless_zero(count: u32) -> Html {
    if count == 0 {
        Html::default()
    } else {
        piece!({ count })
    }
}

pub(super) fn one(scene: &Scene<'_>, main: &mut Html, name: &str) -> Made {
    let history = scene.newest(100, |query| query.workload = Some(name.to_owned()))?;
    let found = all(scene).into_iter().find(|listed| listed.workload.name == name);
    html!(main; "<p class='way'><a href='/workloads'>Workloads</a></p><h1>" {name} " ");
    let Some(found) = found else {
        if history.is_empty() {
            return Err(Missing::Unknown);
        }
        html!(main; {Badge(Grade::Past, "deleted")} "</h1><h2>What happened</h2>");
        scene.rows(main, &history);
        return Ok(name.to_owned());
    };
    let WorkloadRow { workload, status, .. } = &found;
    html!(main; {found.state()} "</h1>");
    let rollout = match workload.rollout.state {
        RolloutState::Steady => "all instances have this version",
        RolloutState::Rolling => "instances of other versions are being replaced",
        RolloutState::Paused => "it is paused",
        RolloutState::Back => "a former version is being put back",
    };
    let mut version = piece!({ workload.version });
    if let Some(stable) = workload.stable {
        html!(&mut version; ", the last one that worked is " {stable});
    }
    #[rustfmt::skip] // A table: one entry a fact.
    let shown = [
        ("Running", piece!({status.running} " of " {status.wanted})),
        ("Healthy", piece!({status.healthy} " of " {status.wanted})),
        ("Done", unless_zero(status.done)),
        ("Running beyond the count", unless_zero(status.surge)),
        ("Why", piece!({found.why})),
        ("Version", version),
        ("Roll-out", piece!({rollout})),
        ("Older instances", unless_zero(status.outdated)),
        ("Failures of the new version", unless_zero(workload.rollout.failures)),
        ("Labels", piece!({labels(&workload.spec.labels)})),
    ];
    facts(main, shown);
    html!(main; "<h2>Instances</h2>");
    instances::table(scene, main, |instance| instance.workload() == name);
    html!(main; "<h2>What happened</h2>");
    scene.rows(main, &history);
    let spec = serde_json::to_string_pretty(&workload.without_values().spec).unwrap_or_default();
    html!(main; "<details><summary>The spec</summary><pre tabindex='0'>" {spec} "</pre></details>");
    Ok(name.to_owned())
}
