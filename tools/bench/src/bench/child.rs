//! The process that is measured, whatever system it is.

use std::ffi::OsString;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use ssntp_transport::{Listener, connect_tcp};
use ssntp::transport::{Address, TcpOptions};

use super::raw::{Pki, System, now};
use crate::failure::Failure;

/// How long a server may take to start, and to end.
const PATIENCE: Duration = Duration::from_secs(10);

/// Runs another program until the standard input ends: so it ends with this
/// process, however this process does. Prints the program's process id.
const GUARD: &str = r#""$@" >"$LOG" 2>&1 & echo $!; cat >/dev/null; kill $! 2>/dev/null; wait"#;

/// A running server. Dropping it ends it and waits for it.
#[derive(Debug)]
pub(super) struct Server {
    child: Child,
    /// The process to look at, which may be a child of the child.
    pid: u32,
    pub(super) address: Address,
}

/// Where the programs of the systems are.
#[derive(Debug)]
pub(super) struct Programs {
    pub(super) ssntp: PathBuf,
    pub(super) earlier: Option<PathBuf>,
}

impl Programs {
    /// The program of a system. A peer's is looked for on the PATH.
    pub(super) fn find(&self, system: System) -> Option<PathBuf> {
        match system {
            System::Ssntp => Some(self.ssntp.clone()),
            System::Earlier => self.earlier.clone(),
            System::Nats | System::Mosquitto => std::env::split_paths(&std::env::var_os("PATH")?)
                .map(|directory| directory.join(system.name()))
                .find(|path| path.is_file()),
        }
    }
}

impl Server {
    /// A server of our own that forwards STATS to controllers, EVACUATE to
    /// agents and READY to schedulers.
    pub(super) fn ssntp(pki: &Pki, program: &Path, more: &[&str]) -> Result<Self, Failure> {
        Self::ssntp_at(&Address::tcp("127.0.0.1", 0), pki, program, more)
    }

    /// The same at an address of its own.
    pub(super) fn ssntp_at(
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
                // However this process ends, the pipe does with it.
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
            Some(address) => Ok(Self { child, pid, address }),
            None => {
                let _ = child.kill();
                let _ = child.wait();
                Err(Failure::new("the server does not start"))
            }
        }
    }

    /// A server of any system, with mutual TLS 1.3 and no bound on what may
    /// wait for a receiver but its own defaults for memory.
    pub(super) fn start(system: System, pki: &Pki, programs: &Programs) -> Result<Self, Failure> {
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
            // A signal from the terminal is for this process; the guard and
            // its child end after it.
            .process_group(0)
            .spawn()
            .map_err(|e| Failure::new(format!("cannot start {name}: {e}")))?;
        let pid = lone_line(&mut child).parse().unwrap_or(0);
        let server = Self {
            child,
            pid,
            address: Address::tcp("127.0.0.1", port),
        };
        let began = now();
        while connect_tcp("127.0.0.1", port, &TcpOptions::default(), PATIENCE).is_err() {
            let gone =
                !fs::exists(format!("/proc/{pid}/stat")).unwrap_or(false) || server.state() == Some('Z');
            if gone || began.elapsed() > PATIENCE {
                let why = fs::read_to_string(&log).unwrap_or_default();
                let last = why.lines().last().unwrap_or("it says nothing").to_owned();
                return Err(Failure::new(format!("{name} does not start: {last}")));
            }
            super::pause(Duration::from_millis(20));
        }
        Ok(server)
    }

    /// Ends it without letting it say goodbye to anybody.
    pub(super) fn kill(mut self) {
        let _ = self.child.kill();
    }

    /// The fields of `stat` after the command's name, which is in parentheses
    /// and may hold anything.
    fn stat(&self) -> Vec<String> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid)).unwrap_or_default();
        let fields = stat.rsplit(')').next().unwrap_or_default();
        fields.split_whitespace().map(str::to_owned).collect()
    }

    fn state(&self) -> Option<char> {
        self.stat().first()?.chars().next()
    }

    /// User and system time so far.
    pub(super) fn cpu(&self) -> Duration {
        let fields = self.stat();
        let ticks = |at: usize| fields.get(at).and_then(|f| f.parse::<u64>().ok()).unwrap_or(0);
        let hertz = rustix::param::clock_ticks_per_second().max(1);
        Duration::from_secs_f64((ticks(11) + ticks(12)) as f64 / hertz as f64)
    }

    /// Resident memory in KiB.
    pub(super) fn rss(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid)).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        line.and_then(|l| l.split_whitespace().next()?.parse().ok())
            .unwrap_or(0)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The end of its input ends either kind; the signal is for one that
        // does not read it.
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
    // 0 would be everybody of this process group.
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

/// A port of loopback that nobody listens at.
fn free_port() -> Result<u16, Failure> {
    let any = Address::tcp("127.0.0.1", 0);
    let listeners = Listener::bind(&any, TcpOptions::default()).map_err(Failure::new)?;
    match listeners.first().and_then(Listener::local_address) {
        Some(Address::Tcp { port, .. }) => Ok(port),
        _ => Err(Failure::new("no loopback")),
    }
}

/// Certificates are asked for and checked; whoever is slow is cut at the
/// default of 64 MiB, which is ours as well.
fn nats(pki: &Pki, port: u16) -> String {
    let (cert, key) = (pki.path("server-cert.pem"), pki.path("server-key.pem"));
    format!(
        "listen: \"127.0.0.1:{port}\"\nmax_connections: 20000\nmax_payload: 1MB\n\
         tls {{\n  cert_file: {cert:?}\n  key_file: {key:?}\n  ca_file: {:?}\n  verify: true\n  timeout: 10\n}}\n",
        pki.ca_path(),
    )
}

/// Nothing is dropped for a queue's length, nothing written to disk.
fn mosquitto(pki: &Pki, port: u16) -> String {
    let (cert, key) = (pki.path("server-cert.pem"), pki.path("server-key.pem"));
    // As root it would give its rights away, and could not read the key.
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
