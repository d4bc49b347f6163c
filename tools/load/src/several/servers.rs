//! The schedulers, their etcd, and two controllers.

use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use ssntp::payload::{ListServers, Servers as Listed};
use ssntp_test_support::etcd::EtcdProcess;
use ssntp_transport::Address;
use ssntp_view::Controller;
use tempfile::TempDir;

use super::{LIMIT, Options, TICK};
use crate::Result;
use crate::soak::absolute;
use crate::soak::cluster::{Daemon, connect, save_certificates};
use crate::soak::figures::Process;

/// The time limit of a query about the servers.
const ASKED: Duration = Duration::from_secs(5);

pub(super) struct Servers {
    /// The controllers, which are dropped first.
    pub(super) controllers: Vec<Controller>,
    daemons: Vec<Daemon>,
    addresses: Vec<Address>,
    etcd: EtcdProcess,
    members: usize,
    /// Members of the etcd that were killed.
    killed: Vec<usize>,
    directory: TempDir,
}

impl Servers {
    /// Starts all, and waits until they are linked and one of them leads.
    pub(super) fn start(options: &Options) -> Result<Self> {
        let mut directory = tempfile::Builder::new().prefix("several-").tempdir()?;
        directory.disable_cleanup(options.keep);
        let root = directory.path().to_path_buf();
        save_certificates(&root)?;
        let members = usize::from(options.engine);
        let etcd = EtcdProcess::start(members).ok_or("there is no etcd on the PATH")?;
        let program = absolute(options.program.as_deref())?;
        // All agents show one certificate, and a certificate may have three quarters of the
        // sessions. All agents may connect to one server.
        let sessions = options.agents + options.agents / 3 + 16;
        let (mut daemons, mut addresses) = (Vec::new(), Vec::new());
        for at in 0..usize::from(options.servers) {
            let program = match (at, &options.earlier) {
                (0, Some(earlier)) => absolute(Some(earlier))?,
                _ => program.clone(),
            };
            let line = format!(
                "scheduler --ca ca.pem --cert scheduler.pem --config cluster-{at}.yaml --allow-unbound \
                 --max-sessions {sessions} --join {} --cluster load --drain 3 --listen 127.0.0.1:0",
                etcd.join()
            );
            let mut daemon = Daemon::new(format!("scheduler-{at}"), &root, &program, &line);
            let said = daemon.start_and_read()?;
            let address = said
                .strip_prefix("listening at ")
                .ok_or_else(|| format!("scheduler {at} does not start: its log is in {}", root.display()))?;
            daemon.replace_last(address);
            addresses.push(address.parse()?);
            daemons.push(daemon);
        }
        let mut servers = Self {
            controllers: Vec::new(),
            daemons,
            addresses,
            etcd,
            members,
            killed: Vec::new(),
            directory,
        };
        let leader = servers.leader(None)?;
        // If there are three servers, the first controller is connected to one that is neither the
        // leader nor affected by its loss.
        for from in [leader + 2, leader] {
            let addresses = servers.addresses_from(from % servers.len());
            servers.controllers.push(connect(&root, addresses)?);
        }
        Ok(servers)
    }

    pub(super) fn len(&self) -> usize {
        self.daemons.len()
    }

    pub(super) fn root(&self) -> &Path {
        self.directory.path()
    }

    /// All addresses, beginning with that of this server.
    pub(super) fn addresses_from(&self, at: usize) -> Vec<Address> {
        let (before, from) = self.addresses.split_at(at.min(self.addresses.len()));
        from.iter().chain(before).cloned().collect()
    }

    /// Waits until a server other than this one leads, and all running servers are linked.
    pub(super) fn leader(&self, except: Option<usize>) -> Result<usize> {
        let end = Instant::now() + LIMIT;
        while Instant::now() < end {
            let at = self.daemons.iter().position(Daemon::is_running).unwrap_or(0);
            let asks = connect(self.root(), [self.addresses[at].clone()])?;
            let question = ListServers {
                id: "l".into(),
                after: 0,
            };
            let answer = asks.ask(&question, |answer: &Listed| answer.id == question.id, ASKED);
            if let Ok(listed) = answer
                && listed.entries.len() >= self.daemons.iter().filter(|one| one.is_running()).count()
            {
                let leads = listed.entries.iter().find(|entry| entry.uuid == listed.leader);
                let leader = leads.and_then(|entry| {
                    let mut own = self.addresses.iter();
                    own.position(|address| address.to_string() == entry.address)
                });
                if let Some(leader) = leader.filter(|leader| Some(*leader) != except) {
                    return Ok(leader);
                }
            }
            std::thread::sleep(TICK * 10);
        }
        Err("nobody leads in time".into())
    }

    pub(super) fn kill(&mut self, at: usize) {
        self.daemons[at].kill();
    }

    pub(super) fn signal(&self, at: usize, signal: Signal) {
        self.daemons[at].signal(signal);
    }

    pub(super) fn has_ended(&mut self, at: usize) -> bool {
        self.daemons[at].has_ended()
    }

    pub(super) fn start_again(&mut self, at: usize) -> Result<()> {
        self.daemons[at].start()
    }

    /// Kills one member, or enough members to lose the majority.
    pub(super) fn kill_engine(&mut self, is_majority: bool) {
        let count = if is_majority { self.members.div_ceil(2) } else { 1 };
        self.killed = (0..count).collect();
        for at in &self.killed {
            self.etcd.kill(*at);
        }
    }

    pub(super) fn restart_engine(&mut self) {
        for at in std::mem::take(&mut self.killed) {
            self.etcd.spawn(at);
        }
    }

    /// Requests a second that etcd has handled, over this time.
    pub(super) fn requests(&self, time: Duration) -> Result<f64> {
        let (before, began) = (self.handled()?, Instant::now());
        std::thread::sleep(time);
        Ok((self.handled()? - before) / began.elapsed().as_secs_f64())
    }

    /// Requests that all members have handled for clients.
    fn handled(&self) -> Result<f64> {
        let mut all = 0.0;
        for at in 0..self.members {
            let text = self.etcd.post(at, "/metrics", "");
            let lines = text
                .lines()
                .filter(|line| line.starts_with("grpc_server_handled_total{"));
            let mut own = lines
                .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
                .peekable();
            own.peek().ok_or("etcd has no metrics")?;
            all += own.sum::<f64>();
        }
        Ok(all)
    }

    /// The private memory of each scheduler, as text.
    pub(super) fn memory(&self) -> String {
        let of = |daemon: &Daemon| {
            let process = Process::read(daemon.pid()?)?;
            Some(format!("{} MiB", process.kib >> 10))
        };
        let each = self
            .daemons
            .iter()
            .map(|daemon| of(daemon).unwrap_or("gone".into()));
        format!(
            "memory of the schedulers: {}",
            each.collect::<Vec<_>>().join(", ")
        )
    }

    /// Ends all servers in order. Returns the faults of the ends and of the logs.
    pub(super) fn end(mut self) -> Vec<String> {
        self.controllers.clear();
        let running = std::mem::take(&mut self.daemons);
        running
            .into_iter()
            .filter(Daemon::is_running)
            .filter_map(Daemon::end)
            .collect()
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        self.controllers.clear();
        for daemon in &mut self.daemons {
            daemon.kill();
        }
    }
}
