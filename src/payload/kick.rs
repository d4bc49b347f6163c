//! Kick, ListBans and Unban with their answers (COMMAND and EVENT 0x44 to 0x46): operators end
//! sessions, and ban clients for some time.

use super::Id;
use crate::names;
use crate::schema;

schema! {
    /// An operator ends the session of a client.
    ///
    /// The payload of Kick (COMMAND 0x44):
    ///
    /// ```yaml
    /// kick:
    ///   id: 8b0f6f2e-53a1-4f0c-9f43-2d6a1c0e7b12
    ///   uuid: 5be1c0de-7d1a-4b52-8a55-90d2c3b4a501
    ///   ban_s: 3600
    /// ```
    Kick = Command::KICK, under "kick", requires id {
        /// Chosen by the operator and repeated in the answer; required, 64 bytes at most.
        id: Id,
        /// The client.
        uuid: Id,
        /// The time in seconds for which the client is banned, at most a year; default: 0, the client
        /// may connect again at once.
        ban_s: u64,
    }

    /// The result of a [`Kick`].
    ///
    /// The payload of Kicked (EVENT 0x44), made by the server:
    ///
    /// ```yaml
    /// kicked:
    ///   id: 8b0f6f2e-53a1-4f0c-9f43-2d6a1c0e7b12
    ///   reason: ""
    ///   detail: ""
    ///   count: 1
    ///   uuids:
    ///   - 5be1c0de-7d1a-4b52-8a55-90d2c3b4a501
    ///   uuid: 5be1c0de-7d1a-4b52-8a55-90d2c3b4a501
    ///   ban_s: 3600
    /// ```
    Kicked = Event::KICKED, under "kicked", up to crate::payload::yaml::MAX_DOCUMENT_LEN {
        /// The `id` of the command.
        id: Id,
        /// The reason why the command was refused; empty after success.
        reason: OperatorRefusal,
        /// Details of the reason; after success, a warning or empty.
        detail: String,
        /// The number of sessions that were ended.
        count: u64,
        /// The clients of these sessions.
        uuids: Vec<Id>,
        /// The client in the command.
        uuid: Id,
        /// The time in seconds for which the client is banned; 0 without a ban.
        ban_s: u64,
    }

    /// An operator asks for the bans, a page at a time.
    ///
    /// The payload of ListBans (COMMAND 0x45):
    ///
    /// ```yaml
    /// list_bans:
    ///   id: 8b0f6f2e-53a1-4f0c-9f43-2d6a1c0e7b13
    ///   after: 0
    /// ```
    ListBans = Command::LIST_BANS, under "list_bans", requires id {
        /// Chosen by the operator and repeated in the answer; required, 64 bytes at most.
        id: Id,
        /// List only bans after this number, the `next` of the previous page; default: 0, from the
        /// beginning.
        after: u64,
    }

    /// A page of bans, the oldest first.
    ///
    /// The payload of Bans (EVENT 0x45), made by the server:
    ///
    /// ```yaml
    /// bans:
    ///   id: 8b0f6f2e-53a1-4f0c-9f43-2d6a1c0e7b13
    ///   next: 0
    ///   entries:
    ///   - number: 3
    ///     uuid: 5be1c0de-7d1a-4b52-8a55-90d2c3b4a501
    ///     by: 3f1c2d4e-6a5b-4c7d-8e9f-0a1b2c3d4e5f
    ///     age_s: 600
    ///     left_s: 3000
    /// ```
    Bans = Event::BANS, under "bans", up to crate::payload::yaml::MAX_DOCUMENT_LEN {
        /// The `id` of the command.
        id: Id,
        /// The `after` of the next page; 0 on the last page.
        next: u64,
        /// The bans.
        entries: Vec<BanEntry>,
    }

    /// One ban in [`Bans`].
    BanEntry {
        /// The number of the ban, which is unique on the server.
        number: u64,
        /// The banned client.
        uuid: Id,
        /// The operator who banned the client.
        by: Id,
        /// The time in seconds since the ban began.
        age_s: u64,
        /// The time in seconds until the ban ends.
        left_s: u64,
    }

    /// An operator ends a ban early.
    ///
    /// The payload of Unban (COMMAND 0x46):
    ///
    /// ```yaml
    /// unban:
    ///   id: 8b0f6f2e-53a1-4f0c-9f43-2d6a1c0e7b14
    ///   uuid: 5be1c0de-7d1a-4b52-8a55-90d2c3b4a501
    /// ```
    Unban = Command::UNBAN, under "unban", requires id {
        /// Chosen by the operator and repeated in the answer; required, 64 bytes at most.
        id: Id,
        /// The client.
        uuid: Id,
    }

    /// The result of an [`Unban`].
    ///
    /// The payload of Unbanned (EVENT 0x46), made by the server:
    ///
    /// ```yaml
    /// unbanned:
    ///   id: 8b0f6f2e-53a1-4f0c-9f43-2d6a1c0e7b14
    ///   reason: not_banned
    ///   detail: no ban is of that UUID
    /// ```
    Unbanned = Event::UNBANNED, under "unbanned" {
        /// The `id` of the command.
        id: Id,
        /// The reason why the command was refused; empty after success.
        reason: OperatorRefusal,
        /// Details of the reason.
        detail: String,
    }
}

names! {
    /// The reason why a server refuses a command of an operator.
    OperatorRefusal {
        /// It does not refuse it: the command was carried out.
        NotRefused = "";
        /// No session has that UUID, and the command sets no ban.
        NotConnected = "not_connected";
        /// The operator's own session would end.
        OwnSession = "own_session";
        /// The server has 1024 bans, which is the limit.
        TooManyBans = "too_many_bans";
        /// There is no ban of that UUID.
        NotBanned = "not_banned";
        /// A value is missing or out of range.
        InvalidData = "invalid_data";
        /// The server in the command does not accept this operator.
        NotAllowed = "not_allowed";
    }
    default NotRefused
}
