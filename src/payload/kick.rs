//! Kick, ListBans and Unban with their answers (COMMAND and EVENT 0x44 to 0x46): operators end
//! sessions, and ban clients for some time.

use serde::{Deserialize, Serialize};

use super::names::names;
use super::{Id, payload};

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
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Kick {
    /// Chosen by the operator and repeated in the answer; required, 64 bytes at most.
    pub id: Id,
    /// The client.
    pub uuid: Id,
    /// The time in seconds for which the client is banned, at most a year; default: 0, the client
    /// may connect again at once.
    pub ban_s: u64,
}

payload!(Kick = Command::KICK, under "kick", requires id);

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
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Kicked {
    /// The `id` of the command.
    pub id: Id,
    /// The reason why the command was refused; empty after success.
    pub reason: OperatorRefusal,
    /// Details of the reason; after success, a warning or empty.
    pub detail: String,
    /// The number of sessions that were ended.
    pub count: u64,
    /// The clients of these sessions.
    pub uuids: Vec<Id>,
    /// The client in the command.
    pub uuid: Id,
    /// The time in seconds for which the client is banned; 0 without a ban.
    pub ban_s: u64,
}

payload!(Kicked = Event::KICKED, under "kicked", up to super::yaml::MAX_DOCUMENT_LEN);

/// An operator asks for the bans, a page at a time.
///
/// The payload of ListBans (COMMAND 0x45):
///
/// ```yaml
/// list_bans:
///   id: 8b0f6f2e-53a1-4f0c-9f43-2d6a1c0e7b13
///   after: 0
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ListBans {
    /// Chosen by the operator and repeated in the answer; required, 64 bytes at most.
    pub id: Id,
    /// List only bans after this number, the `next` of the previous page; default: 0, from the
    /// beginning.
    pub after: u64,
}

payload!(ListBans = Command::LIST_BANS, under "list_bans", requires id);

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
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Bans {
    /// The `id` of the command.
    pub id: Id,
    /// The `after` of the next page; 0 on the last page.
    pub next: u64,
    /// The bans.
    pub entries: Vec<BanEntry>,
}

payload!(Bans = Event::BANS, under "bans", up to super::yaml::MAX_DOCUMENT_LEN);

/// One ban in [`Bans`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct BanEntry {
    /// The number of the ban, which is unique on the server.
    pub number: u64,
    /// The banned client.
    pub uuid: Id,
    /// The operator who banned the client.
    pub by: Id,
    /// The time in seconds since the ban began.
    pub age_s: u64,
    /// The time in seconds until the ban ends.
    pub left_s: u64,
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
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Unban {
    /// Chosen by the operator and repeated in the answer; required, 64 bytes at most.
    pub id: Id,
    /// The client.
    pub uuid: Id,
}

payload!(Unban = Command::UNBAN, under "unban", requires id);

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
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Unbanned {
    /// The `id` of the command.
    pub id: Id,
    /// The reason why the command was refused; empty after success.
    pub reason: OperatorRefusal,
    /// Details of the reason.
    pub detail: String,
}

payload!(Unbanned = Event::UNBANNED, under "unbanned");

names! {
    /// The reason why a server refuses a command of an operator.
    OperatorRefusal {
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
}
