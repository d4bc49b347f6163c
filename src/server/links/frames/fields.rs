//! The encoding of each type of field in a link frame. All integers are big-endian.

use bytes::{Buf, Bytes};
use uuid::Uuid;

use super::{EndCode, Forward, Hello, MAX_TARGETS, Receivers, Row};
use crate::server::sessions::Rank;
use ssntp_pki::Role;
use ssntp_transport::{PeerAddress, cut};

/// The longest text, such as an address or a reason, in bytes.
const MAX_TEXT: usize = 256;

/// A field that cannot be decoded.
pub(super) enum Malformed {
    /// The input ends before the field does.
    Short,
    /// The value of this field is not valid.
    Value(&'static str),
}

/// A value with an encoding.
pub(super) trait LinkValue: Sized {
    /// Appends the value.
    fn put(&self, out: &mut Vec<u8>);

    /// Removes the value from the front of the input.
    fn take(input: &mut Bytes) -> Result<Self, Malformed>;
}

macro_rules! integers {
    ($($integer:ty: $take:ident,)*) => {$(
        impl LinkValue for $integer {
            fn put(&self, out: &mut Vec<u8>) {
                out.extend(self.to_be_bytes());
            }

            fn take(input: &mut Bytes) -> Result<Self, Malformed> {
                input.$take().map_err(|_| Malformed::Short)
            }
        }
    )*};
}

integers! {
    u8: try_get_u8,
    u16: try_get_u16,
    u32: try_get_u32,
    u64: try_get_u64,
    u128: try_get_u128,
}

/// A value that is encoded as another one.
macro_rules! encoded_as {
    ($($value:ty: $put:expr, $take:expr;)*) => {$(
        impl LinkValue for $value {
            fn put(&self, out: &mut Vec<u8>) {
                $put(self).put(out);
            }

            fn take(input: &mut Bytes) -> Result<Self, Malformed> {
                LinkValue::take(input).and_then($take)
            }
        }
    )*};
}

encoded_as! {
    Uuid: Uuid::as_u128, |number| Ok(Self::from_u128(number));
    Role: |role: &Self| role.bits(), |bits| Ok(Self::from_bits(bits));
    bool: |flag: &Self| u8::from(*flag), |byte: u8| match byte {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(Malformed::Value("a flag")),
    };
    EndCode: |code: &Self| *code as u8, |byte: u8| Ok(match byte {
        0 => Self::Closing,
        1 => Self::Duplicate,
        2 => Self::Refused,
        3 => Self::Fault,
        4 => Self::Own,
        _ => return Err(Malformed::Value("its code")),
    });
    PeerAddress: |address: &Self| match address {
        Self::Ip(address) => address.to_string(),
        Self::Unix => "unix".into(),
        _ => String::new(),
    }, |text: String| match text.as_str() {
        "" => Ok(Self::Memory),
        "unix" => Ok(Self::Unix),
        address => address.parse().map(Self::Ip).map_err(|_| Malformed::Value("an address")),
    };
}

/// A struct whose fields follow each other in this order.
macro_rules! records {
    ($($record:ident { $($field:ident),* })*) => {$(
        impl LinkValue for $record {
            fn put(&self, out: &mut Vec<u8>) {
                $(self.$field.put(out);)*
            }

            fn take(input: &mut Bytes) -> Result<Self, Malformed> {
                Ok(Self { $($field: LinkValue::take(input)?),* })
            }
        }
    )*};
}

records! {
    Hello { version, uuid, incarnation, role, token, max_payload, advertised }
    Rank { token, stamp }
    Row { uuid, number, rank, role, tracing, address }
    Forward { token, number, from, traced, to, frames }
}

/// A length of 16 bits and UTF-8. A longer text is cut at a character boundary.
impl LinkValue for String {
    fn put(&self, out: &mut Vec<u8>) {
        let text = cut(self, MAX_TEXT);
        u16::try_from(text.len()).unwrap_or(u16::MAX).put(out);
        out.extend(text.as_bytes());
    }

    fn take(input: &mut Bytes) -> Result<Self, Malformed> {
        let length = usize::from(u16::take(input)?);
        if length > MAX_TEXT {
            return Err(Malformed::Value("a text"));
        }
        if input.len() < length {
            return Err(Malformed::Short);
        }
        Self::from_utf8(input.split_to(length).into()).map_err(|_| Malformed::Value("a text"))
    }
}

/// The rest of the frame.
impl LinkValue for Bytes {
    fn put(&self, out: &mut Vec<u8>) {
        out.extend(self);
    }

    fn take(input: &mut Bytes) -> Result<Self, Malformed> {
        Ok(std::mem::take(input))
    }
}

/// Rows until the end of the frame.
impl LinkValue for Vec<Row> {
    fn put(&self, out: &mut Vec<u8>) {
        self.iter().for_each(|row| row.put(out));
    }

    fn take(input: &mut Bytes) -> Result<Self, Malformed> {
        let mut rows = Self::new();
        while !input.is_empty() {
            rows.push(Row::take(input)?);
        }
        Ok(rows)
    }
}

impl LinkValue for Receivers {
    fn put(&self, out: &mut Vec<u8>) {
        match self {
            Self::Sessions(uuids) => {
                0u8.put(out);
                u16::try_from(uuids.len()).unwrap_or(u16::MAX).put(out);
                uuids.iter().for_each(|uuid| uuid.put(out));
            }
            Self::Role(role) => {
                1u8.put(out);
                role.put(out);
            }
            Self::Application => 2u8.put(out),
        }
    }

    fn take(input: &mut Bytes) -> Result<Self, Malformed> {
        Ok(match u8::take(input)? {
            0 => match usize::from(u16::take(input)?) {
                count @ ..=MAX_TARGETS => {
                    Self::Sessions((0..count).map(|_| Uuid::take(input)).collect::<Result<_, _>>()?)
                }
                _ => return Err(Malformed::Value("its receivers")),
            },
            1 => Self::Role(Role::take(input)?),
            2 => Self::Application,
            _ => return Err(Malformed::Value("its receivers")),
        })
    }
}
