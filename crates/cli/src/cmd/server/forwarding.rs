//! The work of `ssntp server` besides filtering and forwarding: it answers senders that ask how
//! many sessions received a frame, and prints frames.
//!
//! ```text
//!  dispatcher ── Application ── Shown ─▶ 1,024 frames ─▶ main thread ─▶ standard output
//!                                        │ full: dropped and counted
//! ```

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use crossbeam_channel::Sender;
use ssntp::Role;
use ssntp::payload::Servers;
use ssntp::proto::{Event, Frame, FrameKind, Operands, Run};
use ssntp::server::{ClusterHandler, Context, Decision, Handler, Rules, SessionInfo};
use ssntp_engine::Membership;
use ssntp_scheduler::add_members;

use super::super::listen;
use crate::failure::Failure;
use crate::output::{Output, note};
use crate::receipt::{Question, sessions};

/// The maximum number of frames that wait to be printed. It bounds the memory of a server whose output is
/// read slowly.
pub(super) const SHOWN: usize = 1024;

/// The handler of `ssntp server`. It runs on the dispatcher, so it never blocks.
pub(super) struct Application {
    /// Never contended: a reload changes it on the dispatcher as well.
    pub(super) receivers: Arc<Mutex<Receivers>>,
    pub(super) show: Option<Sender<Shown>>,
    /// The number of frames that were dropped since the last frame that was queued.
    pub(super) missed: u64,
    /// The membership of the cluster, once the server has joined one.
    pub(super) cluster: Arc<OnceLock<Weak<Membership>>>,
}

/// The roles to which frames of each kind are forwarded.
pub(super) type Receivers = Vec<(FrameKind, Role)>;

pub(super) fn receivers(rules: &Rules, operands: &Operands) -> Receivers {
    let kinds = FrameKind::all().chain(operands.applications().map(|(kind, _)| kind));
    kinds
        .filter_map(|kind| Some((kind, rules.receivers(kind)?)))
        .collect()
}

/// The forwarding rules, with one exception: questions to the server are not forwarded.
pub(super) fn forwarding(receivers: &Receivers) -> Rules {
    let mut rules = Rules::new();
    for (kind, to) in receivers.iter().copied() {
        rules = match kind == Event::TRACE_REPORT {
            false => rules.multicast(kind, to),
            true => rules.route(kind, move |frame, from, directory| {
                if matches!(Question::of(frame), Some(Question::Sessions(_))) {
                    return Decision::Discard;
                }
                let others = directory.with_role(to).map(SessionInfo::uuid);
                Decision::Forward(others.filter(|uuid| *uuid != from).collect())
            }),
        };
    }
    rules
}

/// Locks the table. It is only ever replaced as a whole, so it is valid even after a panic.
pub(super) fn lock(receivers: &Mutex<Receivers>) -> MutexGuard<'_, Receivers> {
    receivers.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Application {
    fn to(&self, kind: FrameKind) -> Role {
        let receivers = lock(&self.receivers);
        let rule = receivers.iter().find(|(of, _)| *of == kind);
        rule.map_or(Role::NONE, |(_, to)| *to)
    }
}

impl Handler for Application {
    fn run(&mut self, cx: &mut Context<'_>, from: &SessionInfo, run: &Run) {
        // A frame with a question has a trace, and frames with a trace come one by one, through
        // `frame`.
        if self.show.is_some() {
            run.frames().for_each(|frame| self.frame(cx, from, frame));
        }
    }

    fn frame(&mut self, cx: &mut Context<'_>, from: &SessionInfo, frame: Frame) {
        let question = Question::of(&frame);
        if question.is_none() && self.show.is_none() {
            return;
        }
        let is_for_server = matches!(question, Some(Question::Sessions(_)));
        let role = match question {
            Some(Question::Sessions(role)) => role,
            _ => self.to(frame.kind()),
        };
        let directory = cx.directory();
        let others = directory.with_role(role);
        let others = others.filter(|other| other.uuid() != from.uuid()).count();
        if let Some(answer) = question.and_then(|question| question.answer(frame.kind(), others)) {
            // The sender may have disconnected meanwhile; its answer is lost then.
            let _ = cx.send(from.uuid(), &answer);
        }
        if let Some(show) = self.show.as_ref().filter(|_| !is_for_server) {
            let shown = Shown {
                from: from.clone(),
                frame,
                receivers: others,
                missed: self.missed,
            };
            self.missed = match show.try_send(shown) {
                Ok(()) => 0,
                Err(_) => self.missed + 1,
            };
        }
    }

    fn cluster(&mut self) -> Option<&mut dyn ClusterHandler> {
        Some(self)
    }
}

impl ClusterHandler for Application {
    fn servers(&mut self, _: &mut Context<'_>, servers: &mut Servers) {
        if let Some(membership) = self.cluster.get().and_then(Weak::upgrade) {
            add_members(servers, &membership.view());
        }
    }
}

/// A frame to be printed.
pub(super) struct Shown {
    from: SessionInfo,
    frame: Frame,
    receivers: usize,
    /// The number of frames before this one that were dropped.
    missed: u64,
}

impl Shown {
    pub(super) fn print(&self, operands: &Operands, as_json: bool) -> Result<(), Failure> {
        if self.missed > 0 {
            note(format_args!("ssntp: {} frames are not shown", self.missed));
        }
        let from = Some((self.from.uuid(), self.from.role()));
        let mut output = Output::new();
        if as_json {
            let mut value = listen::to_json(operands, &self.frame, from);
            value["receivers"] = self.receivers.into();
            output.json(value)?;
        } else {
            let to = sessions(self.receivers as u64);
            output.line(format_args!(
                "{} to {to}",
                listen::head(operands, &self.frame, from)
            ))?;
            listen::payload(&mut output, &self.frame)?;
        }
        output.flush()
    }
}
