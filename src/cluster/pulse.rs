//! Whether an entity's thread still does its work.

use crossbeam_channel::{Receiver, Sender, bounded};

/// Asks the thread of an [`Agent`](super::agent::Agent) or a
/// [`Cnci`](super::cnci::Cnci) whether it still does its work: for watchdogs.
///
/// # Threads
/// Cheap to clone, and `Send`. It keeps nobody from ending.
#[derive(Clone, Debug)]
pub struct Pulse(Sender<Sender<bool>>);

impl Pulse {
    /// The other half is for the entity's thread: whom to tell whether it is
    /// connected. Whoever asks waits, so one place is enough.
    pub(super) fn new() -> (Self, Receiver<Sender<bool>>) {
        let (asks, asked) = bounded(1);
        (Self(asks), asked)
    }

    /// Waits until the thread comes to answer, however long that takes: whether it
    /// is connected to a server. `None` once it has ended.
    pub fn ask(&self) -> Option<bool> {
        let (answer, answered) = bounded(1);
        self.0.send(answer).ok()?;
        answered.recv().ok()
    }
}
