//! The thread of the agent that notices the ends of runs, also of runs that a former agent launched.
//!
//! The thread has a connection to the supervisor of each run. The connection is closed when the
//! supervisor ends. While there is no connection, the thread looks for the supervisor in `/proc`.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::process::Child;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, TryRecvError, unbounded};
use log::warn;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

use super::super::{Ended, News, NewsSink, Running};
use super::cgroup::Cgroups;
use super::leftovers::kill_leftovers;
use super::state::{self, State};
use super::{UnixStream, exit_of, is_alive, reach, timespec};
use ssntp_transport::threads::{self, Joined};
use ssntp_transport::{LogLimit, now};

/// The pause between two looks for the supervisor of a run without a connection. The first looks
/// follow each other faster, because most of these runs are just ending.
const LOOK_AROUND: Duration = Duration::from_millis(250);
const LOOK_AGAIN: Duration = Duration::from_millis(10);
const FIRST_LOOKS: u32 = 50;

/// The handle of the thread. Dropping it ends and joins the thread; the runs go on.
#[derive(Debug)]
pub(super) struct Watch {
    /// Runs that the thread has not taken over yet, at most one for each instance. The thread ends
    /// when this is dropped.
    added: Option<Sender<Watched>>,
    wake: Arc<OwnedFd>,
    _thread: Joined,
}

/// A run that is watched.
pub(super) struct Watched {
    pub(super) running: Running,
    /// The connection to the supervisor.
    pub(super) stream: Option<UnixStream>,
    /// The supervisor, if it is a child of this process, which then has to wait for it.
    pub(super) child: Option<Child>,
    pub(super) cgroups: Cgroups,
    pub(super) sink: NewsSink,
    /// The beginning of a line of the supervisor.
    pub(super) line: Vec<u8>,
    /// The number of times that the supervisor was looked for since the connection was lost.
    pub(super) looks: u32,
}

impl Watch {
    /// Starts the thread.
    pub(super) fn start() -> io::Result<Self> {
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let (added, runs) = unbounded();
        let woken = Arc::clone(&wake);
        Ok(Self {
            added: Some(added),
            wake,
            _thread: threads::joined("ssntp-watch", move || watch(&woken, &runs))?,
        })
    }

    /// Watches a run. It may have ended already.
    pub(super) fn add(&self, mut watched: Watched) {
        let stream = watched.stream.take();
        watched.connect(stream);
        if let Some(added) = &self.added {
            // The thread ends only after this handle.
            let _ = added.send(watched);
        }
        self.wake();
    }

    fn wake(&self) {
        // If the eventfd's counter is full, a wake-up is already pending, so a failed write
        // loses nothing.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        drop(self.added.take());
        self.wake();
    }
}

fn watch(wake: &OwnedFd, added: &Receiver<Watched>) {
    let (mut watched, mut log) = (Vec::new(), LogLimit::default());
    loop {
        match added.try_recv() {
            Ok(run) => watched.push(run),
            Err(TryRecvError::Disconnected) => return,
            Err(TryRecvError::Empty) => {
                watched.retain_mut(Watched::step);
                wait(wake, &mut watched, &mut log);
            }
        }
    }
}

/// Waits for an event, and reads the lines of supervisors.
fn wait(wake: &OwnedFd, watched: &mut [Watched], log: &mut LogLimit<()>) {
    let looks = watched
        .iter()
        .filter(|w| w.stream.is_none())
        .map(|w| w.looks)
        .min();
    let pause = looks.map(|looks| {
        if looks < FIRST_LOOKS {
            LOOK_AGAIN
        } else {
            LOOK_AROUND
        }
    });
    let mut fds = vec![PollFd::new(wake, PollFlags::IN)];
    let streams = watched.iter().filter_map(|w| w.stream.as_ref());
    fds.extend(streams.map(|stream| PollFd::from_borrowed_fd(stream.as_fd(), PollFlags::IN)));
    match poll(&mut fds, pause.and_then(timespec).as_ref()) {
        Ok(_) => {}
        Err(rustix::io::Errno::INTR) => return,
        Err(e) => {
            // There are too many descriptors for one poll, so all connections are read at
            // intervals.
            if let Some(more) = log.admit((), "poll", now()) {
                warn!("watching instances: {e}{more}");
            }
            let _ = poll(
                &mut [PollFd::new(wake, PollFlags::IN)],
                timespec(LOOK_AROUND).as_ref(),
            );
            let _ = rustix::io::read(wake, &mut [0; 8]);
            watched.iter_mut().for_each(Watched::read);
            return;
        }
    }
    // Copied, because `fds` borrows the streams that are read next.
    let ready: Vec<bool> = fds.iter().skip(1).map(|fd| !fd.revents().is_empty()).collect();
    drop(fds);
    let _ = rustix::io::read(wake, &mut [0; 8]);
    let connected = watched.iter_mut().filter(|w| w.stream.is_some());
    for (watched, _) in connected.zip(ready).filter(|(_, ready)| *ready) {
        watched.read();
    }
}

impl Watched {
    /// Reads lines. They tell the health of the run; its end is noticed by that of the connection.
    fn read(&mut self) {
        let Some(stream) = &mut self.stream else { return };
        let mut piece = [0; 1024];
        match stream.read(&mut piece) {
            Ok(length) if length > 0 => self.line.extend(piece.iter().take(length)),
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => return,
            // The supervisor has ended, or closed this connection. `step` finds out which.
            _ => return self.connect(None),
        }
        while let Some(end) = self.line.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.line.drain(..=end).collect();
            let state = std::str::from_utf8(&line).ok().and_then(State::parse);
            if let Some(State::Running {
                health: Some(health), ..
            }) = state
            {
                let Running { place, handle } = &self.running;
                (self.sink)(News::Health {
                    instance: place.instance(),
                    handle: handle.clone(),
                    health,
                });
            }
        }
        // No line of a supervisor is longer.
        if self.line.len() > state::LINE {
            self.line.clear();
        }
    }

    /// Takes a connection over, and asks it for the present state.
    fn connect(&mut self, stream: Option<UnixStream>) {
        let mut stream = stream.filter(|stream| stream.set_nonblocking(true).is_ok());
        if let Some(stream) = &mut stream {
            // If this fails, the next read does as well.
            let _ = stream.write_all(b"state\n");
        }
        (self.stream, self.looks) = (stream, 0);
        self.line.clear();
    }

    /// Looks for the supervisor of a run without a connection. Returns false if the run has ended and
    /// its end was reported.
    fn step(&mut self) -> bool {
        if self.stream.is_some() {
            return true;
        }
        self.looks = self.looks.saturating_add(1);
        // A supervisor that is a child of this process counts as ended only after it was waited for.
        // Otherwise it could end after `try_wait`, and would stay in the process table.
        let waited = self.child.as_mut().map(Child::try_wait);
        if !matches!(waited, Some(Ok(None))) {
            self.child = None;
        }
        if self.child.is_none() && !is_alive(&self.running.handle) {
            return !self.report_end();
        }
        // The supervisor runs. It may have closed the connection because it had too many.
        if let Ok(stream) = reach(&self.running) {
            self.connect(Some(stream));
        }
        true
    }

    /// Reports the end of a run whose supervisor has ended. Returns false if processes of the run
    /// were left: they were killed just now, and the next step looks for them again. A run has not
    /// ended while one of its processes hangs.
    fn report_end(&self) -> bool {
        if kill_leftovers(&self.cgroups, &self.running) {
            return false;
        }
        let Running { place, handle } = &self.running;
        self.cgroups.remove(place.instance());
        let ended = Ended {
            instance: place.instance(),
            handle: handle.clone(),
            exit: exit_of(place),
        };
        (self.sink)(ended.into());
        true
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use rustix::process::{Resource, Rlimit, setrlimit};
    use uuid::Uuid;

    use super::*;
    use crate::driver::{InstanceDir, RunId};

    const CHILD: &str = "SSNTP_TEST_WATCH";

    /// The next test runs this test in a process of its own.
    #[test]
    fn watch_more_than_one_poll_takes() {
        if std::env::var_os(CHILD).is_none() {
            return;
        }
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
        let cgroups = Cgroups::default();
        let (mut peers, mut watched) = (Vec::new(), Vec::new());
        for _ in 0..50 {
            let (stream, peer) = UnixStream::pair().unwrap();
            stream.set_nonblocking(true).unwrap();
            peers.push(peer);
            watched.push(Watched {
                running: Running {
                    place: InstanceDir::new(Uuid::nil(), "/nothing"),
                    handle: RunId::default(),
                },
                stream: Some(stream),
                child: None,
                cgroups: cgroups.clone(),
                sink: Arc::new(|_| {}),
                line: Vec::new(),
                looks: 0,
            });
        }
        let few = Rlimit {
            current: Some(40),
            maximum: Some(40),
        };
        setrlimit(Resource::Nofile, few).unwrap();
        rustix::io::write(&wake, &1u64.to_ne_bytes()).unwrap();
        wait(&wake, &mut watched, &mut LogLimit::default());
        let again = rustix::io::read(&wake, &mut [0; 8]);
        assert_eq!(
            again,
            Err(rustix::io::Errno::AGAIN),
            "the next wait would not wait"
        );
        drop(peers);
    }

    #[test]
    fn a_wake_up_is_used_up_although_there_are_too_many_descriptors_for_one_poll() {
        let output = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "driver::supervisor::watch::tests::watch_more_than_one_poll_takes",
            ])
            .env(CHILD, "1")
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("1 passed"), "{text}");
    }
}
