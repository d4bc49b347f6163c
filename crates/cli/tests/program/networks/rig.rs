//! A cluster in network namespaces.

use std::cell::RefCell;
use std::fs::{self, File, Permissions};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use ssntp::Role;
use ssntp::pki::{Authority, AuthorityRequest, CertificateRequest};
use tempfile::TempDir;

use crate::processes::{Program, wait_for};

/// The time without an answer after which an address counts as unreachable.
const SILENCE: Duration = Duration::from_secs(1);
/// The flags of the agents of compute nodes.
pub const AGENT_FLAGS: &str = "--users agent --network tenants --underlay u0";
/// The hosts of a cluster and the last byte of each one's address.
const HOSTS: [(&str, u8); 5] = [("s", 1), ("a", 11), ("b", 12), ("k", 20), ("o", 99)];

/// A scheduler on `s`, agents on `a` and `b`, a network agent on `k`; `o` is an outsider.
pub struct Rig {
    pub dir: TempDir,
    prefix: String,
    /// The flags of agents that are started from now on.
    pub agent_flags: &'static str,
    /// The capabilities that agents that are started from now on may have, as setpriv changes those of a test. They
    /// cannot set `/proc/sys` then, as in the packaged unit.
    pub rights: Option<String>,
    programs: Vec<(&'static str, Program)>,
    authority: Option<Authority>,
}

/// An instance in a tenant's network.
#[derive(Clone, Debug)]
pub struct Instance {
    pub uuid: String,
    pub ip: Ipv4Addr,
    pub pid: i32,
}

impl Rig {
    /// `None` if networks cannot be made here; then the reason is printed.
    pub fn new() -> Option<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);

        let has = |tool: &str| Command::new(tool).arg("--version").output().is_ok();
        let missing = ["ip", "nft", "nsenter"].into_iter().find(|tool| !has(tool));
        let missing_part = match missing {
            _ if !rustix::process::geteuid().is_root() => "root".to_owned(),
            Some(tool) => tool.to_owned(),
            None => String::new(),
        };
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let rig = Self {
            dir: tempfile::tempdir().unwrap(),
            prefix: format!("ssntp-{}-{number}-", std::process::id()),
            agent_flags: AGENT_FLAGS,
            rights: None,
            programs: Vec::new(),
            authority: None,
        };
        if !missing_part.is_empty() || !rig.try_ip(&format!("netns add {}hub", rig.prefix)) {
            eprintln!("skipped: networks of tenants cannot be tested here without {missing_part}");
            return None;
        }
        Some(rig.filled())
    }

    fn filled(mut self) -> Self {
        let hub = self.namespace("hub");
        self.ip(&format!("-n {hub} link add br0 type bridge"));
        self.ip(&format!("-n {hub} link set br0 up"));
        for (host, byte) in HOSTS {
            let own = self.namespace(host);
            self.ip(&format!("netns add {own}"));
            self.ip(&format!(
                "-n {own} link add u0 type veth peer name p{host} netns {hub}"
            ));
            self.ip(&format!("-n {hub} link set p{host} master br0 up"));
            self.ip(&format!("-n {own} addr add 10.77.0.{byte}/24 dev u0"));
            self.ip(&format!("-n {own} link set u0 up"));
            self.ip(&format!("-n {own} link set lo up"));
        }
        // Concentrators run as users of their own, which have to execute the program.
        let dir = self.dir.path();
        fs::set_permissions(dir, Permissions::from_mode(0o755)).unwrap();
        fs::create_dir(dir.join("bin")).unwrap();
        let program = env!("CARGO_BIN_EXE_ssntp");
        if fs::hard_link(program, dir.join("bin/ssntp")).is_err() {
            fs::copy(program, dir.join("bin/ssntp")).unwrap();
        }
        let authority = Authority::new(&AuthorityRequest::default()).unwrap();
        authority.save(dir, false).unwrap();
        for (name, roles) in [
            ("agent", Role::AGENT),
            ("netagent", Role::NETAGENT),
            ("controller", Role::CONTROLLER),
        ] {
            let issued = authority.issue(&CertificateRequest::new(roles)).unwrap();
            issued.save(dir.join(format!("{name}.pem"))).unwrap();
        }
        let request = CertificateRequest::new(Role::SCHEDULER).host("10.77.0.1");
        authority
            .issue(&request)
            .unwrap()
            .save(dir.join("scheduler.pem"))
            .unwrap();
        let list = authority.revocation_list(&[], 1, 30).unwrap();
        fs::write(dir.join("crl.pem"), list.pem).unwrap();
        self.authority = Some(authority);
        fs::create_dir(self.dir.path().join("certs")).unwrap();
        self.scheduler();
        for host in ["a", "b", "k"] {
            self.agent(host);
        }
        self
    }

    /// Writes a file that all users may read and execute.
    pub fn write(&self, name: &str, content: &[u8]) {
        let path = self.dir.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, content).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
    }

    fn namespace(&self, host: &str) -> String {
        format!("{}{host}", self.prefix)
    }

    pub fn ip(&self, words: &str) {
        assert!(self.try_ip(words), "ip {words}");
    }

    /// Runs a command of `ip` in the namespace of a host.
    pub fn ip_on(&self, host: &str, words: &str) {
        self.ip(&format!("-n {} {words}", self.namespace(host)));
    }

    fn try_ip(&self, words: &str) -> bool {
        Command::new("ip")
            .args(words.split(' '))
            .status()
            .is_ok_and(|status| status.success())
    }

    /// A command in the namespace of a host.
    fn on(&self, host: &str, program: &str) -> Command {
        within(&format!("/run/netns/{}", self.namespace(host)), program)
    }

    /// The output of a command in the namespace of a host.
    pub fn output(&self, host: &str, words: &str) -> String {
        output(
            self.on(host, words.split(' ').next().unwrap())
                .args(words.split(' ').skip(1)),
        )
    }

    pub fn scheduler(&mut self) {
        let dir = self.dir.path().to_owned();
        let mut command = self.on("s", "bin/ssntp");
        let words = "scheduler --listen 10.77.0.1:8888 --ca ca.pem --cert scheduler.pem --config cluster.yaml --allow-unbound";
        let mut program = Program::start(command.current_dir(dir).args(words.split(' ')));
        program.first_line();
        self.programs.push(("s", program));
    }

    /// Starts the agent of a host, and waits until its node is READY, because the scheduler refuses a START
    /// for a node that is not.
    pub fn agent(&mut self, host: &'static str) {
        let mut program = Program::start(&mut self.agent_command(host));
        program.first_line();
        self.programs.push((host, program));
        let node = self.node(host);
        until(|| self.done("nodes --state READY").contains(&node));
    }

    /// The command that starts the agent of a host.
    pub fn agent_command(&self, host: &str) -> Command {
        let dir = self.dir.path();
        let (name, more) = match host {
            "k" => (
                "netagent",
                "--concentrator-certs certs --crl crl.pem --crl-strict --network tenants --underlay u0",
            ),
            _ => ("agent", self.agent_flags),
        };
        let words = format!(
            "{name} --connect 10.77.0.1:8888 --ca ca.pem --cert {name}.pem --state state-{host} \
             --interval 2 --name-server 192.0.2.53 --admin unix:admin-{host} {more}"
        );
        let mut command = match &self.rights {
            None => self.on(host, "bin/ssntp"),
            Some(rights) => {
                let mut command = self.on(host, "unshare");
                let limited = "mount --bind -o ro /proc/sys /proc/sys && exec setpriv \"$@\"";
                command.args(["--mount", "sh", "-c", limited, "sh"]);
                command.args([
                    &format!("--bounding-set={rights}"),
                    "--inh-caps=-all",
                    "bin/ssntp",
                ]);
                command
            }
        };
        let path = std::env::var("PATH").unwrap();
        command.env("PATH", format!("{}:{path}", dir.join("bin").display()));
        command.current_dir(dir).args(words.split(' '));
        command
    }

    /// The health on the page of an agent.
    pub fn health(&self, host: &str) -> String {
        let mut stream = UnixStream::connect(self.dir.path().join(format!("admin-{host}"))).unwrap();
        stream
            .write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            .unwrap();
        let mut page = String::new();
        stream.read_to_string(&mut page).unwrap();
        SEEN.set(page.clone());
        page
    }

    /// Kills the agent with SIGKILL. Its instances run on.
    /// Kills a daemon. Waits until the scheduler, if it is not the one, has noticed that the node is gone.
    pub fn kill(&mut self, host: &str) {
        let at = self.programs.iter().position(|(name, _)| *name == host).unwrap();
        self.programs.remove(at).1.kill();
        if host != "s" {
            let node = self.node(host);
            until(|| !self.done("nodes --state READY").contains(&node));
        }
    }

    pub fn ctl(&self, words: &str) -> Output {
        let mut command = self.on("s", "bin/ssntp");
        command.current_dir(self.dir.path());
        command.args([
            "ctl",
            "--connect",
            "10.77.0.1:8888",
            "--ca",
            "ca.pem",
            "--cert",
            "controller.pem",
        ]);
        let output = command.args(words.split(' ')).stdin(Stdio::null()).output();
        let output = output.unwrap();
        SEEN.set(format!("{output:?}"));
        output
    }

    /// Runs a command of `ssntp ctl` that has to succeed, and returns its standard output.
    #[track_caller]
    pub fn done(&self, words: &str) -> String {
        let output = self.ctl(words);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "ctl {words}: {error}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Runs a command of `ssntp ctl` that has to fail, and returns its standard error.
    #[track_caller]
    pub fn refused(&self, words: &str) -> String {
        let output = self.ctl(words);
        assert!(!output.status.success(), "ctl {words}");
        String::from_utf8(output.stderr).unwrap()
    }

    /// Adds a tenant whose concentrator has a certificate of its own.
    pub fn tenant(&self, name: &str, concentrator: u8) {
        let uuid = uuid::Uuid::new_v4();
        self.certify(uuid);
        self.done(&format!(
            "tenant add {name} --subnet 172.16.0.0/24 --concentrator 10.77.0.{concentrator}/24 --uuid {uuid}"
        ));
    }

    /// Issues a new certificate for a concentrator.
    pub fn certify(&self, concentrator: uuid::Uuid) {
        let certs = self.dir.path().join("certs");
        let request = CertificateRequest::new(Role::CNCIAGENT).uuid(concentrator);
        let issued = self.authority.as_ref().unwrap().issue(&request).unwrap();
        issued.save(certs.join(format!("{concentrator}.pem"))).unwrap();
    }

    /// The UUID of the node on a host.
    pub fn node(&self, host: &str) -> String {
        let path = self.dir.path().join(format!("state-{host}"));
        let files = fs::read_dir(&path).unwrap().flatten().map(|entry| entry.path());
        let texts = files
            .filter(|path| path.is_file())
            .filter_map(|path| fs::read_to_string(path).ok());
        let mut texts = texts.map(|text| text.trim().to_owned());
        texts.find(|text| uuid::Uuid::try_parse(text).is_ok()).unwrap()
    }

    /// Starts an instance of a tenant on a host, and a service in its network that answers with its name.
    pub fn start(&self, tenant: &str, host: &str) -> Instance {
        let node = self.node(host);
        let instance = self.start_with(tenant, host, &format!("--node {node} -- sleep 1000"));
        serve(instance.pid, format!("{tenant} {}", instance.uuid));
        instance
    }

    /// Starts an instance with these flags, which select that host.
    pub fn start_with(&self, tenant: &str, host: &str, words: &str) -> Instance {
        let output = self.done(&format!("start --tenant {tenant} {words}"));
        let uuid = output.split(' ').nth(1).unwrap().to_owned();
        let shown = self.done(&format!("tenant show {tenant} --json"));
        let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
        let addresses = shown["addresses"].as_array().unwrap();
        let address = addresses
            .iter()
            .find(|address| address["instance"] == *uuid)
            .unwrap();
        Instance {
            ip: address["ip"].as_str().unwrap().parse().unwrap(),
            pid: self.pid(host, &uuid),
            uuid,
        }
    }

    /// The process of an instance that runs on a host.
    pub fn pid(&self, host: &str, instance: &str) -> i32 {
        let path = self
            .dir
            .path()
            .join(format!("state-{host}/instances/{instance}/instance.yaml"));
        let running = || pid_of(&path).filter(|pid| *pid > 0);
        wait_for(|| running().ok_or_else(|| fs::read_to_string(&path)))
    }

    /// The concentrator of a tenant: its instance and its process.
    pub fn concentrator(&self, tenant: &str) -> (String, i32) {
        let shown = self.done(&format!("tenant show {tenant} --json"));
        let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
        let uuid = shown["concentrator"].as_str().unwrap().to_owned();
        let pid = self.pid("k", &uuid);
        (uuid, pid)
    }

    /// Calls a function in the namespace of a host.
    pub fn at<T: Send + 'static>(&self, host: &str, act: impl FnOnce() -> T + Send + 'static) -> T {
        enter(format!("/run/netns/{}", self.namespace(host)), act)
    }

    /// The processes of all instances.
    fn pids(&self) -> Vec<i32> {
        let states = ["a", "b", "k"].map(|host| self.dir.path().join(format!("state-{host}/instances")));
        let entries = states.iter().flat_map(fs::read_dir).flatten().flatten();
        entries
            .filter_map(|entry| pid_of(&entry.path().join("instance.yaml")))
            .collect()
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        // Agents end first, because they would start concentrators again.
        self.programs.clear();
        let pids: Vec<i32> = self.pids().into_iter().filter(|pid| *pid > 0).collect();
        // A process that an instance has started, such as a concentrator's dnsmasq, is in its namespace.
        let own = fs::read_link("/proc/self/ns/net").unwrap();
        let spaces: Vec<PathBuf> = pids.iter().filter_map(|pid| network(&pid.to_string())).collect();
        for pid in &pids {
            let _ = kill_process_group(Pid::from_raw(*pid).unwrap(), Signal::KILL);
        }
        for entry in fs::read_dir("/proc").unwrap().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let Some(pid) = name.parse().ok().and_then(Pid::from_raw) else {
                continue;
            };
            if network(&name).is_some_and(|space| space != own && spaces.contains(&space)) {
                let _ = kill_process(pid, Signal::KILL);
            }
        }
        for host in HOSTS.iter().map(|(host, _)| *host).chain(["hub"]) {
            let pids = output(Command::new("ip").args(["netns", "pids", &self.namespace(host)]));
            for pid in pids
                .split_whitespace()
                .filter_map(|pid| Pid::from_raw(pid.parse().ok()?))
            {
                let _ = kill_process(pid, Signal::KILL);
            }
            let _ = Command::new("ip")
                .args(["netns", "del", &self.namespace(host)])
                .output();
        }
    }
}

fn pid_of(record: &PathBuf) -> Option<i32> {
    let record = fs::read_to_string(record).ok()?;
    record
        .lines()
        .find_map(|line| line.strip_prefix("pid: ")?.parse().ok())
}

/// The network namespace of a process.
fn network(pid: &str) -> Option<PathBuf> {
    fs::read_link(format!("/proc/{pid}/ns/net")).ok()
}

fn output(command: &mut Command) -> String {
    let text = String::from_utf8(command.output().unwrap().stdout).unwrap();
    SEEN.set(text.clone());
    text
}

/// A command in a network namespace.
fn within(namespace: &str, program: &str) -> Command {
    let mut command = Command::new("nsenter");
    command.arg(format!("--net={namespace}")).arg("--").arg(program);
    command
}

impl Instance {
    /// Runs a command in the instance's network with root's rights. True if it succeeds.
    pub fn runs(&self, words: &str) -> bool {
        let mut words = words.split(' ');
        let mut command = within(&format!("/proc/{}/ns/net", self.pid), words.next().unwrap());
        command
            .args(words)
            .stderr(Stdio::null())
            .status()
            .unwrap()
            .success()
    }

    /// The output of a command that runs as root in the network namespace of the instance.
    pub fn output(&self, program: &str, words: &[&str]) -> String {
        output(within(&format!("/proc/{}/ns/net", self.pid), program).args(words))
    }

    /// The same instance with another process.
    pub fn like(&self, pid: i32) -> Self {
        Self { pid, ..self.clone() }
    }

    /// A file of `/proc` about the instance's program, which is a child of its supervisor.
    fn of_program(&self, file: &str) -> String {
        let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", self.pid)).unwrap();
        let program = children.split_whitespace().next().unwrap();
        fs::read_to_string(format!("/proc/{program}/{file}")).unwrap()
    }

    /// A file as the instance's program sees it.
    pub fn reads(&self, path: &str) -> String {
        self.of_program(&format!("root{path}"))
    }

    /// The users and capabilities of the instance's program.
    pub fn rights(&self) -> String {
        self.of_program("status")
    }

    /// The variables of the instance's program.
    pub fn environment(&self) -> String {
        self.of_program("environ")
    }

    /// Calls a function in the instance's network.
    pub fn within<T: Send + 'static>(&self, act: impl FnOnce() -> T + Send + 'static) -> T {
        enter(format!("/proc/{}/ns/net", self.pid), act)
    }

    /// The instance that answers at an address; `None` if there is no answer.
    pub fn answer_at(&self, ip: Ipv4Addr) -> Option<String> {
        let answer = self.within(move || answer_at(ip));
        SEEN.set(format!("{ip} answers {answer:?}"));
        answer
    }

    /// Waits until another instance answers. The limit is long enough for a busy machine.
    #[track_caller]
    pub fn reaches(&self, other: &Self) {
        wait_for(|| {
            let answer = self.answer_at(other.ip);
            let is_it = |answer: &String| answer.ends_with(&other.uuid);
            answer
                .as_ref()
                .filter(|answer| is_it(answer))
                .map(drop)
                .ok_or(answer.clone())
        });
    }

    /// A connection to another instance, which echoes.
    pub fn connect(&self, other: &Self) -> TcpStream {
        let to = SocketAddr::from((other.ip, ECHO));
        let stream = self.within(move || wait_for(|| TcpStream::connect_timeout(&to, SILENCE)));
        // After an interruption the kernel sends again after a time as long as the interruption.
        stream.set_read_timeout(Some(Duration::from_secs(240))).unwrap();
        stream
    }
}

const NAME: u16 = 7;
const ECHO: u16 = 8;

/// The instance that answers at an address in the namespace of this thread.
pub fn answer_at(ip: Ipv4Addr) -> Option<String> {
    let mut stream = TcpStream::connect_timeout(&(ip, NAME).into(), SILENCE).ok()?;
    stream.set_read_timeout(Some(SILENCE)).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    Some(answer)
}

/// Sends bytes through a connection that echoes, repeatedly, until the test ends.
pub struct Traffic {
    echoes: Arc<AtomicU32>,
}

impl Traffic {
    pub fn new(mut stream: TcpStream) -> Self {
        let echoes = Arc::new(AtomicU32::new(0));
        let count = Arc::clone(&echoes);
        thread::spawn(move || {
            let mut back = [0; 64];
            while stream.write_all(&[7; 64]).is_ok() && stream.read_exact(&mut back).is_ok() {
                count.fetch_add(1, Ordering::Relaxed);
                // Short enough to notice every gap, and long enough to spare the processor.
                thread::sleep(Duration::from_millis(2));
            }
        });
        Self { echoes }
    }

    /// Waits until more bytes have passed on the same connection.
    #[track_caller]
    pub fn goes_on(&self) {
        let before = self.echoes.load(Ordering::Relaxed);
        let echoes = || self.echoes.load(Ordering::Relaxed) - before;
        wait_for(|| (echoes() > 10).then_some(()).ok_or_else(echoes));
    }
}

/// Sends through a connection that echoes, and waits for the echo.
pub fn echoes(stream: &mut TcpStream, text: &str) {
    stream.write_all(text.as_bytes()).unwrap();
    let mut echo = vec![0; text.len()];
    stream.read_exact(&mut echo).unwrap();
    assert_eq!(echo, text.as_bytes());
}

/// Answers with a name and the address of the peer in the namespace of a process, until the test
/// ends. A socket stays in the namespace in which it was made.
pub fn serve(pid: i32, name: String) {
    serve_in(format!("/proc/{pid}/ns/net"), name);
}

fn serve_in(namespace: String, name: String) {
    let (names, echo) = enter(namespace, || {
        [NAME, ECHO]
            .map(|port| TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).unwrap())
            .into()
    });
    thread::spawn(move || {
        for mut stream in names.incoming().flatten() {
            let _ = stream.write_all(name.as_bytes());
        }
    });
    thread::spawn(move || {
        for mut stream in echo.incoming().flatten() {
            let mut back = stream.try_clone().unwrap();
            thread::spawn(move || std::io::copy(&mut stream, &mut back));
        }
    });
}

/// A listener in a host's namespace that tells each peer its address.
pub fn tell_peers(rig: &Rig, host: &str) {
    let listener = rig.at(host, || TcpListener::bind((Ipv4Addr::UNSPECIFIED, NAME)).unwrap());
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let peer = stream.peer_addr().unwrap().ip();
            let _ = stream.write_all(peer.to_string().as_bytes());
        }
    });
}

/// Calls a function in a network namespace, which a thread of its own enters.
fn enter<T: Send + 'static>(namespace: String, act: impl FnOnce() -> T + Send + 'static) -> T {
    let entered = thread::spawn(move || {
        let file = File::open(&namespace).unwrap_or_else(|e| panic!("{namespace}: {e}"));
        move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
        act()
    });
    entered.join().unwrap()
}

thread_local! {
    /// The last output, page or answer that the test has seen.
    static SEEN: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Waits until a condition holds.
#[track_caller]
pub fn until(mut holds: impl FnMut() -> bool) {
    wait_for(|| holds().then_some(()).ok_or_else(|| SEEN.take()));
}
