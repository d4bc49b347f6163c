//! The control socket of a server.

use std::fmt;
use std::time::SystemTime;

use bytes::Bytes;
use log::error;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Value, json};

use super::super::editing::Editing;
use super::super::server_side::call as on_dispatcher;
use super::super::{LocalSocket, SERVER_LOG as LOG, ServerContext, StartError, local};
use super::{
    AGENTS, DELETE, DUMP, ENDPOINTS, EndpointEntry, MESSAGE, PUT, RELOAD, REPORTS, SESSIONS, STATUS,
};
use crate::message::{Custom, CustomResult, ErrorCode, ErrorResponse, Incoming, Request};
use crate::model::{Edit, ManagedObject, Name, Piece, Uri};
use crate::rpc::{Frame, Id, Limits};
use crate::server::Store;
use ssntp_transport::Acceptance;

/// The maximum number of control connections at a time.
const CONNECTIONS: usize = 64;

/// Listens at the socket, and answers programs that change policy or read the state of the server.
pub(in super::super) fn start(
    socket: &LocalSocket,
    editing: Editing,
    limits: Limits,
) -> Result<Acceptance, StartError> {
    // Only the server's own user can connect, so a policy of any size is accepted.
    let limits = Limits {
        message: limits.message.max(MESSAGE),
        memory: usize::MAX,
        ..limits
    };
    local::start(socket, "control", LOG, CONNECTIONS, move |newcomer| {
        local::receive(newcomer, limits, None, |message| {
            let frame = match message {
                Incoming::Request { id, request } => {
                    carry_out(&editing, &id, request).unwrap_or_else(|error| failure(&id, &error))
                }
                Incoming::Refused { id, error, .. } => failure(&id, &error),
                _ => return Ok(()),
            };
            local::write_all(newcomer, &frame)
        })
    })
}

/// Carries out a request of a control connection, and makes the answer. Blocks until an edit is made
/// and kept.
fn carry_out(editing: &Editing, id: &Id, request: Request) -> Result<Bytes, Box<ErrorResponse>> {
    let Request::Custom(mut calls) = request else {
        let what = "the control socket supports only the method custom";
        return Err(ErrorResponse::boxed(ErrorCode::EUNSUPPORTED, what));
    };
    let (Some(call), true) = (calls.pop(), calls.is_empty()) else {
        return Err(ErrorResponse::error("a request must have exactly one call"));
    };
    if matches!(call.method.as_str(), PUT | DELETE | RELOAD) {
        let (wanted, at) = edit(&call)?;
        let edited = editing.edit(wanted, at).map_err(ErrorResponse::error)?;
        // This call returns only after the updates of the edit are in the queues of clients.
        on_dispatcher(&editing.events, |_| ()).map_err(ErrorResponse::error)?;
        return Ok(reply(id, &call.method, edited));
    }
    answer(editing, id, &call)
}

/// The edit of a call, and the revision of policy for which it was made.
fn edit(call: &Custom) -> Result<(Edit, Option<u64>), Box<ErrorResponse>> {
    if call.method == DELETE {
        let Delete { uris, if_revision } = params(call)?;
        return Ok((Edit::Delete(uris), if_revision));
    }
    let put: Put = params(call)?;
    let edit = match call.method.as_str() {
        RELOAD => Edit::Reload(put.objects),
        _ if put.replace => Edit::Replace(put.objects),
        _ => Edit::Merge(put.objects),
    };
    Ok((edit, put.if_revision))
}

/// The answer with an error.
fn failure(id: &Id, error: &ErrorResponse) -> Bytes {
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

/// The parameters of a list: the topmost URI, and the last entry of the part before.
#[derive(Deserialize)]
struct Below<A> {
    #[serde(default = "Uri::root")]
    uri: Uri,
    after: Option<A>,
}

/// A part of a list.
#[derive(Serialize)]
struct Page<A> {
    #[serde(flatten)]
    entries: Entries,
    /// The last entry, if there may be further ones.
    after: Option<A>,
    /// The revision of policy at the time of this part.
    revision: u64,
}

#[derive(Serialize)]
#[serde(rename_all = "lowercase")]
enum Entries {
    Objects(Vec<ManagedObject>),
    Endpoints(Vec<EndpointEntry>),
    Reports(Vec<Box<RawValue>>),
    Agents(Vec<Value>),
    Sessions(Vec<Value>),
}

/// Answers a call that changes nothing. The dispatcher only copies what the answer has, because making
/// JSON of it takes longer.
fn answer(editing: &Editing, id: &Id, call: &Custom) -> Result<Bytes, Box<ErrorResponse>> {
    let method = call.method.as_str();
    Ok(match method {
        DUMP => {
            let Below { uri, after } = params(call)?;
            let (objects, after, revision) = part(editing, move |cx, piece| {
                let objects = cx.core().page(Store::Policy, uri, after, piece);
                let last = objects.last().map(|last| last.uri.clone());
                (objects, last)
            })?;
            page(id, method, Entries::Objects(objects), after, revision)
        }
        ENDPOINTS => {
            let Below { uri, after } = params(call)?;
            let (endpoints, after, revision) = part(editing, move |cx, piece| {
                let objects = cx.core().page(Store::Endpoints, uri, after, piece);
                let last = objects.last().map(|last| last.uri.clone());
                let endpoints = objects.into_iter().map(|object| entry(cx, object));
                (endpoints.collect(), last)
            })?;
            page(id, method, Entries::Endpoints(endpoints), after, revision)
        }
        REPORTS => {
            #[expect(clippy::disallowed_methods, reason = "reports are shown with the time of day")]
            let wall = SystemTime::now();
            let Below { uri, after } = params(call)?;
            let (reports, after, revision) = part(editing, move |cx, piece| {
                let mut last = None;
                let exported = cx.core().observer().export_after(after, &uri, cx.now(), wall);
                let texts = exported.filter_map(|(place, report)| Some((place, to_raw_value(&report).ok()?)));
                let texts = texts.take_while(|(_, text)| piece.add(text.get().len()));
                let texts = texts.inspect(|(place, _)| last = Some(*place));
                (texts.map(|(_, text)| text).collect(), last)
            })?;
            page(id, method, Entries::Reports(reports), after, revision)
        }
        STATUS => {
            let status = |cx: &mut ServerContext<'_>| (cx.core().policy_revision(), cx.core().policy().len());
            let (revision, objects) = on_dispatcher(&editing.events, status).map_err(ErrorResponse::error)?;
            reply(id, method, json!({ "revision": revision, "objects": objects }))
        }
        AGENTS => {
            let after: Option<Name> = params::<Below<Name>>(call)?.after;
            let (agents, after, revision) = part(editing, move |cx, piece| {
                let agents = cx.core().agents_after(after.as_ref(), Piece::ENTRIES, cx.now());
                let _ = agents.iter().all(|_| piece.add(0));
                let last = agents.last().map(|agent| agent.name.clone());
                (agents, last)
            })?;
            let agents = Entries::Agents(agents.iter().map(flat).collect());
            page(id, method, agents, after, revision)
        }
        SESSIONS => {
            let sessions = on_dispatcher(&editing.events, |cx| cx.core().sessions(cx.now()));
            let sessions = sessions.map_err(ErrorResponse::error)?;
            reply(id, method, Entries::Sessions(sessions.iter().map(flat).collect()))
        }
        other => {
            let what = format!("unknown method {other:.64?}");
            return Err(ErrorResponse::boxed(ErrorCode::EUNSUPPORTED, what));
        }
    })
}

/// Copies a part of a list on the dispatcher. `copy` returns the part and its last entry. The result has
/// this entry only if there may be further ones, and the revision of policy.
fn part<T: Send + 'static, A: Send + 'static>(
    editing: &Editing,
    copy: impl FnOnce(&ServerContext<'_>, &mut Piece) -> (T, Option<A>) + Send + 'static,
) -> Result<(T, Option<A>, u64), Box<ErrorResponse>> {
    let part = on_dispatcher(&editing.events, |cx| {
        let mut piece = Piece::of_a_call();
        let (part, last) = copy(cx, &mut piece);
        (
            part,
            last.filter(|_| piece.is_full()),
            cx.core().policy_revision(),
        )
    });
    part.map_err(ErrorResponse::error)
}

fn page(id: &Id, method: &str, entries: Entries, after: Option<impl Serialize>, revision: u64) -> Bytes {
    let page = Page {
        entries,
        after,
        revision,
    };
    reply(id, method, page)
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
    let method = method.to_owned();
    frame(Frame::result(id, &CustomResult { method, result }))
}

fn params<T: DeserializeOwned>(call: &Custom) -> Result<T, Box<ErrorResponse>> {
    T::deserialize(&call.params).map_err(ErrorResponse::error)
}

/// A [`SessionInfo`] or an [`AgentInfo`] in the form of the control socket: its counters are members
/// like the others, and two members have other names.
///
/// [`SessionInfo`]: crate::server::SessionInfo
/// [`AgentInfo`]: crate::server::AgentInfo
fn flat(info: &impl Serialize) -> Value {
    // Programs read these names, which are older than the types.
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
