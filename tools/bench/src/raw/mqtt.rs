//! MQTT 3.1.1 with QoS 0, as far as it is needed for topics of one letter.

use ssntp_transport::Halves;

use super::{Side, Subject, Wire, read_until, say};
use crate::failure::Failure;

#[derive(Debug)]
pub(crate) struct Mqtt;

/// A clean session without keep-alive, whose name the server chooses.
const CONNECT: &[u8] = b"\x10\x0c\x00\x04MQTT\x04\x02\x00\x00\x00\x00";
/// Packet 1 subscribes a topic with QoS 0.
const SUBSCRIBE: &[u8] = b"\x82\x06\x00\x01\x00\x01s\x00";
const SUBSCRIBE_BYSTANDER: &[u8] = b"\x82\x06\x00\x01\x00\x01b\x00";

const CONNACK: u8 = 0x20;
const SUBACK: u8 = 0x90;
const PUBLISH: u8 = 0x30;

impl Wire for Mqtt {
    fn greet(&self, halves: &mut Halves, side: Side) -> Result<(), Failure> {
        say(halves, CONNECT)?;
        expect(halves, CONNACK)?;
        let subscribe = match side {
            Side::Sender => return Ok(()),
            Side::Receiver => SUBSCRIBE,
            Side::Bystander => SUBSCRIBE_BYSTANDER,
        };
        say(halves, subscribe)?;
        expect(halves, SUBACK)
    }

    fn publish(&self, payload: &[u8], subject: Subject, to: &mut Vec<u8>) -> usize {
        let before = to.len();
        to.push(PUBLISH);
        let mut left = 3 + payload.len();
        loop {
            let [digit, ..] = left.to_le_bytes();
            left >>= 7;
            if left == 0 {
                to.push(digit & 0x7f);
                break;
            }
            to.push(digit | 0x80);
        }
        to.extend_from_slice(match subject {
            Subject::Load => b"\x00\x01s",
            Subject::Bystander => b"\x00\x01b",
        });
        let offset = to.len() - before;
        to.extend_from_slice(payload);
        offset
    }

    fn deliveries(&self, bytes: &[u8], each: &mut dyn FnMut(&[u8])) -> Option<usize> {
        let mut at = 0;
        while let Some((kind, body, used)) = packet(bytes.get(at..)?)? {
            // Topics have one letter, and QoS 0 has no packet number: three bytes in front.
            if kind & 0xf6 == PUBLISH {
                each(body.get(3..)?);
            }
            at += used;
        }
        Some(at)
    }
}

/// The packet at the beginning: its first byte, its body and its length. `Some(None)` if it is
/// not complete yet, and `None` if it is not a packet.
fn packet(bytes: &[u8]) -> Option<Option<(u8, &[u8], usize)>> {
    let Some((kind, rest)) = bytes.split_first() else {
        return Some(None);
    };
    let mut length = 0;
    for digit in 0..4 {
        let Some(byte) = rest.get(digit) else {
            return Some(None);
        };
        length |= usize::from(byte & 0x7f) << (7 * digit);
        if byte & 0x80 == 0 {
            let start = digit + 1;
            let body = rest.get(start..start + length);
            return Some(body.map(|body| (*kind, body, 1 + start + length)));
        }
    }
    None
}

/// Waits for one packet of this kind. Its last byte is the answer: 0 means accepted, or for a
/// subscription the QoS 0.
fn expect(halves: &mut Halves, kind: u8) -> Result<(), Failure> {
    read_until(halves, |bytes| {
        let found = match packet(bytes) {
            None => return Err(Failure::new("mosquitto sent something that is not MQTT")),
            Some(None) => return Ok(false),
            Some(Some((found, body, used))) => (found == kind && body.last() == Some(&0), used),
        };
        let (granted, used) = found;
        let _ = bytes.split_to(used);
        if granted {
            Ok(true)
        } else {
            Err(Failure::new("mosquitto refused the session"))
        }
    })
}
