//! The error of a response (draft 4.2.1).

use std::borrow::Cow;
use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use ssntp_transport::excerpt;

/// The kind of a failure. Codes that are not in the draft are kept, and mean the same as
/// [`ErrorCode::ERROR`].
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(transparent)]
pub struct ErrorCode(Cow<'static, str>);

impl ErrorCode {
    /// A failure for which the draft has no other code.
    pub const ERROR: Self = Self(Cow::Borrowed("ERROR"));
    /// The receiver does not support the method.
    pub const EUNSUPPORTED: Self = Self(Cow::Borrowed("EUNSUPPORTED"));
    /// The session is not in a state that allows the request: no identity yet.
    pub const ESTATE: Self = Self(Cow::Borrowed("ESTATE"));
    /// The version of the protocol is not supported.
    pub const EPROTO: Self = Self(Cow::Borrowed("EPROTO"));
    /// The policy domains differ.
    pub const EDOMAIN: Self = Self(Cow::Borrowed("EDOMAIN"));
    /// The location of the element is required, but unknown.
    pub const ELOCATION: Self = Self(Cow::Borrowed("ELOCATION"));

    /// The text on the wire.
    pub fn name(&self) -> &str {
        &self.0
    }
}

impl From<&str> for ErrorCode {
    fn from(name: &str) -> Self {
        Self(Cow::Owned(name.to_owned()))
    }
}

/// The error of a failed request. `Display` has the code and the message, each cut to 200 characters.
#[derive(Clone, Debug, PartialEq, Serialize, thiserror::Error)]
#[error("{}{}{}", excerpt(code.name()), if message.is_some() { ": " } else { "" }, excerpt(message.as_deref().unwrap_or_default()))]
pub struct ErrorResponse {
    /// The kind of failure.
    pub code: ErrorCode,
    /// A text for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// `trace` and `data` of the draft, which may have any form, and members that are not in the draft.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

impl ErrorResponse {
    /// An error with the code ERROR, for a `Result`.
    pub(crate) fn error(message: impl fmt::Display) -> Box<Self> {
        Self::boxed(ErrorCode::ERROR, message)
    }

    /// As [`new`](Self::new), for a `Result`.
    pub(crate) fn boxed(code: ErrorCode, message: impl fmt::Display) -> Box<Self> {
        // Boxed, because the type is large and would enlarge every `Result`.
        Box::new(Self::new(code, message))
    }

    /// An error with a text for people.
    pub fn new(code: ErrorCode, message: impl fmt::Display) -> Self {
        Self {
            code,
            message: Some(message.to_string()),
            extra: Map::new(),
        }
    }
}

impl<'de> Deserialize<'de> for ErrorResponse {
    /// Accepts every object, also if the code or the message is missing or is not a string.
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // A derived reader would refuse a code that is a number, and the caller would not see that
        // its request has failed.
        let mut members: Map<String, Value> = Map::deserialize(deserializer)?;
        let mut take = |name| members.remove(name).filter(|value| !value.is_null());
        let text = |value| match value {
            Value::String(text) => text,
            other => other.to_string(),
        };
        let code = take("code").map(text);
        Ok(Self {
            code: code.map_or(ErrorCode::ERROR, |code| ErrorCode::from(code.as_str())),
            message: take("message").map(text),
            extra: members,
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parse(value: Value) -> ErrorResponse {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn codes_that_are_not_in_the_draft_are_kept() {
        assert_eq!(parse(json!({"code": "ESTATE"})).code, ErrorCode::ESTATE);
        assert_eq!(parse(json!({"code": "ETEAPOT"})).code.name(), "ETEAPOT");
    }

    #[test]
    fn every_object_is_read_as_an_error() {
        assert_eq!(parse(json!({})).code, ErrorCode::ERROR);
        let odd = parse(json!({"code": 7, "message": [1]}));
        assert_eq!((odd.code.name(), odd.message.as_deref()), ("7", Some("[1]")));
        assert!(serde_json::from_value::<ErrorResponse>(json!(["ERROR"])).is_err());
    }

    #[test]
    fn a_long_message_is_cut_when_it_is_printed() {
        let long = parse(json!({"code": "x".repeat(1000), "message": "é".repeat(1000)}));
        assert_eq!(long.to_string().chars().count(), 201 + 2 + 201);
    }

    #[test]
    fn all_members_print_back() {
        for value in [
            json!({"code": "ERROR", "message": "no"}),
            json!({"code": "X", "trace": {"at": [1]}, "data": 7, "more": true}),
        ] {
            assert_eq!(serde_json::to_value(parse(value.clone())).unwrap(), value);
        }
    }
}
