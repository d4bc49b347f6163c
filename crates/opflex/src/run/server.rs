//! A server on threads: its owner, and the handshakes of clients.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crossbeam_channel::Receiver;
use log::warn;

use super::cluster::Cluster;
use super::config::{CallError, LocalSocket, SERVER_LOG as LOG, ServerConfig, StartError};
use super::connection::{Entrant, Shown, enter};
use super::handle::ServerHandle;
use super::keeper::{self, Keeper};
use super::machine::{self, Machine};
use super::server_side::{Newcomer as Request, ServerEvents, ServerSide};
use super::{control, inspector, own_copy};
use crate::message::Decoder;
use crate::model::Edit;
use crate::peer::host;
use crate::server::{self, ServerCore};
use ssntp_engine::{Engine, Membership};
use ssntp_pki::{CertificateDer, CertificateInfo};
use ssntp_transport::dispatch::{self, DispatchEvent, EVENTS, Settings};
use ssntp_transport::threads::Joined;
use ssntp_transport::tls::Acceptor;
use ssntp_transport::{
    Acceptance, Address, Budget, BufferPool, Duplex, Listener, LogLimit, More, Newcomer, PATIENCE,
    PeerAddress, Room, TcpOptions, after, locked, memory_for_queues, now, plain, since_1970, slots,
    wall_clock,
};

/// A running OpFlex server: policy repository, endpoint registry, observer.
///
/// # Threads
/// It owns every thread of the server. [`stop`](Self::stop), or dropping it, joins all of them,
/// which takes little longer than the configured grace at most. Other threads use a
/// [`ServerHandle`].
#[derive(Debug)]
pub struct Server {
    handle: ServerHandle,
    addresses: Vec<Address>,
    tls: Arc<Mutex<Tls>>,
    acceptance: Option<Acceptance>,
    /// The threads of the inspector and of control connections.
    local: Vec<Acceptance>,
    keeper: Option<Keeper>,
    cluster: Option<Cluster>,
    _dispatcher: Joined,
}

impl Server {
    /// Reads the kept policy, binds every address and starts the threads. Clients are accepted when
    /// this returns. Raises the process's soft limits of open files and processes to the hard limits.
    ///
    /// # Errors
    /// [`StartError`]; no thread is left running.
    pub fn start(config: ServerConfig) -> Result<Self, StartError> {
        Self::begin(config, None)
    }

    /// As [`start`](Self::start), as one of several servers that share an engine and have the
    /// same policy. An edit on any of them changes the policy of all, and fails while the engine
    /// is away. The policy of `config` is used only if the engine has none yet. Each server lists
    /// the members to its elements, which then connect to all of them. `advertise` is the address
    /// of this server for elements; the default is the first address at which it listens. Blocks until
    /// the engine has answered.
    ///
    /// # Errors
    /// [`StartError`]; no thread is left running.
    pub fn start_joined(
        config: ServerConfig,
        engine: Box<dyn Engine>,
        advertise: Option<String>,
    ) -> Result<Self, StartError> {
        Self::begin(config, Some((engine, advertise)))
    }

    fn begin(
        mut config: ServerConfig,
        join: Option<(Box<dyn Engine>, Option<String>)>,
    ) -> Result<Self, StartError> {
        // First, so that a server for which the system's limits are too low never listens.
        let room = Room::claim(config.max_handshakes, config.max_connections, LOG)
            .map_err(StartError::TooManyConnections)?;
        // Before the first element can connect, because it would get an empty answer.
        let core = core(&config)?;
        // The handshake threads keep the configuration, which must not keep a copy of the policy.
        config.policy = Vec::new();
        let (mut listeners, mut places) = (Vec::new(), Vec::new());
        for address in &config.listen {
            let bound = Listener::bind(address, TcpOptions::default())
                .map_err(|e| StartError::Listen(address.clone(), e))?;
            for listener in bound {
                places.push(match listener.local_address() {
                    Some(unix @ Address::Unix(_)) => Some(unix.to_string()),
                    _ => None,
                });
                listeners.push(listener);
            }
        }
        let addresses: Vec<Address> = listeners.iter().filter_map(Listener::local_address).collect();
        for (place, address) in &config.memory {
            listeners.push(Listener::memory(place.clone()));
            places.push(Some(address.clone()));
        }
        let (events, queue) = dispatch::events::channel(EVENTS);
        let keeper = match &config.keep {
            Some(path) => {
                let source = events.clone();
                let text = Box::new(move || own_copy::text(&source));
                Some(Keeper::start(path.clone(), text).map_err(StartError::Thread)?)
            }
            None => None,
        };
        let sender = || keeper.as_ref().map(Keeper::sender);
        let side = ServerSide::new(core, sender(), room.sessions);
        // Any host may connect, so the queues of all clients share one limit, of which each host gets at
        // most half.
        let (budget, received) = Budget::for_queues_and_received(memory_for_queues());
        let settings = Settings {
            queue: config.queue,
            budget,
            received,
            patience: PATIENCE,
            parting: config.write_timeout,
            grace: config.grace,
        };
        let dispatcher = Machine::new(side).spawn("opflex-dispatch", settings, queue)?;
        let handle = ServerHandle {
            events: events.clone(),
            keeper: sender(),
            edits: Arc::default(),
            cluster: None,
            occupancy: None,
        };
        let tls = Arc::new(Mutex::new(Tls {
            acceptor: config.tls.take(),
            generation: 0,
        }));
        let mut server = Self {
            handle,
            addresses,
            tls: Arc::clone(&tls),
            acceptance: None,
            local: Vec::new(),
            keeper,
            cluster: None,
            _dispatcher: dispatcher,
        };
        // From here on, dropping `server` joins the threads.
        // Before clients are accepted, because joining may replace the policy.
        if let Some((engine, advertise)) = join {
            let in_memory = || config.memory.first().map(|(_, address)| address.clone());
            let first = server.addresses.first().map(ToString::to_string);
            let address = advertise.or(first).or_else(in_memory).unwrap_or_default();
            let server::ServerSettings { roles, peers, .. } = &config.settings;
            let cluster = Cluster::join(engine, address, &events, roles, peers, config.schema.clone())?;
            server.handle.cluster = Some(Arc::clone(&cluster.shared));
            server.cluster = Some(cluster);
        }
        // After joining, so that no control connection edits the policy without the cluster.
        if let Some(path) = &config.control {
            let control = control::start(&LocalSocket::new(path), server.handle(), config.limits)?;
            server.local.push(control);
        }
        if let Some(socket) = &config.inspector {
            server.local.push(inspector::start(socket, events.clone())?);
        }
        let context = HandshakeContext {
            places,
            tls,
            pool: BufferPool::new(),
            events,
            config,
            log: Mutex::default(),
        };
        let serve = Box::new(move |newcomer: &Arc<Newcomer>| context.serve(newcomer));
        let acceptance = Acceptance::start(listeners, "opflex", LOG, room.handshakes, slots::PATIENCE, serve)
            .map_err(StartError::Thread)?;
        server.handle.occupancy = Some(acceptance.occupancy());
        server.acceptance = Some(acceptance);
        Ok(server)
    }

    /// The addresses at which the server listens, with the ports that the system chose.
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// Replaces TLS: the certificate and the trusted authorities. New handshakes use `acceptor`;
    /// handshakes that began with the former acceptor are refused. The certificates of connected
    /// clients are checked again, on this thread, and clients with a certificate that is not accepted
    /// any more are disconnected. Returns the number of these clients.
    ///
    /// # Errors
    /// [`CallError::Tls`] if a revocation list is older than the one in force;
    /// [`CallError::Stopped`], [`CallError::OnDispatcher`].
    pub fn renew(&self, acceptor: Acceptor) -> Result<usize, CallError> {
        let generation = {
            let mut tls = locked(&self.tls);
            if let Some(former) = &tls.acceptor {
                acceptor.check_follows(former)?;
            }
            tls.acceptor = Some(acceptor.clone());
            // Handshakes that began before have the former generation and are refused.
            tls.generation += 1;
            tls.generation
        };
        let events = &self.handle.events;
        let clients: Vec<(_, Shown)> = machine::call(events, move |Machine { side, peers }, _, _| {
            side.generation = side.generation.max(generation);
            let clients = peers.iter();
            clients
                .map(|(client, peer)| (client, peer.shown.clone()))
                .collect()
        })?;
        let now = wall_clock();
        // On this thread, because verifying all certificates would block the dispatcher.
        let untrusted = clients.into_iter().filter_map(|(connection, shown)| {
            let why = acceptor.objection(&shown, now)?;
            Some((connection, why))
        });
        let untrusted: Vec<_> = untrusted.collect();
        machine::call(events, |machine, now, actions| {
            machine.end_untrusted(untrusted, now, actions)
        })
    }

    /// The membership in a cluster, if the server has joined one.
    pub fn membership(&self) -> Option<&Arc<Membership>> {
        self.cluster.as_ref().map(|cluster| &cluster.membership)
    }

    /// A handle for other threads.
    pub fn handle(&self) -> ServerHandle {
        self.handle.clone()
    }

    /// A channel that is closed when the server's dispatcher ends. Before [`stop`](Self::stop) the
    /// reason is a panic, which is in the log. The server does not work any more then, so its owner
    /// should end the process, and a service manager should start it again.
    pub fn running(&self) -> &Receiver<Infallible> {
        self.handle.events.life()
    }

    /// Accepts no more clients, sends the queues within the grace period, closes every connection,
    /// writes the kept policy, and joins every thread.
    pub fn stop(self) {
        drop(self);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let events = self.handle.events.clone();
        // The dispatcher handles events until `Exit`, so the threads below can finish their calls.
        let _ = events.send(DispatchEvent::Stop);
        if let Some(acceptance) = self.acceptance.take() {
            acceptance.stop();
        }
        // Before the control connections, whose edits may wait for the engine.
        self.cluster = None;
        // Before the keeper, for which edits of control connections may wait.
        self.local.drain(..).for_each(Acceptance::stop);
        // An edit of the application may be under way, too.
        self.handle.edits.end();
        self.keeper = None;
        let _ = events.send(DispatchEvent::Exit);
    }
}

/// The core with its first policy.
fn core(config: &ServerConfig) -> Result<ServerCore, StartError> {
    let now = now();
    let mut core = ServerCore::with_schema(config.settings.clone(), config.schema.as_ref(), now);
    if config.settings.any_domain {
        warn!(target: LOG, "elements of every domain are accepted, and all of them get the same policy");
    }
    let kept = match &config.keep {
        Some(path) => keeper::read(path)?,
        None => None,
    };
    let from = config.keep.as_ref().filter(|_| kept.is_some());
    let policy = kept.unwrap_or_else(|| config.policy.clone());
    // No client is connected yet, so no updates are sent.
    core.edit(Edit::Merge(policy), now).map_err(|why| match from {
        Some(path) => StartError::KeptPolicy(path.clone(), why),
        None => StartError::Policy(why),
    })?;
    core.begin_at_revision(first_revision());
    Ok(core)
}

/// The first revision: microseconds since 1970. It is higher than any revision of an earlier process
/// of this server, because a policy changes less than once in a microsecond on average. If the clock was
/// set back it is lower, but still another one: revisions are only compared for being equal. JSON can
/// represent it exactly.
fn first_revision() -> u64 {
    since_1970(wall_clock())
        .as_micros()
        .try_into()
        .unwrap_or(u64::MAX)
}

/// The acceptor for the TLS handshakes of newcomers.
#[derive(Debug)]
struct Tls {
    acceptor: Option<Acceptor>,
    /// The number of times that it was replaced.
    generation: u64,
}

/// The state that all handshake threads share.
struct HandshakeContext {
    /// The address for clients of each listener. `None` for TCP, for which the stream has it.
    places: Vec<Option<String>>,
    tls: Arc<Mutex<Tls>>,
    pool: BufferPool,
    events: ServerEvents,
    config: ServerConfig,
    /// Limits the log lines that newcomers cause, by host.
    log: Mutex<LogLimit<String>>,
}

impl HandshakeContext {
    /// Counts a log line of a peer. `None` if its host has caused too many lines.
    fn admit_line(&self, peer: &PeerAddress, what: &'static str) -> Option<More> {
        let mut log = locked(&self.log);
        log.admit(host(&peer.to_string()).to_owned(), what, now())
    }

    /// Carries out the handshake of a newcomer, and asks the dispatcher to admit it.
    fn serve(&self, newcomer: &Arc<Newcomer>) {
        let Some(place) = self.places.get(newcomer.listener()) else {
            return;
        };
        let (peer, stream) = (newcomer.peer(), newcomer.stream());
        let of_stream = || {
            let ip = stream.local()?;
            Some(std::net::SocketAddr::new(ip.ip().to_canonical(), ip.port()).to_string())
        };
        let dialled = place.clone().or_else(of_stream);
        let (acceptor, generation) = {
            let tls = locked(&self.tls);
            (tls.acceptor.clone(), tls.generation)
        };
        let (halves, shown): (_, Shown) = match acceptor {
            Some(acceptor) => {
                let deadline = after(newcomer.accepted(), self.config.handshake_timeout);
                match acceptor.accept(stream, &self.pool, deadline) {
                    Ok(secured) => (secured.halves, secured.peer.into()),
                    Err(e) => {
                        if let Some(more) = self.admit_line(&peer, "no TLS") {
                            warn!(target: LOG, "{peer}: refused: no TLS: {e}{more}");
                        }
                        return;
                    }
                }
            }
            None => (plain(stream, self.pool.clone()), Shown::default()),
        };
        // The handshake may have been cut to make room for another one.
        if !newcomer.admitted() {
            return;
        }
        let decoder = Decoder::new(self.config.limits);
        // Parsed here, because it takes time that the dispatcher needs.
        let certificate = shown.first();
        let named = certificate.filter(|_| self.config.settings.name_from_certificate);
        let client = server::Client {
            address: peer.to_string(),
            dialled,
            certified: named.and_then(CertificateInfo::common_name),
            expires: certificate.and_then(end_of),
        };
        let request = Request {
            client,
            peer: Entrant {
                name: peer.to_string(),
                shown,
                identified: decoder.identified(),
            },
            generation,
        };
        let entered = enter(
            &self.events,
            request,
            halves,
            decoder,
            "opflex",
            self.config.write_timeout,
        );
        if let Err(Some(why)) = entered
            && let Some(more) = self.admit_line(&peer, "refused")
        {
            warn!(target: LOG, "{peer}: refused: {why}{more}");
        }
    }
}

/// The time at which a certificate ends.
fn end_of(certificate: &CertificateDer<'_>) -> Option<Instant> {
    let not_after = CertificateInfo::from_der(certificate).ok()?.not_after;
    // The second that `not_after` names belongs to the lifetime.
    let left = not_after.duration_since(wall_clock()).unwrap_or_default() + Duration::from_secs(1);
    now().checked_add(left)
}

#[cfg(test)]
mod tests {

    use super::*;

    #[test]
    fn the_channel_of_a_server_closes_when_its_dispatcher_panics() {
        let place = ssntp_transport::memory::MemoryListener::new();
        let settings = crate::server::ServerSettings::new("pr1", "test");
        let server = Server::start(ServerConfig::new(settings).listen_in_memory(&place, "pr1:1")).unwrap();
        let still = server.running().recv_timeout(Duration::from_millis(1));
        assert_eq!(still, Err(crossbeam_channel::RecvTimeoutError::Timeout));
        let panics = DispatchEvent::Call(Box::new(|_: &mut Machine<ServerSide>, _, _| panic!("on purpose")));
        server.handle.events.send(panics).map_err(drop).unwrap();
        let ended = server.running().recv_timeout(Duration::from_secs(30));
        assert_eq!(ended, Err(crossbeam_channel::RecvTimeoutError::Disconnected));
        assert!(matches!(server.handle().sessions(), Err(CallError::Stopped)));
        server.stop();
    }
}
