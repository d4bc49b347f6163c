//! The feed of an element: a Unix socket at which programs on the same host get the received
//! objects and all changes of them, as lines of JSON.
//!
//! ```text
//!  program ── connects ─▶ reader's thread ── join, then step by step ─▶ dispatcher
//!     ◀─── lines ──────────    │  ◀── a queue of lines ── pieces of the trees │
//!                                                       └─ changes ───────────┘
//! ```
//!
//! The dispatcher adds both to one queue: the objects of the trees, in pieces, when the queue is
//! empty; and the changes of objects that the reader has already. The change of an object that
//! the reader does not have yet is left out, because the object is sent later in its state at that
//! time. So after each line, the reader has a state that the element had at some time.
//!
//! | resource | limit | when full |
//! |---|---|---|
//! | readers | 16 | a further reader gets a line with the reason, and is disconnected |
//! | memory of all queued lines | [`ElementConfig::serve_queue`] | the reader with the most queued bytes gets a last line with the reason, and is disconnected |
//! | time in which a reader receives no byte | 30 s | its connection ends |
//!
//! [`ElementConfig::serve_queue`]: super::ElementConfig::serve_queue
//!
//! The lines are described in `docs/opflex-tools.md`.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use crossbeam_channel::{Receiver, Sender};
use log::warn;
use serde::Serialize;
use serde_json::json;

use super::config::{ELEMENT_LOG as LOG, ElementConfig};
use crate::model::{ChangeKind, Cursor, Piece, Uri};
use crate::policy_element::{ElementCore, ElementEvent, ObjectChange, Store};

/// The maximum number of readers.
pub(super) const READERS: usize = 16;
/// The reason of the last line when the element stops.
pub(super) const STOPPING: &str = "the element stops";
/// The version of the format.
const VERSION: u64 = 1;

/// A reader that has joined, for its thread.
pub(super) struct Seat {
    pub(super) id: u64,
    /// Ends after the last line.
    pub(super) lines: Receiver<Arc<FeedText>>,
    /// The bytes in the queue.
    pub(super) waiting: Arc<AtomicUsize>,
}

/// A line, which several readers may share. It is counted in the memory of all lines until it is
/// dropped.
#[derive(Debug)]
pub(super) struct FeedText {
    pub(super) bytes: Bytes,
    memory: Arc<AtomicUsize>,
}

impl Drop for FeedText {
    fn drop(&mut self) {
        self.memory.fetch_sub(self.bytes.len(), Ordering::Relaxed);
    }
}

/// The readers, for the dispatcher.
#[derive(Debug, Default)]
pub(super) struct Feed {
    /// The name and the domain of the element, for the first line.
    name: String,
    domain: String,
    /// The maximum number of bytes of queued lines for all readers together.
    most: usize,
    /// The bytes of queued lines.
    memory: Arc<AtomicUsize>,
    readers: HashMap<u64, Reader>,
    last: u64,
    is_over: bool,
}

#[derive(Debug)]
struct Reader {
    lines: Sender<Arc<FeedText>>,
    /// The receiving end, to drop the lines of a reader that is disconnected.
    queue: Receiver<Arc<FeedText>>,
    waiting: Arc<AtomicUsize>,
    /// The position in the tree that is being sent; `None` if both trees are sent.
    at: Option<(Store, Cursor)>,
}

impl Feed {
    pub(super) fn new(config: &ElementConfig) -> Self {
        Self {
            name: config.settings.name.clone(),
            domain: config.settings.domain.clone(),
            most: config.serve_queue,
            ..Self::default()
        }
    }

    /// Adds a reader.
    ///
    /// # Errors
    /// The reason for which it is refused, for its only line.
    pub(super) fn join(&mut self, core: &ElementCore) -> Result<Seat, &'static str> {
        if self.is_over {
            return Err(STOPPING);
        }
        if self.readers.len() >= READERS {
            return Err("the feed has as many readers as it may have");
        }
        // Unbounded, because the limit is in bytes; see `drop_slowest`.
        let (lines, receiver) = crossbeam_channel::unbounded();
        let waiting = Arc::new(AtomicUsize::new(0));
        let mut reader = Reader {
            lines,
            queue: receiver.clone(),
            waiting: Arc::clone(&waiting),
            at: Some((Store::Policy, Cursor::everywhere())),
        };
        let health = core.health();
        let first = json!({
            "event": "element", "version": VERSION, "name": self.name, "domain": self.domain,
            "location": core.location(),
        });
        reader.push(&text(line(&first), &self.memory));
        reader.push(&text(line(&ElementEvent::Health { health }), &self.memory));
        // Numbers are not reused, so that a thread that ends late does not remove another reader.
        self.last += 1;
        self.readers.insert(self.last, reader);
        Ok(Seat {
            id: self.last,
            lines: receiver,
            waiting,
        })
    }

    /// Sends a reader the next objects of the trees. Returns false if it has all of them.
    pub(super) fn send_next(&mut self, id: u64, core: &ElementCore) -> bool {
        let memory = &self.memory;
        let Some(reader) = self.readers.get_mut(&id) else {
            return false;
        };
        let Some((what, cursor)) = &mut reader.at else {
            return false;
        };
        let what = *what;
        let objects = cursor.take(core.tree(what), &mut Piece::of_a_call()).into_iter();
        let objects: Vec<ObjectChange> = objects
            .map(|object| ObjectChange {
                kind: ChangeKind::Created,
                subject: object.subject().clone(),
                uri: object.uri().clone(),
                object: Some(object.to_object()),
            })
            .collect();
        if !objects.is_empty() {
            reader.push(&text(changes(what, objects.iter().collect()), memory));
            self.drop_slowest();
            return true;
        }
        reader.at = (what == Store::Policy).then(|| (Store::Endpoints, Cursor::everywhere()));
        let is_complete = reader.at.is_none();
        if is_complete {
            reader.push(&text(line(&json!({ "event": "complete" })), memory));
        }
        !is_complete
    }

    /// Sends an event to all readers. Changes are sent only of objects that a reader has already.
    pub(super) fn send_event(&mut self, event: &ElementEvent) {
        // Most elements have no readers, so no line is made.
        if self.readers.is_empty() {
            return;
        }
        match event {
            ElementEvent::Changed { what, objects } => self.send_changes(*what, objects),
            other => {
                let text = text(line(other), &self.memory);
                self.readers.values_mut().for_each(|reader| reader.push(&text));
            }
        }
        self.drop_slowest();
    }

    /// Disconnects the slowest readers until the queued lines of all readers are within the limit.
    fn drop_slowest(&mut self) {
        while self.memory.load(Ordering::Relaxed) > self.most {
            let waiting = |(_, reader): &(&u64, &Reader)| reader.waiting.load(Ordering::Relaxed);
            let Some(id) = self.readers.iter().max_by_key(waiting).map(|(id, _)| *id) else {
                return;
            };
            let Some(mut reader) = self.readers.remove(&id) else {
                return;
            };
            warn!(target: LOG, "a reader of the feed is disconnected: it is too slow, and over {} bytes wait", self.most);
            while reader.queue.try_recv().is_ok() {}
            reader.push(&text(
                end("too slow: too many lines wait; connect again"),
                &self.memory,
            ));
        }
    }

    fn send_changes(&mut self, what: Store, objects: &[ObjectChange]) {
        let memory = &self.memory;
        for some in objects.chunks(Piece::ENTRIES) {
            // Readers that have all these objects share the line.
            let mut whole = None;
            for reader in self.readers.values_mut() {
                let known = |change: &&ObjectChange| reader.has_passed(what, &change.uri);
                let known: Vec<_> = some.iter().filter(known).collect();
                if known.len() == some.len() {
                    reader.push(whole.get_or_insert_with(|| text(changes(what, known), memory)));
                } else if !known.is_empty() {
                    reader.push(&text(changes(what, known), memory));
                }
            }
        }
    }

    /// Removes a reader that has disconnected.
    pub(super) fn leave(&mut self, id: u64) {
        self.readers.remove(&id);
    }

    /// Sends all readers their last line, because the element stops.
    pub(super) fn end(&mut self) {
        // Later readers are refused.
        self.is_over = true;
        let text = text(end(STOPPING), &self.memory);
        for (_, mut reader) in self.readers.drain() {
            reader.push(&text);
        }
    }
}

impl Reader {
    /// True if the position has gone past this URI, so the object at this URI has been sent.
    fn has_passed(&self, what: Store, uri: &Uri) -> bool {
        // Policy is sent first, so a reader that is getting endpoints has all policy.
        self.at.as_ref().is_none_or(|(at, cursor)| {
            if what == *at {
                !cursor.is_ahead(uri)
            } else {
                what == Store::Policy
            }
        })
    }

    /// Adds a line to the queue.
    fn push(&mut self, text: &Arc<FeedText>) {
        self.waiting.fetch_add(text.bytes.len(), Ordering::Relaxed);
        // Sending fails only if the thread has ended and will remove the reader.
        let _ = self.lines.send(Arc::clone(text));
    }
}

/// Makes a line that is counted in the memory of all lines.
fn text(bytes: Bytes, memory: &Arc<AtomicUsize>) -> Arc<FeedText> {
    memory.fetch_add(bytes.len(), Ordering::Relaxed);
    let memory = Arc::clone(memory);
    Arc::new(FeedText { bytes, memory })
}

/// A line of changes: the JSON of [`ElementEvent::Changed`], without copies of the objects.
fn changes(what: Store, objects: Vec<&ObjectChange>) -> Bytes {
    #[derive(Serialize)]
    struct Changed<'a> {
        event: &'a str,
        what: &'a str,
        objects: Vec<&'a ObjectChange>,
    }
    line(&Changed {
        event: "changed",
        what: what.name(),
        objects,
    })
}

/// The last line of a reader.
pub(super) fn end(reason: &str) -> Bytes {
    line(&json!({ "event": "end", "reason": reason }))
}

fn line(value: &impl Serialize) -> Bytes {
    let mut text = serde_json::to_vec(value).unwrap_or_default();
    text.push(b'\n');
    Bytes::from(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ManagedObject;
    use crate::policy_element::ElementSettings;
    use ssntp_transport::now;

    #[test]
    fn a_reader_that_joins_during_a_stop_gets_this_reason() {
        let config = ElementConfig::new(ElementSettings::default());
        let core = ElementCore::new(config.settings.clone(), 1, now());
        let mut feed = Feed::new(&config);
        let joined = feed.join(&core).unwrap();
        feed.end();
        assert!(joined.lines.iter().any(|line| line.bytes == end(STOPPING)));
        assert_eq!(feed.join(&core).err(), Some(STOPPING));
    }

    #[test]
    fn queued_lines_have_one_limit_and_the_slowest_reader_is_disconnected_first() {
        const MOST: usize = 100_000;
        let mut config = ElementConfig::new(ElementSettings::default());
        config.serve_queue = MOST;
        let core = ElementCore::new(config.settings.clone(), 1, now());
        let mut feed = Feed::new(&config);
        let mut readers: Vec<_> = (0..READERS).map(|_| feed.join(&core).unwrap()).collect();
        // The last reader has all objects and receives its lines. The others receive none.
        let fast = readers.pop().unwrap();
        while feed.send_next(fast.id, &core) {}
        let waits = |joined: &Seat| joined.waiting.load(Ordering::Relaxed);
        for n in 0..1000 {
            let uri: Uri = format!("/a/{n}/").parse().unwrap();
            let object = ManagedObject::new("a", uri.clone()).with("name", "x".repeat(1000));
            let change = ObjectChange {
                kind: ChangeKind::Created,
                subject: "a".into(),
                uri,
                object: Some(object),
            };
            let objects = vec![change];
            let store = Store::Policy;
            for reader in feed.readers.values_mut().filter(|reader| reader.at.is_some()) {
                let last = "/b/".parse().unwrap();
                reader.at = Some((Store::Policy, Cursor::everywhere()));
                reader.at.as_mut().unwrap().1.pass(last);
            }
            feed.send_event(&ElementEvent::Changed { what: store, objects });
            assert!(feed.memory.load(Ordering::Relaxed) <= MOST);
            // The fast reader receives its lines.
            while let Ok(text) = fast.lines.try_recv() {
                fast.waiting.fetch_sub(text.bytes.len(), Ordering::Relaxed);
            }
        }
        assert_eq!(waits(&fast), 0);
        assert!(feed.readers.contains_key(&fast.id), "the reader is not slow");
        assert!(feed.readers.len() < READERS);
        let disconnected = readers
            .iter()
            .filter(|joined| !feed.readers.contains_key(&joined.id));
        for joined in disconnected {
            let last: Vec<_> = joined.lines.iter().collect();
            assert_eq!(last.len(), 1);
            assert!(last[0].bytes.starts_with(br#"{"event":"end","reason":"too slow"#));
        }
    }
}
