//! `ssntp ctl sessions`, and the questions to a server.

use ssntp::Role;
use ssntp::payload::{Id, ListSessions, SessionEntry, Sessions};
use ssntp_daemon::Failure;
use ssntp_transport::wall_clock;
use ssntp_view::all_pages;
use uuid::Uuid;

use super::{Invocation, Session, json, tables};
use crate::cmd::table::print;

/// Show all sessions of the server
///
/// Works with `ssntp scheduler` and `ssntp server`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Only sessions with at least one of these roles, for example agent or agent,netagent
    #[arg(long, value_name = "ROLES")]
    role: Option<Role>,
}

pub(super) fn run(cx: &Invocation, args: &Args) -> Result<(), Failure> {
    let sessions = all(&Session::open_any(cx)?, args.role)?;
    let now = wall_clock();
    print(cx.options.json, tables::SESSIONS, &(), &sessions, |one| {
        json::session(one, now)
    })
}

/// All sessions with at least one of the roles, or all sessions.
pub(super) fn all(session: &Session<'_>, roles: Option<Role>) -> Result<Vec<SessionEntry>, Failure> {
    let (id, roles) = (new_id(), roles.map(|roles| roles.to_string()).unwrap_or_default());
    all_pages(|&after| {
        let (id, roles) = (id.clone(), roles.clone());
        let request = ListSessions { id, roles, after };
        let page: Sessions = session.ask(&request, |page: &Sessions| page.id == request.id, false)?;
        Ok((page.entries, page.next))
    })
}

/// An id for a new request.
pub(in crate::cmd) fn new_id() -> Id {
    Uuid::new_v4().into()
}
