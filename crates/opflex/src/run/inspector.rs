//! The inspector: a Unix socket that shows what a server or an element has, to
//! the `gbp_inspect` of agent-ovs.
//!
//! ```text
//!  gbp_inspect ── custom: policy_query ─▶ connection's thread ── look at some ─▶ dispatcher
//!       ◀── the answer, as it is made ──        │  ◀── some objects, and again ──   │
//! ```
//!
//! A question is `custom` of OpFlex with the inner method
//! `org.opendaylight.opflex.policy_query`, whose parameters are an array of
//! `{subject, policy_uri, recursive}`: one object, or without `policy_uri` all of
//! a class; with `recursive` what stands below them too. As in libopflex, a
//! `DmtreeRoot` at `/` contains everything.
//!
//! The dispatcher is asked for some objects at a time, and these are written before it is asked
//! again. So a long answer, or a slow client, takes neither much memory nor time of the
//! dispatcher. The tree may change while it is shown.
//!
//! | what | bound | when full |
//! |---|---|---|
//! | connections | 8 | the one that waits longest for its client is cut, or the newcomer waits |
//! | a question | 64 KiB, and one a minute | the connection ends |
//! | looked at in one go | 500 objects, or a mebibyte of them | the rest comes next |
//! | a client that takes nothing | 30 s | the connection ends |

use std::collections::HashSet;
use std::io;
use std::time::Duration;

use super::local;
use super::machine::{self, Contents, Side, SideEvents};
use super::{CallError, LocalSocket, StartError};
use crate::message::{Custom, ErrorCode, ErrorResponse, Incoming, Request};
use crate::model::{Cursor, ManagedObject, Name, Piece, Schema, Uri};
use crate::rpc::{EncodeError, Frame, Id, Limits};
use serde::Deserialize;
use serde_json::Value;
use ssntp_transport::{Acceptance, Newcomer};

/// The inner method.
const QUERY: &str = "org.opendaylight.opflex.policy_query";
/// The class of the object at `/`, which contains all that is topmost.
const ROOT: &str = "DmtreeRoot";
const CONNECTIONS: usize = 8;
/// How long a client may take to ask.
const IDLE: Duration = Duration::from_secs(60);
/// The longest question; the real ones have some hundred bytes.
const QUESTION: usize = 64 * 1024;
/// Objects that are looked at in one go.
const STEP: usize = 500;
/// About how many bytes of them are given in one go.
const STEP_BYTES: usize = 1 << 20;
/// Bytes of an answer that are written in one go.
const WRITE: usize = 64 * 1024;

/// Listens at the socket, and shows the objects of the core behind `events`. The dispatcher has to
/// run until the threads of the inspector have ended.
pub(super) fn start<S: Side>(socket: &LocalSocket, events: SideEvents<S>) -> Result<Acceptance, StartError> {
    local::start(socket, "inspect", S::LOG, CONNECTIONS, move |newcomer| {
        serve(&events, newcomer)
    })
}

/// Answers a client until it leaves, or asks nothing for [`IDLE`].
fn serve<S: Side>(events: &SideEvents<S>, newcomer: &Newcomer) -> io::Result<()> {
    // A program on the same host gets no more memory than its questions need.
    let limits = Limits {
        message: QUESTION,
        ..Limits::default()
    };
    local::receive(newcomer, limits, Some(IDLE), |message| {
        let mut out = Out {
            newcomer,
            bytes: Vec::new(),
        };
        match message {
            Incoming::Request { id, request } => answer(events, &id, request, &mut out)?,
            Incoming::Refused { id, error, .. } => out.frame(Frame::failure(&id, &error))?,
            _ => {}
        }
        out.flush()
    })
}

fn answer<S: Side>(events: &SideEvents<S>, id: &Id, request: Request, out: &mut Out<'_>) -> io::Result<()> {
    let calls = match request {
        Request::Echo(echo) => return out.frame(Frame::result(id, &echo.answer())),
        Request::Custom(calls) => calls,
        other => {
            let method = other.method();
            let what = format_args!("the inspector does not take {method}");
            return out.frame(Frame::failure(
                id,
                &ErrorResponse::new(ErrorCode::EUNSUPPORTED, what),
            ));
        }
    };
    for call in calls {
        let queries = match call.method.as_str() {
            QUERY => Query::all(&call).and_then(|queries| known(events, queries)),
            other => Err(ErrorResponse::error(format_args!("unknown method: {other:.64}"))),
        };
        match queries {
            Ok(queries) => show(events, id, queries, out)?,
            Err(error) => out.frame(Frame::failure(id, &error))?,
        }
    }
    Ok(())
}

/// The questions, unless one is of a class that the model does not have.
fn known<S: Side>(events: &SideEvents<S>, queries: Vec<Query>) -> Result<Vec<Query>, Box<ErrorResponse>> {
    let judged = look(events, move |store| {
        let schema: Option<&Schema> = store.trees()[0].schema().map(AsRef::as_ref);
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
    judged.unwrap_or_else(|_| Err(ErrorResponse::error("the server or element is stopping")))
}

/// Writes one answer as it is made.
fn show<S: Side>(events: &SideEvents<S>, id: &Id, queries: Vec<Query>, out: &mut Out<'_>) -> io::Result<()> {
    out.put(b"{\"id\":")?;
    out.put(id.as_json())?;
    out.put(b",\"result\":{\"method\":\"")?;
    out.put(QUERY.as_bytes())?;
    out.put(b"\",\"result\":{\"policy\":[")?;
    // The list is written piece by piece, so the commas are written here.
    let mut is_first = true;
    for query in queries {
        if query.is_root() {
            let mut root = ManagedObject::new(ROOT, Uri::root());
            // The root has no object of its own: its children are found by their URIs.
            scan(events, What::Topmost, |objects| {
                root.children.extend(objects.into_iter().map(|object| object.uri));
                Ok(())
            })?;
            // Objects of both trees and of none may have the same URI.
            root.children.sort_unstable();
            root.children.dedup();
            out.objects(vec![root], &mut is_first)?;
            if query.recursive {
                scan(events, What::All, |objects| out.objects(objects, &mut is_first))?;
            }
        } else {
            scan(events, What::Query(query), |objects| {
                out.objects(objects, &mut is_first)
            })?;
        }
    }
    out.put(b"]}}}\0")
}

/// Reads the objects on the dispatcher.
fn look<S: Side, T: Send + 'static>(
    events: &SideEvents<S>,
    look: impl FnOnce(&dyn Contents) -> T + Send + 'static,
) -> Result<T, CallError> {
    machine::call(events, |machine, _, _| look(machine.side.core()))
}

/// One question, as libopflex asks it.
#[derive(Debug, Deserialize)]
struct Query {
    subject: Name,
    policy_uri: Option<Uri>,
    #[serde(default)]
    recursive: bool,
}

impl Query {
    /// The questions of a call: an array of them, or a single one.
    fn all(call: &Custom) -> Result<Vec<Self>, Box<ErrorResponse>> {
        let read = |value: &Value| Self::deserialize(value).map_err(ErrorResponse::error);
        match &call.params {
            Value::Array(all) => all.iter().map(read).collect(),
            one => read(one).map(|query| vec![query]),
        }
    }

    /// Whether the query asks for the root: the object that contains everything.
    fn is_root(&self) -> bool {
        self.subject == ROOT && self.policy_uri.as_ref().is_none_or(Uri::is_root)
    }

    fn asks_for(&self, subject: &Name, uri: &Uri) -> bool {
        self.subject == *subject && self.policy_uri.as_ref().is_none_or(|wanted| wanted == uri)
    }
}

/// The objects that a search looks for.
#[derive(Debug)]
enum What {
    /// The objects right below the root.
    Topmost,
    All,
    Query(Query),
}

/// A search, and how far it has come.
#[derive(Debug)]
struct Scan {
    what: What,
    part: Part,
    /// Where the search is in a tree.
    cursor: Cursor,
    /// The same among the objects that are in no tree.
    place: Option<u64>,
    /// The objects of a recursive query that were found; everything below them is shown as well.
    roots: HashSet<Uri>,
}

/// The part of the objects that a search is at. The objects that are in no tree come in no useful
/// order. So a recursive query goes through them twice, and finds the objects below others the
/// second time.
#[derive(Clone, Copy, Debug)]
enum Part {
    Tree(usize),
    Others,
    BelowOthers,
}

/// Searches in steps, and passes what each step has found to `found`.
fn scan<S: Side>(
    events: &SideEvents<S>,
    what: What,
    mut found: impl FnMut(Vec<ManagedObject>) -> io::Result<()>,
) -> io::Result<()> {
    let mut scan = Scan {
        cursor: what.begin(),
        what,
        part: Part::Tree(0),
        place: None,
        roots: HashSet::new(),
    };
    loop {
        // The scan goes to the dispatcher and back with what it has found, so nothing is shared.
        let step = look(events, move |store| {
            let mut objects = Vec::new();
            let next = scan.step(store, &mut objects).then_some(scan);
            (objects, next)
        });
        let (objects, next) = step.map_err(|_| io::ErrorKind::ConnectionAborted)?;
        found(objects)?;
        match next {
            Some(next) => scan = next,
            None => return Ok(()),
        }
    }
}

impl What {
    /// Where the search begins in each tree.
    fn begin(&self) -> Cursor {
        match self {
            Self::Query(query) => query
                .policy_uri
                .clone()
                .map_or_else(Cursor::everywhere, Cursor::below),
            Self::Topmost | Self::All => Cursor::everywhere(),
        }
    }
}

impl Scan {
    /// Looks at some objects, and adds those that are looked for to `found`. Returns false at the end.
    fn step(&mut self, store: &dyn Contents, found: &mut Vec<ManagedObject>) -> bool {
        let (mut looked_at, mut piece) = (0, Piece::new(STEP_BYTES));
        if let Part::Tree(index) = self.part {
            for object in self.cursor.take(store.trees()[index], STEP, &mut piece) {
                looked_at += 1;
                if self.takes(object.subject(), object.uri()) {
                    found.push(linked(object.to_object()));
                }
            }
        } else {
            for (place, object) in store.others(self.place) {
                // Objects with the same place belong together: the next step begins behind them.
                if self.place != Some(place) && (looked_at >= STEP || piece.is_full()) {
                    break;
                }
                looked_at += 1;
                self.place = Some(place);
                if self.takes(&object.subject, &object.uri) {
                    piece.takes(object.memory());
                    found.push(linked(object.clone()));
                }
            }
        }
        if looked_at > 0 {
            return true;
        }
        (self.cursor, self.place) = (self.what.begin(), None);
        self.part = match self.part {
            Part::Tree(0) => Part::Tree(1),
            Part::Tree(_) => Part::Others,
            Part::Others if !self.roots.is_empty() => Part::BelowOthers,
            _ => return false,
        };
        true
    }

    fn takes(&mut self, subject: &Name, uri: &Uri) -> bool {
        if uri.is_root() {
            return false;
        }
        let query = match &self.what {
            What::Topmost => return is_topmost(uri),
            What::All => return true,
            What::Query(query) => query,
        };
        let is_below = |roots: &HashSet<Uri>| uri.prefixes().any(|above| roots.contains(above));
        if matches!(self.part, Part::BelowOthers) {
            return !self.roots.contains(uri) && is_below(&self.roots);
        }
        // A query without a URI asks for all objects of a class.
        if query.asks_for(subject, uri) {
            if query.recursive {
                self.roots.insert(uri.clone());
            }
            return true;
        }
        // In a tree, parents come before the objects below them.
        matches!(self.part, Part::Tree(_)) && is_below(&self.roots)
    }
}

fn is_topmost(uri: &Uri) -> bool {
    uri.elements().nth(1).is_none()
}

/// The object with a parent where libopflex has the root.
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

/// The way out of a connection, in pieces.
struct Out<'a> {
    newcomer: &'a Newcomer,
    bytes: Vec<u8>,
}

impl Out<'_> {
    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.bytes.extend_from_slice(bytes);
        match self.bytes.len() >= WRITE {
            true => self.flush(),
            false => Ok(()),
        }
    }

    fn frame(&mut self, frame: Result<bytes::Bytes, EncodeError>) -> io::Result<()> {
        self.put(&frame.map_err(io::Error::other)?)
    }

    fn objects(&mut self, objects: Vec<ManagedObject>, is_first: &mut bool) -> io::Result<()> {
        for object in objects {
            if !std::mem::take(is_first) {
                self.put(b",")?;
            }
            // On this thread: making text of objects takes longer than copying them.
            let text = serde_json::to_vec(&object).map_err(io::Error::other)?;
            self.put(&text)?;
        }
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        local::write_all(self.newcomer, &self.bytes)?;
        self.bytes.clear();
        Ok(())
    }
}
