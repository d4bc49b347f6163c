//! Records on disk: YAML that ends with a checksum of the rest.
//!
//! They are replaced as a whole. One that is torn all the same, by a disk that
//! lied or by hand, is recognised, and not taken for a shorter one.

use std::path::Path;
use std::{fs, io};

use serde::{Deserialize, Serialize};

use ssntp::payload::yaml;
use ssntp_transport::replace;

const SUM: &str = "# checksum ";

/// Replaces a record.
pub(crate) fn write_summed<T: Serialize>(path: &Path, value: &T) -> io::Result<()> {
    let mut bytes = yaml::encode(value).map_err(io::Error::other)?.to_vec();
    let sum = sum_line(&bytes);
    bytes.extend(sum.as_bytes());
    replace(path, &bytes)
}

/// Reads a record; `None` where there is no such file, else why it is none.
pub(crate) fn read_summed<T: for<'de> Deserialize<'de>>(path: &Path) -> Result<Option<T>, String> {
    let bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(e.to_string()),
    };
    let text = std::str::from_utf8(&bytes).map_err(|_| "not text".to_owned())?;
    let at = text.rfind(SUM).ok_or("it has no checksum: it is torn")?;
    let (document, sum) = text.split_at(at);
    if sum != sum_line(document.as_bytes()) {
        return Err("its checksum is wrong".into());
    }
    yaml::decode(document.as_bytes())
        .map(Some)
        .map_err(|e| e.to_string())
}

/// What stands at the end of a record, or beside a file that isn't ours to
/// add to.
pub(crate) fn sum_line(bytes: &[u8]) -> String {
    format!("{SUM}{:016x}\n", fnv1a(bytes))
}

/// FNV-1a: it is there to recognise accidents, not forgers, who could write
/// a proper record just as well.
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
