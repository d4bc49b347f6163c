//! Changes of policy from other programs on the same host.
//!
//! The control socket speaks what OpFlex speaks, NUL included, with one
//! method: `custom`, as the inspector of libopflex has it. A client tells no
//! identity there, and sends and gets no echo. Inner methods:
//!
//! | method | params | result |
//! |---|---|---|
//! | `ssntp.policy_put` | `objects`, `replace` (default false), `if_revision` | `changed`, `revision` |
//! | `ssntp.policy_delete` | `uris`, `if_revision` | `changed`, `revision` |
//! | `ssntp.policy_reload` | `objects`, `if_revision` | `changed`, `revision` |
//! | `ssntp.policy_status` | – | `revision`, `objects` |
//! | `ssntp.policy_dump` | `uri` (default all) | `objects`, `more` |
//! | `ssntp.endpoint_dump` | `uri` (default all) | `endpoints`, `more` |
//! | `ssntp.dump_more` | – | as the dump that it goes on with |
//! | `ssntp.report_dump` | `uri` (default all), `after` (default none) | `reports`, `after` |
//! | `ssntp.sessions` | – | `sessions` |
//! | `ssntp.agents` | `after` (a name, default none) | `agents`, `after` |
//! | `org.opendaylight.opflex.policy_query` | `subject`, `policy_uri`, `recursive` | `policy` |
//!
//! The revision of policy is a number that grows with each change, over restarts
//! too. A change with `if_revision` is refused where policy has another one.
//!
//! A change is answered when those who resolved the policy have been told and,
//! where policy is kept, it is on the disk.
//!
//! A dump comes in pieces, so that a large one holds up no client of the
//! server, and shows the tree as it was at the first one: while `more` is true,
//! `ssntp.dump_more` brings the next piece, which may be empty. A connection
//! has one dump at a time. Reports come in the order of their arrival; while
//! there is an `after`, there may be more behind it.

use std::collections::HashSet;
use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use log::error;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::editing::{self, Edited};
use super::inspector::{QUERY, Query};
use super::serving::ServingEvents;
use super::{SERVER_LOG as LOG, ServerContext, keeper, now};
use crate::message::{
    Custom, CustomResult, Decoder, ErrorCode, ErrorResponse, Incoming, Method, Reply, Request,
};
use crate::model::{Edit, ManagedObject, Name, ObjectRef, Tree, Uri};
use crate::rpc::{Frame, Framing, Id, Limits};
use crate::server::{Exported, Store, WalkId};
use ssntp_transport::{BufferPool, Halves, Outgoing, connect_unix, plain};

const PUT: &str = "ssntp.policy_put";
const DELETE: &str = "ssntp.policy_delete";
const RELOAD: &str = "ssntp.policy_reload";
const STATUS: &str = "ssntp.policy_status";
const DUMP: &str = "ssntp.policy_dump";
const ENDPOINTS: &str = "ssntp.endpoint_dump";
const REPORTS: &str = "ssntp.report_dump";
const MORE: &str = "ssntp.dump_more";
const SESSIONS: &str = "ssntp.sessions";
const AGENTS: &str = "ssntp.agents";

/// Objects in one piece of a dump.
const PIECE: usize = 500;
/// The most objects that a query of libopflex's kind is answered with.
const QUERIED: usize = 10_000;

/// The longest message on a control connection: a whole policy.
pub(super) const MESSAGE: usize = 1 << 30;

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
    if_revision: Option<u64>,
    revision: Option<u64>,
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
            if_revision: None,
            revision: None,
        })
    }

    /// Changes policy from now on only where it has this revision; with `None`,
    /// whatever it has, as in the beginning. Otherwise the change is
    /// [`ControlError::Refused`].
    pub fn only_at(&mut self, revision: Option<u64>) {
        self.if_revision = revision;
    }

    /// The revision of policy that the last change over this connection made, or
    /// that [`status`](Self::status) found.
    pub fn revision(&self) -> Option<u64> {
        self.revision
    }

    /// The revision of policy, and of how many objects it is.
    ///
    /// # Errors
    /// [`ControlError`].
    pub fn status(&mut self) -> Result<(u64, u64), ControlError> {
        let result = self.call(STATUS, json!({}))?;
        self.revision = result["revision"].as_u64();
        let both = self.revision.zip(result["objects"].as_u64());
        both.ok_or(ControlError::Answer)
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

    /// The policy at and below a URI, parents first, as it is when the call
    /// begins.
    ///
    /// # Errors
    /// [`ControlError`].
    pub fn dump(&mut self, uri: &Uri) -> Result<Vec<ManagedObject>, ControlError> {
        self.pieces(DUMP, uri, "objects")
    }

    /// The endpoints at and below a URI, parents first, as they are when the
    /// call begins.
    ///
    /// # Errors
    /// [`ControlError`].
    pub fn endpoints(&mut self, uri: &Uri) -> Result<Vec<EndpointEntry>, ControlError> {
        self.pieces(ENDPOINTS, uri, "endpoints")
    }

    /// The last state report of each object at and below a URI as JSON, in the
    /// order of their arrival: [`Exported`] with its member names.
    ///
    /// # Errors
    /// [`ControlError`].
    pub fn reports(&mut self, uri: &Uri) -> Result<Vec<Value>, ControlError> {
        let mut all: Vec<Value> = Vec::new();
        let mut after = Value::Null;
        loop {
            let mut result = self.call(REPORTS, json!({ "uri": uri, "after": after }))?;
            match result["reports"].take() {
                Value::Array(reports) => all.extend(reports),
                _ => return Err(ControlError::Answer),
            }
            after = result["after"].take();
            if after.is_null() {
                break;
            }
        }
        // One that arrived again meanwhile is there twice.
        let mut seen = HashSet::new();
        all.reverse();
        all.retain(|report| {
            report["object"]["uri"]
                .as_str()
                .is_some_and(|uri| seen.insert(uri.to_owned()))
        });
        all.reverse();
        Ok(all)
    }

    /// The clients of the server as JSON, in the order in which they connected.
    ///
    /// # Errors
    /// [`ControlError`].
    pub fn sessions(&mut self) -> Result<Vec<Value>, ControlError> {
        let mut result = self.call(SESSIONS, json!({}))?;
        serde_json::from_value(result["sessions"].take()).map_err(|_| ControlError::Answer)
    }

    /// The agents that told a name since the server began, those that have left
    /// included, as JSON, in the order of their names.
    ///
    /// # Errors
    /// [`ControlError`].
    pub fn agents(&mut self) -> Result<Vec<Value>, ControlError> {
        let mut all: Vec<Value> = Vec::new();
        let mut after = Value::Null;
        loop {
            let mut result = self.call(AGENTS, json!({ "after": after }))?;
            match result["agents"].take() {
                Value::Array(agents) => all.extend(agents),
                _ => return Err(ControlError::Answer),
            }
            after = result["after"].take();
            if after.is_null() {
                return Ok(all);
            }
        }
    }

    fn pieces<T: DeserializeOwned>(
        &mut self,
        method: &str,
        uri: &Uri,
        member: &str,
    ) -> Result<Vec<T>, ControlError> {
        let mut all = Vec::new();
        let mut result = self.call(method, json!({ "uri": uri }))?;
        loop {
            let piece: Vec<T> =
                serde_json::from_value(result[member].take()).map_err(|_| ControlError::Answer)?;
            all.extend(piece);
            if result["more"] != true {
                return Ok(all);
            }
            result = self.call(MORE, json!({}))?;
        }
    }

    fn change(&mut self, method: &str, mut params: Value) -> Result<u64, ControlError> {
        if let Some(revision) = self.if_revision {
            params["if_revision"] = revision.into();
        }
        let result = self.call(method, params)?;
        self.revision = result["revision"].as_u64();
        result["changed"].as_u64().ok_or(ControlError::Answer)
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
        if frame.len() > MESSAGE {
            let what = format!("{} bytes at once; {MESSAGE} are taken", frame.len());
            return Err(ControlError::Io(io::Error::new(
                io::ErrorKind::InvalidInput,
                what,
            )));
        }
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

/// An object of the endpoint registry.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct EndpointEntry {
    /// The object.
    pub object: ManagedObject,
    /// The element that declared it, where it is the topmost object of a
    /// declaration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub element: Option<Name>,
    /// In how many seconds it is removed, unless it is declared again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_in: Option<f64>,
}

/// What is answered on a control connection.
pub(super) enum Answer {
    /// This, at once.
    Now(Bytes),
    /// What comes of an edit.
    Later(PolicyEdit),
}

/// An edit of policy that somebody on a control connection waits for.
pub(super) struct PolicyEdit {
    id: Id,
    call: Custom,
}

impl PolicyEdit {
    /// Makes the edit and the answer. Blocks until the edit is kept.
    pub(super) fn make(self, events: &ServingEvents, keeper: Option<&keeper::Ask>) -> Bytes {
        let edited = self
            .read()
            .and_then(|(edit, at)| editing::edit(events, keeper, edit, at).map_err(refused));
        match edited {
            Ok(Edited { changed, revision }) => {
                let result = json!({ "changed": changed, "revision": revision });
                reply(&self.id, &self.call.method, result)
            }
            Err(error) => failure(&self.id, &error),
        }
    }

    /// The answer when there is no room for it.
    pub(super) fn busy(&self) -> Bytes {
        failure(&self.id, &refused("busy: too many edits wait"))
    }

    /// The edit, and the revision that it is for.
    fn read(&self) -> Result<(Edit, Option<u64>), Box<ErrorResponse>> {
        if self.call.method == DELETE {
            let Delete { uris, if_revision } = params(&self.call)?;
            return Ok((Edit::Delete(uris), if_revision));
        }
        let put: Put = params(&self.call)?;
        let edit = match self.call.method.as_str() {
            RELOAD => Edit::Reload(put.objects),
            _ if put.replace => Edit::Replace(put.objects),
            _ => Edit::Merge(put.objects),
        };
        Ok((edit, put.if_revision))
    }
}

/// Carries out what came on a control connection, and makes the answer. `walk`
/// is the dump that the connection has begun.
pub(super) fn carry_out(
    cx: &mut ServerContext<'_>,
    walk: &mut Option<WalkId>,
    id: Id,
    request: Request,
) -> Answer {
    let Request::Custom(mut calls) = request else {
        let error = ErrorResponse::new(ErrorCode::EUNSUPPORTED, "the control socket takes custom only");
        return Answer::Now(failure(&id, &error));
    };
    let (Some(call), true) = (calls.pop(), calls.is_empty()) else {
        let error = ErrorResponse::new(ErrorCode::ERROR, "one call at a time");
        return Answer::Now(failure(&id, &error));
    };
    if matches!(call.method.as_str(), PUT | DELETE | RELOAD) {
        return Answer::Later(PolicyEdit { id, call });
    }
    Answer::Now(answer(cx, walk, &id, &call).unwrap_or_else(|error| failure(&id, &error)))
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
    if_revision: Option<u64>,
}

#[derive(Deserialize)]
struct Delete {
    uris: Vec<Uri>,
    if_revision: Option<u64>,
}

#[derive(Deserialize)]
struct Below {
    #[serde(default = "default_uri")]
    uri: Uri,
    #[serde(default)]
    after: Option<u64>,
}

#[derive(Deserialize)]
struct After {
    #[serde(default)]
    after: Option<Name>,
}

#[derive(Serialize)]
struct Wire<'a, T> {
    method: &'a str,
    result: T,
}

fn answer(
    cx: &mut ServerContext<'_>,
    walk: &mut Option<WalkId>,
    id: &Id,
    call: &Custom,
) -> Result<Bytes, Box<ErrorResponse>> {
    let method = call.method.as_str();
    Ok(match method {
        DUMP | ENDPOINTS => {
            let store = if method == DUMP {
                Store::Policy
            } else {
                Store::Endpoints
            };
            let uri = params::<Below>(call)?.uri;
            if let Some(old) = walk.replace(cx.begin_walk(store, uri)) {
                cx.end_walk(old);
            }
            piece(cx, walk, id, method)
        }
        MORE => piece(cx, walk, id, method),
        REPORTS => {
            #[expect(clippy::disallowed_methods, reason = "reports are shown with the time of day")]
            let wall = SystemTime::now();
            let Below { uri, after } = params(call)?;
            let exported = cx.core().observer().export_after(after, &uri, cx.now(), wall);
            let (places, reports): (Vec<u64>, Vec<_>) = exported.take(PIECE).unzip();
            let after = places.last().filter(|_| places.len() == PIECE);
            reply(id, method, ReportPiece { reports, after })
        }
        STATUS => {
            let core = cx.core();
            let status = json!({ "revision": core.policy_revision(), "objects": core.policy().len() });
            reply(id, method, status)
        }
        AGENTS => {
            let after = params::<After>(call)?.after;
            let found = cx.core().agents_after(after.as_ref(), PIECE, cx.now());
            let after = found.last().filter(|_| found.len() == PIECE);
            let after = after.map(|agent| agent.name.clone());
            let agents: Vec<Value> = found.iter().map(flat).collect();
            reply(id, method, json!({ "agents": agents, "after": after }))
        }
        SESSIONS => {
            let sessions: Vec<Value> = cx.core().sessions(cx.now()).iter().map(flat).collect();
            reply(id, method, json!({ "sessions": sessions }))
        }
        QUERY => {
            let policy = found(cx.core().policy(), &Query::all(call)?)?;
            reply(id, method, json!({ "policy": policy }))
        }
        other => {
            let what = format!("unknown method {other:.64?}");
            return Err(Box::new(ErrorResponse::new(ErrorCode::EUNSUPPORTED, what)));
        }
    })
}

#[derive(Serialize)]
struct ReportPiece<'a> {
    reports: Vec<Exported<'a>>,
    after: Option<&'a u64>,
}

#[derive(Default, Serialize)]
struct Piece {
    #[serde(skip_serializing_if = "Option::is_none")]
    objects: Option<Vec<ManagedObject>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    endpoints: Option<Vec<EndpointEntry>>,
    more: bool,
}

/// The next piece of a dump.
fn piece(cx: &mut ServerContext<'_>, walk: &mut Option<WalkId>, id: &Id, method: &str) -> Bytes {
    let next = walk.and_then(|walk| cx.walk(walk, PIECE));
    let result = match next {
        Some((Store::Policy, objects)) => Piece {
            objects: Some(objects),
            more: true,
            ..Piece::default()
        },
        Some((Store::Endpoints, objects)) => Piece {
            endpoints: Some(objects.into_iter().map(|object| entry(cx, object)).collect()),
            more: true,
            ..Piece::default()
        },
        None => {
            *walk = None;
            Piece {
                objects: Some(Vec::new()),
                endpoints: Some(Vec::new()),
                more: false,
            }
        }
    };
    reply(id, method, result)
}

fn entry(cx: &ServerContext<'_>, object: ManagedObject) -> EndpointEntry {
    let declared = cx.core().declaration(&object.uri);
    let expires = declared.as_ref().and_then(|declared| declared.expires);
    EndpointEntry {
        object,
        element: declared.map(|declared| declared.element),
        expires_in: expires.map(|at| at.saturating_duration_since(cx.now()).as_secs_f64()),
    }
}

fn reply(id: &Id, method: &str, result: impl Serialize) -> Bytes {
    frame(Frame::result(id, &Wire { method, result }))
}

fn params<T: DeserializeOwned>(call: &Custom) -> Result<T, Box<ErrorResponse>> {
    T::deserialize(&call.params).map_err(refused)
}

fn refused(why: impl fmt::Display) -> Box<ErrorResponse> {
    Box::new(ErrorResponse::new(ErrorCode::ERROR, why))
}

fn found(tree: &Tree, queries: &[Query]) -> Result<Vec<ManagedObject>, Box<ErrorResponse>> {
    let mut found = Vec::new();
    for query in queries {
        let roots: Vec<ObjectRef<'_>> = match &query.policy_uri {
            Some(uri) => tree
                .get(uri)
                .filter(|object| *object.subject() == query.subject)
                .into_iter()
                .collect(),
            None => tree.class(&query.subject).take(QUERIED + 1).collect(),
        };
        let below = roots.iter().flat_map(|root| {
            let most = if query.recursive { usize::MAX } else { 1 };
            tree.subtree(root.uri()).take(most)
        });
        let room = QUERIED + 1 - found.len();
        found.extend(below.take(room).map(|object| object.to_object()));
        if found.len() > QUERIED {
            return Err(refused(format_args!("more than {QUERIED} objects: take {DUMP}")));
        }
    }
    Ok(found)
}

/// What [`SessionInfo`] or [`AgentInfo`] says, as the control socket has it: its
/// counters stand beside the other members, and two of these have other names.
///
/// [`SessionInfo`]: crate::server::SessionInfo
/// [`AgentInfo`]: crate::server::AgentInfo
fn flat(info: &impl Serialize) -> Value {
    let Ok(Value::Object(mut members)) = serde_json::to_value(info) else {
        return Value::Null;
    };
    if let Some(Value::Object(counters)) = members.remove("counters") {
        members.extend(counters);
    }
    for (ours, theirs) in [("session", "connection"), ("role", "roles")] {
        members
            .remove(ours)
            .map(|value| members.insert(theirs.to_owned(), value));
    }
    members.into()
}
