//! PEM texts, cut into sections. `rustls-pemfile` is no longer maintained, so no other file uses it,
//! and another reader can take its place here.

pub(crate) use rustls_pemfile::Item;
use rustls_pemfile::{Error, read_one_from_slice};

use crate::Fault;

/// The sections of a PEM text in their order. Text outside of sections is ignored, and so are
/// sections whose kind `rustls-pemfile` does not know.
pub(crate) fn items(pem: &[u8]) -> impl Iterator<Item = Result<Item, Fault>> {
    let mut rest = Some(pem);
    std::iter::from_fn(move || match read_one_from_slice(rest.take()?) {
        Ok(next) => next.map(|(item, behind)| {
            rest = Some(behind);
            Ok(item)
        }),
        Err(error) => Some(Err(Fault::BadPem(match error {
            Error::MissingSectionEnd { end_marker } => {
                format!("no end of section {:?}", String::from_utf8_lossy(&end_marker))
            }
            Error::IllegalSectionStart { line } => {
                format!("bad first line {:?}", String::from_utf8_lossy(&line))
            }
            Error::Base64Decode(_) => "a section is not base64".to_owned(),
        }))),
    })
}
