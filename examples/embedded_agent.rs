//! An agent inside a tool with other work, which is counting primes here. The tool's loop never waits
//! for the network; the client's threads connect, reconnect and send in the background.
//!
//! ```text
//! cargo run --example embedded_agent -- certs/ca.pem certs/agent.pem localhost:8888
//! ```

use std::path::Path;
use std::time::{Duration, Instant};

use ssntp::client::{ClientEvent, Offline};
use ssntp::pki::{Identity, Trust};
use ssntp::transport::Limits;
use ssntp::{Client, ClientConfig, Command};
use ssntp_cluster::machine;
use ssntp_payload::NodeStatus;

/// The duration of the tool's work, and the interval of its reports.
const WORK: Duration = Duration::from_secs(2);
const INTERVAL: Duration = Duration::from_millis(500);

#[expect(clippy::disallowed_methods, reason = "a tool may read the clock")]
fn main() -> Result<(), ssntp::MainError> {
    let mut args = std::env::args().skip(1);
    let (Some(ca), Some(cert)) = (args.next(), args.next()) else {
        return Err("usage: embedded_agent CA CERT [ADDRESS]".into());
    };
    let address = args.next().unwrap_or("localhost:8888".into()).parse()?;
    // Frames that are sent without a session wait, up to a bound.
    let offline = Offline::Queue(Limits {
        frames: 100,
        bytes: 1 << 20,
    });
    let config = ClientConfig::new(Identity::load(cert)?, Trust::load(ca)?)
        .address(address)
        .offline(offline);
    let client = Client::start(config)?;

    let began = Instant::now();
    let (mut primes, mut candidate, mut reported) = (0u64, 2u64, None::<Instant>);
    while began.elapsed() < WORK {
        // The tool's own work.
        primes += u64::from(
            (2..)
                .take_while(|d| d * d <= candidate)
                .all(|d| !candidate.is_multiple_of(d)),
        );
        candidate += 1;
        // Handle the events that have arrived meanwhile.
        while let Ok(event) = client.try_recv() {
            match event {
                ClientEvent::Connected(server) => println!("connected to {}", server.uuid),
                ClientEvent::Frame(frame) if frame.kind() == Command::STOP => return Ok(()),
                ClientEvent::Closed(why) => return Err(why.into()),
                _ => {}
            }
        }
        if reported.is_none_or(|at| at.elapsed() >= INTERVAL) {
            reported = Some(Instant::now());
            let facts = machine::read(Path::new("/"));
            client.send_payload(&machine::stats(&facts, client.uuid(), NodeStatus::Ready))?;
        }
    }
    client.flush(Duration::from_secs(5));
    client.close();
    println!("{primes} primes below {candidate}");
    Ok(())
}
