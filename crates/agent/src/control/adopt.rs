//! The takeover of instances that a former agent left.

use std::sync::Arc;

use log::{info, warn};
use uuid::Uuid;

use super::lifecycle::subject;
use super::{Control, Instance, Job, Life, Mode, Next};
use crate::driver::{Driver, Ended, Exit, Found};
use crate::network::Attachment;
use crate::store::{self, NodeRecord, Record, RecordAfter, RecordPhase, Stored};
use ssntp::proto::Command;
use ssntp_cluster::refusal::Refused;
use ssntp_payload::{CommandSubject, StartPayload};

impl Control {
    /// Takes over the instances of a former agent. The drivers look for their processes, which can
    /// block, so this is called before the agent's thread starts.
    pub(crate) fn adopt(&mut self, node: NodeRecord, stored: Vec<Stored>) {
        self.offline = node.offline;
        for stored in stored {
            self.adopt_instance(stored);
        }
        if node.maintenance {
            self.next_state = node.next_state.clone();
            self.job(Job::SaveNode(node, None));
            // Instances may still run. The mode becomes Maintenance once all of them have ended.
            self.mode = Mode::Evacuating;
            self.evacuate_all(self.settings.grace);
        }
    }

    /// Ends the runs of former agents whose records are gone. This blocks, so it is called before
    /// the agent's thread starts.
    pub(crate) fn sweep(&self) {
        let Some(root) = &self.settings.state else { return };
        let instances = self.instances.values();
        let own = instances
            .filter_map(|instance| Some(instance.record.handle()?.pid))
            .collect();
        for driver in &self.settings.drivers {
            driver.sweep(&store::instances(root), &own);
        }
    }

    /// Makes the networks that the instances need in the kernel. This blocks, so it is called
    /// before the agent's thread starts.
    pub(crate) fn restore_networks(&self) {
        let Some(network) = &self.settings.network else {
            return;
        };
        let attached = |(id, instance): (&Uuid, &Instance)| {
            let pid = instance.record.handle().filter(|_| instance.is_running())?.pid;
            let start = &instance.start.as_ref()?.start;
            let to = Attachment::of(start).ok()??;
            network.check(&to).ok()?;
            Some((*id, to, pid))
        };
        let attached: Vec<_> = self.instances.iter().filter_map(attached).collect();
        if let Err(why) = network.restore(&attached) {
            warn!("{}: tenants' networks: {why}", self.settings.node);
        }
    }

    fn adopt_instance(&mut self, stored: Stored) {
        let id = stored.instance;
        let Some(root) = &self.settings.state else { return };
        let place = store::place(root, id);
        // A lost record becomes the default record, which looks like a launch under way.
        // `recorded` tells the two apart.
        let recorded = stored.record.is_some();
        let record = stored.record.unwrap_or_default();
        let start: Option<Arc<StartPayload>> = stored.start.map(Arc::from);
        let (age, rebooted) = (stored.age, stored.rebooted);
        // The handle is written before the program runs, so an instance without one never ran.
        if recorded && record.phase == RecordPhase::Starting {
            let driver = self.driver_of(&record, None);
            self.never_ran(id, driver, start.as_deref());
            return;
        }
        let mut instance = Instance {
            driver: self.driver_of(&record, start.as_deref()),
            start,
            volumes: stored.volumes,
            ..Instance::new(place, record, Life::Stopped(Next::Stay), self.now)
        };
        if !recorded {
            self.recover_record(&mut instance);
        }
        let found = instance
            .running()
            .map(|(driver, running)| (driver.find(&running), driver, running));
        let ended = match found {
            Some((Found::Running, driver, running)) => {
                info!("{}: instance {id} still runs", self.settings.node);
                instance.life = Life::Active;
                // The worker watches the adopted run for its end, like any other run.
                self.job(Job::Watch(driver, running));
                None
            }
            // If the first run never began, its START has no answer yet. If a later run never began,
            // the instance has run before and is kept.
            Some((Found::NeverRan, driver, _)) if instance.record.is_first_run() => {
                self.never_ran(id, Some(driver), instance.start.as_deref());
                return;
            }
            Some((Found::NeverRan, _, running)) => Some((Exit::default(), running.handle)),
            Some((Found::Ended(exit), _, running)) => {
                if rebooted && exit.code.is_none() {
                    // Its supervisor wrote no end, so it ran until the reboot.
                    instance.record.detail = "its node was booted".into();
                    // The reboot is no fault of the instance, so the next restart is not delayed.
                    instance.record.restarts_in_row = 0;
                }
                Some((exit, running.handle))
            }
            // Only its driver can find out whether it runs. The record stays as it is, for an agent
            // that has the driver.
            None if instance.is_out_of_reach() => {
                warn!(
                    "{}: instance {id} needs the driver {:?}, and this agent has none",
                    self.settings.node, instance.record.driver
                );
                self.instances.insert(id, instance);
                return;
            }
            None => None,
        };
        let after = instance.record.after;
        let has_ended = !instance.is_running() && ended.is_none();
        // `ended` below handles this end like any other, and expects a running instance.
        if ended.is_some() {
            instance.life = Life::Active;
        }
        self.instances.insert(id, instance);
        if has_ended && after == RecordAfter::Nothing {
            self.take_up(id, age);
        }
        match ended {
            Some((exit, handle)) => self.ended(Ended {
                instance: id,
                handle,
                exit,
            }),
            None if after != RecordAfter::Nothing => self.end(id, after),
            None => {}
        }
    }

    /// Answers a START that the former agent could not answer before its end, with a failure.
    fn never_ran(&mut self, id: Uuid, driver: Option<Arc<dyn Driver>>, start: Option<&StartPayload>) {
        let restart = start.is_some_and(|start| start.start.restart);
        info!(
            "{}: instance {id} was being started, and is removed",
            self.settings.node
        );
        // A volume that the START names may have had data before, so it is not deleted with the
        // instance.
        let ephemeral = start.map(|start| store::own_volumes(&start.start));
        self.job(Job::Remove {
            instance: id,
            driver,
            ephemeral: ephemeral.unwrap_or_default(),
        });
        let refused = Refused::new("launch_failure", "its agent ended before it ran");
        let subject = CommandSubject {
            restart,
            ..subject(id)
        };
        self.fail(Command::START, subject, &refused);
    }

    /// Makes a new record in place of a lost one, from the START and the processes that run.
    fn recover_record(&mut self, instance: &mut Instance) {
        let id = instance.place.instance();
        // Any driver finds any supervisor, so the driver that takes the START comes first.
        let drivers = instance.driver.iter().chain(&self.settings.drivers);
        let found = drivers
            .filter_map(|driver| Some((driver, driver.find_unrecorded(&instance.place)?)))
            .next();
        if let Some((driver, handle)) = found.map(|(driver, handle)| (Arc::clone(driver), handle)) {
            instance.driver = Some(driver);
            instance.record = Record::default().running(&handle, 0);
        } else {
            // No driver finds a process of this instance, so it does not run.
            instance.record = Record::default().stopped(Exit::default());
        }
        if let Some(driver) = &instance.driver {
            instance.record.driver = driver.name().to_owned();
        }
        warn!(
            "{}: the record of instance {id} was lost; it {}",
            self.settings.node,
            if instance.record.handle().is_some() {
                "runs"
            } else {
                "is stopped"
            }
        );
        let record = instance.record();
        self.job(Job::Save { instance: id, record });
    }

    fn driver_of(&self, record: &Record, start: Option<&StartPayload>) -> Option<Arc<dyn Driver>> {
        let mut drivers = self.settings.drivers.iter();
        let takes = |driver: &&Arc<dyn Driver>| match (record.driver.as_str(), start) {
            // A record of an older version, or a lost one, names no driver.
            ("", Some(start)) => driver.check(&start.start).is_ok(),
            (name, _) => driver.name() == name,
        };
        drivers.find(takes).cloned()
    }
}
