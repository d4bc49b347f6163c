//! Files with a checksum: YAML that ends with a checksum of the rest.
//!
//! A file is replaced as a whole. It may still be damaged, by a disk that loses writes that it has
//! confirmed, or by hand. The checksum detects that.

use std::path::Path;
use std::{fs, io};

use serde::{Deserialize, Serialize};

use ssntp::payload::yaml;
use ssntp_transport::replace;

const SUM: &str = "# checksum ";

/// Replaces a file with the encoded value and its checksum.
pub fn write_summed<T: Serialize>(path: &Path, value: &T) -> io::Result<()> {
    replace(path, &summed(value)?)
}

/// The content of such a file.
pub fn summed<T: Serialize>(value: &T) -> io::Result<Vec<u8>> {
    let mut bytes = yaml::encode(value).map_err(io::Error::other)?.to_vec();
    let (len, most) = (bytes.len(), yaml::MAX_DOCUMENT_LEN);
    if len > most {
        let why = format!("{len} bytes are more than the {most} that can be read again");
        return Err(io::Error::other(why));
    }
    let sum = sum_line(&bytes);
    bytes.extend(sum.as_bytes());
    Ok(bytes)
}

/// Reads a file; `None` if it does not exist. The error is the reason why it cannot be used.
pub fn read_summed<T: for<'de> Deserialize<'de>>(path: &Path) -> Result<Option<T>, String> {
    let bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(e.to_string()),
    };
    parse_summed(&bytes).map(Some)
}

/// Reads the content of such a file. The error is the reason why it cannot be used.
pub fn parse_summed<T: for<'de> Deserialize<'de>>(bytes: &[u8]) -> Result<T, String> {
    let text = std::str::from_utf8(bytes).map_err(|_| "not text".to_owned())?;
    // The last occurrence, because the document itself may contain this text.
    let at = text.rfind(SUM).ok_or("it has no checksum: it is incomplete")?;
    let (document, sum) = text.split_at(at);
    if sum != sum_line(document.as_bytes()) {
        // Checked before decoding, so that damaged text is never used, even if it is valid YAML.
        return Err("its checksum is wrong: it was changed".into());
    }
    yaml::decode(document.as_bytes()).map_err(|e| e.to_string())
}

/// The line at the end of such a file. For a file whose content must not change, it is kept in a
/// second file.
pub fn sum_line(bytes: &[u8]) -> String {
    format!("{SUM}{:016x}\n", fnv1a(bytes))
}

/// The FNV-1a hash. It detects accidents, but not forgery.
pub fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_could_not_be_read_again_is_not_written() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("record");
        let lines = |count| vec!["a".repeat(1000); count];
        write_summed(&path, &lines(1000)).unwrap();
        assert!(write_summed(&path, &lines(1100)).is_err());
        assert_eq!(read_summed(&path), Ok(Some(lines(1000))));
    }

    #[test]
    fn truncated_or_changed_file_is_refused() {
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
