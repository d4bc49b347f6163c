//! Any bytes that another server may send over its link, to a server that the test steps. Shared by a
//! fuzz target and by the test that runs its seeds.
#![allow(
    clippy::expect_used,
    clippy::new_without_default,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a fuzz target fails by panicking"
)]

use std::convert::Infallible;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime};

use bytes::BytesMut;
use crossbeam_channel::{Receiver, bounded};
use ssntp::Role;
use ssntp::pki::{Authority, AuthorityRequest, CertificateInfo, CertificateRequest};
use ssntp::proto::{ClientHandshake, Command, Connect, Frame, FrameKind, FrameType, Header, Item};
use ssntp::server::{ClusterHandler, Context, Federation, Handler, Rules, ServerConfig, SessionInfo};
use ssntp::simulation::{Entry, EntryStep, Environment, Grant, ServerCore};
use ssntp_transport::dispatch::{Admitted, DispatchEvent, Runner, Settings, Threads};
use ssntp_transport::flow::Credit;
use ssntp_transport::memory::pair;
use ssntp_transport::{Budget, Decode, Limits, PeerAddress};
use uuid::Uuid;

const MAX_PAYLOAD: u32 = 64 * 1024;
/// The UUID of a session of the server, to which frames may be addressed.
const CLIENT: Uuid = Uuid::from_u128(0x11);

/// The certificates and keys that all inputs share.
struct Made {
    config: Box<dyn Fn(u128) -> ServerConfig + Send + Sync>,
    environment: Arc<Environment>,
    /// The HELLO of the other server.
    hello: Vec<u8>,
    server: CertificateInfo,
    client: CertificateInfo,
}

fn made() -> &'static Made {
    static MADE: OnceLock<Made> = OnceLock::new();
    MADE.get_or_init(|| {
        let authority = Authority::new(&AuthorityRequest::default()).unwrap();
        let issue = |role| authority.issue(&CertificateRequest::new(role)).unwrap();
        let (server, client) = (issue(Role::SERVER), issue(Role::AGENT));
        let info = |chain: &[_]| CertificateInfo::from_der(&chain[0]).unwrap();
        let (identity, trust) = (server.identity().clone(), authority.trust().clone());
        let config = move |uuid| {
            ServerConfig::new(identity.clone(), trust.clone())
                .uuid(Uuid::from_u128(uuid))
                .max_payload(MAX_PAYLOAD)
                .rules(Rules::new().multicast(Command::STATS, Role::AGENT))
                .federate(Federation::new())
        };
        let other = Environment::new(&config(2)).unwrap();
        let (core, _) = core(config(2), &other);
        Made {
            environment: Environment::new(&config(1)).unwrap(),
            config: Box::new(config),
            hello: core.hello().to_vec(),
            server: info(server.identity().chain()),
            client: info(client.identity().chain()),
        }
    })
}

/// Answers each frame, so that frames are sent back over the link.
struct Answers;

impl Handler for Answers {
    fn frame(&mut self, cx: &mut Context<'_>, from: &SessionInfo, frame: Frame) {
        let _ = cx.send(from.uuid(), &frame);
    }

    fn cluster(&mut self) -> Option<&mut dyn ClusterHandler> {
        Some(self)
    }
}

impl ClusterHandler for Answers {
    fn server_message(&mut self, cx: &mut Context<'_>, server: Uuid, message: bytes::Bytes) {
        let _ = cx.send_to_server(server, message);
    }
}

fn core(config: ServerConfig, environment: &Arc<Environment>) -> (ServerCore, Receiver<Infallible>) {
    let (open, stopped) = bounded(0);
    let core = ServerCore::new(
        config,
        Arc::clone(environment),
        10,
        Box::new(Answers),
        open,
        now(),
    );
    (core.unwrap(), stopped)
}

#[expect(clippy::disallowed_methods, reason = "any time will do to begin with")]
fn now() -> Instant {
    Instant::now()
}

struct NoThreads;

impl Threads for NoThreads {
    fn join(self) {}
}

struct Server {
    runner: Runner<ServerCore, NoThreads>,
    now: Instant,
}

impl Server {
    fn handle(&mut self, event: DispatchEvent<ServerCore, NoThreads>) {
        self.runner.handle(event, self.now);
        while !self.runner.is_idle() {
            self.runner.turn(self.now, || Duration::ZERO);
        }
        assert_eq!(self.runner.flow().fault(), None);
    }

    /// Receives bytes of a peer.
    fn take(&mut self, from: &mut Admitted<Grant>, input: &mut BytesMut) {
        let (mut items, bytes) = (Vec::new(), input.len() as u64);
        let _ = from.grant.decoder.decode(input, &mut items);
        let memory = Credit::memory_of::<Item>(items.len(), bytes);
        from.credit.spend(memory);
        self.handle(DispatchEvent::Items(from.id, items, bytes));
    }

    /// Takes all steps of an entry that receives only `input`.
    fn bring_in(&mut self, mut entry: Entry, input: &mut BytesMut) -> Option<Admitted<Grant>> {
        let (mut step, mut admitted) = (entry.begin(input, SystemTime::UNIX_EPOCH), None);
        loop {
            step = match step {
                EntryStep::Receive => entry.received(input, true, SystemTime::UNIX_EPOCH),
                EntryStep::Claim(call, word) => {
                    self.handle(DispatchEvent::Call(call));
                    entry.claimed(word.try_recv().ok())
                }
                EntryStep::Admit(arrival) => {
                    let (reply, verdict) = bounded(1);
                    self.handle(DispatchEvent::Admit(arrival, Arc::new(pair().0), reply));
                    match verdict.try_recv().expect("every newcomer gets a verdict") {
                        Ok(granted) => {
                            let step = entry.decided(Ok(&granted.grant));
                            admitted = Some(granted);
                            step
                        }
                        Err(refusal) => entry.decided(Err(refusal)),
                    }
                }
                EntryStep::Send(_) => entry.sent(),
                EntryStep::Start => {
                    let admitted = admitted.take()?;
                    self.handle(DispatchEvent::Started(admitted.id, Ok(NoThreads)));
                    return Some(admitted);
                }
                EntryStep::End(why) => {
                    let _ = (why.to_string(), why.answer(&made().environment));
                    return None;
                }
            };
        }
    }
}

fn settings(budget: u64) -> Settings {
    let second = Duration::from_secs(1);
    Settings {
        queue: Limits {
            frames: 100,
            bytes: 64 << 10,
        },
        budget: Budget::new(budget),
        received: Budget::new(budget),
        patience: second,
        parting: second,
        grace: second,
    }
}

/// A server that has links to others, and knows their sessions.
pub struct Directory {
    server: Server,
    links: Vec<Admitted<Grant>>,
    _stopped: Receiver<Infallible>,
}

impl Directory {
    pub fn new() -> Self {
        let made = made();
        let (core, stopped) = core((made.config)(1), &made.environment);
        let server = Server {
            runner: Runner::new(core, settings(1 << 30), || true),
            now: now(),
        };
        Self {
            server,
            links: Vec::new(),
            _stopped: stopped,
        }
    }

    /// Links it with another server, which reports `sessions` sessions of agents.
    pub fn link(&mut self, sessions: usize) {
        /// The entries in one frame.
        const ROWS: usize = 500;
        let made = made();
        let other = 2 + self.links.len() as u128;
        let environment = Environment::new(&(made.config)(other)).unwrap();
        let mut input = BytesMut::from(core((made.config)(other), &environment).0.hello());
        let chain = vec![made.server.der.clone()];
        let entry = Entry::server(
            &made.environment,
            made.server.clone(),
            chain,
            PeerAddress::Memory,
            None,
        );
        let mut admitted = self.server.bring_in(entry, &mut input).expect("a link");
        let mut frames = 0;
        while frames < sessions {
            let rows = ROWS.min(sessions - frames);
            let mut fields = 0u64.to_be_bytes().to_vec();
            fields.push(u8::from(frames + rows == sessions));
            for number in frames..frames + rows {
                let uuid = Uuid::from_u128(other << 64 | number as u128);
                fields.extend_from_slice(uuid.as_bytes());
                // Its number, the token and the stamp.
                for word in [number as u64, 0, number as u64] {
                    fields.extend_from_slice(&word.to_be_bytes());
                }
                fields.extend_from_slice(&Role::AGENT.bits().to_be_bytes());
                let address = format!("10.{}.{}.{}:40000", other, number / 256, number % 256);
                fields.push(0);
                fields.extend_from_slice(&u16::try_from(address.len()).unwrap().to_be_bytes());
                fields.extend_from_slice(address.as_bytes());
            }
            let mut header = Header::new(FrameKind::new(FrameType(0x4c), 1), 0);
            header.word = u32::try_from(fields.len()).unwrap();
            input.extend_from_slice(&header.encode());
            input.extend_from_slice(&fields);
            self.server.take(&mut admitted, &mut input);
            frames += rows;
        }
        self.links.push(admitted);
    }

    /// The number of known sessions of other servers.
    pub fn sessions(&mut self) -> usize {
        let mut known = 0;
        let mut actions = Vec::new();
        let core = self.server.runner.core_mut();
        core.call(self.server.now, &mut actions, |cx| known = cx.directory().len());
        known
    }
}

/// The first byte chooses whether a valid HELLO comes before the other bytes. After any bytes the
/// server still runs, its counters are right, and all memory is released at the end.
pub fn link(data: &[u8]) {
    let [options, rest @ ..] = data else { return };
    let made = made();
    let settings = settings(1 << 20);
    let (core, _stopped) = core((made.config)(1), &made.environment);
    let mut server = Server {
        runner: Runner::new(core, settings.clone(), || true),
        now: now(),
    };
    let connect = Connect::new(Role::AGENT, CLIENT, false);
    let mut input = BytesMut::new();
    input.extend(ClientHandshake::new(connect, Role::ALL, None, MAX_PAYLOAD).connect());
    let memory = PeerAddress::Memory;
    let entry = Entry::client(
        &made.environment,
        made.client.clone(),
        vec![made.client.der.clone()],
        memory,
    );
    let client = server
        .bring_in(entry, &mut input)
        .expect("the client is admitted");
    let mut input = BytesMut::new();
    if options & 1 == 0 {
        input.extend_from_slice(&made.hello);
    }
    input.extend_from_slice(rest);
    let chain = vec![made.server.der.clone()];
    let entry = Entry::server(&made.environment, made.server.clone(), chain, memory, None);
    let peer = server.bring_in(entry, &mut input);
    let mut all = vec![client];
    if let Some(mut admitted) = peer {
        server.take(&mut admitted, &mut input);
        all.push(admitted);
    }
    // The server still serves its own client.
    let header = Header::new(FrameKind::new(FrameType::COMMAND, Command::STATS.0), 0);
    let stats = Frame::new(header.kind);
    let mut served = false;
    server.runner.core_mut().call(server.now, &mut Vec::new(), |cx| {
        served = cx.directory().session(CLIENT).is_none() || cx.send(CLIENT, &stats).is_ok();
    });
    assert!(served, "the client of the server is not reached");
    server.handle(DispatchEvent::Stop);
    for admitted in all {
        admitted.outbox.abort();
        admitted.outbox.discard();
        server.handle(DispatchEvent::Finished(admitted.id));
    }
    server.handle(DispatchEvent::Exit);
    assert!(server.runner.is_over());
    drop(server);
    assert_eq!((settings.budget.used(), settings.received.used()), (0, 0));
}
