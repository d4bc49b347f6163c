//! Request identifiers.

use std::fmt;

use bytes::Bytes;
use serde_json::Value;

/// The `id` of a request: any JSON value, kept as the text that was received.
///
/// A response returns the id of its request unchanged, so the exact text is kept: many
/// ids have numbers of 2^63 and more, and null is a valid id. Two ids are equal if their
/// texts are. The ids of libopflex are `["method", number]`, and libopflex chooses the handler of a response by the method in
/// its id. [`Id::call`] makes an id of this form; [`Id::method`] and [`Id::xid`] return its parts.
///
/// ```
/// use ssntp_opflex::rpc::Id;
///
/// let id = Id::call("policy_resolve", 1 << 63);
/// assert_eq!(id.to_string(), r#"["policy_resolve",9223372036854775808]"#);
/// assert_eq!(id.method().as_deref(), Some("policy_resolve"));
/// assert_eq!(id.xid(), Some(9_223_372_036_854_775_808));
/// ```
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Id(Bytes);

impl Id {
    /// The id `[method, xid]`, the form of libopflex.
    pub fn call(method: &str, xid: u64) -> Self {
        Self(Bytes::from(format!("[{},{xid}]", Value::from(method))))
    }

    /// The id with this text. The caller guarantees that it is one JSON value without blanks around it.
    pub(super) fn from_text(text: Bytes) -> Self {
        Self(text)
    }

    /// The JSON text, without white space around it.
    pub fn as_json(&self) -> &[u8] {
        &self.0
    }

    /// The id as a JSON value, or null if a [`Value`] cannot hold it, as a number beyond the range of a
    /// double.
    pub fn to_value(&self) -> Value {
        serde_json::from_slice(&self.0).unwrap_or(Value::Null)
    }

    /// The method, if the id is an array that begins with a string.
    pub fn method(&self) -> Option<String> {
        // Parsed at each call: ids are short, and the method of most ids is never needed.
        match self.to_value() {
            Value::Array(parts) => match parts.into_iter().next() {
                Some(Value::String(method)) => Some(method),
                _ => None,
            },
            _ => None,
        }
    }

    /// The transaction number, if the id is an array whose second element is an unsigned 64-bit integer.
    pub fn xid(&self) -> Option<u64> {
        self.to_value().get(1).and_then(Value::as_u64)
    }

    /// True if the id is an array, the only form that libopflex accepts in a response.
    pub fn is_array(&self) -> bool {
        self.0.first() == Some(&b'[')
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.0))
    }
}

impl fmt::Debug for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Id({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn only_an_array_has_a_method() {
        for (value, method, xid) in [
            (json!(["echo", 0]), Some("echo"), Some(0)),
            (json!(["echo"]), Some("echo"), None),
            (json!(["echo", -1]), Some("echo"), None),
            (json!(["echo", 1.5]), Some("echo"), None),
            (json!(["echo", u64::MAX, "more"]), Some("echo"), Some(u64::MAX)),
            (json!([1, "echo"]), None, None),
            (json!([]), None, None),
            (json!(null), None, None),
            (json!({"0": "echo"}), None, None),
        ] {
            let id = Id::from_text(value.to_string().into());
            assert_eq!(id.method().as_deref(), method, "{value}");
            assert_eq!(id.xid(), xid, "{value}");
            assert_eq!(id.is_array(), value.is_array());
        }
    }

    #[test]
    fn a_method_is_escaped() {
        assert_eq!(Id::call("a\"b", 1).to_value(), json!(["a\"b", 1]));
    }
}
