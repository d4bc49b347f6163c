//! `ssntp send`: sends frames and ends.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::value_parser;
use ssntp::client::{Client, ClientEvent, SendFault};
use ssntp::proto::{Frame, FrameKind, FrameType, Trace};

use crate::application::Applications;
use crate::connection::{Connection, Waited, wait};
use crate::failure::Failure;
use crate::seconds::Seconds;
use crate::signals::Stop;

/// Connect, send frames, and end once the server has taken them
///
/// An error frame that comes back meanwhile, or up to 0.2 s later, is reported,
/// and the exit code is 1 then.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    connection: Connection,
    /// COMMAND, STATUS, EVENT or ERROR
    #[arg(long = "type", value_name = "TYPE")]
    frame_type: FrameType,
    /// The operand's name, as in STATS; for one of an application, COMMAND/0x80
    #[arg(long, value_name = "NAME")]
    operand: FrameKind,
    #[command(flatten)]
    applications: Applications,
    /// The payload; - is the standard input
    #[arg(long, value_name = "FILE")]
    payload: Option<PathBuf>,
    /// How many times to send it
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = value_parser!(u64).range(1..))]
    count: u64,
    /// Trace the frames under this label, where the server agrees
    #[arg(long, value_name = "LABEL")]
    trace: Option<String>,
    /// How long connecting may take
    #[arg(long, value_name = "SECONDS", default_value = "30")]
    timeout: Seconds,
}

/// Rounds of attempts at the servers: with back-off, some ten seconds.
const ATTEMPTS: u32 = 8;
/// How often a wait looks for a signal.
const STEP: Duration = Duration::from_millis(200);
/// How long an answer to the last frame may take.
const ANSWER: Duration = Duration::from_millis(200);
/// How long the last bytes may take to leave.
const FLUSH: Duration = Duration::from_secs(30);

pub(crate) fn run(args: Args) -> Result<(), Failure> {
    if args.operand.frame_type != args.frame_type {
        let (operand, asked) = (args.operand, args.frame_type);
        return Err(Failure::usage(format!(
            "--operand {operand} is a {}, not a {asked}",
            operand.frame_type
        )));
    }
    let operands = args.applications.operands()?;
    if !operands.may_be_sent(args.operand) {
        return Err(Failure::usage(format!(
            "--operand {}: the handshake alone sends it, or it needs --application, or it is a request",
            args.operand
        )));
    }
    let stop = Stop::install()?;
    let config = args
        .connection
        .config()?
        .tracing(args.trace.is_some())
        .operands(operands)
        .reconnect(false)
        .attempts(ATTEMPTS);
    let payload = match &args.payload {
        Some(path) => read(path)?,
        None => Vec::new(),
    };
    let client = Client::start(config).map_err(Failure::new)?;
    match wait(&client, &stop, Some(args.timeout.into()))? {
        Waited::Event(_) => {}
        Waited::Stopped => return Ok(()),
        Waited::TimedOut => {
            return Err(Failure::new("no server answered in time"));
        }
    }
    let mut frame = Frame::with_payload(args.operand, payload);
    if let Some(label) = &args.trace {
        frame = frame.traced(Trace::new(label));
    }
    for _ in 0..args.count {
        if !send(&client, frame.clone(), &stop)? {
            return Ok(());
        }
    }
    let began = now();
    while !client.flush(STEP) {
        if stop.requested() {
            return Ok(());
        }
        if began.elapsed() > FLUSH || client.handle().ended().is_some() {
            return Err(Failure::new("the server does not take the frames"));
        }
    }
    // A server that refuses a frame says so at once, or not at all.
    let began = now();
    while let Some(left) = ANSWER.checked_sub(began.elapsed()) {
        match wait(&client, &stop, Some(left))? {
            Waited::Event(event) => refused(event)?,
            Waited::Stopped | Waited::TimedOut => break,
        }
    }
    client.close();
    (&client).into_iter().try_for_each(refused)
}

/// Fails where an event is an error frame.
fn refused(event: ClientEvent) -> Result<(), Failure> {
    match event {
        ClientEvent::Frame(frame) if frame.kind().frame_type == FrameType::ERROR => {
            let text = String::from_utf8_lossy(frame.payload_bytes())
                .trim()
                .replace('\n', ", ");
            Err(Failure::new(format!(
                "the server answered {}: {text}",
                frame.kind()
            )))
        }
        _ => Ok(()),
    }
}

/// Sends one frame; false once a signal has come. A full queue is waited for
/// in steps, so that a signal ends the wait.
fn send(client: &Client, mut frame: Frame, stop: &Stop) -> Result<bool, Failure> {
    while !stop.requested() {
        match client.send_timeout(frame, STEP) {
            Ok(()) => return Ok(true),
            Err(unsent) if matches!(unsent.fault(), SendFault::Full) => frame = unsent.into_frame(),
            Err(unsent) => return Err(Failure::new(&unsent)),
        }
    }
    Ok(false)
}

#[expect(clippy::disallowed_methods, reason = "a wait has a limit")]
fn now() -> Instant {
    Instant::now()
}

fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    if path.as_os_str() == "-" {
        let mut bytes = Vec::new();
        let read = std::io::stdin().lock().read_to_end(&mut bytes);
        read.map_err(|e| Failure::new(format!("standard input: {e}")))?;
        return Ok(bytes);
    }
    std::fs::read(path).map_err(|e| Failure::new(format!("{}: {e}", path.display())))
}
