//! `ssntp decode`: names every field of frames.
//!
//! ```text
//!  file, standard input ─▶ Digits, where it is text ─▶ Frames ─▶ print, JSON
//!                                                        └ Walk: one frame, field by field
//! ```
//!
//! The input is walked field by field rather than through the codec, so that
//! a frame that the codec refuses is still shown up to the byte where it goes
//! wrong. What one frame has wrong inside its own length does not keep the
//! next one from being read; what leaves the length in doubt does.
//!
//! The input may be endless: one frame of it is in memory at a time.
//!
//! | file | holds |
//! |---|---|
//! | `digits` | the bytes that hexadecimal digits stand for |
//! | `frame` | a frame as far as it can be read, in text and JSON |
//! | `walk` | the fields of one frame, and what is wrong with them |

mod digits;
mod frame;
#[cfg(test)]
mod tests;
mod walk;

use std::fmt;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};

use self::digits::Digits;
use self::frame::Frame;
use self::walk::Walk;
use crate::failure::Failure;
use crate::output::Output;
use crate::signals::Stop;

/// After so many problems the input is no frames: a device named by mistake.
const MAX_PROBLEMS: usize = 1000;

/// Name every field of frames
///
/// The input holds frames one after the other, as raw bytes or, where it begins
/// with a hexadecimal digit or a blank, as digits (0x is passed over). It is
/// read as it comes. Offsets count the frames' bytes. Exits with 1 where
/// something is wrong, and reads no further where too much is.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Print one JSON object per frame and line
    #[arg(long)]
    json: bool,
    /// The frames, - for the standard input
    #[arg(default_value = "-")]
    file: PathBuf,
}

/// Runs `ssntp decode`.
pub(crate) fn run(args: Args) -> Result<(), Failure> {
    let _stop = Stop::install()?;
    let name = match args.file.as_os_str() == "-" {
        true => "standard input".to_owned(),
        false => args.file.display().to_string(),
    };
    let fail = |what: &dyn fmt::Display| Failure::new(format_args!("{name}: {what}"));
    let unreadable = |error: io::Error| match error.kind() {
        io::ErrorKind::InvalidData => fail(&error),
        _ => fail(&format_args!("cannot read: {error}")),
    };
    let mut frames = open(&args.file).and_then(Frames::of).map_err(unreadable)?;
    let mut output = Output::new();
    let (mut count, mut problems) = (0, 0);
    let mut first = None;
    for frame in frames.by_ref() {
        count += 1;
        if args.json {
            output.json(frame.to_json())?;
        } else {
            frame.print(count, &mut output)?;
        }
        problems += frame.problems.len();
        first = first.or(frame.problems.into_iter().next());
        if problems >= MAX_PROBLEMS {
            break;
        }
    }
    output.flush()?;
    if let Some(error) = frames.failed {
        return Err(unreadable(error));
    }
    match (first, problems) {
        (None, _) if count == 0 => Err(fail(&"no frame in it")),
        (None, _) => Ok(()),
        (Some(first), 1) => Err(fail(&first)),
        (Some(first), MAX_PROBLEMS..) => Err(fail(&format_args!(
            "{first} (and {} more; nothing is read from offset {:#x} on)",
            problems - 1,
            frames.at
        ))),
        (Some(first), more) => Err(fail(&format_args!("{first} (and {} more)", more - 1))),
    }
}

fn open(file: &Path) -> io::Result<Box<dyn BufRead>> {
    Ok(match file.as_os_str() == "-" {
        true => Box::new(BufReader::new(io::stdin())),
        false => Box::new(BufReader::new(File::open(file)?)),
    })
}

/// The frames of an input, up to the one behind which nothing can be read.
struct Frames {
    source: Box<dyn BufRead>,
    at: usize,
    ended: bool,
    failed: Option<io::Error>,
}

impl Frames {
    /// Raw frames begin with 0x00 or 0x80 and so are never taken for digits.
    fn of(mut source: Box<dyn BufRead>) -> io::Result<Self> {
        let begin = source.fill_buf()?.first();
        let is_text = begin.is_some_and(|c| c.is_ascii_hexdigit() || c.is_ascii_whitespace());
        Ok(Self {
            source: match is_text {
                true => Box::new(BufReader::new(Digits::new(source))),
                false => source,
            },
            at: 0,
            ended: false,
            failed: None,
        })
    }
}

impl Iterator for Frames {
    type Item = Frame;

    fn next(&mut self) -> Option<Frame> {
        if self.ended {
            return None;
        }
        match self.source.fill_buf() {
            Ok([]) => return None,
            Ok(_) => {}
            Err(error) => {
                self.failed = Some(error);
                self.ended = true;
                return None;
            }
        }
        let walked = Walk::frame_at(self.at, &mut *self.source);
        self.at = walked.frame.at + walked.frame.len;
        self.ended = walked.lost;
        self.failed = walked.failed;
        Some(walked.frame)
    }
}
