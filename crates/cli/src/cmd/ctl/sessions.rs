//! `ssntp ctl sessions`, and [`Operator`], a client that sends requests to its server. An answer repeats
//! the id of its request.

use std::time::{Duration, Instant};

use crossbeam_channel::Receiver;
use ssntp::Role;
use ssntp::client::{Client, ClientEvent};
use ssntp::payload::{
    BanEntry, Bans, Id, InvalidFrameType, ListBans, ListSessions, Payload, SessionEntry, Sessions,
};
use ssntp::proto::Frame;
use uuid::Uuid;

use super::options::Options;
use super::session::await_session;
use super::{json, tables};
use crate::clock::wall_clock;
use crate::cmd::table::print;
use crate::connection::{Waited, ended};
use crate::failure::Failure;
use crate::signals::Stop;

/// Show all sessions of the server
///
/// Works with `ssntp scheduler` and `ssntp server`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Only sessions with at least one of these roles, for example agent or agent,netagent
    #[arg(long, value_name = "ROLES")]
    role: Option<Role>,
}

pub(super) fn run(options: &Options, stop: &Stop, args: &Args) -> Result<(), Failure> {
    let sessions = Operator::open(options, stop)?.sessions(args.role)?;
    let now = wall_clock();
    print(options.json, tables::SESSIONS, &(), &sessions, |one| {
        json::session(one, now)
    })
}

/// A client that sends requests to its server.
pub(super) struct Operator<'a> {
    client: Client,
    options: &'a Options,
    stop: &'a Stop,
}

impl<'a> Operator<'a> {
    /// Connects, and waits until there is a session.
    pub(super) fn open(options: &'a Options, stop: &'a Stop) -> Result<Self, Failure> {
        let client = Client::start(options.client(stop)?)?;
        await_session(&client.handle(), "server", options.connect_limit(), stop)?;
        Ok(Self {
            client,
            options,
            stop,
        })
    }

    /// Sends a request, and waits for its answer for at most the time limit.
    pub(super) fn ask<Q: Payload, A: Payload>(
        &self,
        request: &Q,
        is_answer: impl Fn(&A) -> bool,
    ) -> Result<A, Failure> {
        self.client.send(Frame::of(request))?;
        let timeout = crossbeam_channel::after(self.options.limit());
        loop {
            let frame = match self.wait(&timeout)? {
                Waited::Event(ClientEvent::Frame(frame)) => frame,
                // The answer would come in the session that has ended.
                Waited::Event(ClientEvent::Disconnected { reason, .. }) => {
                    return Err(Failure::new(format!(
                        "the session ended before the answer: {reason}"
                    )));
                }
                Waited::Event(_) => continue,
                Waited::Stopped => return Err(self.stop.interrupted()),
                Waited::TimedOut => {
                    let seconds = self.options.limit().as_secs_f64();
                    return Err(Failure::new(format!(
                        "the server has not answered in {seconds} s"
                    )));
                }
            };
            // Other frames are events of the cluster, and late answers to requests that timed out. A
            // refusal has no id, so the kind of the refused frame is compared.
            if frame.kind() == A::KIND {
                let answer = frame.payload::<A>()?;
                if is_answer(&answer) {
                    return Ok(answer);
                }
            } else if let Ok(refusal) = frame.payload::<InvalidFrameType>()
                && refusal.refused() == Q::KIND
            {
                return Err(Failure::new(refusal_text(&refusal)));
            }
        }
    }

    /// Waits for this time, and drops the frames that arrive. Returns false if a signal comes first.
    pub(super) fn pause(&self, time: Duration) -> Result<bool, Failure> {
        let timeout = crossbeam_channel::after(time);
        loop {
            match self.wait(&timeout)? {
                Waited::Event(_) => {}
                Waited::Stopped => return Ok(false),
                Waited::TimedOut => return Ok(true),
            }
        }
    }

    /// Waits for the next event, for a signal, or for the timeout.
    fn wait(&self, timeout: &Receiver<Instant>) -> Result<Waited, Failure> {
        crossbeam_channel::select! {
            recv(self.client.events()) -> event => match event {
                Ok(ClientEvent::Closed(_)) | Err(_) => Err(ended(&self.client.handle())),
                Ok(event) => Ok(Waited::Event(event)),
            },
            recv(self.stop.channel()) -> _ => Ok(Waited::Stopped),
            recv(timeout) -> _ => Ok(Waited::TimedOut),
        }
    }

    /// All sessions with at least one of the roles, or all sessions.
    pub(super) fn sessions(&self, roles: Option<Role>) -> Result<Vec<SessionEntry>, Failure> {
        let (id, roles) = (new_id(), roles.map(|roles| roles.to_string()).unwrap_or_default());
        all_pages(|&after| {
            let (id, roles) = (id.clone(), roles.clone());
            let request = ListSessions { id, roles, after };
            let page: Sessions = self.ask(&request, |page: &Sessions| page.id == request.id)?;
            Ok((page.entries, page.next))
        })
    }

    /// The address at which this client has reached the server.
    pub(super) fn address(&self) -> Option<String> {
        Some(self.client.server()?.address.to_string())
    }

    /// All bans.
    pub(super) fn bans(&self) -> Result<Vec<BanEntry>, Failure> {
        let id = new_id();
        all_pages(|&after| {
            let request = ListBans {
                id: id.clone(),
                after,
            };
            let page: Bans = self.ask(&request, |page: &Bans| page.id == request.id)?;
            Ok((page.entries, page.next))
        })
    }
}

/// The entries of all pages. `page` requests the page that begins after a key, and returns its entries
/// and the key for the next page, which is 0 or empty after the last page.
pub(super) fn all_pages<K: PartialOrd + Default, T>(
    mut page: impl FnMut(&K) -> Result<(Vec<T>, K), Failure>,
) -> Result<Vec<T>, Failure> {
    let (mut after, mut all) = (K::default(), Vec::new());
    loop {
        let (entries, next) = page(&after)?;
        all.extend(entries);
        // Keys must grow, or a faulty server could keep this loop running.
        if next <= after {
            return Ok(all);
        }
        after = next;
    }
}

/// An id for a new request.
pub(in crate::cmd) fn new_id() -> Id {
    Uuid::new_v4().into()
}

/// The reason of a refusal, for people.
pub(in crate::cmd) fn refusal_text(refusal: &InvalidFrameType) -> String {
    let kind = refusal.refused();
    match refusal.reason.as_str() {
        "role_not_allowed" => format!(
            "the server does not allow {kind} for this controller: it has no operators, or another \
             controller is the master"
        ),
        "unsupported_operand" => format!("the server is too old: it does not know {kind}"),
        "too_many" => "too many operators watch already; end another `ssntp watch` first".into(),
        reason => format!("the server refuses {kind}: {reason}"),
    }
}
