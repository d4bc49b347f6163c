//! Encodes messages.

use bytes::Bytes;
use serde::Serialize;

use super::id::Id;

/// Makes frames: one JSON text and one NUL byte.
///
/// The members are in the order of libopflex: id, method, params; id, result; id, error. A
/// frame never has both result and error, because libopflex treats a null result beside an error
/// as a success.
#[derive(Debug)]
pub struct Frame;

impl Frame {
    /// A request.
    pub fn request(id: &Id, method: &str, params: &impl Serialize) -> Result<Bytes, EncodeError> {
        let mut out = begin(id);
        out.extend_from_slice(b",\"method\":");
        serde_json::to_writer(&mut out, method)?;
        member(out, "params", params)
    }

    /// The answer to a request that succeeded.
    pub fn result(id: &Id, result: &impl Serialize) -> Result<Bytes, EncodeError> {
        member(begin(id), "result", result)
    }

    /// The answer to a request that failed.
    pub fn failure(id: &Id, error: &impl Serialize) -> Result<Bytes, EncodeError> {
        member(begin(id), "error", error)
    }
}

fn begin(id: &Id) -> Vec<u8> {
    // Most requests and answers have less than 256 bytes: one allocation.
    let mut out = Vec::with_capacity(256);
    out.extend_from_slice(b"{\"id\":");
    out.extend_from_slice(id.as_json());
    out
}

fn member(mut out: Vec<u8>, name: &str, value: &impl Serialize) -> Result<Bytes, EncodeError> {
    out.extend_from_slice(b",\"");
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b"\":");
    serde_json::to_writer(&mut out, value)?;
    out.extend_from_slice(b"}\0");
    Ok(Bytes::from(out))
}

/// A value cannot be written as JSON: it has a map whose keys are not strings, or its `Serialize`
/// fails. The types of this crate never fail. No frame was made.
#[derive(Debug, thiserror::Error)]
#[error("a value can't be written as JSON: {0}")]
pub struct EncodeError(#[from] serde_json::Error);

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn members_are_written_in_the_order_of_libopflex() {
        let id = Id::call("echo", 0);
        assert_eq!(
            Frame::request(&id, "echo", &[1_383_103]).unwrap(),
            &b"{\"id\":[\"echo\",0],\"method\":\"echo\",\"params\":[1383103]}\0"[..]
        );
        assert_eq!(
            Frame::result(&id, &[1_383_103]).unwrap(),
            &b"{\"id\":[\"echo\",0],\"result\":[1383103]}\0"[..]
        );
        assert_eq!(
            Frame::failure(&id, &json!({"code": "ERROR"})).unwrap(),
            &b"{\"id\":[\"echo\",0],\"error\":{\"code\":\"ERROR\"}}\0"[..]
        );
    }

    #[test]
    fn a_nul_inside_a_string_is_escaped() {
        let frame = Frame::result(&Id::call("echo", 0), &["a\0b"]).unwrap();
        assert_eq!(frame.iter().filter(|byte| **byte == 0).count(), 1);
    }

    #[test]
    fn a_value_without_json_form_is_an_error() {
        let map = std::collections::HashMap::from([((1, 2), 3)]);
        assert!(Frame::result(&Id::call("echo", 0), &map).is_err());
    }
}
