//! A client of a control socket.

use std::collections::HashSet;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::super::own_copy::Edited;
use super::{
    AGENTS, DELETE, DUMP, ENDPOINTS, EndpointEntry, MESSAGE, PUT, RELOAD, REPORTS, SESSIONS, STATUS,
};
use crate::message::{Custom, CustomResult, Decoder, ErrorResponse, Incoming, Method, Reply, Request};
use crate::model::{ManagedObject, Uri};
use crate::rpc::{Id, Limits};
use ssntp_transport::{BufferPool, Halves, Outgoing, connect_unix, deadline, left, plain};

/// The longest write, in bytes: the system has at most one wait in it, so its time limit holds.
const WRITE: usize = 16 << 10;

/// A connection to the control socket of a server.
///
/// # Threads
/// One thread owns it. Each call blocks until it is answered, for at most the time limit of
/// [`connect`](Self::connect). A long list takes several calls.
#[derive(Debug)]
pub struct Control {
    halves: Halves,
    decoder: Decoder,
    limit: Duration,
    last: u64,
    /// True if a request was sent only in part.
    is_broken: bool,
    /// If set, changes are refused ([`ControlError::Refused`]) unless policy has this revision. Default: `None`.
    pub if_revision: Option<u64>,
}

impl Control {
    /// Connects to the socket at `path`. `limit` is the time limit of each call.
    ///
    /// # Errors
    /// The error of the system: the file does not exist, no server listens, access is denied, or the server has
    /// no room for a connection within the limit.
    pub fn connect(path: &Path, limit: Duration) -> io::Result<Self> {
        let stream = Arc::new(connect_unix(path, limit)?);
        let limits = Limits {
            message: MESSAGE,
            memory: usize::MAX,
            ..Limits::default()
        };
        Ok(Self {
            halves: plain(stream, BufferPool::new()),
            decoder: Decoder::without_identity(limits),
            limit,
            last: 0,
            is_broken: false,
            if_revision: None,
        })
    }

    /// The revision of policy and the number of its objects.
    ///
    /// # Errors
    /// [`ControlError`].
    pub fn status(&mut self) -> Result<(u64, u64), ControlError> {
        let mut result = self.call(STATUS, json!({}))?;
        Ok((take(&mut result, "revision")?, take(&mut result, "objects")?))
    }

    /// Adds or replaces objects; with `replace`, together with everything below them.
    ///
    /// # Errors
    /// [`ControlError`].
    pub fn put(&mut self, objects: &[ManagedObject], replace: bool) -> Result<Edited, ControlError> {
        self.change(PUT, json!({ "objects": objects, "replace": replace }))
    }

    /// Removes objects with everything below them.
    ///
    /// # Errors
    /// [`ControlError`].
    pub fn delete(&mut self, uris: &[Uri]) -> Result<Edited, ControlError> {
        self.change(DELETE, json!({ "uris": uris }))
    }

    /// Replaces all policy by these objects.
    ///
    /// # Errors
    /// [`ControlError`].
    pub fn reload(&mut self, objects: &[ManagedObject]) -> Result<Edited, ControlError> {
        self.change(RELOAD, json!({ "objects": objects }))
    }

    /// The policy at and below a URI, parents first, at one revision. If policy changes while it is
    /// read, it is read again.
    ///
    /// # Errors
    /// [`ControlError`].
    pub fn dump(&mut self, uri: &Uri) -> Result<Vec<ManagedObject>, ControlError> {
        let end = deadline(self.limit);
        loop {
            if let (objects, true) = self.pages(DUMP, uri, "objects")? {
                return Ok(objects);
            }
            left(end)?;
        }
    }

    /// The endpoints at and below a URI, parents first. They may change while they are read.
    ///
    /// # Errors
    /// [`ControlError`].
    pub fn endpoints(&mut self, uri: &Uri) -> Result<Vec<EndpointEntry>, ControlError> {
        self.pages(ENDPOINTS, uri, "endpoints")
            .map(|(endpoints, _)| endpoints)
    }

    /// The last state report of each object at and below a URI as JSON, in the
    /// order of their arrival: [`Exported`](crate::server::Exported) with its member names.
    ///
    /// # Errors
    /// [`ControlError`].
    pub fn reports(&mut self, uri: &Uri) -> Result<Vec<Value>, ControlError> {
        let (mut all, _) = self.pages::<Value>(REPORTS, uri, "reports")?;
        // A report that is repeated between two parts is in both parts; the last one counts.
        let mut seen = HashSet::new();
        all.reverse();
        all.retain(|report| {
            let uri = report["object"]["uri"].as_str();
            uri.is_some_and(|uri| seen.insert(uri.to_owned()))
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
        take(&mut result, "sessions")
    }

    /// The agents that have sent a name since the server started, including those that have left,
    /// as JSON, in the order of their names.
    ///
    /// # Errors
    /// [`ControlError`].
    pub fn agents(&mut self) -> Result<Vec<Value>, ControlError> {
        self.pages(AGENTS, &Uri::root(), "agents")
            .map(|(agents, _)| agents)
    }

    /// Reads a list in parts. Returns the list, and true if policy had the same revision at all parts.
    fn pages<T: DeserializeOwned>(
        &mut self,
        method: &str,
        uri: &Uri,
        member: &str,
    ) -> Result<(Vec<T>, bool), ControlError> {
        let (mut all, mut params) = (Vec::new(), json!({ "uri": uri }));
        let (mut revision, mut is_one) = (None, true);
        loop {
            let mut result = self.call(method, params.clone())?;
            all.extend(take::<Vec<T>>(&mut result, member)?);
            let at: u64 = take(&mut result, "revision")?;
            is_one &= revision.replace(at).is_none_or(|before| before == at);
            let after: Option<Value> = take(&mut result, "after")?;
            let Some(after) = after else {
                return Ok((all, is_one));
            };
            params["after"] = after;
        }
    }

    fn change(&mut self, method: &str, mut params: Value) -> Result<Edited, ControlError> {
        if let Some(revision) = self.if_revision {
            params["if_revision"] = revision.into();
        }
        serde_json::from_value(self.call(method, params)?).map_err(|_| ControlError::Answer)
    }

    /// Calls any inner method, and returns its result.
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
        let frame = Request::Custom(vec![custom]).to_frame(&id);
        // The server would end the connection without an answer.
        if frame.len() > MESSAGE {
            let what = format!(
                "the request has {} bytes, and at most {MESSAGE} are accepted",
                frame.len()
            );
            return Err(ControlError::Io(io::Error::new(
                io::ErrorKind::InvalidInput,
                what,
            )));
        }
        if self.is_broken {
            return Err(ControlError::Broken);
        }
        let deadline = deadline(self.limit);
        self.is_broken = true;
        for piece in frame.chunks(WRITE) {
            self.halves.stream.set_write_timeout(Some(left(deadline)?))?;
            let piece = Outgoing::whole(frame.slice_ref(piece), 1);
            self.halves.transmit.transmit(&[piece])?;
        }
        self.is_broken = false;
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
                    // An answer to an earlier call that timed out is ignored.
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
            if self.halves.receive_until(deadline)?.end {
                return Err(ControlError::Closed);
            }
        }
    }
}

/// A member of a result. It may be malformed if the program at the socket is not an OpFlex server.
fn take<T: DeserializeOwned>(result: &mut Value, member: &str) -> Result<T, ControlError> {
    let value = result.get_mut(member).map(Value::take).unwrap_or_default();
    serde_json::from_value(value).map_err(|_| ControlError::Answer)
}

/// The reason for which a call has no result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ControlError {
    /// The connection failed.
    #[error(transparent)]
    Io(io::Error),
    /// The time limit passed without an answer.
    #[error("the server does not answer")]
    TimedOut,
    /// An earlier call has failed while it was sent, so the server cannot read another one. Connect
    /// again.
    #[error("an earlier call was sent only in part")]
    Broken,
    /// The server closed the connection before it answered.
    #[error("the server closed the connection")]
    Closed,
    /// The server answered with an error.
    #[error("the server answers: {0}")]
    Refused(Box<ErrorResponse>),
    /// The answer is malformed: another program listens at the socket.
    #[error("the program at this socket is not an OpFlex server")]
    Answer,
}

impl From<io::Error> for ControlError {
    fn from(e: io::Error) -> Self {
        match e.kind() {
            io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => Self::TimedOut,
            // The system says so if the server has not read all that was sent.
            io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => Self::Closed,
            _ => Self::Io(e),
        }
    }
}
