//! A connected controller, and what a command waits for: the scheduler's list of
//! nodes, the end of its orders, a signal.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use ssntp::Role;
use ssntp::client::ClientHandle;
use ssntp_cluster::controller::{CommandError, Controller, Node, Order, OrderError, Shown};
use uuid::Uuid;

use super::json;
use super::options::Options;
use crate::clock::now;
use crate::connection::{Complaint, closed, unanswered};
use crate::failure::Failure;
use crate::output::{Output, note, print_json, print_line, printable};
use crate::signals::Stop;

/// How long a signal may go unnoticed in a wait that it cannot end.
pub(super) const LOOK: Duration = Duration::from_millis(100);
/// How long the scheduler may take to tell of all nodes.
const TELLING: Duration = Duration::from_secs(5);
/// How long a command waits for a START while the node works on it: longer than the
/// scheduler allows by default.
const MOST: Duration = Duration::from_secs(1200);
/// After how long a user at a terminal is told what is waited for.
const TELL_AFTER: Duration = Duration::from_secs(1);
/// How long a command waits for a node that could take its START: longer than the longest
/// pause of an agent between two attempts, which is 30 s.
const NODE: Duration = Duration::from_secs(40);
/// How long commands may take to leave this process.
const LEAVING: Duration = Duration::from_secs(10);

/// Waits until a client has a session with its server. Meanwhile it tells the user why there is
/// none.
pub(super) fn await_session(
    client: &ClientHandle,
    server: &str,
    limit: Duration,
    stop: &Stop,
) -> Result<(), Failure> {
    let mut complaint = Complaint::default();
    let connected = stop.poll(Duration::ZERO, limit, || {
        let connected = client.wait_connected(Some(LOOK.min(limit))).map_err(closed)?;
        if !connected {
            complaint.note(client);
        }
        Ok(connected.then_some(()))
    })?;
    connected.ok_or_else(|| unanswered(client, server, limit))
}

/// A connected controller for one command, with its time limit and the signals.
pub(super) struct Session<'a> {
    pub(super) controller: Controller,
    pub(super) stop: &'a Stop,
    pub(super) limit: Duration,
    /// Whether the user gave the limit.
    is_strict: bool,
    pub(super) json: bool,
}

impl<'a> Session<'a> {
    /// Connects.
    pub(super) fn open(options: &Options, stop: &'a Stop) -> Result<Self, Failure> {
        let controller = Controller::start(options.config(stop)?)?;
        let limit = options.limit();
        await_session(&controller.client(), "scheduler", limit, stop)?;
        if let Some(server) = controller.client().server()
            && !server.role().intersects(Role::SCHEDULER)
        {
            return Err(Failure::new(format!(
                "{} is no scheduler but a {}, which knows no nodes and instances; of this command, \
                 sessions, servers, kick, bans and unban work with it",
                server.name(),
                server.role()
            )));
        }
        Ok(Self {
            controller,
            stop,
            limit,
            is_strict: options.is_limited(),
            json: options.json,
        })
    }

    /// Raises the time limit for a command that may take this much longer. A limit that the user
    /// gave stays.
    pub(super) fn allow(&mut self, time: Duration) {
        if !self.is_strict {
            self.limit += time;
        }
    }

    /// Connects, and waits until the scheduler has told of all nodes.
    pub(super) fn open_told(options: &Options, stop: &'a Stop) -> Result<Self, Failure> {
        let session = Self::open(options, stop)?;
        // After this time the command goes on with the nodes that are known. If it names another
        // one, that is an error of its own.
        let told = || Ok(session.controller.wait_complete(LOOK).then_some(()));
        stop.poll(Duration::ZERO, TELLING, told)?;
        Ok(session)
    }

    /// The instances of these names and beginnings of UUIDs, each once. All of them
    /// are found before any of them is touched.
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

    /// Waits until a node is connected that could take the START, and says so. The
    /// scheduler would refuse an earlier START at once, and an agent that was just
    /// started takes a moment to connect.
    pub(super) fn wait_for_node(&self, is_of_use: impl Fn(&Node) -> bool) -> Result<(), Failure> {
        let is_of_use = |node: &Node| node.connected && is_of_use(node);
        let mut told = false;
        let there = || {
            let is_there = self.controller.look(|view| view.nodes().any(is_of_use));
            if !is_there && !std::mem::replace(&mut told, true) {
                note("ssntp: no node for it is connected yet: waiting for one");
            }
            Ok(is_there.then_some(()))
        };
        // Without a node the scheduler says in its answer what is missing.
        self.stop.poll(LOOK, NODE.min(self.limit), there).map(drop)
    }

    /// Waits until an order is carried out, and reports only a failure.
    pub(super) fn settle(&self, order: Order) -> Result<(), Failure> {
        self.each(vec![order], &mut |_, settled| match settled {
            Ok(_) => Ok(()),
            Err(e) => Err(Failure::new(e)),
        })
    }

    /// Waits for what becomes of orders, and reports each; or, with --no-wait, until
    /// they have left.
    pub(super) fn finish(&self, orders: Vec<Order>, wait: bool) -> Result<(), Failure> {
        if !wait {
            return self.leave(&orders);
        }
        let total = orders.len();
        let mut failed = Vec::new();
        let mut report = |order: &Order, settled: &Result<Shown, OrderError>| {
            if let Err(e) = settled {
                failed.push(e.to_string());
            }
            self.report(order, settled)
        };
        self.each(orders, &mut report)?;
        match failed.as_slice() {
            [] => Ok(()),
            [only] if total == 1 => Err(Failure::new(only)),
            several => {
                // With --json, a program has read every failure already.
                for text in several.iter().filter(|_| !self.json) {
                    note(format_args!("ssntp: {text}"));
                }
                Err(Failure::new(format!("{} of {total} failed", several.len())))
            }
        }
    }

    /// Waits for orders to settle. If the user gave no time limit, an order whose instance is
    /// being started is waited for while its node works on it, because the scheduler answers it
    /// in the end.
    fn each(
        &self,
        mut orders: Vec<Order>,
        report: &mut impl FnMut(&Order, &Result<Shown, OrderError>) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let changes = self.controller.subscribe();
        let tick = crossbeam_channel::tick(LOOK);
        let mut progress = Progress::new(orders.len());
        let mut timeout = crossbeam_channel::after(self.limit);
        let last = now() + MOST;
        loop {
            let mut waiting = Vec::new();
            for order in orders {
                match order.poll() {
                    Some(settled) => progress.one_done(|| report(&order, &settled))?,
                    None => waiting.push(order),
                }
            }
            orders = waiting;
            if orders.is_empty() {
                return Ok(());
            }
            if let [order] = orders.as_slice() {
                progress.tell(|| order.progress());
            }
            crossbeam_channel::select! {
                // One look at the orders serves all changes that have come together.
                recv(changes) -> _ => while changes.try_recv().is_ok() {},
                // An order that is lost with its session makes no change, so it is looked at.
                recv(tick) -> _ => {},
                recv(self.stop.channel()) -> _ => return Err(self.stop.interrupted()),
                recv(timeout) -> _ => {
                    let may_go_on = !self.is_strict && now() < last;
                    let goes_on = |order: &Order| may_go_on && order.is_progressing();
                    let (going_on, late): (Vec<_>, Vec<_>) = orders.into_iter().partition(goes_on);
                    for order in &late {
                        progress.one_done(|| report(order, &Err(order.timed_out(self.limit))))?;
                    }
                    orders = going_on;
                    timeout = crossbeam_channel::after(self.limit);
                },
            }
        }
    }

    /// One line for each order; what failed goes to the standard error at the
    /// end, unless a program reads.
    fn report(&self, order: &Order, settled: &Result<Shown, OrderError>) -> Result<(), Failure> {
        match settled {
            _ if self.json => print_json(json::settled(order.subject(), settled)),
            Ok(shown) => print_line(printable(&shown.to_string())),
            Err(_) => Ok(()),
        }
    }

    /// Waits until the commands have left this process.
    fn leave(&self, orders: &[Order]) -> Result<(), Failure> {
        let left = || Ok(self.controller.flush(LOOK).then_some(()));
        let left = self.stop.poll(Duration::ZERO, LEAVING, left)?;
        left.ok_or_else(|| Failure::new("the scheduler does not take the commands"))?;
        let mut output = Output::new();
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

/// Progress on the standard error, if that is a terminal: a bar for several things; for a single
/// one its state, after a second.
pub(super) struct Progress {
    bar: ProgressBar,
    several: bool,
    since: Instant,
}

impl Progress {
    pub(super) fn new(total: usize) -> Self {
        let several = total > 1;
        let template = match several {
            true => "{bar:30} {pos}/{len} {elapsed}",
            false => "{spinner} {elapsed} {wide_msg}",
        };
        let bar = match std::io::stderr().is_terminal() {
            true => ProgressBar::with_draw_target(Some(total as u64), ProgressDrawTarget::stderr()),
            false => ProgressBar::hidden(),
        };
        let bar = match ProgressStyle::with_template(template) {
            Ok(style) => bar.with_style(style),
            Err(_) => bar,
        };
        Self {
            bar,
            several,
            since: now(),
        }
    }

    /// One of the things has come, and is reported.
    pub(super) fn one_done(&self, report: impl FnOnce() -> Result<(), Failure>) -> Result<(), Failure> {
        if self.several {
            self.bar.inc(1);
        }
        self.bar.suspend(report)
    }

    /// How far the one has come.
    pub(super) fn tell(&mut self, what: impl FnOnce() -> String) {
        if !self.bar.is_hidden() && !self.several && now().duration_since(self.since) >= TELL_AFTER {
            self.bar.set_message(printable(&what()));
            self.bar.tick();
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
