//! PEM texts, cut into sections. The only file that uses `rustls-pemfile`, so that another
//! reader can take its place.

use rustls_pemfile::{Error, Item, read_one_from_slice};

/// The sections of a PEM text in their order. Text outside of sections is passed over.
pub(super) fn items(pem: &[u8]) -> impl Iterator<Item = Result<Item, String>> {
    let mut rest = Some(pem);
    std::iter::from_fn(move || match read_one_from_slice(rest.take()?) {
        Ok(Some((item, behind))) => {
            rest = Some(behind);
            Some(Ok(item))
        }
        Ok(None) => None,
        Err(error) => Some(Err(reason(error))),
    })
}

fn reason(error: Error) -> String {
    match error {
        Error::MissingSectionEnd { end_marker } => {
            format!("no end of section {:?}", String::from_utf8_lossy(&end_marker))
        }
        Error::IllegalSectionStart { line } => {
            format!("bad first line {:?}", String::from_utf8_lossy(&line))
        }
        Error::Base64Decode(_) => "a section is not base64".to_owned(),
    }
}

/// The sections of one kind as text. This also finds the kinds that `items` does not
/// know.
pub(super) fn texts(pem: &[u8], kind: &str) -> impl Iterator<Item = String> {
    let (begin, end) = (format!("-----BEGIN {kind}-----"), format!("-----END {kind}-----"));
    let text = String::from_utf8_lossy(pem).into_owned();
    let mut at = 0;
    std::iter::from_fn(move || {
        let start = at + text[at..].find(&begin)?;
        at = start + text[start..].find(&end)? + end.len();
        Some(format!("{}\n", &text[start..at]))
    })
}
