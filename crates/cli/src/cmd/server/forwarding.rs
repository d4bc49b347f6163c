//! The work of `ssntp server` besides filtering and forwarding: it answers senders that ask how
//! many sessions received a frame, and prints frames.
//!
//! ```text
//!  dispatcher ── Application ── Shown ─▶ 1,024 frames ─▶ a thread ─▶ standard output
//!                                        │ full: dropped and counted
//! ```

use std::sync::{Arc, OnceLock, Weak};

use crossbeam_channel::Sender;
use ssntp::Request;
use ssntp::Role;
use ssntp::payload::Servers;
use ssntp::proto::{Frame, Operands, Run};
use ssntp::server::{ClusterHandler, Context, Handler, SessionInfo};
use ssntp_daemon::{Failure, Output, note};
use ssntp_engine::Membership;
use ssntp_scheduler::add_members;

use super::super::listen;
use crate::receipt::{self, Question, sessions};

/// The maximum number of frames that wait to be printed. It bounds the memory of a server whose output is
/// read slowly.
pub(super) const SHOWN: usize = 1024;

/// The handler of `ssntp server`. It runs on the dispatcher, so it never blocks.
pub(super) struct Application {
    pub(super) show: Option<Sender<Shown>>,
    /// The number of frames that were dropped since the last frame that was queued.
    pub(super) missed: u64,
    /// The membership of the cluster, once the server has joined one.
    pub(super) cluster: Arc<OnceLock<Weak<Membership>>>,
}

impl Handler for Application {
    fn request(&mut self, cx: &mut Context<'_>, from: &SessionInfo, request: Request) {
        let question = Some(request.payload()).filter(|_| request.kind() == receipt::RECEIVERS);
        let question = question.and_then(Question::read).unwrap_or_default();
        // The client that asked may have disconnected meanwhile; the answer is lost then.
        let _ = match (question.kind(), question.role()) {
            (Some(kind), _) if !cx.filter().allows(from.role(), kind) => {
                cx.refuse(&request, receipt::NOT_ALLOWED)
            }
            (None, None) => cx.refuse(&request, "not_answered"),
            (kind, role) => {
                let to = kind.map_or(role.unwrap_or_default(), |kind| cx.receivers(kind));
                let others = others(cx, from, to);
                cx.reply(&request, receipt::reply(others))
            }
        };
    }

    fn run(&mut self, cx: &mut Context<'_>, from: &SessionInfo, run: &Run) {
        if self.show.is_some() {
            run.frames().for_each(|frame| self.frame(cx, from, frame));
        }
    }

    fn frame(&mut self, cx: &mut Context<'_>, from: &SessionInfo, frame: Frame) {
        if let Some(show) = &self.show {
            let shown = Shown {
                from: from.clone(),
                receivers: others(cx, from, cx.receivers(frame.kind())),
                frame,
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

/// The number of the other sessions with one of these roles.
fn others(cx: &Context<'_>, from: &SessionInfo, role: Role) -> usize {
    let directory = cx.directory();
    let others = directory
        .with_role(role)
        .filter(|other| other.uuid() != from.uuid());
    others.count()
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
        let mut output = Output::lock();
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
