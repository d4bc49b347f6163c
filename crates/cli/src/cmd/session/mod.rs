//! `ssntp session --json`: a session for programs in any language, by lines of JSON on the
//! standard input and output. `docs/session.md` describes the lines.
//!
//! ```text
//!  stdin ─ lines ─▶ ssntp-stdin ─ send, reply ─────────────▶ client ─▶ server
//!                        │ a thread for each request, at most 32 ─▶
//!                        ▼ answers
//!  stdout ◀─ whole lines ┴◀─ main thread ◀─ bounded channel of events ◀─ server
//! ```
//!
//! No line is queued: each thread holds the one line that it reads or writes. If the program stops
//! reading, the main thread blocks, its channel of events fills, and then the client stops reading
//! from the server.
//!
//! | file | holds |
//! |---|---|
//! | `input` | reads and executes lines |
//! | `line` | the JSON of lines, both read and written |

mod input;
mod line;

use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::Receiver;
use serde_json::{Value, json};
use ssntp::client::{Backoff, Client, ClientError, ClientEvent};
use ssntp::proto::Operands;
use ssntp_daemon::{
    Complaint, Connection, Failure, Renewal, Seconds, Stop, closed, connection, ended, print_json,
    reader_is_gone,
};

use self::input::{Asked, Input};
use crate::application::Applications;
use crate::receipt::{self, with_receipts};

/// Hold a session for a program, by lines of JSON on standard input and output
///
/// Reconnects whenever the connection is lost, and uses a new certificate once its
/// files have changed. Ends when the standard input does. docs/session.md describes
/// the lines.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    connection: Connection,
    #[command(flatten)]
    applications: Applications,
    /// Use lines of JSON, which is always the case; the flag is accepted for scripts
    #[arg(long)]
    json: bool,
    /// The time for which a line may wait for a session and for room to send, and a request
    /// for its answer, unless the line has a timeout
    #[arg(long, value_name = "SECONDS", default_value = "30")]
    timeout: Seconds,
}

/// The pauses between attempts: a program waits at the other end of the pipe.
const BACKOFF: Backoff = Backoff {
    initial: Duration::from_millis(100),
    cap: Duration::from_secs(5),
};
/// The time between two checks whether the output is still read, and why there is no session.
const POLL: Duration = Duration::from_millis(200);
/// The time limit for sending the last frames.
const FLUSH: Duration = Duration::from_secs(30);

pub(crate) fn run(args: Args) -> Result<(), Failure> {
    let done = hold(&args);
    if let Err(failure) = &done
        && failure.is_failure()
    {
        // The program reads the reason on the standard output, and the user on the standard error.
        write(&json!({ "event": "closed", "reason": failure.to_string() }))?;
    }
    done
}

fn hold(args: &Args) -> Result<(), Failure> {
    let stop = Stop::install()?;
    let operands = with_receipts(args.applications.operands()?);
    let (config, renewal) = args.connection.config(&stop)?;
    let config = config.tracing(true).operands(operands.clone()).backoff(BACKOFF);
    let client = Arc::new(Client::start(config)?);
    let asked = Arc::new(Asked::default());
    let input = Input {
        client: Arc::clone(&client),
        asked: Arc::clone(&asked),
        operands: operands.clone(),
        timeout: args.timeout.into(),
        requests: Vec::new(),
    };
    let ended = input.start()?;
    Writer {
        client: &client,
        asked: &asked,
        operands,
        complaint: Complaint::default(),
        renewal,
    }
    .run(&stop, &ended)
}

/// The state of the main thread, which writes the events.
struct Writer<'a> {
    client: &'a Client,
    asked: &'a Asked,
    operands: Operands,
    complaint: Complaint,
    renewal: Renewal,
}

impl Writer<'_> {
    /// Writes the events until the input ends or a signal comes.
    fn run(&mut self, stop: &Stop, input: &Receiver<Result<(), Failure>>) -> Result<(), Failure> {
        let events = self.client.events();
        let checks = connection::checks();
        let moments = crossbeam_channel::tick(POLL);
        loop {
            crossbeam_channel::select! {
                recv(stop.channel()) -> _ => break,
                recv(events) -> event => match event {
                    Ok(event) => self.report(event)?,
                    Err(_) => return Err(ended(&self.client.handle())),
                },
                recv(input) -> end => {
                    if let Ok(end) = end {
                        end?;
                    }
                    break;
                }
                recv(checks) -> _ => self.renewal.check(&self.client.handle()),
                recv(moments) -> _ => {
                    if reader_is_gone() {
                        return Ok(());
                    }
                    self.report_failures()?;
                }
            }
        }
        self.client.close();
        // Events that had arrived before the client was closed.
        for event in self.client.events() {
            if !matches!(event, ClientEvent::Closed(_)) {
                self.report(event)?;
            }
        }
        write(&json!({ "event": "closed", "reason": ClientError::Closed.to_string() }))
    }

    fn report(&mut self, event: ClientEvent) -> Result<(), Failure> {
        match event {
            ClientEvent::Frame(frame) if receipt::is_refusal(&frame) => Ok(()),
            ClientEvent::Frame(frame) => write(&line::frame(&frame, &self.operands)),
            ClientEvent::Request(request) => {
                let mut shown = line::request(&request, &self.operands);
                let (number, removed) = self.asked.keep(request);
                for old in removed {
                    // If the refusal cannot be sent, the other client waits until its own time limit.
                    let _ = self.client.refuse(&old, "queue_full");
                }
                shown["request"] = number.into();
                write(&shown)
            }
            ClientEvent::Connected(server) => {
                self.complaint = Complaint::default();
                write(&json!({
                    "event": "connected",
                    "uuid": self.client.uuid(),
                    "roles": self.client.role().names(),
                    "server": {
                        "uuid": server.uuid,
                        "roles": server.role.names(),
                        "name": server.name,
                        "address": server.address.to_string(),
                        "tracing": server.tracing,
                    },
                }))
            }
            ClientEvent::Disconnected { reason, retrying } => write(&json!({
                "event": "disconnected", "reason": reason.to_string(), "retrying": retrying,
            })),
            ClientEvent::Closed(why) => Err(closed(Some(why))),
            _ => Ok(()),
        }
    }

    /// Reports why there is no session, once for each reason.
    fn report_failures(&mut self) -> Result<(), Failure> {
        if self.client.is_connected() {
            return Ok(());
        }
        match self.complaint.new_reason(&self.client.handle()) {
            Some(why) => write(&json!({ "event": "unreachable", "reason": why })),
            None => Ok(()),
        }
    }
}

/// Writes one whole line, and blocks until the pipe has accepted it.
fn write(line: &Value) -> Result<(), Failure> {
    print_json(line)
}
