//! The file in which policy is kept, and the thread that writes it.
//!
//! ```text
//!  dispatcher ── changed() ───────▶ keeper ── Calls that read policy in steps ─▶ dispatcher
//!  editing ── wait() ──────────────▶   │ appends to the journal, or writes all policy
//! ```
//!
//! The first change writes all policy. Later changes are appended to the journal (see `journal`)
//! until the journal is longer than the policy. When the server stops, all policy is written, so
//! that no journal is left. Changes that arrive during a write are in the next write. If a write
//! fails, the callers that wait get the error, and the write is repeated: at the next change, or
//! after a pause of one second, which doubles up to a minute; and once when the server stops.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender};
use log::{error, info, warn};

use super::config::{CallError, SERVER_LOG as LOG, StartError};
use super::journal::{self, EditLine, Journal};
use crate::model::{FileError, Format, ManagedObject};
use ssntp_transport::threads::{self, Joined};
use ssntp_transport::{locked, replace};

/// Makes the text of the file: the present policy as JSON.
pub(super) type MakeText = Box<dyn Fn() -> Result<Vec<u8>, CallError> + Send>;

/// The pause after a failed write: the first one, and the longest.
const PAUSE: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(60)];

/// The thread that writes the file. Dropping it writes the pending changes, and joins the thread. The
/// dispatcher has to run then.
#[derive(Debug)]
pub(super) struct Keeper {
    sender: KeeperSender,
    /// Never used: dropping it ends the thread.
    _stop: Sender<()>,
    _thread: Joined,
}

/// Sends changes to the thread. A clone is another handle.
#[derive(Clone, Debug)]
pub(super) struct KeeperSender {
    /// Has one slot, because one wake-up serves all requests.
    wake: Sender<()>,
    /// The callers that wait for the next write. Each gets the error, or `None`. The thread owns the
    /// receiver, so when it ends, also by a panic, every caller gets an error.
    callers: Sender<Sender<Option<String>>>,
    pending: Arc<Mutex<Unwritten>>,
    /// The reason why the last write failed.
    fault: Arc<Mutex<Option<String>>>,
}

/// The work for the next write.
#[derive(Debug, Default)]
struct Unwritten {
    /// The edits that are not on the disk, in their order.
    edits: Vec<EditLine>,
    /// The number of objects in these edits, and in edits that were dropped.
    objects: usize,
}

/// The maximum number of objects in edits that are not on the disk. Beyond that, all policy is written.
const MAX_OBJECTS: usize = 10_000;

impl KeeperSender {
    /// Records that policy has changed.
    pub(super) fn changed(&self, edit: EditLine) {
        let mut pending = locked(&self.pending);
        pending.objects += edit.len();
        pending.edits.push(edit);
        // While the disk is slow, edits must not fill the memory.
        if pending.objects > MAX_OBJECTS {
            pending.edits.clear();
        }
        drop(pending);
        self.wake();
    }

    fn wake(&self) {
        // If a wake-up is already pending, it also serves this change.
        let _ = self.wake.try_send(());
    }

    /// The reason why the present policy is not on the disk, if the last write failed.
    pub(super) fn fault(&self) -> Option<String> {
        locked(&self.fault).clone()
    }

    /// Blocks until the present policy is on the disk.
    ///
    /// # Errors
    /// The write failed, or the thread has ended.
    pub(super) fn wait(&self) -> Result<(), CallError> {
        let (caller, result) = crossbeam_channel::bounded(1);
        // If the thread has ended, this drops `caller`, and receiving fails.
        let _ = self.callers.send(caller);
        self.wake();
        match result.recv() {
            Ok(None) => Ok(()),
            Ok(Some(why)) => Err(CallError::Keep(io::Error::other(why))),
            Err(_) => Err(CallError::Stopped),
        }
    }
}

impl Keeper {
    pub(super) fn start(path: PathBuf, text: MakeText) -> io::Result<Self> {
        let (wake, woken) = crossbeam_channel::bounded(1);
        let (stop, stopped) = crossbeam_channel::bounded(0);
        // Bounded by the number of threads that wait. It drops its callers with its receiver, which a
        // bounded channel would not do.
        let (callers, waiting) = crossbeam_channel::unbounded();
        let sender = KeeperSender {
            wake,
            callers,
            pending: Arc::default(),
            fault: Arc::default(),
        };
        let shared = sender.clone();
        let thread = threads::joined("opflex-keep", move || {
            run(&path, &text, &shared, &woken, &waiting, &stopped)
        })?;
        Ok(Self {
            sender,
            _stop: stop,
            _thread: thread,
        })
    }

    pub(super) fn sender(&self) -> KeeperSender {
        self.sender.clone()
    }
}

/// The error of the last write, and the pause before the next attempt.
struct Failed {
    why: String,
    pause: Duration,
}

fn run(
    path: &Path,
    text: &MakeText,
    sender: &KeeperSender,
    woken: &Receiver<()>,
    waiting: &Receiver<Sender<Option<String>>>,
    stopped: &Receiver<()>,
) {
    let mut failed: Option<Failed> = None;
    // Begun by the first write of all policy.
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
            if journal.is_some_and(|journal| journal.is_used())
                && let Err(e) = write(path, text)
            {
                warn!(target: LOG, "{}: not written at the stop, its edits stay in the journal: {e}", path.display());
            }
            return;
        }
        tried_last = last;
        // Taken before the edits, so that the edits of these callers are part of this write.
        let callers: Vec<_> = waiting.try_iter().collect();
        // Taken before the copy, so that later edits are part of the next write.
        let pending = std::mem::take(&mut *locked(&sender.pending));
        // An earlier write had the edits of these callers, or they changed nothing.
        if pending.objects == 0 && failed.is_none() {
            for caller in callers {
                let _ = caller.send(None);
            }
            continue;
        }
        let shown = path.display();
        let usable = journal
            .take()
            .filter(|journal| pending.objects <= MAX_OBJECTS && journal.is_appendable(path));
        let kept = match usable {
            Some(mut usable) => usable.append(&pending.edits).map(|()| usable),
            None => write(path, text),
        };
        let result = kept.map(|kept| journal = Some(kept));
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
                    error!(target: LOG, "{shown}: policy is not kept, the write will be repeated: {why}");
                }
                let pause = before.map_or(PAUSE[0], |before| (before.pause * 2).min(PAUSE[1]));
                Some(Failed { why, pause })
            }
        };
        let fault = failed.as_ref().map(|failed| &failed.why);
        *locked(&sender.fault) = fault.map(|why| format!("{shown}: policy is not kept: {why}"));
        for caller in callers {
            // Sending fails only if the caller has ended.
            let _ = caller.send(failed.as_ref().map(|failed| failed.why.clone()));
        }
    }
}

/// Writes all policy, and begins its journal.
fn write(path: &Path, text: &MakeText) -> io::Result<Journal> {
    let text = text().map_err(io::Error::other)?;
    // `replace` renames a new file, so that a crash leaves the former policy or the new one.
    replace(path, &text)?;
    journal::remove(path);
    Ok(Journal::begin(path, &text))
}

/// Reads the kept policy. `None` if there is no file.
pub(super) fn read(path: &Path) -> Result<Option<Vec<ManagedObject>>, StartError> {
    let text = match std::fs::read(path) {
        Ok(text) => text,
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            return journal::check_absent(path).map(|()| None);
        }
        Err(e) => return Err(StartError::Keep(path.into(), e)),
    };
    let objects: Result<_, FileError> = ManagedObject::read_all(&text, Format::Json);
    let objects = objects.map_err(|e| StartError::Kept(path.into(), e))?;
    journal::with_edits(path, &text, objects).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_caller_that_waits_after_a_stop_or_a_panic_gets_an_error() {
        let panics: MakeText = Box::new(|| panic!("on purpose: the test wants it"));
        for (text, is_kept) in [
            (Box::new(|| Ok(b"[]".to_vec())) as MakeText, true),
            (panics, false),
        ] {
            let directory = tempfile::tempdir().unwrap();
            let keeper = Keeper::start(directory.path().join("kept"), text).unwrap();
            let sender = keeper.sender();
            let edit = serde_json::from_str(r#"{"delete": ["/a/"], "put": []}"#).unwrap();
            sender.changed(edit);
            assert_eq!(sender.wait().is_ok(), is_kept);
            drop(keeper);
            let (result, waited) = crossbeam_channel::bounded(1);
            threads::spawn("late", move || result.send(sender.wait())).unwrap();
            let waited = waited.recv_timeout(Duration::from_secs(30));
            assert!(matches!(waited, Ok(Err(CallError::Stopped))));
        }
    }
}
