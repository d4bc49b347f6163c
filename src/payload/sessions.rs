//! ListSessions and Sessions (COMMAND and EVENT 0x43): who is connected.

use serde::{Deserialize, Serialize};

use super::{Id, payload};

/// An operator asks who is connected, a page at a time.
///
/// The payload of ListSessions (COMMAND 0x43):
///
/// ```yaml
/// list_sessions:
///   id: 8b0f6f2e-53a1-4f0c-9f43-2d6a1c0e7b11
///   roles: agent,netagent
///   after: 0
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ListSessions {
    /// Chosen by the operator and repeated in the answer; required, 64 bytes at most.
    pub id: Id,
    /// List only sessions with at least one of these roles, joined with commas; default:
    /// empty, all sessions.
    pub roles: String,
    /// List only sessions after this number, the `next` of the page before; default: 0,
    /// from the beginning.
    pub after: u64,
}

payload!(ListSessions = Command::LIST_SESSIONS, under "list_sessions", requires id);

/// A page of the sessions, in the order in which they began.
///
/// The payload of Sessions (EVENT 0x43), made by the server:
///
/// ```yaml
/// sessions:
///   id: 8b0f6f2e-53a1-4f0c-9f43-2d6a1c0e7b11
///   total: 2000
///   next: 12
///   entries:
///   - number: 12
///     uuid: 5be1c0de-7d1a-4b52-8a55-90d2c3b4a501
///     roles: agent
///     address: 10.0.0.7:41234
///     age_s: 86400
///     idle_s: 4
///     serial: 4f:0a:11
///     subject: CN=agent-7
///     issuer: CN=cluster
///     bound: true
///     frames_received: 2880
///     bytes_received: 1048576
///     frames_sent: 17
///     bytes_sent: 4096
///     frames_waiting: 0
///     bytes_waiting: 0
///     frames_dropped: 0
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Sessions {
    /// As in the question.
    pub id: Id,
    /// How many sessions the server has, of any role.
    pub total: u64,
    /// The `after` of the next page; 0 on the last page.
    pub next: u64,
    /// The sessions.
    pub entries: Vec<SessionEntry>,
}

payload!(Sessions = Event::SESSIONS, under "sessions", up to super::yaml::MAX_DOCUMENT_LEN);

/// One session in [`Sessions`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SessionEntry {
    /// Its number, which no other session of the server gets.
    pub number: u64,
    /// Its client.
    pub uuid: Id,
    /// The roles that the client advertised, joined with commas.
    pub roles: String,
    /// Where the client connected from.
    pub address: String,
    /// For how many seconds it has stood.
    pub age_s: u64,
    /// For how many seconds nothing has been received from it.
    pub idle_s: u64,
    /// The certificate's serial number: hexadecimal, bytes joined with colons.
    pub serial: String,
    /// The subject of the certificate, at most its first 256 characters.
    pub subject: String,
    /// The issuer of the certificate, at most its first 256 characters.
    pub issuer: String,
    /// Whether the certificate is bound to the UUID.
    pub bound: bool,
    /// Frames received, those that were refused included.
    pub frames_received: u64,
    /// Bytes received, after TLS.
    pub bytes_received: u64,
    /// Frames that the system has taken for it.
    pub frames_sent: u64,
    /// Bytes that the system has taken for it, before TLS.
    pub bytes_sent: u64,
    /// Frames that wait in its queue.
    pub frames_waiting: u64,
    /// Bytes that wait in its queue.
    pub bytes_waiting: u64,
    /// Frames that it was not sent, because its queue was full.
    pub frames_dropped: u64,
}
