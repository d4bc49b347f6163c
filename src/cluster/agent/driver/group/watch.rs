//! One thread that notices which processes ended, whoever's children they
//! are.
//!
//! Each process is a descriptor to poll (a pidfd). Where the kernel gives
//! none, `/proc` is looked at a few times a second.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::process::Child;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use log::warn;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::super::Handle;
use super::procfs;
use crate::transport::threads;

/// How often `/proc` is looked at for processes that can't be polled.
const LOOK_AROUND: Duration = Duration::from_millis(250);
/// How often an ended process's group is looked at until it is empty.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// What is done when a process has ended: called again shortly afterwards
/// until it says that it is done. It gets how the process ended where that
/// was our own child.
pub(super) type OnEnd = Box<dyn FnMut(Option<std::process::ExitStatus>) -> bool + Send>;

/// The thread. Dropping this ends and joins it, and leaves the processes
/// alone.
#[derive(Debug)]
pub(super) struct Watch {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    wake: OwnedFd,
    stop: AtomicBool,
    /// On its way to the thread. Bounded by the number of instances.
    added: Mutex<Vec<Watched>>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").finish_non_exhaustive()
    }
}

struct Watched {
    handle: Handle,
    pidfd: Option<OwnedFd>,
    child: Option<Child>,
    on_end: OnEnd,
    /// Once it has ended.
    ended: Option<Option<std::process::ExitStatus>>,
}

impl Watch {
    /// Starts the thread.
    pub(super) fn start() -> io::Result<Self> {
        let shared = Arc::new(Shared {
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            stop: AtomicBool::new(false),
            added: Mutex::default(),
        });
        let run = Arc::clone(&shared);
        Ok(Self {
            thread: Some(threads::spawn("ssntp-watch", move || run.watch())?),
            shared,
        })
    }

    /// Watches a process, which may have ended already. `child` is its entry
    /// where it is our own child, who has to be waited for.
    pub(super) fn add(&self, handle: Handle, child: Option<Child>, on_end: OnEnd) {
        let pidfd = Pid::from_raw(handle.pid).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        let watched = Watched {
            handle,
            pidfd,
            child,
            on_end,
            ended: None,
        };
        self.shared
            .added
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(watched);
        self.shared.wake();
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        self.shared.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn wake(&self) {
        // Full is as good as written.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    fn watch(&self) {
        let mut watched: Vec<Watched> = Vec::new();
        while !self.stop.load(Ordering::Acquire) {
            watched.append(&mut self.added.lock().unwrap_or_else(PoisonError::into_inner));
            watched.retain_mut(Watched::step);
            self.wait(&watched);
        }
    }

    /// Waits until there is something to look at.
    fn wait(&self, watched: &[Watched]) {
        let pause = if watched.iter().any(|w| w.ended.is_some()) {
            Some(LOOK_AGAIN)
        } else if watched.iter().any(|w| w.pidfd.is_none()) {
            Some(LOOK_AROUND)
        } else {
            None
        };
        let pause = pause.map(|pause| Timespec {
            tv_sec: 0,
            tv_nsec: i64::from(pause.subsec_nanos()),
        });
        let waiting = watched.iter().filter(|w| w.ended.is_none());
        let mut fds: Vec<_> = waiting
            .filter_map(|w| w.pidfd.as_ref())
            .map(AsFd::as_fd)
            .chain([self.wake.as_fd()])
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
            .collect();
        match poll(&mut fds, pause.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {
                let _ = rustix::io::read(&self.wake, &mut [0; 8]);
            }
            Err(e) => {
                // Too many descriptors for one poll: look around instead.
                warn!("watching processes: {e}");
                let wait = Timespec {
                    tv_sec: 0,
                    tv_nsec: i64::from(LOOK_AROUND.subsec_nanos()),
                };
                let _ = poll(&mut [PollFd::new(&self.wake, PollFlags::IN)], Some(&wait));
            }
        }
    }
}

impl Watched {
    /// Whether it is to be watched further.
    fn step(&mut self) -> bool {
        if self.ended.is_none() {
            self.ended = match &mut self.child {
                Some(child) => match child.try_wait() {
                    Ok(None) => None,
                    Ok(status) => Some(status),
                    Err(_) => Some(None),
                },
                None => (!is_alive(&self.handle)).then_some(None),
            };
        }
        match self.ended {
            Some(status) => !(self.on_end)(status),
            None => true,
        }
    }
}

/// Whether that very process, and no later one of its number, still runs.
pub(in super::super) fn is_alive(handle: &Handle) -> bool {
    procfs::stat(handle.pid).is_some_and(|stat| stat.start_time == handle.start_time && !stat.zombie)
}
