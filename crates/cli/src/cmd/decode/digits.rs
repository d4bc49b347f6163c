//! The bytes that hexadecimal digits stand for.

use std::io::{self, BufRead, Read};
use std::iter::Peekable;

/// So many blanks between two digits are no text.
const MAX_BLANKS: usize = 1 << 20;

/// Reads digits as bytes. Blanks may stand anywhere, 0x at the begin of a word.
pub(super) struct Digits<R: Read> {
    text: Peekable<io::Bytes<R>>,
    /// How many characters were taken.
    taken: usize,
    /// The first half of a byte.
    half: Option<u8>,
    at_begin: bool,
}

impl<R: BufRead> Digits<R> {
    pub(super) fn new(text: R) -> Self {
        Self {
            text: text.bytes().peekable(),
            taken: 0,
            half: None,
            at_begin: true,
        }
    }

    fn next_byte(&mut self) -> io::Result<Option<u8>> {
        let mut blanks = 0;
        while let Some(c) = self.text.next().transpose()? {
            self.taken += 1;
            if c.is_ascii_whitespace() {
                self.at_begin = true;
                blanks += 1;
                if blanks > MAX_BLANKS {
                    return Err(self.invalid("nothing but blanks"));
                }
                continue;
            }
            let is_x = |next: &io::Result<u8>| matches!(next, Ok(b'x' | b'X'));
            if std::mem::take(&mut self.at_begin) && c == b'0' && self.text.next_if(is_x).is_some() {
                self.taken += 1;
                continue;
            }
            let digit = match c {
                b'0'..=b'9' => c - b'0',
                b'a'..=b'f' => c - b'a' + 10,
                b'A'..=b'F' => c - b'A' + 10,
                _ => {
                    let what = format!("{:?} is no hexadecimal digit", char::from(c));
                    return Err(self.invalid(&what));
                }
            };
            blanks = 0;
            match self.half.take() {
                Some(high) => return Ok(Some(high << 4 | digit)),
                None => self.half = Some(digit),
            }
        }
        match self.half {
            Some(_) => Err(self.invalid("an odd number of hexadecimal digits")),
            None => Ok(None),
        }
    }

    fn invalid(&self, what: &str) -> io::Error {
        let at = self.taken.saturating_sub(1);
        let text = format!("offset {at:#x} of the digits: {what}");
        io::Error::new(io::ErrorKind::InvalidData, text)
    }
}

impl<R: BufRead> Read for Digits<R> {
    /// A byte at a time, so that an error comes behind all that is good.
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let Some(slot) = into.first_mut() else {
            return Ok(0);
        };
        Ok(match self.next_byte()? {
            Some(byte) => {
                *slot = byte;
                1
            }
            None => 0,
        })
    }
}
