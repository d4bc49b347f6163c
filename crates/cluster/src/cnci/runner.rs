//! The concentrator's thread: between the client and the tables.

use std::collections::VecDeque;
use std::fmt;
use std::fs::{self, File};
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, after, bounded, never, select};
use log::{info, warn};
use rustix::fs::{FlockOperation, flock};
use uuid::Uuid;

use super::concentrator::{Concentrator, Keep};
use super::figures::CnciFigures;
use super::plane::{DataPlane, TablesOnly};
use super::tables::{Tables, TablesError};
use crate::machine::Facts;
use ssntp::Role;
use ssntp::client::{Client, ClientConfig, ClientError, ClientEvent, ClientHandle};
use ssntp::pki::{Identity, Trust};
use ssntp::proto::Frame;
use ssntp_transport::LogLimit;
use ssntp_transport::threads;

/// How many answers wait for a session; when there are more, the oldest are
/// dropped: whoever asked will ask again.
const MAX_HELD: usize = 1024;
/// After how long answers are tried again that the client had no room for.
const RETRY: Duration = Duration::from_millis(200);
/// How many may wait for figures; who comes next waits for room.
const ASKS: usize = 16;
/// For how long.
const ANSWER: Duration = Duration::from_secs(5);
/// How long the last frames may take to leave when it ends.
const LAST_FRAMES: Duration = Duration::from_millis(300);

/// What a concentrator is made from.
#[derive(Debug)]
pub struct CnciConfig {
    client: ClientConfig,
    tenant: Uuid,
    ip: IpAddr,
    state: Option<PathBuf>,
    plane: Box<dyn DataPlane>,
}

impl CnciConfig {
    /// A concentrator of a tenant at this address. It is known by its
    /// client's UUID, which is that of its instance.
    pub fn new(client: ClientConfig, tenant: Uuid, ip: IpAddr) -> Self {
        Self {
            client,
            tenant,
            ip,
            state: None,
            plane: Box::new(TablesOnly),
        }
    }

    /// Where the tables are kept. Default: nowhere; they are lost when it
    /// ends.
    #[must_use]
    pub fn state(mut self, directory: impl Into<PathBuf>) -> Self {
        self.state = Some(directory.into());
        self
    }

    /// Who moves the packets. Default: [`TablesOnly`].
    #[must_use]
    pub fn data_plane(mut self, plane: impl DataPlane + 'static) -> Self {
        self.plane = Box::new(plane);
        self
    }
}

/// Why a concentrator doesn't run.
#[derive(Debug)]
#[non_exhaustive]
pub enum CnciError {
    /// The state directory can't be used: another one does, or the system
    /// refuses; or the data plane can't be made as it says.
    State(PathBuf, io::Error),
    /// The tables are damaged. Nobody else knows what they said: restore
    /// them, or remove them to begin without.
    Tables(TablesError),
    /// The tables are another concentrator's.
    OtherConcentrator(PathBuf, String),
    /// The client can't start, or ended for good.
    Client(ClientError),
    /// The client's role isn't that of a concentrator.
    Role(Role),
    /// A thread can't be started.
    Thread(io::Error),
}

impl fmt::Display for CnciError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::State(path, e) => write!(f, "{}: {e}", path.display()),
            Self::Tables(e) => write!(f, "{e}; restore the file, or remove it to begin without"),
            Self::OtherConcentrator(path, uuid) => {
                write!(f, "{}: the tables are those of {uuid}", path.display())
            }
            Self::Client(e) => e.fmt(f),
            Self::Role(role) => write!(f, "{role} is not the role of a concentrator"),
            Self::Thread(e) => write!(f, "cannot start a thread: {e}"),
        }
    }
}

impl std::error::Error for CnciError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::State(_, e) | Self::Thread(e) => Some(e),
            Self::Client(e) => Some(e),
            Self::Tables(e) => Some(e),
            Self::OtherConcentrator(..) | Self::Role(_) => None,
        }
    }
}

impl From<ClientError> for CnciError {
    fn from(error: ClientError) -> Self {
        Self::Client(error)
    }
}

/// A running concentrator.
///
/// # Threads
/// It owns its thread and its client's. `Send` and `Sync`. Dropping it, or
/// [`stop`](Self::stop), ends them.
#[derive(Debug)]
pub struct Cnci {
    client: ClientHandle,
    /// Who wants figures; it ends where there is nobody any more to ask.
    asks: Option<Sender<Sender<CnciFigures>>>,
    ended: Receiver<ClientError>,
    thread: Option<JoinHandle<()>>,
}

impl Cnci {
    /// Reads the tables that a former run left, and connects in the
    /// background.
    ///
    /// # Errors
    /// [`CnciError`]; nothing runs then.
    pub fn start(config: CnciConfig) -> Result<Self, CnciError> {
        let lock = config.state.as_deref().map(lock).transpose()?;
        let client = Client::start(config.client)?;
        if !client.role().contains(Role::CNCIAGENT) {
            return Err(CnciError::Role(client.role()));
        }
        let uuid = client.uuid();
        let state = config.state.clone().unwrap_or_default();
        let tables = match &config.state {
            Some(state) => Tables::load(state)
                .map_err(CnciError::Tables)?
                .unwrap_or_default(),
            None => Tables::default(),
        };
        if !tables.concentrator_uuid.is_empty() && tables.concentrator_uuid != uuid {
            return Err(CnciError::OtherConcentrator(
                state,
                tables.concentrator_uuid.to_string(),
            ));
        }
        let keep: Keep = match config.state {
            Some(state) => Box::new(move |tables| tables.save(&state)),
            None => Box::new(|_| Ok(())),
        };
        let concentrator = Concentrator::new(
            uuid,
            config.tenant,
            config.ip,
            mac(config.ip),
            tables,
            config.plane,
            keep,
        )
        .map_err(|e| CnciError::State(state, e))?;
        let (asks, asked) = bounded(ASKS);
        let (ending, ended) = bounded(1);
        let handle = client.handle();
        let runner = Runner {
            client,
            concentrator,
            held: VecDeque::new(),
            asked,
            log: LogLimit::default(),
            _lock: lock,
        };
        let thread = threads::spawn("ssntp-cnci", move || {
            if let Some(why) = runner.run() {
                let _ = ending.send(why);
            }
        });
        Ok(Self {
            client: handle,
            asks: Some(asks),
            ended,
            thread: Some(thread.map_err(CnciError::Thread)?),
        })
    }

    /// Its UUID.
    pub fn uuid(&self) -> Uuid {
        self.client.uuid()
    }

    /// Its client: counters, the server of the session, how long the certificate
    /// is valid.
    pub fn client(&self) -> ClientHandle {
        self.client.clone()
    }

    /// Replaces identity and trust, as [`ClientHandle::renew`] does. What it knows
    /// of its tenant stays.
    ///
    /// # Errors
    /// As there; nothing has changed then.
    pub fn renew(&self, identity: &Identity, trust: &Trust) -> Result<(), ClientError> {
        self.client.renew(identity, trust)
    }

    /// What the concentrator knows about itself, at one moment; none where it has
    /// ended, or its data plane is so busy that it does not answer in 5 s.
    pub fn figures(&self) -> Option<CnciFigures> {
        let (reply, figures) = bounded(1);
        let until = now() + ANSWER;
        self.asks.as_ref()?.send_deadline(reply, until).ok()?;
        figures.recv_deadline(until).ok()
    }

    /// Gives the reason when the client has ended for good, and the
    /// concentrator with it; disconnected afterwards: for `select!`.
    pub fn ended(&self) -> &Receiver<ClientError> {
        &self.ended
    }

    /// Ends it and waits for its threads.
    pub fn stop(self) {
        drop(self);
    }
}

impl Drop for Cnci {
    fn drop(&mut self) {
        drop(self.asks.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Makes the state directory and keeps others from it.
fn lock(state: &Path) -> Result<File, CnciError> {
    let locked = || -> io::Result<File> {
        fs::create_dir_all(state)?;
        let lock = File::open(state)?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive).map_err(|e| match io::Error::from(e) {
            e if e.kind() == io::ErrorKind::WouldBlock => {
                io::Error::new(e.kind(), "another concentrator uses this state directory")
            }
            e => e,
        })?;
        Ok(lock)
    };
    locked().map_err(|e| CnciError::State(state.to_owned(), e))
}

/// The MAC address of the interface that has this address; empty where none
/// of this machine has.
fn mac(ip: IpAddr) -> String {
    let networks = Facts::read("/".as_ref()).networks;
    let own = networks.into_iter().find(|network| network.ip.parse() == Ok(ip));
    own.map(|network| network.mac).unwrap_or_default()
}

struct Runner {
    client: Client,
    concentrator: Concentrator,
    /// Answers that found no session, or no room.
    held: VecDeque<Frame>,
    asked: Receiver<Sender<CnciFigures>>,
    log: LogLimit<()>,
    _lock: Option<File>,
}

impl Runner {
    fn run(mut self) -> Option<ClientError> {
        let why = loop {
            let retry = match self.held.is_empty() || !self.client.is_connected() {
                true => never(),
                false => after(RETRY),
            };
            select! {
                recv(self.client.events()) -> event => match event {
                    Ok(ClientEvent::Connected(server)) => {
                        info!("{}: connected to {server}", self.client.uuid());
                        for frame in self.concentrator.announcement().into_iter().rev() {
                            self.held.push_front(frame);
                        }
                        self.send_held();
                    }
                    Ok(ClientEvent::Frame(frame)) => {
                        let answers = self.concentrator.frame(&frame);
                        self.held.extend(answers);
                        self.send_held();
                    }
                    Ok(ClientEvent::Disconnected { reason, .. }) => {
                        warn!("{}: disconnected: {reason}", self.client.uuid());
                    }
                    Ok(ClientEvent::Closed(why)) => break Some(why),
                    // A request: this client has registered none.
                    Ok(_) => {}
                    Err(_) => break Some(self.client.handle().ended().unwrap_or(ClientError::Closed)),
                },
                recv(self.asked) -> reply => match reply {
                    Ok(reply) => drop(reply.send(self.figures())),
                    Err(_) => break None,
                },
                recv(retry) -> _ => self.send_held(),
            }
        };
        self.client.flush(LAST_FRAMES);
        self.client.close();
        why
    }

    fn figures(&self) -> CnciFigures {
        let tables = self.concentrator.tables();
        CnciFigures {
            client: self.client.handle().figures(),
            tunnels: tables.tunnels.len(),
            peers: tables.peers.len(),
            public_ips: tables.public_ips.len(),
            frames_held: self.held.len(),
        }
    }

    fn send_held(&mut self) {
        while let Some(frame) = self.held.pop_front() {
            if let Err(e) = self.client.try_send(frame) {
                if let Some(more) = self.log.admit((), "unsent", now()) {
                    warn!("{}: {e}{more}", self.client.uuid());
                }
                self.held.push_front(e.into_frame());
                break;
            }
        }
        while self.held.len() > MAX_HELD {
            self.held.pop_front();
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "time limits, and log lines are limited")]
fn now() -> Instant {
    Instant::now()
}
