//! A connected controller, and the waits of a command: for the scheduler's list of nodes, for the
//! result of its orders, for a signal.

use std::fmt::Display;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

use crossbeam_channel::bounded;
use ssntp::Role;
use ssntp::client::ClientHandle;
use ssntp::payload::Payload;
use ssntp::proto::FrameKind;
use ssntp_daemon::{
    Complaint, Failure, Output, Stop, closed, even_unread, note, print_json, print_line, printable,
    unanswered,
};
use ssntp_transport::{elapsed, now, threads};
use ssntp_view::{AskError, CommandError, Controller, Node, Order, OrderError, Shown, View};
use uuid::Uuid;

use super::{Invocation, json};

/// The longest time until a signal is noticed in a wait that does not select on signals.
pub(super) const POLL: Duration = Duration::from_millis(100);
/// The time limit for the scheduler to report all nodes.
const COMPLETION: Duration = Duration::from_secs(5);
/// If there are several schedulers, the further time limit for one of them to lead and to report all nodes.
/// When a leader has died, the next one takes up to eleven seconds.
const LEADER: Duration = Duration::from_secs(15);
/// The time for which a command waits for a START while the node works on it. It is longer than the
/// scheduler's default limit for a START.
const MAX_START: Duration = Duration::from_secs(1200);
/// The time after which a user at a terminal sees what the command waits for.
const PROGRESS_AFTER: Duration = Duration::from_secs(1);
/// The time for which a command waits for a node that can run its START. It is longer than the longest
/// pause of an agent between two attempts to connect, which is 30 s.
const NODE: Duration = Duration::from_secs(40);
/// The time limit for sending commands with --no-wait.
const SENDING: Duration = Duration::from_secs(10);

/// Blocks until a client has a session with its server. Meanwhile it notes for the user why there is
/// no session.
pub(super) fn await_session(client: &ClientHandle, limit: Duration, stop: &Stop) -> Result<(), Failure> {
    let mut complaint = Complaint::default();
    let connected = stop.poll(Duration::ZERO, limit, || {
        let connected = client.wait_connected(Some(POLL.min(limit)));
        let connected = connected.map_err(|why| closed(Some(why)))?;
        if !connected {
            complaint.note(client);
        }
        Ok(connected.then_some(()))
    })?;
    connected.ok_or_else(|| unanswered(client, limit))
}

/// The failure of a question of this kind, which `changes` something or not.
fn not_answered(error: AskError, kind: FrameKind, changes: bool) -> Failure {
    match error {
        AskError::Refused(reason) => Failure::new(refusal_text(kind, &reason)),
        error @ (AskError::Lost | AskError::Late(_) | AskError::Unreadable(_)) if changes => {
            Failure::new(format_args!("{error}; it is not known whether that was done"))
        }
        error => error.into(),
    }
}

/// Fails if an answer refuses its question: with the details, or else the reason.
pub(super) fn check<R: Display + Default + PartialEq>(reason: &R, detail: &str) -> Result<(), Failure> {
    match detail {
        _ if *reason == R::default() => Ok(()),
        "" => Err(Failure::new(reason)),
        detail => Err(Failure::new(printable(detail))),
    }
}

/// A connected controller for one command, with its time limit and the signals.
pub(super) struct Session<'a> {
    pub(super) controller: Controller,
    pub(super) cx: &'a Invocation,
    pub(super) limit: Duration,
    /// True if the user gave the limit.
    is_strict: bool,
    pub(super) json: bool,
}

impl<'a> Session<'a> {
    /// Connects to a scheduler or another server.
    pub(super) fn open_any(cx: &'a Invocation) -> Result<Self, Failure> {
        let controller = Controller::start(cx.options.config(&cx.stop)?)?;
        await_session(&controller.client(), cx.options.connect_limit(), &cx.stop)?;
        Ok(Self {
            controller,
            cx,
            limit: cx.options.limit(),
            is_strict: cx.options.timeout.is_some(),
            json: cx.options.json,
        })
    }

    /// Connects to a scheduler.
    pub(super) fn open(cx: &'a Invocation) -> Result<Self, Failure> {
        let session = Self::open_any(cx)?;
        if let Some(server) = session.controller.client().server()
            && !server.role.intersects(Role::SCHEDULER)
        {
            return Err(Failure::new(format!(
                "{} is a {} and not a scheduler, so it has no nodes and instances; of `ssntp ctl`, sessions, \
                 servers, kick, bans and unban work with it",
                server.name, server.role
            )));
        }
        Ok(session)
    }

    /// Sends a question to the server, and waits for its answer: until the time limit, or a signal. If it
    /// `changes` something, an error without an answer says that it may be done or not.
    pub(super) fn ask<Q: Payload, A: Payload>(
        &self,
        question: &Q,
        is_answer: impl Fn(&A) -> bool,
        changes: bool,
    ) -> Result<A, Failure> {
        let (client, stop) = (self.controller.client(), self.cx.stop.channel().clone());
        let (asking, asked) = bounded::<()>(0);
        // The end of the client ends the wait.
        let watch = move || {
            crossbeam_channel::select! {
                recv(stop) -> _ => client.close(),
                recv(asked) -> _ => {}
            }
        };
        let _watching = threads::joined("ssntp-watch", watch).map_err(Failure::thread)?;
        let answer = self.controller.ask(question, is_answer, self.limit);
        drop(asking);
        answer.map_err(|error| match error {
            _ if self.cx.stop.requested() => self.cx.stop.interrupted(),
            error => not_answered(error, Q::KIND, changes),
        })
    }

    /// Extends the time limit, unless the user gave it.
    pub(super) fn extend_limit(&mut self, time: Duration) {
        if !self.is_strict {
            self.limit += time;
        }
    }

    /// Connects to a scheduler, and waits for its list of nodes: for at most 5 seconds, and for 15 more if there are
    /// several schedulers and none leads yet. Fails if the list is then not known. If only some nodes have not
    /// reported, it notes that for the user and succeeds.
    pub(super) fn open_complete(cx: &'a Invocation) -> Result<Self, Failure> {
        let session = Self::open(cx)?;
        // After this time the command continues with the nodes that are known. If it names another
        // node, that is reported as unknown.
        let complete = || Ok(session.controller.wait_complete(POLL).then_some(()));
        let limit = COMPLETION.min(session.limit);
        let is_complete = cx.stop.poll(Duration::ZERO, limit, complete)?.is_some();
        let without_snapshot = || session.controller.look(without_snapshot);
        if let Some(why) = without_snapshot() {
            note(format_args!("ssntp: waiting for the list of nodes: {why}"));
            let left = session.limit.saturating_sub(limit);
            cx.stop.poll(Duration::ZERO, LEADER.min(left), complete)?;
        }
        match without_snapshot() {
            // A command that continued would report an empty cluster.
            Some(why) => Err(Failure::new(format!("the nodes are not known: {why}"))),
            None => {
                if !is_complete && !session.controller.wait_complete(Duration::ZERO) {
                    note("ssntp: some nodes have not reported yet: their instances are not known");
                }
                Ok(session)
            }
        }
    }

    /// The order of a command for an instance that was in the view; `None` if the command could not be sent because the
    /// instance has left the view meanwhile.
    pub(super) fn none_if_gone<E>(&self, instance: Uuid, sent: Result<Order, E>) -> Result<Option<Order>, E> {
        let is_gone = || self.controller.look(|view| view.instance(instance).is_none());
        match sent {
            Err(_) if is_gone() => Ok(None),
            sent => sent.map(Some),
        }
    }

    /// Sends a command for each of `all`, and prints what becomes of them. A command that cannot be sent ends the
    /// sending; those before it are reported all the same. `None` of `send` passes one over.
    pub(super) fn send_each<T, E>(
        &self,
        all: &[T],
        send: impl Fn(&T) -> Result<Option<Order>, E>,
        wait: bool,
    ) -> Result<(), Failure>
    where
        Failure: From<E>,
    {
        let (mut orders, mut failed) = (Vec::new(), None);
        for one in all {
            // Each of many may block until the queue has room.
            if self.cx.stop.requested() {
                failed = Some(self.cx.stop.interrupted());
            } else {
                match send(one) {
                    Ok(order) => orders.extend(order),
                    Err(e) => failed = Some(Failure::from(e)),
                }
            }
            if failed.is_some() {
                break;
            }
        }
        let Some(failed) = failed else {
            return self.finish(orders, wait);
        };
        if all.len() > 1 {
            let (sent, rest) = (orders.len(), all.len() - orders.len());
            note(format_args!("ssntp: {sent} commands were sent, {rest} were not"));
        }
        // The reason why the rest was not sent is the last line.
        let _ = self.finish(orders, wait);
        Err(failed)
    }

    /// Finds the instances with these names and beginnings of UUIDs, each once. All are found before a
    /// command is sent to any of them.
    pub(super) fn find_instances(&self, texts: &[String]) -> Result<Vec<Uuid>, Failure> {
        let mut found = Vec::new();
        for text in texts {
            let instance = self.controller.look(|view| {
                let instance = view.find_instance(text)?;
                match view.instance(instance) {
                    Some(_) => Ok(instance),
                    None => Err(Failure::new(CommandError::UnknownInstance(instance))),
                }
            })?;
            if !found.contains(&instance) {
                found.push(instance);
            }
        }
        Ok(found)
    }

    /// Blocks until a node is connected that can run the START, and notes the wait for the user. The
    /// scheduler would refuse an earlier START at once, and an agent that was just started takes a
    /// moment to connect.
    pub(super) fn wait_for_node(&self, can_run: impl Fn(&Node) -> bool) -> Result<(), Failure> {
        let can_run = |node: &Node| node.connected && can_run(node);
        let mut is_noted = false;
        let connected = || {
            let is_connected = self.controller.look(|view| view.nodes().any(can_run));
            if !is_connected && !std::mem::replace(&mut is_noted, true) {
                note("ssntp: waiting for a node that can run it: none is connected yet");
            }
            Ok(is_connected.then_some(()))
        };
        // If there is still no node, the scheduler's answer names what is missing.
        self.cx.stop.poll(POLL, NODE.min(self.limit), connected).map(drop)
    }

    /// Blocks until an order is executed. Prints nothing; a failure of the order is the error.
    pub(super) fn await_done(&self, order: Order) -> Result<(), Failure> {
        let left = self.await_results(vec![order], &mut |_, settled| match settled {
            Ok(_) => Ok(()),
            Err(e) => Err(Failure::new(e)),
        })?;
        if left.is_empty() {
            Ok(())
        } else {
            Err(self.cx.stop.interrupted())
        }
    }

    /// Blocks until all orders have a result, and prints each result; with --no-wait, blocks until the
    /// commands are sent.
    pub(super) fn finish(&self, orders: Vec<Order>, wait: bool) -> Result<(), Failure> {
        if !wait {
            return self.await_sent(&orders);
        }
        let total = orders.len();
        let mut failed = Vec::new();
        let mut print = |order: &Order, settled: &Result<Shown, OrderError>| {
            if let Err(e) = settled {
                failed.push(e.to_string());
            }
            self.print_result(order, settled)
        };
        let left = self.await_results(orders, &mut print)?;
        if !left.is_empty() {
            // Without their names, nobody could look what has become of them.
            self.print_sent(&left)?;
            return Err(self.cx.stop.interrupted());
        }
        match failed.as_slice() {
            [] => Ok(()),
            [only] if total == 1 => Err(Failure::new(only)),
            several => {
                // With --json, every failure was printed already.
                for text in several.iter().filter(|_| !self.json) {
                    note(format_args!("ssntp: {text}"));
                }
                Err(Failure::new(format!("{} of {total} failed", several.len())))
            }
        }
    }

    /// Blocks until all orders have a result, and calls `on_result` with each. If the user gave no time
    /// limit, the wait for a START continues while its node works on it, because the scheduler then
    /// reports its result. Returns the orders without a result, if a signal has come.
    fn await_results(
        &self,
        mut orders: Vec<Order>,
        on_result: &mut impl FnMut(&Order, &Result<Shown, OrderError>) -> Result<(), Failure>,
    ) -> Result<Vec<Order>, Failure> {
        let changes = self.controller.subscribe();
        let tick = crossbeam_channel::tick(POLL);
        let mut progress = Progress::new();
        let total = orders.len();
        let (mut timeout, mut waited) = (crossbeam_channel::after(self.limit), self.limit);
        let last = now() + MAX_START;
        loop {
            let mut waiting = Vec::new();
            for order in orders {
                match order.poll() {
                    Some(settled) => on_result(&order, &settled)?,
                    None => waiting.push(order),
                }
            }
            orders = waiting;
            if orders.is_empty() {
                return Ok(orders);
            }
            progress.note(|| match orders.as_slice() {
                [order] if total == 1 => order.progress(),
                _ => format!("for the results of {total} commands"),
            });
            crossbeam_channel::select! {
                // One check of the orders is enough for all changes that have come together.
                recv(changes) -> _ => while changes.try_recv().is_ok() {},
                // An order that is lost with its session makes no change, so the orders are polled.
                recv(tick) -> _ => {},
                recv(self.cx.stop.channel()) -> _ => return Ok(orders),
                recv(timeout) -> _ => {
                    let may_continue = !self.is_strict && now() < last;
                    let continues = |order: &Order| may_continue && order.is_progressing();
                    let (continuing, late): (Vec<_>, Vec<_>) = orders.into_iter().partition(continues);
                    for order in &late {
                        on_result(order, &Err(order.timed_out(waited)))?;
                    }
                    orders = continuing;
                    timeout = crossbeam_channel::after(self.limit);
                    waited += self.limit;
                },
            }
        }
    }

    /// Prints the result of an order. Without --json, failures are printed to the standard error at the
    /// end.
    fn print_result(&self, order: &Order, settled: &Result<Shown, OrderError>) -> Result<(), Failure> {
        even_unread(match settled {
            _ if self.json => print_json(json::settled(order.subject(), settled)),
            Ok(shown) => print_line(printable(&shown.to_string())),
            Err(_) => Ok(()),
        })
    }

    /// Blocks until the commands are sent.
    fn await_sent(&self, orders: &[Order]) -> Result<(), Failure> {
        let sent = || Ok(self.controller.flush(POLL).then_some(()));
        let sent = self.cx.stop.poll(Duration::ZERO, SENDING, sent);
        if matches!(sent, Ok(None)) {
            return Err(Failure::new("the scheduler does not receive the commands"));
        }
        // Also after a signal, because they may be carried out.
        self.print_sent(orders)?;
        sent.map(drop)
    }

    /// Prints what the commands are about.
    fn print_sent(&self, orders: &[Order]) -> Result<(), Failure> {
        let mut output = Output::lock();
        for order in orders {
            match order.subject() {
                subject if self.json => output.json(json::accepted(subject))?,
                "" => output.line("the configuration was sent")?,
                subject => output.line(subject)?,
            }
        }
        output.flush()
    }
}

/// If there are several schedulers, and the one that leads has not reported all nodes: the reason.
fn without_snapshot(view: &View) -> Option<String> {
    let leader = view.leader().filter(|_| !view.has_snapshot())?;
    Some(if leader.server_uuid.is_empty() {
        "no scheduler leads".to_owned()
    } else {
        format!(
            "scheduler {} leads, and has not reported all of them",
            leader.server_uuid
        )
    })
}

/// Notes on a terminal what a command waits for: after a second, and again when that has changed.
pub(super) struct Progress {
    since: Instant,
    noted: String,
}

impl Progress {
    pub(super) fn new() -> Self {
        let noted = String::new();
        Self { since: now(), noted }
    }

    pub(super) fn note(&mut self, state: impl FnOnce() -> String) {
        if std::io::stderr().is_terminal() && elapsed(self.since) >= PROGRESS_AFTER {
            let state = state();
            if state != self.noted {
                note(format_args!("ssntp: waiting: {state}"));
                self.noted = state;
            }
        }
    }
}

/// The reason of a refused question, for people.
pub(in crate::cmd) fn refusal_text(kind: FrameKind, reason: &str) -> String {
    match reason {
        "role_not_allowed" => format!(
            "the server does not allow {kind} for this controller: it has no operators, or another \
             controller is the master"
        ),
        "unsupported_operand" => format!("the server is too old: it does not know {kind}"),
        "too_many" => "too many operators watch already; end another `ssntp watch` first".into(),
        reason => format!("the server refuses {kind}: {reason}"),
    }
}

#[cfg(test)]
mod tests {
    use ssntp::proto::Command;

    use super::*;

    #[test]
    fn a_change_without_an_answer_is_neither_done_nor_refused() {
        let text = |error, changes| not_answered(error, Command::KICK.into(), changes).to_string();
        let unknown = "it is not known whether that was done";
        for error in [AskError::Lost, AskError::Late(POLL)] {
            assert!(text(error.clone(), true).ends_with(unknown), "{error}");
            assert!(!text(error, false).contains(unknown));
        }
        assert!(!text(AskError::Refused("no".to_owned()), true).contains(unknown));
    }
}
