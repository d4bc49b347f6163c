//! The exchange with which a node joins, for both ends (docs/protocol.md, "Joining").
//!
//! Each side sends one message: four bytes with its length, and YAML. The request is a
//! [`JoinRequest`](ssntp_pki::JoinRequest), the answer a [`JoinAnswer`].

use std::io;
use std::time::Instant;

use bytes::{BufMut, BytesMut};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use ssntp_pki::JoinRefusal;
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
        let (certificate, refused, detail) = match decided {
            Ok(certificate) => (certificate, "", String::new()),
            Err(why) => (String::new(), why.word(), why.to_string()),
        };
        Self {
            certificate,
            refused: refused.to_owned(),
            detail,
        }
    }
}

/// Reads a message without its length.
pub fn read<T: DeserializeOwned>(yaml: &[u8]) -> Result<T, JoinRefusal> {
    let read = schema::read(yaml, None, MAX_ANSWER);
    read.map(|(value, _)| value)
        .map_err(|e| JoinRefusal::Request(e.to_string()))
}

/// The message with this content.
pub(crate) fn message(content: &impl Serialize) -> Outgoing {
    let yaml = schema::write(content, None);
    let mut message = BytesMut::with_capacity(4 + yaml.len());
    message.put_u32(u32::try_from(yaml.len()).unwrap_or(u32::MAX));
    message.put(yaml);
    Outgoing::whole(message.freeze(), 1)
}

/// Receives one message, or refuses it if it has more than `most` bytes or cannot be read. Blocks until the deadline.
///
/// # Errors
/// The error of the stream.
pub(crate) fn receive<T: DeserializeOwned>(
    halves: &mut Halves,
    most: usize,
    deadline: Instant,
) -> io::Result<Result<T, JoinRefusal>> {
    loop {
        let inbox = halves.inbox.bytes_mut();
        if let Some((length, rest)) = inbox.split_first_chunk() {
            let length = u32::from_be_bytes(*length) as usize;
            if length > most {
                let why = format!("a message of {length} bytes, and {most} are allowed");
                return Ok(Err(JoinRefusal::Request(why)));
            }
            if let Some(yaml) = rest.get(..length) {
                return Ok(read(yaml));
            }
        }
        let before = inbox.len();
        let received = halves.receive_until(deadline)?;
        if received.end && halves.inbox.bytes_mut().len() == before {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}

#[cfg(test)]
mod tests {
    use ssntp_pki::{JoinRequest, SigningRequest};

    use super::*;

    /// An example of docs/protocol.md: its four bytes of length, and its YAML.
    fn example(name: &str) -> (Vec<u8>, String) {
        let page = include_str!("../docs/protocol.md");
        let (length, yaml) = page
            .split_once(&format!("\n```join {name} "))
            .and_then(|(_, rest)| rest.split("\n```").next()?.split_once('\n'))
            .unwrap();
        let bytes = length
            .split(' ')
            .map(|byte| u8::from_str_radix(byte, 16).unwrap());
        (bytes.collect(), format!("{yaml}\n"))
    }

    fn written(message: &Outgoing) -> Vec<u8> {
        message.parts().flatten().copied().collect()
    }

    #[test]
    fn the_examples_of_the_page_are_what_the_code_writes_and_reads() {
        let (length, yaml) = example("request");
        let request: JoinRequest = read(yaml.as_bytes()).unwrap();
        assert_eq!(written(&message(&request)), [&length, yaml.as_bytes()].concat());
        SigningRequest::from_pem(&request.request).unwrap();
        let (length, yaml) = example("answer");
        let answer = JoinAnswer::new(Err(&JoinRefusal::Used));
        assert_eq!(read(yaml.as_bytes()).as_ref(), Ok(&answer));
        assert_eq!(written(&message(&answer)), [&length, yaml.as_bytes()].concat());
    }

    #[test]
    fn the_words_of_refusals_are_on_the_page() {
        let page = include_str!("../docs/protocol.md");
        let text = String::new;
        let refusals = [
            JoinRefusal::Proof,
            JoinRefusal::Ended,
            JoinRefusal::Used,
            JoinRefusal::Roles {
                token: Default::default(),
                asked: Default::default(),
            },
            JoinRefusal::Request(text()),
            JoinRefusal::Issuer(text()),
            JoinRefusal::Busy,
            JoinRefusal::Unavailable,
        ];
        for refusal in refusals {
            assert!(page.contains(&format!("`{}`", refusal.word())), "{refusal:?}");
        }
    }
}
