//! The outputs of one input, and the frames that wait for a session or are said again in the next one.
//!
//! The rooms below the state machine put their outputs here. What depends on the whole node, its status
//! and STATS, they only ask for; the state machine makes them once the input is handled.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::time::{Duration, Instant};

use log::warn;
use ssntp::payload::Id;
use ssntp::proto::{Command, ErrorCode, Frame, FrameType};
use ssntp_cluster::refusal::{self, Refused};
use ssntp_payload::CommandSubject;
use ssntp_transport::{LogLimit, excerpt};
use uuid::Uuid;

use super::events::{Action, Job};

/// The pause before frames are sent again for which the client had no room.
pub(super) const RETRY: Duration = Duration::from_millis(200);
/// The maximum number of frames that are parked until there is a session. Each reports a single event.
/// If there are more, the oldest are dropped; STATS still report the present state.
pub(super) const MAX_PARKED: usize = 1024;
/// The maximum number of failed STARTs that are reported again in a new session.
const MAX_FAILED: usize = 256;
/// The age up to which a failed START is reported again. Within this time the loss of a session is
/// noticed and a new session is established.
pub(super) const REPEATED: Duration = Duration::from_secs(60);

/// The outputs, and the frames that wait.
#[derive(Debug)]
pub(super) struct Outputs {
    node: Uuid,
    /// The time of the present input.
    now: Instant,
    connected: bool,
    actions: Vec<Action>,
    /// Frames that wait for a session, or for room in the client's queue.
    parked: VecDeque<Frame>,
    /// STARTs that failed during a session, the oldest first.
    failed: VecDeque<Failed>,
    /// The number of failed STARTs, by the reason.
    failures: BTreeMap<&'static str, u64>,
    /// The time at which parked frames are sent again, after the client had no room.
    retry_due: Instant,
    /// The last status frame. `None` before the first one, and if the client had no room for it.
    announced: Option<Frame>,
    /// A status was asked for: in any case, or if it has changed.
    wants_status: Option<InAnyCase>,
    wants_stats: bool,
    /// One key is enough, because all frames come from one scheduler.
    log: LogLimit<()>,
}

/// True if the status is sent even if it has not changed.
type InAnyCase = bool;

/// A START that failed.
#[derive(Debug)]
struct Failed {
    at: Instant,
    instance: Id,
    failure: Frame,
}

impl Outputs {
    pub(super) fn new(node: Uuid, now: Instant) -> Self {
        Self {
            node,
            now,
            connected: false,
            actions: Vec::new(),
            parked: VecDeque::new(),
            failed: VecDeque::new(),
            failures: BTreeMap::new(),
            retry_due: now,
            announced: None,
            wants_status: None,
            wants_stats: false,
            log: LogLimit::default(),
        }
    }

    pub(super) fn node(&self) -> Uuid {
        self.node
    }

    pub(super) fn now(&self) -> Instant {
        self.now
    }

    /// The next outputs are those of an input at this time.
    pub(super) fn handle_time(&mut self, now: Instant) {
        self.now = now;
    }

    pub(super) fn is_connected(&self) -> bool {
        self.connected
    }

    pub(super) fn announced(&self) -> Option<&Frame> {
        self.announced.as_ref()
    }

    pub(super) fn failures(&self) -> &BTreeMap<&'static str, u64> {
        &self.failures
    }

    pub(super) fn parked(&self) -> usize {
        self.parked.len()
    }

    /// The time at which the status and the parked frames are sent again. No frame can be sent without a
    /// session, so parked frames do not wake an agent that has none. `lacks_status` is true if the node
    /// has a status to announce.
    pub(super) fn next_deadline(&self, lacks_status: bool) -> Option<Instant> {
        let waits = !self.parked.is_empty() || (lacks_status && self.announced.is_none());
        (self.connected && waits).then_some(self.retry_due)
    }

    pub(super) fn take_actions(&mut self) -> Vec<Action> {
        std::mem::take(&mut self.actions)
    }

    /// The status that was asked for, and true if STATS were asked for.
    pub(super) fn take_wishes(&mut self) -> (Option<InAnyCase>, bool) {
        (self.wants_status.take(), std::mem::take(&mut self.wants_stats))
    }

    pub(super) fn handle_connected(&mut self) {
        self.connected = true;
        // InvalidConfiguration answers a CONFIGURE of the session that ended; a new session begins
        // with a configuration of its own.
        self.parked
            .retain(|frame| frame.kind() != ErrorCode::INVALID_CONFIGURATION);
    }

    pub(super) fn handle_disconnected(&mut self) {
        self.connected = false;
    }

    /// Says again what the session before may have lost, and then sends the parked frames. The failures
    /// come first, because they are older. A failure that is parked is sent once.
    pub(super) fn repeat(&mut self) {
        self.failed
            .retain(|failed| self.now.saturating_duration_since(failed.at) < REPEATED);
        let again = self.failed.iter().map(|failed| &failed.failure);
        let again = again.filter(|failure| !self.parked.contains(failure));
        self.actions.extend(again.cloned().map(Action::Send));
        self.send_parked();
    }

    pub(super) fn send_parked(&mut self) {
        self.actions.extend(self.parked.drain(..).map(Action::Send));
    }

    /// Handles frames that could not be sent, in their order.
    pub(super) fn handle_unsent(&mut self, frames: Vec<Frame>) {
        self.retry_due = self.now + RETRY;
        for frame in frames {
            if frame.kind().frame_type == FrameType::STATUS {
                // The present status is sent at `retry_due`.
                self.announced = None;
            } else if frame.kind() != Command::STATS {
                // The next STATS replace unsent ones.
                self.park(frame);
            }
        }
    }

    fn park(&mut self, frame: Frame) {
        if self.parked.len() >= MAX_PARKED {
            let dropped = self.parked.pop_front();
            let kind = dropped.map(|frame| frame.kind().to_string()).unwrap_or_default();
            let dropped =
                format_args!("{MAX_PARKED} frames wait for a session: the oldest, {kind}, is dropped");
            self.complain("dropped", dropped);
        }
        self.parked.push_back(frame);
    }

    /// Adds an output.
    pub(super) fn act(&mut self, action: Action) {
        self.actions.push(action);
    }

    pub(super) fn job(&mut self, job: Job) {
        self.act(Action::Job(job));
    }

    /// Sends a frame that must not be lost: now if there is a session, otherwise in the next one. It
    /// overtakes no parked frame, because the end of an instance, for example, follows its stop.
    pub(super) fn report(&mut self, frame: Frame) {
        if self.connected && self.parked.is_empty() {
            self.act(Action::Send(frame));
        } else {
            self.park(frame);
        }
    }

    /// Sends the status of the node if it differs from the last one, or in any case.
    pub(super) fn announce(&mut self, status: Frame, in_any_case: InAnyCase) {
        if in_any_case || self.announced.as_ref() != Some(&status) {
            self.announced = Some(status.clone());
            self.act(Action::Send(status));
        }
    }

    /// Asks for the status of the node after this input, in any case or if it has changed.
    pub(super) fn wish_status(&mut self, in_any_case: InAnyCase) {
        self.wants_status = Some(in_any_case || self.wants_status.unwrap_or(false));
    }

    /// Asks for STATS soon after this input.
    pub(super) fn wish_stats(&mut self) {
        self.wants_stats = true;
    }

    /// Asks for the status of the node after this input, in any case, and for STATS soon after it.
    pub(super) fn wish_report(&mut self) {
        self.wish_status(true);
        self.wish_stats();
    }

    /// Answers a command that was not carried out.
    pub(super) fn fail(&mut self, command: Command, mut subject: CommandSubject, refused: &Refused) {
        subject.node_uuid = self.node.into();
        let instance = subject.instance_uuid.clone();
        let Some(failure) = refusal::failure(command, subject, refused) else {
            return self.report(refusal::invalid_frame(command.into(), &refused.reason));
        };
        if command == Command::START {
            *self.failures.entry(refused.reason.word()).or_default() += 1;
            // The last frames of a session can be lost with it, so the failure is kept for a new session
            // that begins soon.
            if self.connected {
                // The oldest failure is dropped, because it is the most likely to have been delivered.
                if self.failed.len() >= MAX_FAILED {
                    self.failed.pop_front();
                }
                self.failed.push_back(Failed {
                    at: self.now,
                    instance,
                    failure: failure.clone(),
                });
            }
        }
        self.report(failure);
    }

    /// Forgets the earlier failure of a START that is received again.
    pub(super) fn handle_start(&mut self, instance: Uuid) {
        self.failed.retain(|failed| failed.instance != instance);
    }

    /// True if a line of this kind may be logged, with the number of lines that were left out. The
    /// number of lines of each kind is limited, because a controller could otherwise fill the log.
    pub(super) fn may_log(&mut self, kind: &'static str) -> Option<impl fmt::Display + use<>> {
        self.log.admit((), kind, self.now)
    }

    /// Logs a problem, within the limit for its kind.
    pub(super) fn complain(&mut self, kind: &'static str, what: impl fmt::Display) {
        if let Some(more) = self.may_log(kind) {
            warn!("{}: {}{more}", self.node, excerpt(what));
        }
    }
}

/// The subject of a command for an instance.
pub(super) fn subject(instance: Uuid) -> CommandSubject {
    CommandSubject {
        instance_uuid: instance.into(),
        ..CommandSubject::default()
    }
}
