//! Watch and Watched (COMMAND 0x48 and EVENT 0x4a): operators watch the frames that clients send.

use super::Id;
use crate::schema;

schema! {
    /// An operator asks for a report of each frame that a server receives.
    ///
    /// The reports end with the operator's session. A further Watch replaces the previous one.
    ///
    /// The payload of Watch (COMMAND 0x48):
    ///
    /// ```yaml
    /// watch:
    ///   id: 8b0f6f2e-53a1-4f0c-9f43-2d6a1c0e7b16
    ///   uuid: 5be1c0de-7d1a-4b52-8a55-90d2c3b4a501
    ///   kind: STATS
    /// ```
    Watch = Command::WATCH, under "watch", requires id {
        /// Chosen by the operator and repeated in each answer; required, 64 bytes at most.
        id: Id,
        /// Only frames of this client; default: empty, of all clients.
        uuid: Id,
        /// Only frames of this kind, by the operand's name or as `COMMAND/0x80`; default: empty, of
        /// all kinds.
        kind: String,
    }

    /// A report of frames that a server has received, for an operator that watches.
    ///
    /// The first report has no frames: it confirms that the reports begin. Each other report is about
    /// consecutive frames of one client and one kind, without their payloads.
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
    Watched = Event::WATCHED, under "watched" {
        /// The `id` of the command.
        id: Id,
        /// The client that sent the frames.
        uuid: Id,
        /// The client's roles, joined with commas.
        roles: String,
        /// The kind of the frames, by the operand's name or as `COMMAND/0x80`.
        kind: String,
        /// The number of frames.
        frames: u64,
        /// The length of all frames together, with headers.
        bytes: u64,
        /// The number of frames before these that were not reported, because the operator's queue was
        /// full.
        missed: u64,
    }
}
