//! Files with a checksum: YAML that ends with a checksum of the rest.
//!
//! A file is replaced as a whole. If it is damaged all the same, by a disk that did not keep
//! what it had confirmed or by hand, that is recognised.

use std::path::Path;
use std::{fs, io};

use serde::{Deserialize, Serialize};

use ssntp::payload::yaml;
use ssntp_transport::replace;

const SUM: &str = "# checksum ";

/// Replaces a file.
pub(crate) fn write_summed<T: Serialize>(path: &Path, value: &T) -> io::Result<()> {
    replace(path, &summed(value)?)
}

/// The content of such a file.
pub(crate) fn summed<T: Serialize>(value: &T) -> io::Result<Vec<u8>> {
    let mut bytes = yaml::encode(value).map_err(io::Error::other)?.to_vec();
    let sum = sum_line(&bytes);
    bytes.extend(sum.as_bytes());
    Ok(bytes)
}

/// Reads a file; `None` if it does not exist. The error says why it cannot be used.
pub(crate) fn read_summed<T: for<'de> Deserialize<'de>>(path: &Path) -> Result<Option<T>, String> {
    let bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(e.to_string()),
    };
    parse_summed(&bytes).map(Some)
}

/// Reads the content of such a file. The error says why it cannot be used.
pub(crate) fn parse_summed<T: for<'de> Deserialize<'de>>(bytes: &[u8]) -> Result<T, String> {
    let text = std::str::from_utf8(bytes).map_err(|_| "not text".to_owned())?;
    // The last one, because the document itself may contain this text.
    let at = text.rfind(SUM).ok_or("it has no checksum: it is incomplete")?;
    let (document, sum) = text.split_at(at);
    if sum != sum_line(document.as_bytes()) {
        // Checked before decoding, so that damaged text is never obeyed, even if it is YAML.
        return Err("its checksum is wrong: it was changed".into());
    }
    yaml::decode(document.as_bytes()).map_err(|e| e.to_string())
}

/// The line at the end of such a file. For a file that must not be changed it is kept beside
/// it.
pub(crate) fn sum_line(bytes: &[u8]) -> String {
    format!("{SUM}{:016x}\n", fnv1a(bytes))
}

/// FNV-1a. It recognises accidents, not forgery: a forger could write a valid file just as
/// well.
pub(crate) fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_part_of_a_record_is_taken_for_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("record");
        assert_eq!(read_summed::<Vec<i64>>(&path), Ok(None));
        write_summed(&path, &vec![1, 22]).unwrap();
        assert_eq!(read_summed(&path), Ok(Some(vec![1, 22])));
        let whole = fs::read(&path).unwrap();
        for length in 0..whole.len() {
            fs::write(&path, &whole[..length]).unwrap();
            assert!(read_summed::<Vec<i64>>(&path).is_err(), "{length} bytes");
        }
        fs::write(&path, String::from_utf8(whole).unwrap().replace("22", "23")).unwrap();
        assert!(read_summed::<Vec<i64>>(&path).is_err());
    }
}
