//! A server on threads, from outside.

use std::convert::Infallible;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::SystemTime;

use crossbeam_channel::Receiver;
use log::warn;

use super::cluster::Cluster;
use super::connection::{Shown, enter};
use super::control;
use super::editing::Editing;
use super::figures::ServerFigures;
use super::inspector;
use super::keeper::{self, Keeper};
use super::machine::{self, Machine};
use super::server_side::{self, ServerEvents, ServerSide};
use super::{CallError, LocalSocket, SERVER_LOG as LOG, ServerConfig, ServerContext, StartError, now};
use crate::message::Decoder;
use crate::model::{Edit, ManagedObject};
use crate::peer::host;
use crate::server::{self, AgentInfo, ServerCore, SessionInfo};
use ssntp_engine::{Engine, Membership};
use ssntp_transport::dispatch::{self, DispatchEvent, EVENTS, Settings};
use ssntp_transport::pki::CertificateInfo;
use ssntp_transport::tls::Acceptor;
use ssntp_transport::{
    Acceptance, Address, Budget, BufferPool, Duplex, Listener, Newcomer, Occupancy, PATIENCE, PeerAddress,
    Room, after, memory_for_queues, plain,
};
use ssntp_transport::{LogLimit, More};

/// Agents that are copied in one go.
const AGENTS: usize = 500;

/// A running OpFlex server: policy repository, endpoint registry, observer.
///
/// # Threads
/// The owner of every thread of the server. [`stop`](Self::stop), or dropping
/// it, ends all of them: it blocks for at most the configured grace and a
/// moment. Other threads use a [`ServerHandle`].
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
    dispatcher: Option<JoinHandle<()>>,
}

impl Server {
    /// Reads the kept policy, binds every address and starts the threads;
    /// clients are accepted when this returns. Raises the process's soft limits
    /// of open files and processes to its hard ones.
    ///
    /// # Errors
    /// [`StartError`]; nothing runs then.
    pub fn start(config: ServerConfig) -> Result<Self, StartError> {
        Self::begin(config, None)
    }

    /// As [`start`](Self::start), as one of several servers that share an engine and have the
    /// same policy. An edit on any of them changes the policy of all, and fails while the engine
    /// is away. The policy of `config` is used only if the engine has none yet. Each server names
    /// the members to its elements, which then connect to all of them. `advertise` is the address
    /// at which elements reach this one; without it, the first one that it listens at. Blocks until
    /// the engine has answered.
    ///
    /// # Errors
    /// [`StartError`]; nothing runs then.
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
        // First, so that a server whose threads or descriptors the system does not allow never
        // listens.
        let room = Room::claim(config.max_handshakes, config.max_connections, LOG)
            .map_err(StartError::TooManyConnections)?;
        // The kept policy is read before the first element can connect. Otherwise that element
        // would be answered that there is no policy.
        let core = core(&config)?;
        // The handshakes keep the configuration, which should not keep a second policy.
        config.policy = Vec::new();
        let (mut listeners, mut places) = (Vec::new(), Vec::new());
        for address in &config.listen {
            let bound =
                Listener::bind(address, config.tcp).map_err(|e| StartError::Listen(address.clone(), e))?;
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
                let copied = events.clone();
                let copy = Box::new(move || server_side::copy_policy(&copied).map(|(_, objects)| objects));
                Some(Keeper::start(path.clone(), copy).map_err(StartError::Thread)?)
            }
            None => None,
        };
        let asked = || keeper.as_ref().map(Keeper::sender);
        let side = ServerSide::new(core, asked(), room.sessions);
        // There may be many clients, and any host may connect: all their queues share one bound.
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
            editing: Editing {
                events: events.clone(),
                keeper: asked(),
                cluster: None,
            },
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
            dispatcher: Some(dispatcher),
        };
        // From here on, dropping `server` ends the threads that run already.
        // Before clients are accepted, so that none is sent the policy that the cluster replaces.
        if let Some((engine, advertise)) = join {
            let named = || config.memory.first().map(|(_, address)| address.clone());
            let first = server.addresses.first().map(ToString::to_string);
            let address = advertise.or(first).or_else(named).unwrap_or_default();
            let server::Settings { roles, peers, .. } = &config.settings;
            let cluster = Cluster::join(engine, address, &events, roles, peers, config.schema.clone())?;
            server.handle.editing.cluster = Some(cluster.shared());
            server.cluster = Some(cluster);
        }
        // After joining, so that no edit of a control connection is made past the cluster.
        if let Some(path) = &config.control {
            let editing = server.handle.editing.clone();
            let control = control::start(&LocalSocket::new(path), editing, config.limits)?;
            server.local.push(control);
        }
        // Started before clients are accepted: a program that looks meanwhile sees a server without
        // clients.
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
        let acceptance = Acceptance::start(listeners, "opflex", LOG, room.handshakes, serve)
            .map_err(StartError::Thread)?;
        server.handle.occupancy = Some(acceptance.occupancy());
        server.acceptance = Some(acceptance);
        Ok(server)
    }

    /// The addresses it listens at, with the ports that the system chose.
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// Replaces TLS: the certificate and the trusted authorities. Newcomers have their handshake
    /// with it; a handshake that began with the former one is refused. The certificates of
    /// connected clients are checked again, on this thread, and clients whose certificate is not
    /// accepted any more are disconnected. Returns how many those are.
    ///
    /// # Errors
    /// [`CallError::Tls`] if a revocation list is older than the one in force;
    /// [`CallError::Stopped`], [`CallError::OnDispatcher`].
    pub fn renew(&self, acceptor: Acceptor) -> Result<usize, CallError> {
        let generation = {
            let mut tls = self.tls.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(former) = &tls.acceptor {
                acceptor.check_follows(former)?;
            }
            tls.acceptor = Some(acceptor.clone());
            // A handshake that began before has the old number and is refused at admission.
            tls.generation += 1;
            tls.generation
        };
        let events = &self.handle.editing.events;
        let clients = server_side::tls_replaced(events, generation)?;
        let now = time_of_day();
        // On this thread: verifying the certificates of all clients would hold up the dispatcher.
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
        self.cluster.as_ref().and_then(Cluster::membership)
    }

    /// A handle for other threads.
    pub fn handle(&self) -> ServerHandle {
        self.handle.clone()
    }

    /// A channel that is closed once the server's dispatcher has ended. Before
    /// [`stop`](Self::stop) the reason is a panic, which is in the log. The server does nothing
    /// any more then, so its owner should end the process, and a supervisor should start it again.
    pub fn running(&self) -> &Receiver<Infallible> {
        self.handle.editing.events.life()
    }

    /// Accepts no more clients, flushes the queues within the grace period, closes every
    /// connection, writes the kept policy, and joins every thread.
    pub fn stop(self) {
        drop(self);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let events = self.handle.editing.events.clone();
        // The dispatcher takes events until the last one, so nothing here
        // waits for long.
        let _ = events.send(DispatchEvent::Stop);
        // Before the dispatcher, which newcomers under way still ask to be admitted.
        if let Some(acceptance) = self.acceptance.take() {
            acceptance.stop();
        }
        // Before the control connections, whose edits may wait for the engine.
        self.cluster = None;
        // Before the keeper, which edits that are under way still wait for.
        self.local.drain(..).for_each(Acceptance::stop);
        if let Some(keeper) = self.keeper.take() {
            keeper.stop();
        }
        let _ = events.send(DispatchEvent::Exit);
        if let Some(dispatcher) = self.dispatcher.take() {
            let _ = dispatcher.join();
        }
    }
}

/// The state machine with the policy that it begins with.
fn core(config: &ServerConfig) -> Result<ServerCore, StartError> {
    let now = now();
    let mut core = match &config.schema {
        Some(schema) => ServerCore::with_schema(config.settings.clone(), schema, now),
        None => ServerCore::new(config.settings.clone(), now),
    };
    if config.settings.any_domain {
        warn!(target: LOG, "elements of every domain are taken, whatever policy they are meant to have");
    }
    let kept = match &config.keep {
        Some(path) => keeper::read(path)?,
        None => None,
    };
    let policy = kept.unwrap_or_else(|| config.policy.clone());
    // No client is connected yet, so no updates are sent.
    core.edit(Edit::Merge(policy), now).map_err(StartError::Policy)?;
    core.begin_at_revision(first_revision());
    Ok(core)
}

/// Microseconds since 1970. That is more than any revision of an earlier process of this server,
/// because a policy changes less often than once in a microsecond, and JSON can represent it
/// exactly.
fn first_revision() -> u64 {
    let since_1970 = time_of_day().duration_since(SystemTime::UNIX_EPOCH);
    since_1970
        .unwrap_or_default()
        .as_micros()
        .try_into()
        .unwrap_or(u64::MAX)
}

/// Certificates are valid by this clock, and no other outlives a process.
#[expect(clippy::disallowed_methods, reason = "the time of day")]
fn time_of_day() -> SystemTime {
    SystemTime::now()
}

/// The acceptor for the TLS handshakes of newcomers.
#[derive(Debug)]
struct Tls {
    acceptor: Option<Acceptor>,
    /// How often it was replaced.
    generation: u64,
}

/// The state that all handshake threads share.
struct HandshakeContext {
    /// The address that clients of each listener have dialled; `None` if they used TCP, and their
    /// streams know it.
    places: Vec<Option<String>>,
    tls: Arc<Mutex<Tls>>,
    pool: BufferPool,
    events: ServerEvents,
    config: ServerConfig,
    /// Limits the log lines that newcomers cause, by host.
    log: Mutex<LogLimit<String>>,
}

impl HandshakeContext {
    fn may_say(&self, peer: &PeerAddress, what: &'static str) -> Option<More> {
        let mut log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        log.admit(host(&peer.to_string()), what, now())
    }

    /// Brings one newcomer in, or refuses it.
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
            let tls = self.tls.lock().unwrap_or_else(PoisonError::into_inner);
            (tls.acceptor.clone(), tls.generation)
        };
        let (halves, shown): (_, Shown) = match acceptor {
            Some(acceptor) => {
                let deadline = after(newcomer.accepted(), self.config.handshake_timeout);
                match acceptor.accept(stream, &self.pool, deadline) {
                    Ok(secured) => (secured.halves, secured.peer.into()),
                    Err(e) => {
                        if let Some(more) = self.may_say(&peer, "no TLS") {
                            warn!(target: LOG, "{peer}: refused: no TLS: {e}{more}");
                        }
                        return;
                    }
                }
            }
            None => (plain(stream, self.pool.clone()), Shown::default()),
        };
        // The acceptor cuts the slowest handshake when it needs the place.
        if !newcomer.admitted() {
            return;
        }
        let decoder = Decoder::new(self.config.limits);
        // Read here and not on the dispatcher, which would read one for each newcomer.
        let certificate = shown
            .first()
            .filter(|_| self.config.settings.name_from_certificate);
        let request = server_side::Newcomer {
            certified: certificate.and_then(CertificateInfo::common_name),
            dialled,
            peer: peer.to_string(),
            shown,
            identified: decoder.identified(),
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
            && let Some(more) = self.may_say(&peer, "refused")
        {
            warn!(target: LOG, "{peer}: refused: {why}{more}");
        }
    }
}

/// A handle by which other threads use a server.
///
/// # Threads
/// Cheap to clone, and `Send`. Every call waits for the dispatcher to do it,
/// usually for some microseconds. A call that changes policy also waits until the change is in
/// the file or the engine that keeps policy, if there is one.
#[derive(Clone)]
pub struct ServerHandle {
    editing: Editing,
    /// Counts the handshakes under way. Set once the server accepts clients.
    occupancy: Option<Arc<Occupancy>>,
}

impl fmt::Debug for ServerHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerHandle").finish_non_exhaustive()
    }
}

impl ServerHandle {
    /// Runs `call` on the dispatcher, and gives back what it returns: the way
    /// to everything that [`ServerContext`] offers.
    ///
    /// # Errors
    /// [`CallError::Stopped`], also where `call` panicked;
    /// [`CallError::OnDispatcher`].
    pub fn with<T: Send + 'static>(
        &self,
        call: impl FnOnce(&mut ServerContext<'_>) -> T + Send + 'static,
    ) -> Result<T, CallError> {
        server_side::call(&self.editing.events, call)
    }

    /// Changes policy, and returns how many objects have changed. More than a thousand objects
    /// to be merged are checked as a whole and then put in piece by piece. What a reload changes
    /// is found out on this thread, and put in like that. One of several servers changes the
    /// policy of all of them, and returns when it has read that back from the engine.
    ///
    /// # Errors
    /// [`CallError`].
    pub fn edit(&self, edit: Edit) -> Result<usize, CallError> {
        self.editing.edit(edit, None).map(|edited| edited.changed)
    }

    /// All policy as it is now, parents first. It is copied in steps, so that
    /// a large one holds no client up.
    ///
    /// # Errors
    /// [`CallError`].
    pub fn policy(&self) -> Result<Vec<ManagedObject>, CallError> {
        server_side::copy_policy(&self.editing.events).map(|(_, objects)| objects)
    }

    /// The figures of the server: see [`ServerFigures`].
    ///
    /// # Errors
    /// [`CallError`].
    pub fn figures(&self) -> Result<ServerFigures, CallError> {
        let agents = self.agents()?;
        let taken = self
            .editing
            .events
            .look(|machine, view| machine.side.figures(view));
        let (mut figures, dispatcher) = taken.ok_or(CallError::Stopped)?;
        figures.known_agents = agents.len();
        figures.agents = agents;
        figures.dispatcher = dispatcher;
        if let Some(occupancy) = &self.occupancy {
            figures.handshakes = occupancy.running();
            figures.max_handshakes = occupancy.max();
        }
        Ok(figures)
    }

    /// The clients, in the order in which they connected.
    ///
    /// # Errors
    /// [`CallError`].
    pub fn sessions(&self) -> Result<Vec<SessionInfo>, CallError> {
        self.with(|cx| cx.core().sessions(cx.now()))
    }

    /// All agents that have sent a name since the server began, including those that have left,
    /// in the order of their names.
    ///
    /// # Errors
    /// [`CallError`].
    pub fn agents(&self) -> Result<Vec<AgentInfo>, CallError> {
        let mut agents: Vec<AgentInfo> = Vec::new();
        loop {
            // Names are unique and sorted, so the last one marks the place.
            let last = agents.last().map(|agent| agent.name.clone());
            let next = self.with(move |cx| cx.core().agents_after(last.as_ref(), AGENTS, cx.now()))?;
            // In steps, since ten thousand agents in one call would delay clients by milliseconds.
            let is_over = next.len() < AGENTS;
            agents.extend(next);
            if is_over {
                return Ok(agents);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn who_owns_a_server_is_told_that_its_dispatcher_has_panicked() {
        let place = ssntp_transport::memory::MemoryListener::new();
        let settings = crate::server::Settings::new("pr1", "test");
        let server = Server::start(ServerConfig::new(settings).listen_in_memory(&place, "pr1:1")).unwrap();
        let still = server.running().recv_timeout(Duration::from_millis(1));
        assert_eq!(still, Err(crossbeam_channel::RecvTimeoutError::Timeout));
        let panics = DispatchEvent::Call(Box::new(|_: &mut Machine<ServerSide>, _, _| panic!("on purpose")));
        server.handle.editing.events.send(panics).map_err(drop).unwrap();
        let ended = server.running().recv_timeout(Duration::from_secs(30));
        assert_eq!(ended, Err(crossbeam_channel::RecvTimeoutError::Disconnected));
        assert!(matches!(server.handle().sessions(), Err(CallError::Stopped)));
        server.stop();
    }
}
