//! Reads a settings file: a YAML map whose keys have a value or a list of values. Other
//! YAML is refused. Keys and values come with their line and column.

use std::fs::File;
use std::path::Path;

use granit_parser::{Event, Marker, Parser, ScalarStyle, StrInput};

use crate::input;

use super::{MOST_PROBLEMS, Position, Problem};

/// The longest file, in bytes: ten times as long as a file that sets and explains every key.
const MAX_LEN: u64 = 128 << 10;

/// A key with its values, and the position of the key.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) key: String,
    pub(super) at: Position,
    /// True if the values are a list in the file. If not, there is one value.
    pub(super) is_list: bool,
    pub(super) values: Vec<Scalar>,
}

#[derive(Debug)]
pub(super) struct Scalar {
    pub(super) text: String,
    pub(super) at: Position,
    is_plain: bool,
}

impl Scalar {
    /// True if there is no value: `key:`, `key: ~`, `key: null`.
    pub(super) fn is_nothing(&self) -> bool {
        self.is_plain && is_nothing(&self.text)
    }
}

fn is_nothing(plain: &str) -> bool {
    matches!(plain, "" | "~" | "null" | "Null" | "NULL")
}

const KEY: &str = "a key must be text, not a map or a list";
const NESTED: &str =
    "settings files do not support a map or list within another: a key has a value or a list of values";

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
    let text = text.trim_start_matches('\u{feff}');
    let mut reader = Reader {
        parser: Parser::new_from_str(text),
        problems,
        entries: Vec::new(),
    };
    // The entries before an error of YAML are kept, so that their problems are reported as well.
    if let Err(problem) = reader.file() {
        reader.problems.push(problem);
    }
    reader.entries
}

/// Reads a file event by event. Its methods fail if the file cannot be read any further. A
/// problem that concerns one value only is noted instead, and the value left out.
struct Reader<'a, 'p> {
    parser: Parser<'a, StrInput<'a>>,
    problems: &'p mut Vec<Problem>,
    entries: Vec<Entry>,
}

impl<'a> Reader<'a, '_> {
    fn file(&mut self) -> Result<(), Problem> {
        let mut has_begun = false;
        loop {
            let (event, at) = self.next()?;
            match event {
                Event::StreamEnd => return Ok(()),
                Event::DocumentStart(..) if has_begun => {
                    let what = "a settings file must have one document only, but a second one begins here";
                    return Err(Problem::at(at, what));
                }
                Event::DocumentStart(..) => has_begun = true,
                Event::MappingStart(_, anchor, ref tag) => {
                    self.is_simple(anchor, tag.is_some(), at);
                    while self.entry()? {}
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

    /// Reads a key and its values. Returns false at the end of the map.
    fn entry(&mut self) -> Result<bool, Problem> {
        let key = match self.next()? {
            (Event::MappingEnd, _) => return Ok(false),
            (event, at) => self.scalar(event, at, KEY)?,
        };
        let (event, at) = self.next()?;
        let mut values = Vec::new();
        let (is_list, is_simple) = match event {
            Event::SequenceStart(_, anchor, ref tag) => {
                let is_simple = self.is_simple(anchor, tag.is_some(), at);
                loop {
                    match self.next()? {
                        (Event::SequenceEnd, _) => break (true, is_simple),
                        (event, at) => values.extend(self.scalar(event, at, NESTED)?),
                    }
                }
            }
            event => {
                values.extend(self.scalar(event, at, NESTED)?);
                (false, !values.is_empty())
            }
        };
        if let Some(Scalar { text: key, at, .. }) = key.filter(|_| is_simple) {
            match self.entries.iter().find(|entry| entry.key == key) {
                Some(first) => {
                    let what = format!("{key} is given twice: line {} sets it already", first.at.line);
                    self.refuse(at, &what);
                }
                None => self.entries.push(Entry {
                    key,
                    at,
                    is_list,
                    values,
                }),
            }
        }
        Ok(true)
    }

    /// The scalar that the event is. `otherwise` is the problem if it begins a map or a list.
    fn scalar(&mut self, event: Event<'a>, at: Position, otherwise: &str) -> Result<Option<Scalar>, Problem> {
        Ok(match event {
            Event::Scalar(text, style, anchor, tag) => {
                self.is_simple(anchor, tag.is_some(), at).then(|| Scalar {
                    text: text.into_owned(),
                    at,
                    is_plain: style == ScalarStyle::Plain,
                })
            }
            Event::Alias(_) => {
                self.refuse(at, "settings files do not support aliases (`*name`)");
                None
            }
            event => {
                self.refuse(at, otherwise);
                self.skip(&event)?;
                None
            }
        })
    }

    /// Passes over the rest of the map or list that the event begins. It counts instead of calling
    /// itself, so that a file of brackets alone does not exhaust the stack.
    fn skip(&mut self, event: &Event<'a>) -> Result<(), Problem> {
        let begins = |event: &Event<'_>| matches!(event, Event::SequenceStart(..) | Event::MappingStart(..));
        let mut depth = usize::from(begins(event));
        while depth > 0 {
            match self.next()?.0 {
                Event::SequenceEnd | Event::MappingEnd => depth -= 1,
                event => depth += usize::from(begins(&event)),
            }
        }
        Ok(())
    }

    /// True if a value has neither an anchor nor a tag. If it has one, that is a problem.
    fn is_simple(&mut self, anchor: usize, is_tagged: bool, at: Position) -> bool {
        if anchor != 0 {
            self.refuse(at, "settings files do not support anchors (`&name`)");
        } else if is_tagged {
            self.refuse(at, "settings files do not support tags (`!name`)");
        }
        anchor == 0 && !is_tagged
    }

    fn refuse(&mut self, at: Position, what: &str) {
        // A file with more problems is not a settings file.
        if self.problems.len() < MOST_PROBLEMS {
            self.problems.push(Problem::at(at, what));
        }
    }

    /// The next event that is not a comment.
    fn next(&mut self) -> Result<(Event<'a>, Position), Problem> {
        loop {
            match self.parser.next_event() {
                Some(Ok((Event::Comment(..), _))) => {}
                Some(Ok((event, span))) => return Ok((event, position(&span.start))),
                Some(Err(error)) => {
                    let what = format!("not YAML: {}", error.kind());
                    return Err(Problem::at(position(error.marker()), what));
                }
                None => {
                    let what = "not YAML: the file ends too early".to_owned();
                    return Err(Problem { at: None, what });
                }
            }
        }
    }
}

fn position(marker: &Marker) -> Position {
    Position {
        line: marker.line(),
        // The parser counts lines from 1, but columns from 0.
        column: marker.col() + 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> Vec<String> {
        let mut problems = Vec::new();
        entries(text, &mut problems);
        let line = |problem: Problem| format!("{}: {}", problem.at.unwrap(), problem.what);
        problems.into_iter().map(line).collect()
    }

    #[test]
    fn each_entry_has_its_line_and_column() {
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
        let addresses = listen.values.iter().map(|one| (&*one.text, one.at.line));
        assert_eq!(addresses.collect::<Vec<_>>(), [(":1", 3), (":2", 4)]);
        let on = &json.values[0];
        assert_eq!((&*on.text, on.at.to_string()), ("true", "5:7".into()));
        assert!(uuid.values[0].is_nothing());
        assert_eq!(
            [listen, json, uuid].map(|entry| entry.is_list),
            [true, false, false]
        );
    }

    #[test]
    fn an_empty_file_has_no_entries_and_no_problems() {
        for text in [
            "",
            "\n",
            "\u{feff}",
            "\u{feff}# a comment\n",
            "# a comment\n",
            "---\n",
            "---\n...\n",
            "{}\n",
        ] {
            assert_eq!(refused(text), Vec::<String>::new(), "{text:?}");
        }
    }

    #[test]
    fn anything_but_a_plain_map_is_refused_with_its_position() {
        let nested = "settings files do not support a map or list within another: a key has a value or a list of values";
        for (text, expected) in [
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
            assert_eq!(refused(text), expected, "{text:?}");
        }
        assert!(
            refused("a: 'b\n")[0].contains(": not YAML: "),
            "{:?}",
            refused("a: 'b\n")
        );
    }
}
