//! Notices of a daemon to the service manager that started it: datagrams of
//! `NAME=value` lines to the socket in NOTIFY_SOCKET, see sd_notify(3). Without the
//! variable, nothing is sent.
//!
//! ```text
//!  it runs ─▶ READY=1 ─┬─ its work answers ─▶ STATUS=…, WATCHDOG=1 ─┬─▶ STOPPING=1
//!                      └─ SIGHUP ─▶ RELOADING=1 … READY=1 ──────────┘
//! ```
//!
//! The thread `ssntp-pulse` asks the thread that does the daemon's work, and waits for
//! the answer, so that no WATCHDOG=1 is sent for a dispatcher that hangs. The main
//! thread is not asked: it may wait for a disk while the work goes on.

use std::env;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, TryRecvError, bounded};
use log::{debug, warn};
use rustix::time::{ClockId, clock_gettime};
use ssntp_transport::threads;

use crate::output::printable;

/// How long a sender waits for a service manager that takes no datagrams.
const PATIENCE: Duration = Duration::from_secs(1);
/// How often the status is sent if no watchdog asks for more.
const LOOK: Duration = Duration::from_secs(10);
/// The least time between two signs of life, whatever the variable asks for.
const LEAST: Duration = Duration::from_millis(10);
/// The longest status, in characters: it is shown in one line of `systemctl status`.
const STATUS: usize = 256;

/// The variables that are meant for the process that a service manager started, and
/// not for the programs that this process starts.
pub(crate) const VARIABLES: [&str; 6] = [
    "NOTIFY_SOCKET",
    "WATCHDOG_USEC",
    "WATCHDOG_PID",
    "LISTEN_FDS",
    "LISTEN_PID",
    "LISTEN_FDNAMES",
];

/// The service manager that started this process. If there is none, or it wants no notices,
/// every call does nothing.
#[derive(Debug)]
pub(crate) struct ServiceManager {
    notices: Option<Arc<Notices>>,
    /// How often it wants to hear that the daemon lives.
    watchdog: Option<Duration>,
    /// The thread that asks for the status. Dropping the service manager joins it.
    pulse: Option<JoinHandle<()>>,
    /// Dropped to end that thread.
    end_of_pulse: Option<Sender<()>>,
}

impl ServiceManager {
    pub(crate) fn of_this_process() -> Self {
        // An empty variable counts as one that is not set.
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
            pulse: None,
            end_of_pulse: None,
        }
    }

    /// The daemon has started. `work` asks the daemon's working thread for its status in
    /// a few words. It may wait for the answer, but returns `None` once that thread has
    /// ended.
    pub(crate) fn ready(&mut self, work: impl Fn() -> Option<String> + Send + 'static) {
        let Some(notices) = &self.notices else { return };
        // The loss of this notice is a warning, because the service manager then kills the daemon
        // when its limit for starting has passed.
        if let Err(e) = notices.send("READY=1") {
            warn!("the service manager does not hear that this is ready: {e}");
        }
        let (notices, watchdog) = (Arc::clone(notices), self.watchdog);
        // A period of zero would make the thread spin, and a long one would make the status old.
        // Half of the time, as sd_watchdog_enabled(3) recommends.
        let every = watchdog.map_or(LOOK, |period| LOOK.min(period / 2).max(LEAST));
        let (end, ended) = bounded(0);
        let pulse = move || notices.pulse(&work, every, watchdog.is_some(), &ended);
        match threads::spawn("ssntp-pulse", pulse) {
            Ok(thread) => (self.pulse, self.end_of_pulse) = (Some(thread), Some(end)),
            Err(e) => warn!("cannot start a thread: {e}: the service manager hears nothing more"),
        }
    }

    /// The daemon reads its files again; [`reloaded`](Self::reloaded) follows.
    pub(crate) fn reloading(&self) {
        self.tell(&format!("RELOADING=1\nMONOTONIC_USEC={}", monotonic_usec()));
    }

    /// The daemon has read its files, or could not: then its status says why until the next
    /// reload.
    pub(crate) fn reloaded(&self, failure: Option<&str>) {
        if let Some(notices) = &self.notices {
            let status = notices.status(|status| status.trouble = failure.map(str::to_owned));
            notices.tell(&format!("READY=1\n{status}"));
        }
    }

    /// The daemon has begun to end. No status and no sign of life is sent from here on.
    pub(crate) fn stopping(&mut self) {
        // The pulse ends first, because a STATUS after STOPPING would hide that the daemon stops.
        self.end_of_pulse.take();
        self.tell("STOPPING=1");
    }

    /// Whether a service manager started the daemon.
    pub(crate) fn is_there(&self) -> bool {
        self.notices.is_some()
    }

    /// The daemon waits before it ends, for this reason. To be called every two seconds.
    pub(crate) fn rests(&mut self, why: &str) {
        self.end_of_pulse.take();
        if let Some(notices) = &self.notices {
            let status = notices.status(|status| why.clone_into(&mut status.work));
            notices.tell(&format!("WATCHDOG=1\n{status}"));
        }
    }

    /// The daemon may take that long to end, and 10 s more, whatever the limit of its unit is.
    pub(crate) fn stops_within(&self, limit: Duration) {
        let limit = limit.saturating_add(Duration::from_secs(10));
        self.tell(&format!("EXTEND_TIMEOUT_USEC={}", limit.as_micros()));
    }

    fn tell(&self, message: &str) {
        if let Some(notices) = &self.notices {
            notices.tell(message);
        }
    }
}

/// The way to the service manager.
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
    /// Why files that should have been read again were not.
    trouble: Option<String>,
    /// The text that was sent last, so that an unchanged status is not sent again.
    told: String,
}

impl Notices {
    fn to(name: &str) -> io::Result<Self> {
        // An abstract name begins with a zero byte, which the variable has as @.
        let to = match name.strip_prefix('@') {
            Some(name) => SocketAddr::from_abstract_name(name)?,
            None if name.starts_with('/') => SocketAddr::from_pathname(name)?,
            None => return Err(io::Error::new(io::ErrorKind::Unsupported, "it is no Unix socket")),
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

    fn tell(&self, message: &str) {
        if let Err(e) = self.send(message) {
            // At debug, because the pulse sends again every few seconds and would fill the log.
            debug!("the service manager: {e}");
        }
    }

    /// The STATUS line after a change; empty if the status is the one that was sent last.
    fn status(&self, change: impl FnOnce(&mut Status)) -> String {
        let mut status = self.status.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut status);
        let now = match &status.trouble {
            Some(trouble) if status.work.is_empty() => trouble.clone(),
            Some(trouble) => format!("{}; {trouble}", status.work),
            None => status.work.clone(),
        };
        // Escaped, because a line break would begin a NAME=value line of its own, for example
        // STOPPING=1.
        let now = printable(&now.chars().take(STATUS).collect::<String>());
        if now == status.told {
            return String::new();
        }
        status.told.clone_from(&now);
        format!("STATUS={now}\n")
    }

    /// Asks for the daemon's work again and again, and passes the answers on.
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
            // The daemon may have begun to stop while its answer was waited for. A STATUS now
            // would come after STOPPING.
            if ended.try_recv() == Err(TryRecvError::Disconnected) {
                return;
            }
            if let Some(work) = work {
                let message = alive.to_owned() + &self.status(|status| status.work = work);
                if !message.is_empty() {
                    self.tell(&message);
                }
            }
            if ended.recv_timeout(every) != Err(RecvTimeoutError::Timeout) {
                return;
            }
        }
    }
}

impl Drop for ServiceManager {
    fn drop(&mut self) {
        self.end_of_pulse.take();
        if let Some(pulse) = self.pulse.take() {
            let _ = pulse.join();
        }
    }
}

/// The time between two signs of life that the service manager wants from the
/// process with this id. One that it wants from another process is not ours.
fn watchdog(variable: impl Fn(&str) -> Option<String>, process: u32) -> Option<Duration> {
    let period = variable("WATCHDOG_USEC")?.parse().ok().filter(|usec| *usec > 0)?;
    let is_ours = variable("WATCHDOG_PID").is_none_or(|of| of.parse() == Ok(process));
    is_ours.then(|| Duration::from_micros(period))
}

/// The clock that the service manager compares a reload's beginning by.
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
        let heard = UnixDatagram::bind_addr(&address).unwrap();
        heard.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        (heard, Notices::to(&format!("@{name}")).unwrap())
    }

    fn next(heard: &UnixDatagram) -> String {
        let mut buffer = [0; 1024];
        let length = heard.recv(&mut buffer).unwrap();
        String::from_utf8(buffer[..length].to_vec()).unwrap()
    }

    /// A daemon whose work answers when the test has it answer.
    #[test]
    fn who_does_not_answer_is_not_told_to_live() {
        let (heard, notices) = manager("pulse");
        let (asked, asks) = bounded(0);
        let (answer, answers) = bounded::<Option<&str>>(0);
        let work = move || {
            asked.send(()).ok()?;
            answers.recv().ok()?.map(str::to_owned)
        };
        let (end, ended) = bounded(0);
        std::thread::scope(|scope| {
            scope.spawn(|| notices.pulse(&work, Duration::from_millis(1), true, &ended));
            for (said, sent) in [
                (Some("one"), Some("WATCHDOG=1\nSTATUS=one\n")),
                (None, None),
                (Some("one"), Some("WATCHDOG=1\n")),
                (None, None),
                (Some("two\n"), Some("WATCHDOG=1\nSTATUS=two\\n\n")),
            ] {
                // The pulse has sent everything from before, and now waits for an answer.
                asks.recv().unwrap();
                heard.set_nonblocking(true).unwrap();
                assert_eq!(
                    heard.recv(&mut [0; 64]).unwrap_err().kind(),
                    io::ErrorKind::WouldBlock
                );
                heard.set_nonblocking(false).unwrap();
                answer.send(said).unwrap();
                if let Some(sent) = sent {
                    assert_eq!(next(&heard), sent);
                }
            }
            asks.recv().unwrap();
            drop(end);
            // An answer that comes after the end is not passed on.
            answer.send(Some("three")).unwrap();
        });
        heard.set_nonblocking(true).unwrap();
        assert!(heard.recv(&mut [0; 64]).is_err());
    }

    #[test]
    fn the_status_says_why_files_were_not_read_again() {
        let (heard, notices) = manager("trouble");
        let manager = ServiceManager {
            notices: Some(Arc::new(notices)),
            watchdog: None,
            pulse: None,
            end_of_pulse: None,
        };
        let notices = manager.notices.as_ref().unwrap();
        notices.status(|status| status.work = "2 sessions".into());
        manager.reloading();
        assert!(next(&heard).starts_with("RELOADING=1\nMONOTONIC_USEC="));
        for _ in 0..2 {
            manager.reloaded(Some("ca.pem: gone"));
            assert_eq!(next(&heard), "READY=1\nSTATUS=2 sessions; ca.pem: gone\n");
            manager.reloaded(Some("ca.pem: gone"));
            assert_eq!(next(&heard), "READY=1\n");
            manager.reloaded(None);
            assert_eq!(next(&heard), "READY=1\nSTATUS=2 sessions\n");
        }
    }

    #[test]
    fn a_watchdog_is_ours_where_it_names_no_other_process() {
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
    fn what_is_no_unix_socket_is_refused() {
        for name in ["vsock:2:1", "relative", ""] {
            assert!(Notices::to(name).is_err(), "{name}");
        }
    }
}
