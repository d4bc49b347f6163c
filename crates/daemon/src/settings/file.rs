//! Reads a settings file: a YAML map whose keys have a value or a list of values. Keys and values
//! come with their line and column.

use std::fs::File;
use std::path::Path;

use ssntp::payload::yaml::{Error, Node, Position};

use crate::input;

use super::Problem;

/// The longest file, in bytes: ten times as long as a file that sets and explains every key.
const MAX_LEN: usize = 128 << 10;

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
    /// True if there is no value: `key:`, `key: ~`, `key: null`.
    pub(super) is_nothing: bool,
}

const NESTED: &str =
    "settings files do not support a map or list within another: a key has a value or a list of values";

/// Reads the entries of a file. Adds a problem for everything that cannot be read.
pub(super) fn read(path: &Path, problems: &mut Vec<Problem>) -> Vec<Entry> {
    let file = File::open(path).map_err(|e| e.to_string());
    let read = match file.and_then(|file| input::bounded_bytes(file, MAX_LEN as u64)) {
        Ok(text) => entries(&text, problems).map_err(|error| Problem::of_yaml(&error)),
        Err(what) => Err(Problem { at: None, what }),
    };
    read.unwrap_or_else(|problem| {
        problems.push(problem);
        Vec::new()
    })
}

fn entries(text: &[u8], problems: &mut Vec<Problem>) -> Result<Vec<Entry>, Error> {
    let file = Node::parse(text, 1, MAX_LEN)?;
    let mut entries = Vec::new();
    for (key, at, value) in file.pairs()? {
        let list = value.list();
        let mut values = Vec::new();
        for node in list.unwrap_or(std::slice::from_ref(value)) {
            match node.text() {
                Ok(text) => values.push(Scalar {
                    text: text.to_owned(),
                    at: node.position(),
                    is_nothing: node.is_empty(),
                }),
                Err(_) => problems.push(Problem::at(node.position(), NESTED)),
            }
        }
        if !values.is_empty() || list.is_some() {
            entries.push(Entry {
                key: key.to_owned(),
                at,
                is_list: list.is_some(),
                values,
            });
        }
    }
    Ok(entries)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> Vec<String> {
        let mut problems = Vec::new();
        if let Err(error) = entries(text.as_bytes(), &mut problems) {
            problems.push(Problem::of_yaml(&error));
        }
        let line = |problem: Problem| format!("{}: {}", problem.at.unwrap(), problem.what);
        problems.into_iter().map(line).collect()
    }

    #[test]
    fn each_entry_has_its_line_and_column() {
        let mut problems = Vec::new();
        let text = b"# first\nlisten:\n- :1\n- ':2'\njson: true\nuuid:\n";
        let read = entries(text, &mut problems).unwrap();
        assert!(problems.is_empty(), "{problems:?}");
        let [listen, json, uuid] = &read[..] else {
            panic!("{read:?}")
        };
        assert_eq!((&*listen.key, listen.at.to_string()), ("listen", "2:1".into()));
        let addresses = listen.values.iter().map(|one| (&*one.text, one.at.line));
        assert_eq!(addresses.collect::<Vec<_>>(), [(":1", 3), (":2", 4)]);
        let on = &json.values[0];
        assert_eq!((&*on.text, on.at.to_string()), ("true", "5:7".into()));
        assert!(uuid.values[0].is_nothing);
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
        for (text, expected) in [
            (
                "a: {b: 1}\nc: [[1]]\n",
                vec![format!("1:4: {NESTED}"), format!("2:5: {NESTED}")],
            ),
            ("a: 1\nb: 2\na: 3\n", vec!["3:1: a: duplicate key".into()]),
            ("- a\n", vec!["1:1: expected a map, found a list".into()]),
        ] {
            assert_eq!(refused(text), expected, "{text:?}");
        }
        for (text, begin) in [
            ("a: 'b\n", "2:1: a: not YAML: "),
            ("a: 1\n---\nb: 2\n", "2:1: not YAML: a second document"),
            ("[a]: 1\n", "1:1: expected text as the key"),
            ("a: \u{fffd}\nb: *x\n", "2:4: b: not YAML: "),
        ] {
            let refused = refused(text);
            assert!(refused[0].starts_with(begin), "{text:?}: {refused:?}");
        }
    }
}
