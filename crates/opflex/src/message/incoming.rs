//! Messages that arrive, as types.

use std::collections::BTreeMap;

use bytes::Bytes;
use log::debug;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::error_response::cut;
use super::resolve::Worded;
use super::{
    Custom, CustomResult, Echo, EndpointDeclare, EndpointUndeclare, ErrorCode, ErrorResponse, Identity,
    IdentityResult, Method, Resolve, StateReport, Store, Update,
};
use crate::json::Object;
use crate::model::ManagedObject;
use crate::rpc::{self, EncodeError, Frame, Id, Payload};

/// A request of a known method whose parameters fit it.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each is the method of that name, or both of them")]
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

/// A result of a known method that has its form.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Reply {
    /// The other side is alive. The contents of its answer do not matter.
    Echo(Value),
    /// Who the other side is.
    SendIdentity(Box<IdentityResult>),
    /// The policy, or endpoints, that are there: parents before children.
    Resolve(Store, Vec<ManagedObject>),
    /// Of a method inside a method.
    Custom(CustomResult),
    /// It is done. The draft has an empty object here; anything is taken.
    Done(Method, Value),
}

/// One message. A fault that ends the connection is an error of the decoder, so a message here
/// is handled, refused or ignored, and the connection goes on.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Incoming {
    /// To be carried out and answered.
    Request {
        /// To be returned with the answer.
        id: Id,
        /// The method and its parameters.
        request: Request,
    },
    /// A request to be answered with this error: its method is unknown, or its
    /// parameters do not fit. The session may have a better one (ESTATE).
    Refused {
        /// To be returned with the answer.
        id: Id,
        /// The method, when it is known.
        method: Option<Method>,
        /// The answer.
        error: ErrorResponse,
    },
    /// A request of ours succeeded.
    Result {
        /// The id of the request.
        id: Id,
        /// The result.
        reply: Reply,
    },
    /// A request of ours failed.
    Failure {
        /// The id of the request.
        id: Id,
        /// The method in the id.
        method: Method,
        /// Why.
        error: ErrorResponse,
    },
    /// The result of a request of ours has the wrong form. It is treated like no answer.
    BadResult {
        /// The id of the request.
        id: Id,
        /// The method in the id.
        method: Method,
        /// The reason, for the log.
        fault: String,
    },
    /// A response to nothing that we send: to be ignored.
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
    pub fn to_frame(&self, id: &Id) -> Result<Bytes, EncodeError> {
        let method = self.method().name();
        match self {
            Self::Echo(Echo(params)) => Frame::request(id, method, params),
            Self::SendIdentity(identity) => Frame::request(id, method, &[identity]),
            Self::Resolve(of, params) | Self::Unresolve(of, params) => {
                let worded: Vec<_> = params.iter().map(|params| Worded(*of, params)).collect();
                Frame::request(id, method, &worded)
            }
            Self::Update(_, params) => Frame::request(id, method, params),
            Self::EndpointDeclare(params) => Frame::request(id, method, params),
            Self::EndpointUndeclare(params) => Frame::request(id, method, params),
            Self::StateReport(params) => Frame::request(id, method, params),
            Self::Custom(params) => Frame::request(id, method, params),
        }
    }

    fn read(method: Method, params: Option<&Payload>) -> Result<Self, String> {
        // Each method by itself: the parameters of unknown ones are never read.
        Ok(match method {
            Method::Echo => Self::Echo(Echo(list(params)?)),
            // A request without any is one with all its members missing.
            // libopflex sends exactly one object. Others behind it are ignored.
            Method::SendIdentity => {
                Self::SendIdentity(objects(params)?.into_iter().next().unwrap_or_default())
            }
            Method::PolicyResolve => {
                let resolves: Vec<Resolve> = objects(params)?;
                // Checked here and not by the type: a resolve of endpoints may leave it out.
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
            Self::Echo(_) => Method::Echo,
            Self::SendIdentity(_) => Method::SendIdentity,
            Self::Resolve(of, _) => of.resolve(),
            Self::Custom(_) => Method::Custom,
            Self::Done(method, _) => *method,
        }
    }

    /// The answer to a method whose result has no content.
    pub fn done(method: Method) -> Self {
        Self::Done(method, Value::Object(Map::new()))
    }

    /// The bytes of this result as the answer to the request with the given id.
    pub fn to_frame(&self, id: &Id) -> Result<Bytes, EncodeError> {
        match self {
            Self::Echo(value) | Self::Done(_, value) => Frame::result(id, value),
            Self::SendIdentity(identity) => Frame::result(id, identity),
            Self::Resolve(of, objects) => Self::resolved(*of, id, objects),
            Self::Custom(result) => Frame::result(id, result),
        }
    }

    /// The same of a resolve, however its objects are held.
    pub(crate) fn resolved(of: Store, id: &Id, objects: &impl Serialize) -> Result<Bytes, EncodeError> {
        Frame::result(id, &BTreeMap::from([(of.name(), objects)]))
    }

    fn read(method: Method, result: &Payload) -> Result<Self, serde_json::Error> {
        fn object<T: DeserializeOwned>(result: &Payload) -> Result<T, serde_json::Error> {
            result.parse::<Object<T>>().map(|Object(value)| value)
        }
        Ok(match method {
            Method::Echo => Self::Echo(result.parse()?),
            Method::SendIdentity => Self::SendIdentity(object(result)?),
            Method::PolicyResolve | Method::EndpointResolve => {
                let of = match method {
                    Method::PolicyResolve => Store::Policy,
                    _ => Store::Endpoints,
                };
                // The common case reads the objects once. Only if one of them is malformed, all are read
                // again as plain values.
                let objects = match object::<Resolved<Vec<ManagedObject>>>(result) {
                    Ok(all) => all.objects,
                    Err(error) => {
                        let usable = usable(object::<Resolved<Vec<Value>>>(result)?.objects);
                        Some(usable).filter(|usable| !usable.is_empty()).ok_or(error)?
                    }
                };
                Self::Resolve(of, objects)
            }
            Method::Custom => Self::Custom(object(result)?),
            other => Self::Done(other, result.parse()?),
        })
    }
}

impl Incoming {
    /// Reads the contents of a message as its method asks. A request names its
    /// method; a response has it in its id, where we and libopflex put it.
    pub fn read(message: rpc::Message) -> Self {
        match message {
            rpc::Message::Request(request) => Self::request(request),
            rpc::Message::Response(response) => Self::response(response),
        }
    }

    /// The method of the request of ours that this answers.
    pub(crate) fn answers(&self) -> Option<Method> {
        match self {
            Self::Result { reply, .. } => Some(reply.method()),
            Self::Failure { method, .. } | Self::BadResult { method, .. } => Some(*method),
            Self::Request { .. } | Self::Refused { .. } | Self::Stray { .. } => None,
        }
    }

    fn request(rpc::Request { id, method, params }: rpc::Request) -> Self {
        let Some(method) = Method::from_name(&method) else {
            let error = ErrorResponse::new(
                ErrorCode::EUNSUPPORTED,
                format_args!("unknown method {:?}", cut(&method)),
            );
            return Self::Refused {
                id,
                method: None,
                error,
            };
        };
        match Request::read(method, params.as_ref()) {
            Ok(request) => Self::Request { id, request },
            Err(fault) => Self::Refused {
                id,
                method: Some(method),
                error: ErrorResponse::new(ErrorCode::ERROR, format_args!("{method}: {}", cut(&fault))),
            },
        }
    }

    fn response(rpc::Response { id, outcome }: rpc::Response) -> Self {
        // A response does not say what it answers. libopflex reads the method from the id, too.
        let method = id.method().as_deref().and_then(Method::from_name);
        match (method, outcome) {
            // libopflex ignores it too.
            (None, _) => Self::Stray { id },
            (Some(method), Ok(result)) => match Reply::read(method, &result) {
                Ok(reply) => Self::Result { id, reply },
                Err(fault) => Self::BadResult {
                    id,
                    method,
                    fault: cut(&fault.to_string()).into_owned(),
                },
            },
            (Some(method), Err(error)) => match error.parse() {
                Ok(error) => Self::Failure { id, method, error },
                Err(fault) => Self::Failure {
                    id,
                    method,
                    error: ErrorResponse::new(ErrorCode::ERROR, fault),
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

/// The managed objects of an answer in which something is none: one of them must
/// not cost the others.
fn usable(values: Vec<Value>) -> Vec<ManagedObject> {
    let came = values.len();
    let read = |value| serde_json::from_value::<Object<ManagedObject>>(value).ok();
    let objects = values.into_iter().filter_map(read).map(|Object(object)| object);
    let objects: Vec<_> = objects.collect();
    debug!(
        "{} of {came} objects of an answer can't be used",
        came - objects.len()
    );
    objects
}

/// The parameters as a list; missing ones are an empty list.
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
