//! `ssntp listen`: prints what a server sends.

use clap::value_parser;
use serde_json::{Value, json};
use ssntp::client::{Client, ClientEvent};
use ssntp::payload::timestamp;
use ssntp::proto::{Frame, Trace};

use crate::application::Applications;
use crate::connection::{Connection, Waited, wait};
use crate::failure::Failure;
use crate::output::{Output, note, printable};
use crate::signals::Stop;

/// Connect and print each frame that arrives
///
/// Connects again whenever the connection is lost.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    connection: Connection,
    #[command(flatten)]
    applications: Applications,
    /// End after so many frames
    #[arg(long, value_name = "N", value_parser = value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Print one JSON object a line
    #[arg(long)]
    json: bool,
    /// Ask for the traces of frames
    #[arg(long)]
    trace: bool,
}

pub(crate) fn run(args: Args) -> Result<(), Failure> {
    let stop = Stop::install()?;
    let config = args.connection.config()?.tracing(args.trace);
    let config = config.operands(args.applications.operands()?);
    let client = Client::start(config).map_err(Failure::new)?;
    let mut left = args.count;
    while left != Some(0) {
        let frame = match wait(&client, &stop, None)? {
            Waited::Event(ClientEvent::Frame(frame)) => frame,
            Waited::Event(ClientEvent::Connected(server)) => {
                note(format_args!(
                    "connected to {} ({}) at {}",
                    server.uuid(),
                    server.role(),
                    server.address()
                ));
                continue;
            }
            Waited::Event(ClientEvent::Disconnected { reason, .. }) => {
                note(format_args!("disconnected: {reason}"));
                continue;
            }
            Waited::Event(_) => continue,
            Waited::Stopped | Waited::TimedOut => break,
        };
        let mut output = Output::new();
        if args.json {
            output.json(to_json(&frame))?
        } else {
            print(&mut output, &frame)?
        }
        // A reader at the other end of a pipe waits for each frame.
        output.flush()?;
        left = left.map(|left| left - 1);
    }
    client.close();
    Ok(())
}

fn print(output: &mut Output, frame: &Frame) -> Result<(), Failure> {
    let payload = frame.payload_bytes();
    output.line(format!(
        "{} {} ({} bytes)",
        frame.kind().frame_type,
        frame.kind(),
        payload.len()
    ))?;
    if let Some(trace) = frame.trace() {
        output.line(format!("  trace {:?}{}", trace.label(), total(trace)))?;
        for hop in trace.hops() {
            let time = |t: Option<std::time::Duration>| {
                t.map_or("-".into(), |t| format!("{:.3} ms", t.as_secs_f64() * 1e3))
            };
            let (node, wire, inside) = (hop.node, time(hop.wire), time(hop.inside));
            output.line(format!(
                "    {} ({}): on the wire {wire}, inside {inside}",
                node.uuid, node.role
            ))?;
        }
    }
    match std::str::from_utf8(payload) {
        Ok(text) => text
            .lines()
            .try_for_each(|line| output.line(format!("  {}", printable(line)))),
        Err(_) => output.line(format!("  {}", hex(payload))),
    }
}

fn total(trace: &Trace) -> String {
    trace.duration().map_or(String::new(), |t| {
        format!(", {:.3} ms in all", t.as_secs_f64() * 1e3)
    })
}

fn to_json(frame: &Frame) -> Value {
    let mut object = json!({
        "type": frame.kind().frame_type.to_string(),
        "operand": frame.kind().to_string(),
        "type_number": frame.kind().frame_type.0,
        "operand_number": frame.kind().operand,
        "length": frame.payload_bytes().len(),
    });
    match std::str::from_utf8(frame.payload_bytes()) {
        Ok(text) => object["payload"] = text.into(),
        Err(_) => object["payload_hex"] = hex(frame.payload_bytes()).into(),
    }
    if let Some(trace) = frame.trace() {
        let stamp = |nanos: u64| {
            if nanos == 0 {
                String::new()
            } else {
                timestamp::format(nanos)
            }
        };
        let nodes: Vec<_> = trace
            .nodes()
            .iter()
            .map(|node| {
                json!({
                    "uuid": node.uuid, "role": node.role.to_string(),
                    "received_at": stamp(node.received_at), "sent_at": stamp(node.sent_at),
                })
            })
            .collect();
        object["trace"] = json!({ "label": trace.label(), "nodes": nodes });
        if let Some(duration) = trace.duration() {
            object["trace"]["duration_us"] = (duration.as_secs_f64() * 1e6).into();
        }
    }
    object
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
