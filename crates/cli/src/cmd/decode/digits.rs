//! Reads hexadecimal digits as bytes.

use std::io::{self, BufRead, Read};
use std::iter::Peekable;

/// The maximum number of blanks between two digits, so that an endless input of blanks ends in an error.
const MAX_BLANKS: usize = 1 << 20;

/// Reads digits as bytes. Blanks are allowed anywhere, and 0x at the beginning of a word.
pub(super) struct Digits<R: Read> {
    text: Peekable<io::Bytes<R>>,
    /// The number of characters that were read.
    read: usize,
    /// The first half of a byte.
    half: Option<u8>,
    at_begin: bool,
}

impl<R: BufRead> Digits<R> {
    pub(super) fn new(text: R) -> Self {
        Self {
            text: text.bytes().peekable(),
            read: 0,
            half: None,
            at_begin: true,
        }
    }

    fn next_byte(&mut self) -> io::Result<Option<u8>> {
        let mut blanks = 0;
        while let Some(c) = self.text.next().transpose()? {
            self.read += 1;
            if c.is_ascii_whitespace() {
                self.at_begin = true;
                blanks += 1;
                if blanks > MAX_BLANKS {
                    return Err(self.invalid("nothing but blanks"));
                }
                continue;
            }
            let is_x = |next: &io::Result<u8>| matches!(next, Ok(b'x' | b'X'));
            // Only at the beginning of a word: inside a word, 0 is a digit and x is an error.
            if std::mem::take(&mut self.at_begin) && c == b'0' && self.text.next_if(is_x).is_some() {
                self.read += 1;
                continue;
            }
            let digit = char::from(c)
                .to_digit(16)
                .and_then(|digit| u8::try_from(digit).ok());
            let Some(digit) = digit else {
                let what = format!("{:?} is not a hexadecimal digit", char::from(c));
                return Err(self.invalid(&what));
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
        // `read` counts the wrong character as well.
        let at = self.read.saturating_sub(1);
        let text = format!("offset {at:#x} of the digits: {what}");
        io::Error::new(io::ErrorKind::InvalidData, text)
    }
}

impl<R: BufRead> Read for Digits<R> {
    /// Reads one byte at a time, so that all bytes before an error are read.
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let Some(slot) = into.first_mut() else {
            return Ok(0);
        };
        let byte = self.next_byte()?;
        *slot = byte.unwrap_or(*slot);
        Ok(usize::from(byte.is_some()))
    }
}
