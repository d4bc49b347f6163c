//! Changes of policy from other programs on the same host.
//!
//! The control socket speaks what OpFlex speaks, NUL included, with one
//! method: `custom`, as the inspector of libopflex has it. A client tells no
//! identity there, and sends and gets no echo. Inner methods:
//!
//! | method | params | result |
//! |---|---|---|
//! | `ssntp.policy_put` | `objects`, `replace` (default false) | `changed` |
//! | `ssntp.policy_delete` | `uris` | `changed` |
//! | `ssntp.policy_reload` | `objects` | `changed` |
//! | `ssntp.policy_dump` | `uri` (default all) | `objects` |
//! | `ssntp.endpoint_dump` | `uri` (default all) | `objects` |
//! | `ssntp.report_dump` | `uri` (default all) | `reports` |
//! | `ssntp.sessions` | – | `sessions` |
//! | `org.opendaylight.opflex.policy_query` | `subject`, `policy_uri`, `recursive` | `policy` |
//!
//! A change is answered when those who resolved the policy have been told and,
//! where policy is kept, it is on the disk.

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use log::error;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::server::LOG;
use super::{ServerContext, now};
use crate::opflex::message::{
    Custom, CustomResult, Decoder, ErrorCode, ErrorResponse, Incoming, Method, Reply, Request,
};
use crate::opflex::model::{ManagedObject, ObjectRef, Tree, Uri};
use crate::opflex::rpc::{Frame, Framing, Id, Limits};
use crate::transport::{BufferPool, Halves, Outgoing, connect_unix, plain};

const PUT: &str = "ssntp.policy_put";
const DELETE: &str = "ssntp.policy_delete";
const RELOAD: &str = "ssntp.policy_reload";
const DUMP: &str = "ssntp.policy_dump";
const ENDPOINTS: &str = "ssntp.endpoint_dump";
const REPORTS: &str = "ssntp.report_dump";
const SESSIONS: &str = "ssntp.sessions";
const QUERY: &str = "org.opendaylight.opflex.policy_query";

/// The longest message on a control connection: a whole policy.
const MESSAGE: usize = 1 << 30;

/// A connection to the control socket of a server.
///
/// # Threads
/// One thread owns it. Each call blocks until the answer is there, or for the
/// time that was given.
#[derive(Debug)]
pub struct Control {
    halves: Halves,
    decoder: Decoder,
    limit: Duration,
    last: u64,
}

impl Control {
    /// Connects to the socket at `path`. Every call may take `limit`.
    ///
    /// # Errors
    /// What the system says: no such file, nobody listens, no permission.
    pub fn connect(path: &Path, limit: Duration) -> io::Result<Self> {
        let stream = Arc::new(connect_unix(path)?);
        let limits = Limits {
            message: MESSAGE,
            ..Limits::default()
        };
        Ok(Self {
            halves: plain(stream, BufferPool::new()),
            decoder: Decoder::trusting(Framing::Nul, limits),
            limit,
            last: 0,
        })
    }

    /// Puts policy in; with `replace`, in place of everything below it. How
    /// many objects changed.
    ///
    /// # Errors
    /// [`ControlError`].
    pub fn put(&mut self, objects: &[ManagedObject], replace: bool) -> Result<u64, ControlError> {
        self.change(PUT, json!({ "objects": objects, "replace": replace }))
    }

    /// Removes policy with everything below it. How many objects went.
    ///
    /// # Errors
    /// [`ControlError`].
    pub fn delete(&mut self, uris: &[Uri]) -> Result<u64, ControlError> {
        self.change(DELETE, json!({ "uris": uris }))
    }

    /// Makes these objects all the policy there is. How many objects changed.
    ///
    /// # Errors
    /// [`ControlError`].
    pub fn reload(&mut self, objects: &[ManagedObject]) -> Result<u64, ControlError> {
        self.change(RELOAD, json!({ "objects": objects }))
    }

    /// The policy at and below a URI, parents first.
    ///
    /// # Errors
    /// [`ControlError`].
    pub fn dump(&mut self, uri: &Uri) -> Result<Vec<ManagedObject>, ControlError> {
        self.objects(DUMP, uri)
    }

    /// The endpoints at and below a URI, parents first.
    ///
    /// # Errors
    /// [`ControlError`].
    pub fn endpoints(&mut self, uri: &Uri) -> Result<Vec<ManagedObject>, ControlError> {
        self.objects(ENDPOINTS, uri)
    }

    /// The state reports at and below a URI as JSON, the oldest first.
    ///
    /// # Errors
    /// [`ControlError`].
    pub fn reports(&mut self, uri: &Uri) -> Result<Value, ControlError> {
        let mut result = self.call(REPORTS, json!({ "uri": uri }))?;
        Ok(result["reports"].take())
    }

    /// The clients of the server as JSON.
    ///
    /// # Errors
    /// [`ControlError`].
    pub fn sessions(&mut self) -> Result<Value, ControlError> {
        let mut result = self.call(SESSIONS, json!({}))?;
        Ok(result["sessions"].take())
    }

    fn change(&mut self, method: &str, params: Value) -> Result<u64, ControlError> {
        let result = self.call(method, params)?;
        result["changed"].as_u64().ok_or(ControlError::Answer)
    }

    fn objects(&mut self, method: &str, uri: &Uri) -> Result<Vec<ManagedObject>, ControlError> {
        let mut result = self.call(method, json!({ "uri": uri }))?;
        serde_json::from_value(result["objects"].take()).map_err(|_| ControlError::Answer)
    }

    /// Any inner method.
    ///
    /// # Errors
    /// [`ControlError`].
    pub fn call(&mut self, method: &str, params: Value) -> Result<Value, ControlError> {
        self.last += 1;
        let id = Id::call(Method::Custom.name(), self.last);
        let custom = Custom {
            method: method.to_owned(),
            params,
        };
        let frame = Request::Custom(vec![custom])
            .to_frame(&id)
            .map_err(|e| ControlError::Io(io::Error::other(e)))?;
        let deadline = now() + self.limit;
        self.halves.stream.set_write_timeout(Some(self.limit))?;
        self.halves.transmit.transmit(&[Outgoing::whole(frame, 1)])?;
        self.halves.transmit.idle();
        self.answer(&id, deadline)
    }

    fn answer(&mut self, id: &Id, deadline: Instant) -> Result<Value, ControlError> {
        let mut messages = Vec::new();
        loop {
            self.decoder
                .decode(self.halves.inbox.bytes_mut(), &mut messages)
                .map_err(|_| ControlError::Answer)?;
            for message in messages.drain(..) {
                match message {
                    Incoming::Result {
                        id: answered,
                        reply: Reply::Custom(CustomResult { result, .. }),
                    } if answered == *id => return Ok(result),
                    Incoming::Failure {
                        id: answered, error, ..
                    } if answered == *id => return Err(ControlError::Refused(Box::new(error))),
                    _ => {}
                }
            }
            let left = deadline.saturating_duration_since(now());
            if left.is_zero() {
                return Err(ControlError::Io(io::ErrorKind::TimedOut.into()));
            }
            self.halves.stream.set_read_timeout(Some(left))?;
            if self.halves.receive.receive(&mut self.halves.inbox)?.end {
                return Err(ControlError::Io(io::ErrorKind::UnexpectedEof.into()));
            }
        }
    }
}

/// Why a call had no result.
#[derive(Debug)]
#[non_exhaustive]
pub enum ControlError {
    /// The connection failed, or the answer did not come in time.
    Io(io::Error),
    /// The server did not do it.
    Refused(Box<ErrorResponse>),
    /// The answer is not what the method asks for: another program is there.
    Answer,
}

impl fmt::Display for ControlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(e) if matches!(e.kind(), io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock) => {
                f.write_str("the server does not answer")
            }
            Self::Io(e) if e.kind() == io::ErrorKind::UnexpectedEof => {
                f.write_str("the server closed the connection")
            }
            Self::Io(e) => e.fmt(f),
            Self::Refused(error) => write!(f, "the server refused: {error}"),
            Self::Answer => f.write_str("what answers is no control socket of an OpFlex server"),
        }
    }
}

impl std::error::Error for ControlError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io(e) => Some(e),
            Self::Refused(_) | Self::Answer => None,
        }
    }
}

impl From<io::Error> for ControlError {
    fn from(e: io::Error) -> Self {
        Self::Io(e)
    }
}

/// Carries out what came on a control connection, and makes the answer.
pub(super) fn carry_out(cx: &mut ServerContext<'_>, id: &Id, request: Request) -> Bytes {
    let Request::Custom(calls) = request else {
        let error = ErrorResponse::new(ErrorCode::EUNSUPPORTED, "the control socket takes custom only");
        return failure(id, &error);
    };
    let [call] = &calls[..] else {
        return failure(id, &ErrorResponse::new(ErrorCode::ERROR, "one call at a time"));
    };
    match result(cx, call) {
        Ok(result) => {
            let method = call.method.clone();
            frame(Frame::result(id, &CustomResult { method, result }))
        }
        Err(error) => failure(id, &error),
    }
}

/// The answer to a change that was made and could not be kept.
pub(super) fn unsaved(id: &Id) -> Bytes {
    let what = "policy is changed, but could not be written to its file";
    failure(id, &ErrorResponse::new(ErrorCode::ERROR, what))
}

/// An error as an answer.
pub(super) fn failure(id: &Id, error: &ErrorResponse) -> Bytes {
    frame(Frame::failure(id, error))
}

fn frame(frame: Result<Bytes, impl fmt::Display>) -> Bytes {
    frame.unwrap_or_else(|e| {
        error!(target: LOG, "an answer on the control socket was not sent: {e}");
        Bytes::new()
    })
}

fn default_uri() -> Uri {
    Uri::root()
}

#[derive(Deserialize)]
struct Put {
    objects: Vec<ManagedObject>,
    #[serde(default)]
    replace: bool,
}

#[derive(Deserialize)]
struct Delete {
    uris: Vec<Uri>,
}

#[derive(Deserialize)]
struct Below {
    #[serde(default = "default_uri")]
    uri: Uri,
}

#[derive(Deserialize)]
struct Query {
    subject: String,
    policy_uri: Option<Uri>,
    #[serde(default)]
    recursive: bool,
}

fn result(cx: &mut ServerContext<'_>, call: &Custom) -> Result<Value, Box<ErrorResponse>> {
    let changed = |changes: usize| json!({ "changed": changes });
    Ok(match call.method.as_str() {
        PUT => {
            let put: Put = params(call)?;
            let changes = if put.replace {
                cx.replace_policy(put.objects)
            } else {
                cx.merge_policy(put.objects)
            };
            changed(changes.map_err(refused)?.len())
        }
        DELETE => changed(cx.delete_policy(&params::<Delete>(call)?.uris).len()),
        RELOAD => {
            let put: Put = params(call)?;
            changed(cx.reload_policy(put.objects).map_err(refused)?.len())
        }
        DUMP => json!({ "objects": below(cx.core().policy(), &params::<Below>(call)?.uri) }),
        ENDPOINTS => json!({ "objects": below(cx.core().endpoints(), &params::<Below>(call)?.uri) }),
        REPORTS => {
            #[expect(clippy::disallowed_methods, reason = "reports are shown with the time of day")]
            let wall = SystemTime::now();
            let uri = params::<Below>(call)?.uri;
            let reports: Vec<_> = cx.core().observer().export(&uri, cx.now(), wall).collect();
            json!({ "reports": reports })
        }
        SESSIONS => json!({ "sessions": sessions(cx) }),
        QUERY => {
            let query: Query = params(call)?;
            json!({ "policy": found(cx.core().policy(), &query) })
        }
        other => {
            let what = format!("unknown method {other:.64?}");
            return Err(Box::new(ErrorResponse::new(ErrorCode::EUNSUPPORTED, what)));
        }
    })
}

fn params<T: DeserializeOwned>(call: &Custom) -> Result<T, Box<ErrorResponse>> {
    T::deserialize(&call.params).map_err(refused)
}

fn refused(why: impl fmt::Display) -> Box<ErrorResponse> {
    Box::new(ErrorResponse::new(ErrorCode::ERROR, why))
}

fn below(tree: &Tree, uri: &Uri) -> Vec<ManagedObject> {
    if uri.is_root() {
        return tree.to_objects();
    }
    tree.subtree(uri).map(|object| object.to_object()).collect()
}

fn found(tree: &Tree, query: &Query) -> Vec<ManagedObject> {
    let roots: Vec<ObjectRef<'_>> = match &query.policy_uri {
        Some(uri) => tree
            .get(uri)
            .filter(|object| object.subject().as_str() == query.subject)
            .into_iter()
            .collect(),
        None => tree.class(&query.subject).collect(),
    };
    if query.recursive {
        let below = roots.into_iter().flat_map(|root| tree.subtree(root.uri()));
        below.map(|object| object.to_object()).collect()
    } else {
        roots.into_iter().map(|object| object.to_object()).collect()
    }
}

fn sessions(cx: &ServerContext<'_>) -> Vec<Value> {
    let show = |session: crate::opflex::server::SessionInfo| {
        json!({
            "connection": session.connection.0,
            "name": session.name,
            "roles": session.roles,
            "location": session.location,
            "seconds": cx.now().saturating_duration_since(session.since).as_secs(),
            "policies": session.policies,
            "endpoint_resolves": session.endpoint_resolves,
            "endpoints": session.endpoints,
        })
    };
    cx.core().sessions().into_iter().map(show).collect()
}
