//! Where a JSON text ends, how deep it nests and about how much memory its values take,
//! one byte at a time.

use super::Limits;
use crate::json;

/// The reason why [`Scanner::scan`] stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// The byte at this index is NUL.
    Nul(usize),
    /// A bracket opens one level too many.
    TooDeep,
    /// The values so far take more memory than the message may.
    TooMuch,
}

/// Follows brackets and strings through a text that arrives in pieces.
///
/// It checks only depth and memory. A text that is not JSON passes it, and the reader of JSON
/// refuses it.
#[derive(Debug, Default)]
pub(super) struct Scanner {
    depth: usize,
    in_string: bool,
    escaped: bool,
    memory: usize,
}

impl Scanner {
    /// Looks at each byte once. `None` when nothing of interest is among them.
    /// After a stop the caller goes on behind that byte, with
    /// [`restart`](Self::restart) when a new text begins there.
    pub(super) fn scan(&mut self, bytes: &[u8], limits: &Limits) -> Option<Stop> {
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
                        if self.depth > limits.nesting {
                            return Some(Stop::TooDeep);
                        }
                        self.memory += if byte == b'{' { json::OBJECT } else { json::LIST };
                        // Each value behind another one costs less text than a bracket, and
                        // far less memory, so brackets are where this is looked at.
                        if self.memory > limits.memory {
                            return Some(Stop::TooMuch);
                        }
                    }
                    b',' => self.memory += json::ELEMENT,
                    b':' => self.memory += json::MEMBER,
                    b'}' | b']' => {
                        // A text that closes more than it opens is not JSON. The reader of JSON refuses it.
                        self.depth = self.depth.saturating_sub(1);
                    }
                    _ => {}
                }
            }
            at += 1;
        }
        None
    }

    /// About how many bytes the values of the text so far take, its characters excepted.
    pub(super) fn memory(&self) -> usize {
        self.memory
    }

    /// Forgets the text scanned so far.
    pub(super) fn restart(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits {
        message: usize::MAX,
        memory: 10 * json::OBJECT,
        nesting: 4,
    };

    fn scan(text: &[u8]) -> Option<Stop> {
        Scanner::default().scan(text, &LIMITS)
    }

    #[test]
    fn brackets_inside_strings_do_not_count() {
        assert_eq!(scan(br#"{"a":"[[[["}"#), None);
        assert_eq!(scan(br#"{"a":"\"[[[["}"#), None);
        assert_eq!(scan(br#"{"a":"\\"[[[[}"#), Some(Stop::TooDeep));
        assert_eq!(scan(br#"{"a":"}}"[[[[}"#), Some(Stop::TooDeep));
    }

    #[test]
    fn depth_is_checked_at_the_bracket() {
        assert_eq!(scan(b"[[[["), None);
        assert_eq!(scan(b"[[[[["), Some(Stop::TooDeep));
    }

    #[test]
    fn a_nul_stops_everywhere() {
        assert_eq!(scan(b"\0"), Some(Stop::Nul(0)));
        assert_eq!(scan(b"{\"a\0"), Some(Stop::Nul(3)));
        assert_eq!(scan(b"{\"a\\\0"), Some(Stop::Nul(4)));
    }

    #[test]
    fn pieces_are_the_same_as_the_whole() {
        let text = b"{\"a\\\"]\":[\"\\\\\",{\"b\":\"}\"}]}\0";
        for split in 0..text.len() {
            let mut scanner = Scanner::default();
            assert_eq!(scanner.scan(&text[..split], &LIMITS), None);
            let stop = scanner.scan(&text[split..], &LIMITS);
            assert_eq!(stop, Some(Stop::Nul(text.len() - 1 - split)), "{split}");
        }
    }

    #[test]
    fn values_count_as_the_memory_that_they_take() {
        assert_eq!(scan("[{}, ".repeat(9).as_bytes()), Some(Stop::TooDeep));
        let mut scanner = Scanner::default();
        assert_eq!(scanner.scan(b"[\"{{{\",{\"\":0},[1,2]", &LIMITS), None);
        let values = json::OBJECT + 2 * json::LIST + 3 * json::ELEMENT + json::MEMBER;
        assert_eq!(scanner.memory(), values);
        assert_eq!(
            scanner.scan(b",{},{},{},{},{},{},{},{},{}", &LIMITS),
            Some(Stop::TooMuch)
        );
    }
}
