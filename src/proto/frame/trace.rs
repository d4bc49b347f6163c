//! The trace block: the clients and servers that a frame has passed, with timestamps
//! (docs/protocol.md, "Trace block").

use std::time::Duration;

use uuid::Uuid;

use super::TraceParent;
use super::fields::{Fields, Notes};
use ssntp_pki::Role;
use ssntp_transport::cut;

/// The maximum number of hops a block holds.
pub(crate) const MAX_TRACE_NODES: usize = 32;

const VERSION: u8 = 1;
// Version, length of the label, two times, number of nodes.
const FIXED_LEN: usize = 1 + 1 + 8 + 8 + 1;
// UUID, role, two times.
const NODE_LEN: usize = 16 + 4 + 8 + 8;

/// The record that a traced frame collects on its way. Times are nanoseconds since the Unix epoch,
/// 0 if unset.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    label: Vec<u8>,
    /// The time at which the work that the frame belongs to began.
    pub start: u64,
    /// The time at which that work ended.
    pub end: u64,
    nodes: Vec<TraceNode>,
}

/// One hop of a traced frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceNode {
    /// The UUID of the client or server that the frame passed.
    pub uuid: Uuid,
    /// The roles that it advertised.
    pub role: Role,
    /// The time at which the frame arrived there; 0 at the origin.
    pub received_at: u64,
    /// The time at which the frame left; 0 at its last hop.
    pub sent_at: u64,
}

impl Trace {
    /// The largest block that a receiver accepts, in bytes.
    pub const MAX_LEN: usize = 4096;

    /// A trace with a label of at most 255 bytes (a longer one is cut at a
    /// character boundary) and no hop yet.
    pub fn new(label: &str) -> Self {
        // One byte of the block holds the length of the label.
        Self {
            label: cut(label, u8::MAX.into()).into(),
            ..Self::default()
        }
    }

    /// The label as text; bytes that are not UTF-8 are replaced.
    pub fn label(&self) -> std::borrow::Cow<'_, str> {
        String::from_utf8_lossy(&self.label)
    }

    /// A trace that is part of the trace `parent`. Its label is `label`, cut if it is too long,
    /// followed by the parent.
    pub fn within(label: &str, parent: &TraceParent) -> Self {
        Self::new(&parent.label(label, u8::MAX.into()))
    }

    /// The parent that the label names.
    pub fn traceparent(&self) -> Option<TraceParent> {
        TraceParent::in_label(&self.label())
    }

    /// The hops, origin first.
    pub fn nodes(&self) -> &[TraceNode] {
        &self.nodes
    }

    /// Adds a hop. A trace with 32 hops stays as it is, and false is returned.
    pub fn push(&mut self, node: TraceNode) -> bool {
        if self.nodes.len() >= MAX_TRACE_NODES {
            return false;
        }
        self.nodes.push(node);
        true
    }

    /// Stamps the departure from `uuid`. Adds the hop if the last one has another UUID, as at the
    /// origin.
    pub fn stamp_sent(&mut self, uuid: Uuid, role: Role, at: u64) {
        match self.nodes.last_mut() {
            // An entity that forwards the frame completes the hop that it added on arrival. The
            // origin has no such hop.
            Some(last) if last.uuid == uuid && last.sent_at == 0 => last.sent_at = at,
            _ => {
                self.push(TraceNode {
                    uuid,
                    role,
                    received_at: 0,
                    sent_at: at,
                });
            }
        }
    }

    /// Adds the arrival at `uuid`.
    pub fn stamp_received(&mut self, uuid: Uuid, role: Role, at: u64) {
        self.push(TraceNode {
            uuid,
            role,
            received_at: at,
            sent_at: 0,
        });
    }

    /// The time from the departure at the origin to the last stamp; `None` if one of them is
    /// missing, or if the last stamp is the earlier one, because clocks differ.
    pub fn duration(&self) -> Option<Duration> {
        let first = self.nodes.first()?;
        let last = self.nodes.last()?;
        let began = match first.sent_at {
            0 => first.received_at,
            sent_at => sent_at,
        };
        between(began, last.sent_at.max(last.received_at))
    }

    /// Time on the wire before each hop but the first, and time inside each
    /// hop, in the order of the hops.
    pub fn hops(&self) -> impl Iterator<Item = Hop> + '_ {
        let previous = std::iter::once(None).chain(self.nodes.iter().map(Some));
        self.nodes.iter().zip(previous).map(|(node, previous)| Hop {
            node: *node,
            wire: previous.and_then(|p| between(p.sent_at, node.received_at)),
            inside: between(node.received_at, node.sent_at),
        })
    }

    /// Length of the encoded block in bytes.
    pub fn encoded_len(&self) -> usize {
        FIXED_LEN + self.label.len() + self.nodes.len() * NODE_LEN
    }

    /// Appends the block, without the length that precedes it on the wire.
    pub fn encode(&self, out: &mut Vec<u8>) {
        // `new` and `push` bound the label and the hops, so both counts fit.
        out.extend([VERSION, u8::try_from(self.label.len()).unwrap_or(u8::MAX)]);
        out.extend(&self.label);
        out.extend(self.start.to_be_bytes());
        out.extend(self.end.to_be_bytes());
        out.push(u8::try_from(self.nodes.len()).unwrap_or(u8::MAX));
        for node in &self.nodes {
            out.extend(node.uuid.as_bytes());
            out.extend(node.role.bits().to_be_bytes());
            out.extend(node.received_at.to_be_bytes());
            out.extend(node.sent_at.to_be_bytes());
        }
    }

    /// Reads a whole block.
    ///
    /// # Errors
    /// [`BadTrace`] if the version is not 1, a count points past the end, or bytes are left over.
    /// The codec then drops the block and keeps the frame.
    pub fn decode(block: &[u8]) -> Result<Self, BadTrace> {
        Self::read(&mut Fields::new(block))
    }

    pub(super) fn read(fields: &mut Fields<'_, impl Notes>) -> Result<Self, BadTrace> {
        let truncated = BadTrace::Truncated;
        if fields.remaining() > Trace::MAX_LEN {
            return Err(BadTrace::TooLong(fields.remaining()));
        }
        let version = fields.u8("trace version").ok_or(truncated)?;
        if version != VERSION {
            return Err(BadTrace::Version(version));
        }
        let len = fields.u8("label length").ok_or(truncated)?;
        let label = fields.bytes("label", len.into()).ok_or(truncated)?.to_vec();
        let start = fields.time("start").ok_or(truncated)?;
        let end = fields.time("end").ok_or(truncated)?;
        let count = usize::from(fields.u8("node count").ok_or(truncated)?);
        if count > MAX_TRACE_NODES {
            return Err(BadTrace::TooManyNodes(count));
        }
        let mut nodes = Vec::with_capacity(count);
        for number in 0..count {
            fields.begin_node(number);
            nodes.push(TraceNode {
                uuid: fields.uuid("uuid").ok_or(truncated)?,
                role: fields.role("role").ok_or(truncated)?,
                received_at: fields.time("received").ok_or(truncated)?,
                sent_at: fields.time("sent").ok_or(truncated)?,
            });
        }
        // A block that is longer than its counts say is as wrong as one that is cut off.
        if fields.remaining() > 0 {
            return Err(BadTrace::Trailing(fields.remaining()));
        }
        Ok(Self {
            label,
            start,
            end,
            nodes,
        })
    }
}

/// One hop with the times around it, see [`Trace::hops`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hop {
    /// The timestamps of the hop.
    pub node: TraceNode,
    /// The time from the previous hop's departure to this arrival. `None` if one of them is not set,
    /// or if the clocks of the two hosts disagree about their order.
    pub wire: Option<Duration>,
    /// The time from arrival to departure. `None` if one of them is not set.
    pub inside: Option<Duration>,
}

/// The time from one stamp to another; `None` if a stamp is not set, or if `to` is earlier.
fn between(from: u64, to: u64) -> Option<Duration> {
    if from == 0 || to == 0 {
        return None;
    }
    // The clocks of two hosts differ, so a frame may seem to arrive before it left.
    to.checked_sub(from).map(Duration::from_nanos)
}

/// The reason why a trace block cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BadTrace {
    /// Longer than 4096 bytes.
    #[error("trace block of {0} bytes is longer than {max}", max = Trace::MAX_LEN)]
    TooLong(usize),
    /// A version other than 1.
    #[error("trace block has version {0}, not {VERSION}")]
    Version(u8),
    /// A count points past the end.
    #[error("trace block ends inside a field")]
    Truncated,
    /// More than 32 hops.
    #[error("trace block counts {0} nodes, more than {MAX_TRACE_NODES}")]
    TooManyNodes(usize),
    /// Bytes after the last hop.
    #[error("trace block has {0} bytes after its last node")]
    Trailing(usize),
}
