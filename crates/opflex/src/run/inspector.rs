//! The inspector: a Unix socket that shows the objects of a server or an element to the
//! `gbp_inspect` of agent-ovs.
//!
//! ```text
//!  gbp_inspect ── custom: policy_query ─▶ connection's thread ── a call for each step ─▶ dispatcher
//!       ◀── the answer, step by step ──         │  ◀── some objects ──────────   │
//! ```
//!
//! A query is the method `custom` of OpFlex with the inner method
//! `org.opendaylight.opflex.policy_query`. Its parameters are an array of
//! `{subject, policy_uri, recursive}`: one object, or without `policy_uri` all objects of a
//! class; with `recursive`, everything below them as well. As in libopflex, a `DmtreeRoot`
//! at `/` contains all objects.
//!
//! The answer is made in steps. The objects of a step are written before the dispatcher is called
//! again, so a long answer or a slow client takes little memory and little time of the dispatcher.
//! The tree may change between two steps.
//!
//! | resource | limit | when full |
//! |---|---|---|
//! | connections | 8 | the connection that has waited longest for its client is cut, or the newcomer waits |
//! | a query | 64 KiB; the next one within a minute | the connection ends |
//! | a step | 500 objects, or a mebibyte | the next step has the rest |
//! | time in which a client receives no byte | 30 s | the connection ends |

use std::collections::HashSet;
use std::io;
use std::time::Duration;

use super::config::{CallError, LocalSocket, StartError};
use super::local;
use super::machine::{self, Side, SideEvents};
use crate::message::{Custom, ErrorCode, ErrorResponse, Incoming, Request};
use crate::model::{Cursor, ManagedObject, Name, Piece, Schema, Uri};
use crate::rpc::{Frame, Id, Limits};
use serde::Deserialize;
use serde_json::Value;
use ssntp_transport::{Acceptance, Newcomer};

/// The inner method.
const QUERY: &str = "org.opendaylight.opflex.policy_query";
/// The class of the object at `/`, which contains all topmost objects.
const ROOT: &str = "DmtreeRoot";
/// The maximum number of connections.
const CONNECTIONS: usize = 8;
/// A client that sends no query for this time is disconnected.
const IDLE: Duration = Duration::from_secs(60);
/// The longest query, in bytes. Those of `gbp_inspect` have some hundred.
const MAX_QUERY: usize = 64 * 1024;
/// The number of bytes of an answer that are written together.
const WRITE: usize = 64 * 1024;

/// Listens at the socket, and shows the objects of the core behind `events`. The dispatcher has to
/// run until the threads of the inspector have ended.
pub(super) fn start<S: Side>(socket: &LocalSocket, events: SideEvents<S>) -> Result<Acceptance, StartError> {
    local::start(socket, "inspect", S::LOG, CONNECTIONS, move |newcomer| {
        serve(&events, newcomer)
    })
}

/// Answers a client until it disconnects, or sends no query for [`IDLE`].
fn serve<S: Side>(events: &SideEvents<S>, newcomer: &Newcomer) -> io::Result<()> {
    let limits = Limits {
        message: MAX_QUERY,
        ..Limits::default()
    };
    local::receive(newcomer, limits, Some(IDLE), |message| {
        let mut out = Out {
            newcomer,
            bytes: Vec::new(),
        };
        match message {
            Incoming::Request { id, request } => answer(events, &id, request, &mut out)?,
            Incoming::Refused { id, error, .. } => out.put(&Frame::failure(&id, &error))?,
            _ => {}
        }
        out.flush()
    })
}

fn answer<S: Side>(events: &SideEvents<S>, id: &Id, request: Request, out: &mut Out<'_>) -> io::Result<()> {
    let calls = match request {
        Request::Echo(echo) => return out.put(&Frame::result(id, &echo.answer())),
        Request::Custom(calls) => calls,
        other => {
            let method = other.method();
            let what = format_args!("the inspector does not take {method}");
            let error = ErrorResponse::new(ErrorCode::EUNSUPPORTED, what);
            return out.put(&Frame::failure(id, &error));
        }
    };
    for call in calls {
        let queries = match call.method.as_str() {
            QUERY => Query::all(&call).and_then(|queries| check(events, queries)),
            other => Err(ErrorResponse::error(format_args!("unknown method: {other:.64}"))),
        };
        match queries {
            Ok(queries) => show(events, id, queries, out)?,
            Err(error) => out.put(&Frame::failure(id, &error))?,
        }
    }
    Ok(())
}

/// Refuses queries of classes that the model does not define.
fn check<S: Side>(events: &SideEvents<S>, queries: Vec<Query>) -> Result<Vec<Query>, Box<ErrorResponse>> {
    let checked = look(events, move |side| {
        let schema: Option<&Schema> = side.trees()[0].schema().map(AsRef::as_ref);
        let knows =
            |query: &Query| query.subject == ROOT || schema.is_none_or(|schema| schema.knows(&query.subject));
        match queries.iter().find(|query| !knows(query)) {
            Some(query) => Err(ErrorResponse::error(format_args!(
                "Unknown subject: {:.64}",
                query.subject
            ))),
            None => Ok(queries),
        }
    });
    checked.unwrap_or_else(|_| Err(ErrorResponse::error("the server or element is stopping")))
}

/// Makes and writes one answer, step by step.
fn show<S: Side>(events: &SideEvents<S>, id: &Id, queries: Vec<Query>, out: &mut Out<'_>) -> io::Result<()> {
    out.put(b"{\"id\":")?;
    out.put(id.as_json())?;
    out.put(b",\"result\":{\"method\":\"")?;
    out.put(QUERY.as_bytes())?;
    out.put(b"\",\"result\":{\"policy\":[")?;
    let mut is_first = true;
    for query in queries {
        if query.is_root() {
            let mut root = ManagedObject::new(ROOT, Uri::root());
            // No tree has the root, so its children are found by their URIs.
            scan_all(events, None, |object, _| {
                root.children.extend(Some(object.uri).filter(is_topmost));
                Ok(())
            })?;
            // Two trees and the reports may have objects with the same URI.
            root.children.sort_unstable();
            root.children.dedup();
            out.object(root, &mut is_first)?;
            if query.recursive {
                scan_all(events, None, |object, _| out.object(object, &mut is_first))?;
            }
        } else {
            // The objects that match a recursive query. Everything below them is found as well.
            let mut roots: HashSet<Uri> = HashSet::new();
            let is_below =
                |roots: &HashSet<Uri>, uri: &Uri| uri.prefixes().any(|above| roots.contains(above));
            scan_all(events, query.policy_uri.clone(), |object, list| {
                let is_match = query.is_match(&object);
                if is_match && query.recursive {
                    roots.insert(object.uri.clone());
                }
                // In a tree, an object is visited before the objects below it.
                if is_match || (list != OTHERS && is_below(&roots, &object.uri)) {
                    out.object(object, &mut is_first)?;
                }
                Ok(())
            })?;
            // Other objects are not sorted by URI, so the objects below others are found now.
            if !roots.is_empty() {
                scan(events, OTHERS, None, |object| {
                    if !roots.contains(&object.uri) && is_below(&roots, &object.uri) {
                        out.object(object, &mut is_first)?;
                    }
                    Ok(())
                })?;
            }
        }
    }
    out.put(b"]}}}\0")
}

/// Reads the objects on the dispatcher.
fn look<S: Side, T: Send + 'static>(
    events: &SideEvents<S>,
    look: impl FnOnce(&S) -> T + Send + 'static,
) -> Result<T, CallError> {
    machine::call(events, |machine, _, _| look(&machine.side))
}

/// One query, in the form of libopflex.
#[derive(Debug, Deserialize)]
struct Query {
    subject: Name,
    policy_uri: Option<Uri>,
    #[serde(default)]
    recursive: bool,
}

impl Query {
    /// The queries of a call: an array of queries, or a single query.
    fn all(call: &Custom) -> Result<Vec<Self>, Box<ErrorResponse>> {
        let read = |value: &Value| Self::deserialize(value).map_err(ErrorResponse::error);
        match &call.params {
            Value::Array(all) => all.iter().map(read).collect(),
            one => read(one).map(|query| vec![query]),
        }
    }

    /// True if the query is for the root.
    fn is_root(&self) -> bool {
        self.subject == ROOT && self.policy_uri.as_ref().is_none_or(Uri::is_root)
    }

    fn is_match(&self, object: &ManagedObject) -> bool {
        let is_uri = self
            .policy_uri
            .as_ref()
            .is_none_or(|wanted| *wanted == object.uri);
        self.subject == object.subject && is_uri
    }
}

/// The list of the objects that are in no tree. Lists with lower numbers are the trees.
const OTHERS: usize = 2;

/// Reads all lists, and passes each object to `each`, with the number of its list.
fn scan_all<S: Side>(
    events: &SideEvents<S>,
    below: Option<Uri>,
    mut each: impl FnMut(ManagedObject, usize) -> io::Result<()>,
) -> io::Result<()> {
    (0..=OTHERS).try_for_each(|list| scan(events, list, below.clone(), |object| each(object, list)))
}

/// Reads a list of objects in steps, of a tree only those at and below a URI, and passes each object
/// to `each`.
fn scan<S: Side>(
    events: &SideEvents<S>,
    list: usize,
    below: Option<Uri>,
    mut each: impl FnMut(ManagedObject) -> io::Result<()>,
) -> io::Result<()> {
    let mut cursor = below.map_or_else(Cursor::everywhere, Cursor::below);
    let mut place = None;
    loop {
        // The positions move to the dispatcher and back, so they need no lock.
        let step = look(events, move |side| {
            let mut piece = Piece::of_a_call();
            let mut objects = Vec::new();
            match side.trees().get(list) {
                Some(tree) => {
                    let found = cursor.take(tree, &mut piece).into_iter();
                    objects.extend(found.map(|object| object.to_object()));
                }
                None => {
                    for (at, object) in side.others(place.clone()) {
                        // Objects with the same position are visited in the same step.
                        if piece.is_full() && place.as_ref() != Some(&at) {
                            break;
                        }
                        place = Some(at);
                        piece.add(object.memory());
                        objects.push(object.clone());
                    }
                }
            }
            (objects, cursor, place)
        });
        let objects;
        (objects, cursor, place) = step.map_err(|_| io::ErrorKind::ConnectionAborted)?;
        if objects.is_empty() {
            return Ok(());
        }
        let mut below_root = objects.into_iter().filter(|object| !object.uri.is_root());
        below_root.try_for_each(&mut each)?;
    }
}

fn is_topmost(uri: &Uri) -> bool {
    !uri.is_root() && uri.elements().nth(1).is_none()
}

/// The object, with the root as its parent if libopflex has the root there.
fn linked(mut object: ManagedObject) -> ManagedObject {
    if is_topmost(&object.uri) && object.parent_uri.as_ref().is_none_or(Uri::is_root) {
        object.parent_uri = Some(Uri::root());
        object.parent_subject = Some(ROOT.into());
        object
            .parent_relation
            .get_or_insert_with(|| object.subject.clone());
    }
    object
}

/// Collects an answer and writes it in pieces.
struct Out<'a> {
    newcomer: &'a Newcomer,
    bytes: Vec<u8>,
}

impl Out<'_> {
    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.bytes.extend_from_slice(bytes);
        if self.bytes.len() >= WRITE {
            self.flush()
        } else {
            Ok(())
        }
    }

    fn object(&mut self, object: ManagedObject, is_first: &mut bool) -> io::Result<()> {
        if !std::mem::take(is_first) {
            self.put(b",")?;
        }
        // Encoded on this thread, because that takes longer than the copy on the dispatcher.
        let text = serde_json::to_vec(&linked(object)).map_err(io::Error::other)?;
        self.put(&text)
    }

    fn flush(&mut self) -> io::Result<()> {
        local::write_all(self.newcomer, &self.bytes)?;
        self.bytes.clear();
        Ok(())
    }
}
