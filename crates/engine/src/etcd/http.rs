//! The part of HTTP/1.1 that etcd's gateway needs: one POST at a time and its answer.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Buf, Bytes};
use httparse::{EMPTY_HEADER, Header, Status};
use ssntp_transport::tls::Connector;
use ssntp_transport::{Address, BufferPool, Cancel, Halves, Outgoing, Target, TcpOptions, left, plain};

/// The longest head of an answer. etcd sends some 400 bytes.
const HEAD: usize = 8 * 1024;
/// The maximum number of headers of an answer. etcd sends eight.
const HEADERS: usize = 32;
/// The longest answer. A cluster of 100 members with a configuration of 1 MiB in base64 needs a third
/// of this.
pub(super) const LONGEST: usize = 4 << 20;

/// A connection to an endpoint, for one request after the other.
#[derive(Debug)]
pub(super) struct Connection {
    halves: Halves,
    host: String,
    /// True after the first answer. The peer may close such a connection while it is idle.
    pub(super) is_used: bool,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Reply {
    pub(super) status: u16,
    pub(super) body: Vec<u8>,
    /// True if the connection accepts another request.
    pub(super) stays: bool,
}

impl Connection {
    /// Connects, over TLS if there is a connector and else in clear. Blocks until the deadline at
    /// most, including name resolution.
    pub(super) fn open(address: &Address, tls: Option<&Connector>, deadline: Instant) -> io::Result<Self> {
        // A call waits for at most a second, so keep-alive probes of the system are not needed.
        let options = TcpOptions {
            keep_alive: None,
            unacknowledged: Some(Duration::from_secs(5)),
        };
        let target = Target::Address(address.clone());
        let stream = target.connect(&options, left(deadline)?, &Cancel::new())?;
        let halves = match tls {
            Some(tls) => {
                let secured = tls.connect(
                    Arc::clone(&stream),
                    target.server_name(),
                    &BufferPool::new(),
                    deadline,
                );
                secured.map_err(io::Error::other)?.halves
            }
            None => plain(stream, BufferPool::new()),
        };
        Ok(Self {
            halves,
            host: address.to_string(),
            is_used: false,
        })
    }

    /// Sends a request and waits for the answer, until the deadline at most.
    pub(super) fn post(
        &mut self,
        path: &str,
        token: Option<&str>,
        body: &str,
        deadline: Instant,
    ) -> io::Result<Reply> {
        let authorization = token.map(|token| format!("Authorization: {token}\r\n"));
        let request = format!(
            "POST {path} HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\n{}Content-Length: {}\r\n\r\n{body}",
            self.host,
            authorization.unwrap_or_default(),
            body.len()
        );
        let Halves { stream, transmit, .. } = &mut self.halves;
        // A write takes no deadline, so the socket gets the time that is left.
        stream.set_write_timeout(Some(left(deadline)?))?;
        transmit.transmit(&[Outgoing::whole(Bytes::from(request), 1)])?;
        transmit.idle();
        loop {
            let received = self.halves.inbox.bytes_mut();
            if let Some((reply, used)) = parse(received)? {
                received.advance(used);
                self.is_used = true;
                return Ok(reply);
            }
            if self.halves.receive_until(deadline)?.end {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }
}

/// An answer and its length in bytes; `None` if more bytes are needed.
fn parse(input: &[u8]) -> io::Result<Option<(Reply, usize)>> {
    let mut headers = [EMPTY_HEADER; HEADERS];
    let mut head = httparse::Response::new(&mut headers);
    let start = input.get(..HEAD).unwrap_or(input);
    let used = match head.parse(start) {
        Ok(Status::Complete(used)) => used,
        Ok(Status::Partial) if input.len() < HEAD => return Ok(None),
        Ok(Status::Partial) => return Err(bad("the head of the answer is too long")),
        Err(e) => return Err(bad(format!("the answer is not HTTP/1.1: {e}"))),
    };
    let rest = input.get(used..).unwrap_or_default();
    let status = head.code.unwrap_or_default();
    let stays = head.version == Some(1) && value(head.headers, "connection") != Some("close");
    let whole = if value(head.headers, "transfer-encoding") == Some("chunked") {
        chunks(rest)?
    } else {
        let len = value(head.headers, "content-length").and_then(|len| len.parse::<usize>().ok());
        let len = len.ok_or_else(|| bad("the answer does not say how long it is"))?;
        check(len)?;
        rest.get(..len).map(|body| (body.to_vec(), len))
    };
    Ok(whole.map(|(body, len)| (Reply { status, body, stays }, used + len)))
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
fn chunks(input: &[u8]) -> io::Result<Option<(Vec<u8>, usize)>> {
    let mut body = Vec::new();
    let mut at = 0;
    loop {
        let rest = input.get(at..).unwrap_or_default();
        let (used, len) = match httparse::parse_chunk_size(rest) {
            Ok(Status::Complete(size)) => size,
            Ok(Status::Partial) if rest.len() < HEAD => return Ok(None),
            _ => return Err(bad("a chunk of the answer has no length")),
        };
        at += used;
        if len == 0 {
            let mut trailers = [EMPTY_HEADER; HEADERS];
            let rest = input.get(at..).unwrap_or_default();
            return match httparse::parse_headers(rest, &mut trailers) {
                Ok(Status::Complete((used, _))) => Ok(Some((body, at + used))),
                Ok(Status::Partial) if rest.len() < HEAD => Ok(None),
                _ => Err(bad("the end of the answer cannot be read")),
            };
        }
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        // The announced length is checked before the bytes arrive.
        check(len.saturating_add(body.len()))?;
        // Each chunk is followed by an empty line.
        let Some(chunk) = input.get(at..at + len + 2) else {
            return Ok(None);
        };
        body.extend_from_slice(chunk.get(..len).unwrap_or_default());
        at += len + 2;
    }
}

fn check(len: usize) -> io::Result<()> {
    match len <= LONGEST {
        true => Ok(()),
        false => Err(bad(format!("the answer is longer than {LONGEST} bytes"))),
    }
}

/// The kind of error of an answer that cannot be read. Neither sockets nor TLS use this kind.
pub(super) const ODD: io::ErrorKind = io::ErrorKind::Unsupported;

fn bad(why: impl Into<String>) -> io::Error {
    io::Error::new(ODD, why.into())
}

#[cfg(test)]
mod tests {
    use super::*;

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
                assert_eq!(parse(&text.as_bytes()[..cut]).unwrap(), None, "{rest} {cut}");
            }
            let (reply, used) = parse(format!("{text}HTTP").as_bytes()).unwrap().unwrap();
            assert_eq!(
                (reply.status, &reply.body[..], reply.stays),
                (200, &b"hello"[..], true)
            );
            assert_eq!(used, text.len());
        }
        let closing = "HTTP/1.1 503 No\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";
        let (reply, _) = parse(closing.as_bytes()).unwrap().unwrap();
        assert_eq!((reply.status, reply.stays), (503, false));
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
            let e = parse(text.as_bytes()).unwrap_err().to_string();
            assert!(e.contains(reason), "{e}");
        }
    }
}
