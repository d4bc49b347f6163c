//! `ssntp opflex endpoints`, `reports` and `sessions`: what a running server
//! has.

use std::io::IsTerminal;
use std::time::{SystemTime, UNIX_EPOCH};

use comfy_table::{Table, presets};
use serde::Deserialize;
use serde_json::Value;
use ssntp::opflex::model::{ManagedObject, Uri};

use super::control::ControlArgs;
use super::printing::{print_properties, print_with_note};
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

/// Print the clients of a running server, and what they asked for
#[derive(Debug, clap::Args)]
pub(super) struct SessionArgs {
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

/// A report as the control socket has it.
#[derive(Deserialize)]
struct Report {
    object: ManagedObject,
    element: String,
    arrived: f64,
    count: u64,
    numbers: serde_json::Map<String, Value>,
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
    for report in reports {
        let report: Report = serde_json::from_value(report).map_err(Failure::new)?;
        let age = (now.as_secs_f64() - report.arrived).max(0.0);
        let times = if report.count == 1 { "time" } else { "times" };
        let note = format!(
            "({}, {age:.0} s ago, reported {} {times})",
            report.element, report.count
        );
        let line = format!("{} {} {note}", report.object.subject, report.object.uri);
        output.line(printable(&line))?;
        print_properties(&mut output, &report.object)?;
        for (name, rows) in &report.numbers {
            print_numbers(&mut output, name, rows)?;
        }
    }
    output.flush()
}

/// The last interval of each length.
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
    let mut output = Output::new();
    if args.control.json {
        for session in sessions {
            output.json(session)?;
        }
        return output.flush();
    }
    let mut table = Table::new();
    table.load_style(match std::io::stdout().is_terminal() {
        true => presets::UTF8_FULL_CONDENSED,
        false => presets::NOTHING,
    });
    table.set_header([
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
    ]);
    for session in &sessions {
        table.add_row(row(session));
    }
    output.line(table)?;
    output.flush()
}

fn row(session: &Value) -> [String; 10] {
    let text = |member: &str| match &session[member] {
        Value::Null => "-".to_owned(),
        Value::String(text) => printable(text),
        other => other.to_string(),
    };
    let roles = session["roles"].as_array().into_iter().flatten();
    let roles: Vec<_> = roles.filter_map(Value::as_str).map(printable).collect();
    let refused = session["refused"].as_object().into_iter().flatten();
    let refused: u64 = refused.filter_map(|(_, count)| count.as_u64()).sum();
    [
        text("connection"),
        text("name"),
        roles.join(" "),
        text("location"),
        text("seconds"),
        text("policies"),
        text("endpoints"),
        text("endpoint_resolves"),
        text("updates"),
        refused.to_string(),
    ]
}
