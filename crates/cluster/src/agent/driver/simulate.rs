//! Instances that are nothing at all: for tests of the load on a cluster.

use std::io;

use super::{
    Commit, Driver, EndSink, Ended, Exit, Found, Handle, Launch, LaunchError, Place, Running, Subject, Usage,
    Volume, VolumeError,
};
use ssntp::payload::Start;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use uuid::Uuid;

/// Pretends to run instances: any kind starts at once, uses a plausible part
/// of what it was promised, and ends when it is asked to. What was started
/// is gone with the driver.
#[derive(Debug, Default)]
pub struct SimulateDriver {
    running: Mutex<HashMap<Uuid, Simulated>>,
}

#[derive(Default)]
struct Simulated {
    run: u64,
    sink: Option<EndSink>,
}

impl std::fmt::Debug for Simulated {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Simulated({})", self.run)
    }
}

impl SimulateDriver {
    /// A driver with nothing running.
    pub fn new() -> Self {
        Self::default()
    }

    fn with<T>(&self, call: impl FnOnce(&mut HashMap<Uuid, Simulated>) -> T) -> T {
        call(&mut self.running.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Both ways of ending: nothing here refuses.
    fn end(&self, running: &Running, code: i32) {
        let instance = running.place.instance();
        let ended = self.with(|all| match all.get(&instance) {
            Some(simulated) if simulated.run == running.handle.start_time => all.remove(&instance),
            _ => None,
        });
        if let Some(sink) = ended.and_then(|simulated| simulated.sink) {
            sink(Ended {
                instance,
                handle: running.handle.clone(),
                exit: Exit::code(code),
            });
        }
    }
}

impl Driver for SimulateDriver {
    fn name(&self) -> &'static str {
        "simulate"
    }

    fn check(&self, _: &Start) -> Result<(), LaunchError> {
        Ok(())
    }

    fn launch(&self, launch: &Launch<'_>, commit: &mut Commit<'_>) -> Result<Handle, LaunchError> {
        let (_, run) = Uuid::new_v4().as_u64_pair();
        let handle = Handle {
            pid: 0,
            start_time: run,
            boot_id: String::new(),
        };
        commit(&handle).map_err(|e| LaunchError::io("its state cannot be saved", &e))?;
        let simulated = Simulated { run, sink: None };
        self.with(|all| all.insert(launch.place.instance(), simulated));
        Ok(handle)
    }

    fn watch(&self, running: &Running, sink: &EndSink) {
        self.with(|all| {
            if let Some(simulated) = all.get_mut(&running.place.instance()) {
                simulated.sink = Some(EndSink::clone(sink));
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

    fn find_unrecorded(&self, _: &Place) -> Option<Handle> {
        None
    }

    fn measure(&self, subjects: &[Subject]) -> Vec<Usage> {
        let measure = |subject: &Subject| {
            // Different for each instance, the same at each look.
            let (_, low) = subject.place.instance().as_u64_pair();
            let share = i64::try_from(low % 60).unwrap_or(0) + 20;
            let running = subject.handle.is_some();
            Usage {
                memory_mb: if running { subject.mem_mb * share / 100 } else { 0 },
                disk_mb: share * 10,
                cpu_percent: if running { share / 2 } else { 0 },
            }
        };
        subjects.iter().map(measure).collect()
    }

    fn forget(&self, place: &Place) {
        self.with(|all| all.remove(&place.instance()));
    }

    fn attach(&self, _: &Place, _: Option<&Handle>, _: &Volume) -> Result<(), VolumeError> {
        Ok(())
    }

    fn detach(&self, _: &Place, _: Option<&Handle>, _: &Volume) -> Result<(), VolumeError> {
        Ok(())
    }
}
