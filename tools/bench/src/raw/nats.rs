//! The NATS client protocol, as far as it is needed for subjects of one letter.

use ssntp_transport::{Duplex, Halves};

use super::{Side, Subject, Wire, read_until, say};
use crate::failure::Failure;

#[derive(Debug)]
pub(crate) struct Nats;

const CONNECT: &[u8] = b"CONNECT {\"verbose\":false,\"pedantic\":false,\"tls_required\":true,\
\"echo\":false,\"headers\":false,\"lang\":\"raw\",\"version\":\"1\",\"protocol\":1}\r\n";

impl Wire for Nats {
    /// The server sends INFO in clear. Then the client begins TLS.
    fn before_tls(&self, stream: &dyn Duplex) -> Result<(), Failure> {
        let mut info = Vec::new();
        let mut byte = [0];
        while info.last() != Some(&b'\n') {
            match stream.read(&mut byte) {
                Ok(1) if info.len() < 64 * 1024 => info.push(byte[0]),
                Ok(_) => return Err(Failure::new("nats-server sent no INFO")),
                Err(e) => return Err(Failure::new(format!("nats-server: {e}"))),
            }
        }
        Ok(())
    }

    fn greet(&self, halves: &mut Halves, side: Side) -> Result<(), Failure> {
        let mut hello = CONNECT.to_vec();
        match side {
            Side::Sender => {}
            Side::Receiver => hello.extend_from_slice(b"SUB s 1\r\n"),
            Side::Bystander => hello.extend_from_slice(b"SUB b 1\r\n"),
        }
        hello.extend_from_slice(b"PING\r\n");
        say(halves, &hello)?;
        read_until(halves, |bytes| {
            while let Some(end) = bytes.iter().position(|b| *b == b'\n') {
                let line = bytes.split_to(end + 1);
                if line.starts_with(b"-ERR") {
                    let why = String::from_utf8_lossy(&line).trim().to_owned();
                    return Err(Failure::new(format!("nats-server: {why}")));
                }
                if line.starts_with(b"PONG") {
                    return Ok(true);
                }
            }
            Ok(false)
        })
    }

    fn publish(&self, payload: &[u8], subject: Subject, to: &mut Vec<u8>) -> usize {
        let before = to.len();
        let name = match subject {
            Subject::Load => 's',
            Subject::Bystander => 'b',
        };
        to.extend_from_slice(format!("PUB {name} {}\r\n", payload.len()).as_bytes());
        let offset = to.len() - before;
        to.extend_from_slice(payload);
        to.extend_from_slice(b"\r\n");
        offset
    }

    fn deliveries(&self, bytes: &[u8], each: &mut dyn FnMut(&[u8])) -> Option<usize> {
        let mut at = 0;
        while let Some(rest) = bytes.get(at..)
            && let Some(end) = rest.iter().position(|b| *b == b'\n')
        {
            let line = &rest[..end];
            if let Some(fields) = line.strip_prefix(b"MSG ") {
                // The last field is the length of the payload.
                let length = length(fields)?;
                let start = end + 1;
                let Some(payload) = rest.get(start..start + length) else {
                    break;
                };
                if rest.len() < start + length + 2 {
                    break;
                }
                each(payload);
                at += start + length + 2;
            } else if line.starts_with(b"-ERR") {
                return None;
            } else {
                at += end + 1;
            }
        }
        Some(at)
    }
}

/// The number at the end of a line that ends with a carriage return.
fn length(fields: &[u8]) -> Option<usize> {
    let digits = fields.strip_suffix(b"\r")?.rsplit(|b| *b == b' ').next()?;
    if digits.is_empty() || digits.len() > 9 {
        return None;
    }
    digits.iter().try_fold(0, |sum: usize, digit| {
        digit
            .is_ascii_digit()
            .then(|| sum * 10 + usize::from(digit - b'0'))
    })
}
