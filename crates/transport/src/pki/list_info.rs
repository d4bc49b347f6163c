//! The facts in a revocation list, entry by entry: for people, and for the authority
//! that signs the next one. What peers are checked by is in `revocation`.

use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::time::SystemTime;

use rustls::pki_types::CertificateRevocationListDer;
use x509_parser::extensions::ParsedExtension;
use x509_parser::prelude::FromDer;
use x509_parser::revocation_list::CertificateRevocationList;
use x509_parser::time::ASN1Time;

use super::inspect::{self, distinguished_name, hexadecimal, moment, rfc3339};
use super::{BadRequest, Error, Fault, store};
use crate::printable::printable;

/// The facts in one revocation list, read and not judged: whether its authority
/// signed it is for whoever makes use of it to check. What does not show in its
/// texts is escaped.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RevocationListInfo {
    /// The authority whose certificates it revokes, as in `O=ssntp, CN=ssntp CA`.
    pub issuer: String,
    /// Grows with each list of an authority; missing where the list has none, or
    /// one beyond 64 bits.
    pub number: Option<u64>,
    /// When it was signed.
    pub this_update: SystemTime,
    /// By when the authority signs another one.
    pub next_update: Option<SystemTime>,
    /// What it revokes, in its order.
    pub revoked: Vec<Revoked>,
    /// The list itself.
    pub der: CertificateRevocationListDer<'static>,
}

impl RevocationListInfo {
    /// Reads the lists in a PEM file, or the one in a DER file. What else stands in
    /// it is passed over. Blocks while the file is read.
    ///
    /// # Errors
    /// [`Error::Read`]; [`Error::Content`] where there is no list, or a broken one.
    pub fn load(path: impl AsRef<Path>) -> Result<Vec<Self>, Error> {
        let path = path.as_ref();
        let bytes = store::read(path)?;
        Self::of_bytes(&bytes).map_err(Error::content(store::origin(path)))
    }

    fn of_bytes(bytes: &[u8]) -> Result<Vec<Self>, Fault> {
        if !inspect::is_pem(bytes) && bytes.first() == Some(&SEQUENCE) {
            return Ok(vec![Self::from_der(&bytes.to_vec().into())?]);
        }
        let lists = store::Sections::read(bytes)?.revocation_lists;
        let lists: Vec<_> = lists.iter().map(Self::from_der).collect::<Result<_, _>>()?;
        match lists.is_empty() {
            true => Err(Fault::NoRevocationList),
            false => Ok(lists),
        }
    }

    /// Reads a list.
    ///
    /// # Errors
    /// [`Fault::BadRevocationList`].
    pub fn from_der(list: &CertificateRevocationListDer<'_>) -> Result<Self, Fault> {
        let broken = |why: String| Fault::BadRevocationList(printable(&why));
        let parsed = match CertificateRevocationList::from_der(list) {
            Ok(([], parsed)) => parsed,
            Ok((rest, _)) => return Err(broken(format!("{} bytes too many at its end", rest.len()))),
            Err(error) => return Err(broken(error.to_string())),
        };
        let at = |time: &ASN1Time| moment(time).map_err(|fault| broken(fault.to_string()));
        let revoked = parsed.iter_revoked_certificates().map(|entry| {
            let reasons = entry.extensions().iter();
            let mut reasons = reasons.filter_map(|extension| match extension.parsed_extension() {
                ParsedExtension::ReasonCode(code) => Some(RevocationReason(code.0)),
                _ => None,
            });
            Ok(Revoked {
                serial: Serial::of(entry.raw_serial()),
                time: at(&entry.revocation_date)?,
                reason: reasons.next().unwrap_or(RevocationReason::UNSPECIFIED),
            })
        });
        Ok(Self {
            issuer: distinguished_name(parsed.issuer()),
            number: parsed.crl_number().and_then(|number| u64::try_from(number).ok()),
            this_update: at(&parsed.last_update())?,
            next_update: parsed.next_update().map(|time| at(&time)).transpose()?,
            revoked: revoked.collect::<Result<_, Fault>>()?,
            der: list.as_ref().to_vec().into(),
        })
    }

    /// [`this_update`](Self::this_update) in RFC 3339 form.
    pub fn this_update_text(&self) -> String {
        rfc3339(self.this_update)
    }

    /// [`next_update`](Self::next_update) in RFC 3339 form.
    pub fn next_update_text(&self) -> Option<String> {
        self.next_update.map(rfc3339)
    }

    /// Whether it revokes that certificate, if it is the same authority's.
    pub fn revokes(&self, serial: &Serial) -> bool {
        self.revoked.iter().any(|revoked| revoked.serial == *serial)
    }
}

/// What a DER list begins with.
const SEQUENCE: u8 = 0x30;

/// A certificate that a list revokes.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Revoked {
    /// The certificate's.
    pub serial: Serial,
    /// When it was revoked.
    pub time: SystemTime,
    /// Why.
    pub reason: RevocationReason,
}

impl Revoked {
    /// A certificate that is revoked now.
    pub fn now(serial: Serial, reason: RevocationReason) -> Self {
        let time = inspect::now();
        Self { serial, time, reason }
    }

    /// [`time`](Self::time) in RFC 3339 form.
    pub fn time_text(&self) -> String {
        rfc3339(self.time)
    }
}

/// The serial number of a certificate, without zeros in front.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Serial(Vec<u8>);

impl Serial {
    /// The number in these bytes, the highest first.
    pub fn of(bytes: &[u8]) -> Self {
        let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
        Self(bytes.get(zeros..).unwrap_or_default().to_vec())
    }

    /// Its bytes, the highest first.
    pub fn bytes(&self) -> &[u8] {
        &self.0
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

    /// Reads hexadecimal digits as they are printed: with colons between the bytes,
    /// with `0x` in front, or at least 16 of them, so that no name is taken for a
    /// number.
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

/// Why a certificate was revoked: the code of RFC 5280, section 5.3.1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct RevocationReason(pub u8);

impl RevocationReason {
    /// Nobody has said.
    pub const UNSPECIFIED: Self = Self(0);
    /// Somebody else has its key, or may have.
    pub const KEY_COMPROMISE: Self = Self(1);
    /// Its holder is somebody else now, or has another name.
    pub const AFFILIATION_CHANGED: Self = Self(3);
    /// There is another one in its place.
    pub const SUPERSEDED: Self = Self(4);
    /// What it was for is no more.
    pub const CESSATION_OF_OPERATION: Self = Self(5);
    /// Its holder may do less than it says.
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
    fn a_serial_number_is_told_from_a_name() {
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
    fn what_is_no_list_is_told_of() {
        let read = |bytes: &[u8]| RevocationListInfo::of_bytes(bytes).unwrap_err();
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
