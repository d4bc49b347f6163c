//! What schedulers tell each other over their links, as bytes.
//!
//! | first byte | message | then |
//! |---|---|---|
//! | 0 | the sender leads | token u64, the configuration of the cluster until the end |
//! | 1 | it leads no more | – |
//! | 2 | the leader has all that the sender knew of its sessions | – |
//! | 3 | intents | records until the end |
//!
//! A record is: instance, node (nil if the instance is gone), state u8. The states 1 and 2 are
//! a START without an answer, and with 2 it may be repeated; then follow a length u8 and so many bytes of
//! its `command_id`. 0: its START is answered; 3: with a failure, and the instance may still turn up.

use bytes::Bytes;
use uuid::Uuid;

/// The most intents in a message.
const MOST: usize = 1000;
/// The longest id of a command that is told, in bytes. Failures repeat none that is longer.
const MAX_ID: usize = 64;

/// Which node an instance belongs to, and what its START has come to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Intent {
    pub(super) instance: Uuid,
    /// None once the instance is gone.
    pub(super) node: Option<Uuid>,
    pub(super) fate: Fate,
}

/// The result of a START.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Answered,
    /// Its node was given it.
    Given {
        restart: bool,
        command_id: String,
    },
    /// It was answered with a failure, and the instance may still turn up.
    GivenUp,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Message {
    Leads { token: u64, configuration: Bytes },
    LeadsNoMore,
    Complete,
    Intents(Vec<Intent>),
}

impl Message {
    pub(super) fn encode(&self) -> Bytes {
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

    /// None if these bytes are no message.
    pub(super) fn decode(bytes: &Bytes) -> Option<Self> {
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

    /// Messages that tell these intents.
    pub(super) fn of(intents: &[Intent]) -> impl Iterator<Item = Bytes> {
        let parts = intents.chunks(MOST);
        parts.map(|part| Self::Intents(part.to_vec()).encode())
    }
}

impl Intent {
    fn write(&self, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(self.instance.as_bytes());
        bytes.extend_from_slice(self.node.unwrap_or_default().as_bytes());
        match &self.fate {
            Fate::Answered => bytes.push(0),
            Fate::GivenUp => bytes.push(3),
            Fate::Given { restart, command_id } => {
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
        let fate = match take::<1>(rest)? {
            [0] => Fate::Answered,
            [state @ (1 | 2)] => {
                let [len] = take::<1>(rest)?;
                let (id, after) = rest.split_at_checked(len.into())?;
                *rest = after;
                Fate::Given {
                    restart: state == 2,
                    command_id: str::from_utf8(id).ok()?.to_owned(),
                }
            }
            [3] => Fate::GivenUp,
            _ => return None,
        };
        Some(Self {
            instance,
            node: Some(node).filter(|node| !node.is_nil()),
            fate,
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
    fn each_message_is_read_as_it_was_written_and_a_piece_of_it_is_none() {
        let uuid = Uuid::from_u128;
        let given = |restart, id: &str| Fate::Given {
            restart,
            command_id: id.to_owned(),
        };
        let fates = [
            Fate::Answered,
            given(false, ""),
            given(true, "one"),
            Fate::GivenUp,
        ];
        let intents = fates.into_iter().zip(1..).map(|(fate, n)| Intent {
            instance: uuid(n),
            node: (n > 1).then(|| uuid(n + 9)),
            fate,
        });
        let intents: Vec<_> = intents.collect();
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
        fn no_bytes_cause_a_panic(bytes: Vec<u8>) {
            let _ = Message::decode(&bytes.into());
        }
    }
}
