//! Finds the end, the depth and the approximate memory of a JSON text, one byte at a time.

use super::error::Error;
use super::limits::Limits;
use crate::json;

/// Follows brackets and strings through a text that arrives in pieces.
///
/// It checks only depth and memory. The JSON parser refuses a text that is not JSON.
#[derive(Debug, Default)]
pub(super) struct Scanner {
    depth: usize,
    in_string: bool,
    escaped: bool,
    memory: usize,
}

impl Scanner {
    /// Scans the next bytes of the text, and returns the place of the first NUL. After a NUL, the
    /// caller continues behind that byte and calls [`restart`](Self::restart) first.
    ///
    /// # Errors
    /// A bracket opens one level too many, or the values so far would take too much memory.
    pub(super) fn scan(&mut self, bytes: &[u8], limits: &Limits) -> Result<Option<usize>, Error> {
        let mut at = 0;
        while let Some(&byte) = bytes.get(at) {
            // A NUL ends the frame even behind a backslash, because frames are cut before parsing.
            if self.escaped && byte != 0 {
                self.escaped = false;
            } else if self.in_string {
                // Most characters of a message are inside strings, so this search is the fast path.
                let rest = &bytes[at..];
                match rest.iter().position(|b| matches!(b, b'"' | b'\\' | 0)) {
                    None => return Ok(None),
                    Some(plain) => at += plain,
                }
                match bytes[at] {
                    b'"' => self.in_string = false,
                    b'\\' => self.escaped = true,
                    _ => return Ok(Some(at)),
                }
            } else {
                match byte {
                    0 => return Ok(Some(at)),
                    b'"' => self.in_string = true,
                    b'{' | b'[' => {
                        self.depth += 1;
                        if self.depth > limits.nesting {
                            let limit = limits.nesting;
                            return Err(Error::TooDeep { limit });
                        }
                        self.memory += if byte == b'{' { json::OBJECT } else { json::LIST };
                        // Checked only here: between two brackets, memory grows by a small multiple
                        // of the text, which has its own limit.
                        if self.memory > limits.memory {
                            let limit = limits.memory;
                            return Err(Error::TooMuch { limit });
                        }
                    }
                    b',' => self.memory += json::ELEMENT,
                    b':' => self.memory += json::MEMBER,
                    b'}' | b']' => {
                        // The parser refuses a text that closes more brackets than it opens.
                        self.depth = self.depth.saturating_sub(1);
                    }
                    _ => {}
                }
            }
            at += 1;
        }
        Ok(None)
    }

    /// The approximate memory of the values of the text so far, without its characters.
    pub(super) fn memory(&self) -> usize {
        self.memory
    }

    /// Begins a new text.
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

    const TOO_DEEP: Result<Option<usize>, Error> = Err(Error::TooDeep {
        limit: LIMITS.nesting,
    });

    fn scan(text: &[u8]) -> Result<Option<usize>, Error> {
        Scanner::default().scan(text, &LIMITS)
    }

    #[test]
    fn brackets_inside_strings_do_not_count() {
        assert_eq!(scan(br#"{"a":"[[[["}"#), Ok(None));
        assert_eq!(scan(br#"{"a":"\"[[[["}"#), Ok(None));
        assert_eq!(scan(br#"{"a":"\\"[[[[}"#), TOO_DEEP);
        assert_eq!(scan(br#"{"a":"}}"[[[[}"#), TOO_DEEP);
    }

    #[test]
    fn depth_is_checked_at_the_bracket() {
        assert_eq!(scan(b"[[[["), Ok(None));
        assert_eq!(scan(b"[[[[["), TOO_DEEP);
    }

    #[test]
    fn a_nul_stops_the_scan_in_and_outside_of_strings() {
        assert_eq!(scan(b"\0"), Ok(Some(0)));
        assert_eq!(scan(b"{\"a\0"), Ok(Some(3)));
        assert_eq!(scan(b"{\"a\\\0"), Ok(Some(4)));
    }

    #[test]
    fn pieces_are_the_same_as_the_whole() {
        let text = b"{\"a\\\"]\":[\"\\\\\",{\"b\":\"}\"}]}\0";
        for split in 0..text.len() {
            let mut scanner = Scanner::default();
            assert_eq!(scanner.scan(&text[..split], &LIMITS), Ok(None));
            let stop = scanner.scan(&text[split..], &LIMITS);
            assert_eq!(stop, Ok(Some(text.len() - 1 - split)), "{split}");
        }
    }

    #[test]
    fn values_count_as_the_memory_that_they_take() {
        assert_eq!(scan("[{}, ".repeat(9).as_bytes()), TOO_DEEP);
        let mut scanner = Scanner::default();
        assert_eq!(scanner.scan(b"[\"{{{\",{\"\":0},[1,2]", &LIMITS), Ok(None));
        let values = json::OBJECT + 2 * json::LIST + 3 * json::ELEMENT + json::MEMBER;
        assert_eq!(scanner.memory(), values);
        assert_eq!(
            scanner.scan(b",{},{},{},{},{},{},{},{},{}", &LIMITS),
            Err(Error::TooMuch { limit: LIMITS.memory })
        );
    }
}
