//! The file that policy is kept in, written on a thread of its own.
//!
//! ```text
//!  dispatcher ── changed() ───────▶ keeper ── Call: some objects, and again ─▶ dispatcher
//!  editing ── wait() ──────────────▶   │ edits behind the file, or all of it anew; answers
//! ```
//!
//! The first change writes all policy, and those that follow are appended (see
//! `journal`) until they are longer than it. When the server stops, all policy is
//! written, so that there are no edits behind it. Requests that come while the file is written
//! are served by the next write, which has all their changes. If a write fails, the callers that
//! wait get the error, and it is tried again: at the next change, and otherwise after a second,
//! then two, up to a minute; and once more when the server stops.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender};
use log::{error, info, warn};

use super::journal::{self, Journal, Line};
use super::{CallError, SERVER_LOG as LOG, StartError};
use crate::model::{FileError, Format, ManagedObject};
use ssntp_transport::replace;
use ssntp_transport::threads;

/// Copies all policy as it is now.
pub(super) type Copy = Box<dyn Fn() -> Result<Vec<ManagedObject>, CallError> + Send>;

/// The pause after a failed write: the first one, and the longest.
const PAUSE: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(60)];

/// The thread that writes.
#[derive(Debug)]
pub(super) struct Keeper {
    ask: Ask,
    stop: Sender<()>,
    thread: JoinHandle<()>,
}

/// How the thread is asked. A clone is another handle.
#[derive(Clone, Debug)]
pub(super) struct Ask {
    /// At most one request waits; it stands for all.
    wake: Sender<()>,
    waiting: Arc<Mutex<Waiting>>,
}

/// The work that waits for the thread.
#[derive(Debug, Default)]
struct Waiting {
    /// Tells each caller that waits the result of the next write: the error, if there was one.
    callers: Vec<Sender<Option<String>>>,
    /// Edits that are not on the disk, in their order.
    edits: Vec<Line>,
    /// The number of objects in these edits.
    objects: usize,
    /// There were too many edits, so all policy is to be written.
    all: bool,
}

/// The most objects in edits that wait for the disk. Beyond that, all policy is written.
const EDITED: usize = 10_000;

impl Ask {
    /// Policy has changed.
    pub(super) fn changed(&self, edits: Vec<Line>) {
        let mut waiting = self.lock();
        waiting.objects += edits.iter().map(Line::len).sum::<usize>();
        // The order of the edits matters: each line says how objects are after it.
        waiting.edits.extend(edits);
        // Beyond this, writing everything is cheaper than the memory of the edits.
        if waiting.objects > EDITED {
            waiting.all = true;
            waiting.edits.clear();
        }
        drop(waiting);
        self.soon();
    }

    fn soon(&self) {
        // If a wake-up is already pending, it also serves this change.
        let _ = self.wake.try_send(());
    }

    /// Waits until policy as it is now is on the disk.
    pub(super) fn wait(&self) -> Result<(), CallError> {
        let (caller, result) = crossbeam_channel::bounded(1);
        self.lock().callers.push(caller);
        self.soon();
        match result.recv() {
            Ok(None) => Ok(()),
            Ok(Some(why)) => Err(CallError::Keep(io::Error::other(why))),
            Err(_) => Err(CallError::Stopped),
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Keeper {
    pub(super) fn start(path: PathBuf, copy: Copy) -> io::Result<Self> {
        let (wake, woken) = crossbeam_channel::bounded(1);
        let (stop, stopped) = crossbeam_channel::bounded(0);
        let ask = Ask {
            wake,
            waiting: Arc::default(),
        };
        let asked = ask.clone();
        let thread = threads::spawn("opflex-keep", move || run(&path, &copy, &asked, &woken, &stopped))?;
        Ok(Self { ask, stop, thread })
    }

    pub(super) fn sender(&self) -> Ask {
        self.ask.clone()
    }

    /// Writes what is still to be written, and ends. The dispatcher has to run.
    pub(super) fn stop(self) {
        drop(self.stop);
        let _ = self.thread.join();
    }
}

/// The last error, and the pause before the next attempt.
struct Failed {
    why: String,
    pause: Duration,
}

fn run(path: &Path, copy: &Copy, ask: &Ask, woken: &Receiver<()>, stopped: &Receiver<()>) {
    let mut failed: Option<Failed> = None;
    // Begun by the first write of all policy, which edits can then follow.
    let mut journal: Option<Journal> = None;
    let mut tried_last = false;
    loop {
        let again = failed.as_ref().map_or_else(crossbeam_channel::never, |failed| {
            crossbeam_channel::after(failed.pause)
        });
        let last = crossbeam_channel::select! {
            recv(woken) -> _ => false,
            recv(again) -> _ => false,
            recv(stopped) -> _ => true,
        };
        if last && woken.try_recv().is_err() && (failed.is_none() || tried_last) {
            // A caller that comes now gets an error at once and does not wait.
            ask.lock().callers.clear();
            if journal.is_some_and(|journal| journal.is_used())
                && let Err(e) = write(path, copy)
            {
                warn!(target: LOG, "{}: the edits behind it stay there: {e}", path.display());
            }
            return;
        }
        tried_last = last;
        // Taken before the snapshot, so an edit that comes later is part of the next write.
        let waiting = std::mem::take(&mut *ask.lock());
        let shown = path.display();
        let going_on = journal
            .take()
            .filter(|journal| !waiting.all && journal.goes_on(path));
        let kept = match going_on {
            Some(mut behind) => behind.append(&waiting.edits).map(|()| behind),
            None => write(path, copy),
        };
        let result = kept.map(|behind| journal = Some(behind));
        failed = match (result, failed) {
            (Ok(()), before) => {
                if before.is_some() {
                    info!(target: LOG, "{shown}: policy is kept again");
                }
                None
            }
            (Err(e), before) => {
                let why = e.to_string();
                if before.as_ref().is_none_or(|before| before.why != why) {
                    error!(target: LOG, "{shown}: policy is not kept, which is tried again: {why}");
                }
                let pause = before.map_or(PAUSE[0], |before| (before.pause * 2).min(PAUSE[1]));
                Some(Failed { why, pause })
            }
        };
        for caller in waiting.callers {
            // A caller that is gone needs no answer.
            let _ = caller.send(failed.as_ref().map(|failed| failed.why.clone()));
        }
    }
}

/// Writes all policy, and begins with the edits behind it.
fn write(path: &Path, copy: &Copy) -> io::Result<Journal> {
    let objects = copy().map_err(io::Error::other)?;
    let text = ManagedObject::write_all(&objects, Format::Json).map_err(io::Error::other)?;
    // Renamed into place, so that a crash leaves the old policy or the new one.
    replace(path, text.as_bytes())?;
    // The new file contains these edits.
    journal::remove(path);
    Ok(Journal::begin(path, text.as_bytes()))
}

/// Reads the kept policy. `None` if there is no file.
pub(super) fn read(path: &Path) -> Result<Option<Vec<ManagedObject>>, StartError> {
    let text = match std::fs::read(path) {
        Ok(text) => text,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(StartError::Keep(path.into(), e)),
    };
    let objects: Result<_, FileError> = ManagedObject::read_all(&text, Format::Json);
    let objects = objects.map_err(|e| StartError::Kept(path.into(), e))?;
    Ok(Some(journal::with_edits(path, &text, objects)))
}
