//! The text of a definition file: statements with values in brackets and
//! statements in braces, and comments behind `#`.

use super::super::FileError;

/// How deep statements may stand in others; the deepest are five.
const DEPTH: usize = 32;

/// One statement.
#[derive(Debug)]
pub(super) struct Statement {
    pub(super) kind: String,
    pub(super) line: usize,
    /// The values, with their names where they have one.
    values: Vec<(Option<String>, String)>,
    pub(super) inner: Vec<Statement>,
}

impl Statement {
    /// The value of this name.
    pub(super) fn value(&self, name: &str) -> Option<&str> {
        let mut values = self.values.iter();
        let found = values.find(|(known, _)| known.as_deref() == Some(name));
        found.map(|(_, value)| value.as_str())
    }

    /// What the statement is about: its first value, or that of `name`.
    pub(super) fn name(&self) -> Option<&str> {
        let first = || self.values.iter().find(|(name, _)| name.is_none());
        self.value("name")
            .or_else(|| first().map(|(_, value)| value.as_str()))
    }

    /// Whether a value without a name stands there.
    pub(super) fn is(&self, flag: &str) -> bool {
        self.values
            .iter()
            .any(|(name, value)| name.is_none() && value == flag)
    }

    /// The statements of a kind within this one.
    pub(super) fn all<'a>(&'a self, kind: &'a str) -> impl Iterator<Item = &'a Self> {
        self.inner.iter().filter(move |inner| inner.kind == kind)
    }
}

/// Reads a file.
pub(super) fn read(file: &str, text: &str) -> Result<Vec<Statement>, FileError> {
    let mut reader = Reader {
        file,
        rest: text.trim_start_matches('\u{feff}'),
        line: 1,
    };
    reader.statements(0)
}

struct Reader<'a> {
    file: &'a str,
    rest: &'a str,
    line: usize,
}

impl Reader<'_> {
    fn statements(&mut self, depth: usize) -> Result<Vec<Statement>, FileError> {
        if depth > DEPTH {
            return Err(self.wrong("too many braces are open"));
        }
        let mut statements = Vec::new();
        loop {
            match self.next() {
                None if depth == 0 => return Ok(statements),
                None => return Err(self.wrong("a brace is not closed")),
                Some('}') if depth > 0 => {
                    self.skip('}');
                    return Ok(statements);
                }
                Some(';' | ',') => self.skip_one(),
                Some(mark @ ('}' | '{' | '[' | ']')) => {
                    return Err(self.wrong(&format!("{mark:?} stands here without a name before it")));
                }
                Some(_) => statements.push(self.statement(depth)?),
            }
        }
    }

    fn statement(&mut self, depth: usize) -> Result<Statement, FileError> {
        let line = self.line;
        let is_end = |c: char| c.is_whitespace() || "[]{};,#".contains(c);
        let end = self.rest.find(is_end).unwrap_or(self.rest.len());
        let (kind, rest) = self.rest.split_at(end);
        let kind = kind.to_owned();
        self.rest = rest;
        let values = match self.next() {
            Some('[') => self.values()?,
            _ => Vec::new(),
        };
        let inner = match self.next() {
            Some('{') => {
                self.skip('{');
                self.statements(depth + 1)?
            }
            _ => Vec::new(),
        };
        Ok(Statement {
            kind,
            line,
            values,
            inner,
        })
    }

    /// What stands in brackets.
    fn values(&mut self) -> Result<Vec<(Option<String>, String)>, FileError> {
        self.skip('[');
        let mut text = String::new();
        let (mut is_quoted, mut is_comment) = (false, false);
        for (at, c) in self.rest.char_indices() {
            match c {
                '\n' => {
                    self.line += 1;
                    (is_quoted, is_comment) = (false, false);
                    text.push(' ');
                }
                _ if is_comment => {}
                '"' => {
                    is_quoted = !is_quoted;
                }
                '#' if !is_quoted => is_comment = true,
                ']' if !is_quoted => {
                    self.rest = &self.rest[at + 1..];
                    let values = text.split(';').map(str::trim).filter(|value| !value.is_empty());
                    let named = |value: &str| match value.split_once('=') {
                        Some((name, value)) => (Some(name.trim().to_owned()), value.trim().to_owned()),
                        None => (None, value.to_owned()),
                    };
                    return Ok(values.map(named).collect());
                }
                _ => text.push(c),
            }
        }
        Err(self.wrong("a bracket is not closed"))
    }

    /// The next character that means something.
    fn next(&mut self) -> Option<char> {
        loop {
            match self.rest.chars().next()? {
                '\n' => {
                    self.line += 1;
                    self.skip('\n');
                }
                '#' => {
                    let end = self.rest.find('\n').unwrap_or(self.rest.len());
                    self.rest = &self.rest[end..];
                }
                c if c.is_whitespace() => self.skip(c),
                c => return Some(c),
            }
        }
    }

    fn skip(&mut self, c: char) {
        self.rest = self.rest.strip_prefix(c).unwrap_or(self.rest);
    }

    fn skip_one(&mut self) {
        let mut rest = self.rest.chars();
        rest.next();
        self.rest = rest.as_str();
    }

    fn wrong(&self, what: &str) -> FileError {
        FileError::Model(format!("{}: line {}: {what}", self.file, self.line))
    }
}
