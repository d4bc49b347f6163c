//! The concentrator as a service of the client loop, which sends its answers.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::fs::{self, File};
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, never};
use thiserror::Error;
use uuid::Uuid;

use super::concentrator::{Concentrator, Keep};
use super::figures::CnciFigures;
use super::plane::{DataPlane, TablesOnly};
use super::tables::{Tables, TablesError};
use ssntp::Role;
use ssntp::client::{Client, ClientConfig, ClientError, ClientHandle};
use ssntp::pki::{Identity, Trust};
use ssntp::proto::Frame;
use ssntp_cluster::client_loop::{ClientLoop, Event, Service, Uplink};
use ssntp_cluster::machine;
use ssntp_transport::{now, setters};

/// The maximum number of answers that wait for a session. Beyond that the oldest are dropped. Their
/// controllers get no answer, and can send the command again.
const MAX_HELD: usize = 1024;
/// The pause before answers are sent again for which the client had no room.
const RETRY: Duration = Duration::from_millis(200);
/// The interval at which the tables are applied to the data plane again.
const REPAIR: Duration = Duration::from_secs(30);

/// The settings of a concentrator.
#[derive(Debug)]
pub struct CnciConfig {
    client: ClientConfig,
    tenant: Uuid,
    ip: IpAddr,
    state: Option<PathBuf>,
    plane: Box<dyn DataPlane>,
}

impl CnciConfig {
    /// A concentrator of a tenant at this address. The client's UUID is the UUID of the instance.
    pub fn new(client: ClientConfig, tenant: Uuid, ip: IpAddr) -> Self {
        Self {
            client,
            tenant,
            ip,
            state: None,
            plane: Box::new(TablesOnly),
        }
    }

    setters! {
        /// The directory in which the tables are kept. Default: none; the tables are lost when the
        /// concentrator ends.
        state as Some: impl Into<PathBuf>;
    }

    /// The data plane, which moves the packets. Default: [`TablesOnly`].
    #[must_use]
    pub fn data_plane(mut self, plane: impl DataPlane + 'static) -> Self {
        self.plane = Box::new(plane);
        self
    }
}

/// A concentrator could not be started, or its client ended for good.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CnciError {
    /// The state directory cannot be used: another concentrator uses it, or the system
    /// refuses. Or the data plane cannot be made as the tables say.
    #[error("{}: {_1}", _0.display())]
    State(PathBuf, #[source] io::Error),
    /// The tables are damaged. No other program has a copy: restore the file, or remove it
    /// to begin without.
    #[error("{0}; restore the file, or remove it to begin without")]
    Tables(#[source] TablesError),
    /// The tables belong to another concentrator.
    #[error("{}: the tables are those of {_1}", _0.display())]
    OtherConcentrator(PathBuf, String),
    /// The client cannot start, or ended for good.
    #[error("{0}")]
    Client(#[from] ClientError),
    /// The client does not have the role of a concentrator.
    #[error("{0} is not the role of a concentrator")]
    Role(Role),
    /// A thread cannot be started.
    #[error("cannot start a thread: {0}")]
    Thread(#[source] io::Error),
}

/// A running concentrator.
///
/// # Threads
/// A concentrator owns its thread and the threads of its client. It is `Send` and `Sync`. Dropping
/// it, or [`stop`](Self::stop), ends the threads.
#[derive(Debug)]
pub struct Cnci {
    /// The only request is that for figures.
    inner: ClientLoop<Sender<CnciFigures>>,
}

impl Cnci {
    /// Reads the tables of a former run, and connects in the background.
    ///
    /// # Errors
    /// [`CnciError`]; no thread runs then.
    pub fn start(config: CnciConfig) -> Result<Self, CnciError> {
        // The lock precedes the reading, so that no other concentrator changes the tables.
        let lock = config.state.as_deref().map(lock).transpose()?;
        let client = Client::start(config.client)?;
        if !client.role().contains(Role::CNCIAGENT) {
            return Err(CnciError::Role(client.role()));
        }
        let uuid = client.uuid();
        let state = config.state.clone().unwrap_or_default();
        let tables = config.state.as_deref().map(Tables::load).transpose();
        let tables = tables.map_err(CnciError::Tables)?.flatten().unwrap_or_default();
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
        let runner = Runner {
            concentrator,
            held: VecDeque::new(),
            retry_at: None,
            repair_at: now() + REPAIR,
            _lock: lock,
        };
        let inner = ClientLoop::<_>::start("ssntp-cnci", client, runner, never());
        Ok(Self {
            inner: inner.map_err(CnciError::Thread)?,
        })
    }

    /// The UUID of the concentrator.
    pub fn uuid(&self) -> Uuid {
        self.inner.client.uuid()
    }

    /// The client: its counters, the server of the session, the validity of the certificate.
    pub fn client(&self) -> ClientHandle {
        self.inner.client.clone()
    }

    /// Replaces identity and trust, as [`ClientHandle::renew`] does. The tables stay.
    ///
    /// # Errors
    /// Those of [`ClientHandle::renew`]; identity and trust are unchanged then.
    pub fn renew(&self, identity: &Identity, trust: &Trust) -> Result<(), ClientError> {
        self.inner.client.renew(identity, trust)
    }

    /// A snapshot of the concentrator's figures. `None` if the concentrator has ended, if 16 requests
    /// wait already, or if its data plane is busy for more than 5 s.
    pub fn figures(&self) -> Option<CnciFigures> {
        self.inner.ask(|reply| reply)
    }

    /// Receives the reason when the client, and the concentrator with it, has ended for good. The
    /// channel is disconnected afterwards. It is for `select!`.
    pub fn ended(&self) -> &Receiver<ClientError> {
        &self.inner.ended
    }

    /// Ends the concentrator and waits for its threads.
    pub fn stop(self) {
        drop(self);
    }
}

/// Makes the state directory and locks it against other concentrators.
fn lock(state: &Path) -> Result<File, CnciError> {
    let locked = || -> io::Result<File> {
        fs::create_dir_all(state)?;
        // The directory itself is locked, so that no lock file is left behind.
        let lock = File::open(state)?;
        ssntp_transport::lock(&lock, "another concentrator")?;
        Ok(lock)
    };
    locked().map_err(|e| CnciError::State(state.to_owned(), e))
}

/// The MAC address of the interface that has this address; empty if this machine has no such
/// interface.
fn mac(ip: IpAddr) -> String {
    let networks = machine::read("/".as_ref()).networks;
    let own = networks.into_iter().find(|network| network.ip.parse() == Ok(ip));
    own.map(|network| network.mac).unwrap_or_default()
}

struct Runner {
    concentrator: Concentrator,
    /// Answers that wait for a session, or for room in the client's queue.
    held: VecDeque<Frame>,
    /// The time at which held answers are sent again. `None` without a session: its beginning sends
    /// them.
    retry_at: Option<Instant>,
    /// The time at which the tables are applied again.
    repair_at: Instant,
    _lock: Option<File>,
}

impl Service for Runner {
    type Request = Sender<CnciFigures>;
    type Outcome = Infallible;

    fn handle(&mut self, uplink: &mut Uplink, event: Event<Sender<CnciFigures>, Infallible>) {
        match event {
            Event::Begun => {}
            Event::Due if now() < self.repair_at => {}
            Event::Due => self.repair(),
            Event::Connected => {
                self.repair();
                // ConcentratorInstanceAdded has to be the first frame of a session. The order is
                // reversed, because each frame is added at the front.
                for frame in self.concentrator.announcement().into_iter().rev() {
                    self.held.push_front(frame);
                }
            }
            Event::Disconnected => {
                self.retry_at = None;
                return;
            }
            Event::Frame(frame) => self.held.extend(self.concentrator.frame(&frame)),
            Event::Request(reply) => {
                // The owner no longer waits if this took too long.
                let _ = reply.send(self.figures(uplink));
                return;
            }
            Event::Outcome(never) => match never {},
        }
        self.send_held(uplink);
        if uplink.client.events().is_empty() {
            self.concentrator.catch_up();
        }
    }

    fn deadline(&self) -> Option<Instant> {
        self.retry_at.into_iter().chain([self.repair_at]).min()
    }
}

impl Runner {
    fn repair(&mut self) {
        self.concentrator.apply();
        self.repair_at = now() + REPAIR;
    }

    fn figures(&self, uplink: &Uplink) -> CnciFigures {
        let tables = self.concentrator.tables();
        CnciFigures {
            client: uplink.client.handle().figures(),
            tunnels: tables.tunnels.len(),
            peers: tables.peers.len(),
            public_ips: tables.public_ips.len(),
            frames_held: self.held.len(),
        }
    }

    fn send_held(&mut self, uplink: &mut Uplink) {
        self.retry_at = None;
        while let Some(frame) = self.held.pop_front() {
            if let Err(frame) = uplink.send(frame) {
                self.held.push_front(frame);
                self.retry_at = uplink.client.is_connected().then(|| now() + RETRY);
                break;
            }
        }
        // The answers at the front are the oldest.
        while self.held.len() > MAX_HELD {
            self.held.pop_front();
        }
    }
}
