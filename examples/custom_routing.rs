//! Routing by the payload of a frame: STOP goes to the node in its payload, and is held at the server
//! until that node connects.
//!
//! Server and clients run in one process, over memory, with temporary certificates:
//! `cargo run --example custom_routing`

use std::time::Duration;

use ssntp::payload::Stop;
use ssntp::pki::{Authority, AuthorityRequest, CertificateRequest, Identity};
use ssntp::server::{Context, Decision, Handler, Rules, SessionInfo};
use ssntp::transport::memory::MemoryListener;
use ssntp::{Client, ClientConfig, Command, Frame, Role, Server, ServerConfig, Uuid};

/// The node that a STOP is for.
fn target(frame: &Frame) -> Option<Uuid> {
    frame.payload::<Stop>().ok()?.workload_agent_uuid.uuid()
}

/// Releases the held frames of a node when it connects.
struct ReleaseOnConnect;

impl Handler for ReleaseOnConnect {
    fn connected(&mut self, cx: &mut Context<'_>, session: &SessionInfo) {
        let node = session.uuid();
        let waiting: Vec<_> = cx
            .held()
            .filter(|held| target(&held.frame) == Some(node))
            .map(|held| held.id)
            .collect();
        for id in waiting {
            println!("released for {node}: {id}");
            cx.release(id, &[node]);
        }
    }
}

fn main() -> Result<(), ssntp::MainError> {
    let authority = Authority::new(&AuthorityRequest::default())?;
    let identity = |role| -> Result<Identity, ssntp::pki::Error> {
        Ok(authority.issue(&CertificateRequest::new(role))?.identity())
    };
    let rules = Rules::new().route(Command::STOP, |frame, _from, directory| match target(frame) {
        Some(node) if directory.session(node).is_some() => Decision::Forward(vec![node]),
        Some(_) => Decision::Queue,
        None => Decision::Discard,
    });
    let listener = MemoryListener::new();
    let config = ServerConfig::new(identity(Role::SERVER)?, authority.trust())
        .listen_in_memory(&listener)
        .rules(rules);
    let server = Server::start(config, ReleaseOnConnect)?;
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
