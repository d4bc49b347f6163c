//! Requests and responses, with their contents as JSON text.

use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use super::error::Error;
use super::id::Id;

/// A valid JSON text that has not been read as a type yet. It is a slice of the received memory.
#[derive(Clone, PartialEq, Eq)]
pub struct Payload(Bytes);

impl Payload {
    pub(super) fn from_text(text: Bytes) -> Self {
        Self(text)
    }

    /// The JSON text, without blanks around it.
    pub fn as_json(&self) -> &[u8] {
        &self.0
    }

    /// Reads the text as a type. The error text describes the fault and can be sent to the peer.
    pub fn parse<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        serde_json::from_slice(&self.0)
    }

    /// True if the text is an array.
    pub fn is_array(&self) -> bool {
        self.0.first() == Some(&b'[')
    }

    /// True if the text is an object.
    pub fn is_object(&self) -> bool {
        self.0.first() == Some(&b'{')
    }

    /// True if the text is null.
    pub fn is_null(&self) -> bool {
        self.0.as_ref() == b"null"
    }
}

impl std::fmt::Debug for Payload {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Payload({})", String::from_utf8_lossy(&self.0))
    }
}

/// One JSON-RPC message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// A request of the peer, which has to be answered.
    Request {
        /// The id, which the answer has to return unchanged.
        id: Id,
        /// The name of the method, which may be unknown.
        method: String,
        /// The parameters; `None` if they are missing or null.
        params: Option<Payload>,
    },
    /// The peer's answer to a request of this side.
    Response {
        /// The id of the request.
        id: Id,
        /// The result, or the error object. A result may be null; an error is
        /// always an object.
        outcome: Result<Payload, Payload>,
    },
}

/// The members of requests and responses. Other members are skipped. A member that appears twice
/// is refused, because two readers could use different ones.
#[derive(serde::Deserialize)]
struct Envelope<'a> {
    #[serde(borrow, default, deserialize_with = "present")]
    id: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    method: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    params: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    result: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    error: Option<&'a RawValue>,
}

/// Distinguishes a null from a missing member.
fn present<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<&'de RawValue>, D::Error> {
    serde::Deserialize::deserialize(deserializer).map(Some)
}

impl Message {
    /// Reads one JSON object: a request if it has a method, else a response.
    ///
    /// Invalid UTF-8 is read as Latin-1, because libopflex forwards such bytes unchanged: a name in
    /// an old encoding must not end the connection, and different names must stay different. An id has
    /// to be returned unchanged, so it is refused then unless it is ASCII.
    pub(super) fn parse(text: &Bytes) -> Result<Self, Error> {
        // The check for UTF-8 is only needed after a failure, because nearly every text is UTF-8.
        match (Self::read(text), std::str::from_utf8(text)) {
            (Err(_), Err(_)) => {
                let read = Self::read(&Bytes::from(from_latin_1(text)))?;
                let (Self::Request { id, .. } | Self::Response { id, .. }) = &read;
                if id.as_json().is_ascii() {
                    Ok(read)
                } else {
                    Err(Error::Syntax("the id is not UTF-8".to_owned()))
                }
            }
            (result, _) => result,
        }
    }

    fn read(text: &Bytes) -> Result<Self, Error> {
        let envelope: Envelope<'_> =
            serde_json::from_slice(text).map_err(|error| Error::Syntax(error.to_string()))?;
        let share = |raw: &RawValue| text.slice_ref(raw.get().as_bytes());
        let id = Id::from_text(share(envelope.id.ok_or(Error::NoId)?));
        if let Some(method) = envelope.method {
            let method = serde_json::from_str(method.get()).map_err(|_| Error::MethodNotString)?;
            let params = envelope.params.map(share).map(Payload::from_text);
            let params = params.filter(|params| !params.is_null());
            return Ok(Self::Request { id, method, params });
        }
        // All ids that this crate and libopflex send are arrays.
        if !id.is_array() {
            return Err(Error::ResponseId);
        }
        let is_set = |raw: &&RawValue| raw.get() != "null";
        // JSON-RPC 1.0 has both members, and the unused one is null.
        let outcome = match (envelope.result, envelope.error.filter(is_set)) {
            (Some(result), Some(_)) if is_set(&result) => return Err(Error::ResultAndError),
            (_, Some(error)) => {
                let error = Payload::from_text(share(error));
                if !error.is_object() {
                    return Err(Error::ErrorNotObject);
                }
                Err(error)
            }
            (Some(result), None) => Ok(Payload::from_text(share(result))),
            (None, None) => return Err(Error::NoOutcome),
        };
        Ok(Self::Response { id, outcome })
    }
}

/// The text, with each invalid byte replaced by the Latin-1 character of the same value.
fn from_latin_1(text: &[u8]) -> String {
    let mut converted = String::with_capacity(text.len() + text.len() / 8);
    for chunk in text.utf8_chunks() {
        converted.push_str(chunk.valid());
        converted.extend(chunk.invalid().iter().copied().map(char::from));
    }
    converted
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Message, Error> {
        Message::parse(&Bytes::copy_from_slice(text.as_bytes()))
    }

    #[test]
    fn ids_are_returned_character_by_character() {
        for id in [
            "null",
            "9223372036854775808",
            "18446744073709551615",
            "123456789012345678901234567890",
            "1.50",
            "1e400",
            r#"["echo", 9223372036854775808]"#,
            r#"{"b": 1, "a": "\u0041"}"#,
            "true",
        ] {
            match parse(&format!(r#"{{ "id" : {id} , "method" : "echo" }}"#)).unwrap() {
                Message::Request { id: read, .. } => assert_eq!(read.as_json(), id.as_bytes()),
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn invalid_utf_8_is_read_as_latin_1() {
        let text = b"{\"id\":[\"x\",1],\"method\":\"a\",\"params\":[\"\xe9\xc3\xa9\xff\"]}";
        let Ok(Message::Request { params, .. }) = Message::parse(&Bytes::from_static(text)) else {
            panic!("refused");
        };
        let params: Vec<String> = params.unwrap().parse().unwrap();
        assert_eq!(params, ["\u{e9}\u{e9}\u{ff}"]);
        // An id could not be returned unchanged.
        let id = b"{\"id\":[\"\xe9\",1],\"method\":\"echo\"}";
        assert!(matches!(
            Message::parse(&Bytes::from_static(id)),
            Err(Error::Syntax(_))
        ));
        // Invalid JSON is refused.
        assert!(Message::parse(&Bytes::from_static(b"{\"id\":\xe9}")).is_err());
    }

    #[test]
    fn null_params_are_read_as_missing_params() {
        for text in [
            r#"{"id":1,"method":"echo","params":null}"#,
            r#"{"id":1,"method":"echo"}"#,
        ] {
            match parse(text).unwrap() {
                Message::Request { params, .. } => assert_eq!(params, None),
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn a_null_beside_the_other_member_is_ignored() {
        let outcome = |text| match parse(text).unwrap() {
            Message::Response { outcome, .. } => outcome,
            other => panic!("{other:?}"),
        };
        assert!(outcome(r#"{"id":["echo",1],"result":{},"error":null}"#).is_ok());
        assert!(outcome(r#"{"id":["echo",1],"result":null,"error":{"code":"ERROR"}}"#).is_err());
        assert!(outcome(r#"{"id":["echo",1],"result":null}"#).is_ok_and(|result| result.is_null()));
    }

    #[test]
    fn each_malformed_envelope_has_its_own_error() {
        for (text, error) in [
            (r#"{"method":"echo","params":[]}"#, Error::NoId),
            (r#"{"id":1,"method":7}"#, Error::MethodNotString),
            (r#"{"id":1,"method":null}"#, Error::MethodNotString),
            (r#"{"id":1,"result":{}}"#, Error::ResponseId),
            (r#"{"id":"echo","error":{}}"#, Error::ResponseId),
            (r#"{"id":["echo",1]}"#, Error::NoOutcome),
            (r#"{"id":["echo",1],"error":null}"#, Error::NoOutcome),
            (r#"{"id":["echo",1],"error":"bad"}"#, Error::ErrorNotObject),
            (
                r#"{"id":["echo",1],"result":{},"error":{}}"#,
                Error::ResultAndError,
            ),
        ] {
            assert_eq!(parse(text), Err(error), "{text}");
        }
        for text in [
            r#"{"id":1,"id":2,"method":"echo"}"#,
            r#"{"id":1,"method":"echo","method":"echo"}"#,
            r#"{"id":1,"method":"echo"}{}"#,
            r#"{"id":1,"method":"echo",}"#,
            r#"{"id":1,"method":"echo""#,
        ] {
            assert!(matches!(parse(text), Err(Error::Syntax(_))), "{text}");
        }
    }
}
