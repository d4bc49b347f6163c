//! The smallest server: it prints the frames that it receives, and forwards statistics of agents to
//! controllers.
//!
//! ```text
//! make certs
//! cargo run --example smallest_server -- certs/ca.pem certs/server.pem localhost:8888
//! ```

use ssntp::pki::{Identity, Trust};
use ssntp::server::{Context, DisconnectReason, Handler, Rules, SessionInfo};
use ssntp::{Command, Frame, Role, Server, ServerConfig};

struct Print;

impl Handler for Print {
    fn connected(&mut self, _: &mut Context<'_>, session: &SessionInfo) {
        println!("{session} connected");
    }

    fn disconnected(&mut self, _: &mut Context<'_>, session: &SessionInfo, reason: &DisconnectReason) {
        println!("{session} disconnected: {reason}");
    }

    fn frame(&mut self, _: &mut Context<'_>, from: &SessionInfo, frame: Frame) {
        println!(
            "{} of {} bytes from {}",
            frame.kind(),
            frame.payload_bytes().len(),
            from.uuid()
        );
    }
}

fn main() -> Result<(), ssntp::MainError> {
    let mut args = std::env::args().skip(1);
    let (Some(ca), Some(cert)) = (args.next(), args.next()) else {
        return Err("usage: smallest_server CA CERT [ADDRESS]".into());
    };
    let address = args.next().unwrap_or("localhost:8888".into()).parse()?;
    let config = ServerConfig::new(Identity::load(cert)?, Trust::load(ca)?)
        .listen(address)
        .rules(Rules::new().multicast(Command::STATS, Role::CONTROLLER));
    let server = Server::start(config, Print)?;
    println!("listening at {}", server.addresses()[0]);
    server.wait();
    Ok(())
}
