//! The takeover of instances that a former agent left. The drivers look for processes, which can block,
//! so these functions are called before the agent's thread starts.

use std::path::Path;
use std::sync::Arc;

use log::{info, warn};
use ssntp::proto::Command;
use ssntp_cluster::refusal::{Reason, Refused};
use ssntp_payload::{CommandSubject, StartPayload};
use uuid::Uuid;

use super::events::{Job, Settings};
use super::instance::{Instance, Life, Next};
use super::instances::Instances;
use super::outputs::{Outputs, subject};
use super::volumes::Volumes;
use crate::driver::supervisor::is_alive;
use crate::driver::{Driver, Ended, Exit, Found, RunId, boot_id};
use crate::network::Attachment;
use crate::store::{self, Record, RecordPhase, Stored};

/// Ends the runs of former agents whose records are gone.
pub(super) fn sweep(settings: &Settings, instances: &Instances) {
    let Some(root) = &settings.state else { return };
    let all = instances.iter();
    let own = all
        .filter_map(|(_, instance)| Some(instance.record.handle()?.pid))
        .collect();
    for driver in &settings.drivers {
        driver.sweep(&store::instances(root), &own);
    }
}

/// Makes the networks that the instances need in the kernel.
pub(super) fn restore_networks(settings: &Settings, instances: &Instances) {
    let Some(network) = &settings.network else {
        return;
    };
    // An instance whose driver this agent lacks may run, and another agent will have the driver. Another program
    // that has its number now must not get its network.
    let boot = boot_id();
    let runs = |instance: &Instance, run: &RunId| {
        instance.is_running() || instance.is_out_of_reach() && run.boot_id == boot && is_alive(run)
    };
    let attached = |(id, instance): (&Uuid, &Instance)| {
        let pid = instance.record.handle().filter(|run| runs(instance, run))?.pid;
        let start = &instance.start.as_ref()?.start;
        let to = Attachment::of(start).ok()??;
        network.check(&to).ok()?;
        Some((*id, to, pid))
    };
    let attached: Vec<_> = instances.iter().filter_map(attached).collect();
    if let Err(why) = network.restore(&attached) {
        warn!("{}: tenants' networks: {why}", settings.node);
    }
}

/// The instance of a former agent, and the end of its run, if it has ended since. `None` if it never ran:
/// its START is answered with a failure then, and its files are removed.
pub(super) fn examine(
    settings: &Settings,
    root: &Path,
    stored: Stored,
    out: &mut Outputs,
) -> Option<(Instance, Option<Ended>)> {
    let id = stored.instance;
    let place = store::place(root, id);
    // A lost record becomes the default record, which looks like a launch under way.
    // `recorded` tells the two apart.
    let recorded = stored.record.is_some();
    let record = stored.record.unwrap_or_default();
    let start: Option<Arc<StartPayload>> = stored.start.map(Arc::from);
    // The handle is written before the program runs, so an instance without one never ran.
    if recorded && record.phase == RecordPhase::Starting {
        let driver = driver_of(settings, &record, None);
        never_ran(id, driver, start.as_deref(), out);
        return None;
    }
    let mut instance = Instance {
        driver: driver_of(settings, &record, start.as_deref()),
        start,
        volumes: Volumes::new(stored.volumes),
        ..Instance::new(place, record, Life::Stopped(Next::Stay), out.now())
    };
    if !recorded {
        recover_record(settings, &mut instance, out);
    }
    let Some((driver, running)) = instance.running() else {
        if instance.is_out_of_reach() {
            // Only its driver can find out whether it runs. The record stays as it is, for an agent
            // that has the driver.
            warn!(
                "{}: instance {id} needs the driver {:?}, and this agent has none",
                settings.node, instance.record.driver
            );
        } else if instance.record.restarting {
            not_restarted(&mut instance, out);
            instance.save(out);
        }
        return Some((instance, None));
    };
    // A run that has ended is handled like any other end, which expects a running instance.
    instance.life = Life::Active;
    let exit = match driver.find(&running) {
        Found::Running => {
            info!("{}: instance {id} still runs", settings.node);
            // The worker watches the adopted run for its end, like any other run.
            out.job(Job::Watch(driver, running));
            return Some((instance, None));
        }
        // If the first run never began, its START has no answer yet. If a later run never began,
        // the instance has run before and is kept.
        Found::NeverRan if instance.record.is_first_run() => {
            never_ran(id, Some(driver), instance.start.as_deref(), out);
            return None;
        }
        Found::NeverRan => {
            if instance.record.restarting {
                not_restarted(&mut instance, out);
            }
            Exit::default()
        }
        Found::Ended(exit) => {
            if stored.rebooted && exit.code.is_none() {
                // Its supervisor wrote no end, so it ran until the reboot.
                instance.record.detail = "its node was booted".into();
                // The reboot is no fault of the instance, so the next restart is not delayed.
                instance.record.restarts_in_row = 0;
            }
            exit
        }
    };
    let ended = Ended {
        instance: id,
        handle: running.handle,
        exit,
    };
    Some((instance, Some(ended)))
}

/// Answers a START that the former agent could not answer before its end, with a failure.
fn never_ran(id: Uuid, driver: Option<Arc<dyn Driver>>, start: Option<&StartPayload>, out: &mut Outputs) {
    let restart = start.is_some_and(|start| start.start.restart);
    info!("{}: instance {id} was being started, and is removed", out.node());
    // A volume that the START names may have had data before, so it is not deleted with the
    // instance.
    let ephemeral = start.map(|start| store::own_volumes(&start.start));
    out.job(Job::Remove {
        instance: id,
        driver,
        ephemeral: ephemeral.unwrap_or_default(),
    });
    let refused = Refused::new(Reason::LaunchFailure, "its agent ended before it ran");
    let subject = CommandSubject {
        restart,
        ..subject(id)
    };
    out.fail(Command::START, subject, &refused);
}

/// Answers a RESTART that the former agent could not answer before its end, with a failure.
fn not_restarted(instance: &mut Instance, out: &mut Outputs) {
    let why = "its agent ended before it ran";
    instance.record.detail = format!("it was not started again: {why}");
    let subject = subject(instance.place.instance());
    out.fail(
        Command::RESTART,
        subject,
        &Refused::new(Reason::LaunchFailure, why),
    );
}

/// Makes a new record in place of a lost one, from the START and the processes that run.
fn recover_record(settings: &Settings, instance: &mut Instance, out: &mut Outputs) {
    let id = instance.place.instance();
    // Any driver finds any supervisor, so the driver that takes the START comes first.
    let drivers = instance.driver.iter().chain(&settings.drivers);
    let found = drivers
        .filter_map(|driver| Some((driver, driver.find_unrecorded(&instance.place)?)))
        .next();
    let state = if let Some((driver, handle)) = found.map(|(driver, handle)| (Arc::clone(driver), handle)) {
        instance.driver = Some(driver);
        instance.record = Record::default().running(&handle, 0);
        "runs"
    } else {
        // No driver finds a process of this instance, so it does not run.
        instance.record = Record::default().stopped(Exit::default());
        "is stopped"
    };
    if let Some(driver) = &instance.driver {
        instance.record.driver = driver.name().to_owned();
    }
    warn!("{}: the record of instance {id} was lost; it {state}", out.node());
    instance.save(out);
}

fn driver_of(settings: &Settings, record: &Record, start: Option<&StartPayload>) -> Option<Arc<dyn Driver>> {
    let mut drivers = settings.drivers.iter();
    let takes = |driver: &&Arc<dyn Driver>| match (record.driver.as_str(), start) {
        // A record of an older version, or a lost one, names no driver.
        ("", Some(start)) => driver.check(&start.start).is_ok(),
        (name, _) => driver.name() == name,
    };
    drivers.find(takes).cloned()
}
