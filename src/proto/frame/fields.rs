//! The fields of a frame: the decoders of headers, handshakes, traces and streams read their bytes through
//! [`Fields`], which can note each field with its place. On a session the notes are `()`, so that noting compiles
//! to nothing.

use uuid::Uuid;

use ssntp_pki::Role;

pub use super::annotate::{Part, annotate};

/// A field of a frame.
#[derive(Clone, Debug, PartialEq)]
pub struct Field {
    /// The name, as in docs/protocol.md.
    pub name: String,
    /// The offset of the first byte in its part.
    pub at: usize,
    /// The length in bytes.
    pub len: usize,
    /// The value.
    pub value: FieldValue,
    /// What a number means, or empty.
    pub meaning: String,
}

/// The value of a [`Field`].
#[derive(Clone, Debug, PartialEq)]
pub enum FieldValue {
    /// A number.
    Number(u64),
    /// Nanoseconds since 1970; 0 if unset.
    Time(u64),
    /// A UUID.
    Uuid(Uuid),
    /// Roles.
    Role(Role),
    /// Any bytes, mostly text.
    Bytes(Vec<u8>),
}

/// Takes note of the fields that are read.
pub trait Notes {
    /// Notes a field.
    fn add(&mut self, field: impl FnOnce() -> Field);

    /// Adds the meaning of the last field.
    fn meaning(&mut self, meaning: impl FnOnce() -> String);
}

/// No notes.
impl Notes for () {
    #[inline]
    fn add(&mut self, _: impl FnOnce() -> Field) {}

    #[inline]
    fn meaning(&mut self, _: impl FnOnce() -> String) {}
}

impl Notes for Vec<Field> {
    fn add(&mut self, field: impl FnOnce() -> Field) {
        self.push(field());
    }

    fn meaning(&mut self, meaning: impl FnOnce() -> String) {
        if let Some(last) = self.last_mut() {
            last.meaning = meaning();
        }
    }
}

/// Reads the fields of a part in order.
#[derive(Debug)]
pub struct Fields<'a, N = ()> {
    bytes: &'a [u8],
    pub(super) at: usize,
    pub(super) notes: N,
    /// The first field whose bytes were missing, and its length.
    pub(super) cut: Option<(&'static str, usize)>,
    /// The number of the hop of a trace to which the fields belong.
    node: Option<usize>,
}

impl<'a> Fields<'a> {
    #[inline]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self::noting(bytes, ())
    }
}

impl<'a, N: Notes> Fields<'a, N> {
    #[inline]
    pub(super) fn noting(bytes: &'a [u8], notes: N) -> Self {
        Self {
            bytes,
            at: 0,
            notes,
            cut: None,
            node: None,
        }
    }

    /// The number of bytes that were not read yet.
    pub fn remaining(&self) -> usize {
        self.bytes.len() - self.at
    }

    /// The fields that follow belong to this hop of a trace.
    pub fn begin_node(&mut self, number: usize) {
        self.node = Some(number);
    }

    /// Adds the meaning of the last field.
    #[inline]
    pub fn meaning(&mut self, meaning: impl FnOnce() -> String) {
        self.notes.meaning(meaning);
    }

    /// Skips bytes that are reserved.
    pub fn reserved(&mut self, len: usize) -> Option<()> {
        self.take("reserved", len).map(drop)
    }

    /// The next bytes. `None` if there are fewer.
    pub fn bytes(&mut self, name: &'static str, len: usize) -> Option<&'a [u8]> {
        let bytes = self.take(name, len)?;
        self.note(name, len, || FieldValue::Bytes(bytes.to_vec()));
        Some(bytes)
    }

    /// All bytes that follow.
    pub fn rest(&mut self, name: &'static str) -> &'a [u8] {
        self.bytes(name, self.remaining()).unwrap_or_default()
    }

    #[inline]
    pub fn u8(&mut self, name: &'static str) -> Option<u8> {
        let [number] = self.array(name)?;
        self.note(name, 1, || FieldValue::Number(number.into()));
        Some(number)
    }

    #[inline]
    pub fn u32(&mut self, name: &'static str) -> Option<u32> {
        let number = u32::from_be_bytes(self.array(name)?);
        self.note(name, 4, || FieldValue::Number(number.into()));
        Some(number)
    }

    pub fn time(&mut self, name: &'static str) -> Option<u64> {
        let time = u64::from_be_bytes(self.array(name)?);
        self.note(name, 8, || FieldValue::Time(time));
        Some(time)
    }

    pub fn uuid(&mut self, name: &'static str) -> Option<Uuid> {
        let uuid = Uuid::from_bytes(self.array(name)?);
        self.note(name, 16, || FieldValue::Uuid(uuid));
        Some(uuid)
    }

    #[inline]
    pub fn role(&mut self, name: &'static str) -> Option<Role> {
        let role = Role::from_bits(u32::from_be_bytes(self.array(name)?));
        self.note(name, 4, || FieldValue::Role(role));
        Some(role)
    }

    #[inline]
    fn array<const LEN: usize>(&mut self, name: &'static str) -> Option<[u8; LEN]> {
        self.take(name, LEN)?.try_into().ok()
    }

    #[inline]
    fn take(&mut self, name: &'static str, len: usize) -> Option<&'a [u8]> {
        let Some(bytes) = self.bytes.get(self.at..self.at + len) else {
            self.cut = Some((name, len));
            return None;
        };
        self.at += len;
        Some(bytes)
    }

    #[inline]
    fn note(&mut self, name: &'static str, len: usize, value: impl FnOnce() -> FieldValue) {
        let (at, node) = (self.at - len, self.node);
        self.notes.add(|| Field {
            name: node.map_or_else(|| name.to_owned(), |node| format!("node {node} {name}")),
            at,
            len,
            value: value(),
            meaning: String::new(),
        });
    }
}
