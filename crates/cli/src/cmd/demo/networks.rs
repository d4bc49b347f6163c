//! Two networks of tenants with the same subnet, on a node in another network namespace, so that the
//! networks of this host do not change. The namespace ends with the node's processes.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use ssntp::Role;
use ssntp::pki::Authority;
use ssntp_payload::NodeStatus;
use uuid::Uuid;

use super::steps::{Demo, NODE, issue};
use crate::failure::Failure;

/// Fails if something that the networks need is missing. Prints the command for ping.
const TRIAL: &str = "command -v nsenter >/dev/null && ip link add u0 type bridge \
    && ip link add x0 type vxlan id 1 dstport 4789 && nft add table bridge trial \
    && if command -v ping >/dev/null; then echo ping; else busybox ping -c 1 -W 1 127.0.0.1 >/dev/null; \
       [ $? = 127 ] && exit 1; echo busybox ping; fi";
/// Makes the underlay, a bridge, so that this node can reach its own concentrators.
const UNDERLAY: &str = "ip link set lo up; ip link add u0 type bridge; ip addr add 10.99.0.1/24 dev u0; \
    ip link set u0 up; PATH=\"$(dirname \"$0\"):$PATH\"; exec \"$0\" \"$@\"";

impl Demo<'_> {
    /// Shows networks of tenants, or prints why they are not shown.
    pub(super) fn show_networks(&mut self) -> Result<(), Failure> {
        let Some(ping) = ping() else {
            return self.screen.step(
                "networks of tenants are not shown: they need root, ip, nft, nsenter and ping, and a kernel with VXLAN",
            );
        };
        let directory = self.processes.directory().to_owned();
        let authority = Authority::load(&directory)?;
        let (node, concentrators) = (Uuid::new_v4(), [Uuid::new_v4(), Uuid::new_v4()]);
        let roles = Role::AGENT | Role::NETAGENT;
        issue(&authority, roles, node, &directory.join("tenants.pem"))?;
        let certs = directory.join("cncis");
        std::fs::create_dir(&certs).map_err(|e| Failure::at(&certs, e))?;
        for uuid in concentrators {
            let path = certs.join(format!("{uuid}.pem"));
            issue(&authority, Role::CNCIAGENT, uuid, &path)?;
        }
        // Concentrators may be placed on any network node, but the other network node has no networks of
        // tenants.
        self.switch_network_agent(NodeStatus::Offline)?;
        let words = format!(
            "agent --connect unix:scheduler.sock --cert tenants.pem --state tenants {NODE} \
             --network tenants --underlay u0 --concentrator-certs cncis"
        );
        let (_, pid) = self.processes.start_in("tenants", UNDERLAY, &words, self.stop)?;
        self.see("the node with networks is READY", |view| {
            let node = view.node(node)?;
            (node.connected && node.status == NodeStatus::Ready).then_some(())
        })?;
        self.show(&format!(
            "a node with networks of tenants is READY (process {pid})"
        ))?;
        let shown = self.ping_in_networks(node, concentrators, &ping);
        self.switch_network_agent(NodeStatus::Ready)?;
        shown
    }

    fn ping_in_networks(&mut self, node: Uuid, concentrators: [Uuid; 2], ping: &str) -> Result<(), Failure> {
        for (number, uuid) in concentrators.into_iter().enumerate() {
            let (name, host) = (["blue", "red"][number], 33 + number);
            let add = format!(
                "tenant add {name} --subnet 172.16.0.0/24 --concentrator 10.99.0.{host}/24 --uuid {uuid}"
            );
            let output = self.ctl_line(&add)?;
            self.show(&format!("tenant {name} has a network\n{output}"))?;
        }
        let node = format!("--node {node}");
        for (tenant, name, ip) in [("blue", "blue-1", 5), ("red", "red-1", 6)] {
            self.ctl_line(&format!(
                "start --tenant {tenant} --name {name} --ip 172.16.0.{ip} {node} -- sleep 1000"
            ))?;
        }
        #[rustfmt::skip] // A table: tenant, name, address, exit code, text.
        let pings = [
            ("blue", "ping-own", "172.16.0.5", 0, "an instance of blue reaches another instance of blue"),
            ("blue", "ping-other", "172.16.0.6", 3, "it does not reach red, which has the same subnet"),
            ("red", "ping-public", "10.99.0.200", 0, "an instance of red reaches the public address of blue"),
        ];
        for (tenant, name, to, code, text) in pings {
            if name == "ping-public" {
                self.ctl_line("assign-ip --tenant blue blue-1 10.99.0.200")?;
            }
            // The concentrator may not know the node yet.
            let tries = if code == 0 { "1 2 3 4 5" } else { "1" };
            let script = format!("for try in {tries}; do {ping} -c 1 -W 2 {to} && exit 0; done; exit 1");
            let words = format!("start --tenant {tenant} --name {name} {node} -- sh -c");
            let words: Vec<_> = words.split(' ').chain([script.as_str()]).collect();
            self.ctl(&words, 0)?;
            self.ctl(&["wait", name], code)?;
            self.show(text)?;
        }
        self.ctl_line("delete blue-1 red-1 ping-own ping-other ping-public")?;
        for tenant in ["blue", "red"] {
            self.ctl_line(&format!("tenant delete {tenant}"))?;
        }
        self.show("the networks of both tenants were removed")
    }

    /// Takes the network agent that has no networks of tenants out of service, or puts it back.
    fn switch_network_agent(&mut self, to: NodeStatus) -> Result<(), Failure> {
        let pid = self.processes.pid("network-agent").and_then(Pid::from_raw);
        let pid = pid.ok_or_else(|| Failure::new("there is no network agent"))?;
        kill_process(pid, Signal::USR1).map_err(Failure::new)?;
        self.see("the network agent has changed its status", |view| {
            let mut nodes = view.nodes().filter(|node| node.network && !node.compute);
            nodes.all(|node| node.status == to).then_some(())
        })
    }
}

/// The command for ping; `None` if this system does not allow networks of tenants.
fn ping() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return None;
    }
    let mut trial = Command::new("unshare");
    trial.args(["--net", "sh", "-c", TRIAL]);
    let trial = trial.stdin(Stdio::null()).stderr(Stdio::null()).output().ok()?;
    let command = String::from_utf8(trial.stdout).ok()?;
    // Instances find programs in the PATH of their agent, and a concentrator needs this program.
    let is_ssntp =
        std::env::current_exe().is_ok_and(|path| path.file_name() == PathBuf::from("ssntp").file_name());
    (trial.status.success() && is_ssntp).then(|| command.trim().to_owned())
}
