//! The JSON of lines, both read and written.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use ssntp::client::SendFault;
use ssntp::proto::{Frame, FrameKind, Operands, Trace, TraceParent};
use ssntp::{Request, RequestError};
use uuid::Uuid;

use crate::cmd::listen;

/// The longest `id`, in bytes of its text.
const MAX_ID: usize = 256;

/// A line of the input.
#[derive(Debug, Deserialize)]
#[serde(tag = "do", rename_all = "lowercase", deny_unknown_fields)]
pub(super) enum Line {
    Send {
        #[serde(default)]
        id: Id,
        operand: String,
        payload: Option<String>,
        payload_base64: Option<String>,
        timeout: Option<f64>,
        #[serde(default)]
        receipt: bool,
        trace: Option<String>,
        traceparent: Option<String>,
    },
    Request {
        #[serde(default)]
        id: Id,
        operand: String,
        to: Option<Uuid>,
        payload: Option<String>,
        payload_base64: Option<String>,
        timeout: Option<f64>,
    },
    Reply {
        #[serde(default)]
        id: Id,
        request: u64,
        payload: Option<String>,
        payload_base64: Option<String>,
    },
    Refuse {
        #[serde(default)]
        id: Id,
        request: u64,
        reason: String,
    },
}

/// The id of a line, which the program chooses. The answer to the line repeats it.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(untagged)]
pub(super) enum Id {
    Number(u64),
    Text(String),
    #[default]
    None,
}

impl Line {
    pub(super) fn read(bytes: &[u8]) -> Result<Self, (Id, Error)> {
        // An array would be read as the members in their order.
        if !bytes.trim_ascii_start().starts_with(b"{") {
            return Err((Id::None, Error::new("bad_line", "not a JSON object")));
        }
        match serde_json::from_slice::<Self>(bytes) {
            Ok(line) if line.id().fits() => Ok(line),
            Ok(_) => {
                let why = format!("the id is longer than {MAX_ID} bytes");
                Err((Id::None, Error::new("bad_line", why)))
            }
            Err(e) => {
                // The id may still be readable, and then shows the program which line failed.
                #[derive(Deserialize)]
                struct WithId {
                    #[serde(default)]
                    id: Id,
                }
                let named = serde_json::from_slice(bytes).map(|WithId { id }| id);
                let id = named.ok().filter(Id::fits).unwrap_or_default();
                Err((id, Error::new("bad_line", e)))
            }
        }
    }

    pub(super) fn id(&self) -> &Id {
        match self {
            Self::Send { id, .. }
            | Self::Request { id, .. }
            | Self::Reply { id, .. }
            | Self::Refuse { id, .. } => id,
        }
    }
}

impl Id {
    fn fits(&self) -> bool {
        !matches!(self, Self::Text(text) if text.len() > MAX_ID)
    }
}

/// The reason why a line was not executed.
#[derive(Clone, Debug)]
pub(super) struct Error {
    code: &'static str,
    message: String,
}

impl Error {
    pub(super) fn new(code: &'static str, message: impl ToString) -> Self {
        let message = message.to_string();
        Self { code, message }
    }
}

impl From<&SendFault> for Error {
    fn from(fault: &SendFault) -> Self {
        let code = match fault {
            SendFault::NotConnected => "not_connected",
            SendFault::Full => "queue_full",
            SendFault::Kind(_) => "bad_operand",
            SendFault::TooLong { .. } => "too_long",
            SendFault::Ended(_) => "ended",
            _ => "failed",
        };
        Self::new(code, fault)
    }
}

impl From<RequestError> for Error {
    fn from(error: RequestError) -> Self {
        let code = match &error {
            RequestError::Kind(_) => "bad_operand",
            RequestError::TooLong { .. } => "too_long",
            RequestError::TooMany(_) => "too_many",
            RequestError::NotConnected => "not_connected",
            RequestError::QueueFull => "queue_full",
            RequestError::Ended => "ended",
            RequestError::Disconnected => "disconnected",
            RequestError::TimedOut(_) => "timed_out",
            // The other client chose this text for the program, so the text is passed unchanged.
            RequestError::Refused(why) => return Self::new("refused", why),
            _ => "failed",
        };
        Self::new(code, error)
    }
}

/// The payload of a line.
pub(super) fn payload(text: Option<String>, base64: Option<String>) -> Result<Vec<u8>, Error> {
    match (text, base64) {
        (Some(text), None) => Ok(text.into_bytes()),
        (None, Some(base64)) => STANDARD.decode(&base64).map_err(|e| {
            Error::new(
                "bad_line",
                format!("payload_base64 is not base64 with padding: {e}"),
            )
        }),
        (None, None) => Ok(Vec::new()),
        (Some(_), Some(_)) => Err(Error::new(
            "bad_line",
            "payload and payload_base64 exclude each other",
        )),
    }
}

/// The frame with the trace of a line, if it has one.
pub(super) fn traced(frame: Frame, label: Option<&str>, parent: Option<&str>) -> Result<Frame, Error> {
    let parent = parent.map(str::parse::<TraceParent>).transpose();
    let parent = parent.map_err(|e| Error::new("bad_line", format!("traceparent: {e}")))?;
    Ok(match (label, parent) {
        (label, Some(parent)) => frame.traced(Trace::within(label.unwrap_or_default(), &parent)),
        (Some(label), None) => frame.traced(Trace::new(label)),
        (None, None) => frame,
    })
}

/// The answer to a line. The answer to a request holds the reply.
pub(super) fn answer(id: &Id, result: Result<Option<Frame>, Error>) -> Value {
    let mut line = json!({ "event": "answer", "id": id, "ok": result.is_ok() });
    match result {
        Ok(Some(reply)) => add_payload(&mut line, &reply),
        Ok(None) => {}
        Err(Error { code, message }) => line["error"] = json!({ "code": code, "message": message }),
    }
    line
}

/// A received frame, with its sender if the sender is known.
pub(super) fn frame(frame: &Frame, operands: &Operands) -> Value {
    let mut line = shown("frame", frame.kind(), operands);
    if let Some(origin) = frame.trace().and_then(|trace| trace.nodes().first()) {
        line["from"] = json!({ "uuid": origin.uuid, "roles": origin.role.names() });
    }
    if let Some(trace) = frame.trace() {
        line["trace"] = listen::trace(trace);
    }
    add_payload(&mut line, frame);
    line
}

/// A received request.
pub(super) fn request(request: &Request, operands: &Operands) -> Value {
    let mut line = shown("request", request.kind(), operands);
    line["from"] = json!({ "uuid": request.from() });
    add_payload(&mut line, request.frame());
    line
}

fn shown(event: &str, kind: FrameKind, operands: &Operands) -> Value {
    let operand = operands.show(kind).to_string();
    json!({ "event": event, "type": kind.frame_type.to_string(), "operand": operand })
}

/// Adds the payload: as text if it is UTF-8 without control characters, each of which would take
/// six bytes in JSON; else as base64.
fn add_payload(line: &mut Value, frame: &Frame) {
    let payload = frame.payload_bytes();
    let is_control = |byte: &u8| byte.is_ascii_control() && !matches!(byte, b'\t' | b'\n' | b'\r');
    match std::str::from_utf8(payload) {
        Ok(text) if !payload.iter().any(is_control) => line["payload"] = text.into(),
        _ => line["payload_base64"] = STANDARD.encode(payload).into(),
    }
}
