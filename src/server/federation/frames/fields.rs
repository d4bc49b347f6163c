//! The fields of link frames: a function that writes each, and [`Fields`], which reads them.

use bytes::{Buf, Bytes};
use uuid::Uuid;

use super::{End, Forward, LinkFault, MAX_TARGETS, To};
use crate::server::federation::roster::{Rank, Row};
use ssntp_transport::{PeerAddress, Role};

/// The longest text, such as an address or a reason.
const MAX_TEXT: usize = 256;

pub(super) fn put_text(out: &mut Vec<u8>, text: &str) {
    let whole = text.char_indices().map(|(at, one)| at + one.len_utf8());
    let end = whole
        .take_while(|end| *end <= MAX_TEXT)
        .last()
        .unwrap_or_default();
    let text = text.get(..end).unwrap_or_default();
    out.extend(u16::try_from(text.len()).unwrap_or(u16::MAX).to_be_bytes());
    out.extend(text.as_bytes());
}

pub(super) fn put_row(out: &mut Vec<u8>, row: &Row) {
    out.extend(row.uuid.as_bytes());
    out.extend(row.number.to_be_bytes());
    out.extend(row.rank.token.to_be_bytes());
    out.extend(row.rank.stamp.to_be_bytes());
    out.extend(row.role.bits().to_be_bytes());
    out.push(u8::from(row.tracing));
    let address = match row.address {
        PeerAddress::Ip(address) => address.to_string(),
        PeerAddress::Unix => "unix".into(),
        _ => String::new(),
    };
    put_text(out, &address);
}

pub(super) fn put_forward(out: &mut Vec<u8>, forward: &Forward) {
    out.reserve_exact(64 + forward.frames.len());
    out.extend(forward.token.to_be_bytes());
    out.extend(forward.number.to_be_bytes());
    out.extend(forward.from.as_bytes());
    out.push(u8::from(forward.traced));
    match &forward.to {
        To::Sessions(uuids) => {
            out.push(0);
            out.extend(u16::try_from(uuids.len()).unwrap_or(u16::MAX).to_be_bytes());
            for uuid in uuids {
                out.extend(uuid.as_bytes());
            }
        }
        To::Role(role) => {
            out.push(1);
            out.extend(role.bits().to_be_bytes());
        }
        To::Application => out.push(2),
    }
    out.extend(&forward.frames);
}

/// The fields of one frame that are not read yet.
pub(super) struct Fields {
    pub(super) name: &'static str,
    pub(super) bytes: Bytes,
}

impl Fields {
    fn short<T, E>(&self, read: Result<T, E>) -> Result<T, LinkFault> {
        read.map_err(|_| LinkFault::Short(self.name))
    }

    pub(super) fn u8(&mut self) -> Result<u8, LinkFault> {
        let read = self.bytes.try_get_u8();
        self.short(read)
    }

    pub(super) fn u16(&mut self) -> Result<u16, LinkFault> {
        let read = self.bytes.try_get_u16();
        self.short(read)
    }

    pub(super) fn u32(&mut self) -> Result<u32, LinkFault> {
        let read = self.bytes.try_get_u32();
        self.short(read)
    }

    pub(super) fn u64(&mut self) -> Result<u64, LinkFault> {
        let read = self.bytes.try_get_u64();
        self.short(read)
    }

    pub(super) fn uuid(&mut self) -> Result<Uuid, LinkFault> {
        let read = self.bytes.try_get_u128();
        self.short(read).map(Uuid::from_u128)
    }

    pub(super) fn flag(&mut self, field: &'static str) -> Result<bool, LinkFault> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(LinkFault::Value(self.name, field)),
        }
    }

    pub(super) fn text(&mut self) -> Result<String, LinkFault> {
        let length = usize::from(self.u16()?);
        if length > MAX_TEXT {
            return Err(LinkFault::Value(self.name, "text"));
        }
        if self.bytes.len() < length {
            return Err(LinkFault::Short(self.name));
        }
        let text = self.bytes.split_to(length);
        String::from_utf8(text.into()).map_err(|_| LinkFault::Value(self.name, "text"))
    }

    pub(super) fn rest(&mut self) -> Bytes {
        std::mem::take(&mut self.bytes)
    }

    pub(super) fn end(&mut self) -> Result<End, LinkFault> {
        Ok(match self.u8()? {
            0 => End::Closing,
            1 => End::Duplicate,
            2 => End::Refused,
            3 => End::Fault,
            4 => End::Own,
            _ => return Err(LinkFault::Value(self.name, "code")),
        })
    }

    pub(super) fn row(&mut self) -> Result<Row, LinkFault> {
        Ok(Row {
            uuid: self.uuid()?,
            number: self.u64()?,
            rank: Rank {
                token: self.u64()?,
                stamp: self.u64()?,
            },
            role: Role::from_bits(self.u32()?),
            tracing: self.flag("trace flag")?,
            address: match self.text()?.as_str() {
                "" => PeerAddress::Memory,
                "unix" => PeerAddress::Unix,
                address => {
                    let address = address.parse();
                    PeerAddress::Ip(address.map_err(|_| LinkFault::Value(self.name, "address"))?)
                }
            },
        })
    }

    pub(super) fn rows(&mut self) -> Result<Vec<Row>, LinkFault> {
        let mut rows = Vec::new();
        while !self.bytes.is_empty() {
            rows.push(self.row()?);
        }
        Ok(rows)
    }

    pub(super) fn forward(&mut self) -> Result<Forward, LinkFault> {
        Ok(Forward {
            token: self.u64()?,
            number: self.u64()?,
            from: self.uuid()?,
            traced: self.flag("trace flag")?,
            to: match self.u8()? {
                0 => {
                    let count = usize::from(self.u16()?);
                    if count > MAX_TARGETS {
                        return Err(LinkFault::Value(self.name, "number of sessions"));
                    }
                    To::Sessions((0..count).map(|_| self.uuid()).collect::<Result<_, _>>()?)
                }
                1 => To::Role(Role::from_bits(self.u32()?)),
                2 => To::Application,
                _ => return Err(LinkFault::Value(self.name, "target")),
            },
            frames: self.rest(),
        })
    }
}
