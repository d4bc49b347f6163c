//! The feed of an element: a Unix socket where programs on the same host get
//! what it has resolved, and every change of that, as lines of JSON.
//!
//! ```text
//!  program ── connects ─▶ reader's thread ── join, and some more at a time ─▶ dispatcher
//!     ◀─── lines ──────────    │  ◀── a queue of lines ── pieces of the trees │
//!                                                       └─ what changes ──────┘
//! ```
//!
//! The dispatcher puts both into one queue: the objects of the trees, some at a time when the
//! queue is empty, and the changes of objects that it has already sent. The change of an object
//! that is still to be sent is left out, because the object will be sent as it is then. So at each
//! line a reader has what the element had at some moment.
//!
//! | what | bound | when full |
//! |---|---|---|
//! | readers | 16 | a further one gets a line that says so, and is disconnected |
//! | memory of the lines for all of them | [`ElementConfig::serve_queue`] | the reader for which most waits gets a last line, which says that it is too slow |
//! | time in which a reader takes no byte | 30 s | its connection ends |
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

use super::{ELEMENT_LOG as LOG, ElementConfig};
use crate::model::{ChangeKind, Cursor, Piece, Uri};
use crate::policy_element::{ElementCore, ElementEvent, ObjectChange, Store};

pub(super) const READERS: usize = 16;
/// Objects of the trees in one line, or changes.
const STEP: usize = 500;
/// About how many bytes of the trees are put into one line.
const STEP_BYTES: usize = 1 << 20;
/// The version of the lines.
const VERSION: u64 = 1;

/// The part of a reader that its thread has.
pub(super) struct Joined {
    pub(super) id: u64,
    pub(super) lines: Receiver<Line>,
    /// Bytes of the lines in the queue.
    pub(super) waiting: Arc<AtomicUsize>,
}

#[derive(Clone, Debug)]
pub(super) enum Line {
    Text(Arc<Text>),
    /// The last one.
    End(&'static str),
}

/// A line, which several readers may share. It counts in the memory of all lines as long as
/// it waits for one of them.
#[derive(Debug)]
pub(super) struct Text {
    pub(super) bytes: Bytes,
    memory: Arc<AtomicUsize>,
}

impl Drop for Text {
    fn drop(&mut self) {
        self.memory.fetch_sub(self.bytes.len(), Ordering::Relaxed);
    }
}

/// The readers, for the dispatcher.
#[derive(Debug, Default)]
pub(super) struct Feed {
    /// Name and domain of the element, for the first line.
    name: String,
    domain: String,
    /// Bytes of lines that may wait for all readers together.
    most: usize,
    /// Bytes of lines that wait.
    memory: Arc<AtomicUsize>,
    readers: HashMap<u64, Reader>,
    last: u64,
    is_over: bool,
}

#[derive(Debug)]
struct Reader {
    lines: Sender<Line>,
    /// The receiving end, to drop the lines of a reader that is disconnected.
    waiting_lines: Receiver<Line>,
    waiting: Arc<AtomicUsize>,
    /// Its place in the tree that is being sent; `None` once it has everything.
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

    /// A reader comes, if there is room for it.
    pub(super) fn join(&mut self, core: &ElementCore) -> Option<Joined> {
        if self.is_over || self.readers.len() >= READERS {
            return None;
        }
        // Unbounded, because the bytes that wait are counted and bounded.
        let (lines, receiver) = crossbeam_channel::unbounded();
        let waiting = Arc::new(AtomicUsize::new(0));
        let mut reader = Reader {
            lines,
            waiting_lines: receiver.clone(),
            waiting: Arc::clone(&waiting),
            at: Some((Store::Policy, Cursor::everywhere())),
        };
        let health = core.health();
        let first = json!({
            "event": "element", "version": VERSION, "name": self.name, "domain": self.domain,
            "location": core.location(),
        });
        reader.say(&text(line(&first), &self.memory));
        reader.say(&text(line(&ElementEvent::Health { health }), &self.memory));
        // A number is not reused, so that a thread that ends late takes no other reader away.
        self.last += 1;
        self.readers.insert(self.last, reader);
        Some(Joined {
            id: self.last,
            lines: receiver,
            waiting,
        })
    }

    /// Sends a reader the next objects of the trees. Returns false once it has all of them.
    pub(super) fn go_on(&mut self, id: u64, core: &ElementCore) -> bool {
        let memory = &self.memory;
        let Some(reader) = self.readers.get_mut(&id) else {
            return false;
        };
        let Some((what, cursor)) = &mut reader.at else {
            return false;
        };
        let what = *what;
        // Bounded by bytes as well: one object may have a megabyte.
        let mut piece = Piece::new(STEP_BYTES);
        let objects = cursor.take(core.tree(what), STEP, &mut piece).into_iter();
        let objects: Vec<ObjectChange> = objects
            .map(|object| ObjectChange {
                kind: ChangeKind::Created,
                subject: object.subject().clone(),
                uri: object.uri().clone(),
                object: Some(object.to_object()),
            })
            .collect();
        if !objects.is_empty() {
            reader.say(&text(changes(what, objects.iter()), memory));
            self.let_go();
            return true;
        }
        reader.at = (what == Store::Policy).then(|| (Store::Endpoints, Cursor::everywhere()));
        let is_complete = reader.at.is_none();
        if is_complete {
            reader.say(&text(line(&json!({ "event": "complete" })), memory));
        }
        !is_complete
    }

    /// Sends an event to all readers; of changed objects only those that a reader has been sent.
    pub(super) fn tell(&mut self, event: &ElementEvent) {
        // Most elements have no readers; then no text is made.
        if self.readers.is_empty() {
            return;
        }
        match event {
            ElementEvent::Changed { what, objects } => self.tell_changes(*what, objects),
            other => {
                let text = text(line(other), &self.memory);
                self.readers.values_mut().for_each(|reader| reader.say(&text));
            }
        }
        self.let_go();
    }

    /// Disconnects the slowest readers until the lines that wait for all are within the bound.
    fn let_go(&mut self) {
        while self.memory.load(Ordering::Relaxed) > self.most {
            let waiting = |(_, reader): &(&u64, &Reader)| reader.waiting.load(Ordering::Relaxed);
            let Some(id) = self.readers.iter().max_by_key(waiting).map(|(id, _)| *id) else {
                return;
            };
            let Some(reader) = self.readers.remove(&id) else {
                return;
            };
            warn!(target: LOG, "a reader of the feed is too slow: {} bytes wait for all, it is let go", self.most);
            while reader.waiting_lines.try_recv().is_ok() {}
            let why = "too slow: too many lines wait; connect again";
            let _ = reader.lines.send(Line::End(why));
        }
    }

    fn tell_changes(&mut self, what: Store, objects: &[ObjectChange]) {
        let memory = &self.memory;
        // Readers that have all objects share one text.
        let shared: Vec<_> = match self.readers.values().any(|reader| reader.at.is_none()) {
            true => objects
                .chunks(STEP)
                .map(|some| text(changes(what, some.iter()), memory))
                .collect(),
            false => Vec::new(),
        };
        for reader in self.readers.values_mut() {
            if reader.at.is_none() {
                shared.iter().for_each(|text| reader.say(text));
                continue;
            }
            for some in objects.chunks(STEP) {
                let known = |change: &&ObjectChange| reader.knows(what, &change.uri);
                let known: Vec<_> = some.iter().filter(known).collect();
                if !known.is_empty() {
                    reader.say(&text(changes(what, known.into_iter()), memory));
                }
            }
        }
    }

    /// A reader has left.
    pub(super) fn leave(&mut self, id: u64) {
        self.readers.remove(&id);
    }

    /// The element stops. All readers are told so, and nothing else any more.
    pub(super) fn end(&mut self) {
        // A program that connects now is told at once that the element stops.
        self.is_over = true;
        for (_, reader) in self.readers.drain() {
            let _ = reader.lines.send(Line::End("the element stops"));
        }
    }
}

impl Reader {
    /// Whether it has been sent the object at this URI, or its place in the tree.
    fn knows(&self, what: Store, uri: &Uri) -> bool {
        // Policy comes first, so a reader at the endpoints has all policy.
        self.at.as_ref().is_none_or(|(at, cursor)| match what == *at {
            true => !cursor.is_ahead(uri),
            false => what == Store::Policy,
        })
    }

    /// Puts a line into its queue.
    fn say(&mut self, text: &Arc<Text>) {
        self.waiting.fetch_add(text.bytes.len(), Ordering::Relaxed);
        // One whose thread is over is about to be forgotten.
        let _ = self.lines.send(Line::Text(Arc::clone(text)));
    }
}

/// A line that counts in the memory of all lines.
fn text(bytes: Bytes, memory: &Arc<AtomicUsize>) -> Arc<Text> {
    memory.fetch_add(bytes.len(), Ordering::Relaxed);
    let memory = Arc::clone(memory);
    Arc::new(Text { bytes, memory })
}

/// Changes in one line; the same as of [`ElementEvent::Changed`], without copies
/// of the objects.
fn changes<'a>(what: Store, objects: impl Iterator<Item = &'a ObjectChange>) -> Bytes {
    #[derive(Serialize)]
    struct Changed<'a> {
        event: &'a str,
        what: &'a str,
        objects: Vec<&'a ObjectChange>,
    }
    line(&Changed {
        event: "changed",
        what: what.name(),
        objects: objects.collect(),
    })
}

pub(super) fn line(value: &impl Serialize) -> Bytes {
    let mut text = serde_json::to_vec(value).unwrap_or_default();
    text.push(b'\n');
    Bytes::from(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ManagedObject;
    use crate::policy_element::Settings;
    use crate::run::now;

    #[test]
    fn what_waits_for_all_readers_has_one_bound_and_the_slowest_goes_first() {
        const MOST: usize = 100_000;
        let mut config = ElementConfig::new(Settings::default());
        config.serve_queue = MOST;
        let core = ElementCore::new(config.settings.clone(), 1, now());
        let mut feed = Feed::new(&config);
        let mut readers: Vec<_> = (0..READERS).map(|_| feed.join(&core).unwrap()).collect();
        // The last reader has everything; the others are still at the beginning, so that each
        // has lines of its own.
        let fast = readers.pop().unwrap();
        while feed.go_on(fast.id, &core) {}
        let waits = |joined: &Joined| joined.waiting.load(Ordering::Relaxed);
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
            let what = Store::Policy;
            for reader in feed.readers.values_mut().filter(|reader| reader.at.is_some()) {
                let last = "/b/".parse().unwrap();
                reader.at = Some((Store::Policy, Cursor::everywhere()));
                reader.at.as_mut().unwrap().1.pass(last);
            }
            feed.tell(&ElementEvent::Changed { what, objects });
            assert!(feed.memory.load(Ordering::Relaxed) <= MOST);
            // This one takes what it is sent.
            while let Ok(Line::Text(text)) = fast.lines.try_recv() {
                fast.waiting.fetch_sub(text.bytes.len(), Ordering::Relaxed);
            }
        }
        assert_eq!(waits(&fast), 0);
        assert!(feed.readers.contains_key(&fast.id), "it is not slow");
        assert!(feed.readers.len() < READERS);
        let gone = readers
            .iter()
            .filter(|joined| !feed.readers.contains_key(&joined.id));
        for joined in gone {
            assert!(matches!(joined.lines.try_recv(), Ok(Line::End(_))));
        }
    }
}
