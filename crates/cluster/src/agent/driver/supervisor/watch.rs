//! One thread of the agent that notices the ends of runs, also of runs that a former agent
//! launched.
//!
//! Each run has a connection to its supervisor, which is closed when the supervisor ends.
//! If the connection can't be made, the supervisor is looked for in `/proc`.

use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::process::Child;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use log::warn;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use super::super::Running;
use super::procfs::Life;
use super::{UnixStream, life, reach};
use ssntp_transport::threads::{self, Joined};

/// How often a run without a connection is looked for. It is looked for more often at
/// first, because most of these runs are just ending.
const LOOK_AROUND: Timespec = millis(250);
const LOOK_AGAIN: Timespec = millis(10);
const FIRST_LOOKS: u32 = 50;

const fn millis(millis: i64) -> Timespec {
    Timespec {
        tv_sec: 0,
        tv_nsec: millis * 1_000_000,
    }
}

/// Is called when a run has ended, and again shortly afterwards until it returns `true`.
pub(super) type OnEnd = Box<dyn FnMut() -> bool + Send>;

/// The thread. Dropping this ends and joins it, and leaves the runs alone.
#[derive(Debug)]
pub(super) struct Watch {
    shared: Arc<Inbox>,
    _thread: Joined,
}

struct Inbox {
    wake: OwnedFd,
    stop: AtomicBool,
    /// Runs that the thread has not taken over yet; at most as many as instances.
    added: Mutex<Vec<Watched>>,
}

impl std::fmt::Debug for Inbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inbox").finish_non_exhaustive()
    }
}

struct Watched {
    running: Running,
    stream: Option<UnixStream>,
    /// The supervisor, if it is our own child and has to be waited for.
    child: Option<Child>,
    on_end: OnEnd,
    /// How often it was looked for since there is no connection.
    looks: u32,
}

impl Watch {
    /// Starts the thread.
    pub(super) fn start() -> io::Result<Self> {
        let shared = Arc::new(Inbox {
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            stop: AtomicBool::new(false),
            added: Mutex::default(),
        });
        let run = Arc::clone(&shared);
        Ok(Self {
            _thread: threads::joined("ssntp-watch", move || run.watch())?,
            shared,
        })
    }

    /// Watches a run, which may have ended already.
    pub(super) fn add(
        &self,
        running: Running,
        child: Option<Child>,
        stream: Option<UnixStream>,
        on_end: OnEnd,
    ) {
        let watched = Watched {
            running,
            stream: stream.filter(|stream| stream.set_nonblocking(true).is_ok()),
            child,
            on_end,
            looks: 0,
        };
        let added = self.shared.added.lock();
        added.unwrap_or_else(PoisonError::into_inner).push(watched);
        self.shared.wake();
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        self.shared.wake();
    }
}

impl Inbox {
    fn wake(&self) {
        // If the eventfd's counter is full, a wake-up is already pending, so a failed write
        // loses nothing.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    fn watch(&self) {
        let mut watched: Vec<Watched> = Vec::new();
        while !self.stop.load(Ordering::Acquire) {
            watched.append(&mut self.added.lock().unwrap_or_else(PoisonError::into_inner));
            watched.retain_mut(Watched::step);
            self.wait(&mut watched);
        }
    }

    /// Waits for news, and reads the lines of supervisors. Their content does not matter: only
    /// a connection that was closed does.
    fn wait(&self, watched: &mut [Watched]) {
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
        let mut fds = vec![PollFd::new(&self.wake, PollFlags::IN)];
        let streams = watched.iter().filter_map(|w| w.stream.as_ref());
        fds.extend(streams.map(|stream| PollFd::from_borrowed_fd(stream.as_fd(), PollFlags::IN)));
        match poll(&mut fds, pause.as_ref()) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => return,
            Err(e) => {
                // Too many descriptors for one poll: look around instead.
                warn!("watching instances: {e}");
                let _ = poll(&mut [PollFd::new(&self.wake, PollFlags::IN)], Some(&LOOK_AROUND));
                watched.iter_mut().for_each(Watched::hear);
                return;
            }
        }
        // Copied, because `fds` borrows the streams that are read next.
        let ready: Vec<bool> = fds.iter().skip(1).map(|fd| !fd.revents().is_empty()).collect();
        drop(fds);
        let _ = rustix::io::read(&self.wake, &mut [0; 8]);
        let connected = watched.iter_mut().filter(|w| w.stream.is_some());
        for (watched, _) in connected.zip(ready).filter(|(_, ready)| *ready) {
            watched.hear();
        }
    }
}

impl Watched {
    fn hear(&mut self) {
        let Some(stream) = &mut self.stream else { return };
        match stream.read(&mut [0; 1024]) {
            Ok(length) if length > 0 => {}
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            // The supervisor has ended, or closed this connection. `step` finds out which.
            _ => (self.stream, self.looks) = (None, 0),
        }
    }

    /// Looks at a run; returns whether it is to be watched further.
    fn step(&mut self) -> bool {
        if self.stream.is_some() {
            return true;
        }
        self.looks = self.looks.saturating_add(1);
        // A child of ours has ended once it was waited for, and not before: it may end between
        // two looks, and nobody else would take it out of the process table.
        let waited = self.child.as_mut().map(Child::try_wait);
        if !matches!(waited, Some(Ok(None))) {
            self.child = None;
        }
        // If the system does not say whether it lives, it is looked for again.
        if self.child.is_none() && life(&self.running.handle) == Life::Dead {
            // If it returns false, leftovers were killed just now, and the next step looks
            // again.
            return !(self.on_end)();
        }
        // The supervisor lives: it may have closed the connection because it had too many.
        let stream = reach(&self.running);
        self.stream = stream.ok().filter(|stream| stream.set_nonblocking(true).is_ok());
        true
    }
}
