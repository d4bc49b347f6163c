//! The smallest client: it sends its statistics, and prints the frames that arrive within a second.
//!
//! ```text
//! cargo run --example smallest_client -- certs/ca.pem certs/agent.pem localhost:8888
//! ```

use std::time::Duration;

use ssntp::pki::{Identity, Trust};
use ssntp::{Client, ClientConfig, Command, Frame};

fn main() -> Result<(), ssntp::MainError> {
    let mut args = std::env::args().skip(1);
    let (Some(ca), Some(cert)) = (args.next(), args.next()) else {
        return Err("usage: smallest_client CA CERT [ADDRESS]".into());
    };
    let address = args.next().unwrap_or("localhost:8888".into()).parse()?;
    let config = ClientConfig::new(Identity::load(cert)?, Trust::load(ca)?)
        .address(address)
        .attempts(5);
    let client = Client::connect(config)?;
    if let Some(server) = client.server() {
        println!("connected to {} ({})", server.uuid, server.role);
    }
    client.send(Frame::with_payload(Command::STATS, "load: 1\n"))?;
    while let Ok(frame) = client.recv_frame_timeout(Duration::from_secs(1)) {
        println!(
            "{}: {}",
            frame.kind(),
            String::from_utf8_lossy(frame.payload_bytes())
        );
    }
    client.close();
    Ok(())
}
