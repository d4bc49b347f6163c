//! Routing: which frames of a client pass the filter, and the rules by which they go to other sessions:
//! for each kind of frame, the roles that get it or a routing function.

use std::fmt;

use log::debug;
use uuid::Uuid;

use super::delivery::Delivery;
use super::directory::Directory;
use super::filter::Filter;
use super::kinds::KindTable;
use super::parcel::Parcel;
use super::sessions::SessionInfo;
use crate::proto::{Frame, FrameKind, Item, Operands, apart};
use ssntp_pki::Role;
use ssntp_transport::guard;

/// A routing function. Its arguments are a frame, the UUID of its sender, and the connected sessions. It returns the
/// clients to send the frame to.
pub(super) type RouteFn = dyn FnMut(&Frame, Uuid, &Directory<'_>) -> Vec<Uuid> + Send;

/// The forwarding rules of a server, at most one for each kind of frame. A frame without a rule goes
/// only to the application.
///
/// ```
/// use ssntp::proto::{Command, Event};
/// use ssntp::server::Rules;
/// use ssntp::Role;
///
/// let rules = Rules::new()
///     .multicast(Command::STATS, Role::CONTROLLER)
///     .route(Event::TENANT_ADDED, |_frame, _from, directory| {
///         let cnci = directory.with_role(Role::CNCIAGENT).next();
///         cnci.map(|cnci| cnci.uuid()).into_iter().collect()
///     });
/// assert!(rules.check().is_ok());
/// ```
#[derive(Default)]
pub struct Rules {
    entries: Vec<(FrameKind, Rule)>,
}

pub(super) enum Rule {
    Multicast(Role),
    Function(Box<RouteFn>),
}

impl Rules {
    /// No rules.
    pub fn new() -> Self {
        Self::default()
    }

    /// The rules of a cluster for a server that reads no payloads: each frame goes to all clients whose
    /// role may need it. A scheduler is more precise: it sends a command only to its node, and does not
    /// forward the capacity that nodes report.
    ///
    /// ```
    /// use ssntp::proto::Command;
    /// use ssntp::server::Rules;
    /// use ssntp::Role;
    ///
    /// assert_eq!(Rules::spec().receivers(Command::STATS), Some(Role::CONTROLLER));
    /// ```
    pub fn spec() -> Self {
        FrameKind::all().fold(Self::new(), |rules, kind| match kind.cluster_roles() {
            (_, Role::NONE) => rules,
            (_, receivers) => rules.multicast(kind, receivers),
        })
    }

    /// The roles that frames of `kind` go to. `None` if the kind has no rule or a routing function.
    pub fn receivers(&self, kind: impl Into<FrameKind>) -> Option<Role> {
        let kind = kind.into();
        self.entries.iter().find_map(|(of, rule)| match rule {
            Rule::Multicast(role) if *of == kind => Some(*role),
            _ => None,
        })
    }

    /// Adds a rule: frames of `kind` go to every session with one of the roles in `to`, except to
    /// their sender.
    #[must_use]
    pub fn multicast(mut self, kind: impl Into<FrameKind>, to: Role) -> Self {
        self.entries.push((kind.into(), Rule::Multicast(to)));
        self
    }

    /// Adds a rule: `route` returns the clients that get a frame of `kind`; without any, the frame is dropped, and
    /// counted in [`Figures::unreceived`](super::Figures::unreceived). A client that is not connected, and the sender
    /// itself, are skipped and logged. `route` runs on the dispatcher thread and
    /// must not block.
    #[must_use]
    pub fn route(
        mut self,
        kind: impl Into<FrameKind>,
        route: impl FnMut(&Frame, Uuid, &Directory<'_>) -> Vec<Uuid> + Send + 'static,
    ) -> Self {
        self.entries.push((kind.into(), Rule::Function(Box::new(route))));
        self
    }

    /// Checks that the rules can be used. Kinds of the application are accepted; the server checks that
    /// they are registered.
    ///
    /// # Errors
    /// The first [`RuleError`].
    pub fn check(&self) -> Result<(), RuleError> {
        for (at, (kind, rule)) in self.entries.iter().enumerate() {
            if !(kind.is_known() || kind.is_application()) {
                return Err(RuleError::Unknown(*kind));
            }
            if kind.is_handshake() {
                return Err(RuleError::Handshake(*kind));
            }
            if self.entries[..at].iter().any(|(other, _)| other == kind) {
                return Err(RuleError::Duplicate(*kind));
            }
            if let Rule::Multicast(role) = rule
                && (role.is_empty() || role.unknown_bits() != 0)
            {
                return Err(RuleError::Role(*kind, *role));
            }
        }
        Ok(())
    }

    /// As [`check`](Self::check), for a server with these operands of the application.
    pub(super) fn check_for(&self, operands: &Operands) -> Result<(), RuleError> {
        let mut kinds = self.entries.iter().map(|(kind, _)| *kind);
        match kinds.find(|kind| kind.is_application() && !operands.contains(*kind)) {
            Some(kind) => Err(RuleError::Unknown(kind)),
            None => self.check(),
        }
    }
}

impl fmt::Debug for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map()
            .entries(self.entries.iter().map(|(kind, rule)| match rule {
                Rule::Multicast(role) => (kind, role.to_string()),
                Rule::Function(_) => (kind, "function".to_owned()),
            }))
            .finish()
    }
}

/// The reason for which [`Rules`] cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RuleError {
    /// Two rules for one kind.
    #[error("{0} has two forwarding rules")]
    Duplicate(FrameKind),
    /// The kind is neither defined by the protocol nor registered.
    #[error("{0} is neither a frame of the protocol nor registered as one of the application")]
    Unknown(FrameKind),
    /// The kind is CONNECT or CONNECTED.
    #[error("{0} belongs to the handshake and is never forwarded")]
    Handshake(FrameKind),
    /// A multicast names no role, or one that does not exist.
    #[error("the rule for {0} names the role {1}")]
    Role(FrameKind, Role),
}

/// Rules that were checked, indexed by kind.
fn table(rules: Rules, operands: &Operands) -> Result<KindTable<Rule>, RuleError> {
    rules.check_for(operands)?;
    let mut table = KindTable::default();
    for (kind, rule) in rules.entries {
        table.set(kind, rule);
    }
    Ok(table)
}

/// What clients may send, and where it goes.
pub(super) struct Routing {
    filter: Filter,
    rules: KindTable<Rule>,
}

impl Routing {
    pub(super) fn new(filter: Filter, rules: Rules, operands: &Operands) -> Result<Self, RuleError> {
        let rules = table(rules, operands)?;
        Ok(Self { filter, rules })
    }

    pub(super) fn filter(&self) -> &Filter {
        &self.filter
    }

    pub(super) fn set_filter(&mut self, filter: Filter) {
        self.filter = filter;
    }

    pub(super) fn set_rules(&mut self, rules: Rules, operands: &Operands) -> Result<(), RuleError> {
        self.rules = table(rules, operands)?;
        Ok(())
    }

    /// The rule for a kind of frame.
    pub(super) fn rule(&self, kind: FrameKind) -> Option<&Rule> {
        self.rules.get(kind)
    }

    /// Forwards frames of a session by the rule for their kind. Returns the messages of panics in the routing
    /// function.
    pub(super) fn forward(
        &mut self,
        delivery: &mut Delivery,
        from: &SessionInfo,
        item: &Item,
    ) -> Vec<String> {
        match self.rules.get_mut(item.kind()) {
            Some(Rule::Multicast(role)) => {
                let parcel = Parcel::of(item, &delivery.own, delivery.time.wall);
                let sent = parcel.map_or(0, |mut parcel| {
                    delivery.send_to_role(Some(from.uuid), *role, &mut parcel)
                });
                if sent == 0 {
                    delivery.out.count_unreceived(item.frames());
                }
                Vec::new()
            }
            Some(Rule::Function(route)) => {
                // The payload of each frame keeps the bytes of the whole run alive.
                let memory = match item {
                    Item::Run(run) => run.wire().len(),
                    _ => 0,
                };
                let frames = item.each();
                frames
                    .filter_map(|frame| forward(&mut **route, delivery, from, &frame, memory))
                    .collect()
            }
            None => Vec::new(),
        }
    }
}

/// Forwards a frame by a routing function. The frame is a part of `memory` bytes. Returns the message of a panic, after
/// which the frame is discarded, because its receiver is unknown.
fn forward(
    route: &mut RouteFn,
    delivery: &mut Delivery,
    from: &SessionInfo,
    frame: &Frame,
    memory: usize,
) -> Option<String> {
    let mut receivers = Vec::new();
    let directory = delivery.directory();
    let panic = guard(|| receivers = route(frame, from.uuid, &directory)).err();
    if panic.is_some() {
        return panic;
    }
    let payload = apart(frame.payload_bytes().clone(), memory);
    let mut parcel = delivery.parcel(&frame.carrying(payload));
    let mut count = 0;
    for uuid in receivers {
        match delivery.send(Some(from.uuid), uuid, &mut parcel) {
            Ok(()) => count += 1,
            Err(e) => {
                let kind = delivery.own.operands.show(frame.kind());
                debug!(target: "ssntp::server", "{from}: {kind} is not forwarded: {e}");
            }
        }
    }
    if count == 0 {
        delivery.out.count_unreceived(1);
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::{Command, ErrorCode, Event, FrameType, Status};
    use crate::server::Filter;

    #[test]
    fn the_rules_of_the_spec_forward_every_report_and_command() {
        let rules = Rules::spec();
        assert_eq!(rules.check(), Ok(()));
        let filter = Filter::spec();
        for kind in FrameKind::all() {
            // An error about a single frame may come from any role.
            let anybody = filter.allows(Role::SERVER, kind) && kind != Event::TRACE_REPORT;
            let is_ours = (0x40..0x50).contains(&kind.operand);
            let expected =
                !kind.is_handshake() && !anybody && !is_ours && kind != ErrorCode::INVALID_CONFIGURATION;
            assert_eq!(rules.receivers(kind).is_some(), expected, "{kind}");
        }
        for (kind, to) in [
            (FrameKind::from(Command::START), Role::AGENT | Role::NETAGENT),
            (Command::REFRESH_CNCI.into(), Role::CNCIAGENT),
            (Event::TENANT_ADDED.into(), Role::CNCIAGENT),
            (Status::OFFLINE.into(), Role::CONTROLLER),
            (ErrorCode::START_FAILURE.into(), Role::CONTROLLER),
        ] {
            assert_eq!(rules.receivers(kind), Some(to), "{kind}");
        }
    }

    #[test]
    fn rules_that_cannot_be_used_are_refused() {
        let stats = FrameKind::from(Command::STATS);
        let unknown = FrameKind::new(FrameType::COMMAND, 0x77);
        let cases = [
            (
                Rules::new()
                    .multicast(stats, Role::CONTROLLER)
                    .multicast(stats, Role::AGENT),
                RuleError::Duplicate(stats),
            ),
            (
                Rules::new().route(unknown, |_, _, _| Vec::new()),
                RuleError::Unknown(unknown),
            ),
            (
                Rules::new().multicast(Command::CONNECT, Role::AGENT),
                RuleError::Handshake(Command::CONNECT.into()),
            ),
            (
                Rules::new().multicast(Status::CONNECTED, Role::AGENT),
                RuleError::Handshake(Status::CONNECTED.into()),
            ),
            (
                Rules::new().multicast(stats, Role::NONE),
                RuleError::Role(stats, Role::NONE),
            ),
            (
                Rules::new().multicast(stats, Role::from_bits(0x40)),
                RuleError::Role(stats, Role::from_bits(0x40)),
            ),
        ];
        for (rules, error) in cases {
            assert_eq!(rules.check(), Err(error));
            let (RuleError::Duplicate(kind)
            | RuleError::Unknown(kind)
            | RuleError::Handshake(kind)
            | RuleError::Role(kind, _)) = error;
            assert!(error.to_string().contains(&kind.to_string()));
            assert_eq!(table(rules, &Operands::new()).err(), Some(error));
        }
    }

    #[test]
    fn rules_are_shown_by_kind_and_receivers() {
        let rules = Rules::new()
            .multicast(Command::STATS, Role::CONTROLLER)
            .route(Status::READY, |_, _, _| Vec::new());
        let shown = r#"{STATS: "controller", READY: "function"}"#;
        assert_eq!(format!("{rules:?}"), shown);
    }

    #[test]
    fn a_rule_for_a_frame_of_the_application_needs_it_registered() {
        let own = FrameKind::new(FrameType::EVENT, 0x80);
        let rules = || Rules::new().multicast(own, Role::CONTROLLER);
        assert_eq!(rules().check(), Ok(()));
        let unregistered = table(rules(), &Operands::new());
        assert_eq!(unregistered.err(), Some(RuleError::Unknown(own)));
        let operands = Operands::new().application(own, "Scaled").unwrap();
        let table = table(rules(), &operands).unwrap();
        assert!(matches!(table.get(own), Some(Rule::Multicast(Role::CONTROLLER))));
    }
}
