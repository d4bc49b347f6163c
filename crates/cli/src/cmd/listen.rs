//! `ssntp listen`: prints what a server sends.

use clap::value_parser;
use serde_json::{Value, json};
use ssntp::Role;
use ssntp::client::{Client, ClientEvent};
use ssntp::proto::{Frame, Operands, Trace};
use ssntp_daemon::{Connection, Failure, Output, Stop, Watch, note, printable};
use ssntp_payload::timestamp;
use ssntp_transport::{nanoseconds, wall_clock};
use uuid::Uuid;

use crate::application::Applications;

/// Print each frame that arrives, with its time, and with its sender if the frame is traced
///
/// Reconnects whenever the connection is lost, and uses a new certificate once its
/// files have changed.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    connection: Connection,
    #[command(flatten)]
    applications: Applications,
    /// End after N frames
    #[arg(long, value_name = "N", value_parser = value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Print one JSON object a line
    #[arg(long)]
    json: bool,
    /// Print the traces of frames
    #[arg(long)]
    trace: bool,
}

pub(crate) fn run(args: Args) -> Result<(), Failure> {
    // With --count there is a task, which a signal may end before it is done.
    let stop = match args.count {
        Some(_) => Stop::install_for_commands()?,
        None => Stop::install()?,
    };
    let (config, renewal) = args.connection.config(&stop)?;
    let operands = args.applications.operands()?;
    let config = config.tracing(true).operands(operands.clone());
    let client = Client::start(config)?;
    let mut watch = Watch::new(&client, &stop, renewal);
    let mut left = args.count;
    while left != Some(0) {
        let event = match watch.wait(None) {
            // Without --count a signal is the usual end.
            Err(_) if stop.requested() && left.is_none() => break,
            event => event?,
        };
        let mut frame = match event {
            Some(ClientEvent::Frame(frame)) => frame,
            Some(ClientEvent::Connected(server)) => {
                let (uuid, role, address) = (server.uuid, server.role, server.address);
                note(format_args!("connected to {uuid} ({role}) at {address}"));
                continue;
            }
            Some(ClientEvent::Disconnected { reason, .. }) => {
                note(format_args!("disconnected: {reason}"));
                continue;
            }
            _ => continue,
        };
        // Traces are asked for even without --trace, because they name the sender.
        let from = frame.trace().and_then(|trace| trace.nodes().first());
        let from = from.map(|origin| (origin.uuid, origin.role));
        if !args.trace {
            frame.take_trace();
        }
        let mut output = Output::lock();
        if args.json {
            output.json(to_json(&operands, &frame, from))?
        } else {
            print(&mut output, &operands, &frame, from)?
        }
        // A reader at the other end of a pipe waits for each frame.
        output.flush()?;
        left = left.map(|left| left - 1);
    }
    client.close();
    Ok(())
}

/// The first line about a frame: its time, its kind, and its sender if that is known.
pub(super) fn head(operands: &Operands, frame: &Frame, from: Option<Sender>) -> String {
    let (kind, length) = (frame.kind(), frame.payload_bytes().len());
    let name = operands.show(kind);
    let bytes = if length == 1 { "byte" } else { "bytes" };
    let from = from.map(|(uuid, role)| format!(" from {uuid} ({role})"));
    format!(
        "{} {} {name} ({length} {bytes}){}",
        clock(),
        kind.frame_type,
        from.unwrap_or_default()
    )
}

/// The sender of a frame: its UUID and its roles.
pub(super) type Sender = (Uuid, Role);

/// The time as it is in JSON.
pub(super) fn time() -> String {
    timestamp::format(nanoseconds(wall_clock()))
}

/// The time of day in UTC, to a millisecond, which is enough for people.
pub(super) fn clock() -> String {
    let now = time();
    let time = now.split_once('T').map_or("", |(_, time)| time);
    format!("{:.12}Z", time.trim_end_matches('Z'))
}

fn print(
    output: &mut Output,
    operands: &Operands,
    frame: &Frame,
    from: Option<Sender>,
) -> Result<(), Failure> {
    output.line(head(operands, frame, from))?;
    if let Some(trace) = frame.trace() {
        output.line(format!("  trace {:?}{}", trace.label(), total(trace)))?;
        if let Some(parent) = trace.traceparent() {
            let (trace, span) = (parent.trace_id(), parent.span_id());
            output.line(format!("    trace {trace}, span {span}"))?;
        }
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
    self::payload(output, frame)
}

/// The payload of a frame, its lines indented.
pub(super) fn payload(output: &mut Output, frame: &Frame) -> Result<(), Failure> {
    let payload = frame.payload_bytes();
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

/// A frame as JSON.
pub(super) fn to_json(operands: &Operands, frame: &Frame, from: Option<Sender>) -> Value {
    let mut object = json!({
        "time": time(),
        "type": frame.kind().frame_type.to_string(),
        "operand": operands.show(frame.kind()).to_string(),
        "type_number": frame.kind().frame_type.0,
        "operand_number": frame.kind().operand,
        "length": frame.payload_bytes().len(),
    });
    match std::str::from_utf8(frame.payload_bytes()) {
        Ok(text) => object["payload"] = text.into(),
        Err(_) => object["payload_hex"] = hex(frame.payload_bytes()).into(),
    }
    if let Some((uuid, role)) = from {
        object["from"] = json!({ "uuid": uuid, "roles": role.names() });
    }
    if let Some(trace) = frame.trace() {
        object["trace"] = self::trace(trace);
    }
    object
}

/// A trace as JSON.
pub(super) fn trace(trace: &Trace) -> Value {
    // A node that noted no time has 0 in the trace.
    let stamp = |nanos: u64| (nanos != 0).then(|| timestamp::format(nanos));
    let nodes = trace.nodes().iter().map(|node| {
        json!({
            "uuid": node.uuid, "roles": node.role.names(),
            "received_at": stamp(node.received_at), "sent_at": stamp(node.sent_at),
        })
    });
    let mut object = json!({ "label": trace.label(), "nodes": nodes.collect::<Value>() });
    if let Some(parent) = trace.traceparent() {
        object["trace_id"] = parent.trace_id().into();
        object["span_id"] = parent.span_id().into();
    }
    if let Some(duration) = trace.duration() {
        object["duration_us"] = (duration.as_secs_f64() * 1e6).into();
    }
    object
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
