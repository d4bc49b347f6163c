//! `ssntp request` and `ssntp answer`: requests of an application, at a shell.

use std::borrow::Cow;
use std::io::{self, IsTerminal, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use crossbeam_channel::bounded;
use rustix::process::{Pid, Signal, kill_process_group};
use ssntp::client::{Client, ClientEvent};
use ssntp::proto::{DEFAULT_MAX_PAYLOAD, Frame, FrameKind, Operands};
use ssntp::{Request, RequestError};
use ssntp_daemon::{Connection, Failure, Seconds, Stop, Watch, ended, input, note, print_json, print_text};
use ssntp_transport::threads;
use uuid::Uuid;

use super::ctl::logs::escaped;
use super::{listen, operands};
use crate::application::Applications;

/// Send a request to the server or to a client, and print the reply
///
/// The exit code is 1 if the request is refused, or if no reply comes within --timeout.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The operand of the request: a name that --application gives, or TYPE/0xNN, which works
    /// without --application
    operand: String,
    /// The payload itself [default: none]
    #[arg(value_name = "PAYLOAD", conflicts_with = "payload")]
    text: Option<String>,
    #[command(flatten)]
    connection: Connection,
    #[command(flatten)]
    applications: Applications,
    /// A file with the payload; - is the standard input
    #[arg(long, value_name = "FILE")]
    payload: Option<PathBuf>,
    /// The client that the request is for [default: the server's rules choose one]
    #[arg(long, value_name = "UUID")]
    to: Option<Uuid>,
    /// How long connecting may take, and then how long the reply may take
    #[arg(long, value_name = "SECONDS", default_value = "30")]
    timeout: Seconds,
    /// Print the reply as one JSON object
    #[arg(long)]
    json: bool,
}

/// Answer requests with what a program prints
///
/// For each request the program runs once, one at a time: its standard input is the
/// payload, and SSNTP_FROM the UUID of the client that asks. What it prints is the reply;
/// if it fails, the request is refused. Runs until a signal comes.
#[derive(Debug, clap::Args)]
pub(crate) struct AnswerArgs {
    /// The operand of the requests: a name that --application gives, or TYPE/0xNN, which works
    /// without --application
    operand: String,
    #[command(flatten)]
    connection: Connection,
    #[command(flatten)]
    applications: Applications,
    /// How long the program may run before it is killed
    #[arg(long, value_name = "SECONDS", default_value = "30")]
    limit: Seconds,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<String>,
}

/// The operand as a request, which it becomes if it is a number that no --application names.
fn asking(applications: &Applications, named: &str) -> Result<(Operands, FrameKind), Failure> {
    let operands = applications.operands()?;
    let kind = operands::kind(&operands, named)?;
    if operands.is_request(kind) {
        return Ok((operands, kind));
    }
    let operands = operands.request(kind, "asked");
    let operands = operands.map_err(|e| Failure::usage(format!("{named} is no request: {e}")))?;
    Ok((operands, kind))
}

pub(crate) fn request(args: &Args) -> Result<(), Failure> {
    let (operands, kind) = asking(&args.applications, &args.operand)?;
    let payload = match (&args.payload, &args.text) {
        (Some(path), _) => input::named(path)?,
        (None, text) => text.clone().unwrap_or_default().into_bytes(),
    };
    let stop = Stop::install_for_commands()?;
    let (config, renewal) = args.connection.config(&stop)?;
    // After a lost connection it is unknown whether the request was carried out, so it is not sent
    // again.
    let client = Client::start(config.operands(operands.clone()).reconnect(false))?;
    Watch::new(&client, &stop, renewal).connect(args.timeout)?;
    // Asked on a thread of its own, so that a signal ends the wait.
    let (answer, answered) = bounded(1);
    let (handle, to, limit) = (client.handle(), args.to.unwrap_or_default(), args.timeout.into());
    let ask = move || answer.send(handle.request_to(to, Frame::with_payload(kind, payload), limit));
    threads::spawn("ssntp-request", ask).map_err(Failure::thread)?;
    loop {
        crossbeam_channel::select! {
            recv(answered) -> reply => {
                let reply = reply.map_err(|_| ended(&client.handle()))?.map_err(explained)?;
                client.close();
                if args.json {
                    return print_json(listen::to_json(&operands, &reply, None));
                }
                return print_text(shown(reply.payload_bytes(), io::stdout().is_terminal()));
            }
            // The events are taken and dropped, because the answer could not get past a channel of
            // events that is full.
            recv(client.events()) -> event => if event.is_err() {
                return Err(ended(&client.handle()));
            },
            recv(stop.channel()) -> _ => return Err(stop.interrupted()),
        }
    }
}

/// An answer as it is printed. A terminal gets lines, with other control characters escaped, because another client
/// has sent them.
fn shown(answer: &[u8], on_terminal: bool) -> Cow<'_, [u8]> {
    if !on_terminal {
        return answer.into();
    }
    let mut incomplete = Vec::new();
    let mut text = escaped(&mut incomplete, answer);
    text.push_str(&String::from_utf8_lossy(&incomplete));
    text.into_bytes().into()
}

/// The failure to print for the error of a request. If the reason is a word of the protocol, it explains the word.
fn explained(error: RequestError) -> Failure {
    let RequestError::Refused(why) = &error else {
        return error.into();
    };
    let meaning = match why.as_str() {
        "not_allowed" => "the filter of the server does not let this client send it",
        "not_connected" => "the client that has to answer is not connected",
        "to_sender" => "the UUID that has to answer is this client's own",
        "not_answered" => "the server has no --forward for it; --to UUID names a client that answers",
        "queue_full" => "the client that has to answer is too slow",
        "unsupported" => "the server, or the client that has to answer, has no --application for it",
        _ => return error.into(),
    };
    Failure::new(format_args!("{error}: {meaning}"))
}

pub(crate) fn answer(args: &AnswerArgs) -> Result<(), Failure> {
    let (operands, kind) = asking(&args.applications, &args.operand)?;
    let stop = Stop::install()?;
    let (config, renewal) = args.connection.config(&stop)?;
    let client = Client::start(config.operands(operands))?;
    Watch::new(&client, &stop, renewal).each(|event| {
        match event {
            ClientEvent::Connected(server) => {
                note(format_args!("{} connected to {}", client.uuid(), server.name));
            }
            ClientEvent::Request(request) if request.kind() == kind => {
                let said = run(args, &request, &stop);
                let sent = said.and_then(|said| client.reply(&request, said).map_err(|e| e.to_string()));
                if let Err(why) = sent {
                    // If the client that asked has gone or no longer waits, the answer may be lost.
                    let _ = client.refuse(&request, &why);
                }
            }
            // Every request is answered, because the client that asks waits for an answer.
            ClientEvent::Request(request) => {
                let _ = client.refuse(&request, "unsupported");
            }
            _ => {}
        }
        Ok(())
    })?;
    client.close();
    Ok(())
}

/// Runs the program for one request: what it prints, or why that is no reply.
fn run(args: &AnswerArgs, request: &Request, stop: &Stop) -> Result<Vec<u8>, String> {
    let (program, arguments) = args.command.split_first().ok_or("no program")?;
    let child = Command::new(program)
        .args(arguments)
        .env("SSNTP_FROM", request.from().to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        // A group of its own, so that the programs that it starts can be killed with it.
        .process_group(0)
        .spawn();
    let mut child = child.map_err(|e| format!("{program}: {e}"))?;
    let group = Pid::from_child(&child);
    let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
    let payload = request.payload().to_vec();
    // Neither thread is joined: a process that the program has left behind may hold the pipes.
    let (end, ended) = bounded(1);
    let write = move || stdin.map(|mut stdin| stdin.write_all(&payload));
    let read = move || {
        // By default no peer takes a longer payload.
        let printed = stdout.map(|out| input::bounded_bytes(out, u64::from(DEFAULT_MAX_PAYLOAD)));
        // A program that has closed its output may still run.
        let _ = end.send((printed.unwrap_or_else(|| Err("no output".into())), child.wait()));
    };
    let started = threads::spawn("ssntp-write", write).and_then(|_| threads::spawn("ssntp-read", read));
    let limit = Duration::from(args.limit);
    let wait = || {
        started.map_err(|e| e.to_string())?;
        crossbeam_channel::select! {
            recv(ended) -> end => end.map_err(|_| "it cannot be read".to_owned()),
            recv(stop.channel()) -> _ => Err("stopping".to_owned()),
            default(limit) => Err(format!("{program}: it ran for more than {} s", limit.as_secs_f64())),
        }
    };
    let (printed, status) = wait().inspect_err(|_| {
        // An error means that the group has ended by itself.
        let _ = kill_process_group(group, Signal::KILL);
    })?;
    let printed = printed.map_err(|why| format!("{program}: its output: {why}"))?;
    match status {
        Ok(status) if status.success() => Ok(printed),
        Ok(status) => Err(format!("{program}: {status}")),
        Err(e) => Err(format!("{program}: {e}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_gets_no_control_characters_of_the_client_that_answers() {
        let answer = b"\x1b]0;title\x07one\ntwo\xff";
        assert_eq!(shown(answer, false), &answer[..]);
        let expected = "\\u{1b}]0;title\\u{7}one\ntwo\u{fffd}";
        assert_eq!(shown(answer, true), expected.as_bytes());
    }
}
