//! Notices of a daemon to the service manager that started it: datagrams of
//! `NAME=value` lines to the socket in NOTIFY_SOCKET, see sd_notify(3). Without the
//! variable, no notice is sent.
//!
//! ```text
//!  started ─▶ READY=1 ─┬─ dispatcher answers ─▶ STATUS=…, WATCHDOG=1 ─┬─▶ STOPPING=1
//!                      └─ SIGHUP ─▶ RELOADING=1 … READY=1 ────────────┘
//! ```
//!
//! The thread `ssntp-pulse` queries the daemon's working thread, such as its dispatcher, and waits
//! for the answer, so that no WATCHDOG=1 is sent while that thread hangs. The main thread is not
//! queried: it may be blocked by a disk while the daemon works.

use std::env;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, TryRecvError, bounded};
use log::{debug, warn};
use rustix::time::{ClockId, clock_gettime};
use ssntp_transport::threads::{self, Joined};

use crate::output::printable;
use ssntp_transport::locked;

/// The time for which a sender waits for a service manager that receives no datagrams.
const PATIENCE: Duration = Duration::from_secs(1);
/// The time between two status lines, unless the watchdog needs a shorter time.
const POLL: Duration = Duration::from_secs(10);
/// The least time between two WATCHDOG notices, even if the variable is smaller.
const LEAST: Duration = Duration::from_millis(10);
/// The longest status, in characters: it is shown in one line of `systemctl status`.
const STATUS: usize = 256;

/// The variables for the process that a service manager has started.
const VARIABLES: [&str; 6] = [
    "NOTIFY_SOCKET",
    "WATCHDOG_USEC",
    "WATCHDOG_PID",
    "LISTEN_FDS",
    "LISTEN_PID",
    "LISTEN_FDNAMES",
];

/// Hides the service manager from a program that this process starts, which could otherwise notify
/// it in this process's name.
pub fn hide_from(program: &mut Command) {
    for name in VARIABLES {
        program.env_remove(name);
    }
}

/// The service manager that started this process. If there is none, or if it receives no notices,
/// every method does nothing.
#[derive(Debug)]
pub struct ServiceManager {
    notices: Option<Arc<Notices>>,
    /// The longest time between two WATCHDOG notices.
    watchdog: Option<Duration>,
    /// Dropped to end the thread `pulse`.
    end_of_pulse: Option<Sender<()>>,
    /// The thread that queries the status. Dropping the service manager joins it.
    pulse: Joined,
}

impl ServiceManager {
    pub fn of_this_process() -> Self {
        // An empty variable counts as not set.
        let variable = |name: &str| {
            let value = env::var_os(name)?.to_string_lossy().into_owned();
            Some(value).filter(|value| !value.is_empty())
        };
        let notices = variable("NOTIFY_SOCKET").and_then(|socket| match Notices::to(&socket) {
            Ok(notices) => Some(Arc::new(notices)),
            Err(e) => {
                warn!("NOTIFY_SOCKET: {socket}: {e}");
                None
            }
        });
        Self {
            notices,
            watchdog: watchdog(variable, std::process::id()),
            end_of_pulse: None,
            pulse: Joined::default(),
        }
    }

    /// Reports that the daemon has started. `work` queries the daemon's working thread for its
    /// status in a few words. It may block until the answer, but returns `None` once that thread
    /// has ended.
    pub fn ready(&mut self, work: impl Fn() -> Option<String> + Send + 'static) {
        let Some(notices) = &self.notices else { return };
        // The loss of this notice is a warning, because the service manager then kills the daemon
        // when its limit for starting has passed.
        if let Err(e) = notices.send("READY=1") {
            warn!("the service manager cannot be notified that this daemon is ready: {e}");
        }
        let (notices, watchdog) = (Arc::clone(notices), self.watchdog);
        // Half of the watchdog's period, as sd_watchdog_enabled(3) recommends. A period of zero would
        // make the thread spin, and a long period would make the status old.
        let every = watchdog.map_or(POLL, |period| POLL.min(period / 2).max(LEAST));
        let (end, ended) = bounded(0);
        let pulse = move || notices.pulse(&work, every, watchdog.is_some(), &ended);
        match threads::joined("ssntp-pulse", pulse) {
            Ok(thread) => (self.pulse, self.end_of_pulse) = (thread, Some(end)),
            Err(e) => warn!("cannot start a thread: {e}: the service manager gets no further notices"),
        }
    }

    /// Reports that the daemon reads its files again; [`reloaded`](Self::reloaded) follows.
    pub fn reloading(&self) {
        self.notify(&format!("RELOADING=1\nMONOTONIC_USEC={}", monotonic_usec()));
    }

    /// Reports that the daemon has read its files. If that failed, its status shows the reason until
    /// the next reload.
    pub fn reloaded(&self, failure: Option<&str>) {
        if let Some(notices) = &self.notices {
            let status = notices.status(|status| status.trouble = failure.map(str::to_owned));
            notices.notify(&format!("READY=1\n{status}"));
        }
    }

    /// Reports that the daemon ends. No STATUS and no WATCHDOG is sent from here on.
    pub fn stopping(&mut self) {
        // The pulse ends first, because a STATUS after STOPPING would hide that the daemon stops.
        self.end_of_pulse.take();
        self.notify("STOPPING=1");
    }

    /// True if a service manager started the daemon and receives notices.
    pub fn receives_notices(&self) -> bool {
        self.notices.is_some()
    }

    /// Reports that the daemon waits before it ends, with the reason. To be called every two seconds,
    /// because it also sends WATCHDOG, and extends the time in which the daemon must be ready.
    pub fn waits_before_end(&mut self, why: &str) {
        self.end_of_pulse.take();
        if let Some(notices) = &self.notices {
            let status = notices.status(|status| why.clone_into(&mut status.work));
            notices.notify(&format!("WATCHDOG=1\nEXTEND_TIMEOUT_USEC=10000000\n{status}"));
        }
    }

    /// Extends the time in which the daemon must end, to `limit` and 10 s more.
    pub fn stops_within(&self, limit: Duration) {
        let limit = limit.saturating_add(Duration::from_secs(10));
        self.notify(&format!("EXTEND_TIMEOUT_USEC={}", limit.as_micros()));
    }

    fn notify(&self, message: &str) {
        if let Some(notices) = &self.notices {
            notices.notify(message);
        }
    }
}

/// The socket to the service manager, and the status that was sent.
#[derive(Debug)]
struct Notices {
    socket: UnixDatagram,
    to: SocketAddr,
    status: Mutex<Status>,
}

/// The text that `systemctl status` shows of the daemon.
#[derive(Debug, Default)]
struct Status {
    work: String,
    /// The reason why the last reload failed.
    trouble: Option<String>,
    /// The text that was sent last, so that an unchanged status is not sent again.
    sent: String,
}

impl Notices {
    fn to(name: &str) -> io::Result<Self> {
        // An abstract name begins with a zero byte, which the variable writes as @.
        let to = match name.strip_prefix('@') {
            Some(name) => SocketAddr::from_abstract_name(name)?,
            None if name.starts_with('/') => SocketAddr::from_pathname(name)?,
            None => return Err(io::Error::new(io::ErrorKind::Unsupported, "not a Unix socket")),
        };
        let socket = UnixDatagram::unbound()?;
        socket.set_write_timeout(Some(PATIENCE))?;
        Ok(Self {
            socket,
            to,
            status: Mutex::default(),
        })
    }

    /// The socket is not connected: each datagram names the address, so that a service manager
    /// that was started again at that name gets the next one.
    fn send(&self, message: &str) -> io::Result<()> {
        self.socket.send_to_addr(message.as_bytes(), &self.to).map(drop)
    }

    fn notify(&self, message: &str) {
        if let Err(e) = self.send(message) {
            // At debug, because the pulse sends again every few seconds and would fill the log.
            debug!("the service manager: {e}");
        }
    }

    /// The STATUS line after a change; empty if the status is unchanged since it was last sent.
    fn status(&self, change: impl FnOnce(&mut Status)) -> String {
        let mut status = locked(&self.status);
        change(&mut status);
        let now = match &status.trouble {
            Some(trouble) if status.work.is_empty() => trouble.clone(),
            Some(trouble) => format!("{}; {trouble}", status.work),
            None => status.work.clone(),
        };
        // Escaped, because a line break would begin a NAME=value line of its own, for example
        // STOPPING=1.
        let now = printable(&now.chars().take(STATUS).collect::<String>());
        if now == status.sent {
            return String::new();
        }
        status.sent.clone_from(&now);
        format!("STATUS={now}\n")
    }

    /// Queries the daemon's working thread at intervals, and sends its answers, until `ended` is
    /// disconnected.
    fn pulse(
        &self,
        work: &dyn Fn() -> Option<String>,
        every: Duration,
        is_watched: bool,
        ended: &Receiver<()>,
    ) {
        let alive = if is_watched { "WATCHDOG=1\n" } else { "" };
        loop {
            let work = work();
            // The daemon may have begun to stop during the query. A STATUS now would come after
            // STOPPING.
            if ended.try_recv() == Err(TryRecvError::Disconnected) {
                return;
            }
            if let Some(work) = work {
                let message = alive.to_owned() + &self.status(|status| status.work = work);
                if !message.is_empty() {
                    self.notify(&message);
                }
            }
            if ended.recv_timeout(every) != Err(RecvTimeoutError::Timeout) {
                return;
            }
        }
    }
}

/// The longest time between two WATCHDOG notices of the process with this id. `None` if the service
/// manager expects none from this process.
fn watchdog(variable: impl Fn(&str) -> Option<String>, process: u32) -> Option<Duration> {
    let period = variable("WATCHDOG_USEC")?.parse().ok().filter(|usec| *usec > 0)?;
    let is_ours = variable("WATCHDOG_PID").is_none_or(|of| of.parse() == Ok(process));
    is_ours.then(|| Duration::from_micros(period))
}

/// The clock by which the service manager orders reloads.
fn monotonic_usec() -> i64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec.saturating_mul(1_000_000) + now.tv_nsec / 1000
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The socket of a service manager, and notices that are sent to it.
    fn manager(name: &str) -> (UnixDatagram, Notices) {
        let name = format!("ssntp-test-{name}-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let socket = UnixDatagram::bind_addr(&address).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        (socket, Notices::to(&format!("@{name}")).unwrap())
    }

    fn next(socket: &UnixDatagram) -> String {
        let mut buffer = [0; 1024];
        let length = socket.recv(&mut buffer).unwrap();
        String::from_utf8(buffer[..length].to_vec()).unwrap()
    }

    /// The test decides when the working thread answers.
    #[test]
    fn a_working_thread_that_does_not_answer_makes_no_watchdog_notice() {
        let (socket, notices) = manager("pulse");
        let (asked, asks) = bounded(0);
        let (answer, answers) = bounded::<Option<&str>>(0);
        let work = move || {
            asked.send(()).ok()?;
            answers.recv().ok()?.map(str::to_owned)
        };
        let (end, ended) = bounded(0);
        std::thread::scope(|scope| {
            scope.spawn(|| notices.pulse(&work, Duration::from_millis(1), true, &ended));
            for (status, sent) in [
                (Some("one"), Some("WATCHDOG=1\nSTATUS=one\n")),
                (None, None),
                (Some("one"), Some("WATCHDOG=1\n")),
                (None, None),
                (Some("two\n"), Some("WATCHDOG=1\nSTATUS=two\\n\n")),
            ] {
                // The pulse has sent everything from before, and now waits for an answer.
                asks.recv().unwrap();
                socket.set_nonblocking(true).unwrap();
                assert_eq!(
                    socket.recv(&mut [0; 64]).unwrap_err().kind(),
                    io::ErrorKind::WouldBlock
                );
                socket.set_nonblocking(false).unwrap();
                answer.send(status).unwrap();
                if let Some(sent) = sent {
                    assert_eq!(next(&socket), sent);
                }
            }
            asks.recv().unwrap();
            drop(end);
            // An answer after the end is not sent.
            answer.send(Some("three")).unwrap();
        });
        socket.set_nonblocking(true).unwrap();
        assert!(socket.recv(&mut [0; 64]).is_err());
    }

    #[test]
    fn the_status_shows_why_a_reload_failed() {
        let (socket, notices) = manager("trouble");
        let manager = ServiceManager {
            notices: Some(Arc::new(notices)),
            watchdog: None,
            end_of_pulse: None,
            pulse: Joined::default(),
        };
        let notices = manager.notices.as_ref().unwrap();
        notices.status(|status| status.work = "2 sessions".into());
        manager.reloading();
        assert!(next(&socket).starts_with("RELOADING=1\nMONOTONIC_USEC="));
        for _ in 0..2 {
            manager.reloaded(Some("ca.pem: gone"));
            assert_eq!(next(&socket), "READY=1\nSTATUS=2 sessions; ca.pem: gone\n");
            manager.reloaded(Some("ca.pem: gone"));
            assert_eq!(next(&socket), "READY=1\n");
            manager.reloaded(None);
            assert_eq!(next(&socket), "READY=1\nSTATUS=2 sessions\n");
        }
    }

    #[test]
    fn a_watchdog_for_another_process_is_ignored() {
        let with = |usec: &'static str, process: Option<&'static str>| {
            let variable = move |name: &str| match name {
                "WATCHDOG_USEC" => Some(usec.to_owned()),
                "WATCHDOG_PID" => process.map(str::to_owned),
                _ => None,
            };
            watchdog(variable, 17)
        };
        let second = Some(Duration::from_secs(1));
        assert_eq!(with("1000000", None), second);
        assert_eq!(with("1000000", Some("17")), second);
        for (usec, process) in [("1000000", "18"), ("1000000", "?"), ("0", "17"), ("-1", "17")] {
            assert_eq!(with(usec, Some(process)), None, "{usec} {process}");
        }
    }

    #[test]
    fn an_address_other_than_a_unix_socket_is_refused() {
        for name in ["vsock:2:1", "relative", ""] {
            assert!(Notices::to(name).is_err(), "{name}");
        }
    }
}
