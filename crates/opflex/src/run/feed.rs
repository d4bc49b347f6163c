//! The feed of an element: a Unix socket where programs on the same host get
//! what it has resolved, and every change of that, as lines of JSON.
//!
//! ```text
//!  program ── connects ─▶ reader's thread ── join, and some more at a time ─▶ dispatcher
//!     ◀─── lines ──────────    │  ◀── a queue of lines ── pieces of the trees │
//!                                                       └─ what changes ──────┘
//! ```
//!
//! The dispatcher puts both into one queue: the trees, some objects whenever the
//! queue has become empty, and changes of what it has come to. What it has not
//! come to changes unsaid, since the piece with it is still to come. So what a
//! reader knows is at each line what the element had at some moment.
//!
//! | what | bound | when full |
//! |---|---|---|
//! | readers | 16 | who comes is told so, and let go |
//! | lines for one of them | [`ElementConfig::serve_queue`] | no more come; the last line says that it is too slow |
//! | one who takes nothing | 30 s | the connection ends |
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

use super::ELEMENT_LOG as LOG;
use crate::model::{ChangeKind, Cursor, Room, Uri};
use crate::policy_element::{ElementCore, ElementEvent, ObjectChange, Store};

pub(super) const READERS: usize = 16;
/// Objects of the trees in one line, or changes.
const STEP: usize = 500;
/// About how many bytes of the trees are put into one line.
const STEP_BYTES: usize = 1 << 20;
/// The version of the lines.
const VERSION: u64 = 1;

/// What a reader's thread knows of the reader.
pub(super) struct Joined {
    pub(super) id: u64,
    pub(super) lines: Receiver<Line>,
    /// Bytes of the lines in the queue.
    pub(super) waiting: Arc<AtomicUsize>,
}

#[derive(Clone, Debug)]
pub(super) enum Line {
    Text(Bytes),
    /// The last one.
    End(&'static str),
}

/// Who reads, for the dispatcher.
#[derive(Debug, Default)]
pub(super) struct Feed {
    /// Who the element is, for the first line.
    name: String,
    domain: String,
    /// Bytes of lines that may wait for one reader.
    most: usize,
    readers: HashMap<u64, Reader>,
    last: u64,
    is_over: bool,
}

#[derive(Debug)]
struct Reader {
    lines: Sender<Line>,
    waiting: Arc<AtomicUsize>,
    /// Where it is in the tree that it is being sent; nowhere once it has all.
    at: Option<(Store, Cursor)>,
}

impl Feed {
    pub(super) fn new(name: String, domain: String, most: usize) -> Self {
        Self {
            name,
            domain,
            most,
            ..Self::default()
        }
    }

    /// A reader comes, if there is room for it.
    pub(super) fn join(&mut self, core: &ElementCore) -> Option<Joined> {
        if self.is_over || self.readers.len() >= READERS {
            return None;
        }
        // What waits is counted in bytes; a bound on lines would be another one.
        let (lines, receiver) = crossbeam_channel::unbounded();
        let waiting = Arc::new(AtomicUsize::new(0));
        let mut reader = Reader {
            lines,
            waiting: Arc::clone(&waiting),
            at: Some((Store::Policy, Cursor::everywhere())),
        };
        reader.say(&line(&json!({
            "event": "element", "version": VERSION, "name": self.name, "domain": self.domain,
            "location": core.location(),
        })));
        reader.say(&line(&ElementEvent::Health {
            health: core.health(),
        }));
        self.last += 1;
        self.readers.insert(self.last, reader);
        Some(Joined {
            id: self.last,
            lines: receiver,
            waiting,
        })
    }

    /// Tells a reader some more of what there is. False once that is all.
    pub(super) fn go_on(&mut self, id: u64, core: &ElementCore) -> bool {
        let Some(reader) = self.readers.get_mut(&id) else {
            return false;
        };
        let Some((what, cursor)) = &mut reader.at else {
            return false;
        };
        let what = *what;
        // Bounded by bytes as well: one object may have a megabyte.
        let mut room = Room::new(STEP_BYTES);
        let objects = cursor.take(core.tree(what), STEP, &mut room).into_iter();
        let objects: Vec<ObjectChange> = objects
            .map(|object| ObjectChange {
                kind: ChangeKind::Created,
                subject: object.subject().clone(),
                uri: object.uri().clone(),
                object: Some(object.to_object()),
            })
            .collect();
        if !objects.is_empty() {
            reader.say(&changes(what, objects.iter()));
            return true;
        }
        reader.at = (what == Store::Policy).then(|| (Store::Endpoints, Cursor::everywhere()));
        if reader.at.is_none() {
            reader.say(&line(&json!({ "event": "complete" })));
        }
        reader.at.is_some()
    }

    /// Tells all readers what happened, as far as they have come to it.
    pub(super) fn tell(&mut self, event: &ElementEvent) {
        if self.readers.is_empty() {
            return;
        }
        let most = self.most;
        let slow = match event {
            ElementEvent::Changed { what, objects } => self.tell_changes(*what, objects),
            other => {
                let text = line(other);
                self.readers
                    .extract_if(|_, reader| !reader.takes(&text, most))
                    .collect::<Vec<_>>()
            }
        };
        for (_, reader) in slow {
            warn!(target: LOG, "a reader of the feed is too slow: {most} bytes wait for it, it is let go");
            let _ = reader
                .lines
                .send(Line::End("too slow: too much waits; connect again"));
        }
    }

    /// Returns those who are too slow.
    fn tell_changes(&mut self, what: Store, objects: &[ObjectChange]) -> Vec<(u64, Reader)> {
        let most = self.most;
        // One text for all who have come to everything.
        let shared: Vec<Bytes> = match self.readers.values().any(|reader| reader.at.is_none()) {
            true => objects
                .chunks(STEP)
                .map(|some| changes(what, some.iter()))
                .collect(),
            false => Vec::new(),
        };
        let takes = |reader: &mut Reader| {
            if reader.at.is_none() {
                return shared.iter().all(|text| reader.takes(text, most));
            }
            objects.chunks(STEP).all(|some| {
                let known = |change: &&ObjectChange| reader.knows(what, &change.uri);
                let known: Vec<_> = some.iter().filter(known).collect();
                known.is_empty() || reader.takes(&changes(what, known.into_iter()), most)
            })
        };
        self.readers.extract_if(|_, reader| !takes(reader)).collect()
    }

    /// A reader has left.
    pub(super) fn leave(&mut self, id: u64) {
        self.readers.remove(&id);
    }

    /// The element stops: nobody is told any more but that.
    pub(super) fn end(&mut self) {
        self.is_over = true;
        for (_, reader) in self.readers.drain() {
            let _ = reader.lines.send(Line::End("the element stops"));
        }
    }
}

impl Reader {
    /// Whether it has been told what was there.
    fn knows(&self, what: Store, uri: &Uri) -> bool {
        // Policy comes first, so a reader at the endpoints has all policy.
        self.at.as_ref().is_none_or(|(at, cursor)| match what == *at {
            true => !cursor.is_ahead(uri),
            false => what == Store::Policy,
        })
    }

    /// Puts a line in. False where too much waits already.
    fn takes(&mut self, text: &Bytes, most: usize) -> bool {
        let has_room = self.waiting.load(Ordering::Relaxed) + text.len() <= most;
        if has_room {
            self.say(text);
        }
        has_room
    }

    fn say(&mut self, text: &Bytes) {
        self.waiting.fetch_add(text.len(), Ordering::Relaxed);
        // One whose thread is over is about to be forgotten.
        let _ = self.lines.send(Line::Text(text.clone()));
    }
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
