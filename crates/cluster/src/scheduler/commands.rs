//! Commands that were forwarded to a node, until it is known what became of them. Each has
//! exactly one answer: what STATS and events show, or one failure.
//!
//! | command | carried out when |
//! |---|---|
//! | STOP | STATS list the instance as ended, if it was not known to have ended before, or no longer; InstanceStopped, InstanceDeleted |
//! | DELETE | STATS no longer list it; InstanceDeleted, InstanceStopped |
//! | RESTART | STATS list it as running |
//! | AttachVolume, DetachVolume | STATS list the volume with it, or no longer |
//!
//! The node's failure is passed on if such a command waits, and with the `command_id` of that
//! command. Any other failure answers nothing that was asked, and goes nowhere. A command
//! without an answer by its deadline is answered by the scheduler. `pending` and `stopping` in
//! STATS move the deadline, as for a START.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Instant;

use log::debug;
use uuid::Uuid;

use super::instances::StartLimits;
use super::{Scheduler, answers};
use crate::phase::Phase;
use crate::refusal::{self, Refused};
use ssntp::payload::{CommandSubject, Id, InstanceState, StatsSummary};
use ssntp::proto::{Command, Frame};
use ssntp::server::{Context, SessionInfo};

/// The most commands that are kept track of, at some 500 bytes each. A command beyond that
/// has no deadline, and its failure is passed on as it is.
const MOST: usize = 65_536;
/// The reason when a node has not answered in time. The failures of some commands have a word
/// of their own for it.
const NO_ANSWER: &str = "no_answer";

#[derive(Debug)]
struct Sent {
    command: Command,
    subject: CommandSubject,
    instance: Uuid,
    /// Whether the instance was known when the command was sent. If it was not, then STATS
    /// that lack it may be older than the command, and the node's failure is the answer.
    is_known: bool,
    /// Whether the instance was known to have ended when the command was sent. Then STATS that
    /// list it as ended say nothing about a STOP, and the node's answer counts.
    had_ended: bool,
    node: Uuid,
    given: Instant,
    deadline: Instant,
}

/// The commands without an answer, in the order in which they were sent.
#[derive(Debug)]
pub(super) struct Commands {
    sent: BTreeMap<u64, Sent>,
    of_node: HashMap<Uuid, BTreeSet<u64>>,
    due: BTreeSet<(Instant, u64)>,
    next: u64,
    limits: StartLimits,
}

impl Commands {
    pub(super) fn new(limits: StartLimits) -> Self {
        Self {
            sent: BTreeMap::new(),
            of_node: HashMap::new(),
            due: BTreeSet::new(),
            next: 0,
            limits,
        }
    }

    /// A command was forwarded to a node. `known` is whether its instance has ended; none if it
    /// was not known.
    pub(super) fn sent(
        &mut self,
        node: Uuid,
        instance: Uuid,
        known: Option<bool>,
        frame: &Frame,
        now: Instant,
    ) {
        let command = Command(frame.kind().operand);
        if !is_tracked(command) || self.sent.len() >= MOST {
            return;
        }
        let id = self.next;
        self.next += 1;
        let deadline = now + self.limits.quiet;
        let sent = Sent {
            command,
            subject: CommandSubject {
                node_uuid: node.into(),
                ..CommandSubject::of(frame)
            },
            instance,
            is_known: known.is_some(),
            had_ended: known == Some(true),
            node,
            given: now,
            deadline,
        };
        self.sent.insert(id, sent);
        self.of_node.entry(node).or_default().insert(id);
        self.due.insert((deadline, id));
    }

    fn remove(&mut self, id: u64) -> Option<Sent> {
        let sent = self.sent.remove(&id)?;
        self.due.remove(&(sent.deadline, id));
        if let Some(of_node) = self.of_node.get_mut(&sent.node) {
            of_node.remove(&id);
            if of_node.is_empty() {
                self.of_node.remove(&sent.node);
            }
        }
        Some(sent)
    }

    fn of(&self, node: Uuid) -> impl Iterator<Item = (u64, &Sent)> {
        let ids = self.of_node.get(&node).into_iter().flatten();
        ids.filter_map(|id| Some((*id, self.sent.get(id)?)))
    }

    /// Takes the oldest command of the node that a failure answers.
    fn answered(&mut self, node: Uuid, command: Command, failed: &CommandSubject) -> Option<Sent> {
        let instance = failed.instance_uuid.uuid();
        let is_it = |(_, sent): &(u64, &Sent)| {
            // A failure may leave out what it is about.
            sent.command == command
                && (failed.command_id.is_empty() || sent.subject.command_id == failed.command_id)
                && (failed.instance_uuid.is_empty() || Some(sent.instance) == instance)
                && (failed.volume_uuid.is_empty() || same(&sent.subject.volume_uuid, &failed.volume_uuid))
        };
        // A node carries out the commands for an instance in order, so without an id the oldest
        // one is answered first.
        let (id, _) = self.of(node).find(is_it)?;
        self.remove(id)
    }

    /// InstanceStopped or InstanceDeleted came.
    pub(super) fn ended(&mut self, node: Uuid, instance: Uuid) {
        let ends = |sent: &Sent| matches!(sent.command, Command::STOP | Command::DELETE);
        let done: Vec<_> = self
            .of(node)
            .filter(|(_, sent)| sent.instance == instance && ends(sent))
            .map(|(id, _)| id)
            .collect();
        done.into_iter().for_each(|id| drop(self.remove(id)));
    }

    /// STATS of a node came.
    pub(super) fn report(&mut self, node: Uuid, told: &StatsSummary, now: Instant) {
        if !self.of_node.contains_key(&node) {
            return;
        }
        let phases: HashMap<_, _> = told.instances.iter().map(|(id, state)| (*id, state)).collect();
        let mut volumes: HashMap<Uuid, Vec<&Id>> = HashMap::new();
        for (instance, volume) in &told.volumes {
            volumes.entry(*instance).or_default().push(volume);
        }
        let (mut done, mut moved) = (Vec::new(), Vec::new());
        for (id, sent) in self.of(node) {
            let state = phases.get(&sent.instance).copied();
            let phase = state.map(Phase::of);
            let has_volume = || {
                let mut volumes = volumes.get(&sent.instance).into_iter().flatten();
                volumes.any(|volume| same(volume, &sent.subject.volume_uuid))
            };
            let is_done = match sent.command {
                // An instance that is not persistent is deleted by STOP, so a missing one has
                // stopped, too.
                Command::STOP => {
                    phase.map_or(sent.is_known, |phase| phase == Phase::Ended && !sent.had_ended)
                }
                Command::DELETE => phase.is_none() && sent.is_known,
                Command::RESTART => state == Some(&InstanceState::Active),
                Command::ATTACH_VOLUME => has_volume(),
                _ => !has_volume(),
            };
            if is_done {
                done.push(id);
            } else if matches!(state, Some(InstanceState::Pending | InstanceState::Stopping)) {
                moved.push(id);
            }
        }
        done.into_iter().for_each(|id| drop(self.remove(id)));
        for id in moved {
            if let Some(sent) = self.sent.get_mut(&id) {
                self.due.remove(&(sent.deadline, id));
                // The node is at work on it. But a node that hangs in this state must not put
                // off the answer for ever.
                sent.deadline = (now + self.limits.quiet).min(sent.given + self.limits.most);
                self.due.insert((sent.deadline, id));
            }
        }
    }

    pub(super) fn next_due(&self) -> Option<Instant> {
        self.due.first().map(|(at, _)| *at)
    }

    fn expire(&mut self, now: Instant) -> Option<Sent> {
        let (_, id) = self.due.first().copied().filter(|(at, _)| *at <= now)?;
        self.remove(id)
    }
}

/// Whether the command is answered by its node, and STATS show what it has done.
fn is_tracked(command: Command) -> bool {
    is_of_volume(command) || matches!(command, Command::STOP | Command::DELETE | Command::RESTART)
}

fn is_of_volume(command: Command) -> bool {
    matches!(command, Command::ATTACH_VOLUME | Command::DETACH_VOLUME)
}

fn same(one: &Id, other: &Id) -> bool {
    one == other || one.uuid().is_some_and(|uuid| *other == uuid)
}

impl Scheduler {
    /// The failure of a node as it is passed on; none if it answers nothing.
    pub(super) fn answer_of(&mut self, from: &SessionInfo, frame: &Frame) -> Option<Frame> {
        let Some(Ok((command, failed, reason))) = refusal::read(frame) else {
            return Some(frame.clone());
        };
        if !is_tracked(command) || self.commands.sent.len() >= MOST {
            return Some(frame.clone());
        }
        let Some(sent) = self.commands.answered(from.uuid(), command, &failed) else {
            debug!(target: "ssntp::scheduler", "{from}: {} answers no command", frame.kind());
            return None;
        };
        // An agent of another version does not repeat the id.
        if sent.subject.command_id == failed.command_id {
            return Some(frame.clone());
        }
        let command_id = sent.subject.command_id;
        refusal::written(command, CommandSubject { command_id, ..failed }, &reason)
    }

    /// Answers commands whose node has not answered them in time.
    pub(super) fn expire_commands(&mut self, cx: &mut Context<'_>, now: Instant) {
        while let Some(sent) = self.commands.expire(now) {
            let refused = Refused::new(NO_ANSWER, "its node has not said what became of it");
            if let Some(failure) = refusal::failure(sent.command, sent.subject, &refused) {
                answers::send_to_controllers(cx, &failure);
            }
        }
    }
}
