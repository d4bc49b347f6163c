//! A handler with its test. The handler ends the session of an agent that sends no frame for a minute.
//! `cargo test --example tested_handler` is fast all the same, because the test sets the time.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use ssntp::pki::{Identity, Trust};
use ssntp::proto::Run;
use ssntp::server::{Context, DisconnectReason, Handler, SessionInfo};
use ssntp::{Role, Server, ServerConfig, Uuid};

const SILENCE: Duration = Duration::from_secs(60);

/// The time at which the session of each agent is ended.
#[derive(Default)]
struct Watchdog(BTreeMap<Uuid, Instant>);

impl Handler for Watchdog {
    fn connected(&mut self, cx: &mut Context<'_>, session: &SessionInfo) {
        if session.role().intersects(Role::AGENT) {
            self.0.insert(session.uuid(), cx.now() + SILENCE);
        }
    }

    fn run(&mut self, cx: &mut Context<'_>, from: &SessionInfo, _: &Run) {
        if let Some(end) = self.0.get_mut(&from.uuid()) {
            *end = cx.now() + SILENCE;
        }
    }

    fn disconnected(&mut self, _: &mut Context<'_>, session: &SessionInfo, _: &DisconnectReason) {
        self.0.remove(&session.uuid());
    }

    fn next_timer(&self) -> Option<Instant> {
        self.0.values().min().copied()
    }

    fn timer(&mut self, cx: &mut Context<'_>) {
        let now = cx.now();
        // `disconnected` removes the agents from the map.
        for (uuid, _) in self.0.iter().filter(|(_, end)| **end <= now) {
            cx.disconnect(*uuid);
        }
    }
}

fn main() -> Result<(), ssntp::MainError> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [ca, cert, address] = &args[..] else {
        return Err("usage: tested_handler CA CERT ADDRESS".into());
    };
    let config = ServerConfig::new(Identity::load(cert)?, Trust::load(ca)?).listen(address.parse()?);
    Server::start(config, Watchdog::default())?.wait();
    Ok(())
}

#[cfg(test)]
#[test]
fn only_an_agent_that_is_silent_for_a_minute_is_disconnected() -> Result<(), Box<dyn std::error::Error>> {
    let kit = ssntp::testkit::Testkit::new()?;
    let mut test = ssntp::testkit::HandlerTest::new(kit.server_config()?, Watchdog::default())?;
    let agent = kit.identity(Role::AGENT)?;
    let (silent, speaking) = (test.connect(&agent)?.uuid(), test.connect(&agent)?.uuid());
    for _ in 0..3 {
        test.advance(SILENCE / 2);
        test.receive(speaking, &ssntp::Frame::new(ssntp::Status::FULL));
    }
    assert!(!test.is_connected(silent) && test.is_connected(speaking));
    test.advance(SILENCE);
    assert!(!test.is_connected(speaking));
    Ok(())
}
