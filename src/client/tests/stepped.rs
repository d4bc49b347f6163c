//! What a client decides, stepped: without threads, and in virtual time.

use super::*;
use crate::client::core::{At, ClientCore, Next, Trial};
use ssntp_transport::Role;
use std::io;
use std::time::SystemTime;

/// A client that a test steps, and what its time is.
struct Stepped {
    core: ClientCore,
    at: At,
}

impl Stepped {
    fn new(config: ClientConfig) -> Self {
        let (core, _) = ClientCore::new(config).unwrap();
        let at = At {
            now: Instant::now(),
            wall: SystemTime::now(),
            share: 1.0,
        };
        Self { core, at }
    }

    fn dials(&mut self) -> Trial {
        match self.core.step(self.at) {
            Next::Dial(trial) => trial,
            other => panic!("{other:?}"),
        }
    }

    /// Nobody listens there.
    fn fails(&mut self) {
        let refused = io::Error::from(io::ErrorKind::ConnectionRefused);
        let fault = DialFault::Connect(Arc::new(refused));
        assert!(self.core.dialled(Err(fault), self.at).is_none());
    }
}

#[test]
fn a_certificate_that_is_renewed_in_a_round_is_shown_at_the_next_attempt() {
    let servers = ["a:1", "b:1", "c:1"].map(|server| server.parse().unwrap());
    let mut client = Stepped::new(agent().addresses(servers));
    assert_eq!(client.dials().server, 0);
    let newer = identity(Role::AGENT);
    client.core.handle().renew(&newer, &trust()).unwrap();
    client.fails();
    // It begins a round of all servers.
    for server in [1, 2, 0] {
        let trial = client.dials();
        assert_eq!((trial.server, trial.identity().chain()), (server, newer.chain()));
        client.fails();
    }
    assert!(matches!(client.core.step(client.at), Next::Wait(Some(_))));
}
