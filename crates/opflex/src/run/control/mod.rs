//! The control socket, by which programs on the same host change policy.
//!
//! The control socket uses the framing of OpFlex and its method `custom`, like the inspector of
//! libopflex, without identities and echoes. Inner methods:
//!
//! | method | params | result |
//! |---|---|---|
//! | `ssntp.policy_put` | `objects`, `replace` (default false), `if_revision` | `changed`, `revision` |
//! | `ssntp.policy_delete` | `uris`, `if_revision` | `changed`, `revision` |
//! | `ssntp.policy_reload` | `objects`, `if_revision` | `changed`, `revision` |
//! | `ssntp.policy_status` | – | `revision`, `objects` |
//! | `ssntp.policy_dump` | `uri` (default all), `after` (a URI) | `objects`, `after`, `revision` |
//! | `ssntp.endpoint_dump` | `uri` (default all), `after` (a URI) | `endpoints`, `after`, `revision` |
//! | `ssntp.report_dump` | `uri` (default all), `after` (a number) | `reports`, `after`, `revision` |
//! | `ssntp.agents` | `after` (a name) | `agents`, `after`, `revision` |
//! | `ssntp.sessions` | – | `sessions` |
//!
//! The revision of policy is a number that grows with each change, also across restarts. A change
//! with `if_revision` is refused if policy has another revision.
//!
//! A change is answered when the updates for the elements that resolved the policy are in their
//! queues and, if policy is kept, the change is on the disk or in the engine.
//!
//! The lists with `after` are sent in parts, so that a long list does not delay clients of the
//! server. If `after` of an answer is not null, the same call with this `after` returns the next
//! part. A list may change between two parts; policy has not changed if all parts have the same
//! `revision`. Reports are in the order of their arrival.
//!
//! | file | contents |
//! |---|---|
//! | `client` | [`Control`], for programs that change policy |
//! | `answers` | the socket of the server, and the answers |

mod answers;
mod client;

use serde::{Deserialize, Serialize};

use crate::model::{ManagedObject, Name};

pub(super) use self::answers::start;
pub use self::client::{Control, ControlError};

const PUT: &str = "ssntp.policy_put";
const DELETE: &str = "ssntp.policy_delete";
const RELOAD: &str = "ssntp.policy_reload";
const STATUS: &str = "ssntp.policy_status";
const DUMP: &str = "ssntp.policy_dump";
const ENDPOINTS: &str = "ssntp.endpoint_dump";
const REPORTS: &str = "ssntp.report_dump";
const SESSIONS: &str = "ssntp.sessions";
const AGENTS: &str = "ssntp.agents";

/// The longest message on a control connection: a whole policy.
const MESSAGE: usize = 1 << 30;

/// An object of the endpoint registry.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct EndpointEntry {
    /// The object.
    pub object: ManagedObject,
    /// The element that declared it, if it is the topmost object of a declaration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub element: Option<Name>,
    /// The time until it is removed unless it is declared again, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_in: Option<f64>,
}
