//! JSON, for the payloads of applications. The protocol's own payloads are YAML.

use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::Error;

/// Reads a payload that is one JSON text. Values that nest 128 levels deep are refused.
///
/// # Errors
/// [`Error::Content`], with line and column, if it is not JSON or does not match the type.
pub fn decode<T: DeserializeOwned>(payload: &[u8]) -> Result<T, Error> {
    serde_json::from_slice(payload).map_err(Error::content)
}

/// Writes a payload, in one line.
///
/// # Errors
/// [`Error::Content`] if a map has keys that are not texts, or if the value's own `Serialize` fails.
pub fn encode<T: Serialize>(value: &T) -> Result<Bytes, Error> {
    serde_json::to_vec(value).map(Bytes::from).map_err(Error::content)
}
