//! `ssntp demo --servers N`: several schedulers that act as one, and the loss of the one that leads.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::OwnedFd;

use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, getsockname, socket_with, sockopt};
use rustix::process::Signal;
use ssntp::Role;
use uuid::Uuid;

use super::Demo;
use super::steps::NODE;
use crate::clock::now;
use crate::failure::Failure;

impl Demo {
    /// Shows this number of schedulers and agents.
    pub(super) fn show_several(&mut self, schedulers: u16, agents: u16) -> Result<(), Failure> {
        // The port is held until the end.
        let (etcd, _held) = free_address()?;
        let words = format!(
            "--name demo --data-dir etcd --listen-client-urls http://{etcd} --advertise-client-urls http://{etcd} \
             --listen-peer-urls http://127.0.0.1:0 --initial-advertise-peer-urls http://127.0.0.1:0 \
             --initial-cluster demo=http://127.0.0.1:0"
        );
        let words: Vec<_> = words.split(' ').map(str::to_owned).collect();
        let pid = self.processes.start("etcd", "etcd", &words);
        let pid =
            pid.map_err(|e| e.with_advice("several schedulers share an etcd, which must be on the PATH"))?;
        self.until("the etcd serves clients", |demo| {
            Ok(demo
                .processes
                .read("etcd.log")
                .contains("ready to serve client requests")
                .then_some(()))
        })?;
        self.say(&format!("an etcd answers at {etcd} (process {pid})"))?;
        let mut addresses = Vec::new();
        for at in 1..=schedulers {
            let name = format!("scheduler-{at}");
            self.issue(Role::SCHEDULER, &name)?;
            let line = format!(
                "scheduler --listen 127.0.0.1:0 --cert {name}.pem --config cluster-{at}.yaml --join \
                 etcd://{etcd} --cluster demo"
            );
            // A busy etcd may not answer in the time limit of a call, and then a scheduler ends.
            let (first, pid) = self.until("a scheduler joins the etcd", |demo| {
                let started = demo.start(&name, &line);
                if started.is_err() {
                    demo.processes.end_one(&name, Signal::KILL);
                }
                demo.unless_failed(started)
            })?;
            let address = first.replace("listening at ", "");
            self.say(&format!("{name} listens at {address} (process {pid})"))?;
            addresses.push(address);
        }
        self.values.insert("{address}", addresses.join(","));
        self.issue(Role::CONTROLLER, "ctl")?;
        for at in 1..=agents {
            // Each agent tries another scheduler first.
            addresses.rotate_left(1);
            let (name, connect) = (format!("agent-{at}"), addresses.join(","));
            self.issue(Role::AGENT, &name)?;
            let line = format!("agent --connect {connect} --cert {name}.pem --state {name} {NODE}");
            self.start(&name, &line)?;
        }
        self.see_ready_nodes(agents.into())?;
        self.say(&format!(
            "{agents} agents are READY, connected to different schedulers"
        ))?;
        self.start_persistently("before")?;
        let leader = self.leader()?;
        let servers = self.until("the servers are listed", |demo| demo.attempt("ctl servers"))?;
        self.say(&format!("{leader} leads:\n{servers}"))?;
        let killed = now();
        self.processes.end_one(&leader, Signal::KILL);
        self.say(&format!("{leader} was killed with SIGKILL"))?;
        self.start_persistently("after")?;
        let (took, next) = (killed.elapsed().as_secs_f64(), self.leader()?);
        self.say(&format!(
            "{took:.1} s after that the next START was done: {next} leads"
        ))?;
        self.see_ready_nodes(agents.into())?;
        let count = self.until("both instances run, each once", |demo| {
            let listed = demo.list("ctl --json instances")?;
            let named = |name| listed.iter().filter(|one| one["name"] == name).count();
            Ok((named("before") == 1 && named("after") == 1).then_some(listed.len()))
        })?;
        self.say(&format!(
            "all agents are back, and {count} instances run, each once"
        ))?;
        self.until("all instances are deleted", |demo| {
            demo.attempt("ctl delete --all")
        })?;
        self.say("all instances were deleted")
    }

    /// Starts a workload. The START is repeated until it is done. A START that is on its way to a leader
    /// that dies is lost; with the same UUID, the repeated one starts nothing twice.
    fn start_persistently(&mut self, name: &str) -> Result<(), Failure> {
        let uuid = Uuid::new_v4();
        let line =
            format!("ctl --timeout 10 start --uuid {uuid} --name {name} --mem 8 --persistent -- sleep 1000");
        let output = self.until("a START is done", |demo| demo.attempt(&line))?;
        self.say(&format!("workload {name} runs\n{output}"))
    }

    /// The name of the scheduler that leads.
    fn leader(&mut self) -> Result<String, Failure> {
        self.until("a scheduler leads", |demo| {
            let listed = demo.list("ctl --json --timeout 5 servers")?;
            let leader = listed.iter().find(|one| one["leads"] == true);
            let address = leader.and_then(|one| one["address"].as_str()).unwrap_or_default();
            let mut addresses = demo.values["{address}"].split(',');
            let at = addresses.position(|one| one == address);
            Ok(at.map(|at| format!("scheduler-{}", at + 1)))
        })
    }
}

/// A loopback address with a free port, which stays that of this demo as long as the socket is open: it is
/// bound, and does not listen. Servers can listen there, because they set `SO_REUSEADDR`.
fn free_address() -> Result<(String, OwnedFd), Failure> {
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
}
