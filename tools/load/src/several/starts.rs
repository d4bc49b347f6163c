//! STARTs, each of which gets one answer.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use crossbeam_channel::Receiver;
use ssntp::proto::{Command, FrameKind};
use ssntp_payload::{Requirements, Start};
use ssntp_view::{Change, Order, OrderError, Shown};
use uuid::Uuid;

use super::LIMIT;
use super::servers::Servers;

/// The time for which an instance whose START has failed may still be in the view.
const STRAY: Duration = Duration::from_secs(30);

pub(super) struct Starts {
    total: usize,
    sent: usize,
    not_sent: usize,
    open: Vec<(Uuid, Instant, Order)>,
    /// The controller of each START, and the time at which it was sent.
    origins: HashMap<Uuid, (usize, Instant)>,
    /// The answer to each START.
    answers: HashMap<Uuid, String>,
    /// The number of failures that each controller received for a START.
    failures: HashMap<(usize, Uuid), usize>,
    changes: Vec<Receiver<Change>>,
    /// The time of the fault, and the time at which the first START after it ran.
    fault: Option<Instant>,
    first: Option<Duration>,
    /// Instances that run but should not, and the times since which they do.
    strays: HashMap<Uuid, Instant>,
    faults: Vec<String>,
}

impl Starts {
    pub(super) fn new(servers: &Servers, total: usize) -> Self {
        Self {
            total,
            sent: 0,
            not_sent: 0,
            open: Vec::new(),
            origins: HashMap::new(),
            answers: HashMap::new(),
            failures: HashMap::new(),
            changes: servers.controllers.iter().map(|one| one.subscribe()).collect(),
            fault: None,
            first: None,
            strays: HashMap::new(),
            faults: Vec::new(),
        }
    }

    pub(super) fn total(&self) -> usize {
        self.total
    }

    pub(super) fn after(&mut self, fault: Instant) {
        self.fault = Some(fault);
    }

    pub(super) fn first_after(&self) -> Option<Duration> {
        self.first
    }

    /// Sends the STARTs that are due, by the controllers in turn.
    pub(super) fn send_up_to(&mut self, servers: &Servers, due: f64) {
        while self.sent < self.total && (self.sent as f64) < due {
            let instance = Uuid::new_v4();
            let start = Start {
                instance_uuid: instance,
                requirements: Requirements {
                    mem_mb: 32,
                    ..Requirements::default()
                },
                ..Start::default()
            };
            let at = self.sent % servers.controllers.len();
            self.sent += 1;
            match servers.controllers[at].order(&start) {
                Ok(order) => {
                    self.origins.insert(instance, (at, Instant::now()));
                    self.open.push((instance, Instant::now(), order));
                }
                // The controller has no session at present.
                Err(_) => self.not_sent += 1,
            }
        }
    }

    /// Receives answers.
    pub(super) fn look(&mut self, servers: &Servers) {
        let each = self.changes.iter().enumerate();
        for (at, change) in each.flat_map(|(at, changes)| changes.try_iter().map(move |change| (at, change)))
        {
            match change {
                Change::Failed(failure) if failure.command == FrameKind::from(Command::START) => {
                    if let Ok(instance) = failure.subject.instance_uuid.to_string().parse() {
                        *self.failures.entry((at, instance)).or_default() += 1;
                    }
                }
                Change::Missed { count } => self.faults.push(format!("{count} changes were missed")),
                _ => {}
            }
        }
        let (fault, first) = (self.fault, &mut self.first);
        let (answers, faults) = (&mut self.answers, &mut self.faults);
        self.open.retain(|(instance, sent, order)| {
            let answer = match order.poll() {
                Some(answer) => answer,
                None if sent.elapsed() > LIMIT => {
                    faults.push(format!("the START of {instance} has no answer"));
                    return false;
                }
                None => return true,
            };
            let word = match answer {
                Ok(Shown::Running { .. } | Shown::Ended { .. }) => {
                    if let Some(fault) = fault.filter(|fault| sent >= fault) {
                        first.get_or_insert_with(|| fault.elapsed());
                    }
                    "runs".to_owned()
                }
                Err(OrderError::Failed(failure)) => format!("failed ({})", failure.reason),
                Err(OrderError::Lost(_)) => "unknown".to_owned(),
                other => {
                    faults.push(format!("the START of {instance} was answered: {other:?}"));
                    "odd".to_owned()
                }
            };
            answers.insert(*instance, word);
            false
        });
        self.look_for_strays(servers);
    }

    /// Instances that run though their START was answered with a failure: the scheduler deletes
    /// them.
    fn look_for_strays(&mut self, servers: &Servers) {
        let failed = |uuid: &Uuid| {
            self.answers
                .get(uuid)
                .is_some_and(|word| word.starts_with("failed"))
        };
        let found: Vec<Uuid> = servers.controllers[0].look(|view| {
            view.instances()
                .map(|instance| instance.uuid)
                .filter(failed)
                .collect()
        });
        self.strays.retain(|stray, _| found.contains(stray));
        for stray in found {
            self.strays.entry(stray).or_insert_with(Instant::now);
        }
    }

    pub(super) fn are_settled(&self) -> bool {
        let is_over = |since: &Instant| since.elapsed() > STRAY;
        self.sent == self.total && self.open.is_empty() && self.strays.values().all(is_over)
    }

    pub(super) fn summary(&self) -> String {
        let mut words: BTreeMap<&str, usize> = BTreeMap::new();
        for word in self.answers.values() {
            *words.entry(word).or_default() += 1;
        }
        let words: Vec<_> = words
            .iter()
            .map(|(word, count)| format!("{word} {count}"))
            .collect();
        let (sent, not_sent) = (self.sent - self.not_sent, self.not_sent);
        format!("{sent} STARTs (not sent {not_sent}): {}", words.join(", "))
    }

    /// The STARTs that did not run: their controllers, their number, and when the first and the last were
    /// sent, in seconds after the fault.
    pub(super) fn lost(&self) -> String {
        let mut groups: BTreeMap<(&str, usize), Vec<f64>> = BTreeMap::new();
        for (instance, word) in self.answers.iter().filter(|(_, word)| *word != "runs") {
            if let (Some((at, sent)), Some(fault)) = (self.origins.get(instance), self.fault) {
                let after = sent.saturating_duration_since(fault).as_secs_f64();
                groups.entry((word, *at)).or_default().push(after);
            }
        }
        let groups = groups.into_iter().map(|((word, at), mut times)| {
            times.sort_by(f64::total_cmp);
            let (first, last) = (times[0], times[times.len() - 1]);
            let count = times.len();
            format!("controller {at}: {word} {count}, sent {first:.1} to {last:.1} s after the fault")
        });
        groups.collect::<Vec<_>>().join("; ")
    }

    /// The faults.
    pub(super) fn faults(&mut self) -> Vec<String> {
        let mut faults = std::mem::take(&mut self.faults);
        let sent = self.sent - self.not_sent;
        if self.answers.len() != sent {
            faults.push(format!("{sent} STARTs, {} answers", self.answers.len()));
        }
        for ((_, instance), times) in &self.failures {
            let word = self.answers.get(instance).map_or("is open", String::as_str);
            if *times > 1 || !word.starts_with("failed") {
                faults.push(format!(
                    "the START of {instance}, which {word}, was said to have failed {times} times"
                ));
            }
        }
        let strays = self.strays.keys();
        faults.extend(strays.map(|stray| format!("{stray} runs though its START has failed")));
        faults
    }
}
