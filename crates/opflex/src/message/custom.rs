//! `custom`, which is not in the draft.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A call of an inner method. libopflex supports it on its inspection socket only. Here the
/// inspector and the control socket use it; on other connections it is answered EUNSUPPORTED.
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
pub struct CustomResult<T = Value> {
    /// The inner method.
    pub method: String,
    /// Its result.
    #[serde(default)]
    pub result: T,
}
