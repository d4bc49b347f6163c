//! A client: one request after the other on a connection, each with its answer.

use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Buf, Bytes};
use httparse::{EMPTY_HEADER, Header, Status};
use ssntp_transport::tls::Connector;
use ssntp_transport::{
    Address, BufferPool, Cancel, Duplex, Halves, Outgoing, Target, TcpOptions, left, plain,
};

use crate::message::{JSON, MAX_HEAD, MAX_HEADERS};

/// A connection to a server.
///
/// # Threads
/// One thread owns it. Each call blocks until its deadline at most.
#[derive(Debug)]
pub struct Connection {
    halves: Halves,
    host: String,
    max_body: usize,
    is_used: bool,
}

/// An answer.
#[derive(Debug, PartialEq, Eq)]
pub struct Response {
    /// The status code.
    pub code: u16,
    /// The body.
    pub body: Vec<u8>,
    /// True if the connection accepts another request.
    pub stays: bool,
}

impl Connection {
    /// Connects, over TLS if there is a connector and else in clear, including name resolution. Answers have
    /// at most `max_body` bytes.
    ///
    /// # Errors
    /// The errors of the system and of TLS.
    pub fn open(
        address: &Address,
        tls: Option<&Connector>,
        max_body: usize,
        deadline: Instant,
    ) -> io::Result<Self> {
        let options = TcpOptions {
            unacknowledged: Some(Duration::from_secs(5)),
        };
        let target = Target::Address(address.clone());
        let addresses = target.addresses(left(deadline)?, &Cancel::new())?;
        let (mut remaining, mut result) = (addresses.len(), Err(ErrorKind::NotFound.into()));
        for (at, limit) in addresses {
            // Each address has its share of the time, so that one that hangs leaves time for the others.
            let share = left(deadline)? / u32::try_from(remaining).unwrap_or(u32::MAX);
            let end = ssntp_transport::deadline(share);
            let stream = at.connect(&options, limit.min(share), &Cancel::new());
            result = stream.and_then(|stream| meet(&target, stream, tls, end));
            remaining -= 1;
            if result.is_ok() {
                break;
            }
        }
        let host = match address {
            Address::Unix(_) => "localhost".to_owned(),
            tcp => tcp.to_string(),
        };
        Ok(Self {
            halves: result?,
            host,
            max_body,
            is_used: false,
        })
    }

    /// True after the first answer. The server may close such a connection while it is idle.
    pub fn is_used(&self) -> bool {
        self.is_used
    }

    /// Sends a request with a body of JSON. `authorization` is the value of that header; it has no control
    /// characters.
    ///
    /// # Errors
    /// The errors of the system and of TLS.
    pub fn send(
        &mut self,
        method: &str,
        path: &str,
        authorization: Option<&str>,
        body: &str,
        deadline: Instant,
    ) -> io::Result<()> {
        let authorization = authorization.map(|value| format!("Authorization: {value}\r\n"));
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nContent-Type: {JSON}\r\n{}Content-Length: {}\r\n\r\n{body}",
            self.host,
            authorization.unwrap_or_default(),
            body.len()
        );
        let Halves { stream, transmit, .. } = &mut self.halves;
        // A write takes no deadline, so the socket gets the time that is left.
        stream.set_write_timeout(Some(left(deadline)?))?;
        transmit.transmit(&[Outgoing::whole(Bytes::from(request), 1)])?;
        transmit.idle();
        Ok(())
    }

    /// Waits for the answer. After a time-out it may be called again.
    ///
    /// # Errors
    /// The errors of the system and of TLS, and [`BAD_ANSWER`].
    pub fn receive(&mut self, deadline: Instant) -> io::Result<Response> {
        loop {
            let received = self.halves.inbox.bytes_mut();
            if let Some((response, used)) = parse(received, self.max_body)? {
                received.advance(used);
                self.is_used = true;
                return Ok(response);
            }
            // Twice the memory each time, so that a long answer is not copied at each read.
            received.reserve(received.len());
            if self.halves.receive_until(deadline)?.end {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }
}

/// Makes the handshake of TLS, if there is a connector.
fn meet(
    target: &Target,
    stream: Arc<dyn Duplex>,
    tls: Option<&Connector>,
    deadline: Instant,
) -> io::Result<Halves> {
    let pool = BufferPool::new();
    let Some(tls) = tls else {
        return Ok(plain(stream, pool));
    };
    let secured = tls.connect(stream, target.server_name(), &pool, deadline);
    Ok(secured.map_err(io::Error::other)?.halves)
}

/// An answer and its length in bytes; `None` if more bytes are needed.
fn parse(input: &[u8], max_body: usize) -> io::Result<Option<(Response, usize)>> {
    let mut headers = [EMPTY_HEADER; MAX_HEADERS];
    let mut head = httparse::Response::new(&mut headers);
    let start = input.get(..MAX_HEAD).unwrap_or(input);
    let used = match head.parse(start) {
        Ok(Status::Complete(used)) => used,
        Ok(Status::Partial) if input.len() < MAX_HEAD => return Ok(None),
        Ok(Status::Partial) => return Err(bad("the head of the answer is too long")),
        Err(e) => return Err(bad(format!("the answer is not HTTP/1.1: {e}"))),
    };
    let rest = input.get(used..).unwrap_or_default();
    let code = head.code.unwrap_or_default();
    let stays = head.version == Some(1) && value(head.headers, "connection") != Some("close");
    let whole = if value(head.headers, "transfer-encoding") == Some("chunked") {
        chunks(rest, max_body)?
    } else {
        let length = value(head.headers, "content-length").and_then(|length| length.parse::<usize>().ok());
        let length = length.ok_or_else(|| bad("the answer does not say how long it is"))?;
        check(length, max_body)?;
        rest.get(..length).map(|body| (body.to_vec(), length))
    };
    Ok(whole.map(|(body, length)| (Response { code, body, stays }, used + length)))
}

/// The value of a header, if there is exactly one of this name.
fn value<'a>(headers: &[Header<'a>], name: &str) -> Option<&'a str> {
    let mut found = headers
        .iter()
        .filter(|header| header.name.eq_ignore_ascii_case(name));
    let (value, None) = (found.next()?.value, found.next()) else {
        return None;
    };
    Some(str::from_utf8(value).ok()?.trim())
}

/// A body in chunks, and the length of the chunks with their trailers; `None` if more bytes are
/// needed.
fn chunks(input: &[u8], max_body: usize) -> io::Result<Option<(Vec<u8>, usize)>> {
    // Copied once all of them are there.
    let (mut parts, mut body_len): (Vec<&[u8]>, usize) = Default::default();
    let mut at = 0;
    loop {
        let rest = input.get(at..).unwrap_or_default();
        let (used, length) = match httparse::parse_chunk_size(rest) {
            Ok(Status::Complete(size)) => size,
            Ok(Status::Partial) if rest.len() < MAX_HEAD => return Ok(None),
            _ => return Err(bad("a chunk of the answer has no length")),
        };
        at += used;
        if length == 0 {
            let mut trailers = [EMPTY_HEADER; MAX_HEADERS];
            let rest = input.get(at..).unwrap_or_default();
            return match httparse::parse_headers(rest, &mut trailers) {
                Ok(Status::Complete((used, _))) => Ok(Some((parts.concat(), at + used))),
                Ok(Status::Partial) if rest.len() < MAX_HEAD => Ok(None),
                _ => Err(bad("the end of the answer cannot be read")),
            };
        }
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        // The announced length is checked before the bytes arrive.
        check(length.saturating_add(body_len), max_body)?;
        // Each chunk is followed by an empty line.
        let Some(chunk) = input.get(at..at + length + 2) else {
            return Ok(None);
        };
        parts.push(chunk.get(..length).unwrap_or_default());
        body_len += length;
        at += length + 2;
    }
}

fn check(length: usize, most: usize) -> io::Result<()> {
    if length > most {
        return Err(bad(format!("the answer is longer than {most} bytes")));
    }
    Ok(())
}

/// The kind of error that means that an answer cannot be read. Neither sockets nor TLS return this kind.
pub const BAD_ANSWER: io::ErrorKind = io::ErrorKind::Unsupported;

fn bad(why: impl Into<String>) -> io::Error {
    io::Error::new(BAD_ANSWER, why.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: usize = 4 << 20;
    const HEAD: &str = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n";

    #[test]
    fn an_answer_with_a_length_or_in_chunks_is_read_once_complete() {
        for rest in [
            "Content-Length: 5\r\n\r\nhello",
            "Transfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n",
            "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nX: y\r\n\r\n",
        ] {
            let text = format!("{HEAD}{rest}");
            for cut in 0..text.len() {
                assert_eq!(
                    parse(&text.as_bytes()[..cut], MOST).unwrap(),
                    None,
                    "{rest} {cut}"
                );
            }
            let (reply, used) = parse(format!("{text}HTTP").as_bytes(), MOST).unwrap().unwrap();
            assert_eq!(
                (reply.code, &reply.body[..], reply.stays),
                (200, &b"hello"[..], true)
            );
            assert_eq!(used, text.len());
        }
        let closing = "HTTP/1.1 503 No\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";
        let (reply, _) = parse(closing.as_bytes(), MOST).unwrap().unwrap();
        assert_eq!((reply.code, reply.stays), (503, false));
    }

    #[test]
    fn an_answer_that_is_too_long_or_not_http_is_refused_before_it_is_complete() {
        for (text, reason) in [
            (format!("{HEAD}Content-Length: 4194305\r\n\r\n"), "longer"),
            (
                format!("{HEAD}Transfer-Encoding: chunked\r\n\r\n400001\r\n"),
                "longer",
            ),
            (
                format!("{HEAD}Transfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n"),
                "longer",
            ),
            (format!("{HEAD}Transfer-Encoding: chunked\r\n\r\nx\r\n"), "chunk"),
            (format!("{HEAD}\r\n"), "how long"),
            (format!("{HEAD}X: {}", "y".repeat(9000)), "too long"),
            ("\u{16}\u{3}\u{1}".to_owned(), "HTTP"),
        ] {
            let e = parse(text.as_bytes(), MOST).unwrap_err().to_string();
            assert!(e.contains(reason), "{e}");
        }
    }
}
