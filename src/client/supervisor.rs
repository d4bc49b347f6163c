//! The thread that keeps a client connected: it does what its [`ClientCore`] says.
//!
//! ```text
//!  step ─▶ Dial ──▶ connect, TLS, CONNECT ──▶ a session: reader and writer
//!   ▲      Wait ──▶ until then, or until a channel has something
//!   │      Abort, Join ──▶ the session's threads
//!   └───────────────────┘            End ──▶ the thread's end
//! ```

use std::sync::Arc;
use std::time::SystemTime;

use super::config::random_share;
use super::core::{At, ClientCore, Next, Trial};
use super::dial::{Dialer, say_goodbye};
use super::handle::now;
use ssntp_transport::Link;

/// The thread's state.
#[derive(Debug)]
pub(super) struct Supervisor {
    core: ClientCore,
    dialer: Dialer,
}

impl Supervisor {
    /// A supervisor that a thread is to [`run`](Self::run).
    pub(super) fn new(core: ClientCore) -> Self {
        let state = core.state();
        let dialer = Dialer::new(Arc::clone(&state.config), state.uuid, state.cancel.clone());
        Self { core, dialer }
    }

    pub(super) fn run(mut self) {
        let mut link: Option<Link> = None;
        loop {
            match self.core.step(present()) {
                Next::Dial(trial) => link = self.dial(&trial),
                Next::Wait(until) => self.core.wait(until),
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

    fn dial(&mut self, trial: &Trial) -> Option<Link> {
        let (standing, mut halves) = match self.dialer.dial(&trial.target, &trial.credentials.connector) {
            Ok(established) => established,
            Err(fault) => {
                self.core.dialled(Err(fault), present());
                return None;
            }
        };
        let Some(up) = self.core.dialled(Ok(standing), present()) else {
            say_goodbye(&mut halves);
            return None;
        };
        let config = self.core.link();
        self.core.begin(up, |decoder, outbox, sink| {
            Link::start(halves, decoder, outbox, sink, config)
        })
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "certificates are valid at a time of day"
)]
fn present() -> At {
    At {
        now: now(),
        wall: SystemTime::now(),
        share: random_share(),
    }
}
