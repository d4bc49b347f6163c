//! ListSessions and Sessions (COMMAND and EVENT 0x43): operators list the sessions of a server.

use super::Id;
use crate::schema;

schema! {
    /// An operator asks for a page of the sessions.
    ///
    /// The payload of ListSessions (COMMAND 0x43):
    ///
    /// ```yaml
    /// list_sessions:
    ///   id: 8b0f6f2e-53a1-4f0c-9f43-2d6a1c0e7b11
    ///   roles: agent,netagent
    ///   after: 0
    /// ```
    ListSessions = Command::LIST_SESSIONS, under "list_sessions", requires id {
        /// Chosen by the operator and repeated in the answer; required, 64 bytes at most.
        id: Id,
        /// List only sessions with at least one of these roles, joined with commas; default:
        /// empty, all sessions.
        roles: String,
        /// List only sessions after this number, the `next` of the previous page; default: 0, from the
        /// beginning.
        after: u64,
    }

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
    Sessions = Event::SESSIONS, under "sessions", up to crate::payload::yaml::MAX_DOCUMENT_LEN {
        /// The `id` of the command.
        id: Id,
        /// The number of sessions that the server has, of any role.
        total: u64,
        /// The `after` of the next page; 0 on the last page.
        next: u64,
        /// The sessions.
        entries: Vec<SessionEntry>,
    }

    /// One session in [`Sessions`].
    SessionEntry {
        /// The number of the session, which is unique on the server.
        number: u64,
        /// The UUID of the client.
        uuid: Id,
        /// The roles that the client advertised, joined with commas.
        roles: String,
        /// The address that the client connected from.
        address: String,
        /// The time in seconds since the session began.
        age_s: u64,
        /// The time in seconds since bytes were last received, or waited for memory.
        idle_s: u64,
        /// The certificate's serial number: hexadecimal, bytes joined with colons.
        serial: String,
        /// The subject of the certificate, at most its first 256 characters.
        subject: String,
        /// The issuer of the certificate, at most its first 256 characters.
        issuer: String,
        /// True if the certificate is bound to the UUID.
        bound: bool,
        /// Frames received, including refused ones.
        frames_received: u64,
        /// Bytes received, after TLS.
        bytes_received: u64,
        /// Frames sent: those that the operating system has taken.
        frames_sent: u64,
        /// Bytes sent, before TLS.
        bytes_sent: u64,
        /// Frames that wait in the queue to the client.
        frames_waiting: u64,
        /// Bytes that wait in the queue to the client.
        bytes_waiting: u64,
        /// Frames that were dropped because the queue was full.
        frames_dropped: u64,
    }
}
