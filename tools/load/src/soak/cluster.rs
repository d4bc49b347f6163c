//! A scheduler, three agents, and a controller.
//!
//! Of the agents the last has its state on a disk of its own, which can be
//! filled: a tmpfs, where we may mount one.

use std::collections::HashSet;
use std::fs::{self, File, Permissions};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use ssntp::Role;
use ssntp::client::ClientConfig;
use ssntp::pki::{Authority, AuthorityRequest, CertificateRequest, Identity, Trust};
use ssntp_transport::Address;
use ssntp_view::{Controller, ControllerConfig};
use tempfile::TempDir;
use uuid::Uuid;

use crate::Result;

pub(crate) const AGENTS: usize = 3;
/// The disk that is filled. An instance's logs take 2 MB of it at most.
const DISK: &str = "size=96m,mode=0711";

pub(crate) struct Cluster {
    pub(crate) controller: Controller,
    /// The scheduler, then the agents.
    pub(crate) daemons: Vec<Daemon>,
    /// The small disk, where there is one.
    pub(crate) disk: Option<PathBuf>,
    /// The commands that start the agents.
    pub(crate) program: PathBuf,
    keep: bool,
    directory: TempDir,
}

pub(crate) struct Daemon {
    pub(crate) name: String,
    directory: PathBuf,
    program: PathBuf,
    arguments: Vec<String>,
    child: Option<Child>,
}

impl Cluster {
    pub(crate) fn start(program: &Path, keep: bool) -> Result<Self> {
        let directory = tempfile::Builder::new().prefix("soak-").tempdir()?;
        let root = directory.path().to_path_buf();
        // The users of instances pass it.
        fs::set_permissions(&root, Permissions::from_mode(0o711))?;
        save_certificates(&root)?;
        let copy = root.join("ssntp");
        fs::copy(program, &copy).map_err(|e| format!("{}: {e}", program.display()))?;

        let line = "scheduler --ca ca.pem --cert scheduler.pem --config cluster.yaml --allow-unbound --listen 127.0.0.1:0";
        let mut scheduler = Daemon::new("scheduler".into(), &root, program, line);
        let line = scheduler.start_and_read()?;
        let address = line.strip_prefix("listening at ").ok_or("no address")?.to_owned();
        // From now on it is there.
        scheduler.replace_last(&address);
        let controller = connect(&root, [address.parse()?])?;
        let mut cluster = Self {
            controller,
            daemons: vec![scheduler],
            disk: None,
            program: copy.clone(),
            keep,
            directory,
        };
        for number in 0..AGENTS {
            let state = root.join(format!("state-{number}"));
            fs::create_dir(&state)?;
            if number == AGENTS - 1 && mount(&state) {
                cluster.disk = Some(state);
            }
            let line = format!(
                "agent --ca ca.pem --cert agent.pem --connect {address} --state state-{number}/agent \
                 --interval 2 --grace 1 --log-limit 1 --mem 8192 --driver process"
            );
            let mut agent = Daemon::new(format!("agent-{number}"), &root, &copy, &line);
            agent.start()?;
            cluster.daemons.push(agent);
        }
        let all = |view: &ssntp_view::View| {
            (view.nodes().filter(|node| node.seen.is_some()).count() == AGENTS).then_some(())
        };
        let there = cluster.controller.wait(Duration::from_secs(60), all);
        there.ok_or("the agents do not connect")?;
        Ok(cluster)
    }

    pub(crate) fn describe(&self) -> String {
        let disk = match self.disk {
            Some(_) => "a tmpfs is filled",
            None => "no disk is filled, since no tmpfs may be mounted here",
        };
        format!("{AGENTS} agents; {disk}; in {}", self.root().display())
    }

    pub(crate) fn root(&self) -> PathBuf {
        self.directory.path().to_path_buf()
    }

    /// The agents' state directories.
    pub(crate) fn states(&self) -> impl Iterator<Item = PathBuf> {
        (0..AGENTS).map(|number| self.directory.path().join(format!("state-{number}")))
    }

    /// All processes of the cluster, this one included, by name.
    pub(crate) fn pids(&self) -> impl Iterator<Item = (String, u32)> {
        let daemons = self.daemons.iter();
        let running = daemons.filter_map(|daemon| Some((daemon.name.clone(), daemon.child.as_ref()?.id())));
        running.chain([("controller".to_owned(), std::process::id())])
    }

    /// A daemon that ended by itself is an error: nothing else would tell.
    pub(crate) fn watch(&mut self) -> Result<()> {
        for daemon in &mut self.daemons {
            if let Some(child) = &mut daemon.child
                && let Some(status) = child.try_wait()?
            {
                daemon.child = None;
                let log = fs::read_to_string(daemon.log()).unwrap_or_default();
                let tail: Vec<_> = log.lines().rev().take(5).collect();
                return Err(format!("{} ended by itself: {status}: {tail:?}", daemon.name).into());
            }
        }
        Ok(())
    }

    /// The processes of instances: supervisors and their programs.
    pub(crate) fn workloads(&self) -> Vec<Workload> {
        let own: HashSet<i32> = self.pids().filter_map(|(_, pid)| pid.try_into().ok()).collect();
        let root = self.root();
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        entries
            .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
            .filter(|pid| !own.contains(pid))
            .filter_map(|pid| Workload::read(pid, &root))
            .collect()
    }

    /// Ends all processes, and returns the figures of those that are left.
    pub(crate) fn end(mut self, started: &HashSet<Uuid>) -> Vec<String> {
        let mut faults = Vec::new();
        // The agents first.
        while let Some(daemon) = self.daemons.pop() {
            faults.extend(daemon.end());
        }
        faults.extend(self.workloads().iter().map(|left| format!("process {left:?}")));
        for folder in ["instances", "removed", "set-aside"] {
            for state in self.states() {
                let of = state.join("agent").join(folder);
                let left = fs::read_dir(&of).into_iter().flatten().flatten();
                faults.extend(left.map(|entry| format!("file {}", entry.path().display())));
            }
        }
        let groups = control_groups(Path::new("/sys/fs/cgroup"), 4);
        let ours = |name: &String| name.parse().is_ok_and(|uuid: Uuid| started.contains(&uuid));
        faults.extend(
            groups
                .into_iter()
                .filter(ours)
                .map(|name| format!("control group {name}")),
        );
        faults
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for daemon in &mut self.daemons {
            daemon.kill();
        }
        for left in self.workloads() {
            left.kill();
        }
        if self.keep {
            self.directory.disable_cleanup(true);
            println!("kept: {}", self.root().display());
        } else if let Some(disk) = &self.disk {
            let _ = Command::new("umount").arg(disk).status();
        }
    }
}

/// An authority to throw away, with a certificate for each part.
pub(crate) fn save_certificates(root: &Path) -> Result<()> {
    let authority = Authority::new(&AuthorityRequest::default())?;
    authority.save(root, false)?;
    for (name, role) in [
        ("scheduler", Role::SCHEDULER),
        ("agent", Role::AGENT),
        ("controller", Role::CONTROLLER),
    ] {
        let issued = authority.issue(&CertificateRequest::new(role))?;
        issued.save(root.join(format!("{name}.pem")))?;
    }
    Ok(())
}

/// A controller that connects to one of these addresses.
pub(crate) fn connect(root: &Path, addresses: impl IntoIterator<Item = Address>) -> Result<Controller> {
    let identity = Identity::load(root.join("controller.pem"))?;
    let client = ClientConfig::new(identity, Trust::load(root.join("ca.pem"))?).addresses(addresses);
    Ok(Controller::connect(ControllerConfig::new(client))?)
}

impl Daemon {
    /// A process that is not started yet, with the arguments of this line.
    pub(crate) fn new(name: String, root: &Path, program: &Path, line: &str) -> Self {
        Self {
            name,
            directory: root.to_path_buf(),
            program: program.to_path_buf(),
            arguments: line.split_whitespace().map(str::to_owned).collect(),
            child: None,
        }
    }

    /// Replaces the last argument for later starts.
    pub(crate) fn replace_last(&mut self, argument: &str) {
        self.arguments.pop();
        self.arguments.push(argument.to_owned());
    }

    pub(crate) fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// True if the process has ended by itself or after a request.
    pub(crate) fn has_ended(&mut self) -> bool {
        let ended = |child: &mut Child| !matches!(child.try_wait(), Ok(None));
        if self.child.as_mut().is_some_and(ended) {
            self.child = None;
        }
        self.child.is_none()
    }

    pub(crate) fn start(&mut self) -> Result<()> {
        self.start_and_read().map(drop)
    }

    /// Starts the process, and waits for its first line of output.
    pub(crate) fn start_and_read(&mut self) -> Result<String> {
        let log = File::options().create(true).append(true).open(self.log())?;
        let mut child = Command::new(&self.program)
            .args(&self.arguments)
            .current_dir(&self.directory)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()?;
        let mut line = String::new();
        if let Some(stdout) = child.stdout.take() {
            BufReader::new(stdout).read_line(&mut line)?;
        }
        self.child = Some(child);
        Ok(line.trim_end().to_owned())
    }

    pub(crate) fn is_running(&self) -> bool {
        self.child.is_some()
    }

    /// Kills the process without a warning, as a power cut does.
    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    pub(crate) fn signal(&self, signal: Signal) {
        if let Some(child) = &self.child {
            let _ = kill_process(Pid::from_child(child), signal);
        }
    }

    fn log(&self) -> PathBuf {
        self.directory.join(format!("{}.log", self.name))
    }

    /// Requests the end of the process. Returns the faults of the end and of the log.
    pub(crate) fn end(mut self) -> Option<String> {
        self.signal(Signal::TERM);
        let asked = Instant::now();
        let mut child = self.child.take()?;
        let status = loop {
            match child.try_wait() {
                Ok(None) if asked.elapsed() < Duration::from_secs(20) => {
                    std::thread::sleep(Duration::from_millis(20));
                }
                Ok(Some(status)) => break status.to_string(),
                _ => {
                    let _ = child.kill();
                    let _ = child.wait();
                    break "it had to be killed".to_owned();
                }
            }
        };
        let log = fs::read_to_string(self.log()).unwrap_or_default();
        let panicked = log.lines().find(|line| line.contains("panicked"));
        let name = &self.name;
        match panicked {
            Some(line) => Some(format!("{name}: {line}")),
            None if status != "exit status: 0" => Some(format!("{name}: {status}")),
            None => None,
        }
    }
}

/// A process of an instance.
#[derive(Debug)]
pub(crate) struct Workload {
    pub(crate) pid: Pid,
    pub(crate) is_supervisor: bool,
    #[allow(dead_code, reason = "shown where it is left")]
    command: String,
}

impl Workload {
    /// `None` if the process belongs to another user or has ended.
    fn read(pid: i32, root: &Path) -> Option<Self> {
        let read = |file: &str| fs::read(format!("/proc/{pid}/{file}"));
        let command = String::from_utf8_lossy(&read("cmdline").ok()?).replace('\0', " ");
        let root = root.to_str()?;
        let is_supervisor = command.contains("supervise-instance");
        let environment = read("environ").unwrap_or_default();
        let of_ours = String::from_utf8_lossy(&environment).contains(root) || command.contains(root);
        (of_ours && !command.is_empty()).then_some(Self {
            pid: Pid::from_raw(pid)?,
            is_supervisor,
            command,
        })
    }

    pub(crate) fn kill(&self) {
        let _ = kill_process(self.pid, Signal::KILL);
    }
}

fn mount(directory: &Path) -> bool {
    let mut command = Command::new("mount");
    command.args(["-t", "tmpfs", "-o", DISK, "soak"]).arg(directory);
    let status = command.stdout(Stdio::null()).stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}

/// The names of all control groups of instances, up to this depth.
fn control_groups(folder: &Path, depth: usize) -> Vec<String> {
    let mut names = Vec::new();
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    for entry in entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
        let name = entry.file_name().to_string_lossy().into_owned();
        if name == "ssntp" {
            let groups = fs::read_dir(entry.path()).into_iter().flatten().flatten();
            names.extend(groups.map(|group| group.file_name().to_string_lossy().into_owned()));
        } else if depth > 0 {
            names.extend(control_groups(&entry.path(), depth - 1));
        }
    }
    names
}
