//! `ssntp demo --servers N`: several servers that act as one, and the loss of one of them.
//!
//! ```text
//!  an etcd on the PATH: N schedulers ─▶ a START ─▶ the leader is killed ─▶ the next START
//!  no etcd:             N routers    ─▶ a frame ─▶ one of them is killed ─▶ the next frame
//! ```
//!
//! As in the other demo, each step is a command that a user could type, and the step prints the
//! command's output.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, getsockname, socket_with, sockopt};
use serde_json::Value;
use ssntp::Role;
use ssntp::pki::{Authority, AuthorityRequest};
use ssntp_transport::{Cancel, Target, TcpOptions};
use uuid::Uuid;

use super::processes::{Processes, pause};
use super::screen::Screen;
use super::steps::{NODE, issue};
use crate::clock::now;
use crate::failure::Failure;
use crate::signals::Stop;

/// The time limit of a wait. It is longer than a lease, and longer than the longest pause of a client
/// between two rounds.
const LIMIT: Duration = Duration::from_secs(60);

/// Several running servers.
pub(super) struct Several<'a> {
    pub(super) processes: &'a mut Processes,
    pub(super) screen: &'a mut Screen,
    pub(super) stop: &'a Stop,
    /// The addresses of the servers, in the order in which they were started.
    pub(super) addresses: Vec<String>,
    /// The error output of the last command that failed.
    pub(super) last_error: String,
}

impl Several<'_> {
    /// Shows this number of servers and agents.
    pub(super) fn show(&mut self, servers: u16, agents: u16) -> Result<(), Failure> {
        let authority = Authority::new(&AuthorityRequest::default())?;
        let directory = self.processes.directory().to_owned();
        authority.save(&directory, false)?;
        let certificate = |role, name: String| {
            let path = directory.join(format!("{name}.pem"));
            issue(&authority, role, Uuid::new_v4(), &path)
        };
        certificate(Role::CONTROLLER, "ctl".into())?;
        for at in 1..=servers {
            certificate(Role::SCHEDULER, format!("scheduler-{at}"))?;
            certificate(Role::SERVER, format!("server-{at}"))?;
            certificate(Role::CONTROLLER, format!("listener-{at}"))?;
        }
        for at in 1..=agents {
            certificate(Role::AGENT, format!("agent-{at}"))?;
        }
        match has_etcd() {
            true => self.show_schedulers(servers, agents),
            false => {
                self.screen.step(
                    "there is no etcd on the PATH, which several schedulers need: routers are shown instead",
                )?;
                self.show_routers(servers)
            }
        }
    }

    fn show_schedulers(&mut self, servers: u16, agents: u16) -> Result<(), Failure> {
        // Both ports are held until the end.
        let [(clients, _held), (peers, _also_held)] = [free_address()?, free_address()?];
        let words = format!(
            "--name demo --data-dir etcd --listen-client-urls http://{clients} --advertise-client-urls \
             http://{clients} --listen-peer-urls http://{peers} --initial-advertise-peer-urls http://{peers} \
             --initial-cluster demo=http://{peers} --log-level error"
        );
        let pid = self.processes.spawn("etcd", PathBuf::from("etcd"), &words)?;
        let etcd = Target::Address(clients.parse()?);
        self.until("the etcd answers", |_| {
            let stream = etcd.connect(&TcpOptions::default(), LIMIT, &Cancel::new());
            Ok(stream.is_ok().then_some(()))
        })?;
        self.screen
            .step(&format!("an etcd answers at {clients} (process {pid})"))?;
        for at in 1..=servers {
            let words = format!(
                "scheduler --listen 127.0.0.1:0 --ca ca.pem --cert scheduler-{at}.pem --config \
                 cluster-{at}.yaml --join etcd://{clients} --cluster demo"
            );
            let name = format!("scheduler-{at}");
            // A busy etcd may not answer in the time limit of a call, and then a scheduler ends.
            let (line, pid) = self.until("a scheduler joins the etcd", |demo| {
                match demo.processes.start(&name, &words, demo.stop) {
                    Err(Failure::Failed(error)) => {
                        demo.last_error = error;
                        demo.processes.kill(&name);
                        Ok(None)
                    }
                    started => started.map(Some),
                }
            })?;
            let address = line.strip_prefix("listening at ").unwrap_or(&line).to_owned();
            self.screen
                .step(&format!("{name} listens at {address} (process {pid})"))?;
            self.addresses.push(address);
        }
        for at in 1..=agents {
            // Each agent tries another scheduler first.
            let mut addresses = self.addresses.clone();
            let first = usize::from(at - 1) % addresses.len().max(1);
            addresses.rotate_left(first);
            let connect = addresses.join(",");
            let words = format!("agent --connect {connect} --cert agent-{at}.pem --state agent-{at} {NODE}");
            self.processes.start(&format!("agent-{at}"), &words, self.stop)?;
        }
        self.nodes(agents)?;
        self.screen.step(&format!(
            "{agents} agents are READY, connected to different schedulers"
        ))?;
        self.start("before")?;
        let leader = self.leader()?;
        let servers = self.until("the servers are listed", |demo| demo.attempt("servers"))?;
        self.screen
            .step(&format!("scheduler-{} leads:\n{servers}", leader + 1))?;
        let killed = now();
        self.processes.kill(&format!("scheduler-{}", leader + 1));
        self.screen
            .step(&format!("scheduler-{} was killed with SIGKILL", leader + 1))?;
        self.start("after")?;
        let took = killed.elapsed().as_secs_f64();
        let next = self.leader()?;
        self.screen.step(&format!(
            "{took:.1} s after that the next START was done: scheduler-{} leads",
            next + 1
        ))?;
        self.nodes(agents)?;
        let instances = self.until("both instances run, each once", |demo| {
            let listed = demo.list("instances")?;
            let named = |name| listed.iter().filter(|one| one["name"] == name).count();
            Ok((named("before") == 1 && named("after") == 1).then_some(listed.len()))
        })?;
        self.screen.step(&format!(
            "all agents are back, and {instances} instances run, each once"
        ))?;
        self.until("all instances are deleted", |demo| demo.attempt("delete --all"))?;
        self.screen.step("all instances were deleted")
    }

    fn show_routers(&mut self, servers: u16) -> Result<(), Failure> {
        let mut held = Vec::new();
        for _ in 1..=servers {
            let (address, port) = free_address()?;
            self.addresses.push(address);
            held.push(port);
        }
        let peers = self.addresses.join(",");
        for (at, address) in (1..).zip(self.addresses.clone()) {
            let words = format!(
                "server --listen {address} --ca ca.pem --cert server-{at}.pem --forward STATS=controller \
                 --advertise {address} --peers {peers}"
            );
            let name = format!("server-{at}");
            let (_, pid) = self.processes.start(&name, &words, self.stop)?;
            self.screen
                .step(&format!("{name} listens at {address} (process {pid})"))?;
        }
        let others = usize::from(servers) - 1;
        for (at, address) in (1..).zip(&self.addresses).skip(1) {
            let words = format!("listen --connect {address} --ca ca.pem --cert listener-{at}.pem");
            let program = super::processes::program()?;
            self.processes.spawn(&format!("listener-{at}"), program, &words)?;
        }
        let table = self.until("each server has a link to each other one", |demo| {
            let listed = demo.list("servers")?;
            let is_known = |one: &&Value| one["state"] == "linked" && one["sessions"] == 1;
            match listed.iter().filter(is_known).count() == others {
                true => demo.ctl("servers").map(Some),
                false => Ok(None),
            }
        })?;
        self.screen.step(&format!("they are linked:\n{table}"))?;
        self.send("first", 2..=servers)?;
        self.screen.step(&format!(
            "a frame that was sent to server-1 has crossed {others} links: a listener at each other server has \
             received it"
        ))?;
        self.processes.kill("listener-2");
        self.processes.kill("server-2");
        self.screen.step("server-2 was killed with SIGKILL")?;
        self.send("second", 3..=servers)?;
        self.screen
            .step("the other servers continue: their listeners have received the next frame")
    }

    /// Sends a frame to the first server, and blocks until the listeners have received it.
    fn send(&mut self, text: &str, listeners: std::ops::RangeInclusive<u16>) -> Result<(), Failure> {
        let connect = self.addresses.first().cloned().unwrap_or_default();
        self.run(&format!(
            "send --connect {connect} --ca ca.pem --cert agent-1.pem STATS {text}"
        ))?;
        for at in listeners {
            let path = self.processes.directory().join(format!("listener-{at}.out"));
            self.until("a listener has received the frame", |_| {
                let printed = std::fs::read_to_string(&path).unwrap_or_default();
                Ok(printed.contains(text).then_some(()))
            })?;
        }
        Ok(())
    }

    /// Starts a workload. The START is repeated until it is done. A START that is on its way to a leader
    /// that dies is lost; with the same UUID, the repeated one starts nothing twice.
    fn start(&mut self, name: &str) -> Result<(), Failure> {
        let uuid = Uuid::new_v4();
        let line =
            format!("--timeout 10 start --uuid {uuid} --name {name} --mem 8 --persistent -- sleep 1000");
        let output = self.until("a START is done", |demo| demo.attempt(&line))?;
        self.screen.step(&format!("workload {name} runs\n{output}"))
    }

    /// Blocks until this number of agents is READY.
    fn nodes(&mut self, count: u16) -> Result<(), Failure> {
        self.until("all agents are READY", |demo| {
            let listed = demo.list("nodes")?;
            let ready = listed
                .iter()
                .filter(|node| node["status"] == "READY" && node["connected"] == true);
            Ok((ready.count() == usize::from(count)).then_some(()))
        })
    }

    /// Runs `ssntp ctl`. `None` if it fails, for example because the leader has just changed.
    fn attempt(&mut self, line: &str) -> Result<Option<String>, Failure> {
        match self.ctl(line) {
            Err(Failure::Failed(_)) => Ok(None),
            output => output.map(Some),
        }
    }

    /// The number of the scheduler that leads.
    fn leader(&mut self) -> Result<usize, Failure> {
        self.until("a scheduler leads", |demo| {
            let listed = demo.list("servers")?;
            let leader = listed.iter().find(|one| one["leads"] == true);
            let address = leader.and_then(|one| one["address"].as_str()).unwrap_or_default();
            Ok(demo.addresses.iter().position(|one| one == address))
        })
    }

    /// The entries of a list that `ctl` prints; empty while no scheduler answers.
    fn list(&mut self, what: &str) -> Result<Vec<Value>, Failure> {
        let output = self.attempt(&format!("--json --timeout 5 {what}"))?;
        let output = output.unwrap_or_default();
        let value: Value = serde_json::from_str(&output).unwrap_or_default();
        let listed = value.as_array().or_else(|| value["servers"].as_array());
        Ok(listed.cloned().unwrap_or_default())
    }

    /// Runs `ssntp ctl`, and returns its standard output. Fails with its error output.
    fn ctl(&mut self, line: &str) -> Result<String, Failure> {
        let connect = self.addresses.join(",");
        self.run(&format!(
            "ctl --connect {connect} --ca ca.pem --cert ctl.pem {line}"
        ))
    }

    fn run(&mut self, line: &str) -> Result<String, Failure> {
        let words = line.split_whitespace().map(str::to_owned);
        let mut run = self.processes.ctl(words, None)?;
        let (code, stdout, stderr) = self.until("the command ends", |_| Ok(run.ended()))?;
        match code {
            Some(0) => Ok(stdout),
            _ => {
                self.last_error.clone_from(&stderr);
                Err(Failure::new(stderr))
            }
        }
    }

    /// Calls `look` until it returns something. Fails after the time limit, after a signal, or if a
    /// process has ended.
    fn until<T>(
        &mut self,
        what: &str,
        mut look: impl FnMut(&mut Self) -> Result<Option<T>, Failure>,
    ) -> Result<T, Failure> {
        let deadline = now() + LIMIT;
        while now() < deadline {
            if self.stop.requested() {
                return Err(self.stop.interrupted());
            }
            if let Some(seen) = look(self)? {
                return Ok(seen);
            }
            if let Some(ended) = self.processes.missing() {
                return Err(Failure::new(format!("the {ended} has ended")));
            }
            pause();
        }
        let last = match &*self.last_error {
            "" => String::new(),
            error => format!("; the last error of a command: {error}"),
        };
        Err(Failure::new(format!(
            "not seen in {} s: {what}{last}",
            LIMIT.as_secs()
        )))
    }
}

fn has_etcd() -> bool {
    let mut etcd = Command::new("etcd");
    etcd.arg("--version").stdout(Stdio::null()).stderr(Stdio::null());
    etcd.status().is_ok_and(|status| status.success())
}

/// A loopback address with a free port, which stays that of this demo as long as the socket is open: it is
/// bound, and does not listen. Servers can listen there, because they set `SO_REUSEADDR`.
fn free_address() -> Result<(String, OwnedFd), Failure> {
    let hold = || {
        let socket = socket_with(
            AddressFamily::INET,
            SocketType::STREAM,
            SocketFlags::CLOEXEC,
            None,
        )?;
        sockopt::set_socket_reuseaddr(&socket, true)?;
        bind(&socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0))?;
        let address = SocketAddrV4::try_from(getsockname(&socket)?)?;
        Ok((address.to_string(), socket))
    };
    hold().map_err(|e: rustix::io::Errno| Failure::new(format!("there is no free port: {e}")))
}
