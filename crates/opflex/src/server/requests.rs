//! The methods: requests are carried out and answered.

use std::time::Instant;

use bytes::Bytes;
use log::{Level, debug};

use super::resolves::Unsent;
use super::session::{Answer, Session};
use super::{Action, RequestCounters, ServerCore, Store};
use crate::message::{ErrorCode, ErrorResponse, Identity, Method, Reply, Request, Resolve, Role};
use crate::model::{ManagedObject, Name, Target};
use crate::peer::{CloseReason, ConnectionId};
use crate::rpc::{EncodeError, Frame, Id};
use ssntp_transport::excerpt;

impl ServerCore {
    /// Carries out a request in one step, for which all other clients wait. The limit for the memory of a
    /// message's values keeps it below 100,000 objects; 20,000 endpoints took 0.6 s in a debug build on a
    /// machine that had much else to do.
    pub(super) fn request(&mut self, connection: ConnectionId, id: Id, request: Request, now: Instant) {
        let method = request.method();
        let done = || Reply::done(method).to_frame(&id);
        let element = self
            .sessions
            .get(&connection)
            .and_then(|session| session.element.as_ref());
        // Without an element, the method is one that needs no identity and does not use the name.
        let element = element.map_or_else(|| Name::from(""), |element| element.name.clone());
        let answer = match request {
            Request::Echo(echo) => Ok(Frame::result(&id, &echo.answer())),
            Request::SendIdentity(identity) => self.identity(connection, &id, *identity, now),
            _ if !self.settings.has(&role_for(method)) => Err(ErrorResponse::boxed(
                ErrorCode::EUNSUPPORTED,
                format_args!("this server does not take {method}"),
            )),
            Request::Resolve(of, resolves) => {
                self.log_other_classes(connection, of, &resolves, now);
                match self.stores[of].resolve(connection, resolves, &self.settings, now) {
                    Ok(unsent) => return self.begin_answer(connection, id, of, unsent),
                    Err(refusal) => Err(refusal),
                }
            }
            Request::Unresolve(of, unresolves) => {
                // An unresolve without a resolve succeeds, too: libopflex never repeats an unresolve.
                for Resolve { target, .. } in &unresolves {
                    self.stores[of].watchers.unwatch(&connection, target);
                }
                Ok(done())
            }
            Request::EndpointDeclare(mut declares) => {
                let objects = declares.iter_mut().map(|declare| &mut declare.endpoint);
                // As libopflex. A refusal would stop an agent with a newer model.
                self.leave_out_unknown(connection, method, objects, now);
                let tree = &mut self.stores[Store::Endpoints].tree;
                let changes =
                    self.ownership
                        .declare(tree, &element, connection, declares, &self.settings, now);
                changes.map(|changes| {
                    self.send_updates(Store::Endpoints, &changes, now);
                    done()
                })
            }
            Request::EndpointUndeclare(undeclares) => {
                let tree = &mut self.stores[Store::Endpoints].tree;
                let changes = self.ownership.undeclare(tree, &element, &undeclares);
                self.send_updates(Store::Endpoints, &changes, now);
                Ok(done())
            }
            Request::StateReport(mut reports) => {
                let objects = reports.iter_mut().map(|report| &mut report.observable);
                self.leave_out_unknown(connection, method, objects, now);
                self.observer.report(&element, reports, now).map(|()| done())
            }
            // Only a server sends updates.
            Request::Update(..) | Request::Custom(_) => Err(ErrorResponse::boxed(
                ErrorCode::EUNSUPPORTED,
                format_args!("a server does not take {method}"),
            )),
        };
        match answer {
            Ok(frame) => self.actions.send(connection, frame),
            Err(refusal) => self.refuse(connection, &id, Some(method), &refusal, now),
        }
    }

    /// Removes objects and properties that the model does not define, as libopflex does, and logs
    /// and counts them.
    fn leave_out_unknown<'a>(
        &mut self,
        connection: ConnectionId,
        method: Method,
        objects: impl Iterator<Item = &'a mut Vec<ManagedObject>>,
        now: Instant,
    ) {
        let unknown: usize = match self.policy().schema() {
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

    /// Logs resolves whose class is not the class of the object. They are answered without the
    /// object and without an error: agent-ovs resolves `GbpSubnets` with the URI of a
    /// `GbpSubnet`, and would repeat a refused resolve for ever.
    fn log_other_classes(&mut self, connection: ConnectionId, of: Store, resolves: &[Resolve], now: Instant) {
        for Resolve { subject, target, .. } in resolves {
            if let Target::Uri(uri) = target
                && let Some(there) = self.stores[of].tree.get(uri)
                && there.subject() != subject
            {
                let there = there.subject().clone();
                self.log(connection, Level::Warn, "other class", now, || {
                    let text = format!("{uri} is a {there}, not a {subject}: the answer has no object");
                    excerpt(text).to_string()
                });
            }
        }
    }

    fn begin_answer(&mut self, connection: ConnectionId, id: Id, of: Store, unsent: Unsent) {
        if let Some(session) = self.sessions.get_mut(&connection) {
            session.answer = Some(Answer {
                id,
                of,
                unsent,
                is_begun: false,
            });
            self.continue_answer(connection);
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
            // The requests of a session count for its latest name.
            if let Some(before) = &before {
                let most = self.settings.limits.agents;
                self.agents
                    .session_ended(before, &RequestCounters::default(), most);
            }
            if let Some(name) = &name {
                self.agents.session_began(name, now);
            }
        }
        if let Some(name) = name {
            // If any domain is allowed, the log shows the domains of elements.
            let domain = domain.filter(|domain| *domain != self.settings.domain);
            let domain = domain.map_or_else(String::new, |domain| format!(" of the domain {domain:?}"));
            self.log(connection, Level::Info, "identity", now, || {
                format!("its name is {}{}", excerpt(&name), excerpt(&domain))
            });
            // A search, and no table by name: sessions send their identity once.
            let is_same = |(other, session): &(&ConnectionId, &Session)| {
                let element = session.element.as_ref();
                **other != connection && element.is_some_and(|element| element.name == name)
            };
            let sessions = self.sessions.iter();
            let other = sessions.filter(|_| self.settings.unique_names).find(is_same);
            if let Some(other) = other.map(|(other, _)| *other) {
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
        // The answer is sent before the connection ends, so that the peer gets the reason.
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
            // A warning: no other line shows why an element is missing.
            Some(Method::SendIdentity) => {
                self.log(connection, Level::Warn, "identity refused", now, || {
                    format!("its identity is refused: {}", excerpt(error))
                });
            }
            _ => debug!("{connection}: refused: {}", excerpt(error)),
        }
        if let Some((session, method)) = self.sessions.get_mut(&connection).zip(method) {
            session.counters.count_refused(method);
        }
        self.actions.send(connection, Frame::failure(id, error));
    }
}

/// The role of a server that a method is for.
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
