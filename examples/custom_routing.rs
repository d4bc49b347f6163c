//! Routing by the payload of a frame: STOP goes to the node in its payload. The application keeps a STOP
//! for a node that is not connected, and sends it when that node connects.
//!
//! Server and clients run in one process, over memory, with temporary certificates:
//! `cargo run --example custom_routing`

use std::time::Duration;

use ssntp::pki::{Authority, AuthorityRequest, CertificateRequest, Identity};
use ssntp::server::{Context, Handler, Rules, SessionInfo};
use ssntp::transport::memory::MemoryListener;
use ssntp::{Client, ClientConfig, Command, Frame, Role, Server, ServerConfig, Uuid};
use ssntp_payload::Stop;

/// The node that a STOP is for.
fn target(frame: &Frame) -> Option<Uuid> {
    frame.payload::<Stop>().ok()?.workload_agent_uuid.uuid()
}

/// The maximum number of frames that are kept, so that no client can fill the memory.
const MOST: usize = 1000;

/// Keeps the frames for nodes that are not connected.
#[derive(Default)]
struct Later(Vec<(Uuid, Frame)>);

impl Handler for Later {
    fn frame(&mut self, cx: &mut Context<'_>, _from: &SessionInfo, frame: Frame) {
        if let Some(node) = target(&frame)
            && cx.directory().session(node).is_none()
            && self.0.len() < MOST
        {
            self.0.push((node, frame));
        }
    }

    fn connected(&mut self, cx: &mut Context<'_>, session: &SessionInfo) {
        let node = session.uuid();
        for (_, frame) in self.0.extract_if(.., |(to, _)| *to == node) {
            println!("sent later to {node}");
            let _ = cx.send(node, &frame);
        }
    }
}

fn main() -> Result<(), ssntp::MainError> {
    let authority = Authority::new(&AuthorityRequest::default())?;
    let identity = |role| -> Result<Identity, ssntp::pki::Error> {
        Ok(authority.issue(&CertificateRequest::new(role))?.identity())
    };
    let rules = Rules::new().route(Command::STOP, |frame, _from, directory| match target(frame) {
        Some(node) if directory.session(node).is_some() => vec![node],
        _ => Vec::new(),
    });
    let listener = MemoryListener::new();
    let config = ServerConfig::new(identity(Role::SERVER)?, authority.trust())
        .listen_in_memory(&listener)
        .rules(rules);
    let server = Server::start(config, Later::default())?;
    let connect = |role, uuid: Uuid| -> Result<Client, Box<dyn std::error::Error>> {
        let config = ClientConfig::new(identity(role)?, authority.trust())
            .connect_in_memory(&listener)
            .uuid(uuid);
        Ok(Client::connect(config)?)
    };

    let controller = connect(Role::CONTROLLER, Uuid::new_v4())?;
    let node = Uuid::new_v4();
    let stop = |instance: Uuid| Stop {
        instance_uuid: instance.into(),
        workload_agent_uuid: node.into(),
        stop: false,
    };
    controller.send_payload(&stop(Uuid::new_v4()))?;
    controller.flush(Duration::from_secs(5));
    let agent = connect(Role::AGENT, node)?;
    controller.send_payload(&stop(Uuid::new_v4()))?;
    for n in 1..=2 {
        let frame = agent.recv_frame_timeout(Duration::from_secs(5))?;
        println!("STOP {n}: {}", frame.payload::<Stop>()?.instance_uuid);
    }
    agent.close();
    controller.close();
    server.stop();
    Ok(())
}
