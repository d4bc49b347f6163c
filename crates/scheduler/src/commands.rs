//! Commands that were forwarded to a node, until their outcome is known. Each has exactly one
//! outcome: STATS or an event show that it was carried out, or one failure answers it.
//!
//! | command | carried out when |
//! |---|---|
//! | STOP | STATS list the instance as ended, if it was not known to have ended before, or no longer; InstanceStopped, InstanceDeleted |
//! | DELETE | STATS no longer list it; InstanceDeleted, InstanceStopped |
//! | RESTART | STATS list it as running |
//! | AttachVolume, DetachVolume | STATS list the volume with it, or no longer |
//!
//! A failure of the node is forwarded if it answers such a command, with the `command_id` of that
//! command. Any other failure is dropped. If a command has no outcome by its deadline, the
//! scheduler answers it. `pending` and `stopping` in STATS move the deadline, as for a START.
//!
//! STATS may show what a RESTART, an AttachVolume or a DetachVolume asks for although the node refuses
//! the command, because it was so before. So until the deadline, a failure with the id of such a
//! command still answers it.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Instant;

use log::debug;
use uuid::Uuid;

use super::config::StartLimits;
use super::out::Out;
use ssntp::payload::Id;
use ssntp::proto::{Command, Frame};
use ssntp::server::SessionInfo;
use ssntp_cluster::phase::Phase;
use ssntp_cluster::refusal::{self, Reason, Refused, same};
use ssntp_payload::{CommandSubject, InstanceState, StatsSummary};
use ssntp_transport::Deadlines;

/// The maximum number of commands that are tracked, at some 500 bytes each. A command beyond that has no
/// deadline. For [`StartLimits::most`] from then on, failures that answer no tracked command are
/// forwarded unchanged.
const MAX_COMMANDS: usize = 65_536;

#[derive(Debug)]
struct Sent {
    command: Command,
    subject: CommandSubject,
    instance: Uuid,
    /// True if the instance was known when the command was sent. If it was not, STATS without it
    /// may be older than the command, so they do not settle the command.
    is_known: bool,
    /// True if the instance was known to have ended when the command was sent. Then STATS that
    /// list it as ended do not show that a STOP was carried out.
    had_ended: bool,
    /// True if STATS have shown the effect of a command that the node may still refuse.
    is_shown: bool,
    sent: Instant,
}

impl Sent {
    fn ends_instance(&self) -> bool {
        matches!(self.command, Command::STOP | Command::DELETE)
    }
}

/// The node of a command, and a number that grows with each command. So the commands of a node are
/// one range of keys, in the order in which they were sent.
type Key = (Uuid, u64);

/// The commands without an outcome.
#[derive(Debug, Default)]
pub(super) struct Commands {
    by_node: BTreeMap<Key, Sent>,
    due: Deadlines<Key>,
    next: u64,
    /// The time until which a node may answer a command that had no room; `None` if there has been
    /// none.
    untracked_until: Option<Instant>,
    limits: StartLimits,
}

impl Commands {
    pub(super) fn new(limits: StartLimits) -> Self {
        Self {
            limits,
            ..Self::default()
        }
    }

    /// Tracks a command that was forwarded to a node. `known` is true if its instance has ended,
    /// and `None` if the instance was not known.
    pub(super) fn add(
        &mut self,
        node: Uuid,
        instance: Uuid,
        known: Option<bool>,
        frame: &Frame,
        now: Instant,
    ) {
        if self.by_node.len() >= MAX_COMMANDS {
            self.untracked_until = Some(now + self.limits.most);
            return;
        }
        let key = (node, self.next);
        self.next += 1;
        let sent = Sent {
            command: Command(frame.kind().operand),
            subject: CommandSubject {
                node_uuid: node.into(),
                ..CommandSubject::of(frame)
            },
            instance,
            is_known: known.is_some(),
            had_ended: known == Some(true),
            is_shown: false,
            sent: now,
        };
        self.by_node.insert(key, sent);
        self.due.set(key, now + self.limits.quiet);
    }

    fn remove(&mut self, key: Key) -> Option<Sent> {
        self.due.clear(&key);
        self.by_node.remove(&key)
    }

    fn of(&self, node: Uuid) -> impl Iterator<Item = (&Key, &Sent)> {
        self.by_node.range((node, 0)..=(node, u64::MAX))
    }

    /// Takes the oldest command of the node that a failure answers.
    fn take_answered(&mut self, node: Uuid, command: Command, failed: &CommandSubject) -> Option<Sent> {
        let instance = failed.instance_uuid.uuid();
        let is_answered = |(_, sent): &(&Key, &Sent)| {
            // A failure may leave out its subject.
            let is_its_id = if failed.command_id.is_empty() {
                !sent.is_shown
            } else {
                sent.subject.command_id == failed.command_id
            };
            sent.command == command
                && is_its_id
                && (failed.instance_uuid.is_empty() || Some(sent.instance) == instance)
                && (failed.volume_uuid.is_empty() || same(&sent.subject.volume_uuid, &failed.volume_uuid))
        };
        // A node carries out the commands for an instance in order, so without an id the oldest
        // one is answered first.
        let (key, _) = self.of(node).find(is_answered)?;
        self.remove(*key)
    }

    /// The instances of a node that a STOP or DELETE without an outcome ends.
    pub(super) fn ending(&self, node: Uuid) -> HashSet<Uuid> {
        let ending = self.of(node).filter(|(_, sent)| sent.ends_instance());
        ending.map(|(_, sent)| sent.instance).collect()
    }

    /// Handles InstanceStopped or InstanceDeleted: STOP and DELETE of the instance are done. True if
    /// there was one.
    pub(super) fn ended(&mut self, node: Uuid, instance: Uuid) -> bool {
        let done: Vec<_> = self
            .of(node)
            .filter(|(_, sent)| sent.instance == instance && sent.ends_instance())
            .map(|(key, _)| *key)
            .collect();
        let is_command = !done.is_empty();
        done.into_iter().for_each(|key| drop(self.remove(key)));
        is_command
    }

    /// Handles STATS. Returns the instances that a STOP or DELETE has ended.
    pub(super) fn report(&mut self, node: Uuid, stats: &StatsSummary, now: Instant) -> Vec<Uuid> {
        if self.of(node).next().is_none() {
            return Vec::new();
        }
        let states: HashMap<_, _> = stats.instances.iter().map(|(id, state)| (*id, state)).collect();
        let mut volumes: HashMap<Uuid, Vec<&Id>> = HashMap::new();
        for (instance, volume) in &stats.volumes {
            volumes.entry(*instance).or_default().push(volume);
        }
        let (mut done, mut in_progress) = (Vec::new(), Vec::new());
        for (key, sent) in self.of(node).filter(|(_, sent)| !sent.is_shown) {
            let state = states.get(&sent.instance).copied();
            let phase = state.map(Phase::of);
            let has_volume = || {
                let mut volumes = volumes.get(&sent.instance).into_iter().flatten();
                volumes.any(|volume| same(volume, &sent.subject.volume_uuid))
            };
            let is_done = match sent.command {
                // STOP deletes an instance that is not persistent, so a missing one has stopped.
                Command::STOP => {
                    phase.map_or(sent.is_known, |phase| phase == Phase::Ended && !sent.had_ended)
                }
                Command::DELETE => phase.is_none() && sent.is_known,
                Command::RESTART => state == Some(&InstanceState::Active),
                Command::ATTACH_VOLUME => has_volume(),
                _ => !has_volume(),
            };
            if is_done {
                done.push(*key);
            } else if matches!(state, Some(InstanceState::Pending | InstanceState::Stopping)) {
                in_progress.push(*key);
            }
        }
        let mut ended = Vec::new();
        for key in done {
            match self.by_node.get_mut(&key) {
                Some(sent) if !sent.ends_instance() => sent.is_shown = true,
                _ => ended.extend(self.remove(key).map(|sent| sent.instance)),
            }
        }
        for key in in_progress {
            if let Some(sent) = self.by_node.get(&key) {
                // The limit in all applies even if the node hangs in this state.
                let deadline = (now + self.limits.quiet).min(sent.sent + self.limits.most);
                self.due.set(key, deadline);
            }
        }
        ended
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.due.next()
    }

    /// The failure of a node as it is forwarded; `None` if it answers no command.
    pub(super) fn answer_of(&mut self, from: &SessionInfo, frame: &Frame, now: Instant) -> Option<Frame> {
        let Some(Ok((command, failed, reason))) = refusal::read(frame) else {
            return Some(frame.clone());
        };
        if !is_tracked(command) {
            return Some(frame.clone());
        }
        let Some(sent) = self.take_answered(from.uuid(), command, &failed) else {
            if self.untracked_until.is_some_and(|until| now < until) {
                return Some(frame.clone());
            }
            debug!(target: "ssntp::scheduler", "{from}: {} answers no command", frame.kind());
            return None;
        };
        // An agent of another version may not repeat the id.
        if sent.subject.command_id == failed.command_id {
            return Some(frame.clone());
        }
        let command_id = sent.subject.command_id;
        refusal::written(command, CommandSubject { command_id, ..failed }, reason)
    }

    /// Answers commands whose node has not answered them in time.
    pub(super) fn expire(&mut self, out: &mut Out<'_, '_>) {
        while let Some(key) = self.due.pop(out.now()) {
            let Some(sent) = self.remove(key).filter(|sent| !sent.is_shown) else {
                continue;
            };
            let refused = Refused::new(Reason::NoAnswer, "its node has not said what became of it");
            if let Some(failure) = refusal::failure(sent.command, sent.subject, &refused) {
                out.send_to_controllers(&failure);
            }
        }
    }
}

/// True if a node answers the command, and STATS show its effect.
fn is_tracked(command: Command) -> bool {
    matches!(
        command,
        Command::STOP | Command::DELETE | Command::RESTART | Command::ATTACH_VOLUME | Command::DETACH_VOLUME
    )
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use ssntp::Role;
    use ssntp::testkit::{HandlerTest, Testkit};
    use ssntp_payload::{Stop, StopFailure};

    #[test]
    fn a_command_has_one_answer_also_when_no_more_commands_are_tracked() {
        let (kit, now) = (Testkit::new().unwrap(), ssntp_transport::now());
        let limits = StartLimits {
            quiet: Duration::from_secs(60),
            most: Duration::from_secs(900),
            ..StartLimits::default()
        };
        let mut commands = Commands::new(limits);
        let other = Frame::of(&Stop::default());
        for _ in 1..MAX_COMMANDS {
            commands.add(Uuid::nil(), Uuid::nil(), None, &other, now);
        }
        let scheduler = crate::Scheduler::new(crate::SchedulerConfig::new()).unwrap();
        let config = scheduler.serve_with(kit.server_config().unwrap());
        let mut test = HandlerTest::new(config, scheduler).unwrap();
        let node = test.connect(&kit.identity(Role::AGENT).unwrap()).unwrap();
        let instances = [1, 2].map(Uuid::from_u128);
        for instance in instances {
            let command = Stop {
                instance_uuid: instance.into(),
                workload_agent_uuid: node.uuid().into(),
                ..Stop::default()
            };
            commands.add(node.uuid(), instance, None, &Frame::of(&command), now);
        }
        for instance in instances {
            let failure = Frame::of(&StopFailure {
                instance_uuid: instance.into(),
                ..StopFailure::default()
            });
            assert_eq!(commands.answer_of(&node, &failure, now), Some(failure));
        }
        assert_eq!(commands.of(node.uuid()).count(), 0);

        // No command without room is open any more, although the table has never been empty since.
        let (failure, later) = (Frame::of(&StopFailure::default()), now + limits.most);
        assert_eq!(commands.answer_of(&node, &failure, later), None);
    }
}
