//! The messages that schedulers send each other over their links, as bytes.
//!
//! | first byte | message | the rest |
//! |---|---|---|
//! | 0 | the sender leads | its token, u64; the configuration of the cluster until the end |
//! | 1 | the sender no longer leads | – |
//! | 2 | the sender has sent the last reports of all its clients | – |
//! | 3 | intents | records until the end |
//!
//! A record is the UUID of the instance, the UUID of its node (nil if the instance is gone, the greatest one if it
//! ended with its node), and the state of its START, u8. 0: it is answered. 1: it is in flight; the length of its
//! `command_id` follows, u8, and its bytes. 2: like 1, and its key `restart` is set. 3: it was
//! answered with a failure, but its node may still start the instance.

use bytes::Bytes;
use uuid::Uuid;

/// The maximum number of intents in a message.
const MAX_PER_MESSAGE: usize = 1000;
/// The maximum number of intents that are sent to another scheduler: at some 35 bytes each they fit into the
/// queue of a link. The instances of connected nodes are also in STATS.
pub(crate) const MAX_INTENTS: usize = 1 << 17;
/// The length limit of a `command_id`, in bytes. Failures do not repeat a longer one.
const MAX_ID: usize = 64;

/// Stands for the node of an instance that an operator has ended with its node. No node has this UUID.
pub(crate) const LOST: Uuid = Uuid::max();

/// The node of an instance, and the state of its START.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Intent {
    pub(crate) instance: Uuid,
    /// `None` once the instance is gone.
    pub(crate) node: Option<Uuid>,
    pub(crate) state: StartState,
}

/// The state of a START.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StartState {
    Answered,
    /// It was sent to its node, and is not answered yet.
    InFlight {
        restart: bool,
        command_id: String,
    },
    /// It was answered with a failure, but its node may still start the instance.
    GivenUp,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Message {
    Leads { token: u64, configuration: Bytes },
    LeadsNoMore,
    Complete,
    Intents(Vec<Intent>),
}

impl Message {
    pub(crate) fn encode(&self) -> Bytes {
        match self {
            Self::Leads { token, configuration } => [&[0], &token.to_be_bytes()[..], configuration].concat(),
            Self::LeadsNoMore => vec![1],
            Self::Complete => vec![2],
            Self::Intents(intents) => {
                let mut bytes = vec![3];
                intents.iter().for_each(|intent| intent.write(&mut bytes));
                bytes
            }
        }
        .into()
    }

    /// Reads a message; `None` if the bytes are not a message.
    pub(crate) fn decode(bytes: &Bytes) -> Option<Self> {
        let mut rest = &bytes[..];
        Some(match take::<1>(&mut rest)? {
            [0] => Self::Leads {
                token: u64::from_be_bytes(take(&mut rest)?),
                configuration: bytes.slice_ref(rest),
            },
            [1] if rest.is_empty() => Self::LeadsNoMore,
            [2] if rest.is_empty() => Self::Complete,
            [3] => {
                let mut intents = Vec::new();
                while !rest.is_empty() {
                    intents.push(Intent::read(&mut rest)?);
                }
                Self::Intents(intents)
            }
            _ => return None,
        })
    }

    /// Messages with these intents.
    pub(crate) fn of(intents: &[Intent]) -> impl Iterator<Item = Bytes> {
        let parts = intents.chunks(MAX_PER_MESSAGE);
        parts.map(|part| Self::Intents(part.to_vec()).encode())
    }
}

impl Intent {
    /// The intent for an instance that is gone.
    pub(crate) fn gone(instance: Uuid) -> Self {
        let (node, state) = (None, StartState::Answered);
        Self {
            instance,
            node,
            state,
        }
    }

    fn write(&self, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(self.instance.as_bytes());
        bytes.extend_from_slice(self.node.unwrap_or_default().as_bytes());
        match &self.state {
            StartState::Answered => bytes.push(0),
            StartState::GivenUp => bytes.push(3),
            StartState::InFlight { restart, command_id } => {
                let id = Some(command_id.as_bytes()).filter(|id| id.len() <= MAX_ID);
                let id = id.unwrap_or_default();
                bytes.push(1 + u8::from(*restart));
                bytes.push(u8::try_from(id.len()).unwrap_or_default());
                bytes.extend_from_slice(id);
            }
        }
    }

    fn read(rest: &mut &[u8]) -> Option<Self> {
        let instance = Uuid::from_bytes(take(rest)?);
        let node = Uuid::from_bytes(take(rest)?);
        let state = match take::<1>(rest)? {
            [0] => StartState::Answered,
            [state @ (1 | 2)] => {
                let [len] = take::<1>(rest)?;
                let (id, after) = rest.split_at_checked(len.into())?;
                *rest = after;
                StartState::InFlight {
                    restart: state == 2,
                    command_id: str::from_utf8(id).ok()?.to_owned(),
                }
            }
            [3] => StartState::GivenUp,
            _ => return None,
        };
        Some(Self {
            instance,
            node: Some(node).filter(|node| !node.is_nil()),
            state,
        })
    }
}

fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (head, after) = rest.split_first_chunk()?;
    *rest = after;
    Some(*head)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn messages_round_trip_and_truncated_messages_are_refused() {
        let uuid = Uuid::from_u128;
        let in_flight = |restart, id: &str| StartState::InFlight {
            restart,
            command_id: id.to_owned(),
        };
        let states = [
            StartState::Answered,
            in_flight(false, ""),
            in_flight(true, "one"),
            StartState::GivenUp,
        ];
        let intents = states.into_iter().zip(1..).map(|(state, n)| Intent {
            instance: uuid(n),
            node: (n > 1).then(|| uuid(n + 9)),
            state,
        });
        let lost = Intent {
            node: Some(LOST),
            ..Intent::gone(uuid(9))
        };
        let intents: Vec<_> = intents.chain([lost]).collect();
        let leads = Message::Leads {
            token: 7,
            configuration: Bytes::from_static(b"configure:\n"),
        };
        let all = [
            leads,
            Message::LeadsNoMore,
            Message::Complete,
            Message::Intents(intents.clone()),
        ];
        for message in all {
            assert_eq!(Message::decode(&message.encode()), Some(message));
        }
        let last = Message::Intents(intents[2..3].to_vec()).encode();
        for end in 2..last.len() {
            assert_eq!(Message::decode(&last.slice(..end)), None, "{end}");
        }
        assert_eq!(Message::of(&vec![intents[0].clone(); 2001]).count(), 3);
    }

    proptest! {
        #[test]
        fn decoding_never_panics(bytes: Vec<u8>) {
            let _ = Message::decode(&bytes.into());
        }
    }
}
