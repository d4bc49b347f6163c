//! `ssntp opflex endpoints`, `reports`, `sessions` and `agents`: show the state of a
//! running server.

use std::io::IsTerminal;
use std::time::{SystemTime, UNIX_EPOCH};

use comfy_table::{Table, presets};
use serde::Deserialize;
use serde_json::Value;
use ssntp_opflex::model::{ManagedObject, Uri};

use super::control::ControlArgs;
use super::printing::print_with_note;
use crate::failure::Failure;
use crate::output::{Output, printable};

/// Print the endpoints that a running server knows
#[derive(Debug, clap::Args)]
pub(super) struct EndpointArgs {
    /// Only those at and below this URI
    uri: Option<Uri>,
    #[command(flatten)]
    control: ControlArgs,
}

/// Print the last state report of each object, and its numbers over time
#[derive(Debug, clap::Args)]
pub(super) struct ReportArgs {
    /// Only those at and below this URI
    uri: Option<Uri>,
    #[command(flatten)]
    control: ControlArgs,
}

/// Print the clients of a running server with their counters
#[derive(Debug, clap::Args)]
pub(super) struct SessionArgs {
    #[command(flatten)]
    control: ControlArgs,
}

/// Print every agent that was connected since the server started, and the counters of
/// all its sessions
#[derive(Debug, clap::Args)]
pub(super) struct AgentArgs {
    #[command(flatten)]
    control: ControlArgs,
}

pub(super) fn endpoints(args: EndpointArgs) -> Result<(), Failure> {
    let uri = args.uri.unwrap_or_else(Uri::root);
    let endpoints = args.control.connect()?.endpoints(&uri).map_err(Failure::new)?;
    let mut output = Output::new();
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

pub(super) fn reports(args: ReportArgs) -> Result<(), Failure> {
    let uri = args.uri.unwrap_or_else(Uri::root);
    let reports = args.control.connect()?.reports(&uri).map_err(Failure::new)?;
    let mut output = Output::new();
    if args.control.json {
        for report in reports {
            output.json(report)?;
        }
        return output.flush();
    }
    #[expect(clippy::disallowed_methods, reason = "the age of a report is shown")]
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
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

pub(super) fn sessions(args: SessionArgs) -> Result<(), Failure> {
    let sessions = args.control.connect()?.sessions().map_err(Failure::new)?;
    let columns = [
        "connection",
        "name",
        "roles",
        "location",
        "seconds",
        "policies",
        "endpoints",
        "resolved",
        "updates",
        "refused",
    ];
    print_rows(&args.control, sessions, &columns)
}

pub(super) fn agents(args: AgentArgs) -> Result<(), Failure> {
    let agents = args.control.connect()?.agents().map_err(Failure::new)?;
    let columns = [
        "name",
        "connected",
        "sessions",
        "requests",
        "refused",
        "unavailable",
        "updates",
        "update_errors",
        "bytes_received",
        "bytes_sent",
    ];
    print_rows(&args.control, agents, &columns)
}

/// Prints each row as a line of JSON, or all rows as a table with these members as columns.
fn print_rows(control: &ControlArgs, rows: Vec<Value>, columns: &[&str]) -> Result<(), Failure> {
    let mut output = Output::new();
    if control.json {
        for row in rows {
            output.json(row)?;
        }
        return output.flush();
    }
    let mut table = Table::new();
    table.load_style(match std::io::stdout().is_terminal() {
        true => presets::UTF8_FULL_CONDENSED,
        false => presets::NOTHING,
    });
    table.set_header(columns.iter().copied());
    for row in &rows {
        table.add_row(columns.iter().map(|column| cell(row, column)));
    }
    output.line(table)?;
    output.flush()
}

/// The text of one member in a table. For counts by method, it is their sum.
fn cell(row: &Value, column: &str) -> String {
    let member = match column {
        // The heading is shorter than the name of the member, so that ten columns fit on a screen.
        "resolved" => "endpoint_resolves",
        other => other,
    };
    match &row[member] {
        Value::Null => "-".to_owned(),
        Value::String(text) => printable(text),
        Value::Array(texts) => {
            let texts: Vec<_> = texts.iter().filter_map(Value::as_str).map(printable).collect();
            texts.join(" ")
        }
        Value::Object(counts) => {
            let sum: u64 = counts.values().filter_map(Value::as_u64).sum();
            sum.to_string()
        }
        other => other.to_string(),
    }
}
