//! Each method, carried out and answered.

use std::time::Instant;

use bytes::Bytes;
use log::{debug, info, warn};

use super::refusal::Refusal;
use super::resolves::{Resolve, Untold};
use super::session::Answer;
use super::{Action, RequestCounters, ServerCore, Store, send};
use crate::opflex::message::{ErrorCode, ErrorResponse, Identity, Method, Reply, Request, Role};
use crate::opflex::model::Name;
use crate::opflex::peer::{CloseReason, ConnectionId};
use crate::opflex::rpc::{EncodeError, Frame, Id};
use crate::printable::excerpt;

impl ServerCore {
    pub(super) fn request(
        &mut self,
        connection: ConnectionId,
        id: Id,
        request: Request,
        now: Instant,
        actions: &mut Vec<Action>,
    ) {
        let method = request.method();
        let done = || Reply::done(method).to_frame(&id);
        let (limits, default_prr) = (self.settings.limits, self.settings.default_prr);
        let element = self
            .sessions
            .get(&connection)
            .and_then(|session| session.element.as_ref());
        let element = element.map_or_else(|| Name::from(""), |element| element.name.clone());
        let answer = match request {
            Request::Echo(echo) => Ok(Frame::result(&id, &echo.answer())),
            Request::SendIdentity(identity) => self.identity(connection, &id, *identity, now, actions),
            _ if !self.settings.has(&role_for(method)) => Err(Refusal::new(
                ErrorCode::EUNSUPPORTED,
                format_args!("this server does not take {method}"),
            )),
            Request::PolicyResolve(resolves) => {
                let resolves = resolves.into_iter().map(Resolve::policy).collect();
                let untold = self.policy.resolve(connection, resolves, &limits, now);
                match untold {
                    Ok(untold) => return self.begin_answer(connection, id, Store::Policy, untold, actions),
                    Err(refusal) => Err(refusal),
                }
            }
            Request::PolicyUnresolve(unresolves) => {
                let targets = unresolves.iter().map(|unresolve| &unresolve.target);
                self.policy.unresolve(connection, targets);
                Ok(done())
            }
            Request::EndpointDeclare(mut declares) => {
                let objects = declares.iter_mut().map(|declare| &mut declare.endpoint);
                let schema = self.registry.endpoints.tree.schema();
                let unknown = schema.map_or(0, |schema| {
                    objects.map(|objects| schema.leave_out_unknown(objects)).sum()
                });
                self.tell_unknown(connection, method, unknown, now);
                let changes = self
                    .registry
                    .declare(&element, connection, declares, &self.settings, now);
                changes.map(|changes| {
                    self.tell_endpoints(&changes, now, actions);
                    done()
                })
            }
            Request::EndpointUndeclare(undeclares) => {
                let changes = self.registry.undeclare(&element, &undeclares);
                self.tell_endpoints(&changes, now, actions);
                Ok(done())
            }
            Request::EndpointResolve(resolves) => {
                let resolve = |resolve| Resolve::endpoint(resolve, default_prr);
                let resolves = resolves.into_iter().map(resolve).collect();
                let untold = self
                    .registry
                    .endpoints
                    .resolve(connection, resolves, &limits, now);
                match untold {
                    Ok(untold) => {
                        return self.begin_answer(connection, id, Store::Endpoints, untold, actions);
                    }
                    Err(refusal) => Err(refusal),
                }
            }
            Request::EndpointUnresolve(unresolves) => {
                let targets = unresolves.iter().map(|unresolve| &unresolve.target);
                self.registry.endpoints.unresolve(connection, targets);
                Ok(done())
            }
            Request::StateReport(mut reports) => {
                let objects = reports.iter_mut().map(|report| &mut report.observable);
                let schema = self.registry.endpoints.tree.schema();
                let unknown = schema.map_or(0, |schema| {
                    objects.map(|objects| schema.leave_out_unknown(objects)).sum()
                });
                self.tell_unknown(connection, method, unknown, now);
                self.observer.report(&element, reports, now).map(|()| done())
            }
            // A request of the wrong direction, which no role takes.
            Request::PolicyUpdate(_) | Request::EndpointUpdate(_) | Request::Custom(_) => Err(Refusal::new(
                ErrorCode::EUNSUPPORTED,
                format_args!("a server does not take {method}"),
            )),
        };
        match answer {
            Ok(frame) => send(connection, frame, actions),
            Err(refusal) => self.refuse(connection, &id, Some(method), &refusal.into(), now, actions),
        }
    }

    fn tell_unknown(&mut self, connection: ConnectionId, method: Method, unknown: usize, now: Instant) {
        if let Some(session) = self.sessions.get_mut(&connection) {
            session.counters.left_out += unknown as u64;
        }
        if unknown > 0
            && let Some(more) = self.log.admit(connection, "unknown to the model", now)
        {
            warn!(
                "{connection}: {method}: {unknown} objects and properties unknown to the model are left out{more}"
            );
        }
    }

    fn begin_answer(
        &mut self,
        connection: ConnectionId,
        id: Id,
        of: Store,
        untold: Untold,
        actions: &mut Vec<Action>,
    ) {
        if let Some(session) = self.sessions.get_mut(&connection) {
            session.answer = Some(Answer { id, of, untold });
            self.go_on(connection, actions);
        }
    }

    fn identity(
        &mut self,
        connection: ConnectionId,
        id: &Id,
        identity: Identity,
        now: Instant,
        actions: &mut Vec<Action>,
    ) -> Result<Result<Bytes, EncodeError>, Refusal> {
        let Some(session) = self.sessions.get_mut(&connection) else {
            return Err(Refusal::new(ErrorCode::ESTATE, "no session"));
        };
        let before = session.element.as_ref().map(|element| element.name.clone());
        let result = session.identify(identity, &self.settings)?;
        self.timers.set(connection, session.deadline(&self.settings));
        let name = session.element.as_ref().map(|element| element.name.clone());
        if before != name {
            // What it asked for counts for the name that it told last.
            if let Some(before) = &before {
                let most = self.settings.limits.agents;
                self.agents.left(before, &RequestCounters::default(), most);
            }
            if let Some(name) = &name {
                self.agents.came(name, now);
            }
        }
        if let Some(before) = before.filter(|before| self.names.get(before) == Some(&connection)) {
            self.names.remove(&before);
        }
        if let Some(name) = name {
            if let Some(more) = self.log.admit(connection, "identity", now) {
                info!("{connection} is {}{more}", excerpt(&name));
            }
            let other = self
                .names
                .insert(name, connection)
                .filter(|other| *other != connection);
            if let Some(other) = other.filter(|_| self.settings.unique_names) {
                self.close(other, CloseReason::Replaced, now, actions);
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
        actions: &mut Vec<Action>,
    ) {
        let error = ErrorResponse::new(ErrorCode::ESTATE, "the identity comes first");
        self.refuse(connection, id, method, &error, now, actions);
        self.close(
            connection,
            CloseReason::RequestBeforeIdentity(method),
            now,
            actions,
        );
    }

    pub(super) fn refuse(
        &mut self,
        connection: ConnectionId,
        id: &Id,
        method: Option<Method>,
        error: &ErrorResponse,
        now: Instant,
        actions: &mut Vec<Action>,
    ) {
        match method {
            // Nothing else tells an operator why an element is not there.
            Some(Method::SendIdentity) => {
                if let Some(more) = self.log.admit(connection, "identity refused", now) {
                    warn!("{connection}: its identity is refused: {}{more}", excerpt(error));
                }
            }
            _ => debug!("{connection}: refused: {error}"),
        }
        if let Some((session, method)) = self.sessions.get_mut(&connection).zip(method) {
            session.counters.count_refused(method);
        }
        send(connection, Frame::failure(id, error), actions);
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
