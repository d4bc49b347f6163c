//! Nodes that join with a token, and certificates that are renewed over a session.
//!
//! ```text
//!  newcomer with ALPN ssntp-join/1 ─▶ one request ─▶ a place ─▶ EnrolmentStore::update ─▶ one answer, the end
//!  session ─ RenewCertificate ─▶ dispatcher ─▶ a channel ─▶ thread ssntp-enrol ─▶ EnrolmentStore::update ─▶ reply
//! ```
//!
//! A connection with which a node joins has a slot of the newcomers until its request has been received, and then a
//! place of the enrolment: neither a store that is slow nor a wrong proof that waits keeps others from their
//! handshakes. No code of sessions runs for it. The store may block, so it is called by these two kinds of threads
//! alone.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::Receiver;
use log::{Level, error, info};

use super::config::Renewal;
use super::enrol::{Enrolment, Place};
use super::environment::Environment;
use super::handle::ServerHandle;
use super::log::{AUDIT, Named};
use crate::join::{JoinAnswer, MAX_REQUEST, message, receive};
use ssntp_pki::{Enrolled, JoinRefusal, JoinRequest, SigningRequest};
use ssntp_transport::{Duplex, Halves, Newcomer, excerpt, guard, refuse, threads, wall_clock};

/// The time for which a wrong proof waits for its answer, also if the node has ended its side.
const DELAY: Duration = Duration::from_secs(1);
/// The time for which the node may read after the answer.
const LINGER: Duration = Duration::from_secs(1);
/// The number of renewals that wait for the thread, of different UUIDs. Further ones are refused, and the client asks
/// again later.
pub(super) const RENEWALS: usize = 256;

/// Serves one connection with which a node joins, until its end.
pub(super) fn serve(
    enrolment: &Enrolment,
    environment: &Environment,
    newcomer: &Arc<Newcomer>,
    mut halves: Halves,
    deadline: Instant,
) {
    let request = match receive::<JoinRequest>(&mut halves, MAX_REQUEST, deadline) {
        Ok(request) => request,
        Err(e) => {
            let is_late = e.kind() == io::ErrorKind::TimedOut;
            environment.refused(newcomer, if is_late { "timeout" } else { "lost" });
            return environment.log_newcomer(newcomer, Level::Info, "no join", "", &e);
        }
    };
    let token = request.as_ref().map_or_else(
        |_| String::new(),
        |request| format!("token {}", excerpt(&request.id)),
    );
    let admitted = request.and_then(|request| {
        let signing = SigningRequest::from_pem(&request.request)?;
        let place = enrolment.place(newcomer.peer().host());
        Ok((request, signing, place.ok_or(JoinRefusal::Busy)?))
    });
    let goes_on = if admitted.is_ok() {
        newcomer.leave_slot()
    } else {
        newcomer.input_complete()
    };
    if !goes_on {
        return environment.refused(newcomer, "lost");
    }
    let (decided, place) = match admitted {
        Ok((request, signing, place)) => (enrolment.join(&request, &signing, wall_clock()), Some(place)),
        Err(why) => (Err(why), None),
    };
    let mut linger = LINGER;
    match &decided {
        Ok(enrolled) => {
            environment.handshakes.enrolled("joined");
            let peer = newcomer.peer();
            info!(target: AUDIT, "joined: {}: {peer}, {token}", shown(enrolled));
        }
        Err(why) => {
            environment.handshakes.enrolled(why.word());
            environment.log_newcomer(newcomer, Level::Warn, "no join", &token, why);
            if *why == JoinRefusal::Proof {
                if place.as_ref().is_some_and(Place::may_wait) {
                    newcomer.pause(DELAY);
                } else {
                    // So many nodes join that it has to make room for others at once.
                    linger = Duration::ZERO;
                }
            }
        }
    }
    let answer = JoinAnswer::new(decided.as_ref().map(|enrolled| enrolled.chain.clone()));
    refuse(&mut halves, Some(message(&answer)), linger);
}

/// A certificate in the log.
fn shown(enrolled: &Enrolled) -> impl fmt::Display {
    format!(
        "UUID {} ({}), serial {}",
        enrolled.uuid, enrolled.roles, enrolled.serial
    )
}

/// Starts the thread that renews certificates. It ends with the server, after the request that it answers.
pub(super) fn start(
    enrolment: Arc<Enrolment>,
    jobs: Receiver<Renewal>,
    handle: ServerHandle,
) -> io::Result<JoinHandle<()>> {
    threads::spawn("ssntp-enrol", move || {
        for (session, request) in jobs {
            let before = session.certificate();
            let trust = &handle.environment.active().credentials.trust;
            let mut renewed = Err(JoinRefusal::Unavailable);
            let renew = || renewed = enrolment.renew(before, request.payload(), trust, wall_clock());
            if let Err(why) = guard(renew) {
                error!(target: "ssntp::server", "the application panicked in the renewal of a certificate: {why}");
            }
            let word = renewed.as_ref().map_or_else(JoinRefusal::word, |_| "renewed");
            handle.environment.handshakes.enrolled(word);
            match &renewed {
                Ok(enrolled) => info!(target: AUDIT, "renewed: {}: {}", shown(enrolled), Named(before)),
                Err(why) => info!(target: AUDIT, "not renewed: {session}: {}: {why}", Named(before)),
            }
            let uuid = session.uuid();
            // A client that has gone meanwhile asks again in its next session.
            let answered = handle.with(move |cx| {
                cx.state.renewals.answered(uuid);
                match renewed {
                    Ok(enrolled) => cx.reply(&request, enrolled.chain),
                    Err(why) => cx.refuse(&request, &why.to_string()),
                }
            });
            if answered.is_err() {
                // The server has stopped: nobody waits for the other answers.
                return;
            }
        }
    })
}
