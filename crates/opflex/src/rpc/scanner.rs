//! Where a JSON text ends and how deep it nests, one byte at a time.

/// What [`Scanner::scan`] stopped at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// The byte at this index is NUL.
    Nul(usize),
    /// The bracket at this index closes the outermost one.
    Closed(usize),
    /// The bracket at this index opens one level too many.
    TooDeep(usize),
}

/// Follows brackets and strings through a text that arrives in pieces.
///
/// It judges nothing but depth: a text that is no JSON comes out with some end
/// or other, and the reader of JSON refuses it.
#[derive(Debug, Default)]
pub(super) struct Scanner {
    depth: usize,
    in_string: bool,
    escaped: bool,
}

impl Scanner {
    /// Looks at each byte once. `None` when nothing of interest is among them.
    /// After a stop the caller goes on behind that byte, with
    /// [`restart`](Self::restart) when a new text begins there.
    pub(super) fn scan(&mut self, bytes: &[u8], max_depth: usize) -> Option<Stop> {
        let mut at = 0;
        while let Some(&byte) = bytes.get(at) {
            // A NUL ends the frame even behind a backslash, because frames are cut before they are read.
            if self.escaped && byte != 0 {
                self.escaped = false;
            } else if self.in_string {
                // Most of a message is plain characters inside strings.
                let rest = &bytes[at..];
                match rest.iter().position(|b| matches!(b, b'"' | b'\\' | 0)) {
                    None => return None,
                    Some(plain) => at += plain,
                }
                match bytes[at] {
                    b'"' => self.in_string = false,
                    b'\\' => self.escaped = true,
                    _ => return Some(Stop::Nul(at)),
                }
            } else {
                match byte {
                    0 => return Some(Stop::Nul(at)),
                    b'"' => self.in_string = true,
                    b'{' | b'[' => {
                        self.depth += 1;
                        if self.depth > max_depth {
                            return Some(Stop::TooDeep(at));
                        }
                    }
                    b'}' | b']' => {
                        // A text that closes more than it opens is not JSON. The reader of JSON refuses it.
                        self.depth = self.depth.saturating_sub(1);
                        if self.depth == 0 {
                            return Some(Stop::Closed(at));
                        }
                    }
                    _ => {}
                }
            }
            at += 1;
        }
        None
    }

    /// Forgets the text scanned so far.
    pub(super) fn restart(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scan(text: &[u8]) -> Option<Stop> {
        Scanner::default().scan(text, 4)
    }

    #[test]
    fn brackets_inside_strings_do_not_count() {
        assert_eq!(scan(br#"{"a":"}"}"#), Some(Stop::Closed(8)));
        assert_eq!(scan(br#"{"a":"\"}"}"#), Some(Stop::Closed(10)));
        assert_eq!(scan(br#"{"a":"\\"}"#), Some(Stop::Closed(9)));
        assert_eq!(scan(br#"{"a":"[[[[[["#), None);
    }

    #[test]
    fn depth_is_checked_at_the_bracket() {
        assert_eq!(scan(b"[[[["), None);
        assert_eq!(scan(b"[[[[["), Some(Stop::TooDeep(4)));
    }

    #[test]
    fn a_nul_stops_everywhere() {
        assert_eq!(scan(b"\0"), Some(Stop::Nul(0)));
        assert_eq!(scan(b"{\"a\0"), Some(Stop::Nul(3)));
        assert_eq!(scan(b"{\"a\\\0"), Some(Stop::Nul(4)));
    }

    #[test]
    fn pieces_are_the_same_as_the_whole() {
        let text = br#"{"a\"]":["\\",{"b":"}"}]}"#;
        for split in 0..text.len() {
            let mut scanner = Scanner::default();
            assert_eq!(scanner.scan(&text[..split], 4), None);
            let stop = scanner.scan(&text[split..], 4);
            assert_eq!(stop, Some(Stop::Closed(text.len() - 1 - split)), "{split}");
        }
    }
}
