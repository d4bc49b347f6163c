//! `ssntp opflex endpoints`, `reports`, `sessions` and `agents`: show the state of a
//! running server.

use serde::Deserialize;
use serde_json::Value;
use ssntp_daemon::{Failure, Output, print_json_lines, printable};
use ssntp_opflex::model::{ManagedObject, Uri};
use ssntp_transport::{since_1970, wall_clock};

use super::flags::ControlArgs;
use super::print_with_note;
use crate::cmd::table::{Columns, print_values};

#[derive(Debug, clap::Args)]
pub(crate) struct ObjectArgs {
    /// Only objects at and below this URI [default: all objects]
    uri: Option<Uri>,
    #[command(flatten)]
    control: ControlArgs,
}

pub(super) fn endpoints(args: ObjectArgs) -> Result<(), Failure> {
    let uri = args.uri.unwrap_or_else(Uri::root);
    let endpoints = args.control.connect()?.endpoints(&uri).map_err(Failure::new)?;
    let mut output = Output::lock();
    for entry in endpoints {
        if args.control.json {
            output.json(serde_json::to_string(&entry).map_err(Failure::new)?)?;
            continue;
        }
        let note = match (&entry.element, entry.expires_in) {
            (Some(element), Some(seconds)) => format!("({element}, for {seconds:.0} s)"),
            (Some(element), None) => format!("({element})"),
            (None, _) => String::new(),
        };
        print_with_note(&mut output, &entry.object, &note)?;
    }
    output.flush()
}

pub(super) fn reports(args: ObjectArgs) -> Result<(), Failure> {
    let uri = args.uri.unwrap_or_else(Uri::root);
    let reports = args.control.connect()?.reports(&uri).map_err(Failure::new)?;
    if args.control.json {
        return print_json_lines(reports);
    }
    let mut output = Output::lock();
    let now = since_1970(wall_clock());
    for mut report in reports {
        let object = ManagedObject::deserialize(report["object"].take()).map_err(Failure::new)?;
        // The clock may have been set back since the report arrived.
        let age = (now.as_secs_f64() - report["arrived"].as_f64().unwrap_or_default()).max(0.0);
        let (element, count) = (report["element"].as_str().unwrap_or("-"), &report["count"]);
        let times = if *count == 1 { "time" } else { "times" };
        let note = format!("({element}, {age:.0} s ago, reported {count} {times})");
        print_with_note(&mut output, &object, &note)?;
        for (name, rows) in report["numbers"].as_object().into_iter().flatten() {
            print_numbers(&mut output, name, rows)?;
        }
    }
    output.flush()
}

/// Prints the latest interval of each length; the older ones are in the JSON output only.
fn print_numbers(output: &mut Output, name: &str, rows: &Value) -> Result<(), Failure> {
    for row in rows.as_array().into_iter().flatten() {
        let Some(last) = row["intervals"].as_array().and_then(|all| all.last()) else {
            continue;
        };
        let line = format!(
            "  {name} over {} s: {} to {} in {} samples, first {}, last {}",
            row["interval"], last["min"], last["max"], last["samples"], last["first"], last["last"]
        );
        output.line(printable(&line))?;
    }
    Ok(())
}

pub(super) fn sessions(control: &ControlArgs) -> Result<(), Failure> {
    let sessions = control.connect()?.sessions().map_err(Failure::new)?;
    print_values(control.json, SESSIONS, &sessions)
}

pub(super) fn agents(control: &ControlArgs) -> Result<(), Failure> {
    let agents = control.connect()?.agents().map_err(Failure::new)?;
    print_values(control.json, AGENTS, &agents)
}

const SESSIONS: Columns<(), Value> = &[
    ("connection", |(), row| cell(&row["connection"])),
    ("name", |(), row| cell(&row["name"])),
    ("roles", |(), row| cell(&row["roles"])),
    ("location", |(), row| cell(&row["location"])),
    ("seconds", |(), row| cell(&row["seconds"])),
    ("policies", |(), row| cell(&row["policies"])),
    ("endpoints", |(), row| cell(&row["endpoints"])),
    ("resolved", |(), row| cell(&row["endpoint_resolves"])),
    ("updates", |(), row| cell(&row["updates"])),
    ("refused", |(), row| cell(&row["refused"])),
];

const AGENTS: Columns<(), Value> = &[
    ("name", |(), row| cell(&row["name"])),
    ("connected", |(), row| cell(&row["connected"])),
    ("sessions", |(), row| cell(&row["sessions"])),
    ("requests", |(), row| cell(&row["requests"])),
    ("refused", |(), row| cell(&row["refused"])),
    ("unavailable", |(), row| cell(&row["unavailable"])),
    ("updates", |(), row| cell(&row["updates"])),
    ("update_errors", |(), row| cell(&row["update_errors"])),
    ("bytes_received", |(), row| cell(&row["bytes_received"])),
    ("bytes_sent", |(), row| cell(&row["bytes_sent"])),
];

/// The text of one member in a table. For counts by method, it is their sum.
fn cell(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        Value::Array(texts) => texts
            .iter()
            .filter_map(Value::as_str)
            .collect::<Vec<_>>()
            .join(" "),
        Value::Object(counts) => counts.values().filter_map(Value::as_u64).sum::<u64>().to_string(),
        other => other.to_string(),
    }
}
