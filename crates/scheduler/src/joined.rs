//! Joining a cluster of several schedulers that share an engine.

use std::sync::Arc;

use super::peers::Peers;
use super::scheduler::Scheduler;
use super::shared::Shared;
use ssntp::server::{CallError, Federation, Server, ServerConfig};
use ssntp_engine::{Engine, EngineError, Join, Member, Membership};

/// A scheduler that has joined a cluster, and its server.
#[derive(Debug)]
pub struct JoinedScheduler {
    /// The server.
    pub server: Server,
    /// The membership. If it is dropped, this scheduler becomes a follower and another one can lead.
    pub membership: Membership,
}

impl JoinedScheduler {
    /// Starts the scheduler as one of several that share an engine; otherwise like
    /// [`Scheduler::start`]. All schedulers accept clients and link with each other. One leads,
    /// and the others pass the frames of their clients on to it. The engine keeps the
    /// configuration and the tenants, and a new leader reads them there. Those of
    /// [`SchedulerConfig`](crate::SchedulerConfig) are used if the engine has none. `links` may
    /// name schedulers to link with besides the members of the cluster. `advertise` has the
    /// addresses at which the other schedulers reach this one; if it is empty, they are the
    /// addresses at which the server listens. Blocks until the engine has answered.
    ///
    /// # Errors
    /// [`JoinError`]; the server and all threads have ended then.
    pub fn start(
        mut scheduler: Scheduler,
        server: ServerConfig,
        links: Federation,
        engine: Box<dyn Engine>,
        advertise: Vec<String>,
    ) -> Result<Self, JoinError> {
        let shared = Arc::new(Shared::default());
        let enrolments = scheduler.begin_following(&shared);
        let server = scheduler.start(server.federate(links))?;
        let handle = server.handle();
        let addresses = if advertise.is_empty() {
            Peers::reachable(server.addresses())
        } else {
            advertise
        };
        let member = Member {
            uuid: server.uuid(),
            incarnation: handle.with(|cx| cx.incarnation())?,
            addresses,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            token: 0,
        };
        let viewed = Arc::clone(&shared);
        let join = Join { member, leads: true };
        let mut peers = Peers::of(&server);
        let membership = Membership::start(engine, join, move |view| {
            if let Some(peers) = &mut peers {
                peers.follow(view);
            }
            viewed.set_view(view);
            enrolments
                .iter()
                .for_each(|enrolments| enrolments.take_view(view));
            // A busy dispatcher may refuse the call. It reads the view before it sleeps anyway.
            let _ = handle.post(|_| ());
        })?;
        shared.set_documents(membership.documents());
        let _ = server.handle().post(|_| ());
        Ok(Self { server, membership })
    }
}

/// The reason why a scheduler could not join.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JoinError {
    /// The server could not be started.
    #[error(transparent)]
    Server(#[from] ssntp::server::ServerError),
    /// The engine did not admit it as a member.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The server ended before the scheduler had joined.
    #[error(transparent)]
    Ended(#[from] CallError),
}
