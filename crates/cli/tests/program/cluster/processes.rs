//! A cluster of processes in a directory of its own. Even if a test fails, all processes end,
//! including the instances, and the directory is removed.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use ssntp::pki::{Authority, AuthorityRequest, CertificateRequest, Identity, Trust};
use ssntp::{ClientConfig, Role};
use ssntp_payload::{InstanceState, NodeStatus};
use ssntp_test_support::port::HeldPort;
use ssntp_view::{Controller, ControllerConfig, View};
use tempfile::TempDir;
use uuid::Uuid;

/// The time limit after which a test fails.
pub const LIMIT: Duration = Duration::from_secs(60);
/// The time limit for the end of a program. It is longer than the limits in the programs, such as the 180 s
/// of `ssntp ctl`, which say for what they waited in vain.
const END: Duration = Duration::from_secs(240);

const ROLES: [(Role, &str); 5] = [
    (Role::SCHEDULER, "scheduler"),
    (Role::CONTROLLER, "controller"),
    (Role::AGENT, "agent"),
    (Role::NETAGENT, "netagent"),
    (Role::CNCIAGENT, "cnciagent"),
];

pub struct Cluster {
    directory: TempDir,
    scheduler: Option<Process>,
    /// The scheduler's port, which stays that of this test when the scheduler is killed.
    port: HeldPort,
    address: String,
    flags: Vec<String>,
    nodes: Vec<Option<Process>>,
}

impl Cluster {
    /// A scheduler, with further flags.
    pub fn new(flags: &str) -> Self {
        let mut cluster = Self::without_scheduler();
        cluster.start_scheduler_with(flags);
        cluster
    }

    /// A directory for a cluster whose schedulers the test starts.
    pub fn without_scheduler() -> Self {
        let directory = tempfile::tempdir().unwrap();
        save_certificates(directory.path());
        let port = HeldPort::new();
        Self {
            directory,
            scheduler: None,
            address: port.address(),
            port,
            flags: Vec::new(),
            nodes: Vec::new(),
        }
    }

    /// The addresses of the schedulers for clients that start later.
    pub fn serve_at(&mut self, addresses: &str) {
        self.address = addresses.into();
    }

    /// A scheduler, and agents of compute nodes that have volumes.
    pub fn with_agents(agents: usize) -> Self {
        let mut cluster = Self::new("");
        for _ in 0..agents {
            cluster.agent("--volumes volumes");
        }
        cluster.controller_sees(agents);
        cluster
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Starts the scheduler again at the same address, with other flags.
    pub fn start_scheduler_with(&mut self, flags: &str) {
        self.flags = flags.split_whitespace().map(str::to_owned).collect();
        self.start_scheduler();
    }

    /// Starts the scheduler, again at the same address.
    pub fn start_scheduler(&mut self) {
        let address = self.port.address();
        let mut line = vec![
            "scheduler",
            "--listen",
            &address,
            "--ca",
            "ca.pem",
            "--cert",
            "scheduler.pem",
        ];
        // Several programs of a test share the certificate of their role.
        line.extend(["--config", "cluster.yaml", "--allow-unbound"]);
        line.extend(self.flags.iter().map(String::as_str));
        let process = Process::start(self.directory.path(), &line);
        assert_eq!(process.line(), format!("listening at {address}"));
        self.scheduler = Some(process);
    }

    /// Waits for a line of the scheduler's log that contains a text, and returns it.
    #[track_caller]
    pub fn scheduler_log_line(&self, text: &str) -> String {
        let began = Instant::now();
        loop {
            let log = self.scheduler.as_ref().unwrap().log();
            if let Some(line) = log.lines().find(|line| line.contains(text)) {
                return line.to_owned();
            }
            assert!(
                began.elapsed() < LIMIT,
                "the scheduler does not log {text}: {log}"
            );
            std::thread::yield_now();
        }
    }

    /// Kills it with SIGKILL.
    pub fn kill_scheduler(&mut self) {
        self.scheduler.take().unwrap().kill();
    }

    /// Starts a compute node's agent, and returns its number.
    pub fn agent(&mut self, flags: &str) -> usize {
        self.node("agent", flags)
    }

    pub fn netagent(&mut self, flags: &str) -> usize {
        self.node("netagent", flags)
    }

    fn node(&mut self, subcommand: &str, flags: &str) -> usize {
        let number = self.nodes.len();
        fs::create_dir_all(self.path("volumes")).unwrap();
        self.nodes.push(None);
        self.start_node(number, subcommand, flags);
        number
    }

    /// Starts an agent, again in the same state directory, and returns its UUID.
    pub fn start_node(&mut self, number: usize, subcommand: &str, flags: &str) -> Uuid {
        let (cert, state) = (format!("{subcommand}.pem"), format!("state-{number}"));
        let mut line = vec![
            subcommand,
            "--users",
            "agent",
            "--connect",
            &self.address,
            "--ca",
            "ca.pem",
            "--cert",
            &cert,
        ];
        // Control groups would remain after a failed test.
        line.extend(["--state", &state, "--grace", "2", "--confinement", "rlimits"]);
        line.extend(flags.split_whitespace());
        let process = Process::start(self.directory.path(), &line);
        let uuid = process
            .line()
            .trim()
            .strip_prefix("agent ")
            .unwrap()
            .parse()
            .unwrap();
        self.nodes[number] = Some(process);
        uuid
    }

    /// Kills it with SIGKILL.
    pub fn kill_node(&mut self, number: usize) {
        self.nodes[number].take().unwrap().kill();
    }

    /// Sends a signal to an agent.
    pub fn signal_node(&self, number: usize, signal: Signal) {
        self.nodes[number].as_ref().unwrap().signal(signal);
    }

    /// A controller in this process that sees this number of ready nodes.
    pub fn controller_sees(&self, nodes: usize) -> Controller {
        self.controller_as("controller.pem", nodes)
    }

    pub fn controller_as(&self, cert: &str, nodes: usize) -> Controller {
        let identity = Identity::load(self.path(cert)).unwrap();
        let client = ClientConfig::new(identity, Trust::load(self.path("ca.pem")).unwrap())
            .addresses(self.address.split(',').map(|address| address.parse().unwrap()));
        let controller = Controller::connect(ControllerConfig::new(client)).unwrap();
        let ready = |view: &View| {
            let ready = view
                .nodes()
                .filter(|node| node.connected && node.status == NodeStatus::Ready);
            (ready.count() >= nodes).then_some(())
        };
        sees(&controller, "the nodes are ready", ready);
        controller
    }

    /// A command in an environment in which `ssntp ctl` finds this cluster.
    pub fn command(&self, words: &[&str]) -> Command {
        let mut command = ssntp(self.directory.path(), words);
        command
            .env("SSNTP_CONNECT", &self.address)
            .env("SSNTP_CA", "ca.pem")
            .env("SSNTP_CERT", "controller.pem");
        command
    }

    pub fn address(&self) -> &str {
        &self.address
    }

    /// Runs `ssntp ctl` with these words.
    pub fn ctl_words(&self, words: &[&str]) -> Done {
        Done::of(self.command(&[&["ctl"], words].concat()))
    }

    /// Runs `ssntp ctl` with the words of a line.
    pub fn ctl(&self, line: &str) -> Done {
        self.ctl_words(&line.split_whitespace().collect::<Vec<_>>())
    }

    /// Runs `ssntp ctl`, which has to succeed, and returns its standard output.
    #[track_caller]
    pub fn done(&self, line: &str) -> String {
        let done = self.ctl(line);
        let errors = done.errors();
        assert!(done.code == Some(0) && errors.is_empty(), "{line}: {done:?}");
        done.stdout
    }

    /// Runs `ssntp ctl`, which has to fail, and returns the line with the reason.
    #[track_caller]
    pub fn fails(&self, line: &str) -> String {
        let done = self.ctl(line);
        assert_eq!(done.code, Some(1), "{line}: {}{}", done.stdout, done.stderr);
        let [error] = done.errors()[..] else {
            panic!("{line}: {}", done.stderr);
        };
        error.strip_prefix("ssntp: ").unwrap().trim().to_owned()
    }

    /// Runs `ssntp ctl` with a short time limit, which has to fail with an error for which `is_it` is true.
    /// The limit is also one for the session, so a busy machine may need longer ones. `is_it` gets the
    /// seconds, too.
    #[track_caller]
    pub fn is_over(&self, line: &str, is_it: impl Fn(&str, u32) -> bool) {
        let mut seconds = 4;
        loop {
            let error = self.fails(&format!("--timeout {seconds} {line}"));
            if is_it(&error, seconds) {
                return;
            }
            assert!(seconds < 64, "in {seconds} s: {error}");
            seconds *= 2;
        }
    }

    /// Starts a persistent workload that runs until it is ended.
    #[track_caller]
    pub fn start(&self, flags: &str) -> Uuid {
        let line = format!("start --persistent {flags} --json -- sleep 1000");
        let result: serde_json::Value = serde_json::from_str(&self.done(&line)).unwrap();
        assert_eq!(result["result"], "done", "{result}");
        result["subject"].as_str().unwrap().parse().unwrap()
    }

    /// Starts a concentrator on a network node.
    #[track_caller]
    pub fn start_cnci(&self, tenant: Uuid, ip: &str) -> Uuid {
        let uuid = Uuid::new_v4();
        let path = |name: &str| self.path(name).display().to_string();
        let (ca, cert, program) = (path("ca.pem"), path("cnciagent.pem"), env!("CARGO_BIN_EXE_ssntp"));
        let line = format!(
            "start --network-node --uuid {uuid} --tenant {tenant} -- {program} cnci --connect {} --ca {ca} \
             --cert {cert} --uuid {uuid} --tenant {tenant} --ip {ip} --state tables",
            self.address
        );
        assert!(self.done(&line).contains("runs on node"));
        let controller = self.controller_sees(1);
        let announced = |view: &View| view.cnci(uuid).and_then(|cnci| cnci.since).map(drop);
        sees(&controller, "the concentrator announces itself", announced);
        uuid
    }

    /// A volume that every agent has.
    pub fn volume(&self) -> Uuid {
        let uuid = Uuid::new_v4();
        fs::create_dir_all(self.path("volumes").join(uuid.to_string())).unwrap();
        uuid
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let all = self.nodes.iter().chain([&self.scheduler]).flatten();
            for process in all {
                eprintln!(
                    "{}: {}",
                    process.name,
                    fs::read_to_string(&process.log).unwrap_or_default()
                );
            }
        }
        self.nodes.clear();
        self.scheduler = None;
        kill_inside(self.directory.path());
    }
}

/// Waits until the view of a controller is as `look` wants it. `what` says so if it never is.
#[track_caller]
pub fn sees<T>(controller: &Controller, what: &str, look: impl FnMut(&View) -> Option<T>) -> T {
    controller.wait(LIMIT, look).unwrap_or_else(|| {
        controller.look(|view| {
            let nodes: Vec<_> = view.nodes().collect();
            let instances: Vec<_> = view.instances().collect();
            let online = view.is_online();
            panic!("not in {LIMIT:?}: {what}; online: {online}; {nodes:#?} {instances:#?}")
        })
    })
}

/// Waits until an instance is in a state.
#[track_caller]
pub fn wait_for(controller: &Controller, instance: Uuid, state: &InstanceState) {
    let reached = |view: &View| {
        let node = view.instance(instance).and_then(|i| view.node(i.node))?;
        (node.connected && view.instance(instance)?.state == *state).then_some(())
    };
    sees(controller, &format!("{instance} is {state}"), reached);
}

/// Waits until `is_so` is true. If it never is, fails with the text of `seen`, which says what was seen last.
#[track_caller]
pub fn until(what: &str, mut is_so: impl FnMut() -> Result<(), String>) {
    ssntp_test_support::wait::wait_for(|| is_so().map_err(|seen| format!("{what}: {seen}")));
}

/// The result of a program.
#[derive(Debug)]
pub struct Done {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Done {
    /// Runs a program to its end, within the time limit.
    #[track_caller]
    pub fn of(mut command: Command) -> Self {
        let child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        Self::of_child(child)
    }

    #[track_caller]
    pub fn of_child(mut child: Child) -> Self {
        let (stdout, stderr) = (
            reader(child.stdout.take().unwrap()),
            reader(child.stderr.take().unwrap()),
        );
        let status = end_in_time(&mut child);
        let done = Self {
            code: status.and_then(|status| status.code()),
            stdout: stdout.recv().unwrap(),
            stderr: stderr.recv().unwrap(),
        };
        assert!(status.is_some(), "a program did not end in {END:?}: {done:?}");
        done
    }

    /// The lines of the standard error, without notes about a wait, which depend on how busy the machine is.
    pub fn errors(&self) -> Vec<&str> {
        let waits = |line: &&str| {
            line.starts_with("ssntp: cannot connect yet") || line.starts_with("ssntp: waiting for ")
        };
        self.stderr.lines().filter(|line| !waits(line)).collect()
    }
}

/// Waits for a child. `None` if it was killed at the time limit.
fn end_in_time(child: &mut Child) -> Option<ExitStatus> {
    let deadline = Instant::now() + END;
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return Some(status);
        }
        if Instant::now() > deadline {
            child.kill().unwrap();
            child.wait().unwrap();
            return None;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Waits for a child whose output the test does not need.
#[track_caller]
pub fn end_of(child: &mut Child) -> ExitStatus {
    end_in_time(child).unwrap_or_else(|| panic!("a program did not end in {END:?}"))
}

fn reader(mut from: impl Read + Send + 'static) -> Receiver<String> {
    let (send, receive) = mpsc::channel();
    std::thread::spawn(move || {
        let mut text = String::new();
        let _ = from.read_to_string(&mut text);
        let _ = send.send(text);
    });
    receive
}

/// `ssntp` with the directory as its home.
pub fn ssntp(directory: &Path, words: &[&str]) -> Command {
    let mut command = crate::program();
    command
        .args(words)
        .current_dir(directory)
        .env("HOME", directory)
        .env("PATH", "/usr/local/bin:/usr/bin:/bin")
        .env_remove("XDG_CONFIG_HOME")
        .stdin(Stdio::null());
    command
}

/// A running program. Its standard output is read line by line, and its standard error is in a
/// file.
pub struct Process {
    name: String,
    log: PathBuf,
    child: Child,
    lines: Receiver<String>,
}

impl Process {
    pub fn start(directory: &Path, words: &[&str]) -> Self {
        Self::of(ssntp(directory, words), directory, words[0])
    }

    pub fn of(mut command: Command, directory: &Path, name: &str) -> Self {
        let log = directory.join(format!("{name}-{}.log", Uuid::new_v4()));
        let child = command
            .stdout(Stdio::piped())
            .stderr(fs::File::create(&log).unwrap())
            .spawn();
        let mut child = child.unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let (send, lines) = mpsc::channel();
        std::thread::spawn(move || {
            stdout
                .lines()
                .map_while(Result::ok)
                .try_for_each(|line| send.send(line))
        });
        Self {
            name: name.to_owned(),
            log,
            child,
            lines,
        }
    }

    /// The next line of the standard output.
    #[track_caller]
    pub fn line(&self) -> String {
        self.line_with("")
    }

    /// Skips lines until one contains `text`, and returns it.
    #[track_caller]
    pub fn line_with(&self, text: &str) -> String {
        self.try_line_with(text).unwrap_or_else(|why| panic!("{why}"))
    }

    /// As above. If there is no such line, returns what was printed instead.
    pub fn try_line_with(&self, text: &str) -> Result<String, String> {
        let mut skipped = Vec::new();
        loop {
            match self.lines.recv_timeout(END) {
                Ok(line) if line.contains(text) => return Ok(line),
                Ok(line) => skipped.push(line),
                Err(e) => {
                    let log = self.log();
                    return Err(format!(
                        "{} does not print {text:?}: {e}: {skipped:#?} {log}",
                        self.name
                    ));
                }
            }
        }
    }

    pub fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).unwrap();
        kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
    }

    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// Waits for its end, and returns the exit code.
    #[track_caller]
    pub fn end(&mut self) -> Option<i32> {
        let status = end_in_time(&mut self.child);
        let status = status.unwrap_or_else(|| panic!("{} did not end in {END:?}: {}", self.name, self.log()));
        status.code()
    }

    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The processes that run inside a directory, or have it in their arguments.
pub fn processes_inside(directory: &Path) -> Vec<Pid> {
    let mut pids = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let Some(pid) = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse::<i32>().ok())
        else {
            continue;
        };
        let inside = fs::read_link(entry.path().join("cwd")).is_ok_and(|cwd| cwd.starts_with(directory));
        let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let named = String::from_utf8_lossy(&line).contains(directory.to_str().unwrap());
        if (inside || named) && pid != i32::try_from(std::process::id()).unwrap() {
            pids.extend(Pid::from_raw(pid));
        }
    }
    pids
}

/// Kills all processes that run inside the directory: instances survive their agents.
fn kill_inside(directory: &Path) {
    ssntp_test_support::wait::wait_for(|| {
        let processes = processes_inside(directory);
        for pid in &processes {
            let _ = kill_process(*pid, Signal::KILL);
        }
        if processes.is_empty() {
            Ok(())
        } else {
            Err(processes)
        }
    });
}

/// One authority for all tests.
fn save_certificates(directory: &Path) {
    static FILES: OnceLock<Vec<(String, String)>> = OnceLock::new();
    let files = FILES.get_or_init(|| {
        let authority = Authority::new(&AuthorityRequest::default()).unwrap();
        let issue = |(role, name): (Role, &str)| {
            let issued = authority.issue(&CertificateRequest::new(role)).unwrap();
            (format!("{name}.pem"), issued.to_pem())
        };
        let mut files: Vec<_> = ROLES.into_iter().map(issue).collect();
        let bound = CertificateRequest::new(Role::CONTROLLER).uuid(Uuid::from_u128(0xb0));
        files.push(("bound.pem".into(), authority.issue(&bound).unwrap().to_pem()));
        let page = CertificateRequest::new(Role::CONTROLLER | Role::SERVER);
        let page = page.host("0.0.0.0");
        files.push(("page.pem".into(), authority.issue(&page).unwrap().to_pem()));
        files.push(("ca.pem".into(), authority.certificate_pem().to_owned()));
        files
    });
    for (name, content) in files {
        let path = directory.join(name);
        fs::write(&path, content).unwrap();
        // Keys that others may read are refused.
        fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    }
}

impl Process {
    /// Waits until SIGINT is caught.
    pub fn handles_signals(&self) {
        let caught = || {
            let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).ok()?;
            let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:"))?;
            let mask = u64::from_str_radix(mask.trim(), 16).ok()?;
            // SIGINT is 2, SIGTERM 15.
            (mask >> 1 & 1 == 1 && mask >> 14 & 1 == 1).then_some(())
        };
        ssntp_test_support::wait::wait_for(|| caught().ok_or_else(|| (self.name.clone(), self.log())));
    }
}
