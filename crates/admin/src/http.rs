//! The part of HTTP/1.1 that pages need: the head of one request, and one answer,
//! after which the connection ends.

use std::sync::Arc;

use httparse::{EMPTY_HEADER, Error, Status};

/// The media type of all pages but metrics and the list of pages.
pub(super) const JSON: &str = "application/json";
/// The longest head of a request.
pub(super) const HEAD: usize = 8 * 1024;
/// The most headers of a request. Browsers send some twenty.
const HEADERS: usize = 64;

/// The head of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Request {
    /// Whether the method is HEAD: then the answer has no body.
    pub(super) is_head: bool,
    /// The path, without the query.
    pub(super) path: String,
    /// The `name=value` pairs of the query, in their order, not unescaped.
    pub(super) query: Vec<(String, String)>,
    /// The `Host` header without the port, in lower case.
    pub(super) host: Option<String>,
}

/// An answer that is an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refused {
    pub(super) code: u16,
    pub(super) why: String,
}

impl Refused {
    pub(super) fn new(code: u16, why: impl Into<String>) -> Self {
        let why = why.into();
        Self { code, why }
    }
}

impl Request {
    /// Reads the head of a request. `None` means that more bytes are needed.
    pub(super) fn parse(input: &[u8]) -> Result<Option<Self>, Refused> {
        let mut headers = [EMPTY_HEADER; HEADERS];
        let mut head = httparse::Request::new(&mut headers);
        // Bytes behind the limit are not looked at, so a head that is too long is refused however
        // much of it has arrived.
        match head.parse(&input[..input.len().min(HEAD)]) {
            Ok(Status::Complete(_)) => {}
            Ok(Status::Partial) if input.len() < HEAD => return Ok(None),
            Ok(Status::Partial) | Err(Error::TooManyHeaders) => {
                return Err(Refused::new(431, "the request's head is too long"));
            }
            Err(e) => return Err(Refused::new(400, format!("not HTTP/1.1: {e}"))),
        }
        let is_head = match head.method {
            Some("GET") => false,
            Some("HEAD") => true,
            _ => return Err(Refused::new(405, "only GET and HEAD are supported")),
        };
        let target = head.path.unwrap_or_default();
        if !target.starts_with('/') {
            return Err(Refused::new(400, "the target must begin with /"));
        }
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let pairs = query.split('&').filter(|pair| !pair.is_empty());
        let query = pairs.map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            (name.to_owned(), value.to_owned())
        });
        let mut hosts = head
            .headers
            .iter()
            .filter(|header| header.name.eq_ignore_ascii_case("host"));
        let (host, second) = (hosts.next(), hosts.next());
        // RFC 9112, section 3.2: a request of HTTP/1.1 has exactly one Host. HTTP/1.0 may have none.
        if second.is_some() || host.is_none() && head.version == Some(1) {
            return Err(Refused::new(400, "exactly one Host header is needed"));
        }
        Ok(Some(Self {
            is_head,
            path: path.to_owned(),
            query: query.collect(),
            host: host.map(|host| without_port(&String::from_utf8_lossy(host.value))),
        }))
    }
}

fn without_port(host: &str) -> String {
    let host = host.trim().to_ascii_lowercase();
    match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((ip, port)) if port.is_empty() || port.starts_with(':') => ip.to_owned(),
        // An unclosed `[`: no host matches it.
        Some(_) => host,
        None => host.split(':').next().unwrap_or_default().to_owned(),
    }
}

/// An answer to a request.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) code: u16,
    pub(super) content_type: &'static str,
    pub(super) body: String,
    /// The permit of a large answer, which is given back once the client has the answer.
    pub(super) permit: Option<Arc<()>>,
}

impl Answer {
    pub(super) fn new(code: u16, content_type: &'static str, body: String) -> Self {
        let permit = None;
        Self {
            code,
            content_type,
            body,
            permit,
        }
    }

    pub(super) fn json(code: u16, value: &serde_json::Value) -> Self {
        Self::new(code, JSON, format!("{value:#}\n"))
    }

    /// The head of the answer. The body follows as it is, without a copy.
    pub(super) fn head(&self) -> String {
        let allow = match self.code {
            405 => "Allow: GET, HEAD\r\n",
            _ => "",
        };
        // `no-store`, because figures are old a second later. `nosniff`, because the answer has
        // text that clients choose, and a browser must not take it for a script.
        format!(
            "HTTP/1.1 {} {}\r\nContent-Type: {}\r\nContent-Length: {}\r\n{allow}Cache-Control: no-store\r\n\
             X-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n",
            self.code,
            reason(self.code),
            self.content_type,
            self.body.len()
        )
    }
}

impl From<Refused> for Answer {
    fn from(refused: Refused) -> Self {
        Self::json(refused.code, &serde_json::json!({ "error": refused.why }))
    }
}

fn reason(code: u16) -> &'static str {
    match code {
        200 => "OK",
        400 => "Bad Request",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        431 => "Request Header Fields Too Large",
        503 => "Service Unavailable",
        _ => "Error",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Option<Request>, u16> {
        Request::parse(text.as_bytes()).map_err(|refused| refused.code)
    }

    #[test]
    fn a_head_is_read_once_it_is_there_and_what_follows_it_is_left_alone() {
        let head = "GET /sessions?role=agent&limit=5& HTTP/1.1\r\nHOST: [::1]:9\r\n\r\n";
        for cut in 0..head.len() {
            assert_eq!(parse(&head[..cut]), Ok(None), "{cut}");
        }
        let request = parse(&format!("{head}GET / HTTP/9")).unwrap().unwrap();
        assert_eq!(request.path, "/sessions");
        assert_eq!(request.host.as_deref(), Some("::1"));
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(request.query, [pair("role", "agent"), pair("limit", "5")]);
        let head = parse("HEAD / HTTP/1.0\r\nhost: A.b:1\r\n\r\n").unwrap().unwrap();
        assert!(head.is_head);
        assert_eq!(head.host.as_deref(), Some("a.b"));
        let odd = parse("GET / HTTP/1.1\r\nHost: [::1]evil.example\r\n\r\n")
            .unwrap()
            .unwrap();
        assert_eq!(odd.host.as_deref(), Some("[::1]evil.example"));
    }

    #[test]
    fn what_is_no_request_for_a_page_is_refused() {
        let long = format!("GET / HTTP/1.1\r\nx: {}", "y".repeat(HEAD));
        let many = format!("GET / HTTP/1.1\r\n{}\r\n", "x: y\r\n".repeat(HEADERS + 1));
        for (text, code) in [
            ("POST / HTTP/1.1\r\n\r\n", 405),
            ("GET http://a/ HTTP/1.1\r\n\r\n", 400),
            ("GET / HTTP/1.1\r\n\r\n", 400),
            ("GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
            ("GET / HTTP/2.0\r\n\r\n", 400),
            ("\u{16}\u{3}\u{1}", 400),
            (&long, 431),
            (&many, 431),
        ] {
            assert_eq!(parse(text), Err(code), "{text}");
        }
    }
}
