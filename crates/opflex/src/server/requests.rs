//! Each method, carried out and answered.

use std::time::Instant;

use bytes::Bytes;
use log::{Level, debug};

use super::resolves::Unsent;
use super::session::Answer;
use super::{Action, RequestCounters, ServerCore, Store};
use crate::message::{ErrorCode, ErrorResponse, Identity, Method, Reply, Request, Resolve, Role};
use crate::model::{ManagedObject, Name, Target};
use crate::peer::{CloseReason, ConnectionId};
use crate::rpc::{EncodeError, Frame, Id};
use ssntp_transport::excerpt;

impl ServerCore {
    pub(super) fn request(&mut self, connection: ConnectionId, id: Id, request: Request, now: Instant) {
        let method = request.method();
        let done = || Reply::done(method).to_frame(&id);
        let element = self
            .sessions
            .get(&connection)
            .and_then(|session| session.element.as_ref());
        // Only methods without a need of identity come here without an element; they do not use it.
        let element = element.map_or_else(|| Name::from(""), |element| element.name.clone());
        let answer = match request {
            Request::Echo(echo) => Ok(Frame::result(&id, &echo.answer())),
            Request::SendIdentity(identity) => self.identity(connection, &id, *identity, now),
            // Roles are checked before anything is done, so that a server without a role keeps nothing.
            _ if !self.settings.has(&role_for(method)) => Err(ErrorResponse::boxed(
                ErrorCode::EUNSUPPORTED,
                format_args!("this server does not take {method}"),
            )),
            Request::Resolve(of, resolves) => {
                self.log_other_classes(connection, of, &resolves, now);
                let resolvable = match of {
                    Store::Policy => &mut self.policy,
                    Store::Endpoints => &mut self.registry.endpoints,
                };
                match resolvable.resolve(connection, resolves, &self.settings, now) {
                    Ok(unsent) => return self.begin_answer(connection, id, of, unsent),
                    Err(refusal) => Err(refusal),
                }
            }
            Request::Unresolve(of, unresolves) => {
                // libopflex never repeats an unresolve.
                // An unresolve without a resolve is answered like any other.
                for Resolve { target, .. } in &unresolves {
                    match of {
                        Store::Policy => self.policy.watchers.unwatch(&connection, target),
                        Store::Endpoints => self.registry.endpoints.watchers.unwatch(&connection, target),
                    };
                }
                Ok(done())
            }
            Request::EndpointDeclare(mut declares) => {
                let objects = declares.iter_mut().map(|declare| &mut declare.endpoint);
                // libopflex skips what it does not know; refusing would stop an agent with a newer model.
                self.leave_out_unknown(connection, method, objects, now);
                let changes = self
                    .registry
                    .declare(&element, connection, declares, &self.settings, now);
                changes.map(|changes| {
                    self.tell(Store::Endpoints, &changes, now);
                    done()
                })
            }
            Request::EndpointUndeclare(undeclares) => {
                let changes = self.registry.undeclare(&element, &undeclares);
                self.tell(Store::Endpoints, &changes, now);
                Ok(done())
            }
            Request::StateReport(mut reports) => {
                let objects = reports.iter_mut().map(|report| &mut report.observable);
                self.leave_out_unknown(connection, method, objects, now);
                self.observer.report(&element, reports, now).map(|()| done())
            }
            // A request of the wrong direction, which no role takes.
            Request::Update(..) | Request::Custom(_) => Err(ErrorResponse::boxed(
                ErrorCode::EUNSUPPORTED,
                format_args!("a server does not take {method}"),
            )),
        };
        match answer {
            Ok(frame) => self.send(connection, frame),
            Err(refusal) => self.refuse(connection, &id, Some(method), &refusal, now),
        }
    }

    /// Leaves out objects and properties that the model does not know, as libopflex does, and
    /// logs how many those were.
    fn leave_out_unknown<'a>(
        &mut self,
        connection: ConnectionId,
        method: Method,
        objects: impl Iterator<Item = &'a mut Vec<ManagedObject>>,
        now: Instant,
    ) {
        let unknown: usize = match self.policy.tree.schema() {
            Some(schema) => objects.map(|objects| schema.leave_out_unknown(objects)).sum(),
            None => 0,
        };
        if unknown > 0 {
            if let Some(session) = self.sessions.get_mut(&connection) {
                session.counters.left_out += unknown as u64;
            }
            self.log(connection, Level::Warn, "unknown to the model", now, || {
                format!("{method}: {unknown} objects and properties unknown to the model are left out")
            });
        }
    }

    /// Logs resolves whose class is not the one of the object. They are answered without the
    /// object and without an error: agents ask so for `GbpSubnets` with the URI of a
    /// `GbpSubnet`, and would repeat a refused resolve for ever.
    fn log_other_classes(&mut self, connection: ConnectionId, of: Store, resolves: &[Resolve], now: Instant) {
        for Resolve { subject, target, .. } in resolves {
            if let Target::Uri(uri) = target
                && let Some(there) = self.resolvable(of).tree.get(uri)
                && there.subject() != subject
            {
                let text = format!(
                    "{uri} is a {}, not a {subject}: the answer has no object",
                    there.subject()
                );
                self.log(connection, Level::Warn, "other class", now, || {
                    excerpt(text).to_string()
                });
            }
        }
    }

    fn begin_answer(&mut self, connection: ConnectionId, id: Id, of: Store, unsent: Unsent) {
        if let Some(session) = self.sessions.get_mut(&connection) {
            session.answer = Some(Answer { id, of, unsent });
            self.go_on(connection);
        }
    }

    fn identity(
        &mut self,
        connection: ConnectionId,
        id: &Id,
        identity: Identity,
        now: Instant,
    ) -> Result<Result<Bytes, EncodeError>, Box<ErrorResponse>> {
        let Some(session) = self.sessions.get_mut(&connection) else {
            return Err(ErrorResponse::boxed(
                ErrorCode::ESTATE,
                "the connection has ended",
            ));
        };
        // An element may send its identity again, with another name.
        let before = session.element.as_ref().map(|element| element.name.clone());
        let domain = identity.domain.clone();
        let result = session.identify(identity, &self.settings)?;
        self.timers.set(connection, session.deadline(&self.settings));
        self.actions.push(Action::Identified { connection });
        let name = session.element.as_ref().map(|element| element.name.clone());
        if before != name {
            // The requests of a session count for the name that it has sent last.
            if let Some(before) = &before {
                let most = self.settings.limits.agents;
                self.agents.left(before, &RequestCounters::default(), most);
            }
            if let Some(name) = &name {
                self.agents.came(name, now);
            }
        }
        // The former name is free, unless another connection has taken it.
        if let Some(before) = before.filter(|before| self.names.get(before) == Some(&connection)) {
            self.names.remove(&before);
        }
        if let Some(name) = name {
            // With any domain allowed, the log shows which domains elements send.
            let domain = domain.filter(|domain| *domain != self.settings.domain);
            let domain = domain.map_or_else(String::new, |domain| format!(" of the domain {domain:?}"));
            self.log(connection, Level::Info, "identity", now, || {
                format!("it is {}{}", excerpt(&name), excerpt(&domain))
            });
            let other = self
                .names
                .insert(name, connection)
                .filter(|other| *other != connection);
            if let Some(other) = other.filter(|_| self.settings.unique_names) {
                self.close(other, CloseReason::Replaced, now);
            }
        }
        Ok(Frame::result(id, &result))
    }

    pub(super) fn too_early(
        &mut self,
        connection: ConnectionId,
        id: &Id,
        method: Option<Method>,
        now: Instant,
    ) {
        let error = ErrorResponse::new(ErrorCode::ESTATE, "the identity must be sent first");
        // The answer is sent before the end, so that the peer sees why.
        self.refuse(connection, id, method, &error, now);
        self.close(connection, CloseReason::RequestBeforeIdentity(method), now);
    }

    pub(super) fn refuse(
        &mut self,
        connection: ConnectionId,
        id: &Id,
        method: Option<Method>,
        error: &ErrorResponse,
        now: Instant,
    ) {
        match method {
            // Nothing else tells an operator why an element is not there.
            Some(Method::SendIdentity) => {
                self.log(connection, Level::Warn, "identity refused", now, || {
                    format!("its identity is refused: {}", excerpt(error))
                });
            }
            _ => debug!("{connection}: refused: {error}"),
        }
        if let Some((session, method)) = self.sessions.get_mut(&connection).zip(method) {
            session.counters.count_refused(method);
        }
        self.send(connection, Frame::failure(id, error));
    }
}

/// The role that takes a method.
fn role_for(method: Method) -> Role {
    match method {
        Method::EndpointDeclare
        | Method::EndpointUndeclare
        | Method::EndpointResolve
        | Method::EndpointUnresolve
        | Method::EndpointUpdate => Role::ENDPOINT_REGISTRY,
        Method::StateReport => Role::OBSERVER,
        _ => Role::POLICY_REPOSITORY,
    }
}
