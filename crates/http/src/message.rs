//! The part of HTTP/1.1 that pages need: one request and one answer, after which the
//! connection ends.

use std::sync::Arc;

use bytes::Bytes;
use httparse::{EMPTY_HEADER, Error, Status};
use ssntp_transport::rustls::pki_types::CertificateDer;

/// The media type of JSON.
pub const JSON: &str = "application/json";
/// The longest head of a request or an answer, in bytes.
pub(crate) const MAX_HEAD: usize = 8 * 1024;
/// The maximum number of headers of a request or an answer. Browsers send some twenty.
pub(crate) const MAX_HEADERS: usize = 64;

/// A request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Request {
    /// The method, in capitals: one of those that the service [supports](Limits::methods).
    pub method: String,
    /// The path, without the query, not unescaped.
    pub path: String,
    /// The `name=value` pairs of the query, in their order, not unescaped.
    pub query: Vec<(String, String)>,
    /// The `Host` header without the port, in lower case.
    pub host: Option<String>,
    /// All headers in their order, their names in lower case.
    pub headers: Vec<(String, String)>,
    /// The body; always empty for GET and HEAD.
    pub body: Bytes,
    /// The certificates that the client sent in TLS, its own first. Empty on a connection without TLS.
    pub chain: Vec<CertificateDer<'static>>,
}

/// The limits of a service.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The methods, as the `Allow` of an answer names them: `GET, HEAD`.
    pub methods: &'static str,
    /// The longest body, in bytes.
    pub body: usize,
    /// The maximum number of answers that may be streams at a time.
    pub streams: usize,
}

/// An answer that is an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The status code.
    pub code: u16,
    /// The reason, a sentence.
    pub why: String,
    /// The part of the request that causes it, if it is known.
    pub at: Option<String>,
}

impl Refused {
    /// An error with this status code and reason.
    pub fn new(code: u16, why: impl Into<String>) -> Self {
        let (why, at) = (why.into(), None);
        Self { code, why, at }
    }

    /// An error that this part of the request causes.
    pub fn at(code: u16, at: impl Into<String>, why: impl Into<String>) -> Self {
        let at = Some(at.into());
        Self {
            at,
            ..Self::new(code, why)
        }
    }
}

impl Request {
    /// Reads the head of a request: the request without its body, the length of the head, and
    /// that of the body. `None` means that more bytes are needed.
    pub(super) fn parse(input: &[u8], limits: &Limits) -> Result<Option<(Self, usize, usize)>, Refused> {
        let mut headers = [EMPTY_HEADER; MAX_HEADERS];
        let mut head = httparse::Request::new(&mut headers);
        // Bytes after the limit are not parsed, so a head that is too long is refused even if all of
        // it has arrived.
        let length = match head.parse(&input[..input.len().min(MAX_HEAD)]) {
            Ok(Status::Complete(length)) => length,
            Ok(Status::Partial) if input.len() < MAX_HEAD => return Ok(None),
            Ok(Status::Partial) | Err(Error::TooManyHeaders) => {
                return Err(Refused::new(431, "the request's head is too long"));
            }
            Err(e) => return Err(Refused::new(400, format!("not HTTP/1.1: {e}"))),
        };
        let method = head.method.unwrap_or_default();
        if !limits.methods.split(", ").any(|known| known == method) {
            let why = match limits.methods.rsplit_once(", ") {
                Some((methods, last)) => format!("only {methods} and {last} are supported"),
                None => format!("only {} is supported", limits.methods),
            };
            return Err(Refused::new(405, why));
        }
        let target = head.path.unwrap_or_default();
        let (authority, target) = absolute(target).unwrap_or(("", target));
        if !target.starts_with('/') {
            return Err(Refused::new(400, "the target must begin with /"));
        }
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let pairs = query.split('&').filter(|pair| !pair.is_empty());
        let query = pairs.map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            (name.to_owned(), value.to_owned())
        });
        let headers = head.headers.iter().map(|header| {
            let value = String::from_utf8_lossy(header.value).into_owned();
            (header.name.to_ascii_lowercase(), value)
        });
        let mut request = Self {
            method: method.to_owned(),
            path: path.to_owned(),
            query: query.collect(),
            headers: headers.collect(),
            ..Self::default()
        };
        // RFC 9112, section 3.2: a request of HTTP/1.1 has exactly one Host. HTTP/1.0 may have none.
        let host = request.only("host")?;
        if host.is_none() && head.version == Some(1) {
            return Err(Refused::new(400, "exactly one Host header is needed"));
        }
        // RFC 9112, section 3.2.2: the host of a whole address counts, and not that of the header.
        request.host = Some(authority)
            .filter(|host| !host.is_empty())
            .or(host)
            .map(without_port);
        let body = request.body_length(limits)?;
        Ok(Some((request, length, body)))
    }

    /// True if the method is HEAD; the answer then has no body.
    pub fn is_head(&self) -> bool {
        self.method == "HEAD"
    }

    /// The value of a header, by its name in lower case; the first one if there are several.
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str())
    }

    /// As [`header`](Self::header), but several headers of this name are an error.
    fn only(&self, name: &str) -> Result<Option<&str>, Refused> {
        match self.headers.iter().filter(|(known, _)| known == name).count() {
            0 | 1 => Ok(self.header(name)),
            _ if name == "host" => Err(Refused::new(400, "exactly one Host header is needed")),
            _ => Err(Refused::new(400, format!("there are several {name} headers"))),
        }
    }

    fn body_length(&self, limits: &Limits) -> Result<usize, Refused> {
        if matches!(self.method.as_str(), "GET" | "HEAD") {
            return Ok(0);
        }
        if self.header("transfer-encoding").is_some() {
            let why = "a body needs a Content-Length; transfer encodings are not supported";
            return Err(Refused::new(411, why));
        }
        let Some(length) = self.only("content-length")? else {
            return Ok(0);
        };
        // `parse` alone would accept a sign.
        let digits = !length.is_empty() && length.bytes().all(|byte| byte.is_ascii_digit());
        match length.parse() {
            Ok(length) if digits && length <= limits.body => Ok(length),
            _ if digits => Err(Refused::new(
                413,
                format!("the body is longer than {} bytes", limits.body),
            )),
            _ => Err(Refused::new(400, "Content-Length is not a number")),
        }
    }
}

/// The host and the path of a target that is a whole address. A proxy sends such a target.
fn absolute(target: &str) -> Option<(&str, &str)> {
    let (scheme, rest) = target.split_once("://")?;
    let is_http = scheme.eq_ignore_ascii_case("http") || scheme.eq_ignore_ascii_case("https");
    let path = rest.find(['/', '?']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(path);
    is_http.then_some((authority, if path.is_empty() { "/" } else { path }))
}

fn without_port(host: &str) -> String {
    let host = host.trim().to_ascii_lowercase();
    match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((ip, port)) if port.is_empty() || port.starts_with(':') => ip.to_owned(),
        // The text after `]` is no port. The header is kept whole, so that it is the name of no host.
        Some(_) => host,
        None => host.split(':').next().unwrap_or_default().to_owned(),
    }
}

/// An answer to a request.
#[derive(Debug)]
#[non_exhaustive]
pub struct Answer {
    /// The status code.
    pub code: u16,
    /// The media type of the body.
    pub content_type: &'static str,
    /// Further headers. Their values must not have line breaks.
    pub headers: Vec<(&'static str, String)>,
    /// The body.
    pub body: Bytes,
    /// The permit of a large answer, which is given back once the client has the answer.
    pub permit: Option<Arc<()>>,
}

impl Answer {
    /// An answer with this body.
    pub fn new(code: u16, content_type: &'static str, body: impl Into<Bytes>) -> Self {
        Self {
            code,
            content_type,
            headers: Vec::new(),
            body: body.into(),
            permit: None,
        }
    }

    /// Takes a permit for a large answer. Permits are clones of `large`.
    ///
    /// # Errors
    /// Status 503 if `most` permits are in use.
    pub fn permit(large: &Arc<()>, most: usize) -> Result<Arc<()>, Refused> {
        let permit = Arc::clone(large);
        // One count is that of the owner of `large`. Two threads that are here at the same time may
        // each count the other's clone, so there may be fewer large answers than `most`, never more.
        if Arc::strong_count(&permit) - 1 > most {
            Err(Refused::new(
                503,
                format!("{most} large answers are under way; try again later"),
            ))
        } else {
            Ok(permit)
        }
    }

    /// The same answer, which keeps a permit until the client has it.
    #[must_use]
    pub fn permitted(mut self, permit: Arc<()>) -> Self {
        self.permit = Some(permit);
        self
    }

    /// An answer with a JSON document.
    pub fn json(code: u16, value: &serde_json::Value) -> Self {
        Self::new(code, JSON, format!("{value:#}\n"))
    }

    /// The same answer with another header. Line breaks and other control characters in its
    /// value are left out, because the rest of the value would be another header.
    #[must_use]
    pub fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        let mut value: String = value.into();
        value.retain(|c| !c.is_control());
        self.headers.push((name, value));
        self
    }

    /// The head of the answer. The body is sent separately, to avoid a copy. A stream has no
    /// Content-Length, because it ends with its connection.
    pub(super) fn head(&self, limits: &Limits, is_stream: bool) -> String {
        let mut more = String::new();
        if self.code == 405 {
            more = format!("Allow: {}\r\n", limits.methods);
        }
        if is_stream {
            // Otherwise nginx keeps the parts until there are many.
            more += "X-Accel-Buffering: no\r\n";
        } else {
            more += &format!("Content-Length: {}\r\n", self.body.len());
        }
        for (name, value) in &self.headers {
            more += &format!("{name}: {value}\r\n");
        }
        // `no-store`, because figures are old a second later. `nosniff`, because the answer has
        // text that clients choose, and a browser must not take it for a script.
        format!(
            "HTTP/1.1 {} {}\r\nContent-Type: {}\r\n{more}Cache-Control: no-store\r\n\
             X-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n",
            self.code,
            reason(self.code),
            self.content_type,
        )
    }
}

impl From<Refused> for Answer {
    fn from(refused: Refused) -> Self {
        Self::json(
            refused.code,
            &serde_json::json!({ "error": refused.why, "at": refused.at }),
        )
    }
}

fn reason(code: u16) -> &'static str {
    match code {
        200 => "OK",
        303 => "See Other",
        400 => "Bad Request",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        409 => "Conflict",
        411 => "Length Required",
        413 => "Content Too Large",
        415 => "Unsupported Media Type",
        422 => "Unprocessable Content",
        431 => "Request Header Fields Too Large",
        503 => "Service Unavailable",
        _ => "Error",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGES: Limits = Limits {
        methods: "GET, HEAD",
        body: 0,
        streams: 0,
    };
    const ORDERS: Limits = Limits {
        methods: "GET, PUT",
        body: 10,
        streams: 0,
    };

    fn parse(text: &str) -> Result<Option<Request>, u16> {
        let parsed = Request::parse(text.as_bytes(), &PAGES);
        let request = parsed.map_err(|refused| refused.code)?;
        Ok(request.map(|(request, _, _)| request))
    }

    #[test]
    fn a_head_is_parsed_once_it_is_complete_and_later_bytes_are_ignored() {
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
        assert!(head.is_head());
        assert_eq!(head.host.as_deref(), Some("a.b"));
        let odd = parse("GET / HTTP/1.1\r\nHost: [::1]evil.example\r\n\r\n")
            .unwrap()
            .unwrap();
        assert_eq!(odd.host.as_deref(), Some("[::1]evil.example"));
    }

    #[test]
    fn invalid_requests_are_refused() {
        let long = format!("GET / HTTP/1.1\r\nx: {}", "y".repeat(MAX_HEAD));
        let many = format!("GET / HTTP/1.1\r\n{}\r\n", "x: y\r\n".repeat(MAX_HEADERS + 1));
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

    #[test]
    fn a_target_may_be_a_whole_address_whose_host_counts() {
        let parsed = |target: &str| {
            let head = format!("GET {target} HTTP/1.1\r\nHost: evil\r\n\r\n");
            let request = parse(&head).unwrap().unwrap();
            (request.path, request.query.len(), request.host.unwrap())
        };
        for (target, path, pairs, host) in [
            ("http://localhost:9300/nodes?a=b", "/nodes", 1, "localhost"),
            ("HTTPS://localhost", "/", 0, "localhost"),
            ("/http://localhost/", "/http://localhost/", 0, "evil"),
        ] {
            assert_eq!(parsed(target), (path.to_owned(), pairs, host.to_owned()));
        }
    }

    #[test]
    fn a_body_has_one_length_below_the_limit() {
        for (headers, length) in [
            ("", Ok(0)),
            ("Content-Length: 10\r\n", Ok(10)),
            ("Content-Length: 11\r\n", Err(413)),
            ("Content-Length: 99999999999999999999999\r\n", Err(413)),
            ("Content-Length: +1\r\n", Err(400)),
            ("Content-Length: 1\r\nContent-Length: 1\r\n", Err(400)),
            ("Transfer-Encoding: chunked\r\n", Err(411)),
        ] {
            let text = format!("PUT / HTTP/1.1\r\nHost: a\r\n{headers}\r\n");
            let parsed = Request::parse(text.as_bytes(), &ORDERS).map_err(|refused| refused.code);
            assert_eq!(parsed.map(|parsed| parsed.unwrap().2), length, "{headers}");
        }
    }

    #[test]
    fn a_header_of_an_answer_stays_one_header() {
        let answer = Answer::new(303, JSON, "").with("Location", "/a\r\nSet-Cookie: b");
        let head = answer.head(&ORDERS, false);
        assert!(head.contains("\r\nLocation: /aSet-Cookie: b\r\n"), "{head}");
        assert!(!Answer::new(200, JSON, "").head(&ORDERS, true).contains("Length"));
    }
}
