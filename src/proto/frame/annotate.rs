//! Decodes the parts of a frame as a session does, and says which bytes are which field.

use super::fields::{Field, Fields};
use super::{Connect, Connected, FrameKind, Header, Status, Trace};

/// A part of a frame that is decoded on its own.
#[derive(Clone, Copy, Debug)]
pub enum Part {
    /// The first eight bytes.
    Header,
    /// The bytes between this header, of CONNECT or CONNECTED, and the payload.
    Handshake(Header),
    /// The block of a trace, without its length.
    Trace,
    /// The payload, with its decoder, which returns false if the payload is not one of its kind.
    Payload(FrameKind, fn(FrameKind, &mut Fields<'_, Vec<Field>>) -> bool),
}

/// Decodes a part of a frame as a session does. Returns the fields that were read, and the fault that ended
/// the decoding: its offset, and a sentence.
pub fn annotate(part: Part, bytes: &[u8]) -> (Vec<Field>, Option<(usize, String)>) {
    let mut fields = Fields::noting(bytes, Vec::new());
    let fault = match part {
        Part::Header => Header::read(&mut fields).is_none().then(String::new),
        Part::Handshake(header) => {
            let is_whole = if header.kind == Status::CONNECTED {
                Connected::read(&mut fields).is_some()
            } else {
                Connect::read(&header, &mut fields).is_some()
            };
            (!is_whole).then(String::new)
        }
        Part::Trace => Trace::read(&mut fields).err().map(|fault| fault.to_string()),
        Part::Payload(kind, read) => {
            (!read(kind, &mut fields)).then(|| format!("the payload is not one of {kind}"))
        }
    };
    let (at, cut, noted) = (fields.at, fields.cut, fields.notes);
    let fault = fault.map(|fault| match (cut, noted.last()) {
        (Some((name, len)), _) => {
            let there = bytes.len() - at;
            (at, format!("ends inside {name}, with {there} of its {len} bytes"))
        }
        // The value that was read last is wrong.
        (None, Some(last)) if !matches!(part, Part::Payload(..)) => (last.at, fault),
        (None, _) => (0, fault),
    });
    (noted, fault)
}
