//! `ssntp send`: sends frames, says how many sessions received them, and ends.

use std::io::{BufRead, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::value_parser;
use crossbeam_channel::{Receiver, RecvTimeoutError, bounded};
use serde_json::json;
use ssntp::client::{Backoff, Client, ClientEvent, SendFault, ServerInfo};
use ssntp::payload::{InvalidFrameType, InvalidFrameTypeReason};
use ssntp::proto::{DEFAULT_MAX_PAYLOAD, ErrorCode, Frame, FrameKind, FrameType, Trace, TraceParent};
use ssntp::server::Filter;
use ssntp::{Bytes, RequestError, Role};
use ssntp_daemon::{
    Connection, Failure, Seconds, Stop, Watch, connection, even_unread, input, note, print_either, print_json,
};
use ssntp_transport::{elapsed, now, threads};

use super::operands::{self, senders};
use crate::application::Applications;
use crate::receipt::{self, Question, sessions, with_receipts};

/// Connect, send frames, and end once the server has taken them
///
/// Prints how many sessions received a frame if the server tells, as `ssntp server`
/// does. The exit code is 1 if an error frame comes back, or if the server has not taken
/// all frames in --timeout. `ssntp operands` shows what can be sent.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The operand of the frame, as in STATS
    #[arg(value_name = "OPERAND", required_unless_present = "operand")]
    kind: Option<String>,
    /// The payload itself, as in 'load: 1' [default: none]
    #[arg(value_name = "PAYLOAD", conflicts_with_all = ["payload", "lines"])]
    text: Option<String>,
    #[command(flatten)]
    connection: Connection,
    /// The type that the operand has to have: COMMAND, STATUS, EVENT or ERROR
    /// [default: not checked]
    #[arg(long = "type", value_name = "TYPE")]
    frame_type: Option<FrameType>,
    /// The operand, as the first argument
    #[arg(long, value_name = "NAME", conflicts_with = "kind")]
    operand: Option<String>,
    #[command(flatten)]
    applications: Applications,
    /// A file with the payload; - is the standard input
    #[arg(long, value_name = "FILE", conflicts_with = "lines")]
    payload: Option<PathBuf>,
    /// Send a frame for each line of the standard input, as it comes; if the connection is
    /// lost, connect again and go on, and say how many frames may be lost
    #[arg(short, long)]
    lines: bool,
    /// How many times to send it
    #[arg(long, visible_alias = "repeat", value_name = "N", default_value_t = 1,
          conflicts_with = "lines", value_parser = value_parser!(u64).range(1..))]
    count: u64,
    /// The maximum number of frames a second [default: as fast as they are taken]
    #[arg(long, value_name = "N", value_parser = rate)]
    rate: Option<f64>,
    /// Wait with the first frame until another session with this role is
    /// connected, for as long as --timeout says
    #[arg(long, value_name = "ROLE")]
    wait_for: Option<Role>,
    /// Fail at the first frame that fewer than N sessions received
    #[arg(long, value_name = "N")]
    require_receivers: Option<u64>,
    /// Trace the frames under this label if the server agrees
    #[arg(long, value_name = "LABEL")]
    trace: Option<String>,
    /// The trace and span that the frames are part of, as W3C Trace Context writes
    /// them: 00-<32 digits>-<16 digits>-<2 digits>; every frame is traced then
    /// [default: the environment's TRACEPARENT, if it is one]
    #[arg(long, value_name = "VALUE")]
    traceparent: Option<TraceParent>,
    /// How long each of these may take: connecting, --wait-for, and the server taking the
    /// frames
    #[arg(long, value_name = "SECONDS", default_value = "30")]
    timeout: Seconds,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The pauses between attempts, short because a user waits.
const BACKOFF: Backoff = Backoff {
    initial: Duration::from_millis(100),
    cap: Duration::from_secs(1),
};
/// The interval at which a wait checks for a signal, and for a role.
const STEP: Duration = Duration::from_millis(200);

pub(crate) fn run(args: Args) -> Result<(), Failure> {
    let operands = args.applications.operands()?;
    let named = args.kind.as_deref().or(args.operand.as_deref());
    let named = named.ok_or_else(|| Failure::usage("an operand is needed, as in STATS"))?;
    let kind = operands::kind(&operands, named)?;
    if let Some(asked) = args.frame_type
        && kind.frame_type != asked
    {
        let is = kind.frame_type;
        return Err(Failure::usage(format!("{kind} is of the type {is}, not {asked}")));
    }
    let name = operands.show(kind).to_string();
    if !operands.may_be_sent(kind) {
        let why = if operands.is_request(kind) {
            "is a request, which `ssntp request` sends"
        } else {
            "cannot be sent: it belongs to the handshake, or needs --application"
        };
        return Err(Failure::usage(format_args!("{name} {why}")));
    }
    let stop = Stop::install_for_commands()?;
    let (config, renewal) = args
        .connection
        .config_choosing(&stop, |held| sender_role(held, kind))?;
    let config = config
        .tracing(true)
        .operands(with_receipts(operands))
        .reconnect(args.lines)
        .backoff(BACKOFF);
    let payloads = Payloads::of(&args)?;
    let parent = args.traceparent.or_else(connection::traceparent);
    let client = Client::start(config)?;
    let mut sending = Sending {
        watch: Watch::new(&client, &stop, renewal),
        args: &args,
        kind,
        name,
        parent,
        receivers: None,
        sent: 0,
        taken: 0,
        lost: 0,
    };
    sending.watch.connect(args.timeout)?;
    sending.all(payloads)?;
    sending.finish()?;
    sending.report()
}

/// Of the roles that a certificate holds those that may send the frame, so that
/// a program that only sends does not receive frames; all of them if none may.
fn sender_role(held: Role, kind: FrameKind) -> Role {
    let may_send = held & senders(&Filter::spec(), kind);
    if may_send.is_empty() { held } else { may_send }
}

/// The payloads of the frames: the same for all, or a line of the input for each.
enum Payloads {
    Same(Bytes, u64),
    Lines(Receiver<Result<Bytes, Failure>>),
}

impl Payloads {
    fn of(args: &Args) -> Result<Self, Failure> {
        if args.lines {
            return lines().map(Self::Lines);
        }
        let payload = match (&args.payload, &args.text) {
            (Some(path), _) => input::named(path)?,
            (None, Some(text)) => {
                // Many programs read the file that is named so, with or without an @. This one does
                // not, so the user gets a hint.
                let file = text.strip_prefix('@').unwrap_or(text);
                if Path::new(file).is_file() {
                    note(format_args!(
                        "ssntp: the payload is the text {text:?}; --payload {file} sends what is in that file"
                    ));
                }
                text.clone().into_bytes()
            }
            (None, None) => Vec::new(),
        };
        Ok(Self::Same(payload.into(), args.count))
    }
}

/// A client that sends.
struct Sending<'a> {
    watch: Watch<'a>,
    args: &'a Args,
    kind: FrameKind,
    /// Its name, which --application may give it.
    name: String,
    /// The trace that the frames are part of.
    parent: Option<TraceParent>,
    /// The number of receivers that the server has told last; with --require-receivers, the least one.
    receivers: Option<u64>,
    /// The number of frames that were sent, and of those that the server is known to have taken.
    sent: u64,
    taken: u64,
    /// The number of frames that were sent, and not known to be taken, when a session ended.
    lost: u64,
}

impl Sending<'_> {
    /// Sends all frames.
    fn all(&mut self, payloads: Payloads) -> Result<(), Failure> {
        if let Some(role) = self.args.wait_for {
            self.wait_for(role)?;
        }
        let began = now();
        loop {
            let sent = self.sent;
            let (payload, is_last) = match &payloads {
                Payloads::Same(_, count) if sent == *count => return Ok(()),
                Payloads::Same(payload, count) => (payload.clone(), sent + 1 == *count),
                Payloads::Lines(lines) => match self.next_line(lines)? {
                    Some(line) => (line, false),
                    None => return Ok(()),
                },
            };
            if let Some(rate) = self.args.rate {
                // Counted from the first frame and not from the one before, so that delays do not
                // add up.
                #[expect(clippy::cast_precision_loss, reason = "a pace need not be exact")]
                let due = Duration::try_from_secs_f64(sent as f64 / rate).unwrap_or(Duration::MAX);
                self.pause(due.saturating_sub(elapsed(began)))?;
            }
            let frame = Frame::with_payload(self.kind, payload);
            let frame = self.traced(
                frame,
                sent == 0 || is_last || self.args.require_receivers.is_some(),
            );
            // Asked before the frame, because a receiver may end as soon as it has the frame.
            let receivers = if is_last || self.args.require_receivers.is_some() {
                self.count()?
            } else {
                None
            };
            self.send(frame)?;
            self.sent += 1;
            let Some(required) = self.args.require_receivers else {
                self.pause(Duration::ZERO)?;
                continue;
            };
            self.confirm(self.args.timeout.into())?;
            match receivers {
                Some(receivers) if receivers < required => {
                    let (kind, got) = (self.kind, sessions(receivers));
                    let why = format!("{kind} went to {got}, and {required} had to receive it");
                    return Err(Failure::new(why));
                }
                Some(_) => {}
                None => return Err(self.does_not_tell()),
            }
        }
    }

    /// The frame with the trace that was asked for. Without one, the first frame and the last, and each with
    /// --require-receivers, have a trace that shows their receivers who has sent them; a scheduler would
    /// report it to controllers.
    fn traced(&self, frame: Frame, is_shown: bool) -> Frame {
        let is_plain = |server: &ServerInfo| server.tracing && !server.role.intersects(Role::SCHEDULER);
        let label = self.args.trace.as_deref();
        match &self.parent {
            Some(parent) => frame.traced(Trace::within(label.unwrap_or_default(), parent)),
            None if label.is_some()
                || is_shown && self.watch.client.server().is_some_and(|it| is_plain(&it)) =>
            {
                frame.traced(Trace::new(label.unwrap_or_default()))
            }
            None => frame,
        }
    }

    fn does_not_tell(&self) -> Failure {
        Failure::new("the server does not tell how many sessions received a frame, or are connected")
    }

    fn wait_for(&mut self, role: Role) -> Result<(), Failure> {
        let limit = Duration::from(self.args.timeout);
        let began = now();
        let mut told = false;
        loop {
            let there = self.ask(&Question::sessions(role), limit.saturating_sub(elapsed(began)))?;
            match there {
                Ok(None) => return Err(self.does_not_tell()),
                Ok(Some(1..)) => return Ok(()),
                _ if elapsed(began) >= limit => {
                    let (role, seconds) = (one_of(role), limit.as_secs_f64());
                    return Err(Failure::new(format!("no {role} has connected in {seconds} s")));
                }
                Ok(Some(0)) if !told => {
                    let role = one_of(role);
                    note(format_args!("ssntp: waiting until a {role} is connected"));
                    told = true;
                }
                Ok(Some(0)) | Err(_) => {}
            }
            self.pause(STEP)?;
        }
    }

    /// Asks the server for the receivers of the next frame. `None` if it does not answer in time, or answers
    /// no such question.
    fn count(&mut self) -> Result<Option<u64>, Failure> {
        let asked = self.ask(&Question::receivers(self.kind), self.args.timeout.into())?;
        let receivers = asked.ok().flatten();
        let least = self.receivers.filter(|_| self.args.require_receivers.is_some());
        self.receivers = receivers.map(|now| least.map_or(now, |least| least.min(now)));
        Ok(receivers)
    }

    /// Asks the server once more. If it answers, it has taken all frames that were sent.
    fn confirm(&mut self, limit: Duration) -> Result<(), Failure> {
        if let Ok(receivers) = self.ask(&Question::receivers(self.kind), limit)? {
            self.taken = self.sent;
            if self.args.lines && self.args.require_receivers.is_none() {
                self.receivers = receivers;
            }
        }
        Ok(())
    }

    /// Sends a question, and takes events until its answer has come.
    fn ask(
        &mut self,
        question: &Question,
        limit: Duration,
    ) -> Result<Result<Option<u64>, RequestError>, Failure> {
        let (answer, answered) = bounded(1);
        let (handle, frame) = (self.watch.client.handle(), question.frame());
        let ask = move || answer.send(receipt::receivers(handle.request(frame, limit)));
        threads::spawn("ssntp-receipt", ask).map_err(Failure::thread)?;
        loop {
            crossbeam_channel::select! {
                recv(answered) -> receivers => {
                    // The end of an earlier session, or a refused frame, is an event before the answer.
                    self.pause(Duration::ZERO)?;
                    return Ok(receivers.unwrap_or(Err(RequestError::Ended)));
                }
                recv(self.watch.client.events()) -> event => match event {
                    Ok(event) => self.take(event)?,
                    Err(_) => return Err(connection::ended(&self.watch.client.handle())),
                },
                recv(self.watch.stop.channel()) -> _ => return Err(self.watch.stop.interrupted()),
            }
        }
    }

    /// Sends one frame. A full queue, and the next session if lines are sent, are waited for
    /// in steps, so that a signal ends the wait.
    fn send(&mut self, mut frame: Frame) -> Result<(), Failure> {
        let began = now();
        loop {
            if self.watch.stop.requested() {
                return Err(self.watch.stop.interrupted());
            }
            match self.watch.client.send_timeout(frame, STEP) {
                Ok(()) => return Ok(()),
                Err(unsent) if matches!(unsent.fault(), SendFault::Full) => frame = unsent.into_frame(),
                Err(unsent) if self.args.lines && matches!(unsent.fault(), SendFault::NotConnected) => {
                    let limit = Duration::from(self.args.timeout);
                    if elapsed(began) >= limit {
                        return Err(connection::unanswered(&self.watch.client.handle(), limit));
                    }
                    frame = unsent.into_frame();
                    self.pause(STEP / 4)?;
                }
                Err(unsent) => return Err(Failure::new(&unsent)),
            }
            // While the queue is full, frames from the server have to be taken, or neither
            // side would get on.
            self.pause(Duration::ZERO)?;
        }
    }

    /// Takes events for this long.
    fn pause(&mut self, time: Duration) -> Result<(), Failure> {
        let began = now();
        while self.take_one(time.saturating_sub(elapsed(began)))? {}
        Ok(())
    }

    /// The next line of the standard input; none at its end.
    fn next_line(&mut self, lines: &Receiver<Result<Bytes, Failure>>) -> Result<Option<Bytes>, Failure> {
        loop {
            match lines.recv_timeout(STEP / 4) {
                Ok(line) => return line.map(Some),
                Err(RecvTimeoutError::Disconnected) => return Ok(None),
                Err(RecvTimeoutError::Timeout) => {
                    // A moment without lines is used to learn what was taken, so that little is in
                    // doubt if the session ends.
                    if self.taken < self.sent && self.watch.client.is_connected() {
                        self.confirm(STEP)?;
                    }
                    self.pause(Duration::ZERO)?;
                }
            }
        }
    }

    /// Handles an event. An error frame and the end of the session are failures.
    fn take(&mut self, event: ClientEvent) -> Result<(), Failure> {
        match event {
            ClientEvent::Frame(frame) if receipt::is_refusal(&frame) => Ok(()),
            ClientEvent::Frame(frame) if frame.kind().frame_type == FrameType::ERROR => {
                Err(refusal(&frame, self.watch.client.role()))
            }
            ClientEvent::Disconnected { reason, retrying } if self.args.lines && retrying => {
                let lost = self.sent - self.taken;
                note(format_args!(
                    "ssntp: the session has ended: {reason}; of {} frames up to {lost} are lost with it",
                    self.sent
                ));
                (self.lost, self.taken) = (self.lost + lost, self.sent);
                Ok(())
            }
            ClientEvent::Disconnected { reason, .. } => Err(Failure::new(format!(
                "disconnected before all was sent: {reason}"
            ))),
            _ => Ok(()),
        }
    }

    /// Waits until the server has taken the frames, and for what it has to say of the last one.
    fn finish(&mut self) -> Result<(), Failure> {
        let (began, limit) = (now(), Duration::from(self.args.timeout));
        while self.taken < self.sent {
            if self.watch.client.is_connected() {
                self.confirm(limit.saturating_sub(elapsed(began)))?;
            } else {
                self.pause(STEP / 4)?;
            }
            if self.taken < self.sent && elapsed(began) >= limit {
                let (seconds, lost, sent) = (limit.as_secs_f64(), self.sent - self.taken, self.sent);
                return Err(Failure::new(format!(
                    "the server has not taken all frames in {seconds} s: up to {lost} of {sent} are lost"
                )));
            }
        }
        let client = self.watch.client;
        client.close();
        for event in client {
            match event {
                // We have ended it ourselves.
                ClientEvent::Disconnected { .. } => {}
                event => self.take(event)?,
            }
        }
        Ok(())
    }

    /// Takes the next event. Returns false if none comes within `limit`.
    fn take_one(&mut self, limit: Duration) -> Result<bool, Failure> {
        let event = self.watch.wait(Some(limit))?;
        event.map_or(Ok(false), |event| self.take(event).map(|()| true))
    }

    /// Prints how many sessions received the frames, as far as the server has told.
    fn report(&self) -> Result<(), Failure> {
        let (kind, sent) = (&self.name, self.sent);
        let receivers = self.receivers;
        let mut as_json = json!({ "operand": kind, "sent": sent, "receivers": receivers });
        if self.lost > 0 {
            as_json["lost_at_most"] = self.lost.into();
            let why = format!("{sent} {kind} were sent; up to {} of them are lost", self.lost);
            if self.args.json {
                even_unread(print_json(as_json))?;
            }
            return Err(Failure::new(why));
        }
        let what = match sent {
            1 => format!("{kind} was sent"),
            n => format!("{n} {kind} were sent"),
        };
        let which = match (sent, self.args.require_receivers) {
            (0 | 1, _) => "",
            (_, Some(_)) => "each ",
            _ => "the last ",
        };
        let text = match receivers {
            Some(0) if !self.args.json => {
                note(format_args!(
                    "ssntp: {what}, and {which}went to no session: no session to which the server forwards it is connected"
                ));
                return Ok(());
            }
            Some(n) => format!("{what}, and {which}went to {}", sessions(n)),
            None if sent == 0 => what,
            None => format!("{what}; the server has not said to whom it went"),
        };
        print_either(self.args.json, as_json, text)
    }
}

fn one_of(role: Role) -> String {
    role.to_string().replace(',', " or ")
}

/// The meaning of an error frame for a client that sends as `role`, in words.
fn refusal(frame: &Frame, role: Role) -> Failure {
    let told = if frame.kind() == ErrorCode::INVALID_FRAME_TYPE {
        frame.payload::<InvalidFrameType>().ok()
    } else {
        None
    };
    let Some(told) = told else {
        // The error of a command is one line.
        let text = String::from_utf8_lossy(frame.payload_bytes());
        let text = text.trim().replace('\n', ", ");
        return Failure::new(format!("the server answered {}: {text}", frame.kind()));
    };
    let refused = told.refused();
    Failure::new(match told.reason {
        InvalidFrameTypeReason::RoleNotAllowed => {
            let may = senders(&Filter::spec(), refused);
            let hint = match may {
                Role::NONE => format!(": {refused} is the scheduler's own"),
                may if may.intersects(role) => String::new(),
                may => format!(": {refused} is for {}", plural(may)),
            };
            let who = plural(role);
            format!("the server does not let {who} send {refused}{hint} (InvalidFrameType)")
        }
        InvalidFrameTypeReason::UnsupportedType | InvalidFrameTypeReason::UnsupportedOperand => {
            format!("the server does not know {refused} (InvalidFrameType)")
        }
        reason => format!("the server does not take {refused}: {reason} (InvalidFrameType)"),
    })
}

fn plural(roles: Role) -> String {
    let each: Vec<_> = roles.iter().map(|role| format!("{role}s")).collect();
    each.join(" or ")
}

/// A positive number of frames a second.
fn rate(text: &str) -> Result<f64, &'static str> {
    match text.parse::<f64>() {
        Ok(rate) if (1e-6..=1e9).contains(&rate) => Ok(rate),
        _ => Err("it is not a number of frames a second from 0.000001 to 1000000000"),
    }
}

/// The lines of the standard input, as they come. At most two lines are read ahead.
fn lines() -> Result<Receiver<Result<Bytes, Failure>>, Failure> {
    let limit = u64::from(DEFAULT_MAX_PAYLOAD);
    input::on_a_thread(move |lines| {
        let mut stdin = std::io::stdin().lock();
        loop {
            let mut line = Vec::new();
            // One byte more than a line of the greatest length with its end shows a longer one.
            let line = match (&mut stdin).take(limit + 2).read_until(b'\n', &mut line) {
                Ok(0) => return,
                Ok(_) => {
                    line.pop_if(|last| *last == b'\n');
                    if line.len() as u64 > limit {
                        Err(Failure::new(format!("a line is longer than {limit} bytes")))
                    } else {
                        Ok(Bytes::from(line))
                    }
                }
                Err(e) => Err(Failure::new(format!("standard input: {e}"))),
            };
            if lines.send(line).is_err() {
                return;
            }
        }
    })
}
