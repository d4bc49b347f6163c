//! `ssntp operands`: every kind of frame, who may send it and where it goes.

use clap::ValueEnum;
use serde_json::{Value, json};
use ssntp::Role;
use ssntp::proto::FrameKind;
use ssntp::server::{Filter, Rules};

use crate::failure::Failure;
use crate::output::{Output, columns};

/// Show every type and operand, who may send it, and where it goes
///
/// The table is that of `ssntp scheduler`, `ssntp server --dev` and `--filter spec`. A
/// scheduler sends a command to the one node that it is for.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Only operands of this type
    #[arg(long = "type", value_enum, ignore_case = true, value_name = "TYPE")]
    frame_type: Option<TypeName>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum TypeName {
    Command,
    Status,
    Event,
    Error,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let (filter, rules) = (Filter::spec(), Rules::spec());
    let wanted = args.frame_type.map(|name| format!("{name:?}").to_uppercase());
    let kinds = FrameKind::all().filter(|kind| {
        let name = kind.frame_type.to_string();
        wanted.as_ref().is_none_or(|wanted| *wanted == name)
    });
    let mut output = Output::new();
    if args.json {
        let list: Vec<Value> = kinds.map(|kind| to_json(kind, &filter, &rules)).collect();
        output.json(Value::from(list))?;
        return output.flush();
    }
    let mut rows = vec![["type", "operand", "number", "from", "to"].map(String::from)];
    rows.extend(kinds.map(|kind| {
        [
            kind.frame_type.to_string(),
            kind.to_string(),
            format!("{:#04x}", kind.operand),
            match () {
                () if kind.is_handshake() => "the handshake".into(),
                () => whom(senders(&filter, kind), "the scheduler"),
            },
            match () {
                () if kind.is_handshake() => "-".into(),
                () => rules.receivers(kind).map_or("-".into(), |to| whom(to, "-")),
            },
        ]
    }));
    output.text(&columns(&rows))?;
    output.flush()
}

/// Reads an operand's name from the command line.
pub(super) fn kind(text: &str) -> Result<FrameKind, String> {
    let kind = text.parse::<FrameKind>();
    kind.map_err(|e| format!("{e}; `ssntp operands` shows all"))
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

fn to_json(kind: FrameKind, filter: &Filter, rules: &Rules) -> Value {
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
