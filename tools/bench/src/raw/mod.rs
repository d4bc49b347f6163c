//! The load generator. It does as little as possible beside the wire: it encodes what it sends
//! once, in batches of 16 KiB, and counts what it receives without copying it. It is the same
//! for every system, so that no system is measured through a faster client than another.
//!
//! | file | holds |
//! |---|---|
//! | `pki` | throw-away certificates, as files for the servers |
//! | `session` | one connection, and the dialer that makes it |
//! | `crowd` | many of them on one thread |
//! | `ssntp`, `nats`, `mqtt` | the differences: greeting, publication, delivery |

pub(crate) mod crowd;
mod mqtt;
mod nats;
mod pki;
mod session;
mod ssntp;

use std::time::{Duration, Instant};

use ssntp_transport::{Halves, Outgoing};

use crate::failure::Failure;

pub(crate) use self::pki::Pki;
pub(crate) use self::session::Session;
pub(crate) use self::ssntp::broadcast;

/// The time limit of one step of the set-up of a connection.
const LIMIT: Duration = Duration::from_secs(30);

/// A measured system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum System {
    Ssntp,
    /// Another version of ssntp.
    Earlier,
    Nats,
    Mosquitto,
}

impl System {
    /// True if the system speaks SSNTP.
    pub(crate) fn is_ssntp(self) -> bool {
        matches!(self, Self::Ssntp | Self::Earlier)
    }

    /// The name of the program, and of the system in a report.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Ssntp => "ssntp",
            Self::Earlier => "earlier",
            Self::Nats => "nats-server",
            Self::Mosquitto => "mosquitto",
        }
    }

    pub(crate) fn wire(self) -> &'static dyn Wire {
        match self {
            Self::Ssntp | Self::Earlier => &self::ssntp::Ssntp,
            Self::Nats => &self::nats::Nats,
            Self::Mosquitto => &self::mqtt::Mqtt,
        }
    }
}

/// The part that a connection has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// Publishes: an agent.
    Sender,
    /// Receives everything that is published as load: a controller.
    Receiver,
    /// Receives what is published beside the load: a scheduler.
    Bystander,
}

/// The subject of a publication. Servers deliver the two to different receivers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Subject {
    /// The load that a case measures.
    Load,
    /// The pair that shows how the load delays others.
    Bystander,
}

impl Subject {
    /// The receiver of publications about this subject.
    pub(crate) fn receiver(self) -> Side {
        match self {
            Self::Load => Side::Receiver,
            Self::Bystander => Side::Bystander,
        }
    }
}

/// A protocol, as far as it is needed for two subjects.
pub(crate) trait Wire: Sync + std::fmt::Debug {
    /// Does what the protocol needs before TLS.
    fn before_tls(&self, stream: &dyn ssntp_transport::Duplex) -> Result<(), Failure> {
        let _ = stream;
        Ok(())
    }

    /// Greets the server after TLS, and waits until it has accepted the session.
    fn greet(&self, halves: &mut Halves, side: Side) -> Result<(), Failure>;

    /// Appends one publication; returns the offset of its payload in it.
    fn publish(&self, payload: &[u8], subject: Subject, to: &mut Vec<u8>) -> usize;

    /// Hands over the payload of each delivery in `bytes`; returns the number of bytes of
    /// complete deliveries, or `None` if the peer broke the protocol.
    fn deliveries(&self, bytes: &[u8], each: &mut dyn FnMut(&[u8])) -> Option<usize>;
}

/// A batch of publications with a payload of this length: as many as a record of 16 KiB holds,
/// but at least one.
pub(crate) fn batch(system: System, payload: usize) -> Outgoing {
    Stamped::new(system, Subject::Load, payload, usize::MAX).fill(0)
}

/// A batch of equal publications that can carry a time each.
#[derive(Debug)]
pub(crate) struct Stamped {
    bytes: Vec<u8>,
    /// The offset of each payload.
    payloads: Vec<usize>,
}

impl Stamped {
    /// The publications that fit into 16 KiB, but at least one and at most `most`.
    pub(crate) fn new(system: System, subject: Subject, payload: usize, most: usize) -> Self {
        let mut one = Vec::new();
        let offset = system.wire().publish(&vec![b'x'; payload], subject, &mut one);
        let count = (16 * 1024 / one.len()).clamp(1, most.max(1));
        Self {
            payloads: (0..count).map(|n| n * one.len() + offset).collect(),
            bytes: one.repeat(count),
        }
    }

    pub(crate) fn frames(&self) -> usize {
        self.payloads.len()
    }

    /// The batch with `stamp` at the beginning of each payload, if it has 8 bytes.
    pub(crate) fn fill(&mut self, stamp: u64) -> Outgoing {
        if stamp == 0 {
            return self.stamp([].into_iter());
        }
        self.stamp(std::iter::repeat(stamp))
    }

    /// The batch with numbers from `first` on, one at the beginning of each payload.
    pub(crate) fn number(&mut self, first: u64) -> Outgoing {
        self.stamp(first..)
    }

    fn stamp(&mut self, stamps: impl Iterator<Item = u64>) -> Outgoing {
        let length = self.bytes.len() / self.payloads.len();
        let first = self.payloads.first().copied().unwrap_or(0);
        if length - first >= 8 {
            for (&at, stamp) in self.payloads.iter().zip(stamps) {
                self.bytes[at..at + 8].copy_from_slice(&stamp.to_be_bytes());
            }
        }
        let frames = u32::try_from(self.payloads.len()).unwrap_or(u32::MAX);
        Outgoing::whole(self.bytes.clone().into(), frames)
    }
}

/// The stamp of a delivery.
pub(crate) fn stamp(payload: &[u8]) -> Option<u64> {
    payload.first_chunk::<8>().map(|bytes| u64::from_be_bytes(*bytes))
}

/// Reads until `done` finds what it waits for at the beginning of the input.
fn read_until(
    halves: &mut Halves,
    mut done: impl FnMut(&mut bytes::BytesMut) -> Result<bool, Failure>,
) -> Result<(), Failure> {
    while !done(halves.inbox.bytes_mut())? {
        let received = halves.receive.receive(&mut halves.inbox)?;
        if received.end {
            return Err(Failure::new("the server closed the connection"));
        }
    }
    Ok(())
}

/// Sends bytes of a greeting.
fn say(halves: &mut Halves, bytes: &[u8]) -> Result<(), Failure> {
    let whole = Outgoing::whole(bytes.to_vec().into(), 1);
    halves.transmit.transmit(&[whole])?;
    halves.transmit.idle();
    Ok(())
}

pub(crate) fn now() -> Instant {
    Instant::now()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn delivered(system: System, bytes: &[u8]) -> (Option<usize>, Vec<Vec<u8>>) {
        let mut payloads = Vec::new();
        let used = system
            .wire()
            .deliveries(bytes, &mut |payload| payloads.push(payload.to_vec()));
        (used, payloads)
    }

    #[test]
    fn an_ssntp_publication_is_its_own_delivery() {
        let mut bytes = Vec::new();
        let at = System::Ssntp.wire().publish(b"hello", Subject::Load, &mut bytes);
        assert_eq!(bytes[at..], *b"hello");
        assert_eq!(
            delivered(System::Ssntp, &bytes),
            (Some(13), vec![b"hello".to_vec()])
        );
        assert_eq!(delivered(System::Ssntp, &bytes[..12]), (Some(0), vec![]));
    }

    #[test]
    fn an_mqtt_publication_is_its_own_delivery_at_each_length_of_its_length() {
        for length in [0, 124, 125, 16_000, 70_000] {
            let payload = vec![7; length];
            let mut bytes = Vec::new();
            let at = System::Mosquitto
                .wire()
                .publish(&payload, Subject::Load, &mut bytes);
            assert_eq!(bytes[at..], payload);
            assert_eq!(
                delivered(System::Mosquitto, &bytes),
                (Some(bytes.len()), vec![payload])
            );
            assert_eq!(
                delivered(System::Mosquitto, &bytes[..bytes.len() - 1]),
                (Some(0), vec![])
            );
        }
    }

    #[test]
    fn a_nats_delivery_is_found_between_other_lines() {
        let bytes = b"PING\r\nMSG s 1 5\r\nhello\r\n+OK\r\nMSG s 1 0\r\n\r\nMSG s 1 5\r\nhel";
        let (used, payloads) = delivered(System::Nats, bytes);
        assert_eq!(payloads, [b"hello".to_vec(), vec![]]);
        assert_eq!(bytes[used.unwrap()..], *b"MSG s 1 5\r\nhel");
        assert_eq!(delivered(System::Nats, b"-ERR 'slow'\r\n").0, None);
        assert_eq!(delivered(System::Nats, b"MSG s 1 many\r\n").0, None);
    }

    #[test]
    fn each_publication_of_a_batch_carries_the_stamp() {
        for system in [System::Ssntp, System::Mosquitto] {
            let mut batch = Stamped::new(system, Subject::Load, 256, usize::MAX);
            let frames = batch.frames();
            let out = batch.fill(0x0102_0304);
            assert!(frames > 50 && out.len() <= 16 * 1024, "{frames}");
            let mut stamps = Vec::new();
            let bytes = batch.bytes.clone();
            system
                .wire()
                .deliveries(&bytes, &mut |payload| stamps.extend(stamp(payload)));
            assert_eq!(stamps, vec![0x0102_0304; frames]);
            let out = batch.number(7);
            assert_eq!(out.frames() as usize, frames);
            stamps.clear();
            let bytes = batch.bytes.clone();
            system
                .wire()
                .deliveries(&bytes, &mut |payload| stamps.extend(stamp(payload)));
            assert_eq!(stamps, (7..).take(frames).collect::<Vec<_>>());
        }
        assert_eq!(batch(System::Nats, 65_536).frames(), 1);
    }
}
