//! One revocation list and its entries. `revocation` decides whether the list counts.

use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::time::SystemTime;

use rustls::pki_types::CertificateRevocationListDer;
use x509_parser::asn1_rs::{Any, Class, FromDer, Tag};
use x509_parser::error::X509Error;
use x509_parser::extensions::{ParsedExtension, X509Extension};
use x509_parser::revocation_list::RevokedCertificate;
use x509_parser::time::ASN1Time;
use x509_parser::x509::{AlgorithmIdentifier, X509Name};

use crate::der::{self, distinguished_name, hexadecimal, rfc3339};
use crate::error::{BadRequest, Error, Fault};
use crate::inspect::CertificateInfo;
use crate::pem::Sections;
use crate::store;
use ssntp_transport::printable;

/// The facts in one revocation list, which are read but not judged: the caller has to check the
/// signature. Hidden characters in its texts are escaped.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RevocationList {
    /// The authority whose certificates it revokes, as in [`CertificateInfo::issuer`].
    pub issuer: String,
    /// Grows with each list of an authority. `None` if the list has no number, or one of more than 64
    /// bits.
    pub number: Option<u64>,
    /// The time at which it was signed.
    pub this_update: SystemTime,
    /// The time at which a newer list is due, if the list states one.
    pub next_update: Option<SystemTime>,
    /// The list itself.
    pub der: CertificateRevocationListDer<'static>,
    /// The issuer's name in DER, which is compared with that of certificates.
    pub(crate) name: Box<[u8]>,
    /// False for a list of changes to another list, for a list of several issuers, and for one with
    /// an unknown critical extension.
    pub(crate) is_understood: bool,
    /// Sorted, each once.
    serials: Box<[Serial]>,
}

impl RevocationList {
    /// Reads the lists in a PEM file, or the one in a DER file. Other PEM sections are ignored. Blocks
    /// while the file is read.
    ///
    /// # Errors
    /// [`Error::Read`]; [`Error::Content`] if there is no list, or a broken one.
    pub fn load(path: impl AsRef<Path>) -> Result<Vec<Self>, Error> {
        let path = path.as_ref();
        let bytes = store::read(path)?;
        Self::of_bytes(&bytes).map_err(Error::content(store::origin(path)))
    }

    fn of_bytes(bytes: &[u8]) -> Result<Vec<Self>, Fault> {
        // Authorities publish their lists in DER, which begins with a sequence.
        if !der::is_pem(bytes) && bytes.first() == Some(&SEQUENCE) {
            return Ok(vec![Self::from_der(&bytes.to_vec().into())?]);
        }
        let lists = Sections::read(bytes)?.revocation_lists;
        if lists.is_empty() {
            Err(Fault::NoRevocationList)
        } else {
            lists.iter().map(Self::from_der).collect()
        }
    }

    /// Reads a list.
    ///
    /// # Errors
    /// [`Fault::BadRevocationList`], [`Fault::NotDer`].
    pub fn from_der(list: &CertificateRevocationListDer<'_>) -> Result<Self, Fault> {
        let parts = Parts::read(list)?;
        let mut is_understood = parts.extensions.iter().all(of_list);
        let mut serials = Vec::new();
        for entry in parts.entries() {
            let entry = entry?;
            is_understood &= entry.extensions().iter().all(of_entry);
            serials.push(Revoked::read(&entry).serial);
        }
        serials.sort_unstable();
        serials.dedup();
        let number = parts
            .extensions
            .iter()
            .find_map(|extension| match extension.parsed_extension() {
                ParsedExtension::CRLNumber(number) => Some(u64::try_from(number).ok()),
                _ => None,
            });
        Ok(Self {
            issuer: distinguished_name(&parts.issuer),
            number: number.flatten(),
            this_update: parts.this_update.to_datetime().into(),
            next_update: parts.next_update.map(|time| time.to_datetime().into()),
            der: list.as_ref().to_vec().into(),
            name: parts.issuer.as_raw().into(),
            is_understood,
            serials: serials.into(),
        })
    }

    /// The certificates that it revokes, in the order of the list.
    pub fn revoked(&self) -> Vec<Revoked> {
        let parts = Parts::read(&self.der);
        let entries = parts.iter().flat_map(Parts::entries);
        // No entry is broken, because the same bytes were read before.
        entries.flatten().map(|entry| Revoked::read(&entry)).collect()
    }

    /// The number of certificates that it revokes.
    pub fn len(&self) -> usize {
        self.serials.len()
    }

    /// True if it revokes no certificate.
    pub fn is_empty(&self) -> bool {
        self.serials.is_empty()
    }

    /// True if it revokes the certificate with that serial number. The caller has to check that the same
    /// authority issued both.
    pub fn revokes(&self, serial: &Serial) -> bool {
        self.serials.binary_search(serial).is_ok()
    }

    /// [`this_update`](Self::this_update) in RFC 3339 form.
    pub fn this_update_text(&self) -> String {
        rfc3339(self.this_update)
    }

    /// [`next_update`](Self::next_update) in RFC 3339 form.
    pub fn next_update_text(&self) -> Option<String> {
        self.next_update.map(rfc3339)
    }

    /// True if a newer list is due at that time.
    pub fn is_overdue(&self, at: SystemTime) -> bool {
        self.next_update.is_some_and(|next| at >= next)
    }

    pub(crate) fn overdue(&self) -> Fault {
        Fault::RevocationListOverdue {
            issuer: self.issuer.clone(),
            next_update: self.next_update_text().unwrap_or_default(),
        }
    }
}

impl fmt::Debug for RevocationList {
    /// Without the serial numbers, because there may be 250,000.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RevocationList")
            .field("issuer", &self.issuer)
            .field("next_update", &self.next_update_text())
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}

/// The parts of a list in DER: RFC 5280, section 5.1. Its entries are read one at a time, because
/// parsing all at once would take some twenty times the memory of the list.
struct Parts<'a> {
    issuer: X509Name<'a>,
    this_update: ASN1Time,
    next_update: Option<ASN1Time>,
    entries: &'a [u8],
    extensions: Vec<X509Extension<'a>>,
}

impl<'a> Parts<'a> {
    fn read(der: &'a [u8]) -> Result<Self, Fault> {
        if der::is_pem(der) {
            return Err(Fault::NotDer);
        }
        let (list, after) = sequence(der)?;
        if !after.is_empty() {
            return Err(bad(format!("{} bytes too many at its end", after.len())));
        }
        // The rest is the signature, which is checked elsewhere.
        let (signed, _) = sequence(list)?;
        let (after_version, first) = Any::from_der(signed).map_err(bad)?;
        // The version is optional; without it the algorithm, a sequence, is first.
        let rest = match first.tag() {
            Tag::Integer => after_version,
            _ => signed,
        };
        let (rest, _) = AlgorithmIdentifier::from_der(rest).map_err(bad)?;
        let (rest, issuer) = X509Name::from_der(rest).map_err(bad)?;
        let (rest, this_update) = ASN1Time::from_der(rest).map_err(bad)?;
        // RFC 5280 has two kinds of times. Without a time, a sequence or the end follows here.
        let (rest, next_update) = match rest.first() {
            Some(&UTC_TIME | &GENERALIZED_TIME) => {
                let (rest, time) = ASN1Time::from_der(rest).map_err(bad)?;
                (rest, Some(time))
            }
            _ => (rest, None),
        };
        let has_entries = rest.first() == Some(&SEQUENCE);
        let (entries, rest) = if has_entries {
            sequence(rest)?
        } else {
            (&[][..], rest)
        };
        let mut extensions = Vec::new();
        if !rest.is_empty() {
            let (after, tagged) = Any::from_der(rest).map_err(bad)?;
            let is_tagged = tagged.class() == Class::ContextSpecific && tagged.tag() == Tag(0);
            if !after.is_empty() || !is_tagged {
                return Err(bad("bytes that are neither entries nor extensions"));
            }
            let (content, _) = sequence(tagged.data)?;
            extensions = each(content).collect::<Result<_, _>>()?;
        }
        Ok(Self {
            issuer,
            this_update,
            next_update,
            entries,
            extensions,
        })
    }

    fn entries(&self) -> impl Iterator<Item = Result<RevokedCertificate<'a>, Fault>> + use<'a> {
        each(self.entries)
    }
}

/// The elements that follow one another in these bytes. A broken element is the last.
fn each<'a, T: FromDer<'a, X509Error>>(mut rest: &'a [u8]) -> impl Iterator<Item = Result<T, Fault>> {
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let read = T::from_der(rest).map_err(bad);
        rest = read.as_ref().map_or(&[][..], |(after, _)| after);
        Some(read.map(|(_, element)| element))
    })
}

/// The content of a sequence, and the bytes after it.
fn sequence(der: &[u8]) -> Result<(&[u8], &[u8]), Fault> {
    let (after, sequence) = Any::from_der(der).map_err(bad)?;
    sequence.header.assert_tag(Tag::Sequence).map_err(bad)?;
    Ok((sequence.data, after))
}

fn bad(why: impl fmt::Display) -> Fault {
    Fault::BadRevocationList(printable(&why.to_string()))
}

/// 2.5.29.27: the list holds only changes to another list.
const CHANGES_ONLY: [u8; 3] = [0x55, 0x1d, 0x1b];

/// True if an extension of a list leaves the meaning of the list unchanged.
fn of_list(extension: &X509Extension<'_>) -> bool {
    match extension.parsed_extension() {
        _ if extension.oid.as_bytes() == CHANGES_ONLY => false,
        ParsedExtension::IssuingDistributionPoint(point) => !point.indirect_crl,
        ParsedExtension::CRLNumber(_) | ParsedExtension::AuthorityKeyIdentifier(_) => true,
        // RFC 5280 requires that an extension that changes the meaning is critical.
        _ => !extension.critical,
    }
}

/// As [`of_list`], for an extension of one entry.
fn of_entry(extension: &X509Extension<'_>) -> bool {
    match extension.parsed_extension() {
        ParsedExtension::ReasonCode(_) | ParsedExtension::InvalidityDate(_) => true,
        _ => !extension.critical,
    }
}

/// The tags of elements in DER.
const SEQUENCE: u8 = 0x30;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;

/// A certificate that a list revokes.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Revoked {
    /// The certificate's serial number.
    pub serial: Serial,
    /// The time at which it was revoked.
    pub time: SystemTime,
    /// The reason of the revocation.
    pub reason: RevocationReason,
}

impl Revoked {
    /// A certificate that is revoked at the present time.
    pub fn now(serial: Serial, reason: RevocationReason) -> Self {
        let time = der::now();
        Self { serial, time, reason }
    }

    fn read(entry: &RevokedCertificate<'_>) -> Self {
        let mut extensions = entry.extensions().iter();
        let reason = extensions.find_map(|extension| match extension.parsed_extension() {
            ParsedExtension::ReasonCode(code) => Some(RevocationReason(code.0)),
            _ => None,
        });
        Self {
            serial: Serial::of(entry.raw_serial()),
            time: entry.revocation_date.to_datetime().into(),
            reason: reason.unwrap_or_default(),
        }
    }

    /// [`time`](Self::time) in RFC 3339 form.
    pub fn time_text(&self) -> String {
        rfc3339(self.time)
    }
}

/// The serial number of a certificate, without leading zeros: DER puts a zero before a number whose
/// first bit is set, and some programs omit it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Serial(Vec<u8>);

impl Serial {
    /// The number in these bytes, the most significant first.
    pub fn of(bytes: &[u8]) -> Self {
        let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
        Self(bytes[zeros..].to_vec())
    }

    /// Its bytes, the most significant first.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

/// The certificate's serial number.
impl From<&CertificateInfo> for Serial {
    fn from(certificate: &CertificateInfo) -> Self {
        let parsed = der::certificate(&certificate.der);
        Self::of(parsed.as_ref().map_or(&[], |parsed| parsed.raw_serial()))
    }
}

impl fmt::Display for Serial {
    /// In hexadecimal, bytes joined with colons.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hexadecimal(&self.0))
    }
}

impl FromStr for Serial {
    type Err = BadRequest;

    /// Reads hexadecimal digits: with colons between the bytes, with `0x` in front, or at least 16 digits.
    /// A shorter text could be a name.
    fn from_str(text: &str) -> Result<Self, BadRequest> {
        let wrong = || BadRequest::Serial(text.to_owned());
        let digits = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
            Some(digits) => digits.to_owned(),
            None if text.contains(':') && text.split(':').all(|byte| byte.len() == 2) => {
                text.replace(':', "")
            }
            None if text.len() >= 16 => text.to_owned(),
            None => return Err(wrong()),
        };
        let digits = match digits.len() % 2 {
            0 => digits,
            _ => format!("0{digits}"),
        };
        // RFC 5280 allows 20 bytes.
        if !(2..=40).contains(&digits.len()) || !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return Err(wrong());
        }
        let bytes = (0..digits.len()).step_by(2);
        let bytes = bytes.filter_map(|at| u8::from_str_radix(&digits[at..at + 2], 16).ok());
        match Self::of(&bytes.collect::<Vec<_>>()) {
            zero if zero.0.is_empty() => Err(wrong()),
            serial => Ok(serial),
        }
    }
}

/// The reason of a revocation: the code of RFC 5280, section 5.3.1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct RevocationReason(pub u8);

impl RevocationReason {
    /// No reason was given.
    pub const UNSPECIFIED: Self = Self(0);
    /// The private key is, or may be, known to others.
    pub const KEY_COMPROMISE: Self = Self(1);
    /// The holder's name or affiliation has changed.
    pub const AFFILIATION_CHANGED: Self = Self(3);
    /// Another certificate replaces it.
    pub const SUPERSEDED: Self = Self(4);
    /// It is no longer needed for its purpose.
    pub const CESSATION_OF_OPERATION: Self = Self(5);
    /// The holder lost a privilege that the certificate states.
    pub const PRIVILEGE_WITHDRAWN: Self = Self(9);

    const NAMES: [(Self, &'static str); 6] = [
        (Self::UNSPECIFIED, "unspecified"),
        (Self::KEY_COMPROMISE, "key-compromise"),
        (Self::AFFILIATION_CHANGED, "affiliation-changed"),
        (Self::SUPERSEDED, "superseded"),
        (Self::CESSATION_OF_OPERATION, "cessation-of-operation"),
        (Self::PRIVILEGE_WITHDRAWN, "privilege-withdrawn"),
    ];
}

impl fmt::Display for RevocationReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match Self::NAMES.iter().find(|(reason, _)| reason == self) {
            Some((_, name)) => f.write_str(name),
            None => write!(f, "reason {}", self.0),
        }
    }
}

impl FromStr for RevocationReason {
    type Err = BadRequest;

    fn from_str(text: &str) -> Result<Self, BadRequest> {
        let found = Self::NAMES.iter().find(|(_, name)| *name == text);
        found
            .map(|(reason, _)| *reason)
            .ok_or_else(|| BadRequest::Reason(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_serial_number_is_distinguished_from_a_name() {
        let read = |text: &str| text.parse::<Serial>().map(|serial| serial.to_string());
        assert_eq!(read("4b:0C:ff").unwrap(), "4b:0c:ff");
        assert_eq!(read("00:80").unwrap(), "80");
        assert_eq!(read("0x1000").unwrap(), "10:00");
        assert_eq!(read("0xabc").unwrap(), "0a:bc");
        assert_eq!(read("0123456789abcdef").unwrap(), "01:23:45:67:89:ab:cd:ef");
        for name in [
            "",
            "cafe",
            "deed01",
            "agent-7",
            ":",
            "a:b",
            "zz:zz",
            "0x",
            "0x0",
            "00:00",
            "\u{fc}\u{fc}:00",
            "fedcba9876543210g",
            "0x00112233445566778899aabbccddeeff0011223344",
        ] {
            assert!(read(name).is_err(), "{name}");
        }
    }

    #[test]
    fn bytes_that_are_no_list_are_an_error() {
        let read = |bytes: &[u8]| RevocationList::of_bytes(bytes).unwrap_err();
        assert_eq!(read(b""), Fault::NotPem);
        assert!(matches!(read(&[0x30, 0x03, 1]), Fault::BadRevocationList(_)));
        let other = "-----BEGIN EC PARAMETERS-----\nAAAA\n-----END EC PARAMETERS-----\n";
        assert_eq!(read(other.as_bytes()), Fault::NoRevocationList);
        let list = "-----BEGIN X509 CRL-----\nAAAA\n-----END X509 CRL-----\n";
        assert!(matches!(read(list.as_bytes()), Fault::BadRevocationList(_)));
        assert!(matches!(read(&list.as_bytes()[..30]), Fault::BadPem(_)));
    }

    #[test]
    fn reasons_are_read_as_they_print() {
        for (reason, name) in RevocationReason::NAMES {
            assert_eq!(name.parse::<RevocationReason>().unwrap(), reason);
            assert_eq!(reason.to_string(), name);
        }
        assert_eq!(RevocationReason(6).to_string(), "reason 6");
        assert!("hold".parse::<RevocationReason>().is_err());
    }
}
