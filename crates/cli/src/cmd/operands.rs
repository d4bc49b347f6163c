//! `ssntp operands`: every kind of frame, who may send it and where it goes.

use std::sync::LazyLock;

use clap::builder::PossibleValuesParser;
use clap::error::{ContextKind, ContextValue};
use clap::{Arg, Command};
use serde_json::{Value, json};
use ssntp::Role;
use ssntp::proto::{FrameKind, FrameType, Operands};
use ssntp::server::{Filter, Rules};
use ssntp_daemon::Failure;

use super::table::{Columns, print};

/// Show every type and operand, who may send it, and where it goes
///
/// The table is that of `ssntp scheduler`, `ssntp server --dev` and `--filter spec`. A
/// scheduler sends a command to the one node that it is for.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Only operands of this type: COMMAND, STATUS, EVENT or ERROR
    #[arg(long = "type", value_name = "TYPE")]
    frame_type: Option<FrameType>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let (filter, rules) = (Filter::spec(), Rules::spec());
    let is_wanted = |kind: &FrameKind| args.frame_type.is_none_or(|wanted| kind.frame_type == wanted);
    let kinds = FrameKind::all().filter(is_wanted);
    let kinds: Vec<_> = kinds.collect();
    let spec = (filter, rules);
    print(args.json, COLUMNS, &spec, &kinds, |kind| to_json(*kind, &spec))
}

#[rustfmt::skip] // A table: one row a column.
const COLUMNS: Columns<(Filter, Rules), FrameKind> = &[
    ("type", |_, kind| kind.frame_type.to_string()),
    ("operand", |_, kind| kind.to_string()),
    ("number", |_, kind| format!("{:#04x}", kind.operand)),
    ("from", |(filter, _), kind| if kind.is_handshake() {
        "the handshake".into()
    } else {
        // A kind that no client may send comes from the server alone.
        whom(senders(filter, *kind), "the scheduler")
    }),
    ("to", |(_, rules), kind| match rules.receivers(*kind) {
        Some(to) if !kind.is_handshake() => whom(to, "-"),
        _ => "-".into(),
    }),
];

/// Finds the operand with this name: one of the protocol, or one of --application.
pub(super) fn kind(operands: &Operands, text: &str) -> Result<FrameKind, Failure> {
    let kind = operands.kind(text);
    kind.map_err(|e| {
        let like = like(text).map_or(String::new(), |name| format!("; did you mean {name}?"));
        Failure::usage(format!(
            "{e}{like}; `ssntp operands` shows all, and --application adds one"
        ))
    })
}

/// The operand with the most similar name, as clap finds it. The case of letters does not count as a mistake.
fn like(text: &str) -> Option<String> {
    // clap keeps texts of the program alone, so they are made once.
    static NAMES: LazyLock<Vec<String>> = LazyLock::new(|| {
        let names = FrameKind::all().filter_map(FrameKind::name);
        names.map(str::to_uppercase).collect()
    });
    let names = PossibleValuesParser::new(NAMES.iter().map(String::as_str));
    let operand = Command::new("ssntp").arg(Arg::new("operand").value_parser(names));
    let error = operand
        .try_get_matches_from(["ssntp", &text.to_uppercase()])
        .err()?;
    match error.get(ContextKind::SuggestedValue)? {
        ContextValue::String(name) => name.parse().ok().map(|kind: FrameKind| kind.to_string()),
        _ => None,
    }
}

/// The roles that may send frames of a kind.
pub(super) fn senders(filter: &Filter, kind: FrameKind) -> Role {
    let may_send = Role::ALL.iter().filter(|role| filter.allows(*role, kind));
    may_send.fold(Role::NONE, |all, role| all | role)
}

fn whom(roles: Role, nobody: &str) -> String {
    match roles {
        Role::NONE => nobody.into(),
        Role::ALL => "anybody".into(),
        roles => roles.to_string(),
    }
}

fn to_json(kind: FrameKind, (filter, rules): &(Filter, Rules)) -> Value {
    let names = |roles: Role| roles.iter().map(|role| role.to_string()).collect::<Vec<_>>();
    json!({
        "type": kind.frame_type.to_string(),
        "operand": kind.to_string(),
        "type_number": kind.frame_type.0,
        "operand_number": kind.operand,
        "handshake": kind.is_handshake(),
        "from": names(senders(filter, kind)),
        "to": names(rules.receivers(kind).unwrap_or(Role::NONE)),
    })
}
