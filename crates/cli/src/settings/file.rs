//! Reads a settings file: a YAML map whose keys have a value or a list of values. Other
//! YAML is refused. Keys and values come with their line and column.

use std::fs::File;
use std::path::Path;

use granit_parser::{Event, Parser, ScalarStyle, Span, StrInput};

use crate::input;

use super::{MOST_PROBLEMS, Position, Problem};

/// How long a file may be, in bytes: ten times as long as a file that sets and explains
/// every key.
const MAX_LEN: u64 = 128 << 10;

/// A key with its value, and the position of the key.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) key: String,
    pub(super) at: Position,
    pub(super) value: Value,
}

#[derive(Debug)]
pub(super) enum Value {
    One(Scalar),
    Several(Vec<Scalar>),
}

#[derive(Debug)]
pub(super) struct Scalar {
    pub(super) text: String,
    pub(super) at: Position,
    is_plain: bool,
}

impl Scalar {
    /// Whether the key has no value: `key:`, `key: ~`, `key: null`.
    pub(super) fn is_nothing(&self) -> bool {
        self.is_plain && is_nothing(&self.text)
    }
}

fn is_nothing(plain: &str) -> bool {
    matches!(plain, "" | "~" | "null" | "Null" | "NULL")
}

/// Reads the entries of a file. Adds a problem for everything that cannot be read.
pub(super) fn read(path: &Path, problems: &mut Vec<Problem>) -> Vec<Entry> {
    match text(path) {
        Ok(text) => entries(&text, problems),
        Err(what) => {
            problems.push(Problem { at: None, what });
            Vec::new()
        }
    }
}

fn text(path: &Path) -> Result<String, String> {
    let file = File::open(path).map_err(|e| e.to_string())?;
    let bytes = input::bounded_bytes(file, MAX_LEN)?;
    String::from_utf8(bytes).map_err(|e| {
        let before = &e.as_bytes()[..e.utf8_error().valid_up_to()];
        let lines = before.iter().filter(|byte| **byte == b'\n').count();
        format!("line {} is not UTF-8", lines + 1)
    })
}

fn entries(text: &str, problems: &mut Vec<Problem>) -> Vec<Entry> {
    let mut reader = Reader {
        parser: Parser::new_from_str(text),
        problems,
        entries: Vec::new(),
    };
    // `None` means that the file could not be read to its end. The reader has added a problem
    // for that, and the entries before it count.
    let _ = reader.file();
    reader.entries
}

struct Reader<'a, 'p> {
    parser: Parser<'a, StrInput<'a>>,
    problems: &'p mut Vec<Problem>,
    entries: Vec<Entry>,
}

impl<'a> Reader<'a, '_> {
    fn file(&mut self) -> Option<()> {
        let mut has_begun = false;
        loop {
            let (event, at) = self.next()?;
            match event {
                Event::StreamEnd => return Some(()),
                Event::DocumentStart(..) if has_begun => {
                    self.refuse(
                        at,
                        "a settings file must have one document only, but a second one begins here",
                    );
                    return None;
                }
                Event::DocumentStart(..) => has_begun = true,
                Event::MappingStart(_, anchor, ref tag) => {
                    self.refuse_anchor_or_tag(anchor, tag.is_some(), at);
                    self.map()?;
                }
                // An empty document.
                Event::Scalar(ref text, ScalarStyle::Plain, ..) if is_nothing(text) => {}
                Event::StreamStart | Event::DocumentEnd => {}
                event => {
                    self.refuse(at, "a map of keys and values is expected, as in `json: true`");
                    self.skip(&event)?;
                }
            }
        }
    }

    fn map(&mut self) -> Option<()> {
        loop {
            let (event, at) = self.next()?;
            let key = match event {
                Event::MappingEnd => return Some(()),
                Event::Scalar(text, _, anchor, tag) => {
                    self.refuse_anchor_or_tag(anchor, tag.is_some(), at);
                    Some(text.into_owned())
                }
                event => {
                    self.refuse(at, "a key must be text, not a map or a list");
                    self.skip(&event)?;
                    None
                }
            };
            let value = self.value()?;
            if let (Some(key), Some(value)) = (key, value) {
                let first = self.entries.iter().find(|entry| entry.key == key);
                match first.map(|entry| entry.at.line) {
                    Some(line) => {
                        self.refuse(at, &format!("{key} is given twice: line {line} sets it already"));
                    }
                    None => self.entries.push(Entry { key, at, value }),
                }
            }
        }
    }

    /// Reads the value of a key. Returns `None` if the file cannot be read any further, and
    /// `Some(None)` if the value was refused.
    fn value(&mut self) -> Option<Option<Value>> {
        let (event, at) = self.next()?;
        Some(match event {
            Event::SequenceStart(_, anchor, ref tag) => {
                let is_simple = self.refuse_anchor_or_tag(anchor, tag.is_some(), at);
                let mut scalars = Vec::new();
                loop {
                    match self.next()? {
                        (Event::SequenceEnd, _) => break,
                        (event, at) => scalars.extend(self.scalar(event, at)?),
                    }
                }
                is_simple.then_some(Value::Several(scalars))
            }
            event => self.scalar(event, at)?.map(Value::One),
        })
    }

    fn scalar(&mut self, event: Event<'a>, at: Position) -> Option<Option<Scalar>> {
        Some(match event {
            Event::Scalar(text, style, anchor, tag) => {
                let is_simple = self.refuse_anchor_or_tag(anchor, tag.is_some(), at);
                is_simple.then(|| Scalar {
                    text: text.into_owned(),
                    at,
                    is_plain: style == ScalarStyle::Plain,
                })
            }
            event => {
                let what = match event {
                    Event::Alias(_) => "settings files do not support aliases (`*name`)",
                    _ => {
                        "settings files do not support a map or list within another: a key has a value or a list of values"
                    }
                };
                self.refuse(at, what);
                self.skip(&event)?;
                None
            }
        })
    }

    /// Passes over the rest of the map or list that the event begins.
    fn skip(&mut self, event: &Event<'a>) -> Option<()> {
        let begins = |event: &Event<'_>| matches!(event, Event::SequenceStart(..) | Event::MappingStart(..));
        let mut depth = usize::from(begins(event));
        while depth > 0 {
            match self.next()?.0 {
                Event::SequenceEnd | Event::MappingEnd => depth -= 1,
                event => depth += usize::from(begins(&event)),
            }
        }
        Some(())
    }

    /// Adds a problem if a value has an anchor or a tag. Returns whether it has neither.
    fn refuse_anchor_or_tag(&mut self, anchor: usize, is_tagged: bool, at: Position) -> bool {
        if anchor != 0 {
            self.refuse(at, "settings files do not support anchors (`&name`)");
        } else if is_tagged {
            self.refuse(at, "settings files do not support tags (`!name`)");
        }
        anchor == 0 && !is_tagged
    }

    fn refuse(&mut self, at: Position, what: &str) {
        if self.problems.len() < MOST_PROBLEMS {
            self.problems.push(Problem::at(at, what));
        }
    }

    fn next(&mut self) -> Option<(Event<'a>, Position)> {
        loop {
            match self.parser.next_event()? {
                Ok((Event::Comment(..), _)) => {}
                Ok((event, span)) => return Some((event, position(span))),
                Err(error) => {
                    let (line, column) = (error.marker().line(), error.marker().col() + 1);
                    let what = format!("not YAML: {}", error.kind());
                    self.refuse(Position { line, column }, &what);
                    return None;
                }
            }
        }
    }
}

fn position(span: Span) -> Position {
    Position {
        line: span.start.line(),
        column: span.start.col() + 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> Vec<String> {
        let mut problems = Vec::new();
        entries(text, &mut problems);
        let said = |problem: Problem| format!("{}: {}", problem.at.unwrap(), problem.what);
        problems.into_iter().map(said).collect()
    }

    #[test]
    fn entries_know_where_they_stand() {
        let mut problems = Vec::new();
        let read = entries(
            "# first\nlisten:\n- :1\n- ':2'\njson: true\nuuid:\n",
            &mut problems,
        );
        assert!(problems.is_empty(), "{problems:?}");
        let [listen, json, uuid] = &read[..] else {
            panic!("{read:?}")
        };
        assert_eq!((&*listen.key, listen.at.to_string()), ("listen", "2:1".into()));
        let Value::Several(addresses) = &listen.value else {
            panic!("{listen:?}")
        };
        let addresses = addresses.iter().map(|one| (&*one.text, one.at.line));
        assert_eq!(addresses.collect::<Vec<_>>(), [(":1", 3), (":2", 4)]);
        let Value::One(on) = &json.value else {
            panic!("{json:?}")
        };
        assert_eq!((&*on.text, on.at.to_string()), ("true", "5:7".into()));
        assert!(matches!(&uuid.value, Value::One(nothing) if nothing.is_nothing()));
    }

    #[test]
    fn a_file_that_says_nothing_has_no_entries_and_no_problems() {
        for text in ["", "\n", "# a comment\n", "---\n", "---\n...\n", "{}\n"] {
            assert_eq!(refused(text), Vec::<String>::new(), "{text:?}");
        }
    }

    #[test]
    fn everything_that_is_no_plain_map_is_told_with_its_place() {
        let nested = "settings files do not support a map or list within another: a key has a value or a list of values";
        for (text, told) in [
            (
                "a: {b: 1}\nc: [[1]]\n",
                vec![format!("1:4: {nested}"), format!("2:5: {nested}")],
            ),
            (
                "a: &x 1\nb: *x\n",
                vec![
                    "1:7: settings files do not support anchors (`&name`)".into(),
                    "2:4: settings files do not support aliases (`*name`)".into(),
                ],
            ),
            (
                "a: !!str 1\n",
                vec!["1:10: settings files do not support tags (`!name`)".into()],
            ),
            (
                "a: 1\nb: 2\na: 3\n",
                vec!["3:1: a is given twice: line 1 sets it already".into()],
            ),
            (
                "- a\n",
                vec!["1:1: a map of keys and values is expected, as in `json: true`".into()],
            ),
            (
                "a: 1\n---\nb: 2\n",
                vec!["2:1: a settings file must have one document only, but a second one begins here".into()],
            ),
            (
                "[a]: 1\n",
                vec!["1:1: a key must be text, not a map or a list".into()],
            ),
        ] {
            assert_eq!(refused(text), told, "{text:?}");
        }
        assert!(
            refused("a: 'b\n")[0].contains(": not YAML: "),
            "{:?}",
            refused("a: 'b\n")
        );
    }
}
