//! What the server answers on its control connections.

use std::fmt;
use std::time::SystemTime;

use bytes::Bytes;
use log::error;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::super::query::{QUERY, Query};
use super::super::{SERVER_LOG as LOG, ServerContext};
use super::{
    AGENTS, DELETE, DUMP, ENDPOINTS, Edited, EndpointEntry, MORE, PUT, RELOAD, REPORTS, SESSIONS, STATUS,
};
use crate::message::{Custom, ErrorCode, ErrorResponse, Request};
use crate::model::{Edit, ManagedObject, Name, ObjectRef, Tree, Uri};
use crate::rpc::{Frame, Id};
use crate::server::{Exported, Store, WalkId};

/// Objects in one piece of a dump.
const PIECE: usize = 500;
/// The most objects that a query of libopflex's kind is answered with.
const QUERIED: usize = 10_000;

/// What is answered on a control connection.
pub(in super::super) enum Answer {
    /// This, at once.
    Now(Bytes),
    /// What comes of an edit.
    Later(PolicyEdit),
}

/// An edit of policy that somebody on a control connection waits for.
pub(in super::super) struct PolicyEdit {
    id: Id,
    call: Custom,
}

impl PolicyEdit {
    /// What came of the edit, as an answer.
    pub(in super::super) fn answer(&self, edited: Result<Edited, Box<ErrorResponse>>) -> Bytes {
        match edited {
            Ok(edited) => reply(&self.id, &self.call.method, edited),
            Err(error) => failure(&self.id, &error),
        }
    }

    /// The answer when there is no room for it.
    pub(in super::super) fn busy(&self) -> Bytes {
        failure(&self.id, &ErrorResponse::error("busy: too many edits wait"))
    }

    /// The edit, and the revision of policy that it is for.
    pub(in super::super) fn edit(&self) -> Result<(Edit, Option<u64>), Box<ErrorResponse>> {
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
pub(in super::super) fn carry_out(
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
    // Edits may be large and wait for the disk, so another thread makes them.
    if matches!(call.method.as_str(), PUT | DELETE | RELOAD) {
        return Answer::Later(PolicyEdit { id, call });
    }
    Answer::Now(answer(cx, walk, &id, &call).unwrap_or_else(|error| failure(&id, &error)))
}

/// An error as an answer.
pub(in super::super) fn failure(id: &Id, error: &ErrorResponse) -> Bytes {
    frame(Frame::failure(id, error))
}

fn frame(frame: Result<Bytes, impl fmt::Display>) -> Bytes {
    frame.unwrap_or_else(|e| {
        error!(target: LOG, "an answer on the control socket was not sent: {e}");
        Bytes::new()
    })
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
    #[serde(default = "Uri::root")]
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
            // A walk that nobody takes to its end would be told of every edit for ever.
            if let Some(old) = walk.replace(cx.core.begin_walk(store, uri)) {
                cx.core.end_walk(old);
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
            // A piece that is not full is the last one.
            let after = places.last().filter(|_| places.len() == PIECE);
            reply(id, method, ReportPiece { reports, after })
        }
        STATUS => {
            let core = cx.core();
            let (revision, objects) = (core.policy_revision(), core.policy().len());
            reply(id, method, json!({ "revision": revision, "objects": objects }))
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
            return Err(ErrorResponse::boxed(ErrorCode::EUNSUPPORTED, what));
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
    let next = walk.and_then(|walk| cx.core.walk(walk, PIECE));
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
            // The connection may begin another dump.
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
    T::deserialize(&call.params).map_err(ErrorResponse::error)
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
        // The answer is one message, and the dispatcher makes it in one go.
        if found.len() > QUERIED {
            return Err(ErrorResponse::error(format_args!(
                "more than {QUERIED} objects: take {DUMP}"
            )));
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
    // The names are those of before the counters had a type of their own; programs read them.
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
