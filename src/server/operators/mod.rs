//! The commands of operators: lists of sessions, bans and servers, the ends of sessions and of servers, and
//! reports about received frames.
//!
//! ```text
//!  ListSessions, ListBans, ListServers ─▶ operator? ─▶ a page of 64 entries
//!  Kick, Unban, DrainServer ─▶ operator? ─ ClusterHandler::may_kick ─▶ the core ─▶ Kicked, Unbanned, Servers
//!  Watch ─▶ operator? ─▶ Watchers ─▶ Watched, for each received run that is selected
//! ```
//!
//! The server handles these frames itself; the application gets none of them. An operator requests a list
//! page by page, so the longest list takes no more room in a queue than 64 entries. Each frame is handled
//! alone, so that an operator that does not read its answers is paused like any other peer.
//!
//! | file | holds |
//! |---|---|
//! | `lists` | the pages of sessions, bans and servers |
//! | `commands` | Kick, Unban, DrainServer, and the answers |
//! | `watching` | the operators that watch |

mod commands;
pub(super) mod lists;
mod watching;

pub(super) use self::commands::{answer, kick, read_drain, unban};
use self::watching::Watchers;
use crate::payload::{self, Id, Payload};
use crate::proto::{Command, Frame, FrameKind, FrameType};
use ssntp_pki::Role;

/// The longest id of a command, in bytes, because the answer repeats it.
const MAX_ID: usize = 64;
/// Who may give commands, and who watches.
#[derive(Debug)]
pub(super) struct Operators {
    roles: Role,
    pub(super) watchers: Watchers,
}

impl Operators {
    pub(super) fn new(roles: Role) -> Self {
        Self {
            roles,
            watchers: Watchers::default(),
        }
    }

    /// True if sessions with this role are operators.
    pub(super) fn include(&self, role: Role) -> bool {
        role.intersects(self.roles)
    }
}

/// True if this kind of frame is a command of operators.
pub(super) fn is_command(kind: FrameKind) -> bool {
    kind.frame_type == FrameType::COMMAND && kind.is_of_operators()
}

/// True if this command changes something. Every operator may list and watch. The application may allow
/// changes to only one of them.
pub(super) fn changes(command: Command) -> bool {
    [Command::KICK, Command::UNBAN, Command::DRAIN_SERVER].contains(&command)
}

/// Decodes a command. The error is the reason in InvalidFrameType.
pub(super) fn read<T: Payload>(frame: &Frame, id: fn(&T) -> &Id) -> Result<T, &'static str> {
    match T::decode(frame.payload_bytes()) {
        Ok(asked) if id(&asked).as_str().len() <= MAX_ID => Ok(asked),
        Err(payload::Error::Document(e)) if e.is_malformed() => Err("invalid_payload"),
        _ => Err("invalid_data"),
    }
}
