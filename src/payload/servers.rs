//! ListServers, DrainServer and Servers (COMMAND 0x49, 0x4a and EVENT 0x4b): operators list the
//! linked servers, and drain one of them.

use super::{Id, OperatorRefusal};
use crate::names;
use crate::schema;

schema! {
    /// An operator asks for a page of the servers.
    ///
    /// The payload of ListServers (COMMAND 0x49):
    ///
    /// ```yaml
    /// list_servers:
    ///   id: 8b0f6f2e-53a1-4f0c-9f43-2d6a1c0e7b16
    ///   after: 0
    /// ```
    ListServers = Command::LIST_SERVERS, under "list_servers", requires id {
        /// Chosen by the operator and repeated in the answer; required, 64 bytes at most.
        id: Id,
        /// The number of servers to skip, the `next` of the previous page; default: 0, from the
        /// beginning.
        after: u64,
    }

    /// An operator drains a server: the server asks its clients to leave, and then stops.
    ///
    /// The payload of DrainServer (COMMAND 0x4a):
    ///
    /// ```yaml
    /// drain_server:
    ///   id: 8b0f6f2e-53a1-4f0c-9f43-2d6a1c0e7b17
    ///   uuid: 0d9d0c5e-6f3a-4b7e-9c55-1a2b3c4d5e6f
    ///   within_s: 30
    /// ```
    DrainServer = Command::DRAIN_SERVER, under "drain_server", requires id {
        /// Chosen by the operator and repeated in the answer; required, 64 bytes at most.
        id: Id,
        /// The server to drain: the receiver of this command, or a server that it has a link to.
        uuid: Id,
        /// The time in seconds within which clients leave, at random moments, at most a day; default: 0,
        /// at once.
        within_s: u64,
    }

    /// A page of the servers, or the result of a [`DrainServer`]. That result comes from the server that
    /// is drained, and has only its entry.
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
    Servers = Event::SERVERS, under "servers", up to crate::payload::yaml::MAX_DOCUMENT_LEN {
        /// The `id` of the command.
        id: Id,
        /// The reason why the command was refused; empty after success.
        reason: OperatorRefusal,
        /// Details of the reason.
        detail: String,
        /// The server that leads, if there is one.
        leader: Id,
        /// The highest fencing token that the server has seen; 0 if there was none.
        token: u64,
        /// The age of the lease in milliseconds if the server leads, else 0.
        lease_age_ms: u64,
        /// `answers`, or the time since which the engine (etcd) does not answer, and the reason; empty if
        /// the server has no engine.
        engine: String,
        /// The `after` of the next page; 0 on the last page.
        next: u64,
        /// The servers: the one that answers, those that it has links to, and those that it should have
        /// links to but has not.
        entries: Vec<ServerEntry>,
    }

    /// One server in [`Servers`].
    ServerEntry {
        /// The UUID; empty for an address at which no server has answered yet.
        uuid: Id,
        /// The address at which other servers reach it.
        address: String,
        /// The roles, joined with commas; empty if they are unknown.
        roles: String,
        /// The version of its program; empty if it is unknown.
        version: String,
        /// The relation to the server that answers.
        state: ServerState,
        /// The reason why there is no link.
        detail: String,
        /// The time in seconds since the server started, or since the link to it was established.
        age_s: u64,
        /// The number of its known sessions.
        sessions: u64,
    }
}

names! {
    /// The relation of a server to the server that answers.
    ServerState {
        /// The server that answers.
        Own = "own";
        /// The server that answers, which has asked its clients to leave.
        Draining = "draining";
        /// There is a link, and the sessions are known.
        Linked = "linked";
        /// There is a link, and the list of sessions is not complete yet.
        Linking = "linking";
        /// The server is dialled, and there is no link.
        Away = "away";
        /// A member of the cluster that the answering server does not dial.
        Member = "member";
    }
}
