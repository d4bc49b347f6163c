//! The exchange with which a node joins, for both ends (docs/protocol.md, "Joining").
//!
//! Each side sends one message: four bytes with its length, and YAML. The request is a [`JoinRequest`], the answer a
//! [`JoinAnswer`].

use std::io;
use std::time::Instant;

use bytes::{BufMut, Bytes, BytesMut};
use serde::{Deserialize, Serialize};
use ssntp_pki::{JoinRefusal, JoinRequest};
use ssntp_transport::{Halves, Outgoing};

use crate::payload::schema;

/// The longest request, in bytes of YAML.
pub(crate) const MAX_REQUEST: usize = 16 << 10;
/// The longest answer, in bytes of YAML.
pub(crate) const MAX_ANSWER: usize = 64 << 10;

/// The answer to a request to join.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct JoinAnswer {
    /// The node's certificate and its issuer's, as PEM; empty after a refusal.
    pub(crate) certificate: String,
    /// The word for the refusal; empty if there is none.
    pub(crate) refused: String,
    /// The refusal as a sentence.
    pub(crate) detail: String,
}

impl JoinAnswer {
    pub(crate) fn new(decided: Result<String, &JoinRefusal>) -> Self {
        match decided {
            Ok(certificate) => Self {
                certificate,
                ..Self::default()
            },
            Err(why) => Self {
                refused: why.word().to_owned(),
                detail: why.to_string(),
                ..Self::default()
            },
        }
    }

    /// Reads an answer without its length.
    pub(crate) fn read(yaml: &[u8]) -> Result<Self, String> {
        read(yaml, MAX_ANSWER)
    }
}

/// Reads a request without its length.
pub fn read_request(yaml: &[u8]) -> Result<JoinRequest, String> {
    read(yaml, MAX_REQUEST)
}

fn read<T: serde::de::DeserializeOwned>(yaml: &[u8], most: usize) -> Result<T, String> {
    let read = schema::read(yaml, None, most);
    read.map(|(value, _)| value).map_err(|e| e.to_string())
}

/// The message with this content.
pub(crate) fn message(content: &impl Serialize) -> Outgoing {
    let yaml = schema::write(content, None);
    let mut message = BytesMut::with_capacity(4 + yaml.len());
    message.put_u32(u32::try_from(yaml.len()).unwrap_or(u32::MAX));
    message.put(yaml);
    Outgoing::whole(message.freeze(), 1)
}

/// Receives the YAML of one message of at most `most` bytes. Blocks until the deadline.
///
/// # Errors
/// `InvalidData` if the message is longer; the error of the stream.
pub(crate) fn receive(halves: &mut Halves, most: usize, deadline: Instant) -> io::Result<Bytes> {
    loop {
        let inbox = halves.inbox.bytes_mut();
        if let Some(length) = inbox.first_chunk().copied().map(u32::from_be_bytes) {
            let length = usize::try_from(length).unwrap_or(usize::MAX);
            if length > most {
                let why = format!("the message has {length} bytes, and {most} are allowed");
                return Err(io::Error::new(io::ErrorKind::InvalidData, why));
            }
            if inbox.len() >= 4 + length {
                return Ok(inbox.split_to(4 + length).freeze().slice(4..));
            }
        }
        let before = inbox.len();
        let received = halves.receive_until(deadline)?;
        if received.end && halves.inbox.bytes_mut().len() == before {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}
