//! `ssntp watch`: which client of a server sends what.

use serde_json::json;
use ssntp::Role;
use ssntp::client::{Client, ClientEvent};
use ssntp::payload::{InvalidFrameType, Payload, Watch as Question, Watched};
use ssntp::proto::{Command, Frame, FrameKind, Operands};
use ssntp_daemon::{Connection, Failure, Stop, Watch, note, print_either, printable};
use uuid::Uuid;

use super::ctl::session::refusal_text;
use super::ctl::sessions::new_id;
use super::listen::{clock, time};
use super::operands;
use crate::application::Applications;

/// Show which clients of a server send what: sender, operand and length, without payloads
///
/// Asks a server that takes operators, as `ssntp server` and `ssntp scheduler` do; the certificate
/// must have the role controller. Consecutive frames of one client and one operand are one line.
/// Frames that this program takes too slowly are left out and counted. Runs until a signal comes,
/// and goes on when the connection comes back.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    connection: Connection,
    #[command(flatten)]
    applications: Applications,
    /// Only frames of this client
    #[arg(long, value_name = "UUID")]
    from: Option<Uuid>,
    /// Only frames with this operand, as in STATS
    #[arg(long, value_name = "OPERAND")]
    kind: Option<String>,
    /// Print one JSON object a line
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let stop = Stop::install()?;
    let operands = args.applications.operands()?;
    let kind = args.kind.as_deref().map(|text| operands::kind(&operands, text));
    let question = Question {
        id: new_id(),
        uuid: args.from.map(Into::into).unwrap_or_default(),
        kind: kind.transpose()?.map(|kind| kind.to_string()).unwrap_or_default(),
    };
    let (config, renewal) = args.connection.config_as(Role::CONTROLLER, &stop)?;
    let client = Client::start(config)?;
    Watch::new(&client, &stop, renewal).each(|event| {
        match event {
            // If the session has ended already, the next one asks again.
            ClientEvent::Connected(_) => drop(client.send(Frame::of(&question))),
            ClientEvent::Disconnected { reason, .. } => {
                note(format_args!("disconnected: {reason}"));
            }
            ClientEvent::Frame(frame) if frame.kind() == Watched::KIND => {
                let watched: Watched = frame.payload()?;
                if watched.id == question.id {
                    print(&watched, &operands, args.json)?;
                }
            }
            ClientEvent::Frame(frame) => {
                if let Ok(refusal) = frame.payload::<InvalidFrameType>()
                    && refusal.refused() == Command::WATCH
                {
                    return Err(Failure::new(refusal_text(
                        refusal.refused(),
                        refusal.reason.as_str(),
                    )));
                }
            }
            _ => {}
        }
        Ok(())
    })?;
    client.close();
    Ok(())
}

fn print(watched: &Watched, operands: &Operands, json: bool) -> Result<(), Failure> {
    #[rustfmt::skip] // One line.
    let Watched { uuid, roles, frames, bytes, missed, .. } = watched;
    let name = match watched.kind.parse::<FrameKind>() {
        Ok(kind) => operands.show(kind).to_string(),
        Err(_) => watched.kind.clone(),
    };
    if *missed > 0 {
        note(format_args!("ssntp: {missed} frames are not shown"));
    }
    if *frames == 0 {
        note("watching");
        return Ok(());
    }
    let value = json!({
        "time": time(), "from": { "uuid": uuid, "roles": super::roles(roles) }, "operand": name,
        "frames": frames, "bytes": bytes, "missed": missed,
    });
    let many = if *frames == 1 { "frame" } else { "frames" };
    let line = format!(
        "{} {uuid} ({roles}) {name}: {frames} {many}, {bytes} bytes",
        clock()
    );
    print_either(json, value, printable(&line))
}
