//! The control socket of a server.

use std::collections::BTreeMap;
use std::time::Instant;

use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::super::config::{CallError, LocalSocket, SERVER_LOG as LOG, StartError};
use super::super::handle::ServerHandle;
use super::super::local;
use super::{
    AGENTS, DELETE, DUMP, ENDPOINTS, EndpointEntry, MESSAGE, PUT, RELOAD, REPORTS, SESSIONS, STATUS,
};
use crate::message::{Custom, CustomResult, ErrorCode, ErrorResponse, Incoming, Request};
use crate::model::{Edit, ManagedObject, Name, ObjectRef, Piece, Uri};
use crate::rpc::{Frame, Id, Limits};
use crate::server::{ServerCore, Store};
use ssntp_transport::{Acceptance, wall_clock};

/// The maximum number of control connections at a time.
const CONNECTIONS: usize = 64;

/// Listens at the socket, and answers programs that change policy or read the state of the server.
pub(in super::super) fn start(
    socket: &LocalSocket,
    server: ServerHandle,
    limits: Limits,
) -> Result<Acceptance, StartError> {
    // Only the server's own user can connect, so a policy may take any memory.
    let limits = Limits {
        message: limits.message.max(MESSAGE),
        memory: usize::MAX,
        ..limits
    };
    local::start(socket, "control", LOG, CONNECTIONS, move |newcomer| {
        local::receive(newcomer, limits, None, |message| {
            let frame = match message {
                Incoming::Request { id, request } => {
                    carry_out(&server, &id, request).unwrap_or_else(|error| Frame::failure(&id, &error))
                }
                Incoming::Refused { id, error, .. } => Frame::failure(&id, &error),
                _ => return Ok(()),
            };
            local::write_all(newcomer, &frame)
        })
    })
}

/// Carries out a request on the thread of its control connection, and makes the answer. Blocks until an edit
/// is made and kept, or until the dispatcher has answered.
fn carry_out(server: &ServerHandle, id: &Id, request: Request) -> Result<Bytes, Box<ErrorResponse>> {
    let Request::Custom(mut calls) = request else {
        let what = "the control socket supports only the method custom";
        return Err(ErrorResponse::boxed(ErrorCode::EUNSUPPORTED, what));
    };
    let (Some(call), true) = (calls.pop(), calls.is_empty()) else {
        return Err(ErrorResponse::error("a request must have exactly one call"));
    };
    if matches!(call.method.as_str(), PUT | DELETE | RELOAD) {
        let (wanted, at) = edit(&call)?;
        let edited = server.edit_at(wanted, at).map_err(edit_error)?;
        // This call returns only after the updates of the edit are in the queues of clients.
        server.with(|_, _| ()).map_err(edit_error)?;
        return Ok(reply(id, &call.method, edited));
    }
    if call.method == SESSIONS {
        // The JSON is made here and not on the dispatcher, because this list is not sent in parts.
        let sessions = server.sessions().map_err(ErrorResponse::error)?;
        return Ok(reply(id, &call.method, json!({ "sessions": sessions })));
    }
    let id = id.clone();
    server
        .with(move |core, now| answer(core, now, &id, &call))
        .map_err(ErrorResponse::error)?
}

/// The error of an edit, which says so if the edit may have been made.
fn edit_error(why: CallError) -> Box<ErrorResponse> {
    let is_unknown = match &why {
        CallError::Engine(why) => why.is_unknown(),
        why => matches!(why, CallError::Stopped),
    };
    if is_unknown {
        // This comes first, because readers cut long messages.
        ErrorResponse::error(format_args!("the change may have been made: {why}"))
    } else {
        ErrorResponse::error(why)
    }
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
struct Page<E, A> {
    /// The entries, below the name of the list.
    #[serde(flatten)]
    entries: BTreeMap<&'static str, Vec<E>>,
    /// The last entry, if there may be further ones.
    after: Option<A>,
    /// The revision of policy at the time of this part.
    revision: u64,
}

/// Answers a question, on the dispatcher. Of a list, the answer has the part that fits into one call.
fn answer(core: &ServerCore, now: Instant, id: &Id, call: &Custom) -> Result<Bytes, Box<ErrorResponse>> {
    let method = call.method.as_str();
    Ok(match method {
        DUMP => {
            let (objects, after) = part(core, Store::Policy, params(call)?);
            page(core, id, method, "objects", objects, after)
        }
        ENDPOINTS => {
            let (objects, after) = part(core, Store::Endpoints, params(call)?);
            let entries = objects.into_iter().map(|object| entry(core, now, object));
            page(core, id, method, "endpoints", entries.collect(), after)
        }
        REPORTS => {
            let Below { uri, after } = params(call)?;
            let mut piece = Piece::of_a_call();
            let exported = core.observer().export_after(after, &uri, now, wall_clock());
            let exported = exported.take_while(|(_, report)| piece.add(report.object.memory()));
            let (places, reports): (Vec<u64>, Vec<_>) = exported.unzip();
            let last = places.last().filter(|_| piece.is_full());
            page(core, id, method, "reports", reports, last)
        }
        STATUS => {
            let (revision, objects) = (core.policy_revision(), core.policy().len());
            reply(id, method, json!({ "revision": revision, "objects": objects }))
        }
        AGENTS => {
            let after: Option<Name> = params::<Below<Name>>(call)?.after;
            let agents = core.agents_after(after.as_ref(), Piece::ENTRIES, now);
            let after = agents.get(Piece::ENTRIES - 1).map(|agent| agent.name.clone());
            page(core, id, method, "agents", agents, after)
        }
        other => {
            let what = format!("unknown method {other:.64?}");
            return Err(ErrorResponse::boxed(ErrorCode::EUNSUPPORTED, what));
        }
    })
}

/// A part of a tree, and its last URI if there may be further objects.
fn part(
    core: &ServerCore,
    store: Store,
    Below { uri, after }: Below<Uri>,
) -> (Vec<ObjectRef<'_>>, Option<Uri>) {
    let mut piece = Piece::of_a_call();
    let objects = core.page(store, uri, after, &mut piece);
    let last = objects.last().filter(|_| piece.is_full());
    let after = last.map(|last| last.uri().clone());
    (objects, after)
}

fn page(
    core: &ServerCore,
    id: &Id,
    method: &str,
    list: &'static str,
    entries: Vec<impl Serialize>,
    after: Option<impl Serialize>,
) -> Bytes {
    let page = Page {
        entries: BTreeMap::from([(list, entries)]),
        after,
        revision: core.policy_revision(),
    };
    reply(id, method, page)
}

fn entry(core: &ServerCore, now: Instant, object: ObjectRef<'_>) -> EndpointEntry {
    let declared = core.declaration(object.uri());
    let expires = declared.as_ref().and_then(|declared| declared.expires);
    EndpointEntry {
        object: object.to_object(),
        element: declared.map(|declared| declared.element),
        expires_in: expires.map(|at| at.saturating_duration_since(now).as_secs_f64()),
    }
}

fn reply(id: &Id, method: &str, result: impl Serialize) -> Bytes {
    let method = method.to_owned();
    Frame::result(id, &CustomResult { method, result })
}

fn params<T: DeserializeOwned>(call: &Custom) -> Result<T, Box<ErrorResponse>> {
    T::deserialize(&call.params).map_err(ErrorResponse::error)
}
