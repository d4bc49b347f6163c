//! What `gbp_inspect` asks for, of an inspector or over a control socket.

use serde::Deserialize;
use serde_json::Value;

use crate::message::{Custom, ErrorResponse};
use crate::model::{Name, Uri};

/// The inner method.
pub(super) const QUERY: &str = "org.opendaylight.opflex.policy_query";
/// The class of the object at `/`, which contains all that is topmost.
pub(super) const ROOT: &str = "DmtreeRoot";

/// One question, as libopflex asks it.
#[derive(Debug, Deserialize)]
pub(super) struct Query {
    pub(super) subject: Name,
    pub(super) policy_uri: Option<Uri>,
    #[serde(default)]
    pub(super) recursive: bool,
}

impl Query {
    /// The questions of a call: an array of them, or a single one.
    pub(super) fn all(call: &Custom) -> Result<Vec<Self>, Box<ErrorResponse>> {
        let read = |value: &Value| Self::deserialize(value).map_err(ErrorResponse::error);
        match &call.params {
            Value::Array(all) => all.iter().map(read).collect(),
            one => read(one).map(|query| vec![query]),
        }
    }

    /// Whether everything is asked for, or where that begins.
    pub(super) fn is_root(&self) -> bool {
        self.subject == ROOT && self.policy_uri.as_ref().is_none_or(Uri::is_root)
    }

    pub(super) fn asks_for(&self, subject: &Name, uri: &Uri) -> bool {
        self.subject == *subject && self.policy_uri.as_ref().is_none_or(|wanted| wanted == uri)
    }
}
