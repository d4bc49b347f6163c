//! A plan: what is written and then sent, and the draft in which it is made.

use std::collections::BTreeMap;

use ssntp_payload::StartPayload;
use uuid::Uuid;

use super::input::{Now, Seen};
use crate::model::{Event, Instance, State, Workload, Write, tenant_of};

/// A command that is sent once the writes of its plan are on the disk.
#[derive(Clone, Debug)]
pub enum Command {
    /// Start an instance.
    Start(Box<StartPayload>),
    /// Query whether the scheduler has an instance.
    Ask(Uuid),
    /// Delete an instance.
    Delete {
        /// The instance.
        instance: Uuid,
        /// The node of the instance.
        node: Uuid,
    },
}

/// The next step: first the writes, all or none, then the commands.
#[derive(Debug, Default)]
pub struct Plan {
    /// The changes to write.
    pub writes: Vec<Write>,
    /// The commands to send after the writes.
    pub commands: Vec<Command>,
}

impl Plan {
    /// True if there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.writes.is_empty() && self.commands.is_empty()
    }
}

/// A plan that is being made: it reads the state and the view, and collects writes and commands.
pub(super) struct Draft<'a> {
    pub(super) state: &'a State,
    pub(super) seen: &'a Seen,
    pub(super) now: Now,
    plan: Plan,
    /// The workloads that the plan changes. Each is written once, at the end.
    touched: BTreeMap<String, Workload>,
}

impl<'a> Draft<'a> {
    pub(super) fn new(state: &'a State, seen: &'a Seen, now: Now) -> Self {
        Self {
            state,
            seen,
            now,
            plan: Plan::default(),
            touched: BTreeMap::new(),
        }
    }

    /// True if the node is connected and reports.
    pub(super) fn is_current(&self, node: Uuid) -> bool {
        self.seen.nodes.contains(&node)
    }

    /// The workload of an instance; `None` if it is deleted.
    pub(super) fn workload_of(&self, instance: &Instance) -> Option<&'a Workload> {
        self.state
            .workloads
            .get(&instance.workload)
            .map(|workload| &**workload)
    }

    /// Adds a command, which is sent after the writes.
    pub(super) fn send(&mut self, command: Command) {
        self.plan.commands.push(command);
    }

    /// Adds a write.
    pub(super) fn write(&mut self, write: Write) {
        self.plan.writes.push(write);
    }

    /// True if nothing is to be written so far.
    pub(super) fn is_quiet(&self) -> bool {
        self.plan.writes.is_empty() && self.touched.is_empty()
    }

    pub(super) fn finish(mut self) -> Plan {
        let touched = std::mem::take(&mut self.touched);
        let writes = touched
            .into_values()
            .map(|workload| Write::Workload(Box::new(workload)));
        self.plan.writes.extend(writes);
        self.plan
    }

    /// A copy of a workload to change. It is written once, at the end of the plan.
    pub(super) fn touch(&mut self, workload: &Workload) -> &mut Workload {
        let known = self.touched.entry(workload.name.clone());
        known.or_insert_with(|| workload.clone())
    }

    /// Adds a row about an instance. `what` follows its name and completes the sentence.
    pub(super) fn event(&mut self, kind: &'static str, about: &Instance, what: &str) {
        let version = self
            .workload_of(about)
            .and_then(|of| of.version_of(about.version));
        self.plan.writes.push(Write::Event(Event {
            kind,
            workload: Some(about.workload.clone()),
            instance: Some(about.uuid),
            node: about.node,
            tenant: version.and_then(|version| tenant_of(&version.template.start)),
            text: format!("{} {what}", about.called()),
            ..Event::default()
        }));
    }

    /// Writes a new or changed instance, and a row about it.
    pub(super) fn change(&mut self, instance: Instance, kind: &'static str, what: &str) {
        self.event(kind, &instance, what);
        self.plan.writes.push(Write::Instance(instance));
    }

    /// Removes an instance from the database, and writes a row about it.
    pub(super) fn gone(&mut self, instance: &Instance, kind: &'static str, what: &str) {
        self.event(kind, instance, what);
        self.plan.writes.push(Write::InstanceGone(instance.uuid));
    }

    /// Marks an instance as no longer wanted, and writes a row about it.
    pub(super) fn mark_unwanted(&mut self, instance: &Instance, kind: &'static str, what: &str) {
        let unwanted = Instance {
            wanted: false,
            since: self.now.unix_ms,
            ..instance.clone()
        };
        self.change(unwanted, kind, what);
    }
}
