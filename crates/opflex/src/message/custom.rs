//! `custom`, which is not in the draft.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A method inside a method. The inspection socket of libopflex serves it, a
/// TCP peer answers EUNSUPPORTED; it is read here so that it can be told apart
/// from garbage.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Custom {
    /// The inner method.
    pub method: String,
    /// Its parameters.
    #[serde(default)]
    pub params: Value,
}

/// The answer to [`Custom`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CustomResult {
    /// The inner method.
    pub method: String,
    /// Its result.
    #[serde(default)]
    pub result: Value,
}
