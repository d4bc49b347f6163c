//! An agent that waits at the same time for its server (`ssntp server --application
//! EVENT/0x80=Noted`), a timer, and lines of standard input. It sends each line as an event of its
//! own.
//!
//! ```text
//! cargo run --example agent_on_select -- certs/ca.pem certs/agent.pem localhost:8888
//! ```

use std::io::BufRead;
use std::time::Duration;

use ssntp::client::{Client, ClientConfig, ClientEvent};
use ssntp::crossbeam_channel::{Receiver, bounded, select, tick};
use ssntp::pki::{Identity, Trust};
use ssntp::proto::{FrameKind, FrameType, Operands};
use ssntp::{Frame, Status};

const NOTED: FrameKind = FrameKind::new(FrameType::EVENT, 0x80);

fn main() -> Result<(), ssntp::MainError> {
    let mut args = std::env::args().skip(1);
    let (Some(ca), Some(cert)) = (args.next(), args.next()) else {
        return Err("usage: agent_on_select CA CERT [ADDRESS]".into());
    };
    let address = args.next().unwrap_or("localhost:8888".into()).parse()?;
    let config = ClientConfig::new(Identity::load(cert)?, Trust::load(ca)?)
        .address(address)
        .operands(Operands::new().application(NOTED, "Noted")?);
    let client = Client::start(config)?;
    let (lines, report) = (lines()?, tick(Duration::from_secs(30)));
    loop {
        select! {
            recv(client.events()) -> event => match event? {
                ClientEvent::Connected(_) => send_ready(&client),
                ClientEvent::Frame(frame) => println!("{frame:?}"),
                ClientEvent::Disconnected { reason, .. } => println!("{reason}"),
                ClientEvent::Closed(why) => return Err(why.into()),
                _ => {}
            },
            recv(report) -> _ => send_ready(&client),
            recv(lines) -> line => match line {
                Ok(line) => send(&client, Frame::with_payload(NOTED, line)),
                Err(_) => break,
            },
        }
    }
    // At the end of the input, frames in the queue are still sent.
    client.flush(Duration::from_secs(5));
    Ok(())
}

fn send_ready(client: &Client) {
    let ready = format!("node_uuid: {}\n", client.uuid());
    send(client, Frame::with_payload(Status::READY, ready));
}

/// Sends a frame without blocking. If the queue is full, the error is printed.
fn send(client: &Client, frame: Frame) {
    if let Err(e) = client.try_send(frame) {
        println!("{e}");
    }
}

/// The lines of standard input as a channel, because `select!` cannot wait for standard input.
fn lines() -> std::io::Result<Receiver<String>> {
    let (sender, lines) = bounded(16);
    let read = move || {
        let input = std::io::stdin().lock().lines();
        let _ = input.map_while(Result::ok).try_for_each(|line| sender.send(line));
    };
    std::thread::Builder::new().name("stdin".into()).spawn(read)?;
    Ok(lines)
}
