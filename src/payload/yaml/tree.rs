//! A document as a tree whose every node knows its line and column, built
//! from the parser's events under the limits of the module.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use granit_parser::{Event, Parser, ScalarStyle, ScanError, Span, StrInput, Tag};
use serde::de::DeserializeOwned;

use super::error::{Position, Segment};
use super::{Error, ErrorKind, MAX_ALIASES, MAX_DEPTH, MAX_DOCUMENT_LEN, MAX_NODES};

/// A whole document.
#[derive(Debug)]
pub(crate) struct Tree<'a> {
    root: Node<'a>,
}

impl<'a> Tree<'a> {
    /// Reads a document of at most `limit` bytes that begins in line `line` of its payload.
    pub(crate) fn parse(document: &'a [u8], line: usize, limit: usize) -> Result<Self, Error> {
        let start = Position { line, column: 1 };
        // Checked first, because everything below takes time by the length.
        if document.len() > limit {
            let len = document.len();
            return Err(Error::new(ErrorKind::TooLong { len, limit }).at(start));
        }
        let text = std::str::from_utf8(document).map_err(|error| {
            let before = &document[..error.valid_up_to()];
            let lines = before.iter().filter(|b| **b == b'\n').count();
            let last = before.rsplit(|b| *b == b'\n').next().unwrap_or_default();
            Error::new(ErrorKind::Syntax("not UTF-8".to_owned())).at(Position {
                line: line + lines,
                column: String::from_utf8_lossy(last).chars().count() + 1,
            })
        })?;
        // The parser's own limits are one higher. So the limits of this module strike first,
        // and they know path and position.
        let options = granit_parser::options! {
            flow_nesting_limit: MAX_DEPTH + 1,
            block_nesting_limit: MAX_DEPTH + 1,
        };
        let mut builder = Builder {
            parser: Parser::new_from_str_with_options(text, options),
            first_line: line,
            limit,
            anchors: HashMap::new(),
            aliases: 0,
            spent: Spent::default(),
            deepest: 0,
        };
        Ok(Self {
            root: builder.document()?,
        })
    }

    /// Reads the whole document, or what stands under its key `root`, as a
    /// `T`. A document without that key has an empty one.
    pub(crate) fn decode<T: DeserializeOwned>(&self, root: Option<&str>) -> Result<T, Error> {
        let Some(key) = root else {
            return T::deserialize(&self.root).map_err(|error| error.at(self.root.position));
        };
        let entries = self.root.entries()?;
        let empty = Node::empty(self.root.position);
        let node = entries
            .iter()
            .find(|entry| entry.key == key)
            .map_or(&empty, |entry| &entry.value);
        T::deserialize(node).map_err(|error| error.at(node.position).under(Segment::key(key)))
    }

    /// Whether the document is a map with that key.
    pub(crate) fn has_key(&self, key: &str) -> bool {
        self.root
            .entries()
            .is_ok_and(|entries| entries.iter().any(|entry| entry.key == key))
    }

    /// The error with the position of the value at its path, or of the
    /// innermost map or list on the way to it.
    pub(crate) fn locate(&self, error: Error) -> Error {
        let mut node = &self.root;
        for segment in error.segments() {
            let step = match (segment, node.value()) {
                (Segment::Key(key), Value::Map(entries)) => entries
                    .iter()
                    .find(|entry| entry.key == *key)
                    .map(|entry| &entry.value),
                (Segment::Index(index), Value::List(nodes)) => nodes.get(*index),
                _ => None,
            };
            match step {
                Some(step) => node = step,
                None => break,
            }
        }
        error.at(node.position)
    }
}

/// A value and where it stands.
#[derive(Debug)]
pub(super) struct Node<'a> {
    pub(super) value: Value<'a>,
    pub(super) position: Position,
}

#[derive(Debug)]
pub(super) enum Value<'a> {
    Scalar(Cow<'a, str>, Style),
    List(Vec<Node<'a>>),
    Map(Vec<Entry<'a>>),
    /// A value with an anchor, or an alias of it.
    Shared(Rc<Value<'a>>),
}

/// How a scalar was written, as far as it matters to its type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Style {
    /// Without quotes: may be a number, a boolean or nothing.
    Plain,
    /// With quotes or as a block: text.
    Text,
    /// Tagged `!!binary`: base 64, which no schema takes.
    Binary,
}

#[derive(Debug)]
pub(super) struct Entry<'a> {
    pub(super) key: Cow<'a, str>,
    pub(super) at: Position,
    pub(super) value: Node<'a>,
}

impl<'a> Node<'a> {
    pub(super) fn empty(position: Position) -> Self {
        Self {
            value: Value::Scalar(Cow::Borrowed(""), Style::Plain),
            position,
        }
    }

    /// The value behind the anchor or alias.
    pub(super) fn value(&self) -> &Value<'a> {
        let mut value = &self.value;
        while let Value::Shared(shared) = value {
            value = shared;
        }
        value
    }

    /// Whether nothing stands there: `key:`, `key: ~`, `key: null`.
    pub(super) fn is_empty(&self) -> bool {
        match self.value() {
            Value::Scalar(text, Style::Plain) => matches!(&**text, "" | "~" | "null" | "Null" | "NULL"),
            _ => false,
        }
    }

    /// The entries of a map; none where nothing stands.
    pub(super) fn entries(&self) -> Result<&[Entry<'a>], Error> {
        match self.value() {
            Value::Map(entries) => Ok(entries),
            _ if self.is_empty() => Ok(&[]),
            _ => Err(self.expected("a map")),
        }
    }
}

/// What a document has used of its limits.
#[derive(Clone, Copy, Debug, Default)]
struct Spent {
    nodes: usize,
    text: usize,
}

/// What an alias of an anchor stands for.
struct Anchored<'a> {
    value: Rc<Value<'a>>,
    cost: Spent,
    height: usize,
}

struct Builder<'a> {
    parser: Parser<'a, StrInput<'a>>,
    first_line: usize,
    /// The longest document, in bytes.
    limit: usize,
    anchors: HashMap<usize, Anchored<'a>>,
    aliases: usize,
    spent: Spent,
    deepest: usize,
}

impl<'a> Builder<'a> {
    /// The only document, and nothing after it.
    fn document(&mut self) -> Result<Node<'a>, Error> {
        let mut root = None;
        loop {
            let (event, span) = self.next()?;
            match event {
                Event::StreamEnd => break,
                Event::StreamStart | Event::DocumentEnd => {}
                Event::DocumentStart(..) if root.is_none() => {}
                Event::DocumentStart(..) => {
                    let what = "a second document in a payload that has one";
                    return Err(Error::new(ErrorKind::Syntax(what.to_owned())).at(self.position(span)));
                }
                event => root = Some(self.node(event, span, 0)?),
            }
        }
        let start = Position {
            line: self.first_line,
            column: 1,
        };
        Ok(root.unwrap_or(Node::empty(start)))
    }

    /// The node that begins with `event`, inside `depth` maps and lists.
    fn node(&mut self, event: Event<'a>, span: Span, depth: usize) -> Result<Node<'a>, Error> {
        let position = self.position(span);
        let before = self.spent;
        let deepest = std::mem::replace(&mut self.deepest, depth);
        let (value, anchor) = match event {
            Event::Scalar(text, style, anchor, tag) => {
                self.spend(1, text.len(), position)?;
                (Value::Scalar(text, scalar_style(style, tag.as_deref())), anchor)
            }
            Event::SequenceStart(_, anchor, _) => {
                self.spend(1, 0, position)?;
                self.enter(depth + 1, position)?;
                (Value::List(self.list(depth + 1)?), anchor)
            }
            Event::MappingStart(_, anchor, _) => {
                self.spend(1, 0, position)?;
                self.enter(depth + 1, position)?;
                (Value::Map(self.map(depth + 1)?), anchor)
            }
            Event::Alias(anchor) => (self.alias(anchor, depth, position)?, 0),
            _ => return Err(syntax("a value is missing").at(position)),
        };
        let value = if anchor == 0 {
            value
        } else {
            // An alias shares the value. It costs no memory, and is charged all the same,
            // because the reader of the tree visits the value once more.
            let value = Rc::new(value);
            let anchored = Anchored {
                value: Rc::clone(&value),
                cost: Spent {
                    nodes: self.spent.nodes - before.nodes,
                    text: self.spent.text - before.text,
                },
                height: self.deepest - depth,
            };
            self.anchors.insert(anchor, anchored);
            Value::Shared(value)
        };
        self.deepest = self.deepest.max(deepest);
        Ok(Node { value, position })
    }

    fn list(&mut self, depth: usize) -> Result<Vec<Node<'a>>, Error> {
        let mut nodes = Vec::new();
        loop {
            let within = |error: Error| error.under(Segment::Index(nodes.len()));
            let node = match self.next().map_err(within)? {
                (Event::SequenceEnd, _) => return Ok(nodes),
                (event, span) => self.node(event, span, depth).map_err(within)?,
            };
            nodes.push(node);
        }
    }

    fn map(&mut self, depth: usize) -> Result<Vec<Entry<'a>>, Error> {
        let mut entries = Vec::new();
        loop {
            let key = match self.next()? {
                (Event::MappingEnd, _) => break,
                (event, span) => self.node(event, span, depth)?,
            };
            let at = key.position;
            // YAML allows lists and maps as keys; no schema has them, and serde could not name
            // them.
            let Value::Scalar(text, Style::Plain | Style::Text) = key.value() else {
                return Err(key.expected("text as the key"));
            };
            let key = text.clone();
            let within = |error: Error| error.under(Segment::key(&key));
            let (event, span) = self.next().map_err(within)?;
            let value = self.node(event, span, depth).map_err(within)?;
            entries.push(Entry { key, at, value });
        }
        refuse_duplicates(&entries)?;
        Ok(entries)
    }

    /// What the alias stands for, charged as if it were written out, so that
    /// aliases never make a document larger than its limits.
    fn alias(&mut self, anchor: usize, depth: usize, position: Position) -> Result<Value<'a>, Error> {
        self.aliases += 1;
        if self.aliases > MAX_ALIASES {
            return Err(too_many("aliases", MAX_ALIASES).at(position));
        }
        // An anchor is entered after its value was read. So no value can contain itself.
        let Some(anchored) = self.anchors.get(&anchor) else {
            return Err(syntax("an alias inside its own anchor").at(position));
        };
        let (cost, height) = (anchored.cost, anchored.height);
        let value = Value::Shared(Rc::clone(&anchored.value));
        self.spend(cost.nodes, cost.text, position)?;
        self.enter(depth + height, position)?;
        Ok(value)
    }

    fn spend(&mut self, nodes: usize, text: usize, position: Position) -> Result<(), Error> {
        self.spent.nodes += nodes;
        self.spent.text += text;
        // Less of a shorter limit: by aliases, a short document could take as long to read as
        // the longest one.
        let most = MAX_NODES * self.limit / MAX_DOCUMENT_LEN;
        if self.spent.nodes > most {
            return Err(too_many("keys and values", most).at(position));
        }
        // Without aliases it never comes to twice the document: the worst
        // escape makes three bytes of two.
        let limit = 2 * self.limit;
        if self.spent.text > limit {
            return Err(too_many("bytes of text, with what aliases stand for", limit).at(position));
        }
        Ok(())
    }

    fn enter(&mut self, depth: usize, position: Position) -> Result<(), Error> {
        self.deepest = self.deepest.max(depth);
        if depth > MAX_DEPTH {
            return Err(too_many("maps and lists inside each other", MAX_DEPTH).at(position));
        }
        Ok(())
    }

    /// The next event that matters.
    fn next(&mut self) -> Result<(Event<'a>, Span), Error> {
        loop {
            match self.parser.next_event() {
                Some(Ok((Event::Comment(..), _))) => {}
                Some(Ok(found)) => return Ok(found),
                Some(Err(error)) => return Err(self.scan_error(&error)),
                None => return Err(syntax("the document ends too early")),
            }
        }
    }

    fn scan_error(&self, error: &ScanError) -> Error {
        let mark = error.marker();
        let found = match error.kind() {
            granit_parser::ErrorKind::RecursionLimitExceeded => {
                too_many("maps and lists inside each other", MAX_DEPTH)
            }
            kind => syntax(&kind.to_string()),
        };
        found.at(Position {
            line: mark.line() + self.first_line - 1,
            column: mark.col() + 1,
        })
    }

    fn position(&self, span: Span) -> Position {
        Position {
            line: span.start.line() + self.first_line - 1,
            column: span.start.col() + 1,
        }
    }
}

fn scalar_style(style: ScalarStyle, tag: Option<&Tag>) -> Style {
    // Other tags are ignored, as unknown keys are: they say nothing to a schema.
    if let Some(tag) = tag {
        match tag.core_suffix() {
            Some("str") => return Style::Text,
            Some("null" | "bool" | "int" | "float") => return Style::Plain,
            _ if tag.suffix() == "binary" => return Style::Binary,
            _ => {}
        }
    }
    match style {
        ScalarStyle::Plain => Style::Plain,
        _ => Style::Text,
    }
}

fn refuse_duplicates(entries: &[Entry<'_>]) -> Result<(), Error> {
    // Readers differ in which of two values counts. A scheduler could check the one, and an
    // agent obey the other.
    let mut seen = HashSet::with_capacity(entries.len());
    match entries.iter().find(|entry| !seen.insert(&*entry.key)) {
        Some(entry) => Err(Error::new(ErrorKind::DuplicateKey)
            .at(entry.at)
            .under(Segment::key(&entry.key))),
        None => Ok(()),
    }
}

fn syntax(what: &str) -> Error {
    Error::new(ErrorKind::Syntax(what.to_owned()))
}

fn too_many(what: &'static str, limit: usize) -> Error {
    Error::new(ErrorKind::TooMany { what, limit })
}
