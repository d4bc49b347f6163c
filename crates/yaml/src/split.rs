//! Splits a payload into its documents, byte for byte.

/// One document of a payload, without the markers around it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Document<'a> {
    /// The bytes, up to and including the line break before the next marker.
    pub bytes: &'a [u8],
    /// The line of the payload in which it begins, counted from 1.
    pub line: usize,
}

/// The documents of a payload in their order.
///
/// The payload is not parsed. A line `---`, or a line that begins with `---` and a blank, starts a
/// document, and `...` ends one: YAML allows neither at the start of a line inside a document. So
/// further documents may be any text. Text after `---` in the same line belongs to the document.
/// Before the first `---` and after a `...`, blank lines, comments and directives (`%`) alone are not
/// a document.
///
/// ```
/// use ssntp_yaml::documents;
///
/// let payload = b"start:\n  restart: false\n---\n#cloud-config\n--- {\"uuid\": 7}\n";
/// let found: Vec<_> = documents(payload).map(|d| (d.line, d.bytes)).collect();
/// assert_eq!(found[0], (1, &b"start:\n  restart: false\n"[..]));
/// assert_eq!(found[1], (4, &b"#cloud-config\n"[..]));
/// assert_eq!(found[2], (5, &b"{\"uuid\": 7}\n"[..]));
/// ```
pub fn documents(payload: &[u8]) -> Documents<'_> {
    Documents {
        payload,
        next: payload.len() - crate::without_mark(payload).len(),
        line: 1,
        // An empty payload has no document, but the payload "---" has an empty one.
        marked: Some(false),
    }
}

/// See [`documents`].
#[derive(Clone, Debug)]
pub struct Documents<'a> {
    payload: &'a [u8],
    next: usize,
    line: usize,
    /// True if `---` is before the next bytes, so that they are a document even if they are empty.
    /// `None` at the end of the payload.
    marked: Option<bool>,
}

impl<'a> Iterator for Documents<'a> {
    type Item = Document<'a>;

    fn next(&mut self) -> Option<Document<'a>> {
        while let Some(marked) = self.marked {
            let found = self.advance();
            if marked || has_content(found.bytes) {
                return Some(found);
            }
        }
        None
    }
}

impl<'a> Documents<'a> {
    /// Advances to the next marker or the end, and returns the bytes before it.
    fn advance(&mut self) -> Document<'a> {
        let (start, line) = (self.next, self.line);
        let mut at = start;
        // After text in the line of a marker, the rest of that line is not the start of a line.
        let first = self.payload.len() - crate::without_mark(self.payload).len();
        let mut line_start = start == first || self.payload[start - 1] == b'\n';
        while at < self.payload.len() {
            let rest = &self.payload[at..];
            let length = rest
                .iter()
                .position(|b| *b == b'\n')
                .map_or(rest.len(), |i| i + 1);
            if line_start && let Some((starts, used)) = marker(&rest[..length]) {
                let bytes = &self.payload[start..at];
                self.next = at + used;
                self.line += usize::from(used == length);
                self.marked = Some(starts);
                return Document { bytes, line };
            }
            at += length;
            self.line += 1;
            line_start = true;
        }
        self.marked = None;
        Document {
            bytes: &self.payload[start..],
            line,
        }
    }
}

/// For a line that separates documents: true if it starts one (`---`) and false if it ends one (`...`), and the number of
/// its bytes before the text that belongs to the next document.
fn marker(line: &[u8]) -> Option<(bool, usize)> {
    let (marker, rest) = line.split_at_checked(3)?;
    if !rest.first().is_none_or(u8::is_ascii_whitespace) {
        return None;
    }
    match marker {
        b"---" if !rest.trim_ascii().is_empty() => Some((true, 4)),
        b"---" => Some((true, line.len())),
        b"..." => Some((false, line.len())),
        _ => None,
    }
}

/// The first line, counted from 1, that would end a document of these bytes.
pub fn first_marker(bytes: &[u8]) -> Option<usize> {
    let mut lines = bytes.split(|b| *b == b'\n');
    lines
        .position(|line| marker(line).is_some())
        .map(|index| index + 1)
}

fn has_content(bytes: &[u8]) -> bool {
    bytes
        .split(|b| *b == b'\n')
        .map(|line| line.trim_ascii())
        .any(|line| !line.is_empty() && line[0] != b'#' && line[0] != b'%')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markers_separate_and_content_stays_as_it_is() {
        let cases: &[(&str, &[(usize, &str)])] = &[
            ("", &[]),
            ("\n# nothing\n", &[]),
            ("a: 1", &[(1, "a: 1")]),
            ("a: 1\n", &[(1, "a: 1\n")]),
            ("---\na: 1\n", &[(2, "a: 1\n")]),
            ("%YAML 1.1\n---\na: 1\n...\n", &[(3, "a: 1\n")]),
            ("a: 1\n---\n", &[(1, "a: 1\n"), (3, "")]),
            ("a: 1\n---", &[(1, "a: 1\n"), (3, "")]),
            ("---\n---\n\n---\r\nx", &[(2, ""), (3, "\n"), (5, "x")]),
            (
                "a: 1\n...\n# between\n---\n#cloud-config\n",
                &[(1, "a: 1\n"), (5, "#cloud-config\n")],
            ),
            ("a: 1\n...\nb: 2\n", &[(1, "a: 1\n"), (3, "b: 2\n")]),
            (
                "--- x\n---\ty\n----\n--- ---\n",
                &[(1, "x\n"), (2, "y\n----\n"), (4, "---\n")],
            ),
            (" ---\na\n....\n", &[(1, " ---\na\n....\n")]),
        ];
        for (payload, expected) in cases {
            let found: Vec<_> = documents(payload.as_bytes())
                .map(|d| (d.line, std::str::from_utf8(d.bytes).unwrap()))
                .collect();
            assert_eq!(&found[..], *expected, "{payload:?}");
        }
    }
}
