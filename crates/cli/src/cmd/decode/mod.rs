//! `ssntp decode`: prints every field of frames.
//!
//! ```text
//!  file, standard input ─▶ Digits, if it is text ─▶ Frames ─▶ print, JSON
//!                                                    └ one frame, part by part ─▶ the codec
//! ```
//!
//! The codec decodes each part of a frame on its own and notes its fields, so a frame that a session would
//! refuse is still shown up to the wrong byte. If the length of a faulty frame is known, the next frame is read.
//! If the length itself is wrong, decoding stops.
//!
//! The input may be endless: one frame is in memory at a time.
//!
//! | file | holds |
//! |---|---|
//! | `digits` | reads hexadecimal digits as bytes |
//! | `frame` | the part of a frame that could be decoded, in text and JSON |
//! | `walk` | the frames of an input, the parts of each and their faults |

mod digits;
mod frame;
#[cfg(test)]
mod tests;
mod walk;

use std::fmt;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::PathBuf;

use ssntp_daemon::{Failure, Output};

use self::walk::Frames;

/// Decoding stops after this number of problems: the input does not consist of frames, for example because
/// a device was named by mistake.
const MAX_PROBLEMS: usize = 1000;

/// Print every field of frames
///
/// The input has one frame after the other, as raw bytes or, if it begins with a
/// hexadecimal digit or a blank, as hexadecimal digits (0x is skipped). Offsets count
/// bytes of frames, not digits. The exit code is 1 if a frame is wrong; after
/// 1000 problems, no further frame is read.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Print each frame as a JSON object on one line
    #[arg(long)]
    json: bool,
    /// The file with the frames; - is the standard input
    #[arg(default_value = "-")]
    file: PathBuf,
}

/// Runs `ssntp decode`.
pub(crate) fn run(args: Args) -> Result<(), Failure> {
    let is_stdin = args.file.as_os_str() == "-";
    let name = if is_stdin {
        "standard input".to_owned()
    } else {
        args.file.display().to_string()
    };
    let fail = |what: &dyn fmt::Display| Failure::new(format_args!("{name}: {what}"));
    let unreadable = |error: io::Error| match error.kind() {
        io::ErrorKind::InvalidData => fail(&error),
        _ => fail(&format_args!("cannot read: {error}")),
    };
    let source: Box<dyn BufRead> = if is_stdin {
        Box::new(BufReader::new(io::stdin()))
    } else {
        Box::new(BufReader::new(File::open(&args.file).map_err(unreadable)?))
    };
    let mut frames = Frames::of(source).map_err(unreadable)?;
    let mut output = Output::lock();
    let (mut count, mut problems) = (0, Vec::new());
    while problems.len() < MAX_PROBLEMS
        && let Some(frame) = frames.next().map_err(unreadable)?
    {
        count += 1;
        if args.json {
            output.json(frame.to_json())?
        } else {
            frame.print(count, &mut output)?
        }
        problems.extend(frame.problems);
        if is_stdin {
            // The next frame may come much later, and a signal would lose what is in the buffer.
            output.flush()?;
        }
    }
    // The frames are printed before the error line, even if both go to one terminal.
    output.flush()?;
    let more = problems.len().saturating_sub(1);
    match problems.first() {
        None if count == 0 => Err(fail(&"it contains no frame")),
        None => Ok(()),
        Some(only) if more == 0 => Err(fail(only)),
        Some(first) if problems.len() < MAX_PROBLEMS => Err(fail(&format_args!("{first} (and {more} more)"))),
        Some(first) => Err(fail(&format_args!(
            "{first} (and {more} more; stopped reading at offset {:#x})",
            frames.offset()
        ))),
    }
}
