//! Several peers of a server that make a valid handshake, and then send frames that a script of any
//! bytes chooses: valid, almost valid and wrong frames of all kinds, each peer in its role. Shared
//! by fuzz targets and by tests with fixed scripts. [`peers`] connects to a server, [`cluster`] to a
//! scheduler with an agent.

mod cluster;

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use ssntp::pki::Identity;
use ssntp::proto::Operands;
use ssntp::proto::{Command, Event, Exchange, Frame, FrameKind, FrameType, Header, Step, Trace};
use ssntp::{Request, Role};
use ssntp_payload::{OpenStream, Outputs};

use ssntp::server::{Context, Filter, Handler, Rules, SessionInfo};
use ssntp::transport::Limits;
use uuid::Uuid;

use crate::{LIMIT, Peer, Received, TestServer, identity};

/// The roles of the peers. The last one has two.
const ROLES: [Role; 4] = [
    Role::AGENT,
    Role::CONTROLLER,
    Role::NETAGENT,
    Role::from_bits(Role::AGENT.bits() | Role::CNCIAGENT.bits()),
];

/// A frame without an answer, and a request.
const EVENT: FrameKind = FrameKind::new(FrameType::EVENT, 0x80);
const REQUEST: FrameKind = FrameKind::new(FrameType::COMMAND, 0x81);

/// The server's limit of payloads.
const MAX_PAYLOAD: u32 = 4096;

/// The time after which a peer gives up if the server does not read. The server holds senders back,
/// so that is not an error.
const PATIENCE: Duration = Duration::from_millis(200);

struct Answering;

impl Handler for Answering {
    fn frame(&mut self, cx: &mut Context<'_>, from: &SessionInfo, frame: Frame) {
        let _ = cx.send(from.uuid(), &Frame::with_payload(EVENT, frame.kind().to_string()));
    }

    fn request(&mut self, cx: &mut Context<'_>, _: &SessionInfo, request: Request) {
        let _ = cx.reply(&request, "yes");
    }
}

struct World {
    server: TestServer,
    identities: [Identity; 4],
    operands: Operands,
    kinds: Vec<FrameKind>,
    /// The agent of a scheduler.
    node: Option<cluster::Node>,
}

fn world() -> &'static World {
    static WORLD: OnceLock<World> = OnceLock::new();
    WORLD.get_or_init(|| {
        let operands = Operands::new().application(EVENT, "NOTED").unwrap();
        let operands = operands.request(REQUEST, "QUERY").unwrap();
        let all = Role::AGENT | Role::CONTROLLER | Role::NETAGENT | Role::CNCIAGENT;
        let server = TestServer::start(Answering, |config| {
            config
                .max_payload(MAX_PAYLOAD)
                .operands(operands.clone())
                .operators(Role::CONTROLLER)
                .tracing(true)
                .filter(Filter::spec().allow(EVENT, Role::AGENT).allow(REQUEST, all))
                .rules(
                    Rules::new()
                        .multicast(Command::STATS, Role::CONTROLLER)
                        .multicast(Command::START, Role::AGENT)
                        .multicast(Event::TENANT_ADDED, Role::CONTROLLER),
                )
                .queue(Limits {
                    frames: 1000,
                    bytes: 1 << 20,
                })
        });
        World {
            server,
            identities: ROLES.map(identity),
            operands,
            kinds: FrameKind::all().chain([EVENT, REQUEST]).collect(),
            node: None,
        }
    })
}

/// The rest of a script.
struct Script<'a>(&'a [u8]);

impl Script<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    fn bytes(&mut self, most: usize) -> Vec<u8> {
        let (taken, rest) = self.0.split_at(self.0.len().min(most));
        self.0 = rest;
        taken.to_vec()
    }
}

/// Plays a script at a server, and then checks that the server serves other clients and has no session
/// of the script's peers.
///
/// # Panics
/// The server has ended, blocks, or has sent a frame to a role to which no rule forwards it.
pub fn peers(script: &[u8]) {
    world().plays(script);
}

/// As [`peers`], at a scheduler with a real agent, which must be connected afterwards.
///
/// # Panics
/// As [`peers`], and if the agent has ended or does not reconnect.
pub fn cluster(script: &[u8]) {
    cluster::world().plays(script);
}

fn play(world: &World, script: &[u8]) {
    let mut script = Script(script);
    let mut uuids: Vec<Uuid> = ROLES.iter().map(|_| Uuid::new_v4()).collect();
    uuids.extend(world.node.as_ref().map(|node| node.uuid));
    let mut peers: [Option<Peer>; 4] = Default::default();
    while let (Some(who), Some(what)) = (script.byte(), script.byte()) {
        let at = usize::from(who % 4);
        let other = uuids[usize::from(who / 4) % uuids.len()];
        for (peer, role) in peers.iter_mut().zip(ROLES) {
            if peer.as_mut().is_some_and(|peer| !world.drain(peer, role)) {
                *peer = None;
            }
        }
        if peers[at].is_none() {
            // Sometimes with the UUID of another peer, which is refused or replaces that session.
            let uuid = if what == 0xff { other } else { uuids[at] };
            peers[at] = connect(world, at, uuid, what % 2 == 0);
        }
        let Some(peer) = &mut peers[at] else { continue };
        let Some(goes_on) = step(world, peer, what, other, &mut script) else {
            break;
        };
        if !goes_on {
            peers[at] = None;
        }
    }
}

/// `None` if the server refuses the peer.
fn connect(world: &World, at: usize, uuid: Uuid, trace: bool) -> Option<Peer> {
    let mut peer = world.server.dial(&world.identities[at]);
    peer.stream().set_write_timeout(Some(PATIENCE)).unwrap();
    let operands = world.operands.clone();
    peer.try_handshake(ROLES[at], uuid, trace, operands)
        .then_some(peer)
}

/// One step of a peer. Returns false if the peer has ended its session, and `None` at the end of the
/// script.
fn step(world: &World, peer: &mut Peer, what: u8, other: Uuid, script: &mut Script<'_>) -> Option<bool> {
    let kind = world.kinds[usize::from(script.byte()?) % world.kinds.len()];
    let of_cluster = world.node.as_ref().and_then(|_| cluster::sample(kind, other));
    let mut frame = Frame::with_payload(kind, of_cluster.unwrap_or_else(|| sample(kind, other)));
    if what % 16 == 14 {
        frame = frame.traced(Trace::new("fuzzed"));
    }
    let mut bytes = frame.encode().to_vec();
    match what % 16 {
        // The payload is damaged.
        6..=8 if bytes.len() > Header::LEN => {
            for damage in script.bytes(3) {
                let at = Header::LEN + usize::from(damage) % (bytes.len() - Header::LEN);
                bytes[at] ^= damage | 1;
            }
        }
        9 => bytes[usize::from(script.byte()?) % Header::LEN] ^= script.byte()? | 1,
        10 => bytes = script.bytes(64),
        // A frame that never ends, unless the next one completes it.
        11 => bytes.truncate(usize::from(script.byte()?)),
        12 => {
            let word = script
                .bytes(4)
                .into_iter()
                .fold(0, |word, byte| word << 8 | u32::from(byte));
            bytes[..Header::LEN].copy_from_slice(&Header::new(kind, word).encode());
        }
        13 => {
            peer.finish_if_possible();
            return Some(false);
        }
        _ => {}
    }
    Some(peer.try_send_bytes(&bytes).is_ok())
}

/// A payload that matches the schema of the kind.
fn sample(kind: FrameKind, other: Uuid) -> Vec<u8> {
    let text = match kind {
        REQUEST => {
            let exchange = Exchange {
                step: Step::Request,
                id: 7,
                peer: other,
            };
            return [&exchange.encode()[..], b"ping"].concat();
        }
        kind if kind == Command::OPEN_STREAM => {
            let open = OpenStream {
                stream: other,
                instance: other,
                outputs: Outputs::BOTH,
                follow: true,
                tail: None,
                credit: 1000,
            };
            return open.frame().payload_bytes().to_vec();
        }
        kind if kind == Command::KICK => format!("kick:\n  id: a\n  uuid: {other}\n  ban_s: 1\n"),
        kind if kind == Command::UNBAN => format!("unban:\n  id: a\n  uuid: {other}\n"),
        kind if kind == Command::WATCH => "watch:\n  id: a\n".to_owned(),
        kind if kind == Command::LIST_BANS => "list_bans:\n  id: a\n".to_owned(),
        kind if kind == Command::DRAIN_SERVER => format!("drain_server:\n  id: a\n  uuid: {other}\n"),
        kind if kind == Command::LIST_SERVERS => "list_servers:\n  id: a\n".to_owned(),
        kind if kind == Command::LIST_SESSIONS => "list_sessions:\n  id: a\n".to_owned(),
        kind if kind == Command::START => format!("start:\n  instance_uuid: {other}\n"),
        kind => format!(
            "{}:\n  instance_uuid: {other}\nnode_uuid: {other}\n",
            kind.operand
        ),
    };
    text.into_bytes()
}

impl World {
    fn plays(&self, script: &[u8]) {
        play(self, script);
        match &self.node {
            Some(node) => cluster::serves_others(self, node),
            None => self.serves_others(),
        }
    }

    /// The roles that may receive such a frame.
    fn receivers(&self, kind: FrameKind) -> Role {
        match self.node {
            _ if kind == Command::STATS || kind.is_of_operators() => Role::CONTROLLER,
            Some(_) if kind == Event::TENANT_ADDED => Role::CNCIAGENT,
            None if kind == Event::TENANT_ADDED => Role::CONTROLLER,
            Some(_) if kind == Command::START => Role::AGENT | Role::NETAGENT,
            None if kind == Command::START => Role::AGENT,
            _ => Role::ALL,
        }
    }

    /// Receives the frames that have arrived. Returns false if the session is over.
    fn drain(&self, peer: &mut Peer, role: Role) -> bool {
        for received in peer.arrived() {
            let Received::Frame(frame) = received else {
                return false;
            };
            let kind = frame.kind();
            assert!(role.intersects(self.receivers(kind)), "{role} got {kind}");
        }
        true
    }

    /// Checks that two new clients can exchange a frame, and that the server drops all other sessions.
    fn serves_others(&self) {
        let mut controller = connect(self, 1, Uuid::new_v4(), false).unwrap();
        let mut agent = connect(self, 0, Uuid::new_v4(), false).unwrap();
        let stats = Frame::with_payload(Command::STATS, format!("node_uuid: {}\n", agent.uuid));
        agent.send(&stats);
        while controller.frame() != stats {}
        drop((controller, agent));
        let deadline = Instant::now() + LIMIT;
        while !self.server.handle().sessions().unwrap().is_empty() {
            assert!(Instant::now() < deadline, "sessions are left");
            std::thread::yield_now();
        }
    }
}
