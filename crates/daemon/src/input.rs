//! Files and the standard input, read up to a limit.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use crossbeam_channel::{Receiver, Sender, bounded};
use ssntp::payload::yaml;
use ssntp_transport::threads;

use crate::failure::Failure;

/// The longest payload and document of a user, in bytes: four times the longest payload that peers
/// accept by default. Without a limit, a device that is named by mistake would fill the memory.
pub const LONGEST: u64 = 64 << 20;

/// The content of a file. Fails if it is longer than `most` bytes.
pub fn file(path: &Path, most: u64) -> Result<Vec<u8>, Failure> {
    let file = File::open(path).map_err(|e| Failure::at(path, e))?;
    bounded_bytes(file, most).map_err(|why| Failure::at(path, why))
}

/// The text of a file, without the byte order mark with which some editors begin it. Fails if it is
/// longer than `most` bytes, or not UTF-8.
pub fn text(path: &Path, most: u64) -> Result<String, Failure> {
    let text = String::from_utf8(file(path, most)?).map_err(|_| Failure::at(path, "it is not UTF-8"))?;
    Ok(text.strip_prefix('\u{feff}').map(str::to_owned).unwrap_or(text))
}

/// The first line of a file, without its end and a byte order mark, which editors add: a password or a
/// passphrase, in any encoding.
pub fn first_line(path: &Path) -> Result<Vec<u8>, Failure> {
    let text = file(path, LONGEST)?;
    let line = yaml::without_mark(&text)
        .split(|byte| matches!(byte, b'\r' | b'\n'))
        .next();
    Ok(line.unwrap_or_default().to_vec())
}

/// The content of a file that a user names on the command line; `-` is the standard input.
pub fn named(path: &Path) -> Result<Vec<u8>, Failure> {
    if path.as_os_str() != "-" {
        return file(path, LONGEST);
    }
    let read = bounded_bytes(io::stdin().lock(), LONGEST);
    read.map_err(|why| Failure::new(format!("standard input: {why}")))
}

/// Reads to the end. Fails if there are more than `most` bytes.
pub fn bounded_bytes(from: impl Read, most: u64) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    // One byte more than the limit shows a longer input. A part of it must not be used: the rest of
    // a revocation list would revoke further certificates.
    let read = from.take(most + 1).read_to_end(&mut bytes);
    read.map_err(|e| e.to_string())?;
    if bytes.len() as u64 > most {
        Err(format!("it is longer than {most} bytes"))
    } else {
        Ok(bytes)
    }
}

/// Runs `read` on a thread, so that the main thread can also wait for signals and the server.
/// The channel has room for one message, and is disconnected when `read` returns. The thread is
/// never joined, because a read of the standard input may block for ever.
pub fn on_a_thread<T: Send + 'static>(
    read: impl FnOnce(&Sender<T>) + Send + 'static,
) -> Result<Receiver<T>, Failure> {
    // One message, so that further input stays in the pipe and its writer is held.
    let (to, from) = bounded(1);
    threads::spawn("ssntp-stdin", move || read(&to)).map_err(Failure::thread)?;
    Ok(from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_order_mark_is_no_part_of_a_text() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        for (written, read) in [("\u{feff}secret\n", "secret\n"), ("secret", "secret"), ("", "")] {
            std::fs::write(&path, written).unwrap();
            assert_eq!(text(&path, 100).unwrap(), read);
            for end in ["", "\n", "\r\n", "\r", "\nmore\n"] {
                std::fs::write(&path, format!("{}{end}", written.trim_end())).unwrap();
                assert_eq!(first_line(&path).unwrap(), read.trim_end().as_bytes(), "{end:?}");
            }
        }
        std::fs::write(&path, b"\xff").unwrap();
        assert!(text(&path, 100).is_err());
    }
}
