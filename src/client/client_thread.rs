//! The thread that keeps a client connected: it carries out the decisions of its [`ClientCore`].
//!
//! ```text
//!  step ─▶ Dial ──▶ connect, TLS, CONNECT ──▶ a session: reader and writer
//!   ▲      Wait ──▶ until a time, or until a channel is ready
//!   │      Abort, Join ──▶ the session's threads
//!   └───────────────────┘            End ──▶ the thread's end
//! ```

use std::sync::Arc;

use super::core::{At, ClientCore, Next, Trial};
use super::dial::{Dialer, refuse_session};
use super::handle::ClientHandle;
use crate::jitter::random_share;
use ssntp_transport::{Link, now, wall_clock};

/// Closes the client at the end of the client's thread. The client has ended before, unless the thread
/// panicked, for example in a signer of the application. Without this, all callers that wait for a
/// session or an event would wait for ever.
struct CloseAtEnd(ClientHandle);

impl Drop for CloseAtEnd {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// Runs a client until it has ended.
pub(super) fn run(mut core: ClientCore) {
    let _close = CloseAtEnd(core.handle());
    let state = core.state();
    let dialer = Dialer::new(Arc::clone(&state.config), state.uuid, state.cancel.clone());
    let mut link: Option<Link> = None;
    loop {
        match core.step(present()) {
            Next::Dial(trial) => link = dial(&mut core, &dialer, &trial),
            Next::Wait(until) => core.wait(until),
            Next::Abort => link.iter().for_each(Link::abort),
            Next::Join => {
                if let Some(link) = link.take() {
                    link.join();
                }
            }
            Next::End => return,
        }
    }
}

/// Makes one attempt, and starts the threads of the session if there is one.
fn dial(core: &mut ClientCore, dialer: &Dialer, trial: &Trial) -> Option<Link> {
    let (standing, mut halves) = match dialer.dial(&trial.target, &trial.credentials.connector) {
        Ok(established) => established,
        Err(fault) => {
            core.dialled(Err(fault), present());
            return None;
        }
    };
    let Some(up) = core.dialled(Ok(standing), present()) else {
        // The client was closed during the attempt.
        refuse_session(&mut halves, None);
        return None;
    };
    let config = core.link();
    core.begin(up, |decoder, outbox, sink| {
        Link::start(halves, decoder, outbox, sink, config)
    })
}

fn present() -> At {
    At {
        now: now(),
        wall: wall_clock(),
        share: random_share(),
    }
}
