//! The readable part of a frame, in text and JSON.

use std::fmt;

use serde_json::{Map, Value, json};
use ssntp::proto::FrameKind;
use ssntp_daemon::{Failure, Output};

/// The readable part of a frame.
#[derive(Default)]
pub(super) struct Frame {
    pub(super) at: usize,
    pub(super) len: usize,
    pub(super) kind: Option<FrameKind>,
    pub(super) fields: Vec<Field>,
    pub(super) problems: Vec<Problem>,
}

/// A field of a frame.
pub(super) struct Field {
    pub(super) name: String,
    pub(super) at: usize,
    pub(super) len: usize,
    pub(super) value: Value,
    /// The value for people, if it differs from `value`.
    pub(super) text: Option<String>,
}

pub(super) struct Problem {
    pub(super) at: usize,
    pub(super) what: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "offset {:#x}: {}", self.at, self.what)
    }
}

impl Frame {
    pub(super) fn print(&self, number: usize, output: &mut Output) -> Result<(), Failure> {
        let kind = match self.kind {
            Some(kind) => format!("{} {kind}", kind.frame_type),
            None => "incomplete header".to_owned(),
        };
        output.line(format_args!(
            "frame {number}: {kind}, {} bytes at {:#x}",
            self.len, self.at
        ))?;
        for field in &self.fields {
            let value = match (&field.text, &field.value) {
                (Some(text), _) | (None, Value::String(text)) => text.clone(),
                (None, other) => other.to_string(),
            };
            let mut lines = value.lines();
            let first = lines.next().unwrap_or_default();
            // 20 columns hold the longest name, "node 31 received".
            output.line(format_args!("  {:#08x}  {:<20} {first}", field.at, field.name))?;
            for line in lines {
                output.line(format_args!("  {:8}  {:20} {line}", "", ""))?;
            }
        }
        for problem in &self.problems {
            output.line(format_args!("  {:#08x}  WRONG: {}", problem.at, problem.what))?;
        }
        Ok(())
    }

    pub(super) fn to_json(&self) -> Value {
        let mut fields = Map::new();
        for field in &self.fields {
            let value = json!({ "offset": field.at, "length": field.len, "value": field.value });
            // Programs such as jq name members without quotes only if they have no blanks.
            fields.insert(field.name.replace(' ', "_"), value);
        }
        let problem = |problem: &Problem| json!({ "offset": problem.at, "problem": problem.what });
        json!({
            "offset": self.at,
            "length": self.len,
            "type": self.kind.map(|kind| kind.frame_type.to_string()),
            "operand": self.kind.map(|kind| kind.to_string()),
            "fields": fields,
            "problems": self.problems.iter().map(problem).collect::<Vec<_>>(),
        })
    }
}
