//! ListServers, DrainServer and Servers (COMMAND 0x49, 0x4a and EVENT 0x4b): the servers that act as
//! one, and the end of one of them.

use serde::{Deserialize, Serialize};

use super::names::names;
use super::{Id, OperatorRefusal, payload};

/// An operator asks for the servers, a page at a time.
///
/// The payload of ListServers (COMMAND 0x49):
///
/// ```yaml
/// list_servers:
///   id: 8b0f6f2e-53a1-4f0c-9f43-2d6a1c0e7b16
///   after: 0
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ListServers {
    /// Chosen by the operator and repeated in the answer; required, 64 bytes at most.
    pub id: Id,
    /// How many servers to leave out, the `next` of the page before; default: 0, from the
    /// beginning.
    pub after: u64,
}

payload!(ListServers = Command::LIST_SERVERS, under "list_servers", requires id);

/// An operator has a server drained: its clients are asked to leave, and then it stops.
///
/// The payload of DrainServer (COMMAND 0x4a):
///
/// ```yaml
/// drain_server:
///   id: 8b0f6f2e-53a1-4f0c-9f43-2d6a1c0e7b17
///   uuid: 0d9d0c5e-6f3a-4b7e-9c55-1a2b3c4d5e6f
///   within_s: 30
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DrainServer {
    /// Chosen by the operator and repeated in the answer; required, 64 bytes at most.
    pub id: Id,
    /// The server: the one that is asked, or one that it has a link to.
    pub uuid: Id,
    /// Within how many seconds clients are to leave, at random moments, a day at most;
    /// default: 0, at once.
    pub within_s: u64,
}

payload!(DrainServer = Command::DRAIN_SERVER, under "drain_server", requires id);

/// A page of the servers, or what became of a [`DrainServer`]. The answer to that comes from the server
/// that is drained, and has its entry alone.
///
/// The payload of Servers (EVENT 0x4b), made by the server:
///
/// ```yaml
/// servers:
///   id: 8b0f6f2e-53a1-4f0c-9f43-2d6a1c0e7b16
///   reason: ""
///   detail: ""
///   leader: 0d9d0c5e-6f3a-4b7e-9c55-1a2b3c4d5e6f
///   token: 4611686018427387904
///   lease_age_ms: 412
///   engine: answers
///   next: 0
///   entries:
///   - uuid: 0d9d0c5e-6f3a-4b7e-9c55-1a2b3c4d5e6f
///     address: one.example:8888
///     roles: scheduler
///     version: 0.1.0
///     state: own
///     detail: ""
///     age_s: 86400
///     sessions: 300
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Servers {
    /// As in the question.
    pub id: Id,
    /// Why nothing was done; empty after success.
    pub reason: OperatorRefusal,
    /// The reason in words.
    pub detail: String,
    /// The server that leads, if there is one.
    pub leader: Id,
    /// The highest token that the server has seen; 0 if none.
    pub token: u64,
    /// If the server leads, how old its lease is, in milliseconds; else 0.
    pub lease_age_ms: u64,
    /// `answers`, or since when the engine does not and why; empty if the server has none.
    pub engine: String,
    /// The `after` of the next page; 0 on the last page.
    pub next: u64,
    /// The servers: the one that was asked, those that it has links to, and those that it has
    /// none to but should.
    pub entries: Vec<ServerEntry>,
}

payload!(Servers = Event::SERVERS, under "servers", up to super::yaml::MAX_DOCUMENT_LEN);

/// One server in [`Servers`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ServerEntry {
    /// Its UUID; empty for an address at which no server has answered yet.
    pub uuid: Id,
    /// Where others reach it.
    pub address: String,
    /// Its roles, joined with commas; empty if they are not known.
    pub roles: String,
    /// The version of its program; empty if it is not known.
    pub version: String,
    /// What it is to the server that was asked.
    pub state: ServerState,
    /// Why there is no link.
    pub detail: String,
    /// For how many seconds it runs, or the link to it stands.
    pub age_s: u64,
    /// Its sessions that are known.
    pub sessions: u64,
}

names! {
    /// What a server is to the one that was asked.
    ServerState {
        /// It is the one that was asked.
        Own = "own";
        /// It is that one, and its clients are asked to leave.
        Draining = "draining";
        /// There is a link to it, and its sessions are known.
        Linked = "linked";
        /// There is a link to it, and its sessions are being told.
        Linking = "linking";
        /// It is dialled, and there is no link.
        Away = "away";
        /// It is a member of the cluster, and the server that was asked does not dial it.
        Member = "member";
    }
}
