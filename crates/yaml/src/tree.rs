//! A document as a tree of nodes with line and column, built from the parser's events within the
//! limits of this module.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use granit_parser::{Event, Marker, Parser, ScalarStyle, ScanError, Span, StrInput, Tag};
use serde::de::DeserializeOwned;

use crate::error::{Error, ErrorKind, Position, Segment};
use crate::{MAX_ALIASES, MAX_DEPTH, MAX_DOCUMENT_LEN, MAX_NODES};

/// A value and its position. The root of a tree is a whole document.
#[derive(Debug)]
pub struct Node<'a> {
    pub(crate) value: Value<'a>,
    pub(crate) position: Position,
}

impl<'a> Node<'a> {
    /// Reads a document of at most `limit` bytes that begins in line `line` of its payload.
    ///
    /// # Errors
    /// The document is not YAML, or exceeds a limit.
    pub fn parse(document: &'a [u8], line: usize, limit: usize) -> Result<Self, Error> {
        let start = Position { line, column: 1 };
        // Checked first, because the time of everything below grows with the length.
        if document.len() > limit {
            let len = document.len();
            return Err(Error::new(ErrorKind::TooLong { len, limit }).at(start));
        }
        let document = crate::without_mark(document);
        let text = std::str::from_utf8(document).map_err(|error| {
            let before = &document[..error.valid_up_to()];
            let lines = before.iter().filter(|b| **b == b'\n').count();
            let last = before.rsplit(|b| *b == b'\n').next().unwrap_or_default();
            Error::new(ErrorKind::Syntax("not UTF-8".to_owned())).at(Position {
                line: line + lines,
                column: String::from_utf8_lossy(last).chars().count() + 1,
            })
        })?;
        // The parser's own limits are one higher, so that the limits of this module apply first:
        // their errors have a path and a position.
        let options = granit_parser::options! {
            flow_nesting_limit: MAX_DEPTH + 1,
            block_nesting_limit: MAX_DEPTH + 1,
            emit_comments: false,
        };
        let mut builder = Builder {
            parser: Parser::new_from_str_with_options(text, options),
            first_line: line,
            most: Size::limit(limit),
            anchors: HashMap::new(),
            aliases: 0,
            spent: Size::default(),
            open: Vec::new(),
        };
        builder.document()
    }

    /// Reads the whole document, or the value of its key `root`, as a `T`. If the key is missing, its
    /// value is empty.
    ///
    /// # Errors
    /// The document does not match the type.
    pub fn decode<T: DeserializeOwned>(&self, root: Option<&str>) -> Result<T, Error> {
        let Some(key) = root else {
            return T::deserialize(self).map_err(|error| error.at(self.position));
        };
        // The error if this is not a map.
        self.entries()?;
        let empty = Node::empty(self.position);
        let node = self.get(key).unwrap_or(&empty);
        T::deserialize(node).map_err(|error| error.at(node.position).under(Segment::key(key)))
    }

    /// The value of a key, if this is a map that has it.
    pub fn get(&self, key: &str) -> Option<&Self> {
        let mut entries = self.entries().ok()?.iter();
        entries.find(|entry| entry.key == key).map(|entry| &entry.value)
    }

    /// Adds the position of the value at the error's path, or of the innermost map or list on the way
    /// to it.
    pub fn locate(&self, error: Error) -> Error {
        let mut node = self;
        for segment in error.segments() {
            let step = match (segment, node.value()) {
                (Segment::Key(key), _) => node.get(key),
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

    pub(crate) fn empty(position: Position) -> Self {
        Self {
            value: Value::Scalar(Cow::Borrowed(""), Style::Plain),
            position,
        }
    }

    /// The value behind the anchor or alias.
    pub(crate) fn value(&self) -> &Value<'a> {
        let mut value = &self.value;
        while let Value::Shared(shared) = value {
            value = shared;
        }
        value
    }

    /// The position of the value.
    pub fn position(&self) -> Position {
        self.position
    }

    /// The keys of a map, each with its position and its value; none of an empty value.
    ///
    /// # Errors
    /// This is a list or a text.
    pub fn pairs(&self) -> Result<impl Iterator<Item = (&str, Position, &Self)>, Error> {
        let entries = self.entries()?.iter();
        Ok(entries.map(|entry| (&*entry.key, entry.at, &entry.value)))
    }

    /// The elements, if this is a list.
    pub fn list(&self) -> Option<&[Self]> {
        match self.value() {
            Value::List(nodes) => Some(nodes),
            _ => None,
        }
    }

    /// True for an empty value: `key:`, `key: ~`, `key: null`.
    pub fn is_empty(&self) -> bool {
        match self.value() {
            Value::Scalar(text, Style::Plain) => matches!(&**text, "" | "~" | "null" | "Null" | "NULL"),
            _ => false,
        }
    }

    /// The entries of a map, or none of an empty value.
    pub(crate) fn entries(&self) -> Result<&[Entry<'a>], Error> {
        match self.value() {
            Value::Map(entries) => Ok(entries),
            _ if self.is_empty() => Ok(&[]),
            _ => Err(self.expected("a map")),
        }
    }
}

#[derive(Debug)]
pub(crate) enum Value<'a> {
    Scalar(Cow<'a, str>, Style),
    List(Vec<Node<'a>>),
    Map(Vec<Entry<'a>>),
    /// A value with an anchor, or an alias of it.
    Shared(Rc<Value<'a>>),
}

/// The notation of a scalar, as far as it determines the type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Style {
    /// Without quotes: may be a number, a boolean, or empty.
    Plain,
    /// With quotes or as a block: text.
    Text,
    /// Tagged `!!binary`: base 64, which no schema accepts.
    Binary,
}

#[derive(Debug)]
pub(crate) struct Entry<'a> {
    pub(crate) key: Cow<'a, str>,
    pub(crate) at: Position,
    pub(crate) value: Node<'a>,
}

/// The size of a document, or of a part of it, and the limit of the size. Not in `usize`, in which the
/// products of limits overflow on a 32-bit system.
#[derive(Clone, Copy, Debug, Default)]
struct Size {
    nodes: u64,
    text: u64,
}

impl Size {
    /// The limit for a document of at most `len` bytes.
    fn limit(len: usize) -> Self {
        let len = len as u64;
        Self {
            // Proportional to the limit of the length: with aliases, a short document could otherwise
            // take as much time as the longest one.
            nodes: len.saturating_mul(MAX_NODES as u64) / MAX_DOCUMENT_LEN as u64,
            // Without aliases, the text is never twice as long as the document: the worst escape
            // makes three bytes of two.
            text: len.saturating_mul(2),
        }
    }
}

/// A value with an anchor, and the cost of an alias of it.
struct Anchored<'a> {
    value: Rc<Value<'a>>,
    cost: Size,
    height: usize,
}

/// A list or map whose end the parser has not reached.
struct Open<'a> {
    value: Value<'a>,
    /// In a map, the key whose value comes next.
    key: Option<(Cow<'a, str>, Position)>,
    position: Position,
    anchor: usize,
    /// The cost of the document before this value.
    before: Size,
    /// The number of maps and lists inside each other in this value, without itself.
    height: usize,
}

struct Builder<'a> {
    parser: Parser<'a, StrInput<'a>>,
    first_line: usize,
    most: Size,
    anchors: HashMap<usize, Anchored<'a>>,
    aliases: usize,
    spent: Size,
    /// The lists and maps around the next value, outermost first. Not the stack of the thread, because
    /// the readers of sessions have a small one.
    open: Vec<Open<'a>>,
}

impl<'a> Builder<'a> {
    /// Reads the only document.
    fn document(&mut self) -> Result<Node<'a>, Error> {
        let root = self.root();
        root.map_err(|error| {
            let open = self.open.iter().rev();
            open.fold(error, |error, open| match (&open.value, &open.key) {
                (Value::List(nodes), _) => error.under(Segment::Index(nodes.len())),
                (_, Some((key, _))) => error.under(Segment::key(key)),
                _ => error,
            })
        })
    }

    /// As [`document`](Self::document); the lists and maps around an error are still in `open`.
    fn root(&mut self) -> Result<Node<'a>, Error> {
        let mut root = None;
        loop {
            let (event, span) = self.next()?;
            let position = self.position(&span.start);
            let before = self.spent;
            let (node, height) = match event {
                Event::StreamEnd => break,
                Event::StreamStart | Event::DocumentEnd => continue,
                Event::DocumentStart(..) if root.is_none() => continue,
                Event::DocumentStart(..) => {
                    let what = "a second document in a payload that may have only one";
                    return Err(syntax(what).at(position));
                }
                Event::SequenceStart(_, anchor, _) => {
                    self.enter(Value::List(Vec::new()), anchor, position)?;
                    continue;
                }
                Event::MappingStart(_, anchor, _) => {
                    self.enter(Value::Map(Vec::new()), anchor, position)?;
                    continue;
                }
                Event::SequenceEnd | Event::MappingEnd => self.leave(position)?,
                Event::Scalar(text, style, anchor, tag) => {
                    self.spend(1, text.len() as u64, position)?;
                    let value = Value::Scalar(text, scalar_style(style, tag.as_deref()));
                    (self.node(value, position, anchor, before, 0), 0)
                }
                Event::Alias(anchor) => self.alias(anchor, position)?,
                _ => return Err(syntax("a value is missing").at(position)),
            };
            match self.open.last_mut() {
                None => root = Some(node),
                Some(open) => {
                    open.height = open.height.max(height);
                    open.add(node)?;
                }
            }
        }
        let start = Position {
            line: self.first_line,
            column: 1,
        };
        Ok(root.unwrap_or(Node::empty(start)))
    }

    /// Begins a list or a map.
    fn enter(&mut self, value: Value<'a>, anchor: usize, position: Position) -> Result<(), Error> {
        let before = self.spent;
        self.spend(1, 0, position)?;
        self.check_depth(1, position)?;
        self.open.push(Open {
            value,
            key: None,
            position,
            anchor,
            before,
            height: 0,
        });
        Ok(())
    }

    /// Ends the innermost list or map, which is the next value, and its height.
    fn leave(&mut self, end: Position) -> Result<(Node<'a>, usize), Error> {
        if let Some(Value::Map(entries)) = self.open.last().map(|open| &open.value) {
            refuse_duplicates(entries)?;
        }
        // The parser ends only what it has begun.
        let open = self.open.pop();
        let open = open.ok_or_else(|| syntax("the end of a list or map that did not begin").at(end))?;
        let height = open.height + 1;
        let node = self.node(open.value, open.position, open.anchor, open.before, height);
        Ok((node, height))
    }

    /// The node of a complete value, which aliases may repeat if it has an anchor.
    fn node(
        &mut self,
        value: Value<'a>,
        position: Position,
        anchor: usize,
        before: Size,
        height: usize,
    ) -> Node<'a> {
        if anchor == 0 {
            return Node { value, position };
        }
        // An alias shares the value and takes no memory. It counts all the same, because the
        // reader of the tree visits the value once more.
        let value = Rc::new(value);
        let anchored = Anchored {
            value: Rc::clone(&value),
            cost: Size {
                nodes: self.spent.nodes.saturating_sub(before.nodes),
                text: self.spent.text.saturating_sub(before.text),
            },
            height,
        };
        self.anchors.insert(anchor, anchored);
        let value = Value::Shared(value);
        Node { value, position }
    }

    /// The value of an alias, and its height. It counts as if it were written out, so that aliases never
    /// make a document larger than its limits.
    fn alias(&mut self, anchor: usize, position: Position) -> Result<(Node<'a>, usize), Error> {
        self.aliases += 1;
        if self.aliases > MAX_ALIASES {
            return Err(too_many("aliases", MAX_ALIASES as u64).at(position));
        }
        // An anchor is added after its value was read, so no value can contain itself.
        let Some(anchored) = self.anchors.get(&anchor) else {
            return Err(syntax("an alias inside its own anchor").at(position));
        };
        let (cost, height) = (anchored.cost, anchored.height);
        let value = Value::Shared(Rc::clone(&anchored.value));
        self.spend(cost.nodes, cost.text, position)?;
        self.check_depth(height, position)?;
        Ok((Node { value, position }, height))
    }

    fn spend(&mut self, nodes: u64, text: u64, position: Position) -> Result<(), Error> {
        self.spent.nodes = self.spent.nodes.saturating_add(nodes);
        self.spent.text = self.spent.text.saturating_add(text);
        if self.spent.nodes > self.most.nodes {
            return Err(too_many("keys and values", self.most.nodes).at(position));
        }
        if self.spent.text > self.most.text {
            let what = "bytes of text, with what aliases stand for";
            return Err(too_many(what, self.most.text).at(position));
        }
        Ok(())
    }

    /// Checks the depth of a value with `height` maps and lists inside each other.
    fn check_depth(&self, height: usize, position: Position) -> Result<(), Error> {
        if self.open.len() + height > MAX_DEPTH {
            Err(too_many("maps and lists inside each other", MAX_DEPTH as u64).at(position))
        } else {
            Ok(())
        }
    }

    fn next(&mut self) -> Result<(Event<'a>, Span), Error> {
        match self.parser.next_event() {
            Some(Ok(found)) => Ok(found),
            Some(Err(error)) => Err(self.scan_error(&error)),
            None => Err(syntax("the document ends too early")),
        }
    }

    fn scan_error(&self, error: &ScanError) -> Error {
        let found = match error.kind() {
            granit_parser::ErrorKind::RecursionLimitExceeded => {
                too_many("maps and lists inside each other", MAX_DEPTH as u64)
            }
            kind => syntax(&kind.to_string()),
        };
        found.at(self.position(error.marker()))
    }

    fn position(&self, mark: &Marker) -> Position {
        Position {
            line: mark.line() + self.first_line - 1,
            column: mark.col() + 1,
        }
    }
}

impl<'a> Open<'a> {
    /// Adds the next element, key or value.
    fn add(&mut self, node: Node<'a>) -> Result<(), Error> {
        match (&mut self.value, self.key.take()) {
            (Value::Map(entries), Some((key, at))) => entries.push(Entry { key, at, value: node }),
            (Value::List(nodes), _) => nodes.push(node),
            // YAML allows lists and maps as keys, but no schema has them.
            _ => match node.value() {
                Value::Scalar(text, Style::Plain | Style::Text) => {
                    self.key = Some((text.clone(), node.position));
                }
                _ => return Err(node.expected("text as the key")),
            },
        }
        Ok(())
    }
}

fn scalar_style(style: ScalarStyle, tag: Option<&Tag>) -> Style {
    // Other tags are ignored, as unknown keys are.
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
    // Readers differ in which of two values they use: a scheduler could check one of them, and an
    // agent could carry out the other.
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

fn too_many(what: &'static str, limit: u64) -> Error {
    Error::new(ErrorKind::TooMany { what, limit })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads a list of so many numbers, in a document that may have `limit` bytes.
    fn list(numbers: usize, limit: usize) -> Result<(), Error> {
        let text = "- 1\n".repeat(numbers);
        Node::parse(text.as_bytes(), 1, limit).map(drop)
    }

    #[test]
    fn a_byte_order_mark_at_the_beginning_is_skipped() {
        let keys = |text: &str| {
            let document = crate::documents(text.as_bytes()).next().unwrap();
            let read: std::collections::BTreeMap<String, u8> = crate::decode(document.bytes).unwrap();
            read.into_keys().collect::<Vec<_>>()
        };
        for text in [
            "\u{feff}a: 1\n",
            "\u{feff}---\na: 1\n",
            "\u{feff}# c\n---\na: 1\n",
        ] {
            assert_eq!(keys(text), ["a"], "{text:?}");
        }
    }

    #[test]
    fn a_number_that_yaml_1_1_reads_as_octal_is_refused_if_any_type_is_accepted() {
        let read = |text: &str| crate::decode::<serde_json::Value>(text.as_bytes());
        assert!(read("data: 010").unwrap_err().to_string().contains("octal"));
        assert_eq!(read("'010'").unwrap(), "010");
    }

    #[test]
    fn a_document_may_have_as_many_keys_and_values_as_its_length_allows() {
        // The list itself counts as well.
        list(MAX_NODES - 1, MAX_DOCUMENT_LEN).unwrap();
        let error = list(MAX_NODES, MAX_DOCUMENT_LEN).unwrap_err().to_string();
        assert!(
            error.starts_with("[249999]: more than 250000 keys and values"),
            "{error}"
        );
        list(15_624, MAX_DOCUMENT_LEN / 16).unwrap();
        assert!(list(15_625, MAX_DOCUMENT_LEN / 16).is_err());
        // A limit of the length that a user's own file has.
        list(1_000, usize::MAX).unwrap();
    }
}
