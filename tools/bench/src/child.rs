//! The measured process, for every system.

use std::ffi::OsString;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_channel::{RecvTimeoutError, Sender, bounded};
use rustix::process::{Pid, Signal, kill_process};
use ssntp::transport::{Address, TcpOptions};
use ssntp_transport::{Listener, connect_tcp};

use super::raw::{Pki, System, now};
use crate::failure::Failure;

/// The time limit for the start of a server, and for its end.
const PATIENCE: Duration = Duration::from_secs(10);

/// Runs another program until the standard input ends. So the program ends when this process
/// ends, even if it is killed. Prints the program's process id.
const GUARD: &str = r#""$@" >"$LOG" 2>&1 & echo $!; cat >/dev/null; kill $! 2>/dev/null; wait"#;

/// A running server. Dropping it ends it and waits for it.
#[derive(Debug)]
pub(crate) struct Server {
    child: Child,
    /// The id of the measured process, which may be a child of `child`.
    pid: u32,
    pub(crate) address: Address,
    /// Kills the server at the end of its time limit.
    limit: Option<Limit>,
}

/// A thread that waits for the time limit of a server. Dropping it ends the wait.
#[derive(Debug)]
struct Limit {
    /// Closed by dropping it.
    waits: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Limit {
    fn new(limit: Duration, pid: u32, expired: Arc<AtomicBool>) -> Option<Self> {
        let (waits, ended) = bounded::<()>(0);
        let thread = std::thread::Builder::new()
            .name("limit".to_owned())
            .spawn(move || {
                if ended.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
                    expired.store(true, Relaxed);
                    // Every session of the measurement ends, and so does the measurement.
                    send(pid, Signal::KILL);
                }
            });
        Some(Self {
            waits: Some(waits),
            thread: Some(thread.ok()?),
        })
    }
}

impl Drop for Limit {
    fn drop(&mut self) {
        drop(self.waits.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The paths of the programs.
#[derive(Debug)]
pub(crate) struct Programs {
    pub(crate) ssntp: PathBuf,
    pub(crate) earlier: Option<PathBuf>,
}

impl Programs {
    /// The program of a system. A peer's program is searched on the PATH.
    fn find(&self, system: System) -> Option<PathBuf> {
        match system {
            System::Ssntp => Some(self.ssntp.clone()),
            System::Earlier => self.earlier.clone(),
            System::Nats | System::Mosquitto => on_path(system.name()),
        }
    }
}

/// The program `ssntp` that was built together with this one, or the installed one.
pub(crate) fn own_program() -> Option<PathBuf> {
    let beside = std::env::current_exe()
        .ok()
        .map(|own| own.with_file_name("ssntp"))
        .filter(|path| path.is_file());
    beside.or_else(|| on_path("ssntp"))
}

/// A program of this name in one of the directories of the PATH.
pub(crate) fn on_path(name: &str) -> Option<PathBuf> {
    std::env::split_paths(&std::env::var_os("PATH")?)
        .map(|directory| directory.join(name))
        .find(|path| path.is_file())
}

impl Server {
    /// A server of our own that forwards STATS to controllers, EVACUATE to
    /// agents and READY to schedulers.
    pub(crate) fn ssntp(pki: &Pki, program: &Path, more: &[&str]) -> Result<Self, Failure> {
        Self::ssntp_at(&Address::tcp("127.0.0.1", 0), pki, program, more)
    }

    /// The same at the given address.
    pub(crate) fn ssntp_at(
        address: &Address,
        pki: &Pki,
        program: &Path,
        more: &[&str],
    ) -> Result<Self, Failure> {
        let mut child = Command::new(program)
            .args(["server", "--listen", &address.to_string()])
            .args([
                "--forward",
                "STATS=controller",
                "EVACUATE=agent",
                "READY=scheduler",
                // The pipe closes when this process ends, even if it is killed.
                "--until-stdin-ends",
            ])
            .arg("--ca")
            .arg(pki.ca_path())
            .arg("--cert")
            .arg(pki.server_path())
            .args(more)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .map_err(|e| Failure::new(format!("cannot start the server: {e}")))?;
        let line = lone_line(&mut child);
        let pid = child.id();
        match line.rsplit(' ').next().and_then(|text| text.parse().ok()) {
            Some(address) => Ok(Self {
                child,
                pid,
                address,
                limit: None,
            }),
            None => {
                let _ = child.kill();
                let _ = child.wait();
                Err(Failure::new("the server did not start"))
            }
        }
    }

    /// A server of any system with mutual TLS 1.3. Only the system's own defaults for memory
    /// limit what may wait for a receiver.
    pub(crate) fn start(system: System, pki: &Pki, programs: &Programs) -> Result<Self, Failure> {
        let name = system.name();
        let Some(program) = programs.find(system) else {
            return Err(Failure::new(format!("{name} is not on the PATH")));
        };
        if system.is_ssntp() {
            return Self::ssntp(pki, &program, &[]);
        }
        let port = free_port()?;
        let text = match system {
            System::Mosquitto => mosquitto(pki, port),
            _ => nats(pki, port),
        };
        let config = pki.write(&format!("{name}.conf"), &text)?;
        let log = pki.path(&format!("{name}.log"));
        let mut words: Vec<OsString> = vec!["-c".into(), GUARD.into(), "sh".into()];
        words.extend([program.into_os_string(), "-c".into(), config.into_os_string()]);
        let mut child = Command::new("sh")
            .args(words)
            .env("LOG", &log)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            // In a group of its own, so that Ctrl-C in a terminal reaches only this process,
            // which ends the guard and its child afterwards.
            .process_group(0)
            .spawn()
            .map_err(|e| Failure::new(format!("cannot start {name}: {e}")))?;
        let pid = lone_line(&mut child).parse().unwrap_or(0);
        let server = Self {
            child,
            pid,
            address: Address::tcp("127.0.0.1", port),
            limit: None,
        };
        let began = now();
        while connect_tcp("127.0.0.1", port, &TcpOptions::default(), PATIENCE).is_err() {
            let gone =
                !fs::exists(format!("/proc/{pid}/stat")).unwrap_or(false) || server.state() == Some('Z');
            if gone || began.elapsed() > PATIENCE {
                let why = fs::read_to_string(&log).unwrap_or_default();
                let last = why.lines().last().unwrap_or("it printed nothing").to_owned();
                return Err(Failure::new(format!("{name} did not start: {last}")));
            }
            super::pause(Duration::from_millis(20));
        }
        Ok(server)
    }

    /// The server, which is killed after this time. `expired` says then that it was.
    pub(crate) fn limited(mut self, limit: Duration, expired: &Arc<AtomicBool>) -> Self {
        self.limit = Limit::new(limit, self.pid, Arc::clone(expired));
        self
    }

    /// Kills the server, so that it cannot end its sessions in order.
    pub(crate) fn kill(mut self) {
        let _ = self.child.kill();
    }

    /// The fields of `stat` after the command's name. The name is in parentheses and may
    /// contain any character.
    fn stat(&self) -> Vec<String> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid)).unwrap_or_default();
        let fields = stat.rsplit(')').next().unwrap_or_default();
        fields.split_whitespace().map(str::to_owned).collect()
    }

    fn state(&self) -> Option<char> {
        self.stat().first()?.chars().next()
    }

    /// User and system time so far.
    pub(crate) fn cpu(&self) -> Duration {
        let fields = self.stat();
        let ticks = |at: usize| fields.get(at).and_then(|f| f.parse::<u64>().ok()).unwrap_or(0);
        let hertz = rustix::param::clock_ticks_per_second().max(1);
        Duration::from_secs_f64((ticks(11) + ticks(12)) as f64 / hertz as f64)
    }

    /// Resident memory in KiB.
    pub(crate) fn rss(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid)).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        line.and_then(|l| l.split_whitespace().next()?.parse().ok())
            .unwrap_or(0)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The process id may belong to another process once the server is waited for.
        drop(self.limit.take());
        // Closing the standard input ends every kind of server. The signal is for a server
        // that no longer reads it.
        drop(self.child.stdin.take());
        send(self.pid, Signal::TERM);
        let began = now();
        while let Ok(None) = self.child.try_wait() {
            if began.elapsed() > PATIENCE {
                send(self.pid, Signal::KILL);
                let _ = self.child.kill();
                let _ = self.child.wait();
                break;
            }
            super::pause(Duration::from_millis(5));
        }
    }
}

fn send(pid: u32, signal: Signal) {
    // kill(0) would signal this whole process group, and kill(1) the init process.
    if let Some(pid) = i32::try_from(pid)
        .ok()
        .filter(|pid| *pid > 1)
        .and_then(Pid::from_raw)
    {
        let _ = kill_process(pid, signal);
    }
}

fn lone_line(child: &mut Child) -> String {
    let mut line = String::new();
    if let Some(stdout) = child.stdout.take() {
        let _ = BufReader::new(stdout.take(4096)).read_line(&mut line);
    }
    line.trim().to_owned()
}

/// A free port of loopback.
pub(crate) fn free_port() -> Result<u16, Failure> {
    let any = Address::tcp("127.0.0.1", 0);
    let listeners = Listener::bind(&any, TcpOptions::default())?;
    match listeners.first().and_then(Listener::local_address) {
        Some(Address::Tcp { port, .. }) => Ok(port),
        _ => Err(Failure::new("cannot listen on loopback")),
    }
}

/// nats-server asks for certificates and verifies them. It cuts a slow receiver off at its
/// default of 64 MiB, which is also the default of ssntp.
fn nats(pki: &Pki, port: u16) -> String {
    let (cert, key) = (pki.path("server-cert.pem"), pki.path("server-key.pem"));
    format!(
        "listen: \"127.0.0.1:{port}\"\nmax_connections: 20000\nmax_payload: 1MB\n\
         tls {{\n  cert_file: {cert:?}\n  key_file: {key:?}\n  ca_file: {:?}\n  verify: true\n  timeout: 10\n}}\n",
        pki.ca_path(),
    )
}

/// mosquitto drops nothing because of a queue's length, and writes nothing to the disk.
fn mosquitto(pki: &Pki, port: u16) -> String {
    let (cert, key) = (pki.path("server-cert.pem"), pki.path("server-key.pem"));
    // A mosquitto that root starts would change its user, and could not read the key then.
    format!(
        "user root\nlistener {port} 127.0.0.1\nallow_anonymous true\nrequire_certificate true\n\
         tls_version tlsv1.3\ncafile {}\ncertfile {}\nkeyfile {}\n\
         max_queued_messages 0\nmax_queued_bytes 0\nmax_connections -1\nset_tcp_nodelay true\n\
         persistence false\nlog_type error\n",
        pki.ca_path().display(),
        cert.display(),
        key.display(),
    )
}
