//! The faults that are caused in the cluster, one after the other.

use std::fs::{self, File};
use std::io::Write;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::Result;
use crate::soak::cluster::{AGENTS, Cluster};

/// The pause between two faults.
const PAUSE: Duration = Duration::from_secs(3);

#[derive(Default)]
pub(crate) struct Chaos {
    next: usize,
    done: [usize; STEPS.len()],
    under_way: Option<(Step, Instant)>,
    pause_until: Option<Instant>,
}

#[derive(Clone, Copy)]
struct Step {
    name: &'static str,
    /// The duration, in milliseconds.
    lasts: u64,
    begin: fn(&mut Cluster, usize) -> Result<()>,
    end: fn(&mut Cluster, usize) -> Result<()>,
}

const STEPS: [Step; 8] = [
    Step {
        name: "agents killed",
        lasts: 500,
        begin: |cluster, turn| {
            cluster.daemons[agent(turn)].kill();
            Ok(())
        },
        end: |cluster, turn| cluster.daemons[agent(turn)].start(),
    },
    Step {
        name: "supervisors killed",
        lasts: 0,
        begin: |cluster, turn| kill_one(cluster, turn, true),
        end: |_, _| Ok(()),
    },
    Step {
        name: "workloads killed",
        lasts: 0,
        begin: |cluster, turn| kill_one(cluster, turn, false),
        end: |_, _| Ok(()),
    },
    Step {
        name: "disks filled",
        lasts: 4000,
        begin: |cluster, _| fill(cluster),
        end: |cluster, _| empty(cluster),
    },
    Step {
        name: "schedulers killed",
        lasts: 1000,
        begin: |cluster, _| {
            cluster.daemons[0].kill();
            Ok(())
        },
        end: |cluster, _| cluster.daemons[0].start(),
    },
    Step {
        name: "agents replaced",
        lasts: 200,
        begin: |cluster, turn| {
            // A new file replaces the old one, so processes that run the old file are not affected.
            let beside = cluster.program.with_extension("new");
            fs::copy(&cluster.program, &beside)?;
            fs::rename(&beside, &cluster.program)?;
            cluster.daemons[agent(turn)].kill();
            Ok(())
        },
        end: |cluster, turn| cluster.daemons[agent(turn)].start(),
    },
    Step {
        name: "agents frozen",
        lasts: 5000,
        begin: |cluster, turn| {
            cluster.daemons[agent(turn)].signal(Signal::STOP);
            Ok(())
        },
        end: |cluster, turn| {
            cluster.daemons[agent(turn)].signal(Signal::CONT);
            Ok(())
        },
    },
    Step {
        name: "all killed",
        lasts: 1500,
        begin: |cluster, _| {
            cluster
                .daemons
                .iter_mut()
                .for_each(crate::soak::cluster::Daemon::kill);
            Ok(())
        },
        end: |cluster, _| {
            let mut gone = cluster.daemons.iter_mut().filter(|daemon| !daemon.is_running());
            gone.try_for_each(crate::soak::cluster::Daemon::start)
        },
    },
];

impl Chaos {
    /// Begins or ends the fault that is due.
    pub(crate) fn proceed(&mut self, cluster: &mut Cluster) -> Result<()> {
        let now = Instant::now();
        match self.under_way {
            Some((_, until)) if now < until => Ok(()),
            Some(_) => self.end(cluster),
            None if self.pause_until.is_some_and(|until| now < until) => Ok(()),
            None => {
                let turn = self.next / STEPS.len();
                let at = self.next % STEPS.len();
                self.done[at] += 1;
                self.under_way = Some((STEPS[at], now + Duration::from_millis(STEPS[at].lasts)));
                (STEPS[at].begin)(cluster, turn)
            }
        }
    }

    /// Ends the present fault.
    pub(crate) fn end(&mut self, cluster: &mut Cluster) -> Result<()> {
        let Some((step, _)) = self.under_way.take() else {
            return Ok(());
        };
        self.pause_until = Some(Instant::now() + PAUSE);
        let turn = self.next / STEPS.len();
        self.next += 1;
        (step.end)(cluster, turn)
    }

    pub(crate) fn summary(&self) -> String {
        let done = STEPS.iter().zip(self.done);
        let done: Vec<_> = done
            .map(|(step, times)| format!("{} {times}", step.name))
            .collect();
        done.join(", ")
    }
}

/// The index of the agent that is next.
fn agent(turn: usize) -> usize {
    1 + turn % AGENTS
}

fn kill_one(cluster: &mut Cluster, turn: usize, supervisor: bool) -> Result<()> {
    let all = cluster.workloads();
    let those: Vec<_> = all.iter().filter(|w| w.is_supervisor == supervisor).collect();
    if let Some(one) = those.get(turn % those.len().max(1)) {
        one.kill();
    }
    Ok(())
}

fn fill(cluster: &mut Cluster) -> Result<()> {
    let Some(disk) = &cluster.disk else {
        return Ok(());
    };
    let mut file = File::create(disk.join("full"))?;
    for size in [1 << 16, 1] {
        // Writes until there is no room for another byte.
        while file.write_all(&vec![0; size]).is_ok() {}
    }
    Ok(())
}

fn empty(cluster: &mut Cluster) -> Result<()> {
    match &cluster.disk {
        Some(disk) => Ok(fs::remove_file(disk.join("full"))?),
        None => Ok(()),
    }
}
