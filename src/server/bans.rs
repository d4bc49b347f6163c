//! Who is kept out for some time: UUIDs and certificates.
//!
//! A ban is looked for by going through all of them, which for 1,024 takes some
//! microseconds of a handshake's millisecond. One that has ended is as if it were
//! not there, and goes when room is needed. Nothing is kept over the server's end:
//! who is to stay away for good has its certificate revoked.

use std::time::{Duration, Instant};

use uuid::Uuid;

use ssntp_transport::pki::CertificateInfo;

/// The most bans at a time: each may hold [`MAX_ISSUER`] bytes of text.
pub(super) const MAX_BANS: usize = 1024;
/// The longest ban. What is to last longer is for the authority.
pub(super) const MAX_BAN: Duration = Duration::from_secs(365 * 24 * 60 * 60);
/// The longest name of an issuer, in bytes.
pub(super) const MAX_ISSUER: usize = 1024;
/// The longest serial number in bytes. RFC 5280 allows 20.
const MAX_SERIAL: usize = 64;

/// Who is kept out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Banned {
    /// Whoever asks for this UUID.
    Uuid(Uuid),
    /// Whoever has this certificate, or a copy of it.
    Certificate { serial: Serial, issuer: String },
}

/// A ban.
#[derive(Debug)]
pub(super) struct Ban {
    pub(super) number: u64,
    pub(super) who: Banned,
    /// The operator.
    pub(super) by: Uuid,
    pub(super) since: Instant,
    pub(super) until: Instant,
}

/// All bans of a server, in the order of their numbers.
#[derive(Debug, Default)]
pub(super) struct Bans {
    bans: Vec<Ban>,
    numbers: u64,
}

impl Bans {
    /// Keeps somebody out until then, in place of an earlier ban of the same; false
    /// where there are too many already.
    pub(super) fn add(&mut self, who: Banned, by: Uuid, now: Instant, until: Instant) -> bool {
        self.bans.retain(|ban| ban.until > now && ban.who != who);
        if self.bans.len() >= MAX_BANS {
            return false;
        }
        self.numbers += 1;
        self.bans.push(Ban {
            number: self.numbers,
            who,
            by,
            since: now,
            until,
        });
        true
    }

    /// Those that have not ended.
    pub(super) fn standing(&self, now: Instant) -> impl Iterator<Item = &Ban> {
        self.bans.iter().filter(move |ban| ban.until > now)
    }

    /// For how long a newcomer is kept out still.
    pub(super) fn left(&self, uuid: Uuid, certificate: &CertificateInfo, now: Instant) -> Option<Duration> {
        // Usually there is none, and nothing to compare with.
        if self.bans.is_empty() {
            return None;
        }
        let own = Serial::read(&certificate.serial);
        let meant = self.standing(now).filter(|ban| match &ban.who {
            Banned::Uuid(banned) => *banned == uuid,
            Banned::Certificate { serial, issuer } => {
                Some(serial) == own.as_ref() && *issuer == certificate.issuer
            }
        });
        meant.map(|ban| ban.until.saturating_duration_since(now)).max()
    }

    /// Lets somebody in again.
    pub(super) fn lift(&mut self, number: u64) {
        self.bans.retain(|ban| ban.number != number);
    }
}

/// The serial number of a certificate: its bytes without zeros before them, so
/// that all ways of writing one are the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Serial(Vec<u8>);

impl Serial {
    /// Reads hexadecimal digits, in either case, with or without colons.
    pub(super) fn read(text: &str) -> Option<Self> {
        if text.len() > 3 * MAX_SERIAL {
            return None;
        }
        let digits = text.bytes().filter(|byte| *byte != b':');
        let digits = digits.map(|byte| {
            char::from(byte)
                .to_digit(16)
                .and_then(|digit| u8::try_from(digit).ok())
        });
        let mut digits: Vec<u8> = digits.collect::<Option<_>>()?;
        if digits.len() % 2 == 1 {
            digits.insert(0, 0);
        }
        let bytes: Vec<u8> = digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect();
        let fits = (1..=MAX_SERIAL).contains(&bytes.len());
        fits.then(|| Self(without_zeros(&bytes).to_vec()))
    }

    /// Whether it is this one, as it stands in a certificate.
    pub(super) fn is(&self, raw: &[u8]) -> bool {
        !raw.is_empty() && *self.0 == *without_zeros(raw)
    }

    /// As certificates are shown: bytes joined with colons.
    pub(super) fn shown(&self) -> String {
        let bytes = self.0.iter().map(|byte| format!("{byte:02x}"));
        bytes.collect::<Vec<_>>().join(":")
    }
}

/// Zero itself keeps its one.
fn without_zeros(bytes: &[u8]) -> &[u8] {
    let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
    &bytes[zeros.min(bytes.len().saturating_sub(1))..]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_serial_number_is_the_same_however_it_is_written() {
        let serial = Serial::read("00:0F:0a").unwrap();
        for same in ["0f:0a", "f0a", "0000f0a", "F0A", "0:f:0:a"] {
            assert_eq!(Serial::read(same).as_ref(), Some(&serial), "{same}");
        }
        assert_eq!(serial.shown(), "0f:0a");
        assert!(serial.is(&[0x0f, 0x0a]) && serial.is(&[0, 0x0f, 0x0a]));
        for other in [&[0x0f][..], &[0x1f, 0x0a], &[0x0f, 0x0a, 0], &[]] {
            assert!(!serial.is(other), "{other:?}");
        }
        let zero = Serial::read("00").unwrap();
        assert!(zero.is(&[0]) && !zero.is(&[]) && zero.shown() == "00");
        for none in ["", ":", "0x1", "g", "1 2", &"1".repeat(2 * MAX_SERIAL + 1)] {
            assert_eq!(Serial::read(none), None, "{none}");
        }
    }

    proptest! {
        #[test]
        fn what_is_shown_of_a_certificate_names_it(raw in prop::collection::vec(any::<u8>(), 1..21)) {
            let text = raw.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(":");
            let serial = Serial::read(&text).unwrap();
            prop_assert!(serial.is(&raw));
            prop_assert_eq!(Serial::read(&serial.shown()), Some(serial));
        }
    }

    #[test]
    fn bans_are_bounded_and_those_that_ended_make_room() {
        #[expect(clippy::disallowed_methods, reason = "any time will do")]
        let now = Instant::now();
        let later = |seconds| now + Duration::from_secs(seconds);
        let mut bans = Bans::default();
        let who = |number: usize| Banned::Uuid(Uuid::from_u128(number as u128));
        for number in 0..MAX_BANS {
            let ends = if number == 7 { 10 } else { 20 };
            assert!(bans.add(who(number), Uuid::nil(), now, later(ends)));
        }
        let next = who(MAX_BANS);
        assert!(!bans.add(next.clone(), Uuid::nil(), later(9), later(30)));
        // One that is banned already takes no more room.
        assert!(bans.add(who(8), Uuid::max(), now, later(15)));
        assert_eq!(bans.standing(later(9)).count(), MAX_BANS);
        assert_eq!(
            bans.standing(later(9)).last().map(|ban| ban.by),
            Some(Uuid::max())
        );
        assert!(bans.add(next, Uuid::nil(), later(10), later(30)));
        assert_eq!(bans.standing(later(20)).count(), 1);
    }
}
