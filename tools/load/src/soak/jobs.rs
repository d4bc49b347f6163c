//! The load: short jobs, each with exactly one answer, and their outcomes.
//!
//! ```text
//!  START ─▶ Asked ─┬─ it runs, has ended ─▶ There ─ STOP, DELETE ─▶ Ending ─▶ gone
//!                  └─ a failure, lost ────▶ done     ▲ not now ───────┘
//! ```

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;
use std::time::{Duration, Instant};

use ssntp_payload::{InstanceState, Requirements, Start, VmType};
use ssntp_view::{Controller, Order, OrderError, Shown};
use uuid::Uuid;

/// The time limit for an answer: longer than any wait of the scheduler, and
/// longer than an order waits after the loss of a scheduler.
const ANSWER: Duration = Duration::from_secs(145);
/// The time for which the view may differ from the expected instances in either
/// direction: longer than the agents' interval and a scheduler's restart.
const VIEW: Duration = Duration::from_secs(30);
/// The time for which an instance runs before it is stopped.
const RUN: Duration = Duration::from_secs(3);
/// The pause before a job that failed is tried again.
const AGAIN: Duration = Duration::from_secs(1);
/// The maximum number of faults that are printed one by one.
const MOST_FAULTS: usize = 20;

#[derive(Default)]
pub(crate) struct Jobs {
    next: usize,
    open: HashMap<Uuid, Job>,
    /// All of them, as long as the soak lasts.
    started: HashSet<Uuid>,
    /// Instances that should not be there, since when.
    strays: HashMap<Uuid, Instant>,
    /// The number of STARTs by their answers.
    answers: BTreeMap<String, usize>,
    not_sent: usize,
    gone: usize,
    faults: Vec<String>,
    more_faults: usize,
}

struct Job {
    kind: &'static Kind,
    /// Nothing was done to the cluster when it was asked for.
    is_calm: bool,
    asked: Instant,
    stage: Stage,
}

enum Stage {
    /// The answer to its START is awaited.
    Asked(Order),
    /// It runs, or has ended. It has been out of view since then.
    There {
        since: Instant,
        try_at: Instant,
        missing: Option<Instant>,
    },
    /// It is being stopped or deleted.
    Ending(Order, Instant),
}

struct Kind {
    name: &'static str,
    script: &'static str,
    /// It runs until it is stopped.
    lasts: bool,
}

/// The last cannot be executed.
const KINDS: &[Kind] = &[
    Kind {
        name: "short",
        script: "echo done",
        lasts: false,
    },
    Kind {
        name: "fails",
        script: "echo why >&2; exit 3",
        lasts: false,
    },
    Kind {
        name: "logs",
        script: "i=0; while [ $i -lt 300 ]; do echo line $i of its log; i=$((i+1)); done",
        lasts: false,
    },
    Kind {
        name: "sleeps",
        script: "sleep 1",
        lasts: false,
    },
    Kind {
        name: "lasts",
        script: "sleep 600",
        lasts: true,
    },
    Kind {
        name: "children",
        script: "sleep 500 & (setsid sleep 500 &) ; sleep 0.2",
        lasts: false,
    },
    Kind {
        name: "floods",
        script: "head -c 3000000 /dev/zero | tr '\\0' x; echo end",
        lasts: false,
    },
    Kind {
        name: "ignores",
        script: "trap '' TERM; n=0; while [ $n -lt 600 ]; do sleep 1; n=$((n+1)); done",
        lasts: true,
    },
    Kind {
        name: "writes",
        script: "mkdir -p a/b/c; head -c 100000 /dev/zero >a/b/c/data",
        lasts: false,
    },
    Kind {
        name: "absent",
        script: "",
        lasts: false,
    },
];

impl Jobs {
    /// Sends the next START.
    pub(crate) fn start(&mut self, controller: &Controller, is_calm: bool, root: &Path) {
        let Some(kind) = KINDS.get(self.next % KINDS.len()) else {
            return;
        };
        self.next += 1;
        let command = match kind.script {
            "" => vec!["/nonexistent/program".to_owned()],
            script => vec!["sh".into(), "-c".into(), script.into()],
        };
        let instance = Uuid::new_v4();
        let start = Start {
            instance_uuid: instance,
            vm_type: VmType::Process,
            command,
            env: [("SOAK".to_owned(), root.display().to_string())].into(),
            requirements: Requirements {
                mem_mb: 32,
                ..Requirements::default()
            },
            ..Start::default()
        };
        match controller.start_workload(&start.into()) {
            Ok(order) => {
                let job = Job {
                    kind,
                    is_calm,
                    asked: Instant::now(),
                    stage: Stage::Asked(order),
                };
                self.started.insert(instance);
                self.open.insert(instance, job);
            }
            // There is no scheduler at present.
            Err(_) => self.not_sent += 1,
        }
    }

    /// Looks at all that are open.
    pub(crate) fn proceed(&mut self, controller: &Controller) {
        let now = Instant::now();
        let (states, is_complete) = controller.look(|view| {
            let known = view.instances().map(|i| (i.uuid, i.state.clone()));
            (
                known.collect::<HashMap<_, _>>(),
                view.is_online() && view.is_complete(),
            )
        });
        let open = std::mem::take(&mut self.open);
        for (instance, job) in open {
            let state = states.get(&instance);
            if let Some(job) = self.proceed_with(controller, now, instance, job, state, is_complete) {
                self.open.insert(instance, job);
            }
        }
        self.look_for_strays(controller, now, &states);
    }

    fn proceed_with(
        &mut self,
        controller: &Controller,
        now: Instant,
        instance: Uuid,
        mut job: Job,
        state: Option<&InstanceState>,
        is_complete: bool,
    ) -> Option<Job> {
        let there = |try_at| Stage::There {
            since: now,
            try_at,
            missing: None,
        };
        match &mut job.stage {
            Stage::Asked(order) => match order.poll() {
                Some(answer) => {
                    let runs = self.answered(instance, &job, answer);
                    job.stage = there(now);
                    runs.then_some(job)
                }
                None if now - job.asked > ANSWER => {
                    let name = job.kind.name;
                    self.fault(format!("the START of {instance} ({name}) has no answer"));
                    None
                }
                None => Some(job),
            },
            Stage::There {
                since,
                try_at,
                missing,
            } => {
                let order = match state {
                    None if !is_complete => {
                        *missing = None;
                        return Some(job);
                    }
                    None if now - *missing.get_or_insert(now) > VIEW => {
                        let name = job.kind.name;
                        self.fault(format!("{instance} ({name}) vanished, and nobody deleted it"));
                        return None;
                    }
                    None => return Some(job),
                    Some(_) if now < *try_at => return Some(job),
                    Some(InstanceState::Exited | InstanceState::Missing) => controller.delete(instance),
                    Some(_) if job.kind.lasts && now - *since > RUN => controller.stop(instance),
                    Some(_) if now - *since > ANSWER => {
                        let name = job.kind.name;
                        self.fault(format!("{instance} ({name}) does not end: {state:?}"));
                        controller.delete(instance)
                    }
                    Some(_) => {
                        *missing = None;
                        return Some(job);
                    }
                };
                match order {
                    Ok(order) => job.stage = Stage::Ending(order, now),
                    Err(_) => *try_at = now + AGAIN,
                }
                Some(job)
            }
            Stage::Ending(order, since) => match order.poll() {
                Some(Ok(Shown::Gone { .. })) => {
                    self.gone += 1;
                    None
                }
                // Its node was away, or has lost the command.
                Some(_) => {
                    if state.is_none() && is_complete {
                        self.gone += 1;
                        return None;
                    }
                    job.stage = there(now + AGAIN);
                    Some(job)
                }
                None if now - *since > VIEW => {
                    job.stage = there(now);
                    Some(job)
                }
                None => Some(job),
            },
        }
    }

    /// Counts an answer; says whether there is an instance now.
    fn answered(&mut self, instance: Uuid, job: &Job, answer: Result<Shown, OrderError>) -> bool {
        let (kind, is_absent) = (job.kind.name, job.kind.script.is_empty());
        let (word, is_there, is_expected) = match &answer {
            Ok(Shown::Running { .. }) => ("runs".to_owned(), true, !is_absent),
            Ok(Shown::Ended { .. }) => ("ended".to_owned(), true, !is_absent),
            Err(OrderError::Failed(failure)) => (failure.reason.clone(), false, is_absent || !job.is_calm),
            Err(OrderError::Lost(_)) => ("lost".to_owned(), false, !job.is_calm),
            _ => (String::from("odd"), false, false),
        };
        if !is_expected {
            let told = answer.map_or_else(|e| e.to_string(), |shown| shown.to_string());
            self.fault(format!("the START of {instance} ({kind}) was answered: {told}"));
        }
        *self.answers.entry(word).or_default() += 1;
        is_there
    }

    /// Instances whose START was answered with a failure, or that were deleted:
    /// the scheduler deletes them.
    fn look_for_strays(
        &mut self,
        controller: &Controller,
        now: Instant,
        states: &HashMap<Uuid, InstanceState>,
    ) {
        self.strays.retain(|stray, _| states.contains_key(stray));
        for (instance, state) in states {
            if self.open.contains_key(instance) {
                continue;
            }
            let since = *self.strays.entry(*instance).or_insert(now);
            if now - since > VIEW {
                self.strays.insert(*instance, now);
                self.fault(format!(
                    "{instance} is {state} though its START failed, or it was deleted"
                ));
                let _ = controller.delete(*instance);
            }
        }
    }

    pub(crate) fn open(&self) -> usize {
        self.open.len() + self.strays.len()
    }

    pub(crate) fn started(&self) -> &HashSet<Uuid> {
        &self.started
    }

    pub(crate) fn summary(&self) -> String {
        let answers: Vec<_> = self
            .answers
            .iter()
            .map(|(word, n)| format!("{word} {n}"))
            .collect();
        format!(
            "STARTs {} (not sent {}): {}; open {}, deleted {}, faults {}",
            self.started.len(),
            self.not_sent,
            answers.join(", "),
            self.open.len(),
            self.gone,
            self.faults.len() + self.more_faults
        )
    }

    /// The faults, and the jobs that are still open at the end.
    pub(crate) fn faults(&mut self) -> Vec<String> {
        let open = std::mem::take(&mut self.open);
        for (instance, job) in &open {
            let how = match &job.stage {
                Stage::Asked(_) => "has no answer to its START",
                Stage::There { .. } => "is still there",
                Stage::Ending(..) => "is still being ended",
            };
            self.fault(format!("{instance} ({}) {how}", job.kind.name));
        }
        let answered: usize = self.answers.values().sum();
        if answered != self.started.len() {
            self.fault(format!("{} STARTs, {answered} answers", self.started.len()));
        }
        let mut faults = std::mem::take(&mut self.faults);
        if self.more_faults > 0 {
            faults.push(format!("and {} more", self.more_faults));
        }
        faults
    }

    fn fault(&mut self, fault: String) {
        if self.faults.len() < MOST_FAULTS {
            println!("fault: {fault}");
            self.faults.push(fault);
        } else {
            self.more_faults += 1;
        }
    }
}
