//! PEM texts, cut into sections. `rustls-pemfile` is no longer maintained, so no other file uses it,
//! and another reader can take its place here.
//!
//! Input that is not understood is refused with its line, and never skipped: a revocation list that
//! is overlooked would admit the peers that it revokes. Lines outside of sections are ignored only if
//! they are no part of a section.

use rustls::pki_types::{
    CertificateDer, CertificateRevocationListDer, CertificateSigningRequestDer, PrivateKeyDer,
};
use rustls_pemfile::{Item, read_one_from_slice};

use crate::error::Fault;
use ssntp_transport::excerpt;

/// The content of a PEM text: its sections by kind, in their order. Parameters and public keys are left out, because
/// nothing here needs them.
#[derive(Default)]
pub(crate) struct Sections {
    pub(crate) certificates: Vec<CertificateDer<'static>>,
    pub(crate) revocation_lists: Vec<CertificateRevocationListDer<'static>>,
    pub(crate) requests: Vec<CertificateSigningRequestDer<'static>>,
    keys: Vec<PrivateKeyDer<'static>>,
    /// True if a key is encrypted.
    pub(crate) encrypted: bool,
    /// The encrypted keys in PKCS#8, as PEM. Those in the old form, with `Proc-Type`, are not supported.
    sealed: Vec<String>,
}

impl Sections {
    /// Cuts a PEM text into its sections; there is at least one.
    pub(crate) fn read(pem: &[u8]) -> Result<Self, Fault> {
        // A byte order mark means nothing in PEM, and is in the middle of files that were joined.
        let text = String::from_utf8_lossy(pem).replace('\u{feff}', "");
        let text = text.replace("\r\n", "\n").replace('\r', "\n");
        let (mut found, mut is_empty) = (Self::default(), true);
        let mut open: Option<Open<'_>> = None;
        for (line, text) in lines(&text) {
            let refused = |why: String| Err(Fault::BadPem(format!("line {line}: {why}")));
            match (boundary(text), open.take()) {
                (Some((true, label)), None) => {
                    let body = String::new();
                    open = Some(Open { label, line, body });
                }
                (Some((false, label)), Some(section)) if label == section.label => {
                    found.add(&section)?;
                    is_empty = false;
                }
                (Some((false, label)), None) => {
                    return refused(format!("no begin of section \"{}\"", excerpt(label)));
                }
                (None, Some(mut section)) if !text.contains("--") => {
                    section.body.push_str(text);
                    section.body.push('\n');
                    open = Some(section);
                }
                (_, Some(section)) => return Err(section.not_ended()),
                (None, None) if is_like_a_part(text) => {
                    return refused("it looks like a part of a section, but belongs to none".to_owned());
                }
                (None, None) => {}
            }
        }
        match open {
            Some(section) => Err(section.not_ended()),
            None if is_empty => Err(Fault::NotPem),
            // Text of 16 bits a character, which some shells append to a file of 8 bits.
            None => match text.split('\n').position(|line| line.contains('\0')) {
                Some(at) => Err(Fault::BadPem(format!(
                    "line {}: a NUL byte; save it as UTF-8",
                    at + 1
                ))),
                None => Ok(found),
            },
        }
    }

    fn add(&mut self, section: &Open<'_>) -> Result<(), Fault> {
        let label = match section.label {
            "X509 CERTIFICATE" => "CERTIFICATE",
            "NEW CERTIFICATE REQUEST" => "CERTIFICATE REQUEST",
            label => label,
        };
        let body = &section.body;
        let text = format!("-----BEGIN {label}-----\n{body}-----END {label}-----\n");
        match label {
            "ENCRYPTED PRIVATE KEY" => {
                self.encrypted = true;
                self.sealed.push(text);
            }
            _ if body.contains("Proc-Type:") && body.contains("ENCRYPTED") => self.encrypted = true,
            "EC PARAMETERS"
            | "DH PARAMETERS"
            | "X9.42 DH PARAMETERS"
            | "DSA PARAMETERS"
            | "PUBLIC KEY"
            | "RSA PUBLIC KEY" => {}
            // `openssl x509` writes a CERTIFICATE instead. Limits of its trust would be lost here.
            "TRUSTED CERTIFICATE" => return Err(section.refused("convert it to a CERTIFICATE first")),
            _ => match read_one_from_slice(text.as_bytes()) {
                Ok(Some((Item::X509Certificate(certificate), _))) => self.certificates.push(certificate),
                Ok(Some((Item::Crl(list), _))) => self.revocation_lists.push(list),
                Ok(Some((Item::Csr(request), _))) => self.requests.push(request),
                Ok(Some((Item::Pkcs8Key(key), _))) => self.keys.push(key.into()),
                Ok(Some((Item::Pkcs1Key(key), _))) => self.keys.push(key.into()),
                Ok(Some((Item::Sec1Key(key), _))) => self.keys.push(key.into()),
                Ok(_) => return Err(section.refused("sections of this kind are not supported")),
                Err(_) => return Err(section.refused("it is not base64")),
            },
        }
        Ok(())
    }

    /// The certificates; at least one.
    pub(crate) fn certificates(&self) -> Result<&[CertificateDer<'static>], Fault> {
        if self.certificates.is_empty() {
            return Err(Fault::NoCertificate);
        }
        Ok(&self.certificates)
    }

    /// The only private key.
    pub(crate) fn key(&self) -> Result<PrivateKeyDer<'static>, Fault> {
        match self.keys.as_slice() {
            [key] => Ok(key.clone_key()),
            [] if self.encrypted => Err(Fault::EncryptedKey),
            [] => Err(Fault::NoKey),
            several => Err(Fault::SeveralKeys(several.len())),
        }
    }

    /// The only private key, decrypted with the passphrase if it is encrypted.
    pub(crate) fn key_under(&self, passphrase: Option<&[u8]>) -> Result<PrivateKeyDer<'static>, Fault> {
        match (passphrase, self.sealed.as_slice()) {
            (Some(passphrase), [sealed]) if self.keys.is_empty() => decrypt(sealed, passphrase),
            (Some(_), [_, _, ..]) => Err(Fault::SeveralKeys(self.sealed.len())),
            _ => self.key(),
        }
    }
}

#[cfg(feature = "encrypted-keys")]
fn decrypt(sealed: &str, passphrase: &[u8]) -> Result<PrivateKeyDer<'static>, Fault> {
    use pkcs8::{EncryptedPrivateKeyInfo, SecretDocument};
    use rustls::pki_types::PrivatePkcs8KeyDer;

    let (_, der) = SecretDocument::from_pem(sealed).map_err(|e| Fault::BadPem(e.to_string()))?;
    let opened = EncryptedPrivateKeyInfo::try_from(der.as_bytes()).and_then(|key| key.decrypt(passphrase));
    let opened = opened.map_err(|e| Fault::WrongPassphrase(e.to_string()))?;
    Ok(PrivatePkcs8KeyDer::from(opened.as_bytes().to_vec()).into())
}

#[cfg(not(feature = "encrypted-keys"))]
fn decrypt(_: &str, _: &[u8]) -> Result<PrivateKeyDer<'static>, Fault> {
    Err(Fault::WrongPassphrase(
        "built without the feature encrypted-keys".to_owned(),
    ))
}

/// The lines that are not blank, with their numbers, counted from 1. If files were joined without a
/// line break, a section begins in the line in which another ends.
fn lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let numbered = text.split('\n').enumerate().flat_map(|(index, line)| {
        let joined = line
            .find("----------BEGIN ")
            .filter(|_| line.starts_with("-----END "));
        let (first, second) = line.split_at(joined.map_or(line.len(), |at| at + 5));
        [first, second].map(|part| (index + 1, part.trim()))
    });
    numbered.filter(|(_, line)| !line.is_empty())
}

/// The label of a section if the line begins one (true) or ends one.
fn boundary(line: &str) -> Option<(bool, &str)> {
    let inner = line.strip_prefix("-----")?.strip_suffix("-----")?;
    let begin = inner.strip_prefix("BEGIN ").map(|label| (true, label));
    begin.or_else(|| inner.strip_prefix("END ").map(|label| (false, label)))
}

/// True for a damaged first or last line, and for base64 without such lines. A line that begins with
/// `#` is a comment.
fn is_like_a_part(line: &str) -> bool {
    let upper = line.replace(['‐', '‑', '–', '—', '−'], "-").to_ascii_uppercase();
    let has = |words: &[&str]| words.iter().any(|word| upper.contains(word));
    let is_boundary =
        has(&["--"]) && has(&["BEGIN", "END"]) && has(&["CERTIFICATE", "KEY", "CRL", "REQUEST", "PKCS"]);
    let is_base64 = |byte: u8| byte.is_ascii_alphanumeric() || b"+/=".contains(&byte);
    !line.starts_with('#') && (is_boundary || line.len() >= 60 && line.bytes().all(is_base64))
}

/// A section whose last line has not come.
struct Open<'a> {
    label: &'a str,
    line: usize,
    body: String,
}

impl Open<'_> {
    fn refused(&self, why: &str) -> Fault {
        Fault::BadPem(format!(
            "section \"{}\" in line {}: {why}",
            excerpt(self.label),
            self.line
        ))
    }

    fn not_ended(&self) -> Fault {
        self.refused("no end of it")
    }
}

#[cfg(test)]
mod tests {
    use base64::Engine;
    use base64::engine::general_purpose::STANDARD;
    use proptest::prelude::*;

    use super::*;

    fn written(label: &str, content: &[u8]) -> String {
        let body: Vec<_> = STANDARD
            .encode(content)
            .into_bytes()
            .chunks(64)
            .map(|line| String::from_utf8_lossy(line).into_owned())
            .collect();
        format!(
            "-----BEGIN {label}-----\n{}\n-----END {label}-----",
            body.join("\n")
        )
    }

    /// The labels in the order in which `contents` returns their sections; the first two are of one kind.
    const LABELS: [&str; 4] = ["CERTIFICATE", "X509 CERTIFICATE", "X509 CRL", "PRIVATE KEY"];

    fn contents(pem: &str) -> Result<Vec<Vec<u8>>, Fault> {
        let found = Sections::read(pem.as_bytes())?;
        let certificates = found.certificates.iter().map(|der| der.to_vec());
        let lists = found.revocation_lists.iter().map(|der| der.to_vec());
        let keys = found.keys.iter().map(|der| der.secret_der().to_vec());
        Ok(certificates.chain(lists).chain(keys).collect())
    }

    #[test]
    fn files_that_were_joined_without_a_line_break_are_read_whole() {
        let [one, two] = [b"one", b"two"].map(|content| written("X509 CRL", content));
        let both = vec![b"one".to_vec(), b"two".to_vec()];
        for between in [
            "",
            "\n",
            "\r\n",
            "\r",
            "\u{feff}",
            "\n\u{feff}",
            "\n # a comment\n",
        ] {
            assert_eq!(
                contents(&format!("{one}{between}{two}")).as_ref(),
                Ok(&both),
                "{between:?}"
            );
        }
        let marked = format!("\u{feff}{one}\n{two}").replace('\n', "\r\n");
        assert_eq!(contents(&marked), Ok(both));
    }

    #[test]
    fn a_fault_repeats_only_the_beginning_of_a_label() {
        let label = "\u{1b}\u{fffd}".repeat(10_000);
        for line in [
            format!("-----BEGIN {label}-----"),
            format!("-----END {label}-----"),
        ] {
            let fault = contents(&line).unwrap_err().to_string();
            assert!(fault.len() < 1000 && !fault.contains('\u{1b}'), "{fault}");
        }
    }

    #[test]
    fn what_is_not_understood_is_refused_with_its_line() {
        let list = written("X509 CRL", b"one");
        let second = written("CERTIFICATE", b"two");
        for (damaged, line) in [
            (second.replace("-----BEGIN", "----BEGIN"), "line 4"),
            (second.replace("-----BEGIN", "x-----BEGIN"), "line 4"),
            (second.replace("-----BEGIN", "–––––BEGIN"), "line 4"),
            (second.replace("BEGIN", "begin"), "line 4"),
            (second.replace("-----END", "----END"), "line 4"),
            (second.replace("END CERTIFICATE", "END CRL"), "line 4"),
            (second.replace("-----END CERTIFICATE-----", ""), "line 4"),
            (second.replace("-----BEGIN CERTIFICATE-----\n", ""), "line 5"),
            ("a".repeat(64), "line 4"),
            (second.replace("CERTIFICATE", "TRUSTED CERTIFICATE"), "line 4"),
            (second.replace("CERTIFICATE", "PKCS7"), "line 4"),
            (second.replace("dHdv", "dHd!"), "line 4"),
            (second.replace("dHdv", &list), "line 4"),
        ] {
            let fault = contents(&format!("{list}\n{damaged}\n")).unwrap_err();
            assert!(
                matches!(&fault, Fault::BadPem(why) if why.contains(line)),
                "{damaged}: {fault}"
            );
        }
        let wide: Vec<u8> = second.encode_utf16().flat_map(u16::to_le_bytes).collect();
        let appended = [format!("{list}\n").as_bytes(), &wide].concat();
        let fault = Sections::read(&appended).map(|_| ()).unwrap_err();
        assert!(
            matches!(&fault, Fault::BadPem(why) if why.contains("line 4")),
            "{fault}"
        );
        let old_label = second.replace("CERTIFICATE", "X509 CERTIFICATE");
        assert_eq!(contents(&old_label), Ok(vec![b"two".to_vec()]));
        assert_eq!(contents("a text"), Err(Fault::NotPem));
    }

    proptest! {
        #[test]
        fn each_section_is_read_or_the_text_is_refused(
            written_before in prop::collection::vec(
                (
                    prop::sample::select(LABELS.to_vec()),
                    prop::collection::vec(any::<u8>(), 1..200),
                    prop::sample::select(vec!["", "\n", "\r\n", "\n\n", "\u{feff}", "\nsubject=CN=a\n", " "]),
                ),
                1..5,
            ),
            lost in prop::option::of((any::<prop::sample::Index>(), 0..5_usize)),
        ) {
            let mut text = String::new();
            let mut expected = Vec::new();
            for (label, content, after) in written_before {
                text += &written(label, &content);
                text += after;
                expected.push((LABELS.iter().position(|one| *one == label).max(Some(1)), content));
            }
            // The sort keeps the order of sections of one kind.
            expected.sort_by_key(|(kind, _)| *kind);
            let expected: Vec<_> = expected.into_iter().map(|(_, content)| content).collect();
            // A few characters of one boundary are lost.
            if let Some((boundary, count)) = lost {
                let boundaries: Vec<_> = text.match_indices("-----").map(|(at, _)| at).collect();
                let at = *boundary.get(&boundaries);
                text.replace_range(at..at + count, "");
            }
            if let Ok(read) = contents(&text) {
                prop_assert_eq!(read, expected);
            }
        }
    }
}
