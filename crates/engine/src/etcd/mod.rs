//! etcd 3.4 or later, through its JSON gateway over HTTP/1.1.
//!
//! ```text
//!  Request ─▶ path, JSON ─▶ the kept connection ─ fails ─▶ endpoint 1 ─▶ 2 ─▶ 3 ─▶ Away
//!                                │                            │
//!                             Answer ◀────────────────────────┘
//! ```
//!
//! A request may be sent to several endpoints until one answers. That is safe, because a request that
//! is carried out twice has the same effect as one: see [`Request::Put`]. If a lease is granted twice,
//! one of the two is kept alive, and the other ends.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::str::FromStr;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Value, json};
use ssntp_http::client::{BAD_ANSWER, Connection, Response};
use ssntp_transport::tls::Connector;
use ssntp_transport::{Address, after, deadline, excerpt, left, locked};

use crate::engine::{Answer, Engine, EngineError, Entry, Kept, LEADER, Lease, Request, When};
use crate::machine::CALL;

/// The maximum number of keys of a cluster: members, a leader and documents.
const KEYS: usize = 4096;
/// The longest answer: all documents and members in base64.
pub const LONGEST: usize = 8 << 20;
/// The default port of etcd for clients.
const PORT: u16 = 2379;

/// The addresses of an etcd, read from `etcd://HOST[:PORT][,HOST[:PORT]…]`. The default port
/// is 2379.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoints(Vec<Address>);

impl FromStr for Endpoints {
    type Err = EndpointsError;

    fn from_str(text: &str) -> Result<Self, EndpointsError> {
        let bad = |why: String| EndpointsError(text.to_owned(), why);
        if let Some((_, address)) = text.rsplit_once('@') {
            // The text before the address may be a password, so the error leaves it out.
            let why = "name and password are not part of an address".to_owned();
            return Err(EndpointsError(format!("etcd://…@{address}"), why));
        }
        let list = text
            .strip_prefix("etcd://")
            .ok_or_else(|| bad("it does not begin with etcd://".into()))?;
        let endpoint = |one: &str| {
            let address = Address::with_default_port(one, PORT);
            match address.map_err(|e| bad(e.to_string()))? {
                Address::Tcp { host, port } if !host.is_empty() && port != 0 => {
                    Ok(Address::Tcp { host, port })
                }
                _ => Err(bad(format!("{one:?} is not HOST:PORT"))),
            }
        };
        list.split(',').map(endpoint).collect::<Result<_, _>>().map(Self)
    }
}

/// The error of a text that is not a valid [`Endpoints`], with the reason.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} names no etcd: {1}")]
pub struct EndpointsError(String, String);

/// A user of etcd. `Debug` leaves the password out.
#[derive(Clone, PartialEq, Eq)]
pub struct User {
    /// The name.
    pub name: String,
    /// The password.
    pub password: String,
}

impl fmt::Debug for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("User")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// The credentials of a client of etcd.
#[derive(Clone, Debug, Default)]
pub struct EtcdCredentials {
    /// The TLS settings; without them, requests are sent in clear.
    pub tls: Option<Connector>,
    /// Name and password, if etcd requires them.
    pub user: Option<User>,
}

/// Gives other credentials to an [`Etcd`] that another thread owns. They count from its next request.
#[derive(Clone, Debug, Default)]
pub struct EtcdRenewal(Arc<Mutex<Option<EtcdCredentials>>>);

impl EtcdRenewal {
    /// Replaces the credentials. Does not check them, and does not wait for etcd.
    pub fn renew(&self, credentials: EtcdCredentials) {
        *locked(&self.0) = Some(credentials);
    }

    fn take(&self) -> Option<EtcdCredentials> {
        locked(&self.0).take()
    }
}

/// The settings of a client of etcd.
#[derive(Clone, Debug)]
pub struct EtcdConfig {
    /// The addresses of etcd. They are tried in this order.
    pub endpoints: Endpoints,
    /// How it encrypts, and who it is.
    pub credentials: EtcdCredentials,
    /// The name of the cluster. All of its keys begin with `/ssntp/NAME/`.
    pub cluster: String,
}

/// A client of an etcd.
///
/// # Threads
/// One thread owns it. Each call blocks for at most [`CALL`], including name resolution, connecting
/// and trying further endpoints.
#[derive(Debug)]
pub struct Etcd {
    config: EtcdConfig,
    prefix: String,
    /// The index of the endpoint that is tried first: the one that answered last, or the next one if none
    /// answered.
    at: usize,
    connection: Option<Connection>,
    /// The token that etcd gave for name and password. Empty if etcd does not authenticate users;
    /// `None` before the first authentication, and after etcd has refused the token.
    token: Option<String>,
    renewal: EtcdRenewal,
}

impl Etcd {
    /// A client, which connects at the first request.
    pub fn new(config: EtcdConfig) -> Self {
        Self {
            prefix: format!("/ssntp/{}/", config.cluster),
            config,
            at: 0,
            connection: None,
            token: None,
            renewal: EtcdRenewal::default(),
        }
    }

    /// The handle that renews the credentials of this client.
    pub fn renewal(&self) -> EtcdRenewal {
        self.renewal.clone()
    }

    /// Sends a request, after authentication if that is needed.
    fn call(&mut self, path: &str, body: &Value) -> Result<Value, EngineError> {
        // One deadline for all requests of the call, including the authentication.
        let deadline = deadline(CALL);
        if let Some(renewed) = self.renewal.take() {
            self.config.credentials = renewed;
            (self.connection, self.token) = (None, None);
        }
        let mut is_fresh = false;
        loop {
            if let (Some(user), None) = (&self.config.credentials.user, &self.token) {
                let body = json!({ "name": user.name, "password": user.password });
                match self.post("/v3/auth/authenticate", &body, deadline)? {
                    Ok(given) => {
                        self.token = given["token"]
                            .as_str()
                            .filter(|text| is_word(text))
                            .map(str::to_owned)
                    }
                    // Without authentication, etcd accepts requests without a token. So the same
                    // settings work before and after authentication is turned on.
                    Err((_, why)) if why.contains("authentication is not enabled") => {
                        self.token = Some(String::new())
                    }
                    Err((_, why)) => return Err(EngineError::Credentials(self.at_endpoint(&why))),
                }
                if self.token.is_none() {
                    return Err(EngineError::Answer("it gives no token for a password".into()));
                }
                is_fresh = true;
            }
            match self.post(path, body, deadline)? {
                Ok(value) => return Ok(value),
                // Tokens expire after some minutes, and when the etcd that issued them restarts. A
                // fresh token is not replaced, so this happens once.
                Err((code, why))
                    if is_about_token(code, &why) && self.config.credentials.user.is_some() && !is_fresh =>
                {
                    self.token = None;
                }
                Err((code, why)) => return Err(self.failure(code, &why)),
            }
        }
    }

    /// A reason, with the address of the endpoint that answered last.
    fn at_endpoint(&self, why: &str) -> String {
        let endpoint = self.config.endpoints.0.get(self.at);
        endpoint.map_or_else(|| why.to_owned(), |address| format!("{address}: {why}"))
    }

    fn failure(&self, code: i64, why: &str) -> EngineError {
        let said = self.at_endpoint(why);
        match code {
            code::NOT_FOUND if why.contains("lease not found") => EngineError::NoLease,
            code::EXHAUSTED => EngineError::Full(said),
            code::DENIED | code::UNAUTHENTICATED => EngineError::Credentials(said),
            code if is_without_name(code, why) => {
                EngineError::Credentials(self.at_endpoint("it asks for a name and a password"))
            }
            _ => EngineError::Refused(said),
        }
    }

    /// Sends a request to one endpoint after the other until one answers.
    fn post(&mut self, path: &str, body: &Value, deadline: Instant) -> Result<Answered, EngineError> {
        let body = body.to_string();
        let token = self.token.clone().filter(|token| !token.is_empty());
        let (mut failures, mut is_odd) = (Vec::new(), false);
        let count = self.config.endpoints.0.len();
        // The first endpoint stays fixed during the call, because an answer changes `self.at`.
        let first = self.at;
        let mut tried = 0;
        while tried < count {
            let at = (first + tried) % count;
            let Some(address) = self.config.endpoints.0.get(at) else {
                break;
            };
            // An endpoint that does not answer may use half of the time; the rest is for the others.
            let share = match left(deadline) {
                Ok(left) if tried + 1 < count => after(deadline - left, left / 2),
                Ok(_) => deadline,
                Err(_) => {
                    failures.push("no time is left".to_owned());
                    break;
                }
            };
            let kept = self.connection.take();
            let was_used = kept.as_ref().is_some_and(|connection| connection.is_used());
            let sent = match kept {
                Some(connection) => Ok(connection),
                None => Connection::open(address, self.config.credentials.tls.as_ref(), LONGEST, share),
            };
            let sent = sent.and_then(|mut connection| {
                connection.send("POST", path, token.as_deref(), &body, share)?;
                let reply = connection.receive(share)?;
                Ok((connection, reply))
            });
            match sent {
                Ok((connection, reply)) => {
                    self.connection = Some(connection).filter(|_| reply.stays);
                    self.at = at;
                    match answer(&reply) {
                        // Without a code it is neither from etcd nor from its gateway.
                        Err((code, why)) if is_away(code, reply.code) || code < 0 => {
                            is_odd |= !is_away(code, reply.code);
                            failures.push(format!("{address}: {why}"));
                        }
                        answer => return Ok(answer),
                    }
                    self.connection = None;
                }
                // The connection was closed while it was idle, so the same endpoint is tried again.
                Err(e) if was_used && !ssntp_transport::is_timeout(&e) => continue,
                Err(e) if ssntp_transport::is_timeout(&e) => {
                    failures.push(format!("{address} does not answer"))
                }
                Err(e)
                    if e.kind() == io::ErrorKind::UnexpectedEof && self.config.credentials.tls.is_none() =>
                {
                    failures.push(format!(
                        "{address} closes the connection without an answer, as one does that wants TLS"
                    ));
                }
                Err(e) => {
                    is_odd |= e.kind() == BAD_ANSWER;
                    failures.push(format!("{address}: {e}"));
                }
            }
            tried += 1;
        }
        // The next call begins with another endpoint, which then has the longer share of the time.
        self.at = (first + 1) % count.max(1);
        let failures = failures.join("; ");
        Err(if is_odd {
            EngineError::Answer(failures)
        } else {
            EngineError::Away(failures)
        })
    }

    fn key(&self, name: &str) -> String {
        BASE64.encode(format!("{}{name}", self.prefix))
    }

    fn put(
        &mut self,
        name: &str,
        value: &[u8],
        lease: Option<Lease>,
        when: When,
    ) -> Result<Answer, EngineError> {
        let key = self.key(name);
        let mut put = json!({ "key": key, "value": BASE64.encode(value) });
        if let Some(Lease(lease)) = lease {
            put["lease"] = lease.to_string().into();
        }
        let absent = || json!({ "key": key, "target": "CREATE", "result": "EQUAL", "create_revision": "0" });
        let modified = |at: u64| json!({ "key": key, "target": "MOD", "result": "EQUAL", "mod_revision": at.to_string() });
        let compare = match when {
            When::Always => json!([]),
            When::Absent => json!([absent()]),
            When::At(at) => json!([modified(at)]),
            When::Led(Lease(lease), at) => {
                let leader = self.key(LEADER);
                json!([
                    { "key": leader, "target": "LEASE", "result": "EQUAL", "lease": lease.to_string() },
                    at.map_or_else(absent, modified),
                ])
            }
        };
        let body = json!({
            "compare": compare,
            "success": [{ "request_put": put }],
            "failure": [{ "request_range": { "key": key } }],
        });
        let answer = self.call("/v3/kv/txn", &body)?;
        if answer["succeeded"].as_bool() == Some(true) {
            return Ok(Answer::Put(revision(&answer)?));
        }
        let found = &answer["responses"][0]["response_range"]["kvs"][0];
        let found = (!found.is_null()).then(|| entry(found)).transpose()?;
        Ok(match found {
            // An earlier copy of this request was carried out, and its answer was lost.
            Some(entry) if entry.value == value && entry.lease == lease => Answer::Put(entry.modified),
            found => Answer::Differs(found),
        })
    }

    fn read(&mut self) -> Result<Answer, EngineError> {
        let mut end = self.prefix.clone();
        end.pop();
        // `0` is the character after `/`, so the range contains all keys with the prefix.
        end.push('0');
        let body = json!({ "key": self.key(""), "range_end": BASE64.encode(end), "limit": KEYS.to_string() });
        let answer = self.call("/v3/kv/range", &body)?;
        // Without all keys, a member or the leader could be missing from the view.
        if answer["more"].as_bool() == Some(true) {
            return Err(EngineError::Refused(format!(
                "the cluster has more than {KEYS} keys"
            )));
        }
        let mut entries = BTreeMap::new();
        for found in answer["kvs"].as_array().into_iter().flatten() {
            let key = String::from_utf8(bytes(&found["key"])?).map_err(|_| odd("a key is no text"))?;
            let name = key
                .strip_prefix(&self.prefix)
                .ok_or_else(|| odd("a key was not asked for"))?;
            entries.insert(name.to_owned(), entry(found)?);
        }
        let revision = revision(&answer)?;
        Ok(Answer::Kept(Kept { revision, entries }))
    }
}

impl Engine for Etcd {
    fn ask(&mut self, request: &Request) -> Result<Answer, EngineError> {
        let answer = self.carry_out(request);
        if matches!(answer, Err(EngineError::Answer(_))) {
            // Another program answers there, so the next request begins with another endpoint.
            self.connection = None;
            self.at = (self.at + 1) % self.config.endpoints.0.len().max(1);
        }
        answer
    }
}

impl Etcd {
    fn carry_out(&mut self, request: &Request) -> Result<Answer, EngineError> {
        match request {
            Request::Grant(time) => {
                let answer = self.call("/v3/lease/grant", &json!({ "TTL": time.as_secs().to_string() }))?;
                match signed(&answer["ID"]) {
                    Some(id) => Ok(Answer::Granted(Lease(id))),
                    None => Err(odd("a lease has no number")),
                }
            }
            Request::KeepAlive(Lease(id)) => {
                let answer = self.call("/v3/lease/keepalive", &json!({ "ID": id.to_string() }))?;
                // The TTL of a lease that is over is 0, and etcd leaves zeros out of its JSON.
                Ok(Answer::Alive(
                    signed(&answer["result"]["TTL"]).is_some_and(|left| left > 0),
                ))
            }
            Request::Revoke(Lease(id)) => {
                match self.call("/v3/lease/revoke", &json!({ "ID": id.to_string() })) {
                    Ok(_) | Err(EngineError::NoLease) => Ok(Answer::Revoked),
                    Err(e) => Err(e),
                }
            }
            Request::Put {
                key,
                value,
                lease,
                when,
            } => self.put(key, value, *lease, *when),
            Request::Read => self.read(),
        }
    }
}

/// The JSON of an answer, or the code and the text of an error.
type Answered = Result<Value, (i64, String)>;

fn answer(reply: &Response) -> Answered {
    let value = serde_json::from_slice::<Value>(&reply.body).unwrap_or_default();
    if reply.code == 200 && value.is_object() && value.get("error").is_none() {
        return Ok(value);
    }
    // An error in a stream of answers is an object below `error`.
    let error = value
        .get("error")
        .filter(|error| error.is_object())
        .unwrap_or(&value);
    let text = error["message"].as_str().or(error["error"].as_str());
    let why = text.map_or_else(
        || format!("HTTP status {}", reply.code),
        |text| excerpt(text).to_string(),
    );
    let code = error["code"].as_i64().or(error["grpc_code"].as_i64());
    Err((code.unwrap_or(-1), why))
}

/// True if another endpoint may succeed: this one has no majority or no leader yet, or a proxy in
/// front of it reports an error.
fn is_away(code: i64, status: u16) -> bool {
    matches!(code, code::UNAVAILABLE | code::DEADLINE) || code < 0 && matches!(status, 500 | 502..=504)
}

/// The codes of gRPC that etcd answers with.
mod code {
    pub(super) const INVALID: i64 = 3;
    pub(super) const DEADLINE: i64 = 4;
    pub(super) const NOT_FOUND: i64 = 5;
    pub(super) const DENIED: i64 = 7;
    pub(super) const EXHAUSTED: i64 = 8;
    pub(super) const UNAVAILABLE: i64 = 14;
    pub(super) const UNAUTHENTICATED: i64 = 16;
}

fn is_about_token(code: i64, why: &str) -> bool {
    code == code::UNAUTHENTICATED
        || why.contains("invalid auth token")
        // A token of the kind JWT is bound to the users and roles as they were when it was given.
        || why.contains("revision of auth store is old")
        || is_without_name(code, why)
}

/// True for etcd's answer to a request without a token if authentication is turned on.
fn is_without_name(code: i64, why: &str) -> bool {
    code == code::INVALID && why.contains("user name is empty")
}

fn entry(found: &Value) -> Result<Entry, EngineError> {
    let number = |name: &str| signed(&found[name]).and_then(|n| u64::try_from(n).ok());
    Ok(Entry {
        value: bytes(&found["value"])?,
        created: number("create_revision").ok_or_else(|| odd("a key has no revision"))?,
        modified: number("mod_revision").ok_or_else(|| odd("a key has no revision"))?,
        lease: signed(&found["lease"]).filter(|lease| *lease != 0).map(Lease),
    })
}

fn revision(answer: &Value) -> Result<u64, EngineError> {
    let revision = signed(&answer["header"]["revision"]).and_then(|n| u64::try_from(n).ok());
    revision.ok_or_else(|| odd("an answer has no revision"))
}

/// A number of 64 bits, which etcd writes as text.
fn signed(value: &Value) -> Option<i64> {
    value
        .as_str()
        .map_or_else(|| value.as_i64(), |text| text.parse().ok())
}

/// Bytes, which etcd writes in base64. It leaves empty values out.
fn bytes(value: &Value) -> Result<Vec<u8>, EngineError> {
    let text = value.as_str().unwrap_or_default();
    BASE64.decode(text).map_err(|_| odd("a value is not in base64"))
}

/// True if a token can be put into a header without escaping.
fn is_word(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic())
}

fn odd(why: &str) -> EngineError {
    EngineError::Answer(why.to_owned())
}
