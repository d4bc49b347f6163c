//! A client of the API of a controller daemon, with a new connection for each request.

use std::fmt::Display;
use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::Value;
use ssntp::transport::Address;
use ssntp_daemon::{Failure, input, note};
use ssntp_http::client::{Connection, Response};
use ssntp_transport::{deadline, is_timeout, now};

use super::Invocation;
use super::session::POLL;

/// The longest answer, in bytes: the instances of the largest cluster.
const LONGEST: usize = 64 << 20;

/// The flags that name a controller daemon.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct ApiArgs {
    /// The --http of the controller: HOST:PORT or unix:PATH, or the URL that it prints. At
    /// addresses that are not loopback, mutual TLS is used with --ca and --cert
    #[arg(long, value_name = "ADDR", env = "SSNTP_HTTP", value_parser = address, default_value = "127.0.0.1:9300")]
    http: Address,
    /// A file with a token of `ssntp controller token`
    #[arg(long, value_name = "FILE", env = "SSNTP_TOKEN_FILE")]
    token_file: Option<PathBuf>,
}

/// A refusal of the controller.
pub(super) struct Refusal {
    pub(super) code: u16,
    /// The key of the body that is wrong, if it is one.
    pub(super) at: String,
    pub(super) failure: Failure,
}

/// A client of a controller daemon.
pub(super) struct Api<'a> {
    args: &'a ApiArgs,
    cx: &'a Invocation,
}

impl<'a> Api<'a> {
    pub(super) fn new(args: &'a ApiArgs, cx: &'a Invocation) -> Self {
        Self { args, cx }
    }

    /// The time at which a wait for the controller ends, which answers within ten seconds.
    fn end(&self) -> Instant {
        deadline(self.cx.options.connect_limit())
    }

    fn failed(&self, why: impl Display) -> Failure {
        Failure::new(format!("--http {}: {why}", self.args.http))
    }

    pub(super) fn get(&self, path: &str) -> Result<Value, Failure> {
        self.ask("GET", path, None)
    }

    /// Asks a question that may be asked again. The inner error is the reason why there is no answer: the controller is away
    /// or busy, or it only remembers the state that it is asked for.
    pub(super) fn try_present(&self, path: &str) -> Result<Result<Value, Failure>, Failure> {
        let get = |path: &str| match self.exchange("GET", path, None) {
            Ok(Err(refusal)) if refusal.code < 500 => Err(refusal.failure),
            Err(_) if self.cx.stop.requested() => Err(self.cx.stop.interrupted()),
            Err(why) => Ok(Err(why)),
            Ok(answer) => Ok(answer.map_err(|refusal| refusal.failure)),
        };
        // The health is asked first: a session may begin between the two answers.
        match get("status")?.map(|status| outdated(&status)) {
            Ok(None) => get(path),
            Ok(Some(why)) => Ok(Err(Failure::new(why))),
            Err(why) => Ok(Err(why)),
        }
    }

    /// Says so on the standard error if the controller does not know the present state.
    pub(super) fn note_outdated(&self) -> Result<(), Failure> {
        if let Some(why) = outdated(&self.get("status")?) {
            note(format_args!("ssntp: {why}: this is the last known state"));
        }
        Ok(())
    }

    /// Sends a request, and reads the JSON of its answer. Blocks for the connection and again for the
    /// answer, each for at most the limit of `--timeout` (30 s), or until a signal.
    pub(super) fn ask(&self, method: &str, path: &str, body: Option<&Value>) -> Result<Value, Failure> {
        self.exchange(method, path, body)?
            .map_err(|refusal| refusal.failure)
    }

    /// The answer to a request. The outer error means that there is none.
    pub(super) fn exchange(
        &self,
        method: &str,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Result<Value, Refusal>, Failure> {
        let token = self.token()?.map(|token| format!("Bearer {token}"));
        let body = body.map(Value::to_string).unwrap_or_default();
        let mut connection = self.connect()?;
        let path = format!("/api/v1/{path}");
        let sent = connection.send(method, &path, token.as_deref(), &body, self.end());
        let answer = sent
            .map_err(|e| self.failed(e))
            .and_then(|()| self.receive(&mut connection));
        // A lost answer is no refusal.
        let without_answer = |failure: Failure| match method {
            "GET" => failure,
            _ => failure.with_advice("the controller may have carried it out"),
        };
        let Response { code, body, .. } = answer.map_err(without_answer)?;
        let value = serde_json::from_slice(&body);
        match code {
            200..300 => value.map(Ok).map_err(|e| {
                let why = format_args!("this is not the answer of a controller: {e}");
                without_answer(self.failed(why))
            }),
            _ => {
                let value = value.unwrap_or_default();
                let mut refusal = refused(code, &value, &body);
                // The page of a proxy that has not got the answer.
                if code >= 500 && !value["error"].is_string() {
                    refusal.failure = without_answer(refusal.failure);
                }
                if code == 401 && token.is_none() {
                    let advice =
                        "--token-file names a file with a token that `ssntp controller token add` has made";
                    refusal.failure = refusal.failure.with_advice(advice);
                }
                Ok(Err(refusal))
            }
        }
    }

    fn connect(&self) -> Result<Connection, Failure> {
        let address = &self.args.http;
        let connector = if is_local(address) {
            None
        } else {
            let (identity, trust) = self.cx.options.server.reach(&self.cx.stop)?.files.load()?;
            Some(trust.connector(&identity).map_err(Failure::new)?)
        };
        let connection = Connection::open(address, connector.as_ref(), LONGEST, self.end());
        connection.map_err(|e| {
            self.failed(format_args!(
                "{e}; is a controller there (`ssntp controller --http`)?"
            ))
        })
    }

    fn token(&self) -> Result<Option<String>, Failure> {
        let Some(path) = &self.args.token_file else {
            return Ok(None);
        };
        let text = input::text(path, 4096)?;
        let token = text.trim();
        if !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic()) {
            Ok(Some(token.to_owned()))
        } else {
            Err(Failure::at(path, "the file does not hold a token"))
        }
    }

    fn receive(&self, connection: &mut Connection) -> Result<Response, Failure> {
        let limit = self.cx.options.connect_limit();
        let answer = self
            .cx
            .stop
            .poll(Duration::ZERO, limit, || match connection.receive(now() + POLL) {
                Ok(answer) => Ok(Some(answer)),
                Err(e) if is_timeout(&e) => Ok(None),
                Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => {
                    Err(self.failed("the answer ends too early"))
                }
                Err(e) => Err(self.failed(e)),
            })?;
        let seconds = limit.as_secs_f32();
        answer.ok_or_else(|| self.failed(format_args!("the answer has not arrived in {seconds} s")))
    }
}

/// Reads an address, or the URL of the first page. TLS is used unless the address is loopback, and the
/// scheme of a URL must agree with that.
fn address(text: &str) -> Result<Address, String> {
    let parse = |text: &str| text.parse::<Address>().map_err(|e| e.to_string());
    let Some((scheme, rest)) = text.split_once("://") else {
        return parse(text);
    };
    let rest = rest.strip_suffix('/').unwrap_or(rest);
    if rest.contains('/') {
        return Err("the URL must have no path, as in http://127.0.0.1:9300".into());
    }
    let address = parse(rest)?;
    match (scheme.to_ascii_lowercase().as_str(), is_local(&address)) {
        ("http", true) | ("https", false) => Ok(address),
        ("http", false) => Err("the scheme must be https, because the address is not loopback".into()),
        ("https", true) => Err("the scheme must be http, because the address is loopback".into()),
        _ => Err("neither an address nor a URL of http or https".into()),
    }
}

/// True if clients of this address use no TLS, by the rule of [`ssntp_http`].
fn is_local(address: &Address) -> bool {
    // A client connects to this host if the host is empty.
    address.is_local() || matches!(address, Address::Tcp { host, .. } if host.is_empty())
}

/// The reason why what a controller says of its workloads is not their present state; `None` if it is.
fn outdated(status: &Value) -> Option<String> {
    let health = &status["health"];
    match (&health["online"], &health["told"], health["store"].as_str()) {
        (Value::Bool(false), ..) => Some("the controller is not connected to the scheduler".into()),
        (_, Value::Bool(false), _) => Some("the controller has not heard of all nodes yet".into()),
        (.., why) => Some(format!("the controller cannot write its database: {}", why?)),
    }
}

fn refused(code: u16, value: &Value, body: &[u8]) -> Refusal {
    let why = match value["error"].as_str() {
        Some(why) => why.to_owned(),
        None => String::from_utf8_lossy(body).trim().chars().take(200).collect(),
    };
    let at = value["at"].as_str().unwrap_or_default().to_owned();
    let failure = Failure::new(match at.as_str() {
        _ if why.is_empty() => format!("the controller answers with the code {code}"),
        "" => why,
        at if why.starts_with(at) => why,
        at => format!("{at}: {why}"),
    });
    Refusal { code, at, failure }
}

/// The text of a value; empty if it is null.
pub(super) fn text(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// The elements of a list, or the one value.
pub(super) fn rows(value: Value) -> Vec<Value> {
    match value {
        Value::Array(rows) => rows,
        Value::Null => Vec::new(),
        one => vec![one],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_names_the_fault_and_its_place() {
        let plain = |code, text: &str| {
            let value = serde_json::from_str(text).unwrap_or_default();
            refused(code, &value, text.as_bytes()).failure.to_string()
        };
        assert_eq!(
            plain(400, r#"{"error": "it is 0", "at": "count"}"#),
            "count: it is 0"
        );
        assert_eq!(
            plain(404, r#"{"error": "there is no workload a", "at": null}"#),
            "there is no workload a"
        );
        assert_eq!(plain(502, "<html>"), "<html>");
        assert_eq!(plain(502, ""), "the controller answers with the code 502");
    }

    #[test]
    fn the_address_can_be_the_url_of_the_page() {
        for (text, is) in [
            ("127.0.0.1:9300", "127.0.0.1:9300"),
            ("unix:/run/a.sock", "unix:/run/a.sock"),
            ("http://127.0.0.1:9300", "127.0.0.1:9300"),
            ("HTTP://localhost:9300/", "localhost:9300"),
            ("http://[::1]:9300/", "[::1]:9300"),
            ("https://10.0.0.1:9300/", "10.0.0.1:9300"),
            ("https://controller.example:9300", "controller.example:9300"),
        ] {
            assert_eq!(address(text).unwrap().to_string(), is, "{text}");
        }
        for (bad, reason) in [
            ("https://127.0.0.1:9300", "the scheme must be http,"),
            ("http://10.0.0.1:9300/", "the scheme must be https,"),
            ("http://127.0.0.1/", ""),
            ("http://127.0.0.1:9300/nodes", "must have no path"),
            ("http://unix:/run/a.sock", "must have no path"),
            ("ftp://127.0.0.1:9300", "neither an address nor a URL"),
            ("http://", ""),
        ] {
            let error = address(bad).expect_err(bad);
            assert!(error.contains(reason), "{bad}: {error}");
        }
    }

    #[test]
    fn only_connections_to_this_host_use_no_tls() {
        for (address, local) in [
            ("unix:/run/a.sock", true),
            ("127.0.0.2:1", true),
            ("[::1]:1", true),
            ("LOCALHOST:1", true),
            ("10.0.0.1:1", false),
            ("localhost.example:1", false),
        ] {
            assert_eq!(is_local(&address.parse().unwrap()), local, "{address}");
        }
    }
}
