//! Watch and Watched (COMMAND 0x48 and EVENT 0x4a): an operator sees which client sends what.

use serde::{Deserialize, Serialize};

use super::{Id, payload};

/// An operator asks to be told of each frame that a server receives.
///
/// It is told until its session ends. A further Watch replaces the one before.
///
/// The payload of Watch (COMMAND 0x48):
///
/// ```yaml
/// watch:
///   id: 8b0f6f2e-53a1-4f0c-9f43-2d6a1c0e7b16
///   uuid: 5be1c0de-7d1a-4b52-8a55-90d2c3b4a501
///   kind: STATS
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Watch {
    /// Chosen by the operator and repeated in each answer; required, 64 bytes at most.
    pub id: Id,
    /// Only frames of this client; default: empty, of all clients.
    pub uuid: Id,
    /// Only frames of this kind, by the operand's name or as `COMMAND/0x80`; default: empty, of
    /// all kinds.
    pub kind: String,
}

payload!(Watch = Command::WATCH, under "watch", requires id);

/// Frames that a server has received, and that somebody watches.
///
/// The first one has no frames: it says that the server watches from here on. Each other one is
/// about consecutive frames of one client and of one kind. It does not have their payloads.
///
/// The payload of Watched (EVENT 0x4a), made by the server:
///
/// ```yaml
/// watched:
///   id: 8b0f6f2e-53a1-4f0c-9f43-2d6a1c0e7b16
///   uuid: 5be1c0de-7d1a-4b52-8a55-90d2c3b4a501
///   roles: agent
///   kind: STATS
///   frames: 3
///   bytes: 360
///   missed: 0
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Watched {
    /// As in the question.
    pub id: Id,
    /// The client that sent them.
    pub uuid: Id,
    /// Its roles, joined with commas.
    pub roles: String,
    /// Their kind, by the operand's name or as `COMMAND/0x80`.
    pub kind: String,
    /// How many they are.
    pub frames: u64,
    /// Their length together, headers included.
    pub bytes: u64,
    /// How many frames before these were not told of, because too much waited for the operator.
    pub missed: u64,
}

payload!(Watched = Event::WATCHED, under "watched");
