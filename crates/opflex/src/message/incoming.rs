//! Received messages as types.

use std::collections::BTreeMap;

use bytes::Bytes;
use log::debug;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::error_response::{ErrorCode, ErrorResponse};
use super::identity::{Identity, IdentityResult};
use super::method::Method;
use super::params::{Custom, CustomResult, Echo, EndpointDeclare, EndpointUndeclare, StateReport, Update};
use super::resolve::{Named, Resolve};
use super::store::Store;
use crate::json::Object;
use crate::model::ManagedObject;
use crate::rpc::{self, Frame, Id, Payload};
use ssntp_transport::excerpt;

/// A request of a known method with valid parameters.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
#[expect(
    missing_docs,
    reason = "a variant has the name of its method; with a `Store`, it is the method for policy or for endpoints"
)]
pub enum Request {
    Echo(Echo),
    SendIdentity(Box<Identity>),
    Resolve(Store, Vec<Resolve>),
    Unresolve(Store, Vec<Resolve>),
    Update(Store, Vec<Update>),
    EndpointDeclare(Vec<EndpointDeclare>),
    EndpointUndeclare(Vec<EndpointUndeclare>),
    StateReport(Vec<StateReport>),
    Custom(Vec<Custom>),
}

/// A valid result of a known method.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Reply {
    /// The identity of the other side.
    SendIdentity(Box<IdentityResult>),
    /// The resolved policy or endpoints. Servers send parents before children, which is not checked.
    Resolve(Store, Vec<ManagedObject>),
    /// The result of an inner method.
    Custom(CustomResult),
    /// The result of any other method. Its contents do not matter: the draft has an empty object.
    Done(Method, Value),
}

/// One received message. Faults that end the connection are errors of the decoder, so a message
/// here is handled, refused or ignored, and the connection stays open.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Incoming {
    /// A request to carry out and answer.
    Request {
        /// The id for the answer.
        id: Id,
        /// The method and its parameters.
        request: Request,
    },
    /// A request with an unknown method or invalid parameters, to be answered with this error.
    /// Before the identity it is answered ESTATE instead.
    Refused {
        /// The id for the answer.
        id: Id,
        /// The method. `None` if it is unknown.
        method: Option<Method>,
        /// The answer.
        error: ErrorResponse,
    },
    /// A request of this side succeeded.
    Result {
        /// The id of the request.
        id: Id,
        /// The result.
        reply: Reply,
    },
    /// A request of this side failed.
    Failure {
        /// The id of the request.
        id: Id,
        /// The method in the id.
        method: Method,
        /// The error.
        error: ErrorResponse,
    },
    /// The result of a request of this side is malformed. It is treated as if there was no answer.
    BadResult {
        /// The id of the request.
        id: Id,
        /// The method in the id.
        method: Method,
        /// The reason, for the log.
        fault: String,
    },
    /// A response whose id has no known method. It is ignored.
    Stray {
        /// The id of the response.
        id: Id,
    },
}

impl Request {
    /// The method.
    pub const fn method(&self) -> Method {
        match self {
            Self::Echo(_) => Method::Echo,
            Self::SendIdentity(_) => Method::SendIdentity,
            Self::Resolve(of, _) => of.resolve(),
            Self::Unresolve(of, _) => of.unresolve(),
            Self::Update(of, _) => of.update(),
            Self::EndpointDeclare(_) => Method::EndpointDeclare,
            Self::EndpointUndeclare(_) => Method::EndpointUndeclare,
            Self::StateReport(_) => Method::StateReport,
            Self::Custom(_) => Method::Custom,
        }
    }

    /// The bytes of this request with the given id.
    pub fn to_frame(&self, id: &Id) -> Bytes {
        let method = self.method().name();
        match self {
            Self::Echo(Echo(params)) => Frame::request(id, method, params),
            Self::SendIdentity(identity) => Frame::request(id, method, &[identity]),
            Self::Resolve(of, params) | Self::Unresolve(of, params) => {
                // The names of the members differ for policy and for endpoints.
                let named: Vec<_> = params.iter().map(|params| Named(*of, params)).collect();
                Frame::request(id, method, &named)
            }
            Self::Update(_, params) => Frame::request(id, method, params),
            Self::EndpointDeclare(params) => Frame::request(id, method, params),
            Self::EndpointUndeclare(params) => Frame::request(id, method, params),
            Self::StateReport(params) => Frame::request(id, method, params),
            Self::Custom(params) => Frame::request(id, method, params),
        }
    }

    fn read(method: Method, params: Option<&Payload>) -> Result<Self, String> {
        Ok(match method {
            Method::Echo => Self::Echo(Echo(list(params)?)),
            // Without parameters, all members of the identity are missing. libopflex sends exactly one
            // object; the first of several is used, and all of them must be valid.
            Method::SendIdentity => {
                Self::SendIdentity(objects(params)?.into_iter().next().unwrap_or_default())
            }
            Method::PolicyResolve => {
                let resolves: Vec<Resolve> = objects(params)?;
                // The type allows a missing refresh rate, because a resolve of endpoints may omit it.
                if resolves.iter().any(|resolve| resolve.prr.is_none()) {
                    return Err("missing field `prr`".to_owned());
                }
                Self::Resolve(Store::Policy, resolves)
            }
            Method::EndpointResolve => Self::Resolve(Store::Endpoints, objects(params)?),
            Method::PolicyUnresolve => Self::Unresolve(Store::Policy, objects(params)?),
            Method::EndpointUnresolve => Self::Unresolve(Store::Endpoints, objects(params)?),
            Method::PolicyUpdate => Self::Update(Store::Policy, objects(params)?),
            Method::EndpointUpdate => Self::Update(Store::Endpoints, objects(params)?),
            Method::EndpointDeclare => Self::EndpointDeclare(objects(params)?),
            Method::EndpointUndeclare => Self::EndpointUndeclare(objects(params)?),
            Method::StateReport => Self::StateReport(objects(params)?),
            Method::Custom => Self::Custom(objects(params)?),
        })
    }
}

impl Reply {
    /// The method.
    pub const fn method(&self) -> Method {
        match self {
            Self::SendIdentity(_) => Method::SendIdentity,
            Self::Resolve(of, _) => of.resolve(),
            Self::Custom(_) => Method::Custom,
            Self::Done(method, _) => *method,
        }
    }

    /// The answer to a method whose result is an empty object.
    pub fn done(method: Method) -> Self {
        Self::Done(method, Value::Object(Map::new()))
    }

    /// The bytes of this result as the answer to the request with the given id.
    pub fn to_frame(&self, id: &Id) -> Bytes {
        match self {
            Self::Done(_, value) => Frame::result(id, value),
            Self::SendIdentity(identity) => Frame::result(id, identity),
            Self::Resolve(of, objects) => Self::resolved(*of, id, objects),
            Self::Custom(result) => Frame::result(id, result),
        }
    }

    /// The answer to a resolve. `objects` is any list of objects.
    pub(crate) fn resolved(of: Store, id: &Id, objects: &impl Serialize) -> Bytes {
        Frame::result(id, &BTreeMap::from([(of.name(), objects)]))
    }

    fn read(method: Method, result: &Payload) -> Result<Self, serde_json::Error> {
        Ok(match method {
            Method::SendIdentity => Self::SendIdentity(object(result)?),
            Method::PolicyResolve => Self::Resolve(Store::Policy, resolved(result)?),
            Method::EndpointResolve => Self::Resolve(Store::Endpoints, resolved(result)?),
            Method::Custom => Self::Custom(object(result)?),
            other => Self::Done(other, result.parse()?),
        })
    }
}

impl Incoming {
    /// Reads the parameters or the result of a message. A request has its method as a member; a
    /// response has the method in its id.
    pub fn read(message: rpc::Message) -> Self {
        match message {
            rpc::Message::Request { id, method, params } => Self::request(id, &method, params.as_ref()),
            rpc::Message::Response { id, outcome } => Self::response(id, outcome),
        }
    }

    /// The method of the request that this message answers. `None` if it is not an answer.
    pub(crate) fn answers(&self) -> Option<Method> {
        match self {
            Self::Result { reply, .. } => Some(reply.method()),
            Self::Failure { method, .. } | Self::BadResult { method, .. } => Some(*method),
            Self::Request { .. } | Self::Refused { .. } | Self::Stray { .. } => None,
        }
    }

    fn request(id: Id, name: &str, params: Option<&Payload>) -> Self {
        let Some(method) = Method::from_name(name) else {
            let what = format_args!("unknown method {name:?}");
            let error = ErrorResponse::new(ErrorCode::EUNSUPPORTED, excerpt(what));
            return Self::Refused {
                id,
                method: None,
                error,
            };
        };
        match Request::read(method, params) {
            Ok(request) => Self::Request { id, request },
            Err(fault) => Self::Refused {
                id,
                method: Some(method),
                error: ErrorResponse::new(ErrorCode::ERROR, excerpt(format_args!("{method}: {fault}"))),
            },
        }
    }

    fn response(id: Id, outcome: Result<Payload, Payload>) -> Self {
        // A response has no member for its method, so the method is read from the id, as in libopflex.
        let method = id.method().as_deref().and_then(Method::from_name);
        match (method, outcome) {
            // libopflex ignores a response with an unknown method, too.
            (None, _) => Self::Stray { id },
            (Some(method), Ok(result)) => match Reply::read(method, &result) {
                Ok(reply) => Self::Result { id, reply },
                Err(fault) => Self::BadResult {
                    id,
                    method,
                    fault: excerpt(fault).to_string(),
                },
            },
            (Some(method), Err(error)) => match error.parse() {
                Ok(error) => Self::Failure { id, method, error },
                // The error is an object, but it may have a value that can't be read, such as 1e400.
                Err(fault) => Self::Failure {
                    id,
                    method,
                    error: ErrorResponse::new(
                        ErrorCode::ERROR,
                        format_args!("the error can't be read: {fault}"),
                    ),
                },
            },
        }
    }
}

/// The result of a resolve.
#[derive(Deserialize)]
#[serde(bound(deserialize = "O: Deserialize<'de>"))]
struct Resolved<O> {
    #[serde(rename = "policy", alias = "endpoint")]
    objects: O,
}

fn object<T: DeserializeOwned>(result: &Payload) -> Result<T, serde_json::Error> {
    result.parse::<Object<T>>().map(|Object(value)| value)
}

/// The managed objects in the result of a resolve. Malformed objects are left out, unless all are
/// malformed.
fn resolved(result: &Payload) -> Result<Vec<ManagedObject>, serde_json::Error> {
    let error = match object::<Resolved<Vec<ManagedObject>>>(result) {
        Ok(all) => return Ok(all.objects),
        Err(error) => error,
    };
    // Read a second time, as plain values, only if an object is malformed.
    let values = object::<Resolved<Vec<Value>>>(result)?.objects;
    let all = values.len();
    let read = |value| serde_json::from_value::<Object<ManagedObject>>(value).ok();
    let objects = values.into_iter().filter_map(read).map(|Object(object)| object);
    let objects: Vec<_> = objects.collect();
    debug!(
        "{} of {all} objects of an answer can't be used",
        all - objects.len()
    );
    Some(objects).filter(|objects| !objects.is_empty()).ok_or(error)
}

/// The parameters as a list, which is empty if they are missing.
fn list<T: DeserializeOwned>(params: Option<&Payload>) -> Result<Vec<T>, String> {
    match params {
        None => Ok(Vec::new()),
        Some(params) if !params.is_array() => Err("params must be an array".to_owned()),
        Some(params) => params.parse().map_err(|fault| fault.to_string()),
    }
}

/// The parameters as a list of objects.
fn objects<T: DeserializeOwned>(params: Option<&Payload>) -> Result<Vec<T>, String> {
    let objects: Vec<Object<T>> = list(params)?;
    Ok(objects.into_iter().map(|Object(value)| value).collect())
}
