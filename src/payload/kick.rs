//! Kick, Unban and ListBans with their answers (COMMAND and EVENT 0x44 to 0x46):
//! who is thrown out, and kept out for some time.

use serde::{Deserialize, Serialize};

use super::names::names;
use super::{Id, payload};

/// An operator ends the session of a UUID, or all sessions of a certificate.
///
/// The payload of Kick (COMMAND 0x44); either `uuid` or `serial` is there:
///
/// ```yaml
/// kick:
///   id: 8b0f6f2e-53a1-4f0c-9f43-2d6a1c0e7b12
///   uuid: ""
///   serial: 4f:0a:11
///   issuer: CN=cluster
///   ban_s: 3600
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Kick {
    /// Chosen by who asks, and repeated in the answer; required, 64 bytes at most.
    pub id: Id,
    /// The client.
    pub uuid: Id,
    /// The certificate's serial number: hexadecimal, with or without colons.
    pub serial: String,
    /// Who issued the certificate; default: empty, whoever issued the only one
    /// with that serial number.
    pub issuer: String,
    /// For how many seconds it is kept out, a year at most; default: 0, it may
    /// come again at once.
    pub ban_s: u64,
}

payload!(Kick = Command::KICK, under "kick", requires id);

/// What became of a [`Kick`].
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
///   uuid: ""
///   serial: 4f:0a:11
///   issuer: CN=cluster
///   ban_s: 3600
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Kicked {
    /// As in the question.
    pub id: Id,
    /// Why nothing was done; empty where it was.
    pub reason: OperatorRefusal,
    /// The reason in words, or what is to be known of what was done.
    pub detail: String,
    /// How many sessions were ended.
    pub count: u64,
    /// Their clients, 64 at most.
    pub uuids: Vec<Id>,
    /// The client that was named.
    pub uuid: Id,
    /// The certificate that was named.
    pub serial: String,
    /// Who issued it, as found.
    pub issuer: String,
    /// For how many seconds it is kept out, 0 where it is not.
    pub ban_s: u64,
}

payload!(Kicked = Event::KICKED, under "kicked");

/// An operator asks who is kept out, a page at a time.
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
    /// Chosen by who asks, and repeated in the answer; required, 64 bytes at most.
    pub id: Id,
    /// Only those after this number, the `next` of the page before; default: 0,
    /// from the beginning.
    pub after: u64,
}

payload!(ListBans = Command::LIST_BANS, under "list_bans", requires id);

/// Some of those who are kept out, in the order in which they were banned.
///
/// The payload of Bans (EVENT 0x45), made by the server:
///
/// ```yaml
/// bans:
///   id: 8b0f6f2e-53a1-4f0c-9f43-2d6a1c0e7b13
///   next: 0
///   entries:
///   - number: 3
///     uuid: ""
///     serial: 4f:0a:11
///     issuer: CN=cluster
///     by: 3f1c2d4e-6a5b-4c7d-8e9f-0a1b2c3d4e5f
///     age_s: 600
///     left_s: 3000
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Bans {
    /// As in the question.
    pub id: Id,
    /// What to ask for next; 0 where this is the last page.
    pub next: u64,
    /// The bans.
    pub entries: Vec<BanEntry>,
}

payload!(Bans = Event::BANS, under "bans");

/// One ban in [`Bans`]: of a UUID, or of a certificate.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct BanEntry {
    /// Its number, which no other ban of the server gets.
    pub number: u64,
    /// The client that is kept out.
    pub uuid: Id,
    /// The serial number of the certificate that is kept out.
    pub serial: String,
    /// Who issued the certificate.
    pub issuer: String,
    /// The operator.
    pub by: Id,
    /// How many seconds ago it began.
    pub age_s: u64,
    /// After how many seconds it ends.
    pub left_s: u64,
}

/// An operator lets somebody in again.
///
/// The payload of Unban (COMMAND 0x46); either `uuid` or `serial` is there:
///
/// ```yaml
/// unban:
///   id: 8b0f6f2e-53a1-4f0c-9f43-2d6a1c0e7b14
///   uuid: 5be1c0de-7d1a-4b52-8a55-90d2c3b4a501
///   serial: ""
///   issuer: ""
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Unban {
    /// Chosen by who asks, and repeated in the answer; required, 64 bytes at most.
    pub id: Id,
    /// The client.
    pub uuid: Id,
    /// The certificate's serial number: hexadecimal, with or without colons.
    pub serial: String,
    /// Who issued the certificate; default: empty, whoever issued the only one
    /// with that serial number that is banned.
    pub issuer: String,
}

payload!(Unban = Command::UNBAN, under "unban", requires id);

/// What became of an [`Unban`].
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
    /// As in the question.
    pub id: Id,
    /// Why nothing was done; empty where it was.
    pub reason: OperatorRefusal,
    /// The reason in words.
    pub detail: String,
}

payload!(Unbanned = Event::UNBANNED, under "unbanned");

names! {
    /// Why a server does not do what an operator wants.
    OperatorRefusal {
        /// Nobody who is connected is meant, and nobody else can be banned by it.
        NotConnected = "not_connected";
        /// Several issuers have given out that serial number: one has to be named.
        Ambiguous = "ambiguous";
        /// The operator's own session would end.
        OwnSession = "own_session";
        /// There are as many bans as there may be.
        TooManyBans = "too_many_bans";
        /// Nobody who is banned is meant.
        NotBanned = "not_banned";
        /// What is asked for makes no sense.
        InvalidData = "invalid_data";
    }
}
