//! Files and texts that hold certificates, keys and revocation lists.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustls::pki_types::CertificateDer;

use crate::error::Error;
use crate::pem::Sections;

/// The longest file: far above any certificate bundle, and some 250,000 entries of a revocation list. It
/// bounds the reading of a device or a log file that was named by mistake.
const MAX_FILE_LEN: u64 = 16 << 20;

/// The certificates of a PEM file in their order. Other sections are ignored, and the certificates are
/// not parsed. Blocks while the file is read.
///
/// # Errors
/// [`Error::Read`], or [`Error::Content`] with [`Fault::NotPem`](crate::Fault::NotPem),
/// [`Fault::BadPem`](crate::Fault::BadPem) or [`Fault::NoCertificate`](crate::Fault::NoCertificate).
pub fn load_certificates(path: impl AsRef<Path>) -> Result<Vec<CertificateDer<'static>>, Error> {
    let path = path.as_ref();
    let sections = load(path)?;
    let certificates = sections.certificates().map(<[_]>::to_vec);
    certificates.map_err(Error::content(origin(path)))
}

/// Reads and splits a PEM file.
pub(crate) fn load(path: &Path) -> Result<Sections, Error> {
    Sections::read(&read(path)?).map_err(Error::content(origin(path)))
}

/// The bytes of a whole file. An error if it is longer than [`MAX_FILE_LEN`].
pub(crate) fn read(path: &Path) -> Result<Vec<u8>, Error> {
    let whole = || {
        let mut bytes = Vec::new();
        File::open(path)?.take(MAX_FILE_LEN + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > MAX_FILE_LEN {
            return Err(std::io::Error::other("too long for a PEM file"));
        }
        Ok(bytes)
    };
    whole().map_err(|source| Error::Read {
        path: path.to_owned(),
        source,
    })
}

/// The certificates in all files of a directory that hold some, in the order of the files' names.
/// OpenSSL's directories have links beside the files, so a certificate may occur twice.
pub(crate) fn load_directory(path: &Path) -> Result<Vec<CertificateDer<'static>>, Error> {
    let failed = |source| Error::Read {
        path: path.to_owned(),
        source,
    };
    let entries = fs::read_dir(path).map_err(failed)?;
    let files = entries.map(|entry| Ok(entry?.path()));
    let mut files: Vec<PathBuf> = files.collect::<std::io::Result<_>>().map_err(failed)?;
    files.retain(|file| file.is_file());
    files.sort_unstable();
    let (mut all, mut len) = (Vec::new(), 0);
    for file in files {
        let text = read(&file)?;
        // Keys, lists and notes may be there as well.
        if !contains(&text, b"CERTIFICATE-----") {
            continue;
        }
        // All files together may be as long as one: a wrong directory must not fill the memory.
        len += text.len() as u64;
        if len > MAX_FILE_LEN {
            return Err(failed(std::io::Error::other("too many certificates")));
        }
        let sections = Sections::read(&text).map_err(Error::content(origin(&file)))?;
        all.extend(sections.certificates);
    }
    if all.is_empty() {
        return Err(failed(std::io::Error::other(
            "no file of this directory has a certificate",
        )));
    }
    Ok(all)
}

/// Warns in the log if other users of this host can read a private key, or its group can replace it. A
/// group that can only read it is common.
pub(crate) fn warn_of_open_key(path: &Path) {
    let mode = path.metadata().map_or(0, |metadata| metadata.mode() & 0o777);
    if mode & 0o027 != 0 {
        log::warn!(
            "{}: it holds a private key, and other users may use the file (mode {mode:o})",
            origin(path)
        );
    }
}

/// The name of a file in errors.
pub(crate) fn origin(path: &Path) -> String {
    path.display().to_string()
}

/// Replaces a file in one step. It has `mode` from the first moment. Without a mode, an existing file, or the target
/// of a link, keeps its own.
#[cfg(feature = "issue")]
pub(crate) fn write(path: &Path, text: &str, mode: Option<u32>) -> Result<(), Error> {
    let target = fs::canonicalize(path).ok().filter(|_| mode.is_none());
    let target = target.as_deref().unwrap_or(path);
    let written = ssntp_transport::replace_with_mode(target, text.as_bytes(), mode);
    written.map_err(|source| Error::Write {
        path: path.to_owned(),
        source,
    })
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Fault;

    fn fault(pem: &str) -> Fault {
        let sections = Sections::read(pem.as_bytes());
        sections
            .and_then(|sections| sections.key().map(drop))
            .unwrap_err()
    }

    #[test]
    fn a_directory_without_certificates_is_named() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("notes"), "no certificate").unwrap();
        let error = load_directory(dir.path()).unwrap_err().to_string();
        assert!(error.starts_with(&dir.path().display().to_string()), "{error}");
        assert!(
            error.ends_with("no file of this directory has a certificate"),
            "{error}"
        );
    }

    #[test]
    fn each_kind_of_broken_pem_is_named() {
        assert_eq!(fault(""), Fault::NotPem);
        assert_eq!(fault("\u{0}\u{1}binary"), Fault::NotPem);
        assert!(matches!(
            fault("-----BEGIN CERTIFICATE-----\nAAAA\n"),
            Fault::BadPem(_)
        ));
        assert!(matches!(
            fault("-----BEGIN CERTIFICATE\nAAAA\n"),
            Fault::BadPem(_)
        ));
        let no_base64 = "-----BEGIN PRIVATE KEY-----\n!\n-----END PRIVATE KEY-----\n";
        let why = "section \"PRIVATE KEY\" in line 1: it is not base64";
        assert_eq!(fault(no_base64), Fault::BadPem(why.to_owned()));
    }

    #[test]
    fn an_encrypted_key_is_distinguished_from_none_and_several() {
        let new = "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n";
        let old = "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n\nAAAA\n\
                   -----END RSA PRIVATE KEY-----\n";
        assert_eq!(fault(new), Fault::EncryptedKey);
        assert_eq!(fault(old), Fault::EncryptedKey);
        let parameters = "-----BEGIN EC PARAMETERS-----\nAAAA\n-----END EC PARAMETERS-----\n";
        assert_eq!(fault(parameters), Fault::NoKey);
        let key = "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n";
        assert_eq!(fault(&key.repeat(2)), Fault::SeveralKeys(2));
    }
}
