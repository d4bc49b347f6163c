//! Encodes messages.

use bytes::Bytes;
use log::error;
use serde::Serialize;
use serde_json::Value;

use super::id::Id;

/// Makes frames: one JSON text and one NUL byte.
///
/// The members are in the order of libopflex: id, method, params; id, result; id, error. A
/// frame never has both result and error, because libopflex treats a null result beside an error
/// as a success. A value that JSON cannot represent is logged, and makes an empty frame, which receivers
/// skip: it has a map whose keys are not strings. The types of this crate have none.
#[derive(Debug)]
pub struct Frame;

impl Frame {
    /// A request.
    pub fn request(id: &Id, method: &str, params: &impl Serialize) -> Bytes {
        let mut out = begin(id);
        out.extend_from_slice(format!(",\"method\":{}", Value::from(method)).as_bytes());
        member(out, "params", params)
    }

    /// The answer to a request that succeeded.
    pub fn result(id: &Id, result: &impl Serialize) -> Bytes {
        member(begin(id), "result", result)
    }

    /// The answer to a request that failed.
    pub fn failure(id: &Id, error: &impl Serialize) -> Bytes {
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

fn member(mut out: Vec<u8>, name: &str, value: &impl Serialize) -> Bytes {
    out.extend_from_slice(b",\"");
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b"\":");
    if let Err(fault) = serde_json::to_writer(&mut out, value) {
        error!("a message was not sent: {fault}");
        return Bytes::new();
    }
    out.extend_from_slice(b"}\0");
    Bytes::from(out)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn members_are_written_in_the_order_of_libopflex() {
        let id = Id::call("echo", 0);
        assert_eq!(
            Frame::request(&id, "echo", &[1_383_103]),
            &b"{\"id\":[\"echo\",0],\"method\":\"echo\",\"params\":[1383103]}\0"[..]
        );
        assert_eq!(
            Frame::result(&id, &[1_383_103]),
            &b"{\"id\":[\"echo\",0],\"result\":[1383103]}\0"[..]
        );
        assert_eq!(
            Frame::failure(&id, &json!({"code": "ERROR"})),
            &b"{\"id\":[\"echo\",0],\"error\":{\"code\":\"ERROR\"}}\0"[..]
        );
    }

    #[test]
    fn a_nul_inside_a_string_is_escaped() {
        let frame = Frame::result(&Id::call("echo", 0), &["a\0b"]);
        assert_eq!(frame.iter().filter(|byte| **byte == 0).count(), 1);
    }

    #[test]
    fn a_value_without_json_form_makes_an_empty_frame() {
        let map = std::collections::HashMap::from([((1, 2), 3)]);
        assert!(Frame::result(&Id::call("echo", 0), &map).is_empty());
    }
}
