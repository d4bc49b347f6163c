//! Instances that are entries in a table.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use super::Counts;
use ssntp_agent::driver::{
    Commit, Driver, Ended, Exit, Found, InstanceDir, Launch, Measurable, NewsSink, Refused, RunId, Running,
    Usage, Volume,
};
use ssntp_payload::Start;
use uuid::Uuid;

/// Simulates instances: each kind starts at once, uses a plausible part
/// of its resources, and ends on request. The instances end with the driver.
#[derive(Debug, Default)]
pub(super) struct SimulateDriver {
    running: Mutex<HashMap<Uuid, Simulated>>,
    counts: Arc<Counts>,
}

struct Simulated {
    run: u64,
    sink: Option<NewsSink>,
}

impl std::fmt::Debug for Simulated {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Simulated({})", self.run)
    }
}

impl SimulateDriver {
    /// A driver with nothing running, which counts its launches.
    pub(super) fn new(counts: Arc<Counts>) -> Self {
        let running = Mutex::default();
        Self { running, counts }
    }

    fn with<T>(&self, call: impl FnOnce(&mut HashMap<Uuid, Simulated>) -> T) -> T {
        call(&mut self.running.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Ends an instance, after a request or a kill.
    fn end(&self, running: &Running, code: i32) {
        let instance = running.place.instance();
        let ended = self.with(|all| match all.get(&instance) {
            Some(simulated) if simulated.run == running.handle.start_time => all.remove(&instance),
            _ => None,
        });
        if let Some(sink) = ended.and_then(|simulated| simulated.sink) {
            let ended = Ended {
                instance,
                handle: running.handle.clone(),
                exit: Exit::code(code),
            };
            sink(ended.into());
        }
    }
}

impl Driver for SimulateDriver {
    fn name(&self) -> &'static str {
        "simulate"
    }

    fn check(&self, _: &Start) -> Result<(), Refused> {
        Ok(())
    }

    fn launch(&self, launch: &Launch<'_>, commit: &mut Commit<'_>) -> Result<RunId, Refused> {
        let (_, run) = Uuid::new_v4().as_u64_pair();
        let handle = RunId {
            pid: 0,
            start_time: run,
            boot_id: String::new(),
        };
        commit(&handle).map_err(|e| Refused::io("its state cannot be saved", &e))?;
        let simulated = Simulated { run, sink: None };
        self.with(|all| all.insert(launch.place.instance(), simulated));
        self.counts.launch(launch.place.instance());
        Ok(handle)
    }

    fn watch(&self, running: &Running, sink: &NewsSink) {
        self.with(|all| {
            if let Some(simulated) = all.get_mut(&running.place.instance()) {
                simulated.sink = Some(NewsSink::clone(sink));
            }
        });
    }

    fn terminate(&self, running: &Running) -> io::Result<()> {
        self.end(running, 143);
        Ok(())
    }

    fn kill(&self, running: &Running) -> io::Result<()> {
        self.end(running, 137);
        Ok(())
    }

    fn find(&self, _: &Running) -> Found {
        Found::Ended(Exit::default())
    }

    fn find_unrecorded(&self, _: &InstanceDir) -> Option<RunId> {
        None
    }

    fn measure(&self, subjects: &[Measurable]) -> Vec<Usage> {
        let measure = |subject: &Measurable| {
            // The value differs between instances, and is the same at each measurement.
            let (_, low) = subject.place.instance().as_u64_pair();
            let share = i64::try_from(low % 60).unwrap_or(0) + 20;
            let running = subject.handle.is_some();
            Usage {
                memory_mb: if running { subject.mem_mb * share / 100 } else { 0 },
                disk_mb: share * 10,
                cpu_percent: if running { share / 2 } else { 0 },
                ..Usage::default()
            }
        };
        subjects.iter().map(measure).collect()
    }

    fn forget(&self, place: &InstanceDir) {
        self.with(|all| all.remove(&place.instance()));
    }

    fn attach(&self, _: &InstanceDir, _: Option<&RunId>, _: &Volume) -> Result<(), Refused> {
        Ok(())
    }

    fn detach(&self, _: &InstanceDir, _: Option<&RunId>, _: &Volume) -> Result<(), Refused> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;
    use ssntp_agent::Policy;
    use ssntp_agent::driver::{Cancel, News};
    use ssntp_payload::StartPayload;

    #[test]
    fn instances_use_a_part_of_their_promise_and_end_once() {
        let driver = SimulateDriver::default();
        let place = InstanceDir::new(Uuid::from_u128(7), "/nowhere");
        let launch = Launch {
            place: &place,
            payload: &StartPayload::default(),
            user: None,
            policy: &Policy::default(),
            cancel: &Cancel::default(),
            network: None,
        };
        let handle = driver.launch(&launch, &mut |_| Ok(())).unwrap();
        assert_eq!(driver.counts.launched.load(Ordering::Relaxed), 1);
        let subject = |handle| Measurable {
            place: place.clone(),
            handle,
            vcpus: 1,
            mem_mb: 100,
        };
        let usages = driver.measure(&[subject(Some(handle.clone())), subject(None)]);
        assert!((20..=80).contains(&usages[0].memory_mb) && usages[1].memory_mb == 0);
        let ends = Arc::new(Mutex::new(Vec::new()));
        let counted_ends = Arc::clone(&ends);
        let sink: NewsSink = Arc::new(move |news| {
            if let News::Ended(ended) = news {
                counted_ends.lock().unwrap().push(ended.exit.code);
            }
        });
        let running = Running {
            place: place.clone(),
            handle,
        };
        driver.watch(&running, &sink);
        driver.terminate(&running).unwrap();
        driver.kill(&running).unwrap();
        assert_eq!(*ends.lock().unwrap(), [Some(143)]);
    }
}
